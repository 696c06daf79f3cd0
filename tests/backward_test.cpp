// The backward pass as parallel training drives it: seeded, into given places, with weights that
// are freed in between, recomputed, and in two parts.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "error_of.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

bool same_bits(const ts::Tensor& a, const ts::Tensor& b) {
  return a.defined() && b.defined() && a.shape() == b.shape() &&
         std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.count()) * sizeof(float)) == 0;
}

// The parameters of a residual block, and what it computes.
struct Block {
  explicit Block(std::uint64_t seed)
      : parameters{ts::parameter(ts::randn({8}, seed)),
                   ts::parameter(ts::randn({16, 8}, seed + 1, 0.3f)),
                   ts::parameter(ts::randn({16}, seed + 2)),
                   ts::parameter(ts::randn({16, 8}, seed + 3, 0.3f))} {}
  ts::Tensor operator()(const ts::Tensor& x) const {
    const std::vector<ts::Tensor>& p = parameters;
    const ts::Tensor h = ts::gelu(ts::linear(ts::rms_norm(x, p[0]), p[1], p[2]));
    return x + ts::dropout(ts::matmul(h, p[3]), 0.25f, 7);
  }
  std::vector<ts::Tensor> gradients() const {
    std::vector<ts::Tensor> all;
    for (const ts::Tensor& p : parameters) {
      all.push_back(p.grad().clone());
      p.zero_grad();
    }
    return all;
  }
  std::vector<ts::Tensor> parameters;
};

void check_same(const std::vector<ts::Tensor>& a, const std::vector<ts::Tensor>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    CHECK(same_bits(a[i], b[i]));
  }
}

// A context with a meter of its own.
struct OwnContext : ts::Context {
  ts::ContextScope scope{*this};
};

double flops_of(const ts::Profile& profile) {
  return profile.totals().matmul_flops + profile.totals().vector_flops;
}

}  // namespace

TEST_CASE("A seeded backward pass gives the gradients of sum(y dy)") {
  const Block block(1);
  const ts::Tensor dy = ts::randn({5, 8}, 20);
  const ts::Tensor x = ts::parameter(ts::randn({5, 8}, 21));
  ts::sum(block(x) * dy).backward();
  std::vector<ts::Tensor> wanted = block.gradients();
  wanted.push_back(x.grad().clone());
  x.zero_grad();
  const ts::Tensor before = dy.clone();
  block(x).backward(dy);
  std::vector<ts::Tensor> got = block.gradients();
  got.push_back(x.grad().clone());
  check_same(got, wanted);
  CHECK(same_bits(dy, before));  // not taken over, not written
  x.zero_grad();

  SUBCASE("a leaf gathers dy itself") {
    x.backward(dy);
    x.backward(dy);
    CHECK(same_bits(x.grad(), dy + dy));
    CHECK(same_bits(dy, before));
  }
  SUBCASE("dy may be a view") {
    const ts::Tensor turned = ts::transpose(ts::transpose(dy, 0, 1).clone(), 0, 1);
    CHECK(!turned.is_contiguous());
    block(x).backward(turned);
    CHECK(same_bits(x.grad(), got.back()));
    x.zero_grad();
    const ts::Tensor wide = ts::concat({dy, dy}, 0);
    block(x).backward(ts::slice(wide, 0, 5, 10));
    CHECK(same_bits(x.grad(), got.back()));
  }
  SUBCASE("errors") {
    const ts::Tensor y = block(x);
    CHECK(error_of([&] {
            y.backward(ts::ones({8, 5}));
          }) ==
          "backward: this tensor has shape [5, 8], dy [8, 5]; a dy of the same shape is right");
    CHECK(error_of([&] { y.backward(ts::Tensor()); }) ==
          "backward: this tensor has shape [5, 8], dy is empty; a dy of the same shape is right");
    CHECK(error_of([&] { dy.backward(dy); }) ==
          "backward: no parameter stands behind this tensor; wrap one with parameter()");
  }
}

