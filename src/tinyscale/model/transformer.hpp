#pragma once
// The transformer, written once for GPT-2 and Llama styles.
// Block: x += attention(norm(x)); x += feed_forward(norm(x)). Letters: B sequences, T tokens each,
// D width, H heads of K numbers, F hidden, V vocabulary. Linear weights are [out, in].
// Parallel strategies change it through Hooks alone.

#include <cmath>    // sqrt
#include <cstdint>  // int64_t
#include <string>   // string
#include <utility>  // move
#include <vector>   // vector

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/physical_memory.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/measure/context.hpp"
#include "tinyscale/model/hooks.hpp"
#include "tinyscale/model/model_config.hpp"
#include "tinyscale/model/tokenizer.hpp"
#include "tinyscale/tensor/create.hpp"
#include "tinyscale/tensor/tensor.hpp"

namespace tinyscale {

namespace detail {

inline std::uint64_t parameter_seed(std::uint64_t seed, std::uint64_t place) {
  return seed + (place + 1) * 0x9E3779B97F4A7C15ull;
}

}  // namespace detail

// A copy shares the parameters' numbers with it, as copies of a Tensor do: what trains one trains
// both. save and load make one of its own.
class Transformer {
 public:
  explicit Transformer(ModelConfig shape, std::uint64_t seed = 1)
      : Transformer(std::move(shape), seed, true) {}
  // Parameters with names and shapes and no numbers, for who reads them from a file.
  static Transformer without_numbers(ModelConfig shape) {
    return Transformer(std::move(shape), 0, false);
  }

  ModelConfig config;
  List<Parameter> parameters;
  Tokenizer tokenizer;                         // of the text it learned; saved with it
  Activations activations = Activations::f32;  // as they meet stored weights

  // Whether some weights are stored in a format that runs and does not learn.
  bool is_stored() const;

  // The matrix of the head, which is the embedding where both are tied.
  const Parameter& head_matrix() const {
    return parameters[static_cast<std::size_t>(config.tied ? embedding_ : head_)];
  }
  Parameter& head_matrix() {
    return parameters[static_cast<std::size_t>(config.tied ? embedding_ : head_)];
  }

  std::vector<Tensor> tensors() const;
  std::int64_t count() const;

  // Logits [B, T, V] of ids [B, T]; loss is the mean cross-entropy against the next tokens, plus
  // the balance loss of mixtures when hooks.experts asks for one.
  Tensor forward(const std::vector<std::int32_t>& ids, std::int64_t batch, std::int64_t time,
                 const Hooks& hooks = Hooks()) const;
  Tensor loss(const std::vector<std::int32_t>& ids, const std::vector<std::int32_t>& targets,
              std::int64_t batch, std::int64_t time, const Hooks& hooks = Hooks()) const;

  // The pieces of forward, for a pipeline: embed, then block 0 .. layers - 1, then head
  // or head_loss.
  Tensor embed(const std::vector<std::int32_t>& ids, std::int64_t batch, std::int64_t time,
               const Hooks& hooks) const;                              // (B, T, D)
  Tensor block(int layer, const Tensor& x, const Hooks& hooks) const;  // (B, T, D)
  Tensor feed_forward(int layer, const Tensor& x, const Hooks& hooks) const;
  Tensor head_input(const Tensor& x, const Hooks& hooks) const;  // (B, T, D)
  Tensor head(const Tensor& x, const Hooks& hooks) const;        // (B, T, V)
  Tensor head_loss(const Tensor& x, const std::vector<std::int32_t>& targets,
                   const Hooks& hooks) const;

  // Safetensors of f32, bf16 or f16, tokenizer and config in its metadata (checkpoint.hpp).
  void save(const std::string& path, DType format = DType::f32) const;

 private:
  Transformer(ModelConfig shape, std::uint64_t seed, bool numbers);

  // Places in `parameters`; -1 where this architecture has none.
  struct Linear {
    int weight = -1;
    int bias = -1;
  };
  struct FeedForward {
    Linear gate, up, down;
  };
  struct Block {
    Linear norm1, norm2, query, key, value, output;
    int query_norm = -1;
    int key_norm = -1;
    FeedForward dense;  // of a mixture: its shared experts as one
    int router = -1;
    List<FeedForward> experts;
  };

  int add(const std::string& name, const Shape& shape, float scale, Split split, int layer);
  Linear add_linear(const std::string& name, std::int64_t out, std::int64_t in, Split split,
                    int layer);
  Linear add_norm(const std::string& name, int layer);
  FeedForward add_feed_forward(const std::string& name, std::int64_t wide, int layer);
  FeedForward add_expert(const std::string& at, int expert, int layer);
  void add_block(int layer);

