#pragma once
// Sums in the order in which ggml's x86 kernels add them (AVX-512, with AMX's layout of weights),
// one token at a time: lanes are arrays, std::fma stands where ggml's machine code fuses. For
// ggml_decoder.hpp, whose token ids hang on a sum's last bit. No speed is meant here.
// Source: ggml-cpu of llama.cpp, 2026: amx/mmq, vec, arch/x86/quants.

#include <algorithm>  // max
#include <cmath>      // fma
#include <cstdint>    // int64_t
#include <vector>     // vector

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/format.hpp"
#include "tinyscale/compute/block_format.hpp"

namespace tinyscale {
namespace detail {

inline float ggml_half(float x) { return from_f16(to_f16(x)); }

// The upper half of the lanes added to the lower until one is left: a register's sum, and that of
// several registers (AVX-512 sums 64 numbers at a time in 4 registers).
inline float sum_lanes(float* lanes, int n) {
  for (int half = n / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) {
      lanes[i] += lanes[i + half];
    }
  }
  return lanes[0];
}

// Row of f32 by vector: 64 lanes; of what is left over, products that fill a register of 8 are
// rounded before they are added, the last ones are not (what gcc makes of ggml's plain loop).
inline float ggml_f32_dot(std::int64_t n, const float* w, const float* x) {
  float lanes[64] = {};
  const std::int64_t whole = n / 64 * 64, eights = n / 8 * 8;
  for (std::int64_t i = 0; i < whole; ++i) {
    lanes[i % 64] = std::fma(w[i], x[i], lanes[i % 64]);
  }
  float sum = sum_lanes(lanes, 64);
  for (std::int64_t i = whole; i < n; ++i) {
    sum = i < eights ? sum + rounded_product(w[i], x[i]) : std::fma(w[i], x[i], sum);
  }
  return sum;
}

// Both in f16: 64 lanes, what is left over in double, where products are exact.
inline float ggml_f16_dot(std::int64_t n, const float* w, const float* x) {
  float lanes[64] = {};
  const std::int64_t whole = n / 64 * 64;
  for (std::int64_t i = 0; i < whole; ++i) {
    lanes[i % 64] = std::fma(w[i], x[i], lanes[i % 64]);
  }
  double sum = static_cast<double>(sum_lanes(lanes, 64));
  for (std::int64_t i = whole; i < n; ++i) {
    sum += static_cast<double>(w[i]) * static_cast<double>(x[i]);
  }
  return static_cast<float>(sum);
}

// Both in bf16: the unit's dot products of pairs, two registers of 16 lanes, the rest in double.
inline float ggml_bf16_dot(std::int64_t n, const float* w, const float* x) {
  float lanes[32] = {};
  const std::int64_t whole = n / 64 * 64;
  for (std::int64_t i = 0; i < whole; i += 2) {
    float& lane = lanes[i % 64 / 2];
    lane = std::fma(w[i + 1], x[i + 1], lane);
    lane = std::fma(w[i], x[i], lane);
  }
  double sum = static_cast<double>(sum_lanes(lanes, 16));
  sum += static_cast<double>(sum_lanes(lanes + 16, 16));
  for (std::int64_t i = whole; i < n; ++i) {
    sum += static_cast<double>(w[i]) * static_cast<double>(x[i]);
  }
  return static_cast<float>(sum);
}

// Row of f16 by vector in f32, 16 lanes: matrices of f16 with whole registers, beside AMX.
inline float ggml_register_dot(std::int64_t n, const float* w, const float* x) {
  float lanes[16] = {};
  for (std::int64_t i = 0; i < n; ++i) {
    lanes[i % 16] = std::fma(w[i], x[i], lanes[i % 16]);
  }
  return sum_lanes(lanes, 16);
}

// A vector in q8_0: codes to nearest even by 127 / largest, the scale largest / 127 kept in f16.
// As q8_1 each block has its sum too, scale times codes, in f16.
struct GgmlBlocks {
  std::vector<int> codes;
  std::vector<float> scales, sums;

