#pragma once
// A step of training on a mesh: what was counted beside its plan, for every device: bytes and steps
// of each collective along each axis, FLOPs, memory by kind, bubble; and where the simulated time
// went. A value is a formula, counted, or simulated on the declared machine.

#include <algorithm>  // max
#include <cstdint>    // int64_t
#include <string>     // string
#include <vector>     // vector

#include "tinyscale/base/list.hpp"
#include "tinyscale/measure/compare.hpp"
#include "tinyscale/mesh/time_breakdown.hpp"
#include "tinyscale/parallel/device_step.hpp"
#include "tinyscale/parallel/flops_forms.hpp"
#include "tinyscale/parallel/pipeline_timing.hpp"
#include "tinyscale/parallel/step_traffic.hpp"

namespace tinyscale {

struct StepReport {
  std::string layout, letters;  // letters: what those of the formulas stand for
  Comparison sent;       // bytes and steps of each collective along each axis, of all devices
  Comparison work;       // FLOPs of all devices
  Comparison memory;     // bytes of the device that holds the most, of each pipeline rank
  Comparison bubble;     // seconds, of each pipeline rank
  Comparison times;      // seconds, mean of the devices, beside bounds: a waterfall
  Table devices;         // FLOPs, bytes sent, peak memory by kind, time: a row for each
  Table use;             // of the chips: MFU and HFU by named conventions
  List<TimeShare> time;  // simulated, mean of the devices
  TaskNames tasks;       // of the run's tasks, for pictures
  double seconds = 0;    // simulated
  double mfu = 0;        // 6 FLOPs a parameter and token + causal attention, over the peak
  double hfu = 0;        // all matmul FLOPs that were counted, over the peak
  bool mean = false;     // some formulas are right on average alone: they depend on routing

  // Every number beside its formula, as they are.
  Table table() const;
  operator Table() const { return table(); }
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
};

namespace detail {

class StepReporter {
 public:
  StepReporter(const MeshRun& run, const Transformer& model, const Layout& layout,
               const StepOptions& options, bool updates)
      : run_(run),
        config_(model.config),
        layout_(layout),
        options_(options),
        axes_(layout_axes(layout)),
        stages_(layout, model.config) {
    for (int rank = 0; rank < run.devices(); ++rank) {
      plans_.push_back(StepPlanner(model, layout, axes_, options, rank, updates).plan);
    }
    report.seconds = run.seconds;
    report.layout = layout.text();
    report.letters = letters_of_plan(model.config, layout, options);
    name_tasks();
    report.time = time_breakdown(run, report.tasks);
    add_sent();
    add_work();
    add_memory();
    add_bubble();
    add_times();
    add_devices();
  }

  StepReport report;

 private:
  std::size_t devices() const { return plans_.size(); }

  static const char* class_of(int work) {
    static const char* const names[] = {"forward",         "backward",  "input gradient",
                                        "weight gradient", "recompute", "update"};
    return names[work];
  }
  void name_tasks() {
    const int stages = stages_.schedule.stages, m = static_cast<int>(layout_.microbatches);
    for (int number = 0; number < 6 * stages * m; ++number) {
      const StepTask task = StepTask::of(number, stages, m);
      report.tasks.names.push_back(task.text());
      report.tasks.classes.push_back(class_of(task.work));
    }
    report.tasks.note =
        "F1.2: forward pass of stage 1, microbatch 2; B: backward; I, W: its halves, gradients of "
        "inputs and of weights; R: computed again";
    report.tasks.waits.push_back({"pipeline", "bubble"});
    if (layout_.pipeline > 1) {  // all wait for the slowest before the update
      report.tasks.waits.push_back({all_axes(), "bubble"});
    }
  }
  std::string all_axes() const { return names_text(axes_.all()); }

  // ---- Bytes and steps ----

  List<Traffic> traffic() const {
    List<Traffic> all;
    const List<AxisPlacement> placed = place_axes(run_.machine(), axes_.mesh);
    for (std::size_t d = 0; d < devices(); ++d) {
      const MeshPoint at(axes_.mesh, static_cast<std::int64_t>(d));
      for (const PlannedCall& call : plans_[d].calls) {
        const PlannedCost cost = planned_cost(call, at, run_.machine(), placed, layout_.algorithm);
        Traffic& row = traffic_of(all, call.send ? "send" : name_of(call.what),
                                  names_text(call.axes), devices());
        row.planned[d] += cost.bytes;
        row.planned_steps[d] += static_cast<double>(cost.steps);
        row.mean = row.mean || call.mean;
        row.add_formula(call.why, call.formula);
      }
    }
    const RunLog& log = run_.log();
    for (std::size_t c = 0; c < log.calls.size(); ++c) {
      const LoggedCall& call = log.calls[c];
      const CallShape& shape = *call.shape;
      Traffic& row = traffic_of(all, shape.name, run_.axes_of_call(c), devices());
      std::vector<double> in(devices());
      add_bytes(call, row.counted, in);
      std::size_t steps = 0;
      for (const PreparedSchedule::Stream& stream : shape.schedule->streams) {
        steps = std::max(steps, stream.last - stream.first);
      }
      for (std::size_t i = 0; i < call.members->size() && !(shape.eager && i > 0); ++i) {
        row.counted_steps[static_cast<std::size_t>((*call.members)[i])] +=
            static_cast<double>(steps);
      }
    }
    return all;
  }

