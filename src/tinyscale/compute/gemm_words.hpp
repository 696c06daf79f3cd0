#pragma once
// Matrix products whose operands are words along k (word_pack.hpp). One instruction multiplies a
// word of A with 16 words of B and adds up the products of each word; the rest is as in an f32
// product. What multiplies is a WordUnit: dot products in registers, or tiles (amx_tiles.hpp).

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tinyscale/base/shared.hpp"
#include "tinyscale/base/threads.hpp"
#include "tinyscale/base/weight_memory.hpp"
#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/compute/scratch.hpp"
#include "tinyscale/compute/word_pack.hpp"

namespace tinyscale {
namespace detail {

// Rows [row, row_end) x panels [panel, panel_end) of C, one pass of k, from packed A and B.
struct WordTask {
  const std::uint32_t* a;
  std::int64_t a_rows;  // packed, a multiple of the tile's
  const std::uint32_t* b;
  std::int64_t words, row, row_end, panel, panel_end, n;
  void* c;  // float, or int32 for int8
  std::int64_t ldc;
  const std::int32_t* start;  // of each row where nothing is added to (int8), or null
  bool add;                   // to what C holds

  bool a_along_x;        // A packed [depth][row] inside a block of rows, and not [row][depth]
  std::int64_t a_parts;  // 2: each block of A once as words of its even numbers, once of its odd

  // Row i from word w, and the words from it to the next row, word of k and part.
  struct Way {
    const std::uint32_t* from;
    std::int64_t to_row, to_word, to_part;
  };
  Way a_at(std::int64_t w, std::int64_t i) const {
    const std::int64_t first = i / word_block * word_block, inside = w % word_depth;
    const std::int64_t depth = std::min(word_depth, words - (w - inside));
    const std::int64_t count = std::min(word_block, a_rows - first);
    const std::int64_t to_row = a_along_x ? 1 : depth, to_word = a_along_x ? count : 1;
    return {a + ((w - inside) * a_rows + first * depth) * a_parts + (i - first) * to_row +
                inside * to_word,
            to_row, to_word, count * depth};
  }
};

// The dot products of U in registers: ROWS x (VECTORS of 16) numbers of C, as gemm_tile does. Many
// rows of A share a panel's block of k in L2. For few rows reading B is the cost: panel after panel
// as they lie in memory, in pieces that stay in L1 while the next piece is fetched.
template <class U>
struct WordTiles {
  typedef typename U::Sum Sum;
  typedef typename U::Scalar Scalar;
  const WordTask& t;

  TINYSCALE_INLINE void run() const {
    const bool few = t.row_end - t.row <= word_few;
    const std::int64_t step = few ? word_piece : word_depth, panels = t.panel_end - t.panel;
    const std::int64_t steps = (t.words + step - 1) / step;
    for (std::int64_t y = 0; y < panels * steps; ++y) {
      const std::int64_t w = (few ? y % steps : y / panels) * step;
      const std::int64_t x = t.panel + (few ? y / steps : y % panels);
      const std::int64_t depth = std::min(step, t.words - w);
      const std::int64_t columns = std::min(word_wide, t.n - x * word_wide);
      const bool last = w + step >= t.words && columns + x * word_wide >= t.n;
      for (std::int64_t i = t.row; i < t.row_end; i += U::rows) {
        const std::int64_t ahead = few && i == t.row && !last ? depth * word_wide : 0;
        if constexpr (U::width == 16) {
          if (few && t.row_end - i > U::rows) {
            for (std::int64_t j = 0; j < columns; j += 32) {
              tile<8, 2>(w, depth, x, j, i, columns - j, ahead);
            }
            i += 8 - U::rows;
            continue;
          }
        }
        std::int64_t j = 0;
        for (; j + U::vectors * U::width <= columns; j += U::vectors * U::width) {
          tile<U::rows, U::vectors>(w, depth, x, j, i, U::vectors * U::width, ahead);
        }
        for (; j < columns; j += U::width) {
          tile<U::rows, 1>(w, depth, x, j, i, columns - j, ahead);
        }
      }
    }
  }

