#pragma once
// Up to where each way of training in parallel stays bound by math, each with its derivation.
// A layer is [B, D] x [D, F] and back, 4 B D F FLOPs forward and 8 backward; alpha = C / W:
//   data, FSDP  B / X > alpha / M_X       tensor  Y < M_Y F / alpha
//   both        B / N > alpha^2 / (M_X M_Y F), best X = sqrt(B N M_X / (F M_Y))
// W both ways of a ring and M axes on a TPU (chapter 5), one way out of a GPU or a node (12).
// Source: "How To Scale Your Model", chapters 5, 6 and 12.

#include <string>  // names

#include "tinyscale/hardware/slice_facts.hpp"
#include "tinyscale/mesh/switch_limits.hpp"
#include "tinyscale/plan/transformer_math.hpp"

namespace tinyscale {

// alpha = C / W of the links that a chip sends through: an axis of a torus, a GPU's port.
inline Quantity link_intensity(const Chip& chip, DType format = DType::bf16) {
  const bool torus = detail::is_torus2d(chip) || detail::is_torus3d(chip);
  return named("alpha",
               critical_intensity(chip, format, torus ? Channel::link_both_ways : Channel::port),
               "scaling book, 5");
}

// alpha between nodes: all the GPUs of a node over what the node sends. 2475 with H100.
inline Quantity node_intensity(const Machine& on, DType format = DType::bf16) {
  const List<FatTreeLevel> levels = fat_tree(on);
  if (levels.size() < 2) {
    detail::fail({"node_intensity: ", on.name, " is one node; {nodes, 8} has a network between"});
  }
  return named("alpha", peak_rate(on.chip, format) / levels[1].part, "scaling book, 12");
}

namespace detail {

// alpha in tokens: what moves is `format` numbers, 2 FLOPs of a token for each; alpha itself in
// bf16.
inline Quantity tokens_at(const Quantity& alpha, DType format) {
  return alpha * Quantity(bytes_of(format), "B", "b", name_of(format)) /
         Quantity(2.0, "FLOP/token");
}

// The same as a plain number, to compare with F.
inline Quantity numbers_at(const Quantity& alpha, DType format) {
  return alpha * Quantity(bytes_of(format), "B", "b", name_of(format)) / Quantity(2.0, "FLOP");
}

}  // namespace detail

// The network between slices, of each chip's share of its host's ports: C / W_dcn tokens for each
// slice, whatever its size.
inline Quantity network_batch(const Chip& chip, DType format = DType::bf16) {
  return named("B* of a slice",
               detail::tokens_at(critical_intensity(chip, format, Channel::network), format),
               "scaling book, 5");
}

// Tokens a chip above which data parallelism or FSDP over M axes is bound by math. `format` is that
// of weights and gradients; alpha of the math.
inline Quantity data_limit(const Quantity& alpha, double axes = 1, DType format = DType::bf16) {
  return named("B / X", detail::tokens_at(alpha, format) / detail::given("data_limit", "M", axes),
               "scaling book, 5");
}

// Over few members X gathers move (X - 1) / X; a model on `nodes` nodes has the ports of all.
inline Quantity data_limit_of_few(const Quantity& alpha, double members) {
  const Quantity x = detail::given_count("data_limit_of_few", "X", members);
  return named("B / X", detail::tokens_at(alpha, DType::bf16) * (x - Quantity(1.0)) / x,
               "scaling book, 12");
}

inline Quantity data_limit_of_wide_models(const Quantity& alpha, double nodes) {
  return named("B / X",
               detail::tokens_at(alpha, DType::bf16) /
                   detail::given("data_limit_of_wide_models", "M", nodes),
               "scaling book, 12: a model over M nodes");
}

// The batch that keeps so many chips at their limit, and the chips that a batch keeps there.
inline Quantity batch_at(const Quantity& tokens_per_chip, double chips) {
  return named("B", tokens_per_chip * detail::given("batch_at", "N", chips), "scaling book, 5");
}

inline Quantity chips_at(const Quantity& tokens_per_chip, double batch) {
  return named("N", detail::given("chips_at", "B", batch, "token") / tokens_per_chip,
               "scaling book, 5");
}

inline Quantity tokens_per_chip(double batch, double chips) {
  const char* const who = "tokens_per_chip";
  return named("B / N", detail::given(who, "B", batch, "token") / detail::given(who, "N", chips),
               "scaling book, 5");
}

// Ways of tensor parallelism that stay bound by math: M F / alpha in bf16. The format cancels when
// what moves is in that of the math.
inline Quantity tensor_ways(const Quantity& alpha, double hidden, double axes = 1,
                            DType format = DType::bf16) {
  const char* const who = "tensor_ways";
  return named("Y",
               detail::given(who, "M", axes) * detail::given(who, "F", hidden) /
                   detail::numbers_at(alpha, format),
               "scaling book, 5");
}

inline Quantity hidden_for_ways(const Quantity& alpha, double ways, double axes = 1,
                                DType format = DType::bf16) {
  const char* const who = "hidden_for_ways";
  return named("F",
               detail::given(who, "Y", ways) * detail::numbers_at(alpha, format) /
                   detail::given(who, "M", axes),
               "scaling book, 5");
}

// Over two nodes of D GPUs only what leaves a node counts: F > alpha (Y - D), anything inside one.
inline Quantity hidden_for_wide_ways(const Quantity& alpha, double ways, double node = 8,
                                     DType format = DType::bf16) {
  const char* const who = "hidden_for_wide_ways";
  return named(
      "F",
      detail::numbers_at(alpha, format) *
          max(detail::given(who, "Y", ways) - detail::given(who, "D", node, "", "GPUs of a node"),
              Quantity(0.0)),
      "scaling book, 12");
}

// FSDP and tensor parallelism together.
inline Quantity mixed_limit(const Quantity& alpha, double hidden, double data_axes = 1,
                            double tensor_axes = 1, DType format = DType::bf16) {
  const char* const who = "mixed_limit";
  return named("B / N",
               detail::tokens_at(alpha, format) * detail::numbers_at(alpha, format) /
                   (detail::given(who, "M_X", data_axes) * detail::given(who, "M_Y", tensor_axes) *
                    detail::given(who, "F", hidden)),
               "scaling book, 5");
}

// FSDP ways with which both collectives take equally long: sqrt(B N M_X / (F M_Y)); Y = N / X.
inline Quantity best_data_ways(double batch, double hidden, double chips, double data_axes = 1,
                               double tensor_axes = 1) {
  const char* const who = "best_data_ways";
  return named("X",
               sqrt(detail::given(who, "B", batch) / detail::given(who, "F", hidden) *
                    detail::given(who, "M_X", data_axes) / detail::given(who, "M_Y", tensor_axes) *
                    detail::given(who, "N", chips)),
               "scaling book, 5");
}

// T_math / T_comms with the best X: sqrt(B F M_X M_Y / N) / alpha; above 1 math binds. It grows
// with the root of the batch, FSDP's with the batch, tensor parallelism's not at all.
inline Quantity math_over_comms(const Quantity& alpha, double batch, double hidden, double chips,
                                double data_axes = 1, double tensor_axes = 1,
                                DType format = DType::bf16) {
  const char* const who = "math_over_comms";
  return named("T_math / T_comms",
               sqrt(detail::given(who, "B", batch) * detail::given(who, "F", hidden) *
                    detail::given(who, "M_X", data_axes) * detail::given(who, "M_Y", tensor_axes) /
                    detail::given(who, "N", chips)) /
                   detail::numbers_at(alpha, format),
               "scaling book, 5");
}

// Without cutting sequences: one sequence a chip at least.
inline Quantity sequences_of(double batch, double length) {
  const char* const who = "sequences_of";
  return named("sequences",
               detail::given(who, "B", batch, "token") / detail::given(who, "T", length, "token"),
               "scaling book, 6: most ways of data parallelism");
}

// ---- Experts and pipelines ----

// Experts over Z devices in nodes of D, over the network: T_math = 4 B k D F / (Z C), T_comms =
// 4 B D (Z - D) / (W Z) min(D k / Z, 1). The least F.
inline Quantity hidden_for_experts(const Quantity& alpha, double ways, double top_k,
                                   double node = 8) {
  const char* const who = "hidden_for_experts";
  const Quantity z = detail::given(who, "Z", ways), k = detail::given(who, "k", top_k);
  const Quantity d = detail::given(who, "D", node, "", "GPUs of a node");
  return named("F",
               detail::numbers_at(alpha, DType::bf16) * max(z - d, Quantity(0.0)) / k *
                   min(d * k / z, Quantity(1.0)),
               "scaling book, 12");
}

inline Quantity expert_exchange_time(double tokens, double width, double ways, double top_k,
                                     const Quantity& rate, double node = 8) {
  const char* const who = "expert_exchange_time";
  const Quantity z = detail::given(who, "Z", ways), d = detail::given(who, "D_node", node);
  const Quantity k = detail::given(who, "k", top_k);
  return named("T_comms",
               Quantity(4.0, "B") * detail::given(who, "B", tokens) *
                   detail::given(who, "D", width) * max(z - d, Quantity(0.0)) / (rate * z) *
                   min(d * k / z, Quantity(1.0)),
               "scaling book, 12");
}

// Activations from stage to stage: hops of 2 B D / (N_mb W), N_mb + N_stages - 2 one after another.
inline Quantity stage_transfer_time(double tokens, double width, double microbatches, double stages,
                                    const Quantity& rate, DType format = DType::bf16) {
  const char* const who = "stage_transfer_time";
  const Quantity b(bytes_of(format), "B", "b", name_of(format));
  const Quantity m = detail::given_count(who, "N_mb", microbatches);
  const Quantity p = detail::given_count(who, "N_stages", stages);
  return named("T_pp",
               b * detail::given(who, "B", tokens) * detail::given(who, "D", width) / (rate * m) *
                   (m + p - Quantity(2.0)),
               "scaling book, 12");
}

// ---- A layer's bytes and times ----

// How a layer is divided: data alone (whole weights, gradients summed), FSDP and tensor ways.
struct LayerSplit {
  double data = 1;         // X
  double tensor = 1;       // Y
  bool gathered = true;    // FSDP: weights are cut over the data ways too
  double data_axes = 1;    // M_X
  double tensor_axes = 1;  // M_Y
};

// Bytes that a chip's collectives move for one layer (V of the table of chapter 5), and the times.
struct LayerTimes {
  Quantity data_forward, data_backward;      // weights gathered, gradients scattered or summed
  Quantity tensor_forward, tensor_backward;  // activations gathered and scattered
  Quantity math, data, tensor;               // seconds of the forward pass
  Quantity comms, forward;                   // the larger of each
  Quantity math_backward, comms_backward, backward;
};

namespace detail {

inline void layer_bytes(const BatchMatmul& s, const LayerSplit& split, const Quantity& number,
                        LayerTimes& out) {
  const char* const who = "layer_times";
  const Quantity b = given(who, "B", s.b), d = given(who, "D", s.d), f = given(who, "F", s.f);
  const Quantity x = given(who, "X", split.data), y = given(who, "Y", split.tensor);
  const Quantity none(0.0, "B"), two(2.0);
  const Quantity weights = two * number * d * f / y, rows = two * number * b * d / x;
  const bool data = split.data > 1, tensor = split.tensor > 1;
  out.data_forward = named("V_W", data && split.gathered ? weights : none, "W_in, W_out gathered");
  out.data_backward = named(
      "V_dW", data ? two * weights : none,
      split.gathered ? "gathered again, gradients scattered" : "two gradients, each summed (2 V)");
  out.tensor_forward = named("V_A", tensor ? rows : none, "In gathered, Out scattered");
  out.tensor_backward =
      named("V_dA", tensor ? rows : none, "In kept: dOut gathered, dIn scattered");
}

}  // namespace detail

// Forward: T_math = 4 B D F / (N C), T_fsdp = 4 D F / (Y W M_X), T_tensor = 4 B D / (X W M_Y) in
// bf16; `link` is W, both ways of a ring.
inline LayerTimes layer_times(const BatchMatmul& s, const LayerSplit& split, const Chip& chip,
                              const Quantity& link, DType format = DType::bf16) {
  LayerTimes out;
  detail::layer_bytes(s, split, Quantity(bytes_of(format), "B", "b", name_of(format)), out);
  out.math = math_time(2 * matmul_flops(s).value(), chip, format, split.data * split.tensor);
  const Quantity mx = detail::given("layer_times", "M_X", split.data_axes);
  const Quantity my = detail::given("layer_times", "M_Y", split.tensor_axes);
  out.data = named("T_fsdp", out.data_forward / (link * mx), "scaling book, 5");
  out.tensor = named("T_tensor", out.tensor_forward / (link * my), "scaling book, 5");
  out.comms = named("T_comms", max(out.data, out.tensor), "scaling book, 5");
  out.forward = named("T", max(out.math, out.comms), "perfect overlap");
  out.math_backward = named("T_math", Quantity(2.0) * out.math, "backward: twice the FLOPs");
  out.comms_backward =
      named("T_comms", max(out.data_backward / (link * mx), out.tensor_backward / (link * my)),
            "scaling book, 5");
  out.backward = named("T", max(out.math_backward, out.comms_backward), "perfect overlap");
  return out;
}

// Gradients of a layer summed over the network, by all M chips of a slice at once: 4 b D F / (M W).
inline Quantity network_gradient_time(const BatchMatmul& s, double slice, const Chip& chip,
                                      DType format = DType::bf16) {
  const char* const who = "network_gradient_time";
  return named("T_dcn",
               Quantity(4.0) * Quantity(bytes_of(format), "B", "b", name_of(format)) *
                   detail::given(who, "D", s.d) * detail::given(who, "F", s.f) /
                   (detail::given(who, "M", slice, "", "chips of a slice") *
                    bandwidth_of(chip, Channel::network)),
               "scaling book, 5");
}

// ---- Memory and the whole run ----

// The largest model that data parallelism alone trains: memory over the bytes of a parameter.
inline Quantity largest_replicated_model(const Chip& chip, double bytes_a_parameter = 10) {
  const char* const who = "largest_replicated_model";
  return named("P",
               detail::given(who, "M", chip.memory_bytes, "B", chip.name) /
                   detail::given(who, "bytes a parameter", bytes_a_parameter, "B"),
               "scaling book, 5: 2 of weights, 8 of Adam");
}

inline Quantity state_bytes(double parameters, double bytes_a_parameter = 10) {
  const char* const who = "state_bytes";
  return named("state",
               detail::given(who, "P", parameters) *
                   detail::given(who, "bytes a parameter", bytes_a_parameter, "B"),
               "scaling book, 5");
}

// Chips whose memory holds so many bytes; not rounded up.
inline Quantity chips_for(const Quantity& bytes, const Chip& chip) {
  return named("chips", bytes / detail::given("chips_for", "M", chip.memory_bytes, "B", chip.name),
               "scaling book, 6");
}

// F / (N C MFU): of a step, of a run.
inline Quantity run_time(const Quantity& flops, double chips, const Chip& chip, double mfu = 1,
                         DType format = DType::bf16) {
  training_seconds(flops.value(), chips, chip.peak(format), mfu);  // checks
  const Quantity n(chips, "", "N", "chips"), reached(mfu, "", "MFU");
  return named("T", flops / (n * peak_rate(chip, format) * reached), "scaling book, 5");
}

// FLOPs that so many chip hours can do, and what a model's 6 P T is of them.
inline Quantity flops_of_hours(double chip_hours, const Chip& chip, DType format = DType::bf16) {
  return named("F_most",
               detail::given("flops_of_hours", "hours", chip_hours, "h") * Quantity(3600.0, "s/h") *
                   peak_rate(chip, format),
               "scaling book, 4");
}

inline Quantity mfu_of_hours(const Quantity& flops, double chip_hours, const Chip& chip,
                             DType format = DType::bf16) {
  return named("MFU", flops / flops_of_hours(chip_hours, chip, format), "scaling book, 4");
}

}  // namespace tinyscale
