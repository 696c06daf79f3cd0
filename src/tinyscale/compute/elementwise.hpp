#pragma once
// Element-wise kernels: y[i] = f(a[i], b[i]); backward ones dx[i] = beta dx[i] + f'(x[i]) dy[i],
// where beta is 0 (dx is not read) or 1. Each has a reference body for one number.
// Work is split into fixed blocks, so the result does not depend on the number of threads.
// gelu(x) = x (1 + erf(x / sqrt 2)) / 2 (Hendrycks and Gimpel, arXiv 1606.08415).

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/lane_math.hpp"
#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/compute/memory_check.hpp"
#include "tinyscale/compute/past_caches.hpp"

namespace tinyscale {
namespace kernels {

// The reference bodies, of all numbers: y[i] = f(a[i], b[i]), y[i] = f(x[i]), and dx[i] = beta
// dx[i] + slope(x[i]) dy[i].
inline void arithmetic_reference(std::int64_t n, float (*f)(float, float), const float* a,
                                 const float* b, float* y) {
  for (std::int64_t i = 0; i < n; ++i) {
    y[i] = f(a[i], b[i]);
  }
}
inline void forward_reference(std::int64_t n, double (*f)(double), const float* x, double* y) {
  for (std::int64_t i = 0; i < n; ++i) {
    y[i] = f(double{x[i]});
  }
}
inline void backward_reference(std::int64_t n, double (*slope)(double), const float* x,
                               const float* dy, double* dx, double beta = 1) {
  for (std::int64_t i = 0; i < n; ++i) {
    dx[i] = (beta == 0 ? 0 : dx[i]) + slope(double{x[i]}) * double{dy[i]};
  }
}

inline void choose_reference(std::int64_t n, const float* condition, const float* a, float* y) {
  for (std::int64_t i = 0; i < n; ++i) {
    y[i] = condition[i] != 0.0f ? a[i] : y[i];
  }
}
inline void multiply_add_reference(std::int64_t n, const float* a, const float* b, double* y,
                                   double beta = 1) {
  for (std::int64_t i = 0; i < n; ++i) {
    y[i] = (beta == 0 ? 0 : y[i]) + double{a[i]} * double{b[i]};
  }
}

// f(a, b) of one number; add_number and scale are those of one a for all b.
inline float add_reference(float a, float b) { return a + b; }
inline float sub_reference(float a, float b) { return a - b; }
inline float mul_reference(float a, float b) { return a * b; }
inline float div_reference(float a, float b) { return a / b; }
inline float less_reference(float a, float b) { return a < b ? 1.0f : 0.0f; }
inline float equal_reference(float a, float b) { return a == b ? 1.0f : 0.0f; }
inline float larger_reference(float a, float b) {
  return detail::is_nan(double{a}) || a > b ? 1.0f : 0.0f;
}
inline float maximum_reference(float a, float b) { return larger_reference(a, b) != 0.0f ? a : b; }

// f(x), and f'(x) as the slope.
inline double exp_reference(double x) { return std::exp(x); }
inline double log_reference(double x) { return std::log(x); }
inline double sqrt_reference(double x) { return std::sqrt(x); }
inline double square_reference(double x) { return x * x; }
inline double cube_reference(double x) { return x * x * x; }
inline double abs_reference(double x) { return x > 0 ? x : 0 - x; }
inline double tanh_reference(double x) { return std::tanh(x); }
inline double erf_reference(double x) { return std::erf(x); }
inline double sigmoid_reference(double x) { return 1 / (1 + std::exp(-x)); }
inline double relu_reference(double x) { return x < 0 ? 0 : x; }
inline double silu_reference(double x) { return x / (1 + std::exp(-x)); }
inline double gelu_reference(double x) { return x * (1 + std::erf(x * std::sqrt(0.5))) / 2; }
inline double gelu_tanh_reference(double x) {
  return x * (1 + std::tanh(0.79788456080286536 * (x + 0.044715 * x * x * x))) / 2;
}
inline double log_slope_reference(double x) { return 1 / x; }
inline double sqrt_slope_reference(double y) { return 0.5 / y; }  // from y = sqrt(x)
inline double square_slope_reference(double x) { return 2 * x; }
inline double abs_slope_reference(double x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }
inline double erf_slope_reference(double x) {  // 2 / sqrt(pi)
  return 1.1283791670955126 * std::exp(-x * x);
}
inline double sigmoid_slope_reference(double y) { return y * (1 - y); }  // from y = sigmoid(x)
inline double relu_slope_reference(double x) { return x > 0 ? 1 : 0; }
inline double tanh_slope_reference(double x) { return 1 - std::tanh(x) * std::tanh(x); }
inline double silu_slope_reference(double x) {
  const double s = 1 / (1 + std::exp(-x));
  return s * (1 + x * (1 - s));
}
inline double gelu_slope_reference(double x) {  // 0.3989... = 1 / sqrt(2 pi)
  return (1 + std::erf(x * std::sqrt(0.5))) / 2 + 0.39894228040143268 * x * std::exp(-x * x / 2);
}
inline double gelu_tanh_slope_reference(double x) {  // t = tanh(u); t' = (1 - t^2) u'
  const double t = std::tanh(0.79788456080286536 * (x + 0.044715 * x * x * x));
  return (1 + t + x * (1 - t * t) * 0.79788456080286536 * (1 + 0.134145 * x * x)) / 2;
}

}  // namespace kernels

namespace detail {

constexpr std::int64_t elementwise_block = 8192;  // floats; a multiple of every lane width

struct MapOperands {
  std::int64_t n;
  const float* a;
  const float* b;
  float beta;  // 0: y is not read
  float* y;
  bool past = false;  // y, which begins a cache line, is written past the caches
};

// One block: loads a and b (and y where Op adds to it), applies op, stores y.
template <class Op>
struct MapBlock {
  const Op& op;
  const MapOperands& m;

