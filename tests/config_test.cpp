// Shapes of models from config.json files, their counts beside those published, and files that lie.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "error_of.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

using Keys = std::vector<std::pair<std::string, std::string>>;

// One key a line, so that the first is on line 2.
std::string json_of(const Keys& keys) {
  std::string text = "{";
  for (const auto& key : keys) {
    text += (text.size() > 1 ? ",\n  \"" : "\n  \"") + key.first + "\": " + key.second;
  }
  return text + "\n}\n";
}

Keys with(Keys keys, const Keys& changes) {
  for (const auto& change : changes) {
    bool there = false;
    for (auto& key : keys) {
      if (key.first == change.first) {
        key.second = change.second;
        there = true;
      }
    }
    if (!there) {
      keys.push_back(change);
    }
  }
  return keys;
}

Keys without(const Keys& keys, const std::string& name) {
  Keys rest;
  for (const auto& key : keys) {
    if (key.first != name) {
      rest.push_back(key);
    }
  }
  return rest;
}

// Line 2 is the type, then layers, width, heads, KV heads, hidden, vocabulary, context.
Keys decoder(const char* type, const std::vector<std::int64_t>& sizes) {
  static const char* const names[] = {
      "num_hidden_layers", "hidden_size", "num_attention_heads",    "num_key_value_heads",
      "intermediate_size", "vocab_size",  "max_position_embeddings"};
  Keys keys = {{"model_type", "\"" + std::string(type) + "\""}};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    keys.emplace_back(names[i], std::to_string(sizes[i]));
  }
  return keys;
}

const Keys llama3 = with(decoder("llama", {32, 4096, 32, 8, 14336, 128256, 8192}),
                         {{"rms_norm_eps", "1e-05"},
                          {"rope_theta", "500000.0"},
                          {"hidden_act", "\"silu\""},
                          {"rope_scaling", "null"},
                          {"attention_bias", "false"},
                          {"tie_word_embeddings", "false"}});
const Keys mixtral = with(decoder("mixtral", {32, 4096, 32, 8, 14336, 32000, 32768}),
                          {{"num_local_experts", "8"}, {"num_experts_per_tok", "2"}});
const Keys qwen3_moe = with(decoder("qwen3_moe", {94, 4096, 64, 4, 12288, 151936, 40960}),
                            {{"head_dim", "128"},
                             {"num_experts", "128"},
                             {"num_experts_per_tok", "8"},
                             {"moe_intermediate_size", "1536"},
                             {"decoder_sparse_step", "1"},
                             {"mlp_only_layers", "[]"},
                             {"norm_topk_prob", "true"},
                             {"use_sliding_window", "false"}});
const Keys deepseek = with(decoder("deepseek_v3", {61, 7168, 128, 128, 18432, 129280, 163840}),
                           {{"q_lora_rank", "1536"},
                            {"kv_lora_rank", "512"},
                            {"qk_rope_head_dim", "64"},
                            {"qk_nope_head_dim", "128"},
                            {"v_head_dim", "128"},
                            {"n_routed_experts", "256"},
                            {"n_shared_experts", "1"},
                            {"num_experts_per_tok", "8"},
                            {"moe_intermediate_size", "2048"},
                            {"first_k_dense_replace", "3"},
                            {"moe_layer_freq", "1"}});
const Keys gemma2 = with(decoder("gemma2", {26, 2304, 8, 4, 9216, 256000, 8192}),
                         {{"head_dim", "256"}, {"sliding_window", "4096"}});

ts::ModelConfig parsed(const Keys& keys) { return ts::parse_config(json_of(keys), "config.json"); }

std::string refusal(const Keys& keys) {
  return error_of([&] { parsed(keys); });
}

}  // namespace

