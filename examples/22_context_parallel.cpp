// How can a sequence be longer than one device can hold? Its tokens are cut over devices, and only
// attention sees more than one's: keys and values go around a ring, tokens are changed for heads
// (Ulysses), or keys and values are gathered. You see outputs and gradients beside one device's,
// bytes beside their formulas, what a causal mask does to a ring without zigzag, and what a window
// of 64 tokens saves: products everywhere, on a ring also the rounds in which nobody sees a key
// (of three one, without zigzag two, and then every device but the first multiplies as many).
//   g++ -std=c++17 -O2 -pthread -I. examples/22_context_parallel.cpp -o 22_context && ./22_context
#include "tinyscale.hpp"
namespace ts = tinyscale;

const int devices = 4;
const std::int64_t batch = 2, length = 512, local = length / devices;  // sequences, their tokens
const std::int64_t heads = 8, kv_heads = 4, q_width = 256, kv_width = 128;  // K = 32 a head

double squares(const ts::Tensor& x) { return double(ts::sum(x * x).item()); }

int main() {
  const ts::Tensor q = ts::parameter(ts::randn({batch, length, q_width}, 1));
  const ts::Tensor k = ts::parameter(ts::randn({batch, length, kv_width}, 2));
  const ts::Tensor v = ts::parameter(ts::randn({batch, length, kv_width}, 3));
  const ts::Mesh mesh(ts::machine("h100", {devices}), {{"context", devices}});
  ts::Table table;
  table.columns = {
      "way", "y, dK within 1e-5", "bytes sent", "formula", "FLOPs on 0", "on 1", "on 2", "on 3"};
  ts::RingOptions options;
  const auto attend = [&](const char* name, ts::ContextParallel kind, std::int64_t window) {
    for (const ts::Tensor* x : {&q, &k, &v}) {
      x->zero_grad();
    }
    const ts::Tensor y = ts::attention(q, k, v, heads, kv_heads, ts::Mask::causal, window);
    ts::sum(y * y).backward();
    const ts::MeshRun run = mesh.run([&](ts::Device& d) {
      const ts::TokenPlaces places = options.zigzag
                                         ? ts::context_places(kind, d.rank(), devices, length)
                                         : ts::TokenPlaces(d.rank() * local);
      const auto mine = [&](const ts::Tensor& x) { return ts::tokens_at(x, 1, places, local); };
      const ts::Tensor my_q = ts::parameter(mine(q)), my_k = ts::parameter(mine(k));
      const ts::Tensor my_v = ts::parameter(mine(v));
      const ts::Tensor out = ts::context_attention(d, kind, my_q, my_k, my_v, heads, kv_heads,
                                                   "context", ts::Mask::causal, options, window);
      ts::sum(out * out).backward();  // the loss is a sum over tokens: each device has its part
      d.keep("y", out - mine(y));
      d.keep("dK", my_k.grad() - mine(k.grad()));
    });
    double off_y = 0, off_k = 0;
    std::vector<std::string> flops;
    for (int rank = 0; rank < devices; ++rank) {
      off_y += squares(run.kept(rank, "y"));
      off_k += squares(run.kept(rank, "dK"));
      flops.push_back(ts::format_count(run.counters(rank).matmul_flops));
    }
    const bool equal = off_y < 1e-10 * squares(y) && off_k < 1e-10 * squares(k.grad());
    const auto bytes = ts::context_attention_bytes(kind, devices, batch, length, q_width, kv_width,
                                                   4, window, options.zigzag);
    table.add({name, equal ? "one device's" : "differ!", ts::format_count(run.bytes_sent(0)),
               ts::format_count(bytes.forward + bytes.backward), flops[0], flops[1], flops[2],
               flops[3]});
  };
  attend("ring", ts::ContextParallel::ring, 0);
  attend("ring, window", ts::ContextParallel::ring, 64);
  attend("ulysses", ts::ContextParallel::ulysses, 0);
  attend("ulysses, window", ts::ContextParallel::ulysses, 64);
  attend("gathered", ts::ContextParallel::gathered, 0);
  attend("gathered, window", ts::ContextParallel::gathered, 64);
  options.zigzag = false;
  attend("ring, no zigzag", ts::ContextParallel::ring, 0);
  attend("the same, window", ts::ContextParallel::ring, 64);
  std::cout << table;
}
