#pragma once
// What serving a model takes: memory, chips, the time of a decode step, the price of its tokens.
//   T_decode = B KV / (N W) + max(2 B P / (N C), P_bytes / (N W))
// B sequences of one step, KV the cache of one, N chips, W memory bandwidth, C peak. Lower bounds;
// no collectives. Source: "How To Scale Your Model", chapters 7 and 8.

#include <algorithm>  // max
#include <cmath>      // ceil
#include <cstdint>    // std::int64_t
#include <ostream>    // operator<<
#include <string>     // text
#include <vector>     // notes

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/hardware/network.hpp"
#include "tinyscale/measure/quantity.hpp"
#include "tinyscale/plan/transformer_math.hpp"

namespace tinyscale {

// A number format that is "the same as the weights'" until it is set.
struct CacheFormat {
  bool set = false;
  DType format = DType::bf16;

  CacheFormat& operator=(DType wanted) {
    set = true;
    format = wanted;
    return *this;
  }
  DType or_else(DType weights) const { return set ? format : weights; }
};

struct ServingJob {
  ModelConfig model;
  std::int64_t prompt = 2048, output = 256;  // tokens
  std::int64_t batch = 8;                    // sequences decoded together
  DType format = DType::bf16;                // weights
  CacheFormat cache;                         // KV cache
  DType compute = DType::bf16;               // matmuls: weights are widened to it on the chip
  double prefill_mfu = 0.4;                  // what prefill reaches (scaling book, chapter 8)
};

struct ServingPlan {
  std::string model, machine, bound;
  std::int64_t chips = 0;  // of one replica
  Quantity weights, kv_cache_per_sequence, memory, chips_needed;
  Quantity decode_step_time, prefill_time;  // one step of the batch; one prompt
  Quantity tokens_per_second, tokens_per_second_per_chip;
  Quantity dollars_per_million_tokens, dollars_with_prefill;  // of output tokens
  Quantity tensor_limit;  // ways of tensor parallelism before links limit
  std::vector<std::string> notes;

