#pragma once
// A model's shape from the config.json beside its weights on Hugging Face: read_config(path). What
// this library's transformer lacks to run it stands in `beyond`. Source of the keys, and of what
// holds for keys left out: the configuration classes of the transformers library.

#include <cstdint>  // int64_t
#include <string>   // string

#include "tinyscale/base/error.hpp"
#include "tinyscale/model/config_file.hpp"
#include "tinyscale/model/model_config.hpp"
#include "tinyscale/model/read_text.hpp"

namespace tinyscale {

namespace detail {

// Bounds with which no sum of parameters runs over; ModelConfig::validate has the same.
constexpr std::int64_t config_size = 2147483647, config_few = 1000000;

class ConfigReader {
 public:
  ConfigReader(const std::string& text, const std::string& file, std::int64_t context, bool tied)
      : file_(text, file), longest_(context), tied_(tied) {}

  ModelConfig read(const std::string& name) {
    c_.name = name;
    read_type();
    c_.vocabulary = is("gemma3") ? file_.whole_or("vocab_size", 1, config_size, 262208)
                                 : file_.whole("vocab_size", 1, config_size);
    c_.initializer_range = file_.number_or("initializer_range", 0, 100, 0);
    if (is("gpt") || is("opt") || is("bloom")) {
      read_gpt();
    } else {
      read_llama();
    }
    note(!lacking(c_).empty(), lacking(c_));
    c_.beyond = beyond_;
    try {
      c_.validate();
    } catch (const Error& error) {
      file_.fail_at("model_type", error.what());
    }
    return c_;
  }

 private:
  // Whether the type begins so.
  bool is(const char* start) const { return type_.rfind(start, 0) == 0; }
  void note(bool lacks, const std::string& what) {
    beyond_ += lacks ? (beyond_.empty() ? "" : ", ") + what : "";
  }
  // What a key must be a multiple of.
  void divides(const char* key, std::int64_t n, const char* by, std::int64_t d) const {
    if (n % d != 0) {
      file_.fail_at(by, cat({key, " is ", n, ", ", by, " ", d, "; a multiple of it is right"}));
    }
  }

  void read_type() {
    static const char* const known[] = {
        "bloom", "deepseek_v2", "deepseek_v3", "gemma", "gemma2",   "gemma3",  "gemma3_text",
        "gpt2",  "gpt_neox",    "gptj",        "llama", "mistral",  "mixtral", "opt",
        "phi3",  "qwen2",       "qwen2_moe",   "qwen3", "qwen3_moe"};
    type_ = file_.word_or("model_type", "");
    std::string all;
    for (const char* type : known) {
      if (type_ == type) {
        if (type_ == "gemma3") {  // images beside the text: its text part alone
          file_.enter("text_config");
        }
        return;
      }
      all += cat({all.empty() ? "" : ", ", type});
    }
    file_.refuse("model_type", "known: " + all);
  }

  // GPT-2 and those after it with layer norms, biases and two matrices in a feed-forward.
  void read_gpt() {
    const bool neox = is("gpt_neox"), opt = is("opt"), bloom = is("bloom"), gptj = is("gptj");
    const char* width = neox || opt ? "hidden_size" : file_.either("n_embd", "hidden_size");
    width = bloom ? file_.either("hidden_size", "n_embed") : width;
    const char* heads =
        neox || opt ? "num_attention_heads" : file_.either("n_head", "num_attention_heads");
    const char* layers =
        neox || opt ? "num_hidden_layers" : file_.either("n_layer", "num_hidden_layers");
    const char* hidden = neox ? "intermediate_size" : opt ? "ffn_dim" : "n_inner";
    c_.layers = file_.whole(layers, 1, config_few);
    c_.width = file_.whole(width, 1, config_size / 4);
    c_.heads = c_.kv_heads = file_.whole(heads, 1, config_few);
    divides(width, c_.width, heads, c_.heads);
    c_.head_size = c_.width / c_.heads;
    c_.hidden = neox || opt ? file_.whole(hidden, 1, config_size)
                            : file_.whole_or(hidden, 1, config_size, 4 * c_.width);
    c_.context = bloom ? file_.whole_or("seq_length", 1, config_size, 2048)
                       : file_.whole(neox || opt ? "max_position_embeddings" : "n_positions", 1,
                                     config_size - 2);
    c_.bias = is("gpt2") ? file_.flag_or("bias", true) : !gptj;  // nanoGPT has it
    c_.tied = file_.flag_or("tie_word_embeddings", tied_ || !(neox || gptj));
    c_.position = neox || bloom || gptj ? Position::rotary : Position::learned;
    c_.norm_epsilon =
        file_.number_or(neox ? "layer_norm_eps" : "layer_norm_epsilon", 1e-30, 1, 1e-5);
    const char* act = neox ? "hidden_act" : "activation_function";
    read_activation(act, opt ? "relu" : bloom ? "gelu_tanh" : neox ? "gelu" : "gelu_new", false);
    finish_gpt(neox, opt, bloom, gptj);
  }

