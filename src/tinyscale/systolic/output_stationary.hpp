#pragma once
// A tile of the product stays in the PEs: activations move east, weights south, sums grow in place.
// PE (r, c) adds k = 0 .. K - 1 in that order, r + c ticks after PE (0, 0). Sums leave by shifting
// south, R ticks a column, the bottom row's first; when doubled a PE first moves its sum aside, so
// that the next tile can begin. With instant drain a sum leaves in the tick of its last addition.

#include <algorithm>  // min, max
#include <cstdint>    // int64_t

#include "tinyscale/base/list.hpp"
#include "tinyscale/systolic/weight_stationary.hpp"

namespace tinyscale {
namespace detail {

// The first tick of a fold's stream, and the tick at which PE (0, 0) gives its sum up.
struct SumFold {
  std::int64_t stream = 0;
  std::int64_t drain = 0;
};

inline List<SumFold> sum_folds(const SystolicTiming& t) {
  List<SumFold> folds(static_cast<std::size_t>(t.folds()));
  const bool instant = t.drain == Drain::instant;
  const bool doubled = t.schedule == Schedule::doubled && !instant;
  for (std::size_t f = 0; f < folds.size(); ++f) {
    const std::int64_t end = folds[f].stream + t.stream;
    const std::int64_t shifted = doubled && f > 0 ? folds[f - 1].drain + t.rows : 0;
    folds[f].drain = instant ? end - 1 : std::max(end, shifted);
    if (f + 1 == folds.size()) {
      break;
    }
    if (t.schedule == Schedule::serial) {
      folds[f + 1].stream = end + t.rows + t.cols - 2 + (instant ? 0 : t.rows);
    } else if (instant || doubled) {
      folds[f + 1].stream = instant ? end : folds[f].drain;
    } else {
      folds[f + 1].stream = folds[f].drain + t.rows;
    }
  }
  return folds;
}

class OutputStationary {
 public:
  // x [M, K] times w [K, N] to out [M, N].
  OutputStationary(const SystolicTiming& problem, const MatrixView& x, const MatrixView& w,
                   float* out)
      : core(problem), x_(x), w_(w), out_(out), folds_(sum_folds(problem)) {
    core.results_due = problem.folds() * problem.rows * problem.cols;
  }

  SteppedArray core;

  bool done() const { return core.results_due == 0; }

  void step() {
    send();
    if (!instant()) {
      shift_sums();
    }
    for (std::int64_t r = 0; r < core.grid.rows; ++r) {
      feed_row(r);
    }
    for (std::int64_t c = 0; c < core.grid.cols; ++c) {
      const StreamSlot& in = core.sent_before(c);
      const std::int64_t n = in.col_fold * core.grid.cols + c;
      const bool word = in.streaming && n < w_.cols;
      weight_reads_ += word ? 1 : 0;
      core.grid.held.row(-1)[c] = word ? w_.at(in.index, n) : 0.0f;
    }
    core.grid.step_sums_stay();
    core.grid.book(core.counted.ledger);
    instant() ? collect_finished() : collect_shifted();
    ++core.tick;
  }

  SystolicTiming counters() const {
    SystolicTiming t = core.counted;
    t.cycles = core.tick;
    t.macs = t.ledger.useful;
    t.sram_reads_input = input_reads_;
    t.sram_reads_weight = weight_reads_;
    rate(t);
    return t;
  }

 private:
  bool instant() const { return core.counted.drain == Drain::instant; }

  // Sums wait and shift in registers of their own only when doubled.
  bool aside() const { return core.counted.schedule == Schedule::doubled && !instant(); }

  const SumFold& fold(std::int64_t f) const { return folds_[static_cast<std::size_t>(f)]; }

  void send() {
    if (fold_ + 1 < core.counted.folds() && core.tick >= fold(fold_ + 1).stream) {
      ++fold_;
    }
    const std::int64_t index = core.tick - fold(fold_).stream;
    StreamSlot slot = core.slot_of(fold_, index);
    if (leaving_ < core.counted.folds() && core.tick == fold(leaving_).drain) {
      slot.leaving = true;
      ++leaving_;
    }
    core.send(slot);
    if (index == 0 && core.counted.schedule == Schedule::serial) {  // a new wave
      core.grid.done = BitPlane(core.grid.rows, core.grid.cols);
    }
  }

