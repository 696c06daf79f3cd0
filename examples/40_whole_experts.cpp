// Experts on tensor-parallel devices: is each cut over all of them, or whole on one? Cut, every
// rank holds all tokens and sends all of their rows; whole, each routes a part of the tokens, sends
// their rows alone and needs no sum over tensor ranks after the experts, while larger groups deal
// out tokens. You see both train as one device does, what each sends beside its formula, and what
// that is in the plan of a model of 30 billion parameters.
//   g++ -std=c++17 -O2 -pthread -I. examples/40_whole_experts.cpp -o 40_whole && ./40_whole
#include <cmath>

#include "tinyscale.hpp"
namespace ts = tinyscale;

int main() {
  ts::Text text = ts::make_text("rows", [] {
    std::string all;
    for (int i = 0; i < 400; ++i) {
      all += "a row of " + std::to_string(i % 40) + " tokens\n";
    }
    return all;
  }());
  ts::ModelConfig config = ts::config("nano");
  config.layers = 2;
  config.width = 32;
  config.heads = config.kv_heads = 4;
  config.head_size = 8;
  config.context = 32;
  config.vocabulary = text.tokenizer.vocabulary();
  config.tied = false;
  config.experts = 8;
  config.top_k = 2;
  config.expert_hidden = 32;
  config.hidden = 0;

  ts::TrainOptions options;
  options.steps = options.check_steps = 3;
  options.batch = 8;
  options.out = nullptr;
  options.machine = ts::machine("h100", {1, 8});
  options.layout.data = options.layout.expert = 4;
  options.layout.tensor = 2;
  options.layout.sequence_parallel = true;
  for (const bool whole : {false, true}) {
    options.layout.whole_experts = whole;
    ts::Transformer model(config, 1);
    const ts::TrainReport report = ts::train(model, text, options);
    ts::Comparison sent;
    sent.title = std::string(whole ? "whole" : "cut") + " experts: the third step's loss is " +
                 ts::format_fixed(report.losses[2], 6) + ", one device's " +
                 ts::format_fixed(report.one_device[2], 6);
    for (const ts::ReportRow& row : report.step.sent.rows) {
      const bool of_experts = row.name.find("all_to_all") != std::string::npos;
      if (of_experts || row.name.find("over tensor") != std::string::npos) {
        sent.rows.push_back(row);
      }
    }
    std::cout << sent << "\n";
  }

  ts::TrainingJob job;
  job.model = ts::config("qwen3-30b-a3b");
  job.context = 4096;
  job.batch_tokens = 4e6;
  ts::Layout layout;
  layout.data = 16;
  layout.tensor = 4;
  layout.expert = 8;
  layout.microbatches = 32;
  layout.sequence_parallel = true;
  layout.zero = ts::Zero::optimizer;
  layout.recompute = ts::Recompute::full;
  for (const bool whole : {false, true}) {
    layout.whole_experts = whole;
    const ts::TrainingPlan plan = ts::plan_training(job, ts::machine("h100", {8, 8}), layout);
    std::cout << layout << ":\n  experts " << plan.expert_time << ", tensor ranks "
              << plan.tensor_time << ", a typical step " << plan.typical_step_time << "\n";
  }
}
