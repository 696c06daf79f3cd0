#pragma once
// When each fold shifts in, streams and leaves, and what every PE does in between.
// A fold is placed after the one before it, no earlier than its operands are on the chip. What a PE
// does changes when an event reaches it: all PEs at once, column by column, or with the wave that
// takes a tick per PE east and south. Ticks between events, summed over PEs, have closed forms:
//   D(x) = PEs that a wave of x ticks has reached; G(x) = D(0) + .. + D(x - 1)

#include <algorithm>  // min, max
#include <cstdint>    // int64_t

#include "tinyscale/base/list.hpp"
#include "tinyscale/systolic/array_report.hpp"

namespace tinyscale {
namespace detail {

// One pass of the array with one stationary tile; ticks count from the start of the run.
struct Fold {
  std::int64_t m0 = 0, k0 = 0, n0 = 0;  // where its tile of x [M, K], w [K, N] or both begins
  std::int64_t length = 0;              // T
  std::int64_t load = 0, stream = 0;    // first tick of the shift-in and of the stream
  std::int64_t drain = 0;               // outputs stationary: PE (0, 0) gives its sum up
  std::int64_t weight_stall = 0, dma_stall = 0;  // of the gap before the stream

  std::int64_t end() const { return stream + length; }
};

// The ticks at which the stationary tile and the operand that streams are on the chip.
struct FoldSupply {
  std::int64_t tile = 0, stream = 0;
};

inline bool keeps_outputs(const SystolicTiming& t) {
  return t.dataflow == Dataflow::output_stationary;
}

inline void place_outputs(const SystolicTiming& t, const Fold* before, const FoldSupply& supply,
                          Fold& fold) {
  const bool doubled = t.schedule == Schedule::doubled;
  const std::int64_t shift = t.drain == Drain::instant ? 0 : t.rows;
  const std::int64_t left = doubled || before == nullptr ? 0 : t.rows + t.cols - 2 + shift;
  const std::int64_t free =
      before == nullptr ? 0 : (doubled ? before->drain : before->end() + left);
  fold.stream = std::max({free, supply.stream, supply.tile});
  fold.dma_stall = fold.stream - free;
  fold.drain = fold.end();
  if (doubled && before != nullptr) {
    fold.drain = std::max(fold.drain, before->drain + t.rows);
  }
}

// Places a fold whose length is set after the one before it (null: the first). Where the stream
// waits for the tile, at most R ticks of the gap are its shift, the rest a stall (TPU v1, table 3).
inline void place_fold(const SystolicTiming& t, const Fold* before, const FoldSupply& supply,
                       Fold& fold) {
  if (keeps_outputs(t)) {
    return place_outputs(t, before, supply, fold);
  }
  if (t.schedule == Schedule::doubled) {
    const std::int64_t earliest = before == nullptr ? 0 : before->end();
    fold.load = supply.tile;
    if (before != nullptr) {
      fold.load = std::max({fold.load, before->stream, before->load + t.rows});
    }
    const std::int64_t ready = std::max(fold.load + t.rows, earliest);
    fold.stream = std::max(ready, supply.stream);
    fold.dma_stall = fold.stream - ready;
    fold.weight_stall = std::max<std::int64_t>(0, ready - earliest - t.rows);
    return;
  }
  std::int64_t free = 0;
  if (before != nullptr) {
    free = before->end() + t.rows - 1 + (t.schedule == Schedule::serial ? t.cols - 1 : 0);
  }
  fold.load = std::max(free, supply.tile);
  fold.weight_stall = fold.load - free;
  fold.stream = std::max(fold.load + t.rows, supply.stream);
  fold.dma_stall = fold.stream - fold.load - t.rows;
}

// The PEs of a fold's tile that are not padding; columns are those of all arrays side by side.
inline std::int64_t fold_rows(const SystolicTiming& t, const Fold& f) {
  return std::min(t.rows, keeps_outputs(t) ? t.m - f.m0 : t.k - f.k0);
}
inline std::int64_t fold_cols(const SystolicTiming& t, const Fold& f, std::int64_t arrays) {
  return std::min(t.cols * arrays,
                  t.dataflow == Dataflow::input_stationary ? t.m - f.m0 : t.n - f.n0);
}

// The tick after the one in which a fold's last result leaves, or (tight) its last useful one.
inline std::int64_t fold_end(const SystolicTiming& t, const Fold& f, std::int64_t arrays) {
  const std::int64_t cols = t.tight ? std::min(t.cols, fold_cols(t, f, arrays)) : t.cols;
  if (!keeps_outputs(t)) {
    return f.end() + t.rows + cols - 2;
  }
  return t.drain == Drain::instant ? f.end() + (t.tight ? fold_rows(t, f) : t.rows) + cols - 2
                                   : f.drain + 2 * t.rows + cols - 2;
}

// What a PE does with a tick. streaming: useful or padded, as its place in the tile says; the clock
// says useful apart.
enum class PeState {
  streaming,
  fill,
  drain,
  weight_shift,
  weight_stall,
  dma_stall,
  absent,
  useful
};
enum class Arrival { together, by_column, by_wave };  // at PE (r, c): tick, + c, + r + c

struct PeEvent {
  std::int64_t tick = 0;
  Arrival arrival = Arrival::together;
  PeState state = PeState::fill;
  std::int64_t fold = 0;  // that streams, where it does
};

inline void waiting_events(const Fold& before, const Fold& f, List<PeEvent>& out) {
  const std::int64_t shift = before.end() + f.weight_stall;
  if (f.weight_stall > 0) {
    out.push_back({before.end(), Arrival::by_wave, PeState::weight_stall});
  }
  if (shift < f.stream - f.dma_stall) {
    out.push_back({shift, Arrival::by_wave, PeState::weight_shift});
  }
}

inline void loading_events(const SystolicTiming& t, const Fold& f, List<PeEvent>& out) {
  const Arrival arrival = t.schedule == Schedule::serial ? Arrival::together : Arrival::by_column;
  if (f.weight_stall > 0) {
    out.push_back({f.load - f.weight_stall, arrival, PeState::weight_stall});
  }
  out.push_back({f.load, arrival, PeState::weight_shift});
  out.push_back({f.load + t.rows, arrival, PeState::fill});
}

// The events from the end of the fold before to the start of this one's stream, in the order in
// which they reach any PE.
inline void fold_events(const SystolicTiming& t, const Fold* before, const Fold& f,
                        std::int64_t index, List<PeEvent>& out) {
  const bool doubled = t.schedule == Schedule::doubled;
  const bool waits = doubled && !keeps_outputs(t) && before != nullptr;
  if (before != nullptr && !waits && before->end() < f.stream) {
    out.push_back({before->end(), Arrival::by_wave, PeState::drain});
  }
  if (waits) {
    waiting_events(*before, f, out);
  } else if (!keeps_outputs(t)) {
    loading_events(t, f, out);
  }
  if (f.dma_stall > 0) {
    const bool together = keeps_outputs(t) && !doubled;
    out.push_back({f.stream - f.dma_stall, together ? Arrival::together : Arrival::by_wave,
                   PeState::dma_stall});
  }
  if (keeps_outputs(t) && !doubled) {
    out.push_back({f.stream, Arrival::together, PeState::fill});
  }
  out.push_back({f.stream, Arrival::by_wave, PeState::streaming, index});
}

inline std::int64_t& entry(LossLedger& l, PeState state) {  // streaming: until it is split
  return state == PeState::streaming      ? l.useful
         : state == PeState::fill         ? l.fill
         : state == PeState::drain        ? l.drain
         : state == PeState::weight_shift ? l.weight_shift
         : state == PeState::weight_stall ? l.weight_stall
                                          : l.dma_stall;
}

inline void add_times(const LossLedger& part, std::int64_t times, LossLedger& sum) {
  sum.useful += times * part.useful;
  sum.padded += times * part.padded;
  sum.fill += times * part.fill;
  sum.drain += times * part.drain;
  sum.weight_shift += times * part.weight_shift;
  sum.weight_stall += times * part.weight_stall;
  sum.dma_stall += times * part.dma_stall;
}

// The sum over all PEs of the ticks since an event reached them, `ago` ticks after its own.
inline std::int64_t ticks_since(const SystolicTiming& t, Arrival arrival, std::int64_t ago) {
  const std::int64_t r = t.rows, c = t.cols;
  const auto line = [](std::int64_t x) { return x * (x + 1) / 2; };  // 1 + .. + x
  if (ago <= 0) {
    return 0;
  }
  if (arrival == Arrival::together) {
    return r * c * ago;
  }
  if (arrival == Arrival::by_column) {
    return ago >= c ? r * (c * ago - line(c - 1)) : r * line(ago);
  }
  if (ago >= r + c - 1) {
    return r * c * ago - (c * line(r - 1) + r * line(c - 1));
  }
  const auto corner = [&line](std::int64_t x) {  // x (x + 1) (x + 2) / 6, modulo 2^64
    const std::uint64_t pair = x > 0 ? static_cast<std::uint64_t>(line(x)) : 0;
    const std::uint64_t next = x > 0 ? static_cast<std::uint64_t>(x) + 2 : 0;
    return pair % 3 == 0 ? pair / 3 * next : next / 3 * pair;
  };
  return static_cast<std::int64_t>(corner(ago) - corner(ago - r) - corner(ago - c) +
                                   corner(ago - r - c));
}

// Gives the PE-ticks between events to their states, up to the last tick.
class LedgerSums {
 public:
  LedgerSums(const SystolicTiming& t, std::int64_t end)
      : t_(t), end_(end), since_(t.rows * t.cols * end) {}

