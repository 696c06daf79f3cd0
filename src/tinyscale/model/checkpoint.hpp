#pragma once
// A transformer in a file: parameters under the names of Hugging Face's Llama files, config and
// tokenizer as JSON in the metadata. GPT-2 names are read too (wte, h.0.attn.c_attn, ...), with
// matrices [out, in] or, as in the original files, [in, out].

#include <array>
#include <cstdint>  // int64_t
#include <string>   // string
#include <utility>  // pair
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

// A config from a file may lie: what it would allocate must be near what the file holds.
inline void check_config_fits(const ModelConfig& c, const Safetensors& file,
                              const std::string& who) {
  const auto number = [](std::int64_t n) { return static_cast<double>(n); };
  const double experts = c.experts > 0 ? c.experts + c.shared_experts : 1;
  const double hidden = number(c.experts > 0 ? c.expert_hidden : c.hidden);
  const double places = c.position == Position::learned ? number(c.context) : 0;
  const double layer = 2 * number(c.heads) * number(c.head_size) +
                       2 * number(c.kv_heads) * number(c.head_size) + 2 * experts * hidden;
  const double least = number(c.width) * (number(c.vocabulary) + places + number(c.layers) * layer);
  const double held = static_cast<double>(file.bytes.size() - file.data_start);
  if (least > held) {  // every number takes at least a byte
    fail({who, "its config describes at least ", least, " parameters in ", held, " bytes of data"});
  }
}

// Where a GPT-2 file keeps a parameter of ours; part 0, 1, 2 of three in c_attn, else -1.
struct Gpt2Place {
  std::string name;
  int part = -1;
};

inline Gpt2Place gpt2_place(std::string name) {
  static const struct {
    const char* ours;
    const char* theirs;
    int part;
  } table[] = {{"model.embed_tokens", "wte", -1},
               {"model.embed_positions", "wpe", -1},
               {"model.norm", "ln_f", -1},
               {"model.layers.", "h.", -1},
               {"input_layernorm", "ln_1", -1},
               {"post_attention_layernorm", "ln_2", -1},
               {"self_attn.o_proj", "attn.c_proj", -1},
               {"self_attn.q_proj", "attn.c_attn", 0},
               {"self_attn.k_proj", "attn.c_attn", 1},
               {"self_attn.v_proj", "attn.c_attn", 2},
               {"mlp.up_proj", "mlp.c_fc", -1},
               {"mlp.down_proj", "mlp.c_proj", -1}};
  Gpt2Place place;
  for (const auto& row : table) {
    const std::size_t at = name.find(row.ours);
    if (at != std::string::npos) {
      name.replace(at, std::string(row.ours).size(), row.theirs);
      place.part = row.part >= 0 ? row.part : place.part;
    }
  }
  place.name = std::move(name);
  return place;
}

// The parameter's numbers from the file, in our layout; empty when the file lacks them.
inline Tensor find_parameter(const Safetensors& file, const std::string& name, std::int64_t width,
                             NameTable& used) {
  const Gpt2Place place = gpt2_place(name);
  const SafetensorsEntry* entry = file.find(name);
  const bool own_name = entry != nullptr;
  for (const char* prefix : {"transformer.", ""}) {
    entry = entry != nullptr ? entry : file.find(prefix + place.name);
  }
  if (entry == nullptr) {
    return Tensor();
  }
  ++used[entry->name];
  Tensor value = file.read(*entry);
  if (own_name) {
    return value;
  }
  const bool in_layer = place.name.compare(0, 2, "h.") == 0;
  const SafetensorsEntry* qkv = nullptr;  // its shape tells which way round all matrices are
  for (const char* prefix : {"transformer.", ""}) {
    qkv = qkv != nullptr ? qkv : file.find(std::string(prefix) + "h.0.attn.c_attn.weight");
  }
  if (value.dims() == 2 && in_layer && qkv != nullptr && qkv->shape == Shape{width, 3 * width}) {
    value = transpose(value, 0, 1);
  }
  if (place.part >= 0) {
    const std::int64_t rows = value.dim(0) / 3;
    value = slice(value, 0, place.part * rows, (place.part + 1) * rows);
  }
  return value;
}

// Tensors of other programs' files that hold nothing to learn, and of a training's the moments.
inline bool harmless(const std::string& name, const Transformer& model) {
  const auto ends = [&name](const std::string& tail) {
    return name.size() >= tail.size() &&
           name.compare(name.size() - tail.size(), tail.size(), tail) == 0;
  };
  return name.compare(0, 10, "optimizer.") == 0 || ends(".attn.bias") ||
         ends(".attn.masked_bias") || ends(".rotary_emb.inv_freq") ||
         (model.config.tied && name == "lm_head.weight");
}

inline void read_parameters(Transformer& model, const Safetensors& file, const std::string& who) {
  NameTable used;
  for (Parameter& p : model.parameters) {
    const Tensor value = find_parameter(file, p.name, model.config.width, used);
    if (!value.defined()) {
      fail({who, "no tensor for the parameter ", p.name});
    }
    if (value.shape() != p.value.shape()) {
      fail({who, "the tensor for ", p.name, " is ", value.shape().text(), "; the model ",
            model.config.name, " has ", p.value.shape().text()});
    }
    std::memcpy(p.value.data(), contiguous(value).data(),
                static_cast<std::size_t>(value.count()) * 4);
  }
  for (const SafetensorsEntry& entry : file.entries) {
    if (!used.has(entry.name) && !harmless(entry.name, model)) {
      fail({who, "the tensor \"", entry.name, "\" has no place in the model ", model.config.name});
    }
  }
}

}  // namespace detail

inline void Transformer::save(const std::string& path) const {
  write_safetensors(path, parameters,
                    {{"format", "pt"},
                     {"tinyscale.config", detail::config_json(config)},
                     {"tinyscale.tokenizer", detail::tokenizer_json(tokenizer)}});
}

// Another program's weights into a model of the given shape.
inline Transformer load(const std::string& path, const ModelConfig& config) {
  const Safetensors file = read_safetensors(path);
  const std::string who = detail::cat({"load: \"", path, "\": "});
  config.validate();
  detail::check_config_fits(config, file, who);
  Transformer model(config);
  detail::read_parameters(model, file, who);
  return model;
}

// A model that save() wrote, its tokenizer with it.
inline Transformer load(const std::string& path) {
  const Safetensors file = read_safetensors(path);
  const std::string who = detail::cat({"load: \"", path, "\": "});
  const std::string* config = file.find_metadata("tinyscale.config");
  const std::string* tokenizer = file.find_metadata("tinyscale.tokenizer");
  if (config == nullptr || tokenizer == nullptr) {
    detail::fail({who + "it carries no config of this library; call load(path, config)"});
  }
  const ModelConfig shape = detail::config_from_json(*config, who);
  detail::check_config_fits(shape, file, who);
  Transformer model(shape);
  model.tokenizer = detail::tokenizer_from_json(*tokenizer, who);
  detail::read_parameters(model, file, who);
  return model;
}

}  // namespace tinyscale
