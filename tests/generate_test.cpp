// Generation: sampling, the paged cache, steps of many sequences, batches, drafts, beams, formats.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "error_of.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

using Ids = std::vector<std::int32_t>;

// Weights large enough that tokens differ.
ts::Transformer small_model(const std::string& kind, std::int64_t layers = 2,
                            std::uint64_t seed = 3) {
  ts::ModelConfig c;
  c.name = "tiny " + kind;
  c.layers = layers;
  c.width = 32;
  c.heads = 4;
  c.kv_heads = kind == "gpt2" ? 4 : 2;
  c.head_size = 8;
  c.hidden = 48;
  c.vocabulary = 29;
  c.context = 40;
  c.initializer_range = 0.4;
  if (kind != "gpt2") {
    c.position = ts::Position::rotary;
    c.norm = ts::Norm::rms;
    c.activation = ts::Activation::swiglu;
    c.rope_pairs = kind == "interleaved" ? ts::RopePairs::interleaved : ts::RopePairs::halves;
  } else {
    c.bias = true;
  }
  if (kind == "mixture") {
    c.experts = 4;
    c.top_k = 2;
    c.expert_hidden = 24;
  }
  ts::Transformer model(c, seed);
  for (ts::Parameter& p : model.parameters) {
    if (p.name.find("embed") != std::string::npos) {
      for (std::int64_t i = 0; i < p.value.count(); ++i) {
        p.value.data()[i] *= 40.0f;
      }
    }
  }
  return model;
}

const char* const kinds[] = {"gpt2", "llama", "interleaved", "mixture"};

ts::GenerateOptions greedy() {
  ts::GenerateOptions options;
  options.temperature = 0;
  return options;
}

double largest_difference(const float* a, const float* b, std::int64_t n) {
  double most = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    most = std::max(most, std::abs(double{a[i]} - double{b[i]}));
  }
  return most;
}

Ids random_ids(std::uint64_t seed, std::int64_t n, std::uint64_t vocabulary) {
  Ids ids;
  for (std::int64_t i = 0; i < n; ++i) {
    ids.push_back(static_cast<std::int32_t>(
        ts::random_below(seed, static_cast<std::uint64_t>(i), vocabulary)));
  }
  return ids;
}

// The weights of sampling by sorting everything.
std::vector<double> slow_weights(std::vector<float> x, const Ids& seen,
                                 const ts::SampleOptions& o) {
  std::vector<int> was(x.size());
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const bool counts =
        o.penalty_window == 0 || i + static_cast<std::size_t>(o.penalty_window) >= seen.size();
    was[static_cast<std::size_t>(seen[i])] |= counts ? 1 : 0;
  }
  const auto penalty = static_cast<float>(o.repetition_penalty);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = was[i] == 0 ? x[i] : x[i] > 0 ? x[i] / penalty : x[i] * penalty;
  }
  std::vector<std::pair<float, int>> order;
  for (std::size_t i = 0; i < x.size(); ++i) {
    order.push_back({-x[i], static_cast<int>(i)});
  }
  std::sort(order.begin(), order.end());
  std::vector<double> weights(x.size());
  double total = 0;
  const std::size_t k = o.top_k == 0 ? x.size() : static_cast<std::size_t>(o.top_k);
  for (std::size_t r = 0; r < order.size(); ++r) {
    if (r < k || order[r].first <= order[k - 1].first) {
      const double w = std::exp(double{-order[r].first + order[0].first} / o.temperature);
      weights[static_cast<std::size_t>(order[r].second)] = w;
      total += w;
    }
  }
  double sum = 0;
  for (const auto& entry : order) {
    double& w = weights[static_cast<std::size_t>(entry.second)];
    const double own = w;
    w = (o.top_p < 1 && sum >= o.top_p * total) || own < o.min_p ? 0 : own;
    sum += own;
  }
  return weights;
}

}  // namespace

TEST_CASE("sampling keeps what sorting everything keeps") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    std::vector<float> logits(20);
    for (std::size_t i = 0; i < logits.size(); ++i) {
      logits[i] = std::round(8 * ts::normal01(seed, i)) / 4;  // ties too
    }
    ts::SampleOptions o;
    o.temperature = 0.3 + double{ts::uniform01(seed, 100)};
    o.top_k = static_cast<int>(ts::random_below(seed, 101, 21));
    o.top_p = seed % 3 == 0 ? 1.0 : 0.05 + 0.9 * double{ts::uniform01(seed, 102)};
    o.min_p = seed % 2 == 0 ? 0.0 : 0.5 * double{ts::uniform01(seed, 103)};
    o.repetition_penalty = seed % 4 == 0 ? 1.0 : 1.3;
    o.penalty_window = static_cast<std::int64_t>(ts::random_below(seed, 104, 5));
    const Ids seen = random_ids(seed + 1000, 6, 20);
    const std::vector<double> got = ts::token_weights(logits.data(), 20, seen, o);
    const std::vector<double> right = slow_weights(logits, seen, o);
    INFO(seed);
    for (std::size_t i = 0; i < got.size(); ++i) {
      CHECK(got[i] == doctest::Approx(right[i]).epsilon(1e-12));
    }
    const float draw = ts::uniform01(seed, 105);
    const std::int32_t id = ts::sample_token(logits.data(), 20, seen, o, draw);
    CHECK(got[static_cast<std::size_t>(id)] > 0);
  }
}

TEST_CASE("sampling: what cannot be right is refused") {
  const ts::Transformer model = small_model("llama");
  const auto refusal = [&](const std::function<void(ts::GenerateOptions&)>& change) {
    ts::GenerateOptions options;
    change(options);
    return error_of([&] { ts::generate_tokens(model, {1}, 1, options); });
  };
  using Options = ts::GenerateOptions;
  CHECK(refusal([](Options& o) { o.top_p = 0; }) ==
        "generate: top_p is 0, min_p 0; above 0 to 1 and from 0 to 1 are right");
  CHECK(refusal([](Options& o) { o.min_p = 1.5; }) ==
        "generate: top_p is 1, min_p 1.5; above 0 to 1 and from 0 to 1 are right");
  CHECK(refusal([](Options& o) { o.repetition_penalty = 0; }) ==
        "generate: repetition_penalty is 0, penalty_window 0; a finite number above 0 and a whole "
        "one from 0 are right");
  CHECK(refusal([](Options& o) { o.penalty_window = -1; }) ==
        "generate: repetition_penalty is 1, penalty_window -1; a finite number above 0 and a whole "
        "one from 0 are right");
  CHECK(refusal([](Options& o) { o.prefill_tokens = 0; }) ==
        "generate: prefill_tokens is 0; at least 1 is right");
  CHECK(error_of([&] { ts::generate_tokens(model, Ids(41, 1), 1); }) ==
        "generate: a prompt of 41 tokens; the context of tiny llama is 40, and a prompt that fits "
        "is right");
  CHECK(error_of([&] { ts::generate_tokens(model, {}, 1); }) ==
        "generate: a prompt of 0 tokens and 1 more; at least 1 and 0 are right");
  CHECK(error_of([&] { ts::generate_tokens(model, {29}, 1); }) ==
        "embedding: id 29 at position 0 is outside the table's 29 rows");
}

