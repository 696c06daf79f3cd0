#pragma once
// What one device of a layout needs to train a model, part by part, stages uneven or not:
//   parameters   matrices / tensor, experts / (tensor expert), norms and routers whole
//   states       10, 16 or 18 bytes each (memory_forms.hpp), by ZeRO over the devices that share
//   gathered     under ZeRO-3 whole weights of the unit at work and of the next
//   activations  of the microbatches under way; of one layer more what is computed again
//   logits       of one microbatch, on the last stage
// Source: arXiv 1910.02054, 2104.04473, 2205.05198; PyTorch FSDP (2304.11277) for what is gathered.

#include <algorithm>  // max, min
#include <cstdint>    // int64_t
#include <vector>     // vector

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/model/model_config.hpp"
#include "tinyscale/parallel/layout.hpp"
#include "tinyscale/parallel/memory_forms.hpp"
#include "tinyscale/plan/layer_memory.hpp"
#include "tinyscale/plan/layout_rules.hpp"

namespace tinyscale {

// Layers of each stage, as even as may be: where the number does not divide, the stages in the
// middle have one more than those at the ends, which also hold the embedding and the output matrix.
// `first` and `last`: so many on that stage; 0: by the rule.
inline std::vector<std::int64_t> stage_layers(std::int64_t layers, std::int64_t stages,
                                              std::int64_t first = 0, std::int64_t last = 0) {
  const std::int64_t most = 10000000;  // layers
  const bool counts = layers <= most && stages >= 1 && stages <= layers && first >= 0 &&
                      first <= layers && last >= 0 && last <= layers;
  const std::int64_t set = (first > 0 ? 1 : 0) + (last > 0 ? 1 : 0);
  const std::int64_t rest = counts ? layers - first - last : 0, among = counts ? stages - set : 0;
  if (!counts || among < 0 || rest < among || (among == 0 && rest != 0)) {
    detail::fail({"stage_layers: ", layers, " layers over ", stages, " stages, ", first,
                  " on the first, ", last, " on the last; at least one layer a stage",
                  layers > most ? detail::cat({", at most ", most, " in all,"}) : std::string(),
                  " is right"});
  }
  std::vector<std::int64_t> out(static_cast<std::size_t>(stages));
  const std::int64_t more = among > 0 ? rest % among : 0, before = (among - more) / 2;
  for (std::int64_t i = 0; i < stages; ++i) {
    const std::int64_t place = i - (first > 0 ? 1 : 0);
    const bool one_more = place >= before && place < before + more;
    out[static_cast<std::size_t>(i)] = i == 0 && first > 0           ? first
                                       : i == stages - 1 && last > 0 ? last
                                                                     : rest / among + one_more;
  }
  return out;
}

// Layers [first, first + layers) of a model and what stands at its ends.
struct StageShare {
  std::int64_t first = 0, layers = 0;
  bool embedding = false, head = false;
};

namespace detail {

// Of a pipeline rank, whose ranks have so many layers each. The ends of the model are on the ranks
// of the first stage and the last: one and the same where a schedule turns back (a V).
inline StageShare rank_share(const Layout& layout, const std::vector<std::int64_t>& layers,
                             std::int64_t rank) {
  const PipelineSchedule& schedule = layout.schedule;
  const bool own = !schedule.empty() && !schedule.rank_of.empty();
  StageShare share;
  for (std::int64_t i = 0; i < rank; ++i) {
    share.first += layers[static_cast<std::size_t>(i)];
  }
  share.layers = layers[static_cast<std::size_t>(rank)];
  share.embedding = rank == (own ? schedule.rank_of.front() : 0);
  share.head = rank == (own ? schedule.rank_of.back() : layout.pipeline - 1);
  return share;
}

}  // namespace detail

// Parameters that one device holds of a stage. The experts are shared by fewer than the rest is.
struct DeviceParameters {
  double rest = 0, experts = 0;