  template <class L>
  TINYSCALE_INLINE void run() const {
    typedef typename L::V V;
    const MapOperands w = m;  // its own: a store into y might change m
    const bool adds = Op::adds && w.beta != 0.0f;
    const std::int64_t ahead = fetch_ahead(1024);
    V va, vb, vy;
    for (std::int64_t i = 0; i < w.n; i += L::width) {
      load_some<L>(w.a + i, w.n - i, 0.0f, va);
      load_some<L>(w.b + i, w.n - i, 0.0f, vb);
      if (ahead != 0) {
        prefetch<3>(w.a + i + ahead);
        prefetch<3>(w.b + i + ahead);
      }
      vy = V{};
      if (adds) {
        load_some<L>(w.y + i, w.n - i, 0.0f, vy);
      }
      op.template apply<L>(va, vb, vy);
      put_some<L>(w.past, vy, w.n - i, w.y + i);
    }
  }
};

template <class Op>
void map_block(const void* op, const MapOperands& m) {
  run_on_lanes(MapBlock<Op>{*static_cast<const Op*>(op), m});
}

[[gnu::noinline]] inline void check_operands(const char* who, const MapOperands& all) {
  const Memory y{"y", all.y, count_of(who, {all.n})};
  check_in_place(who, y, {{"an operand", all.a, all.n}, {"an operand", all.b, all.n}});
}

// The blocks of all ops: what differs is a function pointer, so it is compiled once.
inline void map_blocks(const char* who, void (*block)(const void* op, const MapOperands& m),
                       const void* op, const MapOperands& all, bool reads_y) {
  const std::int64_t n = all.n;
  if (!is_count(n) || !is_plain(all.y, all.a, n) || !is_plain(all.y, all.b, n)) {
    check_operands(who, all);
  }
  const std::int64_t blocks = (all.n + elementwise_block - 1) / elementwise_block;
  const bool past = !reads_y && all.y != all.a && all.y != all.b &&
                    reinterpret_cast<std::uintptr_t>(all.y) % 64 == 0 && past_caches(all.n);
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t at = i * elementwise_block;
      block(op, MapOperands{std::min(elementwise_block, all.n - at), all.a + at, all.b + at,
                            all.beta, all.y + at, past});
    }
    if (past) {
      end_past_caches();
    }
  };
  if (blocks <= 2) {
    body(0, blocks);
  } else {
    parallel_for(blocks, 2, body);
  }
}

template <class Op>
void map(const char* who, const Op& op, std::int64_t n, const float* a, const float* b, float* y,
         float beta = 1.0f) {
  map_blocks(who, &map_block<Op>, &op, MapOperands{n, a, b, beta, y}, Op::adds && beta != 0.0f);
}

