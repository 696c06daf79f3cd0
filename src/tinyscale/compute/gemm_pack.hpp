#pragma once
// Operands of a matrix product, copied into the order in which its tiles read them: B in panels as
// wide as a tile, a transposed A in tiles [k][rows].

#include <algorithm>
#include <cstdint>
#include <cstring>  // memcpy

#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/gemm_short.hpp"
#include "tinyscale/compute/gemm_tile.hpp"
#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/compute/transpose.hpp"

namespace tinyscale {
namespace detail {

constexpr std::int64_t gemm_rows = 96;  // most rows of one task

struct TileSize {
  std::int64_t width = 0, wide = 0, rows = 0;
  std::int64_t rounded(std::int64_t columns) const { return (columns + width - 1) / width * width; }
};

struct TileQuery {  // asks the active path for its tile
  TileSize* size;
  template <class L>
  TINYSCALE_INLINE void run() const {
    size->width = L::width;
    size->wide = L::width * L::vectors;
    size->rows = L::rows;
  }
};

inline TileSize tile_size() {
  TileSize size;
  run_on_lanes(TileQuery{&size});
  return size;
}

// Copies columns [j, j + valid) of rows [p, p + depth) of B to to[depth][wide], zeros behind them.
struct GemmPack {
  const GemmOperands& g;
  std::int64_t p, depth, j, valid, wide;
  float* to;

  static constexpr std::int64_t strip = 16;  // rows at a time, while the next ones are fetched

  template <class L>
  TINYSCALE_INLINE void run() const {
    for (std::int64_t q = 0; q < depth; q += strip) {
      const std::int64_t rows = depth - q < strip ? depth - q : strip;
      if (g.b_col == 1) {
        for (std::int64_t r = 0; r < rows; ++r) {
          copy_row<L>(g.b + (p + q + r) * g.b_row + j, to + (q + r) * wide);
        }
        continue;
      }
      const float* from = g.b + j * g.b_col + p + q;  // b_row is 1
      for (std::int64_t x = 0; x < valid && q + strip < depth; ++x) {
        prefetch(from + x * g.b_col + strip);
      }
      transpose(valid, rows, from, g.b_col, to + q * wide, wide);
      for (std::int64_t r = q; r < q + rows && valid < wide; ++r) {
        std::fill(to + r * wide + valid, to + (r + 1) * wide, 0.0f);
      }
    }
  }

  template <class L>
  TINYSCALE_INLINE void copy_row(const float* from, float* row) const {
    const std::int64_t whole = valid, all = wide;
    std::int64_t x = 0;
    typename L::V v;
    for (; x + L::width <= whole; x += L::width) {
      if constexpr (!gemm_is_narrow(L::width * L::vectors)) {
        prefetch(from + x + strip * g.b_row);
      } else if (x % 16 == 0) {
        prefetch<3>(from + x + strip / 2 * g.b_row);
      }
      load<L>(from + x, v);
      store<L>(row + x, v);
    }
    for (; x < all; x += L::width) {
      load_some<L>(from + x, whole - x, 0.0f, v);
      store<L>(row + x, v);
    }
  }
};

// Whole panels [first, first + columns) of rows [p, p + depth) of B: row p of B begins at `to`, the
// next panel k rows behind. Of narrow panels few rows at a time: that is how memory brings them.
struct GemmPackPanels {
  const GemmOperands& g;
  std::int64_t p, depth, first, columns;
  float* to;

  template <class L>
  TINYSCALE_INLINE void run() const {
    constexpr std::int64_t wide = L::width * L::vectors;
    constexpr std::int64_t rows = gemm_is_narrow(wide) ? 4 : GemmPack::strip;
    for (std::int64_t q = 0; q < depth; q += rows) {
      const std::int64_t some = std::min(rows, depth - q);
      for (std::int64_t j = 0; j < columns; j += wide) {
        const GemmPack one{g, p + q, some, first + j, wide, wide, to + j * g.k + q * wide};
        for (std::int64_t r = 0; r < some; ++r) {
          one.copy_row<L>(g.b + (p + q + r) * g.b_row + first + j, one.to + r * wide);
        }
      }
    }
  }
};

// Copies A, stored transposed, to [tile][k][rows of a tile]: k in [begin, end).
struct GemmPackRows {
  const GemmOperands& g;
  std::int64_t begin, end;
  float* to;

