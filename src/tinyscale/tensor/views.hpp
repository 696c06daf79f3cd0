#pragma once
// Moving numbers about: reshape shares them; transpose, slice and concat copy them.

#include <cstdint>  // int64_t
#include <cstring>  // memcpy
#include <vector>   // vector

#include "tinyscale/base/list.hpp"
#include "tinyscale/tensor/arithmetic.hpp"
#include "tinyscale/tensor/create.hpp"

namespace tinyscale {

namespace detail {

inline int check_dim(const char* op, const Tensor& x, int dim) {
  if (dim < -x.dims() || dim >= x.dims()) {
    throw Error(cat(op, ": dimension ", dim, " is outside shape ", x.shape().text()));
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

// Copies `blocks` blocks of n floats between two strided places.
inline void copy_blocks(std::int64_t blocks, std::int64_t n, const float* from,
                        std::int64_t from_stride, float* to, std::int64_t to_stride) {
  for (std::int64_t i = 0; i < blocks && n > 0; ++i) {
    std::memcpy(to + i * to_stride, from + i * from_stride,
                static_cast<std::size_t>(n) * sizeof(float));
  }
}

inline void record_copy(const OpScope& scope, const char* name, const Tensor& y) {
  const double n = static_cast<double>(y.count());
  scope.done(name, y.shape(), {n}, {n}, 0, 0);
}

}  // namespace detail

// The same numbers under another shape of the same count; nothing is copied.
inline Tensor reshape(const Tensor& x, const Shape& shape) {
  x.data();  // an empty one throws
  if (shape.count() != x.count()) {
    throw Error(detail::cat("reshape: shape ", x.shape().text(), " has ", x.count(),
                            " elements, shape ", shape.text(), " needs ", shape.count()));
  }
  Tensor y(shape, x.storage());
  if (detail::tracked({&x})) {
    detail::attach(y, "reshape", {&x}, [sx = x.slot()](const Tensor& dy) {
      detail::add_grad(sx, Tensor(sx->shape, dy.storage()));
    });
  }
  return y;
}

// Swaps two dimensions (a copy).
inline Tensor transpose(const Tensor& x, int dim0, int dim1) {
  const int d0 = detail::check_dim("transpose", x, dim0);
  const int d1 = detail::check_dim("transpose", x, dim1);
  const detail::OpScope scope;
  Shape shape = x.shape();
  shape.set(d0, x.dim(d1));
  shape.set(d1, x.dim(d0));
  std::int64_t steps[8] = {};
  for (int i = 0; i < x.dims(); ++i) {
    const int source = i == d0 ? d1 : (i == d1 ? d0 : i);
    steps[i] = detail::inner_count(x.shape(), source);
  }
  Tensor y(shape);
  std::int64_t index[8] = {};
  std::int64_t from = 0;
  for (std::int64_t i = 0; i < y.count(); ++i) {
    y.data()[i] = x.data()[from];
    for (int d = x.dims() - 1; d >= 0; --d) {
      from += steps[d];
      if (++index[d] < shape[d]) {
        break;
      }
      from -= steps[d] * shape[d];
      index[d] = 0;
    }
  }
  detail::record_copy(scope, "transpose", y);
  if (detail::tracked({&x})) {
    detail::attach(y, "transpose", {&x}, [d0, d1, sx = x.slot()](const Tensor& dy) {
      detail::add_grad(sx, transpose(dy, d0, d1));
    });
  }
  return y;
}

// Elements begin .. end - 1 of one dimension (a copy).
inline Tensor slice(const Tensor& x, int dim, Dim begin, Dim end) {
  const int d = detail::check_dim("slice", x, dim);
  if (begin.value < 0 || end.value < begin.value || end.value > x.dim(d)) {
    throw Error(detail::cat("slice: ", begin.value, " to ", end.value, " of dimension ", dim,
                            " is outside shape ", x.shape().text()));
  }
  const detail::OpScope scope;
  const std::int64_t inner = detail::inner_count(x.shape(), d);
  const std::int64_t n = (end.value - begin.value) * inner;
  const std::int64_t whole = x.dim(d) * inner;
  const std::int64_t blocks = whole == 0 ? 0 : x.count() / whole;
  const std::int64_t offset = begin.value * inner;
  Shape shape = x.shape();
  shape.set(d, end.value - begin.value);
  Tensor y(shape);
  detail::copy_blocks(blocks, n, x.data() + offset, whole, y.data(), n);
  detail::record_copy(scope, "slice", y);
  if (detail::tracked({&x})) {
    detail::attach(y, "slice", {&x}, [=, sx = x.slot()](const Tensor& dy) {
      float* dx = detail::grad_buffer(sx);
      for (std::int64_t i = 0; i < blocks; ++i) {
        float* to = dx + i * whole + offset;
        kernel::add(n, to, dy.data() + i * n, to);
      }
    });
  }
  return y;
}

// Tensors joined along one dimension (a copy); the other sizes must be equal.
inline Tensor concat(const std::vector<Tensor>& parts, int dim) {
  if (parts.empty()) {
    throw Error("concat: no tensors given; at least one is right");
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
      throw Error(detail::cat("concat: shapes ", parts[0].shape().text(), " and ",
                              part.shape().text(), " differ outside dimension ", dim));
    }
    shape.set(d, shape[d] + part.dim(d));
  }
  Tensor y(shape);
  const std::int64_t inner = detail::inner_count(shape, d);
  const std::int64_t whole = shape[d] * inner;
  const std::int64_t blocks = whole == 0 ? 0 : y.count() / whole;
  std::int64_t offset = 0;
  for (const Tensor& part : parts) {
    const std::int64_t n = part.dim(d) * inner;
    detail::copy_blocks(blocks, n, part.data(), n, y.data() + offset, whole);
    offset += n;
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

}  // namespace tinyscale
