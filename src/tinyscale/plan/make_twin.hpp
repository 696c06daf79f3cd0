#pragma once
// How a plan is made small: each axis gets 2 devices, or 3 where a ring closes or a pipeline has a
// middle; microbatches so that the bubble stays near; a model of the same kind, its heads,
// hidden width, experts and layers as few as such a layout divides; then the machine is solved.

#include <algorithm>  // max, min
#include <cmath>      // floor, fabs
#include <cstdint>    // int64_t
#include <string>     // text
#include <vector>     // sizes

#include "tinyscale/plan/layout_search.hpp"
#include "tinyscale/plan/twin.hpp"

namespace tinyscale {

// How small.
struct TwinSize {
  std::int64_t devices = 48;      // at most
  std::int64_t microbatches = 8;  // at most, of a pipeline
  std::int64_t vocabulary = 120;  // at least the distinct characters of the text it is given
  double math_seconds = 1e-3;     // of a step: the scale of the fictional machine
};

namespace detail {

inline void check_twin(const TrainingJob& job, const Machine& machine, const Layout& layout,
                       const TwinSize& size) {
  job.model.validate();
  check_network("twin_of", machine);
  check_layout_devices("twin_of", layout, machine.chips());
  check_own_schedule("twin_of", layout);
  check_layout_order(layout);
  check_layout_experts(layout, job.model);
  check_layout_zero(layout);
  check_job("twin_of", "batch_tokens", job.batch_tokens, 1, 1e18);
  check_job("twin_of", "context", static_cast<double>(job.context), 0, 1e9);
  check_job("twin_of", "TwinSize::devices", static_cast<double>(size.devices), 1, 1024);
  check_job("twin_of", "TwinSize::microbatches", static_cast<double>(size.microbatches), 1, 1024);
  check_job("twin_of", "TwinSize::vocabulary", static_cast<double>(size.vocabulary), 8, 1e6);
  check_job("twin_of", "TwinSize::math_seconds", size.math_seconds, 1e-9, 1e9);
}

class TwinMaker {
 public:
  TwinMaker(const TrainingJob& job, const Machine& machine, const Layout& layout,
            const TwinSize& size)
      : size_(size), axes_(layout_axes(layout)) {
    plan_.model = job.model;
    plan_.layout = layout;
    plan_.machine = laid(job, machine);
    plan_.machine.name = machine.name;
    plan_.format = job.format;
    plan_.state = state_parts(job.state);
    twin.of = cat({job.model.name, " on ", machine.name});
    twin.plan_layout = layout;
    cut_batch(job);
    twin.plan_load = step_load(plan_);
    take_limit(job, machine);
    shrink_layout();
    shrink_schedule();
    shrink_model();
    name_machine();
    TwinSolver(twin, size.math_seconds);
    add_notes();
  }

  Twin twin;

 private:
  const Layout& layout() const { return plan_.layout; }
  void note(const std::string& text) { twin.notes.push_back(text); }

  // ---- The plan's step ----

  // The machine with its dimensions in the order in which the plan's layout is fastest.
  Machine laid(const TrainingJob& job, const Machine& machine) const {
    const TrainingInputs in = training_inputs(job, machine);
    const List<Machine> orders = machine_orders(machine);
    const List<PlacedLinks> places = placed_links(orders, layout());
    if (in.sequences < static_cast<double>(layout().data)) {
      return *places.front().machine;
    }
    const int chunks = layout().schedule.empty() ? 1 : layout().schedule.chunks();
    const Shape dims = price_layout(in, in.step(), places, layout(), chunks).dims;
    for (const PlacedLinks& at : places) {
      if (at.machine->dims == dims) {
        return *at.machine;
      }
    }
    return machine;
  }

