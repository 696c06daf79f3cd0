// Lab 4: a pipeline schedule that idles less than 1F1B in the memory of 1F1B. A backward pass has
// two halves: I, the gradient of the input, which the rank before waits for, and W, that of the
// weights, which nobody waits for. Predict what 1F1B idles and holds; then write a schedule. It is
// checked, timed, and a model is trained by it. It ends with 0 when all is right.
// Read first: examples/29_pipeline.cpp and its output.
//   g++ -std=c++17 -O2 -pthread -I. examples/labs/lab4_pipeline_schedule.cpp -o lab4 && ./lab4
#include <cmath>
#include <functional>
#include <iostream>

#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace lab4 {

// ---- YOUR PART ----

// 1. p ranks, m microbatches (m >= p), a forward takes 1, a whole backward 2. How long does each
// rank of 1F1B idle in a step? How many microbatches' activations does rank 0 hold at most?
struct Guess {
  double idle = -1, held = -1;
};
Guess my_guess(int /*p*/, int /*m*/) { return Guess(); }

// 2. Your schedule: what each rank does, in order. F, I and W take 1 each; activations are freed by
// W. No rank may hold more than p microbatches, and none may idle as long as in 1F1B. Stage s is
// rank s. The first line of a rank's program, say:
//   schedule.add(rank, ts::PipelineWork::forward, rank, 0);
// and ts::PipelineWork::input_gradient, weight_gradient.
ts::PipelineSchedule my_schedule(int p, int m) {
  ts::PipelineSchedule schedule = ts::empty_schedule("mine", p, m);
  return schedule;  // nothing in it yet
}

// ---- The grading; read it afterwards ----

struct Answers {
  std::function<Guess(int, int)> guess = my_guess;
  std::function<ts::PipelineSchedule(int, int)> schedule = my_schedule;
};

bool same(double a, double b) { return std::fabs(a - b) < 1e-9; }

int grade_guess(const Answers& mine, int p, int m, std::ostream& out) {
  const ts::PipelineTiming run = ts::time_pipeline(ts::one_forward_one_backward(p, m));
  const Guess guess = mine.guess(p, m);
  if (!(guess.idle >= 0) || !(guess.held >= 0)) {
    out << "  1 your guess:    not answered yet: idle and held\n";
    return 1;
  }
  const bool idle = same(guess.idle, run.rank[0].idle), held = same(guess.held, p);
  out << "  1 your guess:    idle: you " << guess.idle << ", timed " << run.rank[0].idle
      << (idle             ? ": right"
          : guess.idle < 1 ? ": a time, not a share of the step"
                           : ": until the first backward comes, and after the last forward left")
      << "; held: you " << guess.held << ", counted " << run.rank[0].peak_activations
      << (held ? ": right\n" : ": not before the first one came back is any freed\n");
  return idle && held ? 0 : 1;
}

// Two steps of training by the schedule and on one device; empty when the losses are the same.
std::string training_fault(const ts::PipelineSchedule& schedule) {
  ts::ModelConfig config = ts::config("nano");
  config.layers = schedule.ranks;
  config.width = config.hidden = 16;
  config.heads = config.kv_heads = 1;
  config.head_size = config.context = 16;
  std::string fox;
  for (int i = 0; i < 20; ++i) {
    fox += "the quick brown fox jumps over the lazy dog. ";
  }
  ts::TrainOptions options;
  options.steps = 2;
  options.warmup = 1;
  options.batch = schedule.microbatches;
  options.out = nullptr;
  options.machine = ts::machine("tpu-v5e", {schedule.ranks});
  options.layout.pipeline = schedule.ranks;
  options.layout.microbatches = schedule.microbatches;
  options.layout.schedule = schedule;
  ts::Transformer model(config, 1);
  const ts::TrainReport report = ts::train(model, ts::make_text("fox", fox), options);
  for (std::size_t i = 0; i < report.losses.size(); ++i) {
    if (!(std::fabs(report.losses[i] / report.one_device[i] - 1) < 1e-5)) {
      return ts::detail::cat({"step ", i, " has another loss than on one device"});
    }
  }
  return "";
}

int grade_schedule(const Answers& mine, int p, int m, std::ostream& out) {
  out << "  2 your schedule: ";
  try {
    const ts::PipelineSchedule schedule = mine.schedule(p, m);
    std::size_t ops = 0;
    for (const ts::List<ts::PipelineOp>& program : schedule.program) {
      ops += program.size();
    }
    if (ops == 0) {
      out << "not written yet\n";
      return 1;
    }
    ts::check_pipeline(schedule);
    ts::PipelineTimes times;
    times.stage.backward = 2;
    const ts::PipelineTiming run = ts::time_pipeline(schedule, times);
    const double idle = run.rank[0].idle, held = run.peak_activations(), limit = 3.0 * (p - 1);
    const bool good = idle < limit && held <= p;
    out << "idle " << idle << " (1F1B " << limit << ", at best " << p - 1 << "), held " << held
        << " (" << p << ")" << (idle < limit ? "" : "; not less: who waits for W?")
        << (held <= p ? "" : "; too much: W comes too late, or F too early") << "\n"
        << run.gantt();
    const std::string wrong = good ? training_fault(schedule) : "";
    if (good) {
      out << "  2 training:      " << (wrong.empty() ? "the losses of one device" : wrong) << "\n";
    }
    return good && wrong.empty() ? 0 : 1;
  } catch (const ts::Error& error) {
    out << "it stopped: " << error.what() << "\n";
    return 1;
  }
}

// 0 when all is right for both sizes.
int grade(const Answers& mine, std::ostream& out) {
  int wrong = 0;
  const int sizes[2][2] = {{3, 5}, {4, 8}};
  for (const auto& size : sizes) {
    out << "p = " << size[0] << ", m = " << size[1] << "\n";
    wrong += grade_guess(mine, size[0], size[1], out) + grade_schedule(mine, size[0], size[1], out);
  }
  out << (wrong == 0 ? "All right.\n"
                     : "Not yet: edit YOUR PART of lab4_pipeline_schedule.cpp, run again\n");
  return wrong == 0 ? 0 : 1;
}

}  // namespace lab4

int main() { return lab4::grade(lab4::Answers(), std::cout); }
