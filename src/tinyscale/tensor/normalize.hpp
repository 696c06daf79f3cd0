#pragma once
// Layer norm (arXiv 1607.06450), RMS norm (arXiv 1910.07467) along the last dimension, and dropout.

#include <cstdint>  // int64_t
#include <limits>   // numeric_limits

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

inline void check_norms(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias,
                        float epsilon) {
  check_norm(op, "weight", x, weight);
  check_epsilon(op, epsilon);
  if (bias.defined()) {
    check_norm(op, "bias", x, bias);
  }
}

inline Tensor record_norm(Op op, const Tensor& x, const Tensor& weight, const Tensor& bias,
                          float epsilon) {
  const Tensor* const inputs[3] = {&x, &weight, &bias};
  const Tensor all = thread_recorder()->record(op, inputs, bias.defined() ? 3 : 2, x.shape(),
                                               {static_cast<double>(epsilon)});
  return thread_recorder()->part(all, 0, x.shape());
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
  if (detail::recording()) {
    detail::check_norms("layer_norm", x, weight, bias, epsilon);
    return detail::record_norm(Op::layer_norm, x, weight, bias, epsilon);
  }
  const bool dense = x.is_contiguous() && weight.is_contiguous() && bias.is_contiguous();
  if (!dense) {
    return layer_norm(contiguous(x), contiguous(weight), contiguous(bias), epsilon);
  }
  detail::check_norms("layer_norm", x, weight, bias, epsilon);
  const detail::OpScope scope;
  const std::int64_t columns = x.dim(-1);
  const std::int64_t rows = x.count() / columns;
  Tensor y(x.shape());
  Tensor mean(Shape{rows});
  Tensor rstd(Shape{rows});
  kernels::layer_norm_forward(rows, columns, epsilon, x.data(), weight.data(),
                              bias.defined() ? bias.data() : nullptr, y.data(), mean.data(),
                              rstd.data());
  const std::int64_t biases = bias.defined() ? columns : 0;
  scope.done_priced("layer_norm", "layer_norm", x.shape(), &VectorCost::forward,
                    {x.count(), columns, biases}, {x.count(), rows, rows});
  if (detail::tracked({&x, &weight, &bias})) {
    detail::attach(y, "layer_norm", {&x, &weight, &bias},
                   [=, kx = detail::Kept(x), kw = detail::KeptWeight(weight), sx = x.slot(),
                    sw = weight.slot(), sb = bias.slot()](const Tensor& dy) {
                     const detail::OpScope backward;
                     const Tensor w = kw.get();
                     Tensor unused_x = sx ? Tensor() : Tensor(kx.shape());
                     Tensor unused_w = detail::scratch_like(sw, w.shape());
                     float beta = 0;
                     float* const dx = sx ? detail::grad_buffer(sx, beta) : unused_x.data();
                     kernels::layer_norm_backward(rows, columns, kx.data(), w.data(), mean.data(),
                                                  rstd.data(), dy.data(), dx,
                                                  sw ? detail::grad_buffer(sw) : unused_w.data(),
                                                  detail::grad_or_null(sb), beta);
                     backward.done_priced(
                         "layer_norm backward", "layer_norm", dy.shape(), &VectorCost::backward,
                         {2 * dy.count(), columns, rows, rows}, {dy.count(), columns, biases});
                   });
  }
  return y;
}

// x / sqrt(mean(x^2) + epsilon) * weight.
inline Tensor rms_norm(const Tensor& x, const Tensor& weight, float epsilon = 1e-5f) {
  if (detail::recording()) {
    detail::check_norms("rms_norm", x, weight, Tensor(), epsilon);
    return detail::record_norm(Op::rms_norm, x, weight, Tensor(), epsilon);
  }
  if (!x.is_contiguous() || !weight.is_contiguous()) {
    return rms_norm(contiguous(x), contiguous(weight), epsilon);
  }
  detail::check_norms("rms_norm", x, weight, Tensor(), epsilon);
  const detail::OpScope scope;
  const std::int64_t columns = x.dim(-1);
  const std::int64_t rows = x.count() / columns;
  Tensor y(x.shape());
  Tensor rstd(Shape{rows});
  kernels::rms_norm_forward(rows, columns, epsilon, x.data(), weight.data(), y.data(), rstd.data());
  scope.done_priced("rms_norm", "rms_norm", x.shape(), &VectorCost::forward, {x.count(), columns},
                    {x.count(), rows});
  if (detail::tracked({&x, &weight})) {
    detail::attach(
        y, "rms_norm", {&x, &weight},
        [=, kx = detail::Kept(x), kw = detail::KeptWeight(weight), sx = x.slot(),
         sw = weight.slot()](const Tensor& dy) {
          const detail::OpScope backward;
          const Tensor w = kw.get();
          Tensor unused_x = sx ? Tensor() : Tensor(kx.shape());
          Tensor unused_w = detail::scratch_like(sw, w.shape());
          float beta = 0;
          float* const dx = sx ? detail::grad_buffer(sx, beta) : unused_x.data();
          kernels::rms_norm_backward(rows, columns, kx.data(), w.data(), rstd.data(), dy.data(), dx,
                                     sw ? detail::grad_buffer(sw) : unused_w.data(), beta);
          backward.done_priced("rms_norm backward", "rms_norm", dy.shape(), &VectorCost::backward,
                               {2 * dy.count(), columns, rows}, {dy.count(), columns});
        });
  }
  return y;
}

