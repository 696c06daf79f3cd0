#pragma once
// What one device notes while it runs, and the logs of all devices joined into one after the run.

#include <cstddef>
#include <string>
#include <vector>

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

  List<Event> events;
  List<OpCost> ops;
  List<MemorySample> samples;
  List<Shared<CallRecord>> records;  // of calls that no group has: sends, those of a device alone
};

// The call of a start or wait; null where nobody made it come about.
inline CallRecord* record_of(const DeviceLog::Event& event) {
  return event.call != nullptr || event.meeting == nullptr ? event.call : event.meeting->call;
}

// Numbers the calls and the lines of the program: one line for the n-th time that a device makes
// the same call. Sends differ in whom they name, so the n-th send of each device is one line.
inline void number_calls(const DeviceLog& device, NameTable& lines, RunLog& log) {
  NameTable times;
  for (const DeviceLog::Event& event : device.events) {
    CallRecord* const call = record_of(event);
    if (event.kind == DeviceEvent::Kind::start && call != nullptr) {
      const CallShape& shape = *call->logged.shape;
      const std::string inside =  // a send has none
          shape.axes.empty() ? "" : cat({"(", shape.arguments, ", ", shape.axes, ")"});
      const std::string text = shape.name + inside;
      const int time = ++times[text];
      if (call->number < 0) {
        int& line = lines[cat({text, " #", time})];
        line = line == 0 ? static_cast<int>(lines.size()) : line;
        call->number = static_cast<int>(log.calls.size());
        call->logged.line = line - 1;
        log.calls.push_back(call->logged);
      }
    }
  }
}

inline RunLog join_logs(const List<const DeviceLog*>& devices) {
  RunLog log;
  log.devices = static_cast<int>(devices.size());
  NameTable lines;
  for (const DeviceLog* device : devices) {
    number_calls(*device, lines, log);
  }
  for (const NameTable::Entry& line : lines) {
    log.lines.push_back(line.name);
  }
  for (const DeviceLog* device : devices) {
    List<DeviceEvent> program;
    for (const DeviceLog::Event& event : device->events) {
      const CallRecord* const call = record_of(event);
      if (event.kind == DeviceEvent::Kind::compute || event.kind == DeviceEvent::Kind::mark) {
        program.push_back({event.kind, event.first, event.last, event.task});
      } else if (call != nullptr) {
        program.push_back({event.kind, static_cast<std::size_t>(call->number), 0, event.task});
      }
    }
    log.programs.push_back(program);
    log.ops.push_back(device->ops);
    log.samples.push_back(device->samples);
  }
  return log;
}

}  // namespace detail
}  // namespace tinyscale
