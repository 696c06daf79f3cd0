#pragma once
// Matrix product with a few rows of A and B as it is stored, which is read once: memory brings the
// next rows while those that are here are multiplied.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>  // memset

#include "tinyscale/compute/gemm_tile.hpp"
#include "tinyscale/compute/lanes.hpp"

namespace tinyscale {
namespace detail {

// What a step of a tile fetches: two lines `pair` apart, the next two `step` and `turn - step`
// behind them in turns.
struct LinesAhead {
  const float* at;
  std::int64_t pair, step, turn;

  TINYSCALE_INLINE void fetch() {
    prefetch<3>(at);
    prefetch<3>(at + pair);
    at += step;
    step = turn - step;
  }
};

// Rows of B that are fetched in groups: one, two or four of them side by side, line after line.
// Memory brings a few streams in its own order faster than one, or many, or a tile's own columns.
struct RowsAhead {
  const float* next;
  std::int64_t row, together, steps, groups;  // of a group: steps
  std::int64_t left = 0, owed = 0;
  LinesAhead lines{};

  RowsAhead(const float* from, std::int64_t row_, std::int64_t together_, std::int64_t columns,
            std::int64_t rows)
      : next(from),
        row(row_),
        together(together_),
        steps(((columns + 15) / 16 * together + 1) / 2),
        groups(rows / together_) {}

