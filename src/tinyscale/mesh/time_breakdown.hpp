#pragma once
// Where the simulated time of each device went: compute by what it was for, waits by what was
// waited for, idle until the slowest is done. The rows of a device add up to the run's seconds.
// Names are the program's: a plain table from the tags of Device::task and the axes of calls.

#include <cstddef>
#include <string>
#include <vector>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/mesh/mesh_run.hpp"

namespace tinyscale {

// What the tasks of a program are called; tags are places in the lists.
struct TaskNames {
  struct Wait {
    std::string axes, name;
  };
  std::vector<std::string> names;    // "F0": short, for charts; none: the class
  std::vector<std::string> classes;  // "forward"; none, or outside of tasks: "compute"
  List<Wait> waits;                  // {"pipeline", "bubble"}; else "exposed " and the axes
  std::string note;                  // how to read the names, for charts

  std::string class_of(int task) const {
    const std::string name = at(classes, task);
    return name.empty() ? "compute" : name;
  }
  std::string name_of(int task) const {
    const std::string name = at(names, task);
    return name.empty() ? class_of(task) : name;
  }
  std::string wait_for(const std::string& axes) const {
    for (const Wait& wait : waits) {
      if (wait.axes == axes) {
        return wait.name;
      }
    }
    return "exposed " + (axes.empty() ? "communication" : axes);
  }

 private:
  static std::string at(const std::vector<std::string>& from, int task) {
    return task >= 0 && static_cast<std::size_t>(task) < from.size()
               ? from[static_cast<std::size_t>(task)]
               : "";
  }
};

struct TimeShare {
  enum class Kind { compute, wait, idle };
  std::string name;
  double seconds = 0;
  Kind kind = Kind::compute;
};

inline double seconds_of(const List<TimeShare>& shares, const std::string& name) {
  double seconds = 0;
  for (const TimeShare& share : shares) {
    seconds += share.name == name ? share.seconds : 0;
  }
  return seconds;
}

namespace detail {

// The same rows for every device: compute, waits, those that the caller named last, idle.
struct TimeTable {
  List<TimeShare> rows;               // seconds: mean of the devices
  List<std::vector<double>> seconds;  // by device, by row

