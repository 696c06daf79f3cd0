#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "error_of.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

using Inputs = std::vector<ts::Tensor>;
using Function = std::function<ts::Tensor(const Inputs&)>;

// An op, inputs that suit it, and whether it is a primitive with a gradient.
struct Op {
  std::string name;
  Function run;
  std::vector<ts::Shape> shapes;
};

const std::vector<std::int32_t> some_ids = {2, 0, 2, 1};

const std::vector<Op>& ops() {
  using I = const Inputs&;
  static const std::vector<Op> all = {
      {"add", [](I x) { return x[0] + x[1]; }, {{3, 4}, {3, 4}}},
      {"add repeated", [](I x) { return x[0] + x[1]; }, {{2, 3, 4}, {3, 1}}},
      {"add number", [](I x) { return x[0] + 2.0f; }, {{3, 4}}},
      {"sub", [](I x) { return x[0] - x[1]; }, {{3, 4}, {4}}},
      {"mul", [](I x) { return x[0] * x[1]; }, {{3, 1, 4}, {2, 1}}},
      {"div", [](I x) { return x[0] / x[1]; }, {{3, 4}, {3, 1}}},
      {"scale", [](I x) { return ts::scale(x[0], 3.0f); }, {{3, 4}}},
      {"neg", [](I x) { return -x[0]; }, {{3, 4}}},
      {"gelu", [](I x) { return ts::gelu(x[0]); }, {{3, 4}}},
      {"gelu_tanh", [](I x) { return ts::gelu_tanh(x[0]); }, {{3, 4}}},
      {"silu", [](I x) { return ts::silu(x[0]); }, {{3, 4}}},
      {"relu", [](I x) { return ts::relu(x[0]); }, {{3, 4}}},
      {"tanh", [](I x) { return ts::tanh(x[0]); }, {{3, 4}}},
      {"erf", [](I x) { return ts::erf(x[0]); }, {{3, 4}}},
      {"sigmoid", [](I x) { return ts::sigmoid(x[0]); }, {{3, 4}}},
      {"exp", [](I x) { return ts::exp(x[0]); }, {{3, 4}}},
      {"log", [](I x) { return ts::log(x[0]); }, {{3, 4}}},
      {"sqrt", [](I x) { return ts::sqrt(x[0]); }, {{3, 4}}},
      {"abs", [](I x) { return ts::abs(x[0] - 0.9f); }, {{3, 4}}},
      {"square", [](I x) { return ts::square(x[0]); }, {{3, 4}}},
      {"pow", [](I x) { return ts::pow(x[0], 1.5f); }, {{3, 4}}},
      {"maximum", [](I x) { return ts::maximum(x[0], x[1]); }, {{3, 4}, {3, 4}}},
      {"minimum", [](I x) { return ts::minimum(x[0], x[1]); }, {{3, 4}, {4}}},
      {"clamp", [](I x) { return ts::clamp(x[0], 0.7f, 1.1f); }, {{3, 4}}},
      {"where", [](I x) { return ts::where(ts::less(x[0], x[1]), x[0], x[1]); }, {{3, 4}, {3, 1}}},
      {"masked_fill",
       [](I x) { return ts::masked_fill(x[0], ts::greater(x[0], ts::full({}, 1.0f)), 5.0f); },
       {{3, 4}}},
      {"sum", [](I x) { return ts::sum(x[0]); }, {{3, 4}}},
      {"sum of a dim", [](I x) { return ts::sum(x[0], 0); }, {{3, 4}}},
      {"sum of two dims",
       [](I x) {
         return ts::sum(x[0], {0, -1}, ts::KeepDim::yes);
       },
       {{2, 3, 4}}},
      {"mean", [](I x) { return ts::mean(x[0]); }, {{3, 4}}},
      {"mean of a dim", [](I x) { return ts::mean(x[0], {1}); }, {{3, 4}}},
      {"max", [](I x) { return ts::max(x[0], 1); }, {{3, 4}}},
      {"max of the first dim", [](I x) { return ts::max(x[0], 0, ts::KeepDim::yes); }, {{3, 4, 2}}},
      {"softmax", [](I x) { return ts::softmax(x[0]); }, {{3, 4}}},
      {"log_softmax", [](I x) { return ts::log_softmax(x[0]); }, {{3, 4}}},
      {"layer_norm", [](I x) { return ts::layer_norm(x[0], x[1], x[2]); }, {{3, 4}, {4}, {4}}},
      {"rms_norm", [](I x) { return ts::rms_norm(x[0], x[1]); }, {{3, 4}, {4}}},
      {"dropout", [](I x) { return ts::dropout(x[0], 0.5f, 7); }, {{3, 4}}},
      {"matmul", [](I x) { return ts::matmul(x[0], x[1]); }, {{3, 4}, {4, 5}}},
      {"matmul of three dims", [](I x) { return ts::matmul(x[0], x[1]); }, {{2, 3, 4}, {4, 5}}},
      {"matmul batched", [](I x) { return ts::matmul(x[0], x[1]); }, {{2, 1, 3, 4}, {3, 4, 2}}},
      {"matmul of one by many", [](I x) { return ts::matmul(x[0], x[1]); }, {{3, 4}, {2, 4, 2}}},
      {"matmul_transposed",
       [](I x) { return ts::matmul_transposed(x[0], x[1]); },
       {{3, 4}, {5, 4}}},
      {"linear", [](I x) { return ts::linear(x[0], x[1], x[2]); }, {{2, 3, 4}, {5, 4}, {5}}},
      {"einsum",
       [](I x) { return ts::einsum("bthd,bshd->bhts", x[0], x[1]); },
       {{2, 3, 2, 4}, {2, 5, 2, 4}}},
      {"einsum that sums a letter of one",
       [](I x) { return ts::einsum("ijk,jl->li", x[0], x[1]); },
       {{2, 3, 4}, {3, 5}}},
      {"reshape",
       [](I x) {
         return ts::reshape(x[0], {2, 6});
       },
       {{3, 4}}},
      {"reshape to what is left",
       [](I x) {
         return ts::reshape(x[0], {2, -1, 3});
       },
       {{3, 4}}},
      {"permute",
       [](I x) {
         return ts::permute(x[0], {2, 0, 1});
       },
       {{2, 3, 4}}},
      {"transpose", [](I x) { return ts::transpose(x[0], 0, -1); }, {{2, 3, 4}}},
      {"slice", [](I x) { return ts::slice(x[0], 1, 1, 3); }, {{3, 4}}},
      {"slice in steps", [](I x) { return ts::slice(x[0], 1, 0, 4, 2); }, {{3, 4}}},
      {"broadcast_to",
       [](I x) {
         return ts::broadcast_to(x[0], {2, 3, 4});
       },
       {{3, 1}}},
      {"unsqueeze", [](I x) { return ts::unsqueeze(x[0], 1); }, {{3, 4}}},
      {"squeeze", [](I x) { return ts::squeeze(x[0], 1); }, {{3, 1, 4}}},
      {"split", [](I x) { return ts::concat(ts::split(x[0], 2, 1), 0); }, {{3, 4}}},
      {"concat",
       [](I x) {
         return ts::concat({x[0], x[1]}, 1);
       },
       {{3, 4}, {3, 2}}},
      {"stack",
       [](I x) {
         return ts::stack({x[0], x[1]}, -1);
       },
       {{3, 4}, {3, 4}}},
      {"copy", [](I x) { return ts::copy(x[0]); }, {{3, 4}}},
      {"pad", [](I x) { return ts::pad(x[0], 0, 1, 5); }, {{3, 4}}},
      {"pad in steps", [](I x) { return ts::pad(x[0], -1, 1, 9, 2); }, {{3, 4}}},
      {"embedding",
       [](I x) {
         return ts::embedding(x[0], some_ids, {2, 2});
       },
       {{3, 4}}},
      {"index_select", [](I x) { return ts::index_select(x[0], 1, some_ids); }, {{3, 4}}},
      {"gather",
       [](I x) {
         return ts::gather(x[0], 1, some_ids, {2, 2});
       },
       {{3, 4}}},
      {"scatter_add",
       [](I x) { return ts::scatter_add(x[0], 1, some_ids, x[1]); },
       {{3, 4}, {2, 2}}},
      {"cross_entropy",
       [](I x) {
         return ts::cross_entropy(x[0], {2, -1, 0});
       },
       {{3, 4}}},
      {"linear_cross_entropy",
       [](I x) {
         return ts::linear_cross_entropy(x[0], x[1], {2, -1, 0});
       },
       {{3, 4}, {5, 4}}},
      {"rope", [](I x) { return ts::rope(x[0], 4, 3); }, {{2, 3, 8}}},
      {"attention",
       [](I x) { return ts::attention(x[0], x[1], x[2], 2, 1, ts::Mask::causal); },
       {{2, 3, 8}, {2, 5, 4}, {2, 5, 4}}},
      {"attention of one tensor",
       [](I x) { return ts::attention(x[0], x[0], x[0], 2, 2, ts::Mask::causal); },
       {{1, 20, 6}}},
  };
  return all;
}

