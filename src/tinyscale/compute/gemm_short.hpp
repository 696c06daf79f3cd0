#pragma once
// Matrix product with a short A (decode: one row a sequence): reading B is the whole cost, so B is
// read once, where it stands or packed. Of one row 8 rows of B at a time: 8 streams fetch from
// memory about twice as fast as one does.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>  // memset

#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/gemm_few.hpp"
#include "tinyscale/compute/gemm_tile.hpp"
#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/compute/scratch.hpp"
#include "tinyscale/compute/stored_dots.hpp"

namespace tinyscale {
namespace detail {

constexpr std::int64_t gemm_few = 64;              // rows of A up to which B is read in streams
constexpr std::int64_t gemm_few_packed_rows = 32;  // the same of a packed B

// How B is fetched: measured. A processor that by itself fetches on to the end of a page of memory
// wants whole pages, a few side by side, where its second cache (1.25 MB or more) holds them.
struct GemmAhead {
  std::int64_t floats, together;                // of B as stored: so many ahead, rows side by side
  std::int64_t packed_floats, packed_together;  // of packed B: so many ahead, pages side by side
  std::int64_t packed_rows;                     // of A, from which packed B is fetched so
};
inline GemmAhead gemm_ahead() {
  const bool pages = !cpu().amd && cpu().l2_bytes >= (5 << 18);
  return pages ? GemmAhead{65536, 4, 4096, 4, 1} : GemmAhead{16384, 2, 2048, 1, 5};
}

// A few rows of A, B packed in panels [k][width of the tile]: panel after panel as they lie in
// memory, in pieces that stay in L1 while the next piece is fetched.
struct GemmStream {
  static constexpr int depth = 32;            // rows of B in a piece
  static constexpr std::int64_t page = 1024;  // floats of a page of memory
  const GemmOperands& g;
  const float* a;  // [k / depth][rows][depth], rows a multiple of 4
  std::int64_t rows;
  std::int64_t begin, end;  // columns; begin starts a panel
  const float* packed;
  const float* edge;  // the last, narrower panel
  std::int64_t edge_row;
  GemmAhead ahead;

  template <class L>
  TINYSCALE_INLINE void run() const {
    constexpr std::int64_t wide = L::width * L::vectors;
    alignas(64) float copy[static_cast<std::size_t>(gemm_few_packed_rows * wide)];
    const std::int64_t floats = (std::min(end, g.n / wide * wide) - begin) * g.k;
    RowsAhead next(packed + begin * g.k + ahead.packed_floats, page, ahead.packed_together, page,
                   (floats - ahead.packed_floats) / page);
    for (std::int64_t j = begin; j < end; j += wide) {
      const bool whole = j + wide <= g.n;
      panel<L>(whole ? packed + j * g.k : edge, whole ? wide : edge_row, next, copy);
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
  TINYSCALE_INLINE void panel(const float* b, std::int64_t row, RowsAhead& rows_ahead,
                              float* copy) const {
    constexpr std::int64_t wide = L::width * L::vectors, two = 2 * L::width;
    std::memset(copy, 0, static_cast<std::size_t>(rows * wide) * sizeof(float));
    for (std::int64_t p = 0; p < g.k; p += depth, b += depth * row) {
      for (std::int64_t j = 0; j < row; j += two) {
        const std::int64_t next = j + two <= row ? L::width : 0;
        std::int64_t i = 0;
        if constexpr (L::width == 16) {
          for (; i + 8 <= rows; i += 8) {
            tile<L, 8>(i, p, b + j, row, next, copy + j, rows_ahead);
          }
        }
        for (; i < rows; i += 4) {
          tile<L, 4>(i, p, b + j, row, next, copy + j, rows_ahead);
        }
      }
    }
  }

  // Each tile of rows fetches its share, so that memory always works.
  template <class L, int ROWS>
  TINYSCALE_INLINE void tile(std::int64_t i, std::int64_t p, const float* b, std::int64_t row,
                             std::int64_t next, float* copy, RowsAhead& rows_ahead) const {
    constexpr std::int64_t wide = L::width * L::vectors;
    const std::int64_t deep = std::min<std::int64_t>(depth, g.k - p);
    const std::int64_t steps = rows_ahead.take(depth * L::width / 16, ROWS, rows, deep);
    gemm_few_tile<L, ROWS, depth, false>(a + p * rows + i * depth, deep, b, row, next,
                                         copy + i * wide, wide, rows_ahead.lines, steps, nullptr);
  }
};

constexpr std::int64_t gemm_in_cache = 1 << 20;    // floats of B, see gemm_in_streams
constexpr std::int64_t gemm_in_l3 = 1 << 23;       // a larger B comes from memory
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
                            edge, edge_row, gemm_ahead()});
  };
  parallel_for((g.n + chunk - 1) / chunk, 1, body);
}

