// Generation on many devices against one: the same ids, bytes sent and held equal to their closed
// forms, simulated time beside its own, errors.
#include <doctest/doctest.h>

#include <cmath>
#include <sstream>
#include <utility>

#include "error_of.hpp"
#include "model_files.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

#if !defined(TINYSCALE_NO_THREADS)

namespace {

using Prompts = ts::List<std::vector<std::int32_t>>;

// Hidden layer and vocabulary that no number of devices divides.
ts::ModelConfig shape_of(const std::string& style) {
  ts::ModelConfig c;
  c.name = style;
  c.layers = 3;
  c.width = 24;
  c.heads = c.kv_heads = 8;
  c.head_size = 4;
  c.hidden = 47;
  c.vocabulary = 61;
  c.context = 40;
  c.bias = style != "llama";
  if (style == "llama") {
    c.norm = ts::Norm::rms;
    c.position = ts::Position::rotary;
    c.activation = ts::Activation::swiglu;
    c.kv_heads = 2;  // fewer than devices
    c.tied = false;
    c.qk_norm = true;
  } else if (style == "mixture") {
    c.experts = 8;
    c.top_k = 2;
    c.expert_hidden = 21;
    c.shared_experts = 1;
    c.kv_heads = 4;
  } else if (style == "local") {  // two of three layers, in pieces of a page
    c.kv_heads = 4;
    c.window = 5;
    c.global_every = 3;
  }
  return c;
}

// Numbers that a device sends for a token by a ring, mean over the devices of all stages; `logits`
// and `ids` for each token that is chosen.
struct DecodeNumbers {
  double sums = 0, embedding = 0, logits = 0, queries = 0, parts = 0, stream = 0, ids = 0;
};

DecodeNumbers decode_numbers(const ts::ModelConfig& c, const ts::ServeLayout& layout, bool greedy) {
  const double n = static_cast<double>(layout.pieces()), p = static_cast<double>(layout.pipeline);
  const double s = static_cast<double>(layout.sequence), t = static_cast<double>(layout.tensor);
  const double layers = static_cast<double>(c.layers) / p, width = static_cast<double>(c.width);
  const double heads = static_cast<double>(c.heads) / t;
  const double size = static_cast<double>(c.head_size);
  const auto columns = static_cast<double>((c.vocabulary + layout.pieces() - 1) / layout.pieces());
  DecodeNumbers out;
  out.sums = 2 * layers * 2 * (n - 1) / n * width;
  out.embedding = 2 * (n - 1) / n * width / p;
  out.logits = (n - 1) * (greedy ? 2 : columns) / p;
  out.queries = layers * heads * size * (s - 1) / s;
  out.parts = layers * heads * (size + 1) * (s - 1) / s;
  out.stream = width * (p - 1) / p;
  out.ids = (p - 1) / p;
  return out;
}

// Weights that are large enough for every path to matter.
ts::Transformer lively(const ts::ModelConfig& config) {
  ts::Transformer model(config, 3);
  std::uint64_t seed = 100;
  for (ts::Parameter& p : model.parameters) {
    const ts::Tensor noise = ts::randn(p.value.shape(), ++seed, 0.2f);
    for (std::int64_t i = 0; i < noise.count(); ++i) {
      p.value.data()[i] += noise.data()[i];
    }
  }
  return model;
}

// Its matrices as they would be mapped from a file.
ts::Transformer stored(const ts::Transformer& model, ts::BlockFormat format) {
  ts::Transformer out = model;
  for (ts::Parameter& p : out.parameters) {
    if (p.shape.size() == 2) {
      ts::StoreAs how;
      how.format = format;
      p.stored = ts::Shared<ts::StoredMatrix>(new ts::StoredMatrix(
          ts::kernels::store_matrix(p.shape[0], p.shape[1], p.value.data(), how)));
      p.value = ts::Tensor();
    }
  }
  return out;
}

Prompts some_prompts() { return {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, {12}, {40, 3, 40}, {7, 8}}; }

ts::ServeOptions greedy() {
  ts::ServeOptions o;
  o.temperature = 0;
  o.pages.page_tokens = 4;
  return o;
}

// One prompt at a time through decode(), for each new token all of its own.
Prompts on_one(const ts::Transformer& model, const Prompts& prompts, std::int64_t n,
               const ts::ServeOptions& o) {
  Prompts all;
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    std::vector<std::int32_t> ids = prompts[p];
    ts::KvPages cache(model.config, o.pages);
    ts::TokenRun run;
    run.sequence = cache.add();
    run.ids = ids;
    bool stopped = false;
    for (std::int64_t i = 0; i < n && !stopped; ++i) {
      if (static_cast<std::int64_t>(ids.size()) > model.config.context) {
        cache.truncate(run.sequence, 0);
        run.ids.assign(ids.end() - model.config.context, ids.end());
      }
      const ts::Tensor logits = ts::decode(model, cache, {run});
      const std::uint64_t seed = p == 0 ? o.seed : ts::detail::parameter_seed(o.seed, p);
      const float draw = ts::uniform01(seed, static_cast<std::uint64_t>(i));
      const std::int64_t known = o.known > 0 ? o.known : model.config.vocabulary;
      ids.push_back(ts::sample_token(logits.data(), known, ids, o, draw));
      run.ids = {ids.back()};
      for (const std::int32_t stop : o.stop_tokens) {
        stopped = stopped || stop == ids.back();
      }
    }
    all.push_back(ids);
  }
  return all;
}

