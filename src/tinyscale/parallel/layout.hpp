#pragma once
// A layout: how one training step is divided over devices, and which mixes of it can run.
// devices = data * tensor * pipeline * context; expert divides data * context.

#include <cstdint>  // int64_t
#include <iostream>
#include <string>  // string
#include <vector>  // vector

#include "tinyscale/base/error.hpp"
#include "tinyscale/model/model_config.hpp"
#include "tinyscale/parallel/check_pipeline.hpp"
#include "tinyscale/parallel/context_parallel.hpp"
#include "tinyscale/parallel/pipeline_schedule.hpp"
#include "tinyscale/parallel/tensor_parallel.hpp"

namespace tinyscale {

// What ZeRO (arXiv 1910.02054) shards over the data axis, each stage with those before it.
enum class Zero { none, optimizer, gradients, parameters };

// What is computed again in the backward pass instead of kept (arXiv 2205.05198): nothing, the
// attention core, or all of a block but its input.
enum class Recompute { none, selective, full };

struct Layout {
  std::int64_t data = 1;      // replicas, each with its part of the batch
  std::int64_t tensor = 1;    // pieces of every matrix
  std::int64_t pipeline = 1;  // groups of layers
  std::int64_t context = 1;   // pieces of every sequence
  std::int64_t expert = 1;    // groups of experts, over the fastest devices of data x context
  std::int64_t microbatches = 1;
  Zero zero = Zero::none;
  std::int64_t zero_devices = 0;       // of data x context that share; 0: all; fewer: hybrid FSDP
  DType gradient_format = DType::f32;  // on the wire: f32 or bf16; sums are f32
  bool sequence_parallel = false;  // between the tensor-parallel parts: a part of the tokens each
  // An expert is on one tensor rank, not a part of it on each, and each sends its own tokens alone
  // (Megatron Core's expert tensor parallelism of 1): under sequence parallelism.
  bool whole_experts = false;
  Recompute recompute = Recompute::none;
  ContextParallel context_parallel = ContextParallel::ring;
  PipelineSchedule schedule;                   // empty: 1F1B
  Algorithm algorithm = Algorithm::automatic;  // of the collectives that have it
  // From the slowest links to the fastest.
  std::vector<std::string> order = {"pipeline", "data", "context", "tensor"};

