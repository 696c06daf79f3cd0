#pragma once
// What a step of training loads each part of a machine with, as this library's own devices would
// run it, at any size and without a number of the model allocated: the closed forms of every op and
// call that plan_step has, in seconds.
//   T_math = FLOPs / peak            T_memory = bytes to and from memory / its bandwidth
//   T_axis = what its collectives take with all other links free, split into bytes and latencies
// Each of the device that has most of it; nothing overlaps here and nobody waits.

#include <algorithm>  // max, min
#include <cstdint>    // int64_t
#include <limits>     // infinity
#include <string>     // names
#include <vector>     // axes of a call

#include "tinyscale/base/list.hpp"
#include "tinyscale/mesh/collective_cost.hpp"
#include "tinyscale/parallel/flops_forms.hpp"
#include "tinyscale/parallel/memory_forms.hpp"
#include "tinyscale/parallel/pipeline_timing.hpp"
#include "tinyscale/parallel/step_forms.hpp"
#include "tinyscale/parallel/step_traffic.hpp"
#include "tinyscale/plan/layout_rules.hpp"
#include "tinyscale/tensor/views.hpp"

namespace tinyscale {

// One axis of the mesh that a layout makes.
struct AxisLoad {
  std::string name;
  std::int64_t size = 1;
  AxisKind kind = AxisKind::line;   // a ring only where it closes
  double traffic = 0, latency = 0;  // seconds of a step
  double by[5] = {0, 0, 0, 0, 0};   // of the traffic, by cause: seconds, the most of any device
  double seconds() const { return traffic + latency; }
  // What the messages are for; of others: between stages, and few.
  enum Cause { of_tensor, of_context, of_experts, of_data, of_others };
};

struct StepLoad {
  double flops = 0, memory_bytes = 0, held_bytes = 0;  // of a device
  double math = 0, memory = 0;                         // seconds
  double held = 0;    // share of the chip's memory; 0 where that is not known
  double bubble = 0;  // share of the schedule's time, B = 2 F
  List<AxisLoad> axes;

