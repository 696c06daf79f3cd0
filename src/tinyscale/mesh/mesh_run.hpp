#pragma once
// What a mesh program cost: bytes and steps counted from its messages, simulated time beside the
// formula, the links and the critical path. The same log can be timed again on another machine, or
// with links and devices that are slow.

#include <algorithm>  // max, min, reverse
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
#include "tinyscale/mesh/collective_cost.hpp"
#include "tinyscale/mesh/device.hpp"
#include "tinyscale/mesh/guess.hpp"
#include "tinyscale/mesh/mesh_axis.hpp"
#include "tinyscale/mesh/replay.hpp"
#include "tinyscale/mesh/run_rows.hpp"
#include "tinyscale/tensor/tensor.hpp"

namespace tinyscale {

namespace detail {

// What a run leaves behind; shared by all timings of it.
struct MeshRecord {
  RunLog log;
  std::string machine;  // on which it ran, and algorithms were chosen
  List<MeshAxis> axes;
  List<List<KeptTensor>> kept;  // by rank
  List<Counters> counters;
  double measured = 0;  // seconds on this host, of the slowest device
  List<Shared<MemoryMeter>> memory;
};

}  // namespace detail

class MeshRun {
 public:
  MeshRun(Shared<detail::MeshRecord> record, Machine machine, Faults faults = Faults())
      : timeline(time(record->log, machine, faults)),
        record_(std::move(record)),
        machine_(std::move(machine)),
        faults_(std::move(faults)) {
    seconds = timeline.seconds;
  }

  double seconds = 0;  // simulated, of compute and messages
  Timeline timeline;   // of each message, call and device

  // What the run took here, on the wall: on this computer's threads, or on MPI ranks.
  double measured_seconds() const { return record_->measured; }
  const RunLog& log() const { return record_->log; }
  const Machine& machine() const { return machine_; }
  const Faults& faults() const { return faults_; }
  int devices() const { return record_->log.devices; }

  // The same run on another machine with as many chips, or with other faults. Its own faults stay,
  // and must be possible on the other machine, unless it is given others: on(other, Faults()).
  MeshRun on(const Machine& other) const { return on(other, faults_); }
  MeshRun on(const Machine& other, const Faults& faults) const {
    return MeshRun(record_, other, faults);
  }
  MeshRun with(const Faults& faults) const { return MeshRun(record_, machine_, faults); }

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

  // The memory at the end of each task of a device, in order.
  List<MemorySample> memory_samples(int rank) const {
    const std::size_t d = checked("memory_samples", rank);
    List<MemorySample> samples = d < log().samples.size() ? log().samples[d] : List<MemorySample>();
    for (std::size_t i = 0; i < samples.size(); ++i) {
      samples[i].seconds = timeline.devices[d].marks[i];
    }
    return samples;
  }

  // Of a call of the log; of a send the one axis on which its two devices differ, "" if several.
  std::string axes_of_call(std::size_t call) const {
    if (call >= log().calls.size()) {
      detail::fail({"axes_of_call: call ", call, " of ", log().calls.size(), " in the log"});
    }
    const LoggedCall& logged = log().calls[call];
    if (!logged.shape->eager) {
      return logged.shape->axes;
    }
    std::string name;
    int from = logged.members->front(), to = logged.members->back(), differ = 0;
    for (std::size_t a = record_->axes.size(); a-- > 0;) {  // the last axis is the fastest
      const int size = static_cast<int>(record_->axes[a].size.value);
      if (from % size != to % size) {
        name = record_->axes[a].name;
        ++differ;
      }
      from /= size;
      to /= size;
    }
    return differ == 1 ? name : "";
  }

  double bytes_sent(int rank) const { return all_sent()[checked("bytes_sent", rank)]; }

  // The sum over the program's lines: sends that devices make at the same time are one line.
  std::int64_t steps() const {
    std::int64_t count = 0;
    for (const CollectiveRow& row : collectives()) {
      count += row.steps;
    }
    return count;
  }

  List<CollectiveRow> collectives() const {
    List<std::vector<std::size_t>> calls_of(log().lines.size());
    for (std::size_t c = 0; c < log().calls.size(); ++c) {
      calls_of[static_cast<std::size_t>(log().calls[c].line)].push_back(c);
    }
    const List<AxisPlacement> placed = detail::place_axes(machine_, record_->axes);
    const detail::MachineLinks links(machine_);
    List<CollectiveRow> rows;
    for (const std::vector<std::size_t>& calls : calls_of) {
      if (!calls.empty()) {
        rows.push_back(row_of(calls, placed, links));
      }
    }
    return rows;
  }

  // Links that carried something, the busiest first.
  List<LinkRow> links() const {
    const detail::MachineLinks all = detail::links_of(machine_, faults_);
    List<LinkRow> rows;
    std::vector<double> keys;
    for (std::size_t link = 0; link < all.count(); ++link) {
      const double bytes = timeline.link_bytes[link];
      if (bytes > 0) {
        rows.push_back({all.from(link), all.to(link), all.dim_of(link), all.name(link),
                        all.is_uplink(link), bytes, busy(all, link)});
        keys.push_back(-rows.back().busy);
      }
    }
    List<LinkRow> sorted;
    for (const std::size_t i : detail::stable_order(keys)) {
      sorted.push_back(rows[i]);
    }
    return sorted;
  }

