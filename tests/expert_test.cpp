// Mixtures of experts: routing, capacity, the balance loss, and experts on several devices.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "error_of.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

std::size_t z(std::int64_t i) { return static_cast<std::size_t>(i); }

ts::ModelConfig mixture(int experts, int top_k, int shared = 0, bool bias = false) {
  ts::ModelConfig c;
  c.name = "mixture";
  c.layers = 2;
  c.width = 8;
  c.heads = 2;
  c.kv_heads = 2;
  c.head_size = 4;
  c.vocabulary = 11;
  c.context = 6;
  c.bias = bias;
  c.activation = bias ? ts::Activation::gelu : ts::Activation::swiglu;
  c.experts = experts;
  c.top_k = top_k;
  c.expert_hidden = 6;
  c.shared_experts = shared;
  return c;
}

// A model whose weights are large enough for every path to matter.
ts::Transformer lively(const ts::ModelConfig& config) {
  ts::Transformer model(config, 3);
  std::uint64_t seed = 100;
  for (ts::Parameter& p : model.parameters) {
    const ts::Tensor noise = ts::randn(p.value.shape(), ++seed, 0.3f);
    for (std::int64_t i = 0; i < noise.count(); ++i) {
      p.value.data()[i] += noise.data()[i];
    }
  }
  return model;
}

std::vector<std::int32_t> some_ids(std::int64_t count, std::uint64_t seed) {
  const ts::Tensor u = ts::uniform({count}, seed, 0.0f, 10.99f);
  std::vector<std::int32_t> ids;
  for (const float v : u.values()) {
    ids.push_back(static_cast<std::int32_t>(v));
  }
  return ids;
}

// Who takes what, token by token and choice by choice: the obvious way.
struct SlowRoute {
  std::vector<std::vector<int>> takes;   // of each expert: tokens
  std::vector<std::vector<int>> choice;  // of each token: experts, best first
  std::vector<std::int64_t> routed;
};

SlowRoute slow_route(const ts::Tensor& p, int top_k, const ts::ExpertOptions& options) {
  const std::int64_t n = p.dim(0), experts = p.dim(1), group = n / options.groups;
  SlowRoute out;
  out.takes.resize(z(experts));
  out.routed.resize(z(experts));
  for (std::int64_t t = 0; t < n; ++t) {
    std::vector<int> order;
    for (int e = 0; e < experts; ++e) {
      order.push_back(e);
    }
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return p.at({t, a}) > p.at({t, b});
    });
    order.resize(z(top_k));
    out.choice.push_back(order);
    for (const int e : order) {
      ++out.routed[z(e)];
      std::int64_t before = 0;  // of this group, taken already
      for (const int other : out.takes[z(e)]) {
        before += other / group == t / group ? 1 : 0;
      }
      const double limit = std::ceil(static_cast<double>(top_k * group) * options.capacity_factor /
                                     static_cast<double>(experts));
      if (options.capacity_factor <= 0 || static_cast<double>(before) < limit) {
        out.takes[z(e)].push_back(static_cast<int>(t));
      }
    }
  }
  return out;
}

// Relative distance of two lists of numbers.
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double far = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    far += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return norm > 0 ? std::sqrt(far / norm) : std::sqrt(far);
}

std::vector<float> grad_of(const ts::Tensor& t) {
  return t.grad().defined() ? t.grad().values() : std::vector<float>(z(t.count()), 0.0f);
}

}  // namespace

TEST_CASE("experts: bytes of no devices") {
  CHECK(error_of([] { ts::expert_bytes(10, 2, 8, 0); }) ==
        "expert_bytes: 0 devices; a finite number from 1 is right");
  CHECK(error_of([] { ts::expert_capacity_bytes(8, 4, 16, 0); }) ==
        "expert_capacity_bytes: 0 devices; a finite number from 1 is right");
  CHECK(error_of([] { ts::expert_count_bytes(8, 0.5); }) ==
        "expert_count_bytes: 0.5 devices; a finite number from 1 is right");
}