ts::ServeLayout cut(std::int64_t tensor, std::int64_t pipeline, std::int64_t sequence) {
  ts::ServeLayout layout;
  layout.tensor = tensor;
  layout.pipeline = pipeline;
  layout.sequence = sequence;
  return layout;
}

ts::ShardedGeneration run(const ts::Transformer& model, const ts::ServeLayout& layout,
                          std::int64_t n, const ts::ServeOptions& o,
                          const Prompts& prompts = some_prompts()) {
  return ts::generate_sharded(model, prompts, n, layout,
                              ts::machine("tpu-v5e", {static_cast<int>(layout.devices())}), o);
}

bool same(const Prompts& a, const Prompts& b) {
  bool equal = a.size() == b.size();
  for (std::size_t i = 0; i < a.size() && equal; ++i) {
    equal = a[i] == b[i];
  }
  return equal;
}

// The ids of one device, and every byte as its formula says.
void check_layouts(const ts::Transformer& model, const ts::List<ts::ServeLayout>& layouts,
                   const ts::ServeOptions& o) {
  const Prompts right = on_one(model, some_prompts(), 5, o);
  for (const ts::ServeLayout& layout : layouts) {
    CAPTURE(layout.text());
    const ts::ShardedGeneration made = run(model, layout, 5, o);
    CHECK(same(made.ids, right));
    CAPTURE(made.sent.table().text());
    CHECK(made.sent.equal(0));
    CAPTURE(made.memory.table().text());
    CHECK(made.memory.equal(0));
  }
}

const ts::ReportRow& row_of(const ts::Comparison& all, const std::string& name) {
  for (const ts::ReportRow& row : all.rows) {
    if (row.name.find(name) == 0) {
      return row;
    }
  }
  FAIL("no row " << name);
  return all.rows[0];
}

}  // namespace

TEST_CASE("sharded generation gives the ids of one device, GPT-2 style") {
  const ts::Transformer model = lively(shape_of("gpt2"));
  ts::ServeLayout halves = cut(2, 1, 1);  // two groups of prompts that take turns
  halves.microbatches = 2;
  check_layouts(
      model,
      {halves, cut(1, 1, 1), cut(2, 1, 1), cut(4, 1, 1), cut(8, 1, 1), cut(1, 2, 1), cut(1, 3, 1),
       cut(1, 1, 2), cut(1, 1, 4), cut(2, 2, 1), cut(2, 1, 2), cut(2, 2, 2)},
      greedy());
}

