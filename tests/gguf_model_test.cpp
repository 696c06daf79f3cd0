// A model in a GGUF file: its config for each architecture, its tensors under our names, its
// vocabulary; what our transformer lacks is said, what contradicts itself is refused.
#include <doctest/doctest.h>

#include <algorithm>

#include "error_of.hpp"
#include "model_files.hpp"
#include "tinyscale.hpp"

#include "gguf_write.hpp"

namespace ts = tinyscale;

namespace {

using Keys = ts::List<ts::GgufValue>;
using Sources = ts::List<GgufSource>;

Keys model_keys(const std::string& type) {
  return {
      gguf_text("general.architecture", type),       gguf_text("general.name", "tiny"),
      gguf_whole(type + ".block_count", 1),          gguf_whole(type + ".embedding_length", 8),
      gguf_whole(type + ".context_length", 16),      gguf_whole(type + ".attention.head_count", 2),
      gguf_whole(type + ".feed_forward_length", 12), gguf_whole(type + ".vocab_size", 10)};
}

// Those keys, of which one may be changed or come new.
Keys with(const Keys& keys, const ts::GgufValue& more) {
  Keys out;
  for (const ts::GgufValue& value : keys) {
    if (value.key != more.key) {
      out.push_back(value);
    }
  }
  out.push_back(more);
  return out;
}

ts::Gguf written(const Keys& keys, const Sources& tensors) {
  const std::string path = temporary_file("model.gguf");
  write_gguf(path, keys, tensors);
  const ts::Gguf file = ts::read_gguf(path);
  std::remove(path.c_str());  // the mapping stays
  return file;
}

std::string config_error(const Keys& keys, const Sources& tensors = {}) {
  const std::string error = error_of([&] { ts::gguf_config(written(keys, tensors)); });
  const std::size_t at = error.find("model.gguf\": ");
  return at == std::string::npos ? error : error.substr(at + 13);
}

std::string beyond(const ts::GgufValue& more) {
  return ts::gguf_config(written(with(model_keys("llama"), more), {})).beyond;
}

// Numbers that tell tensors and rows apart.
ts::Tensor counted(const ts::Shape& shape, float first) {
  ts::Tensor out(shape);
  for (std::int64_t i = 0; i < out.count(); ++i) {
    out.data()[i] = first + static_cast<float>(i);
  }
  return out;
}

std::vector<float> numbers(const ts::Gguf& file, const ts::List<ts::GgufPart>& parts,
                           const std::string& name, const ts::Shape& shape) {
  for (const ts::GgufPart& part : parts) {
    if (part.name == name) {
      CHECK(part.shape == shape);
      const ts::Tensor x = ts::read_gguf_part(file, part);
      return std::vector<float>(x.data(), x.data() + x.count());
    }
  }
  FAIL("no part " << name);
  return {};
}

std::vector<float> run(float first, int n) {
  std::vector<float> out;
  for (int i = 0; i < n; ++i) {
    out.push_back(first + static_cast<float>(i));
  }
  return out;
}

Sources gpt2_tensors() {
  Sources all = {{"token_embd.weight", counted({10, 8}, 0)},
                 {"position_embd.weight", counted({16, 8}, 1000)},
                 {"output_norm.weight", counted({8}, 0)},
                 {"output_norm.bias", counted({8}, 0)}};
  const std::string at = "blk.0.";
  for (const char* norm : {"attn_norm", "ffn_norm"}) {
    all.push_back({at + norm + ".weight", counted({8}, 0)});
    all.push_back({at + norm + ".bias", counted({8}, 0)});
  }
  const struct {
    const char* name;
    std::int64_t out, in;
  } linear[] = {{"attn_qkv", 24, 8}, {"attn_output", 8, 8}, {"ffn_up", 12, 8}, {"ffn_down", 8, 12}};
  for (const auto& row : linear) {
    all.push_back({at + row.name + ".weight", counted({row.out, row.in}, 0)});
    all.push_back({at + row.name + ".bias", counted({row.out}, 0)});
  }
  return all;
}

// GPT-2's vocabulary file, whose copy at hand had been read as UTF-8 and written again: each byte
// above 127 that stood alone in a number became U+FFFD. What those bytes were is known.
std::string repaired(const std::string& bytes) {
  static const unsigned char lost[] = {0xac, 0xc5, 0xc4, 0x80, 0xc4, 0xc3, 0x81, 0xc4, 0xc4};
  std::string out;
  std::size_t at = 0;
  for (const unsigned char byte : lost) {
    const std::size_t next = bytes.find("\xef\xbf\xbd", at);
    if (next == std::string::npos) {
      return bytes;  // whole already
    }
    out += bytes.substr(at, next - at);
    out += static_cast<char>(byte);
    at = next + 3;
  }
  return out + bytes.substr(at);
}

}  // namespace

