#pragma once
// One code of colours for all pictures of a step: compute solid, communication and waiting for it
// pale, the bubble and idle time grey. Legends have a box of each.

#include <cstddef>
#include <string>
#include <vector>

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/mesh/time_breakdown.hpp"
#include "tinyscale/show/svg.hpp"

namespace tinyscale {
namespace detail {

struct Swatch {
  std::string name, style;
};

inline std::string pale(std::size_t series) {
  return Canvas::fill(series) + " fill-opacity=\"0.42\"";
}
inline std::string bubble_fill() {
  return "class=\"ts-soft\" fill=\"#57606a\" fill-opacity=\"0.22\"";
}
inline std::string idle_fill() { return "class=\"ts-empty\" fill=\"#eef0f2\""; }

// A style for each row of a breakdown; more than six of a kind share the last colour. Rows without
// time take none, so that a run has the same colours in all pictures.
inline List<Swatch> swatches_of(const List<TimeShare>& rows) {
  constexpr std::size_t most = 6;
  std::size_t computes = 0, waits = 0;
  List<Swatch> out;
  for (const TimeShare& row : rows) {
    std::string style = idle_fill();
    if (row.kind == TimeShare::Kind::compute) {
      style = Canvas::fill(computes < most ? computes : most);
      computes += row.seconds > 0 ? 1 : 0;
    } else if (row.name == "bubble") {
      style = bubble_fill();
    } else if (row.kind == TimeShare::Kind::wait) {
      style = pale(waits < most ? waits : most);
      waits += row.seconds > 0 ? 1 : 0;
    }
    out.push_back({row.name, style});
  }
  return out;
}

// Those of rows that any device spent time in.
inline List<Swatch> legend_of(const TimeTable& table) {
  const List<Swatch> all = swatches_of(table.rows);
  List<Swatch> used;
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (table.rows[r].seconds > 0) {
      used.push_back(all[r]);
    }
  }
  return used;
}

// Boxes with names in rows from (left, y) on; returns the y below the last.
inline double draw_swatches(Canvas& canvas, const List<Swatch>& swatches, double left, double right,
                            double y) {
  double x = left;
  for (const Swatch& swatch : swatches) {
    const std::string name = shorten(swatch.name, 60);
    const double wide = 20 + drawn_width(name, 12) + 16;
    if (x > left && x + wide > right) {
      x = left;
      y += 20;
    }
    canvas.rect(x, y - 11, 14, 13, swatch.style);
    canvas.label(x + 20, y, name, 12, Anchor::start);
    x += wide;
  }
  return y + 14;
}

// Simulated time from `left` to `right`.
struct TimeScale {
  double left = 0, right = 0, seconds = 1;

  TimeScale(double from, double to, double of) : left(from), right(to), seconds(of > 0 ? of : 1) {}
  double x(double at) const { return left + at / seconds * (right - left); }
};

// The title, and below it in small letters what is drawn.
inline void draw_heading(Canvas& canvas, const std::string& title, const std::string& below) {
  canvas.heading(title);
  canvas.label(20, 47, below, 12, Anchor::start, Canvas::soft());
}

// The devices to draw: those named, or the first `most`.
inline std::vector<int> drawn_devices(const char* function, const MeshRun& run,
                                      const std::vector<int>& ranks, int most) {
  std::vector<int> out(ranks);
  for (int d = 0; ranks.empty() && d < run.devices() && d < most; ++d) {
    out.push_back(d);
  }
  for (const int rank : ranks) {
    if (rank < 0 || rank >= run.devices()) {
      fail({function, ": rank ", rank, " of ", run.devices(), " devices; ranks are 0 to ",
            run.devices() - 1});
    }
  }
  return out;
}

// " (8 of 64 devices)", where some are left out.
inline std::string left_out(const MeshRun& run, const std::vector<int>& drawn) {
  return drawn.size() < static_cast<std::size_t>(run.devices())
             ? cat({" (", drawn.size(), " of ", run.devices(), " devices)"})
             : "";
}

}  // namespace detail
}  // namespace tinyscale
