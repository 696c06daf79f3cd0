#pragma once
// The values of stored blocks: bytes in, float32 out. In each format a value is scale * code, less
// or plus a minimum; scales are f16 (e8m0 in mxfp4, e4m3 in nvfp4), and all products are exact in
// float32, so that only a minimum's sum rounds. q2_k .. q6_k: 256 elements, two f16 scales and a
// few bits of scale for each 16 or 32 elements. Source: the layouts of ggml, as GGUF stores them.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tinyscale/base/format.hpp"
#include "tinyscale/compute/block_format.hpp"
#include "tinyscale/compute/lanes.hpp"

namespace tinyscale {
namespace detail {

// IEEE half to float, without a branch: three ways at once (zero or subnormal by 0.5 + m 2^-24 -
// 0.5, which needs no subnormal float; normal; infinity or NaN), then the one that holds.
TINYSCALE_INLINE float half_to_float(std::uint16_t code) {
  const std::uint32_t magnitude = code & 0x7fffU, sign = (code & 0x8000U) << 16;
  const std::uint32_t tiny = bits_of(float_of(magnitude | 0x3f000000U) - 0.5f);
  const std::uint32_t more = magnitude >= 0x7c00U ? 0x70000000U : 0x38000000U;
  const std::uint32_t rest = (magnitude << 13) + more;
  return float_of((magnitude < 0x0400U ? tiny : rest) | sign);
}

TINYSCALE_INLINE float half_at(const std::uint8_t* from) {
  std::uint16_t code = 0;
  std::memcpy(&code, from, 2);
  return half_to_float(code);
}

// 2^(code - 127), 255: NaN.
TINYSCALE_INLINE float e8m0_to_float(std::uint8_t code) {
  const std::uint32_t bits = code == 0 ? 0x00400000U : static_cast<std::uint32_t>(code) << 23;
  return float_of(code == 255 ? 0x7fc00000U : bits);
}

// e2m1: sign, 2 bits of exponent, 1 of mantissa.
constexpr float e2m1_values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                   -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

// Scale and minimum s of the 12 bytes of q4_k and q5_k: eight of 6 bits, then eight more.
TINYSCALE_INLINE void six_bit_pair(const std::uint8_t* b, int s, int& scale, int& least) {
  if (s < 4) {
    scale = b[s] & 63;
    least = b[s + 4] & 63;
  } else {
    scale = (b[s + 4] & 15) | (b[s - 4] >> 6) << 4;
    least = (b[s + 4] >> 4) | (b[s] >> 6) << 4;
  }
}

// Scale i of 16 in the 12 bytes of q3_k: 6 bits, 32 higher.
TINYSCALE_INLINE int q3_scale(const std::uint8_t* b, int i) {
  const int low = i < 8 ? b[i] & 15 : b[i - 8] >> 4;
  return (low | ((b[8 + i % 4] >> (2 * (i / 4))) & 3) << 4) - 32;
}

// The reference bodies: a number of a block is scale * code - minimum, i is its place there.
struct BlockStep {
  float scale = 0, minimum = 0;
};

inline float half_reference(const std::uint8_t* from) {
  std::uint16_t code = 0;
  std::memcpy(&code, from, 2);
  return from_f16(code);
}
inline float half_times_reference(const std::uint8_t* from, int times) {
  return half_reference(from) * static_cast<float>(times);
}

inline BlockStep block_step_reference(BlockFormat format, const std::uint8_t* b, int i) {
  int scale = 0, least = 0;
  float d = 0;
  switch (format) {
    case BlockFormat::q4_1:
    case BlockFormat::q5_1: return {half_reference(b), -half_reference(b + 2)};
    case BlockFormat::q2_k: scale = b[i / 16] & 15, least = b[i / 16] >> 4, b += 80; break;
    case BlockFormat::q3_k: return {half_times_reference(b + 108, q3_scale(b + 96, i / 16)), 0};
    case BlockFormat::q4_k:
    case BlockFormat::q5_k: six_bit_pair(b + 4, i / 32, scale, least); break;
    case BlockFormat::q6_k:
      return {half_times_reference(b + 208, static_cast<std::int8_t>(b[192 + i / 16])), 0};
    case BlockFormat::q8_k: std::memcpy(&d, b, 4); return {d, 0};
    case BlockFormat::mxfp4: return {e8m0_to_float(b[0]), 0};
    case BlockFormat::nvfp4: return {from_fp8_e4m3(b[i / 16] & 127), 0};
    default: return {half_reference(b), 0};
  }
  return {half_times_reference(b, scale), half_times_reference(b + 2, least)};
}

// Of blocks of 32 and 64.
inline float small_code_reference(BlockFormat format, const std::uint8_t* b, int i) {
  const auto nibble = [&](int at) { return b[at + i % 16] >> (i % 32 / 16 * 4) & 15; };
  const auto fifth = [&](int at) { return (b[at + i / 8] >> i % 8 & 1) << 4; };
  const auto f32 = [](int x) { return static_cast<float>(x); };
  switch (format) {
    case BlockFormat::q8_0: return f32(static_cast<std::int8_t>(b[2 + i]));
    case BlockFormat::q8_1: return f32(static_cast<std::int8_t>(b[4 + i]));
    case BlockFormat::q4_0: return f32(nibble(2) - 8);
    case BlockFormat::q4_1: return f32(nibble(4));
    case BlockFormat::q5_0: return f32((nibble(6) | fifth(2)) - 16);
    case BlockFormat::q5_1: return f32(nibble(8) | fifth(4));
    case BlockFormat::mxfp4: return e2m1_values[nibble(1)];
    default: return e2m1_values[b[4 + i / 16 * 8 + i % 8] >> (i % 16 / 8 * 4) & 15];  // nvfp4
  }
}

// Of blocks of 256: row and column of 128 elements as [4][32].
inline float super_code_reference(BlockFormat format, const std::uint8_t* b, int i) {
  const int row = i % 128 / 32, column = i / 128 * 32 + i % 32;
  const auto nibble = [&](int at) {
    return b[at + i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15;
  };
  const auto bit = [&](int at) { return b[at + i % 32] >> (i / 32) & 1; };
  const auto f32 = [](int x) { return static_cast<float>(x); };
  switch (format) {
    case BlockFormat::q2_k: return f32(b[16 + column] >> (2 * row) & 3);
    case BlockFormat::q3_k: return f32(((b[32 + column] >> (2 * row) & 3) | bit(0) << 2) - 4);
    case BlockFormat::q4_k: return f32(nibble(16));
    case BlockFormat::q5_k: return f32(nibble(48) | bit(16) << 4);
    case BlockFormat::q8_k: return f32(static_cast<std::int8_t>(b[4 + i]));
    default: break;  // q6_k
  }
  const int low = b[i / 128 * 64 + i % 64] >> (i % 128 / 64 * 4) & 15;
  return f32((low | (b[128 + column] >> (2 * row) & 3) << 4) - 32);
}

inline void dequantize_blocks_reference(BlockFormat format, std::int64_t count,
                                        const std::uint8_t* from, float* to) {
  const BlockLayout layout = block_layout(format);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint8_t* const b = from + i / layout.elements * layout.bytes;
    const int place = static_cast<int>(i % layout.elements);
    if (format == BlockFormat::f32) {
      std::memcpy(to + i, b, 4);
    } else if (layout.elements == 1) {
      to[i] = format == BlockFormat::f16 ? half_reference(b)
                                         : from_bf16(static_cast<std::uint16_t>(b[0] | b[1] << 8));
    } else {
      const BlockStep step = block_step_reference(format, b, place);
      to[i] = step.scale * (layout.elements < 256 ? small_code_reference : super_code_reference)(
                               format, b, place) -
              step.minimum;
    }
  }
}

// In all that follow `b` is a copy of one block, so that no store to `y` can change it: the loops
// then become vectors.

TINYSCALE_INLINE void expand_q8(const std::uint8_t* b, int begin, float* y) {
  const float d = half_at(b);
  for (int i = 0; i < 32; ++i) {
    y[i] = d * static_cast<float>(static_cast<std::int8_t>(b[begin + i]));
  }
}

// 16 bytes of nibbles; y = d (q - 8), or d q + m.
TINYSCALE_INLINE void expand_q4_0(const std::uint8_t* b, float* y) {
  const float d = half_at(b);
  for (int i = 0; i < 16; ++i) {
    y[i] = d * static_cast<float>((b[2 + i] & 15) - 8);
    y[i + 16] = d * static_cast<float>((b[2 + i] >> 4) - 8);
  }
}

TINYSCALE_INLINE void expand_q4_1(const std::uint8_t* b, float* y) {
  const float d = half_at(b), m = half_at(b + 2);
  for (int i = 0; i < 16; ++i) {
    y[i] = d * static_cast<float>(b[4 + i] & 15) + m;
    y[i + 16] = d * static_cast<float>(b[4 + i] >> 4) + m;
  }
}

// Before the nibbles stand 32 bits, the fifth of each element; y = d (q - 16), or d q + m.
TINYSCALE_INLINE void expand_q5(const std::uint8_t* b, bool signs, float* y) {
  const float d = half_at(b), m = signs ? 0.0f : half_at(b + 2);
  const std::uint8_t* const nibbles = b + (signs ? 6 : 8);
  std::uint32_t high = 0;
  std::memcpy(&high, nibbles - 4, 4);
  for (std::uint32_t i = 0; i < 32; ++i) {
    const std::uint32_t low = i < 16 ? nibbles[i] & 15U : nibbles[i - 16] / 16U;
    const int q = static_cast<int>(low | (high >> i & 1U) << 4);
    y[i] = signs ? d * static_cast<float>(q - 16) : d * static_cast<float>(q) + m;
  }
}

TINYSCALE_INLINE void expand_mxfp4(const std::uint8_t* b, float* y) {
  const float d = e8m0_to_float(b[0]);
  for (int i = 0; i < 16; ++i) {
    y[i] = d * e2m1_values[b[1 + i] & 15];
    y[i + 16] = d * e2m1_values[b[1 + i] >> 4];
  }
}

// The scales have no sign: their top bit counts for nothing.
inline void expand_nvfp4(const std::uint8_t* b, float* y) {
  for (int s = 0; s < 4; ++s) {
    const float d = from_fp8_e4m3(b[s] & 0x7f);
    for (int i = 0; i < 8; ++i) {
      y[16 * s + i] = d * e2m1_values[b[4 + 8 * s + i] & 15];
      y[16 * s + 8 + i] = d * e2m1_values[b[4 + 8 * s + i] >> 4];
    }
  }
}

TINYSCALE_INLINE void expand_q2_k(const std::uint8_t* b, float* y) {
  const float d = half_at(b + 80), least = half_at(b + 82);
  for (int part = 0; part < 16; ++part) {  // 16 elements that share a scale
    const int half = part / 8, shift = 2 * (part % 8 / 2), column = 16 * (part % 2);
    const float scale = d * static_cast<float>(b[part] & 15);
    const float minimum = least * static_cast<float>(b[part] >> 4);
    for (int i = 0; i < 16; ++i) {
      const int q = b[16 + 32 * half + column + i] >> shift & 3;
      y[16 * part + i] = scale * static_cast<float>(q) - minimum;
    }
  }
}

TINYSCALE_INLINE void expand_q3_k(const std::uint8_t* b, float* y) {
  const float d = half_at(b + 108);
  for (int part = 0; part < 16; ++part) {
    const int half = part / 8, row = part % 8 / 2, column = 16 * (part % 2);
    const float scale = d * static_cast<float>(q3_scale(b + 96, part));
    for (int i = 0; i < 16; ++i) {
      const int high = b[column + i] >> (4 * half + row) & 1;
      const int q = (b[32 + 32 * half + column + i] >> (2 * row) & 3) | high << 2;
      y[16 * part + i] = scale * static_cast<float>(q - 4);
    }
  }
}

// q4_k, and q5_k whose fifth bits stand before the nibbles.
TINYSCALE_INLINE void expand_q45_k(const std::uint8_t* b, bool five, float* y) {
  const float d = half_at(b), least = half_at(b + 2);
  const std::uint8_t* const nibbles = b + (five ? 48 : 16);
  for (int s = 0; s < 8; ++s) {  // 32 elements that share a scale
    int scale = 0, minimum = 0;
    six_bit_pair(b + 4, s, scale, minimum);
    const float ds = d * static_cast<float>(scale), dm = least * static_cast<float>(minimum);
    for (int i = 0; i < 32; ++i) {
      const int high = five ? (b[16 + i] >> s & 1) << 4 : 0;
      const int q = (nibbles[32 * (s / 2) + i] >> (4 * (s % 2)) & 15) | high;
      y[32 * s + i] = ds * static_cast<float>(q) - dm;
    }
  }
}

TINYSCALE_INLINE void expand_q6_k(const std::uint8_t* b, float* y) {
  const float d = half_at(b + 208);
  for (int part = 0; part < 16; ++part) {
    const int half = part / 8, row = part % 8 / 2, column = 16 * (part % 2);
    const float scale = d * static_cast<float>(static_cast<std::int8_t>(b[192 + part]));
    for (int i = 0; i < 16; ++i) {
      const int low = b[64 * half + 32 * (row % 2) + column + i] >> (4 * (row / 2)) & 15;
      const int high = b[128 + 32 * half + column + i] >> (2 * row) & 3;
      y[16 * part + i] = scale * static_cast<float>((low | high << 4) - 32);
    }
  }
}

// Its scale is a float32; 16 sums of its codes follow them.
TINYSCALE_INLINE void expand_q8_k(const std::uint8_t* b, float* y) {
  float d = 0;
  std::memcpy(&d, b, 4);
  for (int i = 0; i < 256; ++i) {
    y[i] = d * static_cast<float>(static_cast<std::int8_t>(b[4 + i]));
  }
}

TINYSCALE_INLINE void expand_block(BlockFormat format, const std::uint8_t* b, float* y) {
  switch (format) {
    case BlockFormat::q8_0: expand_q8(b, 2, y); break;
    case BlockFormat::q8_1: expand_q8(b, 4, y); break;
    case BlockFormat::q4_0: expand_q4_0(b, y); break;
    case BlockFormat::q4_1: expand_q4_1(b, y); break;
    case BlockFormat::q5_0: expand_q5(b, true, y); break;
    case BlockFormat::q5_1: expand_q5(b, false, y); break;
    case BlockFormat::q2_k: expand_q2_k(b, y); break;
    case BlockFormat::q3_k: expand_q3_k(b, y); break;
    case BlockFormat::q4_k: expand_q45_k(b, false, y); break;
    case BlockFormat::q5_k: expand_q45_k(b, true, y); break;
    case BlockFormat::q6_k: expand_q6_k(b, y); break;
    case BlockFormat::q8_k: expand_q8_k(b, y); break;
    case BlockFormat::mxfp4: expand_mxfp4(b, y); break;
    case BlockFormat::nvfp4: expand_nvfp4(b, y); break;
    default: break;
  }
}

// A vector of numbers of 16 bits: half_to_float of each, or the upper half of the float.
template <class L>
TINYSCALE_INLINE void expand_shorts(BlockFormat format, const std::uint16_t* from, float* y) {
  if constexpr (L::width == 1) {
    *y = format == BlockFormat::f16 ? half_to_float(*from) : from_bf16(*from);
  } else {
    typedef typename L::I I;
    I code = __builtin_convertvector(*reinterpret_cast<const typename L::LooseShorts*>(from), I);
    if (format == BlockFormat::bf16) {
      code = code << 16;
    } else {
      const I magnitude = code & 0x7fff;
      I tiny = magnitude | 0x3f000000;
      typename L::V x;
      std::memcpy(&x, &tiny, sizeof(x));
      x = x - 0.5f;
      std::memcpy(&tiny, &x, sizeof(x));
      const I more = (magnitude > 0x7bff) & 0x38000000;
      const I rest = (magnitude << 13) + 0x38000000 + more;
      code = (magnitude < 0x0400 ? tiny : rest) | ((code >> 15) << 31);
    }
    std::memcpy(y, &code, sizeof(code));
  }
}

struct DequantizeBlocks {
  BlockFormat format;
  std::int64_t count;
  const std::uint8_t* from;
  float* to;

