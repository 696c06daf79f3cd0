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

constexpr std::int64_t gemm_depth = 512;           // most k of one pass: a panel of B stays in L2
constexpr std::int64_t gemm_rows = 96;             // most rows of one task
constexpr std::int64_t gemm_packed = 1 << 20;      // floats of B packed at once: 4 MB
constexpr std::int64_t gemm_in_place = 72 * 1024;  // floats of B read where they stand: 288 KB
constexpr std::int64_t gemm_few = 64;              // rows of A up to which B is packed by strips
constexpr std::int64_t gemm_strip = 64;            // k of a panel packed just before it is used

// Where the panels of B are read from: [k][wide] each, or in place where packed is null.
struct GemmPanels {
  std::int64_t first, columns;  // of C, in this pass
  const float* packed;
  const float* edge;   // the last, narrower panel, padded with zeros; packed like the others
  std::int64_t depth;  // k of one pass over C
};

// Copies columns [j, j + valid) of rows [p, p + depth) of B to to[depth][wide], zeros behind them.
struct GemmPack {
  const GemmOperands& g;
  std::int64_t p, depth, j, valid, wide;
  float* to;

  template <class L>
  TINYSCALE_INLINE void run() const {
    constexpr std::int64_t strip = 16;
    for (std::int64_t q = 0; q < depth; q += strip) {
      const std::int64_t rows = depth - q < strip ? depth - q : strip;
      if (g.b_col == 1) {
        for (std::int64_t r = 0; r < rows; ++r) {
          copy_row<L>(g.b + (p + q + r) * g.b_row + j, to + (q + r) * wide);
        }
        continue;
      }
      for (std::int64_t x = 0; x < wide; ++x) {
        const float* from = g.b + (j + x) * g.b_col + (p + q) * g.b_row;
        for (std::int64_t r = 0; r < rows && x < valid; ++r) {
          to[(q + r) * wide + x] = from[r * g.b_row];
        }
        for (std::int64_t r = 0; r < rows && x >= valid; ++r) {
          to[(q + r) * wide + x] = 0.0f;
        }
      }
    }
  }

  template <class L>
  TINYSCALE_INLINE void copy_row(const float* from, float* row) const {
    const std::int64_t whole = valid, all = wide;
    std::int64_t x = 0;
    typename L::V v;
    for (; x + L::width <= whole; x += L::width) {
      load<L>(from + x, v);
      store<L>(row + x, v);
    }
    for (; x < all; ++x) {
      row[x] = x < whole ? from[x] : 0.0f;
    }
  }
};

// Rows [begin, end) of C, columns of one pass.
struct GemmBlock {
  const GemmOperands& g;
  const GemmPanels& panels;
  std::int64_t begin, end;  // rows
  float* strip;             // null, or [depth][wide]: panels in place are copied here, then used

  template <class L>
  TINYSCALE_INLINE void run() const {
    constexpr std::int64_t wide = L::width * L::vectors;
    const std::int64_t columns = panels.columns, full = columns / wide * wide;
    for (std::int64_t p = 0; p < g.k; p += panels.depth) {
      const std::int64_t depth = std::min(panels.depth, g.k - p);
      for (std::int64_t j = 0; j < full; j += wide) {
        const float* b = panels.packed + j * g.k + p * wide;
        const float* ahead = b + depth * wide;
        std::int64_t row = wide;
        if (panels.packed == nullptr) {
          b = g.b + p * g.b_row + panels.first + j;
          ahead = p + 2 * depth <= g.k ? b + depth * g.b_row : b;
          row = g.b_row;
        }
        if (strip != nullptr) {
          call_on_lanes<L>(GemmPack{g, p, depth, panels.first + j, wide, wide, strip});
          b = strip;
        }
        panel<L, L::vectors>(p, depth, b, strip == nullptr ? row : wide, j, wide, ahead, row);
      }
      std::int64_t j = full;
      const std::int64_t step = (columns - full + L::width - 1) / L::width * L::width;
      const float* b = panels.edge + p * step;  // rows of `step` floats
      if constexpr (L::vectors > 2) {
        for (; columns - j > L::width; j += 2 * L::width, b += 2 * L::width) {
          const std::int64_t valid = std::min<std::int64_t>(2 * L::width, columns - j);
          panel<L, 2>(p, depth, b, step, j, valid, b, 0);
        }
      }
      for (; j < columns; j += L::width, b += L::width) {
        panel<L, 1>(p, depth, b, step, j, std::min<std::int64_t>(L::width, columns - j), b, 0);
      }
    }
  }

  // Writes through a small copy where the panel is wider than what is left of C.
  template <class L, int VECTORS>
  TINYSCALE_INLINE void panel(std::int64_t p, std::int64_t depth, const float* b,
                              std::int64_t b_row, std::int64_t j, std::int64_t valid,
                              const float* ahead, std::int64_t ahead_row) const {
    constexpr std::int64_t wide = L::width * VECTORS;
    const std::int64_t m = end - begin;
    const std::int64_t gap = m <= L::rows ? 32 : m > 3 * L::rows ? 0 : 16;
    float* c = g.c + begin * g.ldc + panels.first + j;
    const float beta = p == 0 ? g.beta : 1.0f;
    PanelWork w{m, depth, g.a + begin * g.a_row + p * g.a_col, g.a_row, g.a_col, b,  b_row,
                c, g.ldc, beta, ahead, ahead_row, gap};
    if (valid == wide) {
      call_on_lanes<L>(GemmPanel<L, VECTORS>{w});
    } else {
      float copy[static_cast<std::size_t>(gemm_rows * wide)];
      w.c = copy;
      w.ldc = wide;
      w.beta = 0.0f;
      call_on_lanes<L>(GemmPanel<L, VECTORS>{w});
      for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t x = 0; x < valid; ++x) {
          const float old = beta == 0.0f ? 0.0f : c[i * g.ldc + x];
          c[i * g.ldc + x] = copy[i * wide + x] + old;
        }
      }
    }
    if (g.finish != nullptr && p + depth == g.k) {
      g.finish(g, begin, m, panels.first + j, valid);
    }
  }
};

