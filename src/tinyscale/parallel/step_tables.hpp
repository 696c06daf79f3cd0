#pragma once
// The report of a step as a reader sees it: few narrow tables, numbers with units, formulas at the
// end of their rows. As they are, all numbers are in StepReport::table().

#include <cmath>     // fmax
#include <cstddef>   // size_t
#include <iostream>  // ostream
#include <string>    // string

#include "tinyscale/base/text.hpp"
#include "tinyscale/parallel/step_report.hpp"

namespace tinyscale {
namespace detail {

inline Cell with_its_unit(double value, const std::string& unit) {
  return unit == "s" ? format_seconds(value)
                     : Cell(format_count(value) + (unit == "steps" ? "" : " " + unit), value, unit);
}

inline Cell ratio_text(const ReportRow& row) {
  return row.predicted == row.counted ? "equal"
         : row.predicted == 0         ? "-"
                                      : number_cell('g', 3, row.ratio());
}

inline Table readable(const Comparison& rows) {
  Table out;
  out.title = rows.title;
  out.columns = {"what", rows.formula_head, rows.counted_head, "ratio"};
  for (const ReportRow& row : rows.rows) {
    out.add({row.name, with_its_unit(row.predicted, row.unit), with_its_unit(row.counted, row.unit),
             ratio_text(row)});
  }
  return out;
}

// A waterfall in numbers: what is simulated adds up to the step.
inline Table time_table(const StepReport& report) {
  Table out;
  out.title = report.times.title;
  out.columns = {"what", "simulated", "share", "formula", "of what"};
  for (const ReportRow& row : report.times.rows) {
    out.add({row.name, format_seconds(row.counted),
             format_percent(report.seconds > 0 ? row.counted / report.seconds : 0),
             row.predicted > 0 ? format_seconds(row.predicted) : "-", row.how});
  }
  out.add({"step", format_seconds(report.seconds), format_percent(1.0), "", ""});
  return out;
}

// The first 32 devices.
inline Table first_devices(const StepReport& report) {
  const std::size_t most = 32, all = report.devices.rows.size();
  Table out = report.devices;
  if (all > most) {
    out.rows.resize(most);
    out.title += cat({"; the first ", most, " of ", all});
  }
  return out;
}

}  // namespace detail

// Bytes and steps of the same calls in one row; further formulas of a row below it.
inline Table sent_table(const StepReport& report) {
  Table out;
  out.title = report.sent.title + ": " + report.layout;
  out.columns = {"collective",
                 "bytes by formula",
                 "counted",
                 "steps by formula",
                 "counted",
                 "ratio, bytes",
                 "of what, numbers that a device sends by a ring"};
  for (const ReportRow& row : report.sent.rows) {
    if (row.unit != "B") {
      continue;
    }
    Cell steps = "-", counted_steps = "-";
    const bool about = row.name.find("about: ") == 0;
    for (const ReportRow& other : report.sent.rows) {
      if (other.unit == "steps" && other.name == row.name.substr(about ? 7 : 0)) {
        steps = format_count(other.predicted);
        counted_steps = format_count(other.counted);
      }
    }
    std::string how = row.how;
    for (bool first = true; first || !how.empty(); first = false) {
      const std::size_t end = std::min(how.find("; "), how.find(" + "));
      const std::string line = how.substr(0, end);
      how = end == std::string::npos ? "" : how.substr(end + (how[end] == ';' ? 2 : 1));
      if (first) {
        out.add({row.name, format_count(row.predicted), format_count(row.counted), steps,
                 counted_steps, detail::ratio_text(row), line});
      } else {
        out.add({"", "", "", "", "", "", line});
      }
    }
  }
  return out;
}

inline Table StepReport::table() const {
  Table out;
  out.title = layout;
  out.columns = {"what", "unit", "predicted", "counted or simulated"};
  for (const Comparison* const part : {&sent, &work, &memory, &bubble, &times}) {
    const char* const name = part == &sent     ? "sent: "
                             : part == &work   ? "computed: "
                             : part == &memory ? "memory: "
                             : part == &bubble ? "bubble: "
                                               : "time: ";
    for (const ReportRow& row : part->rows) {
      out.add({detail::cat({name, row.name, part == &sent ? ", " + row.unit : ""}), row.unit,
               detail::number_cell(row.predicted), detail::number_cell(row.counted)});
    }
  }
  return out;
}

inline std::ostream& operator<<(std::ostream& out, const StepReport& report) {
  if (!report.sent.rows.empty()) {
    out << sent_table(report) << "letters: " << report.letters << "\n";
  }
  out << detail::readable(report.work) << detail::readable(report.memory);
  if (!report.bubble.rows.empty()) {
    out << detail::readable(report.bubble);
  }
  return out << detail::time_table(report) << report.use << detail::first_devices(report);
}

namespace detail {

// Of a training's last step, by device or in all.
inline void add_step_rows(const StepReport& step, const MeshRun& run, Table& to) {
  double sent = 0, flops = 0, most = 0;
  for (int rank = 0; rank < run.devices(); ++rank) {
    sent += run.bytes_sent(rank);
    flops += run.counters(rank).matmul_flops;
    most = std::fmax(most, run.memory(rank).peak_total());
  }
  to.add({"matmul FLOPs of all devices", format_si(flops, "FLOP"), "counted"});
  to.add({"sent by all devices", format_bytes(sent), "counted"});
  to.add({"peak memory of a device", format_bytes(most), "counted"});
  to.add({"time of a step", format_seconds(step.seconds), "simulated"});
  for (const TimeShare& share : step.time) {
    to.add({"  " + share.name, format_seconds(share.seconds), "simulated"});
  }
  to.add({"MFU of the machine (matmul weights + causal attention)",
          number_cell('g', 3, 100 * step.mfu, "%"), "simulated"});
  to.add({"HFU of the machine", number_cell('g', 3, 100 * step.hfu, "%"), "simulated"});
}

// How a training's report shows its last step: one of a single device compiles none of it.
struct StepPrinter {
  void (*add_rows)(const StepReport& step, const MeshRun& run, Table& to);
  std::ostream& (*print)(std::ostream& out, const StepReport& step);
};

inline const StepPrinter* step_printer() {
  static const StepPrinter printer = {add_step_rows, tinyscale::operator<< };
  return &printer;
}

}  // namespace detail
}  // namespace tinyscale
