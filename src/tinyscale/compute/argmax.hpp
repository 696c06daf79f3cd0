#pragma once
// The first largest of a row of numbers, and whether all are finite: what greedy decoding asks of
// the logits, two passes over a row in cache.

#include <cstdint>
#include <cstring>
#include <limits>

#include "tinyscale/compute/gemv_quantized.hpp"
#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/compute/softmax.hpp"

namespace tinyscale {
namespace detail {

struct LargestOfRow {
  std::int64_t n;
  const float* x;
  float* largest;
  bool* finite;

  template <class L>
  TINYSCALE_INLINE void run() const {
    typename L::V best;
    broadcast<L>(-std::numeric_limits<float>::infinity(), best);
    max_row<L>(n, x, best);
    float lanes[static_cast<std::size_t>(L::width)];
    std::memcpy(lanes, &best, sizeof(best));
    *largest = lanes[0];
    for (const float lane : lanes) {
      *largest = lane > *largest ? lane : *largest;
    }
    *finite = RoundActivations::largest_bits<L>(x, n) < 0x7f800000U;
  }
};

}  // namespace detail

namespace kernels {

// The place of the first largest; -1 where a number is NaN or infinite, or there is none.
inline std::int64_t argmax(std::int64_t n, const float* x) {
  float largest = 0;
  bool finite = false;
  if (n > 0) {
    detail::run_on_lanes(detail::LargestOfRow{n, x, &largest, &finite});
  }
  for (std::int64_t i = 0; finite && i < n; ++i) {
    if (x[i] >= largest) {
      return i;
    }
  }
  return -1;
}

}  // namespace kernels
}  // namespace tinyscale