  // As many tokens for each microbatch and device as the plan has, in whole sequences, which are
  // then a little shorter or longer; where there are fewer, a stretch of one.
  void cut_batch(const TrainingJob& job) {
    const std::int64_t context = job.context > 0 ? job.context : job.model.context;
    const std::int64_t parts = layout().data * layout().microbatches, c = layout().context;
    const double each = job.batch_tokens / static_cast<double>(parts);  // tokens of a microbatch
    const double whole = std::floor(each / static_cast<double>(context) + 0.5);
    const double sequences = std::max(1.0, whole);
    plan_.sequences = parts * static_cast<std::int64_t>(sequences);
    plan_.model.context =
        std::max<std::int64_t>(
            1, static_cast<std::int64_t>(each / sequences / static_cast<double>(c))) *
        c;
    if (whole < 1) {
      note(cat({"the plan's batch has no whole sequence for each of ", parts,
                " parts: priced with ", plan_.model.context, " tokens each, what attention sends ",
                "between them is left out"}));
    } else if (plan_.model.context != context) {
      note(cat({"the plan's batch of ", format_count(job.batch_tokens), " tokens is priced as ",
                plan_.sequences, " sequences of ", plan_.model.context}));
    }
  }

  // The plan's own seconds, each part alone at published rates and all at once (step_cost.hpp):
  // what goes over several axes loads the slowest as long as it takes, the others as their share of
  // that. Latencies, and messages between stages, are those of step_load.
  void take_limit(const TrainingJob& job, const Machine& machine) {
    const TrainingInputs in = training_inputs(job, machine);
    const Machine& on = plan_.machine;
    const int chunks = layout().schedule.empty() ? 1 : layout().schedule.chunks();
    const bool whole = in.sequences >= static_cast<double>(layout().data);
    const StepLimit limit =
        whole ? price_layout(in, in.step(), {{&on, LayoutLinks(on, layout())}}, layout(), chunks)
                    .price.limit
              : price_step(in.step(), on, layout(), chunks).limit;
    StepLoad& load = twin.plan_load;
    load.math = limit.math;
    load.memory = limit.memory;
    if (whole && on.chip.memory_bytes > 0) {
      load.held = memory_of(in, layout(), chunks).total() / on.chip.memory_bytes;
    }
    const double causes[] = {limit.tensor, limit.context, limit.expert, limit.data};
    double most[4] = {0, 0, 0, 0};
    for (int cause = 0; cause < 4; ++cause) {
      for (const AxisLoad& axis : load.axes) {
        most[cause] = std::max(most[cause], axis.by[cause]);
      }
    }
    for (AxisLoad& axis : load.axes) {
      double traffic = axis.by[AxisLoad::of_others];
      for (int cause = 0; cause < 4; ++cause) {
        const double share = axis.by[cause] > 0 ? axis.by[cause] / most[cause] : 0;
        traffic = std::max(traffic, causes[cause] * share);
      }
      axis.traffic = traffic > 0 ? traffic : axis.traffic;
    }
  }

  // ---- Axes ----