  // The steps, of `most`, in which a tile with `part` of `all` rows of A fetches; what these
  // columns are of B takes `steps_of_all`.
  std::int64_t take(std::int64_t steps_of_all, std::int64_t part, std::int64_t all,
                    std::int64_t most) {
    owed += (steps_of_all * part + all - 1) / all;
    if (left == 0 && groups > 0) {
      lines = together == 1   ? LinesAhead{next, 16, 32, 64}
              : together == 2 ? LinesAhead{next, row, 16, 32}
                              : LinesAhead{next, row, 2 * row, 16};
      next += together * row;
      left = steps;
      --groups;
    }
    const std::int64_t taken = std::min({owed, left, most});
    owed -= taken;
    left -= taken;
    return taken;
  }
};

// C[ROWS, two vectors] += A[ROWS, deep] B[deep, two vectors], the second `next` behind the first;
// fetches in the last `steps` of the `deep`. KEEP: copies what it reads of B to `keep`, row after
// row.
template <class L, int ROWS, int DEPTH, bool KEEP>
TINYSCALE_INLINE void gemm_few_tile(const float* a, std::int64_t deep, const float* b,
                                    std::int64_t b_row, std::int64_t next, float* c,
                                    std::int64_t ldc, LinesAhead& ahead, std::int64_t steps,
                                    [[maybe_unused]] float* keep) {
  typename L::V sum[static_cast<std::size_t>(ROWS)][2], right[2], v;
  LinesAhead lines = ahead;
  TINYSCALE_UNROLL
  for (int x = 0; x < ROWS; ++x) {
    load<L>(c + x * ldc, sum[x][0]);
    load<L>(c + x * ldc + L::width, sum[x][1]);
  }
  for (std::int64_t q = deep; q > 0; --q) {
    load<L>(b, right[0]);
    load<L>(b + next, right[1]);
    if (q <= steps) {
      lines.fetch();
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
  ahead = lines;
}

// One row of A or a few, B as stored: C[m, begin..end) from 8 or 12 rows of B at a time (16 or 32
// of them for more than one row of A), in tiles of two vectors, while the next rows are fetched. C
// adds up in a copy that stays in cache. Vectors of B start where cache lines do; the first and the
// last of a chunk overlap their neighbours.
struct GemmFew {
  const GemmOperands& g;
  const float* a;            // [k / depth][rows][depth]; not used of one row
  std::int64_t rows, depth;  // 1, or a multiple of 4, of short vectors an even number from 4 on
  std::int64_t begin, end;   // columns, at least L::width
  std::int64_t origin;       // of the first vector, begin or before it
  float* copy;               // [tile][rows][two vectors]
  std::int64_t together;     // rows of B that are fetched side by side

  static constexpr std::int64_t row(std::int64_t columns) { return (columns + 63) / 32 * 32 + 16; }

  std::int64_t column(std::int64_t j, std::int64_t width) const {
    return std::max(begin, std::min(origin + j, end - width));
  }

  template <class L>
  TINYSCALE_INLINE std::int64_t place(std::int64_t i, std::int64_t j) const {
    constexpr std::int64_t wide = 2 * L::width;
    return j / wide * wide * rows + i * wide + j % wide;
  }

  template <class L>
  TINYSCALE_INLINE void run() const {
    const std::int64_t columns = end - origin;
    typename L::V v;
    std::memset(copy, 0, static_cast<std::size_t>(rows * row(columns)) * sizeof(float));
    for (std::int64_t i = 0; i < g.m && g.beta != 0.0f; ++i) {
      for (std::int64_t j = 0; j < columns; j += L::width) {
        load<L>(g.c + i * g.ldc + column(j, L::width), v);
        store<L>(copy + place<L>(i, j), v);
      }
    }
    constexpr int in_one = L::width == 16 ? 12 : 8;  // measured
    std::int64_t p = 0;
    for (; p + in_one <= g.k && rows == 1; p += in_one) {
      add_rows<L, in_one>(p, columns);
    }
    for (; p < g.k && rows == 1; ++p) {
      add_rows<L, 1>(p, columns);
    }
    if (rows > 1 && depth == 32) {
      blocks<L, 32>(columns);
    } else if (rows > 1) {
      blocks<L, 16>(columns);
    }
    for (std::int64_t i = 0; i < g.m; ++i) {
      for (std::int64_t j = 0; j < columns; j += L::width) {
        load<L>(copy + place<L>(i, j), v);
        store<L>(g.c + i * g.ldc + column(j, L::width), v);
      }
    }
  }

  // A of one row. The processor sees the streams by itself.
  template <class L, int DEPTH>
  TINYSCALE_INLINE void add_rows(std::int64_t p, std::int64_t columns) const {
    typename L::V left[static_cast<std::size_t>(DEPTH)];
    TINYSCALE_UNROLL
    for (int r = 0; r < DEPTH; ++r) {
      broadcast<L>(g.a[(p + r) * g.a_col], left[r]);
    }
    const float* const b = g.b + p * g.b_row;
    const std::int64_t b_row = g.b_row;
    for (std::int64_t j = 0; j < columns; j += 2 * L::width) {
      typename L::V sum[2], v;
      const float* const from = b + column(j, L::width);
      const std::int64_t next = column(j + L::width, L::width) - column(j, L::width);
      load<L>(copy + j, sum[0]);
      load<L>(copy + j + L::width, sum[1]);
      TINYSCALE_UNROLL
      for (int r = 0; r < DEPTH; ++r) {
        load<L>(from + r * b_row, v);
        sum[0] = sum[0] + left[r] * v;
        load<L>(from + r * b_row + next, v);
        sum[1] = sum[1] + left[r] * v;
      }
      store<L>(copy + j, sum[0]);
      store<L>(copy + j + L::width, sum[1]);
    }
  }

  template <class L, int DEPTH>
  TINYSCALE_INLINE void blocks(std::int64_t columns) const {
    alignas(64) float kept[static_cast<std::size_t>(2 * L::width * DEPTH)];
    for (std::int64_t p = 0; p < g.k; p += DEPTH) {
      RowsAhead ahead(g.b + (p + DEPTH) * g.b_row + begin, g.b_row, together, end - begin,
                      p + 2 * DEPTH <= g.k ? DEPTH : 0);
      for (std::int64_t j = 0; j < columns; j += 2 * L::width) {
        std::int64_t i = 0;
        if constexpr (L::width == 16) {
          for (; i + 8 <= rows; i += 8) {
            tile<L, 8, DEPTH>(i, p, j, ahead, kept);
          }
          for (; i < rows; i += 4) {
            tile<L, 4, DEPTH>(i, p, j, ahead, kept);
          }
        } else {
          for (; (rows - i) % 6 != 0; i += 4) {
            tile<L, 4, DEPTH>(i, p, j, ahead, kept);
          }
          for (; i < rows; i += 6) {
            tile<L, 6, DEPTH>(i, p, j, ahead, kept);
          }
        }
      }
    }
  }

  // The first tile keeps what it reads of B where the others find it, and each fetches its share of
  // the next rows.
  template <class L, int ROWS, int DEPTH>
  TINYSCALE_INLINE void tile(std::int64_t i, std::int64_t p, std::int64_t j, RowsAhead& ahead,
                             float* kept) const {
    constexpr std::int64_t wide = 2 * L::width;
    const std::int64_t first = column(j, L::width), b_row = g.b_row;
    const std::int64_t next = column(j + L::width, L::width) - first;
    const float* const b = g.b + p * b_row + first;
    const float* const left = a + p * rows + i * DEPTH;
    const std::int64_t deep = std::min<std::int64_t>(DEPTH, g.k - p);
    float* const c = copy + j * rows + i * wide;
    const std::int64_t steps = ahead.take(DEPTH * L::width / 16, ROWS, rows, deep);
    if (i == 0 && rows > ROWS) {
      gemm_few_tile<L, ROWS, DEPTH, true>(left, deep, b, b_row, next, c, wide, ahead.lines, steps,
                                          kept);
      return;
    }
    const bool again = i > 0;
    gemm_few_tile<L, ROWS, DEPTH, false>(left, deep, again ? kept : b, again ? wide : b_row,
                                         again ? L::width : next, c, wide, ahead.lines, steps,
                                         nullptr);
  }
};

}  // namespace detail
}  // namespace tinyscale
