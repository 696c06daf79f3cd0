#pragma once
// What every device of a mesh run did when, in simulated time: above, its compute and the waits
// that nothing hides; below, its messages, those of one line of the program in one colour.

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/order.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/mesh/mesh_run.hpp"
#include "tinyscale/show/plot.hpp"
#include "tinyscale/show/svg.hpp"

namespace tinyscale {
namespace detail {

// Messages of one call at one device, those next to each other as one stretch from start[i] to
// finish[i]. Bars of a device are in the order of their calls.
struct CallBar {
  int call = 0;
  std::size_t lane = 0;
  std::vector<double> start, finish;  // seconds
};

// A name for each line of the program that communicates, and which line each call is of.
struct CallLines {
  std::vector<std::string> names;
  std::vector<std::size_t> of_call;
};

inline CallLines call_lines(const RunLog& log) {
  CallLines lines;
  for (const LoggedCall& call : log.calls) {
    const CallShape& shape = *call.shape;
    const std::string name = cat(
        {shape.name, shape.axes.empty() ? "" : " over ", shape.axes, ", ", line_text(call.where)});
    const auto known = std::find(lines.names.begin(), lines.names.end(), name);
    lines.of_call.push_back(static_cast<std::size_t>(known - lines.names.begin()));
    if (known == lines.names.end()) {
      lines.names.push_back(name);
    }
  }
  return lines;
}

// `instant`: what is shorter is drawn with its neighbour.
inline void add_message(List<CallBar>& bars, const TimedMessage& message, double instant) {
  std::size_t i = bars.size();
  while (i > 0 && bars[i - 1].call > message.call) {
    --i;
  }
  if (i == 0 || bars[i - 1].call != message.call) {
    bars.push_back({});
    for (std::size_t k = bars.size() - 1; k > i; --k) {
      bars[k] = bars[k - 1];
    }
    bars[i++] = {message.call, 0, {}, {}};
  }
  CallBar& bar = bars[i - 1];
  if (bar.start.empty() || (message.start > bar.finish.back() - 0.01 * instant &&
                            bar.finish.back() - bar.start.back() > instant)) {
    bar.start.push_back(message.start);
    bar.finish.push_back(message.finish);
  } else {
    bar.finish.back() = std::max(bar.finish.back(), message.finish);
  }
}

// Of the first `devices` devices.
inline List<List<CallBar>> call_bars(const MeshRun& run, int devices, double instant) {
  List<List<CallBar>> bars(static_cast<std::size_t>(devices));
  for (const TimedMessage& message : run.timeline.messages) {
    for (const int end : {message.from, message.to}) {
      if (end < devices) {
        add_message(bars[static_cast<std::size_t>(end)], message, instant);
      }
    }
  }
  return bars;
}

// Calls at the same time lie in lanes of their own; returns how many there are.
inline std::size_t set_lanes(List<CallBar>& bars) {
  std::vector<double> starts, ends;
  for (const CallBar& bar : bars) {
    starts.push_back(bar.start[0]);
  }
  for (const std::size_t i : stable_order(starts)) {
    CallBar& bar = bars[i];
    while (bar.lane < ends.size() && ends[bar.lane] > bar.start[0] * (1 + 1e-9)) {
      ++bar.lane;
    }
    ends.resize(std::max(ends.size(), bar.lane + 1));
    ends[bar.lane] = bar.finish.back();
  }
  return ends.size();
}

// Six lines of the program have colours of their own, what comes after them the sixth.
inline std::size_t color_of(std::size_t line) { return std::min<std::size_t>(line, 5); }

inline List<Series> line_legend(const CallLines& lines) {
  List<Series> legend(7);
  for (std::size_t i = 0; i < std::min<std::size_t>(lines.names.size(), 6); ++i) {
    legend[i].name = lines.names[i];
    legend[i].mark = Mark::points;
  }
  if (lines.names.size() > 6) {
    legend[5].name = cat({lines.names.size() - 5, " other lines"});
  }
  legend[6].name = "compute; pale: waits";
  legend[6].mark = Mark::points;
  return legend;
}

// Ticks of time below the tracks; `kind` says where the time is from.
inline void draw_time_axis(Canvas& canvas, double left, double right, double top, double bottom,
                           double seconds, const char* kind = "simulated time") {
  static const char* const units[] = {"s", "ms", "us", "ns"};
  double shown = seconds;
  int unit = 0;
  while (shown < 1 && unit < 3) {
    shown *= 1000;
    ++unit;
  }
  for (const double tick : linear_ticks({"", Scale::linear, 0, shown})) {
    const double x = left + tick / shown * (right - left);
    canvas.line(x, top, x, bottom, Canvas::grid());
    canvas.label(x, bottom + 17, tick_text(tick), 12, Anchor::middle, Canvas::soft());
  }
  canvas.label((left + right) / 2, bottom + 36, cat({kind, ", ", units[unit]}), 13, Anchor::middle);
}

}  // namespace detail

// Of the first 16 devices. A run of more than 4 million messages has no record of them.
inline Svg device_timeline(const MeshRun& run) {
  using detail::Anchor;
  using detail::Canvas;
  const int devices = std::min(run.devices(), 16);
  const detail::CallLines lines = detail::call_lines(run.log());
  const double left = 84, right = 876, seconds = run.seconds > 0 ? run.seconds : 1;
  const double scale = (right - left) / seconds;  // pixels a second
  List<List<detail::CallBar>> bars = detail::call_bars(run, devices, 3 / scale);
  std::size_t lanes = 1;
  for (List<detail::CallBar>& of_device : bars) {
    lanes = std::max(lanes, detail::set_lanes(of_device));
  }
  const double lane = lanes > 3 ? 4 : 9, track = 16 + lane * static_cast<double>(lanes) + 8;
  const List<Series> legend = detail::line_legend(lines);
  Canvas unseen(0, 0);
  const double top = detail::draw_legend(unseen, legend, 14, right, 54);
  const double bottom = top + track * devices;
  Canvas canvas(900, bottom + 46);
  canvas.heading("Devices on " + run.machine().name +
                 (devices < run.devices()
                      ? detail::cat({" (", devices, " of ", run.devices(), " devices)"})
                      : ""));
  detail::draw_legend(canvas, legend, 14, right, 54);
  detail::draw_time_axis(canvas, left, right, top, bottom, seconds);
  for (const TimedSpan& span : run.timeline.spans) {
    if (span.device < devices) {
      canvas.rect(left + span.start * scale, top + track * span.device,
                  (span.finish - span.start) * scale, 14,
                  span.call < 0 ? Canvas::fill(6) : "class=\"ts-empty\" fill=\"#e3e6ea\"");
    }
  }
  for (int d = 0; d < devices; ++d) {
    const double y = top + track * d;
    canvas.label(left - 8, y + 12, detail::cat({"device ", d}), 12, Anchor::end, Canvas::soft());
    for (const detail::CallBar& bar : bars[static_cast<std::size_t>(d)]) {
      const std::string fill =
          Canvas::fill(detail::color_of(lines.of_call[static_cast<std::size_t>(bar.call)]));
      for (std::size_t i = 0; i < bar.start.size(); ++i) {
        const double wide = (bar.finish[i] - bar.start[i]) * scale;
        canvas.rect(left + bar.start[i] * scale, y + 16 + lane * static_cast<double>(bar.lane),
                    std::max(0.5, wide - (wide > 3 ? 1 : 0)), lane - 1, fill);
      }
    }
  }
  double compute = 0, waiting = 0;
  for (const TimedDevice& device : run.timeline.devices) {
    compute = std::max(compute, device.compute);
    waiting = std::max(waiting, device.waiting);
  }
  return canvas.finish(
      detail::cat({run.machine().name, ": ", run.devices(), " devices, ",
                   format_seconds(run.seconds), "; at most ", format_seconds(compute),
                   " compute and ", format_seconds(waiting), " waiting on one"}));
}

}  // namespace tinyscale
