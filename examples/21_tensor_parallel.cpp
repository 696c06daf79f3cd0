// Tensor parallelism as its definition: the transformer's block, two hooks and parameters that are
// cut. What goes in is replicated, what comes out summed; with sequence parallelism the stream
// between is cut over tokens: gathered before, reduced and scattered after. You see what a device
// sent beside 8 b s h (t-1)/t, what it keeps beside its formula, and that it is one device's.
//   g++ -std=c++17 -O2 -pthread -I. examples/21_tensor_parallel.cpp -o 21_tensor && ./21_tensor
#include "tinyscale.hpp"
namespace ts = tinyscale;

int main() {
  const int t = 4, b = 2, s = 64, h = 128, a = 8, f = 4 * h;
  ts::ModelConfig c = ts::config("nano");
  c.layers = 1, c.width = h, c.heads = c.kv_heads = a, c.head_size = h / a, c.hidden = f;
  const ts::Transformer model(c);
  const ts::Tensor x = ts::randn({b, s, h}, 7);
  const ts::Tensor whole = ts::parameter(x), y = model.block(0, whole, ts::Hooks());
  ts::sum(ts::square(y)).backward();

  ts::Table table;
  table.title = "one block on 4 devices";
  table.columns = {"stream", "bytes sent", "8bsh(t-1)/t", "bytes kept", "formula", "output"};
  for (const bool cut : {false, true}) {  // over tokens: sequence parallelism
    const ts::Mesh mesh(ts::machine("h100", {1, t}), {{"tensor", t}});
    const ts::MeshRun run = mesh.run([&](ts::Device& d) {
      ts::Transformer own = model;
      for (ts::Parameter& p : own.parameters) {
        p.value = ts::parameter(ts::tensor_shard(p.value, p.split, d.index("tensor"), t));
      }
      ts::Hooks hooks;
      hooks.linear_in = [&](const ts::Tensor& in) {
        return cut ? d.all_gather(in, "tensor", 1) : d.replicate(in, "tensor");
      };
      hooks.linear_out = [&](const ts::Tensor& out) {
        return cut ? d.reduce_scatter(out, "tensor", 1) : d.all_reduce(out, "tensor");
      };
      const ts::Tensor in = ts::parameter(cut ? d.shard(x, "tensor", 1) : x);
      const ts::Tensor out = own.block(0, in, hooks);
      const double kept = ts::context().memory->current(ts::MemoryKind::activation);
      d.keep("kept", ts::full({}, static_cast<float>(kept)));
      ts::sum(ts::square(out)).backward();
      d.keep("out", out);
      d.keep("gradient", in.grad());
    });
    bool equal = true;
    for (const char* what : {"out", "gradient"}) {
      const ts::Tensor right = what[0] == 'o' ? y : whole.grad();
      const ts::Tensor part = cut ? ts::slice(right, 1, s / t, 2 * s / t) : right;
      const float error = ts::sum(ts::square(run.kept(1, what) - part)).item();
      equal = equal && error < 1e-10f * ts::sum(ts::square(part)).item();
    }
    // Floats a token: norms read and give 4h, with 4 statistics; q, k, v, o 4h, a sums; 2f.
    const int stream = cut ? (2 * h + 4) / t + 2 * h : 4 * h + 4;
    table.add({cut ? "cut over tokens" : "whole", ts::format_count(run.bytes_sent(1)),
               ts::format_count(4.0 * 8 * b * s * h * (t - 1) / t),
               ts::format_count(run.kept(1, "kept").item()),
               ts::format_count(4.0 * b * s * (stream + (4 * h + a + 2 * f) / t)),
               equal ? "one device's" : "wrong"});
  }
  std::cout << table.text();
}
