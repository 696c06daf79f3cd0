#pragma once
// A tile of weights stays in the PEs, activations stream through: every PE, every tick.
// Row r is fed r ticks after row 0 (the skew). Weights shift in from the north, the last row's
// first, in R ticks; when doubled they go into a second register, and the switch to them rides
// east with the first activation of the fold (TPU v1). Sums leave at the south edge in row order,
// k = k0 .. k0 + R - 1 from +0, and the accumulators add the folds in order.

#include <algorithm>  // min, max
#include <cstdint>    // int64_t

#include "tinyscale/base/list.hpp"
#include "tinyscale/systolic/array_timing.hpp"
#include "tinyscale/systolic/pe_grid.hpp"

namespace tinyscale {
namespace detail {

// A matrix in place, perhaps transposed.
struct MatrixView {
  const float* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t row_step = 0;
  std::int64_t col_step = 0;

  float at(std::int64_t i, std::int64_t j) const { return data[i * row_step + j * col_step]; }
  MatrixView transposed() const { return {data, cols, rows, col_step, row_step}; }
};

inline MatrixView matrix_view(const float* data, std::int64_t rows, std::int64_t cols) {
  return {data, rows, cols, cols, 1};
}

// What the feeder sends into row 0 at one tick; row r gets it r ticks later.
struct StreamSlot {
  std::int64_t fold = -1;  // -1: nothing was sent yet
  std::int64_t row_fold = 0;
  std::int64_t col_fold = 0;
  std::int64_t index = 0;  // 0 .. T - 1
  bool streaming = false;
  bool waiting = false;  // a gap: the next tile has not arrived
  bool leaving = false;  // the sums of an output-stationary fold are to leave
};

// The state that both kinds of array step: registers, clock, counters, and the feeder's delay line.
struct SteppedArray {
  SystolicTiming counted;
  PeGrid grid;
  List<StreamSlot> sent;     // the last R + C ticks or more, a ring of a power of two
  std::int64_t tick = 0;     // ticks that are over
  std::int64_t results_due;  // sums that have yet to leave the array, padding too

  explicit SteppedArray(const SystolicTiming& problem)
      : counted(problem), grid(problem.rows, problem.cols), results_due(0) {
    std::size_t size = 2;
    while (size < static_cast<std::size_t>(problem.rows + problem.cols)) {
      size *= 2;
    }
    sent.resize(size);
  }

  // What was sent `ago` ticks before this one.
  const StreamSlot& sent_before(std::int64_t ago) const {
    static const StreamSlot nothing;
    return ago > tick ? nothing : sent[static_cast<std::size_t>(tick - ago) & (sent.size() - 1)];
  }

  void send(const StreamSlot& slot) {
    sent[static_cast<std::size_t>(tick) & (sent.size() - 1)] = slot;
  }

  StreamSlot slot_of(std::int64_t fold, std::int64_t index) const {
    StreamSlot slot;
    slot.fold = fold;
    slot.row_fold = fold % counted.row_folds;
    slot.col_fold = fold / counted.row_folds;
    slot.index = index;
    slot.streaming = index < counted.stream;
    return slot;
  }
};

// The first tick of a fold's weight shift and of its stream.
struct FoldStart {
  std::int64_t load = 0;
  std::int64_t stream = 0;
};

inline List<FoldStart> weight_fold_starts(const SystolicTiming& t) {
  List<FoldStart> folds(static_cast<std::size_t>(t.folds()));
  folds[0].stream = t.rows;
  for (std::size_t f = 1; f < folds.size(); ++f) {
    const std::int64_t before = folds[f - 1].stream;
    const std::int64_t column_free = before + t.stream + t.rows - 1;  // of column 0
    folds[f].load = t.schedule == Schedule::doubled  ? before
                    : t.schedule == Schedule::skewed ? column_free
                                                     : column_free + t.cols - 1;
    folds[f].stream = std::max(folds[f].load + t.rows, before + t.stream);
  }
  return folds;
}

class WeightStationary {
 public:
  // stream [T, K] times tile [K, N]; result(t, n) goes to out[t * row_step + n * col_step].
  WeightStationary(const SystolicTiming& problem, const MatrixView& stream, const MatrixView& tile,
                   float* out, std::int64_t row_step, std::int64_t col_step)
      : core(problem),
        stream_(stream),
        tile_(tile),
        out_(out),
        row_step_(row_step),
        col_step_(col_step),
        folds_(weight_fold_starts(problem)) {
    core.results_due = problem.folds() * problem.stream * problem.cols;
  }

  SteppedArray core;

  bool done() const { return core.results_due == 0; }

  void step() {
    send();
    for (std::int64_t r = 0; r < core.grid.rows; ++r) {
      feed(r);
    }
    shift_weights();
    core.grid.step_sums_south();
    core.grid.book(core.counted.ledger);
    collect();
    ++core.tick;
  }

  // The finished counters; the two operands swap their names when inputs are stationary.
  SystolicTiming counters() const {
    SystolicTiming t = core.counted;
    const bool inputs = t.dataflow == Dataflow::input_stationary;
    t.cycles = core.tick;
    t.macs = t.ledger.useful;
    t.sram_reads_input = inputs ? tile_reads_ : stream_reads_;
    t.sram_reads_weight = inputs ? stream_reads_ : tile_reads_;
    t.sram_writes_output = t.accumulator_writes;
    rate(t);
    return t;
  }

