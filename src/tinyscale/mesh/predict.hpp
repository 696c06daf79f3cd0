#pragma once
// What a program would take on a mesh of any size, from one device of it: the device runs by
// itself, and each of its collectives takes what its closed form says. Symmetric devices are folded
// into one, so that 100,000 chips cost no more than one.

#include <algorithm>  // max
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/hardware/roofline.hpp"
#include "tinyscale/mesh/collective_bytes.hpp"
#include "tinyscale/mesh/endpoint.hpp"
#include "tinyscale/mesh/step_order.hpp"

namespace tinyscale {

struct PredictedCall {
  std::string name, axes, arguments, algorithm;
  int devices = 1;
  double bytes = 0;    // sent by this device; about, if rows are ragged and not sent directly
  double seconds = 0;  // by the closed form, its links free; of an own schedule at least that
  bool known = true;   // else about: no closed form on these links
};

// Seconds are those of the one device that ran.
struct MeshPrediction {
  std::string machine;
  std::int64_t devices = 0;
  double seconds = 0;  // compute, and the communication that it does not hide
  double compute = 0, exposed = 0;
  List<PredictedCall> calls;

  Table table() const {
    Table out;
    out.title = detail::cat({"predicted on ", machine, ", one device of ", devices});
    out.columns = {"collective", "axis",      "arguments", "algorithm",
                   "devices",    "bytes out", "formula"};
    for (const PredictedCall& call : calls) {
      const std::string sure = call.known                                     ? ""
                               : call.algorithm == name_of(Algorithm::custom) ? "at least"
                                                                              : "about";
      const std::string text = format_seconds(call.seconds);
      out.add({call.name, call.axes, call.arguments, call.algorithm, std::to_string(call.devices),
               format_count(call.bytes),
               Cell(sure.empty() ? text : sure + " " + text, call.seconds,
                    sure.empty() ? "s" : "s, " + sure)});
    }
    return out;
  }
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
};

inline std::ostream& operator<<(std::ostream& out, const MeshPrediction& prediction) {
  bool known = true;
  for (const PredictedCall& call : prediction.calls) {
    known = known && call.known;
  }
  return out << prediction.table() << "\npredicted " << (known ? "" : "about ")
             << format_seconds(prediction.seconds) << ": " << format_seconds(prediction.compute)
             << " compute, " << format_seconds(prediction.exposed) << " exposed communication\n";
}

namespace detail {

inline PredictedCall predict_call(const CallShape& shape, int index) {
  PredictedCall call;
  call.name = shape.name;
  call.axes = shape.axes;
  call.arguments = shape.arguments;
  call.algorithm = name_of(shape.spec.algorithm);
  call.devices = shape.spec.devices();
  if (shape.spec.algorithm != Algorithm::custom) {
    const CollectiveCost cost = cost_of(shape.spec);
    const std::vector<std::int64_t>& begins = shape.cut.ragged;  // of its rows to each
    const std::size_t own = static_cast<std::size_t>(index);
    call.bytes = begins.empty() || shape.spec.algorithm != Algorithm::direct
                     ? collective_bytes(shape.spec, index)
                     : static_cast<double>(begins.back() - (begins[own + 1] - begins[own])) *
                           shape.spec.element_bytes;
    call.seconds = cost.seconds;
    call.known = cost.known && has_form(shape.spec, shape.cut);
    return call;
  }
  for (const ScheduledMessage& message : shape.schedule->messages) {
    call.bytes += message.from == index ? message_bytes(shape, message) : 0;
  }
  call.seconds = schedule_seconds(shape.schedule->data, shape.spec);
  call.known = moves_nothing(shape.spec);
  return call;
}

inline int index_of(int rank, const std::vector<int>& axes, const List<AxisPlacement>& placed) {
  int index = 0;
  for (const int axis : axes) {
    const AxisPlacement& a = placed[static_cast<std::size_t>(axis)];
    index = index * a.size + rank / a.stride % a.size;
  }
  return index;
}

// The clock of one device whose collectives have the links for themselves.
inline MeshPrediction predict_log(const DeviceLog& log, int rank, const Machine& machine,
                                  const List<AxisPlacement>& placed) {
  MeshPrediction out;
  out.machine = machine.name;
  out.devices = machine.chips();
  List<double> done;  // of each call, by its number
  for (const DeviceLog::Event& event : log.events) {
    if (event.kind == DeviceEvent::Kind::compute) {
      for (std::size_t i = event.first; i < event.last; ++i) {
        out.compute += op_seconds(log.ops[i], machine.chip);
      }
      out.seconds = out.compute + out.exposed;
      continue;
    }
    if (event.kind == DeviceEvent::Kind::mark || event.call == nullptr) {
      continue;  // a call that did not come about: the program caught its error
    }
    CallRecord& call = *event.call;
    if (event.kind == DeviceEvent::Kind::start) {
      const CallShape& shape = *call.logged.shape;
      call.number = static_cast<int>(done.size());
      out.calls.push_back(predict_call(shape, index_of(rank, shape.axis_numbers, placed)));
      done.push_back(out.seconds + out.calls.back().seconds);
    } else {
      const double end = done[static_cast<std::size_t>(call.number)];
      out.exposed += std::max(0.0, end - out.seconds);
      out.seconds = std::max(out.seconds, end);
    }
  }
  for (const double end : done) {  // what was started and not waited for ends too
    out.exposed += std::max(0.0, end - out.seconds);
    out.seconds = std::max(out.seconds, end);
  }
  return out;
}

}  // namespace detail
}  // namespace tinyscale
