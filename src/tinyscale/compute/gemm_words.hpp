#pragma once
// Matrix products whose operands are words of 32 bits along k: 2 bf16 numbers or 4 int8 numbers.
//   A packed:  [k / depth][row][depth]       B packed:  [panel][k][64 columns]
// One instruction multiplies a word of A with 16 words of B and adds up the products of each word,
// so that packing is the whole difference to an f32 product. What does it is a WordUnit: dot
// products in vector registers, or tiles (amx_tiles.hpp).

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>  // align_val_t

#include "tinyscale/base/format.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/compute/scratch.hpp"

namespace tinyscale {
namespace detail {

constexpr std::int64_t word_depth = 256;    // words of k of one tile: 64 KB of a panel, in L2
constexpr std::int64_t word_pass = 2048;    // words of k packed at once
constexpr std::int64_t word_block = 96;     // rows of one task: a multiple of every tile's rows
constexpr std::int64_t word_wide = 64;      // columns of a panel
constexpr std::int64_t word_fit = 1 << 20;  // words of A, and of B, packed at once: 4 MB each
constexpr std::int64_t word_step = 16;      // words of k in weights packed once: a multiple of it

// f32_by_unit: f32, rounded by the processor's own instruction, which takes denormals as zero.
enum class WordKind { f32, f32_by_unit, bf16, int8 };

// An operand as strides: element (x, p) with x a row of A or a column of B, p along k. Either
// stride is 1.
struct WordSource {
  WordKind kind;
  const void* data;
  std::int64_t x_stride, k_stride, xs, ks;
  std::uint32_t flip = 0;  // xor of each word: 0x80808080 turns int8 into uint8, 128 higher