TEST_CASE("a repetition penalty that makes a logit infinite is named, not the model") {
  const std::vector<float> logits = {4, -8, 1};
  ts::SampleOptions o;
  o.repetition_penalty = 1e-38;
  CHECK(error_of([&] { ts::token_weights(logits.data(), 3, {0}, o); }) ==
        "generate: repetition_penalty 1e-38 makes the logit 4 of token 0 infinite; one nearer to 1 "
        "is right");
  o.repetition_penalty = 3e38;
  CHECK(error_of([&] {
          ts::token_weights(logits.data(), 3, {2, 1}, o);
        }) ==
        "generate: repetition_penalty 3e+38 makes the logit -8 of token 1 infinite; one nearer to "
        "1 is right");
  CHECK(ts::token_weights(logits.data(), 3, {0, 2}, o)[0] > 0);
  const std::vector<float> wrong = {4, -8, NAN};
  CHECK(error_of([&] {
          ts::token_weights(wrong.data(), 3, {2, 1}, o);
        }) ==
        "generate: the model's logit of token 2 is nan; weights that give finite numbers are "
        "right");
}

TEST_CASE("pages: shared until one writes, given back, limited") {
  ts::ModelConfig c = small_model("llama").config;
  ts::CacheOptions options;
  options.page_tokens = 4;
  options.pages = 5;
  ts::KvPages cache(c, options);
  CHECK(cache.page_bytes() == 2 * 2 * 4 * 2 * 8 * 4);  // layers, halves, tokens, heads, size, f32
  const int a = cache.add();
  CHECK(cache.extend(a, 6) == 0);
  CHECK(cache.pages_in_use() == 2);
  const int b = cache.fork(a);
  CHECK(cache.pages_in_use() == 2);
  CHECK(cache.shared_pages() == 2);
  cache.page(1, a, 1)[3] = 77;
  CHECK(cache.extend(b, 1) == 6);  // the second page is copied, the first stays shared
  CHECK(cache.pages_in_use() == 3);
  CHECK(cache.shared_pages() == 1);
  CHECK(cache.page(1, b, 1)[3] == 77);
  CHECK(cache.page(1, b, 1) != cache.page(1, a, 1));
  CHECK(cache.page(1, b, 0) == cache.page(1, a, 0));
  cache.truncate(b, 4);
  CHECK(cache.pages_in_use() == 2);
  cache.extend(a, 10);  // 16 tokens: 4 pages
  CHECK(cache.bytes() == double(4 * cache.page_bytes()));
  CHECK(error_of([&] { cache.extend(b, 9); }) ==
        "KvPages: 5 pages of 4 tokens are too few; drop a sequence or give more pages");
  cache.drop(a);
  CHECK(cache.pages_in_use() <= 2);
  CHECK(error_of([&] { cache.length(a); }) == "KvPages: no sequence 0; add() gives one");
  CHECK(error_of([&] { cache.extend(b, -1); }) ==
        "KvPages: -1 more tokens behind 4; at least 0, and together less than 2^31, are right");
  CHECK(cache.add() == a);  // its number is used again
  cache.truncate(b, 2);
  CHECK(error_of([&] { cache.truncate(b, 3); }) ==
        "KvPages: truncate to 3 tokens of 2; 0 up to as many are right");
  options.format = ts::DType::fp8_e4m3;
  CHECK(error_of([&] { ts::KvPages wrong(c, options); }) ==
        "KvPages: a cache of fp8_e4m3; f32, bf16, f16 or int8 is right");
  options.format = ts::DType::int8;
  options.page_tokens = 0;
  CHECK(error_of([&] { ts::KvPages wrong(c, options); }) ==
        "KvPages: pages of 0 tokens, 5 of them; 1 to 1048576 tokens and 0 or more pages are "
        "right");
}

TEST_CASE("a copy of a cache has pages of its own") {
  const ts::Transformer model = small_model("llama");
  ts::KvPages cache(model.config);
  const int a = cache.add();
  ts::decode(model, cache, {{a, {1, 2}, false}});
  ts::KvPages copy = cache;
  const auto logits = [&](ts::KvPages& pages, const Ids& ids) {
    return ts::decode(model, pages, {{a, ids, false}}).values();
  };
  const auto alone = [&](const Ids& ids) {
    ts::KvPages fresh(model.config);
    fresh.add();
    return logits(fresh, ids);
  };
  logits(cache, {3});
  logits(copy, {9});
  const auto same = [](const std::vector<float>& x, const std::vector<float>& y) {
    return largest_difference(x.data(), y.data(), static_cast<std::int64_t>(x.size())) < 1e-5;
  };
  CHECK(same(logits(cache, {4}), alone({1, 2, 3, 4})));
  CHECK(same(logits(copy, {4}), alone({1, 2, 9, 4})));
  ts::KvPages other(model.config);
  other = copy;
  logits(copy, {5});
  CHECK(same(logits(other, {6}), alone({1, 2, 9, 4, 6})));
}

TEST_CASE("a failed extend takes nothing") {
  ts::CacheOptions options;
  options.page_tokens = 4;
  options.pages = 2;
  const ts::Transformer model = small_model("llama");
  ts::KvPages cache(model.config, options);
  const int a = cache.add();
  ts::decode(model, cache, {{a, {1, 2, 3}, false}});
  CHECK(error_of([&] {
          ts::decode(model, cache, {{a, Ids(9, 1), false}});
        }) == "KvPages: 2 pages of 4 tokens are too few; drop a sequence or give more pages");
  CHECK(cache.length(a) == 3);
  CHECK(cache.pages_in_use() == 1);
  CHECK(error_of([&] {
          ts::decode(model, cache, {{a, {30}, false}});
        }) == "embedding: id 30 at position 0 is outside the table's 29 rows");
  CHECK(cache.length(a) == 3);
}

