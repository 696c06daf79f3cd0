// Groups that a matrix product computes block by block: bytes by closed forms, what may join and
// what may not, equal numbers.
#include <doctest/doctest.h>

#include "tinyscale.hpp"

#include <cmath>
#include <cstdint>
#include <vector>

#include "error_of.hpp"

namespace ts = tinyscale;

namespace {

using Tensors = std::vector<ts::Tensor>;

const ts::GraphPlan& plan_of(const ts::Compiled& f) { return f.plan(); }

struct Both {
  ts::Compiled joined, apart;
};
Both compile_both(const ts::Compiled::Body& f, const Tensors& in) {
  ts::CompileOptions apart;
  apart.fuse_matmul = false;
  Both out{ts::compile(f), ts::compile(f, apart)};
  for (int call = 0; call < 3; ++call) {
    out.joined(in);
    out.apart(in);
  }
  return out;
}

// Of sums of k products: k roundings of numbers up to the largest, f32.
void check_near(const ts::Tensor& a, const ts::Tensor& b, std::int64_t k) {
  REQUIRE(a.shape() == b.shape());
  const std::vector<float> x = a.values(), y = b.values();
  float largest = 0, apart = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    largest = std::fmax(largest, std::fabs(x[i]));
    apart = std::fmax(apart, std::fabs(x[i] - y[i]));
  }
  CHECK(apart <= largest * std::ldexp(std::sqrt(static_cast<float>(k)) + 4, -23));
}

void check_same(const Both& both, const ts::Compiled::Body& f, const Tensors& in, std::int64_t k) {
  const Tensors want = f(in), got = both.joined(in), apart = both.apart(in);
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    check_near(want[i], got[i], k);
    check_near(want[i], apart[i], k);
  }
}

double counted_bytes(const ts::Compiled& f, const Tensors& in) {
  const ts::Profile profile;
  f(in);
  return profile.totals().bytes();
}

std::size_t steps(const ts::Compiled& f) { return plan_of(f).steps().size(); }

}  // namespace

TEST_CASE("prologue: a gated product is one kernel, and its left operand is never written") {
  struct Sizes {
    std::int64_t m, k, n;
  };
  // One block, whole blocks, blocks with rows left over, rows longer than a block, columns left
  // over.
  for (const Sizes s : {Sizes{2, 7, 16}, Sizes{383, 20, 33}, Sizes{384, 20, 16},
                        Sizes{1000, 30, 40}, Sizes{500, 4000, 16}, Sizes{3100, 64, 17}}) {
    CAPTURE(s.m);
    const ts::Tensor w = ts::randn({s.k, s.n}, 3), bias = ts::randn({s.n}, 4);
    const Tensors in = {ts::randn({s.m, s.k}, 1), ts::randn({s.m, s.k}, 2)};
    const ts::Compiled::Body f = [w, bias](const Tensors& x) {
      return Tensors{ts::gelu(ts::matmul(ts::silu(x[0]) * x[1], w) + bias)};
    };
    const Both both = compile_both(f, in);
    check_same(both, f, in, s.k);
    const double table = 4.0 * static_cast<double>(s.m * s.k);
    const double weights = 4.0 * static_cast<double>(s.k * s.n + s.n);
    const double result = 4.0 * static_cast<double>(s.m * s.n);
    CHECK(steps(both.joined) == 1);
    CHECK(counted_bytes(both.joined, in) == 2 * table + weights + result);
    CHECK(plan_of(both.joined).block_bytes() == 0);
    CHECK(steps(both.apart) == 3);  // gate, product, bias and activation
    CHECK(counted_bytes(both.apart, in) == 4 * table + weights + 3 * result);
  }
}

