#pragma once
// The loops of a vector program, one an operation: vector after vector of a few rows in the cache.
// An operand that is one number stands as 16 equal ones in memory and its pointer does not move, so
// that there is one loop for all kinds of operands.

#include <algorithm>  // min
#include <cmath>
#include <cstdint>
#include <limits>

#include "tinyscale/compute/elementwise.hpp"
#include "tinyscale/compute/exp_rows.hpp"
#include "tinyscale/compute/lane_math.hpp"
#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/compute/sums.hpp"
#include "tinyscale/compute/vector_program.hpp"

namespace tinyscale {
namespace detail {

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
  if constexpr (OP == O::sub || OP == O::sub_squares) y = a - b;
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
  if constexpr (OP == O::sigmoid) SigmoidOp().template apply<L>(a, a, y);
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
  if constexpr (OP == O::less) LessOp().template apply<L>(a, b, y);
  if constexpr (OP == O::equal) EqualOp().template apply<L>(a, b, y);
}

// Operations so short and so usual that each kind of operands has its own loop of four vectors.
constexpr bool is_cheap(kernels::VectorOp op) {
  typedef kernels::VectorOp O;
  return op <= O::mul || op == O::mul_add || op == O::maximum || op == O::square || op == O::relu ||
         op == O::sub_squares;
}

// Rows of operands: operand k of row r begins at a[k] + r row_step[k]; where it does not move it is
// 16 equal numbers, and where it is scalar, one a row. While they are computed with, what the next
// block reads is asked for from `ahead` on: of each number one 2^-ahead_shift-th.
struct VectorRows {
  std::int64_t rows, n;
  const float* a[3];
  std::int64_t row_step[3];
  bool moves[3], scalar[3];
  float* y;
  std::int64_t y_row_step;
  bool y_moves;  // else what is stored is not wanted
  float* sums;   // of each row, where they are
  const float* ahead;
  int ahead_shift;
};

// One row of rows: from which operands, and where it goes.
struct VectorRow {
  std::int64_t n;
  const float* a[3];
  std::int64_t steps[3];  // 1 or 0
  float* y;
  std::int64_t y_step;
  float* sum;
  const float* ahead;
  int ahead_shift;
};

// Operand k is one number in a register, where bit k of FIXED says so. Else it moves, or where
// ANY, as its step says.
template <class L, kernels::VectorOp OP, bool SUM, unsigned FIXED, bool ANY>
TINYSCALE_INLINE void one_row(const VectorRow& row) {
  typedef typename L::V V;
  constexpr int operands = facts_of(OP).operands;
  constexpr int parts = is_cheap(OP) && !ANY && L::width > 4 ? 4 : 1;  // of 1, one loop is enough
  constexpr std::int64_t wide = parts * L::width;
  const std::int64_t n = row.n, dy = SUM ? row.y_step : 1;
  const float *const pa = row.a[0], *const pb = row.a[1], *const pc = row.a[2];
  const std::int64_t da = ANY ? row.steps[0] : 1, db = ANY ? row.steps[1] : 1;
  const std::int64_t dc = ANY ? row.steps[2] : 1;
  float* const y = row.y;
  const float* const ahead = row.ahead;
  const int shift = row.ahead_shift;
  V a, b{}, c{}, v;
  [[maybe_unused]] V sums[4] = {};
  if constexpr ((FIXED & 1U) != 0) {
    broadcast<L>(*pa, a);
  }
  if constexpr ((FIXED & 2U) != 0) {
    broadcast<L>(*pb, b);
  }
  if constexpr ((FIXED & 4U) != 0) {
    broadcast<L>(*pc, c);
  }
  std::int64_t j = 0;
  if constexpr (parts > 1) {
    for (; j + wide <= n; j += wide) {
      prefetch<3>(ahead + (j >> shift));
      TINYSCALE_UNROLL
      for (int part = 0; part < parts; ++part) {
        const std::int64_t i = j + part * L::width;
        if constexpr ((FIXED & 1U) == 0) {
          load<L>(pa + i * da, a);
        }
        if constexpr (operands > 1 && (FIXED & 2U) == 0) {
          load<L>(pb + i * db, b);
        }
        if constexpr (operands > 2 && (FIXED & 4U) == 0) {
          load<L>(pc + i * dc, c);
        }
        vector_op<L, OP>(a, b, c, v);
        if constexpr (SUM) {
          sums[part] = sums[part] + (OP == kernels::VectorOp::sub_squares ? v * v : v);
        }
        store<L>(y + i * dy, v);
      }
    }
  }
  for (; j < n; j += L::width) {
    const std::int64_t left = n - j;
    if constexpr (parts == 1) {
      prefetch<3>(ahead + (j >> shift));
    }
    if constexpr ((FIXED & 1U) == 0) {
      load_some<L>(pa + j * da, left, 0.0f, a);
    }
    if constexpr (operands > 1 && (FIXED & 2U) == 0) {
      load_some<L>(pb + j * db, left, 0.0f, b);
    }
    if constexpr (operands > 2 && (FIXED & 4U) == 0) {
      load_some<L>(pc + j * dc, left, 0.0f, c);
    }
    vector_op<L, OP>(a, b, c, v);
    store_some<L>(y + j * dy, left, v);
    if constexpr (SUM) {
      if (left < L::width) {  // what is past the row counts as 0
        float lanes[L::width];
        store<L>(lanes, V{});
        store_part<L>(lanes, left, v);
        load<L>(lanes, v);
      }
      sums[0] = sums[0] + (OP == kernels::VectorOp::sub_squares ? v * v : v);
    }
  }
  if constexpr (SUM) {
    for (int part = 1; part < parts; ++part) {
      sums[0] = sums[0] + sums[part];
    }
    *row.sum = sum_lanes<L>(sums[0]);
  }
}

// The loop for the operands that there are: FIXED is the last, the last two, ..
template <class L, kernels::VectorOp OP, bool SUM>
TINYSCALE_INLINE void choose_row(const VectorRow& row) {
  constexpr int operands = facts_of(OP).operands;
  if constexpr (operands == 1) {
    if constexpr (OP == kernels::VectorOp::copy) {  // the one that may widen
      if (row.steps[0] == 0) {
        one_row<L, OP, SUM, 1U, false>(row);
        return;
      }
    }
    one_row<L, OP, SUM, 0U, false>(row);
  } else if constexpr (!is_cheap(OP)) {
    one_row<L, OP, SUM, 0U, true>(row);
  } else if constexpr (operands == 2) {
    if (row.steps[0] == 0) {
      one_row<L, OP, SUM, 0U, true>(row);
    } else if (row.steps[1] == 0) {
      one_row<L, OP, SUM, 2U, false>(row);
    } else {
      one_row<L, OP, SUM, 0U, false>(row);
    }
  } else {
    const bool first = row.steps[0] != 0;
    if (first && row.steps[1] == 0 && row.steps[2] == 0) {
      one_row<L, OP, SUM, 6U, false>(row);
    } else if (first && row.steps[1] == 0) {
      one_row<L, OP, SUM, 2U, false>(row);
    } else if (first && row.steps[2] != 0) {
      one_row<L, OP, SUM, 0U, false>(row);
    } else {
      one_row<L, OP, SUM, 0U, true>(row);
    }
  }
}

template <class L, kernels::VectorOp OP, bool SUM = false>
TINYSCALE_INLINE void all_rows(const VectorRows& all) {
  constexpr int operands = facts_of(OP).operands;
  alignas(64) float equal[3][16];
  VectorRow row{};
  row.n = all.n;
  row.y_step = all.y_moves ? 1 : 0;
  row.ahead_shift = all.ahead_shift;
  for (int k = 0; k < operands; ++k) {
    row.steps[k] = all.moves[k] ? 1 : 0;
  }
  for (std::int64_t r = 0; r < all.rows; ++r) {
    TINYSCALE_UNROLL
    for (int k = 0; k < operands; ++k) {
      row.a[k] = all.a[k] + r * all.row_step[k];
      if (all.scalar[k]) {
        typename L::V v;
        broadcast<L>(*row.a[k], v);
        store<L>(equal[k], v);
        row.a[k] = equal[k];
      }
    }
    row.y = all.y + r * all.y_row_step;
    row.sum = SUM ? all.sums + r : nullptr;
    row.ahead = all.ahead + ((r * all.n) >> all.ahead_shift);
    if constexpr (OP == kernels::VectorOp::div) {
      // By a number of the row: times its reciprocal, where that has all its digits.
      const float by = std::fabs(*row.a[1]);
      if (all.scalar[1] && all.moves[0] && by > 1e-30f && by < 1e30f) {
        equal[1][0] = 1.0f / *row.a[1];
        row.a[1] = equal[1];
        one_row<L, kernels::VectorOp::mul, false, 2U, false>(row);
        continue;
      }
    }
    choose_row<L, OP, SUM>(row);
  }
}

// The maximum of a row, NaN where one is; a sum shows at little cost whether one may be.
template <class L>
TINYSCALE_INLINE float any_row_max(std::int64_t n, const float* x, const float* ahead, int shift) {
  typedef typename L::V V;
  const float lowest = -std::numeric_limits<float>::infinity();
  V best[4], v, sums[4] = {};
  for (V& each : best) {
    broadcast<L>(lowest, each);
  }
  std::int64_t j = 0;
  for (; j + 4 * L::width <= n; j += 4 * L::width) {
    prefetch<3>(ahead + (j >> shift));
    TINYSCALE_UNROLL
    for (int part = 0; part < 4; ++part) {
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
  for (int part = 1; part < 4; ++part) {
    max_vector<L>(best[0], best[part], best[0]);
    sums[0] = sums[0] + sums[part];
  }
  if (is_nan(static_cast<double>(sum_lanes<L>(sums[0])))) {
    for (j = 0; j < n; ++j) {
      if (is_nan(static_cast<double>(x[j]))) {
        return x[j];
      }
    }
  }
  return max_lanes<L>(best[0]);
}

struct AheadTerm {
  const float* x;
  const float* ahead;
  int shift;
  template <class L>
  TINYSCALE_INLINE void get(std::int64_t j, std::int64_t left, typename L::V& v) const {
    prefetch<3>(ahead + (j >> shift));
    load_some<L>(x + j, left, 0.0f, v);
  }
};

template <class L>
TINYSCALE_INLINE void reduce_rows(kernels::VectorOp op, const VectorRows& all) {
  typedef kernels::VectorOp O;
  if (op == O::sum_exp) {
    sum_exp_rows<L>(all.rows, all.n, all.a[0], all.row_step[0], all.y, all.sums);
  }
  for (std::int64_t r = 0; r < all.rows; ++r) {
    const float* const x = all.a[0] + r * all.row_step[0];
    const float* const ahead = all.ahead + ((r * all.n) >> all.ahead_shift);
    float& y = all.y[r];
    if (op == O::row_sum) {
      y = row_sum<L>(all.n, AheadTerm{x, ahead, all.ahead_shift});
    } else if (op == O::row_max) {
      y = any_row_max<L>(all.n, x, ahead, all.ahead_shift);
    } else if (op == O::row_pick) {
      const float at = all.a[1][r * all.row_step[1]];
      const bool there = at >= 0.0f && at < static_cast<float>(all.n);
      const std::int64_t j = there ? static_cast<std::int64_t>(at) : 0;
      y = there && static_cast<float>(j) == at && j < all.n ? x[j] : 0.0f;
    } else {
      float& sum = all.sums[r];
      if (!is_finite(static_cast<double>(y)) || !is_finite(static_cast<double>(sum))) {
        y = any_row_max<L>(all.n, x, ahead, all.ahead_shift);
        sum = all.n == 0 ? 0.0f : std::numeric_limits<float>::quiet_NaN();
      }
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

}  // namespace detail
}  // namespace tinyscale
