#pragma once
// Attention's blocks of queries against blocks of keys: their rows turned and gathered, scores,
// what causality hides, sums over them and back to memory.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "tinyscale/compute/attention_product.hpp"
#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/compute/memory_check.hpp"
#include "tinyscale/compute/transpose.hpp"

namespace tinyscale {
namespace kernels {

struct AttentionShape {
  std::int64_t batch = 1, queries = 1, keys = 1, heads = 1, kv_heads = 1, head_size = 1;
  std::int64_t q_stride = 0, k_stride = 0, v_stride = 0, o_stride = 0;  // floats, token to token
  std::int64_t q_batch = 0, k_batch = 0, v_batch = 0, o_batch = 0;      // sequence to sequence
  int causal = 0;                  // 1: query i sees keys <= i + causal_offset
  std::int64_t causal_offset = 0;  // keys - queries when queries are the last tokens
  std::int64_t window = 0;         // causal: of those keys the last so many alone; 0: all
};

}  // namespace kernels

namespace detail {

constexpr std::int64_t attention_queries = 64;  // whose scores are held at once
constexpr std::int64_t attention_group = 8;     // blocks of queries for which keys are read once
constexpr std::int64_t attention_keys = 64;     // likewise

// What attention reads and writes, and whether its sizes are some.
struct AttentionMemory {
  Memory q, k, v, o, lse;

  AttentionMemory(const char* who, const kernels::AttentionShape& s, const float* to_q,
                  const float* to_k, const float* to_v, const float* to_o, const float* to_lse)
      : q{"q", to_q, s.heads * s.head_size, s.queries, s.q_stride, s.batch, s.q_batch},
        k{"k", to_k, s.kv_heads * s.head_size, s.keys, s.k_stride, s.batch, s.k_batch},
        v{"v", to_v, s.kv_heads * s.head_size, s.keys, s.v_stride, s.batch, s.v_batch},
        o{"o", to_o, s.heads * s.head_size, s.queries, s.o_stride, s.batch, s.o_batch},
        lse{"lse", to_lse, 0} {
    if (s.heads < 1 || s.kv_heads < 1 || s.heads % s.kv_heads != 0) {
      fail({who, ": ", s.heads, " heads on ", s.kv_heads,
            " of keys and values; each at least 1, and heads a multiple"});
    }
    count_of(who, {s.batch, s.queries, s.heads, s.head_size});
    count_of(who, {s.batch, s.keys, s.heads, s.head_size});
    lse.columns = count_of(who, {s.batch, s.heads, s.queries});
  }

  // Whether the results lie before or behind all else, as they nearly always do.
  bool is_plain() const {
    const Memory* const all[] = {&o, &lse, &q, &k, &v};
    std::uintptr_t begin[5], end[5];
    bool apart = true;
    for (int i = 0; i < 5; ++i) {
      begin[i] = all[i]->begin();
      end[i] = all[i]->end();
      apart = apart && end[i] >= begin[i];
    }
    for (int y = 0; y < 2; ++y) {
      for (int x = y + 1; x < 5; ++x) {
        apart = apart && (end[y] <= begin[x] || end[x] <= begin[y]);
      }
    }
    return apart;
  }
};

// Query i sees the keys [hidden_keys, visible_keys).
inline std::int64_t visible_keys(const kernels::AttentionShape& s, std::int64_t i) {
  if (s.causal == 0) {
    return s.keys;
  }
  return std::max<std::int64_t>(0, std::min(s.keys, i + s.causal_offset + 1));
}
inline std::int64_t hidden_keys(const kernels::AttentionShape& s, std::int64_t i) {
  const std::int64_t hidden = s.window == 0 ? 0 : i + s.causal_offset + 1 - s.window;
  return std::max<std::int64_t>(0, std::min(s.keys, hidden));
}
// Where the block of keys begins in which query i sees its first; behind all keys, the last block.
inline std::int64_t first_keys(const kernels::AttentionShape& s, std::int64_t i) {
  const std::int64_t key = std::max<std::int64_t>(0, std::min(s.keys - 1, hidden_keys(s, i)));
  return key / attention_keys * attention_keys;
}

inline float attention_scale(const kernels::AttentionShape& s) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(s.head_size)));
}

// Queries [begin, begin + rows) as lanes against keys [key, key + keys): lane i sees key x of them
// where x + lead <= i < x + trail. Scores stand as [keys, attention_queries].
struct AttentionBlock {
  const kernels::AttentionShape& s;
  std::int64_t begin, key, rows, keys, lead, trail;