// Numbers from 0.5 to 1.5: log, sqrt and div are smooth there.
Inputs inputs_of(const Op& op) {
  Inputs inputs;
  for (std::size_t i = 0; i < op.shapes.size(); ++i) {
    inputs.push_back(ts::uniform(op.shapes[i], 10 + i, 0.5f, 1.5f));
  }
  return inputs;
}

// The same numbers as a view: reversed order of dims in memory, every second column, an offset.
ts::Tensor as_view(const ts::Tensor& x) {
  if (x.dims() == 0) {
    return x;
  }
  ts::List<int> order;
  for (int i = x.dims() - 1; i >= 0; --i) {
    order.push_back(i);
  }
  ts::Shape wide = ts::permute(x, order).shape();
  const std::int64_t n = wide[0];
  wide.set(0, 2 * n + 1);
  const ts::Tensor memory = ts::full(wide, std::numeric_limits<float>::quiet_NaN());
  const ts::Tensor view = ts::permute(ts::slice(memory, 0, 1, 2 * n + 1, 2), order);
  ts::copy_(view, x);
  return view;
}

ts::Tensor weighed(const ts::Tensor& y) {
  return ts::sum(y * ts::uniform(y.shape(), 99, 0.5f, 1.5f));
}

void check_close(const ts::Tensor& a, const ts::Tensor& b) {
  REQUIRE(a.shape() == b.shape());
  const std::vector<float> va = a.values();
  const std::vector<float> vb = b.values();
  for (std::size_t i = 0; i < va.size(); ++i) {
    CAPTURE(i);
    CHECK(static_cast<double>(va[i]) == doctest::Approx(static_cast<double>(vb[i])).epsilon(2e-6));
  }
}

}  // namespace

