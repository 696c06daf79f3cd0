#pragma once
// Softmax and cross-entropy by rows, from differences to the row's maximum (nothing overflows):
//   y_j = exp(x_j - max) / sum,  lse = max + log(sum),  loss = lse - x_target.
// dx = y (dy - sum(y dy));  d logits = scale (exp(x - lse) - onehot(target)).

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>

#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/lane_math.hpp"
#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/compute/memory_check.hpp"
#include "tinyscale/compute/past_caches.hpp"
#include "tinyscale/compute/row_sums.hpp"
#include "tinyscale/compute/scratch.hpp"

namespace tinyscale {
namespace kernels {

// The reference bodies: lse of one row, then y, dx, losses, d logits.
inline double lse_reference(std::int64_t n, const float* x) {
  const double max = double{*std::max_element(x, x + n)};
  double sum = 0;
  for (std::int64_t j = 0; j < n; ++j) {
    sum += std::exp(double{x[j]} - max);
  }
  return max + std::log(sum);
}

inline void softmax_reference(std::int64_t rows, std::int64_t cols, const float* x, float* y) {
  for (std::int64_t i = 0; i < rows * cols; i += cols) {
    const double lse = lse_reference(cols, x + i);
    for (std::int64_t j = i; j < i + cols; ++j) {
      y[j] = static_cast<float>(std::exp(double{x[j]} - lse));
    }
  }
}

inline void softmax_backward_reference(std::int64_t rows, std::int64_t cols, const float* y,
                                       const float* dy, float* dx, float beta = 1.0f) {
  for (std::int64_t i = 0; i < rows * cols; i += cols) {
    double mean = 0;
    for (std::int64_t j = i; j < i + cols; ++j) {
      mean += double{y[j]} * double{dy[j]};
    }
    for (std::int64_t j = i; j < i + cols; ++j) {
      const float old = beta == 0.0f ? 0.0f : dx[j];
      dx[j] = old + static_cast<float>(double{y[j]} * (double{dy[j]} - mean));
    }
  }
}

inline void cross_entropy_reference(std::int64_t rows, std::int64_t vocab, const float* logits,
                                    const std::int32_t* targets, float* losses, float* lse) {
  for (std::int64_t i = 0; i < rows; ++i) {
    const float* const x = logits + i * vocab;
    const double all = lse_reference(vocab, x);
    lse[i] = static_cast<float>(all);
    losses[i] = targets[i] < 0 ? 0.0f : static_cast<float>(all - double{x[targets[i]]});
  }
}

inline void cross_entropy_backward_reference(std::int64_t rows, std::int64_t vocab,
                                             const float* logits, const float* lse,
                                             const std::int32_t* targets, float scale,
                                             float* dlogits, float beta = 1.0f) {
  for (std::int64_t at = 0; at < rows * vocab; ++at) {
    const std::int64_t i = at / vocab, j = at % vocab;
    const double y = std::exp(double{logits[at]} - double{lse[i]});
    const double slope = targets[i] < 0 ? 0.0 : y - (j == targets[i] ? 1.0 : 0.0);
    dlogits[at] = static_cast<float>(scale * slope) + (beta == 0.0f ? 0.0f : dlogits[at]);
  }
}

}  // namespace kernels

namespace detail {

// max and sum of exp(x - max) of a row that is read once: block by block, from a maximum of each
// lane that grows on the way. Nothing is compared with -inf: exp_negative sees to -inf.
template <class L>
struct SumExp {
  typedef typename L::V V;
  V best, top, total, more;

  TINYSCALE_INLINE void start() {
    broadcast<L>(-std::numeric_limits<float>::infinity(), best);
    broadcast<L>(-std::numeric_limits<float>::max(), top);
    total = more = V{};
  }

  // The next numbers of the row; those `ahead` of them are fetched.
  TINYSCALE_INLINE void add(std::int64_t n, const float* x, std::int64_t ahead) {
    V v, sum{}, second{};
    max_row<L>(n, x, best);
    const V before = top;
    max_vector<L>(top, best, top);
    const V bound = top;
    exp_negative<L>(before - bound, v);
    total = total * v;
    more = more * v;
    std::int64_t j = 0;
    for (; j + 2 * L::width <= n; j += 2 * L::width) {
      prefetch<3>(x + j + ahead);
      prefetch<3>(x + j + ahead + L::width);
      load<L>(x + j, v);
      exp_negative<L>(v - bound, v);
      sum = sum + v;
      load<L>(x + j + L::width, v);
      exp_negative<L>(v - bound, v);
      second = second + v;
    }
    for (; j < n; j += L::width) {
      load_some<L>(x + j, n - j, -std::numeric_limits<float>::infinity(), v);
      exp_negative<L>(v - bound, v);
      sum = sum + v;
    }
    total = total + sum;
    more = more + second;
  }

