#pragma once
// A matrix of weights as it is stored: rows of floats or of blocks, perhaps in the mapping of a
// file, or packed to 8 or 4 bits for the integer kernels, or f32 in 28 bits. It is only read: by
// products with activations (stored_product.hpp) and row by row, as an embedding is.
// store_matrix.hpp makes them.

#include <algorithm>
#include <cstdint>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/mapped_file.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/compute/block_dequantize.hpp"
#include "tinyscale/compute/block_format.hpp"
#include "tinyscale/compute/compressed_f32.hpp"
#include "tinyscale/compute/memory_check.hpp"
#include "tinyscale/compute/quantized_matrix.hpp"

namespace tinyscale {

namespace detail {

constexpr std::int64_t stored_few = 8;  // rows of x up to which W is not made f32 whole

}  // namespace detail

struct StoredScreen;

// The largest number of one row of x W'.
struct LargestProduct {
  std::int64_t place = -1;  // the first largest; -1: some may not be finite
  float value = 0;
  std::int64_t rows = 0;   // of W, that were multiplied whole for it
  std::int64_t again = 0;  // that were looked at in 8 bits
};

struct StoredMatrix {
  std::int64_t rows = 0, cols = 0;
  BlockFormat format = BlockFormat::f32;  // of data
  const std::uint8_t* data = nullptr;     // row after row; null where packed or compressed
  std::int64_t row_bytes = 0;
  Shared<MappedFile> owner;  // of data; none: somebody else keeps it
  kernels::QuantizedMatrix packed;
  bool is_packed = false;
  kernels::CompressedF32 compressed;  // of rows, where it is that
  bool is_compressed() const { return compressed.rows > 0; }

  // How products and single rows read it, as kernels::multiply_stored and stored_row do. Whoever
  // makes one sets them: a program that makes none does not compile those kernels.
  void (*multiply)(const StoredMatrix& w, Activations how, std::int64_t m, const float* x,
                   std::int64_t ldx, float* y, std::int64_t ldy) = nullptr;
  void (*row)(const StoredMatrix& w, std::int64_t row, float* to) = nullptr;

  // A copy in fewer bits that rules most rows out (screen_matrix.hpp), and what finds the largest
  // of the first `known` numbers of each row of y with it; it returns the bytes of W that it read.
  Shared<StoredScreen> screen;
  double (*largest)(const StoredMatrix& w, Activations how, std::int64_t known, std::int64_t m,
                    const float* x, std::int64_t ldx, LargestProduct* to) = nullptr;

  const char* kind() const {
    return is_compressed()    ? "f32 in 28 bits"
           : !is_packed       ? name_of(format)
           : packed.bits == 8 ? "int8"
                              : "int4";
  }
  double bytes() const {  // that a product reads
    return is_compressed() ? compressed.bytes()
           : is_packed     ? packed.bytes()
                           : static_cast<double>(rows) * static_cast<double>(row_bytes);
  }
};

namespace detail {

// Of a matrix that nothing made there is no way to read it.
inline void check_stored(const char* who, const StoredMatrix& w) {
  const bool some = w.rows > 0 && w.cols > 0;
  if (some && (w.is_compressed() ? w.multiply == nullptr || w.row == nullptr
               : w.is_packed     ? w.packed.rows != w.rows || w.packed.cols != w.cols
                                 : w.data == nullptr)) {
    fail({who, ": the stored matrix [", w.rows, ", ", w.cols,
          "] cannot be read; store_matrix, stored_view and stored_packed make those that can"});
  }
}

// A product must not be written over what it reads.
inline void check_stored_memory(const char* who, const StoredMatrix& w, std::int64_t m,
                                const float* x, std::int64_t ldx, const float* y,
                                std::int64_t ldy) {
  check_own(who, {"y", y, w.rows, m, ldy},
            {{"x", x, w.cols, m, ldx}, {"w", w.data, w.row_bytes, w.rows, w.row_bytes, 1, 0, 1}});
}

inline void check_stored_row(const StoredMatrix& w, std::int64_t row) {
  if (row < 0 || row >= w.rows) {
    fail({"stored_row: row ", row, " of a matrix of ", w.rows, " rows"});
  }
}

}  // namespace detail

namespace kernels {

// The reference body of rows, number by number.
inline void stored_row_reference(const StoredMatrix& w, std::int64_t row, float* to) {
  if (!w.is_packed && !w.is_compressed()) {
    detail::dequantize_blocks_reference(w.format, w.cols, w.data + row * w.row_bytes, to);
    return;
  }
  for (std::int64_t i = 0; i < w.cols; ++i) {
    to[i] = w.is_packed ? w.packed.scale(row, i) * static_cast<float>(w.packed.code(row, i))
                        : compressed_number_reference(w.compressed, row, i);
  }
}

// One row as f32: what an embedding looks up.
inline void stored_row(const StoredMatrix& w, std::int64_t row, float* to) {
  detail::check_stored_row(w, row);
  detail::check_stored("stored_row", w);
  if (w.is_compressed()) {
    w.row(w, row, to);
    return;
  }
  if (!w.is_packed) {
    dequantize_blocks(w.format, w.cols, w.data + row * w.row_bytes, to);
    return;
  }
  for (std::int64_t first = 0; first < w.cols; first += w.packed.group) {
    const float scale = w.packed.scale(row, first);
    for (std::int64_t i = first; i < std::min(w.cols, first + w.packed.group); ++i) {
      to[i] = scale * static_cast<float>(w.packed.code(row, i));
    }
  }
}

}  // namespace kernels
}  // namespace tinyscale