TEST_CASE("routing equals the obvious way, with ties, groups and every capacity") {
  for (int trial = 0; trial < 60; ++trial) {
    const int experts = 1 + trial % 7;
    const int top_k = 1 + trial % experts;
    ts::ExpertOptions options;
    options.groups = 1 + trial % 3;
    options.capacity_factor = trial % 4 == 0 ? 0 : 0.25 * (trial % 9 + 1);
    const std::int64_t n = 12 * options.groups;
    ts::Tensor p = ts::uniform({n, experts}, static_cast<std::uint64_t>(trial));
    for (std::int64_t i = 0; i < p.count(); ++i) {  // few values: many ties
      p.data()[i] = std::round(p.data()[i] * 4) / 4;
    }
    const ts::Routing got = ts::route(p, top_k, options);
    const SlowRoute right = slow_route(p, top_k, options);
    CHECK(got.routed == right.routed);
    std::vector<std::pair<int, int>> outputs;  // (expert, token) of each row
    for (int e = 0; e < experts; ++e) {
      CHECK(std::vector<int>(got.rows[z(e)].begin(), got.rows[z(e)].end()) == right.takes[z(e)]);
      CHECK(
          (got.capacity == 0 || static_cast<std::int64_t>(got.rows[z(e)].size()) <= got.capacity));
      for (const int t : got.rows[z(e)]) {
        outputs.push_back({e, t});
      }
    }
    CHECK(got.kept == static_cast<std::int64_t>(outputs.size()));
    for (std::int64_t t = 0; t < n; ++t) {
      for (int j = 0; j < top_k; ++j) {
        const std::size_t at = z(t * top_k + j);
        const int e = right.choice[z(t)][z(j)];
        const auto& takes = right.takes[z(e)];
        const bool taken = std::count(takes.begin(), takes.end(), static_cast<int>(t)) > 0;
        CHECK(got.chosen[at] == t * experts + e);
        CHECK((got.places[at] < got.kept) == taken);
        CHECK((!taken || outputs[z(got.places[at])] == std::make_pair(e, static_cast<int>(t))));
      }
    }
  }
}

TEST_CASE("experts without tokens; a loss of probabilities that were not routed") {
  const ts::Tensor none = ts::zeros({0, 3});
  const ts::Routing empty = ts::route(none, 2);
  const ts::Tensor rows = ts::expert_rows(ts::zeros({0, 4}), empty).rows;
  CHECK(ts::combine(rows, none, empty).shape() == ts::Shape{0, 4});
  CHECK(error_of([&] {
          ts::balance_loss(ts::ones({2, 7}), ts::route(ts::ones({2, 3}), 2));
        }) ==
        "balance_loss: probabilities are [2, 7], the routing has 3 experts; those that it was "
        "made of are right");
}

TEST_CASE("the capacity of an expert") {
  CHECK(ts::expert_capacity(64, 2, 8, 1.0) == 16);
  CHECK(ts::expert_capacity(64, 2, 8, 1.25) == 20);
  CHECK(ts::expert_capacity(64, 2, 8, 1.01) == 17);
  CHECK(ts::expert_capacity(10, 1, 1, 1.1) == 11);  // 11.000000000000002 in double precision
  CHECK(ts::expert_capacity(3, 1, 7, 0.01) == 1);
  CHECK_THROWS_WITH_AS(ts::expert_capacity(64, 2, 0, 1.25),
                       "expert_capacity: 64 tokens to 2 of 0 experts, capacity factor 1.25; counts "
                       "of at least 0, an expert, a factor of at least 0 are right",
                       ts::Error);
  CHECK_THROWS_AS(ts::expert_capacity(std::int64_t{1} << 62, 4, 1, 1), ts::Error);
  CHECK_THROWS_AS(ts::expert_capacity(64, 2, 8, std::nan("")), ts::Error);
}

TEST_CASE("later tokens are dropped first, in each group for itself") {
  ts::ExpertOptions options;
  options.capacity_factor = 1;  // of 4 tokens and 2 experts: 2 each
  const ts::Tensor p = ts::tensor({8, 2}, {.9f, .1f, .8f, .2f, .7f, .3f, .2f, .8f,  //
                                           .4f, .6f, .9f, .1f, .9f, .1f, .9f, .1f});
  options.groups = 2;
  const ts::Routing two = ts::route(p, 1, options);
  CHECK(two.rows[0] == std::vector<std::int32_t>{0, 1, 5, 6});
  CHECK(two.rows[1] == std::vector<std::int32_t>{3, 4});
  CHECK(two.places == std::vector<std::int32_t>{0, 1, 6, 4, 5, 2, 3, 6});
  options.groups = 1;
  const ts::Routing one = ts::route(p, 1, options);
  CHECK(one.rows[0] == std::vector<std::int32_t>{0, 1, 2, 5});
  CHECK(one.routed == std::vector<std::int64_t>{6, 2});
  ts::ExpertCounts counts;
  counts.add(1, 2, one);
  counts.add(1, 2, two);
  CHECK(counts.routed == std::vector<std::int64_t>{0, 0, 12, 4});
  CHECK(counts.dropped == std::vector<std::int64_t>{0, 0, 4, 0});
  CHECK(counts.all_routed() == 16);
  CHECK(counts.all_dropped() == 4);
}