TEST_CASE(
    "a llama of GGUF turns neighbouring pairs, a qwen halves, with biases or norms of its own") {
  const ts::ModelConfig llama = ts::gguf_config(written(model_keys("llama"), {}));
  CHECK(llama.name == "tiny");
  CHECK(llama.rope_pairs == ts::RopePairs::interleaved);
  CHECK(llama.norm == ts::Norm::rms);
  CHECK(llama.activation == ts::Activation::swiglu);
  CHECK(llama.kv_heads == 2);
  CHECK(llama.head_size == 4);
  CHECK(llama.hidden == 12);
  CHECK(llama.vocabulary == 10);
  CHECK(llama.tied);
  CHECK(llama.beyond == "");
  for (const char* type : {"mistral", "mixtral"}) {
    CHECK(ts::gguf_config(written(model_keys(type), {})).rope_pairs == ts::RopePairs::interleaved);
  }
  const ts::ModelConfig qwen2 = ts::gguf_config(written(model_keys("qwen2"), {}));
  CHECK(qwen2.rope_pairs == ts::RopePairs::halves);
  CHECK(qwen2.qkv_bias);
  CHECK_FALSE(qwen2.qk_norm);
  Keys keys = with(model_keys("qwen3"), gguf_whole("qwen3.attention.key_length", 16));
  keys = with(keys, gguf_whole("qwen3.attention.value_length", 16));
  keys = with(keys, gguf_real("qwen3.rope.freq_base", 1e6));
  keys = with(keys, gguf_real("qwen3.attention.layer_norm_rms_epsilon", 1e-6));
  keys = with(keys, gguf_whole("qwen3.attention.head_count_kv", 1));
  const ts::ModelConfig qwen3 = ts::gguf_config(written(keys, {}));
  CHECK(qwen3.rope_pairs == ts::RopePairs::halves);
  CHECK(qwen3.qk_norm);
  CHECK_FALSE(qwen3.qkv_bias);
  CHECK(qwen3.head_size == 16);
  CHECK(qwen3.kv_heads == 1);
  CHECK(qwen3.rope_theta == 1e6);
  CHECK(qwen3.norm_epsilon == doctest::Approx(1e-6));
  CHECK(qwen3.beyond == "");
}