TEST_CASE("A chain of segments gives the gradients of one graph") {
  const Block first(1), second(30);
  const ts::Tensor x = ts::randn({5, 8}, 21);
  const ts::Tensor dy = ts::randn({5, 8}, 22);
  second(first(x)).backward(dy);
  const std::vector<ts::Tensor> a = first.gradients(), b = second.gradients();
  const ts::Tensor y = first(x);
  const ts::Tensor middle = ts::detail::leaf(y, ts::MemoryKind::activation);
  CHECK(middle.storage().get() == y.storage().get());
  second(middle).backward(dy);
  CHECK(middle.grad().storage()->kind == ts::MemoryKind::activation);
  y.backward(middle.grad());
  check_same(first.gradients(), a);
  check_same(second.gradients(), b);
}

TEST_CASE("A slice of a buffer is a tensor; its bytes count once") {
  OwnContext own;
  const ts::Tensor flat = ts::arange(24);
  const double bytes = own.memory->current_total();
  CHECK(sizeof(ts::detail::Storage) <= 48);
  {
    const auto part = ts::detail::slice_storage(flat.storage(), 6, 12);
    const ts::Tensor x(ts::Shape{3, 4}, part);
    CHECK(own.memory->current_total() == bytes);
    CHECK(x.is_contiguous());
    CHECK(x.at({1, 2}) == 12);
    CHECK(ts::slice(x, 0, 1, 2).values() == std::vector<float>{10, 11, 12, 13});
    CHECK(error_of([&] { x.as_strided({13}, ts::detail::row_major({13}), 0); }) ==
          "as_strided: shape [13] reaches elements 0 to 12 of a buffer of 12");
    const ts::Tensor inner(ts::Shape{2}, ts::detail::slice_storage(part, 3, 2));
    CHECK(inner.values() == std::vector<float>{9, 10});
    ts::fill_(inner, 1);
    CHECK(flat.at({9}) == 1);
    CHECK(error_of([&] { ts::detail::slice_storage(part, 8, 5); }) ==
          "slice_storage: 5 numbers from 8 of a buffer of 12");
    // What a backward pass needs is guarded through every slice of the block.
    const ts::Tensor y = ts::mul(x, ts::parameter(x));
    CHECK(error_of([&] { ts::fill_(flat, 0); }) ==
          "fill_: a backward pass that is still to come needs the numbers of this [24] tensor; "
          "write after it, or to a clone()");
  }
  CHECK(own.memory->current_total() == bytes);
  ts::Tensor kept;
  {
    const ts::Tensor owner = ts::arange(6);
    kept = ts::Tensor(ts::Shape{2}, ts::detail::slice_storage(owner.storage(), 4, 2));
  }
  CHECK(own.memory->current_total() == bytes + 24);  // held by its slice
  CHECK(kept.values() == std::vector<float>{4, 5});
  kept = ts::Tensor();
  CHECK(own.memory->current_total() == bytes);
}

