#pragma once
// Choosing numbers: comparisons (1 where true, else 0), where, maxima of two, rows and elements by
// number, and writing in place where no gradient needs what was there.

#include <cmath>    // fabs, pow
#include <cstdint>  // int32_t
#include <cstdlib>  // abs
#include <limits>   // numeric_limits
#include <vector>   // vector

#include "tinyscale/tensor/tokens.hpp"
#include "tinyscale/tensor/views.hpp"

namespace tinyscale {

// 1 where the comparison holds, else 0; a NaN compares to nothing. They carry no gradient.
inline Tensor less(const Tensor& a, const Tensor& b) {
  return detail::binary(detail::Arithmetic::less, "less", a, b);
}
inline Tensor greater(const Tensor& a, const Tensor& b) {
  detail::broadcast_shape("greater", a.shape(), b.shape());
  return less(b, a);
}
inline Tensor equal(const Tensor& a, const Tensor& b) {
  return detail::binary(detail::Arithmetic::equal, "equal", a, b);
}

// Ones on the diagonal, [n, n].
inline Tensor eye(Dim n) {
  const Tensor places = arange(n);
  return equal(reshape(places, {n, 1}), places);
}

// Whether every |a - b| <= absolute + relative |b|; shapes are matched from the right. Infinite
// numbers are close to their equals, a NaN to nothing.
inline bool allclose(const Tensor& a, const Tensor& b, double relative = 1e-5,
                     double absolute = 1e-8) {
  const detail::Walk plan = detail::walk("allclose", a, b);
  if (!detail::is_finite(relative) || !detail::is_finite(absolute) || relative < 0 ||
      absolute < 0) {
    detail::fail({"allclose: tolerances ", relative, " and ", absolute,
                  "; finite numbers from 0 are right"});
  }
  const float *const from_a = a.origin(), *const from_b = b.origin();
  bool close = true;
  plan.rows([&](std::int64_t, std::int64_t at_a, std::int64_t at_b) {
    for (std::int64_t i = 0; close && i < plan.columns(); ++i) {
      const double x = static_cast<double>(from_a[at_a + i * plan.step_a()]);
      const double y = static_cast<double>(from_b[at_b + i * plan.step_b()]);
      const bool finite = detail::is_finite(x) && detail::is_finite(y);
      close = finite ? std::fabs(x - y) <= absolute + relative * std::fabs(y)
                     : !detail::is_nan(x) && !detail::is_nan(y) && x == y;
    }
  });
  return close;
}

namespace detail {

// y = a where the condition is not 0, both in steps.
inline void choose_row(std::int64_t n, const float* condition, std::int64_t step_c, const float* a,
                       std::int64_t step_a, float* y) {
  if (step_c == 1 && step_a == 1) {
    return kernels::choose(n, condition, a, y);
  }
  RowBlocks from_c(n, condition, step_c), from_a(n, a, step_a);
  for (std::int64_t begin = 0; begin < n; begin += RowBlocks::most) {
    const std::int64_t m = std::min(RowBlocks::most, n - begin);
    kernels::choose(m, from_c.at(begin, m), from_a.at(begin, m), y + begin);
  }
}

// dy to a where `first` is not 0, else to b.
struct WhereGradient {
  Tensor first;
  Slot a, b;
  void operator()(const Tensor& dy) const;
};

}  // namespace detail

// a where the condition is not 0, else b; shapes are matched from the right.
inline Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  const Shape shape = detail::broadcast_shape(
      "where", detail::broadcast_shape("where", condition.shape(), a.shape()), b.shape());
  if (detail::recording()) {
    return detail::record(Op::where, {&condition, &a, &b}, shape);
  }
  const detail::OpScope scope;
  const float *const c = condition.origin(), *const from = a.origin();
  Tensor y = broadcast_to(b.detach(), shape).copied();
  const detail::Walk plan(shape,
                          detail::broadcast_steps(condition.shape(), condition.steps(), shape),
                          detail::broadcast_steps(a.shape(), a.steps(), shape));
  plan.rows([&](std::int64_t first, std::int64_t at_c, std::int64_t at_a) {
    detail::choose_row(plan.columns(), c + at_c, plan.step_a(), from + at_a, plan.step_b(),
                       y.data() + first);
  });
  scope.done_priced("where", "where", shape, &VectorCost::forward,
                    {condition.count(), a.count(), b.count()}, {shape.count()});
  if (detail::tracked({&a, &b})) {
    detail::attach(y, "where", {&a, &b},
                   detail::WhereGradient{condition.detach().copied(), a.slot(), b.slot()});
  }
  return y;
}