  // The longest of all: "math", "memory" or an axis.
  std::string bottleneck() const {
    std::string name = math >= memory ? "math" : "memory";
    double most = std::max(math, memory);
    for (const AxisLoad& axis : axes) {
      name = axis.seconds() > most ? axis.name : name;
      most = std::max(most, axis.seconds());
    }
    return name;
  }
};

// A step to be priced: `sequences` of model.context tokens over all devices.
struct LoadJob {
  ModelConfig model;
  Layout layout;
  Machine machine;
  std::int64_t sequences = 1;
  DType format = DType::bf16;  // of matmuls, and on the wire of weights and activations
  StateParts state;            // bytes of a parameter; gradients of 4 travel as f32
};

namespace detail {

// What of a model this library's transformer cannot run; empty: nothing.
inline std::string beyond_of(const ModelConfig& c) {
  return c.beyond.empty() ? lacking(c) : c.beyond;
}

// The nearest model that it runs.
inline ModelConfig plain_model(ModelConfig c) {
  c.beyond.clear(), c.rope_factors.clear();  // those are of one head size
  c.other_parameters = c.dense_layers = 0;
  c.kv_lora_rank = c.q_lora_rank = c.rope_head = c.value_head = 0;
  c.router_bias = false;
  c.block_norms = 2;
  return c;
}

// A model of these sizes whose tensors are one number seen many times: for forms that ask only how
// large they are. Parameters that are cut and gathered alike are one; experts are those of one
// device of the first.
inline Transformer sizes_of(const ModelConfig& c, std::int64_t expert_devices) {
  ModelConfig least;
  least.width = least.head_size = 2;
  least.hidden = least.vocabulary = least.context = 1;
  Transformer model(least);
  model.config = c;
  model.parameters.clear();
  const Tensor one = zeros({1});
  const auto add = [&](const std::string& name, std::int64_t count, Split split, int layer) {
    if (count > 0) {
      model.parameters.push_back(
          Parameter{name, broadcast_to(one, Shape{count}), split, layer, -1});
    }
  };
  const std::int64_t d = c.width, head_norms = c.qk_norm && !c.latent() ? 2 * c.head_size : 0;
  const std::int64_t attention =
      c.attention_parameters() - head_norms - (c.bias && !c.latent() ? d : 0);
  add("model.embed_tokens.weight", c.vocabulary * d, Split::rows, -1);
  add("model.embed_positions.weight", c.position == Position::learned ? c.context * d : 0,
      Split::whole, -1);
  for (int layer = 0; layer < c.layers; ++layer) {
    const bool dense = c.experts == 0 || layer < c.dense_layers;
    const std::int64_t biases = c.bias ? d : 0, shared = c.shared_experts * c.expert_hidden;
    const std::int64_t other =
        c.other_parameters / c.layers + (layer == 0 ? c.other_parameters % c.layers : 0);
    const std::int64_t wide = dense ? c.hidden : shared;
    const std::int64_t forward = wide > 0 ? c.feed_forward_parameters(wide) - biases : 0;
    add("block", attention + forward + other, Split::rows, layer);
    add("norms",
        c.block_norms * c.norm_parameters() + (c.latent() ? 0 : biases) + (wide > 0 ? biases : 0),
        Split::whole, layer);
    add("block.q_norm.weight", head_norms, Split::whole, layer);
    if (!dense) {
      add("block.mlp.gate.weight", c.router_parameters(), Split::whole, layer);
      add("block.mlp.experts",
          c.experts / expert_devices * c.feed_forward_parameters(c.expert_hidden), Split::rows,
          layer);
      model.parameters.back().expert = 0;
    }
  }
  add("model.norm.weight", c.norm_parameters(), Split::whole, -1);
  add("lm_head.weight", c.tied ? 0 : c.vocabulary * d, Split::rows, -1);
  return model;
}

class StepLoader {
 public:
  explicit StepLoader(const LoadJob& job)
      : job_(job),
        c_(job.model),
        layout_(job.layout),
        axes_(layout_axes(job.layout)),
        stages_(job.layout, job.model),
        placed_(place_axes(job.machine, axes_.mesh)),
        bytes_(bytes_of(job.format)) {
    for (std::size_t i = 0; i < placed_.size(); ++i) {
      if (placed_[i].size > 1) {
        load.axes.push_back(axis_of(placed_[i]));
      }
    }
    const Transformer sizes = sizes_of(c_, layout_.expert_devices());
    StepOptions options;
    options.batch = job.sequences;
    const std::int64_t p = layout_.pipeline;
    const MeshPoint first(axes_.mesh, 0), last(axes_.mesh, last_of_context());
    for (std::int64_t rank = 0; rank < p; ++rank) {
      const auto plan_at = [&](const MeshPoint& at) {
        return StepPlanner(sizes, layout_, axes_, options, at.rank_at(axes_.pipeline, rank)).plan;
      };
      if (rank < 2 || rank == p - 1 || c_.global_every > 0) {  // else those between are like rank 1
        add_device(plan_at(first), rank);
        load.flops = std::max(load.flops, c_.window > 0 ? plan_at(last).matmul_flops() : 0);
      }
    }
    if (!beyond_of(c_).empty()) {  // the forms are of the plain one
      const auto flops = [&](const ModelConfig& model) {
        return hardware_flops_per_token(model, static_cast<double>(c_.context),
                                        AttentionFlops::causal, layout_.recompute);
      };
      load.flops *= flops(c_) / flops(plain_model(c_));
    }
    const Chip& chip = job.machine.chip;
    load.math = load.flops / chip.peak(job.format);
    load.memory = chip.memory_bandwidth > 0 ? load.memory_bytes / chip.memory_bandwidth : 0;
    load.held = chip.memory_bytes > 0 ? load.held_bytes / chip.memory_bytes : 0;
    load.bubble = p > 1 ? time_pipeline(stages_.schedule).bubble() : 0;
  }

