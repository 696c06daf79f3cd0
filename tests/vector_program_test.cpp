#include <doctest/doctest.h>

#include "tinyscale.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "error_of.hpp"
#include "kernel_tests.hpp"
#include "random_vector_programs.hpp"

namespace ts = tinyscale;
namespace kernel = tinyscale::kernels;
using kernel::VectorOp;
using kernel::VectorOutput;
using kernel::VectorProgram;
using kernel_tests::Floats;
using kernel_tests::noise;
using kernel_tests::paths;
using namespace random_vector_programs;

namespace {

const float inf = std::numeric_limits<float>::infinity();
const float not_a_number = std::numeric_limits<float>::quiet_NaN();

bool same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// The place of the first difference larger than `ulps` units and `least`; -1 when there is none.
std::int64_t first_difference(const Floats& a, const Floats& b, float ulps, float least) {
  for (std::size_t i = 0; i < b.size(); ++i) {
    const float room = least + ulps * 6e-8f * std::fabs(b[i]);
    if (!same(a[i], b[i]) && !(std::fabs(a[i] - b[i]) <= room)) {
      return static_cast<std::int64_t>(i);
    }
  }
  return -1;
}

void check_outputs(const Outputs& out, const Outputs& truth, float ulps, float least) {
  for (std::size_t o = 0; o < truth.memory.size(); ++o) {
    const std::int64_t at = first_difference(out.memory[o], truth.memory[o], ulps, least);
    CAPTURE(o);
    CAPTURE(at);
    if (at >= 0) {
      CAPTURE(out.memory[o][size(at)]);
      CAPTURE(truth.memory[o][size(at)]);
      CHECK(at < 0);
    }
  }
}

// On every path and with two numbers of threads, which give the same bits.
void check(const VectorProgram& p, const std::vector<Floats>& inputs, float ulps = 0.0f,
           float least = 0.0f, double stream_bytes = 32e6) {
  const std::vector<const float*> in = pointers_of(inputs);
  const Outputs truth = truth_of(p, in);
  const kernel::VectorPlan plan = kernel::plan_vectors(p, stream_bytes);
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    CAPTURE(std::string(ts::name_of(path)));
    Outputs first(p);
    {
      const ts::ThreadScope one(1);
      kernel::run(plan, in.data(), first.pointers.data());
    }
    check_outputs(first, truth, ulps, least);
    Outputs second(p);
    const ts::ThreadScope three(3);
    kernel::run(plan, in.data(), second.pointers.data());
    check_outputs(second, first, 0.0f, 0.0f);
  }
}

void check_random(std::uint64_t seed, const ts::Shape& outer, std::int64_t cols) {
  const RandomProgram random(seed, outer, cols);
  CAPTURE(seed);
  CAPTURE(outer.text());
  CAPTURE(cols);
  std::string text;
  for (const ts::detail::VectorValue& v : random.p.values()) {
    text += v.kind == ts::detail::VectorValue::input     ? "input"
            : v.kind == ts::detail::VectorValue::literal ? "literal"
                                                         : ts::detail::facts_of(v.op).name;
    for (const int i : v.operands) {
      text += i >= 0 ? " " + std::to_string(i) : "";
    }
    text += "; ";
  }
  for (const ts::detail::VectorResult& out : random.p.outputs()) {
    text += std::to_string(out.value) + " " + ts::detail::name_of(out.kind) + "; ";
  }
  CAPTURE(text);
  check(random.p, random.inputs);
  if (seed % 4 == 0) {
    check(random.p, random.inputs, 0.0f, 0.0f, 0.0);  // past the caches
  }
}

// One operation on all kinds of numbers.
void check_op(VectorOp op, float ulps, float least, const Floats& x) {
  VectorProgram p({}, static_cast<std::int64_t>(x.size()));
  const int a = p.dense_input();
  p.output(p.apply(op, a), VectorOutput::full);
  CAPTURE(std::string(ts::detail::facts_of(op).name));
  check(p, {x}, ulps, least);
}