TEST_CASE("config.json: published counts of parameters") {
  const struct {
    const char* name;
    Keys keys;
    std::int64_t all, used;
  } models[] = {
      {"llama-3-8b", llama3, 8030261248, 8030261248},
      {"mixtral-8x7b", mixtral, 46702792704, 12879925248},
      {"qwen3-235b-a22b", qwen3_moe, 235093634560, 22190763520},
      {"deepseek-v3", deepseek, 671026419200, 37552297472},
      {"gemma2-2b", gemma2, 2614341888, 2614341888},
      {"gpt2",
       {{"model_type", "\"gpt2\""},
        {"n_layer", "12"},
        {"n_embd", "768"},
        {"n_head", "12"},
        {"n_positions", "1024"},
        {"vocab_size", "50257"}},
       124439808,
       124439808},
      {"gpt2 of nanoGPT",
       {{"model_type", "\"gpt2\""},
        {"n_layer", "12"},
        {"n_embd", "768"},
        {"n_head", "12"},
        {"n_positions", "1024"},
        {"vocab_size", "50257"},
        {"bias", "false"}},
       124337664,
       124337664},
      {"gpt-j-6b",
       {{"model_type", "\"gptj\""},
        {"n_layer", "28"},
        {"n_embd", "4096"},
        {"n_head", "16"},
        {"n_inner", "null"},
        {"n_positions", "2048"},
        {"vocab_size", "50400"}},
       6050882784,
       6050882784},
      {"pythia-160m", with(decoder("gpt_neox", {12, 768, 12, 12, 3072, 50304, 2048}), {}),
       162322944, 162322944},
      {"opt-125m",
       with(decoder("opt", {12, 768, 12, 12, 0, 50272, 2048}),
            {{"ffn_dim", "3072"}, {"activation_function", "\"relu\""}}),
       125239296, 125239296},
      {"bloom-560m",
       {{"model_type", "\"bloom\""},
        {"n_layer", "24"},
        {"n_embed", "1024"},
        {"num_attention_heads", "16"},
        {"vocab_size", "250880"}},
       559214592,
       559214592},
      {"mistral-7b", decoder("mistral", {32, 4096, 32, 8, 14336, 32000, 32768}), 7241732096,
       7241732096},
      {"phi-3-mini", decoder("phi3", {32, 3072, 32, 32, 8192, 32064, 4096}), 3821079552,
       3821079552},
      {"qwen2.5-7b", decoder("qwen2", {28, 3584, 28, 4, 18944, 152064, 131072}), 7615616512,
       7615616512},
      {"qwen3-8b", decoder("qwen3", {36, 4096, 32, 8, 12288, 151936, 40960}), 8190735360,
       8190735360},
      {"gemma-2b", decoder("gemma", {18, 2048, 8, 1, 16384, 256000, 8192}), 2506172416, 2506172416},
      {"gemma3-27b",
       with(decoder("gemma3_text", {62, 5376, 32, 16, 21504, 262144, 131072}),
            {{"head_dim", "128"}, {"sliding_window", "1024"}}),
       27009002240, 27009002240},
      {"qwen1.5-moe-a2.7b",
       with(decoder("qwen2_moe", {24, 2048, 16, 16, 5632, 151936, 8192}),
            {{"num_experts", "60"},
             {"num_experts_per_tok", "4"},
             {"moe_intermediate_size", "1408"},
             {"shared_expert_intermediate_size", "5632"}}),
       14315784192, 2689173504},
      {"deepseek-v2-lite",
       with(deepseek, {{"model_type", "\"deepseek_v2\""},
                       {"num_hidden_layers", "27"},
                       {"hidden_size", "2048"},
                       {"num_attention_heads", "16"},
                       {"num_key_value_heads", "16"},
                       {"intermediate_size", "10944"},
                       {"vocab_size", "102400"},
                       {"q_lora_rank", "null"},
                       {"n_routed_experts", "64"},
                       {"n_shared_experts", "2"},
                       {"num_experts_per_tok", "6"},
                       {"moe_intermediate_size", "1408"},
                       {"first_k_dense_replace", "1"}}),
       15706484224, 2661150208},
  };
  for (const auto& model : models) {
    CAPTURE(model.name);
    const ts::ModelConfig c = parsed(model.keys);
    CHECK(c.parameters() == model.all);
    CHECK(c.active_parameters() == model.used);
  }
}

TEST_CASE("config.json: the same shape as the preset") {
  const auto same = [](const ts::ModelConfig& a, const ts::ModelConfig& b) {
    return a.layers == b.layers && a.width == b.width && a.heads == b.heads &&
           a.kv_heads == b.kv_heads && a.head_size == b.head_size && a.hidden == b.hidden &&
           a.vocabulary == b.vocabulary && a.context == b.context && a.norm == b.norm &&
           a.position == b.position && a.activation == b.activation && a.tied == b.tied &&
           a.experts == b.experts && a.top_k == b.top_k && a.expert_hidden == b.expert_hidden &&
           a.shared_experts == b.shared_experts && a.dense_layers == b.dense_layers &&
           a.kv_lora_rank == b.kv_lora_rank && a.q_lora_rank == b.q_lora_rank &&
           a.rope_head == b.rope_head && a.value_head == b.value_head && a.window == b.window &&
           a.global_every == b.global_every && a.qk_norm == b.qk_norm && a.qkv_bias == b.qkv_bias &&
           a.bias == b.bias && a.block_norms == b.block_norms &&
           a.other_parameters == b.other_parameters;
  };
  const ts::ModelConfig llama = parsed(llama3);
  CHECK(same(llama, ts::config("llama3-8b")));
  CHECK(llama.rope_theta == 500000);
  CHECK(llama.norm_epsilon == 1e-5);
  CHECK(llama.beyond == "");
  CHECK(same(parsed(qwen3_moe), ts::config("qwen3-235b-a22b")));
  CHECK(parsed(qwen3_moe).beyond == "");
  for (const char* otherwise : {"false", "null"}) {
    CHECK(parsed(with(qwen3_moe, {{"norm_topk_prob", otherwise}})).beyond ==
          "shares of experts that do not sum to 1");
  }
  CHECK(same(parsed(deepseek), ts::config("deepseek-v3")));
  CHECK(parsed(deepseek).beyond == "latent attention, dense first layers, biases of the router");
  CHECK(same(parsed(gemma2), ts::config("gemma2-2b")));
  ts::ModelConfig eight = ts::config("mixtral-8x7b");
  eight.hidden = 0;
  CHECK(same(parsed(mixtral), eight));
  CHECK(error_of([] { ts::Transformer(parsed(gemma2)); }) ==
        "Transformer: config is planned, not run: it has embeddings times the root of the width, "
        "scores with a soft cap, norms after each sublayer; config(\"nano\") is "
        "one that runs");
}