  TINYSCALE_INLINE void finish(float& max, float& sum) const {
    V all, v;
    max = max_lanes<L>(best);
    broadcast<L>(max, all);
    exp_negative<L>(top - all, v);
    sum = sum_lanes<L>((total + more) * v);
  }
};

// The same of rows that begin `step` apart: eight at a time, so that memory is read in as many
// streams. AMD's is read in one in 0.65 of the time.
template <class L>
TINYSCALE_INLINE void sum_exp_rows(std::int64_t rows, std::int64_t n, const float* x,
                                   std::int64_t step, float* max, float* sum) {
  const std::int64_t together = cpu().amd ? 1 : 8, block = cpu().amd ? 2048 : 512;
  SumExp<L> each[8];
  for (std::int64_t i = 0; i < rows; i += together) {
    const std::int64_t count = std::min(rows - i, together);
    const std::int64_t ahead = count < 8 ? 4096 : block;
    for (std::int64_t r = 0; r < count; ++r) {
      each[r].start();
    }
    for (std::int64_t j = 0; j < n; j += block) {
      for (std::int64_t r = 0; r < count; ++r) {
        each[r].add(std::min(block, n - j), x + (i + r) * step + j, ahead);
      }
    }
    for (std::int64_t r = 0; r < count; ++r) {
      each[r].finish(max[i + r], sum[i + r]);
    }
  }
}

// max and sum of exp(x - max) of one row; writes exp(x - max) to y, which may be x.
template <class L>
TINYSCALE_INLINE void exp_row(std::int64_t n, const float* x, float* y, float& max, float& sum) {
  typedef typename L::V V;
  const float lowest = -std::numeric_limits<float>::infinity();
  V best, v, total{}, part{};
  broadcast<L>(lowest, best);
  max_row<L>(n, x, best);
  max = max_lanes<L>(best);
  broadcast<L>(max, best);
  for (std::int64_t j = 0; j < n; j += L::width) {
    if (j % summed_at_once == 0) {
      total = total + part;
      part = V{};
    }
    load_some<L>(x + j, n - j, lowest, v);
    prefetch<3>(x + j + n);  // of the next row
    exp_negative<L>(v - best, v);
    part = part + v;
    store_some<L>(y + j, n - j, v);
  }
  sum = sum_lanes<L>(total + part);
}

template <class L>
TINYSCALE_INLINE void scale_row(std::int64_t n, float factor, float* y) {
  typename L::V v, f;
  broadcast<L>(factor, f);
  for (std::int64_t j = 0; j < n; j += L::width) {
    load_some<L>(y + j, n - j, 0.0f, v);
    prefetch<3>(y + j + n);
    store_some<L>(y + j, n - j, v * f);
  }
}

// The same down the rows of p, each lane for itself: top becomes the maximum of it and of all p,
// p becomes exp(factor (p - top)), sum their sum. Lanes that see -inf alone get zeros.
template <class L>
TINYSCALE_INLINE void exp_columns(std::int64_t rows, std::int64_t stride, float factor, float* p,
                                  typename L::V& top, typename L::V& shift, typename L::V& sum) {
  typedef typename L::V V;
  V v, w, scale, low, one, second = top;
  broadcast<L>(factor * log2_e, scale);
  broadcast<L>(-127.0f, low);
  broadcast<L>(1.0f, one);
  std::int64_t x = 0;
  for (; x + 2 <= rows; x += 2) {
    load<L>(p + x * stride, v);
    load<L>(p + (x + 1) * stride, w);
    max_vector<L>(top, v, top);
    max_vector<L>(second, w, second);
  }
  if (x < rows) {
    load<L>(p + x * stride, v);
    max_vector<L>(top, v, top);
  }
  max_vector<L>(top, second, top);
  shift = top > -std::numeric_limits<float>::max() ? top : V{};
  sum = V{};
  for (x = 0; x < rows; ++x) {
    load<L>(p + x * stride, v);
    max_vector<L>((v - shift) * scale, low, v);
    exp2_product<L>(v, one, v);
    sum = sum + v;
    store<L>(p + x * stride, v);
  }
}

struct SoftmaxRows {
  std::int64_t begin, end, cols;
  const float* x;
  float* y;

  template <class L>
  TINYSCALE_INLINE void run() const {
    for (std::int64_t i = begin; i < end; ++i) {
      float max = 0.0f, sum = 0.0f;
      exp_row<L>(cols, x + i * cols, y + i * cols, max, sum);
      scale_row<L>(cols, 1.0f / sum, y + i * cols);
    }
  }
};

// The same past the caches, of whole vectors: while exps of a row are taken the row before, which
// waits in scratch, is divided and written, so that memory works all the time.
struct SoftmaxRowsPast {
  std::int64_t begin, end, cols;
  const float* x;
  float* y;
  float* two_rows;