  // The sum over devices; and each device that differs from its plan.
  void add_rows(Comparison& rows, const std::string& name, const char* unit,
                const std::vector<double>& planned, const std::vector<double>& counted, bool mean,
                const std::string& how) {
    double plan = 0, count = 0;
    for (std::size_t d = 0; d < devices(); ++d) {
      plan += planned[d];
      count += counted[d];
    }
    rows.add((mean ? "about: " : "") + name, unit, plan, count, how);
    for (std::size_t d = 0; d < devices() && !mean; ++d) {
      if (planned[d] < counted[d] || counted[d] < planned[d]) {
        rows.add(cat({name, ", device ", d}), unit, planned[d], counted[d]);
      }
    }
  }
  void add_sent() {
    report.sent.title = cat({"what a step sends, sum of ", devices(), " devices"});
    for (const Traffic& row : traffic()) {
      const std::string name = cat({row.name, " over ", row.axes});
      add_rows(report.sent, name, "B", row.planned, row.counted, row.mean, row.formulas());
      add_rows(report.sent, name, "steps", row.planned_steps, row.counted_steps, false, "");
      report.mean = report.mean || row.mean;
    }
  }

  // ---- FLOPs ----

  void add_work() {
    std::vector<double> planned, counted;
    bool mean = false;
    double all = 0;
    for (std::size_t d = 0; d < devices(); ++d) {
      planned.push_back(plans_[d].matmul_flops());
      counted.push_back(run_.counters(static_cast<int>(d)).matmul_flops);
      mean = mean || plans_[d].mean_flops;
      all += counted[d];
    }
    report.work.title = "what a step computes in matmuls";
    add_rows(report.work, "all devices", "FLOP", planned, counted, mean, "");
    report.mean = report.mean || mean;
    add_use(all);
  }
  // Of the simulated clock. Formulas see T/2 keys a token, each matmul once forward and twice
  // backward; the devices (T+1)/2, and the scores once more backward.
  void add_use(double counted) {
    const ModelConfig& c = config_;
    const auto context = static_cast<double>(c.context);
    const double tokens = static_cast<double>(options_.batch) * context;
    const Chip& chip = run_.machine().chip;
    const double could =
        chip.peak(options_.format) * static_cast<double>(devices()) * report.seconds;
    report.use.title =
        cat({"use of the chips: FLOPs of a step over what ", devices(), " x ", chip.name, " at ",
             format_si(chip.peak(options_.format), "FLOP/s"), " in ", name_of(options_.format.type),
             " could do in its simulated ", format_seconds(report.seconds)});
    report.use.columns = {"convention", "FLOPs of a step", "use"};
    const auto add = [&](const std::string& name, double flops) {
      report.use.add({name, format_si(flops, "FLOP"),
                      number_cell('g', 3, could > 0 ? 100 * flops / could : 0, "%")});
      return could > 0 ? flops / could : 0;
    };
    const auto causal = AttentionFlops::causal;
    add("MFU, 6 N", tokens * six_n(c));
    add("MFU, PaLM: 6 N + 12 L H K T", tokens * palm_flops_per_token(c, context));
    report.mfu = add("MFU, matmul weights + causal attention",
                     tokens * training_flops_per_token(c, context, causal));
    add("HFU, the same + recomputation",
        tokens * hardware_flops_per_token(c, context, causal, layout_.recompute));
    report.hfu = add("HFU, counted on the devices", counted);
  }

  // ---- Memory ----

