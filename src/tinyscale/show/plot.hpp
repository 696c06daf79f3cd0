#pragma once
// Lines and points over two axes, each linear or logarithmic.
// A value that is not finite, or not positive on a logarithmic axis, is left out; what lies
// outside the axes is cut at the frame.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/show/svg.hpp"

namespace tinyscale {

enum class Scale { linear, logarithmic };
enum class Mark { line, points, hollow_points };

struct Axis {
  std::string label;  // with its unit: "loss, nats per token"
  Scale scale = Scale::linear;
  double low = 0, high = 0;  // low == high: taken from the data
};

struct Series {
  std::string name;  // empty: not in the legend
  std::vector<double> x, y;
  Mark mark = Mark::line;
  int color = -1;  // of the palette; -1: its place among the series
};

struct Plot {
  std::string title;
  Axis x, y;
  List<Series> series;
  double width = 720, height = 420;
};

namespace detail {

// Beyond it no room around the values would be a finite number.
constexpr double most_drawable = 1e307;

inline bool drawable(const Axis& axis, double value) {
  return is_finite(value) && std::fabs(value) <= most_drawable &&
         (axis.scale == Scale::linear || value > 0);
}

// Whether limits are so near to each other that a dozen digits, which is what a tick may have, do
// not tell its neighbours apart; their doubles may be the same.
inline bool too_near(double low, double high) {
  return high - low <= 1e-9 * std::max(std::fabs(low), std::fabs(high));
}

// 1500 -> "1.5k", 2e12 -> "2T", 999,960 -> "1M": short enough for a tick.
inline std::string tick_text(double value, int digits = 4) {
  static const char* const suffixes[] = {"", "k", "M", "G", "T", "P", "E"};
  double shown = value;
  for (const char* const suffix : suffixes) {
    const std::string text = printed('g', digits, shown);
    if (std::fabs(read_decimal(text)) < 1000) {  // as rounded
      return text + suffix;
    }
    shown /= 1000;
  }
  return printed('g', digits, value);
}

// Limits from the data where the user gave none.
inline Axis fitted(Axis axis, const std::vector<double>& values) {
  const bool logarithmic = axis.scale == Scale::logarithmic;
  if (axis.low == axis.high) {
    bool any = false;
    for (const double value : values) {
      if (drawable(axis, value)) {
        axis.low = any ? std::min(axis.low, value) : value;
        axis.high = any ? std::max(axis.high, value) : value;
        any = true;
      }
    }
    if (!any) {
      axis.low = logarithmic ? 0.1 : 0;
      axis.high = 1;
    } else if (logarithmic) {
      axis.low /= 1.3;
      axis.high *= 1.3;
    } else {
      const double room = too_near(axis.low, axis.high)  // as a constant is drawn
                              ? std::max(0.5, 0.1 * std::fabs(axis.high))
                              : 0.04 * (axis.high - axis.low);
      axis.low = axis.low >= 0 && axis.low < 2 * room ? 0 : axis.low - room;
      axis.high += room;
    }
  }
  const bool finite = is_finite(axis.low) && is_finite(axis.high) &&
                      std::fabs(axis.low) <= 2 * most_drawable &&
                      std::fabs(axis.high) <= 2 * most_drawable;
  if (!finite || axis.low >= axis.high || (logarithmic && axis.low <= 0)) {
    detail::fail({"svg: axis \"", axis.label, "\" runs from ", tick_text(axis.low), " to ",
                  tick_text(axis.high), "; low must be below high",
                  logarithmic ? ", and above 0 on a logarithmic axis" : "",
                  finite ? "" : ", both within 1e307 of 0"});
  }
  if (too_near(axis.low, axis.high)) {
    detail::fail(
        {"svg: axis \"", axis.label, "\" runs from ", printed('g', 17, axis.low), " to ",
         printed('g', 17, axis.high), ", a billionth of these numbers or less, which no ",
         "tick can show; limits further apart, or values less what they share, are right"});
  }
  return axis;
}

inline std::vector<double> linear_ticks(const Axis& axis) {
  const double span = axis.high - axis.low;
  double step = std::pow(10.0, std::floor(std::log10(span / 5)));
  for (const double factor : {2.0, 2.5, 2.0}) {  // 1, 2, 5, 10
    step *= span / step > 7 ? factor : 1;
  }
  std::vector<double> ticks;
  const double first = std::ceil(axis.low / step - 1e-9);
  for (double i = first; i * step <= axis.high + 1e-9 * span && ticks.size() < 20; ++i) {
    ticks.push_back(i * step + 0.0);  // + 0.0: never "-0"
  }
  return ticks;
}

inline std::vector<double> log_ticks(const Axis& axis) {
  const double decades = std::log10(axis.high) - std::log10(axis.low);
  const int stride = std::max(1, static_cast<int>(std::ceil(decades / 8)));
  std::vector<double> ticks;
  const int first = static_cast<int>(std::floor(std::log10(axis.low)));
  for (int e = first; e <= first + static_cast<int>(decades) + 2; e += stride) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double tick = factor * std::pow(10.0, e);
      const bool wanted = factor < 1.5 || decades < 2.5;
      if (wanted && tick >= axis.low * (1 - 1e-9) && tick <= axis.high * (1 + 1e-9)) {
        ticks.push_back(tick);
      }
    }
  }
  return ticks;
}

