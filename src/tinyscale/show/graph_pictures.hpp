#pragma once
// A graph as boxes and arrows from top to bottom, and a plan of it: each kernel an enclosure around
// the ops that it computes.

#include <algorithm>  // max, min
#include <cstddef>    // size_t
#include <string>     // words
#include <vector>     // strings

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/compile/graph_plan.hpp"
#include "tinyscale/show/graph_boxes.hpp"
#include "tinyscale/show/layered_layout.hpp"
#include "tinyscale/show/step_colors.hpp"
#include "tinyscale/show/svg.hpp"

namespace tinyscale {
namespace detail {

inline std::size_t kind_color(OpKind kind) {
  switch (kind) {
    case OpKind::elementwise: return 2;
    case OpKind::reduction:
    case OpKind::row: return 3;
    case OpKind::product: return 0;
    case OpKind::whole: return 1;
    case OpKind::collective: return 4;
    case OpKind::source: return 7;
    default: return 6;
  }
}
inline const char* color_name(std::size_t color) {
  static const char* const names[] = {
      "products", "whole ops (attention, ...)", "elementwise",         "along rows", "collectives",
      "",         "views and copies",           "inputs and constants"};
  return names[color];
}
inline std::size_t step_color(StepKind kind) {
  return kind == StepKind::product ? 0 : kind == StepKind::vectors ? 2 : 1;
}
inline std::string box_fill(std::size_t color) {
  return color == 7 ? idle_fill() : Canvas::fill(color) + " fill-opacity=\"0.22\"";
}

constexpr std::size_t most_drawn = 80, many_drawn = 48;  // kernels
constexpr double op_box_height = 38;

inline double op_box_width(const OpBox& op) {
  return 20 + std::max(drawn_width(op.title, 12), drawn_width(op.below, 10.5));
}

// From (x1, y1) straight down to y, then in a bow to (x2, y2).
inline void draw_way(Canvas& canvas, double x1, double y1, double y, double x2, double y2) {
  std::vector<double> xs = {x1}, ys = {y1};
  constexpr int pieces = 10;
  const bool straight = x1 - x2 < 0.5 && x2 - x1 < 0.5;
  for (int i = 0; i <= pieces && !straight; ++i) {
    const double t = static_cast<double>(i) / pieces;
    xs.push_back(x1 + (x2 - x1) * t * t * (3 - 2 * t));
    ys.push_back(y + (y2 - y) * t);
  }
  xs.push_back(x2);
  ys.push_back(y2);
  canvas.path(xs, ys, Canvas::axis() + " stroke-width=\"1.2\"");
}
inline void draw_head(Canvas& canvas, double x, double y) {
  canvas.area({x, x - 3.5, x + 3.5}, {y, y - 7, y - 7}, Canvas::soft());
}

inline void draw_arrows(Canvas& canvas, const LayeredLayout& layout, double left, double top) {
  for (std::size_t b = 0; b < layout.boxes.size(); ++b) {
    const LayeredBox& box = layout.boxes[b];
    const int number = static_cast<int>(b);
    const List<int> arrows = layout.arrows_into(number);
    const double step = std::min(16.0, box.width / static_cast<double>(arrows.size() + 1));
    double x = box.middle() - step * (static_cast<double>(arrows.size()) - 1) / 2;
    for (const int arrow : arrows) {
      const LayeredBox& from =
          layout
              .boxes[static_cast<std::size_t>(layout.arrows[static_cast<std::size_t>(arrow)].from)];
      const double end = top + box.y - (layout.is_bend(number) ? 0 : 1);
      draw_way(canvas, left + from.middle(), top + from.y + from.height,
               top + layout.bottom_of(from.layer), left + x, end);
      if (!layout.is_bend(number)) {
        draw_head(canvas, left + x, end);
      }
      x += step;
    }
  }
}

inline void draw_op(Canvas& canvas, const OpBox& op, const std::string& fill, double x, double y,
                    double width) {
  canvas.rect(x, y, width, op_box_height, fill + " rx=\"4\"");
  if (op.returned) {
    canvas.rect(x, y, width, op_box_height,
                "rx=\"4\" fill=\"none\" " + Canvas::axis() + " stroke-width=\"2.5\"");
  }
  canvas.label(x + width / 2, y + 16, op.title, 12, Anchor::middle);
  canvas.label(x + width / 2, y + 31, op.below, 10.5, Anchor::middle, Canvas::soft());
}

// The ops of one kernel among themselves.
inline LayeredLayout inner_layout(const Graph& graph, const GraphBoxes& boxes,
                                  const DrawnKernel& kernel, const List<int>& shown) {
  List<LayeredBox> all;
  List<LayeredLayout::Arrow> arrows;
  for (std::size_t i = 0; i < kernel.ops.size(); ++i) {
    LayeredBox box;
    box.width = op_box_width(kernel.ops[i]);
    box.height = op_box_height;
    all.push_back(box);
    for (std::size_t j = 0; j < i; ++j) {
      bool reads = false;
      for (const int input : graph[kernel.ops[i].node].inputs) {
        reads = reads || shown[static_cast<std::size_t>(boxes.drawn(input))] == kernel.ops[j].node;
      }
      if (reads) {
        arrows.push_back({static_cast<int>(j), static_cast<int>(i)});
      }
    }
  }
  return LayeredLayout(all, arrows, 14, 20);
}

// Boxes, enclosures, arrows; a legend above.
inline Svg draw_graph(const Graph& graph, const GraphBoxes& boxes, const GraphDrawing& drawing,
                      const std::string& title, const std::string& about,
                      const List<Swatch>& legend) {
  List<LayeredLayout> inner;
  List<LayeredBox> outer;
  for (const DrawnKernel& kernel : drawing.kernels) {
    inner.push_back(inner_layout(graph, boxes, kernel, drawing.shown));
    LayeredBox box;
    const bool framed = !kernel.title.empty();
    box.width = inner.back().width + (framed ? 20 : 0);
    box.width = framed ? std::max(box.width, drawn_width(kernel.title, 11) + 20) : box.width;
    box.height = inner.back().height + (framed ? 32 : 0);
    outer.push_back(box);
  }
  const bool large = drawing.kernels.size() > many_drawn;
  const LayeredLayout layout(outer, drawing.arrows, 22, 34, large ? 6 : 1 << 30);
  std::string below = about;
  if (layout.left_out > 0) {
    below += cat({"; ", layout.left_out,
                  " arrows over more than 6 layers are not drawn: the "
                  "numbers in the boxes name all operands"});
  }
  const double words = std::max(drawn_width(title, 16) * 0.95, drawn_width(below, 12));
  const double width = std::max(std::max(520.0, words + 40), layout.width + 40);
  Canvas unseen(0, 0);
  const double top = draw_swatches(unseen, legend, 20, width - 20, 72) + 8;
  Canvas canvas(width, top + layout.height + 24);
  draw_heading(canvas, title, below);
  draw_swatches(canvas, legend, 20, width - 20, 72);
  const double left = (width - layout.width) / 2;
  draw_arrows(canvas, layout, left, top);
  for (std::size_t k = 0; k < drawing.kernels.size(); ++k) {
    const DrawnKernel& kernel = drawing.kernels[k];
    const LayeredBox& box = layout.boxes[k];
    const double x = left + box.x, y = top + box.y;
    const bool framed = !kernel.title.empty();
    if (framed) {
      canvas.rect(x, y, box.width, box.height, "rx=\"8\" class=\"ts-paper\" fill=\"#ffffff\"");
      canvas.rect(x, y, box.width, box.height, "rx=\"8\"" + box_fill(kernel.color));
      canvas.rect(x, y, box.width, box.height,
                  "rx=\"8\" fill=\"none\"" + Canvas::stroke(kernel.color, 1.2));
      canvas.label(x + 10, y + 16, kernel.title, 11, Anchor::start, Canvas::bold());
    } else {
      canvas.rect(x, y, box.width, box.height, "rx=\"4\" class=\"ts-paper\" fill=\"#ffffff\"");
    }
    const double in_x = x + (box.width - inner[k].width) / 2, in_y = y + (framed ? 23 : 0);
    draw_arrows(canvas, inner[k], in_x, in_y);
    for (std::size_t i = 0; i < kernel.ops.size(); ++i) {
      const LayeredBox& place = inner[k].boxes[i];
      draw_op(canvas, kernel.ops[i],
              framed ? "class=\"ts-paper\" fill=\"#ffffff\"" : box_fill(kernel.color),
              in_x + place.x, in_y + place.y, place.width);
    }
  }
  return canvas.finish(title + "; " + below);
}

}  // namespace detail

// A box an op, with the numbers of its operands; its own number and its shape below.
inline Svg svg(const Graph& graph) {
  const detail::GraphBoxes boxes(graph, true);
  detail::GraphDrawing drawing;
  List<int> place(graph.nodes.size());
  bool used[8] = {}, returned = false;
  for (int i = 0; i < graph.size(); ++i) {
    if (!boxes.is_drawn(i)) {
      continue;
    }
    detail::DrawnKernel kernel;
    kernel.ops.push_back(boxes.box(i));
    kernel.color = detail::kind_color(facts_of(graph[i].op).kind);
    used[kernel.color] = true;
    returned = returned || kernel.ops[0].returned;
    place[static_cast<std::size_t>(i)] = static_cast<int>(drawing.kernels.size());
    for (const int input : graph[i].inputs) {
      if (boxes.literal(input) == nullptr) {
        drawing.arrows.push_back({place[static_cast<std::size_t>(boxes.drawn(input))],
                                  static_cast<int>(drawing.kernels.size())});
      }
    }
    drawing.kernels.push_back(kernel);
  }
  detail::condense(graph, drawing, detail::most_drawn);
  detail::write_boxes(boxes, drawing);
  List<detail::Swatch> legend;
  for (const std::size_t color : {7U, 2U, 3U, 0U, 1U, 4U, 6U}) {
    if (used[color]) {
      legend.push_back({detail::color_name(color), detail::box_fill(color)});
    }
  }
  if (returned) {
    legend.push_back(
        {"returned", "fill=\"none\" " + detail::Canvas::axis() + " stroke-width=\"2.5\""});
  }
  return detail::draw_graph(
      graph, boxes, drawing,
      detail::cat({"A graph of ", graph.size(), graph.size() == 1 ? " node" : " nodes"}),
      "literals stand where they are read" + detail::not_drawn(drawing, "nodes"), legend);
}

namespace detail {

// One kernel for each step, one box for each input and constant that a step reads.
inline GraphDrawing drawing_of(const GraphPlan& plan, const GraphBoxes& boxes) {
  const Graph& graph = plan.graph();
  GraphDrawing drawing;
  List<int> place(graph.nodes.size());
  for (int& at : place) {
    at = -1;
  }
  const auto add_read = [&](int node) {
    int& at = place[static_cast<std::size_t>(node)];
    if (at < 0) {
      DrawnKernel source;
      source.ops.push_back(boxes.box(node));
      source.color = kind_color(facts_of(graph[node].op).kind);
      at = static_cast<int>(drawing.kernels.size());
      drawing.kernels.push_back(source);
    }
  };
  for (std::size_t s = 0; s < plan.steps().size(); ++s) {
    const Step& step = plan.steps()[s];
    DrawnKernel kernel;
    kernel.color = step_color(step.kind);
    kernel.title = cat({"kernel ", s, ", ", format_bytes(plan.records()[s].bytes())});
    std::vector<int> reads;
    for (const int node : step.nodes) {
      kernel.ops.push_back(boxes.box(node));
      for (const int input : graph[node].inputs) {
        if (boxes.literal(input) == nullptr) {
          reads.push_back(boxes.drawn(input));
        }
      }
    }
    const int missing = -2;
    for (const int node : step.nodes) {
      place[static_cast<std::size_t>(node)] = missing;  // its own
    }
    for (const int node : reads) {
      if (place[static_cast<std::size_t>(node)] != missing) {
        add_read(node);
      }
    }
    const int own = static_cast<int>(drawing.kernels.size());
    for (const int node : reads) {
      const int from = place[static_cast<std::size_t>(node)];
      if (from != missing) {
        drawing.arrows.push_back({from, own});
      }
    }
    for (const int node : step.nodes) {
      place[static_cast<std::size_t>(node)] = own;
    }
    drawing.kernels.push_back(kernel);
  }
  return drawing;
}

}  // namespace detail

// What fusion made of a graph: an enclosure is one kernel, which reads and writes memory once.
inline Svg svg(const GraphPlan& plan) {
  const detail::GraphBoxes boxes(plan.graph(), false);
  detail::GraphDrawing drawing = detail::drawing_of(plan, boxes);
  detail::condense(plan.graph(), drawing, detail::most_drawn);
  detail::write_boxes(boxes, drawing);
  double bytes = 0;
  bool used[3] = {}, sources = false, returned = false;
  for (const OpRecord& record : plan.records()) {
    bytes += record.bytes();
  }
  for (const Step& step : plan.steps()) {
    used[static_cast<std::size_t>(step.kind)] = true;
  }
  for (const detail::DrawnKernel& kernel : drawing.kernels) {
    sources = sources || kernel.title.empty();
    for (const detail::OpBox& op : kernel.ops) {
      returned = returned || op.returned;
    }
  }
  static const char* const names[] = {"ops in one pass over memory",
                                      "a product with what follows it", "a kernel of its own"};
  List<detail::Swatch> legend;
  for (std::size_t kind = 0; kind < 3; ++kind) {
    if (used[kind]) {
      legend.push_back(
          {names[kind], detail::box_fill(detail::step_color(static_cast<StepKind>(kind)))});
    }
  }
  if (sources) {
    legend.push_back({"inputs and constants", detail::idle_fill()});
  }
  if (returned) {
    legend.push_back(
        {"returned", "fill=\"none\" " + detail::Canvas::axis() + " stroke-width=\"2.5\""});
  }
  const std::size_t steps = plan.steps().size();
  return detail::draw_graph(
      plan.graph(), boxes, drawing,
      detail::cat(
          {"A plan of ", steps, steps == 1 ? " kernel: " : " kernels: ", format_bytes(bytes)}),
      "an enclosure is a kernel; views move nothing and are not drawn" +
          detail::not_drawn(drawing, "kernels"),
      legend);
}

}  // namespace tinyscale