TEST_CASE("groups whose tokens are apart drop what each device would") {
  const std::vector<std::int32_t> ring =
      ts::token_groups(ts::ContextParallel::ring, 1, 2, 1, 8);  // zigzag
  CHECK(ring == std::vector<std::int32_t>{0, 0, 1, 1, 1, 1, 0, 0});
  CHECK(ts::token_groups(ts::ContextParallel::ulysses, 2, 2, 2, 4, 2) ==
        std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 7});
  ts::ExpertOptions options;
  options.groups = 2;
  options.capacity_factor = 1;
  options.group_of = ring;
  const ts::Tensor p = ts::full({8, 2}, 0.5f);  // all choose expert 0, which takes 2 of each group
  const ts::Routing got = ts::route(p, 1, options);
  CHECK(std::vector<int>(got.rows[0].begin(), got.rows[0].end()) == std::vector<int>{0, 1, 2, 3});
  options.group_of.clear();
  const ts::Routing even = ts::route(p, 1, options);
  CHECK(std::vector<int>(even.rows[0].begin(), even.rows[0].end()) == std::vector<int>{0, 1, 4, 5});
}

TEST_CASE("a carried loss leaves the numbers and starts its own gradient") {
  const ts::Tensor a = ts::parameter(ts::tensor({2}, {3, 4}));
  const ts::Tensor b = ts::parameter(ts::tensor({2}, {5, 6}));
  const ts::Tensor y = ts::carry_loss(a * 2.0f, ts::sum(b * b), 0.5);
  CHECK(y.values() == std::vector<float>{6, 8});
  ts::sum(y * 10.0f).backward();
  CHECK(a.grad().values() == std::vector<float>{20, 20});
  CHECK(b.grad().values() == std::vector<float>{5, 6});  // 0.5 * 2 b, whatever came to y
  // The loss may depend on what it rides on, and ride on a constant.
  a.zero_grad();
  const ts::Tensor x = a * 3.0f;
  ts::sum(ts::carry_loss(x, ts::sum(x))).backward();
  CHECK(a.grad().values() == std::vector<float>{6, 6});
  b.zero_grad();
  ts::sum(ts::carry_loss(ts::ones({2}), ts::sum(b), 2)).backward();
  CHECK(b.grad().values() == std::vector<float>{2, 2});
  CHECK_FALSE(ts::carry_loss(ts::ones({2}), ts::ones({1})).requires_grad());
  CHECK(error_of([&] { ts::carry_loss(a, b); }) ==
        "carry_loss: a tensor carries a loss [2]; one number on a tensor with a shape is right");
  CHECK(error_of([&] { ts::carry_loss(ts::Tensor(), ts::sum(b)); }) ==
        "carry_loss: an empty tensor carries a loss []; one number on a tensor with a shape is "
        "right");
}

