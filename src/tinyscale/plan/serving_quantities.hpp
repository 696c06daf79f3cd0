#pragma once
// What serving a model takes: memory, chips, the time of a decode step, the price of its tokens.
//   T_decode = B KV / (N W) + max(2 B P / (N C), P_bytes / (N W))
// B sequences of one step, KV the cache of one, N chips, W memory bandwidth, C peak: a lower bound
// that no sharding beats. Beside it stand the causes of the sharding chosen, collectives included.
// Source: "How To Scale Your Model", chapters 7 and 8.

#include <algorithm>  // max
#include <cmath>      // floor
#include <cstdint>    // std::int64_t
#include <string>     // text
#include <vector>     // notes

#include "tinyscale/hardware/machine_of_chips.hpp"
#include "tinyscale/hardware/pod.hpp"
#include "tinyscale/measure/quantity.hpp"
#include "tinyscale/plan/serving_layout.hpp"

namespace tinyscale {

// One step or one prompt by cause, under the chosen sharding.
struct ServingCauses {
  Quantity weights, cache, math, links, latency;
  Quantity bound, sum;  // everything overlaps; nothing does
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

  ServingJob job;
  Machine on;                             // the slice it is planned on
  ServingCauses decode, prefill;          // by cause; prefill at peak, of one prompt alone
  Quantity critical_batch;                // sequences above which math bounds the matmuls
  Quantity most_sequences, target_batch;  // that fit; that keep job.target (0: none does)
  Quantity cache_tokens;                  // tokens that the cache holds beside the weights
  Quantity prefill_tensor_limit;          // ways before prefill's links limit: F / (C / W)
  Quantity prefill_servers;               // for each decode server, when they are kept apart
  Quantity speculative_step_time, speculative_speed_up;  // with job.speculation
  List<ServingSharding> shardings;                       // the chosen one first

