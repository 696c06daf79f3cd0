#pragma once
// Simulated time: a run log replayed on a machine, event by event. Each device goes through its
// program: compute as the chip's roofline has it, calls that it starts, calls that it waits for. A
// message leaves when both ends have started the call and finished their earlier steps of its
// stream (a user's send when the sender has); it takes latency for each hop, then its bytes at a
// max-min fair share of the links with all others in flight. A pure function of log and machine.

#include <algorithm>  // lower_bound, max, min
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/order.hpp"
#include "tinyscale/hardware/roofline.hpp"
#include "tinyscale/mesh/fair_links.hpp"
#include "tinyscale/mesh/route.hpp"
#include "tinyscale/mesh/run_log.hpp"
#include "tinyscale/mesh/step_order.hpp"
#include "tinyscale/mesh/timeline.hpp"

namespace tinyscale {
namespace detail {

constexpr std::size_t most_timed_messages = std::size_t{1} << 22;

class Replay {
 public:
  Replay(const RunLog& log, const Machine& machine, const Faults& faults)
      : log_(log),
        machine_(machine),
        links_(links_of(machine, faults)),
        fair_(links_),
        orders_(log) {
    const std::size_t devices = static_cast<std::size_t>(log.devices);
    devices_.resize(devices);
    out_.devices.resize(devices);
    out_.calls.resize(log.calls.size());
    out_.link_bytes.assign(links_.count(), 0);
    progress_of_.assign(log.calls.size(), not_started);
    next_send_.assign(log.calls.size(), none);
    for (const Faults::Fault& fault : faults.all) {
      if (!fault.link) {
        if (fault.from < 0 || fault.from >= log.devices) {
          fail(
              {"time: device ", fault.from, " to be at fault; devices are 0 to ", log.devices - 1});
        }
        Device& device = devices_[static_cast<std::size_t>(fault.from)];
        device.dead = device.dead || fault.dead;
        device.slower *= fault.factor;
      }
    }
    keeps_ = orders_.messages <= most_timed_messages;
    out_.complete = keeps_;
    out_.messages.reserve(keeps_ ? orders_.messages : 0);
  }

  Timeline run() {
    for (int d = 0; d < log_.devices; ++d) {
      ready_.push_back(d);
    }
    run_ready(0);
    while (!events_.empty()) {
      // Events that differ by rounding alone are at once: symmetric devices stay together.
      const double now = events_.first().key;
      const double last = now * (1 + 1e-14);
      done_.clear();
      while (!events_.empty() && !(events_.first().key > last)) {
        handle(events_.pop(), now);
      }
      for (const std::size_t f : done_) {
        finish(f, now);
      }
      run_ready(now);
      for (const std::size_t f : fair_.share(now)) {
        const FairLinks::Flow& flow = fair_.flow(f);
        events_.push({FairLinks::end_of(flow), f, flow.version});
      }
    }
    check_all_done();
    return static_cast<Timeline&&>(out_);
  }

 private:
  static constexpr int not_started = -1, finished = -2, none = -1, device_event = -1;

  struct Device {
    std::size_t next = 0;  // event of its program
    int waits_for = none;  // call
    double since = 0;
    double slower = 1;
    bool dead = false;
    List<std::size_t> sends;  // the last call to each receiver
  };
  struct Flight {  // a message under way, by number of its flow
    int progress = 0;
    int record = none;
    std::size_t message = 0;
  };

  void run_ready(double now) {
    for (std::size_t i = 0; i < ready_.size(); ++i) {
      run_device(ready_[i], now);
    }
    ready_.clear();
  }

