#pragma once
// Which strategy is bound by math from which batch: FSDP alone, tensor parallelism alone, and both,
// each over all chips of a machine, against the tokens of a batch for each chip.
//   ratio = T_math / T_comms of the limit (step_cost.hpp); above 1 math is the longer
//   FSDP's grows as the batch, tensor's does not change, mixed about as the batch's root
// Source: "How To Scale Your Model", chapter 5, whose closed forms are in transformer_math.hpp.

#include <algorithm>  // max
#include <cmath>      // exp, log
#include <cstdint>    // std::int64_t
#include <string>     // names
#include <vector>     // curves

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/plan/layout_search.hpp"

namespace tinyscale {

struct StrategyCurve {
  std::string name;
  std::vector<double> ratio;  // T_math / T_comms
  double threshold = 0;       // tokens a chip from which it is 1; 0: at every batch, -1: at none
};

struct StrategyRegimes {
  std::string title;
  double planned = 0;  // the job's tokens for each chip
  std::vector<double> tokens_per_chip;
  List<StrategyCurve> curves;  // FSDP, tensor, mixed

  Table table() const;
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
};

namespace detail {

class StrategyPricer {
 public:
  explicit StrategyPricer(const TrainingInputs& in)
      : in_(in), step_(in.step()), orders_(machine_orders(in.machine)) {}

  double fsdp(double tokens) const { return ratio(tokens, 1, in_.machine.chips()); }
  double tensor(double tokens) const { return ratio(tokens, in_.machine.chips(), 1); }
  double mixed(double tokens) const {
    const std::int64_t chips = in_.machine.chips();
    double best = 0;
    for (const std::int64_t t : divisors_of(chips, in_.job.model.heads)) {
      if (t > 1 && t < chips && tensor_divides(in_.job.model, t)) {
        best = std::max(best, ratio(tokens, t, chips / t));
      }
    }
    return best;
  }

 private:
  double ratio(double tokens, std::int64_t tensor, std::int64_t data) const {
    Layout layout;
    layout.tensor = tensor;
    layout.data = data;
    layout.zero = data > 1 ? Zero::parameters : Zero::none;
    StepJob job = step_;
    job.batch = tokens * static_cast<double>(in_.machine.chips()) / job.context;
    double best = 0;
    for (const PlacedLinks& at : placed_links(orders_, layout)) {
      const StepLimit limit = StepPricer(job, *at.machine, layout, 1, typical_efficiency(),
                                         LayoutLinks(*at.machine, layout))
                                  .price()
                                  .limit;  // also of a tensor axis that no model divides over
      best = std::max(best, limit.math / std::max({limit.tensor, limit.data, limit.expert}));
    }
    return best;
  }

  const TrainingInputs& in_;
  const StepJob step_;
  const List<Machine> orders_;
};

// Where a ratio that grows with the batch is 1, between two batches.
inline double regime_threshold(const StrategyPricer& pricer,
                               double (StrategyPricer::*ratio)(double) const, double low,
                               double high) {
  if ((pricer.*ratio)(low) >= 1) {
    return 0;
  }
  if ((pricer.*ratio)(high) < 1) {
    return -1;
  }
  while (high / low > 1 + 1e-9) {
    const double middle = std::exp(0.5 * (std::log(low) + std::log(high)));
    ((pricer.*ratio)(middle) < 1 ? low : high) = middle;
  }
  return high;
}

}  // namespace detail

// From 1 to 100,000 tokens a chip, eight batches to a factor of ten.
inline StrategyRegimes strategy_regimes(const TrainingJob& job, const Machine& machine) {
  const detail::TrainingInputs in = detail::training_inputs(job, machine);
  if (machine.chips() < 2) {
    detail::fail({"strategy_regimes: ", machine.name, " is one chip, which sends nothing; 2 chips ",
                  "or more are right"});
  }
  StrategyRegimes out;
  out.title = detail::cat({job.model.name, " on ", machine.name});
  out.planned = in.batch / static_cast<double>(machine.chips());
  for (int i = 0; i <= 40; ++i) {
    out.tokens_per_chip.push_back(std::pow(10.0, i / 8.0));
  }
  const detail::StrategyPricer pricer(in);
  const struct {
    const char* name;
    double (detail::StrategyPricer::*ratio)(double) const;
  } strategies[] = {{"FSDP", &detail::StrategyPricer::fsdp},
                    {"tensor", &detail::StrategyPricer::tensor},
                    {"FSDP and tensor", &detail::StrategyPricer::mixed}};
  for (const auto& strategy : strategies) {
    StrategyCurve curve;
    curve.name = strategy.name;
    for (const double tokens : out.tokens_per_chip) {
      curve.ratio.push_back((pricer.*strategy.ratio)(tokens));
    }
    if (curve.ratio.back() > 0) {  // else no size of tensor parallelism divides the model
      curve.threshold = detail::regime_threshold(pricer, strategy.ratio, 1, 1e5);
      out.curves.push_back(curve);
    }
  }
  return out;
}

inline Table StrategyRegimes::table() const {
  Table out;
  out.title = "T_math / T_comms by formula, " + title;
  out.columns = {"tokens per chip"};
  for (const StrategyCurve& curve : curves) {
    out.columns.push_back(curve.name);
  }
  for (std::size_t i = 0; i < tokens_per_chip.size(); ++i) {
    std::vector<Cell> row = {detail::number_cell('g', 6, tokens_per_chip[i])};
    for (const StrategyCurve& curve : curves) {
      row.push_back(detail::number_cell('g', 4, curve.ratio[i]));
    }
    out.add(row);
  }
  return out;
}

}  // namespace tinyscale