TEST_CASE("prologue: a norm written out, with what else it returns") {
  const ts::Tensor w = ts::randn({24, 50}, 3), scale = ts::randn({24}, 4);
  const ts::Compiled::Body f = [w, scale](const Tensors& in) {
    const ts::Tensor stream = in[0] + in[1];
    const ts::Tensor squares = ts::mean(ts::square(stream), {-1}, ts::KeepDim::yes);
    const ts::Tensor norm = stream * scale / ts::sqrt(squares + 1e-5f);  // in no known order
    return Tensors{ts::matmul(norm, w) + 0.5f * ts::matmul(norm, w), stream, squares};
  };
  const Tensors in = {ts::randn({5, 200, 24}, 1), ts::randn({5, 200, 24}, 2)};
  const Both both = compile_both(f, in);
  check_same(both, f, in, 24);
  CHECK(steps(both.joined) < steps(both.apart));
  CHECK(plan_of(both.joined).steps()[0].outputs.size() == 3);
}

TEST_CASE("prologue: weights transposed, operands broadcast, of other ranks, an addition behind") {
  const ts::Tensor w = ts::randn({48, 30}, 3), one = ts::randn({400, 1}, 5),
                   by = ts::randn({30}, 6);
  const ts::Compiled::Body f = [w, one, by](const Tensors& in) {
    const ts::Tensor x = ts::reshape(ts::exp(ts::transpose(in[0], 0, 1) * one) * by, {4, 100, 30});
    return Tensors{ts::matmul(x, ts::transpose(w, 0, 1)) * 2.0f + in[1]};
  };
  const Tensors in = {ts::randn({30, 400}, 1, 0.1f), ts::randn({4, 100, 48}, 2)};
  const Both both = compile_both(f, in);
  check_same(both, f, in, 30);
  CHECK(steps(both.joined) == 1);
}

TEST_CASE("prologue: threads do not change a number") {
  const ts::Tensor w = ts::randn({40, 40}, 3);
  const ts::Compiled f =
      ts::compile([w](const Tensors& in) { return Tensors{ts::matmul(ts::gelu(in[0]), w)}; });
  const Tensors in = {ts::randn({1500, 40}, 1)};
  std::vector<float> first;
  for (const int threads : {1, 2, 5}) {
    const ts::ThreadScope scope(threads);
    f(in);
    const std::vector<float> now = f(in)[0].values();
    first = first.empty() ? now : first;
    CHECK(now == first);
  }
}

TEST_CASE("prologue: what stays a step of its own") {
  struct Kept {
    const char* why;
    ts::Compiled::Body f;
    std::size_t steps;
  };
  const ts::Tensor w = ts::randn({32, 32}, 3), v = ts::randn({32, 32}, 4),
                   thin = ts::randn({32, 8}, 5);
  const std::vector<Kept> all = {
      {"two products read it",
       [w, v](const Tensors& in) {
         const ts::Tensor x = ts::exp(in[0]);
         return Tensors{ts::matmul(x, w), ts::matmul(x, v)};
       },
       3},
      {"it is returned",
       [w](const Tensors& in) {
         const ts::Tensor x = ts::exp(in[0]);
         return Tensors{x, ts::matmul(x, w)};
       },
       2},
      {"both operands of the product",
       [](const Tensors& in) {
         const ts::Tensor x = ts::exp(in[0]);
         return Tensors{ts::matmul(x, ts::transpose(x, 0, 1))};
       },
       2},
      {"it sums over rows",
       [w](const Tensors& in) {
         const ts::Tensor x = ts::exp(in[0]);
         return Tensors{ts::sum(x, 0), ts::matmul(x, w)};
       },
       2},
      {"it is read as columns",
       [w](const Tensors& in) {
         return Tensors{ts::matmul(ts::transpose(ts::exp(in[0]), 0, 1), w)};
       },
       2},
      {"few columns have kernels of their own",
       [thin](const Tensors& in) { return Tensors{ts::matmul(ts::exp(in[1]), thin)}; }, 2},
      {"a batch of matrices",
       [](const Tensors& in) {
         const ts::Tensor x = ts::reshape(in[0], {2, 16, 32});
         return Tensors{ts::matmul(ts::exp(x), ts::transpose(x, 1, 2))};
       },
       2},
      {"another format",
       [w](const Tensors& in) {
         const ts::MatmulFormat bf16(ts::DType::bf16);
         return Tensors{ts::matmul(ts::exp(in[0]), w)};
       },
       2},
  };
  const Tensors in = {ts::randn({32, 32}, 1, 0.3f), ts::randn({400, 32}, 2, 0.3f)};
  for (const Kept& one : all) {
    CAPTURE(one.why);
    const Both both = compile_both(one.f, in);
    CHECK(steps(both.joined) == one.steps);
    for (const ts::Step& step : plan_of(both.joined).steps()) {
      CHECK(step.prologue.empty());
    }
    check_same(both, one.f, in, 32);
  }
}