  StepLoad load;

 private:
  static AxisLoad axis_of(const AxisPlacement& place) {
    AxisLoad axis;
    axis.name = place.name;
    axis.size = place.size;
    axis.kind = place.parts[0].kind;
    for (const AxisPart& part : place.parts) {
      axis.kind = part.kind == axis.kind ? axis.kind : AxisKind::line;
    }
    return axis;
  }

  // The last of those that share the first's sequences: under a window none has more pairs.
  std::int64_t last_of_context() const {
    const MeshPoint at(axes_.mesh, 0);
    std::int64_t rank = 0;
    for (std::size_t i = 0; i < at.axes.size(); ++i) {
      rank +=
          in_group(axes_.context, at.axes[i].name) ? (at.axes[i].size.value - 1) * at.stride[i] : 0;
    }
    return rank;
  }

  // Most of each, over the devices that are looked at.
  void add_device(const StepPlan& plan, std::int64_t rank) {
    load.flops = std::max(load.flops, plan.matmul_flops());
    load.held_bytes = std::max(load.held_bytes, held(plan, rank));
    load.memory_bytes = std::max(load.memory_bytes, moved(plan, rank));
    List<AxisLoad> axes = load.axes;
    for (AxisLoad& axis : axes) {
      const std::string name = axis.name;
      axis = AxisLoad();
      axis.name = name;
      for (const PlannedCall& call : plan.calls) {
        const double carried = seconds(call, axis.name, false);
        axis.traffic += carried;
        axis.by[cause_of(call)] += carried;
        axis.latency += seconds(call, axis.name, true);
      }
    }
    for (std::size_t i = 0; i < axes.size(); ++i) {
      load.axes[i].traffic = std::max(load.axes[i].traffic, axes[i].traffic);
      load.axes[i].latency = std::max(load.axes[i].latency, axes[i].latency);
      for (int cause = 0; cause < 5; ++cause) {
        load.axes[i].by[cause] = std::max(load.axes[i].by[cause], axes[i].by[cause]);
      }
    }
  }

  // ---- Calls ----

  static AxisLoad::Cause cause_of(const PlannedCall& call) {
    const std::string& why = call.why;
    const auto is = [&](const char* start) { return why.rfind(start, 0) == 0; };
    return is("tensor") || why == "loss"                             ? AxisLoad::of_tensor
           : is("ring") || is("gathered keys") || is("Ulysses")      ? AxisLoad::of_context
           : is("experts") || is("rows of") || why == "balance loss" ? AxisLoad::of_experts
           : is("weights") || is("gradients")                        ? AxisLoad::of_data
                                                                     : AxisLoad::of_others;
  }

  // Sums of losses, norms and counts stay as they are.
  double wire_bytes(const PlannedCall& call) const {
    const bool few = call.why.compare(0, 4, "loss") == 0 || call.why.compare(0, 4, "rows") == 0 ||
                     call.why == "balance loss";
    const bool gradients = call.why.compare(0, 9, "gradients") == 0;
    return few ? 4 : gradients && job_.state.gradients > 2 ? job_.state.gradients : bytes_;
  }

  // What equal calls take along one axis alone: by their bytes, or by their hops.
  double seconds(const PlannedCall& call, const std::string& axis, bool hops) const {
    CollectiveSpec spec = spec_of(call);
    List<AxisPart> parts;
    bool there = false;
    for (const std::string& name : call.axes) {
      for (const AxisPlacement& place : placed_) {
        for (AxisPart part : place.parts) {
          if (place.name != name || part.size == 1) {
            continue;
          }
          const bool own = name == axis;
          there = there || own;
          part.latency = own && hops ? part.latency : 0;
          part.bandwidth = own && !hops ? part.bandwidth : std::numeric_limits<double>::infinity();
          parts.push_back(part);
        }
      }
    }
    if (!there) {
      return 0;
    }
    const auto times = static_cast<double>(call.times);
    if (call.send) {  // to a neighbour
      CollectiveCost cost;
      cost.add(spec, parts.back(), 1, static_cast<double>(call.elements));
      return times * cost.seconds;
    }
    spec.parts = parts;
    return times * cost_of(spec).seconds;
  }

