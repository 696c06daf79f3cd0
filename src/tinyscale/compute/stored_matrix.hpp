#pragma once
// A matrix of weights as it is stored: rows of floats or of blocks, perhaps in the mapping of a
// file, or packed to 8 or 4 bits for the integer kernels. It is only read: by products with
// activations (stored_product.hpp) and row by row, as an embedding is.

#include <cstdint>
#include <cstring>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/format.hpp"
#include "tinyscale/base/mapped_file.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/compute/block_format.hpp"
#include "tinyscale/compute/gemv_quantized.hpp"

namespace tinyscale {

// What activations are rounded to before they meet stored weights.
enum class Activations {
  f32,          // not at all
  int8_groups,  // int8 in the groups of the weights, as llama2.c's runq does
  int8_blocks   // as ggml does: int8 in blocks of 32, or f16 where weights are f16, bf16 likewise
};

struct StoredMatrix {
  std::int64_t rows = 0, cols = 0;
  BlockFormat format = BlockFormat::f32;  // of data
  const std::uint8_t* data = nullptr;     // row after row; null where packed
  std::int64_t row_bytes = 0;
  Shared<MappedFile> owner;  // of data; none: somebody else keeps it
  kernels::QuantizedMatrix packed;
  bool is_packed = false;

  const char* kind() const {
    return !is_packed ? name_of(format) : packed.bits == 8 ? "int8" : "int4";
  }
  double bytes() const {  // that a product reads
    return is_packed ? packed.bytes() : static_cast<double>(rows) * static_cast<double>(row_bytes);
  }
};

// What store_matrix makes of f32 weights.
struct StoreAs {
  BlockFormat format = BlockFormat::f32;
  int packed_bits = 0;      // 8 or 4: codes packed for the integer kernels, instead of `format`
  std::int64_t group = 32;  // columns of packed codes that share a scale; 0: all columns
};

namespace kernels {

// A matrix in memory that `owner` keeps: rows of blocks, one behind the other.
inline StoredMatrix stored_view(std::int64_t rows, std::int64_t cols, BlockFormat format,
                                const std::uint8_t* data, const Shared<MappedFile>& owner = {}) {
  if (rows < 0 || cols < 0) {
    detail::fail({"stored_view: ", rows, " x ", cols, "; sizes must be at least 0"});
  }
  StoredMatrix w;
  w.rows = rows;
  w.cols = cols;
  w.format = format;
  w.data = data;
  w.row_bytes = block_row_bytes(format, cols);
  w.owner = owner;
  return w;
}

inline StoredMatrix stored_packed(const QuantizedMatrix& packed) {
  StoredMatrix w;
  w.rows = packed.rows;
  w.cols = packed.cols;
  w.packed = packed;
  w.is_packed = true;
  return w;
}

// One row as f32.
inline void stored_row(const StoredMatrix& w, std::int64_t row, float* to) {
  if (row < 0 || row >= w.rows) {
    detail::fail({"stored_row: row ", row, " of ", w.rows, " x ", w.cols});
  }
  for (std::int64_t i = 0; i < w.cols && w.is_packed; ++i) {
    to[i] = w.packed.scale(row, i) * static_cast<float>(w.packed.code(row, i));
  }
  if (w.is_packed) {
    return;
  }
  const std::uint8_t* const from = w.data + row * w.row_bytes;
  for (std::int64_t i = 0; i < w.cols; ++i) {
    std::uint16_t half = 0;
    switch (w.format) {
      case BlockFormat::f32: std::memcpy(to + i, from + 4 * i, 4); break;
      case BlockFormat::f16:
      case BlockFormat::bf16:
        std::memcpy(&half, from + 2 * i, 2);
        to[i] = w.format == BlockFormat::f16 ? from_f16(half) : from_bf16(half);
        break;
      default: detail::fail({"stored_row: no ", name_of(w.format), " yet"});
    }
  }
}

// f32 weights [rows, cols], kept another way.
inline StoredMatrix store_matrix(std::int64_t rows, std::int64_t cols, const float* from,
                                 const StoreAs& how = {}) {
  if (how.packed_bits != 0) {
    const std::int64_t all = (cols + 7) / 8 * 8;
    return stored_packed(
        quantize(rows, cols, how.group == 0 ? all : how.group, how.packed_bits, from));
  }
  const std::int64_t row = block_row_bytes(how.format, cols);
  const Shared<MappedFile> owner(new MappedFile(static_cast<std::size_t>(rows * row)));
  std::uint8_t* const to = owner->own_data();
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    const std::uint16_t half = how.format == BlockFormat::f16 ? to_f16(from[i]) : to_bf16(from[i]);
    switch (how.format) {
      case BlockFormat::f32: std::memcpy(to + 4 * i, from + i, 4); break;
      case BlockFormat::f16:
      case BlockFormat::bf16: std::memcpy(to + 2 * i, &half, 2); break;
      default: detail::fail({"store_matrix: no ", name_of(how.format), " yet"});
    }
  }
  return stored_view(rows, cols, how.format, to, owner);
}

// y[m][rows] = x[m][cols] W'.
inline void multiply_stored(const StoredMatrix& w, Activations a, std::int64_t m, const float* x,
                            std::int64_t ldx, float* y, std::int64_t ldy) {
  if (w.is_packed && a != Activations::f32) {
    gemm_quantized(w.packed, m, x, ldx, y, ldy);
    return;
  }
  const detail::Scratch row(w.cols);
  for (std::int64_t n = 0; n < w.rows; ++n) {
    stored_row(w, n, row.data());
    for (std::int64_t i = 0; i < m; ++i) {
      float sum = 0.0f;
      for (std::int64_t p = 0; p < w.cols; ++p) {
        sum += x[i * ldx + p] * row.data()[p];
      }
      y[i * ldy + n] = sum;
    }
  }
}

}  // namespace kernels
}  // namespace tinyscale
