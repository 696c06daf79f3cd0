#pragma once
// Functions of one element: gelu (erf and tanh forms, arXiv 1606.08415), silu, relu, exp, log, ...

#include <cmath>    // log, sqrt
#include <cstdint>  // int64_t

#include "tinyscale/compute/elementwise.hpp"
#include "tinyscale/tensor/op_record.hpp"
#include "tinyscale/tensor/tensor.hpp"

namespace tinyscale {

namespace detail {

using UnaryForward = void (*)(std::int64_t n, const float* x, float* y);
// dx += dy * f'(.), given the op's input or its output, whichever its derivative needs.
using UnaryBackward = void (*)(std::int64_t n, const float* kept, const float* dy, float* dx,
                               float beta);

enum class Kept { input, output };

inline Tensor unary(const char* name, const Tensor& x, UnaryForward forward, UnaryBackward backward,
                    Kept keep) {
  const OpScope scope;
  Tensor y(x.shape());
  forward(x.count(), x.data(), y.data());
  scope.done_unary(name, name, x.shape());
  if (tracked({&x})) {
    attach(y, name, {&x},
           [name, backward, sx = x.slot(),
            kept = keep == Kept::input ? x.detach() : y.detach()](const Tensor& dy) {
             const OpScope backward_scope;
             backward(dy.count(), kept.data(), dy.data(), grad_buffer(sx), 1.0f);
             backward_scope.done_unary(cat(name, " backward").c_str(), name, dy.shape(),
                                       &VectorCost::backward);
           });
  }
  return y;
}

template <class F>
inline void each(std::int64_t n, const F& body) {
  for (std::int64_t i = 0; i < n; ++i) {
    body(i);
  }
}

}  // namespace detail

// x Phi(x), with the exact normal distribution function (erf).
inline Tensor gelu(const Tensor& x) {
  return detail::unary("gelu", x, &kernel::gelu_forward, &kernel::gelu_backward,
                       detail::Kept::input);
}

// The tanh approximation of GPT-2.
inline Tensor gelu_tanh(const Tensor& x) {
  return detail::unary("gelu_tanh", x, &kernel::gelu_tanh_forward, &kernel::gelu_tanh_backward,
                       detail::Kept::input);
}

// x / (1 + exp(-x)).
inline Tensor silu(const Tensor& x) {
  return detail::unary("silu", x, &kernel::silu_forward, &kernel::silu_backward,
                       detail::Kept::input);
}

inline Tensor relu(const Tensor& x) {
  return detail::unary("relu", x, &kernel::relu_forward, &kernel::relu_backward,
                       detail::Kept::input);
}

inline Tensor tanh(const Tensor& x) {
  return detail::unary("tanh", x, &kernel::tanh_forward, &kernel::tanh_backward,
                       detail::Kept::input);
}

inline Tensor exp(const Tensor& x) {
  return detail::unary("exp", x, &kernel::exp_forward, &kernel::multiply_add, detail::Kept::output);
}

inline Tensor log(const Tensor& x) {
  return detail::unary(
      "log", x,
      [](std::int64_t n, const float* in, float* y) {
        detail::each(n, [&](std::int64_t i) { y[i] = std::log(in[i]); });
      },
      [](std::int64_t n, const float* in, const float* dy, float* dx, float) {
        detail::each(n, [&](std::int64_t i) { dx[i] += dy[i] / in[i]; });
      },
      detail::Kept::input);
}

inline Tensor sqrt(const Tensor& x) {
  return detail::unary(
      "sqrt", x,
      [](std::int64_t n, const float* in, float* y) {
        detail::each(n, [&](std::int64_t i) { y[i] = std::sqrt(in[i]); });
      },
      [](std::int64_t n, const float* y, const float* dy, float* dx, float) {
        detail::each(n, [&](std::int64_t i) { dx[i] += 0.5f * dy[i] / y[i]; });
      },
      detail::Kept::output);
}

inline Tensor square(const Tensor& x) {
  return detail::unary(
      "square", x,
      [](std::int64_t n, const float* in, float* y) {
        detail::each(n, [&](std::int64_t i) { y[i] = in[i] * in[i]; });
      },
      [](std::int64_t n, const float* in, const float* dy, float* dx, float) {
        detail::each(n, [&](std::int64_t i) { dx[i] += 2.0f * dy[i] * in[i]; });
      },
      detail::Kept::input);
}

}  // namespace tinyscale
