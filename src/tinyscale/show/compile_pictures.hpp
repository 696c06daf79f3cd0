#pragma once
// Pictures of what a compilation does to memory: the bytes that ops no longer move, and the block
// in which buffers take turns. A graph, a plan and their reports show themselves in notebooks.

#include <algorithm>  // max, min
#include <cmath>      // fabs, round
#include <cstddef>    // size_t
#include <string>     // words
#include <utility>    // declval
#include <vector>     // points

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/compile/bytes_waterfall.hpp"
#include "tinyscale/compile/compile_report.hpp"
#include "tinyscale/show/display.hpp"
#include "tinyscale/show/graph_pictures.hpp"
#include "tinyscale/show/memory_timeline.hpp"
#include "tinyscale/show/plot.hpp"

namespace tinyscale {
namespace detail {

// At most `most` rows: the last ones are those between, which change least, as one.
inline List<OpBytes> largest_rows(const List<OpBytes>& rows, std::size_t most) {
  if (rows.size() <= most) {
    return rows;
  }
  std::vector<double> size, place;
  for (const OpBytes& row : rows) {
    size.push_back(-std::max(row.before, row.after));
  }
  const std::vector<std::size_t> order = stable_order(size);
  for (std::size_t i = 0; i + 1 < most; ++i) {
    place.push_back(static_cast<double>(order[i]));
  }
  List<OpBytes> out;
  for (const std::size_t i : stable_order(place)) {
    out.push_back(rows[static_cast<std::size_t>(place[i])]);
  }
  OpBytes rest;
  rest.op = cat({rows.size() - out.size(), " other ops"});
  for (std::size_t i = most - 1; i < order.size(); ++i) {
    rest.before += rows[order[i]].before;
    rest.after += rows[order[i]].after;
  }
  out.push_back(rest);
  return out;
}

// The op that computes a node: of one of several results, the op that has them.
inline const char* made_by(const Graph& graph, int node) {
  return name_of(graph[node].op == Op::part ? graph.input_of(graph[node], 0).op : graph[node].op);
}

}  // namespace detail

// From the bytes before to those after: pale what goes, step by step; solid what is left.
inline Svg svg(const BytesWaterfall& waterfall) {
  using detail::Anchor;
  using detail::Canvas;
  const List<OpBytes> rows = detail::largest_rows(waterfall.rows, 24);
  double most = std::max(waterfall.before(), waterfall.after()), level = waterfall.before();
  double widest = detail::drawn_width("before", 12);
  for (const OpBytes& row : rows) {
    level -= row.gone();
    most = std::max(most, level);
    widest = std::max(widest, detail::drawn_width(row.op, 12));
  }
  most = most > 0 ? most : 1;
  const double left = 36 + widest, right = 700, text_x = right + 14, step = 24, first = 96;
  const double bottom = first + step * static_cast<double>(rows.size() + 2);
  const auto x = [&](double bytes) { return left + bytes / most * (right - left); };
  const std::string pale = detail::pale(1), solid = Canvas::fill(0), grown = Canvas::fill(3);
  bool grows = false;
  for (const OpBytes& row : rows) {
    grows = grows || row.gone() < -0.5;
  }
  List<detail::Swatch> legend = {{"no longer moved", pale}, {"still moved", solid}};
  if (grows) {
    legend.push_back({"new", grown});
  }
  const std::string title = detail::cat(
      {"Bytes by op: ", format_bytes(waterfall.before()), " in ", waterfall.kernels_before,
       waterfall.kernels_before == 1 ? " kernel, " : " kernels, ", format_bytes(waterfall.after()),
       " in ", waterfall.kernels_after});
  Canvas canvas(940, bottom + 56);
  detail::draw_heading(canvas, title,
                       "what a kernel still moves is shared among its ops in proportion to what "
                       "each moved alone");
  detail::draw_swatches(canvas, legend, 20, 920, 72);
  const detail::ByteScale unit(0, 1, most);
  const Axis axis = {"", Scale::linear, 0, most / unit.unit};
  for (const double tick : detail::linear_ticks(axis)) {
    canvas.line(x(tick * unit.unit), first - 6, x(tick * unit.unit), bottom, Canvas::grid());
    canvas.label(x(tick * unit.unit), bottom + 17, detail::tick_text(tick), 12, Anchor::middle,
                 Canvas::soft());
  }
  canvas.label((left + right) / 2, bottom + 38, "bytes read and written, " + unit.name, 13,
               Anchor::middle);
  double y = first;
  const auto label = [&](const std::string& name, const std::string& words, bool bold) {
    canvas.label(left - 8, y + 13, name, 12, Anchor::end,
                 bold ? detail::Canvas::bold() : Canvas::ink());
    canvas.label(text_x, y + 13, words, 12, Anchor::start, bold ? Canvas::ink() : Canvas::soft());
  };
  label("before", format_bytes(waterfall.before()), true);
  canvas.rect(left, y, x(waterfall.before()) - left, 17, detail::bubble_fill());
  level = waterfall.before();
  for (const OpBytes& row : rows) {
    y += step;
    const double next = level - row.gone();
    canvas.line(x(level), y - (step - 17), x(level), y + 17, Canvas::axis());
    canvas.rect(x(std::min(level, next)), y, std::fabs(x(level) - x(next)), 17,
                row.gone() < 0 ? grown : pale);
    if (row.after > 0 && (row.before > 0 || row.gone() > 0)) {
      canvas.rect(left, y + 4, x(row.after) - left, 9, solid);
    }
    label(row.op,
          detail::cat({format_bytes(std::round(row.before)), ", left ",
                       format_bytes(std::round(row.after))}),
          false);
    level = next;
  }
  y += step;
  canvas.line(x(level), y - (step - 17), x(level), y, Canvas::axis());
  label("after",
        format_bytes(waterfall.after()) +
            (waterfall.after() > 0
                 ? ", " + format_percent(waterfall.after() / std::max(1.0, waterfall.before()))
                 : std::string()),
        true);
  canvas.rect(left, y, x(waterfall.after()) - left, 17, solid);
  canvas.line(left, first - 6, left, bottom, Canvas::axis());
  return canvas.finish(title);
}

// The block of a plan: each buffer at its place for the steps in which it is in use. Above it the
// height that buffers without a common place would reach.
inline Svg memory_timeline(const GraphPlan& plan) {
  using detail::Anchor;
  using detail::Canvas;
  const List<BufferLife>& buffers = plan.buffers();
  const std::size_t steps = plan.steps().size();
  const double block = plan.block_bytes(), unshared = plan.unshared_bytes();
  const double shown = std::min(std::max(block, unshared), 3 * std::max(block, 1.0));
  std::vector<double> in_use(steps);
  bool used[3] = {};
  for (const BufferLife& buffer : buffers) {
    for (int s = buffer.first; s <= buffer.last; ++s) {
      in_use[static_cast<std::size_t>(s)] += 4.0 * static_cast<double>(buffer.count);
    }
    used[static_cast<std::size_t>(plan.steps()[static_cast<std::size_t>(buffer.first)].kind)] =
        true;
  }
  double peak = 0;
  for (const double bytes : in_use) {
    peak = std::max(peak, bytes);
  }
  List<detail::Swatch> legend;
  static const char* const names[] = {"from ops in one pass", "from a product",
                                      "from a kernel of its own"};
  for (std::size_t kind = 0; kind < 3; ++kind) {
    if (used[kind]) {
      legend.push_back({names[kind], Canvas::fill(detail::step_color(static_cast<StepKind>(kind))) +
                                         " fill-opacity=\"0.55\""});
    }
  }
  const std::string title =
      detail::cat({"Memory of intermediate results: ", format_bytes(block), " in one block, ",
                   format_bytes(unshared), " side by side"});
  const double left = 82, right = 876, top = 112, bottom = 412;
  Canvas canvas(900, bottom + 54);
  detail::draw_heading(canvas, title,
                       detail::cat({"each box is a buffer, from the kernel that writes it to the "
                                    "last that reads it; at most ",
                                    format_bytes(peak), " are in use at once"}));
  detail::draw_swatches(canvas, legend, 20, right, 72);
  const detail::ByteScale bytes(top, bottom, shown * 1.04);
  const double wide = (right - left) / static_cast<double>(std::max<std::size_t>(steps, 1));
  for (const double tick : detail::linear_ticks({"", Scale::linear, 0, bytes.most / bytes.unit})) {
    const double y = bytes.y(tick * bytes.unit);
    canvas.line(left, y, right, y, Canvas::grid());
    canvas.label(left - 7, y + 4, detail::tick_text(tick), 12, Anchor::end, Canvas::soft());
  }
  for (const BufferLife& buffer : buffers) {
    const double low = 4.0 * static_cast<double>(buffer.offset);
    const double high = low + 4.0 * static_cast<double>(buffer.count);
    const double x = left + wide * buffer.first + 0.5, y = bytes.y(high);
    const double width = wide * (buffer.last - buffer.first + 1) - 1;
    const double height = bytes.y(low) - y;
    const StepKind kind = plan.steps()[static_cast<std::size_t>(buffer.first)].kind;
    canvas.rect(x, y, std::max(width, 1.0), std::max(height - 0.6, 0.8),
                Canvas::fill(detail::step_color(kind)) + " fill-opacity=\"0.55\"");
    const std::string long_name =
        detail::cat({"%", buffer.node, " ", detail::made_by(plan.graph(), buffer.node)});
    const std::string short_name = detail::cat({"%", buffer.node});
    const bool fits = detail::drawn_width(long_name, 10.5) < width - 4;
    if (height > 12 && detail::drawn_width(fits ? long_name : short_name, 10.5) < width - 2) {
      canvas.label(x + width / 2, y + height / 2 + 4, fits ? long_name : short_name, 10.5,
                   Anchor::middle);
    }
  }
  if (buffers.empty()) {
    canvas.label((left + right) / 2, (top + bottom) / 2, "no intermediate results", 14,
                 Anchor::middle, Canvas::soft());
  }
  std::vector<double> xs, ys;
  for (std::size_t s = 0; s < steps && !buffers.empty(); ++s) {
    for (const std::size_t end : {s, s + 1}) {
      xs.push_back(left + wide * static_cast<double>(end));
      ys.push_back(bytes.y(in_use[s]));
    }
  }
  if (!xs.empty()) {
    canvas.path(xs, ys, Canvas::axis() + " stroke-width=\"1.6\" stroke-dasharray=\"4 2\"");
  }
  const auto level = [&](double at, const std::string& words, const std::string& style) {
    canvas.line(left, bytes.y(at), right, bytes.y(at), style);
    canvas.label(right, bytes.y(at) - 5, words, 12, Anchor::end);
  };
  if (!buffers.empty()) {
    level(block, "the block, " + format_bytes(block), Canvas::stroke(3, 1.6));
  }
  if (unshared > 1.02 * block && unshared <= shown) {
    level(unshared, "side by side, " + format_bytes(unshared), Canvas::stroke(4, 1.6));
  } else if (unshared > shown) {
    canvas.label(right, top - 8,
                 detail::cat({"side by side, ", format_bytes(unshared), ": ",
                              format_fixed(unshared / block, 1), " times the block, above here"}),
                 12, Anchor::end);
  }
  canvas.line(left, bottom, right, bottom, Canvas::axis());
  canvas.line(left, top, left, bottom, Canvas::axis());
  const std::size_t stride = std::max<std::size_t>(1, (steps + 19) / 20);
  for (std::size_t s = 0; s < steps; s += stride) {
    canvas.label(left + wide * (static_cast<double>(s) + 0.5), bottom + 17, detail::cat({s}), 12,
                 Anchor::middle, Canvas::soft());
  }
  canvas.label((left + right) / 2, bottom + 38, "kernel; grey: in use", 13, Anchor::middle);
  canvas.label_upward(24, (top + bottom) / 2, "place in the block, " + bytes.name, 13);
  return canvas.finish(title);
}

template <class Tag = void,
          class Json = decltype(mime_bundle_repr(std::declval<detail::probe<Tag>>()))>
Json mime_bundle_repr(const Graph& graph) {
  Json bundle = Json::object();
  bundle["text/plain"] = graph.text();
  bundle["image/svg+xml"] = svg(graph).markup();
  return bundle;
}

template <class Tag = void,
          class Json = decltype(mime_bundle_repr(std::declval<detail::probe<Tag>>()))>
Json mime_bundle_repr(const GraphPlan& plan) {
  const Svg picture = svg(plan);
  Json bundle = Json::object();
  bundle["text/plain"] = picture.text;
  bundle["image/svg+xml"] = picture.markup();
  return bundle;
}

template <class Tag = void,
          class Json = decltype(mime_bundle_repr(std::declval<detail::probe<Tag>>()))>
Json mime_bundle_repr(const BytesWaterfall& waterfall) {
  Json bundle = Json::object();
  bundle["text/plain"] = waterfall.table().text();
  bundle["image/svg+xml"] = svg(waterfall).markup();
  return bundle;
}

template <class Tag = void,
          class Json = decltype(mime_bundle_repr(std::declval<detail::probe<Tag>>()))>
Json mime_bundle_repr(const CompileReport& report) {
  Json bundle = Json::object();
  bundle["text/plain"] = report.table().text();
  bundle["text/html"] = detail::html_table(report.table());
  return bundle;
}

// What the notebook shows of it; a table or words on a terminal.
inline void show(const GraphPlan& plan, const ShowOptions& options = {}) {
  show(svg(plan), options);
}
inline void show(const CompileReport& report, const ShowOptions& options = {}) {
  show(report.table(), options);
}

}  // namespace tinyscale
