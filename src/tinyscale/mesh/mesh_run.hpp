#pragma once
// What a mesh program cost: bytes and steps counted from its messages, simulated time beside the
// formula, the links and the critical path. The same log can be timed again on another machine.

#include <algorithm>  // max, min
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <string>
#include <utility>  // move
#include <vector>

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/order.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/measure/counters.hpp"
#include "tinyscale/measure/memory.hpp"
#include "tinyscale/mesh/device.hpp"
#include "tinyscale/mesh/guess.hpp"
#include "tinyscale/mesh/mesh_axis.hpp"
#include "tinyscale/mesh/message_log.hpp"
#include "tinyscale/mesh/replay.hpp"
#include "tinyscale/tensor/tensor.hpp"

namespace tinyscale {

// One line of the program; bytes are those of the busiest device.
struct CollectiveRow {
  std::string name, axes, arguments;
  int groups = 0;        // that ran it side by side
  int devices = 1;       // of a group
  double bytes_out = 0;  // sent by a device
  double bytes_in = 0;   // received by a device
  std::int64_t steps = 0;
  std::int64_t hops = 0;  // latencies paid one after another: the most of each step
  double seconds = 0;     // simulated: first start to last arrival, of the slowest group
  double formula = -1;    // seconds, if its links are free; -1: it has no formula
};

// One directed link of the machine.
struct LinkRow {
  std::int64_t from = 0, to = 0;  // chips; -1: the switch of that dimension
  int dim = 0;                    // of the machine
  double bytes = 0;
  double busy = 0;  // share of the run's simulated time that its bytes take at full speed
};

// The chain of messages that sets the simulated time, each waiting for the one before.
struct CriticalPath {
  std::int64_t messages = 0;
  double latency = 0, transfer = 0;  // seconds; together the run's
  std::vector<int> devices;          // through which it goes
};

namespace detail {

// What a run leaves behind; shared by all timings of it.
struct MeshRecord {
  MessageLog log;
  List<MeshAxis> axes;
  List<List<KeptTensor>> kept;  // by rank
  List<Counters> counters;
  List<Shared<MemoryMeter>> memory;
};

inline Table collective_table(const List<CollectiveRow>& rows) {
  Table out;
  out.columns = {"collective", "axis",  "arguments", "devices",   "groups", "bytes out",
                 "bytes in",   "steps", "hops",      "simulated", "formula"};
  for (const CollectiveRow& row : rows) {
    out.add({row.name, row.axes, row.arguments, std::to_string(row.devices),
             std::to_string(row.groups), format_count(row.bytes_out), format_count(row.bytes_in),
             std::to_string(row.steps), std::to_string(row.hops), format_seconds(row.seconds),
             row.formula < 0 ? "-" : format_seconds(row.formula)});
  }
  return out;
}

inline Table link_table(const List<LinkRow>& rows, std::size_t most) {
  Table out;
  out.columns = {"link", "dimension", "bytes", "busy"};
  for (std::size_t i = 0; i < rows.size() && i < most; ++i) {
    const std::string from = rows[i].from < 0 ? "switch" : std::to_string(rows[i].from);
    const std::string to = rows[i].to < 0 ? "switch" : std::to_string(rows[i].to);
    out.add({from + " -> " + to, std::to_string(rows[i].dim), format_count(rows[i].bytes),
             format_percent(rows[i].busy)});
  }
  return out;
}

}  // namespace detail

class MeshRun {
 public:
  MeshRun(Shared<detail::MeshRecord> record, Machine machine)
      : timeline(time(record->log, machine)),
        record_(std::move(record)),
        machine_(std::move(machine)) {
    seconds = timeline.seconds;
  }

  double seconds = 0;  // simulated, of all messages
  Timeline timeline;   // of each message

  const MessageLog& log() const { return record_->log; }
  const Machine& machine() const { return machine_; }
  int devices() const { return record_->log.devices; }

  // The same messages on another machine with as many chips.
  MeshRun on(const Machine& other) const { return MeshRun(record_, other); }

  // What Device::keep kept.
  Tensor kept(int rank, const std::string& name) const {
    std::string names;
    for (const detail::KeptTensor& known : record_->kept[checked("kept", rank)]) {
      if (known.name == name) {
        return known.value;
      }
      names += (names.empty() ? "" : ", ") + known.name;
    }
    detail::fail({"kept: device ", rank, " kept nothing named ", name, "; it kept ",
                  names.empty() ? "nothing" : names});
  }

