#pragma once
// Kernels on two tracks: a host that launches them and the device that runs them, each for as long
// as its roofline says. Eager: a launch for each, the host ahead of the device; graph: one for all.
//   host    |launch 0|launch 1|launch 2|
//   device           |kernel 0|        |kernel 1| ..    eager, launch > kernel: the device waits
// Source: CUDA C++ Programming Guide, "Asynchronous Concurrent Execution" and "CUDA Graphs".

#include <algorithm>  // max
#include <cstdint>    // std::int64_t
#include <ostream>    // operator<<
#include <string>     // names
#include <vector>     // kernels that are read

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/format.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/hardware/chip.hpp"
#include "tinyscale/hardware/roofline.hpp"
#include "tinyscale/measure/counters.hpp"
#include "tinyscale/measure/quantity_formula.hpp"

namespace tinyscale {

enum class Dispatch { eager, graph };

inline const char* name_of(Dispatch how) {
  static const char* const names[] = {"eager", "graph"};
  return detail::name_in("Dispatch", names, how);
}

struct LaunchOptions {
  double seconds = 5e-6;       // of the host, to launch one kernel
  double graph_seconds = -1;   // of the host, to launch a graph; -1: as for one kernel
  double between_kernels = 0;  // s of the device from one kernel of a graph to the next
  std::int64_t ahead = 1024;   // kernels not yet done when the host begins another launch, at most
  std::vector<std::int64_t> synchronise;  // kernels, from 0, whose result the host reads before it
                                          // goes on (item(), a graph break); a graph ends there

  double graph_launch() const { return graph_seconds == -1 ? seconds : graph_seconds; }
};

// One kernel, in the order of the list; times in seconds from the first launch on.
struct LaunchRow {
  std::string name, shape;
  double seconds = 0;                          // of the kernel itself: its roofline
  double launch_start = 0, launch_finish = 0;  // host; within a graph those of the graph
  double start = 0, finish = 0;                // device
  double matmul_flops = 0, vector_flops = 0, bytes = 0;
  std::string bound;         // math, vector, memory, nothing
  std::string level;         // the memory that holds its operands
  bool launched = true;      // false: within a graph that an earlier kernel began
  bool synchronise = false;  // the host waits for it

  double flops() const { return matmul_flops + vector_flops; }
};

struct LaunchReport {
  std::string chip;
  DType format = DType::f32;
  Dispatch dispatch = Dispatch::eager;
  bool vector_known = true;  // false: no rate known, vector work does not limit
  LaunchOptions options;
  List<LaunchRow> rows;

  double seconds = 0;                                         // until the last kernel is done
  std::int64_t launches = 0;                                  // by the host
  double host_busy = 0;                                       // s in launches
  double math_bound = 0, vector_bound = 0, memory_bound = 0;  // s of kernels, by what bounds them
  double idle_launch = 0;   // s that the device waits for a launch, the first included
  double idle_read = 0;     // of them, those after the host had read a value
  double idle_between = 0;  // s between kernels of a graph
  double matmul_flops = 0, vector_flops = 0, bytes = 0;

  double device_busy() const { return math_bound + vector_bound + memory_bound; }
  double device_idle() const { return idle_launch + idle_between; }
  double flops() const { return matmul_flops + vector_flops; }
  double intensity() const { return bytes > 0 ? flops() / bytes : 0; }  // FLOPs per byte

