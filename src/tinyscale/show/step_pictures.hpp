#pragma once
// Where a step's time went: a waterfall from the first second to the last, each share beginning
// where the one above ended; and a bar for each device.

#include <algorithm>  // max
#include <cstddef>
#include <string>
#include <vector>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/mesh/time_breakdown.hpp"
#include "tinyscale/show/device_timeline.hpp"
#include "tinyscale/show/step_colors.hpp"
#include "tinyscale/show/svg.hpp"

namespace tinyscale {

// waterfall(time_breakdown(run, 0, names), "Device 0")
inline Svg waterfall(const List<TimeShare>& shares, const std::string& title,
                     const char* kind = "simulated time") {
  using detail::Anchor;
  using detail::Canvas;
  double seconds = 0, widest = 0;
  for (const TimeShare& share : shares) {
    seconds += share.seconds;
    if (!(share.seconds >= 0) || !detail::is_finite(seconds)) {
      detail::fail({"waterfall: ", share.name, " has ", share.seconds,
                    " s; 0 or more is right, as time_breakdown gives"});
    }
    widest = std::max(widest, detail::drawn_width(detail::shorten(share.name, 40), 12));
  }
  const double left = std::max(90.0, widest + 30), row = 26, top = 64;
  const double bottom = top + row * static_cast<double>(shares.size() + 1) + 4;
  const detail::TimeScale scale(left, 760, seconds);
  Canvas canvas(900, bottom + 48);
  detail::draw_heading(canvas, detail::shorten(title + ": where the time went", 90),
                       "each bar begins where the one above ends; solid: compute, pale: waiting "
                       "for communication, grey: idle");
  detail::draw_time_axis(canvas, left, scale.right, top, bottom, scale.seconds, kind);
  const List<detail::Swatch> styles = detail::swatches_of(shares);
  double at = 0;
  std::string text = title + ": ";
  for (std::size_t i = 0; i <= shares.size(); ++i) {
    const bool whole = i == shares.size();
    const double y = top + row * static_cast<double>(i), from = whole ? 0 : at;
    const double part = whole ? seconds : shares[i].seconds;
    const std::string name = whole ? "= total" : detail::shorten(shares[i].name, 40);
    const std::string words =
        detail::cat({format_seconds(part), ", ", format_percent(part / scale.seconds)});
    const double x = scale.x(from), end = scale.x(from + part);
    canvas.label(left - 8, y + 18, name, 12, Anchor::end,
                 whole ? detail::Canvas::bold() : Canvas::ink());
    canvas.rect(x, y + 4, std::max(0.75, end - x), row - 7,
                whole ? "class=\"ts-soft\" fill=\"#57606a\"" : styles[i].style);
    canvas.label(end + 6, y + 18, words, 11, Anchor::start, Canvas::soft());
    if (!whole) {
      canvas.line(end, y + 4, end, y + row + 4, Canvas::axis() + " stroke-dasharray=\"2 2\"");
      at += part;
    }
    text += whole ? format_seconds(part) + " in all" : shares[i].name + " " + words + "; ";
  }
  return canvas.finish(text);
}

// A bar for each device (of the first 32, or those named), as long as the run.
inline Svg time_bars(const MeshRun& run, const TaskNames& names = TaskNames(),
                     const std::vector<int>& ranks = std::vector<int>()) {
  using detail::Anchor;
  using detail::Canvas;
  const std::vector<int> devices = detail::drawn_devices("time_bars", run, ranks, 32);
  const detail::TimeTable table = detail::time_table(run, names);
  const List<detail::Swatch> all = detail::swatches_of(table.rows);
  const List<detail::Swatch> legend = detail::legend_of(table);
  const double row = devices.size() > 16 ? 15 : 24, right = 876;
  Canvas unseen(0, 0);
  const double top = detail::draw_swatches(unseen, legend, 20, right, 72);
  const double bottom = top + row * static_cast<double>(devices.size()) + 2;
  const detail::TimeScale scale(84, right, run.seconds);
  Canvas canvas(900, bottom + 48);
  detail::draw_heading(
      canvas,
      "Where each device's time went, on " + run.machine().name + detail::left_out(run, devices),
      "solid: compute, pale: waiting for communication, grey: idle");
  detail::draw_swatches(canvas, legend, 20, right, 72);
  detail::draw_time_axis(canvas, scale.left, right, top, bottom, scale.seconds);
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const double y = top + row * static_cast<double>(i);
    canvas.label(scale.left - 8, y + row / 2 + 5, detail::cat({"device ", devices[i]}), 12,
                 Anchor::end, Canvas::soft());
    double at = 0;
    for (std::size_t r = 0; r < table.rows.size(); ++r) {
      const double part = table.seconds[static_cast<std::size_t>(devices[i])][r];
      if (part > 0) {
        canvas.rect(scale.x(at), y + 2, scale.x(at + part) - scale.x(at), row - 3, all[r].style);
      }
      at += part;
    }
  }
  std::string text = detail::cat({run.machine().name, ": ", run.devices(), " devices, ",
                                  format_seconds(run.seconds), "; on the mean"});
  for (const TimeShare& share : table.rows) {
    if (share.seconds > 0) {
      text += detail::cat({", ", share.name, " ", format_percent(share.seconds / scale.seconds)});
    }
  }
  return canvas.finish(text);
}

}  // namespace tinyscale
