#pragma once
// What fits: a model beside its cache on so many chips, the largest one, and beam search, whose
// beams share the cache of their prefix or copy it.
//   shared: (S + n G) KV bytes for a prefix of S tokens, n beams of G tokens; copied: n (S + G) KV
// Decode of G steps reads weights and cache once a step; the mean step has G / 2 tokens of a beam.
// Source: "How To Scale Your Model", chapters 7 and 8.

#include <cmath>    // floor
#include <cstdint>  // std::int64_t
#include <ostream>  // operator<<
#include <string>   // text

#include "tinyscale/plan/serving_quantities.hpp"

namespace tinyscale {

struct ServingFit {
  bool fits = false;
  std::string model, machine;
  Quantity weights, cache, memory, capacity, left;  // left: capacity - weights
  Quantity most_tokens, most_sequences;             // of cache that fit; of job's length
  Quantity largest_model;                           // parameters that fit beside the job's cache

  Table table() const;
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
};

// Does the job fit into the machine as it is, and what would?
inline ServingFit fit_serving(const ServingJob& job, const Machine& machine) {
  detail::check_serving(job, machine, "fit_serving");
  ServingFit fit;
  fit.model = job.model.name;
  fit.machine = machine.name;
  const Quantity chips(static_cast<double>(machine.chips()), "", "N", "chips");
  const Quantity chip(machine.chip.memory_bytes, "B", "M_chip", machine.chip.name);
  const Quantity parameters(static_cast<double>(job.model.parameters()), "", "P", "parameters");
  const Quantity bytes(bytes_of(job.format), "B", "b", name_of(job.format));
  const Quantity kept(detail::serving_kv(job), "B/token", "KV_token", "all layers");
  const Quantity length(detail::last_context(job), "token", "S");
  const Quantity batch(static_cast<double>(job.batch), "", "batch", "sequences");
  fit.weights = named("P_bytes", parameters * bytes);
  fit.cache = named("cache", batch * length * kept);
  fit.memory = named("memory", fit.weights + fit.cache);
  fit.capacity = named("capacity", chips * chip);
  fit.left = named("left", fit.capacity - fit.weights);
  fit.most_tokens = named("most tokens", floor(fit.left / kept));
  fit.most_sequences = named("most sequences", floor(fit.left / (length * kept)));
  fit.largest_model = named("largest model", floor((fit.capacity - fit.cache) / bytes));
  fit.fits = fit.memory.value() <= fit.capacity.value();
  return fit;
}

inline Table ServingFit::table() const {
  Table out;
  out.title = detail::cat({model, " on ", machine, fits ? ": fits" : ": does not fit"});
  out.columns = {"quantity", "formula"};
  const auto positive = [](const Quantity& q) {
    return q.value() > 0 ? format_count(q.value()) : "none";
  };
  out.add({"weights", weights.text()});
  out.add({"KV cache", cache.text()});
  out.add({"memory", memory.text()});
  out.add({"capacity", capacity.text()});
  out.add({"tokens of cache that fit", positive(most_tokens)});
  out.add({"sequences that fit", positive(most_sequences)});
  out.add({"largest model, parameters", positive(largest_model)});
  return out;
}

inline std::ostream& operator<<(std::ostream& out, const ServingFit& fit) {
  return out << fit.table();
}

// Chips of this kind that hold the job, before rounding to a slice that is made.
inline std::int64_t chips_that_hold(const ServingJob& job, const Chip& chip) {
  const char* const who = "chips_that_hold";
  job.model.validate();
  detail::check_job(who, "batch", static_cast<double>(job.batch), 1, 1e9);
  detail::check_job(who, "prompt", static_cast<double>(job.prompt), 0, 1e9);
  detail::check_job(who, "output", static_cast<double>(job.output), 0, 1e9);
  detail::check_job(who, "the chip's memory_bytes", chip.memory_bytes, 1, 1e18);
  const double bytes = detail::weight_bytes(job) + static_cast<double>(job.batch) *
                                                       detail::last_context(job) *
                                                       detail::serving_kv(job);
  const double chips = std::ceil(bytes / chip.memory_bytes);
  detail::check_job(who, "the number of chips", chips, 0, 1e18);
  return static_cast<std::int64_t>(chips);
}

// Beam search of one prompt: job.prompt shared tokens, job.output steps, `beams` beams.
struct BeamPlan {
  std::int64_t beams = 0, largest_beams = 0;  // largest: that fit with a shared prefix
  bool fits_shared = false, fits_copied = false;
  Quantity capacity, prefill_time, weights_time;      // a prompt at peak; weights of one step
  Quantity shared_cache, shared_memory, shared_time;  // bytes at the end; seconds of all steps
  Quantity copied_cache, copied_memory, copied_time;