TEST_CASE("Gradients go to a place that was given in advance") {
  const Block block(1);
  const ts::Tensor x = ts::randn({5, 8}, 21), dy = ts::randn({5, 8}, 22);
  block(x).backward(dy);
  block(x).backward(dy);
  const std::vector<ts::Tensor> wanted = block.gradients();

  const ts::Tensor flat = ts::full({8 + 128 + 16 + 128 + 8}, 1e30f);  // nothing of it is read
  const ts::Tensor unused = ts::parameter(ts::ones({8}));
  std::vector<ts::Tensor> all = block.parameters;
  all.push_back(unused);
  std::int64_t first = 0;
  for (const ts::Tensor& p : all) {
    p.slot()->grad = ts::detail::slice_storage(flat.storage(), first, p.count());
    p.slot()->fresh = true;
    first += p.count();
    CHECK(!p.grad().defined());
  }
  block(x).backward(dy);
  block(x).backward(dy);
  ts::detail::flush_fresh(unused.slot());
  ts::detail::flush_fresh(all[0].slot());  // was written: stays
  first = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const ts::Tensor got = ts::slice(flat, 0, first, first + all[i].count());
    const ts::Tensor right = i < wanted.size() ? wanted[i] : ts::zeros({8});
    CHECK(same_bits(ts::reshape(got, all[i].shape()), right));
    CHECK(all[i].grad().data() == flat.data() + first);
    first += all[i].count();
  }

  SUBCASE("also of an op that hands its gradient over, and of a kernel that adds") {
    const ts::Tensor p = ts::parameter(ts::ones({4, 3})), place = ts::full({12}, 1e30f);
    const auto give = [&] {
      p.slot()->grad = ts::detail::slice_storage(place.storage(), 0, 12);
      p.slot()->fresh = true;
    };
    give();
    ts::sum(ts::scale(p, 3)).backward();
    CHECK(place.values() == std::vector<float>(12, 3.0f));
    give();
    ts::sum(ts::embedding(p, {1}, {1})).backward();
    CHECK(place.values() == std::vector<float>{0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0});
    give();
    p.zero_grad();  // gives the place back
    ts::sum(ts::scale(p, 3)).backward();
    CHECK(p.grad().data() != place.data());
    CHECK(p.grad().at({1, 1}) == 3);
    const ts::Tensor one = ts::parameter(ts::ones({1}));
    one.slot()->grad = ts::detail::slice_storage(place.storage(), 11, 1);
    one.slot()->fresh = true;
    one.backward();
    CHECK(place.at({11}) == 1);
  }
}

TEST_CASE("A weight may be freed between the forward and the backward pass") {
  const auto run = [](const std::function<ts::Tensor(const ts::Tensor&, const ts::Tensor&)>& op,
                      const ts::Shape& w_shape) {
    OwnContext own;
    const ts::Tensor x = ts::parameter(ts::randn({3, 8}, 2));
    const ts::Tensor plain = ts::parameter(ts::randn(w_shape, 3));
    const ts::Tensor numbers = plain.clone();
    const ts::Tensor y = op(x, plain);
    const ts::Tensor dy = ts::randn(y.shape(), 4);
    y.backward(dy);
    const ts::Tensor dx = x.grad().clone();
    x.zero_grad();

    const double without = own.memory->current_total();
    ts::Tensor weight;
    {
      const ts::MemoryScope scope(ts::MemoryKind::parameter);
      weight = ts::detail::leaf(numbers.clone(), ts::MemoryKind::gradient);
    }
    const ts::detail::Slot slot = weight.slot();
    slot->revocable = true;
    slot->value = weight.storage();
    const ts::Tensor again = op(x, weight);
    const double parameters = own.memory->current(ts::MemoryKind::parameter);
    const double bytes = 4 * static_cast<double>(weight.count());
    weight = ts::Tensor();
    slot->value.reset();
    CHECK(own.memory->current(ts::MemoryKind::parameter) == parameters - bytes);
    CHECK(own.memory->current_total() >= without);
    slot->value = numbers.clone().storage();
    again.backward(dy);
    CHECK(same_bits(x.grad(), dx));
    CHECK(same_bits(ts::Tensor(slot->shape, slot->grad), plain.grad()));
  };
  run([](const ts::Tensor& x, const ts::Tensor& w) { return ts::matmul(x, w); }, {8, 4});
  run([](const ts::Tensor& x, const ts::Tensor& w) { return ts::matmul_transposed(x, w); }, {4, 8});
  run([](const ts::Tensor& x, const ts::Tensor& w) { return ts::rms_norm(x, w); }, {8});
  run([](const ts::Tensor& x, const ts::Tensor& w) { return ts::layer_norm(x, w, ts::Tensor()); },
      {8});
  run([](const ts::Tensor& x, const ts::Tensor& w) { return x * w; }, {8});
  run([](const ts::Tensor& x, const ts::Tensor& w) { return x / w; }, {8});
  run([](const ts::Tensor& x, const ts::Tensor& w) { return ts::einsum("bk,kn->bn", x, w); },
      {8, 4});
  run([](const ts::Tensor& x,
         const ts::Tensor& w) { return ts::matmul(x, ts::slice(ts::transpose(w, 0, 1), 1, 1, 3)); },
      {4, 8});
  run(
      [](const ts::Tensor& x, const ts::Tensor& w) {
        return ts::recompute(
            [](const std::vector<ts::Tensor>& in) { return ts::matmul(in[0], in[1]); }, {x, w});
      },
      {8, 4});

  const ts::Tensor x = ts::parameter(ts::ones({3, 8}));
  const ts::Tensor w = ts::detail::leaf(ts::ones({8, 4}), ts::MemoryKind::gradient);
  w.slot()->revocable = true;
  w.slot()->value = w.storage();
  const ts::Tensor y = ts::sum(ts::matmul(x, w));
  w.slot()->value.reset();
  CHECK(error_of([&] { y.backward(); }) ==
        "backward: the weight [8, 4] was freed after the forward pass; gather it again first");
}

