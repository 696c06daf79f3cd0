#pragma once
// A learner's guess held against what a run counted, with a hint when it is off by a known slip.
// Bytes are those that the busiest device sends, as float32; steps are summed over the program.

#include <cmath>  // abs
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"

namespace tinyscale {

// What is negative is not guessed.
struct Guess {
  double bytes_per_device = -1;
  std::int64_t steps = -1;
  double seconds = -1;  // simulated, of the messages that set the time; right within 1 %
};

struct CheckRow {
  std::string name, unit;
  double guessed = 0, counted = 0;
  bool right = false;
  std::string hint;
};

struct CheckReport {
  List<CheckRow> rows;
  bool right = false;  // something was guessed, and all of it right

  // "bytes: right. steps: you 6, counted 3: why"
  std::string text() const {
    std::string out;
    for (const CheckRow& row : rows) {
      out += out.empty() ? "" : (out.back() == '.' ? " " : ". ");
      out += row.name +
             (row.right ? std::string(": right.")
                        : ": you " + number(row, row.guessed) + ", counted " +
                              number(row, row.counted) + (row.hint.empty() ? "" : ": " + row.hint));
    }
    return out.empty() ? "nothing guessed" : out;
  }
  Table table() const {
    Table out;
    out.title = "guess";
    out.columns = {"quantity", "unit", "guessed", "counted", "right", "hint"};
    for (const CheckRow& row : rows) {
      out.add({row.name, row.unit, detail::number_cell(row.guessed),
               detail::number_cell(row.counted), row.right ? "yes" : "no", row.hint});
    }
    return out;
  }
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }

 private:
  static std::string number(const CheckRow& row, double value) {
    return row.unit == "s" ? format_seconds(value) : detail::cat({value});
  }
};

inline std::ostream& operator<<(std::ostream& out, const CheckReport& report) {
  return out << report.text() << "\n";
}

namespace detail {

struct Counted {
  double bytes_most = 0, bytes_least = 0, bytes_total = 0;  // sent by devices
  std::int64_t steps = 0;
  std::int64_t one_way_steps = 0;  // if no ring were used both ways
  double seconds = 0;
  bool timed = true;               // else the messages' part of the seconds is not known
  int devices = 1;                 // of the mesh
  int group = 1;                   // of the largest collective
  std::string algorithm;           // of that
  std::vector<std::string> names;  // of the collectives
};

inline bool same(double a, double b) { return std::abs(a - b) <= 1e-9 * std::abs(b); }

inline bool has_name(const Counted& counted, const std::string& name) {
  for (const std::string& known : counted.names) {
    if (known == name) {
      return true;
    }
  }
  return false;
}

inline std::string steps_hint(std::int64_t you, const Counted& counted) {
  const double guess = static_cast<double>(you);
  const double steps = static_cast<double>(counted.steps);
  if (steps <= 0) {
    return "no message was sent";
  }
  const bool whole = has_name(counted, "all_reduce");
  if (counted.names.size() == 1 && !same(guess, steps) && counted.algorithm != "ring" &&
      same(guess, (whole ? 2.0 : 1.0) * (counted.group - 1)) && you != counted.one_way_steps) {
    return cat({"it ran by ", counted.algorithm,
                ", the cheapest here; you counted a ring: mesh.algorithm = Algorithm::ring"});
  }
  if (you == counted.one_way_steps) {
    return "a bidirectional ring halves them";
  }
  if (has_name(counted, "all_reduce") && same(guess * 2, steps)) {
    return "all_reduce is reduce_scatter and then all_gather, each of its own steps";
  }
  if (has_name(counted, "all_reduce") && same(guess, 2.0 * counted.group)) {
    return cat({"a device has one chunk already: 2 (N - 1) with N = ", counted.group});
  }
  if (same(guess, counted.group) && same(guess, steps + 1)) {
    return cat({"a device has its own chunk already: N - 1 with N = ", counted.group});
  }
  if (same(guess, steps * 2)) {
    return has_name(counted, "all_reduce") ? "half as many; is N what you think?"
                                           : "only all_reduce takes 2 (N - 1)";
  }
  if (counted.names.size() == 1 && counted.names[0] == "all_reduce" &&
      same(steps, 2.0 * (counted.group - 1))) {
    return cat({"all_reduce takes 2 (N - 1) steps, here N = ", counted.group});
  }
  if (same(guess, steps / 2)) {
    return "that is with both ways of a ring used at once";
  }
  return cat({"the largest collective is over N = ", counted.group, " devices"});
}

inline std::string bytes_hint(double you, const Counted& counted) {
  const double most = counted.bytes_most;
  if (most <= 0) {
    return "no message was sent";
  }
  if (same(you, counted.bytes_total)) {
    return "that is all devices together";
  }
  if (same(you * 4, most)) {
    return "that is the number of elements; a float32 is 4 bytes";
  }
  if (counted.bytes_least < most) {
    return cat({"of the busiest device; the least busy sends ", counted.bytes_least,
                ", the mean is ", counted.bytes_total / counted.devices});
  }
  if (same(you * (counted.group - 1), most * counted.group)) {
    return cat({"a device has its own chunk already: (N - 1) / N of it with N = ", counted.group});
  }
  if (same(you * 2, most) || same(you, most * 2)) {
    return "all_reduce moves 2 (N - 1) / N of the vector, all_gather and reduce_scatter half of it";
  }
  return "";
}

inline CheckReport check_guess(const Guess& guess, const Counted& counted) {
  if (is_nan(guess.bytes_per_device) || is_nan(guess.seconds)) {
    fail({"check: the guess is ", guess.bytes_per_device, " bytes and ", guess.seconds,
          " seconds; numbers are right, negative for what is not guessed"});
  }
  if (guess.seconds >= 0 && !counted.timed) {
    fail({"check: the guess is ", guess.seconds, " seconds of messages, and the run has too many ",
          "to be kept one by one beside its compute; guess bytes and steps alone"});
  }
  CheckReport report;
  const auto add = [&report](const CheckRow& row) {
    report.rows.push_back(row);
    report.rows.back().hint = row.right ? "" : row.hint;
    report.right = row.right && (report.right || report.rows.size() == 1);
  };
  if (guess.bytes_per_device >= 0) {
    const double you = guess.bytes_per_device;
    add({"bytes", "B", you, counted.bytes_most, same(you, counted.bytes_most),
         bytes_hint(you, counted)});
  }
  if (guess.steps >= 0) {
    add({"steps", "", static_cast<double>(guess.steps), static_cast<double>(counted.steps),
         guess.steps == counted.steps, steps_hint(guess.steps, counted)});
  }
  if (guess.seconds >= 0) {
    const bool right = std::abs(guess.seconds - counted.seconds) <= 0.01 * counted.seconds;
    add({"seconds", "s", guess.seconds, counted.seconds, right, "simulated, on this machine"});
  }
  return report;
}

}  // namespace detail
}  // namespace tinyscale
