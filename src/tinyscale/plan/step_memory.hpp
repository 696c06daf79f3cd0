#pragma once
// What the fullest device of a layout holds: device_memory() of its parts, and what a framework
// takes besides.
//   M = states + gathered + (1 + w) (activations + recomputed + logits) + system
// On GPUs w and the system's bytes are the software's (efficiency.hpp), from 5 % and 3 GB where
// programs are compiled; a compiled TPU program wastes nothing and leaves 0.3 GB. Held to the peaks
// of BLOOM's tuning log and of torchtitan's runs by bench/planner.cpp.

#include <algorithm>  // max, min
#include <cstdint>    // std::int64_t

#include "tinyscale/hardware/chip.hpp"
#include "tinyscale/parallel/layout.hpp"
#include "tinyscale/plan/device_memory.hpp"
#include "tinyscale/plan/efficiency.hpp"
#include "tinyscale/plan/layout_rules.hpp"
#include "tinyscale/plan/transformer_math.hpp"

namespace tinyscale {

// Bytes of the fullest device.
struct StepMemory {
  PlannedMemory parts;    // of one device, in its closed forms
  double wasted = 0;      // by the allocator
  double system = 0;      // runtime, communication buffers
  std::int64_t rank = 0;  // of the pipeline
  double total() const { return parts.total() + wasted + system; }
};

namespace detail {

// Scores in memory: Megatron's layer of 2022 in place of today's.
inline void keep_scores(const ModelConfig& c, const Layout& layout, double tokens, double context,
                        double layers, double under_way, PlannedMemory& parts) {
  ActivationShape shape;
  shape.sequence = context;  // of the keys, whatever of the queries is here
  const double sequences = tokens / context;
  shape.width = static_cast<double>(c.width);
  shape.heads = static_cast<double>(c.heads);
  shape.tensor = static_cast<double>(layout.tensor);
  shape.sequence_parallel = layout.sequence_parallel;
  shape.recompute = layout.recompute;
  const double kept = sequences * layer_activation_bytes(shape);
  parts.activations = kept * layers * under_way;
  shape.recompute = Recompute::none;
  parts.recomputed = sequences * layer_activation_bytes(shape) - kept;
}

// Under sequence parallelism the layer at work gathers its input and two gradients of whole tokens;
// an engine that sends whole activations holds those under way.
inline void add_buffers(const ModelConfig& c, const Layout& layout, double tokens,
                        const Software& software, PlannedMemory& parts) {
  const double whole = 2 * tokens * static_cast<double>(c.width);
  if (layout.sequence_parallel && layout.tensor > 1) {
    parts.recomputed += 3 * whole;
  }
  if (software.waits_for_layers && layout.pipeline > 1) {
    parts.activations +=
        whole * static_cast<double>(std::min(layout.microbatches, layout.pipeline));
  }
}

// Microbatches under way on a rank: of the layout's own schedule, else of 1F1B, interleaved over
// chunks above 1.
inline double held_microbatches(const Layout& layout, std::int64_t rank, int chunks) {
  if (chunks <= 1 || !layout.schedule.empty()) {
    return microbatches_under_way(layout, rank);
  }
  const double p = static_cast<double>(layout.pipeline),
               m = static_cast<double>(layout.microbatches);
  return std::min(m, ((chunks - 1) * p + 2 * (p - 1 - static_cast<double>(rank)) + 1) / chunks);
}

// Ranks of which one is the fullest: the first of each kind of stage, as a later one of the kind
// has fewer microbatches under way, and the last, which has the logits; by a schedule of one's own
// any.
inline std::vector<std::int64_t> full_ranks(const ModelConfig& model, const Layout& layout,
                                            const std::vector<std::int64_t>& layers) {
  std::vector<std::int64_t> out = {0};
  std::int64_t before = layers[0], most = layers[0];
  bool mixed = model.dense_layers < 1;  // whether a stage of mixtures alone has been met
  const auto last = static_cast<std::int64_t>(layers.size()) - 1;
  for (std::int64_t i = 1; i <= last; ++i) {
    const std::int64_t here = layers[static_cast<std::size_t>(i)];
    const bool mixtures = model.experts > 0 && before >= model.dense_layers && !mixed;
    if (!layout.schedule.empty() || i == 1 || i == last || here > most || mixtures) {
      out.push_back(i);
    }
    mixed = mixed || mixtures;
    most = std::max(most, here);
    before += here;
  }
  return out;
}

// step_memory() of a layout that was checked.
inline StepMemory priced_memory(const ModelConfig& model, const Layout& layout, const Chip& chip,
                                double context, double microbatch, int chunks,
                                const Software& software, const MemoryConvention& by) {
  const double tokens = microbatch * context / static_cast<double>(layout.context);
  const std::vector<std::int64_t> layers = stage_layers(model.layers, layout.pipeline);
  StepMemory fullest;
  for (const std::int64_t rank : full_ranks(model, layout, layers)) {
    const StageShare stage = rank_share(layout, layers, rank);
    StepMemory here;
    here.rank = rank;
    here.parts = device_memory(model, layout, tokens, stage, rank, by);
    if (!software.tiled_attention) {
      keep_scores(model, layout, tokens, context, static_cast<double>(stage.layers),
                  microbatches_under_way(layout, rank), here.parts);
    }
    const double once =  // the last norm's, of one microbatch
        stage.head && software.tiled_attention ? last_norm_bytes(model, layout, tokens) : 0;
    here.parts.activations = once + (here.parts.activations - once) *
                                        held_microbatches(layout, rank, chunks) /
                                        microbatches_under_way(layout, rank);
    if (layout.pipeline > 1 &&
        layout.zero == Zero::parameters) {  // whole until the last microbatch
      const double held = device_parameters(model, stage, layout.tensor, layout.expert).total();
      here.parts.gathered = (by.gathered_bytes + state_parts(by.states).gradients) * held;
    }
    add_buffers(model, layout, tokens, software, here.parts);
    here.parts.activations *= by.activation_bytes / 2;  // the closed forms are of 16 bits
    here.parts.recomputed *= by.activation_bytes / 2;
    const PlannedMemory& p = here.parts;
    const bool gpu = chip.kind == "gpu";
    here.wasted = (gpu ? software.wasted : 0) * (p.activations + p.recomputed + p.logits);
    here.system = gpu ? software.system_bytes : chip.kind == "tpu" ? 3e8 : 0;
    fullest = here.total() > fullest.total() ? here : fullest;
  }
  return fullest;
}

}  // namespace detail

// With `microbatch` sequences of `context` tokens at a time in each replica, and `chunks` of the
// model on a pipeline rank.
inline StepMemory step_memory(const ModelConfig& model, const Layout& layout, const Chip& chip,
                              double context, double microbatch, int chunks,
                              const Software& software,
                              const MemoryConvention& by = MemoryConvention()) {
  detail::check_step_layout("step_memory", model, layout, chunks);
  detail::check_job("step_memory", "context", context, 1, 1e9);
  detail::check_job("step_memory", "microbatch", microbatch, 0, 1e12);
  return detail::priced_memory(model, layout, chip, context, microbatch, chunks, software, by);
}

}  // namespace tinyscale
