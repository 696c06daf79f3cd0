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
inline void keep_scores(const ModelConfig& c, const Layout& layout, double tokens, double batch,
                        double layers, double under_way, PlannedMemory& parts) {
  ActivationShape shape;
  shape.sequence = tokens / batch;
  shape.batch = batch;
  shape.width = static_cast<double>(c.width);
  shape.heads = static_cast<double>(c.heads);
  shape.tensor = static_cast<double>(layout.tensor);
  shape.sequence_parallel = layout.sequence_parallel;
  shape.recompute = layout.recompute;
  const double kept = layer_activation_bytes(shape);
  parts.activations = kept * layers * under_way;
  shape.recompute = Recompute::none;
  parts.recomputed = layer_activation_bytes(shape) - kept;
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

}  // namespace detail

// With `microbatch` sequences of `context` tokens at a time in each replica, and `chunks` of the
// model on a pipeline rank.
inline StepMemory step_memory(const ModelConfig& model, const Layout& layout, const Chip& chip,
                              double context, double microbatch, int chunks,
                              const Software& software,
                              const MemoryConvention& by = MemoryConvention()) {
  const double tokens = microbatch * context / static_cast<double>(layout.context);
  const std::vector<std::int64_t> layers = stage_layers(model.layers, layout.pipeline);
  const double stages = static_cast<double>(layout.pipeline);
  const double interleaved = chunks > 1 ? 1 + (stages - 1) / (stages * chunks) : 1;
  StepMemory fullest;
  for (const std::int64_t rank : {std::int64_t{0}, layout.pipeline - 1}) {
    StageShare stage;
    stage.layers = layers[static_cast<std::size_t>(rank)];
    stage.first = rank == 0 ? 0 : model.layers - stage.layers;
    stage.embedding = rank == 0;
    stage.head = rank == layout.pipeline - 1;
    StepMemory here;
    here.rank = rank;
    here.parts = device_memory(model, layout, tokens, stage, rank, by);
    if (!software.tiled_attention) {
      detail::keep_scores(model, layout, tokens, microbatch, static_cast<double>(stage.layers),
                          microbatches_under_way(layout, rank), here.parts);
    }
    here.parts.activations *= rank == 0 ? interleaved : 1;
    if (layout.pipeline > 1 &&
        layout.zero == Zero::parameters) {  // whole until the last microbatch
      const double held = device_parameters(model, stage, layout.tensor, layout.expert).total();
      here.parts.gathered = (by.gathered_bytes + state_parts(by.states).gradients) * held;
    }
    detail::add_buffers(model, layout, tokens, software, here.parts);
    const PlannedMemory& p = here.parts;
    const bool gpu = chip.kind == "gpu";
    here.wasted = (gpu ? software.wasted : 0) * (p.activations + p.recomputed + p.logits);
    here.system = gpu ? software.system_bytes : chip.kind == "tpu" ? 3e8 : 0;
    fullest = here.total() > fullest.total() ? here : fullest;
  }
  return fullest;
}

}  // namespace tinyscale