// Where a logarithmic axis is so short that one power of ten or none lies on it, linear ones.
inline std::vector<double> ticks_of(const Axis& axis, bool& linear) {
  const std::vector<double> powers =
      axis.scale == Scale::linear ? std::vector<double>() : log_ticks(axis);
  linear = powers.size() < 2;
  return linear ? linear_ticks(axis) : powers;
}

// The ticks of an axis in words, with the digits in which neighbours differ.
inline std::vector<std::string> tick_texts(const Axis& axis) {
  bool linear = false;
  const std::vector<double> ticks = ticks_of(axis, linear);
  int digits = 4;
  if (linear && ticks.size() > 1) {
    const double most = std::max(std::fabs(ticks.front()), std::fabs(ticks.back()));
    const double parts = most / (ticks[1] - ticks[0]);
    digits = std::max(4, std::min(12, 2 + static_cast<int>(std::log10(parts * (1 + 1e-9)))));
  }
  std::vector<std::string> out;
  for (const double tick : ticks) {
    out.push_back(tick_text(tick, digits));
  }
  return out;
}

// The rectangle of a plot: values in, pixels out.
struct Frame {
  Axis x, y;
  double left = 0, right = 0, top = 0, bottom = 0;

  // What is a million times the axis away is drawn as if it were there: a line from further away
  // would be cut with an error that is seen.
  static double share(const Axis& axis, double value) {
    const double share =
        axis.scale == Scale::linear
            ? (value - axis.low) / (axis.high - axis.low)
            : (std::log(value) - std::log(axis.low)) / (std::log(axis.high) - std::log(axis.low));
    return std::max(-1e6, std::min(1e6, share));
  }
  double px(double value) const { return left + share(x, value) * (right - left); }
  double py(double value) const { return bottom - share(y, value) * (bottom - top); }
  bool holds(double a, double b) const {
    return a >= left - 0.01 && a <= right + 0.01 && b >= top - 0.01 && b <= bottom + 0.01;
  }
};

inline double widest_of(const std::vector<std::string>& texts) {  // at size 12
  double widest = 0;
  for (const std::string& text : texts) {
    widest = std::max(widest, drawn_width(text, 12));
  }
  return widest;
}

inline void draw_axes(Canvas& canvas, const Frame& frame) {
  bool linear = false;
  const std::vector<double> ticks_x = ticks_of(frame.x, linear),
                            ticks_y = ticks_of(frame.y, linear);
  const std::vector<std::string> texts_x = tick_texts(frame.x), texts_y = tick_texts(frame.y);
  for (std::size_t i = 0; i < ticks_x.size(); ++i) {
    const double at = frame.px(ticks_x[i]);
    canvas.line(at, frame.top, at, frame.bottom, Canvas::grid());
    canvas.label(at, frame.bottom + 17, texts_x[i], 12, Anchor::middle, Canvas::soft());
  }
  for (std::size_t i = 0; i < ticks_y.size(); ++i) {
    const double at = frame.py(ticks_y[i]);
    canvas.line(frame.left, at, frame.right, at, Canvas::grid());
    canvas.label(frame.left - 7, at + 4, texts_y[i], 12, Anchor::end, Canvas::soft());
  }
  canvas.line(frame.left, frame.bottom, frame.right, frame.bottom, Canvas::axis());
  canvas.line(frame.left, frame.top, frame.left, frame.bottom, Canvas::axis());
  const auto letters = [](double from, double to) {
    return static_cast<std::size_t>(std::max(4.0, (to - from + 96) / 7.8));
  };
  canvas.label((frame.left + frame.right) / 2, frame.bottom + 38,
               shorten(frame.x.label, letters(frame.left, frame.right)), 13, Anchor::middle);
  canvas.label_upward(frame.left - widest_of(texts_y) - 16, (frame.top + frame.bottom) / 2,
                      shorten(frame.y.label, letters(frame.top, frame.bottom)), 13);
}

