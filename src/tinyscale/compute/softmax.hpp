#pragma once
// Softmax and cross-entropy by rows, from differences to the row's maximum (nothing overflows):
//   y_j = exp(x_j - max) / sum,  lse = max + log(sum),  loss = lse - x_target.
// dx = y (dy - sum(y dy));  d logits = scale (exp(x - lse) - onehot(target)).

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/lanes.hpp"

namespace tinyscale {
namespace detail {

// max and sum of exp(x - max) of one row; writes exp(x - max) to y unless y is null.
template <class L>
TINYSCALE_INLINE void exp_row(std::int64_t n, const float* x, float* y, float& max, float& sum) {
  typedef typename L::V V;
  const float lowest = -std::numeric_limits<float>::infinity();
  const std::int64_t full = n / L::width * L::width;
  V best, v;
  broadcast<L>(lowest, best);
  for (std::int64_t j = 0; j < full; j += L::width) {
    load<L>(x + j, v);
    max_vector<L>(best, v, best);
  }
  if (full < n) {
    load_part<L>(x + full, n - full, lowest, v);
    max_vector<L>(best, v, best);
  }
  max = max_lanes<L>(best);
  V total{}, e;
  broadcast<L>(max, best);
  for (std::int64_t j = 0; j < full; j += L::width) {
    load<L>(x + j, v);
    exp_negative<L>(v - best, e);
    total = total + e;
    if (y != nullptr) {
      store<L>(y + j, e);
    }
  }
  if (full < n) {
    load_part<L>(x + full, n - full, lowest, v);
    exp_negative<L>(v - best, e);
    total = total + e;
    if (y != nullptr) {
      store_part<L>(y + full, n - full, e);
    }
  }
  sum = sum_lanes<L>(total);
}

template <class L>
TINYSCALE_INLINE void scale_row(std::int64_t n, float factor, float* y) {
  typename L::V v, f;
  broadcast<L>(factor, f);
  std::int64_t j = 0;
  for (; j + L::width <= n; j += L::width) {
    load<L>(y + j, v);
    store<L>(y + j, v * f);
  }
  if (j < n) {
    load_part<L>(y + j, n - j, 0.0f, v);
    store_part<L>(y + j, n - j, v * f);
  }
}

template <class L>
TINYSCALE_INLINE float dot_row(std::int64_t n, const float* a, const float* b) {
  typename L::V sum{}, va, vb;
  std::int64_t j = 0;
  for (; j + L::width <= n; j += L::width) {
    load<L>(a + j, va);
    load<L>(b + j, vb);
    sum = sum + va * vb;
  }
  if (j < n) {
    load_part<L>(a + j, n - j, 0.0f, va);
    load_part<L>(b + j, n - j, 0.0f, vb);
    sum = sum + va * vb;
  }
  return sum_lanes<L>(sum);
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

struct SoftmaxBackwardRows {
  std::int64_t begin, end, cols;
  const float* y;
  const float* dy;
  float* dx;

  template <class L>
  TINYSCALE_INLINE void run() const {
    for (std::int64_t i = begin; i < end; ++i) {
      const float* yi = y + i * cols;
      const float* dyi = dy + i * cols;
      float* dxi = dx + i * cols;
      const float mean = dot_row<L>(cols, yi, dyi);
      typename L::V vy, vd, vx, vm;
      broadcast<L>(mean, vm);
      std::int64_t j = 0;
      for (; j + L::width <= cols; j += L::width) {
        load<L>(yi + j, vy);
        load<L>(dyi + j, vd);
        load<L>(dxi + j, vx);
        store<L>(dxi + j, vx + vy * (vd - vm));
      }
      for (; j < cols; ++j) {
        dxi[j] += yi[j] * (dyi[j] - mean);
      }
    }
  }
};

struct CrossEntropyRows {
  std::int64_t begin, end, vocab;
  const float* logits;
  const std::int32_t* targets;
  float* losses;
  float* lse;

  template <class L>
  TINYSCALE_INLINE void run() const {
    for (std::int64_t i = begin; i < end; ++i) {
      float max = 0.0f, sum = 0.0f;
      exp_row<L>(vocab, logits + i * vocab, nullptr, max, sum);
      lse[i] = max + std::log(sum);
      losses[i] = targets[i] < 0 ? 0.0f : lse[i] - logits[i * vocab + targets[i]];
    }
  }
};

struct CrossEntropyBackwardRows {
  std::int64_t begin, end, vocab;
  const float* logits;
  const float* lse;
  const std::int32_t* targets;
  float scale;
  float* dlogits;

  template <class L>
  TINYSCALE_INLINE void run() const {
    for (std::int64_t i = begin; i < end; ++i) {
      if (targets[i] < 0) {
        continue;
      }
      const float* x = logits + i * vocab;
      float* dx = dlogits + i * vocab;
      typename L::V v, e, d, vl, vs;
      broadcast<L>(lse[i], vl);
      broadcast<L>(scale, vs);
      std::int64_t j = 0;
      for (; j + L::width <= vocab; j += L::width) {
        load<L>(x + j, v);
        load<L>(dx + j, d);
        exp_vector<L>(v - vl, e);
        store<L>(dx + j, d + e * vs);
      }
      if (j < vocab) {
        load_part<L>(x + j, vocab - j, 0.0f, v);
        load_part<L>(dx + j, vocab - j, 0.0f, d);
        exp_vector<L>(v - vl, e);
        store_part<L>(dx + j, vocab - j, d + e * vs);
      }
      dx[targets[i]] -= scale;
    }
  }
};

// Rows per task so that a task is worth a thread's while; a function of the sizes only.
inline std::int64_t row_grain(std::int64_t cols) {
  return std::max<std::int64_t>(1, 8192 / std::max<std::int64_t>(cols, 1));
}

}  // namespace detail

namespace kernel {

inline void softmax_forward(std::int64_t rows, std::int64_t cols, const float* x, float* y) {
  parallel_for(rows, detail::row_grain(cols), [&](std::int64_t begin, std::int64_t end) {
    detail::run_on_lanes(detail::SoftmaxRows{begin, end, cols, x, y});
  });
}

inline void softmax_backward(std::int64_t rows, std::int64_t cols, const float* y, const float* dy,
                             float* dx) {
  parallel_for(rows, detail::row_grain(cols), [&](std::int64_t begin, std::int64_t end) {
    detail::run_on_lanes(detail::SoftmaxBackwardRows{begin, end, cols, y, dy, dx});
  });
}

// losses[rows], lse[rows]; a negative target gives loss 0 (and no gradient below).
inline void cross_entropy_forward(std::int64_t rows, std::int64_t vocab, const float* logits,
                                  const std::int32_t* targets, float* losses, float* lse) {
  parallel_for(rows, detail::row_grain(vocab), [&](std::int64_t begin, std::int64_t end) {
    detail::run_on_lanes(detail::CrossEntropyRows{begin, end, vocab, logits, targets, losses, lse});
  });
}

inline void cross_entropy_backward(std::int64_t rows, std::int64_t vocab, const float* logits,
                                   const float* lse, const std::int32_t* targets, float scale,
                                   float* dlogits) {
  parallel_for(rows, detail::row_grain(vocab), [&](std::int64_t begin, std::int64_t end) {
    detail::run_on_lanes(
        detail::CrossEntropyBackwardRows{begin, end, vocab, logits, lse, targets, scale, dlogits});
  });
}

}  // namespace kernel
}  // namespace tinyscale