TEST_CASE("decode: a step in any pieces gives the forward pass's logits") {
  for (const char* kind : kinds) {
    const ts::Transformer model = small_model(kind);
    const ts::NoGrad no_grad;
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      ts::CacheOptions options;
      options.page_tokens = 1 + static_cast<std::int64_t>(ts::random_below(seed, 0, 9));
      ts::KvPages cache(model.config, options);
      std::vector<Ids> texts;
      std::vector<ts::Tensor> right;
      std::vector<int> handles;
      for (std::uint64_t s = 0; s < 3; ++s) {
        const auto n = static_cast<std::int64_t>(5 + ts::random_below(seed, 10 + s, 30));
        texts.push_back(random_ids(100 * seed + s, n, 29));
        right.push_back(model.forward(texts.back(), 1, n));
        handles.push_back(cache.add());
      }
      for (std::uint64_t step = 0; step < 60; ++step) {
        ts::List<ts::TokenRun> runs;
        std::vector<std::size_t> who;
        for (std::size_t s = 0; s < 3; ++s) {
          const auto have = cache.length(handles[s]);
          const auto left = static_cast<std::int64_t>(texts[s].size()) - have;
          const auto take = std::min<std::int64_t>(
              left, static_cast<std::int64_t>(ts::random_below(seed, 1000 + 3 * step + s, 12)));
          if (take > 0) {
            ts::TokenRun run;
            run.sequence = handles[s];
            run.ids.assign(texts[s].begin() + have, texts[s].begin() + have + take);
            run.all = true;
            runs.push_back(run);
            who.push_back(s);
          }
        }
        if (runs.empty()) {
          continue;
        }
        const ts::Tensor logits = ts::decode(model, cache, runs);
        std::int64_t row = 0;
        for (std::size_t i = 0; i < runs.size(); ++i) {
          const auto n = static_cast<std::int64_t>(runs[i].ids.size());
          const std::int64_t first = cache.length(handles[who[i]]) - n;
          // logits of about 1e2: float32 sums in another order
          CHECK(largest_difference(logits.data() + row * 29, right[who[i]].data() + first * 29,
                                   n * 29) < 2e-3);
          row += n;
        }
      }
    }
  }
}

TEST_CASE("decode: what cannot be right is refused") {
  const ts::Transformer model = small_model("llama");
  ts::KvPages cache(model.config);
  const int a = cache.add();
  CHECK(error_of([&] { ts::decode(model, cache, {}); }) ==
        "decode: no runs; at least one is right");
  CHECK(error_of([&] {
          ts::decode(model, cache, {{a, {}, false}});
        }) == "decode: sequence 0 has no new tokens; at least 1 is right");
  CHECK(error_of([&] {
          ts::decode(model, cache, {{a, {1}, false}, {a, {2}, false}});
        }) == "decode: sequence 0 comes twice in one step; once is right");
  CHECK(error_of([&] {
          ts::decode(model, cache, {{a, Ids(41, 1), false}});
        }) == "decode: sequence 0 would have 41 tokens; the context of tiny llama is 40");
  CHECK(cache.length(a) == 0);
}

TEST_CASE("the same tokens: one by one, in a batch, in chunks, without a cache, with a draft") {
  for (const char* kind : kinds) {
    const ts::Transformer model = small_model(kind);
    const ts::Transformer draft = small_model(kind, 1);
    const ts::List<Ids> prompts = {{1, 5, 7, 9, 11, 3, 2}, {4}, {8, 8, 8}, Ids(40, 6)};
    ts::GenerateOptions options = greedy();
    const ts::Generation batch = ts::generate_batch(model, prompts, 45, options);
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      INFO(std::string(kind), " prompt ", i);
      const Ids alone = ts::generate_tokens(model, prompts[i], 45, options);
      CHECK(alone.size() == prompts[i].size() + 45);
      CHECK(batch.sequences[i].ids == alone);
      CHECK(batch.sequences[i].prompt == static_cast<std::int64_t>(prompts[i].size()));
      ts::GenerateOptions other = options;
      other.cache = false;
      CHECK(ts::generate_tokens(model, prompts[i], 45, other) == alone);
      other = options;
      other.prefill_tokens = 3;
      other.pages.page_tokens = 5;
      CHECK(ts::generate_tokens(model, prompts[i], 45, other) == alone);
      for (const std::int64_t guesses : {1, 4, 9}) {
        const ts::Generation made =
            ts::generate_speculative(model, draft, prompts[i], 45, guesses, options);
        CHECK(made.sequences[0].ids == alone);
        CHECK(made.accepted <= made.guessed);
      }
      // A draft that is the model itself is right, but for rounding: no draw here is near 1.
      ts::GenerateOptions drawn;
      drawn.seed = 2;
      const ts::Generation sure = ts::generate_speculative(model, model, prompts[i], 20, 4, drawn);
      CHECK(sure.accepted == sure.guessed);
      if (prompts[i].size() + 10 <= 41) {
        ts::BeamOptions one;
        one.beams = 1;
        const Ids beam = ts::beam_search(model, prompts[i], 10, one).beams[0].ids;
        CHECK(beam == Ids(alone.begin(),
                          alone.begin() + static_cast<std::ptrdiff_t>(prompts[i].size() + 10)));
      }
    }
  }
}

TEST_CASE("a batch draws for each prompt as its own seed says") {
  const ts::Transformer model = small_model("llama");
  ts::GenerateOptions options;
  options.temperature = 1;
  const ts::Generation batch = ts::generate_batch(model, {{1, 2}, {1, 2}}, 20, options);
  CHECK(batch.sequences[0].ids == ts::generate_tokens(model, {1, 2}, 20, options));
  CHECK(batch.sequences[0].ids != batch.sequences[1].ids);
}

TEST_CASE("speculative sampling is distributed as the large model's own [slow]") {
  ts::ModelConfig c = small_model("llama").config;
  c.vocabulary = 5;
  c.initializer_range = 0.3;
  const ts::Transformer model(c, 7), draft(c, 8);
  ts::GenerateOptions options;
  options.temperature = 0.9;
  // Exact probabilities of the first two tokens.
  const ts::NoGrad no_grad;
  std::vector<double> exact(25);
  const auto normal = [&](const Ids& ids) {
    const auto n = static_cast<std::int64_t>(ids.size());
    const ts::Tensor logits = model.forward(ids, 1, n);
    std::vector<double> p = ts::token_weights(logits.data() + (n - 1) * 5, 5, ids, options);
    ts::detail::normalise_weights(p);
    return p;
  };
  const std::vector<double> first = normal({1});
  for (std::int32_t a = 0; a < 5; ++a) {
    const std::vector<double> second = normal({1, a});
    for (std::size_t b = 0; b < 5; ++b) {
      exact[static_cast<std::size_t>(a) * 5 + b] = first[static_cast<std::size_t>(a)] * second[b];
    }
  }
  constexpr int draws = 6000;
  std::vector<double> seen(25);
  std::int64_t kept = 0, guessed = 0;
  for (int i = 0; i < draws; ++i) {
    options.seed = static_cast<std::uint64_t>(i) + 1;
    const ts::Generation made = ts::generate_speculative(model, draft, {1}, 3, 2, options);
    const Ids& ids = made.sequences[0].ids;
    seen[static_cast<std::size_t>(ids[1] * 5 + ids[2])] += 1;
    kept += made.accepted;
    guessed += made.guessed;
  }
  CHECK(kept > guessed / 5);
  CHECK(kept < guessed);
  double chi = 0;  // 24 degrees of freedom: above 60 once in 20,000 when right
  for (std::size_t i = 0; i < 25; ++i) {
    const double right = exact[i] * draws;
    chi += (seen[i] - right) * (seen[i] - right) / right;
  }
  CHECK(chi < 60);
}