TEST_CASE("config.json: windows, biases, positions") {
  const Keys mistral = with(decoder("mistral", {32, 4096, 32, 8, 14336, 32000, 32768}),
                            {{"sliding_window", "4096"}});
  CHECK(parsed(mistral).window == 4096);
  CHECK(parsed(mistral).local_layers() == 32);
  CHECK(parsed(with(mistral, {{"sliding_window", "32768"}})).window == 0);  // all tokens
  const Keys four = with(mistral, {{"num_hidden_layers", "4"}});
  const std::string local = "\"sliding_attention\"", global = "\"full_attention\"";
  const ts::ModelConfig second = parsed(
      with(four, {{"layer_types", "[" + local + "," + global + "," + local + "," + global + "]"}}));
  CHECK(second.global_every == 2);
  CHECK(second.local_layers() == 2);
  const ts::ModelConfig all = parsed(with(
      four, {{"layer_types", "[" + global + "," + global + "," + global + "," + global + "]"}}));
  CHECK(all.window == 0);
  CHECK(refusal(with(four, {{"layer_types",
                             "[" + local + "," + global + "," + global + "," + local + "]"}})) ==
        "config.json:11: layer_types has \"full_attention\" at 2; one global layer in each so many "
        "can be counted, the last");
  CHECK(refusal(with(four, {{"layer_types", "[" + local + "]"}})) ==
        "config.json:11: layer_types has 1 layers, num_hidden_layers is 4; as many are right");
  CHECK(refusal(with(four, {{"layer_types", "[1, 2, 3, 4]"}})) ==
        "config.json:11: layer_types has \"\" at 0; full_attention or sliding_attention is right");
  const Keys qwen = with(decoder("qwen2", {28, 3584, 28, 4, 18944, 152064, 131072}),
                         {{"sliding_window", "1024"}, {"max_window_layers", "21"}});
  CHECK(parsed(qwen).window == 0);
  CHECK(refusal(with(qwen, {{"use_sliding_window", "true"}})) ==
        "config.json:11: max_window_layers is 21; 0 or all layers, 28, are right");
  // A list says more than max_window_layers, which is 28 when it is left out.
  const Keys two = with(decoder("qwen2", {2, 64, 4, 2, 96, 100, 512}),
                        {{"use_sliding_window", "true"}, {"sliding_window", "16"}});
  CHECK(parsed(two).window == 0);
  CHECK(parsed(with(two, {{"max_window_layers", "0"}})).window == 16);
  CHECK(parsed(with(two, {{"max_window_layers", "2"}})).window == 0);
  CHECK(parsed(with(two,
                    {{"layer_types", "[" + local + "," + local + "]"}, {"max_window_layers", "2"}}))
            .local_layers() == 2);
  // What transformers takes for keys that are left out; null is none.
  CHECK(parsed(decoder("mistral", {32, 4096, 32, 8, 14336, 32000, 32768})).window == 4096);
  CHECK(parsed(with(mistral, {{"sliding_window", "null"}})).window == 0);
  const ts::ModelConfig experts =
      parsed(with(mixtral, {{"rope_theta", "null"}, {"rms_norm_eps", "null"}}));
  CHECK(experts.rope_theta == 1e6);
  CHECK(experts.norm_epsilon == 1e-5);

  const std::int64_t plain = parsed(llama3).parameters();
  CHECK(parsed(with(llama3, {{"attention_bias", "true"}})).parameters() ==
        plain + 32 * (4096 + 2 * 1024 + 4096));
  CHECK(parsed(with(llama3, {{"mlp_bias", "true"}})).parameters() ==
        plain + 32 * (2 * 14336 + 4096));
  const ts::ModelConfig both =
      parsed(with(llama3, {{"attention_bias", "true"}, {"mlp_bias", "true"}}));
  CHECK(both.parameters() == plain + 32 * (2 * 4096 + 2 * 1024 + 2 * 14336 + 4096));
  CHECK(both.other_parameters == 0);
  CHECK(parsed(with(llama3, {{"tie_word_embeddings", "true"}})).parameters() ==
        plain - 128256 * 4096);

  const ts::ModelConfig scaled =
      parsed(with(llama3, {{"rope_scaling", "{\"rope_type\": \"yarn\", \"factor\": 8.0}"}}));
  CHECK(scaled.beyond == "rotary positions scaled by \"yarn\" (linear and llama3 run)");
  // Llama 3.1: as before where a pair turns more than 4 times in 8,192 tokens, over 8 below once.
  const ts::ModelConfig long_context = parsed(
      with(llama3, {{"rope_scaling",
                     "{\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, "
                     "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192}"}}));
  CHECK(long_context.beyond.empty());
  REQUIRE(long_context.rope_factors.size() == 64);
  for (std::size_t i = 0; i < 64; ++i) {
    const double wave = 6.283185307179586 * std::pow(500000.0, double(i) / 64);
    const double smooth = (8192 / wave - 1) / 3;
    const double right = wave < 2048 ? 1 : wave > 8192 ? 8 : 1 / ((1 - smooth) / 8 + smooth);
    CHECK(double{long_context.rope_factors[i]} == doctest::Approx(right).epsilon(1e-6));
  }
  CHECK(ts::config("llama3.1-405b").rope_factors == long_context.rope_factors);
  CHECK(ts::config("llama3-70b").rope_factors.empty());
  CHECK(ts::config("llama3.2-3b").rope_factors[0] == 1);
  CHECK(ts::config("llama3.2-1b").rope_factors.back() == 32);
  CHECK(ts::config("mistral-7b").window == 4096);  // arXiv 2310.06825, table 1
  const ts::ModelConfig linear =
      parsed(with(llama3, {{"rope_scaling", "{\"type\": \"linear\", \"factor\": 2}"}}));
  CHECK(linear.rope_factors == std::vector<float>(64, 2.0f));
  CHECK(refusal(with(llama3, {{"rope_scaling", "{\"type\": \"linear\"}"}}))
            .find("rope_scaling lacks factor; a number above 0 is right") != std::string::npos);
  CHECK(refusal(with(llama3, {{"rope_scaling",
                               "{\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, "
                               "\"high_freq_factor\": 4, "
                               "\"original_max_position_embeddings\": 8192}"}}))
            .find("rope_scaling has high_freq_factor 4, low_freq_factor 4; the first must be "
                  "larger") != std::string::npos);
  const ts::ModelConfig newer = parsed(
      with(without(llama3, "rope_theta"),
           {{"rope_parameters", "{\"rope_type\": \"default\", \"rope_theta\": 1000000.0}"}}));
  CHECK(newer.rope_theta == 1e6);
  CHECK(newer.beyond == "");

  // Gemma 3 with images: the text part, most of its keys left out as in the published files.
  const ts::ModelConfig text = ts::parse_config(
      "{\"model_type\": \"gemma3\", \"text_config\": {\"hidden_size\": 2560, "
      "\"intermediate_size\": "
      "10240, \"num_hidden_layers\": 34, \"sliding_window\": 1024}, \"vision_config\": {}}",
      "gemma-3-4b");
  CHECK(text.parameters() == 3880099328 + (262208 - 262144) * 2560);
  CHECK(text.local_layers() == 29);
  CHECK(text.name == "gemma-3-4b");
}

