#pragma once
// The roofline: what bounds an op on a chip, and how long it must take at least.
//   T = max(T_math = matmul FLOPs / peak, T_vector = vector FLOPs / rate, T_mem = bytes / rate)
// Source: "How To Scale Your Model", chapter 1. Operands are read once, results written once.

#include <algorithm>  // max
#include <ostream>    // operator<<
#include <string>     // names
#include <vector>     // rows

#include "tinyscale/base/format.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/hardware/chip.hpp"
#include "tinyscale/measure/counters.hpp"
#include "tinyscale/measure/profile.hpp"
#include "tinyscale/measure/quantity.hpp"

namespace tinyscale {

// All ops of one name and shape: sums over `count` of them, times in seconds.
struct RooflineRow {
  std::string name, shape;
  int count = 0;
  double matmul_flops = 0, vector_flops = 0, bytes = 0;
  double intensity = 0;                           // FLOPs per byte
  double t_math = 0, t_vector = 0, t_memory = 0;  // formula
  double seconds = 0;                             // formula: the largest of the three
  double measured = 0;                            // host time; 0 when nothing was timed

  // How much of what the chip allows was reached: formula / measured; 0 when nothing was timed.
  double of_roof() const { return measured > 0 ? seconds / measured : 0; }

  std::string bound;  // math, vector, memory
  std::string level;  // the memory that holds the operands
};

struct RooflineReport {
  std::string chip;
  DType format = DType::f32;
  bool on_host = false;     // this machine: the measured column belongs beside the formula
  double vector_flops = 0;  // 0: no rate known, vector work does not limit
  List<RooflineRow> rows;
  RooflineRow total;
  HardwareCounts hardware;    // on this machine, when the profile was told to count
  std::string hardware_note;  // why there are none
  std::string doubt;          // the chip's

