#pragma once
// Numbers into stored blocks. f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q8_1, q8_k: one scale
// from the largest magnitude (or from least and largest), as ggml's reference rounds, byte for
// byte. mxfp4 and nvfp4: the scale among those near largest / 6 with the least squared error.
// q2_k .. q6_k: block_quantize_k.hpp.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/format.hpp"
#include "tinyscale/compute/block_dequantize.hpp"
#include "tinyscale/compute/block_format.hpp"
#include "tinyscale/compute/block_quantize_k.hpp"

namespace tinyscale {
namespace detail {

struct BlockRange {
  float least = 0, largest = 0;  // of the elements
  float extreme = 0;             // the first of the largest magnitude, with its sign
};

inline BlockRange block_range(int n, const float* x) {
  BlockRange r{x[0], x[0], x[0]};
  for (int i = 1; i < n; ++i) {
    r.least = x[i] < r.least ? x[i] : r.least;
    r.largest = x[i] > r.largest ? x[i] : r.largest;
    r.extreme = std::fabs(x[i]) > std::fabs(r.extreme) ? x[i] : r.extreme;
  }
  return r;
}

// 0 also where the reciprocal would be infinite; such a scale is 0 as f16.
inline float reciprocal_or_zero(float d) { return std::fabs(d) > 3e-39f ? 1.0f / d : 0.0f; }

// The reference bodies: what number i of a block x becomes. q8_0 and q8_1; q8_k; q4_0 .. q5_1.
inline float as_half_reference(float x) { return from_f16(to_f16(x)); }
inline float extreme_reference(int n, const float* x) {  // the first of the largest magnitude
  return *std::max_element(x, x + n, [](float a, float b) { return std::fabs(a) < std::fabs(b); });
}
inline float round_q8_reference(const float* x, int i) {
  const float d = std::fabs(extreme_reference(32, x)) / 127.0f;
  return as_half_reference(d) * std::round(x[i] * reciprocal_or_zero(d));
}
inline float round_q8_k_reference(const float* x, int i) {
  const float inverse = -127.0f / extreme_reference(256, x);
  return 1.0f / inverse * std::nearbyint(x[i] * inverse);
}
inline float round_nibble_reference(const float* x, int bits, bool affine, int i) {
  const auto last = static_cast<float>((1 << bits) - 1), middle = affine ? 0.0f : (last + 1) / 2;
  const float least = affine ? *std::min_element(x, x + 32) : 0.0f;
  const float d =
      affine ? (*std::max_element(x, x + 32) - least) / last : extreme_reference(32, x) / -middle;
  const float at = (x[i] - least) * reciprocal_or_zero(d) + (middle + 0.5f);
  const float code = std::min(last, std::trunc(at)) - middle;
  return as_half_reference(d) * code + as_half_reference(least);
}

// Of mxfp4 and nvfp4: the squared error of n numbers under a scale, every code tried; and the least
// of all scales that are tried, of mxfp4 the two powers of 2 that make the largest number 2 .. 8.
inline double e2m1_error_reference(int n, const float* x, float scale) {
  double sum = 0;
  for (int i = 0; i < n; ++i) {
    double least = std::numeric_limits<double>::infinity();
    for (const float value : e2m1_values) {
      const double off = double{x[i]} - double{scale} * double{value};
      least = std::min(least, off * off);
    }
    sum += least;
  }
  return sum;
}
inline double mxfp4_error_reference(const float* x) {
  double least = std::numeric_limits<double>::infinity();
  for (int code = 1; code < 255; ++code) {
    const float scale = e8m0_to_float(static_cast<std::uint8_t>(code));
    const float largest = std::fabs(extreme_reference(32, x)) / scale;
    if (largest >= 2 && largest < 8) {
      least = std::min(least, e2m1_error_reference(32, x, scale));
    }
  }
  return least;
}
inline double nvfp4_error_reference(const float* x) {  // of 16 numbers
  const int middle = to_fp8_e4m3_saturated(std::fabs(extreme_reference(16, x)) / 6.0f);
  double least = std::numeric_limits<double>::infinity();
  for (int code = std::max(1, middle - 2); code <= std::min(126, middle + 2); ++code) {
    const float scale = from_fp8_e4m3(static_cast<std::uint8_t>(code));
    least = std::min(least, e2m1_error_reference(16, x, scale));
  }
  return least;
}

// Truncated (for x from 0 on: down), at most `most`.
inline int trunc_to(float x, int most) {
  const int q = static_cast<int>(x);
  return q < most ? q : most;
}

// q8_0; q8_1 has after d the sum of what the block holds.
inline void quantize_q8(const float* x, bool sums, std::uint8_t* b) {
  const float d = std::fabs(block_range(32, x).extreme) / 127.0f;
  const float id = reciprocal_or_zero(d);
  int sum = 0;
  for (int i = 0; i < 32; ++i) {
    const int q = round_away(x[i] * id);
    sum += q;
    b[(sums ? 4 : 2) + i] = static_cast<std::uint8_t>(q);
  }
  put_half(b, d);
  if (sums) {
    put_half(b + 2, static_cast<float>(sum) * d);
  }
}

inline void quantize_q8_k(const float* x, std::uint8_t* b) {
  const float extreme = block_range(256, x).extreme;
  const float id = std::fabs(extreme) > 1e-36f ? -127.0f / extreme : 0.0f;  // else infinite
  const float d = reciprocal_or_zero(id);
  std::memcpy(b, &d, 4);
  for (int part = 0; part < 16; ++part) {
    int sum = 0;
    for (int i = 16 * part; i < 16 * part + 16; ++i) {
      const int q = round_even(x[i] * id);
      sum += q;
      b[4 + i] = static_cast<std::uint8_t>(q);
    }
    const std::int16_t stored = static_cast<std::int16_t>(sum);
    std::memcpy(b + 260 + 2 * part, &stored, 2);
  }
}

// q4_0, q5_0 (`affine` false): the extreme becomes code 0, d = extreme / -8 or / -16.
// q4_1, q5_1: least becomes code 0, largest the last.
inline void quantize_nibbles(const float* x, int bits, bool affine, std::uint8_t* b) {
  const int levels = 1 << bits;
  const BlockRange r = block_range(32, x);
  const float d = affine ? (r.largest - r.least) / static_cast<float>(levels - 1)
                         : r.extreme / static_cast<float>(-levels / 2);
  const float id = reciprocal_or_zero(d);
  put_half(b, d);
  if (affine) {
    put_half(b + 2, r.least);
  }
  std::uint8_t* const high_bits = b + (affine ? 4 : 2);
  std::uint8_t* const nibbles = high_bits + (bits == 5 ? 4 : 0);
  std::uint32_t high = 0;
  const float middle = static_cast<float>(levels / 2) + 0.5f;
  for (int i = 0; i < 32; ++i) {
    const float at = affine ? (x[i] - r.least) * id + 0.5f : x[i] * id + middle;
    const int q = trunc_to(at, levels - 1);
    const int nibble = q & 15;
    nibbles[i % 16] = static_cast<std::uint8_t>(i < 16 ? nibble : nibbles[i % 16] | nibble << 4);
    high |= static_cast<std::uint32_t>(q >> 4) << i;
  }
  if (bits == 5) {
    std::memcpy(high_bits, &high, 4);
  }
}

// The code of e2m1 nearest to x; on a tie the one whose mantissa is even.
inline int nearest_e2m1(float x) {
  static const float ends[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  const float size = std::fabs(x);
  int code = 0;
  while (code < 7 && (size > ends[code] || (size == ends[code] && code % 2 == 1))) {
    ++code;
  }
  return x < 0.0f ? code | 8 : code;
}

inline double e2m1_error(int n, const float* x, float scale) {
  const float inverse = 1.0f / scale;
  double sum = 0;
  for (int i = 0; i < n; ++i) {
    const double off =
        static_cast<double>(x[i]) -
        static_cast<double>(scale) * static_cast<double>(e2m1_values[nearest_e2m1(x[i] * inverse)]);
    sum += off * off;
  }
  return sum;
}

// n = 2 half elements under one scale: the first half in the low nibbles, the second in the high.
inline void put_e2m1(int half, const float* x, float scale, std::uint8_t* to) {
  const float inverse = 1.0f / scale;
  for (int i = 0; i < half; ++i) {
    to[i] = static_cast<std::uint8_t>(nearest_e2m1(x[i] * inverse) |
                                      nearest_e2m1(x[half + i] * inverse) << 4);
  }
}

inline void quantize_mxfp4(const float* x, std::uint8_t* b) {
  const float extreme = std::fabs(block_range(32, x).extreme);
  std::memset(b, 0, 17);
  if (extreme == 0.0f) {
    return;
  }
  const int power = static_cast<int>(bits_of(extreme) >> 23) - 2;  // 4 in e2m1 is 2^2
  double best = -1;
  for (int e = power; e <= power + 1; ++e) {
    const int code = e < 1 ? 1 : e > 254 ? 254 : e;
    const double error = e2m1_error(32, x, e8m0_to_float(static_cast<std::uint8_t>(code)));
    if (best < 0 || error < best) {
      best = error;
      b[0] = static_cast<std::uint8_t>(code);
    }
  }
  put_e2m1(16, x, e8m0_to_float(b[0]), b + 1);
}

inline void quantize_nvfp4(const float* x, std::uint8_t* b) {
  for (int s = 0; s < 4; ++s) {
    const float* const part = x + 16 * s;
    const float extreme = std::fabs(block_range(16, part).extreme);
    const int start = to_fp8_e4m3_saturated(extreme / 6.0f);
    double best = -1;
    std::memset(b + 4 + 8 * s, 0, 8);
    b[s] = 0;
    for (int code = start - 2; extreme != 0.0f && code <= start + 2; ++code) {
      if (code < 1 || code > 0x7e) {
        continue;
      }
      const double error = e2m1_error(16, part, from_fp8_e4m3(static_cast<std::uint8_t>(code)));
      if (best < 0 || error < best) {
        best = error;
        b[s] = static_cast<std::uint8_t>(code);
      }
    }
    if (best >= 0) {
      put_e2m1(8, part, from_fp8_e4m3(b[s]), b + 4 + 8 * s);
    }
  }
}

inline void quantize_block(BlockFormat format, const float* x, std::uint8_t* b) {
  switch (format) {
    case BlockFormat::q8_0: quantize_q8(x, false, b); break;
    case BlockFormat::q8_1: quantize_q8(x, true, b); break;
    case BlockFormat::q8_k: quantize_q8_k(x, b); break;
    case BlockFormat::q4_0: quantize_nibbles(x, 4, false, b); break;
    case BlockFormat::q4_1: quantize_nibbles(x, 4, true, b); break;
    case BlockFormat::q5_0: quantize_nibbles(x, 5, false, b); break;
    case BlockFormat::q5_1: quantize_nibbles(x, 5, true, b); break;
    case BlockFormat::q2_k: quantize_q2_k(x, b); break;
    case BlockFormat::q3_k: quantize_q3_k(x, b); break;
    case BlockFormat::q4_k: quantize_q45_k(x, 4, b); break;
    case BlockFormat::q5_k: quantize_q45_k(x, 5, b); break;
    case BlockFormat::q6_k: quantize_q6_k(x, b); break;
    case BlockFormat::mxfp4: quantize_mxfp4(x, b); break;
    case BlockFormat::nvfp4: quantize_nvfp4(x, b); break;
    default: break;
  }
}

// The largest magnitude whose scales the format can hold: an f16 holds up to 65504.
inline float largest_stored(BlockFormat format) {
  switch (format) {
    case BlockFormat::q8_0:
    case BlockFormat::q8_1: return 65504.0f * 127.0f;
    case BlockFormat::q4_0: return 65504.0f * 8.0f;
    case BlockFormat::q5_0: return 65504.0f * 16.0f;
    case BlockFormat::mxfp4: return 2.5e38f;
    case BlockFormat::q8_k: return 3e38f;
    case BlockFormat::nvfp4: return 448.0f * 6.0f;
    default: return 65504.0f;
  }
}

}  // namespace detail

namespace kernels {

// The way back. A block cannot hold infinity, NaN, or more than its scale reaches: an Error, as is
// a finite number beyond f16 or bf16. `first`: the number in the Error of element 0.
inline void quantize_blocks(BlockFormat format, std::int64_t count, const float* from,
                            std::uint8_t* to, std::int64_t first = 0) {
  const std::int64_t bytes = block_row_bytes(format, count);
  const BlockLayout layout = block_layout(format);
  if (format == BlockFormat::f32) {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
    return;
  }
  if (layout.elements == 1) {
    for (std::int64_t i = 0; i < count; ++i) {
      const bool half = format == BlockFormat::f16;
      const std::uint16_t code = half ? to_f16(from[i]) : to_bf16(from[i]);
      if ((code & 0x7fffU) > (half ? 0x7bffU : 0x7f7fU) &&
          detail::is_finite(static_cast<double>(from[i]))) {
        detail::fail({"quantize_blocks: element ", first + i, " is ", from[i], "; ", layout.name,
                      " holds numbers of magnitude up to ",
                      half ? from_f16(0x7bff) : from_bf16(0x7f7f)});
      }
      std::memcpy(to + 2 * i, &code, 2);
    }
    return;
  }
  const float most = detail::largest_stored(format);
  for (std::int64_t i = 0; i < count; ++i) {
    if (!(std::fabs(from[i]) <= most) || !detail::is_finite(static_cast<double>(from[i]))) {
      detail::fail({"quantize_blocks: element ", first + i, " is ", from[i], "; blocks of ",
                    layout.name, " hold numbers of magnitude up to ", most});
    }
  }
  for (std::int64_t i = 0; i < count; i += layout.elements, to += layout.bytes) {
    detail::quantize_block(format, from + i, to);
  }
}

}  // namespace kernels
}  // namespace tinyscale