TEST_CASE("gpt2: positions are learned, and attn_qkv is three of our matrices") {
  const ts::Gguf file = written(model_keys("gpt2"), gpt2_tensors());
  const ts::ModelConfig c = ts::gguf_config(file);
  CHECK(c.position == ts::Position::learned);
  CHECK(c.norm == ts::Norm::layer);
  CHECK(c.activation == ts::Activation::gelu_tanh);
  CHECK(c.bias);
  CHECK(c.tied);
  const ts::List<ts::GgufPart> parts = ts::gguf_parts(file, c);
  const std::string at = "model.layers.0.self_attn.";
  CHECK(numbers(file, parts, at + "q_proj.weight", {8, 8}) == run(0, 64));
  CHECK(numbers(file, parts, at + "k_proj.weight", {8, 8}) == run(64, 64));
  CHECK(numbers(file, parts, at + "v_proj.weight", {8, 8}) == run(128, 64));
  CHECK(numbers(file, parts, at + "q_proj.bias", {8}) == run(0, 8));
  CHECK(numbers(file, parts, at + "v_proj.bias", {8}) == run(16, 8));
  const ts::Transformer model(c);
  CHECK(parts.size() == model.parameters.size());
  for (const ts::Parameter& p : model.parameters) {
    CAPTURE(p.name);
    numbers(file, parts, p.name, p.value.shape());
  }
  Sources bad = gpt2_tensors();
  for (GgufSource& source : bad) {
    if (source.name == "blk.0.attn_qkv.weight") {
      source.value = counted({25, 8}, 0);
    }
  }
  const ts::Gguf odd = written(model_keys("gpt2"), bad);
  const std::string error = error_of([&] { ts::gguf_parts(odd, c); });
  CHECK(error.substr(error.find("tensor ")) ==
        "tensor \"blk.0.attn_qkv.weight\" is [25, 8]; queries, keys and values of one size are "
        "right");
}

TEST_CASE("stacked experts become one parameter each, as do experts that were stored alone") {
  Keys keys = with(model_keys("qwen3moe"), gguf_whole("qwen3moe.expert_count", 3));
  keys = with(keys, gguf_whole("qwen3moe.expert_used_count", 2));
  keys = with(keys, gguf_whole("qwen3moe.expert_feed_forward_length", 5));
  const ts::ModelConfig c = ts::gguf_config(written(keys, {}));
  CHECK(c.experts == 3);
  CHECK(c.top_k == 2);
  CHECK(c.expert_hidden == 5);
  CHECK(c.beyond == "");
  const ts::Gguf file = written(keys, {{"blk.0.ffn_up_exps.weight", counted({3, 5, 8}, 0)},
                                       {"blk.0.ffn_down.1.weight", counted({8, 5}, 7)},
                                       {"blk.0.ffn_gate_inp.weight", counted({3, 8}, 9)},
                                       {"blk.0.strange.weight", counted({3}, 0)},
                                       {"strange", counted({3}, 0)}});
  const ts::List<ts::GgufPart> parts = ts::gguf_parts(file, c);
  const std::string at = "model.layers.0.mlp.";
  for (int e = 0; e < 3; ++e) {
    CHECK(numbers(file, parts, at + "experts." + std::to_string(e) + ".up_proj.weight", {5, 8}) ==
          run(static_cast<float>(40 * e), 40));
  }
  CHECK(numbers(file, parts, at + "experts.1.down_proj.weight", {8, 5}) == run(7, 40));
  CHECK(numbers(file, parts, at + "gate.weight", {3, 8}) == run(9, 24));
  CHECK(numbers(file, parts, "blk.0.strange.weight", {3}) == run(0, 3));  // under its own name
  CHECK(numbers(file, parts, "strange", {3}) == run(0, 3));
  const ts::Gguf wrong = written(keys, {{"blk.0.ffn_up_exps.weight", counted({4, 5, 8}, 0)}});
  const std::string error = error_of([&] { ts::gguf_parts(wrong, c); });
  CHECK(error.substr(error.find("tensor ")) ==
        "tensor \"blk.0.ffn_up_exps.weight\" is [4, 5, 8]; 3 experts are right");
  // Every parameter of such a model has its place in the file.
  const ts::Transformer model(c);
  CHECK(model.parameters[2].name == "model.layers.0.self_attn.q_proj.weight");
}