TEST_CASE("every op gives the same for a view as for a copy, and the same gradient") {
  int strided = 0;
  for (const Op& op : ops()) {
    CAPTURE(op.name);
    const Inputs dense = inputs_of(op);
    Inputs leaves, turned, views, plain;
    for (const ts::Tensor& x : dense) {
      views.push_back(as_view(x));
      strided += views.back().is_contiguous() ? 0 : 1;
      plain.push_back(ts::parameter(x));
      // A view of a parameter: turned in memory, turned back by permute.
      ts::List<int> order;
      for (int i = x.dims() - 1; i >= 0; --i) {
        order.push_back(i);
      }
      leaves.push_back(ts::parameter(ts::permute(x, order)));
      turned.push_back(ts::permute(leaves.back(), order));
    }
    const ts::Tensor right = op.run(dense);
    check_close(op.run(views), right);
    weighed(op.run(plain)).backward();
    weighed(op.run(turned)).backward();
    for (std::size_t i = 0; i < dense.size(); ++i) {
      CAPTURE(i);
      REQUIRE(plain[i].grad().defined());
      ts::List<int> order;
      for (int d = dense[i].dims() - 1; d >= 0; --d) {
        order.push_back(d);
      }
      check_close(ts::permute(leaves[i].grad(), order), plain[i].grad());
    }
  }
  CHECK(strided > 70);
}

TEST_CASE("the gradient of every op is the difference quotient") {
  for (const Op& op : ops()) {
    CAPTURE(op.name);
    Inputs inputs;
    for (const ts::Tensor& x : inputs_of(op)) {
      inputs.push_back(ts::parameter(x));
    }
    weighed(op.run(inputs)).backward();
    for (ts::Tensor& x : inputs) {
      for (std::int64_t i = 0; i < x.count(); i += 3) {
        CAPTURE(i);
        const float h = 2e-3f;
        const float before = x.data()[i];
        x.data()[i] = before + h;
        const double up = static_cast<double>(weighed(op.run(inputs)).item());
        x.data()[i] = before - h;
        const double down = static_cast<double>(weighed(op.run(inputs)).item());
        x.data()[i] = before;
        CHECK(static_cast<double>(x.grad().data()[i]) ==
              doctest::Approx((up - down) / (2 * static_cast<double>(h))).epsilon(0.02).scale(1));
      }
    }
  }
}

TEST_CASE("every op refuses a tensor that was never made") {
  for (const Op& op : ops()) {
    CAPTURE(op.name);
    CHECK_THROWS_AS(op.run(Inputs(op.shapes.size())), ts::Error);
  }
}