  AttentionBlock(const kernels::AttentionShape& shape, std::int64_t query, std::int64_t first)
      : s(shape), begin(query), key(first) {
    rows = std::min(attention_queries, s.queries - begin);
    keys = std::min(attention_keys, visible_keys(s, begin + rows - 1) - key);
    lead = s.causal == 0 ? -attention_all : key - begin - s.causal_offset;
    trail = s.window == 0 ? attention_all : lead + s.window;
    keys = hidden_keys(s, begin) < key + keys ? keys : 0;
  }
  bool first() const { return key == first_keys(s, begin); }  // block of keys that they meet
  // Keys [skipped, held): those whose scores a vector of lanes must have, all that one of the tiles
  // it has part in sums over, be they tiles of lanes or of keys.
  template <class L>
  TINYSCALE_INLINE std::int64_t held(std::int64_t lane) const {
    constexpr std::int64_t tile = attention_tile<L, 2>;
    const std::int64_t end = std::min((lane + L::width + tile - 1) / tile * tile, rows) - lead;
    return lane >= rows ? 0 : std::clamp<std::int64_t>((end + tile - 1) / tile * tile, 0, keys);
  }
  template <class L>
  TINYSCALE_INLINE std::int64_t skipped(std::int64_t lane) const {
    constexpr std::int64_t tile = attention_tile<L, 2>;
    const std::int64_t first = lane / tile * tile + 1 - trail;
    return std::clamp<std::int64_t>(first / tile * tile, 0, held<L>(lane));
  }
};

// Rows of one head are short and far apart: no processor fetches them on its own.
inline void fetch_rows(std::int64_t rows, std::int64_t size, const float* x, std::int64_t stride) {
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t d = 0; d < size; d += 16) {
      prefetch(x + i * stride + d);
    }
  }
}

// Rows of x to [size, attention_queries], where lanes that stand for no row get zeros, and to rows
// that stand one behind the other, as small caches like them; either may be null.
struct AttentionTurn {
  std::int64_t rows, size;
  const float* x;
  std::int64_t stride;
  float* turned;
  float* same;

  template <class L>
  TINYSCALE_INLINE void run() const {
    constexpr std::int64_t wide = attention_queries;
    std::int64_t i = 0;
    if (rows < wide && turned != nullptr) {
      std::fill(turned, turned + size * wide, 0.0f);
    }
    if constexpr (turns_squares<L>) {
      const bool whole = turned != nullptr && size % L::width == 0;
      for (; whole && i + L::width <= rows; i += L::width) {
        for (std::int64_t j = 0; j < size; j += L::width) {
          square<L>(i, j);
        }
      }
    }
    if (turned != nullptr) {
      transpose(rows - i, size, x + i * stride, stride, turned + i, wide);
    }
    for (; i < rows && same != nullptr; ++i) {
      std::copy(x + i * stride, x + i * stride + size, same + i * size);
    }
  }

  template <class L>
  TINYSCALE_INLINE void square(std::int64_t i, std::int64_t j) const {
    typename L::V r[static_cast<std::size_t>(L::width)];
    TINYSCALE_UNROLL
    for (int y = 0; y < L::width; ++y) {
      load<L>(x + (i + y) * stride + j, r[y]);
      if (same != nullptr) {
        store<L>(same + (i + y) * size + j, r[y]);
      }
    }
    turn_square(r);
    TINYSCALE_UNROLL
    for (int y = 0; y < L::width; ++y) {
      store<L>(turned + (j + y) * attention_queries + i, r[y]);
    }
  }
};

// scores[keys, lanes] = A[keys, sizes] X[sizes, lanes]; a: the block's first key
struct AttentionScores {
  const AttentionBlock& t;
  const float* a;
  std::int64_t a_row;
  const float* x;
  float* c;

