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

// Copies between C and the square that stands for its edge.
template <class Scalar>
void copy_edge(const Scalar* from, std::int64_t from_row, Scalar* to, std::int64_t to_row,
               std::int64_t rows, std::int64_t columns) {
  for (std::int64_t r = 0; r < rows; ++r) {
    std::copy(from + r * from_row, from + r * from_row + columns, to + r * to_row);
  }
}

// A task in tiles. Packed A is [32 rows][16 words of k][row][16], so that a tile of it is one
// stretch of memory; a tile of B is 16 rows of a panel.
template <class Tiles, class Element>
class TileTask {
 public:
  explicit TileTask(const WordTask& task) : t_(task) {}

  void run() {
    tiles_.start();
    if (t_.row_end - t_.row <= 16) {
      for (std::int64_t x = t_.panel; x < t_.panel_end; ++x) {
        line(x);
      }
    } else {
      for (std::int64_t w = 0; w < t_.words; w += word_depth) {
        for (std::int64_t i = t_.row; i < t_.row_end; i += word_square) {
          row_of_squares(w, i);
        }
      }
    }
    tiles_.stop();
  }

 private:
  typedef typename Element::Scalar Scalar;

  // What four tiles begin with, null for zero, and how far it is from row to row and tile to tile.
  struct Begin {
    const Scalar* at;
    std::int64_t row, column;
  };

  // Up to 16 rows, one panel, all of k: reading B is the cost, so that it is read as it lies.
  void line(std::int64_t x) {
    const std::int64_t rows = t_.row_end - t_.row;
    const std::int64_t columns = std::min<std::int64_t>(word_wide, t_.n - x * word_wide);
    Scalar* const c = static_cast<Scalar*>(t_.c) + t_.row * t_.ldc + x * word_wide;
    const bool whole = rows == 16 && columns == word_wide;
    const Begin begin = begin_of(t_.row, rows, columns, c, t_.add, whole, word_wide);
    start(begin, begin.column, 2 * begin.column, 3 * begin.column);
    const std::uint32_t* a = t_.a + t_.row * t_.words;
    const std::uint32_t* b = t_.b + x * t_.words * word_wide;
    const std::int64_t step = 16 * word_wide;         // a page of memory
    const bool memory = t_.n * t_.words > (1 << 22);  // from there four come side by side
    const std::int64_t apart = memory ? step : step / 4;
    for (std::int64_t p = 0; p < t_.words; p += 16, a += 16 * word_square, b += step) {
      const std::int64_t turn = p / 16 % 4;
      const std::uint32_t* ahead = b + (memory ? 4 * step - turn * (step - step / 4) : 3 * step);
      for (std::int64_t line = 0; line < step / 4; line += 16, ahead += 16) {
        prefetch<3>(ahead);
        prefetch<3>(ahead + apart);
        prefetch<3>(ahead + 2 * apart);
        prefetch<3>(ahead + 3 * apart);
      }
      tiles_.template load<4>(a, 64);
      tiles_.template load<5>(b, word_wide * 4);
      Element::template dot<0, 4, 5>(tiles_);
      tiles_.template load<6>(b + 16, word_wide * 4);
      Element::template dot<1, 4, 6>(tiles_);
      tiles_.template load<7>(b + 32, word_wide * 4);
      Element::template dot<2, 4, 7>(tiles_);
      tiles_.template load<5>(b + 48, word_wide * 4);
      Element::template dot<3, 4, 5>(tiles_);
    }
    Scalar* const to = whole ? c : edge_;
    const std::int64_t row = whole ? t_.ldc : word_wide;
    end(to, row, 16, 32, 48);
    if (!whole) {
      copy_edge(edge_, word_wide, c, t_.ldc, rows, columns);
    }
  }

