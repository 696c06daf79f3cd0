#pragma once
// Serving in closed form, each answer with its derivation: step law, what fits, what limits.
//   T_step = B KV / (N W) + max(2 B P / (N C), P_bytes / (N W))   KV: bytes cached for a sequence
//   tensor ways of a decode step Y < F / (B W / W_link); in 2 dims X = sqrt(N D / (2 F))
// Plans of a whole job: plan_serving(). Source: "How To Scale Your Model", chapters 7 and 8.

#include <cmath>   // floor
#include <string>  // names

#include "tinyscale/hardware/slice_facts.hpp"
#include "tinyscale/plan/layer_costs.hpp"
#include "tinyscale/plan/parallel_limits.hpp"

namespace tinyscale {

// What a model needs in bytes, apart from how it came to be: 70e9 parameters in int8 and 164 kB a
// token, or those of a ModelConfig.
struct ServedModel {
  double parameters = 0;       // that a token uses
  double parameter_bytes = 0;  // of all of them
  double cache_per_token = 0;  // bytes in all layers
};

inline ServedModel served_model(const ModelConfig& m, DType weights = DType::bf16,
                                DType cache = DType::bf16) {
  return {static_cast<double>(m.active_parameters()),
          static_cast<double>(m.parameters()) * bytes_of(weights),
          kv_cache_bytes_per_token(m, cache)};
}

inline ServedModel served_model(double parameters, DType weights, double cache_per_token) {
  return {parameters, parameters * bytes_of(weights), cache_per_token};
}

namespace detail {

inline Quantity chip_count(const char* who, double chips) {
  return given(who, "N", chips, "", "chips");
}

inline Quantity served_bytes(const char* who, const ServedModel& m) {
  return given(who, "P_bytes", m.parameter_bytes, "B", "weights");
}

}  // namespace detail

// Of one sequence of S tokens.
inline Quantity cache_bytes(const ServedModel& m, double length) {
  const char* const who = "cache_bytes";
  return named("KV",
               detail::given(who, "S", length, "token") *
                   detail::given(who, "kv", m.cache_per_token, "B/token"),
               "scaling book, 7");
}

inline Quantity serving_bytes(const ServedModel& m, double batch, double length) {
  return named("memory",
               detail::given("serving_bytes", "B", batch) * cache_bytes(m, length) +
                   detail::served_bytes("serving_bytes", m),
               "scaling book, 7");
}

// The time of the memory alone, for few sequences: (B KV + P_bytes) / (N W).
inline Quantity memory_step_time(const ServedModel& m, double batch, double length, double chips,
                                 const Chip& chip) {
  return named("T_step",
               serving_bytes(m, batch, length) /
                   (detail::chip_count("memory_step_time", chips) * bandwidth_of(chip)),
               "scaling book, 7: memory alone");
}

// A decode step by the law above; C at the format of the matmuls.
inline Quantity decode_step_time(const ServedModel& m, double batch, double length, double chips,
                                 const Chip& chip, DType math = DType::bf16) {
  const char* const who = "decode_step_time";
  const Quantity n = detail::chip_count(who, chips), w = bandwidth_of(chip);
  const Quantity b = detail::given(who, "B", batch);
  const Quantity p = detail::given(who, "P", m.parameters);
  const Quantity cache = named("T_kv", b * cache_bytes(m, length) / (n * w));
  const Quantity weights = named("T_weights", detail::served_bytes(who, m) / (n * w));
  const Quantity flops =
      named("T_math", Quantity(2.0, "FLOP") * b * p / (n * peak_rate(chip, math)));
  return named("T_step", cache + max(flops, weights), "scaling book, 7");
}

// FLOPs of a token for each byte of its cache: while it is above C / W, larger batches go on
// paying.
inline Quantity flops_per_cache_byte(const ServedModel& m, double length) {
  const char* const who = "flops_per_cache_byte";
  return named(
      "FLOPs / KV",
      Quantity(2.0, "FLOP") * detail::given(who, "P", m.parameters) / cache_bytes(m, length),
      "scaling book, 8");
}

// Reading the weights once, and reading all of a full memory once: the least and the usual step.
inline Quantity weights_step_time(const ServedModel& m, double chips, const Chip& chip) {
  return named("T_weights",
               detail::served_bytes("weights_step_time", m) /
                   (detail::chip_count("weights_step_time", chips) * bandwidth_of(chip)),
               "scaling book, 8");
}

inline Quantity full_memory_step_time(const Chip& chip) {
  return named(
      "T_step",
      detail::given("full_memory_step_time", "M", chip.memory_bytes, "B") / bandwidth_of(chip),
      "scaling book, 8");
}

// A prompt of T tokens at an MFU: 2 P T / (N C MFU).
inline Quantity prefill_time(const ServedModel& m, double prompt, double chips, const Chip& chip,
                             double mfu, DType math = DType::bf16) {
  return named("T_prefill", run_time(forward_flops(m.parameters, prompt), chips, chip, mfu, math),
               "scaling book, 8");
}

// ---- What fits ----

// In memory of chips, not rounded up; the next slice that is made: 1, 4, 8, 16, ... TPUs.
inline Quantity smallest_slice(const Quantity& bytes, const Chip& chip) {
  const Quantity needed = chips_for(bytes, chip);
  if (!detail::is_finite(needed.value()) || needed.value() < 0 || needed.value() > 1e15) {
    detail::fail({"smallest_slice: ", bytes.value(), " bytes on chips of ", chip.memory_bytes,
                  "; finite numbers, of bytes at least 0, are right"});
  }
  double slice = 1;
  while (slice < needed.value()) {
    slice *= slice < 2 && chip.kind == "tpu" ? 4 : 2;
  }
  const Quantity next = detail::make_quantity("next slice", slice, {}, {needed});
  return named("slice", next, "scaling book, 8");
}

inline Quantity memory_left(const ServedModel& m, double chips, const Chip& chip) {
  const char* const who = "memory_left";
  const Quantity each = detail::given(who, "M", chip.memory_bytes, "B", chip.name);
  return named("left", detail::chip_count(who, chips) * each - detail::served_bytes(who, m),
               "scaling book, 8");
}

// Whole sequences whose caches fit beside the weights.
inline Quantity sequences_that_fit(const ServedModel& m, double length, double chips,
                                   const Chip& chip) {
  const Quantity left = memory_left(m, chips, chip);
  if (left.value() < 0) {
    detail::fail({"sequences_that_fit: weights of ", format_bytes(m.parameter_bytes), " on ", chips,
                  " chips of ", format_bytes(chip.memory_bytes), "; ",
                  std::ceil(m.parameter_bytes / chip.memory_bytes), " chips would hold them"});
  }
  return named("sequences", floor(left / cache_bytes(m, length)), "scaling book, 8");
}

// ---- Throughput ----

inline Quantity tokens_per_second(double batch, const Quantity& step_time) {
  return named("tokens/s", detail::given("tokens_per_second", "B", batch, "token") / step_time,
               "scaling book, 7");
}

inline Quantity tokens_per_second_per_chip(double batch, const Quantity& step_time, double chips) {
  return named(
      "tokens/s/chip",
      tokens_per_second(batch, step_time) / detail::chip_count("tokens_per_second_per_chip", chips),
      "scaling book, 8");
}

// Queries a second and chip: B / (T_step output N).
inline Quantity queries_per_second_per_chip(double batch, const Quantity& step_time, double output,
                                            double chips) {
  const char* const who = "queries_per_second_per_chip";
  return named("QPS/chip",
               detail::given(who, "B", batch) /
                   (step_time * detail::given(who, "output", output, "", "tokens of an answer") *
                    detail::chip_count(who, chips)),
               "scaling book, 8");
}

inline Quantity answer_time(double output, const Quantity& step_time) {
  return named("T_answer", detail::given("answer_time", "output", output) * step_time,
               "scaling book, 8");
}

inline Quantity dollars_per_token(double batch, const Quantity& step_time, double chips,
                                  const Chip& chip) {
  const char* const who = "dollars_per_token";
  const Quantity price =
      detail::given(who, "price", chip.dollars_per_hour, "USD/h", detail::dated(chip));
  return named("USD/token",
               price / Quantity(3600.0, "s/h") * detail::chip_count(who, chips) * step_time /
                   detail::given(who, "B", batch, "token"),
               "price * chips * step / B");
}

// Prefill servers for each decode server: B T_prefill / (output T_step).
inline Quantity prefill_servers(double batch, const Quantity& prefill, double output,
                                const Quantity& step_time) {
  const char* const who = "prefill_servers";
  return named(
      "prefill : decode",
      detail::given(who, "B", batch) * prefill / (detail::given(who, "output", output) * step_time),
      "scaling book, 8");
}

// Sequences that end in a step, B / G, and with each its P + G cached tokens.
inline Quantity sequences_ended(double batch, double output) {
  const char* const who = "sequences_ended";
  return named("ended", detail::given(who, "B", batch) / detail::given(who, "G", output),
               "scaling book, 8");
}

// Tokens that leave the cache in a step: B / G sequences of P + G.
inline Quantity tokens_evicted(double batch, double prompt, double output) {
  const char* const who = "tokens_evicted";
  return named("evicted",
               sequences_ended(batch, output) * (detail::given(who, "P", prompt, "token") +
                                                 detail::given(who, "G", output, "token")),
               "scaling book, 7 and 8");
}

// ---- What the links allow ----

// Ways of tensor parallelism of a decode step, F / (B beta), beta = W / W_link over M axes: beyond,
// moving activations takes longer than reading weights.
inline Quantity decode_tensor_ways(double hidden, double batch, const Quantity& beta) {
  const char* const who = "decode_tensor_ways";
  return named("Y", detail::given(who, "F", hidden) / (detail::given(who, "B", batch) * beta),
               "scaling book, 7");
}

// beta: bytes/s from memory over bytes/s on the links of M axes.
inline Quantity memory_over_link(const Chip& chip, double axes = 1) {
  const bool torus = detail::is_torus2d(chip) || detail::is_torus3d(chip);
  return named(
      "beta",
      bandwidth_of(chip) / (detail::given("memory_over_link", "M", axes) *
                            bandwidth_of(chip, torus ? Channel::link_both_ways : Channel::port)),
      "scaling book, 7");
}

// One matmul of a decode step, [B, D] x [D, F] over N chips: its rows gathered over the links, its
// weights read, its math; which is longest bounds it.
struct DecodeMatmul {
  Quantity links, memory, math;  // seconds
  std::string bound;             // links, memory, math
};

inline DecodeMatmul decode_matmul(const BatchMatmul& s, double chips, const Chip& chip,
                                  const Quantity& link, const MatmulFormats& in = {}) {
  DecodeMatmul out;
  const char* const who = "decode_matmul";
  const Quantity n = detail::chip_count(who, chips);
  const Quantity b = detail::given(who, "B", s.b), d = detail::given(who, "D", s.d);
  const Quantity f = detail::given(who, "F", s.f);
  out.links = named("T_links", detail::number_bytes(0, in.x) * b * d / link, "scaling book, 8");
  out.memory = named("T_memory", detail::number_bytes(1, in.w) * d * f / (n * bandwidth_of(chip)),
                     "scaling book, 8");
  out.math = math_time(matmul_flops(s).value(), chip, in.math, chips);
  const std::string slowest = slowest_stage({out.links, out.memory, out.math}).name();
  out.bound = slowest == "T_links" ? "links" : slowest == "T_memory" ? "memory" : "math";
  return out;
}

// Weights cut over both of their dims stay where they are: b B D / (X W) + 2 b B F / (Y Z W), and
// their best X = sqrt(N D / (2 F)). In one dim over M axes: 2 b B D / (M W).
inline Quantity two_dim_ways(double d, double f, double chips) {
  const char* const who = "two_dim_ways";
  return named("X",
               sqrt(detail::chip_count(who, chips) * detail::given(who, "D", d) /
                    (Quantity(2.0) * detail::given(who, "F", f))),
               "scaling book, 7, appendix B");
}

inline Quantity two_dim_time(const BatchMatmul& s, double chips, double x, const Quantity& link,
                             DType format = DType::bf16) {
  const char* const who = "two_dim_time";
  const Quantity b = detail::given(who, "B", s.b), d = detail::given(who, "D", s.d);
  const Quantity ways = detail::given(who, "X", x), number = detail::number_bytes(0, format);
  return named("T_2d",
               number * b * d / (ways * link) + Quantity(2.0) * number * b *
                                                    detail::given(who, "F", s.f) * ways /
                                                    (detail::chip_count(who, chips) * link),
               "scaling book, 7, appendix B");
}

inline Quantity one_dim_time(const BatchMatmul& s, const Quantity& link, double axes = 1,
                             DType format = DType::bf16) {
  const char* const who = "one_dim_time";
  return named("T_1d",
               Quantity(2.0) * detail::number_bytes(0, format) * detail::given(who, "B", s.b) *
                   detail::given(who, "D", s.d) / (detail::given(who, "M", axes) * link),
               "scaling book, 7, appendix B");
}

// Chips from which 2 dims are better than one over M axes: 2 M^2 F / D.
inline Quantity two_dim_threshold(double d, double f, double axes = 3) {
  const char* const who = "two_dim_threshold";
  const Quantity m = detail::given(who, "M", axes);
  return named("N", Quantity(2.0) * m * m * detail::given(who, "F", f) / detail::given(who, "D", d),
               "scaling book, 7, question 7");
}

}  // namespace tinyscale
