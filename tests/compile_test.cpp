// compile(f): what is guarded, where graphs break, what is refused and with which words.
#include <doctest/doctest.h>

#include "tinyscale.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "error_of.hpp"
#include "small_training.hpp"

namespace ts = tinyscale;

namespace {

using Tensors = std::vector<ts::Tensor>;

std::vector<float> numbers(const ts::Tensor& x) { return x.values(); }

void check_near(const ts::Tensor& a, const ts::Tensor& b, float by = 2e-6f) {
  REQUIRE(a.defined());
  REQUIRE(b.defined());
  REQUIRE(a.shape() == b.shape());
  const std::vector<float> x = a.values(), y = b.values();
  for (std::size_t i = 0; i < x.size(); ++i) {
    CHECK(std::fabs(x[i] - y[i]) <= by * (1.0f + std::fabs(x[i])));
  }
}

const std::vector<ts::CompileOptions>& both_ends() {
  static const std::vector<ts::CompileOptions> all = {ts::CompileOptions(),
                                                      ts::CompileOptions::none()};
  return all;
}

// The same function eager and compiled, called as often as there are lists of inputs.
void check_same(const ts::Compiled::Body& body, const std::vector<Tensors>& calls) {
  for (const ts::CompileOptions& options : both_ends()) {
    const ts::Compiled f = ts::compile(body, options);
    for (const Tensors& in : calls) {
      const Tensors a = body(in), b = f(in);
      REQUIRE(a.size() == b.size());
      for (std::size_t i = 0; i < a.size(); ++i) {
        check_near(a[i], b[i]);
      }
    }
  }
}

ts::Tensor row(const std::vector<float>& values) { return ts::tensor({values.size()}, values); }

}  // namespace

TEST_CASE("compile: a function runs twice, then its graph alone") {
  int runs = 0;
  const ts::Compiled f = ts::compile([&runs](const Tensors& in) {
    ++runs;
    return Tensors{in[0] * 2.0f};
  });
  for (int i = 0; i < 4; ++i) {
    CHECK(numbers(f({row({1, static_cast<float>(i)})})[0])[1] == 2.0f * static_cast<float>(i));
  }
  CHECK(runs == 2);
  const ts::CompileCounters c = f.counters();
  CHECK(c.calls == 4);
  CHECK(c.captures == 2);
  CHECK(c.graphs == 1);
  CHECK(c.hits == 2);
  CHECK(c.recompiles == 0);
  CHECK(c.breaks == 0);
}

TEST_CASE("compile: guards") {
  ts::Tensor w = row({1, 2});
  const ts::Compiled f = ts::compile([&w](const Tensors& in) {
    return Tensors{ts::matmul(in[0], ts::stack({w, w}, 1))};
  });
  const ts::Tensor x = ts::ones({3, 2});
  f({x});
  f({x});
  const auto again = [&f](const Tensors& in) {
    const int before = f.counters().recompiles;
    const Tensors y = f(in);
    CHECK(f.counters().recompiles == before + 1);
    return y;
  };
  CHECK(again({ts::ones({4, 2})})[0].shape() == ts::Shape{4, 2});
  CHECK(f.reason() == "input 0 is [4, 2], not [3, 2]");
  CHECK(again({ts::parameter(x)})[0].requires_grad());
  CHECK(f.reason() == "input 0 is [3, 2], not [4, 2]");
  {
    const ts::MatmulFormat format(ts::DType::bf16);
    again({x});
    CHECK(f.reason() == "input 0 has no gradient");
  }
  {
    const ts::NoGrad off;
    CHECK_FALSE(again({x})[0].requires_grad());
    CHECK(f.reason() == "gradients are off");
  }
  const int recompiles = f.counters().recompiles;
  f({x});
  CHECK(f.counters().recompiles == recompiles);  // known
  {
    const ts::NoGrad off;
    ts::copy_(w, row({5, 6}));  // other numbers
  }
  CHECK(numbers(f({x})[0])[0] == 11.0f);
  CHECK(f.counters().recompiles == recompiles);
  w = row({7, 8});  // another tensor
  CHECK(numbers(again({x})[0])[0] == 15.0f);
  CHECK(error_of([&] { f({ts::Tensor()}); }) == "Compiled: input 0 of 1 is empty");
  CHECK(error_of([] { ts::Compiled()({}); }) ==
        "Compiled: there is no function; make one with compile(f)");
  const ts::Compiled unused = ts::compile([](const Tensors& in) { return in; });
  CHECK(error_of([&] { unused.graph(); }) ==
        "Compiled: graph of a function that was not called yet; call it first");
}

TEST_CASE("compile: a number read on the host breaks the graph at its line") {
  int line = 0, runs = 0;
  const ts::Compiled f = ts::compile([&](const Tensors& in) {
    ++runs;
    const ts::Tensor y = in[0] * 3.0f;
    line = __LINE__ + 1;
    const float first = y.at({0});
    const ts::Tensor z = first > 0 ? y + 1.0f : y - 100.0f;
    return Tensors{z, y, ts::sum(z)};
  });
  for (const float sign : {1.0f, -1.0f, 1.0f, -1.0f}) {
    const Tensors y = f({row({sign, 2})});
    CHECK(numbers(y[0]) == (sign > 0 ? std::vector<float>{4, 7} : std::vector<float>{-103, -94}));
    CHECK(numbers(y[1]) == std::vector<float>{3 * sign, 6});
    CHECK(y[2].item() == (sign > 0 ? 11.0f : -197.0f));
  }
  CHECK(runs == 4);  // what stands between the pieces runs at every call
  CHECK(f.counters().breaks == 4);
  CHECK(f.counters().graphs == 3);
  CHECK(f.breaks().size() == 1);
  CHECK(f.breaks()[0].text() ==
        "compile_test.cpp:" + std::to_string(line) + " reads a number of [2]");
}

TEST_CASE("compile: gradients go through a break") {
  const ts::Tensor w = ts::parameter(row({2, -1}));
  const ts::Compiled::Body body = [&w](const Tensors& in) {
    const ts::Tensor h = ts::tanh(in[0] * w);
    const bool big = ts::sum(h).item() > 0.5f;
    return Tensors{ts::sum(big ? h * h : h * 3.0f)};
  };
  const ts::Compiled f = ts::compile(body);
  for (const float x : {0.1f, 2.0f, -1.0f}) {
    body({row({x, x / 2})})[0].backward();
    const ts::Tensor eager = w.grad().clone();
    w.zero_grad();
    f({row({x, x / 2})})[0].backward();
    check_near(eager, w.grad());
    w.zero_grad();
  }
}

TEST_CASE("compile: numbers of captured tensors that the host reads break the graph") {
  const ts::Tensor w = row({1, 2});
  const ts::Compiled f = ts::compile(
      [&w](const Tensors& in) { return Tensors{w.at({0}) > 0 ? in[0] + w : in[0] - w}; });
  for (const float first : {1.0f, 1.0f, 1.0f, -1.0f, 3.0f}) {
    const_cast<float*>(w.data())[0] = first;
    CHECK(numbers(f({row({0, 0})})[0])[1] == (first > 0 ? 2.0f : -2.0f));
  }
  CHECK(f.breaks().size() == 1);
  const ts::Compiled g = ts::compile([&w](const Tensors& in) {
    const ts::NoGrad off;
    const ts::Tensor copy = w.clone();
    return Tensors{in[0] + copy};
  });
  for (const float first : {1.0f, 2.0f, 5.0f, 7.0f}) {
    const_cast<float*>(w.data())[0] = first;
    CHECK(numbers(g({row({0, 0})})[0])[0] == first);
  }
  CHECK(g.counters().hits == 2);
}

TEST_CASE("compile: what was read is read again after a write") {
  const ts::Compiled::Body body = [](const Tensors& in) {
    const ts::NoGrad off;
    const ts::Tensor y = in[0] + 1.0f;
    const float before = ts::sum(y).item(), first = y.at({0});
    ts::add_(y, row({10, 10}));
    return Tensors{y * before, y + first, ts::full({}, y.at({1}))};
  };
  check_same(body, {{row({1, 2})}, {row({3, 4})}, {row({5, 6})}});
}

TEST_CASE("compile: a function whose second call differs runs at every call") {
  int call = 0;
  const ts::Compiled f = ts::compile([&call](const Tensors& in) {
    ++call;
    return Tensors{in[0] * static_cast<float>(call)};
  });
  for (int i = 1; i < 5; ++i) {
    CHECK(numbers(f({row({1})})[0])[0] == static_cast<float>(i));
  }
  CHECK(f.counters().hits == 0);
  // Tensors of its own that it writes to are new at each call.
  const ts::Compiled sums = ts::compile([](const Tensors& in) {
    const ts::NoGrad off;
    const ts::Tensor total = row({0});
    ts::add_(total, ts::sum(in[0]));
    return Tensors{total};
  });
  for (const float x : {0.0f, 0.0f, 3.0f, 4.0f, 5.0f}) {
    CHECK(numbers(sums({row({x, 1, -1})})[0])[0] == x);
  }
}

TEST_CASE("compile: a recorded tensor that leaks out has no numbers") {
  ts::Tensor kept;
  const ts::Compiled f = ts::compile([&kept](const Tensors& in) {
    kept = in[0] * 2.0f;
    return Tensors{kept + 1.0f};
  });
  CHECK(numbers(f({row({1, 2})})[0]) == std::vector<float>{3, 5});
  const std::string error = error_of([&] { kept.values(); });
  CHECK(error.substr(0, 9) == "compile: ");
  CHECK(error.find("compile_test.cpp:") != std::string::npos);
  CHECK(error.substr(error.find(" reads")) ==
        " reads a tensor of 2 numbers that was recorded in a call which is over; return it from "
        "the function");
  CHECK(error_of([&] { kept + 1.0f; }) != "no error");
}