TEST_CASE("Recomputation keeps the inputs alone and gives the same gradients") {
  const Block first(1), second(30);
  const ts::Tensor p = ts::parameter(ts::randn({5, 8}, 21));
  const ts::Tensor dy = ts::randn({5, 8}, 22);
  using Body = std::function<ts::Tensor(const ts::Tensor&)>;
  const Body plain = [&](const ts::Tensor& x) { return second(first(x)); };
  const Body each = [&](const ts::Tensor& x) {
    const ts::Tensor y =
        ts::recompute([&](const std::vector<ts::Tensor>& in) { return first(in[0]); }, {x});
    return ts::recompute([&](const std::vector<ts::Tensor>& in) { return second(in[0]); }, {y});
  };
  const Body nested = [&](const ts::Tensor& x) {
    return ts::recompute([&](const std::vector<ts::Tensor>& in) { return each(in[0]); }, {x});
  };
  const auto gradients = [&](const Body& body, const ts::Tensor& x) {
    const ts::Tensor s = x.requires_grad() ? ts::silu(x) : x;
    const ts::Tensor y = body(s) * s + s;  // the input is used outside as well
    y.backward(dy);
    std::vector<ts::Tensor> all = first.gradients();
    for (const ts::Tensor& g : second.gradients()) {
      all.push_back(g);
    }
    if (x.requires_grad()) {
      all.push_back(p.grad().clone());
      p.zero_grad();
    }
    all.push_back(y);
    return all;
  };
  check_same(gradients(each, p), gradients(plain, p));
  check_same(gradients(nested, p), gradients(plain, p));
  check_same(gradients(nested, p.detach()), gradients(plain, p.detach()));  // parameters alone

  SUBCASE("memory: the input and the result") {
    OwnContext own;
    const ts::Tensor x = ts::randn({64, 8}, 1);
    const double before = own.memory->current_total();
    ts::Tensor y = nested(x);
    CHECK(own.memory->current_total() == before + 64 * 8 * 4);
    y = ts::Tensor();
    CHECK(own.memory->current_total() == before);
    y = plain(x);
    CHECK(own.memory->current_total() > before + 4 * 64 * 8 * 4);
  }
  SUBCASE("flops: the forward pass counts again") {
    const auto flops = [&](const Body& body) {
      const ts::Tensor x = p.detach();
      const ts::Profile forward;
      const ts::Tensor y = body(x);
      const double once = flops_of(forward);
      const ts::Profile backward;
      y.backward(dy);
      return std::vector<double>{once, flops_of(backward)};
    };
    const std::vector<double> a = flops(plain), b = flops(each);
    CHECK(b[0] == a[0]);
    CHECK(b[1] == a[0] + a[1]);
  }
  SUBCASE("an input handed back, an input twice, no gradient asked for") {
    const auto same = [](const std::vector<ts::Tensor>& in) { return in[0]; };
    ts::recompute(same, {ts::scale(p, 2)}).backward(dy);
    CHECK(same_bits(p.grad(), ts::scale(dy, 2)));
    p.zero_grad();
    ts::recompute([](const std::vector<ts::Tensor>& in) { return in[0] * in[1]; }, {p, p})
        .backward(dy);
    CHECK(same_bits(p.grad(), (p * dy + p * dy).detach()));
    p.zero_grad();
    CHECK(!ts::recompute(same, {p.detach()}).requires_grad());
    CHECK(ts::recompute(same, {p}).requires_grad());
    CHECK(!ts::recompute([](const std::vector<ts::Tensor>& in) { return ts::less(in[0], in[0]); },
                         {p})
               .requires_grad());
    const auto captures = [&](const std::vector<ts::Tensor>& in) { return in[0] * p; };
    const auto twice = [&](const std::vector<ts::Tensor>& in) {
      return ts::recompute(same, in) + ts::recompute(captures, in);
    };
    CHECK(ts::recompute([&](const std::vector<ts::Tensor>&) { return p; }, {}).requires_grad());
    CHECK(ts::recompute(captures, {p.detach()}).requires_grad());
    CHECK(ts::recompute(twice, {p.detach()}).requires_grad());
    const auto compiled = [&](const std::vector<ts::Tensor>& in) {
      return ts::compile([&](const std::vector<ts::Tensor>& x) {
        return std::vector<ts::Tensor>{captures(x)};
      })(in)[0];
    };
    ts::recompute(compiled, {p.detach()}).backward(dy);
    CHECK(same_bits(p.grad(), (p * dy).detach()));
    p.zero_grad();
    ts::compile([&](const std::vector<ts::Tensor>& in) {
      return std::vector<ts::Tensor>{ts::recompute(captures, in)};
    })({p.detach()})[0]
        .backward(dy);
    CHECK(same_bits(p.grad(), (p * dy).detach()));
    const ts::NoGrad scope;
    CHECK(!ts::recompute(same, {p.detach()}).requires_grad());
  }
  SUBCASE("a tensor computed outside must be an input") {
    const ts::Tensor outside = ts::scale(p, 2);
    const ts::Tensor y =
        ts::recompute([&](const std::vector<ts::Tensor>& in) { return in[0] * outside; }, {p});
    CHECK(error_of([&] { y.backward(dy); }) ==
          "recompute: the body uses a scale of shape [5, 8] that was computed outside of it; hand "
          "it over as one of the inputs");
  }
  SUBCASE("the format of the forward pass") {
    ts::Tensor y, z;
    {
      const ts::MatmulFormat format(ts::DType::bf16);
      y = plain(p);
      z = each(p);
    }
    y.backward(dy);
    const std::vector<ts::Tensor> wanted = first.gradients();
    second.gradients();
    z.backward(dy);
    check_same(first.gradients(), wanted);
  }
}

