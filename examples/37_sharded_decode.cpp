// Generation on four chips: every matrix and the KV cache cut over them by head (tensor), by layers
// in stages that work on several prompts at once (pipeline), or heads over two and tokens over two,
// with the parts of attention merged by log-sum-exp (sequence). The tokens are those of one chip.
// You see what a device sends for a token and holds beside the closed form, and what a decode step
// takes on a TPU v5e 2x2, and when the same run is timed on an H100 node: nearly all of it is the
// latency of the two all_reduces a layer, which is why small models are served on one chip.
//   g++ -std=c++17 -O2 -pthread -I. examples/37_sharded_decode.cpp -o 37_decode && ./37_decode
#include "tinyscale.hpp"
namespace ts = tinyscale;

int main() {
  ts::ModelConfig c = ts::config("nano");
  c.name = "nano, grouped queries";
  c.layers = 4, c.width = 256, c.heads = 16, c.kv_heads = 4, c.head_size = 16, c.hidden = 1024;
  c.vocabulary = 1000, c.context = 64;
  c.position = ts::Position::rotary;
  const ts::Transformer model(c);

  ts::List<std::vector<std::int32_t>> prompts;  // of 3, 8, 13 and 18 tokens
  for (std::int32_t p = 0; p < 4; ++p) {
    prompts.push_back({});
    for (std::int32_t i = 0; i < 3 + 5 * p; ++i) {
      prompts.back().push_back((37 * p + 11 * i) % 1000);
    }
  }
  ts::ServeOptions options;
  options.temperature = 0;
  options.pages.page_tokens = 8;

  const ts::Machine one = ts::machine("tpu-v5e", {1}), slice = ts::machine("tpu-v5e", {2, 2});
  const ts::Machine node = ts::machine("h100", {1, 4});
  const auto alone = ts::generate_sharded(model, prompts, 12, ts::ServeLayout(), one, options);

  ts::ServeLayout layouts[3];
  layouts[0].tensor = 4;
  layouts[1].tensor = layouts[1].sequence = 2;
  layouts[2].pipeline = 4;
  ts::Table table;
  table.title = "a decode step of 4 sequences, simulated beside its closed form";
  table.columns = {"layout", "tokens", "v5e", "formula", "H100", "formula"};
  const auto add = [&](const ts::ShardedGeneration& made, const ts::ShardedGeneration& again) {
    bool equal = true;
    for (std::size_t p = 0; p < prompts.size(); ++p) {
      equal = equal && made.ids[p] == alone.ids[p];
    }
    const ts::ReportRow tpu = made.times.rows[0], gpu = again.times.rows[0];
    table.add({made.layout.text(), equal ? "one chip's" : "wrong", ts::format_seconds(tpu.counted),
               ts::format_seconds(tpu.predicted), ts::format_seconds(gpu.counted),
               ts::format_seconds(gpu.predicted)});
  };
  add(alone, alone.on(ts::machine("h100", {1, 1})));
  for (const ts::ServeLayout& layout : layouts) {
    const auto made = ts::generate_sharded(model, prompts, 12, layout, slice, options);
    if (layout.tensor == 4) {
      std::cout << made << "\n";
    }
    add(made, made.on(node));
  }
  std::cout << table.text();
}