  std::int64_t per_word() const { return kind == WordKind::int8 ? 4 : 2; }
};

// The reference body of packing: word w of row x, zeros beyond the ends.
inline std::uint32_t word_at(const WordSource& s, std::int64_t x, std::int64_t w) {
  const std::int64_t per = s.per_word();
  std::uint32_t word = 0;
  for (std::int64_t e = 0; e < per; ++e) {
    const std::int64_t p = w * per + e;
    if (x >= s.xs || p >= s.ks) {
      break;
    }
    const std::int64_t at = x * s.x_stride + p * s.k_stride;
    const std::uint32_t code =
        s.kind == WordKind::int8   ? static_cast<const std::uint8_t*>(s.data)[at]
        : s.kind == WordKind::bf16 ? static_cast<const std::uint16_t*>(s.data)[at]
                                   : to_bf16(static_cast<const float*>(s.data)[at]);
    word |= code << (e * 32 / per);
  }
  return word ^ s.flip;
}

#if TINYSCALE_VECTOR_EXTENSIONS
typedef std::uint32_t Words16 __attribute__((vector_size(64)));
typedef std::uint32_t LooseWords16 __attribute__((vector_size(64), aligned(1), may_alias));
typedef std::uint64_t LongWords8 __attribute__((vector_size(64)));
typedef std::uint64_t LooseLongWords8 __attribute__((vector_size(64), aligned(1), may_alias));
typedef std::uint32_t LooseWords8 __attribute__((vector_size(32), aligned(1), may_alias));
typedef std::uint16_t LooseShorts16 __attribute__((vector_size(32), aligned(1), may_alias));
typedef std::uint8_t LooseBytes16 __attribute__((vector_size(16), aligned(1), may_alias));

// f32 rounded to nearest, ties to even, in the upper half of its word; the lower half is waste.
// A NaN stays one: its mantissa gets a bit and is not rounded up.
TINYSCALE_INLINE void round_words(Words16& v) {
  const Words16 nan = (Words16)((v & 0x7fffffffU) > 0x7f800000U);
  const Words16 up = 0x7fffU + ((v >> 16) & 1U);
  v = v + (up & ~nan);
  v = v | (nan & 0x00400000U);
}

// 16 numbers from low and 16 from high, rounded, in the lower and upper half of `out`.
#if TINYSCALE_X86 && !TINYSCALE_INTERPRETER
__attribute__((target("avx512f"))) inline void round_by_unit(const float* low, const float* high,
                                                             Words16& out) {
  const Words16 a = *reinterpret_cast<const LooseWords16*>(low);
  const Words16 b = *reinterpret_cast<const LooseWords16*>(high);
  asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(out) : "v"(a), "v"(b));
}
#endif

// 16 words of row x from word w, read along k.
TINYSCALE_INLINE void words_along_k(const WordSource& s, std::int64_t x, std::int64_t w,
                                    std::uint32_t* to) {
  const std::int64_t at = x * s.x_stride + w * s.per_word();
#if TINYSCALE_X86 && !TINYSCALE_INTERPRETER
  if (s.kind == WordKind::f32_by_unit) {
    const float* from = static_cast<const float*>(s.data) + at;
    Words16 v;
    round_by_unit(from, from + 16, v);
    *reinterpret_cast<LooseWords16*>(to) = v;
    return;
  }
#endif
  if (s.kind != WordKind::f32) {
    const std::int64_t bytes = s.kind == WordKind::int8 ? 1 : 2;
    const auto* from = static_cast<const unsigned char*>(s.data) + at * bytes;
    *reinterpret_cast<LooseWords16*>(to) = *reinterpret_cast<const LooseWords16*>(from) ^ s.flip;
    return;
  }
  for (int half = 0; half < 2; ++half) {
    Words16 v =
        *reinterpret_cast<const LooseWords16*>(static_cast<const float*>(s.data) + at + half * 16);
    round_words(v);
    const LongWords8 pairs = *reinterpret_cast<const LooseLongWords8*>(&v);
    const LongWords8 words = ((pairs >> 16) & 0xffffU) | ((pairs >> 32) & 0xffff0000U);
    *reinterpret_cast<LooseWords8*>(to + half * 8) = __builtin_convertvector(words, LooseWords8);
  }
}

// Word w of 16 rows from x, where neighbours in memory are neighbours in x.
TINYSCALE_INLINE void words_along_x(const WordSource& s, std::int64_t x, std::int64_t w,
                                    std::uint32_t* to) {
  Words16 out = {};
  const std::int64_t at = x + w * s.per_word() * s.k_stride;
#if TINYSCALE_X86 && !TINYSCALE_INTERPRETER
  if (s.kind == WordKind::f32_by_unit) {
    const float* from = static_cast<const float*>(s.data) + at;
    Words16 v;
    round_by_unit(from, from + s.k_stride, v);
    const LooseShorts16* halves = reinterpret_cast<const LooseShorts16*>(&v);
    out = __builtin_convertvector(halves[0], Words16) | __builtin_convertvector(halves[1], Words16)
                                                            << 16;
    *reinterpret_cast<LooseWords16*>(to) = out;
    return;
  }
#endif
  if (s.kind == WordKind::f32) {
    const float* from = static_cast<const float*>(s.data) + at;
    Words16 low = *reinterpret_cast<const LooseWords16*>(from);
    Words16 high = *reinterpret_cast<const LooseWords16*>(from + s.k_stride);
    round_words(low);
    round_words(high);
    out = (low >> 16) | (high & 0xffff0000U);
  } else if (s.kind == WordKind::bf16) {
    const std::uint16_t* from = static_cast<const std::uint16_t*>(s.data) + at;
    const LooseShorts16& low = *reinterpret_cast<const LooseShorts16*>(from);
    const LooseShorts16& high = *reinterpret_cast<const LooseShorts16*>(from + s.k_stride);
    out = __builtin_convertvector(low, Words16) | __builtin_convertvector(high, Words16) << 16;
  } else {
    const std::uint8_t* from = static_cast<const std::uint8_t*>(s.data) + at;
    for (int e = 0; e < 4; ++e) {
      const LooseBytes16& row = *reinterpret_cast<const LooseBytes16*>(from + e * s.k_stride);
      out = out | __builtin_convertvector(row, Words16) << (8 * e);
    }
  }
  *reinterpret_cast<LooseWords16*>(to) = out ^ s.flip;
}
#endif

// Words [w0, w0 + ws) of rows [x0, x0 + xs), to[x * to_x + w * to_w]; one of to_x and to_w is 1.
struct WordPack {
  const WordSource& s;
  std::int64_t x0, xs, w0, ws;
  std::uint32_t* to;
  std::int64_t to_x, to_w;

