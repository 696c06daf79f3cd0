#pragma once
// The logarithm of softmax by rows: y_j = (x_j - max) - log(sum exp(x - max)).

#include <cmath>    // exp, log
#include <cstdint>  // int64_t

#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/exp_rows.hpp"
#include "tinyscale/compute/lane_math.hpp"
#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/compute/memory_check.hpp"
#include "tinyscale/compute/row_sums.hpp"
#include "tinyscale/compute/softmax.hpp"

namespace tinyscale {
namespace kernels {

// The reference bodies.
inline void log_softmax_reference(std::int64_t rows, std::int64_t cols, const float* x, float* y) {
  for (std::int64_t at = 0; at < rows * cols; ++at) {
    y[at] = static_cast<float>(double{x[at]} - lse_reference(cols, x + at / cols * cols));
  }
}
inline void log_softmax_backward_reference(std::int64_t rows, std::int64_t cols, const float* y,
                                           const float* dy, float* dx, float beta = 1.0f) {
  for (std::int64_t i = 0; i < rows * cols; i += cols) {
    double sum = 0;
    for (std::int64_t j = i; j < i + cols; ++j) {
      sum += double{dy[j]};
    }
    for (std::int64_t j = i; j < i + cols; ++j) {
      const float old = beta == 0.0f ? 0.0f : dx[j];
      dx[j] = old + static_cast<float>(double{dy[j]} - sum * std::exp(double{y[j]}));
    }
  }
}

}  // namespace kernels

namespace detail {

struct LogSoftmaxShift {  // of one row
  const float* x;
  float* y;
  float max, log_sum;

  template <class L>
  TINYSCALE_INLINE void at(std::int64_t j, std::int64_t left) const {
    typename L::V v, most, shift;
    broadcast<L>(max, most);
    broadcast<L>(log_sum, shift);
    load_some<L>(x + j, left, 0.0f, v);
    store_some<L>(y + j, left, (v - most) - shift);  // max + log_sum would be rounded to max's bits
  }
};

struct LogSoftmaxRows {
  std::int64_t begin, end, cols;
  const float* x;
  float* y;

  template <class L>
  TINYSCALE_INLINE void run() const {
    for (std::int64_t at = begin * cols; at < end * cols; at += cols) {
      float max = 0.0f, sum = 0.0f;
      sum_exp_rows<L>(1, cols, x + at, cols, &max, &sum);
      for_row<L>(cols, LogSoftmaxShift{x + at, y + at, max, std::log(sum)});
    }
  }
};

struct LogSoftmaxSlope {  // of one row
  const float* y;
  const float* dy;
  float* dx;
  float beta, sum;

  template <class L>
  TINYSCALE_INLINE void at(std::int64_t j, std::int64_t left) const {
    typename L::V vy, vd, total;
    broadcast<L>(sum, total);
    load_some<L>(y + j, left, 0.0f, vy);
    load_some<L>(dy + j, left, 0.0f, vd);
    exp_negative<L>(vy, vy);
    add_some<L>(beta, vd - total * vy, left, dx + j);
  }
};

struct LogSoftmaxBackwardRows {
  std::int64_t begin, end, cols;
  const float* y;
  const float* dy;
  float* dx;
  float beta;

  template <class L>
  TINYSCALE_INLINE void run() const {
    for (std::int64_t at = begin * cols; at < end * cols; at += cols) {
      const float sum = row_sum<L>(cols, ValueTerm{dy + at});
      for_row<L>(cols, LogSoftmaxSlope{y + at, dy + at, dx + at, beta, sum});
    }
  }
};

}  // namespace detail

namespace kernels {

// y = x - lse, from differences to the maximum; dx = beta dx + dy - sum(dy) exp(y).
inline void log_softmax_forward(std::int64_t rows, std::int64_t cols, const float* x, float* y) {
  const std::int64_t n = detail::count_of("log_softmax_forward", {rows, cols});
  detail::check_in_place("log_softmax_forward", {"y", y, n}, {{"x", x, n}});
  parallel_for(rows, detail::row_grain(cols), [&](std::int64_t begin, std::int64_t end) {
    detail::run_on_lanes(detail::LogSoftmaxRows{begin, end, cols, x, y});
  });
}
inline void log_softmax_backward(std::int64_t rows, std::int64_t cols, const float* y,
                                 const float* dy, float* dx, float beta = 1.0f) {
  const std::int64_t n = detail::count_of("log_softmax_backward", {rows, cols});
  detail::check_in_place("log_softmax_backward", {"dx", dx, n}, {{"y", y, n}, {"dy", dy, n}});
  parallel_for(rows, detail::row_grain(cols), [&](std::int64_t begin, std::int64_t end) {
    detail::run_on_lanes(detail::LogSoftmaxBackwardRows{begin, end, cols, y, dy, dx, beta});
  });
}

}  // namespace kernels
}  // namespace tinyscale