  // What each adds, in parameters and beyond this library.
  void finish_gpt(bool neox, bool opt, bool bloom, bool gptj) {
    if (neox) {
      c_.rope_theta = file_.number_or("rotary_emb_base", 1, 1e30, 10000);
      read_turns(file_.number_or("rotary_pct", 0, 1.5, 0.25));
      note(file_.flag_or("use_parallel_residual", true), "attention and feed-forward side by side");
      if (!file_.flag_or("attention_bias", true)) {
        file_.refuse("attention_bias", "true is right: others cannot be counted");
      }
    } else if (gptj) {
      note(file_.whole_or("rotary_dim", 0, config_size, 64) < c_.head_size,
           "positions on a part of each head");
      c_.block_norms = 1;  // norms, feed-forward and output matrix alone have biases
      c_.other_parameters = c_.layers * (2 * c_.width + c_.hidden) + c_.width + c_.vocabulary;
    } else if (opt) {
      if (file_.whole_or("word_embed_proj_dim", 1, config_size, c_.width) != c_.width) {
        file_.refuse("word_embed_proj_dim", cat({"hidden_size, ", c_.width, ", is right"}));
      }
      if (!file_.flag_or("do_layer_norm_before", true)) {
        file_.refuse("do_layer_norm_before", "true is right: others cannot be counted");
      }
      c_.other_parameters = 2 * c_.width;  // two more rows of positions
      note(true, "positions that begin at 2");
    } else if (is("gpt2")) {
      note(file_.flag_or("scale_attn_by_inverse_layer_idx", false) ||
               !file_.flag_or("scale_attn_weights", true),
           "scores that are scaled otherwise");
    } else if (bloom) {
      c_.other_parameters = 2 * c_.width;  // a norm after the embedding
      note(true, "positions as a slope of the scores, a norm after the embedding");
    }
  }

  // Llama and those after it, with RMS norms, rotary positions and gated feed-forwards.
  void read_llama() {
    const bool gemma = is("gemma"), gemma3 = is("gemma3");
    c_.norm = Norm::rms;
    c_.position = Position::rotary;
    c_.layers = file_.whole("num_hidden_layers", 1, config_few);
    c_.width = file_.whole("hidden_size", 1, config_size);
    c_.heads = gemma3 ? file_.whole_or("num_attention_heads", 1, config_few, 8)
                      : file_.whole("num_attention_heads", 1, config_few);
    c_.kv_heads = file_.whole_or("num_key_value_heads", 1, config_few, left_out_kv_heads());
    divides("num_attention_heads", c_.heads, "num_key_value_heads", c_.kv_heads);
    c_.context = gemma3 ? file_.whole_or("max_position_embeddings", 1, config_size, 131072)
                        : file_.whole("max_position_embeddings", 1, config_size);
    c_.tied = file_.flag_or("tie_word_embeddings", tied_ || gemma);
    c_.qk_norm = is("qwen3") || gemma3;
    c_.norm_epsilon =
        file_.number_or("rms_norm_eps", 1e-30, 1, is("mixtral") || is("phi3") ? 1e-5 : 1e-6);
    read_head(gemma || type_ == "qwen3");
    read_mixture();
    read_rotary(gemma3 || is("mixtral") ? 1e6 : 1e4);
    read_windows();
    const char* act = gemma ? file_.either("hidden_activation", "hidden_act") : "hidden_act";
    read_activation(act, gemma ? "gelu_pytorch_tanh" : "silu", true);
    read_biases();
    if (gemma) {
      c_.block_norms = is("gemma2") || gemma3 ? 4 : 2;
      note(true, "embeddings times the root of the width");
      note(is("gemma2"), "scores with a soft cap");
    }
  }

  // A key that is null stands for as many as heads in all but Gemma.
  std::int64_t left_out_kv_heads() const {
    static const struct {
      const char* type;
      std::int64_t heads;
    } known[] = {{"gemma", 16},  {"gemma2", 4},   {"gemma3", 4}, {"gemma3_text", 4},
                 {"mistral", 8}, {"mixtral", 8},  {"qwen2", 32}, {"qwen2_moe", 16},
                 {"qwen3", 32},  {"qwen3_moe", 4}};
    for (const auto& row : known) {
      if (type_ == row.type && (is("gemma") || !file_.has("num_key_value_heads"))) {
        return row.heads;
      }
    }
    return c_.heads;
  }