TEST_CASE("config.json: rotary positions of another kind are refused or noted") {
  const auto scaling = [](const std::string& value) {
    return refusal(with(llama3, {{"rope_scaling", value}}));
  };
  const std::string at = "config.json:13: rope_scaling";
  CHECK(scaling("\"yarn\"") == at + " is \"yarn\"; an object of keys is right");
  CHECK(scaling("5") == at + " is 5; an object of keys is right");
  CHECK(scaling("true") == at + " is true; an object of keys is right");
  CHECK(scaling("[1]") == at + " is a list; an object of keys is right");
  CHECK(scaling("{\"rope_type\": 5}") == at + ".rope_type is 5; a text is right");
  CHECK(scaling("{\"type\": \"linear\", \"factor\": -2}") ==
        at + ".factor is -2; a number from 1e-30 and below 1e+30 is right");
  CHECK(scaling("{\"type\": \"linear\", \"factor\": \"2\"}") ==
        at + ".factor is \"2\"; a number from 1e-30 and below 1e+30 is right");
  CHECK(scaling("{\"type\": \"linear\", \"factor\": null}") ==
        at + " lacks factor; a number above 0 is right");
  const auto parameters = [](const std::string& value) {
    return with(without(llama3, "rope_theta"), {{"rope_parameters", value}});
  };
  for (const char* theta : {"-1", "0", "\"1e6\"", "1e31", "[1]"}) {
    CHECK(refusal(parameters(std::string("{\"rope_theta\": ") + theta + "}"))
              .find("rope_parameters.rope_theta is ") != std::string::npos);
  }
  CHECK(parsed(parameters("{\"rope_theta\": 5e5, \"partial_rotary_factor\": 0.5}")).beyond ==
        "positions on a part of each head");
  CHECK(parsed(parameters("{\"rope_theta\": 5e5, \"partial_rotary_factor\": 1}")).beyond == "");
  CHECK(parsed(parameters("{\"full_attention\": {\"rope_theta\": 1e6}, \"sliding_attention\": "
                          "{\"rope_theta\": 1e4}}"))
            .beyond == "rotary positions that differ by layer");
  const Keys neox = {{"model_type", "\"gpt_neox\""},     {"hidden_size", "64"},
                     {"num_attention_heads", "4"},       {"num_hidden_layers", "2"},
                     {"intermediate_size", "256"},       {"vocab_size", "100"},
                     {"max_position_embeddings", "128"}, {"rotary_pct", "1"},
                     {"use_parallel_residual", "false"}};
  CHECK(parsed(neox).beyond == "");
  CHECK(parsed(with(neox, {{"rope_scaling", "{\"type\": \"dynamic\", \"factor\": 2}"}})).beyond ==
        "rotary positions scaled by \"dynamic\" (linear and llama3 run)");
}

