#pragma once
// What a published utilisation may have counted: the FLOPs of one token by every named convention,
// each as a quantity that shows its formula. Rates divide by the chip's peak:
//   TFLOP/s a chip = FLOPs of a token x tokens/s a chip,   MFU = that / peak
// Sources of the forms: parallel/flops_forms.hpp. MFU counts what a model needs (PaLM, arXiv
// 2204.02311, appendix B), HFU also what is computed again.

#include <string>  // string

#include "tinyscale/hardware/chip.hpp"
#include "tinyscale/measure/quantity.hpp"
#include "tinyscale/model/model_config.hpp"
#include "tinyscale/parallel/flops_forms.hpp"
#include "tinyscale/parallel/layout.hpp"

namespace tinyscale {

enum class FlopsConvention {
  six_n,
  six_n_without_embedding,
  palm,
  palm_without_embedding,
  exact_causal,
  exact_full,
  maxtext_2024,
  maxtext_2025,
  megatron_moe,
  one_more_token,
  megatron72,
  megatron72_core_once,
  megatron72_core_published,
  megatron96,
  eight_n,
  causal_again,
  full_again,
  two_n,
  two_n_without_embedding,
  forward_causal,
  forward_full,
};

constexpr int flops_conventions = 21;

// What the tokens of a claim are for: training, or answering (a prompt, or a token after another).
enum class TokenWork { training, prefill, decode };

inline const char* name_of(FlopsConvention convention) {
  static const char* const names[flops_conventions] = {
      "6N",
      "6N without embedding",
      "PaLM: 6N + 12 L H K T",
      "PaLM without embedding",
      "exact, causal attention",
      "exact, full attention",
      "maxtext-2024: matrices, full attention",
      "maxtext-2025: matrices, causal attention",
      "Megatron mixture: no router, causal attention",
      "maxtext-2025 and one more predicted token",
      "megatron72",
      "megatron72, core once more",
      "megatron72, core as published",
      "megatron96",
      "8N: 6N and the forward pass again",
      "exact, causal, and what is computed again",
      "exact, full, and what is computed again",
      "2N",
      "2N without embedding",
      "forward, causal attention",
      "forward, full attention",
  };
  return detail::name_in("FlopsConvention", names, convention);
}

// Counts what is computed again: its rate over the peak is an HFU.
inline bool counts_recomputation(FlopsConvention convention) {
  switch (convention) {
    case FlopsConvention::megatron72_core_once:
    case FlopsConvention::megatron72_core_published:
    case FlopsConvention::megatron96:
    case FlopsConvention::eight_n:
    case FlopsConvention::causal_again:
    case FlopsConvention::full_again: return true;
    default: return false;
  }
}

// Megatron's closed forms are of a GPT: hidden width 4 D, two matrices, as many KV heads as heads.
inline bool is_gpt_shape(const ModelConfig& model) {
  return !model.gated() && model.experts == 0 && model.hidden == 4 * model.width &&
         model.kv_heads == model.heads && model.query_width() == model.width;
}

// Whether a source can have counted so: the form is of this kind of model, work and recomputation.
inline bool convention_applies(FlopsConvention convention, const ModelConfig& model, TokenWork work,
                               Recompute recompute) {
  const bool forward = convention >= FlopsConvention::two_n;
  if (forward || work != TokenWork::training) {
    return forward && work != TokenWork::training;
  }
  switch (convention) {
    case FlopsConvention::megatron_moe: return model.experts > 0;
    case FlopsConvention::one_more_token: return model.experts > 0 && model.latent();
    case FlopsConvention::megatron72:
    case FlopsConvention::megatron72_core_once:
    case FlopsConvention::megatron72_core_published:
    case FlopsConvention::megatron96: return is_gpt_shape(model);
    case FlopsConvention::eight_n: return recompute == Recompute::full;
    case FlopsConvention::causal_again:
    case FlopsConvention::full_again: return recompute != Recompute::none;
    default: return true;
  }
}

namespace detail {

inline Quantity flops_of(double value, const char* name, const char* source = "") {
  return Quantity(value, "FLOP", name, source);
}

// N, the parameters that a token uses, with or without tables and output matrix.
inline Quantity used_parameters(const ModelConfig& model, bool embedding) {
  const auto all = static_cast<double>(model.active_parameters());
  const auto tables = static_cast<double>(model.embedding_parameters());
  return embedding ? Quantity(all, "", "N", model.name + ": parameters that a token uses")
                   : Quantity(all - tables, "", "N without embedding", model.name);
}

inline Quantity attention_of(const ModelConfig& model, double context, AttentionFlops counted) {
  return flops_of(attention_flops_per_token(model, context, counted), "attention",
                  counted == AttentionFlops::full ? "scores and values of all layers, all T x T"
                                                  : "scores and values of all layers, causal");
}

inline Quantity twice(double parameters, const char* name) {
  return Quantity(2.0, "FLOP") * Quantity(parameters, "", name);
}

inline Quantity megatron_quantity(MegatronFlops form, const ModelConfig& m, double context) {
  const Quantity layers(static_cast<double>(m.layers), "", "L");
  const Quantity width(static_cast<double>(m.width), "", "D");
  const Quantity words(static_cast<double>(m.vocabulary), "", "V");
  const bool all_again = form == MegatronFlops::megatron96;
  const double core = form == MegatronFlops::megatron72                  ? 12
                      : form == MegatronFlops::megatron72_core_published ? 24
                                                                         : 16;
  const Quantity matrices = Quantity(all_again ? 96.0 : 72.0, "FLOP") * layers * width * width;
  const Quantity scores =
      Quantity(core, "FLOP") * layers * width * Quantity(context, "", "T", "tokens of a sequence");
  return matrices + scores + Quantity(6.0, "FLOP") * width * words;
}

inline Quantity again_quantity(const ModelConfig& model, double context, AttentionFlops counted,
                               Recompute recompute) {
  const Quantity needed =
      flops_of(training_flops_per_token(model, context, counted), "forward and backward");
  return needed + flops_of(recomputed_flops_per_token(model, context, counted, recompute),
                           recompute == Recompute::full ? "all layers again" : "the core again");
}

inline Quantity training_quantity(FlopsConvention convention, const ModelConfig& m, double context,
                                  Recompute recompute) {
  const Quantity three(3.0), six(6.0, "FLOP");
  const Quantity full = attention_of(m, context, AttentionFlops::full);
  const Quantity causal = attention_of(m, context, AttentionFlops::causal);
  const auto matrices = [&m] { return twice(matrix_parameters(m).total(), "matrices"); };
  switch (convention) {
    case FlopsConvention::six_n: return six * used_parameters(m, true);
    case FlopsConvention::six_n_without_embedding: return six * used_parameters(m, false);
    case FlopsConvention::palm: return six * used_parameters(m, true) + three * full;
    case FlopsConvention::palm_without_embedding:
      return six * used_parameters(m, false) + three * full;
    case FlopsConvention::exact_causal: return three * (twice(matmul_parameters(m), "P") + causal);
    case FlopsConvention::exact_full: return three * (twice(matmul_parameters(m), "P") + full);
    case FlopsConvention::maxtext_2024: return three * (matrices() + full);
    case FlopsConvention::maxtext_2025: return three * (matrices() + full / Quantity(2.0));
    case FlopsConvention::megatron_moe:
      return three * (twice(matrix_parameters(m).total() - matrix_parameters(m).router,
                            "matrices without router") +
                      full / Quantity(2.0));
    case FlopsConvention::one_more_token:
      return three * (matrices() + full / Quantity(2.0)) +
             flops_of(more_tokens_flops_per_token(m, context, AttentionFlops::causal),
                      "one more predicted token", "a layer, the output matrix, 2 D x D");
    case FlopsConvention::megatron72:
      return megatron_quantity(MegatronFlops::megatron72, m, context);
    case FlopsConvention::megatron72_core_once:
      return megatron_quantity(MegatronFlops::megatron72_core_once, m, context);
    case FlopsConvention::megatron72_core_published:
      return megatron_quantity(MegatronFlops::megatron72_core_published, m, context);
    case FlopsConvention::megatron96:
      return megatron_quantity(MegatronFlops::megatron96, m, context);
    case FlopsConvention::eight_n: return Quantity(8.0, "FLOP") * used_parameters(m, true);
    case FlopsConvention::causal_again:
      return again_quantity(m, context, AttentionFlops::causal, recompute);
    default: return again_quantity(m, context, AttentionFlops::full, recompute);
  }
}

// A prompt's tokens see half of it in the mean, a token that is decoded all before it.
inline Quantity forward_quantity(FlopsConvention convention, const ModelConfig& m, double context) {
  switch (convention) {
    case FlopsConvention::two_n: return Quantity(2.0, "FLOP") * used_parameters(m, true);
    case FlopsConvention::two_n_without_embedding:
      return Quantity(2.0, "FLOP") * used_parameters(m, false);
    case FlopsConvention::forward_causal:
      return twice(matmul_parameters(m), "P") + attention_of(m, context, AttentionFlops::causal);
    default:
      return twice(matmul_parameters(m), "P") + attention_of(m, context, AttentionFlops::full);
  }
}

}  // namespace detail

// FLOPs of a token by a convention; .explain() shows the formula with its numbers.
inline Quantity convention_flops(FlopsConvention convention, const ModelConfig& model,
                                 double context, Recompute recompute = Recompute::none) {
  const Quantity flops = convention >= FlopsConvention::two_n
                             ? detail::forward_quantity(convention, model, context)
                             : detail::training_quantity(convention, model, context, recompute);
  return named("FLOPs of a token", flops, name_of(convention));
}

}  // namespace tinyscale