  template <class L>
  TINYSCALE_INLINE void run() const {
    const std::int64_t ahead = std::max<std::int64_t>(cols, 4096);
    typename L::V best{}, v, e{}, factor{}, total;
    for (std::int64_t i = begin; i <= end; ++i) {
      const float* const from = x + i * cols;
      float* const now = two_rows + (i % 2) * cols;
      const float* const before = two_rows + (1 - i % 2) * cols;
      total = typename L::V{};
      if (i < end) {
        broadcast<L>(-std::numeric_limits<float>::infinity(), best);
        max_row<L>(cols, from, best);
        broadcast<L>(max_lanes<L>(best), best);
      }
      for (std::int64_t j = 0; j < cols; j += L::width) {
        if (i < end) {
          load<L>(from + j, v);
          prefetch<3>(from + j + ahead);
          exp_negative<L>(v - best, e);
          total = total + e;
        }
        if (i > begin) {
          load<L>(before + j, v);
          store_past_caches(y + (i - 1) * cols + j, v * factor);
        }
        store<L>(now + j, e);
      }
      broadcast<L>(1.0f / sum_lanes<L>(total), factor);
    }
    end_past_caches();
  }
};

struct SoftmaxSlope {  // of one row
  const float* y;
  const float* dy;
  float* dx;
  float beta, mean;
  std::int64_t later;  // so far behind is the next row, fetched meanwhile
  bool past;           // the caches

  template <class L>
  TINYSCALE_INLINE void at(std::int64_t j, std::int64_t left) const {
    typename L::V vy, vd, vm;
    prefetch<3>(y + j + later);
    prefetch<3>(dy + j + later);
    broadcast<L>(mean, vm);
    load_some<L>(y + j, left, 0.0f, vy);
    load_some<L>(dy + j, left, 0.0f, vd);
    add_some<L>(beta, vy * (vd - vm), left, dx + j, past);
  }
};

struct SoftmaxBackwardRows {
  std::int64_t begin, end, cols;
  const float* y;
  const float* dy;
  float* dx;
  float beta;
  bool past;

  template <class L>
  TINYSCALE_INLINE void run() const {
    for (std::int64_t at = begin * cols; at < end * cols; at += cols) {
      const float mean = dot_row<L>(cols, y + at, dy + at);
      for_row_past<L>(past, cols, dx + at,
                      SoftmaxSlope{y + at, dy + at, dx + at, beta, mean, cols, past});
    }
    if (past) {
      end_past_caches();
    }
  }
};

struct CrossEntropyRows {
  std::int64_t begin, end, vocab;
  const float* logits;
  const std::int32_t* targets;
  float* losses;
  float* lse;
  float* top;

  template <class L>
  TINYSCALE_INLINE void run() const {
    sum_exp_rows<L>(end - begin, vocab, logits + begin * vocab, vocab, lse + begin, losses + begin);
    for (std::int64_t i = begin; i < end; ++i) {
      const float most = lse[i], log_sum = std::log(losses[i]);
      lse[i] = top != nullptr ? log_sum : most + log_sum;
      if (top != nullptr) {
        top[i] = most;
      }
      losses[i] = targets[i] < 0 ? 0.0f : most - logits[i * vocab + targets[i]] + log_sum;
    }
  }
};

struct CrossEntropySlope {  // of one row
  const float* x;
  float* dx;
  float top, lse, scale, beta;
  bool past;

  template <class L>
  TINYSCALE_INLINE void at(std::int64_t j, std::int64_t left) const {
    typename L::V v, vt, vl, vs;
    broadcast<L>(top, vt);
    broadcast<L>(lse, vl);
    broadcast<L>(scale, vs);
    load_some<L>(x + j, left, 0.0f, v);
    prefetch<3>(x + j + 1024);  // from memory this takes 0.75 of the time
    exp_negative<L>((v - vt) - vl, v);
    add_some<L>(beta, v * vs, left, dx + j, past);
  }
};

struct CrossEntropyBackwardRows {
  std::int64_t begin, end, vocab;
  const float* logits;
  const float* lse;
  const std::int32_t* targets;
  float scale;
  float* dlogits;
  float beta;
  const float* top;
  bool past;

