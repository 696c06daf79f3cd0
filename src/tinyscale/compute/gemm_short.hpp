#pragma once
// Matrix product with a short A (decode: one row a sequence): reading B is the whole cost, so B is
// read once, 8 rows at a time: 8 streams fetch from memory about twice as fast as one does.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/gemm_tile.hpp"
#include "tinyscale/compute/lanes.hpp"

namespace tinyscale {
namespace detail {

// Short A, B as stored: C[m, begin..end) from 8 rows of B at a time, C stays in cache.
struct GemmStream {
  const GemmOperands& g;
  std::int64_t begin, end;

  template <class L>
  TINYSCALE_INLINE void run() const {
    if (g.beta == 0.0f) {
      for (std::int64_t i = 0; i < g.m; ++i) {
        std::fill(g.c + i * g.ldc + begin, g.c + i * g.ldc + end, 0.0f);
      }
    }
    std::int64_t p = 0;
    for (; p + 8 <= g.k; p += 8) {
      for (std::int64_t i = 0; i < g.m; ++i) {
        add_rows<L, 8>(p, i);
      }
    }
    for (; p < g.k; ++p) {
      for (std::int64_t i = 0; i < g.m; ++i) {
        add_rows<L, 1>(p, i);
      }
    }
  }

  template <class L, int ROWS>
  TINYSCALE_INLINE void add_rows(std::int64_t p, std::int64_t i) const {
    typename L::V left[static_cast<std::size_t>(ROWS)], sum, v;
    TINYSCALE_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      broadcast<L>(g.a[i * g.a_row + (p + r) * g.a_col], left[r]);
    }
    float* c = g.c + i * g.ldc;
    std::int64_t j = begin;
    for (; j + L::width <= end; j += L::width) {
      load<L>(c + j, sum);
      TINYSCALE_UNROLL
      for (int r = 0; r < ROWS; ++r) {
        load<L>(g.b + (p + r) * g.b_row + j, v);
        sum = sum + left[r] * v;
      }
      store<L>(c + j, sum);
    }
    for (; j < end; ++j) {
      for (int r = 0; r < ROWS; ++r) {
        c[j] += g.a[i * g.a_row + (p + r) * g.a_col] * g.b[(p + r) * g.b_row + j];
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
    std::int64_t p = 0;
    for (; p + L::width <= g.k; p += L::width) {
      load<L>(a + p, left);
      TINYSCALE_UNROLL
      for (int r = 0; r < ROWS; ++r) {
        load<L>(b + r * g.b_col + p, v);
        sum[r] = sum[r] + left * v;
      }
    }
    float* c = g.c + i * g.ldc + j;
    TINYSCALE_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      float total = sum_lanes<L>(sum[r]);
      for (std::int64_t x = p; x < g.k; ++x) {
        total += a[x] * b[r * g.b_col + x];
      }
      c[r] = g.beta == 0.0f ? total : total + c[r];
    }
  }
};

constexpr std::int64_t gemm_short = 8;  // rows of A up to which B is not worth a copy

// Short A in chunks of columns; false where another way is better.
inline bool gemm_skinny(const GemmOperands& g) {
  const bool dots = g.b_col != 1 && g.b_row == 1 && g.a_col == 1;
  if (g.m > gemm_short || (g.b_col != 1 && !dots)) {
    return false;
  }
  const std::int64_t chunk = dots ? 32 : 256;
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t x = begin; x < end; ++x) {
      const std::int64_t last = std::min(g.n, (x + 1) * chunk);
      if (dots) {
        run_on_lanes(GemmDots{g, x * chunk, last});
      } else {
        run_on_lanes(GemmStream{g, x * chunk, last});
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
