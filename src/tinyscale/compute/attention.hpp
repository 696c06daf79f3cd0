#pragma once
// Attention: O = softmax(Q K^T / sqrt(head_size)) V for each sequence and head, in blocks of
// queries and keys: no [queries, keys] matrix is kept, and causal blocks stop at the diagonal and
// begin where a window does.
// Lanes are queries: scores are held as [keys, queries of a block], so the maximum and the sum of a
// softmax run down the keys, lane by lane.
//   Each block of keys: S = K Q^T; m' = max(m, S); P = exp(S - m'); O^T = O^T exp(m - m') + V^T P.
// Forward saves lse = m + log sum P of each query.
// Grouped queries: heads / kv_heads query heads share one key and value head.
// Dao et al., FlashAttention, arXiv 2205.14135; Ainslie et al., GQA, arXiv 2305.13245.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/attention_block.hpp"
#include "tinyscale/compute/exp_rows.hpp"
#include "tinyscale/compute/gemm.hpp"
#include "tinyscale/compute/lane_math.hpp"
#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/compute/scratch.hpp"

namespace tinyscale {
namespace kernels {

// A key's score.
inline double score_reference(std::int64_t head_size, const float* q, const float* k) {
  double sum = 0;
  for (std::int64_t d = 0; d < head_size; ++d) {
    sum += double{q[d]} * double{k[d]};
  }
  return sum / std::sqrt(static_cast<double>(head_size));
}

// The reference body: one query of one head. q, o: [head_size]; k, v: the rows that it sees.
inline float attention_reference(const AttentionShape& s, std::int64_t seen, const float* q,
                                 const float* k, const float* v, float* o) {
  std::vector<double> sums(static_cast<std::size_t>(s.head_size), 0.0);
  double total = 0;
  for (std::int64_t j = 0; j < seen; ++j) {
    const double p = std::exp(score_reference(s.head_size, q, k + j * s.k_stride));
    total += p;
    for (std::int64_t d = 0; d < s.head_size; ++d) {
      sums[static_cast<std::size_t>(d)] += p * static_cast<double>(v[j * s.v_stride + d]);
    }
  }
  for (std::int64_t d = 0; d < s.head_size; ++d) {
    o[d] = seen == 0 ? 0.0f : static_cast<float>(sums[static_cast<std::size_t>(d)] / total);
  }
  return seen == 0 ? 0.0f : static_cast<float>(std::log(total));
}

}  // namespace kernels

namespace detail {

constexpr std::int64_t attention_few = 8;  // queries: so few are handled row by row

// C[m, n] = A B, to which C is added where adds, in panels of two vectors or one; n is a whole
// number of vectors.
struct Panels {
  std::int64_t m, n, k;
  const float* a;
  std::int64_t a_row, a_col;
  const float* b;
  std::int64_t b_row;
  float* c;
  std::int64_t c_row;
  bool adds;

  template <class L>
  TINYSCALE_INLINE void run() const {
    std::int64_t j = 0;
    for (; j + 2 * L::width <= n; j += 2 * L::width) {
      const PanelWork w = work(j);
      call_on_lanes<L>(GemmPanel<L, 2>{w});
    }
    if (j < n) {
      const PanelWork w = work(j);
      call_on_lanes<L>(GemmPanel<L, 1>{w});
    }
  }

  // From column j on.
  PanelWork work(std::int64_t j) const {
    return {m,     k,     a, a_row, a_col, b + j, b_row, c + j, c_row, adds ? c + j : nullptr,
            c_row, b + j, 0};
  }
};

inline void panels(const Panels& p) {
  if (p.m > 0 && p.n > 0) {
    run_on_lanes(p);
  }
}

// One head's rows of q, k, v, o and their gradients (null in forward).
struct AttentionHead {
  const float* q;
  const float* k;
  const float* v;
  float* o;
  float* lse;
  const float* d_o;
  float* dq;
  float* dk;
  float* dv;
};

// Raw scores to probabilities before they are divided by their sum; of each lane the largest score
// and the sum so far, and what O keeps and what it gets of the new block.
struct AttentionFold {
  const AttentionBlock& t;
  float scale;
  float* p;
  float* lanes;  // rows of attention_queries: top, sum, lse, keep, share