// An operation: y = EXPRESSION of the vectors a and b (and of y itself where ADDS is true).
#define TINYSCALE_MAP_OP(NAME, ADDS, ...)                                       \
  struct NAME {                                                                 \
    static constexpr bool adds = ADDS;                                          \
    template <class L>                                                          \
    TINYSCALE_INLINE void apply(const typename L::V& a, const typename L::V& b, \
                                typename L::V& y) const {                       \
      typedef typename L::V V;                                                  \
      (void)sizeof(V);                                                          \
      (void)b;                                                                  \
      __VA_ARGS__                                                               \
    }                                                                           \
  }

TINYSCALE_MAP_OP(AddOp, false, y = a + b;);
TINYSCALE_MAP_OP(SubOp, false, y = a - b;);
TINYSCALE_MAP_OP(MulOp, false, y = a * b;);
TINYSCALE_MAP_OP(DivOp, false, y = a / b;);
TINYSCALE_MAP_OP(MultiplyAddOp, true, y = y + a * b;);
TINYSCALE_MAP_OP(ChooseOp, true, y = a != V{} ? b : y;);
TINYSCALE_MAP_OP(LessOp, false, V one; broadcast<L>(1.0f, one); y = a < b ? one : V{};);
TINYSCALE_MAP_OP(EqualOp, false, V one; broadcast<L>(1.0f, one); y = a == b ? one : V{};);
// Of two the first where it is larger or NaN; and whether it is.
TINYSCALE_MAP_OP(MaximumOp, false, typename L::I nan; is_nan<L>(a, nan); max_vector<L>(b, a, y);
                 blend<L>(nan, a, y, y););
TINYSCALE_MAP_OP(LargerOp, false, V one; broadcast<L>(1.0f, one); typename L::I nan;
                 typename L::I takes; is_nan<L>(a, nan); less<L>(b, a, takes);
                 blend<L>(takes | nan, one, V{}, y););
TINYSCALE_MAP_OP(SquareOp, false, y = a * a;);
TINYSCALE_MAP_OP(CubeOp, false, y = a * a * a;);
TINYSCALE_MAP_OP(SquareBackwardOp, true, y = y + 2.0f * b * a;);
TINYSCALE_MAP_OP(AbsOp, false, y = a > V{} ? a : 0.0f - a;);
TINYSCALE_MAP_OP(AbsBackwardOp, true, const V down = a < V{} ? -b : V{};
                 y = y + (a > V{} ? b : down););
TINYSCALE_MAP_OP(LogOp, false, any_log<L>(a, y););
TINYSCALE_MAP_OP(LogBackwardOp, true, y = y + b / a;);
TINYSCALE_MAP_OP(SqrtOp, false, exact_sqrt(a, y););
TINYSCALE_MAP_OP(SqrtBackwardOp, true, y = y + 0.5f * b / a;);  // a is the root
TINYSCALE_MAP_OP(ExpOp, false, exp_vector<L>(a, y););
TINYSCALE_MAP_OP(TanhOp, false, tanh_vector<L>(a, y););
TINYSCALE_MAP_OP(ErfOp, false, erf_vector<L>(a, y););
TINYSCALE_MAP_OP(ErfBackwardOp, true, V s; exp_vector<L>(-(a * a), s);
                 y = y + b * (1.12837916709551257f * s););
// From e^-|x|, which cannot overflow.
TINYSCALE_MAP_OP(SigmoidOp, false, V e; V one; broadcast<L>(1.0f, one);
                 exp_vector<L>(a < 0.0f ? a : -a, e); y = (a < 0.0f ? e : one) / (1.0f + e););
TINYSCALE_MAP_OP(SigmoidBackwardOp, true, y = y + b * (a * (1.0f - a)););
TINYSCALE_MAP_OP(TanhBackwardOp, true, V t; tanh_vector<L>(a, t); y = y + b * (1.0f - t * t););
TINYSCALE_MAP_OP(ReluOp, false, max_vector<L>(a, V{}, y););

TINYSCALE_MAP_OP(ReluBackwardOp, true, V g; typename L::I positive; less<L>(V{}, a, positive);
                 blend<L>(positive, b, V{}, g); y = y + g;);

TINYSCALE_MAP_OP(SiluOp, false, V t; V d; one_and_exp<L>(a, t, d); broadcast<L>(silu_lowest, t);
                 max_vector<L>(a, t, t); y = t / d;);

TINYSCALE_MAP_OP(SiluBackwardOp, true, V t; V s; one_and_exp<L>(a, t, s); s = 1.0f / s;
                 y = y + b * s * (1.0f + t * (1.0f - s)););

TINYSCALE_MAP_OP(GeluOp, false, V t; erf_vector<L>(a * 0.70710678118654752f, t);
                 y = 0.5f * a * (1.0f + t););

