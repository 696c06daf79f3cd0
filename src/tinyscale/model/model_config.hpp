#pragma once
// The shape of a transformer: a plain struct from which everything else follows.
// Parameters of a layer: attention D K (2 H + 2 KV), feed-forward 2 D F (3 D F when gated),
// with D width, H heads, KV key-value heads, K head size, F hidden width.

#include <cstdint>  // int64_t
#include <string>   // string

#include "tinyscale/base/error.hpp"

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
  double rope_theta = 10000.0;
  double norm_epsilon = 1e-5;
  double initializer_range = 0.0;  // deviation of a new linear weight; 0: by the width

  int block_norms = 2;  // norms in one block: 1 parallel, 2 before, 4 before and after
  std::int64_t other_parameters = 0;  // what the fields above do not describe
  std::int64_t other_active = 0;      // the same for the parameters that a token uses
  std::int64_t kv_width = 0;          // numbers cached per token and layer when not 2 KV K
  double training_tokens = 0;         // as published by the model's makers; 0: not published
  std::string beyond;  // what this library's transformer lacks to run it; empty: it runs

  bool gated() const { return activation == Activation::swiglu || activation == Activation::geglu; }
  std::int64_t query_width() const { return heads * head_size; }
  std::int64_t key_width() const { return kv_heads * head_size; }
  std::int64_t cached_numbers() const { return kv_width > 0 ? kv_width : 2 * key_width(); }
  std::int64_t norm_parameters() const { return norm == Norm::layer && bias ? 2 * width : width; }
  std::int64_t attention_parameters() const;                 // of one layer, without its norm
  std::int64_t feed_forward_parameters(std::int64_t) const;  // of one dense layer that wide
  std::int64_t layer_parameters(std::int64_t experts_counted) const;
  std::int64_t embedding_parameters() const;  // both tables and the output matrix
  std::int64_t parameters() const;
  std::int64_t active_parameters() const;  // those that one token uses
  void validate() const;
};

inline std::int64_t ModelConfig::attention_parameters() const {
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

// A mixture counts its router and as many experts as asked.
inline std::int64_t ModelConfig::layer_parameters(std::int64_t experts_counted) const {
  std::int64_t n = attention_parameters() + block_norms * norm_parameters();
  if (experts == 0) {
    return n + feed_forward_parameters(hidden);
  }
  return n + width * experts +
         (experts_counted + shared_experts) * feed_forward_parameters(expert_hidden);
}

inline std::int64_t ModelConfig::embedding_parameters() const {
  const std::int64_t places = position == Position::learned ? context : 0;
  return vocabulary * width * (tied ? 1 : 2) + places * width;
}

inline std::int64_t ModelConfig::parameters() const {
  return layers * layer_parameters(experts) + norm_parameters() + embedding_parameters() +
         other_parameters;
}

inline std::int64_t ModelConfig::active_parameters() const {
  return layers * layer_parameters(top_k) + norm_parameters() + embedding_parameters() +
         (other_active != 0 ? other_active : other_parameters);
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
                {"hidden", c.hidden, c.experts > 0 ? 0 : 1, size},
                {"expert_hidden", c.expert_hidden, c.experts > 0 ? 1 : 0, size},
                {"block_norms", c.block_norms, 0, 4},
                {"kv_width", c.kv_width, 0, size}};
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
  const double hidden =
      c.experts > 0 ? n(c.experts + c.shared_experts) * n(c.expert_hidden) : n(c.hidden);
  const double layer = 2 * n(c.heads + c.kv_heads) * n(c.head_size) + 3 * hidden + n(c.experts) + 4;
  const double about = n(c.width) * (n(c.layers) * layer + 2 * n(c.vocabulary) + n(c.context));
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

// Throws an Error that names the first field that cannot be right.
inline void ModelConfig::validate() const {
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
  if (experts > 0 && (top_k < 1 || top_k > experts)) {
    detail::fail({"ModelConfig: ", name, ": top_k is ", top_k, " of ", experts, " experts; 1 to ",
                  experts, " is right"});
  }
  if (!detail::is_finite(initializer_range) || initializer_range < 0 || initializer_range >= 100) {
    detail::fail({"ModelConfig: ", name, ": initializer_range is ", initializer_range,
                  "; a deviation is right, or 0 for one that suits the width"});
  }
}

}  // namespace tinyscale