TEST_CASE("what our transformer lacks is named") {
  CHECK(beyond(gguf_text("llama.rope.scaling.type", "yarn")) ==
        "rotary positions scaled by \"yarn\" (none and linear run)");
  CHECK(beyond(gguf_real("llama.rope.scaling.attn_factor", 1)) == "");
  CHECK(beyond(gguf_real("llama.rope.scaling.attn_factor", 1.25)) ==
        "rope.scaling.attn_factor 1.25");
  CHECK(beyond(gguf_text("llama.rope.scaling.type", "none")) == "");
  CHECK(beyond(gguf_text("llama.rope.scaling.type", "linear")) == "");  // by 1
  CHECK(beyond(gguf_whole("llama.rope.dimension_count", 2)) == "positions on a part of each head");
  CHECK(beyond(gguf_whole("llama.rope.dimension_count", 4)) == "");
  CHECK(beyond(gguf_whole("llama.attention.sliding_window", 4)) == "");
  CHECK(beyond(gguf_whole("llama.attention.sliding_window", 16)) == "");
  CHECK(beyond(gguf_real("llama.attn_logit_softcapping", 50)) == "scores with a soft cap");
  CHECK(beyond(gguf_real("llama.final_logit_softcapping", 30)) == "logits with a soft cap");
  CHECK(beyond(gguf_real("llama.attention.clamp_kqv", 8)) ==
        "queries, keys and values within bounds");
  CHECK(beyond(gguf_flag("llama.attention.causal", false)) == "attention to later tokens");
  CHECK(beyond(gguf_real("llama.embedding_scale", 12)) == "embedding_scale 12");
  CHECK(beyond(gguf_real("llama.logit_scale", 1)) == "");
  CHECK(beyond(gguf_whole("llama.attention.value_length", 3)) ==
        "values of another size than keys");
  Keys keys = with(model_keys("llama"), gguf_whole("llama.expert_count", 4));
  keys = with(keys, gguf_whole("llama.expert_used_count", 2));
  CHECK(ts::gguf_config(written(keys, {})).beyond == "");
  const auto mixture = [&keys](const ts::GgufValue& more) {
    return ts::gguf_config(written(with(keys, more), {})).beyond;
  };
  CHECK(mixture(gguf_flag("llama.expert_weights_norm", true)) == "");
  CHECK(mixture(gguf_flag("llama.expert_weights_norm", false)) ==
        "shares of experts that do not sum to 1");
  CHECK(mixture(gguf_real("llama.expert_weights_scale", 0)) == "");
  CHECK(mixture(gguf_real("llama.expert_weights_scale", 1)) == "");
  CHECK(mixture(gguf_real("llama.expert_weights_scale", 2.5)) == "expert_weights_scale 2.5");
  CHECK(mixture(gguf_whole("llama.expert_gating_func", 1)) == "");
  CHECK(mixture(gguf_whole("llama.expert_gating_func", 2)) ==
        "expert_gating_func 2 (1, the softmax, runs)");
  CHECK(mixture(gguf_whole("llama.expert_group_count", 1)) == "");
  CHECK(mixture(gguf_whole("llama.expert_group_count", 8)) == "experts in groups");
  keys = with(keys, gguf_whole("llama.expert_shared_count", 1));
  keys = with(keys, gguf_whole("llama.leading_dense_block_count", 1));
  CHECK(ts::gguf_config(written(keys, {})).beyond == "shared experts, dense first layers");
}

