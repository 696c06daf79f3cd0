// Vector programs beside the kernels that do the same in a loop of their own, and beside the limit
// of memory. A ratio above 1: the program is faster.

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "bench.hpp"
#include "options.hpp"

namespace kernel = tinyscale::kernels;
using kernel::VectorOp;
using kernel::VectorOutput;
using kernel::VectorProgram;

namespace {

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

typedef bench::ts::List<float> Floats;  // aligned, as tensors are

Floats numbers(std::size_t n, std::uint64_t seed) { return Floats(bench::numbers(n, seed)); }

// A program with the memory it runs on, and the ratio of another way's time to its own.
struct Case {
  kernel::VectorPlan plan;
  bench::ts::List<Floats> memory;
  std::vector<const float*> inputs;
  std::vector<float*> outputs;

  void input(const Floats& x) {
    memory.push_back(x);
    inputs.push_back(memory.back().data());
  }
  void output(std::int64_t n) {
    memory.push_back(Floats(size(n)));
    outputs.push_back(memory.back().data());
  }
  bench::Work work() const {
    return [this] { kernel::run(plan, inputs.data(), outputs.data()); };
  }
};

void print(const std::string& what, const std::vector<double>& t, std::int64_t floats) {
  std::printf("%-34s %9.1f us  %6.1f Gnumbers/s  %5.2f times as fast as the kernel\n", what.c_str(),
              1e6 * t[0], static_cast<double>(floats) / t[0] / 1e9, t[1] / t[0]);
}

void chain(std::int64_t n) {
  Case c;
  VectorProgram p({}, n), copy({}, n);
  int x = p.dense_input();
  x = p.apply(VectorOp::mul, x, p.literal(1.1f));
  x = p.apply(VectorOp::add, x, p.literal(0.3f));
  x = p.apply(VectorOp::mul, x, p.literal(0.9f));
  x = p.apply(VectorOp::add, x, p.literal(-0.2f));
  x = p.apply(VectorOp::maximum, x, p.literal(0.1f));
  x = p.apply(VectorOp::mul, x, p.literal(1.3f));
  x = p.apply(VectorOp::sub, x, p.literal(0.7f));
  x = p.apply(VectorOp::add, x, p.literal(0.6f));
  p.output(x, VectorOutput::full);
  copy.output(copy.apply(VectorOp::mul, copy.dense_input(), copy.literal(1.1f)),
              VectorOutput::full);
  c.plan = kernel::plan_vectors(p);
  const kernel::VectorPlan copy_plan = kernel::plan_vectors(copy);
  c.input(numbers(size(n), 1));
  c.output(n);
  Floats ones(size(n)), other(size(n));
  ones.assign(size(n), 0.5f);
  const float* const in = c.inputs[0];
  float* const y = other.data();
  const bench::Work eager = [&] {
    kernel::scale(n, 1.1f, in, y);
    kernel::add(n, y, ones.data(), y);
    kernel::scale(n, 0.9f, y, y);
    kernel::add(n, y, ones.data(), y);
    kernel::relu_forward(n, y, y);
    kernel::scale(n, 1.3f, y, y);
    kernel::sub(n, y, ones.data(), y);
    kernel::add(n, y, ones.data(), y);
  };
  const bench::Work copied = [&] { kernel::run(copy_plan, c.inputs.data(), c.outputs.data()); };
  const bench::Work scaled = [&] { kernel::scale(n, 1.1f, in, c.outputs[0]); };
  const bench::ReadLimit read(8.0 * static_cast<double>(n));
  const std::vector<double> t = bench::compare({c.work(), eager, copied, scaled, read.work()});
  print("8 elementwise, " + std::to_string(n), t, n);
  std::printf("   of the limit: copying %.2f, kernels::scale %.2f, reading as many bytes %.2f\n",
              t[2] / t[0], t[3] / t[0], t[4] / t[0]);
}

void gelu(std::int64_t n) {
  Case c;
  VectorProgram p({}, n);
  const int x = p.dense_input();
  const int erf = p.apply(VectorOp::erf, p.apply(VectorOp::mul, x, p.literal(0.70710678f)));
  const int half = p.apply(VectorOp::mul, x, p.literal(0.5f));
  p.output(p.apply(VectorOp::mul, half, p.apply(VectorOp::add, erf, p.literal(1.0f))),
           VectorOutput::full);
  c.plan = kernel::plan_vectors(p);
  c.input(numbers(size(n), 1));
  c.output(n);
  Floats y(size(n));
  const bench::Work eager = [&] { kernel::gelu_forward(n, c.inputs[0], y.data()); };
  print("gelu, " + std::to_string(n), bench::compare({c.work(), eager}), n);
}

std::string shape(std::int64_t rows, std::int64_t cols) {
  return " [" + std::to_string(rows) + ", " + std::to_string(cols) + "]";
}

void softmax(std::int64_t rows, std::int64_t cols) {
  Case c;
  VectorProgram p({rows}, cols);
  const int x = p.dense_input();
  const int e = p.apply(VectorOp::exp_sub, x, p.apply(VectorOp::row_max, x));
  p.output(p.apply(VectorOp::div, e, p.apply(VectorOp::row_sum, e)), VectorOutput::full);
  c.plan = kernel::plan_vectors(p);
  c.input(numbers(size(rows * cols), 1));
  c.output(rows * cols);
  Floats y(size(rows * cols));
  const bench::Work eager = [&] { kernel::softmax_forward(rows, cols, c.inputs[0], y.data()); };
  print("softmax" + shape(rows, cols), bench::compare({c.work(), eager}), rows * cols);
}

void layer_norm(std::int64_t rows, std::int64_t cols) {
  Case c;
  VectorProgram p({rows}, cols);
  const int x = p.dense_input(), weight = p.per_column_input(), bias = p.per_column_input();
  const int share = p.literal(1.0f / static_cast<float>(cols));
  const int d =
      p.apply(VectorOp::sub, x, p.apply(VectorOp::mul, p.apply(VectorOp::row_sum, x), share));
  const int sum = p.apply(VectorOp::row_sum, p.apply(VectorOp::square, d));
  const int var = p.apply(VectorOp::add, p.apply(VectorOp::mul, sum, share), p.literal(1e-5f));
  const int rstd = p.apply(VectorOp::div, p.literal(1.0f), p.apply(VectorOp::sqrt, var));
  const int n = p.apply(VectorOp::mul, d, rstd);
  p.output(p.apply(VectorOp::add, p.apply(VectorOp::mul, n, weight), bias), VectorOutput::full);
  c.plan = kernel::plan_vectors(p);
  c.input(numbers(size(rows * cols), 1));
  c.input(numbers(size(cols), 2));
  c.input(numbers(size(cols), 3));
  c.output(rows * cols);
  Floats y(size(rows * cols)), mean(size(rows)), r(size(rows));
  const bench::Work eager = [&] {
    kernel::layer_norm_forward(rows, cols, 1e-5f, c.inputs[0], c.inputs[1], c.inputs[2], y.data(),
                               mean.data(), r.data());
  };
  print("layer norm" + shape(rows, cols), bench::compare({c.work(), eager}), rows * cols);
}

void cross_entropy(std::int64_t rows, std::int64_t cols) {
  Case c;
  VectorProgram p({rows}, cols);
  const int x = p.dense_input(), target = p.per_row_input();
  const int max = p.apply(VectorOp::row_max, x);
  const int sum = p.apply(VectorOp::row_sum, p.apply(VectorOp::exp_sub, x, max));
  const int lse = p.apply(VectorOp::add, p.apply(VectorOp::log, sum), max);
  p.output(p.apply(VectorOp::sub, lse, p.apply(VectorOp::row_pick, x, target)),
           VectorOutput::per_row);
  c.plan = kernel::plan_vectors(p);
  c.input(numbers(size(rows * cols), 1));
  std::vector<std::int32_t> targets;
  Floats as_floats, losses(size(rows)), lses(size(rows));
  for (std::int64_t i = 0; i < rows; ++i) {
    targets.push_back(static_cast<std::int32_t>(i * 7919 % cols));
    as_floats.push_back(static_cast<float>(targets.back()));
  }
  c.input(as_floats);
  c.output(rows);
  const bench::Work eager = [&] {
    kernel::cross_entropy_forward(rows, cols, c.inputs[0], targets.data(), losses.data(),
                                  lses.data());
  };
  print("cross-entropy" + shape(rows, cols), bench::compare({c.work(), eager}), rows * cols);
}

}  // namespace

int main(int count, char** words) {
  bench::read_options(count, words, {});
  bench::print_machine("vector programs: blocks of rows, step after step in the cache");
  chain(std::int64_t{1} << 24);
  chain(std::int64_t{1} << 16);
  gelu(std::int64_t{1} << 22);
  gelu(std::int64_t{1} << 16);
  softmax(4096, 1024);
  softmax(64, 50257);
  softmax(65536, 16);
  layer_norm(4096, 768);
  cross_entropy(1024, 50257);
  return 0;
}