TEST_CASE("config.json: key-value heads, windows and heads that a file leaves out") {
  const auto kv_heads = [](const char* type, const Keys& more) {
    return parsed(
               with(without(decoder(type, {2, 2048, 32, 32, 96, 100, 512}), "num_key_value_heads"),
                    more))
        .kv_heads;
  };
  const Keys null = {{"num_key_value_heads", "null"}};
  const Keys experts = {{"num_experts", "4"},
                        {"num_experts_per_tok", "2"},
                        {"moe_intermediate_size", "16"},
                        {"shared_expert_intermediate_size", "16"},
                        {"num_local_experts", "4"},
                        {"norm_topk_prob", "true"}};
  CHECK(kv_heads("llama", {}) == 32);
  CHECK(kv_heads("mistral", {}) == 8);
  CHECK(kv_heads("mistral", null) == 32);
  CHECK(kv_heads("mixtral", experts) == 8);
  CHECK(kv_heads("qwen2", {}) == 32);
  CHECK(kv_heads("qwen2_moe", experts) == 16);
  CHECK(kv_heads("qwen3", {}) == 32);
  CHECK(kv_heads("qwen3_moe", experts) == 4);
  CHECK(kv_heads("gemma", {}) == 16);
  CHECK(kv_heads("gemma2", {}) == 4);
  CHECK(parsed(decoder("qwen3", {2, 2048, 32, 8, 96, 100, 512})).head_size == 128);
  CHECK(parsed(decoder("phi3", {2, 2048, 32, 8, 96, 100, 512})).norm_epsilon == 1e-5);
  const Keys mixture = with(decoder("qwen3_moe", {2, 2048, 32, 8, 96, 100, 512}), experts);
  CHECK(parsed(mixture).head_size == 64);
  CHECK(parsed(mixture).window == 0);
  const Keys local = with(mixture, {{"use_sliding_window", "true"}, {"sliding_window", "16"}});
  CHECK(parsed(local).window == 16);
  CHECK(parsed(local).local_layers() == 2);
  CHECK(parsed(with(local, {{"max_window_layers", "1"}})).window == 16);  // no key of this type
  const Keys shared =
      with(without(decoder("qwen2_moe", {2, 2048, 16, 16, 96, 100, 512}), ""),
           {{"num_experts", "4"}, {"num_experts_per_tok", "2"}, {"moe_intermediate_size", "1408"}});
  CHECK(parsed(shared).shared_experts == 4);
  const Keys windows = with(shared, {{"use_sliding_window", "true"}, {"sliding_window", "16"}});
  CHECK(refusal(windows) ==
        "config.json:1: layer_types is missing; which layers have a window differs by version "
        "without it");
  const std::string turns = R"(["sliding_attention", "full_attention"])";
  CHECK(parsed(with(windows, {{"layer_types", turns}})).global_every == 2);
}