TEST_CASE("keys that are missing or contradict each other or the tensors are refused") {
  const Keys keys = model_keys("llama");
  CHECK(config_error(with(keys, gguf_text("general.architecture", "mamba"))) ==
        "general.architecture is \"mamba\"; known: llama, mistral, mixtral, qwen2, qwen3, "
        "qwen3moe, gpt2");
  CHECK(
      config_error({}) ==
      "general.architecture is \"\"; known: llama, mistral, mixtral, qwen2, qwen3, qwen3moe, gpt2");
  CHECK(config_error(with(keys, gguf_whole("split.count", 3))) ==
        "split.count is 3, it is one of so many shards; one file with all of the model is right");
  CHECK(ts::gguf_config(written(with(keys, gguf_whole("split.count", 1)), {})).beyond == "");
  CHECK(config_error({keys[0]}) ==
        "llama.block_count is missing; a whole number from 1 to 1000000 is right");
  CHECK(config_error(with(keys, gguf_whole("llama.attention.head_count", 3))) ==
        "llama.embedding_length is 8, llama.attention.head_count 3; a multiple of it is right");
  CHECK(config_error(with(keys, gguf_whole("llama.attention.head_count", 8))) ==
        "ModelConfig: tiny: head_size is 1; rotary positions turn pairs, so it must be even");
  CHECK(config_error(with(keys, gguf_texts("tokenizer.ggml.tokens", {"a", "b"}))) ==
        "the embedding has 10 tokens, llama.vocab_size is 10, and 2 tokens are listed; as many are "
        "right");
  CHECK(config_error(keys, {{"token_embd.weight", counted({9, 8}, 0)}}) ==
        "the embedding has 9 tokens, llama.vocab_size is 10, and 0 tokens are listed; as many are "
        "right");
  CHECK(config_error(keys, {{"token_embd.weight", counted({10, 8}, 0)}}) ==
        "its keys make a model of 648 parameters; its tensors hold 80");
  Keys unsaid;
  for (const ts::GgufValue& value : keys) {
    if (value.key != "llama.vocab_size") {
      unsaid.push_back(value);
    }
  }
  CHECK(config_error(unsaid) ==
        "llama.vocab_size is missing; a whole number from 1 to 2147483647 is right");
  unsaid.push_back(gguf_texts("tokenizer.ggml.tokens", {"a", "b"}));
  CHECK(ts::gguf_config(written(unsaid, {})).vocabulary == 2);
}

TEST_CASE("a vocabulary whose lists differ in length, or whose ids lie outside, is refused") {
  const auto error = [](const Keys& keys) {
    const std::string all = error_of([&] { ts::gguf_vocabulary(written(keys, {})); });
    return all.substr(all.find("model.gguf\": ") + 13);
  };
  const ts::GgufValue tokens = gguf_texts("tokenizer.ggml.tokens", {"a", "b"});
  CHECK(error({tokens, gguf_reals("tokenizer.ggml.scores", {1})}) ==
        "2 tokens, 1 scores and 0 types; as many, or none, are right");
  CHECK(error({tokens, gguf_wholes("tokenizer.ggml.token_type", {1, 1, 1})}) ==
        "2 tokens, 0 scores and 3 types; as many, or none, are right");
  CHECK(error({tokens, gguf_wholes("tokenizer.ggml.token_type", {1, 7})}) ==
        "tokenizer.ggml.token_type has 7; 0 to 6 are right");
  CHECK(error({tokens, gguf_whole("tokenizer.ggml.bos_token_id", 2)}) ==
        "tokenizer.ggml.bos_token_id is 2; a whole number from 0 to 1 is right");
  CHECK(ts::gguf_vocabulary(written({}, {})).tokens.empty());
}

TEST_CASE("GPT-2's vocabulary and merges are read; a file that a text editor damaged is refused") {
  const std::string path = model_path("tokenizers/ggml-vocab-gpt-2.gguf");
  const std::string bytes = file_bytes(path);
  if (bytes.empty()) {
    MESSAGE("skipped: no data/models/tokenizers");
    return;
  }
  const std::string whole = repaired(bytes);
  if (whole.size() != bytes.size()) {
    CHECK(error_of([&] { ts::read_gguf(path); }) ==
          "load: \"" + path +
              "\": key 8 takes 73939795391 bytes at byte 347; the file ends at 1766825");
  }
  const ts::Gguf file = ts::parse_gguf(bytes_of(whole), whole.size(), path);
  const ts::GgufVocabulary v = ts::gguf_vocabulary(file);
  CHECK(v.model == "gpt2");
  CHECK(v.pre == "gpt-2");
  CHECK(v.tokens.size() == 50257);
  CHECK(v.merges.size() == 50000);
  CHECK(v.types.size() == 50257);
  CHECK(v.tokens[0] == "!");
  CHECK(v.tokens[50256] == "<|endoftext|>");
  CHECK(v.merges[0] == "\xc4\xa0 t");
  CHECK(v.bos == 50256);
  CHECK(v.eos == 50256);
  CHECK(std::count(v.types.begin(), v.types.end(), 1) == 50256);
  CHECK(v.types[50256] == 3);
  const ts::ModelConfig c = ts::gguf_config(file);
  CHECK(c.layers == 12);
  CHECK(c.width == 768);
  CHECK(c.vocabulary == 50257);
  CHECK(c.norm_epsilon == doctest::Approx(1e-5));
  CHECK(c.parameters() == 124439808);  // GPT-2 small
}

