#pragma once
// A step of one device in parts: gradients of several microbatches add up before the update, and
// activations are computed again in the backward pass instead of kept.

#include <cstdint>  // int64_t
#include <vector>   // vector

#include "tinyscale/model/train_step.hpp"
#include "tinyscale/parallel/layout.hpp"
#include "tinyscale/tensor/matmul_format.hpp"
#include "tinyscale/tensor/recompute.hpp"

namespace tinyscale {
namespace detail {

// Keeps of attention queries, keys and values alone (arXiv 2205.05198).
inline void recompute_attention(Hooks& hooks, const ModelConfig& config) {
  const auto attend = hooks.attention;
  hooks.attention = [attend, config](int layer, const Tensor& q, const Tensor& k, const Tensor& v) {
    const auto core = [attend, config, layer](const std::vector<Tensor>& in) {
      return attend ? attend(layer, in[0], in[1], in[2])
                    : layer_attention(config, layer, in[0], in[1], in[2]);
    };
    return tinyscale::recompute(core, {q, k, v});
  };
}

// The loss of a batch, of whose blocks only the inputs are kept.
inline Tensor recomputed_loss(const Transformer& model, const Batch& batch, const Hooks& all) {
  Hooks hooks = all;
  ExpertCounts counts;
  hooks.expert_counts = &counts;
  Tensor x = model.embed(batch.ids, batch.sequences, batch.time, hooks);
  for (int layer = 0; layer < model.config.layers; ++layer) {
    const auto block = [&model, &all, &hooks, layer](const std::vector<Tensor>& in) {
      return model.block(layer, in[0], context().recomputing == 0 ? hooks : all);
    };
    x = tinyscale::recompute(block, {x});
  }
  const Tensor loss = model.head_loss(x, batch.targets, hooks);
  return counts.balance_loss > 0 ? loss + static_cast<float>(counts.balance_loss) : loss;
}

// Step `number` of a training on these tokens, in layout.microbatches parts of options.batch.
inline StepResult accumulated_step(const Transformer& model, AdamW& optimizer, Batch& batch,
                                   const std::vector<std::int32_t>& tokens, const Layout& layout,
                                   const StepOptions& options, std::int64_t number) {
  const std::int64_t sequences = options.batch / layout.microbatches;
  const GradsOfStep grads(optimizer);
  Hooks hooks = step_hooks(Hooks(), options, number);
  if (layout.recompute == Recompute::selective) {
    recompute_attention(hooks, model.config);
  }
  StepResult result;
  result.loss_scale = step_loss_scale(optimizer, options);
  const double seed = result.loss_scale / static_cast<double>(layout.microbatches);
  hooks.balance_weight = seed;
  {
    const MatmulFormat format(options.format, &result.rounding);
    for (std::int64_t m = 0; m < layout.microbatches; ++m) {
      hooks.first_sequence = m * sequences;
      fill_batch(batch, tokens, sequences, model.config.context, options.seed, number,
                 hooks.first_sequence);
      const Tensor loss =
          layout.recompute == Recompute::full
              ? recomputed_loss(model, batch, hooks)
              : model.loss(batch.ids, batch.targets, batch.sequences, batch.time, hooks);
      result.loss += static_cast<double>(loss.item());
      check_finite("train_step", "loss", result.loss, number, options);
      loss.backward(full(Shape{}, static_cast<float>(seed)));
    }
  }
  result.loss /= static_cast<double>(layout.microbatches);
  update_weights(optimizer, options, number, result);
  return result;
}

}  // namespace detail
}  // namespace tinyscale