inline void detail::WhereGradient::operator()(const Tensor& dy) const {
  const Tensor zero = zeros(Shape{});
  if (a) {
    add_grad_to(a, where(first, dy, zero));
  }
  if (b) {
    add_grad_to(b, where(first, zero, dy));
  }
}

// x with `value` where the mask is not 0.
inline Tensor masked_fill(const Tensor& x, const Tensor& mask, float value) {
  detail::broadcast_shape("masked_fill", x.shape(), mask.shape());
  return where(mask, full(Shape{}, value), x);
}

// The larger of two (NaN if one is NaN); of equal ones b, which gets the gradient.
inline Tensor maximum(const Tensor& a, const Tensor& b) {
  Tensor y = detail::binary(detail::Arithmetic::maximum, "maximum", a, b);
  if (!detail::recording() && detail::tracked({&a, &b})) {
    const Tensor first = detail::arithmetic(detail::Arithmetic::larger, "maximum", a, b);
    detail::attach(y, "maximum", {&a, &b}, detail::WhereGradient{first, a.slot(), b.slot()});
  }
  return y;
}
inline Tensor minimum(const Tensor& a, const Tensor& b) {
  detail::broadcast_shape("minimum", a.shape(), b.shape());
  return neg(maximum(neg(a), neg(b)));
}

// x between two ends, with the gradient of what lies between them or on one; a NaN stays.
inline Tensor clamp(const Tensor& x, float low, float high) {
  if (!(low <= high)) {
    detail::fail({"clamp: numbers from ", static_cast<double>(low), " to ",
                  static_cast<double>(high), "; the lower end first is right"});
  }
  return minimum(full(Shape{}, high), maximum(full(Shape{}, low), x));
}

namespace detail {

// y = x^exponent: squares and cubes as products, others in double.
inline void raise(float exponent, const Tensor& x, Tensor& y) {
  if (exponent == 2.0f) {
    return kernels::square_forward(x.count(), x.data(), y.data());
  }
  if (exponent == 3.0f) {
    return kernels::cube_forward(x.count(), x.data(), y.data());
  }
  const float* const from = x.data();
  float* const numbers = y.data();
  for (std::int64_t i = 0; i < y.count(); ++i) {
    numbers[i] =
        static_cast<float>(std::pow(static_cast<double>(from[i]), static_cast<double>(exponent)));
  }
}

}  // namespace detail

// x^exponent, element by element.
inline Tensor pow(const Tensor& x, float exponent) {
  if (detail::recording()) {
    return detail::record(Op::pow, {&x}, x.shape(), {static_cast<double>(exponent)});
  }
  if (!x.is_contiguous()) {
    return pow(contiguous(x), exponent);
  }
  const detail::OpScope scope;
  Tensor y(x.shape());
  detail::raise(exponent, x, y);
  scope.done_unary("pow", "pow", x.shape());
  if (detail::tracked({&x})) {
    detail::attach(
        y, "pow", {&x}, [exponent, kx = detail::Kept(x), sx = x.slot()](const Tensor& dy) {
          const bool constant = !(exponent < 0 || exponent > 0);  // also where x is 0
          detail::add_grad(
              sx, constant ? zeros(dy.shape()) : dy * scale(pow(kx, exponent - 1.0f), exponent));
        });
  }
  return y;
}

namespace detail {

// Throws the first id that is none of dimension d, which the caller calls `dim`.
inline void check_ids(const char* op, const Tensor& x, int d, int dim,
                      const std::vector<std::int32_t>& ids) {
  const auto n = static_cast<std::int64_t>(ids.size());
  const std::int64_t bad = kernels::first_outside(n, ids.data(), x.dim(d));
  if (bad < n) {
    fail({op, ": id ", ids[static_cast<std::size_t>(bad)], " at position ", bad,
          " is outside dimension ", dim, " of shape ", x.shape().text()});
  }
}

}  // namespace detail