TEST_CASE("a GGUF file that leaves things out: what llama.cpp takes for them") {
  const auto config = [](const Keys& more, const Sources& tensors = {}) {
    Keys keys = model_keys("llama");
    for (const ts::GgufValue& value : more) {
      keys.push_back(value);
    }
    return ts::gguf_config(written(keys, tensors));
  };
  const std::vector<float> by2(2, 2.0f);
  const auto factor = gguf_real("llama.rope.scaling.factor", 2);
  CHECK(config({factor}).rope_factors == by2);  // a factor without a type: linear
  CHECK(config({gguf_real("llama.rope.scale_linear", 2)}).rope_factors == by2);
  CHECK(config({gguf_text("llama.rope.scaling.type", "none"), factor}).rope_factors.empty());

  const auto tokenizer = [](const Keys& keys) {
    ts::Tokenizer made;
    REQUIRE(ts::detail::gguf_tokenizer(written(keys, {}), made));
    return made;
  };
  const Keys bare = {gguf_text("tokenizer.ggml.model", "llama"),
                     gguf_texts("tokenizer.ggml.tokens",
                                {"<unk>", "<s>", "</s>", "<0xC3>", "<0xA9>", "\xE2\x96\x81", "a"})};
  const ts::Tokenizer t = tokenizer(bare);
  CHECK(t.bos() == 1);
  CHECK(t.eos() == 2);
  CHECK(t.encode("a\xC3\xA9") == std::vector<std::int32_t>{1, 5, 6, 3, 4});
  CHECK(t.decode({1, 5, 6, 3, 4}) == "a\xC3\xA9");
  Keys undefined = bare;
  undefined.push_back(gguf_wholes("tokenizer.ggml.token_type", {2, 3, 3, 6, 6, 0, 0}));
  CHECK(tokenizer(undefined).encode("a") == std::vector<std::int32_t>{1, 5, 6});
}

TEST_CASE("names that stand twice, and formats and activations that are none, are not written") {
  const std::string path = temporary_file("twice.safetensors");
  ts::List<ts::Parameter> tensors;
  ts::Parameter same;
  same.name = "w";
  same.value = ts::ones({2});
  same.shape = same.value.shape();
  tensors.push_back(same);
  tensors.push_back(same);
  CHECK(error_of([&] { ts::write_safetensors(path, tensors, {}); }) ==
        "save: a tensor is called \"w\"; names that differ, and not __metadata__, are right");
  CHECK(error_of([&] {
          ts::write_safetensors(path, {}, {{"n", "1"}, {"n", "2"}});
        }) == "save: two notes are called \"n\"; one is right");
  CHECK(error_of([] { ts::block_layout(static_cast<ts::BlockFormat>(77)); }) ==
        "block format 77; 0 to 16 are right");
  ts::ModelConfig c = ts::config("nano");
  c.activation = static_cast<ts::Activation>(4);
  CHECK(error_of([&] { c.validate(); }) ==
        "ModelConfig: nano: activation 4, norm 0, position 0; one of the named values is right");
}