  double total() const { return rest + experts; }
};

namespace detail {

// Of one layer: what tensor parallelism leaves whole are norms, the router and latent attention's
// matrices into its ranks; and where it has more devices than heads of keys, those heads.
inline DeviceParameters layer_share(const ModelConfig& c, bool mixture, double tensor,
                                    double expert) {
  std::int64_t whole = c.block_norms * c.norm_parameters() + (c.qk_norm ? 2 * c.head_size : 0);
  if (c.latent()) {
    whole +=
        c.q_lora_rank * (c.width + 1) + c.width * (c.kv_lora_rank + c.rope_head) + c.kv_lora_rank;
  }
  std::int64_t all = c.dense_layer_parameters();
  if (mixture) {
    all = c.layer_parameters(0);
    whole += c.router_parameters();
  }
  const std::int64_t experts = mixture ? c.experts * c.feed_forward_parameters(c.expert_hidden) : 0;
  const double shared = static_cast<double>(all - whole) + copied_parameters(c, tensor);
  return {static_cast<double>(whole) + shared / tensor,
          static_cast<double>(experts) / (tensor * expert)};
}

// The tables at the ends of a model; with both on one device a tied table is there once.
inline DeviceParameters end_share(const ModelConfig& c, const StageShare& stage, double tensor) {
  const auto table = static_cast<double>(c.vocabulary * c.width) / tensor;
  DeviceParameters out;
  if (stage.embedding) {
    out.rest += table;
    out.rest += static_cast<double>(c.position == Position::learned ? c.context * c.width : 0);
  }
  if (stage.head) {
    out.rest += stage.embedding && c.tied ? 0 : table;
    out.rest += static_cast<double>(c.norm_parameters());
  }
  return out;
}

inline std::int64_t stage_mixtures(const ModelConfig& c, const StageShare& stage) {
  const std::int64_t from = std::max(stage.first, c.dense_layers);
  return c.experts > 0 ? std::max<std::int64_t>(0, stage.first + stage.layers - from) : 0;
}

}  // namespace detail

// Of all stages and devices together they are model.parameters(), with what is held more than once.
inline DeviceParameters device_parameters(const ModelConfig& model, const StageShare& stage,
                                          std::int64_t tensor = 1, std::int64_t expert = 1) {
  if (stage.first < 0 || stage.layers < 0 || stage.first + stage.layers > model.layers ||
      tensor < 1 || expert < 1) {
    detail::fail({"device_parameters: layers ", stage.first, " to ", stage.first + stage.layers,
                  " of ", model.layers, ", tensor ", tensor, ", expert ", expert,
                  "; layers of the model over 1 device or more are right"});
  }
  const auto t = static_cast<double>(tensor), e = static_cast<double>(expert);
  const auto mixtures = static_cast<double>(detail::stage_mixtures(model, stage));
  const double dense = static_cast<double>(stage.layers) - mixtures;
  const DeviceParameters plain = detail::layer_share(model, false, t, e);
  const DeviceParameters mixed = detail::layer_share(model, model.experts > 0, t, e);
  DeviceParameters out = detail::end_share(model, stage, t);
  // What the fields do not describe, below 0 too, is spread over the layers.
  const double other = static_cast<double>(model.other_parameters * stage.layers) / t;
  out.rest +=
      dense * plain.rest + mixtures * mixed.rest + other / static_cast<double>(model.layers);
  out.experts += mixtures * mixed.experts;
  return out;
}

// How a device's memory is counted.
struct MemoryConvention {
  StateBytes states = StateBytes::mixed_f32_gradients;
  // Of each logit at once: f32 4 (Megatron), with its gradient 8; eager PyTorch 14: bf16 2, f32 4,
  // the logarithm 4, its gradient 4.
  double logit_bytes = 4;
  int gathered_layers = 2;       // whole at once under ZeRO-3: the one at work and the next
  double gathered_bytes = 2;     // of each of their weights
  double activation_bytes = 2;   // of a number that step_memory() counts as kept
  bool selective_by_op = false;  // selective recomputation is torchtitan's
  double context_of_2022 = 0;  // above 0: Megatron's layer of 2022, dense, for sequences that long
  double overhead = 0;         // bytes of the runtime: context, buffers of collectives, holes
};

// Bytes of one device, by what they are.
struct PlannedMemory {
  double weights = 0, gradients = 0, optimizer = 0;
  double gathered = 0;     // whole weights and gradients of units under ZeRO
  double activations = 0;  // kept from forward to backward
  double recomputed = 0;   // of the layer that is computed again
  double logits = 0;
  double overhead = 0;  // as given

