#pragma once
// Matrix products: 2 M K N flops. x may have any leading dimensions; they are flattened into M.
// A thread-local hook lets a floor above run the forward products on an emulated chip.

#include <cstdint>     // int64_t
#include <functional>  // std::function

#include "tinyscale/compute/gemm.hpp"
#include "tinyscale/tensor/backward.hpp"
#include "tinyscale/tensor/op_record.hpp"
#include "tinyscale/tensor/tensor.hpp"

namespace tinyscale {

namespace detail {

// Product of x [M, K] and w [K, N], given in place of the host kernel's.
using MatmulHook = std::function<Tensor(const Tensor& x, const Tensor& w)>;

inline const MatmulHook*& matmul_hook() {
  static thread_local struct { const MatmulHook* hook; } own;
  return own.hook;
}

using kernel::Trans;

// y = op(a) op(b) (+ y), recorded; M, K, N are those of the product.
inline void product(const char* name, Trans ta, Trans tb, std::int64_t m, std::int64_t n,
                    std::int64_t k, const Tensor& a, const Tensor& b, float beta, float* y) {
  const OpScope scope;
  const std::int64_t lda = ta == Trans::no ? k : m;
  const std::int64_t ldb = tb == Trans::no ? n : k;
  kernel::gemm(ta, tb, m, n, k, a.data(), lda, b.data(), ldb, beta, y, n);
  if (context().profile != nullptr) {
    const double dm = static_cast<double>(m);
    const double dn = static_cast<double>(n);
    const double dk = static_cast<double>(k);
    scope.done(name, Shape{m, k, n}, {dm * dk, dk * dn}, {dm * dn}, 2 * dm * dk * dn, 0);
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
    throw Error(cat(op, ": x is ", x.shape().text(), ", w is ", w.shape().text(),
                    "; x needs at least one dimension and w exactly two"));
  }
  Matmul sizes;
  sizes.k = x.dim(-1);
  sizes.n = w.dim(transposed == Trans::no ? 1 : 0);
  const std::int64_t inner = w.dim(transposed == Trans::no ? 0 : 1);
  if (sizes.k != inner) {
    throw Error(cat(op, ": inner sizes differ: x is ", x.shape().text(), ", w is ",
                    w.shape().text(), "; x columns must equal w ",
                    transposed == Trans::no ? "rows" : "columns"));
  }
  sizes.m = 1;
  for (int i = 0; i + 1 < x.dims(); ++i) {
    sizes.shape.push_back(x.dim(i));
    sizes.m *= x.dim(i);
  }
  sizes.shape.push_back(sizes.n);
  return sizes;
}

inline Tensor matmul_any(const char* name, const Tensor& x, const Tensor& w, Trans tw) {
  const Matmul s = matmul_sizes(name, x, w, tw);
  Tensor y(s.shape);
  product("matmul", Trans::no, tw, s.m, s.n, s.k, x, w, 0.0f, y.data());
  if (tracked({&x, &w})) {
    attach(y, name, {&x, &w},
           [s, tw, kx = w.slot() ? Kept(x) : Kept(), kw = x.slot() ? Kept(w) : Kept(),
            sx = x.slot(), sw = w.slot()](const Tensor& dy) {
             const Trans other = tw == Trans::no ? Trans::yes : Trans::no;
             float beta = 0;
             if (sx) {  // dx = dy w^T
               float* dx = grad_buffer(sx, beta);
               product("matmul dx", Trans::no, other, s.m, s.k, s.n, dy, kw, beta, dx);
             }
             if (sw) {  // dw = x^T dy, or dy^T x
               float* dw = grad_buffer(sw, beta);
               const bool plain = tw == Trans::no;
               product("matmul dw", Trans::yes, Trans::no, plain ? s.k : s.n, plain ? s.n : s.k,
                       s.m, plain ? kx : dy, plain ? dy : kx, beta, dw);
             }
           });
  }
  return y;
}

}  // namespace detail

// x [.., M, K] times w [K, N] gives [.., M, N]. Throws when the inner sizes differ.
inline Tensor matmul(const Tensor& x, const Tensor& w) {
  if (detail::matmul_hook() != nullptr) {
    return (*detail::matmul_hook())(x, w);
  }
  return detail::matmul_any("matmul", x, w, kernel::Trans::no);
}

// x [.., M, K] times the transpose of w [N, K]: the linear layer with weights stored [out, in].
inline Tensor matmul_transposed(const Tensor& x, const Tensor& w) {
  return detail::matmul_any("matmul_transposed", x, w, kernel::Trans::yes);
}

}  // namespace tinyscale
