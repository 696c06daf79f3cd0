#pragma once
// Elementwise arithmetic with broadcasting: dimensions are matched from the right, and a dimension
// of size 1 (or missing) is repeated. The gradient of a repeated operand is summed back.

#include <algorithm>  // max
#include <cstdint>    // int64_t
#include <vector>     // vector

#include "tinyscale/base/shape.hpp"
#include "tinyscale/compute/elementwise.hpp"
#include "tinyscale/compute/sums.hpp"
#include "tinyscale/tensor/backward.hpp"
#include "tinyscale/tensor/op_record.hpp"
#include "tinyscale/tensor/tensor.hpp"

namespace tinyscale {

namespace detail {

// The shape of `a op b`, and the steps through each operand (0 where it is repeated).
struct Broadcast {
  Shape shape;
  std::int64_t step_a[8] = {};
  std::int64_t step_b[8] = {};
};

inline void broadcast_steps(const Shape& from, const Shape& to, std::int64_t* steps) {
  std::int64_t step = 1;
  for (int i = to.size() - 1, j = from.size() - 1; i >= 0; --i, --j) {
    const std::int64_t size = j >= 0 ? from[j] : 1;
    steps[i] = size == 1 ? 0 : step;
    step *= size;
  }
}

inline Broadcast broadcast(const char* op, const Shape& a, const Shape& b) {
  Broadcast plan;
  const int dims = std::max(a.size(), b.size());
  for (int i = 0; i < dims; ++i) {
    const int ia = i - (dims - a.size());
    const int ib = i - (dims - b.size());
    const std::int64_t da = ia >= 0 ? a[ia] : 1;
    const std::int64_t db = ib >= 0 ? b[ib] : 1;
    if (da != db && da != 1 && db != 1) {
      throw Error(cat(op, ": shapes do not match: ", a.text(), " and ", b.text(),
                      "; from the right, sizes must be equal or 1"));
    }
    plan.shape.push_back(da == 1 ? db : da);
  }
  broadcast_steps(a, plan.shape, plan.step_a);
  broadcast_steps(b, plan.shape, plan.step_b);
  return plan;
}

// Calls body(out_row, a_offset, b_offset) for every row (last dimension) of the broadcast shape.
template <class Body>
inline void for_rows(const Broadcast& plan, const Body& body) {
  const int last = plan.shape.size() - 1;
  std::int64_t index[8] = {};
  std::int64_t a = 0;
  std::int64_t b = 0;
  const std::int64_t columns = last >= 0 ? plan.shape[last] : 1;
  const std::int64_t rows = columns == 0 ? 0 : plan.shape.count() / columns;
  for (std::int64_t row = 0; row < rows; ++row) {
    body(row * columns, a, b);
    for (int i = last - 1; i >= 0; --i) {
      a += plan.step_a[i];
      b += plan.step_b[i];
      if (++index[i] < plan.shape[i]) {
        break;
      }
      a -= plan.step_a[i] * plan.shape[i];
      b -= plan.step_b[i] * plan.shape[i];
      index[i] = 0;
    }
  }
}

enum class Arithmetic { add, sub, mul, div };

inline float apply(Arithmetic op, float a, float b) {
  switch (op) {
    case Arithmetic::add: return a + b;
    case Arithmetic::sub: return a - b;
    case Arithmetic::mul: return a * b;
    case Arithmetic::div: break;
  }
  return a / b;
}

inline void apply_same(Arithmetic op, std::int64_t n, const float* a, const float* b, float* y) {
  if (n == 1) {
    *y = apply(op, *a, *b);
    return;
  }
  switch (op) {
    case Arithmetic::add: kernel::add(n, a, b, y); break;
    case Arithmetic::sub: kernel::sub(n, a, b, y); break;
    case Arithmetic::mul: kernel::mul(n, a, b, y); break;
    case Arithmetic::div: kernel::div(n, a, b, y); break;
  }
}

inline Tensor arithmetic(Arithmetic op, const char* name, const Tensor& a, const Tensor& b) {
  if (a.shape() == b.shape()) {
    Tensor y(a.shape());
    apply_same(op, y.count(), a.data(), b.data(), y.data());
    return y;
  }
  const Broadcast plan = broadcast(name, a.shape(), b.shape());
  Tensor y(plan.shape);
  const int last = plan.shape.size() - 1;
  const std::int64_t columns = last >= 0 ? plan.shape[last] : 1;
  const std::int64_t sa = last >= 0 ? plan.step_a[last] : 0;
  const std::int64_t sb = last >= 0 ? plan.step_b[last] : 0;
  const float* pa = a.data();
  const float* pb = b.data();
  float* py = y.data();
  for_rows(plan, [&](std::int64_t row, std::int64_t ra, std::int64_t rb) {
    if (sa == 1 && sb == 1) {
      apply_same(op, columns, pa + ra, pb + rb, py + row);
      return;
    }
    for (std::int64_t j = 0; j < columns; ++j) {
      py[row + j] = apply(op, pa[ra + j * sa], pb[rb + j * sb]);
    }
  });
  return y;
}

// dx summed over the dimensions in which `shape` was repeated, in double and in index order.
inline Tensor sum_to(const Tensor& dy, const Shape& shape) {
  if (dy.shape() == shape) {
    return dy;
  }
  List<double> sums(static_cast<std::size_t>(shape.count()));
  const Broadcast plan = broadcast("sum_to", shape, dy.shape());
  const int last = plan.shape.size() - 1;
  const std::int64_t columns = last >= 0 ? plan.shape[last] : 1;
  const std::int64_t step = last >= 0 ? plan.step_a[last] : 0;
  double* out = sums.data();
  const float* in = dy.data();
  for_rows(plan, [&](std::int64_t row, std::int64_t a, std::int64_t) {
    if (columns >= 16 && step == 1) {
      kernel::add_to_sums(columns, in + row, out + a);
    } else if (columns >= 16) {
      out[a] += kernel::sum(columns, in + row);
    } else {
      for (std::int64_t j = 0; j < columns; ++j) {
        out[a + j * step] += static_cast<double>(in[row + j]);
      }
    }
  });
  Tensor dx(shape);
  for (std::int64_t i = 0; i < dx.count(); ++i) {
    dx.data()[i] = static_cast<float>(out[i]);
  }
  return dx;
}

inline void add_grad_to(const Slot& slot, const Tensor& dx) {
  if (slot->shape == dx.shape()) {
    add_grad(slot, dx);
  } else {
    add_grad(slot, sum_to(dx, slot->shape));
  }
}

inline void record_arithmetic(const OpScope& scope, const char* name, const char* price,
                              const Tensor& a, const Tensor& b, const Shape& shape,
                              double VectorCost::*pass) {
  if (context().profile != nullptr) {
    const double n = static_cast<double>(shape.count());
    scope.done(name, shape, {static_cast<double>(a.count()), static_cast<double>(b.count())}, {n},
               0, vector_cost(price, n, pass));
  }
}

inline Tensor binary(Arithmetic op, const char* name, const Tensor& a, const Tensor& b) {
  const OpScope scope;
  Tensor y = arithmetic(op, name, a, b);
  record_arithmetic(scope, name, name, a, b, y.shape(), &VectorCost::forward);
  return y;
}

}  // namespace detail

inline Tensor add(const Tensor& a, const Tensor& b) {
  Tensor y = detail::binary(detail::Arithmetic::add, "add", a, b);
  if (detail::tracked({&a, &b})) {
    detail::attach(y, "add", {&a, &b}, [sa = a.slot(), sb = b.slot()](const Tensor& dy) {
      if (sb) {
        detail::add_grad_to(sb, dy);
      }
      if (sa) {
        detail::add_grad_to(sa, dy);
      }
    });
  }
  return y;
}

inline Tensor mul(const Tensor& a, const Tensor& b) {
  Tensor y = detail::binary(detail::Arithmetic::mul, "mul", a, b);
  if (detail::tracked({&a, &b})) {
    using detail::Kept;
    detail::attach(
        y, "mul", {&a, &b},
        [ka = b.slot() ? Kept(a) : Kept(), kb = a.slot() ? Kept(b) : Kept(), sa = a.slot(),
         sb = b.slot()](const Tensor& dy) {
          if (sa) {
            detail::add_grad_to(sa, detail::binary(detail::Arithmetic::mul, "mul", dy, kb));
          }
          if (sb) {
            detail::add_grad_to(sb, detail::binary(detail::Arithmetic::mul, "mul", dy, ka));
          }
        });
  }
  return y;
}

inline Tensor scale(const Tensor& x, float factor) {
  const detail::OpScope scope;
  Tensor y(x.shape());
  kernel::scale(x.count(), factor, x.data(), y.data());
  scope.done_unary("scale", "mul", x.shape());
  if (detail::tracked({&x})) {
    detail::attach(y, "scale", {&x}, [factor, sx = x.slot()](const Tensor& dy) {
      detail::add_grad(sx, scale(dy, factor));
    });
  }
  return y;
}

inline Tensor neg(const Tensor& x) { return scale(x, -1.0f); }

inline Tensor sub(const Tensor& a, const Tensor& b) {
  Tensor y = detail::binary(detail::Arithmetic::sub, "sub", a, b);
  if (detail::tracked({&a, &b})) {
    detail::attach(y, "sub", {&a, &b}, [sa = a.slot(), sb = b.slot()](const Tensor& dy) {
      if (sb) {
        detail::add_grad_to(sb, scale(dy, -1.0f));
      }
      if (sa) {
        detail::add_grad_to(sa, dy);
      }
    });
  }
  return y;
}

inline Tensor div(const Tensor& a, const Tensor& b) {
  Tensor y = detail::binary(detail::Arithmetic::div, "div", a, b);
  if (detail::tracked({&a, &b})) {
    detail::attach(
        y, "div", {&a, &b},
        [kb = detail::Kept(b), ky = detail::Kept(y), sa = a.slot(), sb = b.slot()](const Tensor& dy) {
          const Tensor da = detail::binary(detail::Arithmetic::div, "div", dy, kb);
          if (sb) {  // d(a/b)/db = -(a/b)/b
            detail::add_grad_to(sb, neg(mul(da, ky)));
          }
          if (sa) {
            detail::add_grad_to(sa, da);
          }
        });
  }
  return y;
}

inline Tensor add(const Tensor& x, float value) {
  const detail::OpScope scope;
  Tensor y(x.shape());
  const float* in = x.data();
  float* out = y.data();
  for (std::int64_t i = 0; i < x.count(); ++i) {
    out[i] = in[i] + value;
  }
  scope.done_unary("add", "add", x.shape());
  if (detail::tracked({&x})) {
    detail::attach(y, "add", {&x}, [sx = x.slot()](const Tensor& dy) { detail::add_grad(sx, dy); });
  }
  return y;
}

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator+(const Tensor& x, float value) { return add(x, value); }
inline Tensor operator+(float value, const Tensor& x) { return add(x, value); }
inline Tensor operator-(const Tensor& x, float value) { return add(x, -value); }
inline Tensor operator-(float value, const Tensor& x) { return add(neg(x), value); }
inline Tensor operator*(const Tensor& x, float factor) { return scale(x, factor); }
inline Tensor operator*(float factor, const Tensor& x) { return scale(x, factor); }
inline Tensor operator/(const Tensor& x, float divisor) { return scale(x, 1.0f / divisor); }
inline Tensor operator-(const Tensor& x) { return neg(x); }

}  // namespace tinyscale
