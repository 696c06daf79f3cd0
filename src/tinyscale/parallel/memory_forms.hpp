#pragma once
// What a device holds in training, in closed form: model states under ZeRO and activations under
// tensor, sequence and pipeline parallelism.
//   states (arXiv 1910.02054, P parameters over d devices, 2 + 2 + 12 bytes each):
//     16 P,  4 P + 12 P / d,  2 P + 14 P / d,  16 P / d
//   activations (arXiv 2205.05198, Megatron's layer of 2022): s b h (34 + 5 a s / h) bytes a layer

#include <algorithm>  // max
#include <cstdint>    // int64_t
#include <vector>     // vector

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/model/training_memory.hpp"
#include "tinyscale/parallel/layout.hpp"

namespace tinyscale {

// Bytes for a parameter in training with AdamW.
//   f32   16: all in f32, as this library trains (no master copy beside the weights)
//   book  10: bf16 weights 2, f32 moments 8 (scaling book, chapter 5: no gradients, no master copy)
//   mixed 16: and gradients 2, f32 master weights 4 (ZeRO, arXiv 1910.02054)
//   mixed_f32_gradients 18: gradients kept in f32, 4 (Megatron)
enum class StateBytes { f32, book, mixed, mixed_f32_gradients };

// Training state of one parameter, in bytes.
struct StateParts {
  double weights = 4;
  double gradients = 4;
  double master = 0;   // f32 copy of the weights that the optimizer updates
  double moments = 8;  // two of Adam

  double optimizer() const { return master + moments; }
  double total() const { return weights + gradients + optimizer(); }
};

inline const char* name_of(StateBytes convention) {
  static const char* const names[] = {"f32", "book", "mixed", "mixed, f32 gradients"};
  return detail::name_in("StateBytes", names, convention);
}

inline StateParts state_parts(StateBytes convention) {
  switch (convention) {
    case StateBytes::book: return {2, 0, 0, 8};
    case StateBytes::mixed: return {2, 2, 4, 8};
    case StateBytes::mixed_f32_gradients: return {2, 4, 4, 8};
    default: name_of(convention); return StateParts();  // refuses what is none
  }
}

// Bytes that one device holds.
struct ModelStates {
  double weights = 0, gradients = 0, optimizer = 0;