TEST_CASE("config.json: every error gives file, line and key") {
  const auto llama = [](const Keys& changes) { return refusal(with(llama3, changes)); };
  CHECK(llama({{"num_attention_heads", "-3"}}) ==
        "config.json:5: num_attention_heads is -3; a whole number from 1 is right");
  CHECK(llama({{"num_attention_heads", "0"}}) ==
        "config.json:5: num_attention_heads is 0; a whole number from 1 is right");
  CHECK(llama({{"num_attention_heads", "31.5"}}) ==
        "config.json:5: num_attention_heads is 31.5; a whole number from 1 is right");
  CHECK(llama({{"num_attention_heads", "1e999"}}) ==
        "config.json:5: num_attention_heads is inf; a whole number from 1 is right");
  CHECK(llama({{"num_attention_heads", "1e30"}}) ==
        "config.json:5: num_attention_heads is 1e+30; a whole number up to 1000000 is right");
  CHECK(llama({{"hidden_size", "\"4096\""}}) ==
        "config.json:4: hidden_size is \"4096\"; a whole number from 1 is right");
  CHECK(llama({{"hidden_size", "[4096]"}}) ==
        "config.json:4: hidden_size is a list; a whole number from 1 is right");
  CHECK(llama({{"hidden_size", "true"}}) ==
        "config.json:4: hidden_size is true; a whole number from 1 is right");
  CHECK(llama({{"hidden_size", "{}"}}) ==
        "config.json:4: hidden_size is an object; a whole number from 1 is right");
  CHECK(llama({{"num_key_value_heads", "5"}}) ==
        "config.json:6: num_attention_heads is 32, num_key_value_heads 5; a multiple of it is "
        "right");
  CHECK(llama({{"hidden_size", "4097"}}) ==
        "config.json:5: hidden_size is 4097, num_attention_heads 32; a multiple of it is right");
  CHECK(llama({{"head_dim", "33"}}) ==
        "config.json:16: a head has 33 numbers; an even number is right");
  CHECK(llama({{"tie_word_embeddings", "1"}}) ==
        "config.json:15: tie_word_embeddings is 1; true or false is right");
  CHECK(llama({{"hidden_act", "3"}}) == "config.json:12: hidden_act is 3; a text is right");
  CHECK(llama({{"hidden_act", "\"mish\""}}) ==
        "config.json:12: hidden_act is \"mish\"; known: gelu, gelu_fast, gelu_new, "
        "gelu_pytorch_tanh, gelu_tanh, relu, silu, swish");
  CHECK(llama({{"rms_norm_eps", "-1"}}) ==
        "config.json:10: rms_norm_eps is -1; a number from 1e-30 and below 1 is right");
  CHECK(llama({{"rope_theta", "NaN"}}) == "config.json:11: json: not a JSON value at byte 264");
  CHECK(llama({{"model_type", "\"falcon\""}}) ==
        "config.json:2: model_type is \"falcon\"; known: bloom, deepseek_v2, deepseek_v3, gemma, "
        "gemma2, gemma3, gemma3_text, gpt2, gpt_neox, gptj, llama, mistral, mixtral, opt, phi3, "
        "qwen2, qwen2_moe, qwen3, qwen3_moe");
  CHECK(refusal(without(llama3, "model_type"))
            .find("config.json:1: model_type is missing; known: ") == 0);
  CHECK(refusal(without(llama3, "vocab_size")) ==
        "config.json:1: vocab_size is missing; a whole number from 1 is right");
  CHECK(llama({{"num_hidden_layers", "null"}}) ==
        "config.json:1: num_hidden_layers is missing; a whole number from 1 is right");
  Keys twice = llama3;
  twice.emplace_back("hidden_size", "8192");
  CHECK(refusal(twice).find("config.json:16: json: the key \"hidden_size\" stands twice") == 0);
  CHECK(llama({{"hidden_size", "2147483647"},
               {"num_attention_heads", "1"},
               {"num_key_value_heads", "1"},
               {"head_dim", "2147483646"},
               {"num_hidden_layers", "1000000"}})
            .find("config.json:2: ModelConfig: config: its sizes make about ") == 0);

  CHECK(refusal(with(mixtral, {{"num_experts_per_tok", "9"}})) ==
        "config.json:11: num_experts_per_tok is 9; at most num_local_experts, 8, is right");
  CHECK(refusal(with(qwen3_moe, {{"decoder_sparse_step", "2"}})) ==
        "config.json:14: decoder_sparse_step is 2; 1 is right: mixtures in some of the layers "
        "cannot be counted");
  CHECK(parsed(with(qwen3_moe, {{"mlp_only_layers", "[0, 1]"}})).dense_layers == 2);
  CHECK(refusal(with(qwen3_moe, {{"mlp_only_layers", "[1]"}})) ==
        "config.json:15: mlp_only_layers is not 0, 1, ...: dense layers other than the first "
        "cannot be counted");
  CHECK(refusal(with(qwen3_moe, {{"mlp_bias", "true"}})) ==
        "config.json:18: mlp_bias is true; false is right in a mixture");
  CHECK(refusal(with(deepseek, {{"attention_bias", "true"}})) ==
        "config.json:21: attention_bias is true; false is right with latent attention");
  CHECK(refusal(with(deepseek, {{"qk_rope_head_dim", "63"}})) ==
        "config.json:12: qk_rope_head_dim is 63; an even number is right");
  const Keys opt = with(decoder("opt", {12, 768, 12, 12, 0, 50272, 2048}), {{"ffn_dim", "3072"}});
  CHECK(refusal(with(opt, {{"word_embed_proj_dim", "512"}})) ==
        "config.json:11: word_embed_proj_dim is 512; hidden_size, 768, is right");
  CHECK(refusal(with(opt, {{"do_layer_norm_before", "false"}})) ==
        "config.json:11: do_layer_norm_before is false; true is right: others cannot be counted");
  const Keys neox = decoder("gpt_neox", {12, 768, 12, 12, 3072, 50304, 2048});
  CHECK(refusal(with(neox, {{"attention_bias", "false"}})) ==
        "config.json:10: attention_bias is false; true is right: others cannot be counted");

  const auto text = [](const std::string& bytes) {
    return error_of([&] { ts::parse_config(bytes, "models/x/config.json"); });
  };
  CHECK(text("") == "models/x/config.json:1: json: the text ends early at byte 0");
  CHECK(text("\n\n[1]") ==
        "models/x/config.json:3: the file is a list; an object of keys is right");
  CHECK(text("{\"model_type\": \"llama\",\n\n}") ==
        "models/x/config.json:3: json: a key must be a string at byte 25");
  CHECK(text("{\"model_type\": " + std::string(100, '['))
            .find("models/x/config.json:1: json: more than 64 levels at byte ") == 0);
  CHECK(text("{\"model_type\": \"gemma3\",\n\"text_config\": 1}") ==
        "models/x/config.json:2: text_config is 1; an object of keys is right");
}

