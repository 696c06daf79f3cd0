#pragma once
// Chapter 4 (transformer maths).
#include "cases.hpp"

namespace book {

// A gated transformer without biases, with heads of 128 numbers unless told.
inline ts::ModelConfig gated_model(std::int64_t layers, std::int64_t width, std::int64_t hidden,
                                   std::int64_t heads, std::int64_t kv_heads,
                                   std::int64_t vocabulary, std::int64_t head_size = 128) {
  ts::ModelConfig m = ts::config("llama2-7b");
  m.name = "the book's";
  m.layers = layers, m.width = width, m.hidden = hidden, m.heads = heads, m.kv_heads = kv_heads;
  m.vocabulary = vocabulary, m.head_size = head_size;
  return m;
}

inline Quantity all_layers(const ts::ModelConfig& m, const Quantity& of_one) {
  return Quantity(static_cast<double>(m.layers), "", "L") * of_one;
}

inline Quantity all_parameters(const ts::ModelConfig& m) {
  return Quantity(static_cast<double>(m.parameters()), "", "P", m.name);
}

inline void model_memory(Answers& out) {
  const ts::ModelConfig m = gated_model(64, 8192, 32768, 64, 64, 32000);
  out.add("F06", Quantity(ts::checkpoint_bytes(m, 4e6, 7), "B"));
  out.add("F07", ts::training_multiplier(ts::Recompute::full));
  const ts::ServedModel served = ts::served_model(m, ts::DType::int8, ts::DType::int8);
  out.add("F08", ts::cache_bytes(served, 8192));
  out.add("F09", all_parameters(gated_model(64, 4096, 16384, 32, 32, 32000)));
}

inline void attention(Answers& out) {
  ts::Chip v5e = book_chip("tpu-v5e");
  v5e.memory_bandwidth = v5e.flops_bf16 / 240;  // the row's C / W
  out.add("F16", v5e, [](const ts::Chip& c) { return ts::attention_math_length(c, 1); });
  const ts::ModelConfig m = gated_model(64, 4096, 16384, 32, 32, 32000);
  out.add("F17", ts::attention_equal_length(m));
  bool prefill = true, again = true;
  for (const double t : {128.0, 4096.0}) {
    for (const double g : {1.0, 8.0}) {
      prefill = prefill && near(ts::attention_intensity(t, t, g).value(), t * g / (g + 1));
    }
    for (const double b : {1.0, 16.0}) {
      const double flops = ts::recomputed_score_flops(m, b * t, t).value();
      again = again && near(flops, 4 * b * t * t * 32 * 128);
    }
  }
  out.category("F14", when(prefill, "TG/(G+1)"));
  out.category("F18", when(again, "4*B*T^2*N*H (+O(BTD)+O(BTF))"));
  const ts::Quantity flops = ts::einsum_flops(
      "IJKL,IJMNO->KLMNO", {{'I', 2}, {'J', 3}, {'K', 4}, {'L', 5}, {'M', 6}, {'N', 7}, {'O', 8}});
  std::string formula = flops.formula(), plain;
  formula.replace(0, std::string("2 FLOP").size(), "2");
  for (const char c : formula) {
    plain += c == ' ' ? "" : std::string(1, c);
  }
  out.category("F13", plain);
}

// A[B_X, D_Y] W[D_Y, F] on {X 4, Y 8, Z 4}: over Z all devices do the same.
inline void copied_work(Answers& out) {
  const ts::Mesh mesh(ts::machine("tpu-v4", {4, 8, 4}), {{"X", 4}, {"Y", 8}, {"Z", 4}});
  const ts::Sharded a = mesh.shard(ts::Shape{64, 128}, "B_X, D_Y", ts::DType::bf16);
  const double plain = ts::matmul_flops({64, 128, 256}).value();
  const double total = plain * a.replicas(), each = total / a.devices();
  out.category("F12", ts::detail::cat({"per device 2BDF/", plain / each, "; total ",
                                       2 * total / plain, "BDF"}));
}

inline void chapter4(Answers& out) {
  model_memory(out);
  attention(out);
  copied_work(out);
  ts::Chip h800 = ts::chip("h100");
  h800.flops_fp8 = 1.513e15;
  const ts::DType fp8 = ts::DType::fp8_e4m3;
  out.add("F19", h800, [=](const ts::Chip& c) { return ts::flops_of_hours(2.79e6, c, fp8); });
  out.add("F20", ts::training_flops(37e9, 14.8e12));
  ts::Chip v5e = book_chip("tpu-v5e");
  v5e.memory_bandwidth = v5e.flops_bf16 / 240;
  const ts::MatmulFormats int8_weights = {ts::DType::bf16, ts::DType::int8};
  out.add("F22", v5e, [=](const ts::Chip& c) {
    return ts::expert_batch(ts::critical_batch(c, int8_weights), 256, 8);
  });
  out.add("F23", ts::expert_sparsity(256, 8));
  const ts::ModelConfig m = gated_model(1, 512, 2048, 4, 4, 1000);
  const double vocabulary = ts::vocabulary_cost(m, 64).training_flops.value();
  out.category("F25", ts::detail::cat({vocabulary / (64.0 * 512 * 1000), "BTDV"}));
}

}  // namespace book