TEST_CASE("speculative: what cannot be right is refused; tokens a step by the formula") {
  const ts::Transformer model = small_model("llama");
  ts::ModelConfig c = model.config;
  c.name = "other";
  c.vocabulary = 7;
  const ts::Transformer draft(c, 1);
  CHECK(error_of([&] { ts::generate_speculative(model, draft, {1}, 3); }) ==
        "generate_speculative: 4 guesses by other with 7 tokens for tiny llama with 29; at least 1 "
        "guess and the same tokens are right");
  CHECK(ts::speculative_tokens(0, 4) == 1);
  CHECK(ts::speculative_tokens(1, 4) == 5);
  CHECK(ts::speculative_tokens(0.5, 2) == doctest::Approx(1.75).epsilon(1e-12));
  CHECK(error_of([] { ts::speculative_tokens(1.5, 2); }) ==
        "speculative_tokens: acceptance 1.5 of 2 guesses; 0 to 1 and at least 0 are right");
  // Counted steps beside the formula, with the acceptance that was counted.
  ts::GenerateOptions options;
  options.temperature = 1;
  const ts::Transformer close = small_model("llama", 1);
  const ts::Generation made = ts::generate_speculative(model, close, {1}, 30, 3, options);
  const auto& ids = made.sequences[0].ids;
  CHECK(static_cast<std::int64_t>(ids.size()) == 31);
  CHECK(made.prefill.steps + made.decode.steps + made.accepted == 30);
  // Tokens that came, whatever was guessed; what the draft took is told too.
  CHECK(made.prefill.tokens + made.decode.tokens == 30);
  CHECK(made.draft.steps == made.guessed);
  const ts::GenerationReport report = ts::generation_report(made, ts::chip("tpu-v5e"));
  REQUIRE(report.phases.size() == 3);
  const ts::GenerationRow& decode = report.phases[1];
  CHECK(report.phases[2].name == "draft");
  CHECK(decode.tokens_per_second() ==
        doctest::Approx(double(decode.tokens) / made.decode.all.seconds));
  std::ostringstream text;
  text << report;
  CHECK(text.str().find(" guesses kept, ") != std::string::npos);
  CHECK(text.str().find("; with its time ") == std::string::npos);  // this machine's, not the TPU's
  ts::Chip here = ts::chip("tpu-v5e");
  here.measured = true;
  std::ostringstream measured;
  measured << ts::generation_report(made, here);
  CHECK(measured.str().find("; with its time ") != std::string::npos);
}

TEST_CASE("beam search finds the best of all continuations") {
  ts::ModelConfig c = small_model("llama").config;
  c.vocabulary = 4;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const ts::Transformer model(c, 20 + seed);
    const ts::NoGrad no_grad;
    ts::BeamOptions options;
    options.beams = 16;  // all of two tokens: nothing is cut before the third
    options.length_penalty = 0;
    const ts::BeamResult found = ts::beam_search(model, {2, 1}, 3, options);
    double best = -INFINITY;
    Ids right;
    for (std::int32_t n = 0; n < 64; ++n) {
      const Ids ids = {2, 1, n / 16, n / 4 % 4, n % 4};
      const ts::Tensor logits = model.forward(ids, 1, 5);
      double sum = 0;
      for (std::int64_t t = 1; t < 4; ++t) {
        sum += ts::detail::log_probabilities(
            logits.data() + t * 4,
            4)[static_cast<std::size_t>(ids[static_cast<std::size_t>(t) + 1])];
      }
      if (sum > best) {
        best = sum;
        right = ids;
      }
    }
    CHECK(found.beams[0].ids == right);
    CHECK(found.beams[0].log_probability == doctest::Approx(best).epsilon(1e-5));
    CHECK(found.beams.size() == 16);
    for (std::size_t i = 1; i < 16; ++i) {
      CHECK(found.beams[i].score <= found.beams[i - 1].score);
    }
  }
}

TEST_CASE("beams share the pages of their prompt, end at stop tokens, refuse nonsense") {
  const ts::Transformer model = small_model("llama");
  ts::BeamOptions options;
  options.pages.page_tokens = 4;
  const ts::BeamResult wide = ts::beam_search(model, Ids(16, 3), 8, options);
  CHECK(wide.beams.size() == 4);
  CHECK(wide.most_pages <= 4 + 4 * 2 + 4);  // the prompt's four once
  CHECK(wide.unshared_pages >= 4 * 5);
  ts::BeamOptions limited = options;  // as many pages as it says are enough, one less is not
  limited.beams = 5;
  limited.pages.page_tokens = 1;
  limited.pages.pages = ts::beam_search(model, Ids(3, 3), 9, limited).most_pages;
  ts::beam_search(model, Ids(3, 3), 9, limited);
  --limited.pages.pages;
  CHECK(error_of([&] {
          ts::beam_search(model, Ids(3, 3), 9, limited);
        }).find(" pages of 1 tokens are too few") != std::string::npos);
  options.stop_tokens = {wide.beams[0].ids[16]};
  const ts::BeamResult stopped = ts::beam_search(model, Ids(16, 3), 8, options);
  bool any = false;
  for (const ts::Beam& beam : stopped.beams) {
    const bool ends = beam.ids.back() == options.stop_tokens[0];
    CHECK(beam.finished == ends);
    any = any || ends;
  }
  CHECK(any);
  options.beams = 0;
  CHECK(error_of([&] { ts::beam_search(model, {1}, 3, options); }) ==
        "beam_search: 0 beams, length_penalty 1, 1 + 3 tokens in a context of 40; at least 1, a "
        "finite number and tokens that fit are right");
}