  static double level(const MemorySample& sample, MemoryKind kind) {
    return sample.levels[static_cast<std::size_t>(kind)];
  }
  void add_memory() {
    report.memory.title = cat({"memory, of the device with the most of each",
                               layout_.pipeline > 1 ? " in each pipeline rank" : ""});
    for (std::int64_t rank = 0; rank < layout_.pipeline; ++rank) {
      add_memory(rank);
    }
  }
  void add_memory(std::int64_t rank) {
    double planned[6] = {0, 0, 0, 0, 0, 0}, counted[6] = {0, 0, 0, 0, 0, 0};
    const auto most = [&](int i, double plan, double count) {
      planned[i] = std::max(planned[i], plan);
      counted[i] = std::max(counted[i], count);
    };
    bool known = true;
    const int stages = stages_.schedule.stages, m = static_cast<int>(layout_.microbatches);
    const int update = StepTask{StepTask::update, 0, 0}.number(stages, m);
    for (std::size_t d = 0; d < devices(); ++d) {
      const StepPlan& plan = plans_[d];
      if (MeshPoint(axes_.mesh, static_cast<std::int64_t>(d)).index(axes_.pipeline) != rank) {
        continue;
      }
      known = known && plan.activations >= 0;
      const List<MemorySample> samples = run_.memory_samples(static_cast<int>(d));
      double kept = 0, logits = 0;
      for (std::size_t i = 0; i < samples.size(); ++i) {
        if (samples[i].task == update && samples[i - 1].task != update) {
          most(0, plan.parameters, level(samples[i], MemoryKind::parameter));
          most(1, plan.gradients, level(samples[i], MemoryKind::gradient));
          most(2, plan.optimizer, level(samples[i], MemoryKind::optimizer));
        } else if (samples[i].task >= 0 &&
                   StepTask::of(samples[i].task, stages, m).work == StepTask::forward) {
          kept = std::max(kept, level(samples[i], MemoryKind::activation));
          logits = std::max(logits, level(samples[i], MemoryKind::logits));
        }
      }
      most(3, plan.activations, kept);
      most(4, plan.logits, logits);
      most(5, plan.gathered, run_.memory(static_cast<int>(d)).peak(MemoryKind::buffer));
    }
    static const char* const names[] = {
        "parameters",     "gradients before the update",
        "optimizer",      "activations that wait for their backward pass",
        "logits that do", "gathered weights"};
    for (int i = 0; i < 6; ++i) {
      const bool counts = i < 3 || (i < 5 && known) || (i == 5 && planned[5] > 0);
      if (counts && (planned[i] > 0 || counted[i] > 0)) {
        report.memory.add(cat({layout_.pipeline > 1 ? cat({"rank ", rank, ": "}) : "", names[i]}),
                          "B", planned[i], counted[i]);
      }
    }
  }

  // ---- The bubble ----

  // How long a rank's ops take, what it waits for inside of them included; of the first device of
  // each pipeline rank.
  void add_bubble() {
    if (layout_.pipeline == 1) {
      return;
    }
    report.bubble.title =
        "bubble of each pipeline rank: of the schedule alone, with ops as long as here";
    report.bubble.formula_head = "schedule";
    report.bubble.counted_head = "simulated";
    const int stages = stages_.schedule.stages, m = static_cast<int>(layout_.microbatches);
    PipelineTimes times;
    times.of_stage.resize(static_cast<std::size_t>(stages));
    for (WorkTimes& stage : times.of_stage) {
      stage = {0, 0, 0, 0};
    }
    std::vector<int> rank_of_device;
    for (std::size_t d = 0; d < devices(); ++d) {
      const MeshPoint at(axes_.mesh, static_cast<std::int64_t>(d));
      const bool first = at.rank_at(axes_.pipeline, 0) == 0;
      rank_of_device.push_back(first ? static_cast<int>(at.index(axes_.pipeline)) : -1);
    }
    for (const TimedSpan& span : run_.timeline.spans) {
      if (span.task < 0 || rank_of_device[static_cast<std::size_t>(span.device)] < 0 ||
          (span.call >= 0 &&
           run_.axes_of_call(static_cast<std::size_t>(span.call)) == "pipeline")) {
        continue;
      }
      const StepTask task = StepTask::of(span.task, stages, m);
      WorkTimes& stage = times.of_stage[static_cast<std::size_t>(task.stage)];
      const double share = (span.finish - span.start) / m;
      switch (task.work) {
        case StepTask::forward: stage.forward += share; break;
        case StepTask::input_gradient: stage.input_gradient += share; break;
        case StepTask::weight_gradient: stage.weight_gradient += share; break;
        case StepTask::update: break;
        default: stage.backward += share; break;
      }
    }
    for (WorkTimes& stage : times.of_stage) {  // what the schedule has none of
      for (double* const work :
           {&stage.forward, &stage.backward, &stage.input_gradient, &stage.weight_gradient}) {
        *work = *work > 0 ? *work : 1;
      }
    }
    const PipelineTiming timing = time_pipeline(stages_.schedule, times);
    for (std::size_t d = 0; d < devices(); ++d) {
      if (rank_of_device[d] >= 0) {
        const List<TimeShare> shares = time_breakdown(run_, static_cast<int>(d), report.tasks);
        report.bubble.add(cat({"rank ", rank_of_device[d]}), "s",
                          timing.rank[static_cast<std::size_t>(rank_of_device[d])].idle,
                          seconds_of(shares, "bubble") + seconds_of(shares, "idle at the end"));
      }
    }
  }

