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

// Floats kept for each token of one dense layer. Norm: its input and its output; query, key and
// value; attention's output and its log-sum-exp; the hidden layer before and after the activation.
inline double layer_activations(const ModelConfig& c) {
  const auto width = static_cast<double>(c.width);
  const auto hidden = static_cast<double>(c.hidden);
  const auto heads = static_cast<double>(c.heads * c.head_size);
  const auto kv = static_cast<double>(c.kv_heads * c.head_size);
  const double statistics = c.norm == Norm::layer ? 4 : 2;  // mean and 1/deviation of two norms
  const bool gated = c.activation == Activation::swiglu || c.activation == Activation::geglu;
  const double feed_forward = gated ? 4 * hidden : 2 * hidden;  // gate, silu(gate), up, product
  return 4 * width + 2 * heads + 2 * kv + static_cast<double>(c.heads) + statistics + feed_forward;
}

}  // namespace detail

// Peak bytes of a step on `batch` sequences of `time` tokens. Dense models, no dropout.
inline TrainingMemory training_memory(const ModelConfig& c, std::int64_t batch, std::int64_t time) {
  const auto tokens = static_cast<double>(batch * time);
  const auto parameters = static_cast<double>(c.parameters());
  const auto width = static_cast<double>(c.width);
  const auto vocabulary = static_cast<double>(c.vocabulary);
  TrainingMemory m;
  m.parameters = 4 * parameters;
  m.gradients = 4 * parameters;
  m.optimizer = 8 * parameters;
  const double last_norm = 2 * width + (c.norm == Norm::layer ? 2 : 1);
  const double loss = 2 * vocabulary + 1;  // the logits, their gradient, a log-sum-exp
  m.activations = 4 * tokens *
                  (static_cast<double>(c.layers) * detail::layer_activations(c) + last_norm + loss);
  return m;
}

}  // namespace tinyscale
