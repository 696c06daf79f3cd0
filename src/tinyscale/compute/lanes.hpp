#pragma once
// What lanes can do: load, store, multiply and add, compare, choose, turn into one number. Vectors
// are passed by reference, never by value: they stay inside one function.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "tinyscale/base/config.hpp"
#include "tinyscale/base/cpu.hpp"
#include "tinyscale/compute/lane_paths.hpp"

namespace tinyscale {
namespace detail {

template <class L>
TINYSCALE_INLINE void load(const float* from, typename L::V& v) {
  v = *reinterpret_cast<const typename L::Loose*>(from);
}

template <class L>
TINYSCALE_INLINE void store(float* to, const typename L::V& v) {
  *reinterpret_cast<typename L::Loose*>(to) = v;
}

// sum + a b, for kernels that promise each other's bits: of single floats a compiler fuses both in
// one loop and not in another, which it makes vectors of.
TINYSCALE_INLINE void add_product(float a, float b, float& sum) {
#if defined(__FP_FAST_FMAF)
  sum = std::fma(a, b, sum);
#else
  sum = sum + a * b;
#endif
}
// Of vectors g++ 14 fuses several sums side by side, and not one alone.
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS && !defined(__clang__)
TINYSCALE_AVX512 inline void fuse(const Lanes16::V& a, const Lanes16::V& b, Lanes16::V& sum) {
  sum = __builtin_ia32_vfmaddps512_mask(a, b, sum, -1, 4);
}
TINYSCALE_AVX2 inline void fuse(const Lanes8::V& a, const Lanes8::V& b, Lanes8::V& sum) {
  sum = __builtin_ia32_vfmaddps256(a, b, sum);
}
#endif
template <class L>
TINYSCALE_INLINE void add_product(const typename L::V& a, const typename L::V& b,
                                  typename L::V& sum) {
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS && !defined(__clang__)
  if constexpr (L::width >= 8) {
    fuse(a, b, sum);
    return;
  }
#endif
  if constexpr (L::width == 1) {
    add_product(a, b, sum);
  } else {
    sum = sum + a * b;
  }
}

// Likewise of the numbers that are left of a row.
template <class L>
TINYSCALE_INLINE void add_last_product(float a, float b, float& sum) {
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS && !defined(__clang__)
  if constexpr (L::width >= 8) {
    sum = __builtin_fmaf(a, b, sum);
    return;
  }
#endif
  add_product(a, b, sum);
}

// Into the cache of level 2, or (LEVEL 3) of level 1.
template <int LEVEL = 2>
TINYSCALE_INLINE void prefetch(const void* at) {
#if TINYSCALE_VECTOR_EXTENSIONS
  __builtin_prefetch(at, 0, LEVEL);
#else
  static_cast<void>(at);
#endif
}

// How far ahead to fetch what is read in whole lines from its beginning on: AMD's own fetching does
// that, and is slowed down by more.
inline std::int64_t fetch_ahead(std::int64_t distance) { return cpu().amd ? 0 : distance; }

// The next `doubles` floats, widened.
template <class L>
TINYSCALE_INLINE void load_double(const float* from, typename L::D& v) {
#if TINYSCALE_VECTOR_EXTENSIONS
  v = __builtin_convertvector(*reinterpret_cast<const typename L::Half*>(from), typename L::D);
#else
  v = static_cast<double>(*from);
#endif
}

// Every lane x. g++ builds `x - V{}` lane by lane when it meets it outside a target function, which
// every inlined template is; so each width has its own function with the attribute, inlined late.
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS
TINYSCALE_AVX512 inline void broadcast_16(float x, Lanes16::V& v) { v = x - Lanes16::V{}; }

TINYSCALE_AVX2 inline void broadcast_8(float x, Lanes8::V& v) { v = x - Lanes8::V{}; }
#endif

template <class L>
TINYSCALE_INLINE void broadcast(float x, typename L::V& v) {
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS && !defined(__clang__)
  if constexpr (L::width == 16) {
    broadcast_16(x, v);
    return;
  } else if constexpr (L::width == 8) {
    broadcast_8(x, v);
    return;
  }
#endif
  v = x - typename L::V{};
}

// Every lane the same 32 bits.
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS
TINYSCALE_AVX512 inline void broadcast_word(std::int32_t word, Lanes16::I& v) {
  v = word - Lanes16::I{};
}
TINYSCALE_AVX2 inline void broadcast_word(std::int32_t word, Lanes8::I& v) {
  v = word - Lanes8::I{};
}
#endif
template <class I>
TINYSCALE_INLINE void broadcast_word(std::int32_t word, I& v) {
  v = word - I{};
}

// 0, 1, 2, ...
template <class L>
TINYSCALE_INLINE void lane_numbers(typename L::I& v) {
  static constexpr std::int32_t numbers[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                               8, 9, 10, 11, 12, 13, 14, 15};
  std::memcpy(&v, numbers, sizeof(v));
}

// The first count < width lanes, by the masks of each instruction set: nothing beyond is touched.
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS
TINYSCALE_AVX512 inline void load_part_16(const float* from, std::int64_t count, Lanes16::V& v) {
  v = __builtin_ia32_loadups512_mask(from, v, static_cast<unsigned short>((1 << count) - 1));
}

TINYSCALE_AVX512 inline void store_part_16(float* to, std::int64_t count, const Lanes16::V& v) {
  __builtin_ia32_storeups512_mask(to, v, static_cast<unsigned short>((1 << count) - 1));
}

TINYSCALE_AVX2 inline void load_part_8(const float* from, std::int64_t count, Lanes8::V& v) {
  Lanes8::I lanes;
  lane_numbers<Lanes8>(lanes);
  const Lanes8::I mask = lanes < static_cast<std::int32_t>(count);
  const Lanes8::V found =
      __builtin_ia32_maskloadps256(reinterpret_cast<const Lanes8::V*>(from), mask);
  v = mask ? found : v;
}

TINYSCALE_AVX2 inline void store_part_8(float* to, std::int64_t count, const Lanes8::V& v) {
  Lanes8::I lanes;
  lane_numbers<Lanes8>(lanes);
  const Lanes8::I mask = lanes < static_cast<std::int32_t>(count);
  __builtin_ia32_maskstoreps256(reinterpret_cast<Lanes8::V*>(to), mask, v);
}
#endif

// The last count < width floats of a row; the other lanes hold fill.
template <class L>
TINYSCALE_INLINE void load_part(const float* from, std::int64_t count, float fill,
                                typename L::V& v) {
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS
  if constexpr (L::width >= 8) {
    broadcast<L>(fill, v);
    if constexpr (L::width == 16) {
      load_part_16(from, count, v);
    } else {
      load_part_8(from, count, v);
    }
    return;
  }
#endif
  float lanes[L::width];
  for (int i = 0; i < L::width; ++i) {
    lanes[i] = i < count ? from[i] : fill;
  }
  load<L>(lanes, v);
}

template <class L>
TINYSCALE_INLINE void store_part(float* to, std::int64_t count, const typename L::V& v) {
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS
  if constexpr (L::width == 16) {
    store_part_16(to, count, v);
    return;
  } else if constexpr (L::width == 8) {
    store_part_8(to, count, v);
    return;
  }
#endif
  float lanes[L::width];
  store<L>(lanes, v);
  for (int i = 0; i < L::width && i < count; ++i) {
    to[i] = lanes[i];
  }
}

// A whole vector, or the part of it that is left of a row.
template <class L>
TINYSCALE_INLINE void load_some(const float* from, std::int64_t left, float fill,
                                typename L::V& v) {
  if (left >= L::width) {
    load<L>(from, v);
  } else {
    load_part<L>(from, left, fill, v);
  }
}

template <class L>
TINYSCALE_INLINE void store_some(float* to, std::int64_t left, const typename L::V& v) {
  if (left >= L::width) {
    store<L>(to, v);
  } else {
    store_part<L>(to, left, v);
  }
}

// step.at<L>(j, count) for each vector of a row, the last perhaps a part.
template <class L, class Step>
TINYSCALE_INLINE void for_row(std::int64_t n, const Step& step, std::int64_t j = 0) {
  for (; j + L::width <= n; j += L::width) {
    step.template at<L>(j, L::width);
  }
  if (j < n) {
    step.template at<L>(j, n - j);
  }
}

// y = x with its halves, then its quarters ... exchanged: lane i gets lane i ^ distance.
template <class L, int DISTANCE>
TINYSCALE_INLINE void swap_lanes(const typename L::V& x, typename L::V& y) {
#if TINYSCALE_SHUFFLE
#define TINYSCALE_FOUR(I) (I) ^ DISTANCE, (I + 1) ^ DISTANCE, (I + 2) ^ DISTANCE, (I + 3) ^ DISTANCE
  if constexpr (L::width == 16) {
    y = __builtin_shufflevector(x, x, TINYSCALE_FOUR(0), TINYSCALE_FOUR(4), TINYSCALE_FOUR(8),
                                TINYSCALE_FOUR(12));
    return;
  } else if constexpr (L::width == 8) {
    y = __builtin_shufflevector(x, x, TINYSCALE_FOUR(0), TINYSCALE_FOUR(4));
    return;
  } else if constexpr (L::width == 4) {
    y = __builtin_shufflevector(x, x, TINYSCALE_FOUR(0));
    return;
  }
#undef TINYSCALE_FOUR
#endif
  float from[L::width], to[L::width];
  store<L>(from, x);
  for (int i = 0; i < L::width; ++i) {
    to[i] = from[(i ^ DISTANCE) % L::width];
  }
  load<L>(to, y);
}

// All ones where a < b, else zero (a comparison of vectors gives this; a scalar one does not).
template <class L>
TINYSCALE_INLINE void less(const typename L::V& a, const typename L::V& b, typename L::I& mask) {
  if constexpr (L::width == 1) {
    mask = a < b ? -1 : 0;
  } else {
    mask = a < b;
  }
}

// All ones where x is NaN, else zero: by its bits, which -ffast-math believes, and without a
// comparison, which g++ would take apart.
template <class L>
TINYSCALE_INLINE void is_nan(const typename L::V& x, typename L::I& mask) {
  typename L::I bits;
  std::memcpy(&bits, &x, sizeof bits);
  mask = (0x7f800000 - (bits & 0x7fffffff)) >> 31;
}

template <class L>
TINYSCALE_INLINE void blend(const typename L::I& mask, const typename L::V& yes,
                            const typename L::V& no, typename L::V& y) {
  y = mask ? yes : no;
}

// The larger and the smaller of a and b, a where either is NaN: one instruction, which g++ does not
// find.
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS && defined(__SSE__) && !defined(__clang__)
#define TINYSCALE_MAX_MIN 1
TINYSCALE_AVX512 inline void larger(const Lanes16::V& a, const Lanes16::V& b, Lanes16::V& y) {
  y = __builtin_ia32_maxps512_mask(b, a, a, -1, 4);
}
TINYSCALE_AVX512 inline void smaller(const Lanes16::V& a, const Lanes16::V& b, Lanes16::V& y) {
  y = __builtin_ia32_minps512_mask(b, a, a, -1, 4);
}
TINYSCALE_AVX2 inline void larger(const Lanes8::V& a, const Lanes8::V& b, Lanes8::V& y) {
  y = __builtin_ia32_maxps256(b, a);
}
TINYSCALE_AVX2 inline void smaller(const Lanes8::V& a, const Lanes8::V& b, Lanes8::V& y) {
  y = __builtin_ia32_minps256(b, a);
}
inline void larger(const Lanes4::V& a, const Lanes4::V& b, Lanes4::V& y) {
  y = __builtin_ia32_maxps(b, a);
}
inline void smaller(const Lanes4::V& a, const Lanes4::V& b, Lanes4::V& y) {
  y = __builtin_ia32_minps(b, a);
}
#endif

template <class L>
TINYSCALE_INLINE void max_vector(const typename L::V& a, const typename L::V& b, typename L::V& y) {
#ifdef TINYSCALE_MAX_MIN
  larger(a, b, y);
#else
  y = a < b ? b : a;
#endif
}

template <class L>
TINYSCALE_INLINE void min_vector(const typename L::V& a, const typename L::V& b, typename L::V& y) {
#ifdef TINYSCALE_MAX_MIN
  smaller(a, b, y);
#else
  y = b < a ? b : a;
#endif
}

// Lanes folded into one: halves, quarters, ... (a tree: 8 + 4 + 2 + 1).
template <class L, int DISTANCE = L::width / 2>
TINYSCALE_INLINE float sum_lanes(const typename L::V& v) {
  if constexpr (DISTANCE == 0) {
    float lanes[L::width];
    store<L>(lanes, v);
    return lanes[0];
  } else {
    typename L::V w;
    swap_lanes<L, DISTANCE>(v, w);
    return sum_lanes<L, DISTANCE / 2>(v + w);
  }
}

template <class L, int DISTANCE = L::width / 2>
TINYSCALE_INLINE float max_lanes(const typename L::V& v) {
  if constexpr (DISTANCE == 0) {
    float lanes[L::width];
    store<L>(lanes, v);
    return lanes[0];
  } else {
    typename L::V w;
    swap_lanes<L, DISTANCE>(v, w);
    max_vector<L>(v, w, w);
    return max_lanes<L, DISTANCE / 2>(w);
  }
}

template <class L>
TINYSCALE_INLINE void clamp_vector(const typename L::V& x, float low, float high,
                                   typename L::V& y) {  // a NaN passes through
  typename L::V bound;
  broadcast<L>(low, bound);
  max_vector<L>(x, bound, y);
  broadcast<L>(high, bound);
  min_vector<L>(y, bound, y);
}

template <class L>
TINYSCALE_INLINE void to_float(const typename L::I& n, typename L::V& y) {
#if TINYSCALE_VECTOR_EXTENSIONS
  y = __builtin_convertvector(n, typename L::V);
#else
  y = static_cast<float>(n);
#endif
}

}  // namespace detail
}  // namespace tinyscale