  // The call as it will run: on the links that there are, by the algorithm for them.
  CollectiveSpec spec_of(const PlannedCall& call) const {
    CollectiveSpec spec;
    std::vector<int> numbers;
    for (const std::string& name : call.axes) {
      for (std::size_t i = 0; i < placed_.size(); ++i) {
        if (placed_[i].name == name) {
          numbers.push_back(static_cast<int>(i));
        }
      }
    }
    spec.what = call.what;
    spec.parts = parts_of_group(job_.machine, placed_, numbers);
    spec.elements = call.elements;
    spec.element_bytes = wire_bytes(call);
    spec.root = call.what == Collective::permute ? call.shift : 0;
    if (!call.send) {
      const bool named =
          layout_.algorithm != Algorithm::automatic && has_algorithm(spec.what, layout_.algorithm);
      spec.algorithm = named ? layout_.algorithm : choose_algorithm(spec).algorithm;
    }
    return spec;
  }

  // ---- Memory ----

  double rows() const {  // tokens of a microbatch on a device
    return static_cast<double>(job_.sequences / (layout_.microbatches * layout_.data) *
                               (c_.context / layout_.context));
  }
  double layers(int stage) const {
    return stages_.first_layer(stage + 1) - stages_.first_layer(stage);
  }
  double block(Recompute recompute) const {  // bytes that a layer keeps
    const double each =
        block_activation_bytes(c_, rows(), layout_.tensor, layout_.sequence_parallel, recompute,
                               layout_.whole_experts) +
        (recompute == Recompute::none
             ? 4 * rows() *
                   context_activations(c_, layout_.context_parallel, layout_.context,
                                       job_.sequences, layout_.tensor)
             : 0);
    return each * bytes_ / 4;
  }
  double logits() const {  // f32
    return 4 * rows() * static_cast<double>(c_.vocabulary) / static_cast<double>(layout_.tensor);
  }

  // Numbers that come and go between stages, and between the devices of experts.
  double stream() const {
    const auto t = static_cast<double>(layout_.sequence_parallel ? layout_.tensor : 1);
    return rows() * static_cast<double>(c_.width) / t;
  }
  double routed_tokens() const { return rows() / static_cast<double>(layout_.routing_ranks()); }
  double expert_rows() const {
    return layout_.expert_devices() > 1 ? routed_tokens() * static_cast<double>(c_.top_k * c_.width)
                                        : 0;
  }

  // States, the most activations that wait, what a layer and the loss work with; two units of
  // weights where they are gathered, three of gradients where they are summed one by one; logits
  // that wait, and a gradient of them.
  double held(const StepPlan& plan, std::int64_t rank) const {
    const StateParts& state = job_.state;
    const auto width = static_cast<double>(c_.width);
    double kept = 0, most = 0;
    bool last = false;
    for (const PipelineOp& op : stages_.schedule.program[static_cast<std::size_t>(rank)]) {
      const bool ends = stages_.is_last(op.stage);
      const double out = ends ? logits() + 2 * rows() * width * bytes_ : stream() * bytes_;
      const double small = layers(op.stage) * block(layout_.recompute) + out;
      const double whole = layers(op.stage) * block(Recompute::none) + out;
      kept += op.work == PipelineWork::forward          ? small
              : op.work == PipelineWork::input_gradient ? whole - small  // until W, computed again
              : op.work == PipelineWork::backward       ? -small
                                                        : -whole;
      most = std::max(most, kept);
      last = last || ends;
    }
    const double zero3 = layout_.zero == Zero::parameters ? 2 * bytes_ : 0;
    const double zero2 = layout_.zero > Zero::optimizer ? 3 * std::max(bytes_, state.gradients) : 0;
    const double gathered = largest_unit() * (zero3 + zero2);
    return plan.parameters / 4 * state.weights + plan.gradients / 4 * state.gradients +
           plan.optimizer / 8 * state.optimizer() + most + block(Recompute::none) + gathered +
           (6 * stream() + 4 * expert_rows()) * bytes_ + (last ? logits() : 0);
  }
  double largest_unit() const {
    const auto t = static_cast<double>(layout_.tensor);
    const double layer = static_cast<double>(c_.layer_parameters(c_.experts / layout_.expert)) / t;
    return std::max(layer, static_cast<double>(c_.vocabulary * c_.width) / t);
  }