TEST_CASE("the balance loss: its value, its gradient, and both in loss()") {
  const ts::ModelConfig config = mixture(4, 2, 1);
  const std::vector<std::int32_t> ids = some_ids(12, 1), targets = some_ids(12, 2);
  const ts::Transformer plain = lively(config), balanced = lively(config);
  ts::ExpertCounts counts;
  ts::Hooks hooks;
  hooks.experts.balance_loss = 0.7;
  hooks.expert_counts = &counts;
  const ts::Tensor without = plain.loss(ids, targets, 2, 6);
  const ts::Tensor with = balanced.loss(ids, targets, 2, 6, hooks);
  CHECK(static_cast<double>(with.item() - without.item()) ==
        doctest::Approx(counts.balance_loss).epsilon(1e-5));
  CHECK(counts.balance_loss > 0.7 * 2 * 0.8);  // about its coefficient, each layer
  CHECK(counts.all_routed() == 2 * 12 * 2);
  ts::Hooks uncounted;
  uncounted.experts.balance_loss = 0.7;
  CHECK(balanced.loss(ids, targets, 2, 6, uncounted).item() == with.item());
  without.backward();
  with.backward();
  double worst = 0, largest = 0;
  int held = 0;
  for (std::size_t i = 0; i < plain.parameters.size(); ++i) {
    ts::Tensor value = balanced.parameters[i].value;
    const std::vector<float> a = grad_of(value), b = grad_of(plain.parameters[i].value);
    for (std::int64_t j = 0; j < value.count(); j += 1 + value.count() / 5) {
      const ts::NoGrad quiet;
      const float kept = value.data()[j];
      ts::ExpertCounts above, below;
      value.data()[j] = kept + 4e-3f;
      hooks.expert_counts = &above;
      balanced.loss(ids, targets, 2, 6, hooks);
      value.data()[j] = kept - 4e-3f;
      hooks.expert_counts = &below;
      balanced.loss(ids, targets, 2, 6, hooks);
      value.data()[j] = kept;
      if (above.routed == counts.routed && below.routed == counts.routed) {
        const double slope = (above.balance_loss - below.balance_loss) / 8e-3;
        const double grad = static_cast<double>(a[z(j)] - b[z(j)]);
        worst = std::max(worst, std::abs(slope - grad));
        largest = std::max(largest, std::abs(slope));
        ++held;
      }
    }
  }
  CHECK(held > 100);
  CHECK(largest > 0.1);
  CHECK(worst < 5e-4);
}

TEST_CASE("equal routing costs the coefficient, all tokens on one expert up to E times that") {
  ts::ModelConfig config = mixture(4, 1);
  config.layers = 1;
  ts::Transformer model = lively(config);
  const std::vector<std::int32_t> ids = some_ids(12, 1), targets = some_ids(12, 2);
  for (ts::Parameter& p : model.parameters) {
    if (p.name == "model.layers.0.mlp.gate.weight") {
      std::fill(p.value.data(), p.value.data() + p.value.count(), 0.0f);
    }
  }
  ts::ExpertCounts counts;
  ts::Hooks hooks;
  hooks.experts.balance_loss = 0.5;
  hooks.expert_counts = &counts;
  model.loss(ids, targets, 2, 6, hooks).backward();  // all tie: expert 0
  CHECK(counts.routed == std::vector<std::int64_t>{12, 0, 0, 0});
  CHECK(counts.balance_loss == doctest::Approx(0.5));  // P is even: 4 * 1 * 1/4
}

TEST_CASE("training learns with a capacity and a balance loss, and what is dropped is counted") {
  ts::ModelConfig config = ts::config("nano-moe");
  CHECK(config.parameters() == 2348160);
  CHECK(config.active_parameters() == ts::config("nano-llama").parameters() + 4 * 8 * 128);
  config = mixture(4, 2);
  config.vocabulary = 20;
  ts::Transformer model(config, 1);
  ts::StepOptions options;
  options.batch = 4;
  options.warmup = 0;
  options.learning_rate = 1e-2;
  options.experts.capacity_factor = 1;
  options.experts.balance_loss = 0.01;
  options.experts.groups = 2;
  ts::AdamW optimizer(model.tensors(), ts::adamw_options(options));
  std::vector<std::int32_t> tokens;
  for (std::int32_t i = 0; i < 200; ++i) {
    tokens.push_back(i % 20);
  }
  ts::ExpertCounts counts;
  ts::Hooks hooks;
  hooks.expert_counts = &counts;
  double first = 0, last = 0;
  for (std::int64_t step = 0; step < 30; ++step) {
    const ts::Batch batch = ts::make_batch(tokens, 4, 6, 5, step, 0);
    last = ts::train_step(model, optimizer, batch, options, step, hooks).loss;
    first = step == 0 ? last : first;
  }
  CHECK(last < first - 1);
  CHECK(counts.all_routed() == 30 * 2 * 24 * 2);
  CHECK(counts.all_dropped() > 0);
  options.experts.capacity_factor = -1;
  CHECK_THROWS_WITH_AS(ts::make_batch(tokens, -1, 6, 5, 0, 0),
                       "fill_batch: -1 sequences from number 0 on; 0 or more of both are right",
                       ts::Error);
  const ts::Batch batch = ts::make_batch(tokens, 4, 6, 5, 0, 0);
  CHECK(error_of([&] { ts::train_step(model, optimizer, batch, options, 0); }) ==
        "train_step: experts.capacity_factor is -1; a number from 0 to below 1000000 is right");
  options.experts.capacity_factor = 1;
  options.experts.balance_loss = std::nan("");
  CHECK(error_of([&] { ts::train_step(model, optimizer, batch, options, 0); }) ==
        "train_step: experts.balance_loss is nan; a number from 0 to below 1e+30 is right");
}

