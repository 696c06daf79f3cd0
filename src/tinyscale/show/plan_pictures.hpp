#pragma once
// Pictures of plans: when each strategy is bound by math, a step from its limit to its typical
// time, what the fastest layouts hold, a layer's matmuls under the chip's roof, and latency of
// serving against its price.

#include <algorithm>  // max
#include <cstddef>    // std::size_t
#include <string>     // text
#include <vector>     // curves

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/plan/serving_frontier.hpp"
#include "tinyscale/plan/strategy_regimes.hpp"
#include "tinyscale/plan/training.hpp"
#include "tinyscale/show/pictures.hpp"
#include "tinyscale/show/plot.hpp"
#include "tinyscale/show/step_colors.hpp"
#include "tinyscale/show/step_pictures.hpp"

namespace tinyscale {

namespace detail {

// 99.9, 1,068
inline std::string token_text(double tokens) {
  return tokens < 1000 ? printed('g', 3, tokens) : format_count(tokens);
}

}  // namespace detail

// T_math / T_comms against tokens a chip; rings where they are equal.
inline Svg svg(const StrategyRegimes& regimes) {
  Plot plot;
  plot.title = "Bound by math from which batch? " + regimes.title;
  plot.x = {"tokens of a batch for each chip", Scale::logarithmic, 0, 0};
  plot.y = {"T_math / T_comms, by formula", Scale::logarithmic, 0, 0};
  Series equal;
  equal.mark = Mark::hollow_points;
  double lowest = 1, highest = 1;
  for (const StrategyCurve& curve : regimes.curves) {
    std::string name = curve.name;
    name += curve.threshold > 0    ? ": from " + detail::token_text(curve.threshold)
            : curve.threshold == 0 ? ": always"
                                   : ": never";
    plot.series.push_back({name, regimes.tokens_per_chip, curve.ratio, Mark::line});
    if (curve.threshold > 0) {
      equal.x.push_back(curve.threshold);
      equal.y.push_back(1);
    }
    for (const double ratio : curve.ratio) {
      lowest = std::min(lowest, ratio);
      highest = std::max(highest, ratio);
    }
  }
  if (regimes.tokens_per_chip.empty()) {
    detail::fail(
        {"svg: the strategy regimes have no tokens per chip; strategy_regimes() fills them"});
  }
  const std::vector<double> ends = {regimes.tokens_per_chip.front(),
                                    regimes.tokens_per_chip.back()};
  plot.series.push_back({"T_math = T_comms", ends, {1, 1}, Mark::line});
  plot.series.push_back({"this job: " + detail::token_text(regimes.planned),
                         {regimes.planned, regimes.planned},
                         {lowest, highest},
                         Mark::line});
  plot.series.push_back(equal);
  return svg(plot);
}

namespace detail {

// The typical step: math at the peak, what it takes longer, and all else that is not hidden.
inline List<TimeShare> step_ledger(const TrainingPlan& plan) {
  const StepPrice& price = plan.best.price;
  const StepCost& t = price.typical;
  const double run = t.matmul + t.attention + t.head;
  const double peak = std::min(price.limit.math, run);
  List<TimeShare> out = {{"math at the peak", peak, TimeShare::Kind::compute},
                         {"below the peak", run - peak, TimeShare::Kind::compute}};
  for (const Cause& cause : causes_of(t)) {
    const std::string name = cause.name;
    const bool shown = name != "matmul" && name != "attention" && name != "head";
    const bool computes = name == "elementwise" || name == "recompute" || name == "update";
    if (shown && cause.seconds > 0) {
      out.push_back({name, cause.seconds,
                     computes            ? TimeShare::Kind::compute
                     : name == "waiting" ? TimeShare::Kind::idle
                                         : TimeShare::Kind::wait});
    }
  }
  const double more = plan.best.typical_time - t.total();
  if (more > 1e-12) {
    out.push_back({"until the links are done", more, TimeShare::Kind::wait});
  }
  return out;
}

struct HeldPart {
  std::string name;
  double bytes;
};

inline List<HeldPart> held_parts(const StepMemory& m) {
  const PlannedMemory& p = m.parts;
  return {{"weights", p.weights},         {"gradients", p.gradients},
          {"optimizer", p.optimizer},     {"gathered weights", p.gathered},
          {"activations", p.activations}, {"computed again", p.recomputed},
          {"logits", p.logits},           {"waste, runtime", m.wasted + m.system}};
}

inline std::string held_style(std::size_t part) { return part < 7 ? Canvas::fill(part) : pale(0); }

}  // namespace detail

// From math at the chip's peak to the typical step, cause by cause.
inline Svg step_waterfall(const TrainingPlan& plan) {
  return waterfall(detail::step_ledger(plan),
                   detail::cat({plan.model, " on ", plan.machine, ", limit ",
                                format_seconds(plan.best.step_time)}),
                   "time by formula");
}

// What the fullest chip of the fastest layouts holds, beside what a chip has.
inline Svg memory_bars(const TrainingPlan& plan, std::size_t most = 6) {
  using detail::Anchor;
  using detail::Canvas;
  const std::size_t bars = std::min(most, plan.layouts.size());
  double scale = plan.on.chip.memory_bytes;
  for (std::size_t i = 0; i < bars; ++i) {
    scale = std::max(scale, plan.layouts[i].memory);
  }
  if (bars == 0 || !(scale > 0)) {
    detail::fail({"memory_bars: the plan has ", plan.layouts.size(), " layouts and its chip ",
                  plan.on.chip.memory_bytes, " bytes; one layout or more and a memory is right"});
  }
  List<detail::Swatch> legend;
  const List<detail::HeldPart> names = detail::held_parts(plan.layouts[0].memory_parts);
  for (std::size_t p = 0; p < names.size(); ++p) {
    legend.push_back({names[p].name, detail::held_style(p)});
  }
  const double left = 20, right = 770, row = 44;
  Canvas unseen(0, 0);
  const double top = detail::draw_swatches(unseen, legend, left, 876, 72);
  const double bottom = top + row * static_cast<double>(bars) + 4;
  Canvas canvas(900, bottom + 30);
  detail::draw_heading(canvas,
                       detail::cat({"Memory of the fullest chip, ", plan.model, " on ",
                                    plan.machine, ", by formula"}),
                       "the fastest layouts, the first is the plan's; the line is what a chip has");
  detail::draw_swatches(canvas, legend, left, 876, 72);
  std::string text = detail::cat({plan.model, " on ", plan.machine, ", fullest chip"});
  const double line = left + plan.on.chip.memory_bytes / scale * (right - left);
  for (std::size_t i = 0; i < bars; ++i) {
    const TrainingLayout& layout = plan.layouts[i];
    const double y = top + row * static_cast<double>(i);
    canvas.label(left, y + 14, detail::shorten(layout.text(), 110), 12, Anchor::start);
    double at = left;
    std::size_t p = 0;
    for (const detail::HeldPart& part : detail::held_parts(layout.memory_parts)) {
      const double wide = part.bytes / scale * (right - left);
      if (part.bytes > 0) {
        canvas.rect(at, y + 19, wide, 15, detail::held_style(p));
      }
      at += wide;
      ++p;
    }
    const double beside = at + 6 < line && at + 110 > line ? line : at;  // not across the line
    canvas.label(beside + 6, y + 31,
                 format_bytes(layout.memory) + ", " + format_seconds(layout.typical_time), 11,
                 Anchor::start, Canvas::soft());
    text += detail::cat({"; ", layout.text(), ": ", format_bytes(layout.memory)});
  }
  if (plan.on.chip.memory_bytes > 0) {
    canvas.line(line, top, line, bottom, Canvas::axis() + " stroke-width=\"2\"");
    canvas.label(line, bottom + 16, "a chip has " + format_bytes(plan.on.chip.memory_bytes), 12,
                 Anchor::middle, Canvas::soft());
  }
  return canvas.finish(text);
}

// The roof of a chip in a format; memory alone, or its levels.
inline RooflinePlot roofline_plot(const Chip& chip, DType format = DType::bf16) {
  RooflinePlot plot;
  plot.title = "Roofline of " + chip.name + " in " + name_of(format);
  plot.peak_flops_per_second = chip.peak(format);
  plot.vector_flops_per_second = chip.vector_flops;
  if (chip.sram_bandwidth > 0) {
    plot.roofs.push_back({"on-chip memory", chip.sram_bandwidth});
  }
  if (chip.l2_bandwidth > 0) {
    plot.roofs.push_back({"L2", chip.l2_bandwidth});
  }
  if (chip.memory_bandwidth > 0 && chip.memory_bandwidth != chip.sram_bandwidth) {
    plot.roofs.push_back({"memory", chip.memory_bandwidth});
  }
  return plot;
}
inline Svg roofline_picture(const Chip& chip, DType format = DType::bf16) {
  return svg(roofline_plot(chip, format));
}

// The matmuls of a layer in the shapes that are left on a chip, forward, under the chip's roof.
inline Svg roofline_picture(const TrainingPlan& plan) {
  const ModelConfig& model = plan.job.model;
  RooflinePlot plot = roofline_plot(plan.on.chip, plan.job.format);
  plot.title += ": a layer of " + plan.model;
  plot.vector_flops_per_second = 0;  // matmuls alone
  const double context = static_cast<double>(model.context);
  const LayerWork work = layer_work(model, plan.best.layout, plan.best.price.microbatch, context,
                                    model.mixture_layers() > 0);
  for (int i = 0; i < work.count; ++i) {
    const MatmulShape& s = work.matmuls[i];
    const double bytes = bytes_of(plan.job.format) * (s.m * s.k + s.k * s.n + s.m * s.n);
    const double intensity = 2 * s.m * s.k * s.n / bytes;
    RooflinePoint point;
    point.name = detail::cat({s.m, " x ", s.k, " x ", s.n});
    point.flops_per_byte = intensity;
    point.flops_per_second =
        std::min(plot.peak_flops_per_second, intensity * plan.on.chip.memory_bandwidth);
    plot.points.push_back(point);
  }
  return svg(plot);
}

// Every plan of the search, and those that no other beats in both latency and price; where no price
// is known, in throughput. Beside those: chips x sequences.
inline Svg svg(const ServingFrontier& frontier) {
  bool priced = !frontier.points.empty();
  for (const FrontierPoint& p : frontier.points) {
    priced = priced && p.dollars_per_million_tokens > 0;
  }
  Plot plot;
  plot.title = frontier.title;
  plot.x = {"milliseconds a token, by formula", Scale::logarithmic, 0, 0};
  plot.y = {priced ? "USD for a million tokens" : "tokens/s for each chip", Scale::logarithmic, 0,
            0};
  Series best, points, all;
  best.name = "frontier, chips x sequences";
  points.mark = Mark::points;
  all.name = "beaten by another";
  all.mark = Mark::hollow_points;
  for (const FrontierPoint& p : frontier.points) {
    const double y = priced ? p.dollars_per_million_tokens : p.tokens_per_second_per_chip;
    for (Series* to : {&best, &points, &all}) {
      if (p.best == (to != &all)) {
        to->x.push_back(1e3 * p.step_seconds);
        to->y.push_back(y);
      }
    }
  }
  plot.series = {best, all};
  plot.series.push_back(points);
  detail::Canvas canvas(plot.width, plot.height);
  const detail::Frame frame = detail::draw_plot(canvas, plot);
  std::string text = frontier.title;
  std::size_t at = 0;
  for (const FrontierPoint& p : frontier.best()) {
    const std::string batch = detail::cat({p.chips, " x ", p.batch});
    const double x = frame.px(best.x[at]), y = frame.py(best.y[at]);
    const bool left = x > frame.left + 60;  // towards where no plan is, where there is room
    canvas.label(left ? x - 7 : x + 7, priced && left ? y + 14 : y - 6, batch, 11,
                 left ? detail::Anchor::end : detail::Anchor::start, detail::Canvas::soft());
    text += detail::cat(
        {"; ", batch, ": ", format_seconds(p.step_seconds), ", ", detail::tick_text(best.y[at])});
    ++at;
  }
  return canvas.finish(text);
}

}  // namespace tinyscale