Floats spread(std::int64_t n, float scale) {
  Floats x = noise(n, 5);
  for (float& each : x) {
    each *= scale;
  }
  return x;
}

}  // namespace

TEST_CASE("vector programs: random ones are exact where floats are") {
  const std::int64_t widths[] = {0, 1, 2, 3, 7, 16, 17, 33, 64, 100, 511, 1030};
  std::uint64_t seed = 1;
  for (int repeat = 0; repeat < 40; ++repeat) {
    for (const std::int64_t cols : widths) {
      check_random(seed++, {}, cols);
      check_random(seed++, {5}, cols);
      check_random(seed++, {3, 4}, cols);
      check_random(seed++, {2, 1, 3, 2}, cols);
    }
    check_random(seed++, {0}, 5);
    check_random(seed++, {2, 0}, 64);
    check_random(seed++, {1000}, 3);
    check_random(seed++, {70}, 40);
    check_random(seed++, {3}, 5000);
    check_random(seed++, {1, 1}, 3000);
  }
}

TEST_CASE("vector programs: each function of one number") {
  const Floats ends{0.0f,  -0.0f,  inf,   -inf,   not_a_number, 1e-40f, -1e-40f, 1.0f,  -1.0f,
                    3e38f, -3e38f, 90.0f, -90.0f, -104.0f,      1e-30f, 20.0f,   -20.0f};
  const Floats near = spread(1000, 4.0f), wide = spread(999, 80.0f);
  for (const Floats& x : {near, wide, ends}) {
    check_op(VectorOp::exp, 4.0f, 3e-45f, x);
    check_op(VectorOp::log, 4.0f, 2e-7f, x);
    check_op(VectorOp::sqrt, 1.0f, 0.0f, x);
    check_op(VectorOp::tanh, 8.0f, 1e-7f, x);
    check_op(VectorOp::erf, 8.0f, 1e-7f, x);
    check_op(VectorOp::square, 1.0f, 1e-45f, x);
    check_op(VectorOp::relu, 0.0f, 0.0f, x);
    check_op(VectorOp::sigmoid, 8.0f, 1e-37f, x);
  }
  for (const Floats& x : {near, wide}) {
    for (const VectorOp op :
         {VectorOp::silu, VectorOp::gelu, VectorOp::gelu_tanh, VectorOp::tanh_slope,
          VectorOp::silu_slope, VectorOp::gelu_slope, VectorOp::gelu_tanh_slope}) {
      check_op(op, 8.0f, 2e-6f, x);
    }
  }
}

TEST_CASE("vector programs: maximum, less, equal, where and division of special numbers") {
  const Floats special{0.0f, -0.0f, inf, -inf, not_a_number, 1.0f, -1.0f, 2.5f, 1e-39f, 3e38f};
  VectorProgram p({10}, 10);
  const int a = p.per_row_input(), b = p.per_column_input(), c = p.dense_input();
  for (const VectorOp op : {VectorOp::maximum, VectorOp::less, VectorOp::equal, VectorOp::div}) {
    p.output(p.apply(op, a, b), VectorOutput::full);
    p.output(p.apply(op, b, a), VectorOutput::full);
    p.output(p.apply(op, c, a), VectorOutput::full);
  }
  p.output(p.apply(VectorOp::where, a, b, c), VectorOutput::full);
  p.output(p.apply(VectorOp::row_max, c), VectorOutput::per_row);
  Floats all;
  for (std::size_t i = 0; i < 100; ++i) {
    all.push_back(special[(i * 7 + i / 10) % 10]);
  }
  check(p, {special, special, all}, 3.0f, 1.5e-45f);
}

