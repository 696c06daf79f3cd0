#pragma once
// Sums, means, maxima and softmax. Sums are gathered in double, whole rows 32 at a time in float,
// in an order that is always the same.

#include <algorithm>  // min
#include <cstdint>    // int64_t
#include <vector>     // vector

#include "tinyscale/compute/largest.hpp"
#include "tinyscale/compute/log_softmax.hpp"
#include "tinyscale/compute/softmax.hpp"
#include "tinyscale/tensor/arithmetic.hpp"
#include "tinyscale/tensor/create.hpp"
#include "tinyscale/tensor/views.hpp"

namespace tinyscale {

// Whether a dimension that was reduced stays, with size 1.
enum class KeepDim { no, yes };

namespace detail {

// The shape of x with size 1 in the given dimensions; `rest` is the shape without them.
inline Shape reduced_shape(const char* op, const Tensor& x, const List<int>& dims, Shape& rest) {
  Shape kept = x.shape();
  unsigned gone = 0;
  for (const int dim : dims) {
    const int d = check_dim(op, x, dim);
    kept.set(d, 1);
    gone |= 1U << d;
  }
  rest = Shape();
  for (int i = 0; i < x.dims(); ++i) {
    if ((gone >> i & 1U) == 0) {
      rest.push_back(x.dim(i));
    }
  }
  return kept;
}

// The dimensions from the front, each once, in rising order.
inline List<double> dims_of(const Shape& whole, const List<int>& dims) {
  List<double> out;
  for (int i = 0; i < whole.size(); ++i) {
    bool found = false;
    for (const int dim : dims) {
      found = found || dim == i || dim + whole.size() == i;
    }
    if (found) {
      out.push_back(static_cast<double>(i));
    }
  }
  return out;
}

inline List<int> all_dims(const Tensor& x) {
  List<int> all;
  for (int i = 0; i < x.dims(); ++i) {
    all.push_back(i);
  }
  return all;
}

}  // namespace detail

// Sum over the given dimensions.
inline Tensor sum(const Tensor& x, const List<int>& dims, KeepDim keep = KeepDim::no) {
  detail::check_defined(x);
  Shape rest;
  const Shape kept = detail::reduced_shape("sum", x, dims, rest);
  if (detail::recording()) {
    const Tensor y = detail::record(Op::sum, {&x}, kept, detail::dims_of(x.shape(), dims));
    return keep == KeepDim::yes ? y : reshape(y, rest);
  }
  const detail::OpScope scope;
  Tensor y = detail::sum_to(x.detach(), kept);
  y = kept == x.shape() ? y.copied() : y;
  y = Tensor(keep == KeepDim::yes ? kept : rest, y.storage());
  const double n = static_cast<double>(x.count());
  scope.done("sum", x.shape(), {n}, {static_cast<double>(y.count())}, 0, n);
  if (detail::tracked({&x})) {
    detail::attach(y, "sum", {&x}, [kept, sx = x.slot()](const Tensor& dy) {
      const detail::Strides steps =
          detail::broadcast_steps(kept, detail::row_major(kept), sx->shape);
      detail::add_grad(sx, dy.as_strided(sx->shape, steps, 0));
    });
  }
  return y;
}

// Sum over one dimension, which disappears.
inline Tensor sum(const Tensor& x, int dim, KeepDim keep = KeepDim::no) {
  return sum(x, List<int>{dim}, keep);
}

// Sum of all elements, a tensor of shape [].
inline Tensor sum(const Tensor& x) { return sum(x, detail::all_dims(x)); }

// Mean over the given dimensions, over one, or of all elements.
inline Tensor mean(const Tensor& x, const List<int>& dims, KeepDim keep = KeepDim::no) {
  Shape rest;
  detail::reduced_shape("mean", x, dims, rest);
  const Tensor total = sum(x, dims, keep);
  if (x.count() == 0) {
    detail::fail({"mean: the tensor has no elements, shape ", x.shape().text()});
  }
  return scale(total, static_cast<float>(total.count()) / static_cast<float>(x.count()));
}
inline Tensor mean(const Tensor& x, int dim, KeepDim keep = KeepDim::no) {
  return mean(x, List<int>{dim}, keep);
}
inline Tensor mean(const Tensor& x) { return mean(x, detail::all_dims(x)); }

namespace detail {

// The dimension from the front, which must have a number.
inline int check_filled(const char* op, const Tensor& x, int dim) {
  const int d = check_dim(op, x, dim);
  if (x.dim(d) == 0) {
    fail({op, ": dimension ", dim, " of shape ", x.shape(), " is empty"});
  }
  return d;
}
inline void check_filled(const char* op, const Tensor& x) {
  check_defined(x);
  if (x.count() == 0) {
    fail({op, ": the tensor has no elements, shape ", x.shape()});
  }
}

// The largest number along dimension d and where it is (the first of equal ones, a NaN before all);
// `kept` is the shape of x with size 1 there.
inline void find_max(const Tensor& x, int d, const Shape& kept, float* most, std::int64_t* place) {
  const std::int64_t step = x.stride(d);
  const std::int64_t n = step == 0 ? 1 : x.dim(d);  // a number repeated is one
  const Walk plan(kept, row_major(kept), x.steps());
  const float* const numbers = x.origin();
  const bool down = plan.step_b() == 1 && plan.columns() >= 8 && n < std::int64_t{1} << 31;
  plan.rows([&](std::int64_t first, std::int64_t, std::int64_t at) {
    if (down) {
      kernels::largest_down(n, plan.columns(), step, numbers + at, most + first, place + first);
      return;
    }
    for (std::int64_t j = first; j < first + plan.columns(); ++j) {
      const float* const in = numbers + at + (j - first) * plan.step_b();
      place[j] = kernels::largest(n, in, step);
      most[j] = in[place[j] * step];
    }
  });
}

// As many places of a dimension f32 can name.
constexpr std::int64_t most_places = std::int64_t{1} << 24;

}  // namespace detail

// The largest number along one dimension (NaN if there is one); the first of equal ones gets the
// gradient.
inline Tensor max(const Tensor& x, int dim, KeepDim keep = KeepDim::no) {
  Shape rest;
  const int d = detail::check_filled("max", x, dim);
  const Shape kept = detail::reduced_shape("max", x, {dim}, rest);
  if (detail::recording() && x.dim(d) > detail::most_places) {  // whose gradient needs the place
    std::vector<Tensor> parts;
    for (std::int64_t first = 0; first < x.dim(d); first += detail::most_places) {
      const std::int64_t end = std::min(x.dim(d), first + detail::most_places);
      parts.push_back(max(slice(x, d, first, end), d, KeepDim::yes));
    }
    return max(concat(parts, d), d, keep);
  }
  if (detail::recording()) {
    const Tensor y = detail::record(Op::max, {&x}, kept, {static_cast<double>(d)});
    return keep == KeepDim::yes ? y : reshape(y, rest);
  }
  const detail::OpScope scope;
  Tensor y(keep == KeepDim::yes ? kept : rest);
  List<std::int64_t> place(static_cast<std::size_t>(y.count()));  // along the dimension
  detail::find_max(x, d, kept, y.data(), place.data());
  const double elements = static_cast<double>(x.count());
  scope.done("max", x.shape(), {elements}, {static_cast<double>(y.count())}, 0, elements);
  if (detail::tracked({&x})) {
    detail::attach(y, "max", {&x}, [kept, d, place, sx = x.slot()](const Tensor& dy) {
      const detail::OpScope backward;
      float* const dx = detail::grad_buffer(sx);
      const detail::Strides steps = detail::row_major(sx->shape);
      const detail::Walk rows(kept, detail::row_major(kept), steps);
      rows.rows([&](std::int64_t first, std::int64_t, std::int64_t at) {
        for (std::int64_t j = 0; j < rows.columns(); ++j) {
          const std::int64_t row = place[static_cast<std::size_t>(first + j)];
          dx[at + j * rows.step_b() + row * steps.of[d]] += dy.data()[first + j];
        }
      });
      const std::int64_t m = dy.count();  // places take eight bytes
      backward.done_priced("max backward", "max", dy.shape(), &VectorCost::backward, {m, 2 * m},
                           {m});
    });
  }
  return y;
}

namespace detail {

// x without what a view repeats: the first of equal ones.
inline Tensor without_repeats(Tensor x) {
  for (int i = 0; i < x.dims() && !recording(); ++i) {
    x = x.dim(i) > 1 && x.stride(i) == 0 ? slice(x, i, 0, 1) : x;
  }
  return x;
}

}  // namespace detail

// The largest number of all, a tensor of shape [].
inline Tensor max(const Tensor& x) {
  detail::check_filled("max", x);
  const Tensor once = detail::without_repeats(x);
  return max(reshape(once, {once.count()}), 0);
}

// The smallest, in the same way.
inline Tensor min(const Tensor& x, int dim, KeepDim keep = KeepDim::no) {
  detail::check_filled("min", x, dim);
  return neg(max(neg(x), dim, keep));
}
inline Tensor min(const Tensor& x) {
  detail::check_filled("min", x);
  return neg(max(neg(detail::without_repeats(x))));
}

// The place of the largest number along one dimension: the first of equal ones, or of NaNs.
inline Tensor argmax(const Tensor& x, int dim, KeepDim keep = KeepDim::no) {
  Shape rest;
  const int d = detail::check_filled("argmax", x, dim);
  const Shape kept = detail::reduced_shape("argmax", x, {dim}, rest);
  if (x.dim(d) > detail::most_places) {
    detail::fail({"argmax: dimension ", dim, " of shape ", x.shape().text(),
                  " is longer than 16777216, beyond which f32 does not hold every place"});
  }
  if (detail::recording()) {
    const Tensor y = detail::record(Op::argmax, {&x}, kept, {static_cast<double>(d)});
    return keep == KeepDim::yes ? y : reshape(y, rest);
  }
  const detail::OpScope scope;
  Tensor y(keep == KeepDim::yes ? kept : rest);
  List<std::int64_t> place(static_cast<std::size_t>(y.count()));
  detail::find_max(x, d, kept, y.data(), place.data());
  for (std::int64_t i = 0; i < y.count(); ++i) {
    y.data()[i] = static_cast<float>(place[static_cast<std::size_t>(i)]);
  }
  const double elements = static_cast<double>(x.count());
  scope.done("argmax", x.shape(), {elements}, {static_cast<double>(y.count())}, 0, elements);
  return y;
}

namespace detail {

inline void check_last_dim(const char* op, const Tensor& x) {
  if (x.dims() < 1 || x.dim(-1) < 1) {
    fail({op, ": shape ", x.shape().text(), " has no last dimension to work along"});
  }
}

}  // namespace detail

// exp(x) / sum(exp(x)) along the last dimension, or a given one.
inline Tensor softmax(const Tensor& x) {
  detail::check_last_dim("softmax", x);
  if (detail::recording()) {
    return detail::record(Op::softmax, {&x}, x.shape());
  }
  if (!x.is_contiguous()) {
    return softmax(contiguous(x));
  }
  const detail::OpScope scope;
  const std::int64_t columns = x.dim(-1);
  const std::int64_t rows = x.count() / columns;
  Tensor y(x.shape());
  kernels::softmax_forward(rows, columns, x.data(), y.data());
  scope.done_unary("softmax", "softmax", x.shape());
  if (detail::tracked({&x})) {
    detail::attach(
        y, "softmax", {&x}, [rows, columns, ky = detail::Kept(y), sx = x.slot()](const Tensor& dy) {
          const detail::OpScope backward;
          float beta = 0;
          float* const dx = detail::grad_buffer(sx, beta);
          kernels::softmax_backward(rows, columns, ky.data(), dy.data(), dx, beta);
          backward.done_unary("softmax backward", "softmax", dy.shape(), &VectorCost::backward);
        });
  }
  return y;
}

inline Tensor softmax(const Tensor& x, int dim) {
  const int d = detail::check_filled("softmax", x, dim);
  return transpose(softmax(transpose(x, d, -1)), d, -1);
}

// log(softmax(x)) along the last dimension, or a given one.
inline Tensor log_softmax(const Tensor& x) {
  detail::check_last_dim("log_softmax", x);
  if (detail::recording()) {
    return detail::record(Op::log_softmax, {&x}, x.shape());
  }
  if (!x.is_contiguous()) {
    return log_softmax(contiguous(x));
  }
  const detail::OpScope scope;
  const std::int64_t columns = x.dim(-1);
  Tensor y(x.shape());
  const std::int64_t rows = x.count() / columns;
  kernels::log_softmax_forward(rows, columns, x.data(), y.data());
  scope.done_unary("log_softmax", "log_softmax", x.shape());
  if (detail::tracked({&x})) {
    detail::attach(y, "log_softmax", {&x},
                   [rows, columns, ky = detail::Kept(y), sx = x.slot()](const Tensor& dy) {
                     const detail::OpScope backward;
                     float beta = 0;
                     float* const dx = detail::grad_buffer(sx, beta);
                     kernels::log_softmax_backward(rows, columns, ky.data(), dy.data(), dx, beta);
                     backward.done_unary("log_softmax backward", "log_softmax", dy.shape(),
                                         &VectorCost::backward);
                   });
  }
  return y;
}
inline Tensor log_softmax(const Tensor& x, int dim) {
  const int d = detail::check_filled("log_softmax", x, dim);
  return transpose(log_softmax(transpose(x, d, -1)), d, -1);
}

}  // namespace tinyscale
