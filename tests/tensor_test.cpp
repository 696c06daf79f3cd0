#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "error_of.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

using Function = std::function<ts::Tensor(const std::vector<ts::Tensor>&)>;

// Weighs every output element differently, so that no gradient can cancel.
ts::Tensor weighed(const ts::Tensor& y) {
  return ts::sum(y * ts::uniform(y.shape(), 99, 0.5f, 1.5f));
}

// Central differences with step h: error h^2 f'''/6 + 2 eps |f| / h, about 1e-3 relative for h =
// 1e-2.
void check_gradient(const std::string& name, const Function& f, const std::vector<ts::Tensor>& at) {
  CAPTURE(name);
  std::vector<ts::Tensor> inputs;
  for (const ts::Tensor& t : at) {
    inputs.push_back(ts::parameter(t));
  }
  weighed(f(inputs)).backward();
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    const ts::Tensor grad = inputs[k].grad();
    REQUIRE(grad.defined());
    REQUIRE(grad.shape() == inputs[k].shape());
    const float h = 1e-2f;
    for (std::int64_t i = 0; i < inputs[k].count(); ++i) {
      const float kept = inputs[k].data()[i];
      inputs[k].data()[i] = kept + h;
      const double up = weighed(f(inputs)).item();
      inputs[k].data()[i] = kept - h;
      const double down = weighed(f(inputs)).item();
      inputs[k].data()[i] = kept;
      const double numeric = (up - down) / (2.0 * static_cast<double>(h));
      CAPTURE(k);
      CAPTURE(i);
      CHECK(static_cast<double>(grad.data()[i]) ==
            doctest::Approx(numeric).epsilon(4e-3).scale(1.0));
    }
  }
}

}  // namespace

#if !defined(__FAST_MATH__)  // which multiplies by reciprocals
TEST_CASE("a tensor over a number: every quotient is rounded once, eagerly and in a graph") {
  std::vector<float> numbers;
  for (int i = -300; i <= 300; ++i) {
    numbers.push_back(static_cast<float>(i));
    numbers.push_back(static_cast<float>(i) * 1.1e-3f);
  }
  const ts::Tensor x = ts::tensor({static_cast<std::int64_t>(numbers.size())}, numbers);
  const std::vector<float> divisors = {1,   3,  7,     41,    -49,     0.1f,
                                       768, -2, 0.25f, 1e30f, 1.5e38f, 0x1p127f};
  for (const float divisor : divisors) {
    CAPTURE(divisor);
    const ts::Compiled f = ts::compile([&](const std::vector<ts::Tensor>& in) {
      return std::vector<ts::Tensor>{in[0] / divisor};
    });
    const std::vector<float> eager = (x / divisor).values(), graph = f({x})[0].values();
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const float right = numbers[i] / divisor;
      CHECK(eager[i] == right);
      CHECK(graph[i] == right);
    }
  }
  const ts::Tensor p = ts::parameter(ts::full({4}, 5.0f));
  ts::sum(p / 3.0f + p / 4.0f).backward();
  CHECK(p.grad().values() == std::vector<float>(4, 1.0f / 3.0f + 0.25f));
}
#endif

TEST_CASE("gradients of every op equal central differences") {
  const ts::Tensor a = ts::randn({3, 4}, 1);
  const ts::Tensor b = ts::randn({3, 4}, 2);
  const ts::Tensor row = ts::randn({4}, 3);
  const ts::Tensor column = ts::randn({3, 1}, 4);
  const ts::Tensor positive = ts::uniform({3, 4}, 5, 0.5f, 2.0f);
  using In = const std::vector<ts::Tensor>&;
  check_gradient("add", [](In x) { return x[0] + x[1]; }, {a, b});
  check_gradient("add row", [](In x) { return x[0] + x[1]; }, {a, row});
  check_gradient("add column", [](In x) { return x[0] + x[1]; }, {column, a});
  check_gradient("add itself", [](In x) { return x[0] + x[0]; }, {a});
  check_gradient("sub", [](In x) { return x[0] - x[1]; }, {row, a});
  check_gradient("mul", [](In x) { return x[0] * x[1]; }, {a, b});
  check_gradient("mul column", [](In x) { return x[0] * x[1]; }, {a, column});
  check_gradient("div", [](In x) { return x[0] / x[1]; }, {a, positive});
  check_gradient("scalars", [](In x) { return 1.0f - (2.0f * x[0] + 3.0f) / 4.0f; }, {a});
  check_gradient("neg", [](In x) { return -x[0]; }, {a});
  check_gradient("gelu", [](In x) { return ts::gelu(x[0]); }, {a});
  check_gradient("gelu_tanh", [](In x) { return ts::gelu_tanh(x[0]); }, {a});
  check_gradient("silu", [](In x) { return ts::silu(x[0]); }, {a});
  check_gradient("relu", [](In x) { return ts::relu(x[0]); }, {positive});
  check_gradient("tanh", [](In x) { return ts::tanh(x[0]); }, {a});
  check_gradient("exp", [](In x) { return ts::exp(x[0]); }, {a});
  check_gradient("log", [](In x) { return ts::log(x[0]); }, {positive});
  check_gradient("sqrt", [](In x) { return ts::sqrt(x[0]); }, {positive});
  check_gradient("abs", [](In x) { return ts::abs(x[0]); }, {a});
  check_gradient("square", [](In x) { return ts::square(x[0]); }, {a});
  check_gradient("sum", [](In x) { return ts::sum(x[0]); }, {a});
  check_gradient("sum dim 0", [](In x) { return ts::sum(x[0], 0); }, {a});
  check_gradient("sum dim -1", [](In x) { return ts::sum(x[0], -1); }, {a});
  check_gradient("mean", [](In x) { return ts::mean(x[0]); }, {a});
  check_gradient("softmax", [](In x) { return ts::softmax(x[0]); }, {a});
  check_gradient("log_softmax", [](In x) { return ts::log_softmax(x[0]); }, {a});
  check_gradient("matmul", [](In x) { return ts::matmul(x[0], x[1]); },
                 {ts::randn({2, 3, 4}, 6), ts::randn({4, 5}, 7)});
  check_gradient("matmul_transposed", [](In x) { return ts::matmul_transposed(x[0], x[1]); },
                 {ts::randn({2, 3, 4}, 6), ts::randn({5, 4}, 7)});
  check_gradient("layer_norm", [](In x) { return ts::layer_norm(x[0], x[1], x[2]); },
                 {a, row, ts::randn({4}, 8)});
  check_gradient("layer_norm without bias",
                 [](In x) { return ts::layer_norm(x[0], x[1], ts::Tensor()); }, {a, row});
  check_gradient("rms_norm", [](In x) { return ts::rms_norm(x[0], x[1]); }, {a, row});
  check_gradient("dropout", [](In x) { return ts::dropout(x[0], 0.4f, 11); }, {a});
  check_gradient("embedding", [](In x) { return ts::embedding(x[0], {2, 0, 2, 1}, {2, 2}); }, {a});
  check_gradient("cross_entropy", [](In x) { return ts::cross_entropy(x[0], {1, -1, 3}); }, {a});
  check_gradient("reshape", [](In x) { return ts::reshape(x[0], {2, 6}); }, {a});
  check_gradient("transpose", [](In x) { return ts::transpose(x[0], 0, 2); },
                 {ts::randn({2, 3, 4}, 12)});
  check_gradient("slice", [](In x) { return ts::slice(x[0], 1, 1, 3); }, {a});
  check_gradient("concat", [](In x) { return ts::concat({x[0], x[1]}, 1); }, {a, b});
  check_gradient("rope", [](In x) { return ts::rope(x[0], 4, 3); }, {ts::randn({2, 3, 8}, 13)});
}

