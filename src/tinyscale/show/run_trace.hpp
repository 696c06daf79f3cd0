#pragma once
// A mesh run as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open: a process for
// each device, with a track of its compute and waits, one for each axis of the mesh that it talks
// along (several where calls overlap), and its memory by kind.
// Trace Event Format, complete events: microseconds of simulated time.

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/measure/memory.hpp"
#include "tinyscale/mesh/time_breakdown.hpp"
#include "tinyscale/show/device_timeline.hpp"
#include "tinyscale/show/svg.hpp"
#include "tinyscale/show/task_timeline.hpp"

namespace tinyscale {
namespace detail {

inline std::string trace_event(const std::string& name, const std::string& category, int device,
                               std::size_t track, double start, double finish) {
  return cat({",\n{\"ph\": \"X\", \"name\": \"", json_escape(name), "\", \"cat\": \"",
              json_escape(category), "\", \"pid\": ", device, ", \"tid\": ", track,
              ", \"ts\": ", printed('f', 6, start * 1e6),
              ", \"dur\": ", printed('f', 6, (finish - start) * 1e6), "}"});
}

inline std::string trace_name(const char* what, int device, std::size_t track,
                              const std::string& name) {
  return cat({",\n{\"ph\": \"M\", \"name\": \"", what, "\", \"pid\": ", device,
              ", \"tid\": ", track, ", \"args\": {\"name\": \"", json_escape(name), "\"}}"});
}

// The calls of a device on tracks 1, 2, .. in the order of the axes.
inline std::string trace_calls(int device, const List<CallBar>& bars, const CallLines& lines,
                               const AxisLanes& axes) {
  std::string out;
  std::size_t track = 1;
  for (std::size_t a = 0; a < axes.names.size(); ++a) {
    List<CallBar> along;
    for (const CallBar& bar : bars) {
      if (axes.of_call[static_cast<std::size_t>(bar.call)] == a) {
        along.push_back(bar);
      }
    }
    const std::size_t lanes = set_lanes(along);
    const std::string name = axes.names[a].empty() ? "sends" : "axis " + axes.names[a];
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      out += trace_name("thread_name", device, track + lane,
                        lane == 0 ? name : cat({name, ", also ", lane}));
    }
    for (const CallBar& bar : along) {
      out += trace_event(lines.names[lines.of_call[static_cast<std::size_t>(bar.call)]],
                         axes.names[a], device, track + bar.lane, bar.start[0], bar.finish.back());
    }
    track += lanes;
  }
  return out;
}

// A counter whose parts are stacked.
inline std::string trace_memory(int device, const List<MemorySample>& samples) {
  std::string out;
  for (const MemorySample& sample : samples) {
    out += cat({",\n{\"ph\": \"C\", \"name\": \"memory, bytes\", \"pid\": ", device,
                ", \"ts\": ", printed('f', 6, sample.seconds * 1e6), ", \"args\": {"});
    for (std::size_t kind = 0; kind < sample.levels.size(); ++kind) {
      out += cat({kind == 0 ? "\"" : ", \"", name_of(static_cast<MemoryKind>(kind)),
                  "\": ", printed('f', 0, sample.levels[kind])});
    }
    out += "}}";
  }
  return out;
}

}  // namespace detail

inline std::string trace_json(const MeshRun& run, const TaskNames& names = TaskNames()) {
  const detail::CallLines lines = detail::call_lines(run.log());
  const detail::AxisLanes axes(run);
  const List<List<detail::CallBar>> bars = detail::call_bars(run, run.devices(), HUGE_VAL);
  std::string out;
  for (int d = 0; d < run.devices(); ++d) {
    out += detail::trace_name("process_name", d, 0, detail::cat({"device ", d}));
    out += detail::trace_name("thread_name", d, 0, "compute");
  }
  for (const TimedSpan& span : run.timeline.spans) {
    const std::string what =
        span.call < 0
            ? names.name_of(span.task)
            : "wait for " + lines.names[lines.of_call[static_cast<std::size_t>(span.call)]];
    out += detail::trace_event(
        what,
        span.call < 0 ? names.class_of(span.task)
                      : names.wait_for(run.axes_of_call(static_cast<std::size_t>(span.call))),
        span.device, 0, span.start, span.finish);
  }
  for (int d = 0; d < run.devices(); ++d) {
    out += detail::trace_calls(d, bars[static_cast<std::size_t>(d)], lines, axes);
    out += detail::trace_memory(d, run.memory_samples(d));
  }
  return "[" + out.substr(2) + "]\n";  // the first event has no comma before it
}

// An old file stays whole when the new one cannot be written.
inline void save_trace(const MeshRun& run, const std::string& path,
                       const TaskNames& names = TaskNames()) {
  detail::save_text("save_trace", path, trace_json(run, names));
}

}  // namespace tinyscale
