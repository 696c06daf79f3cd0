#pragma once
// A matrix of weights as it is stored: rows of floats or of blocks, perhaps in the mapping of a
// file, or packed to 8 or 4 bits for the integer kernels. It is only read: by products with
// activations (stored_product.hpp) and row by row, as an embedding is.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/mapped_file.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/block_dequantize.hpp"
#include "tinyscale/compute/block_format.hpp"
#include "tinyscale/compute/block_quantize.hpp"
#include "tinyscale/compute/gemv_quantized.hpp"

namespace tinyscale {

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

// One row as f32: what an embedding looks up.
inline void stored_row(const StoredMatrix& w, std::int64_t row, float* to) {
  if (row < 0 || row >= w.rows) {
    detail::fail({"stored_row: row ", row, " of a matrix of ", w.rows, " rows"});
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

// f32 weights [rows, cols], kept another way.
inline StoredMatrix store_matrix(std::int64_t rows, std::int64_t cols, const float* from,
                                 const StoreAs& how = {}) {
  if (how.packed_bits != 0) {
    const std::int64_t group = how.group == 0 ? std::max<std::int64_t>(1, cols) : how.group;
    return stored_packed(quantize(rows, cols, group, how.packed_bits, from));
  }
  const std::int64_t row = block_row_bytes(how.format, cols);
  const Shared<MappedFile> owner(new MappedFile(static_cast<std::size_t>(rows * row)));
  std::uint8_t* const to = owner->own_data();
  parallel_for(
      cols == 0 ? 0 : rows, 1 + 65536 / (cols + 1), [&](std::int64_t begin, std::int64_t end) {
        quantize_blocks(how.format, (end - begin) * cols, from + begin * cols, to + begin * row);
      });
  return stored_view(rows, cols, how.format, to, owner);
}

}  // namespace kernels
}  // namespace tinyscale
