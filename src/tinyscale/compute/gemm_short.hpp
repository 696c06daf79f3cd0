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

namespace tinyscale {
namespace detail {

// One row of A, B as stored: C[begin..end) from 8 rows of B at a time, while the next 8 are
// fetched. C adds up in a copy that stays in cache.
struct GemmStream {
  const GemmOperands& g;
  std::int64_t begin, end;  // columns; g.n >= L::width
  float* copy;              // [wide] of C, [wide + one vector] zeros

  template <class L>
  TINYSCALE_INLINE void run() const {
    constexpr int depth = L::vectors == 4 ? 8 : 4;
    const std::int64_t columns = end - begin;
    const std::int64_t full = columns / L::width * L::width;
    const std::int64_t wide = full < columns ? full + L::width : full;
    std::memset(copy, 0, static_cast<std::size_t>(2 * wide + L::width) * sizeof(float));
    for (std::int64_t p = 0; p < g.k; p += depth) {
      add_rows<L, depth>(p, wide);
    }
    float* to = g.c + begin;
    for (std::int64_t j = 0; j < columns; ++j) {
      // The last vector was read so that it ends where B does.
      const float sum = copy[j < full ? j : j + wide - columns];
      to[j] = g.beta == 0.0f ? sum : sum + to[j];
    }
  }

  // Rows of B that are not there are zeros.
  template <class L, int DEPTH>
  TINYSCALE_INLINE void add_rows(std::int64_t p, std::int64_t wide) const {
    typename L::V left[static_cast<std::size_t>(DEPTH)];
    const float* b[static_cast<std::size_t>(DEPTH)];
    TINYSCALE_UNROLL
    for (int r = 0; r < DEPTH; ++r) {
      const bool there = p + r < g.k;
      b[r] = there ? g.b + (p + r) * g.b_row + begin : copy + wide + L::width;
      broadcast<L>(there ? g.a[(p + r) * g.a_col] : 0.0f, left[r]);
    }
    const std::int64_t ahead = p + 2 * DEPTH <= g.k ? DEPTH * g.b_row : 0;
    const std::int64_t last = g.n - L::width - begin;
    float* const to = copy;
    for (std::int64_t j = 0; j < wide; j += L::width) {
      const std::int64_t from = j < last ? j : last;
      typename L::V sum, v;
      load<L>(to + j, sum);
      TINYSCALE_UNROLL
      for (int r = 0; r < DEPTH; ++r) {
        load<L>(b[r] + from, v);
        prefetch(b[r] + from + ahead);
        sum = sum + left[r] * v;
      }
      store<L>(to + j, sum);
    }
  }
};

// A few rows of A, B as stored: C[m, begin..end) from 8 rows of B at a time, in tiles of two
// vectors, while the next 8 rows are fetched. C adds up in a copy that stays in cache. Vectors of
// B start where cache lines do; the first and the last of a chunk overlap their neighbours.
struct GemmFew {
  static constexpr std::int64_t depth = 8;  // rows of B at a time
  const GemmOperands& g;
  const float* a;  // [k / depth][rows][depth], rows a multiple of 4
  std::int64_t rows;
  std::int64_t begin, end;  // columns, at least L::width
  std::int64_t origin;      // of the first vector, begin or before it
  float* copy;              // [rows][row]

  static constexpr std::int64_t row(std::int64_t columns) { return (columns + 63) / 32 * 32 + 16; }

  std::int64_t column(std::int64_t j, std::int64_t width) const {
    return std::max(begin, std::min(origin + j, end - width));
  }

