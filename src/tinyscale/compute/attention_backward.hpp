#pragma once
// Backward of attention, in the blocks of forward (lanes are queries); P = exp(S - lse) again:
//   dV = P^T dO,  dS = P (dO V^T - sum(dO O)),  dQ = dS K scale,  dK = dS^T Q scale.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/attention.hpp"
#include "tinyscale/compute/lane_math.hpp"
#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/compute/scratch.hpp"
#include "tinyscale/compute/softmax.hpp"

namespace tinyscale {
namespace kernel {

// The reference body: what one query of one head adds to its dq and to this head's dk and dv.
inline void attention_backward_reference(const AttentionShape& s, std::int64_t seen, const float* q,
                                         const float* k, const float* v, const float* o, float lse,
                                         const float* d_o, double* dq, double* dk, double* dv) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(s.head_size));
  for (std::int64_t j = 0; j < seen; ++j) {
    const std::int64_t at_k = j * s.k_stride, at_v = j * s.v_stride;
    double score = 0, dp = 0;
    for (std::int64_t d = 0; d < s.head_size; ++d) {
      score += double{q[d]} * double{k[at_k + d]} * scale;
      dp += double{d_o[d]} * (double{v[at_v + d]} - double{o[d]});  // less sum(dO O)
    }
    const double p = std::exp(score - double{lse}), ds = p * dp * scale;
    for (std::int64_t d = 0; d < s.head_size; ++d) {
      dq[d] += ds * double{k[at_k + d]};
      dk[at_k + d] += ds * double{q[d]};
      dv[at_v + d] += p * double{d_o[d]};
    }
  }
}

}  // namespace kernel

namespace detail {

// sum(dO O) of each row.
struct AttentionMeans {
  std::int64_t rows, head_size, stride;
  const float* o;
  const float* d_o;
  float* mean;

  template <class L>
  TINYSCALE_INLINE void run() const {
    std::int64_t i = 0;
    if constexpr (L::width == 16) {
      for (; i + 16 <= rows && head_size % 16 == 0; i += 16) {
        sixteen<L>(i);
      }
    }
    for (; i < rows; ++i) {
      mean[i] = dot_row<L>(head_size, o + i * stride, d_o + i * stride);
    }
  }

  template <class L>
  TINYSCALE_INLINE void sixteen(std::int64_t first) const {
    typename L::V v, w, r[16] = {};
    const std::int64_t row = stride, end = head_size;
    const float* const x = o + first * row;
    const float* const y = d_o + first * row;
    for (std::int64_t j = 0; j < end; j += L::width) {
      TINYSCALE_UNROLL
      for (int i = 0; i < 16; ++i) {
        load<L>(x + i * row + j, v);
        load<L>(y + i * row + j, w);
        r[i] = r[i] + v * w;
      }
    }
    turn_square(r);
    TINYSCALE_UNROLL
    for (int i = 0; i < 8; ++i) {
      r[i] = r[i] + r[i + 8];
    }
    r[0] = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
    store<L>(mean + first, r[0]);
  }
};

// Raw scores p to probabilities, dP in g to dS scale.
struct AttentionSlopes {
  const AttentionBlock& t;
  float scale;
  const float* lse;
  const float* mean;
  float* p;
  float* g;

