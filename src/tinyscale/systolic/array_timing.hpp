#pragma once
// The ticks of a systolic array in closed form: no stepping, the same numbers.
// With R x C PEs, F folds and T stream slots a fold (T = M, N, K for weights, inputs, outputs):
//   serial   F (T + 2R + C - 2)                    the count of SCALE-Sim v2 and v3, plus its one
//   doubled  (F - 1) max(T, R) + T + 2R + C - 2    as the TPU papers describe it
// Rules: activations move east, sums south, one PE a tick; every row starts a tick after the last.

#include <algorithm>  // max
#include <cstdint>    // int64_t

#include "tinyscale/base/error.hpp"
#include "tinyscale/systolic/array_report.hpp"

namespace tinyscale {
namespace detail {

inline std::int64_t folds_of(std::int64_t size, std::int64_t pes) { return (size - 1) / pes + 1; }

// Fills in T and the folds of a case whose array and M, K, N are set.
inline void fold(SystolicTiming& t) {
  const bool outputs = t.dataflow == Dataflow::output_stationary;
  const bool inputs = t.dataflow == Dataflow::input_stationary;
  t.stream = outputs ? t.k : inputs ? t.n : t.m;
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

// The ratios, from counts that are complete.
inline void rate(SystolicTiming& t) {
  const double slots = static_cast<double>(t.rows) * static_cast<double>(t.cols);
  const double streamed = static_cast<double>(t.stream) * static_cast<double>(t.folds());
  const double macs = static_cast<double>(t.macs);
  const double cycles = static_cast<double>(t.cycles);
  t.utilization = macs / (slots * cycles);
  t.mapping_efficiency = macs / (slots * streamed);
  t.time_efficiency = streamed / cycles;
}

// Ticks from the first stream slot of a fold to that of the next one.
inline std::int64_t fold_period(const SystolicTiming& t) {
  const std::int64_t wave = t.stream + t.rows + t.cols - 2;  // first PE's start to last PE's end
  const bool instant = t.drain == Drain::instant;
  if (t.schedule == Schedule::serial) {
    return instant ? wave : wave + t.rows;
  }
  if (instant) {
    return t.stream;
  }
  if (t.schedule == Schedule::doubled) {
    return std::max(t.stream, t.rows);
  }
  return t.dataflow == Dataflow::output_stationary ? t.stream + t.rows : t.stream + 2 * t.rows - 1;
}

inline void time_ledger(SystolicTiming& t) {
  const std::int64_t pes = t.rows * t.cols;
  const std::int64_t streamed = pes * t.stream * t.folds();
  const std::int64_t down = pes * (t.rows - 1) / 2;    // sum of r over all PEs
  const std::int64_t across = pes * (t.cols - 1) / 2;  // sum of c over all PEs
  const std::int64_t f = t.folds();
  LossLedger& l = t.ledger;
  l.useful = t.macs;
  l.padded = streamed - t.macs;
  if (t.dataflow == Dataflow::output_stationary) {
    l.fill = (t.schedule == Schedule::serial ? f : 1) * (down + across);
    l.drain = pes * t.cycles - streamed - l.fill;
    return;
  }
  if (t.schedule == Schedule::serial) {
    l.fill = f * (down + across);
  } else if (t.schedule == Schedule::skewed) {
    l.fill = f * down + across;
  } else {
    l.fill = down + across;
  }
  l.drain = l.fill;  // the array is symmetric: what comes late at one end leaves early at the other
  l.weight_shift = pes * t.cycles - streamed - l.fill - l.drain;
}

inline void time_traffic(SystolicTiming& t) {
  const std::int64_t mk = t.m * t.k;
  const std::int64_t kn = t.k * t.n;
  const std::int64_t mn = t.m * t.n;
  const bool outputs = t.dataflow == Dataflow::output_stationary;
  const bool inputs = t.dataflow == Dataflow::input_stationary;
  t.sram_reads_input = inputs ? mk : t.col_folds * mk;
  t.sram_reads_weight = inputs ? t.col_folds * kn : outputs ? t.row_folds * kn : kn;
  t.sram_writes_output = outputs ? mn : t.row_folds * mn;
  t.accumulator_writes = outputs ? 0 : t.row_folds * mn;
  t.accumulator_reads = outputs ? 0 : (t.row_folds - 1) * mn;
}

// All costs of a case that fold() has seen.
inline void time_array(SystolicTiming& t) {
  const std::int64_t shifts = t.drain == Drain::instant ? 0 : t.rows;  // weights in or sums out
  t.cycles = (t.folds() - 1) * fold_period(t) + t.stream + t.rows + t.cols - 2 + shifts;
  t.macs = t.m * t.k * t.n;
  time_ledger(t);
  time_traffic(t);
  rate(t);
}

}  // namespace detail
}  // namespace tinyscale