TEST_CASE("formats of the cache: the bytes they say, logits within their rounding") {
  for (const char* kind : {"llama", "gpt2"}) {
    const ts::Transformer model = small_model(kind);
    const Ids ids = random_ids(9, 30, 29);
    const ts::NoGrad no_grad;
    const ts::Tensor right = model.forward(ids, 1, 30);
    double spread = 0;
    for (std::int64_t i = 0; i < right.count(); ++i) {
      spread = std::max(spread, std::abs(double{right.data()[i]}));
    }
    const struct {
      ts::DType format;
      double bytes, bound;  // bound: the rounding of a number, times a few for the layers
    } formats[] = {{ts::DType::f32, 4, 1e-5},
                   {ts::DType::bf16, 2, 8.0 / 256},
                   {ts::DType::f16, 2, 8.0 / 2048},
                   {ts::DType::int8, 1, 8.0 / 127}};
    double before = -1;
    for (const auto& format : formats) {
      ts::CacheOptions options;
      options.format = format.format;
      options.page_tokens = 7;
      ts::KvPages cache(model.config, options);
      const int a = cache.add();
      double error = 0;
      for (std::size_t t = 0; t < ids.size(); ++t) {
        const ts::Tensor logits = ts::decode(model, cache, {{a, {ids[t]}, false}});
        error = std::max(error,
                         largest_difference(logits.data(),
                                            right.data() + static_cast<std::int64_t>(t) * 29, 29));
      }
      INFO(ts::name_of(format.format));
      CHECK(error < format.bound * spread);
      CHECK((format.format == ts::DType::f32 || error > 0));
      const double row = static_cast<double>(model.config.kv_heads) *
                         (8 * format.bytes + (format.format == ts::DType::int8 ? 4 : 0));
      CHECK(double(cache.token_bytes()) == 2 * 2 * row);
      CHECK(cache.bytes_read(a, 0) == 2 * 30 * row);
      before = error;
    }
    CHECK(before > 0);
  }
}

TEST_CASE("stop tokens, on_token and stop texts end a sequence") {
  ts::ModelConfig c = small_model("llama").config;
  c.vocabulary = 256;
  ts::Transformer model(c, 3);
  const Ids all = ts::generate_tokens(model, {65}, 30, greedy());
  ts::GenerateOptions options = greedy();
  options.stop_tokens = {all[5]};
  const ts::Generation token = ts::generate_batch(model, {{65}}, 30, options);
  CHECK(token.sequences[0].ended == ts::Ended::token);
  const auto end = std::find(all.begin() + 1, all.end(), all[5]) - all.begin();
  CHECK(token.sequences[0].ids == Ids(all.begin(), all.begin() + end + 1));
  options = greedy();
  int count = 0;
  options.on_token = [&](std::int64_t prompt, std::int32_t id) {
    CHECK(prompt == 0);
    CHECK(id == all[static_cast<std::size_t>(++count)]);
    return count < 4;
  };
  const ts::Generation asked = ts::generate_batch(model, {{65}}, 30, options);
  CHECK(asked.sequences[0].ended == ts::Ended::asked);
  CHECK(asked.sequences[0].ids.size() == 5);
  // Told of the stop token too, also of a draft's guesses.
  Ids told = {65};
  options.stop_tokens = {all[5]};
  options.on_token = [&](std::int64_t, std::int32_t id) {
    told.push_back(id);
    return true;
  };
  for (const bool drafted : {false, true}) {
    told.resize(1);
    const ts::Generation made = drafted
                                    ? ts::generate_speculative(model, model, {65}, 30, 4, options)
                                    : ts::generate_batch(model, {{65}}, 30, options);
    CHECK(made.sequences[0].ended == ts::Ended::token);
    CHECK(made.sequences[0].ids == told);
    CHECK(told == token.sequences[0].ids);
  }
  // Guesses behind the end, which all would be right here, are not counted as kept.
  for (const std::int64_t length : {1, 2, 3, 4, 5, 6, 8}) {
    std::int64_t left = length;
    options = greedy();
    options.on_token = [&](std::int64_t, std::int32_t) { return --left > 0; };
    const ts::Generation made = ts::generate_speculative(model, model, {65}, 30, 4, options);
    CHECK(made.sequences[0].ended == ts::Ended::asked);
    CHECK(made.sequences[0].ids == Ids(all.begin(), all.begin() + length + 1));
    CHECK(made.prefill.tokens + made.decode.tokens == length);
    CHECK(made.accepted == length - length / 5);  // of 5 tokens a step the last is no guess
  }
}

TEST_CASE("text comes in whole characters and ends before a stop text") {
  const auto streamed = [](const std::vector<std::string>& pieces,
                           const std::vector<std::string>& stops) {
    std::string told;
    const std::function<void(const std::string&)> on_text = [&](const std::string& piece) {
      CHECK(ts::detail::unfinished_bytes(piece) == 0);
      told += piece + "|";
    };
    ts::detail::TextStream stream(stops, on_text);
    for (const std::string& piece : pieces) {
      if (!stream.add(piece)) {
        break;
      }
    }
    stream.finish();
    std::string joined = told;
    joined.erase(std::remove(joined.begin(), joined.end(), '|'), joined.end());
    CHECK(joined == stream.text());
    return told;
  };
  CHECK(streamed({"ab", "c"}, {}) == "ab|c|");
  CHECK(streamed({"\xE2\x82", "\xAC", "x"}, {}) == "\xE2\x82\xAC|x|");
  CHECK(streamed({"one\nUs", "er: two"}, {"\nUser:"}) == "one|");
  CHECK(streamed({"one\nUs", "ual"}, {"\nUser:"}) == "one|\nUsual|");
  CHECK(streamed({"aab", "aac"}, {"aac", "zz"}) == "aab|");
  CHECK(streamed({"x", "stop", "y"}, {"top"}) == "x|s|");
  CHECK(error_of([&] { streamed({"a"}, {""}); }) ==
        "generate: an empty stop text; at least one byte is right");
}