  // Where the time went, beside what it would be with matmuls at the chip's peak, with nothing of
  // the communication hidden, and with messages that take no time.
  void add_times() {
    report.times.title = cat({"simulated time of a step, mean of ", devices(), " devices"});
    report.times.counted_head = "simulated";
    const auto n = static_cast<double>(devices());
    const double peak = run_.machine().chip.peak(options_.format);
    double flops[6] = {0, 0, 0, 0, 0, 0};
    std::vector<std::string> axes;
    std::vector<double> seconds;
    const List<AxisPlacement> placed = place_axes(run_.machine(), axes_.mesh);
    for (std::size_t d = 0; d < devices(); ++d) {
      const MeshPoint at(axes_.mesh, static_cast<std::int64_t>(d));
      for (int work = 0; work < 6; ++work) {
        const bool within = work == StepTask::recompute && layout_.recompute != Recompute::full;
        flops[within ? StepTask::backward : work] += plans_[d].flops[work] / n;
      }
      for (const PlannedCall& call : plans_[d].calls) {
        const std::string name = report.tasks.wait_for(names_text(call.axes));
        std::size_t i = 0;
        while (i < axes.size() && axes[i] != name) {
          ++i;
        }
        if (i == axes.size()) {
          axes.push_back(name);
          seconds.push_back(0);
        }
        const PlannedCost cost = planned_cost(call, at, run_.machine(), placed, layout_.algorithm);
        seconds[i] += cost.seconds / n;
      }
    }
    double bubble = 0;
    for (const ReportRow& row : report.bubble.rows) {
      bubble += row.predicted / static_cast<double>(report.bubble.rows.size());
    }
    const auto add = [&](const std::string& name, double bound, const char* how) {
      report.times.add(name, "s", bound, seconds_of(report.time, name), how);
    };
    for (int work = 0; work < 6; ++work) {
      const std::string name = class_of(work);
      if (flops[work] > 0 || seconds_of(report.time, name) > 0) {
        add(name, flops[work] / peak,
            work == StepTask::update ? "no matmuls" : "matmuls at the chip's peak");
      }
    }
    if (seconds_of(report.time, "compute") > 0) {
      add("compute", 0, "outside of the tasks");
    }
    for (std::size_t i = 0; i < axes.size(); ++i) {
      if (axes[i] != "bubble" && seconds[i] > 0) {
        add(axes[i], seconds[i], "all of its messages, none hidden and nobody late");
      }
    }
    if (layout_.pipeline > 1) {
      add("bubble", bubble,
          "the schedule with ops of these lengths and messages that take no time");
    }
    if (seconds_of(report.time, "idle at the end") > 0) {
      add("idle at the end", 0, "until the slowest device is done");
    }
  }

  void add_devices() {
    Table& out = report.devices;
    out.title = "each device: counted FLOPs and bytes; simulated time; peak memory by kind";
    out.columns = {"device", "FLOPs", "bytes sent", "computes", "waits"};
    List<MemoryKind> kinds;
    for (int kind = 0; kind < MemoryMeter::kinds; ++kind) {
      bool used = false;
      for (std::size_t d = 0; d < devices(); ++d) {
        used = used || run_.memory(static_cast<int>(d)).peak(static_cast<MemoryKind>(kind)) > 0;
      }
      if (used) {
        kinds.push_back(static_cast<MemoryKind>(kind));
        out.columns.push_back(name_of(kinds.back()));
      }
    }
    out.columns.push_back("all at once");
    for (std::size_t d = 0; d < devices(); ++d) {
      const int rank = static_cast<int>(d);
      const MemoryMeter& meter = run_.memory(rank);
      std::vector<Cell> cells = {std::to_string(d), format_si(run_.counters(rank).matmul_flops, ""),
                                 format_bytes(run_.bytes_sent(rank)),
                                 format_seconds(run_.timeline.devices[d].compute),
                                 format_seconds(run_.timeline.devices[d].waiting)};
      for (const MemoryKind kind : kinds) {
        cells.push_back(format_bytes(meter.peak(kind)));
      }
      cells.push_back(format_bytes(meter.peak_total()));
      out.add(cells);
    }
  }

  const MeshRun& run_;
  const ModelConfig& config_;
  const Layout& layout_;
  const StepOptions& options_;
  LayoutAxes axes_;
  StageMap stages_;
  List<StepPlan> plans_;  // by rank
};

}  // namespace detail

// What a run of one step says, beside its plan; of one that was skipped, with updates = false.
inline StepReport report_step(const MeshRun& run, const Transformer& model, const Layout& layout,
                              const StepOptions& options, bool updates = true) {
  return detail::StepReporter(run, model, layout, options, updates).report;
}

}  // namespace tinyscale
