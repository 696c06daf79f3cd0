#pragma once
// A mixture of experts in a block: route, dispatch, run, combine, and the loss that balances it.
// y_t = sum over t's top_k experts e of w_te expert_e(x_t), plus the shared experts; a dropped
// choice gives 0, and the residual stream carries the token on (arXiv 2101.03961, 2006.16668).

#include <cstdint>  // int64_t
#include <vector>   // vector

#include "tinyscale/model/experts.hpp"
#include "tinyscale/model/hooks.hpp"
#include "tinyscale/model/transformer.hpp"
#include "tinyscale/tensor/arithmetic.hpp"
#include "tinyscale/tensor/carry_loss.hpp"
#include "tinyscale/tensor/matmul.hpp"
#include "tinyscale/tensor/reduce.hpp"
#include "tinyscale/tensor/tokens.hpp"
#include "tinyscale/tensor/views.hpp"

namespace tinyscale {

// One expert. Where its inputs are cut over devices this is a partial sum, and of the bias a share.
inline Tensor Transformer::expert(const FeedForward& part, const Tensor& x,
                                  const Hooks& hooks) const {
  const Tensor h = hidden(part, x, hooks);  // (n, F)
  if (part.down.bias < 0 || hooks.partial_share == 1) {
    return project(part.down, h, hooks);
  }
  const Tensor bias = use(part.down.bias, hooks) * static_cast<float>(hooks.partial_share);
  return tinyscale::linear(h, use(part.down.weight, hooks), bias);
}

inline Tensor Transformer::mixture(int layer, const Tensor& x, const Hooks& hooks) const {
  const Block& block = blocks_[static_cast<std::size_t>(layer)];
  const std::int64_t n = x.count() / config.width;
  const std::int64_t k = config.top_k;
  const Tensor tokens = reshape(x, {n, config.width});
  const Tensor p = softmax(matmul_transposed(tokens, use(block.router, hooks)));  // (N, E)
  const Routing routing = route(p, config.top_k, hooks.experts);
  ExpertRows in;
  in.capacity = routing.capacity;
  std::vector<std::int32_t> sorted;
  for (const std::vector<std::int32_t>& own : routing.rows) {
    in.counts.push_back(static_cast<std::int64_t>(own.size()));
    sorted.insert(sorted.end(), own.begin(), own.end());
  }
  in.rows = embedding(tokens, sorted, {routing.kept});  // (kept, D)
  const ExpertBody run = [&](int e, const Tensor& rows) {
    return expert(block.experts[static_cast<std::size_t>(e)], rows, hooks);
  };
  Tensor outputs = hooks.dispatch ? hooks.dispatch(in, run) : detail::run_experts(in, run);
  if (routing.kept < n * k) {  // dropped choices read this row
    outputs = concat({outputs, zeros({1, config.width})}, 0);
  }
  const Tensor chosen =
      reshape(embedding(reshape(p, {p.count(), 1}), routing.chosen, {n, k}), {n, k});
  const Tensor weights = chosen / reshape(sum(chosen, 1), {n, 1});
  outputs = embedding(outputs, routing.places, {n, k});  // (N, k, D)
  Tensor y = reshape(sum(outputs * reshape(weights, {n, k, 1}), 1), x.shape());
  if (block.dense.up.weight >= 0) {
    y = y + expert(block.dense, x, hooks);
  }
  if (hooks.expert_counts != nullptr) {
    hooks.expert_counts->add(layer, config.layers, routing);
  }
  if (hooks.experts.balance_loss <= 0) {
    return y;
  }
  const Tensor loss =
      balance_loss(p, routing, hooks.batch_mean) * static_cast<float>(hooks.experts.balance_loss);
  if (hooks.expert_counts != nullptr) {
    hooks.expert_counts->balance_loss += static_cast<double>(loss.item());
  }
  return carry_loss(y, loss, hooks.balance_weight);
}

}  // namespace tinyscale
