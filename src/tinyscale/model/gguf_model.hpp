#pragma once
// What a GGUF file says about a model: its config from the keys "<architecture>.<key>", its
// tensors under our parameters' names, its vocabulary. Files of architecture llama turn
// neighbouring pairs (2 i, 2 i + 1) of a head by their position, those of qwen2 and qwen3 halves.
// Three matrices in one (attn_qkv of gpt2) and stacks of experts become parts of a tensor.

#include <cstdint>  // int64_t
#include <string>   // string
#include <vector>   // vector

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/model/gguf.hpp"
#include "tinyscale/model/model_config.hpp"

namespace tinyscale {

// A tensor, or the part of one, that is one of our parameters.
struct GgufPart {
  std::string name;  // of our parameter; of a tensor without a place in our models its own
  const GgufTensor* tensor = nullptr;
  Shape shape;
  const std::uint8_t* data = nullptr;
};

// The keys tokenizer.ggml.*.
struct GgufVocabulary {
  std::string model;  // "llama": pieces with scores; "gpt2": byte pairs with merges; ...
  std::string pre;    // how texts are cut before pairs merge
  std::vector<std::string> tokens;
  std::vector<float> scores;        // empty, or one a token
  std::vector<std::int32_t> types;  // empty, or one a token: 1 normal, 2 unknown, 3 control, ...
  std::vector<std::string> merges;  // "left right"
  std::int32_t bos = -1, eos = -1, unknown = -1;
  int add_bos = -1, add_eos = -1, add_space_prefix = -1;  // 0, 1, or -1: the file does not say
};

namespace detail {

class GgufConfig {
 public:
  explicit GgufConfig(const Gguf& file) : file_(file) {}

  ModelConfig read() {
    static const char* const known[] = {"llama", "mistral",  "mixtral", "qwen2",
                                        "qwen3", "qwen3moe", "gpt2"};
    const std::int64_t shards = file_.whole_or("split.count", 0, 65535, 0);
    if (shards > 1) {
      wrong(cat({"split.count is ", shards,
                 ", it is one of so many shards; one file with all of "
                 "the model is right"}));
    }
    type_ = file_.text_or("general.architecture", "");
    std::string all;
    bool found = false;
    for (const char* name : known) {
      found = found || type_ == name;
      all += cat({all.empty() ? "" : ", ", name});
    }
    if (!found) {
      wrong(cat({"general.architecture is ", shown_name(type_), "; known: ", all}));
    }
    c_.name = file_.text_or("general.name", type_);
    read_sizes();
    if (type_ == "gpt2") {
      read_gpt2();
    } else {
      read_llama();
    }
    c_.tied = file_.tensor("output.weight") == nullptr;
    note(!lacking(c_).empty(), lacking(c_));
    c_.beyond = beyond_;
    check();
    return c_;
  }

 private:
  static constexpr std::int64_t size = 2147483647, few = 1000000;

  [[noreturn]] void wrong(const std::string& sentence) const {
    fail({"load: \"", file_.name, "\": ", sentence});
  }
  std::string key(const char* tail) const { return cat({type_, ".", tail}); }
  bool has(const char* tail) const { return file_.find(key(tail)) != nullptr; }
  void note(bool lacks, const std::string& what) {
    beyond_ += lacks ? (beyond_.empty() ? "" : ", ") + what : "";
  }
  // Whether the first block has a tensor; of a file without tensors, `otherwise`.
  bool first_block(const char* tail, bool otherwise) const {
    return file_.tensors.empty() ? otherwise
                                 : file_.tensor(std::string("blk.0.") + tail) != nullptr;
  }