  std::int64_t devices() const { return data * tensor * pipeline * context; }
  // Devices that see other tokens of a microbatch, and those of them that ZeRO shards over.
  std::int64_t batch_devices() const { return data * context; }
  // Tensor ranks that route other tokens, devices that do, and those with other experts.
  std::int64_t routing_ranks() const { return whole_experts ? tensor : 1; }
  std::int64_t routing_devices() const { return batch_devices() * routing_ranks(); }
  std::int64_t expert_devices() const { return expert * routing_ranks(); }
  std::int64_t shards() const {
    return zero == Zero::none ? 1 : zero_devices > 0 ? zero_devices : batch_devices();
  }
  // Of those shards, the devices that hold the same experts: so many parts is an expert cut in.
  std::int64_t expert_shards() const {
    std::int64_t divisor = shards(), rest = expert;  // the greatest that both have
    while (rest != 0) {
      const std::int64_t left = divisor % rest;
      divisor = rest;
      rest = left;
    }
    return shards() / divisor;
  }
  std::int64_t stages() const { return schedule.empty() ? pipeline : schedule.stages; }
  // "data 4, tensor 1, pipeline 1, context 1", then what else is not as it is by default.
  std::string text() const;
};

inline std::string Layout::text() const {
  static const char* const shards_text[] = {"", ", ZeRO: optimizer", ", ZeRO: gradients",
                                            ", ZeRO: parameters"};
  static const char* const again[] = {"", ", recompute: selective", ", recompute: full"};
  static const char* const sequence[] = {"", " (ulysses)", " (gathered)"};
  std::string out = detail::cat(
      {"data ", data, ", tensor ", tensor, ", pipeline ", pipeline, ", context ", context});
  out +=
      context != 1 ? detail::name_in("Layout: context_parallel", sequence, context_parallel) : "";
  out += expert != 1 ? detail::cat({", expert ", expert}) : "";
  out += microbatches != 1 ? detail::cat({", microbatches ", microbatches}) : "";
  out += detail::name_in("Layout: zero", shards_text, zero);
  out += zero_devices != 0 ? detail::cat({" over ", zero_devices}) : "";
  out += gradient_format != DType::f32 ? detail::cat({", gradients in ", name_of(gradient_format)})
                                       : "";
  out += sequence_parallel ? ", sequence parallel" : "";
  out += whole_experts ? ", whole experts" : "";
  out += detail::name_in("Layout: recompute", again, recompute);
  out += schedule.empty() ? "" : ", " + schedule.name;
  out += algorithm != Algorithm::automatic ? detail::cat({", algorithm ", name_of(algorithm)}) : "";
  if (order != Layout().order) {
    for (std::size_t i = 0; i < order.size(); ++i) {
      out += (i == 0 ? ", order " : " > ") + order[i];
    }
  }
  return out;
}

inline std::ostream& operator<<(std::ostream& out, const Layout& layout) {
  return out << layout.text();
}

// What tensor ranks add up in each pass of a layer: after attention and after the feed-forward, but
// not after whole experts alone.
inline int tensor_sums(const ModelConfig& c, const Layout& layout, bool mixture) {
  return mixture && layout.whole_experts && c.shared_experts == 0 ? 1 : 2;
}

namespace detail {

inline void check_layout_counts(const char* who, const Layout& layout) {
  const auto known = [who](const char* what, int value, int most) {
    if (value < 0 || value > most) {
      fail({who, ": layout.", what, " is ", value, "; a name of its enum is right"});
    }
  };
  known("zero", static_cast<int>(layout.zero), static_cast<int>(Zero::parameters));
  known("recompute", static_cast<int>(layout.recompute), static_cast<int>(Recompute::full));
  known("algorithm", static_cast<int>(layout.algorithm), static_cast<int>(Algorithm::custom));
  if (layout.algorithm == Algorithm::custom) {
    fail({who, ": layout.algorithm is custom, which is a schedule for one collective; another is ",
          "right"});
  }
  known("context_parallel", static_cast<int>(layout.context_parallel),
        static_cast<int>(ContextParallel::gathered));
  const std::int64_t most = 2147483647;  // so that products fit
  std::int64_t devices = 1;
  bool good = layout.expert >= 1 && layout.expert <= most && layout.microbatches >= 1;
  for (const std::int64_t n : {layout.data, layout.tensor, layout.pipeline, layout.context}) {
    good = good && n >= 1 && n <= most / devices;
    devices *= good ? n : 1;
  }
  if (!good || layout.microbatches > most / devices) {
    fail({who, ": layout is ", layout.text(), "; each must be at least 1, and the devices",
          layout.microbatches > 1 ? " x microbatches" : "", " at most ", most});
  }
}

// `value` things of a kind over `parts`: "6 layers over stages 4".
inline void check_parts(const char* what, std::int64_t value, const char* axis,
                        std::int64_t parts) {
  if (value % parts != 0) {
    fail({"train: ", value, " ", what, " over ", axis, " ", parts, "; right is a multiple of ",
          parts});
  }
}

inline void check_layout_order(const Layout& layout) {
  bool good = layout.order.size() == 4;
  std::string text;
  for (const char* const name : {"pipeline", "data", "context", "tensor"}) {
    int found = 0;
    for (const std::string& given : layout.order) {
      found += given == name ? 1 : 0;
    }
    good = good && found == 1;
  }
  for (const std::string& given : layout.order) {
    text += (text.empty() ? "" : ", ") + given;
  }
  if (!good) {
    fail({"train: layout.order is {", text,
          "}; pipeline, data, context and tensor are right, each once, the slowest links first"});
  }
}

inline void check_layout_experts(const Layout& layout, const ModelConfig& c) {
  if (layout.expert > 1 && c.experts == 0) {
    fail({"train: expert ", layout.expert, " for ", c.name, ", which has no experts; 1 is right"});
  }
  if (layout.whole_experts &&
      (c.experts == 0 || (layout.tensor > 1 && !layout.sequence_parallel))) {
    fail({"train: whole_experts for ", c.name, c.experts == 0 ? ", which has no experts" : "",
          " by ", layout.text(), "; right is a mixture, under sequence_parallel where tensor is ",
          "more than 1: each tensor rank routes its own tokens"});
  }
  if (layout.expert_devices() > 1) {
    check_parts("experts", c.experts, layout.whole_experts ? "expert x tensor" : "expert",
                layout.expert_devices());
  }
  if (layout.batch_devices() % layout.expert != 0) {
    fail({"train: expert ", layout.expert, " does not divide data ", layout.data, " x context ",
          layout.context, " = ", layout.batch_devices(),
          "; the devices of an expert group are among those that see other tokens"});
  }
}

// Sequences of `time` tokens over context, tensor and its sequence parallelism.
inline void check_layout_tokens(const Layout& layout, const ModelConfig& c, std::int64_t time) {
  const bool zigzag = layout.context_parallel != ContextParallel::ulysses;
  if (layout.context > 1) {
    check_parts("tokens of a sequence", time, zigzag ? "twice context" : "context",
                layout.context * (zigzag ? 2 : 1));
  }
  if (layout.context > 1 && !zigzag) {
    check_parts("heads of a device", c.heads / layout.tensor, "context", layout.context);
    check_parts("kv_heads of a device", c.kv_heads / layout.tensor, "context", layout.context);
  }
  if (layout.sequence_parallel) {
    check_parts("tokens of a device", time / layout.context, "tensor", layout.tensor);
  }
}

inline void check_layout_schedule(const Layout& layout, const ModelConfig& c) {
  const PipelineSchedule& schedule = layout.schedule;
  if (schedule.empty()) {
    check_parts("layers", c.layers, "stages", layout.pipeline);
    return;
  }
  if (static_cast<int>(schedule.rank_of.size()) > schedule.stages && schedule.microbatches < 2) {
    fail({"train: the schedule ", schedule.name, " has two copies of each stage and ",
          schedule.microbatches, " microbatch; each copy needs one"});
  }
  if (schedule.ranks != layout.pipeline || schedule.microbatches != layout.microbatches) {
    fail({"train: the schedule ", schedule.name, " is of ", schedule.ranks, " ranks and ",
          schedule.microbatches, " microbatches, the layout has pipeline ", layout.pipeline,
          " and microbatches ", layout.microbatches, "; they must be equal"});
  }
  check_pipeline(schedule, eager_sends());
  check_parts("layers", c.layers, "stages", schedule.stages);
}

inline void check_layout_zero(const Layout& layout) {
  if (layout.gradient_format != DType::f32 && layout.gradient_format != DType::bf16) {
    fail({"train: layout.gradient_format is ", name_of(layout.gradient_format),
          "; f32 or bf16 is right"});
  }
  if (layout.zero_devices < 0 || (layout.zero_devices > 0 && layout.zero == Zero::none)) {
    fail({"train: zero_devices is ", layout.zero_devices,
          layout.zero == Zero::none ? " and zero is Zero::none; set layout.zero to what is sharded"
                                    : "; 0 is right for all, or how many share"});
  }
  if (layout.batch_devices() % layout.shards() != 0) {
    fail({"train: zero_devices ", layout.zero_devices, " does not divide data ", layout.data,
          " x context ", layout.context, " = ", layout.batch_devices()});
  }
}

inline void check_layout_devices(const char* who, const Layout& layout, std::int64_t chips) {
  check_layout_counts(who, layout);
  if (layout.devices() != chips) {
    fail({who, ": layout is ", layout.text(), " = ", layout.devices(), " devices, the machine has ",
          chips, " chips; they must be equal",
          chips == 1 ? ": one chip is the machine where none was given" : ""});
  }
}

inline void check_layout_batch(const Layout& layout, std::int64_t batch) {
  if (batch % (layout.data * layout.microbatches) != 0) {
    fail({"train: a batch of ", batch, " sequences does not divide over data ", layout.data,
          layout.microbatches > 1 ? cat({" x microbatches ", layout.microbatches}) : "",
          "; right is a multiple of ", layout.data * layout.microbatches});
  }
}

// Throws what is wrong with training a model by `layout` on `chips` chips, `batch` sequences of
// `time` tokens a step.
inline void check_layout(const Layout& layout, const ModelConfig& c, std::int64_t chips,
                         std::int64_t batch, std::int64_t time) {
  check_layout_devices("train", layout, chips);
  check_layout_order(layout);
  check_layout_batch(layout, batch);
  check_tensor_split(c, layout.tensor);
  check_layout_experts(layout, c);
  check_layout_zero(layout);
  check_layout_tokens(layout, c, time);
  check_layout_schedule(layout, c);
}

}  // namespace detail
}  // namespace tinyscale
