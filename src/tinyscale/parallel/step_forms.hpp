#pragma once
// What a step of training by a layout sends, computes and holds, in closed form: each op of the
// pipeline schedule has its collectives, each with the formula of its size. A pure function of
// model, layout and place; step_report.hpp puts it beside what was counted.

#include <cstdint>  // int64_t
#include <string>   // string
#include <vector>   // vector

#include "tinyscale/base/list.hpp"
#include "tinyscale/model/train_step.hpp"
#include "tinyscale/model/training_memory.hpp"
#include "tinyscale/parallel/flat_parameters.hpp"
#include "tinyscale/parallel/formula_texts.hpp"
#include "tinyscale/parallel/layout_hooks.hpp"
#include "tinyscale/parallel/memory_forms.hpp"
#include "tinyscale/parallel/step_plan.hpp"

namespace tinyscale {

namespace detail {

class StepPlanner {
 public:
  StepPlanner(const Transformer& whole, const Layout& layout, const LayoutAxes& axes,
              const StepOptions& options, std::int64_t rank, bool updates = true)
      : c_(whole.config),
        layout_(layout),
        axes_(axes),
        options_(options),
        stages_(layout, whole.config),
        say_(layout, axes),
        at_(axes.mesh, rank),
        units_(plan_units(whole, layout, axes, at_)) {
    sequences_ = options.batch / (layout.microbatches * layout.data);
    tokens_ = c_.context / layout.context;
    wide_ = sequences_ * tokens_ * c_.width;
    const std::int64_t mine = at_.index(axes.pipeline);
    for (const PipelineOp& op : stages_.schedule.program[static_cast<std::size_t>(mine)]) {
      add_op(op);
    }
    add_end(updates);
    add_memory();
  }

  StepPlan plan;

 private:
  void add(Collective what, const AxisGroup& axes, std::int64_t elements, const std::string& why,
           const std::string& formula, DType format = DType::f32, bool mean = false,
           int shift = 1) {
    if (axes.empty()) {
      return;
    }
    for (PlannedCall& known : plan.calls) {
      if (!known.send && known.what == what && known.axes == axes && known.elements == elements &&
          known.format == format && known.why == why && known.formula == formula &&
          known.shift == shift) {
        ++known.times;
        return;
      }
    }
    plan.calls.push_back({what, false, axes, elements, format, 1, why, formula, mean, shift});
  }
  void add_send(std::int64_t elements, const std::string& why, const std::string& formula) {
    for (PlannedCall& known : plan.calls) {
      if (known.send && known.elements == elements && known.why == why &&
          known.formula == formula) {
        ++known.times;
        return;
      }
    }
    plan.calls.push_back(
        {Collective::permute, true, axes_.pipeline, elements, DType::f32, 1, why, formula});
  }

  // ---- The ops of the schedule ----

  bool first(const PipelineOp& op) const { return op.stage == 0; }
  bool last(const PipelineOp& op) const { return stages_.is_last(op.stage); }
  std::int64_t layers(const PipelineOp& op) const {
    return stages_.first_layer(op.stage + 1) - stages_.first_layer(op.stage);
  }

