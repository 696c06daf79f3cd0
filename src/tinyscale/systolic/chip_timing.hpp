#pragma once
// What one product costs on a whole chip: ticks, bytes at each level, stalls, energy, and the
// bound. A format that the chip multiplies at twice its arrays' rate makes the arrays tick twice a
// clock (int8 on v5e), one at half the rate every second clock.

#include <algorithm>  // max_element
#include <cmath>      // round
#include <cstdint>    // int64_t
#include <iostream>   // ostream
#include <string>     // string

#include "tinyscale/base/text.hpp"
#include "tinyscale/hardware/chip.hpp"
#include "tinyscale/systolic/chip_schedule.hpp"
#include "tinyscale/systolic/systolic_array.hpp"

namespace tinyscale {

// The costs of x [M, K] times w [K, N]; ledger and traffic in words are those of all arrays.
struct ChipTiming : SystolicTiming {
  std::string chip;
  std::string kind = "formula";       // or simulated: by stepping
  ChipTile tile;                      // of a GPU: a thread block's
  std::int64_t predicted_cycles = 0;  // in closed form, by which the tile was chosen
  std::int64_t cold_cycles = 0;       // until the first tiles were there: part of the stalls
  double seconds = 0;
  std::int64_t hbm_bytes_read = 0, hbm_bytes_written = 0;
  std::int64_t chip_bytes_read = 0, chip_bytes_written = 0;  // on-chip memory and weight FIFO
  std::int64_t accumulator_bytes_read = 0, accumulator_bytes_written = 0;
  std::int64_t on_chip_bytes = 0, accumulator_bytes = 0;  // held at once
  // Ticks that each part would need alone, and the longest of them: matmul, shift, memory, vector.
  std::int64_t matmul_cycles = 0, shift_cycles = 0, memory_cycles = 0, vector_cycles = 0;
  std::string bound;
  double mac_joules = 0, chip_joules = 0, hbm_joules = 0;
  double mac_pj = 0, chip_pj = 0, hbm_pj = 0;  // of a multiply-add, of a byte; 0: not known
  std::string energy_source;
  std::int64_t waves = 0, last_wave = 0, blocks_at_once = 0;  // thread blocks of a GPU

