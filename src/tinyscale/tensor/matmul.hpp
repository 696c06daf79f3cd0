#pragma once
// Matrix products: 2 M K N flops. x may have any leading dimensions; they are flattened into M.
// A thread-local hook lets a floor above run the forward products on an emulated chip.

#include <algorithm>  // min
#include <cstdint>    // int64_t

#include "tinyscale/base/function.hpp"
#include "tinyscale/compute/gemm.hpp"
#include "tinyscale/tensor/backward.hpp"
#include "tinyscale/tensor/deferred.hpp"
#include "tinyscale/tensor/op_record.hpp"
#include "tinyscale/tensor/tensor.hpp"
#include "tinyscale/tensor/views.hpp"

namespace tinyscale {

namespace detail {

// Product of x [M, K] and w [K, N], given in place of the host kernel's.
using MatmulHook = Function<Tensor(const Tensor& x, const Tensor& w)>;

inline const MatmulHook*& matmul_hook() {
  static thread_local struct { const MatmulHook* hook; } own;
  return own.hook;
}

using kernels::Trans;

// A matrix as the kernel reads it: rows or columns without gaps, any step from one to the next.
struct Matrix {
  Tensor own;  // keeps the numbers, or a copy of those that lie in no such order
  Trans trans = Trans::no;
  std::int64_t ld = 0;
};

// The last two dimensions of x (of a matrix in row-major order any shape will do); `trans` turns
// them.
inline Matrix matrix_of(const Tensor& x, Trans trans, std::int64_t columns) {
  Matrix m{x, trans, columns};
  if (!x.is_contiguous()) {
    const bool rows = x.stride(-1) == 1 && x.stride(-2) >= x.dim(-1);
    const bool turned = x.stride(-2) == 1 && x.stride(-1) >= x.dim(-2);
    if (rows) {
      m.ld = x.stride(-2);
    } else if (turned) {
      m.trans = trans == Trans::no ? Trans::yes : Trans::no;
      m.ld = x.stride(-1);
    } else {
      m.own = x.copied();
    }
  }
  return m;
}

// Products of operands that are rounded: how one is read, and the product itself.
struct RoundedProducts {
  Tensor (*operand)(const Tensor& x, bool gradient);
  void (*multiply)(std::int64_t m, std::int64_t n, std::int64_t k, const Matrix& a,
                   const float* a_data, const Matrix& b, const float* b_data, float beta, float* y);
};

// x as a product reads it.
inline Tensor as_operand(const Tensor& x, bool gradient) {
  const RoundedProducts* const rounded = context().matmul_format.kernels;
  return rounded != nullptr ? rounded->operand(x, gradient) : x;
}

// One product in the format that the context asks for.
inline void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const Matrix& a,
                     const float* a_data, const Matrix& b, const float* b_data, float beta,
                     float* y) {
  const RoundedProducts* const rounded = context().matmul_format.kernels;
  if (rounded != nullptr) {
    rounded->multiply(m, n, k, a, a_data, b, b_data, beta, y);
  } else {
    kernels::gemm(a.trans, b.trans, m, n, k, a_data, a.ld, b_data, b.ld, beta, y, n);
  }
}

// y = op(a) op(b) (+ y), recorded; M, K, N are those of the product.
inline void product(const char* name, Trans ta, Trans tb, std::int64_t m, std::int64_t n,
                    std::int64_t k, const Tensor& a, const Tensor& b, float beta, float* y,
                    Dy dy = Dy::none) {
  const OpScope scope;
  const Matrix ma = matrix_of(as_operand(a, dy == Dy::first), ta, ta == Trans::no ? k : m);
  const Matrix mb = matrix_of(as_operand(b, dy == Dy::second), tb, tb == Trans::no ? n : k);
  multiply(m, n, k, ma, ma.own.origin(), mb, mb.own.origin(), beta, y);
  if (context().profile != nullptr) {
    const double dm = static_cast<double>(m);
    const double dn = static_cast<double>(n);
    const double dk = static_cast<double>(k);
    scope.done(name, Shape{m, k, n}, {dm * dk, dk * dn}, {dm * dn}, 2 * dm * dk * dn, 0,
               context().matmul_format);
  }
}

struct Matmul {
  std::int64_t m = 0;
  std::int64_t k = 0;
  std::int64_t n = 0;
  Shape shape;  // of the result
};

// w is [K, N], or [N, K] when transposed.
inline Matmul matmul_sizes(const char* op, const Tensor& x, const Tensor& w, Trans transposed) {
  if (x.dims() < 1 || w.dims() != 2) {
    fail({op, ": x is ", x.shape().text(), ", w is ", w.shape().text(),
          "; x needs at least one dimension and w exactly two"});
  }
  Matmul sizes;
  sizes.k = x.dim(-1);
  sizes.n = w.dim(transposed == Trans::no ? 1 : 0);
  const std::int64_t inner = w.dim(transposed == Trans::no ? 0 : 1);
  if (sizes.k != inner) {
    fail({op, ": inner sizes differ: x is ", x.shape().text(), ", w is ", w.shape().text(),
          "; x columns must equal w ", transposed == Trans::no ? "rows" : "columns"});
  }
  for (int i = 0; i + 1 < x.dims(); ++i) {
    sizes.shape.push_back(x.dim(i));
  }
  sizes.m = sizes.shape.count();
  sizes.shape.push_back(sizes.n);
  return sizes;
}

// What a product gives its weights: dw = x^T dy, or dy^T x; and the bias dy.
struct WeightGradients {
  Matmul s;
  Trans tw;
  KeptWeight x;
  Slot w, bias;