  void add_op(const PipelineOp& op) {
    if (op.work == PipelineWork::weight_gradient) {
      for (std::int64_t l = 0; l < layers(op); ++l) {
        plan.flops[StepTask::weight_gradient] += weight_flops();
      }
      plan.flops[StepTask::weight_gradient] += last(op) ? head_flops() : 0;
      add_gradients(op);
      return;
    }
    const bool whole = op.work == PipelineWork::backward;
    double& backward = plan.flops[whole ? StepTask::backward : StepTask::input_gradient];
    double& recomputed = plan.flops[StepTask::recompute];
    const bool forward = op.work == PipelineWork::forward;
    const bool again = !forward && layout_.recompute == Recompute::full;
    const bool core_again = !forward && layout_.recompute == Recompute::selective;
    for (const FlatUnit& unit : units_) {
      for (int i = 0; i < uses(op, unit) && layout_.zero == Zero::parameters; ++i) {
        add_gather(unit, i + 1 == uses(op, unit) && second_use(op, unit));
      }
    }
    if (first(op)) {
      add_embedding(forward, again);
    }
    for (std::int64_t l = stages_.first_layer(op.stage); l < stages_.first_layer(op.stage + 1);
         ++l) {
      if (forward || again) {
        add_block(l, true);
        (again ? recomputed : plan.flops[StepTask::forward]) +=
            weight_flops() + attention_flops(l, 2);
      }
      if (core_again) {
        add_attention(l, true);
        recomputed += attention_flops(l, 2);
      }
      if (!forward) {
        add_block(l, false);
        backward += (whole ? 2 : 1) * weight_flops() + attention_flops(l, 5);
      }
    }
    if (last(op)) {
      (forward ? plan.flops[StepTask::forward] : backward) +=
          (forward || !whole ? 1 : 2) * head_flops();
      add_head(forward);
    }
    if (forward ? !last(op) : !first(op)) {
      const int to = forward ? op.stage + 1 : op.stage - 1;
      if (stages_.schedule.rank(to, op.microbatch) != at_.index(axes_.pipeline)) {
        add_send(stream(), forward ? "activations" : "their gradients", say_.between_stages());
      }
    }
    if (op.work == PipelineWork::backward) {
      add_gradients(op);
    }
  }

  std::int64_t stream() const { return wide_ / (layout_.sequence_parallel ? layout_.tensor : 1); }
  int uses(const PipelineOp& op, const FlatUnit& unit) const {
    return stages_.uses_of_stage(op.stage, unit.layer);
  }
  // A rank with the first stage and the last uses a tied table for the embedding and for the head.
  bool second_use(const PipelineOp& op, const FlatUnit& unit) const {
    bool both = false;
    for (std::size_t i = 0; i < stages_.schedule.rank_of.size(); ++i) {
      both = both || (static_cast<int>(i) % stages_.schedule.stages == 0 &&
                      stages_.schedule.rank_of[i] == at_.index(axes_.pipeline));
    }
    return both && unit.layer == table_unit && stages_.tied && last(op);
  }
  void add_gather(const FlatUnit& unit, bool again) {
    add(Collective::all_gather, unit.zero, unit.length(), "weights", say_.gathered(unit, again),
        weight_format(options_.format));
  }

  void add_gradients(const PipelineOp& op) {
    for (const FlatUnit& unit : units_) {
      if (uses(op, unit) > 0 && unit.leaves_each_op(layout_.zero)) {
        add_reduce(unit, !first(op) && second_use(op, unit));
      }
    }
  }
  void add_reduce(const FlatUnit& unit, bool again) {
    const bool sharded = !unit.zero.empty();
    add(sharded ? Collective::reduce_scatter : Collective::all_reduce,
        sharded ? unit.zero : unit.replica, unit.length(), "gradients", say_.reduced(unit, again),
        layout_.gradient_format);
  }

  void add_end(bool updates) {
    for (const FlatUnit& unit : units_) {
      if (!unit.leaves_each_op(layout_.zero)) {
        add_reduce(unit, false);
      }
      if (!unit.zero.empty()) {
        add(Collective::all_reduce, unit.replica, unit.shard, "gradients of replicas",
            say_.replicas(unit), layout_.gradient_format);
        if (layout_.zero < Zero::parameters && updates) {
          add_gather(unit, false);
        }
      }
      for (std::size_t i = 1; i < unit.holders.size(); ++i) {
        add_send(unit.shard, "gradients held twice", say_.held_twice(unit));
      }
    }
    add(Collective::all_reduce, layout_.devices() > 1 ? axes_.all() : AxisGroup(), 2,
        "loss and norm", "4 (n-1)/n over all n devices");
  }

  // ---- What segments send ----

