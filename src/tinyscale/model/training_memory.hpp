#pragma once
// What training holds on one device, in float32 and without recomputation: 16 bytes a parameter
// (value, gradient, two Adam moments) and what each op keeps for its backward pass.
// The closed form of this library's own layer; the memory meter is its other side.

#include <cstdint>  // int64_t

#include "tinyscale/model/model_config.hpp"

namespace tinyscale {

struct TrainingMemory {  // bytes
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;
  double activations = 0;  // at the peak: the end of the forward pass plus the logits' gradient

  double total() const { return parameters + gradients + optimizer + activations; }
};

namespace detail {

inline double norm_statistics(const ModelConfig& c) {
  return c.norm == Norm::layer ? 2 : 1;  // mean, and 1/deviation
}

// Floats kept for each token of a feed-forward that wide: the hidden layer before and after the
// activation; gate, silu(gate), up and their product.
inline double hidden_activations(const ModelConfig& c, std::int64_t wide) {
  return static_cast<double>((c.gated() ? 4 : 2) * wide);
}

// Of a layer on one of `tensor` devices. Norm: its input and its output; query, key and value
// (before and after their norm); attention's output and its log-sum-exp; the hidden layer. A
// dropless mixture without a balance loss: the router's E probabilities, of each choice the row
// that goes in and the one that comes out, k weights and their sum, the hidden layers. Nothing for
// dropout, which draws its mask again. Heads and hidden layers are cut; under sequence parallelism
// also tokens, but for the norms' outputs, which are gathered for the matmuls and
// kept so unless gathered again. Whole experts and their router read the second norm's output as it
// lies, and keep of a device's tokens alone; shared ones beside them gather it.
inline double layer_activations(const ModelConfig& c, std::int64_t tensor = 1,
                                bool sequence_parallel = false, bool gather_again = false,
                                bool whole_experts = false) {
  const auto parts = static_cast<double>(tensor);
  const auto width = static_cast<double>(c.width);
  const auto heads = static_cast<double>(c.heads);
  const auto kv_heads = static_cast<double>(c.kv_heads);
  const auto choices = static_cast<double>(c.top_k);
  const double projected = (heads + 2 * kv_heads) * static_cast<double>(c.head_size);
  const double normed = c.qk_norm ? (heads + kv_heads) * (static_cast<double>(c.head_size) + 1) : 0;
  const double attended = heads * (static_cast<double>(c.head_size) + 1);
  const double feed_forward =
      c.experts == 0 ? hidden_activations(c, c.hidden)
                     : hidden_activations(c, (c.top_k + c.shared_experts) * c.expert_hidden);
  const double routed = c.experts == 0 ? 0 : c.experts + choices * (2 * width + 1) + 1;
  const double stream = sequence_parallel ? parts : 1;
  const bool whole = whole_experts && c.experts > 0;
  const double gathered = whole && c.shared_experts == 0 ? 1 : 2;
  return 2 * (width + norm_statistics(c)) / stream + (whole ? width / stream : 0) +
         gathered * width / (gather_again ? stream : 1) + routed / (whole ? stream : 1) +
         (projected + normed + attended + feed_forward) / parts;
}

}  // namespace detail

// Bytes of activations between the forward and the backward pass of `batch` sequences of `time`
// tokens: the layers, the last norm, the gradient that the loss leaves for it, and the loss. f32
// matmuls.
inline double forward_activation_bytes(const ModelConfig& c, std::int64_t batch,
                                       std::int64_t time) {
  const double layers = static_cast<double>(c.layers) * detail::layer_activations(c);
  const double last = 2 * static_cast<double>(c.width) + detail::norm_statistics(c);
  return 4 * (static_cast<double>(batch * time) * (layers + last) + 1);
}

// Peak bytes of a step on `batch` sequences of `time` tokens. Dense models.
inline TrainingMemory training_memory(const ModelConfig& c, std::int64_t batch, std::int64_t time) {
  const auto tokens = static_cast<double>(batch * time);
  const auto parameters = static_cast<double>(c.parameters());
  const auto width = static_cast<double>(c.width);
  const auto vocabulary = static_cast<double>(c.vocabulary);
  TrainingMemory m;
  m.parameters = 4 * parameters;
  m.gradients = 4 * parameters;
  m.optimizer = 8 * parameters;
  const double last_norm = 2 * width + detail::norm_statistics(c);
  const double loss = 2 * vocabulary + 1;  // the logits, their gradient, a log-sum-exp
  m.activations = 4 * tokens *
                  (static_cast<double>(c.layers) * detail::layer_activations(c) + last_norm + loss);
  return m;
}

}  // namespace tinyscale
