#pragma once
// Cross-entropy fused with the matrix product before it: logits = x w^T exist for a block of rows
// of x at a time, never for the whole batch. They stand as [vocabulary, rows], so that lanes are
// rows: the softmax runs down the vocabulary, and w is never transposed. Each chunk c of the
// vocabulary keeps its own maximum, so that an exponential is taken once:
//   e = exp(logit - max_c),  lse = log sum over c of exp(max_c) sum_c e,
//   d logit = scale (e exp(max_c - lse) - onehot(target)),  dx = d logit w,  dw = d logit^T x.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/attention.hpp"
#include "tinyscale/compute/exp_rows.hpp"
#include "tinyscale/compute/gemm.hpp"
#include "tinyscale/compute/lane_math.hpp"
#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/compute/memory_check.hpp"
#include "tinyscale/compute/scratch.hpp"
#include "tinyscale/compute/softmax.hpp"
#include "tinyscale/compute/transpose.hpp"

namespace tinyscale {
namespace kernels {

// The reference body of the losses. Of the gradients: cross_entropy_backward_reference, and
// gemm_reference of what it gives.
inline void linear_cross_entropy_reference(std::int64_t rows, std::int64_t width,
                                           std::int64_t vocab, const float* x, const float* w,
                                           const std::int32_t* targets, float* losses, float* lse) {
  std::vector<float> logits(static_cast<std::size_t>(rows * vocab));
  gemm_reference(Trans::no, Trans::yes, rows, vocab, width, x, width, w, width, 0.0f, logits.data(),
                 vocab);
  cross_entropy_reference(rows, vocab, logits.data(), targets, losses, lse);
}

struct LinearCrossEntropy {
  std::int64_t rows, width, vocab;
  const float* x;               // [rows, width]
  const float* w;               // [vocab, width]
  const std::int32_t* targets;  // below 0: the row is left out
  float scale;                  // of the gradients: 1 / rows for a mean
  float* dx;                    // null: not wanted; may be x where dw is not wanted
  float* dw;
  float beta_x, beta_w;  // of dx and dw: 0 (not read) or 1
};

}  // namespace kernels

namespace detail {

constexpr std::int64_t vocab_chunk = 512;
constexpr std::int64_t logits_floats = 1 << 23;  // held at once: 32 MB

// One chunk of logits, 16 lanes a task: to exponentials, with their maxima and sums; and from
// there to gradients.
struct LogitLanes {
  std::int64_t first, last;  // tasks
  std::int64_t count, stride;
  float* logits;
  float* top;  // of each lane
  float* sum;
  const float* factor;  // null: this is the way forward

  template <class L>
  TINYSCALE_INLINE void run() const {
    typename L::V v, f, t, shift, total;
    for (std::int64_t i = first * 16; i < last * 16; i += L::width) {
      if (factor == nullptr) {
        broadcast<L>(-std::numeric_limits<float>::infinity(), t);
        exp_columns<L>(count, stride, 1.0f, logits + i, t, shift, total);
        store<L>(top + i, t);
        store<L>(sum + i, total);
        continue;
      }
      load<L>(factor + i, f);
      for (std::int64_t j = 0; j < count; ++j) {
        float* const at = logits + j * stride + i;
        load<L>(at, v);
        store<L>(at, f == typename L::V{} ? f : v * f);  // NaN of a row left out is 0
      }
    }
  }
};

// Rows [begin, begin + rows) of one call.
struct LogitsBlock {
  const kernels::LinearCrossEntropy& c;
  std::int64_t begin, rows, lanes;  // lanes: from row to row of what follows
  float* xt;                        // [width, lanes]
  float* logits;                    // [vocab, lanes]
  float* tops;                      // [chunks, lanes]; sums follow
  float* sums;
  float* factor;  // [lanes]; lse follows
  float* lse;