TINYSCALE_MAP_OP(GeluBackwardOp, true, V slope; gelu_slope_vector<L>(a, slope); y = y + b * slope;);

TINYSCALE_MAP_OP(GeluTanhOp, false, V t; V d; one_and_exp_gelu<L>(a, t, d);
                 broadcast<L>(gelu_lowest, t); max_vector<L>(a, t, t); y = t / d;);

// s + x s (1 - s) 2u', where s = 1 / (1 + e^-2u) = (1 + tanh(u)) / 2
TINYSCALE_MAP_OP(GeluTanhBackwardOp, true, V t; V s; one_and_exp_gelu<L>(a, t, s); s = 1.0f / s;
                 const V du = t * t * 0.21406445f + 1.59576912f;
                 y = y + b * s * (1.0f + t * (1.0f - s) * du););

#undef TINYSCALE_MAP_OP

struct ScaleOp {  // y = factor a
  static constexpr bool adds = false;
  float factor;
  template <class L>
  TINYSCALE_INLINE void apply(const typename L::V& a, const typename L::V&,
                              typename L::V& y) const {
    typename L::V f;
    broadcast<L>(factor, f);
    y = a * f;
  }
};

struct AddNumberOp {  // y = a + number
  static constexpr bool adds = false;
  float number;
  template <class L>
  TINYSCALE_INLINE void apply(const typename L::V& a, const typename L::V&,
                              typename L::V& y) const {
    typename L::V n;
    broadcast<L>(number, n);
    y = a + n;
  }
};

}  // namespace detail