  template <class L>
  TINYSCALE_INLINE void run() const {
    constexpr std::int64_t row = attention_queries;
    typename L::V before, top, shift, f, more, total;
    typename L::I lane, zero;
    lane_numbers<L>(zero);
    for (std::int64_t i = 0; i < t.rows; i += L::width) {
      float* const at = lanes + i;
      const std::int64_t skipped = t.skipped<L>(i);
      hide_scores<L>(t, i, p, nullptr);
      load<L>(at, before);
      top = before;
      exp_columns<L>(t.held<L>(i) - skipped, row, scale, p + skipped * row + i, top, shift, more);
      store<L>(at, top);
      broadcast<L>(scale, f);
      exp_negative<L>((before - shift) * f, before);
      load<L>(at + row, total);
      before = before * total;
      total = more + before;
      store<L>(at + row, total);
      log_vector<L>(total, more);
      const std::int64_t blind = t.s.keys == 0 ? L::width : t.lead - t.key - i;  // see no key
      lane = zero - static_cast<std::int32_t>(std::clamp<std::int64_t>(blind, 0, L::width));
      store<L>(at + 2 * row, lane >= 0 ? top * f + more : typename L::V{});
      f = lane >= 0 ? 1.0f / total : typename L::V{};
      f = total < std::numeric_limits<float>::min() ? typename L::V{} : f;  // only -inf so far
      store<L>(at + 3 * row, before * f);
      store<L>(at + 4 * row, f);
    }
  }
};

// Queries [first, last) of one head: every block of them against a block of keys, then the next. O
// of several blocks of keys stands in scratch until it is whole: rows of one head, a multiple
// of a large power of two apart, push each other out of a small cache.
inline void attention_forward_task(const kernels::AttentionShape& s, const AttentionHead& t,
                                   std::int64_t first, std::int64_t last) {
  constexpr std::int64_t wide = attention_queries;
  const std::int64_t size = s.head_size, own = wide * (2 * size + 5);  // floats that a block keeps
  const std::int64_t blocks = (last - first + wide - 1) / wide;
  const Scratch lease(blocks * own + attention_keys * (wide + size));
  float* const p = lease.data() + blocks * own;  // [keys, lanes]
  float* const v = p + wide * attention_keys;
  const std::int64_t start = first_keys(s, first);
  for (std::int64_t j = start; j == start || j < visible_keys(s, last - 1); j += attention_keys) {
    const std::int64_t keys = std::min(attention_keys, s.keys - j);
    run_on_lanes(AttentionTurn{keys, size, t.v + j * s.v_stride, s.v_stride, nullptr, v});
    bool odd = false;
    if (visible_keys(s, first) < j + keys || hidden_keys(s, last - 1) > j) {
      run_on_lanes(AnyInfinite{1, keys * size, 0, v, &odd});
    }
    float* qt = lease.data();  // Q^T: [head_size, lanes], then the rows of a fold, then O
    for (std::int64_t begin = first; begin < last; begin += wide, qt += own) {
      AttentionBlock block(s, begin, j);
      float* const lanes = qt + wide * size;
      if (block.first()) {
        const float* const q = t.q + begin * s.q_stride;
        run_on_lanes(AttentionTurn{block.rows, size, q, s.q_stride, qt, nullptr});
        std::fill(lanes, lanes + wide, -std::numeric_limits<float>::infinity());
        std::fill(lanes + wide, lanes + 2 * wide, 0.0f);
      } else if (block.keys <= 0) {
        continue;
      }
      run_on_lanes(AttentionScores{block, t.k + j * s.k_stride, s.k_stride, qt, p});
      run_on_lanes(AttentionFold{block, attention_scale(s), p, lanes});
      const std::int64_t seen = visible_keys(s, begin + block.rows - 1);
      float* const to = t.o + begin * s.o_stride;
      float* const o = seen <= first_keys(s, begin) + attention_keys ? to : lanes + 5 * wide;
      attention_sum({block.rows, size, block.keys, p, 1, wide, v, size, o,
                     o == to ? s.o_stride : size, block.first() ? 0.0f : 1.0f, 1 - block.trail,
                     -block.lead, lanes + 4 * wide, lanes + 3 * wide},
                    odd);
      if (o != to && j + attention_keys >= seen) {
        run_on_lanes(AttentionAdd{block.rows, size, o, to, s.o_stride, 0.0f});
      }
      std::copy(lanes + 2 * wide, lanes + 2 * wide + block.rows, t.lse + begin);
    }
  }
  for (std::int64_t i = 0; i < last - first; ++i) {  // scores of -inf alone have no softmax
    const float total = lease.data()[i / wide * own + wide * (size + 1) + i % wide];
    const bool sees = visible_keys(s, first + i) > hidden_keys(s, first + i);
    if (!(total > 0.0f) && sees) {
      float* const o = t.o + (first + i) * s.o_stride;
      std::fill(o, o + size, std::numeric_limits<float>::quiet_NaN());
    }
    t.lse[first + i] = sees ? t.lse[first + i] : 0.0f;
  }
}

// Scores of few queries (decode) as rows, each to probabilities.
struct AttentionRows {
  const kernels::AttentionShape& s;
  const AttentionHead& t;  // the first of a group
  std::int64_t rows;
  float* p;  // [rows, keys]