TEST_CASE("sharded generation gives the ids of one device, grouped queries") {
  const ts::Transformer model = lively(shape_of("llama"));
  check_layouts(model,
                {cut(2, 1, 1), cut(4, 1, 1), cut(8, 1, 1), cut(1, 3, 1), cut(1, 1, 8), cut(2, 1, 4),
                 cut(4, 2, 1), cut(4, 1, 2), cut(2, 2, 2)},
                greedy());
}

TEST_CASE("sharded generation gives the ids of one device, mixture of experts") {
  const ts::Transformer model = lively(shape_of("mixture"));
  ts::ServeLayout whole = cut(4, 1, 1), mixed = cut(2, 2, 2);
  whole.whole_experts = mixed.whole_experts = true;
  check_layouts(model, {cut(2, 1, 1), cut(8, 1, 1), cut(2, 2, 1), cut(1, 1, 4), whole, mixed},
                greedy());
}

TEST_CASE("sharded generation gives the ids of one device, windows in some layers") {
  ts::ModelConfig config = shape_of("local");
  ts::ServeOptions o = greedy();
  const ts::List<ts::ServeLayout> layouts = {cut(2, 1, 1), cut(1, 3, 1), cut(1, 1, 2),
                                             cut(1, 1, 4), cut(2, 2, 1), cut(2, 2, 2)};
  for (const std::int64_t window : {1, 3, 5, 12}) {
    CAPTURE(window);
    config.window = window;
    const ts::Transformer model = lively(config);
    config.window = config.global_every = 0;
    const Prompts without = on_one(lively(config), some_prompts(), 5, o);
    config.global_every = 3;
    const bool alike = same(on_one(model, some_prompts(), 5, o), without);
    CHECK((window == 12 || !alike));
    check_layouts(model, layouts, o);
    o.prefill_tokens = window;  // 11 tokens in several steps
    o.pages.page_tokens = 3;
    check_layouts(model, {cut(2, 1, 1), cut(1, 2, 2)}, o);
    o = greedy();
  }
}

TEST_CASE("sharded generation samples, stops, splits prompts and slides as one device does") {
  const ts::Transformer model = lively(shape_of("llama"));
  ts::ServeOptions o = greedy();
  o.temperature = 1.5;
  o.top_k = 9;
  o.repetition_penalty = 1.2;
  o.seed = 4;
  o.prefill_tokens = 3;  // the first prompt takes 4 steps
  o.known = 50;
  check_layouts(model, {cut(4, 1, 1), cut(1, 3, 1), cut(2, 2, 2)}, o);
  const Prompts free = on_one(model, some_prompts(), 7, o);
  ts::GenerateOptions batch;
  static_cast<ts::SampleOptions&>(batch) = o;
  batch.seed = o.seed;
  batch.prefill_tokens = o.prefill_tokens;
  const ts::Generation together = ts::generate_batch(model, some_prompts(), 7, batch, o.known);
  for (std::size_t i = 0; i < free.size(); ++i) {
    CHECK(together.sequences[i].ids == free[i]);
  }
  o.stop_tokens = {free[0][13], free[3][5]};  // ends the first after 3 and the last after 4
  const Prompts stopped = on_one(model, some_prompts(), 7, o);
  CHECK(stopped[0].size() <= 14);
  check_layouts(model, {cut(4, 1, 1), cut(1, 3, 1), cut(1, 1, 4), cut(2, 2, 2)}, o);
}

TEST_CASE("sharded generation goes on beyond the context as one device does") {
  const ts::Transformer model = lively(shape_of("llama"));
  const Prompts longer = on_one(model, {some_prompts()[0], {5}}, 34, greedy());  // 45 tokens of 40
  for (const ts::ServeLayout& layout : {cut(2, 1, 2), cut(1, 2, 1)}) {
    const ts::ShardedGeneration made = run(model, layout, 34, greedy(), {some_prompts()[0], {5}});
    CHECK(same(made.ids, longer));
    CHECK(made.sent.equal(0));
    CHECK(made.memory.equal(0));
  }
}