TEST_CASE("compile: writing in place") {
  const ts::Tensor w = row({10, 20});
  const ts::Compiled::Body body = [&w](const Tensors& in) {
    const ts::NoGrad off;
    ts::add_(in[0], w);
    ts::scale_(w, 2.0f);
    const ts::Tensor own = in[0].clone();
    ts::fill_(own, 7.0f);
    ts::copy_(own, ts::reshape(ts::transpose(ts::reshape(w, {2, 1}), 0, 1), {2}));
    ts::mul_(own, in[0]);
    return Tensors{own, in[0], w};
  };
  const ts::Compiled f = ts::compile(body);
  const ts::Tensor saved = w.clone();
  std::vector<std::vector<float>> eager;
  for (int pass = 0; pass < 2; ++pass) {
    ts::copy_(w, saved);
    for (int call = 0; call < 4; ++call) {
      const ts::Tensor x = row({1, static_cast<float>(call)});
      const Tensors y = pass == 0 ? body({x}) : f({x});
      CHECK(y[1].storage().get() == x.storage().get());  // the input itself
      CHECK(y[2].storage().get() == w.storage().get());
      for (const ts::Tensor& each : {y[0], x, w}) {
        if (pass == 0) {
          eager.push_back(numbers(each));
        } else {
          CHECK(numbers(each) == eager[0]);
          eager.erase(eager.begin());
        }
      }
    }
  }
}

TEST_CASE("compile: old numbers that are returned or written elsewhere") {
  const ts::Tensor a = row({1, 2}), b = row({3, 4});
  const ts::Compiled f = ts::compile([&](const Tensors& in) {
    const ts::NoGrad off;
    const ts::Tensor old = in[0].clone(), old_a = a.clone();
    ts::add_(in[0], row({1, 1}));
    ts::copy_(a, b + 1.0f);
    ts::copy_(b, old_a);
    return Tensors{old};
  });
  for (int call = 0; call < 3; ++call) {
    const std::vector<float> was_a = numbers(a), was_b = numbers(b);
    const ts::Tensor x = row({5, 6});
    CHECK(numbers(f({x})[0]) == std::vector<float>{5, 6});
    CHECK(numbers(x) == std::vector<float>{6, 7});
    CHECK(numbers(a) == std::vector<float>{was_b[0] + 1, was_b[1] + 1});
    CHECK(numbers(b) == was_a);
  }
}

TEST_CASE("compile: writes that would show in two tensors are refused") {
  const ts::Tensor w = ts::ones({2, 2});
  const ts::Tensor part = ts::slice(w, 0, 0, 1);
  const auto error = [](const ts::Compiled::Body& body, const Tensors& in) {
    const ts::Compiled f = ts::compile(body);
    return error_of([&] { f(in); });
  };
  const ts::Tensor x = ts::ones({2, 2}), p = ts::parameter(x);
  const ts::NoGrad off;
  CHECK(error(
            [](const Tensors& in) {
              ts::scale_(ts::slice(in[0], 0, 0, 1), 2.0f);
              return in;
            },
            {x}) ==
        "compile: scale_ writes to a [1, 2] tensor that is a view of another; where ops are "
        "recorded only a tensor of its own can be written: write to a clone()");
  CHECK(error(
            [](const Tensors& in) {
              const ts::Tensor view = ts::reshape(in[0], {4});
              ts::fill_(in[0], 2.0f);
              return Tensors{view};
            },
            {x}) ==
        "compile: fill_ writes to a [2, 2] tensor that a view shows too; where ops are recorded "
        "only a tensor of its own can be written: write to a clone()");
  CHECK(error(
            [&w](const Tensors&) {
              const ts::Tensor view = ts::reshape(w, {4});
              ts::fill_(w, 2.0f);
              return Tensors{view};
            },
            {}) ==
        "compile: fill_ writes to a [2, 2] tensor that a view shows too; where ops are recorded "
        "only a tensor of its own can be written: write to a clone()");
  CHECK(error(
            [&](const Tensors&) {
              const ts::Tensor y = part + 1.0f;
              ts::fill_(w, 2.0f);
              return Tensors{y};
            },
            {}) ==
        "compile: fill_ writes to a [2, 2] tensor that shares its numbers with another that the "
        "function reads, [1, 2]; write to a clone()");
  CHECK(error(
            [&](const Tensors&) {
              ts::fill_(w, 2.0f);
              return Tensors{part + 1.0f};
            },
            {}) ==
        "compile: the function reads a [1, 2] tensor that shares its numbers with a [2, 2] tensor "
        "that it has written; read a clone()");
  CHECK(error(
            [](const Tensors& in) {
              ts::add_(in[0], in[1]);
              return in;
            },
            {x, ts::transpose(x, 0, 1)}) ==
        "Compiled: the function writes to input 0, [2, 2], which shares its numbers with input 1, "
        "[2, 2]; give a clone() of one of them");
  CHECK(error(
            [&w](const Tensors& in) {
              ts::add_(w, in[0]);
              return in;
            },
            {part}) ==
        "Compiled: the function writes to captured tensor 0, [2, 2], which shares its numbers with "
        "input 0, [1, 2]; give a clone() of one of them");
  CHECK(error(
            [&w](const Tensors& in) {
              ts::add_(in[0], w);
              return in;
            },
            {part.detach()}) != "no error");
  std::string host = error(
      [&w](const Tensors& in) {
        ts::fill_(w, 3.0f);
        return w.values()[0] > 2 ? in : Tensors{};
      },
      {x});
  CHECK(host.substr(host.find(" reads")) ==
        " reads numbers of a [2, 2] tensor that the function has written, which stand in it after "
        "the call; read a clone() that is made after the write");
  for (const float each : w.values()) {
    CHECK(each == 1.0f);  // nothing was written on the way
  }
}

TEST_CASE("compile: writes that a gradient flows through are refused") {
  const ts::Tensor p = ts::parameter(row({1, 2}));
  const ts::Compiled f = ts::compile([&p](const Tensors& in) {
    const ts::Tensor y = p * 2.0f;
    const ts::NoGrad off;
    ts::fill_(y, 1.0f);
    return Tensors{y, in[0]};
  });
  CHECK(error_of([&] { f({row({1})}); }) ==
        "compile: fill_ writes to a [2] tensor that a gradient flows through; write to a clone()");
  const ts::Compiled g = ts::compile([&p](const Tensors&) {
    ts::fill_(p, 1.0f);
    return Tensors{};
  });
  CHECK(error_of([&] { g({}); }) ==
        "fill_: the tensor written or read has a gradient, which writing in place would lose; "
        "write under a NoGrad, or use an op with a result of its own");
}

TEST_CASE("compile: inputs that are the same, or overlap, or are no rows") {
  const ts::Tensor x = ts::randn({3, 4}, 1);
  const ts::Compiled::Body body = [](const Tensors& in) {
    return Tensors{in[0] * in[1] + 1.0f, ts::softmax(in[1])};
  };
  check_same(body, {{x, x},
                    {ts::slice(x, 0, 0, 2), ts::slice(x, 0, 1, 3)},
                    {ts::transpose(x, 0, 1), ts::transpose(x, 0, 1)},
                    {ts::broadcast_to(ts::slice(x, 0, 0, 1), {3, 4}), x}});
  const ts::Tensor p = ts::parameter(x);
  const ts::Compiled f = ts::compile(body);
  ts::sum(f({p, p})[0]).backward();
  const ts::Tensor twice = p.grad().clone();
  p.zero_grad();
  ts::sum(body({p, p})[0]).backward();
  check_near(twice, p.grad());
}

TEST_CASE("compile: scalars, no inputs, no results, empty tensors") {
  check_same(
      [](const Tensors& in) {
        return Tensors{in[0] * 2.0f, ts::sum(in[0])};
      },
      {{ts::full({}, 3.0f)}, {ts::full({}, 4.0f)}, {ts::zeros({0})}, {ts::zeros({2, 0, 3})}});
  check_same([](const Tensors&) { return Tensors{ts::full({2}, 3.0f), ts::arange(3)}; }, {{}, {}});
  check_same([](const Tensors&) { return Tensors{}; }, {{}, {}, {ts::ones({2})}});
  check_same(
      [](const Tensors& in) {
        return Tensors{ts::matmul(in[0], in[1]), ts::concat({in[0], in[0]}, 0), ts::sum(in[0], 0),
                       ts::softmax(ts::reshape(in[0], {0, 4}))};
      },
      {{ts::zeros({4, 0}), ts::zeros({0, 5})}});
  const ts::Compiled f = ts::compile([](const Tensors&) { return Tensors{ts::Tensor()}; });
  CHECK_FALSE(f({})[0].defined());
}

TEST_CASE("compile: an exception leaves everything as it was") {
  const ts::Tensor p = ts::parameter(row({1, 2}));
  p.backward(row({5, 5}));
  bool fails = true;
  const ts::Compiled f = ts::compile([&](const Tensors& in) {
    const ts::Tensor y = ts::sum(p * in[0]);
    y.backward();
    {
      const ts::NoGrad off;
      ts::add_(in[0], p);
    }
    if (fails) {
      ts::detail::fail({"on purpose"});
    }
    return Tensors{y};
  });
  const ts::Tensor x = row({3, 4});
  CHECK(error_of([&] { f({x}); }) == "on purpose");
  CHECK(ts::detail::thread_recorder() == nullptr);
  CHECK(numbers(p.grad()) == std::vector<float>{5, 5});
  CHECK(numbers(x) == std::vector<float>{3, 4});
  CHECK_FALSE((x * 2.0f).is_recorded());
  fails = false;
  CHECK(f({x})[0].item() == 11.0f);
  CHECK(numbers(p.grad()) == std::vector<float>{8, 9});
  CHECK(numbers(x) == std::vector<float>{4, 6});
  // An error of an op is that of the eager op.
  const ts::Compiled g = ts::compile([](const Tensors& in) { return Tensors{in[0] + in[1]}; });
  CHECK(error_of([&] {
          g({row({1, 2}), row({1, 2, 3})});
        }) == error_of([&] {
          row({1, 2}) + row({1, 2, 3});
        }));
  CHECK(numbers(g({row({1}), row({2})})[0]) == std::vector<float>{3});
}

TEST_CASE("compile: in a compiled function another is part of it") {
  const ts::Compiled inner =
      ts::compile([](const Tensors& in) { return Tensors{ts::gelu(in[0]) * 2.0f}; });
  const ts::Compiled outer = ts::compile(
      [&inner](const Tensors& in) { return Tensors{inner({in[0] + 1.0f})[0] - in[0]}; });
  for (int i = 0; i < 3; ++i) {
    const ts::Tensor x = ts::randn({2, 3}, static_cast<std::uint64_t>(i));
    check_near(outer({x})[0], ts::gelu(x + 1.0f) * 2.0f - x);
  }
  CHECK(inner.counters().calls == 0);
  CHECK(outer.counters().captures == 2);
}