  Table table() const;
  Table hardware_table() const;
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
};

namespace detail {

// Elements recorded as f32 are priced in `format`; token numbers and stored low precision stay.
inline double operand_bytes(const List<Operand>& operands, DType format) {
  double bytes = 0;
  for (const Operand& operand : operands) {
    const DType priced = operand.format == DType::f32 ? format : operand.format;
    bytes += operand.element_bytes > 0 ? operand.bytes() : operand.elements * bytes_of(priced);
  }
  return bytes;
}

// The format that a matmul computes in: the wider of its two factors, the first that it reads, with
// f32 as `format`.
inline DType math_format(const List<Operand>& reads, DType format) {
  if (reads.size() < 2) {
    return format;
  }
  const DType x = reads[0].format, w = reads[1].format;
  const DType wider = bytes_of(x) >= bytes_of(w) ? x : w;
  return bytes_of(wider) >= 4 ? format : wider;
}

inline double priced_bytes(const OpRecord& op, DType format) {
  const double reads = op.reads.empty() ? op.bytes_read : operand_bytes(op.reads, format);
  const double writes = op.writes.empty() ? op.bytes_written : operand_bytes(op.writes, format);
  return reads + writes;
}

// The smallest level that holds this many bytes; main memory when none does.
inline MemoryLevel level_for(const Chip& chip, double bytes) {
  for (const MemoryLevel& level : chip.levels) {
    if (bytes <= level.bytes && level.bandwidth > 0) {
      return level;
    }
  }
  const char* const name = chip.kind == "cpu" ? "DRAM" : chip.kind == "wafer" ? "SRAM" : "HBM";
  return {name, chip.memory_bytes, chip.memory_bandwidth};
}

inline void bound_row(RooflineRow& row) {
  row.seconds = std::max(row.t_math, std::max(row.t_vector, row.t_memory));
  row.bound = row.seconds <= 0              ? "nothing"
              : row.t_memory >= row.seconds ? "memory"
              : row.t_math >= row.seconds   ? "math"
                                            : "vector";
  row.intensity = row.bytes > 0 ? (row.matmul_flops + row.vector_flops) / row.bytes : 0;
}

inline void check_priced(const Chip& chip, const std::string& what, double rate, double least) {
  if (!(rate >= least) || !is_finite(rate)) {
    fail({"roofline: ", chip.name.empty() ? "this chip" : chip.name, ": ", what, " is ", rate,
          "; a finite number ", least > 0 ? "above 0" : "from 0", " is right"});
  }
}

// What one op takes on a chip: the row of these numbers, without a name.
inline RooflineRow priced_row(const OpCost& op, const Chip& chip) {
  check_priced(chip, "vector_flops", chip.vector_flops, 0);
  for (const MemoryLevel& level : chip.levels) {
    check_priced(chip, "the bandwidth of level " + level.name, level.bandwidth, 0);
  }
  RooflineRow row;
  row.count = 1;
  row.matmul_flops = op.matmul_flops;
  row.vector_flops = op.vector_flops;
  row.bytes = op.bytes;
  const MemoryLevel level = level_for(chip, row.bytes);
  if (row.bytes > 0) {
    check_priced(chip, "memory_bandwidth", level.bandwidth, 1e-300);
  }
  row.level = level.name;
  row.t_math = row.matmul_flops > 0 ? row.matmul_flops / chip.peak(op.math) : 0;
  row.t_vector = chip.vector_flops > 0 ? row.vector_flops / chip.vector_flops : 0;
  row.t_memory = level.bandwidth > 0 ? row.bytes / level.bandwidth : 0;
  bound_row(row);
  return row;
}

inline OpCost op_cost(const OpRecord& op, DType format) {
  return {op.matmul_flops, op.vector_flops, priced_bytes(op, format),
          math_format(op.reads, format)};
}

inline RooflineRow roofline_row(const OpRecord& op, const Chip& chip, DType format) {
  RooflineRow row = priced_row(op_cost(op, format), chip);
  row.name = op.name;
  row.shape = op.shape;
  row.measured = op.seconds;
  return row;
}

inline void add_row(RooflineRow& sum, const RooflineRow& row) {
  sum.count += row.count;
  sum.matmul_flops += row.matmul_flops;
  sum.vector_flops += row.vector_flops;
  sum.bytes += row.bytes;
  sum.t_math += row.t_math;
  sum.t_vector += row.t_vector;
  sum.t_memory += row.t_memory;
  sum.measured += row.measured;
}

}  // namespace detail

// One record priced on a chip; the same numbers as a Profile's row of one op.
inline RooflineRow roofline(const OpRecord& op, const Chip& chip, DType format = DType::f32) {
  return detail::roofline_row(op, chip, format);
}

// What the log of a mesh run keeps of an op, and how long a chip takes for it at least; of a chip
// without any rate, which stands for a network alone, 0.
inline OpCost op_cost(const OpRecord& op) { return detail::op_cost(op, DType::f32); }
inline double op_seconds(const OpCost& cost, const Chip& chip) {
  const bool known = chip.flops_bf16 > 0 || chip.flops_f32 > 0 || chip.memory_bandwidth > 0;
  return known ? detail::priced_row(cost, chip).seconds : 0;
}

// Ops of the same name and shape are one row, in the order in which they first ran.
inline RooflineReport roofline(const List<OpRecord>& ops, const Chip& chip,
                               DType format = DType::f32) {
  RooflineReport report;
  report.chip = chip.name.empty() ? "unnamed chip" : chip.name;
  report.format = format;
  report.on_host = chip.measured;
  report.vector_flops = chip.vector_flops;
  report.doubt = chip.doubt;
  double seconds = 0;
  for (const OpRecord& op : ops) {
    const RooflineRow row = detail::roofline_row(op, chip, format);
    seconds += row.seconds;
    detail::add_row(report.total, row);
    std::size_t same = 0;
    while (same < report.rows.size() &&
           (report.rows[same].name != row.name || report.rows[same].shape != row.shape)) {
      ++same;
    }
    if (same == report.rows.size()) {
      report.rows.push_back(row);
    } else {
      RooflineRow& sum = report.rows[same];
      const double both = sum.seconds + row.seconds;
      detail::add_row(sum, row);
      detail::bound_row(sum);
      sum.seconds = both;  // one after the other, as the total
    }
  }
  report.total.name = "total";
  detail::bound_row(report.total);
  report.total.seconds = seconds;  // ops run one after the other: a sum of maxima
  return report;
}

inline Table RooflineReport::table() const {
  Table out;
  out.title =
      detail::cat({"Roofline of ", chip, ", priced as ", name_of(format),
                   vector_flops > 0 ? "" : " (vector rate not known: it does not limit)", doubt});
  out.columns = {"op",        "shape",      "count",  "matmul FLOPs", "vector FLOPs",
                 "bytes",     "FLOPs/byte", "T_math", "T_vector",     "T_mem",
                 "T formula", "bound by",   "level"};
  if (on_host) {
    out.columns.push_back("T measured");
    out.columns.push_back("of its roof");
  }
  List<RooflineRow> all = rows;
  all.push_back(total);
  for (const RooflineRow& row : all) {
    std::vector<Cell> cells = {row.name,
                               row.shape,
                               detail::cat({row.count}),
                               format_si(row.matmul_flops, ""),
                               format_si(row.vector_flops, ""),
                               format_bytes(row.bytes),
                               format_fixed(row.intensity, 2),
                               format_seconds(row.t_math),
                               format_seconds(row.t_vector),
                               format_seconds(row.t_memory),
                               format_seconds(row.seconds),
                               row.bound,
                               row.level};
    if (on_host) {
      cells.push_back(row.measured > 0 ? format_seconds(row.measured) : "-");
      cells.push_back(row.measured > 0 ? format_percent(row.of_roof()) : "-");
    }
    out.add(cells);
  }
  return out;
}

// The processor's counts beside the model's, whose bytes are those of each op alone: what stays in
// a cache from one op to the next does not come from memory again.
inline Table RooflineReport::hardware_table() const {
  Table out;
  out.title = "Hardware counters, all threads";
  if (hardware.share < 1) {
    out.title += detail::cat({", scaled from ", format_percent(hardware.share), " of the time"});
  }
  out.columns = {"what", "counted", "model"};
  const auto si = [](double value) { return format_si(value, ""); };
  out.add({"cycles", si(hardware.cycles), "-"});
  out.add({"instructions", si(hardware.instructions), "-"});
  out.add({"instructions a cycle", format_fixed(hardware.instructions_per_cycle(), 2), "-"});
  out.add({"FLOPs a cycle",
           hardware.cycles > 0
               ? format_fixed((total.matmul_flops + total.vector_flops) / hardware.cycles, 2)
               : "-",
           "-"});
  out.add({"cache misses", si(hardware.cache_misses), si(total.bytes / 64)});
  out.add({"bytes", format_bytes(hardware.memory_bytes()), format_bytes(total.bytes)});
  return out;
}

inline std::ostream& operator<<(std::ostream& out, const RooflineReport& report) {
  out << report.table();
  if (report.hardware.counted) {
    out << "\n" << report.hardware_table();
  }
  return report.hardware_note.empty() ? out : out << report.hardware_note << "\n";
}

inline RooflineReport Profile::roofline(const Chip& on, DType format) const {
  RooflineReport report = tinyscale::roofline(records(), on, format);
  if (hardware_ != nullptr && on.measured) {
    report.hardware = hardware_->read();
    report.hardware_note = hardware_->why();
  }
  return report;
}

}  // namespace tinyscale