  void read_head(bool own_default) {
    if (is("deepseek")) {
      c_.kv_lora_rank = file_.whole("kv_lora_rank", 1, config_size);
      c_.q_lora_rank = file_.whole_or("q_lora_rank", 1, config_size, 0);
      c_.rope_head = file_.whole("qk_rope_head_dim", 2, config_size);
      c_.head_size = file_.whole("qk_nope_head_dim", 2, config_size);
      c_.value_head = file_.whole("v_head_dim", 1, config_size);
      if (c_.rope_head % 2 != 0) {
        file_.refuse("qk_rope_head_dim", "an even number is right");
      }
      c_.kv_heads = c_.heads;
    } else if (file_.find("head_dim") != nullptr || own_default) {
      c_.head_size = file_.whole_or("head_dim", 1, config_size, is("gemma") ? 256 : 128);
    } else {
      divides("hidden_size", c_.width, "num_attention_heads", c_.heads);
      c_.head_size = c_.width / c_.heads;
    }
    if (c_.head_size % 2 != 0 && !is("deepseek")) {
      file_.fail_at(file_.either("head_dim", "num_attention_heads"),
                    cat({"a head has ", c_.head_size, " numbers; an even number is right"}));
    }
  }

  // Experts; first layers without them; Qwen2's shared experts are one wide one behind a gate.
  void read_mixture() {
    const bool deepseek = is("deepseek"), mixtral = is("mixtral"), qwen = is("qwen") && is_moe();
    const char* wide =
        mixtral || !(deepseek || qwen) ? "intermediate_size" : "moe_intermediate_size";
    const char* number = deepseek  ? "n_routed_experts"
                         : mixtral ? "num_local_experts"
                                   : "num_experts";
    if (!(mixtral || qwen || (deepseek && file_.find(number) != nullptr))) {
      c_.hidden = file_.whole("intermediate_size", 1, config_size);
      return;
    }
    c_.experts = static_cast<int>(file_.whole(number, 1, config_few));
    c_.top_k = static_cast<int>(file_.whole("num_experts_per_tok", 1, config_few));
    if (c_.top_k > c_.experts) {
      file_.refuse("num_experts_per_tok",
                   cat({"at most ", number, ", ", c_.experts, ", is right"}));
    }
    c_.expert_hidden = file_.whole(wide, 1, config_size);
    c_.hidden = 0;
    if (deepseek) {
      c_.shared_experts = static_cast<int>(file_.whole_or("n_shared_experts", 0, config_few, 0));
      c_.dense_layers = file_.whole_or("first_k_dense_replace", 0, c_.layers, 0);
      c_.router_bias = is("deepseek_v3");
      every_layer("moe_layer_freq");
    } else if (qwen) {
      every_layer("decoder_sparse_step");
      note(!file_.flag_or("norm_topk_prob", false), "shares of experts that do not sum to 1");
      read_dense_list();
      read_shared_expert();
    }
    if (c_.dense_layers > 0) {
      c_.hidden = file_.whole("intermediate_size", 1, config_size);
    }
  }
  bool is_moe() const {
    return type_.size() > 4 && type_.compare(type_.size() - 4, 4, "_moe") == 0;
  }
  void every_layer(const char* key) const {
    if (file_.whole_or(key, 1, config_few, 1) != 1) {
      file_.refuse(key, "1 is right: mixtures in some of the layers cannot be counted");
    }
  }
  void read_dense_list() {
    const List<Json>* dense = file_.list("mlp_only_layers");
    for (std::size_t i = 0; dense != nullptr && i < dense->size(); ++i) {
      const Json& layer = (*dense)[i];
      if (layer.kind != Json::Kind::number || layer.number != static_cast<double>(i) ||
          c_.dense_layers == c_.layers) {
        file_.fail_at("mlp_only_layers",
                      "mlp_only_layers is not 0, 1, ...: dense layers other than the first "
                      "cannot be counted");
      }
      c_.dense_layers = static_cast<std::int64_t>(i) + 1;
    }
  }
  void read_shared_expert() {
    const char* key = "shared_expert_intermediate_size";
    const std::int64_t shared =
        file_.whole_or(key, 0, config_size, is("qwen2") && !file_.has(key) ? 5632 : 0);
    if (shared > 0) {
      divides(key, shared, "moe_intermediate_size", c_.expert_hidden);
      c_.shared_experts = static_cast<int>(shared / c_.expert_hidden);
      c_.other_parameters += (c_.layers - c_.dense_layers) * c_.width;  // its gate
      note(true, "a gate of the shared expert");
    }
  }

