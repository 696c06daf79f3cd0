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
  of("sum", [](const Tensor& t) { return sum(t, 1, KeepDim::yes); });
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
  for (const std::int64_t window : {-1, 0, 2}) {  // -1: no mask
    cases.push_back(
        {"attention", {{{2, 3, 8}}, {{2, 3, 4}}, {{2, 3, 4}}}, [window](const Tensors& in) {
           return one(window < 0 ? attention(in[0], in[1], in[2], 4, 2, Mask::none)
                                 : attention(in[0], in[1], in[2], 4, 2, Mask::causal, window));
         }});
  }
  const Argument q = {{1, 2, 4}};
  for (const double window : {0.0, 1.0}) {
    cases.push_back(
        {"attention_backward", {q, q, q, q, {{1, 2, 2}}, q}, [window](const Tensors& in) {
           const Shape s = {1, 2, 4};
           return raw(Op::attention_backward, in, s, {2, 2, 1, window}, {s, s, s});
         }});
  }
  const Argument row = {{3}};
  cases.push_back(
      {"adamw", {row, row, row, positive({3}), positive({6}), positive({})}, [](const Tensors& in) {
         Tensors all = in;
         all[4] = in[4] * 0.4f;  // below 1
         return raw(Op::adamw, all, {3}, {}, {{3}, {3}, {3}, {}});
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
  CHECK(missing == "all_gather reduce_scatter all_reduce all_to_all shard ");
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

namespace {

// Squared error of a small network: w [3, 5], v [5], x [3], y [].
Tensors network(const Tensors& in) {
  const Tensor hidden = gelu(matmul(in[2], in[0]));
  return one(square(sum(hidden * in[1]) - in[3]));
}
Tensors network_inputs() {
  return {randn({3, 5}, 1), randn({5}, 2), randn({6, 3}, 3), randn({6}, 4)};
}

}  // namespace

TEST_CASE("vmap of grad: gradients of each example") {
  const Tensors in = network_inputs();
  const TensorFunction each = vmap(grad(network, {0, 1}), {-1, -1, 0, 0});
  const Tensors gradients = each(in);
  CHECK(gradients[0].shape() == Shape{6, 3, 5});
  CHECK(gradients[1].shape() == Shape{6, 5});
  check_close(gradients, loop(grad(network, {0, 1}), {-1, -1, 0, 0}, in, 6), 1e-5);
  const Compiled compiled = compile(each);
  check_close(compiled(in), gradients, 1e-5);
  check_close(compiled(in), gradients, 1e-5);
  check_close(compiled(in), gradients, 1e-5);
  CHECK(compiled.counters().hits == 1);

  // Their mean is the gradient of the mean.
  const TensorFunction whole = [](const Tensors& all) {
    return one(mean(vmap(network, {-1, -1, 0, 0})(all)[0]));
  };
  const Tensors together = grad(whole, {0, 1})(in);
  check_close(together, {mean(gradients[0], {0}), mean(gradients[1], {0})}, 1e-5);
  check_close(compile(grad(whole, {0, 1}))(in), together, 1e-5);
}

TEST_CASE("vmap of vmap") {
  const TensorFunction dots = [](const Tensors& in) { return one(dot(in[0], in[1])); };
  const TensorFunction all = vmap(vmap(dots, {-1, 0}), {0, -1});
  const Tensor a = randn({4, 3}, 1), b = randn({5, 3}, 2);
  const Tensors expected = one(matmul(a, transpose(b, 0, 1)));
  check_close(all({a, b}), expected, 1e-5);
  check_close(compile(all)({a, b}), expected, 1e-5);
  const Tensor many = randn({3, 2, 5}, 4);
  const Tensor twice = vmap(vmap(dots, {1, -1}), {2, 0})({many, b})[0];
  CHECK(twice.shape() == Shape{5, 2});
  CHECK(twice.at({4, 1}) ==
        doctest::Approx(double(dot(reshape(slice(slice(many, 2, 4, 5), 1, 1, 2).clone(), {3}),
                                   reshape(slice(b, 0, 4, 5), {3}))
                                   .item())));
}

TEST_CASE("Hessian, Hessian times a vector, third derivatives") {
  const TensorFunction f = [](const Tensors& in) { return one(sum(in[0] * exp(in[0])) * 0.5f); };
  const Tensor x = randn({4}, 5), v = randn({4}, 6);
  const Tensor e = exp(x);
  const Tensor second = 0.5f * (2.0f + x) * e, third = 0.5f * (3.0f + x) * e;
  const auto along = [&v](const TensorFunction& g) -> TensorFunction {
    return [g, &v](const Tensors& in) { return one(dot(g(in)[0], v)); };
  };
  const TensorFunction product = grad(along(grad(f)));
  check_close(product({x}), one(second * v), 1e-5);
  check_close(compile(product)({x}), one(second * v), 1e-5);
  check_close(grad(along(product))({x}), one(third * v * v), 1e-5);
  const Tensor diagonal = equal(reshape(arange(4), {4, 1}), arange(4));
  check_close(jacobian(grad(f))({x}), one(diagonal * second), 1e-5);
  check_close(compile(jacobian(grad(f)))({x}), one(diagonal * second), 1e-5);
  const TensorFunction hessian = jacobian(jacobian(f));
  check_close(hessian({x}), one(diagonal * second), 1e-5);
  const Tensor many = randn({3, 4}, 7);
  check_close(vmap(hessian)({many}), loop(hessian, {0}, {many}, 3), 1e-5);
}

TEST_CASE("vmap: results that depend on no example are repeated") {
  const Tensors y = vmap(
      [](const Tensors& in) {
        return Tensors{arange(2), in[1], in[0]};
      },
      {0, -1})({ones({3, 1}), full({2}, 2.0f)});
  check_close(y, {broadcast_to(arange(2), {3, 2}), full({3, 2}, 2.0f), ones({3, 1})}, 1e-6);
}

TEST_CASE("jacobian of a function of matrices") {
  const Tensor a = randn({2, 3}, 1), b = randn({3, 2}, 2);
  const TensorFunction f = [](const Tensors& in) { return one(matmul(in[0], in[1])); };
  const Tensor j = jacobian(f, 1)({a, b})[0];
  REQUIRE(j.shape() == Shape{2, 2, 3, 2});
  for (int m = 0; m < 2; ++m) {
    for (int n = 0; n < 2; ++n) {
      for (int k = 0; k < 3; ++k) {
        for (int l = 0; l < 2; ++l) {
          CHECK(j.at({m, n, k, l}) == (n == l ? a.at({m, k}) : 0.0f));
        }
      }
    }
  }
}

TEST_CASE("value_and_grad: all results, then gradients") {
  const TensorFunction f = [](const Tensors& in) {
    return Tensors{sum(in[0] * in[1]), in[0] + 1.0f, arange(2)};
  };
  const Tensor x = randn({3}, 1), y = randn({3}, 2);
  const Tensors all = value_and_grad(f, {1, 0})({x, y});
  check_close(all, {sum(x * y), x + 1.0f, arange(2), x, y}, 1e-6);
  check_close(compile(value_and_grad(f, {1, 0}))({x, y}), all, 1e-6);
  // Each gradient has numbers of its own.
  const Tensors both =
      grad([](const Tensors& in) { return one(sum(exp(in[0] + in[1]))); }, {0, 1})({x, y});
  fill_(both[0], 7.0f);
  check_close(one(both[1]), one(exp(x + y)), 1e-6);
  // Of one that it does not depend on: zeros.
  check_close(grad(f, {0, 2})({x, y, randn({2, 2}, 3)}), {y, zeros({2, 2})}, 1e-6);
}

TEST_CASE("transforms are pure") {
  const Tensor w = parameter(randn({3}, 1)), x = parameter(randn({3}, 2));
  const TensorFunction f = [&w](const Tensors& in) { return one(sum(square(in[0] * w))); };
  const Tensor expected = 2.0f * (x.detach() * square(w.detach()));
  {
    const NoGrad outside;  // does not reach into the function
    check_close(grad(f)({x}), one(expected), 1e-6);
  }
  const Tensor g = grad(f)({x})[0];
  CHECK_FALSE(g.requires_grad());
  CHECK_FALSE(vmap(grad(f))({broadcast_to(x, {2, 3})})[0].requires_grad());
  CHECK_FALSE(w.grad().defined());
  CHECK_FALSE(x.grad().defined());
  // A step that takes gradients both ways, compiled or not.
  const TensorFunction step = [&](const Tensors& in) {
    const Tensor loss = sum(square(w - in[0])) + sum(grad(f)(in)[0]);
    loss.backward();
    return one(loss.detach());
  };
  const Tensor eager = step({x.detach()})[0];
  const Tensor dw = w.grad();
  check_close(one(dw), one(2.0f * (w.detach() - x.detach())), 1e-6);
  w.zero_grad();
  check_close(compile(step)({x.detach()}), one(eager), 1e-6);
  check_close(one(w.grad()), one(dw), 1e-6);
}

TEST_CASE("vmap: gradients of backward flow through it") {
  const Tensor w = parameter(randn({3, 2}, 1)), x = randn({4, 3}, 2);
  const TensorFunction f = [&w](const Tensors& in) { return one(tanh(matmul(in[0], w))); };
  const TensorFunction step = [&](const Tensors& in) {
    const Tensor loss = sum(vmap(f)(in)[0]);
    loss.backward();
    return one(loss.detach());
  };
  sum(f({x})[0]).backward();
  const Tensor expected = w.grad();
  w.zero_grad();
  step({x});
  check_close(one(w.grad()), one(expected), 1e-6);
  w.zero_grad();
  compile(step)({x});
  check_close(one(w.grad()), one(expected), 1e-6);
}

TEST_CASE("detach() and NoGrad inside stop gradients of every order") {
  const Tensor x = randn({3}, 1);
  const TensorFunction half = [](const Tensors& in) { return one(sum(in[0] * in[0].detach())); };
  check_close(grad(half)({x}), one(x), 1e-6);
  const TensorFunction again = [&](const Tensors& in) { return one(sum(grad(half)(in)[0])); };
  check_close(grad(again)({x}), one(zeros({3})), 1e-6);
  check_close(compile(grad(again))({x}), one(zeros({3})), 1e-6);
  const Tensor many = randn({2, 3}, 2);
  check_close(grad([&](const Tensors& in) { return one(sum(vmap(half)(in)[0])); })({many}),
              one(many), 1e-6);
  const TensorFunction none = [](const Tensors& in) {
    const NoGrad no_gradient;
    return one(sum(in[0] * in[0]));
  };
  check_close(grad(none)({x}), one(zeros({3})), 1e-6);
  check_close(grad([](const Tensors& in) { return one(sum(in[0]).detach()); })({x}),
              one(zeros({3})), 1e-6);
}

TEST_CASE("mixed derivatives reach what an inner function captures") {
  const Tensor x = randn({3}, 1), y = randn({3}, 2);
  const TensorFunction outer = [&y](const Tensors& in) {
    const TensorFunction inner = [&in](const Tensors& own) {
      return one(sum(in[0] * in[0] * own[0] * own[0]));
    };
    return one(sum(grad(inner)({y})[0]));  // sum(2 x^2 y)
  };
  check_close(grad(outer)({x}), one(4.0f * x * y), 1e-6);
  const Tensor many = randn({2, 3}, 3);
  check_close(vmap(grad(outer))({many}), one(4.0f * many * y), 1e-6);
  check_close(compile(vmap(grad(outer)))({many}), one(4.0f * many * y), 1e-6);
  // vmap of a function inside of a function that is differentiated, captured x unbatched.
  const TensorFunction each = [&many](const Tensors& in) {
    const TensorFunction inner = [&in](const Tensors& own) { return one(dot(in[0], own[0])); };
    return one(sum(square(vmap(inner)({many})[0])));
  };
  const Tensor products = matmul(many, reshape(x, {3, 1}));
  check_close(grad(each)({x}), one(reshape(2.0f * matmul(transpose(many, 0, 1), products), {3})),
              1e-5);
}

TEST_CASE("a transformer block by example, compiled and not") {
  const Tensor w = randn({8, 8}, 1, 0.3f), table = randn({11, 8}, 2), scale = ones({8});
  const TensorFunction loss = [](const Tensors& in) {
    const Tensor tokens = in[3];
    Tensor x = reshape(embedding(in[1], tokens), {1, 4, 8});
    const Tensor h = matmul(rms_norm(x, in[2]), in[0]);
    x = x + attention(rope(h, 4, {0}), rope(h, 4, {0}), h, 2, 2, Mask::causal);
    x = x + silu(matmul(layer_norm(x, in[2], Tensor()), in[0]));
    return one(linear_cross_entropy(reshape(x, {4, 8}), in[1], tokens));
  };
  Tensor tokens = uniform({5, 4}, 3, 0.0f, 11.0f);
  for (std::int64_t i = 0; i < tokens.count(); ++i) {
    tokens.data()[i] = std::floor(tokens.data()[i]);
  }
  const List<int> dims = {-1, -1, -1, 0};
  const TensorFunction each = vmap(grad(loss, {0, 1, 2}), dims);
  const Tensors in = {w, table, scale, tokens};
  const Tensors expected = loop(grad(loss, {0, 1, 2}), dims, in, 5);
  check_close(each(in), expected, 2e-5);
  check_close(compile(each)(in), expected, 2e-5);
}

TEST_CASE("random draws under vmap are the same for each example") {
  const TensorFunction f = [](const Tensors& in) { return one(dropout(in[0], 0.5f, 3)); };
  const Tensor y = vmap(f)({ones({4, 16})})[0];
  check_close(one(y), one(broadcast_to(dropout(ones({16}), 0.5f, 3), {4, 16}).clone()), 1e-6);
}

TEST_CASE("a concat of more operands than a word has bits keeps every gradient") {
  const TensorFunction f = [](const Tensors& in) {
    Tensors parts;
    for (int i = 0; i < 40; ++i) {
      parts.push_back(i == 35 ? in[0] : full({1}, 1.0f));
    }
    return one(sum(concat(parts, 0) * arange(40)));
  };
  check_close(grad(f)({ones({1})}), one(full({1}, 35.0f)), 1e-6);
}

TEST_CASE("errors of grad") {
  const TensorFunction f = [](const Tensors& in) { return one(sum(in[0])); };
  const Tensor x = ones({3});
  CHECK(error_of([&] { grad(f, -1); }) ==
        "grad: the gradient for argument -1; they are counted from 0");
  CHECK(error_of([&] { grad(f, List<int>()); }) ==
        "grad: a gradient for no argument; name at least one");
  CHECK(error_of([&] {
          grad(f, 2)({x, x});
        }) == "grad: the gradient for argument 2 of a function that is given 2; 0 to 1 are right");
  CHECK(error_of([&] { grad(f)({}); }) ==
        "grad: the gradient for argument 0 of a function that is given no argument");
  CHECK(error_of([&] { grad(f)({Tensor()}); }) == "grad: argument 0 of 1 is an empty tensor");
  CHECK(error_of([&] { grad([](const Tensors& in) { return one(in[0]); })({x}); }) ==
        "grad: the first result of the function is [3]; one number is right: take its sum() or "
        "mean(), or jacobian(f)");
  CHECK(error_of([&] { grad([](const Tensors&) { return Tensors(); })({x}); }) ==
        "grad: the function returns no tensors; at least one is right");
  CHECK(error_of([&] { value_and_grad([](const Tensors&) { return one(Tensor()); })({x}); }) ==
        "value_and_grad: result 0 of the function is an empty tensor");
  CHECK(error_of([&] { grad(TensorFunction())({x}); }) ==
        "Function: there is nothing to call; give it a lambda or the name of a function");
  CHECK(error_of([&] {
          grad([](const Tensors& in) {
            sum(in[0]).backward();
            return one(sum(in[0]));
          })({x});
        }) ==
        "grad: backward() of a [] tensor inside the function; a transformed function has no "
        "parameters: take the gradient with grad(f)");
  CHECK(error_of([&] { jacobian(f, -1); }) ==
        "jacobian: the gradient for argument -1; they are counted from 0");
  CHECK(error_of([&] { jacobian(f, 1)({x}); }) ==
        "jacobian: the gradient for argument 1 of a function that is given 1; 0 is right");
  CHECK(error_of([&] {
          jacobian([](const Tensors& in) {
            return one(reshape(in[0], {1, 1, 1, 1, 2}));
          })({ones({1, 1, 1, 2})});
        }) ==
        "jacobian: a result [1, 1, 1, 1, 2] by an argument [1, 1, 1, 2]; at most 8 dims together "
        "are right");
}

TEST_CASE("errors of vmap") {
  const TensorFunction f = [](const Tensors& in) { return one(sum(in[0])); };
  const Tensor x = ones({3, 2});
  CHECK(error_of([&] {
          vmap(f, {0})({x, x});
        }) ==
        "vmap: 1 batch dimensions for 2 arguments; one each is right, -1 for an argument without "
        "a batch");
  CHECK(error_of([&] { vmap(f, {2})({x}); }) ==
        "vmap: batch dimension 2 of argument 0, [3, 2]; 0 to 1, or -1 for none, are right");
  CHECK(error_of([&] {
          vmap(f)({x, ones({})});
        }) == "vmap: batch dimension 0 of argument 1, []; -1 is right: it has no dimension");
  CHECK(error_of([&] {
          vmap(f, {0, 1})({x, x});
        }) ==
        "vmap: argument 0 is [3, 2] with 3 examples in dimension 0, argument 1 is [3, 2] with 2 "
        "in dimension 1; as many are right");
  CHECK(error_of([&] { vmap(f, {-1})({x}); }) ==
        "vmap: none of 1 arguments has a batch; at least one is right");
  CHECK(error_of([&] { vmap(f)({}); }) ==
        "vmap: none of 0 arguments has a batch; at least one is right");
  CHECK(error_of([&] { vmap(f)({Tensor()}); }) == "vmap: argument 0 of 1 is an empty tensor");
  CHECK(error_of([&] { vmap([](const Tensors&) { return Tensors(); })({x}); }) ==
        "vmap: the function returns no tensors; at least one is right");
  CHECK(
      error_of([&] {
        vmap([](const Tensors& in) { return one(reshape(in[0], {1, 1, 1, 1, 1, 1, 1, 2})); })({x});
      }) ==
      "vmap: reshape of the function has a [1, 1, 1, 1, 1, 1, 1, 2] tensor; at most 7 dims "
      "leave one for the batch");
  CHECK(error_of([&] {
          vmap([](const Tensors& in) { return raw(Op::all_reduce, in, in[0].shape(), {0}); })({x});
        }) ==
        "vmap: all_reduce of the function has no batching rule: it needs what other devices hold; "
        "map over the batch inside of each device");
  const TensorFunction look = [](const Tensors& in) { return one(embedding(in[0], in[1])); };
  CHECK(error_of([&] {
          vmap(look)({ones({2, 3, 1}), full({2, 1}, 3.0f)});
        }) == "embedding: id -1 at position 0 is outside the table's 6 rows");
  CHECK(error_of([&] {
          vmap(look)({broadcast_to(ones({1, 1}), {4097, 4096, 1}), ones({4097, 1})});
        }) ==
        "vmap: take of the function goes by number over 4097 x 4096 rows; at most 2^24 are right");
}

TEST_CASE("errors: numbers that are read, tensors that are written") {
  const Tensor x = ones({3, 2});
  const TensorFunction reads = [](const Tensors& in) {
    return one(sum(in[0]).item() > 0 ? sum(in[0]) : sum(in[0]) * 2.0f);
  };
  const std::string where = ":" + std::to_string(__LINE__ - 2) + " ";
  const std::string why =
      "reads a number of a tensor of 1 inside the function, where tensors have shapes and no "
      "numbers yet; choose with where(), or return the tensor and read it outside";
  CHECK(error_of([&] { grad(reads)({x}); }) == "grad: transform_test.cpp" + where + why);
  CHECK(error_of([&] { vmap(reads)({x}); }) == "vmap: transform_test.cpp" + where + why);
  CHECK(error_of([&] { vmap(grad(reads))({x}); }) == "grad: transform_test.cpp" + where + why);
  CHECK(error_of([&] { compile(grad(reads))({x}); }) == "grad: transform_test.cpp" + where + why);
  const TensorFunction writes = [](const Tensors& in) {
    const NoGrad no_gradient;
    return one(sum(add_(in[0], ones({2}))));
  };
  CHECK(error_of([&] { vmap(writes)({x}); }) ==
        "vmap: add_ writes to a [2] tensor inside the function; a transformed function computes "
        "its results from its arguments and changes nothing: use an op with a result of its own");
  Tensor state = zeros({2});
  const TensorFunction keeps = [&state](const Tensors& in) {
    copy_(state, in[0].detach());
    return one(sum(in[0]));
  };
  CHECK(error_of([&] { grad(keeps)({ones({2})}); }) ==
        "grad: copy_ writes to a [2] tensor inside the function; a transformed function computes "
        "its results from its arguments and changes nothing: use an op with a result of its own");
  Tensor leaked;
  const TensorFunction leaks = [&leaked](const Tensors& in) {
    leaked = in[0] * 2.0f;
    return one(sum(in[0]));
  };
  grad(leaks)({ones({2})});
  CHECK(error_of([&] { leaked.values("file.cpp", 1); }) ==
        "compile: file.cpp:1 reads a tensor of 2 numbers that was recorded in a call which is "
        "over; return it from the function");
  CHECK(error_of([&] {
          grad([&](const Tensors& in) { return one(dot(in[0], leaked)); })({ones({2})});
        }) ==
        "grad: the function uses a [2] tensor that was recorded in a call which is over; return "
        "it from the function that makes it");
  // What is not an argument may be read.
  const Tensor outside = full({}, 2.0f);
  const TensorFunction fine = [&](const Tensors& in) { return one(sum(in[0]) * outside.item()); };
  check_close(grad(fine)({ones({2})}), one(full({2}, 2.0f)), 1e-6);
}

TEST_CASE("vmap of grad and grad of vmap: every op against a loop") {
  for (const Case& one_case : all_cases()) {
    const std::string name = one_case.name;
    CAPTURE(name);
    const TensorFunction loss = loss_of(one_case);
    const List<int> smooth = smooth_arguments(one_case);
    List<int> dims;
    for (const Argument& argument : one_case.arguments) {
      dims.push_back(argument.shape.size() / 2);
    }
    const Tensors inputs = batched_inputs(one_case, dims, 3, 400);
    const TensorFunction each = vmap(grad(loss, smooth), dims);
    const Tensors expected = loop(grad(loss, smooth), dims, inputs, 3);
    check_close(each(inputs), expected, 1e-4);
    check_close(compile(each)(inputs), expected, 1e-4);
    const TensorFunction total = [&](const Tensors& in) {
      return one(sum(vmap(loss, dims)(in)[0]));
    };
    const Tensors gradients = grad(total, smooth)(inputs);
    Tensors leaves = inputs;
    for (const int argument : smooth) {
      leaves[std::size_t(argument)] = parameter(inputs[std::size_t(argument)]);
    }
    const Tensor value = total(leaves)[0];
    if (value.requires_grad()) {
      value.backward();
    }
    for (std::size_t i = 0; i < smooth.size(); ++i) {
      const auto at = std::size_t(smooth[i]);
      Tensors rows;
      for (std::int64_t b = 0; b < 3; ++b) {
        rows.push_back(squeeze(slice(expected[i], 0, b, b + 1), 0));
      }
      const Tensor joined = stack(rows, dims[at]);
      CHECK_LT(worst(gradients[i], joined), 1e-4);
      if (leaves[at].grad().defined()) {
        CHECK_LT(worst(leaves[at].grad(), joined), 1e-4);
      }
    }
  }
}

TEST_CASE("vmap: random shapes") {
  std::uint64_t seed = 1;
  const auto draw = [&seed](int end) { return int(uniform({1}, ++seed, 0.0f, float(end)).item()); };
  for (int round = 0; round < 60; ++round) {
    const int rank = 1 + draw(4);
    Shape shape;
    for (int d = 0; d < rank; ++d) {
      shape.push_back(1 + draw(3));
    }
    Shape narrow;  // fills the same: ones, and dimensions left out in front
    for (int d = draw(rank + 1); d < rank; ++d) {
      narrow.push_back(draw(2) == 0 ? 1 : shape[d]);
    }
    const int dim = draw(rank), other = draw(rank);
    Shape weights = {shape[-1], 2};
    const Case one_case = {"random", {{shape}, {narrow}, {weights}}, [=](const Tensors& in) {
                             const Tensor y = in[0] * in[1] + maximum(in[1], in[0]);
                             const Tensor turned = transpose(concat({y, in[0]}, dim), dim, other);
                             return Tensors{sum(turned, other),
                                            max(y, dim),
                                            reshape(turned, {turned.count()}),
                                            matmul(y, in[2]),
                                            pad(y, dim, 1, y.dim(dim) + 2),
                                            softmax(turned)};
                           }};
    List<int> dims;
    for (const Argument& argument : one_case.arguments) {
      dims.push_back(draw(argument.shape.size() + 2) - 1);
    }
    if (dims[0] < 0 && dims[1] < 0 && dims[2] < 0) {
      dims[0] = 0;
    }
    CAPTURE(round);
    const std::int64_t size = 1 + draw(4);
    const Tensors inputs = batched_inputs(one_case, dims, size, seed + 1000);
    const Tensors expected = loop(one_case.f, dims, inputs, size);
    check_close(vmap(one_case.f, dims)(inputs), expected, 2e-5);
    check_close(compile(vmap(one_case.f, dims))(inputs), expected, 2e-5);
  }
}

TEST_CASE("compiled graphs that transforms write") {
  const auto check = [](const TensorFunction& f, const Tensors& in) {
    check_close(compile(f)(in), f(in), 1e-6);
  };
  const Tensor x = randn({4}, 1);
  // A total, read beside what it sums.
  check(
      [](const Tensors& in) {
        const Tensor y = exp(in[0]);
        return one(y * (sum(y, 0, KeepDim::yes) * 0.5f) + y);
      },
      {x});
  // A copy of what lies in no even steps.
  check(
      [](const Tensors& in) {
        return one(reshape(permute(in[0], {1, 0, 2}), {4, 2}));
      },
      {randn({2, 2, 2}, 2)});
  // One number repeated, as a result.
  check([](const Tensors&) { return one(zeros({2, 3})); }, {x});
  // A parameter among more operands than a word has bits.
  const Tensor w = parameter(ones({1}));
  const TensorFunction step = [&w](const Tensors& in) {
    Tensors parts;
    for (int i = 0; i < 40; ++i) {
      parts.push_back(i == 35 ? w : ones({1}));
    }
    sum(concat(parts, 0)).backward();
    return in;
  };
  compile(step)({x});
  REQUIRE(w.grad().defined());
  check_close(one(w.grad()), one(ones({1})), 1e-6);
}
