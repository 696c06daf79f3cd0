#pragma once
// Attention: O = softmax(Q K^T / sqrt(head_size)) V for each sequence and head, in blocks of
// queries and keys: no [queries, keys] matrix is kept, and causal blocks stop at the diagonal.
// Lanes are queries: scores are held as [keys, queries of a block], so the maximum and the sum of a
// softmax run down the keys, lane by lane, and K and V are read where they stand.
//   Each block of keys: S = K Q^T; m' = max(m, S); P = exp(S - m'); O^T = O^T exp(m - m') + V^T P.
// Forward saves lse = m + log sum P of each query; backward recomputes P = exp(S - lse):
//   dV = P^T dO,  dS = P (dO V^T - sum(dO O)),  dQ = dS K scale,  dK = dS^T Q scale.
// Grouped queries: heads / kv_heads query heads share one key and value head.
// Dao et al., FlashAttention, arXiv 2205.14135; Ainslie et al., GQA, arXiv 2305.13245.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/gemm_tile.hpp"
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

// One head's rows of q, k, v, o and their gradients (null in forward).
struct AttentionHead {
  const float* q;
  const float* k;
  const float* v;
  const float* o;
  float* out;
  float* lse;
  const float* d_o;
  float* dq;
  float* dk;
  float* dv;
};

// The queries [begin, begin + rows) of one block as lanes: two vectors of them.
template <class L>
struct AttentionLanes {
  static constexpr std::int64_t wide = 2 * L::width;
  std::int64_t begin, rows;
  std::int64_t seen;   // keys that some query sees
  std::int64_t split;  // keys that some query of the first vector sees
  std::int64_t clear;  // keys that all queries see
  typename L::I limit[2];

  TINYSCALE_INLINE AttentionLanes(const kernel::AttentionShape& s, std::int64_t first)
      : begin(first), rows(std::min(wide, s.queries - first)) {
    std::int32_t numbers[static_cast<std::size_t>(wide)];
    for (std::int64_t i = 0; i < wide; ++i) {
      numbers[i] = static_cast<std::int32_t>(visible_keys(s, begin + i));
    }
    std::memcpy(limit, numbers, sizeof(limit));
    seen = numbers[rows - 1];
    split = numbers[std::min<std::int64_t>(rows, L::width) - 1];
    clear = numbers[0];
  }
  // [head_size, wide] from rows of x; lanes that stand for no query hold zeros.
  TINYSCALE_INLINE void turn(const kernel::AttentionShape& s, const float* x, std::int64_t stride,
                             float* to) const {
    if (rows < wide) {
      std::fill(to, to + s.head_size * wide, 0.0f);
    }
    transpose(rows, s.head_size, x + begin * stride, stride, to, wide);
  }
  // C[m, n] (+)= A B in panels; n is a whole number of vectors.
  static TINYSCALE_INLINE void panels(std::int64_t m, std::int64_t n, std::int64_t k,
                                      const float* a, std::int64_t a_row, std::int64_t a_col,
                                      const float* b, std::int64_t b_row, float* c,
                                      std::int64_t c_row, float beta) {
    std::int64_t j = 0;
    for (; j + wide <= n; j += wide) {
      const PanelWork w{m, k, a, a_row, a_col, b + j, b_row, c + j, c_row, beta, b + j, 0};
      call_on_lanes<L>(GemmPanel<L, 2>{w});
    }
    if (j < n) {
      const PanelWork w{m, k, a, a_row, a_col, b + j, b_row, c + j, c_row, beta, b + j, 0};
      call_on_lanes<L>(GemmPanel<L, 1>{w});
    }
  }
  // Below, `both` keys are seen by both vectors of lanes, then `alone` keys by the second only.
  // scores[keys, lanes] = A[keys, sizes] X[sizes, lanes]
  TINYSCALE_INLINE void score(std::int64_t both, std::int64_t alone, std::int64_t sizes,
                              const float* a, std::int64_t a_row, const float* x, float* c) const {
    panels(both, wide, sizes, a, a_row, 1, x, wide, c, wide, 0.0f);
    panels(alone, alone > 0 ? L::width : 0, sizes, a + both * a_row, a_row, 1, x + L::width, wide,
           c + both * wide + L::width, wide, 0.0f);
  }
  // C[sizes, lanes] (+)= A[keys, sizes]^T P[keys, lanes]
  TINYSCALE_INLINE void gather(std::int64_t both, std::int64_t alone, std::int64_t sizes,
                               const float* a, std::int64_t a_row, const float* p, float beta,
                               float* c) const {
    panels(sizes, wide, both, a, 1, a_row, p, wide, c, wide, beta);
    panels(sizes, alone > 0 ? L::width : 0, alone, a + both * a_row, 1, a_row,
           p + both * wide + L::width, wide, c + L::width, wide, 1.0f);
  }
  // C[keys, sizes] += P[keys, lanes] X[lanes, sizes]
  TINYSCALE_INLINE void scatter(std::int64_t both, std::int64_t alone, std::int64_t sizes,
                                const float* p, const float* x, std::int64_t x_row, float* c,
                                std::int64_t c_row) const {
    panels(both, sizes, rows, p, wide, 1, x, x_row, c, c_row, 1.0f);
    panels(alone, alone > 0 ? sizes : 0, rows - L::width, p + both * wide + L::width, wide, 1,
           x + L::width * x_row, x_row, c + both * c_row, c_row, 1.0f);
  }
  // Scores of keys first.. that the lanes of one vector do not see become -inf.
  TINYSCALE_INLINE void hide(int part, std::int64_t first, std::int64_t keys, float* p) const {
    std::int64_t x = std::max<std::int64_t>(0, clear - first);
    std::int32_t left[static_cast<std::size_t>(L::width)];
    std::memcpy(left, &limit[part], sizeof(left));
    for (std::int32_t& n : left) {
      n -= static_cast<std::int32_t>(first + x);
    }
    typename L::I more;
    std::memcpy(&more, left, sizeof(more));
    typename L::V v, lowest;
    broadcast<L>(-std::numeric_limits<float>::infinity(), lowest);
    for (; x < keys; ++x, more = more - 1) {
      float* const at = p + x * wide + part * L::width;
      load<L>(at, v);
      v = more > 0 ? v : lowest;
      store<L>(at, v);
    }
  }
};

