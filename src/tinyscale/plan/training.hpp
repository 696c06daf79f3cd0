#pragma once
// What a training run costs on a machine: the fastest layout's step, memory, days and dollars, each
// a quantity that explains itself.
//   days = 6 P tokens / (N C MFU), MFU = what well-run jobs reach, at most the layout's own limit
// Source: "How To Scale Your Model", chapters 5 and 6.

#include <algorithm>  // min
#include <ostream>    // operator<<
#include <string>     // text
#include <vector>     // layouts

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/measure/quantity.hpp"
#include "tinyscale/plan/training_layout.hpp"

namespace tinyscale {

struct TrainingPlan {
  std::string model, machine;
  TrainingLayout best;
  List<TrainingLayout> layouts;  // those that fit, fastest first
  Quantity tokens, batch, compute_time, fsdp_time, tensor_time, communication_time, step_time;
  Quantity weights_memory, optimizer_memory, activation_memory, memory;  // bytes a chip
  Quantity mfu, typical_mfu;            // 6 N tokens / (step chips peak); at the limit, assumed
  Quantity tokens_per_chip, threshold;  // bound by math above the threshold
  Quantity limit_days, days, dollars, energy;  // days and dollars at the typical MFU; energy in Wh
  std::vector<std::string> notes;              // assumptions that were made

