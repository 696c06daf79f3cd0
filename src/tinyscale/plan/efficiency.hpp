#pragma once
// What training runs reach of the published rates, by the software that runs them. One set for all
// machines and sources: fitted to published step times, from round numbers, as bench/planner.cpp
// does and prints beside the error of leaving each source out.

#include <string>

#include "tinyscale/hardware/chip.hpp"
#include "tinyscale/plan/matmul_rate.hpp"

namespace tinyscale {

// What a training program does, apart from its layout.
struct Software {
  std::string name = "current";
  bool tiled_attention = true;    // no T x T scores in memory (FlashAttention); else they are
  bool fused = true;              // elementwise ops in one pass over memory; else one by one
  bool hides_tensor = true;       // tensor-parallel messages behind the matmuls they feed
  bool hides_gradients = true;    // gradients travel during the backward pass
  bool cuts_transfers = true;     // each tensor-parallel chip sends its part to the next stage
  bool waits_for_layers = false;  // the host waits for each layer that is computed again
  double wasted = 0.05;           // of activations, by an allocator that holds blocks of all sizes
  double system_bytes = 3e9;      // runtime and communication buffers of a GPU
  double gradient_bytes = 2;      // of a gradient that a GPU sends
  bool hides_experts = false;     // their exchanges behind the compute of another microbatch
};

// Megatron-LM of 2021 and 2022: fused kernels, scores in memory, messages that wait. It trained in
// fp16 and sent gradients so (f32 sums came with bf16).
inline Software software_megatron_2021() {
  return {"Megatron-LM 2021", false, true, false, false, true, false, 0.15, 5e9};
}

// Megatron-DeepSpeed of 2022: and a pipeline engine that sends whole activations and waits.
inline Software software_deepspeed_2022() {
  return {"Megatron-DeepSpeed 2022", false, true, false, false, false, true, 0.25, 7e9, 4};
}

// FSDP of an eager framework: op by op.
inline Software software_eager_fsdp() {
  return {"eager FSDP", true, false, false, true, true, false, 0.15, 3e9, 4};
}

// DeepSeek-V3's own (DualPipe and its exchanges, arXiv 2412.19437, section 3.2).
inline Software software_deepseek_2024() {
  Software software;
  software.name = "DeepSeek 2024";
  software.hides_experts = true;
  return software;
}

// Shares of published rates, seconds that are lost, and how often memory is gone over.
struct Efficiency {
  double matmul = 0.917;            // of the best measured rate of a large one, A100 and others
  double matmul_hopper = 0.872;     // H100, H200, H800
  double matmul_blackwell = 0.846;  // B200, GB200, GB300
  double matmul_tpu = 0.897, matmul_tpu_fp8 = 0.65;
  double waves = 0.646;      // power of a GPU's share of full waves: others fill in
  double attention = 0.429;  // tiled, of the peak
  double attention_tpu = 0.29;
  double score_matmul = 0.287;  // of scores that go to memory, as `matmul`
  double odd_heads = 0.197;     // of that, when the head size is no multiple of 8
  double score_passes = 8.41;   // over the scores, forward
  double memory = 0.835;        // of the memory's bandwidth
  double unfused = 2.97;        // times the traffic of fused elementwise ops
  double tpu_elementwise = 1.07;
  double fp8_casts = 1.64;             // passes over the operands of fp8 matmuls
  double logit_passes = 9.72;          // of 4 bytes
  double inner_links = 0.92;           // NVLink, ICI
  double outer_links = 0.98;           // the network between nodes
  double waiting_outer_links = 0.414;  // the same when nothing else goes on
  double slice_links = 0.662;          // the network between TPU slices
  double exchange_outer = 0.717;       // all_to_all between nodes
  double hop = 2.51e-05;               // seconds before a collective moves its first byte
  double hidden_tensor = 0.856, hidden_tensor_tpu = 0.868;  // share of the messages
  double hidden_context = 0.8, hidden_expert = 0.251;
  double exchange_units = 20.0 / 132;  // of a GPU, that hidden exchanges take (arXiv 2412.19437)
  double exposed_gather = 0.625, exposed_gather_tpu = 0.102;  // share that no compute hides
  double gather_beside = 0.346;    // share of the compute time that gathers can hide in
  double gather_beside_tpu = 0.5;  // assumed: no run that is priced needs more than 0.2
  double hidden_gradients = 0.9;   // share of the backward pass that gradients can hide in
  double transfer = 0.739;         // of the time of messages between stages
  double recompute = 0.849, recompute_tpu = 0.658;  // of the forward pass that is computed again
  double layer_wait = 0.00848;  // seconds a layer and microbatch, where the host waits
  double jitter = 0.0105;       // of the step, for each doubling of the chips from eight
};

inline Efficiency typical_efficiency() { return Efficiency(); }

namespace detail {

inline bool is_hopper(const Chip& chip) {
  const std::string kin = measured_kin(chip.name);
  return kin == "h100-sxm" || kin == "h200";
}

inline bool is_blackwell(const Chip& chip) {
  const std::string kin = measured_kin(chip.name);
  return kin == "b200" || kin == "gb200";
}

inline bool is_fp8(DType format) { return format == DType::fp8_e4m3 || format == DType::fp8_e5m2; }

// Of a gradient on the wire: TPU programs send f32.
inline double wire_gradient_bytes(const Software& software, const Chip& chip) {
  return chip.kind == "gpu" ? software.gradient_bytes : 4;
}

// FLOP/s of a large matmul in a long run.
inline double sustained_matmul(const Efficiency& e, const Chip& chip, DType format) {
  const double share = chip.kind == "tpu"   ? (is_fp8(format) ? e.matmul_tpu_fp8 : e.matmul_tpu)
                       : is_hopper(chip)    ? e.matmul_hopper
                       : is_blackwell(chip) ? e.matmul_blackwell
                                            : e.matmul;
  return share * large_matmul_share(chip, format) * chip.peak(format);
}

}  // namespace detail
}  // namespace tinyscale