  // Goes on with a device's program as far as it can go now.
  void run_device(int rank, double now) {
    const std::size_t d = static_cast<std::size_t>(rank);
    Device& device = devices_[d];
    const List<DeviceEvent>& program = log_.programs[d];
    while (!device.dead && device.next < program.size()) {
      const DeviceEvent& event = program[device.next++];
      if (event.kind == DeviceEvent::Kind::compute) {
        const double seconds = compute_seconds(d, event) * device.slower;
        out_.devices[d].compute += seconds;
        if (seconds > 0) {
          keep_span(rank, none, now, now + seconds, event.task);
          events_.push({now + seconds, d, device_event});
          return;
        }
      } else if (event.kind == DeviceEvent::Kind::mark) {
        out_.devices[d].marks.push_back(now);
      } else if (event.kind == DeviceEvent::Kind::start) {
        start_call(event.first, rank, now);
      } else if (!is_done(event.first, rank)) {
        device.waits_for = static_cast<int>(event.first);
        device.since = now;
        return;
      }
    }
    if (!device.dead) {
      out_.devices[d].end = now;
      out_.seconds = std::max(out_.seconds, now);
    }
  }

  void keep_span(int rank, int call, double start, double finish, int task) {
    if (keeps_ && finish > start) {
      out_.spans.push_back({rank, call, start, finish, task});
    }
  }

  double compute_seconds(std::size_t d, const DeviceEvent& event) const {
    if (event.last > log_.ops[d].size()) {
      fail({"time: device ", d, " computes ops ", event.first, " to ", event.last,
            " of its program, which has ", log_.ops[d].size()});
    }
    double seconds = 0;
    for (std::size_t i = event.first; i < event.last; ++i) {
      seconds += op_seconds(log_.ops[d][i], machine_.chip);
    }
    return seconds;
  }

  int checked_member(std::size_t c, int rank) const {
    const int member = c < log_.calls.size() ? member_of(log_.calls[c], rank) : none;
    if (member == none) {
      fail({"time: device ", rank, " is no member of ",
            c < log_.calls.size() ? line(c) : cat({"call ", c}), ", which its program names"});
    }
    return member;
  }

  bool is_done(std::size_t c, int rank) const {
    const int member = checked_member(c, rank);
    const int progress = progress_of_[c];
    return progress == finished ||
           (progress >= 0 && live_[static_cast<std::size_t>(progress)].done(member));
  }

  void start_call(std::size_t c, int rank, double now) {
    const int member = checked_member(c, rank);
    const int after = out_.devices[static_cast<std::size_t>(rank)].after;
    if (log_.calls[c].shape->eager) {
      start_send(c, rank, now, after);
    } else {
      start_member(c, member, now, after);
    }
  }

  // Sends of a pair of devices go one after another.
  void start_send(std::size_t c, int rank, double now, int after) {
    const int to = receiver(c);
    if (to >= log_.devices) {
      fail({"time: ", line(c), " goes to device ", to, "; devices are 0 to ", log_.devices - 1});
    }
    List<std::size_t>& sends = devices_[static_cast<std::size_t>(rank)].sends;
    std::size_t i = 0;
    while (i < sends.size() && receiver(sends[i]) != to) {
      ++i;
    }
    if (i == sends.size()) {
      sends.push_back(c);
    } else {
      const std::size_t before = sends[i];
      sends[i] = c;
      if (progress_of_[before] != finished) {
        next_send_[before] = static_cast<int>(c);
        return;
      }
    }
    start_all(c, now, after);
  }
  int receiver(std::size_t c) const {
    const LoggedCall& call = log_.calls[c];
    const List<ScheduledMessage>& messages = call.shape->schedule->messages;
    return messages.empty() ? none : (*call.members)[static_cast<std::size_t>(messages[0].to)];
  }
  void start_all(std::size_t c, double now, int after) {
    for (std::size_t i = 0; i < log_.calls[c].members->size(); ++i) {
      start_member(c, static_cast<int>(i), now, after);
    }
  }

  void start_member(std::size_t c, int member, double now, int after) {
    int& p = progress_of_[c];
    if (p == not_started) {
      p = static_cast<int>(free_.empty() ? live_.size() : free_.back());
      if (free_.empty()) {
        live_.push_back(CallProgress());
      } else {
        free_.pop_back();
      }
      live_[static_cast<std::size_t>(p)].begin(orders_.of(c), c);
    }
    if (p == finished || live_[static_cast<std::size_t>(p)].started(member)) {
      fail({"time: device ", (*log_.calls[c].members)[static_cast<std::size_t>(member)], " starts ",
            line(c), " twice; once is right"});
    }
    const int progress = p;
    leave_.clear();
    live_[static_cast<std::size_t>(p)].start(member, leave_);
    for (const std::size_t m : leave_) {
      send(progress, m, now, after);
    }
    check_member(progress, member, now, after);
  }