  // `ahead` words behind this piece is the next; each tile fetches its share of it.
  template <int ROWS, int VECTORS>
  TINYSCALE_INLINE void tile(std::int64_t w, std::int64_t depth, std::int64_t x, std::int64_t j,
                             std::int64_t i, std::int64_t columns, std::int64_t ahead) const {
    Sum sum[static_cast<std::size_t>(ROWS)][static_cast<std::size_t>(VECTORS)];
    TINYSCALE_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      TINYSCALE_UNROLL
      for (int v = 0; v < VECTORS; ++v) {
        sum[r][v] = Sum{};
      }
    }
    const WordTask::Way way = t.a_at(w, i);
    const std::uint32_t* a = way.from;
    const std::uint32_t* const piece = t.b + x * t.words * word_wide + w * word_wide;
    const std::uint32_t* b = piece + j;
    const std::uint32_t* next = piece + ahead + j * depth;
    for (std::int64_t p = 0; p < depth; ++p) {
      for (int v = 0; v < VECTORS * U::width && ahead != 0; v += 16) {
        prefetch(next + v);
      }
      next += VECTORS * U::width;
      typename U::Words right[static_cast<std::size_t>(VECTORS)], left;
      TINYSCALE_UNROLL
      for (int part = 0; part < U::parts; ++part) {
        TINYSCALE_UNROLL
        for (int v = 0; v < VECTORS; ++v) {
          U::load(b + p * word_wide + v * U::width, right[v]);
          if constexpr (U::parts > 1) {
            U::take(part, right[v]);
          }
        }
        TINYSCALE_UNROLL
        for (int r = 0; r < ROWS; ++r) {
          U::broadcast(a[r * way.to_row + part * way.to_part], left);
          TINYSCALE_UNROLL
          for (int v = 0; v < VECTORS; ++v) {
            if constexpr (U::parts > 1) {
              U::dot_part(left, right[v], sum[r][v]);
            } else {
              U::dot(left, right[v], sum[r][v]);
            }
          }
        }
      }
      a += way.to_word;
    }
    TINYSCALE_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      if (i + r < t.row_end) {
        TINYSCALE_UNROLL
        for (int v = 0; v < VECTORS; ++v) {
          finish(w, i + r, x * word_wide + j + v * U::width, columns - v * U::width, sum[r][v]);
        }
      }
    }
  }

  // Writes a vector of C, or adds it to what C holds.
  TINYSCALE_INLINE void finish(std::int64_t w, std::int64_t i, std::int64_t j, std::int64_t columns,
                               Sum& sum) const {
    Scalar* const c = static_cast<Scalar*>(t.c) + i * t.ldc + j;
    const bool add = t.add || w > 0;
    if constexpr (U::integer) {
      typename U::Words start;
      U::broadcast(add ? 0U : static_cast<std::uint32_t>(t.start[i]), start);
      sum = sum + start;
    }
    if (columns >= U::width) {
      typedef typename U::LooseSum Loose;
      if (add) {
        sum = sum + *reinterpret_cast<const Loose*>(c);
      }
      *reinterpret_cast<Loose*>(c) = sum;
      return;
    }
    Scalar lanes[static_cast<std::size_t>(U::width)];
    std::memcpy(lanes, &sum, sizeof(sum));
    for (std::int64_t x = 0; x < columns; ++x) {
      c[x] = add ? c[x] + lanes[x] : lanes[x];
    }
  }
};

// What multiplies: runs a task; rows of A and words of k come in such multiples.
struct WordUnit {
  void (*run)(const WordTask&);
  std::int64_t rows, step;
  bool tiles;  // reads A along k whatever way it is stored
  // Null, or makes two parts of `count` packed words of A, which lie behind the first's place.
  void (*split)(std::uint32_t* parts, std::int64_t count) = nullptr;

