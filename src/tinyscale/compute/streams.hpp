#pragma once
// Sums of many vectors to many, in one pass: several streams of memory under way at once are faster
// than one after another.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/compute/past_caches.hpp"

namespace tinyscale {
namespace kernels {

// The reference body of sums of many vectors to many.
inline void add_to_all_reference(std::int64_t n, const float* const* parts, std::size_t count,
                                 float* const* copies, std::size_t targets, float divisor = 1.0f) {
  for (std::int64_t i = 0; i < n; ++i) {
    float sum = parts[0][i];
    for (std::size_t p = 1; p < count; ++p) {
      sum += parts[p][i];
    }
    for (std::size_t c = 0; c < targets; ++c) {
      copies[c][i] = sum / divisor;
    }
  }
}

}  // namespace kernels

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

struct SumToVectors {
  std::int64_t n;
  const float* const* parts;
  std::size_t count;
  float* const* copies;
  std::size_t targets;
  float divisor;
  bool past;  // copies are written past the caches: all begin at one place of a cache line

  template <class L>
  TINYSCALE_INLINE void run() const {
    const SumToVectors now = *this;  // what is written does not change it
    std::int64_t i = 0;
    for (const std::int64_t first = past ? std::min(n, before_line(copies[0])) : 0; i < first;) {
      const std::int64_t left = std::min<std::int64_t>(first - i, L::width);
      now.template some<L>(i, left);
      i += left;
    }
    if (past) {
      i = now.template fours<L, true>(i);
      end_past_caches();
    } else {
      i = now.template fours<L, false>(i);
    }
    for (; i < n; i += L::width) {
      now.template some<L>(i, n - i);
    }
  }

 private:
  template <class L, bool to_memory>
  TINYSCALE_INLINE std::int64_t fours(std::int64_t i) const {
    constexpr std::int64_t wide = 4 * L::width;
    for (const std::int64_t last = n - wide; i <= last; i += wide) {
      typename L::V sums[4], v;
      const float* from = parts[0] + i;
      TINYSCALE_UNROLL
      for (int part = 0; part < 4; ++part) {
        load<L>(from + part * L::width, sums[part]);
      }
      for (std::size_t p = 1; p < count; ++p) {
        from = parts[p] + i;
        TINYSCALE_UNROLL
        for (int part = 0; part < 4; ++part) {
          load<L>(from + part * L::width, v);
          sums[part] = sums[part] + v;
        }
      }
      if (divisor != 1.0f) {
        TINYSCALE_UNROLL
        for (int part = 0; part < 4; ++part) {
          sums[part] = sums[part] / divisor;
        }
      }
      put<L, to_memory>(sums, copies[0] + i);
      for (std::size_t c = 1; c < targets; ++c) {
        put<L, to_memory>(sums, copies[c] + i);
      }
    }
    return i;
  }
  template <class L, bool to_memory>
  TINYSCALE_INLINE static void put(const typename L::V (&sums)[4], float* to) {
    TINYSCALE_UNROLL
    for (int part = 0; part < 4; ++part) {
      if (to_memory) {
        store_past_caches(to + part * L::width, sums[part]);
      } else {
        store<L>(to + part * L::width, sums[part]);
      }
    }
  }
  template <class L>
  TINYSCALE_INLINE void some(std::int64_t i, std::int64_t left) const {
    typename L::V sum, v;
    load_some<L>(parts[0] + i, left, 0.0f, sum);
    for (std::size_t p = 1; p < count; ++p) {
      load_some<L>(parts[p] + i, left, 0.0f, v);
      sum = sum + v;
    }
    if (divisor != 1.0f) {
      sum = sum / divisor;
    }
    for (std::size_t c = 0; c < targets; ++c) {
      store_some<L>(copies[c] + i, left, sum);
    }
  }
};

// More are slower in the pass that adds, through the caches, than in one of their own.
constexpr std::size_t most_targets = 4;

}  // namespace detail

namespace kernels {

// Each of `targets` copies y: y[i] = (parts[0][i] + parts[1][i] + .. + parts[count - 1][i]) /
// divisor, added from left to right. A copy may be one of the parts. `past_caches`: written
// past them, since nothing reads the copies soon.
inline void add_to_all(std::int64_t n, const float* const* parts, std::size_t count,
                       float* const* copies, std::size_t targets, float divisor = 1.0f,
                       bool past_caches = false) {
  bool past = past_caches;
  for (std::size_t c = 0; past && c < targets; ++c) {
    past = detail::before_line(copies[c]) == detail::before_line(copies[0]);
  }
  const bool twice = !past && count > 1 && targets > detail::most_targets;
  detail::run_on_lanes(
      detail::SumToVectors{n, parts, count, copies, twice ? 1 : targets, divisor, past});
  if (twice) {
    const float* const sum[] = {copies[0]};
    detail::run_on_lanes(detail::SumToVectors{n, sum, 1, copies + 1, targets - 1, 1.0f, false});
  }
}

// y[i] = parts[0][i] + parts[1][i] + .. + parts[count - 1][i], from left to right; y may be one.
inline void add_all(std::int64_t n, const float* const* parts, std::size_t count, float* y) {
  add_to_all(n, parts, count, &y, 1);
}

}  // namespace kernels
}  // namespace tinyscale