TEST_CASE("prologue: weights, bias and residual made of the same numbers come first") {
  const ts::Tensor w = ts::randn({24, 500}, 3, 0.3f), v = ts::randn({32, 16}, 4, 0.3f);
  struct Mixed {
    const char* what;
    ts::Compiled::Body f;
    ts::Shape shape;
  };
  const std::vector<Mixed> all = {
      {"weights",
       [](const Tensors& in) {
         const ts::Tensor e = ts::exp(in[0]);
         return Tensors{ts::matmul(e * in[1], ts::transpose(e, 0, 1))};
       },
       {500, 32}},
      {"weights that are a copy",
       [](const Tensors& in) {
         const ts::Tensor e = ts::exp(in[0]);
         return Tensors{ts::matmul(e * in[1], ts::slice(e, 1, 0, 32, 2))};
       },
       {32, 32}},
      {"bias",
       [w](const Tensors& in) {
         const ts::Tensor e = ts::exp(in[0]), r = ts::sum(e, {-1}, ts::KeepDim::yes);
         return Tensors{ts::matmul(e / r, w) + ts::reshape(r, {500})};
       },
       {500, 24}},
      {"residual",
       [v](const Tensors& in) {
         const ts::Tensor e = ts::exp(in[0]);
         return Tensors{ts::matmul(e * in[1], v) +
                        ts::reshape(ts::slice(e, 0, 250, 500), {500, 16})};
       },
       {500, 32}}};
  for (const Mixed& one : all) {
    CAPTURE(one.what);
    const ts::Compiled c = ts::compile(one.f);
    for (unsigned call = 0; call < 4; ++call) {  // other numbers each: none of an old call is left
      const Tensors in = {ts::randn(one.shape, 10 + call, 0.3f), ts::randn(one.shape, 20 + call)};
      check_near(one.f(in)[0], c(in)[0], one.shape[1]);
    }
  }
}

TEST_CASE("prologue: one product in front of another") {
  const ts::Tensor up = ts::randn({20, 60}, 3), down = ts::randn({60, 20}, 4);
  const ts::Compiled::Body f = [up, down](const Tensors& in) {
    const ts::Tensor h = ts::matmul(ts::relu(in[0]), up);  // relu is no epilogue of a product
    return Tensors{ts::matmul(ts::relu(h), down) + in[0]};
  };
  const Tensors in = {ts::randn({700, 20}, 1)};
  const Both both = compile_both(f, in);
  check_same(both, f, in, 60);
  CHECK(steps(both.joined) == 2);
  for (const ts::Step& step : plan_of(both.joined).steps()) {
    CHECK(step.prologue.size() == 1);
  }
}

TEST_CASE("prologue: what it reads is written in the same call") {
  const ts::Tensor w = ts::randn({24, 24}, 3);
  const ts::Compiled f = ts::compile([w](const Tensors& in) {
    ts::add_(in[0], ts::matmul(ts::relu(in[0]) * in[1], w));
    return Tensors{ts::sum(in[0])};
  });
  const ts::Tensor eager = ts::randn({900, 24}, 1), ours = eager.clone();
  const ts::Tensor by = ts::randn({900, 24}, 2, 0.1f);
  for (int call = 0; call < 4; ++call) {
    f({ours, by});
    ts::add_(eager, ts::matmul(ts::relu(eager) * by, w));
  }
  check_near(eager, ours, 4 * 24);
}
