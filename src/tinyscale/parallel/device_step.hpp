#pragma once
// One step of training as one device sees it: it does what its row of the pipeline schedule says,
// op by op. A stage is a chain of segments (embedding, blocks, head), each a graph of its own, so
// that between two of them weights can be gathered and freed, gradients sent off, activations
// dropped and computed again.

#include <cmath>    // sqrt
#include <cstdint>  // int64_t
#include <vector>   // vector

#include "tinyscale/base/list.hpp"
#include "tinyscale/model/data.hpp"
#include "tinyscale/model/train_step.hpp"
#include "tinyscale/parallel/device_model.hpp"
#include "tinyscale/parallel/layout_hooks.hpp"
#include "tinyscale/tensor/deferred.hpp"
#include "tinyscale/tensor/matmul_format.hpp"

namespace tinyscale {
namespace detail {

class StepRunner {
 public:
  StepRunner(Device& device, DeviceModel& mine, const Layout& layout, const LayoutAxes& axes,
             const StepOptions& options, const std::vector<std::int32_t>& tokens)
      : device_(device),
        mine_(mine),
        layout_(layout),
        axes_(axes),
        options_(options),
        tokens_(tokens),
        stages_(layout, mine.model.config),
        rank_(mine.at().index(axes.pipeline)),
        hooks_(layout_hooks(device, layout, axes, mine.model.config, mine.model.config.context)),
        uses_(mine.units.size()) {
    flights_.resize(static_cast<std::size_t>(stages_.schedule.stages * layout.microbatches));
    inboxes_.resize(static_cast<std::size_t>(stages_.schedule.ranks));
    expect_messages();
    count_uses();
  }

  StepResult run(std::int64_t step, double loss_scale, std::int64_t updates) {
    hooks_.dropout = options_.dropout;
    hooks_.dropout_seed = parameter_seed(options_.seed, static_cast<std::uint64_t>(step));
    step_ = step;
    loss_scale_ = loss_scale;
    hooks_.experts = options_.experts;
    hooks_.experts.groups =
        std::max<std::int64_t>(1, options_.experts.groups / layout_.routing_devices());
    hooks_.expert_counts = &counts_;
    const std::int64_t alike = layout_.tensor / layout_.routing_ranks();  // route the same tokens
    hooks_.balance_weight = loss_scale / static_cast<double>(layout_.microbatches * alike);
    rounding_ = RoundingCount();
    {
      const MatmulFormat format(options_.format, &rounding_);
      for (const PipelineOp& op : program()) {
        const StepTask task = {static_cast<StepTask::Work>(op.work), op.stage, op.microbatch};
        device_.task(number(task));
        switch (op.work) {
          case PipelineWork::forward: forward(op); break;
          case PipelineWork::weight_gradient: weight_gradient(op); break;
          default: backward(op); break;
        }
      }
    }
    device_.task(number({StepTask::update, 0, 0}));
    return update(updates);
  }

 private:
  // What one microbatch left at one stage.
  struct Flight {
    Batch batch;
    List<Tensor> in, out;  // of each segment
    Tensor arrived;        // from the stage before, or the gradient from the one after
    Shared<DeferWeightGradients> deferred;
  };
  struct Message {
    int stage, microbatch;  // for which it is
    bool gradient;
    Tensor value;
  };
  struct Inbox {             // of one pipeline rank
    List<Message> expected;  // in the order in which it sends
    std::size_t next = 0;
    List<Message> early;  // came before they were wanted
  };

  int number(const StepTask& task) const {
    return task.number(stages_.schedule.stages, static_cast<int>(layout_.microbatches));
  }
  const List<PipelineOp>& program() const {
    return stages_.schedule.program[static_cast<std::size_t>(rank_)];
  }
  Flight& flight(int stage, int microbatch) {
    return flights_[static_cast<std::size_t>(stage * layout_.microbatches + microbatch)];
  }
  bool last(int stage) const { return stages_.is_last(stage); }
  bool uses(int segment, const FlatUnit& unit) const { return stages_.uses(segment, unit.layer); }

