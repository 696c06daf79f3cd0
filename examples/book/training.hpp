#pragma once
// Chapter 5 (parallel training) and chapter 6 (training LLaMA 3).
#include "transformer.hpp"

namespace book {

inline ts::ModelConfig llama2_13b() { return ts::config("llama2-13b"); }

// Thresholds of chapter 5 on v5p.
inline void limits(Answers& out) {
  const ts::Chip v5p = book_chip("tpu-v5p");
  const auto ask = [&](const char* id, std::function<Quantity(const Quantity&)> f) {
    out.add(id, v5p, [=](const ts::Chip& c) { return f(ts::link_intensity(c)); });
  };
  out.add("G01", v5p, [](const ts::Chip& c) {
    return ts::largest_replicated_model(c, ts::state_parts(ts::StateBytes::book).total());
  });
  ask("G02", [](const Quantity& alpha) { return ts::data_limit(alpha); });
  ask("G03", [](const Quantity& alpha) { return ts::data_limit(alpha, 3); });
  ask("G04", [](const Quantity& alpha) { return ts::batch_at(ts::data_limit(alpha, 3), 8960); });
  ask("G05", [](const Quantity& alpha) { return ts::chips_at(ts::data_limit(alpha, 3), 40e6); });
  ask("G07", [](const Quantity& alpha) { return ts::chips_at(ts::data_limit(alpha, 3), 16e6); });
  ask("G09", [](const Quantity& alpha) { return ts::tensor_ways(alpha, 30000); });
  ask("G10", [](const Quantity& alpha) { return ts::hidden_for_ways(alpha, 8); });
  out.add("G12", v5p, [](const ts::Chip& c) { return ts::link_intensity(c, ts::DType::int8); });
  ask("G15", [](const Quantity& alpha) { return ts::mixed_limit(alpha, 32768, 2); });
  ask("G25", [](const Quantity& alpha) { return ts::mixed_limit(alpha, 30000, 2); });
  out.add("G13", ts::best_data_ways(48e3, 32768, 64, 2, 1));
  out.add("G27", ts::tokens_per_chip(2e6, 2 * 8960));
  out.add("G21", v5p, [](const ts::Chip& c) {
    ts::LayerSplit split;
    split.data = 4096;
    return ts::layer_times({1e6, 8192, 32768}, split, c,
                           ts::bandwidth_of(c, ts::Channel::link_both_ways))
        .math;
  });
}

inline void questions5(Answers& out) {
  const ts::ModelConfig m = llama2_13b();
  const double d = static_cast<double>(m.width), f = static_cast<double>(m.hidden);
  const Quantity hidden = all_layers(m, ts::feed_forward_cost(m, 1).parameters);
  const Quantity heads = all_layers(m, ts::projection_cost(m, 1).parameters);
  const Quantity tables = ts::vocabulary_cost(m, 1).parameters;
  out.add("G28", hidden);
  out.add("G29", heads);
  out.add("G30", tables);
  out.add("G31", hidden + heads + tables);
  out.add("G33", ts::kept_bytes(40, 16e6, {d, f, f}));
  out.add("G34", ts::sequences_of(3 * 1048576.0, 32768));
  out.add("G37", ts::kept_bytes(40, 3e6, {d, f, f}));
  out.add("G41", ts::best_data_ways(3e6, f, 4096, 2, 1));
  ts::Chip rounded = book_chip("tpu-v5p");
  rounded.flops_bf16 = 4.59e14;
  out.add("G43", rounded, [](const ts::Chip& c) {
    return ts::run_time(ts::training_flops(13e9, 3e6), 4096, c, 0.4);
  });
}

// A number and its letters, "" for none.
inline std::string term(double coefficient, const char* letters) {
  return coefficient > 0 ? ts::detail::cat({coefficient, letters}) : std::string("0");
}

// The table of bytes of chapter 5: what a layer moves forward + backward, in D F of the weights and
// B D of the rows, by data alone, FSDP, tensor and both.
inline std::vector<std::string> bytes_table() {
  const ts::Chip v5p = book_chip("tpu-v5p");
  const ts::BatchMatmul s = {4096, 512, 2048};
  const auto ask = [&](double x, double y, bool gathered) {
    ts::LayerSplit split;
    split.data = x, split.tensor = y, split.gathered = gathered;
    return ts::layer_times(s, split, v5p, ts::bandwidth_of(v5p, ts::Channel::link_both_ways));
  };
  const auto term = [](const Quantity& bytes, double unit, const char* letters) {
    const double n = bytes.value() / unit;
    return n > 0 ? ts::detail::cat({n, letters}) : std::string("0");
  };
  const double weights = s.d * s.f, rows = s.b * s.d;
  const ts::LayerTimes data = ask(4, 1, false), fsdp = ask(4, 1, true), tensor = ask(1, 4, true);
  const ts::LayerTimes both = ask(8, 4, true);
  return {term(data.data_forward, weights, "DF") + "+" + term(data.data_backward, weights, "DF"),
          term(fsdp.data_forward, weights, "DF") + "+" + term(fsdp.data_backward, weights, "DF"),
          term(tensor.tensor_forward, rows, "BD") + "+" + term(tensor.tensor_backward, rows, "BD"),
          "(" + term(both.tensor_forward, rows / 8, "BD/X") + "+" +
              term(both.data_forward, weights / 4, "DF/Y") + ")",
          term(both.tensor_backward, rows / 8, "BD/X"),
          term(both.data_backward, weights / 4, "DF/Y")};
}

inline void chapter5(Answers& out) {
  limits(out);
  out.add("G06", ts::training_flops(70e9, 15e12));
  questions5(out);
  out.category("G44", "last row: activation term should be " + bytes_table()[4]);
}

inline void llama3_counts(Answers& out) {
  const ts::ModelConfig m = ts::config("llama3-70b"), big = ts::config("llama3.1-405b");
  out.add("A01", all_layers(m, ts::feed_forward_cost(m, 1).parameters));
  out.add("A02", ts::vocabulary_cost(m, 1).parameters);
  out.add("A03", all_layers(m, ts::projection_cost(m, 1).parameters));
  out.add("A04", all_parameters(m));
  out.add("A05", ts::training_flops(70e9, 1));
  out.add("A07", ts::training_flops(70e9, 15e12));
  out.add("A25", all_parameters(big));
  out.add("A26", ts::training_flops(405e9, 15e12));
}

inline void llama3_memory(Answers& out) {
  const ts::ModelConfig m = ts::config("llama3-70b");
  const Quantity kept(ts::checkpoint_bytes(m, 4e6, 4), "B", "checkpoints");
  const Quantity all = ts::named("memory", ts::state_bytes(70e9) + kept);
  out.add("A12", kept);
  out.add("A13", all);
  out.add("A14", book_chip("tpu-v5p"),
          [=](const ts::Chip& c) { return ts::named("chips", ts::ceil(ts::chips_for(all, c))); });
  const Quantity more(ts::checkpoint_bytes(m, 4e6, 12), "B", "checkpoints");
  out.add("A17", (ts::state_bytes(70e9) + more) / Quantity(8960.0, "", "N"));
}

inline void chapter6(Answers& out) {
  const ts::Chip v5p = book_chip("tpu-v5p");
  const auto days = [&](const char* id, double parameters, double chips) {
    out.add(id, v5p, [=](const ts::Chip& c) {
      return ts::run_time(ts::training_flops(parameters, 15e12), chips, c, 0.4);
    });
  };
  llama3_counts(out);
  llama3_memory(out);
  out.add("A06", v5p,
          [](const ts::Chip& c) { return ts::run_time(ts::training_flops(70e9, 1), 1, c); });
  days("A09", 70e9, 8960);
  days("A24", 70e9, 4 * 8960.0);
  days("A27", 405e9, 8 * 8960.0);
  const double batch = 4194304;
  out.category("A18", ts::sequences_of(batch, batch / 1024).value() >= 8960 ? "yes" : "no");
  out.add("A21", ts::best_data_ways(4.19e6, 28672, 8960, 2, 1));
  std::string covers = "covers";
  try {
    const ts::Machine pod = ts::machine("tpu-v5p", {16, 20, 28});
    ts::Mesh(pod, {{"fsdp", 2240}, {"tensor", 4}});  // divides it
    ts::Mesh(pod, {{"fsdp", 2048}, {"tensor", 4}});
  } catch (const ts::Error& error) {
    const std::string why = error.what();
    if (why.find("are 8192 devices, machine tpu-v5p 16x20x28 has 8960 chips") !=
        std::string::npos) {
      covers = "2048*4=8192 != 8960";
    }
  }
  out.category("A22", covers);
  out.add("A23", ts::tokens_per_chip(batch, 4 * 8960.0));
  out.add("A28", v5p,
          [](const ts::Chip& c) { return ts::mixed_limit(ts::link_intensity(c), 53248, 2); });
}

}  // namespace book