// Floats of B from which streams gain for m rows of A: measured. On two threads 16 rows of the
// smallest lose a tenth.
inline std::int64_t gemm_in_streams(std::int64_t m, std::int64_t width) {
  if (m == 1) {
    return 0;
  }
  if (width < 16) {
    return m > 4 && m <= 16 ? 1 << 16 : gemm_in_cache / 2;
  }
  return m > gemm_few / 2 ? 4 * gemm_in_cache : gemm_in_cache;
}

// Columns of a chunk: `depth` rows of them are what is fetched of B; of one row of A long rows of B
// are long streams. Every thread has two chunks, which of a small B are narrow.
inline std::int64_t gemm_few_columns(const GemmOperands& g, std::int64_t depth) {
  const std::int64_t most = g.m == 1 ? 16384 : gemm_ahead().floats / depth;
  const std::int64_t parts = thread_count() == 1 ? 1 : 2 * thread_count();
  const std::int64_t least = g.n * g.k > gemm_in_cache ? 256 : 64;
  return std::clamp<std::int64_t>((g.n / parts + least - 1) / least * least, least, most);
}

// Where panels of B are copied one by one: measured.
inline bool gemm_copies_panels(std::int64_t width) { return cpu().amd && width >= 16; }

// Whether B as stored is read in streams: few rows of A, and it is not small.
inline bool gemm_streams(const GemmOperands& g, std::int64_t width) {
  return g.m <= gemm_few && g.b_col == 1 && g.n >= width &&
         g.n * g.k >= gemm_in_streams(g.m, width);
}

// Few rows of A, B as stored, in chunks of columns: n is a vector's width or more.
inline void gemm_few_rows(const GemmOperands& g, std::int64_t width) {
  const std::int64_t unit = width >= 16 ? 4 : 2;
  const std::int64_t rows =
      g.m == 1 ? 1 : std::max<std::int64_t>(4, (g.m + unit - 1) / unit * unit);
  const std::int64_t depth = rows <= 8 && g.n * g.k > gemm_in_l3 ? 16 : 32;  // measured
  const Scratch left(g.m == 1 ? 0 : rows * (g.k + depth));
  if (g.m > 1) {
    gemm_pack_few(g, rows, depth, left.data());
  }
  const std::int64_t chunk = gemm_few_columns(g, depth), shift = page_place(g.b) % 16;
  const std::int64_t chunks = std::max<std::int64_t>(1, (g.n + shift - 17 + chunk) / chunk);
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    const Scratch copy(rows * GemmFew::row(chunk + 16) + 1024);
    for (std::int64_t x = begin; x < end; ++x) {
      const std::int64_t origin = x * chunk - shift, first = std::max<std::int64_t>(0, origin);
      const std::int64_t last = x + 1 == chunks ? g.n : origin + chunk;
      // C's copy at B's place in a page: a store never seems to be what the next loads read.
      const std::int64_t place = (page_place(g.b + first) - page_place(copy.data()) + 1024) % 1024;
      run_on_lanes(GemmFew{g, left.data(), rows, depth, first, last, origin, copy.data() + place,
                           gemm_ahead().together});
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