  Tensor run_segment(int segment, const Tensor& x, Flight& at) {
    const Transformer& model = mine_.model;
    if (segment == -1) {
      return model.embed(at.batch.ids, at.batch.sequences, at.batch.time, hooks_);
    }
    return segment == stages_.head_segment() ? model.head_loss(x, at.batch.targets, hooks_)
                                             : model.block(segment, x, hooks_);
  }
  void start_gather(int segment) {
    for (std::size_t u = 0; u < mine_.units.size(); ++u) {
      if (uses(segment, mine_.units[u])) {
        mine_.start_gather(device_, u);
      }
    }
  }
  // The segment's weights are here; those of the one after it are on their way.
  void gather(int segment, int next) {
    start_gather(segment);
    if (next >= -1) {
      start_gather(next);
    }
    for (std::size_t u = 0; u < mine_.units.size(); ++u) {
      if (uses(segment, mine_.units[u])) {
        mine_.finish_gather(device_, u);
      }
    }
  }
  void release(int segment, int next) {
    for (std::size_t u = 0; u < mine_.units.size(); ++u) {
      if (uses(segment, mine_.units[u]) && !(next >= -1 && uses(next, mine_.units[u]))) {
        mine_.release(u);
      }
    }
  }

  // ---- Ops of the schedule ----

  void load(Flight& at, int microbatch) {
    const std::int64_t whole = options_.batch / layout_.microbatches;
    const std::int64_t share = whole / layout_.data;
    const std::int64_t first = microbatch * whole + mine_.at().index(axes_.data) * share;
    const std::int64_t time = mine_.model.config.context;
    fill_batch(at.batch, tokens_, share, time, options_.seed, step_, first);
    if (layout_.context > 1) {
      Batch part;
      part.sequences = share;
      part.time = time / layout_.context;
      for (std::int64_t i = 0; i < share * part.time; ++i) {
        const std::int64_t from = i / part.time * time + hooks_.places.at(i % part.time);
        part.ids.push_back(at.batch.ids[static_cast<std::size_t>(from)]);
        part.targets.push_back(at.batch.targets[static_cast<std::size_t>(from)]);
      }
      at.batch = part;
    }
  }

  // Sets what the hooks must know of a microbatch.
  void enter(int microbatch) {
    const std::int64_t whole = options_.batch / layout_.microbatches;
    hooks_.first_sequence =
        microbatch * whole + mine_.at().index(axes_.data) * (whole / layout_.data);
  }

  void forward(const PipelineOp& op) {
    Flight& at = flight(op.stage, op.microbatch);
    enter(op.microbatch);
    if (op.stage == 0 || last(op.stage)) {
      load(at, op.microbatch);
    }
    const bool again = layout_.recompute == Recompute::full;
    const std::vector<int> chain = stages_.segments(op.stage);
    Tensor x = op.stage == 0 ? Tensor() : take(op.stage, op.microbatch, false);
    for (std::size_t i = 0; i < chain.size(); ++i) {
      const int next = i + 1 < chain.size() ? chain[i + 1] : none;
      gather(chain[i], next);
      const Tensor in = x.defined() ? leaf(x, MemoryKind::activation) : Tensor();
      const bool keeps = !again || chain[i] == stages_.head_segment();
      if (!keeps) {
        ++context().no_grad;
      }
      const Tensor out = run_segment(chain[i], in, at);
      if (!keeps) {
        --context().no_grad;
      }
      release(chain[i], next);
      at.in.push_back(in);
      at.out.push_back(keeps ? out : Tensor());
      x = out.detach();
    }
    if (last(op.stage)) {
      const double loss = static_cast<double>(x.item());
      check_finite("train_step", "loss", loss, step_, options_);
      loss_ += loss;
    } else {
      give(op.stage + 1, op.microbatch, false, x);
    }
  }