  double states() const { return weights + gradients + optimizer; }
  double total() const {
    return states() + gathered + activations + recomputed + logits + overhead;
  }
};

// Bytes of the logits of `tokens` tokens; the vocabulary is cut by tensor parallelism.
inline double logits_bytes(const ModelConfig& model, double tokens, std::int64_t tensor = 1,
                           double bytes = 4) {
  detail::check_tensor_devices("logits_bytes", tokens, tensor);
  return tokens * static_cast<double>(model.vocabulary) * bytes / static_cast<double>(tensor);
}

// Microbatches under way on a pipeline rank at most, in the layers of that rank: 1F1B's min(m, p -
// i), or what the layout's own schedule makes of it, chunk by chunk.
inline double microbatches_under_way(const Layout& layout, std::int64_t rank) {
  if (rank < 0 || rank >= layout.pipeline) {
    detail::fail({"microbatches_under_way: rank ", rank, " of ", layout.pipeline, "; 0 to ",
                  layout.pipeline - 1, " is right"});
  }
  detail::check_own_schedule("microbatches_under_way", layout);
  if (layout.schedule.empty()) {
    return static_cast<double>(std::min(layout.microbatches, layout.pipeline - rank));
  }
  int now = 0, most = 0;  // chunks
  for (const PipelineOp& op : layout.schedule.program[static_cast<std::size_t>(rank)]) {
    now += op.work == PipelineWork::forward          ? 1
           : op.work == PipelineWork::input_gradient ? 0  // its weights' gradient still needs them
                                                     : -1;
    most = std::max(most, now);
  }
  return static_cast<double>(most) * layout.schedule.ranks / std::max(1, layout.schedule.stages);
}

namespace detail {

inline void add_states(PlannedMemory& memory, double parameters, const StateParts& parts,
                       const Layout& layout, std::int64_t shards) {
  const ModelStates states = model_states(parameters, parts, layout.zero, shards);
  memory.weights += states.weights;
  memory.gradients += states.gradients;
  memory.optimizer += states.optimizer;
}

// Whole in bf16 while in use: of a stage the layers at work, the larger of a layer and the tables
// at its end; of gradients one such unit before it is summed and cut.
inline double gathered_bytes(const ModelConfig& c, const StageShare& stage, const Layout& layout,
                             const StateParts& parts, const MemoryConvention& by) {
  const auto t = static_cast<double>(layout.tensor), e = static_cast<double>(layout.expert);
  const bool mixed = stage_mixtures(c, stage) > 0;
  const double layer = layer_share(c, mixed, t, e).total();
  const double unit = std::max(layer, end_share(c, stage, t).total());
  const double whole = by.gathered_layers > 0 ? (by.gathered_layers - 1) * layer + unit : 0;
  return (layout.zero >= Zero::parameters ? by.gathered_bytes * whole : 0) +
         (layout.zero >= Zero::gradients ? parts.gradients * unit : 0);
}

// The last norm's input and output.
inline double last_norm_bytes(const ModelConfig& model, const Layout& layout, double tokens) {
  const double stream = layout.sequence_parallel ? static_cast<double>(layout.tensor) : 1;
  return 4 * tokens * static_cast<double>(model.width) / stream;
}

inline double kept_of_layer(const ModelConfig& c, const Layout& layout, double tokens, bool mixture,
                            Recompute recompute, const MemoryConvention& by) {
  if (by.context_of_2022 > 0) {
    return layer_activation_bytes({by.context_of_2022, tokens / by.context_of_2022,
                                   static_cast<double>(c.width), static_cast<double>(c.heads),
                                   static_cast<double>(layout.tensor), layout.sequence_parallel,
                                   recompute});
  }
  if (recompute == Recompute::selective && by.selective_by_op) {
    return op_selective_activation_bytes(c, tokens, layout.tensor, layout.sequence_parallel);
  }
  // Of more than one sequence at a time; in 16 bits.
  const double besides =
      recompute == Recompute::none
          ? 2 * tokens *
                context_activations(c, layout.context_parallel, layout.context, 2, layout.tensor)
          : 0;
  return besides + modern_layer_activation_bytes(c, tokens, layout.tensor, layout.sequence_parallel,
                                                 recompute, mixture, layout.whole_experts);
}

}  // namespace detail

// Of a device on that pipeline rank, whose stage is `stage`; `tokens` of a microbatch that reach it
// (after data and context parallelism).
inline PlannedMemory device_memory(const ModelConfig& model, const Layout& layout, double tokens,
                                   const StageShare& stage, std::int64_t rank,
                                   const MemoryConvention& by = MemoryConvention()) {
  detail::check_layout_counts("device_memory", layout);
  detail::check_planned_schedule("device_memory", layout);
  detail::check_tensor_devices("device_memory", tokens, layout.tensor);
  const StateParts parts = state_parts(by.states);
  const DeviceParameters held = device_parameters(model, stage, layout.tensor, layout.expert);
  PlannedMemory memory;
  detail::add_states(memory, held.rest, parts, layout, layout.shards());
  detail::add_states(memory, held.experts, parts, layout, layout.expert_shards());
  memory.gathered = detail::gathered_bytes(model, stage, layout, parts, by);
  const auto layer = [&](bool mixture, Recompute recompute) {
    return detail::kept_of_layer(model, layout, tokens, mixture, recompute, by);
  };
  const std::int64_t mixtures = detail::stage_mixtures(model, stage);
  const double kept =
      static_cast<double>(stage.layers - mixtures) * layer(false, layout.recompute) +
      (mixtures > 0 ? static_cast<double>(mixtures) * layer(true, layout.recompute) : 0);
  memory.activations = kept * microbatches_under_way(layout, rank);
  memory.overhead = by.overhead;
  memory.recomputed = layer(mixtures > 0, Recompute::none) - layer(mixtures > 0, layout.recompute);
  if (stage.head) {
    memory.activations += detail::last_norm_bytes(model, layout, tokens);
    memory.logits = logits_bytes(model, tokens, layout.tensor, by.logit_bytes);
  }
  return memory;
}

// What each stage's devices hold: layers as stage_layers divides them.
inline Table memory_table(const ModelConfig& model, const Layout& layout, double tokens,
                          const MemoryConvention& by = MemoryConvention()) {
  Table out;
  out.title = detail::cat({"bytes of a device: ", model.name, ", ", layout.text(), ", ", tokens,
                           " tokens a microbatch, ", name_of(by.states), " states"});
  out.columns = {"stage",    "layers",      "parameters", "weights", "gradients", "optimizer",
                 "gathered", "activations", "recomputed", "logits",  "overhead",  "total"};
  const std::vector<std::int64_t> layers = stage_layers(model.layers, layout.pipeline);
  for (std::int64_t i = 0; i < layout.pipeline; ++i) {
    const StageShare stage = detail::rank_share(layout, layers, i);
    const PlannedMemory m = device_memory(model, layout, tokens, stage, i, by);
    const double held = device_parameters(model, stage, layout.tensor, layout.expert).total();
    out.add({detail::cat({i}), detail::cat({stage.layers}), format_si(held, ""),
             format_bytes(m.weights), format_bytes(m.gradients), format_bytes(m.optimizer),
             format_bytes(m.gathered), format_bytes(m.activations), format_bytes(m.recomputed),
             format_bytes(m.logits), format_bytes(m.overhead), format_bytes(m.total())});
  }
  return out;
}

}  // namespace tinyscale