TEST_CASE("sharded generation keeps its cache in 16 and 8 bits") {
  const ts::Transformer model = lively(shape_of("llama"));
  for (const ts::DType format : {ts::DType::bf16, ts::DType::int8}) {
    ts::ServeOptions o = greedy();
    o.pages.format = format;
    check_layouts(model, {cut(2, 1, 1), cut(1, 1, 2), cut(2, 3, 1)}, o);
  }
}

TEST_CASE("sharded generation cuts stored weights, in float32") {
  const ts::Transformer model = lively(shape_of("llama"));
  check_layouts(stored(model, ts::BlockFormat::bf16), {cut(2, 1, 1), cut(2, 3, 2)}, greedy());
}

TEST_CASE("a sharded decode sends and holds what the textbook says") {
  const ts::Transformer model = lively(shape_of("llama"));
  const ts::ShardedGeneration made = run(model, cut(2, 1, 2), 5, greedy());
  // 17 prompt tokens and 4 steps of 4; n = 4, two all_reduces of D = 24 in 3 layers.
  CHECK(made.tokens == 33);
  CHECK(made.rows == 20);
  CHECK(row_of(made.sent, "sums of").counted == 4 * 33 * 3 * 2 * (2 * 3.0 / 4) * 24 * 4);
  CHECK(row_of(made.sent, "sum of").counted == 4 * 33 * (2 * 3.0 / 4) * 24 * 4);
  // 4 heads of 4 numbers on each of t = 2, over s = 2; an all_to_all of as many and their sums.
  CHECK(row_of(made.sent, "queries").counted == 4 * 33 * 3 * 4 * 4 * 0.5 * 4);
  CHECK(row_of(made.sent, "parts").counted == 4 * 33 * 3 * 4 * 5 * 0.5 * 4);
  CHECK(row_of(made.sent, "logits").counted == 4 * 20 * 3 * 2 * 4);  // two numbers to 3 others
  const DecodeNumbers each = decode_numbers(model.config, made.layout, true);
  CHECK(each.sums == 3 * 2 * 1.5 * 24);
  for (const auto& term :
       {std::make_pair("sums of", each.sums), std::make_pair("sum of", each.embedding),
        std::make_pair("queries", each.queries), std::make_pair("parts", each.parts)}) {
    CHECK(row_of(made.sent, term.first).counted == 4 * 33 * 4 * term.second);
  }
  CHECK(row_of(made.sent, "logits").counted == 4 * 20 * 4 * each.logits);
  // Pages of 4 tokens in turns, 1 KV head: of 15, 5, 7 and 6 tokens 4, 2, 2 and 2 pages; the last
  // id of each never goes in. Device 0 of the sequence axis has the even ones.
  const double page = 2.0 * 3 * 4 * 4 * 4;
  CHECK(row_of(made.memory, "cache, one").counted == (2 + 1 + 1 + 1) * page);
  CHECK(row_of(made.memory, "cache, all").counted == 2 * (4 + 2 + 2 + 2) * page);
}

TEST_CASE("stages send tokens on, and the last one ids back") {
  const ts::Transformer model = lively(shape_of("gpt2"));
  const ts::ShardedGeneration made = run(model, cut(1, 3, 1), 5, greedy());
  const DecodeNumbers each = decode_numbers(model.config, made.layout, true);
  CHECK(row_of(made.sent, "tokens to").counted == 33 * 24 * 2 * 4);
  CHECK(row_of(made.sent, "tokens to").counted == 33 * 3 * 4 * each.stream);
  CHECK(row_of(made.sent, "chosen ids").counted == 20 * 2 * 4);
  CHECK(row_of(made.sent, "chosen ids").counted == 20 * 3 * 4 * each.ids);
  CHECK(made.sent.rows.size() == 2);
}

