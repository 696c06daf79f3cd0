#pragma once
// A matrix as coloured cells: how many bytes each device sent to each other.
// Colours run from dark blue to yellow and grow only lighter (after cividis, Nunez, Anderton and
// Renslow 2018), so the order survives any colour vision and grey print.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/show/svg.hpp"

namespace tinyscale {

// bytes[i][j] went from device i to device j.
struct LinkHeatMap {
  std::string title = "Bytes over each link";
  List<std::vector<double>> bytes;
  std::vector<std::string> names;  // of the devices; empty: their numbers
};

namespace detail {

struct CellColor {
  std::string fill;
  std::string ink;  // black or white, whichever reads better on it
};

inline CellColor cell_color(double share) {  // 0 .. 1
  static const int stops[6][3] = {{0, 34, 78},     {53, 69, 108},   {102, 105, 112},
                                  {148, 142, 119}, {200, 184, 102}, {254, 232, 56}};
  const double at = std::min(1.0, std::max(0.0, share)) * 5;
  const int below = std::min(4, static_cast<int>(at));
  int rgb[3];
  for (int c = 0; c < 3; ++c) {
    const double mixed = stops[below][c] + (at - below) * (stops[below + 1][c] - stops[below][c]);
    rgb[c] = static_cast<int>(std::lround(mixed));
  }
  const double luma = 0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2];
  return {"rgb(" + std::to_string(rgb[0]) + "," + std::to_string(rgb[1]) + "," +
              std::to_string(rgb[2]) + ")",
          luma > 125 ? "#000000" : "#ffffff"};
}

inline double check_heat_map(const LinkHeatMap& map) {
  const std::size_t n = map.bytes.size();
  double most = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (map.bytes[i].size() != n) {
      detail::fail({"svg: link heat map: row " + std::to_string(i) + " has " +
                    std::to_string(map.bytes[i].size()) + " of " + std::to_string(n) +
                    " columns; give one for each device"});
    }
    for (const double value : map.bytes[i]) {
      if (!is_finite(value) || value < 0) {
        detail::fail({"svg: link heat map: row " + std::to_string(i) +
                      " holds a negative or not finite count of bytes; give 0 or more"});
      }
      most = std::max(most, value);
    }
  }
  if (!map.names.empty() && map.names.size() != n) {
    detail::fail({"svg: link heat map: " + std::to_string(map.names.size()) + " names for " +
                  std::to_string(n) + " devices; give one for each device, or none"});
  }
  return most;
}

inline void draw_scale(Canvas& canvas, double x, double top, double bottom, const std::string& most,
                       const std::string& least) {
  const int steps = 48;
  const double step = (bottom - top) / steps;
  for (int i = 0; i < steps; ++i) {
    const CellColor color = cell_color((i + 0.5) / steps);
    canvas.rect(x, bottom - (i + 1) * step, 16, step + 0.4, "fill=\"" + color.fill + "\"");
  }
  canvas.label(x + 22, top + 9, most, 12, Anchor::start, Canvas::soft());
  canvas.label(x + 22, bottom, least, 12, Anchor::start, Canvas::soft());
}

}  // namespace detail

// Rows send, columns receive; an empty cell is a pair that exchanged nothing.
inline Svg svg(const LinkHeatMap& map) {
  using detail::Anchor;
  using detail::Canvas;
  const double most = detail::check_heat_map(map);
  const std::size_t n = map.bytes.size();
  const double cell = std::max(6.0, std::min(64.0, 512 / std::max(1.0, static_cast<double>(n))));
  const double side = cell * static_cast<double>(n), top = 92;
  double wide = 0, widest = 0;  // names above columns, beside rows
  for (std::size_t i = 0; i < n; ++i) {
    const std::string name = map.names.empty() ? std::to_string(i) : map.names[i];
    wide = std::max(wide, detail::drawn_width(detail::shorten(name, 6), 12));
    widest = std::max(widest, detail::drawn_width(detail::shorten(name, 24), 12));
  }
  const double left = std::max(84.0, 48 + widest);
  Canvas canvas(std::max(420.0, left + side + 130), top + side + 28);
  canvas.heading(map.title);
  canvas.label(left + side / 2, 62, "to device", 13, Anchor::middle);
  canvas.label_upward(26, top + side / 2, "from device", 13);
  const char* const empty = "class=\"ts-empty\" fill=\"#eef0f2\"";
  const bool many = n > 64;  // of 4,000 devices empty cells, almost all, would take a gigabyte
  if (many) {
    canvas.rect(left, top, side, side, empty);
  }
  const std::size_t rows = 1 + static_cast<std::size_t>(16 / cell);
  const std::size_t columns = 1 + static_cast<std::size_t>((wide + 2) / cell);
  double total = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const double at = cell * static_cast<double>(i);
    const std::string name = map.names.empty() ? std::to_string(i) : map.names[i];
    if (i % rows == 0) {
      canvas.label(left - 7, top + at + cell / 2 + 4, detail::shorten(name, 24), 12, Anchor::end,
                   Canvas::soft());
    }
    if (i % columns == 0) {
      canvas.label(left + at + cell / 2, top - 8, detail::shorten(name, 6), 12, Anchor::middle,
                   Canvas::soft());
    }
    for (std::size_t j = 0; j < n; ++j) {
      const double bytes = map.bytes[i][j], x = left + cell * static_cast<double>(j);
      total += bytes;
      if (bytes <= 0) {
        if (!many) {
          canvas.rect(x + 0.5, top + at + 0.5, cell - 1, cell - 1, empty);
        }
        continue;
      }
      const detail::CellColor color = detail::cell_color(bytes / most);
      canvas.rect(x + 0.5, top + at + 0.5, cell - 1, cell - 1, "fill=\"" + color.fill + "\"");
      const std::string words = format_bytes(bytes);
      const double size = std::min(12.0, (cell - 6) / std::max(1.0, detail::drawn_width(words, 1)));
      if (size >= 7.5) {
        canvas.label(x + cell / 2, top + at + cell / 2 + 0.36 * size, words, size, Anchor::middle,
                     "fill=\"" + color.ink + "\"");
      }
    }
  }
  if (most > 0) {
    detail::draw_scale(canvas, left + side + 22, top, top + std::max(side, 60.0),
                       format_bytes(most), "0 B");
  } else {
    canvas.label(left, top + side + 18, "nothing was sent", 12, Anchor::start, Canvas::soft());
  }
  return canvas.finish(map.title + ": " + std::to_string(n) + " devices, " + format_bytes(total) +
                       " in all, at most " + format_bytes(most) + " from one to another");
}

}  // namespace tinyscale
