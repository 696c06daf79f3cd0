#pragma once
// The shape of a transformer: a plain struct from which everything else follows.
// Parameters of a layer: attention D K (2 H + 2 KV), feed-forward 2 D F (3 D F when gated),
// with D width, H heads, KV key-value heads, K head size, F hidden width. Latent attention through
// ranks Q and C, rotary head R, value head W: D Q + Q H (K + R) + D (C + R) + C H (K + W) + H W D.
// Source of the last: DeepSeek-V2 (arXiv 2405.04434), section 2.1.

#include <cstdint>  // int64_t
#include <string>   // string
#include <vector>   // vector

#include "tinyscale/base/error.hpp"
#include "tinyscale/compute/rope.hpp"

namespace tinyscale {

enum class Norm { layer, rms };
enum class Position { learned, rotary };
enum class Activation { gelu, gelu_tanh, swiglu, geglu };  // the last two are gated: 3 matrices

struct ModelConfig {
  std::string name = "custom";
  std::int64_t layers = 1;
  std::int64_t width = 64;        // D, numbers a token carries from block to block
  std::int64_t heads = 1;         // H, query heads
  std::int64_t kv_heads = 1;      // KV, fewer than heads: grouped-query attention
  std::int64_t head_size = 64;    // K
  std::int64_t hidden = 256;      // F of the dense feed-forward
  std::int64_t vocabulary = 256;  // V
  std::int64_t context = 64;      // longest sequence, tokens
  Norm norm = Norm::layer;
  Position position = Position::learned;
  Activation activation = Activation::gelu;
  bool bias = false;               // biases on every linear layer and on layer norms
  bool tied = true;                // the output matrix is the embedding table
  bool qkv_bias = false;           // biases on query, key and value alone
  bool qk_norm = false;            // RMS norm of every query and key head
  int experts = 0;                 // 0: dense
  int top_k = 0;                   // experts that a token visits
  std::int64_t expert_hidden = 0;  // F of one expert
  int shared_experts = 0;          // experts that every token visits
  std::int64_t dense_layers = 0;   // of a mixture: first layers with a feed-forward of `hidden`
  bool router_bias = false;        // a number for each expert beside the router's matrix
  double rope_theta = 10000.0;
  RopePairs rope_pairs = RopePairs::halves;  // which two numbers of a head turn together
  std::vector<float> rope_factors;  // [head_size / 2] that frequencies are divided by; empty: 1
  double norm_epsilon = 1e-5;
  double initializer_range = 0.0;  // deviation of a new linear weight; 0: by the width

  // Latent attention: the head size is then that of a query or key without its rotary part.
  std::int64_t kv_lora_rank = 0;  // C, numbers cached beside the rotary key; 0: not latent
  std::int64_t q_lora_rank = 0;   // Q; 0: queries come from the width at once
  std::int64_t rope_head = 0;     // R, numbers of a query and key that carry the position
  std::int64_t value_head = 0;    // W; 0: the head size

  // Local attention: layer i, from 0, sees all tokens when global_every divides i + 1.
  std::int64_t window = 0;        // tokens that a local layer sees, itself one; 0: none is local
  std::int64_t global_every = 0;  // 0: with a window, all layers are local

  int block_norms = 2;  // norms in one block: 1 parallel, 2 before, 4 before and after
  std::int64_t other_parameters = 0;  // what the fields above do not describe
  double training_tokens = 0;         // as published by the model's makers; 0: not published
  std::string beyond;  // what this library's transformer lacks to run it; empty: it runs

