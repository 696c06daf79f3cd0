#pragma once
// Attention: O = softmax(Q K^T / sqrt(head_size)) V for each sequence and head, in blocks of
// queries and keys: no [queries, keys] matrix is kept, and causal blocks stop at the diagonal.
// Lanes are queries: scores are held as [keys, queries of a block], so the maximum and the sum of a
// softmax run down the keys, lane by lane, and K and V are read where they stand.
//   Each block of keys: S = K Q^T; m' = max(m, S); P = exp(S - m'); O^T = O^T exp(m - m') + V^T P.
// Forward saves lse = m + log sum P of each query.
// Grouped queries: heads / kv_heads query heads share one key and value head.
// Dao et al., FlashAttention, arXiv 2205.14135; Ainslie et al., GQA, arXiv 2305.13245.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/gemm.hpp"
#include "tinyscale/compute/lane_math.hpp"
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

// The reference body: one query of one head. q, o: [head_size]; k, v: this head's rows.
inline float attention_reference(const AttentionShape& s, std::int64_t seen, const float* q,
                                 const float* k, const float* v, float* o) {
  std::vector<double> sums(static_cast<std::size_t>(s.head_size), 0.0);
  double total = 0;
  for (std::int64_t j = 0; j < seen; ++j) {
    double score = 0;
    for (std::int64_t d = 0; d < s.head_size; ++d) {
      score += static_cast<double>(q[d]) * static_cast<double>(k[j * s.k_stride + d]);
    }
    const double p = std::exp(score / std::sqrt(static_cast<double>(s.head_size)));
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

}  // namespace kernel

namespace detail {

constexpr std::int64_t attention_queries = 64;  // of a task
constexpr std::int64_t attention_keys = 64;     // whose scores are held at once
constexpr std::int64_t attention_few = 8;       // queries: so few are handled row by row

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

// C[m, n] = A B + beta C in panels of two vectors or one; n is a whole number of vectors.
struct Panels {
  std::int64_t m, n, k;
  const float* a;
  std::int64_t a_row, a_col;
  const float* b;
  std::int64_t b_row;
  float* c;
  std::int64_t c_row;
  float beta;

  template <class L>
  TINYSCALE_INLINE void run() const {
    std::int64_t j = 0;
    for (; j + 2 * L::width <= n; j += 2 * L::width) {
      const PanelWork w{m, k, a, a_row, a_col, b + j, b_row, c + j, c_row, beta, b + j, 0};
      call_on_lanes<L>(GemmPanel<L, 2>{w});
    }
    if (j < n) {
      const PanelWork w{m, k, a, a_row, a_col, b + j, b_row, c + j, c_row, beta, b + j, 0};
      call_on_lanes<L>(GemmPanel<L, 1>{w});
    }
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

// The queries [begin, begin + rows) as lanes, two vectors of them, against one block of keys after
// another: of those in [key, key + both) both vectors see some, of the next `alone` the second.
struct AttentionLanes {
  const kernel::AttentionShape& s;
  std::int64_t width, wide, begin, rows, seen;
  std::int64_t key = 0, both = 0, alone = 0;

  AttentionLanes(const kernel::AttentionShape& shape, std::int64_t vector, std::int64_t first)
      : s(shape), width(vector), wide(2 * vector), begin(first) {
    rows = std::min(wide, s.queries - begin);
    seen = visible_keys(s, begin + rows - 1);
    block(0);
  }
  void block(std::int64_t first) {
    const std::int64_t split = visible_keys(s, begin + std::min(rows, width) - 1);
    const std::int64_t keys = std::min(attention_keys, seen - first);
    key = first;
    both = std::clamp<std::int64_t>(split - first, 0, keys);
    alone = keys - both;
  }
  // [head_size, wide] from rows of x; lanes that stand for no query hold zeros.
  void turn(const float* x, std::int64_t stride, float* to) const {
    if (rows < wide) {
      std::fill(to, to + s.head_size * wide, 0.0f);
    }
    transpose(rows, s.head_size, x + begin * stride, stride, to, wide);
  }
  // scores[keys, lanes] = A[keys, sizes] X[sizes, lanes]
  void score(const float* a, std::int64_t a_row, const float* x, float* c) const {
    a += key * a_row;
    panels({both, wide, s.head_size, a, a_row, 1, x, wide, c, wide, 0.0f});
    panels({alone, width, s.head_size, a + both * a_row, a_row, 1, x + width, wide,
            c + both * wide + width, wide, 0.0f});
  }
  // C[sizes, lanes] = A[keys, sizes]^T P[keys, lanes] + beta C
  void gather(const float* a, std::int64_t a_row, const float* p, float beta, float* c) const {
    a += key * a_row;
    panels({s.head_size, wide, both, a, 1, a_row, p, wide, c, wide, beta});
    if (alone > 0) {
      panels({s.head_size, width, alone, a + both * a_row, 1, a_row, p + both * wide + width, wide,
              c + width, wide, 1.0f});
    }
  }
  // C[keys, sizes] += P[keys, lanes] X[lanes, sizes]
  void scatter(std::int64_t sizes, const float* p, const float* x, std::int64_t x_row, float* c,
               std::int64_t c_row) const {
    c += key * c_row;
    panels({both, sizes, rows, p, wide, 1, x, x_row, c, c_row, 1.0f});
    panels({alone, sizes, rows - width, p + both * wide + width, wide, 1, x + width * x_row, x_row,
            c + both * c_row, c_row, 1.0f});
  }
  // Scores that causality hides become -inf: of each key those of the first lanes.
  void hide(float* p) const {
    const std::int64_t clear = visible_keys(s, begin);
    for (std::int64_t j = std::max(key, clear); j < key + both + alone; ++j) {
      const std::int64_t hidden = std::clamp<std::int64_t>(j - begin - s.causal_offset, 0, wide);
      float* const row = p + (j - key) * wide;
      std::fill(row, row + hidden, -std::numeric_limits<float>::infinity());
    }
  }
};

// One vector of lanes: raw scores to probabilities; o: what was gathered before, or null.
struct AttentionFold {
  std::int64_t keys, head_size;
  float scale;
  float* p;
  float* o;
  float* top;
  float* sum;

  template <class L>
  TINYSCALE_INLINE void run() const {
    constexpr std::int64_t wide = 2 * L::width;
    typename L::V v, w, f, before, shift, more, total;
    load<L>(top, before);
    load<L>(sum, total);
    v = before;
    exp_columns<L>(keys, wide, scale, p, v, shift, more);
    store<L>(top, v);
    if (o != nullptr) {
      broadcast<L>(scale, f);
      exp_negative<L>(before * f - shift, w);
      more = more + total * w;
      for (std::int64_t d = 0; d < head_size; ++d) {
        load<L>(o + d * wide, v);
        store<L>(o + d * wide, v * w);
      }
    }
    store<L>(sum, more);
  }
};

// O^T / sum and lse of one vector of lanes; the first `blind` lanes see no key.
struct AttentionFinish {
  std::int64_t blind, head_size;
  float scale;
  float* o;
  float* top;  // becomes lse
  const float* sum;

  template <class L>
  TINYSCALE_INLINE void run() const {
    typename L::V v, t, f, total;
    typename L::I lane;
    lane_numbers<L>(lane);
    lane = lane - static_cast<std::int32_t>(std::clamp<std::int64_t>(blind, 0, L::width));
    load<L>(top, t);
    load<L>(sum, total);
    log_vector<L>(total, v);
    broadcast<L>(scale, f);
    store<L>(top, lane >= 0 ? t * f + v : typename L::V{});
    f = lane >= 0 ? 1.0f / total : typename L::V{};
    for (std::int64_t d = 0; d < head_size; ++d) {
      load<L>(o + d * 2 * L::width, v);
      store<L>(o + d * 2 * L::width, v * f);
    }
  }
};

// Queries [first, last) of one head.
inline void attention_forward_task(const kernel::AttentionShape& s, const AttentionHead& t,
                                   std::int64_t first, std::int64_t last) {
  const std::int64_t width = tile_size().width, wide = 2 * width;
  const float scale = attention_scale(s);
  const Scratch lease(wide * (2 * s.head_size + attention_keys));
  float* const qt = lease.data();  // Q^T: [head_size, lanes]
  float* const ot = qt + wide * s.head_size;
  float* const p = ot + wide * s.head_size;  // [keys, lanes]
  for (std::int64_t begin = first; begin < last; begin += wide) {
    AttentionLanes lanes(s, width, begin);
    float top[32], sum[32] = {};
    std::fill(top, top + 32, -std::numeric_limits<float>::infinity());
    lanes.turn(t.q, s.q_stride, qt);
    for (std::int64_t j = 0; j == 0 || j < lanes.seen; j += attention_keys) {
      lanes.block(j);
      lanes.score(t.k, s.k_stride, qt, p);
      lanes.hide(p);
      for (std::int64_t at = 0; at < wide; at += width) {
        run_on_lanes(AttentionFold{lanes.both + (at == 0 ? 0 : lanes.alone), s.head_size, scale,
                                   p + at, j == 0 ? nullptr : ot + at, top + at, sum + at});
      }
      lanes.gather(t.v, s.v_stride, p, j == 0 ? 0.0f : 1.0f, ot);
    }
    for (std::int64_t at = 0; at < wide; at += width) {
      const std::int64_t blind = s.causal == 0 ? 0 : -(begin + at + s.causal_offset);
      run_on_lanes(AttentionFinish{s.keys == 0 ? wide : blind, s.head_size, scale, ot + at,
                                   top + at, sum + at});
    }
    std::copy(top, top + lanes.rows, t.lse + begin);
    transpose(s.head_size, lanes.rows, ot, wide, t.o + begin * s.o_stride, s.o_stride);
  }
}

// Scores of few queries (decode) as rows, each to probabilities.
struct AttentionRows {
  const kernel::AttentionShape& s;
  const AttentionHead& t;  // the first of a group
  std::int64_t rows;
  float* p;  // [rows, keys]

  template <class L>
  TINYSCALE_INLINE void run() const {
    for (std::int64_t j = 0; j < s.keys; j += attention_keys) {
      for (std::int64_t r = 0; r < rows; ++r) {
        const float* q = t.q + r / s.queries * s.head_size + r % s.queries * s.q_stride;
        const std::int64_t end = std::min(j + attention_keys, visible_keys(s, r % s.queries));
        for (std::int64_t x = j; x < end; ++x) {
          p[r * s.keys + x] = dot_row<L>(s.head_size, q, t.k + x * s.k_stride);
        }
      }
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t seen = visible_keys(s, r % s.queries);
      float* const row = p + r * s.keys;
      std::fill(row + seen, row + s.keys, 0.0f);
      float max = 0.0f, sum = 0.0f;
      scale_row<L>(seen, attention_scale(s), row);
      exp_row<L>(seen, row, row, max, sum);
      scale_row<L>(seen, 1.0f / sum, row);
      t.lse[r] = seen == 0 ? 0.0f : max + std::log(sum);
    }
  }
};

// All query heads of one key and value head, so that K and V come from memory once.
inline void attention_few_task(const kernel::AttentionShape& s, const AttentionHead& t,
                               std::int64_t group) {
  const std::int64_t width = tile_size().width, full = s.head_size / width * width;
  const Scratch lease(group * s.queries * s.keys);
  float* const p = lease.data();
  run_on_lanes(AttentionRows{s, t, group * s.queries, p});
  for (std::int64_t j = 0; j == 0 || j < s.keys; j += attention_keys) {
    const std::int64_t keys = std::min(attention_keys, s.keys - j);
    const float beta = j == 0 ? 0.0f : 1.0f;
    for (std::int64_t h = 0; h < group; ++h) {
      const float* ph = p + h * s.queries * s.keys + j;
      const float* v = t.v + j * s.v_stride;
      float* const o = t.o + h * s.head_size;
      panels({s.queries, full, keys, ph, s.keys, 1, v, s.v_stride, o, s.o_stride, beta});
      for (std::int64_t i = 0; i < s.queries; ++i) {
        for (std::int64_t d = full; d < s.head_size; ++d) {  // less than a vector
          float sum = j == 0 ? 0.0f : o[i * s.o_stride + d];
          for (std::int64_t x = 0; x < keys; ++x) {
            sum += ph[i * s.keys + x] * v[x * s.v_stride + d];
          }
          o[i * s.o_stride + d] = sum;
        }
      }
    }
  }
}

// Sequence b, query head h.
inline AttentionHead head_of(const kernel::AttentionShape& s, AttentionHead t, std::int64_t b,
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

namespace kernel {

// q, o: [batch, queries, heads * head_size]; k, v: [batch, keys, kv_heads * head_size], with
// strides; lse: [batch, heads, queries]. A query that sees no key gets zeros.
inline void attention_forward(const AttentionShape& s, const float* q, const float* k,
                              const float* v, float* o, float* lse) {
  const detail::AttentionHead all{q, k, v, o, lse, nullptr, nullptr, nullptr, nullptr};
  const bool few = s.queries <= detail::attention_few;
  const std::int64_t group = few ? s.heads / s.kv_heads : 1;  // heads of a task
  const std::int64_t step = detail::attention_queries;
  const std::int64_t blocks = few ? 1 : (s.queries + step - 1) / step;
  const std::int64_t tasks = s.heads / group * blocks;  // of a sequence
  parallel_for(s.batch * tasks, 1, [&](std::int64_t begin, std::int64_t end) {
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

}  // namespace kernel
}  // namespace tinyscale
