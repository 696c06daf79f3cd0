#pragma once
// Matrix product with a short A (decode: one row a sequence): reading B is the whole cost, so B is
// read once, 8 rows at a time: 8 streams fetch from memory about twice as fast as one does.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>  // memset

#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/gemm_tile.hpp"
#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/compute/scratch.hpp"
#include "tinyscale/compute/stored_dots.hpp"

namespace tinyscale {
namespace detail {

constexpr std::int64_t gemm_few = 64;              // rows of A up to which B is read in streams
constexpr std::int64_t gemm_few_packed_rows = 32;  // the same of a packed B

// What a tile fetches while it multiplies: `count` times what is here and `next` behind it.
struct Ahead {
  const float* at;
  std::int64_t next, row, count;
};

// C[ROWS, two vectors] += A[ROWS, deep] B[deep, two vectors], the second `next` behind the first.
// KEEP: copies what it reads of B to `keep`, row after row.
template <class L, int ROWS, int DEPTH, bool KEEP>
TINYSCALE_INLINE void gemm_few_tile(const float* a, std::int64_t deep, const float* b,
                                    std::int64_t b_row, std::int64_t next, float* c,
                                    std::int64_t ldc, const Ahead& ahead,
                                    [[maybe_unused]] float* keep) {
  typename L::V sum[static_cast<std::size_t>(ROWS)][2], right[2], v;
  const std::int64_t quiet = deep - ahead.count;
  const float* fetch = ahead.at;
  TINYSCALE_UNROLL
  for (int x = 0; x < ROWS; ++x) {
    load<L>(c + x * ldc, sum[x][0]);
    load<L>(c + x * ldc + L::width, sum[x][1]);
  }
  for (std::int64_t q = deep; q > 0; --q) {
    load<L>(b, right[0]);
    load<L>(b + next, right[1]);
    if (q > quiet) {
      prefetch(fetch);
      prefetch(fetch + ahead.next);
      fetch += ahead.row;
    }
    if constexpr (KEEP) {
      store<L>(keep, right[0]);
      store<L>(keep + L::width, right[1]);
      keep += 2 * L::width;
    }
    TINYSCALE_UNROLL
    for (int x = 0; x < ROWS; ++x) {
      broadcast<L>(a[x * DEPTH], v);
      sum[x][0] = sum[x][0] + v * right[0];
      sum[x][1] = sum[x][1] + v * right[1];
    }
    b += b_row;
    ++a;
  }
  TINYSCALE_UNROLL
  for (int x = 0; x < ROWS; ++x) {
    store<L>(c + x * ldc, sum[x][0]);
    store<L>(c + x * ldc + L::width, sum[x][1]);
  }
}

// One row of A or a few, B as stored: C[m, begin..end) from 8 rows of B at a time (16 of them for
// more than one row of A, 32 for more than 16), in tiles of two vectors, while the next rows are
// fetched. C adds up in a copy that stays in cache. Vectors of B start where cache lines do; the
// first and the last of a chunk overlap their neighbours.
struct GemmFew {
  const GemmOperands& g;
  const float* a;  // [k / depth][rows][depth], rows 1 (not used) or a multiple of 4
  std::int64_t rows;
  std::int64_t begin, end;  // columns, at least L::width
  std::int64_t origin;      // of the first vector, begin or before it
  float* copy;              // [rows][row]

  static constexpr std::int64_t depth(std::int64_t rows) { return rows > 16 ? 32 : 16; }
  static constexpr std::int64_t row(std::int64_t columns) { return (columns + 63) / 32 * 32 + 16; }

  std::int64_t column(std::int64_t j, std::int64_t width) const {
    return std::max(begin, std::min(origin + j, end - width));
  }

  template <class L>
  TINYSCALE_INLINE void run() const {
    const std::int64_t columns = end - origin, ld = row(columns);
    typename L::V v;
    std::memset(copy, 0, static_cast<std::size_t>(rows * ld) * sizeof(float));
    for (std::int64_t i = 0; i < g.m && g.beta != 0.0f; ++i) {
      for (std::int64_t j = 0; j < columns; j += L::width) {
        load<L>(g.c + i * g.ldc + column(j, L::width), v);
        store<L>(copy + i * ld + j, v);
      }
    }
    std::int64_t p = 0;
    for (; p + 8 <= g.k && rows == 1; p += 8) {
      add_rows<L, 8>(p, columns);
    }
    for (; p < g.k && rows == 1; ++p) {
      add_rows<L, 1>(p, columns);
    }
    if (depth(rows) == 32) {
      blocks<L, 32>(columns, ld);
    } else if (rows > 1) {
      blocks<L, 16>(columns, ld);
    }
    for (std::int64_t i = 0; i < g.m; ++i) {
      for (std::int64_t j = 0; j < columns; j += L::width) {
        load<L>(copy + i * ld + j, v);
        store<L>(g.c + i * g.ldc + column(j, L::width), v);
      }
    }
  }

