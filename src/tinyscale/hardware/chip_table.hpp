#pragma once
// A chip as a table: what it can do, how much it holds, and the ridge that divides its work.

#include <iostream>  // ostream
#include <string>    // string

#include "tinyscale/base/text.hpp"
#include "tinyscale/hardware/chip.hpp"

namespace tinyscale {

// Rows of (what, value, kind): given by a preset's source, or measured on this laptop.
inline Table chip_table(const Chip& chip) {
  const std::string kind = chip.levels.empty() ? "given" : "measured";
  Table t;
  t.title = chip.name;
  t.columns = {"what", "value", "kind"};
  for (const DType format : {DType::bf16, DType::int8, DType::f32}) {
    const double rate = format == DType::f32    ? chip.flops_f32
                        : format == DType::int8 ? chip.flops_int8
                                                : chip.flops_bf16;
    if (rate > 0) {
      t.add({detail::cat("matmul peak, ", name_of(format)), format_si(rate, "FLOP/s"), kind});
    }
  }
  if (chip.vector_flops > 0) {
    t.add({"vector peak", format_si(chip.vector_flops, "FLOP/s"), kind});
  }
  for (const MemoryLevel& level : chip.levels) {
    t.add({detail::cat(level.name, ", ", format_bytes(level.bytes)),
           format_si(level.bandwidth, "B/s"), kind});
  }
  if (chip.levels.empty()) {
    t.add({detail::cat("memory, ", format_bytes(chip.memory_bytes)),
           format_si(chip.memory_bandwidth, "B/s"), kind});
  }
  return t;
}

inline std::ostream& operator<<(std::ostream& out, const Chip& chip) {
  return out << chip_table(chip);
}

}  // namespace tinyscale