  template <class L>
  TINYSCALE_INLINE void run() const {
    if (format == BlockFormat::f16 || format == BlockFormat::bf16) {
      std::int64_t i = 0;
      for (; i + L::width <= count; i += L::width) {
        std::uint16_t codes[L::width];
        std::memcpy(codes, from + 2 * i, sizeof(codes));
        expand_shorts<L>(format, codes, to + i);
      }
      for (; i < count; ++i) {
        std::uint16_t code = 0;
        std::memcpy(&code, from + 2 * i, 2);
        to[i] = format == BlockFormat::f16 ? half_to_float(code) : from_bf16(code);
      }
      return;
    }
    const BlockLayout layout = block_layout(format);
    const std::uint8_t* at = from;
    std::uint8_t block[292];
    for (std::int64_t i = 0; i < count; i += layout.elements, at += layout.bytes) {
      std::memcpy(block, at, static_cast<std::size_t>(layout.bytes));
      expand_block(format, block, to + i);
    }
  }
};

}  // namespace detail

namespace kernels {

// `count` elements, a multiple of the block's, from block_row_bytes(format, count) bytes.
inline void dequantize_blocks(BlockFormat format, std::int64_t count, const std::uint8_t* from,
                              float* to) {
  const std::int64_t bytes = block_row_bytes(format, count);
  if (bytes == 0) {
    return;
  }
  if (format == BlockFormat::f32) {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
    return;
  }
  const detail::DequantizeBlocks kernel{format, count, from, to};
  detail::run_on_lanes(kernel);
}

}  // namespace kernels
}  // namespace tinyscale