  TINYSCALE_INLINE void run() const {
    for (std::int64_t x = 0; x < xs; x += 16) {
      for (std::int64_t w = 0; w < ws; w += 16) {
        block(x, w, std::min<std::int64_t>(16, xs - x), std::min<std::int64_t>(16, ws - w));
      }
    }
  }

  TINYSCALE_INLINE void block(std::int64_t x, std::int64_t w, std::int64_t wide,
                              std::int64_t deep) const {
    const std::int64_t stride_in = s.k_stride == 1 ? to_x : to_w;
#if TINYSCALE_VECTOR_EXTENSIONS
    if (wide == 16 && deep == 16 && x0 + x + 16 <= s.xs && (w0 + w + 16) * s.per_word() <= s.ks) {
      const bool along_k = s.k_stride == 1;
      const bool straight = (along_k ? to_w : to_x) == 1;
      std::uint32_t square[16][16];
      std::uint32_t* const start = to + x * to_x + w * to_w;
      for (std::int64_t r = 0; r < 16; ++r) {
        std::uint32_t* const row = straight ? start + r * stride_in : square[r];
        if (along_k) {
          words_along_k(s, x0 + x + r, w0 + w, row);
        } else {
          words_along_x(s, x0 + x, w0 + w + r, row);
        }
      }
      for (std::int64_t r = 0; r < 16 && !straight; ++r) {
        for (std::int64_t e = 0; e < 16; ++e) {
          start[r * (along_k ? to_w : to_x) + e] = square[e][r];
        }
      }
      return;
    }
#endif
    for (std::int64_t r = 0; r < wide; ++r) {
      for (std::int64_t e = 0; e < deep; ++e) {
        to[(x + r) * to_x + (w + e) * to_w] = word_at(s, x0 + x + r, w0 + w + e);
      }
    }
  }
};

#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS
__attribute__((target("avx512f,avx512bw"), noinline)) inline void pack_words_512(
    const WordPack& pack) {
  pack.run();
}
#endif

inline void pack_words(const WordPack& pack) {
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS
  if (active_path() == CpuPath::avx512) {
    pack_words_512(pack);
    return;
  }
#endif
  pack.run();
}

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

  bool a_along_x;  // A packed [depth][row] inside a block of rows, and not [row][depth]

  // Row i from word w, and the words from it to the next row and to the next word of k.
  const std::uint32_t* a_at(std::int64_t w, std::int64_t i, std::int64_t& to_row,
                            std::int64_t& to_word) const {
    const std::int64_t first = i / word_block * word_block;
    const std::int64_t depth = std::min(word_depth, words - w);
    to_row = a_along_x ? 1 : depth;
    to_word = a_along_x ? std::min(word_block, a_rows - first) : 1;
    return a + w * a_rows + first * depth + (i - first) * to_row;
  }
};

// The dot products of U in registers: U::rows x (VECTORS of 16) numbers of C, as gemm_tile does.
template <class U>
struct WordTiles {
  typedef typename U::Sum Sum;
  typedef typename U::Scalar Scalar;
  const WordTask& t;

  TINYSCALE_INLINE void run() const {
    for (std::int64_t w = 0; w < t.words; w += word_depth) {
      for (std::int64_t x = t.panel; x < t.panel_end; ++x) {
        const std::int64_t first = x * word_wide;
        const std::int64_t columns = std::min(word_wide, t.n - first);
        for (std::int64_t i = t.row; i < t.row_end; i += U::rows) {
          std::int64_t j = 0;
          for (; j + U::vectors * U::width <= columns; j += U::vectors * U::width) {
            tile<U::vectors>(w, x, j, i, U::vectors * U::width);
          }
          for (; j < columns; j += U::width) {
            tile<1>(w, x, j, i, std::min<std::int64_t>(U::width, columns - j));
          }
        }
      }
    }
  }

