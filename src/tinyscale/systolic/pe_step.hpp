#pragma once
// One multiply-add of every PE in every tick of a block, a few rows of PEs at a time.
// No wire of the array leads west or north, so a strip of PEs can be stepped through a whole block
// of ticks before those to its south: its sums and weights stay in the CPU's registers. What moves
// through a row or a column stands still in memory, and the PEs' view of it moves the other way.
// A multiply-add rounds once (std::fma) on every CPU path, so results are the same bits everywhere.

#include <algorithm>  // min
#include <cmath>      // fma
#include <cstdint>    // int32_t, int64_t
#include <cstring>    // memcpy

#include "tinyscale/base/list.hpp"
#include "tinyscale/compute/lanes.hpp"

namespace tinyscale {
namespace detail {

constexpr std::int64_t block_ticks = 64;
constexpr int strip_rows = 8;  // rows of PEs stepped together

// A tick at which something in the PEs changes: with the wave (+ r + c), or by column (+ c, or
// not).
struct PeChange {
  std::int64_t tick = 0;  // in the block
  int kind = 0;           // 1: with the wave; 2: by column; 3: all columns at once
};

// Where the registers of the PEs are, for a block of ticks j = 0 .. block_ticks - 1. Planes have
// `step` words a row and begin at PE row `first`; rows above it fill up the first strip.
struct PeBlock {
  std::int64_t first = 0, rows = 0, cols = 0, step = 0;  // rows: a multiple of strip_rows
  const float* west = nullptr;                           // moves east: row r, tick j, PE c is at
  std::int64_t west_step = 0;                            //   west[r west_step + now(j) + c]
  const float* north[3] = {};                            // moves south: [(now(j) + r) step + c]
  const std::int32_t* wave = nullptr;                    // moves both ways: [now(j) + r + c]
  const std::int32_t* leaving = nullptr;                 // the same: sums leave, to plane - 1
  const std::int32_t* loaded = nullptr;                  // by column: [now(j) loaded_tick + c ..]
  std::int64_t loaded_tick = 1, loaded_col = 1;
  float *weight = nullptr, *sum = nullptr;  // resting registers
  float *held[3] = {}, *next[3] = {};       // pieces of the weight in use, and loaded
  int pieces = 1, passes = 1;
  int piece_of[6] = {};    // the piece that pass q multiplies
  float* edge = nullptr;   // [block_ticks + 1, step]: sums going south
  float* exits = nullptr;  // planes of sums that have left their PE
  const List<PeChange>* changes = nullptr;
  const List<std::int32_t>* leavers = nullptr;  // the planes + 1 of this block

  static std::int64_t now(std::int64_t j) { return block_ticks - 1 - j; }

