#pragma once
// Elementwise arithmetic with broadcasting: dimensions are matched from the right, and a dimension
// of size 1 (or missing) is repeated. The gradient of a repeated operand is summed back.

#include <algorithm>  // fill_n, max, min
#include <cstdint>    // int64_t
#include <vector>     // vector

#include "tinyscale/base/shape.hpp"
#include "tinyscale/compute/elementwise.hpp"
#include "tinyscale/compute/row_moves.hpp"
#include "tinyscale/compute/sums.hpp"
#include "tinyscale/tensor/backward.hpp"
#include "tinyscale/tensor/op_record.hpp"
#include "tinyscale/tensor/record.hpp"
#include "tinyscale/tensor/tensor.hpp"

namespace tinyscale {

namespace detail {

inline Walk walk(const char* op, const Tensor& a, const Tensor& b) {
  const Shape shape = broadcast_shape(op, a.shape(), b.shape());
  return Walk(shape, broadcast_steps(a.shape(), a.steps(), shape),
              broadcast_steps(b.shape(), b.steps(), shape));
}

enum class Arithmetic { add, sub, mul, div, less, equal, larger, maximum, second };

// Whether maximum takes a: a NaN, or the larger.
inline bool is_larger(float a, float b) { return a > b || is_nan(static_cast<double>(a)); }

inline float apply(Arithmetic op, float a, float b) {
  switch (op) {
    case Arithmetic::add: return a + b;
    case Arithmetic::sub: return a - b;
    case Arithmetic::mul: return a * b;
    case Arithmetic::div: return a / b;
    case Arithmetic::less: return a < b ? 1.0f : 0.0f;
    case Arithmetic::equal: return a == b ? 1.0f : 0.0f;
    case Arithmetic::larger: return is_larger(a, b) ? 1.0f : 0.0f;
    case Arithmetic::maximum: return is_larger(a, b) ? a : b;
    case Arithmetic::second: break;
  }
  return b;
}

inline void apply_same(Arithmetic op, std::int64_t n, const float* a, const float* b, float* y) {
  if (n < 8) {
    for (std::int64_t i = 0; i < n; ++i) {
      y[i] = apply(op, a[i], b[i]);
    }
    return;
  }
  switch (op) {
    case Arithmetic::add: return kernels::add(n, a, b, y);
    case Arithmetic::sub: return kernels::sub(n, a, b, y);
    case Arithmetic::mul: return kernels::mul(n, a, b, y);
    case Arithmetic::div: return kernels::div(n, a, b, y);
    case Arithmetic::less: return kernels::less(n, a, b, y);
    case Arithmetic::equal: return kernels::equal(n, a, b, y);
    case Arithmetic::larger: return kernels::larger(n, a, b, y);
    case Arithmetic::maximum: return kernels::maximum(n, a, b, y);
    case Arithmetic::second: return kernels::copy_steps(n, b, 1, y, 1);
  }
}

// A row of an operand in steps, for the kernel in blocks: read where it is dense, a number that
// repeats from a block of it, others gathered.
class RowBlocks {
 public:
  static constexpr std::int64_t most = 256;

  RowBlocks(std::int64_t n, const float* x, std::int64_t step) : x_(x), step_(step) {
    if (step == 0 && n > 0) {
      std::fill_n(block_, std::min(n, most), *x);
    }
  }
  const float* at(std::int64_t begin, std::int64_t count) {
    if (step_ == 1) {
      return x_ + begin;
    }
    if (step_ != 0) {
      kernels::copy_steps(count, x_ + begin * step_, step_, block_, 1);
    }
    return block_;
  }