TEST_CASE("stages work on several microbatches at once") {
  const ts::Transformer model = lively(shape_of("llama"));
  ts::Machine near = ts::machine("tpu-v5e", {3});
  near.links[0].latency = 1e-12;
  near.links[0].bandwidth = ts::Bandwidth::one_way(1e15);
  double seconds[2] = {0, 0}, busy[2] = {0, 0};
  for (const int way : {0, 1}) {
    ts::ServeLayout layout = cut(1, 3, 1);
    layout.microbatches = way == 0 ? 1 : 3;
    Prompts prompts;
    for (std::int32_t i = 0; i < 6; ++i) {
      prompts.push_back({i, 2, 3});
    }
    const ts::ShardedGeneration made =
        ts::generate_sharded(model, prompts, 12, layout, near, greedy());
    seconds[way] = made.run.seconds;
    for (const ts::TimedDevice& device : made.run.timeline.devices) {
      busy[way] += device.compute;
    }
    CHECK(made.times.rows[0].equal(0.6));
  }
  CHECK(busy[0] == doctest::Approx(seconds[0]).epsilon(0.02));  // one after the other
  CHECK(busy[1] > 2.2 * seconds[1]);                            // nearly all three at once
}

TEST_CASE("a sharded decode step takes its weights, its cache and its collectives") {
  ts::ModelConfig c = shape_of("llama");
  c.width = 256;
  c.hidden = 768;
  c.heads = 16;
  c.kv_heads = 4;
  c.head_size = 16;
  c.layers = 2;
  const ts::Transformer all(c, 1);
  c.window = 4;
  const ts::Transformer local(c, 1);
  for (const int i : {0, 1, 2}) {
    const ts::ServeLayout layout = i == 0 ? cut(4, 1, 1) : cut(2, 1, 2);
    const ts::Transformer& model = i == 2 ? local : all;
    const ts::ShardedGeneration made = ts::generate_sharded(
        model, some_prompts(), 4, layout, ts::machine("tpu-v5e", {2, 2}), greedy());
    REQUIRE(made.times.rows.size() == 1);
    const ts::ReportRow& step = made.times.rows[0];
    CAPTURE(made.table().text());
    CHECK(step.counted >= step.predicted);  // norms and residuals are on top
    CHECK(step.counted < 1.05 * step.predicted);
    const ts::ShardedGeneration node = made.on(ts::machine("h100", {1, 4}));
    CAPTURE(node.table().text());
    CHECK(node.sent.equal(0));
    CHECK(node.memory.equal(0));
    CHECK(node.run.machine().name == ts::machine("h100", {1, 4}).name);
    CHECK(node.times.rows[0].counted >= node.times.rows[0].predicted * 0.999);
    CHECK(node.times.rows[0].counted < 1.05 * node.times.rows[0].predicted);
    CHECK(node.times.rows[0].counted != step.counted);
  }
}

TEST_CASE("a sharded decode step of a mixture takes the experts that its tokens visit") {
  ts::ModelConfig c = shape_of("mixture");
  c.width = 128;
  c.heads = c.kv_heads = 8;
  c.head_size = 16;
  c.expert_hidden = 256;
  const ts::Transformer model = lively(c);
  for (const int tensor : {1, 2}) {
    const ts::ShardedGeneration made = run(model, cut(tensor, 1, 1), 12, greedy(), {{1}});
    CAPTURE(made.table().text());
    CHECK(made.times.rows[0].equal(0.05));
  }
}

TEST_CASE("the plan of serving sends what a sharded decode sends") {
  ts::ModelConfig c = shape_of("llama");
  c.kv_heads = 8;
  ts::ServingJob job;
  job.model = c;
  job.prompt = 8;
  job.output = 8;
  job.batch = 4;
  const ts::Machine four = ts::machine("tpu-v5e", {4});
  for (const ts::ServingSharding& way : ts::serving_shardings(job, four)) {
    if (way.weights == ts::WeightSharding::tensor && way.cache == ts::CacheSharding::heads) {
      REQUIRE(way.traffic.size() == 1);  // bf16, of one layer
      CHECK(2 * decode_numbers(c, cut(4, 1, 1), true).sums / 3 ==
            doctest::Approx(way.traffic[0].bytes));
    }
  }
  job.model.kv_heads = c.kv_heads = 1;
  int found = 0;
  for (const ts::ServingSharding& way : ts::serving_shardings(job, four)) {
    if (way.weights == ts::WeightSharding::tensor && way.cache == ts::CacheSharding::sequence) {
      REQUIRE(way.traffic.size() == 2);
      const DecodeNumbers each = decode_numbers(c, cut(1, 1, 4), true);
      CHECK(2 * each.sums / 3 == doctest::Approx(way.traffic[0].bytes));
      // The plan merges by a maximum and a sum, the run by their logarithm: a number a head less.
      CHECK(2 * ((each.queries + each.parts) / 3 + 8 * 0.75) ==
            doctest::Approx(way.traffic[1].bytes));
      ++found;
    }
  }
  CHECK(found == 1);
}

