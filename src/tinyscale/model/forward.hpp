#pragma once
// The transformer's forward pass: embed, then blocks, then head. Its backward pass follows from it.
// Letters as in transformer.hpp; a device that holds a shard sees its own H, F and V.

#include <cstdint>  // int64_t
#include <vector>   // vector

#include "tinyscale/model/hooks.hpp"
#include "tinyscale/model/mixture.hpp"
#include "tinyscale/model/transformer.hpp"
#include "tinyscale/tensor/activations.hpp"
#include "tinyscale/tensor/arithmetic.hpp"
#include "tinyscale/tensor/attend.hpp"
#include "tinyscale/tensor/matmul.hpp"
#include "tinyscale/tensor/normalize.hpp"
#include "tinyscale/tensor/reduce.hpp"
#include "tinyscale/tensor/stored.hpp"
#include "tinyscale/tensor/tokens.hpp"
#include "tinyscale/tensor/views.hpp"

namespace tinyscale {

inline Tensor Transformer::forward(const std::vector<std::int32_t>& ids, std::int64_t batch,
                                   std::int64_t time, const Hooks& hooks) const {
  Tensor x = embed(ids, batch, time, hooks);  // (B, T, D)
  for (int layer = 0; layer < config.layers; ++layer) {
    x = block(layer, x, hooks);
  }
  return head(x, hooks);  // (B, T, V)
}

// The balance loss is in the number here and starts its own gradient in the blocks, so that blocks
// apart (a pipeline's) learn the same.
inline Tensor Transformer::loss(const std::vector<std::int32_t>& ids,
                                const std::vector<std::int32_t>& targets, std::int64_t batch,
                                std::int64_t time, const Hooks& hooks) const {
  if (config.experts == 0 || hooks.experts.balance_loss <= 0) {
    return next_token_loss(ids, targets, batch, time, hooks);
  }
  ExpertCounts own;
  Hooks counted = hooks;
  counted.expert_counts = hooks.expert_counts != nullptr ? hooks.expert_counts : &own;
  const double before = counted.expert_counts->balance_loss;
  const Tensor loss = next_token_loss(ids, targets, batch, time, counted);
  return loss + static_cast<float>(counted.expert_counts->balance_loss - before);
}

inline Tensor Transformer::next_token_loss(const std::vector<std::int32_t>& ids,
                                           const std::vector<std::int32_t>& targets,
                                           std::int64_t batch, std::int64_t time,
                                           const Hooks& hooks) const {
  Tensor x = embed(ids, batch, time, hooks);  // (B, T, D)
  for (int layer = 0; layer < config.layers; ++layer) {
    x = block(layer, x, hooks);
  }
  return head_loss(x, targets, hooks);
}

inline Tensor Transformer::embed(const std::vector<std::int32_t>& ids, std::int64_t batch,
                                 std::int64_t time, const Hooks& hooks) const {
  if (batch < 1 || time < 1 || static_cast<std::int64_t>(ids.size()) != batch * time) {
    detail::fail({"forward: ", ids.size(), " ids for ", batch, " sequences of ", time,
                  " tokens; one id a token is right"});
  }
  const std::int64_t last = hooks.places.at(time - 1);
  if ((hooks.places.at(0) < 0 || last >= config.context) && hooks.each_place == nullptr) {
    detail::fail({"forward: ", time, " tokens from position ", hooks.places.first, " to ", last,
                  "; the context of ", config.name, " is ", config.context});
  }
  const Shape shape = {batch, time};
  Tensor x;  // (B, T, D)
  if (stored(embedding_) != nullptr) {
    x = embedding_stored(*stored(embedding_), ids, shape);
  } else {
    const Tensor table = use(embedding_, hooks);
    x = hooks.embedding ? hooks.embedding(table, ids, shape) : embedding(table, ids, shape);
  }
  if (position_ >= 0) {
    const Tensor places = use(position_, hooks);
    x = x + (hooks.each_place != nullptr ? embedding(places, *hooks.each_place, {batch, time})
                                         : tokens_at(places, 0, hooks.stream, x.dim(1)));
  }
  return drop(x, 0, hooks);
}

inline Tensor Transformer::block(int layer, const Tensor& x, const Hooks& hooks) const {
  const Block& b = block_at(layer);
  if (x.dims() != 3 || x.dim(2) != config.width) {
    detail::fail(
        {"block: x is ", x.shape(), "; [B, T, ", config.width, "] is right for ", config.name});
  }
  const Tensor o = drop(attend(layer, normalise(b.norm1, x, hooks), hooks), 2 * layer + 1, hooks);
  const Tensor y = wanted(x, hooks) + o;
  const Tensor z = normalise(b.norm2, y, hooks);
  const Tensor f =
      hooks.feed_forward ? hooks.feed_forward(layer, z) : feed_forward(layer, z, hooks);
  return y + drop(f, 2 * layer + 2, hooks);
}

inline Tensor Transformer::head(const Tensor& x, const Hooks& hooks) const {
  return multiply(head_input(x, hooks), config.tied ? embedding_ : head_, hooks);
}

inline Tensor Transformer::head_loss(const Tensor& x, const std::vector<std::int32_t>& targets,
                                     const Hooks& hooks) const {
  const Tensor y = head_input(x, hooks);
  const Tensor table = use(config.tied ? embedding_ : head_, hooks);
  return hooks.loss ? hooks.loss(y, table, targets)
                    : linear_cross_entropy(y, table, targets);  // no (B, T, V) at any time
}

inline Tensor Transformer::head_input(const Tensor& x, const Hooks& hooks) const {
  const Tensor y = normalise(last_norm_, x, hooks);
  return hooks.linear_in ? hooks.linear_in(y) : y;
}

inline Tensor Transformer::feed_forward(int layer, const Tensor& x, const Hooks& hooks) const {
  const Block& b = block_at(layer);
  if (b.experts.empty()) {
    return dense(b.dense, x, hooks);
  }
  if (hooks.whole_experts) {
    return mixture(layer, x, hooks);
  }
  const Tensor y = mixture(layer, hooks.linear_in ? hooks.linear_in(x) : x, hooks);
  return hooks.linear_out ? hooks.linear_out(y) : y;
}

inline Tensor Transformer::dense(const FeedForward& part, const Tensor& x,
                                 const Hooks& hooks) const {
  const Tensor in = hooks.linear_in ? hooks.linear_in(x) : x;
  return write_back(part.down, hidden(part, in, hooks), hooks);
}

inline Tensor Transformer::use(int index, const Hooks& hooks) const {
  const Parameter& p = parameters[static_cast<std::size_t>(index)];
  if (!p.value.defined() && p.stored) {
    detail::fail({"forward: ", p.name, " of ", config.name, " is stored as ", p.stored->kind(),
                  " and only runs; load(path) gives weights that learn"});
  }
  return hooks.weight ? hooks.weight(p.value, index) : p.value;
}

inline Tensor Transformer::normalise(const Linear& norm, const Tensor& x,
                                     const Hooks& hooks) const {
  const auto epsilon = static_cast<float>(config.norm_epsilon);
  const Tensor weight = use(norm.weight, hooks);
  if (config.norm == Norm::rms) {
    return rms_norm(x, weight, epsilon);
  }
  return layer_norm(x, weight, norm.bias >= 0 ? use(norm.bias, hooks) : Tensor(), epsilon);
}

// The tokens of x [1, T, D] that go on.
inline Tensor Transformer::wanted(const Tensor& x, const Hooks& hooks) const {
  if (hooks.wanted == nullptr) {
    return x;
  }
  const auto rows = static_cast<std::int64_t>(hooks.wanted->size());
  return embedding(reshape(x, {x.dim(1), x.dim(2)}), *hooks.wanted, {1, rows});
}

// x W^T, of weights in whatever form they are kept.
inline Tensor Transformer::multiply(const Tensor& x, int weight, const Hooks& hooks) const {
  return stored(weight) != nullptr ? matmul_stored(x, *stored(weight), activations)
                                   : matmul_transposed(x, use(weight, hooks));
}

// x W^T + bias for layers that read the width.
inline Tensor Transformer::project(const Linear& linear, const Tensor& x,
                                   const Hooks& hooks) const {
  if (stored(linear.weight) != nullptr) {
    const Tensor y = multiply(x, linear.weight, hooks);
    return linear.bias >= 0 ? y + use(linear.bias, hooks) : y;
  }
  return tinyscale::linear(x, use(linear.weight, hooks),
                           linear.bias >= 0 ? use(linear.bias, hooks) : Tensor());
}

// The same for layers that write to it: where inputs are cut over devices, y is a partial sum
// until linear_out, so the bias comes after.
inline Tensor Transformer::write_back(const Linear& linear, const Tensor& x,
                                      const Hooks& hooks) const {
  if (!hooks.linear_out) {
    return project(linear, x, hooks);
  }
  const Tensor y = hooks.linear_out(multiply(x, linear.weight, hooks));
  return linear.bias >= 0 ? y + use(linear.bias, hooks) : y;
}

// Queries or keys (B, T, H K): each head normalised, then turned to its position.
inline Tensor Transformer::place_heads(int norm, const Tensor& x, const Hooks& hooks) const {
  Tensor y = x;
  if (norm >= 0) {
    const Shape heads = {x.dim(0), x.dim(1), x.dim(2) / config.head_size, config.head_size};
    const auto epsilon = static_cast<float>(config.norm_epsilon);
    y = reshape(rms_norm(reshape(x, heads), use(norm, hooks), epsilon), x.shape());
  }
  if (config.position == Position::rotary) {
    y = hooks.rotate
            ? hooks.rotate(y)
            : rope(y, config.head_size, hooks.places, static_cast<float>(config.rope_theta),
                   config.rope_pairs, config.rope_factors);
  }
  return y;
}

namespace detail {

// Attention of a layer, on a device perhaps only that of its heads.
inline Tensor layer_attention(const ModelConfig& c, std::int64_t layer, const Tensor& q,
                              const Tensor& k, const Tensor& v) {
  return attention(q, k, v, q.dim(2) / c.head_size, k.dim(2) / c.head_size, Mask::causal,
                   c.window_of(layer));
}

}  // namespace detail

inline Tensor Transformer::attend(int layer, const Tensor& x, const Hooks& hooks) const {
  const Block& b = block_at(layer);
  const Tensor in = hooks.linear_in ? hooks.linear_in(x) : x;
  const Tensor q =
      place_heads(b.query_norm, project(b.query, wanted(in, hooks), hooks), hooks);  // (B, T, H K)
  Tensor k = place_heads(b.key_norm, project(b.key, in, hooks), hooks);              // (B, T, KV K)
  Tensor v = project(b.value, in, hooks);
  if (hooks.cache != nullptr) {
    const auto at = static_cast<std::size_t>(layer);
    hooks.cache->keys.resize(blocks_.size());
    hooks.cache->values.resize(blocks_.size());
    k = hooks.cache->append(hooks.cache->keys[at], k, hooks.places.first, config.context);
    v = hooks.cache->append(hooks.cache->values[at], v, hooks.places.first, config.context);
  }
  const Tensor o = hooks.attention ? hooks.attention(layer, q, k, v)
                                   : detail::layer_attention(config, layer, q, k, v);
  return write_back(b.output, o, hooks);
}

// activation(up x), or activation(gate x) * up x: what the down matrix reads.
inline Tensor Transformer::hidden(const FeedForward& part, const Tensor& x,
                                  const Hooks& hooks) const {
  const Tensor up = project(part.up, x, hooks);  // (B, T, F)
  switch (config.activation) {
    case Activation::gelu: return gelu(up);
    case Activation::gelu_tanh: return gelu_tanh(up);
    case Activation::swiglu: return silu(project(part.gate, x, hooks)) * up;
    default: return gelu_tanh(project(part.gate, x, hooks)) * up;
  }
}

inline Tensor Transformer::drop(const Tensor& x, int place, const Hooks& hooks) const {
  if (hooks.dropout == 0.0) {
    return x;
  }
  const std::uint64_t seed =
      detail::parameter_seed(hooks.dropout_seed, static_cast<std::uint64_t>(place));
  const std::int64_t length = hooks.sequence_length > 0 ? hooks.sequence_length : x.dim(1);
  return dropout(x, static_cast<float>(hooks.dropout), seed, hooks.stream, length,
                 hooks.first_sequence);
}

}  // namespace tinyscale