 private:
  const float* x_;
  std::int64_t step_;
  float block_[static_cast<std::size_t>(most)];
};

// The same for operands in steps.
inline void apply_row(Arithmetic op, std::int64_t n, const float* a, std::int64_t step_a,
                      const float* b, std::int64_t step_b, float* y, std::int64_t step_y) {
  if (step_a == 1 && step_b == 1 && step_y == 1) {
    apply_same(op, n, a, b, y);
    return;
  }
  if (op == Arithmetic::second) {
    kernels::copy_steps(n, b, step_b, y, step_y);
    return;
  }
  RowBlocks from_a(n, a, step_a), from_b(n, b, step_b);
  float block[static_cast<std::size_t>(RowBlocks::most)];
  for (std::int64_t begin = 0; begin < n; begin += RowBlocks::most) {
    const std::int64_t m = std::min(RowBlocks::most, n - begin);
    float* const to = step_y == 1 ? y + begin : block;
    apply_same(op, m, from_a.at(begin, m), from_b.at(begin, m), to);
    if (step_y != 1) {
      kernels::copy_steps(m, block, 1, y + begin * step_y, step_y);
    }
  }
}

// Matrices of some size whose columns lie without gaps, and not their rows.
inline bool lies_turned(const Tensor& x) {
  return !x.is_contiguous() && x.count() >= 1024 &&
         turned_dim(Walk(x.shape(), x.steps(), x.steps())) >= 0;
}

inline Tensor arithmetic(Arithmetic op, const char* name, const Tensor& a, const Tensor& b) {
  if (a.shape() == b.shape() && a.is_contiguous() && b.is_contiguous()) {
    const float* const pa = a.data();
    Tensor y(a.shape());
    apply_same(op, y.count(), pa, b.data(), y.data());
    return y;
  }
  if (lies_turned(a) || lies_turned(b)) {  // copied by squares: a tenth of the walk
    return arithmetic(op, name, lies_turned(a) ? a.copied() : a, lies_turned(b) ? b.copied() : b);
  }
  const float* const pa = a.origin();
  const float* const pb = b.origin();
  Tensor y(broadcast_shape(name, a.shape(), b.shape()));
  const Walk plan = walk(name, a, b);
  plan.rows([&](std::int64_t first, std::int64_t at_a, std::int64_t at_b) {
    apply_row(op, plan.columns(), pa + at_a, plan.step_a(), pb + at_b, plan.step_b(),
              y.data() + first, 1);
  });
  return y;
}

// to = to op from, in place; `from` is repeated to the shape of `to`.
inline void apply_in_place(Arithmetic op, const char* name, const Tensor& to, const Tensor& from) {
  const Walk plan = walk(name, to, from);
  plan.rows([&](std::int64_t, std::int64_t at_a, std::int64_t at_b) {
    float* const y = to.origin() + at_a;
    apply_row(op, plan.columns(), y, plan.step_a(), from.origin() + at_b, plan.step_b(), y,
              plan.step_a());
  });
}

// Numbers of `shape` where it is the last dimensions of x, before which all are summed; else 0.
inline std::int64_t repeated_rows(const Shape& x, const Shape& shape) {
  int last = 0;  // dimensions that are the same
  while (last < shape.size() && last < x.size() && shape[-1 - last] == x[-1 - last]) {
    ++last;
  }
  std::int64_t columns = 1;
  for (int i = 0; i < last; ++i) {
    columns *= shape[-1 - i];
  }
  return shape.count() == columns ? columns : 0;
}

// x summed over the dimensions in which `shape` was repeated, in double and in index order; whole
// rows 32 at a time in float. Where x itself repeats a number (a step of 0), it is multiplied
// instead.
inline Tensor sum_to(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) {
    return x;
  }
  const std::int64_t row = repeated_rows(x.shape(), shape);
  if (row >= 16 && x.is_contiguous()) {
    Tensor dx(shape);
    kernels::column_sums(x.count() / row, row, x.data(), dx.data(), 0.0f);
    if (is_finite(kernels::sum(row, dx.data()))) {  // else 32 numbers may be beyond f32, all not
      return dx;
    }
  }
  Tensor once = x.detach();
  double times = 1;
  for (int i = 0, j = shape.size() - x.dims(); i < x.dims(); ++i, ++j) {
    if (x.dim(i) > 1 && x.stride(i) == 0 && (j < 0 || shape[j] == 1)) {
      Shape smaller = once.shape();
      smaller.set(i, 1);
      times *= static_cast<double>(x.dim(i));
      once = once.as_strided(smaller, once.steps(), 0);
    }
  }
  Tensor dx(shape);
  List<double> sums(static_cast<std::size_t>(dx.count()));
  const Walk plan(once.shape(), broadcast_steps(shape, row_major(shape), once.shape()),
                  once.steps());
  const std::int64_t columns = plan.columns();
  const std::int64_t step = plan.step_a();
  const bool even = plan.step_b() == 1 && columns >= 16;
  double* const out = sums.data();
  plan.rows([&](std::int64_t, std::int64_t a, std::int64_t b) {
    const float* const in = once.origin() + b;
    if (even && step == 1) {
      kernels::add_to_sums(columns, in, out + a);
    } else if (even && step == 0) {
      out[a] += kernels::sum(columns, in);
    } else {
      for (std::int64_t j = 0; j < columns; ++j) {
        out[a + j * step] += static_cast<double>(in[j * plan.step_b()]);
      }
    }
  });
  for (std::int64_t i = 0; i < dx.count(); ++i) {
    dx.data()[i] = static_cast<float>(times * out[i]);
  }
  return dx;
}

inline void add_grad_to(const Slot& slot, const Tensor& dx) {
  if (slot->shape == dx.shape()) {
    add_grad(slot, dx);
  } else {
    const OpScope scope;
    const Tensor sums = sum_to(dx, slot->shape);
    scope.done_priced("sum", "sum", dx.shape(), &VectorCost::forward, {dx.count()}, {sums.count()});
    add_grad(slot, sums);
  }
}

inline void record_arithmetic(const OpScope& scope, const char* name, const char* price,
                              const Tensor& a, const Tensor& b, const Shape& shape,
                              double VectorCost::*pass) {
  if (context().profile != nullptr) {
    const double n = static_cast<double>(shape.count());
    bool once = a.origin() == b.origin() && a.shape() == b.shape();  // x x reads x
    for (int i = 0; i < a.dims() && once; ++i) {                     // x + x^T both
      once = a.dim(i) == 1 || a.stride(i) == b.stride(i);
    }
    scope.done(name, shape,
               {static_cast<double>(a.count()), once ? 0 : static_cast<double>(b.count())}, {n}, 0,
               vector_cost(price, n, pass));
  }
}

inline Op recorded_op(Arithmetic op) {
  switch (op) {
    case Arithmetic::add: return Op::add;
    case Arithmetic::sub: return Op::sub;
    case Arithmetic::mul: return Op::mul;
    case Arithmetic::div: return Op::div;
    case Arithmetic::less: return Op::less;
    case Arithmetic::maximum: return Op::maximum;
    default: return Op::equal;
  }
}

inline Tensor binary(Arithmetic op, const char* name, const Tensor& a, const Tensor& b) {
  if (recording()) {
    return record(recorded_op(op), {&a, &b}, broadcast_shape(name, a.shape(), b.shape()));
  }
  const OpScope scope;
  Tensor y = arithmetic(op, name, a, b);
  record_arithmetic(scope, name, name, a, b, y.shape(), &VectorCost::forward);
  return y;
}

}  // namespace detail

