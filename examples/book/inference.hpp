#pragma once
// Chapter 7 (inference) and chapter 8 (serving LLaMA 3).
#include "transformer.hpp"

namespace book {

// The pop quiz: 30e9 parameters, int8 weights, 100 kB of cache a token, a 4x4 slice of v5e.
inline void pop_quiz(Answers& out) {
  const ts::ServedModel m = ts::served_model(30e9, ts::DType::int8, 1e5);
  out.add("I06", ts::cache_bytes(m, 8192));
  out.add("I08", book_chip("tpu-v5e"),
          [=](const ts::Chip& c) { return ts::decode_step_time(m, 256, 8192, 16, c); });
}

// LLaMA 2 13B in bf16 on 8 v5e at 8192 tokens: plain heads, and 5 times fewer key-value heads.
inline void table13b(Answers& out) {
  const ts::Chip v5e = book_chip("tpu-v5e");
  const struct {
    const char* name;
    double cache;
  } kinds[] = {{"MHA", 6.7e9}, {"GMQA5x", 1.34e9}};
  for (const auto& kind : kinds) {
    const ts::ServedModel m = ts::served_model(13e9, ts::DType::bf16, kind.cache / 8192);
    for (const double b : {1.0, 8.0, 16.0, 32.0, 64.0, 240.0}) {
      const std::string id = ts::detail::cat({"I11-", kind.name, "-B", b, "-"});
      const auto step = [=](const ts::Chip& c) { return ts::memory_step_time(m, b, 8192, 8, c); };
      out.add(id + "mem", ts::serving_bytes(m, b, 8192));
      out.add(id + "step", v5e, step);
      out.add(id + "thr", v5e,
              [=](const ts::Chip& c) { return ts::tokens_per_second(b, step(c)); });
    }
  }
  const ts::ServedModel real = ts::served_model(ts::config("llama2-13b"));
  out.add("I09", ts::cache_bytes(real, 8192));
  out.add("I10", ts::activation_bytes(8192, 5120));
}

// The model of the questions: 64 layers of 4096, 32 heads of 256 on 8 keys, tied, 16 experts or
// none.
inline ts::ModelConfig question_model(int experts) {
  ts::ModelConfig m = gated_model(64, 4096, 16384, 32, 8, 32128, 256);
  m.tied = true;
  m.experts = experts;
  m.top_k = experts > 0 ? 2 : 0;
  m.expert_hidden = experts > 0 ? 16384 : 0;
  return m;
}

inline void questions7(Answers& out) {
  const ts::Chip v5e = book_chip("tpu-v5e");
  const ts::ModelConfig dense = question_model(0), mixed = question_model(16);
  const ts::DType int8 = ts::DType::int8;
  const ts::ServedModel m = ts::served_model(dense, int8, int8);
  out.add("I17", all_parameters(dense));
  out.add("I19", ts::cache_bytes(m, 128e3));
  ts::ServedModel one_key = m;  // K = 1 in place of 8; smaller weights ignored
  one_key.cache_per_token /= 8;
  out.add("I21", v5e,
          [=](const ts::Chip& c) { return ts::sequences_that_fit(one_key, 128e3, 16, c); });
  out.add("I24", v5e, [=](const ts::Chip& c) { return ts::memory_step_time(m, 7, 128e3, 16, c); });
  out.add("I25", all_parameters(mixed));
  ts::Chip rounded = v5e;
  rounded.memory_bandwidth = rounded.flops_bf16 / 240;
  out.add("I28", rounded,
          [](const ts::Chip& c) { return ts::expert_batch(ts::critical_batch(c), 16, 2); });
  out.add("I30", ts::forward_flops(static_cast<double>(mixed.active_parameters())));
  const ts::ServedModel all = ts::served_model(mixed, int8, int8);
  out.add("I31", v5e, [=](const ts::Chip& c) { return ts::weights_step_time(all, 128, c); });
}

inline void chapter7(Answers& out) {
  const ts::Chip v5e = book_chip("tpu-v5e");
  pop_quiz(out);
  table13b(out);
  ts::Chip gib = v5e;
  gib.memory_bytes = 16 * 1073741824.0;  // the row's 16 GiB a chip
  out.add("I12", gib, [](const ts::Chip& c) { return ts::memory_of(ts::machine(c, {4, 2})); });
  out.add("I13", v5e, [](const ts::Chip& c) {
    return ts::peak_rate(ts::machine(c, {4, 2}), ts::DType::bf16);
  });
  out.add("I02", book_chip("h100"), [](const ts::Chip& c) { return ts::critical_batch(c); });
  out.add("I15", v5e, [](const ts::Chip& c) { return ts::memory_over_link(c); });
  out.add("I14", v5e, [](const ts::Chip& c) { return ts::link_intensity(c); });
  ts::Chip eight = v5e;
  eight.memory_bandwidth = 8 * 9e10;  // the row's beta
  out.add("I16", eight, [](const ts::Chip& c) {
    return ts::decode_tensor_ways(16384, 32, ts::memory_over_link(c));
  });
  questions7(out);
  out.add("I35", ts::two_dim_threshold(4096, 4 * 4096.0));
  out.add("I39", v5e, [](const ts::Chip& c) {
    ts::AxisPart ring = ts::links_along(ts::machine(c, {16, 16}), {0})[0];
    ring.size = 8;
    return ts::latency_bound_array(ring);
  });
  out.add("I40", ts::activation_bytes(16, 8192, ts::DType::int8));
}

// LLaMA 3 70B as the book rounds it, with the cache of the real one.
inline ts::ServedModel llama70b(ts::DType format) {
  const ts::ServedModel real = ts::served_model(ts::config("llama3-70b"), format, format);
  return ts::served_model(70e9, format, real.cache_per_token);
}

// Per format: chips that hold the weights, cache a token, what is left on the smallest slice.
inline void formats70b(Answers& out) {
  const ts::Chip v5e = book_chip("tpu-v5e");
  const ts::DType formats[] = {ts::DType::bf16, ts::DType::int8, ts::DType::int4};
  for (const ts::DType format : formats) {
    const ts::ServedModel m = llama70b(format);
    const std::string id = std::string("L16-") + ts::name_of(format) + "-";
    const Quantity weights(m.parameter_bytes, "B", "P_bytes");
    const double chips = ts::smallest_slice(weights, v5e).value();
    out.add(id + "min", v5e, [=](const ts::Chip& c) { return ts::chips_for(weights, c); });
    out.add(id + "kv", Quantity(m.cache_per_token, "B", "kv"));
    out.add(id + "rem", v5e, [=](const ts::Chip& c) { return ts::memory_left(m, chips, c); });
    out.add(id + "n", v5e,
            [=](const ts::Chip& c) { return ts::sequences_that_fit(m, 8192, chips, c); });
    const Quantity step(0.019, "s", "T_step", "the book's, of a full memory");
    out.add(std::string("L20-") + ts::name_of(format),
            ts::queries_per_second_per_chip(43, step, 512, chips));
    const struct {
      double times;
      const char* bf16;
      const char* int8;
      const char* int4;
    } slices = {2, "L23-bf16-4x8", "L23-int8-4x4", "L23-int4-2x4"};
    out.add(format == ts::DType::bf16   ? slices.bf16
            : format == ts::DType::int8 ? slices.int8
                                        : slices.int4,
            ts::queries_per_second_per_chip(140, step, 512, slices.times * chips));
  }
}

inline void one_slice70b(Answers& out) {
  const ts::Chip v5e = book_chip("tpu-v5e");
  const ts::ServedModel m = llama70b(ts::DType::int8);
  const auto step = [=](const ts::Chip& c, double chips) {
    return ts::memory_step_time(m, 32, 8192, chips, c);
  };
  out.add("L04", Quantity(m.cache_per_token, "B", "kv"));
  out.add("L05", ts::cache_bytes(m, 32768));
  out.add("L08", ts::serving_bytes(m, 32, 8192));
  const Quantity slice = ts::smallest_slice(ts::serving_bytes(m, 32, 8192), v5e);
  out.category("L09", ts::detail::cat({slice.value(), " chips"}));
  out.add("L11", v5e, [=](const ts::Chip& c) { return ts::tokens_per_second(32, step(c, 8)); });
  out.add("L13", v5e, [=](const ts::Chip& c) { return step(c, 16); });
  out.add("L18", v5e,
          [](const ts::Chip& c) { return ts::answer_time(512, ts::full_memory_step_time(c)); });
  const ts::ServedModel int4 = llama70b(ts::DType::int4);
  out.add("L19", v5e, [=](const ts::Chip& c) { return ts::weights_step_time(int4, 4, c); });
  const Quantity book_step(0.019, "s", "T_step"), prefill(0.91, "s", "T_prefill");
  out.add("L32", ts::prefill_servers(32, prefill, 512, book_step));
  out.add("L35", v5e, [=](const ts::Chip& c) {  // the book's script tries 1, 5, 9, ...
    double most = 1;
    while (most + 4 <= ts::sequences_that_fit(m, 8192, 16, c).value()) {
      most += 4;
    }
    return Quantity(most);
  });
}

inline void chapter8(Answers& out) {
  const ts::Chip v5e = book_chip("tpu-v5e");
  out.add("L01", book_chip("h100"),
          [](const ts::Chip& c) { return ts::flops_per_dollar(c, ts::DType::bf16); });
  one_slice70b(out);
  formats70b(out);
  const auto rows = [&](const ts::MatmulFormats& formats) {
    return ts::detail::cat({std::floor(ts::critical_batch(v5e, formats).value() + 0.5)});
  };
  out.category("L15", rows({}) + ", " + rows({ts::DType::bf16, ts::DType::int8}) + ", " +
                          rows(ts::all_in(ts::DType::int8)));
  ts::Chip eight = v5e;
  eight.memory_bandwidth = 8 * 9e10;
  out.add("L24", eight, [](const ts::Chip& c) {
    return ts::decode_tensor_ways(28672, 64, ts::memory_over_link(c));
  });
  out.add("L27", v5e, [](const ts::Chip& c) {
    return ts::decode_matmul({64, 8192, 28672}, 32, c,
                             ts::bandwidth_of(c, ts::Channel::link_both_ways))
        .math;
  });
  out.add("L30", ts::sequences_ended(32, 4096));
  out.add("L36", ts::forward_flops(405e9));
  const ts::ServedModel big = ts::served_model(405e9, ts::DType::int8, 1);
  out.add("L37", v5e, [=](const ts::Chip& c) { return ts::prefill_time(big, 1, 1, c, 1); });
  out.add("L40", v5e, [=](const ts::Chip& c) {
    return ts::ceil(ts::chips_for(Quantity(big.parameter_bytes, "B", "P_bytes"), c));
  });
}

}  // namespace book
