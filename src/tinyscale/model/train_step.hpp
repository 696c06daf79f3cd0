#pragma once
// One step of training: forward, backward, clip, update. 6 flops a parameter and token.

#include <cmath>     // sqrt
#include <cstdint>   // int64_t
#include <iostream>  // ostream, cout

#include "tinyscale/model/data.hpp"
#include "tinyscale/model/forward.hpp"
#include "tinyscale/model/optimizer.hpp"

namespace tinyscale {

// How to train, wherever it runs.
struct StepOptions {
  std::int64_t steps = 500;
  std::int64_t batch = 12;  // sequences a step, over all devices
  double learning_rate = 1e-3;
  double min_learning_rate = 1e-4;
  std::int64_t warmup = 100;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0.1;
  double clip = 1.0;      // of the global gradient norm; 0: none
  double dropout = 0.0;   // share of numbers set to 0 after the embedding and each part of a block
  ExpertOptions experts;  // of a mixture: capacity, balance loss, which is part of the loss
  DType format = DType::f32;       // of matmul operands; bf16: sums, weights and moments stay f32
  std::int64_t eval_every = 250;   // steps; 0: only at the end
  std::uint64_t seed = 1337;       // of data order and dropout
  std::ostream* out = &std::cout;  // progress; null is silent
};

struct StepResult {
  double loss = 0;       // before the update
  double grad_norm = 0;  // before clipping
};

inline AdamWOptions adamw_options(const StepOptions& options) {
  AdamWOptions adamw;
  adamw.learning_rate = options.learning_rate;
  adamw.beta1 = options.beta1;
  adamw.beta2 = options.beta2;
  adamw.weight_decay = options.weight_decay;
  return adamw;
}

namespace detail {

// Throws the first option with which no training can go well.
inline void check_options(const char* who, const StepOptions& options) {
  if (options.steps < 1 || options.batch < 1) {
    fail({who, ": ", options.steps, " steps of ", options.batch,
          " sequences; both must be at least 1"});
  }
  if (options.format != DType::f32 && options.format != DType::bf16) {
    fail({who, ": format is ", name_of(options.format), "; f32 or bf16 is right"});
  }
  const double most = 1e30;
  const struct {
    const char* option;
    double value, below;
  } ranges[] = {{"learning_rate", options.learning_rate, most},
                {"min_learning_rate", options.min_learning_rate, most},
                {"warmup", static_cast<double>(options.warmup), most},
                {"beta1", options.beta1, 1},
                {"beta2", options.beta2, 1},
                {"weight_decay", options.weight_decay, most},
                {"clip", options.clip, most},
                {"dropout", options.dropout, 1},
                {"experts.capacity_factor", options.experts.capacity_factor, 1e6},
                {"experts.balance_loss", options.experts.balance_loss, most},
                {"eval_every", static_cast<double>(options.eval_every), most}};
  for (const auto& range : ranges) {
    if (!is_finite(range.value) || range.value < 0 || range.value >= range.below) {
      fail({who, ": ", range.option, " is ", range.value, "; a number from 0 to below ",
            range.below, " is right"});
    }
  }
}

inline void check_finite(const char* who, const char* what, double value, std::int64_t step,
                         const StepOptions& options) {
  if (!is_finite(value)) {
    const char* const is = is_nan(value) ? " is not a number" : " is infinite";
    fail({who, ": the ", what, is, " in step ", step, "; try a smaller learning_rate than ",
          options.learning_rate, ", a longer warmup than ", options.warmup,
          " steps or a smaller clip than ", options.clip});
  }
}

}  // namespace detail

// Learns from the batch in step `step`, counted from 0; throws when the loss is no longer a number.
inline StepResult train_step(const Transformer& model, AdamW& optimizer, const Batch& batch,
                             const StepOptions& options, std::int64_t step,
                             const Hooks& hooks = Hooks()) {
  detail::check_options("train_step", options);
  Hooks own = hooks;
  own.dropout = options.dropout;
  own.experts = options.experts;
  own.dropout_seed = detail::parameter_seed(options.seed, static_cast<std::uint64_t>(step));
  StepResult result;
  {
    const MatmulFormat format(options.format);
    const Tensor loss = model.loss(batch.ids, batch.targets, batch.sequences, batch.time, own);
    result.loss = static_cast<double>(loss.item());
    detail::check_finite("train_step", "loss", result.loss, step, options);
    loss.backward();
  }
  for (const Tensor& tensor : optimizer.tensors()) {  // an expert that no token visited
    detail::grad_buffer(tensor.slot());
  }
  result.grad_norm = std::sqrt(grad_sum_of_squares(optimizer.tensors()));
  detail::check_finite("train_step", "gradient norm", result.grad_norm, step, options);
  optimizer.options.learning_rate = cosine_schedule(
      step, options.warmup, options.steps, options.learning_rate, options.min_learning_rate);
  optimizer.step(clip_scale(result.grad_norm, options.clip));
  optimizer.zero_grad();
  return result;
}

}  // namespace tinyscale