  const ServingSharding& sharding() const {
    if (shardings.empty()) {
      detail::fail({"ServingPlan: an empty plan; plan_serving(job, machine) makes one"});
    }
    return shardings[0];
  }
  const ServingLaw& law() const { return sharding().law; }
  Table table() const;
  Table causes() const;   // decode and prefill by cause
  Table choices() const;  // shardings, with why not
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
};

namespace detail {

// The next size that is made: powers of two; a TPU slice of two chips is not offered.
inline std::int64_t slice_of(const Chip& chip, double needed) {
  check_job("plan_serving", "the number of chips needed", needed, 0, 1e12);
  std::int64_t chips = 1;
  while (static_cast<double>(chips) < needed) {
    chips *= 2;
  }
  return chips == 2 && chip.kind == "tpu" ? 4 : chips;
}

// Of a dimension of a slice: as fast as the machine's own in its place, counted from the innermost,
// which a user may have set; as the chip's where the machine has none there.
inline Links links_of_slice(const Machine& on, const Machine& slice, int d) {
  const Chip& chip = on.chip;
  const int place = slice.dims.size() - d;
  const bool inner = place <= inner_dims(chip, slice.dims);
  Links links = inner ? inner_links(chip, slice.dims, d) : outer_links(slice, d);
  links.latency = on.links.back().latency;
  const int first = on.dims.size() - inner_dims(chip, on.dims);  // the slowest inside a domain
  const int own =
      inner ? std::max(on.dims.size() - place, first) : std::min(on.dims.size() - place, first - 1);
  if (own < 0 || !(on.links[static_cast<std::size_t>(own)].bandwidth.one_way() > 0)) {
    return links;
  }
  const Links& given = on.links[static_cast<std::size_t>(own)];
  const Links made = inner ? inner_links(chip, on.dims, own) : outer_links(on, own);
  links.latency = given.latency;
  links.bandwidth = given.bandwidth;
  links.kind = given.kind == made.kind ? links.kind : given.kind;
  const double share = given.uplink.one_way() / static_cast<double>(chips_behind(on, own));
  links.uplink = Bandwidth::one_way(share * static_cast<double>(chips_behind(slice, d)));
  return links;
}

// A slice of that many of the machine's chips: a power of two as square as it can be, or whole
// domains of a switch; else what is offered, beyond a pod several slices, or no dimensions.
inline Machine slice_machine(const Machine& on, std::int64_t chips) {
  if (chips == on.chips()) {
    return on;
  }
  const Chip& chip = on.chip;
  const bool torus = is_torus2d(chip) || is_torus3d(chip);
  Machine slice = on;
  if (torus && (chips > chip.domain_chips || !is_power_of_two(chips))) {
    slice.dims = offered_dims(chip, chips);
  } else {
    std::vector<std::int64_t> dims(torus ? (is_torus3d(chip) ? 3 : 2) : 1, 1);
    std::int64_t left = chips;
    const std::int64_t most = torus ? chips : std::max(1, chip.domain_chips);
    for (std::size_t d = 0; left > 1 && 2 * dims[d] <= most; d = (d + 1) % dims.size(), left /= 2) {
      dims[d] *= 2;
    }
    if (left > 1) {
      dims.insert(dims.begin(), left);
    }
    slice.dims = Shape(dims);
  }
  slice.name = machine_name(chip, slice.dims);
  slice.links.clear();
  for (int d = 0; d < slice.dims.size(); ++d) {
    slice.links.push_back(links_of_slice(on, slice, d));
  }
  return slice;
}

inline void check_pod(const ServingJob& job, const Chip& chip, double needed) {
  if (!(is_torus2d(chip) || is_torus3d(chip)) || needed <= chip.domain_chips) {
    return;
  }
  const double pod = chip.domain_chips * chip.memory_bytes;
  const double weights = weight_bytes(job);
  const double length = static_cast<double>(job.prompt + job.output);
  const double fit = std::floor((pod - weights) / (serving_kv(job) * last_context(job)));
  const std::string sequences =
      weights > pod ? cat({"the weights alone are ", format_bytes(weights)})
                    : cat({"with ", length, " tokens each ", fit, " sequences fit"});
  fail({"plan_serving: ", job.model.name, " needs ", needed, " ", chip.name, "; a pod has ",
        chip.domain_chips, ", which hold ", format_bytes(pod), ": ", sequences,
        ", a narrower format or a chip with more memory is right"});
}

inline void plan_memory(const Machine& on, ServingPlan& plan) {
  const ServingJob& job = plan.job;
  const ModelConfig& m = job.model;
  const DType cache = job.cache.or_else(job.format);
  const Quantity parameters(static_cast<double>(m.parameters()), "", "P", "parameters");
  const Quantity bytes(bytes_of(job.format), "B", "b", cat({"of a weight, ", name_of(job.format)}));
  const Quantity layers(static_cast<double>(m.layers), "", "L", "layers");
  const Quantity width(static_cast<double>(m.cached_numbers()), "", "KV",
                       "numbers kept for a token and layer");
  const Quantity kept(bytes_of(cache), "B/token", "b_kv", name_of(cache));
  const Quantity length(last_context(job), "token", "S", "prompt + output");
  const Quantity batch(static_cast<double>(job.batch), "", "batch", "sequences");
  const Quantity capacity(on.chip.memory_bytes, "B", "M_chip", on.chip.name);
  plan.weights = named("P_bytes", parameters * bytes);
  plan.kv_cache_per_sequence = named("KV_sequence", layers * width * kept * length);
  plan.memory = named("memory", plan.weights + batch * plan.kv_cache_per_sequence);
  plan.chips_needed = named("chips needed", ceil(plan.memory / capacity));
  plan.chips = on.chips();
  plan.on = on;
  if (static_cast<double>(plan.chips) < plan.chips_needed.value()) {
    plan.chips = slice_of(on.chip, plan.chips_needed.value());
    check_pod(job, on.chip, plan.chips_needed.value());
    const bool torus = is_torus2d(on.chip) || is_torus3d(on.chip);
    if (torus && on.chip.domain_chips > 0 && plan.chips > on.chip.domain_chips) {
      plan.chips = on.chip.domain_chips;  // the whole pod: no power of two
    }
    plan.on = slice_machine(on, plan.chips);
    plan.notes.push_back(
        cat({"chips: ", on.name, " holds ",
             format_bytes(capacity.value() * static_cast<double>(on.chips())), " of the ",
             format_bytes(plan.memory.value()), " needed; planned on ", plan.chips, " chips"}));
  }
  if (m.position == Position::learned && job.prompt + job.output > m.context) {
    plan.notes.push_back(cat({"positions: ", m.name, " has learned ", m.context, "; counted with ",
                              job.prompt + job.output}));
  }
  const Quantity chips(static_cast<double>(plan.chips), "", "N", "chips");
  const Quantity left = named("M_left", chips * capacity - plan.weights, "beside the weights");
  plan.most_sequences = named("most sequences", floor(left / plan.kv_cache_per_sequence));
  plan.cache_tokens = named("tokens cached", floor(left / (layers * width * kept)));
}

// Weights that a step of so many tokens reads: of a mixture, the experts that they visit.
inline Quantity weights_read(const ServingJob& job, const Chip& chip, const Quantity& weights,
                             std::int64_t tokens) {
  if (job.model.experts == 0) {
    return weights;
  }
  const Quantity share(even_law(job, chip, 1).touched(static_cast<double>(tokens)), "", "touched",
                       "share of the experts, 1 - (1 - k / E)^B");
  const Quantity routed(routed_bytes(job), "B", "P_experts", "bytes of routed experts");
  return named("P_read", weights - routed + share * routed);
}

inline void plan_times(ServingPlan& plan) {
  const ServingJob& job = plan.job;
  const Chip& chip = plan.on.chip;
  const double peak = chip.peak(job.compute);
  const double mean = mean_context(job);
  const Quantity chips(static_cast<double>(plan.chips), "", "N", "chips");
  const Quantity batch(static_cast<double>(job.batch), "token", "B", "one token a sequence");
  const Quantity cache(serving_kv(job) * mean, "B/token", "KV",
                       cat({"cache at the mean length, ", mean}));
  const Quantity bandwidth(chip.memory_bandwidth, "B/s", "W", cat({"memory of ", chip.name}));
  const Quantity rate(peak, "FLOP/s", "C", cat({name_of(job.compute), " peak"}));
  const Quantity active(static_cast<double>(job.model.active_parameters()), "", "P_used",
                        "parameters that a token uses");
  const Quantity two(2, "FLOP/token");
  const Quantity math = named("T_math", two * batch * active / (chips * rate));
  const Quantity weights =
      named("T_weights", weights_read(job, chip, plan.weights, job.batch) / (chips * bandwidth));
  const Quantity kv = named("T_kv", batch * cache / (chips * bandwidth));
  plan.decode_step_time = named("T_decode", kv + max(math, weights), "lower bound");
  plan.bound = math.value() > weights.value() + kv.value() ? "math" : "memory";
  plan.tokens_per_second = named("tokens/s", batch / plan.decode_step_time);
  plan.tokens_per_second_per_chip = named("tokens/s/chip", plan.tokens_per_second / chips);
  const Quantity prompt(static_cast<double>(job.prompt), "token", "prompt");
  const Quantity mfu(job.prefill_mfu, "", "MFU", "of prefill, assumed");
  plan.prefill_time = named("T_prefill", two * active * prompt / (chips * rate * mfu));
  plan.critical_batch = named("B_critical", plan.weights * rate / (two * active * bandwidth),
                              "T_math = T_weights, all experts read");
  plan.notes.push_back(cat({"prefill: at an MFU of ", format_percent(job.prefill_mfu),
                            ", assumed; the decode step is a lower bound"}));
}

inline void plan_price(ServingPlan& plan) {
  const ServingJob& job = plan.job;
  const Quantity price = known_price(plan.on);
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
    const Quantity batch(static_cast<double>(job.batch), "token", "B");
    plan.prefill_servers = named("prefill servers for each decode server",
                                 plan.prefill_time * batch / (plan.decode_step_time * output));
  }
  if (!(plan.on.dollars_per_hour > 0)) {
    plan.notes.push_back(
        cat({"price: not known for ", plan.on.chip.name, "; set the machine's dollars_per_hour"}));
  }
}

// Y < F / (B W / W_link): beyond it, moving activations takes longer than reading weights.
inline void plan_links(ServingPlan& plan) {
  const ModelConfig& m = plan.job.model;
  const std::int64_t hidden = m.experts > 0 ? m.expert_hidden * m.top_k : m.hidden;
  const Chip& chip = plan.on.chip;
  const Links& inner = plan.on.links.back();
  const std::int64_t beside = plan.on.dims[-1] > 1 ? plan.on.dims[-1] : chip.domain_chips;
  const double link = inner.kind == AxisKind::switched ? inner.bandwidth.one_way()
                      : inner.kind == AxisKind::full
                          ? inner.bandwidth.one_way() * static_cast<double>(beside - 1)
                          : inner.bandwidth.both_ways();
  if (!(link > 0)) {
    return;
  }
  const Quantity f(static_cast<double>(hidden), "", "F", "hidden width");
  const Quantity b(static_cast<double>(plan.job.batch), "", "B", "sequences");
  const Quantity ratio(chip.memory_bandwidth / link, "", "W/W_link", "memory over link");
  plan.tensor_limit = named("tensor limit", f / (b * ratio), "one ring, both ways");
  if (plan.chips > 1 && static_cast<double>(plan.chips) > plan.tensor_limit.value()) {
    plan.notes.push_back(
        plan.tensor_limit.value() < 2
            ? cat({"links: one ring feeds no tensor parallelism at ", plan.job.batch, " sequences"})
            : cat({"links: ", plan.chips, " chips are more than the ",
                   short_number(plan.tensor_limit.value()),
                   " ways of tensor parallelism that one ring feeds"}));
  }
  const ChipGroup all = group_of(plan.on, (1U << plan.on.dims.size()) - 1);
  if (all.ways > 1 && all.bandwidth > 0) {
    const Quantity rate(chip.peak(plan.job.compute), "FLOP/s", "C", name_of(plan.job.compute));
    const Quantity sent(all.bandwidth, "B/s", "W_all", "all links of a chip");
    const Quantity byte(1, "FLOP/B", "4 B D F / 4 B D", "FLOPs over bytes of bf16, but F");
    plan.prefill_tensor_limit = named("prefill tensor limit", f * byte * sent / rate);
    if (static_cast<double>(plan.chips) > plan.prefill_tensor_limit.value()) {
      const double most = plan.prefill_tensor_limit.value();
      plan.notes.push_back(
          most < 2 ? "prefill: its links limit any tensor parallelism; shard the sequence"
                   : cat({"prefill: above ", short_number(most),
                          " ways of tensor parallelism its links limit; shard the sequence"}));
    }
  }
}

// Products in a format that the chip has no unit for run at the next wider one's rate.
inline void plan_formats(ServingPlan& plan) {
  const Chip& chip = plan.on.chip;
  const DType wanted = plan.job.compute;
  const bool fp8 = wanted == DType::fp8_e4m3 || wanted == DType::fp8_e5m2;
  const bool none =
      fp8 ? !(chip.flops_fp8 > 0)
          : (wanted == DType::int8 || wanted == DType::int4) && !(chip.flops_int8 > 0);
  if (none || wanted == DType::int4) {
    plan.notes.push_back(
        cat({"compute: ", chip.name, " has no rate for ", name_of(wanted), "; products run at its ",
             wanted == DType::int4 && !none ? "int8" : "bf16", " rate, ",
             format_si(chip.peak(wanted), "FLOP/s")}));
  }
}

}  // namespace detail
}  // namespace tinyscale
