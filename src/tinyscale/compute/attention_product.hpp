#pragma once
// Products of attention: C = share (A B) + keep C with scores as A or as C. Of the sums over keys
// (or queries) each tile of rows takes those that causality shows to one of its rows: few rows and
// many columns in a tile, so that little is multiplied beyond the diagonal.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tinyscale/compute/gemm_tile.hpp"
#include "tinyscale/compute/lanes.hpp"

namespace tinyscale {
namespace detail {

// Rows of a tile that is so many vectors wide: 16 sums where registers are many.
template <class L, int VECTORS>
constexpr int attention_tile = L::width == 1 || L::vectors < 4 ? L::rows
                               : VECTORS == 4                  ? 4
                                                               : 8;

constexpr std::int64_t attention_all = std::int64_t{1} << 40;  // bounds no tile

// Row i sums over p in [i + from, i + to], as far as that is in [0, k).
struct AttentionProduct {
  std::int64_t m, n, k;
  const float* a;
  std::int64_t a_row, a_col;
  const float* b;
  std::int64_t b_row;
  float* c;
  std::int64_t c_row;
  float beta = 0.0f;  // 0: C is not read
  std::int64_t from = -attention_all, to = attention_all;
  const float* share = nullptr;  // of each row: what its sum is multiplied by; null: 1
  const float* keep = nullptr;   // likewise what C is, where it is read

  template <class L>
  TINYSCALE_INLINE void run() const;
};

// Columns [column, column + VECTORS * width) of it; of one vector perhaps only the first `left`.
template <class L, int VECTORS>
struct AttentionPanel {
  static constexpr int rows = attention_tile<L, VECTORS>;
  typedef std::int64_t Offsets[static_cast<std::size_t>(rows)];
  const AttentionProduct& w;
  std::int64_t column, left;

  template <class Same>
  TINYSCALE_INLINE void run() const {
    Offsets at, a_at, c_at;
    const std::int64_t m = w.m, k = w.k, from = w.from, to = w.to;
    for (std::int64_t i = 0; i < m; i += rows) {
      if (i == 0 || m - i < rows) {
        TINYSCALE_UNROLL
        for (int r = 0; r < rows; ++r) {  // rows that are not there repeat the first one
          at[r] = r < m - i ? r : 0;
          a_at[r] = at[r] * w.a_row;
          c_at[r] = at[r] * w.c_row;
        }
      }
      const std::int64_t first = std::clamp<std::int64_t>(i + from, 0, k);
      const std::int64_t last = std::clamp<std::int64_t>(std::min(i + rows, m) + to, first, k);
      if (first < last || w.beta == 0.0f) {
        tile(i, first, last - first, at, a_at, c_at);
      }
    }
  }

  TINYSCALE_INLINE void tile(std::int64_t i, std::int64_t first, std::int64_t k, const Offsets& at,
                             const Offsets& a_at, const Offsets& c_at) const {
    typename L::V f, sum[static_cast<std::size_t>(rows)][static_cast<std::size_t>(VECTORS)] = {};
    const std::int64_t a_col = w.a_col, b_row = w.b_row;
    const std::int64_t count = VECTORS > 1 ? L::width : left;
    const float* a = w.a + i * w.a_row + first * a_col;
    const float* b = w.b + first * b_row + column;
    if (L::width > 4 && (VECTORS > 1 || count == L::width)) {
      const float* second = a + a_col;
      for (; k > 1; k -= 2, b += 2 * b_row) {
        gemm_step<L, rows, VECTORS>(a, a_at, b, sum);
        gemm_step<L, rows, VECTORS>(second, a_at, b + b_row, sum);
        a += 2 * a_col;
        second += 2 * a_col;
      }
    }
    for (; k > 0; --k, a += a_col, b += b_row) {
      float part[static_cast<std::size_t>(L::width)];
      if (VECTORS == 1 && count < L::width) {
        load_part<L>(b, count, 0.0f, f);
        store<L>(part, f);
      }
      gemm_step<L, rows, VECTORS>(a, a_at, VECTORS == 1 && count < L::width ? part : b, sum);
    }
    float* const c = w.c + i * w.c_row + column;
    if (w.share != nullptr) {
      TINYSCALE_UNROLL
      for (int r = 0; r < rows; ++r) {
        broadcast<L>(w.share[i + at[r]], f);
        TINYSCALE_UNROLL
        for (int j = 0; j < VECTORS; ++j) {
          sum[r][j] = sum[r][j] * f;
        }
      }
    }
    if (w.beta != 0.0f) {
      TINYSCALE_UNROLL
      for (int r = 0; r < rows; ++r) {
        typename L::V old;
        broadcast<L>(w.keep == nullptr ? 1.0f : w.keep[i + at[r]], f);
        TINYSCALE_UNROLL
        for (int j = 0; j < VECTORS; ++j) {
          load_some<L>(c + c_at[r] + j * L::width, count, 0.0f, old);
          sum[r][j] = sum[r][j] + old * f;
        }
      }
    }
    TINYSCALE_UNROLL
    for (int r = 0; r < rows; ++r) {
      TINYSCALE_UNROLL
      for (int j = 0; j < VECTORS; ++j) {
        store_some<L>(c + c_at[r] + j * L::width, count, sum[r][j]);
      }
    }
  }
};

template <class L>
TINYSCALE_INLINE void AttentionProduct::run() const {
  std::int64_t j = 0;
  if constexpr (L::vectors == 4 && L::width > 1) {
    for (; j + 4 * L::width <= n; j += 4 * L::width) {
      call_on_lanes<L>(AttentionPanel<L, 4>{*this, j, L::width});
    }
  }
  for (; j + 2 * L::width <= n; j += 2 * L::width) {
    call_on_lanes<L>(AttentionPanel<L, 2>{*this, j, L::width});
  }
  for (; j < n; j += L::width) {  // the last perhaps in part
    call_on_lanes<L>(AttentionPanel<L, 1>{*this, j, std::min<std::int64_t>(L::width, n - j)});
  }
}

inline void attention_product(const AttentionProduct& w) {
  if (w.m > 0 && w.n > 0) {
    run_on_lanes(w);
  }
}

}  // namespace detail
}  // namespace tinyscale
