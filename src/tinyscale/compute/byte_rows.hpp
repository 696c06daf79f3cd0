#pragma once
// Rows of a matrix in 8 bits, one scale a row, each to be multiplied alone: what is rough and short
// enough to look at some rows before they are read whole. 64 columns are 16 words: column 16 e + j
// of them is byte e of word j, kept 128 higher; a row has whole cache lines, what is too much holds
// zeros.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/compute/gemm_words.hpp"
#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/compute/stored_packed.hpp"

namespace tinyscale {
namespace detail {

struct ByteRows {
  std::int64_t rows = 0, cols = 0;
  Shared<WordBuffer> words;
  List<float> scale;  // [row]

  ByteRows() = default;
  ByteRows(std::int64_t n, std::int64_t k)
      : rows(n),
        cols(k),
        words(new WordBuffer(n * row_words())),
        scale(static_cast<std::size_t>(n)) {}

  std::int64_t row_words() const { return (cols + 63) / 64 * 16; }
  std::uint32_t* row(std::int64_t i) const { return words->data() + i * row_words(); }

  // Rounds row i; `numbers` becomes what it stands for.
  void set(std::int64_t i, float* numbers) {
    float largest = 0;
    for (std::int64_t k = 0; k < cols; ++k) {
      largest = std::max(largest, std::fabs(numbers[k]));
    }
    const float one = largest / 127.0f, inverse = one > 1e-38f ? 1.0f / one : 0.0f;  // finite
    std::uint32_t* const to = row(i);
    std::fill(to, to + row_words(), 0x80808080U);
    for (std::int64_t k = 0; k < cols; ++k) {
      const float code = std::round(numbers[k] * inverse);
      const auto byte = static_cast<std::uint32_t>(static_cast<std::int32_t>(code) + 128);
      to[k / 64 * 16 + k % 16] ^= (byte ^ 128U) << (k % 64 / 16 * 8);
      numbers[k] = code * one;
    }
    scale[static_cast<std::size_t>(i)] = one;
  }
};

// Row i times x, which has zeros up to a multiple of 64.
struct ByteRowDot {
  const ByteRows& w;
  std::int64_t i;
  const float* x;
  float* y;

  template <class L>
  TINYSCALE_INLINE void run() const {
    const std::uint32_t* from = w.row(i);
    typename L::V sum[4], v, left;
    typename L::I word;
    TINYSCALE_UNROLL
    for (int e = 0; e < 4; ++e) {
      sum[e] = typename L::V{};
    }
    for (std::int64_t k = 0; k < w.cols; k += 64, from += 16) {
      for (std::int64_t j = 0; j < 16; j += L::width) {
        std::memcpy(&word, from + j, sizeof(word));
        TINYSCALE_UNROLL
        for (int e = 0; e < 4; ++e) {
          PackedCodes::code<L, 8>(word, e, v);
          load<L>(x + k + 16 * e + j, left);
          add_product<L>(left, v, sum[e]);
        }
      }
    }
    *y = sum_lanes<L>((sum[0] + sum[1]) + (sum[2] + sum[3])) * w.scale[static_cast<std::size_t>(i)];
  }
};

}  // namespace detail
}  // namespace tinyscale
