#pragma once
// Matrix product: C[M, N] = A[M, K] B[K, N] + beta C; 2 M K N flops.
// Three ideas make it fast. A tile of C (6 x 64 with AVX-512) stays in registers while k runs.
// B is copied into panels one tile wide only when that pays: it is large, or transposed. As many
// panels as half of L2 holds are copied at once, and C is walked along its rows over them. With
// AVX-512 up to 96 rows, and on AMD any number, copy each panel with the first tile of C, while
// that multiplies. Short A (decode; up to 64 rows of a large B) reads B where it
// stands: in streams, then in tiles.
// Each element of C adds its products in an order that the number of threads cannot change.
// Goto and van de Geijn, Anatomy of High-Performance Matrix Multiplication (2008).

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/gemm_check.hpp"
#include "tinyscale/compute/gemm_pack.hpp"
#include "tinyscale/compute/gemm_short.hpp"
#include "tinyscale/compute/gemm_tile.hpp"
#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/compute/scratch.hpp"
#include "tinyscale/compute/transpose.hpp"

namespace tinyscale {
namespace kernels {

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

}  // namespace kernels

namespace detail {

constexpr std::int64_t gemm_copied = 96;  // most rows for which panels are copied one by one

// Where the panels of B are read from: [k][wide] each, or in place where packed is null.
struct GemmPanels {
  std::int64_t first, columns;  // of C, in this pass
  const float* packed;
  const float* edge;      // the last, narrower panel, padded with zeros; packed like the others
  std::int64_t edge_row;  // from row to row of it
  std::int64_t depth;     // k of one pass over C
  bool copied = false;    // each block copies the panels of B, one at a time
  bool walked = false;    // C along its rows, over as many packed panels as fit the cache
  bool together = false;  // all rows of C by one task, for which a panel comes from memory once
};

// Columns of packed panels that C is walked along: half of the second cache, of narrow panels three
// quarters, at most 1 MB.
inline std::int64_t gemm_walk(std::int64_t depth, std::int64_t wide) {
  const std::int64_t l2 = cpu().l2_bytes / 16;
  const std::int64_t floats =
      std::min<std::int64_t>(1 << 18, gemm_is_narrow(wide) ? 3 * l2 : 2 * l2);
  return std::max<std::int64_t>(1, floats / depth / wide) * wide;
}

// Rows [begin, end) of C, columns of one pass.
struct GemmBlock {
  const GemmOperands& g;
  const GemmPanels& panels;
  std::int64_t begin, end;  // rows

