#pragma once
// One step of training: forward, backward, clip, update. 6 flops a parameter and token.

#include <cmath>     // sqrt
#include <cstdint>   // int64_t
#include <iostream>  // ostream, cout

#include "tinyscale/model/data.hpp"
#include "tinyscale/model/forward.hpp"
#include "tinyscale/model/optimizer.hpp"
#include "tinyscale/tensor/matmul_format.hpp"

namespace tinyscale {

// How to train, wherever it runs.
struct StepOptions {
  std::int64_t steps = 500;
  std::int64_t batch = 12;  // sequences a step, over all devices; train() makes of 12 the next
                            // multiple of what the layout divides it by, says so and reports it
  double learning_rate = 1e-3;
  double min_learning_rate = 1e-4;
  std::int64_t warmup = 100;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0.1;
  double clip = 1.0;      // of the global gradient norm; 0: none
  double dropout = 0.0;   // share of numbers set to 0 after the embedding and each part of a block
  ExpertOptions experts;  // of a mixture: capacity, balance loss, which is part of the loss
  // Of matmul operands: f32 by default, bf16, f16, fp8_e4m3. Sums, weights and moments stay f32.
  detail::FormatOption format;
  double loss_scale = 0;           // 0: LossScaler's in f16 and fp8, else 1
  std::int64_t eval_every = 250;   // steps; 0: only at the end
  std::uint64_t seed = 1337;       // of data order and dropout
  std::ostream* out = &std::cout;  // progress, std::cout of MPI rank 0 alone; null: none
};

struct StepResult {
  double loss = 0;       // before the update
  double grad_norm = 0;  // before clipping
  double loss_scale = 1;
  bool skipped = false;    // gradients overflowed at a dynamic loss scale: nothing was updated
  RoundingCount rounding;  // of the gradients that matmuls read in f16 or fp8
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
  if (options.format != DType::f32 && options.format != DType::bf16 &&
      options.format != DType::f16 && options.format != DType::fp8_e4m3) {
    fail({who, ": format is ", name_of(options.format.type),
          "; f32, bf16, f16 or fp8_e4m3 is right"});
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
                {"loss_scale", options.loss_scale, most},
                {"dropout", options.dropout, 1},
                {"experts.capacity_factor", options.experts.capacity_factor, 1e6},
                {"experts.balance_loss", options.experts.balance_loss, most},
                {"eval_every", static_cast<double>(options.eval_every), most}};
  for (const auto& range : ranges) {
    const bool fits = range.value >= 0 && range.value < range.below;
    if (!fits || !is_below_in_f32(range.value, range.below)) {
      fail({who, ": ", range.option, " is ", range.value, "; a number from 0 to below ",
            range.below, fits ? " in f32 is right" : " is right"});
    }
  }
}

inline void check_finite(const char* who, const char* what, double value, std::int64_t step,
                         const StepOptions& options) {
  if (!is_finite(value)) {
    const char* const is = is_nan(value) ? " is not a number" : " is infinite";
    fail({who, ": the ", what, is, " in step ", step, "; try a smaller learning_rate than ",
          options.learning_rate, ", a longer warmup than ", options.warmup, " steps",
          options.loss_scale > 1 ? cat({", a smaller loss_scale than ", options.loss_scale}) : "",
          " or a smaller clip than ", options.clip});
  }
}

// bf16 has the range of f32: no gradient vanishes in it.
inline bool scales_dynamically(const StepOptions& options) {
  return options.loss_scale <= 0 &&
         (options.format == DType::f16 || options.format == DType::fp8_e4m3);
}
// What the loss of the first step is multiplied by.
inline double first_loss_scale(const StepOptions& options) {
  return options.loss_scale > 0        ? options.loss_scale
         : scales_dynamically(options) ? LossScaler().scale
                                       : 1;
}

// Whether the step is left out; throws where no smaller scale could help.
inline bool skips(const StepResult& result, const StepOptions& options, std::int64_t step) {
  if (!is_finite(result.grad_norm) && scales_dynamically(options)) {
    return true;
  }
  check_finite("train_step", "gradient norm", result.grad_norm, step, options);
  return false;
}

inline double learning_rate_at(std::int64_t step, const StepOptions& options) {
  return cosine_schedule(step, options.warmup, options.steps, options.learning_rate,
                         options.min_learning_rate);
}

// What the kernel is to do in step `step`, after `updates` updates, with gradients of a norm.
inline kernels::AdamWStep adamw_step(const StepOptions& options, std::int64_t step,
                                     std::int64_t updates, const StepResult& result) {
  kernels::AdamWStep adamw;
  adamw.learning_rate = static_cast<float>(learning_rate_at(step, options));
  adamw.beta1 = static_cast<float>(options.beta1);
  adamw.beta2 = static_cast<float>(options.beta2);
  adamw.epsilon = static_cast<float>(AdamWOptions().epsilon);
  adamw.weight_decay = static_cast<float>(options.weight_decay);
  adamw.grad_scale =
      static_cast<float>(clip_scale(result.grad_norm, options.clip) / result.loss_scale);
  adamw.step = updates + 1;
  return adamw;
}

// What the hooks must know of a step.
inline Hooks step_hooks(const Hooks& hooks, const StepOptions& options, std::int64_t step) {
  Hooks own = hooks;
  own.dropout = options.dropout;
  own.experts = options.experts;
  own.dropout_seed = parameter_seed(options.seed, static_cast<std::uint64_t>(step));
  return own;
}

inline double step_loss_scale(const AdamW& optimizer, const StepOptions& options) {
  return scales_dynamically(options) ? optimizer.scaler.scale : first_loss_scale(options);
}

// At the end of a step its gradients are used up; those of one that fails are of no use to the
// next.
class GradsOfStep {
 public:
  explicit GradsOfStep(const AdamW& optimizer) : optimizer_(optimizer) {}
  GradsOfStep(const GradsOfStep&) = delete;
  GradsOfStep& operator=(const GradsOfStep&) = delete;
  ~GradsOfStep() { optimizer_.zero_grad(); }

