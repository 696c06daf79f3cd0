#pragma once
// AdamW with decoupled weight decay on matrices alone (arXiv 1711.05101), the global gradient norm,
// and the warm-up and cosine schedule of the learning rate.

#include <algorithm>  // min
#include <cmath>      // cos, sqrt
#include <cstdint>    // int64_t
#include <utility>    // move
#include <vector>     // vector

#include "tinyscale/compute/adamw.hpp"
#include "tinyscale/compute/sums.hpp"
#include "tinyscale/measure/context.hpp"
#include "tinyscale/model/loss_scaler.hpp"
#include "tinyscale/tensor/create.hpp"
#include "tinyscale/tensor/op_record.hpp"
#include "tinyscale/tensor/tensor.hpp"

namespace tinyscale {

struct AdamWOptions {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;  // on tensors of two or more dimensions
};

namespace detail {

// As the kernel sees it: a beta just below 1 is 1 there, and its moments are divided by 0.
inline bool is_below_in_f32(double value, double below) {
  return static_cast<float>(value) < static_cast<float>(below);
}

// Throws the first option with which no step can go well.
inline void check_adamw(const AdamWOptions& options, double grad_scale) {
  const struct {
    const char* option;
    double value, below;
  } ranges[] = {{"learning_rate", options.learning_rate, 1e30},
                {"beta1", options.beta1, 1},
                {"beta2", options.beta2, 1},
                {"epsilon", options.epsilon, 1e30},
                {"weight_decay", options.weight_decay, 1e30},
                {"grad_scale", grad_scale, 1e38}};
  for (const auto& one : ranges) {
    const bool fits = one.value >= 0 && one.value < one.below;
    if (!fits || !is_below_in_f32(one.value, one.below)) {
      fail({"AdamW: ", one.option, " is ", one.value, "; a number from 0 to below ", one.below,
            fits ? " in f32 is right" : " is right"});
    }
  }
}

}  // namespace detail

// Holds two moments a number: 8 bytes beside the 4 of the parameter and the 4 of its gradient.
// A copy shares them and the parameters.
class AdamW {
 public:
  explicit AdamW(std::vector<Tensor> tensors, AdamWOptions start = AdamWOptions())
      : options(start), tensors_(std::move(tensors)) {
    const MemoryScope scope(MemoryKind::optimizer);
    detail::check_adamw(options, 1);
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (!tensors_[i].requires_grad() || !tensors_[i].slot()->leaf) {
        detail::fail({"AdamW: tensor ", i, " of ", tensors_.size(),
                      tensors_[i].requires_grad() ? " is the result of an op" : " has no gradient",
                      "; make it with parameter()"});
      }
      for (std::size_t k = 0; k < i; ++k) {
        if (tensors_[k].slot().get() == tensors_[i].slot().get()) {
          detail::fail({"AdamW: tensors ", k, " and ", i, " of ", tensors_.size(),
                        " are the same; each once is right"});
        }
      }
      moments_.push_back(zeros(tensors_[i].shape()));
      squares_.push_back(zeros(tensors_[i].shape()));
    }
  }

  AdamWOptions options;  // may change between steps (a schedule sets learning_rate)
  LossScaler scaler;     // of the gradients that train_step makes in f16 or fp8

