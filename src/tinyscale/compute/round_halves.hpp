#pragma once
// f32 numbers rounded to what f16 or bf16 holds, and bf16 codes as f32, a vector at a time.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tinyscale/base/format.hpp"
#include "tinyscale/compute/lanes.hpp"

namespace tinyscale {
namespace kernels {

// The reference bodies.
inline void round_halves_reference(bool bf16, std::int64_t n, const float* x, float* y) {
  for (std::int64_t i = 0; i < n; ++i) {
    y[i] = bf16 ? from_bf16(to_bf16(x[i])) : from_f16(to_f16(x[i]));
  }
}
inline void widen_bf16_reference(std::int64_t n, const std::uint16_t* x, float* y) {
  for (std::int64_t i = 0; i < n; ++i) {
    y[i] = from_bf16(x[i]);
  }
}

}  // namespace kernels

namespace detail {

// x rounded to what f16 or bf16 holds, to nearest, halves to even.
struct RoundHalves {
  bool bf16;
  std::int64_t n;
  const float* x;
  float* y;

  template <class L>
  TINYSCALE_INLINE void run() const {
    typename L::V v, tiny;
    typename L::I bits, sign, kept, small, special;
    for (std::int64_t i = 0; i < n; i += L::width) {
      load_some<L>(x + i, n - i, 0.0f, v);
      std::memcpy(&bits, &v, sizeof(v));
      sign = bits & static_cast<std::int32_t>(0x80000000U);
      bits = bits & 0x7fffffff;
      if (bf16) {
        kept = (bits + 0x7fff + ((bits >> 16) & 1)) & static_cast<std::int32_t>(0xffff0000U);
        put_where<L>(0x7f800000 - bits, bits, kept);  // a NaN stays
      } else {
        kept = (bits + 0xfff + ((bits >> 13) & 1)) & static_cast<std::int32_t>(0xffffe000U);
        broadcast_word(0x7f800000, special);
        put_where<L>(0x477fffff - kept, special, kept);  // 65520 and beyond
        put_where<L>(0x7f800000 - bits, bits, kept);
        std::memcpy(&v, &bits, sizeof(v));
        v = v * 16777216.0f + 12582912.0f;  // below 2^-14: whole steps of 2^-24
        std::memcpy(&small, &v, sizeof(v));
        small = small - 0x4B400000;
        to_float<L>(small, tiny);
        tiny = tiny * 5.9604644775390625e-8f;
        std::memcpy(&small, &tiny, sizeof(v));
        put_where<L>(bits - 0x38800000, small, kept);
      }
      kept = kept | sign;
      std::memcpy(&v, &kept, sizeof(v));
      store_some<L>(y + i, n - i, v);
    }
  }

  // y where d < 0.
  template <class L>
  static TINYSCALE_INLINE void put_where(const typename L::I& d, const typename L::I& y,
                                         typename L::I& to) {
    const typename L::I mask = d >> 31;
    to = (y & mask) | (to & ~mask);
  }
};

// bf16 codes, each in the upper half of an f32.
struct WidenBf16Codes {
  std::int64_t n;
  const std::uint16_t* x;
  float* y;

  template <class L>
  TINYSCALE_INLINE void run() const {
    std::int64_t i = 0;
#if TINYSCALE_VECTOR_EXTENSIONS
    if constexpr (L::width > 1) {
      typename L::I bits;
      typename L::V v;
      for (; i + L::width <= n; i += L::width) {
        typedef typename L::LooseShorts Codes;
        bits = __builtin_convertvector(*reinterpret_cast<const Codes*>(x + i), typename L::I);
        bits = bits << 16;
        std::memcpy(&v, &bits, sizeof(v));
        store<L>(y + i, v);
      }
    }
#endif
    for (; i < n; ++i) {
      y[i] = from_bf16(x[i]);
    }
  }
};

}  // namespace detail
}  // namespace tinyscale