// Queries [first, last) of one head.
struct AttentionForward {
  const kernel::AttentionShape& s;
  const AttentionHead& t;
  std::int64_t first, last;

  template <class L>
  TINYSCALE_INLINE void run() const {
    constexpr std::int64_t wide = AttentionLanes<L>::wide;
    const Scratch lease(wide * (2 * s.head_size + attention_keys));
    float* const qt = lease.data();  // Q^T: [head_size, lanes]
    float* const ot = qt + wide * s.head_size;
    float* const p = ot + wide * s.head_size;  // [keys, lanes]
    for (std::int64_t begin = first; begin < last; begin += wide) {
      const AttentionLanes<L> lanes(s, begin);
      lanes.turn(s, t.q, s.q_stride, qt);
      typename L::V top[2], sum[2] = {};
      broadcast<L>(-std::numeric_limits<float>::infinity(), top[0]);
      top[1] = top[0];
      for (std::int64_t j = 0; j == 0 || j < lanes.seen; j += attention_keys) {
        const std::int64_t keys = std::min(attention_keys, lanes.seen - j);
        const std::int64_t both = std::clamp<std::int64_t>(lanes.split - j, 0, keys);
        lanes.score(both, keys - both, s.head_size, t.k + j * s.k_stride, s.k_stride, qt, p);
        for (int part = 0; part < 2; ++part) {
          const std::int64_t count = part == 0 ? both : keys;
          lanes.hide(part, j, count, p);
          fold<L>(count, p + part * L::width, j == 0 ? nullptr : ot + part * L::width, top[part],
                  sum[part]);
        }
        lanes.gather(both, keys - both, s.head_size, t.v + j * s.v_stride, s.v_stride, p,
                     j == 0 ? 0.0f : 1.0f, ot);
      }
      finish<L>(lanes, top, sum, ot);
    }
  }