TEST_CASE("every op takes dims of size 0, or says why not") {
  for (const Op& op : ops()) {
    CAPTURE(op.name);
    for (int dim = 0; dim < 4; ++dim) {
      Inputs inputs;
      for (const ts::Shape& shape : op.shapes) {
        ts::Shape empty = shape;
        if (dim < shape.size()) {
          empty.set(dim, 0);
        }
        inputs.push_back(ts::parameter(ts::zeros(empty)));
      }
      const std::string said = error_of([&] {
        const ts::Tensor y = op.run(inputs);
        if (y.count() == 1) {
          y.backward();
        } else {
          ts::sum(y).backward();
        }
      });
      CHECK((said == "no error" || said.size() > 20));
    }
  }
}

TEST_CASE("no op hides a NaN") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Op& op : ops()) {
    if (op.name == "embedding" || op.name == "where" || op.name == "slice" || op.name == "split") {
      continue;  // they choose
    }
    CAPTURE(op.name);
    for (const float sign : {1.0f, -1.0f}) {  // arithmetic of x86 makes negative ones
      Inputs inputs = inputs_of(op);
      inputs[0].data()[2] = std::copysign(nan, sign);
      const std::vector<float> y = op.run(inputs).values();
      bool seen = false;
      for (const float v : y) {
        seen = seen || std::isnan(v);
      }
      const bool masked = op.name == "relu" || op.name == "dropout" || op.name == "gather";
      CHECK((seen || masked));
    }
  }
}

TEST_CASE("the primitives are at most 50") {
  std::set<std::string> names = {"less", "equal", "argmax"};  // they carry no gradient
  std::vector<Op> all_ops = ops();
  // No difference quotient gives its gradient: tests/expert_test.cpp.
  all_ops.push_back(
      {"carry_loss", [](const Inputs& x) { return ts::carry_loss(x[0], x[1]); }, {{3, 4}, {1}}});
  for (const Op& op : all_ops) {
    Inputs inputs;
    for (const ts::Tensor& x : inputs_of(op)) {
      inputs.push_back(ts::parameter(x));
    }
    std::vector<ts::detail::Slot> open = {op.run(inputs).slot()};
    while (!open.empty()) {
      const ts::detail::Slot slot = open.back();
      open.pop_back();
      if (!slot->leaf) {
        names.insert(slot->name);
      }
      for (int i = 0; i < slot->input_count; ++i) {
        open.push_back(slot->inputs()[i]);
      }
    }
  }
  std::string all;
  for (const std::string& name : names) {
    all += name + " ";
  }
  CHECK(all ==
        "abs add argmax attention broadcast_to carry_loss concat copy cross_entropy div dropout "
        "embedding equal "
        "erf exp gelu gelu_tanh layer_norm less linear linear_cross_entropy log log_softmax matmul "
        "matmul_transposed max maximum mul pad permute "
        "pow relu reshape rms_norm rope scale scatter_add sigmoid silu slice softmax sqrt square "
        "sub sum tanh where ");
  CHECK(names.size() == 47);
}

TEST_CASE("a size that reshape is not told, and |x| where it has no slope") {
  const ts::Tensor x = ts::arange(12);
  CHECK(ts::reshape(x, {-1}).shape() == ts::Shape{12});
  CHECK(ts::reshape(x, {3, -1, 2}).shape() == ts::Shape{3, 2, 2});
  CHECK(ts::reshape(x, {-1, 4}).storage().get() == x.storage().get());
  CHECK(ts::reshape(ts::zeros({0, 3}), {-1, 3}).shape() == ts::Shape{0, 3});
  CHECK(ts::reshape(ts::ones({1}), {}).shape() == ts::Shape{});
  CHECK(error_of([&] {
          ts::reshape(x, {-1, 5});
        }) ==
        "reshape: shape [12] has 12 elements, which sizes of 5 together with a -1 in dimension 0 "
        "do not divide");
  CHECK(error_of([&] {
          ts::reshape(x, {3, -1, 0});
        }) ==
        "reshape: shape [12] has 12 elements, which sizes of 0 together with a -1 in dimension 1 "
        "do not divide");
  CHECK(error_of([&] { ts::reshape(x, {-1, -1}); }) == "Shape: size -1; sizes are 0 or more");
  CHECK(error_of([&] { ts::reshape(ts::Tensor(), {-1}); }).find("data: the tensor is empty") == 0);

  const float inf = std::numeric_limits<float>::infinity();
  const auto f = [](const Inputs& in) { return Inputs{ts::abs(ts::reshape(in[0], {2, -1}))}; };
  for (const bool compiled : {false, true}) {
    const ts::Tensor w = ts::parameter(ts::tensor({6}, {-2, -0.0f, 0, 3, inf, -inf}));
    const ts::Tensor y = compiled ? ts::compile(f)({w})[0] : f({w})[0];
    CHECK(y.detach().values() == std::vector<float>{2, 0, 0, 3, inf, inf});
    CHECK(!std::signbit(y.detach().values()[1]));
    y.backward(ts::full({2, 3}, 5));
    CHECK(w.grad().values() == std::vector<float>{-5, 0, 0, 5, 5, -5});
  }
}