TEST_CASE("gradients of attention, causal, in a window or not, with more keys than queries") {
  using In = const std::vector<ts::Tensor>&;
  for (const std::int64_t window : {-1, 0, 1, 3}) {  // -1: no mask
    const ts::Mask mask = window < 0 ? ts::Mask::none : ts::Mask::causal;
    const std::int64_t last = window < 0 ? 0 : window;
    for (const int kv_heads : {1, 2, 4}) {  // 3 queries row by row, 11 in blocks
      for (const std::int64_t queries : {3, 11}) {
        CAPTURE(window);
        CAPTURE(queries);
        check_gradient(
            "attention",
            [=](In x) { return ts::attention(x[0], x[1], x[2], 4, kv_heads, mask, last); },
            {ts::randn({2, queries, 8}, 1), ts::randn({2, queries + 2, 2 * kv_heads}, 2),
             ts::randn({2, queries + 2, 2 * kv_heads}, 3)});
      }
    }
  }
}

TEST_CASE("a window of any length beyond the keys is none") {
  for (const std::int64_t window : {std::int64_t{14}, std::numeric_limits<std::int64_t>::max()}) {
    std::vector<ts::Tensor> outputs, grads;
    for (const std::int64_t last : {std::int64_t{0}, window}) {
      const ts::Tensor q = ts::parameter(ts::randn({1, 11, 8}, 1));
      const ts::Tensor k = ts::parameter(ts::randn({1, 14, 8}, 2));
      const auto attend = [last](const std::vector<ts::Tensor>& in) {
        return std::vector<ts::Tensor>{
            ts::attention(in[0], in[1], in[1], 2, 2, ts::Mask::causal, last)};
      };
      ts::sum(ts::square(attend({q, k})[0])).backward();
      outputs.push_back(ts::compile(attend)({q.detach(), k.detach()})[0]);
      grads.push_back(k.grad());
    }
    CHECK(outputs[0].values() == outputs[1].values());
    CHECK(grads[0].values() == grads[1].values());
  }
}

TEST_CASE("a shared tensor gathers the gradients of all its uses, and the graph frees itself") {
  const ts::Tensor w = ts::parameter(ts::full({2}, 3.0f));
  ts::Tensor y = ts::square(w);
  ts::Tensor loss = ts::sum(y * w + y);  // w^3 + w^2
  loss.backward();
  CHECK(w.grad().at({0}) == 33.0f);
  CHECK(error_of([&] { loss.backward(); }) ==
        "backward: this graph was used before and is freed; run the forward pass again");
  w.zero_grad();
  CHECK_FALSE(w.grad().defined());
}

TEST_CASE("an op is counted once, with its flops and the bytes of each operand") {
  const ts::Tensor x = ts::randn({8, 16}, 1);
  const ts::Tensor w = ts::randn({16, 32}, 2);
  ts::Profile profile;
  const ts::Tensor y = ts::gelu(ts::matmul(x, w));
  const ts::Counters c = profile.totals();
  CHECK(c.matmul_flops == 2.0 * 8 * 16 * 32);
  CHECK(c.vector_flops == 22.0 * 8 * 32);
  CHECK(c.bytes_read == 4.0 * (8 * 16 + 16 * 32 + 8 * 32));
  CHECK(c.bytes_written == 4.0 * (8 * 32 + 8 * 32));
  CHECK(profile.records().size() == 2);
}

TEST_CASE("activations that the backward pass does not need are freed at once") {
  const ts::Tensor w = ts::parameter(ts::full({1000}, 1.0f));
  ts::context().memory->reset_peak();
  const auto before = ts::context().memory->current(ts::MemoryKind::activation);
  ts::Tensor y = w;
  for (int i = 0; i < 10; ++i) {
    y = y + 1.0f;
  }
  CHECK(ts::context().memory->current(ts::MemoryKind::activation) - before == 4000);
}