  // A message leaves.
  void send(int progress, std::size_t m, double now, int after) {
    const CallProgress& at = live_[static_cast<std::size_t>(progress)];
    const LoggedCall& call = log_.calls[at.call];
    const ScheduledMessage& message = at.order->schedule->messages[m];
    TimedMessage timed;
    timed.call = static_cast<int>(at.call);
    timed.from = (*call.members)[static_cast<std::size_t>(message.from)];
    timed.to = (*call.members)[static_cast<std::size_t>(message.to)];
    timed.stream = at.order->transfer(m).stream;
    timed.step = at.order->step(m);
    timed.bytes = message_bytes(*call.shape, message);
    timed.after = after;
    timed.start = now;
    double latency = 0;
    timed.hops = links_.hops(timed.from, timed.to, latency);
    const std::size_t f = fair_.add();
    FairLinks::Flow& flow = fair_.flow(f);
    flow.bytes = timed.bytes;
    links_.route(timed.from, timed.to, flow.route);
    bool cut = false;
    for (const std::size_t link : flow.route) {
      out_.link_bytes[link] += timed.bytes;
      if (!(links_.bandwidth(link) > 0)) {
        cut = true;
        note_dead(link);
      }
    }
    if (f == flights_.size()) {
      flights_.push_back(Flight());
    }
    flights_[f] = {progress, keeps_ ? static_cast<int>(out_.messages.size()) : none, m};
    if (keeps_) {
      out_.messages.push_back(timed);
    }
    TimedCall& span = out_.calls[at.call];
    span.start = span.start < 0 ? now : span.start;
    if (!cut) {
      events_.push({now + latency, f, flow.version});
    }
  }

  void note_dead(std::size_t link) {
    const auto at = std::lower_bound(dead_links_.begin(), dead_links_.end(), link);
    if (at == dead_links_.end() || *at != link) {
      dead_links_.insert(at, link);
    }
  }

  // A device's compute is over, or a message's latency, or its transfer at that version's rate.
  void handle(const EventQueue::Entry& event, double now) {
    if (event.tag == device_event) {
      ready_.push_back(static_cast<int>(event.item));
      return;
    }
    FairLinks::Flow& flow = fair_.flow(event.item);
    if (event.tag != flow.version) {
      return;
    }
    if (flow.rate > 0) {
      fair_.leave(event.item);
      done_.push_back(event.item);
    } else if (flow.bytes > 0 && !flow.route.empty()) {
      flow.since = now;
      fair_.join(event.item);
    } else {
      done_.push_back(event.item);
    }
  }

  void finish(std::size_t f, double now) {
    const Flight flight = flights_[f];
    fair_.remove(f);
    CallProgress& at = live_[static_cast<std::size_t>(flight.progress)];
    const std::size_t call = at.call;
    if (flight.record != none) {
      out_.messages[static_cast<std::size_t>(flight.record)].finish = now;
    }
    out_.calls[call].finish = now;
    out_.seconds = std::max(out_.seconds, now);
    const ScheduledMessage& message = at.order->schedule->messages[flight.message];
    for (const int member : {message.from, message.to}) {
      leave_.clear();
      if (live_[static_cast<std::size_t>(flight.progress)].finish(flight.message, member, leave_)) {
        for (const std::size_t m : leave_) {
          send(flight.progress, m, now, flight.record);
        }
        check_member(flight.progress, member, now, flight.record);
      }
    }
  }