  void add_tensor(bool gathers, const std::string& formula) {
    add(layout_.sequence_parallel ? gathers ? Collective::all_gather : Collective::reduce_scatter
                                  : Collective::all_reduce,
        axes_.tensor, wide_, "tensor parallel", formula);
  }
  void add_embedding(bool forward, bool again) {
    if (forward || again) {
      add_tensor(false, say_.embedding(false));
    }
    if (!forward && layout_.sequence_parallel) {
      add_tensor(true, say_.embedding(true));
    }
  }
  void add_block(std::int64_t layer, bool forward) {
    const int sums = tensor_sums(c_, layout_, c_.experts > 0);
    for (int part = 0; part < sums; ++part) {
      if (layout_.sequence_parallel) {
        add_tensor(true, say_.block(sums));
      }
      add_tensor(false, say_.block(sums));
    }
    add_attention(layer, forward);
    add_experts(forward);
  }
  double head_flops() const {
    return 2 * static_cast<double>(sequences_ * tokens_ * c_.width * table_rows());
  }
  void add_head(bool forward) {
    const std::int64_t rows = sequences_ * tokens_;
    if (forward) {
      if (layout_.sequence_parallel) {
        add_tensor(true, say_.head());
      }
      add(Collective::all_reduce, axes_.tensor, rows, "loss", "m 2 b s (t-1)/t");
      add(Collective::all_reduce, axes_.tensor, 2 * rows, "loss", "m 4 b s (t-1)/t");
    } else {
      add_tensor(false, say_.head());
    }
  }
  std::int64_t table_rows() const {
    const std::int64_t i = at_.index(axes_.tensor), t = layout_.tensor;
    return shard_begin(c_.vocabulary, i + 1, t) - shard_begin(c_.vocabulary, i, t);
  }

  void add_attention(std::int64_t layer, bool forward) {
    const std::int64_t n = layout_.context;
    const std::int64_t queries = sequences_ * tokens_ * c_.query_width() / layout_.tensor;
    const std::int64_t keys = sequences_ * tokens_ * c_.key_width() / layout_.tensor;
    if (n == 1) {
      return;
    }
    switch (layout_.context_parallel) {
      case ContextParallel::ring: add_ring(2 * keys, c_.window_of(layer), forward); break;
      case ContextParallel::gathered:
        for (int i = 0; i < 2; ++i) {
          add(forward ? Collective::all_gather : Collective::reduce_scatter, axes_.context,
              n * keys, "gathered keys and values", say_.gathered_keys(forward));
        }
        break;
      default:
        for (const std::int64_t elements : {queries, keys, keys, queries}) {
          add(Collective::all_to_all, axes_.context, elements, "Ulysses", say_.ulysses());
        }
    }
  }

  // Keys go from round to round; backward each gradient goes the same ways one round later.
  void add_ring(std::int64_t numbers, std::int64_t window, bool forward) {
    const int n = static_cast<int>(layout_.context);
    std::vector<int> rounds = ring_rounds(true, n, c_.context, window);
    const std::string formula = say_.ring(c_.window > 0, window > 0);
    rounds.push_back(n);
    for (std::size_t i = 1; i + 1 < rounds.size(); ++i) {
      const int shift = rounds[i] - rounds[i - 1], next = rounds[i + 1] - rounds[i];
      for (int go = 0; go < (forward ? 1 : 2); ++go) {
        add(Collective::permute, axes_.context, numbers, "ring attention", formula, DType::f32,
            false, go == 0 ? shift : next);
      }
    }
  }

  void add_experts(bool forward) {
    if (c_.experts == 0) {
      return;
    }
    const std::int64_t e = layout_.expert_devices();
    const std::int64_t rows = sequences_ * tokens_ / layout_.routing_ranks();
    if (forward && options_.experts.balance_loss > 0) {
      add(Collective::all_reduce, axes_.routes, 2 * c_.experts, "balance loss", say_.balance());
    }
    if (e == 1) {
      return;
    }
    if (options_.experts.capacity_factor > 0) {
      const std::int64_t groups =
          std::max<std::int64_t>(1, options_.experts.groups / layout_.routing_devices());
      const std::int64_t each =
          expert_capacity(rows / groups, c_.top_k, c_.experts, options_.experts.capacity_factor);
      const std::int64_t numbers = c_.experts * each * groups * c_.width;
      for (int i = 0; i < 2; ++i) {
        add(Collective::all_to_all, axes_.dealt, numbers, "experts", say_.with_capacity());
      }
      return;
    }
    if (forward) {
      add(Collective::all_to_all, axes_.dealt, c_.experts, "rows of each expert",
          say_.rows_of_experts());
    }
    for (int i = 0; i < 2; ++i) {
      add(Collective::all_to_all, axes_.dealt, e, "rows of each device", say_.rows_of_devices());
      add(Collective::all_to_all, axes_.dealt, rows * c_.top_k * c_.width, "experts",
          say_.balanced(), DType::f32, true);
    }
  }

