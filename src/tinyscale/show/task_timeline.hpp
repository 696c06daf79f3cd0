#pragma once
// A Gantt chart of a step in simulated time: for each device a track of its tasks, coloured by
// class, with its waits pale between them and the names ("F0") above; below it a lane for each axis
// of the mesh with what the device sent and received along it.

#include <algorithm>  // find, max, min
#include <cstddef>
#include <string>
#include <vector>

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/mesh/time_breakdown.hpp"
#include "tinyscale/show/device_timeline.hpp"
#include "tinyscale/show/step_colors.hpp"
#include "tinyscale/show/svg.hpp"

namespace tinyscale {
namespace detail {

// A stretch of a track. Spans of one style that touch are one.
struct TrackPart {
  std::size_t style = 0;
  int task = -1;
  double start = 0, finish = 0;  // seconds
};

// The axes that calls are over, in the order of the log, and which each call's is.
struct AxisLanes {
  std::vector<std::string> names;
  std::vector<std::size_t> of_call;

  explicit AxisLanes(const MeshRun& run) {
    for (std::size_t c = 0; c < run.log().calls.size(); ++c) {
      const std::string axes = run.axes_of_call(c);
      const auto known = std::find(names.begin(), names.end(), axes);
      of_call.push_back(static_cast<std::size_t>(known - names.begin()));
      if (known == names.end()) {
        names.push_back(axes);
      }
    }
  }
};

// What each device did when. A task is told from the next of its class; a stretch of less than
// `instant` goes to the one before, which nobody would see.
inline List<List<TrackPart>> task_tracks(const MeshRun& run, const TaskNames& names,
                                         const TimeTable& table, const AxisLanes& lanes,
                                         double instant) {
  List<List<TrackPart>> tracks(static_cast<std::size_t>(run.devices()));
  std::vector<std::size_t> wait_rows, compute_rows;
  TimeTable known = table;
  for (const std::string& axes : lanes.names) {
    wait_rows.push_back(known.row(names.wait_for(axes), TimeShare::Kind::wait));
  }
  for (std::size_t t = 0; t < names.classes.size(); ++t) {
    compute_rows.push_back(
        known.row(names.class_of(static_cast<int>(t)), TimeShare::Kind::compute));
  }
  const std::size_t other = known.row("compute", TimeShare::Kind::compute);
  for (const TimedSpan& span : run.timeline.spans) {
    List<TrackPart>& track = tracks[static_cast<std::size_t>(span.device)];
    TrackPart next;
    next.task = span.task;
    next.start = span.start;
    next.finish = span.finish;
    const std::size_t t = static_cast<std::size_t>(span.task);
    next.style = span.call >= 0
                     ? wait_rows[lanes.of_call[static_cast<std::size_t>(span.call)]]
                     : (span.task >= 0 && t < compute_rows.size() ? compute_rows[t] : other);
    const bool same = !track.empty() && track.back().style == next.style &&
                      (track.back().task == next.task || span.call >= 0);
    if (!track.empty() && (same || next.finish - next.start < instant)) {
      track.back().finish = next.finish;
    } else {
      track.push_back(next);
    }
  }
  return tracks;
}

// When the device was busy along each axis, by lane; messages that touch are one.
inline List<List<TrackPart>> axis_tracks(const MeshRun& run, int device, const AxisLanes& lanes,
                                         double instant) {
  List<List<TrackPart>> tracks(lanes.names.size());
  for (const TimedMessage& message : run.timeline.messages) {
    if (message.from != device && message.to != device) {
      continue;
    }
    List<TrackPart>& track = tracks[lanes.of_call[static_cast<std::size_t>(message.call)]];
    if (!track.empty() && message.start <= track.back().finish + instant) {
      track.back().finish = std::max(track.back().finish, message.finish);
    } else {
      track.push_back({0, -1, message.start, message.finish});
    }
  }
  return tracks;
}

// The name of each task above its compute, from its first to its last, where it fits.
inline void label_tasks(Canvas& canvas, const List<TrackPart>& track, const TimeTable& table,
                        const TaskNames& names, const TimeScale& scale, double y) {
  for (std::size_t i = 0; i < track.size();) {
    const int task = track[i].task;
    double start = -1, finish = 0;
    for (; i < track.size() && track[i].task == task; ++i) {
      if (table.rows[track[i].style].kind == TimeShare::Kind::compute) {
        start = start < 0 ? track[i].start : start;
        finish = track[i].finish;
      }
    }
    const std::string name = names.name_of(task);
    const double wide = scale.x(finish) - scale.x(start);
    const double size = std::min(11.0, (wide - 3) / std::max(1.0, drawn_width(name, 1)));
    if (task >= 0 && start >= 0 && size >= 7) {
      canvas.label((scale.x(start) + scale.x(finish)) / 2, y - 2, name, size, Anchor::middle);
    }
  }
}

}  // namespace detail

// Of the first 16 devices, or those named: one of each stage of a pipeline is a good choice.
inline Svg device_timeline(const MeshRun& run, const TaskNames& names,
                           const std::vector<int>& ranks = std::vector<int>()) {
  using detail::Anchor;
  using detail::Canvas;
  const std::vector<int> devices = detail::drawn_devices("device_timeline", run, ranks, 16);
  const detail::TimeTable table = detail::time_table(run, names);
  const detail::AxisLanes lanes(run);
  const List<detail::Swatch> all = detail::swatches_of(table.rows);
  const List<detail::Swatch> legend = detail::legend_of(table);
  const double right = 1176, lane = 9;
  const double head = 13, track = head + 22 + lane * static_cast<double>(lanes.names.size()) + 8;
  Canvas unseen(0, 0);
  const double first = names.note.empty() ? 72 : 89;
  const double top = detail::draw_swatches(unseen, legend, 20, right, first);
  const double bottom = top + track * static_cast<double>(devices.size());
  const detail::TimeScale scale(132, right, run.seconds);
  const double instant = 0.3 * scale.seconds / (right - scale.left);
  Canvas canvas(1200, bottom + 46);
  detail::draw_heading(
      canvas, "Tasks of each device on " + run.machine().name + detail::left_out(run, devices),
      "solid: compute, its task's name above; pale: waits for communication; thin lanes: messages "
      "along that axis");
  if (!names.note.empty()) {
    canvas.label(20, 64, names.note, 12, Anchor::start, Canvas::soft());
  }
  detail::draw_swatches(canvas, legend, 20, right, first);
  detail::draw_time_axis(canvas, scale.left, right, top, bottom, scale.seconds);
  const List<List<detail::TrackPart>> tracks =
      detail::task_tracks(run, names, table, lanes, instant);
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const double y = top + head + track * static_cast<double>(i);
    canvas.label(20, y + 14, detail::cat({"device ", devices[i]}), 12, Anchor::start);
    const List<detail::TrackPart>& tasks = tracks[static_cast<std::size_t>(devices[i])];
    for (const detail::TrackPart& stretch : tasks) {
      const double wide = scale.x(stretch.finish) - scale.x(stretch.start);
      canvas.rect(scale.x(stretch.start), y, std::max(0.3, wide - (wide > 4 ? 1 : 0)), 20,
                  all[stretch.style].style);
    }
    const double end = run.timeline.devices[static_cast<std::size_t>(devices[i])].end;
    if (end < run.seconds) {
      canvas.rect(scale.x(end), y, right - scale.x(end), 20, detail::idle_fill());
    }
    detail::label_tasks(canvas, tasks, table, names, scale, y);
    const List<List<detail::TrackPart>> busy = detail::axis_tracks(run, devices[i], lanes, instant);
    for (std::size_t a = 0; a < busy.size(); ++a) {
      const double at = y + 22 + lane * static_cast<double>(a);
      canvas.label(scale.left - 6, at + 7,
                   lanes.names[a].empty() ? "sends" : detail::shorten(lanes.names[a], 22), 9,
                   Anchor::end, Canvas::soft());
      for (const detail::TrackPart& stretch : busy[a]) {
        canvas.rect(scale.x(stretch.start), at,
                    std::max(0.5, scale.x(stretch.finish) - scale.x(stretch.start)), lane - 2,
                    "class=\"ts-soft\" fill=\"#57606a\" fill-opacity=\"0.7\"");
      }
    }
  }
  std::string text = detail::cat({run.machine().name, ": ", run.devices(), " devices, ",
                                  format_seconds(run.seconds), "; tasks"});
  for (const detail::Swatch& swatch : legend) {
    text += ", " + swatch.name;
  }
  return canvas.finish(text);
}

}  // namespace tinyscale