  // Wakes the device that waits for a call which it is through, and ends a call that all are.
  void check_member(int progress, int member, double now, int after) {
    const std::size_t p = static_cast<std::size_t>(progress);
    if (!live_[p].done(member)) {
      return;
    }
    const std::size_t c = live_[p].call;
    const int rank = (*log_.calls[c].members)[static_cast<std::size_t>(member)];
    Device& device = devices_[static_cast<std::size_t>(rank)];
    if (device.waits_for == static_cast<int>(c)) {
      device.waits_for = none;
      TimedDevice& timed = out_.devices[static_cast<std::size_t>(rank)];
      timed.waiting += now - device.since;
      timed.after = after;
      const List<DeviceEvent>& program = log_.programs[static_cast<std::size_t>(rank)];
      keep_span(rank, static_cast<int>(c), device.since, now, program[device.next - 1].task);
      ready_.push_back(rank);
    }
    if (live_[p].members_left == 0) {
      TimedCall& span = out_.calls[c];
      span.finish = span.start < 0 ? now : span.finish;
      span.start = span.start < 0 ? now : span.start;
      progress_of_[c] = finished;
      free_.push_back(p);
      if (next_send_[c] != none) {
        start_all(static_cast<std::size_t>(next_send_[c]), now, after);
      }
    }
  }

  const std::string& line(std::size_t c) const { return line_of(log_, c); }

  // Whom a send is from and to: its line says which of all sends of a device it is.
  std::string ends_of(std::size_t c) const {
    const LoggedCall& call = log_.calls[c];
    return call.shape->eager ? cat({" (", (*call.members)[0], " -> ", (*call.members)[1], ")"})
                             : "";
  }

  // When nothing can happen any more every device must be at its end.
  void check_all_done() const {
    std::string dead, waiting;
    int deaths = 0, waits = 0;
    constexpr int most_named = 4;
    for (std::size_t d = 0; d < devices_.size(); ++d) {
      if (devices_[d].dead) {
        dead += cat({deaths++ > 0 ? ", device " : "device ", d});
      } else if (devices_[d].waits_for != none && ++waits <= most_named) {
        const auto c = static_cast<std::size_t>(devices_[d].waits_for);
        waiting += cat({waits > 1 ? ", device " : "device ", d, " waits in ", line(c), ends_of(c)});
      }
    }
    for (const std::size_t link : dead_links_) {
      dead += cat({deaths++ > 0 ? ", link " : "link ", links_.name(link)});
    }
    if (waits > most_named) {
      waiting += cat({" and ", waits - most_named, " more wait"});
    }
    if (!dead.empty()) {
      fail({"time: ", dead, deaths == 1 ? " is dead" : " are dead", waiting.empty() ? "" : "; ",
            waiting});
    }
    if (waits > 0) {
      fail({"time: ", waiting, "; each waits for another, none can go on"});
    }
  }

  const RunLog& log_;
  const Machine& machine_;
  MachineLinks links_;
  FairLinks fair_;
  EventQueue events_;
  Timeline out_;
  List<Device> devices_;
  CallOrders orders_;
  List<CallProgress> live_;        // of calls under way
  std::vector<std::size_t> free_;  // places of live_
  std::vector<int> progress_of_;   // by call: place in live_, not_started, finished
  std::vector<int> next_send_;     // by call: the send that goes after it
  List<Flight> flights_;
  std::vector<std::size_t> done_, leave_;
  std::vector<int> ready_;               // devices
  std::vector<std::size_t> dead_links_;  // that messages were to take; rising
  bool keeps_ = true;
};

}  // namespace detail

// What the run of `log` takes on `machine`, which needs one chip for each device of the log.
// Throws when devices wait for ever, for each other or for what is dead.
inline Timeline time(const RunLog& log, const Machine& machine, const Faults& faults = Faults()) {
  const std::size_t devices = static_cast<std::size_t>(log.devices);
  if (log.devices < 0 || machine.chips() != log.devices || log.programs.size() != devices ||
      log.ops.size() != devices) {
    detail::fail({"time: the log is of ", log.devices, " devices with ", log.programs.size(),
                  " programs and ", log.ops.size(), " lists of ops, machine ", machine.name,
                  " has ", machine.chips(), " chips; they must be equal"});
  }
  detail::check_network("time", machine);
  return detail::Replay(log, machine, faults).run();
}

}  // namespace tinyscale
