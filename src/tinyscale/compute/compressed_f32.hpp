#pragma once
// f32 weights in 28 bits, every bit of them kept. The numbers of a row lie within few powers of 2:
// sign, mantissa and 4 bits, how far the exponent is above the row's base, which is 15 below its
// largest. 7 in 100,000 normally distributed numbers are smaller than that, or 0; they are listed.
// A block of 128 numbers is 7 cache lines of 16 words: number 16 i + j in the lower 28 bits of word
// j of line i; number 112 + j in the upper 4 bits of the words j, the lowest ones first. What is
// left of a row stays f32.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tinyscale/base/format.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/gemm_words.hpp"

namespace tinyscale {
namespace kernels {

struct CompressedF32 {
  static constexpr std::int64_t block = 128, block_words = 112;  // numbers, and what they take

  struct Row {
    std::uint32_t base;  // the f32 1.0 x 2^(its smallest exponent), bits; exponent 0: the bits of 0
    std::uint32_t first;  // of its exceptions
  };
  struct Exception {
    std::int32_t col;
    float value;
  };
  struct Numbers {
    explicit Numbers(std::int64_t count) : words(count) {}
    detail::WordBuffer words;
    List<Row> rows;  // and one behind the last
    List<Exception> exceptions;
  };

  std::int64_t rows = 0, cols = 0;
  std::int64_t begin = 0;  // the first row, of those in `numbers`
  Shared<Numbers> numbers;

  std::int64_t blocks() const { return cols / block; }
  std::int64_t row_words() const {  // whole cache lines
    return blocks() * block_words + (cols % block + 15) / 16 * 16;
  }
  const std::uint32_t* words(std::int64_t row) const {
    return numbers->words.data() + (begin + row) * row_words();
  }
  // What is left of a row behind its blocks: the bits of its f32.
  const std::uint32_t* rest(std::int64_t row) const { return words(row) + blocks() * block_words; }
  const Row& row(std::int64_t row) const {
    return numbers->rows[static_cast<std::size_t>(begin + row)];
  }
  const Exception* exceptions(std::int64_t row) const {
    return numbers->exceptions.data() + this->row(row).first;
  }
  double bytes() const {  // that a product reads
    const double each = static_cast<double>(row_words() * 4) + sizeof(Row);
    const std::uint32_t listed = rows > 0 ? row(rows).first - row(0).first : 0;
    return static_cast<double>(rows) * each + sizeof(Exception) * static_cast<double>(listed);
  }
};

// The reference body of what is stored: one number, of the list, of what is left, or of its block.
inline float compressed_number_reference(const CompressedF32& w, std::int64_t row,
                                         std::int64_t col) {
  for (const auto* e = w.exceptions(row); e != w.exceptions(row + 1); ++e) {
    if (e->col == col) {
      return e->value;
    }
  }
  const std::int64_t b = col / CompressedF32::block, at = col % CompressedF32::block;
  if (b == w.blocks()) {
    return detail::float_of(w.rest(row)[at]);
  }
  const std::uint32_t* const words = w.words(row) + b * CompressedF32::block_words;
  std::uint32_t code = at < CompressedF32::block_words ? words[at] & 0x0fffffffU : 0;
  for (int line = 0; line < 7 && at >= CompressedF32::block_words; ++line) {
    code |= words[16 * line + at - CompressedF32::block_words] >> 28 << (4 * line);
  }
  return detail::float_of((code >> 27 << 31) | ((code & 0x07ffffffU) + w.row(row).base));
}

}  // namespace kernels

namespace detail {

inline std::uint32_t exponent_bits(float x) { return bits_of(x) & 0x7f800000U; }

// A row's base, and how many of its n numbers are below it.
inline kernels::CompressedF32::Row compressed_row(const float* from, std::int64_t n) {
  constexpr std::uint32_t range = 15U << 23;
  std::uint32_t largest = range, below = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    largest = std::max(largest, exponent_bits(from[i]));
  }
  for (std::int64_t i = 0; i < n; ++i) {
    below += exponent_bits(from[i]) < largest - range ? 1U : 0U;
  }
  return {largest - range, below};
}

inline void compress_row(const float* from, std::int64_t cols, const kernels::CompressedF32& w,
                         std::int64_t row, std::uint32_t* to,
                         kernels::CompressedF32::Exception* exception) {
  using Format = kernels::CompressedF32;
  const std::uint32_t base = w.row(row).base;
  std::uint32_t codes[Format::block];
  std::int64_t i = 0;
  for (; i + Format::block <= cols; i += Format::block, to += Format::block_words) {
    for (std::int64_t j = 0; j < Format::block; ++j) {
      const float x = from[i + j];
      const bool listed = exponent_bits(x) < base;
      codes[j] = listed ? 0 : ((bits_of(x) & 0x7fffffffU) - base) | (bits_of(x) >> 31 << 27);
      if (listed) {
        *exception++ = {static_cast<std::int32_t>(i + j), x};
      }
    }
    for (std::int64_t j = 0; j < Format::block_words; ++j) {
      const std::uint32_t part = codes[Format::block_words + j % 16] >> (j / 16 * 4);
      to[j] = codes[j] | part << 28;
    }
  }
  for (std::int64_t j = 0; j < (cols - i + 15) / 16 * 16; ++j) {
    to[j] = i + j < cols ? bits_of(from[i + j]) : 0;
  }
}

}  // namespace detail

namespace kernels {

// Weights [rows, cols]. Empty (no rows) where it does not pay: rows shorter than a block, or more
// than one number in 512 below its row's base.
inline CompressedF32 compress_f32(std::int64_t rows, std::int64_t cols, const float* from) {
  detail::check_weights("compress_f32", rows, cols);
  const std::int64_t whole = cols / CompressedF32::block * CompressedF32::block;
  CompressedF32 w{rows, cols, 0, {}};
  if (rows < 1 || whole < 1 || cols > 0x7fffffff) {
    return {};
  }
  List<CompressedF32::Row> starts(static_cast<std::size_t>(rows + 1));
  const std::int64_t chunk = 1 + 65536 / cols;
  parallel_for(rows, chunk, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      starts[static_cast<std::size_t>(i)] = detail::compressed_row(from + i * cols, whole);
    }
  });
  std::int64_t listed = 0;
  for (CompressedF32::Row& row : starts) {
    const std::int64_t count = row.first;
    row.first = static_cast<std::uint32_t>(std::min<std::int64_t>(listed, 0xffffffff));
    listed += count;
  }
  if (listed > rows * whole / 512 || listed > 0xffffffff) {
    return {};
  }
  w.numbers = Shared<CompressedF32::Numbers>(new CompressedF32::Numbers(rows * w.row_words()));
  w.numbers->rows = starts;
  w.numbers->exceptions.resize(static_cast<std::size_t>(listed));
  parallel_for(rows, chunk, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      detail::compress_row(from + i * cols, cols, w, i, w.numbers->words.data() + i * w.row_words(),
                           w.numbers->exceptions.data() + w.row(i).first);
    }
  });
  return w;
}

}  // namespace kernels
}  // namespace tinyscale