  Table table() const;
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
};

namespace detail {

inline void check_serving(const ServingJob& job, const Machine& machine) {
  job.model.validate();
  if (machine.dims.size() == 0 || machine.chips() < 1) {
    detail::fail(
        {"plan_serving: the machine has no chips; make one with machine(\"tpu-v5e\", {1})"});
  }
  check_network("plan_serving", machine);
  const char* const who = "plan_serving";
  const double most = 1e9;
  check_job(who, "batch", static_cast<double>(job.batch), 1, most);
  check_job(who, "prompt", static_cast<double>(job.prompt), job.output == 0 ? 1 : 0, most);
  check_job(who, "output", static_cast<double>(job.output), 0, most);
  check_job(who, "prefill_mfu", job.prefill_mfu, 1e-6, 1);
  if (machine.chip.memory_bytes <= 0 || machine.chip.memory_bandwidth <= 0) {
    fail({"plan_serving: ", machine.name, " needs memory_bytes and memory_bandwidth of its chip"});
  }
}

// The next size that is made: powers of two; a TPU slice of two chips is not offered.
inline std::int64_t slice_of(const Chip& chip, double needed) {
  check_job("plan_serving", "the number of chips needed", needed, 0, 1e12);
  std::int64_t chips = 1;
  while (static_cast<double>(chips) < needed) {
    chips *= 2;
  }
  return chips == 2 && chip.kind == "tpu" ? 4 : chips;
}

inline void serving_memory(const ServingJob& job, const Machine& on, ServingPlan& plan) {
  const ModelConfig& m = job.model;
  const DType cache = job.cache.or_else(job.format);
  const Quantity parameters(static_cast<double>(m.parameters()), "", "P", "parameters");
  const Quantity bytes(bytes_of(job.format), "B", "b", cat({"of a weight, ", name_of(job.format)}));
  const Quantity layers(static_cast<double>(m.layers), "", "L", "layers");
  const Quantity width(static_cast<double>(m.cached_numbers()), "", "KV",
                       "numbers kept for a token and layer");
  const Quantity kept(bytes_of(cache), "B/token", "b_kv", name_of(cache));
  const Quantity length(static_cast<double>(job.prompt + job.output), "token", "S",
                        "prompt + output");
  const Quantity batch(static_cast<double>(job.batch), "", "batch", "sequences");
  const Quantity capacity(on.chip.memory_bytes, "B", "M_chip", on.chip.name);
  plan.weights = named("P_bytes", parameters * bytes);
  plan.kv_cache_per_sequence = named("KV_sequence", layers * width * kept * length);
  plan.memory = named("memory", plan.weights + batch * plan.kv_cache_per_sequence);
  plan.chips_needed = named("chips needed", ceil(plan.memory / capacity));
  plan.chips = on.chips();
  if (static_cast<double>(plan.chips) < plan.chips_needed.value()) {
    plan.chips = slice_of(on.chip, plan.chips_needed.value());
    plan.notes.push_back(
        cat({"chips: ", on.name, " holds ",
             format_bytes(capacity.value() * static_cast<double>(on.chips())), " of the ",
             format_bytes(plan.memory.value()), " needed; planned on ", plan.chips, " chips"}));
  }
}

inline void serving_times(const ServingJob& job, const Machine& on, ServingPlan& plan) {
  const ModelConfig& m = job.model;
  const double peak = on.chip.peak(job.compute);
  const double mean = static_cast<double>(job.prompt) + static_cast<double>(job.output) / 2;
  const double cached = kv_cache_bytes_per_token(m, job.cache.or_else(job.format)) * mean;
  const Quantity chips(static_cast<double>(plan.chips), "", "N", "chips");
  const Quantity batch(static_cast<double>(job.batch), "token", "B", "one token a sequence");
  const Quantity cache(cached, "B/token", "KV", cat({"cache at the mean length, ", mean}));
  const Quantity bandwidth(on.chip.memory_bandwidth, "B/s", "W", cat({"memory of ", on.chip.name}));
  const Quantity rate(peak, "FLOP/s", "C", cat({name_of(job.compute), " peak"}));
  const Quantity active(static_cast<double>(m.active_parameters()), "", "P_used",
                        "parameters that a token uses");
  const Quantity two(2, "FLOP/token");
  const Quantity math = named("T_math", two * batch * active / (chips * rate));
  const Quantity weights = named("T_weights", plan.weights / (chips * bandwidth));
  const Quantity kv = named("T_kv", batch * cache / (chips * bandwidth));
  plan.decode_step_time = named("T_decode", kv + max(math, weights), "lower bound");
  plan.bound = math.value() > weights.value() + kv.value() ? "math" : "memory";
  plan.tokens_per_second = named("tokens/s", batch / plan.decode_step_time);
  plan.tokens_per_second_per_chip = named("tokens/s/chip", plan.tokens_per_second / chips);
  const Quantity prompt(static_cast<double>(job.prompt), "token", "prompt");
  const Quantity mfu(job.prefill_mfu, "", "MFU", "of prefill, assumed");
  plan.prefill_time = named("T_prefill", two * active * prompt / (chips * rate * mfu));
  plan.notes.push_back(cat({"prefill: at an MFU of ", format_percent(job.prefill_mfu),
                            ", assumed; the decode step is a lower bound"}));
}

inline void serving_price(const ServingJob& job, const Machine& on, ServingPlan& plan) {
  const Quantity price(on.dollars_per_hour, "USD/h", "price", on.chip.price_source);
  const Quantity hour(3600, "s/h"), million(1e6, "token");
  const Quantity chips(static_cast<double>(plan.chips), "", "N", "chips");
  plan.dollars_per_million_tokens = named(
      "USD per million", million * chips * price / (plan.tokens_per_second * hour), "decode alone");
  if (job.output > 0) {
    const Quantity output(static_cast<double>(job.output), "token", "output");
    plan.dollars_with_prefill =
        named("USD per million, with prefill",
              plan.dollars_per_million_tokens +
                  million * chips * price * plan.prefill_time / (output * hour));
  }
  if (!(on.dollars_per_hour > 0)) {
    plan.notes.push_back(
        cat({"price: not known for ", on.chip.name, "; set the machine's dollars_per_hour"}));
  }
}

// Y < F / (B W / W_link): beyond it, moving activations takes longer than reading weights.
inline void serving_links(const ServingJob& job, const Machine& on, ServingPlan& plan) {
  const ModelConfig& m = job.model;
  const std::int64_t hidden = m.experts > 0 ? m.expert_hidden * m.top_k : m.hidden;
  const Links& inner = on.links.back();
  const double link = inner.kind == AxisKind::switched ? inner.bandwidth.one_way()
                      : inner.kind == AxisKind::full
                          ? inner.bandwidth.one_way() * (on.chip.domain_chips - 1)
                          : inner.bandwidth.both_ways();
  if (link > 0) {
    const Quantity f(static_cast<double>(hidden), "", "F", "hidden width");
    const Quantity b(static_cast<double>(job.batch), "", "B", "sequences");
    const Quantity ratio(on.chip.memory_bandwidth / link, "", "W/W_link", "memory over link");
    plan.tensor_limit = named("tensor limit", f / (b * ratio), "one ring, both ways");
    if (static_cast<double>(plan.chips) > plan.tensor_limit.value()) {
      plan.notes.push_back(cat({"links: ", plan.chips, " chips are more than the ",
                                short_number(plan.tensor_limit.value()),
                                " ways of tensor parallelism that one ring feeds"}));
    }
  }
}

}  // namespace detail

// Memory, chips, decode step and price; where the machine is too small, the slice that holds it.
inline ServingPlan plan_serving(const ServingJob& job, const Machine& machine) {
  detail::check_serving(job, machine);
  ServingPlan plan;
  plan.model = job.model.name;
  plan.machine = machine.chip.name;
  detail::serving_memory(job, machine, plan);
  detail::serving_times(job, machine, plan);
  detail::serving_price(job, machine, plan);
  detail::serving_links(job, machine, plan);
  return plan;
}

inline Table ServingPlan::table() const {
  Table out;
  out.title = detail::cat({"Serving ", model, " on ", chips, " x ", machine});
  out.columns = {"quantity", "formula"};
  const auto row = [&](const std::string& name, const std::string& value) {
    out.add({name, value});
  };
  const auto dollars = [](const Quantity& q) {
    return q.value() > 0 ? detail::short_number(q.value()) : std::string("-");
  };
  row("weights", weights.text());
  row("KV cache per sequence", kv_cache_per_sequence.text());
  row("memory", memory.text());
  row("chips that hold it", detail::short_number(chips_needed.value()));
  row("chips", detail::cat({chips}));
  row("decode step", decode_step_time.text());
  row("  bound by", bound);
  row("prefill of one prompt", prefill_time.text());
  row("tokens/s", detail::short_number(tokens_per_second.value()));
  row("tokens/s per chip", detail::short_number(tokens_per_second_per_chip.value()));
  row("USD per million tokens, decode", dollars(dollars_per_million_tokens));
  row("USD per million tokens, with prefill", dollars(dollars_with_prefill));
  return out;
}

inline std::ostream& operator<<(std::ostream& out, const ServingPlan& plan) {
  out << plan.table();
  for (const std::string& note : plan.notes) {
    out << "- " << note << "\n";
  }
  return out;
}

}  // namespace tinyscale
