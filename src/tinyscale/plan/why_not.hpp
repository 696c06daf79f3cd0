#pragma once
// Why not another layout? Every layout one step from the best, and the first thing that rules it
// out: it does not divide, does not fit, or is slower, and which cause makes it so.

#include <algorithm>  // min
#include <cstdint>    // std::int64_t
#include <string>     // text

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/plan/layout_search.hpp"

namespace tinyscale {

struct WhyNot {
  std::string change;       // "tensor 8 instead of 4"
  std::string constraint;   // divisibility, memory, bandwidth, bubble, shapes, recompute, overhead
  std::string reason;       // in a sentence
  double typical_time = 0;  // s; 0: it cannot run
  Layout layout;
};

namespace detail {

// Empty, or the first thing that does not divide.
inline std::string undivided(const TrainingInputs& in, const Layout& layout, int chunks,
                             int besides = 0) {
  const auto context = static_cast<std::int64_t>(in.context);
  const std::string why = undivided_model(in.job.model, layout, chunks, besides);
  if (!why.empty()) {
    return why;
  }
  if (chunks > 1 && layout.microbatches % layout.pipeline != 0) {
    return cat({layout.microbatches, " microbatches are no multiple of pipeline ", layout.pipeline,
                ", which chunks need"});
  }
  if (layout.context > 1 && context % (2 * layout.context) != 0) {
    return cat({context, " tokens do not divide over twice context ", layout.context});
  }
  if (static_cast<double>(layout.data) > in.sequences) {
    return cat({"data ", layout.data, " is more than the ", in.sequences, " sequences of a batch"});
  }
  if (layout.microbatches > replica_sequences(in, layout)) {
    return cat({layout.microbatches, " microbatches are more than the ",
                replica_sequences(in, layout), " sequences of a replica"});
  }
  if (layout.sequence_parallel && context % (layout.context * layout.tensor) != 0) {
    return cat({context, " tokens do not divide over context ", layout.context, " x tensor ",
                layout.tensor, ", as sequence parallelism needs"});
  }
  return "";
}

// The cause that grew most from one typical time to another, by the constraint it stands for.
inline std::string grown_cause(const TrainingLayout& best, const TrainingLayout& other,
                               std::string& constraint) {
  const StepCost &from = best.price.typical, &to = other.price.typical;
  const auto places = [](const TrainingLayout& l) {
    return static_cast<double>(l.layout.data * l.layout.microbatches) * l.price.microbatch;
  };
  const bool empty = 2 * (places(other) / places(best) - 1) * from.matmul > to.matmul - from.matmul;
  const struct {
    const char *cause, *constraint;
    double grown;
  } causes[] = {
      {"of tensor-parallel messages", "bandwidth", to.tensor - from.tensor},
      {"of messages of context parallelism", "bandwidth", to.context - from.context},
      {"of messages to experts", "bandwidth", to.expert - from.expert},
      {"of messages between stages", "bandwidth", to.transfer - from.transfer},
      {"until weights are gathered", "bandwidth", to.gather - from.gather},
      {"until gradients are summed", "bandwidth", to.gradients - from.gradients},
      {"of the bubble", "bubble", to.bubble - from.bubble},
      {empty ? "of matmuls, on places of the batch that are empty"
             : "of matmuls, in smaller shapes",
       "shapes", to.matmul - from.matmul},
      {"of elementwise ops", "shapes", to.elementwise - from.elementwise},
      {"of the output matrix on one stage", "shapes", to.head - from.head},
      {"of layers computed again", "recompute", to.recompute - from.recompute},
      {"of the update", "overhead", to.update - from.update},
      {"of attention", "shapes", to.attention - from.attention},
  };
  int most = 0;
  for (int i = 1; i < 13; ++i) {
    most = causes[i].grown > causes[most].grown ? i : most;
  }
  if (!(causes[most].grown > 0)) {  // its limit is above all causes together
    constraint = "bandwidth";
    return "links at their published rate";
  }
  constraint = causes[most].constraint;
  return cat({format_seconds(causes[most].grown), " more ", causes[most].cause});
}

// What `layout` would be like beside the best.
inline WhyNot why_not(const TrainingInputs& in, const TrainingLayout& best,
                      const std::string& change, const Layout& layout, int chunks) {
  WhyNot out;
  out.change = change;
  out.layout = layout;
  out.reason = undivided(in, layout, chunks);
  if (!out.reason.empty()) {
    out.constraint = "divisibility";
    return out;
  }
  const StepMemory memory = memory_of(in, layout, chunks);
  const double holds = in.machine.chip.memory_bytes;
  if (holds > 0 && memory.total() > holds) {
    out.constraint = "memory";
    out.reason = cat({"needs ", format_bytes(memory.total()), " a chip of ", format_bytes(holds)});
    return out;
  }
  const List<Machine> orders = machine_orders(in.machine);
  const TrainingLayout priced =
      price_layout(in, in.step(), placed_links(orders, layout), layout, chunks);
  out.typical_time = priced.typical_time;
  if (priced.typical_time <= best.typical_time * 1.001) {
    out.constraint = "none";
    const double faster = 1 - priced.typical_time / best.typical_time;
    out.reason = cat({faster > 0.001 ? cat({format_percent(faster), " faster: "}) : "as fast: ",
                      format_seconds(priced.typical_time)});
    return out;
  }
  const std::string cause = grown_cause(best, priced, out.constraint);
  out.reason =
      cat({format_percent(priced.typical_time / best.typical_time - 1), " slower: ", cause});
  return out;
}

inline List<WhyNot> why_nots(const TrainingInputs& in, const TrainingLayout& best) {
  List<WhyNot> out;
  const auto add = [&](const std::string& change, const Layout& layout, int chunks) {
    out.push_back(why_not(in, best, change, layout, chunks));
  };
  std::int64_t Layout::*const axes[] = {&Layout::tensor, &Layout::pipeline, &Layout::context};
  const char* const names[] = {"tensor", "pipeline", "context"};
  for (int i = 0; i < 3; ++i) {
    for (const bool more : {true, false}) {
      Layout layout = best.layout;
      std::int64_t& axis = layout.*axes[i];
      if (more ? layout.data % 2 != 0 : axis % 2 != 0) {
        continue;
      }
      axis = more ? 2 * axis : axis / 2;
      layout.data = more ? layout.data / 2 : 2 * layout.data;
      const auto context = static_cast<std::int64_t>(in.context);
      layout.sequence_parallel =
          layout.tensor > 1 && context % (layout.context * layout.tensor) == 0;
      layout.whole_experts = layout.tensor > 1 && whole_experts_divide(in.job.model, layout) &&
                             (layout.tensor != best.layout.tensor || best.layout.whole_experts);
      layout.zero_devices = 0;
      layout.zero = layout.zero == Zero::none && layout.batch_devices() > 1 ? Zero::optimizer
                    : layout.batch_devices() > 1                            ? layout.zero
                                                                            : Zero::none;
      const double sequences = static_cast<double>(replica_sequences(in, layout));
      layout.microbatches = static_cast<std::int64_t>(
          std::max(1.0, std::ceil(sequences / std::max(1.0, best.price.microbatch))));
      const bool same = layout.microbatches % layout.pipeline == 0 &&
                        in.job.model.layers >= layout.pipeline * best.chunks;
      const int chunks = layout.pipeline > 1 && same ? best.chunks : 1;
      add(cat({names[i], " ", axis, " instead of ", best.layout.*axes[i], ", data ", layout.data,
               chunks != best.chunks && layout.pipeline > 1 ? ", 1 chunk" : ""}),
          layout, chunks);
    }
  }
  for (const bool more : {true, false}) {
    Layout layout = best.layout;
    if (layout.expert > 1 || (more && in.job.model.experts > 1)) {
      layout.expert = more ? 2 * layout.expert : layout.expert / 2;
      layout.whole_experts = layout.whole_experts && whole_experts_divide(in.job.model, layout);
      add(cat({"expert ", layout.expert, " instead of ", best.layout.expert}), layout, best.chunks);
    }
    layout = best.layout;
    layout.microbatches = more ? 2 * layout.microbatches : (layout.microbatches + 1) / 2;
    if (layout.microbatches != best.layout.microbatches) {
      add(cat({"microbatches ", layout.microbatches, " instead of ", best.layout.microbatches}),
          layout, best.chunks);
    }
  }
  for (const Zero zero : {Zero::none, Zero::optimizer, Zero::gradients, Zero::parameters}) {
    Layout layout = best.layout;
    if (zero != layout.zero && layout.batch_devices() > 1) {
      layout.zero = zero;
      layout.zero_devices = zero == Zero::none ? 0 : layout.zero_devices;
      add(cat({"ZeRO stage ", static_cast<int>(zero), " instead of ",
               static_cast<int>(best.layout.zero)}),
          layout, best.chunks);
    }
  }
  Layout layout = best.layout;
  layout.whole_experts = !layout.whole_experts;
  if (layout.tensor > 1 && (!layout.whole_experts || whole_experts_divide(in.job.model, layout))) {
    add(layout.whole_experts ? "whole experts" : "experts cut over tensor ranks", layout,
        best.chunks);
  }
  layout = best.layout;
  const char* const changes[] = {"keeping all activations", "computing attention again",
                                 "computing activations again"};
  for (const Recompute again : {Recompute::none, Recompute::selective, Recompute::full}) {
    layout.recompute = again;
    if (again != best.layout.recompute) {
      add(changes[static_cast<int>(again)], layout, best.chunks);
    }
  }
  return out;
}

}  // namespace detail
}  // namespace tinyscale
