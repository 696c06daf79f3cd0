#pragma once
// Which layouts a model allows at all: what must divide, and how many of what there must be.

#include <algorithm>  // max
#include <cstdint>    // std::int64_t
#include <string>     // what does not
#include <vector>     // order of axes

#include "tinyscale/base/text.hpp"
#include "tinyscale/model/model_config.hpp"
#include "tinyscale/parallel/layout.hpp"

namespace tinyscale {
namespace detail {

// Whether every head and every hidden unit belongs to one of so many chips.
inline bool tensor_divides(const ModelConfig& model, std::int64_t tensor) {
  const bool dense = model.mixture_layers() < model.layers;
  return model.heads % tensor == 0 && (!dense || model.hidden % tensor == 0) &&
         (model.experts == 0 || model.expert_hidden % tensor == 0) &&
         (model.kv_heads % tensor == 0 || tensor % model.kv_heads == 0);
}

// Whether Ulysses can deal out the heads that tensor parallelism leaves a chip.
inline bool ulysses_divides(const ModelConfig& model, const Layout& layout) {
  return model.heads / layout.tensor % layout.context == 0 &&
         std::max<std::int64_t>(1, model.kv_heads / layout.tensor) % layout.context == 0;
}

// Whether each expert can be on one tensor rank, with tokens of its own.
inline bool whole_experts_divide(const ModelConfig& model, const Layout& layout) {
  return model.experts > 0 && (layout.tensor == 1 || layout.sequence_parallel) &&
         model.experts % (layout.expert * layout.tensor) == 0;
}

// Empty, or the first thing of the model that the layout does not divide; `besides`: stages that
// may hold the embedding or the head alone.
inline std::string undivided_model(const ModelConfig& c, const Layout& layout, int chunks,
                                   int besides = 0) {
  if (!tensor_divides(c, layout.tensor)) {
    const bool both = c.experts > 0 && c.mixture_layers() < c.layers;
    return cat({c.heads, " heads, ", c.kv_heads, " of keys, and a hidden width of ",
                c.experts > 0 ? c.expert_hidden : c.hidden, both ? cat({" or ", c.hidden}) : "",
                " do not divide over tensor ", layout.tensor});
  }
  if (c.layers < layout.pipeline || c.layers + besides < layout.pipeline * chunks) {
    return cat({c.layers, " layers are fewer than ", layout.pipeline * chunks, " stages"});
  }
  if (layout.context > 1 && layout.context_parallel == ContextParallel::ulysses &&
      !ulysses_divides(c, layout)) {
    return cat({c.heads, " heads, ", c.kv_heads, " of keys, do not divide over tensor ",
                layout.tensor, " x context ", layout.context, ", as Ulysses needs"});
  }
  if ((layout.expert > 1 || layout.whole_experts) && c.experts == 0) {
    return cat({layout.whole_experts ? "whole_experts" : cat({"expert ", layout.expert}), " for ",
                c.name, ", which has no experts"});
  }
  if (layout.expert > 1 &&
      (c.experts % layout.expert != 0 || layout.batch_devices() % layout.expert != 0)) {
    return cat({c.experts, " experts over expert ", layout.expert, " among ",
                layout.batch_devices(), " devices with other tokens do not divide"});
  }
  if (layout.whole_experts && !whole_experts_divide(c, layout)) {
    return cat({c.experts, " experts over expert ", layout.expert, " x tensor ", layout.tensor,
                " are not whole ones of ranks with tokens of their own",
                layout.sequence_parallel ? "" : ": there is no sequence parallelism"});
  }
  if (layout.shards() > 1 && layout.batch_devices() % layout.shards() != 0) {
    return cat({layout.shards(), " shards do not divide the ", layout.batch_devices(),
                " devices with other tokens"});
  }
  return "";
}

// A schedule of the layout's own must be for its ranks and microbatches.
inline void check_own_schedule(const char* who, const Layout& layout) {
  const PipelineSchedule& schedule = layout.schedule;
  if (!schedule.empty() &&
      (schedule.ranks != layout.pipeline || schedule.microbatches != layout.microbatches)) {
    fail({who, ": the schedule ", schedule.name, " is of ", schedule.ranks, " ranks and ",
          schedule.microbatches, " microbatches, the layout has pipeline ", layout.pipeline,
          " and microbatches ", layout.microbatches, "; they must be equal"});
  }
}

// Of those, what is planned: a rank that holds copies has more parameters than a share of the
// model.
inline void check_planned_schedule(const char* who, const Layout& layout) {
  check_own_schedule(who, layout);
  const PipelineSchedule& schedule = layout.schedule;
  if (!schedule.empty() && (schedule.stages % schedule.ranks != 0 ||
                            static_cast<int>(schedule.rank_of.size()) != schedule.stages)) {
    fail({who, ": the schedule ", schedule.name, " has ", schedule.stages, " stages on ",
          schedule.ranks, " ranks, ", schedule.rank_of.size(),
          " entries of rank_of; equally many stages on each rank, each of them once, are planned "
          "(train() and time_pipeline() take others too)"});
  }
}

// What no step can have.
inline void check_step_layout(const char* who, const ModelConfig& model, const Layout& layout,
                              int chunks) {
  check_layout_counts(who, layout);
  if (chunks < 1) {
    fail({who, ": ", chunks, " chunks of the model on a pipeline rank; at least 1 is right"});
  }
  static const std::vector<std::string> order = Layout().order;
  if (layout.order != order) {
    fail({who,
          ": layout.order is not pipeline, data, context, tensor; another is not "
          "planned"});
  }
  if (layout.zero_devices < 0 || (layout.zero_devices > 0 && layout.zero == Zero::none)) {
    fail({who, ": zero_devices is ", layout.zero_devices, " with ZeRO stage ",
          static_cast<int>(layout.zero), "; 0 is for all, above 0 needs a stage above 0"});
  }
  if (layout.gradient_format != DType::f32 && layout.gradient_format != DType::bf16) {
    fail({who, ": layout.gradient_format is ", name_of(layout.gradient_format),
          "; f32 or bf16 is right"});
  }
  const std::string why = undivided_model(model, layout, chunks, 2);
  if (!why.empty()) {
    fail({who, ": layout ", layout.text(), ": ", why});
  }
  check_planned_schedule(who, layout);
}

}  // namespace detail
}  // namespace tinyscale