TEST_CASE("config.json: a file, its name, and files cut anywhere") {
  const char* folder = std::getenv("TMPDIR");
  const std::string path = std::string(folder != nullptr ? folder : ".") + "/tinyscale_" +
                           std::to_string(getpid()) + "_llama.json";
  const std::string text = json_of(llama3);
  {
    const ts::detail::File file = ts::detail::open_file(path, "wb", "test");
    REQUIRE(std::fwrite(text.data(), 1, text.size(), file.get()) == text.size());
  }
  const ts::ModelConfig c = ts::read_config(path);
  std::remove(path.c_str());
  CHECK(c.parameters() == 8030261248);
  CHECK(c.name == "tinyscale_" + std::to_string(getpid()) + "_llama");
  CHECK(ts::parse_config(text, "models/Llama-3-8B/config.json").name == "Llama-3-8B");
  CHECK(ts::parse_config(text, "models/Llama-3-8B//config.json").name == "Llama-3-8B");
  CHECK(error_of([] { ts::read_config("no/such/config.json"); }) ==
        "read_config: cannot open \"no/such/config.json\": No such file or directory");

  std::string many = "{\"x\":[0";
  for (int i = 0; i < 100000; ++i) {
    many += ",0";  // values take far more memory than their text
  }
  const std::string refusal = error_of([&] { ts::parse_config(many + "]}", "c.json"); });
  CHECK(refusal == "c.json:1: json: more than 100000 values at byte 200002");

  std::size_t refused = 0;
  const std::string whole = json_of(deepseek);
  for (std::size_t i = 0; i < whole.size() - 2; ++i) {
    const std::string error = error_of([&] { ts::parse_config(whole.substr(0, i), "c.json"); });
    refused += error.find("c.json:") == 0 ? 1 : 0;
    std::string changed = whole;
    for (const char wrong : {'-', '9', '"', '\0', '\xff'}) {
      changed[i] = wrong;
      const std::string what = error_of([&] { ts::parse_config(changed, "c.json"); });
      const bool known = what == "no error" || what.find("c.json:") == 0;
      CHECK_MESSAGE(known, what);
    }
  }
  CHECK(refused == whole.size() - 2);
}