TEST_CASE("compile: gradients inside") {
  // Two steps of gradient descent in one call: the second sees what the first has written.
  const ts::Tensor p = ts::parameter(row({1, -2}));
  const ts::Compiled::Body two_steps = [&p](const Tensors& in) {
    for (int i = 0; i < 2; ++i) {
      ts::sum(ts::square(p * in[0] - 1.0f)).backward();
      const ts::NoGrad off;
      ts::sub_(p, p.grad() * 0.1f);
      p.zero_grad();
    }
    return Tensors{p.detach() * 1.0f};
  };
  const ts::Tensor start = p.clone();
  std::vector<std::vector<float>> eager;
  for (int pass = 0; pass < 3; ++pass) {
    const ts::Compiled f =
        ts::compile(two_steps, pass == 1 ? ts::CompileOptions() : ts::CompileOptions::none());
    {
      const ts::NoGrad off;
      ts::copy_(p, start);
    }
    for (int call = 0; call < 4; ++call) {
      const ts::Tensor x = row({0.5f, 0.2f * static_cast<float>(call)});
      const Tensors y = pass == 0 ? two_steps({x}) : f({x});
      CHECK_FALSE(p.grad().defined());
      if (pass == 0) {
        eager.push_back(numbers(p));
      } else {
        check_near(row(eager[static_cast<std::size_t>(call)]), p.detach(), 1e-6f);
      }
    }
  }
}

TEST_CASE("compile: gradients that were there before") {
  const ts::Tensor p = ts::parameter(row({1, 2}));
  const ts::Compiled gathers = ts::compile([&p](const Tensors& in) {
    ts::sum(p * in[0]).backward();
    return Tensors{p.grad() * 1.0f};
  });
  for (int call = 1; call < 5; ++call) {
    const float n = static_cast<float>(call);
    CHECK(numbers(gathers({row({2, 3})})[0]) == std::vector<float>{2 * n, 3 * n});
    CHECK(numbers(p.grad()) == std::vector<float>{2 * n, 3 * n});
  }
  // The same of an input, and one that is cleared.
  const ts::Compiled of_input = ts::compile([](const Tensors& in) {
    ts::sum(ts::square(in[0])).backward();
    return Tensors{in[0].grad() * 1.0f};
  });
  const ts::Compiled clears = ts::compile([](const Tensors& in) {
    in[0].zero_grad();
    ts::sum(in[0] * 3.0f).backward();
    return Tensors{};
  });
  const ts::Tensor q = ts::parameter(row({1, 2}));
  for (int call = 1; call < 4; ++call) {
    const float n = static_cast<float>(call);
    CHECK(numbers(of_input({q})[0]) == std::vector<float>{2 * n, 4 * n});
    CHECK(numbers(q.grad()) == std::vector<float>{2 * n, 4 * n});
  }
  for (int call = 0; call < 3; ++call) {
    clears({q});
    CHECK(numbers(q.grad()) == std::vector<float>{3, 3});
  }
  // An input with a graph behind it: on to what stands there.
  const ts::Tensor r = ts::parameter(row({1, 2}));
  for (int call = 1; call < 4; ++call) {
    const ts::Tensor h = r * 10.0f;
    ts::compile([](const Tensors& in) {
      ts::sum(in[0] * in[1]).backward();
      return Tensors{};
    })({h, h + 1.0f});
    const float n = static_cast<float>(call);
    CHECK(numbers(r.grad()) == std::vector<float>{210 * n, 410 * n});
  }
  // Two parameters that get the same gradient do not share it.
  const ts::Tensor a = ts::parameter(row({1, 2})), b = ts::parameter(row({3, 4}));
  const ts::Compiled same = ts::compile([&](const Tensors& in) {
    ts::sum((a + b) * in[0]).backward();
    return Tensors{};
  });
  same({row({1, 1})});
  a.backward(row({5, 5}));
  CHECK(numbers(a.grad()) == std::vector<float>{6, 6});
  CHECK(numbers(b.grad()) == std::vector<float>{1, 1});
  a.zero_grad();
  a.backward(row({2, 2}));  // a leaf's own
  const ts::Compiled leaf = ts::compile([&](const Tensors& in) {
    a.backward(in[0]);
    return Tensors{};
  });
  leaf({row({1, 1})});
  CHECK(numbers(a.grad()) == std::vector<float>{3, 3});
}

TEST_CASE("compile: a graph of gradients is used once, as outside") {
  const ts::Tensor p = ts::parameter(row({1, 2}));
  const std::string used =
      "backward: this graph was used before and is freed; run the forward pass again";
  const ts::Compiled::Body twice = [&p](const Tensors& in) {
    const ts::Tensor h = p * in[0];
    ts::sum(h).backward();
    ts::sum(h * h).backward();
    return Tensors{};
  };
  CHECK(error_of([&] { twice({row({1, 1})}); }) == used);
  CHECK(error_of([&] { ts::compile(twice)({row({1, 1})}); }) == used);
  const ts::Compiled::Body out = [&p](const Tensors& in) {
    const ts::Tensor h = p * in[0];
    ts::sum(h).backward();
    return Tensors{ts::sum(h * h)};
  };
  CHECK(error_of([&] { out({row({1, 1})})[0].backward(); }) == used);
  CHECK(error_of([&] { ts::compile(out)({row({1, 1})})[0].backward(); }) == used);
  const ts::Tensor h = p * 2.0f;
  CHECK(error_of([&] {
          ts::compile([&h](const Tensors& in) { return Tensors{h * in[0]}; })({row({1, 1})});
        }) ==
        "compile: the function uses a [2] tensor with a graph of gradients behind it that began "
        "outside; give it to the function as an input, or detach() it");
}

TEST_CASE("compile: gradients of what is written later in the call") {
  const ts::Tensor p = ts::parameter(row({1, 2})), w = row({3, 4});
  const ts::Compiled f = ts::compile([&](const Tensors&) {
    const ts::Tensor y = ts::sum(p * w);
    const ts::NoGrad off;
    ts::scale_(w, 2.0f);
    return Tensors{y};
  });
  for (int call = 0; call < 3; ++call) {
    const std::vector<float> before = numbers(w);
    f({})[0].backward();
    CHECK(numbers(p.grad()) == before);
    CHECK(numbers(w)[0] == 2 * before[0]);
    p.zero_grad();
  }
}

TEST_CASE("compile: what reads a sum over rows waits for it") {
  check_same(
      [](const Tensors& in) {
        const ts::Tensor y = in[0] * 2.0f;
        return Tensors{y - ts::sum(y, 0, ts::KeepDim::yes), y / ts::sum(ts::exp(y)),
                       y - ts::sum(y, ts::List<int>{}, ts::KeepDim::yes)};
      },
      {{ts::randn({5, 3}, 1)}, {ts::randn({1, 3}, 2)}, {ts::randn({4, 1}, 3)}});
  check_same(
      [](const Tensors&) {
        const ts::Tensor y = ts::full({3, 4}, 2.0f);
        return Tensors{ts::sum(y, 1, ts::KeepDim::yes), ts::softmax(y), ts::argmax(y, 0),
                       ts::max(ts::sqrt(y), 1, ts::KeepDim::yes)};
      },
      {{}, {}});
}

TEST_CASE("compile: a group that spans a product which needs part of it") {
  check_same(
      [](const Tensors& in) {
        const ts::Tensor y = ts::exp(in[0]), x = ts::matmul(ts::transpose(y, 0, 1), in[2]);
        const ts::Tensor t = ts::exp(in[1]), c = ts::sum(t, 0);
        return Tensors{y * c * 0.1f, t * x * 0.1f};
      },
      {{ts::randn({8, 8}, 1, 0.3f), ts::randn({8, 8}, 2, 0.3f), ts::randn({8, 8}, 3, 0.3f)}});
}

TEST_CASE("compile: what a backward pass outside needs is not written") {
  const ts::Tensor c = row({1, 2}), w = row({3, 4});
  const ts::Compiled loss = ts::compile(
      [c, w](const Tensors& in) { return Tensors{ts::sum(ts::square(in[0] * w) + c)}; });
  const ts::Compiled writes = ts::compile([w](const Tensors& in) {
    const ts::NoGrad off;
    ts::add_(w, in[0]);
    return Tensors{};
  });
  const ts::Compiled writes_input = ts::compile([](const Tensors& in) {
    const ts::NoGrad off;
    ts::scale_(in[0], 2.0f);
    return Tensors{};
  });
  const ts::Tensor p = ts::parameter(row({5, 6})), by = row({1, 1});
  for (int call = 0; call < 3; ++call) {
    const ts::Tensor l = loss({p})[0];
    ts::add_(c, row({1, 1}));  // added only: no gradient needs it
    const std::string needed =
        "Compiled: a backward pass that is still to come needs the numbers of captured tensor 0, "
        "[2], which the function writes; call it after that pass, or give a clone()";
    CHECK(error_of([&] { writes({by}); }) == needed);
    CHECK(error_of([&] { writes_input({w}); }) ==
          "Compiled: a backward pass that is still to come needs the numbers of input 0, [2], "
          "which the function writes; call it after that pass, or give a clone()");
    p.zero_grad();
    l.backward();
    CHECK(p.grad().data()[0] == doctest::Approx(2 * 5 * w.data()[0] * w.data()[0]));
    writes({by});
  }
}

TEST_CASE("compile: many operands in one chain") {
  const ts::Compiled::Body body = [](const Tensors& in) {
    ts::Tensor y = in[0];
    for (std::size_t i = 0; i < 70; ++i) {
      y = ts::where(in[1 + 2 * i], in[2 + 2 * i], y);
    }
    return Tensors{y, ts::concat(in, 0)};
  };
  Tensors in;
  for (std::uint64_t i = 0; i < 141; ++i) {
    in.push_back(i % 2 == 1 ? ts::less(ts::randn({3}, i), ts::zeros({3}))
                            : ts::randn({3}, i, 1e-6f));
  }
  check_same(body, {in});
}