TEST_CASE("vector programs: softmax, layer norm, cross-entropy and gelu from their parts") {
  for (const std::int64_t cols : {1, 5, 64, 777, 3000}) {
    const std::int64_t rows = 9;
    CAPTURE(cols);
    VectorProgram p({rows}, cols);
    const int x = p.dense_input();
    const int weight = p.per_column_input(), bias = p.per_column_input();
    const int max = p.apply(VectorOp::row_max, x);
    const int e = p.apply(VectorOp::exp, p.apply(VectorOp::sub, x, max));
    p.output(p.apply(VectorOp::div, e, p.apply(VectorOp::row_sum, e)), VectorOutput::full);
    const int share = p.literal(1.0f / static_cast<float>(cols));
    const int mean = p.apply(VectorOp::mul, p.apply(VectorOp::row_sum, x), share);
    const int d = p.apply(VectorOp::sub, x, mean);
    const int square = p.apply(VectorOp::row_sum, p.apply(VectorOp::mul, d, d));
    const int var = p.apply(VectorOp::mul_add, square, share, p.literal(1e-5f));
    const int rstd = p.apply(VectorOp::div, p.literal(1.0f), p.apply(VectorOp::sqrt, var));
    const int n = p.apply(VectorOp::mul, d, rstd);
    p.output(p.apply(VectorOp::add, p.apply(VectorOp::mul, n, weight), bias), VectorOutput::full);
    p.output(rstd, VectorOutput::per_row);
    const Floats logits = spread(rows * cols, 6.0f), w = noise(cols, 3), b = noise(cols, 4);
    Floats targets;
    for (std::int64_t i = 0; i < rows; ++i) {
      targets.push_back(static_cast<float>(i * 37 % cols - (i == 3 ? cols : 0)));
    }
    check(p, {logits, w, b}, 30.0f, 4e-6f);

    VectorProgram q({rows}, cols);
    const int y = q.dense_input(), t = q.per_row_input();
    const int most = q.apply(VectorOp::row_max, y);
    const int f = q.apply(VectorOp::exp_sub, y, most);
    const int lse =
        q.apply(VectorOp::add, q.apply(VectorOp::log, q.apply(VectorOp::row_sum, f)), most);
    const int loss = q.apply(VectorOp::sub, lse, q.apply(VectorOp::row_pick, y, t));
    q.output(loss, VectorOutput::per_row);
    const int on = q.apply(VectorOp::equal, q.apply(VectorOp::column_number), t);
    q.output(q.apply(VectorOp::sub, q.apply(VectorOp::exp_sub, y, lse), on), VectorOutput::full);
    q.output(loss, VectorOutput::total);
    check(q, {logits, targets}, 30.0f, 4e-6f);
  }
  for (const int form : {0, 1, 2, 3}) {
    VectorProgram p({}, 3000);
    const int x = p.dense_input();
    const int inside = form == 1 ? p.apply(VectorOp::div, x, p.literal(std::sqrt(2.0f)))
                                 : p.apply(VectorOp::mul, p.literal(std::sqrt(0.5f)), x);
    const int erf = p.apply(VectorOp::erf, inside);
    const int half = p.literal(0.5f), one = p.literal(1.0f);
    int y = 0;
    if (form == 2) {
      y = p.apply(VectorOp::mul, x, p.apply(VectorOp::mul_add, half, erf, half));
    } else {
      const int sum = p.apply(VectorOp::add, erf, one);
      y = form == 0 ? p.apply(VectorOp::mul, p.apply(VectorOp::mul, x, half), sum)
                    : p.apply(VectorOp::mul, half, p.apply(VectorOp::mul, sum, x));
    }
    p.output(y, VectorOutput::full);
    if (form == 3) {
      p.output(erf, VectorOutput::full);
    }
    CAPTURE(form);
    CHECK(kernel::plan_vectors(p).steps.size() == (form == 3 ? 6 : 1));
    check(p, {spread(3000, 5.0f)}, 8.0f, 1e-6f);
  }
}

