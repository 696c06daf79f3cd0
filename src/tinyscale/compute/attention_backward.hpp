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
    for (std::int64_t i = 0; i < rows; ++i) {
      mean[i] = dot_row<L>(head_size, o + i * stride, d_o + i * stride);
    }
  }
};

// One vector of lanes: raw scores p to probabilities, dP in g to dS scale.
struct AttentionSlopes {
  std::int64_t keys;
  float scale;
  const float* lse;
  const float* mean;
  float* p;
  float* g;

  template <class L>
  TINYSCALE_INLINE void run() const {
    typename L::V vp, vg, f, vl, vm;
    broadcast<L>(scale, f);
    load<L>(lse, vl);
    load<L>(mean, vm);
    for (std::int64_t at = 0; at < keys * 2 * L::width; at += 2 * L::width) {
      load<L>(p + at, vp);
      load<L>(g + at, vg);
      exp_negative<L>(vp * f - vl, vp);
      store<L>(p + at, vp);
      store<L>(g + at, vp * (vg - vm) * f);
    }
  }
};

// Rows of x in whole vectors: x itself, or a copy with zeros behind. row: from one to the next.
inline const float* padded_rows(std::int64_t rows, std::int64_t n, std::int64_t padded,
                                std::int64_t stride, const float* x, float* to, std::int64_t* row) {
  *row = padded == n ? stride : padded;
  for (std::int64_t i = 0; i < rows && padded != n; ++i) {
    std::copy(x + i * stride, x + i * stride + n, to + i * padded);
    std::fill(to + i * padded + n, to + (i + 1) * padded, 0.0f);
  }
  return padded == n ? x : to;
}

// One query head; its part of dk and dv is added to rows of whole vectors.
inline void attention_backward_head(const kernel::AttentionShape& s, const AttentionHead& t,
                                    std::int64_t padded, std::int64_t dk_row, std::int64_t dv_row,
                                    float beta) {
  const std::int64_t width = tile_size().width, wide = 2 * width, turned = wide * s.head_size;
  const float scale = attention_scale(s);
  const Scratch lease(3 * turned + 2 * wide * (attention_keys + padded));
  float* const qt = lease.data();
  float* const gt = qt + turned;                  // dO^T
  float* const dqt = gt + turned;                 // dQ^T
  float* const p = dqt + turned;                  // [keys, lanes]
  float* const g = p + wide * attention_keys;     // dS
  float* const rows = g + wide * attention_keys;  // of Q and dO where they need padding
  for (std::int64_t begin = 0; begin < s.queries; begin += wide) {
    AttentionLanes lanes(s, width, begin);
    const std::int64_t at_o = begin * s.o_stride;
    float mean[32] = {}, lse[32] = {};
    std::copy(t.lse + begin, t.lse + begin + lanes.rows, lse);
    run_on_lanes(
        AttentionMeans{lanes.rows, s.head_size, s.o_stride, t.o + at_o, t.d_o + at_o, mean});
    lanes.turn(t.q, s.q_stride, qt);
    lanes.turn(t.d_o, s.o_stride, gt);
    if (beta != 0.0f) {
      lanes.turn(t.dq, s.q_stride, dqt);
    }
    std::int64_t q_row = 0, o_row = 0;
    const float* q = padded_rows(lanes.rows, s.head_size, padded, s.q_stride,
                                 t.q + begin * s.q_stride, rows, &q_row);
    const float* d_o = padded_rows(lanes.rows, s.head_size, padded, s.o_stride, t.d_o + at_o,
                                   rows + wide * padded, &o_row);
    for (std::int64_t j = 0; j == 0 || j < lanes.seen; j += attention_keys) {
      lanes.block(j);
      lanes.score(t.k, s.k_stride, qt, p);
      lanes.score(t.v, s.v_stride, gt, g);
      lanes.hide(p);
      for (std::int64_t at = 0; at < wide; at += width) {
        run_on_lanes(AttentionSlopes{lanes.both + (at == 0 ? 0 : lanes.alone), scale, lse + at,
                                     mean + at, p + at, g + at});
      }
      lanes.gather(t.k, s.k_stride, g, j == 0 ? beta : 1.0f, dqt);
      lanes.scatter(padded, p, d_o, o_row, t.dv, dv_row);
      lanes.scatter(padded, g, q, q_row, t.dk, dk_row);
    }
    transpose(s.head_size, lanes.rows, dqt, wide, t.dq + begin * s.q_stride, s.q_stride);
  }
}

// The rows of dk or dv that a task adds to: themselves, or a copy in whole vectors.
inline float* gradient_rows(const kernel::AttentionShape& s, std::int64_t padded,
                            std::int64_t stride, float beta, float* from, float* copy) {
  float* const to = padded == s.head_size ? from : copy;
  const std::int64_t row = padded == s.head_size ? stride : padded;
  for (std::int64_t j = 0; j < s.keys; ++j) {
    if (beta == 0.0f || to == copy) {
      std::fill(to + j * row, to + j * row + padded, 0.0f);
    }
    if (beta != 0.0f && to == copy) {
      std::copy(from + j * stride, from + j * stride + s.head_size, to + j * row);
    }
  }
  return to;
}

inline void attention_backward_task(const kernel::AttentionShape& s, const AttentionHead& all,
                                    std::int64_t b, std::int64_t kv, float beta) {
  const std::int64_t group = s.heads / s.kv_heads;
  const std::int64_t padded = (s.head_size + 15) / 16 * 16;
  const bool copied = padded != s.head_size;
  const Scratch lease(copied ? 2 * s.keys * padded : 1);
  float* const dk = all.dk + b * s.k_batch + kv * s.head_size;
  float* const dv = all.dv + b * s.v_batch + kv * s.head_size;
  float* const dk_rows = gradient_rows(s, padded, s.k_stride, beta, dk, lease.data());
  float* const dv_rows =
      gradient_rows(s, padded, s.v_stride, beta, dv, lease.data() + (copied ? s.keys * padded : 0));
  for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) {
    AttentionHead t = head_of(s, all, b, h);
    t.d_o += b * s.o_batch + h * s.head_size;
    t.dq += b * s.q_batch + h * s.head_size;
    t.dk = dk_rows;
    t.dv = dv_rows;
    attention_backward_head(s, t, padded, copied ? padded : s.k_stride,
                            copied ? padded : s.v_stride, beta);
  }
  for (std::int64_t j = 0; j < s.keys && copied; ++j) {
    std::copy(dk_rows + j * padded, dk_rows + j * padded + s.head_size, dk + j * s.k_stride);
    std::copy(dv_rows + j * padded, dv_rows + j * padded + s.head_size, dv + j * s.v_stride);
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