TEST_CASE("compile: several threads call one function") {
  const ts::Tensor w = ts::parameter(ts::randn({4, 4}, 1));
  const ts::Compiled f = ts::compile(
      [&w](const Tensors& in) { return Tensors{ts::softmax(ts::matmul(ts::gelu(in[0]), w))}; });
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      ts::Context own;  // else NoGrad is the program's, which all threads share
      const ts::ContextScope scope(own);
      for (std::uint64_t i = 0; i < 25; ++i) {
        const ts::Tensor x =
            ts::randn({static_cast<std::int64_t>(1 + (i + t) % 3), 4}, i + 100 * t);
        const ts::NoGrad off;
        const ts::Tensor apart = f({x})[0] - ts::softmax(ts::matmul(ts::gelu(x), w));
        wrong[t] += ts::sum(ts::square(apart)).item() > 1e-8f ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(wrong == std::vector<int>(4));
  CHECK(f.counters().calls == 100);
}

TEST_CASE("symbolic_batch: a call with other inputs, or none") {
  ts::CompileOptions options;
  options.symbolic_batch = true;
  const ts::Compiled f = ts::compile(
      [](const Tensors& in) {
        return Tensors{in.empty() ? ts::zeros({1}) : in.size() > 1 ? in[0] + in[1] : in[0] * 2.0f};
      },
      options);
  const ts::Tensor x = ts::ones({3});
  for (int call = 0; call < 2; ++call) {
    CHECK(f({x})[0].values() == std::vector<float>(3, 2.0f));
    CHECK(f({})[0].values() == std::vector<float>(1, 0.0f));
    CHECK(f({ts::ones({})})[0].item() == 2.0f);
    CHECK(f({x, x})[0].values() == std::vector<float>(3, 2.0f));
    CHECK(f({ts::ones({5})})[0].values() == std::vector<float>(5, 2.0f));
  }
}

#if !defined(TINYSCALE_NO_THREADS)  // several devices
TEST_CASE("symbolic_batch: several threads call one function that differs at some sizes") {
  ts::CompileOptions options;
  options.symbolic_batch = true;
  const auto body = [](const Tensors& in) {
    return Tensors{ts::gelu(in[0]) * (in[0].dim(0) % 3 == 0 ? 2.0f : 3.0f)};
  };
  for (int round = 0; round < 10; ++round) {
    const ts::Compiled f = ts::compile(body, options);
    std::vector<std::thread> threads;
    std::vector<int> wrong(4);
    for (std::size_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (std::int64_t b = 2; b < 14; ++b) {
          const ts::Tensor x = ts::randn({b, 3}, t);
          const ts::Tensor apart = f({x})[0] - body({x})[0];
          wrong[t] += ts::sum(ts::square(apart)).item() > 1e-8f ? 1 : 0;
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    CHECK(wrong == std::vector<int>(4));
  }
}

TEST_CASE("compile: loops of a function run on its thread, where they are recorded") {
  const ts::ThreadScope four(4);
  const ts::Tensor w = ts::ones({4});
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<int> elsewhere{0};
  const auto body = [&](const Tensors& in) {
    Tensors parts(8);
    ts::parallel_for(8, 1, [&](std::int64_t begin, std::int64_t end) {
      for (; begin < end; ++begin) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));  // so that all would take part
        elsewhere += std::this_thread::get_id() == caller ? 0 : 1;
        parts[static_cast<std::size_t>(begin)] = w * 2.0f + in[0];
      }
    });
    CHECK(ts::thread_count() == (ts::detail::recording() ? 1 : 4));
    return Tensors{ts::concat(parts, 0)};
  };
  const ts::Compiled f = ts::compile(body);
  for (int call = 0; call < 4; ++call) {
    ts::fill_(w, call < 2 ? 1.0f : 5.0f);
    CHECK(f({ts::ones({4})})[0].values() == std::vector<float>(32, call < 2 ? 3.0f : 11.0f));
    CHECK(ts::thread_count() == 4);
  }
  CHECK(elsewhere == 0);
  CHECK(f.counters().hits == 2);
}

TEST_CASE("compile: on the devices of a mesh") {
  const ts::Mesh mesh(ts::machine("tpu-v5e", {2}), {{"x", 2}});
  const ts::Tensor w = ts::randn({4, 4}, 3), x = ts::randn({2, 4}, 4);
  const ts::MeshRun run = mesh.run([&](ts::Device& d) {
    const ts::Compiled f = ts::compile([&](const Tensors& in) {
      const ts::Tensor part = ts::matmul(in[0], in[1]);
      return Tensors{ts::gelu(d.all_reduce(part, "x"))};
    });
    for (int call = 0; call < 3; ++call) {
      d.keep("y", f({d.shard(x, "x", 1), d.shard(w, "x", 0)})[0]);
    }
  });
  check_near(run.kept(0, "y"), ts::gelu(ts::matmul(x, w)), 1e-5f);
}
#endif

TEST_CASE("compile: AdamW refuses options that become wrong after the capture") {
  const ts::Tensor w = ts::parameter(ts::randn({4, 3}, 1)), b = ts::parameter(ts::zeros({3}));
  ts::AdamW optimizer({w, b});
  const ts::Compiled f = ts::compile([&](const Tensors& in) {
    const ts::Tensor loss = ts::sum(ts::square(ts::matmul(in[0], w) + b));
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    return Tensors{loss.detach()};
  });
  const Tensors in = {ts::randn({5, 4}, 2)};
  for (int step = 0; step < 3; ++step) {
    f(in);
  }
  const std::vector<float> before = w.values();
  optimizer.options.learning_rate = -1;
  CHECK(error_of([&] { f(in); }) ==
        "AdamW: learning_rate is -1; a number from 0 to below 1e+30 is right");
  optimizer.options.learning_rate = 1e-3;
  optimizer.options.beta1 = 1;
  CHECK(error_of([&] { f(in); }) == "AdamW: beta1 is 1; a number from 0 to below 1 is right");
  CHECK(w.values() == before);
  CHECK(optimizer.steps() == 3);
  optimizer.options.beta1 = 0.9;
  f(in);
  CHECK(w.values() != before);
  CHECK(optimizer.steps() == 4);
}

TEST_CASE("compile: AdamW inside") {
  const auto train = [](bool compiled, const ts::CompileOptions& passes) {
    const ts::Tensor w = ts::parameter(ts::randn({4, 3}, 1)), b = ts::parameter(ts::zeros({3}));
    ts::AdamW optimizer({w, b});
    const ts::Compiled::Body body = [&](const Tensors& in) {
      const ts::Tensor loss = ts::mean(ts::square(ts::tanh(ts::matmul(in[0], w) + b) - in[1]));
      loss.backward();
      optimizer.step();
      optimizer.zero_grad();
      return Tensors{loss.detach()};
    };
    const ts::Compiled f = ts::compile(body, passes);
    std::vector<float> out;
    for (std::uint64_t step = 0; step < 20; ++step) {
      optimizer.options.learning_rate = 0.01 * static_cast<double>(step + 1);
      const Tensors in = {ts::randn({5, 4}, step), ts::randn({5, 3}, step + 50)};
      out.push_back((compiled ? f(in) : body(in))[0].item());
    }
    for (const ts::Tensor& each : {w, b, optimizer.moments()[0], optimizer.squares()[1]}) {
      for (const float number : each.values()) {
        out.push_back(number);
      }
    }
    out.push_back(static_cast<float>(optimizer.steps()));
    return out;
  };
  const std::vector<float> eager = train(false, ts::CompileOptions());
  for (const ts::CompileOptions& passes : both_ends()) {
    check_near(row(eager), row(train(true, passes)), 2e-5f);
  }
}

TEST_CASE("compile_step trains as train_step") {
  const ts::Text text = small_text();
  for (const ts::DType format : {ts::DType::f32, ts::DType::bf16}) {
    ts::StepOptions options;
    options.format = format;
    options.warmup = 5;
    options.steps = 20;
    const ts::Transformer a(small_model(), 7), b(small_model(), 7);
    ts::AdamW eager(a.tensors()), fused(b.tensors());
    ts::CompiledStep step = ts::compile_step(b, fused, options);
    const float by = format == ts::DType::f32 ? 2e-4f : 2e-2f;
    for (std::int64_t i = 0; i < 20; ++i) {
      ts::Batch batch;
      batch.time = 16;
      batch.add(text.train(), 40 * i);
      batch.add(text.train(), 40 * i + 333);
      const ts::StepResult x = ts::train_step(a, eager, batch, options, i);
      const ts::StepResult y = step(batch, i);
      CHECK(std::fabs(x.loss - y.loss) < static_cast<double>(by));
      CHECK(std::fabs(x.grad_norm - y.grad_norm) < static_cast<double>(by) * (1 + x.grad_norm));
    }
    CHECK(step.compiled().counters().captures <= 3);
    CHECK(step.compiled().reason() == "");
    for (std::size_t i = 0; i < a.tensors().size(); ++i) {
      check_near(a.tensors()[i].detach(), b.tensors()[i].detach(), 10 * by);
    }
  }
}

TEST_CASE("compile_step goes on from the moments that its optimizer resumes") {
  const ts::Text& text = small_text();
  ts::StepOptions options;
  const ts::Transformer a(small_model(), 7), b(small_model(), 7);
  ts::AdamW eager(a.tensors()), fused(b.tensors());
  ts::CompiledStep step = ts::compile_step(b, fused, options);
  const auto train = [&](std::int64_t i) {
    ts::Batch batch;
    batch.time = 16;
    batch.add(text.train(), 40 * i);
    ts::train_step(a, eager, batch, options, 200 + i);
    step(batch, 200 + i);
  };
  for (std::int64_t i = 0; i < 4; ++i) {
    train(i);
  }
  for (ts::AdamW* const optimizer : {&eager, &fused}) {  // as a training that begins
    std::vector<ts::Tensor> moments, squares;
    for (const ts::Tensor& tensor : optimizer->tensors()) {
      moments.push_back(ts::zeros(tensor.shape()));
      squares.push_back(ts::zeros(tensor.shape()));
    }
    optimizer->resume(moments, squares, 0);
  }
  for (std::int64_t i = 4; i < 8; ++i) {
    train(i);
  }
  CHECK(fused.steps() == 4);
  for (std::size_t i = 0; i < a.tensors().size(); ++i) {
    check_near(a.tensors()[i].detach(), b.tensors()[i].detach(), 2e-4f);
    check_near(eager.moments()[i], fused.moments()[i], 2e-5f);
  }
}