TEST_CASE("views share their numbers") {
  const ts::Tensor x = ts::reshape(ts::arange(24), {2, 3, 4});
  const ts::Tensor t = ts::transpose(x, 0, 2);
  CHECK(t.shape() == ts::Shape{4, 3, 2});
  CHECK(t.strides() == std::vector<std::int64_t>{1, 4, 12});
  CHECK(t.storage().get() == x.storage().get());
  CHECK(t.at({3, 1, 1}) == x.at({1, 1, 3}));
  CHECK_FALSE(t.is_contiguous());
  CHECK(ts::transpose(t, 0, 2).is_contiguous());
  const ts::Tensor s = ts::slice(x, 0, 1, 2);
  CHECK(s.is_contiguous());
  CHECK(s.data() == x.data() + 12);
  CHECK(ts::slice(x, 1, 0, 2).strides() == std::vector<std::int64_t>{12, 4, 1});
  CHECK(ts::slice(x, 2, 1, 4, 2).values() ==
        std::vector<float>{1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23});
  // A reshape that keeps the order of a view is a view.
  const ts::Tensor half = ts::slice(x, 2, 0, 2);
  CHECK(ts::reshape(half, {6, 2}).storage().get() == x.storage().get());
  CHECK(ts::reshape(half, {2, 3, 1, 2}).values() == half.values());
  CHECK(ts::reshape(half, {12}).storage().get() != x.storage().get());
  CHECK(ts::reshape(half, {12}).values() == half.values());
  ts::fill_(ts::slice(x, 2, 0, 1), 7.0f);
  CHECK(x.at({1, 2, 0}) == 7.0f);
  CHECK(ts::contiguous(x).data() == x.data());
}

TEST_CASE("numbers out of row-major order are refused, not misread") {
  const ts::Tensor t = ts::transpose(ts::zeros({2, 3}), 0, 1);
  CHECK(error_of([&] { static_cast<void>(t.data()); }) ==
        "data: shape [3, 2] has strides [1, 3], not the row-major [2, 1]; take contiguous() first");
  CHECK(error_of([&] { t.as_strided({4}, ts::detail::row_major({4}), 3); }) ==
        "as_strided: shape [4] reaches elements 3 to 6 of a buffer of 6");
  ts::detail::Strides huge;  // 4 steps of 2^62 wrap round to the first element
  huge.of[0] = huge.of[1] = std::int64_t{1} << 62;
  CHECK(error_of([&] { t.as_strided({5}, huge, 0); }) ==
        "as_strided: shape [5] reaches elements 0 to 1.84467441e+19 of a buffer of 6");
  CHECK_THROWS_AS(t.as_strided({3, 3}, huge, 0), ts::Error);
  CHECK_THROWS_AS(t.as_strided({0}, huge, 7), ts::Error);
  CHECK(t.as_strided({0}, huge, 6).count() == 0);
}

TEST_CASE("without elements the other sizes may be absurd") {
  const std::int64_t root = 3037000500, large = std::int64_t{1} << 40;  // root^2 is above 2^63
  for (const std::int64_t n : {root, large}) {
    const ts::Shape shape = {0, n, n};
    const ts::Tensor none = ts::zeros(shape);
    CHECK((none + ts::ones({1, 1})).shape() == shape);
    CHECK(ts::sum(none).item() == 0.0f);
    CHECK(ts::sum(none, {1, 2}).shape() == ts::Shape{0});
    CHECK(ts::matmul(none, none).shape() == shape);
    CHECK(ts::index_select(none, 0, {}).shape() == shape);
  }
  CHECK(error_of([&] {
          ts::matmul(ts::zeros({large, large, 0}), ts::zeros({0, 0}));
        }) == "Shape: [1099511627776, 1099511627776] has too many elements; at most 2^63 - 1");
  const ts::Tensor a = ts::parameter(ts::zeros({large, 0, 2}));
  const ts::Tensor b = ts::parameter(ts::zeros({large, 2, 0}));
  const std::int64_t half = std::int64_t{1} << 62;
  CHECK(ts::split(ts::zeros({0, half + (half - 1)}), half, 1).back().dim(1) == half - 1);
  const ts::Tensor product = ts::matmul(a, b);  // as many products of nothing
  const ts::Tensor attended = ts::attention(a, a, a, 1, 1, ts::Mask::none);
  CHECK(product.shape() == ts::Shape{large, 0, 0});
  CHECK(attended.shape() == a.shape());
  (ts::sum(product) + ts::sum(attended)).backward();
  CHECK(a.grad().shape() == a.shape());
  CHECK(b.grad().shape() == b.shape());
}

