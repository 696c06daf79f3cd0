#pragma once
// The first largest of a row of numbers, and whether all are finite: what greedy decoding asks of
// the logits, in one pass over a row, block by block.

#include <algorithm>  // min
#include <cstdint>    // int64_t
#include <limits>     // max

#include "tinyscale/base/error.hpp"
#include "tinyscale/compute/gemv_quantized.hpp"
#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/compute/softmax.hpp"

namespace tinyscale {
namespace kernels {

// The reference body.
inline std::int64_t argmax_reference(std::int64_t n, const float* x) {
  std::int64_t best = n > 0 ? 0 : -1;
  for (std::int64_t i = 0; i < n; ++i) {
    if (!detail::is_finite(double{x[i]})) {
      return -1;
    }
    best = x[i] > x[best] ? i : best;
  }
  return best;
}

}  // namespace kernels

namespace detail {

struct LargestOfRow {
  std::int64_t n;
  const float* x;
  std::int64_t* place;

  // The block with the first largest is the only one to be walked again.
  template <class L>
  TINYSCALE_INLINE void run() const {
    constexpr std::int64_t block = 512;
    float largest = -std::numeric_limits<float>::max();
    std::int64_t at = 0;
    typename L::V best;
    for (std::int64_t begin = 0; begin < n; begin += block) {
      const std::int64_t count = std::min(block, n - begin);
      if (RoundActivations::largest_bits<L>(x + begin, count) >= 0x7f800000U) {
        return;
      }
      broadcast<L>(largest, best);
      max_row<L>(count, x + begin, best);
      const float here = max_lanes<L>(best);
      if (here > largest) {
        largest = here;
        at = begin;
      }
    }
    while (x[at] < largest) {
      ++at;
    }
    *place = at;
  }
};

}  // namespace detail

namespace kernels {

// The place of the first largest; -1 where a number is NaN or infinite, or there is none.
inline std::int64_t argmax(std::int64_t n, const float* x) {
  std::int64_t place = -1;
  if (n > 0) {
    detail::run_on_lanes(detail::LargestOfRow{n, x, &place});
  }
  return place;
}

}  // namespace kernels
}  // namespace tinyscale
