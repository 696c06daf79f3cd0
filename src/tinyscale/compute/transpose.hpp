#pragma once
// Turning a matrix in memory, or 8 or 16 vectors in registers.

#include <algorithm>  // min
#include <cstdint>

#include "tinyscale/compute/lanes.hpp"

namespace tinyscale {
namespace kernels {

// The reference body, also of turn_matrix.
inline void transpose_reference(std::int64_t rows, std::int64_t cols, const float* from,
                                std::int64_t from_row, float* to, std::int64_t to_row) {
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < cols; ++j) {
      to[j * to_row + i] = from[i * from_row + j];
    }
  }
}

}  // namespace kernels

namespace detail {

// to[j][i] = from[i][j], in squares of four where the compiler can shuffle.
TINYSCALE_OPTIMIZED inline void transpose(std::int64_t rows, std::int64_t cols, const float* from,
                                          std::int64_t from_row, float* to, std::int64_t to_row) {
  std::int64_t i = 0;
#if TINYSCALE_SHUFFLE
  typedef Lanes4::V V;
  for (; i < rows && rows >= 4 && cols >= 4; i += 4) {
    i = std::min(i, rows - 4);  // the last square may overlap
    for (std::int64_t j = 0; j < cols; j += 4) {
      j = std::min(j, cols - 4);
      V a, b, c, d;
      load<Lanes4>(from + i * from_row + j, a);
      load<Lanes4>(from + (i + 1) * from_row + j, b);
      load<Lanes4>(from + (i + 2) * from_row + j, c);
      load<Lanes4>(from + (i + 3) * from_row + j, d);
      const V ab = __builtin_shufflevector(a, b, 0, 4, 1, 5);
      const V cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
      const V ab2 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
      const V cd2 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
      float* out = to + j * to_row + i;
      store<Lanes4>(out, __builtin_shufflevector(ab, cd, 0, 1, 4, 5));
      store<Lanes4>(out + to_row, __builtin_shufflevector(ab, cd, 2, 3, 6, 7));
      store<Lanes4>(out + 2 * to_row, __builtin_shufflevector(ab2, cd2, 0, 1, 4, 5));
      store<Lanes4>(out + 3 * to_row, __builtin_shufflevector(ab2, cd2, 2, 3, 6, 7));
    }
  }
#endif
  for (; i < rows; ++i) {
    for (std::int64_t j = 0; j < cols; ++j) {
      to[j * to_row + i] = from[i * from_row + j];
    }
  }
}

#if TINYSCALE_SHUFFLE
// r[i], lane j of 16 x 16 numbers to r[j], lane i, by squares of 4 and then squares of those.
template <class V>
TINYSCALE_INLINE void turn_square(V (&r)[16]) {
#define TINYSCALE_PICK(a, b, x, y, z, w, four)                                                    \
  __builtin_shufflevector(a, b, x, y, z, w, x + four, y + four, z + four, w + four, x + 2 * four, \
                          y + 2 * four, z + 2 * four, w + 2 * four, x + 3 * four, y + 3 * four,   \
                          z + 3 * four, w + 3 * four)
#define TINYSCALE_QUADS(a, b, x)                                                              \
  __builtin_shufflevector(a, b, x, x + 1, x + 2, x + 3, x + 8, x + 9, x + 10, x + 11, x + 16, \
                          x + 17, x + 18, x + 19, x + 24, x + 25, x + 26, x + 27)
  V t[16];
  TINYSCALE_UNROLL
  for (int i = 0; i < 16; i += 4) {
    const V a = TINYSCALE_PICK(r[i], r[i + 1], 0, 16, 1, 17, 4);
    const V b = TINYSCALE_PICK(r[i], r[i + 1], 2, 18, 3, 19, 4);
    const V c = TINYSCALE_PICK(r[i + 2], r[i + 3], 0, 16, 1, 17, 4);
    const V d = TINYSCALE_PICK(r[i + 2], r[i + 3], 2, 18, 3, 19, 4);
    t[i] = TINYSCALE_PICK(a, c, 0, 1, 16, 17, 4);
    t[i + 1] = TINYSCALE_PICK(a, c, 2, 3, 18, 19, 4);
    t[i + 2] = TINYSCALE_PICK(b, d, 0, 1, 16, 17, 4);
    t[i + 3] = TINYSCALE_PICK(b, d, 2, 3, 18, 19, 4);
  }
  TINYSCALE_UNROLL
  for (int i = 0; i < 4; ++i) {
    const V a = TINYSCALE_QUADS(t[i], t[i + 4], 0);
    const V b = TINYSCALE_QUADS(t[i], t[i + 4], 4);
    const V c = TINYSCALE_QUADS(t[i + 8], t[i + 12], 0);
    const V d = TINYSCALE_QUADS(t[i + 8], t[i + 12], 4);
    r[i] = TINYSCALE_QUADS(a, c, 0);
    r[i + 4] = TINYSCALE_QUADS(b, d, 0);
    r[i + 8] = TINYSCALE_QUADS(a, c, 4);
    r[i + 12] = TINYSCALE_QUADS(b, d, 4);
  }
#undef TINYSCALE_PICK
#undef TINYSCALE_QUADS
}

// Likewise of 8 x 8.
template <class V>
TINYSCALE_INLINE void turn_square(V (&r)[8]) {
#define TINYSCALE_PICK(a, b, x, y, z, w) \
  __builtin_shufflevector(a, b, x, y, z, w, x + 4, y + 4, z + 4, w + 4)
  V t[8];
  TINYSCALE_UNROLL
  for (int i = 0; i < 8; i += 4) {
    const V a = TINYSCALE_PICK(r[i], r[i + 1], 0, 8, 1, 9);
    const V b = TINYSCALE_PICK(r[i], r[i + 1], 2, 10, 3, 11);
    const V c = TINYSCALE_PICK(r[i + 2], r[i + 3], 0, 8, 1, 9);
    const V d = TINYSCALE_PICK(r[i + 2], r[i + 3], 2, 10, 3, 11);
    t[i] = TINYSCALE_PICK(a, c, 0, 1, 8, 9);
    t[i + 1] = TINYSCALE_PICK(a, c, 2, 3, 10, 11);
    t[i + 2] = TINYSCALE_PICK(b, d, 0, 1, 8, 9);
    t[i + 3] = TINYSCALE_PICK(b, d, 2, 3, 10, 11);
  }
  TINYSCALE_UNROLL
  for (int i = 0; i < 4; ++i) {
    r[i] = __builtin_shufflevector(t[i], t[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    r[i + 4] = __builtin_shufflevector(t[i], t[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
#undef TINYSCALE_PICK
}

template <class L>
constexpr bool turns_squares = L::width == 16 || L::width == 8;
#else
template <class L>
constexpr bool turns_squares = false;  // g++ shuffles from 12 on
#endif

}  // namespace detail
}  // namespace tinyscale