TEST_CASE("vector programs: rows with NaN, infinities and nothing but -inf") {
  const std::int64_t cols = 70;
  Floats x = noise(6 * cols, 9);
  x[3] = not_a_number;
  x[size(cols) + 69] = inf;
  std::fill(x.begin() + 2 * cols, x.begin() + 3 * cols, -inf);
  x[size(3 * cols)] = -inf;
  x[size(4 * cols)] = not_a_number;
  x[size(4 * cols) + 1] = inf;
  VectorProgram p({6}, cols);
  const int in = p.dense_input(), max = p.apply(VectorOp::row_max, in);
  const int sum = p.apply(VectorOp::row_sum, p.apply(VectorOp::exp_sub, in, max));
  p.output(max, VectorOutput::per_row);
  p.output(sum, VectorOutput::per_row);
  p.output(p.apply(VectorOp::row_sum, in), VectorOutput::per_row);
  check(p, {x}, 30.0f, 1e-6f);
  CHECK(kernel::plan_vectors(p).steps[0].op == VectorOp::sum_exp);
}

TEST_CASE("vector programs: an output in the memory of a dense input") {
  for (const std::int64_t cols : {3, 70, 5000}) {
    VectorProgram p({7}, cols);
    const int x = p.dense_input(), max = p.apply(VectorOp::row_max, x);
    const int y = p.apply(VectorOp::sub, x, max);
    p.output(y, VectorOutput::full);
    p.output(p.apply(VectorOp::add, p.apply(VectorOp::mul, y, y), x), VectorOutput::full);
    const Floats before = noise(7 * cols, 3);
    const Outputs truth = truth_of(p, {before.data()});
    Floats memory = before, other(before.size());
    const float* const in[] = {memory.data()};
    float* const out[] = {memory.data(), other.data()};
    kernel::run(kernel::plan_vectors(p), in, out);
    memory.resize(truth.memory[0].size(), 77.5f);
    other.resize(truth.memory[1].size(), 77.5f);
    CHECK(first_difference(memory, truth.memory[0], 2.0f, 1e-7f) < 0);
    CHECK(first_difference(other, truth.memory[1], 4.0f, 4e-7f) < 0);
  }
}

TEST_CASE("vector programs: outputs that are an input whose memory another output takes") {
  for (const std::int64_t rows : {1, 9}) {
    for (const std::int64_t cols : {3, 70, 5000}) {
      for (const double stream_bytes : {32e6, 0.0}) {
        VectorProgram p({rows}, cols);
        const int x = p.dense_input(), y = p.apply(VectorOp::add, x, p.literal(1.0f));
        p.output(y, VectorOutput::full);
        p.output(x, VectorOutput::full);
        p.output(x, VectorOutput::column_sums);
        p.output(x, VectorOutput::total);
        p.output(p.apply(VectorOp::mul, x, x), VectorOutput::total);
        Floats before(size(rows * cols));
        for (std::size_t i = 0; i < before.size(); ++i) {
          before[i] = static_cast<float>(i % 7) - 2.0f;
        }
        const Outputs truth = truth_of(p, {before.data()});
        before.resize(truth.memory[0].size(), 77.5f);
        const float* const in[] = {before.data()};
        Outputs out(p);
        out.pointers[0] = before.data();
        kernel::run(kernel::plan_vectors(p, stream_bytes), in, out.pointers.data());
        CAPTURE(rows);
        CAPTURE(cols);
        CHECK(before == truth.memory[0]);
        for (std::size_t o = 1; o < truth.memory.size(); ++o) {
          CAPTURE(o);
          CHECK(out.memory[o] == truth.memory[o]);
        }
      }
    }
  }
}

TEST_CASE("vector programs: large outputs, past the caches, and long sums") {
  const std::int64_t rows = 300, cols = 8191;
  VectorProgram p({rows}, cols);
  const int x = p.dense_input();
  p.output(p.apply(VectorOp::mul_add, x, p.literal(0.5f), p.per_column_input()),
           VectorOutput::full);
  p.output(p.literal(0.1f), VectorOutput::total);
  p.output(x, VectorOutput::column_sums);
  CHECK(kernel::plan_vectors(p, 1e5).streams);
  check(p, {noise(rows * cols, 1), noise(cols, 2)}, 2.0f, 1e-5f, 1e5);
}