TEST_CASE("a view of 2^32 elements costs nothing") {
  const ts::Tensor one = ts::full({1, 1}, 0.5f);
  const ts::Tensor all = ts::broadcast_to(one, {1 << 16, 1 << 16});
  CHECK(all.count() == std::int64_t{1} << 32);
  CHECK(ts::sum(all).item() == 2147483648.0f);
  CHECK(ts::mean(all).item() == 0.5f);
  CHECK(ts::max(ts::slice(all, 1, 0, 3), 0).values() == std::vector<float>(3, 0.5f));
  CHECK(ts::slice(ts::ones({4}), 0, 1, 4, INT64_MAX).shape() == ts::Shape{1});
  CHECK_THROWS_AS(ts::permute(ts::Tensor(), {}), ts::Error);
  CHECK(ts::max(ts::slice(all, 1, 0, 3), 1).dim(0) == 1 << 16);
  CHECK(ts::sum(all, 0).at({65535}) == 32768.0f);
  CHECK(ts::slice(all, 0, 5, 6).at({0, 65535}) == 0.5f);
  CHECK(ts::max(ts::broadcast_to(ts::tensor({2}, {3, 7}), {1 << 30, 2})).item() == 7.0f);
  CHECK(ts::min(ts::broadcast_to(ts::tensor({2, 1}, {7, 3}), {2, 1 << 30})).item() == 3.0f);
  const ts::Tensor p = ts::parameter(one);
  ts::sum(ts::broadcast_to(p, {300, 200})).backward();  // a gradient has every element
  CHECK(p.grad().item() == 60000.0f);
  const ts::Tensor vast = ts::broadcast_to(one, {1 << 20, 1 << 20});
  const ts::Tensor keys = ts::broadcast_to(ts::ones({2}), {1, std::int64_t{1} << 50, 2});
  CHECK(error_of([&] {
          ts::attention(ts::ones({1, 1, 2}), keys, keys, 1, 1, ts::Mask::none);
        }) ==
        "attention: a query sees 1125899906842624 keys; up to 16777216 are right, more weights of "
        "which f32 does not hold the sum");
  CHECK(error_of([&] { ts::detail::Scratch(std::int64_t{1} << 50); }) ==
        "kernel: 1125899906842624 floats of scratch memory; this machine has none left");
  const ts::Tensor as_many = ts::broadcast_to(ts::ones({1}), {1, 1 << 24, 1});
  CHECK(ts::attention(ts::ones({1, 1, 1}), as_many, as_many, 1, 1, ts::Mask::none).item() == 1.0f);
  CHECK(error_of([&] { ts::contiguous(vast); }) ==
        "Tensor: shape [1048576, 1048576] takes 4.4 TB; a tensor holds at most 2^38 numbers, "
        "1.1 TB");
  CHECK_THROWS_AS(ts::broadcast_to(vast, {1 << 30, 1 << 20, 1 << 20}), ts::Error);
  CHECK(error_of([&] {
          ts::sum(ts::broadcast_to(one, {2, std::int64_t{1} << 39}), 0);
        }) ==
        "Tensor: shape [1, 549755813888] takes 2.2 TB; a tensor holds at most 2^38 numbers, "
        "1.1 TB");
  CHECK(error_of([&] { ts::List<double> list(std::size_t{1} << 50); }) ==
        "List: 1125899906842624 items of 8 bytes; this machine has no memory left for that");
  const ts::Tensor q = ts::parameter(ts::tensor({2}, {3, 7}));
  ts::max(ts::broadcast_to(q, {3, 2})).backward();  // goes to one of the equal ones
  CHECK(q.grad().values() == std::vector<float>({0, 1}));
}

