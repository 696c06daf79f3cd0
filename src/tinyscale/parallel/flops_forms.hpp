#pragma once
// FLOPs of a token by named conventions: model FLOPs (MFU) count what training needs, hardware
// FLOPs (HFU) also what is computed again.
//   training FLOPs per token = 6 P (2 P forward, 4 P backward) + 6 L H (K + W) keys seen
// P parameters, L layers, D width, H heads, K and W numbers of a head's key and value, T context,
// V vocabulary. Source: "How To Scale Your Model", chapter 4; PaLM (arXiv 2204.02311), appendix B;
// Megatron (arXiv 2104.04473, 2205.05198); MaxText's count, full until July 2025, then causal.

#include <cstdint>  // int64_t

#include "tinyscale/base/text.hpp"
#include "tinyscale/model/model_config.hpp"
#include "tinyscale/parallel/layout.hpp"

namespace tinyscale {

// What of the scores and weighted values is counted: nothing, what a causal mask keeps (T/2 keys a
// query), all T x T, or the mask's pairs to the last, the diagonal with them: (T + 1)/2.
enum class AttentionFlops { none, causal, full, causal_exact };

// Keys that a query sees in the mean over `context` tokens. A local layer's see u = min(T, window):
// u when the mask is ignored, u - u^2/(2 T) causal, u - u (u - 1)/(2 T) with the diagonal.
inline double keys_seen(double context, double window, AttentionFlops counted) {
  if (!detail::is_finite(context) || context < 1 || !(window >= 0)) {
    detail::fail({"keys_seen: context is ", context, ", window ", window,
                  "; a finite context of 1 or more, a window of 0 (none) or more are right"});
  }
  const double most = window > 0 && window < context ? window : context;
  switch (counted) {
    case AttentionFlops::causal: return most - most * (most / (2 * context));
    case AttentionFlops::full: return most;
    case AttentionFlops::causal_exact: return most - most * ((most - 1) / (2 * context));
    case AttentionFlops::none: return 0;
  }
  detail::fail({"keys_seen: AttentionFlops ", static_cast<int>(counted), "; 0 to 3 are right"});
}

// Forward FLOPs of the scores and the weighted values for one token in all layers: 2 H (K + W) a
// key that is seen (4 H K where values are as wide as keys).
inline double attention_flops_per_token(const ModelConfig& model, double context,
                                        AttentionFlops counted) {
  if (!detail::is_finite(context) || context < 1) {
    detail::fail({"attention_flops_per_token: context is ", context, "; 1 or more is right"});
  }
  const auto local = static_cast<double>(model.local_layers());
  const double keys = (static_cast<double>(model.layers) - local) * keys_seen(context, 0, counted) +
                      local * keys_seen(context, static_cast<double>(model.window), counted);
  const std::int64_t widths = model.heads * (model.score_head() + model.output_head());
  return 2.0 * static_cast<double>(widths) * keys;
}

// Parameters that multiply a token: the active ones without the tables that are only looked up.
inline double matmul_parameters(const ModelConfig& model) {
  const double positions =
      model.position == Position::learned ? static_cast<double>(model.context * model.width) : 0;
  const double table = model.tied ? 0 : static_cast<double>(model.vocabulary * model.width);
  return static_cast<double>(model.active_parameters()) - positions - table;
}

// Numbers of the matrices that a token meets, part by part: no norms, no biases, no tables that are
// looked up. A mixture's are the experts that it visits and the router.
struct MatrixParameters {
  double queries_keys_values = 0, output = 0;  // of attention
  double feed_forward = 0, experts = 0, router = 0;
  double head = 0;  // V D, the embedding table once more when tied