 private:
  const AdamW& optimizer_;
};

// The end of a step, its gradients all there: norm, clip, update. The result has loss and scale.
inline void update_weights(AdamW& optimizer, const StepOptions& options, std::int64_t step,
                           StepResult& result) {
  for (const Tensor& tensor : optimizer.tensors()) {  // an expert that no token visited
    grad_buffer(tensor.slot());
  }
  result.grad_norm = std::sqrt(grad_sum_of_squares(optimizer.tensors())) / result.loss_scale;
  result.skipped = skips(result, options, step);
  if (!result.skipped) {
    optimizer.options.learning_rate = learning_rate_at(step, options);
    optimizer.step(clip_scale(result.grad_norm, options.clip) / result.loss_scale);
  }
  if (scales_dynamically(options)) {
    optimizer.scaler.update(!result.skipped);
  }
}

}  // namespace detail

// Learns from the batch in step `step`, counted from 0; throws when the loss is no longer a number.
inline StepResult train_step(const Transformer& model, AdamW& optimizer, const Batch& batch,
                             const StepOptions& options, std::int64_t step,
                             const Hooks& hooks = Hooks()) {
  detail::check_options("train_step", options);
  const detail::GradsOfStep grads(optimizer);
  Hooks own = detail::step_hooks(hooks, options, step);
  StepResult result;
  result.loss_scale = detail::step_loss_scale(optimizer, options);
  own.balance_weight *= result.loss_scale;
  {
    const MatmulFormat format(options.format, &result.rounding);
    const Tensor loss = model.loss(batch.ids, batch.targets, batch.sequences, batch.time, own);
    result.loss = static_cast<double>(loss.item());
    detail::check_finite("train_step", "loss", result.loss, step, options);
    loss.backward(full(Shape{}, static_cast<float>(result.loss_scale)));
  }
  detail::update_weights(optimizer, options, step, result);
  return result;
}

}  // namespace tinyscale