TEST_CASE("writing in place changes what it should and refuses what it must not") {
  const ts::Tensor x = ts::reshape(ts::arange(6), {2, 3});
  ts::add_(x, ts::ones({3}));
  ts::scale_(x, 2.0f);
  ts::mul_(ts::slice(x, 0, 1, 2), ts::full({}, 10.0f));
  ts::sub_(ts::transpose(x, 0, 1), ts::ones({3, 2}));
  CHECK(x.values() == std::vector<float>{1, 3, 5, 79, 99, 119});
  // Source and target overlap: as if the source had been copied first.
  const ts::Tensor row = ts::arange(5);
  ts::copy_(ts::slice(row, 0, 1, 5), ts::slice(row, 0, 0, 4));
  CHECK(row.values() == std::vector<float>{0, 0, 1, 2, 3});
  ts::add_(x, ts::transpose(ts::transpose(x, 0, 1), 0, 1));
  CHECK(x.at({1, 2}) == 238.0f);

  CHECK(error_of([&] {
          ts::add_(x, ts::ones({3, 3}));
        }) ==
        "add_: shapes do not match: [2, 3] and [3, 3]; from the right, sizes must be equal or 1");
  CHECK(error_of([&] { ts::add_(ts::ones({3}), x); }) ==
        "add_: shape [2, 3] cannot fill [3]; from the right, sizes must be equal or 1");
  CHECK(error_of([&] { ts::fill_(ts::broadcast_to(ts::ones({1}), {4}), 1.0f); }) ==
        "fill_: some of the 4 elements of this [4] view are the same number; write to a clone()");
  const ts::Tensor column = ts::slice(ts::zeros({10, 100}), 1, 0, 1);  // wide steps hide nothing
  CHECK_THROWS_AS(ts::fill_(ts::broadcast_to(column, {10, 3}), 1.0f), ts::Error);
  ts::fill_(ts::permute(ts::slice(ts::zeros({4, 6, 2}), 1, 0, 6, 2), {2, 0, 1}), 1.0f);
  const ts::Tensor p = ts::parameter(ts::ones({2}));
  CHECK(error_of([&] { ts::scale_(p, 2.0f); }) ==
        "scale_: the tensor written or read has a gradient, which writing in place would lose; "
        "write under a NoGrad, or use an op with a result of its own");
  {
    const ts::Tensor y = ts::tanh(p);
    const ts::Tensor loss = ts::sum(p * y);
    const ts::NoGrad no_grad;
    CHECK(error_of([&] { ts::scale_(p, 2.0f); }) ==
          "scale_: a backward pass that is still to come needs the numbers of this [2] tensor; "
          "write after it, or to a clone()");
    CHECK_THROWS_AS(ts::scale_(ts::slice(y.detach(), 0, 0, 1), 2.0f), ts::Error);
    loss.backward();
    ts::scale_(p, 2.0f);
  }
  CHECK(p.at({0}) == 2.0f);
}

TEST_CASE("views and products refuse what does not fit") {
  const ts::Tensor x = ts::zeros({2, 3});
  CHECK(error_of([&] {
          ts::permute(x, {0, 0});
        }) == "permute: 2 dimensions given for shape [2, 3]; each of its 2 once is right");
  CHECK(error_of([&] {
          ts::permute(x, {0, 1, 0, 1, 0, 1, 0, 1, 0});
        }) == "permute: 9 dimensions given for shape [2, 3]; each of its 2 once is right");
  CHECK(error_of([&] { ts::transpose(x, 0, 1).stride(9); }) ==
        "Shape: dim 9 of [3, 2]; dims are -2 to 1");
  CHECK(error_of([&] { x.stride(-3); }) == "Shape: dim -3 of [2, 3]; dims are -2 to 1");
  CHECK(error_of([&] { ts::slice(x, 1, 0, 3, 0); }) ==
        "slice: 0 to 3 of dimension 1 by 0 is outside shape [2, 3]");
  CHECK(error_of([&] { ts::broadcast_to(x, {3}); }) ==
        "broadcast_to: shape [2, 3] cannot fill [3]; from the right, sizes must be equal or 1");
  CHECK(error_of([&] { ts::unsqueeze(x, 4); }) ==
        "unsqueeze: dimension 4 of shape [2, 3]; -3 to 2 are right");
  CHECK(error_of([&] { ts::squeeze(x, 0); }) ==
        "squeeze: dimension 0 of shape [2, 3] is not of size 1");
  CHECK(error_of([&] { ts::split(x, 0, 1); }) == "split: parts of 0; 1 or more is right");
  CHECK(error_of([&] {
          ts::matmul(x, ts::zeros({4, 2, 3}));
        }) == "matmul: x is [2, 3], w is [4, 2, 3]; x [.., M, K] and w [.., K, N] are right");
  CHECK(error_of([&] {
          ts::linear(x, ts::zeros({4, 3}), ts::zeros({3}));
        }) == "linear: w is [4, 3], bias is [3]; w [N, K] and bias [N] are right");
  CHECK(error_of([&] { ts::einsum("ij,jk", x, x); }) ==
        "einsum: \"ij,jk\"; two operands, each letter a to z at most once in each, and a result of "
        "their letters are right, as in \"ik,kj->ij\"");
  CHECK(error_of([&] { ts::einsum("ij,jk->ik", x, x); }) ==
        "einsum: \"ij,jk->ik\" of [2, 3] and [2, 3]; a letter a dimension and one size a letter "
        "are right");
  CHECK(error_of([&] {
          ts::gather(x, 1, {0, 3}, {2, 1});
        }) == "gather: id 3 at position 1 is outside dimension 1 of shape [2, 3]");
  CHECK(error_of([&] {
          ts::scatter_add(x, 1, {0, 1}, ts::zeros({3, 1}));
        }) ==
        "scatter_add: x is [2, 3], 2 ids for shape [3, 1]; as many dimensions, none larger but "
        "dimension 1, and one id an element are right");
  CHECK(error_of([&] {
          ts::max(ts::zeros({2, 0}), 1);
        }) == "max: dimension 1 of shape [2, 0] is empty");
  CHECK(error_of([&] { const ts::MatmulFormat scope(ts::DType::int8); }) ==
        "MatmulFormat: int8; f32, bf16, f16, fp8_e4m3 or fp8_e5m2 is right");
}