  void operator()(const Tensor& dy) const {
    if (w) {
      float beta = 0;
      float* const dw = grad_buffer(w, beta);
      const bool plain = tw == Trans::no;
      const Tensor in = x.get();
      product("matmul dw", Trans::yes, Trans::no, plain ? s.k : s.n, plain ? s.n : s.k, s.m,
              plain ? in : dy, plain ? dy : in, beta, dw, plain ? Dy::second : Dy::first);
    }
    if (bias) {
      add_grad_to(bias, dy);
    }
  }
  // Now, or those of parameters later.
  void give(const Tensor& dy) const {
    DeferWeightGradients* const later = w && w->leaf ? context().deferred : nullptr;
    if (later == nullptr) {
      (*this)(dy);
      return;
    }
    const bool bias_now = bias && !bias->leaf;
    later->push(w, dy, WeightGradients{s, tw, x, w, bias_now ? Slot() : bias});
    if (bias_now) {
      add_grad_to(bias, dy);
    }
  }
};

// A product as it is recorded: in the format of the context, with the operand that is a gradient.
inline Tensor record_matmul(const Tensor& x, const Tensor& w, const Shape& shape, Dy dy) {
  if (matmul_hook() != nullptr) {
    fail({"compile: matmuls run on an emulated chip here; a graph computes its own"});
  }
  List<double> numbers = {static_cast<double>(static_cast<int>(context().matmul_format.type))};
  if (dy != Dy::none) {
    numbers.push_back(static_cast<double>(static_cast<int>(dy)));
  }
  return record(Op::matmul, {&x, &w}, shape, numbers);
}

inline Tensor matmul_any(const char* name, const Tensor& x, const Tensor& w, Trans tw,
                         const Tensor& bias = Tensor(), Dy dy_is = Dy::none) {
  const Matmul s = matmul_sizes(name, x, w, tw);
  if (recording()) {
    const Tensor y = record_matmul(x, tw == Trans::no ? w : transpose(w, 0, 1), s.shape, dy_is);
    return bias.defined() ? record(Op::add, {&y, &bias}, s.shape) : y;
  }
  if (!x.is_contiguous() && x.dims() != 2) {
    return reshape(matmul_any(name, reshape(x, {s.m, s.k}), w, tw, bias, dy_is), s.shape);
  }
  x.origin();  // an empty one throws
  w.origin();
  const MatmulHook* const hook = matmul_hook();
  if (hook != nullptr && tracked({&x, &w, &bias})) {
    fail({name, ": no gradient flows through an emulated chip; run it under a NoGrad"});
  }
  Tensor y =
      hook == nullptr ? Tensor(s.shape) : (*hook)(x, tw == Trans::no ? w : transpose(w, 0, 1));
  if (hook == nullptr) {
    product("matmul", Trans::no, tw, s.m, s.n, s.k, x, w, 0.0f, y.data(), dy_is);
  }
  if (bias.defined()) {
    const OpScope scope;
    apply_in_place(Arithmetic::add, name, y, bias);
    record_arithmetic(scope, "add", "add", y, bias, y.shape(), &VectorCost::forward);
  }
  if (tracked({&x, &w, &bias})) {
    attach(y, name, {&x, &w, &bias},
           [weights = WeightGradients{s, tw, w.slot() ? KeptWeight(x) : KeptWeight(), w.slot(),
                                      bias.slot()},
            kw = x.slot() ? KeptWeight(w) : KeptWeight(), sx = x.slot()](const Tensor& dy) {
             const Matmul& all = weights.s;
             if (sx) {  // dx = dy w^T
               const Trans other = weights.tw == Trans::no ? Trans::yes : Trans::no;
               const Tensor again = kw.get();
               float beta = 0;
               float* const dx = grad_buffer(sx, beta);
               product("matmul dx", Trans::no, other, all.m, all.k, all.n, dy, again, beta, dx,
                       Dy::first);
             }
             weights.give(dy);
           });
  }
  return y;
}

inline Shape leading(const Shape& shape) {
  Shape lead;
  for (int i = 0; i + 2 < shape.size(); ++i) {
    lead.push_back(shape[i]);
  }
  return lead;
}

// y [.., M, N] = x [.., M, K] w [.., K, N], a product for each of y's leading dimensions.
inline void multiply_batched(const Tensor& x, const Tensor& w, const Tensor& y,
                             Dy dy_is = Dy::none) {
  const std::int64_t m = x.dim(-2);
  const std::int64_t k = x.dim(-1);
  const std::int64_t n = w.dim(-1);
  if (y.count() == 0) {
    return;  // its leading dimensions may be absurd
  }
  const Shape batch = leading(y.shape());
  const Matrix mx = matrix_of(as_operand(x, dy_is == Dy::first), Trans::no, k);
  const Matrix mw = matrix_of(as_operand(w, dy_is == Dy::second), Trans::no, n);
  const Walk plan(batch, broadcast_steps(leading(x.shape()), mx.own.steps(), batch),
                  broadcast_steps(leading(w.shape()), mw.own.steps(), batch));
  float* const to = y.origin();
  plan.rows([&](std::int64_t first, std::int64_t at_x, std::int64_t at_w) {
    for (std::int64_t j = 0; j < plan.columns(); ++j) {
      multiply(m, n, k, mx, mx.own.origin() + at_x + j * plan.step_a(), mw,
               mw.own.origin() + at_w + j * plan.step_b(), 0.0f, to + (first + j) * m * n);
    }
  });
}

// x [.., M, K] times w [.., K, N]: one product for each of the leading dimensions, which are
// repeated to one another.
// The leading dimensions of both, matched from the right.
inline Shape batch_shape(const Tensor& x, const Tensor& w) {
  const Shape a = leading(x.shape()), b = leading(w.shape());
  for (int i = 1; i <= std::min(a.size(), b.size()); ++i) {
    if (a[-i] != b[-i] && a[-i] != 1 && b[-i] != 1) {
      fail({"matmul: x is ", x.shape(), ", w is ", w.shape(),
            "; dimensions before the last two must be equal or 1, from the right"});
    }
  }
  return broadcast_shape("matmul", a, b);
}

inline Tensor matmul_batched(const Tensor& x, const Tensor& w, Dy dy_is = Dy::none) {
  if (x.dims() < 2 || w.dims() < 2 || x.dim(-1) != w.dim(-2)) {
    fail({"matmul: x is ", x.shape().text(), ", w is ", w.shape().text(),
          "; x [.., M, K] and w [.., K, N] are right"});
  }
  const std::int64_t m = x.dim(-2);
  const std::int64_t k = x.dim(-1);
  const std::int64_t n = w.dim(-1);
  const Shape batch = batch_shape(x, w);
  Shape shape = batch;
  shape.push_back(m);
  shape.push_back(n);
  if (recording()) {
    return record_matmul(x, w, shape, dy_is);
  }
  const OpScope scope;
  Tensor y(shape);
  multiply_batched(x, w, y, dy_is);
  const double numbers = static_cast<double>(y.count());
  scope.done("matmul", shape, {static_cast<double>(x.count()), static_cast<double>(w.count())},
             {numbers}, 2 * numbers * static_cast<double>(k), 0, context().matmul_format);
  if (tracked({&x, &w})) {
    attach(
        y, "matmul", {&x, &w},
        [kx = w.slot() ? KeptWeight(x) : KeptWeight(), kw = x.slot() ? KeptWeight(w) : KeptWeight(),
         sx = x.slot(), sw = w.slot()](const Tensor& dy) {
          if (sx) {
            add_grad_to(sx, matmul_batched(dy, transpose(kw.get(), -1, -2), Dy::first));
          }
          if (sw) {
            add_grad_to(sw, matmul_batched(transpose(kx.get(), -1, -2), dy, Dy::second));
          }
        });
  }
  return y;
}

// matmul(x, w) of which one operand is a gradient.
inline Tensor matmul_of_gradient(const Tensor& x, const Tensor& w, Dy dy) {
  return w.dims() > 2 ? matmul_batched(x, w, dy)
                      : matmul_any("matmul", x, w, Trans::no, Tensor(), dy);
}

}  // namespace detail

// x [.., M, K] times w [K, N] gives [.., M, N], times w [.., K, N] a product for each of the
// leading dimensions. Throws when the inner sizes differ.
inline Tensor matmul(const Tensor& x, const Tensor& w) {
  if (w.dims() > 2) {
    return detail::matmul_batched(x, w);
  }
  return detail::matmul_any("matmul", x, w, kernels::Trans::no);
}

// x [.., M, K] times the transpose of w [N, K]: the linear layer with weights stored [out, in].
inline Tensor matmul_transposed(const Tensor& x, const Tensor& w) {
  return detail::matmul_any("matmul_transposed", x, w, kernels::Trans::yes);
}

// x w^T + bias in one op; w [N, K], bias [N].
inline Tensor linear(const Tensor& x, const Tensor& w, const Tensor& bias) {
  if (bias.defined() && (bias.dims() != 1 || w.dims() != 2 || bias.dim(0) != w.dim(0))) {
    detail::fail({"linear: w is ", w.shape().text(), ", bias is ", bias.shape().text(),
                  "; w [N, K] and bias [N] are right"});
  }
  return detail::matmul_any("linear", x, w, kernels::Trans::yes, bias);
}

}  // namespace tinyscale
