// The transformer against a slow one in double precision, presets against the published counts,
// data order, the optimiser, and a run of nanoGPT step by step.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <sstream>

#include "error_of.hpp"
#include "long_tests.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

std::string shared_path(const std::string& path) {
  const char* set = std::getenv("TINYSCALE_SHARED");
  return std::string(set != nullptr ? set : "../shared") + "/data/" + path;
}

// True when the file is there; else says that a test is skipped.
bool present(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) {
    std::cout << "skipped: no " << path << "\n";
    return false;
  }
  std::fclose(file);
  return true;
}

std::vector<std::string> lines_of(const std::string& path) {
  std::vector<std::string> lines(1);
  for (const char c : ts::detail::read_file(path, "test")) {
    if (c == '\n') {
      lines.emplace_back();
    } else {
      lines.back() += c;
    }
  }
  lines.pop_back();
  return lines;
}

std::vector<std::string> cells_of(const std::string& line, char by = '\t') {
  std::vector<std::string> cells(1);
  for (const char c : line) {
    if (c == by) {
      cells.emplace_back();
    } else {
      cells.back() += c;
    }
  }
  return cells;
}

// ---- A transformer in double precision, one token at a time, straight from the formulas.

using Row = std::vector<double>;

struct Slow {
  ts::ModelConfig c;
  std::map<std::string, Row> p;

  explicit Slow(const ts::Transformer& model) : c(model.config) {
    for (const ts::Parameter& parameter : model.parameters) {
      const std::vector<float> values = parameter.value.values();
      p[parameter.name] = Row(values.begin(), values.end());
    }
  }

  static std::size_t z(std::int64_t i) { return static_cast<std::size_t>(i); }
  bool has(const std::string& name) const { return p.count(name) > 0; }

  Row linear(const std::string& name, const Row& x) const {
    const Row& w = p.at(name + ".weight");
    Row y(w.size() / x.size(), 0.0);
    for (std::size_t o = 0; o < y.size(); ++o) {
      for (std::size_t i = 0; i < x.size(); ++i) {
        y[o] += w[o * x.size() + i] * x[i];
      }
      y[o] += has(name + ".bias") ? p.at(name + ".bias")[o] : 0.0;
    }
    return y;
  }
  Row norm(const std::string& name, const Row& x, bool rms) const {
    double mean = 0;
    double square = 0;
    for (const double v : x) {
      mean += rms ? 0.0 : v / static_cast<double>(x.size());
    }
    for (const double v : x) {
      square += (v - mean) * (v - mean) / static_cast<double>(x.size());
    }
    Row y(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      y[i] = (x[i] - mean) / std::sqrt(square + c.norm_epsilon) * p.at(name + ".weight")[i] +
             (has(name + ".bias") ? p.at(name + ".bias")[i] : 0.0);
    }
    return y;
  }
  // Each head normalised and turned.
  void place(Row& x, const std::string& name, std::int64_t t) const {
    const std::size_t k = z(c.head_size);
    for (std::size_t h = 0; h < x.size(); h += k) {
      Row head(x.begin() + static_cast<long>(h), x.begin() + static_cast<long>(h + k));
      if (c.qk_norm) {
        head = norm(name, head, true);
      }
      for (std::size_t i = 0; i < k / 2 && c.position == ts::Position::rotary; ++i) {
        const double angle =
            static_cast<double>(t) *
            std::pow(c.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(k));
        const double a = head[i];
        const double b = head[i + k / 2];
        head[i] = a * std::cos(angle) - b * std::sin(angle);
        head[i + k / 2] = a * std::sin(angle) + b * std::cos(angle);
      }
      std::copy(head.begin(), head.end(), x.begin() + static_cast<long>(h));
    }
  }
  double activation(double v) const {
    switch (c.activation) {
      case ts::Activation::gelu: return 0.5 * v * (1 + std::erf(v / std::sqrt(2.0)));
      case ts::Activation::swiglu: return v / (1 + std::exp(-v));
      default: return 0.5 * v * (1 + std::tanh(0.7978845608028654 * (v + 0.044715 * v * v * v)));
    }
  }
  Row feed(const std::string& at, const Row& x) const {
    Row up = linear(at + ".up_proj", x);
    const Row gate = c.gated() ? linear(at + ".gate_proj", x) : up;
    for (std::size_t i = 0; i < up.size(); ++i) {
      up[i] = c.gated() ? activation(gate[i]) * up[i] : activation(up[i]);
    }
    return linear(at + ".down_proj", up);
  }
  Row mixture(const std::string& at, const Row& x) const {
    Row scores = linear(at + ".gate", x);
    std::vector<std::size_t> order(scores.size());
    for (std::size_t e = 0; e < order.size(); ++e) {
      order[e] = e;
    }
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
    double total = 0;
    Row y(x.size(), 0.0);
    for (int j = 0; j < c.top_k; ++j) {
      total += std::exp(scores[order[z(j)]]);
    }
    for (int j = 0; j < c.top_k; ++j) {
      const Row out = feed(at + ".experts." + std::to_string(order[z(j)]), x);
      for (std::size_t i = 0; i < y.size(); ++i) {
        y[i] += std::exp(scores[order[z(j)]]) / total * out[i];
      }
    }
    if (c.shared_experts > 0) {
      const Row out = feed(at + ".shared_experts", x);
      for (std::size_t i = 0; i < y.size(); ++i) {
        y[i] += out[i];
      }
    }
    return y;
  }
  Row attend(const std::vector<Row>& k, const std::vector<Row>& v, const Row& q) const {
    Row out(q.size(), 0.0);
    const std::size_t size = z(c.head_size);
    for (std::size_t h = 0; h < z(c.heads); ++h) {
      const std::size_t group = h / z(c.heads / c.kv_heads);
      Row weights;
      double total = 0;
      for (const Row& key : k) {
        double dot = 0;
        for (std::size_t i = 0; i < size; ++i) {
          dot += q[h * size + i] * key[group * size + i];
        }
        weights.push_back(std::exp(dot / std::sqrt(static_cast<double>(size))));
        total += weights.back();
      }
      for (std::size_t s = 0; s < v.size(); ++s) {
        for (std::size_t i = 0; i < size; ++i) {
          out[h * size + i] += weights[s] / total * v[s][group * size + i];
        }
      }
    }
    return out;
  }