  void backward(const PipelineOp& op) {
    Flight& at = flight(op.stage, op.microbatch);
    enter(op.microbatch);
    const bool split = op.work == PipelineWork::input_gradient;
    const std::vector<int> chain = stages_.segments(op.stage);
    Tensor dy = last(op.stage) ? full(Shape{}, loss_seed()) : take(op.stage, op.microbatch, true);
    if (split) {
      at.deferred.reset(new DeferWeightGradients);
    }
    for (std::size_t i = chain.size(); i-- > 0;) {
      const int next = i > 0 ? chain[i - 1] : none;
      gather(chain[i], next);
      for (std::size_t u = 0; u < mine_.units.size(); ++u) {
        if (uses(chain[i], mine_.units[u])) {
          mine_.open_gradient(u);
        }
      }
      Tensor out = at.out[i];
      if (!out.defined()) {
        device_.task(number({StepTask::recompute, op.stage, op.microbatch}));
        hooks_.expert_counts = nullptr;  // they are counted already
        out = run_segment(chain[i], at.in[i], at);
        hooks_.expert_counts = &counts_;
        device_.task(number({static_cast<StepTask::Work>(op.work), op.stage, op.microbatch}));
      }
      out.backward(dy);
      dy = at.in[i].defined() ? at.in[i].grad() : Tensor();
      at.in[i] = at.out[i] = out = Tensor();
      release(chain[i], next);
      if (!split) {
        used(chain[i]);
      }
    }
    at.in.clear();
    at.out.clear();
    if (split) {
      at.deferred->stop();
    }
    if (op.stage > 0) {
      give(op.stage - 1, op.microbatch, true, dy);
    }
  }

  void weight_gradient(const PipelineOp& op) {
    Flight& at = flight(op.stage, op.microbatch);
    const std::vector<int> chain = stages_.segments(op.stage);
    for (std::size_t u = 0; u < mine_.units.size(); ++u) {
      for (const int segment : chain) {
        if (uses(segment, mine_.units[u])) {
          mine_.open_gradient(u);
        }
      }
    }
    at.deferred->run();
    at.deferred.reset();
    for (std::size_t i = chain.size(); i-- > 0;) {
      used(chain[i]);
    }
  }

  // One use less is to come: after the last one, or after the last one of an op where ZeRO 2 and 3
  // leave a device a part of it, the gradients of a unit leave.
  void used(int segment) {
    for (std::size_t u = 0; u < mine_.units.size(); ++u) {
      if (uses(segment, mine_.units[u])) {
        --uses_[u].left;
        const bool each =
            mine_.units[u].leaves_each_op(layout_.zero) && uses_[u].left % uses_[u].of_op == 0;
        if (each || uses_[u].left == 0) {
          mine_.start_reduce(device_, u, uses_[u].left == 0);
        }
      }
    }
  }

  // ---- What goes from stage to stage ----

  void expect_messages() {
    const PipelineSchedule& schedule = stages_.schedule;
    for (int from = 0; from < schedule.ranks; ++from) {
      for (const PipelineOp& op : schedule.program[static_cast<std::size_t>(from)]) {
        const int to = schedule.next_stage(op);
        if (from != rank_ && to >= 0 && schedule.rank(to, op.microbatch) == rank_) {
          inboxes_[static_cast<std::size_t>(from)].expected.push_back(
              {to, op.microbatch, op.work != PipelineWork::forward, Tensor()});
        }
      }
    }
  }
  void give(int stage, int microbatch, bool gradient, const Tensor& value) {
    const int to = stages_.schedule.rank(stage, microbatch);
    if (to == rank_) {
      flight(stage, microbatch).arrived = value.detach();
    } else {
      device_.send(value.detach(), static_cast<int>(mine_.at().rank_at(axes_.pipeline, to)),
                   SourceLine{gradient ? "gradients to stage" : "activations to stage", stage});
    }
  }
  // Messages of a rank come in the order in which it sends; they are wanted in that of the program.
  Tensor take(int stage, int microbatch, bool gradient) {
    const int from = stages_.schedule.rank(gradient ? stage + 1 : stage - 1, microbatch);
    if (from == rank_) {
      const Tensor value = flight(stage, microbatch).arrived;
      flight(stage, microbatch).arrived = Tensor();
      return value;
    }
    Inbox& inbox = inboxes_[static_cast<std::size_t>(from)];
    const auto wanted = [&](const Message& m) {
      return m.stage == stage && m.microbatch == microbatch && m.gradient == gradient;
    };
    for (std::size_t i = 0; i < inbox.early.size(); ++i) {
      if (wanted(inbox.early[i])) {
        const Tensor value = inbox.early[i].value;
        inbox.early[i] = inbox.early.back();
        inbox.early.pop_back();
        return value;
      }
    }
    for (;;) {
      Message message = inbox.expected[inbox.next];
      inbox.next = (inbox.next + 1) % inbox.expected.size();
      message.value =
          device_.recv(static_cast<int>(mine_.at().rank_at(axes_.pipeline, from)),
                       SourceLine{gradient ? "gradients to stage" : "activations to stage", stage});
      if (wanted(message)) {
        return message.value;
      }
      inbox.early.push_back(message);
    }
  }

