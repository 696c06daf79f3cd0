#pragma once
// The registers of an array of PEs, and the feeder that puts words on its west and north edges.

#include <algorithm>  // min, max, fill
#include <cstdint>    // int64_t, uintptr_t
#include <cstring>    // memcpy, memmove
#include <vector>     // vector

#include "tinyscale/base/list.hpp"
#include "tinyscale/systolic/array_operands.hpp"
#include "tinyscale/systolic/array_timing.hpp"
#include "tinyscale/systolic/pe_step.hpp"

namespace tinyscale {

// A word to or from on-chip memory: the tick, the row or column of PEs, the place in its matrix.
struct SramAccess {
  std::int64_t tick = 0, port = 0, word = 0;
};

namespace detail {

// What a run computes with. The stream is x and the tile w; inputs stationary, w^T and x^T.
struct ArrayWork {
  const ArrayOperand* stream = nullptr;
  const ArrayOperand* tile = nullptr;
  float* out = nullptr;                // [M, N] words: floats, or int32 in their place
  std::int64_t array = 0, arrays = 1;  // this MXU of several that stand side by side
  const List<Fold>* folds = nullptr;   // placed; null: each placed after the one before
  std::int64_t first = 0, last = 0;    // the folds to step, [first, last)
  List<SramAccess>* trace[3] = {};     // of stream, tile, output; or null
  List<std::int64_t>* starts =
      nullptr;  // by tick: PEs that began to multiply less those that ended
};

// 32-bit registers in rows of `step`, zeros before the first: +0.0f or the integer 0.
class PeRegisters {
 public:
  PeRegisters() = default;
  PeRegisters(std::int64_t rows, std::int64_t step)
      : words_(static_cast<std::size_t>((rows + strip_rows) * step + 32)) {
    const auto address = reinterpret_cast<std::uintptr_t>(words_.data());
    const std::size_t skip = (64 - address % 64) % 64 / sizeof(float);  // to a cache line
    first_ = words_.data() + skip + strip_rows * step;
  }
  PeRegisters(const PeRegisters&) = delete;
  PeRegisters& operator=(const PeRegisters&) = delete;
  PeRegisters(PeRegisters&&) = default;
  PeRegisters& operator=(PeRegisters&&) = default;
  float* data() { return first_; }

 private:
  std::vector<float> words_;
  float* first_ = nullptr;
};

struct ArrayRegisters {
  SystolicTiming t;  // counts SRAM accesses
  ArrayWork work;
  PeBlock b;
  std::int64_t begin = 0;   // the block's first tick
  std::int64_t planes = 1;  // of sums that leave at the same time
  PeRegisters west, north[3], weight, sum, held[3], next[3], edge, exits;

  ArrayRegisters(const SystolicTiming& problem, const ArrayWork& w) : t(problem), work(w) {
    b.first = (strip_rows - t.rows % strip_rows) % strip_rows;
    b.rows = t.rows + b.first;
    b.cols = (t.cols + 15) / 16 * 16;
    b.step = b.cols + 16;
    b.west_step = block_ticks + b.cols + 16;
    b.pieces = keeps_outputs(t) ? 1 : work.tile->pieces;
    b.passes = static_cast<int>(t.passes);
    west = PeRegisters(b.rows, b.west_step);
    sum = PeRegisters(b.rows, b.step);
    for (int p = 0; p < b.pieces; ++p) {
      north[p] = PeRegisters(block_ticks + t.rows, b.step);
      b.north[p] = north[p].data();
    }
    keeps_outputs(t) ? make_exits() : make_weights();
    b.west = west.data();
    b.sum = sum.data();
  }

  // The registers that move, as many places on as a block has ticks: room for what enters next.
  void move_on(bool down) {
    const auto words = static_cast<std::size_t>(b.cols);
    const float idle = t.format == DType::int8 ? 0.0f : -0.0f;  // s + -0 * +0 is s, -0 too
    for (std::int64_t r = b.first; r < b.rows; ++r) {
      float* row = west.data() + r * b.west_step;
      std::memmove(row + block_ticks, row, words * sizeof(float));
      std::fill(row, row + block_ticks, idle);
    }
    for (int p = 0; down && p < b.pieces; ++p) {
      float* plane = north[p].data();
      std::memmove(plane + block_ticks * b.step, plane,
                   static_cast<std::size_t>(t.rows * b.step) * sizeof(float));
      std::fill(plane, plane + block_ticks * b.step, 0.0f);
    }
  }