TEST_CASE("errors name the function, the shapes and what would be right") {
  const ts::Tensor x = ts::zeros({8, 4096});
  const ts::Tensor w = ts::zeros({4095, 16});
  CHECK(error_of([&] { ts::matmul(x, w); }) ==
        "matmul: inner sizes differ: x is [8, 4096], w is [4095, 16]; x columns must equal w rows");
  CHECK(error_of([&] {
          ts::matmul_transposed(x, ts::zeros({16, 4095}));
        }) ==
        "matmul_transposed: inner sizes differ: x is [8, 4096], w is [16, 4095]; x columns must "
        "equal w columns");
  CHECK(error_of([&] { ts::matmul(x, ts::zeros({4})); }) ==
        "matmul: x is [8, 4096], w is [4]; x needs at least one dimension and w exactly two");
  CHECK(error_of([&] { (void)(x + w); }) ==
        "add: shapes do not match: [8, 4096] and [4095, 16]; from the right, sizes must be equal "
        "or 1");
  CHECK(error_of([&] { ts::reshape(x, {3}); }) ==
        "reshape: shape [8, 4096] has 32768 elements, shape [3] needs 3");
  CHECK(error_of([&] { ts::slice(x, 0, 4, 9); }) ==
        "slice: 4 to 9 of dimension 0 is outside shape [8, 4096]");
  CHECK(error_of([&] { ts::transpose(x, 0, 2); }) ==
        "transpose: dimension 2 is outside shape [8, 4096]");
  CHECK(error_of([&] {
          ts::concat({x, w}, 0);
        }) == "concat: shapes [8, 4096] and [4095, 16] differ outside dimension 0");
  CHECK(error_of([&] { ts::concat({}, 0); }) == "concat: no tensors given; at least one is right");
  CHECK(error_of([&] { ts::sum(x, 2); }) == "sum: dimension 2 is outside shape [8, 4096]");
  CHECK(error_of([&] { ts::mean(ts::zeros({0})); }) ==
        "mean: the tensor has no elements, shape [0]");
  CHECK(error_of([&] { ts::embedding(w, {5000}, {1}); }) ==
        "embedding: id 5000 at position 0 is outside the table's 4095 rows");
  CHECK(error_of([&] {
          ts::embedding(w, {1, 2}, {1});
        }) ==
        "embedding: table is [4095, 16], 2 ids for shape [1]; the table needs two dimensions and "
        "the ids one per element");
  CHECK(error_of([&] { ts::cross_entropy(w, {1}); }) ==
        "cross_entropy: logits are [4095, 16], so 4095 targets are right; given 1");
  CHECK(error_of([&] {
          ts::cross_entropy(ts::zeros({1, 4}), {4});
        }) == "cross_entropy: target 4 is outside the 4 classes (-1 leaves a row out)");
  CHECK(error_of([&] { ts::layer_norm(x, ts::zeros({5}), ts::Tensor()); }) ==
        "layer_norm: x is [8, 4096], weight is [5]; weight must be [4096]");
  CHECK(error_of([&] { ts::softmax(ts::zeros({})); }) ==
        "softmax: shape [] has no last dimension to work along");
  CHECK(error_of([&] { ts::dropout(x, 1.0f, 1); }) == "dropout: p is 1; right is 0 <= p < 1");
  CHECK(error_of([&] { ts::dropout(x, 0.5f, 1, -5); }) ==
        "dropout: the first of " + std::to_string(x.count()) +
            " elements is element -5; 0 or more, and places that can be counted, are right");
  CHECK(error_of([&] { ts::tensor({2}, {1.0f}); }) ==
        "tensor: 1 values given for shape [2], which holds 2");
  CHECK(error_of([&] { x.item(); }) ==
        "item: the tensor has 32768 elements, shape [8, 4096]; item() needs exactly 1");
  CHECK(error_of([&] { x.at({1}); }) ==
        "at: 1 indices given for shape [8, 4096]; one per dimension is right");
  CHECK(error_of([&] { x.at({8, 0}); }) == "at: index 8 in dimension 0 is outside shape [8, 4096]");
  CHECK(error_of([&] {
          ts::Tensor().values();
          ts::Tensor().data();
        }) == "data: the tensor is empty (default-constructed); make one with zeros, full, ...");
  CHECK(error_of([&] { x.backward(); }) ==
        "backward: no parameter stands behind this tensor; wrap one with parameter()");
  CHECK(error_of([&] { ts::square(ts::parameter(ts::zeros({2}))).backward(); }) ==
        "backward: the loss must be one number, this has shape [2]; take mean() or sum() first");
  CHECK(error_of([&] {
          ts::attention(ts::zeros({1, 2, 8}), ts::zeros({1, 2, 4}), ts::zeros({1, 2, 4}), 3, 1,
                        ts::Mask::none);
        }) ==
        "attention: q is [1, 2, 8], k is [1, 2, 4], v is [1, 2, 4] with 3 heads and 1 kv heads; "
        "right is q [B, T, heads K], k and v [B, S, kv_heads K], heads a multiple of kv_heads, and "
        "S >= T when causal");
  for (const std::int64_t window : {-1, 2}) {
    const ts::Tensor q = ts::zeros({1, 2, 8});
    CHECK(error_of([&] { ts::attention(q, q, q, 2, 2, ts::Mask::none, window); }) ==
          "attention: a window of " + std::to_string(window) +
              " keys without a mask; 0 (all) is right, or with Mask::causal 1 or more");
  }
  CHECK(error_of([&] {
          const ts::Tensor q = ts::zeros({1, 2, 8});
          ts::attention(q, q, q, 2, 2, ts::Mask::causal, -3);
        }) == "attention: a window of -3 keys; 0 (all) is right, or with Mask::causal 1 or more");
  CHECK(error_of([&] {
          ts::rope(ts::zeros({1, 2, 6}), 3, 0);
        }) == "rope: x is [1, 2, 6] with head size 3; right is [B, T, heads K] with an even K");
  CHECK(error_of([&] { ts::vector_cost("sin", 1, &ts::VectorCost::forward); }) ==
        "vector_cost: no op is called 'sin'; vector_costs() lists them");
}

