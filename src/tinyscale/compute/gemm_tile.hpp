#pragma once
// Register tile of a matrix product: a block of C that stays in registers while k runs.
// Each step of k loads one row of B's panel, broadcasts one number of each row of A, and does
// rows x vectors multiply-adds: 24 of them on 10 loads with AVX-512 (6 rows of 4 vectors), and
// fetches what the next panel will need: memory works while the multipliers do.

#include <cstddef>
#include <cstdint>

#include "tinyscale/compute/lanes.hpp"

namespace tinyscale {
namespace detail {

// Operands as strides: a(i, p) = a[i * a_row + p * a_col]. Where a_tile is not 0, A is packed: row
// i begins at i * a_tile for the first row of each tile, and those of one tile are a_row apart.
struct GemmOperands {
  std::int64_t m, n, k;
  const float* a;
  std::int64_t a_row, a_col;
  const float* b;
  std::int64_t b_row, b_col;
  float beta;
  float* c;
  std::int64_t ldc;
  const void* epilogue = nullptr;  // what finish does to rows [0, m) of a finished block of C
  void (*finish)(const GemmOperands& g, std::int64_t row, std::int64_t m, std::int64_t column,
                 std::int64_t n) = nullptr;
  std::int64_t a_tile = 0;
  // (m, n): all that finish does is to add it, and where tiles compute C they do so instead; ways
  // without tiles call finish. Only of one pass over k, with beta 0.
  const float* added = nullptr;
  std::int64_t ld_added = 0;

  const float* a_at(std::int64_t i, std::int64_t p) const {
    return a + i * (a_tile == 0 ? a_row : a_tile) + p * a_col;
  }
};

// Rows [0, m) of one panel of B: C = A B + old. ahead: what will be read next; in each step of k
// one cache line of it is fetched, then it moves by ahead_row. ahead_tile: what a tile fetches is
// so much after its own.
struct PanelWork {
  std::int64_t m, k;
  const float* a;
  std::int64_t a_row, a_col;
  const float* b;
  std::int64_t b_row;
  float* c;
  std::int64_t ldc;
  const float* old;  // C itself, another matrix, or null: nothing
  std::int64_t ld_old;
  const float* ahead;
  std::int64_t ahead_row;
  std::int64_t a_tile = 0, ahead_tile = 0;
  float* copy = nullptr;  // for GemmFirst
};

enum class TileWay { ahead, copies, walks };

// Tiles as wide as a cache line or less (AVX2, 16-byte registers) read a panel of B of 512 rows,
// but each row of a panel that is not packed lies in a line of its own.
constexpr bool gemm_is_narrow(std::int64_t wide) { return wide <= 16; }

// One step of k: a row of B, a number of each row of A. COPIES: to leave the row of B in copy.
template <class L, int ROWS, int VECTORS, bool COPIES = false>
TINYSCALE_INLINE void gemm_step(
    const float* a, const std::int64_t (&rows)[static_cast<std::size_t>(ROWS)], const float* b,
    typename L::V (&sum)[static_cast<std::size_t>(ROWS)][static_cast<std::size_t>(VECTORS)],
    [[maybe_unused]] float* copy = nullptr) {
  typename L::V right[static_cast<std::size_t>(VECTORS)];
  TINYSCALE_UNROLL
  for (int j = 0; j < VECTORS; ++j) {
    load<L>(b + j * L::width, right[j]);
    if constexpr (COPIES) {
      store<L>(copy + j * L::width, right[j]);
    }
  }
  TINYSCALE_UNROLL
  for (int i = 0; i < ROWS; ++i) {
    typename L::V left;
    broadcast<L>(a[rows[i]], left);
    TINYSCALE_UNROLL
    for (int j = 0; j < VECTORS; ++j) {
      sum[i][j] = sum[i][j] + left * right[j];
    }
  }
}

// C[ROWS, VECTORS * width] = A[ROWS, k] B[k, ...] + old: the whole tile in registers. Rows from
// `valid` on repeat the first one and are not stored.
template <class L, int ROWS, int VECTORS, TileWay WAY = TileWay::ahead>
TINYSCALE_INLINE void gemm_tile(const PanelWork& w, std::int64_t row, std::int64_t valid,
                                const float* ahead) {
  typedef typename L::V V;
  V sum[static_cast<std::size_t>(ROWS)][static_cast<std::size_t>(VECTORS)];
  TINYSCALE_UNROLL
  for (int i = 0; i < ROWS; ++i) {
    TINYSCALE_UNROLL
    for (int j = 0; j < VECTORS; ++j) {
      sum[i][j] = V{};
    }
  }
  std::int64_t rows[static_cast<std::size_t>(ROWS)];
  TINYSCALE_UNROLL
  for (int i = 0; i < ROWS; ++i) {
    rows[i] = i < valid ? i * w.a_row : 0;
  }
  const std::int64_t a_col = w.a_col, b_row = w.b_row, ahead_row = w.ahead_row;
  const std::int64_t ldc = w.ldc, ld_old = w.ld_old;
  const bool adds = w.old != nullptr;
  const float* a = w.a + row * (w.a_tile == 0 ? w.a_row : w.a_tile);
  const float* b = w.b;
  float* c = w.c + row * ldc;
  std::int64_t p = w.k;
  if (WAY != TileWay::walks && adds) {
    TINYSCALE_UNROLL
    for (int i = 0; i < ROWS; ++i) {
      for (int j = 0; j < VECTORS * L::width; j += 16) {
        prefetch<3>(w.old + (row + (i < valid ? i : 0)) * ld_old + j);
      }
    }
  }
  if constexpr (WAY == TileWay::copies) {
    constexpr std::int64_t reach = 16;  // steps
    float* copy = w.copy;
    for (; p > 0; --p, a += a_col, b += b_row, copy += VECTORS * L::width) {
      TINYSCALE_UNROLL
      for (int j = 0; j < VECTORS * L::width; j += 16) {
        prefetch(b + (p > reach ? reach * b_row : 0) + j);
      }
      gemm_step<L, ROWS, VECTORS, true>(a, rows, b, sum, copy);
    }
  } else if constexpr (WAY == TileWay::walks) {
    constexpr std::int64_t wide = VECTORS * L::width;
    constexpr std::int64_t later = gemm_is_narrow(wide) ? wide : 0;  // the next tile's: it is soon
    TINYSCALE_UNROLL
    for (int i = 0; i < ROWS; ++i) {
      for (int j = 0; j < wide; j += 16) {
        prefetch<3>(c + (i < valid ? i * ldc : 0) + j + later);
      }
    }
    const float* second = a + a_col;  // of its own, so that both share the rows' registers
    for (; p > 1; p -= 2, a += 2 * a_col, second += 2 * a_col, b += 2 * wide) {
      gemm_step<L, ROWS, VECTORS>(a, rows, b, sum);
      gemm_step<L, ROWS, VECTORS>(second, rows, b + wide, sum);
    }
  } else if constexpr (ROWS == L::rows && VECTORS == L::vectors) {
    const float* second = a + a_col;
    for (; p > 1; p -= 2, b += 2 * b_row, ahead += 2 * ahead_row) {
      prefetch(ahead);
      gemm_step<L, ROWS, VECTORS>(a, rows, b, sum);
      gemm_step<L, ROWS, VECTORS>(second, rows, b + b_row, sum);
      a += 2 * a_col;
      second += 2 * a_col;
    }
  }
  for (; p > 0; --p, a += a_col, b += b_row, ahead += ahead_row) {
    prefetch(ahead);
    gemm_step<L, ROWS, VECTORS>(a, rows, b, sum);
  }
  const float* const from = adds ? w.old + row * ld_old : nullptr;
  TINYSCALE_UNROLL
  for (int i = 0; i < ROWS; ++i) {
    TINYSCALE_UNROLL
    for (int j = 0; j < VECTORS; ++j) {
      if (i >= valid) {
        return;
      }
      if (adds) {
        V old;
        load<L>(from + i * ld_old + j * L::width, old);
        sum[i][j] = sum[i][j] + old;
      }
      store<L>(c + i * ldc + j * L::width, sum[i][j]);
    }
  }
}

// The first rows of a panel, which leaves a copy of it in w.copy for the others.
template <class L>
struct GemmFirst {
  const PanelWork& w;

