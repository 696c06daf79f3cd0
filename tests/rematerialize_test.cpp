// Recomputation by a byte budget: what is kept stays below it and is counted, gradients are those
// of eager execution, dropout drops the same elements, in one graph and where gradients are asked
// for outside of it.
#include <doctest/doctest.h>

#include "tinyscale.hpp"

#include <cmath>
#include <vector>

#include "error_of.hpp"
#include "small_training.hpp"

namespace ts = tinyscale;

namespace {

using Tensors = std::vector<ts::Tensor>;

ts::CompileOptions with_budget(double bytes) {
  ts::CompileOptions options;
  options.activation_bytes = bytes;
  return options;
}

// Four layers of tanh and dropout, with a residual or not, and a loss.
struct Layers {
  bool residual;
  ts::List<ts::Tensor> weights;
  explicit Layers(bool with_residual = true) : residual(with_residual) {
    for (unsigned i = 0; i < 4; ++i) {
      weights.push_back(ts::parameter(ts::randn({32, 32}, i + 1, 0.2f)));
    }
  }
  ts::Tensor loss(const ts::Tensor& input) const {
    ts::Tensor x = input;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const ts::Tensor y = ts::dropout(ts::tanh(ts::matmul(x, weights[i])), 0.25f, 7 + i);
      x = residual ? x + y : y;
    }
    return ts::mean(ts::square(x));
  }
  Tensors gradients() const {
    Tensors out;
    for (const ts::Tensor& w : weights) {
      out.push_back(w.grad().clone());
      w.zero_grad();
    }
    return out;
  }
};

// The same ops in another order of groups: a few roundings of the largest number, f32.
void check_near(const Tensors& a, const Tensors& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t t = 0; t < a.size(); ++t) {
    const std::vector<float> x = a[t].values(), y = b[t].values();
    REQUIRE(x.size() == y.size());
    float largest = 0, apart = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      largest = std::fmax(largest, std::fabs(x[i]));
      apart = std::fmax(apart, std::fabs(x[i] - y[i]));
    }
    CHECK(apart <= largest * std::ldexp(1.0f, -19));
  }
}

}  // namespace

TEST_CASE("rematerialization: gradients asked for outside, less of the forward pass saved") {
  const Layers layers;
  const ts::Tensor x = ts::randn({64, 32}, 9);
  const auto f = [&layers](const Tensors& in) { return Tensors{layers.loss(in[0])}; };
  f({x})[0].backward();
  const Tensors want = layers.gradients();
  const double one = 4.0 * 64 * 32;  // bytes of a result
  double before = 1e9, again = -1;
  for (const double budget : {0.0, 1e9, 8 * one, 5 * one, 3 * one, 1.0}) {
    CAPTURE(budget);
    const ts::Compiled c = ts::compile(f, with_budget(budget));
    const ts::MemoryMeter& meter = *ts::context().memory;
    for (int call = 0; call < 3; ++call) {
      const double start = meter.current_total();
      const ts::Tensor loss = c({x})[0];
      const ts::Rematerialization& r = c.rematerialization();
      CHECK(r.kept <= r.kept_before);
      if (call == 2) {  // between the passes: what is kept, and the loss; counted
        CHECK(meter.current_total() - start == r.kept + 4);
      }
      loss.backward();
      check_near(want, layers.gradients());
    }
    const ts::Rematerialization& r = c.rematerialization();
    CHECK(r.kept <= (budget > 0 ? budget : 8 * one));  // 0: all, two results a layer
    CHECK(r.kept <= before);
    CHECK(r.flops >= again);
    CHECK((r.flops > 0) == (r.kept < r.kept_before));
    CHECK(c.plan().rematerialization().nodes == 0);  // there is no backward pass in it
    before = r.kept;
    again = r.flops;
  }
  CHECK(before == 0);                     // all made again from x and the weights
  CHECK(again > 3 * 2.0 * 64 * 32 * 32);  // three products at least
}

TEST_CASE("rematerialization: what is computed again is not there for longer than it is needed") {
  const Layers layers;
  const ts::Tensor x = ts::randn({64, 32}, 9);
  const auto f = [&layers](const Tensors& in) { return Tensors{layers.loss(in[0])}; };
  const double one = 4.0 * 64 * 32;
  const ts::Compiled all = ts::compile(f, with_budget(1e9));
  const ts::Compiled some = ts::compile(f, with_budget(4 * one));
  all({x})[0].backward();
  some({x})[0].backward();
  CHECK(some.rematerialization().kept <= 4 * one);
  const double most = all.rematerialization().kept + all.backward_plan().block_bytes();
  CHECK(some.rematerialization().kept + some.backward_plan().block_bytes() < most);
}

