#pragma once
// What a run on a systolic array costs: ticks, traffic, and a ledger of where every PE-tick went.
// rows * cols * cycles = useful + padded + fill + drain + weight_shift + weight_stall + dma_stall,
// exactly; utilization = mapping_efficiency * time_efficiency. M, K, N: x [M, K] times w [K, N];
// T is the length of the stream through one fold, a fold is one pass with one stationary tile.

#include <cstdint>   // int32_t, int64_t
#include <iostream>  // ostream
#include <string>    // string
#include <vector>    // vector

#include "tinyscale/base/format.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/tensor/tensor.hpp"

namespace tinyscale {

// Which operand stays in the PEs: a tile of w, of x, or of the product.
enum class Dataflow { weight_stationary, input_stationary, output_stationary };

// serial: a fold begins when the one before has left the array. skewed: column by column, as soon
// as a column is free. doubled: a second register per PE hides the shift behind the stream.
enum class Schedule { doubled, serial, skewed };

// How the sums of an output-stationary array leave: R ticks of shifting, or at once over own wires.
enum class Drain { shifted, instant };

inline const char* name_of(Dataflow dataflow) {
  static const char* const names[] = {"weight_stationary", "input_stationary", "output_stationary"};
  return detail::name_in("Dataflow", names, dataflow);
}

inline const char* name_of(Schedule schedule) {
  static const char* const names[] = {"doubled", "serial", "skewed"};
  return detail::name_in("Schedule", names, schedule);
}

inline const char* name_of(Drain drain) {
  static const char* const names[] = {"shifted", "instant"};
  return detail::name_in("Drain", names, drain);
}

// Every tick of every PE, in PE-ticks.
struct LossLedger {
  std::int64_t useful = 0;        // a multiply-add of the product: M K N, times the passes
  std::int64_t padded = 0;        // a multiply-add on the zeros that fill up an edge tile
  std::int64_t fill = 0;          // the wave has not reached the PE yet
  std::int64_t drain = 0;         // the wave has passed, later PEs still work or results leave
  std::int64_t weight_shift = 0;  // the stationary tile is being shifted in
  std::int64_t weight_stall = 0;  // the tile is not on the chip yet; an array alone never waits
  std::int64_t dma_stall = 0;     // what streams is not on the chip yet

  std::int64_t total() const {
    return useful + padded + fill + drain + weight_shift + weight_stall + dma_stall;
  }
  Table table() const {
    Table out;
    out.title = "where every PE-tick went";
    out.columns = {"what", "PE-ticks", "share"};
    const auto row = [&out, this](const char* name, std::int64_t ticks) {
      const double all = static_cast<double>(total());
      out.add({name, std::to_string(ticks),
               format_percent(all > 0 ? static_cast<double>(ticks) / all : 0)});
    };
    row("useful", useful);
    row("padded", padded);
    row("fill", fill);
    row("drain", drain);
    row("weight shift", weight_shift);
    row("weight stall", weight_stall);
    row("dma stall", dma_stall);
    row("total", total());
    return out;
  }
};

inline std::ostream& operator<<(std::ostream& out, const LossLedger& ledger) {
  return out << ledger.table();
}

inline bool operator==(const LossLedger& a, const LossLedger& b) {
  return a.useful == b.useful && a.padded == b.padded && a.fill == b.fill && a.drain == b.drain &&
         a.weight_shift == b.weight_shift && a.weight_stall == b.weight_stall &&
         a.dma_stall == b.dma_stall;
}

inline bool operator!=(const LossLedger& a, const LossLedger& b) { return !(a == b); }

struct SystolicTiming;

namespace detail {
inline Table systolic_table(const SystolicTiming& t, const char* column);
}

// The costs of x [M, K] times w [K, N]; traffic in words, to and from the edges of the array.
struct SystolicTiming {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  Dataflow dataflow = Dataflow::weight_stationary;
  Schedule schedule = Schedule::doubled;
  Drain drain = Drain::shifted;
  bool tight = false;  // ends with the last useful result, not with that of a full tile
  DType format = DType::f32;
  std::int64_t passes = 1;  // bf16 products per f32 product
  std::int64_t m = 0;
  std::int64_t k = 0;
  std::int64_t n = 0;
  std::int64_t row_folds = 0;  // column folds are the outer loop, row folds the inner one
  std::int64_t col_folds = 0;
  std::int64_t stream = 0;  // T, all passes
  std::int64_t cycles = 0;
  std::int64_t macs = 0;          // useful ones: M K N, times the passes
  double utilization = 0;         // macs / (rows cols cycles)
  double mapping_efficiency = 0;  // macs / (rows cols T folds): what padding leaves
  double time_efficiency = 0;     // T folds / cycles: what waiting leaves
  std::int64_t sram_reads_input = 0;
  std::int64_t sram_reads_weight = 0;
  std::int64_t sram_writes_output = 0;  // partial sums too, when K takes several row folds
  std::int64_t accumulator_reads = 0;   // adding a fold's sums to those of the folds before
  std::int64_t accumulator_writes = 0;
  LossLedger ledger;

