#pragma once
// A question of "How To Scale Your Model" answered by the library: once with the constants that the
// book puts in, once with the preset's. The chapters are in the files beside this one.
#include <functional>
#include <string>
#include <vector>

#include "tinyscale.hpp"

namespace book {

namespace ts = tinyscale;
using ts::Quantity;

struct Answer {
  std::string id;
  Quantity ours;            // with the row's constants
  bool has_preset = false;  // the row speaks of a chip
  Quantity preset;          // the same question to the library's chip
  std::string constants;    // in what the two chips differ
  std::string category;     // of a row whose answer is a statement
};

inline bool near(double a, double b, double tolerance = 1e-9) {
  return std::fabs(a - b) <= tolerance * std::fabs(b);
}

using OfChip = std::function<Quantity(const ts::Chip&)>;

// The constants that make the preset's answer another: those of which one alone, taken from the
// preset, moves the row's.
inline std::string differences(const ts::Chip& row, const ts::Chip& preset, const OfChip& f) {
  const struct {
    const char* name;
    double ts::Chip::*field;
  } fields[] = {{"bf16", &ts::Chip::flops_bf16},
                {"int8", &ts::Chip::flops_int8},
                {"fp8", &ts::Chip::flops_fp8},
                {"vector", &ts::Chip::vector_flops},
                {"memory", &ts::Chip::memory_bytes},
                {"memory bandwidth", &ts::Chip::memory_bandwidth},
                {"on-chip memory", &ts::Chip::sram_bytes},
                {"on-chip bandwidth", &ts::Chip::sram_bandwidth},
                {"link", &ts::Chip::link_bandwidth},
                {"PCIe", &ts::Chip::pcie_bandwidth},
                {"clock", &ts::Chip::clock_hz},
                {"price", &ts::Chip::dollars_per_hour}};
  std::string out;
  const double ours = f(row).value();
  for (const auto& one : fields) {
    ts::Chip mixed = row;
    mixed.*one.field = preset.*one.field;
    const double moved = f(mixed).value();
    if (moved < ours || moved > ours) {
      out += ts::detail::cat({out.empty() ? "" : ", ", one.name, " ",
                              ts::detail::short_number(row.*one.field), ", preset ",
                              ts::detail::short_number(preset.*one.field)});
    }
  }
  return out;
}

class Answers {
 public:
  const std::vector<Answer>& list() const { return list_; }
  const Answer* find(const std::string& id) const {
    for (const Answer& answer : list_) {
      if (answer.id == id) {
        return &answer;
      }
    }
    return nullptr;
  }

  // An answer without a chip in it.
  void add(const std::string& id, const Quantity& ours) {
    Answer answer;
    answer.id = id;
    answer.ours = ours;
    list_.push_back(answer);
  }
  // The same function of the row's chip and of the preset from which it was made.
  void add(const std::string& id, const ts::Chip& row, const OfChip& f) {
    const ts::Chip preset = ts::chip(row.name);
    Answer answer;
    answer.id = id;
    answer.ours = f(row);
    answer.has_preset = true;
    answer.preset = f(preset);
    if (!near(answer.preset.value(), answer.ours.value())) {
      answer.constants = differences(row, preset, f);
    }
    list_.push_back(answer);
  }
  void category(const std::string& id, const std::string& text) {
    Answer answer;
    answer.id = id;
    answer.category = text;
    list_.push_back(answer);
  }

 private:
  std::vector<Answer> list_;
};

inline Quantity number(std::int64_t n, const char* unit = "") {
  return Quantity(static_cast<double>(n), unit);
}

// The preset with the book's own figures (its chapter 2 and 12 tables).
inline ts::Chip book_chip(const std::string& name) {
  ts::Chip chip = ts::chip(name);
  if (chip.name == "tpu-v4") {
    chip.memory_bytes = 32e9, chip.memory_bandwidth = 1.2e12;
  } else if (chip.name == "tpu-v5p") {
    chip.memory_bytes = 96e9, chip.memory_bandwidth = 2.8e12;
  } else if (chip.name == "tpu-v5e") {
    chip.flops_int8 = 3.94e14, chip.memory_bandwidth = 8.2e11;
    chip.sram_bandwidth = 22 * 8.2e11;
  } else if (chip.name == "tpu-v6e") {
    chip.flops_bf16 = 9.2e14, chip.flops_int8 = 1.84e15, chip.memory_bandwidth = 1.6e12;
    chip.pcie_bandwidth = 1.6e10;
  } else if (chip.name == "h100-sxm") {
    chip.flops_bf16 = 9.9e14, chip.flops_int8 = chip.flops_fp8 = 1.98e15;
  }
  return chip;
}

// "holds" when the claim does, for every point of the caller's grid.
inline std::string when(bool holds, const std::string& text) {
  return holds ? text : "does not hold: " + text;
}

// Two that the row's formula sets the ratio of.
inline Quantity ratio(const Quantity& a, const Quantity& b) { return a / b; }

}  // namespace book