  bool gated() const { return activation == Activation::swiglu || activation == Activation::geglu; }
  std::int64_t query_width() const { return heads * head_size; }
  std::int64_t key_width() const { return kv_heads * head_size; }
  bool latent() const { return kv_lora_rank > 0; }
  std::int64_t score_head() const { return head_size + (latent() ? rope_head : 0); }
  std::int64_t output_head() const { return value_head > 0 ? value_head : head_size; }
  std::int64_t output_width() const { return heads * output_head(); }  // what attention hands on
  std::int64_t mixture_layers() const { return experts > 0 ? layers - dense_layers : 0; }
  bool is_local(std::int64_t layer) const;
  std::int64_t window_of(std::int64_t layer) const;  // 0: it sees all tokens
  std::int64_t local_layers() const;
  std::int64_t cached_numbers() const;                     // of one token and layer
  std::int64_t cached_numbers(std::int64_t tokens) const;  // of one sequence that long, all layers
  std::int64_t norm_parameters() const { return norm == Norm::layer && bias ? 2 * width : width; }
  std::int64_t attention_parameters() const;                 // of one layer, without its norm
  std::int64_t feed_forward_parameters(std::int64_t) const;  // of one dense layer that wide
  std::int64_t layer_parameters(std::int64_t experts_counted) const;  // of a mixture if it is one
  std::int64_t dense_layer_parameters() const;
  std::int64_t router_parameters() const { return width * experts + (router_bias ? experts : 0); }
  std::int64_t embedding_parameters() const;  // both tables and the output matrix
  std::int64_t parameters() const;
  std::int64_t active_parameters() const;                            // those that one token uses
  std::int64_t parameters_with(std::int64_t experts_counted) const;  // so many in each mixture
  void validate() const;
};

inline bool ModelConfig::is_local(std::int64_t layer) const {
  return window > 0 && (global_every == 0 || (layer + 1) % global_every != 0);
}

inline std::int64_t ModelConfig::window_of(std::int64_t layer) const {
  return is_local(layer) ? window : 0;
}

inline std::int64_t ModelConfig::local_layers() const {
  return window == 0 ? 0 : layers - (global_every > 0 ? layers / global_every : 0);
}

inline std::int64_t ModelConfig::cached_numbers() const {
  return latent() ? kv_lora_rank + rope_head : 2 * key_width();
}

// Local layers keep the last `window` tokens alone.
inline std::int64_t ModelConfig::cached_numbers(std::int64_t tokens) const {
  const std::int64_t local = local_layers();
  const std::int64_t kept = tokens < window ? tokens : window;
  return cached_numbers() * ((layers - local) * tokens + local * kept);
}

inline std::int64_t ModelConfig::attention_parameters() const {
  if (latent()) {
    const std::int64_t scores = heads * score_head();
    const std::int64_t queries =  // the ranks have a norm each
        q_lora_rank > 0 ? q_lora_rank * (width + 1 + scores) : width * scores;
    const std::int64_t keys = width * (kv_lora_rank + rope_head) + kv_lora_rank +
                              kv_lora_rank * (query_width() + output_width());
    return queries + keys + output_width() * width;
  }
  std::int64_t n = width * (2 * query_width() + 2 * key_width());
  if (bias || qkv_bias) {
    n += query_width() + 2 * key_width();
  }
  return n + (bias ? width : 0) + (qk_norm ? 2 * head_size : 0);
}

inline std::int64_t ModelConfig::feed_forward_parameters(std::int64_t wide) const {
  const std::int64_t inputs = gated() ? 2 : 1;
  return (inputs + 1) * width * wide + (bias ? inputs * wide + width : 0);
}

inline std::int64_t ModelConfig::dense_layer_parameters() const {
  return attention_parameters() + block_norms * norm_parameters() + feed_forward_parameters(hidden);
}

// A mixture counts its router and as many experts as asked.
inline std::int64_t ModelConfig::layer_parameters(std::int64_t experts_counted) const {
  if (experts == 0) {
    return dense_layer_parameters();
  }
  return attention_parameters() + block_norms * norm_parameters() + router_parameters() +
         (experts_counted + shared_experts) * feed_forward_parameters(expert_hidden);
}

inline std::int64_t ModelConfig::embedding_parameters() const {
  const std::int64_t places = position == Position::learned ? context : 0;
  return vocabulary * width * (tied ? 1 : 2) + places * width;
}

inline std::int64_t ModelConfig::parameters() const { return parameters_with(experts); }

inline std::int64_t ModelConfig::active_parameters() const { return parameters_with(top_k); }

inline std::int64_t ModelConfig::parameters_with(std::int64_t experts_counted) const {
  const std::int64_t mixtures = mixture_layers();
  const std::int64_t mixed = mixtures > 0 ? mixtures * layer_parameters(experts_counted) : 0;
  return (layers - mixtures) * dense_layer_parameters() + mixed + norm_parameters() +
         embedding_parameters() + other_parameters;
}

namespace detail {

// The fields that count something lie between bounds with which no loop and no product runs away.
inline void check_config_counts(const ModelConfig& c) {
  const std::int64_t size = 2147483647, few = 1000000;
  const struct {
    const char* field;
    std::int64_t value, least, most;
  } counts[] = {{"layers", c.layers, 1, few},
                {"width", c.width, 1, size},
                {"heads", c.heads, 1, few},
                {"kv_heads", c.kv_heads, 1, few},
                {"head_size", c.head_size, 1, size},
                {"vocabulary", c.vocabulary, 1, size},
                {"context", c.context, 1, size},
                {"experts", c.experts, 0, few},
                {"shared_experts", c.shared_experts, 0, few},
                {"dense_layers", c.dense_layers, 0, c.experts > 0 ? c.layers : 0},
                {"hidden", c.hidden, c.experts > 0 && c.dense_layers == 0 ? 0 : 1, size},
                {"expert_hidden", c.expert_hidden, c.experts > 0 ? 1 : 0, size},
                {"block_norms", c.block_norms, 0, 4},
                {"kv_lora_rank", c.kv_lora_rank, 0, size},
                {"q_lora_rank", c.q_lora_rank, 0, c.latent() ? size : 0},
                {"rope_head", c.rope_head, 0, c.latent() ? size : 0},
                {"value_head", c.value_head, 0, c.latent() ? size : 0},
                {"window", c.window, 0, size},
                {"global_every", c.global_every, 0, c.window > 0 ? few : 0}};
  for (const auto& count : counts) {
    const bool low = count.value < count.least;
    if (low || count.value > count.most) {
      fail({"ModelConfig: ", c.name, ": ", count.field, " is ", count.value, "; at ",
            low ? "least " : "most ", low ? count.least : count.most, " is right"});
    }
  }
}

// Doubles do not overflow: when this is below 1e18, parameters() does not either.
inline void check_config_product(const ModelConfig& c) {
  const auto n = [](std::int64_t value) { return static_cast<double>(value); };
  const double mixed = n(c.experts + c.shared_experts) * n(c.expert_hidden);
  const double hidden = n(c.hidden) > mixed ? n(c.hidden) : mixed;
  const double ranks = n(c.q_lora_rank) + n(c.kv_lora_rank) + n(c.rope_head);
  const double heads = n(c.heads) * (n(c.head_size) + n(c.rope_head) + n(c.value_head));
  const double attention =
      c.latent() ? ranks + heads : 2 * n(c.heads + c.kv_heads) * n(c.head_size);
  const double layer = attention + 3 * hidden + 2 * n(c.experts) + 4;
  const double about = n(c.width) * (n(c.layers) * layer + 2 * n(c.vocabulary) + n(c.context)) +
                       n(c.layers) * ranks * heads;
  if (about > 1e18) {
    fail({"ModelConfig: ", c.name, ": its sizes make about ", about,
          " parameters; at most 1e+18 can be counted"});
  }
}

inline void config_above_zero(const ModelConfig& c, const char* field, double value) {
  if (!is_finite(value) || value <= 0 || value >= 1e30) {
    fail({"ModelConfig: ", c.name, ": ", field, " is ", value,
          "; a number above 0 and below 1e+30 is right"});
  }
}

}  // namespace detail

namespace detail {

// Of Llama 3.1 and later: frequencies with less than `low` turns in the old context are divided by
// `factor`, those with more than `high` stay, a blend between (Hugging Face's modeling_rope_utils).
inline std::vector<float> llama3_rope_factors(const ModelConfig& c, double factor, double low,
                                              double high, double context) {
  std::vector<float> factors;
  for (std::int64_t i = 0; i < c.head_size / 2; ++i) {
    const double turned =  // in the old context
        context * kernels::rope_frequency(c.rope_theta, i, c.head_size, nullptr) /
        6.283185307179586;
    double blend = (turned - low) / (high - low);
    blend = blend < 0 ? 0 : blend > 1 ? 1 : blend;
    factors.push_back(static_cast<float>(1 / ((1 - blend) / factor + blend)));
  }
  return factors;
}

// What the fields ask for and this library's transformer lacks, in words; empty: nothing.
inline std::string lacking(const ModelConfig& c) {
  std::string all;
  const auto add = [&all](bool lacks, const char* what) {
    all += lacks ? (all.empty() ? "" : ", ") + std::string(what) : "";
  };
  add(c.latent(), "latent attention");
  add(c.dense_layers > 0, "dense first layers");
  add(c.router_bias, "biases of the router");
  add(c.block_norms == 1, "attention and feed-forward side by side");
  add(c.block_norms == 4, "norms after each sublayer");
  add(c.block_norms < 1 || c.block_norms == 3 || c.block_norms > 4, "so many norms in a block");
  add(c.other_parameters != 0, "parameters that have no name here");
  return all;
}

}  // namespace detail

// Throws an Error that names the first field that cannot be right.
inline void ModelConfig::validate() const {
  if (static_cast<unsigned>(activation) > static_cast<unsigned>(Activation::geglu) ||
      static_cast<unsigned>(norm) > static_cast<unsigned>(Norm::rms) ||
      static_cast<unsigned>(position) > static_cast<unsigned>(Position::rotary)) {
    detail::fail({"ModelConfig: ", name, ": activation ", static_cast<int>(activation), ", norm ",
                  static_cast<int>(norm), ", position ", static_cast<int>(position),
                  "; one of the named values is right"});
  }
  detail::check_config_counts(*this);
  detail::check_config_product(*this);
  detail::config_above_zero(*this, "rope_theta", rope_theta);
  detail::config_above_zero(*this, "norm_epsilon", norm_epsilon);
  if (heads % kv_heads != 0) {
    detail::fail({"ModelConfig: ", name, ": ", heads, " heads over ", kv_heads,
                  " kv_heads; heads must be a multiple of kv_heads"});
  }
  if (position == Position::rotary && head_size % 2 != 0) {
    detail::fail({"ModelConfig: ", name, ": head_size is ", head_size,
                  "; rotary positions turn pairs, so it must be even"});
  }
  if (!rope_factors.empty() && static_cast<std::int64_t>(rope_factors.size()) != head_size / 2) {
    detail::fail({"ModelConfig: ", name, ": ", rope_factors.size(), " rope_factors for a head of ",
                  head_size, "; one a pair is right, or none"});
  }
  for (const float factor : rope_factors) {
    detail::config_above_zero(*this, "a rope_factor", static_cast<double>(factor));
  }
  if (experts > 0 && (top_k < 1 || top_k > experts)) {
    detail::fail({"ModelConfig: ", name, ": top_k is ", top_k, " of ", experts, " experts; 1 to ",
                  experts, " is right"});
  }
  if (latent() && (rope_head < 2 || rope_head % 2 != 0 || kv_heads != heads)) {
    detail::fail({"ModelConfig: ", name, ": latent attention with rope_head ", rope_head, " and ",
                  kv_heads, " kv_heads of ", heads,
                  " heads; an even rope_head from 2 and as many kv_heads as heads are right"});
  }
  if (latent() && (bias || qkv_bias || qk_norm)) {
    detail::fail({"ModelConfig: ", name,
                  ": latent attention with bias, qkv_bias or qk_norm; each false is right"});
  }
  if (!detail::is_finite(initializer_range) || initializer_range < 0 || initializer_range >= 100) {
    detail::fail({"ModelConfig: ", name, ": initializer_range is ", initializer_range,
                  "; a deviation is right, or 0 for one that suits the width"});
  }
}

inline std::ostream& operator<<(std::ostream& out, const ModelConfig& c) {
  return out << detail::cat({c.name, ": ", c.parameters(), " parameters, ", c.layers, " layers of ",
                             c.width, ", ", c.heads, " heads, context ", c.context});
}

}  // namespace tinyscale