  // Raw scores of one vector of lanes to probabilities; o: what was gathered before, or null.
  template <class L>
  TINYSCALE_INLINE void fold(std::int64_t keys, float* p, float* o, typename L::V& top,
                             typename L::V& sum) const {
    typedef typename L::V V;
    constexpr std::int64_t wide = 2 * L::width;
    V v, w, scale, more, shift, best = top;
    broadcast<L>(attention_scale(s), scale);
    exp_columns<L>(keys, wide, attention_scale(s), p, best, shift, more);
    if (o != nullptr) {
      exp_negative<L>(top * scale - shift, w);
      sum = sum * w;
      for (std::int64_t d = 0; d < s.head_size; ++d) {
        load<L>(o + d * wide, v);
        store<L>(o + d * wide, v * w);
      }
    }
    sum = sum + more;
    top = best;
  }

  template <class L>
  TINYSCALE_INLINE void finish(const AttentionLanes<L>& lanes, const typename L::V* top,
                               const typename L::V* sum, float* ot) const {
    typedef typename L::V V;
    constexpr std::int64_t wide = 2 * L::width;
    float lse[static_cast<std::size_t>(wide)];
    V v, scale;
    broadcast<L>(attention_scale(s), scale);
    for (int part = 0; part < 2; ++part) {
      log_vector<L>(sum[part], v);
      v = lanes.limit[part] > 0 ? top[part] * scale + v : V{};
      store<L>(lse + part * L::width, v);
      const V factor = lanes.limit[part] > 0 ? 1.0f / sum[part] : V{};
      for (std::int64_t d = 0; d < s.head_size; ++d) {
        float* const at = ot + d * wide + part * L::width;
        load<L>(at, v);
        store<L>(at, v * factor);
      }
    }
    std::copy(lse, lse + lanes.rows, t.lse + lanes.begin);
    transpose(s.head_size, lanes.rows, ot, wide, t.out + lanes.begin * s.o_stride, s.o_stride);
  }
};

// One query head; its part of dk and dv is added to those of the head it reads.
struct AttentionBackward {
  const kernel::AttentionShape& s;
  const AttentionHead& t;  // dk, dv: rows of whole vectors
  std::int64_t dk_row, dv_row;
  float beta;

  template <class L>
  TINYSCALE_INLINE void run() const {
    constexpr std::int64_t wide = AttentionLanes<L>::wide;
    const std::int64_t turned = wide * s.head_size;
    const std::int64_t padded = (s.head_size + L::width - 1) / L::width * L::width;
    const Scratch lease(3 * turned + 2 * wide * attention_keys + 2 * wide * padded);
    float* const qt = lease.data();
    float* const gt = qt + turned;                  // dO^T
    float* const dqt = gt + turned;                 // dQ^T
    float* const p = dqt + turned;                  // [keys, lanes]
    float* const g = p + wide * attention_keys;     // dS
    float* const rows = g + wide * attention_keys;  // of Q and dO where they need padding
    for (std::int64_t begin = 0; begin < s.queries; begin += wide) {
      const AttentionLanes<L> lanes(s, begin);
      const float* q = t.q + begin * s.q_stride;
      const float* d_o = t.d_o + begin * s.o_stride;
      lanes.turn(s, t.q, s.q_stride, qt);
      lanes.turn(s, t.d_o, s.o_stride, gt);
      typename L::V lse[2], mean[2];
      load_rows<L>(lanes, lse, mean);
      if (beta != 0.0f) {
        lanes.turn(s, t.dq, s.q_stride, dqt);
      }
      const std::int64_t q_row = pad(padded, lanes.rows, s.q_stride, q, rows);
      const std::int64_t o_row = pad(padded, lanes.rows, s.o_stride, d_o, rows + wide * padded);
      for (std::int64_t j = 0; j == 0 || j < lanes.seen; j += attention_keys) {
        const std::int64_t keys = std::min(attention_keys, lanes.seen - j);
        const std::int64_t both = std::clamp<std::int64_t>(lanes.split - j, 0, keys);
        const float* k = t.k + j * s.k_stride;
        lanes.score(both, keys - both, s.head_size, k, s.k_stride, qt, p);
        lanes.score(both, keys - both, s.head_size, t.v + j * s.v_stride, s.v_stride, gt, g);
        for (int part = 0; part < 2; ++part) {
          const std::int64_t count = part == 0 ? both : keys;
          lanes.hide(part, j, count, p);
          slopes<L>(count, lse[part], mean[part], p + part * L::width, g + part * L::width);
        }
        lanes.gather(both, keys - both, s.head_size, k, s.k_stride, g, j == 0 ? beta : 1.0f, dqt);
        lanes.scatter(both, keys - both, padded, p, d_o, o_row, t.dv + j * dv_row, dv_row);
        lanes.scatter(both, keys - both, padded, g, q, q_row, t.dk + j * dk_row, dk_row);
      }
      transpose(s.head_size, lanes.rows, dqt, wide, t.dq + begin * s.q_stride, s.q_stride);
    }
  }

