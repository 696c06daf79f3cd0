#pragma once
// Operands of low-precision products as words of 32 bits along k: 2 bf16 numbers or 4 int8 numbers,
// rounded, turned and laid out in one pass over memory.
//   A packed:  [k / depth][row][depth]       B packed:  [panel][k][64 columns]
//   A of tiles:  [32 rows][16 of k][row][16]

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tinyscale/base/format.hpp"
#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/compute/transpose.hpp"
#include "tinyscale/compute/x86_units.hpp"

namespace tinyscale {
namespace detail {

constexpr std::int64_t word_depth = 256;    // words of k of one tile: 64 KB of a panel, in L2
constexpr std::int64_t word_few = 16;       // rows of A up to which reading B is the cost
constexpr std::int64_t word_piece = 64;     // words of k then: 16 KB of a panel
constexpr std::int64_t word_pass = 2048;    // words of k packed at once
constexpr std::int64_t word_block = 96;     // rows of one task: a multiple of every tile's rows
constexpr std::int64_t word_tall = 512;     // most rows of one task in tiles
constexpr std::int64_t word_square = 32;    // rows of four tiles
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
typedef std::uint16_t LooseShorts16 __attribute__((vector_size(32), aligned(1), may_alias));
typedef std::uint8_t LooseBytes16 __attribute__((vector_size(16), aligned(1), may_alias));

// 16 words of row x from word w, read along k.
TINYSCALE_INLINE void words_along_k(const WordSource& s, std::int64_t x, std::int64_t w,
                                    std::uint32_t* to) {
  const std::int64_t at = x * s.x_stride + w * s.per_word();
#if TINYSCALE_X86_UNITS
  if (s.kind == WordKind::f32_by_unit) {
    const float* from = static_cast<const float*>(s.data) + at;
    Lanes16::I v;
    prefetch<3>(from + 64);  // the square after the next
    prefetch<3>(from + 80);
    round_by_unit(from, from + 16, v);
    *reinterpret_cast<Lanes16::LooseI*>(to) = v;
    return;
  }
#endif
  const std::int64_t bytes = s.kind == WordKind::int8 ? 1 : 2;
  const unsigned char* const from = static_cast<const unsigned char*>(s.data) + at * bytes;
  *reinterpret_cast<LooseWords16*>(to) = *reinterpret_cast<const LooseWords16*>(from) ^ s.flip;
}

// Word w of 16 rows from x, where neighbours in memory are neighbours in x.
TINYSCALE_INLINE void words_along_x(const WordSource& s, std::int64_t x, std::int64_t w,
                                    std::uint32_t* to) {
  Words16 out = {};
  const std::int64_t at = x + w * s.per_word() * s.k_stride;
#if TINYSCALE_X86_UNITS
  if (s.kind == WordKind::f32_by_unit) {
    const float* from = static_cast<const float*>(s.data) + at;
    Lanes16::I v;
    prefetch(from + 32 * s.k_stride);  // the next square's rows
    prefetch(from + 33 * s.k_stride);
    round_by_unit(from, from + s.k_stride, v);
    const LooseShorts16* halves = reinterpret_cast<const LooseShorts16*>(&v);
    out = __builtin_convertvector(halves[0], Words16) | __builtin_convertvector(halves[1], Words16)
                                                            << 16;
    *reinterpret_cast<LooseWords16*>(to) = out;
    return;
  }
#endif
  if (s.kind == WordKind::bf16) {
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

// Words [w0, w0 + ws) of rows [x0, x0 + xs): to[x * to_x + w * to_w], and to_step from one 16 words
// of k to the next. One of to_x and to_w is 1.
struct WordPack {
  const WordSource& s;
  std::int64_t x0, xs, w0, ws;
  std::uint32_t* to;
  std::int64_t to_x, to_w, to_step;

  template <class L>
  TINYSCALE_INLINE void run() const {
    const bool along_k = s.k_stride == 1;  // squares in the order of memory
    const std::int64_t wide = (xs + 15) / 16, deep = (ws + 15) / 16;
    for (std::int64_t y = 0; y < wide * deep; ++y) {
      const std::int64_t x = (along_k ? y / deep : y % wide) * 16;
      const std::int64_t w = (along_k ? y % deep : y / wide) * 16;
      block<L>(x, w, std::min<std::int64_t>(16, xs - x), std::min<std::int64_t>(16, ws - w));
    }
  }

  template <class L>
  TINYSCALE_INLINE void block(std::int64_t x, std::int64_t w, std::int64_t wide,
                              std::int64_t deep) const {
    std::uint32_t* const start = to + x * to_x + w / 16 * to_step;
#if TINYSCALE_VECTOR_EXTENSIONS
    const bool along_k = s.k_stride == 1, straight = (along_k ? to_w : to_x) == 1;
    const std::int64_t rows = std::min(wide, s.xs - x0 - x);  // that are there
    if (s.kind != WordKind::f32 && (rows == 16 || (along_k && straight)) && deep == 16 &&
        (w0 + w + 16) * s.per_word() <= s.ks) {
      const std::int64_t stride_in = along_k ? to_x : to_w;
      alignas(64) std::uint32_t square[16][16];
      for (std::int64_t r = 0; r < (along_k ? wide : 16); ++r) {
        std::uint32_t* const row = straight ? start + r * stride_in : square[r];
        if (r >= rows && along_k) {
          std::fill(row, row + 16, s.flip);
        } else if (along_k) {
          words_along_k(s, x0 + x + r, w0 + w, row);
        } else {
          words_along_x(s, x0 + x, w0 + w + r, row);
        }
      }
      if (!straight) {
        turn<L>(square, start, along_k ? to_w : to_x);
      }
      return;
    }
#endif
    for (std::int64_t r = 0; r < wide; ++r) {
      for (std::int64_t e = 0; e < deep; ++e) {
        start[r * to_x + e * to_w] = word_at(s, x0 + x + r, w0 + w + e);
      }
    }
  }

#if TINYSCALE_VECTOR_EXTENSIONS
  // to[e * row + r] = square[r][e]; words are moved as numbers, which keeps their bits.
  template <class L>
  static TINYSCALE_INLINE void turn(const std::uint32_t (&square)[16][16], std::uint32_t* turned,
                                    std::int64_t row) {
    if constexpr (L::width == 16 && turns_squares<L>) {
      typename L::V r[16];
      TINYSCALE_UNROLL
      for (int i = 0; i < 16; ++i) {
        load<L>(reinterpret_cast<const float*>(square[i]), r[i]);
      }
      turn_square(r);
      TINYSCALE_UNROLL
      for (int i = 0; i < 16; ++i) {
        store<L>(reinterpret_cast<float*>(turned + i * row), r[i]);
      }
      return;
    }
    for (std::int64_t r = 0; r < 16; ++r) {
      for (std::int64_t e = 0; e < 16; ++e) {
        turned[r * row + e] = square[e][r];
      }
    }
  }
#endif
};

}  // namespace detail
}  // namespace tinyscale
