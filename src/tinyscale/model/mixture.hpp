#pragma once
// A mixture of experts in a block: route, dispatch, run, combine, and the loss that balances it.
// y_t = sum over t's top_k experts e of w_te expert_e(x_t), plus the shared experts; a dropped
// choice gives 0, and the residual stream carries the token on (arXiv 2101.03961, 2006.16668).

#include "tinyscale/model/experts.hpp"
#include "tinyscale/model/hooks.hpp"
#include "tinyscale/model/transformer.hpp"
#include "tinyscale/tensor/arithmetic.hpp"
#include "tinyscale/tensor/carry_loss.hpp"
#include "tinyscale/tensor/matmul.hpp"
#include "tinyscale/tensor/reduce.hpp"
#include "tinyscale/tensor/views.hpp"

namespace tinyscale {

namespace detail {

// x itself, behind `first` in the graph: of two ways from x that both send, all devices go back the
// same one first, however deep each is on one that got no rows.
inline Tensor after(const Tensor& x, const Tensor& first) {
  if (!tracked({&x, &first})) {
    return x;
  }
  Tensor y = x.detach();
  attach(y, "after", {&x, &first}, [sx = x.slot()](const Tensor& dy) {
    if (sx) {
      add_grad(sx, dy);
    }
  });
  return y;
}

}  // namespace detail

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
  const Block& block = block_at(layer);
  const Tensor tokens = reshape(x, {x.count() / config.width, config.width});     // (N, D)
  const Tensor p = softmax(matmul_transposed(tokens, use(block.router, hooks)));  // (N, E)
  const Routing routing = route(p, config.top_k, hooks.experts);
  const ExpertRows in = expert_rows(tokens, routing);
  const ExpertBody run = [&](int e, const Tensor& rows) {
    return expert(block.experts[static_cast<std::size_t>(e)], rows, hooks);
  };
  const Tensor out = hooks.dispatch ? hooks.dispatch(in, run) : detail::run_experts(in, run);
  Tensor y = reshape(combine(out, p, routing), x.shape());
  if (block.dense.up.weight >= 0) {
    y = y + (hooks.whole_experts ? dense(block.dense, detail::after(x, y), hooks)
                                 : expert(block.dense, x, hooks));
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