  double loss(const std::vector<std::int32_t>& ids, const std::vector<std::int32_t>& targets,
              std::int64_t time) const {
    double total = 0;
    const std::size_t d = z(c.width);
    const bool rms = c.norm == ts::Norm::rms;
    std::vector<std::vector<Row>> keys(z(c.layers)), values(z(c.layers));
    for (std::size_t n = 0; n < ids.size(); ++n) {
      const std::size_t t = n % z(time);
      Row x(d);
      for (std::size_t i = 0; i < d; ++i) {
        x[i] = p.at("model.embed_tokens.weight")[z(ids[n]) * d + i];
        if (c.position == ts::Position::learned) {
          x[i] += p.at("model.embed_positions.weight")[t * d + i];
        }
      }
      for (std::size_t l = 0; l < z(c.layers); ++l) {
        const std::string at = "model.layers." + std::to_string(l);
        if (t == 0) {
          keys[l].clear();
          values[l].clear();
        }
        const Row in = norm(at + ".input_layernorm", x, rms);
        Row q = linear(at + ".self_attn.q_proj", in);
        Row k = linear(at + ".self_attn.k_proj", in);
        place(q, at + ".self_attn.q_norm", static_cast<std::int64_t>(t));
        place(k, at + ".self_attn.k_norm", static_cast<std::int64_t>(t));
        keys[l].push_back(k);
        values[l].push_back(linear(at + ".self_attn.v_proj", in));
        const Row o = linear(at + ".self_attn.o_proj", attend(keys[l], values[l], q));
        for (std::size_t i = 0; i < d; ++i) {
          x[i] += o[i];
        }
        const Row mid = norm(at + ".post_attention_layernorm", x, rms);
        const Row f = c.experts > 0 ? mixture(at + ".mlp", mid) : feed(at + ".mlp", mid);
        for (std::size_t i = 0; i < d; ++i) {
          x[i] += f[i];
        }
      }
      const Row last = norm("model.norm", x, rms);
      const Row& head = p.at(c.tied ? "model.embed_tokens.weight" : "lm_head.weight");
      double sum = 0;
      double chosen = 0;
      for (std::size_t w = 0; w < z(c.vocabulary); ++w) {
        double logit = 0;
        for (std::size_t i = 0; i < d; ++i) {
          logit += head[w * d + i] * last[i];
        }
        sum += std::exp(logit);
        chosen = w == z(targets[n]) ? logit : chosen;
      }
      total += std::log(sum) - chosen;
    }
    return total / static_cast<double>(ids.size());
  }
};

ts::ModelConfig tiny(const std::string& style) {
  ts::ModelConfig c;
  c.name = style;
  c.layers = 2;
  c.width = 8;
  c.heads = 2;
  c.kv_heads = 2;
  c.head_size = 4;
  c.hidden = 12;
  c.vocabulary = 11;
  c.context = 5;
  c.bias = style == "gpt2";
  if (style != "gpt2" && style != "nanogpt") {
    c.norm = ts::Norm::rms;
    c.position = ts::Position::rotary;
    c.activation = ts::Activation::swiglu;
    c.kv_heads = 1;
    c.tied = false;
  }
  c.qkv_bias = style == "qwen2";
  c.qk_norm = style == "qwen3";
  if (style == "mixture") {
    c.experts = 3;
    c.top_k = 2;
    c.expert_hidden = 6;
    c.shared_experts = 1;
  }
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

const std::vector<std::int32_t> tiny_ids = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3};
const std::vector<std::int32_t> tiny_targets = {1, 4, 1, 5, 10, 2, 6, 5, 3, 0};

}  // namespace

TEST_CASE("every gradient of the transformer equals a central difference in double precision") {
  for (const char* style : {"nanogpt", "gpt2", "llama", "qwen2", "qwen3", "mixture"}) {
    CAPTURE(style);
    const ts::Transformer model = lively(tiny(style));
    CHECK(model.count() == model.config.parameters());
    Slow slow(model);
    const ts::Tensor loss = model.loss(tiny_ids, tiny_targets, 2, 5);
    CHECK(static_cast<double>(loss.item()) ==
          doctest::Approx(slow.loss(tiny_ids, tiny_targets, 5)).epsilon(2e-6));
    loss.backward();
    double worst = 0;
    for (const ts::Parameter& p : model.parameters) {
      Row& values = slow.p.at(p.name);
      const std::vector<float> grad = p.value.grad().defined()
                                          ? p.value.grad().values()
                                          : std::vector<float>(values.size(), 0.0f);
      for (std::size_t i = 0; i < values.size(); i += 1 + values.size() / 12) {
        const double kept = values[i];
        values[i] = kept + 1e-5;
        const double above = slow.loss(tiny_ids, tiny_targets, 5);
        values[i] = kept - 1e-5;
        const double below = slow.loss(tiny_ids, tiny_targets, 5);
        values[i] = kept;
        worst = std::max(worst, std::abs((above - below) / 2e-5 - static_cast<double>(grad[i])));
      }
    }
    CHECK(worst < 3e-6);
  }
}

