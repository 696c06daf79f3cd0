#pragma once
// Functions of one element: gelu (erf and tanh forms, arXiv 1606.08415), silu, relu, exp, log, ...

#include <cstdint>  // int64_t

#include "tinyscale/compute/elementwise.hpp"
#include "tinyscale/tensor/arithmetic.hpp"
#include "tinyscale/tensor/backward.hpp"
#include "tinyscale/tensor/tensor.hpp"

namespace tinyscale {

namespace detail {

using UnaryForward = void (*)(std::int64_t n, const float* x, float* y);
// dx += dy * f'(.), given the op's input or its output, whichever its derivative needs.
using UnaryBackward = void (*)(std::int64_t n, const float* kept, const float* dy, float* dx,
                               float beta);

enum class Needs { input, output };

inline Tensor unary(const char* name, const Tensor& x, UnaryForward forward, UnaryBackward backward,
                    Needs keep) {
  if (!x.is_contiguous()) {
    return unary(name, contiguous(x), forward, backward, keep);
  }
  const OpScope scope;
  Tensor y(x.shape());
  forward(x.count(), x.data(), y.data());
  scope.done_unary(name, name, x.shape());
  if (tracked({&x})) {
    attach(y, name, {&x},
           [name, backward, sx = x.slot(),
            kept = Kept(keep == Needs::input ? x : y)](const Tensor& dy) {
             const OpScope backward_scope;
             float beta = 0;
             float* const dx = grad_buffer(sx, beta);
             backward(dy.count(), kept.data(), dy.data(), dx, beta);
             if (profiling()) {
               backward_scope.done_unary(cat({name, " backward"}).c_str(), name, dy.shape(),
                                         &VectorCost::backward);
             }
           });
  }
  return y;
}

inline Tensor unary(Op op, const Tensor& x, UnaryForward forward, UnaryBackward backward,
                    Needs keep) {
  return recording() ? record(op, {&x}, x.shape()) : unary(name_of(op), x, forward, backward, keep);
}

}  // namespace detail

// x Phi(x), with the exact normal distribution function (erf).
inline Tensor gelu(const Tensor& x) {
  return detail::unary(Op::gelu, x, &kernels::gelu_forward, &kernels::gelu_backward,
                       detail::Needs::input);
}

// The tanh approximation of GPT-2.
inline Tensor gelu_tanh(const Tensor& x) {
  return detail::unary(Op::gelu_tanh, x, &kernels::gelu_tanh_forward, &kernels::gelu_tanh_backward,
                       detail::Needs::input);
}

// x / (1 + exp(-x)).
inline Tensor silu(const Tensor& x) {
  return detail::unary(Op::silu, x, &kernels::silu_forward, &kernels::silu_backward,
                       detail::Needs::input);
}

inline Tensor relu(const Tensor& x) {
  return detail::unary(Op::relu, x, &kernels::relu_forward, &kernels::relu_backward,
                       detail::Needs::input);
}

inline Tensor tanh(const Tensor& x) {
  return detail::unary(Op::tanh, x, &kernels::tanh_forward, &kernels::tanh_backward,
                       detail::Needs::input);
}

// 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x.
inline Tensor erf(const Tensor& x) {
  return detail::unary(Op::erf, x, &kernels::erf_forward, &kernels::erf_backward,
                       detail::Needs::input);
}

// 1 / (1 + exp(-x)).
inline Tensor sigmoid(const Tensor& x) {
  return detail::unary(Op::sigmoid, x, &kernels::sigmoid_forward, &kernels::sigmoid_backward,
                       detail::Needs::output);
}

inline Tensor exp(const Tensor& x) {
  return detail::unary(Op::exp, x, &kernels::exp_forward, &kernels::multiply_add,
                       detail::Needs::output);
}

inline Tensor log(const Tensor& x) {
  return detail::unary(Op::log, x, &kernels::log_forward, &kernels::log_backward,
                       detail::Needs::input);
}

inline Tensor sqrt(const Tensor& x) {
  return detail::unary(Op::sqrt, x, &kernels::sqrt_forward, &kernels::sqrt_backward,
                       detail::Needs::output);
}

inline Tensor square(const Tensor& x) {
  if (detail::recording()) {
    return detail::record(Op::mul, {&x, &x}, x.shape());
  }
  return detail::unary(Op::square, x, &kernels::square_forward, &kernels::square_backward,
                       detail::Needs::input);
}

// |x|; its gradient at 0 is 0.
inline Tensor abs(const Tensor& x) {
  if (detail::recording()) {
    const Tensor zero = detail::record(Op::literal, {}, Shape{}, {0.0});
    const Tensor sign = detail::record(Op::less, {&zero, &x}, x.shape()) -
                        detail::record(Op::less, {&x, &zero}, x.shape());
    return x * sign + 0.0f;  // no -0
  }
  return detail::unary("abs", x, &kernels::abs_forward, &kernels::abs_backward,
                       detail::Needs::input);
}

}  // namespace tinyscale