  void read_sizes() {
    c_.layers = file_.whole(key("block_count"), 1, few);
    c_.width = file_.whole(key("embedding_length"), 1, size);
    c_.context = file_.whole(key("context_length"), 1, size);
    c_.heads = file_.whole(key("attention.head_count"), 1, few);
    c_.kv_heads = file_.whole_or(key("attention.head_count_kv"), 1, few, c_.heads);
    if (has("attention.key_length")) {
      c_.head_size = file_.whole(key("attention.key_length"), 1, size);
    } else if (c_.width % c_.heads != 0) {
      wrong(cat({key("embedding_length"), " is ", c_.width, ", ", key("attention.head_count"), " ",
                 c_.heads, "; a multiple of it is right"}));
    } else {
      c_.head_size = c_.width / c_.heads;
    }
    note(file_.whole_or(key("attention.value_length"), 1, size, c_.head_size) != c_.head_size,
         "values of another size than keys");
    read_vocabulary();
  }

  // Rows of the embedding, vocab_size and the list of tokens must agree.
  void read_vocabulary() {
    const GgufTensor* const table = file_.tensor("token_embd.weight");
    const GgufValue* const tokens = file_.find("tokenizer.ggml.tokens");
    const std::int64_t listed =
        tokens != nullptr && tokens->kind == GgufKind::list && tokens->count <= 2147483647
            ? static_cast<std::int64_t>(tokens->count)
            : 0;
    const std::int64_t said = file_.whole_or(key("vocab_size"), 1, size, listed);
    c_.vocabulary = table != nullptr && table->shape.size() == 2 ? table->shape[0] : said;
    if (c_.vocabulary < 1) {
      wrong(cat({key("vocab_size"), " is missing; a whole number from 1 to ", size, " is right"}));
    }
    if ((said > 0 && said != c_.vocabulary) || (listed > 0 && listed != c_.vocabulary)) {
      wrong(cat({"the embedding has ", c_.vocabulary, " tokens, ", key("vocab_size"), " is ", said,
                 ", and ", listed, " tokens are listed; as many are right"}));
    }
  }

  void read_gpt2() {
    c_.hidden = file_.whole(key("feed_forward_length"), 1, size);
    c_.norm_epsilon = file_.number_or(key("attention.layer_norm_epsilon"), 1e-30, 1, 1e-5);
    c_.activation = Activation::gelu_tanh;
    c_.bias = first_block("attn_qkv.bias", true);
  }

  void read_llama() {
    c_.norm = Norm::rms;
    c_.position = Position::rotary;
    c_.activation = Activation::swiglu;
    const bool qwen = type_.rfind("qwen", 0) == 0;
    c_.rope_pairs = qwen ? RopePairs::halves : RopePairs::interleaved;
    c_.norm_epsilon = file_.number_or(key("attention.layer_norm_rms_epsilon"), 1e-30, 1, 1e-5);
    c_.rope_theta = file_.number_or(key("rope.freq_base"), 1e-30, 1e30, 10000);
    c_.qkv_bias = first_block("attn_q.bias", type_ == "qwen2");
    c_.qk_norm = first_block("attn_q_norm.weight", type_.rfind("qwen3", 0) == 0);
    note(first_block("attn_output.bias", false), "a bias of the attention's output");
    note(first_block("ffn_up.bias", false) || first_block("ffn_down.bias", false),
         "biases of the feed-forward");
    read_mixture();
    read_rotary();
    c_.window = file_.whole_or(key("attention.sliding_window"), 0, size, 0);
    note(file_.number_or(key("attn_logit_softcapping"), 0, 1e30, 0) > 0, "scores with a soft cap");
    note(file_.number_or(key("final_logit_softcapping"), 0, 1e30, 0) > 0, "logits with a soft cap");
    note(file_.number_or(key("attention.clamp_kqv"), 0, 1e30, 0) > 0,
         "queries, keys and values within bounds");
    note(!file_.flag_or(key("attention.causal"), true), "attention to later tokens");
    for (const char* factor :
         {"attention.scale", "embedding_scale", "logit_scale", "residual_scale"}) {
      const double scale = file_.number_or(key(factor), 0, 1e30, 0);  // 0, as 1: none
      note(scale > 0 && (scale < 1 || scale > 1), cat({factor, " ", scale}));
    }
  }

