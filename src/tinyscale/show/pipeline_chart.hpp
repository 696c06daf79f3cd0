#pragma once
// A timed pipeline schedule as a Gantt chart: a row for each rank, forwards, backwards and their
// two halves in colours, the later of a rank's stages paler, the number of the microbatch in each
// op.

#include <algorithm>  // max, min
#include <cstddef>    // size_t
#include <string>     // string
#include <vector>     // vector

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/parallel/pipeline_timing.hpp"
#include "tinyscale/show/plot.hpp"
#include "tinyscale/show/svg.hpp"

namespace tinyscale {
namespace detail {

// The colour of a kind of work; the two halves of a backward are different.
inline std::size_t color_of(PipelineWork work) {
  return work == PipelineWork::forward           ? 0
         : work == PipelineWork::weight_gradient ? 2
         : work == PipelineWork::backward        ? 1
                                                 : 3;
}

inline List<Series> work_legend(const PipelineTiming& timing) {
  static const char* const names[] = {"F forward", "B backward", "I gradient of the input",
                                      "W gradient of the weights"};
  List<Series> legend(4);
  bool several = false;
  for (const List<TimedPipelineOp>& ops : timing.program) {
    for (const TimedPipelineOp& timed : ops) {
      Series& one = legend[color_of(timed.op.work)];
      one.name = names[static_cast<int>(timed.op.work)];
      one.mark = Mark::points;
      several = several || timed.op.stage != ops[0].op.stage;
    }
  }
  legend[0].name += several ? "; paler: a later stage of the rank" : "";
  return legend;
}

// An op's box, its microbatch where there is room; ops narrower than half a pixel join.
inline void draw_ops(Canvas& canvas, const List<TimedPipelineOp>& ops,
                     const std::vector<int>& chunks, double left, double y, double scale) {
  double drawn = left - 1;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const double x = left + ops[i].start * scale;
    const double wide = (ops[i].finish - ops[i].start) * scale;
    if (x + wide < drawn + 0.5) {
      continue;
    }
    drawn = x + wide;
    const double opacity = std::max(0.4, 1 - 0.3 * std::max(0, chunks[i]));
    canvas.rect(x, y, std::max(0.5, wide - (wide > 3 ? 1 : 0)), 20,
                Canvas::fill(color_of(ops[i].op.work)) + attribute("fill-opacity", opacity));
    const std::string number = std::to_string(ops[i].op.microbatch);
    if (drawn_width(number, 11) + 2 < wide) {
      canvas.label(x + wide / 2, y + 14, number, 11, Anchor::middle,
                   opacity > 0.6 ? "class=\"ts-paper\" fill=\"#ffffff\"" : Canvas::ink());
    }
  }
}

}  // namespace detail

// Of the first 64 ranks.
inline Svg svg(const PipelineTiming& timing) {
  using detail::Anchor;
  using detail::Canvas;
  const int ranks = std::min(timing.ranks, 64);
  const double left = 84, right = 876, scale = (right - left) / timing.total, track = 26;
  const List<Series> legend = detail::work_legend(timing);
  Canvas unseen(0, 0);
  const double top = detail::draw_legend(unseen, legend, 14, right, 54);
  const double bottom = top + track * ranks;
  Canvas canvas(900, bottom + 46);
  const std::string bubble = format_percent(timing.bubble());
  const std::string open = format_percent(timing.bubble_without_barrier());
  const std::string words = detail::cat(
      {timing.name, ": ", timing.ranks, timing.ranks == 1 ? " rank, " : " ranks, ",
       timing.microbatches, timing.microbatches == 1 ? " microbatch, " : " microbatches, ",
       "bubble ", bubble, open == bubble ? std::string() : " (" + open + " without barrier)", ", ",
       timing.peak_activations(), " held"});
  canvas.heading(words);
  detail::draw_legend(canvas, legend, 14, right, 54);
  const List<std::vector<int>> chunks = detail::chunks_of(timing);
  for (int r = 0; r < ranks; ++r) {
    const double y = top + track * r;
    canvas.label(left - 8, y + 14, detail::cat({"rank ", r}), 12, Anchor::end, Canvas::soft());
    canvas.rect(left, y, right - left, 20, "class=\"ts-empty\" fill=\"#e3e6ea\"");
  }
  for (const double tick : detail::linear_ticks({"", Scale::linear, 0, timing.total})) {
    const double x = left + tick * scale;
    canvas.line(x, top, x, bottom, Canvas::grid());
    canvas.label(x, bottom + 17, detail::tick_text(tick), 12, Anchor::middle, Canvas::soft());
  }
  canvas.label((left + right) / 2, bottom + 36, "time", 13, Anchor::middle);
  for (int r = 0; r < ranks; ++r) {
    const auto at = static_cast<std::size_t>(r);
    detail::draw_ops(canvas, timing.program[at], chunks[at], left, top + track * r, scale);
  }
  return canvas.finish(words);
}

}  // namespace tinyscale