TEST_CASE("what routing refuses") {
  const ts::Tensor p = ts::uniform({6, 3}, 1);
  ts::ExpertOptions options;
  CHECK(error_of([&] { ts::route(p, 0, options); }) ==
        "route: top_k is 0 of 3 experts; 1 to 3 is right");
  options.groups = 4;
  CHECK(error_of([&] { ts::route(p, 1, options); }) ==
        "route: 6 tokens in 4 groups; a number of groups that divides the tokens is right");
  options.groups = 2;
  options.group_of = {0, 1, 0};
  CHECK(error_of([&] { ts::route(p, 1, options); }) ==
        "route: group_of has 3 entries for 6 tokens; one for each, or none");
  options.group_of = {0, 1, 0, 1, 2, 0};
  CHECK(error_of([&] { ts::route(p, 1, options); }) ==
        "route: group_of names group 2; groups are 0 to 1");
  options.group_of.clear();
  options.groups = 1;
  options.capacity_factor = -2;
  CHECK(error_of([&] { ts::route(p, 1, options); }) ==
        "route: capacity_factor is -2; a number from 0 (dropless) to 1e+06 is right");
  CHECK(error_of([] { ts::expert_part(6, 4, 0); }) ==
        "expert_part: 6 experts over 4 devices; a number of devices that divides the experts is "
        "right");
  CHECK(error_of([] { ts::expert_part(8, 4, 4); }) ==
        "expert_part: index 4 of 4 devices; 0 to 3 is right");
  CHECK(error_of([] { ts::expert_bytes(std::vector<std::int64_t>(15, 1), 4, 0, 8); }) ==
        "expert_bytes: 15 counts for 4 devices; one for each device and expert is right");
}

TEST_CASE("an expert's parameters know it") {
  const ts::Transformer model(mixture(3, 1, 1));
  for (const ts::Parameter& p : model.parameters) {
    const std::size_t at = p.name.find(".experts.");
    const int expert = at == std::string::npos ? -1 : std::stoi(p.name.substr(at + 9));
    CHECK(p.expert == expert);
  }
}

#if !defined(TINYSCALE_NO_THREADS)