  // The kinds of change that PEs (r .., c ..) see in tick j, and until when nothing else begins.
  int changes_at(std::int64_t j, std::int64_t r, std::int64_t c, std::int64_t width,
                 std::int64_t& until) const {
    int kinds = 0;
    until = block_ticks;
    for (const PeChange& change : *changes) {
      const std::int64_t begin = change.tick + (change.kind == 1   ? r + c
                                                : change.kind == 2 ? c
                                                                   : 0);
      const std::int64_t end = begin + (change.kind == 1   ? strip_rows + width - 1
                                        : change.kind == 2 ? width
                                                           : 1);
      if (begin > j) {
        until = std::min(until, begin);
      } else if (end > j) {
        kinds |= change.kind == 1 ? 1 : 2;
        until = std::min(until, end);
      }
    }
    return kinds;
  }
};

// Floats or 32-bit integers in the lanes of L, from words of either kind.
template <class L, class Word>
struct WordLanes {
  typedef typename L::V V;
  typedef typename L::Loose Loose;
};
template <class L>
struct WordLanes<L, std::int32_t> {
  typedef typename L::I V;
  typedef typename L::LooseI Loose;
};

template <class L, class Word>
TINYSCALE_INLINE void load_words(const float* from, typename WordLanes<L, Word>::V& v) {
  if constexpr (L::width == 1) {
    std::memcpy(&v, from, sizeof v);
  } else {
    v = *reinterpret_cast<const typename WordLanes<L, Word>::Loose*>(from);
  }
}

template <class L, class Word>
TINYSCALE_INLINE void store_words(float* to, const typename WordLanes<L, Word>::V& v) {
  if constexpr (L::width == 1) {
    std::memcpy(to, &v, sizeof v);
  } else {
    *reinterpret_cast<typename WordLanes<L, Word>::Loose*>(to) = v;
  }
}

// s = a w + s, rounded once.
template <class L, class Word>
TINYSCALE_INLINE void multiply_add(const typename WordLanes<L, Word>::V& a,
                                   const typename WordLanes<L, Word>::V& w,
                                   typename WordLanes<L, Word>::V& s) {
#if defined(__clang__)
#pragma clang fp contract(on)
#endif
  if constexpr (L::width == 1 && sizeof(Word) == sizeof(float) && static_cast<Word>(0.5f) > 0) {
    s = std::fma(a, w, s);
  } else {
    s = a * w + s;
  }
}

// Lanes whose code is `code`.
template <class L>
TINYSCALE_INLINE void lanes_with(const std::int32_t* codes, std::int32_t code,
                                 typename L::I& mask) {
  if constexpr (L::width == 1) {
    mask = *codes == code ? -1 : 0;
  } else {
    typename L::I all;
    broadcast_word(code, all);
    mask = *reinterpret_cast<const typename L::LooseI*>(codes) == all;
  }
}

// to = mask ? yes : to, in memory; and in a register.
template <class L, class Word>
TINYSCALE_INLINE void keep_where(const typename L::I& mask,
                                 const typename WordLanes<L, Word>::V& yes, float* to) {
  typename WordLanes<L, Word>::V old;
  load_words<L, Word>(to, old);
  old = mask ? yes : old;
  store_words<L, Word>(to, old);
}

// The registers of a strip, to and from memory.
template <class L, class Word>
TINYSCALE_INLINE void load_strip(const float* from, std::int64_t step,
                                 typename WordLanes<L, Word>::V (&v)[strip_rows]) {
  TINYSCALE_UNROLL
  for (int g = 0; g < strip_rows; ++g) {
    load_words<L, Word>(from + g * step, v[g]);
  }
}
template <class L, class Word>
TINYSCALE_INLINE void store_strip(float* to, std::int64_t step,
                                  const typename WordLanes<L, Word>::V (&v)[strip_rows]) {
  TINYSCALE_UNROLL
  for (int g = 0; g < strip_rows; ++g) {
    store_words<L, Word>(to + g * step, v[g]);
  }
}

// sum(r, c) = activation(r, c - 1) weight(r, c) + sum(r - 1, c): sums move south.
template <class Word>
struct SumsMoveSouth {
  PeBlock b;

  template <class L>
  TINYSCALE_INLINE void run() const {
    typename WordLanes<L, Word>::V w[strip_rows], s[strip_rows], a, in, above;
    for (std::int64_t c = 0; c < b.cols; c += L::width) {
      for (std::int64_t j = 0; j <= block_ticks; ++j) {
        store_words<L, Word>(b.edge + j * b.step + c, typename WordLanes<L, Word>::V{});
      }
      for (std::int64_t r = 0; r < b.rows; r += strip_rows) {
        load_strip<L, Word>(b.sum + r * b.step + c, b.step, s);
        const auto old = s[strip_rows - 1];
        load_words<L, Word>(b.edge + c, above);
        for (std::int64_t j = 0, until = 0; j < block_ticks;) {
          const int kinds = b.changes_at(j, r - b.first, c, L::width, until);
          load_strip<L, Word>(b.weight + r * b.step + c, b.step, w);
          for (; j < until; ++j) {
            if ((kinds & 1) != 0) {
              switch_weights<L>(j, r, c);
              load_strip<L, Word>(b.weight + r * b.step + c, b.step, w);
            }
            in = above;
            load_words<L, Word>(b.edge + (j + 1) * b.step + c, above);
            const float* west = b.west + r * b.west_step + PeBlock::now(j) + c;
            TINYSCALE_UNROLL
            for (int g = strip_rows - 1; g > 0; --g) {  // from the last row: neighbours' old values
              load_words<L, Word>(west + g * b.west_step, a);
              auto sum = s[g - 1];
              multiply_add<L, Word>(a, w[g], sum);
              s[g] = sum;
            }
            load_words<L, Word>(west, a);
            multiply_add<L, Word>(a, w[0], in);
            s[0] = in;
            store_words<L, Word>(b.edge + (j + 1) * b.step + c, s[strip_rows - 1]);
            if ((kinds & 2) != 0) {
              take_weights<L>(j, r, c);
            }
          }
        }
        store_words<L, Word>(b.edge + c, old);
        store_strip<L, Word>(b.sum + r * b.step + c, b.step, s);
      }
    }
  }

 private:
  // PEs that the first slot of a fold reaches take the loaded weights, those that a pass reaches
  // its piece.
  template <class L>
  TINYSCALE_INLINE void switch_weights(std::int64_t j, std::int64_t r, std::int64_t c) const {
    typename L::I mask;
    typename WordLanes<L, Word>::V loaded;
    for (std::int64_t g = std::max(r, b.first); g < r + strip_rows; ++g) {
      const std::int32_t* codes = b.wave + PeBlock::now(j) + g - b.first + c;
      const std::int64_t at = g * b.step + c;
      lanes_with<L>(codes, 1, mask);
      for (int p = 0; p < b.pieces; ++p) {
        load_words<L, Word>(b.next[p] + at, loaded);
        keep_where<L, Word>(mask, loaded, b.held[p] + at);
      }
      for (int q = 0; q < b.passes; ++q) {
        lanes_with<L>(codes, q + 1, mask);
        load_words<L, Word>(b.held[b.piece_of[q]] + at, loaded);
        keep_where<L, Word>(mask, loaded, b.weight + at);
      }
    }
  }

