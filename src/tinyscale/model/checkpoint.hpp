#pragma once
// What save() writes: safetensors of the parameters under the names of Hugging Face's Llama files,
// config and tokenizer as JSON in the metadata.

#include <array>
#include <cstdint>  // int64_t
#include <string>   // string
#include <vector>   // vector

#include "tinyscale/base/order.hpp"
#include "tinyscale/model/forward.hpp"
#include "tinyscale/model/safetensors.hpp"
#include "tinyscale/model/tokenizer_json.hpp"

namespace tinyscale {

namespace detail {

template <class T>
struct ConfigField {
  const char* first;
  T* second;
};

// The fields of a config by type, for writing and for reading.
inline std::array<ConfigField<std::int64_t>, 9> config_sizes(ModelConfig& c) {
  return {{{"layers", &c.layers},
           {"width", &c.width},
           {"heads", &c.heads},
           {"kv_heads", &c.kv_heads},
           {"head_size", &c.head_size},
           {"hidden", &c.hidden},
           {"vocabulary", &c.vocabulary},
           {"context", &c.context},
           {"expert_hidden", &c.expert_hidden}}};
}

inline std::array<ConfigField<bool>, 4> config_switches(ModelConfig& c) {
  return {
      {{"bias", &c.bias}, {"tied", &c.tied}, {"qkv_bias", &c.qkv_bias}, {"qk_norm", &c.qk_norm}}};
}

inline std::array<ConfigField<int>, 3> config_counts(ModelConfig& c) {
  return {{{"experts", &c.experts}, {"top_k", &c.top_k}, {"shared_experts", &c.shared_experts}}};
}

inline std::array<ConfigField<double>, 2> config_numbers(ModelConfig& c) {
  return {{{"rope_theta", &c.rope_theta}, {"norm_epsilon", &c.norm_epsilon}}};
}

// The words of the enums, in their order.
constexpr const char* norm_words[] = {"layer", "rms", nullptr};
constexpr const char* position_words[] = {"learned", "rotary", nullptr};
constexpr const char* activation_words[] = {"gelu", "gelu_tanh", "swiglu", "geglu", nullptr};
constexpr const char* rope_pairs_words[] = {"interleaved", "halves", nullptr};

inline std::string config_json(ModelConfig c) {
  std::string json = cat({"{\"name\":\"", json_escape(c.name), "\""});
  for (const auto& field : config_sizes(c)) {
    json += cat({",\"", field.first, "\":", *field.second});
  }
  for (const auto& field : config_counts(c)) {
    json += cat({",\"", field.first, "\":", *field.second});
  }
  for (const auto& field : config_switches(c)) {
    json += cat({",\"", field.first, "\":", *field.second ? "true" : "false"});
  }
  for (const auto& field : config_numbers(c)) {
    json += cat({",\"", field.first, "\":", exact_number(*field.second)});
  }
  if (c.window > 0) {
    json += cat({",\"window\":", c.window, ",\"global_every\":", c.global_every});
  }
  if (c.rope_pairs == RopePairs::interleaved) {
    json += ",\"rope_pairs\":\"interleaved\"";
  }
  for (std::size_t i = 0; i < c.rope_factors.size(); ++i) {
    json += cat({i == 0 ? ",\"rope_factors\":[" : ",",
                 exact_number(static_cast<double>(c.rope_factors[i])),
                 i + 1 == c.rope_factors.size() ? "]" : ""});
  }
  json += cat({",\"norm\":\"", norm_words[static_cast<int>(c.norm)], "\",\"position\":\"",
               position_words[static_cast<int>(c.position)], "\",\"activation\":\"",
               activation_words[static_cast<int>(c.activation)], "\"}"});
  return json;
}

inline const Json& config_field(const Json& json, const char* key, Json::Kind kind,
                                const std::string& who) {
  const Json* field = json.find(key);
  if (field == nullptr || field->kind != kind) {
    fail({who, "its config lacks ", key});
  }
  return *field;
}

// The place of a field's word among the right ones.
inline int config_word(const Json& json, const char* key, const char* const* words,
                       const std::string& who) {
  const std::string& word = config_field(json, key, Json::Kind::text, who).text;
  std::string right;
  for (int i = 0; words[i] != nullptr; ++i) {
    if (word == words[i]) {
      return i;
    }
    right += cat({i > 0 ? ", " : "", words[i]});
  }
  fail({who, key, " is \"", word, "\"; right is one of ", right});
}

inline ModelConfig config_from_json(const std::string& text, const std::string& who) {
  const Json json = parse_named(text, who);
  ModelConfig c;
  c.name = config_field(json, "name", Json::Kind::text, who).text;
  for (const auto& field : config_sizes(c)) {
    const Json& value = config_field(json, field.first, Json::Kind::number, who);
    *field.second = static_cast<std::int64_t>(json_whole(value, who + "config"));
  }
  for (const auto& field : config_counts(c)) {
    const Json& value = config_field(json, field.first, Json::Kind::number, who);
    const std::uint64_t n = json_whole(value, who + "config");
    if (n > 1000000) {
      fail({who, "its config has ", n, " ", field.first, "; at most 1000000"});
    }
    *field.second = static_cast<int>(n);
  }
  for (const auto& field : config_switches(c)) {
    *field.second = config_field(json, field.first, Json::Kind::boolean, who).number != 0;
  }
  for (const auto& field : config_numbers(c)) {
    *field.second = config_field(json, field.first, Json::Kind::number, who).number;
  }
  if (json.find("window") != nullptr) {
    const auto whole = [&](const char* key) {
      return static_cast<std::int64_t>(
          json_whole(config_field(json, key, Json::Kind::number, who), who + "config"));
    };
    c.window = whole("window");
    c.global_every = whole("global_every");
  }
  if (json.find("rope_pairs") != nullptr) {
    c.rope_pairs = static_cast<RopePairs>(config_word(json, "rope_pairs", rope_pairs_words, who));
  }
  if (json.find("rope_factors") != nullptr) {
    for (const Json& factor : config_field(json, "rope_factors", Json::Kind::list, who).list) {
      if (factor.kind != Json::Kind::number) {
        fail({who, "its config has rope_factors that are no numbers"});
      }
      c.rope_factors.push_back(static_cast<float>(factor.number));
    }
  }
  c.norm = static_cast<Norm>(config_word(json, "norm", norm_words, who));
  c.position = static_cast<Position>(config_word(json, "position", position_words, who));
  c.activation = static_cast<Activation>(config_word(json, "activation", activation_words, who));
  try {
    c.validate();
  } catch (const Error& error) {
    detail::fail({who + error.what()});
  }
  return c;
}

inline void check_safetensors_name(const char* who, const std::string& path) {
  check_ending(who, path, {".gguf", ".bin", ".pt", ".pth"}, "safetensors",
               ".safetensors is right, and save_llama2c writes a .bin");
}

}  // namespace detail

inline void Transformer::save(const std::string& path, DType format) const {
  detail::check_safetensors_name("save", path);
  for (const Parameter& p : parameters) {
    if (!p.value.defined()) {
      detail::fail({"save: ", p.name, " of ", config.name, " is ",
                    p.stored ? p.stored->kind() : "not there",
                    " and only runs; load(path) gives weights that can be saved"});
    }
  }
  write_safetensors(path, parameters,
                    {{"format", "pt"},
                     {"tinyscale.config", detail::config_json(config)},
                     {"tinyscale.tokenizer", detail::tokenizer_json(tokenizer)}},
                    format);
}

}  // namespace tinyscale