  template <class L>
  TINYSCALE_INLINE void run() const {
    for (std::int64_t j = first_keys(s, 0); j < s.keys; j += attention_keys) {
      for (std::int64_t r = 0; r < rows; ++r) {
        const float* q = t.q + r / s.queries * s.head_size + r % s.queries * s.q_stride;
        const std::int64_t end = std::min(j + attention_keys, visible_keys(s, r % s.queries));
        for (std::int64_t x = std::max(j, hidden_keys(s, r % s.queries)); x < end; ++x) {
          p[r * s.keys + x] = dot_row<L>(s.head_size, q, t.k + x * s.k_stride);
        }
      }
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t first = hidden_keys(s, r % s.queries);
      const std::int64_t end = visible_keys(s, r % s.queries), seen = end - first;
      float* const row = p + r * s.keys;
      std::fill(row, row + first, 0.0f);
      std::fill(row + end, row + s.keys, 0.0f);
      float max = 0.0f, sum = 0.0f;
      scale_row<L>(seen, attention_scale(s), row + first);
      exp_row<L>(seen, row + first, row + first, max, sum);
      scale_row<L>(seen, 1.0f / sum, row + first);
      t.lse[r] = seen == 0 ? 0.0f : max + std::log(sum);
    }
  }
};

// All query heads of one key and value head, so that K and V come from memory once.
inline void attention_few_task(const kernels::AttentionShape& s, const AttentionHead& t,
                               std::int64_t group) {
  const std::int64_t width = tile_size().width, full = s.head_size / width * width;
  const Scratch lease(group * s.queries * s.keys);
  float* const p = lease.data();
  run_on_lanes(AttentionRows{s, t, group * s.queries, p});
  bool odd = false;
  const std::int64_t start = first_keys(s, 0);
  const std::int64_t first = s.window == 0 ? visible_keys(s, 0) : start;
  if (first < s.keys) {
    run_on_lanes(
        AnyInfinite{s.keys - first, s.head_size, s.v_stride, t.v + first * s.v_stride, &odd});
  }
  const std::int64_t together = odd ? 1 : s.queries;  // rows that sum over the same keys
  for (std::int64_t j = start; j == start || j < s.keys; j += attention_keys) {
    const std::int64_t keys = std::min(attention_keys, s.keys - j);
    const auto hidden = [&](std::int64_t i) {
      return odd ? std::clamp<std::int64_t>(hidden_keys(s, i) - j, 0, keys) : 0;
    };
    const auto seen = [&](std::int64_t i) {
      return odd ? std::clamp<std::int64_t>(visible_keys(s, i) - j, 0, keys) : keys;
    };
    for (std::int64_t h = 0; h < group; ++h) {
      const float* ph = p + h * s.queries * s.keys + j;
      const float* v = t.v + j * s.v_stride;
      float* const o = t.o + h * s.head_size;
      for (std::int64_t i = 0; i < s.queries; i += together) {
        panels({together, full, seen(i) - hidden(i), ph + i * s.keys + hidden(i), s.keys, 1,
                v + hidden(i) * s.v_stride, s.v_stride, o + i * s.o_stride, s.o_stride, j > start});
      }
      for (std::int64_t i = 0; i < s.queries; ++i) {
        for (std::int64_t d = full; d < s.head_size; ++d) {  // less than a vector
          float sum = j == start ? 0.0f : o[i * s.o_stride + d];
          for (std::int64_t x = hidden(i); x < seen(i); ++x) {
            add_product(ph[i * s.keys + x], v[x * s.v_stride + d], sum);
          }
          o[i * s.o_stride + d] = sum;
        }
      }
    }
  }
}

// Sequence b, query head h.
inline AttentionHead head_of(const kernels::AttentionShape& s, AttentionHead t, std::int64_t b,
                             std::int64_t h) {
  const std::int64_t kv = h / (s.heads / s.kv_heads) * s.head_size;
  t.q += b * s.q_batch + h * s.head_size;
  t.k += b * s.k_batch + kv;
  t.v += b * s.v_batch + kv;
  t.o += b * s.o_batch + h * s.head_size;
  t.lse += (b * s.heads + h) * s.queries;
  return t;
}

}  // namespace detail

namespace kernels {

// q, o: [batch, queries, heads * head_size]; k, v: [batch, keys, kv_heads * head_size], with
// strides; lse: [batch, heads, queries]. A query that sees no key gets zeros. o may be q.
inline void attention_forward(const AttentionShape& s, const float* q, const float* k,
                              const float* v, float* o, float* lse) {
  const char* const who = "attention_forward";
  const detail::AttentionMemory memory(who, s, q, k, v, o, lse);
  if (!memory.is_plain()) {
    detail::check_in_place(who, memory.o, {memory.q});
    detail::check_own(who, memory.o, {memory.k, memory.v});
    detail::check_own(who, memory.lse, {memory.q, memory.k, memory.v, memory.o});
  }
  const detail::AttentionHead all{q, k, v, o, lse, nullptr, nullptr, nullptr, nullptr};
  const bool few = s.queries <= detail::attention_few;
  const std::int64_t group = few ? s.heads / s.kv_heads : 1;  // heads of a task
  const std::int64_t whole =
      (s.queries + detail::attention_queries - 1) / detail::attention_queries;
  const std::int64_t step =
      detail::attention_queries * (s.batch * s.heads * whole < 64 ? 1 : detail::attention_group);
  const std::int64_t blocks = few ? 1 : (s.queries + step - 1) / step;
  const std::int64_t tasks = s.heads / group * blocks;                  // of a sequence
  const std::int64_t all_tasks = s.queries == 0 ? 0 : s.batch * tasks;  // pointers may be null
  parallel_for(all_tasks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t head = task % tasks / blocks * group, first = task % blocks * step;
      const detail::AttentionHead t = detail::head_of(s, all, task / tasks, head);
      if (few) {
        detail::attention_few_task(s, t, group);
      } else {
        detail::attention_forward_task(s, t, first, std::min(s.queries, first + step));
      }
    }
  });
}

}  // namespace kernels
}  // namespace tinyscale
