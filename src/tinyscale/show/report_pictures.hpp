#pragma once
// Pictures of whole reports: the losses of a training run, the last step of one on a mesh, the
// bytes over the links of a mesh run.

#include <string>  // string
#include <vector>  // vector

#include "tinyscale/mesh/mesh_run.hpp"
#include "tinyscale/parallel/train_report.hpp"
#include "tinyscale/show/heat_map.hpp"
#include "tinyscale/show/memory_timeline.hpp"
#include "tinyscale/show/pictures.hpp"
#include "tinyscale/show/run_trace.hpp"
#include "tinyscale/show/step_pictures.hpp"
#include "tinyscale/show/task_timeline.hpp"

namespace tinyscale {

// Training and validation loss against the step.
inline Svg svg(const TrainReport& report) {
  LossCurve curve;
  curve.title = detail::cat({"Loss of ", report.model, " on ", report.text});
  for (std::size_t i = 0; i < report.losses.size(); ++i) {
    curve.train_steps.push_back(static_cast<double>(i));
    curve.train.push_back(report.losses[i]);
  }
  for (const Validation& v : report.validation) {
    curve.validation_steps.push_back(static_cast<double>(v.step));
    curve.validation.push_back(v.loss);
  }
  return svg(curve);
}

namespace detail {

inline const MeshRun& last_run(const char* function, const TrainReport& report) {
  if (!report.last_step) {
    fail({function, ": the report is of a training on one device by itself, of which no simulated ",
          "time is known; options.machine and options.layout of several devices are right"});
  }
  return *report.last_step;
}

}  // namespace detail

// Of the last step of a training on a mesh: a Gantt chart; where its time went, mean of the
// devices; the memory of each device; and all of it for Perfetto.
inline Svg device_timeline(const TrainReport& report,
                           const std::vector<int>& ranks = std::vector<int>()) {
  return device_timeline(detail::last_run("device_timeline", report), report.step.tasks, ranks);
}
inline Svg waterfall(const TrainReport& report) {
  detail::last_run("waterfall", report);
  return waterfall(report.step.time, detail::cat({"A step on ", report.devices, " devices"}));
}
inline Svg memory_timeline(const TrainReport& report,
                           const std::vector<int>& ranks = std::vector<int>()) {
  return memory_timeline(detail::last_run("memory_timeline", report), ranks);
}
inline void save_trace(const TrainReport& report, const std::string& path) {
  save_trace(detail::last_run("save_trace", report), path, report.step.tasks);
}

// Bytes that crossed each link, from device (row) to device (column); a switch comes last.
inline Svg svg(const MeshRun& run) {
  LinkHeatMap map;
  const auto devices = static_cast<std::size_t>(run.devices());
  bool switched = false;
  for (const Links& links : run.machine().links) {
    switched = switched || links.kind == AxisKind::switched;
  }
  const std::size_t n = devices + (switched ? 1 : 0);
  for (std::size_t i = 0; i < n && n > devices; ++i) {
    map.names.push_back(i < devices ? std::to_string(i) : "switch");
  }
  map.bytes.resize(n);
  for (std::vector<double>& row : map.bytes) {
    row.resize(n);
  }
  for (const LinkRow& link : run.links()) {
    if (!link.uplink) {  // its bytes are those of the ports behind it
      const std::size_t from = link.from < 0 ? devices : static_cast<std::size_t>(link.from);
      const std::size_t to = link.to < 0 ? devices : static_cast<std::size_t>(link.to);
      map.bytes[from][to] += link.bytes;
    }
  }
  return svg(map);
}

}  // namespace tinyscale