  // The share of the ticks that an entry of the ledger takes.
  double share(std::int64_t pe_ticks) const {
    return static_cast<double>(pe_ticks) / static_cast<double>(ledger.total());
  }
  Table table() const;
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
};

inline Table ChipTiming::table() const {
  Table t = detail::systolic_table(*this, kind.c_str());
  t.title = detail::cat({"x [",
                         m,
                         ", ",
                         k,
                         "] times w [",
                         k,
                         ", ",
                         n,
                         "] in ",
                         format,
                         passes > 1 ? " x 6 passes" : "",
                         " on ",
                         chip,
                         waves > 0 ? " (a GPU, approximated)" : "",
                         ", tiles of ",
                         tile.m,
                         " x ",
                         tile.k,
                         " x ",
                         tile.n,
                         ", bound by ",
                         bound});
  // clang-format off
  const char* const names[] = {
      "predicted cycles", "cold start", "matmul alone", "weight shift alone", "memory alone",
      "vector unit alone", "hbm read", "hbm written", "on-chip read", "on-chip written",
      "accumulators read", "accumulators written", "on-chip memory used", "accumulators used"};
  const std::int64_t counts[] = {
      predicted_cycles, cold_cycles, matmul_cycles, shift_cycles, memory_cycles,
      vector_cycles, hbm_bytes_read, hbm_bytes_written, chip_bytes_read, chip_bytes_written,
      accumulator_bytes_read, accumulator_bytes_written, on_chip_bytes, accumulator_bytes};
  // clang-format on
  for (int i = 0; i < 14; ++i) {
    t.add({names[i], std::to_string(counts[i]), i < 6 ? "ticks" : "B", ""});
  }
  if (waves > 0) {
    t.add({"waves", std::to_string(waves),
           detail::cat({"last wave ", last_wave, " of ", blocks_at_once, " full"}), ""});
  }
  t.add({"time", format_fixed(seconds * 1e6, 3), "us", ""});
  const double joules[] = {mac_joules, chip_joules, hbm_joules}, pj[] = {mac_pj, chip_pj, hbm_pj};
  const char* const levels[] = {"multiply-adds", "on-chip memory", "hbm"};
  for (int i = 0; i < 3; ++i) {
    const bool known = pj[i] > 0;
    t.add({detail::cat({"energy of ", levels[i]}),
           known ? format_fixed(joules[i] * 1e6, 3) : "unknown",
           known ? detail::cat({"uJ, ", pj[i], i == 0 ? " pJ each" : " pJ/B"}) : "", ""});
  }
  t.add({"energy by", energy_source.empty() ? "no source" : energy_source, "", ""});
  return t;
}

inline std::ostream& operator<<(std::ostream& out, const ChipTiming& t) { return out << t.table(); }

namespace detail {

inline double format_rate(const Chip& chip, DType format) {
  return format == DType::bf16                                    ? chip.flops_bf16
         : format == DType::int8                                  ? chip.flops_int8
         : format == DType::fp8_e4m3 || format == DType::fp8_e5m2 ? chip.flops_fp8
         : format != DType::f32                                   ? 0
         : chip.flops_f32 > 0                                     ? chip.flops_f32
                                                                  : chip.flops_bf16;  // in passes
}

// Checks the chip and sets the format; ticks a second of the arrays in it.
inline double chip_ticks(const char* function, const Chip& chip, DType& format) {
  const std::string name = chip.name.empty() ? "this chip" : chip.name;
  if (chip.kind == "cpu" || chip.kind == "wafer") {
    fail({function, ": ", name, " is a ", chip.kind, "; a tpu, npu or gpu has arrays to emulate"});
  }
  if (chip.mxu_rows < 1 || chip.mxu_cols < 1 || chip.mxus < 1 || chip.cores < 1 ||
      (chip.kind == "gpu" && chip.mxus < chip.cores) || chip.unit_peak() > 0x1p27 * chip.clock_hz) {
    fail({function, ": ", name, " has ", chip.mxus, " arrays of ", chip.mxu_rows, " x ",
          chip.mxu_cols, " on ", chip.cores,
          " cores; 1 of each to 2^26 PEs in all, on a gpu 1 array a core, are emulated"});
  }
  for (const double rate : {chip.clock_hz, chip.memory_bandwidth}) {
    if (!(rate > 0) || !is_finite(rate)) {
      fail({function, ": ", name, " has clock_hz ", chip.clock_hz, ", memory_bandwidth ",
            chip.memory_bandwidth, "; finite numbers above 0 are right"});
    }
  }
  std::string known;
  for (const DType each :
       {DType::bf16, DType::int8, DType::f32, DType::fp8_e4m3, DType::fp8_e5m2}) {
    if (format_rate(chip, each) > 0 && is_finite(format_rate(chip, each))) {
      known += (known.empty() ? "" : ", ") + std::string(name_of(each));
      format = format == DType::f64 ? each : format;
    }
  }
  const double rate = format_rate(chip, format) / chip.unit_peak();
  if (!(rate > 0) || !is_finite(rate)) {
    fail({function, ": ", name, " has no ", name_of(format), "; it has ",
          known.empty() ? "no format: set flops_bf16, say" : known});
  }
  return rate >= 0.75 ? chip.clock_hz * std::round(rate) : chip.clock_hz / std::round(1 / rate);
}

inline ChipCase chip_case(const char* function, const Chip& chip, const ChipTiming& r,
                          const ChipMatmul& o, double ticks) {
  if (r.m < 1 || r.k < 1 || r.n < 1) {
    fail({function, ": M, K, N are ", r.m, ", ", r.k, ", ", r.n, "; each must be at least 1"});
  }
  if (static_cast<double>(r.m) * static_cast<double>(r.k) * static_cast<double>(r.n) > 0x1p56) {
    fail({function, ": M, K, N are ", r.m, ", ", r.k, ", ", r.n, "; M K N is at most 2^56"});
  }
  if (r.format == DType::int8 && r.k > 131071) {
    fail({function, ": K is ", r.k, "; int32 sums of int8 products hold at most 131071"});
  }
  if (bytes_of(o.result) < 1) {
    fail({function, ": results in ", o.result, "; a format of whole bytes is right"});
  }
  ChipCase c;
  const bool gpu = chip.kind == "gpu";  // the arrays of one core work side by side
  c.array = r;
  c.array.rows = chip.mxu_rows;
  c.array.cols = chip.mxu_cols;
  c.array.dataflow = gpu ? Dataflow::output_stationary : Dataflow::weight_stationary;
  const bool in_passes = r.format == DType::f32 && !(chip.flops_f32 > 0);
  c.array.format = in_passes ? DType::bf16 : r.format;
  c.array.passes = in_passes ? 6 : 1;
  fold(c.array);
  c.arrays = gpu ? std::max(1, chip.mxus / chip.cores) : chip.mxus;
  c.o = o;
  c.word = static_cast<std::int64_t>(bytes_of(r.format));
  c.result_word = o.y == Home::chip ? 0 : static_cast<std::int64_t>(bytes_of(o.result));
  c.fifo = chip.fifo_tiles;
  c.sram = gpu ? chip.sram_bytes / chip.cores : chip.sram_bytes;
  c.accumulators = gpu ? 131072 : chip.accumulator_bytes;  // half of the registers (K)
  c.memory = tick_rate(chip.memory_bandwidth, ticks);
  c.vector = tick_rate(chip.vector_flops, ticks);
  return c;
}

inline void check_fit(const char* function, const ChipTiming& r, const ChipCase& c) {
  const bool sums = c.accumulators > 0 && static_cast<double>(r.accumulator_bytes) > c.accumulators;
  const double needed = static_cast<double>(sums ? r.accumulator_bytes : r.on_chip_bytes);
  const double room = sums ? c.accumulators : c.sram;
  if (room > 0 && needed > room) {
    fail({function, ": tiles of ", r.tile.m, " x ", r.tile.k, " x ", r.tile.n, " need ", needed,
          " B of ", sums ? "accumulators" : "on-chip memory", ", ", needed - room,
          " more than the ", room, " of ", r.chip,
          "; a smaller tile, or operands that lie in memory, need less"});
  }
}

// What is stepped: operands rounded to the format, and where the product goes. Null: only timed.
struct ChipNumbers {
  MatrixView x, w;
  float* out;
};

inline void count_folds(const char* function, ChipTiming& r, const ChipCase& c,
                        const List<Fold>* folds, const ChipNumbers* numbers) {
  SystolicTiming& t = r;
  t = c.array;
  if (numbers != nullptr) {
    t = step_folds(t, folds, folds == nullptr ? 1 : c.arrays, numbers->x, numbers->w, numbers->out,
                   function);
  } else if (folds != nullptr) {
    t = time_folds(t, *folds, c.arrays);
  } else {
    time_array(t);
  }
}

// MXUs side by side that share memory, on-chip memory and vector unit.
inline void time_mxus(const char* function, ChipTiming& r, const ChipCase& c,
                      const ChipNumbers* numbers) {
  const ChipTile& tile = c.o.tile;
  if (tile.m < 0 || tile.k < 0 || tile.n < 0 || (tile.k % c.array.rows != 0 && tile.k < r.k) ||
      (tile.n % c.wide() != 0 && tile.n < r.n)) {
    fail({function, ": tile ", tile.m, " x ", tile.k, " x ", tile.n, "; on ", r.chip,
          " k must be a multiple of ", c.array.rows, ", n of ", c.wide(), ", or the whole"});
  }
  if (c.fifo > 0 && c.o.w == Home::chip) {
    fail({function, ": w lies on the chip; the weights of ", r.chip,
          " come through a FIFO from memory"});
  }
  const ChipPlan plan = best_plan(c);
  r.tile = plan.tile;
  r.on_chip_bytes = plan.on_chip;
  r.accumulator_bytes = plan.accumulators;
  check_fit(function, r, c);
  if (!plan.fits) {
    fail({function, ": ", plan.folds, " folds, ", plan.predicted, " ticks; at most 2^22 and 2^34 ",
          "are emulated, larger tiles make fewer folds"});
  }
  const ChipTimeline line(c, plan);
  count_folds(function, r, c, &line.folds, numbers);
  r.ledger.drain += r.ledger.total() / r.cycles * (line.cycles - r.cycles);
  r.cycles = line.cycles;
  r.predicted_cycles = plan.predicted;
  r.cold_cycles = line.folds[0].stream - c.array.rows;
  r.hbm_bytes_read = line.bytes_read;
  r.hbm_bytes_written = line.bytes_written;
  r.chip_bytes_written = line.bytes_read;
  r.chip_bytes_written +=
      c.o.y == Home::chip ? r.m * r.n * static_cast<std::int64_t>(bytes_of(c.o.result)) : 0;
  r.matmul_cycles = (r.ledger.useful + r.ledger.padded) / (c.array.rows * c.wide());
  r.shift_cycles = plan.folds * c.array.rows;
}

// What follows from the counts: bytes, the part that alone would take longest, energy.
inline void finish(ChipTiming& r, const Chip& chip, const ChipCase& c, double ticks) {
  const std::int64_t hbm = r.hbm_bytes_read + r.hbm_bytes_written;
  r.seconds = static_cast<double>(r.cycles) / ticks;
  r.utilization = r.share(r.ledger.useful);
  r.time_efficiency = r.share(r.ledger.useful + r.ledger.padded);
  r.mapping_efficiency = r.utilization / r.time_efficiency;
  r.chip_bytes_read = (r.sram_reads_input + r.sram_reads_weight) * c.word;
  r.accumulator_bytes_read = (r.accumulator_reads + r.m * r.n) * 4;  // the last time to leave
  r.accumulator_bytes_written = std::max(r.accumulator_writes, r.m * r.n) * 4;
  r.memory_cycles = c.memory.ticks(hbm);
  r.vector_cycles = c.vector.ticks(r.m * r.n);
  const std::int64_t parts[] = {r.matmul_cycles, r.shift_cycles, r.memory_cycles, r.vector_cycles};
  const char* const names[] = {"matmul", "shift", "memory", "vector"};
  r.bound = names[std::max_element(parts, parts + 4) - parts];
  const ChipEnergy& e = chip.energy;
  r.mac_pj = r.format == DType::int8   ? e.mac_int8
             : r.format == DType::f32  ? e.mac_f32
             : r.format == DType::bf16 ? e.mac_bf16
                                       : 0;
  r.chip_pj = e.sram_byte;
  r.hbm_pj = e.memory_byte;
  r.energy_source = e.source;
  const std::int64_t moved = r.chip_bytes_read + r.chip_bytes_written + r.accumulator_bytes_read +
                             r.accumulator_bytes_written;
  r.mac_joules = static_cast<double>(r.ledger.useful) * r.mac_pj * 1e-12;
  r.chip_joules = static_cast<double>(moved) * r.chip_pj * 1e-12;
  r.hbm_joules = static_cast<double>(hbm) * r.hbm_pj * 1e-12;
}

}  // namespace detail
}  // namespace tinyscale
