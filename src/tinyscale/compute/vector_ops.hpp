#pragma once
// The loops of a vector program, one an operation: vector after vector of a few rows in the cache.
// An operand that is one number stands as 16 equal ones in memory and its pointer does not move, so
// that there is one loop for all kinds of operands.

#include <algorithm>  // min
#include <cmath>
#include <cstdint>
#include <limits>

#include "tinyscale/compute/elementwise.hpp"
#include "tinyscale/compute/lane_math.hpp"
#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/compute/softmax.hpp"
#include "tinyscale/compute/sums.hpp"
#include "tinyscale/compute/vector_program.hpp"

namespace tinyscale {
namespace detail {

// Exactly rounded, NaN below 0. clang and g++ name the instruction differently.
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS
__attribute__((target("avx512f"))) inline void exact_sqrt(const Lanes16::V& x, Lanes16::V& y) {
#if defined(__clang__)
  y = __builtin_ia32_sqrtps512(x, 4);
#else
  y = __builtin_ia32_sqrtps512_mask(x, x, -1, 4);
#endif
}
__attribute__((target("avx2,fma"))) inline void exact_sqrt(const Lanes8::V& x, Lanes8::V& y) {
  y = __builtin_ia32_sqrtps256(x);
}
#endif
template <class V>
TINYSCALE_INLINE void exact_sqrt(const V& x, V& y) {
  float lanes[sizeof(V) / sizeof(float)];
  std::memcpy(lanes, &x, sizeof(V));
  for (float& lane : lanes) {
    lane = std::sqrt(lane);
  }
  std::memcpy(&y, lanes, sizeof(V));
}

// ln(x) of any x: -inf of 0, NaN below, and denormal numbers scaled by 2^24 first.
template <class L>
TINYSCALE_INLINE void any_log(const typename L::V& x, typename L::V& y) {
  typedef typename L::V V;
  constexpr float inf = std::numeric_limits<float>::infinity();
  V zero{}, t, low, none;
  t = x < std::numeric_limits<float>::min() ? x * 16777216.0f : x;
  log_vector<L>(t, y);
  y = x < std::numeric_limits<float>::min() ? y - 16.6355323334f : y;
  broadcast<L>(-inf, low);
  broadcast<L>(std::numeric_limits<float>::quiet_NaN(), none);
  low = x == zero ? low : none;
  y = x > zero ? y : low;
  broadcast<L>(inf, low);
  y = x == low ? x : y;
}

template <class L, class Op>
TINYSCALE_INLINE void slope_of(const Op& op, const typename L::V& a, typename L::V& y) {
  typename L::V one;
  broadcast<L>(1.0f, one);
  y = typename L::V{};
  op.template apply<L>(a, one, y);
}

template <class L, kernels::VectorOp OP>
TINYSCALE_INLINE void vector_op(const typename L::V& a, const typename L::V& b,
                                const typename L::V& c, typename L::V& y) {
  typedef kernels::VectorOp O;
  const typename L::V zero{};
  static_cast<void>(b);
  static_cast<void>(c);
  static_cast<void>(zero);
  if constexpr (OP == O::copy) y = a;
  if constexpr (OP == O::add) y = a + b;
  if constexpr (OP == O::sub) y = a - b;
  if constexpr (OP == O::mul) y = a * b;
  if constexpr (OP == O::div) y = a / b;
  if constexpr (OP == O::mul_add) y = a * b + c;
  if constexpr (OP == O::square) y = a * a;
  if constexpr (OP == O::cube) y = a * a * a;
  if constexpr (OP == O::where) y = a != zero ? b : c;
  if constexpr (OP == O::exp) exp_vector<L>(a, y);
  if constexpr (OP == O::log) any_log<L>(a, y);
  if constexpr (OP == O::sqrt) exact_sqrt(a, y);
  if constexpr (OP == O::tanh) tanh_vector<L>(a, y);
  if constexpr (OP == O::erf) erf_vector<L>(a, y);
  if constexpr (OP == O::relu) max_vector<L>(a, zero, y);
  if constexpr (OP == O::sigmoid) sigmoid_vector<L>(a, y);
  if constexpr (OP == O::silu) SiluOp().template apply<L>(a, a, y);
  if constexpr (OP == O::gelu) GeluOp().template apply<L>(a, a, y);
  if constexpr (OP == O::gelu_tanh) GeluTanhOp().template apply<L>(a, a, y);
  if constexpr (OP == O::relu_slope) slope_of<L>(ReluBackwardOp(), a, y);
  if constexpr (OP == O::tanh_slope) slope_of<L>(TanhBackwardOp(), a, y);
  if constexpr (OP == O::silu_slope) slope_of<L>(SiluBackwardOp(), a, y);
  if constexpr (OP == O::gelu_slope) gelu_slope_vector<L>(a, y);
  if constexpr (OP == O::gelu_tanh_slope) slope_of<L>(GeluTanhBackwardOp(), a, y);
  if constexpr (OP == O::exp_sub) exp_vector<L>(a - b, y);
  if constexpr (OP == O::exp_below_max) exp_negative<L>(a - b, y);
  if constexpr (OP == O::maximum) {
    max_vector<L>(b, a, y);
    y = a == a ? y : a;
  }
  if constexpr (OP == O::less || OP == O::equal) {
    typename L::V one;
    broadcast<L>(1.0f, one);
    if constexpr (OP == O::less) {
      y = a < b ? one : zero;
    } else {
      y = a == b ? one : zero;
    }
  }
}

// Loops so short that taking four vectors at a time shows.
constexpr bool is_cheap(kernels::VectorOp op) {
  typedef kernels::VectorOp O;
  return op < O::exp || op == O::square || op == O::relu || op == O::cube;
}

// Rows of operands: operand k of row r begins at a[k] + r row_step[k]; where it does not move it is
// 16 equal numbers, and where it is scalar, one a row.
struct VectorRows {
  std::int64_t rows, n;
  const float* a[3];
  std::int64_t row_step[3];
  bool moves[3], scalar[3];
  float* y;
  std::int64_t y_row_step;
  bool y_moves;  // else what is stored is not wanted
  float* sums;   // of each row, where they are
};

template <class L, kernels::VectorOp OP, bool SUM>
TINYSCALE_INLINE void one_row(const VectorRows& all, const float* const (&from)[3], float* y,
                              float* sum) {
  typedef typename L::V V;
  constexpr int operands = facts_of(OP).operands;
  constexpr int parts = is_cheap(OP) ? 4 : 1;
  const std::int64_t da = all.moves[0] ? L::width : 0, db = all.moves[1] ? L::width : 0;
  const std::int64_t dc = all.moves[2] ? L::width : 0, dy = all.y_moves ? L::width : 0;
  const float *pa = from[0], *pb = from[1], *pc = from[2];
  V a, b{}, c{}, v, sums[parts] = {};
  std::int64_t left = all.n;
  for (; left >= parts * L::width; left -= parts * L::width) {
    TINYSCALE_UNROLL
    for (int part = 0; part < parts; ++part) {
      load<L>(pa, a);
      pa += da;
      if constexpr (operands > 1) {
        load<L>(pb, b);
        pb += db;
      }
      if constexpr (operands > 2) {
        load<L>(pc, c);
        pc += dc;
      }
      vector_op<L, OP>(a, b, c, v);
      if constexpr (SUM) {
        sums[part] = sums[part] + v;
      }
      store<L>(y, v);
      y += dy;
    }
  }
  for (; left > 0; left -= L::width) {
    load_some<L>(pa, left, 0.0f, a);
    pa += da;
    if constexpr (operands > 1) {
      load_some<L>(pb, left, 0.0f, b);
      pb += db;
    }
    if constexpr (operands > 2) {
      load_some<L>(pc, left, 0.0f, c);
      pc += dc;
    }
    vector_op<L, OP>(a, b, c, v);
    store_some<L>(y, left, v);
    y += dy;
    if constexpr (SUM) {
      if (left < L::width) {  // what is past the row counts as 0
        float lanes[L::width] = {};
        store_part<L>(lanes, left, v);
        load<L>(lanes, v);
      }
      sums[0] = sums[0] + v;
    }
  }
  if constexpr (SUM) {
    V all_of = sums[0];
    for (int part = 1; part < parts; ++part) {
      all_of = all_of + sums[part];
    }
    *sum = sum_lanes<L>(all_of);
  }
}

template <class L, kernels::VectorOp OP, bool SUM = false>
TINYSCALE_INLINE void all_rows(const VectorRows& all) {
  constexpr int operands = facts_of(OP).operands;
  alignas(64) float equal[3][16];
  const float* from[3] = {nullptr, nullptr, nullptr};
  for (std::int64_t r = 0; r < all.rows; ++r) {
    for (int k = 0; k < operands; ++k) {
      from[k] = all.a[k] + r * all.row_step[k];
      if (all.scalar[k]) {
        typename L::V v;
        broadcast<L>(*from[k], v);
        store<L>(equal[k], v);
        from[k] = equal[k];
      }
    }
    float* const y = all.y + r * all.y_row_step;
    float* const sum = SUM ? all.sums + r : nullptr;
    if constexpr (OP == kernels::VectorOp::div) {
      // By one number: times its reciprocal, where that has all its digits.
      const float by = std::fabs(*from[1]);
      if (!all.moves[1] && by > 1e-30f && by < 1e30f) {
        typename L::V v;
        broadcast<L>(1.0f / *from[1], v);
        store<L>(equal[1], v);
        from[1] = equal[1];
        one_row<L, kernels::VectorOp::mul, false>(all, from, y, sum);
        continue;
      }
    }
    one_row<L, OP, SUM>(all, from, y, sum);
  }
}

// The maximum of a row, NaN where one is; a sum shows at little cost whether one may be.
template <class L>
TINYSCALE_INLINE float any_row_max(std::int64_t n, const float* x) {
  typedef typename L::V V;
  const float lowest = -std::numeric_limits<float>::infinity();
  V best[2], v, sums[2] = {};
  broadcast<L>(lowest, best[0]);
  best[1] = best[0];
  std::int64_t j = 0;
  for (; j + 2 * L::width <= n; j += 2 * L::width) {
    TINYSCALE_UNROLL
    for (int part = 0; part < 2; ++part) {
      load<L>(x + j + part * L::width, v);
      max_vector<L>(best[part], v, best[part]);
      sums[part] = sums[part] + v;
    }
  }
  for (; j < n; j += L::width) {
    load_some<L>(x + j, n - j, lowest, v);
    max_vector<L>(best[0], v, best[0]);
    sums[0] = sums[0] + v;
  }
  max_vector<L>(best[0], best[1], best[0]);
  if (is_nan(static_cast<double>(sum_lanes<L>(sums[0] + sums[1])))) {
    for (j = 0; j < n; ++j) {
      if (is_nan(static_cast<double>(x[j]))) {
        return x[j];
      }
    }
  }
  return max_lanes<L>(best[0]);
}

template <class L>
TINYSCALE_INLINE void reduce_rows(kernels::VectorOp op, const VectorRows& all) {
  typedef kernels::VectorOp O;
  for (std::int64_t r = 0; r < all.rows; ++r) {
    const float* const x = all.a[0] + r * all.row_step[0];
    float& y = all.y[r];
    if (op == O::row_sum) {
      y = row_sum<L>(all.n, ValueTerm{x});
    } else if (op == O::row_max) {
      y = any_row_max<L>(all.n, x);
    } else if (op == O::row_pick) {
      const float at = all.a[1][r * all.row_step[1]];
      const bool there = at >= 0.0f && at < static_cast<float>(all.n);
      const std::int64_t j = there ? static_cast<std::int64_t>(at) : 0;
      y = there && static_cast<float>(j) == at && j < all.n ? x[j] : 0.0f;
    } else {
      float max = 0.0f, sum = 0.0f;
      sum_exp_row<L>(all.n, x, max, sum);
      if (!is_finite(static_cast<double>(max)) || !is_finite(static_cast<double>(sum))) {
        max = any_row_max<L>(all.n, x);
        sum = all.n == 0 ? 0.0f : std::numeric_limits<float>::quiet_NaN();
      }
      y = max;
      all.sums[r] = sum;
    }
  }
}

// Powers other than the second and third.
inline void power_rows(const VectorRows& all) {
  const double power = static_cast<double>(*all.a[1]);
  for (std::int64_t r = 0; r < all.rows; ++r) {
    for (std::int64_t j = 0; j < all.n; ++j) {
      const float x = all.a[0][r * all.row_step[0] + (all.moves[0] ? j : 0)];
      all.y[r * all.y_row_step + j] = static_cast<float>(std::pow(static_cast<double>(x), power));
    }
  }
}

// y = x past the caches: no line of y is read before it is written.
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS
#if defined(__clang__)
template <class V>
TINYSCALE_INLINE void store_past_caches(float* to, const V& v) {
  __builtin_nontemporal_store(v, reinterpret_cast<V*>(to));
}
#else
__attribute__((target("avx512f"))) inline void store_past_caches(float* to, const Lanes16::V& v) {
  __builtin_ia32_movntps512(to, v);
}
__attribute__((target("avx2,fma"))) inline void store_past_caches(float* to, const Lanes8::V& v) {
  __builtin_ia32_movntps256(to, v);
}
__attribute__((target("sse"))) inline void store_past_caches(float* to, const Lanes4::V& v) {
  __builtin_ia32_movntps(to, v);
}
#endif
inline void end_past_caches() { __builtin_ia32_sfence(); }
#else
template <class V>
TINYSCALE_INLINE void store_past_caches(float* to, const V& v) {
  std::memcpy(to, &v, sizeof(v));
}
inline void end_past_caches() {}
#endif

template <class L>
TINYSCALE_INLINE void stream_copy(std::int64_t n, const float* x, float* y) {
  typename L::V v;
  const std::int64_t past = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(y) % 64 / 4);
  const std::int64_t first = std::min(n, past == 0 ? 0 : 16 - past);
  std::int64_t i = 0;
  for (; i < first; ++i) {
    y[i] = x[i];
  }
  for (; i + L::width <= n; i += L::width) {
    load<L>(x + i, v);
    store_past_caches(y + i, v);
  }
  for (; i < n; ++i) {
    y[i] = x[i];
  }
}

// part[j] += the sum of `rows` rows.
template <class L>
TINYSCALE_INLINE void add_rows(std::int64_t rows, std::int64_t n, const float* x, float* part) {
  typename L::V sum, v;
  for (std::int64_t j = 0; j < n; j += L::width) {
    load_some<L>(part + j, n - j, 0.0f, sum);
    for (std::int64_t r = 0; r < rows; ++r) {
      load_some<L>(x + r * n + j, n - j, 0.0f, v);
      sum = sum + v;
    }
    store_some<L>(part + j, n - j, sum);
  }
}

}  // namespace detail
}  // namespace tinyscale
