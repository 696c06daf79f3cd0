#pragma once
// Launches and kernels as a timeline, the host's track above the device's; as a trace for Perfetto;
// and the time of n kernels against that of one, with the crossover where it is that of a launch.
// Where kernels are too short to draw, a column stands for several: its height is their time.

#include <algorithm>  // max, min
#include <cmath>      // fabs
#include <cstddef>
#include <string>
#include <vector>

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/hardware/launch_forms.hpp"
#include "tinyscale/hardware/launches.hpp"
#include "tinyscale/show/plot.hpp"
#include "tinyscale/show/run_trace.hpp"
#include "tinyscale/show/step_colors.hpp"
#include "tinyscale/show/svg.hpp"

namespace tinyscale {
namespace detail {

enum class LaunchPart { launch, wait, memory, vector, math, idle };
constexpr std::size_t launch_parts = 6;

// A stretch of the host's or the device's time.
struct LaunchPiece {
  LaunchPart part = LaunchPart::idle;
  double start = 0, finish = 0;  // s
  std::string name;              // of a kernel
};

inline const char* launch_part_name(LaunchPart part) {
  static const char* const names[] = {"host: launches",          "host: waits for the device",
                                      "device: bound by memory", "device: bound by vector",
                                      "device: bound by math",   "device: idle"};
  return names[static_cast<std::size_t>(part)];
}

inline std::string launch_part_fill(LaunchPart part) {
  switch (part) {
    case LaunchPart::launch: return Canvas::fill(3);
    case LaunchPart::wait: return pale(3);
    case LaunchPart::memory: return Canvas::fill(1);
    case LaunchPart::vector: return Canvas::fill(2);
    case LaunchPart::math: return Canvas::fill(0);
    default: return "class=\"ts-empty\" fill=\"#e3e6ea\"";
  }
}

inline void add_piece(List<LaunchPiece>& pieces, LaunchPart part, double start, double finish,
                      const std::string& name = "") {
  if (finish > start) {
    pieces.push_back({part, start, finish, name});
  }
}

inline List<LaunchPiece> host_pieces(const LaunchReport& report) {
  List<LaunchPiece> pieces;
  double free = 0;
  for (const LaunchRow& row : report.rows) {
    if (row.launched) {
      add_piece(pieces, LaunchPart::wait, free, row.launch_start);
      add_piece(pieces, LaunchPart::launch, row.launch_start, row.launch_finish,
                report.dispatch == Dispatch::eager ? row.name : "graph");
      free = row.launch_finish;
    }
  }
  const bool reads = !report.rows.empty() && report.rows.back().synchronise;
  add_piece(pieces, LaunchPart::wait, reads ? free : report.seconds, report.seconds);
  return pieces;
}

inline List<LaunchPiece> device_pieces(const LaunchReport& report) {
  List<LaunchPiece> pieces;
  double free = 0;
  for (const LaunchRow& row : report.rows) {
    add_piece(pieces, LaunchPart::idle, free, row.start);
    add_piece(pieces,
              row.bound == "math"     ? LaunchPart::math
              : row.bound == "vector" ? LaunchPart::vector
                                      : LaunchPart::memory,
              row.start, row.finish, row.name);
    free = row.finish;
  }
  return pieces;
}

// Draws the pieces of one track. Short ones are gathered into columns, each from the first to the
// last of them; columns of the same shares that touch are one.
class LaunchTrack {
 public:
  LaunchTrack(Canvas& canvas, const TimeScale& scale, double y, double height)
      : canvas_(canvas), scale_(scale), y_(y), height_(height) {}

  // Until `end`, in seconds. Returns whether any piece was too short to stand by itself.
  bool draw(const List<LaunchPiece>& pieces, double end) {
    bool dense = false;
    for (const LaunchPiece& piece : pieces) {
      const double finish = std::min(piece.finish, end);
      if (piece.start >= end) {
        break;
      }
      const double wide = scale_.x(finish) - scale_.x(piece.start);
      if (wide >= 3) {
        close(open_);
        flush();
        canvas_.rect(scale_.x(piece.start), y_, wide - (wide > 5 ? 1 : 0), height_,
                     launch_part_fill(piece.part));
        continue;
      }
      dense = true;
      if (open_.finish <= open_.start) {
        open_.start = piece.start;
      }
      open_.finish = finish;
      open_.seconds[static_cast<std::size_t>(piece.part)] += finish - piece.start;
      const bool gap = piece.part == LaunchPart::idle || piece.part == LaunchPart::wait;
      if (!gap && scale_.x(open_.finish) - scale_.x(open_.start) >= 6) {
        close(open_);
      }
    }
    close(open_);
    flush();
    return dense;
  }

 private:
  struct Column {
    double start = 0, finish = 0;
    double seconds[launch_parts] = {};
  };