  // 3 for a ring that closes, as 2 chips have no way around, and for a pipeline with a middle.
  std::int64_t wanted(const AxisLoad& axis) const {
    return axis.size > 2 && (axis.kind == AxisKind::ring || axis.name == "pipeline") ? 3 : 2;
  }
  std::int64_t product(const AxisGroup& group, const std::vector<std::int64_t>& sizes) const {
    std::int64_t all = 1;
    for (std::size_t i = 0; i < twin.plan_load.axes.size(); ++i) {
      all *= in_group(group, twin.plan_load.axes[i].name) ? sizes[i] : 1;
    }
    return all;
  }
  Layout sized(const std::vector<std::int64_t>& sizes) const {
    Layout small = layout();
    small.data = product(axes_.data, sizes);
    small.context = product(axes_.context, sizes);
    small.tensor = product(axes_.tensor, sizes);
    small.pipeline = product(axes_.pipeline, sizes);
    small.expert = product(axes_.expert, sizes);
    small.zero_devices = layout().zero_devices > 0 ? product(axes_.zero, sizes) : 0;
    return small;
  }
  // Whether the groups of a layout's collectives are the plan's.
  bool alike(const Layout& small) const {
    const LayoutAxes a = layout_axes(small);
    return a.all() == axes_.all() && a.zero == axes_.zero && a.replica == axes_.replica &&
           a.expert == axes_.expert && a.expert_zero == axes_.expert_zero &&
           a.expert_replica == axes_.expert_replica;
  }
  // Of all ways to give each axis 2 or 3 devices the one nearest to what is wanted, above 16
  // devices the smallest.
  void shrink_layout() {
    const List<AxisLoad>& axes = twin.plan_load.axes;
    std::int64_t least = -1, smallest = -1;
    for (std::size_t choice = 0; choice < (std::size_t{1} << axes.size()); ++choice) {
      std::vector<std::int64_t> sizes;
      std::int64_t off = 0;
      for (std::size_t i = 0; i < axes.size(); ++i) {
        sizes.push_back(((choice >> i) & 1) != 0 ? 3 : 2);
        off += sizes[i] != wanted(axes[i]) ? 1000 : 0;
      }
      const Layout small = sized(sizes);
      const std::int64_t devices = small.devices();
      off = devices > 16 ? 1000000 + devices : off + devices;
      if (!alike(small)) {
        continue;
      }
      smallest = smallest < 0 ? devices : std::min(smallest, devices);
      if (devices <= size_.devices && (least < 0 || off < least)) {
        least = off;
        twin.layout = small;
      }
    }
    if (least < 0) {
      fail({"twin_of: the smallest twin of ", layout().text(), " has ", smallest,
            " devices, TwinSize::devices is ", size_.devices, "; right is ", smallest, " or more"});
    }
    twin.layout.gradient_format = DType::f32;
  }

  // ---- Microbatches ----

  PipelineSchedule schedule_of(const std::string& kind, std::int64_t microbatches) const {
    const int p = static_cast<int>(twin.layout.pipeline), m = static_cast<int>(microbatches);
    return kind == "gpipe"         ? gpipe(p, m)
           : kind == "zb-h1"       ? zero_bubble_h1(p, m)
           : kind == "interleaved" ? interleaved(p, m, 2)
                                   : one_forward_one_backward(p, m);
  }
  void shrink_schedule() {
    const std::string kind = layout().schedule.empty() ? "1f1b" : layout().schedule.name;
    Layout& small = twin.layout;
    small.schedule = PipelineSchedule();
    small.microbatches = std::min<std::int64_t>(layout().microbatches, 2);
    if (small.pipeline == 1) {
      return;
    }
    double nearest = 2;
    const std::int64_t step = kind == "interleaved" ? small.pipeline : 1;
    for (std::int64_t m = step; m <= std::max(step, size_.microbatches); m += step) {
      const double bubble = time_pipeline(schedule_of(kind, m)).bubble();
      const double off = std::fabs(bubble - twin.plan_load.bubble);
      if (off < nearest) {
        nearest = off;
        small.microbatches = m;
      }
    }
    if (!layout().schedule.empty()) {
      small.schedule = schedule_of(kind, small.microbatches);
    }
    if (!layout().schedule.empty() && small.schedule.name != kind) {
      note(cat({"the schedule ", kind, " is the plan's own; the twin runs 1f1b"}));
    }
  }

  // ---- The model ----

