#pragma once
// What one device notes while it runs, and the logs of all devices joined into one after the run.

#include <algorithm>  // max
#include <cstddef>
#include <cstdint>  // uintptr_t
#include <string>
#include <utility>  // move
#include <vector>

#include "tinyscale/base/block_list.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/order.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/mesh/meeting.hpp"
#include "tinyscale/mesh/run_log.hpp"

namespace tinyscale {
namespace detail {

// What one device leaves; joined in rank order after the run.
struct DeviceLog {
  struct Event {
    DeviceEvent::Kind kind = DeviceEvent::Kind::compute;
    std::size_t first = 0, last = 0;   // compute: ops; mark: sample
    CallRecord* call = nullptr;        // start, wait
    const Meeting* meeting = nullptr;  // start: where the call is found if nobody waited for it
    int task = -1;
  };

  BlockList<Event> events;
  List<OpCost> ops;
  List<MemorySample> samples;
  BlockList<CallRecord> records;    // of calls of the device alone
  List<Shared<CallRecord>> shared;  // of sends
};

// The call of a start or wait; null where nobody made it come about.
inline CallRecord* record_of(const DeviceLog::Event& event) {
  return event.call != nullptr || event.meeting == nullptr ? event.call : event.meeting->call;
}

// Numbers the calls and the lines of the program: one line for the n-th time that a device makes
// the same call. Sends differ in whom they name, so the n-th send of each device is one line. A
// text is made once for a shape and once for a line, not for every call.
class CallNumbers {
 public:
  explicit CallNumbers(RunLog& log) : log_(log) {}

  void number(const DeviceLog& device) {
    std::vector<std::size_t> times(lines_.size(), 0);  // by text
    for (const DeviceLog::Event& event : device.events) {
      CallRecord* const call = record_of(event);
      if (event.kind == DeviceEvent::Kind::start && call != nullptr) {
        call->fill();
        const std::size_t text = text_of(*call->logged.shape);
        times.resize(lines_.size(), 0);
        const std::size_t time = times[text]++;
        if (call->number < 0) {
          call->number = static_cast<int>(log_.calls.size());
          call->logged.line = line_of(text, time);
          log_.calls.push_back(call->logged);
        }
      }
    }
  }

 private:
  struct KnownShape {
    const CallShape* shape = nullptr;
    std::size_t text = 0;
  };

  // A hash table of shapes, and where it has none of this one, of texts.
  std::size_t text_of(const CallShape& shape) {
    if (2 * shapes_known_ >= shapes_.size()) {
      List<KnownShape> before;
      before.swap(shapes_);
      shapes_.resize(4 * before.size() + 16);
      for (const KnownShape& known : before) {
        if (known.shape != nullptr) {
          place_of(*known.shape) = known;
        }
      }
    }
    KnownShape& known = place_of(shape);
    if (known.shape == nullptr) {
      const std::string inside =  // a send has none
          shape.axes.empty()
              ? ""
              : cat({"(", shape.arguments, shape.arguments.empty() ? "" : ", ", shape.axes, ")"});
      int& number = texts_[shape.name + inside];
      if (number == 0) {
        number = static_cast<int>(texts_.size());
        lines_.push_back({});
      }
      known = {&shape, static_cast<std::size_t>(number - 1)};
      ++shapes_known_;
    }
    return known.text;
  }
  KnownShape& place_of(const CallShape& shape) {
    std::size_t at = reinterpret_cast<std::uintptr_t>(&shape) / 64 % shapes_.size();
    while (shapes_[at].shape != nullptr && shapes_[at].shape != &shape) {
      at = (at + 1) % shapes_.size();
    }
    return shapes_[at];
  }

  int line_of(std::size_t text, std::size_t time) {
    std::vector<int>& lines = lines_[text];
    lines.resize(std::max(lines.size(), time + 1), -1);
    if (lines[time] < 0) {
      lines[time] = static_cast<int>(log_.lines.size());
      log_.lines.push_back(cat({texts_.begin()[text].name, " #", time + 1}));
    }
    return lines[time];
  }

  RunLog& log_;
  List<KnownShape> shapes_;
  std::size_t shapes_known_ = 0;
  NameTable texts_;
  List<std::vector<int>> lines_;  // by text, by time; -1: none yet
};

inline RunLog join_logs(const List<const DeviceLog*>& devices) {
  RunLog log;
  log.devices = static_cast<int>(devices.size());
  CallNumbers numbers(log);
  for (const DeviceLog* device : devices) {
    numbers.number(*device);
  }
  for (const DeviceLog* device : devices) {
    List<DeviceEvent> program;
    program.reserve(device->events.size());
    for (const DeviceLog::Event& event : device->events) {
      const CallRecord* const call = record_of(event);
      if (event.kind == DeviceEvent::Kind::compute || event.kind == DeviceEvent::Kind::mark) {
        program.push_back({event.kind, event.first, event.last, event.task});
      } else if (call != nullptr) {
        program.push_back({event.kind, static_cast<std::size_t>(call->number), 0, event.task});
      }
    }
    log.programs.push_back(std::move(program));
    log.ops.push_back(device->ops);
    log.samples.push_back(device->samples);
  }
  return log;
}

}  // namespace detail
}  // namespace tinyscale
