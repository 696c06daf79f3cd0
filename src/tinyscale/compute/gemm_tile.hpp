#pragma once
// Register tile of a matrix product: a block of C that stays in registers while k runs.
// Each step of k loads one row of B's panel, broadcasts one number of each row of A, and does
// rows x vectors multiply-adds: 24 of them on 10 loads with AVX-512 (6 rows of 4 vectors).

#include <cstddef>
#include <cstdint>

#include "tinyscale/compute/lanes.hpp"

namespace tinyscale {
namespace detail {

// Operands as strides: a(i, p) = a[i * a_row + p * a_col].
struct GemmOperands {
  std::int64_t m, n, k;
  const float* a;
  std::int64_t a_row, a_col;
  const float* b;
  std::int64_t b_row, b_col;
  float beta;
  float* c;
  std::int64_t ldc;
};

// C[ROWS, VECTORS * width] (+)= A[ROWS, k] B[k, ...]: the whole tile in registers.
template <class L, int ROWS, int VECTORS>
TINYSCALE_INLINE void gemm_tile(std::int64_t k, const float* a, std::int64_t a_row,
                                std::int64_t a_col, const float* b, std::int64_t b_row, float* c,
                                std::int64_t ldc, float beta) {
  typedef typename L::V V;
  V sum[static_cast<std::size_t>(ROWS)][static_cast<std::size_t>(VECTORS)];
  TINYSCALE_UNROLL
  for (int i = 0; i < ROWS; ++i) {
    TINYSCALE_UNROLL
    for (int j = 0; j < VECTORS; ++j) {
      sum[i][j] = V{};
    }
  }
  for (std::int64_t p = 0; p < k; ++p) {
    V right[static_cast<std::size_t>(VECTORS)];
    TINYSCALE_UNROLL
    for (int j = 0; j < VECTORS; ++j) {
      load<L>(b + j * L::width, right[j]);
    }
    TINYSCALE_UNROLL
    for (int i = 0; i < ROWS; ++i) {
      V left;
      broadcast<L>(a[i * a_row], left);
      TINYSCALE_UNROLL
      for (int j = 0; j < VECTORS; ++j) {
        sum[i][j] = sum[i][j] + left * right[j];
      }
    }
    a += a_col;
    b += b_row;
  }
  TINYSCALE_UNROLL
  for (int i = 0; i < ROWS; ++i) {
    TINYSCALE_UNROLL
    for (int j = 0; j < VECTORS; ++j) {
      float* to = c + i * ldc + j * L::width;
      if (beta != 0.0f) {
        V old;
        load<L>(to, old);
        sum[i][j] = sum[i][j] + old;  // beta is 0 or 1
      }
      store<L>(to, sum[i][j]);
    }
  }
}

// Rows [0, m) of one panel: full tiles, then what is left in tiles of 4, 2 and 1 rows.
template <class L, int VECTORS>
struct GemmPanel {
  std::int64_t m, k;
  const float* a;
  std::int64_t a_row, a_col;
  const float* b;
  std::int64_t b_row;
  float* c;
  std::int64_t ldc;
  float beta;

  template <int ROWS>
  TINYSCALE_INLINE void rows(std::int64_t& i) const {
    for (; i + ROWS <= m; i += ROWS) {
      gemm_tile<L, ROWS, VECTORS>(k, a + i * a_row, a_row, a_col, b, b_row, c + i * ldc, ldc, beta);
    }
  }

  template <class Same>
  TINYSCALE_INLINE void run() const {
    std::int64_t i = 0;
    rows<L::rows>(i);
    if constexpr (L::rows > 4) {
      rows<4>(i);
    }
    rows<2>(i);
    rows<1>(i);
  }
};

}  // namespace detail
}  // namespace tinyscale
