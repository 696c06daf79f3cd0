#pragma once
// When each op of a pipeline schedule runs: as soon as its rank is free and what it needs is there,
// sends holding nobody up. A step ends for all ranks together, at the optimizer's barrier; what a
// rank does not work until then is its bubble.

#include <algorithm>  // max, min
#include <cstddef>    // size_t
#include <iostream>   // ostream
#include <string>     // string
#include <vector>     // vector

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/parallel/check_pipeline.hpp"
#include "tinyscale/parallel/pipeline_schedule.hpp"

namespace tinyscale {

// In any unit of time, of one microbatch.
struct WorkTimes {
  double forward = 1, backward = 2, input_gradient = 1, weight_gradient = 1;

  double of(PipelineWork work) const {
    const double times[] = {forward, backward, input_gradient, weight_gradient};
    return times[static_cast<int>(work)];
  }
};

struct PipelineTimes {
  WorkTimes stage;           // of 1 / ranks of the model: a chunk takes ranks / stages of it
  List<WorkTimes> of_stage;  // not empty: of each stage, as it is
  double message = 0;        // from the end of an op to where another rank can use its result
  // The share of a microbatch's activations that I frees already; W frees the rest.
  double freed_by_input_gradient = 0;
};

struct TimedPipelineOp {
  PipelineOp op;
  double start = 0, finish = 0;
};

struct PipelineRankTime {
  double busy = 0, idle = 0;     // idle: until the last rank ends
  double start = 0, finish = 0;  // of its first and last op
  double peak_activations = 0;   // of one microbatch on 1 / ranks of the model
  double activations = 0;        // when it ends
  int messages = 0;              // that it sends
};

struct PipelineTiming {
  std::string name;
  int ranks = 0, stages = 0, microbatches = 0;
  List<List<TimedPipelineOp>> program;  // of each rank, in order
  List<PipelineRankTime> rank;
  double total = 0;

  // Of all ranks' time, what nobody works; of 1F1B (p - 1) / (m + p - 1).
  double bubble() const { return std::max(0.0, 1 - busy() / total / ranks); }
  // The same beside the work: (p - 1) / m.
  double idle_to_work() const { return std::max(0.0, ranks * total / busy() - 1); }
  // With an optimizer that waits for no other rank a step follows on each rank on the one before:
  // then it takes as long as the rank whose own ops are furthest apart.
  double total_without_barrier() const {
    double longest = 0;
    for (const PipelineRankTime& r : rank) {
      longest = std::max(longest, r.finish - r.start);
    }
    return longest;
  }
  double bubble_without_barrier() const {
    return std::max(0.0, 1 - busy() / total_without_barrier() / ranks);
  }
  double peak_activations() const {
    double peak = 0;
    for (const PipelineRankTime& r : rank) {
      peak = std::max(peak, r.peak_activations);
    }
    return peak;
  }
  int messages() const {
    int sum = 0;
    for (const PipelineRankTime& r : rank) {
      sum += r.messages;
    }
    return sum;
  }

  std::string gantt() const;  // a line for each rank: F0 F1 B0--, dots where it is idle
  Table table() const;
  operator Table() const { return table(); }
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }

 private:
  double busy() const {
    double sum = 0;
    for (const PipelineRankTime& r : rank) {
      sum += r.busy;
    }
    return sum;
  }
};

namespace detail {

inline void check_work_times(const std::string& who, const WorkTimes& t) {
  for (const double one : {t.forward, t.backward, t.input_gradient, t.weight_gradient}) {
    if (!is_finite(one) || !(one > 0)) {
      fail({who, ": an op takes ", one, "; times are above 0 and finite"});
    }
  }
}

inline void check_times(const PipelineSchedule& schedule, const PipelineTimes& times) {
  if (!times.of_stage.empty() &&
      times.of_stage.size() != static_cast<std::size_t>(schedule.stages)) {
    fail({"time_pipeline: ", schedule.name, ": times of ", times.of_stage.size(), " stages for ",
          schedule.stages, "; one for each stage (or none) is right"});
  }
  List<WorkTimes> all = times.of_stage;
  all.push_back(times.stage);
  for (const WorkTimes& t : all) {
    check_work_times("time_pipeline: " + schedule.name, t);
  }
  if (!is_finite(times.message) || times.message < 0 || !(times.freed_by_input_gradient >= 0) ||
      times.freed_by_input_gradient > 1) {
    fail({"time_pipeline: ", schedule.name, ": a message takes ", times.message,
          ", the gradient of the input frees ", times.freed_by_input_gradient,
          "; 0 or more, and 0 to 1 are right"});
  }
}

// Activations that an op adds, in microbatches on its stage.
inline double activations_of(PipelineWork work, double freed_by_input_gradient) {
  return work == PipelineWork::forward          ? 1
         : work == PipelineWork::backward       ? -1
         : work == PipelineWork::input_gradient ? -freed_by_input_gradient
                                                : freed_by_input_gradient - 1;
}

}  // namespace detail