  std::int64_t parts() const { return split == nullptr ? 1 : 2; }
  bool a_along_x(const WordSource& a) const { return !tiles && a.k_stride != 1; }
};

struct WordGemm {
  WordUnit unit;
  WordSource a, b;
  const std::uint32_t* b_packed;  // by pack_all, or null: b is packed here
  float beta;
  void* c;
  std::int64_t ldc;
  const std::int32_t* start;
};

inline std::int64_t round_up(std::int64_t x, std::int64_t step) {
  return (x + step - 1) / step * step;
}

inline std::int64_t words_of_k(const WordSource& s, std::int64_t step) {
  return round_up((s.ks + s.per_word() - 1) / s.per_word(), step);
}

// Panels [begin, end) of the columns from `first`, words [w, w + words), one after another.
inline void pack_panels(const WordSource& b, std::int64_t first, std::int64_t begin,
                        std::int64_t end, std::int64_t w, std::int64_t words, std::uint32_t* to) {
  for (std::int64_t x = begin; x < end; ++x) {
    run_on_lanes(WordPack{b, first + x * word_wide, word_wide, w, words, to + x * words * word_wide,
                          1, word_wide, 16 * word_wide});
  }
}

// A whole B, packed once: [word_pass of k][panel][k][64]. Aligned to cache lines.
class WordBuffer {
 public:
  explicit WordBuffer(std::int64_t count) : memory_(static_cast<std::size_t>(count) * 4 + 64) {}
  std::uint32_t* data() const { return static_cast<std::uint32_t*>(memory_.data()); }

 private:
  WeightMemory memory_;
};

inline Shared<WordBuffer> pack_all(const WordSource& b) {
  const std::int64_t words = words_of_k(b, word_step);
  const std::int64_t panels = (b.xs + word_wide - 1) / word_wide;
  Shared<WordBuffer> buffer(new WordBuffer(words * panels * word_wide));
  for (std::int64_t w = 0; w < words; w += word_pass) {
    const std::int64_t deep = std::min(word_pass, words - w);
    std::uint32_t* const to = buffer->data() + w * panels * word_wide;
    parallel_for(panels, 1, [&](std::int64_t begin, std::int64_t end) {
      pack_panels(b, 0, begin, end, w, deep, to);
    });
  }
  return buffer;
}

// Rows [i, i + rows) of C, columns [j, j + columns), words [w, w + words): packs and multiplies.
struct WordPart {
  std::int64_t w, words, i, rows, j, columns;
  std::uint32_t *a, *b;
};

inline void pack_rows(const WordGemm& g, const WordPart& p, std::int64_t begin, std::int64_t end) {
  const std::int64_t padded = round_up(p.rows, g.unit.rows);
  const bool along_x = g.unit.a_along_x(g.a);
  for (std::int64_t x = begin; x < end; ++x) {
    const std::int64_t first = x * word_block;
    const std::int64_t count = std::min(padded - first, word_block);
    for (std::int64_t r = first; r < first + count && g.unit.tiles; r += word_square) {
      run_on_lanes(WordPack{g.a, p.i + r, word_square, p.w, p.words, p.a + r * p.words, 16, 1,
                            16 * word_square});
    }
    for (std::int64_t d = 0; d < p.words && !g.unit.tiles; d += word_depth) {
      const std::int64_t depth = std::min(word_depth, p.words - d), parts = g.unit.parts();
      std::uint32_t* const to = p.a + (d * padded + first * depth) * parts;
      run_on_lanes(WordPack{g.a, p.i + first, count, p.w + d, depth,
                            to + (parts - 1) * count * depth, along_x ? 1 : depth,
                            along_x ? count : 1, 16 * (along_x ? count : 1)});
      if (parts > 1) {
        g.unit.split(to, count * depth);
      }
    }
  }
}

