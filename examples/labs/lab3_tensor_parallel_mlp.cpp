// Lab 3: a tensor-parallel MLP, y = gelu(x W1) W2, whose activations stay sharded between layers.
// Predict what one device sends; then write what one device does. It runs on two simulated
// machines, is compared with one device's result, and its cost with your guess and with that of an
// all_reduce of the activation. It ends with 0 when all is right.
// Read first: "How To Scale Your Model", chapter 5, tensor parallelism.
//   g++ -std=c++17 -O2 -pthread -I. examples/labs/lab3_tensor_parallel_mlp.cpp -o lab3 && ./lab3
#include <cmath>
#include <functional>
#include <iostream>

#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace lab3 {

// ---- YOUR PART ----

// 1. What does one of the n devices of the ring "t" send in one layer, in how many steps? The whole
// activation x[B, D], of all devices together, is `activation_bytes`.
ts::Guess my_guess(int /*n*/, double /*activation_bytes*/) {
  ts::Guess guess;
  // guess.bytes_per_device = ...;
  // guess.steps = ...;
  return guess;
}

// 2. x[B_t, D] is this device's rows. w1[D, F] and w2[F, D] are whole: take this device's part with
// d.shard(w1, "t", dim). Return this device's rows of the result, y[B_t, D]. Each device may do
// only 1 / n of the FLOPs. You need ts::matmul, ts::gelu and two of d.all_gather(t, "t", dim),
// d.reduce_scatter(t, "t", dim), d.all_reduce(t, "t").
ts::Tensor my_mlp(ts::Device& /*d*/, const ts::Tensor& /*x*/, const ts::Tensor& /*w1*/,
                  const ts::Tensor& /*w2*/) {
  return ts::Tensor();  // not written yet
}

// ---- The grading; read it afterwards ----

struct Answers {
  std::function<ts::Guess(int, double)> guess = my_guess;
  std::function<ts::Tensor(ts::Device&, const ts::Tensor&, const ts::Tensor&, const ts::Tensor&)>
      mlp = my_mlp;
};

constexpr int batch = 32, width = 64, hidden = 256;

// What is wrong with the result, on the first device where something is; empty when nothing is.
std::string fault(const ts::Mesh& mesh, const ts::MeshRun& run, const ts::Tensor& whole) {
  const int n = mesh.size("t"), rows = batch / n;
  const double flops = 2.0 * 2.0 * batch * width * hidden;
  const bool sent = !run.collectives().empty();
  for (int rank = 0; rank < run.devices(); ++rank) {
    const ts::Tensor got = run.kept(rank, "y");
    if (got.count() == 0) {
      return "not written yet";
    }
    if (got.shape() != ts::Shape{rows, width}) {
      return ts::detail::cat({"device ", rank, " returns ", got.shape(),
                              ", wanted y[B_t, D] = ", ts::Shape{rows, width}});
    }
    const int first = rank % n * rows;  // "t" is the last axis
    const ts::Tensor want = ts::slice(whole, 0, first, first + rows);
    float worst = 0;
    for (int i = 0; i < rows * width; ++i) {
      worst = std::fmax(worst, std::fabs(got.data()[i] - want.data()[i]));
    }
    if (!(worst < 1e-4f)) {
      return ts::detail::cat({"device ", rank, " is off by up to ", ts::format_fixed(worst, 4),
                              "; is a sum missing, or taken after gelu?"});
    }
    const double done = run.counters(rank).matmul_flops;
    if (std::fabs(done * n - flops) > 1) {
      return ts::detail::cat({"device ", rank, " does ", ts::format_count(done),
                              " matmul FLOPs, wanted a share of ", ts::format_count(flops / n)});
    }
  }
  return sent ? "" : "nothing was sent: W1 and W2 were used whole, take this device's part of each";
}

int grade_program(const Answers& mine, const ts::Mesh& mesh, const ts::Guess& guess,
                  std::ostream& out) {
  const ts::Tensor x = ts::randn({batch, width}, 1);
  const ts::Tensor w1 = ts::randn({width, hidden}, 2, 0.1f);
  const ts::Tensor w2 = ts::randn({hidden, width}, 3, 0.1f);
  try {
    const ts::MeshRun run = mesh.run([&](ts::Device& d) {
      const ts::Tensor y = mine.mlp(d, d.shard(x, "t", 0), w1, w2);
      d.keep("y", y.defined() ? y : ts::zeros({0}));
    });
    const std::string wrong = fault(mesh, run, ts::matmul(ts::gelu(ts::matmul(x, w1)), w2));
    out << "  2 your program: " << (wrong.empty() ? "the numbers are right" : wrong) << "\n";
    if (!wrong.empty()) {
      return 1;
    }
    const ts::CheckReport report = run.check(guess);
    out << "  2 its cost:     " << report << run.table();
    for (const ts::CollectiveRow& row : run.collectives()) {
      if (row.name == "all_reduce") {
        out << "all_reduce gives a device all rows of the sum; which does it return?\n";
        break;
      }
    }
    return report.right ? 0 : 1;
  } catch (const ts::Error& error) {
    out << "  2 your program stopped: " << error.what() << "\n";
    return 1;
  }
}

int grade_machine(const Answers& mine, const ts::Mesh& mesh, std::ostream& out) {
  const int n = mesh.size("t");
  const double bytes = 4.0 * batch * width;
  out << mesh.machine().name << ": n = " << n << ", x[B, D] = " << ts::Shape{batch, width} << " = "
      << ts::format_count(bytes) << " B\n";
  const ts::Guess guess = mine.guess(n, bytes);
  int wrong = 0;
  if (guess.steps < 0 || !(guess.bytes_per_device >= 0)) {
    out << "  1 your guess:   not answered yet: bytes_per_device and steps\n";
    ++wrong;
  } else {
    const ts::Tensor whole = ts::zeros({batch, width});  // the yardstick: as much as an all_reduce
    const ts::MeshRun run = mesh.run([&](ts::Device& d) { d.all_reduce(whole, "t"); });
    const ts::CheckReport report = run.check(guess);
    out << "  1 your guess:   " << report;
    wrong += report.right ? 0 : 1;
  }
  return wrong + grade_program(mine, mesh, guess, out);
}

// 0 when all is right on both machines.
int grade(const Answers& mine, std::ostream& out) {
  ts::Mesh tpu(ts::machine("tpu-v4", {4, 4, 4}), {{"data", 16}, {"t", 4}});
  ts::Mesh gpu(ts::machine("h100", {1, 8}), {{"t", 8}});
  tpu.algorithm = gpu.algorithm = ts::Algorithm::ring;  // so small a tensor would go directly
  const int wrong = grade_machine(mine, tpu, out) + grade_machine(mine, gpu, out);
  out << (wrong == 0 ? "All right.\n"
                     : "Not yet: edit YOUR PART of lab3_tensor_parallel_mlp.cpp, run again\n");
  return wrong == 0 ? 0 : 1;
}

}  // namespace lab3

int main() { return lab3::grade(lab3::Answers(), std::cout); }
