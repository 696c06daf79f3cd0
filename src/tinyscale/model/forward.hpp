#pragma once
// The transformer's forward pass: embed, then blocks, then head. Its backward pass follows from it.
// Letters as in transformer.hpp; a device that holds a shard sees its own H, F and V.

#include <cstdint>  // int64_t
#include <vector>   // vector

#include "tinyscale/model/experts.hpp"
#include "tinyscale/model/hooks.hpp"
#include "tinyscale/model/transformer.hpp"
#include "tinyscale/tensor/activations.hpp"
#include "tinyscale/tensor/arithmetic.hpp"
#include "tinyscale/tensor/attend.hpp"
#include "tinyscale/tensor/matmul.hpp"
#include "tinyscale/tensor/normalize.hpp"
#include "tinyscale/tensor/reduce.hpp"
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

inline Tensor Transformer::loss(const std::vector<std::int32_t>& ids,
                                const std::vector<std::int32_t>& targets, std::int64_t batch,
                                std::int64_t time, const Hooks& hooks) const {
  if (hooks.loss) {
    return hooks.loss(forward(ids, batch, time, hooks), targets);
  }
  Tensor x = embed(ids, batch, time, hooks);  // (B, T, D)
  for (int layer = 0; layer < config.layers; ++layer) {
    x = block(layer, x, hooks);
  }
  return linear_cross_entropy(head_input(x, hooks), use(config.tied ? embedding_ : head_, hooks),
                              targets);  // no (B, T, V) at any time
}

inline Tensor Transformer::embed(const std::vector<std::int32_t>& ids, std::int64_t batch,
                                 std::int64_t time, const Hooks& hooks) const {
  if (batch < 1 || time < 1 || static_cast<std::int64_t>(ids.size()) != batch * time) {
    detail::fail({"forward: ", ids.size(), " ids for ", batch, " sequences of ", time,
                  " tokens; one id a token is right"});
  }
  const std::int64_t last = hooks.places.at(time - 1);
  if (last >= config.context) {
    detail::fail({"forward: ", time, " tokens from position ", hooks.places.first, " to ", last,
                  "; the context of ", config.name, " is ", config.context});
  }
  const Tensor table = use(embedding_, hooks);
  Tensor x = hooks.embedding ? hooks.embedding(table, ids, {batch, time})
                             : embedding(table, ids, {batch, time});  // (B, T, D)
  if (position_ >= 0) {
    x = x + tokens_at(use(position_, hooks), 0, hooks.stream, x.dim(1));
  }
  return drop(x, 0, hooks);
}

inline Tensor Transformer::block(int layer, const Tensor& x, const Hooks& hooks) const {
  const Block& b = blocks_[static_cast<std::size_t>(layer)];
  const Tensor y =
      x + drop(attend(layer, normalise(b.norm1, x, hooks), hooks), 2 * layer + 1, hooks);
  const Tensor z = normalise(b.norm2, y, hooks);
  const Tensor f =
      hooks.feed_forward ? hooks.feed_forward(layer, z) : feed_forward(layer, z, hooks);
  return y + drop(f, 2 * layer + 2, hooks);
}

inline Tensor Transformer::head(const Tensor& x, const Hooks& hooks) const {
  return matmul_transposed(head_input(x, hooks), use(config.tied ? embedding_ : head_, hooks));
}

inline Tensor Transformer::head_input(const Tensor& x, const Hooks& hooks) const {
  const Tensor y = normalise(last_norm_, x, hooks);
  return hooks.linear_in ? hooks.linear_in(y) : y;
}

inline Tensor Transformer::feed_forward(int layer, const Tensor& x, const Hooks& hooks) const {
  const Block& b = blocks_[static_cast<std::size_t>(layer)];
  const Tensor in = hooks.linear_in ? hooks.linear_in(x) : x;
  return b.experts.empty() ? gated(b.dense, in, hooks) : mixture(b, in, hooks);
}

