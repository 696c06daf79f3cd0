#pragma once
// The transformer, written once for GPT-2 and Llama styles.
// Block: x += attention(norm(x)); x += feed_forward(norm(x)). Letters: B sequences, T tokens each,
// D width, H heads of K numbers, F hidden, V vocabulary. Linear weights are [out, in].
// Parallel strategies change it through Hooks alone; an empty hook is the identity.

#include <cmath>       // sqrt
#include <cstdint>     // int64_t
#include <functional>  // std::function
#include <string>      // string
#include <utility>     // move
#include <vector>      // vector

#include "tinyscale/measure/context.hpp"
#include "tinyscale/model/experts.hpp"
#include "tinyscale/model/model_config.hpp"
#include "tinyscale/model/tokenizer.hpp"
#include "tinyscale/tensor/activations.hpp"
#include "tinyscale/tensor/arithmetic.hpp"
#include "tinyscale/tensor/create.hpp"
#include "tinyscale/tensor/matmul.hpp"
#include "tinyscale/tensor/tensor.hpp"

namespace tinyscale {

// How a parameter is cut over devices: not at all, by its rows (outputs of a linear layer, tokens
// of the embedding), by its columns (inputs of a linear layer), or with the expert it belongs to.
enum class Split { whole, rows, columns, expert };

struct Parameter {
  std::string name;  // as in Hugging Face's Llama files
  Tensor value;
  Split split = Split::whole;
  int layer = -1;  // -1: embeddings, last norm, output matrix
};

// Keys and values of the tokens seen so far, one pair of [1, tokens, KV K] a layer.
struct KvCache {
  std::vector<Tensor> keys;
  std::vector<Tensor> values;
};

// What a strategy may put between the parts of a forward pass.
struct Hooks {
  // The parameter as an op will use it (gathered, say); index is its place in parameters.
  std::function<Tensor(const Tensor& value, int index)> weight;
  // Before the matmuls that read x (query-key-value, up, output matrix), after those that write
  // back to the width (attention output, down). The bias is added after linear_out.
  std::function<Tensor(const Tensor& x)> linear_in;
  std::function<Tensor(const Tensor& y)> linear_out;
  std::function<Tensor(const Tensor& table, const std::vector<std::int32_t>& ids,
                       const Shape& shape)> embedding;
  std::function<Tensor(int layer, const Tensor& q, const Tensor& k, const Tensor& v)> attention;
  std::function<Tensor(int layer, const Tensor& x)> feed_forward;  // all of it, after the norm
  std::function<Tensor(const Tensor& logits, const std::vector<std::int32_t>& targets)> loss;
  std::int64_t first_position = 0;  // of this pass's tokens in their sequences
  KvCache* cache = nullptr;         // read and extended when set
  double dropout = 0.0;
  std::uint64_t dropout_seed = 0;
};

class Transformer {
 public:
  explicit Transformer(ModelConfig config, std::uint64_t seed = 1);

  ModelConfig config;
  std::vector<Parameter> parameters;
  Tokenizer tokenizer;  // of the text it learned; saved with it

  std::vector<Tensor> tensors() const;
  std::int64_t count() const;

  // Logits [B, T, V] of ids [B, T]; loss is the mean cross-entropy against the next tokens.
  Tensor forward(const std::vector<std::int32_t>& ids, std::int64_t batch, std::int64_t time,
                 const Hooks& hooks = Hooks()) const;
  Tensor loss(const std::vector<std::int32_t>& ids, const std::vector<std::int32_t>& targets,
              std::int64_t batch, std::int64_t time, const Hooks& hooks = Hooks()) const;

  // The pieces of forward, for a pipeline: embed, then block 0 .. layers - 1, then head.
  Tensor embed(const std::vector<std::int32_t>& ids, std::int64_t batch, std::int64_t time,
               const Hooks& hooks) const;                          // (B, T, D)
  Tensor block(int layer, const Tensor& x, const Hooks& hooks) const;  // (B, T, D)
  Tensor feed_forward(int layer, const Tensor& x, const Hooks& hooks) const;
  Tensor head(const Tensor& x, const Hooks& hooks) const;          // (B, T, V)

  // Safetensors, tokenizer and config in its metadata (checkpoint.hpp).
  void save(const std::string& path) const;

 private:
  // Places in `parameters`; -1 where this architecture has none.
  struct Linear {
    int weight = -1;
    int bias = -1;
  };
  struct Block {
    Linear norm1, norm2, query, key, value, output;
    int query_norm = -1;
    int key_norm = -1;
    Linear gate, up, down;
    int router = -1;
    std::vector<Linear> expert_gate, expert_up, expert_down;
  };

  int add(std::string name, const Shape& shape, float scale, Split split, int layer);
  Linear add_linear(const std::string& name, std::int64_t out, std::int64_t in, float scale,
                    Split split, int layer, bool with_bias);
  Linear add_norm(const std::string& name, int layer);
  void add_block(int layer);
  void add_experts(int layer, const std::string& at, float residual);

  Tensor use(int index, const Hooks& hooks) const;
  Tensor normalise(const Linear& norm, const Tensor& x, const Hooks& hooks) const;
  Tensor project(const Linear& linear, const Tensor& x, const Hooks& hooks) const;
  Tensor write_back(const Linear& linear, const Tensor& x, const Hooks& hooks) const;
  Tensor heads_norm(int weight, const Tensor& x, const Hooks& hooks) const;
  Tensor attend(int layer, const Tensor& x, const Hooks& hooks) const;
  Tensor mixture(const Block& block, const Tensor& x, const Hooks& hooks) const;
  Tensor activate(const Tensor& gate_or_up, const Tensor& up) const;
  Tensor drop(const Tensor& x, int place, const Hooks& hooks) const;

  std::uint64_t seed_ = 1;
  int embedding_ = -1;
  int position_ = -1;
  Linear last_norm_;
  int head_ = -1;
  std::vector<Block> blocks_;
};