  template <class L>
  TINYSCALE_INLINE void run() const {
    constexpr std::int64_t wide = 2 * L::width;
    const std::int64_t columns = end - origin, ld = row(columns);
    typename L::V v;
    std::memset(copy, 0, static_cast<std::size_t>(rows * ld) * sizeof(float));
    for (std::int64_t i = 0; i < g.m && g.beta != 0.0f; ++i) {
      for (std::int64_t j = 0; j < columns; j += L::width) {
        load<L>(g.c + i * g.ldc + column(j, L::width), v);
        store<L>(copy + i * ld + j, v);
      }
    }
    for (std::int64_t p = 0; p < g.k; p += depth) {
      for (std::int64_t j = 0; j < columns; j += wide) {
        std::int64_t i = 0;
        if constexpr (L::width == 16) {
          for (; i + 8 <= rows; i += 8) {
            tile<L, 8>(i, p, j, ld);
          }
        }
        for (; i < rows; i += 4) {
          tile<L, 4>(i, p, j, ld);
        }
      }
    }
    for (std::int64_t i = 0; i < g.m; ++i) {
      for (std::int64_t j = 0; j < columns; j += L::width) {
        load<L>(copy + i * ld + j, v);
        store<L>(g.c + i * g.ldc + column(j, L::width), v);
      }
    }
  }

  // The first tile of rows fetches: the others find the rows in cache.
  template <class L, int ROWS>
  TINYSCALE_INLINE void tile(std::int64_t i, std::int64_t p, std::int64_t j,
                             std::int64_t ld) const {
    typedef typename L::V V;
    const std::int64_t first = column(j, L::width), b_row = g.b_row;
    const std::int64_t next = column(j + L::width, L::width) - first;
    const float* b = g.b + p * b_row + first;
    const std::int64_t ahead = i == 0 && p + 2 * depth <= g.k ? depth * b_row : 0;
    const float* left = a + p * rows + i * depth;
    float* c = copy + i * ld + j;
    V sum[static_cast<std::size_t>(ROWS)][2];
    TINYSCALE_UNROLL
    for (int x = 0; x < ROWS; ++x) {
      load<L>(c + x * ld, sum[x][0]);
      load<L>(c + x * ld + L::width, sum[x][1]);
    }
    for (std::int64_t q = std::min(depth, g.k - p); q > 0; --q) {
      V right[2], v;
      load<L>(b, right[0]);
      load<L>(b + next, right[1]);
      if (ahead != 0) {
        prefetch(b + ahead);
        prefetch(b + ahead + next);
      }
      TINYSCALE_UNROLL
      for (int x = 0; x < ROWS; ++x) {
        broadcast<L>(left[x * depth], v);
        sum[x][0] = sum[x][0] + v * right[0];
        sum[x][1] = sum[x][1] + v * right[1];
      }
      b += b_row;
      ++left;
    }
    TINYSCALE_UNROLL
    for (int x = 0; x < ROWS; ++x) {
      store<L>(c + x * ld, sum[x][0]);
      store<L>(c + x * ld + L::width, sum[x][1]);
    }
  }
};

constexpr std::int64_t gemm_few = 32;              // rows of A up to which B is read in streams
constexpr std::int64_t gemm_in_cache = 1 << 20;    // floats of B that streams gain nothing for
constexpr std::int64_t gemm_in_place = 72 * 1024;  // floats of B read where they stand: 288 KB

// Floats from the last 64-byte line to x.
inline std::int64_t past_line(const float* x) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(x) / sizeof(float) % 16);
}

// A as GemmFew reads it, the first row in the place of rows that are not there.
inline void gemm_pack_few(const GemmOperands& g, std::int64_t rows, float* to) {
  constexpr std::int64_t depth = GemmFew::depth;
  for (std::int64_t p = 0; p < g.k; p += depth) {
    const std::int64_t count = std::min(depth, g.k - p);
    for (std::int64_t i = 0; i < rows; ++i, to += depth) {
      const float* from = g.a + (i < g.m ? i : 0) * g.a_row + p * g.a_col;
      for (std::int64_t q = 0; q < count; ++q) {
        to[q] = from[q * g.a_col];
      }
    }
  }
}