 private:
  bool doubled() const { return core.counted.schedule == Schedule::doubled; }

  const FoldStart& start(std::int64_t fold) const { return folds_[static_cast<std::size_t>(fold)]; }

  void send() {
    const std::int64_t last = core.counted.folds() - 1;
    if (fold_ < last && core.tick >= start(fold_ + 1).stream) {
      ++fold_;
    }
    const std::int64_t index = core.tick - start(fold_).stream;
    if (index < 0) {
      return;
    }
    StreamSlot slot = core.slot_of(fold_, index);
    slot.waiting = !slot.streaming && doubled() && fold_ < last;
    core.send(slot);
  }

  // West edge of row r; a PE that a fold reaches takes its next weight.
  void feed(std::int64_t r) {
    PeGrid& g = core.grid;
    const StreamSlot& in = core.sent_before(r);
    const bool first = in.streaming && in.index == 0;
    const std::int64_t k = in.row_fold * g.rows + r;
    const bool word = in.streaming && k < stream_.cols;
    stream_reads_ += word ? 1 : 0;
    g.activation.row(r)[-1] = word ? stream_.at(in.index, k) : 0.0f;
    g.streaming.shift_east(r, in.streaming);
    g.waiting.shift_east(r, in.waiting);
    g.begins.shift_east(r, first);
    if (doubled()) {
      g.begins.each(r, [&g, r](std::int64_t c) {
        if (c < g.cols) {
          g.held.row(r)[c] = g.next.row(r)[c];
          g.real.set(r, c, g.next_real.get(r, c));
        }
      });
    }
  }

  // In shift number j of a fold, rows 0 .. j of a column take the value above them.
  void shift_weights() {
    PeGrid& g = core.grid;
    const bool skewed = core.counted.schedule != Schedule::serial;
    const std::int64_t span = g.rows + (skewed ? g.cols - 1 : 0);
    for (std::int64_t i = 0; i < g.loading.words(); ++i) {
      g.loading.row(0)[i] = 0;
    }
    while (first_load_ < core.counted.folds() && start(first_load_).load + span <= core.tick) {
      ++first_load_;
    }
    Plane& weights = doubled() ? g.next : g.held;
    BitPlane& real = doubled() ? g.next_real : g.real;
    for (std::int64_t f = first_load_; f < core.counted.folds() && start(f).load <= core.tick;
         ++f) {
      const std::int64_t lead = core.tick - start(f).load;  // column c is at shift lead - c
      const std::int64_t first = skewed ? std::max<std::int64_t>(0, lead - g.rows + 1) : 0;
      for (std::int64_t r = std::min(lead, g.rows - 1); r > 0; --r) {
        const std::int64_t last = skewed ? std::min(g.cols - 1, lead - r) : g.cols - 1;
        weights.shift_south(r, first, last);
        real.shift_south(r, first, last);
      }
      enter_weights(f, lead, first, skewed ? std::min(g.cols - 1, lead) : g.cols - 1);
    }
  }

  // North edge, columns first to last: the last row's weights come first, 0 beyond the matrix.
  void enter_weights(std::int64_t f, std::int64_t lead, std::int64_t first, std::int64_t last) {
    PeGrid& g = core.grid;
    const bool skewed = core.counted.schedule != Schedule::serial;
    const bool only_tile = !doubled() || f == 0;
    const std::int64_t k0 = f % core.counted.row_folds * g.rows + g.rows - 1 - lead;
    const std::int64_t n0 = f / core.counted.row_folds * g.cols;
    for (std::int64_t c = first; c <= last; ++c) {
      const std::int64_t k = k0 + (skewed ? c : 0);
      const bool word = k < tile_.rows && n0 + c < tile_.cols;
      tile_reads_ += word ? 1 : 0;
      (doubled() ? g.next : g.held).row(0)[c] = word ? tile_.at(k, n0 + c) : 0.0f;
      (doubled() ? g.next_real : g.real).set(0, c, word);
      if (only_tile) {
        g.loading.set(0, c, true);
      }
    }
  }

  // South edge: sums that are complete go to the accumulators.
  void collect() {
    const PeGrid& g = core.grid;
    g.streaming.each(g.rows - 1, [this, &g](std::int64_t c) {
      if (c >= g.cols) {
        return;
      }
      --core.results_due;
      const StreamSlot& slot = core.sent_before(g.rows - 1 + c);
      const std::int64_t n = slot.col_fold * g.cols + c;
      if (n >= tile_.cols) {
        return;
      }
      float& accumulator = out_[slot.index * row_step_ + n * col_step_];
      const float sum = g.sum.row(g.rows - 1)[c];
      accumulator = slot.row_fold == 0 ? sum : accumulator + sum;
      core.counted.accumulator_reads += slot.row_fold == 0 ? 0 : 1;
      ++core.counted.accumulator_writes;
    });
  }

  MatrixView stream_, tile_;
  float* out_;
  std::int64_t row_step_, col_step_;
  List<FoldStart> folds_;
  std::int64_t fold_ = 0;        // that streams now or streamed last
  std::int64_t first_load_ = 0;  // the first fold whose shift is not over
  std::int64_t stream_reads_ = 0;
  std::int64_t tile_reads_ = 0;
};

}  // namespace detail
}  // namespace tinyscale