  Table table() const;
  Table layout_table() const;
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
};

namespace detail {

// The letters of the formulas, as named quantities.
struct TrainingLetters {
  Quantity P, P_used, P_matmul, L, D, HK, F, T, B, b, b_token, N, X, Y, C, W_X, W_Y;
};

inline Quantity letter(const std::string& name, double value, const std::string& unit,
                       const std::string& source) {
  return Quantity(value, unit, name, source);
}

inline TrainingLetters training_letters(const TrainingInputs& in, const TrainingLayout& best) {
  const ModelConfig& m = in.job.model;
  const Machine& on = in.machine;
  const std::int64_t hidden = m.experts > 0 ? m.expert_hidden * m.top_k : m.hidden;
  const double bytes = bytes_of(in.job.format);
  const auto count = [](const std::string& name, std::int64_t value, const std::string& source) {
    return letter(name, static_cast<double>(value), "", source);
  };
  TrainingLetters q;
  q.P = count("P", m.parameters(), cat({"parameters of ", m.name}));
  q.P_used = count("P_used", m.active_parameters(), "parameters that a token uses");
  q.P_matmul = letter("P_matmul", matmul_parameters(m), "", "of those, the ones that multiply");
  q.L = count("L", m.layers, "layers");
  q.D = count("D", m.width, "width");
  q.HK = count("HK", m.query_width(), "heads x head size");
  q.F = count("F", hidden, "hidden width that a token uses");
  q.T = letter("T", in.context, "", "context");
  q.B = letter("B", in.batch, "token", "batch");
  q.b = letter("b", bytes, "B", cat({"bytes of a weight, ", name_of(in.job.format)}));
  q.b_token = letter("b_act", bytes, "B/token", "bytes of an activation");
  q.N = count("N", on.chips(), on.name);
  q.X = count("X", best.layout.data, "data (FSDP)");
  q.Y = count("Y", best.layout.tensor, "tensor");
  q.C = letter("C", on.chip.peak(in.job.format), "FLOP/s", cat({"peak of ", on.chip.name}));
  const auto axes = [](const char* name, int n) {
    return n > 0 ? cat({"out of a chip, ", name, " = ", n}) : std::string("out of a chip");
  };
  q.W_X = letter("W_X", best.data_bandwidth, "B/s", axes("M_X", best.data_axes));
  q.W_Y = letter("W_Y", best.tensor_bandwidth, "B/s", axes("M_Y", best.tensor_axes));
  return q;
}

inline void plan_times(const TrainingLetters& q, TrainingPlan& plan) {
  const Quantity six(6, "FLOP/token"), none(0, "s");
  plan.compute_time =
      named("T_math", (six * q.P_matmul + six * q.L * q.T * q.HK) * q.B / (q.N * q.C),
            "6 P and causal attention");
  plan.fsdp_time =
      named("T_fsdp", plan.best.layout.data > 1 ? 3.0 * q.b * q.P / (q.Y * q.W_X) : none);
  plan.tensor_time =
      named("T_tensor",
            plan.best.layout.tensor > 1 ? 8.0 * q.b_token * q.B * q.D * q.L / (q.X * q.W_Y) : none);
  plan.communication_time =
      plan.best.shared_links
          ? named("T_comms", plan.fsdp_time + plan.tensor_time, "one after the other on one link")
          : named("T_comms", max(plan.fsdp_time, plan.tensor_time), "at once, on different links");
  plan.step_time = named("T_step", max(plan.compute_time, plan.communication_time),
                         "lower bound, perfect overlap");
  plan.mfu = named("MFU_limit", six * q.P_used * q.B / (q.N * q.C * plan.step_time));
  plan.tokens_per_chip = named("B/N", q.B / q.N);
  const Quantity two(2, "FLOP/token");
  const Quantity alpha_x = named("alpha_X", q.C * q.b / (two * q.W_X));
  const Quantity alpha_y = named("alpha_Y", q.C * q.b_token / (two * q.W_Y));
  if (plan.best.layout.data == 1) {
    plan.threshold = Quantity(0, "token", "B/N at the knee", "no FSDP: any batch");
  } else if (plan.best.layout.tensor == 1) {
    plan.threshold = named("B/N at the knee", alpha_x, "FSDP alone");
  } else {
    plan.threshold = named("B/N at the knee", alpha_x * alpha_y / q.F, "FSDP and tensor, X best");
  }
}

inline void plan_memory(const TrainingInputs& in, const TrainingLetters& q, TrainingPlan& plan) {
  const StateParts parts = state_parts(in.job.state);
  const auto each = [&](const char* name, double bytes) {
    return named(name, Quantity(bytes, "B") * q.P / q.N);
  };
  plan.weights_memory = each("M_weights", parts.weights);
  plan.optimizer_memory = each("M_optimizer", parts.optimizer() + parts.gradients);
  const Quantity kept(2 * in.job.checkpoints, "B/token");
  plan.activation_memory = named("M_activations", kept * q.B * q.D * q.L / q.N,
                                 cat({in.job.checkpoints, " tensors of width D a layer, bf16"}));
  plan.memory =
      named("M_chip", plan.weights_memory + plan.optimizer_memory + plan.activation_memory);
}

inline void plan_costs(const TrainingInputs& in, const TrainingLetters& q, TrainingPlan& plan) {
  const Quantity six(6, "FLOP/token"), day(86400, "s/day"), hours(24, "h/day");
  const double typical = std::min(in.job.typical_mfu, plan.mfu.value());
  plan.typical_mfu = Quantity(typical, "", "MFU", "typical: 6 N FLOPs of the peak, assumed");
  plan.days = named("days", six * q.P_used * plan.tokens / (q.N * q.C * plan.typical_mfu) / day);
  plan.limit_days = named("days at the limit", plan.tokens / q.B * plan.step_time / day);
  const Machine& on = in.machine;
  const Quantity price(on.dollars_per_hour, "USD/h", "price", on.chip.price_source);
  plan.dollars = named("dollars", q.N * price * plan.days * hours);
  const Quantity watts(on.chip.watts, "W", "power", "of one chip, without hosts and cooling");
  plan.energy = named("energy", q.N * watts * plan.days * hours);
  if (!(on.dollars_per_hour > 0)) {
    plan.notes.push_back(
        cat({"price: not known for ", on.chip.name, "; set the machine's dollars_per_hour"}));
  }
  if (!(on.chip.watts > 0)) {
    plan.notes.push_back(cat({"energy: the power of ", on.chip.name, " is not published"}));
  }
  plan.notes.push_back(cat({"MFU: 6 N FLOPs over the ", name_of(in.job.format), " peak of ",
                            format_si(q.C.value(), "FLOP/s"), "; days are at ",
                            format_percent(typical), ", not at the limit"}));
}

inline void plan_notes(const TrainingInputs& in, TrainingPlan& plan) {
  const StateParts parts = state_parts(in.job.state);
  plan.notes.push_back(cat({"memory: ", parts.total(), " bytes a parameter (weights ",
                            parts.weights, ", gradients ", parts.gradients, ", optimizer ",
                            parts.optimizer(), "); the layer being gathered is not counted"}));
  if (static_cast<double>(plan.best.layout.data) > in.sequences) {
    plan.notes.push_back(
        cat({"data: ", plan.best.layout.data, " chips for ", format_count(in.sequences),
             " sequences, so sequences are split; "
             "what attention then sends is not counted"}));
  }
  if (!in.job.model.beyond.empty()) {
    plan.notes.push_back(cat({"model: counted, not run by this library: ", in.job.model.beyond}));
  }
}

inline TrainingPlan finish_plan(const TrainingInputs& in, List<TrainingLayout> layouts) {
  TrainingPlan plan;
  plan.model = in.job.model.name;
  plan.machine = in.machine.name;
  plan.best = layouts.front();
  plan.layouts = std::move(layouts);
  plan.notes = in.notes;
  const TrainingLetters q = training_letters(in, plan.best);
  plan.tokens = letter("tokens", in.tokens, "token", "of the whole run");
  plan.batch = q.B;
  plan_times(q, plan);
  plan_memory(in, q, plan);
  plan_costs(in, q, plan);
  plan_notes(in, plan);
  return plan;
}

}  // namespace detail

// The fastest data x tensor layout that fits; throws and says what would fit when none does.
inline TrainingPlan plan_training(const TrainingJob& job, const Machine& machine) {
  const detail::TrainingInputs in = detail::training_inputs(job, machine);
  detail::check_fits(in);
  return detail::finish_plan(in, detail::priced_layouts(in));
}

// The price of one layout: layout.data * layout.tensor chips, parameters sharded over data.
inline TrainingPlan plan_training(const TrainingJob& job, const Machine& machine,
                                  const Layout& layout) {
  const detail::TrainingInputs in = detail::training_inputs(job, machine);
  detail::check_layout_counts("plan_training", layout);
  if (layout.devices() != machine.chips() || layout.pipeline != 1 || layout.context != 1) {
    detail::fail({"plan_training: layout ", layout.text(), " on ", machine.chips(),
                  " chips; data * tensor must be the chips, pipeline and context 1"});
  }
  if (!detail::tensor_divides(job.model, layout.tensor)) {
    detail::fail({"plan_training: tensor ", layout.tensor, " does not divide the ", job.model.heads,
                  " heads and the hidden width of ", job.model.name});
  }
  detail::check_fits(in);
  List<TrainingLayout> layouts;
  detail::add_layouts(in, layout.tensor, layouts);
  if (layouts.empty()) {
    detail::fail({"plan_training: data ", layout.data, " is more than the ", format_count(in.batch),
                  " tokens of a batch"});
  }
  return detail::finish_plan(in, detail::fastest_first(layouts));
}

inline Table TrainingPlan::table() const {
  Table out;
  out.title = detail::cat({"Training ", model, " on ", machine, ", ", best.layout.text()});
  out.columns = {"quantity", "formula"};
  const auto row = [&](const std::string& name, const std::string& value) {
    out.add({name, value});
  };
  row("tokens", format_count(tokens.value()));
  row("batch, tokens", format_count(batch.value()));
  row("tokens per chip", detail::short_number(tokens_per_chip.value()));
  row("  bound by math above", detail::short_number(threshold.value()));
  row("T_math", compute_time.text());
  row("T_fsdp", fsdp_time.text());
  row("T_tensor", tensor_time.text());
  row("T_step at the limit", step_time.text());
  row("  bound by", best.bound);
  row("MFU at the limit", format_percent(mfu.value()));
  row("memory per chip", memory.text());
  row("  weights", weights_memory.text());
  row("  optimizer and gradients", optimizer_memory.text());
  row("  activations", activation_memory.text());
  row("MFU, typical", format_percent(typical_mfu.value()));
  row("days at the limit", detail::short_number(limit_days.value()));
  row("days, typical", detail::short_number(days.value()));
  row("dollars, typical", dollars.value() > 0 ? format_count(std::floor(dollars.value())) : "-");
  row("energy, typical", energy.value() > 0 ? format_si(energy.value(), "Wh") : "-");
  return out;
}

inline Table TrainingPlan::layout_table() const {
  Table out;
  out.title = "Fastest layouts";
  out.columns = {"data",
                 "tensor",
                 "M_X",
                 "M_Y",
                 "T_math formula",
                 "T_fsdp formula",
                 "T_tensor formula",
                 "T_step formula",
                 "memory per chip",
                 "bound by"};
  for (std::size_t i = 0; i < std::min<std::size_t>(5, layouts.size()); ++i) {
    const TrainingLayout& l = layouts[i];
    out.add({detail::cat({l.layout.data}), detail::cat({l.layout.tensor}),
             detail::cat({l.data_axes}), detail::cat({l.tensor_axes}),
             format_seconds(l.compute_time), format_seconds(l.fsdp_time),
             format_seconds(l.tensor_time), format_seconds(l.step_time), format_bytes(l.memory),
             l.bound});
  }
  return out;
}

inline std::ostream& operator<<(std::ostream& out, const TrainingPlan& plan) {
  out << plan.table() << "\n" << plan.layout_table() << "\n";
  for (const std::string& note : plan.notes) {
    out << "- " << note << "\n";
  }
  return out;
}

}  // namespace tinyscale