TEST_CASE("what a step reads and computes: the formula beside the counter") {
  for (const char* kind : {"gpt2", "llama", "mixture"}) {  // the last: experts that are visited
    for (const bool stored : {false, true}) {
      ts::Transformer model = small_model(kind);
      if (stored) {
        ts::LoadOptions options;
        options.weights = ts::Weights::bf16;
        model = ts::with_weights(model, options);
      }
      ts::KvPages cache(model.config);
      const int a = cache.add(), b = cache.add();
      ts::decode(model, cache, {{a, {1, 2, 3, 4, 5}, false}});
      ts::StepTotals totals;
      ts::Profile profile;
      ts::decode(model, cache, {{a, {6}, false}, {b, {7, 8, 9}, false}}, &totals);
      double weights = 0, flops = 0;
      for (const ts::OpRecord& op : profile.records()) {
        if (op.name == "matmul" || op.name == "linear") {
          weights += op.reads[1].bytes();
        }
        flops += op.matmul_flops;
      }
      INFO(std::string(kind), stored ? " bf16" : " f32");
      CHECK(totals.all.weight_bytes == weights);
      CHECK(totals.all.matmul_flops == flops);
      const double row = static_cast<double>(model.config.kv_heads * 8 * 4);
      CHECK(totals.all.cache_bytes == 2 * 2 * (6 + 3) * row);
      CHECK(totals.tokens == 4);
      CHECK(totals.parts.size() == 3);
    }
  }
}

TEST_CASE("the report: prefill and decode beside a chip's roofline") {
  const ts::Transformer model = small_model("llama");
  const ts::Generation made = ts::generate_batch(model, {{1, 2, 3, 4}}, 5, greedy());
  const ts::Chip chip = ts::chip("tpu-v5e");
  const ts::GenerationReport report = ts::generation_report(made, chip, ts::DType::bf16);
  REQUIRE(report.phases.size() == 2);
  CHECK(report.phases[0].name == "prefill");
  CHECK(report.phases[0].tokens == 4);
  const ts::GenerationRow& decode = report.phases[1];
  CHECK(decode.steps == 4);
  CHECK(decode.bound == "memory");
  CHECK(decode.formula == doctest::Approx(decode.bytes / decode.bandwidth).epsilon(1e-12));
  CHECK(decode.predicted_tokens_per_second() == doctest::Approx(1 / decode.formula).epsilon(1e-12));
  CHECK(report.layers.size() == 3);
  double bytes = 0;
  for (const ts::GenerationRow& row : report.layers) {
    bytes += row.bytes;
  }
  CHECK(bytes == doctest::Approx(decode.bytes).epsilon(1e-12));
  CHECK(report.table().text().find("decode") != std::string::npos);
  CHECK(report.table().columns.size() == 9);  // none that was measured on another machine
  CHECK(report.table().text().find("measured") == std::string::npos);
  ts::Chip here = chip;
  here.measured = true;
  CHECK(ts::generation_report(made, here).layer_table().columns.size() == 13);
}

TEST_CASE("formats of weights: bytes shrink, errors grow, perplexity is the loss's") {
  const ts::Transformer model = small_model("llama");
  const Ids ids = random_ids(5, 60, 29);
  ts::List<ts::FormatChoice> choices(3);
  choices[0].name = "bf16";
  choices[0].options.weights = ts::Weights::bf16;
  choices[1].name = "int8";
  choices[1].options.weights = ts::Weights::int8;
  choices[1].options.group = 16;
  choices[2].name = "int4";
  choices[2].options.weights = ts::Weights::int4;
  choices[2].options.group = 16;
  const ts::FormatReport report = ts::compare_formats(model, ids, choices, 8);
  REQUIRE(report.rows.size() == 4);
  CHECK(report.rows[0].logit_error == 0);
  CHECK(report.rows[0].same_top == 1);
  for (std::size_t i = 1; i < 4; ++i) {
    CHECK(report.rows[i].weight_bytes < report.rows[i - 1].weight_bytes);
    CHECK(report.rows[i].logit_error > report.rows[i - 1].logit_error);
    CHECK(report.rows[i].largest_error >= report.rows[i].logit_error);
  }
  CHECK(report.rows[1].weight_bytes == report.rows[0].weight_bytes / 2);
  CHECK(ts::compare_formats(model, ids, {}, 1).rows[0].weight_bytes == report.rows[0].weight_bytes);
  // Windows of 40 tokens: 39 and 19 predictions.
  const ts::NoGrad no_grad;
  const double a = double{
      model.loss(Ids(ids.begin(), ids.begin() + 39), Ids(ids.begin() + 1, ids.begin() + 40), 1, 39)
          .item()};
  const double b = double{
      model.loss(Ids(ids.begin() + 40, ids.begin() + 59), Ids(ids.begin() + 41, ids.end()), 1, 19)
          .item()};
  CHECK(ts::mean_loss(model, ids) == doctest::Approx((39 * a + 19 * b) / 58).epsilon(1e-5));
  CHECK(ts::perplexity(model, ids) ==
        doctest::Approx(std::exp((39 * a + 19 * b) / 58)).epsilon(1e-4));
  CHECK(error_of([&] { ts::mean_loss(model, {1}); }) ==
        "mean_loss: 1 tokens; at least 2 are right, each but the first is predicted");
  CHECK(error_of([&] {
          ts::mean_loss(model, {1, 99});
        }) == "mean_loss: id 99 at position 1 is outside the 29 tokens of tiny llama");
  ts::Transformer broken(model.config, 1);
  broken.parameters.back().value.data()[0] = NAN;
  CHECK(error_of([&] { ts::perplexity(broken, ids); }) ==
        "mean_loss: token 1 has the loss nan; weights that give finite logits are right");
  ts::LoadOptions kept;
  const ts::Transformer fixed = ts::with_weights(model, kept);
  CHECK(fixed.is_stored());
  CHECK(ts::mean_loss(fixed, ids) == doctest::Approx(ts::mean_loss(model, ids)).epsilon(1e-5));
  ts::Tensor norm = model.parameters.back().value.detach();  // of the model alone
  const double before = ts::mean_loss(fixed, ids);
  const float first = norm.data()[0];
  norm.data()[0] = 5;
  CHECK(ts::mean_loss(fixed, ids) == before);
  norm.data()[0] = first;
  kept.weights = ts::Weights::int8;
  for (const ts::Parameter& p : broken.parameters) {
    p.value.detach().data()[0] = p.name == "model.layers.0.mlp.up_proj.weight" ? 1e6f : 0.0f;
  }
  CHECK(error_of([&] { ts::with_weights(broken, kept); }) ==
        "with_weights: model.layers.0.mlp.up_proj.weight: quantize: weight 0, 0 is 1000000; "
        "weights must be within +-65504");
  kept.weights = ts::Weights::as_stored;
  CHECK(error_of([&] { ts::with_weights(model, kept); }) ==
        "with_weights: weights f32, bf16, int8 or int4 are right; load(path, options) keeps what a "
        "file has");
  const ts::Transformer stored = ts::with_weights(model, choices[0].options);
  CHECK(error_of([&] { ts::with_weights(stored, choices[0].options); }) ==
        "with_weights: model.embed_tokens.weight of tiny llama is bf16; f32 is right");
  CHECK(error_of([&] { stored.tensors(); }) ==
        "tensors: model.embed_tokens.weight of tiny llama is bf16 and only runs; load(path) gives "
        "weights that learn");
  CHECK(error_of([&] { stored.loss({1}, {2}, 1, 1); }) ==
        "forward: model.embed_tokens.weight of tiny llama is stored as bf16 and only runs; "
        "load(path) gives weights that learn");
}