  // Rows of x to whole vectors, where they are not; gives the step from row to row.
  std::int64_t pad(std::int64_t padded, std::int64_t rows, std::int64_t stride, const float*& x,
                   float* to) const {
    if (padded == s.head_size) {
      return stride;
    }
    for (std::int64_t i = 0; i < rows; ++i) {
      std::copy(x + i * stride, x + i * stride + s.head_size, to + i * padded);
      std::fill(to + i * padded + s.head_size, to + (i + 1) * padded, 0.0f);
    }
    x = to;
    return padded;
  }

  // lse and sum(dO O) of each lane.
  template <class L>
  TINYSCALE_INLINE void load_rows(const AttentionLanes<L>& lanes, typename L::V* lse,
                                  typename L::V* mean) const {
    float of_lane[2][static_cast<std::size_t>(AttentionLanes<L>::wide)] = {};
    for (std::int64_t i = 0; i < lanes.rows; ++i) {
      const std::int64_t at = (lanes.begin + i) * s.o_stride;
      of_lane[0][i] = t.lse[lanes.begin + i];
      of_lane[1][i] = dot_row<L>(s.head_size, t.o + at, t.d_o + at);
    }
    for (int part = 0; part < 2; ++part) {
      load<L>(of_lane[0] + part * L::width, lse[part]);
      load<L>(of_lane[1] + part * L::width, mean[part]);
    }
  }

  // One vector of lanes: raw scores p to probabilities, dP in g to dS scale.
  template <class L>
  TINYSCALE_INLINE void slopes(std::int64_t keys, const typename L::V& lse,
                               const typename L::V& mean, float* p, float* g) const {
    constexpr std::int64_t wide = 2 * L::width;
    typename L::V vp, vg, scale;
    broadcast<L>(attention_scale(s), scale);
    for (std::int64_t x = 0; x < keys; ++x) {
      load<L>(p + x * wide, vp);
      load<L>(g + x * wide, vg);
      exp_negative<L>(vp * scale - lse, vp);
      store<L>(p + x * wide, vp);
      store<L>(g + x * wide, vp * (vg - mean) * scale);
    }
  }
};

// Few queries (decode): all query heads of one key and value head, each query a row of scores, so
// that K and V come from memory once.
struct AttentionFew {
  const kernel::AttentionShape& s;
  const AttentionHead& t;  // the first of the group
  std::int64_t group;

