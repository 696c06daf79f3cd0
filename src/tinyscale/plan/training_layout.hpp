#pragma once
// Training layouts: X chips of data (FSDP) times Y of tensor = N chips, priced by lower bounds.
//   T_math = FLOPs / (N C)         T_step = max(T_math, T_fsdp, T_tensor): perfect overlap
//   T_fsdp = 3 b P / (Y W_X)       weights gathered forward and backward, gradients scattered
//   T_tensor = 8 b B D L / (X W_Y) activations gathered and scattered twice a layer, both passes
// Source: "How To Scale Your Model", chapters 5 and 12. W: what a chip sends, both ways of a ring.

#include <algorithm>  // max, min
#include <cmath>      // floor, ceil
#include <cstddef>    // std::size_t
#include <cstdint>    // std::int64_t
#include <string>     // text
#include <vector>     // layouts

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/order.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/hardware/network.hpp"
#include "tinyscale/parallel/layout.hpp"
#include "tinyscale/plan/transformer_math.hpp"

namespace tinyscale {

struct TrainingJob {
  ModelConfig model;
  double tokens = 0;  // 0: the preset's published count, else 20 for each parameter
  double batch_tokens = 4e6;
  std::int64_t context = 0;  // 0: the model's
  DType format = DType::bf16;
  StateBytes state = StateBytes::book;
  double checkpoints = 4;    // tensors of width D kept for each layer
  double typical_mfu = 0.4;  // what well-run jobs reach (scaling book, chapter 6)
};

// One way to divide the machine: what each part of a step takes, and what a chip must hold.
struct TrainingLayout {
  Layout layout;
  int data_axes = 0, tensor_axes = 0;  // M_X, M_Y: dimensions of the machine that each spans
  double data_bandwidth = 0, tensor_bandwidth = 0;  // W_X, W_Y: bytes/s out of a chip
  double compute_time = 0, fsdp_time = 0, tensor_time = 0, step_time = 0;  // seconds
  double memory = 0;                                                       // bytes a chip
  bool shared_links = false;  // fsdp and tensor take turns instead of overlapping
  std::string bound;          // math, fsdp, tensor
};

namespace detail {

// The job with its open fields decided, and the sentences that say how.
struct TrainingInputs {
  TrainingJob job;
  Machine machine;
  double tokens = 0, batch = 0, context = 0, sequences = 0;
  std::vector<std::string> notes;
};

inline void check_training(const TrainingJob& job, const Machine& machine) {
  job.model.validate();
  if (machine.dims.size() == 0 || machine.chips() < 1) {
    detail::fail(
        {"plan_training: the machine has no chips; make one with machine(\"tpu-v5p\", "
         "{4, 4, 4})"});
  }
  check_network("plan_training", machine);
  if (machine.chip.kind == "tpu" && machine.dims.size() > inner_dims(machine.chip, machine.dims)) {
    fail({"plan_training: ", machine.name, " is slices joined by a network; give one slice"});
  }
  const char* const who = "plan_training";
  check_job(who, "batch_tokens", job.batch_tokens, 1, 1e18);
  check_job(who, "tokens", job.tokens, 0, 1e30);  // 0: the plan chooses
  check_job(who, "context", static_cast<double>(job.context), 0, 1e9);
  check_job(who, "checkpoints", job.checkpoints, 0, 1e6);
  check_job(who, "typical_mfu", job.typical_mfu, 1e-6, 1);
}

inline TrainingInputs training_inputs(const TrainingJob& job, const Machine& machine) {
  check_training(job, machine);
  TrainingInputs in{job, machine, job.tokens, 0, 0, 0, {}};
  const double parameters = static_cast<double>(job.model.active_parameters());
  if (in.tokens == 0 && job.model.training_tokens > 0) {
    in.tokens = job.model.training_tokens;
    in.notes.push_back(
        cat({"tokens: ", format_count(in.tokens), ", as published for ", job.model.name}));
  } else if (in.tokens == 0) {
    in.tokens = 20 * parameters;
    in.notes.push_back(
        cat({"tokens: assumed 20 for each parameter (Chinchilla), ", format_count(in.tokens)}));
  }
  in.context = static_cast<double>(job.context > 0 ? job.context : job.model.context);
  in.sequences = std::max(1.0, std::floor(job.batch_tokens / in.context + 0.5));
  in.batch = in.sequences * in.context;
  if (in.batch != job.batch_tokens) {
    in.notes.push_back(cat({"batch: ", format_count(job.batch_tokens), " tokens rounded to ",
                            format_count(in.sequences), " sequences of ", format_count(in.context),
                            " = ", format_count(in.batch)}));
  }
  return in;
}

// Dimensions that have links: more than one chip along them.
inline std::vector<int> linked_dims(const Machine& machine) {
  std::vector<int> dims;
  for (int i = 0; i < machine.dims.size(); ++i) {
    if (machine.dims[i] > 1) {
      dims.push_back(i);
    }
  }
  return dims;
}

// W_X and W_Y on a torus: tensor takes the last M_Y dimensions, data the first M_X; on a machine of
// one dimension the two take turns on its links.
inline void torus_bandwidths(const Machine& machine, TrainingLayout& plan) {
  const std::vector<int> dims = linked_dims(machine);
  const int count = static_cast<int>(dims.size());
  for (int i = 0; i < count; ++i) {
    const double rate = machine.egress(dims[static_cast<std::size_t>(i)]);
    plan.data_bandwidth += i < plan.data_axes ? rate : 0;
    plan.tensor_bandwidth += i >= count - plan.tensor_axes ? rate : 0;
  }
  plan.shared_links = plan.data_axes + plan.tensor_axes > count;
}

// GPUs: V / max over levels, the switch of a node and the network between nodes, where tensor
// parallelism inside the node leaves each GPU its own share of both (scaling book, chapter 12).
inline void switch_bandwidths(const Machine& machine, TrainingLayout& plan) {
  const int inner = machine.dims.size() - 1;
  const double node = static_cast<double>(machine.dims[inner]);
  const double gpu_rate = machine.egress(inner);
  const bool many = machine.chips() > machine.dims[inner];
  const double node_rate = many ? node * machine.egress(0) : 0;
  const double tensor = static_cast<double>(plan.layout.tensor);
  double time = tensor < node ? 1 / (gpu_rate * tensor) : 0;  // to gather one byte over X
  if (many) {
    time = std::max(time, node / std::max(node, tensor) / node_rate);
  }
  plan.data_bandwidth = 1 / (tensor * time);
  plan.tensor_bandwidth = tensor <= node ? gpu_rate : std::min(gpu_rate, node_rate);
  plan.shared_links = tensor > node || !many;  // both through the network, or both in the switch
}

inline double training_memory(const TrainingInputs& in) {
  return state_parts(in.job.state).total() * static_cast<double>(in.job.model.parameters()) +
         checkpoint_bytes(in.job.model, in.batch, in.job.checkpoints);
}

inline TrainingLayout price_layout(const TrainingInputs& in, const Layout& layout, int data_axes,
                                   int tensor_axes) {
  const ModelConfig& model = in.job.model;
  const double bytes = bytes_of(in.job.format);
  const double chips = static_cast<double>(in.machine.chips());
  TrainingLayout plan;
  plan.layout = layout;
  plan.tensor_axes = tensor_axes;
  plan.data_axes = data_axes;
  if (in.machine.chip.kind == "gpu") {
    switch_bandwidths(in.machine, plan);
  } else {
    torus_bandwidths(in.machine, plan);
  }
  const double x = static_cast<double>(layout.data), y = static_cast<double>(layout.tensor);
  plan.compute_time = training_flops_per_token(model, in.context, AttentionFlops::causal) *
                      in.batch / (chips * in.machine.chip.peak(in.job.format));
  if (layout.data > 1) {
    plan.fsdp_time =
        3 * bytes * static_cast<double>(model.parameters()) / (y * plan.data_bandwidth);
  }
  if (layout.tensor > 1) {
    plan.tensor_time = 8 * bytes * in.batch * static_cast<double>(model.width * model.layers) /
                       (x * plan.tensor_bandwidth);
  }
  const double comms = plan.shared_links ? plan.fsdp_time + plan.tensor_time
                                         : std::max(plan.fsdp_time, plan.tensor_time);
  plan.step_time = std::max(plan.compute_time, comms);
  plan.bound = plan.compute_time >= plan.step_time  ? "math"
               : plan.fsdp_time >= plan.tensor_time ? "fsdp"
                                                    : "tensor";
  plan.memory = training_memory(in) / chips;
  return plan;
}

// Whether every head and every hidden unit belongs to one of so many chips.
inline bool tensor_divides(const ModelConfig& model, std::int64_t tensor) {
  const std::int64_t hidden = model.experts > 0 ? model.expert_hidden : model.hidden;
  return model.heads % tensor == 0 && hidden % tensor == 0;
}

// One split of data x tensor = chips, over each way to give each its dimensions of the machine.
inline void add_layouts(const TrainingInputs& in, std::int64_t tensor,
                        List<TrainingLayout>& plans) {
  Layout layout;
  layout.tensor = tensor;
  layout.data = in.machine.chips() / tensor;
  layout.zero = Zero::parameters;
  if (static_cast<double>(layout.data) > in.batch) {
    return;
  }
  const int dims = static_cast<int>(linked_dims(in.machine).size());
  const bool both = layout.data > 1 && layout.tensor > 1;
  if (in.machine.chip.kind == "gpu") {  // one switch, one network: no dimensions to give
    plans.push_back(price_layout(in, layout, 0, 0));
    return;
  }
  if (!both || dims < 2) {
    const int data_axes = layout.data > 1 ? dims : 0;
    plans.push_back(price_layout(in, layout, data_axes, layout.tensor > 1 ? dims : 0));
    return;
  }
  for (int axes = 1; axes < dims; ++axes) {
    plans.push_back(price_layout(in, layout, dims - axes, axes));
  }
}

inline List<TrainingLayout> fastest_first(const List<TrainingLayout>& plans) {
  std::vector<double> keys;
  for (const TrainingLayout& plan : plans) {
    keys.push_back(plan.step_time);
  }
  List<TrainingLayout> sorted;
  for (const std::size_t i : stable_order(keys)) {
    sorted.push_back(plans[i]);
  }
  return sorted;
}

// Every layout whose tensor part divides heads and hidden units, fastest first.
inline List<TrainingLayout> priced_layouts(const TrainingInputs& in) {
  List<TrainingLayout> plans;
  const std::int64_t chips = in.machine.chips();
  for (std::int64_t tensor = 1; tensor <= std::min(chips, in.job.model.heads); ++tensor) {
    if (chips % tensor == 0 && tensor_divides(in.job.model, tensor)) {
      add_layouts(in, tensor, plans);
    }
  }
  if (plans.empty()) {
    fail({"plan_training: ", in.job.model.name, " has no data x tensor layout on ", in.machine.name,
          ": a batch of ", format_count(in.batch),
          " tokens must give each data-parallel chip at least one"});
  }
  return fastest_first(plans);
}

inline void check_fits(const TrainingInputs& in) {
  const Chip& chip = in.machine.chip;
  const double all = training_memory(in), chips = static_cast<double>(in.machine.chips());
  if (chip.memory_bytes <= 0 || all <= chips * chip.memory_bytes) {
    return;
  }
  const double state = state_parts(in.job.state).total();
  const double parameters = static_cast<double>(in.job.model.parameters());
  fail({"plan_training: ", in.job.model.name, " does not fit on ", in.machine.name, ": ", state,
        " bytes a parameter = ", format_bytes(state * parameters), ", checkpoints ",
        format_bytes(all - state * parameters), ", ", format_bytes(all / chips), " a chip of ",
        format_bytes(chip.memory_bytes),
        "; would fit: ", format_count(std::ceil(all / chip.memory_bytes)),
        " chips, or fewer tokens in a batch or fewer checkpoints"});
}

}  // namespace detail
}  // namespace tinyscale
