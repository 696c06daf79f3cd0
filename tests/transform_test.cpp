// Transforms: every op's batching rule against a loop over examples, gradients against central
// differences and against backward(), and transforms of transforms.
#include <doctest/doctest.h>

#include <cmath>

#include "error_of.hpp"
#include "tinyscale.hpp"

using namespace tinyscale;
using Tensors = std::vector<Tensor>;

namespace {

// What numbers an argument holds: any, positive ones, whole ones from `least` to below `end`.
struct Argument {
  Shape shape;
  bool positive = false;
  int least = 0, end = 0;
};
Argument positive(const Shape& shape) { return {shape, true, 0, 0}; }
Argument ids(const Shape& shape, int end, int least = 0) { return {shape, false, least, end}; }

struct Case {
  const char* name;
  List<Argument> arguments;
  TensorFunction f;
  bool steps = false;  // its derivative is 0 or has steps: not compared with differences
};

Tensor numbers_for(const Argument& argument, const Shape& shape, std::uint64_t seed) {
  Tensor x = argument.end > argument.least
                 ? uniform(shape, seed, float(argument.least), float(argument.end))
             : argument.positive ? uniform(shape, seed, 0.6f, 2.0f)
                                 : randn(shape, seed);
  for (std::int64_t i = 0; argument.end > argument.least && i < x.count(); ++i) {
    x.data()[i] = std::floor(x.data()[i]);
  }
  return x;
}

// An op by its number, with all of its results: those that no public function gives.
Tensors raw(Op op, const Tensors& in, const Shape& shape, const List<double>& numbers,
            const List<Shape>& parts = List<Shape>()) {
  GraphNode call;
  call.op = op;
  call.shape = shape;
  call.numbers = numbers;
  return detail::apply_op(call, in, ~0U, parts);
}

Tensors one(const Tensor& y) { return {y}; }
Case unary(const char* name, Tensor (*f)(const Tensor&), bool of_positive = false) {
  return {name, {{{2, 3}, of_positive, 0, 0}}, [f](const Tensors& in) { return one(f(in[0])); }};
}
Case binary(const char* name, Tensor (*f)(const Tensor&, const Tensor&), const Shape& a,
            const Shape& b, bool steps = false) {
  return {name, {{a}, positive(b)}, [f](const Tensors& in) { return one(f(in[0], in[1])); }, steps};
}
Case product(const Shape& x, const Shape& w) { return binary("matmul", &matmul, x, w); }

List<Case> elementwise_cases() {
  List<Case> cases = {
      binary("add", &add, {2, 3}, {3}),
      binary("sub", &sub, {3}, {2, 3}),
      binary("mul", &mul, {2, 1}, {3}),
      binary("div", &div, {}, {2, 3}),
      binary("maximum", &maximum, {2, 3}, {3}),
      binary("less", &less, {2, 3}, {2, 3}, true),
      binary("equal", &equal, {2}, {}, true),
      unary("exp", &exp),
      unary("log", &log, true),
      unary("sqrt", &sqrt, true),
      unary("tanh", &tanh),
      unary("erf", &erf),
      unary("relu", &relu),
      unary("gelu", &gelu),
      unary("gelu_tanh", &gelu_tanh),
      unary("silu", &silu),
      unary("sigmoid", &sigmoid),
  };
  cases.push_back({"where", {ids({2, 1}, 2), {{3}}, {{2, 3}}}, [](const Tensors& in) {
                     return one(where(in[0], in[1], in[2]));
                   }});
  cases.push_back(
      {"pow", {positive({3})}, [](const Tensors& in) { return one(pow(in[0], 2.5f)); }});
  cases.push_back({"iota", {{{4}}}, [](const Tensors& in) { return one(in[0] * arange(4)); }});
  cases.push_back(
      {"dropout", {{{4, 5}}}, [](const Tensors& in) { return one(dropout(in[0], 0.4f, 7)); }});
  for (const Op op : {Op::square, Op::gelu_slope, Op::gelu_tanh_slope, Op::silu_slope, Op::round}) {
    const bool round = op == Op::round;
    cases.push_back({name_of(op),
                     {{{2, 3}}},
                     [op, round](const Tensors& in) {
                       return raw(op, in, in[0].shape(),
                                  round ? List<double>{double(int(DType::bf16))} : List<double>());
                     },
                     round});
  }
  return cases;
}

List<Case> shape_cases() {
  List<Case> cases = {product({2, 3}, {3, 4}),    product({3}, {3, 4}),
                      product({2, 2, 3}, {3, 4}), product({2, 2, 3}, {2, 3, 4}),
                      product({2, 3}, {2, 3, 4}), product({2, 1, 2, 3}, {3, 3, 2})};
  const Argument x = {{2, 3, 4}};
  const auto of = [&](const char* name, Tensor (*f)(const Tensor&), bool steps = false) {
    cases.push_back({name, {x}, [f](const Tensors& in) { return one(f(in[0])); }, steps});
  };
  of("sum", [](const Tensor& t) { return sum(t, {0, 2}); });
  of("sum", [](const Tensor& t) { return sum(t); });
  of("sum", [](const Tensor& t) { return sum(t, {1}, KeepDim::yes); });
  of("max", [](const Tensor& t) { return max(t, 1); });
  of(
      "argmax", [](const Tensor& t) { return argmax(t, 2, KeepDim::yes); }, true);
  of("reshape", [](const Tensor& t) { return reshape(permute(t, {1, 0, 2}), {6, 4}); });
  of("permute", [](const Tensor& t) { return permute(t, {2, 0, 1}); });
  of("slice", [](const Tensor& t) { return slice(t, 1, 0, 3, 2); });
  of("broadcast_to", [](const Tensor& t) { return broadcast_to(t, {2, 2, 3, 4}); });
  of("pad", [](const Tensor& t) { return pad(t, 1, 1, 7, 2); });
  of("softmax", [](const Tensor& t) { return softmax(t); });
  of("log_softmax", [](const Tensor& t) { return log_softmax(t); });
  cases.push_back({"concat", {{{2, 3}}, {{2, 1}}}, [](const Tensors& in) {
                     return one(concat({in[0], in[1], in[0]}, 1));
                   }});
  cases.push_back({"take", {{{5, 3}}, ids({2, 2}, 5)}, [](const Tensors& in) {
                     return one(embedding(in[0], in[1]));
                   }});
  cases.push_back({"scatter_add", {ids({4}, 3), {{4, 2}}}, [](const Tensors& in) {
                     return raw(Op::scatter_add, in, {3, 2}, {3});
                   }});
  cases.push_back({"scatter_add", {{{3, 2}}, {{2, 2}}}, [](const Tensors& in) {
                     return one(scatter_add(in[0], 0, {2, 0, 2, 1}, in[1]));
                   }});
  return cases;
}

List<Case> composite_cases() {
  List<Case> cases;
  cases.push_back({"layer_norm", {{{2, 4}}, positive({4}), {{4}}}, [](const Tensors& in) {
                     return one(layer_norm(in[0], in[1], in[2]));
                   }});
  cases.push_back({"layer_norm", {{{4}}, positive({4})}, [](const Tensors& in) {
                     return one(layer_norm(in[0], in[1], Tensor()));
                   }});
  cases.push_back({"rms_norm", {{{2, 4}}, positive({4})}, [](const Tensors& in) {
                     return one(rms_norm(in[0], in[1]));
                   }});
  cases.push_back({"layer_norm", {{{2, 4}}, positive({4}), {{4}}}, [](const Tensors& in) {
                     return raw(Op::layer_norm, in, {2, 4}, {1e-5}, {{2, 4}, {2}, {2}});
                   }});
  cases.push_back({"rms_norm", {{{3, 4}}, positive({4})}, [](const Tensors& in) {
                     return raw(Op::rms_norm, in, {3, 4}, {1e-5}, {{3, 4}, {3}});
                   }});
  cases.push_back({"layer_norm_backward",
                   {{{2, 4}}, positive({4}), {{2}}, positive({2}), {{2, 4}}},
                   [](const Tensors& in) {
                     return raw(Op::layer_norm_backward, in, {2, 4}, {}, {{2, 4}, {4}, {4}});
                   }});
  cases.push_back({"rms_norm_backward",
                   {{{2, 4}}, positive({4}), positive({2}), {{2, 4}}},
                   [](const Tensors& in) {
                     return raw(Op::rms_norm_backward, in, {2, 4}, {}, {{2, 4}, {4}});
                   }});
  cases.push_back({"cross_entropy", {{{3, 5}}, ids({3}, 5, -1)}, [](const Tensors& in) {
                     return one(cross_entropy(in[0], in[1]));
                   }});
  cases.push_back({"cross_entropy_backward", {{{3, 5}}, ids({3}, 5), {{}}}, [](const Tensors& in) {
                     return raw(Op::cross_entropy_backward, in, {3, 5}, {});
                   }});
  cases.push_back(
      {"linear_cross_entropy", {{{3, 2}}, {{5, 2}}, ids({3}, 5, -1)}, [](const Tensors& in) {
         return one(linear_cross_entropy(in[0], in[1], in[2]));
       }});
  cases.push_back(
      {"linear_cross_entropy_all", {{{3, 2}}, {{5, 2}}, ids({3}, 5)}, [](const Tensors& in) {
         return raw(Op::linear_cross_entropy_all, in, {}, {}, {{}, {3, 2}, {5, 2}});
       }});
  for (const RopePairs pairs : {RopePairs::halves, RopePairs::interleaved}) {
    cases.push_back({"rope", {{{2, 3, 8}}}, [pairs](const Tensors& in) {
                       return one(rope(in[0], 4, {5}, 10000.0f, pairs));
                     }});
  }
  for (const Mask mask : {Mask::none, Mask::causal}) {
    cases.push_back(
        {"attention", {{{2, 3, 8}}, {{2, 3, 4}}, {{2, 3, 4}}}, [mask](const Tensors& in) {
           return one(attention(in[0], in[1], in[2], 4, 2, mask));
         }});
  }
  const Argument q = {{1, 2, 4}};
  cases.push_back({"attention_backward", {q, q, q, q, {{1, 2, 2}}, q}, [](const Tensors& in) {
                     const Shape s = {1, 2, 4};
                     return raw(Op::attention_backward, in, s, {2, 2, 1}, {s, s, s});
                   }});
  const Argument row = {{3}};
  cases.push_back(
      {"adamw", {row, row, row, positive({3}), positive({6}), positive({})}, [](const Tensors& in) {
         Tensors all = in;
         all[4] = in[4] * 0.4f;  // below 1
         return raw(Op::adamw, all, {3}, {}, {{3}, {3}, {3}});
       }});
  return cases;
}

List<Case> all_cases() {
  List<Case> all = elementwise_cases();
  for (const Case& one_more : shape_cases()) {
    all.push_back(one_more);
  }
  for (const Case& one_more : composite_cases()) {
    all.push_back(one_more);
  }
  return all;
}

Tensors inputs_of(const Case& one_case, std::uint64_t seed) {
  Tensors inputs;
  for (const Argument& argument : one_case.arguments) {
    inputs.push_back(numbers_for(argument, argument.shape, seed + inputs.size()));
  }
  return inputs;
}

// The largest difference beside 1 or the number itself.
double worst(const Tensor& a, const Tensor& b) {
  REQUIRE(a.shape() == b.shape());
  const std::vector<float> x = a.values(), y = b.values();
  double most = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double error = std::fabs(double(x[i]) - double(y[i])) / (1 + std::fabs(double(y[i])));
    most = error > most || std::isnan(error) ? error : most;
  }
  return most;
}
void check_close(const Tensors& a, const Tensors& b, double within) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    CHECK_LT(worst(a[i], b[i]), within);
  }
}