  template <class L>
  TINYSCALE_INLINE void run() const {
    typename L::V vp, vg, f, h, vl, vm;
    broadcast<L>(scale * log2_e, f);
    broadcast<L>(scale, h);
    for (std::int64_t lane = 0; lane < t.rows; lane += L::width) {
      const std::int64_t keys = t.held<L>(lane);
      hide_scores<L>(keys, lane + 1 - t.lead, p + lane);
      load<L>(lse + lane, vl);
      vl = vl * log2_e;
      load<L>(mean + lane, vm);
      vm = vm * h;
      for (std::int64_t at = lane; at < keys * attention_queries; at += attention_queries) {
        load<L>(p + at, vp);
        load<L>(g + at, vg);
        exp2_negative<L>(vp * f - vl, vp);
        store<L>(p + at, vp);
        store<L>(g + at, vp * (vg * h - vm));
      }
    }
  }
};

// One query head; its part of dk and dv is added to them.
inline void attention_backward_head(const kernel::AttentionShape& s, const AttentionHead& t,
                                    float beta) {
  constexpr std::int64_t wide = attention_queries;
  const std::int64_t turned = wide * s.head_size, size = s.head_size;
  const float scale = attention_scale(s);
  const Scratch lease(5 * turned + 2 * wide * attention_keys);
  float* const qt = lease.data();
  float* const gt = qt + turned;               // dO^T
  float* const p = gt + turned;                // [keys, lanes]
  float* const g = p + wide * attention_keys;  // dS
  float* const q = g + wide * attention_keys;  // rows of Q, dO and K
  float* const d_o = q + turned;
  float* const k = d_o + turned;
  for (std::int64_t begin = 0; begin < s.queries; begin += wide) {
    AttentionBlock block(s, begin);
    const std::int64_t at_q = begin * s.q_stride, at_o = begin * s.o_stride;
    float mean[static_cast<std::size_t>(wide)] = {}, lse[static_cast<std::size_t>(wide)] = {};
    std::copy(t.lse + begin, t.lse + begin + block.rows, lse);
    run_on_lanes(AttentionMeans{block.rows, size, s.o_stride, t.o + at_o, t.d_o + at_o, mean});
    run_on_lanes(AttentionTurn{block, t.q, s.q_stride, qt, q});
    run_on_lanes(AttentionTurn{block, t.d_o, s.o_stride, gt, d_o});
    for (std::int64_t j = 0; j == 0 || j < block.seen; j += attention_keys) {
      block.at(j);
      const std::int64_t at_k = j * s.k_stride, at_v = j * s.v_stride;
      run_on_lanes(AttentionScores{block, t.k, s.k_stride, qt, p});
      run_on_lanes(AttentionScores{block, t.v, s.v_stride, gt, g});
      run_on_lanes(AttentionSlopes{block, scale, lse, mean, p, g});
      run_on_lanes(AttentionCopy{block.keys, size, t.k + at_k, s.k_stride, k});
      attention_product({block.rows, size, block.keys, g, 1, wide, k, size, t.dq + at_q,
                         s.q_stride, j == 0 ? beta : 1.0f, -attention_all, -block.lead});
      attention_product({block.keys, size, block.rows, p, wide, 1, d_o, size, t.dv + at_v,
                         s.v_stride, 1.0f, block.lead});
      attention_product({block.keys, size, block.rows, g, wide, 1, q, size, t.dk + at_k,
                         s.k_stride, 1.0f, block.lead});
    }
  }
}

inline void attention_backward_task(const kernel::AttentionShape& s, const AttentionHead& all,
                                    std::int64_t b, std::int64_t kv, float beta) {
  const std::int64_t group = s.heads / s.kv_heads;
  float* const dk = all.dk + b * s.k_batch + kv * s.head_size;
  float* const dv = all.dv + b * s.v_batch + kv * s.head_size;
  for (std::int64_t j = 0; j < s.keys && beta == 0.0f; ++j) {
    std::fill(dk + j * s.k_stride, dk + j * s.k_stride + s.head_size, 0.0f);
    std::fill(dv + j * s.v_stride, dv + j * s.v_stride + s.head_size, 0.0f);
  }
  for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) {
    AttentionHead t = head_of(s, all, b, h);
    t.d_o += b * s.o_batch + h * s.head_size;
    t.dq += b * s.q_batch + h * s.head_size;
    t.dk = dk;
    t.dv = dv;
    attention_backward_head(s, t, beta);
  }
}

}  // namespace detail

namespace kernel {

// dq, dk, dv = beta times themselves (0: not read, or 1) + ..., laid out as q, k, v; d_o as o.
// A task owns one key and value head.
inline void attention_backward(const AttentionShape& s, const float* q, const float* k,
                               const float* v, const float* o, const float* lse, const float* d_o,
                               float* dq, float* dk, float* dv, float beta = 1.0f) {
  const detail::AttentionHead all{q,  k,  v, const_cast<float*>(o), const_cast<float*>(lse), d_o,
                                  dq, dk, dv};
  parallel_for(s.batch * s.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      detail::attention_backward_task(s, all, task / s.kv_heads, task % s.kv_heads, beta);
    }
  });
}

}  // namespace kernel
}  // namespace tinyscale
