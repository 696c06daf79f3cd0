#pragma once
// Sums of floats gathered in double, so that 2^25 terms lose none: a row into one number, or each
// column of many rows into its own. The order of additions never depends on the threads.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/elementwise.hpp"
#include "tinyscale/compute/lanes.hpp"

namespace tinyscale {
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

}  // namespace detail

namespace kernel {

inline double sum(std::int64_t n, const float* x) {
  double total = 0;
  detail::run_on_lanes(detail::SumBlock<1>{n, x, &total});
  return total;
}

inline void add_to_sums(std::int64_t n, const float* x, double* sums) {
  detail::run_on_lanes(detail::ColumnSums{n, x, sums});
}

// The sum of x[i]^2: blocks of fixed size, added in order.
inline double sum_of_squares(std::int64_t n, const float* x) {
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

}  // namespace kernel
}  // namespace tinyscale