TEST_CASE("compile_step updates nothing where the loss or the norm is no number") {
  ts::Batch batch;
  batch.time = 8;
  batch.add(small_text().train(), 3);
  for (const ts::CompileOptions& passes : both_ends()) {
    for (const double clip : {1.0, 0.0}) {
      ts::StepOptions options;
      options.clip = clip;
      const ts::Transformer model(small_model(), 7);
      ts::AdamW optimizer(model.tensors());
      ts::CompiledStep step = ts::compile_step(model, optimizer, options, passes);
      step(batch, 0);
      std::vector<ts::Tensor> all = model.tensors();
      for (const std::vector<ts::Tensor>& more : {optimizer.moments(), optimizer.squares()}) {
        all.insert(all.end(), more.begin(), more.end());
      }
      ts::Tensor spoilt = model.tensors()[0].detach();
      const float before = spoilt.data()[3 * 32];
      const auto refused = [&](float value, const char* what) {
        CAPTURE(value);
        for (std::int64_t row = 0; row < spoilt.dim(0); ++row) {
          spoilt.data()[row * 32] = value;
        }
        std::vector<std::vector<float>> kept;
        for (const ts::Tensor& x : all) {
          kept.push_back(x.detach().values());
        }
        const std::string error = error_of([&] { step(batch, 1); });
        CHECK(error.find(what) == 0);
        for (std::size_t i = 0; i < all.size(); ++i) {
          CHECK(std::memcmp(all[i].detach().values().data(), kept[i].data(), 4 * kept[i].size()) ==
                0);
        }
        CHECK(optimizer.steps() == 1);
      };
      refused(std::nanf(""), "compile_step: the loss is not a number in step 1; ");
      refused(std::numeric_limits<float>::infinity(), "compile_step: the loss is not a number");
      batch.targets[0] = 400;
      refused(before,
              passes.fuse_rows ? "linear_cross_entropy: target 400 " : "embedding: id 400 ");
      batch.targets[0] = 4;
      for (std::int64_t row = 0; row < spoilt.dim(0); ++row) {
        spoilt.data()[row * 32] = before;
      }
      CHECK(std::isfinite(step(batch, 1).loss));
      CHECK(optimizer.steps() == 2);
    }
  }
}

TEST_CASE("compiled log_softmax and cross_entropy are as near far from 0 as eager ones") {
  const ts::Compiled::Body body = [](const Tensors& in) {
    return Tensors{ts::log_softmax(in[0]), ts::cross_entropy(in[0], in[1])};
  };
  for (const float offset : {0.0f, 1e4f, -1e6f}) {
    const ts::Tensor x = ts::uniform({20, 50}, 3, -3, 3) + offset, targets = ts::arange(20);
    const std::vector<float> numbers_of_x = x.values();
    std::vector<float> want;
    double loss = 0;
    for (std::size_t row = 0; row < 20; ++row) {
      double sum = 0;
      for (std::size_t j = 0; j < 50; ++j) {
        sum += std::exp(double{numbers_of_x[row * 50 + j]} - double{offset});
      }
      for (std::size_t j = 0; j < 50; ++j) {
        const double y = double{numbers_of_x[row * 50 + j]} - double{offset} - std::log(sum);
        want.push_back(static_cast<float>(y));
        loss -= j == row ? y / 20 : 0;
      }
    }
    for (const ts::CompileOptions& options : both_ends()) {
      const Tensors y = ts::compile(body, options)({x, targets});
      check_near(y[0], ts::tensor({20, 50}, want), 1e-6f);
      CHECK(std::fabs(double{y[1].item()} - loss) < 2e-6);
    }
  }
}

TEST_CASE("cross_entropy refuses what is no class, also taken apart") {
  const ts::Compiled::Body body = [](const Tensors& in) {
    return Tensors{ts::cross_entropy(in[0], in[1])};
  };
  const ts::Tensor x = ts::uniform({3, 5}, 1);
  for (const ts::CompileOptions& options : both_ends()) {
    const ts::Compiled f = ts::compile(body, options);
    const auto error = [&](float target) {
      return error_of([&] { f({x, row({0, -1, target})}); });
    };
    const std::string start = options.fuse_rows ? "cross_entropy: target " : "embedding: id ";
    const std::string end =
        options.fuse_rows ? " is outside the 5 classes" : " is outside the 5 rows";
    CHECK(error(5) == start + "5 at position 2" + end);
    CHECK(error(-2) == start + "-2 at position 2" + end);
    CHECK(error(std::nanf("")) == start + "nan at position 2" + end);
    CHECK(error(1.5f) == start + "1.5 at position 2 is no whole number");
    CHECK(error(-0.5f).find(start + "-0.5 at position 2 is ") == 0);
    check_near(f({x, row({0, -1, 4})})[0], body({x, row({0, -1, 4})})[0]);
  }
}

TEST_CASE("a returned view of an input is one, and lies as an eager one does") {
  const auto f = [](const Tensors& in) {
    const ts::Tensor& x = in[0];
    const ts::Tensor h = ts::tanh(x), turned = ts::transpose(h, 0, 1);
    Tensors all = {x,
                   ts::transpose(x, 0, 1),
                   ts::slice(ts::reshape(x, {3, 2}), 0, 1, 3),
                   ts::broadcast_to(ts::slice(x, 0, 0, 1), {4, 3}),
                   ts::contiguous(x),
                   ts::contiguous(ts::transpose(x, 0, 1)),
                   ts::transpose(x, 0, 1).clone(),
                   ts::transpose(x, 0, 1).detach(),
                   turned,
                   ts::contiguous(turned),
                   ts::copy(turned),
                   ts::contiguous(h)};
    const ts::NoGrad off;
    all.push_back(ts::contiguous(x));
    all.push_back(ts::transpose(x, 0, 1));
    all.push_back(ts::contiguous(turned));
    return all;
  };
  for (const ts::CompileOptions& passes : both_ends()) {
    const ts::Compiled compiled = ts::compile(f, passes);
    for (const bool grad : {false, true}) {
      for (const bool as_turned : {false, true, true, false}) {
        CAPTURE(grad);
        CAPTURE(as_turned);
        const ts::Tensor numbers = ts::uniform({as_turned ? 3 : 2, as_turned ? 2 : 3}, 5, -1, 1);
        const ts::Tensor leaf[2] = {grad ? ts::parameter(numbers) : numbers,
                                    grad ? ts::parameter(numbers) : numbers};
        const auto given = [&](int i) {
          return as_turned ? ts::transpose(leaf[i], 0, 1) : leaf[i];
        };
        const Tensors x = {given(0), given(1)};
        const Tensors eager = f({x[0]}), mine = compiled({x[1]});
        for (std::size_t i = 0; i < eager.size(); ++i) {
          CAPTURE(i);
          CHECK(mine[i].shape() == eager[i].shape());
          CHECK(mine[i].strides() == eager[i].strides());
          CHECK(mine[i].requires_grad() == eager[i].requires_grad());
          check_near(mine[i].detach(), eager[i].detach(), 1e-6f);
          for (std::size_t k = 0; k <= i; ++k) {
            const bool shared =
                eager[i].storage().get() == (k < i ? eager[k] : x[0]).storage().get();
            CHECK((mine[i].storage().get() == (k < i ? mine[k] : x[1]).storage().get()) == shared);
          }
          if (eager[i].requires_grad()) {
            const ts::Tensor dy = ts::uniform(eager[i].shape(), 8, -1, 1);
            leaf[0].zero_grad();
            leaf[1].zero_grad();
            f({given(0)})[i].backward(dy);
            compiled({given(1)})[i].backward(dy);
            check_near(leaf[1].grad(), leaf[0].grad(), 1e-6f);
          }
        }
      }
    }
    CHECK(compiled.counters().recompiles > 0);
    CHECK(compiled.reruns().empty());
  }
  ts::Tensor x = ts::ones({2, 3});
  const auto writes = [](const Tensors& in) {
    ts::add_(in[0], ts::full({}, 1));
    return Tensors{ts::transpose(in[0], 0, 1)};
  };
  const auto used = [](const Tensors& in) {
    const ts::Tensor turned = ts::transpose(in[0], 0, 1);
    ts::sum(turned).backward();
    return Tensors{turned};
  };
  for (const bool graph : {false, true}) {
    const ts::Tensor p = ts::parameter(x);
    const ts::Tensor y = graph ? ts::compile(used)({p})[0] : used({p})[0];
    CHECK(y.storage().get() == p.storage().get());
    CHECK(error_of([&] { ts::sum(y).backward(); }) ==
          "backward: this graph was used before and is freed; run the forward pass again");
  }
  const Tensors y = ts::compile(writes)({x});
  CHECK(y[0].storage().get() == x.storage().get());
  CHECK(y[0].at({2, 1}) == 2.0f);
}

TEST_CASE("a backward pass through a compiled function multiplies in the format of its call") {
  const ts::DType formats[] = {ts::DType::f32, ts::DType::bf16, ts::DType::f16,
                               ts::DType::fp8_e4m3};
  const ts::Tensor a = ts::parameter(ts::uniform({2, 4, 5}, 1, -1, 1));
  const ts::Tensor b = ts::parameter(ts::uniform({5, 3}, 2, -1, 1));
  const ts::Tensor c = ts::parameter(ts::uniform({2, 3, 4}, 3, -1, 1));
  const auto f = [&](const Tensors& in) {
    const ts::Tensor h = ts::tanh(ts::matmul(in[0], b));
    const ts::MatmulFormat inside(ts::DType::bf16);  // of the forward pass alone
    return Tensors{ts::matmul(h, in[1])};
  };
  for (ts::CompileOptions passes : both_ends()) {
    for (const double budget : {0.0, 1.0}) {
      passes.activation_bytes = budget;
      const ts::Compiled compiled = ts::compile(f, passes);
      for (const ts::DType forward : formats) {
        for (const ts::DType backward : formats) {
          const auto gradients = [&](bool graph) {
            const Tensors leaves = {a, b, c};
            Tensors out;
            {
              const ts::MatmulFormat format(forward);
              out = graph ? compiled({a, c}) : f({a, c});
            }
            {
              const ts::MatmulFormat format(backward);
              out[0].backward(ts::uniform({2, 4, 4}, 4, -1, 1));
            }
            out.clear();
            for (const ts::Tensor& leaf : leaves) {
              out.push_back(leaf.grad().clone());
              leaf.zero_grad();
            }
            return out;
          };
          const Tensors eager = gradients(false), mine = gradients(true);
          for (std::size_t i = 0; i < eager.size(); ++i) {
            check_near(mine[i], eager[i], 2e-6f);
          }
        }
      }
    }
  }
}