  double total() const {
    return queries_keys_values + output + feed_forward + experts + router + head;
  }
};

inline MatrixParameters matrix_parameters(const ModelConfig& m) {
  const std::int64_t mixtures = m.mixture_layers();
  const std::int64_t matrices = m.gated() ? 3 : 2;
  std::int64_t projected = m.width * (m.query_width() + 2 * m.key_width());
  if (m.latent()) {
    const std::int64_t scores = m.heads * m.score_head();
    projected = m.q_lora_rank > 0 ? m.q_lora_rank * (m.width + scores) : m.width * scores;
    projected += m.width * (m.kv_lora_rank + m.rope_head) +
                 m.kv_lora_rank * (m.query_width() + m.output_width());
  }
  const std::int64_t visited = m.top_k + m.shared_experts;
  MatrixParameters out;
  out.queries_keys_values = static_cast<double>(m.layers * projected);
  out.output = static_cast<double>(m.layers * m.output_width() * m.width);
  out.feed_forward = static_cast<double>((m.layers - mixtures) * matrices * m.width * m.hidden);
  out.experts = static_cast<double>(mixtures * visited * matrices * m.width * m.expert_hidden);
  out.router = static_cast<double>(mixtures * m.width * m.experts);
  out.head = static_cast<double>(m.vocabulary * m.width);
  return out;
}

// 6 N: the numerator of an MFU, N all parameters that a token uses.
inline double six_n(const ModelConfig& model) {
  return 6.0 * static_cast<double>(model.active_parameters());
}

// 6 N without the tables of tokens and positions and without the output matrix.
inline double six_n_without_embedding(const ModelConfig& model) {
  return 6.0 * static_cast<double>(model.active_parameters() - model.embedding_parameters());
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

// The same without the embedding: 6 (N - embedding) + 12 L H K T.
inline double palm_flops_without_embedding(const ModelConfig& model, double context) {
  return six_n_without_embedding(model) +
         3.0 * attention_flops_per_token(model, context, AttentionFlops::full);
}

// What MaxText's logs count: matrices and attention alone, 3 [2 matrices + attention]: for a dense
// llama 3 [L (2 D (H + 2 KV) K + 2 D H K + 4 T H K + 6 D F) + 2 D V].
//   maxtext2024  all T x T, until July 2025
//   maxtext2025  causal, T/2; also Megatron-Bridge, but for the extra tokens that it predicts
inline double maxtext_flops_per_token(const ModelConfig& model, double context,
                                      AttentionFlops counted) {
  return 3.0 * (2.0 * matrix_parameters(model).total() +
                attention_flops_per_token(model, context, counted));
}

inline double maxtext2024_flops_per_token(const ModelConfig& model, double context) {
  return maxtext_flops_per_token(model, context, AttentionFlops::full);
}

// A local layer is halved as a global one is: u/2 keys.
inline double maxtext2025_flops_per_token(const ModelConfig& model, double context) {
  const double full = attention_flops_per_token(model, context, AttentionFlops::full);
  return 3.0 * (2.0 * matrix_parameters(model).total() + full / 2);
}

// A module that predicts one more token (arXiv 2412.19437, section 2.2): one more layer of the last
// kind, the output matrix once more, and a matrix from two widths to one. Megatron-Bridge counts
// DeepSeek-V3 with one.
inline double more_tokens_flops_per_token(const ModelConfig& model, double context,
                                          AttentionFlops counted, int more_tokens = 1) {
  if (more_tokens < 0) {
    detail::fail(
        {"more_tokens_flops_per_token: more_tokens is ", more_tokens, "; 0 or more is right"});
  }
  ModelConfig one = model;
  one.layers = 1;
  one.dense_layers = 0;
  one.global_every = 1;
  const auto joint = static_cast<double>(2 * model.width * model.width);
  return more_tokens * (maxtext_flops_per_token(one, context, counted) + 6.0 * joint);
}

// What recomputation adds: selective, the attention core once more; full, the layers once more (the
// output matrix is not in them).
inline double recomputed_flops_per_token(const ModelConfig& model, double context,
                                         AttentionFlops counted, Recompute recompute) {
  const double core = attention_flops_per_token(model, context, counted);
  const double head = static_cast<double>(model.vocabulary * model.width);
  switch (recompute) {
    case Recompute::selective: return core;
    case Recompute::full: return 2.0 * (matmul_parameters(model) - head) + core;
    default: return 0;
  }
}

// The numerator of an HFU: what the devices compute.
inline double hardware_flops_per_token(const ModelConfig& model, double context,
                                       AttentionFlops counted, Recompute recompute) {
  return training_flops_per_token(model, context, counted) +
         recomputed_flops_per_token(model, context, counted, recompute);
}

// Megatron's closed forms for a GPT of hidden width 4 D: full attention, no norms, no biases.
//   megatron72                 72 L D^2 (1 + T/(6 D) + V/(12 D L))  model FLOPs
//   megatron96                 96 L D^2 (1 + T/(6 D) + V/(16 D L))  with full recomputation
//   megatron72_core_once       72 L D^2 (1 + 2 T/(9 D) + V/(12 D L))  the attention core once more
//   megatron72_core_published  72 L D^2 (1 + T/(3 D) + V/(12 D L))  what the HFU of 2205.05198 fit
enum class MegatronFlops {
  megatron72,
  megatron96,
  megatron72_core_once,
  megatron72_core_published,
};

inline const char* name_of(MegatronFlops form) {
  static const char* const names[] = {"megatron72", "megatron96", "megatron72, core once more",
                                      "megatron72, core as published"};
  return detail::name_in("MegatronFlops", names, form);
}

inline double megatron_flops_per_token(MegatronFlops form, double layers, double width,
                                       double context, double vocabulary) {
  name_of(form);  // refuses what is none
  for (const double size : {layers, width, context, vocabulary}) {
    if (!detail::is_finite(size) || size < 1) {
      detail::fail({"megatron_flops_per_token: layers ", layers, ", width ", width, ", context ",
                    context, ", vocabulary ", vocabulary,
                    "; finite numbers of 1 or more are right"});
    }
  }
  const bool all_again = form == MegatronFlops::megatron96;
  const double core = form == MegatronFlops::megatron72_core_once        ? 16
                      : form == MegatronFlops::megatron72_core_published ? 24
                      : all_again                                        ? 16
                                                                         : 12;
  return layers * width * ((all_again ? 96 : 72) * width + core * context) + 6 * width * vocabulary;
}

// FLOPs of one token in training, by every convention, beside the first.
inline Table flops_table(const ModelConfig& model, double context) {
  const auto layers = static_cast<double>(model.layers);
  const auto width = static_cast<double>(model.width);
  const auto vocabulary = static_cast<double>(model.vocabulary);
  Table out;
  out.title = detail::cat({"training FLOPs a token of ", model.name, ", context ", context});
  out.columns = {"convention", "FLOPs", "of 6N"};
  const auto add = [&](const char* name, double flops) {
    out.add({name, format_si(flops, "FLOP"), format_fixed(flops / six_n(model), 3)});
  };
  add("6N", six_n(model));
  add("6N without embedding", six_n_without_embedding(model));
  add("PaLM: 6N + full attention", palm_flops_per_token(model, context));
  add("PaLM without embedding", palm_flops_without_embedding(model, context));
  add("maxtext-2024: matrices + full attention", maxtext2024_flops_per_token(model, context));
  add("maxtext-2025: matrices + half of it", maxtext2025_flops_per_token(model, context));
  add("causal attention", training_flops_per_token(model, context, AttentionFlops::causal));
  add("full attention", training_flops_per_token(model, context, AttentionFlops::full));
  add("causal, selective recomputation",
      hardware_flops_per_token(model, context, AttentionFlops::causal, Recompute::selective));
  add("causal, full recomputation",
      hardware_flops_per_token(model, context, AttentionFlops::causal, Recompute::full));
  for (int i = 0; i < 4; ++i) {
    const auto form = static_cast<MegatronFlops>(i);
    add(name_of(form), megatron_flops_per_token(form, layers, width, context, vocabulary));
  }
  return out;
}

}  // namespace tinyscale