TEST_CASE("pages in turns: places, counts and who has them") {
  for (const std::int64_t devices : {1, 2, 3}) {
    for (std::int64_t index = 0; index < devices; ++index) {
      const ts::detail::CacheTurns turns{4, devices, index};
      std::int64_t have = 0;
      for (std::int64_t place = 0; place < 50; ++place) {
        CHECK(turns.count(place) == have);
        if (turns.mine(place)) {
          CHECK(turns.local(place) == have);
          ++have;
        }
      }
    }
  }
}

TEST_CASE("sharded generation refuses what cannot be cut") {
  const ts::Transformer model(shape_of("llama"), 1);
  const auto error = [&](const ts::ServeLayout& layout) {
    return error_of([&] { run(model, layout, 2, greedy()); });
  };
  CHECK(error_of([&] {
          ts::generate_sharded(model, some_prompts(), 2, cut(0, 1, 1), ts::machine("tpu-v5e", {1}));
        }) ==
        "generate_sharded: layout is tensor 0, pipeline 1, sequence 1; each of 1 to 1048576, "
        "microbatches from 0, is right");
  CHECK(error(cut(3, 1, 1)) ==
        "generate_sharded: llama over tensor 3, pipeline 1, sequence 1: 8 heads over 3 devices; "
        "tensor x sequence that divides 8 is right");
  CHECK(error(cut(1, 4, 1)) ==
        "generate_sharded: llama over tensor 1, pipeline 4, sequence 1: 3 layers for 4 stages; at "
        "most 3 stages are right");
  ts::ServeLayout experts = cut(2, 1, 1);
  experts.whole_experts = true;
  CHECK(error(experts) ==
        "generate_sharded: llama over tensor 2, pipeline 1, sequence 1, whole experts: it has no "
        "experts; whole_experts = false is right");
  ts::ModelConfig odd = shape_of("llama");
  odd.heads = 12;
  odd.kv_heads = 3;
  CHECK(error_of([&] { run(ts::Transformer(odd, 1), cut(2, 1, 1), 2, greedy()); }) ==
        "generate_sharded: llama over tensor 2, pipeline 1, sequence 1: 3 KV heads over tensor 2; "
        "one that divides the other is right");
  odd = shape_of("llama");
  odd.hidden = 5;
  CHECK(error_of([&] { run(ts::Transformer(odd, 1), cut(4, 1, 2), 2, greedy()); }) ==
        "generate_sharded: llama over tensor 4, pipeline 1, sequence 2: a hidden layer of 5 and a "
        "vocabulary of 61 over 8 devices; at most 5 are right");
  CHECK(error_of([&] {
          ts::generate_sharded(model, some_prompts(), 2, cut(2, 1, 1), ts::machine("tpu-v5e", {4}));
        }) ==
        "generate_sharded: tensor 2, pipeline 1, sequence 1 is 2 devices, tpu-v5e 4 has 4 chips; "
        "as many are right");
  ts::ModelConfig wide = shape_of("llama");
  wide.width = 1;
  wide.vocabulary = (1 << 24) + 1;
  CHECK(error_of([&] { run(ts::Transformer::without_numbers(wide), cut(2, 1, 1), 2, greedy()); }) ==
        "generate_sharded: llama over tensor 2, pipeline 1, sequence 1: a vocabulary of 16777217; "
        "at most 16777216 is right");
  CHECK(
      error_of([&] {
        run(ts::Transformer::without_numbers(shape_of("llama")), cut(2, 1, 1), 2, greedy());
      }) ==
      "generate_sharded: model.embed_tokens.weight of llama has no numbers; a model that was made "
      "or loaded is right");
  ts::Transformer rounded = stored(model, ts::BlockFormat::bf16);
  rounded.activations = ts::Activations::int8_blocks;
  CHECK(error_of([&] { run(rounded, cut(2, 1, 1), 2, greedy()); }) ==
        "generate_sharded: model.embed_tokens.weight of llama is bf16 and meets activations in 8 "
        "bits; devices have it in float32, so that activations in float32 are right");
}