// f of each example, one after another, joined.
Tensors loop(const TensorFunction& f, const List<int>& dims, const Tensors& inputs,
             std::int64_t size) {
  List<Tensors> results;
  for (std::int64_t b = 0; b < size; ++b) {
    Tensors one_example;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      one_example.push_back(
          dims[i] < 0 ? inputs[i] : squeeze(slice(inputs[i], dims[i], b, b + 1), dims[i]).clone());
    }
    results.push_back(f(one_example));
  }
  Tensors joined;
  for (std::size_t r = 0; r < results[0].size(); ++r) {
    Tensors parts;
    for (const Tensors& result : results) {
      parts.push_back(result[r]);
    }
    joined.push_back(stack(parts, 0));
  }
  return joined;
}

// Inputs with a batch where dims says so.
Tensors batched_inputs(const Case& one_case, const List<int>& dims, std::int64_t size,
                       std::uint64_t seed) {
  Tensors inputs;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    const Argument& argument = one_case.arguments[i];
    Shape shape;
    for (int d = 0; d <= argument.shape.size(); ++d) {
      if (d == dims[i]) {
        shape.push_back(size);
      }
      if (d < argument.shape.size()) {
        shape.push_back(argument.shape[d]);
      }
    }
    inputs.push_back(numbers_for(argument, shape, seed + i));
  }
  return inputs;
}