  // ---- FLOPs of a block: 2 for each weight and token, the scores and the weighted values ----

  double attention_flops(std::int64_t layer, int products) const {
    const std::int64_t n = layout_.context, window = c_.window_of(layer);
    double pairs = causal_pairs(0, c_.context, window) / static_cast<double>(n);
    const bool zigzag = layout_.context_parallel != ContextParallel::ulysses;
    // Under a window not all have as many; of a plan whose chunks are not whole, the mean.
    if (window > 0 && n > 1 && zigzag && c_.context % (2 * n) == 0) {
      const auto mine = static_cast<int>(at_.index(axes_.context));
      pairs = causal_pairs(
          context_places(layout_.context_parallel, mine, static_cast<int>(n), c_.context), tokens_,
          window);
    }
    const double width =
        static_cast<double>(c_.query_width()) / static_cast<double>(layout_.tensor);
    return 2.0 * products * static_cast<double>(sequences_) * pairs * width;
  }
  double weight_flops() {
    const auto d = static_cast<double>(c_.width), t = static_cast<double>(layout_.tensor);
    const auto rows = static_cast<double>(sequences_ * tokens_);
    const double projections = d * static_cast<double>(2 * (c_.query_width() + c_.key_width())) / t;
    const double matrices = c_.gated() ? 3 : 2;
    double weights = projections;
    if (c_.experts == 0) {
      weights += matrices * d * static_cast<double>(c_.hidden) / t;
    } else {
      const double visited = static_cast<double>(c_.top_k + c_.shared_experts);
      weights +=
          d * static_cast<double>(c_.experts) / static_cast<double>(layout_.routing_ranks()) +
          visited * matrices * d * static_cast<double>(c_.expert_hidden) / t;
      plan.mean_flops =  // and which tokens find no place
          plan.mean_flops || layout_.expert_devices() > 1 || options_.experts.capacity_factor > 0;
    }
    return 2 * rows * weights;
  }

  // ---- Bytes ----