// A copy of the numbers in row-major order; unlike clone() it carries the gradient back.
inline Tensor copy(const Tensor& x) {
  if (detail::recording()) {
    return detail::thread_recorder()->same(x);
  }
  const detail::OpScope scope;
  x.origin();  // an empty one throws
  Tensor y = x.copied();
  scope.done_unary("copy", "copy", x.shape());
  if (detail::tracked({&x})) {
    detail::attach(y, "copy", {&x},
                   [sx = x.slot()](const Tensor& dy) { detail::add_grad(sx, dy); });
  }
  return y;
}

// The same tensor, copied only if it is a view out of row-major order.
inline Tensor contiguous(const Tensor& x) {
  const bool ask = detail::recording() && x.is_recorded();
  return (ask ? detail::thread_recorder()->is_dense(x) : x.is_contiguous()) ? x : copy(x);
}

inline Tensor add(const Tensor& a, const Tensor& b) {
  Tensor y = detail::binary(detail::Arithmetic::add, "add", a, b);
  if (!detail::recording() && detail::tracked({&a, &b})) {
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
  if (!detail::recording() && detail::tracked({&a, &b})) {
    using detail::KeptWeight;
    detail::attach(
        y, "mul", {&a, &b},
        [ka = b.slot() ? KeptWeight(a) : KeptWeight(), kb = a.slot() ? KeptWeight(b) : KeptWeight(),
         sa = a.slot(), sb = b.slot()](const Tensor& dy) {
          if (sa) {
            detail::add_grad_to(sa, detail::binary(detail::Arithmetic::mul, "mul", dy, kb.get()));
          }
          if (sb) {
            detail::add_grad_to(sb, detail::binary(detail::Arithmetic::mul, "mul", dy, ka.get()));
          }
        });
  }
  return y;
}

inline Tensor scale(const Tensor& x, float factor) {
  if (detail::recording()) {
    const Tensor f = detail::record(Op::literal, {}, Shape{}, {static_cast<double>(factor)});
    return detail::record(Op::mul, {&x, &f}, x.shape());
  }
  if (!x.is_contiguous()) {
    return scale(contiguous(x), factor);
  }
  const detail::OpScope scope;
  Tensor y(x.shape());
  kernels::scale(x.count(), factor, x.data(), y.data());
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
  if (!detail::recording() && detail::tracked({&a, &b})) {
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
  if (!detail::recording() && detail::tracked({&a, &b})) {
    detail::attach(y, "div", {&a, &b},
                   [kb = detail::KeptWeight(b), ky = detail::Kept(y), sa = a.slot(),
                    sb = b.slot()](const Tensor& dy) {
                     const Tensor da = detail::binary(detail::Arithmetic::div, "div", dy, kb.get());
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
  if (detail::recording()) {
    const Tensor term = detail::record(Op::literal, {}, Shape{}, {static_cast<double>(value)});
    return detail::record(Op::add, {&x, &term}, x.shape());
  }
  if (!x.is_contiguous()) {
    return add(contiguous(x), value);
  }
  const detail::OpScope scope;
  Tensor y(x.shape());
  kernels::add_number(x.count(), value, x.data(), y.data());
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
inline Tensor operator-(const Tensor& x) { return neg(x); }

}  // namespace tinyscale