  // A of one row. The processor sees the streams by itself.
  template <class L, int DEPTH>
  TINYSCALE_INLINE void add_rows(std::int64_t p, std::int64_t columns) const {
    typename L::V left[static_cast<std::size_t>(DEPTH)], sum, v;
    TINYSCALE_UNROLL
    for (int r = 0; r < DEPTH; ++r) {
      broadcast<L>(g.a[(p + r) * g.a_col], left[r]);
    }
    const float* const b = g.b + p * g.b_row;
    const std::int64_t b_row = g.b_row;
    float* const to = copy;
    const std::int64_t low = begin, high = end - L::width, shift = origin;
    for (std::int64_t j = 0; j < columns; j += L::width) {
      const float* from = b + std::max(low, std::min(shift + j, high));
      load<L>(to + j, sum);
      TINYSCALE_UNROLL
      for (int r = 0; r < DEPTH; ++r) {
        load<L>(from + r * b_row, v);
        sum = sum + left[r] * v;
      }
      store<L>(to + j, sum);
    }
  }

  template <class L, int DEPTH>
  TINYSCALE_INLINE void blocks(std::int64_t columns, std::int64_t ld) const {
    alignas(64) float kept[static_cast<std::size_t>(2 * L::width * DEPTH)];
    for (std::int64_t p = 0; p < g.k; p += DEPTH) {
      for (std::int64_t j = 0; j < columns; j += 2 * L::width) {
        std::int64_t i = 0;
        if constexpr (L::width == 16) {
          for (; i + 8 <= rows; i += 8) {
            tile<L, 8, DEPTH>(i, p, j, ld, kept);
          }
        }
        for (; i < rows; i += 4) {
          tile<L, 4, DEPTH>(i, p, j, ld, kept);
        }
      }
    }
  }

  // Up to 16 rows the first tile fetches: the others find the rows in cache. Of more rows the first
  // keeps what it reads of B where the others find it, and each fetches its share.
  template <class L, int ROWS, int DEPTH>
  TINYSCALE_INLINE void tile(std::int64_t i, std::int64_t p, std::int64_t j, std::int64_t ld,
                             float* kept) const {
    const std::int64_t first = column(j, L::width), b_row = g.b_row;
    const std::int64_t next = column(j + L::width, L::width) - first;
    const float* const b = g.b + p * b_row + first;
    const float* const left = a + p * rows + i * DEPTH;
    const std::int64_t deep = std::min<std::int64_t>(DEPTH, g.k - p);
    float* const c = copy + i * ld + j;
    Ahead ahead{b + DEPTH * b_row, next, b_row, p + 2 * DEPTH <= g.k ? DEPTH : 0};
    if constexpr (DEPTH == 16) {
      ahead.count = i == 0 ? ahead.count : 0;
      gemm_few_tile<L, ROWS, DEPTH, false>(left, deep, b, b_row, next, c, ld, ahead, nullptr);
      return;
    }
    ahead.at += i * ahead.count / rows * b_row;
    ahead.count = (ahead.count * ROWS + rows - 1) / rows;
    if (i == 0) {
      gemm_few_tile<L, ROWS, DEPTH, true>(left, deep, b, b_row, next, c, ld, ahead, kept);
    } else {
      gemm_few_tile<L, ROWS, DEPTH, false>(left, deep, kept, 2 * L::width, L::width, c, ld, ahead,
                                           nullptr);
    }
  }
};

// A few rows of A, B packed in panels [k][width of the tile]: panel after panel as they lie in
// memory, in pieces that stay in L1 while the next piece is fetched.
struct GemmStream {
  static constexpr int depth = 32;  // rows of B in a piece
  const GemmOperands& g;
  const float* a;  // [k / depth][rows][depth], rows a multiple of 4
  std::int64_t rows;
  std::int64_t begin, end;  // columns; begin starts a panel
  const float* packed;
  const float* edge;  // the last, narrower panel
  std::int64_t edge_row;