TEST_CASE("sharded generation refuses prompts and options that cannot be run") {
  const ts::Transformer model(shape_of("llama"), 1);
  const auto error = [&](const Prompts& prompts, std::int64_t n, const ts::ServeOptions& o) {
    return error_of([&] { run(model, cut(2, 1, 1), n, o, prompts); });
  };
  CHECK(error({}, 2, greedy()) ==
        "generate_sharded: 0 prompts, 2 more tokens, prefill_tokens 512; at least 1 of each is "
        "right");
  CHECK(error({{1}}, 0, greedy()) ==
        "generate_sharded: 1 prompts, 0 more tokens, prefill_tokens 512; at least 1 of each is "
        "right");
  CHECK(error({{1}, {}}, 2, greedy()) ==
        "generate_sharded: prompt 1 has 0 tokens; 1 to 40, the context of llama, is right");
  CHECK(error({{1, 61}}, 2, greedy()) ==
        "generate_sharded: prompt 0 has the id 61; 0 to 60 is right for llama");
  ts::ServeOptions o = greedy();
  o.known = 62;
  CHECK(error({{1}}, 2, o) == "generate_sharded: known is 62; 0 to the vocabulary of 61 is right");
  o = greedy();
  o.temperature = -1;
  CHECK(error({{1}}, 2, o) ==
        "generate: temperature is -1, top_k 0; finite numbers from 0 up are right");
  o = greedy();
  o.pages.page_tokens = 0;
  CHECK(error({{1}}, 2, o)
            .find("KvPages: pages of 0 tokens, 0 of them; 1 to 1048576 tokens and 0 "
                  "or more pages are right") != std::string::npos);
  ts::Transformer broken(shape_of("llama"), 1);
  broken.parameters.back().value.data()[50 * 24] = NAN;  // of the output matrix, the last device's
  CHECK(error_of([&] { run(broken, cut(2, 1, 1), 2, greedy(), {{1}}); })
            .find("generate_sharded: the model's logit of token 50 is nan; weights that give "
                  "finite numbers are right") != std::string::npos);
}

namespace {

// The first token and as many more as a reference chose, by the inputs of its steps.
std::vector<std::int32_t> golden_ids(const std::string& name, std::size_t more) {
  std::vector<std::int32_t> ids;
  std::istringstream text(file_bytes(model_path("stories260K/golden/" + name)));
  std::string line;
  while (ids.size() <= more && std::getline(text, line)) {
    std::istringstream row(line);
    std::int32_t position = 0, input = 0;
    if (row >> position >> input) {
      ids.push_back(input);
    }
  }
  return ids;
}

void check_story(const ts::Transformer& model, const ts::ServeLayout& layout,
                 const std::vector<std::int32_t>& golden) {
  CAPTURE(layout.text());
  const auto n = static_cast<std::int64_t>(golden.size()) - 1;
  const ts::ShardedGeneration made = run(model, layout, n, greedy(), {{1}, {1, 403, 407}});
  CHECK(made.ids[0] == golden);
  CHECK(made.sent.equal(0));
  CHECK(made.memory.equal(0));
}

const char* const story_file = "stories260K/stories260K.bin";

}  // namespace

