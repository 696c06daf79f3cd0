#pragma once
// A training plan as tables: what it costs, the step by cause, memory by part, the best layouts,
// and why not their neighbours.

#include <algorithm>  // min
#include <cmath>      // floor
#include <cstddef>    // std::size_t
#include <iostream>   // ostream
#include <string>     // text

#include "tinyscale/base/text.hpp"
#include "tinyscale/plan/training.hpp"

namespace tinyscale {

inline Table TrainingPlan::table() const {
  Table out;
  out.title = detail::cat({"Training ", model, " on ", machine, ", ", best.text()});
  out.columns = {"quantity", "formula"};
  const auto row = [&](const std::string& name, const Cell& value) { out.add({name, value}); };
  row("tokens", format_count(tokens.value()));
  row("batch, tokens", format_count(batch.value()));
  row("tokens per chip", detail::short_number(tokens_per_chip.value()));
  row("  bound by math above", detail::short_number(threshold.value()));
  row("T_step at the limit", step_time.text());
  row("  bound by", best.bound);
  row("T_step, typical", typical_step_time.text());
  row("MFU at the limit", format_percent(limit_mfu.value()));
  row("MFU, typical", format_percent(typical_mfu.value()));
  row("memory of the fullest chip", memory.text());
  row("goodput", format_percent(goodput.value()));
  row("  a checkpoint every", checkpoint_interval.value() > 0 ? checkpoint_interval.text() : "-");
  row("days at the limit", detail::short_number(limit_days.value()));
  row("days, typical", detail::short_number(days.value()));
  row("dollars, typical",
      dollars.value() > 0 ? Cell(format_count(std::floor(dollars.value())), dollars.value(), "USD")
                          : "-");
  row("energy, typical", energy.value() > 0 ? format_si(energy.value(), "Wh") : "-");
  return out;
}

inline Table TrainingPlan::cause_table() const {
  Table out;
  out.title = "one step by cause";
  out.columns = {"part", "limit formula", "typical formula", "share", "of what"};
  const StepLimit& l = best.price.limit;
  const bool gathers = best.layout.zero == Zero::parameters && best.layout.pipeline == 1;
  const auto limit = [](double seconds) { return seconds > 0 ? format_seconds(seconds) : "-"; };
  for (const detail::Cause& cause : detail::causes_of(best.price.typical)) {
    const std::string name = cause.name;
    const double bound = name == "matmul"        ? l.math
                         : name == "tensor"      ? l.tensor
                         : name == "context"     ? l.context
                         : name == "expert"      ? l.expert
                         : name == "bubble"      ? l.bubble
                         : name == "gradients"   ? (gathers ? 0 : l.data)
                         : name == "gather"      ? (gathers ? l.data : 0)
                         : name == "elementwise" ? l.memory
                                                 : 0;
    if (cause.seconds > 0 || bound > 0) {
      out.add({name, limit(bound), format_seconds(cause.seconds),
               format_percent(cause.seconds / best.price.typical.total()), cause.what});
    }
  }
  out.add({"step", format_seconds(best.step_time), format_seconds(best.typical_time),
           format_percent(1),
           "limit: the longest, math with attention and the bubble; typical: the sum"});
  return out;
}

inline Table TrainingPlan::memory_table() const {
  Table out;
  out.title = detail::cat({"memory of the fullest chip, pipeline rank ", best.memory_parts.rank});
  out.columns = {"part", "formula"};
  const PlannedMemory& p = best.memory_parts.parts;
  const auto row = [&](const char* name, double bytes) { out.add({name, format_bytes(bytes)}); };
  row("weights", p.weights);
  row("gradients", p.gradients);
  row("optimizer", p.optimizer);
  row("gathered weights", p.gathered);
  row("activations", p.activations);
  row("a layer computed again", p.recomputed);
  row("logits", p.logits);
  row("wasted by the allocator", best.memory_parts.wasted);
  row("runtime", best.memory_parts.system);
  row("all", best.memory);
  if (on.chip.memory_bytes > 0) row("a chip holds", on.chip.memory_bytes);
  return out;
}

inline Table TrainingPlan::layout_table() const {
  Table out;
  out.title = "Fastest layouts";
  out.columns = {"layout", "microbatch", "limit formula", "bound by", "typical formula", "memory"};
  for (std::size_t i = 0; i < std::min<std::size_t>(5, layouts.size()); ++i) {
    const TrainingLayout& l = layouts[i];
    out.add({l.text(), detail::short_number(l.price.microbatch), format_seconds(l.step_time),
             l.bound, format_seconds(l.typical_time), format_bytes(l.memory)});
  }
  return out;
}

inline Table TrainingPlan::why_not_table() const {
  Table out;
  out.title = "Why not";
  out.columns = {"instead", "first constraint", "reason"};
  for (const WhyNot& other : neighbours) {
    out.add({other.change, other.constraint, other.reason});
  }
  return out;
}

inline std::ostream& operator<<(std::ostream& out, const TrainingPlan& plan) {
  out << plan.table() << "\n" << plan.cause_table() << "\n" << plan.memory_table() << "\n";
  if (plan.layouts.size() > 1) {
    out << plan.layout_table() << "\n";
  }
  if (!plan.neighbours.empty()) {
    out << plan.why_not_table() << "\n";
  }
  for (const std::string& note : plan.notes) {
    out << "- " << note << "\n";
  }
  return out;
}

}  // namespace tinyscale
