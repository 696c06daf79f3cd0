#pragma once
// Published architectures by name, with parameter counts that equal the published checkpoints.
// Sources: the makers' papers and model configurations (GPT-2/3, PaLM, Llama, Mixtral, DeepSeek-V3,
// Gemma, Qwen, ViT, Stable Diffusion); training tokens as the makers state them.

#include <cctype>   // isalnum, tolower
#include <cstdint>  // int64_t
#include <cstdio>   // sscanf
#include <string>   // string
#include <vector>   // vector

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/near_names.hpp"
#include "tinyscale/model/model_config.hpp"

namespace tinyscale {

namespace detail {

// name, family, layers, width, heads, kv_heads, head_size, hidden, vocabulary, context, tied,
// experts, top_k, expert_hidden, shared_experts, training tokens (0: not published)
inline const List<const char*>& model_table() {
  static const List<const char*> rows = {
      "nano nano 4 128 4 4 32 512 256 64 1 0 0 0 0 0",
      "nano-llama llama 4 128 4 2 32 344 256 64 1 0 0 0 0 0",
      "nano-moe llama 4 128 4 2 32 0 256 64 1 8 2 172 0 0",
      "gpt2-small gpt2 12 768 12 12 64 3072 50257 1024 1 0 0 0 0 0",
      "gpt2-medium gpt2 24 1024 16 16 64 4096 50257 1024 1 0 0 0 0 0",
      "gpt2-large gpt2 36 1280 20 20 64 5120 50257 1024 1 0 0 0 0 0",
      "gpt2-xl gpt2 48 1600 25 25 64 6400 50257 1024 1 0 0 0 0 0",
      "gpt-j-6b gptj 28 4096 16 16 256 16384 50400 2048 0 0 0 0 0 402e9",
      "gpt3-125m gpt3 12 768 12 12 64 3072 50257 2048 1 0 0 0 0 3e11",
      "gpt3-350m gpt3 24 1024 16 16 64 4096 50257 2048 1 0 0 0 0 3e11",
      "gpt3-760m gpt3 24 1536 16 16 96 6144 50257 2048 1 0 0 0 0 3e11",
      "gpt3-1.3b gpt3 24 2048 24 24 128 8192 50257 2048 1 0 0 0 0 3e11",
      "gpt3-2.7b gpt3 32 2560 32 32 80 10240 50257 2048 1 0 0 0 0 3e11",
      "gpt3-6.7b gpt3 32 4096 32 32 128 16384 50257 2048 1 0 0 0 0 3e11",
      "gpt3-13b gpt3 40 5140 40 40 128 20560 50257 2048 1 0 0 0 0 3e11",
      "gpt3-175b gpt3 96 12288 96 96 128 49152 50257 2048 1 0 0 0 0 3e11",
      "palm-8b palm 32 4096 16 1 256 16384 256000 2048 1 0 0 0 0 78e10",
      "palm-62b palm 64 8192 32 1 256 32768 256000 2048 1 0 0 0 0 78e10",
      "palm-540b palm 118 18432 48 1 256 73728 256000 2048 1 0 0 0 0 78e10",
      "llama2-7b llama 32 4096 32 32 128 11008 32000 4096 0 0 0 0 0 2e12",
      "llama2-13b llama 40 5120 40 40 128 13824 32000 4096 0 0 0 0 0 2e12",
      "llama2-70b llama 80 8192 64 8 128 28672 32000 4096 0 0 0 0 0 2e12",
      "llama3-8b llama 32 4096 32 8 128 14336 128256 8192 0 0 0 0 0 15e12",
      "llama3-70b llama 80 8192 64 8 128 28672 128256 8192 0 0 0 0 0 15e12",
      "llama3.1-405b llama 126 16384 128 8 128 53248 128256 131072 0 0 0 0 0 156e11",
      "mistral-7b llama 32 4096 32 8 128 14336 32000 8192 0 0 0 0 0 0",
      "llama3.2-1b llama 16 2048 32 8 64 8192 128256 131072 1 0 0 0 0 9e12",
      "llama3.2-3b llama 28 3072 24 8 128 8192 128256 131072 1 0 0 0 0 9e12",
      "tinyllama-1.1b llama 22 2048 32 4 64 5632 32000 2048 0 0 0 0 0 3e12",
      "smollm2-135m llama 30 576 9 3 64 1536 49152 8192 1 0 0 0 0 2e12",
      "stories260K llama 5 64 8 4 8 172 512 512 1 0 0 0 0 0",
      "stories15M llama 6 288 6 6 48 768 32000 256 1 0 0 0 0 0",
      "stories42M llama 8 512 8 8 64 1376 32000 1024 1 0 0 0 0 0",
      "stories110M llama 12 768 12 12 64 2048 32000 1024 1 0 0 0 0 0",
      "mixtral-8x7b mixtral 32 4096 32 8 128 0 32000 32768 0 8 2 14336 0 0",
      "mixtral-8x22b mixtral 56 6144 48 8 128 0 32768 65536 0 8 2 16384 0 0",
      "deepseek-v3 deepseek 61 7168 128 128 128 18432 129280 163840 0 256 8 2048 1 148e11",
      "gemma2-2b gemma2 26 2304 8 4 256 9216 256000 8192 1 0 0 0 0 2e12",
      "gemma2-9b gemma2 42 3584 16 8 256 14336 256000 8192 1 0 0 0 0 8e12",
      "gemma2-27b gemma2 46 4608 32 16 128 36864 256000 8192 1 0 0 0 0 13e12",
      "gemma3-1b gemma3 26 1152 4 1 256 6912 262144 32768 1 0 0 0 0 2e12",
      "gemma3-4b-text gemma3 34 2560 8 4 256 10240 262144 131072 1 0 0 0 0 4e12",
      "gemma3-12b-text gemma3 48 3840 16 8 256 15360 262144 131072 1 0 0 0 0 12e12",
      "gemma3-27b-text gemma3 62 5376 32 16 128 21504 262144 131072 1 0 0 0 0 14e12",
      "qwen2.5-0.5b qwen2 24 896 14 2 64 4864 151936 32768 1 0 0 0 0 18e12",
      "qwen2.5-1.5b qwen2 28 1536 12 2 128 8960 151936 32768 1 0 0 0 0 18e12",
      "qwen2.5-7b qwen2 28 3584 28 4 128 18944 152064 131072 0 0 0 0 0 18e12",
      "qwen2.5-14b qwen2 48 5120 40 8 128 13824 152064 131072 0 0 0 0 0 18e12",
      "qwen2.5-32b qwen2 64 5120 40 8 128 27648 152064 131072 0 0 0 0 0 18e12",
      "qwen2.5-72b qwen2 80 8192 64 8 128 29568 152064 131072 0 0 0 0 0 18e12",
      "qwen3-0.6b qwen3 28 1024 16 8 128 3072 151936 40960 1 0 0 0 0 36e12",
      "qwen3-1.7b qwen3 28 2048 16 8 128 6144 151936 40960 1 0 0 0 0 36e12",
      "qwen3-4b qwen3 36 2560 32 8 128 9728 151936 40960 1 0 0 0 0 36e12",
      "qwen3-8b qwen3 36 4096 32 8 128 12288 151936 40960 0 0 0 0 0 36e12",
      "qwen3-14b qwen3 40 5120 40 8 128 17408 151936 40960 0 0 0 0 0 36e12",
      "qwen3-32b qwen3 64 5120 64 8 128 25600 151936 40960 0 0 0 0 0 36e12",
      "qwen3-30b-a3b qwen3 48 2048 32 4 128 0 151936 40960 0 128 8 768 0 36e12",
      "qwen3-235b-a22b qwen3 94 4096 64 4 128 0 151936 40960 0 128 8 1536 0 36e12",
      "vit-b16 vit 12 768 12 12 64 3072 0 197 0 0 0 0 0 0",
      "vit-l16 vit 24 1024 16 16 64 4096 0 197 0 0 0 0 0 0",
      "vit-h14 vit 32 1280 16 16 80 5120 0 257 0 0 0 0 0 0",
      "sd2.1-unet diffusion 16 1280 20 20 64 5120 0 77 0 0 0 0 0 0",
  };
  return rows;
}

inline bool starts_with(const std::string& text, const char* start) {
  return text.rfind(start, 0) == 0;
}

// Adds what makes the whole equal a count that was published for this one architecture.
inline void count_as(ModelConfig& c, std::int64_t all) {
  c.other_parameters = all - c.parameters();
}

inline void family_llama(ModelConfig& c, const std::string& family) {
  c.norm = Norm::rms;
  c.position = Position::rotary;
  c.activation = Activation::swiglu;
  if (starts_with(c.name, "llama3")) {
    c.rope_theta = 500000.0;
    if (!starts_with(c.name, "llama3-")) {
      const double factor = starts_with(c.name, "llama3.1") ? 8 : 32;
      c.rope_factors = llama3_rope_factors(c, factor, 1, 4, 8192);
    }
  } else if (starts_with(c.name, "smollm2")) {
    c.rope_theta = 100000.0;
  } else if (family == "mixtral" || starts_with(family, "qwen")) {
    c.rope_theta = 1e6;
  }
  c.window = c.name == "mistral-7b" ? 4096 : 0;
  c.qkv_bias = family == "qwen2";
  c.qk_norm = family == "qwen3" || family == "gemma3";
  c.norm_epsilon = starts_with(family, "qwen") ? 1e-6 : 1e-5;
  if (family == "deepseek") {
    c.kv_lora_rank = 512;
    c.q_lora_rank = 1536;
    c.rope_head = 64;
    c.value_head = 128;
    c.dense_layers = 3;
    c.router_bias = true;
    c.norm_epsilon = 1e-6;
  }
  if (starts_with(family, "gemma")) {
    c.activation = Activation::geglu;
    c.norm_epsilon = 1e-6;
    c.rope_theta = family == "gemma3" ? 1e6 : 1e4;
    c.block_norms = 4;
    c.window = family == "gemma2" ? 4096 : c.name == "gemma3-1b" ? 512 : 1024;
    c.global_every = family == "gemma2" ? 2 : 6;
  }
}

inline void family_gpt(ModelConfig& c, const std::string& family) {
  c.bias = family != "nano";
  c.activation = family == "nano" ? Activation::gelu : Activation::gelu_tanh;
  if (c.name == "gpt3-1.3b" || c.name == "gpt3-13b") {
    const std::int64_t all = c.name == "gpt3-13b" ? 12952938780 : 1315723264;
    count_as(c, all);
    c.beyond = "a published head count whose product with the head size is not the width";
  }
}

inline void family_other(ModelConfig& c, const std::string& family) {
  c.activation = Activation::gelu;
  if (family == "gptj") {
    c.activation = Activation::gelu_tanh;
    c.position = Position::rotary;
    c.block_norms = 1;  // its norms, feed-forward and output matrix alone have biases
    c.other_parameters = c.layers * (2 * c.width + c.hidden) + c.width + c.vocabulary;
  } else if (family == "palm") {
    c.activation = Activation::swiglu;
    c.position = Position::rotary;
    c.block_norms = 1;
  } else if (family == "vit") {
    const std::int64_t patch = c.name == "vit-h14" ? 14 : 16;
    c.bias = true;  // patch embedding, class token, head of 1000 classes
    c.other_parameters = (3 * patch * patch + 1 + 1) * c.width + 1000 * (c.width + 1);
    c.beyond = "patches of an image in place of tokens";
  } else if (family == "diffusion") {
    c.beyond = "convolutions: a U-Net, of which only the count is right here";
    count_as(c, 865910724);
  }
}

inline ModelConfig parse_preset(const char* row) {
  char name[32];
  char family[16];
  long long n[13];
  double tokens = 0;
  const int read = std::sscanf(
      row, "%31s %15s %lld %lld %lld %lld %lld %lld %lld %lld %lld %lld %lld %lld %lld %lf", name,
      family, n, n + 1, n + 2, n + 3, n + 4, n + 5, n + 6, n + 7, n + 8, n + 9, n + 10, n + 11,
      n + 12, &tokens);
  if (read != 16) {
    fail({"config: the preset row \"", row, "\" has ", read, " fields; 16 is right"});
  }
  ModelConfig c;
  c.name = name;
  c.layers = n[0], c.width = n[1], c.heads = n[2], c.kv_heads = n[3], c.head_size = n[4];
  c.hidden = n[5], c.vocabulary = n[6], c.context = n[7], c.tied = n[8] != 0;
  c.experts = static_cast<int>(n[9]), c.top_k = static_cast<int>(n[10]);
  c.expert_hidden = n[11], c.shared_experts = static_cast<int>(n[12]);
  c.training_tokens = tokens;
  const std::string kind = family;
  if (kind == "nano" || kind == "gpt2" || kind == "gpt3") {
    family_gpt(c, kind);
  } else if (kind == "gptj" || kind == "palm" || kind == "vit" || kind == "diffusion") {
    family_other(c, kind);
  } else {
    family_llama(c, kind);
  }
  c.beyond = c.beyond.empty() ? lacking(c) : c.beyond;
  return c;
}

// Lower-case letters, digits and points alone, so that "Llama-3-70B" finds "llama3-70b".
inline std::string plain_name(const std::string& name) {
  std::string plain;
  for (const char c : name) {
    const auto u = static_cast<unsigned char>(c);
    if (std::isalnum(u) || c == '.') {
      plain += static_cast<char>(std::tolower(u));
    }
  }
  return plain;
}

inline std::string model_alias(const std::string& plain) {
  static const char* const aliases[][2] = {{"gpt2", "gpt2-small"},
                                           {"gpt3", "gpt3-175b"},
                                           {"gptj", "gpt-j-6b"},
                                           {"palm", "palm-540b"},
                                           {"llama3405b", "llama3.1-405b"},
                                           {"mixtral", "mixtral-8x7b"},
                                           {"deepseek", "deepseek-v3"},
                                           {"gemma34b", "gemma3-4b-text"},
                                           {"gemma312b", "gemma3-12b-text"},
                                           {"gemma327b", "gemma3-27b-text"},
                                           {"qwen330b", "qwen3-30b-a3b"},
                                           {"qwen3235b", "qwen3-235b-a22b"},
                                           {"stablediffusion", "sd2.1-unet"}};
  for (const auto& alias : aliases) {
    if (plain == alias[0]) {
      return alias[1];
    }
  }
  return "";
}

}  // namespace detail

// The names that config() knows, in the order of the table.
inline std::vector<std::string> configs() {
  std::vector<std::string> names;
  for (const char* row : detail::model_table()) {
    const std::string text = row;
    names.push_back(text.substr(0, text.find(' ')));
  }
  return names;
}

// The preset of that name; case and punctuation do not matter. An unknown name is an Error.
inline ModelConfig config(const std::string& name) {
  const std::string plain = detail::plain_name(name);
  const std::string alias = detail::model_alias(plain);
  const std::string wanted = alias.empty() ? plain : detail::plain_name(alias);
  std::string alike;
  std::string all;
  const std::vector<std::string> names = configs();
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string known = detail::plain_name(names[i]);
    if (known == wanted) {
      return detail::parse_preset(detail::model_table()[i]);
    }
    if (plain.size() >= 4 && known.compare(0, 4, plain, 0, 4) == 0) {
      alike += (alike.empty() ? "" : ", ") + names[i];
    }
    all += (all.empty() ? "" : ", ") + names[i];
  }
  if (alike.empty()) {
    alike = detail::joined_names(detail::near_names(name, names));
  }
  detail::fail({"config: no model is named \"", name, "\"; ",
                alike.empty() ? "known: " + all : "near: " + alike});
}

}  // namespace tinyscale
