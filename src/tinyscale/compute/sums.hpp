#pragma once
// Sums of floats gathered in double, so that 2^25 terms lose none: a row into one number, or each
// column of many rows into its own (columns: 32 rows at a time in float). The order of additions
// never depends on the threads.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/elementwise.hpp"
#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/compute/memory_check.hpp"

namespace tinyscale {
namespace kernels {

// The reference body: the sum of x[i]^power; step is the number of columns where x is a column.
inline double sum_reference(std::int64_t n, const float* x, int power = 1, std::int64_t step = 1) {
  double total = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    total += std::pow(double{x[i * step]}, power);
  }
  return total;
}

}  // namespace kernels

namespace detail {

// result = sum of x[i]^POWER in four vectors of doubles, then the rest one by one.
template <int POWER>
struct SumBlock {
  std::int64_t n;
  const float* x;
  double* result;

  template <class L>
  TINYSCALE_INLINE void run() const {
    typename L::D sums[4] = {}, v;
    constexpr std::int64_t step = 4 * L::doubles;
    std::int64_t i = 0;
    for (; i + step <= n; i += step) {
      TINYSCALE_UNROLL
      for (int part = 0; part < 4; ++part) {
        load_double<L>(x + i + part * L::doubles, v);
        sums[part] = sums[part] + (POWER == 2 ? v * v : v);
      }
    }
    sums[0] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    double lanes[L::doubles];
    std::memcpy(lanes, &sums[0], sizeof(lanes));
    double total = 0;
    for (const double lane : lanes) {
      total += lane;
    }
    for (; i < n; ++i) {
      const double value = static_cast<double>(x[i]);
      total += POWER == 2 ? value * value : value;
    }
    *result = total;
  }
};

struct ColumnSums {  // sums[i] += x[i]
  std::int64_t n;
  const float* x;
  double* sums;

  template <class L>
  TINYSCALE_INLINE void run() const {
    typename L::D v, s;
    std::int64_t i = 0;
    for (; i + L::doubles <= n; i += L::doubles) {
      load_double<L>(x + i, v);
      std::memcpy(&s, sums + i, sizeof(s));
      s = s + v;
      std::memcpy(sums + i, &s, sizeof(s));
    }
    for (; i < n; ++i) {
      sums[i] += static_cast<double>(x[i]);
    }
  }
};

// part[j] += the sum of rows that are `step` apart, four vectors of columns side by side: one sum
// waits for its last addition.
template <class L>
TINYSCALE_INLINE void add_rows(std::int64_t rows, std::int64_t n, const float* x, std::int64_t step,
                               float* part) {
  typename L::V sum, v, sums[4];
  std::int64_t j = 0;
  for (; j + 4 * L::width <= n; j += 4 * L::width) {
    TINYSCALE_UNROLL
    for (int k = 0; k < 4; ++k) {
      load<L>(part + j + k * L::width, sums[k]);
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      TINYSCALE_UNROLL
      for (int k = 0; k < 4; ++k) {
        load<L>(x + r * step + j + k * L::width, v);
        sums[k] = sums[k] + v;
      }
    }
    TINYSCALE_UNROLL
    for (int k = 0; k < 4; ++k) {
      store<L>(part + j + k * L::width, sums[k]);
    }
  }
  for (; j < n; j += L::width) {
    load_some<L>(part + j, n - j, 0.0f, sum);
    for (std::int64_t r = 0; r < rows; ++r) {
      load_some<L>(x + r * step + j, n - j, 0.0f, v);
      sum = sum + v;
    }
    store_some<L>(part + j, n - j, sum);
  }
}

constexpr std::int64_t sum_columns = 128;  // of a task

// Up to 128 columns of x: 32 rows in float, which then join the totals in double.
struct ColumnBlock {
  std::int64_t rows, cols, n;
  const float* x;
  double* totals;

  template <class L>
  TINYSCALE_INLINE void run() const {
    float part[static_cast<std::size_t>(sum_columns)];
    for (std::int64_t row = 0; row < rows; row += 32) {
      std::fill(part, part + n, 0.0f);
      add_rows<L>(std::min<std::int64_t>(rows - row, 32), n, x + row * cols, cols, part);
      call_on_lanes<L>(ColumnSums{n, part, totals});
    }
  }
};

}  // namespace detail

namespace kernels {

inline double sum(std::int64_t n, const float* x) {
  detail::count_of("sum", {n});
  double total = 0;
  detail::run_on_lanes(detail::SumBlock<1>{n, x, &total});
  return total;
}

inline void add_to_sums(std::int64_t n, const float* x, double* sums) {
  detail::run_on_lanes(detail::ColumnSums{n, x, sums});
}

// y[j] = beta y[j] + the sum of column j of x [rows, cols]; beta is 0 (y is not read) or 1.
inline void column_sums(std::int64_t rows, std::int64_t cols, const float* x, float* y,
                        float beta = 1.0f) {
  const std::int64_t all = detail::count_of("column_sums", {rows, cols});
  detail::check_own("column_sums", {"y", y, cols}, {{"x", x, all}});
  const std::int64_t wide = detail::sum_columns;
  parallel_for((cols + wide - 1) / wide, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t j = begin * wide; j < std::min(cols, end * wide); j += wide) {
      double totals[static_cast<std::size_t>(detail::sum_columns)] = {};
      const std::int64_t n = std::min(wide, cols - j);
      detail::run_on_lanes(detail::ColumnBlock{rows, cols, n, x + j, totals});
      for (std::int64_t i = 0; i < n; ++i) {
        y[j + i] = static_cast<float>(totals[i]) + (beta == 0.0f ? 0.0f : y[j + i]);
      }
    }
  });
}

// The sum of x[i]^2: blocks of fixed size, added in order.
inline double sum_of_squares(std::int64_t n, const float* x) {
  detail::count_of("sum_of_squares", {n});
  const std::int64_t block = detail::elementwise_block;
  const std::int64_t blocks = (n + block - 1) / block;
  List<double> sums(static_cast<std::size_t>(blocks));
  parallel_for(blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      const std::int64_t at = b * block;
      detail::run_on_lanes(
          detail::SumBlock<2>{std::min(block, n - at), x + at, &sums[static_cast<std::size_t>(b)]});
    }
  });
  double total = 0.0;
  for (const double part : sums) {
    total += part;
  }
  return total;
}

}  // namespace kernels
}  // namespace tinyscale