  void read_rotary(double theta) {
    c_.rope_theta = file_.number_or("rope_theta", 1e-30, 1e30, theta);
    read_turns(file_.number_or("partial_rotary_factor", 0, 1.5, 1));
  }

  // rope_scaling, or rope_parameters of newer files, which may have the frequencies, too. `part`:
  // of each head that turns, where they do not say.
  void read_turns(double part) {
    for (const char* key : {"rope_scaling", "rope_parameters"}) {
      const Json* turns = file_.object(key);
      if (turns == nullptr || turns->fields.empty()) {
        continue;
      }
      bool nested = false;  // an object for each kind of layer
      for (const JsonField& field : turns->fields) {
        nested = nested || field.value.kind == Json::Kind::object;
      }
      if (nested) {
        note(true, "rotary positions that differ by layer");
        continue;
      }
      c_.rope_theta = file_.number_in(*turns, key, "rope_theta", 1e-30, 1e30, c_.rope_theta);
      part = file_.number_in(*turns, key, "partial_rotary_factor", 0, 1.5, part);
      const std::string otherwise = key[5] == 'p' ? "default" : "";
      const std::string kind =
          file_.word_in(*turns, key, "rope_type", file_.word_in(*turns, key, "type", otherwise));
      if ((kind == "linear" || kind == "llama3") && !c_.latent()) {
        read_rope_factors(key, *turns, kind == "llama3");
      } else {
        note(kind != "default",
             cat({"rotary positions scaled by \"", json_escape(kind.substr(0, 40)), "\"",
                  c_.latent() ? "" : " (linear and llama3 run)"}));
      }
    }
    note(part < 1, "positions on a part of each head");
  }

  // linear: all frequencies over the factor; llama3: by their turns.
  void read_rope_factors(const char* key, const Json& turns, bool llama3) {
    const auto number = [&](const char* name) {
      const double value = file_.number_in(turns, key, name, 1e-30, 1e30, 0);
      if (!(value > 0)) {
        file_.fail_at(key, cat({key, " lacks ", name, "; a number above 0 is right"}));
      }
      return value;
    };
    const double factor = number("factor");
    const double low = llama3 ? number("low_freq_factor") : 0;
    const double high = llama3 ? number("high_freq_factor") : 0;
    const double context = llama3 ? number("original_max_position_embeddings") : 0;
    if (llama3 && high <= low) {
      file_.fail_at(key, cat({key, " has high_freq_factor ", high, ", low_freq_factor ", low,
                              "; the first must be larger"}));
    }
    c_.rope_factors.assign(static_cast<std::size_t>(c_.head_size / 2), static_cast<float>(factor));
    if (llama3) {
      c_.rope_factors = llama3_rope_factors(c_, factor, low, high, context);
    }
  }

  // Gemma 2 has a window in every second layer, Gemma 3 in five of six; Qwen when it says so, from
  // layer max_window_layers on; Qwen 3's mixtures and the others in all. `layer_types` says it
  // layer by layer.
  void read_windows() {
    if (is("gemma2") || is("gemma3")) {
      c_.window = file_.whole_or("sliding_window", 1, config_size, 4096);
      const char* key = file_.either("sliding_window_pattern", "_sliding_window_pattern");
      c_.global_every = is("gemma2") ? 2 : file_.whole_or(key, 1, config_few, 6);
    } else if (is("mistral") || is("mixtral") || is("phi3") ||
               (is("qwen") && file_.flag_or("use_sliding_window", false))) {
      const bool left_out = (is("mistral") || is("qwen")) && !file_.has("sliding_window");
      c_.window = file_.whole_or("sliding_window", 1, config_size, left_out ? 4096 : 0);
      const bool listed = file_.list("layer_types") != nullptr;
      if (type_ == "qwen2_moe" && !listed) {
        file_.refuse("layer_types", "which layers have a window differs by version without it");
      }
      const bool from = is("qwen") && type_ != "qwen3_moe" && !listed;
      const std::int64_t first = from ? file_.whole_or("max_window_layers", 0, config_few, 28) : 0;
      c_.window = first < c_.layers ? c_.window : 0;
      if (c_.window > 0 && first > 0) {
        file_.refuse("max_window_layers", cat({"0 or all layers, ", c_.layers, ", are right"}));
      }
    }
    if (c_.window > 0) {
      read_layer_types();
    }
    if ((c_.window >= c_.context && c_.window >= longest_) || c_.global_every == 1) {
      c_.window = 0;  // every token is seen
    }
    c_.global_every = c_.window == 0 ? 0 : c_.global_every;
  }
  void read_layer_types() {
    const List<Json>* types = file_.list("layer_types");
    if (types == nullptr) {
      return;
    }
    const char* key = "layer_types";
    if (types->size() != static_cast<std::size_t>(c_.layers)) {
      file_.fail_at(key, cat({"layer_types has ", types->size(), " layers, num_hidden_layers is ",
                              c_.layers, "; as many are right"}));
    }
    c_.global_every = 0;
    for (std::int64_t i = 0; i < c_.layers; ++i) {
      const std::string& type = (*types)[static_cast<std::size_t>(i)].text;
      const bool global = type == "full_attention";
      if (!global && type != "sliding_attention") {
        file_.fail_at(key, cat({"layer_types has \"", json_escape(type), "\" at ", i,
                                "; full_attention or sliding_attention is right"}));
      }
      c_.global_every = global && c_.global_every == 0 ? i + 1 : c_.global_every;
      if (global == c_.is_local(i)) {
        file_.fail_at(key, cat({"layer_types has \"", type, "\" at ", i,
                                "; one global layer in each so many can be counted, the last"}));
      }
    }
  }

