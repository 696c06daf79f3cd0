#pragma once
// Attention: O = softmax(Q K^T / sqrt(head_size)) V for each sequence and head.
// The scores of 64 queries at a time live in scratch, so no [queries, keys] matrix is kept.
// Forward saves lse = log sum exp(scores) of each query; backward recomputes P = exp(S - lse):
//   dV = P^T dO,  dS = P (dO V^T - sum(dO O)),  dQ = dS K scale,  dK = dS^T Q scale.
// Grouped queries: heads / kv_heads query heads share one key and value head.
// Dao et al., FlashAttention, arXiv 2205.14135; Ainslie et al., GQA, arXiv 2305.13245.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/gemm.hpp"
#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/compute/scratch.hpp"
#include "tinyscale/compute/softmax.hpp"

namespace tinyscale {
namespace kernel {

struct AttentionShape {
  std::int64_t batch = 1, queries = 1, keys = 1, heads = 1, kv_heads = 1, head_size = 1;
  std::int64_t q_stride = 0, k_stride = 0, v_stride = 0, o_stride = 0;  // floats, token to token
  std::int64_t q_batch = 0, k_batch = 0, v_batch = 0, o_batch = 0;      // sequence to sequence
  int causal = 0;                  // 1: query i sees keys <= i + causal_offset
  std::int64_t causal_offset = 0;  // keys - queries when queries are the last tokens
};

}  // namespace kernel

namespace detail {

constexpr std::int64_t attention_block = 64;  // queries whose scores are held at once

// Keys that query i sees.
inline std::int64_t visible_keys(const kernel::AttentionShape& s, std::int64_t i) {
  if (s.causal == 0) {
    return s.keys;
  }
  return std::max<std::int64_t>(0, std::min(s.keys, i + s.causal_offset + 1));
}

inline float attention_scale(const kernel::AttentionShape& s) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(s.head_size)));
}

// Scores [rows, width] of queries begin.. to probabilities, hidden keys to 0; lse a row.
struct AttentionSoftmax {
  const kernel::AttentionShape& s;
  std::int64_t begin, rows, width;
  float* p;
  float* lse;

  template <class L>
  TINYSCALE_INLINE void run() const {
    const float scale = attention_scale(s);
    for (std::int64_t i = 0; i < rows; ++i) {
      const std::int64_t seen = visible_keys(s, begin + i);
      float* row = p + i * width;
      if (seen > 0) {
        float max = 0.0f, sum = 0.0f;
        scale_row<L>(seen, scale, row);
        exp_row<L>(seen, row, row, max, sum);
        scale_row<L>(seen, 1.0f / sum, row);
        lse[i] = max + std::log(sum);
      } else {
        lse[i] = 0.0f;
      }
      std::fill(row + seen, row + width, 0.0f);
    }
  }
};

// Backward of the same block: p holds raw scores, g = dO V^T; p becomes P and g becomes dS scale.
struct AttentionSoftmaxBackward {
  const kernel::AttentionShape& s;
  std::int64_t begin, rows, width;
  float* p;
  float* g;
  const float* lse;
  const float* o;
  const float* d_o;

  template <class L>
  TINYSCALE_INLINE void run() const {
    const float scale = attention_scale(s);
    for (std::int64_t i = 0; i < rows; ++i) {
      const std::int64_t seen = visible_keys(s, begin + i);
      const float mean = dot_row<L>(s.head_size, o + i * s.o_stride, d_o + i * s.o_stride);
      float* pi = p + i * width;
      float* gi = g + i * width;
      typename L::V vp, vg, vm, vs, vl;
      broadcast<L>(mean, vm);
      broadcast<L>(scale, vs);
      broadcast<L>(lse[i], vl);
      std::int64_t j = 0;
      for (; j + L::width <= seen; j += L::width) {
        load<L>(pi + j, vp);
        load<L>(gi + j, vg);
        exp_vector<L>(vp * vs - vl, vp);
        store<L>(pi + j, vp);
        store<L>(gi + j, vp * (vg - vm) * vs);
      }
      if (j < seen) {
        load_part<L>(pi + j, seen - j, 0.0f, vp);
        load_part<L>(gi + j, seen - j, 0.0f, vg);
        exp_vector<L>(vp * vs - vl, vp);
        store_part<L>(pi + j, seen - j, vp);
        store_part<L>(gi + j, seen - j, vp * (vg - vm) * vs);
      }
      std::fill(pi + seen, pi + width, 0.0f);
      std::fill(gi + seen, gi + width, 0.0f);
    }
  }
};