TEST_CASE("gather and scatter_add of as many dimensions as a tensor may have") {
  const ts::Tensor x = ts::parameter(ts::tensor({1, 1, 1, 1, 1, 1, 1, 3}, {1, 2, 3}));
  const ts::Tensor y = ts::parameter(ts::tensor({1, 1, 1, 1, 1, 1, 1, 2}, {5, 7}));
  const ts::Tensor z = ts::gather(ts::scatter_add(x, 7, {2, 2}, y), 7, {2, 2, 0}, x.shape());
  CHECK(z.values() == std::vector<float>{15, 15, 1});
  ts::sum(z).backward();
  CHECK(x.grad().values() == std::vector<float>{1, 0, 2});
  CHECK(y.grad().values() == std::vector<float>{2, 2});
}

TEST_CASE("split, gather and einsum of sizes that no memory holds") {
  const std::int64_t large = std::int64_t{1} << 31, root = 3037000500;
  const ts::Tensor one = ts::broadcast_to(ts::ones({1}), {large});
  CHECK(error_of([&] { ts::split(one, 2, 0); }) ==
        "split: parts of 2 along dimension 0 of [2147483648] are 1073741824; at most 2^20 are "
        "right");
  CHECK(error_of([&] {
          ts::split(ts::zeros({0, std::int64_t{1} << 62}), 1, 1);
        }) ==
        "split: parts of 1 along dimension 1 of [0, 4611686018427387904] are 4611686018427387904; "
        "at most 2^20 are right");
  CHECK(ts::split(one, large / 2, 0).size() == 2);
  CHECK(ts::split(ts::zeros({0, 3}), 2, 0).empty());
  CHECK(error_of([&] {
          ts::gather(ts::broadcast_to(ts::ones({1, 1}), {large, 2}), 0, {5}, {1, 1});
        }) ==
        "gather: x is [2147483648, 2], 4294967296 elements; places among at most 2^31 are counted "
        "in 32 bits");
  const auto product = [&](const char* letters, const ts::Shape& a, const ts::Shape& b) {
    return ts::einsum(letters, ts::zeros(a), ts::zeros(b)).shape();
  };
  CHECK(product("ijk,kl->ijl", {root, root, 0}, {0, 0}) == ts::Shape{root, root, 0});
  CHECK(product("ijk,kl->ijl", {2 * large, 2 * large, 0}, {0, 0}) ==
        ts::Shape{2 * large, 2 * large, 0});
  CHECK(product("kij,ijl->kl", {0, root, root}, {root, root, 0}) == ts::Shape{0, 0});
  CHECK(product("ijk,ijl->ijkl", {root, root, 0}, {root, root, 0}) == ts::Shape{root, root, 0, 0});
  CHECK(error_of([&] {
          product("ijk,kl->ijl", {root, root, 0}, {0, 3});
        }) == "Shape: [3037000500, 3037000500, 3] has too many elements; at most 2^63 - 1");
  const ts::Tensor a = ts::parameter(ts::ones({2, 0})), b = ts::parameter(ts::ones({0, 3}));
  const ts::Tensor y = ts::einsum("ik,kj->ij", a, b);
  CHECK(y.values() == std::vector<float>(6));
  ts::sum(y).backward();
  CHECK(b.grad().shape() == b.shape());
}
