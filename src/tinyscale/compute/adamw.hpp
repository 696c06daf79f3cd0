#pragma once
// AdamW. With g = grad_scale * grad and step t counted from 1:
//   m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2,
//   p = p (1 - lr wd) - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps).
// 28 bytes moved a parameter. Loshchilov and Hutter, arXiv 1711.05101.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/elementwise.hpp"
#include "tinyscale/compute/lane_math.hpp"
#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/compute/memory_check.hpp"

namespace tinyscale {
namespace kernels {

struct AdamWStep {
  float learning_rate = 1e-3f, beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f;
  float weight_decay = 0.0f, grad_scale = 1.0f;
  std::int64_t step = 1;
};

// What a step comes down to: 1 - lr wd, lr / (1 - b1^t), 1 / sqrt(1 - b2^t).
struct AdamWFactors {
  float beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f, grad_scale = 1.0f;
  float decay = 1.0f, rate = 1e-3f, root = 1.0f;
};

// The reference body.
inline void adamw_reference(std::int64_t n, const AdamWStep& s, const float* grad, float* param,
                            float* m, float* v) {
  const double b1 = double{s.beta1}, b2 = double{s.beta2}, lr = double{s.learning_rate};
  const double t = static_cast<double>(s.step);
  for (std::int64_t i = 0; i < n; ++i) {
    const double g = double{s.grad_scale} * double{grad[i]};
    m[i] = static_cast<float>(b1 * double{m[i]} + (1 - b1) * g);
    v[i] = static_cast<float>(b2 * double{v[i]} + (1 - b2) * g * g);
    const double root = std::sqrt(double{v[i]} / (1 - std::pow(b2, t))) + double{s.epsilon};
    const double rate = lr / (1 - std::pow(b1, t)), decay = 1 - lr * double{s.weight_decay};
    param[i] = static_cast<float>(double{param[i]} * decay - rate * double{m[i]} / root);
  }
}

}  // namespace kernels

namespace detail {

struct AdamWBlock {
  std::int64_t n;
  const kernels::AdamWFactors& f;
  const float* grad;
  float* param;
  float* m;
  float* v;

  template <class L>
  TINYSCALE_INLINE void step(const typename L::V& grads, typename L::V& p, typename L::V& first,
                             typename L::V& second) const {
    typename L::V c, d, deviation;
    broadcast<L>(f.grad_scale, c);
    const typename L::V g = grads * c;
    broadcast<L>(f.beta1, c);
    broadcast<L>(1.0f - f.beta1, d);
    first = first * c + g * d;
    broadcast<L>(f.beta2, c);
    broadcast<L>(1.0f - f.beta2, d);
    second = second * c + g * (g * d);
    exact_sqrt(second, deviation);
    broadcast<L>(f.root, c);
    broadcast<L>(f.epsilon, d);
    const typename L::V below = deviation * c + d;
    broadcast<L>(f.decay, c);
    broadcast<L>(f.rate, d);
    p = p * c - d * first / below;
  }

  template <class L>
  TINYSCALE_INLINE void at(std::int64_t i, std::int64_t left) const {
    typename L::V vg, vp, vm, vv;
    load_some<L>(grad + i, left, 0.0f, vg);
    load_some<L>(param + i, left, 0.0f, vp);
    load_some<L>(m + i, left, 0.0f, vm);
    load_some<L>(v + i, left, 0.0f, vv);
    step<L>(vg, vp, vm, vv);
    store_some<L>(param + i, left, vp);
    store_some<L>(m + i, left, vm);
    store_some<L>(v + i, left, vv);
  }

  template <class L>
  TINYSCALE_INLINE void run() const {
    std::int64_t i = 0;
    for (; i + 2 * L::width <= n; i += 2 * L::width) {
      at<L>(i, L::width);
      at<L>(i + L::width, L::width);
    }
    for (; i < n; i += L::width) {
      at<L>(i, n - i);
    }
  }
};

}  // namespace detail

namespace kernels {

// Where grad_scale is NaN nothing is updated.
inline void adamw(std::int64_t n, const AdamWFactors& f, const float* grad, float* param, float* m,
                  float* v) {
  detail::count_of("adamw", {n});
  if (detail::is_nan(double{f.grad_scale})) {
    return;
  }
  const std::int64_t block = detail::elementwise_block;
  parallel_for((n + block - 1) / block, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      const std::int64_t at = b * block;
      detail::run_on_lanes(
          detail::AdamWBlock{std::min(block, n - at), f, grad + at, param + at, m + at, v + at});
    }
  });
}

inline void adamw(std::int64_t n, const AdamWStep& s, const float* grad, float* param, float* m,
                  float* v) {
  const double t = static_cast<double>(s.step);
  const double lr = static_cast<double>(s.learning_rate);
  AdamWFactors f;
  f.beta1 = s.beta1;
  f.beta2 = s.beta2;
  f.epsilon = s.epsilon;
  f.grad_scale = s.grad_scale;
  f.decay = static_cast<float>(1.0 - lr * static_cast<double>(s.weight_decay));
  f.rate = static_cast<float>(lr / (1.0 - std::pow(static_cast<double>(s.beta1), t)));
  f.root = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(static_cast<double>(s.beta2), t)));
  adamw(n, f, grad, param, m, v);
}

}  // namespace kernels
}  // namespace tinyscale
