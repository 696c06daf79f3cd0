#pragma once
// What a generation cost beside what the roofline of a chip allows, step for step:
//   T = max(FLOPs / peak, bytes / bandwidth)
// of prefill (many tokens a step: math) and of decode (few: memory), and layer by layer.
// Source: "How To Scale Your Model", chapter 7.

#include <ostream>  // operator<<
#include <string>   // string
#include <vector>   // cells

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/hardware/roofline.hpp"
#include "tinyscale/model/generate.hpp"

namespace tinyscale {

struct GenerationRow {
  std::string name;                    // prefill, decode, "layer 3", "embedding and head"
  std::int64_t steps = 0, tokens = 0;  // that went in; of guesses those that were kept
  double flops = 0, bytes = 0;         // of one step, formula
  double formula = 0, measured = 0;    // seconds of one step
  std::string bound;                   // math or memory, by the formula
  double bandwidth = 0;                // bytes/s of the memory that holds what a step reads
  double tokens_per_second() const { return measured > 0 ? tokens_per_step() / measured : 0; }
  double predicted_tokens_per_second() const {
    return formula > 0 ? tokens_per_step() / formula : 0;
  }
  double bytes_per_second() const { return measured > 0 ? bytes / measured : 0; }
  double of_roof() const { return measured > 0 ? formula / measured : 0; }

 private:
  double tokens_per_step() const {
    return steps > 0 ? static_cast<double>(tokens) / static_cast<double>(steps) : 0;
  }
};

struct GenerationReport {
  std::string chip;
  bool on_host = false;        // this machine: the measured columns belong beside the formula
  List<GenerationRow> phases;  // prefill, decode, draft: those that had steps
  List<GenerationRow> layers;  // of decode
  std::int64_t guessed = 0, accepted = 0;

  Table table() const;
  Table layer_table() const;
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
};

namespace detail {

inline GenerationRow generation_row(const std::string& name, const StepTotals& totals,
                                    const StepCosts& part, const Chip& chip, DType math) {
  GenerationRow row;
  const auto steps = static_cast<double>(totals.steps);
  row.name = name;
  row.steps = totals.steps;
  row.tokens = totals.tokens;
  row.flops = part.matmul_flops / steps;
  row.bytes = part.bytes() / steps;
  row.measured = part.seconds / steps;
  // A step comes back to a weight after all others: what holds them all is what is read from.
  row.bandwidth = level_for(chip, totals.all.bytes() / steps).bandwidth;
  const double t_math = row.flops / chip.peak(math), t_memory = row.bytes / row.bandwidth;
  row.bound = t_memory >= t_math ? "memory" : "math";
  row.formula = t_memory >= t_math ? t_memory : t_math;
  return row;
}

// What this machine took says nothing of another chip: without `on_host` those columns are left
// out.
inline Table generation_table(const std::string& title, const List<GenerationRow>& rows,
                              bool on_host) {
  static const struct {
    const char* name;
    bool measured;
    Cell (*cell)(const GenerationRow& row);
  } columns[] = {
      {"part", false, [](const GenerationRow& r) -> Cell { return r.name; }},
      {"steps", false, [](const GenerationRow& r) -> Cell { return std::to_string(r.steps); }},
      {"tokens", false, [](const GenerationRow& r) -> Cell { return std::to_string(r.tokens); }},
      {"FLOPs a step", false,
       [](const GenerationRow& r) -> Cell { return format_si(r.flops, ""); }},
      {"bytes a step", false, [](const GenerationRow& r) -> Cell { return format_bytes(r.bytes); }},
      {"formula", false, [](const GenerationRow& r) -> Cell { return format_seconds(r.formula); }},
      {"measured", true, [](const GenerationRow& r) -> Cell { return format_seconds(r.measured); }},
      {"tokens/s formula", false,
       [](const GenerationRow& r) -> Cell {
         return format_fixed(r.predicted_tokens_per_second(), 1);
       }},
      {"tokens/s measured", true,
       [](const GenerationRow& r) -> Cell { return format_fixed(r.tokens_per_second(), 1); }},
      {"bytes/s measured", true,
       [](const GenerationRow& r) -> Cell { return format_si(r.bytes_per_second(), "B/s"); }},
      {"memory", false,
       [](const GenerationRow& r) -> Cell { return format_si(r.bandwidth, "B/s"); }},
      {"of roof", true, [](const GenerationRow& r) -> Cell { return format_percent(r.of_roof()); }},
      {"bound by", false, [](const GenerationRow& r) -> Cell { return r.bound; }}};
  Table table;
  table.title = title;
  for (const auto& column : columns) {
    if (on_host || !column.measured) {
      table.columns.push_back(column.name);
    }
  }
  for (const GenerationRow& row : rows) {
    std::vector<Cell> cells;
    for (const auto& column : columns) {
      if (on_host || !column.measured) {
        cells.push_back(column.cell(row));
      }
    }
    table.add(cells);
  }
  return table;
}

}  // namespace detail

// `math`: the format that products are computed in, f32, or int8 of packed weights.
inline GenerationReport generation_report(const Generation& made, const Chip& chip,
                                          DType math = DType::f32) {
  GenerationReport report;
  report.chip = chip.name;
  report.on_host = chip.measured;
  report.guessed = made.guessed;
  report.accepted = made.accepted;
  const auto phase = [&](const char* name, const StepTotals& totals) {
    if (totals.steps > 0) {
      report.phases.push_back(detail::generation_row(name, totals, totals.all, chip, math));
    }
  };
  phase("prefill", made.prefill);
  phase("decode", made.decode);
  phase("draft", made.draft);
  for (std::size_t i = 0; made.decode.steps > 0 && i < made.decode.parts.size(); ++i) {
    const bool last = i + 1 == made.decode.parts.size();
    const std::string name = last ? "embedding and head" : detail::cat({"layer ", i});
    report.layers.push_back(
        detail::generation_row(name, made.decode, made.decode.parts[i], chip, math));
  }
  return report;
}

inline Table GenerationReport::table() const {
  return detail::generation_table("generation on " + chip, phases, on_host);
}
inline Table GenerationReport::layer_table() const {
  return detail::generation_table("decode on " + chip + ", by layer", layers, on_host);
}

inline std::ostream& operator<<(std::ostream& out, const GenerationReport& report) {
  out << report.table().text();
  if (report.guessed > 0) {
    const auto share = static_cast<double>(report.accepted) / static_cast<double>(report.guessed);
    double tokens = 0, seconds = 0;
    for (const GenerationRow& row : report.phases) {
      tokens += row.name == "decode" ? static_cast<double>(row.tokens) : 0;
      seconds += row.name == "prefill" ? 0 : row.measured * static_cast<double>(row.steps);
    }
    out << detail::cat({"draft: ", report.accepted, " of ", report.guessed, " guesses kept, ",
                        format_percent(share)});
    if (report.on_host) {
      out << "; with its time " << format_fixed(seconds > 0 ? tokens / seconds : 0, 1)
          << " tokens/s";
    }
    out << "\n";
  }
  return out;
}

}  // namespace tinyscale