  // Shift q = 1 .. R - 1 of a column: rows q and below take the sum above them.
  void shift_sums() {
    PeGrid& g = core.grid;
    const std::int64_t span = 2 * g.rows + g.cols - 2;  // from the first sum aside to the last out
    while (fold(first_drain_).drain + span <= core.tick &&
           first_drain_ + 1 < core.counted.folds()) {
      ++first_drain_;
    }
    for (std::int64_t f = first_drain_; f < core.counted.folds(); ++f) {
      const std::int64_t lead = core.tick - fold(f).drain - (g.rows - 1);  // column c: q = lead - c
      if (lead <= 0) {
        break;
      }
      for (std::int64_t r = g.rows - 1; r > 0; --r) {
        (aside() ? g.next : g.sum)
            .shift_south(r, std::max<std::int64_t>(0, lead - r), std::min(g.cols - 1, lead - 1));
      }
    }
  }

  // West edge of row r; a PE at a fold's start moves the old sum aside and clears its own.
  void feed_row(std::int64_t r) {
    PeGrid& g = core.grid;
    const StreamSlot& in = core.sent_before(r);
    const std::int64_t m = in.row_fold * g.rows + r;
    const bool word = in.streaming && m < x_.rows;
    input_reads_ += word ? 1 : 0;
    g.activation.row(r)[-1] = word ? x_.at(m, in.index) : 0.0f;
    g.streaming.shift_east(r, in.streaming);
    g.begins.shift_east(r, in.streaming && in.index == 0);
    g.leaves.shift_east(r, in.leaving);
    if (aside()) {
      g.leaves.each(r, [&g, r](std::int64_t c) {
        if (c < g.cols) {
          g.next.row(r)[c] = g.sum.row(r)[c];
        }
      });
    }
    g.begins.each(r, [this, &g, r](std::int64_t c) {
      if (c < g.cols) {
        const StreamSlot& slot = core.sent_before(r + c);
        g.sum.row(r)[c] = 0.0f;
        g.real.set(r, c,
                   slot.row_fold * g.rows + r < x_.rows && slot.col_fold * g.cols + c < w_.cols);
      }
    });
  }

  void deliver(std::int64_t f, std::int64_t r, std::int64_t c, float sum) {
    const std::int64_t m = f % core.counted.row_folds * core.grid.rows + r;
    const std::int64_t n = f / core.counted.row_folds * core.grid.cols + c;
    --core.results_due;
    if (m < x_.rows && n < w_.cols) {
      out_[m * w_.cols + n] = sum;
      ++core.counted.sram_writes_output;
    }
  }

  // South edge: column c gives the sum of row R - 1 - q.
  void collect_shifted() {
    const PeGrid& g = core.grid;
    for (std::int64_t f = first_drain_; f < core.counted.folds(); ++f) {
      const std::int64_t lead = core.tick - fold(f).drain - (g.rows - 1);
      if (lead < 0) {
        break;
      }
      const std::int64_t first = std::max<std::int64_t>(0, lead - g.rows + 1);
      for (std::int64_t c = first; c <= std::min(g.cols - 1, lead); ++c) {
        deliver(f, g.rows - 1 - (lead - c), c, (aside() ? g.next : g.sum).row(g.rows - 1)[c]);
      }
    }
  }

  void collect_finished() {
    const PeGrid& g = core.grid;
    for (std::int64_t r = 0; r < g.rows; ++r) {
      g.leaves.each(r, [this, &g, r](std::int64_t c) {
        if (c < g.cols) {
          deliver(core.sent_before(r + c).fold, r, c, g.sum.row(r)[c]);
        }
      });
    }
  }

  MatrixView x_, w_;
  float* out_;
  List<SumFold> folds_;
  std::int64_t fold_ = 0;         // that streams now or streamed last
  std::int64_t leaving_ = 0;      // the next fold to drain
  std::int64_t first_drain_ = 0;  // the first fold whose sums have not all left
  std::int64_t input_reads_ = 0;
  std::int64_t weight_reads_ = 0;
};

}  // namespace detail
}  // namespace tinyscale