  template <class L>
  TINYSCALE_INLINE void run() const {
    for (std::int64_t at = 0; at < t.rows; at += 2 * L::width) {
      const std::int64_t next = at + L::width, one = t.held<L>(at), two = t.held<L>(next);
      const std::int64_t from = t.skipped<L>(at), first = t.skipped<L>(next);
      const std::int64_t begin = std::max(from, first), end = std::min(one, two);
      if (begin >= end) {  // no key that both have
        call_on_lanes<L>(AttentionPanel<L, 1>{of(from, one), at, L::width});
        call_on_lanes<L>(AttentionPanel<L, 1>{of(first, two), next, L::width});
        continue;
      }
      if (from < begin) {
        call_on_lanes<L>(AttentionPanel<L, 1>{of(from, begin), at, L::width});
      }
      call_on_lanes<L>(AttentionPanel<L, 2>{of(begin, end), at, L::width});
      call_on_lanes<L>(
          AttentionPanel<L, 1>{of(end, std::max(one, two)), two > one ? next : at, L::width});
    }
  }
  AttentionProduct of(std::int64_t first, std::int64_t last) const {
    constexpr std::int64_t row = attention_queries;
    const std::int64_t size = t.s.head_size;
    return {last - first, row, size, a + first * a_row, a_row, 1, x, row, c + first * row, row};
  }
};

// Scores of the vector of lanes from i on that causality or a window hides become -inf, their
// slopes, if any, 0.
template <class L>
TINYSCALE_INLINE void hide_scores(const AttentionBlock& t, std::int64_t i, float* p, float* g) {
  const std::int64_t skipped = t.skipped<L>(i), held = t.held<L>(i), clear = i + 1 - t.lead;
  typename L::V v, hidden;
  typename L::I lane, mask, bound;
  lane_numbers<L>(lane);
  broadcast<L>(-std::numeric_limits<float>::infinity(), hidden);
  const auto hide = [&](std::int64_t x) {
    load<L>(p + x * attention_queries + i, v);
    blend<L>(mask, hidden, v, v);
    store<L>(p + x * attention_queries + i, v);
    if (g != nullptr) {
      load<L>(g + x * attention_queries + i, v);
      blend<L>(mask, typename L::V{}, v, v);
      store<L>(g + x * attention_queries + i, v);
    }
  };
  for (std::int64_t x = skipped; x < std::min(held, i + L::width - t.trail); ++x) {
    broadcast_word(static_cast<std::int32_t>(std::max<std::int64_t>(x + t.trail - i, 0)), bound);
    mask = lane >= bound;
    hide(x);
  }
  for (std::int64_t x = std::max(skipped, clear); x < held; ++x) {
    broadcast_word(static_cast<std::int32_t>(std::min<std::int64_t>(x - clear, L::width)), bound);
    mask = lane <= bound;
    hide(x);
  }
}

// Whether a NaN or an infinity is among numbers of rows: 0 times it would not be 0.
struct AnyInfinite {
  std::int64_t rows, n, stride;
  const float* x;
  bool* found;

  template <class L>
  TINYSCALE_INLINE void run() const {
    typename L::V v;
    typename L::U bits, all{};
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t i = 0; i < n; i += L::width) {
        load_some<L>(x + row * stride + i, n - i, 0.0f, v);
        std::memcpy(&bits, &v, sizeof(bits));
        all = all | ((bits & 0x7fffffffU) + 0x00800000U);  // the first bit: an exponent of ones
      }
    }
    std::uint32_t lanes[static_cast<std::size_t>(L::width)];
    std::memcpy(lanes, &all, sizeof(lanes));
    for (const std::uint32_t lane : lanes) {
      *found = *found || lane >> 31 != 0;
    }
  }
};

// A product of one block. hidden: there are no numbers among those that some row of it does not
// see; each row sums those that it sees.
inline void attention_sum(const AttentionProduct& w, bool hidden) {
  for (std::int64_t i = 0; hidden && i < w.m; ++i) {
    AttentionProduct row = w;
    row.m = 1;
    row.a += i * w.a_row;
    row.c += i * w.c_row;
    row.from += i;
    row.to += i;
    row.share += w.share == nullptr ? 0 : i;
    row.keep += w.keep == nullptr ? 0 : i;
    attention_product(row);
  }
  if (!hidden) {
    attention_product(w);
  }
}

// to[rows, size] = from + beta to; beta is 0 (to is not read) or 1.
struct AttentionAdd {
  std::int64_t rows, size;
  const float* from;
  float* to;
  std::int64_t stride;
  float beta;

  template <class L>
  TINYSCALE_INLINE void run() const {
    typename L::V v, old;
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t d = 0; d < size; d += L::width) {
        load_some<L>(from + i * size + d, size - d, 0.0f, v);
        if (beta != 0.0f) {
          load_some<L>(to + i * stride + d, size - d, 0.0f, old);
          v = v + old;
        }
        store_some<L>(to + i * stride + d, size - d, v);
      }
    }
  }
};

}  // namespace detail
}  // namespace tinyscale