  template <class L>
  TINYSCALE_INLINE void run() const {
    constexpr std::int64_t wide = L::width * L::vectors;
    const std::int64_t columns = panels.columns, full = columns / wide * wide;
    const Scratch copy(panels.copied ? panels.depth * wide : 0);
    for (std::int64_t p = 0; p < g.k; p += panels.depth) {
      const std::int64_t depth = std::min(panels.depth, g.k - p);
      for (std::int64_t j = 0; j < full; j += wide) {
        if constexpr (!gemm_is_narrow(wide)) {
          if (panels.copied) {
            copied<L>(p, depth, j, copy.data());
            continue;
          }
        }
        if (panels.walked) {
          const std::int64_t some = std::min(full - j, gemm_walk(depth, wide));
          PanelWork w{end - begin,
                      depth,
                      g.a_at(begin, p),
                      g.a_row,
                      g.a_col,
                      panels.packed + j * g.k + p * wide,
                      wide,
                      g.c + begin * g.ldc + panels.first + j,
                      g.ldc,
                      old(p, begin, j),
                      ld_old(),
                      nullptr,
                      0,
                      g.a_tile};
          call_on_lanes<L>(GemmWalk<L>{w, some / wide, g.k * wide});
          finish(p, depth, begin, end - begin, j, some);
          j += some - wide;
          continue;
        }
        const bool stands = panels.packed == nullptr;
        const std::int64_t row = stands ? g.b_row : wide;
        const float* b =
            stands ? g.b + p * row + panels.first + j : panels.packed + j * g.k + p * wide;
        const std::int64_t reach = 8;
        const bool last = stands ? p + depth + reach > g.k : j + wide >= full;
        const float* ahead = b + (last ? 0 : stands ? reach * row : g.k * wide);
        panel<L, L::vectors>(p, depth, b, row, j, wide, ahead, row);
      }
      std::int64_t j = full;
      const std::int64_t step = panels.edge_row;
      const float* b = panels.edge + p * step;
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

  // One full panel, which is copied: by its first tile, or before where B is transposed. Then the
  // tiles fetch the next rows of A.
  template <class L>
  TINYSCALE_INLINE void copied(std::int64_t p, std::int64_t depth, std::int64_t j,
                               float* copy) const {
    constexpr std::int64_t wide = L::width * L::vectors;
    std::int64_t done = 0;
    if (g.b_col == 1) {
      done = std::min<std::int64_t>(L::rows, end - begin);
      const float* b = g.b + p * g.b_row + panels.first + j;
      float* c = g.c + begin * g.ldc + panels.first + j;
      PanelWork w{done, depth, g.a_at(begin, p), g.a_row,  g.a_col, b, g.b_row,
                  c,    g.ldc, old(p, begin, j), ld_old(), b,       0};
      w.copy = copy;
      call_on_lanes<L>(GemmFirst<L>{w});
      finish(p, depth, begin, done, j, wide);
    } else {
      call_on_lanes<L>(GemmPack{g, p, depth, panels.first + j, wide, wide, copy});
    }
    const GemmBlock rest{g, panels, begin + done, end};
    const std::int64_t tile = g.a_at(L::rows, 0) - g.a;
    const bool along = g.a_col == 1 || g.a_tile != 0;
    rest.panel<L, L::vectors>(p, depth, copy, wide, j, wide, along ? g.a_at(begin + done, p) : copy,
                              along ? tile / g.k : 0, along ? tile : 0);
  }

  // What a tile at C(row, panels.first + j) adds to, in the pass from p on.
  const float* old(std::int64_t p, std::int64_t row, std::int64_t j) const {
    const float* const from = g.added != nullptr        ? g.added
                              : p > 0 || g.beta != 0.0f ? g.c
                                                        : nullptr;
    return from == nullptr ? nullptr : from + row * ld_old() + panels.first + j;
  }
  std::int64_t ld_old() const { return g.added == nullptr ? g.ldc : g.ld_added; }

  void finish(std::int64_t p, std::int64_t depth, std::int64_t row, std::int64_t m, std::int64_t j,
              std::int64_t n) const {
    if (g.finish != nullptr && g.added == nullptr && p + depth == g.k) {
      g.finish(g, row, m, panels.first + j, n);
    }
  }

  // Writes through a small copy where the panel is wider than what is left of C.
  template <class L, int VECTORS>
  TINYSCALE_INLINE void panel(std::int64_t p, std::int64_t depth, const float* b,
                              std::int64_t b_row, std::int64_t j, std::int64_t valid,
                              const float* ahead, std::int64_t ahead_row,
                              std::int64_t ahead_tile = 0) const {
    constexpr std::int64_t wide = L::width * VECTORS;
    const std::int64_t m = end - begin;
    float* c = g.c + begin * g.ldc + panels.first + j;
    const float* const from = old(p, begin, j);
    PanelWork w{m,     depth, g.a_at(begin, p), g.a_row, g.a_col,   b,        b_row,     c,
                g.ldc, from,  ld_old(),         ahead,   ahead_row, g.a_tile, ahead_tile};
    if (valid == wide) {
      call_on_lanes<L>(GemmPanel<L, VECTORS>{w});
    } else {
      float copy[static_cast<std::size_t>(gemm_rows * wide)];
      w.c = copy;
      w.ldc = wide;
      w.old = nullptr;
      for (std::int64_t i = 0; i < m; ++i) {
        const std::int64_t row = i % gemm_rows;
        if (row == 0) {
          w.m = std::min(gemm_rows, m - i);
          call_on_lanes<L>(GemmPanel<L, VECTORS>{w});
          w.a = g.a_at(begin + i + gemm_rows, p);
        }
        for (std::int64_t x = 0; x < valid; ++x) {
          c[i * g.ldc + x] =
              copy[row * wide + x] + (from == nullptr ? 0.0f : from[i * ld_old() + x]);
        }
      }
    }
    finish(p, depth, begin, m, j, valid);
  }
};

// Tasks: about an eighth of the rows, in multiples of every tile's; of short A, or rows together,
// some columns instead, so that B is read once; of copied panels 64 columns, and fewer rows until
// every thread has four.
inline void gemm_blocks(const GemmOperands& g, const GemmPanels& all, bool serial) {
  std::int64_t tall = std::min(gemm_rows, std::max<std::int64_t>(24, g.m / 96 * 12));
  std::int64_t chunk = all.columns;
  const bool alone = serial || thread_count() == 1;
  const bool together = all.copied || all.together;
  if (together || g.m <= gemm_rows) {
    tall = g.m;
    if (!alone) {  // multiples of every panel's width
      const std::int64_t share = all.columns / (2 * thread_count()) / 64 * 64;
      chunk = all.copied ? 64 : std::clamp<std::int64_t>(share, 64, 256);
    }
  }
  const std::int64_t parts = (all.columns + chunk - 1) / chunk;
  while (together && !alone && tall >= 2 * gemm_rows &&
         (g.m + tall - 1) / tall * parts < 4 * thread_count()) {
    tall = (tall / 2 + 11) / 12 * 12;
  }
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t x = begin; x < end; ++x) {
      const std::int64_t row = x / parts * tall, column = x % parts * chunk;
      GemmPanels part = all;
      part.first += column;
      part.columns = std::min(chunk, all.columns - column);
      part.packed = all.packed == nullptr ? nullptr : all.packed + column * g.k;
      run_on_lanes(GemmBlock{g, part, row, std::min(g.m, row + tall)});
    }
  };
  const std::int64_t tasks = (g.m + tall - 1) / tall * parts;
  if (serial) {
    body(0, tasks);
  } else {
    parallel_for(tasks, 1, body);
  }
}

// Multiply-adds that take about 5 microseconds, less than waking a thread pays.
inline bool gemm_is_small(const GemmOperands& g) { return g.m * g.n * g.k < (1 << 18); }

// B is read in place, but for a narrower last panel, or copied by each block panel by panel.
inline void gemm_standing(const GemmOperands& g, const TileSize& tile, bool copied) {
  const std::int64_t full = g.n / tile.wide * tile.wide, left = tile.rounded(g.n - full);
  const bool small = gemm_is_small(g);
  GemmPanels panels{0, g.n, nullptr, nullptr, left, gemm_pass_depth(g.m, g.k, tile.wide), copied};
  if (left == 0 || (left == g.n - full && g.b_col == 1)) {
    panels.edge = g.b + (left == 0 ? 0 : full);
    panels.edge_row = g.b_row;
    gemm_blocks(g, panels, small);
    return;
  }
  const Scratch edge(left * g.k);
  gemm_pack(g, 0, g.n, tile, nullptr, edge.data(), small);
  panels.edge = edge.data();
  gemm_blocks(g, panels, small);
}

// Rows [row, row_end), columns [j, j + columns) of C: for each pass of k packs those of B, which
// stay in the second cache while C is walked along its rows.
inline void gemm_walked_part(const GemmOperands& g, const TileSize& tile, std::int64_t row,
                             std::int64_t row_end, std::int64_t j, std::int64_t columns) {
  const std::int64_t most = gemm_pass_depth(g.m, g.k, tile.wide),
                     full = columns / tile.wide * tile.wide;
  const std::int64_t left = tile.rounded(columns - full);
  const Scratch lease(std::min(most, g.k) * (full + left));
  for (std::int64_t p = 0; p < g.k; p += most) {
    GemmOperands part = g;
    part.k = std::min(most, g.k - p);
    part.a = g.a_at(0, p);
    part.b = g.b + p * g.b_row;
    part.beta = p == 0 ? g.beta : 1.0f;
    part.finish = p + part.k == g.k ? g.finish : nullptr;
    float* const edge = lease.data() + full * part.k;
    gemm_pack(part, j, columns, tile, lease.data(), edge, true);
    const GemmPanels panels{j, columns, lease.data(), edge, left, part.k, false, true};
    for (std::int64_t i = row; i < row_end; i += gemm_rows) {
      run_on_lanes(GemmBlock{part, panels, i, std::min(row_end, i + gemm_rows)});
    }
  }
}

// Each task has its own columns of B, so that threads wait for each other only at the end: narrower
// ones, and then fewer rows, until there are four for each thread.
inline void gemm_walked(const GemmOperands& g, const TileSize& tile) {
  std::int64_t wide = gemm_walk(gemm_pass_depth(g.m, g.k, tile.wide), tile.wide), tall = g.m;
  const bool serial = gemm_is_small(g) || thread_count() == 1;
  const auto parts = [&] { return (g.n + wide - 1) / wide; };
  while (!serial && wide > 64 && parts() < 4 * thread_count()) {
    wide = (wide / 2 + tile.wide - 1) / tile.wide * tile.wide;
  }
  while (!serial && tall > 2 * gemm_rows &&
         (g.m + tall - 1) / tall * parts() < 4 * thread_count()) {
    tall = (tall / 2 + 11) / 12 * 12;
  }
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t x = begin; x < end; ++x) {
      const std::int64_t row = x / parts() * tall, j = x % parts() * wide;
      gemm_walked_part(g, tile, row, std::min(g.m, row + tall), j, std::min(wide, g.n - j));
    }
  };
  const std::int64_t tasks = (g.m + tall - 1) / tall * parts();
  if (serial) {
    body(0, tasks);
  } else {
    parallel_for(tasks, 1, body);
  }
}