  std::int64_t whole() const { return (rows + 15) / 16 * 16; }  // vectors of every path
  void over_lanes(LogitLanes part) const {
    const auto body = [&part](std::int64_t first, std::int64_t last) {
      LogitLanes mine = part;
      mine.first = first;
      mine.last = last;
      run_on_lanes(mine);
    };
    if (part.count * lanes < (1 << 14)) {
      body(0, whole() / 16);
    } else {
      parallel_for(whole() / 16, 1, body);
    }
  }
  void product(std::int64_t j, std::int64_t count) const {
    kernels::gemm(kernels::Trans::no, kernels::Trans::no, count, whole(), c.width,
                  c.w + j * c.width, c.width, xt, lanes, 0.0f, logits + j * lanes, lanes);
  }
  void forward(float* losses) const {
    for (std::int64_t i = 0; i < rows; ++i) {
      lse[i] = 0.0f;  // until the end: the logit of the target
    }
    for (std::int64_t j = 0; j < c.vocab; j += vocab_chunk) {
      const std::int64_t count = std::min(vocab_chunk, c.vocab - j);
      product(j, count);
      for (std::int64_t i = 0; i < rows; ++i) {
        const std::int64_t target = c.targets[begin + i] - j;
        lse[i] = target >= 0 && target < count ? logits[(j + target) * lanes + i] : lse[i];
      }
      const std::int64_t at = j / vocab_chunk * lanes;
      over_lanes({0, 0, count, lanes, logits + j * lanes, tops + at, sums + at, nullptr});
    }
    const std::int64_t end = (c.vocab + vocab_chunk - 1) / vocab_chunk * lanes;
    for (std::int64_t i = 0; i < rows; ++i) {
      float top = tops[i];
      for (std::int64_t at = i; at < end; at += lanes) {
        top = std::max(top, tops[at]);
      }
      double sum = 0;
      for (std::int64_t at = i; at < end; at += lanes) {
        sum += static_cast<double>(sums[at]) * std::exp(static_cast<double>(tops[at] - top));
      }
      const float wanted = lse[i];
      const auto log_sum = static_cast<float>(std::log(sum));
      lse[i] = top + log_sum;
      losses[i] = c.targets[begin + i] < 0 ? 0.0f : top - wanted + log_sum;
      for (std::int64_t at = i; at < end; at += lanes) {  // for the way back
        sums[at] = tops[at] - top - log_sum;
      }
    }
  }
  // From the exponentials that forward left.
  void backward() const {
    const float* x = c.x + begin * c.width;
    float* const dx = c.dx == nullptr ? nullptr : c.dx + begin * c.width;
    for (std::int64_t j = 0; j < c.vocab; j += vocab_chunk) {
      const std::int64_t count = std::min(vocab_chunk, c.vocab - j);
      float* const part = logits + j * lanes;
      for (std::int64_t i = 0; i < rows; ++i) {
        const float top = sums[j / vocab_chunk * lanes + i];
        factor[i] = c.targets[begin + i] < 0 ? 0.0f : c.scale * std::exp(top);
      }
      over_lanes({0, 0, count, lanes, part, nullptr, nullptr, factor});
      for (std::int64_t i = 0; i < rows; ++i) {
        const std::int64_t target = c.targets[begin + i] - j;
        if (c.targets[begin + i] >= 0 && target >= 0 && target < count) {
          part[target * lanes + i] -= c.scale;
        }
      }
      if (dx != nullptr) {
        kernels::gemm(kernels::Trans::yes, kernels::Trans::no, rows, c.width, count, part, lanes,
                      c.w + j * c.width, c.width, j == 0 ? c.beta_x : 1.0f, dx, c.width);
      }
      if (c.dw != nullptr) {
        kernels::gemm(kernels::Trans::no, kernels::Trans::no, count, c.width, rows, part, lanes, x,
                      c.width, begin == 0 ? c.beta_w : 1.0f, c.dw + j * c.width, c.width);
      }
    }
  }
};

inline void check_linear_losses(const char* who, const kernels::LinearCrossEntropy& c,
                                const float* losses, const float* lse) {
  const Memory x{"x", c.x, count_of(who, {c.rows, c.width})};
  const Memory w{"w", c.w, count_of(who, {c.vocab, c.width})};
  const Memory dx{"dx", c.dx, x.columns}, dw{"dw", c.dw, w.columns};
  if (c.vocab < 1) {
    fail({who, ": a vocabulary of ", c.vocab, "; 1 or more is right"});
  }
  check_losses(who, c.rows, c.vocab, c.targets, losses, lse, {x, w, dx, dw});
  check_own(who, dw, {x, w, dx});
  check_own(who, dx, {w});
  if (c.dw == nullptr) {  // then x of some rows is read before their dx is written
    check_in_place(who, dx, {x});
  } else {
    check_own(who, dx, {x});
  }
}

// Blocks of rows, as equal as they can be.
enum class LossPass { forward, both };

inline void linear_cross_entropy_blocks(const kernels::LinearCrossEntropy& c, LossPass pass,
                                        float* losses, float* lse) {
  check_linear_losses(
      pass == LossPass::both ? "linear_cross_entropy" : "linear_cross_entropy_forward", c, losses,
      lse);
  if (c.rows == 0 && c.dw != nullptr && c.beta_w == 0.0f && pass == LossPass::both) {
    std::fill(c.dw, c.dw + c.vocab * c.width, 0.0f);  // no row writes it
  }
  const std::int64_t most = std::clamp<std::int64_t>(logits_floats / c.vocab, 64, 512);
  const std::int64_t blocks = (c.rows + most - 1) / most;
  const std::int64_t step = blocks == 0 ? 0 : (c.rows + blocks - 1) / blocks;
  const std::int64_t lanes = ((step + 15) / 16 | 1) * 16;  // odd: spread over the sets of a cache
  const std::int64_t chunks = (c.vocab + vocab_chunk - 1) / vocab_chunk;
  const Scratch lease(lanes * (c.width + c.vocab + 2 * chunks + 2));
  float* const logits = lease.data() + lanes * c.width;
  float* const tops = logits + lanes * c.vocab;
  float* const factor = tops + 2 * lanes * chunks;
  for (std::int64_t begin = 0; begin < c.rows; begin += step) {
    const std::int64_t rows = std::min(step, c.rows - begin);
    const LogitsBlock block{
        c,      begin,         rows, lanes, lease.data(), logits, tops, tops + lanes * chunks,
        factor, factor + lanes};
    std::fill(block.xt, block.xt + (rows % 16 == 0 ? 0 : c.width * lanes), 0.0f);
    std::fill(factor, factor + 2 * lanes, 0.0f);
    transpose(rows, c.width, c.x + begin * c.width, c.width, block.xt, lanes);
    block.forward(losses + begin);
    std::copy(block.lse, block.lse + rows, lse + begin);
    if (pass == LossPass::both) {
      block.backward();
    }
  }
}

}  // namespace detail

namespace kernels {

// losses[rows], lse[rows] of logits x w^T; a negative target gives loss 0.
inline void linear_cross_entropy_forward(std::int64_t rows, std::int64_t width, std::int64_t vocab,
                                         const float* x, const float* w,
                                         const std::int32_t* targets, float* losses, float* lse) {
  const LinearCrossEntropy c{rows, width, vocab, x, w, targets, 1.0f, nullptr, nullptr, 0.0f, 0.0f};
  detail::linear_cross_entropy_blocks(c, detail::LossPass::forward, losses, lse);
}

// Both at once, where the scale is known in advance: logits are computed once.
inline void linear_cross_entropy(const LinearCrossEntropy& c, float* losses, float* lse) {
  detail::linear_cross_entropy_blocks(c, detail::LossPass::both, losses, lse);
}

}  // namespace kernels
}  // namespace tinyscale
