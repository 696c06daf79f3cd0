#pragma once
// Layer norm (arXiv 1607.06450), RMS norm (arXiv 1910.07467) along the last dimension, and dropout.

#include <cstdint>  // int64_t

#include "tinyscale/base/random.hpp"
#include "tinyscale/compute/norm.hpp"
#include "tinyscale/compute/rope.hpp"
#include "tinyscale/tensor/reduce.hpp"

namespace tinyscale {

namespace detail {

inline void check_norm(const char* op, const char* what, const Tensor& x, const Tensor& w) {
  check_last_dim(op, x);
  if (w.dims() != 1 || w.dim(0) != x.dim(-1)) {
    fail({op, ": x is ", x.shape().text(), ", ", what, " is ", w.shape().text(), "; ", what,
          " must be [", x.dim(-1), "]"});
  }
}

inline void check_epsilon(const char* op, float epsilon) {
  const double value = static_cast<double>(epsilon);
  if (!(value >= 0) || !is_finite(value)) {
    fail({op, ": epsilon is ", value, "; a finite number from 0 is right"});
  }
}

inline float* grad_or_null(const Slot& slot) { return slot ? grad_buffer(slot) : nullptr; }

// Where a gradient must be written although nobody asked for it.
inline Tensor scratch_like(const Slot& slot, const Shape& shape) {
  return slot ? Tensor() : zeros(shape);
}

}  // namespace detail

// (x - mean) / sqrt(var + epsilon) * weight + bias; weight [D], bias [D] or empty.
inline Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                         float epsilon = 1e-5f) {
  const bool dense = x.is_contiguous() && weight.is_contiguous() && bias.is_contiguous();
  if (!dense) {
    return layer_norm(contiguous(x), contiguous(weight), contiguous(bias), epsilon);
  }
  detail::check_norm("layer_norm", "weight", x, weight);
  detail::check_epsilon("layer_norm", epsilon);
  if (bias.defined()) {
    detail::check_norm("layer_norm", "bias", x, bias);
  }
  const detail::OpScope scope;
  const std::int64_t columns = x.dim(-1);
  const std::int64_t rows = x.count() / columns;
  Tensor y(x.shape());
  Tensor mean(Shape{rows});
  Tensor rstd(Shape{rows});
  kernels::layer_norm_forward(rows, columns, epsilon, x.data(), weight.data(),
                              bias.defined() ? bias.data() : nullptr, y.data(), mean.data(),
                              rstd.data());
  scope.done_unary("layer_norm", "layer_norm", x.shape());
  if (detail::tracked({&x, &weight, &bias})) {
    detail::attach(y, "layer_norm", {&x, &weight, &bias},
                   [=, kx = detail::Kept(x), kw = detail::KeptWeight(weight), sx = x.slot(),
                    sw = weight.slot(), sb = bias.slot()](const Tensor& dy) {
                     const detail::OpScope backward;
                     const Tensor w = kw.get();
                     Tensor unused_x = detail::scratch_like(sx, kx.shape());
                     Tensor unused_w = detail::scratch_like(sw, w.shape());
                     kernels::layer_norm_backward(
                         rows, columns, kx.data(), w.data(), mean.data(), rstd.data(), dy.data(),
                         sx ? detail::grad_buffer(sx) : unused_x.data(),
                         sw ? detail::grad_buffer(sw) : unused_w.data(), detail::grad_or_null(sb));
                     backward.done_unary("layer_norm backward", "layer_norm", dy.shape(),
                                         &VectorCost::backward);
                   });
  }
  return y;
}