  static std::int64_t multiple(double of, std::int64_t step) {
    return std::max<std::int64_t>(1,
                                  static_cast<std::int64_t>(of / static_cast<double>(step) + 0.5)) *
           step;
  }
  void shrink_heads(ModelConfig& c) {
    const ModelConfig& big = plan_.model;
    const Layout& small = twin.layout;
    const bool ulysses = small.context > 1 && small.context_parallel == ContextParallel::ulysses;
    c.kv_heads = small.tensor * (ulysses ? small.context : 1);
    c.kv_heads = c.kv_heads == 1 && big.kv_heads > 1 ? 2 : c.kv_heads;
    c.heads = c.kv_heads * (big.heads > big.kv_heads ? 2 : 1);
    c.head_size = c.heads >= 8 ? 4 : c.heads >= 4 ? 8 : 16;
    c.width = c.heads * c.head_size;
  }
  void shrink_experts(ModelConfig& c) {
    const ModelConfig& big = plan_.model;
    if (big.experts == 0) {
      return;
    }
    const auto e = static_cast<int>(twin.layout.expert_devices());
    c.top_k = std::min(2, big.top_k);
    c.experts = static_cast<int>(multiple(std::min(big.experts, 4 * c.top_k), e));
    c.shared_experts = std::min(1, big.shared_experts);
  }
  // Devices of a context and tensor axis get equal parts of a sequence.
  std::int64_t small_context() const {
    const Layout& l = twin.layout;
    std::int64_t s = 16;
    while (s % (2 * l.context) != 0 || s / l.context % l.tensor != 0) {
      ++s;
    }
    return s;
  }
  // Windows are as large a part of a sequence, and some layers have one if some had.
  static void shrink_windows(ModelConfig& c, const ModelConfig& big) {
    const bool none = big.window == 0 || big.window >= big.context || big.local_layers() == 0;
    c.window = none ? 0 : std::max<std::int64_t>(1, big.window * c.context / big.context);
    c.global_every = none || c.layers < 2 ? 0 : std::min(big.global_every, c.layers);
  }
  void shrink_model() {
    const ModelConfig& big = plan_.model;
    const Layout& small = twin.layout;
    ModelConfig& c = twin.model;
    c = plain_model(big);
    c.name = "twin of " + big.name;
    c.training_tokens = 0;
    shrink_heads(c);
    shrink_experts(c);
    const auto wide = [&](std::int64_t hidden) {
      return multiple(static_cast<double>(hidden * c.width) / static_cast<double>(big.width),
                      2 * small.tensor);
    };
    c.hidden = big.experts == 0 ? wide(big.hidden) : 0;
    c.expert_hidden = big.expert_hidden > 0 ? wide(big.expert_hidden) : 0;
    c.layers = small.stages() > 1 ? small.stages() : std::min<std::int64_t>(2, big.layers);
    c.vocabulary = (size_.vocabulary + small.tensor - 1) / small.tensor * small.tensor;
    c.context = small_context();
    shrink_windows(c, big);
    const std::int64_t parts = layout().data * layout().microbatches;
    twin.sequences = small.data * small.microbatches *
                     (plan_.sequences > parts || small.microbatches == 1 ? 2 : 1);
    if (!beyond_of(big).empty()) {
      note(cat({"model: this library runs none with ", beyond_of(big),
                "; the twin has a plain block of the same kind"}));
    }
  }

  void name_machine() {
    Machine& m = twin.machine;
    m.name = cat({"twin of ", plan_.machine.name, " (fictional)"});
    m.chip.name = cat({"twin of ", plan_.machine.chip.name, " (fictional)"});
    m.chip.vendor = "nobody";
    m.chip.kind = plan_.machine.chip.kind;
    m.chip.source = "solved so that a step is bound as the plan's is";
  }
  void add_notes() {
    if (twin.plan_load.held > 1) {
      note(cat({"the plan does not fit: it needs ", format_percent(twin.plan_load.held),
                " of a chip's memory, and by the same form so does the twin"}));
    }
    if (plan_.format != DType::f32) {
      note(cat({"the plan is priced in ", name_of(plan_.format), ", the twin runs in f32: ",
                "its bytes are of four, its rates are solved for them"}));
    }
  }

  TwinSize size_;
  LayoutAxes axes_;
  LoadJob plan_;
};

}  // namespace detail

// The twin of training `job` by `layout` on `machine`; train(model, text, twin.options()) runs it.
inline Twin twin_of(const TrainingJob& job, const Machine& machine, const Layout& layout,
                    const TwinSize& size = TwinSize()) {
  detail::check_twin(job, machine, layout, size);
  return detail::TwinMaker(job, machine, layout, size).twin;
}

}  // namespace tinyscale