  double total() const { return weights + gradients + optimizer; }
};

// Of `parameters` (those of a tensor and pipeline shard), ZeRO over `devices`.
inline ModelStates model_states(double parameters, const StateParts& parts, Zero zero,
                                std::int64_t devices) {
  if (!(parameters >= 0) || devices < 1) {
    detail::fail({"model_states: ", parameters, " parameters over ", devices,
                  " devices; 0 or more over at least 1 are right"});
  }
  const auto share = [&](Zero from) {
    return parameters / (zero >= from ? static_cast<double>(devices) : 1);
  };
  return {parts.weights * share(Zero::parameters), parts.gradients * share(Zero::gradients),
          parts.optimizer() * share(Zero::optimizer)};
}

// Bytes of a device for each convention and each stage of ZeRO.
inline Table state_table(double parameters, std::int64_t devices) {
  Table out;
  out.title = detail::cat(
      {"model states of ", format_count(parameters), " parameters over ", devices, " devices"});
  out.columns = {"convention", "weights", "gradients", "master", "moments",
                 "none",       "ZeRO-1",  "ZeRO-2",    "ZeRO-3"};
  for (int i = 0; i < 4; ++i) {
    const auto convention = static_cast<StateBytes>(i);
    const StateParts p = state_parts(convention);
    std::vector<Cell> row = {name_of(convention), detail::cat({p.weights}),
                             detail::cat({p.gradients}), detail::cat({p.master}),
                             detail::cat({p.moments})};
    for (int zero = 0; zero < 4; ++zero) {
      row.push_back(
          format_bytes(model_states(parameters, p, static_cast<Zero>(zero), devices).total()));
    }
    out.add(row);
  }
  return out;
}

// Megatron's layer of 2022: 2-byte activations, 1-byte dropout masks, LayerNorm, unfused attention
// and GELU, hidden width 4 h. s tokens, b sequences of a microbatch, h width, a heads, t devices.
struct ActivationShape {
  double sequence = 0;  // s
  double batch = 1;     // b
  double width = 0;     // h
  double heads = 0;     // a
  double tensor = 1;    // t
  bool sequence_parallel = false;
  Recompute recompute = Recompute::none;
};

namespace detail {

inline void check_activation_shape(const char* who, const ActivationShape& x) {
  if (!(x.sequence >= 1 && x.batch >= 1 && x.width >= 1 && x.heads >= 1 && x.tensor >= 1)) {
    fail({who, ": sequence ", x.sequence, ", batch ", x.batch, ", width ", x.width, ", heads ",
          x.heads, ", tensor ", x.tensor, "; each must be at least 1"});
  }
}

}  // namespace detail

// Bytes that a device keeps of one layer and microbatch for the backward pass:
//                    none                            selective            full
//   t devices        s b h (10 + 24/t + 5 a s/(h t)) s b h (10 + 24/t)    2 s b h
//   and over tokens  s b h/t (34 + 5 a s/h)          34 s b h / t         2 s b h / t
inline double layer_activation_bytes(const ActivationShape& x) {
  detail::check_activation_shape("layer_activation_bytes", x);
  const double whole = x.sequence_parallel ? 1 / x.tensor : 1;  // what tensor leaves whole
  const double tokens = x.sequence * x.batch;
  if (x.recompute == Recompute::full) {
    return 2 * tokens * x.width * whole;
  }
  const double core = x.recompute == Recompute::none ? 5 * x.heads * x.sequence : 0;
  return x.sequence_parallel ? tokens * (34 * x.width + core) / x.tensor
                             : tokens * (10 * x.width * x.tensor + 24 * x.width + core) / x.tensor;
}

// The layers of the first of p stages, each device with v chunks of layers. 1F1B: p microbatches of
// L / p layers are under way; interleaved (v > 1): 1 + (p-1)/(p v) times as much.
inline double first_stage_activation_bytes(const ActivationShape& x, double layers,
                                           std::int64_t stages = 1, std::int64_t chunks = 1) {
  if (!(layers >= 1) || stages < 1 || chunks < 1) {
    detail::fail({"first_stage_activation_bytes: ", layers, " layers, ", stages, " stages, ",
                  chunks, " chunks a device; each must be at least 1"});
  }
  const double all = layer_activation_bytes(x) * layers;
  const double slots = static_cast<double>(stages * chunks);
  return chunks == 1 ? all : all * (slots + static_cast<double>(stages - 1)) / slots;
}

// Outside the layers, under sequence parallelism: on the first stage the mask of the embedding's
// dropout for p microbatches, s b h p / t; on the last the input of the last norm and of the output
// matrix, and f32 logits: 4 s b h / t (1 + V / h). One stage has both.
struct OuterActivations {
  double embedding = 0, head = 0;  // bytes
};

inline OuterActivations outer_activation_bytes(const ActivationShape& x, double vocabulary,
                                               std::int64_t stages = 1) {
  detail::check_activation_shape("outer_activation_bytes", x);
  const double tokens = x.sequence * x.batch;
  return {tokens * x.width * static_cast<double>(stages) / x.tensor,
          4 * tokens * (x.width + vocabulary) / x.tensor};
}

// Bytes that this library's own block keeps of `tokens` tokens in f32, on one of `tensor`
// devices. Its attention keeps no [s, s] matrix: recomputing it saves the log-sum-exps alone.
inline double block_activation_bytes(const ModelConfig& c, double tokens, std::int64_t tensor = 1,
                                     bool sequence_parallel = false,
                                     Recompute recompute = Recompute::none,
                                     bool whole_experts = false) {
  const auto parts = static_cast<double>(tensor);
  if (recompute == Recompute::full) {
    return 4 * tokens * static_cast<double>(c.width) / (sequence_parallel ? parts : 1);
  }
  const double statistics =
      recompute == Recompute::selective ? static_cast<double>(c.heads) / parts : 0;
  return 4 * tokens *
         (detail::layer_activations(c, tensor, sequence_parallel, false, whole_experts) -
          statistics);
}

namespace detail {

// How often each head of keys and values is there: once, or on each of the tensor-parallel devices
// that have one between them.
inline double kv_copies(const ModelConfig& c, double tensor) {
  return std::max(1.0, tensor / static_cast<double>(c.kv_heads));
}

// Parameters of a layer beyond its own that those copies make.
inline double copied_parameters(const ModelConfig& c, double tensor) {
  const std::int64_t rows = c.latent() ? 0 : 2 * c.key_width();
  const std::int64_t each = c.width + (c.bias || c.qkv_bias ? 1 : 0);
  return (kv_copies(c, tensor) - 1) * static_cast<double>(rows * each);
}

}  // namespace detail

// Floats a token that context parallelism over `devices` keeps besides: ring attention nothing;
// Ulysses attention's output for its heads as well as for its tokens; gathered the keys and values
// of all tokens, from two sequences on those that each of its two chunks of queries sees, and the
// chunks' outputs.
inline double context_activations(const ModelConfig& c, ContextParallel kind, std::int64_t devices,
                                  std::int64_t batch, std::int64_t tensor = 1) {
  const auto parts = static_cast<double>(tensor);
  if (devices == 1 || kind == ContextParallel::ring) {
    return 0;
  }
  const double output = static_cast<double>(c.query_width()) / parts;
  if (kind == ContextParallel::ulysses) {
    return output;
  }
  const auto seen = static_cast<double>(2 * devices + (batch > 1 ? 1 : 0));
  return output +
         (seen - 2) * static_cast<double>(c.key_width()) * detail::kv_copies(c, parts) / parts;
}

}  // namespace tinyscale