  void read_mixture() {
    c_.experts = static_cast<int>(file_.whole_or(key("expert_count"), 0, 65536, 0));
    if (c_.experts == 0) {
      c_.hidden = file_.whole(key("feed_forward_length"), 1, size);
      return;
    }
    c_.top_k = static_cast<int>(file_.whole(key("expert_used_count"), 1, c_.experts));
    c_.hidden = has("expert_feed_forward_length")
                    ? file_.whole_or(key("feed_forward_length"), 0, size, 0)
                    : file_.whole(key("feed_forward_length"), 1, size);
    c_.expert_hidden = file_.whole_or(key("expert_feed_forward_length"), 1, size, c_.hidden);
    c_.hidden = 0;
    note(file_.whole_or(key("expert_shared_count"), 0, few, 0) > 0, "shared experts");
    note(file_.whole_or(key("leading_dense_block_count"), 0, few, 0) > 0, "dense first layers");
    note(!file_.flag_or(key("expert_weights_norm"), true),
         "shares of experts that do not sum to 1");
    const double scale = file_.number_or(key("expert_weights_scale"), 0, 1e30, 0);  // 0, as 1: none
    note(scale > 0 && (scale < 1 || scale > 1), cat({"expert_weights_scale ", scale}));
    const std::int64_t gate = file_.whole_or(key("expert_gating_func"), 0, few, 0);
    note(gate > 1, cat({"expert_gating_func ", gate, " (1, the softmax, runs)"}));
    note(file_.whole_or(key("expert_group_count"), 0, few, 0) > 1, "experts in groups");
  }

