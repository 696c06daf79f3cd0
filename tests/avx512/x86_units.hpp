#pragma once
// Stands in for compute/x86_units.hpp where a processor without AVX-512 runs its paths: the same
// units, number by number (tools/emulate_avx512.sh). Tiles are SoftTiles.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "tinyscale/base/cpu.hpp"
#include "tinyscale/base/format.hpp"
#include "tinyscale/compute/lanes.hpp"

namespace tinyscale {
namespace detail {

// vcvtne2ps2bf16: low in the lower half, high in the upper; denormals become zero.
TINYSCALE_AVX512 inline void round_by_unit(const float* low, const float* high, Lanes16::I& out) {
  std::uint16_t numbers[32];
  for (int i = 0; i < 32; ++i) {
    const float x = i < 16 ? low[i] : high[i - 16];
    const bool denormal = x < 1.17549435e-38f && x > -1.17549435e-38f;
    numbers[i] = to_bf16(denormal ? 0.0f * x : x);
  }
  std::memcpy(&out, numbers, sizeof(out));
}

// vdpbf16ps: the upper products first, one rounding each.
TINYSCALE_AVX512 inline void dot_bf16_pairs(const Lanes16::I& a, const Lanes16::I& b,
                                            Lanes16::V& sum) {
  for (int i = 0; i < 16; ++i) {
    const auto x = static_cast<std::uint32_t>(a[i]), y = static_cast<std::uint32_t>(b[i]);
    const float upper =
        std::fma(float_of(x & 0xffff0000U), float_of(y & 0xffff0000U), float(sum[i]));
    sum[i] = std::fma(float_of(x << 16), float_of(y << 16), upper);
  }
}

// vpdpbusd: a of int8, b of uint8, sums that wrap around.
template <class I>
TINYSCALE_INLINE void sum_bytes(const I& a, const I& b, int lanes, I& sum) {
  for (int i = 0; i < lanes; ++i) {
    std::uint32_t all = static_cast<std::uint32_t>(sum[i]);
    for (int e = 0; e < 32; e += 8) {
      all += static_cast<std::uint32_t>(static_cast<std::int8_t>(a[i] >> e) *
                                        static_cast<std::uint8_t>(b[i] >> e));
    }
    sum[i] = static_cast<std::int32_t>(all);
  }
}
TINYSCALE_AVX512 inline void dot_vnni(const Lanes16::I& a, const Lanes16::I& b, Lanes16::I& sum) {
  sum_bytes(a, b, 16, sum);
}
TINYSCALE_AVX2 inline void dot_vnni(const Lanes8::I& a, const Lanes8::I& b, Lanes8::I& sum) {
  sum_bytes(a, b, 8, sum);
}

// vpmaddwd.
TINYSCALE_AVX2 inline void dot_pairs_by_unit(const Lanes8::I& a, const Lanes8::I& b,
                                             Lanes8::I& sum) {
  for (int i = 0; i < 8; ++i) {
    const std::int32_t low = static_cast<std::int16_t>(a[i]) * static_cast<std::int16_t>(b[i]);
    sum[i] += low + (a[i] >> 16) * (b[i] >> 16);
  }
}

// vcvtph2ps.
TINYSCALE_AVX512 inline void halves_by_unit(const std::uint16_t* from, Lanes16::V& x) {
  for (int i = 0; i < 16; ++i) {
    x[i] = from_f16(from[i]);
  }
}
TINYSCALE_AVX2 inline void halves_by_unit(const std::uint16_t* from, Lanes8::V& x) {
  for (int i = 0; i < 8; ++i) {
    x[i] = from_f16(from[i]);
  }
}

// vpmovdb.
TINYSCALE_AVX512 inline void bytes_by_unit(const Lanes16::I& words, std::int8_t* to) {
  for (int i = 0; i < 16; ++i) {
    to[i] = static_cast<std::int8_t>(words[i]);
  }
}

// vpmovzxwd.
template <class I>
TINYSCALE_INLINE void widen_words(const std::uint8_t* from, int lanes, I& words) {
  for (int i = 0; i < lanes; ++i) {
    words[i] = from[2 * i] | from[2 * i + 1] << 8;
  }
}
TINYSCALE_AVX512 inline void words_by_unit(const std::uint8_t* from, Lanes16::I& words) {
  widen_words(from, 16, words);
}
TINYSCALE_AVX2 inline void words_by_unit(const std::uint8_t* from, Lanes8::I& words) {
  widen_words(from, 8, words);
}

}  // namespace detail
}  // namespace tinyscale