inline Tensor Transformer::use(int index, const Hooks& hooks) const {
  const Tensor& value = parameters[static_cast<std::size_t>(index)].value;
  return hooks.weight ? hooks.weight(value, index) : value;
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

// x W^T + bias for layers that read the width.
inline Tensor Transformer::project(const Linear& linear, const Tensor& x,
                                   const Hooks& hooks) const {
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
  const Tensor y = hooks.linear_out(matmul_transposed(x, use(linear.weight, hooks)));
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
    y = rope(y, config.head_size, hooks.places, static_cast<float>(config.rope_theta),
             RopePairs::halves);
  }
  return y;
}

inline Tensor Transformer::attend(int layer, const Tensor& x, const Hooks& hooks) const {
  const Block& b = blocks_[static_cast<std::size_t>(layer)];
  const Tensor in = hooks.linear_in ? hooks.linear_in(x) : x;
  const Tensor q = place_heads(b.query_norm, project(b.query, in, hooks), hooks);  // (B, T, H K)
  Tensor k = place_heads(b.key_norm, project(b.key, in, hooks), hooks);            // (B, T, KV K)
  Tensor v = project(b.value, in, hooks);
  if (hooks.cache != nullptr) {
    const auto at = static_cast<std::size_t>(layer);
    hooks.cache->keys.resize(blocks_.size());
    hooks.cache->values.resize(blocks_.size());
    k = hooks.cache->append(hooks.cache->keys[at], k, hooks.places.first, config.context);
    v = hooks.cache->append(hooks.cache->values[at], v, hooks.places.first, config.context);
  }
  const Tensor o = hooks.attention ? hooks.attention(layer, q, k, v)
                                   : attention(q, k, v, q.dim(2) / config.head_size,
                                               k.dim(2) / config.head_size, Mask::causal);
  return write_back(b.output, o, hooks);
}

// down(activation(up x)), or down(activation(gate x) * up x).
inline Tensor Transformer::gated(const FeedForward& part, const Tensor& x,
                                 const Hooks& hooks) const {
  const Tensor up = project(part.up, x, hooks);  // (B, T, F)
  Tensor h;
  switch (config.activation) {
    case Activation::gelu: h = gelu(up); break;
    case Activation::gelu_tanh: h = gelu_tanh(up); break;
    case Activation::swiglu: h = silu(project(part.gate, x, hooks)) * up; break;
    case Activation::geglu: h = gelu_tanh(project(part.gate, x, hooks)) * up; break;
  }
  return write_back(part.down, h, hooks);
}

// Every token's output is the weighted sum of its top_k experts' (and the shared ones').
inline Tensor Transformer::mixture(const Block& block, const Tensor& x, const Hooks& hooks) const {
  const std::int64_t n = x.count() / config.width;
  const std::int64_t k = config.top_k;
  const Tensor rows = reshape(x, {n, config.width});
  const Tensor p = softmax(matmul_transposed(rows, use(block.router, hooks)));  // (N, E)
  const Routing routing = route(p, config.top_k);
  std::vector<Tensor> parts;
  for (std::size_t e = 0; e < block.experts.size(); ++e) {
    const auto& own = routing.rows[e];
    if (!own.empty()) {
      parts.push_back(gated(block.experts[e], embedding(rows, own, {own.size()}), hooks));
    }
  }
  const Tensor chosen =
      reshape(embedding(reshape(p, {p.count(), 1}), routing.chosen, {n, k}), {n, k});
  const Tensor weights = chosen / reshape(sum(chosen, 1), {n, 1});
  const Tensor outputs = embedding(concat(parts, 0), routing.places, {n, k});  // (N, k, D)
  const Tensor y = reshape(sum(outputs * reshape(weights, {n, k, 1}), 1), x.shape());
  return block.dense.up.weight >= 0 ? y + gated(block.dense, x, hooks) : y;
}

inline Tensor Transformer::drop(const Tensor& x, int place, const Hooks& hooks) const {
  if (hooks.dropout <= 0.0) {
    return x;
  }
  const std::uint64_t seed =
      detail::parameter_seed(hooks.dropout_seed, static_cast<std::uint64_t>(place));
  const std::int64_t length = hooks.sequence_length > 0 ? hooks.sequence_length : x.dim(1);
  return dropout(x, static_cast<float>(hooks.dropout), seed, hooks.stream, length,
                 hooks.first_sequence);
}

}  // namespace tinyscale