#if !defined(TINYSCALE_NO_THREADS)
TEST_CASE("recompute sees gradients that pass on any thread of a loop") {
  const ts::ThreadScope two(2);
  const ts::Tensor p = ts::parameter(ts::ones({4}));
  const std::thread::id caller = std::this_thread::get_id();
  const auto body = [&](const std::vector<ts::Tensor>& in) {
    ts::Tensor y;
    std::atomic<bool> done{false};
    ts::parallel_for(2, 1, [&](std::int64_t, std::int64_t) {
      for (int i = 0; i < 5000 && !done && std::this_thread::get_id() == caller; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the other one's turn
      }
      if (!done.exchange(true)) {
        y = in[0] * p;
      }
    });
    return y;
  };
  const ts::Tensor y = ts::recompute(body, {ts::full({4}, 3.0f)});
  REQUIRE(y.requires_grad());
  ts::sum(y).backward();
  CHECK(p.grad().values() == std::vector<float>(4, 3.0f));
}
#endif

TEST_CASE("recompute: a body that throws leaves nothing on") {
  const ts::Tensor p = ts::parameter(ts::ones({4}));
  const auto body = [](const std::vector<ts::Tensor>& in) -> ts::Tensor {
    return ts::reshape(in[0] * 2.0f, {5});
  };
  CHECK_THROWS_AS(ts::recompute(body, {p}), ts::Error);
  CHECK(ts::context().no_grad == 0);
  CHECK(ts::context().gradient_passed == nullptr);
}

