// What would it cost to train Llama 3 70B on a pod of v5p? You see the fastest layout, its step
// time with the formula and the numbers put in, days and dollars. Then why FSDP alone is too slow,
// and what memory, chips and dollars it takes to serve a 13B model. Every number is a formula's.
//   g++ -std=c++17 -O2 -pthread -I. examples/07_plan_training.cpp -o 07_plan && ./07_plan
#include <iostream>

#include "tinyscale.hpp"

namespace ts = tinyscale;

int main() {
  ts::TrainingJob job;
  job.model = ts::config("llama3-70b");
  job.tokens = 15e12;
  job.batch_tokens = 4e6;  // rounded to whole sequences, and the plan says so
  job.context = 8192;
  job.format = ts::DType::bf16;
  const ts::Machine pod = ts::machine("tpu-v5p", {16, 20, 28});
  const ts::TrainingPlan plan = ts::plan_training(job, pod);
  std::cout << plan << "\n" << plan.step_time.explain() << "\n" << plan.days.explain(0) << "\n";

  ts::Layout layout;  // the same job with FSDP alone: too few tokens a chip
  layout.data = pod.chips();
  const ts::TrainingPlan fsdp = ts::plan_training(job, pod, layout);
  std::cout << "FSDP alone: step " << fsdp.step_time << ", bound by " << fsdp.best.bound << "\n"
            << fsdp.threshold.explain(0) << "\n";

  ts::ServingJob serve;
  serve.model = ts::config("llama2-13b");
  serve.prompt = 2048;
  serve.output = 256;
  serve.batch = 8;
  serve.format = ts::DType::int8;
  const ts::ServingPlan serving = ts::plan_serving(serve, ts::machine("tpu-v5e", {1}));
  std::cout << serving << "\n" << serving.decode_step_time.explain(1);
}