namespace detail {

inline void check_dropout(const Tensor& x, float p) {
  if (!(p >= 0.0f && p < 1.0f)) {
    fail({"dropout: p is ", static_cast<double>(p), "; right is 0 <= p < 1"});
  }
  check_defined(x);
}

// Where the elements of x stand in the whole tensor: `runs` stretches for each of `rows`, each
// `length` elements from `first` on; the rows' own are `pitch` apart.
struct DropPlaces {
  std::int64_t rows = 1, pitch = 0;
  std::int64_t length[2] = {0, 0}, first[2] = {0, 0};
};

// y = x mask / (1 - p) or, of a gradient, y += the same; element i of x is first + i of the whole.
inline void drop_elements(const float* x, float* y, std::int64_t n, float p, std::uint64_t seed,
                          std::int64_t first, float beta) {
  const float keep = 1.0f / (1.0f - p);
  parallel_for(n, 16384, [=](std::int64_t begin, std::int64_t end) {
    float chance[256];
    for (; begin < end; begin += 256) {
      const std::int64_t m = end - begin < 256 ? end - begin : 256;
      fill_uniform(chance, m, seed, static_cast<std::uint64_t>(first + begin), 1.0f);
      for (std::int64_t i = 0; i < m; ++i) {
        const float dropped = x[begin + i] * (chance[i] >= p ? keep : 0.0f);
        y[begin + i] = beta == 0.0f ? dropped : y[begin + i] + dropped;
      }
    }
  });
}
inline void drop_elements(const float* x, float* y, float p, std::uint64_t seed,
                          const DropPlaces& at, float beta) {
  for (std::int64_t row = 0; row < at.rows; ++row) {
    for (int run = 0; run < 2; ++run) {
      drop_elements(x, y, at.length[run], p, seed, at.first[run] + row * at.pitch, beta);
      x += at.length[run];
      y += at.length[run];
    }
  }
}

// The same places as the numbers of an op that begin with p and the seed, and back.
inline List<double> drop_numbers(float p, std::uint64_t seed, const DropPlaces& at) {
  List<double> numbers = {static_cast<double>(p)};
  add_seed(numbers, seed);
  for (const std::int64_t number :
       {at.rows, at.pitch, at.length[0], at.length[1], at.first[0], at.first[1]}) {
    numbers.push_back(static_cast<double>(number));
  }
  return numbers;
}
inline DropPlaces drop_places(const List<double>& numbers) {
  const auto whole = [&numbers](std::size_t i) { return static_cast<std::int64_t>(numbers[i]); };
  return {whole(3), whole(4), {whole(5), whole(6)}, {whole(7), whole(8)}};
}
// The uniform numbers of [0, 1) that stand at these places.
inline void draw_places(float* chance, std::uint64_t seed, const DropPlaces& at) {
  for (std::int64_t row = 0; row < at.rows; ++row) {
    for (int run = 0; run < 2; ++run) {
      fill_uniform(chance, at.length[run], seed,
                   static_cast<std::uint64_t>(at.first[run] + row * at.pitch), 1.0f);
      chance += at.length[run];
    }
  }
}

inline Tensor dropout_at(const Tensor& given, float p, std::uint64_t seed, const DropPlaces& at) {
  if (p <= 0.0f) {
    return given;
  }
  if (recording()) {
    return record(Op::dropout, {&given}, given.shape(), drop_numbers(p, seed, at));
  }
  const Tensor x = contiguous(given);
  const OpScope scope;
  Tensor y(x.shape());
  drop_elements(x.data(), y.data(), p, seed, at, 0.0f);
  scope.done_unary("dropout", "dropout", x.shape());
  if (tracked({&x})) {
    attach(y, "dropout", {&x}, [p, seed, at, sx = x.slot()](const Tensor& dy) {
      const OpScope backward;
      float beta = 0;
      float* const dx = grad_buffer(sx, beta);
      drop_elements(dy.data(), dx, p, seed, at, beta);
      backward.done_priced("dropout backward", "dropout", dy.shape(), &VectorCost::backward,
                           {dy.count()}, {dy.count()});
    });
  }
  return y;
}

}  // namespace detail

// Keeps an element with probability 1 - p and divides it by that; the mask is a function of the
// seed and the element's index in the whole tensor, so it is the same in every layout; a shard
// gives the index of its first element. No mask is stored: the backward pass draws it again.
inline Tensor dropout(const Tensor& x, float p, std::uint64_t seed, std::int64_t first = 0) {
  detail::check_dropout(x, p);
  if (first < 0 || first > std::numeric_limits<std::int64_t>::max() - x.count()) {
    detail::fail({"dropout: the first of ", x.count(), " elements is element ", first,
                  "; 0 or more, and places that can be counted, are right"});
  }
  return detail::dropout_at(x, p, seed, {1, 0, {x.count(), 0}, {first, 0}});
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
  const std::int64_t row = first_sequence * length;
  return detail::dropout_at(x, p, seed,
                            {x.dim(0),
                             length * width,
                             {before * width, (tokens - before) * width},
                             {(row + places.at(0)) * width, (row + places.at(before)) * width}});
}

}  // namespace tinyscale