namespace kernels {

// Arithmetic: y[i] = a[i] op b[i]. y may be a or b.
inline void add(std::int64_t n, const float* a, const float* b, float* y) {
  detail::map("add", detail::AddOp{}, n, a, b, y);
}
inline void sub(std::int64_t n, const float* a, const float* b, float* y) {
  detail::map("sub", detail::SubOp{}, n, a, b, y);
}
inline void mul(std::int64_t n, const float* a, const float* b, float* y) {
  detail::map("mul", detail::MulOp{}, n, a, b, y);
}
inline void div(std::int64_t n, const float* a, const float* b, float* y) {
  detail::map("div", detail::DivOp{}, n, a, b, y);
}
// Comparisons: 1 or 0; a NaN compares to nothing. The larger: a where a is larger or NaN.
inline void less(std::int64_t n, const float* a, const float* b, float* y) {
  detail::map("less", detail::LessOp{}, n, a, b, y);
}
inline void equal(std::int64_t n, const float* a, const float* b, float* y) {
  detail::map("equal", detail::EqualOp{}, n, a, b, y);
}
inline void larger(std::int64_t n, const float* a, const float* b, float* y) {
  detail::map("larger", detail::LargerOp{}, n, a, b, y);
}
inline void maximum(std::int64_t n, const float* a, const float* b, float* y) {
  detail::map("maximum", detail::MaximumOp{}, n, a, b, y);
}
// y = a where the condition is not 0.
inline void choose(std::int64_t n, const float* condition, const float* a, float* y) {
  detail::map("choose", detail::ChooseOp{}, n, condition, a, y);
}
inline void add_number(std::int64_t n, float number, const float* x, float* y) {  // y = x + number
  detail::map("add_number", detail::AddNumberOp{number}, n, x, x, y);
}
inline void multiply_add(std::int64_t n, const float* a, const float* b, float* y,
                         float beta = 1.0f) {  // y = beta y + a b
  detail::map("multiply_add", detail::MultiplyAddOp{}, n, a, b, y, beta);
}
inline void scale(std::int64_t n, float factor, const float* x, float* y) {  // y = factor x
  detail::map("scale", detail::ScaleOp{factor}, n, x, x, y);
}

// Activations: y[i] = f(x[i]).
inline void exp_forward(std::int64_t n, const float* x, float* y) {
  detail::map("exp_forward", detail::ExpOp{}, n, x, x, y);
}
inline void log_forward(std::int64_t n, const float* x, float* y) {
  detail::map("log_forward", detail::LogOp{}, n, x, x, y);
}
inline void sqrt_forward(std::int64_t n, const float* x, float* y) {
  detail::map("sqrt_forward", detail::SqrtOp{}, n, x, x, y);
}
inline void square_forward(std::int64_t n, const float* x, float* y) {
  detail::map("square_forward", detail::SquareOp{}, n, x, x, y);
}
inline void cube_forward(std::int64_t n, const float* x, float* y) {
  detail::map("cube_forward", detail::CubeOp{}, n, x, x, y);
}
inline void abs_forward(std::int64_t n, const float* x, float* y) {  // 0 of -0
  detail::map("abs_forward", detail::AbsOp{}, n, x, x, y);
}
inline void tanh_forward(std::int64_t n, const float* x, float* y) {
  detail::map("tanh_forward", detail::TanhOp{}, n, x, x, y);
}
inline void erf_forward(std::int64_t n, const float* x, float* y) {
  detail::map("erf_forward", detail::ErfOp{}, n, x, x, y);
}
inline void sigmoid_forward(std::int64_t n, const float* x, float* y) {  // 1 / (1 + exp(-x))
  detail::map("sigmoid_forward", detail::SigmoidOp{}, n, x, x, y);
}
inline void relu_forward(std::int64_t n, const float* x, float* y) {  // max(x, 0)
  detail::map("relu_forward", detail::ReluOp{}, n, x, x, y);
}
inline void silu_forward(std::int64_t n, const float* x, float* y) {  // x / (1 + exp(-x))
  detail::map("silu_forward", detail::SiluOp{}, n, x, x, y);
}
inline void gelu_forward(std::int64_t n, const float* x, float* y) {
  detail::map("gelu_forward", detail::GeluOp{}, n, x, x, y);
}
inline void gelu_tanh_forward(std::int64_t n, const float* x, float* y) {
  detail::map("gelu_tanh_forward", detail::GeluTanhOp{}, n, x, x, y);
}

// Their derivatives: dx[i] = beta dx[i] + f'(x[i]) dy[i].
inline void log_backward(std::int64_t n, const float* x, const float* dy, float* dx,
                         float beta = 1.0f) {
  detail::map("log_backward", detail::LogBackwardOp{}, n, x, dy, dx, beta);
}
inline void sqrt_backward(std::int64_t n, const float* y, const float* dy, float* dx,
                          float beta = 1.0f) {  // from y = sqrt(x)
  detail::map("sqrt_backward", detail::SqrtBackwardOp{}, n, y, dy, dx, beta);
}
inline void square_backward(std::int64_t n, const float* x, const float* dy, float* dx,
                            float beta = 1.0f) {
  detail::map("square_backward", detail::SquareBackwardOp{}, n, x, dy, dx, beta);
}
inline void abs_backward(std::int64_t n, const float* x, const float* dy, float* dx,
                         float beta = 1.0f) {  // 0 at 0
  detail::map("abs_backward", detail::AbsBackwardOp{}, n, x, dy, dx, beta);
}
inline void tanh_backward(std::int64_t n, const float* x, const float* dy, float* dx,
                          float beta = 1.0f) {
  detail::map("tanh_backward", detail::TanhBackwardOp{}, n, x, dy, dx, beta);
}
inline void erf_backward(std::int64_t n, const float* x, const float* dy, float* dx,
                         float beta = 1.0f) {
  detail::map("erf_backward", detail::ErfBackwardOp{}, n, x, dy, dx, beta);
}
// From y = sigmoid(x), as x.
inline void sigmoid_backward(std::int64_t n, const float* y, const float* dy, float* dx,
                             float beta = 1.0f) {
  detail::map("sigmoid_backward", detail::SigmoidBackwardOp{}, n, y, dy, dx, beta);
}
inline void relu_backward(std::int64_t n, const float* x, const float* dy, float* dx,
                          float beta = 1.0f) {
  detail::map("relu_backward", detail::ReluBackwardOp{}, n, x, dy, dx, beta);
}
inline void silu_backward(std::int64_t n, const float* x, const float* dy, float* dx,
                          float beta = 1.0f) {
  detail::map("silu_backward", detail::SiluBackwardOp{}, n, x, dy, dx, beta);
}
inline void gelu_backward(std::int64_t n, const float* x, const float* dy, float* dx,
                          float beta = 1.0f) {
  detail::map("gelu_backward", detail::GeluBackwardOp{}, n, x, dy, dx, beta);
}
inline void gelu_tanh_backward(std::int64_t n, const float* x, const float* dy, float* dx,
                               float beta = 1.0f) {
  detail::map("gelu_tanh_backward", detail::GeluTanhBackwardOp{}, n, x, dy, dx, beta);
}

}  // namespace kernels
}  // namespace tinyscale
