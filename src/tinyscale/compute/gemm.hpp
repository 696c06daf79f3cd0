#pragma once
// Matrix product: C[M, N] = A[M, K] B[K, N] + beta C; 2 M K N flops.
// Three ideas make it fast. A tile of C (6 x 64 with AVX-512) stays in registers while k runs.
// B is copied into panels one tile wide only when that pays: it is large, or transposed.
// Short A (decode) reads B where it stands: up to 3 rows in streams, then in tiles.
// Each element of C adds its products in an order that the number of threads cannot change.
// Goto and van de Geijn, Anatomy of High-Performance Matrix Multiplication (2008).

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/gemm_short.hpp"
#include "tinyscale/compute/gemm_tile.hpp"
#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/compute/scratch.hpp"

namespace tinyscale {
namespace kernel {

enum class Trans { no, yes };  // yes: the matrix is stored transposed

// The reference body. A is lda floats from row to row as stored; so are B and C.
inline void gemm_reference(Trans ta, Trans tb, std::int64_t m, std::int64_t n, std::int64_t k,
                           const float* a, std::int64_t lda, const float* b, std::int64_t ldb,
                           float beta, float* c, std::int64_t ldc) {
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0.0;
      for (std::int64_t p = 0; p < k; ++p) {
        const float x = ta == Trans::no ? a[i * lda + p] : a[p * lda + i];
        const float y = tb == Trans::no ? b[p * ldb + j] : b[j * ldb + p];
        sum += static_cast<double>(x) * static_cast<double>(y);
      }
      const float old = beta == 0.0f ? 0.0f : beta * c[i * ldc + j];
      c[i * ldc + j] = static_cast<float>(sum) + old;
    }
  }
}

}  // namespace kernel

namespace detail {

constexpr std::int64_t gemm_depth = 256;           // k of one pass: a panel of B stays in L2
constexpr std::int64_t gemm_rows = 96;             // most rows of one task
constexpr std::int64_t gemm_packed = 1 << 20;      // floats of B packed at once: 4 MB
constexpr std::int64_t gemm_in_place = 72 * 1024;  // floats of B read where they stand: 288 KB

// Rows [begin, end) of C, columns of one pass over packed (or in-place) panels.
struct GemmBlock {
  const GemmOperands& g;
  std::int64_t begin, end, first, columns;  // rows; first column and number of columns of the pass
  const float* packed;                      // null: every full panel is read in place
  const float* edge;                        // the last, narrower panel, padded with zeros

  template <class L>
  TINYSCALE_INLINE void run() const {
    constexpr std::int64_t wide = L::width * L::vectors;
    const std::int64_t full = columns / wide * wide;
    for (std::int64_t p = 0; p < g.k; p += gemm_depth) {
      const std::int64_t depth = std::min(gemm_depth, g.k - p);
      const float beta = p == 0 ? g.beta : 1.0f;
      for (std::int64_t j = 0; j < full; j += wide) {
        const float* b =
            packed == nullptr ? g.b + p * g.b_row + first + j : packed + j * g.k + p * wide;
        panel<L, L::vectors>(p, depth, b, packed == nullptr ? g.b_row : wide, j, wide, beta);
      }
      std::int64_t j = full;
      const std::int64_t step = (columns - full + L::width - 1) / L::width * L::width;
      const float* b = edge + p * step;  // rows of `step` floats
      if constexpr (L::vectors > 2) {
        for (; columns - j > L::width; j += 2 * L::width, b += 2 * L::width) {
          const std::int64_t valid = std::min<std::int64_t>(2 * L::width, columns - j);
          panel<L, 2>(p, depth, b, step, j, valid, beta);
        }
      }
      for (; j < columns; j += L::width, b += L::width) {
        panel<L, 1>(p, depth, b, step, j, std::min<std::int64_t>(L::width, columns - j), beta);
      }
    }
  }

  // Writes through a small copy where the panel is wider than what is left of C.
  template <class L, int VECTORS>
  TINYSCALE_INLINE void panel(std::int64_t p, std::int64_t depth, const float* b,
                              std::int64_t b_row, std::int64_t j, std::int64_t valid,
                              float beta) const {
    constexpr std::int64_t wide = L::width * VECTORS;
    const float* a = g.a + begin * g.a_row + p * g.a_col;
    float* c = g.c + begin * g.ldc + first + j;
    const std::int64_t m = end - begin;
    if (valid == wide) {
      call_on_lanes<L>(
          GemmPanel<L, VECTORS>{m, depth, a, g.a_row, g.a_col, b, b_row, c, g.ldc, beta});
      return;
    }
    float copy[static_cast<std::size_t>(gemm_rows * wide)];
    call_on_lanes<L>(
        GemmPanel<L, VECTORS>{m, depth, a, g.a_row, g.a_col, b, b_row, copy, wide, 0.0f});
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t x = 0; x < valid; ++x) {
        const float old = beta == 0.0f ? 0.0f : beta * c[i * g.ldc + x];
        c[i * g.ldc + x] = copy[i * wide + x] + old;
      }
    }
  }
};

// Copies columns [j, j + valid) of B to to[k][wide], zeros after the valid ones.
struct GemmPack {
  const GemmOperands& g;
  std::int64_t j, valid, wide;
  float* to;