  // Appends a column to the one before when both look the same, and empties it.
  void close(Column& column) {
    const double wide = column.finish - column.start;
    if (wide <= 0) {
      return;
    }
    const double before = last_.finish - last_.start;
    bool same = before > 0;
    for (std::size_t p = 0; p < launch_parts && same; ++p) {
      same = std::fabs(column.seconds[p] / wide - last_.seconds[p] / before) * height_ < 0.5;
    }
    if (same) {
      last_.finish = column.finish;
      for (std::size_t p = 0; p < launch_parts; ++p) {
        last_.seconds[p] += column.seconds[p];
      }
    } else {
      flush();
      last_ = column;
    }
    column = Column();
  }

  // Idle time and waits fill the column's upper part, what is done its lower one.
  void flush() {
    const double wide = last_.finish - last_.start;
    double bottom = y_ + height_;
    for (const LaunchPart part : {LaunchPart::launch, LaunchPart::math, LaunchPart::vector,
                                  LaunchPart::memory, LaunchPart::wait, LaunchPart::idle}) {
      const double seconds = last_.seconds[static_cast<std::size_t>(part)];
      if (wide > 0 && seconds > 0) {
        const double high = seconds / wide * height_;
        bottom -= high;
        canvas_.rect(scale_.x(last_.start), bottom,
                     scale_.x(last_.finish) - scale_.x(last_.start) + 0.3, high,
                     launch_part_fill(part));
      }
    }
    last_ = Column();
  }

