// Tensor parallelism in ten lines, and am I right? w1 is split by columns, w2 by rows; one
// all_reduce adds up the halves of the result. You see what it sent and took, that the numbers are
// one device's, and a guess of bytes and steps checked: wrong with a hint, then right.
//   g++ -std=c++17 -O2 -pthread -I. examples/12_tensor_parallel.cpp -o 12_tensor && ./12_tensor
#include <algorithm>
#include <cmath>

#include "tinyscale.hpp"
namespace ts = tinyscale;

int main() {
  const ts::Tensor x = ts::randn({24, 1024}, 1);           // (B, D)
  const ts::Tensor w1 = ts::randn({1024, 256}, 2, 0.03f);  // (D, F)
  const ts::Tensor w2 = ts::randn({256, 1024}, 3, 0.06f);  // (F, D)
  ts::Mesh mesh(ts::machine("tpu-v5e", {4, 2}), {{"x", 4}, {"y", 2}});

  ts::MeshRun run = mesh.run([&](ts::Device& d) {
    ts::Tensor h = ts::gelu(ts::matmul(d.replicate(x, "y"), d.shard(w1, "y", 1)));
    d.keep("out", d.all_reduce(ts::matmul(h, d.shard(w2, "y", 0)), "y"));
  });
  std::cout << run << "\n";

  const ts::Tensor whole = ts::matmul(ts::gelu(ts::matmul(x, w1)), w2);
  const ts::Tensor out = run.kept(7, "out");
  float worst = 0;
  for (int i = 0; i < 24 * 1024; ++i) {
    worst = std::max(worst, std::abs(out.data()[i] - whole.data()[i]));
  }
  std::cout << (worst < 1e-4f ? "equal to one device within rounding\n" : "not equal!\n");

  ts::Guess guess;
  guess.bytes_per_device = 98304;
  guess.steps = 6;
  std::cout << "an axis of 2: " << run.check(guess);
  guess.steps = 2;  // over 2 devices: one step to reduce, one to gather
  std::cout << "an axis of 2: " << run.check(guess);

  // 6 steps are right for a ring of 4, if it passes chunks one way.
  ts::Mesh ring(ts::machine("tpu-v4", {4, 4, 4}), {{"x", 16}, {"y", 4}});
  guess.steps = 6;
  for (const ts::Algorithm how : {ts::Algorithm::ring, ts::Algorithm::ring_both_ways}) {
    ring.algorithm = how;
    const ts::MeshRun sum = ring.run([](ts::Device& d) {
      d.all_reduce(ts::zeros({16, 1024}), "y");
    });
    std::cout << "4 devices by " << ts::name_of(how) << ": " << sum.check(guess);
  }
}
