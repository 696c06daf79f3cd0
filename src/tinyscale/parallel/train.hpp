#pragma once
// ts::train for one device and many: the same loop, the same data order, the same report.
// On a mesh every device holds the whole model (data parallelism): each step it learns from its
// part of the batch, and one all_reduce of all gradients and the loss makes the steps equal.

#include <cstdint>  // int64_t
#include <cstring>  // memcpy
#include <string>   // string
#include <vector>   // vector

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/hardware/laptop.hpp"
#include "tinyscale/measure/profile.hpp"
#include "tinyscale/mesh/mesh.hpp"
#include "tinyscale/model/read_text.hpp"
#include "tinyscale/model/train_step.hpp"
#include "tinyscale/model/training_memory.hpp"
#include "tinyscale/parallel/layout.hpp"
#include "tinyscale/parallel/train_report.hpp"

namespace tinyscale {

struct TrainOptions : StepOptions {
  Machine machine;  // empty: one device, this laptop
  Layout layout;
};

// FLOPs that training takes for one token: 6 a parameter that multiplies (the embedding lookup and
// learned positions do not) and 12 L H K times the mean of T/2 visible keys (scaling book, ch. 4,
// causal), with the output matrix counted whether tied or not.
inline double model_flops_per_token(const ModelConfig& c, std::int64_t time) {
  const double lookups =
      static_cast<double>(c.vocabulary * c.width) * (c.tied ? 0 : 1) +
      static_cast<double>(c.position == Position::learned ? c.context * c.width : 0);
  const double multiplied = static_cast<double>(c.active_parameters()) - lookups;
  const double attention = 12.0 * static_cast<double>(c.layers * c.heads * c.head_size) *
                           (static_cast<double>(time) + 1) / 2;
  return 6.0 * multiplied + attention;
}

namespace detail {

// A device's copy of the model, equal number for number, and its optimizer.
struct Replica {
  Replica(const Transformer& source, const StepOptions& options)
      : model(source.config, 0),
        optimizer(copy_parameters(source, model), adamw_options(options)) {}

  static std::vector<Tensor> copy_parameters(const Transformer& from, Transformer& to) {
    const std::vector<Tensor> source = from.tensors();
    std::vector<Tensor> target = to.tensors();
    for (std::size_t i = 0; i < source.size(); ++i) {
      std::memcpy(target[i].data(), source[i].data(),
                  static_cast<std::size_t>(source[i].count()) * sizeof(float));
    }
    return target;
  }

  Transformer model;
  AdamW optimizer;
};

// All gradients and the loss in one buffer, so that a step has a single all_reduce.
inline Tensor pack_gradients(const std::vector<Tensor>& tensors, double loss) {
  std::int64_t count = 1;
  for (const Tensor& tensor : tensors) {
    count += tensor.count();
  }
  const MemoryScope scope(MemoryKind::buffer);
  Tensor packed = zeros({count});
  float* to = packed.data();
  for (const Tensor& tensor : tensors) {
    const Tensor grad = tensor.grad();
    if (grad.defined()) {
      std::memcpy(to, grad.data(), static_cast<std::size_t>(grad.count()) * sizeof(float));
    }
    to += tensor.count();
  }
  *to = static_cast<float>(loss);
  return packed;
}

inline void unpack_gradients(const Tensor& packed, const std::vector<Tensor>& tensors,
                             double& loss) {
  const float* from = packed.data();
  for (const Tensor& tensor : tensors) {
    std::memcpy(grad_buffer(tensor.slot()), from,
                static_cast<std::size_t>(tensor.count()) * sizeof(float));
    from += tensor.count();
  }
  loss = static_cast<double>(*from);
}

// One step of data parallelism, as one device sees it.
inline StepResult data_parallel_step(Device& device, Replica& replica,
                                     const std::vector<std::int32_t>& tokens,
                                     const StepOptions& options, std::int64_t step) {
  const std::int64_t share = options.batch / device.size("data");
  const std::int64_t first = share * device.index("data");
  Hooks hooks;
  hooks.first_sequence = first;
  hooks.reduce = [&device](const std::vector<Tensor>& tensors, double& loss) {
    const Tensor sum = device.all_reduce(pack_gradients(tensors, loss), "data", Reduce::mean);
    unpack_gradients(sum, tensors, loss);
  };
  const Batch batch =
      make_batch(tokens, share, replica.model.config.context, options.seed, step, first);
  return train_step(replica.model, replica.optimizer, batch, options, step, hooks);
}

// What runs one step and which model it trained.
class Trainer {
 public:
  Trainer(Transformer& model, const Text& text, const TrainOptions& options)
      : model_(model), options_(options), tokens_(text.train()) {
    const std::int64_t devices = options.layout.devices();
    if (devices == 1) {
      optimizer_.reset(new AdamW(model.tensors(), adamw_options(options)));
      return;
    }
    mesh_.reset(new Mesh(options.machine, {{"data", devices}}));
    for (std::int64_t i = 0; i < devices; ++i) {
      replicas_.push_back(Shared<Replica>(new Replica(model, options)));
    }
  }