  template <class L>
  TINYSCALE_INLINE void run() const {
    for (std::int64_t i = begin; i < end; ++i) {
      float* const dx = dlogits + i * vocab;
      if (targets[i] < 0) {
        std::fill(dx, dx + (beta == 0.0f ? vocab : 0), 0.0f);
        continue;
      }
      for_row_past<L>(past, vocab, dx,
                      CrossEntropySlope{logits + i * vocab, dx, top != nullptr ? top[i] : 0.0f,
                                        lse[i], scale, beta, past});
      if (targets[i] < vocab) {
        dx[targets[i]] -= scale;
      }
    }
    if (past) {
      end_past_caches();
    }
  }
};

// Targets are numbers of the vocabulary, or below 0; what is read stays.
inline void check_losses(const char* who, std::int64_t rows, std::int64_t vocab,
                         const std::int32_t* targets, const float* losses, const float* lse,
                         std::initializer_list<Memory> read) {
  for (std::int64_t i = 0; i < rows; ++i) {
    if (targets[i] >= vocab) {
      fail({who, ": target ", i, " is ", targets[i], "; the vocabulary is ", vocab,
            ", a target below that, or below 0 for a row that is left out"});
    }
  }
  check_own(who, {"losses", losses, rows}, read);
  check_own(who, {"lse", lse, rows}, read);
}

// Rows per task so that a task is worth a thread's while; a function of the sizes only.
inline std::int64_t row_grain(std::int64_t cols) {
  return std::max<std::int64_t>(1, 8192 / std::max<std::int64_t>(cols, 1));
}

}  // namespace detail

namespace kernels {

inline void softmax_forward(std::int64_t rows, std::int64_t cols, const float* x, float* y) {
  const std::int64_t n = detail::count_of("softmax_forward", {rows, cols});
  if (!detail::is_plain(y, x, n)) {
    detail::check_in_place("softmax_forward", {"y", y, n}, {{"x", x, n}});
  }
  const bool past = x != y && cols % 16 == 0 && cols <= 16384 &&  // of which two rows stay at hand
                    detail::before_line(y) == 0 && detail::past_caches(rows * cols);
  parallel_for(rows, detail::row_grain(cols), [&](std::int64_t begin, std::int64_t end) {
    if (past) {
      const detail::Scratch two_rows(2 * cols);
      detail::run_on_lanes(detail::SoftmaxRowsPast{begin, end, cols, x, y, two_rows.data()});
    } else {
      detail::run_on_lanes(detail::SoftmaxRows{begin, end, cols, x, y});
    }
  });
}

inline void softmax_backward(std::int64_t rows, std::int64_t cols, const float* y, const float* dy,
                             float* dx, float beta = 1.0f) {
  const std::int64_t n = detail::count_of("softmax_backward", {rows, cols});
  detail::check_in_place("softmax_backward", {"dx", dx, n}, {{"y", y, n}, {"dy", dy, n}});
  const bool past = beta == 0.0f && dx != y && dx != dy && detail::past_caches(rows * cols);
  parallel_for(rows, detail::row_grain(cols), [&](std::int64_t begin, std::int64_t end) {
    detail::run_on_lanes(detail::SoftmaxBackwardRows{begin, end, cols, y, dy, dx, beta, past});
  });
}

// losses[rows], lse[rows]; a negative target gives loss 0 (and no gradient below). With top[rows]
// the maxima go there and lse is less them, which keeps its digits far from 0.
inline void cross_entropy_forward(std::int64_t rows, std::int64_t vocab, const float* logits,
                                  const std::int32_t* targets, float* losses, float* lse,
                                  float* top = nullptr) {
  const char* const who = "cross_entropy_forward";
  detail::check_losses(who, rows, vocab, targets, losses, lse,
                       {{"logits", logits, detail::count_of(who, {rows, vocab})}});
  const std::int64_t grain = rows < 32 ? 1 : 8;  // rows that are read together
  parallel_for(
      rows, std::max(grain, detail::row_grain(vocab)), [&](std::int64_t begin, std::int64_t end) {
        detail::run_on_lanes(
            detail::CrossEntropyRows{begin, end, vocab, logits, targets, losses, lse, top});
      });
}

// lse may be of more columns than are here; a target from vocab on is one of those.
inline void cross_entropy_backward(std::int64_t rows, std::int64_t vocab, const float* logits,
                                   const float* lse, const std::int32_t* targets, float scale,
                                   float* dlogits, float beta = 1.0f, const float* top = nullptr) {
  const char* const who = "cross_entropy_backward";
  const detail::Memory dx{"dlogits", dlogits, detail::count_of(who, {rows, vocab})};
  detail::check_in_place(who, dx, {{"logits", logits, dx.columns}});
  detail::check_own(who, dx, {{"lse", lse, rows}, {"targets", targets, rows}, {"top", top, rows}});
  const bool past = beta == 0.0f && dlogits != logits && detail::past_caches(rows * vocab);
  parallel_for(rows, detail::row_grain(vocab), [&](std::int64_t begin, std::int64_t end) {
    detail::run_on_lanes(detail::CrossEntropyBackwardRows{begin, end, vocab, logits, lse, targets,
                                                          scale, dlogits, beta, top, past});
  });
}

}  // namespace kernels
}  // namespace tinyscale
