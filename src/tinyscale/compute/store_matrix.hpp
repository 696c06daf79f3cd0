#pragma once
// Makes stored matrices: of bytes in memory, of packed codes, of f32 weights.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/mapped_file.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/block_format.hpp"
#include "tinyscale/compute/block_quantize.hpp"
#include "tinyscale/compute/gemv_quantized.hpp"
#include "tinyscale/compute/stored_matrix.hpp"
#include "tinyscale/compute/stored_product.hpp"

namespace tinyscale {

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
  detail::check_weights("stored_view", rows, cols);
  StoredMatrix w;
  w.rows = rows;
  w.cols = cols;
  w.format = format;
  w.data = data;
  w.row_bytes = block_row_bytes(format, cols);
  w.owner = owner;
  w.multiply = multiply_stored;
  w.row = stored_row;
  return w;
}

inline StoredMatrix stored_packed(const QuantizedMatrix& packed) {
  StoredMatrix w;
  w.rows = packed.rows;
  w.cols = packed.cols;
  w.packed = packed;
  w.is_packed = true;
  w.multiply = multiply_stored;
  w.row = stored_row;
  return w;
}

// f32 weights [rows, cols], kept another way.
inline StoredMatrix store_matrix(std::int64_t rows, std::int64_t cols, const float* from,
                                 const StoreAs& how = {}) {
  detail::check_weights("store_matrix", rows, cols);
  if (how.packed_bits != 0) {
    const bool row = how.group == 0 || how.group > cols;  // no group is longer
    const std::int64_t group = row ? std::max<std::int64_t>(1, cols) : how.group;
    return stored_packed(quantize(rows, cols, group, how.packed_bits, from));
  }
  const std::int64_t row = block_row_bytes(how.format, cols);
  const Shared<MappedFile> owner(new MappedFile(static_cast<std::size_t>(rows * row)));
  std::uint8_t* const to = owner->own_data();
  parallel_for(
      cols == 0 ? 0 : rows, 1 + 65536 / (cols + 1), [&](std::int64_t begin, std::int64_t end) {
        const std::int64_t first = begin * cols;
        quantize_blocks(how.format, end * cols - first, from + first, to + begin * row, first);
      });
  return stored_view(rows, cols, how.format, to, owner);
}

}  // namespace kernels

namespace detail {

// The same, with errors that name the weights.
inline StoredMatrix store_named(const std::string& who, const std::string& name, std::int64_t rows,
                                std::int64_t cols, const float* from, const StoreAs& how) {
  try {
    return kernels::store_matrix(rows, cols, from, how);
  } catch (const Error& error) {
    fail({who, name, ": ", error.what()});
  }
}

}  // namespace detail
}  // namespace tinyscale
