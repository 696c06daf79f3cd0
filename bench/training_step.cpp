// How long is a training step, what should it take, and where does the time go?
// The model is nanoGPT's CPU configuration: 4 layers, 4 heads, width 128, context 64, batch 12.
// Peer: PyTorch, run eagerly by a Python that can import it: the same shapes, AdamW and clipping.
//   g++ -std=c++17 -O2 -pthread -I. bench/training_step.cpp && ./a.out
#include "bench.hpp"

namespace ts = tinyscale;

// One model in training on random tokens; a step is forward, backward, clip and update.
struct Training {
  ts::ModelConfig config;
  ts::Transformer model;
  ts::StepOptions options;
  ts::AdamW optimizer;
  ts::Batch batch;
  std::int64_t steps = 0;

  static ts::ModelConfig nano(std::int64_t vocabulary) {
    ts::ModelConfig config = ts::config("nano");
    config.vocabulary = vocabulary;
    return config;
  }
  explicit Training(std::int64_t vocabulary)
      : config(nano(vocabulary)),
        model(config, /*seed=*/1),
        optimizer(model.tensors(), ts::adamw_options(options)) {
    batch.time = config.context;
    batch.sequences = options.batch;
    const std::int64_t tokens = batch.time * batch.sequences;
    for (std::int64_t i = 0; i < tokens; ++i) {
      const auto index = static_cast<std::uint64_t>(i);
      const auto below = static_cast<std::uint64_t>(vocabulary);
      batch.ids.push_back(static_cast<std::int32_t>(ts::random_below(2, index, below)));
      batch.targets.push_back(static_cast<std::int32_t>(ts::random_below(3, index, below)));
    }
  }
  void step() { ts::train_step(model, optimizer, batch, options, steps++ % options.steps); }
  double tokens() const { return static_cast<double>(batch.ids.size()); }
};