TEST_CASE("a window: each token sees the last few, in the cache and in their pages") {
  ts::ModelConfig c = small_model("llama").config;
  c.layers = 1;  // of one layer the tokens before the window are gone for good
  c.window = 5;
  ts::ModelConfig whole = c;
  whole.window = 0;
  const ts::Transformer model(c, 4), right(whole, 4);
  const Ids ids = random_ids(3, 24, 29);
  const ts::NoGrad no_grad;
  const ts::Tensor at_once = model.forward(ids, 1, 24);
  for (const std::size_t chunk : {1, 3, 24}) {
    ts::KvPages cache(c);
    const int a = cache.add();
    for (std::size_t at = 0; at < ids.size(); at += chunk) {
      const Ids part(ids.begin() + static_cast<std::ptrdiff_t>(at),
                     ids.begin() + static_cast<std::ptrdiff_t>(at + chunk));
      const ts::Tensor logits = ts::decode(model, cache, {{a, part, true}});
      for (std::size_t i = 0; i < chunk; ++i) {
        const std::size_t end = at + i + 1, first = end > 5 ? end - 5 : 0;
        const auto n = static_cast<std::int64_t>(end - first);
        const ts::Tensor seen =  // rotary positions tell distances alone
            right.forward(Ids(ids.begin() + static_cast<std::ptrdiff_t>(first),
                              ids.begin() + static_cast<std::ptrdiff_t>(end)),
                          1, n);
        CHECK(largest_difference(logits.data() + 29 * i, seen.data() + 29 * (n - 1), 29) < 1e-5);
        CHECK(largest_difference(logits.data() + 29 * i, at_once.data() + 29 * (at + i), 29) <
              1e-5);
      }
    }
    CHECK(cache.bytes_read(a, 0) == 2 * 5 * 2 * 8 * 4);
  }
  c.layers = 2;
  c.global_every = 2;
  const ts::Transformer mixed(c, 4);
  CHECK(ts::generate_tokens(mixed, {1, 2}, 20, greedy()).size() == 22);
}

TEST_CASE("factors of rotary frequencies: decode as forward, saved and loaded") {
  ts::ModelConfig c = small_model("llama").config;
  c.rope_factors = {1, 1.5f, 4, 8};
  const ts::Transformer model(c, 4), plain(small_model("llama").config, 4);
  const Ids ids = random_ids(3, 20, 29);
  const ts::NoGrad no_grad;
  const ts::Tensor right = model.forward(ids, 1, 20);
  ts::KvPages cache(c);
  const ts::Tensor logits = ts::decode(model, cache, {{cache.add(), ids, true}});
  CHECK(largest_difference(logits.data(), right.data(), 20 * 29) < 1e-5);
  CHECK(largest_difference(plain.forward(ids, 1, 20).data(), right.data(), 20 * 29) > 1e-3);
  const std::string json = ts::detail::config_json(c);
  CHECK(ts::detail::config_from_json(json, "test").rope_factors == c.rope_factors);
  c.rope_factors = {1, 2};
  CHECK(error_of([&] { c.validate(); }) ==
        "ModelConfig: tiny llama: 2 rope_factors for a head of 8; one a pair is right, or none");
  c.rope_factors = {1, 2, 0, 1};
  CHECK(error_of([&] { c.validate(); }) ==
        "ModelConfig: tiny llama: a rope_factor is 0; a number above 0 and below 1e+30 is right");
}

TEST_CASE("beams go on when all their best tokens are stop tokens") {
  const ts::Transformer model = small_model("llama");
  const ts::NoGrad no_grad;
  const Ids prompt = {2, 1};
  const ts::Tensor logits = model.forward(prompt, 1, 2);
  const std::int64_t n = logits.dim(2);
  std::vector<std::int32_t> order(static_cast<std::size_t>(n));
  for (std::int32_t i = 0; i < n; ++i) {
    order[static_cast<std::size_t>(i)] = i;
  }
  std::sort(order.begin(), order.end(),
            [&](int a, int b) { return logits.data()[n + a] > logits.data()[n + b]; });
  ts::BeamOptions options;
  options.beams = 2;
  options.stop_tokens.assign(order.begin(), order.begin() + 4);  // twice as many as beams
  const ts::BeamResult found = ts::beam_search(model, prompt, 6, options);
  CHECK(found.decode.steps > 0);  // not ended by the first step
  ts::BeamOptions wide = options;
  wide.beams = 64;
  CHECK(found.beams[0].score >=
        ts::beam_search(model, prompt, 1, wide).beams[1].score);  // no worse than ending at once
}

TEST_CASE("llama2.c's sampler: a distribution flatter than top_p cuts, and a temperature too low") {
  ts::Llama2cOptions options;
  options.temperature = 10;
  options.top_p = 0.001;
  ts::detail::Llama2cSampler flat(options);
  const std::vector<float> logits = {0.5f, 0.25f, 1.0f, 0.75f};
  CHECK(flat.next(logits.data(), 4) == 2);  // the most probable
  options.temperature = 1e-39;
  ts::detail::Llama2cSampler cold(options);
  CHECK(error_of([&] { cold.next(logits.data(), 4); }).find("llama2c_generate: temperature ") == 0);
}

TEST_CASE("llama2.c's loop: no steps, or more than the context, are as many as it has") {
  ts::TokenizerData data;
  data.kind = ts::TokenizerKind::scored_pieces;
  data.tokens = {"<unk>", "<s>", "</s>", " ", "a"};
  data.scores.assign(5, 0.0f);
  data.unknown = 0;
  data.bos = 1;
  data.eos = 2;
  data.types = ts::detail::piece_types(data);
  ts::ModelConfig c = small_model("interleaved").config;
  c.vocabulary = 5;
  c.context = 12;
  ts::Transformer model(c, 7);  // of a seed whose text has no BOS, which would end it
  model.tokenizer = ts::make_tokenizer(std::move(data), "");
  const auto ids = [&](std::int64_t steps) {
    ts::Llama2cOptions options;
    options.temperature = 0;
    options.steps = steps;
    return ts::llama2c_generate(model, "a", options).ids;
  };
  CHECK(ids(12).size() == 13);
  CHECK(ids(0) == ids(12));
  CHECK(ids(256) == ids(12));
  CHECK(ids(3).size() == 4);
  CHECK(error_of([&] { ids(-1); }) ==
        "llama2c_generate: temperature 0, top_p 0.9, seed 1, -1 steps; finite numbers, a seed "
        "above 0 and at least 0 steps are right");
}