TEST_CASE("a trained model on many devices tells llama2.c's story") {
  const std::vector<std::int32_t> golden = golden_ids("runc_greedy_256_steps.tsv", 16);
  if (golden.size() < 17) {
    MESSAGE("skipped: no data/models/stories260K");
    return;
  }
  const ts::Transformer model = ts::load(model_path(story_file));
  for (const ts::ServeLayout& layout : {cut(4, 1, 1), cut(2, 2, 2), cut(1, 5, 1)}) {
    check_story(model, layout, golden);
  }
}

TEST_CASE("sharded decode: a device's model allocates its weights once, biases of experts too") {
  const ts::Transformer model = lively(shape_of("mixture"));
  for (const std::int64_t tensor : {1, 2}) {
    ts::ServeLayout layout;
    layout.tensor = tensor;
    layout.whole_experts = true;
    const ts::detail::ServePlace at(model.config, layout, 0);
    ts::Context own;
    const ts::ContextScope scope(own);
    const ts::Profile profile;
    const ts::Transformer mine = ts::detail::serve_model(model, layout, at);
    CHECK(own.memory->current(ts::MemoryKind::parameter) ==
          ts::detail::serve_weight_bytes(model, layout, at));
    CHECK(profile.totals().ops == 0);  // an expert's bias is scaled where it lies
    int biases = 0;
    for (std::size_t i = 0; i < mine.parameters.size(); ++i) {
      const ts::Parameter& p = mine.parameters[i];
      if (p.value.defined() && p.expert >= 0 &&
          p.name.find(".down_proj.bias") != std::string::npos) {
        ++biases;
        CHECK(p.value.data()[3] ==
              model.parameters[i].value.data()[3] * static_cast<float>(tensor));
      }
    }
    CHECK(biases > 0);
  }
}

TEST_CASE("weights in 4-bit blocks on many devices give the float64 reference's tokens") {
  const std::vector<std::int32_t> golden = golden_ids("ref64_gguf_q4_0_steps.tsv", 16);
  if (golden.size() < 17) {
    MESSAGE("skipped: no data/models/stories260K");
    return;
  }
  ts::LoadOptions options;
  options.weights = ts::Weights::as_stored;
  const std::string file = "stories260K/derived/stories260K-q4_0.gguf";
  const ts::Transformer model = ts::load(model_path(file), options);
  CHECK(model.is_stored());
  check_story(model, cut(2, 1, 2), golden);
}

TEST_CASE("a whole story on eight devices [slow]") {
  const std::vector<std::int32_t> golden = golden_ids("runc_greedy_256_steps.tsv", 255);
  if (golden.size() < 256) {
    MESSAGE("skipped: no data/models/stories260K");
    return;
  }
  const ts::Transformer model = ts::load(model_path(story_file));
  check_story(model, cut(2, 2, 2), golden);
}

#endif

TEST_CASE("sharded decode: pages that are enough for one device are enough for its rows") {
  ts::ModelConfig c = ts::config("nano");
  c.layers = 1;
  c.context = 8;
  const ts::Transformer model(c, 1);
  std::vector<std::int32_t> four = {1, 2, 3, 4}, eight = {1, 2, 3, 4, 5, 6, 7, 8};
  ts::ServeOptions options;
  options.temperature = 0;
  options.pages.page_tokens = 1;
  options.pages.pages = 14;
  options.prefill_tokens = 2;
  ts::List<std::vector<std::int32_t>> prompts;
  prompts.push_back(four);
  prompts.push_back(eight);
  ts::GenerateOptions plain;
  plain.temperature = 0;
  plain.pages = options.pages;
  plain.prefill_tokens = 2;
  const ts::Generation right = ts::generate_batch(model, prompts, 4, plain);
  const auto sharded = ts::generate_sharded(model, prompts, 4, ts::ServeLayout(),
                                            ts::machine("tpu-v5e", {1}), options);
  CHECK(sharded.ids[0] == right.sequences[0].ids);
  CHECK(sharded.ids[1] == right.sequences[1].ids);
}
