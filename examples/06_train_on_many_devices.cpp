// The same training on many devices. Llama 3 70B on 512 H100 in small: copies of a pipeline, every
// matrix cut, the optimizer shared by the copies (ZeRO-1), on a fictional machine on which each
// part of a step takes the share that it would take there, where a small model on real chips would
// but wait for links. A small model learns the same text on this laptop and on that machine. You
// see losses beside one device's, then what the devices sent, computed, held and waited for, each
// counted beside its formula.
//   g++ -std=c++17 -O2 -pthread -I. examples/06_train_on_many_devices.cpp -o 06_train
//   ./06_train [text file, by default input.txt] [steps] [where pictures go, "06_" say]
#include <cstdlib>
#include <iostream>

#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

ts::Twin small_llama(std::int64_t vocabulary) {
  ts::TrainingJob job;
  job.model = ts::config("llama3-70b");
  job.batch_tokens = 512 * 8192;
  job.state = ts::StateBytes::mixed;
  ts::Layout layout;
  layout.data = 16;  // devices = data * tensor * pipeline * context
  layout.tensor = 8;
  layout.pipeline = 4;
  layout.microbatches = 32;
  layout.zero = ts::Zero::optimizer;
  layout.sequence_parallel = true;
  ts::TwinSize size;
  size.vocabulary = vocabulary;
  return ts::twin_of(job, ts::machine("h100", {64, 8}), layout, size);
}

// How much of a step the devices compute, on average.
std::string computing(const ts::MeshRun& run) {
  double share = 0;
  for (const auto& device : run.timeline.devices) {
    share += device.compute / run.seconds / run.devices();
  }
  return ts::format_seconds(run.seconds) + ", computing " + ts::format_percent(share) + " of it";
}

void run(const ts::Text& text, int steps, const std::string& pictures) {
  const ts::Twin twin = small_llama(text.tokenizer.vocabulary());
  std::cout << twin << "\n";
  ts::TrainOptions options;
  options.steps = steps;
  options.warmup = steps / 5;
  options.batch = twin.sequences;
  options.out = nullptr;
  options.machine = twin.machine;
  options.layout = twin.layout;
  options.check_steps = 6;  // these on one device too
  ts::Transformer model(twin.model, /*seed=*/1);
  const ts::TrainReport report = ts::train(model, text, options);  // the model is trained
  std::cout << report;
  const ts::Machine real = ts::machine("h100", {options.layout.pipeline, 4});
  std::cout << "\na step here: " << computing(*report.last_step)
            << "; with the numbers of real chips, " << real.name << ": "
            << computing(report.last_step->on(real)) << " (simulated)\n";

  const int ranks = static_cast<int>(options.layout.pipeline);
  const int microbatches = static_cast<int>(options.layout.microbatches);
  options.layout.schedule = ts::zero_bubble_h1(ranks, microbatches);  // a schedule is data
  ts::Transformer again(twin.model, /*seed=*/1);
  const ts::TrainReport split = ts::train(again, text, options);
  std::cout << "ZB-H1 for 1F1B: last loss " << ts::format_fixed(split.final_loss(), 4) << " after "
            << ts::format_fixed(report.final_loss(), 4) << ", a step "
            << ts::format_seconds(split.step.seconds) << " after "
            << ts::format_seconds(report.step.seconds) << " (simulated)\n";
  if (!pictures.empty()) {
    const std::vector<int> one_of_each_stage = {0, 4, 8};
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