  void add_memory() {
    const bool apart = options_.format != DType::f32 && layout_.zero != Zero::parameters;
    for (const FlatUnit& unit : units_) {
      const auto all = static_cast<double>(unit.length()), own = static_cast<double>(unit.shard);
      const bool cut = unit.shards > 1;
      plan.parameters += 4 * (cut && layout_.zero == Zero::parameters ? own : all);
      plan.gradients += 4 * (layout_.zero > Zero::optimizer ? own : all);
      plan.optimizer += 4 * own * (cut && apart ? 3 : 2);
    }
    const std::int64_t mine = at_.index(axes_.pipeline);
    const List<PipelineOp>& program = stages_.schedule.program[static_cast<std::size_t>(mine)];
    double kept = 0, logits = 0;
    if (!arrives_in_order(
            stages_.schedule)) {  // who waits for another message keeps the early ones
      plan.activations = -1;
    }
    for (const PipelineOp& op : program) {
      if (plan.activations < 0) {
        break;
      }
      const bool forward = op.work == PipelineWork::forward;
      const bool known = op.work == PipelineWork::forward || op.work == PipelineWork::backward;
      const bool dense = c_.experts == 0 || (layout_.expert == 1 && layout_.tensor == 1 &&
                                             !(options_.experts.balance_loss > 0) &&
                                             !(options_.experts.capacity_factor > 0));
      if (!known || !dense || options_.format != DType::f32) {
        plan.activations = -1;
        break;
      }
      kept += (forward ? 1 : -1) * stage_activations(op) + handed_over(op);
      logits += (forward ? 1 : -1) * (last(op) ? logit_bytes() : 0);
      plan.activations = std::max(plan.activations, kept);
      plan.logits = std::max(plan.logits, logits);
    }
    add_gathered();
  }
  double logit_bytes() const {
    return 4 * static_cast<double>(sequences_ * tokens_ * table_rows());
  }
  // What one microbatch's forward pass leaves at a stage; its output is the next block's input.
  double stage_activations(const PipelineOp& op) const {
    const auto rows = static_cast<double>(sequences_ * tokens_);
    const auto d = static_cast<double>(c_.width);
    const double cut = layout_.sequence_parallel ? static_cast<double>(layout_.tensor) : 1;
    double floats = 0;
    const bool full = layout_.recompute == Recompute::full;
    const auto here = static_cast<double>(layers(op));
    if (full) {
      floats = here * rows * d / cut;
    } else {
      floats = here / 4 *
               block_activation_bytes(c_, rows, layout_.tensor, layout_.sequence_parallel,
                                      layout_.recompute);
    }
    if (layout_.recompute == Recompute::none) {
      floats += here * rows *
                context_activations(c_, layout_.context_parallel, layout_.context, sequences_,
                                    layout_.tensor);
    }
    if (last(op)) {  // the last norm's input and output; the loss: maximum and log-sum-exp
      floats += rows * ((d + norm_statistics(c_)) / cut + d + 2) + 1;
    } else if (!full) {
      floats += rows * d / cut;  // the output, until its gradient comes
    }
    return 4 * floats;
  }
  // Two neighbouring stages of a rank share what goes from one to the other: the output of the
  // first, which under full recomputation only the second keeps; and its gradient waits.
  double handed_over(const PipelineOp& op) const {
    const PipelineSchedule& schedule = stages_.schedule;
    const std::int64_t mine = at_.index(axes_.pipeline);
    const auto also = [&](int stage) {
      return stage >= 0 && stage < schedule.stages && schedule.rank(stage, op.microbatch) == mine
                 ? 4 * static_cast<double>(stream())
                 : 0;
    };
    const double before = also(op.stage - 1), after = also(op.stage + 1);
    if (layout_.recompute == Recompute::full) {
      return op.work == PipelineWork::forward ? after - before : before - after;
    }
    return op.work == PipelineWork::forward ? -before : 2 * before - after;
  }
  // Two neighbouring segments are gathered at a time.
  void add_gathered() {
    if (layout_.zero != Zero::parameters) {
      return;
    }
    if (layout_.context > 1 || options_.format != DType::f32) {
      plan.gathered = -1;  // keys and values on their way, rounded copies
      return;
    }
    for (int stage = 0; stage < stages_.schedule.stages; ++stage) {
      const std::vector<int> chain = stages_.segments(stage);
      for (std::size_t i = 0; i < chain.size(); ++i) {
        double both = 0;
        for (const FlatUnit& unit : units_) {
          const bool next = i + 1 < chain.size() && stages_.uses(chain[i + 1], unit.layer);
          const bool wanted = next || stages_.uses(chain[i], unit.layer);
          both += unit.shards > 1 && wanted ? 4 * static_cast<double>(unit.length()) : 0;
        }
        plan.gathered = std::max(plan.gathered, both);
      }
    }
  }

  const ModelConfig& c_;
  const Layout& layout_;
  const LayoutAxes& axes_;
  const StepOptions& options_;
  StageMap stages_;
  FormulaTexts say_;
  MeshPoint at_;
  List<FlatUnit> units_;
  std::int64_t sequences_ = 0, tokens_ = 0, wide_ = 0;  // b, s, b s h
};

}  // namespace detail

// The plan of the device of that rank in a step of training `model` by a layout.
inline StepPlan plan_step(const Transformer& model, const Layout& layout,
                          const StepOptions& options, std::int64_t rank) {
  return detail::StepPlanner(model, layout, detail::layout_axes(layout), options, rank).plan;
}

}  // namespace tinyscale
