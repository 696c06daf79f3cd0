#pragma once
// A chip as a table: what it can do, how much it holds, and the ridge that divides its work.

#include <iostream>  // ostream
#include <string>    // string

#include "tinyscale/base/text.hpp"
#include "tinyscale/hardware/chip.hpp"

namespace tinyscale {

// Rows of (what, value, kind): given by a preset's source, or measured on this laptop.
inline Table chip_table(const Chip& chip) {
  const std::string kind = chip.measured ? "measured" : "given";
  const bool cores = chip.core_flops_f32 > 0;  // what one core alone reaches is known
  Table t;
  t.title = chip.name;
  t.columns = {"what", "value", "kind"};
  if (cores) {
    t.title = detail::cat({chip.name, ", ", chip.cores, chip.cores == 1 ? " thread" : " threads"});
    t.columns = {"what", "value", "one thread", "kind"};
  }
  t.title += chip.doubt;
  const auto add = [&](const std::string& what, double value, double core, const char* unit) {
    if (!cores) {
      t.add({what, format_si(value, unit), kind});
    } else {
      t.add({what, format_si(value, unit), core > 0 ? format_si(core, unit) : "-", kind});
    }
  };
  const double rates[3][2] = {{chip.flops_bf16, chip.core_flops_bf16},
                              {chip.flops_int8, chip.core_flops_int8},
                              {chip.flops_f32, chip.core_flops_f32}};
  const char* const names[3] = {"bf16", "int8", "f32"};
  for (int i = 0; i < 3; ++i) {
    if (rates[i][0] > 0) {
      add(detail::cat({"matmul peak, ", names[i]}), rates[i][0], rates[i][1], "FLOP/s");
    }
  }
  if (chip.vector_flops > 0) {
    add("vector peak", chip.vector_flops, chip.core_flops_f32 / 2, "FLOP/s");
  }
  for (const MemoryLevel& level : chip.levels) {
    add(detail::cat({level.name, ", ", format_bytes(level.bytes)}), level.bandwidth,
        level.core_bandwidth, "B/s");
  }
  if (chip.levels.empty()) {
    add(detail::cat({"memory, ", format_bytes(chip.memory_bytes)}), chip.memory_bandwidth, 0,
        "B/s");
  }
  return t;
}

inline std::ostream& operator<<(std::ostream& out, const Chip& chip) {
  return out << chip_table(chip);
}

}  // namespace tinyscale