inline void word_part(const WordGemm& g, const WordPart& p) {
  const std::int64_t panels = (p.columns + word_wide - 1) / word_wide;
  const std::int64_t blocks = (p.rows + word_block - 1) / word_block;
  const std::int64_t a_blocks = p.j == 0 ? blocks : 0;  // A is packed with the first columns
  const std::int64_t b_panels = g.b_packed == nullptr ? panels : 0;
  const auto pack = [&](std::int64_t begin, std::int64_t end) {
    pack_panels(g.b, p.j, begin, std::min(end, b_panels), p.w, p.words, p.b);
    if (end > b_panels) {
      pack_rows(g, p, std::max(begin, b_panels) - b_panels, end - b_panels);
    }
  };
  const std::int64_t wide = g.unit.tiles ? 8 : 4;  // panels of a task
  const std::int64_t groups = (panels + wide - 1) / wide;
  std::int64_t tall = g.unit.tiles ? word_tall : word_block;
  while (tall > word_block && (p.rows + tall - 1) / tall * groups < 4 * thread_count() &&
         thread_count() > 1) {
    tall /= 2;
  }
  const std::int64_t tasks = (p.rows + tall - 1) / tall * groups;
  const auto multiply = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t x = begin; x < end; ++x) {
      const std::int64_t row = x / groups * tall, panel = x % groups * wide;
      g.unit.run(WordTask{p.a, round_up(p.rows, g.unit.rows), p.b, p.words, row,
                          std::min(p.rows, row + tall), panel, std::min(panels, panel + wide),
                          p.columns, static_cast<float*>(g.c) + p.i * g.ldc + p.j, g.ldc,
                          g.start == nullptr ? nullptr : g.start + p.i, g.beta != 0.0f || p.w > 0,
                          g.unit.a_along_x(g.a), g.unit.parts()});
    }
  };
  if (p.rows * p.columns * p.words < (1 << 18)) {  // less than waking a thread pays
    pack(0, a_blocks + b_panels);
    multiply(0, tasks);
    return;
  }
  parallel_for(a_blocks + b_panels, 1, pack);
  parallel_for(tasks, 1, multiply);
}

// C = A B + beta C in parts that fit the scratch; each number of C adds its words in order of k.
inline void word_gemm(const WordGemm& g) {
  const std::int64_t words = words_of_k(g.b, g.b_packed != nullptr ? word_step : g.unit.step);
  const std::int64_t pass = std::min(word_pass, words);
  const std::int64_t rows =
      std::min(g.a.xs, std::max<std::int64_t>(1, word_fit / pass / word_block) * word_block);
  const std::int64_t wide = round_up(g.b.xs, word_wide);
  const std::int64_t columns =
      g.b_packed != nullptr
          ? wide
          : std::min(wide, std::max<std::int64_t>(1, word_fit / pass / word_wide) * word_wide);
  const Scratch a_lease((round_up(rows, g.unit.rows) * pass + 8 * word_depth) *
                        g.unit.parts());  // a tile may end later
  const Scratch b_lease(g.b_packed != nullptr ? 0 : columns * pass);
  WordPart p{};
  p.a = reinterpret_cast<std::uint32_t*>(a_lease.data());
  p.b = reinterpret_cast<std::uint32_t*>(b_lease.data());
  for (p.w = 0; p.w < words; p.w += pass) {
    p.words = std::min(pass, words - p.w);
    if (g.b_packed != nullptr) {
      p.b = const_cast<std::uint32_t*>(g.b_packed) + p.w * wide;
    }
    for (p.i = 0; p.i < g.a.xs; p.i += rows) {
      p.rows = std::min(rows, g.a.xs - p.i);
      for (p.j = 0; p.j < g.b.xs; p.j += columns) {
        p.columns = std::min(columns, g.b.xs - p.j);
        word_part(g, p);
      }
    }
  }
}

}  // namespace detail
}  // namespace tinyscale