// Row ids[i] of dimension `dim` as row i of the result.
inline Tensor index_select(const Tensor& x, int dim, const std::vector<std::int32_t>& ids) {
  const int d = detail::check_dim("index_select", x, dim);
  detail::check_ids("index_select", x, d, dim, ids);
  const Tensor front = transpose(x, 0, d);
  const std::int64_t rows = front.dim(0);
  const std::int64_t inner = x.count() > 0 ? detail::inner_count(front.shape(), 0) : 0;
  Shape shape = front.shape();
  shape.set(0, ids.size());
  const Tensor chosen = embedding(reshape(front, {rows, inner}), ids, {ids.size()});
  return transpose(reshape(chosen, shape), 0, d);
}

namespace detail {

// Where element i of a gather along dimension `dim` stands among all of a shape's elements.
inline std::vector<std::int32_t> gather_places(const char* op, const Tensor& x, int dim,
                                               const std::vector<std::int32_t>& ids,
                                               const Shape& shape) {
  const int d = check_dim(op, x, dim);
  if (x.count() > std::int64_t{1} << 31) {
    fail({op, ": x is ", x.shape().text(), ", ", x.count(),
          " elements; places among at most 2^31 are counted in 32 bits"});
  }
  bool fits = shape.size() == x.dims() && static_cast<std::int64_t>(ids.size()) == shape.count();
  for (int i = 0; fits && i < x.dims(); ++i) {
    fits = i == d || shape[i] <= x.dim(i);
  }
  if (!fits) {
    fail({op, ": x is ", x.shape().text(), ", ", ids.size(), " ids for shape ", shape.text(),
          "; as many dimensions, none larger but dimension ", dim,
          ", and one id an element are right"});
  }
  check_ids(op, x, d, dim, ids);
  std::vector<std::int32_t> places(ids.size());
  Strides steps = row_major(x.shape());
  const auto step = static_cast<std::int32_t>(steps.of[d]);
  steps.of[d] = 0;
  const Walk plan(shape, steps, steps);
  plan.rows([&](std::int64_t first, std::int64_t at, std::int64_t) {
    const std::int32_t* const id = ids.data() + first;
    std::int32_t* const place = places.data() + first;
    kernels::places_of(plan.columns(), id, step, static_cast<std::int32_t>(at),
                       static_cast<std::int32_t>(plan.step_a()), place);
  });
  return places;
}

}  // namespace detail

// y[i, j, k] = x[i, id, k] for dim 1 with id = ids[i, j, k]; `shape` is that of ids and of y.
inline Tensor gather(const Tensor& x, int dim, const std::vector<std::int32_t>& ids,
                     const Shape& shape) {
  const auto places = detail::gather_places("gather", x, dim, ids, shape);
  return reshape(embedding(reshape(x, {x.count(), 1}), places, {shape.count()}), shape);
}

// x with y[i, j, k] added at x[i, id, k] for dim 1 with id = ids[i, j, k]: gather's transpose.
inline Tensor scatter_add(const Tensor& x, int dim, const std::vector<std::int32_t>& ids,
                          const Tensor& y) {
  const auto places = detail::gather_places("scatter_add", x, dim, ids, y.shape());
  if (detail::recording()) {
    const Tensor where_to = detail::thread_recorder()->ids(places, {y.count()});
    const Tensor flat = reshape(y, {y.count(), 1});
    const Tensor added = detail::record(Op::scatter_add, {&where_to, &flat}, {x.count(), 1},
                                        {static_cast<double>(x.count())});
    return x + reshape(added, x.shape());
  }
  const detail::OpScope scope;
  Tensor out = x.copied();
  const Tensor from = contiguous(y.detach());
  kernels::add_rows(from.count(), 1, from.data(), places.data(), out.data());
  scope.done_priced("scatter_add", "add", y.shape(), &VectorCost::forward,
                    {x.count(), y.count(), y.count()}, {x.count()});  // ids take four bytes too
  if (detail::tracked({&x, &y})) {
    detail::attach(out, "scatter_add", {&x, &y},
                   [places, n = y.count(), sx = x.slot(), sy = y.slot()](const Tensor& dy) {
                     if (sy) {
                       const Tensor all = reshape(dy, {dy.count(), 1});
                       detail::add_grad(sy, embedding(all, places, {n}));
                     }
                     if (sx) {
                       detail::add_grad(sx, dy);
                     }
                   });
  }
  return out;
}

