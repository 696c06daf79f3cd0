#pragma once
// What the blocks of a transformer layer hold and cost, each with its derivation (per layer, B T
// tokens, D width, F hidden, N query heads, K key-value heads of H numbers, V vocabulary):
//   feed-forward 3 D F, 18 B T D F;  QKVO 2 D (N + K) H, 12 B T D (N + K) H;  scores 12 B T^2 N H;
//   output matrix D V, 6 B T D V.  Training FLOPs: three times the forward pass's.
// Source: "How To Scale Your Model", chapters 4, 7; whole models: ModelConfig, flops_forms.hpp.

#include <algorithm>  // min
#include <string>     // names
#include <vector>     // widths

#include "tinyscale/hardware/intensity.hpp"
#include "tinyscale/parallel/flops_forms.hpp"

namespace tinyscale {

namespace detail {

inline Quantity size_of(const char* symbol, std::int64_t value) {
  return given("layer costs", symbol, static_cast<double>(value));
}

// 2 FLOPs a token and number forward, twice that backward.
inline Quantity trained(const Quantity& tokens, const Quantity& parameters) {
  return Quantity(6.0, "FLOP/token") * tokens * parameters;
}

}  // namespace detail

// One block's parameters (matrices alone) and the FLOPs of training on so many tokens.
struct BlockCost {
  std::string block;
  Quantity parameters, training_flops;
};

inline BlockCost feed_forward_cost(const ModelConfig& m, double tokens) {
  const bool mixed = m.experts > 0;
  const Quantity matrices(m.gated() ? 3.0 : 2.0), d = detail::size_of("D", m.width);
  const Quantity f = detail::size_of("F", mixed ? m.expert_hidden : m.hidden);
  const Quantity one = named("P_expert", matrices * d * f);
  const double shared = m.shared_experts;
  const Quantity all = mixed ? Quantity(m.experts + shared, "", "E") * one : matrices * d * f;
  const Quantity used = mixed ? Quantity(m.top_k + shared, "", "k") * one : matrices * d * f;
  const Quantity count = detail::given("feed_forward_cost", "tokens", tokens, "token");
  return {"feed-forward", named("P_ffw", all, "scaling book, 4"),
          named("F_ffw", detail::trained(count, used), "scaling book, 4")};
}

// Latent attention: the matrices to and from the ranks in place of 2 D (N + K) H.
inline BlockCost projection_cost(const ModelConfig& m, double tokens) {
  const Quantity d = detail::size_of("D", m.width), n = detail::size_of("N", m.heads);
  const Quantity k = detail::size_of("K", m.kv_heads), h = detail::size_of("H", m.head_size);
  const MatrixParameters of = matrix_parameters(m);
  const Quantity latent((of.queries_keys_values + of.output) / static_cast<double>(m.layers), "",
                        "P_latent", "of a layer");
  const Quantity all =
      named("P_qkvo", m.latent() ? latent : Quantity(2.0) * d * (n + k) * h, "scaling book, 4");
  const Quantity count = detail::given("projection_cost", "tokens", tokens, "token");
  return {"QKVO", all, named("F_qkvo", detail::trained(count, all), "scaling book, 4")};
}

// Scores and weighted values of sequences of T: all T x T, or the causal half if the kernel skips.
// H: the mean of a head's key and value.
inline BlockCost score_cost(const ModelConfig& m, double tokens, double length,
                            bool causal = false) {
  const Quantity n = detail::size_of("N", m.heads);
  const Quantity h =
      detail::given("layer costs", "H", static_cast<double>(m.score_head() + m.output_head()) / 2);
  const Quantity count = detail::given("score_cost", "tokens", tokens, "token");
  const Quantity t = detail::given("score_cost", "T", length);
  return {"scores and values", Quantity(0.0, "", "P_scores"),
          named("F_scores", Quantity(causal ? 6.0 : 12.0, "FLOP/token") * count * t * n * h,
                "scaling book, 4")};
}

// Of the whole model: looking tokens up costs nothing, so tied or not 6 B T D V.
inline BlockCost vocabulary_cost(const ModelConfig& m, double tokens) {
  const Quantity d = detail::size_of("D", m.width), v = detail::size_of("V", m.vocabulary);
  const Quantity one = d * v;
  const Quantity count = detail::given("vocabulary_cost", "tokens", tokens, "token");
  return {"vocabulary", named("P_vocab", m.tied ? one : Quantity(2.0) * one, "scaling book, 4"),
          named("F_vocab", detail::trained(count, one), "scaling book, 4")};
}

inline BlockCost norm_cost(const ModelConfig& m) {  // two a layer; their FLOPs are O(B T D)
  return {"norms",
          named("P_norm", Quantity(2.0) * detail::size_of("D", m.width), "scaling book, 4"),
          Quantity(0.0, "FLOP", "F_norm")};
}

// The blocks of all layers and the vocabulary, for `tokens` in sequences of `length`.
inline Table layer_cost_table(const ModelConfig& m, double tokens, double length) {
  Table out;
  out.title = detail::cat({"layers of ", m.name, ", ", tokens, " tokens in sequences of ", length});
  out.columns = {"block", "parameters", "training FLOPs", "formula"};
  const auto layers = static_cast<double>(m.layers), local = static_cast<double>(m.local_layers());
  const auto mixtures = static_cast<double>(m.mixture_layers());
  const auto row = [&](const BlockCost& cost, double times, const char* of = "") {
    if (times > 0) {
      out.add({cost.block + of, format_si(times * cost.parameters.value(), ""),
               format_si(times * cost.training_flops.value(), "FLOP"),
               cost.training_flops.formula()});
    }
  };
  if (layers > mixtures) {
    ModelConfig dense = m;
    dense.experts = 0;
    row(feed_forward_cost(dense, tokens), layers - mixtures, mixtures > 0 ? ", dense layers" : "");
  }
  row(feed_forward_cost(m, tokens), mixtures);
  row(projection_cost(m, tokens), layers);
  row(score_cost(m, tokens, length), layers - local);
  if (local > 0) {
    const double seen = std::min(length, static_cast<double>(m.window));
    row(score_cost(m, tokens, seen), local, ", local layers");
  }
  row(norm_cost(m), layers);
  row(vocabulary_cost(m, tokens), 1);
  return out;
}

// 6 P T: training; 2 P T: one forward pass; P the parameters that a token uses.
inline Quantity training_flops(double parameters, double tokens) {
  const char* const who = "training_flops";
  return named("F",
               Quantity(6.0, "FLOP/token") * detail::given(who, "P", parameters) *
                   detail::given(who, "T", tokens, "token"),
               "scaling book, 4");
}

inline Quantity forward_flops(double parameters, double tokens = 1) {
  const char* const who = "forward_flops";
  return named("F",
               Quantity(2.0, "FLOP/token") * detail::given(who, "P", parameters) *
                   detail::given(who, "T", tokens, "token"),
               "scaling book, 4");
}

// FLOPs for each parameter and token: 6, and 2 more when every layer's forward pass runs again.
inline Quantity training_multiplier(Recompute recompute) {
  const Quantity base(6.0, "", "forward 2, backward 4"), again(2.0, "", "forward again");
  return named("FLOPs / (P T)", recompute == Recompute::full ? base + again : base,
               "scaling book, 4");
}

// What keeping only the large matmuls' results computes again: the two T x T products, 4 B T^2 N H.
inline Quantity recomputed_score_flops(const ModelConfig& m, double tokens, double length) {
  return named("F_again", score_cost(m, tokens, length).training_flops / Quantity(3.0),
               "scaling book, 4, question 6");
}

// Attention's FLOPs against all matmuls' of a layer, T / (8 D) for F = 4 D and plain heads.
inline Quantity attention_ratio(const ModelConfig& m, double length, bool causal = false) {
  return named("attention / matmuls",
               score_cost(m, 1, length, causal).training_flops /
                   (feed_forward_cost(m, 1).training_flops + projection_cost(m, 1).training_flops),
               "scaling book, 4");
}

// The length at which attention costs as much as QKVO: D (N + K) / N, 2 D with plain heads; and as
// much as all matmuls of the layer: 8 D for F = 4 D.
inline Quantity attention_equal_length(const ModelConfig& m) {
  const Quantity all = Quantity(1.0, "token") * projection_cost(m, 1).training_flops;
  return named("T*", all / score_cost(m, 1, 1).training_flops, "scaling book, 4, question 5");
}

inline Quantity attention_dominant_length(const ModelConfig& m) {
  return named("T*", Quantity(1.0, "token") / attention_ratio(m, 1), "scaling book, 4");
}

// ---- Memory between passes ----

// Results kept for each layer, in numbers of these widths: {D, F, F} is 2 L B (D + 2 F) in bf16.
inline Quantity kept_bytes(double layers, double tokens, const std::vector<double>& widths,
                           DType format = DType::bf16) {
  const char* const who = "kept_bytes";
  Quantity sum;
  for (const double width : widths) {
    const Quantity one = detail::given(who, "width", width, "1/token");
    sum = sum.unit().empty() ? one : sum + one;
  }
  return named("kept",
               Quantity(bytes_of(format), "B", "b", name_of(format)) *
                   detail::given(who, "L", layers) * detail::given(who, "B", tokens, "token") * sum,
               "scaling book, 5");
}

// Numbers that pass from chip to chip: B rows of D.
inline Quantity activation_bytes(double rows, double width, DType format = DType::bf16) {
  const char* const who = "activation_bytes";
  return named("bytes",
               Quantity(bytes_of(format), "B", "b", name_of(format)) *
                   detail::given(who, "B", rows) * detail::given(who, "D", width),
               "scaling book, 7");
}

// ---- Experts ----

// Experts over those that a token visits: how many times more tokens a mixture needs.
inline Quantity expert_sparsity(double experts, double top_k) {
  const Quantity e = detail::given("expert_sparsity", "E", experts);
  return named("E / k", e / detail::given("expert_sparsity", "k", top_k), "scaling book, 4");
}

// The dense batch (or tokens a chip) times E / k: each expert gets a k / E part of the tokens.
inline Quantity expert_batch(const Quantity& dense, double experts, double top_k) {
  return named("B*", dense * expert_sparsity(experts, top_k), "scaling book, 4, question 8");
}

// ---- Attention's intensity ----

// FLOPs a byte of T queries on S keys in groups of G heads a key: T S G / (T G + S), in 2-byte
// numbers; a prefill (S = T) T G / (G + 1), a decode step about G.
inline Quantity attention_intensity(double queries, double keys, double group,
                                    DType format = DType::bf16) {
  const char* const who = "attention_intensity";
  const Quantity t = detail::given(who, "T", queries), s = detail::given(who, "S", keys);
  const Quantity g = detail::given(who, "G", group);
  const Quantity b(bytes_of(format), "B", "b", name_of(format));
  return named("I", Quantity(2.0, "FLOP") * t * s * g / (b * (t * g + s)), "scaling book, 4");
}

// The prompt from which a prefill's attention is bound by math: I* (G + 1) / G in 2-byte numbers.
inline Quantity attention_math_length(const Chip& chip, double group, DType format = DType::bf16) {
  const Quantity g = detail::given("attention_math_length", "G", group);
  const Quantity b(bytes_of(format), "B", "b", name_of(format));
  return named(
      "T*",
      critical_intensity(chip, format) * b / Quantity(2.0, "FLOP/token") * (g + Quantity(1.0)) / g,
      "scaling book, 4 and 7");
}

}  // namespace tinyscale
