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
#include "tinyscale/mesh/choose_algorithm.hpp"
#include "tinyscale/mesh/collective_bytes.hpp"
#include "tinyscale/mesh/time_breakdown.hpp"
#include "tinyscale/parallel/device_step.hpp"
#include "tinyscale/parallel/pipeline_timing.hpp"
#include "tinyscale/parallel/step_forms.hpp"

namespace tinyscale {

struct StepReport {
  Comparison sent;          // bytes and steps of each collective along each axis, of all devices
  Comparison work;          // FLOPs of all devices
  Comparison memory;        // bytes of the device that holds the most
  Comparison bubble;        // seconds, of each pipeline rank
  Comparison times;         // seconds, mean of the devices, beside bounds
  Table devices;            // FLOPs, bytes sent, peak memory by kind, time: a row for each
  List<TimeShare> time;     // simulated, mean of the devices
  TaskNames tasks;          // of the run's tasks, for pictures
  double seconds = 0;       // simulated
  double mfu = 0, hfu = 0;  // model and all matmul FLOPs over what the chips could do meanwhile
  bool mean = false;        // some formulas are right on average alone: they depend on the routing
};

namespace detail {

// What a call sends from this device, and its steps, by the algorithm that it will take.
struct PlannedCost {
  double bytes = 0;
  std::int64_t steps = 0;
  double seconds = 0;
};
inline PlannedCost planned_cost(const PlannedCall& call, const MeshPoint& at,
                                const Machine& machine, const List<AxisPlacement>& placed,
                                Algorithm preferred) {
  const double times = static_cast<double>(call.times);
  PlannedCost cost;
  if (call.send) {
    return {times * 4 * static_cast<double>(call.elements), call.times, 0};
  }
  CollectiveSpec spec;
  std::vector<int> numbers;
  for (const std::string& name : call.axes) {
    for (std::size_t i = 0; i < placed.size(); ++i) {
      if (placed[i].name == name) {
        numbers.push_back(static_cast<int>(i));
      }
    }
  }
  spec.what = call.what;
  spec.parts = parts_of_group(machine, placed, numbers);
  spec.elements = call.elements;
  spec.element_bytes = bytes_of(call.format);
  spec.root = call.what == Collective::permute ? 1 : 0;
  const bool named = preferred != Algorithm::automatic && has_algorithm(spec.what, preferred);
  spec.algorithm = named ? preferred : choose_algorithm(spec).algorithm;
  const AxisGroup group = call.axes;
  cost.bytes = times * collective_bytes(spec, static_cast<int>(at.index(group)));
  cost.steps = call.times * collective_steps(spec);
  cost.seconds = times * cost_of(spec).seconds;
  return cost;
}

// What each device sends by one kind of call along the same axes.
struct Traffic {
  std::string name, axes, why;
  bool mean = false;
  std::vector<double> planned, counted;              // bytes by rank
  std::vector<double> planned_steps, counted_steps;  // by rank
};

inline Traffic& traffic_of(List<Traffic>& all, const std::string& name, const std::string& axes,
                           std::size_t devices) {
  for (Traffic& known : all) {
    if (known.name == name && known.axes == axes) {
      return known;
    }
  }
  Traffic traffic;
  traffic.name = name;
  traffic.axes = axes;
  for (std::vector<double>* const of_rank :
       {&traffic.planned, &traffic.counted, &traffic.planned_steps, &traffic.counted_steps}) {
    of_rank->resize(devices);
  }
  all.push_back(traffic);
  return all.back();
}

inline std::string names_text(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    text += (text.empty() ? "" : ",") + name;
  }
  return text;
}

class StepReporter {
 public:
  StepReporter(const MeshRun& run, const Transformer& model, const Layout& layout,
               const StepOptions& options)
      : run_(run),
        layout_(layout),
        options_(options),
        axes_(layout_axes(layout)),
        stages_(layout, model.config.layers) {
    for (int rank = 0; rank < run.devices(); ++rank) {
      plans_.push_back(StepPlanner(model, layout, axes_, options, rank).plan);
    }
    report.seconds = run.seconds;
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

  void name_tasks() {
    static const char* const classes[] = {"forward",         "backward",  "input gradient",
                                          "weight gradient", "recompute", "update"};
    const int stages = stages_.schedule.stages, m = static_cast<int>(layout_.microbatches);
    for (int number = 0; number < 6 * stages * m; ++number) {
      const StepTask task = StepTask::of(number, stages, m);
      report.tasks.names.push_back(task.text());
      report.tasks.classes.push_back(classes[task.work]);
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
        const std::string why = call.why + ": " + call.formula;
        if (row.why.find(why) == std::string::npos) {
          row.why += (row.why.empty() ? "" : "; ") + why;
        }
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
  void add_rows(const std::string& name, const char* unit, const std::vector<double>& planned,
                const std::vector<double>& counted, bool mean) {
    double plan = 0, count = 0;
    for (std::size_t d = 0; d < devices(); ++d) {
      plan += planned[d];
      count += counted[d];
    }
    report.sent.add((mean ? "about: " : "") + name, unit, plan, count);
    for (std::size_t d = 0; d < devices() && !mean; ++d) {
      if (planned[d] < counted[d] || counted[d] < planned[d]) {
        report.sent.add(cat({name, ", device ", d}), unit, planned[d], counted[d]);
      }
    }
  }
  void add_sent() {
    report.sent.title = cat({"what a step sends, ", devices(), " devices: ", layout_.text()});
    for (const Traffic& row : traffic()) {
      const std::string name = cat({row.name, " over ", row.axes});
      add_rows(cat({name, " (", row.why, ")"}), "B", row.planned, row.counted, row.mean);
      add_rows(name, "steps", row.planned_steps, row.counted_steps, false);
      report.mean = report.mean || row.mean;
    }
  }

  // ---- FLOPs ----

  void add_work() {
    double planned = 0, counted = 0, again = 0;
    bool mean = false;
    report.work.title = "what a step computes, matmul FLOPs";
    for (std::size_t d = 0; d < devices(); ++d) {
      planned += plans_[d].matmul_flops;
      again += plans_[d].recomputed_flops;
      counted += run_.counters(static_cast<int>(d)).matmul_flops;
      mean = mean || plans_[d].mean_flops;
    }
    report.work.add("all devices", "FLOP", planned, counted);
    for (std::size_t d = 0; d < devices() && !mean; ++d) {
      const double own = run_.counters(static_cast<int>(d)).matmul_flops;
      if (plans_[d].matmul_flops < own || own < plans_[d].matmul_flops) {
        report.work.add(cat({"device ", d}), "FLOP", plans_[d].matmul_flops, own);
      }
    }
    const double could =
        run_.machine().chip.peak(options_.format) * static_cast<double>(devices()) * report.seconds;
    report.hfu = could > 0 ? counted / could : 0;
    report.mfu = could > 0 ? (counted - again) / could : 0;
    report.mean = report.mean || mean;
  }

  // ---- Memory ----

  StepTask::Work work_of(const MemorySample& sample) const {
    return StepTask::of(sample.task, stages_.schedule.stages,
                        static_cast<int>(layout_.microbatches))
        .work;
  }
  static double level(const MemorySample& sample, MemoryKind kind) {
    return sample.levels[static_cast<std::size_t>(kind)];
  }
  void add_memory() {
    report.memory.title = "memory, of the device with the most of each";
    double planned[6] = {0, 0, 0, 0, 0, 0}, counted[6] = {0, 0, 0, 0, 0, 0};
    const auto most = [&](int i, double plan, double count) {
      planned[i] = std::max(planned[i], plan);
      counted[i] = std::max(counted[i], count);
    };
    bool known = true;
    for (std::size_t d = 0; d < devices(); ++d) {
      const StepPlan& plan = plans_[d];
      known = known && plan.activations >= 0;
      const List<MemorySample> samples = run_.memory_samples(static_cast<int>(d));
      const int update = StepTask{StepTask::update, 0, 0}.number(
          stages_.schedule.stages, static_cast<int>(layout_.microbatches));
      double kept = 0, logits = 0;
      for (std::size_t i = 0; i < samples.size(); ++i) {
        const bool first = samples[i].task == update && samples[i - 1].task != update;
        if (samples[i].task == update && first) {
          most(0, plan.parameters, level(samples[i], MemoryKind::parameter));
          most(1, plan.gradients, level(samples[i], MemoryKind::gradient));
          most(2, plan.optimizer, level(samples[i], MemoryKind::optimizer));
        } else if (work_of(samples[i]) < StepTask::recompute &&
                   (i + 1 == samples.size() || work_of(samples[i + 1]) != StepTask::recompute)) {
          // The end of an op: what one holds where it computes again is in no formula.
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
      if (counts) {
        report.memory.add(names[i], "B", planned[i], counted[i]);
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
    report.bubble.title = "bubble of each pipeline rank: of the schedule alone, and simulated";
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
    report.times.title =
        "simulated time of a step, mean of the devices, beside: matmuls at the "
        "chip's peak, communication that nothing hides, the schedule's bubble";
    const auto n = static_cast<double>(devices());
    double compute = 0, at_peak = 0, again = 0, bubble = 0;
    std::vector<std::string> axes;
    std::vector<double> seconds;
    const List<AxisPlacement> placed = place_axes(run_.machine(), axes_.mesh);
    for (std::size_t d = 0; d < devices(); ++d) {
      const MeshPoint at(axes_.mesh, static_cast<std::int64_t>(d));
      at_peak += (plans_[d].matmul_flops - plans_[d].recomputed_flops) / n;
      again += plans_[d].recomputed_flops / n;
      for (const PlannedCall& call : plans_[d].calls) {
        const std::string name = "exposed " + names_text(call.axes);
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
    for (const ReportRow& row : report.bubble.rows) {
      bubble += row.predicted / static_cast<double>(report.bubble.rows.size());
    }
    const double peak = run_.machine().chip.peak(options_.format);
    for (const TimeShare& share : report.time) {
      const bool computes = share.kind == TimeShare::Kind::compute;
      compute += computes && share.name != "recompute" ? share.seconds : 0;
    }
    report.times.add("compute", "s", at_peak / peak, compute);
    if (again > 0) {
      report.times.add("recomputation", "s", again / peak, seconds_of(report.time, "recompute"));
    }
    for (std::size_t i = 0; i < axes.size(); ++i) {
      const double waited = seconds_of(report.time, axes[i]);
      if (seconds[i] > 0 && (waited > 0 || axes[i] != "exposed " + all_axes())) {
        report.times.add(axes[i], "s", seconds[i], waited);
      }
    }
    if (layout_.pipeline > 1) {
      report.times.add(
          "bubble", "s", bubble,
          seconds_of(report.time, "bubble") + seconds_of(report.time, "idle at the end"));
    }
  }

  void add_devices() {
    Table& out = report.devices;
    out.title = "devices (counted; time simulated)";
    out.columns = {"device", "FLOPs", "bytes sent", "compute", "waits"};
    for (int kind = 0; kind < MemoryMeter::kinds; ++kind) {
      out.columns.push_back(cat({"peak ", name_of(static_cast<MemoryKind>(kind))}));
    }
    out.columns.push_back("peak of all");
    for (std::size_t d = 0; d < devices(); ++d) {
      const int rank = static_cast<int>(d);
      const MemoryMeter& meter = run_.memory(rank);
      std::vector<std::string> cells = {
          std::to_string(d), format_count(run_.counters(rank).matmul_flops),
          format_count(run_.bytes_sent(rank)), format_seconds(run_.timeline.devices[d].compute),
          format_seconds(run_.timeline.devices[d].waiting)};
      for (int kind = 0; kind < MemoryMeter::kinds; ++kind) {
        cells.push_back(format_bytes(meter.peak(static_cast<MemoryKind>(kind))));
      }
      cells.push_back(format_bytes(meter.peak_total()));
      out.add(cells);
    }
  }

  const MeshRun& run_;
  const Layout& layout_;
  const StepOptions& options_;
  LayoutAxes axes_;
  StageMap stages_;
  List<StepPlan> plans_;  // by rank
};

}  // namespace detail

// What a run of one step says, beside its plan.
inline StepReport report_step(const MeshRun& run, const Transformer& model, const Layout& layout,
                              const StepOptions& options) {
  return detail::StepReporter(run, model, layout, options).report;
}

inline Table time_share_table(const List<TimeShare>& shares, double seconds) {
  Table out;
  out.title = "simulated time of a step, mean of the devices";
  out.columns = {"what", "simulated", "share"};
  for (const TimeShare& share : shares) {
    out.add({share.name, format_seconds(share.seconds),
             format_percent(seconds > 0 ? share.seconds / seconds : 0)});
  }
  out.add({"step", format_seconds(seconds), format_percent(1.0)});
  return out;
}

inline std::ostream& operator<<(std::ostream& out, const StepReport& report) {
  out << report.sent << report.work << report.memory;
  if (!report.bubble.rows.empty()) {
    out << report.bubble;
  }
  return out << report.times << report.devices << time_share_table(report.time, report.seconds)
             << "MFU, model FLOPs over the chips' peak, simulated clock: "
             << format_percent(report.mfu)
             << "; HFU, with recomputation: " << format_percent(report.hfu) << "\n";
}

}  // namespace tinyscale