namespace {

// The device's model: all of `whole`, but of the experts its own alone.
ts::Transformer with_own_experts(const ts::Transformer& whole, std::int64_t devices,
                                 std::int64_t index) {
  ts::Transformer model(whole.config, 3);
  const ts::ExpertPart own = ts::expert_part(whole.config.experts, devices, index);
  for (std::size_t i = 0; i < model.parameters.size(); ++i) {
    const int expert = whole.parameters[i].expert;
    const bool here = expert < 0 || (expert >= own.first && expert < own.first + own.count);
    model.parameters[i].value =
        here ? ts::parameter(whole.parameters[i].value.detach()) : ts::Tensor();
  }
  return model;
}

ts::Mesh node(int devices) {
  return ts::Mesh(ts::machine("h100", {1, devices}), {{"data", devices}});
}

struct Case {
  int experts, top_k, shared;
  bool bias;
  int devices;
  double capacity_factor, balance_loss;
  int copies = 1;  // of all experts
};

// A training step's loss and gradients on e devices, each with its part of the sequences, beside
// one device that is given as many groups.
void check_against_one_device(const Case& c, const ts::Transformer& whole) {
  CAPTURE(c.experts);
  CAPTURE(c.top_k);
  CAPTURE(c.devices);
  CAPTURE(c.capacity_factor);
  const std::int64_t batch = 4, time = 6;
  const std::vector<std::int32_t> ids = some_ids(batch * time, 1), to = some_ids(batch * time, 2);
  ts::ExpertCounts one;
  ts::Hooks hooks;
  hooks.experts.capacity_factor = c.capacity_factor;
  hooks.experts.balance_loss = c.balance_loss;
  ts::Hooks alone = hooks;
  const int all = c.copies * c.devices;
  alone.experts.groups = all;
  alone.expert_counts = &one;
  for (const ts::Parameter& p : whole.parameters) {
    p.value.zero_grad();
  }
  const ts::Tensor loss = whole.loss(ids, to, batch, time, alone);
  loss.backward();
  std::vector<ts::ExpertCounts> counts(z(all));
  const ts::Mesh mesh(ts::machine("h100", {1, all}), {{"copies", c.copies}, {"data", c.devices}});
  const ts::MeshRun run = mesh.run([&](ts::Device& d) {
    const ts::Transformer model = with_own_experts(whole, c.devices, d.index("data"));
    ts::Hooks own = hooks;
    own.expert_counts = &counts[z(d.rank())];
    const ts::Axes both = {"copies", "data"};
    ts::detail::add_expert_hooks(own, d, "data", both);
    const std::int64_t share = batch / all, each = share * time;
    const auto part = [&](const std::vector<std::int32_t>& tokens) {
      return std::vector<std::int32_t>(tokens.begin() + d.rank() * each,
                                       tokens.begin() + (d.rank() + 1) * each);
    };
    const ts::Tensor mine = model.loss(part(ids), part(to), share, time, own);
    (mine * (1.0f / static_cast<float>(all))).backward();
    d.keep("loss", d.all_reduce(mine.detach(), both, ts::Reduce::mean));
    for (const ts::Parameter& p : model.parameters) {
      if (p.value.defined()) {
        const ts::Tensor g = ts::tensor(p.value.shape(), grad_of(p.value));
        d.keep(p.name, d.all_reduce(g, p.expert >= 0 ? ts::Axes("copies") : both));
      }
    }
  });
  CHECK(static_cast<double>(run.kept(0, "loss").item()) ==
        doctest::Approx(static_cast<double>(loss.item())).epsilon(2e-6));
  std::vector<std::int64_t> routed(one.routed.size(), 0), dropped = routed;
  for (const ts::ExpertCounts& part : counts) {
    CHECK(part.balance_loss == doctest::Approx(one.balance_loss).epsilon(2e-6));
    for (std::size_t i = 0; i < routed.size(); ++i) {
      routed[i] += part.routed[i];
      dropped[i] += part.dropped[i];
    }
  }
  CHECK(routed == one.routed);
  CHECK(dropped == one.dropped);
  const int each = c.experts / c.devices;
  for (const ts::Parameter& p : whole.parameters) {
    if (p.name.find("k_proj.bias") != std::string::npos) {
      continue;  // shifts all scores of a query alike: its true gradient is 0
    }
    CAPTURE(p.name);
    const int rank = p.expert < 0 ? 0 : p.expert / each;
    CHECK(distance(run.kept(rank, p.name).values(), grad_of(p.value)) < 5e-6);
  }
}

}  // namespace

TEST_CASE("experts on 2 and 4 devices: losses and gradients are one device's") {
  const Case cases[] = {{4, 2, 0, false, 2, 0, 0},     {4, 2, 1, true, 4, 0, 0.1},
                        {8, 2, 1, false, 2, 0, 0.1},   {8, 3, 0, true, 4, 1, 0},
                        {4, 1, 0, false, 4, 0.5, 0.1}, {8, 2, 2, true, 2, 1.25, 0.5},
                        {2, 2, 0, false, 2, 2, 0},     {4, 1, 1, true, 1, 0, 0.2},
                        {4, 2, 1, true, 2, 0, 0.1, 2}, {6, 2, 0, false, 2, 1, 0.1, 2}};
  for (const Case& c : cases) {
    check_against_one_device(c, lively(mixture(c.experts, c.top_k, c.shared, c.bias)));
  }
}