  void read_rotary() {
    const std::string scaling = file_.text_or(key("rope.scaling.type"), "linear");
    const char* const factor =
        has("rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear";
    const double given = file_.number_or(key(factor), 0, 1e30, 1);
    const double by = scaling == "linear" && given > 0 ? given : 1;
    if (by != 1) {
      c_.rope_factors.assign(static_cast<std::size_t>(c_.head_size / 2), static_cast<float>(by));
    }
    note(scaling != "none" && scaling != "linear",
         cat({"rotary positions scaled by ", shown_name(scaling), " (none and linear run)"}));
    const double attention = file_.number_or(key("rope.scaling.attn_factor"), 0, 1e30, 1);
    note(attention < 1 || attention > 1, cat({"rope.scaling.attn_factor ", attention}));
    const GgufTensor* const factors = file_.tensor("rope_freqs.weight");  // Llama 3's
    if (factors != nullptr) {
      const std::vector<float> numbers = read_gguf_tensor(file_, *factors).values();
      c_.rope_factors.clear();
      for (const float number : numbers) {  // both apply
        c_.rope_factors.push_back(number * static_cast<float>(by));
      }
    }
    note(file_.tensor("blk.0.rope_freqs.weight") != nullptr, "scaled rotary positions");
    note(file_.whole_or(key("rope.dimension_count"), 1, size, c_.head_size) != c_.head_size,
         "positions on a part of each head");
  }

  // A model larger than its file's tensors would make the loader allocate what is not there.
  void check() const {
    try {
      c_.validate();
    } catch (const Error& error) {
      wrong(error.what());
    }
    double elements = 0;
    for (const GgufTensor& tensor : file_.tensors) {
      elements += static_cast<double>(tensor.shape.count());
    }
    if (!file_.tensors.empty() && static_cast<double>(c_.parameters()) > elements) {
      wrong(cat({"its keys make a model of ", c_.parameters(), " parameters; its tensors hold ",
                 elements}));
    }
  }

  const Gguf& file_;
  std::string type_;
  ModelConfig c_;
  std::string beyond_;
};

struct GgufNames {
  const char* theirs;
  const char* ours;
};

constexpr GgufNames gguf_tops[] = {{"token_embd", "model.embed_tokens"},
                                   {"position_embd", "model.embed_positions"},
                                   {"output_norm", "model.norm"},
                                   {"output", "lm_head"}};

// After blk.N and model.layers.N.
constexpr GgufNames gguf_inner[] = {
    {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"}, {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"}, {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},       {"ffn_gate_inp", "mlp.gate"}};

// "ffn_up" is "mlp.up_proj"; empty: not one of ours.
inline std::string our_inner_name(const std::string& theirs) {
  for (const GgufNames& pair : gguf_inner) {
    if (theirs == pair.theirs) {
      return pair.ours;
    }
  }
  return "";
}

// Part `at` of `parts` along the outermost dim, which is dropped where it becomes 1 of a stack.
inline GgufPart cut_part(const GgufTensor& tensor, const std::string& name, std::int64_t at,
                         std::int64_t parts, bool stack) {
  GgufPart part{name, &tensor, tensor.shape, nullptr};
  if (stack) {
    part.shape = Shape();
    for (int i = 1; i < tensor.shape.size(); ++i) {
      part.shape.push_back(tensor.shape[i]);
    }
  } else {
    part.shape.set(0, tensor.shape[0] / parts);
  }
  part.data = tensor.data +
              tensor.bytes / static_cast<std::uint64_t>(parts) * static_cast<std::uint64_t>(at);
  return part;
}

// "mlp.up_proj" of expert 3 is "mlp.experts.3.up_proj".
inline std::string expert_name(const std::string& inner, const std::string& expert) {
  return cat({"mlp.experts.", expert, inner.substr(3)});
}

// The parts of blk.N.<middle><tail>, with tail ".weight" or ".bias"; false: none of ours.
inline bool add_block_parts(const Gguf& file, const ModelConfig& config, const GgufTensor& tensor,
                            const std::string& layer, const std::string& middle,
                            const std::string& tail, List<GgufPart>& parts) {
  const std::string at = "model.layers." + layer;
  const std::string inner = our_inner_name(middle);
  if (!inner.empty()) {
    parts.push_back({at + inner + tail, &tensor, tensor.shape, tensor.data});
    return true;
  }
  if (middle == "attn_qkv" && config.position == Position::learned) {
    if (tensor.shape.empty() || tensor.shape[0] % 3 != 0) {
      fail({"load: \"", file.name, "\": tensor \"", tensor.name, "\" is ", tensor.shape,
            "; queries, keys and values of one size are right"});
    }
    const char* const names[] = {"q", "k", "v"};
    for (int i = 0; i < 3; ++i) {
      parts.push_back(
          cut_part(tensor, cat({at, "self_attn.", names[i], "_proj", tail}), i, 3, false));
    }
    return true;
  }
  const std::size_t dot = middle.find('.');  // an expert alone, as the first files had them
  const std::string of_one = our_inner_name(middle.substr(0, dot));
  if (dot != std::string::npos && config.experts > 0 && !of_one.empty()) {
    const std::string name = at + expert_name(of_one, middle.substr(dot + 1)) + tail;
    parts.push_back({name, &tensor, tensor.shape, tensor.data});
    return true;
  }
  const std::size_t stack = middle.find("_exps");
  const std::string stacked = our_inner_name(middle.substr(0, stack));
  if (stack == std::string::npos || stack + 5 != middle.size() || stacked.empty()) {
    return false;
  }
  if (tensor.shape.empty() || tensor.shape[0] != config.experts) {
    fail({"load: \"", file.name, "\": tensor \"", tensor.name, "\" is ", tensor.shape, "; ",
          config.experts, " experts are right"});
  }
  for (int e = 0; e < config.experts; ++e) {
    const std::string name = at + expert_name(stacked, std::to_string(e)) + tail;
    parts.push_back(cut_part(tensor, name, e, config.experts, true));
  }
  return true;
}

}  // namespace detail

// What the transformer here lacks stands in `beyond`; an architecture nobody here knows is an
// Error.
inline ModelConfig gguf_config(const Gguf& file) { return detail::GgufConfig(file).read(); }

// Every tensor of the file, in its order, under our parameters' names.
inline List<GgufPart> gguf_parts(const Gguf& file, const ModelConfig& config) {
  List<GgufPart> parts;
  for (const GgufTensor& tensor : file.tensors) {
    const std::string& name = tensor.name;
    if (name == "rope_freqs.weight") {  // in the config already
      continue;
    }
    const std::size_t last = name.find_last_of('.');
    const std::string stem = name.substr(0, last);
    const std::string tail = last == std::string::npos ? "" : name.substr(last);
    bool ours = false;
    const std::size_t dot = name.compare(0, 4, "blk.") == 0 ? name.find('.', 4) : last;
    if (dot != std::string::npos && dot > 4 && dot < last && name.compare(0, 4, "blk.") == 0) {
      ours = detail::add_block_parts(file, config, tensor, name.substr(4, dot - 3),
                                     stem.substr(dot + 1), tail, parts);
    }
    for (const detail::GgufNames& top : detail::gguf_tops) {
      if (stem == top.theirs) {
        parts.push_back({top.ours + tail, &tensor, tensor.shape, tensor.data});
        ours = true;
      }
    }
    if (!ours) {
      parts.push_back({name, &tensor, tensor.shape, tensor.data});
    }
  }
  return parts;
}

// As float32.
inline Tensor read_gguf_part(const Gguf& file, const GgufPart& part) {
  detail::check_readable(file, *part.tensor);
  return read_stored(part.tensor->format, part.shape, part.data);
}

// No tokens: the file has no vocabulary.
inline GgufVocabulary gguf_vocabulary(const Gguf& file) {
  GgufVocabulary v;
  const auto id = [&](const char* key, std::int64_t of_pieces) {  // where the file says nothing
    const std::int64_t most = static_cast<std::int64_t>(v.tokens.size()) - 1;
    const std::string name = detail::cat({"tokenizer.ggml.", key, "_token_id"});
    const std::int64_t otherwise = v.model == "llama" && of_pieces <= most ? of_pieces : -1;
    return static_cast<std::int32_t>(most < 0 ? -1 : file.whole_or(name, 0, most, otherwise));
  };
  const auto flag = [&](const char* key) {
    const std::string name = detail::cat({"tokenizer.ggml.", key});
    return file.find(name) == nullptr ? -1 : file.flag_or(name, false) ? 1 : 0;
  };
  v.model = file.text_or("tokenizer.ggml.model", "");
  v.pre = file.text_or("tokenizer.ggml.pre", "");
  v.tokens = file.texts("tokenizer.ggml.tokens");
  v.merges = file.texts("tokenizer.ggml.merges");
  for (const double score : file.numbers("tokenizer.ggml.scores")) {
    v.scores.push_back(static_cast<float>(score));
  }
  for (const std::int64_t type : file.wholes("tokenizer.ggml.token_type")) {
    if (type < 0 || type > 6) {
      detail::fail({"load: \"", file.name, "\": tokenizer.ggml.token_type has ", type,
                    "; 0 to 6 are right"});
    }
    v.types.push_back(static_cast<std::int32_t>(type == 0 ? 1 : type));  // undefined: normal
  }
  const std::size_t n = v.tokens.size();
  if ((!v.scores.empty() && v.scores.size() != n) || (!v.types.empty() && v.types.size() != n)) {
    detail::fail({"load: \"", file.name, "\": ", n, " tokens, ", v.scores.size(), " scores and ",
                  v.types.size(), " types; as many, or none, are right"});
  }
  v.bos = id("bos", 1);
  v.eos = id("eos", 2);
  v.unknown = id("unknown", 0);
  v.add_bos = flag("add_bos_token");
  v.add_eos = flag("add_eos_token");
  v.add_space_prefix = flag("add_space_prefix");
  return v;
}

}  // namespace tinyscale
