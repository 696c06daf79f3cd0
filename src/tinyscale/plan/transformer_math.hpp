#pragma once
// Transformer maths: checkpoints, KV cache, time of a run and the knees of parallelism, closed
// forms of a config with L layers, D width, KV key-value heads, K head size, B tokens of a batch.
// Source: "How To Scale Your Model", chapters 4 and 5.

#include <cstdint>  // std::int64_t

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/format.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/hardware/network.hpp"
#include "tinyscale/model/model_config.hpp"
#include "tinyscale/parallel/flops_forms.hpp"
#include "tinyscale/parallel/memory_forms.hpp"

namespace tinyscale {

namespace detail {

// Throws unless the field of a job is a finite number from `least` to `most`.
inline void check_job(const char* who, const char* field, double value, double least, double most) {
  if (!is_finite(value) || value < least || value > most) {
    fail({who, ": ", field, " is ", value, "; a number from ", least, " to ", most, " is right"});
  }
}

}  // namespace detail

// Bytes kept between forward and backward: 2 B D L n in bf16, n tensors of width D a layer.
// n = 1 keeps block inputs, 4 the scaling book's chapter 6, 7 the big matmuls, 20 everything.
inline double checkpoint_bytes(const ModelConfig& model, double tokens, double kept_per_layer) {
  detail::check_job("checkpoint_bytes", "tokens", tokens, 0, 1e18);
  detail::check_job("checkpoint_bytes", "kept_per_layer", kept_per_layer, 0, 1e6);
  return 2.0 * tokens * static_cast<double>(model.width * model.layers) * kept_per_layer;
}

// KV cache of one token in all layers: 2 L KV K bytes_of(format); with latent attention L (C + R).
inline double kv_cache_bytes_per_token(const ModelConfig& model, DType format) {
  return static_cast<double>(model.layers * model.cached_numbers()) * bytes_of(format);
}

// KV cache of one sequence of `tokens`: local layers hold min(tokens, window) of them.
inline double kv_cache_bytes(const ModelConfig& model, DType format, std::int64_t tokens) {
  if (tokens < 0) {
    detail::fail({"kv_cache_bytes: ", tokens, " tokens; 0 or more are right"});
  }
  return static_cast<double>(model.cached_numbers(tokens)) * bytes_of(format);
}

// Parameters of one part of a model: all, and those that one token uses.
struct ParameterPart {
  const char* name;
  double all, active;
};

// The parts, the sums of which are parameters() and active_parameters(). Biases are with their
// matrices; norms are those of blocks, of heads, of ranks and the last.
inline List<ParameterPart> parameter_parts(const ModelConfig& m) {
  const std::int64_t mixtures = m.mixture_layers();
  const std::int64_t inner = (m.qk_norm && !m.latent() ? 2 * m.head_size : 0) +
                             (m.latent() ? m.q_lora_rank + m.kv_lora_rank : 0);
  const std::int64_t expert = m.feed_forward_parameters(m.expert_hidden);
  const std::int64_t norms =
      m.layers * (inner + m.block_norms * m.norm_parameters()) + m.norm_parameters();
  const std::int64_t table = m.vocabulary * m.width;
  List<ParameterPart> parts;
  const auto add = [&parts](const char* name, std::int64_t all, std::int64_t active) {
    if (all != 0) {
      parts.push_back({name, static_cast<double>(all), static_cast<double>(active)});
    }
  };
  const auto whole = [&add](const char* name, std::int64_t all) { add(name, all, all); };
  whole("embedding", table);
  whole("positions", m.embedding_parameters() - (m.tied ? 1 : 2) * table);
  whole("attention", m.layers * (m.attention_parameters() - inner));
  whole("feed-forward", (m.layers - mixtures) * m.feed_forward_parameters(m.hidden));
  add("experts", mixtures * m.experts * expert, mixtures * m.top_k * expert);
  whole("shared experts", mixtures * m.shared_experts * expert);
  whole("router", mixtures * m.router_parameters());
  whole("norms", norms);
  whole("output matrix", m.tied ? 0 : table);
  whole("other", m.other_parameters);
  return parts;
}

inline Table params_table(const ModelConfig& model) {
  Table out;
  out.title = detail::cat({"parameters of ", model.name, model.tied ? ", embedding tied" : ""});
  out.columns = {"part", "parameters", "of all", "a token uses"};
  const auto all = static_cast<double>(model.parameters());
  for (const ParameterPart& part : parameter_parts(model)) {
    out.add({part.name, format_count(part.all), format_percent(part.all / all),
             format_count(part.active)});
  }
  out.add({"all", format_count(all), format_percent(1),
           format_count(static_cast<double>(model.active_parameters()))});
  return out;
}

namespace detail {

inline void check_threshold(const char* who, const List<double>& all) {
  for (const double one : all) {
    if (!is_finite(one) || !(one > 0)) {
      fail({who, ": an intensity, a number of axes or a width is ", one,
            "; finite numbers above 0 are right"});
    }
  }
}

// Figures that a user may have set; 0: not known.
inline void check_chip_figures(const char* who, const Machine& machine) {
  const Chip& chip = machine.chip;
  check_job(who, "the chip's memory_bytes", chip.memory_bytes, 0, 1e18);
  check_job(who, "the chip's memory_bandwidth", chip.memory_bandwidth, 0, 1e18);
  for (const double rate : {chip.flops_bf16, chip.flops_int8, chip.flops_fp8, chip.flops_fp4,
                            chip.flops_f32, chip.vector_flops}) {
    check_job(who, "a FLOP/s rate of the chip", rate, 0, 1e19);
  }
  check_job(who, "the chip's watts", chip.watts, 0, 1e9);
  check_job(who, "the chip's dollars_per_hour", chip.dollars_per_hour, 0, 1e9);
  check_job(who, "the machine's dollars_per_hour", machine.dollars_per_hour, 0, 1e9);
}

}  // namespace detail

// Seconds of a run: 6 N tokens / (chips peak mfu).
inline double training_seconds(double flops, double chips, double peak, double mfu) {
  const double all = chips * peak * mfu;
  if (!(chips > 0 && peak > 0 && mfu > 0 && mfu <= 1 && flops > 0) || !detail::is_finite(all) ||
      !detail::is_finite(flops)) {
    detail::fail({"training_seconds: flops ", flops, ", chips ", chips, ", peak ", peak, ", mfu ",
                  mfu, "; finite numbers above 0, an mfu of at most 1, are right"});
  }
  return flops / all;
}

// Tokens a chip above which data x tensor parallelism is bound by math (scaling book, chapter 5):
//   alpha / M_X for FSDP alone, alpha^2 / (M_X M_Y F) mixed; alpha = peak / link W, both directions
inline double fsdp_threshold(double alpha, double axes) {
  detail::check_threshold("fsdp_threshold", {alpha, axes});
  return alpha / axes;
}

inline double mixed_threshold(double alpha, double data_axes, double tensor_axes, double hidden) {
  detail::check_threshold("mixed_threshold", {alpha, data_axes, tensor_axes, hidden});
  return alpha * alpha / (data_axes * tensor_axes * hidden);
}

// Most ways of tensor parallelism that stay bound by math: M_Y F / alpha.
inline double tensor_limit(double alpha, double axes, double hidden) {
  detail::check_threshold("tensor_limit", {alpha, axes, hidden});
  return axes * hidden / alpha;
}

}  // namespace tinyscale