// sum(w y^2) of all results: its derivatives of every order go through every op.
TensorFunction loss_of(const Case& one_case) {
  return [&one_case](const Tensors& in) {
    Tensor total;
    std::uint64_t seed = 50;
    for (const Tensor& y : one_case.f(in)) {
      const Tensor term = sum(randn(y.shape(), ++seed) * (y * y));
      total = total.defined() ? total + term : term;
    }
    return one(total);
  };
}
List<int> smooth_arguments(const Case& one_case) {
  List<int> smooth;
  for (std::size_t i = 0; i < one_case.arguments.size(); ++i) {
    if (one_case.arguments[i].end == one_case.arguments[i].least) {
      smooth.push_back(int(i));
    }
  }
  return smooth;
}

// (f(x + h v) - f(x - h v)) / 2h of a function whose first result is one number, along v.
double difference(const TensorFunction& f, Tensors inputs, std::size_t argument, const Tensor& v) {
  const float h = 4e-3f;
  const Tensor x = inputs[argument];
  inputs[argument] = x + v * h;
  const double up = double(f(inputs)[0].item());
  inputs[argument] = x + v * -h;
  return (up - double(f(inputs)[0].item())) / (2 * double(h));
}

Tensor dot(const Tensor& a, const Tensor& b) { return sum(a * b); }

}  // namespace

