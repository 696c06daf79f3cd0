#pragma once
// Sums, means and softmax. Whole-tensor sums are gathered in double, in index order.

#include <algorithm>  // max_element
#include <cmath>      // exp, log
#include <cstdint>    // int64_t

#include "tinyscale/compute/softmax.hpp"
#include "tinyscale/tensor/arithmetic.hpp"
#include "tinyscale/tensor/create.hpp"

namespace tinyscale {

// Sum of all elements, a tensor of shape [].
inline Tensor sum(const Tensor& x) {
  const detail::OpScope scope;
  double total = 0;
  const float* in = x.data();
  for (std::int64_t i = 0; i < x.count(); ++i) {
    total += static_cast<double>(in[i]);
  }
  Tensor y = full(Shape{}, static_cast<float>(total));
  const double n = static_cast<double>(x.count());
  scope.done("sum", x.shape(), {n}, {1.0}, 0, n);
  if (detail::tracked({&x})) {
    detail::attach(y, "sum", {&x}, [sx = x.slot()](const Tensor& dy) {
      detail::add_grad(sx, full(sx->shape, dy.item()));
    });
  }
  return y;
}

// Mean of all elements, a tensor of shape [].
inline Tensor mean(const Tensor& x) {
  if (x.count() == 0) {
    throw Error(detail::cat("mean: the tensor has no elements, shape ", x.shape().text()));
  }
  return scale(sum(x), 1.0f / static_cast<float>(x.count()));
}

// Sum over one dimension, which disappears.
inline Tensor sum(const Tensor& x, int dim) {
  const detail::OpScope scope;
  if (dim < -x.dims() || dim >= x.dims()) {
    throw Error(detail::cat("sum: dimension ", dim, " is outside shape ", x.shape().text()));
  }
  const int axis = dim < 0 ? dim + x.dims() : dim;
  Shape kept;
  Shape result;
  for (int i = 0; i < x.dims(); ++i) {
    kept.push_back(i == axis ? 1 : x.dim(i));
    if (i != axis) {
      result.push_back(x.dim(i));
    }
  }
  Tensor y(result, detail::sum_to(x.detach(), kept).storage());
  if (x.dim(axis) == 1) {  // sum_to returns x itself
    y = y.clone();
  }
  const double n = static_cast<double>(x.count());
  scope.done("sum", x.shape(), {n}, {static_cast<double>(y.count())}, 0, n);
  if (detail::tracked({&x})) {
    detail::attach(y, "sum", {&x}, [kept, sx = x.slot()](const Tensor& dy) {
      const Tensor rows(kept, dy.storage());
      detail::add_grad(sx,
                       detail::arithmetic(detail::Arithmetic::add, "add", zeros(sx->shape), rows));
    });
  }
  return y;
}

namespace detail {

inline void check_last_dim(const char* op, const Tensor& x) {
  if (x.dims() < 1 || x.dim(-1) < 1) {
    throw Error(cat(op, ": shape ", x.shape().text(), " has no last dimension to work along"));
  }
}

}  // namespace detail

// exp(x) / sum(exp(x)) along the last dimension.
inline Tensor softmax(const Tensor& x) {
  detail::check_last_dim("softmax", x);
  const detail::OpScope scope;
  const std::int64_t columns = x.dim(-1);
  const std::int64_t rows = x.count() / columns;
  Tensor y(x.shape());
  kernel::softmax_forward(rows, columns, x.data(), y.data());
  scope.done_unary("softmax", "softmax", x.shape());
  if (detail::tracked({&x})) {
    detail::attach(
        y, "softmax", {&x}, [rows, columns, ky = detail::Kept(y), sx = x.slot()](const Tensor& dy) {
          const detail::OpScope backward;
          kernel::softmax_backward(rows, columns, ky.data(), dy.data(), detail::grad_buffer(sx));
          backward.done_unary("softmax backward", "softmax", dy.shape(), &VectorCost::backward);
        });
  }
  return y;
}

// log(softmax(x)) along the last dimension.
inline Tensor log_softmax(const Tensor& x) {
  detail::check_last_dim("log_softmax", x);
  const detail::OpScope scope;
  const std::int64_t columns = x.dim(-1);
  Tensor y(x.shape());
  for (std::int64_t first = 0; first < x.count(); first += columns) {
    const float* in = x.data() + first;
    const float top = *std::max_element(in, in + columns);
    double total = 0;
    for (std::int64_t j = 0; j < columns; ++j) {
      total += std::exp(static_cast<double>(in[j] - top));
    }
    const float shift = top + static_cast<float>(std::log(total));
    for (std::int64_t j = 0; j < columns; ++j) {
      y.data()[first + j] = in[j] - shift;
    }
  }
  scope.done_unary("log_softmax", "log_softmax", x.shape());
  if (detail::tracked({&x})) {
    detail::attach(y, "log_softmax", {&x},
                   [columns, ky = detail::Kept(y), sx = x.slot()](const Tensor& dy) {
                     float* dx = detail::grad_buffer(sx);
                     for (std::int64_t first = 0; first < dy.count(); first += columns) {
                       double total = 0;
                       for (std::int64_t j = 0; j < columns; ++j) {
                         total += static_cast<double>(dy.data()[first + j]);
                       }
                       for (std::int64_t j = first; j < first + columns; ++j) {
                         dx[j] += dy.data()[j] - static_cast<float>(total) * std::exp(ky.data()[j]);
                       }
                     }
                   });
  }
  return y;
}

}  // namespace tinyscale