  template <class L>
  TINYSCALE_INLINE void run() const {
    constexpr std::int64_t strip = 16;
    for (std::int64_t p = 0; p < g.k; p += strip) {
      const std::int64_t depth = std::min(strip, g.k - p);
      if (g.b_col == 1) {
        for (std::int64_t r = 0; r < depth; ++r) {
          copy_row<L>(g.b + (p + r) * g.b_row + j, to + (p + r) * wide);
        }
        continue;
      }
      for (std::int64_t x = 0; x < wide; ++x) {
        const float* from = g.b + (j + x) * g.b_col + p * g.b_row;
        for (std::int64_t r = 0; r < depth && x < valid; ++r) {
          to[(p + r) * wide + x] = from[r * g.b_row];
        }
        for (std::int64_t r = 0; r < depth && x >= valid; ++r) {
          to[(p + r) * wide + x] = 0.0f;
        }
      }
    }
  }

  template <class L>
  TINYSCALE_INLINE void copy_row(const float* from, float* row) const {
    std::int64_t x = 0;
    typename L::V v;
    for (; x + L::width <= valid; x += L::width) {
      load<L>(from + x, v);
      store<L>(row + x, v);
    }
    for (; x < wide; ++x) {
      row[x] = x < valid ? from[x] : 0.0f;
    }
  }
};

struct TileSize {
  std::int64_t width = 0, wide = 0;
};

struct TileQuery {  // asks the active path for its tile
  TileSize* size;
  template <class L>
  TINYSCALE_INLINE void run() const {
    size->width = L::width;
    size->wide = L::width * L::vectors;
  }
};

inline TileSize tile_size() {
  TileSize size;
  run_on_lanes(TileQuery{&size});
  return size;
}

// One pass: columns [first, first + columns) of C, packing first.
inline void gemm_pass(const GemmOperands& g, std::int64_t first, std::int64_t columns,
                      const TileSize& tile, std::int64_t work) {
  const std::int64_t full = columns / tile.wide * tile.wide;
  const std::int64_t left = columns - full;
  const std::int64_t edge_wide = (left + tile.width - 1) / tile.width * tile.width;
  const bool in_place = g.b_col == 1 && (g.n * g.k <= gemm_in_place || g.m <= 16);
  const std::int64_t packed_columns = (in_place ? 0 : full) + edge_wide;
  const Scratch packed_lease(packed_columns * g.k);
  float* const packed = packed_lease.data();
  float* edge = packed + (in_place ? 0 : full) * g.k;
  const std::int64_t panels = in_place ? 0 : full / tile.wide;
  const auto pack = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t x = begin; x < end; ++x) {
      if (x < panels) {
        const std::int64_t j = x * tile.wide;
        run_on_lanes(GemmPack{g, first + j, tile.wide, tile.wide, packed + j * g.k});
      } else if (left > 0) {
        run_on_lanes(GemmPack{g, first + full, left, edge_wide, edge});
      }
    }
  };
  // Rows of a task: about an eighth of A, in multiples of every tile's rows.
  const std::int64_t tall = std::min(gemm_rows, std::max<std::int64_t>(24, g.m / 96 * 12));
  const std::int64_t blocks = (g.m + tall - 1) / tall;
  const auto rows = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t x = begin; x < end; ++x) {
      const std::int64_t last = std::min(g.m, (x + 1) * tall);
      run_on_lanes(GemmBlock{g, x * tall, last, first, columns, in_place ? nullptr : packed, edge});
    }
  };
  if (work < (1 << 18)) {  // multiply-adds: about 5 microseconds, less than waking a thread pays
    pack(0, panels + 1);
    rows(0, blocks);
    return;
  }
  parallel_for(panels + 1, 1, pack);
  parallel_for(blocks, 1, rows);
}

// Short A of 4 rows or more: tiles read B where it stands, in chunks of columns.
inline bool gemm_few_rows(const GemmOperands& g, const TileSize& tile) {
  if (g.m < 4 || g.m > gemm_short || g.b_col != 1) {
    return false;
  }
  const std::int64_t chunk = 4 * tile.wide;
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    gemm_pass(g, begin * chunk, std::min(g.n, end * chunk) - begin * chunk, tile, 0);
  };
  const std::int64_t chunks = (g.n + chunk - 1) / chunk;
  if (g.m * g.n * g.k < (1 << 18)) {
    body(0, chunks);
  } else {
    parallel_for(chunks, 1, body);
  }
  return true;
}

}  // namespace detail

namespace kernel {

// C = op(A) op(B) + beta C. beta is 0 (C is not read) or 1. C must not overlap A or B.
inline void gemm(Trans ta, Trans tb, std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
                 std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c,
                 std::int64_t ldc) {
  if (m <= 0 || n <= 0) {
    return;
  }
  if (k <= 0) {
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        c[i * ldc + j] = beta == 0.0f ? 0.0f : beta * c[i * ldc + j];
      }
    }
    return;
  }
  const bool a_no = ta == Trans::no;
  const bool b_no = tb == Trans::no;
  const detail::GemmOperands g{
      m, n, k, a, a_no ? lda : 1, a_no ? 1 : lda, b, b_no ? ldb : 1, b_no ? 1 : ldb, beta, c, ldc};
  const detail::TileSize tile = detail::tile_size();
  if (detail::gemm_few_rows(g, tile) || detail::gemm_skinny(g)) {
    return;
  }
  const std::int64_t fit = std::max<std::int64_t>(detail::gemm_packed / k / tile.wide, 1);
  for (std::int64_t j = 0; j < n; j += fit * tile.wide) {
    detail::gemm_pass(g, j, std::min(fit * tile.wide, n - j), tile, m * n * k);
  }
}

}  // namespace kernel
}  // namespace tinyscale
