#pragma once
// Moving numbers about. Views share them: reshape, permute, transpose, slice, broadcast_to,
// squeeze, unsqueeze, split. Joining copies them: concat, stack.

#include <algorithm>         // min
#include <cstdint>           // int64_t
#include <initializer_list>  // sizes
#include <limits>            // numeric_limits
#include <vector>            // vector

#include "tinyscale/base/list.hpp"
#include "tinyscale/tensor/arithmetic.hpp"
#include "tinyscale/tensor/create.hpp"

namespace tinyscale {

namespace detail {

inline int check_dim(const char* op, const Tensor& x, int dim) {
  if (dim < -x.dims() || dim >= x.dims()) {
    fail({op, ": dimension ", dim, " is outside shape ", x.shape().text()});
  }
  return dim < 0 ? dim + x.dims() : dim;
}

// Elements in one step of dimension `dim`.
inline std::int64_t inner_count(const Shape& shape, int dim) {
  std::int64_t n = 1;
  for (int i = dim + 1; i < shape.size(); ++i) {
    n *= shape[i];
  }
  return n;
}

inline void record_copy(const OpScope& scope, const char* name, const Tensor& y) {
  const double n = static_cast<double>(y.count());
  scope.done(name, y.shape(), {n}, {n}, 0, 0);
}

// Joins a view to the graph: its gradient is added to the same view of x's gradient.
template <class View>
inline Tensor attach_view(Tensor y, const char* name, const Tensor& x, View view) {
  if (tracked({&x})) {
    attach(y, name, {&x}, [view, sx = x.slot()](const Tensor& dy) {
      grad_buffer(sx);
      apply_in_place(Arithmetic::add, "add", view(Tensor(sx->shape, sx->grad)), dy);
    });
  }
  return y;
}

// The steps of x under another shape of as many elements, or false when only a copy has them.
inline bool steps_of_reshape(const Tensor& x, const Shape& shape, Strides& out) {
  const Walk runs(x.shape(), x.steps(), x.steps());
  std::int64_t left = 0;  // of the elements of a run
  std::int64_t step = 0;
  int run = runs.shape.size();
  for (int i = shape.size() - 1; i >= 0; --i) {
    if (shape[i] == 1) {
      continue;
    }
    if (left <= 1) {
      --run;
      left = runs.shape[run];
      step = runs.a.of[run];
    }
    if (left % shape[i] != 0) {
      return false;
    }
    out.of[i] = step;
    step *= shape[i];
    left /= shape[i];
  }
  return true;
}

}  // namespace detail

// The same numbers under another shape of the same count; copied only where a view's order asks.
inline Tensor reshape(const Tensor& x, const Shape& shape) {
  detail::check_defined(x);
  if (shape.count() != x.count()) {
    detail::fail({"reshape: shape ", x.shape().text(), " has ", x.count(), " elements, shape ",
                  shape.text(), " needs ", shape.count()});
  }
  if (detail::recording()) {
    return detail::record(Op::reshape, {&x}, shape, detail::as_numbers(shape));
  }
  detail::Strides steps = detail::row_major(shape);
  if (!x.is_contiguous() && !detail::steps_of_reshape(x, shape, steps)) {
    return reshape(copy(x), shape);
  }
  Tensor y = x.as_strided(shape, steps, 0);
  if (detail::tracked({&x})) {
    detail::attach(y, "reshape", {&x},
                   [sx = x.slot()](const Tensor& dy) { detail::add_grad(sx, dy); });
  }
  return y;
}

// The same of sizes in braces; one may be -1: what the others leave.
inline Tensor reshape(const Tensor& x, std::initializer_list<Dim> sizes) {
  detail::check_defined(x);
  Shape shape;
  int open = -1;
  for (const Dim& size : sizes) {
    const bool left = size.value == -1 && open < 0;
    open = left ? shape.size() : open;
    shape.push_back(left ? Dim(1) : size);
  }
  if (open >= 0) {
    const std::int64_t others = shape.count();
    if (others == 0 || x.count() % others != 0) {
      detail::fail({"reshape: shape ", x.shape(), " has ", x.count(), " elements, which sizes of ",
                    others, " together with a -1 in dimension ", open, " do not divide"});
    }
    shape.set(open, x.count() / others);
  }
  return reshape(x, shape);
}

// Dimension i of the result is dimension order[i] of x (a view).
inline Tensor permute(const Tensor& x, const List<int>& order) {
  const detail::Strides from = x.steps();
  detail::Strides steps;
  Shape shape;
  List<int> back(order.size());
  const bool as_many = static_cast<int>(order.size()) == x.dims();
  int seen = 0;
  for (const int dim : order) {
    const int d = detail::check_dim("permute", x, dim);
    if (!as_many) {
      continue;
    }
    back[static_cast<std::size_t>(d)] = shape.size();
    steps.of[shape.size()] = from.of[d];
    shape.push_back(x.dim(d));
    seen |= 1 << d;
  }
  if (!as_many || seen + 1 != 1 << x.dims()) {
    detail::fail({"permute: ", order.size(), " dimensions given for shape ", x.shape().text(),
                  "; each of its ", x.dims(), " once is right"});
  }
  if (detail::recording()) {
    List<int> from_front;
    for (const int dim : order) {
      from_front.push_back(dim < 0 ? dim + x.dims() : dim);
    }
    return detail::record(Op::permute, {&x}, shape, detail::as_numbers(from_front));
  }
  Tensor y = x.as_strided(shape, steps, 0);
  if (detail::tracked({&x})) {
    detail::attach(y, "permute", {&x}, [back, sx = x.slot()](const Tensor& dy) {
      detail::add_grad(sx, permute(dy, back));
    });
  }
  return y;
}

// Swaps two dimensions (a view).
inline Tensor transpose(const Tensor& x, int dim0, int dim1) {
  const int d0 = detail::check_dim("transpose", x, dim0);
  const int d1 = detail::check_dim("transpose", x, dim1);
  List<int> order;
  for (int i = 0; i < x.dims(); ++i) {
    order.push_back(i == d0 ? d1 : (i == d1 ? d0 : i));
  }
  return permute(x, order);
}

// Elements begin, begin + step, .. below end of one dimension (a view).
inline Tensor slice(const Tensor& x, int dim, Dim begin, Dim end, Dim step = 1) {
  const int d = detail::check_dim("slice", x, dim);
  if (begin.value < 0 || end.value < begin.value || end.value > x.dim(d) || step.value < 1) {
    detail::fail({"slice: ", begin.value, " to ", end.value, " of dimension ", dim,
                  step.value == 1 ? "" : detail::cat({" by ", step.value}), " is outside shape ",
                  x.shape().text()});
  }
  detail::Strides steps = x.steps();
  Shape shape = x.shape();
  shape.set(d, end.value == begin.value ? 0 : (end.value - begin.value - 1) / step.value + 1);
  if (detail::recording()) {
    return detail::record(
        Op::slice, {&x}, shape,
        detail::as_numbers(List<std::int64_t>{d, begin.value, end.value, step.value}));
  }
  const std::int64_t offset = shape.count() > 0 ? begin.value * steps.of[d] : 0;
  steps.of[d] *= shape[d] > 1 ? step.value : 1;  // a huge step over one element is none
  return detail::attach_view(
      x.as_strided(shape, steps, offset), "slice", x,
      [d, begin, end, step](const Tensor& g) { return slice(g, d, begin, end, step); });
}

// x repeated to fill a shape, dimensions matched from the right (a view with steps of 0).
inline Tensor broadcast_to(const Tensor& x, const Shape& shape) {
  detail::check_defined(x);
  if (detail::broadcast_shape("broadcast_to", x.shape(), shape) != shape) {
    detail::fail({"broadcast_to: shape ", x.shape().text(), " cannot fill ", shape.text(),
                  "; from the right, sizes must be equal or 1"});
  }
  if (detail::recording()) {
    return detail::record(Op::broadcast_to, {&x}, shape, detail::as_numbers(shape));
  }
  Tensor y = x.as_strided(shape, detail::broadcast_steps(x.shape(), x.steps(), shape), 0);
  if (detail::tracked({&x})) {
    detail::attach(y, "broadcast_to", {&x},
                   [sx = x.slot()](const Tensor& dy) { detail::add_grad_to(sx, dy); });
  }
  return y;
}

// A new dimension of size 1 before dimension `dim`; at the end for dims() or -1.
inline Tensor unsqueeze(const Tensor& x, int dim) {
  const int d = dim < 0 ? dim + x.dims() + 1 : dim;
  if (d < 0 || d > x.dims()) {
    detail::fail({"unsqueeze: dimension ", dim, " of shape ", x.shape().text(), "; -", x.dims() + 1,
                  " to ", x.dims(), " are right"});
  }
  Shape shape;
  for (int i = 0; i <= x.dims(); ++i) {
    if (i == d) {
      shape.push_back(1);
    }
    if (i < x.dims()) {
      shape.push_back(x.dim(i));
    }
  }
  return reshape(x, shape);
}

// Without dimension `dim`, which must be of size 1.
inline Tensor squeeze(const Tensor& x, int dim) {
  const int d = detail::check_dim("squeeze", x, dim);
  Shape shape;
  for (int i = 0; i < x.dims(); ++i) {
    if (i != d) {
      shape.push_back(x.dim(i));
    }
  }
  if (x.dim(d) != 1) {
    detail::fail({"squeeze: dimension ", dim, " of shape ", x.shape().text(), " is not of size 1"});
  }
  return reshape(x, shape);
}

// Parts of `size` along one dimension, the last one smaller where it does not divide (views).
inline std::vector<Tensor> split(const Tensor& x, Dim size, int dim) {
  const int d = detail::check_dim("split", x, dim);
  if (size.value < 1) {
    detail::fail({"split: parts of ", size.value, "; 1 or more is right"});
  }
  constexpr std::int64_t most = std::int64_t{1} << 20;  // tensors of 200 MB without a number
  if ((x.dim(d) - 1) / size.value >= most) {
    detail::fail({"split: parts of ", size.value, " along dimension ", dim, " of ",
                  x.shape().text(), " are ", (x.dim(d) - 1) / size.value + 1,
                  "; at most 2^20 are right"});
  }
  std::vector<Tensor> parts;
  for (std::int64_t i = 0, n = 0; i < x.dim(d); i += n) {
    n = std::min(x.dim(d) - i, size.value);
    parts.push_back(slice(x, d, i, i + n));
  }
  return parts;
}

// Tensors joined along one dimension (a copy); the other sizes must be equal.
inline Tensor concat(const std::vector<Tensor>& parts, int dim) {
  if (parts.empty()) {
    detail::fail({"concat: no tensors given; at least one is right"});
  }
  const int d = detail::check_dim("concat", parts[0], dim);
  const detail::OpScope scope;
  Shape shape = parts[0].shape();
  shape.set(d, 0);
  for (const Tensor& part : parts) {
    Shape same = part.shape();
    if (same.size() == shape.size()) {
      same.set(d, shape[d]);
    }
    if (same != shape) {
      detail::fail({"concat: shapes ", parts[0].shape().text(), " and ", part.shape().text(),
                    " differ outside dimension ", dim});
    }
    if (part.dim(d) > std::numeric_limits<std::int64_t>::max() - shape[d]) {
      detail::fail({"concat: ", shape[d], " and ", part.dim(d), " in dimension ", dim,
                    " are together more than 2^63 - 1"});
    }
    shape.set(d, shape[d] + part.dim(d));
  }
  if (detail::recording()) {
    List<const Tensor*> all;
    for (const Tensor& part : parts) {
      all.push_back(&part);
    }
    return detail::thread_recorder()->record(Op::concat, all.data(), all.size(), shape,
                                             {static_cast<double>(d)});
  }
  Tensor y(shape);
  std::int64_t end = 0;
  for (const Tensor& part : parts) {
    const Tensor place = slice(y, d, end, end + part.dim(d));
    detail::apply_in_place(detail::Arithmetic::second, "concat", place, part);
    end += part.dim(d);
  }
  detail::record_copy(scope, "concat", y);
  List<const Tensor*> inputs;
  List<detail::Slot> slots;
  List<std::int64_t> sizes;
  bool needed = false;
  for (const Tensor& part : parts) {
    inputs.push_back(&part);
    slots.push_back(part.slot());
    sizes.push_back(part.dim(d));
    needed = needed || detail::tracked({&part});
  }
  if (needed) {
    detail::attach(y, "concat", inputs.data(), inputs.size(), [slots, sizes, d](const Tensor& dy) {
      std::int64_t begin = 0;
      for (std::size_t i = 0; i < slots.size(); ++i) {
        if (slots[i]) {
          detail::add_grad(slots[i], slice(dy, d, begin, begin + sizes[i]));
        }
        begin += sizes[i];
      }
    });
  }
  return y;
}

// x in zeros along one dimension: its element i is element begin + i step of `size` (slice's
// transpose).
inline Tensor pad(const Tensor& x, int dim, Dim begin, Dim size, Dim step = 1) {
  const int d = detail::check_dim("pad", x, dim);
  const std::int64_t n = x.dim(d);
  if (begin.value < 0 || step.value < 1 || begin.value > size.value ||
      (n > 0 &&
       (n - 1 > (size.value - 1 - begin.value) / step.value || begin.value >= size.value))) {
    detail::fail({"pad: ", n, " elements from ", begin.value, " on by ", step.value, " of ",
                  size.value, " in dimension ", dim, " of shape ", x.shape().text(),
                  "; they must end within it"});
  }
  Shape shape = x.shape();
  shape.set(d, size);
  if (detail::recording()) {
    return detail::record(
        Op::pad, {&x}, shape,
        detail::as_numbers(List<std::int64_t>{d, begin.value, size.value, step.value}));
  }
  const detail::OpScope scope;
  Tensor y = zeros(shape);
  if (x.count() > 0) {
    const std::int64_t end = begin.value + (n - 1) * step.value + 1;
    detail::apply_in_place(detail::Arithmetic::second, "pad", slice(y, d, begin, end, step), x);
  }
  const double elements = static_cast<double>(x.count());
  scope.done("pad", shape, {elements}, {static_cast<double>(y.count())}, 0, 0);
  if (detail::tracked({&x})) {
    detail::attach(y, "pad", {&x}, [d, n, begin, step, sx = x.slot()](const Tensor& dy) {
      const std::int64_t end = n > 0 ? begin.value + (n - 1) * step.value + 1 : begin.value;
      detail::add_grad(sx, slice(dy, d, begin, end, step));
    });
  }
  return y;
}

// Tensors of one shape joined along a new dimension (a copy).
inline Tensor stack(const std::vector<Tensor>& parts, int dim) {
  if (parts.empty()) {
    detail::fail({"stack: no tensors given; at least one is right"});
  }
  std::vector<Tensor> rows;
  for (const Tensor& part : parts) {
    if (part.shape() != parts[0].shape() || dim < -part.dims() - 1 || dim > part.dims()) {
      detail::fail({"stack: shapes ", parts[0].shape().text(), " and ", part.shape().text(),
                    " in dimension ", dim,
                    "; equal shapes, and a dimension of the result, are right"});
    }
    rows.push_back(unsqueeze(part, dim));
  }
  return concat(rows, dim);
}

}  // namespace tinyscale