  // The words of a fold's stream that reach the west edge in this block: slot i enters row r in
  // tick stream + i + r.
  void feed_west(const Fold& f) {
    const std::int64_t slots = f.length / t.passes, rows = fold_rows(t, f);
    const std::int64_t cols = work.stream->cols;
    for (std::int64_t q = 0; q < t.passes; ++q) {
      const float* words = work.stream->piece[pieces_of_pass(t.passes, q).stream];
      const std::int64_t base = f.stream + q * slots - begin;
      if (keeps_outputs(t)) {
        for (std::int64_t r = 0; r < rows; ++r) {
          const std::int64_t j = base + r, first = std::max<std::int64_t>(0, -j);
          const std::int64_t last = std::min(slots, block_ticks - j);
          float* to = west.data() + (b.first + r) * b.west_step + PeBlock::now(j);
          const std::int64_t from = (f.m0 + r) * cols;
          for (std::int64_t i = first; i < last; ++i) {
            to[-i] = words[from + i];
          }
          t.sram_reads_input += std::max<std::int64_t>(0, last - first);
          for (std::int64_t i = first; work.trace[0] != nullptr && i < last; ++i) {
            work.trace[0]->push_back({begin + j + i, r, from + i});
          }
        }
        continue;
      }
      const std::int64_t begin_i = std::max<std::int64_t>(0, 1 - rows - base);
      const std::int64_t end_i = std::min(slots, block_ticks - base);
      for (std::int64_t i = begin_i; i < end_i; ++i) {
        const std::int64_t j = base + i, first = std::max<std::int64_t>(0, -j);
        const std::int64_t last = std::min(rows, block_ticks - j);
        float* to = west.data() + b.first * b.west_step + PeBlock::now(j);
        const std::int64_t from = (stream_row(f) + i) * cols + f.k0;
        for (std::int64_t r = first; r < last; ++r) {
          to[r * (b.west_step - 1)] = words[from + r];
        }
        (inputs() ? t.sram_reads_weight : t.sram_reads_input) += last - first;
        for (std::int64_t r = first; work.trace[0] != nullptr && r < last; ++r) {
          work.trace[0]->push_back({begin + j + r, r, from + r});
        }
      }
    }
  }

  // The words that move south: a tile of weights, its last row first, or a stream of w.
  void feed_north(const Fold& f) {
    if (keeps_outputs(t)) {
      const std::int64_t slots = f.length / t.passes;
      for (std::int64_t q = 0; q < t.passes; ++q) {
        enter(f, work.tile->piece[pieces_of_pass(t.passes, q).tile], 0, f.stream + q * slots, 0,
              slots);
      }
      return;
    }
    for (int p = 0; p < b.pieces; ++p) {
      enter(f, work.tile->piece[p], p, f.load, t.rows - fold_rows(t, f), t.rows);
    }
  }

  bool inputs() const { return t.dataflow == Dataflow::input_stationary; }
  std::int64_t stream_row(const Fold& f) const { return inputs() ? f.n0 : f.m0; }
  std::int64_t across(const Fold& f) const {  // the first column of this array's tile
    return (inputs() ? f.m0 : f.n0) + work.array * t.cols;
  }
  std::int64_t used_cols(const Fold& f) const {
    const std::int64_t left = fold_cols(t, f, work.arrays) - work.array * t.cols;
    return std::max<std::int64_t>(0, std::min(t.cols, left));
  }

 private:
  void make_weights() {
    weight = PeRegisters(b.rows, b.step);
    edge = PeRegisters(block_ticks + 1, b.step);
    b.weight = weight.data();
    b.edge = edge.data();
    for (int p = 0; p < b.pieces; ++p) {
      held[p] = PeRegisters(b.rows, b.step);
      next[p] = PeRegisters(b.rows, b.step);
      b.held[p] = held[p].data();
      b.next[p] = next[p].data();
    }
    for (int q = 0; q < b.passes; ++q) {
      b.piece_of[q] = pieces_of_pass(t.passes, q).tile;
    }
    const bool serial = t.schedule == Schedule::serial;
    b.loaded_tick = serial ? 16 : 1;
    b.loaded_col = serial ? 0 : 1;
  }

  // A sum leaves the array at most 2 R ticks after its PE gave it up, and is collected at the end
  // of that block.
  void make_exits() {
    planes = 2 + (2 * t.rows + block_ticks) / fold_period(t);
    exits = PeRegisters(planes * b.rows, b.step);
    b.exits = exits.data();
  }

  // Row i of [first, last) enters column c in tick start + i (+ c unless all columns shift at
  // once).
  void enter(const Fold& f, const float* words, int piece, std::int64_t start, std::int64_t first,
             std::int64_t last) {
    const bool outputs = keeps_outputs(t);
    const std::int64_t skew = outputs || t.schedule != Schedule::serial ? 1 : 0;
    const std::int64_t cols = used_cols(f);
    if (cols == 0) {
      return;
    }
    const std::int64_t base = start - begin;
    const std::int64_t begin_i = std::max(first, skew * (1 - cols) - base);
    const std::int64_t end_i = std::min(last, block_ticks - base);
    for (std::int64_t i = begin_i; i < end_i; ++i) {
      const std::int64_t j = base + i;
      const std::int64_t begin_c = std::max<std::int64_t>(0, -j);
      const std::int64_t end_c = skew == 0 ? cols : std::min(cols, block_ticks - j);
      const std::int64_t row = outputs ? i : f.k0 + t.rows - 1 - i;
      const std::int64_t from = row * work.tile->cols + across(f);
      float* to = north[piece].data() + PeBlock::now(j) * b.step;
      for (std::int64_t c = begin_c; c < end_c; ++c) {
        to[c - skew * c * b.step] = words[from + c];
      }
      if (piece == 0) {
        (inputs() ? t.sram_reads_input : t.sram_reads_weight) += end_c - begin_c;
        for (std::int64_t c = begin_c; work.trace[1] != nullptr && c < end_c; ++c) {
          work.trace[1]->push_back({begin + j + skew * c, c, from + c});
        }
      }
    }
  }
};

}  // namespace detail
}  // namespace tinyscale
