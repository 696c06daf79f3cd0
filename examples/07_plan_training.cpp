// What would it cost to train Llama 3 70B on a pod of v5p? You see the layouts that the search finds
// best, the step by cause, what fills the fullest chip, and why not each neighbouring layout; then
// the step's formula with the numbers put in; then FSDP alone; then what a public run of another
// model took, beside what this planner says. Every number is a formula's or says what it is.
//   g++ -std=c++17 -O2 -pthread -I. examples/07_plan_training.cpp -o 07_plan && ./07_plan
#include <iostream>

#include "tinyscale.hpp"

namespace ts = tinyscale;

int main() {
  ts::TrainingJob job;
  job.model = ts::config("llama3-70b");
  job.tokens = 15e12;
  job.batch_tokens = 4194304;  // 512 sequences
  job.context = 8192;
  job.format = ts::DType::bf16;
  const ts::Machine pod = ts::machine("tpu-v5p", {16, 16, 32});
  const ts::TrainingPlan plan = ts::plan_training(job, pod);
  std::cout << plan << "\n" << plan.step_time.explain() << "\n" << plan.days.explain(1) << "\n";

  ts::Layout layout;  // FSDP alone: more replicas than sequences, so each sequence is cut in 16
  layout.context = 16;
  layout.data = pod.chips() / layout.context;
  layout.zero = ts::Zero::parameters;
  const ts::TrainingPlan fsdp = ts::plan_training(job, pod, layout);
  std::cout << "FSDP alone: typical step " << fsdp.typical_step_time << " against "
            << plan.typical_step_time << "\n"
            << fsdp.cause_table() << "\n";

  // BLOOM's tuning log: 384 A100, tensor 4, pipeline 12, data 8, two sequences at a time: 113.54 s.
  ts::TrainingJob bloom;
  bloom.model = ts::config("gpt3-175b");
  bloom.model.name = "bloom-181b";
  bloom.model.layers = 72;
  bloom.model.width = 14336;
  bloom.model.heads = bloom.model.kv_heads = 64;
  bloom.model.head_size = 224;
  bloom.model.hidden = 4 * 14336;
  bloom.model.vocabulary = 250880;
  bloom.context = 2048;
  bloom.batch_tokens = 2048.0 * 2048;
  bloom.software = ts::software_deepspeed_2022();
  ts::Chip a100 = ts::chip("a100-80");
  a100.dcn_bandwidth = 6.25e9;  // four 100 Gb/s ports for eight GPUs
  ts::Layout run;
  run.tensor = 4;
  run.pipeline = 12;
  run.data = 8;
  run.microbatches = 128;
  run.zero = ts::Zero::optimizer;
  run.recompute = ts::Recompute::full;
  const ts::TrainingPlan tuned = ts::plan_training(bloom, ts::machine(a100, {48, 8}), run);
  std::cout << "BLOOM ran 113.54 s a step; limit " << tuned.step_time << ", typical "
            << tuned.typical_step_time << "\n";

  // DeepSeek-V3: 14.8e12 tokens in 2.664e6 H800 hours, 2048 of them: 19.9 s a step of 15,360
  // sequences. Its own pipeline runs the exchanges of one microbatch beside the compute of another.
  ts::TrainingJob deepseek;
  deepseek.model = ts::config("deepseek-v3");
  deepseek.context = 4096;
  deepseek.batch_tokens = 15360.0 * 4096;
  deepseek.format = ts::DType::fp8_e4m3;
  ts::Layout own;
  own.data = 128;
  own.expert = 64;
  own.pipeline = 16;
  own.microbatches = 120;
  own.zero = ts::Zero::optimizer;
  const ts::Machine h800 = ts::machine_of_chips("h800", 2048);
  const ts::TrainingPlan others = ts::plan_training(deepseek, h800, own);
  deepseek.software = ts::software_deepseek_2024();
  const ts::TrainingPlan hidden = ts::plan_training(deepseek, h800, own);
  std::cout << "DeepSeek-V3 ran 19.9 s a step; typical " << hidden.typical_step_time << ", "
            << others.typical_step_time << " if its exchanges were hidden as most are\n";
}
