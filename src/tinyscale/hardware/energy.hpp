#pragma once
// What an operation costs in energy: pJ at 45 nm and at 7 nm.
//   one bf16 weight from HBM = 88 pJ = 150 bf16 multiply-accumulates of 0.59 pJ
// 45 nm: Horowitz, ISSCC 2014; 7 nm: "Ten Lessons From Three Generations Shaped Google's TPUv4i",
// ISCA 2021, table 2. S45: the 45 nm value was seen quoted; K: from general knowledge of the two.

#include <string>  // operations
#include <vector>  // their names

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/near_names.hpp"
#include "tinyscale/base/text.hpp"

namespace tinyscale {

struct EnergyRow {
  const char* operation = "";
  double pj_45nm = 0, pj_7nm = 0;  // 0: not known
  const char *source = "", *note = "";
};

// Arithmetic, a read of 64 bits from a memory, a bit over a link.
inline const List<EnergyRow>& energy_rows() {
  static const List<EnergyRow> rows = {
      {"int8 add", 0.030, 0.007, "K", ""},
      {"int32 add", 0.100, 0.030, "S45 K7", ""},
      {"bf16 add", 0, 0.110, "K", ""},
      {"fp16 add", 0.400, 0.160, "K", ""},
      {"fp32 add", 0.900, 0.380, "S45 K7", ""},
      {"int8 multiply", 0.200, 0.070, "K", ""},
      {"int32 multiply", 3.100, 1.480, "S45 K7", ""},
      {"bf16 multiply", 0, 0.210, "K", ""},
      {"fp16 multiply", 1.100, 0.340, "K", ""},
      {"fp32 multiply", 3.700, 1.310, "S45 K7", ""},
      {"sram 8 KiB read, 64 bit", 10, 7.5, "S45 K7", ""},
      {"sram 32 KiB read, 64 bit", 20, 8.5, "K", ""},
      {"sram 1 MiB read, 64 bit", 100, 14, "K", ""},
      {"dram ddr3/ddr4, 64 bit", 1300, 1300, "K", "1300-2600 in the 45 nm table"},
      {"dram hbm2, 64 bit", 0, 350, "K", "range 250-450"},
      {"dram gddr6, 64 bit", 0, 415, "K", "range 350-480"},
      {"link on a package, 1 bit", 0, 1.5, "K", "range 1-2, a rule of thumb"},
      {"link on a board, 1 bit", 0, 5, "K", "a rule of thumb"},
      {"link by optics, 1 bit", 0, 15, "K", "range 10-20, a rule of thumb"},
  };
  return rows;
}

inline Table energy_table() {
  Table out;
  out.title = "Energy of an operation, pJ";
  out.columns = {"operation", "45 nm", "7 nm", "source", "note"};
  const auto cell = [](double pj) { return pj > 0 ? detail::number_cell(pj) : "-"; };
  for (const EnergyRow& row : energy_rows()) {
    out.add({row.operation, cell(row.pj_45nm), cell(row.pj_7nm), row.source, row.note});
  }
  return out;
}

// picojoules("bf16 multiply", 7) = 0.21; throws where the table has no value.
inline double picojoules(const std::string& operation, int nanometres) {
  std::vector<std::string> names;
  for (const EnergyRow& row : energy_rows()) {
    names.push_back(row.operation);
    const double pj = nanometres == 45 ? row.pj_45nm : nanometres == 7 ? row.pj_7nm : 0;
    if (operation == row.operation) {
      if (!(pj > 0)) {
        detail::fail({"picojoules: nothing known of \"", operation, "\" at ", nanometres,
                      " nm; the table has 45 and 7 nm, see energy_table()"});
      }
      return pj;
    }
  }
  detail::fail(
      {"picojoules: no operation \"", operation, "\"; ", detail::near_text(operation, names)});
}

}  // namespace tinyscale