  void add(const PeEvent& event) {
    const std::int64_t since = ticks_since(t_, event.arrival, end_ - event.tick);
    entry(ledger, last_) += since_ - since;
    last_ = event.state;
    since_ = since;
  }

  // n folds more like the last one, `ticks` apart: each books what that one added to `before`.
  void repeat(const LossLedger& before, std::int64_t n, std::int64_t ticks) {
    const LossLedger now = ledger;
    add_times(now, n, ledger);
    add_times(before, -n, ledger);
    since_ -= n * ticks * t_.rows * t_.cols;
  }

  // The end; of the PE-ticks that streamed, `macs` were useful, those of all `arrays` together.
  LossLedger finish(std::int64_t macs, std::int64_t arrays) {
    entry(ledger, last_) += since_;
    LossLedger all;
    add_times(ledger, arrays, all);
    all.padded = all.useful - macs;
    all.useful = macs;
    return all;
  }

  LossLedger ledger;  // of one array; useful: all that streamed

 private:
  const SystolicTiming& t_;
  std::int64_t end_;
  std::int64_t since_;
  PeState last_ = PeState::fill;
};

// Words to and from the edges, of folds like this one; `arrays` stand side by side.
inline void add_traffic(const Fold& f, std::int64_t arrays, SystolicTiming& t) {
  const std::int64_t rows = fold_rows(t, f), cols = fold_cols(t, f, arrays);
  const std::int64_t used = (cols - 1) / t.cols + 1;  // arrays with columns
  if (keeps_outputs(t)) {
    t.sram_reads_input += f.length * rows * used;
    t.sram_reads_weight += f.length * cols;
    t.sram_writes_output += rows * cols;
    return;
  }
  const bool inputs = t.dataflow == Dataflow::input_stationary;
  (inputs ? t.sram_reads_weight : t.sram_reads_input) += f.length * rows * used;
  (inputs ? t.sram_reads_input : t.sram_reads_weight) += rows * cols;
  t.accumulator_writes += f.length * cols;
  t.accumulator_reads += (f.k0 == 0 ? f.length - f.length / t.passes : f.length) * cols;
  t.sram_writes_output = t.accumulator_writes;
}

// The ratios, from counts that are complete; `streamed` ticks of T in all.
inline void rate(SystolicTiming& t, std::int64_t streamed) {
  const double slots = static_cast<double>(t.rows * t.cols);
  t.utilization = static_cast<double>(t.macs) / (slots * static_cast<double>(t.cycles));
  t.mapping_efficiency = static_cast<double>(t.macs) / (slots * static_cast<double>(streamed));
  t.time_efficiency = static_cast<double>(streamed) / static_cast<double>(t.cycles);
}

// All counts of placed folds, without stepping; t holds the sizes and the modes. MXU q of `arrays`
// holds columns n0 + q cols .. of a fold.
inline SystolicTiming time_folds(const SystolicTiming& problem, const List<Fold>& folds,
                                 std::int64_t arrays) {
  SystolicTiming t = problem;
  for (const Fold& f : folds) {
    t.cycles = std::max(t.cycles, fold_end(t, f, arrays));
    t.macs += f.length * fold_rows(t, f) * fold_cols(t, f, arrays);
    add_traffic(f, arrays, t);
  }
  LedgerSums sums(t, t.cycles);
  List<PeEvent> events;
  for (std::size_t i = 0; i < folds.size(); ++i) {
    events.clear();
    fold_events(t, i == 0 ? nullptr : &folds[i - 1], folds[i], 0, events);
    for (const PeEvent& event : events) {
      sums.add(event);
    }
  }
  sums.add({folds.back().end(), Arrival::by_wave, PeState::drain});
  t.ledger = sums.finish(t.macs, arrays);
  return t;
}

}  // namespace detail
}  // namespace tinyscale
