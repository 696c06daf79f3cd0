#pragma once
// Products of attention: C = keep C + share (A B) with scores as A or as C. Of the sums over keys
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
constexpr int attention_tile = L::width == 1 || L::vectors < 4 ? L::rows : VECTORS == 4 ? 4 : 8;

constexpr std::int64_t attention_all = std::int64_t{1} << 40;  // bounds no tile
constexpr float attention_one = 1.0f;

// Row i sums over p in [i + from, i + to), as far as that is in [0, k).
struct AttentionProduct {
  std::int64_t m, n, k;
  const float* a;
  std::int64_t a_row, a_col;
  const float* b;
  std::int64_t b_row;
  float* c;
  std::int64_t c_row;
  std::int64_t from = -attention_all, to = attention_all;
  const float* keep = nullptr;  // null: C is not read
  const float* share = &attention_one;
  std::int64_t step = 0;  // of keep and share, from row to row

  template <class L>
  TINYSCALE_INLINE void run() const;
};

// Columns [column, column + VECTORS * width) of it; of one vector perhaps only the first `left`.
template <class L, int VECTORS, int PART>
struct AttentionPanel {
  const AttentionProduct& w;
  std::int64_t column, left;

  template <class Same>
  TINYSCALE_INLINE void run() const {
    constexpr int rows = attention_tile<L, VECTORS>;
    for (std::int64_t i = 0; i < w.m; i += rows) {
      const std::int64_t first = std::clamp<std::int64_t>(i + w.from, 0, w.k);
      const std::int64_t last =
          std::clamp<std::int64_t>(std::min(i + rows, w.m) - 1 + w.to, first, w.k);
      if (first < last || w.keep == nullptr) {
        tile<rows>(i, first, last - first);
      }
    }
  }

  template <int ROWS>
  TINYSCALE_INLINE void tile(std::int64_t i, std::int64_t first, std::int64_t k) const {
    typename L::V sum[static_cast<std::size_t>(ROWS)][static_cast<std::size_t>(VECTORS)];
    std::int64_t rows[static_cast<std::size_t>(ROWS)];
    const std::int64_t valid = w.m - i, a_col = w.a_col, b_row = w.b_row, count = left;
    TINYSCALE_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      rows[r] = r < valid ? r * w.a_row : 0;
      TINYSCALE_UNROLL
      for (int j = 0; j < VECTORS; ++j) {
        sum[r][j] = typename L::V{};
      }
    }
    const float* a = w.a + i * w.a_row + first * a_col;
    const float* b = w.b + first * b_row + column;
    for (std::int64_t p = k; p > 0; --p, a += a_col, b += b_row) {
      if constexpr (PART == 0) {
        gemm_step<L, ROWS, VECTORS>(a, rows, b, sum);
      } else {
        float row[static_cast<std::size_t>(L::width)];
        typename L::V v;
        load_part<L>(b, count, 0.0f, v);
        store<L>(row, v);
        gemm_step<L, ROWS, VECTORS>(a, rows, row, sum);
      }
    }
    const float* const keep = w.keep == nullptr ? nullptr : w.keep + i * w.step;
    const float* const share = w.share + i * w.step;
    float* const c = w.c + i * w.c_row + column;
    TINYSCALE_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      if (r >= valid) {
        return;
      }
      typename L::V f, g, old;
      broadcast<L>(share[r * w.step], f);
      if (keep != nullptr) {
        broadcast<L>(keep[r * w.step], g);
      }
      TINYSCALE_UNROLL
      for (int j = 0; j < VECTORS; ++j) {
        float* const at = c + r * w.c_row + j * L::width;
        sum[r][j] = sum[r][j] * f;
        if (keep != nullptr) {
          load_some<L>(at, PART == 0 ? L::width : count, 0.0f, old);
          sum[r][j] = sum[r][j] + old * g;
        }
        store_some<L>(at, PART == 0 ? L::width : count, sum[r][j]);
      }
    }
  }
};

template <class L>
TINYSCALE_INLINE void AttentionProduct::run() const {
  std::int64_t j = 0;
  if constexpr (L::vectors == 4 && L::width > 1) {
    for (; j + 4 * L::width <= n; j += 4 * L::width) {
      call_on_lanes<L>(AttentionPanel<L, 4, 0>{*this, j, L::width});
    }
  }
  for (; j + 2 * L::width <= n; j += 2 * L::width) {
    call_on_lanes<L>(AttentionPanel<L, 2, 0>{*this, j, L::width});
  }
  for (; j + L::width <= n; j += L::width) {
    call_on_lanes<L>(AttentionPanel<L, 1, 0>{*this, j, L::width});
  }
  if (j < n) {
    call_on_lanes<L>(AttentionPanel<L, 1, 1>{*this, j, n - j});
  }
}

inline void attention_product(const AttentionProduct& w) {
  if (w.m > 0 && w.n > 0) {
    run_on_lanes(w);
  }
}

}  // namespace detail
}  // namespace tinyscale
