#pragma once
// Latency, throughput and cost against each other: plans over chips, batch and format, each under
// the sharding whose step is shortest; those that no other beats in latency and cost are the
// frontier.
//   cost of a token = N T_step / B chip-seconds
// Source: "How To Scale Your Model", chapters 7 and 8.

#include <algorithm>  // max
#include <cstdint>    // std::int64_t
#include <ostream>    // operator<<
#include <string>     // names
#include <vector>     // lists

#include "tinyscale/base/order.hpp"
#include "tinyscale/plan/serving.hpp"
#include "tinyscale/plan/serving_limits.hpp"

namespace tinyscale {

struct FrontierOptions {
  std::vector<std::int64_t> chips;    // empty: the slices up to the machine
  std::vector<std::int64_t> batches;  // empty: powers of two that fit
  List<DType> formats;                // of weights; empty: the job's
  bool overlap = true;                // links hidden behind the chip's work, else after it
};

struct FrontierPoint {
  std::int64_t chips = 0, batch = 0;
  DType format = DType::bf16;
  std::string sharding;
  double step_seconds = 0, tokens_per_second_per_chip = 0;
  double dollars_per_million_tokens = 0;  // 0: no price known
  bool best = false;                      // on the frontier
};

struct ServingFrontier {
  std::string title;
  List<FrontierPoint> points;  // all that fit, the shortest step first

  List<FrontierPoint> best() const;
  Table table() const;  // the frontier
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
};

namespace detail {

inline void add_points(const ServingJob& job, const Machine& on, const FrontierOptions& options,
                       ServingFrontier& to) {
  std::vector<std::int64_t> batches = options.batches;
  const ServingFit room = fit_serving(job, on);
  for (std::int64_t b = 1; options.batches.empty() && b <= 65536; b *= 2) {
    batches.push_back(b);
  }
  for (const std::int64_t batch : batches) {
    check_job("serving_frontier", "a batch", static_cast<double>(batch), 1, 1e9);
    if (static_cast<double>(batch) > room.most_sequences.value()) {
      continue;
    }
    ServingJob one = job;
    one.batch = batch;
    double ServingSharding::*const time =
        options.overlap ? &ServingSharding::bound : &ServingSharding::sum;
    const ServingSharding best = shardings_of(one, on, time)[0];
    FrontierPoint point;
    point.chips = on.chips();
    point.batch = batch;
    point.format = job.format;
    point.sharding = best.name;
    point.step_seconds = best.*time;
    const double tokens = static_cast<double>(batch) / point.step_seconds;
    point.tokens_per_second_per_chip = tokens / static_cast<double>(point.chips);
    point.dollars_per_million_tokens =
        1e6 * on.dollars_per_hour / 3600 / point.tokens_per_second_per_chip;
    to.points.push_back(point);
  }
}

}  // namespace detail

// The job's model on slices of the machine; job.batch is not used. Throws when nothing fits.
inline ServingFrontier serving_frontier(const ServingJob& job, const Machine& machine,
                                        const FrontierOptions& options = {}) {
  detail::check_serving(job, machine, "serving_frontier");
  std::vector<std::int64_t> sizes = options.chips;
  for (std::int64_t n = 1; options.chips.empty() && n < machine.chips(); n *= 2) {
    if (n != 2 || machine.chip.kind != "tpu") {
      sizes.push_back(n);
    }
  }
  if (options.chips.empty()) {
    sizes.push_back(machine.chips());
  }
  ServingFrontier found;
  for (const std::int64_t n : sizes) {
    detail::check_job("serving_frontier", "chips", static_cast<double>(n), 1, 1e9);
    const Machine on = detail::slice_machine(machine, n);
    if (on.chips() != n) {
      detail::fail({"serving_frontier: ", n, " chips make no slice; a power of two or ",
                    machine.chips(), ", the machine's own, is right"});
    }
    ServingJob one = job;
    one.batch = 1;
    for (std::size_t f = 0; f < (options.formats.empty() ? 1 : options.formats.size()); ++f) {
      one.format = options.formats.empty() ? job.format : options.formats[f];
      detail::add_points(one, on, options, found);
    }
  }
  if (found.points.empty()) {
    const ServingFit room = fit_serving(job, machine);
    detail::fail({"serving_frontier: nothing fits: ", job.model.name, " has ", room.weights.text(),
                  " of weights in ", name_of(job.format), " and ", machine.name, " holds ",
                  room.capacity.text(), "; more chips, a narrower format or a smaller batch is ",
                  "right"});
  }
  found.title = detail::cat({"Serving ", job.model.name, " on up to ", machine.chips(), " x ",
                             machine.chip.name, ": latency against cost"});
  std::vector<double> keys;
  for (const FrontierPoint& p : found.points) {
    keys.push_back(p.step_seconds);
  }
  List<FrontierPoint> sorted;
  double most = 0;  // tokens a second and chip of those with a shorter step
  for (const std::size_t i : detail::stable_order(keys)) {
    const FrontierPoint& next = found.points[i];
    const bool best = next.tokens_per_second_per_chip > most;
    for (std::size_t j = best ? sorted.size() : 0;
         j > 0 && !(sorted[j - 1].step_seconds < next.step_seconds); --j) {
      sorted[j - 1].best = false;  // as long a step at a higher price
    }
    sorted.push_back(next);
    sorted.back().best = best;
    most = std::max(most, next.tokens_per_second_per_chip);
  }
  found.points = sorted;
  return found;
}

inline List<FrontierPoint> ServingFrontier::best() const {
  List<FrontierPoint> out;
  for (const FrontierPoint& p : points) {
    if (p.best) {
      out.push_back(p);
    }
  }
  return out;
}

inline Table ServingFrontier::table() const {
  Table out;
  out.title = title;
  out.columns = {"chips",
                 "batch",
                 "weights",
                 "sharding",
                 "ms a token, formula",
                 "tokens/s/chip",
                 "USD per million tokens"};
  for (const FrontierPoint& p : best()) {
    out.add({detail::cat({p.chips}), detail::cat({p.batch}), name_of(p.format), p.sharding,
             detail::number_cell('g', 4, 1e3 * p.step_seconds),
             detail::number_cell('g', 4, p.tokens_per_second_per_chip),
             p.dollars_per_million_tokens > 0
                 ? detail::number_cell('g', 4, p.dollars_per_million_tokens)
                 : "-"});
  }
  return out;
}

inline std::ostream& operator<<(std::ostream& out, const ServingFrontier& frontier) {
  return out << frontier.table();
}

}  // namespace tinyscale