// B is read in place: few rows of A, or a small B, which narrow panels would read from few places
// of the first cache.
inline bool gemm_stands(const GemmOperands& g, const TileSize& tile) {
  const std::int64_t size = g.n * g.k;
  if (g.b_col != 1) {
    return false;
  }
  if (gemm_is_narrow(tile.wide)) {  // measured
    return size <= (g.m <= tile.rows ? 1 << 20 : g.m <= 4 * tile.rows ? 1 << 16 : 100 * 100);
  }
  const bool copies = gemm_copies_panels(tile.width) && g.m > gemm_copied;
  return g.m <= 18 || (size <= gemm_in_place && !copies);
}

// The product in tiles of registers; k > 0.
inline void gemm_tiled(const GemmOperands& g, const TileSize& tile) {
  if (gemm_packs_rows(g, tile)) {
    const Scratch lease((g.m + tile.rows) * g.k);
    gemm_tiled(gemm_pack_rows(g, tile, lease.data()), tile);
  } else if (gemm_stands(g, tile)) {
    gemm_standing(g, tile, false);
  } else if (!gemm_is_narrow(tile.wide) && (gemm_copies_panels(tile.width) || g.m <= gemm_copied)) {
    gemm_standing(g, tile, true);
  } else {
    gemm_walked(g, tile);
  }
}