  Table totals() const;   // where the time went
  Table table() const;    // kernels of one name and shape are one row
  Table kernels() const;  // each kernel, in plain s and bytes
  std::string csv() const { return kernels().csv(); }
  std::string json() const;  // {"totals": {name: number}, "kernels": as kernels()}
};

namespace detail {

inline void check_launch_time(const char* option, double seconds, const char* also = "") {
  if (!(seconds >= 0) || !is_finite(seconds)) {
    fail({"launches: ", option, " is ", seconds, "; a finite number of seconds from 0", also,
          " is right"});
  }
}

inline void check_launch_options(const LaunchOptions& options, std::size_t kernels) {
  check_launch_time("seconds", options.seconds);
  const double graph = options.graph_seconds;  // NaN == -1 under -ffast-math: its bits first
  if (!is_finite(graph) || graph != -1) {
    check_launch_time("graph_seconds", graph, ", or -1 for as long as one kernel's,");
  }
  check_launch_time("between_kernels", options.between_kernels);
  if (options.ahead < 0) {
    fail({"launches: ahead is ", options.ahead, "; a number of kernels from 0 is right"});
  }
  for (const std::int64_t k : options.synchronise) {
    if (k < 0 || k >= static_cast<std::int64_t>(kernels)) {
      fail({"launches: synchronise names kernel ", k, " of ", kernels,
            kernels > 0 ? cat({"; 0 to ", kernels - 1, " are right"}) : "; none is right"});
    }
  }
}

// Host and device, one kernel after the other; rows have their seconds.
inline void replay_launches(LaunchReport& report) {
  const LaunchOptions& options = report.options;
  check_launch_options(options, report.rows.size());
  for (const std::int64_t k : options.synchronise) {
    report.rows[static_cast<std::size_t>(k)].synchronise = true;
  }
  const bool eager = report.dispatch == Dispatch::eager;
  const double launch = eager ? options.seconds : options.graph_launch();
  double host = 0, device = 0;  // when each is free
  bool begins = true;           // a graph, which is after the host has read too
  for (std::size_t i = 0; i < report.rows.size(); ++i) {
    LaunchRow& row = report.rows[i];
    row.launched = eager || begins;
    if (row.launched) {
      const std::int64_t done = static_cast<std::int64_t>(i) - 1 - options.ahead;
      const bool full = eager && done >= 0;  // that kernel must have ended
      row.launch_start =
          full ? std::max(host, report.rows[static_cast<std::size_t>(done)].finish) : host;
      row.launch_finish = row.launch_start + launch;
      host = row.launch_finish;
      ++report.launches;
    } else {
      row.launch_start = report.rows[i - 1].launch_start;
      row.launch_finish = report.rows[i - 1].launch_finish;
    }
    const double ready = device + (row.launched ? 0 : options.between_kernels);
    row.start = std::max(ready, row.launch_finish);
    row.finish = row.start + row.seconds;
    (row.launched ? report.idle_launch : report.idle_between) += row.start - device;
    report.idle_read += begins && i > 0 ? row.start - device : 0;
    device = row.finish;
    begins = row.synchronise;
    host = begins ? device : host;
  }
  report.seconds = device;
  report.host_busy = launch * static_cast<double>(report.launches);
}

inline LaunchRow launch_row(const OpRecord& op, std::size_t i, const Chip& chip, DType format) {
  const OpCost cost = op_cost(op, format);
  for (const double work : {cost.matmul_flops, cost.vector_flops, cost.bytes}) {
    if (!(work >= 0) || !is_finite(work)) {
      fail({"launches: kernel ", i, " (", op.name, ") has ", cost.matmul_flops, " matmul FLOPs, ",
            cost.vector_flops, " vector FLOPs and ", cost.bytes,
            " bytes; finite numbers from 0 are right"});
    }
  }
  const RooflineRow priced = priced_row(cost, chip);
  LaunchRow row;
  row.name = op.name;
  row.shape = op.shape;
  row.seconds = priced.seconds;
  row.matmul_flops = priced.matmul_flops;
  row.vector_flops = priced.vector_flops;
  row.bytes = priced.bytes;
  row.bound = priced.bound;
  row.level = priced.level;
  return row;
}

}  // namespace detail

// The kernels of a profile's records() launched one after the other on a chip, priced as if their
// f32 operands were of `format`, as Profile::roofline does: all on one device, in their order.
// With `ahead` 0 the host waits for each.
inline LaunchReport launches(const List<OpRecord>& kernels, const Chip& chip, Dispatch how,
                             DType format = DType::f32,
                             const LaunchOptions& options = LaunchOptions()) {
  name_of(how);  // refuses what is none
  LaunchReport report;
  report.chip = chip.name.empty() ? "unnamed chip" : chip.name;
  report.format = format;
  report.dispatch = how;
  report.vector_known = chip.vector_flops > 0;
  report.options = options;
  for (const OpRecord& op : kernels) {
    const LaunchRow row = detail::launch_row(op, report.rows.size(), chip, format);
    (row.bound == "math"     ? report.math_bound
     : row.bound == "vector" ? report.vector_bound
                             : report.memory_bound) += row.seconds;
    report.matmul_flops += row.matmul_flops;
    report.vector_flops += row.vector_flops;
    report.bytes += row.bytes;
    report.rows.push_back(row);
  }
  detail::replay_launches(report);
  return report;
}

namespace detail {

struct LaunchTotal {
  const char *name = "", *key = "", *unit = "";
  double value = 0;
  bool part = false;  // of the time
};

inline List<LaunchTotal> launch_totals(const LaunchReport& r) {
  return {{"time", "seconds", "s", r.seconds, true},
          {"  kernels bound by math", "math_bound", "s", r.math_bound, true},
          {"  kernels bound by vector", "vector_bound", "s", r.vector_bound, true},
          {"  kernels bound by memory", "memory_bound", "s", r.memory_bound, true},
          {"  device idle: waits for a launch", "idle_launch", "s", r.idle_launch, true},
          {"    of it after the host read a value", "idle_read", "s", r.idle_read, true},
          {"  device idle: between kernels of a graph", "idle_between", "s", r.idle_between, true},
          {"device busy", "device_busy", "s", r.device_busy(), true},
          {"device idle", "device_idle", "s", r.device_idle(), true},
          {"host busy launching", "host_busy", "s", r.host_busy, true},
          {"launches", "launches", "", static_cast<double>(r.launches), false},
          {"kernels", "kernels", "", static_cast<double>(r.rows.size()), false},
          {"FLOPs", "flops", "FLOP", r.flops(), false},
          {"bytes", "bytes", "B", r.bytes, false},
          {"FLOPs/byte", "intensity", "FLOP/B", r.intensity(), false}};
}

// Kernels of one name, shape and bound.
struct LaunchKind {
  RooflineRow sum;
  double idle = 0;  // s of the device before them
};

// "5 ms", "1.2 GFLOP", "1,000"
inline Cell launch_cell(double value, const std::string& unit) {
  return unit == "s"        ? format_seconds(value)
         : unit == "B"      ? format_bytes(value)
         : unit == "FLOP/B" ? Cell(printed('g', 3, value), value, unit)
         : unit == "FLOP"   ? format_si(value, "FLOP")
                            : format_count(value);
}

inline std::string launch_title(const LaunchReport& r) {
  const double kernels = static_cast<double>(r.rows.size());
  const double launch =
      r.dispatch == Dispatch::eager ? r.options.seconds : r.options.graph_launch();
  return cat({r.chip, ", priced as ", name_of(r.format), ", ", name_of(r.dispatch), ": ",
              format_count(kernels), kernels == 1 ? " kernel, " : " kernels, ",
              format_count(static_cast<double>(r.launches)),
              r.launches == 1 ? " launch of " : " launches of ", format_seconds(launch),
              r.vector_known ? "" : " (vector rate not known: it does not limit)"});
}

}  // namespace detail

inline Table LaunchReport::totals() const {
  Table out;
  out.title = "Time on " + detail::launch_title(*this);
  out.columns = {"quantity", "simulated", "of the time"};
  for (const detail::LaunchTotal& total : detail::launch_totals(*this)) {
    out.add({total.name, detail::launch_cell(total.value, total.unit),
             total.part && seconds > 0 ? format_percent(total.value / seconds) : "-"});
  }
  return out;
}

inline Table LaunchReport::table() const {
  List<detail::LaunchKind> kinds;
  double before = 0;
  for (const LaunchRow& row : rows) {
    std::size_t same = 0;
    while (same < kinds.size() &&
           (kinds[same].sum.name != row.name || kinds[same].sum.shape != row.shape ||
            kinds[same].sum.bound != row.bound)) {
      ++same;
    }
    if (same == kinds.size()) {
      kinds.push_back({});
      kinds[same].sum.name = row.name;
      kinds[same].sum.shape = row.shape;
      kinds[same].sum.bound = row.bound;
    }
    RooflineRow& sum = kinds[same].sum;
    ++sum.count;
    sum.matmul_flops += row.flops();
    sum.bytes += row.bytes;
    sum.seconds += row.seconds;
    kinds[same].idle += row.start - before;
    before = row.finish;
  }
  Table out;
  out.title = "Kernels on " + detail::launch_title(*this);
  out.columns = {"kernel",   "shape",    "count",
                 "FLOPs",    "bytes",    "FLOPs/byte",
                 "bound by", "T device", "device idle before"};
  for (const detail::LaunchKind& kind : kinds) {
    const RooflineRow& sum = kind.sum;
    out.add({sum.name, sum.shape, detail::cat({sum.count}), format_si(sum.matmul_flops, ""),
             format_bytes(sum.bytes),
             format_fixed(sum.bytes > 0 ? sum.matmul_flops / sum.bytes : 0, 2), sum.bound,
             format_seconds(sum.seconds), format_seconds(kind.idle)});
  }
  out.add({"total", "", detail::cat({rows.size()}), format_si(flops(), ""), format_bytes(bytes),
           format_fixed(intensity(), 2), "", format_seconds(device_busy()),
           format_seconds(device_idle())});
  return out;
}

inline Table LaunchReport::kernels() const {
  Table out;
  out.title = "Each kernel on " + detail::launch_title(*this);
  out.columns = {"kernel",       "name",      "shape",    "launch start, s", "launch finish, s",
                 "start, s",     "finish, s", "bound by", "level",           "matmul FLOPs",
                 "vector FLOPs", "bytes"};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const LaunchRow& row = rows[i];
    const auto number = [](double value) { return detail::json_number(value); };
    out.add({detail::cat({i}), row.name, row.shape, number(row.launch_start),
             number(row.launch_finish), number(row.start), number(row.finish), row.bound, row.level,
             number(row.matmul_flops), number(row.vector_flops), number(row.bytes)});
  }
  return out;
}

inline std::string LaunchReport::json() const {
  std::string out = "{\"totals\": {\"dispatch\": \"" + std::string(name_of(dispatch)) + "\"";
  for (const detail::LaunchTotal& total : detail::launch_totals(*this)) {
    out += detail::cat({", \"", total.key, "\": ", detail::json_number(total.value)});
  }
  return out + "},\n\"kernels\": " + kernels().json() + "}\n";
}

inline std::ostream& operator<<(std::ostream& out, const LaunchReport& report) {
  return out << report.totals() << "\n" << report.table();
}

}  // namespace tinyscale