struct TileSize {
  std::int64_t width = 0, wide = 0;
  std::int64_t rounded(std::int64_t columns) const { return (columns + width - 1) / width * width; }
};

struct TileQuery {  // asks the active path for its tile
  TileSize* size;
  template <class L>
  TINYSCALE_INLINE void run() const {
    size->width = L::width;
    size->wide = L::width * L::vectors;
  }
};

// Packs columns [first, first + columns) of B: full panels (none where packed is null), the edge.
inline void gemm_pack(const GemmOperands& g, std::int64_t first, std::int64_t columns,
                      const TileSize& tile, float* packed, float* edge, bool serial) {
  const std::int64_t full = columns / tile.wide * tile.wide;
  const std::int64_t strip = g.b_col == 1 ? 16 : g.k;  // rows of B are read along
  const std::int64_t strips = (g.k + strip - 1) / strip, panels = full / tile.wide + 1;
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t x = begin; x < end; ++x) {
      const std::int64_t p = x / panels * strip, j = x % panels * tile.wide;
      const std::int64_t depth = std::min(strip, g.k - p);
      if (j < full && packed != nullptr) {
        run_on_lanes(GemmPack{g, p, depth, first + j, tile.wide, tile.wide,
                              packed + j * g.k + p * tile.wide});
      } else if (j == full && j < columns) {
        const std::int64_t wide = tile.rounded(columns - full);
        run_on_lanes(GemmPack{g, p, depth, first + full, columns - full, wide, edge + p * wide});
      }
    }
  };
  if (serial) {
    body(0, strips * panels);
  } else {
    parallel_for(strips * panels, g.b_col == 1 ? panels : 1, body);
  }
}

// k of one pass over C: equal parts of at most gemm_depth.
inline std::int64_t gemm_pass_depth(std::int64_t k) {
  const std::int64_t passes = (k + gemm_depth - 1) / gemm_depth;
  return ((k + passes - 1) / passes + 7) / 8 * 8;
}

// Rows of a task: about an eighth of A, in multiples of every tile's rows.
inline void gemm_blocks(const GemmOperands& g, const GemmPanels& panels, bool serial) {
  const std::int64_t tall = std::min(gemm_rows, std::max<std::int64_t>(24, g.m / 96 * 12));
  const std::int64_t blocks = (g.m + tall - 1) / tall;
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t x = begin; x < end; ++x) {
      run_on_lanes(GemmBlock{g, panels, x * tall, std::min(g.m, (x + 1) * tall), nullptr});
    }
  };
  if (serial) {
    body(0, blocks);
  } else {
    parallel_for(blocks, 1, body);
  }
}

// Multiply-adds that take about 5 microseconds, less than waking a thread pays.
inline bool gemm_is_small(const GemmOperands& g) { return g.m * g.n * g.k < (1 << 18); }

// One pass: columns [first, first + columns) of C, packing first.
inline void gemm_pass(const GemmOperands& g, std::int64_t first, std::int64_t columns,
                      const TileSize& tile) {
  const std::int64_t full = columns / tile.wide * tile.wide;
  const bool in_place = g.b_col == 1 && g.n * g.k <= gemm_in_place;
  const bool small = gemm_is_small(g);
  const Scratch lease(((in_place ? 0 : full) + tile.rounded(columns - full)) * g.k);
  float* const packed = in_place ? nullptr : lease.data();
  float* const edge = lease.data() + (in_place ? 0 : full * g.k);
  gemm_pack(g, first, columns, tile, packed, edge, small);
  gemm_blocks(g, {first, columns, packed, edge, gemm_pass_depth(g.k)}, small);
}

// Short A, B as stored: chunks of columns; each panel of 64 rows is copied just before its use,
// while the next 64 rows come from memory.
inline bool gemm_few_rows(const GemmOperands& g, const TileSize& tile) {
  if (g.m <= GemmStream::rows || g.m > gemm_few || g.b_col != 1 || g.n * g.k <= gemm_in_place) {
    return false;
  }
  const std::int64_t chunk = 512;
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    const Scratch lease(tile.wide * (g.k + gemm_strip));
    float* const strip = lease.data() + tile.wide * g.k;
    for (std::int64_t x = begin; x < end; ++x) {
      const std::int64_t first = x * chunk, columns = std::min(chunk, g.n - first);
      gemm_pack(g, first, columns, tile, nullptr, lease.data(), true);
      const GemmPanels panels{first, columns, nullptr, lease.data(), gemm_strip};
      run_on_lanes(GemmBlock{g, panels, 0, g.m, strip});
    }
  };
  parallel_for((g.n + chunk - 1) / chunk, 1, body);
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
  detail::TileSize tile;
  detail::run_on_lanes(detail::TileQuery{&tile});
  if (detail::gemm_few_rows(g, tile) || detail::gemm_skinny(g, tile.width)) {
    return;
  }
  const std::int64_t fit = std::max<std::int64_t>(detail::gemm_packed / k / tile.wide, 1);
  for (std::int64_t j = 0; j < n; j += fit * tile.wide) {
    detail::gemm_pass(g, j, std::min(fit * tile.wide, n - j), tile);
  }
}

}  // namespace kernel
}  // namespace tinyscale
