#pragma once
// Transformer maths: FLOPs for a token and bytes of training state, closed forms of a config.
//   training FLOPs per token = 6 P (2 P forward, 4 P backward) + attention 12 L T H K, causal half
// with P parameters, L layers, D width, H heads, K head size, T context, B tokens of a batch.
// Source: "How To Scale Your Model", chapter 4; PaLM (arXiv 2204.02311), appendix B.

#include <cstdint>  // std::int64_t

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/format.hpp"
#include "tinyscale/model/model_config.hpp"

namespace tinyscale {

// What of the scores and weighted values is counted: nothing, what a causal mask keeps, all T x T.
enum class AttentionFlops { none, causal, full };

// Bytes for a parameter in training with AdamW.
//   book  10: bf16 weights 2, f32 moments 8 (scaling book, chapter 5: no gradients, no master copy)
//   mixed 16: and gradients 2, f32 master weights 4 (ZeRO, arXiv 1910.02054)
//   mixed_f32_gradients 18: gradients kept in f32, 4
enum class StateBytes { book, mixed, mixed_f32_gradients };

// Training state of one parameter, in bytes.
struct StateParts {
  double weights = 2;
  double gradients = 0;
  double optimizer = 8;  // moments, and master weights where they are kept

  double total() const { return weights + gradients + optimizer; }
};

inline StateParts state_parts(StateBytes convention) {
  switch (convention) {
    case StateBytes::book: return {2, 0, 8};
    case StateBytes::mixed: return {2, 2, 12};
    default: return {2, 4, 12};
  }
}

// Forward FLOPs of the scores and the weighted values for one token in all layers:
// 4 T H K a layer when each token sees all T, half as much when it sees those before it.
inline double attention_flops_per_token(const ModelConfig& model, double context,
                                        AttentionFlops counted) {
  const double full =
      4.0 * static_cast<double>(model.layers) * context * static_cast<double>(model.query_width());
  return counted == AttentionFlops::full ? full : counted == AttentionFlops::causal ? full / 2 : 0;
}

// Parameters that multiply a token: the active ones without the tables that are only looked up.
inline double matmul_parameters(const ModelConfig& model) {
  const double positions =
      model.position == Position::learned ? static_cast<double>(model.context * model.width) : 0;
  const double table = model.tied ? 0 : static_cast<double>(model.vocabulary * model.width);
  return static_cast<double>(model.active_parameters()) - positions - table;
}

// 6 N: the numerator of an MFU, N all parameters that a token uses.
inline double six_n(const ModelConfig& model) {
  return 6.0 * static_cast<double>(model.active_parameters());
}

// Forward and backward FLOPs that a token needs: three forward passes' worth.
inline double training_flops_per_token(const ModelConfig& model, double context,
                                       AttentionFlops counted) {
  return 3.0 *
         (2.0 * matmul_parameters(model) + attention_flops_per_token(model, context, counted));
}

// What PaLM's MFU counts: 6 N + 12 L H K T, the embedding included and the mask ignored.
inline double palm_flops_per_token(const ModelConfig& model, double context) {
  return six_n(model) + 3.0 * attention_flops_per_token(model, context, AttentionFlops::full);
}

// Bytes kept between forward and backward: 2 B D L n in bf16, n tensors of width D a layer.
// n = 1 keeps block inputs, 4 the scaling book's chapter 6, 7 the big matmuls, 20 everything.
inline double checkpoint_bytes(const ModelConfig& model, double tokens, double kept_per_layer) {
  return 2.0 * tokens * static_cast<double>(model.width * model.layers) * kept_per_layer;
}

// KV cache of one token in all layers: 2 L KV K bytes_of(format), or the model's own cached width.
inline double kv_cache_bytes_per_token(const ModelConfig& model, DType format) {
  return static_cast<double>(model.layers * model.cached_numbers()) * bytes_of(format);
}

namespace detail {

// Throws unless the field of a job is a finite number from `least` to `most`.
inline void check_job(const char* who, const char* field, double value, double least, double most) {
  if (!is_finite(value) || value < least || value > most) {
    fail({who, ": ", field, " is ", value, "; a number from ", least, " to ", most, " is right"});
  }
}

}  // namespace detail

// Seconds of a run: 6 N tokens / (chips peak mfu).
inline double training_seconds(double flops, double chips, double peak, double mfu) {
  if (!(chips > 0 && peak > 0 && mfu > 0)) {
    detail::fail({"training_seconds: chips ", chips, ", peak ", peak, ", mfu ", mfu,
                  "; each must be above 0"});
  }
  return flops / (chips * peak * mfu);
}

// Tokens a chip above which data x tensor parallelism is bound by math (scaling book, chapter 5):
//   alpha / M_X for FSDP alone, alpha^2 / (M_X M_Y F) mixed; alpha = peak / link W, both directions
inline double fsdp_threshold(double alpha, double axes) { return alpha / axes; }

inline double mixed_threshold(double alpha, double data_axes, double tensor_axes, double hidden) {
  return alpha * alpha / (data_axes * tensor_axes * hidden);
}

// Most ways of tensor parallelism that stay bound by math: M_Y F / alpha.
inline double tensor_limit(double alpha, double axes, double hidden) {
  return axes * hidden / alpha;
}

}  // namespace tinyscale