TEST_CASE("a mixture of equal experts is the dense model") {
  ts::ModelConfig mixed = tiny("mixture");
  mixed.shared_experts = 0;
  mixed.expert_hidden = 12;
  const ts::Transformer dense = lively(tiny("llama"));
  ts::Transformer mixture = lively(mixed);
  for (ts::Parameter& p : mixture.parameters) {
    std::string name = p.name;
    const std::size_t at = name.find("experts.");
    if (at != std::string::npos) {
      name.erase(at, 10);
    }
    for (const ts::Parameter& d : dense.parameters) {
      if (d.name == name) {
        std::copy(d.value.data(), d.value.data() + d.value.count(), p.value.data());
      }
    }
  }
  const std::vector<float> a = dense.forward(tiny_ids, 2, 5).values();
  const std::vector<float> b = mixture.forward(tiny_ids, 2, 5).values();
  for (std::size_t i = 0; i < a.size(); ++i) {
    CHECK(a[i] == doctest::Approx(b[i]).epsilon(1e-4));
  }
}

TEST_CASE("hooks are called where their comments say") {
  const ts::Transformer model = lively(tiny("llama"));
  const std::vector<float> plain = model.forward(tiny_ids, 2, 5).values();
  std::map<std::string, int> calls;
  ts::Hooks hooks;
  hooks.weight = [&](const ts::Tensor& w, int) {
    ++calls["weight"];
    return w;
  };
  hooks.linear_in = [&](const ts::Tensor& x) {
    ++calls["in"];
    return x;
  };
  hooks.linear_out = [&](const ts::Tensor& y) {
    ++calls["out"];
    return y;
  };
  hooks.embedding = [&](const ts::Tensor& table, const std::vector<std::int32_t>& ids,
                        const ts::Shape& shape) {
    ++calls["embedding"];
    return ts::embedding(table, ids, shape);
  };
  hooks.attention = [&](int, const ts::Tensor& q, const ts::Tensor& k, const ts::Tensor& v) {
    ++calls["attention"];
    return ts::attention(q, k, v, 2, 1, ts::Mask::causal);
  };
  hooks.feed_forward = [&](int layer, const ts::Tensor& x) {
    ++calls["feed_forward"];
    return model.feed_forward(layer, x, hooks);
  };
  hooks.loss = [&](const ts::Tensor& x, const ts::Tensor& table,
                   const std::vector<std::int32_t>& targets) {
    ++calls["loss"];
    return ts::linear_cross_entropy(x, table, targets);
  };
  CHECK(model.forward(tiny_ids, 2, 5, hooks).values() == plain);
  const float loss = model.loss(tiny_ids, tiny_targets, 2, 5, hooks).item();
  CHECK(loss == model.loss(tiny_ids, tiny_targets, 2, 5).item());
  CHECK(calls["weight"] == 2 * static_cast<int>(model.parameters.size()));
  CHECK(calls["in"] == 2 * (2 * 2 + 1));
  CHECK(calls["out"] == 2 * 2 * 2);
  CHECK(calls["embedding"] == 2);
  CHECK(calls["attention"] == 4);
  CHECK(calls["feed_forward"] == 4);
  CHECK(calls["loss"] == 1);
}

TEST_CASE("parameters and the cache of keys and values are metered as what they are") {
  ts::Context own;
  const ts::ContextScope scope(own);
  const ts::Transformer model(tiny("llama"));
  CHECK(own.memory->current(ts::MemoryKind::parameter) ==
        4.0 * static_cast<double>(model.config.parameters()));
  ts::KvCache cache;
  ts::Hooks hooks;
  hooks.cache = &cache;
  const ts::NoGrad no_grad;
  model.forward({1, 2, 3}, 1, 3, hooks);
  hooks.places = hooks.stream = 3;
  model.forward({4}, 1, 1, hooks);
  CHECK(own.memory->current(ts::MemoryKind::kv_cache) ==
        4.0 * static_cast<double>(model.config.context * model.config.layers *
                                  model.config.cached_numbers()));  // room for the whole context
  CHECK(own.memory->current(ts::MemoryKind::activation) == 0);
}

TEST_CASE("linear weights begin by the width, or as GPT-2's do") {
  for (const double range : {0.0, 0.02}) {
    ts::ModelConfig config = ts::config("nano");
    config.initializer_range = range;
    const ts::Transformer model(config, 7);
    for (const ts::Parameter& p : model.parameters) {
      if (p.value.dims() != 2) {
        continue;
      }
      CAPTURE(p.name);
      double square = 0;
      for (const float v : p.value.values()) {
        square += static_cast<double>(v) * static_cast<double>(v);
      }
      const bool table = p.name.find("embed") != std::string::npos;
      double scale = table || range > 0 ? 0.02 : std::sqrt(2.0 / (5.0 * 128));
      if (p.split == ts::Split::columns) {
        scale /= std::sqrt(8.0);
      }
      CHECK(std::sqrt(square / static_cast<double>(p.value.count())) ==
            doctest::Approx(scale).epsilon(0.03));
    }
  }
  ts::ModelConfig wild = ts::config("nano");
  wild.initializer_range = -1;
  CHECK(error_of([&] { ts::Transformer(wild, 1); }) ==
        "ModelConfig: nano: initializer_range is -1; a deviation is right, or 0 for "
        "one that suits the width");
  const ts::Transformer model(ts::config("nano"), 7);
  CHECK(model.parameters[0].value.values() ==
        ts::Transformer(ts::config("nano"), 7).parameters[0].value.values());
  CHECK(model.parameters[0].value.values() !=
        ts::Transformer(ts::config("nano"), 8).parameters[0].value.values());
}

