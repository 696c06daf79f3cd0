// A wind tunnel for a plan. Llama 3 70B on 8,192 TPU v5p does not run here; its twin does: a small
// model, 2 or 3 devices for each axis, and a fictional machine on which each part of a step takes
// the same share of it. You see the shares beside each other, then the twin trained: what it
// counted beside its formulas, and what twice the math, memory or links would buy. Two layouts
// of the same job: one waits for the links of its data axis, the other for math.
//   g++ -std=c++17 -O2 -pthread -I. examples/34_twin.cpp -o 34_twin && ./34_twin
#include <iostream>

#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

ts::Text fox() {
  std::string data;
  for (int i = 0; i < 120; ++i) {
    data += "the quick brown fox jumps over the lazy dog, and the dog sleeps on. ";
  }
  return ts::make_text("fox", data);
}

// Rows that are equal, of all.
void count_rows(const ts::Comparison& rows) {
  std::size_t equal = 0;
  for (const ts::ReportRow& row : rows.rows) {
    equal += row.equal(1e-12) ? 1 : 0;
  }
  std::cout << equal << " of " << rows.rows.size() << " equal: " << rows.title << "\n";
}

void fly(const ts::TrainingJob& job, const ts::Machine& machine, const ts::Layout& layout) {
  const ts::TrainingPlan plan = ts::plan_training(job, machine, layout);
  const ts::Twin twin = plan.twin();
  std::cout << "the plan: a step of " << ts::format_seconds(plan.best.step_time)
            << " at the limit, bound by " << plan.best.bound << "\n"
            << twin << "\n";
  ts::Transformer model(twin.model, /*seed=*/1);
  const ts::TrainReport report = ts::train(model, fox(), twin.options(/*steps=*/2));
  std::cout << report.step.sent;
  count_rows(report.step.sent);
  count_rows(report.step.work);
  count_rows(report.step.memory);
  ts::Table gains;
  gains.title = "a step of the twin takes " + ts::format_seconds(report.step.seconds) +
                "; with twice as much of";
  gains.columns = {"part", "simulated", "saves"};
  for (const ts::TwinGain& gain : twin.gains(*report.last_step)) {
    gains.add({gain.name, ts::format_seconds(gain.seconds), ts::format_percent(gain.saved)});
  }
  std::cout << gains << "\n";
}

}  // namespace

int main() {
  try {
    ts::TrainingJob job;
    job.model = ts::config("llama3-70b");
    job.batch_tokens = 1 << 22;
    job.context = 512;
    job.state = ts::StateBytes::mixed;
    const ts::Machine machine = ts::machine("tpu-v5p", {16, 32, 16});
    ts::Layout layout;
    layout.zero = ts::Zero::parameters;
    layout.data = 8192;  // FSDP alone: 512 tokens a chip
    fly(job, machine, layout);
    layout.data = 512;
    layout.tensor = 16;  // and tensor parallelism along one dimension
    layout.sequence_parallel = true;
    fly(job, machine, layout);
  } catch (const ts::Error& error) {
    std::cerr << "34_twin: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
