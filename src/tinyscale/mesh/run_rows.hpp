#pragma once
// The rows of a run's tables: a line of the program that communicates, a link, the critical path;
// with the counts of bytes, steps and hops behind them.

#include <algorithm>  // max
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/mesh/closed_forms.hpp"
#include "tinyscale/mesh/mesh_axis.hpp"
#include "tinyscale/mesh/route.hpp"
#include "tinyscale/mesh/run_log.hpp"
#include "tinyscale/mesh/step_order.hpp"

namespace tinyscale {

// One line of the program; bytes are those of the busiest device.
struct CollectiveRow {
  std::string name, axes, arguments;
  std::string algorithm, reason;  // why this one; "" when the program named it
  SourceLine where;
  int groups = 0;        // that ran it side by side
  int devices = 1;       // of a group
  double bytes_out = 0;  // sent by a device
  double bytes_in = 0;   // received by a device
  std::int64_t steps = 0;
  std::int64_t hops = 0;  // latencies paid one after another: the most of each step
  double seconds = 0;     // simulated: first start to last arrival, of the slowest group
  double formula = -1;    // seconds, if its links are free; -1: it has no formula
  double algbw = 0;       // bytes/s: the vector over the time
  double busbw = 0;       // bytes/s: times the share of it that a device must send (NCCL)
};

// One directed link of the machine, or an uplink that several chips share.
struct LinkRow {
  std::int64_t from = 0, to = 0;  // chips; -1: the switch of that dimension
  int dim = 0;                    // of the machine
  std::string name;               // "3 -> 4", "3 -> switch", "0..7 -> switch"
  bool uplink = false;
  double bytes = 0;
  double busy = 0;  // share of the run's simulated time that its bytes take at full speed
};

// The chain of messages and compute that sets the simulated time, each waiting for the one before.
struct CriticalPath {
  std::int64_t messages = 0;
  double compute = 0, latency = 0, transfer = 0;  // seconds; together the run's
  std::vector<int> chain;                         // of Timeline::messages, in order
  std::string heaviest;  // of its links: "axis y, link 3 -> 4, 61 % of the step"
};

namespace detail {

inline Table collective_table(const List<CollectiveRow>& rows, const std::string& machine,
                              std::size_t most) {
  Table out;
  out.title = "collectives on " + machine + " (bytes of the busiest device)";
  out.title += rows.size() > most ? cat({": ", rows.size(), ", the first ", most}) : std::string();
  out.columns = {"collective", "axis",      "arguments", "algorithm", "devices",
                 "groups",     "bytes out", "bytes in",  "steps",     "hops",
                 "simulated",  "formula",   "algbw",     "busbw",     "line"};
  for (std::size_t i = 0; i < rows.size() && i < most; ++i) {
    const CollectiveRow& row = rows[i];
    out.add({row.name, row.axes, row.arguments, row.algorithm, std::to_string(row.devices),
             std::to_string(row.groups), format_count(row.bytes_out), format_count(row.bytes_in),
             std::to_string(row.steps), std::to_string(row.hops), format_seconds(row.seconds),
             row.formula < 0 ? "-" : format_seconds(row.formula),
             row.algbw > 0 ? format_si(row.algbw, "B/s") : "-",
             row.busbw > 0 ? format_si(row.busbw, "B/s") : "-", line_text(row.where)});
  }
  return out;
}

inline Table link_table(const List<LinkRow>& rows, std::size_t most) {
  Table out;
  out.columns = {"link", "dimension", "bytes", "busy"};
  for (std::size_t i = 0; i < rows.size() && i < most; ++i) {
    out.add({rows[i].name, std::to_string(rows[i].dim), format_count(rows[i].bytes),
             format_percent(rows[i].busy)});
  }
  return out;
}

// Adds what each rank sends and receives in a call.
inline void add_bytes(const LoggedCall& call, std::vector<double>& out, std::vector<double>& in) {
  for (const ScheduledMessage& message : call.shape->schedule->messages) {
    const double bytes = message_bytes(*call.shape, message);
    const std::vector<int>& ranks = *call.members;
    const int from = ranks[static_cast<std::size_t>(message.from)];
    const int to = ranks[static_cast<std::size_t>(message.to)];
    out[static_cast<std::size_t>(from)] += bytes;
    in[static_cast<std::size_t>(to)] += bytes;
  }
}

// Steps and hops of the longest stream of a call.
inline void count_steps(const LoggedCall& call, const MachineLinks& links, CollectiveRow& row) {
  const PreparedSchedule& schedule = *call.shape->schedule;
  for (const PreparedSchedule::Stream& stream : schedule.streams) {
    std::int64_t hops = 0;
    for (std::size_t s = stream.first; s < stream.last; ++s) {
      int most = 0;
      for (std::size_t m = schedule.steps[s].first; m < schedule.steps[s].last; ++m) {
        const std::vector<int>& ranks = *call.members;
        double latency = 0;
        most = std::max(
            most, links.hops(ranks[static_cast<std::size_t>(schedule.messages[m].from)],
                             ranks[static_cast<std::size_t>(schedule.messages[m].to)], latency));
      }
      hops += most;
    }
    row.steps = std::max(row.steps, static_cast<std::int64_t>(stream.last - stream.first));
    row.hops = std::max(row.hops, hops);
  }
}

// Whether an algorithm has the same schedule for both.
inline bool same_rows(const CollectiveSpec& a, const CollectiveSpec& b) {
  const List<Row> rows = rows_of(a), others = rows_of(b);
  bool same = rows.size() == others.size();
  for (std::size_t r = 0; r < rows.size() && same; ++r) {
    same = rows[r].size == others[r].size && rows[r].way == others[r].way;
  }
  return same;
}

// Which of a call's axes lie along a dimension of the machine: "axis y".
inline std::string along(const Machine& machine, const List<AxisPlacement>& placed,
                         const CallShape& shape, int dim) {
  std::string names;
  for (const int number : shape.axis_numbers) {
    const AxisPlacement& axis = placed[static_cast<std::size_t>(number)];
    bool lies = false;
    for (const AxisPart& part : axis.parts) {
      lies = lies || (part.size > 1 &&
                      (part.dim < 0 || (part.dim <= dim && dim <= port_dim(machine, part.dim))));
    }
    names += lies ? (names.empty() ? "axis " : ",") + axis.name : "";
  }
  return names.empty() ? cat({"dimension ", dim}) : names;
}

}  // namespace detail

}  // namespace tinyscale