TEST_CASE("presets count the published parameters") {
  CHECK(ts::config("nano").parameters() == 128 * (256 + 64) + 4 * (12 * 128 * 128 + 2 * 128) + 128);
  CHECK(ts::config("nano").context == 64);
  CHECK(ts::config("nano-llama").kv_heads == 2);
  CHECK(ts::config("Llama-3-70B").parameters() == 70553706496);
  CHECK(ts::config("gpt2").parameters() == 124439808);
  CHECK(ts::config("deepseek-v3").cached_numbers() == 576);
  CHECK(ts::config("llama3-8b").cached_numbers() == 2048);
  CHECK(ts::config("llama3-70b").training_tokens == 15e12);
  const std::string path = shared_path("tables/models.tsv");
  if (present(path)) {
    const std::vector<std::string> lines = lines_of(path);
    CHECK(ts::configs().size() == lines.size() - 1 + 3);
    for (std::size_t i = 1; i < lines.size(); ++i) {
      const std::vector<std::string> cells = cells_of(lines[i]);
      CAPTURE(cells[0]);
      const ts::ModelConfig c = ts::config(cells[0]);
      const std::string all = cells[19].empty() ? cells[20] : cells[19];
      CHECK(std::to_string(c.parameters()) == all);
      CHECK(std::to_string(c.active_parameters()) == (cells[21].empty() ? all : cells[21]));
    }
  }
}

TEST_CASE("config and transformer say what is wrong") {
  CHECK(error_of([] { ts::config("llama9-7b"); }) ==
        "config: no model is named \"llama9-7b\"; near: llama2-7b, llama2-13b, llama2-70b, "
        "llama3-8b, llama3-70b, llama3.1-405b, llama3.2-1b, llama3.2-3b");
  const std::string all = error_of([] { ts::config("x"); });
  CHECK(all.rfind("config: no model is named \"x\"; known: nano, nano-llama, nano-moe, ", 0) == 0);
  CHECK(all.find("sd2.1-unet") != std::string::npos);
  CHECK(error_of([] { ts::Transformer(ts::config("deepseek-v3")); }) ==
        "Transformer: deepseek-v3 is planned, not run: it has latent attention, dense first "
        "layers, biases of the router; config(\"nano\") is one that runs");
  ts::ModelConfig c = tiny("llama");
  c.kv_heads = 3;
  CHECK(error_of([&] { c.validate(); }) ==
        "ModelConfig: llama: 2 heads over 3 kv_heads; heads must be a multiple of kv_heads");
  c.kv_heads = 1;
  c.head_size = 3;
  CHECK(error_of([&] { c.validate(); }) ==
        "ModelConfig: llama: head_size is 3; rotary positions turn pairs, so it must be even");
  c.head_size = 4;
  c.width = 0;
  CHECK(error_of([&] { c.validate(); }) == "ModelConfig: llama: width is 0; at least 1 is right");
  ts::ModelConfig m = tiny("mixture");
  m.top_k = 4;
  CHECK(error_of([&] { m.validate(); }) ==
        "ModelConfig: mixture: top_k is 4 of 3 experts; 1 to 3 is right");
  const ts::Transformer model(tiny("llama"));
  CHECK(error_of([&] { model.forward(tiny_ids, 1, 10); }) ==
        "forward: 10 tokens from position 0 to 9; the context of llama is 5");
  CHECK(error_of([&] { model.forward(tiny_ids, 1, 4); }) ==
        "forward: 10 ids for 1 sequences of 4 tokens; one id a token is right");
  CHECK(error_of([] {
          ts::route(ts::zeros({2, 3}), 4);
        }) == "route: top_k is 4 of 3 experts; 1 to 3 is right");
}

TEST_CASE("config: numbers that cannot be right are refused") {
  using Config = ts::ModelConfig;
  const auto refusal = [](const std::function<void(Config&)>& change) {
    Config c = tiny("llama");
    change(c);
    return error_of([&] { c.validate(); });
  };
  CHECK(refusal([](Config&) {}) == "no error");
  CHECK(refusal([](Config& c) { c.layers = 1000000000000; }) ==
        "ModelConfig: llama: layers is 1000000000000; at most 1000000 is right");
  CHECK(refusal([](Config& c) { c.vocabulary = 2147483648; }) ==
        "ModelConfig: llama: vocabulary is 2147483648; at most 2147483647 is right");
  CHECK(refusal([](Config& c) { c.shared_experts = -1; }) ==
        "ModelConfig: llama: shared_experts is -1; at least 0 is right");
  CHECK(refusal([](Config& c) { c.experts = -1; }) ==
        "ModelConfig: llama: experts is -1; at least 0 is right");
  CHECK(refusal([](Config& c) { c.width = c.hidden = 2000000000; }) ==
        "ModelConfig: llama: its sizes make about 2.40000002e+19 parameters; at most 1e+18 can be "
        "counted");
  CHECK(refusal([](Config& c) { c.norm_epsilon = NAN; }) ==
        "ModelConfig: llama: norm_epsilon is nan; a number above 0 and below 1e+30 is right");
  CHECK(refusal([](Config& c) { c.norm_epsilon = -1; }) ==
        "ModelConfig: llama: norm_epsilon is -1; a number above 0 and below 1e+30 is right");
  CHECK(refusal([](Config& c) { c.rope_theta = 0; }) ==
        "ModelConfig: llama: rope_theta is 0; a number above 0 and below 1e+30 is right");
  CHECK(refusal([](Config& c) { c.rope_theta = INFINITY; }) ==
        "ModelConfig: llama: rope_theta is inf; a number above 0 and below 1e+30 is right");
  for (const std::string& name : ts::configs()) {
    const Config c = ts::config(name);
    CAPTURE(name);
    CHECK((c.vocabulary == 0 || error_of([&] { c.validate(); }) == "no error"));
  }
}