// The product that the operands describe; m, n > 0.
inline void gemm_run(const GemmOperands& g) {
  if (g.k <= 0) {
    for (std::int64_t i = 0; i < g.m && g.beta == 0.0f; ++i) {
      std::fill(g.c + i * g.ldc, g.c + i * g.ldc + g.n, 0.0f);
    }
    if (g.finish != nullptr) {
      g.finish(g, 0, g.m, 0, g.n);
    }
    return;
  }
  if (g.n == 1 && g.b_row == 1 && g.b_col == 1 && g.k > 1 && g.m <= gemm_dots) {
    GemmOperands column = g;  // which is also a row of a transposed B
    column.b_col = g.k;
    gemm_run(column);
    return;
  }
  const TileSize tile = tile_size();
  if (gemm_streams(g, tile.width)) {
    gemm_few_rows(g, tile.width);
  } else if (!gemm_skinny(g)) {
    gemm_tiled(g, tile);
  }
}

}  // namespace detail

namespace kernels {

// C = op(A) op(B) + beta C. beta is 0 (C is not read) or 1. C must not overlap A or B.
inline void gemm(Trans ta, Trans tb, std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
                 std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c,
                 std::int64_t ldc) {
  const detail::GemmOperands g =
      detail::gemm_operands(ta, tb, m, n, k, a, lda, b, ldb, beta, c, ldc);
  if (detail::gemm_check("gemm", ta, tb, g, lda, ldb)) {
    detail::gemm_run(g);
  }
}

}  // namespace kernels
}  // namespace tinyscale
