#pragma once
// Claims of serving on small chips: A1 to A4, of one roofline for every pass over a model,
//   T = max(2 P tokens / peak(format), (P b + cached tokens KV b) / bandwidth)
// with P parameters and KV numbers cached a token, both in one format of b bytes. Lower bounds.

#include <algorithm>  // max
#include <cmath>      // fabs, floor, fmax
#include <cstdint>    // int64_t
#include <string>     // names
#include <vector>     // beams

#include "report.hpp"
#include "tinyscale.hpp"

namespace tinyscale {
namespace detail {

// A batch on one chip: prefill, then a step for every token of output.
struct GenerationCase {
  ModelConfig model;
  Chip chip;
  DType format = DType::bf16;
  std::int64_t batch = 1, prompt = 128, output = 128;

  double held(std::int64_t tokens) const {  // bytes
    return static_cast<double>(model.parameters()) * bytes_of(format) +
           static_cast<double>(tokens) * kv_cache_bytes_per_token(model, format);
  }
  bool fits() const { return held(batch * (prompt + output)) <= chip.memory_bytes; }
  RooflineRow pass(std::int64_t tokens, std::int64_t cached) const {
    const double flops =
        2 * static_cast<double>(model.active_parameters()) * static_cast<double>(tokens);
    return priced_row({flops, 0, held(cached), format}, chip);
  }
  double seconds() const {
    double sum = pass(batch * prompt, batch * prompt).seconds;
    for (std::int64_t s = 0; s < output; ++s) {
      sum += pass(batch, batch * (prompt + s)).seconds;
    }
    return sum;
  }
};

// How much sooner `fast` is done than `slow`, as a quantity.
inline Quantity speedup(const GenerationCase& slow, const GenerationCase& fast) {
  const auto time = [](const GenerationCase& c) {
    return Quantity(c.seconds(), "s", "T " + c.chip.name + " " + name_of(c.format),
                    cat({c.batch, " x (", c.prompt, " + ", c.output, ") tokens of ", c.model.name,
                         ", passes of the roofline"}));
  };
  return time(slow) / time(fast);
}

inline Quantity price_of(const Chip& chip) {
  return Quantity(chip.dollars_per_hour, "USD/h", "price " + chip.name, chip.price_source);
}
inline Quantity memory_rate_of(const Chip& chip) {
  return Quantity(chip.memory_bandwidth, "B/s", "W " + chip.name, chip.source);
}
inline Quantity peak_of(const Chip& chip, DType format) {
  return Quantity(chip.peak(format), "FLOP/s", cat({"C ", chip.name, " ", name_of(format)}));
}

// The cheapest all_reduce of [tokens, width] in bf16 over all chips.
inline double all_reduce_seconds(const Machine& machine, std::int64_t tokens, std::int64_t width) {
  const Mesh mesh(machine, {{"t", machine.chips()}});
  const Sharded sums = mesh.shard({tokens, width}, "{U_t} T, D", DType::bf16);
  return machine.chips() > 1 ? reshard(sums, "T, D").explain().comms_seconds : 0;
}

inline ClaimReport claim_serving_per_dollar() {
  ClaimReport r = claim_of(
      "A dollar serves up to 2.5 times as much on TPU v5e as on v4.", Verdict::holds_when,
      "both run int8 and about half of v4's time is bound by math; bf16 on both stays near 1.8");
  const Chip e = chip("tpu-v5e"), v4 = chip("tpu-v4");
  const ModelConfig model = config("gpt-j-6b");
  const Quantity money = named("v5e chips for one v4", price_of(v4) / price_of(e));
  r.add("bandwidth a dollar", money * memory_rate_of(e) / memory_rate_of(v4), 1.79);
  r.add("bf16 a dollar", money * peak_of(e, DType::bf16) / peak_of(v4, DType::bf16), 1.92);
  r.add("int8 a dollar", money * peak_of(e, DType::int8) / peak_of(v4, DType::int8), 3.83);
  r.add("memory a dollar",
        money * Quantity(e.memory_bytes, "B", "M v5e") / Quantity(v4.memory_bytes, "B", "M v4"),
        1.25);
  const Quantity one(1), slow = one / r.quantity("bandwidth a dollar");
  r.add("share of math for 2.5",
        (slow - one / Quantity(2.5)) / (slow - one / r.quantity("int8 a dollar")), 0.53);
  const auto ratio = [&](DType on_v4, DType on_v5e, std::int64_t batch, std::int64_t prompt) {
    return money * speedup({model, v4, on_v4, batch, prompt}, {model, e, on_v5e, batch, prompt});
  };
  const DType int8 = DType::int8, bf16 = DType::bf16;
  r.add("int8, batch 8, prompt 128", ratio(int8, int8, 8, 128), 1.85);
  r.add("int8, batch 16, prompt 1024", ratio(int8, int8, 16, 1024), 2.29);
  r.add("int8, batch 32, prompt 1024", ratio(int8, int8, 32, 1024), 2.43);
  r.add("bf16, batch 8, prompt 128", ratio(bf16, bf16, 8, 128), 1.79);
  r.add("bf16, batch 32, prompt 1024", ratio(bf16, bf16, 32, 1024), 1.83);
  r.add("int8 against bf16, batch 8, prompt 128", ratio(bf16, int8, 8, 128), 3.6);
  double best = 0;
  const std::int64_t prompts[] = {128, 512, 1024, 2048};
  r.chart("int8 on both, 128 new tokens", "batch", "work a dollar, v5e / v4",
          {1, 2, 4, 8, 16, 32, 64, 128}, {"prompt 128", "prompt 512", "prompt 1024", "prompt 2048"},
          [&](std::size_t i, double x) {
            const auto batch = static_cast<std::int64_t>(x);
            const bool fits = GenerationCase{model, e, int8, batch, prompts[i]}.fits();
            const double more = fits ? ratio(int8, int8, batch, prompts[i]).value() : no_figure;
            best = fits ? std::max(best, more) : best;
            return more;
          });
  r.formula("the most of the grid that fits one v5e", "chart", best);
  r.assumptions = {"GPT-J 6B on one chip each; weights, cache and matmuls in one format",
                   "list prices of the presets: " + e.price_source + "; " + v4.price_source};
  r.caveats = {
      "2.5 lies between what bandwidth and what int8 FLOPs give; which of the two counts "
      "depends on batch and prompt, and on prices of one day",
      "in bf16 a batch of 32 prompts of 1024 does not fit the 16 GB of a v5e: a rate alone"};
  return r;
}

inline ClaimReport claim_serving_latency() {
  ClaimReport r = claim_of(
      "TPU v5e answers up to 1.7 times sooner than v4.", Verdict::holds_when,
      "as many dollars are spent on each, or int8 on v5e is set against bf16 on v4; chip for chip "
      "in bf16 v5e is 1.5 times slower");
  const Chip e = chip("tpu-v5e"), v4 = chip("tpu-v4");
  const ModelConfig model = config("gpt-j-6b");
  const Quantity w = memory_rate_of(e), w4 = memory_rate_of(v4);
  const Quantity int8(1, "B", "b int8"), bf16(2, "B", "b bf16");
  r.add("slower, bf16 on both", w4 / w, 1.5);
  r.add("faster, int8 against bf16", w / int8 / (w4 / bf16), 1.33);
  r.add("faster, with prefill",
        speedup({model, v4, DType::bf16, 32, 1024}, {model, e, DType::int8, 32, 1024}), 1.36);
  r.add("v5e chips for one v4", price_of(v4) / price_of(e), 2.68);
  r.add("faster at equal spend", r.quantity("v5e chips for one v4") * w / w4, 1.79);
  r.add("with collectives",
        r.quantity("faster at equal spend") * Quantity(0.95, "", "efficiency", "assumed"), 1.70);
  const GenerationCase steps[] = {{model, e}, {model, v4}};  // of one sequence, bf16
  const auto comms = [&](const Chip& on, double n) {
    const auto chips = static_cast<std::int64_t>(n);
    return 2 * static_cast<double>(model.layers) *
           all_reduce_seconds(machine(on, {chips}), 1, model.width);
  };
  r.chart("decode step of one sequence, tensor parallel, bf16", "chips",
          "ms, and its share of collectives", {1, 2, 4, 8, 16},
          {"v5e", "v5e, collectives", "v4", "v4, collectives"}, [&](std::size_t i, double n) {
            const GenerationCase& step = steps[i / 2];
            const double sends = comms(step.chip, n),
                         all = step.pass(1, step.prompt).seconds / n + sends;
            return i % 2 == 0 ? 1e3 * all : sends / all;
          });
  r.assumptions = {"GPT-J 6B; a decode step reads all weights once; two all_reduces a layer",
                   "list prices of the presets"};
  r.caveats = {
      "an all_reduce of one token's 8 kB is latency, 1 us a hop: of a step of v5e 2 % at two "
      "chips, 9 % at four, half at 16",
      "chips lie in one row; v5e's closes at 16"};
  return r;
}

inline ClaimReport claim_models_that_fit() {
  ClaimReport r = claim_of(
      "One v5e serves models of up to 13 billion parameters, a pod of 256 up to 2 trillion.",
      Verdict::holds_when, "the weights are int8; 13B in bf16 does not fit");
  const Chip e = chip("tpu-v5e");
  ServingJob job;
  job.model = config("llama2-13b");
  job.format = DType::int8;
  job.batch = 1;
  const ServingPlan int8 = plan_serving(job, machine(e, {1}));
  job.format = DType::bf16;
  const ServingPlan bf16 = plan_serving(job, machine(e, {1}));
  const Quantity memory(e.memory_bytes, "B", "M", "16 GB"), gib(17179869184.0, "B", "16 GiB");
  const Quantity token(kv_cache_bytes_per_token(job.model, DType::int8), "B", "KV",
                       "2 L H K, int8, a token");
  r.formula("parameters", "ModelConfig::parameters", double(job.model.parameters()), "",
            13015864320.0);
  r.add("weights, bf16", bf16.weights, 26.0e9);
  r.add("weights, int8", int8.weights, 13.0e9);
  r.add("chips, bf16", bf16.chips_needed, 2);
  r.add("chips, int8", int8.chips_needed, 1);
  r.add("cache of a token", token, 409600);
  r.add("left of 16 GB", memory - int8.weights, 2.98e9);
  r.add("left of 16 GiB", gib - int8.weights, 4.16e9);
  const auto tokens = [&](const std::string& of, double claimed) {
    const double left = r.quantity("left of " + of).value();
    r.formula("tokens of " + of, "floor(left / KV)", std::floor(left / token.value()), "", claimed);
  };
  tokens("16 GB", 7285);
  tokens("16 GiB", 10165);
  const Quantity pod(256, "", "chips"), two(2e12, "", "P", "2 trillion");
  r.add("2T a chip, int8", two * Quantity(1, "B", "b") / pod, 7.8e9);
  r.add("2T a chip, bf16", two * Quantity(2, "B", "b") / pod, 15.6e9);
  const Quantity cache = named("cache of 8192 tokens", Quantity(8192) * token);
  r.add("14B int8 and 8192 tokens", Quantity(14e9, "B", "P 1 B") + cache);
  r.add("largest int8 model with them", memory - cache);
  r.assumptions = {"nothing but weights and cache in memory; multi-head cache in int8"};
  r.caveats = {"2T in bf16 fits the pod with next to nothing left for a cache",
               "14B and 8192 tokens do not fit, neither in 16 GB nor in 16 GiB",
               "16 GiB hold a token more than the claim's 10,165"};
  return r;
}

// What 32 beams of 256 tokens after a prefix of 2048 take of a paged cache, counted in pages of one
// token: forks of one sequence, or each for itself.
inline double counted_slots(const ModelConfig& c, bool shared) {
  CacheOptions options;
  options.page_tokens = 1;
  KvPages cache(c, options);
  const int first = cache.add();
  cache.extend(first, 2048);
  std::vector<int> beams = {first};
  for (int beam = 1; beam < 32; ++beam) {
    beams.push_back(shared ? cache.fork(first) : cache.add());
    cache.extend(beams.back(), shared ? 0 : 2048);
  }
  for (const int beam : beams) {
    cache.extend(beam, 256);
  }
  return static_cast<double>(cache.pages_in_use());
}

// The same at the size of a test with a model that runs: outputs and slots, shared and copied.
inline void add_beams(ClaimReport& r) {
  ModelConfig c = config("nano");
  c.layers = 1, c.width = 8, c.heads = c.kv_heads = 1, c.head_size = 8, c.hidden = 16;
  c.vocabulary = 50, c.context = 2304;
  r.counted("slots, shared, in pages", "forks of one prefix", counted_slots(c, true), "", 10240);
  r.counted("slots, copied, in pages", "a prefix each", counted_slots(c, false), "", 73728);
  const Transformer model(c);
  std::vector<std::int32_t> prefix;
  for (std::int32_t i = 0; i < 64; ++i) {
    prefix.push_back(7 * i % 50);
  }
  CacheOptions one;
  one.page_tokens = 1;
  KvPages shared(c, one), copied(c, one);
  List<TokenRun> in_shared, in_copied;
  const int first = shared.add();
  decode(model, shared, {{first, prefix, false}});
  for (std::int32_t beam = 0; beam < 32; ++beam) {
    const int own = copied.add();
    decode(model, copied, {{own, prefix, false}});
    in_shared.push_back({shared.fork(first), {beam}, false});
    in_copied.push_back({own, {beam}, false});
  }
  const Tensor a = decode(model, shared, in_shared), b = decode(model, copied, in_copied);
  double gap = 0;
  for (std::int64_t i = 0; i < a.count(); ++i) {
    gap = std::fmax(gap, std::fabs(double(a.data()[i]) - double(b.data()[i])));
  }
  r.counted("logits, shared - copied", "32 beams, prefix of 64", gap, "", 0);
  BeamOptions options;
  options.beams = 32;
  options.pages = one;
  const BeamResult found = beam_search(model, prefix, 16, options);
  r.counted("a search's slots", "at most 64 + 32 x 16 = 576", double(found.most_pages));
  r.counted("each beam for itself", "then: 32 x its length", double(found.unshared_pages));
  r.needs(found.most_pages <= 576, "a search took more slots than forks would");
}

inline ClaimReport claim_beam_search() {
  ClaimReport r = claim_of(
      "The latency benchmark, a 13B multi-head decoder with a prefix of 2048, 256 steps and a "
      "beam of 32, runs on one v5e.",
      Verdict::holds_when, "at most 20 beams share their prefix, or the cache is smaller");
  const Chip e = chip("tpu-v5e");
  const ModelConfig m = config("llama2-13b");
  const Quantity p(static_cast<double>(m.parameters()), "", "P", "parameters");
  const Quantity weights = named("weights", p * Quantity(1, "B", "b", "int8"));
  const Quantity kv(kv_cache_bytes_per_token(m, DType::int8), "B", "KV", "a token");
  const Quantity w(e.memory_bandwidth, "B/s", "W", "v5e"), c = peak_of(e, DType::int8);
  const Quantity prefix(2048, "", "prefix"), steps(256, "", "steps"), beams(32, "", "beams");
  const Quantity two(2, "FLOP"), half(2), one(1);
  const Quantity made = named("made by a mean step", (steps - one) / half);
  r.add("prefill", two * p * prefix / c, 0.136);
  r.add("weights a step", weights / w, 0.0159);
  r.add("slots, shared", prefix + beams * steps, 10240);
  r.add("slots, copied", beams * (prefix + steps), 73728);
  r.add("cache, shared", r.quantity("slots, shared") * kv, 4.19e9);
  r.add("cache, copied", r.quantity("slots, copied") * kv, 30.2e9);
  r.add("memory, shared", weights + r.quantity("cache, shared"), 17.2e9);
  r.add("above 16 GiB", r.quantity("memory, shared") - Quantity(17179869184.0, "B"), 30e6);
  r.add("decode, shared", steps * (weights + (prefix + beams * made) * kv) / w, 4.85);
  r.add("decode, copied", steps * (weights + beams * (prefix + made) * kv) / w, 13.0);
  const Quantity room = (Quantity(e.memory_bytes, "B", "M") - weights) / kv;
  r.add("slots of 16 GB", room);
  r.formula("beams of 16 GB", "floor((slots - prefix) / steps)",
            std::floor((room - prefix).value() / steps.value()), "", 20);
  const ModelConfig big = config("llama2-70b");
  r.add("smaller by grouped queries",
        Quantity(double(big.heads), "", "H llama2-70b") /
            Quantity(double(big.kv_heads), "", "KV heads"),
        8);
  r.assumptions = {"int8 weights and cache; ideal rates"};
  add_beams(r);
  r.caveats = {
      "pages of one token here; the beams of a search also share what they wrote alike, so that it "
      "takes fewer slots than the arithmetic",
      "sharing the prefix, paging, grouped queries and int8 are what make it possible"};
  return r;
}

}  // namespace detail
}  // namespace tinyscale