  StepResult step(std::int64_t number) {
    if (!mesh_) {
      fill_batch(batch_, tokens_, options_.batch, model_.config.context, options_.seed, number);
      return train_step(model_, *optimizer_, batch_, options_, number);
    }
    List<StepResult> results(replicas_.size());
    const MeshRun run = mesh_->run([&](Device& device) {
      const auto rank = static_cast<std::size_t>(device.rank());
      results[rank] = data_parallel_step(device, *replicas_[rank], tokens_, options_, number);
    });
    last_.reset(new MeshRun(run));
    return results[0];
  }

  const Transformer& model() const { return mesh_ ? replicas_[0]->model : model_; }
  const Shared<const MeshRun>& last_run() const { return last_; }
  void finish() {
    if (mesh_) {
      Replica::copy_parameters(replicas_[0]->model, model_);
    }
  }

 private:
  Transformer& model_;
  const TrainOptions& options_;
  std::vector<std::int32_t> tokens_;
  Batch batch_;
  Shared<AdamW> optimizer_;
  Shared<Mesh> mesh_;
  List<Shared<Replica>> replicas_;
  Shared<const MeshRun> last_;
};

inline void print_progress(const TrainOptions& options, std::int64_t step, double loss,
                           const TrainReport& report) {
  if (options.out == nullptr) {
    return;
  }
  const double done = static_cast<double>(step + 1);
  const double left = report.seconds / done * (static_cast<double>(options.steps) - done);
  *options.out << cat({"step ", step + 1, "/", options.steps, "  loss ", format_fixed(loss, 4),
                       "  ", format_count(std::round(report.tokens_per_second)), " tokens/s  MFU ",
                       format_percent(report.mfu), "  ", format_seconds(left), " left"})
               << std::endl;
}

inline void update_speed(TrainReport& report, const TrainOptions& options, std::int64_t time,
                         double peak) {
  const auto steps = static_cast<double>(report.losses.size());
  const double tokens = steps * static_cast<double>(options.batch * time);
  report.tokens_per_second = report.seconds > 0 ? tokens / report.seconds : 0;
  report.mfu = peak > 0 ? report.tokens_per_second * report.flops_per_token / peak : 0;
}

inline void validate(const Trainer& trainer, const Text& text, const TrainOptions& options,
                     std::int64_t step, TrainReport& report) {
  const double loss = evaluate(trainer.model(), text.validation());
  check_finite("train", "validation loss", loss, step - 1, options);
  report.validation.push_back({step, loss});
  if (options.out != nullptr) {
    *options.out << cat({"step ", step, "  validation loss ", format_fixed(loss, 4)}) << std::endl;
  }
}

// The last update shows in no training loss, and a short text has no validation.
inline void check_weights(const Transformer& model, const TrainOptions& options) {
  double total = 0;
  for (const Parameter& p : model.parameters) {
    total += kernels::sum_of_squares(p.value.count(), p.value.data());
  }
  check_finite("train", "norm of the weights", std::sqrt(total), options.steps - 1, options);
}

inline void check_training(const Transformer& model, const Text& text,
                           const TrainOptions& options) {
  check_options("train", options);
  if (text.tokenizer.vocabulary() > model.config.vocabulary) {
    fail({"train: the text has ", text.tokenizer.vocabulary(),
          " distinct tokens, the model's vocabulary is ", model.config.vocabulary,
          "; raise config.vocabulary"});
  }
  check_layout(options.layout, options.machine.dims.count(), options.batch);
  check_length("train", text.train(), model.config.context);
}

// Peak bytes that training added, by the meter, beside the closed form. `level` is what the meter
// held before, the model left out.
inline Comparison memory_rows(const ModelConfig& config, const TrainOptions& options,
                              const MemoryMeter& meter, double level) {
  const TrainingMemory formula = training_memory(config, options.batch, config.context);
  Comparison rows;
  rows.title = "peak memory of training";
  rows.add("parameters + gradients + optimizer + activations", "B", formula.total(),
           meter.peak_total() - level);
  return rows;
}

// Bytes, steps and simulated time of a step's all_reduce beside their closed forms.
inline Comparison mesh_rows(const MeshRun& run) {
  const CallShape& call = *run.log().calls[0].shape;
  const CollectiveRow row = run.collectives()[0];
  Comparison rows;
  rows.title = cat({"one step on the mesh: all_reduce of ", call.spec.elements, " numbers over ",
                    call.spec.devices(), " devices by ", name_of(call.spec.algorithm)});
  for (int i = 0; i < run.devices(); ++i) {
    rows.add(cat({"bytes sent by device ", i}), "B", collective_bytes(call.spec, i),
             run.bytes_sent(i));
  }
  rows.add("communication steps", "", static_cast<double>(collective_steps(call.spec)),
           static_cast<double>(row.steps));
  rows.add("simulated time", "s", collective_seconds(call.spec), row.seconds);
  return rows;
}

}  // namespace detail

// Trains the model on the first 90 % of the text; validates on the rest every eval_every steps and
// at the end. Deterministic for a seed and layout. Throws when a loss or a weight is not finite.
inline TrainReport train(Transformer& model, const Text& text,
                         const TrainOptions& options = TrainOptions()) {
  detail::check_training(model, text, options);
  model.tokenizer = text.tokenizer;
  const std::int64_t time = model.config.context;
  const bool can_validate = static_cast<std::int64_t>(text.validation().size()) > time;
  TrainReport report;
  report.model = model.config.name;
  report.text = text.name;
  report.machine = options.machine.name;
  report.devices = options.layout.devices();
  report.format = options.format;
  report.flops_per_token = model_flops_per_token(model.config, time);
  const double peak = laptop().peak(options.format);
  const Shared<MemoryMeter> meter = context().memory;
  const double level = meter->current_total() - 4.0 * static_cast<double>(model.count());
  detail::Trainer trainer(model, text, options);
  meter->reset_peak();
  for (std::int64_t step = 0; step < options.steps; ++step) {
    const double start = detail::seconds_now();
    const StepResult result = trainer.step(step);
    report.seconds += detail::seconds_now() - start;
    report.losses.push_back(result.loss);
    report.grad_norms.push_back(result.grad_norm);
    detail::update_speed(report, options, time, peak);
    if (step == 0 && report.devices == 1) {
      report.memory = detail::memory_rows(model.config, options, *meter, level);
    }
    const bool last = step + 1 == options.steps;
    if (last || (step + 1) % 50 == 0 || step == 0) {
      detail::print_progress(options, step, result.loss, report);
    }
    const bool due = options.eval_every > 0 && (step + 1) % options.eval_every == 0;
    if (can_validate && (last || due)) {
      detail::validate(trainer, text, options, step + 1, report);
    }
  }
  trainer.finish();
  detail::check_weights(model, options);
  report.last_step = trainer.last_run();
  if (report.devices > 1) {
    report.counted = detail::mesh_rows(*report.last_step);
  }
  return report;
}

}  // namespace tinyscale
