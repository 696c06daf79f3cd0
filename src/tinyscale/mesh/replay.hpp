#pragma once
// Simulated time: a message log replayed on a machine, event by event.
// A message starts when its sender's (and, in a collective, its receiver's) earlier steps are done,
// takes latency for each hop, then its bytes at a max-min fair share of those links.
// A pure function of log and machine.

#include <algorithm>  // max
#include <cstddef>
#include <limits>
#include <vector>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/order.hpp"
#include "tinyscale/mesh/fair_links.hpp"
#include "tinyscale/mesh/message_log.hpp"
#include "tinyscale/mesh/route.hpp"

namespace tinyscale {

// When each message of a log ran on a machine, in simulated seconds.
struct Timeline {
  double seconds = 0;                 // until the last message has arrived
  std::vector<double> start, finish;  // of each message
  std::vector<int> after;             // the message whose end let each one start, or -1
  std::vector<int> hops;              // latencies each one paid
  std::vector<double> link_bytes;     // by detail::MachineLinks number
};

namespace detail {

constexpr std::size_t no_message = std::numeric_limits<std::size_t>::max();

// The steps of every device and which of them are done.
class StepOrder {
 public:
  explicit StepOrder(const MessageLog& log) : log_(log) {
    const std::size_t devices = static_cast<std::size_t>(log.devices);
    List<std::vector<std::size_t>> ends(devices);  // messages, in order
    List<std::vector<double>> step_of(devices);    // of each of these
    for (std::size_t m = 0; m < log.messages.size(); ++m) {
      const Message& message = log.messages[m];
      ends[static_cast<std::size_t>(message.from)].push_back(m);
      step_of[static_cast<std::size_t>(message.from)].push_back(message.from_step);
      ends[static_cast<std::size_t>(message.to)].push_back(m);
      step_of[static_cast<std::size_t>(message.to)].push_back(message.to_step);
    }
    steps_.resize(devices);
    next_.assign(devices, 0);
    for (std::size_t d = 0; d < devices; ++d) {
      int last = -1;
      for (const std::size_t i : stable_order(step_of[d])) {
        const int step = static_cast<int>(step_of[d][i]);
        if (steps_[d].empty() || step != last) {
          steps_[d].push_back({step, 0, {}});
          last = step;
        }
        steps_[d].back().messages.push_back(ends[d][i]);
        ++steps_[d].back().unfinished;
      }
    }
  }

  // Messages of the step that a device is in.
  const std::vector<std::size_t>& current(int device) const {
    static const std::vector<std::size_t> none;
    const std::size_t d = static_cast<std::size_t>(device);
    return next_[d] < steps_[d].size() ? steps_[d][next_[d]].messages : none;
  }

  bool may_start(std::size_t m) const {
    const Message& message = log_.messages[m];
    return at_step(message.from, message.from_step) &&
           (message.start == MessageStart::sender_ready || at_step(message.to, message.to_step));
  }

  // Marks one end of a message as finished.
  void finish(int device, int step) {
    List<Step>& steps = steps_[static_cast<std::size_t>(device)];
    std::size_t low = 0;
    for (std::size_t high = steps.size(); low < high;) {
      const std::size_t middle = low + (high - low) / 2;
      if (steps[middle].number < step) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    --steps[low].unfinished;
  }

  // Moves a device to its next step if this one is done.
  bool advance(int device) {
    const std::size_t d = static_cast<std::size_t>(device);
    if (next_[d] < steps_[d].size() && steps_[d][next_[d]].unfinished == 0) {
      ++next_[d];
      return true;
    }
    return false;
  }

 private:
  struct Step {
    int number = 0;
    int unfinished = 0;
    std::vector<std::size_t> messages;
  };

  bool at_step(int device, int step) const {
    const std::size_t d = static_cast<std::size_t>(device);
    return next_[d] < steps_[d].size() && steps_[d][next_[d]].number == step;
  }

  const MessageLog& log_;
  List<List<Step>> steps_;
  std::vector<std::size_t> next_;
};

class Replay {
 public:
  Replay(const MessageLog& log, const Machine& machine)
      : log_(log), order_(log), links_(machine, log.messages.size()) {
    const std::size_t count = log.messages.size();
    out_.start.assign(count, -1);
    out_.finish.assign(count, -1);
    out_.after.assign(count, -1);
    out_.hops.assign(count, 0);
    out_.link_bytes.assign(links_.links().count(), 0);
  }