namespace detail {

// Whether two elements of x may be the same number: a dimension steps no further than those with
// smaller steps reach. Views of slice, permute, reshape repeat none.
inline bool repeats(const Tensor& x) {
  std::int64_t reach = 0;  // of the dimensions before, in the order of their steps
  for (std::int64_t last = -1; !x.is_contiguous();) {
    std::int64_t step = std::numeric_limits<std::int64_t>::max(), size = 0;
    for (int i = 0; i < x.dims(); ++i) {
      const std::int64_t next = std::abs(x.stride(i));
      if (x.dim(i) > 1 && next > last && next <= step) {
        size = next == step ? 0 : x.dim(i);  // two with one step
        step = next;
      }
    }
    if (step == std::numeric_limits<std::int64_t>::max()) {
      break;
    }
    if (step <= reach || size == 0) {
      return true;
    }
    reach += (size - 1) * step;
    last = step;
  }
  return false;
}

// x = x op from, where nothing but x itself would notice.
inline const Tensor& write(Arithmetic op, const char* name, const Tensor& x, const Tensor& from) {
  check_defined(x);
  check_defined(from);
  if (broadcast_shape(name, x.shape(), from.shape()) != x.shape()) {
    fail({name, ": shape ", from.shape().text(), " cannot fill ", x.shape().text(),
          "; from the right, sizes must be equal or 1"});
  }
  if (context().no_grad == 0 && (x.requires_grad() || from.requires_grad())) {
    fail({name, ": the tensor written or read has a gradient, which writing in place ",
          "would lose; write under a NoGrad, or use an op with a result of its own"});
  }
  if (recording()) {
    const Tensor value = op == Arithmetic::second
                             ? thread_recorder()->same(broadcast_to(from, x.shape()))
                             : record(recorded_op(op), {&x, &from}, x.shape());
    thread_recorder()->write(name, x, value);
    return x;
  }
  if (x.storage()->block().kept.load() > 0) {
    fail({name, ": a backward pass that is still to come needs the numbers of this ",
          x.shape().text(), " tensor; write after it, or to a clone()"});
  }
  if (repeats(x)) {
    fail({name, ": some of the ", x.count(), " elements of this ", x.shape().text(),
          " view are the same number; write to a clone()"});
  }
  const OpScope scope;
  const bool shared = &x.storage()->block() == &from.storage()->block();
  apply_in_place(op, name, x, shared ? from.copied() : from);
  const std::int64_t n = x.count();
  if (op == Arithmetic::second) {
    scope.done_priced(name, "copy", x.shape(), &VectorCost::forward, {from.count()}, {n});
  } else {
    scope.done_priced(name, "add", x.shape(), &VectorCost::forward, {n, from.count()}, {n});
  }
  return x;
}

}  // namespace detail

// In place. They throw when a backward pass needs the old numbers, or a view repeats one.
inline const Tensor& add_(const Tensor& x, const Tensor& y) {
  return detail::write(detail::Arithmetic::add, "add_", x, y);
}
inline const Tensor& sub_(const Tensor& x, const Tensor& y) {
  return detail::write(detail::Arithmetic::sub, "sub_", x, y);
}
inline const Tensor& mul_(const Tensor& x, const Tensor& y) {
  return detail::write(detail::Arithmetic::mul, "mul_", x, y);
}
inline const Tensor& copy_(const Tensor& x, const Tensor& y) {
  return detail::write(detail::Arithmetic::second, "copy_", x, y);
}
inline const Tensor& scale_(const Tensor& x, float factor) {
  return detail::write(detail::Arithmetic::mul, "scale_", x, full(Shape{}, factor));
}
inline const Tensor& fill_(const Tensor& x, float value) {
  return detail::write(detail::Arithmetic::second, "fill_", x, full(Shape{}, value));
}

}  // namespace tinyscale