TEST_CASE("experts without tokens, and all tokens to the first") {
  for (const double capacity_factor : {0.0, 1.0}) {
    for (const int devices : {2, 4}) {
      const ts::Transformer whole = lively(mixture(4, 1, 0, true));
      for (const ts::Parameter& p : whole.parameters) {
        if (p.name.find(".gate.weight") != std::string::npos) {  // all tie
          std::fill(p.value.origin(), p.value.origin() + p.value.count(), 0.0f);
        }
      }
      check_against_one_device({4, 1, 0, true, devices, capacity_factor, 0.1}, whole);
    }
  }
}

TEST_CASE("experts cut over tensor devices too: one sum, biases by shares") {
  for (const double capacity_factor : {0.0, 0.75}) {
    const ts::Transformer whole = lively(mixture(4, 2, 1, true));
    const ts::Tensor x = ts::parameter(ts::randn({4, 6, 8}, 11));
    const ts::Tensor r = ts::randn({4, 6, 8}, 12);
    ts::ExpertCounts one;
    ts::Hooks hooks;
    hooks.experts.capacity_factor = capacity_factor;
    hooks.experts.balance_loss = 0.3;
    ts::Hooks alone = hooks;
    alone.experts.groups = 2;
    alone.expert_counts = &one;
    const ts::Tensor y = whole.feed_forward(1, x, alone);
    ts::sum(y * r).backward();
    const ts::Mesh mesh(ts::machine("h100", {1, 4}), {{"data", 2}, {"tensor", 2}});
    const ts::MeshRun run = mesh.run([&](ts::Device& d) {
      const ts::Transformer model = with_own_experts(whole, 2, d.index("data"));
      ts::Transformer cut = model;
      for (ts::Parameter& p : cut.parameters) {
        if (p.layer == 1 && p.name.find(".mlp.") != std::string::npos && p.value.defined() &&
            p.split != ts::Split::whole) {
          const ts::Tensor all = p.value.detach();
          p.value = ts::parameter(d.shard(all, "tensor", p.split == ts::Split::rows ? 0 : 1));
        }
      }
      ts::ExpertCounts counts;
      ts::Hooks own = hooks;
      own.expert_counts = &counts;
      own.balance_weight = 0.5;
      own.partial_share = 0.5;
      own.linear_in = [&d](const ts::Tensor& t) { return d.replicate(t, "tensor"); };
      own.linear_out = [&d](const ts::Tensor& t) { return d.all_reduce(t, "tensor"); };
      ts::detail::add_expert_hooks(own, d, "data", "data");
      const ts::Tensor mine = ts::parameter(d.shard(x.detach(), "data", 0));
      const ts::Tensor out = cut.feed_forward(1, mine, own);
      ts::sum(out * d.shard(r, "data", 0)).backward();
      d.keep("y", out);
      d.keep("dx", mine.grad());
      d.keep("balance", ts::full({1}, static_cast<float>(counts.balance_loss)));
      for (const ts::Parameter& p : cut.parameters) {
        if (p.layer == 1 && p.value.defined() && p.name.find(".mlp.") != std::string::npos) {
          ts::Tensor g = ts::tensor(p.value.shape(), grad_of(p.value));
          g = p.expert < 0 ? d.all_reduce(g, "data") : g;
          d.keep(p.name, p.split == ts::Split::whole  // parts of a sum
                             ? d.all_reduce(g, "tensor")
                             : d.all_gather(g, "tensor", p.split == ts::Split::rows ? 0 : 1));
        }
      }
    });
    for (int rank = 0; rank < 4; ++rank) {
      const std::int64_t first = rank / 2 * 2;
      CHECK(distance(run.kept(rank, "y").values(),
                     ts::slice(y.detach(), 0, first, first + 2).values()) < 1e-6);
      CHECK(distance(run.kept(rank, "dx").values(),
                     ts::slice(x.grad(), 0, first, first + 2).values()) < 1e-6);
      CHECK(static_cast<double>(run.kept(rank, "balance").item()) ==
            doctest::Approx(one.balance_loss).epsilon(1e-6));
    }
    for (const ts::Parameter& p : whole.parameters) {
      if (p.layer == 1 && p.name.find(".mlp.") != std::string::npos) {
        CAPTURE(p.name);
        const int rank = p.expert < 0 ? 0 : p.expert / 2 * 2;
        CHECK(distance(run.kept(rank, p.name).values(), grad_of(p.value)) < 2e-6);
      }
    }
  }
}

