#pragma once
// Matrix product: C[M, N] = A[M, K] B[K, N] + beta C; 2 M K N flops.
// Three ideas make it fast. A tile of C (6 x 64 with AVX-512) stays in registers while k runs.
// B is copied into panels one tile wide only when that pays: it is large, or transposed.
// Short A (decode) streams B once and keeps C, or one row of A, in cache.
// Each element of C adds its products in an order that the number of threads cannot change.
// Picture and names: Goto and van de Geijn, Anatomy of High-Performance Matrix Multiplication (2008).

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/lanes.hpp"

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

// Scratch memory of this thread, one buffer per slot, aligned to 64 bytes; contents are undefined.
inline float* scratch(int slot, std::int64_t count) {
  static thread_local std::vector<float> buffers[6];
  std::vector<float>& buffer = buffers[slot];
  if (buffer.size() < static_cast<std::size_t>(count) + 16) {
    std::vector<float>().swap(buffer);
    buffer.resize(static_cast<std::size_t>(count) + 16);
  }
  const std::uintptr_t at = reinterpret_cast<std::uintptr_t>(buffer.data());
  return buffer.data() + ((64 - at % 64) % 64) / sizeof(float);
}

constexpr std::int64_t gemm_depth = 256;          // k of one pass: a panel of B stays in L2
constexpr std::int64_t gemm_rows = 96;            // most rows of one task
constexpr std::int64_t gemm_packed = 1 << 20;     // floats of B packed at once: 4 MB
constexpr std::int64_t gemm_in_place = 72 * 1024;  // floats of B read where they stand: 288 KB

// Operands as strides: a(i, p) = a[i * a_row + p * a_col].
struct GemmOperands {
  std::int64_t m, n, k;
  const float* a;
  std::int64_t a_row, a_col;
  const float* b;
  std::int64_t b_row, b_col;
  float beta;
  float* c;
  std::int64_t ldc;
};

// C[ROWS, VECTORS * width] (+)= A[ROWS, k] B[k, ...]: the whole tile in registers.
template <class L, int ROWS, int VECTORS>
TINYSCALE_INLINE void gemm_tile(std::int64_t k, const float* a, std::int64_t a_row,
                                std::int64_t a_col, const float* b, std::int64_t b_row, float* c,
                                std::int64_t ldc, float beta) {
  typedef typename L::V V;
  V sum[static_cast<std::size_t>(ROWS)][static_cast<std::size_t>(VECTORS)];
  TINYSCALE_UNROLL
  for (int i = 0; i < ROWS; ++i) {
    TINYSCALE_UNROLL
    for (int j = 0; j < VECTORS; ++j) {
      sum[i][j] = V{};
    }
  }
  for (std::int64_t p = 0; p < k; ++p) {
    V right[static_cast<std::size_t>(VECTORS)];
    TINYSCALE_UNROLL
    for (int j = 0; j < VECTORS; ++j) {
      load<L>(b + j * L::width, right[j]);
    }
    TINYSCALE_UNROLL
    for (int i = 0; i < ROWS; ++i) {
      V left;
      broadcast<L>(a[i * a_row], left);
      TINYSCALE_UNROLL
      for (int j = 0; j < VECTORS; ++j) {
        sum[i][j] = sum[i][j] + left * right[j];
      }
    }
    a += a_col;
    b += b_row;
  }
  TINYSCALE_UNROLL
  for (int i = 0; i < ROWS; ++i) {
    TINYSCALE_UNROLL
    for (int j = 0; j < VECTORS; ++j) {
      float* to = c + i * ldc + j * L::width;
      if (beta != 0.0f) {
        V old;
        load<L>(to, old);
        sum[i][j] = sum[i][j] + old;  // beta is 0 or 1
      }
      store<L>(to, sum[i][j]);
    }
  }
}

// Rows [0, m) of one panel: full tiles, then what is left in tiles of 4, 2 and 1 rows.
template <class L, int VECTORS>
struct GemmPanel {
  std::int64_t m, k;
  const float* a;
  std::int64_t a_row, a_col;
  const float* b;
  std::int64_t b_row;
  float* c;
  std::int64_t ldc;
  float beta;

  template <int ROWS>
  TINYSCALE_INLINE void rows(std::int64_t& i) const {
    for (; i + ROWS <= m; i += ROWS) {
      gemm_tile<L, ROWS, VECTORS>(k, a + i * a_row, a_row, a_col, b, b_row, c + i * ldc, ldc, beta);
    }
  }

  template <class Same>
  TINYSCALE_INLINE void run() const {
    std::int64_t i = 0;
    rows<L::rows>(i);
    if constexpr (L::rows > 4) {
      rows<4>(i);
    }
    rows<2>(i);
    rows<1>(i);
  }
};

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
        const float* b = packed == nullptr ? g.b + p * g.b_row + first + j
                                           : packed + j * g.k + p * wide;
        panel<L, L::vectors>(p, depth, b, packed == nullptr ? g.b_row : wide, j, wide, beta);
      }
      std::int64_t j = full;
      const std::int64_t step = (columns - full + L::width - 1) / L::width * L::width;
      const float* b = edge + p * step;  // rows of `step` floats
      if constexpr (L::vectors > 2) {
        for (; columns - j > L::width; j += 2 * L::width, b += 2 * L::width) {
          panel<L, 2>(p, depth, b, step, j, std::min<std::int64_t>(2 * L::width, columns - j), beta);
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

constexpr std::int64_t gemm_short = 8;  // rows of A up to which B is not worth a tile or a copy

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

// One pass: columns [first, first + columns) of C, packing first.
inline void gemm_pass(const GemmOperands& g, std::int64_t first, std::int64_t columns,
                      const TileSize& tile, std::int64_t work) {
  const std::int64_t full = columns / tile.wide * tile.wide;
  const std::int64_t left = columns - full;
  const std::int64_t edge_wide = (left + tile.width - 1) / tile.width * tile.width;
  const bool in_place = g.b_col == 1 && (g.n * g.k <= gemm_in_place || g.m <= 16);
  const std::int64_t packed_columns = (in_place ? 0 : full) + edge_wide;
  float* packed = scratch(0, packed_columns * g.k);
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
      run_on_lanes(GemmBlock{g, x * tall, last, first, columns,
                             in_place ? nullptr : packed, edge});
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

}  // namespace detail

namespace kernel {

// C = op(A) op(B) + beta C. beta is 0 (C is not read) or 1. C must not overlap A or B.
inline void gemm(Trans ta, Trans tb, std::int64_t m, std::int64_t n, std::int64_t k,
                 const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta,
                 float* c, std::int64_t ldc) {
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
  const detail::GemmOperands g{m, n, k, a, a_no ? lda : 1, a_no ? 1 : lda,
                               b, b_no ? ldb : 1, b_no ? 1 : ldb, beta, c, ldc};
  if (detail::gemm_skinny(g)) {
    return;
  }
  detail::TileSize tile;
  detail::run_on_lanes(detail::TileQuery{&tile});
  const std::int64_t fit = std::max<std::int64_t>(detail::gemm_packed / k / tile.wide, 1);
  for (std::int64_t j = 0; j < n; j += fit * tile.wide) {
    detail::gemm_pass(g, j, std::min(fit * tile.wide, n - j), tile, m * n * k);
  }
}

}  // namespace kernel
}  // namespace tinyscale
