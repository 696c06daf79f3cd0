#pragma once
// FLOPs of a token by named conventions: model FLOPs (MFU) count what training needs, hardware
// FLOPs (HFU) also what is computed again.
//   training FLOPs per token = 6 P (2 P forward, 4 P backward) + attention 12 L T H K, causal half
// with P parameters, L layers, D width, H heads, K head size, T context, V vocabulary.
// Source: "How To Scale Your Model", chapter 4; PaLM (arXiv 2204.02311), appendix B; Megatron
// (arXiv 2104.04473, 2205.05198).

#include <cstdint>  // int64_t

#include "tinyscale/base/text.hpp"
#include "tinyscale/model/model_config.hpp"
#include "tinyscale/parallel/layout.hpp"

namespace tinyscale {

// What of the scores and weighted values is counted: nothing, what a causal mask keeps, all T x T.
enum class AttentionFlops { none, causal, full };

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
  return names[static_cast<int>(form)];
}

inline double megatron_flops_per_token(MegatronFlops form, double layers, double width,
                                       double context, double vocabulary) {
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
  add("PaLM: 6N + full attention", palm_flops_per_token(model, context));
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