TEST_CASE("text becomes characters or bytes") {
  const ts::Text text = ts::make_text("t", "hello w\xC3\xB6rld");
  CHECK(text.tokenizer.kind() == ts::Tokenizer::Kind::characters);
  CHECK(text.tokenizer.vocabulary() == 9);
  CHECK(text.text() == "t: 11 tokens, characters (9 distinct)");
  CHECK(text.tokens == std::vector<std::int32_t>{3, 2, 4, 4, 5, 0, 7, 8, 6, 4, 1});
  CHECK(text.tokenizer.decode(text.tokens) == "hello w\xC3\xB6rld");
  CHECK(text.split == 9);
  CHECK(text.train().size() + text.validation().size() == 11);
  CHECK(text.tokenizer.decode({0, 9, -1}) == " ??");
  const ts::Text bytes = ts::make_text("b", std::string("\xFF\x00z", 3));
  CHECK(bytes.text() == "b: 3 tokens, bytes (256)");
  CHECK(bytes.tokenizer.decode(bytes.tokens) == std::string("\xFF\x00z", 3));
  CHECK(error_of([&] { text.tokenizer.encode("he?"); }) ==
        "encode: the character \"?\" at byte 2 is not among the 9 of the training text; leave it "
        "out");
  CHECK(error_of([] { ts::read_text("no such file"); }) ==
        "read_text: cannot open \"no such file\": No such file or directory");
  const char* const marked = "marked.txt";  // a byte order mark, then "ab"
  std::FILE* file = std::fopen(marked, "wb");
  REQUIRE(file != nullptr);
  std::fputs(
      "\xEF\xBB\xBF"
      "ab",
      file);
  std::fclose(file);
  CHECK(ts::read_text(marked).text() == "marked.txt: 2 tokens, characters (2 distinct)");
  std::remove(marked);
  CHECK(error_of([] { ts::make_text("e", ""); }) ==
        "read_text: \"e\" is empty; a text to learn is right");
  CHECK(error_of([&] { ts::make_batch(text.tokens, 1, 11, 1, 0); }) ==
        "make_batch: the text has 11 tokens here, a sequence 11; more than 11 are right: take a "
        "longer text or a shorter context");
  CHECK(error_of([&] { ts::make_batch(text.tokens, 1, -5, 1, 0); }) ==
        "make_batch: a sequence of -5 tokens; at least 1 is right");
}

TEST_CASE("a batch is the same whoever holds which part of it") {
  std::vector<std::int32_t> tokens;
  for (std::int32_t i = 0; i < 1000; ++i) {
    tokens.push_back(i);
  }
  const ts::Batch whole = ts::make_batch(tokens, 4, 8, 7, 3);
  const ts::Batch half = ts::make_batch(tokens, 2, 8, 7, 3, 2);
  CHECK(half.ids == std::vector<std::int32_t>(whole.ids.begin() + 16, whole.ids.end()));
  for (std::size_t i = 0; i < whole.ids.size(); ++i) {
    CHECK(whole.targets[i] == whole.ids[i] + 1);
  }
  CHECK(ts::make_batch(tokens, 4, 8, 7, 4).ids != whole.ids);
  CHECK(ts::make_batch(tokens, 4, 8, 8, 3).ids != whole.ids);
}

TEST_CASE("AdamW, clipping and the schedule follow their formulas") {
  ts::Tensor w = ts::parameter(ts::tensor({1, 2}, {1.0f, -2.0f}));
  ts::Tensor b = ts::parameter(ts::tensor({1}, {3.0f}));
  ts::AdamW optimizer({w, b});
  const ts::Tensor loss = ts::sum(ts::square(w)) + ts::sum(b * 4.0f);
  loss.backward();  // dw = 2, -4; db = 4
  CHECK(ts::clip_grad_norm({w, b}, 3.0) == doctest::Approx(6.0));
  CHECK(w.grad().at({0, 1}) == doctest::Approx(-2.0));
  optimizer.step();
  // The first step moves by lr in the gradient's direction, after a decay of matrices alone.
  CHECK(w.at({0, 0}) == doctest::Approx(1.0 * (1 - 1e-4) - 1e-3));
  CHECK(w.at({0, 1}) == doctest::Approx(-2.0 * (1 - 1e-4) + 1e-3));
  CHECK(b.at({0}) == doctest::Approx(3.0 - 1e-3));
  optimizer.zero_grad();
  CHECK(!w.grad().defined());
  CHECK(error_of([] { ts::AdamW({ts::zeros({2})}); }) ==
        "AdamW: tensor 0 of 1 has no gradient; make it with parameter()");
  CHECK(ts::clip_scale(5.0, 0.0) == 1.0);
  CHECK(ts::cosine_schedule(0, 100, 2000, 1e-3, 1e-4) == doctest::Approx(9.9009901e-06));
  CHECK(ts::cosine_schedule(1050, 100, 2000, 1e-3, 1e-4) == doctest::Approx(5.5e-4));
  CHECK(ts::cosine_schedule(3000, 100, 2000, 1e-3, 1e-4) == 1e-4);
}

TEST_CASE("a loss that is not a number stops training with advice") {
  ts::Transformer model(tiny("nanogpt"));
  model.parameters.back().value.data()[0] = NAN;
  ts::AdamW optimizer(model.tensors());
  ts::Batch batch;
  batch.time = 5;
  batch.add({1, 2, 3, 4, 5, 6}, 0);
  CHECK(error_of([&] { ts::train_step(model, optimizer, batch, ts::StepOptions(), 12); }) ==
        "train_step: the loss is not a number in step 12; try a smaller learning_rate than 0.001, "
        "a longer warmup than 100 steps or a smaller clip than 1");
  ts::StepOptions options;
  options.beta2 = 1;
  CHECK(error_of([&] { ts::train_step(model, optimizer, batch, options, 12); }) ==
        "train_step: beta2 is 1; a number from 0 to below 1 is right");
  options.beta2 = 0.99999999;
  CHECK(error_of([&] { ts::train_step(model, optimizer, batch, options, 12); }) ==
        "train_step: beta2 is 0.99999999; a number from 0 to below 1 in f32 is right");
}

TEST_CASE("a batch takes no tokens beyond the text's") {
  ts::Batch batch;
  batch.time = 3;
  batch.add({1, 2, 3, 4, 5}, 1);
  CHECK(batch.ids == std::vector<std::int32_t>{2, 3, 4});
  CHECK(batch.targets == std::vector<std::int32_t>{3, 4, 5});
  for (const std::int64_t offset : {-1, 2, 9}) {
    CHECK(error_of([&] {
            batch.add({1, 2, 3, 4, 5}, offset);
          }) == "Batch::add: 3 tokens from " + std::to_string(offset) +
                    " on, and one behind them, of 5; tokens that are there are right");
  }
  CHECK(batch.sequences == 1);
}