  template <class Same>
  TINYSCALE_INLINE void run() const {
    gemm_tile<L, L::rows, L::vectors, TileWay::copies>(w, 0, w.m, w.b);
  }
};

// Full tiles, the last perhaps in part, or a tile of 4 or 2 rows. Of a row of what is ahead each of
// four tiles in turn fetches one line.
template <class L, int VECTORS>
struct GemmPanel {
  const PanelWork& w;

  template <class Same>
  TINYSCALE_INLINE void run() const {
    std::int64_t tile = 0;
    for (std::int64_t i = 0; i < w.m; ++tile) {
      const std::int64_t next = w.m - i > L::rows ? tile + 1 : 0;
      const std::int64_t place =
          w.ahead_tile == 0 ? tile % 4 * 16 + tile / 4 % 2 * w.ahead_row : next * w.ahead_tile;
      const float* const ahead = w.ahead + place;
      if (w.m - i > 4 || (L::rows <= 4 && w.m - i > 2)) {
        gemm_tile<L, L::rows, VECTORS>(w, i, w.m - i, ahead);
        i += L::rows;
      } else if (w.m - i > 2) {
        gemm_tile<L, 4, VECTORS>(w, i, w.m - i, ahead);
        i += 4;
      } else {
        gemm_tile<L, 2, VECTORS>(w, i, w.m - i, ahead);
        i += 2;
      }
    }
  }
};

// Packed panels side by side, `apart` floats from one to the next: while they stay in L2, rows of A
// are read once, and rows of C along their memory. A narrow panel serves several tiles before the
// next: L1 holds some of it, and rows of A come from L2 as well.
template <class L>
struct GemmWalk {
  const PanelWork& w;
  std::int64_t panels, apart;

  template <class Same>
  TINYSCALE_INLINE void run() const {
    constexpr std::int64_t wide = L::width * L::vectors;
    constexpr std::int64_t group = (gemm_is_narrow(wide) ? 6 : 1) * L::rows;
    for (std::int64_t first = 0; first < w.m; first += group) {
      PanelWork one = w;
      const std::int64_t last = first + group < w.m ? first + group : w.m;
      for (std::int64_t x = 0; x < panels; ++x) {
        for (std::int64_t i = first; i < last; i += L::rows) {
          if (last - i > 2) {
            gemm_tile<L, L::rows, L::vectors, TileWay::walks>(one, i, last - i, nullptr);
          } else {
            gemm_tile<L, 2, L::vectors, TileWay::walks>(one, i, last - i, nullptr);
          }
        }
        one.b += apart;
        one.c += wide;
        one.old = one.old == nullptr ? nullptr : one.old + wide;
      }
    }
  }
};

}  // namespace detail
}  // namespace tinyscale