  // Updates every tensor that has a gradient; each gradient is first multiplied by grad_scale.
  // Throws when a backward pass that is still to come needs the old numbers.
  void step(double grad_scale = 1.0) {
    detail::check_adamw(options, grad_scale);
    if (detail::recording()) {
      record_step(full(Shape{}, static_cast<float>(grad_scale)));
      return;
    }
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (tensors_[i].storage()->block().kept.load() > 0) {
        detail::fail({"AdamW: a backward pass that is still to come needs the numbers of tensor ",
                      i, ", ", tensors_[i].shape().text(),
                      "; step after it, or compute what needs no gradient under a NoGrad"});
      }
    }
    ++steps_;
    kernels::AdamWStep s;
    s.learning_rate = static_cast<float>(options.learning_rate);
    s.beta1 = static_cast<float>(options.beta1);
    s.beta2 = static_cast<float>(options.beta2);
    s.epsilon = static_cast<float>(options.epsilon);
    s.grad_scale = static_cast<float>(grad_scale);
    s.step = steps_;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const Tensor grad = tensors_[i].grad();
      if (grad.defined()) {
        s.weight_decay = tensors_[i].dims() >= 2 ? static_cast<float>(options.weight_decay) : 0.0f;
        const detail::OpScope scope;
        const std::int64_t n = grad.count();
        kernels::adamw(n, s, grad.data(), tensors_[i].data(), moments_[i].data(),
                       squares_[i].data());
        scope.done_priced("adamw", "adamw", grad.shape(), &VectorCost::forward, {n, n, n, n},
                          {n, n, n});
      }
    }
  }

  void zero_grad() const {
    for (const Tensor& tensor : tensors_) {
      tensor.zero_grad();
    }
  }

  const std::vector<Tensor>& tensors() const { return tensors_; }
  const std::vector<Tensor>& moments() const { return moments_; }
  const std::vector<Tensor>& squares() const { return squares_; }
  std::int64_t steps() const { return steps_; }

  // Goes on from what another optimizer of the same tensors left; the moments are shared.
  void resume(std::vector<Tensor> moments, std::vector<Tensor> squares, std::int64_t steps) {
    if (steps < 0) {
      detail::fail({"AdamW: resumed after ", steps, " steps; 0 or more are right"});
    }
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (moments.size() != tensors_.size() || squares.size() != tensors_.size() ||
          moments[i].shape() != tensors_[i].shape() || squares[i].shape() != tensors_[i].shape()) {
        detail::fail({"AdamW: ", moments.size(), " moments and ", squares.size(), " squares for ",
                      tensors_.size(), " tensors; one each, of the tensor's shape, is right"});
      }
    }
    moments_ = std::move(moments);
    squares_ = std::move(squares);
    steps_ = steps;
  }

  // The same while a function is compiled: the optimizer's options and count of steps are read, and
  // checked, at every run of the graph, which must not outlive it. grad_scale: one number; where it
  // is NaN nothing is updated.
  void record_step(const Tensor& grad_scale) {
    const Tensor with_decay = record_factors(true), without = record_factors(false);
    const NoGrad no_graph;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const Tensor p = tensors_[i].detach(), grad = tensors_[i].grad();
      if (!grad.defined()) {
        continue;
      }
      detail::Recorder& recorder = *detail::thread_recorder();
      const Tensor all = detail::record(Op::adamw,
                                        {&p, &grad, &moments_[i], &squares_[i],
                                         p.dims() >= 2 ? &with_decay : &without, &grad_scale},
                                        p.shape());
      const Tensor* const targets[] = {&p, &moments_[i], &squares_[i]};
      for (int part = 0; part < 3; ++part) {
        recorder.write("AdamW", *targets[part], recorder.part(all, part, p.shape()));
      }
    }
  }

 private:
  // kernels::AdamWFactors of this step, as numbers of the host; those with decay count the step.
  Tensor record_factors(bool decay) {
    return detail::thread_recorder()->host(
        [this, decay] {
          detail::check_adamw(options, 1);
          steps_ += decay ? 1 : 0;
          const double t = static_cast<double>(steps_), rate = options.learning_rate;
          const double numbers[] = {options.beta1,
                                    options.beta2,
                                    options.epsilon,
                                    decay ? 1.0 - rate * options.weight_decay : 1.0,
                                    rate / (1.0 - std::pow(options.beta1, t)),
                                    1.0 / std::sqrt(1.0 - std::pow(options.beta2, t))};
          Tensor factors(Shape{6});
          for (int i = 0; i < 6; ++i) {
            factors.data()[i] = static_cast<float>(numbers[i]);
          }
          return factors;
        },
        Shape{6});
  }

  std::vector<Tensor> tensors_;
  std::vector<Tensor> moments_;
  std::vector<Tensor> squares_;
  std::int64_t steps_ = 0;
};

// Sum of the squares of all gradients; a sharded model adds these over devices.
inline double grad_sum_of_squares(const std::vector<Tensor>& tensors) {
  double total = 0;
  for (const Tensor& tensor : tensors) {
    const Tensor grad = tensor.grad();
    total += grad.defined() ? kernels::sum_of_squares(grad.count(), grad.data()) : 0.0;
  }
  return total;
}

// What gradients of that norm are multiplied by so that it is at most max; max 0: no limit.
inline double clip_scale(double norm, double max) {
  return max > 0 ? std::min(1.0, max / (norm + 1e-6)) : 1.0;
}

// Shrinks all gradients together when their norm is above max; returns the norm before.
inline double clip_grad_norm(const std::vector<Tensor>& tensors, double max) {
  if (!(max >= 0)) {
    detail::fail({"clip_grad_norm: a norm of at most ", max, "; 0 (no limit) or more is right"});
  }
  const double norm = std::sqrt(grad_sum_of_squares(tensors));
  const auto scale = static_cast<float>(clip_scale(norm, max));
  if (scale < 1.0f) {
    for (const Tensor& tensor : tensors) {
      Tensor grad = tensor.grad();
      for (std::int64_t i = 0; i < grad.count(); ++i) {
        grad.data()[i] *= scale;
      }
    }
  }
  return norm;
}

// Rises as (step + 1) / (warmup + 1) to max, then falls as a cosine to min at `total`.
inline double cosine_schedule(std::int64_t step, std::int64_t warmup, std::int64_t total,
                              double max, double min) {
  if (step < 0 || warmup < 0 || total < 0) {
    detail::fail({"cosine_schedule: step ", step, ", warmup ", warmup, ", total ", total,
                  "; 0 or more are right"});
  }
  if (step < warmup) {
    return max * static_cast<double>(step + 1) / (static_cast<double>(warmup) + 1);
  }
  if (step >= total) {
    return min;
  }
  const double done = static_cast<double>(step - warmup) / static_cast<double>(total - warmup);
  return min + 0.5 * (1.0 + std::cos(3.14159265358979323846 * done)) * (max - min);
}

}  // namespace tinyscale