TEST_CASE("results that a pass made one stay two for who writes to them") {
  const ts::Tensor x = ts::tensor({2}, {1, 2});
  const struct {
    const char* name;
    std::vector<ts::Tensor> (*f)(const std::vector<ts::Tensor>&);
  } all[] = {
      {"twice",
       [](const std::vector<ts::Tensor>& in) {
         return std::vector<ts::Tensor>{ts::exp(in[0]), ts::exp(in[0])};
       }},
      {"clone",
       [](const std::vector<ts::Tensor>& in) {
         const ts::Tensor h = ts::exp(in[0]);
         return std::vector<ts::Tensor>{h, h.clone()};
       }},
      {"times 1",
       [](const std::vector<ts::Tensor>& in) {
         const ts::Tensor h = ts::exp(in[0]);
         return std::vector<ts::Tensor>{h, h * 1.0f};
       }},
      {"the same part",
       [](const std::vector<ts::Tensor>& in) {
         const ts::Tensor q = ts::concat({ts::reshape(in[0], {1, 1, 2}), ts::ones({1, 2, 2})}, 1);
         const ts::Tensor h = ts::attention(q, q, q, 2, 2, ts::Mask::none);
         return std::vector<ts::Tensor>{h, h};
       }},
      {"the same", [](const std::vector<ts::Tensor>& in) {
         const ts::Tensor h = ts::exp(in[0]);
         return std::vector<ts::Tensor>{h, h};
       }}};
  for (const auto& each : all) {
    CAPTURE(std::string(each.name));
    for (const bool passes : {true, false}) {
      const ts::Compiled f =
          ts::compile(each.f, passes ? ts::CompileOptions() : ts::CompileOptions::none());
      const std::vector<ts::Tensor> y = f({x}), eager = each.f({x});
      ts::copy_(y[0], ts::full({2}, 7));
      ts::copy_(eager[0], ts::full({2}, 7));
      CHECK(y[1].values() == eager[1].values());
    }
  }
}

TEST_CASE("a result that its backward pass needs is not written to") {
  const ts::Tensor p = ts::parameter(ts::ones({2}));
  const ts::Compiled f = ts::compile(
      [&](const std::vector<ts::Tensor>& in) { return std::vector<ts::Tensor>{ts::exp(in[0])}; });
  const ts::Tensor y = f({p})[0];
  CHECK(error_of([&] {
          ts::copy_(y.detach(), ts::full({2}, 5));
        }).find("a backward pass that is still to come needs the numbers") != std::string::npos);
}

#if !defined(TINYSCALE_NO_THREADS)
TEST_CASE("a tensor that one call records is no tensor of another, on whichever thread") {
  ts::Tensor leak;
  const ts::Compiled first = ts::compile([&](const std::vector<ts::Tensor>& in) {
    leak = ts::sum(in[0]);
    return std::vector<ts::Tensor>{in[0] * leak.item()};
  });
  first({ts::tensor({2}, {2, 3})});
  CHECK(leak.item() == 5.0f);
  float got = 0;
  std::thread other([&] {
    const ts::Compiled second = ts::compile([&](const std::vector<ts::Tensor>& in) {
      return std::vector<ts::Tensor>{ts::exp(in[0]) * 0.0f + leak};
    });
    got = second({ts::zeros({1})})[0].item();
  });
  other.join();
  CHECK(got == 5.0f);
  std::string error;
  ts::compile([&](const std::vector<ts::Tensor>& in) {
    const ts::Tensor mine = in[0] + 1.0f;
    std::thread thief([&] {
      error = error_of([&] {
        ts::compile([&](const std::vector<ts::Tensor>& theirs) {
          return std::vector<ts::Tensor>{theirs[0] + mine};
        })({ts::zeros({2})});
      });
    });
    thief.join();
    return std::vector<ts::Tensor>{mine};
  })({ts::zeros({2})});
  CHECK(error.find("numbers that another call records; return it") != std::string::npos);
}
#endif

TEST_CASE("written-out attention keeps its format, GELU its shape") {
  const ts::Tensor q = ts::randn({1, 16, 8}, 1), k = ts::randn({1, 16, 8}, 2);
  const auto attend = [&](const std::vector<ts::Tensor>& in) {
    const ts::Tensor s = ts::matmul(in[0], ts::transpose(k, 1, 2)) / std::sqrt(8.0f);
    return std::vector<ts::Tensor>{ts::matmul(ts::softmax(s), k)};
  };
  const ts::MatmulFormat format(ts::DType::fp8_e4m3);
  CHECK(ts::compile(attend)({q})[0].values() == attend({q})[0].values());
  const auto wide = [](const std::vector<ts::Tensor>& in) {
    return std::vector<ts::Tensor>{ts::full({2, 3}, 0.5f) * in[0] *
                                   (ts::erf(in[0] * 0.70710678f) + 1.0f)};
  };
  ts::CompileOptions options;
  options.fuse_elementwise = false;
  CHECK(ts::compile(wide, options)({ts::randn({3}, 3)})[0].shape() == ts::Shape{2, 3});
}

TEST_CASE("scores that are filled with NaN are no mask") {
  const auto attend = [](const Tensors& in) {
    const ts::Tensor rows = ts::reshape(ts::arange(4), {4, 1}),
                     future = ts::less(rows, ts::arange(4));
    const ts::Tensor s = ts::matmul(in[0], ts::transpose(in[0], 1, 2)) / 2.0f;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    return Tensors{ts::matmul(ts::softmax(ts::masked_fill(s, future, nan)), in[0])};
  };
  const ts::Tensor y = ts::compile(attend)({ts::randn({1, 4, 4}, 1)})[0];
  CHECK(std::isnan(y.at({0, 0, 0})));
  CHECK(!std::isnan(y.at({0, 3, 0})));
}

TEST_CASE("attention from its parts reads f32 where its kernel does") {
  for (const std::int64_t window : {0, 2}) {
    CAPTURE(window);
    const auto f = [window](const std::vector<ts::Tensor>& in) {
      const ts::Tensor k = ts::slice(in[0], -1, 0, 4);
      const ts::Tensor y = ts::attention(in[0], k, k, 2, 1, ts::Mask::causal, window);
      return std::vector<ts::Tensor>{ts::sum(ts::square(y))};
    };
    const ts::Tensor x = ts::randn({2, 5, 8}, 1);
    ts::CompileOptions parts;
    parts.fuse_attention = false;
    const ts::MatmulFormat format(ts::DType::fp8_e4m3);
    const ts::Tensor eager = ts::parameter(x), whole = ts::parameter(x), apart = ts::parameter(x);
    f({eager})[0].backward();
    ts::compile(f)({whole})[0].backward();
    const ts::Tensor loss = ts::compile(f, parts)({apart})[0];
    loss.backward();
    CHECK(loss.item() == doctest::Approx(f({x})[0].item()).epsilon(1e-5));
    const ts::Tensor written = ts::grad(ts::TensorFunction(ts::compile(f, parts)))({x})[0];
    for (std::size_t i = 0; i < eager.grad().values().size(); ++i) {
      const float slope = eager.grad().values()[i];
      CHECK(std::fabs(whole.grad().values()[i] - slope) < 1e-5f);
      CHECK(std::fabs(apart.grad().values()[i] - slope) < 1e-5f);
      CHECK(std::fabs(written.values()[i] - slope) < 1e-5f);
    }
  }
}

TEST_CASE("compile: captured views whose steps are below 0") {
  ts::detail::Strides back;
  back.of[0] = -4;
  back.of[1] = 1;
  const ts::Tensor r = ts::randn({3, 4}, 1).as_strided({3, 4}, back, 8);
  back.of[1] = -1;
  const ts::Tensor turned = ts::randn({3, 4}, 2).as_strided({3, 4}, back, 11);
  check_same(
      [&](const Tensors& in) -> Tensors {
        return {ts::softmax(r * in[0] + turned), ts::matmul(turned, ts::transpose(r, 0, 1)),
                ts::sum(ts::reshape(r, {12})), ts::layer_norm(turned, in[0], in[0])};
      },
      {{ts::ones({4})}, {ts::randn({4}, 3)}});
}

TEST_CASE("compile: ids that a number of f32 does not hold are refused") {
  const ts::Tensor x = ts::broadcast_to(ts::zeros({1}), {16777220});
  const ts::Compiled f = ts::compile([](const Tensors& in) -> Tensors {
    return {ts::scatter_add(in[0], 0, {16777216, 16777219}, ts::ones({2}))};
  });
  CHECK(error_of([&] { f({x}); }) ==
        "compile: id 16777219 at position 1 of [2]; in a graph ids are numbers of f32, up to 2^24 "
        "is right");
}

TEST_CASE("symbolic_batch: a size at which the function does something else is captured anew") {
  ts::CompileOptions options;
  options.symbolic_batch = true;
  const struct {
    const char* name;
    std::vector<ts::Tensor> (*f)(const std::vector<ts::Tensor>&);
    std::vector<std::int64_t> sizes;
  } all[] = {{"the first 8",
              [](const std::vector<ts::Tensor>& in) {
                const std::int64_t n = std::min<std::int64_t>(in[0].dim(0), 8);
                return std::vector<ts::Tensor>{ts::sum(ts::slice(in[0], 0, 0, n))};
              },
              {4, 5, 20, 6, 30}},
             {"a branch",
              [](const std::vector<ts::Tensor>& in) {
                return std::vector<ts::Tensor>{in[0].dim(0) > 8 ? in[0] * 2.0f : in[0] * 3.0f};
              },
              {4, 5, 20, 7}},
             {"a square",
              [](const std::vector<ts::Tensor>& in) {
                const auto b = static_cast<float>(in[0].dim(0));
                return std::vector<ts::Tensor>{in[0] * (b * b)};
              },
              {3000, 3001, 20}},
             {"padded",
              [](const std::vector<ts::Tensor>& in) {
                const std::int64_t b = in[0].dim(0), p = (b + 7) / 8 * 8;
                return std::vector<ts::Tensor>{ts::sum(ts::pad(in[0], 0, 0, p), {0}) *
                                               static_cast<float>(p)};
              },
              {2, 3, 20}},
             {"a mean",
              [](const std::vector<ts::Tensor>& in) {
                return std::vector<ts::Tensor>{in[0] * (1.0f / static_cast<float>(in[0].dim(0)))};
              },
              {3, 7, 11, 13, 19, 21, 29}},
             {"a mean of all",
              [](const std::vector<ts::Tensor>& in) {
                return std::vector<ts::Tensor>{ts::mean(ts::concat({in[0], in[0], in[0]}, 1))};
              },
              {3, 7, 11, 13, 19, 21, 29}},
             {"another captured tensor",
              [](const std::vector<ts::Tensor>& in) {
                static const ts::Tensor few = ts::full({1}, 1.0f), many = ts::full({1}, 9.0f);
                return std::vector<ts::Tensor>{in[0] + (in[0].dim(0) > 8 ? many : few)};
              },
              {4, 5, 20, 6, 30}}};
  for (const auto& each : all) {
    CAPTURE(std::string(each.name));
    const ts::Compiled f = ts::compile(each.f, options);
    for (const std::int64_t b : each.sizes) {
      CAPTURE(b);
      const ts::Tensor x = ts::ones({b, 2});
      const std::vector<float> eager = each.f({x})[0].values();  // first: it makes its statics
      CHECK(f({x})[0].values() == eager);
    }
    if (std::string(each.name).find("a mean") == 0) {
      CHECK(f.counters().recompiles == 0);
      CHECK(f.counters().sizes == 6);
    }
  }
}