  template <class L>
  TINYSCALE_INLINE void run() const {
    constexpr std::int64_t wide = L::width * L::vectors;
    alignas(64) float copy[static_cast<std::size_t>(gemm_few_packed_rows * wide)];
    for (std::int64_t j = begin; j < end; j += wide) {
      const bool whole = j + wide <= g.n;
      const bool more = j + 2 * wide <= g.n;
      panel<L>(whole ? packed + j * g.k : edge, whole ? wide : edge_row, more, copy);
      const std::int64_t columns = std::min(wide, g.n - j);
      for (std::int64_t i = 0; i < g.m; ++i) {
        float* const c = g.c + i * g.ldc + j;
        for (std::int64_t x = 0; x < columns; ++x) {
          c[x] = g.beta == 0.0f ? copy[i * wide + x] : copy[i * wide + x] + c[x];
        }
      }
      if (g.finish != nullptr) {
        g.finish(g, 0, g.m, j, columns);
      }
    }
  }

  template <class L>
  TINYSCALE_INLINE void panel(const float* b, std::int64_t row, bool more, float* copy) const {
    constexpr std::int64_t wide = L::width * L::vectors, two = 2 * L::width;
    std::memset(copy, 0, static_cast<std::size_t>(rows * wide) * sizeof(float));
    for (std::int64_t p = 0; p < g.k; p += depth, b += depth * row) {
      const std::int64_t deep = std::min<std::int64_t>(depth, g.k - p);
      const bool fetches = p + 2 * depth <= g.k || (more && p + depth >= g.k);
      for (std::int64_t j = 0; j < row; j += two) {
        const std::int64_t next = j + two <= row ? L::width : 0;
        const float* const ahead = fetches ? b + (row + j) * deep : b;
        std::int64_t i = 0;
        if constexpr (L::width == 16) {
          for (; i + 8 <= rows; i += 8) {
            tile<L, 8>(i, p, b + j, row, next, copy + j, ahead, fetches);
          }
        }
        for (; i < rows; i += 4) {
          tile<L, 4>(i, p, b + j, row, next, copy + j, ahead, fetches);
        }
      }
    }
  }

  // Each tile of rows fetches its share, so that memory always works.
  template <class L, int ROWS>
  TINYSCALE_INLINE void tile(std::int64_t i, std::int64_t p, const float* b, std::int64_t row,
                             std::int64_t next, float* copy, const float* ahead,
                             bool fetches) const {
    constexpr std::int64_t wide = L::width * L::vectors;
    const std::int64_t deep = std::min<std::int64_t>(depth, g.k - p),
                       share = 2 * L::width * ROWS / rows;
    const Ahead mine{ahead + i / ROWS * share * deep, share / 2, share, fetches ? deep : 0};
    gemm_few_tile<L, ROWS, depth, false>(a + p * rows + i * depth, deep, b, row, next,
                                         copy + i * wide, wide, mine, nullptr);
  }
};

constexpr std::int64_t gemm_in_cache = 1 << 20;    // floats of B that streams gain nothing for
constexpr std::int64_t gemm_in_l3 = 1 << 23;       // on AMD a larger B comes from memory
constexpr std::int64_t gemm_in_place = 72 * 1024;  // floats of B read where they stand: 288 KB

// Floats from the start of a page of memory to x.
inline std::int64_t page_place(const float* x) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(x) / sizeof(float) % 1024);
}

// A as [k / depth][rows][depth], the first row in the place of rows that are not there.
inline void gemm_pack_few(const GemmOperands& g, std::int64_t rows, std::int64_t depth, float* to) {
  for (std::int64_t p = 0; p < g.k; p += depth) {
    const std::int64_t count = std::min<std::int64_t>(depth, g.k - p);
    for (std::int64_t i = 0; i < rows; ++i, to += depth) {
      const float* from = g.a + (i < g.m ? i : 0) * g.a_row + p * g.a_col;
      for (std::int64_t q = 0; q < count; ++q) {
        to[q] = from[q * g.a_col];
      }
    }
  }
}

// Few rows of A, a large B packed: packed + j * k holds column j's panel, edge the last, narrower
// one.
inline void gemm_few_packed(const GemmOperands& g, const float* packed, const float* edge,
                            std::int64_t edge_row) {
  const std::int64_t rows = (g.m + 3) / 4 * 4, chunk = 256;  // a multiple of every panel's width
  const Scratch left(rows * (g.k + GemmStream::depth));
  gemm_pack_few(g, rows, GemmStream::depth, left.data());
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    run_on_lanes(GemmStream{g, left.data(), rows, begin * chunk, std::min(g.n, end * chunk), packed,
                            edge, edge_row});
  };
  parallel_for((g.n + chunk - 1) / chunk, 1, body);
}

