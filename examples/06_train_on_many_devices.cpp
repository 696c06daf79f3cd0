// The same training on many devices. A small model learns the same text on this laptop and on eight
// simulated TPU v5e: two copies of a pipeline of two stages, every matrix cut in two, the optimizer
// shared by the copies (ZeRO-1), four microbatches. You see losses beside one device's, then what
// the devices sent, computed, held and waited for, each counted beside its formula.
//   g++ -std=c++17 -O2 -pthread -I. examples/06_train_on_many_devices.cpp -o 06_train
//   ./06_train [text file, by default input.txt] [steps] [where pictures go, "06_" say]
#include <cstdlib>
#include <iostream>

#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

ts::ModelConfig small_model() {
  ts::ModelConfig config = ts::config("nano");
  config.name = "nano, 2 layers of 64";
  config.layers = 2;
  config.width = 64;
  config.heads = config.kv_heads = 2;
  config.head_size = 32;
  config.hidden = 256;
  return config;
}

void run(const ts::Text& text, int steps, const std::string& pictures) {
  ts::TrainOptions options;
  options.steps = steps;
  options.warmup = steps / 5;
  options.batch = 16;
  options.out = nullptr;
  options.machine = ts::machine("tpu-v5e", {4, 2});
  options.layout.data = 2;  // devices = data * tensor * pipeline * context
  options.layout.tensor = 2;
  options.layout.pipeline = 2;
  options.layout.microbatches = 4;
  options.layout.zero = ts::Zero::optimizer;
  options.check_steps = 6;  // these on one device too
  ts::Transformer model(small_model(), /*seed=*/1);
  const ts::TrainReport report = ts::train(model, text, options);  // the model is trained
  std::cout << report;

  options.layout.schedule = ts::zero_bubble_h1(2, 4);  // a schedule is data: here another
  ts::Transformer again(small_model(), /*seed=*/1);
  const ts::TrainReport split = ts::train(again, text, options);
  std::cout << "\nZB-H1 for 1F1B: last loss " << ts::format_fixed(split.final_loss(), 4)
            << " after " << ts::format_fixed(report.final_loss(), 4) << ", a step "
            << ts::format_seconds(split.step.seconds) << " after "
            << ts::format_seconds(report.step.seconds) << " (simulated)\n";
  if (!pictures.empty()) {
    const std::vector<int> one_of_each_stage = {0, 4};
    ts::device_timeline(report, one_of_each_stage).save(pictures + "gantt.svg");
    ts::device_timeline(split, one_of_each_stage).save(pictures + "gantt_zb_h1.svg");
    ts::waterfall(report).save(pictures + "waterfall.svg");
    ts::memory_timeline(report, one_of_each_stage).save(pictures + "memory.svg");
    ts::save_trace(report, pictures + "trace.json");  // for ui.perfetto.dev
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(ts::read_text(argc > 1 ? argv[1] : "input.txt"), argc > 2 ? std::atoi(argv[2]) : 30,
        argc > 3 ? argv[3] : "");
  } catch (const ts::Error& error) {
    std::cerr << "06_train_on_many_devices: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