TEST_CASE("vmap: every op's rule is a loop over examples") {
  std::uint64_t seed = 1000;
  for (const Case& one_case : all_cases()) {
    const std::string name = one_case.name;
    CAPTURE(name);
    const std::size_t n = one_case.arguments.size();
    for (unsigned which = 1; which<1U << n; which += n> 4 ? 7 : 1) {
      List<int> dims;
      for (std::size_t i = 0; i < n; ++i) {
        const auto places = std::uint64_t(one_case.arguments[i].shape.size() + 1);
        dims.push_back((which >> i & 1U) != 0 ? int(++seed * 2654435761U / 64 % places) : -1);
      }
      CAPTURE(Tensor(tensor({int(n)}, std::vector<float>(dims.begin(), dims.end()))));
      for (const std::int64_t size : {3, 1}) {
        const Tensors inputs = batched_inputs(one_case, dims, size, seed += 20);
        const Tensors expected = loop(one_case.f, dims, inputs, size);
        check_close(vmap(one_case.f, dims)(inputs), expected, 2e-5);
        if (size == 3 && which + 1 == 1U << n) {
          check_close(compile(vmap(one_case.f, dims))(inputs), expected, 2e-5);
        }
      }
    }
  }
}

TEST_CASE("vmap: the rules cover the op set") {
  List<char> seen(op_set().size());
  for (const Case& one_case : all_cases()) {
    detail::Trace trace("test");
    List<Shape> shapes;
    for (const Argument& argument : one_case.arguments) {
      shapes.push_back(argument.shape);
    }
    trace.run(one_case.f, shapes);
    for (const GraphNode& node : trace.graph.nodes) {
      seen[std::size_t(node.op)] = 1;
    }
    for (const GraphNode& node : take_apart(trace.graph).nodes) {
      seen[std::size_t(node.op)] = 1;
    }
  }
  std::string missing;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    missing += seen[i] != 0 ? "" : std::string(op_set()[i].name) + " ";
  }
  CHECK(missing == "all_gather reduce_scatter all_reduce all_to_all ");
}

