#pragma once
// Rows of a cache of keys or values: the kv_heads * head_size numbers of a token, in the format of
// the cache. A page holds page_tokens of them; of int8 also an f32 scale for each token and head,
// all scales behind all codes: value = scale * code, scale = max|x| / 127.

#include <cmath>    // fabs, nearbyint
#include <cstdint>  // int64_t
#include <cstring>  // memcpy

#include "tinyscale/base/format.hpp"

namespace tinyscale {
namespace kernels {

struct CacheShape {
  DType format = DType::f32;  // also bf16, f16, int8
  std::int64_t page_tokens = 64, kv_heads = 1, head_size = 1;

  std::int64_t row() const { return kv_heads * head_size; }  // numbers of a token
  std::int64_t code_bytes() const { return row() * static_cast<std::int64_t>(bytes_of(format)); }
  std::int64_t row_bytes() const {
    return code_bytes() + (format == DType::int8 ? 4 * kv_heads : 0);
  }
  std::int64_t page_bytes() const { return page_tokens * row_bytes(); }  // of keys, or of values
};

// Writes one token's numbers x [kv_heads head_size] into row `at` of a page.
inline void cache_store(const CacheShape& s, const float* x, std::int64_t at, std::uint8_t* page) {
  std::uint8_t* const row = page + at * s.code_bytes();
  const std::int64_t n = s.row();
  if (s.format == DType::f32) {
    std::memcpy(row, x, static_cast<std::size_t>(4 * n));
    return;
  }
  if (s.format != DType::int8) {
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint16_t code = s.format == DType::f16 ? to_f16(x[i]) : to_bf16(x[i]);
      std::memcpy(row + 2 * i, &code, 2);
    }
    return;
  }
  std::uint8_t* const scales = page + s.page_tokens * s.code_bytes() + at * s.kv_heads * 4;
  for (std::int64_t h = 0; h < s.kv_heads; ++h) {
    const float* const from = x + h * s.head_size;
    float largest = 0;
    for (std::int64_t i = 0; i < s.head_size; ++i) {  // NaN stays: its head gives NaN
      largest = std::fabs(from[i]) <= largest ? largest : std::fabs(from[i]);
    }
    const float scale = largest / 127.0f;
    const float inverse = scale > 1e-38f && largest < INFINITY ? 1.0f / scale : 0.0f;
    for (std::int64_t i = 0; i < s.head_size; ++i) {
      const float code = inverse > 0 ? std::nearbyint(from[i] * inverse) : 0.0f;
      row[h * s.head_size + i] = static_cast<std::uint8_t>(static_cast<std::int8_t>(code));
    }
    std::memcpy(scales + 4 * h, &scale, 4);
  }
}

// Row `at` of a page as f32.
inline void cache_load(const CacheShape& s, const std::uint8_t* page, std::int64_t at, float* to) {
  const std::uint8_t* const row = page + at * s.code_bytes();
  const std::int64_t n = s.row();
  if (s.format == DType::f32) {
    std::memcpy(to, row, static_cast<std::size_t>(4 * n));
    return;
  }
  if (s.format != DType::int8) {
    for (std::int64_t i = 0; i < n; ++i) {
      std::uint16_t code = 0;
      std::memcpy(&code, row + 2 * i, 2);
      to[i] = s.format == DType::f16 ? from_f16(code) : from_bf16(code);
    }
    return;
  }
  const std::uint8_t* const scales = page + s.page_tokens * s.code_bytes() + at * s.kv_heads * 4;
  for (std::int64_t h = 0; h < s.kv_heads; ++h) {
    float scale = 0;
    std::memcpy(&scale, scales + 4 * h, 4);
    for (std::int64_t i = h * s.head_size; i < (h + 1) * s.head_size; ++i) {
      to[i] = scale * static_cast<float>(static_cast<std::int8_t>(row[i]));
    }
  }
}

}  // namespace kernels
}  // namespace tinyscale