TEST_CASE("Weight gradients may wait: B and W make the backward pass") {
  const Block first(1), second(30);
  const ts::Tensor table = ts::parameter(ts::randn({6, 8}, 5));
  const ts::Tensor dy = ts::randn({5, 6}, 22);
  const auto forward = [&] {  // the table is tied: its lookup must wait for the head
    const ts::Tensor x = ts::embedding(table, {1, 2, 1, 5, 1}, {5});
    return ts::matmul_transposed(second(first(x)), table);
  };
  const auto gradients = [&] {
    std::vector<ts::Tensor> all = first.gradients();
    for (const ts::Tensor& g : second.gradients()) {
      all.push_back(g);
    }
    all.push_back(table.grad().clone());
    table.zero_grad();
    return all;
  };
  double whole = 0;
  {
    const ts::Tensor y = forward();
    const ts::Profile profile;
    y.backward(dy);
    whole = flops_of(profile);
  }
  const std::vector<ts::Tensor> wanted = gradients();
  double b = 0, w = 0;
  ts::DeferWeightGradients later;
  {
    const ts::Tensor y = forward();
    const ts::Profile profile;
    y.backward(dy);
    b = flops_of(profile);
  }
  later.stop();
  CHECK(later.waiting() == 6);
  CHECK(!second.parameters[1].grad().defined());
  CHECK(!second.parameters[2].grad().defined());
  CHECK(second.parameters[0].grad().defined());
  {
    const ts::Profile profile;
    later.run();
    w = flops_of(profile);
  }
  CHECK(later.waiting() == 0);
  check_same(gradients(), wanted);
  CHECK(w == 2 * 5 * (4 * 8 * 16 + 6 * 8) + 2 * 5 * 16 + 5 * 8);  // biases, the table
  CHECK(b + w == whole);

  SUBCASE("inside a recomputation") {
    const ts::Tensor x = ts::randn({5, 8}, 3), seed = ts::randn({5, 8}, 4);
    first(x).backward(seed);
    const std::vector<ts::Tensor> right = first.gradients();
    ts::DeferWeightGradients scope;
    ts::recompute([&](const std::vector<ts::Tensor>& in) { return first(in[0]); }, {x})
        .backward(seed);
    CHECK(scope.waiting() == 2);
    scope.run();
    check_same(first.gradients(), right);
  }
  SUBCASE("weights that are no parameters do not wait") {
    const ts::DeferWeightGradients scope;
    const ts::Tensor x = ts::randn({5, 8}, 3);
    const ts::Tensor v = ts::parameter(ts::ones({8, 8}));
    ts::sum(ts::matmul(x, ts::scale(v, 2))).backward();
    CHECK(scope.waiting() == 0);
    CHECK(v.grad().defined());
    const ts::Tensor bias = ts::parameter(ts::ones({8}));
    ts::sum(ts::linear(x, v, ts::scale(bias, 2))).backward();
    CHECK(scope.waiting() == 1);
    CHECK(bias.grad().at({0}) == 10);
  }
}

