#pragma once
// The memory of devices over simulated time: what was in use at the end of each task, by kind, one
// above the other; dashed the most that was in use within the task.

#include <algorithm>  // max
#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/measure/memory.hpp"
#include "tinyscale/mesh/mesh_run.hpp"
#include "tinyscale/show/device_timeline.hpp"
#include "tinyscale/show/plot.hpp"
#include "tinyscale/show/step_colors.hpp"
#include "tinyscale/show/svg.hpp"

namespace tinyscale {
namespace detail {

// Bytes on an axis whose ticks are whole in their unit.
struct ByteScale {
  double top = 0, bottom = 0, most = 1, unit = 1;  // most: bytes at the top
  std::string name = "B";

  ByteScale(double from, double to, double bytes)
      : top(from), bottom(to), most(bytes > 0 ? bytes : 1) {
    static const char* const names[] = {"kB", "MB", "GB", "TB", "PB"};
    for (std::size_t i = 0; i < 5 && most / unit >= 1000; ++i) {
      unit *= 1000;
      name = names[i];
    }
  }
  double y(double bytes) const { return bottom - bytes / most * (bottom - top); }
};

inline void draw_samples(Canvas& canvas, const List<MemorySample>& samples, const TimeScale& time,
                         const ByteScale& bytes) {
  std::vector<double> x, below, above, peak_x, peak_y;
  for (const MemorySample& sample : samples) {
    x.push_back(time.x(sample.seconds));
    below.push_back(0);
  }
  for (std::size_t kind = 0; kind < samples[0].levels.size(); ++kind) {
    above = below;
    bool any = false;
    for (std::size_t i = 0; i < samples.size(); ++i) {
      above[i] += samples[i].levels[kind];
      any = any || samples[i].levels[kind] > 0;
    }
    std::vector<double> xs(x), ys;
    for (const double level : above) {
      ys.push_back(bytes.y(level));
    }
    for (std::size_t i = samples.size(); i-- > 0;) {
      xs.push_back(x[i]);
      ys.push_back(bytes.y(below[i]));
    }
    if (any) {
      canvas.area(xs, ys, Canvas::fill(kind));
    }
    below = above;
  }
  for (std::size_t i = 1; i < samples.size(); ++i) {
    for (const std::size_t end : {i - 1, i}) {
      peak_x.push_back(x[end]);
      peak_y.push_back(bytes.y(samples[i].peak_total));
    }
  }
  if (!peak_x.empty()) {
    canvas.path(peak_x, peak_y, Canvas::axis() + " stroke-width=\"1.3\" stroke-dasharray=\"4 2\"");
  }
}

}  // namespace detail

// Of the first 8 devices, or those named; all on one scale.
inline Svg memory_timeline(const MeshRun& run, const std::vector<int>& ranks = std::vector<int>()) {
  using detail::Anchor;
  using detail::Canvas;
  const std::vector<int> devices = detail::drawn_devices("memory_timeline", run, ranks, 8);
  List<List<MemorySample>> all;
  double most = 0;
  std::array<bool, MemoryMeter::kinds> used{};
  for (const int rank : devices) {
    all.push_back(run.memory_samples(rank));
    if (all.back().empty()) {
      detail::fail({"memory_timeline: device ", rank,
                    " took no samples; device.task(tag) in its program takes one"});
    }
    for (const MemorySample& sample : all.back()) {
      most = std::max(most, sample.peak_total);
      for (std::size_t kind = 0; kind < used.size(); ++kind) {
        used[kind] = used[kind] || sample.levels[kind] > 0;
      }
    }
  }
  List<detail::Swatch> legend;
  for (std::size_t kind = 0; kind < used.size(); ++kind) {
    if (used[kind]) {
      legend.push_back({name_of(static_cast<MemoryKind>(kind)), Canvas::fill(kind)});
    }
  }
  const double left = 92, right = 876;
  const double panel = devices.size() == 1 ? 260 : devices.size() < 5 ? 130 : 90;
  Canvas unseen(0, 0);
  const double first = detail::draw_swatches(unseen, legend, 20, right, 72);
  const double bottom = first + (panel + 22) * static_cast<double>(devices.size()) - 4;
  Canvas canvas(900, bottom + 46);
  detail::draw_heading(
      canvas, "Memory of each device on " + run.machine().name + detail::left_out(run, devices),
      "areas: in use at the end of each task, by kind; dashed: the most within the task");
  detail::draw_swatches(canvas, legend, 20, right, 72);
  const detail::TimeScale time(left, right, run.seconds);
  detail::draw_time_axis(canvas, left, right, first, bottom, time.seconds);
  std::string text = "memory on " + run.machine().name;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const double top = first + (panel + 22) * static_cast<double>(i) + 16;
    const detail::ByteScale bytes(top, top + panel, most * 1.04);
    const Axis axis = {"", Scale::linear, 0, bytes.most / bytes.unit};
    double labelled = bytes.bottom + 14;
    for (const double tick : detail::linear_ticks(axis)) {
      const double y = bytes.y(tick * bytes.unit);
      canvas.line(left, y, right, y, Canvas::grid());
      if (labelled - y >= 14) {  // else it would touch the one below
        labelled = y;
        canvas.label(left - 7, y + 4, detail::tick_text(tick), 11, Anchor::end, Canvas::soft());
      }
    }
    detail::draw_samples(canvas, all[i], time, bytes);
    canvas.line(left, bytes.bottom, right, bytes.bottom, Canvas::axis());
    double peak = 0;
    for (const MemorySample& sample : all[i]) {
      peak = std::max(peak, sample.peak_total);
    }
    canvas.label(left, top - 4,
                 detail::cat({"device ", devices[i], ", at most ", format_bytes(peak)}), 12,
                 Anchor::start);
    canvas.label_upward(34, top + panel / 2, bytes.name, 12);
    text +=
        detail::cat({i == 0 ? ": " : ", ", "device ", devices[i], " at most ", format_bytes(peak)});
  }
  return canvas.finish(text);
}

}  // namespace tinyscale