  // 32 rows of A stay in the first cache while the panels pass; the panels stay in the second.
  void row_of_squares(std::int64_t w, std::int64_t i) {
    const std::int64_t depth = std::min(word_depth, t_.words - w);
    const std::int64_t rows = std::min(word_square, t_.row_end - i);
    const std::uint32_t* const a = t_.a + i * t_.words + w * word_square;
    const std::int64_t end = std::min(t_.n, t_.panel_end * word_wide);
    for (std::int64_t j = t_.panel * word_wide; j < end; j += 32) {
      const std::int64_t columns = std::min<std::int64_t>(32, t_.n - j);
      const std::uint32_t* const b =
          t_.b + j / word_wide * t_.words * word_wide + w * word_wide + j % word_wide;
      Scalar* const c = static_cast<Scalar*>(t_.c) + i * t_.ldc + j;
      const bool whole = rows == word_square && columns == 32;
      const Begin begin = begin_of(i, rows, columns, c, t_.add || w > 0, whole, 32);
      square(begin, a, b, depth, i == t_.row ? t_.words * word_wide : 0, whole ? c : edge_,
             whole ? t_.ldc : 32);
      if (!whole) {
        copy_edge(edge_, 32, c, t_.ldc, rows, columns);
      }
    }
  }

  // to[32, 32] = begin + A[32, depth] B[depth, 32]; the same columns `ahead` words on are fetched.
  void square(const Begin& begin, const std::uint32_t* a, const std::uint32_t* b,
              std::int64_t depth, std::int64_t ahead, Scalar* to, std::int64_t row) {
    start(begin, begin.column, 16 * begin.row, 16 * begin.row + begin.column);
    for (std::int64_t p = 0; p < depth; p += 16) {
      for (std::int64_t e = 0; e < 16 && ahead != 0; ++e) {
        prefetch(b + ahead + (p + e) * word_wide);
        prefetch(b + ahead + (p + e) * word_wide + 16);
      }
      tiles_.template load<4>(a + p * word_square, 64);
      tiles_.template load<6>(b + p * word_wide, word_wide * 4);
      tiles_.template load<7>(b + p * word_wide + 16, word_wide * 4);
      Element::template dot<0, 4, 6>(tiles_);
      Element::template dot<1, 4, 7>(tiles_);
      tiles_.template load<5>(a + p * word_square + 256, 64);
      Element::template dot<2, 5, 6>(tiles_);
      Element::template dot<3, 5, 7>(tiles_);
    }
    end(to, row, 16, 16 * row, 16 * row + 16);
  }

  // The four tiles of C, the second to fourth so far from the first.
  void start(const Begin& begin, std::int64_t second, std::int64_t third, std::int64_t fourth) {
    if (begin.at == nullptr) {
      tiles_.template zero<0>();
      tiles_.template zero<1>();
      tiles_.template zero<2>();
      tiles_.template zero<3>();
      return;
    }
    tiles_.template load<0>(begin.at, begin.row * 4);
    tiles_.template load<1>(begin.at + second, begin.row * 4);
    tiles_.template load<2>(begin.at + third, begin.row * 4);
    tiles_.template load<3>(begin.at + fourth, begin.row * 4);
  }
  void end(Scalar* to, std::int64_t row, std::int64_t second, std::int64_t third,
           std::int64_t fourth) {
    tiles_.template store<0>(to, row * 4);
    tiles_.template store<1>(to + second, row * 4);
    tiles_.template store<2>(to + third, row * 4);
    tiles_.template store<3>(to + fourth, row * 4);
  }

  // What C holds, the numbers that rows start with, or zero.
  Begin begin_of(std::int64_t i, std::int64_t rows, std::int64_t columns, const Scalar* c, bool add,
                 bool whole, std::int64_t wide) {
    if (add) {
      if (whole) {
        return {c, t_.ldc, 16};
      }
      copy_edge(c, t_.ldc, edge_, wide, rows, columns);
      return {edge_, wide, 16};
    }
    if (t_.start == nullptr) {
      return {nullptr, 0, 0};
    }
    for (std::int64_t r = 0; r < rows && started_ != i; ++r) {
      std::fill(start_ + 16 * r, start_ + 16 * r + 16, static_cast<Scalar>(t_.start[i + r]));
    }
    started_ = i;
    return {start_, 16, 0};
  }

  const WordTask& t_;
  Tiles tiles_;
  std::int64_t started_ = -1;  // the row that start_ begins with
  alignas(64) Scalar edge_[32 * 32] = {};
  alignas(64) Scalar start_[32 * 16] = {};
};

template <class Tiles, class Element>
WordUnit tile_unit() {
  return {[](const WordTask& t) { TileTask<Tiles, Element>(t).run(); }, word_square, 16, true};
}

}  // namespace detail
}  // namespace tinyscale