TEST_CASE("Products read f16 and fp8: operands are rounded, gradients underflow") {
  const auto rounded = [](const ts::Tensor& x, ts::DType format) {
    const ts::Tensor y = x.clone();
    for (std::int64_t i = 0; i < y.count(); ++i) {
      y.origin()[i] = ts::round_to(y.origin()[i], format);
    }
    return y;
  };
  using ts::DType;
  for (const DType format : {DType::f16, DType::fp8_e4m3, DType::fp8_e5m2}) {
    CAPTURE(ts::name_of(format));
    const DType of_dy = format == DType::fp8_e4m3 ? DType::fp8_e5m2 : format;
    const ts::Tensor x = ts::randn({6, 8}, 1), w = ts::randn({5, 8}, 2);
    const ts::Tensor dy = ts::randn({6, 5}, 3);
    const ts::Tensor rx = ts::parameter(rounded(x, format)), rw = ts::parameter(rounded(w, format));
    const ts::Tensor wanted = ts::matmul_transposed(rx, rw);
    wanted.backward(rounded(dy, of_dy));
    const ts::Tensor px = ts::parameter(x), pw = ts::parameter(w);
    const ts::Profile profile;
    const ts::MatmulFormat scope(format);
    const ts::Tensor y = ts::matmul_transposed(px, pw);
    y.backward(dy);
    CHECK(same_bits(y, wanted));
    CHECK(same_bits(px.grad(), rx.grad()));
    CHECK(same_bits(pw.grad(), rw.grad()));
    CHECK(profile.records().size() == 3);
    CHECK(profile.records()[2].reads[0].format == format);
    CHECK(profile.records()[2].bytes_read == ts::bytes_of(format) * (6 * 8 + 6 * 5));

    const ts::Tensor bx = ts::parameter(ts::randn({2, 3, 8}, 4));
    const ts::Tensor bw = ts::parameter(ts::randn({2, 8, 4}, 5));
    const ts::Tensor bdy = ts::randn({2, 3, 4}, 6);
    const ts::Tensor batched = ts::matmul(bx, bw);
    batched.backward(bdy);
    const ts::Tensor first = ts::parameter(ts::slice(bx.detach(), 0, 1, 2));
    const ts::Tensor turned = ts::parameter(ts::slice(bw.detach(), 0, 1, 2));
    const ts::Tensor one = ts::matmul(ts::reshape(first, {3, 8}), ts::reshape(turned, {8, 4}));
    one.backward(ts::reshape(ts::slice(bdy, 0, 1, 2), {3, 4}));
    CHECK(same_bits(ts::slice(batched.detach(), 0, 1, 2).clone(),
                    ts::reshape(one.detach(), {1, 3, 4})));
    CHECK(same_bits(ts::slice(bx.grad(), 0, 1, 2).clone(), first.grad()));
    CHECK(same_bits(ts::slice(bw.grad(), 0, 1, 2).clone(), turned.grad()));

    // The smallest number of the format, and less than half of it: no gradient is left.
    const float smallest = of_dy == DType::f16 ? 0x1p-24f : 0x1p-16f;
    for (const float part : {1.0f, 0.4f}) {
      px.zero_grad();
      ts::matmul_transposed(px, pw).backward(ts::full({6, 5}, part * smallest));
      CHECK((px.grad().at({0, 0}) != 0) == (part == 1.0f));
    }
    const std::vector<std::int32_t> targets = {0, 1, 2, 3, 4, -1};
    CHECK(same_bits(ts::linear_cross_entropy(px, pw, targets).detach(),
                    ts::cross_entropy(ts::matmul_transposed(px, pw), targets).detach()));
  }
}

TEST_CASE(
    "the loss with its product in bf16: what the two ops apart give, a block of logits at a time") {
  const std::int64_t held = ts::detail::RoundedLinearLoss::held;
  for (const std::int64_t classes : {std::int64_t{5}, held / 17}) {  // 6 and 17 rows at once
    CAPTURE(classes);
    const std::int64_t rows = classes == 5 ? 6 : 40, width = 3;
    std::vector<std::int32_t> targets;
    for (std::int64_t i = 0; i < rows; ++i) {
      targets.push_back(i % 7 == 5 ? -1 : static_cast<std::int32_t>(i * 7919 % classes));
    }
    const ts::Tensor x = ts::randn({rows, width}, 1), w = ts::randn({classes, width}, 2);
    OwnContext own;
    const ts::MatmulFormat format(ts::DType::bf16);
    const ts::Tensor ax = ts::parameter(x), aw = ts::parameter(w);
    const ts::Tensor apart = ts::cross_entropy(ts::matmul_transposed(ax, aw), targets);
    apart.backward(ts::full({}, 4));
    const ts::Tensor fx = ts::parameter(x), fw = ts::parameter(w);
    const double before = own.memory->current_total();
    own.memory->mark();
    const ts::Profile profile;
    const ts::Tensor fused = ts::linear_cross_entropy(fx, fw, targets);
    // The logits held, two numbers a row of them, dx and dw, losses.
    const double most = 4.0 * static_cast<double>(held + 64 * rows + (rows + classes) * width);
    CHECK(own.memory->peak_total_since_mark() - before <= most);
    fused.backward(ts::full({}, 4));
    CHECK(same_bits(fused.detach(), apart.detach()));
    // Each number is a sum of f32 products in another order: of as many as there are classes or
    // rows.
    const auto alike = [](const ts::Tensor& a, const ts::Tensor& b, double terms) {
      const double top = static_cast<double>(ts::max(ts::abs(b)).item());
      return ts::allclose(a, b, 0, top * std::sqrt(terms) * 0x1p-23);
    };
    CHECK(alike(fx.grad(), ax.grad(), static_cast<double>(classes)));
    CHECK(alike(fw.grad(), aw.grad(), static_cast<double>(rows)));
    REQUIRE(profile.records().size() >= 1);
    const ts::OpRecord record = profile.records()[0];
    CHECK(record.name == "linear_cross_entropy");
    CHECK(record.reads[0].format == ts::DType::bf16);
    const double numbers = static_cast<double>(rows * width + classes * width);
    CHECK(record.bytes_read == 2 * numbers + 4 * static_cast<double>(rows));
    const ts::NoGrad none;
    CHECK(same_bits(ts::linear_cross_entropy(x, w, targets), fused.detach()));
  }
  const ts::MatmulFormat format(ts::DType::bf16);
  const ts::Tensor w = ts::parameter(ts::ones({4, 2}));
  const ts::Tensor nothing =
      ts::linear_cross_entropy(ts::zeros({0, 2}), w, std::vector<std::int32_t>());
  CHECK(nothing.item() == 0);
  nothing.backward();
  CHECK(ts::allclose(w.grad(), ts::zeros({4, 2}), 0, 0));
}