  Timeline run() {
    for (int d = 0; d < log_.devices; ++d) {
      start_ready(d, 0, no_message);
    }
    while (!events_.empty()) {
      const double now = events_.first().key;
      std::vector<std::size_t> changed;
      std::vector<std::size_t> done;
      while (!events_.empty() && !(events_.first().key > now)) {
        handle(events_.pop(), changed, done);
      }
      for (const std::size_t m : done) {
        finish(m, now);
      }
      for (const std::size_t m : links_.share(changed, now)) {
        const FairLinks::Flow& flow = links_.flow(m);
        events_.push({now + flow.bytes / flow.rate, m, flow.version});
      }
    }
    check_all_ran();
    return out_;
  }

 private:
  // Starts what waits for `device` alone now; `cause` is the message whose end made it so.
  void start_ready(int device, double now, std::size_t cause) {
    for (const std::size_t m : order_.current(device)) {
      if (out_.start[m] < 0 && order_.may_start(m)) {
        const Message& message = log_.messages[m];
        FairLinks::Flow& flow = links_.flow(m);
        flow.route = links_.links().route(message.from, message.to);
        flow.bytes = message.bytes;
        out_.start[m] = now;
        out_.after[m] = cause == no_message ? -1 : static_cast<int>(cause);
        out_.hops[m] = links_.links().hops(flow.route);
        for (const std::size_t link : flow.route) {
          out_.link_bytes[link] += message.bytes;
        }
        const double latency = links_.links().machine.link_latency;
        events_.push({now + out_.hops[m] * latency, m, 0});
      }
    }
  }

  void handle(const EventQueue::Entry& event, std::vector<std::size_t>& changed,
              std::vector<std::size_t>& done) {
    // Tag 0: latency is over; else the transfer is, at the rate of that version.
    FairLinks::Flow& flow = links_.flow(event.item);
    if (event.tag == 0 && flow.bytes > 0) {
      flow.since = event.key;
      links_.join(event.item);
      changed.push_back(event.item);
    } else if (event.tag == flow.version) {
      if (flow.version > 0) {
        links_.leave(event.item);
        changed.push_back(event.item);
      }
      ++flow.version;
      done.push_back(event.item);
    }
  }

  void finish(std::size_t m, double now) {
    const Message& message = log_.messages[m];
    out_.finish[m] = now;
    out_.seconds = std::max(out_.seconds, now);
    order_.finish(message.from, message.from_step);
    order_.finish(message.to, message.to_step);
    for (const int device : {message.from, message.to}) {
      while (order_.advance(device)) {
        start_ready(device, now, m);
      }
    }
  }

  void check_all_ran() const {
    for (std::size_t m = 0; m < out_.finish.size(); ++m) {
      if (out_.finish[m] < 0) {
        fail({"time: message ", m, " from device ", log_.messages[m].from, " to device ",
              log_.messages[m].to, " waits for itself; steps of the log must have an order"});
      }
    }
  }

  const MessageLog& log_;
  StepOrder order_;
  FairLinks links_;
  EventQueue events_;
  Timeline out_;
};

}  // namespace detail

// What the messages of `log` take on `machine`, which needs one chip for each device of the log.
inline Timeline time(const MessageLog& log, const Machine& machine) {
  if (machine.chips() != log.devices) {
    detail::fail({"time: the log is of ", log.devices, " devices, machine ", machine.name, " has ",
                  machine.chips(), " chips; they must be equal"});
  }
  detail::check_network("time", machine);
  return detail::Replay(log, machine).run();
}

}  // namespace tinyscale