  Tensor next_token_loss(const std::vector<std::int32_t>& ids,
                         const std::vector<std::int32_t>& targets, std::int64_t batch,
                         std::int64_t time, const Hooks& hooks) const;
  Tensor use(int index, const Hooks& hooks) const;
  const Block& block_at(int layer) const {
    if (static_cast<std::size_t>(layer) >= blocks_.size()) {
      detail::fail({"block: layer ", layer, " of ", config.name, ", which has ", blocks_.size()});
    }
    return blocks_[static_cast<std::size_t>(layer)];
  }
  const StoredMatrix* stored(int index) const {
    return parameters[static_cast<std::size_t>(index)].stored.get();
  }
  Tensor wanted(const Tensor& x, const Hooks& hooks) const;
  Tensor multiply(const Tensor& x, int weight, const Hooks& hooks) const;
  Tensor normalise(const Linear& norm, const Tensor& x, const Hooks& hooks) const;
  Tensor project(const Linear& linear, const Tensor& x, const Hooks& hooks) const;
  Tensor write_back(const Linear& linear, const Tensor& x, const Hooks& hooks) const;
  Tensor place_heads(int norm, const Tensor& x, const Hooks& hooks) const;
  Tensor attend(int layer, const Tensor& x, const Hooks& hooks) const;
  Tensor hidden(const FeedForward& part, const Tensor& x, const Hooks& hooks) const;
  Tensor dense(const FeedForward& part, const Tensor& x, const Hooks& hooks) const;
  Tensor mixture(int layer, const Tensor& x, const Hooks& hooks) const;
  Tensor expert(const FeedForward& part, const Tensor& x, const Hooks& hooks) const;
  Tensor drop(const Tensor& x, int place, const Hooks& hooks) const;