// Median seconds of a step in PyTorch on one thread; 0 when it is not there.
double torch_seconds(std::int64_t vocabulary) {
  const std::vector<double> found = bench::python_numbers("V = " + std::to_string(vocabulary) + R"(
import statistics, time
import torch
from torch import nn
from torch.nn import functional as F
torch.set_num_threads(1)
B, T, D, H, L = 12, 64, 128, 4, 4
mask = torch.tril(torch.ones(T, T)).view(1, 1, T, T) == 0
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.out = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        self.up, self.down = nn.Linear(D, 4 * D, bias=False), nn.Linear(4 * D, D, bias=False)
    def forward(self, x):
        q, k, v = self.qkv(self.n1(x)).split(D, dim=2)
        q, k, v = (t.view(B, T, H, D // H).transpose(1, 2) for t in (q, k, v))
        if hasattr(F, "scaled_dot_product_attention"):
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            s = (q @ k.transpose(2, 3)) * (D // H) ** -0.5
            o = F.softmax(s.masked_fill(mask, float("-inf")), dim=-1) @ v
        x = x + self.out(o.transpose(1, 2).reshape(B, T, D))
        return x + self.down(F.gelu(self.up(self.n2(x))))
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(V, D), nn.Embedding(T, D)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(L)), nn.LayerNorm(D)
    def forward(self, ids, targets):
        x = self.tokens(ids) + self.places(torch.arange(T))
        for block in self.blocks:
            x = block(x)
        logits = self.norm(x) @ self.tokens.weight.t()
        return F.cross_entropy(logits.view(-1, V), targets.view(-1))
model = Model()
adamw = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
ids, targets = torch.randint(V, (B, T)), torch.randint(V, (B, T))
def step():
    adamw.zero_grad(set_to_none=True)
    loss = model(ids, targets)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    adamw.step()
    return loss.item()
for i in range(5):
    step()
times, begin = [], time.perf_counter()
while len(times) < 30 and time.perf_counter() - begin < 3:
    start = time.perf_counter()
    step()
    times.append(time.perf_counter() - start)
print(statistics.median(times)))");
  return found.empty() ? 0 : found[0];
}

// The step's ops, each kind summed over its shapes, the slowest first.
void print_ops(Training& training, const ts::Chip& laptop) {
  std::vector<ts::RooflineRow> kinds;
  constexpr int rounds = 10;
  double step_seconds = 0;
  for (int i = 0; i < rounds; ++i) {
    const ts::Profile profile;
    step_seconds += bench::seconds_of([&training] { training.step(); }, 1) / rounds;
    for (const ts::OpRecord& record : profile.records()) {
      const ts::RooflineRow row = ts::roofline(record, laptop);
      std::size_t at = 0;
      while (at < kinds.size() && kinds[at].name != row.name) {
        ++at;
      }
      if (at == kinds.size()) {
        kinds.push_back(ts::RooflineRow());
        kinds[at].name = row.name;
      }
      ++kinds[at].count;
      kinds[at].seconds += row.seconds / rounds;
      kinds[at].measured += row.measured / rounds;
    }
  }
  std::sort(kinds.begin(), kinds.end(), [](const ts::RooflineRow& a, const ts::RooflineRow& b) {
    return a.measured > b.measured;
  });
  ts::Table table;
  table.columns = {"op", "a step", "measured", "roofline", "roofline / measured", "% of the step"};
  double measured = 0;
  for (const ts::RooflineRow& kind : kinds) {
    measured += kind.measured;
    table.add({kind.name, std::to_string(kind.count / rounds), ts::format_seconds(kind.measured),
               ts::format_seconds(kind.seconds), bench::ratio(kind.seconds, kind.measured),
               ts::format_fixed(100 * kind.measured / step_seconds, 1)});
  }
  std::printf("%s", table.text().c_str());
  std::printf("not in an op: %s (the optimizer, clipping, memory, the graph)\n\n",
              ts::format_seconds(std::max(0.0, step_seconds - measured)).c_str());
}

int main() {
  bench::print_machine("training_step: nano, 12 sequences of 64 tokens, f32");
  const ts::Chip laptop = ts::laptop();
  const int threads = ts::thread_count();
  ts::Table table;
  table.columns = {"vocabulary", "threads",  "a step",  "tokens / s",
                   "MFU, %",     "roofline", "PyTorch", "/ PyTorch"};
  bool peer = true;
  for (const std::int64_t vocabulary : {65, 256}) {
    Training training(vocabulary);
    ts::RooflineReport roof;
    {
      const ts::Profile profile;
      training.step();
      roof = profile.roofline(laptop);
    }
    const double flops =
        ts::model_flops_per_token(training.config, training.batch.time) * training.tokens();
    for (int used = 1; used <= threads; used += std::max(1, threads - 1)) {
      const bench::Work step = [&training] { training.step(); };
      const bench::Work way = used == 1 ? bench::serial(step) : step;
      bench::Rounds often;
      often.rounds = 21;
      const bench::Work limit = bench::limit_loop;
      const std::vector<bench::Work> ways = {way, used == 1 ? bench::serial(limit) : limit};
      const std::vector<double> before = bench::compare(ways, often);
      const double torch = peer && used == 1 ? torch_seconds(vocabulary) : 0;
      peer = used == 1 ? torch > 0 : peer;
      const std::vector<double> after = bench::compare(ways, often);
      const double seconds = (before[0] + after[0]) / 2;
      const double peak = 2 * bench::limit_flops / (before[1] + after[1]);
      table.add({std::to_string(vocabulary), std::to_string(used), ts::format_seconds(seconds),
                 ts::format_fixed(training.tokens() / seconds, 0),
                 ts::format_fixed(100 * flops / seconds / peak, 1),
                 used == threads ? ts::format_seconds(roof.total.seconds) : "-",
                 torch > 0 ? ts::format_seconds(torch) : "-", bench::ratio(torch, seconds)});
      if (used == threads && vocabulary == 256) {
        print_ops(training, laptop);
      }
    }
  }
  if (!peer) {
    bench::skip("PyTorch", "python3 cannot import torch");
  }
  std::printf("%s", table.text().c_str());
  std::printf(
      "\nMFU: 6 flops a parameter and token, and attention, over the FMA loop.\n"
      "roofline: the sum of every op's limit on all threads, without the optimizer.\n"
      "/ PyTorch, above 1: tinyscale is faster.\n");
  return 0;
}