TEST_CASE("rematerialization: the backward pass in the same graph") {
  const Layers layers(false);  // with it, the last layer needs all before it again, and at once
  const ts::Tensor x = ts::randn({64, 32}, 9);
  const auto step = [&layers](const Tensors& in) {
    layers.loss(in[0]).backward();
    Tensors out;
    for (const ts::Tensor& w : layers.weights) {
      out.push_back(w.grad() * 1.0f);
      w.zero_grad();
    }
    return out;
  };
  const Tensors want = step({x});
  const double one = 4.0 * 64 * 32;
  double block = 0;
  for (const double budget : {0.0, 1e9, 4 * one, 1.0}) {
    CAPTURE(budget);
    const ts::Compiled c = ts::compile(step, with_budget(budget));
    for (int call = 0; call < 3; ++call) {
      check_near(want, c({x}));
    }
    const ts::Rematerialization& r = c.plan().rematerialization();
    CHECK(r.kept <= (budget > 0 ? budget : 8 * one));
    CHECK((r.nodes > 0) == (budget > 0 && budget < 1e9));
    if (r.nodes == 0) {
      block = c.plan().block_bytes();
    } else if (budget > 1) {
      CHECK(c.plan().block_bytes() < block);
    }
  }
}

TEST_CASE("rematerialization: old numbers of what the function writes are kept") {
  const ts::Tensor w = ts::parameter(ts::randn({16, 16}, 1));
  const ts::Tensor scale = ts::randn({16, 16}, 2);
  const ts::Tensor saved = scale.clone();
  const auto f = [&](const Tensors& in) {
    const ts::Tensor y = ts::exp(ts::matmul(in[0], w) * 0.1f);
    const ts::Tensor out = ts::sum(ts::tanh(y * ts::tanh(in[0])));
    const ts::NoGrad off;
    ts::add_(scale, in[0]);
    return Tensors{out};
  };
  const ts::Tensor x = ts::randn({16, 16}, 3);
  const ts::Compiled c = ts::compile(f, with_budget(1));
  for (int call = 0; call < 4; ++call) {
    ts::copy_(scale, saved);
    f({x})[0].backward();
    const Tensors want = {w.grad().clone(), scale.clone()};
    w.zero_grad();
    ts::copy_(scale, saved);
    c({x})[0].backward();
    check_near(want, {w.grad().clone(), scale.clone()});
    w.zero_grad();
  }
}

TEST_CASE("rematerialization: a training step under a budget trains as one without") {
  const ts::Text text = small_text();
  const ts::StepOptions options;
  double losses[2] = {};
  for (const int lean : {0, 1}) {
    ts::Transformer model(small_model(), 1);
    ts::AdamW optimizer(model.tensors());
    ts::CompiledStep step =
        ts::compile_step(model, optimizer, options, with_budget(lean ? 2e4 : 0));
    for (std::int64_t i = 0; i < 6; ++i) {
      ts::Batch batch;
      batch.time = 16;
      batch.add(text.train(), 40 * i);
      losses[lean] = step(batch, i).loss;
    }
    CHECK((step.compiled().plan().rematerialization().nodes > 0) == (lean == 1));
  }
  CHECK(losses[1] == doctest::Approx(losses[0]).epsilon(1e-6));
}

TEST_CASE("rematerialization: a budget holds at every batch size") {
  const Layers layers;
  ts::CompileOptions options = with_budget(2e4);
  options.symbolic_batch = true;
  const ts::Compiled c =
      ts::compile([&layers](const Tensors& in) { return Tensors{layers.loss(in[0])}; }, options);
  for (const std::int64_t batch : {16, 64, 40}) {
    for (int call = 0; call < 3; ++call) {
      const ts::Tensor x = ts::randn({batch, 32}, 9);
      const double start = ts::context().memory->current_total();
      const ts::Tensor loss = c({x})[0];
      if (call == 2) {  // nothing is captured any more
        CHECK(ts::context().memory->current_total() - start == c.rematerialization().kept + 4);
      }
      CHECK(c.rematerialization().kept <= 2e4);
      loss.backward();
    }
  }
  CHECK(c.not_symbolic() == "what a budget of bytes keeps depends on the batch");
}

TEST_CASE("rematerialization: errors") {
  CHECK(error_of([&] { ts::compile([](const Tensors& in) { return in; }, with_budget(-1)); }) ==
        "compile: activation_bytes is -1; it must be at least 0, which keeps all");
  const ts::Compiled c = ts::compile([](const Tensors& in) { return Tensors{in[0] * 2.0f}; });
  c({ts::ones({2})});
  CHECK(error_of([&] { c.rematerialization(); }) ==
        "Compiled: rematerialization of result 0 of 1, which has no backward pass outside: ask for "
        "gradients of its inputs");
  CHECK(error_of([&] { c.backward_plan(3); }) ==
        "Compiled: backward_plan of result 3 of 1, which has no backward pass outside: ask for "
        "gradients of its inputs");
}
