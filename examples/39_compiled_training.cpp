// What is a training step worth as one graph? The nano transformer learns a text twice, op by op
// and as one graph of forward, backward, clipping and AdamW, a step of each in turns: the same
// losses, and the time of a step (measured). Then what each pass does to bytes, kernels, memory and
// time.
//   g++ -std=c++17 -O2 -pthread -I. examples/39_compiled_training.cpp -o 39_compiled_training
//   ./39_compiled_training [text file, by default input.txt, else a short text] [steps]
//                          [folder for graph.svg, bytes.svg, memory.svg]

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iostream>

#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

ts::Text text_to_learn(const std::string& path) {
  if (std::ifstream(path).good()) {
    return ts::read_text(path);
  }
  std::string lines;
  for (int i = 0; i < 200; ++i) {
    lines += "Shall I compare thee to a summer's day?\nThou art more lovely and more temperate:\n";
    lines += "Rough winds do shake the darling buds of May,\n";
    lines += "And summer's lease hath all too short a date.\n";
  }
  return ts::make_text("built in", lines);
}

// One way to train: its losses, the time of each step, the most memory that a step took.
struct Run {
  std::vector<double> losses, seconds;
  double bytes = 0;

  void step(const ts::Function<ts::StepResult()>& work) {
    ts::MemoryMeter& meter = *ts::context().memory;
    const double before = meter.current_total();
    meter.mark();
    const auto start = std::chrono::steady_clock::now();
    losses.push_back(work().loss);
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    bytes = std::max(bytes, meter.peak_total_since_mark() - before);
  }
  double median() const {
    std::vector<double> sorted(seconds);
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

// The graph's inputs: token numbers, targets, and what AdamW reads at every step: beta1, beta2,
// epsilon, decay, rate, correction.
std::vector<ts::Tensor> inputs_of(const ts::Graph& graph, const ts::Batch& batch) {
  const float adamw[] = {0.9f, 0.99f, 1e-8f, 1.0f, 1e-3f, 1.0f};
  std::vector<ts::Tensor> inputs;
  for (const int node : graph.inputs) {
    ts::Tensor x(graph[node].shape);
    const std::vector<std::int32_t>& ids = inputs.empty() ? batch.ids : batch.targets;
    for (std::int64_t i = 0; i < x.count(); ++i) {
      const auto at = static_cast<std::size_t>(i);
      x.data()[i] = x.dims() == 2 ? static_cast<float>(ids[at]) : adamw[at];
    }
    inputs.push_back(x);
  }
  return inputs;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const ts::Text text = text_to_learn(argc > 1 ? argv[1] : "input.txt");
    ts::StepOptions options;
    options.steps = std::max(argc > 2 ? std::atoi(argv[2]) : 200, 2);
    const ts::Transformer one(ts::config("nano"), /*seed=*/1), other(ts::config("nano"), 1);
    ts::AdamW eager_optimizer(one.tensors(), ts::adamw_options(options));
    ts::AdamW graph_optimizer(other.tensors(), ts::adamw_options(options));
    ts::CompiledStep compiled = ts::compile_step(other, graph_optimizer, options);
    const std::vector<std::int32_t> tokens = text.train();
    std::cout << text << "\nnano, " << options.batch << " x " << one.config.context
              << " tokens a step\n\n";

    Run eager, graph;
    ts::Batch batch;
    double worst = 0;
    ts::Table losses;
    losses.columns = {"step", "loss, eager", "loss, one graph", "difference"};
    for (std::int64_t i = 0; i < options.steps; ++i) {
      ts::fill_batch(batch, tokens, options.batch, one.config.context, options.seed, i);
      eager.step([&] { return ts::train_step(one, eager_optimizer, batch, options, i); });
      graph.step([&] { return compiled(batch, i); });
      const double difference = std::fabs(eager.losses.back() - graph.losses.back());
      worst = std::max(worst, difference);
      if (i % std::max<std::int64_t>(options.steps / 8, 1) == 0 || i + 1 == options.steps) {
        losses.add({std::to_string(i), ts::format_fixed(eager.losses.back(), 4),
                    ts::format_fixed(graph.losses.back(), 4), ts::format_fixed(difference, 6)});
      }
    }
    const ts::CompileCounters counters = compiled.compiled().counters();
    std::cout << losses << "largest difference in " << options.steps << " steps: " << worst
              << "\n\n";

    ts::Table times;
    times.columns = {"", "step, measured", "most memory in a step, counted"};
    times.add({"eager", ts::format_seconds(eager.median()), ts::format_bytes(eager.bytes)});
    times.add({"one graph", ts::format_seconds(graph.median()), ts::format_bytes(graph.bytes)});
    std::cout << times << "captured " << counters.captures << " times in "
              << ts::format_seconds(counters.capture_seconds) << ", passes "
              << ts::format_seconds(counters.pass_seconds) << "\n\n";

    // Pass by pass, each row with those above it.
    ts::CompileReport report = ts::compile_report(compiled.compiled());
    report.measure(inputs_of(report.graph, batch), 9);
    ts::Table passes;
    passes.title = "one step, pass by pass";
    passes.columns = {"pass", "kernels", "bytes, counted", "peak memory, counted",
                      "step, measured"};
    worst = 0;
    for (const ts::PassRow& row : report.rows) {
      passes.add({row.name, std::to_string(row.counted_kernels),
                  ts::format_bytes(row.counted_bytes), ts::format_bytes(row.counted_peak_bytes),
                  ts::format_seconds(row.seconds)});
      worst = std::max(worst, row.difference);
    }
    std::cout << passes << "results differ by at most " << worst << " of their largest number\n";

    if (argc > 3) {
      const std::string folder = std::string(argv[3]) + "/";
      ts::svg(compiled.compiled().plan()).save(folder + "graph.svg");
      ts::svg(ts::bytes_waterfall(compiled.compiled())).save(folder + "bytes.svg");
      ts::memory_timeline(compiled.compiled().plan()).save(folder + "memory.svg");
      std::cout << "graph.svg, bytes.svg, memory.svg are in " << argv[3] << "\n";
    }
  } catch (const ts::Error& error) {
    std::cerr << "39_compiled_training: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
