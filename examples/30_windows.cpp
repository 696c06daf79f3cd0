// How far does a model see whose layers see windows? A layer with a window of W tokens looks W - 1
// back, the next one W - 1 further: L of them reach L (W - 1), and one global layer sees all that
// those before it gathered. You see that reach counted (which tokens change the last logits, by
// their gradients), and what a window saves: products of a training step, bytes of a cache.
//   g++ -std=c++17 -O2 -pthread -I. examples/30_windows.cpp -o 30_windows && ./30_windows
#include "tinyscale.hpp"
namespace ts = tinyscale;

const std::int64_t tokens = 128;

ts::ModelConfig model_of(std::int64_t window, std::int64_t global_every) {
  ts::ModelConfig c = ts::config("nano-llama");
  c.layers = 6, c.width = 64, c.heads = 4, c.kv_heads = 2, c.head_size = 16, c.hidden = 128;
  c.context = tokens, c.vocabulary = 96;
  c.window = window, c.global_every = global_every;
  return c;
}

std::vector<std::int32_t> some_ids() {
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < tokens; ++i) {
    ids.push_back(static_cast<std::int32_t>(i * 37 % 96));
  }
  return ids;
}

// Tokens before the last one whose numbers reach its logits.
std::int64_t counted_reach(const ts::Transformer& model) {
  const ts::Hooks hooks;
  const ts::Tensor embedded =
      ts::parameter(model.embed(some_ids(), 1, tokens, hooks).detach());  // [1, T, D]
  ts::Tensor x = embedded;
  for (int layer = 0; layer < model.config.layers; ++layer) {
    x = model.block(layer, x, hooks);
  }
  const ts::Tensor logits = model.head(x, hooks);
  ts::sum(ts::square(ts::slice(logits, 1, tokens - 1, tokens))).backward();
  std::int64_t first = tokens - 1;
  for (std::int64_t t = tokens - 1; t >= 0; --t) {
    const ts::Tensor slope = ts::slice(embedded.grad(), 1, t, t + 1);
    first = ts::max(ts::abs(slope)).item() > 0 ? t : first;
  }
  return tokens - 1 - first;
}

// Matmul FLOPs of attention alone, forward and backward: 4 and 10 K a pair of query and key.
double counted_flops(const ts::Transformer& model) {
  const ts::Profile profile;
  model.loss(some_ids(), some_ids(), 1, tokens).backward();
  double flops = 0;
  for (const ts::OpRecord& op : profile.records()) {
    flops += op.name.find("attention") == 0 ? op.matmul_flops : 0;
  }
  return flops;
}

double counted_cache(const ts::Transformer& model) {
  ts::KvPages cache(model.config);
  const int sequence = cache.add();
  ts::decode(model, cache, {{sequence, some_ids(), true}});
  double bytes = 0;
  for (int layer = 0; layer < model.config.layers; ++layer) {
    bytes += cache.bytes_read(sequence, layer);
  }
  return bytes;
}

int main() {
  ts::Table table;
  table.columns = {"window",  "layers that see all", "reach",  "counted", "attention FLOPs",
                   "counted", "cache read a token",  "counted"};
  const std::int64_t choices[][2] = {{0, 0}, {64, 0}, {16, 0}, {4, 0}, {16, 6}, {16, 3}, {16, 2}};
  for (const auto& choice : choices) {
    const ts::ModelConfig c = model_of(choice[0], choice[1]);
    const ts::Transformer model(c, 1);
    const std::int64_t local = c.local_layers();
    const std::int64_t reach =
        local < c.layers ? tokens - 1 : std::min(tokens - 1, c.layers * (c.window - 1));
    const double pairs = double(c.layers - local) * ts::causal_pairs(0, tokens) +
                         double(local) * ts::causal_pairs(0, tokens, c.window);
    const double flops = (4 + 10) * pairs * double(c.query_width());
    table.add({c.window == 0 ? "none" : ts::format_count(double(c.window)),
               ts::format_count(double(c.layers - local)), ts::format_count(double(reach)),
               ts::format_count(double(counted_reach(model))), ts::format_count(flops),
               ts::format_count(counted_flops(model)),
               ts::format_bytes(4 * double(c.cached_numbers(tokens))),
               ts::format_bytes(counted_cache(model))});
  }
  std::cout << table;
}
