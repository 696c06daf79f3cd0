// Tensor parallelism as its definition: the transformer's block, two hooks and parameters that are
// cut. What goes in is replicated, what comes out summed; with sequence parallelism the stream
// between is cut over tokens: gathered before, reduced and scattered after, and what was gathered
// is kept, or gathered again. You see what a device sent beside 8 b s h (t-1)/t (10 when gathered
// again), what it keeps for the backward pass beside its formula, and that x learns as on one.
//   g++ -std=c++17 -O2 -pthread -I. examples/21_tensor_parallel.cpp -o 21_tensor && ./21_tensor
#include "tinyscale.hpp"
namespace ts = tinyscale;

int main() {
  const int t = 4, b = 2, s = 64, h = 128, a = 8, f = 4 * h;
  ts::ModelConfig c = ts::config("nano");
  c.layers = 1, c.width = h, c.heads = c.kv_heads = a, c.head_size = h / a, c.hidden = f;
  const ts::Transformer model(c);
  const ts::Tensor x = ts::randn({b, s, h}, 7);
  const ts::Tensor whole = ts::parameter(x);
  ts::sum(ts::square(model.block(0, whole, ts::Hooks()))).backward();

  ts::Table table;
  table.title = "one block on 4 devices";
  table.columns = {"stream", "bytes sent", "formula", "bytes kept", "formula", "gradient"};
  const char* const ways[] = {"whole", "cut over tokens", "cut, gathered again"};
  for (const int way : {0, 1, 2}) {
    const bool cut = way > 0;  // sequence parallelism
    const ts::Mesh mesh(ts::machine("h100", {1, t}), {{"tensor", t}});
    const ts::MeshRun run = mesh.run([&](ts::Device& d) {
      ts::Transformer own = model;
      for (ts::Parameter& p : own.parameters) {
        p.value = ts::parameter(ts::tensor_shard(p.value, p.split, d.index("tensor"), t));
      }
      ts::Hooks hooks;
      ts::CollectiveOptions options;
      options.gather_again = way == 2;
      hooks.linear_in = [&](const ts::Tensor& in) {
        return cut ? d.all_gather(in, "tensor", 1, options) : d.replicate(in, "tensor");
      };
      hooks.linear_out = [&](const ts::Tensor& out) {
        return cut ? d.reduce_scatter(out, "tensor", 1) : d.all_reduce(out, "tensor");
      };
      const ts::Tensor in = ts::parameter(cut ? d.shard(x, "tensor", 1) : x);
      const ts::Tensor out = own.block(0, in, hooks);
      const double kept = ts::context().memory->current(ts::MemoryKind::activation);
      d.keep("kept", ts::full({}, static_cast<float>(kept)));
      ts::sum(ts::square(out)).backward();
      d.keep("gradient", in.grad());
    });
    const ts::Tensor right = cut ? ts::slice(whole.grad(), 1, s / t, 2 * s / t) : whole.grad();
    const float error = ts::sum(ts::square(run.kept(1, "gradient") - right)).item();
    const bool equal = error < 1e-10f * ts::sum(ts::square(right)).item();
    // Floats a token: norms read 2h and 4 statistics, and give 2h; q, k, v, o 4h, a sums; 2f.
    const int norms = (2 * h + 4) / (cut ? t : 1) + 2 * h / (way == 2 ? t : 1);
    table.add({ways[way], ts::format_count(run.bytes_sent(1)),
               ts::format_count(4.0 * (way == 2 ? 10 : 8) * b * s * h * (t - 1) / t),
               ts::format_count(run.kept(1, "kept").item()),
               ts::format_count(4.0 * b * s * (norms + (4 * h + a + 2 * f) / t)),
               equal ? "one device's" : "wrong"});
  }
  std::cout << table.text();
}