  // The ops of one device.
  Counters counters(int rank) const { return record_->counters[checked("counters", rank)]; }
  const MemoryMeter& memory(int rank) const { return *record_->memory[checked("memory", rank)]; }

  double bytes_sent(int rank) const {
    checked("bytes_sent", rank);
    double bytes = 0;
    for (const Message& message : log().messages) {
      bytes += message.from == rank ? message.bytes : 0;
    }
    return bytes;
  }

  // The sum over the program's lines: sends that devices make at the same time are one line.
  std::int64_t steps() const {
    std::int64_t count = 0;
    for (const CollectiveRow& row : collectives()) {
      count += row.steps;
    }
    return count;
  }

  List<CollectiveRow> collectives() const {
    List<std::vector<std::size_t>> messages_of(log().calls.size());
    for (std::size_t m = 0; m < log().messages.size(); ++m) {
      messages_of[static_cast<std::size_t>(log().messages[m].call)].push_back(m);
    }
    List<CollectiveRow> rows;
    for (std::size_t c = 0; c < messages_of.size(); ++c) {
      if (log().calls[c].name != "recv") {
        rows.push_back(row_of(log().calls[c], messages_of[c]));
      }
    }
    return rows;
  }

  // Links that carried something, the busiest first; a chip's two ports to a switch are one.
  List<LinkRow> links() const {
    const detail::MachineLinks all(machine_);
    List<LinkRow> rows;
    for (std::size_t link = 0; link < all.count(); ++link) {
      const double bytes = timeline.link_bytes[link];
      if (bytes > 0) {
        const double rate = all.bandwidth(link) * (all.switched ? 2 : 1);
        const double busy = seconds > 0 ? bytes / rate / seconds : 0;
        const LinkRow row = {all.from(link), all.to(link), all.dim_of(link), bytes, busy};
        if (!rows.empty() && rows.back().from == row.from && rows.back().to == row.to &&
            rows.back().dim == row.dim) {
          rows.back().bytes += bytes;
          rows.back().busy += busy;
        } else {
          rows.push_back(row);
        }
      }
    }
    std::vector<double> keys;
    for (const LinkRow& row : rows) {
      keys.push_back(-row.busy);
    }
    List<LinkRow> sorted;
    for (const std::size_t i : detail::stable_order(keys)) {
      sorted.push_back(rows[i]);
    }
    return sorted;
  }

  CriticalPath critical_path() const {
    CriticalPath path;
    int last = -1;
    for (std::size_t m = 0; m < timeline.finish.size(); ++m) {
      if (last < 0 || timeline.finish[m] > timeline.finish[static_cast<std::size_t>(last)]) {
        last = static_cast<int>(m);
      }
    }
    std::vector<int> back;  // devices, from the end
    for (int m = last; m >= 0; m = timeline.after[static_cast<std::size_t>(m)]) {
      const std::size_t i = static_cast<std::size_t>(m);
      const double latency = timeline.hops[i] * machine_.link_latency;
      ++path.messages;
      path.latency += latency;
      path.transfer += timeline.finish[i] - timeline.start[i] - latency;
      if (back.empty()) {
        back.push_back(log().messages[i].to);
      }
      back.push_back(log().messages[i].from);
    }
    for (std::size_t i = back.size(); i-- > 0;) {
      path.devices.push_back(back[i]);
    }
    return path;
  }

  Table table() const {
    Table out = detail::collective_table(collectives());
    out.title = "collectives on " + machine_.name + " (bytes of the busiest device)";
    return out;
  }
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }

  // Is the guess what was counted?
  CheckReport check(const Guess& guess) const {
    detail::Counted counted;
    counted.devices = devices();
    for (int rank = 0; rank < devices(); ++rank) {
      const double bytes = bytes_sent(rank);
      counted.bytes_most = std::max(counted.bytes_most, bytes);
      counted.bytes_least = rank == 0 ? bytes : std::min(counted.bytes_least, bytes);
      counted.bytes_total += bytes;
    }
    counted.seconds = seconds;
    for (const CollectiveRow& row : collectives()) {
      counted.steps += row.steps;
      counted.names.push_back(row.name);
      counted.group = std::max(counted.group, row.devices);
    }
    counted.one_way_steps = counted.steps;
    for (const CollectiveCall& call : log().calls) {
      for (CollectiveStage stage : call.stages) {
        const std::int64_t steps = collective_steps(stage);
        stage.kind = stage.kind == AxisKind::ring_both_ways ? AxisKind::ring : stage.kind;
        counted.one_way_steps += collective_steps(stage) - steps;
      }
    }
    return detail::check_guess(guess, counted);
  }

 private:
  std::size_t checked(const char* function, int rank) const {
    if (rank < 0 || rank >= devices()) {
      detail::fail({function, ": rank ", rank, " of ", devices(), " devices; ranks are 0 to ",
                    devices() - 1});
    }
    return static_cast<std::size_t>(rank);
  }

  CollectiveRow row_of(const CollectiveCall& call, const std::vector<std::size_t>& messages) const {
    CollectiveRow row;
    row.name = call.name;
    row.axes = call.axes;
    row.arguments = call.name == "send" ? "" : call.arguments;
    row.devices = call.devices;
    const std::size_t ranks = static_cast<std::size_t>(devices());
    std::vector<double> out(ranks), in(ranks);
    std::vector<double> begin(ranks), end(ranks, -1);  // of each group, by its lowest rank
    std::vector<int> hops;                             // by step, -1: none
    for (const std::size_t m : messages) {
      const Message& message = log().messages[m];
      const std::size_t from = static_cast<std::size_t>(message.from);
      const std::size_t to = static_cast<std::size_t>(message.to);
      row.bytes_out = std::max(row.bytes_out, out[from] += message.bytes);
      row.bytes_in = std::max(row.bytes_in, in[to] += message.bytes);
      const std::size_t step = static_cast<std::size_t>(message.step);
      if (step >= hops.size()) {
        hops.resize(step + 1, -1);
      }
      hops[step] = std::max(hops[step], timeline.hops[m]);
      const std::size_t group = static_cast<std::size_t>(message.group);
      if (end[group] < 0) {
        ++row.groups;
        begin[group] = timeline.start[m];
      }
      begin[group] = std::min(begin[group], timeline.start[m]);
      end[group] = std::max(end[group], timeline.finish[m]);
      row.seconds = std::max(row.seconds, end[group] - begin[group]);
    }
    row.groups = messages.empty() ? devices() / call.devices : row.groups;
    for (const int most : hops) {
      row.steps += most >= 0 ? 1 : 0;
      row.hops += most >= 0 ? most : 0;
    }
    row.formula = formula_of(call);
    return row;
  }

  double formula_of(const CollectiveCall& call) const {
    const List<AxisPlacement> axes = detail::place_axes(machine_, record_->axes, Ring::one_way);
    double sum = call.stages.empty() ? -1 : 0;
    for (std::size_t i = 0; i < call.stages.size(); ++i) {
      const std::size_t axis = static_cast<std::size_t>(call.stage_axes[i]);
      sum += collective_seconds(call.stages[i], axes[axis].link);
    }
    return sum;
  }

  Shared<detail::MeshRecord> record_;
  Machine machine_;
};

inline std::ostream& operator<<(std::ostream& out, const MeshRun& run) {
  constexpr std::size_t most_links = 16;
  const List<LinkRow> links = run.links();
  Table table = detail::link_table(links, most_links);
  table.title = detail::cat("links: ", links.size(), " used",
                            links.size() > most_links ? ", the busiest 16" : "");
  out << run.table() << "\n" << table << "\n";
  const CriticalPath path = run.critical_path();
  out << "simulated " << format_seconds(run.seconds) << " on " << run.machine().name
      << "; critical path of " << path.messages << " messages: " << format_seconds(path.latency)
      << " latency, " << format_seconds(path.transfer) << " transfer\n";
  constexpr std::size_t most_devices = 16;
  out << "through devices";
  for (std::size_t i = 0; i < path.devices.size() && i < most_devices; ++i) {
    out << (i == 0 ? " " : " > ") << path.devices[i];
  }
  return out << (path.devices.size() > most_devices ? " > ...\n" : "\n");
}

}  // namespace tinyscale