// Throws what check_pipeline throws.
inline PipelineTiming time_pipeline(const PipelineSchedule& schedule,
                                    const PipelineTimes& times = PipelineTimes()) {
  detail::PipelineWalk walk("time_pipeline", schedule, eager_sends());
  walk.run();
  detail::check_times(schedule, times);
  const detail::PipelinePlaces& places = walk.places();
  PipelineTiming t;
  t.name = schedule.name;
  t.ranks = schedule.ranks;
  t.stages = schedule.stages;
  t.microbatches = schedule.microbatches;
  t.program.resize(schedule.program.size());
  t.rank.resize(schedule.program.size());
  const double chunk = static_cast<double>(schedule.ranks) / schedule.stages;
  for (const int r : walk.order()) {
    const auto at = static_cast<std::size_t>(r);
    PipelineRankTime& rank = t.rank[at];
    const PipelineOp& op = schedule.program[at][t.program[at].size()];
    TimedPipelineOp timed = {op, rank.finish, 0};
    PipelineOp needs[2];
    for (int i = places.needs(op, needs); i > 0; --i) {
      const int from = places.rank(needs[i - 1]);
      const double ready = t.program[static_cast<std::size_t>(from)]
                                    [static_cast<std::size_t>(places.place(needs[i - 1]))]
                                        .finish;
      timed.start = std::max(timed.start, ready + (from == r ? 0 : times.message));
    }
    const double takes = times.of_stage.empty()
                             ? chunk * times.stage.of(op.work)
                             : times.of_stage[static_cast<std::size_t>(op.stage)].of(op.work);
    timed.finish = timed.start + takes;
    rank.start = t.program[at].empty() ? timed.start : rank.start;
    rank.finish = timed.finish;
    rank.busy += takes;
    rank.activations += chunk * detail::activations_of(op.work, times.freed_by_input_gradient);
    rank.peak_activations = std::max(rank.peak_activations, rank.activations);
    rank.messages += places.receiver(op) >= 0 ? 1 : 0;
    t.program[at].push_back(timed);
    t.total = std::max(t.total, timed.finish);
  }
  if (!detail::is_finite(t.total)) {
    detail::fail({"time_pipeline: ", t.name, ": its ops take more together than a double holds; ",
                  "smaller times are right"});
  }
  for (PipelineRankTime& rank : t.rank) {
    rank.idle = t.total - rank.busy;
  }
  return t;
}

inline Table PipelineTiming::table() const {
  Table out;
  out.title = detail::cat({name, ": ", ranks, ranks == 1 ? " rank, " : " ranks, ", stages,
                           stages == 1 ? " stage, " : " stages, ", microbatches,
                           microbatches == 1 ? " microbatch; " : " microbatches; ", "a step takes ",
                           total, ", bubble ", format_percent(bubble()), ", without barrier ",
                           format_percent(bubble_without_barrier())});
  out.columns = {"rank", "first op", "end", "busy", "idle", "peak activations", "messages out"};
  for (std::size_t r = 0; r < rank.size(); ++r) {
    const PipelineRankTime& one = rank[r];
    out.add({std::to_string(r), detail::number_cell(one.start), detail::number_cell(one.finish),
             detail::number_cell(one.busy), detail::number_cell(one.idle),
             detail::number_cell(one.peak_activations), std::to_string(one.messages)});
  }
  return out;
}

namespace detail {

// Which of its rank's stages each op's is, in the order of the model; -1: the only one.
inline List<std::vector<int>> chunks_of(const PipelineTiming& t) {
  List<std::vector<int>> chunks(t.program.size());
  for (std::size_t r = 0; r < t.program.size(); ++r) {
    std::vector<int> own(static_cast<std::size_t>(t.stages), 0);
    for (const TimedPipelineOp& timed : t.program[r]) {
      own[static_cast<std::size_t>(timed.op.stage)] = 1;
    }
    int count = 0;
    for (int& one : own) {
      count += one;
      one = count - 1;
    }
    for (const TimedPipelineOp& timed : t.program[r]) {
      chunks[r].push_back(count > 1 ? own[static_cast<std::size_t>(timed.op.stage)] : -1);
    }
  }
  return chunks;
}

// "F3"; where a rank has several stages, with the letter of its own: "F3b".
inline std::string short_name(const PipelineOp& op, int chunk) {
  const std::string letter(1, static_cast<char>('a' + chunk % 26));
  return cat({letter_of(op.work), op.microbatch, chunk < 0 ? std::string() : letter});
}

}  // namespace detail

// A column is the shortest op's time, or the 240th part of the whole if that is longer.
inline std::string PipelineTiming::gantt() const {
  const List<std::vector<int>> chunks = detail::chunks_of(*this);
  double column = total;
  std::size_t wide = 0;
  for (std::size_t r = 0; r < program.size(); ++r) {
    for (std::size_t i = 0; i < program[r].size(); ++i) {
      const TimedPipelineOp& timed = program[r][i];
      column = std::min(column, timed.finish - timed.start);
      wide = std::max(wide, detail::short_name(timed.op, chunks[r][i]).size() + 1);
    }
  }
  column = std::max(column, total / 240);
  std::string out;
  for (std::size_t r = 0; r < program.size(); ++r) {
    std::string line;
    const auto until = [&](double time, char filling) {
      const auto end = static_cast<std::size_t>(time / column + 0.5) * wide;
      while (line.size() < end) {
        line += filling == '.' && line.size() % wide == wide - 1 ? ' ' : filling;
      }
    };
    for (std::size_t i = 0; i < program[r].size(); ++i) {
      const TimedPipelineOp& timed = program[r][i];
      until(timed.start, '.');
      const std::size_t start = line.size();
      until(timed.finish, '-');
      if (line.size() > start) {
        const std::string op = detail::short_name(timed.op, chunks[r][i]);
        line.replace(start, op.size(), op);
        line.back() = ' ';
      }
    }
    until(total, '.');
    line.erase(line.find_last_not_of(' ') + 1);
    const std::string rank_name = detail::cat({"rank ", r});
    out += rank_name +
           std::string(detail::cat({"rank ", ranks - 1}).size() + 2 - rank_name.size(), ' ') +
           line + "\n";
  }
  return out;
}

inline std::ostream& operator<<(std::ostream& out, const PipelineTiming& timing) {
  return out << timing.gantt() << timing.table();
}

}  // namespace tinyscale
