#pragma once
// A mesh run as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open: a process for
// each device, a thread for its compute and waits and one for each call under way at a time.
// Trace Event Format, complete events: microseconds of simulated time.

#include <cmath>
#include <cstddef>
#include <string>

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/mesh/mesh_run.hpp"
#include "tinyscale/show/device_timeline.hpp"
#include "tinyscale/show/svg.hpp"

namespace tinyscale {
namespace detail {

inline std::string trace_event(const std::string& name, int device, std::size_t thread,
                               double start, double finish) {
  return cat({",\n{\"ph\": \"X\", \"name\": \"", json_escape(name), "\", \"pid\": ", device,
              ", \"tid\": ", thread, ", \"ts\": ", printed('f', 6, start * 1e6),
              ", \"dur\": ", printed('f', 6, (finish - start) * 1e6), "}"});
}

}  // namespace detail

inline std::string trace_json(const MeshRun& run) {
  const detail::CallLines lines = detail::call_lines(run.log());
  List<List<detail::CallBar>> bars = detail::call_bars(run, run.devices(), HUGE_VAL);
  std::string out =
      "[{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": 0, \"args\": "
      "{\"name\": \"device 0\"}}";
  for (int d = 1; d < run.devices(); ++d) {
    out += detail::cat({",\n{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": ", d,
                        ", \"args\": {\"name\": \"device ", d, "\"}}"});
  }
  for (const TimedSpan& span : run.timeline.spans) {
    out += detail::trace_event(span.call < 0 ? "compute" : "wait", span.device, 0, span.start,
                               span.finish);
  }
  for (int d = 0; d < run.devices(); ++d) {
    List<detail::CallBar>& of_device = bars[static_cast<std::size_t>(d)];
    detail::set_lanes(of_device);
    for (const detail::CallBar& bar : of_device) {
      out += detail::trace_event(lines.names[lines.of_call[static_cast<std::size_t>(bar.call)]], d,
                                 bar.lane + 1, bar.start[0], bar.finish.back());
    }
  }
  return out + "]\n";
}

// An old file stays whole when the new one cannot be written.
inline void save_trace(const MeshRun& run, const std::string& path) {
  detail::save_text("save_trace", path, trace_json(run));
}

}  // namespace tinyscale