TEST_CASE("sizes that no machine holds are an error, not a wrapped allocation") {
  CHECK(error_of([] { ts::zeros({std::int64_t{1} << 62}); }) ==
        "Tensor: shape [4611686018427387904] takes 18.4 EB; a tensor holds at most 2^38 numbers, "
        "1.1 TB");
  CHECK(error_of([] { ts::zeros({(std::int64_t{1} << 62) + 1}); }).find("Tensor: shape [46") == 0);
  CHECK(error_of([] {
          ts::zeros({std::int64_t{1} << 30, 1 << 28});
        }).find("Tensor: shape [10") == 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(__clang__)
  std::vector<ts::Tensor> held;  // the system says no before long; nothing is written
  const std::string full = error_of([&] {
    while (held.size() < 4096) {
      held.emplace_back(ts::Shape{std::int64_t{1} << 38});
    }
  });
  CHECK(full ==
        "Tensor: shape [274877906944] takes 1.1 TB; this machine has no memory left for that");
#endif
}

TEST_CASE("sums over a dimension and gradients of what is repeated do not lose elements") {
  const ts::Tensor large = ts::concat({ts::full({2, 20}, 3e38f), ts::full({1, 20}, -3e38f)}, 0);
  CHECK(ts::sum(large, 0).values() == std::vector<float>(20, 3e38f));  // 6e38 on the way
  const std::int64_t n = std::int64_t{1} << 22;
  CHECK(ts::sum(ts::full({n, 1}, 0.1f), 0).item() == doctest::Approx(419430.4).epsilon(1e-6));
  CHECK(ts::sum(ts::full({1, n}, 0.1f), 1).item() == doctest::Approx(419430.4).epsilon(1e-6));
  const ts::Tensor bias = ts::parameter(ts::zeros({16}));
  ts::sum(ts::scale(ts::zeros({n / 16, 16}) + bias, 0.1f)).backward();
  CHECK(bias.grad().at({15}) == doctest::Approx(26214.4).epsilon(1e-6));
}

TEST_CASE("a long chain of ops ends without a deep stack, with and without a backward pass") {
  const ts::Tensor w = ts::parameter(ts::ones({1}));
  for (const int passes : {0, 1}) {
    ts::Tensor y = w;
    for (int i = 0; i < 300000; ++i) {
      y = i % 2 == 0 ? ts::reshape(y, {1}) : y + y * 0.0f;
    }
    if (passes > 0) {
      y.backward();
    }
  }
  CHECK(w.grad().item() == 1.0f);
}

TEST_CASE("an empty tensor is empty as a copy and an error everywhere else") {
  const ts::Tensor none;
  const ts::Tensor x = ts::ones({2, 2});
  CHECK_FALSE(none.clone().defined());
  CHECK(error_of([&] { ts::parameter(none); }) ==
        "data: the tensor is empty (default-constructed); make one with zeros, full, ...");
  const std::function<void()> calls[] = {
      [&] { ts::reshape(none, {0}); },
      [&] { ts::reshape(none, {}); },
      [&] { ts::dropout(none, 0, 1); },
      [&] { ts::dropout(none, 0.5f, 1); },
      [&] { none + none; },
      [&] { none* x; },
      [&] { x - none; },
      [&] { x / none; },
      [&] { none * 2.0f; },
      [&] { none + 2.0f; },
      [&] { ts::sum(none); },
      [&] { ts::sum(none, 0); },
      [&] { ts::mean(none); },
      [&] { ts::exp(none); },
      [&] { ts::gelu(none); },
      [&] { ts::square(none); },
      [&] { ts::softmax(none); },
      [&] { ts::log_softmax(none); },
      [&] { ts::matmul(none, x); },
      [&] { ts::matmul(x, none); },
      [&] { ts::transpose(none, 0, 1); },
      [&] { ts::slice(none, 0, 0, 0); },
      [&] { ts::concat({none}, 0); },
      [&] { ts::embedding(none, {}, {0}); },
      [&] { ts::cross_entropy(none, {}); },
      [&] { ts::layer_norm(none, none, none); },
      [&] { ts::rms_norm(x, none); },
      [&] { ts::rope(none, 2, 0); },
      [&] { ts::attention(none, none, none, 1, 1, ts::Mask::none); },
      [&] { none.item(); },
      [&] { none.at({}); },
      [&] { none.backward(); },
  };
  int number = 0;
  for (const std::function<void()>& call : calls) {
    CAPTURE(number);
    CHECK(error_of(call) != "no error");
    ++number;
  }
}

TEST_CASE("norms and rope refuse an epsilon and a theta that cannot be right") {
  const float nan = std::nanf("");
  const ts::Tensor x = ts::ones({2, 2}), w = ts::ones({2});
  CHECK(error_of([&] { ts::layer_norm(x, w, w, -1.0f); }) ==
        "layer_norm: epsilon is -1; a finite number from 0 is right");
  CHECK(error_of([&] { ts::rms_norm(x, w, nan); }) ==
        "rms_norm: epsilon is nan; a finite number from 0 is right");
  CHECK(error_of([&] {
          ts::rope(ts::ones({1, 2, 2}), 2, 0, 0.0f);
        }) == "rope: theta is 0; a finite number above 0 is right");
  CHECK(error_of([&] { ts::rope(ts::ones({1, 2, 2}), 2, 0, nan); }) != "no error");
}

TEST_CASE("in-place ops refuse an operand that is empty") {
  const ts::Tensor x = ts::ones({2});
  const std::string empty =
      "data: the tensor is empty (default-constructed); make one with zeros, full, ...";
  CHECK(error_of([&] { ts::add_(x, ts::Tensor()); }) == empty);
  CHECK(error_of([&] { ts::copy_(x, ts::Tensor()); }) == empty);
  CHECK(error_of([&] { ts::mul_(ts::Tensor(), x); }) == empty);
}

TEST_CASE("a backward pass that fails leaves nothing behind for the next one") {
  const ts::Tensor a = ts::parameter(ts::ones({2})), c = ts::parameter(ts::ones({2}));
  const ts::Tensor h = ts::square(a), g = ts::square(c);
  ts::sum(h).backward();
  CHECK(error_of([&] { ts::sum(h + g).backward(); }) ==
        "backward: this graph was used before and is freed; run the forward pass again");
  c.zero_grad();
  ts::sum(g * 3.0f).backward();  // its graph was not used yet
  REQUIRE(c.grad().defined());
  CHECK(c.grad().values() == std::vector<float>{6, 6});
}

TEST_CASE("softmax along any dimension") {
  const ts::Tensor x = ts::randn({3, 4, 5}, 1), dy = ts::randn({3, 4, 5}, 2);
  for (int dim = -3; dim < 3; ++dim) {
    CAPTURE(dim);
    const ts::Tensor a = ts::parameter(ts::copy(x)), b = ts::parameter(ts::copy(x));
    const ts::Tensor y = ts::softmax(a, dim), e = ts::exp(b);
    const ts::Tensor by_hand = e / ts::sum(e, dim, ts::KeepDim::yes);
    ts::sum(y * dy).backward();
    ts::sum(by_hand * dy).backward();
    CHECK(y.shape() == x.shape());
    CHECK(ts::max(ts::abs(y - by_hand)).item() < 1e-6f);
    CHECK(ts::max(ts::abs(a.grad() - b.grad())).item() < 1e-6f);
    CHECK(ts::max(ts::abs(ts::log_softmax(x, dim) - ts::log(by_hand))).item() < 1e-5f);
  }
  CHECK(error_of([&] { ts::softmax(x, 3); }) == "softmax: dimension 3 is outside shape [3, 4, 5]");
  CHECK(error_of([&] { ts::log_softmax(x, -4); }) ==
        "log_softmax: dimension -4 is outside shape [3, 4, 5]");
}

TEST_CASE("errors of reductions name the op and the shape that were asked for") {
  const ts::Tensor x = ts::ones({2, 3}), none = ts::zeros({2, 0}), rows = ts::zeros({0, 2});
  CHECK(error_of([&] { ts::min(none); }) == "min: the tensor has no elements, shape [2, 0]");
  CHECK(error_of([&] { ts::max(none); }) == "max: the tensor has no elements, shape [2, 0]");
  CHECK(error_of([&] { ts::min(none, 1); }) == "min: dimension 1 of shape [2, 0] is empty");
  CHECK(error_of([&] { ts::min(x, 7); }) == "min: dimension 7 is outside shape [2, 3]");
  CHECK(error_of([&] { ts::argmax(none, -1); }) == "argmax: dimension -1 of shape [2, 0] is empty");
  CHECK(error_of([&] { ts::softmax(rows, 0); }) == "softmax: dimension 0 of shape [0, 2] is empty");
  CHECK(error_of([&] { ts::log_softmax(rows, 0); }) ==
        "log_softmax: dimension 0 of shape [0, 2] is empty");
  CHECK(error_of([&] { ts::stack({}, 0); }) == "stack: no tensors given; at least one is right");
}

TEST_CASE("log_softmax and losses do not lose what all logits have in common") {
  for (const float far : {1e3f, 1e5f, 1e7f, 1e8f}) {
    const ts::Tensor logits = ts::full({3, 2}, far);
    const double half = std::log(2.0);
    CHECK(double{ts::cross_entropy(logits, {0, 1, 0}).item()} == doctest::Approx(half));
    CHECK(double{ts::log_softmax(logits).values()[3]} == doctest::Approx(-half));
    const ts::Tensor x = ts::parameter(ts::full({3, 1}, far)), w = ts::parameter(ts::ones({2, 1}));
    const ts::Tensor loss = ts::linear_cross_entropy(x, w, {0, 1, 0});
    CHECK(double{loss.item()} == doctest::Approx(half));
    loss.backward();
    CHECK(double{w.grad().values()[0]} ==
          doctest::Approx(double{far} * -0.5 / 3));  // (-.5 + .5 - .5) / 3
  }
}

TEST_CASE("the gradient of cross_entropy keeps its digits wherever the logits are") {
  const std::int64_t n = 50;
  for (const float far : {0.0f, 100.0f, 1e4f, -1e5f}) {
    CAPTURE(far);
    const ts::Tensor near = ts::uniform({2, n}, 3, -2, 2) + far;
    const ts::Compiled compiled = ts::compile([](const std::vector<ts::Tensor>& in) {
      return std::vector<ts::Tensor>{ts::cross_entropy(in[0], {3, 4})};
    });
    for (const bool graph : {false, true}) {
      const ts::Tensor x = ts::parameter(near);
      (graph ? compiled({x})[0] : ts::cross_entropy(x, {3, 4})).backward();
      const std::vector<float> numbers = near.values(), slopes = x.grad().values();
      for (std::int64_t row = 0; row < 2; ++row) {
        double sum = 0;
        const auto power = [&](std::int64_t j) {
          return std::exp(double{numbers[static_cast<std::size_t>(row * n + j)]} - double{far});
        };
        for (std::int64_t j = 0; j < n; ++j) {
          sum += power(j);
        }
        for (std::int64_t j = 0; j < n; ++j) {
          const double want = (power(j) / sum - (j == 3 + row ? 1 : 0)) / 2;
          CHECK(double{slopes[static_cast<std::size_t>(row * n + j)]} ==
                doctest::Approx(want).epsilon(1e-6));
        }
      }
    }
  }
}

TEST_CASE("uniform numbers stay below their upper end, also over all floats") {
  const ts::Tensor narrow = ts::uniform({1 << 18}, 3, 1000, 1001);
  for (const float x : narrow.values()) {
    REQUIRE(x >= 1000.0f);
    REQUIRE(x < 1001.0f);
  }
  for (const float x : ts::uniform({100}, 3, -3e38f, 3e38f).values()) {
    REQUIRE(std::isfinite(x));
  }
  CHECK_THROWS_WITH_AS(ts::uniform({2}, 1, 2.0f, 1.0f),
                       "uniform: numbers from 2 to 1; finite ends, the lower one first, are right",
                       ts::Error);
  CHECK_THROWS_AS(ts::uniform({2}, 1, 0.0f, std::numeric_limits<float>::infinity()), ts::Error);
  CHECK_THROWS_AS(ts::uniform({2}, 1, std::nanf(""), 1.0f), ts::Error);
}

TEST_CASE("a constant power has no slope; a subnormal divisor divides") {
  const ts::Tensor x = ts::parameter(ts::tensor({2}, {0, 2}));
  ts::sum(ts::pow(x, 0.0f)).backward();
  CHECK(x.grad().values() == std::vector<float>{0, 0});
  const ts::Tensor tiny = ts::full({1}, 1e-39f);
  CHECK((tiny / 1e-39f).item() == 1.0f);
  CHECK((ts::ones({1}) / 0.0f).item() == std::numeric_limits<float>::infinity());
}

TEST_CASE("clamp, allclose, eye, and tensors like others") {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const ts::Tensor x = ts::parameter(ts::tensor({6}, {-inf, -1, -0.5f, 2, 2.5f, nan}));
  const ts::Tensor y = ts::clamp(x, -1, 2);
  CHECK(ts::allclose(ts::slice(y, 0, 0, 5), ts::tensor({5}, {-1, -1, -0.5f, 2, 2}), 0, 0));
  CHECK(std::isnan(y.data()[5]));
  ts::sum(ts::slice(y, 0, 0, 5)).backward();  // an end itself has its gradient
  CHECK(ts::allclose(x.grad(), ts::tensor({6}, {0, 1, 1, 1, 0, 0}), 0, 0));
  CHECK(ts::clamp(ts::ones({1}) * 7.0f, -inf, inf).item() == 7);
  CHECK(error_of([&] { ts::clamp(x, 2, 1); }) ==
        "clamp: numbers from 2 to 1; the lower end first is right");
  CHECK(error_of([&] { ts::clamp(x, nan, 1); }).find("clamp: numbers from nan") == 0);

  const ts::Tensor two = ts::ones({2, 3}) * 2.0f, row = ts::ones({3});
  CHECK(ts::allclose(two, two * 1.000009f));
  CHECK(!ts::allclose(two, two * 1.00002f));
  CHECK(ts::allclose(two, two * 1.00002f, 1e-4));
  CHECK(ts::allclose(two, row, 0, 1));  // 1 away, and shapes broadcast
  CHECK(!ts::allclose(two, row, 0, 0.99));
  const ts::Tensor turned = ts::transpose(ts::reshape(ts::arange(6), {2, 3}), 0, 1);
  CHECK(ts::allclose(turned, ts::tensor({3, 2}, {0, 3, 1, 4, 2, 5}), 0, 0));
  const auto one = [](float value) { return ts::full({1}, value); };
  CHECK(ts::allclose(one(inf), one(inf)));
  CHECK(!ts::allclose(one(inf), one(-inf)));
  CHECK(!ts::allclose(one(1), one(inf)));
  CHECK(!ts::allclose(one(inf), one(1)));
  CHECK(!ts::allclose(one(nan), one(nan)));
  CHECK(ts::allclose(ts::zeros({0, 3}), row));
  CHECK(error_of([&] { ts::allclose(two, ts::ones({2})); }).find("allclose: ") == 0);
  CHECK(error_of([&] { ts::allclose(two, two, -1); }) ==
        "allclose: tolerances -1 and 1e-08; finite numbers from 0 are right");

  CHECK(ts::allclose(ts::eye(2), ts::tensor({2, 2}, {1, 0, 0, 1}), 0, 0));
  CHECK(ts::eye(0).shape() == ts::Shape{0, 0});
  CHECK(ts::allclose(ts::matmul(two, ts::eye(3)), two, 0, 0));
  CHECK(ts::allclose(ts::zeros_like(two), ts::zeros({2, 3}), 0, 0));
  CHECK(ts::ones_like(turned).shape() == ts::Shape{3, 2});
  CHECK(ts::full_like(row, 5).data()[2] == 5);
  CHECK(!error_of([&] { ts::zeros_like(ts::Tensor()); }).empty());
  const ts::Compiled captured = ts::compile([](const std::vector<ts::Tensor>& in) {
    return std::vector<ts::Tensor>{ts::clamp(in[0], 0, 1) + ts::eye(3) + ts::ones_like(in[0])};
  });
  const ts::Tensor square = ts::randn({3, 3}, 5);
  CHECK(ts::allclose(captured({square})[0], ts::clamp(square, 0, 1) + ts::eye(3) + ts::ones({3, 3}),
                     0, 0));
}

TEST_CASE("errors name the op that was called") {
  const ts::Tensor x = ts::ones({2, 3}), y = ts::ones({4});
  CHECK(error_of([&] {
          ts::index_select(x, 1, {0, 3});
        }) == "index_select: id 3 at position 1 is outside dimension 1 of shape [2, 3]");
  CHECK(error_of([&] { ts::mean(x, {5}); }) == "mean: dimension 5 is outside shape [2, 3]");
  CHECK(error_of([&] { ts::minimum(x, y); }).find("minimum: ") == 0);
  CHECK(error_of([&] { ts::greater(x, y); }).find("greater: ") == 0);
  CHECK(error_of([&] { ts::masked_fill(x, y, 1); }).find("masked_fill: ") == 0);
  CHECK(error_of([&] {
          ts::stack({x, y}, 0);
        }) ==
        "stack: shapes [2, 3] and [4] in dimension 0; equal shapes, and a dimension of the result, "
        "are right");
  CHECK(error_of([&] { ts::stack({y, y}, 2); }).find("stack: ") == 0);
  CHECK(ts::stack({y, y}, 1).shape() == ts::Shape{4, 2});
  const ts::Tensor huge = ts::broadcast_to(ts::zeros({1, 0}), {std::int64_t{1} << 62, 0});
  CHECK(error_of([&] {
          ts::concat({huge, huge}, 0);
        }) ==
        "concat: 4611686018427387904 and 4611686018427387904 in dimension 0 are together more than "
        "2^63 - 1");
  CHECK(error_of([&] { ts::pad(ts::zeros({0}), 0, 4, 3); }).find("pad: 0 elements from 4") == 0);
  CHECK(error_of([&] {
          ts::rope(ts::ones({1, 2, 4}), 4, {}, 1e4f, ts::RopePairs::halves, {1, 0});
        }) == "rope: a factor is 0; finite numbers other than 0 are right");
  const ts::Tensor wide = ts::broadcast_to(ts::zeros({1}), {(1 << 24) + 1});
  CHECK(
      error_of([&] { ts::argmax(wide, 0); }) ==
      "argmax: dimension 0 of shape [16777217] is longer than 16777216, beyond which f32 does not "
      "hold every place");
  CHECK(error_of([&] { ts::arange(16777218); }) ==
        "arange: 16777218 numbers; up to 16777217 are whole numbers of f32");
}

TEST_CASE("profiles: operands of where, norms, scatter_add, writes in place and the optimizer") {
  const ts::Tensor x = ts::parameter(ts::randn({4, 6}, 1)), w = ts::parameter(ts::ones({6})),
                   b = ts::parameter(ts::zeros({6})), own = ts::ones({4, 6});
  ts::AdamW optimizer({x, w, b});
  struct Wanted {
    const char* name;
    double read, written, flops;  // numbers of four bytes
  };
  const auto check = [](const ts::Profile& profile, const std::vector<Wanted>& all) {
    std::size_t found = 0;
    for (const ts::OpRecord& op : profile.records()) {
      if (found < all.size() && op.name == all[found].name) {
        CAPTURE(op.name);
        CHECK(op.bytes_read == 4 * all[found].read);
        CHECK(op.bytes_written == 4 * all[found].written);
        CHECK(op.vector_flops == all[found].flops);
        ++found;
      }
    }
    CHECK(found == all.size());
  };
  {
    ts::Profile profile;
    const ts::Tensor one = ts::layer_norm(x, w, b);
    const ts::Tensor y = one + ts::rms_norm(x, w);
    ts::sum(ts::where(ts::less(own, b.detach()), y, b)).backward();
    check(profile, {{"layer_norm", 24 + 6 + 6, 24 + 4 + 4, 8 * 24},
                    {"rms_norm", 24 + 6, 24 + 4, 5 * 24},
                    {"where", 24 + 24 + 6, 24, 24}});
    check(profile, {{"rms_norm backward", 48 + 6 + 4, 24 + 6, 10 * 24}});
    check(profile, {{"layer_norm backward", 48 + 6 + 4 + 4, 24 + 6 + 6, 13 * 24}});
  }
  ts::Profile profile;
  ts::scatter_add(own, 0, {0, 3}, ts::ones({1, 2}));
  ts::add_(own, b.detach());
  ts::copy_(own, x.detach());
  ts::fill_(own, 2.0f);
  optimizer.step();
  check(profile, {{"scatter_add", 24 + 2 + 2, 24, 2},
                  {"add_", 24 + 6, 24, 24},
                  {"copy_", 24, 24, 0},
                  {"fill_", 1, 24, 0},
                  {"adamw", 4 * 24, 3 * 24, 20 * 24},
                  {"adamw", 4 * 6, 3 * 6, 20 * 6},
                  {"adamw", 4 * 6, 3 * 6, 20 * 6}});
}

TEST_CASE("profiles: clones, row sums of gradients, and backward passes that gather") {
  const ts::Tensor x = ts::parameter(ts::randn({4, 6}, 1)), b = ts::parameter(ts::zeros({6}));
  const ts::Tensor one = ts::ones({4, 6});
  const auto counted = [](const ts::Tensor& loss) {
    std::string text;
    const ts::Profile profile;
    loss.backward();
    for (const ts::OpRecord& op : profile.records()) {
      text += ts::detail::cat(
          {op.name, " ", op.bytes_read / 4, " ", op.bytes_written / 4, " ", op.vector_flops, "; "});
    }
    return text;
  };
  CHECK(counted(ts::sum(ts::log_softmax(x))) == "log_softmax backward 48 24 312; ");
  CHECK(counted(ts::sum(ts::max(x, 1))) == "max backward 12 4 4; ");  // places take eight bytes
  CHECK(counted(ts::sum(ts::embedding(x, {3, 0, 3}, {3}))) == "embedding backward 39 18 18; ");
  CHECK(counted(ts::sum(ts::linear(one, x.detach(), ts::parameter(ts::zeros({4}))))) ==
        "sum 16 4 16; ");
  CHECK(counted(ts::sum(one + b)) == "sum 24 6 24; ");
  const ts::Profile profile;
  ts::transpose(one, 0, 1).clone();
  ts::matmul(ts::slice(one, 1, 0, 6, 2), ts::zeros({3, 2}));  // copies an operand, is one op
  REQUIRE(profile.records().size() == 2);
  CHECK(profile.records()[0].name == "clone");
  CHECK(profile.records()[0].bytes_read == 4 * 24);
  CHECK(profile.records()[0].bytes_written == 4 * 24);
}

TEST_CASE("max and min: of all numbers, of a dimension, and their gradients") {
  const ts::Tensor x = ts::parameter(ts::tensor({2, 3}, {1, 5, -2, 4, -7, 0}));
  CHECK(ts::max(x).item() == 5);
  CHECK(ts::max(x).shape() == ts::Shape{});
  CHECK(ts::min(x).item() == -7);
  CHECK(ts::min(x, 0).values() == std::vector<float>{1, -7, -2});
  CHECK(ts::min(x, -1, ts::KeepDim::yes).shape() == ts::Shape{2, 1});
  CHECK(ts::mean(x, 1).values() == ts::mean(x, ts::List<int>{1}).values());
  CHECK(ts::mean(x, -1, ts::KeepDim::yes).shape() == ts::Shape{2, 1});
  (ts::max(x) * 2.0f + ts::min(x)).backward();
  CHECK(x.grad().values() == std::vector<float>{0, 2, 0, 0, 1, 0});
  CHECK(std::isnan(ts::min(ts::tensor({2}, {1, NAN})).item()));
  CHECK_THROWS_AS(ts::max(ts::zeros({0})), ts::Error);
}

TEST_CASE("errors name the op that was called and the whole shapes") {
  const ts::Tensor a = ts::ones({2, 3});
  CHECK(error_of([&] {
          ts::linear_cross_entropy(a, ts::ones({0, 3}), {-1, -1});
        }) == "linear_cross_entropy: w is [0, 3]; a row a class, at least one, is right");
  CHECK(error_of([&] { ts::pad(a, 0, 0, -5); }) ==
        "pad: 2 elements from 0 on by 1 of -5 in dimension 0 of shape [2, 3]; they must end within "
        "it");
  CHECK(error_of([&] { ts::embedding(a, ts::full({2}, 0.5f)); }) ==
        "embedding: id 0.5 at position 0; a whole number from 0 to 2^24 is right");
  CHECK(error_of([&] { ts::embedding(a, ts::full({1}, -1.0f)); }) ==
        "embedding: id -1 at position 0 is outside the table's 2 rows");
  CHECK(error_of([&] {
          ts::matmul(ts::ones({2, 3, 8}), ts::ones({3, 8, 2}));
        }) ==
        "matmul: x is [2, 3, 8], w is [3, 8, 2]; dimensions before the last two must be equal or "
        "1, from the right");
  const float w[4] = {};
  CHECK(error_of([&] { ts::kernels::quantize(2, 2, 0, 8, w); }) ==
        "quantize: groups of 0, 8 bits; groups have 1 column or more, codes 4 or 8 bits");
  CHECK(error_of([&] { ts::kernels::quantize(2, 2, 2, 5, w); }) ==
        "quantize: groups of 2, 5 bits; groups have 1 column or more, codes 4 or 8 bits");
  const ts::kernels::QuantizedMatrix q = ts::kernels::quantize(2, 2, 2, 8, w);
  float y[2];
  CHECK(error_of([&] { ts::kernels::gemm_quantized(q, 1, w, 2, y, 2, ts::Activations::f32); }) ==
        "gemm_quantized: x is to stay f32, and whole numbers are multiplied here; "
        "int8_groups or int8_blocks are right");
}

TEST_CASE("attention without numbers, and rope at places that cannot be counted") {
  const std::int64_t heads = std::int64_t{1} << 40, most = std::numeric_limits<std::int64_t>::max();
  const ts::Tensor x = ts::parameter(ts::ones({1, 2, 0}));
  for (const std::int64_t n : {heads, most}) {
    CHECK(ts::attention(x, x, x, n, n, ts::Mask::none).shape() == ts::Shape{1, 2, 0});
  }
  // No query: the keys get gradients of 0.
  const ts::Tensor q = ts::parameter(ts::ones({1, 0, 4})), k = ts::parameter(ts::ones({1, 2, 4}));
  ts::sum(ts::attention(q, k, k, 1, 1, ts::Mask::none)).backward();
  CHECK(k.grad().values() == std::vector<float>(8));
  const ts::Tensor y = ts::ones({1, 2, 4});
  CHECK(error_of([&] { ts::rope(y, 4, most); }) ==
        "rope: 2 tokens from place 9223372036854775807 on, with a jump of 0; at most 2^52 of each "
        "are right");
  CHECK(error_of([&] { ts::rope(y, 4, ts::TokenPlaces(0, 1, -most)); }) ==
        "rope: 2 tokens from place 0 on, with a jump of -9223372036854775807; at most 2^52 of each "
        "are right");
  CHECK(ts::rope(y, 4, std::int64_t{1} << 40).shape() == y.shape());
}
