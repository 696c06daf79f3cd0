#pragma once
// Writing past the caches: what is larger than they are is not read by whoever comes next, and no
// line of it need be read before it is written.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "tinyscale/compute/lanes.hpp"

namespace tinyscale {
namespace detail {

constexpr double past_caches_bytes =
    32e6;  // of one result, above which it is done: more than most last caches
inline bool past_caches(std::int64_t numbers) {
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS
  return 4.0 * static_cast<double>(numbers) > past_caches_bytes;
#else  // there is no such store
  static_cast<void>(numbers);
  return false;
#endif
}

#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS
#if defined(__clang__)
template <class V>
TINYSCALE_INLINE void store_past_caches(float* to, const V& v) {
  __builtin_nontemporal_store(v, reinterpret_cast<V*>(to));
}
#else
TINYSCALE_AVX512 inline void store_past_caches(float* to, const Lanes16::V& v) {
  __builtin_ia32_movntps512(to, v);
}
TINYSCALE_AVX2 inline void store_past_caches(float* to, const Lanes8::V& v) {
  __builtin_ia32_movntps256(to, v);
}
__attribute__((target("sse"))) inline void store_past_caches(float* to, const Lanes4::V& v) {
  __builtin_ia32_movntps(to, v);
}
#endif
inline void end_past_caches() { __builtin_ia32_sfence(); }
#else
template <class V>
TINYSCALE_INLINE void store_past_caches(float* to, const V& v) {
  std::memcpy(to, &v, sizeof(v));
}
inline void end_past_caches() {}
#endif

// Numbers of y before the first cache line that it begins.
inline std::int64_t before_line(const float* y) {
  const std::int64_t past = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(y) % 64 / 4);
  return past == 0 ? 0 : 16 - past;
}

// The first `left` numbers of v, past the caches if they are a whole vector at its own alignment.
template <class L>
TINYSCALE_INLINE void put_some(bool past, const typename L::V& v, std::int64_t left, float* y) {
  if (past && left >= L::width) {
    store_past_caches(y, v);
  } else {
    store_some<L>(y, left, v);
  }
}

// step.at<L>(j, left) over a row of y, in which it puts vectors past the caches if `past`: less
// than one at a time up to y's first cache line. end_past_caches() before another thread reads y.
template <class L, class Step>
TINYSCALE_INLINE void for_row_past(bool past, std::int64_t n, const float* y, const Step& step) {
  const std::int64_t first = past ? std::min(n, before_line(y)) : 0;
  std::int64_t j = 0;
  while (j < first) {
    const std::int64_t left = std::min<std::int64_t>(first - j, L::width - 1);
    step.template at<L>(j, left);
    j += left;
  }
  for_row<L>(n, step, j);
}

// y = x; end_past_caches() before another thread reads y.
template <class L>
TINYSCALE_INLINE void stream_copy(std::int64_t n, const float* x, float* y) {
  typename L::V v;
  const std::int64_t first = std::min(n, before_line(y));
  std::int64_t i = 0;
  for (; i < first; ++i) {
    y[i] = x[i];
  }
  for (; i + L::width <= n; i += L::width) {
    load<L>(x + i, v);
    store_past_caches(y + i, v);
  }
  for (; i < n; ++i) {
    y[i] = x[i];
  }
}

}  // namespace detail
}  // namespace tinyscale
