#pragma once
// What a training run costs on a machine: the fastest layout, its step by cause, memory, days,
// dollars and energy, each a quantity that explains itself, and why not its neighbours.
//   limit    T = max(T_math + T_bubble, T_memory, T_tensor, T_context, T_expert, T_data)
//   typical  the sum of what is not hidden, at what runs reach (step_cost.hpp, efficiency.hpp)
//   days     tokens / B T_typical / goodput
// Source: "How To Scale Your Model", chapters 5, 6 and 12; failures: Young 1974, Daly 2006.

#include <algorithm>  // max, min
#include <string>     // text
#include <vector>     // notes

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/hardware/machine_of_chips.hpp"
#include "tinyscale/hardware/pod.hpp"
#include "tinyscale/measure/quantity.hpp"
#include "tinyscale/parallel/memory_forms.hpp"
#include "tinyscale/plan/layout_search.hpp"
#include "tinyscale/plan/make_twin.hpp"
#include "tinyscale/plan/why_not.hpp"

namespace tinyscale {

struct TrainingPlan {
  std::string model, machine;
  TrainingJob job;
  Machine on;
  TrainingLayout best;
  List<TrainingLayout> layouts;  // those that fit, fastest first
  List<WhyNot> neighbours;       // one step from the best, and what rules each out
  Quantity tokens, batch;
  // The limit: each part alone at published rates, and their maximum.
  Quantity math_time, bubble_time, memory_time, tensor_time, context_time, expert_time, data_time;
  Quantity step_time;
  Quantity typical_step_time;  // a sum over causes
  Quantity weights_memory, gradients_memory, optimizer_memory, activation_memory, other_memory;
  Quantity memory;                      // bytes of the fullest chip
  Quantity limit_mfu, typical_mfu;      // 6 N tokens / (step chips peak)
  Quantity tokens_per_chip, threshold;  // bound by math above the threshold
  Quantity goodput, checkpoint_interval;
  Quantity limit_days, days, dollars, energy;  // days at the typical time, goodput counted
  std::vector<std::string> notes;              // assumptions that were made