  std::size_t row(const std::string& name, TimeShare::Kind kind) {
    std::size_t i = 0;
    while (i < rows.size() && (rows[i].name != name || rows[i].kind != kind)) {
      ++i;
    }
    if (i == rows.size()) {
      rows.push_back({name, 0, kind});
    }
    return i;
  }
};

// The rows in order, and which of them each call's waits are in.
inline TimeTable empty_table(const MeshRun& run, const TaskNames& names,
                             std::vector<std::size_t>& row_of_call) {
  TimeTable table;
  for (const std::string& name : names.classes) {
    if (!name.empty()) {
      table.row(name, TimeShare::Kind::compute);
    }
  }
  table.row("compute", TimeShare::Kind::compute);
  const std::size_t calls = run.log().calls.size();
  row_of_call.resize(calls);
  for (const bool named : {false, true}) {
    for (std::size_t c = 0; c < calls; ++c) {
      const std::string axes = run.axes_of_call(c);
      bool is_named = false;
      for (const TaskNames::Wait& wait : names.waits) {
        is_named = is_named || wait.axes == axes;
      }
      if (is_named == named) {
        row_of_call[c] = table.row(names.wait_for(axes), TimeShare::Kind::wait);
      }
    }
  }
  table.row("idle at the end", TimeShare::Kind::idle);
  return table;
}

inline TimeTable time_table(const MeshRun& run, const TaskNames& names) {
  std::vector<std::size_t> row_of_call;
  TimeTable table = empty_table(run, names, row_of_call);
  const std::size_t devices = static_cast<std::size_t>(run.devices());
  table.seconds.resize(devices);
  for (std::vector<double>& of_device : table.seconds) {
    of_device.assign(table.rows.size(), 0);
  }
  // A device does one thing until it does the next, so that nothing is left out by rounding.
  const std::size_t none = table.rows.size();
  std::vector<double> since(devices, 0);
  std::vector<std::size_t> row(devices, none);
  for (const TimedSpan& span : run.timeline.spans) {
    const std::size_t d = static_cast<std::size_t>(span.device);
    if (row[d] != none) {
      table.seconds[d][row[d]] += span.start - since[d];
      since[d] = span.start;
    }
    row[d] = span.call < 0 ? table.row(names.class_of(span.task), TimeShare::Kind::compute)
                           : row_of_call[static_cast<std::size_t>(span.call)];
  }
  for (std::size_t d = 0; d < devices; ++d) {
    const double end = run.timeline.devices[d].end;
    if (row[d] != none) {
      table.seconds[d][row[d]] += end - since[d];
    } else if (end > 0) {
      fail({"time_breakdown: the run has no record of what its devices did when, as it has more ",
            "than ", most_timed_messages, " messages; a shorter one, of one step, is right"});
    }
    table.seconds[d].back() = run.seconds - end;
    for (std::size_t r = 0; r < table.rows.size(); ++r) {
      table.rows[r].seconds += table.seconds[d][r] / static_cast<double>(devices);
    }
  }
  return table;
}

inline List<TimeShare> without_zeros(const List<TimeShare>& rows) {
  List<TimeShare> out;
  for (const TimeShare& row : rows) {
    if (row.seconds > 0) {
      out.push_back(row);
    }
  }
  return out;
}

}  // namespace detail

// The shares of the time of all devices together, as seconds of their mean.
inline List<TimeShare> time_breakdown(const MeshRun& run, const TaskNames& names = TaskNames()) {
  return detail::without_zeros(detail::time_table(run, names).rows);
}

// Those of one device.
inline List<TimeShare> time_breakdown(const MeshRun& run, int rank, const TaskNames& names) {
  if (rank < 0 || rank >= run.devices()) {
    detail::fail({"time_breakdown: rank ", rank, " of ", run.devices(), " devices; ranks are 0 to ",
                  run.devices() - 1});
  }
  detail::TimeTable table = detail::time_table(run, names);
  for (std::size_t r = 0; r < table.rows.size(); ++r) {
    table.rows[r].seconds = table.seconds[static_cast<std::size_t>(rank)][r];
  }
  return detail::without_zeros(table.rows);
}

// A row for each device, a column for each share.
inline Table time_table(const MeshRun& run, const TaskNames& names = TaskNames()) {
  const detail::TimeTable table = detail::time_table(run, names);
  Table out;
  out.title = detail::cat({"simulated time of each device, of ", format_seconds(run.seconds)});
  out.columns = {"device"};
  for (const TimeShare& row : table.rows) {
    if (row.seconds > 0) {
      out.columns.push_back(row.name);
    }
  }
  for (std::size_t d = 0; d < table.seconds.size(); ++d) {
    std::vector<Cell> cells(1, std::to_string(d));
    for (std::size_t r = 0; r < table.rows.size(); ++r) {
      if (table.rows[r].seconds > 0) {
        cells.push_back(format_seconds(table.seconds[d][r]));
      }
    }
    out.add(cells);
  }
  return out;
}

// The same time with the compute of some classes told apart into what it would be at full speed,
// `ideal` seconds, and the rest: the first two rows.
inline List<TimeShare> against_ideal(const List<TimeShare>& shares,
                                     const std::vector<std::string>& classes, double ideal) {
  List<TimeShare> others;
  double seconds = 0;
  for (const TimeShare& share : shares) {
    bool wanted = false;
    for (const std::string& name : classes) {
      wanted = wanted || (share.kind == TimeShare::Kind::compute && share.name == name);
    }
    seconds += wanted ? share.seconds : 0;
    if (!wanted) {
      others.push_back(share);
    }
  }
  if (!(ideal >= 0) || ideal > seconds * (1 + 1e-9)) {
    detail::fail({"against_ideal: ", ideal, " s at full speed of ", seconds,
                  " s of compute; 0 or more and no more than all of it is right"});
  }
  List<TimeShare> out = {{"ideal compute", ideal, TimeShare::Kind::compute}};
  if (seconds > ideal * (1 + 1e-9)) {
    out.push_back({"below peak speed", seconds - ideal, TimeShare::Kind::compute});
  }
  for (const TimeShare& share : others) {
    out.push_back(share);
  }
  return out;
}

}  // namespace tinyscale