  // Empty when the run has too many messages to be kept one by one.
  CriticalPath critical_path() const {
    CriticalPath path;
    const detail::MachineLinks all = detail::links_of(machine_, faults_);
    const List<AxisPlacement> placed = detail::place_axes(machine_, record_->axes);
    double end = seconds;  // of what comes after message m
    double most = -1;
    std::vector<std::size_t> route;
    for (int m = last_message(); m >= 0;) {
      const TimedMessage& message = timeline.messages[static_cast<std::size_t>(m)];
      double latency = 0;
      all.hops(message.from, message.to, latency);
      ++path.messages;
      path.compute += end - message.finish;
      path.latency += latency;
      path.transfer += message.finish - message.start - latency;
      path.chain.push_back(m);
      all.route(message.from, message.to, route);
      for (const std::size_t link : route) {
        if (busy(all, link) > most) {
          most = busy(all, link);
          const LoggedCall& call = log().calls[static_cast<std::size_t>(message.call)];
          path.heaviest =
              detail::cat({detail::along(machine_, placed, *call.shape, all.dim_of(link)),
                           ", link ", all.name(link), ", ", format_percent(most), " of the step"});
        }
      }
      end = message.start;
      m = before(message);
    }
    path.compute += timeline.complete ? end : 0;
    std::reverse(path.chain.begin(), path.chain.end());
    return path;
  }

  Table table() const {
    const List<CollectiveRow> rows = collectives();
    return detail::collective_table(rows, machine_.name, rows.size());
  }
  // Compute and the communication that it does not hide, of each device.
  Table device_table() const {
    Table out;
    out.title = "devices";
    out.columns = {"device", "compute", "exposed communication", "end"};
    for (std::size_t d = 0; d < timeline.devices.size(); ++d) {
      const TimedDevice& device = timeline.devices[d];
      out.add({std::to_string(d), format_seconds(device.compute), format_seconds(device.waiting),
               format_seconds(device.end)});
    }
    return out;
  }
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }

  // Is the guess what was counted?
  CheckReport check(const Guess& guess) const {
    detail::Counted counted;
    counted.devices = devices();
    const std::vector<double> sent = all_sent();
    for (std::size_t rank = 0; rank < sent.size(); ++rank) {
      counted.bytes_most = std::max(counted.bytes_most, sent[rank]);
      counted.bytes_least = rank == 0 ? sent[rank] : std::min(counted.bytes_least, sent[rank]);
      counted.bytes_total += sent[rank];
    }
    counted.seconds = seconds - critical_path().compute;
    for (const TimedDevice& device : timeline.devices) {  // what is not computed is messages
      counted.timed = counted.timed && (timeline.complete || !(device.compute > 0));
    }
    for (const CollectiveRow& row : collectives()) {
      counted.steps += row.steps;
      counted.names.push_back(row.name);
      counted.algorithm = row.devices > counted.group ? row.algorithm : counted.algorithm;
      counted.group = std::max(counted.group, row.devices);
      const bool both = row.algorithm == name_of(Algorithm::ring_both_ways);
      counted.one_way_steps +=
          both ? (row.name == "all_reduce" ? 2 : 1) * (row.devices - 1) : row.steps;
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

  std::vector<double> all_sent() const {
    std::vector<double> out(static_cast<std::size_t>(devices())), in(out.size());
    for (const LoggedCall& call : log().calls) {
      detail::add_bytes(call, out, in);
    }
    return out;
  }

  double busy(const detail::MachineLinks& all, std::size_t link) const {
    return seconds > 0 && all.bandwidth(link) > 0
               ? timeline.link_bytes[link] / all.bandwidth(link) / seconds
               : 0;
  }

  // What a message waited for; of several that ended at once the one that brought its data.
  int before(const TimedMessage& message) const {
    const List<TimedMessage>& all = timeline.messages;
    if (message.after < 0) {
      return message.after;
    }
    const double left = all[static_cast<std::size_t>(message.after)].start;
    const std::size_t own = static_cast<std::size_t>(&message - all.begin());
    std::size_t m = static_cast<std::size_t>(message.after);
    while (m + 1 < own && all[m + 1].start <= left) {
      ++m;  // messages lie in the order in which they left; those behind it brought it nothing
    }
    for (++m; m-- > 0 && all[m].start >= left;) {
      const TimedMessage& one = all[m];
      if (one.to == message.from && one.call == message.call && one.stream == message.stream &&
          one.finish >= message.start && one.finish <= message.start) {
        return static_cast<int>(m);
      }
    }
    return message.after;
  }

  // The last message before the end of the run: that of the last device, or one still under way.
  int last_message() const {
    for (const TimedDevice& device : timeline.devices) {
      if (!(device.end < seconds)) {
        return device.after;
      }
    }
    int last = -1;
    for (std::size_t m = 0; m < timeline.messages.size(); ++m) {
      last = !(timeline.messages[m].finish < seconds) ? static_cast<int>(m) : last;
    }
    return last;
  }

  CollectiveRow row_of(const std::vector<std::size_t>& calls, const List<AxisPlacement>& placed,
                       const detail::MachineLinks& links) const {
    const CallShape& shape = *log().calls[calls[0]].shape;
    CollectiveRow row;
    row.name = shape.name;
    row.axes = shape.axes;
    row.arguments = shape.arguments;
    row.algorithm = shape.eager ? "" : name_of(shape.spec.algorithm);
    const bool elsewhere = !shape.reason.empty() && machine_.name != record_->machine;
    row.reason = (elsewhere ? "on " + record_->machine + ": " : "") + shape.reason;
    row.where = log().calls[calls[0]].where;
    row.groups = static_cast<int>(calls.size());
    std::vector<double> out(static_cast<std::size_t>(devices())), in(out.size());
    for (const std::size_t c : calls) {
      const LoggedCall& call = log().calls[c];
      row.devices = std::max(row.devices, static_cast<int>(call.members->size()));
      row.seconds = std::max(row.seconds, timeline.calls[c].finish - timeline.calls[c].start);
      detail::add_bytes(call, out, in);
      detail::count_steps(call, links, row);
    }
    for (std::size_t rank = 0; rank < out.size(); ++rank) {
      row.bytes_out = std::max(row.bytes_out, out[rank]);
      row.bytes_in = std::max(row.bytes_in, in[rank]);
    }
    if (!shape.eager) {
      CollectiveSpec spec = shape.spec;
      spec.parts = detail::parts_of_group(machine_, placed, shape.axis_numbers);
      bool known = detail::has_form(spec, shape.cut) && detail::same_rows(spec, shape.spec);
      for (const AxisPart& part : spec.parts) {  // groups that share links must all call
        known =
            known && ((part.spacing == 1 && !part.shared) || row.groups * row.devices == devices());
      }
      row.formula = known ? collective_seconds(spec) : -1;
      const double bytes = static_cast<double>(spec.elements) * spec.element_bytes;
      row.algbw = row.seconds > 0 ? bytes / row.seconds : 0;
      row.busbw = row.algbw * bus_factor(spec.what, row.devices);
    }
    return row;
  }

  Shared<detail::MeshRecord> record_;
  Machine machine_;
  Faults faults_;
};

namespace detail {

inline void print_path(std::ostream& out, const MeshRun& run) {
  const CriticalPath path = run.critical_path();
  out << "simulated " << format_seconds(run.seconds) << " on " << run.machine().name;
  const std::size_t faults = run.faults().all.size();
  out << (faults > 0 ? cat({" with ", faults, faults == 1 ? " fault" : " faults"}) : "");
  if (path.messages == 0) {  // compute alone, or too many to be kept
    out << "\n";
    return;
  }
  out << "; critical path of " << path.messages
      << (path.messages == 1 ? " message: " : " messages: ");
  if (path.compute > 0) {
    out << format_seconds(path.compute) << " compute, ";
  }
  out << format_seconds(path.latency) << " latency, " << format_seconds(path.transfer)
      << " transfer" << (path.heaviest.empty() ? "" : "; ") << path.heaviest << "\nmessages";
  constexpr std::size_t most_messages = 16;
  int at = -1;
  for (std::size_t i = 0; i < path.chain.size() && i < most_messages; ++i) {
    const TimedMessage& message = run.timeline.messages[static_cast<std::size_t>(path.chain[i])];
    if (message.from != at) {  // it waited for its receiver, or for what its sender sent before
      out << (i == 0 ? " " : ", ") << message.from;
    }
    out << " -> " << message.to;
    at = message.to;
  }
  out << (path.chain.size() > most_messages ? ", ...\n" : "\n");
}

}  // namespace detail

inline std::ostream& operator<<(std::ostream& out, const MeshRun& run) {
  constexpr std::size_t most_links = 16, most_rows = 40;
  const List<LinkRow> links = run.links();
  Table table = detail::link_table(links, most_links);
  table.title = detail::cat(
      {"links: ", links.size(), " used", links.size() > most_links ? ", the busiest 16" : ""});
  const List<CollectiveRow> rows = run.collectives();
  out << detail::collective_table(rows, run.machine().name, most_rows);
  std::vector<std::string> said;
  for (std::size_t i = 0; i < rows.size() && i < most_rows; ++i) {
    const std::string why = rows[i].name + " over " + rows[i].axes + ": " + rows[i].reason;
    bool again = rows[i].reason.empty();
    for (const std::string& known : said) {
      again = again || known == why;
    }
    if (!again) {
      out << why << "\n";
      said.push_back(why);
    }
  }
  out << "\n" << table << "\n";
  detail::print_path(out, run);
  return out;
}

}  // namespace tinyscale