  Table table() const;
  Table cause_table() const;   // the typical step by cause, from the limit
  Table memory_table() const;  // of the fullest chip
  Table layout_table() const;
  Table why_not_table() const;
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
  // A small model on a fictional machine with the plan's own shares; interleaved where the plan is.
  Twin twin() const {
    Layout layout = best.layout;
    if (best.chunks > 1) {
      layout.schedule = interleaved(static_cast<int>(layout.pipeline),
                                    static_cast<int>(layout.microbatches), best.chunks);
    }
    return twin_of(job, on, layout);
  }
};

namespace detail {

// The letters of the formulas, as named quantities.
struct TrainingLetters {
  Quantity P, P_used, P_matmul, L, D, HK, T, B, N, X, Y, Z, m, C;
};

inline Quantity letter(const std::string& name, double value, const std::string& unit,
                       const std::string& source) {
  return Quantity(value, unit, name, source);
}

inline TrainingLetters training_letters(const TrainingInputs& in, const TrainingLayout& best) {
  const ModelConfig& m = in.job.model;
  const Machine& on = in.machine;
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
  q.T = letter("T", in.context, "", "context");
  q.B = letter("B", in.batch, "token", "batch");
  q.N = count("N", on.chips(), on.name);
  q.X = count("X", best.layout.batch_devices(), "data x context");
  q.Y = count("Y", best.layout.tensor, "tensor");
  q.Z = count("Z", best.layout.pipeline, "pipeline");
  q.m = count("m", best.layout.microbatches, "microbatches");
  q.C = letter("C", on.chip.peak(in.job.format), "FLOP/s",
               cat({name_of(in.job.format), " peak of ", on.chip.name}));
  return q;
}

// A rate that a price was made with: bytes over seconds, or 0 where nothing is sent.
inline Quantity sent(const char* name, const Quantity& bytes, double seconds, const char* what) {
  if (!(seconds > 0)) {
    return named(name, Quantity(0, "s"), "nothing is sent");
  }
  const Quantity rate(bytes.value() / seconds, "B/s", cat({"W_", name + 2}), what);
  return named(name, bytes / rate);
}

inline void plan_limit(const TrainingInputs& in, const TrainingLetters& q, TrainingPlan& plan) {
  const StepLimit& limit = plan.best.price.limit;
  const Layout& layout = plan.best.layout;
  const double wide = activation_bytes(in.job.format);
  const Quantity six(6, "FLOP/token"), two(wide, "B/token");
  const bool again = layout.recompute == Recompute::full;
  const Quantity needed = named("FLOPs a token", six * q.P_matmul + six * q.L * q.T * q.HK,
                                "6 P and the half of attention that a causal mask keeps");
  const Quantity share(limit.math * q.N.value() * q.C.value() / (q.B.value() * needed.value()), "",
                       "run",
                       again ? "FLOPs run over needed: layers computed again, and fuller "
                               "replicas"
                             : "FLOPs run over needed: attention in bf16, uneven replicas");
  plan.math_time = named("T_math", needed * share * q.B / (q.N * q.C));
  const Quantity chunks(plan.best.chunks, "", "v", "chunks of the model on a rank");
  if (layout.pipeline > 1 && !layout.schedule.empty()) {
    const Quantity idle(limit.math > 0 ? limit.bubble / limit.math : 0, "", "idle",
                        cat({"over math, by the clock of schedule ", layout.schedule.name}));
    plan.bubble_time = named("T_bubble", plan.math_time * idle);
  } else {
    plan.bubble_time = layout.pipeline > 1
                           ? named("T_bubble", plan.math_time * (q.Z - 1.0) / (chunks * q.m),
                                   "stages wait until the pipeline is full")
                           : named("T_bubble", Quantity(0, "s"), "no pipeline");
  }
  const Quantity memory(in.machine.chip.memory_bandwidth, "B/s", "W_memory", in.machine.chip.name);
  const Quantity moved(limit.memory * memory.value(), "B", "moved",
                       "operands and results of the matmuls, forward and backward");
  plan.memory_time = memory.value() > 0 ? named("T_memory", moved / memory)
                                        : named("T_memory", Quantity(0, "s"), "not known");
  const double passes = again ? 3 : 2;
  const ModelConfig& model = in.job.model;
  const double mixed =
      static_cast<double>(model.mixture_layers()) / static_cast<double>(model.layers);
  const double sums = mixed * tensor_sums(model, layout, true) + 2 * (1 - mixed);
  const Quantity tensor_bytes =
      two * Quantity(sums * passes, "", "all_reduces", "of a layer, in all passes") * q.B * q.D *
      q.L / (q.X * q.Z);
  plan.tensor_time = sent("T_tensor", tensor_bytes, limit.tensor, "all_reduces of tensor ranks");
  const double rounds = (layout.context_parallel == ContextParallel::ring ? 3 : 2) +
                        (layout.recompute == Recompute::none ? 0 : 1);
  const Quantity replicas(static_cast<double>(layout.data), "", "data", "replicas");
  const Quantity own_bytes =
      Quantity(rounds * wide, "B/token", "r", "bytes of a number in all rounds") * q.B *
      Quantity(static_cast<double>(in.job.model.cached_numbers()), "", "KV",
               "numbers of a key and value") *
      q.L / (in.job.model.latent() ? replicas * q.Z : replicas * q.Y * q.Z);
  const Quantity around(
      context_rounds_share(in.job.model, layout.context_parallel, static_cast<int>(layout.context),
                           static_cast<std::int64_t>(in.job.context)),
      "", "around", "of the rounds, those in which a layer's window sees keys");
  const double copies =
      in.job.model.latent() ? 1 : kv_copies(in.job.model, static_cast<double>(layout.tensor));
  const Quantity key_bytes =
      copies > 1 ? own_bytes * Quantity(copies, "", "shared", "tensor ranks with one head of keys")
                 : own_bytes;
  const Quantity sent_bytes = around.value() < 1 ? key_bytes * around : key_bytes;
  plan.context_time = sent("T_context", sent_bytes, limit.context, "keys and values to all ranks");
  const Quantity routed = Quantity(2 * passes * wide, "B/token") * q.B * q.D *
                          Quantity(in.job.model.top_k, "", "k", "experts of a token") * q.L /
                          (layout.whole_experts ? q.X * q.Y * q.Z : q.X * q.Z);
  plan.expert_time =
      sent("T_expert", routed, limit.expert, "to the experts and back, in all passes");
  const ChipParameters held = chip_parameters(in.job.model, layout);
  const Quantity parameters(held.all(), "", "P_stage", "parameters of a stage's chip, unsharded");
  const StepJob step = in.step();
  const auto m = static_cast<double>(layout.microbatches);
  const double g = wire_bytes(step, plan.best.layout), w = step.gather_bytes;
  const bool kept = layout.pipeline > 1;  // gathered weights, until the last microbatch
  const Quantity each =
      layout.zero == Zero::none ? Quantity(2 * g, "B", "b", "gradients there and back")
      : layout.zero == Zero::optimizer || (layout.zero == Zero::parameters && kept)
          ? Quantity(w + g, "B", "b", "gradients to their owners, weights back")
      : layout.zero == Zero::gradients
          ? Quantity(w + m * g, "B", "b", "gradients of each microbatch, weights back")
          : Quantity(m * (2 * w + g), "B", "b", "weights twice and gradients, each microbatch");
  plan.data_time = sent("T_data", each * parameters, limit.data, "gather and scatter of replicas");
  const Quantity all = max(max(max(plan.math_time + plan.bubble_time, plan.memory_time),
                               max(plan.tensor_time, plan.context_time)),
                           max(plan.expert_time, plan.data_time));
  plan.step_time = named("T_step", all, "limit: published rates, all at once that can be");
}

// The causes of the typical time, in the order of a ledger.
struct Cause {
  const char* name;
  double seconds;
  const char* what;
};

inline List<Cause> causes_of(const StepCost& t) {
  return {{"matmul", t.matmul, "local shapes, at the rate that long runs keep"},
          {"attention", t.attention, "scores and values"},
          {"elementwise", t.elementwise, "norms, activations, residuals: memory traffic"},
          {"head", t.head, "output matrix and loss, on the last stage"},
          {"recompute", t.recompute, "layers that are computed again"},
          {"tensor", t.tensor, "messages that matmuls do not hide"},
          {"context", t.context, "keys and values that attention does not hide"},
          {"expert", t.expert, "tokens to experts and back"},
          {"transfer", t.transfer, "activations between stages"},
          {"bubble", t.bubble, "stages without work"},
          {"gather", t.gather, "sharded weights that compute does not hide"},
          {"gradients", t.gradients, "sums over replicas that backward does not hide"},
          {"update", t.update, "the optimizer's memory traffic"},
          {"waiting", t.waiting, "the host waits for each layer"},
          {"jitter", t.jitter, "the slowest of many chips"}};
}

inline void plan_typical(TrainingPlan& plan) {
  Quantity sum(0, "s");
  for (const Cause& cause : causes_of(plan.best.price.typical)) {
    if (cause.seconds > 0) {
      const Quantity part(cause.seconds, "s", cat({"t_", cause.name}), cause.what);
      sum = sum.value() > 0 ? sum + part : part;
    }
  }
  if (sum.value() < plan.step_time.value()) {  // links at their published rate are the bound
    sum = plan.step_time;
  }
  plan.typical_step_time = named("T_typical", sum, "what is not hidden, at what runs reach");
}

inline void plan_memory(const TrainingInputs& in, TrainingPlan& plan) {
  const StepMemory& m = plan.best.memory_parts;
  const StateParts parts = state_parts(in.job.state);
  const auto bytes = [](const char* name, double value, const std::string& what) {
    return Quantity(value, "B", name, what);
  };
  plan.weights_memory =
      bytes("M_weights", m.parts.weights, cat({parts.weights, " bytes a parameter"}));
  plan.gradients_memory =
      bytes("M_gradients", m.parts.gradients, cat({parts.gradients, " bytes a parameter"}));
  plan.optimizer_memory =
      bytes("M_optimizer", m.parts.optimizer, cat({parts.optimizer(), " bytes a parameter"}));
  plan.activation_memory =
      bytes("M_activations", m.parts.activations + m.parts.recomputed + m.parts.logits,
            "kept for the backward pass, of one layer more, logits");
  plan.other_memory = bytes("M_other", m.parts.gathered + m.wasted + m.system,
                            "gathered weights, the allocator's waste, the runtime");
  plan.memory =
      named("M_chip", plan.weights_memory + plan.gradients_memory + plan.optimizer_memory +
                          plan.activation_memory + plan.other_memory);
}

inline void plan_goodput(const TrainingInputs& in, TrainingPlan& plan) {
  if (!(in.job.device_hours_per_failure > 0)) {
    plan.goodput = Quantity(1, "", "goodput", "nothing fails");
    plan.checkpoint_interval = Quantity(0, "s", "interval", "nothing fails");
    return;
  }
  FaultyJob faulty;
  faulty.devices = static_cast<double>(in.machine.chips());
  faulty.device_hours_per_failure = in.job.device_hours_per_failure;
  faulty.step_seconds = plan.typical_step_time.value();
  faulty.save_seconds = in.job.save_seconds;
  faulty.restart_seconds = in.job.restart_seconds;
  const Quantity mean(mean_time_between_failures(faulty), "s", "M", "between failures of the job");
  const double interval = std::max(daly_interval(faulty), plan.typical_step_time.value());
  plan.checkpoint_interval = Quantity(interval, "s", "interval", "Daly: about sqrt(2 save M)");
  const double goodput = expected_goodput(faulty, interval);
  if (!(goodput > 1e-9)) {
    fail({"plan_training: device_hours_per_failure is ", in.job.device_hours_per_failure,
          ": the job fails every ", format_seconds(mean.value()), " and never gets through ",
          format_seconds(interval), " of steps; more hours, or 0 for no failures"});
  }
  plan.goodput = Quantity(
      goodput, "", "goodput",
      cat({"share of time in lasting steps, a failure every ", format_seconds(mean.value())}));
}

inline void plan_costs(const TrainingInputs& in, const TrainingLetters& q, TrainingPlan& plan) {
  const Quantity six(6, "FLOP/token"), day(86400, "s/day"), hours(24, "h/day");
  const Quantity flops = six * q.P_used * q.B;
  plan.limit_mfu = named("MFU_limit", flops / (q.N * q.C * plan.step_time));
  if (in.job.typical_mfu > 0) {
    const Quantity asked(in.job.typical_mfu, "", "MFU", "as the job asks");
    plan.typical_step_time = named("T_typical", flops / (q.N * q.C * asked));
  }
  plan_goodput(in, plan);
  if (plan.limit_mfu.value() > 1) {
    plan.notes.push_back(
        cat({"MFU: ", format_percent(plan.limit_mfu.value()),
             " at the limit is above 100 %: 6 N counts the embedding, which no matmul reads"}));
  }
  if (in.job.typical_mfu > 0) {
    plan.typical_mfu = Quantity(in.job.typical_mfu, "", "MFU", "of 6 N FLOPs, as the job asks");
    plan.days = named("days", six * q.P_used * plan.tokens / (q.N * q.C * plan.typical_mfu) / day);
    if (plan.typical_mfu.value() > plan.limit_mfu.value() * (1 + 1e-9)) {
      fail({"plan_training: typical_mfu is ", in.job.typical_mfu, ", the limit of ",
            plan.best.text(), " is ", plan.limit_mfu.value(), "; no more than that is right"});
    }
  } else {
    plan.typical_mfu = named("MFU", flops / (q.N * q.C * plan.typical_step_time));
    plan.days = named("days", plan.tokens / q.B * plan.typical_step_time / plan.goodput / day);
  }
  plan.limit_days = named("days at the limit", plan.tokens / q.B * plan.step_time / day);
  plan.tokens_per_chip = named("B/N", q.B / q.N);
  const double knee = plan.math_time.value() > 0
                          ? std::max(plan.data_time.value(), 0.0) / plan.math_time.value()
                          : 0;
  plan.threshold =
      named("B/N at the knee", plan.tokens_per_chip * Quantity(knee, "", "T_data/T_math"),
            "the batch at which replicas send as long as they compute");
  const Machine& on = in.machine;
  const Quantity price = known_price(on);
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
}

inline void plan_notes(const TrainingInputs& in, TrainingPlan& plan) {
  const TrainingLayout& best = plan.best;
  plan.notes.push_back(cat({"MFU: 6 N FLOPs over the ", name_of(in.job.format), " peak of ",
                            format_si(in.machine.chip.peak(in.job.format), "FLOP/s"), ", ",
                            in.job.software.name, " software; days count ",
                            in.job.typical_mfu > 0     ? "the MFU asked for, without failures"
                            : plan.goodput.value() < 1 ? "the typical time and failures"
                                                       : "the typical time"}));
  const double idle =
      1 - in.sequences / (static_cast<double>(best.layout.data * best.layout.microbatches) *
                          best.price.microbatch);
  if (idle > 1e-9) {
    plan.notes.push_back(cat(
        {"batch: ", format_count(in.sequences), " sequences do not divide over ", best.layout.data,
         best.layout.data == 1 ? " replica" : " replicas",
         best.layout.microbatches == 1 ? std::string()
                                       : cat({" of ", best.layout.microbatches, " microbatches"}),
         "; ", format_percent(idle), " of their places are empty"}));
  }
  if (in.job.model.layers % (best.layout.pipeline * best.chunks) != 0) {
    plan.notes.push_back(
        cat({"stages: ", in.job.model.layers, " layers over ", best.layout.pipeline * best.chunks,
             " stages are uneven; the fullest sets the time"}));
  }
  if (!in.job.model.beyond.empty()) {
    plan.notes.push_back(cat({"model: counted, not run by this library: ", in.job.model.beyond}));
  }
}

inline TrainingPlan finish_plan(const TrainingInputs& in, List<TrainingLayout> layouts,
                                bool neighbours) {
  TrainingPlan plan;
  plan.model = in.job.model.name;
  plan.machine = in.machine.name;
  plan.job = in.job;
  plan.on = in.machine;
  plan.best = layouts.front();
  plan.layouts = std::move(layouts);
  plan.notes = in.notes;
  const TrainingLetters q = training_letters(in, plan.best);
  plan.tokens = letter("tokens", in.tokens, "token", "of the whole run");
  plan.batch = q.B;
  plan_limit(in, q, plan);
  plan_typical(plan);
  plan_memory(in, plan);
  plan_costs(in, q, plan);
  plan_notes(in, plan);
  if (neighbours) {
    plan.neighbours = why_nots(in, plan.best);
  }
  return plan;
}

// Such a machine and its chips, where it is offered and the job has a layout there; else "".
inline std::string fits_on(TrainingInputs in, std::int64_t chips) {
  try {
    in.machine = machine_of_chips(in.machine.chip, chips);
  } catch (const Error&) {
    return "";
  }
  return LayoutSearch(in).run(1).empty()
             ? ""
             : cat({in.machine.name, " (", format_count(static_cast<double>(chips)), " chips)"});
}

// The next machine on which the job fits: of the next power of two chips, of twice as many as here,
// and so on; "": none is found.
inline std::string fitting_machine(const TrainingInputs& in) {
  const std::int64_t most = 1 << 17;
  std::int64_t power = 1;
  while (power <= in.machine.chips()) {
    power *= 2;
  }
  std::string found;
  for (std::int64_t twice = 2 * in.machine.chips(); power <= most && found.empty(); twice *= 2) {
    found = fits_on(in, power);
    found = found.empty() && power < twice && twice <= most ? fits_on(in, twice) : found;
    power *= 2;
  }
  return found;
}

// What does not fit, by how much, and what would.
inline void no_layout(const TrainingInputs& in, double least) {
  const Chip& chip = in.machine.chip;
  const StateParts parts = state_parts(in.job.state);
  const double states = parts.total() * static_cast<double>(in.job.model.parameters());
  if (least > 0) {
    const std::string larger = fitting_machine(in);
    fail({"plan_training: ", in.job.model.name, " does not fit on ", in.machine.name, ": ",
          parts.total(), " bytes a parameter = ", format_bytes(states), ", and of all layouts the ",
          "least is ", format_bytes(least), " a chip of ", format_bytes(chip.memory_bytes),
          larger.empty() ? "; no machine of up to 131,072 such chips holds it; fewer tokens in a "
                           "batch or other chips may"
                         : "; would fit: " + larger + ", or fewer tokens in a batch"});
  }
  fail({"plan_training: ", in.job.model.name, " has no layout on ", in.machine.name,
        ": a batch of ", format_count(in.sequences), " sequences of ", format_count(in.context),
        " tokens cannot be cut over ", in.machine.chips(),
        " chips; more tokens in a batch or fewer chips would fit"});
}

inline void check_planned_layout(const TrainingInputs& in, const Layout& layout, int chunks) {
  check_layout_counts("plan_training", layout);
  if (layout.devices() != in.machine.chips()) {
    fail({"plan_training: layout ", layout.text(), " = ", layout.devices(), " devices, ",
          in.machine.name, " has ", in.machine.chips(), " chips; they must be equal"});
  }
  check_step_layout("plan_training", in.job.model, layout, chunks);
  const std::string why = undivided(in, layout, chunks, 2);
  if (!why.empty()) {
    fail({"plan_training: layout ", layout.text(), ": ", why});
  }
}

}  // namespace detail

// The layouts of the least typical time; throws and says what would fit when none does.
inline TrainingPlan plan_training(const TrainingJob& job, const Machine& machine) {
  const detail::TrainingInputs in = detail::training_inputs(job, machine);
  detail::LayoutSearch search(in);
  List<TrainingLayout> layouts = search.run(10);
  if (layouts.empty()) {
    detail::no_layout(in, search.least_memory());
  }
  return detail::finish_plan(in, std::move(layouts), true);
}

// The price of one layout, whether it fits or not: a note says so. `chunks` of the model on a
// pipeline rank, or those of the layout's own schedule.
inline TrainingPlan plan_training(const TrainingJob& job, const Machine& machine,
                                  const Layout& layout, int chunks = 1) {
  detail::TrainingInputs in = detail::training_inputs(job, machine);
  const int own = layout.schedule.empty() ? chunks : layout.schedule.chunks();
  if (chunks != 1 && chunks != own) {
    detail::fail({"plan_training: ", chunks, " chunks, the schedule ", layout.schedule.name,
                  " has ", own, "; they must be equal"});
  }
  detail::check_planned_layout(in, layout, own);
  const List<Machine> orders = detail::machine_orders(machine);
  TrainingLayout priced =
      detail::price_layout(in, in.step(), detail::placed_links(orders, layout), layout, own);
  priced.memory_parts = detail::memory_of(in, layout, own);
  priced.memory = priced.memory_parts.total();
  if (machine.chip.memory_bytes > 0 && priced.memory > machine.chip.memory_bytes) {
    in.notes.push_back(
        detail::cat({"memory: ", format_bytes(priced.memory), " do not fit a chip of ",
                     format_bytes(machine.chip.memory_bytes)}));
  }
  return detail::finish_plan(in, {priced}, false);
}

}  // namespace tinyscale