// One block of queries of one head.
inline void attention_forward_block(const kernel::AttentionShape& s, std::int64_t begin,
                                    const float* q, const float* k, const float* v, float* o,
                                    float* lse) {
  using kernel::Trans;
  const std::int64_t rows = std::min(attention_block, s.queries - begin);
  const std::int64_t width = visible_keys(s, begin + rows - 1);
  const Scratch p_lease(rows * width);
  float* const p = p_lease.data();  // [rows, width]
  kernel::gemm(Trans::no, Trans::yes, rows, width, s.head_size, q + begin * s.q_stride, s.q_stride,
               k, s.k_stride, 0.0f, p, width);
  run_on_lanes(AttentionSoftmax{s, begin, rows, width, p, lse + begin});
  kernel::gemm(Trans::no, Trans::no, rows, s.head_size, width, p, width, v, s.v_stride, 0.0f,
               o + begin * s.o_stride, s.o_stride);
}

// Pointers of one query head and its key and value head.
struct AttentionGradients {
  const float* q;
  const float* k;
  const float* v;
  const float* o;
  const float* lse;
  const float* d_o;
  float* dq;
  float* dk;
  float* dv;
};

inline void attention_backward_block(const kernel::AttentionShape& s, std::int64_t begin,
                                     const AttentionGradients& t) {
  using kernel::Trans;
  const std::int64_t rows = std::min(attention_block, s.queries - begin);
  const std::int64_t width = visible_keys(s, begin + rows - 1);
  if (width == 0) {
    return;
  }
  const float* q = t.q + begin * s.q_stride;
  const float* d_o = t.d_o + begin * s.o_stride;
  const Scratch p_lease(rows * width);
  float* const p = p_lease.data();
  const Scratch g_lease(rows * width);
  float* const g = g_lease.data();
  kernel::gemm(Trans::no, Trans::yes, rows, width, s.head_size, q, s.q_stride, t.k, s.k_stride,
               0.0f, p, width);
  kernel::gemm(Trans::no, Trans::yes, rows, width, s.head_size, d_o, s.o_stride, t.v, s.v_stride,
               0.0f, g, width);
  run_on_lanes(AttentionSoftmaxBackward{s, begin, rows, width, p, g, t.lse + begin,
                                        t.o + begin * s.o_stride, d_o});
  kernel::gemm(Trans::yes, Trans::no, width, s.head_size, rows, p, width, d_o, s.o_stride, 1.0f,
               t.dv, s.v_stride);
  kernel::gemm(Trans::no, Trans::no, rows, s.head_size, width, g, width, t.k, s.k_stride, 1.0f,
               t.dq + begin * s.q_stride, s.q_stride);
  kernel::gemm(Trans::yes, Trans::no, width, s.head_size, rows, g, width, q, s.q_stride, 1.0f, t.dk,
               s.k_stride);
}

}  // namespace detail

namespace kernel {

// q, o: [batch, queries, heads * head_size]; k, v: [batch, keys, kv_heads * head_size], with
// strides; lse: [batch, heads, queries]. A query that sees no key gets zeros.
inline void attention_forward(const AttentionShape& s, const float* q, const float* k,
                              const float* v, float* o, float* lse) {
  const std::int64_t blocks = (s.queries + detail::attention_block - 1) / detail::attention_block;
  const std::int64_t group = s.heads / s.kv_heads;
  parallel_for(s.batch * s.heads * blocks, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t task = first; task < last; ++task) {
      const std::int64_t block = task % blocks;
      const std::int64_t h = task / blocks % s.heads;
      const std::int64_t b = task / blocks / s.heads;
      const std::int64_t kv = h / group * s.head_size;
      detail::attention_forward_block(s, block * detail::attention_block,
                                      q + b * s.q_batch + h * s.head_size, k + b * s.k_batch + kv,
                                      v + b * s.v_batch + kv, o + b * s.o_batch + h * s.head_size,
                                      lse + (b * s.heads + h) * s.queries);
    }
  });
}

// dq, dk, dv += ..., laid out as q, k, v; d_o as o. A task owns one key and value head.
inline void attention_backward(const AttentionShape& s, const float* q, const float* k,
                               const float* v, const float* o, const float* lse, const float* d_o,
                               float* dq, float* dk, float* dv) {
  const std::int64_t group = s.heads / s.kv_heads;
  parallel_for(s.batch * s.kv_heads, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t task = first; task < last; ++task) {
      const std::int64_t b = task / s.kv_heads;
      const std::int64_t kv = task % s.kv_heads;
      for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) {
        const std::int64_t at_q = b * s.q_batch + h * s.head_size;
        const std::int64_t at_k = b * s.k_batch + kv * s.head_size;
        const std::int64_t at_v = b * s.v_batch + kv * s.head_size;
        const std::int64_t at_o = b * s.o_batch + h * s.head_size;
        const detail::AttentionGradients t{
            q + at_q,   k + at_k,  v + at_v,  o + at_o, lse + (b * s.heads + h) * s.queries,
            d_o + at_o, dq + at_q, dk + at_k, dv + at_v};
        for (std::int64_t begin = 0; begin < s.queries; begin += detail::attention_block) {
          detail::attention_backward_block(s, begin, t);
        }
      }
    }
  });
}

}  // namespace kernel
}  // namespace tinyscale