// x / sqrt(mean(x^2) + epsilon) * weight.
inline Tensor rms_norm(const Tensor& x, const Tensor& weight, float epsilon = 1e-5f) {
  if (!x.is_contiguous() || !weight.is_contiguous()) {
    return rms_norm(contiguous(x), contiguous(weight), epsilon);
  }
  detail::check_norm("rms_norm", "weight", x, weight);
  detail::check_epsilon("rms_norm", epsilon);
  const detail::OpScope scope;
  const std::int64_t columns = x.dim(-1);
  const std::int64_t rows = x.count() / columns;
  Tensor y(x.shape());
  Tensor rstd(Shape{rows});
  kernels::rms_norm_forward(rows, columns, epsilon, x.data(), weight.data(), y.data(), rstd.data());
  scope.done_unary("rms_norm", "rms_norm", x.shape());
  if (detail::tracked({&x, &weight})) {
    detail::attach(
        y, "rms_norm", {&x, &weight},
        [=, kx = detail::Kept(x), kw = detail::KeptWeight(weight), sx = x.slot(),
         sw = weight.slot()](const Tensor& dy) {
          const detail::OpScope backward;
          const Tensor w = kw.get();
          Tensor unused_x = detail::scratch_like(sx, kx.shape());
          Tensor unused_w = detail::scratch_like(sw, w.shape());
          kernels::rms_norm_backward(rows, columns, kx.data(), w.data(), rstd.data(), dy.data(),
                                     sx ? detail::grad_buffer(sx) : unused_x.data(),
                                     sw ? detail::grad_buffer(sw) : unused_w.data());
          backward.done_unary("rms_norm backward", "rms_norm", dy.shape(), &VectorCost::backward);
        });
  }
  return y;
}

namespace detail {

inline void check_dropout(const Tensor& x, float p) {
  if (!(p >= 0.0f && p < 1.0f)) {
    fail({"dropout: p is ", static_cast<double>(p), "; right is 0 <= p < 1"});
  }
  x.origin();  // an empty one throws
}

// x times 1 / (1 - p) where a number of [0, 1) is p or more, else 0; writes on the numbers.
inline Tensor drop_by(const Tensor& x, float p, Tensor& numbers) {
  for (std::int64_t i = 0; i < x.count(); ++i) {
    numbers.data()[i] = numbers.data()[i] >= p ? 1.0f / (1.0f - p) : 0.0f;
  }
  return mul(x, numbers);
}

}  // namespace detail

// Keeps an element with probability 1 - p and divides it by that; the mask is a function of the
// seed and the element's index in the whole tensor, so it is the same in every layout; a shard
// gives the index of its first element.
inline Tensor dropout(const Tensor& x, float p, std::uint64_t seed, std::int64_t first = 0) {
  detail::check_dropout(x, p);
  if (p <= 0.0f) {
    return x;
  }
  Tensor mask(x.shape());
  detail::fill_uniform(mask.data(), x.count(), seed, static_cast<std::uint64_t>(first), 1.0f);
  return detail::drop_by(x, p, mask);
}

// The same of x [B, T, D], whose tokens stand at `places` of the sequences first_sequence,
// first_sequence + 1, .. of `length` tokens each.
inline Tensor dropout(const Tensor& x, float p, std::uint64_t seed, const TokenPlaces& places,
                      std::int64_t length, std::int64_t first_sequence) {
  detail::check_dropout(x, p);
  const std::int64_t tokens = x.dims() == 3 ? x.dim(1) : 0;
  if (tokens == 0 || places.at(0) < 0 || places.at(tokens - 1) >= length) {
    detail::fail({"dropout: x is ", x.shape(), ", its tokens at places ", places.at(0), " to ",
                  places.at(tokens - 1), " of sequences of ", length,
                  "; right is [B, T, D] and places within their sequences"});
  }
  const std::int64_t width = x.dim(2), before = places.before_jump(tokens);
  if (tokens == length && before == tokens) {
    return dropout(x, p, seed, first_sequence * length * width);
  }
  if (p <= 0.0f) {
    return x;
  }
  Tensor mask(x.shape());
  const auto fill = [&](std::int64_t b, std::int64_t begin, std::int64_t end) {
    const std::int64_t at = ((first_sequence + b) * length + places.at(begin)) * width;
    detail::fill_uniform(mask.data() + (b * tokens + begin) * width, (end - begin) * width, seed,
                         static_cast<std::uint64_t>(at), 1.0f);
  };
  for (std::int64_t b = 0; b < x.dim(0); ++b) {
    fill(b, 0, before);
    fill(b, before, tokens);
  }
  return detail::drop_by(x, p, mask);
}

}  // namespace tinyscale