// Few rows of A, B as stored, in chunks of columns; false where another way is better.
inline bool gemm_few_rows(const GemmOperands& g, std::int64_t width) {
  if (g.m < 2 || g.m > gemm_few || g.b_col != 1 || g.n < width || g.n * g.k <= gemm_in_cache) {
    return false;
  }
  const std::int64_t rows = (g.m + 3) / 4 * 4;
  const Scratch left(rows * (g.k + GemmFew::depth));
  gemm_pack_few(g, rows, left.data());
  const std::int64_t chunk = g.n < 2048 ? 256 : 512, shift = past_line(g.b);
  const std::int64_t chunks = std::max<std::int64_t>(1, (g.n + shift - 17 + chunk) / chunk);
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    const Scratch copy(rows * GemmFew::row(chunk + 16));
    for (std::int64_t x = begin; x < end; ++x) {
      const std::int64_t origin = x * chunk - shift, first = std::max<std::int64_t>(0, origin);
      const std::int64_t last = x + 1 == chunks ? g.n : origin + chunk;
      run_on_lanes(GemmFew{g, left.data(), rows, first, last, origin, copy.data()});
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

// Short A, B transposed: C[i, j] is a dot product of two rows; 8 rows of B at a time.
struct GemmDots {
  const GemmOperands& g;
  std::int64_t begin, end;

  template <class L>
  TINYSCALE_INLINE void run() const {
    std::int64_t j = begin;
    for (; j + 8 <= end; j += 8) {
      for (std::int64_t i = 0; i < g.m; ++i) {
        dots<L, 8>(i, j);
      }
    }
    for (; j < end; ++j) {
      for (std::int64_t i = 0; i < g.m; ++i) {
        dots<L, 1>(i, j);
      }
    }
  }

  template <class L, int ROWS>
  TINYSCALE_INLINE void dots(std::int64_t i, std::int64_t j) const {
    typename L::V sum[static_cast<std::size_t>(ROWS)], left, v;
    TINYSCALE_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      sum[r] = typename L::V{};
    }
    const float* a = g.a + i * g.a_row;
    const float* b = g.b + j * g.b_col;
    const std::int64_t b_col = g.b_col, k = g.k;
    std::int64_t p = 0;
    for (; p + L::width <= k; p += L::width) {
      load<L>(a + p, left);
      TINYSCALE_UNROLL
      for (int r = 0; r < ROWS; ++r) {
        load<L>(b + r * b_col + p, v);
        sum[r] = sum[r] + left * v;
      }
    }
    float* c = g.c + i * g.ldc + j;
    TINYSCALE_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      float total = sum_lanes<L>(sum[r]);
      for (std::int64_t x = p; x < g.k; ++x) {
        total += a[x] * b[r * b_col + x];
      }
      c[r] = g.beta == 0.0f ? total : total + c[r];
    }
  }
};

constexpr std::int64_t gemm_dots = 8;  // rows of A up to which a transposed B is not packed

// Short A in chunks of columns; false where another way is better.
inline bool gemm_skinny(const GemmOperands& g, std::int64_t width) {
  const bool dots = g.b_col != 1 && g.b_row == 1 && g.a_col == 1 && g.m <= gemm_dots;
  if (!dots && (g.b_col != 1 || g.m > 1 || g.n < width)) {
    return false;
  }
  const std::int64_t fair = std::max<std::int64_t>(256, g.n / 8 / 64 * 64);
  const std::int64_t chunk = dots ? 32 : std::min<std::int64_t>(4096, fair);
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    const Scratch copy(dots ? 0 : 3 * chunk);
    for (std::int64_t x = begin; x < end; ++x) {
      const std::int64_t first = x * chunk, last = std::min(g.n, first + chunk);
      if (dots) {
        run_on_lanes(GemmDots{g, first, last});
      } else {
        run_on_lanes(GemmStream{g, first, last, copy.data()});
      }
      if (g.finish != nullptr) {
        g.finish(g, 0, g.m, first, last - first);
      }
    }
  };
  const std::int64_t chunks = (g.n + chunk - 1) / chunk;
  if (g.m * g.n * g.k < (1 << 17)) {
    body(0, chunks);
  } else {
    parallel_for(chunks, 1, body);
  }
  return true;
}

}  // namespace detail
}  // namespace tinyscale
