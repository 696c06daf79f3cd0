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

// Fields of a chip that a formula may have used and that are not alike.
inline std::string differences(const ts::Chip& row, const ts::Chip& preset) {
  const struct {
    const char* name;
    double row, preset;
  } fields[] = {{"flops_bf16", row.flops_bf16, preset.flops_bf16},
                {"flops_int8", row.flops_int8, preset.flops_int8},
                {"flops_fp8", row.flops_fp8, preset.flops_fp8},
                {"vector_flops", row.vector_flops, preset.vector_flops},
                {"memory_bytes", row.memory_bytes, preset.memory_bytes},
                {"memory_bandwidth", row.memory_bandwidth, preset.memory_bandwidth},
                {"sram_bytes", row.sram_bytes, preset.sram_bytes},
                {"sram_bandwidth", row.sram_bandwidth, preset.sram_bandwidth},
                {"link_bandwidth", row.link_bandwidth, preset.link_bandwidth},
                {"dcn_bandwidth", row.dcn_bandwidth, preset.dcn_bandwidth},
                {"pcie_bandwidth", row.pcie_bandwidth, preset.pcie_bandwidth},
                {"clock_hz", row.clock_hz, preset.clock_hz},
                {"dollars_per_hour", row.dollars_per_hour, preset.dollars_per_hour}};
  std::string out;
  for (const auto& field : fields) {
    if (field.row < field.preset || field.row > field.preset) {
      out += ts::detail::cat(
          {out.empty() ? "" : ", ", field.name, " ", field.row, ", preset ", field.preset});
    }
  }
  return out;
}

class Answers {
 public:
  using OfChip = std::function<Quantity(const ts::Chip&)>;

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
    answer.constants = differences(row, preset);
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

inline bool near(double a, double b, double tolerance = 1e-9) {
  return std::fabs(a - b) <= tolerance * std::fabs(b);
}

// Two that the row's formula sets the ratio of.
inline Quantity ratio(const Quantity& a, const Quantity& b) { return a / b; }

}  // namespace book