  Canvas& canvas_;
  const TimeScale& scale_;
  double y_ = 0, height_ = 0;
  Column open_, last_;
};

// Names of kernels below their bars, where they fit.
inline void label_kernels(Canvas& canvas, const List<LaunchPiece>& pieces, const TimeScale& scale,
                          double y, double end) {
  for (const LaunchPiece& piece : pieces) {
    const double from = scale.x(piece.start), to = scale.x(std::min(piece.finish, end));
    const double size = std::min(11.0, (to - from - 2) / std::max(1.0, drawn_width(piece.name, 1)));
    if (!piece.name.empty() && piece.start < end && size >= 7) {
      canvas.label((from + to) / 2, y, piece.name, size, Anchor::middle);
    }
  }
}

// A thin line from the end of each launch to the kernel's start, where there are few.
inline void link_launches(Canvas& canvas, const LaunchReport& report, const TimeScale& scale,
                          double from, double to, std::size_t kernels) {
  for (std::size_t i = 0; i < kernels && kernels <= 60; ++i) {
    const LaunchRow& row = report.rows[i];
    if (row.launched) {
      canvas.line(scale.x(row.launch_finish), from, scale.x(row.start), to, Canvas::axis());
    }
  }
}

// Both tracks of the first `kernels`, from y on; returns whether columns were needed.
inline bool draw_launches(Canvas& canvas, const LaunchReport& report, std::size_t kernels,
                          double y) {
  const double end = kernels > 0 ? report.rows[kernels - 1].finish : 0;
  const TimeScale scale(96, 1176, end);
  const double host = y + 8, device = host + 48, bottom = device + 42;
  draw_time_axis(canvas, scale.left, scale.right, y, bottom, scale.seconds);
  canvas.label(20, host + 15, "host", 12, Anchor::start);
  canvas.label(20, device + 18, "device", 12, Anchor::start);
  const List<LaunchPiece> launched = host_pieces(report), ran = device_pieces(report);
  link_launches(canvas, report, scale, host + 20, device, kernels);
  const bool short_launches = LaunchTrack(canvas, scale, host, 20).draw(launched, end);
  const bool short_kernels = LaunchTrack(canvas, scale, device, 26).draw(ran, end);
  label_kernels(canvas, ran, scale, device + 37, end);
  if (kernels == 0) {
    canvas.label((scale.left + scale.right) / 2, device - 8, "no kernels", 14, Anchor::middle,
                 Canvas::soft());
  }
  return short_launches || short_kernels;
}

constexpr double launch_panel = 98 + 46;  // pixels of both tracks and the axis

// Those that have any time, with how much of it.
inline List<Swatch> launch_legend(const LaunchReport& report) {
  double seconds[launch_parts] = {};
  for (const List<LaunchPiece>& pieces : {host_pieces(report), device_pieces(report)}) {
    for (const LaunchPiece& piece : pieces) {
      seconds[static_cast<std::size_t>(piece.part)] += piece.finish - piece.start;
    }
  }
  List<Swatch> legend;
  for (std::size_t p = 0; p < launch_parts; ++p) {
    const LaunchPart part = static_cast<LaunchPart>(p);
    if (seconds[p] > 0) {
      legend.push_back({cat({launch_part_name(part), " ", format_seconds(seconds[p]), ", ",
                             format_percent(seconds[p] / report.seconds)}),
                        launch_part_fill(part)});
    }
  }
  return legend;
}

}  // namespace detail

// The whole run, and the first dozen kernels below it when it has too many to tell apart.
inline Svg svg(const LaunchReport& report) {
  using detail::Canvas;
  const std::size_t all = report.rows.size(), first = std::min<std::size_t>(all, 12);
  const List<detail::Swatch> legend = detail::launch_legend(report);
  Canvas unseen(0, 0);
  const double top = detail::draw_swatches(unseen, legend, 20, 1176, 72);
  const bool dense = (detail::draw_launches(unseen, report, all, top) || all > 40) && first < all;
  const double below = top + detail::launch_panel + 26;
  Canvas canvas(1200, dense ? below + detail::launch_panel : below - 26);
  const std::string time = format_seconds(report.seconds);
  const std::string title = detail::shorten(detail::launch_title(report) + ": " + time, 110);
  detail::draw_heading(canvas, title,
                       dense ? "above, the whole run: where kernels are short, a column is as high "
                               "as the share of the time that they take; below, its beginning"
                             : "above: the host's launches; below: the device's kernels");
  detail::draw_swatches(canvas, legend, 20, 1176, 72);
  detail::draw_launches(canvas, report, all, top);
  if (dense) {
    canvas.label(20, below - 8, detail::cat({"the first ", first, " kernels"}), 13,
                 detail::Anchor::start, detail::Canvas::bold());
    detail::draw_launches(canvas, report, first, below);
  }
  std::string text = title;
  for (const detail::Swatch& swatch : legend) {
    text += "; " + swatch.name;
  }
  return canvas.finish(text);
}

// Both times over the duration of a kernel: eager is flat up to the crossover.
inline Svg svg(const LaunchSweep& sweep) {
  Plot plot;
  plot.title = detail::cat({format_count(static_cast<double>(sweep.kernels)), " kernels, a launch ",
                            format_seconds(sweep.options.seconds), ": eager or as a graph"});
  plot.x = {"a kernel, us", Scale::logarithmic, 0, 0};
  plot.y = {"all of them, ms", Scale::logarithmic, 0, 0};
  Series eager, graph, launch;
  eager.name = "eager";
  graph.name = "graph";
  double low = HUGE_VAL, high = 0;
  for (std::size_t i = 0; i < sweep.kernel_seconds.size(); ++i) {
    eager.x.push_back(1e6 * sweep.kernel_seconds[i]);
    graph.x.push_back(1e6 * sweep.kernel_seconds[i]);
    eager.y.push_back(1e3 * sweep.eager[i]);
    graph.y.push_back(1e3 * sweep.graph[i]);
    const double least = std::min(eager.y.back(), graph.y.back());
    low = least > 0 ? std::min(low, least) : low;
    high = std::max(high, std::max(eager.y.back(), graph.y.back()));
  }
  plot.series = {eager, graph};
  if (sweep.options.seconds > 0 && high > 0) {
    launch.name = "kernel = launch";
    launch.x = {1e6 * sweep.options.seconds, 1e6 * sweep.options.seconds};
    launch.y = {low, high};
    launch.color = 6;
    plot.series.push_back(launch);
  }
  return svg(plot);
}

namespace detail {

// An arrow from a launch to its kernel.
inline std::string trace_flow(const char* phase, std::size_t id, std::size_t track, double at) {
  return cat({",\n{\"ph\": \"", phase,
              "\", \"bp\": \"e\", \"name\": \"launch\", \"cat\": ", "\"launch\", \"id\": ", id,
              ", \"pid\": 0, \"tid\": ", track, ", \"ts\": ", printed('f', 6, at * 1e6), "}"});
}

}  // namespace detail

// A process with a track of the host and one of the device, an arrow from each launch to its
// kernel, for ui.perfetto.dev and chrome://tracing: microseconds of simulated time.
inline std::string trace_json(const LaunchReport& report) {
  std::string out = detail::trace_name("process_name", 0, 0, detail::launch_title(report));
  out += detail::trace_name("thread_name", 0, 0, "host");
  out += detail::trace_name("thread_name", 0, 1, "device");
  for (const detail::LaunchPiece& piece : detail::host_pieces(report)) {
    const bool wait = piece.part == detail::LaunchPart::wait;
    out += detail::trace_event(wait ? "wait for the device" : "launch " + piece.name,
                               wait ? "wait" : "launch", 0, 0, piece.start, piece.finish);
  }
  for (std::size_t i = 0; i < report.rows.size(); ++i) {
    const LaunchRow& row = report.rows[i];
    std::string event = detail::trace_event(row.name, row.bound, 0, 1, row.start, row.finish);
    event.pop_back();
    out += event + detail::cat({", \"args\": {\"shape\": \"", json_escape(row.shape),
                                "\", \"bound by\": \"", row.bound,
                                "\", \"FLOPs\": ", detail::json_number(row.flops()),
                                ", \"bytes\": ", detail::json_number(row.bytes), "}}"});
    if (row.launched) {
      out += detail::trace_flow("s", i, 0, row.launch_start);
      out += detail::trace_flow("f", i, 1, row.start);
    }
  }
  return "[" + out.substr(2) + "]\n";  // the first event has no comma before it
}

// An old file stays whole when the new one cannot be written.
inline void save_trace(const LaunchReport& report, const std::string& path) {
  detail::save_text("save_trace", path, trace_json(report));
}

}  // namespace tinyscale