TEST_CASE("a cache of another model, sizes that no memory has, and choices among nothing") {
  const ts::Transformer model = small_model("llama");
  ts::ModelConfig other = model.config;
  other.layers -= 1;
  ts::KvPages pages(other);
  ts::TokenRun run;
  run.sequence = pages.add();
  run.ids = {1};
  ts::List<ts::TokenRun> runs;
  runs.push_back(run);
  CHECK(error_of([&] { ts::decode(model, pages, runs); }).find("decode: the cache is of ") == 0);
  CHECK(error_of([&] { pages.page(0, run.sequence, 3); }).find("KvPages: page 3 of layer 0") == 0);
  CHECK(error_of([&] {
          pages.extend(run.sequence, std::int64_t{1} << 40);
        }).find("KvPages: 1099511627776 more tokens behind 0") == 0);
  ts::ModelConfig none = model.config;
  none.context = 0;
  CHECK(error_of([&] { ts::KvPages wrong(none); }).find("KvPages: ") == 0);
  ts::SampleOptions options;
  const float logits[2] = {1, 2};
  CHECK(error_of([&] { ts::token_weights(logits, 0, {}, options); }) ==
        "generate: a choice among 0 tokens; at least 1 is right");
  options.repetition_penalty = 1e-60;  // 0 as a float
  CHECK(error_of([&] {
          ts::token_weights(logits, 2, {}, options);
        }).find("generate: repetition_penalty is 1e-60") == 0);
  options.repetition_penalty = 1;
  options.temperature = -1;
  CHECK(error_of([&] {
          ts::token_weights(logits, 2, {}, options);
        }).find("generate: temperature is -1") == 0);
  ts::BeamOptions beams;
  CHECK(error_of([&] {
          ts::beam_search(model, {1}, std::numeric_limits<std::int64_t>::max(), beams);
        }).find("beam_search: ") == 0);
  ts::ModelConfig one = model.config;
  one.context = 1;
  const ts::Transformer short_sighted(one, 1);
  CHECK(error_of([&] {
          ts::perplexity(short_sighted, {1, 2, 3});
        }) ==
        "mean_loss: 3 tokens in a context of 1 predict nothing; at least 2 of each are right");
}

TEST_CASE("speculative decoding reads a long prompt in the steps that any prompt takes") {
  const ts::Transformer model = small_model("llama");
  ts::GenerateOptions options;
  options.temperature = 0;
  options.prefill_tokens = 4;
  const Ids prompt(17, 3);
  const ts::Generation plain = ts::generate_batch(model, {prompt}, 6, options);
  const auto fast = ts::generate_speculative(model, model, prompt, 6, 2, options);
  CHECK(fast.sequences[0].ids == plain.sequences[0].ids);
  CHECK(fast.prefill.steps >= 4);
  CHECK(fast.prefill.tokens >= 17);
}

TEST_CASE("tokens that nobody asks about do not go through the last layer, which changes nothing") {
  for (const char* kind : kinds) {
    CAPTURE(kind);
    const ts::Transformer model = small_model(kind);
    ts::KvPages one(model.config), other(model.config);
    const int a = one.add(), b = one.add(), c = other.add(), d = other.add();
    const Ids first = random_ids(1, 13, 29), second = random_ids(2, 3, 29);
    ts::Profile profile;
    const ts::Tensor some = ts::decode(model, one, {{a, first, false}, {b, second, true}});
    const double trimmed = profile.totals().matmul_flops;
    const ts::Tensor all = ts::decode(model, other, {{c, first, true}, {d, second, true}});
    const double whole = profile.totals().matmul_flops - trimmed;
    REQUIRE(some.dim(0) == 4);
    REQUIRE(all.dim(0) == 16);
    CHECK(largest_difference(some.data(), all.data() + 12 * 29, 4 * 29) < 2e-4);
    CHECK(trimmed < 0.8 * whole);
    // What comes next sees the same keys and values.
    const ts::Tensor x = ts::decode(model, one, {{a, {5}, false}});
    const ts::Tensor y = ts::decode(model, other, {{c, {5}, false}});
    CHECK(largest_difference(x.data(), y.data(), 29) < 2e-4);
  }
}

TEST_CASE("bytes of a cache with windows: each row that the new tokens see, once") {
  ts::ModelConfig c = small_model("llama").config;
  c.window = 5;
  const ts::Transformer model(c, 1);
  ts::KvPages pages(c);
  ts::TokenRun run;
  run.sequence = pages.add();
  run.ids = Ids(12, 2);
  ts::List<ts::TokenRun> runs;
  runs.push_back(run);
  ts::StepTotals totals;
  totals.parts.resize(static_cast<std::size_t>(c.layers) + 1);
  ts::decode(model, pages, runs, &totals);
  // Layer 0 for all 12 tokens; of the last one, layer 1, only the last token looks back, at 5.
  CHECK(totals.all.cache_bytes == static_cast<double>((12 + 5) * pages.token_bytes() / 2));
  ts::StepTotals one;
  one.parts.resize(static_cast<std::size_t>(c.layers) + 1);
  runs[0].ids = {4};
  ts::decode(model, pages, runs, &one);
  CHECK(one.all.cache_bytes == static_cast<double>(5 * pages.token_bytes()));
}

TEST_CASE("weights that are no numbers are not rounded to 8 bits; ranges of a cache rise") {
  const ts::Transformer model = small_model("llama");
  const std::string text = error_of([&] {
    std::vector<float> from(32, std::numeric_limits<float>::quiet_NaN());
    ts::detail::SaveFile file("save_llama2c", "never_written.bin");
    ts::detail::write_llama2c_groups(file, 32, from.data(), 32);
  });
  CHECK(text ==
        "save_llama2c: a weight is nan, which 8 bits cannot hold; finite weights are right");
  const ts::kernels::CacheShape shape = ts::KvPages(model.config).shape();
  CHECK(error_of([&] { ts::kernels::cache_load(shape, nullptr, 3, 2, nullptr, nullptr); }) ==
        "cache_load: tokens 3 to 2; a rising range from 0 is right");
  CHECK(error_of([&] {
          ts::kernels::cache_attention_prefill(shape, nullptr, 0, -1, nullptr, 0, nullptr, 0);
        }) == "cache_attention_prefill: -1 queries from token 0 on; 0 or more are right");
}