  explicit GgmlBlocks(const std::vector<float>& x) {
    for (std::size_t block = 0; block < x.size(); block += 32) {
      float largest = 0.0f;
      for (std::size_t i = block; i < block + 32; ++i) {
        if (!(std::fabs(x[i]) < HUGE_VALF)) {
          fail({"GgmlBlocks: number ", i, " is ", x[i], "; finite numbers have codes"});
        }
        largest = std::max(largest, std::fabs(x[i]));
      }
      const float scale = largest / 127.0f;
      const float by = scale > 1e-30f ? 127.0f / largest : 0.0f;  // below, f16 has a scale of 0
      int sum = 0;
      for (std::size_t i = block; i < block + 32; ++i) {
        codes.push_back(static_cast<int>(std::nearbyint(x[i] * by)));
        sum += codes.back();
      }
      scales.push_back(ggml_half(scale));
      sums.push_back(ggml_half(scale * static_cast<float>(sum)));
    }
  }
};

inline float ggml_half_at(const std::uint8_t* at) {
  const int code = at[0] + 256 * at[1];
  return from_f16(static_cast<std::uint16_t>(code));
}

// The 32 codes of a block of weights, less what its format adds to each.
inline void ggml_codes(BlockFormat format, const std::uint8_t* block, int* codes) {
  if (format == BlockFormat::q8_0) {
    for (int i = 0; i < 32; ++i) {
      codes[i] = (block[2 + i] ^ 128) - 128;
    }
    return;
  }
  const bool five = format == BlockFormat::q5_0 || format == BlockFormat::q5_1;
  const bool offset = format == BlockFormat::q4_0 || format == BlockFormat::q5_0;
  const std::uint8_t* const high = block + (offset ? 2 : 4);  // behind the scale, or its minimum
  const std::uint8_t* const low = high + (five ? 4 : 0);
  for (int i = 0; i < 32; ++i) {
    codes[i] = i < 16 ? low[i] % 16 : low[i - 16] / 16;
    codes[i] += five ? 16 * (high[i / 8] >> (i % 8) & 1) : 0;
    codes[i] -= offset ? (five ? 16 : 8) : 0;
  }
}

// Row of blocks of 32 by vector. Sums of codes are exact. 32 rows at a time (AMX's layout, one
// token) a block adds one number; other matrices have 8 lanes of 4 codes each, minima beside them.
inline float ggml_block_dot(BlockFormat format, const std::uint8_t* row, const GgmlBlocks& x,
                            bool by_32_rows) {
  const bool minimum = format == BlockFormat::q4_1 || format == BlockFormat::q5_1;
  const std::int64_t bytes = block_layout(format).bytes;
  float lanes[8] = {}, one = 0.0f, minima = 0.0f;
  int weights[32];
  for (std::size_t block = 0; block < x.scales.size(); ++block) {
    const std::uint8_t* const at = row + static_cast<std::int64_t>(block) * bytes;
    const int* const codes = x.codes.data() + 32 * block;
    const float scale = ggml_half_at(at) * x.scales[block];
    ggml_codes(format, at, weights);
    int sums[8] = {}, all = 0;
    for (int i = 0; i < 32; ++i) {
      sums[i / 4] += weights[i] * codes[i];
    }
    for (int i = 0; i < 8; ++i) {
      all += sums[i];
      lanes[i] = std::fma(static_cast<float>(sums[i]), scale, lanes[i]);
    }
    one = std::fma(static_cast<float>(all), scale, one);
    if (minimum) {
      one = std::fma(ggml_half_at(at + 2), x.sums[block], one);
      minima = std::fma(ggml_half_at(at + 2), x.sums[block], minima);
    }
  }
  return by_32_rows ? one : sum_lanes(lanes, 8) + minima;
}

// exp as ggml's vector code computes it: x = n ln 2 + b, 2^n by a polynomial of degree 5 in b.
inline float ggml_vector_exp(float x) {
  const float shift = 12582912.0f;  // 1.5 2^23: adding it rounds to whole numbers
  const float n = std::fma(x, 0x1.715476p+0f, shift) - shift;
  if (!(std::fabs(n) <= 192.0f)) {
    return n > 0.0f ? HUGE_VALF : n < 0.0f ? 0.0f : n;  // a NaN stays
  }
  const float b = std::fma(-n, 0x1.7f7d1cp-20f, std::fma(-n, 0x1.62e4p-1f, x));
  const float square = b * b;
  const float high = std::fma(0x1.0e4020p-7f, b, 0x1.573e2ep-5f);
  const float middle = std::fma(0x1.555e66p-3f, b, 0x1.fffdb6p-2f);
  const float low = std::fma(0x1.ffffecp-1f, b, 1.0f);
  return std::ldexp(std::fma(std::fma(high, square, middle), square, low), static_cast<int>(n));
}

// Softmax of scores: exp 16 at a time, their sums added up in double.
inline void ggml_softmax(std::vector<float>& s) {
  const float largest = *std::max_element(s.begin(), s.end());
  s.resize((s.size() + 15) / 16 * 16, -HUGE_VALF);  // the cells behind are masked
  double sum = 0.0;
  for (std::size_t i = 0; i < s.size(); i += 16) {
    float lanes[16];
    for (std::size_t j = 0; j < 16; ++j) {
      s[i + j] = s[i + j] == -HUGE_VALF ? 0.0f : ggml_vector_exp(s[i + j] - largest);
      lanes[j] = s[i + j];
    }
    sum += static_cast<double>(sum_lanes(lanes, 16));
  }
  const float scale = static_cast<float>(1.0 / sum);
  for (float& p : s) {
    p *= scale;
  }
}

// silu(gate) up: 16 at a time by the vector exp, the rest by the C library's.
inline void ggml_swiglu(std::vector<float>& gate, const std::vector<float>& up) {
  const std::size_t whole = gate.size() / 16 * 16;
  for (std::size_t i = 0; i < gate.size(); ++i) {
    const float x = gate[i];
    const float e = i < whole ? ggml_vector_exp(0.0f - x) : std::exp(-x);
    gate[i] = x / (1.0f + e) * up[i];
  }
}

}  // namespace detail

}  // namespace tinyscale