  // ---- The end of a step ----

  struct Uses {
    std::int64_t left = 0, all = 0, of_op = 1;
  };
  void count_uses() {
    for (std::size_t u = 0; u < mine_.units.size(); ++u) {
      for (const PipelineOp& op : program()) {
        if (op.work == PipelineWork::forward) {
          const int of_op = stages_.uses_of_stage(op.stage, mine_.units[u].layer);
          uses_[u].all += of_op;
          uses_[u].of_op = of_op > 0 ? of_op : uses_[u].of_op;
        }
      }
      uses_[u].left = uses_[u].all;
    }
  }

  // What one token's loss counts: the mean over all tokens of the step.
  float loss_seed() const {
    return static_cast<float>(loss_scale_ /
                              static_cast<double>(layout_.microbatches * layout_.batch_devices()));
  }

  StepResult update(std::int64_t updates) {
    mine_.finish_gradients(device_);
    device_.task(number({StepTask::update, 0, 0}));  // here the gradients are all there is
    Tensor sums(Shape{2}, MemoryKind::buffer);
    const bool tells = mine_.at().index(axes_.tensor) == 0;
    const double share = static_cast<double>(layout_.microbatches * layout_.batch_devices());
    const bool first = mine_.at().index(axes_.batch) == 0;  // all have the same balance loss
    const double balance =
        first ? counts_.balance_loss / static_cast<double>(layout_.microbatches) : 0;
    sums.data()[0] = static_cast<float>(tells ? loss_ / share + balance : 0.0);
    sums.data()[1] = static_cast<float>(mine_.sum_of_squares() / (loss_scale_ * loss_scale_));
    const Tensor total =
        device_.size() == 1
            ? sums
            : device_.all_reduce(sums, Axes(axes_.all()), Reduce::sum, CollectiveOptions(),
                                 SourceLine{"loss and gradient norm", -1});
    StepResult result;
    result.loss = static_cast<double>(total.data()[0]);
    result.grad_norm = std::sqrt(static_cast<double>(total.data()[1]));
    result.loss_scale = loss_scale_;
    result.rounding = rounding_;
    result.skipped = skips(result, options_, step_);
    if (!result.skipped) {
      mine_.update(adamw_step(options_, step_, updates, result));
    }
    mine_.end_step(device_, !result.skipped);
    loss_ = counts_.balance_loss = 0;
    for (Uses& uses : uses_) {
      uses.left = uses.all;
    }
    return result;
  }

  static constexpr int none = -2;

  Device& device_;
  DeviceModel& mine_;
  const Layout& layout_;
  const LayoutAxes& axes_;
  const StepOptions& options_;
  const std::vector<std::int32_t>& tokens_;
  StageMap stages_;
  std::int64_t rank_;
  Hooks hooks_;
  List<Uses> uses_;  // of each unit
  List<Flight> flights_;
  List<Inbox> inboxes_;
  std::int64_t step_ = 0;
  double loss_scale_ = 1, loss_ = 0;
  RoundingCount rounding_;
  ExpertCounts counts_;
};

}  // namespace detail
}  // namespace tinyscale
