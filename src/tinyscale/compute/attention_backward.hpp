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
#include "tinyscale/compute/memory_check.hpp"
#include "tinyscale/compute/scratch.hpp"

namespace tinyscale {
namespace kernels {

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

}  // namespace kernels

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
    typename L::V vp, vg, f, vl, vm;
    const typename L::V most{};  // P <= 1, also of scores so large that their last digits are more
    broadcast<L>(scale, f);
    for (std::int64_t lane = 0; lane < t.rows; lane += L::width) {
      const std::int64_t first = t.skipped<L>(lane) * attention_queries;
      const std::int64_t last = t.held<L>(lane) * attention_queries;
      hide_scores<L>(t, lane, p, g);
      load<L>(lse + lane, vl);
      load<L>(mean + lane, vm);
      vm = vm * f;
      for (std::int64_t at = first + lane; at < last; at += attention_queries) {
        load<L>(p + at, vp);
        load<L>(g + at, vg);
        min_vector<L>(vp * f - vl, most, vp);
        exp_negative<L>(vp, vp);
        store<L>(p + at, vp);
        store<L>(g + at, vp * (vg * f - vm));
      }
    }
  }
};

// Floats of scratch: of a block of queries Q and dO, turned and as rows, dQ, and two rows of lanes;
// of a block of keys P, dS, K, dK and dV.
inline std::int64_t attention_kept(std::int64_t size) { return attention_queries * (5 * size + 2); }
inline std::int64_t attention_shared(std::int64_t size) {
  return attention_keys * (2 * attention_queries + 3 * size);
}

// The slopes of the keys [key, end), which no query has seen.
inline void attention_unseen(const kernels::AttentionShape& s, const AttentionHead& t,
                             std::int64_t key, std::int64_t end, float beta) {
  for (std::int64_t j = key; j < end && beta == 0.0f; ++j) {
    std::fill(t.dk + j * s.k_stride, t.dk + j * s.k_stride + s.head_size, 0.0f);
    std::fill(t.dv + j * s.v_stride, t.dv + j * s.v_stride + s.head_size, 0.0f);
  }
}

// Queries [first, last) of one head. Sums stand in scratch until they are whole: rows of one head,
// a multiple of a large power of two apart, push each other out of a small cache.
inline void attention_backward_group(const kernels::AttentionShape& s, const AttentionHead& t,
                                     std::int64_t first, std::int64_t last, float beta_q,
                                     float beta_kv, float* p) {
  constexpr std::int64_t wide = attention_queries;
  const std::int64_t size = s.head_size, turned = wide * size, seen = visible_keys(s, last - 1);
  const float scale = attention_scale(s);
  float* const g = p + wide * attention_keys;  // dS; p: [keys, lanes]
  float* const k = g + wide * attention_keys;
  float* const dk = k + attention_keys * size;
  float *const dv = dk + attention_keys * size, *const own = dv + attention_keys * size;
  const std::int64_t start = first_keys(s, first);
  for (std::int64_t j = start; j == start || j < seen; j += attention_keys) {
    const std::int64_t at_k = j * s.k_stride, at_v = j * s.v_stride;
    const std::int64_t keys = std::min(attention_keys, s.keys - j);
    run_on_lanes(AttentionTurn{keys, size, t.k + at_k, s.k_stride, nullptr, k});
    const bool hides = visible_keys(s, first) < j + keys || hidden_keys(s, last - 1) > j;
    bool odd = false;
    if (hides) {
      run_on_lanes(AnyInfinite{1, keys * size, 0, k, &odd});
    }
    fetch_rows(keys, size, t.k + at_k + size, s.k_stride);
    fetch_rows(keys, size, t.v + at_v + size, s.v_stride);
    fetch_rows(keys, size, t.dk + at_k, s.k_stride);
    fetch_rows(keys, size, t.dv + at_v, s.v_stride);
    float beta = 0.0f;  // of dK and dV: the first block sees the fewest keys
    float* qt = own;
    for (std::int64_t begin = first; begin < last; begin += wide, qt += attention_kept(size)) {
      AttentionBlock block(s, begin, j);
      const std::int64_t at_q = begin * s.q_stride, at_o = begin * s.o_stride, rows = block.rows;
      float *gt = qt + turned, *q = gt + turned, *d_o = q + turned, *dq = d_o + turned;
      float* const mean = dq + turned;
      if (block.first()) {
        std::fill(mean, mean + 2 * wide, 0.0f);
        std::copy(t.lse + begin, t.lse + begin + rows, mean + wide);
        run_on_lanes(AttentionMeans{rows, size, s.o_stride, t.o + at_o, t.d_o + at_o, mean});
        run_on_lanes(AttentionTurn{rows, size, t.q + at_q, s.q_stride, qt, q});
        run_on_lanes(AttentionTurn{rows, size, t.d_o + at_o, s.o_stride, gt, d_o});
        fetch_rows(rows, size, t.q + at_q + size, s.q_stride);
        fetch_rows(rows, size, t.o + at_o + size, s.o_stride);
        fetch_rows(rows, size, t.d_o + at_o + size, s.o_stride);
        fetch_rows(rows, size, t.dq + at_q, s.q_stride);
      } else if (block.keys <= 0) {
        continue;
      }
      run_on_lanes(AttentionScores{block, t.k + at_k, s.k_stride, qt, p});
      run_on_lanes(AttentionScores{block, t.v + at_v, s.v_stride, gt, g});
      run_on_lanes(AttentionSlopes{block, scale, mean + wide, mean, p, g});
      bool odd_rows = false;  // a query or dO that is no number leaves none in lse or mean
      if (hides) {
        run_on_lanes(AnyInfinite{1, 2 * wide, 0, mean, &odd_rows});
      }
      const std::int64_t lead = block.lead, to = block.trail - 1;
      attention_sum({rows, size, block.keys, g, 1, wide, k, size, dq, size,
                     block.first() ? 0.0f : 1.0f, -to, -lead},
                    odd);
      attention_sum({block.keys, size, rows, p, wide, 1, d_o, size, dv, size, beta, lead, to},
                    odd_rows);
      attention_sum({block.keys, size, rows, g, wide, 1, q, size, dk, size, beta, lead, to},
                    odd_rows);
      if (beta == 0.0f) {
        std::fill(dv + block.keys * size, dv + keys * size, 0.0f);
        std::fill(dk + block.keys * size, dk + keys * size, 0.0f);
      }
      beta = 1.0f;
      if (j + attention_keys >= visible_keys(s, begin + rows - 1)) {
        run_on_lanes(AttentionAdd{rows, size, dq, t.dq + at_q, s.q_stride, beta_q});
      }
    }
    run_on_lanes(AttentionAdd{keys, size, dk, t.dk + at_k, s.k_stride, beta_kv});
    run_on_lanes(AttentionAdd{keys, size, dv, t.dv + at_v, s.v_stride, beta_kv});
  }
  const std::int64_t blocks = (seen + attention_keys - 1) / attention_keys;
  attention_unseen(s, t, 0, start, beta_kv);
  attention_unseen(s, t, std::max<std::int64_t>(1, blocks) * attention_keys, s.keys, beta_kv);
}