  template <class L>
  TINYSCALE_INLINE void run() const {
    const std::int64_t rows = group * s.queries, full = s.head_size / L::width * L::width;
    const Scratch lease(rows * s.keys);
    float* const p = lease.data();  // [rows, keys]
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
      softmax<L>(visible_keys(s, r % s.queries), p + r * s.keys, t.lse[r]);
    }
    for (std::int64_t j = 0; j == 0 || j < s.keys; j += attention_keys) {
      const std::int64_t keys = std::min(attention_keys, s.keys - j);
      for (std::int64_t h = 0; h < group; ++h) {
        const float* ph = p + h * s.queries * s.keys + j;
        float* const o = t.out + h * s.head_size;
        AttentionLanes<L>::panels(s.queries, full, keys, ph, s.keys, 1, t.v + j * s.v_stride,
                                  s.v_stride, o, s.o_stride, j == 0 ? 0.0f : 1.0f);
        if (full < s.head_size) {
          rest<L>(full, keys, ph, t.v + j * s.v_stride, j == 0 ? 0.0f : 1.0f, o);
        }
      }
    }
  }

  template <class L>
  TINYSCALE_INLINE void softmax(std::int64_t seen, float* row, float& lse) const {
    std::fill(row + seen, row + s.keys, 0.0f);
    lse = 0.0f;
    if (seen > 0) {
      float max = 0.0f, sum = 0.0f;
      scale_row<L>(seen, attention_scale(s), row);
      exp_row<L>(seen, row, row, max, sum);
      scale_row<L>(seen, 1.0f / sum, row);
      lse = max + std::log(sum);
    }
  }

  // The last columns of O, fewer than a vector.
  template <class L>
  TINYSCALE_INLINE void rest(std::int64_t full, std::int64_t keys, const float* p, const float* v,
                             float beta, float* o) const {
    const std::int64_t count = s.head_size - full;
    typename L::V sum, w, row;
    for (std::int64_t i = 0; i < s.queries; ++i) {
      sum = typename L::V{};
      if (beta != 0.0f) {
        load_part<L>(o + i * s.o_stride + full, count, 0.0f, sum);
      }
      for (std::int64_t x = 0; x < keys; ++x) {
        load_part<L>(v + x * s.v_stride + full, count, 0.0f, row);
        broadcast<L>(p[i * s.keys + x], w);
        sum = sum + w * row;
      }
      store_part<L>(o + i * s.o_stride + full, count, sum);
    }
  }
};

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

// Sequence b, query head h.
inline AttentionHead head_of(const kernel::AttentionShape& s, AttentionHead t, std::int64_t b,
                             std::int64_t h) {
  const std::int64_t kv = h / (s.heads / s.kv_heads) * s.head_size;
  const std::int64_t at_q = b * s.q_batch + h * s.head_size;
  const std::int64_t at_o = b * s.o_batch + h * s.head_size;
  t.q += at_q;
  t.k += b * s.k_batch + kv;
  t.v += b * s.v_batch + kv;
  t.o += at_o;
  t.out += at_o;
  t.lse += (b * s.heads + h) * s.queries;
  return t;
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
    run_on_lanes(
        AttentionBackward{s, t, copied ? padded : s.k_stride, copied ? padded : s.v_stride, beta});
  }
  for (std::int64_t j = 0; j < s.keys && copied; ++j) {
    std::copy(dk_rows + j * padded, dk_rows + j * padded + s.head_size, dk + j * s.k_stride);
    std::copy(dv_rows + j * padded, dv_rows + j * padded + s.head_size, dv + j * s.v_stride);
  }
}

}  // namespace detail

namespace kernel {

// q, o: [batch, queries, heads * head_size]; k, v: [batch, keys, kv_heads * head_size], with
// strides; lse: [batch, heads, queries]. A query that sees no key gets zeros.
inline void attention_forward(const AttentionShape& s, const float* q, const float* k,
                              const float* v, float* o, float* lse) {
  const detail::AttentionHead all{q, k, v, o, o, lse, nullptr, nullptr, nullptr, nullptr};
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
        detail::run_on_lanes(detail::AttentionFew{s, t, group});
      } else {
        const std::int64_t last = std::min(s.queries, first + step);
        detail::run_on_lanes(detail::AttentionForward{s, t, first, last});
      }
    }
  });
}

// dq, dk, dv = beta times themselves (0: not read, or 1) + ..., laid out as q, k, v; d_o as o.
// A task owns one key and value head.
inline void attention_backward(const AttentionShape& s, const float* q, const float* k,
                               const float* v, const float* o, const float* lse, const float* d_o,
                               float* dq, float* dk, float* dv, float beta = 1.0f) {
  const detail::AttentionHead all{q,   k,  v,  o, const_cast<float*>(o), const_cast<float*>(lse),
                                  d_o, dq, dk, dv};
  parallel_for(s.batch * s.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      detail::attention_backward_task(s, all, task / s.kv_heads, task % s.kv_heads, beta);
    }
  });
}

}  // namespace kernel
}  // namespace tinyscale