// The part of a segment that lies in the frame (Liang and Barsky); false if none does.
inline bool cut(const Frame& frame, double& x1, double& y1, double& x2, double& y2) {
  const double dx = x2 - x1, dy = y2 - y1;
  const double p[] = {-dx, dx, -dy, dy};
  const double q[] = {x1 - frame.left, frame.right - x1, y1 - frame.top, frame.bottom - y1};
  double begin = 0, end = 1;
  for (int i = 0; i < 4; ++i) {
    if (p[i] == 0 && q[i] < 0) {
      return false;
    }
    if (p[i] < 0) {
      begin = std::max(begin, q[i] / p[i]);
    } else if (p[i] > 0) {
      end = std::min(end, q[i] / p[i]);
    }
  }
  x2 = x1 + end * dx;
  y2 = y1 + end * dy;
  x1 += begin * dx;
  y1 += begin * dy;
  return begin <= end;
}

inline void draw_mark(Canvas& canvas, double x, double y, Mark mark, std::size_t i) {
  if (mark == Mark::hollow_points) {
    const std::string style = " class=\"ts" + std::to_string(i % 7) + "\" stroke=\"";
    canvas.circle(x, y, 4, "fill=\"none\" stroke-width=\"1.8\"" + style + series_color(i) + "\"");
  } else {
    canvas.circle(x, y, 4.2, Canvas::fill(i));
  }
}

inline void draw_point(Canvas& canvas, const Frame& frame, const Series& one, std::size_t k,
                       std::size_t i) {
  const double x = frame.px(one.x[k]), y = frame.py(one.y[k]);
  if (frame.holds(x, y)) {
    draw_mark(canvas, x, y, one.mark, i);
  }
}

inline void draw_line(Canvas& canvas, const Frame& frame, const Series& line, std::size_t i) {
  std::vector<double> xs, ys;
  const auto flush = [&]() {
    if (xs.size() > 1) {
      canvas.polyline(xs, ys, i, 2);
    }
    xs.clear();
    ys.clear();
  };
  const auto there = [&](std::size_t k) {
    return k < line.x.size() && drawable(frame.x, line.x[k]) && drawable(frame.y, line.y[k]);
  };
  for (std::size_t k = 0; k < line.x.size(); ++k) {  // a point without neighbours is no line
    if (there(k) && !(k > 0 && there(k - 1)) && !there(k + 1)) {
      draw_point(canvas, frame, line, k, i);
    }
  }
  for (std::size_t k = 1; k < line.x.size(); ++k) {
    if (!there(k - 1) || !there(k)) {
      flush();
      continue;
    }
    double x1 = frame.px(line.x[k - 1]), y1 = frame.py(line.y[k - 1]);
    double x2 = frame.px(line.x[k]), y2 = frame.py(line.y[k]);
    if (!cut(frame, x1, y1, x2, y2)) {
      flush();
      continue;
    }
    if (xs.empty() || xs.back() != x1 || ys.back() != y1) {
      flush();
      xs.push_back(x1);
      ys.push_back(y1);
    }
    xs.push_back(x2);
    ys.push_back(y2);
  }
  flush();
}

inline void draw_series(Canvas& canvas, const Frame& frame, const Series& one, std::size_t i) {
  if (one.mark == Mark::line && one.x.size() > 1) {
    draw_line(canvas, frame, one, i);
    return;
  }
  for (std::size_t k = 0; k < one.x.size(); ++k) {
    if (drawable(frame.x, one.x[k]) && drawable(frame.y, one.y[k])) {
      draw_point(canvas, frame, one, k, i);
    }
  }
}