  template <int VECTORS>
  TINYSCALE_INLINE void tile(std::int64_t w, std::int64_t x, std::int64_t j, std::int64_t i,
                             std::int64_t columns) const {
    Sum sum[static_cast<std::size_t>(U::rows)][static_cast<std::size_t>(VECTORS)];
    TINYSCALE_UNROLL
    for (int r = 0; r < U::rows; ++r) {
      TINYSCALE_UNROLL
      for (int v = 0; v < VECTORS; ++v) {
        sum[r][v] = Sum{};
      }
    }
    const std::int64_t depth = std::min(word_depth, t.words - w);
    std::int64_t to_row = 0, to_word = 0;
    const std::uint32_t* a = t.a_at(w, i, to_row, to_word);
    const std::uint32_t* b = t.b + x * t.words * word_wide + w * word_wide + j;
    for (std::int64_t p = 0; p < depth; ++p) {
      typename U::Words right[static_cast<std::size_t>(VECTORS)], left;
      TINYSCALE_UNROLL
      for (int v = 0; v < VECTORS; ++v) {
        U::load(b + p * word_wide + v * U::width, right[v]);
      }
      TINYSCALE_UNROLL
      for (int r = 0; r < U::rows; ++r) {
        U::broadcast(a[r * to_row], left);
        TINYSCALE_UNROLL
        for (int v = 0; v < VECTORS; ++v) {
          U::dot(left, right[v], sum[r][v]);
        }
      }
      a += to_word;
    }
    TINYSCALE_UNROLL
    for (int r = 0; r < U::rows; ++r) {
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
    pack_words(WordPack{b, first + x * word_wide, word_wide, w, words, to + x * words * word_wide,
                        1, word_wide});
  }
}

// A whole B, packed once: [word_pass of k][panel][k][64]. Aligned to cache lines.
class WordBuffer {
 public:
  explicit WordBuffer(std::int64_t count)
      : data_(static_cast<std::uint32_t*>(
            ::operator new(static_cast<std::size_t>(count) * 4 + 64, std::align_val_t(64)))) {}
  ~WordBuffer() { ::operator delete(data_, std::align_val_t(64)); }
  WordBuffer(const WordBuffer&) = delete;
  WordBuffer& operator=(const WordBuffer&) = delete;

  std::uint32_t* data() const { return data_; }

 private:
  std::uint32_t* data_;
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
    for (std::int64_t d = 0; d < p.words; d += word_depth) {
      const std::int64_t depth = std::min(word_depth, p.words - d);
      pack_words(WordPack{g.a, p.i + first, count, p.w + d, depth, p.a + d * padded + first * depth,
                          along_x ? 1 : depth, along_x ? count : 1});
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
  const std::int64_t wide = 4;  // panels of a task
  const std::int64_t groups = (panels + wide - 1) / wide;
  const auto multiply = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t x = begin; x < end; ++x) {
      const std::int64_t row = x / groups * word_block, panel = x % groups * wide;
      g.unit.run(WordTask{p.a, round_up(p.rows, g.unit.rows), p.b, p.words, row,
                          std::min(p.rows, row + word_block), panel, std::min(panels, panel + wide),
                          p.columns, static_cast<float*>(g.c) + p.i * g.ldc + p.j, g.ldc,
                          g.start == nullptr ? nullptr : g.start + p.i, g.beta != 0.0f || p.w > 0,
                          g.unit.a_along_x(g.a)});
    }
  };
  if (p.rows * p.columns * p.words < (1 << 18)) {  // less than waking a thread pays
    pack(0, a_blocks + b_panels);
    multiply(0, blocks * groups);
    return;
  }
  parallel_for(a_blocks + b_panels, 1, pack);
  parallel_for(blocks * groups, 1, multiply);
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
  const Scratch a_lease(round_up(rows, g.unit.rows) * pass);
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