  // Columns whose shift-in is complete keep what has come to each PE.
  template <class L>
  TINYSCALE_INLINE void take_weights(std::int64_t j, std::int64_t r, std::int64_t c) const {
    typename L::I mask;
    typename WordLanes<L, Word>::V moving;
    lanes_with<L>(b.loaded + PeBlock::now(j) * b.loaded_tick + c * b.loaded_col, 1, mask);
    for (int p = 0; p < b.pieces; ++p) {
      for (std::int64_t g = std::max(r, b.first); g < r + strip_rows; ++g) {
        load_words<L, Word>(b.north[p] + (PeBlock::now(j) + g - b.first) * b.step + c, moving);
        keep_where<L, Word>(mask, moving, b.next[p] + g * b.step + c);
      }
    }
  }
};

// sum(r, c) += activation(r, c - 1) weight(r - 1, c): both operands move on, sums stay.
template <class Word>
struct SumsStay {
  PeBlock b;

  template <class L>
  TINYSCALE_INLINE void run() const {
    typename WordLanes<L, Word>::V s[strip_rows], a, w;
    for (std::int64_t c = 0; c < b.cols; c += L::width) {
      for (std::int64_t r = 0; r < b.rows; r += strip_rows) {
        float* sums = b.sum + r * b.step + c;
        load_strip<L, Word>(sums, b.step, s);
        for (std::int64_t j = 0, until = 0; j < block_ticks;) {
          const int kinds = b.changes_at(j, r - b.first, c, L::width, until);
          for (; j < until; ++j) {
            if (kinds != 0) {
              store_strip<L, Word>(sums, b.step, s);
              switch_sums<L>(j, r, c);
              load_strip<L, Word>(sums, b.step, s);
            }
            const float* west = b.west + r * b.west_step + PeBlock::now(j) + c;
            const float* north = b.north[0] + (PeBlock::now(j) + r - b.first) * b.step + c;
            TINYSCALE_UNROLL
            for (int g = 0; g < strip_rows; ++g) {
              load_words<L, Word>(west + g * b.west_step, a);
              load_words<L, Word>(north + g * b.step, w);
              multiply_add<L, Word>(a, w, s[g]);
            }
          }
        }
        store_strip<L, Word>(sums, b.step, s);
      }
    }
  }

 private:
  // A sum that is to leave goes to its fold's plane; the first slot of a fold begins from +0.
  template <class L>
  TINYSCALE_INLINE void switch_sums(std::int64_t j, std::int64_t r, std::int64_t c) const {
    typename L::I mask;
    typename WordLanes<L, Word>::V sum;
    for (std::int64_t g = std::max(r, b.first); g < r + strip_rows; ++g) {
      const std::int64_t slot = PeBlock::now(j) + g - b.first + c;
      load_words<L, Word>(b.sum + g * b.step + c, sum);
      for (const std::int32_t plane : *b.leavers) {
        lanes_with<L>(b.leaving + slot, plane, mask);
        keep_where<L, Word>(mask, sum, b.exits + ((plane - 1) * b.rows + g) * b.step + c);
      }
      lanes_with<L>(b.wave + slot, 1, mask);
      keep_where<L, Word>(mask, typename WordLanes<L, Word>::V{}, b.sum + g * b.step + c);
    }
  }
};

// Whether the lanes of the path in use round a w + s once: asked of the code itself, since compiler
// flags decide it. (1 + e)^2 - (1 + 2 e) is e^2 when fused, else 0.
struct FusedProbe {
  const float* in;  // 16 times 1 + e, then 16 times -(1 + 2 e)
  float* out;

  template <class L>
  TINYSCALE_INLINE void run() const {
    typename L::V a, s;
    load<L>(in, a);
    load<L>(in + 16, s);
    multiply_add<L, float>(a, a, s);
    store<L>(out, s);
  }
};

inline bool lanes_are_fused() {
  const volatile float e = 1.0f / 4096;
  float in[32], out[16] = {};
  for (int i = 0; i < 16; ++i) {
    in[i] = 1 + e;
    in[16 + i] = -(1 + 2 * e);
  }
  run_on_lanes(FusedProbe{in, out});
  return out[0] == e * e;
}

}  // namespace detail
}  // namespace tinyscale
