#pragma once
// The ticks of a systolic array in closed form: no stepping, the same numbers.
// With R x C PEs, F folds and T stream slots a fold (T = M, N, K for weights, inputs, outputs,
// times the passes of a format):
//   serial   F (T + 2R + C - 2)                    the count of SCALE-Sim v2 and v3, plus its one
//   doubled  (F - 1) max(T, R) + T + 2R + C - 2    as the TPU papers describe it
// Rules: activations move east, sums south, one PE a tick; every row starts a tick after the last.

#include <algorithm>  // max, min
#include <cstdint>    // int64_t

#include "tinyscale/base/error.hpp"
#include "tinyscale/systolic/array_report.hpp"
#include "tinyscale/systolic/array_schedule.hpp"

namespace tinyscale {
namespace detail {

inline std::int64_t folds_of(std::int64_t size, std::int64_t pes) { return (size - 1) / pes + 1; }

// Fills in T and the folds of a case whose array and M, K, N are set.
inline void fold(SystolicTiming& t) {
  const bool outputs = keeps_outputs(t);
  const bool inputs = t.dataflow == Dataflow::input_stationary;
  const std::int64_t most = INT64_MAX / t.passes;  // more than countable() lets through
  t.stream = std::min(outputs ? t.k : inputs ? t.n : t.m, most) * t.passes;
  t.row_folds = folds_of(outputs ? t.m : t.k, t.rows);
  t.col_folds = folds_of(inputs ? t.m : t.n, t.cols);
}

// Whether every count of a folded case fits 64 bits: all are below PEs x folds x a fold's ticks.
inline bool countable(const SystolicTiming& t) {
  const double rows = static_cast<double>(t.rows);
  const double cols = static_cast<double>(t.cols);
  const double folds = static_cast<double>(t.row_folds) * static_cast<double>(t.col_folds);
  return rows * cols * folds * (static_cast<double>(t.stream) + 3 * (rows + cols)) < 0x1p62;
}

// Ticks from the first stream slot of a fold to that of the next one.
inline std::int64_t fold_period(const SystolicTiming& t) {
  if (t.schedule == Schedule::doubled) {
    return std::max(t.stream, t.rows);
  }
  if (t.schedule == Schedule::skewed) {
    return t.stream + 2 * t.rows - 1;
  }
  const std::int64_t wave = t.stream + t.rows + t.cols - 2;  // first PE's start to last PE's end
  return t.drain == Drain::instant ? wave : wave + t.rows;
}

// Fold f where its tile is; column folds are the outer loop, row folds the inner one.
inline Fold tile_of(const SystolicTiming& t, std::int64_t f) {
  Fold fold;
  const std::int64_t down = f % t.row_folds * t.rows, across = f / t.row_folds * t.cols;
  (keeps_outputs(t) ? fold.m0 : fold.k0) = down;
  (t.dataflow == Dataflow::input_stationary ? fold.m0 : fold.n0) = across;
  fold.length = t.stream;
  return fold;
}

// Fold f and its ticks.
inline Fold nth_fold(const SystolicTiming& t, std::int64_t f) {
  Fold fold = tile_of(t, f);
  const std::int64_t period = fold_period(t);
  if (!keeps_outputs(t)) {
    fold.stream = t.rows + f * period;
    const bool early = t.schedule == Schedule::doubled && f > 0;  // while the one before streams
    fold.load = early ? fold.stream - period : fold.stream - t.rows;
  } else if (t.schedule == Schedule::doubled) {
    fold.drain = t.stream + f * period;
    fold.stream = f == 0 ? 0 : fold.drain - period;
  } else {
    fold.stream = f * period;
    fold.drain = fold.end();
  }
  return fold;
}

// The first three folds, as many more like them, and those at the end that a tight one cuts short.
inline LossLedger time_ledger(const SystolicTiming& t) {
  LedgerSums sums(t, t.cycles);
  List<PeEvent> events;
  const std::int64_t folds = t.folds();
  const std::int64_t period = fold_period(t);
  LossLedger before;
  for (std::int64_t f = 0; f < folds; ++f) {
    events.clear();
    const Fold last = nth_fold(t, f == 0 ? 0 : f - 1);
    const Fold now = nth_fold(t, f);
    fold_events(t, f == 0 ? nullptr : &last, now, f, events);
    before = sums.ledger;
    for (const PeEvent& event : events) {
      sums.add(event);
    }
    if (f == 2) {
      const std::int64_t whole = (t.cycles - t.rows - t.cols - now.stream) / period;
      const std::int64_t alike = std::max<std::int64_t>(0, std::min(folds - 1 - f, whole));
      sums.repeat(before, alike, period);
      f += alike;
    }
  }
  sums.add({nth_fold(t, folds - 1).end(), Arrival::by_wave, PeState::drain});
  return sums.finish(t.macs, 1);
}

inline void time_traffic(SystolicTiming& t) {
  const std::int64_t mk = t.m * t.k * t.passes;
  const std::int64_t kn = t.k * t.n * t.passes;
  const std::int64_t mn = t.m * t.n;
  if (keeps_outputs(t)) {
    t.sram_reads_input = t.col_folds * mk;
    t.sram_reads_weight = t.row_folds * kn;
    t.sram_writes_output = mn;
    return;
  }
  const bool inputs = t.dataflow == Dataflow::input_stationary;
  t.sram_reads_input = inputs ? t.m * t.k : t.col_folds * mk;  // a tile is read once for all passes
  t.sram_reads_weight = inputs ? t.col_folds * kn : t.k * t.n;
  t.accumulator_writes = t.row_folds * t.passes * mn;
  t.accumulator_reads = t.accumulator_writes - mn;
  t.sram_writes_output = t.accumulator_writes;
}

// All costs of a case that fold() has seen.
inline void time_array(SystolicTiming& t) {
  t.cycles = fold_end(t, nth_fold(t, t.folds() - 1), 1);
  if (t.tight && t.col_folds > 1) {  // the last column of tiles may be narrower than the one before
    t.cycles = std::max(t.cycles, fold_end(t, nth_fold(t, t.folds() - 1 - t.row_folds), 1));
  }
  t.macs = t.m * t.k * t.n * t.passes;
  t.ledger = time_ledger(t);
  time_traffic(t);
  rate(t, t.stream * t.folds());
}

}  // namespace detail
}  // namespace tinyscale
