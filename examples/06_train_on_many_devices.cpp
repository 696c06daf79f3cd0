// The same training on many devices. A small model learns the same text on this laptop and on four
// simulated TPU v5e (data parallelism: each device takes a quarter of the batch, one all_reduce of
// the gradients makes the steps equal). You see the losses beside each other, then what one step
// sent, counted beside the formula, and where its simulated time went.
//   g++ -std=c++17 -O2 -pthread -I. examples/06_train_on_many_devices.cpp -o 06_train
//   ./06_train [text file, by default input.txt] [steps]
#include <cmath>
#include <cstdlib>
#include <iostream>

#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

void run(const ts::Text& text, int steps) {
  ts::ModelConfig config = ts::config("nano");
  config.name = "nano, 2 layers of 64";
  config.layers = 2;
  config.width = 64;
  config.heads = config.kv_heads = 2;
  config.head_size = 32;
  config.hidden = 256;
  ts::TrainOptions options;
  options.steps = steps;
  options.warmup = steps / 5;
  options.out = nullptr;
  ts::Transformer on_one(config, /*seed=*/1);
  const ts::TrainReport one = ts::train(on_one, text, options);

  options.machine = ts::machine("tpu-v5e", {4});
  options.layout.data = 4;  // devices = data * tensor * pipeline * context
  ts::Transformer on_four(config, /*seed=*/1);
  const ts::TrainReport four = ts::train(on_four, text, options);  // the same call

  ts::Table table;
  table.title = "losses of the same training (measured)";
  table.columns = {"step", "1 device", "4 devices", "difference"};
  for (std::size_t i = 0; i < one.losses.size(); i += one.losses.size() / 6 + 1) {
    table.add({std::to_string(i), ts::format_fixed(one.losses[i], 4),
               ts::format_fixed(four.losses[i], 4),
               ts::format_fixed(std::fabs(one.losses[i] - four.losses[i]), 8)});
  }
  std::cout << table << "\n" << four << "\n" << *four.last_step;

  options.layout.tensor = 2;  // not built yet: the library says so
  try {
    ts::train(on_four, text, options);
  } catch (const ts::Error& error) {
    std::cout << "\nlayout.tensor = 2: " << error.what() << "\n";
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(ts::read_text(argc > 1 ? argv[1] : "input.txt"), argc > 2 ? std::atoi(argv[2]) : 60);
  } catch (const ts::Error& error) {
    std::cerr << "06_train_on_many_devices: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
