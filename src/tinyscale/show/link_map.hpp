#pragma once
// A torus or mesh of chips with its links, each way in the colour of the share of the run's time
// that its bytes take: where a collective spreads its traffic, and where messages meet.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/mesh/mesh_run.hpp"
#include "tinyscale/show/heat_map.hpp"
#include "tinyscale/show/svg.hpp"

namespace tinyscale {
namespace detail {

// The last two dimensions whose neighbours are joined are drawn, a panel for each coordinate of
// those before.
struct LinkGrid {
  int dim[2] = {-1, -1};            // of columns, of rows; -1: none
  std::int64_t size[2] = {1, 1};    // columns, rows
  std::int64_t stride[2] = {0, 0};  // chips
  bool ring[2] = {false, false};
  std::vector<std::int64_t> corners;  // the first chip of each panel
  std::vector<double> busy;           // by chip, columns or rows, upwards or downwards
  std::vector<double> beyond;         // by chip: the busiest of its links that are not drawn
  double most = 0;

  std::int64_t chip(std::size_t panel, std::int64_t row, std::int64_t column) const {
    return corners[panel] + row * stride[1] + column * stride[0];
  }
  double at(std::int64_t chip, int axis, int way) const {
    return busy[static_cast<std::size_t>(chip * 4 + axis * 2 + way)];
  }
};

inline LinkGrid link_grid(const MeshRun& run) {
  LinkGrid grid;
  const Machine& machine = run.machine();
  std::int64_t stride = 1;
  for (int d = machine.dims.size() - 1, drawn = 0; d >= 0; stride *= machine.dims[d--]) {
    const AxisKind kind = machine.links[static_cast<std::size_t>(d)].kind;
    if (drawn < 2 && machine.dims[d] > 1 && (kind == AxisKind::line || kind == AxisKind::ring)) {
      grid.dim[drawn] = d;
      grid.size[drawn] = machine.dims[d];
      grid.stride[drawn] = stride;
      grid.ring[drawn++] = kind == AxisKind::ring;
    }
  }
  if (grid.dim[0] < 0) {
    fail({"link_map: ", machine.name, " has no dimension whose neighbours are joined; ",
          "svg(run) shows the links of any machine"});
  }
  for (std::int64_t c = 0; c < machine.chips(); ++c) {
    if ((grid.size[1] == 1 || c / grid.stride[1] % grid.size[1] == 0) &&
        c / grid.stride[0] % grid.size[0] == 0) {
      grid.corners.push_back(c);
    }
  }
  grid.busy.resize(static_cast<std::size_t>(machine.chips()) * 4);
  grid.beyond.resize(static_cast<std::size_t>(machine.chips()));
  for (const LinkRow& link : run.links()) {
    const int axis = link.dim == grid.dim[0] ? 0 : link.dim == grid.dim[1] ? 1 : -1;
    grid.most = std::max(grid.most, link.busy);
    if (axis < 0) {
      double& most = grid.beyond[static_cast<std::size_t>(link.from < 0 ? link.to : link.from)];
      most = std::max(most, link.busy);
      continue;
    }
    const std::int64_t here = link.from / grid.stride[axis] % grid.size[axis];
    const std::int64_t there = link.to / grid.stride[axis] % grid.size[axis];
    const int way =
        there == (here + 1) % grid.size[axis] && (here < there || grid.ring[axis]) ? 0 : 1;
    grid.busy[static_cast<std::size_t>((way == 0 ? link.from : link.to) * 4 + axis * 2 + way)] =
        link.busy;
  }
  return grid;
}

inline char tenths(double share) {
  return share > 0 ? static_cast<char>('0' + std::min(9, static_cast<int>(10 * share))) : '.';
}

// "o" is a chip, behind and below it the busier way of its link in tenths of the time.
inline std::string link_letters(const LinkGrid& grid, std::size_t panel) {
  std::string out;
  for (std::int64_t row = 0; row < grid.size[1]; ++row) {
    std::string below;
    for (std::int64_t column = 0; column < grid.size[0]; ++column) {
      const std::int64_t chip = grid.chip(panel, row, column);
      const bool right = column + 1 < grid.size[0] || grid.ring[0];
      const bool down = row + 1 < grid.size[1] || grid.ring[1];
      const double x = std::max(grid.at(chip, 0, 0), grid.at(chip, 0, 1));
      const double y = std::max(grid.at(chip, 1, 0), grid.at(chip, 1, 1));
      out += std::string("o") + (right ? tenths(x) : ' ');
      below += std::string(1, down ? tenths(y) : ' ') + " ";
    }
    for (std::string* line : {&out, &below}) {
      line->erase(line->find_last_not_of(' ') + 1);
    }
    out += "\n" + (below.empty() ? "" : below + "\n");
  }
  return out;
}

inline std::string share_fill(double share, double most) {
  return share > 0 ? "fill=\"" + cell_color(share / most).fill + "\""
                   : "class=\"ts-empty\" fill=\"#e3e6ea\"";
}

// Both ways of the link behind a chip; one around the end is a stub at either side.
inline void draw_link(Canvas& canvas, const LinkGrid& grid, std::int64_t chip, int axis, double x,
                      double y, double cell, bool around) {
  const double wide = cell * 0.13, from = cell * 0.24, length = cell * (around ? 0.3 : 0.52);
  const double back = from + length + cell * static_cast<double>(grid.size[axis] - 1);
  for (int way = 0; way < 2; ++way) {
    const std::string fill = share_fill(grid.at(chip, axis, way), grid.most);
    const double side = way == 0 ? -wide - 0.5 : 0.5;
    for (const double at : {from, -back}) {
      if (at > 0 || around) {
        canvas.rect(axis == 0 ? x + at : x + side, axis == 0 ? y + side : y + at,
                    axis == 0 ? length : wide, axis == 0 ? wide : length, fill);
      }
    }
  }
}

inline void draw_link_panel(Canvas& canvas, const LinkGrid& grid, std::size_t panel, double left,
                            double top, double cell) {
  for (std::int64_t row = 0; row < grid.size[1]; ++row) {
    for (std::int64_t column = 0; column < grid.size[0]; ++column) {
      const std::int64_t chip = grid.chip(panel, row, column);
      const double x = left + cell * static_cast<double>(column);
      const double y = top + cell * static_cast<double>(row);
      const std::int64_t place[2] = {column, row};
      for (int axis = 0; axis < 2; ++axis) {
        const bool last = place[axis] + 1 == grid.size[axis];
        if (grid.dim[axis] >= 0 && (!last || grid.ring[axis])) {
          draw_link(canvas, grid, chip, axis, x, y, cell, last);
        }
      }
      const double beyond = grid.beyond[static_cast<std::size_t>(chip)];
      const CellColor color = cell_color(grid.most > 0 ? beyond / grid.most : 0);
      canvas.rect(
          x - cell * 0.21, y - cell * 0.21, cell * 0.42, cell * 0.42,
          beyond > 0 ? "fill=\"" + color.fill + "\"" : std::string("fill=\"#4a525b\" rx=\"2\""));
      if (cell >= 28) {
        canvas.label(x, y + cell * 0.075, std::to_string(chip), cell * 0.2, Anchor::middle,
                     "fill=\"" + std::string(beyond > 0 ? color.ink : "#ffffff") + "\"");
      }
    }
  }
}

}  // namespace detail

// Of a link's two strips the upper, or left, one carries towards higher coordinates. Up to 16
// panels.
inline Svg link_map(const MeshRun& run) {
  using detail::Anchor;
  using detail::Canvas;
  const detail::LinkGrid grid = detail::link_grid(run);
  const std::size_t panels = std::min<std::size_t>(16, grid.corners.size());
  const std::size_t across = panels > 1 ? (panels > 4 ? 4 : 2) : 1;
  const double cell = std::max(
      12.0, std::min(64.0, 640 / static_cast<double>(grid.size[0]) / static_cast<double>(across)));
  const double wide = cell * static_cast<double>(grid.size[0]) + 40;
  const double high = cell * static_cast<double>(grid.size[1]) + 40;
  const double side = wide * static_cast<double>(across);
  const double down = static_cast<double>((panels + across - 1) / across);
  const std::string title = detail::cat(
      {"Links of ", run.machine().name, ", busy share of ", format_seconds(run.seconds)});
  Canvas canvas(std::max({460.0, side + 120, 40 + detail::drawn_width(title, 16)}),
                66 + high * down);
  canvas.heading(title);
  if (panels > 1) {
    const std::size_t all = grid.corners.size();
    canvas.label(20, 44,
                 detail::cat({"a chip has the colour of its busiest link to another panel",
                              panels < all ? detail::cat({"; ", panels, " of ", all}) : ""}),
                 11, Anchor::start, Canvas::soft());
  }
  std::string text = detail::cat({"links of ", run.machine().name, ", the busiest ",
                                  format_percent(grid.most), " of ", format_seconds(run.seconds),
                                  "; o is a chip, a digit tenths of the time, . idle\n"});
  for (std::size_t p = 0; p < panels; ++p) {
    const double x = 20 + wide * static_cast<double>(p % across);
    const double y = 66 + high * static_cast<double>(p / across);
    if (panels > 1) {
      canvas.label(x, y - 4, detail::cat({"from chip ", grid.corners[p]}), 12, Anchor::start);
      text += detail::cat({"from chip ", grid.corners[p], "\n"});
    }
    detail::draw_link_panel(canvas, grid, p, x + cell / 2 + 10, y + cell / 2 + 6, cell);
    text += detail::link_letters(grid, p);
  }
  detail::draw_scale(canvas, side + 30, 66, 66 + std::min(high - 30, 260.0),
                     format_percent(grid.most), "0 %");
  text.pop_back();  // the last line's end
  return canvas.finish(text);
}

}  // namespace tinyscale