  std::int64_t folds() const { return row_folds * col_folds; }
  Table table() const { return detail::systolic_table(*this, "formula"); }
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
};

// The same, counted by stepping every PE through every tick, and the product itself.
struct SystolicRun : SystolicTiming {
  Tensor output;                   // [.., M, N]; of int8 operands, the floats nearest to the sums
  std::vector<std::int32_t> sums;  // int8: exact, row-major; else empty

  Table table() const { return detail::systolic_table(*this, "simulated"); }
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
};

namespace detail {

// A fraction as a bare number of percent, which a spreadsheet can read.
inline Cell percent(double fraction) { return number_cell('f', 4, 100 * fraction); }

inline Table systolic_table(const SystolicTiming& t, const char* column) {
  Table table;
  table.title = cat({t.rows,
                     " x ",
                     t.cols,
                     " array, ",
                     name_of(t.dataflow),
                     ", ",
                     name_of(t.schedule),
                     ", ",
                     name_of(t.format),
                     t.tight ? ", tight" : "",
                     ": x [",
                     t.m,
                     ", ",
                     t.k,
                     "] times w [",
                     t.k,
                     ", ",
                     t.n,
                     "], ",
                     t.row_folds,
                     " x ",
                     t.col_folds,
                     " folds"});
  table.columns = {"quantity", column, "unit", "% of PE-ticks"};
  const auto count = [&table](const char* name, std::int64_t value, const char* unit) {
    table.add({name, std::to_string(value), unit, ""});
  };
  count("cycles", t.cycles, "ticks");
  count("macs", t.macs, "multiply-adds");
  table.add({"utilization", percent(t.utilization), "% of PE-ticks", ""});
  table.add({"mapping efficiency", percent(t.mapping_efficiency), "% of stream slots", ""});
  count("sram reads input", t.sram_reads_input, "words");
  count("sram reads weight", t.sram_reads_weight, "words");
  count("sram writes output", t.sram_writes_output, "words");
  count("accumulator reads", t.accumulator_reads, "words");
  count("accumulator writes", t.accumulator_writes, "words");
  const double all = static_cast<double>(t.ledger.total());
  const auto share = [&table, all](const char* name, std::int64_t value) {
    table.add({name, std::to_string(value), "PE-ticks",
               percent(all > 0 ? static_cast<double>(value) / all : 0.0)});
  };
  share("useful", t.ledger.useful);
  share("padded", t.ledger.padded);
  share("fill", t.ledger.fill);
  share("drain", t.ledger.drain);
  share("weight shift", t.ledger.weight_shift);
  share("weight stall", t.ledger.weight_stall);
  share("dma stall", t.ledger.dma_stall);
  return table;
}

}  // namespace detail

inline std::ostream& operator<<(std::ostream& out, const SystolicTiming& t) {
  return out << t.table();
}

inline std::ostream& operator<<(std::ostream& out, const SystolicRun& run) {
  return out << run.table();
}

}  // namespace tinyscale
