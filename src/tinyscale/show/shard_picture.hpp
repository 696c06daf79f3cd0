#pragma once
// Which device holds which block of an array: a cell for each block of the last two dims, a panel
// for each block of those before, a stripe of its own colour for each device that holds the block.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tinyscale/mesh/sharded.hpp"
#include "tinyscale/show/svg.hpp"

namespace tinyscale {
namespace detail {

// Pale colours, neighbours far apart on the circle (the golden angle); black reads well on them.
inline std::string device_color(int rank) {
  const double turn = rank * 0.381966;
  std::string out = "rgb(";
  for (int c = 0; c < 3; ++c) {
    const double wave = std::cos(6.2831853 * (turn - c / 3.0));
    out += std::to_string(static_cast<int>(std::lround(186 + 50 * wave))) + (c < 2 ? "," : ")");
  }
  return out;
}

inline void draw_block(Canvas& canvas, const ShardPicture& picture, std::size_t block, double x,
                       double y, double width, double height) {
  const std::vector<int>& ranks = picture.holders[block];
  const double stripe = (width - 2) / static_cast<double>(std::max<std::size_t>(1, ranks.size()));
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    canvas.rect(x + 1 + stripe * static_cast<double>(i), y + 1, stripe, height - 2,
                "fill=\"" + device_color(ranks[i]) + "\"");
  }
  const std::string words = picture.cell(block);
  const double size =
      std::min({13.0, height - 2, (width - 6) / std::max(1.0, drawn_width(words, 1))});
  if (size >= 6) {
    canvas.label(x + width / 2, y + height / 2 + 0.36 * size, words, size, Anchor::middle,
                 "fill=\"#000000\"");
  }
}

}  // namespace detail

// Up to 64 rows, columns and panels; of an array of more blocks the first.
inline Svg svg(const ShardPicture& picture) {
  using detail::Anchor;
  using detail::Canvas;
  const int dims = picture.blocks.size();
  const std::int64_t columns = dims > 0 ? picture.blocks[-1] : 1;
  const std::int64_t rows = dims > 1 ? picture.blocks[-2] : 1;
  const std::int64_t most = 64;
  const std::int64_t all = static_cast<std::int64_t>(picture.holders.size()) / (rows * columns);
  const std::int64_t panels = std::min(all, most);
  const std::int64_t wide = std::min(columns, most), high = std::min(rows, most);
  double most_words = 88;
  for (std::size_t block = 0; block < picture.holders.size() && block < 64; ++block) {
    most_words = std::max(most_words, 16 + detail::drawn_width(picture.cell(block), 12));
  }
  const auto range = [&](int dim, std::int64_t i) {
    const std::string& name = picture.names[static_cast<std::size_t>(dim)];
    return detail::shorten(name, 24) + " " + picture.range(dim, i);
  };
  double column = 30, left = 84;  // the widest words above a column, beside a row
  for (std::int64_t j = 0; j < wide && dims > 0; ++j) {
    column = std::max(column, 6 + detail::drawn_width(range(dims - 1, j), 11));
  }
  for (std::int64_t i = 0; i < high && dims > 1; ++i) {
    left = std::max(left, 20 + detail::drawn_width(range(dims - 2, i), 11));
  }
  const double width =
      std::max(14.0, std::min(std::max(most_words, column), 640.0 / static_cast<double>(wide)));
  const double height = std::max(13.0, std::min(44.0, 440.0 / static_cast<double>(high)));
  const auto every = static_cast<std::int64_t>(std::ceil(column / width));
  const double top = dims > 2 ? 84 : 70, step = height * static_cast<double>(high) + 46;
  const double beside = left + width * static_cast<double>(wide);  // from one panel to the next
  const std::int64_t across =
      std::max<std::int64_t>(1, std::min(panels, static_cast<std::int64_t>(760 / beside)));
  const std::string title =
      picture.title + (wide * high * panels < columns * rows * all ? ", the first blocks" : "");
  const double title_width = std::min(900.0, 40 + detail::drawn_width(title, 16));
  Canvas canvas(std::max({440.0, beside * static_cast<double>(across) + 24, title_width}),
                top + step * static_cast<double>((panels + across - 1) / across));
  canvas.heading(title);
  for (std::int64_t panel = 0; panel < panels; ++panel) {
    const double x = beside * static_cast<double>(panel % across);
    const double y = top + step * static_cast<double>(panel / across);
    const std::string where = picture.panel_name(panel);
    canvas.label(x + 20, y - 24, where, 12, Anchor::start);
    for (std::int64_t j = 0; j < wide && dims > 0; j += every) {
      canvas.label(x + left + width * (static_cast<double>(j) + 0.5), y - 6, range(dims - 1, j), 11,
                   Anchor::middle, Canvas::soft());
    }
    for (std::int64_t i = 0; i < high; ++i) {
      const double line = y + height * static_cast<double>(i);
      if (dims > 1) {
        canvas.label(x + left - 8, line + height / 2 + 4, range(dims - 2, i), 11, Anchor::end,
                     Canvas::soft());
      }
      for (std::int64_t j = 0; j < wide; ++j) {
        detail::draw_block(canvas, picture,
                           static_cast<std::size_t>((panel * rows + i) * columns + j),
                           x + left + width * static_cast<double>(j), line, width, height);
      }
    }
  }
  return canvas.finish(picture.text());
}

}  // namespace tinyscale