  Table table() const;
};

inline BeamPlan plan_beam_search(const ServingJob& job, const Machine& machine,
                                 std::int64_t beams) {
  detail::check_serving(job, machine, "plan_beam_search");
  detail::check_job("plan_beam_search", "beams", static_cast<double>(beams), 1, 1e9);
  detail::check_job("plan_beam_search", "output", static_cast<double>(job.output), 1, 1e9);
  if (job.model.window > 0 && job.prompt + job.output > job.model.window) {
    detail::fail({"plan_beam_search: ", job.model.name, " has layers that see the last ",
                  job.model.window, " tokens, the job ", job.prompt + job.output,
                  "; up to as many, or a model without windows, are right: beams that drop what "
                  "they share are not planned"});
  }
  const Chip& chip = machine.chip;
  BeamPlan plan;
  plan.beams = beams;
  const Quantity chips(static_cast<double>(machine.chips()), "", "N", "chips");
  const Quantity memory(chip.memory_bytes, "B", "M_chip", chip.name);
  const Quantity bandwidth(chip.memory_bandwidth, "B/s", "W", chip.name);
  const Quantity rate(chip.peak(job.compute), "FLOP/s", "C", name_of(job.compute));
  const Quantity weights(detail::weight_bytes(job), "B", "P_bytes");
  const Quantity active(static_cast<double>(job.model.active_parameters()), "", "P_used");
  const Quantity kept(detail::serving_kv(job), "B/token", "KV_token");
  const Quantity prefix(static_cast<double>(job.prompt), "token", "S");
  const Quantity steps(static_cast<double>(job.output), "", "G", "decode steps");
  const Quantity own(static_cast<double>(job.output), "token", "G_tokens", "of a beam at the end");
  const Quantity n(static_cast<double>(beams), "", "n", "beams"), two(2);
  plan.capacity = named("capacity", chips * memory);
  plan.prefill_time =
      named("T_prefill", Quantity(2, "FLOP/token") * active * prefix / (chips * rate), "at peak");
  plan.weights_time =
      named("T_weights", detail::weights_read(job, chip, weights, beams) / (chips * bandwidth),
            "one step");
  const Quantity math =
      named("T_math", Quantity(2, "FLOP") * active * n / (chips * rate), "one step");
  const Quantity matmuls = named("T_matmul", max(math, plan.weights_time));
  plan.shared_cache = named("shared cache", (prefix + n * own) * kept);
  plan.copied_cache = named("copied cache", n * (prefix + own) * kept);
  plan.shared_memory = named("shared memory", weights + plan.shared_cache);
  plan.copied_memory = named("copied memory", weights + plan.copied_cache);
  const Quantity all = chips * bandwidth;
  plan.shared_time =
      named("shared time", steps * (matmuls + (prefix + n * own / two) * kept / all));
  plan.copied_time =
      named("copied time", steps * (matmuls + n * (prefix + own / two) * kept / all));
  plan.fits_shared = plan.shared_memory.value() <= plan.capacity.value();
  plan.fits_copied = plan.copied_memory.value() <= plan.capacity.value();
  const double left = plan.capacity.value() - weights.value() - (prefix * kept).value();
  plan.largest_beams = static_cast<std::int64_t>(std::fmax(0, left / (own * kept).value()));
  return plan;
}

inline Table BeamPlan::table() const {
  Table out;
  out.title = detail::cat({"Beam search with ", beams, " beams"});
  out.columns = {"quantity", "prefix shared, formula", "prefix copied, formula"};
  out.add({"KV cache at the end", shared_cache.text(), copied_cache.text()});
  out.add({"memory", shared_memory.text(), copied_memory.text()});
  out.add({detail::cat({"fits into ", capacity.text()}), fits_shared ? "yes" : "no",
           fits_copied ? "yes" : "no"});
  out.add({"all decode steps", shared_time.text(), copied_time.text()});
  out.add({"prefill", prefill_time.text(), prefill_time.text()});
  out.add({"largest number of beams", detail::cat({largest_beams}), "-"});
  return out;
}

inline std::ostream& operator<<(std::ostream& out, const BeamPlan& plan) {
  return out << plan.table();
}

}  // namespace tinyscale