inline std::size_t color_of(const Series& one, std::size_t place) {
  return one.color < 0 ? place : static_cast<std::size_t>(one.color);
}

// Names with a sample of their line, in rows from (left, y) on, none below `lowest`: what does not
// fit is counted; returns the y below the last.
inline double draw_legend(Canvas& canvas, const List<Series>& series, double left, double right,
                          double y, double lowest = HUGE_VAL) {
  double x = left;
  bool any = false;
  std::size_t names = 0;  // that are to come
  for (const Series& one : series) {
    names += one.name.empty() ? 0U : 1U;
  }
  for (std::size_t i = 0; i < series.size(); ++i) {
    if (series[i].name.empty()) {
      continue;
    }
    const std::string name = shorten(series[i].name, 60);
    const double wide = 34 + drawn_width(name, 12) + 18;
    const double more = names > 1 && y + 19 > lowest ? 120 : 0;  // room for their number
    if (any && x + wide + more > right) {
      if (y + 19 > lowest) {
        canvas.label(x, y, cat({"... and ", names, " more"}), 12, Anchor::start, Canvas::soft());
        break;
      }
      x = left;
      y += 19;
    }
    --names;
    if (series[i].mark == Mark::line) {
      canvas.polyline({x, x + 26}, {y - 4, y - 4}, color_of(series[i], i), 2);
    } else {
      draw_mark(canvas, x + 13, y - 4, series[i].mark, color_of(series[i], i));
    }
    canvas.label(x + 33, y, name, 12, Anchor::start);
    x += wide;
    any = true;
  }
  return any ? y + 14 : y - 6;
}

// Title, legend, axes and every series; the room below `height` is the caller's.
inline Frame draw_plot(Canvas& canvas, const Plot& plot) {
  std::vector<double> xs, ys;
  for (const Series& one : plot.series) {
    if (one.x.size() != one.y.size()) {
      detail::fail({"svg: series \"" + one.name + "\" has " + std::to_string(one.x.size()) +
                    " x values and " + std::to_string(one.y.size()) +
                    " y values; give one y for each x"});
    }
    for (std::size_t k = 0; k < one.x.size(); ++k) {  // a pair counts when both can be drawn
      if (drawable(plot.x, one.x[k]) && drawable(plot.y, one.y[k])) {
        xs.push_back(one.x[k]);
        ys.push_back(one.y[k]);
      }
    }
  }
  Frame frame;
  frame.x = fitted(plot.x, xs);
  frame.y = fitted(plot.y, ys);
  frame.left = std::max(82.0, 34 + widest_of(tick_texts(frame.y)));
  frame.right = plot.width - 26;
  if (!(frame.right - frame.left >= 20 && plot.height >= 150 && plot.width + plot.height <= 1e6)) {
    detail::fail({"svg: plot \"", plot.title, "\" of ", plot.width, " x ", plot.height,
                  " pixels has no room for its lines between the words; ", Plot().width, " x ",
                  Plot().height, " is the default, at most a million together are right"});
  }
  canvas.heading(plot.title);
  frame.top = draw_legend(canvas, plot.series, 22, frame.right, 54, plot.height - 214);
  frame.bottom = plot.height - 54;
  draw_axes(canvas, frame);
  for (std::size_t i = 0; i < plot.series.size(); ++i) {
    draw_series(canvas, frame, plot.series[i], color_of(plot.series[i], i));
  }
  if (xs.empty()) {
    canvas.label((frame.left + frame.right) / 2, (frame.top + frame.bottom) / 2, "no data", 14,
                 Anchor::middle, Canvas::soft());
  }
  return frame;
}

}  // namespace detail

// A plot as a picture; its text names the title, the axes and the last point of each series.
inline Svg svg(const Plot& plot) {
  detail::Canvas canvas(plot.width, plot.height);
  detail::draw_plot(canvas, plot);
  std::string text = plot.title + " (" + plot.y.label + " over " + plot.x.label + ")";
  for (const Series& one : plot.series) {
    if (!one.name.empty() && !one.x.empty()) {
      text += "; " + one.name + ": " + detail::tick_text(one.y.back()) + " at " +
              detail::tick_text(one.x.back());
    }
  }
  return canvas.finish(text);
}

}  // namespace tinyscale