TEST_CASE("a step that fails leaves no gradients to the next") {
  const ts::Transformer model(tiny("nanogpt"));
  ts::AdamW optimizer(model.tensors());
  for (const ts::Parameter& p : model.parameters) {  // the same values, gradients that overflow
    const float by = p.name.find(".v_proj.weight") != std::string::npos   ? 1e15f
                     : p.name.find(".o_proj.weight") != std::string::npos ? 1e-15f
                                                                          : 1.0f;
    ts::Tensor weight = p.value.detach();
    for (std::int64_t i = 0; i < weight.count(); ++i) {
      weight.data()[i] *= by;
    }
  }
  ts::Batch batch;
  batch.time = 5;
  batch.add({1, 2, 3, 4, 5, 6}, 0);
  ts::StepOptions options;
  options.loss_scale = 1e29;
  const std::string error = error_of([&] { ts::train_step(model, optimizer, batch, options, 0); });
  // Infinities that meet in a sum make a NaN: by the order in which a kernel adds.
  const bool infinite = error.find(" is infinite ") != std::string::npos;
  CHECK(error == std::string("train_step: the gradient norm is ") +
                     (infinite ? "infinite" : "not a number") +
                     " in step 0; try a smaller learning_rate than 0.001, a longer warmup than 100 "
                     "steps, a smaller loss_scale than 1e+29 or a smaller clip than 1");
  for (const ts::Tensor& tensor : model.tensors()) {
    CHECK(!tensor.grad().defined());
  }
  options.loss_scale = 0;
  CHECK(std::isfinite(ts::train_step(model, optimizer, batch, options, 0).grad_norm));
  // Nor do those of a loss scale that may not become smaller.
  const ts::Transformer other(tiny("nanogpt"));
  ts::AdamW scaled(other.tensors());
  options.format = ts::DType::f16;
  scaled.scaler.scale = scaled.scaler.smallest = 1e29;
  CHECK(error_of([&] {
          ts::train_step(other, scaled, batch, options, 0);
        }).find("LossScaler: gradients are not finite at a loss scale of 1e+29") == 0);
  scaled.scaler = ts::LossScaler();
  CHECK(!ts::train_step(other, scaled, batch, options, 0).skipped);
}

TEST_CASE("generate: options and weights that cannot be right are refused") {
  const auto refusal = [](double temperature, int top_k, float weight) {
    ts::Transformer model(tiny("llama"));
    for (ts::Parameter& p : model.parameters) {
      p.value.data()[0] = std::isnan(weight) ? weight : p.value.data()[0];
    }
    ts::GenerateOptions options;
    options.temperature = temperature;
    options.top_k = top_k;
    return error_of([&] { ts::generate_tokens(model, {1, 2}, 3, options); });
  };
  CHECK(refusal(0.8, 0, 0.0f) == "no error");
  CHECK(refusal(0.0, 2, 0.0f) == "no error");
  CHECK(refusal(-1, 0, 0.0f) ==
        "generate: temperature is -1, top_k 0; finite numbers from 0 up are right");
  CHECK(refusal(NAN, 0, 0.0f) ==
        "generate: temperature is nan, top_k 0; finite numbers from 0 up are right");
  CHECK(refusal(1, -1, 0.0f) ==
        "generate: temperature is 1, top_k -1; finite numbers from 0 up are right");
  CHECK(refusal(1, 0, NAN) ==
        "generate: the model's logit of token 0 is nan; weights that give finite numbers are "
        "right");
  CHECK(refusal(0, 0, NAN) != "no error");
}

TEST_CASE("a small model learns a small text") {
  const ts::Text text = ts::make_text("abc", [] {
    std::string s;
    for (int i = 0; i < 60; ++i) {
      s += "the cat sat on the mat. ";
    }
    return s;
  }());
  ts::ModelConfig c = tiny("llama");
  c.vocabulary = text.tokenizer.vocabulary();
  c.width = 32;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_size = 8;
  c.hidden = 64;
  c.context = 16;
  ts::Transformer model(c, 5);
  model.tokenizer = text.tokenizer;
  ts::StepOptions options;
  options.steps = 120;
  options.warmup = 5;
  options.learning_rate = 1e-2;
  options.dropout = 0.05;
  ts::AdamW optimizer(model.tensors(), ts::adamw_options(options));
  for (std::int64_t step = 0; step < options.steps; ++step) {
    const ts::Batch batch = ts::make_batch(text.train(), 8, c.context, options.seed, step);
    ts::train_step(model, optimizer, batch, options, step);
  }
  CHECK(ts::evaluate(model, text.validation()) < 0.3);
  ts::GenerateOptions greedy;
  greedy.temperature = 0;
  const std::string cached = ts::generate(model, text, "the cat", 40, greedy);
  CHECK(cached.substr(0, 22) == "the cat sat on the mat");
  CHECK(cached == ts::generate(model, "the cat", 40, greedy));
  ts::GenerateOptions slow = greedy;
  slow.cache = false;
  CHECK(cached == ts::generate(model, "the cat", 40, slow));
  ts::GenerateOptions warm;
  warm.temperature = 3;
  const std::string sampled = ts::generate(model, "the cat", 40, warm);
  CHECK(sampled == ts::generate(model, "the cat", 40, warm));
  warm.seed = 2;
  CHECK(sampled != ts::generate(model, "the cat", 40, warm));
  warm.top_k = 1;
  CHECK(cached == ts::generate(model, "the cat", 40, warm));
  CHECK(error_of([&] { ts::generate(model, "", 4); }) ==
        "generate: a prompt of 0 tokens and 4 more; at least 1 and 0 are right");
}