TEST_CASE("vmap: an empty batch") {
  for (const Case& one_case : all_cases()) {
    const std::string name = one_case.name;
    CAPTURE(name);
    List<int> dims;
    for (std::size_t i = 0; i < one_case.arguments.size(); ++i) {
      dims.push_back(0);
    }
    const Tensors one_example = one_case.f(inputs_of(one_case, 3));
    const Tensors none = vmap(one_case.f)(batched_inputs(one_case, dims, 0, 3));
    REQUIRE(none.size() == one_example.size());
    for (std::size_t i = 0; i < none.size(); ++i) {
      Shape shape = {0};
      for (const std::int64_t size : one_example[i].shape()) {
        shape.push_back(size);
      }
      CHECK(none[i].shape() == shape);
    }
  }
}

TEST_CASE("grad: every op against differences and backward") {
  for (const Case& one_case : all_cases()) {
    const std::string name = one_case.name;
    CAPTURE(name);
    const TensorFunction loss = loss_of(one_case);
    const List<int> smooth = smooth_arguments(one_case);
    const Tensors inputs = inputs_of(one_case, 11);
    const Tensors gradients = grad(loss, smooth)(inputs);
    check_close(compile(grad(loss, smooth))(inputs), gradients, 5e-5);
    Tensors leaves = inputs;
    for (const int argument : smooth) {
      leaves[std::size_t(argument)] = parameter(inputs[std::size_t(argument)]);
    }
    const Tensor value = loss(leaves)[0];
    if (value.requires_grad()) {
      value.backward();
    }
    for (std::size_t i = 0; i < smooth.size(); ++i) {
      CAPTURE(smooth[i]);
      const auto at = std::size_t(smooth[i]);
      const Tensor from_backward = leaves[at].grad();
      CHECK_LT(
          worst(gradients[i], from_backward.defined() ? from_backward : zeros(inputs[at].shape())),
          5e-5);
      if (!one_case.steps) {
        const Tensor v = randn(inputs[at].shape(), 70 + at);
        const double along = double(dot(gradients[i], v).item());
        CHECK(along == doctest::Approx(difference(loss, inputs, at, v)).epsilon(0.02));
      }
    }
  }
}

TEST_CASE("grad of grad: every op against differences of gradients") {
  for (const Case& one_case : all_cases()) {
    if (one_case.steps) {
      continue;
    }
    const std::string name = one_case.name;
    CAPTURE(name);
    const TensorFunction loss = loss_of(one_case);
    const List<int> smooth = smooth_arguments(one_case);
    const Tensors inputs = inputs_of(one_case, 23);
    for (const int of : smooth) {
      const Tensor u = randn(inputs[std::size_t(of)].shape(), 81);
      const TensorFunction slope = [&](const Tensors& in) {
        return one(dot(grad(loss, of)(in)[0], u));
      };
      const Tensors again = grad(slope, smooth)(inputs);
      check_close(compile(grad(slope, smooth))(inputs), again, 2e-4);
      for (std::size_t i = 0; i < smooth.size(); ++i) {
        CAPTURE(of);
        CAPTURE(smooth[i]);
        const auto at = std::size_t(smooth[i]);
        const Tensor v = randn(inputs[at].shape(), 90 + at);
        const double along = double(dot(again[i], v).item());
        CHECK(along == doctest::Approx(difference(slope, inputs, at, v)).epsilon(0.03).scale(1));
      }
    }
  }
}
