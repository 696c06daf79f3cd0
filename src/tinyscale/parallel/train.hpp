#pragma once
// ts::train for one device and many: the same loop, the same data order, the same report.
// On a mesh the layout says which device holds what and does what (device_step.hpp).

#include <cstdint>  // int64_t
#include <vector>   // vector

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/hardware/laptop.hpp"
#include "tinyscale/measure/profile.hpp"
#include "tinyscale/model/read_text.hpp"
#include "tinyscale/model/training_memory.hpp"
#include "tinyscale/parallel/train_checkpoint.hpp"
#include "tinyscale/parallel/train_report.hpp"
#include "tinyscale/parallel/trainer.hpp"

namespace tinyscale {

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

inline void print_progress(const TrainOptions& options, std::int64_t step, double loss,
                           const TrainReport& report) {
  if (options.out == nullptr) {
    return;
  }
  const double done = static_cast<double>(step + 1 - report.resumed);
  const double left = report.seconds / done * static_cast<double>(options.steps - step - 1);
  *options.out << cat({"step ", step + 1, "/", options.steps, "  loss ", format_fixed(loss, 4),
                       "  ", format_count(std::round(report.tokens_per_second)), " tokens/s  MFU ",
                       format_percent(report.mfu), "  ", format_seconds(left), " left"})
               << std::endl;
}

inline void print_resumed(const TrainOptions& options, const TrainReport& report) {
  if (options.out != nullptr && report.resumed > 0) {
    *options.out << cat({"resumed \"", options.checkpoint.c_str(), "\" after step ", report.resumed,
                         report.resumed < options.steps ? "" : ": no step is left"})
                 << std::endl;
  }
}

inline void update_speed(TrainReport& report, const TrainOptions& options, std::int64_t time,
                         double peak) {
  const auto steps = static_cast<std::int64_t>(report.losses.size()) - report.resumed;
  const double tokens = static_cast<double>(steps) * static_cast<double>(options.batch * time);
  report.tokens_per_second = report.seconds > 0 ? tokens / report.seconds : 0;
  report.mfu = peak > 0 ? report.tokens_per_second * report.flops_per_token / peak : 0;
}

inline void validate(Trainer& trainer, const Text& text, const TrainOptions& options,
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

// Of several devices each is a group of its own at least.
inline void check_groups(const TrainOptions& options, const ModelConfig& c) {
  const std::int64_t devices = options.layout.routing_devices(), groups = options.experts.groups;
  if (groups < 1 || (groups != 1 && groups % devices != 0)) {
    fail({"train: ", groups, " groups of tokens (experts.groups) over data x context ",
          options.layout.whole_experts ? "x tensor " : "", "= ", devices,
          "; right is a multiple of ", devices, ", or 1 for as many as there are devices"});
  }
  const std::int64_t sequences = options.batch / options.layout.microbatches;
  if (c.experts > 0 && sequences % groups * (c.context % groups) % groups != 0) {
    fail({"train: ", groups, " groups of tokens (experts.groups) of ", sequences, " x ", c.context,
          " in a microbatch; a number that divides those is right"});
  }
  if (devices > 1 && !options.experts.group_of.empty()) {
    fail({"train: experts.group_of is given, and the layout is ", options.layout.text(),
          "; where tokens lie on several devices those are their groups: leave it empty"});
  }
}

inline void check_train_file(const TrainOptions& options) {
  const TrainFile& file = options.checkpoint;
  const bool none = file.empty();
  if (options.checkpoint_every < 0 || (none && (options.checkpoint_every > 0 || options.resume))) {
    fail({"train: checkpoint is \"", file.c_str(), "\", checkpoint_every ",
          options.checkpoint_every, ", resume ", options.resume ? "true" : "false",
          "; a path, and steps of at least 0, are right"});
  }
  if (!none && file.calls == nullptr) {
    fail({"train: checkpoint is \"", file.c_str(),
          "\", put together in its place; assign the whole path"});
  }
}

inline bool save_is_due(const TrainOptions& options, std::int64_t steps) {
  const std::int64_t every = options.checkpoint_every;
  return !options.checkpoint.empty() &&
         (steps == options.steps || (every > 0 && steps % every == 0));
}

// Of a layout where no machine is given.
inline void check_one_device(const TrainOptions& options, const ModelConfig& c) {
  const Layout& layout = options.layout;
  if (options.machine.dims.size() > 0) {
    fail({"train: options.machine \"", options.machine.name,
          "\" is put together in its place; assign the whole machine"});
  }
  check_layout_devices("train", layout, 1);
  check_layout_order(layout);
  check_layout_batch(layout, options.batch);
  check_layout_experts(layout, c);
  check_layout_zero(layout);
  if (!layout.schedule.empty()) {
    fail({"train: the schedule ", layout.schedule.name,
          " is of a machine, and none is given; options.machine = ts::machine(\"tpu-v5e\", {1}) "
          "is right for one device"});
  }
}

// Of MPI ranks that train together one tells the progress. The default batch is what the layout
// can divide.
inline TrainOptions with_defaults(TrainOptions options) {
  if (options.out == &std::cout && options.on_mesh() && process_rank() != 0) {
    options.out = nullptr;
  }
  const Layout& layout = options.layout;
  const bool counts = layout.data >= 1 && layout.data <= 1 << 24 && layout.microbatches >= 1 &&
                      layout.microbatches <= 1 << 24;
  const std::int64_t parts = counts ? layout.data * layout.microbatches : 1;
  const std::int64_t left_open = StepOptions().batch;
  if (options.batch == left_open && left_open % parts != 0) {
    options.batch = (left_open + parts - 1) / parts * parts;
    if (options.out != nullptr) {
      *options.out << "batch: " << left_open << " sequences do not divide over data " << layout.data
                   << " x microbatches " << layout.microbatches << "; a step has " << options.batch
                   << "\n";
    }
  }
  return options;
}

// A model that learned in other tokens would begin anew, with its own forgotten.
inline void check_tokenizer(const Transformer& model, const Text& text) {
  const bool fresh = model.tokenizer.kind() == TokenizerKind::bytes;
  if (!fresh && !(model.tokenizer == text.tokenizer)) {
    fail({"train: ", model.config.name, " knows ", model.tokenizer.text(), ", the text ", text.name,
          " is in ", text.tokenizer.text(),
          "; read the text in the model's: read_text(path, model.tokenizer), or make_text(name, "
          "text, model.tokenizer)"});
  }
}

inline void check_training(const Transformer& model, const Text& text,
                           const TrainOptions& options) {
  check_options("train", options);
  const LossScaler& s = options.loss_scaler;
  if (!is_finite(s.scale) || !is_finite(s.smallest) || !is_finite(s.largest) || !(s.scale > 0) ||
      !(s.smallest > 0) || !(s.largest > 0) || s.growth_steps < 1) {
    fail({"train: loss_scaler has scale ", s.scale, ", smallest ", s.smallest, ", largest ",
          s.largest, ", growth_steps ", s.growth_steps,
          "; finite numbers above 0 and at least 1 step are right"});
  }
  if (text.tokenizer.vocabulary() > model.config.vocabulary) {
    fail({"train: the text has ", text.tokenizer.vocabulary(),
          " distinct tokens, the model's vocabulary is ", model.config.vocabulary,
          "; raise config.vocabulary"});
  }
  if (options.machine.calls != nullptr && options.machine.dims.size() > 0) {
    options.machine.calls->check_layout(options.layout, model.config, options.machine.chips(),
                                        options.batch, model.config.context);
  } else {
    check_one_device(options, model.config);
  }
  if (!options.faults.all.empty() && !options.on_mesh()) {
    fail({"train: ", options.faults.all.size(),
          options.faults.all.size() == 1 ? " fault" : " faults",
          " of a machine, and one device trains alone, without simulated time; give ",
          "options.machine and a layout of several devices, or no faults"});
  }
  check_groups(options, model.config);
  check_length("train", text.train(), model.config.context);
}

// Peak bytes that training added, by the meter, beside the closed form. `level` is what the meter
// held before, the model left out.
inline Comparison memory_rows(const ModelConfig& config, const TrainOptions& options,
                              const MemoryMeter& meter, double level) {
  const TrainingMemory formula =
      training_memory(config, options.batch / options.layout.microbatches, config.context);
  Comparison rows;
  rows.title = "peak memory of training";
  rows.add("parameters + gradients + optimizer + activations", "B", formula.total(),
           meter.peak_total() - level);
  return rows;
}

// The losses of the steps from `first` on on one device, with the same microbatches and groups of
// tokens.
inline std::vector<double> one_device_losses(const Transformer& model, const Text& text,
                                             const TrainOptions& options, const TrainState& start,
                                             std::int64_t first) {
  const Layout& layout = options.layout;
  TrainOptions one = options;
  one.machine = TrainMachine();
  one.layout = Layout();
  one.layout.microbatches = layout.microbatches;
  one.experts.groups = std::max(options.experts.groups, layout.routing_devices());
  if (layout.routing_devices() > layout.data) {
    one.experts.group_of =
        token_groups(layout.context_parallel, layout.data, layout.context,
                     options.batch / layout.microbatches, model.config.context,
                     one.experts.groups / layout.routing_devices(), layout.routing_ranks());
  }
  Transformer copy = copy_of(model);
  Trainer trainer(copy, text.train(), one, start);
  std::vector<double> losses;
  const std::int64_t end = std::min(first + options.check_steps, options.steps);
  for (std::int64_t step = first; step < end; ++step) {
    losses.push_back(trainer.step(step).loss);
  }
  return losses;
}

}  // namespace detail

// Trains the model on the first 90 % of the text; validates on the rest every eval_every steps and
// at the end. Deterministic for a seed and layout. Throws when a loss or a weight is not finite.
// Goes on from options.checkpoint when options.resume says so; of a training that has as many steps
// or more it takes none.
inline TrainReport train(Transformer& model, const Text& text,
                         const TrainOptions& given = TrainOptions()) {
  const TrainOptions options = detail::with_defaults(given);
  detail::check_training(model, text, options);
  detail::check_tokenizer(model, text);
  model.tokenizer = text.tokenizer;
  const std::int64_t time = model.config.context;
  const bool can_validate = static_cast<std::int64_t>(text.validation().size()) > time;
  TrainReport report;
  report.model = model.config.name;
  report.text = text.name;
  report.machine = options.machine.name;
  report.layout = options.layout.devices() > 1 ? options.layout.text() : "";
  report.devices = options.layout.devices();
  report.batch = options.batch;
  report.format = options.format;
  report.flops_per_token = model_flops_per_token(model.config, time);
  const double peak = laptop().peak(options.format);
  const Shared<MemoryMeter> meter = context().memory;
  const double level = meter->current_total() - 4.0 * static_cast<double>(model.count());
  detail::check_train_file(options);
  const detail::TrainFileCalls* const file = options.checkpoint.calls;
  const bool keeps = !options.checkpoint.empty();
  const Shared<detail::TrainCheckpoint> checkpoint =
      keeps ? file->open(text, options) : Shared<detail::TrainCheckpoint>();
  detail::TrainState before =
      keeps ? file->resume(*checkpoint, model, report) : detail::TrainState();
  detail::print_resumed(options, report);
  if (report.devices > 1) {
    report.one_device =
        detail::one_device_losses(model, text, options, detail::copy_of(before), report.resumed);
  }
  detail::Trainer trainer(model, text.train(), options, before);
  before = detail::TrainState();
  meter->reset_peak();
  for (std::int64_t step = report.resumed; step < options.steps; ++step) {
    const double start = detail::seconds_now();
    const StepResult result = trainer.step(step);
    report.seconds += detail::seconds_now() - start;
    report.losses.push_back(result.loss);
    report.grad_norms.push_back(result.grad_norm);
    report.skipped_steps += result.skipped ? 1 : 0;
    report.rounding.add(result.rounding);
    detail::update_speed(report, options, time, peak);
    if (step == report.resumed) {
      List<DeviceMemory> needs = trainer.peaks();
      needs[0].total -= trainer.on_mesh() ? 0 : level;
      if (options.machine.calls != nullptr) {
        options.machine.calls->check_memory(options.layout, model.config, options.batch,
                                            options.machine, needs);
      }
    }
    const bool formula = !trainer.on_mesh() && options.layout.recompute == Recompute::none;
    if (step == report.resumed && formula) {
      report.memory = detail::memory_rows(model.config, options, *meter, level);
    }
    const bool last = step + 1 == options.steps;
    if (last || (step + 1) % 50 == 0 || step == report.resumed) {
      detail::print_progress(options, step, result.loss, report);
    }
    const bool due = options.eval_every > 0 && (step + 1) % options.eval_every == 0;
    if (can_validate && (last || due)) {
      detail::validate(trainer, text, options, step + 1, report);
    }
    if (detail::save_is_due(options, step + 1)) {
      file->save(*checkpoint, trainer, report);
    }
  }
  trainer.model();
  detail::check_weights(model, options);
  report.loss_scale = trainer.state().loss_scale;
  if (trainer.on_mesh() && trainer.on().last_run()) {
    report.last_step = trainer.on().last_run();
    report.step = options.machine.calls->report(trainer.on());
    report.step_printer = options.machine.calls->printer;
  }
  return report;
}

}  // namespace tinyscale
