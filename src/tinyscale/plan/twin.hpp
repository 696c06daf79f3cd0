#pragma once
// A scale-down twin, a wind tunnel of a training plan: a small model of the same kind, the same
// axes with 2 or 3 devices each, and a fictional machine on which a step is bound as the plan's is.
// The plan's seconds are its limit (step_cost.hpp); the twin's rates, latencies and capacity are
// solved from the closed forms of what it will count (step_load.hpp), here for one axis:
//   T_axis / T_math = (bytes / W) / (FLOPs / C),  equal to the plan's when W = bytes C / FLOPs / it
// Memory is of the plan the operands of its matmuls, of the twin about all that its ops move.

#include <cmath>     // floor, fabs
#include <cstdint>   // int64_t
#include <iostream>  // ostream
#include <string>    // text
#include <vector>    // notes

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/parallel/train.hpp"
#include "tinyscale/plan/step_load.hpp"

namespace tinyscale {

// What the plan and its twin have beside each other: shares of T_math, or of the whole.
struct TwinRatio {
  std::string name;
  double plan_seconds = 0, twin_seconds = 0;  // 0: not a time
  double plan = 0, twin = 0;
  std::string note;  // why they differ; empty: they are equal
};

// A step of a run with twice the math rate, the memory's bandwidth or an axis's links.
struct TwinGain {
  std::string name;
  double seconds = 0, saved = 0;  // simulated; share of the step as it was
};

struct Twin {
  std::string of;  // "llama3-70b on tpu-v5p 16x20x28"
  Layout plan_layout, layout;
  ModelConfig model;
  Machine machine;             // fictional
  std::int64_t sequences = 1;  // a step
  StepLoad plan_load, load;    // seconds of each part: the plan's, the twin's
  List<TwinRatio> ratios;
  std::vector<std::string> notes;

  // What takes longest, latencies counted: "math", "memory" or the name of an axis. A plan's bound
  // has no latencies, and counts the bubble of a pipeline with the math.
  std::string bottleneck() const { return load.bottleneck(); }
  TrainOptions options(std::int64_t steps = 2) const;
  // The same with a model and a batch of one's own, that the twin's layout divides: the machine is
  // solved for them.
  Twin with(const ModelConfig& own, std::int64_t own_sequences) const;
  // Of a run of the twin: the simulated step with each part twice as fast, by the share it saves,
  // what is no axis first. What saves most is what bounds the run.
  List<TwinGain> gains(const MeshRun& run) const;
  Table table() const;
  operator Table() const { return table(); }
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
};

// For ts::train of Transformer(twin.model).
inline TrainOptions Twin::options(std::int64_t steps) const {
  TrainOptions options;
  options.steps = steps;
  options.batch = sequences;
  options.warmup = 0;
  options.eval_every = 0;
  options.out = nullptr;
  options.machine = machine;
  options.layout = layout;
  return options;
}

inline List<TwinGain> Twin::gains(const MeshRun& run) const {
  List<TwinGain> gains;
  if (run.machine().links.size() != machine.links.size()) {
    detail::fail({"Twin::gains: a run on ", run.machine().name, " of ", run.machine().links.size(),
                  " dimensions; the twin's machine has ", machine.links.size(),
                  ": a run of the twin is right"});
  }
  const auto add = [&](const std::string& name, const Machine& faster) {
    const double seconds = run.on(faster).seconds;
    gains.push_back({name, seconds, 1 - seconds / run.seconds});
  };
  Machine faster = run.machine();
  faster.chip.flops_f32 *= 2;
  faster.chip.flops_bf16 *= 2;
  add("math", faster);
  faster = run.machine();
  faster.chip.memory_bandwidth *= 2;
  add("memory", faster);
  for (std::size_t i = 0; i < load.axes.size(); ++i) {  // a dimension each
    faster = run.machine();
    Links& links = faster.links[i];
    links.bandwidth = Bandwidth::one_way(2 * links.bandwidth.one_way());
    links.latency /= 2;
    add(load.axes[i].name, faster);
  }
  return gains;
}

inline Table Twin::table() const {
  Table out;
  out.title = detail::cat({"twin of ", of, ": ", layout.devices(), " devices for ",
                           plan_layout.devices(), ", ", layout.text()});
  out.columns = {"formula", "plan", "twin", "plan, of math", "twin, of math", "equal"};
  for (const TwinRatio& row : ratios) {
    const bool time = row.plan_seconds > 0 || row.twin_seconds > 0;
    out.add({row.name, time ? format_seconds(row.plan_seconds) : "-",
             time ? format_seconds(row.twin_seconds) : "-", detail::number_cell('g', 4, row.plan),
             detail::number_cell('g', 4, row.twin), row.note.empty() ? "yes" : row.note});
  }
  return out;
}

inline std::ostream& operator<<(std::ostream& out, const Twin& twin) {
  out << twin.table() << "bound by " << twin.plan_load.bottleneck() << ", the twin by "
      << twin.bottleneck() << "\n";
  for (const std::string& note : twin.notes) {
    out << "- " << note << "\n";
  }
  return out;
}

namespace detail {

// Finds the machine of a twin whose model, layout and plan_load are known.
class TwinSolver {
 public:
  TwinSolver(Twin& twin, double math_seconds) : twin_(twin) {
    start_machine();
    solve(math_seconds);
    add_ratios();
  }

