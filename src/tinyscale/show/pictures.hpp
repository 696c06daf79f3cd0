#pragma once
// The roofline and the loss curve.
// Roofline: an op of I FLOPs per byte reaches at most min(peak, I x bandwidth) FLOPs per second
// (Williams, Waterman and Patterson 2009). A report's dots are its formula; its rings measured.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/hardware/chip.hpp"
#include "tinyscale/hardware/roofline.hpp"
#include "tinyscale/show/plot.hpp"
#include "tinyscale/show/svg.hpp"

namespace tinyscale {

struct RooflinePoint {
  std::string name;
  double flops_per_byte = 0;
  double flops_per_second = 0;           // by the formula; 0: none
  double measured_flops_per_second = 0;  // 0: not measured
};

struct Roof {
  std::string name;
  double bytes_per_second = 0;
};

struct RooflinePlot {
  std::string title;
  double peak_flops_per_second = 0;    // of matmuls
  double vector_flops_per_second = 0;  // 0: not drawn
  List<Roof> roofs;                    // one slope for each memory level
  List<RooflinePoint> points;
};

struct LossCurve {
  std::string title = "Loss";
  std::vector<double> train_steps, train;
  std::vector<double> validation_steps, validation;
  List<Series> others;  // other runs of the same training
};

namespace detail {

// A slope for each memory level up to its ridge, the flat peak, and the vector peak.
inline List<Series> roof_lines(const RooflinePlot& plot, double low, double high) {
  const double peak = plot.peak_flops_per_second;
  double first_ridge = high;
  for (const Roof& roof : plot.roofs) {
    first_ridge = std::min(first_ridge, peak / roof.bytes_per_second);
  }
  List<Series> lines = {
      {"matmul peak " + format_si(peak, "FLOP/s"), {first_ridge, high}, {peak, peak}, Mark::line}};
  for (const Roof& roof : plot.roofs) {
    const double ridge = std::min(high, peak / roof.bytes_per_second);
    lines.push_back({roof.name + " " + format_si(roof.bytes_per_second, "B/s"),
                     {low, ridge},
                     {low * roof.bytes_per_second, ridge * roof.bytes_per_second},
                     Mark::line});
  }
  const double vector_peak = plot.vector_flops_per_second;
  if (vector_peak > 0) {
    lines.push_back({"vector peak " + format_si(vector_peak, "FLOP/s"),
                     {low, high},
                     {vector_peak, vector_peak},
                     Mark::line});
  }
  return lines;
}

inline void check_roofline(const RooflinePlot& plot) {
  const auto limit = [](double rate) { return rate > 0 && is_finite(rate); };
  if (!limit(plot.peak_flops_per_second) || plot.roofs.empty()) {
    detail::fail({"svg: roofline \"", plot.title,
                  "\" has no peak or no memory level; give a peak above 0 and one roof or more"});
  }
  for (const Roof& roof : plot.roofs) {
    if (!limit(roof.bytes_per_second)) {
      detail::fail({"svg: roofline \"", plot.title, "\": memory level \"", roof.name,
                    "\" has no bandwidth; give bytes per second above 0"});
    }
  }
}

struct Box {
  double left, top, right, bottom;
};

inline bool overlap(const Box& a, const Box& b) {
  return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
}

// Small boxes along the lines, so that no number is written across one.
inline void take_lines(const Frame& frame, const List<Series>& lines, List<Box>& taken) {
  for (const Series& line : lines) {
    for (int i = 0; line.mark == Mark::line && i <= 120; ++i) {
      const double at = i / 120.0;
      const double x = frame.px(line.x[0]) + at * (frame.px(line.x[1]) - frame.px(line.x[0]));
      const double y = frame.py(line.y[0]) + at * (frame.py(line.y[1]) - frame.py(line.y[0]));
      taken.push_back({x - 1, y - 1, x + 1, y + 1});
    }
  }
}

// Writes a point's number beside it where nothing stands yet, else at the end of a thin leader.
inline void number_point(Canvas& canvas, const Frame& frame, List<Box>& taken, double x, double y,
                         const std::string& number) {
  const double wide = drawn_width(number, 12) + 2;
  for (const double reach : {9.0, 17.0, 27.0, 39.0, 53.0, 69.0}) {
    for (int turn = 0; turn < 12; ++turn) {
      const double angle = 3.14159265 * (-0.25 + turn / 6.0);
      const double cx = x + std::cos(angle) * (reach + wide / 2);
      const double cy = y + std::sin(angle) * (reach + 3);
      const Box box{cx - wide / 2, cy - 6, cx + wide / 2, cy + 6};
      const bool inside = box.left > frame.left + 2 && box.right < frame.right - 2 &&
                          box.top > frame.top + 2 && box.bottom < frame.bottom - 2;
      const bool free = std::none_of(taken.begin(), taken.end(),
                                     [&](const Box& other) { return overlap(box, other); });
      if (inside && free) {
        if (reach > 10) {
          canvas.line(x, y, cx, cy + (cy < y ? 5 : -5), Canvas::axis());
        }
        canvas.label(cx, cy + 4, number, 12, Anchor::middle, Canvas::bold());
        taken.push_back(box);
        return;
      }
    }
  }
}

// The first 24 points get their numbers, clear of every line, dot and ring.
inline void number_points(Canvas& canvas, const Frame& frame, const List<Series>& lines,
                          const Series& formula, const Series& measured) {
  List<Box> taken;
  take_lines(frame, lines, taken);
  for (const Series* dots : {&formula, &measured}) {
    for (std::size_t i = 0; i < dots->x.size(); ++i) {
      if (dots->y[i] > 0) {
        const double x = frame.px(dots->x[i]), y = frame.py(dots->y[i]);
        taken.push_back({x - 5, y - 5, x + 5, y + 5});
      }
    }
  }
  for (std::size_t i = 0; i < formula.x.size() && i < 24; ++i) {
    const double y = formula.y[i] > 0 ? formula.y[i] : measured.y[i];
    number_point(canvas, frame, taken, frame.px(formula.x[i]), frame.py(y), std::to_string(i + 1));
  }
}

// Numbers and names below the plot, in columns; what does not fit is counted.
inline void draw_key(Canvas& canvas, const List<RooflinePoint>& points, double width, double top,
                     std::size_t rows) {
  const std::size_t columns = 3, room = rows * columns;
  const double column = (width - 40) / static_cast<double>(columns);
  for (std::size_t i = 0; i < points.size() && i < room; ++i) {
    const std::size_t left = i / rows;  // columns before this one
    const double x = 20 + column * static_cast<double>(left);
    const double y = top + 17 * static_cast<double>(i % rows);
    std::string name = std::to_string(i + 1) + "  " + points[i].name;
    if (i + 1 == room && points.size() > room) {
      name = "... and " + std::to_string(points.size() - room + 1) + " more";
    }
    canvas.label(x, y, shorten(name, static_cast<std::size_t>(column / 6.6)), 11.5, Anchor::start);
  }
}

// The frame's limits: every point and every ridge inside, one decade of room around them.
inline void roofline_limits(const RooflinePlot& plot, Axis& x, Axis& y) {
  double low = 0, high = 0, bottom = 0;
  const auto widen = [&](double value) {
    low = low > 0 ? std::min(low, value) : value;
    high = std::max(high, value);
  };
  double fastest = 0;
  for (const Roof& roof : plot.roofs) {
    widen(plot.peak_flops_per_second / roof.bytes_per_second);
    fastest = std::max(fastest, roof.bytes_per_second);
  }
  for (const RooflinePoint& point : plot.points) {
    widen(point.flops_per_byte);
    for (const double speed : {point.flops_per_second, point.measured_flops_per_second}) {
      bottom = speed > 0 && (bottom <= 0 || speed < bottom) ? speed : bottom;
    }
  }
  x.low = low / 4;
  x.high = high * 6;
  double slowest = plot.peak_flops_per_second;
  for (const Roof& roof : plot.roofs) {
    slowest = std::min(slowest, x.low * roof.bytes_per_second);
  }
  y.low = (bottom > 0 ? std::min(bottom / 2, slowest * 4) : slowest);
  y.high = std::max(plot.peak_flops_per_second, plot.vector_flops_per_second) * 2.5;
}

// Points that a logarithmic plot can show; the names of the others go into `left_out`.
inline List<RooflinePoint> drawable_points(const RooflinePlot& plot, std::string& left_out) {
  List<RooflinePoint> points;
  for (const RooflinePoint& point : plot.points) {
    const bool speed = point.flops_per_second > 0 || point.measured_flops_per_second > 0;
    if (speed && point.flops_per_byte > 0 && detail::is_finite(point.flops_per_byte)) {
      points.push_back(point);
    } else {
      left_out += (left_out.empty() ? "" : ", ") + point.name;
    }
  }
  return points;
}

}  // namespace detail

// Dots: the formula. Rings: measured. Numbers are named below; ops without FLOPs are listed.
inline Svg svg(const RooflinePlot& given) {
  detail::check_roofline(given);
  RooflinePlot plot = given;
  std::string left_out;
  plot.points = detail::drawable_points(given, left_out);
  Plot axes;
  axes.title = plot.title;
  axes.x = {"arithmetic intensity, FLOP per byte", Scale::logarithmic, 0, 0};
  axes.y = {"FLOP per second", Scale::logarithmic, 0, 0};
  detail::roofline_limits(plot, axes.x, axes.y);
  axes.series = detail::roof_lines(plot, axes.x.low, axes.x.high);
  Series formula, measured;
  for (const RooflinePoint& point : plot.points) {
    formula.x.push_back(point.flops_per_byte);
    formula.y.push_back(point.flops_per_second);
    measured.x.push_back(point.flops_per_byte);
    measured.y.push_back(point.measured_flops_per_second);
  }
  formula.name = plot.points.empty() ? "" : "op, by formula";
  formula.mark = Mark::points;
  bool any_measured = false;
  for (const double speed : measured.y) {
    any_measured = any_measured || speed > 0;
  }
  measured.name = any_measured ? "op, measured" : "";
  measured.mark = Mark::hollow_points;
  axes.series.push_back(formula);
  axes.series.push_back(measured);
  const std::size_t rows = std::min<std::size_t>(8, (plot.points.size() + 2) / 3);
  const double key = 17 * static_cast<double>(rows) + (left_out.empty() ? 0 : 20);
  axes.height = 440;
  detail::Canvas canvas(axes.width, axes.height + key + (key > 0 ? 12 : 0));
  const detail::Frame frame = detail::draw_plot(canvas, axes);
  detail::number_points(canvas, frame, axes.series, formula, measured);
  detail::draw_key(canvas, plot.points, axes.width, axes.height + 6, rows);
  if (!left_out.empty()) {
    canvas.label(20, axes.height + 6 + 17 * static_cast<double>(rows),
                 detail::shorten("without FLOPs, not drawn: " + left_out, 100), 11.5,
                 detail::Anchor::start, detail::Canvas::soft());
  }
  return canvas.finish(plot.title + ": " + std::to_string(plot.points.size()) +
                       " ops under a peak of " + format_si(plot.peak_flops_per_second, "FLOP/s"));
}

// A profile's ops under the roof of a chip, priced in the report's number format.
inline Svg svg(const RooflineReport& report, const Chip& chip) {
  RooflinePlot plot;
  plot.title = "Roofline of " + chip.name + " in " + name_of(report.format);
  plot.peak_flops_per_second = chip.peak(report.format);
  plot.vector_flops_per_second = report.vector_flops;
  for (const MemoryLevel& level : chip.levels) {
    if (level.bandwidth > 0) {
      plot.roofs.push_back({level.name, level.bandwidth});
    }
  }
  const MemoryLevel main = detail::level_for(chip, HUGE_VAL);
  if (main.bandwidth > 0 && (plot.roofs.empty() || plot.roofs.back().name != main.name)) {
    plot.roofs.push_back({main.name, main.bandwidth});
  }
  for (const RooflineRow& row : report.rows) {
    const double flops = row.matmul_flops + row.vector_flops;
    RooflinePoint point;
    point.name = row.name + (row.shape.empty() ? "" : " " + row.shape);
    point.flops_per_byte = row.bytes > 0 ? flops / row.bytes : 0;
    point.flops_per_second = row.seconds > 0 ? flops / row.seconds : 0;
    const bool timed = report.on_host && row.measured > 0;
    point.measured_flops_per_second = timed ? flops / row.measured : 0;
    plot.points.push_back(point);
  }
  return svg(plot);
}

// Loss over steps: the training batch's and the validation split's.
inline Svg svg(const LossCurve& curve) {
  Plot plot;
  plot.title = curve.title;
  plot.x.label = "step";
  plot.y.label = "loss, nats per token";
  plot.series.push_back({"train", curve.train_steps, curve.train, Mark::line});
  if (!curve.validation.empty() || !curve.validation_steps.empty()) {
    plot.series.push_back({"validation", curve.validation_steps, curve.validation, Mark::line});
  }
  for (const Series& other : curve.others) {
    plot.series.push_back(other);
  }
  return svg(plot);
}

}  // namespace tinyscale