namespace {

ts::ModelConfig shakespeare_config() {
  ts::ModelConfig c = ts::config("nano");
  c.vocabulary = 65;
  return c;
}

}  // namespace

namespace {

// Worst differences from PyTorch's float32 run over the first steps of the golden trajectory.
struct Followed {
  double loss = 0, norm = 0;
  double last = 0;  // relative, of the last loss
  bool ran = false;
};

Followed follow_trajectory(ts::DType format, std::size_t steps) {
  Followed worst;
  const std::string at = shared_path("models/nanogpt-shakespeare-char/");
  const std::string text_path = shared_path("text/tinyshakespeare.txt");
  if (!present(at + "init-seed1337.safetensors") || !present(text_path)) {
    return worst;
  }
  worst.ran = true;
  const ts::Text text = ts::read_text(text_path);
  CHECK(text.split == 1003854);
  CHECK(text.tokenizer.vocabulary() == 65);
  const std::vector<std::int32_t> train = text.train();
  ts::Transformer model = ts::load(at + "init-seed1337.safetensors", shakespeare_config());
  ts::StepOptions options;
  options.steps = 2000;
  options.format = format;
  ts::AdamW optimizer(model.tensors(), ts::adamw_options(options));
  const std::vector<std::string> lines = lines_of(at + "golden/train_trajectory_200.tsv");
  for (std::size_t step = 0; step < steps; ++step) {
    const std::vector<std::string> cells = cells_of(lines[step + 2]);
    ts::Batch batch;
    batch.time = 64;
    for (const std::string& offset : cells_of(cells[4], ' ')) {
      batch.add(train, std::strtoll(offset.c_str(), nullptr, 10));
    }
    const ts::StepResult result =
        ts::train_step(model, optimizer, batch, options, static_cast<std::int64_t>(step));
    const double loss = std::strtod(cells[2].c_str(), nullptr);
    worst.last = std::abs(result.loss / loss - 1);
    worst.loss = std::max(worst.loss, std::abs(result.loss - loss));
    worst.norm =
        std::max(worst.norm, std::abs(result.grad_norm - std::strtod(cells[3].c_str(), nullptr)));
  }
  MESSAGE(ts::name_of(format) << ": worst difference of the loss " << worst.loss << ", of the norm "
                              << worst.norm);
  return worst;
}

std::size_t trajectory_steps(std::size_t quick) { return long_tests() ? 200 : quick; }

}  // namespace

TEST_CASE("nanoGPT's training run is followed step by step [slow]") {
  const Followed worst = follow_trajectory(ts::DType::f32, trajectory_steps(30));
  CHECK(worst.loss < 1e-5);
  CHECK(worst.norm < 1e-3);
}

TEST_CASE("nanoGPT's training run is followed with matmuls in bf16 [slow]") {
  const Followed worst = follow_trajectory(ts::DType::bf16, trajectory_steps(20));
  CHECK(worst.loss < 2e-2);
  CHECK(worst.last < 0.01);
  if (worst.ran) {
    CHECK(worst.loss > 1e-6);  // it is not f32 by another name
  }
}

TEST_CASE("a trained GPT-2 style model writes the golden text") {
  const std::string at = shared_path("models/nanogpt-shakespeare-char/");
  if (!present(at + "nanogpt-shakespeare-char.safetensors")) {
    return;
  }
  ts::Transformer model =
      ts::load(at + "nanogpt-shakespeare-char.safetensors", shakespeare_config());
  const ts::Text text = ts::read_text(shared_path("text/tinyshakespeare.txt"));
  const std::string golden = ts::detail::read_file(at + "golden/greedy_text.txt", "test");
  ts::GenerateOptions greedy;
  greedy.temperature = 0;
  const std::string made = ts::generate(model, text, "ROMEO:\nO", 120, greedy);
  CHECK(made.substr(0, golden.size()) == golden.substr(0, made.size()));
  CHECK(golden.size() >= 100);
  CHECK(ts::evaluate(model, text.validation(), 64) == doctest::Approx(1.9).epsilon(0.05));
}

TEST_CASE("a trained Llama style model writes the golden tokens") {
  const std::string at = shared_path("models/stories260K/");
  const std::string weights = at + "derived/stories260K-hf-f32.safetensors";
  if (!present(weights)) {
    return;
  }
  const ts::Transformer model = ts::load(weights, ts::config("stories260K"));
  const std::vector<std::string> lines = lines_of(at + "golden/runc_greedy_256_steps.tsv");
  std::vector<std::int32_t> expected = {1};
  for (const std::string& line : lines) {
    const std::vector<std::string> cells = cells_of(line);
    if (cells.size() > 3 && cells[0].find_first_not_of("0123456789") == std::string::npos) {
      expected.push_back(static_cast<std::int32_t>(std::strtol(cells[3].c_str(), nullptr, 10)));
    }
  }
  REQUIRE(expected.size() > 128);
  expected.resize(129);
  ts::GenerateOptions greedy;
  greedy.temperature = 0;
  CHECK(ts::generate_tokens(model, {1}, 128, greedy) == expected);
  const std::vector<std::int32_t> ids(expected.begin(), expected.end() - 1);
  const std::vector<std::int32_t> targets(expected.begin() + 1, expected.end());
  CHECK(static_cast<double>(model.loss(ids, targets, 1, 128).item()) ==
        doctest::Approx(0.484565576480487).epsilon(1e-5));
}