TEST_CASE("ModelConfig: latent attention, dense layers and windows that cannot be right") {
  using Config = ts::ModelConfig;
  const auto refused = [](const char* name, const std::function<void(Config&)>& change) {
    Config c = ts::config(name);
    change(c);
    return error_of([&] { c.validate(); });
  };
  CHECK(refused("deepseek-v3", [](Config&) {}) == "no error");
  CHECK(refused("gemma3-1b", [](Config&) {}) == "no error");
  CHECK(refused("deepseek-v3", [](Config& c) { c.rope_head = 0; }) ==
        "ModelConfig: deepseek-v3: latent attention with rope_head 0 and 128 kv_heads of 128 "
        "heads; an even rope_head from 2 and as many kv_heads as heads are right");
  CHECK(refused("deepseek-v3", [](Config& c) { c.bias = true; }) ==
        "ModelConfig: deepseek-v3: latent attention with bias, qkv_bias or qk_norm; each false is "
        "right");
  CHECK(refused("deepseek-v3", [](Config& c) { c.dense_layers = 62; }) ==
        "ModelConfig: deepseek-v3: dense_layers is 62; at most 61 is right");
  CHECK(refused("deepseek-v3", [](Config& c) { c.hidden = 0; }) ==
        "ModelConfig: deepseek-v3: hidden is 0; at least 1 is right");
  CHECK(refused("deepseek-v3", [](Config& c) {
          c.q_lora_rank = c.heads = 1000000;
        }).find("ModelConfig: deepseek-v3: ") == 0);
  CHECK(refused("llama3-8b", [](Config& c) { c.dense_layers = 1; }) ==
        "ModelConfig: llama3-8b: dense_layers is 1; at most 0 is right");
  CHECK(refused("llama3-8b", [](Config& c) { c.rope_head = 64; }) ==
        "ModelConfig: llama3-8b: rope_head is 64; at most 0 is right");
  CHECK(refused("llama3-8b", [](Config& c) { c.window = -1; }) ==
        "ModelConfig: llama3-8b: window is -1; at least 0 is right");
  CHECK(refused("llama3-8b", [](Config& c) { c.global_every = 2; }) ==
        "ModelConfig: llama3-8b: global_every is 2; at most 0 is right");
  Config nano = ts::config("nano");
  nano.router_bias = true;
  CHECK(error_of([&] { ts::Transformer model(nano); }) ==
        "Transformer: nano is planned, not run: it has biases of the router; config(\"nano\") is "
        "one that runs");
}

TEST_CASE("ModelConfig: what a sequence caches, layer by layer") {
  for (const char* name : {"gemma2-2b", "gemma3-27b-text", "llama3-8b", "deepseek-v3"}) {
    const ts::ModelConfig c = ts::config(name);
    for (const std::int64_t tokens : {1, 512, 1024, 5000, 131072}) {
      std::int64_t numbers = 0;
      std::int64_t local = 0;
      for (std::int64_t layer = 0; layer < c.layers; ++layer) {
        numbers += c.cached_numbers() * (c.is_local(layer) ? std::min(tokens, c.window) : tokens);
        local += c.is_local(layer) ? 1 : 0;
      }
      CAPTURE(name);
      CHECK(c.cached_numbers(tokens) == numbers);
      CHECK(c.local_layers() == local);
      CHECK(ts::kv_cache_bytes(c, ts::DType::bf16, tokens) == 2.0 * static_cast<double>(numbers));
    }
  }
  CHECK(ts::config("gemma2-2b").is_local(0));  // local first, as published
  CHECK(!ts::config("gemma2-2b").is_local(1));
  CHECK(!ts::config("gemma3-1b").is_local(5));
  CHECK(ts::kv_cache_bytes(ts::config("deepseek-v3"), ts::DType::bf16, 1) == 70272);
  CHECK(error_of([] { ts::kv_cache_bytes(ts::config("nano"), ts::DType::bf16, -1); }) ==
        "kv_cache_bytes: -1 tokens; 0 or more are right");
}

TEST_CASE("config.json: attention that is scaled otherwise, and the exact GELU in a gate") {
  const Keys small = {
      {"model_type", "\"gpt2\""}, {"vocab_size", "16"}, {"n_embd", "8"}, {"n_head", "2"},
      {"n_layer", "1"},           {"n_positions", "16"}};
  CHECK(parsed(small).beyond == "");
  CHECK(parsed(with(small, {{"scale_attn_by_inverse_layer_idx", "true"}})).beyond ==
        "scores that are scaled otherwise");
  CHECK(parsed(with(small, {{"scale_attn_weights", "false"}})).beyond ==
        "scores that are scaled otherwise");
  CHECK(parsed(with(llama3, {{"hidden_act", "\"gelu\""}})).beyond == "the exact GELU in a gate");
  CHECK(parsed(with(llama3, {{"hidden_act", "\"gelu_pytorch_tanh\""}})).beyond == "");
}