TEST_CASE("Logits are a kind of memory") {
  OwnContext own;
  const ts::MemoryScope scope(ts::MemoryKind::logits);
  const ts::Tensor x({3});
  CHECK(own.memory->current(ts::MemoryKind::logits) == 12);
  CHECK(own.memory->table().text().find("logits") != std::string::npos);
}

#if !defined(TINYSCALE_NO_THREADS)
TEST_CASE("threads of a program: scopes of one act on no other") {
  const ts::Tensor w = ts::parameter(ts::ones({2}));
  bool tracked = false;
  ts::DType format = ts::DType::bf16;
  {
    const ts::NoGrad off;
    const ts::MatmulFormat half(ts::DType::f16);
    std::thread([&] {
      tracked = (w * 2.0f).requires_grad();
      format = ts::context().matmul_format;
      const ts::NoGrad inside;
    }).join();
    CHECK(!(w * 2.0f).requires_grad());
  }
  CHECK(tracked);
  CHECK(format == ts::DType::f32);
  std::vector<std::thread> threads;
  std::vector<int> lost(4);
  for (std::size_t k = 0; k < 4; ++k) {
    threads.emplace_back([&lost, k] {
      const ts::Tensor p = ts::parameter(ts::randn({4, 4}, k));
      for (std::uint64_t i = 0; i < 200; ++i) {
        const ts::Tensor loss = ts::sum(ts::tanh(ts::matmul(ts::randn({2, 4}, i), p)));
        lost[k] += loss.requires_grad() ? 0 : 1;
        if (loss.requires_grad()) {
          loss.backward();
        }
        p.zero_grad();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(lost == std::vector<int>(4));
}

TEST_CASE("mesh: a gradient that leaves the device is refused") {
  const ts::Mesh mesh(ts::machine("tpu-v5e", {2}), {{"x", 2}});
  const ts::Tensor w = ts::parameter(ts::ones({2}));
  const std::string text =
      error_of([&] { mesh.run([&](ts::Device&) { ts::sum(w * w).backward(); }); });
  CAPTURE(text);
  CHECK(text.find("backward: on device ") != std::string::npos);
  CHECK(text.find(" a gradient reaches a parameter of shape [2] that was made outside of the "
                  "mesh's program; each device needs its own: parameter(t.detach())") !=
        std::string::npos);
  mesh.run([&](ts::Device&) {
    const ts::Tensor own = ts::parameter(w.detach());
    ts::sum(own * own).backward();
    CHECK(own.grad().values() == std::vector<float>{2, 2});
  });
}
#endif