TEST_CASE("AdamW: what it refuses") {
  const ts::Tensor w = ts::parameter(ts::ones({2}));
  const auto refused = [&](double ts::AdamWOptions::*option, double value) {
    ts::AdamWOptions options;
    options.*option = value;
    return error_of([&] { ts::AdamW adamw({w}, options); });
  };
  CHECK(refused(&ts::AdamWOptions::beta1, 1) ==
        "AdamW: beta1 is 1; a number from 0 to below 1 is right");
  CHECK(refused(&ts::AdamWOptions::beta2, 0.99999999) ==
        "AdamW: beta2 is 0.99999999; a number from 0 to below 1 in f32 is right");
  CHECK(refused(&ts::AdamWOptions::epsilon, -1) ==
        "AdamW: epsilon is -1; a number from 0 to below 1e+30 is right");
  CHECK(refused(&ts::AdamWOptions::learning_rate, std::nan("")) ==
        "AdamW: learning_rate is nan; a number from 0 to below 1e+30 is right");
  CHECK(error_of([&] {
          ts::AdamW adamw({w, w});
        }) == "AdamW: tensors 0 and 1 of 2 are the same; each once is right");
  CHECK(error_of([&] { ts::AdamW adamw({w * 2.0f}); }) ==
        "AdamW: tensor 0 of 1 is the result of an op; make it with parameter()");
  ts::AdamW adamw({w});
  const ts::Tensor a = ts::sum(w * w), b = ts::sum(w * w);
  a.backward();
  CHECK(error_of([&] { adamw.step(); }) ==
        "AdamW: a backward pass that is still to come needs the numbers of tensor 0, [2]; step "
        "after it, or compute what needs no gradient under a NoGrad");
  b.backward();
  CHECK(w.grad().values() == std::vector<float>{4, 4});
  adamw.step();
  CHECK(adamw.steps() == 1);
  CHECK(error_of([&] { adamw.step(std::nan("")); }) ==
        "AdamW: grad_scale is nan; a number from 0 to below 1e+38 is right");
  CHECK(error_of([&] { adamw.resume(adamw.moments(), adamw.squares(), -1); }) ==
        "AdamW: resumed after -1 steps; 0 or more are right");
  CHECK(error_of([&] { ts::clip_grad_norm({w}, -1); }) ==
        "clip_grad_norm: a norm of at most -1; 0 (no limit) or more is right");
  CHECK(ts::cosine_schedule(0, INT64_MAX, 10, 1, 0.1) == doctest::Approx(0x1p-63));
  CHECK(error_of([] { ts::cosine_schedule(-1, 0, 10, 1, 0.1); }) ==
        "cosine_schedule: step -1, warmup 0, total 10; 0 or more are right");
}

TEST_CASE("a layer that a model does not have is refused") {
  const ts::Transformer model(ts::ModelConfig(), 1);
  for (const int layer : {-1, 1}) {
    const std::string why = ts::detail::cat({"block: layer ", layer, " of custom, which has 1"});
    const ts::Tensor x = ts::ones({1, 2, 64});
    CHECK(error_of([&] { model.block(layer, x, ts::Hooks()); }) == why);
    CHECK(error_of([&] { model.feed_forward(layer, x, ts::Hooks()); }) == why);
  }
}

TEST_CASE("models larger than this machine's memory, batches left open, texts in other tokens") {
  const std::string large = error_of([] { ts::Transformer model(ts::config("llama3.1-405b"), 1); });
  CHECK(large.substr(0, 82) ==
        "Transformer: llama3.1-405b needs 1.62 TB for its parameters in f32, this machine h");
  ts::TrainOptions options;
  std::ostringstream said;
  options.out = &said;
  CHECK(ts::detail::with_defaults(options).batch == 12);
  options.layout.data = 2;
  options.layout.microbatches = 4;
  CHECK(ts::detail::with_defaults(options).batch == 16);
  CHECK(said.str() ==
        "batch: 12 sequences do not divide over data 2 x microbatches 4; a step has 16\n");
  options.batch = 8;
  CHECK(ts::detail::with_defaults(options).batch == 8);
  ts::ModelConfig c = ts::config("nano");
  c.context = 8;
  ts::Transformer model(c, 1);
  model.tokenizer = ts::make_text("letters", "abcdefgh").tokenizer;
  const ts::Text other = ts::make_text("other", std::string(200, 'x') + "yz");
  CHECK(error_of([&] { ts::train(model, other); }) ==
        "train: nano knows characters (8 distinct), the text other is in characters (3 distinct); "
        "read the text in the model's: read_text(path, model.tokenizer), or make_text(name, text, "
        "model.tokenizer)");
}

TEST_CASE("what a model's parts refuse") {
  ts::ModelConfig c = ts::config("nano");
  c.context = 8;
  const ts::Transformer model(c, 1);
  ts::Hooks hooks;
  CHECK(error_of([&] {
          model.block(0, ts::ones({2, c.width}), hooks);
        }) == ts::detail::cat({"block: x is [2, ", c.width, "]; [B, T, ", c.width,
                               "] is right for ", c.name}));
  hooks.dropout = -0.5;
  CHECK(error_of([&] { model.forward({1, 2}, 1, 2, hooks); }).find("dropout") == 0);
  hooks.dropout = 0;
  hooks.places = hooks.stream = ts::TokenPlaces(-3);
  CHECK(error_of([&] {
          model.forward({1, 2}, 1, 2, hooks);
        }) == ts::detail::cat({"forward: 2 tokens from position -3 to -2; the context of ", c.name,
                               " is 8"}));
  CHECK(error_of([&] { ts::generate_tokens(model, {1}, 2, {}, -1); }) ==
        "generate: known is -1; 0 is right for the whole vocabulary, or how many tokens there are");
  CHECK(
      error_of([&] {
        ts::make_batch({1, 2}, 1, 5, 1, 0);
      }) ==
      "make_batch: the text has 2 tokens here, a sequence 5; more than 5 are right: take a longer "
      "text or a shorter context");
  if (ts::detail::physical_memory() > 0) {
    CHECK(error_of([&] {
            ts::make_batch({1, 2, 3}, std::int64_t{1} << 60, 2, 1, 0);
          }).find("make_batch: 1152921504606846976 sequences of 2 tokens are ") == 0);
  }
}