TEST_CASE("products in f32 inside of a function stay f32 under another format") {
  const ts::Tensor w = ts::randn({12, 8}, 1), x = ts::randn({6, 12}, 2),
                   rows = ts::randn({900, 12}, 3);
  const auto body = [&w](const Tensors& in) {
    const ts::MatmulFormat whole(ts::DType::f32);
    return Tensors{ts::matmul(ts::gelu(in[0]) * 2.0f, w)};
  };
  const auto loss = [&w](const Tensors& in) {
    const ts::MatmulFormat whole(ts::DType::f32);
    return Tensors{ts::linear_cross_entropy(in[0], ts::transpose(w, 0, 1), {0, 1, 2, 3, 4, 5})};
  };
  const ts::MatmulFormat format(ts::DType::fp8_e4m3);
  check_same(body, {{x}, {x}, {rows}});  // as a block that is made for its product, and in several
  check_near(ts::value_and_grad(loss)({x})[0], loss({x})[0]);
}

TEST_CASE("gradients of products in fp8 and f16 round as eager ones, and are counted") {
  const auto f = [](const std::vector<ts::Tensor>& in) {
    const ts::Tensor h = ts::gelu_tanh(ts::matmul(in[0], in[1]));  // (5, 7)
    const ts::Tensor heads = ts::reshape(h, {1, 5, 7});
    const ts::Tensor mixed = ts::matmul(heads, ts::transpose(heads, 1, 2));  // (1, 5, 5)
    return std::vector<ts::Tensor>{ts::sum(mixed * ts::full(ts::Shape{}, 300.0f)) +
                                   ts::sum(ts::matmul_transposed(h, in[2]))};
  };
  for (const ts::DType dtype : {ts::DType::fp8_e4m3, ts::DType::fp8_e5m2, ts::DType::f16}) {
    std::vector<ts::Tensor> eager, compiled;
    ts::RoundingCount counts[2];
    for (const bool whole : {false, true}) {
      std::vector<ts::Tensor>& in = whole ? compiled : eager;
      in = {ts::parameter(ts::randn({5, 4}, 1)), ts::parameter(ts::randn({4, 7}, 2)),
            ts::parameter(ts::randn({3, 7}, 3))};
      const ts::MatmulFormat format(dtype, &counts[whole ? 1 : 0]);
      (whole ? ts::compile(f)(in) : f(in))[0].backward();
    }
    for (std::size_t i = 0; i < eager.size(); ++i) {
      const std::vector<float> a = eager[i].grad().values(), b = compiled[i].grad().values();
      for (std::size_t j = 0; j < a.size(); ++j) {
        CHECK(b[j] == doctest::Approx(a[j]).epsilon(1e-5));  // f32 sums in another order
      }
    }
    CHECK(counts[1].numbers == counts[0].numbers);
    CHECK(counts[1].lost == counts[0].lost);
    CHECK(counts[1].overflowed == counts[0].overflowed);
    CHECK(counts[0].numbers > 0);
    CHECK(counts[0].overflowed == 0);  // past 448, the most of fp8_e4m3
  }
}

TEST_CASE(
    "a compiled function writes to tensors that it made: zeros, sums, einsums, views of its own") {
  const auto f = [](const std::vector<ts::Tensor>& in) {
    const ts::Tensor total = ts::zeros({2, 3});
    for (int i = 0; i < 3; ++i) {
      ts::add_(total, in[0] * static_cast<float>(i));
    }
    const ts::Tensor rows = ts::sum(in[0], 1);
    ts::fill_(rows, 2.0f);
    ts::add_(rows, ts::sum(in[0], 1));
    const ts::Tensor turned = ts::einsum("ij,ij->ji", in[0], in[0]);
    ts::mul_(turned, turned);
    const ts::Tensor flat = ts::reshape(in[0] + in[0], {6});
    ts::sub_(flat, ts::arange(6));
    const ts::Tensor one = ts::full(ts::Shape{}, 4.0f);
    ts::add_(one, ts::sum(in[0]));
    return std::vector<ts::Tensor>{total, rows, turned, flat, one};
  };
  const ts::Tensor x = ts::randn({2, 3}, 5);
  const std::vector<ts::Tensor> eager = f({x}), compiled = ts::compile(f)({x});
  for (std::size_t i = 0; i < eager.size(); ++i) {
    CHECK(compiled[i].shape() == eager[i].shape());
    for (std::size_t j = 0; j < eager[i].values().size(); ++j) {
      CHECK(compiled[i].values()[j] == doctest::Approx(eager[i].values()[j]).epsilon(1e-6));
    }
  }
  const auto seen = [](const std::vector<ts::Tensor>& in) {
    const ts::Tensor z = ts::zeros({2, 3}), flat = ts::reshape(z, {6});
    ts::add_(flat, ts::reshape(in[0], {6}));
    return std::vector<ts::Tensor>{z};
  };
  CHECK_THROWS_WITH_AS(ts::compile(seen)({x}),
                       "compile: add_ writes to a [6] tensor that is a view of another; where ops "
                       "are recorded only a tensor of its own can be written: write to a clone()",
                       ts::Error);
  const auto repeated = [](const std::vector<ts::Tensor>& in) {
    const ts::Tensor y = ts::broadcast_to(in[0] * 2.0f, {2, 2, 3});
    ts::add_(y, in[0]);
    return std::vector<ts::Tensor>{y};
  };
  CHECK_THROWS_AS(repeated({x}), ts::Error);
  CHECK_THROWS_AS(ts::compile(repeated)({x}), ts::Error);
}

TEST_CASE("written-out softmax, log-softmax and GELU of a kept maximum keep its gradient") {
  using Tensors = std::vector<ts::Tensor>;
  const auto keep = ts::KeepDim::yes;
  const auto softmax_of = [&](const ts::Tensor& x) {
    const ts::Tensor e = ts::exp(x - ts::max(x, -1, keep));
    return e / ts::sum(e, -1, keep);
  };
  const std::vector<ts::Compiled::Body> bodies = {
      [&](const Tensors& in) {
        return Tensors{ts::sum(softmax_of(ts::max(in[0], 1, keep)) * in[1]) + ts::sum(in[0])};
      },
      [&](const Tensors& in) {
        const ts::Tensor x = ts::max(in[0], 1, keep), z = x - ts::max(x, -1, keep);
        return Tensors{ts::sum((z - ts::log(ts::sum(ts::exp(z), -1, keep))) * in[1])};
      },
      [&](const Tensors& in) {
        const ts::Tensor x = ts::max(in[0], 1, keep);
        return Tensors{ts::sum(0.5f * x * (1.0f + ts::erf(x * 0.70710678f)) * in[1])};
      },
      [&](const Tensors& in) {  // only the maximum passes a gradient on
        const ts::Tensor x = in[0], z = x.detach() - ts::max(x, -1, keep);
        const ts::Tensor y = z - ts::log(ts::sum(ts::exp(z.detach()), -1, keep));
        return Tensors{ts::sum(y * in[1]) + ts::sum(x)};
      },
      [&](const Tensors& in) { return Tensors{ts::sum(ts::pow(in[0] * 0.0f, 0.0f) + in[0])}; }};
  for (const ts::Compiled::Body& body : bodies) {
    std::vector<float> grads[2];
    for (const bool whole : {false, true}) {
      const ts::Tensor x = ts::parameter(ts::randn({2, 4, 3}, 1)), c = ts::randn({2, 1, 3}, 2);
      (whole ? ts::compile(body)({x, c}) : body({x, c}))[0].backward();
      grads[whole ? 1 : 0] = x.grad().values();
    }
    for (std::size_t i = 0; i < grads[0].size(); ++i) {
      CHECK(grads[1][i] == doctest::Approx(grads[0][i]).epsilon(1e-5));
    }
  }
}

