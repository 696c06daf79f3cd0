#pragma once
// The largest number of rows or columns and its place: of equal ones the first, and the first NaN
// before all.

#include <algorithm>  // min
#include <cstdint>    // int32_t
#include <cstring>    // memcpy
#include <limits>     // infinity

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/lanes.hpp"

namespace tinyscale {
namespace kernels {

// The reference body, of n numbers `step` apart.
inline std::int64_t largest_reference(std::int64_t n, const float* x, std::int64_t step) {
  std::int64_t best = 0;
  for (std::int64_t i = 1; i < n; ++i) {
    const bool nan = detail::is_nan(static_cast<double>(x[best * step]));
    best = !nan && !(x[i * step] <= x[best * step]) ? i : best;
  }
  return best;
}

}  // namespace kernels

namespace detail {

// Block by block: that of the first largest is the only one to be walked again.
struct LargestInRow {
  std::int64_t n;
  const float* x;
  std::int64_t* place;  // -1: there is a NaN

  template <class L>
  TINYSCALE_INLINE void run() const {
    constexpr std::int64_t block = 512;
    const float lowest = -std::numeric_limits<float>::infinity();
    float largest = lowest;
    std::int64_t at = 0;
    typename L::V v, best;
    typename L::I nan, nans{};
    for (std::int64_t begin = 0; begin < n; begin += block) {
      const std::int64_t end = std::min(n, begin + block);
      broadcast<L>(lowest, best);
      for (std::int64_t j = begin; j < end; j += L::width) {
        load_some<L>(x + j, end - j, lowest, v);
        is_nan<L>(v, nan);
        nans = nans | nan;
        max_vector<L>(v, best, best);
      }
      const float here = max_lanes<L>(best);
      at = here > largest ? begin : at;
      largest = here > largest ? here : largest;
    }
    std::int32_t lanes[static_cast<std::size_t>(L::width)];
    std::memcpy(lanes, &nans, sizeof nans);
    for (const std::int32_t lane : lanes) {
      if (lane != 0) {
        *place = -1;
        return;
      }
    }
    while (x[at] < largest) {
      ++at;
    }
    *place = at;
  }
};

// Of columns begin to end of n rows `step` apart.
struct LargestDown {
  std::int64_t n, begin, end, step;
  const float* x;
  float* most;
  std::int64_t* place;

  template <class L>
  TINYSCALE_INLINE void run() const {
    typename L::V v, best;
    typename L::I nan, number, at, known, takes;
    for (std::int64_t j = begin; j < end; j += L::width) {
      const std::int64_t left = end - j;
      load_some<L>(x + j, left, 0.0f, best);
      is_nan<L>(best, known);
      at = typename L::I{};
      for (std::int64_t i = 1; i < n; ++i) {
        load_some<L>(x + i * step + j, left, 0.0f, v);
        is_nan<L>(v, nan);
        less<L>(best, v, takes);
        takes = (takes | nan) & ~known;
        known = known | nan;
        broadcast_word(static_cast<std::int32_t>(i), number);
        at = (number & takes) | (at & ~takes);
        blend<L>(takes, v, best, best);
      }
      store_some<L>(most + j, left, best);
      std::int32_t lanes[static_cast<std::size_t>(L::width)];
      std::memcpy(lanes, &at, sizeof at);
      for (std::int64_t lane = 0; lane < std::min<std::int64_t>(left, L::width); ++lane) {
        place[j + lane] = lanes[lane];
      }
    }
  }
};

}  // namespace detail

namespace kernels {

// Of n >= 1 numbers `step` apart.
inline std::int64_t largest(std::int64_t n, const float* x, std::int64_t step) {
  std::int64_t place = -1;
  if (step == 1 && n >= 32) {
    detail::run_on_lanes(detail::LargestInRow{n, x, &place});
  }
  return place >= 0 ? place : largest_reference(n, x, step);
}

// Down each of `columns` columns of n >= 1 rows, fewer than 2^31, that begin `step` apart.
inline void largest_down(std::int64_t n, std::int64_t columns, std::int64_t step, const float* x,
                         float* most, std::int64_t* place) {
  constexpr std::int64_t band = 64;
  const std::int64_t grain = std::max<std::int64_t>(1, 16384 / (n * band));
  parallel_for((columns + band - 1) / band, grain, [&](std::int64_t begin, std::int64_t end) {
    detail::run_on_lanes(
        detail::LargestDown{n, begin * band, std::min(columns, end * band), step, x, most, place});
  });
}

}  // namespace kernels
}  // namespace tinyscale