TEST_CASE("experts on several devices without gradients, some of them without rows") {
  const ts::Transformer whole = lively(mixture(4, 1));
  const ts::Tensor x = ts::randn({1, 3, 8}, 5);  // 3 tokens for 4 experts
  const std::vector<float> right = whole.feed_forward(0, x, ts::Hooks()).values();
  const ts::MeshRun run = node(4).run([&](ts::Device& d) {
    const ts::NoGrad quiet;
    const ts::Transformer model = with_own_experts(whole, 4, d.rank());
    ts::Hooks own;
    ts::detail::add_expert_hooks(own, d, "data", {});
    d.keep("y", model.feed_forward(0, x, own));
  });
  for (int rank = 0; rank < 4; ++rank) {
    CHECK(distance(run.kept(rank, "y").values(), right) < 1e-6);
  }
}

TEST_CASE("bytes of dispatch and combine equal their forms, by the routing and on average") {
  for (const double capacity_factor : {0.0, 0.5, 1.25}) {
    for (const int devices : {2, 4}) {
      const ts::Transformer whole = lively(mixture(8, 2));
      std::vector<ts::ExpertCounts> counts(z(devices));
      ts::Mesh mesh = node(devices);
      mesh.algorithm = ts::Algorithm::direct;
      const ts::MeshRun run = mesh.run([&](ts::Device& d) {
        const ts::Transformer model = with_own_experts(whole, devices, d.rank());
        ts::Hooks own;
        own.experts.capacity_factor = capacity_factor;
        own.expert_counts = &counts[z(d.rank())];
        ts::detail::add_expert_hooks(own, d, "data", {});
        const auto seed = static_cast<std::uint64_t>(20 + d.rank());
        const ts::Tensor x = ts::parameter(ts::randn({2, 6, 8}, seed));
        ts::sum(model.feed_forward(0, x, own)).backward();
      });
      std::vector<std::int64_t> sent;  // [e, E], of layer 0
      for (const ts::ExpertCounts& part : counts) {
        sent.insert(sent.end(), part.routed.begin(), part.routed.begin() + 8);
      }
      const std::int64_t capacity = ts::expert_capacity(12, 2, 8, capacity_factor);
      double all = 0;
      for (int rank = 0; rank < devices; ++rank) {
        const double rows =
            capacity_factor > 0
                ? ts::expert_capacity_bytes(8, static_cast<double>(capacity), 8, devices)
                : ts::expert_bytes(sent, devices, rank, 8) + ts::expert_count_bytes(8, devices);
        CHECK(run.bytes_sent(rank) == rows);
        all += run.bytes_sent(rank);
      }
      CHECK(all > 0);
    }
  }
  // Evenly routed, both forms are one: 12 tokens, 2 choices, 4 experts on 4 devices.
  CHECK(ts::expert_bytes(std::vector<std::int64_t>(16, 6), 4, 3, 8) ==
        ts::expert_bytes(12, 2, 8, 4));
  CHECK(ts::expert_bytes(12, 2, 8, 4) == 4 * 12 * 2 * 8 * 0.75 * 4);
  CHECK(ts::expert_bytes(12, 2, 8, 1) == 0);
}

TEST_CASE("a mesh refuses experts that do not divide, and an axis that it lacks") {
  const std::string divided = error_of([] {
    node(2).run([](ts::Device& d) {
      const ts::Transformer model(mixture(3, 1));
      ts::Hooks hooks;
      ts::detail::add_expert_hooks(hooks, d, "data", {});
      model.feed_forward(0, ts::randn({1, 2, 8}, 1), hooks);
    });
  });
  CHECK(divided ==
        "mesh.run: devices 0, 1 threw: expert_part: 3 experts over 2 devices; a number of devices "
        "that divides the experts is right\n  devices 0, 1: threw after 0 calls: expert_part: 3 "
        "experts over 2 devices; a number of devices that divides the experts is right");
  const std::string lacking = error_of([] {
    node(2).run([](ts::Device& d) {
      ts::Hooks hooks;
      ts::detail::add_expert_hooks(hooks, d, "experts", {});
    });
  });
  CHECK(
      lacking ==
      "mesh.run: devices 0, 1 threw: add_expert_hooks: no axis experts on this mesh; its axes are "
      "data\n  devices 0, 1: threw after 0 calls: add_expert_hooks: no axis experts on this mesh; "
      "its axes are data");
}

#endif
