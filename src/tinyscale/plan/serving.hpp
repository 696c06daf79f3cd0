#pragma once
// The serving plan put together: its causes under the sharding chosen, the batch for a latency
// target, speculative decoding, and the tables.
//   target batch: largest B with T_decode <= target
//   speculation:  (1 - r^(g + 1)) / (1 - r) tokens a round of T_verify + g c T_decode
// Sources: "How To Scale Your Model", chapter 7; Leviathan, Kalman, Matias 2023.

#include <algorithm>  // max, min
#include <cmath>      // floor, pow
#include <cstdint>    // std::int64_t
#include <ostream>    // operator<<
#include <string>     // text

#include "tinyscale/plan/serving_quantities.hpp"

namespace tinyscale {

// Tokens that a round of speculation yields: those accepted and one of the model itself.
inline double expected_tokens(double acceptance, int length) {
  detail::check_job("expected_tokens", "acceptance", acceptance, 0, 1);
  detail::check_job("expected_tokens", "length", length, 0, 1000);
  return acceptance == 1 ? length + 1.0 : (1 - std::pow(acceptance, length + 1)) / (1 - acceptance);
}

// Over plain decoding, where checking costs no more than a step (small batches).
inline double speculative_speed_up(double acceptance, int length, double cost) {
  detail::check_job("speculative_speed_up", "cost", cost, 0, 1e9);
  return expected_tokens(acceptance, length) / (1 + length * cost);
}

// The decode step of the law at another batch: a lower bound, no links.
inline double decode_seconds(const ServingJob& job, const Chip& chip, double chips) {
  const char* const who = "decode_seconds";
  job.model.validate();
  detail::check_job(who, "chips", chips, 1e-9, 1e9);
  detail::check_job(who, "batch", static_cast<double>(job.batch), 0, 1e9);
  detail::check_job(who, "prompt", static_cast<double>(job.prompt), 0, 1e9);
  detail::check_job(who, "output", static_cast<double>(job.output), 0, 1e9);
  detail::check_job(who, "the chip's memory_bandwidth", chip.memory_bandwidth, 1e-9, 1e18);
  const ServingLaw law = detail::even_law(job, chip, chips);
  const StepWork step = detail::decode_work(job);
  return step.context * law.cached + std::max(law.math(step), law.read(step.decode));
}

// The largest batch whose decode step keeps within `seconds`; 0 when one sequence does not.
inline std::int64_t batch_within(ServingJob job, const Chip& chip, double chips, double seconds) {
  detail::check_job("batch_within", "seconds", seconds, 0, 1e9);
  std::int64_t low = 0, high = 1000000000;
  while (low < high) {
    job.batch = low + (high - low + 1) / 2;
    const bool within = decode_seconds(job, chip, chips) <= seconds;
    low = within ? job.batch : low;
    high = within ? high : job.batch - 1;
  }
  return low;
}

namespace detail {

inline Quantity links_time(const ServingPlan& plan, const Quantity& tokens, bool latency) {
  Quantity total(0.0, "s");
  const Quantity layers(static_cast<double>(plan.job.model.layers), "", "L", "layers");
  bool any = false;
  for (const LayerTraffic& t : plan.sharding().traffic) {
    if (!latency && !(t.bandwidth > 0)) {
      continue;
    }
    const Quantity hops(t.latency, "s", "hops", t.what);
    const Quantity bytes(t.bytes, "B/token", cat({"b(", t.what, ")"}), "of one layer");
    const Quantity rate(t.bandwidth, "B/s", cat({"W(", t.what, ")"}));
    const Quantity part = latency ? layers * hops : layers * tokens * bytes / rate;
    total = any ? total + part : part;
    any = true;
  }
  return named(latency ? "T_latency" : "T_links", total);
}

// Decode (a step of the batch) or prefill (one prompt) under the chosen sharding, at peak rates.
inline ServingCauses causes_of(const ServingPlan& plan, const StepWork& work) {
  const ServingJob& job = plan.job;
  const Chip& chip = plan.on.chip;
  const double ways = plan.sharding().cache_ways;
  const Quantity chips(static_cast<double>(plan.chips), "", "N", "chips");
  const Quantity tokens(work.decode + work.chunk, "token", "T", "tokens of the step");
  const Quantity bandwidth(chip.memory_bandwidth, "B/s", "W", chip.name);
  const Quantity rate(chip.peak(job.compute), "FLOP/s", "C", name_of(job.compute));
  const Quantity read(plan.law().read(tokens.value()) * chip.memory_bandwidth * chips.value(), "B",
                      "P_read", "weights that the step reads, times their copies");
  const Quantity kept(serving_kv(job), "B/token", "KV_token", "cache of a token, all layers");
  const Quantity context(work.context, "token", "context", "cached tokens read");
  const Quantity parts(ways, "", "parts", "of the cache, the rest are copies");
  const Quantity pairs(work.context + work.chunk_pairs, "", "pairs", "queries times keys");
  const bool decoding = work.decode > 0;
  const Quantity wide(decoding ? decode_pair_flops(job.model) : prefill_pair_flops(job.model),
                      "FLOP", "pair", "a query with a key and its value, all layers");
  const Quantity active(static_cast<double>(job.model.active_parameters()), "", "P_used");
  const Quantity two(2, "FLOP/token");
  ServingCauses out;
  out.weights = named("T_weights", read / (chips * bandwidth));
  out.cache = named("T_cache", context * kept / (parts * bandwidth));
  out.math = named("T_math", two * tokens * active / (chips * rate));
  const Quantity scores = named("T_scores", pairs * wide / (chips * rate));
  out.links = links_time(plan, tokens, false);
  out.latency = links_time(plan, tokens, true);
  const Quantity alone = named("T_chip", max(out.cache, scores) + max(out.math, out.weights));
  const Quantity sent = named("T_network", out.links + out.latency);
  out.bound = named("T_bound", max(sent, alone), "all overlaps");
  out.sum = named("T_sum", sent + out.cache + scores + out.math + out.weights, "nothing overlaps");
  return out;
}

inline void note_unknown_links(ServingPlan& plan) {
  for (const LayerTraffic& t : plan.sharding().traffic) {
    if (!(t.bandwidth > 0)) {
      plan.notes.push_back(cat({"links: not known between all chips of ", plan.on.name,
                                "; their time is not counted, set link_bandwidth and ",
                                "dcn_bandwidth of the chip"}));
      return;
    }
  }
}

// Where links bound a step, what the law says of tokens and prices is out of reach.
inline void note_slow_links(ServingPlan& plan) {
  const double law = plan.decode_step_time.value(), all = plan.decode.bound.value();
  if (all > law * 1.001) {
    const double slower = all / law;
    const double dollars = plan.dollars_per_million_tokens.value() * slower;
    plan.notes.push_back(
        cat({"links: with all overlapping a step takes ", format_seconds(all), ", not ",
             format_seconds(law), ": at most ",
             short_number(plan.tokens_per_second_per_chip.value() / slower), " tokens/s/chip",
             dollars > 0 ? cat({", ", short_number(dollars), " USD per million tokens"}) : "",
             "; what stands above is without links"}));
  }
}

inline void plan_target(ServingPlan& plan) {
  const ServingJob& job = plan.job;
  if (!(job.target > 0)) {
    return;
  }
  const double chips = static_cast<double>(plan.chips);
  const std::int64_t within = batch_within(job, plan.on.chip, chips, job.target);
  const double most = std::min(static_cast<double>(within), plan.most_sequences.value());
  plan.target_batch =
      Quantity(most, "", "target batch", "largest with T_decode <= target that fits");
  if (within < job.batch) {
    ServingJob alone = job;
    alone.batch = 1;
    plan.notes.push_back(cat({"target: ", format_seconds(job.target), " a token holds for ", within,
                              " sequences, not for ", job.batch, "; one alone takes ",
                              format_seconds(decode_seconds(alone, plan.on.chip, chips))}));
  }
}

// Checking g + 1 tokens of every sequence reads weights and cache once and multiplies g + 1 times.
inline void plan_speculation(ServingPlan& plan) {
  const Speculation& draft = plan.job.speculation;
  if (draft.length == 0) {
    return;
  }
  const ServingLaw law = even_law(plan.job, plan.on.chip, static_cast<double>(plan.chips));
  StepWork step = decode_work(plan.job);
  step.decode *= draft.length + 1;
  const Quantity verify(step.context * law.cached + std::max(law.math(step), law.read(step.decode)),
                        "s", "T_verify", "a step of g + 1 tokens a sequence");
  const Quantity length(draft.length, "", "g", "proposed tokens");
  const Quantity cost(draft.cost, "", "c", "step of the draft over the model's");
  const Quantity tokens(expected_tokens(draft.acceptance, draft.length), "", "tokens",
                        "(1 - r^(g + 1)) / (1 - r)");
  const Quantity round = named("T_round", verify + length * cost * plan.decode_step_time);
  plan.speculative_step_time = named("T_speculative", round / tokens, "for one token");
  plan.speculative_speed_up = named("speed-up", plan.decode_step_time / plan.speculative_step_time);
}

}  // namespace detail

// Memory, chips, decode step and price; where the machine is too small, the slice that holds it.
inline ServingPlan plan_serving(const ServingJob& job, const Machine& machine) {
  detail::check_serving(job, machine, "plan_serving");
  ServingPlan plan;
  plan.job = job;
  plan.model = job.model.name;
  plan.machine = machine.chip.name;
  detail::plan_memory(machine, plan);
  plan.shardings = detail::shardings_of(job, plan.on, &ServingSharding::sum);
  detail::plan_times(plan);
  detail::plan_price(plan);
  detail::plan_links(plan);
  detail::plan_formats(plan);
  detail::note_unknown_links(plan);
  plan.decode = detail::causes_of(plan, detail::decode_work(job));
  plan.prefill = detail::causes_of(plan, detail::prompt_work(job, static_cast<double>(job.prompt)));
  detail::note_slow_links(plan);
  detail::plan_target(plan);
  detail::plan_speculation(plan);
  return plan;
}

inline Table ServingPlan::table() const {
  Table out;
  out.title = detail::cat({"Serving ", model, " on ", chips, " x ", machine});
  out.columns = {"quantity", "formula"};
  const auto row = [&](const char* name, const Cell& value) { out.add({name, value}); };
  const auto number = [&](const char* name, const Quantity& q, const char* unknown) {
    if (q.value() > 0 || unknown != nullptr) {
      row(name, q.value() > 0 ? detail::short_number(q.value()) : Cell(unknown));
    }
  };
  row("weights", weights.text());
  row("KV cache per sequence", kv_cache_per_sequence.text());
  row("memory", memory.text());
  row("chips that hold it", detail::short_number(chips_needed.value()));
  row("chips", detail::cat({chips}));
  number("sequences that fit", most_sequences, "0");
  number("batch above which math bounds", critical_batch, nullptr);
  number("batch for the latency target", target_batch, job.target > 0 ? "0" : nullptr);
  row("decode step", decode_step_time.text());
  row("  bound by", bound);
  row("  with links, all overlapping", decode.bound.text());
  row("  with links, nothing overlapping", decode.sum.text());
  row("sharding", sharding().name);
  row("prefill of one prompt", prefill_time.text());
  number("prefill servers for a decode server", prefill_servers, nullptr);
  row("tokens/s", detail::short_number(tokens_per_second.value()));
  row("tokens/s per chip", detail::short_number(tokens_per_second_per_chip.value()));
  number("USD per million tokens, decode", dollars_per_million_tokens, "-");
  number("USD per million tokens, with prefill", dollars_with_prefill, "-");
  number("speed-up by speculation", speculative_speed_up, nullptr);
  return out;
}

inline Table ServingPlan::causes() const {
  Table out;
  out.title = detail::cat({"One decode step and one prompt, ", sharding().name});
  out.columns = {"cause", "decode, formula", "prefill, formula"};
  const auto row = [&](const char* name, const Quantity& a, const Quantity& b) {
    out.add({name, a.text(), b.text()});
  };
  row("weights", decode.weights, prefill.weights);
  row("KV cache", decode.cache, prefill.cache);
  row("math", decode.math, prefill.math);
  row("links, bytes", decode.links, prefill.links);
  row("links, latency", decode.latency, prefill.latency);
  row("bound, all overlaps", decode.bound, prefill.bound);
  row("sum, nothing overlaps", decode.sum, prefill.sum);
  return out;
}

inline Table ServingPlan::choices() const {
  Table out;
  out.title = detail::cat({"Ways to share it over ", on.name});
  out.columns = {"sharding", "bound, formula", "sum, formula", "a chip holds", "why not"};
  for (const ServingSharding& s : shardings) {
    out.add({s.name, format_seconds(s.bound), format_seconds(s.sum), format_bytes(s.chip_bytes),
             s.why_not.empty() ? "chosen" : s.why_not});
  }
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