// Columns of a chunk: long rows of B are long streams, as far as C's copy fits the second cache and
// every thread has two.
inline std::int64_t gemm_few_columns(const GemmOperands& g) {
  const std::int64_t most = g.m <= 16 ? 4096 : g.m <= 32 ? 2048 : 1024;
  const std::int64_t parts = thread_count() == 1 ? 1 : 2 * thread_count();
  return std::clamp<std::int64_t>((g.n / parts + 255) / 256 * 256, 256, most);
}

// Where panels of B are copied one by one, but of few rows and a B from memory: measured.
inline bool gemm_copies_panels(std::int64_t width) { return cpu().amd && width >= 16; }

// Few rows of A, B as stored, in chunks of columns; false where another way is better: on AMD
// panels that are copied, unless B comes from memory or its rows fall into the same places of the
// first cache; of shorter vectors panels that are packed, the more if they do.
inline bool gemm_few_rows(const GemmOperands& g, std::int64_t width) {
  const bool same_places = g.b_row % 1024 == 0, copies = gemm_copies_panels(width);
  const bool from_memory = g.n * g.k > gemm_in_l3;
  if (width >= 16 ? copies && g.m > 16 && !same_places && !from_memory
                  : g.m > 16 || (g.m > 1 && same_places)) {
    return false;
  }
  const std::int64_t in_cache = g.m > gemm_few / 2 ? 4 * gemm_in_cache : gemm_in_cache;
  if (g.m > gemm_few || g.b_col != 1 || g.n < width || (g.m > 1 && g.n * g.k <= in_cache)) {
    return false;
  }
  const std::int64_t least = copies && from_memory ? 8 : 4;  // there 4 take longer: measured
  const std::int64_t rows = g.m == 1 ? 1 : std::max(least, (g.m + 3) / 4 * 4);
  const std::int64_t depth = GemmFew::depth(rows);
  const Scratch left(g.m == 1 ? 0 : rows * (g.k + depth));
  if (g.m > 1) {
    gemm_pack_few(g, rows, depth, left.data());
  }
  const std::int64_t chunk = gemm_few_columns(g), shift = page_place(g.b) % 16;
  const std::int64_t chunks = std::max<std::int64_t>(1, (g.n + shift - 17 + chunk) / chunk);
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    const Scratch copy(rows * GemmFew::row(chunk + 16) + 1024);
    for (std::int64_t x = begin; x < end; ++x) {
      const std::int64_t origin = x * chunk - shift, first = std::max<std::int64_t>(0, origin);
      const std::int64_t last = x + 1 == chunks ? g.n : origin + chunk;
      // C's copy at B's place in a page: a store never seems to be what the next loads read.
      const std::int64_t place = (page_place(g.b + first) - page_place(copy.data()) + 1024) % 1024;
      run_on_lanes(GemmFew{g, left.data(), rows, first, last, origin, copy.data() + place});
      if (g.finish != nullptr) {
        g.finish(g, 0, g.m, first, last - first);
      }
    }
  };
  if (g.m * g.n * g.k < (1 << 17)) {
    body(0, chunks);
  } else {
    parallel_for(chunks, 1, body);
  }
  return true;
}

constexpr std::int64_t gemm_dots = 32;  // rows of A up to which a transposed B is not packed

// Short A, B transposed: dot products of rows; false where another way is better.
inline bool gemm_skinny(const GemmOperands& g) {
  if (g.b_col == 1 || g.b_row != 1 || g.a_col != 1 || g.m > gemm_dots) {
    return false;
  }
  const StoredDots<WideF32> all{reinterpret_cast<const std::uint8_t*>(g.b),
                                g.b_col * 4,
                                g.k,
                                g.n / stored_streams,
                                0,
                                g.n / stored_streams,
                                g.m,
                                g.a,
                                g.a_row,
                                g.c,
                                g.ldc,
                                g.beta != 0.0f};
  stored_dots(all, g.n, [&](std::int64_t first, std::int64_t count) {
    if (g.finish != nullptr) {
      g.finish(g, 0, g.m, first, count);
    }
  });
  return true;
}

}  // namespace detail
}  // namespace tinyscale