  // Operands of matmuls in a pass over one layer, and of the output matrix.
  double operands(double m, double k, double n) const { return (m * k + k * n + m * n) * bytes_; }
  double layer_operands() const {
    const auto d = static_cast<double>(c_.width), t = static_cast<double>(layout_.tensor);
    const double queries = static_cast<double>(c_.query_width()) / t;
    const double keys = static_cast<double>(c_.key_width()) / t, r = rows();
    double sum = 2 * operands(r, d, queries) + 2 * operands(r, d, keys);
    const double matrices = c_.gated() ? 3 : 2;
    if (c_.experts == 0) {
      return sum + matrices * operands(r, d, static_cast<double>(c_.hidden) / t);
    }
    const double hidden = static_cast<double>(c_.expert_hidden), routed = routed_tokens();
    const double each = static_cast<double>(c_.experts / layout_.expert_devices());
    sum += operands(routed, d, c_.experts) +
           each * matrices *
               operands(routed * c_.top_k / each, d, layout_.whole_experts ? hidden : hidden / t);
    return sum + c_.shared_experts * matrices * operands(r, d, hidden / t);
  }
  // Rows of experts: gathered, put in order on the experts' devices and back where they are others,
  // and weighted; going back each is read and written once more.
  double row_moves(double passes) const {
    const bool dealt = layout_.expert_devices() > 1;
    const double moves = (passes - 2) * (dealt ? 7 : 3) + (dealt ? 8 : 4);
    return moves * routed_tokens() * static_cast<double>(c_.top_k * c_.width);
  }
  // Forward once, backward twice, once more what is computed again; what waits for the backward
  // pass is written and read; the update reads and writes its states.
  double moved(const StepPlan& plan, std::int64_t rank) const {
    const double passes = layout_.recompute == Recompute::full ? 4 : 3;
    double sum = 2 * (plan.gradients / 4 * job_.state.gradients +
                      plan.optimizer / 8 * (job_.state.optimizer() + job_.state.weights));
    for (const PipelineOp& op : stages_.schedule.program[static_cast<std::size_t>(rank)]) {
      if (op.work == PipelineWork::forward) {
        sum += layers(op.stage) * (passes * layer_operands() + 2 * block(Recompute::none) +
                                   row_moves(passes) * bytes_);
        sum += stages_.is_last(op.stage) ? 3 * head_operands() : 0;
      }
    }
    return sum;
  }
  double head_operands() const {
    return operands(rows(), static_cast<double>(c_.width),
                    static_cast<double>(c_.vocabulary) / static_cast<double>(layout_.tensor));
  }

  const LoadJob& job_;
  const ModelConfig& c_;
  const Layout& layout_;
  LayoutAxes axes_;
  StageMap stages_;
  List<AxisPlacement> placed_;
  double bytes_;
};

}  // namespace detail

inline StepLoad step_load(const LoadJob& job) {
  job.model.validate();
  detail::check_network("step_load", job.machine);
  detail::check_layout_devices("step_load", job.layout, job.machine.chips());
  detail::check_own_schedule("step_load", job.layout);
  const std::int64_t parts = job.layout.data * job.layout.microbatches;
  if (job.sequences < 1 || job.sequences % parts != 0) {
    detail::fail({"step_load: ", job.sequences, " sequences over data x microbatches = ", parts,
                  "; a multiple of that, at least once, is right"});
  }
  return detail::StepLoader(job).load;
}

}  // namespace tinyscale
