#pragma once
// Tiles: 8 registers of 16 rows x 64 bytes, and one instruction that multiplies two of them,
// C[16, 16] += A[16, 16 words] B[16 words, 16]. Four C tiles take two of A and two of B: 32 x 32 of
// C on 4 loads a step. The kernel asks a tile unit: the processor's (Intel AMX; run-time detection
// only), or RAM with the same meaning, which tests run where there is no AMX.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tinyscale/base/cpu.hpp"
#include "tinyscale/base/format.hpp"
#include "tinyscale/compute/gemm_words.hpp"
#include "tinyscale/compute/x86_units.hpp"

namespace tinyscale {
namespace detail {

// The reference body, which is the whole unit in RAM. dot_bf16 sums even and odd places apart, as
// the processor does (it also takes denormals as zero).
struct SoftTiles {
  std::uint32_t tiles[8][16][16];

  void start() {}
  void stop() {}
  template <int C>
  void zero() {
    std::memset(tiles[C], 0, sizeof(tiles[C]));
  }
  template <int T>
  void load(const void* from, std::int64_t stride) {  // bytes from row to row
    for (int r = 0; r < 16; ++r) {
      std::memcpy(tiles[T][r], static_cast<const char*>(from) + r * stride, 64);
    }
  }
  template <int T>
  void store(void* to, std::int64_t stride) {
    for (int r = 0; r < 16; ++r) {
      std::memcpy(static_cast<char*>(to) + r * stride, tiles[T][r], 64);
    }
  }
  template <int C, int A, int B>
  void dot_bf16() {
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 16; ++j) {
        float even = 0.0f, odd = 0.0f;
        for (int p = 0; p < 16; ++p) {
          const std::uint32_t a = tiles[A][i][p], b = tiles[B][p][j];
          even += float_of(a << 16) * float_of(b << 16);
          odd += float_of(a & 0xffff0000U) * float_of(b & 0xffff0000U);
        }
        tiles[C][i][j] = bits_of(float_of(tiles[C][i][j]) + (even + odd));
      }
    }
  }
  template <int C, int A, int B>
  void dot_int8() {  // A of int8, B of uint8
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 16; ++j) {
        for (int p = 0; p < 16; ++p) {
          for (int e = 0; e < 32; e += 8) {
            const auto a = static_cast<std::int8_t>(tiles[A][i][p] >> e);
            const auto b = static_cast<std::uint8_t>(tiles[B][p][j] >> e);
            tiles[C][i][j] += static_cast<std::uint32_t>(a * b);
          }
        }
      }
    }
  }
};

// What the elements of words are, for a task in tiles: bf16 words give float, int8 words int32.
struct Bf16InTiles {
  typedef float Scalar;
  template <int C, int A, int B, class Tiles>
  static void dot(Tiles& tiles) {
    tiles.template dot_bf16<C, A, B>();
  }
};
struct Int8InTiles {
  typedef std::int32_t Scalar;
  template <int C, int A, int B, class Tiles>
  static void dot(Tiles& tiles) {
    tiles.template dot_int8<C, A, B>();
  }
};

// C[32, 32] (+)= A[32, depth] B[depth, 32]; depth is a multiple of 16 words, a row of A its depth.
template <class Tiles, class Element>
void tile_square(Tiles& tiles, const std::uint32_t* a, const std::uint32_t* b, std::int64_t depth,
                 bool add, typename Element::Scalar* c, std::int64_t ldc) {
  if (add) {
    tiles.template load<0>(c, ldc * 4);
    tiles.template load<1>(c + 16, ldc * 4);
    tiles.template load<2>(c + 16 * ldc, ldc * 4);
    tiles.template load<3>(c + 16 * ldc + 16, ldc * 4);
  } else {
    tiles.template zero<0>();
    tiles.template zero<1>();
    tiles.template zero<2>();
    tiles.template zero<3>();
  }
  for (std::int64_t p = 0; p < depth; p += 16) {
    tiles.template load<4>(a + p, depth * 4);
    tiles.template load<6>(b + p * word_wide, word_wide * 4);
    tiles.template load<7>(b + p * word_wide + 16, word_wide * 4);
    Element::template dot<0, 4, 6>(tiles);
    Element::template dot<1, 4, 7>(tiles);
    tiles.template load<5>(a + 16 * depth + p, depth * 4);
    Element::template dot<2, 5, 6>(tiles);
    Element::template dot<3, 5, 7>(tiles);
  }
  tiles.template store<0>(c, ldc * 4);
  tiles.template store<1>(c + 16, ldc * 4);
  tiles.template store<2>(c + 16 * ldc, ldc * 4);
  tiles.template store<3>(c + 16 * ldc + 16, ldc * 4);
}

// Copies between C and the square that stands for its edge.
template <class Scalar>
void copy_edge(const Scalar* from, std::int64_t from_row, Scalar* to, std::int64_t to_row,
               std::int64_t rows, std::int64_t columns) {
  for (std::int64_t r = 0; r < rows; ++r) {
    std::copy(from + r * from_row, from + r * from_row + columns, to + r * to_row);
  }
}

template <class Tiles, class Element>
void run_tiles(const WordTask& t) {
  typedef typename Element::Scalar Scalar;
  Tiles tiles;
  tiles.start();
  alignas(64) Scalar square[32 * 32] = {};
  for (std::int64_t w = 0; w < t.words; w += word_depth) {
    const std::int64_t depth = std::min(word_depth, t.words - w);
    for (std::int64_t j = t.panel * word_wide; j < std::min(t.n, t.panel_end * word_wide);
         j += 32) {
      const std::uint32_t* const b =
          t.b + j / word_wide * t.words * word_wide + w * word_wide + j % word_wide;
      const std::int64_t columns = std::min<std::int64_t>(32, t.n - j);
      for (std::int64_t i = t.row; i < t.row_end; i += 32) {
        const std::int64_t rows = std::min<std::int64_t>(32, t.row_end - i);
        Scalar* const c = static_cast<Scalar*>(t.c) + i * t.ldc + j;
        const bool whole = rows == 32 && columns == 32, add = t.add || w > 0;
        for (std::int64_t r = 0; r < rows && !add && t.start != nullptr; ++r) {
          std::fill(c + r * t.ldc, c + r * t.ldc + columns, static_cast<Scalar>(t.start[i + r]));
        }
        const bool from_c = add || t.start != nullptr;
        if (!whole && from_c) {
          copy_edge(c, t.ldc, square, 32, rows, columns);
        }
        std::int64_t to_row = 0, to_word = 0;
        const std::uint32_t* const a = t.a_at(w, i, to_row, to_word);
        tile_square<Tiles, Element>(tiles, a, b, depth, from_c, whole ? c : square,
                                    whole ? t.ldc : 32);
        if (!whole) {
          copy_edge(square, 32, c, t.ldc, rows, columns);
        }
      }
    }
  }
  tiles.stop();
}

template <class Tiles, class Element>
WordUnit tile_unit() {
  return {run_tiles<Tiles, Element>, 32, 16, true};
}

}  // namespace detail
}  // namespace tinyscale