namespace {

struct WrittenNorm {
  ts::Compiled::Body body;  // of x [2, 5, 5], weight [5], bias [5]
  ts::Op op;                // add: it is none
  std::size_t operands;
};

ts::Tensor centred(const ts::Tensor& x) { return x - ts::mean(x, -1, ts::KeepDim::yes); }
ts::Tensor mean_square(const ts::Tensor& x) {
  return ts::mean(ts::square(x), -1, ts::KeepDim::yes);
}

std::vector<WrittenNorm> written_norms() {
  const auto keep = ts::KeepDim::yes;
  return {{[](const Tensors& in) {
             const ts::Tensor c = centred(in[0]);
             return Tensors{c / ts::sqrt(mean_square(c) + 1e-5f) * in[1] + in[2]};
           },
           ts::Op::layer_norm, 3},
          {[](const Tensors& in) {
             const ts::Tensor c = centred(in[0]);
             return Tensors{in[2] + in[1] * (c * ts::pow(1e-5f + mean_square(c), -0.5f))};
           },
           ts::Op::layer_norm, 3},
          {[keep](const Tensors& in) {
             const ts::Tensor c = centred(in[0]);
             const ts::Tensor variance = ts::sum(c * c, -1, keep) / 5.0f;
             return Tensors{(1.0f / ts::sqrt(variance + 0.0f)) * c * in[1] + in[0]};
           },
           ts::Op::layer_norm, 2},
          {[](const Tensors& in) {
             const ts::Tensor e = ts::exp(in[0]);
             return Tensors{e / ts::sqrt(mean_square(e) + 1e-6f) * in[1],
                            in[0] / ts::sqrt(mean_square(in[0]) + 1e-6f) * in[1]};
           },
           ts::Op::rms_norm, 2},
          {[](const Tensors& in) { return Tensors{ts::layer_norm(in[0], in[1], {}) + in[2]}; },
           ts::Op::layer_norm, 3},
          {[keep](const Tensors& in) {  // a variance of n - 1
             const ts::Tensor c = centred(in[0]);
             const ts::Tensor variance = ts::sum(c * c, -1, keep) / 4.0f;
             return Tensors{c / ts::sqrt(variance + 1e-5f) * in[1] + in[2]};
           },
           ts::Op::rms_norm, 0},
          {[keep](const Tensors& in) {  // over columns
             const ts::Tensor c = in[0] - ts::mean(in[0], 1, keep);
             const ts::Tensor variance = ts::mean(ts::square(c), 1, keep);
             return Tensors{c / ts::sqrt(variance + 1e-5f) * in[1] + in[2]};
           },
           ts::Op::layer_norm, 0},
          {[](const Tensors& in) {  // the mean of each row, for each column
             const ts::Tensor x = ts::reshape(ts::slice(in[0], 0, 0, 1), {5, 5}),
                              c = x - ts::mean(x, -1);
             const ts::Tensor variance = ts::mean(ts::square(c), -1);
             return Tensors{c / ts::sqrt(variance + 1e-5f) * in[1] + in[2]};
           },
           ts::Op::layer_norm, 0},
          {[keep](const Tensors& in) {  // no gradient by the variance
             const ts::Tensor c = centred(in[0]);
             return Tensors{c / ts::sqrt(mean_square(c.detach()) + 1e-5f) * in[1] + in[2]};
           },
           ts::Op::layer_norm, 0},
          {[](const Tensors& in) {  // an epsilon below 0; a weight for each number
             const ts::Tensor c = centred(in[0]), wide = in[1] + in[0];
             return Tensors{c / ts::sqrt(mean_square(c) + -1e-5f) * in[1],
                            c / ts::sqrt(mean_square(c) + 1e-5f) * wide};
           },
           ts::Op::rms_norm, 0}};
}

}  // namespace

TEST_CASE("norms that are written out are found, with the values and gradients of their ops") {
  const std::vector<WrittenNorm> all = written_norms();
  for (std::size_t n = 0; n < all.size(); ++n) {
    CAPTURE(n);
    std::vector<float> eager;
    for (const bool whole : {false, true}) {
      const Tensors in = {ts::parameter(ts::randn({2, 5, 5}, 1)), ts::parameter(ts::randn({5}, 2)),
                          ts::parameter(ts::randn({5}, 3))};
      const ts::Compiled f = ts::compile(all[n].body);
      const Tensors out = whole ? f(in) : all[n].body(in);
      std::vector<float> numbers;
      ts::Tensor loss = ts::full({}, 0.0f);
      for (const ts::Tensor& y : out) {
        loss = loss + ts::sum(y * ts::randn(y.shape(), 4));
        const std::vector<float> values = y.values();
        numbers.insert(numbers.end(), values.begin(), values.end());
      }
      loss.backward();
      for (const ts::Tensor& x : in) {
        const std::vector<float> values = (x.grad().defined() ? x.grad() : x * 0.0f).values();
        numbers.insert(numbers.end(), values.begin(), values.end());
      }
      if (!whole) {
        eager = numbers;
        continue;
      }
      for (std::size_t i = 0; i < eager.size(); ++i) {
        CHECK(numbers[i] == doctest::Approx(eager[i]).epsilon(2e-5).scale(1));
      }
      std::size_t found = 0;
      for (const ts::GraphNode& node : f.graph().nodes) {
        if (node.op == ts::Op::layer_norm || node.op == ts::Op::rms_norm) {
          ++found;
          CHECK(node.op == all[n].op);
          CHECK(node.inputs.size() == all[n].operands);
        }
      }
      CHECK(found == (all[n].operands == 0 ? 0U : n == 3 ? 2U : 1U));
    }
  }
}

TEST_CASE("what is an operand of a written-out op and part of it hides no gradient") {
  const auto keep = ts::KeepDim::yes;
  const auto root = [](const ts::Tensor& squares) {
    return ts::sqrt(ts::mean(squares, -1, ts::KeepDim::yes) + 1e-5f);
  };
  const ts::Tensor k = ts::randn({1, 4, 4}, 3), w = ts::randn({4}, 5);
  const std::vector<ts::Compiled::Body> bodies = {
      [&](const Tensors& in) {  // the norm is its own weight
        const ts::Tensor x = ts::reshape(in[0], {4}), n = x / root(ts::square(x));
        return Tensors{n * n};
      },
      [&](const Tensors& in) {
        const ts::Tensor c = centred(ts::reshape(in[0], {4}));
        return Tensors{c / root(ts::square(c)) * c};
      },
      [&](const Tensors& in) {
        const ts::Tensor y = ts::layer_norm(ts::reshape(in[0], {4}), w, {});
        return Tensors{y + y};
      },
      [&](const Tensors& in) {
        const ts::Tensor x = ts::reshape(in[0], {4}), s = ts::square(x.detach());
        return Tensors{x / root(s) * s};
      },
      [&](const Tensors& in) {  // the norm is larger than x
        const ts::Tensor c = in[0] - ts::full({3, 1, 1}, 0.25f) * ts::sum(in[0], -1, keep);
        return Tensors{c / root(ts::square(c)) * w};
      },
      [&](const Tensors& in) {  // attention to itself
        const ts::Tensor x = in[0] * ts::reshape(w, {4, 1});
        const ts::Tensor scores = ts::matmul(ts::reshape(x, {1, 4, 4}), ts::transpose(k, 1, 2));
        const ts::Tensor p = ts::softmax(scores * 0.5f);
        return Tensors{ts::matmul(p, p) + ts::matmul(p, scores)};
      }};
  for (std::size_t n = 0; n < bodies.size(); ++n) {
    CAPTURE(n);
    const ts::Shape shape = n < 4 ? ts::Shape{1, 4} : n == 4 ? ts::Shape{2, 4} : ts::Shape{4, 4};
    std::vector<float> grads[2];
    ts::Shape shapes[2];
    for (const bool whole : {false, true}) {
      const ts::Tensor x = ts::parameter(ts::randn(shape, 1));
      const ts::Tensor y = (whole ? ts::compile(bodies[n])({x}) : bodies[n]({x}))[0];
      ts::sum(y * ts::randn(y.shape(), 2)).backward();
      grads[whole ? 1 : 0] = x.grad().values();
      shapes[whole ? 1 : 0] = y.shape();
    }
    CHECK(shapes[1] == shapes[0]);
    for (std::size_t i = 0; i < grads[0].size(); ++i) {
      CHECK(grads[1][i] == doctest::Approx(grads[0][i]).epsilon(2e-5).scale(1));
    }
  }
}

TEST_CASE("a graph that a backward pass has used is refused, also as part of a written-out op") {
  for (const bool softmax : {false, true}) {
    const auto body = [softmax](const Tensors& in) {
      const ts::Tensor x = in[0], e = ts::exp(x - ts::max(x, -1, ts::KeepDim::yes));
      const ts::Tensor part = softmax ? e : x / ts::sqrt(mean_square(x) + 1e-5f);
      ts::sum(part).backward();
      return Tensors{softmax ? part / ts::sum(part, -1, ts::KeepDim::yes) : part * in[1]};
    };
    for (const bool whole : {false, true}) {
      const Tensors in = {ts::parameter(ts::randn({2, 4}, 1)), ts::parameter(ts::randn({4}, 2))};
      CHECK_THROWS_WITH_AS(
          ts::sum((whole ? ts::compile(body)(in) : body(in))[0]).backward(),
          "backward: this graph was used before and is freed; run the forward pass again",
          ts::Error);
    }
  }
}

TEST_CASE("a parameter that reaches a function with backward() inside twice is refused") {
  using Tensors = std::vector<ts::Tensor>;
  const ts::Tensor w = ts::parameter(ts::tensor({2}, {1, 2}));
  const auto captured = [w](const Tensors& in) {
    const ts::Tensor loss = ts::sum(in[0] * w);
    loss.backward();
    return Tensors{loss.detach()};
  };
  CHECK(error_of([&] { ts::compile(captured)({w}); }) ==
        "Compiled: the function calls backward() inside, and input 0, [2], reaches it captured "
        "too; give it once, or call backward() on the result");
  const auto given = [](const Tensors& in) {
    const ts::Tensor loss = ts::sum(in[0] * in[1]);
    loss.backward();
    return Tensors{loss.detach()};
  };
  const ts::Tensor v = ts::parameter(ts::tensor({2}, {1, 2}));
  CHECK(error_of([&] {
          ts::compile(given)({v, v});
        }) ==
        "Compiled: the function calls backward() inside, and input 1, [2], reaches it as input 0 "
        "too; give it once, or call backward() on the result");
  CHECK(!v.grad().defined());
}

TEST_CASE("a compiled max of more numbers than f32 has places has the gradient of the eager one") {
  const std::int64_t n = (1 << 24) + 3;
  const ts::Tensor x = ts::parameter(ts::zeros({n, 1}));
  x.origin()[n - 1] = x.origin()[n - 2] = 2;  // the first of equal ones gets it
  const auto f = ts::compile([](const Tensors& in) { return Tensors{ts::max(in[0], 0)}; });
  for (int call = 0; call < 3; ++call) {
    x.zero_grad();
    const ts::Tensor top = f({x})[0];
    CHECK(top.item() == 2);
    ts::sum(top * 3).backward();
    const ts::Tensor slope = x.grad();
    CHECK(slope.origin()[n - 2] == 3);
    CHECK(std::count(slope.origin(), slope.origin() + n, 0.0f) == n - 1);
  }
}

TEST_CASE("attention without keys is zeros, eagerly, compiled, taken apart and by its gradient") {
  const ts::Compiled::Body body = [](const Tensors& in) {
    return Tensors{ts::attention(in[0], in[1], in[1], 2, 2, ts::Mask::none)};
  };
  const Tensors in = {ts::ones({2, 3, 8}), ts::ones({2, 0, 8})};
  const std::vector<float> zeros(48, 0.0f);
  CHECK(body(in)[0].values() == zeros);
  for (const ts::CompileOptions& options : both_ends()) {
    CHECK(ts::compile(body, options)(in)[0].values() == zeros);
  }
  const Tensors slopes =
      ts::grad([&](const Tensors& of) { return Tensors{ts::sum(body(of)[0])}; })(in);
  CHECK(slopes[0].values() == zeros);
}
