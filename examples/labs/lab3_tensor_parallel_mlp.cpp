// Lab 3: an MLP, y = gelu(x W1) W2, over a ring of 4 chips, with its activations sharded between
// the layers (Megatron's sequence parallelism): all_gather before, reduce_scatter after.
// Guess first: what does one device send and in how many steps, compared with an all_reduce?
// Then try W1 split by rows instead: where is a sum missing? It returns 0 when the answer is right.
#include "tinyscale.hpp"
namespace ts = tinyscale;

int main() {
  const int batch = 32, width = 64, hidden = 256, n = 4;
  const ts::Tensor x = ts::randn({batch, width}, 1);
  const ts::Tensor w1 = ts::randn({width, hidden}, 2, 0.1f);
  const ts::Tensor w2 = ts::randn({hidden, width}, 3, 0.1f);
  ts::Mesh mesh(ts::machine("tpu-v4", {4, 4, 4}), {{"data", 16}, {"t", n}});

  ts::MeshRun run = mesh.run([&](ts::Device& d) {
    const ts::Tensor mine = d.shard(x, "t", 0);                            // x[B_t, D]
    const ts::Tensor all = d.all_gather(mine, "t", 0);                     // x[B, D]
    const ts::Tensor h = ts::gelu(ts::matmul(all, d.shard(w1, "t", 1)));   // h[B, F_t]
    const ts::Tensor part = ts::matmul(h, d.shard(w2, "t", 0));            // y[B, D] {U_t}
    d.keep("y", d.reduce_scatter(part, "t", 0));                           // y[B_t, D]
  });
  std::cout << run.table() << "\n";

  const ts::Tensor whole = ts::matmul(ts::gelu(ts::matmul(x, w1)), w2);
  const int rows = batch / n;
  float worst = 0;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const int first = rank % n * rows;
    const ts::Tensor want = ts::slice(whole, 0, first, first + rows);
    const ts::Tensor got = run.kept(rank, "y");
    for (int i = 0; i < rows * width; ++i) {
      worst = std::max(worst, std::abs(got.data()[i] - want.data()[i]));
    }
  }
  std::cout << "numbers: " << (worst < 1e-4f ? "right" : "wrong") << "\n";

  const double bytes = 4.0 * batch * width;  // of the whole activation
  ts::Guess guess;
  guess.bytes_per_device = 2.0 * (n - 1) / n * bytes;  // as an all_reduce, but sharded in between
  guess.steps = 2 * (n - 1);
  const ts::CheckReport report = run.check(guess);
  std::cout << report;
  return worst < 1e-4f && report.right ? 0 : 1;
}