  void read_activation(const char* key, const char* otherwise, bool gated) {
    static const char* const known[] = {"gelu",      "gelu_fast", "gelu_new", "gelu_pytorch_tanh",
                                        "gelu_tanh", "relu",      "silu",     "swish"};
    const std::string name = file_.word_or(key, otherwise);
    std::string all;
    bool found = false;
    for (const char* word : known) {
      found = found || name == word;
      all += cat({all.empty() ? "" : ", ", word});
    }
    if (!found) {
      file_.refuse(key, "known: " + all);
    }
    const bool silu = name == "silu" || name == "swish";
    c_.activation = gated ? (silu ? Activation::swiglu : Activation::geglu)
                          : (name == "gelu" ? Activation::gelu : Activation::gelu_tanh);
    note(name == "relu" || (silu && !gated), name + " in the feed-forward");
    note(gated && name == "gelu" && !is("gemma"), "the exact GELU in a gate");  // Gemma: by tanh
  }

  void read_biases() {
    c_.qkv_bias = is("qwen2");
    const bool attention = file_.flag_or("attention_bias", false);
    const bool hidden = file_.flag_or("mlp_bias", false);
    if (attention && is("deepseek")) {
      file_.refuse("attention_bias", "false is right with latent attention");
    }
    if (hidden && c_.experts > 0) {
      file_.refuse("mlp_bias", "false is right in a mixture");
    }
    if (attention && hidden) {
      c_.bias = true;
    } else if (attention) {
      c_.qkv_bias = true;
      c_.other_parameters += c_.layers * c_.width;
      note(true, "a bias on the output of attention");
    } else if (hidden) {
      c_.other_parameters += c_.layers * (2 * c_.hidden + c_.width);
      note(true, "biases of the feed-forward");
    }
  }

  ConfigFile file_;
  std::int64_t longest_;  // context that a user asks for
  bool tied_;             // the weights have no output matrix
  ModelConfig c_;
  std::string type_, beyond_;
};

// "models/llama/config.json" is llama's, "llama.json" too.
inline std::string config_name(const std::string& path) {
  std::string name = path;
  if (name.size() > 5 && name.compare(name.size() - 5, 5, ".json") == 0) {
    name.resize(name.size() - 5);
  }
  std::size_t slash = name.find_last_of("/\\");
  if (slash != std::string::npos && slash > 0 && name.substr(slash + 1) == "config") {
    name.resize(name.find_last_not_of("/\\", slash) + 1);  // "llama//config.json" too
    slash = name.find_last_of("/\\");
  }
  return slash == std::string::npos ? name : name.substr(slash + 1);
}

}  // namespace detail

// The shape that the text of a config.json says; `name` stands in its errors and names the model.
// A window that the file's context and `context` do not fill is none. `tied`: what holds where the
// text does not say, also of architectures whose output matrix is one of its own.
inline ModelConfig parse_config(const std::string& text, const std::string& name,
                                std::int64_t context = 0, bool tied = false) {
  return detail::ConfigReader(text, name, context, tied).read(detail::config_name(name));
}

// The shape that a config.json of Hugging Face says, named by its folder.
inline ModelConfig read_config(const std::string& path, std::int64_t context = 0,
                               bool tied = false) {
  return parse_config(detail::read_file(path, "read_config"), path, context, tied);
}

}  // namespace tinyscale
