#pragma once
// The operands of a product as the PEs read them: rounded to the array's format, in pieces.
//   f32: as they are. bf16, fp8: rounded to nearest even as round_to() does; products are exact in
//   f32. int8: whole numbers -128 .. 127, summed in int32. bf16 in 3 or 6 passes: an f32 is
//   b1 + b2 + b3, each the bf16 nearest to what is left; the products are summed smallest first:
//   3: b2 b1, b1 b2, b1 b1        6: b3 b1, b2 b2, b1 b3, b2 b1, b1 b2, b1 b1
// (JAX precision "high" and "highest"; the first of a pair is the piece that streams.)

#include <cstdint>  // int64_t
#include <cstring>  // memcpy

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/format.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/systolic/array_schedule.hpp"

namespace tinyscale {
namespace detail {

// A matrix in place, perhaps transposed.
struct MatrixView {
  const float* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t row_step = 0;
  std::int64_t col_step = 0;

  float at(std::int64_t i, std::int64_t j) const { return data[i * row_step + j * col_step]; }
  MatrixView transposed() const { return {data, cols, rows, col_step, row_step}; }
};

inline MatrixView matrix_view(const float* data, std::int64_t rows, std::int64_t cols) {
  return {data, rows, cols, cols, 1};
}

// The pieces that a pass multiplies: of what streams, and of what is stationary.
struct PiecePair {
  int stream = 0, tile = 0;
};

inline PiecePair pieces_of_pass(std::int64_t passes, std::int64_t pass) {
  static constexpr int stream[] = {2, 1, 0, 1, 0, 0};
  static constexpr int tile[] = {0, 1, 2, 0, 1, 0};
  const std::int64_t i = 6 - passes + pass;
  return {stream[i], tile[i]};
}

// 1, 2 or 3 pieces of one operand, row-major; words are floats, or int32 in their place. f32 that
// lies so already is read where it is; else a copy is made, rounded or turned.
struct ArrayOperand {
  List<float> own[3];
  const float* piece[3] = {};
  int pieces = 1;
  std::int64_t cols = 0;
};

inline float int8_word(float x, const char* function, const char* name) {
  const bool whole = x >= -128 && x <= 127 && x == static_cast<float>(static_cast<int>(x));
  if (!whole) {
    fail({function, ": ", name, " holds ", x,
          "; an int8 array takes whole numbers from -128 to 127"});
  }
  const auto n = static_cast<std::int32_t>(x);
  float word = 0;
  std::memcpy(&word, &n, sizeof word);
  return word;
}

// Throws where an int8 array is given a number that is no int8.
inline ArrayOperand array_operand(const MatrixView& m, DType format, std::int64_t passes,
                                  const char* function, const char* name) {
  ArrayOperand operand;
  operand.pieces = passes == 1 ? 1 : passes == 3 ? 2 : 3;
  operand.cols = m.cols;
  if (format == DType::f32 && m.col_step == 1 && m.row_step == m.cols) {
    operand.piece[0] = m.data;
    return operand;
  }
  for (int p = 0; p < operand.pieces; ++p) {
    operand.own[p] = List<float>(static_cast<std::size_t>(m.rows * m.cols));
    operand.piece[p] = operand.own[p].data();
  }
  for (std::int64_t i = 0; i < m.rows; ++i) {
    for (std::int64_t j = 0; j < m.cols; ++j) {
      float left = m.at(i, j);
      const auto at = static_cast<std::size_t>(i * m.cols + j);
      for (int p = 0; p < operand.pieces; ++p) {
        const float piece = format == DType::int8  ? int8_word(left, function, name)
                            : format == DType::f32 ? left
                                                   : round_to(left, format);
        operand.own[p].data()[at] = piece;
        left = is_finite(piece) ? left - piece : 0.0f;  // an infinity has no rest
      }
    }
  }
  return operand;
}

}  // namespace detail
}  // namespace tinyscale