 private:
  StepLoad load() const {
    LoadJob job;
    job.model = twin_.model;
    job.layout = twin_.layout;
    job.machine = twin_.machine;
    job.sequences = twin_.sequences;
    job.format = DType::f32;
    return step_load(job);
  }
  void start_machine() {
    Machine& m = twin_.machine;
    m.chip.flops_f32 = m.chip.flops_bf16 = m.chip.memory_bandwidth = 1;
    m.dims = Shape();
    m.links.clear();
    for (const MeshAxis& axis : layout_axes(twin_.layout).mesh) {
      Links links;
      for (const AxisLoad& of_plan : twin_.plan_load.axes) {
        links.kind = of_plan.name == axis.name ? of_plan.kind : links.kind;
      }
      links.bandwidth = Bandwidth::one_way(1e9);
      links.latency = 1e-6;
      m.dims.push_back(axis.size.value);
      m.links.push_back(links);
    }
  }
  void solve(double math_seconds) {
    const StepLoad& plan = twin_.plan_load;
    const StepLoad first = load();
    const double scale = math_seconds / plan.math;
    Chip& chip = twin_.machine.chip;
    chip.flops_f32 = chip.flops_bf16 = first.flops / math_seconds;
    chip.memory_bandwidth = plan.memory > 0 ? first.memory_bytes / (plan.memory * scale) : 1e30;
    chip.memory_bytes = plan.held > 0 ? first.held_bytes / plan.held : 0;
    for (int tries = 0; !solve_links(scale); ++tries) {
      if (tries == 8) {  // one algorithm is best on the links that another asks for
        twin_.layout.algorithm = Algorithm::ring;
        twin_.notes.push_back(
            "the twin's collectives are rings: which is fastest depends on what "
            "is solved");
      } else if (tries > 16) {
        fail({"twin_of: no links found for the twin of ", twin_.of, "; another layout is right"});
      }
    }
    twin_.load = load();
  }
  // Algorithms are chosen by the links, so that these are solved until they stay.
  bool solve_links(double scale) {
    const StepLoad now = load();
    bool same = true;
    for (std::size_t i = 0; i < now.axes.size(); ++i) {
      const AxisLoad &plan = twin_.plan_load.axes[i], &here = now.axes[i];
      Links& links = twin_.machine.links[i];
      const double slower = plan.traffic * scale / here.traffic;
      const double later = here.latency > 0 ? plan.latency * scale / here.latency : 1;
      links.bandwidth = Bandwidth::one_way(links.bandwidth.one_way() / slower);
      links.latency *= later;
      same = same && std::fabs(slower - 1) < 1e-12 && std::fabs(later - 1) < 1e-12;
    }
    return same;
  }

  void add(const std::string& name, double plan_seconds, double twin_seconds, double plan,
           double twin, const std::string& why_not = "no") {
    const bool equal = std::fabs(plan - twin) <= 1e-9 * plan;
    twin_.ratios.push_back({name, plan_seconds, twin_seconds, plan, twin, equal ? "" : why_not});
  }
  void add_time(const std::string& name, double plan, double twin) {
    add(name, plan, twin, plan / twin_.plan_load.math, twin / twin_.load.math);
  }
  void add_ratios() {
    twin_.ratios.clear();
    const StepLoad &plan = twin_.plan_load, &small = twin_.load;
    add_time("math", plan.math, small.math);
    add_time("memory", plan.memory, small.memory);
    for (std::size_t i = 0; i < plan.axes.size(); ++i) {
      const AxisLoad &big = plan.axes[i], &little = small.axes[i];
      const std::string name = cat({big.name, ", ", big.size, " to ", little.size, ": "});
      add_time(name + "bytes", big.traffic, little.traffic);
      add_time(name + "latencies", big.latency, little.latency);
    }
    if (plan.held > 0) {
      add("share of the chip's memory", 0, 0, plan.held, small.held);
    }
    const Layout &big = twin_.plan_layout, &little = twin_.layout;
    if (big.pipeline > 1) {
      add("bubble of the schedule", 0, 0, plan.bubble, small.bubble,
          cat({"no: ", big.pipeline, " ranks, ", big.microbatches, " microbatches to ",
               little.pipeline, ", ", little.microbatches}));
    }
  }

  Twin& twin_;
};

}  // namespace detail

inline Twin Twin::with(const ModelConfig& own, std::int64_t own_sequences) const {
  detail::check_layout(layout, own, machine.chips(), own_sequences, own.context);
  Twin twin = *this;
  twin.model = own;
  twin.sequences = own_sequences;
  detail::TwinSolver(twin, load.math);
  return twin;
}

}  // namespace tinyscale