inline void attention_backward_task(const kernels::AttentionShape& s, const AttentionHead& all,
                                    std::int64_t b, std::int64_t kv, float beta) {
  const std::int64_t group = s.heads / s.kv_heads;
  const std::int64_t step = attention_queries * attention_group;
  const std::int64_t blocks =
      (std::min(step, s.queries) + attention_queries - 1) / attention_queries;
  const Scratch lease(attention_shared(s.head_size) + blocks * attention_kept(s.head_size));
  float beta_kv = beta;
  for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) {
    AttentionHead t = all;
    t.dk += b * s.k_batch + kv * s.head_size;
    t.dv += b * s.v_batch + kv * s.head_size;
    if (s.queries == 0) {  // whose pointers may be null
      attention_unseen(s, t, 0, s.keys, beta);
      continue;
    }
    t = head_of(s, t, b, h);
    t.d_o += b * s.o_batch + h * s.head_size;
    t.dq += b * s.q_batch + h * s.head_size;
    for (std::int64_t first = 0; first < s.queries; first += step) {
      attention_backward_group(s, t, first, std::min(s.queries, first + step), beta, beta_kv,
                               lease.data());
      beta_kv = 1.0f;
    }
  }
}

}  // namespace detail

namespace kernels {

// dq, dk, dv = beta times themselves (0: not read, or 1) + ..., laid out as q, k, v; d_o as o.
// A task owns one key and value head. dq may be q, o or d_o; all else is apart.
inline void attention_backward(const AttentionShape& s, const float* q, const float* k,
                               const float* v, const float* o, const float* lse, const float* d_o,
                               float* dq, float* dk, float* dv, float beta = 1.0f) {
  const char* const who = "attention_backward";
  const detail::AttentionMemory read(who, s, q, k, v, o, lse), made(who, s, dq, dk, dv, d_o, lse);
  const auto named = [](detail::Memory memory, const char* name) {
    memory.name = name;
    return memory;
  };
  const detail::Memory to_q = named(made.q, "dq"), of_o = named(made.o, "d_o");
  const detail::Memory to_k = named(made.k, "dk"), to_v = named(made.v, "dv");
  detail::check_in_place(who, to_q, {read.q, read.o, of_o});
  detail::check_own(who, to_q, {read.k, read.v, read.lse, to_k, to_v});
  detail::check_own(who, to_k, {read.q, read.k, read.v, read.o, read.lse, of_o, to_v});
  detail::check_own(who, to_v, {read.q, read.k, read.v, read.o, read.lse, of_o});
  const detail::AttentionHead all{q,  k,  v, const_cast<float*>(o), const_cast<float*>(lse), d_o,
                                  dq, dk, dv};
  parallel_for(s.batch * s.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      detail::attention_backward_task(s, all, task / s.kv_heads, task % s.kv_heads, beta);
    }
  });
}

}  // namespace kernels
}  // namespace tinyscale
