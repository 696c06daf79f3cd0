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

// Up to 3 rows of A, B as stored: C[m, begin..end) from 8 rows of B at a time, while the next 8
// are fetched. C adds up in a copy that stays in cache.
struct GemmStream {
  static constexpr int rows = 3;
  const GemmOperands& g;
  std::int64_t begin, end;  // columns; g.n >= L::width
  float* copy;              // [3][wide] of C, [wide + one vector] zeros

  template <class L>
  TINYSCALE_INLINE void run() const {
    constexpr int depth = L::vectors == 4 ? 8 : 4;
    const std::int64_t columns = end - begin;
    const std::int64_t full = columns / L::width * L::width;
    const std::int64_t wide = full < columns ? full + L::width : full;
    std::memset(copy, 0, static_cast<std::size_t>(4 * wide + L::width) * sizeof(float));
    for (std::int64_t p = 0; p < g.k; p += depth) {
      if (g.m == 1) {
        add_rows<L, 1, depth>(p, wide);
      } else {
        add_rows<L, rows, depth>(p, wide);
      }
    }
    for (std::int64_t i = 0; i < g.m; ++i) {
      const float* from = copy + i * wide;
      float* to = g.c + i * g.ldc + begin;
      for (std::int64_t j = 0; j < columns; ++j) {
        // The last vector was read so that it ends where B does.
        const float sum = from[j < full ? j : j + wide - columns];
        to[j] = g.beta == 0.0f ? sum : sum + to[j];
      }
    }
  }

  // Rows of A that are not there repeat the first; rows of B that are not there are zeros.
  template <class L, int ROWS, int DEPTH>
  TINYSCALE_INLINE void add_rows(std::int64_t p, std::int64_t wide) const {
    typename L::V left[static_cast<std::size_t>(ROWS)][static_cast<std::size_t>(DEPTH)];
    const float* b[static_cast<std::size_t>(DEPTH)];
    TINYSCALE_UNROLL
    for (int r = 0; r < DEPTH; ++r) {
      const bool there = p + r < g.k;
      b[r] = there ? g.b + (p + r) * g.b_row + begin : copy + rows * wide + L::width;
      TINYSCALE_UNROLL
      for (int x = 0; x < ROWS; ++x) {
        const float* a = g.a + (x < g.m ? x * g.a_row : 0);
        broadcast<L>(there ? a[(p + r) * g.a_col] : 0.0f, left[x][r]);
      }
    }
    const std::int64_t ahead = p + 2 * DEPTH <= g.k ? DEPTH * g.b_row : 0;
    const std::int64_t last = g.n - L::width - begin;
    float* const to = copy;
    for (std::int64_t j = 0; j < wide; j += L::width) {
      const std::int64_t from = j < last ? j : last;
      typename L::V sum[static_cast<std::size_t>(ROWS)], v;
      TINYSCALE_UNROLL
      for (int x = 0; x < ROWS; ++x) {
        load<L>(to + x * wide + j, sum[x]);
      }
      TINYSCALE_UNROLL
      for (int r = 0; r < DEPTH; ++r) {
        load<L>(b[r] + from, v);
        prefetch(b[r] + from + ahead);
        TINYSCALE_UNROLL
        for (int x = 0; x < ROWS; ++x) {
          sum[x] = sum[x] + left[x][r] * v;
        }
      }
      TINYSCALE_UNROLL
      for (int x = 0; x < ROWS; ++x) {
        store<L>(to + x * wide + j, sum[x]);
      }
    }
  }
};

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
  if (!dots && (g.b_col != 1 || g.m > GemmStream::rows || g.n < width)) {
    return false;
  }
  const std::int64_t fair = std::max<std::int64_t>(256, g.n / 8 / 64 * 64);
  const std::int64_t chunk = dots ? 32 : std::min<std::int64_t>(g.m == 1 ? 4096 : 512, fair);
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    const Scratch copy(dots ? 0 : (GemmStream::rows + 2) * chunk);
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
