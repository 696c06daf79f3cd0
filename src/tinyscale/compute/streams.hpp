#pragma once
// One vector from many and many from one, in one pass: several streams of memory under way at once
// are faster than one after another.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/lanes.hpp"

namespace tinyscale {
namespace detail {

// Reads `bytes` of weights on several threads, `units` of rows that are streams: of what is small
// each thread takes one part, since it has come to speed only after some time.
inline void stream_rows(std::int64_t units, double bytes, const LoopBody& body) {
  if (bytes < 131072.0) {  // less than waking a thread pays
    body(0, units);
    return;
  }
  const std::int64_t threads = thread_count();
  const auto fit = static_cast<std::int64_t>(bytes / 262144.0);
  const std::int64_t parts = std::clamp<std::int64_t>(fit / threads, 1, 16) * threads;
  parallel_for(units, (units + parts - 1) / parts, body);
}

struct SumOfVectors {
  std::int64_t n;
  const float* const* parts;
  std::size_t count;
  float* y;

  template <class L>
  TINYSCALE_INLINE void run() const {
    typename L::V sums[4], v;
    constexpr std::int64_t wide = 4 * L::width;
    std::int64_t i = 0;
    for (; i + wide <= n; i += wide) {
      TINYSCALE_UNROLL
      for (int part = 0; part < 4; ++part) {
        load<L>(parts[0] + i + part * L::width, sums[part]);
      }
      for (std::size_t p = 1; p < count; ++p) {
        TINYSCALE_UNROLL
        for (int part = 0; part < 4; ++part) {
          load<L>(parts[p] + i + part * L::width, v);
          sums[part] = sums[part] + v;
        }
      }
      TINYSCALE_UNROLL
      for (int part = 0; part < 4; ++part) {
        store<L>(y + i + part * L::width, sums[part]);
      }
    }
    for (; i < n; i += L::width) {
      load_some<L>(parts[0] + i, n - i, 0.0f, sums[0]);
      for (std::size_t p = 1; p < count; ++p) {
        load_some<L>(parts[p] + i, n - i, 0.0f, v);
        sums[0] = sums[0] + v;
      }
      store_some<L>(y + i, n - i, sums[0]);
    }
  }
};

struct CopiesOfVector {
  std::int64_t n;
  const float* x;
  float* const* copies;
  std::size_t count;

  template <class L>
  TINYSCALE_INLINE void run() const {
    typename L::V v[4];
    constexpr std::int64_t wide = 4 * L::width;
    std::int64_t i = 0;
    for (; i + wide <= n; i += wide) {
      TINYSCALE_UNROLL
      for (int part = 0; part < 4; ++part) {
        load<L>(x + i + part * L::width, v[part]);
      }
      for (std::size_t c = 0; c < count; ++c) {
        TINYSCALE_UNROLL
        for (int part = 0; part < 4; ++part) {
          store<L>(copies[c] + i + part * L::width, v[part]);
        }
      }
    }
    for (; i < n; i += L::width) {
      load_some<L>(x + i, n - i, 0.0f, v[0]);
      for (std::size_t c = 0; c < count; ++c) {
        store_some<L>(copies[c] + i, n - i, v[0]);
      }
    }
  }
};

}  // namespace detail

namespace kernels {

// y[i] = parts[0][i] + parts[1][i] + .. + parts[count - 1][i], from left to right; y may be one.
inline void add_all(std::int64_t n, const float* const* parts, std::size_t count, float* y) {
  detail::run_on_lanes(detail::SumOfVectors{n, parts, count, y});
}

// copies[c][i] = x[i] of each of `count`; x is none of them.
inline void copy_to_all(std::int64_t n, const float* x, float* const* copies, std::size_t count) {
  detail::run_on_lanes(detail::CopiesOfVector{n, x, copies, count});
}

}  // namespace kernels
}  // namespace tinyscale