  template <class L>
  TINYSCALE_INLINE void run() const {
    for (std::int64_t p = begin; p < end; p += 8) {  // rows of A as stored, which stay in L1
      const std::int64_t last = std::min(end, p + 8);
      for (std::int64_t i = 0; i + L::rows <= g.m; i += L::rows) {
        for (std::int64_t q = p; q < last; ++q) {
          std::memcpy(to + i * g.k + q * L::rows, g.a + q * g.a_col + i, L::rows * sizeof(float));
        }
      }
      for (std::int64_t i = g.m / L::rows * L::rows; i < g.m; ++i) {
        for (std::int64_t q = p; q < last; ++q) {
          to[i / L::rows * L::rows * g.k + q * L::rows + i % L::rows] = g.a[q * g.a_col + i];
        }
      }
    }
  }
};

// Packs columns [first, first + columns) of B: full panels (none where packed is null), the edge.
// A task is 16 rows of B as stored, or one panel of a transposed B.
inline void gemm_pack(const GemmOperands& g, std::int64_t first, std::int64_t columns,
                      const TileSize& tile, float* packed, float* edge, bool serial) {
  const bool along = g.b_col == 1;
  const std::int64_t full = columns / tile.wide * tile.wide, left = columns - full;
  const std::int64_t strip = along ? 16 : g.k;
  const std::int64_t tasks = along ? (g.k + strip - 1) / strip : full / tile.wide + 1;
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t x = begin; x < end; ++x) {
      const std::int64_t p = along ? x * strip : 0, depth = std::min(strip, g.k - p);
      if (along && packed != nullptr) {
        run_on_lanes(GemmPackPanels{g, p, depth, first, full, packed + p * tile.wide});
      } else if (packed != nullptr && x * tile.wide < full) {
        const std::int64_t j = x * tile.wide;
        run_on_lanes(GemmPack{g, 0, g.k, first + j, tile.wide, tile.wide, packed + j * g.k});
      }
      if (left > 0 && (along || x + 1 == tasks)) {
        const std::int64_t wide = tile.rounded(left);
        run_on_lanes(GemmPack{g, p, depth, first + full, left, wide, edge + p * wide});
      }
    }
  };
  if (packed == nullptr && left == 0) {
    return;
  }
  if (serial) {
    body(0, tasks);
  } else {
    parallel_for(tasks, 1, body);
  }
}

// k of one pass over C: equal parts of at most so many that a panel of B stays in L2, or several
// narrow ones do; of few rows of A less, so that long rows of B are packed along their memory.
// Never by the columns of C, which callers deal out to threads.
inline std::int64_t gemm_pass_depth(std::int64_t m, std::int64_t k, std::int64_t wide) {
  if (!gemm_is_narrow(wide) || m > gemm_rows || k <= 512) {
    const std::int64_t most = gemm_is_narrow(wide) ? 512 : 1024, passes = (k + most - 1) / most;
    return ((k + passes - 1) / passes + 7) / 8 * 8;
  }
  return 64;
}

// A large A stored transposed, whose columns in lines do not stay in the first cache.
inline bool gemm_packs_rows(const GemmOperands& g, const TileSize& tile) {
  const bool short_columns = gemm_copies_panels(tile.width) && g.k <= 512;  // they do
  return g.a_row == 1 && g.a_col != 1 && g.a_tile == 0 && g.n >= 128 && g.m * g.k > 1 << 17 &&
         !short_columns;
}

// The operands with A packed in to[(m + rows of a tile) * k].
inline GemmOperands gemm_pack_rows(const GemmOperands& g, const TileSize& tile, float* to) {
  parallel_for(g.k, 32, [&](std::int64_t begin, std::int64_t end) {
    run_on_lanes(GemmPackRows{g, begin, end, to});
  });
  GemmOperands packed = g;
  packed.a = to;
  packed.a_col = tile.rows;
  packed.a_tile = g.k;
  return packed;
}

}  // namespace detail
}  // namespace tinyscale