  std::uint64_t seed_ = 1;
  bool numbers_ = true;  // are made for new parameters
  int embedding_ = -1;
  int position_ = -1;
  Linear last_norm_;
  int head_ = -1;
  List<Block> blocks_;
};

// Tables are N(0, 0.02). Linear weights are N(0, sqrt(2 / (5 width))) (Nguyen and Salazar, arXiv
// 1910.05895) or N(0, initializer_range), GPT-2's 0.02; those that write to the residual stream
// that over sqrt(2 layers).
inline Transformer::Transformer(ModelConfig shape, std::uint64_t seed, bool numbers)
    : config(std::move(shape)), seed_(seed), numbers_(numbers) {
  const std::string beyond = config.beyond.empty() ? detail::lacking(config) : config.beyond;
  if (!beyond.empty()) {
    detail::fail({"Transformer: ", config.name, " is planned, not run: it has ", beyond,
                  "; config(\"nano\") is one that runs"});
  }
  config.validate();
  const double bytes = numbers ? 4.0 * static_cast<double>(config.parameters()) : 0;
  const double memory = detail::physical_memory();
  if (memory > 0 && bytes > memory) {
    detail::fail({"Transformer: ", config.name, " needs ", format_bytes(bytes),
                  " for its parameters in f32, this machine has ", format_bytes(memory),
                  "; plan_training() and plan_serving() need none"});
  }
  const std::int64_t d = config.width;
  embedding_ = add("model.embed_tokens.weight", {config.vocabulary, d}, 0.02f, Split::rows, -1);
  if (config.position == Position::learned) {
    position_ = add("model.embed_positions.weight", {config.context, d}, 0.02f, Split::whole, -1);
  }
  for (int layer = 0; layer < config.layers; ++layer) {
    add_block(layer);
  }
  last_norm_ = add_norm("model.norm", -1);
  if (!config.tied) {
    head_ = add("lm_head.weight", {config.vocabulary, d}, 0.02f, Split::rows, -1);
  }
}

// scale 0 fills with zeros, below 0 with ones; else element i is normal01(seed of the place, i).
inline int Transformer::add(const std::string& name, const Shape& shape, float scale, Split split,
                            int layer) {
  const auto place = static_cast<std::uint64_t>(parameters.size());
  Parameter made;
  made.name = name;
  made.split = split;
  made.layer = layer;
  made.shape = shape;
  if (numbers_) {
    const MemoryScope scope(MemoryKind::parameter);
    made.value = parameter(scale > 0.0f ? randn(shape, detail::parameter_seed(seed_, place), scale)
                                        : full(shape, scale < 0.0f ? 1.0f : 0.0f));
  }
  parameters.push_back(std::move(made));
  return static_cast<int>(place);
}

inline Transformer::Linear Transformer::add_linear(const std::string& name, std::int64_t out,
                                                   std::int64_t in, Split split, int layer) {
  const auto depth = static_cast<float>(2 * config.layers);
  const auto range = static_cast<float>(config.initializer_range);
  const auto width = static_cast<float>(config.width);
  const float base = range > 0.0f ? range : std::sqrt(2.0f / (5.0f * width));
  const float scale = split == Split::columns ? base / std::sqrt(depth) : base;
  const bool qkv = config.qkv_bias && name.find(".self_attn.o_") == std::string::npos &&
                   name.find(".self_attn.") != std::string::npos;
  Linear linear;
  linear.weight = add(name + ".weight", {out, in}, scale, split, layer);
  if (config.bias || qkv) {
    const Split bias_split = split == Split::columns ? Split::whole : split;
    linear.bias = add(name + ".bias", {out}, 0.0f, bias_split, layer);
  }
  return linear;
}

inline Transformer::Linear Transformer::add_norm(const std::string& name, int layer) {
  Linear norm;
  norm.weight = add(name + ".weight", {config.width}, -1.0f, Split::whole, layer);
  if (config.norm == Norm::layer && config.bias) {
    norm.bias = add(name + ".bias", {config.width}, 0.0f, Split::whole, layer);
  }
  return norm;
}

inline Transformer::FeedForward Transformer::add_feed_forward(const std::string& name,
                                                              std::int64_t wide, int layer) {
  FeedForward part;
  if (config.gated()) {
    part.gate = add_linear(name + ".gate_proj", wide, config.width, Split::rows, layer);
  }
  part.up = add_linear(name + ".up_proj", wide, config.width, Split::rows, layer);
  part.down = add_linear(name + ".down_proj", config.width, wide, Split::columns, layer);
  return part;
}

inline Transformer::FeedForward Transformer::add_expert(const std::string& at, int expert,
                                                        int layer) {
  const std::size_t first = parameters.size();
  const FeedForward part =
      add_feed_forward(detail::cat({at, ".mlp.experts.", expert}), config.expert_hidden, layer);
  for (std::size_t i = first; i < parameters.size(); ++i) {
    parameters[i].expert = expert;
  }
  return part;
}

inline void Transformer::add_block(int layer) {
  const std::string at = detail::cat({"model.layers.", layer});
  const std::int64_t d = config.width;
  Block b;
  b.norm1 = add_norm(at + ".input_layernorm", layer);
  b.query = add_linear(at + ".self_attn.q_proj", config.query_width(), d, Split::rows, layer);
  b.key = add_linear(at + ".self_attn.k_proj", config.key_width(), d, Split::rows, layer);
  b.value = add_linear(at + ".self_attn.v_proj", config.key_width(), d, Split::rows, layer);
  if (config.qk_norm) {
    const Shape head = {config.head_size};
    b.query_norm = add(at + ".self_attn.q_norm.weight", head, -1.0f, Split::whole, layer);
    b.key_norm = add(at + ".self_attn.k_norm.weight", head, -1.0f, Split::whole, layer);
  }
  b.output = add_linear(at + ".self_attn.o_proj", d, config.query_width(), Split::columns, layer);
  b.norm2 = add_norm(at + ".post_attention_layernorm", layer);
  if (config.experts == 0) {
    b.dense = add_feed_forward(at + ".mlp", config.hidden, layer);
  } else {
    b.router = add(at + ".mlp.gate.weight", {config.experts, d}, 0.02f, Split::whole, layer);
    for (int e = 0; e < config.experts; ++e) {
      b.experts.push_back(add_expert(at, e, layer));
    }
    if (config.shared_experts > 0) {
      b.dense = add_feed_forward(at + ".mlp.shared_experts",
                                 config.shared_experts * config.expert_hidden, layer);
    }
  }
  blocks_.push_back(std::move(b));
}

inline bool Transformer::is_stored() const {
  for (const Parameter& p : parameters) {
    if (p.stored) {
      return true;
    }
  }
  return false;
}

// To learn; stored weights cannot.
inline std::vector<Tensor> Transformer::tensors() const {
  std::vector<Tensor> all;
  for (const Parameter& p : parameters) {
    if (!p.value.defined()) {
      detail::fail({"tensors: ", p.name, " of ", config.name, " is ",
                    p.stored ? p.stored->kind() : "not there",
                    " and only runs; load(path) gives weights that learn"});
    }
    all.push_back(p.value);
  }
  return all;
}

inline std::int64_t Transformer::count() const {
  std::int64_t n = 0;
  for (const Parameter& p : parameters) {
    n += p.value.defined() ? p.value.count() : p.shape.count();
  }
  return n;
}

}  // namespace tinyscale