TEST_CASE("vector programs: a sum of squares is taken in double, as sum_of_squares takes it") {
  const std::int64_t n = 5000;
  const Floats x_of = noise(n, 3);
  const auto total = [&](const VectorProgram& p) {
    const float* const in[] = {x_of.data()};
    Outputs out(p);
    kernel::run(kernel::plan_vectors(p), in, out.pointers.data());
    return out.memory.back()[0];
  };
  VectorProgram p({}, n), q({}, n);
  const int x = p.dense_input();
  p.output(p.apply(VectorOp::square, x), VectorOutput::total);
  CHECK(total(p) == static_cast<float>(kernel::sum_of_squares(n, x_of.data())));
  // of what is also wanted itself, and whose squares are wanted too
  const int y = q.apply(VectorOp::mul, q.dense_input(), q.literal(2.0f));
  const int squares = q.apply(VectorOp::mul, y, y);
  q.output(y, VectorOutput::full);
  q.output(squares, VectorOutput::full);
  q.output(squares, VectorOutput::total);
  CHECK(total(q) == 4.0f * total(p));
}

TEST_CASE("vector programs: powers") {
  VectorProgram p({}, 200);
  const int x = p.dense_input();
  for (const float power : {0.5f, 1.0f, 2.0f, 3.0f, -1.0f, -0.5f, 2.5f, 0.0f}) {
    p.output(p.apply(VectorOp::pow, x, p.literal(power)), VectorOutput::full);
  }
  Floats x_of = spread(200, 3.0f);
  x_of[0] = inf;
  x_of[1] = -inf;
  x_of[2] = not_a_number;
  x_of[3] = 0.0f;
  check(p, {x_of}, 3.0f);
}

TEST_CASE("vector programs: what is said of a wrong one") {
  VectorProgram p({2, 3}, 4);
  const int x = p.dense_input(), r = p.per_row_input();
  CHECK(error_of([&] { p.input({1}, 1); }) ==
        "VectorProgram: an input with 1 strides; outer is [2, 3], so 2");
  CHECK(error_of([&] { p.apply(VectorOp::add, x); }) ==
        "VectorProgram: add takes 2 values, here are 1");
  CHECK(error_of([&] { p.apply(VectorOp::add, x, 9); }) ==
        "VectorProgram: value 9 of add; there are 2 values");
  CHECK(error_of([&] { p.apply(VectorOp::cube, x); }) ==
        "VectorProgram: cube is made by a plan, not applied");
  CHECK(error_of([&] { p.apply(VectorOp::pow, x, r); }) ==
        "VectorProgram: pow to value 1; the exponent is a literal");
  CHECK(error_of([&] { p.apply(VectorOp::row_sum, r); }) ==
        "VectorProgram: row_sum of value 1, which is per_row; it takes full or per_column");
  CHECK(error_of([&] { p.apply(VectorOp::row_pick, x, x); }) ==
        "VectorProgram: row_pick by value 0, which is full; it takes per_row or single");
  CHECK(error_of([&] { p.output(x, VectorOutput::per_row); }) ==
        "VectorProgram: value 0 is full, an output per_row cannot hold it");
  CHECK(error_of([&] { p.output(5, VectorOutput::full); }) ==
        "VectorProgram: value 5 of an output; there are 2 values");
  CHECK(error_of([&] { p.extent(-1); }) == "VectorProgram: value -1 of extent; there are 2 values");
  CHECK(error_of([&] { kernel::plan_vectors(p); }) ==
        "plan_vectors: the program of 2 values has no output; there is nothing to compute");
  p.output(x, VectorOutput::full);
  const kernel::VectorPlan plan = kernel::plan_vectors(p);
  float y = 0.0f;
  const float* in[] = {&y, nullptr};
  float* out[] = {nullptr};
  CHECK(error_of([&] { kernel::run(plan, in, out); }) ==
        "run: input 1 of 2 is null; a plan needs all of them");
  in[1] = &y;
  CHECK(error_of([&] { kernel::run(plan, in, out); }) ==
        "run: output 0 of 1 is null; a plan needs all of them");
}
