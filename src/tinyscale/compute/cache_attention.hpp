#pragma once
// Attention of single tokens over paged caches, O = softmax(q K^T / sqrt(head_size)) V: a flat
// batch of tokens, each of its own sequence, with its own pages and its own stretch of visible
// keys. A page holds page_tokens keys, then as many values, rows of [kv_heads * head_size] numbers
// in f32, bf16, f16 or int8; of int8 a scale for each token and head of keys, then of values,
// follows. A task is a token and a key and value head: its query heads (grouped queries) share what
// it reads, page after page, made f32 in cache. Scores stay; maximum and sum are taken over all.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/format.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/attention.hpp"
#include "tinyscale/compute/exp_rows.hpp"
#include "tinyscale/compute/gemv_quantized.hpp"
#include "tinyscale/compute/memory_check.hpp"
#include "tinyscale/compute/scratch.hpp"
#include "tinyscale/compute/stored_dots.hpp"

namespace tinyscale {
namespace kernels {

struct CacheShape {
  DType format = DType::f32;  // or bf16, f16, int8
  std::int64_t page_tokens = 16, heads = 1, kv_heads = 1, head_size = 1;

  std::int64_t row() const { return kv_heads * head_size; }  // numbers of a token's keys
  std::int64_t row_bytes() const {
    return row() * (format == DType::f32 ? 4 : format == DType::int8 ? 1 : 2);
  }
  std::int64_t scale_at() const {  // where the scales of int8 begin: at a multiple of 4 bytes
    return (2 * page_tokens * row_bytes() + 3) / 4 * 4;
  }
  std::int64_t page_bytes() const {
    return scale_at() + (format == DType::int8 ? 2 * page_tokens * kv_heads * 4 : 0);
  }
};

// One token: its keys and values are those at places [first, end) of its sequence; place p stands
// in row p % page_tokens of pages[p / page_tokens]. Pages without a visible place may be null.
struct CacheQuery {
  const float* q = nullptr;  // [heads, head_size]
  float* o = nullptr;        // the same, or q itself; zeros where nothing is visible
  const std::uint8_t* const* pages = nullptr;
  std::int64_t first = 0, end = 0;
};

// The reference bodies: number i of a row of a page as f32 (values: page_tokens rows on), and
// attention of one token, o [heads, head_size].
inline float cache_number_reference(const CacheShape& s, const std::uint8_t* page, std::int64_t row,
                                    std::int64_t i) {
  const std::uint8_t* const at = page + row * s.row_bytes() + i * s.row_bytes() / s.row();
  float number = 0;
  if (s.format == DType::f32) {
    std::memcpy(&number, at, 4);
  } else if (s.format == DType::int8) {
    std::memcpy(&number, page + s.scale_at() + 4 * (row * s.kv_heads + i / s.head_size), 4);
    number *= static_cast<float>(static_cast<std::int8_t>(*at));
  } else {
    const auto code = static_cast<std::uint16_t>(at[0] | at[1] << 8);
    number = s.format == DType::bf16 ? from_bf16(code) : from_f16(code);
  }
  return number;
}
inline void cache_attention_reference(const CacheShape& s, const CacheQuery& query, float* o) {
  const std::int64_t keys = std::max<std::int64_t>(0, query.end - query.first);
  std::vector<float> k(static_cast<std::size_t>(keys * s.row())), v = k;
  for (std::int64_t at = 0; at < keys * s.row(); ++at) {
    const std::int64_t place = query.first + at / s.row(), slot = place % s.page_tokens;
    const std::uint8_t* const page = query.pages[place / s.page_tokens];
    k[static_cast<std::size_t>(at)] = cache_number_reference(s, page, slot, at % s.row());
    v[static_cast<std::size_t>(at)] =
        cache_number_reference(s, page, s.page_tokens + slot, at % s.row());
  }
  AttentionShape shape;
  shape.head_size = s.head_size;
  shape.k_stride = shape.v_stride = s.row();
  for (std::int64_t h = 0; h < s.heads; ++h) {
    const std::int64_t from = h / (s.heads / s.kv_heads) * s.head_size, to = h * s.head_size;
    attention_reference(shape, keys, query.q + to, k.data() + from, v.data() + from, o + to);
  }
}

}  // namespace kernels

namespace detail {

constexpr std::int64_t cache_few = 4;  // queries of a sequence up to which they go one by one

inline void check_cache(const char* who, const kernels::CacheShape& s) {
  if (s.format != DType::f32 && s.format != DType::bf16 && s.format != DType::f16 &&
      s.format != DType::int8) {
    fail({who, ": pages of ", s.format, "; there are f32, bf16, f16, int8"});
  }
  if (s.page_tokens < 1 || s.kv_heads < 1 || s.head_size < 1 || s.heads < 1 ||
      s.heads % s.kv_heads != 0) {
    fail({who, ": pages of ", s.page_tokens, " tokens, ", s.heads, " heads on ", s.kv_heads, " of ",
          s.head_size, " numbers; each at least 1, and heads a multiple"});
  }
}

// No query may write what another reads; its own o may be its q.
inline void check_queries(const kernels::CacheShape& s, std::int64_t n,
                          const kernels::CacheQuery* queries) {
  const auto place = [](const float* at) { return reinterpret_cast<std::uintptr_t>(at); };
  const auto length =
      static_cast<std::uintptr_t>(count_of("cache_attention", {s.heads, s.head_size})) *
      sizeof(float);
  std::uintptr_t first_q = ~std::uintptr_t{0}, last_q = 0, first_o = first_q, last_o = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    first_q = std::min(first_q, place(queries[i].q));
    last_q = std::max(last_q, place(queries[i].q));
    first_o = std::min(first_o, place(queries[i].o));
    last_o = std::max(last_o, place(queries[i].o));
  }
  if (n < 1 || (first_o > last_q && first_o - last_q >= length) ||
      (first_q > last_o && first_q - last_o >= length)) {
    return;
  }
  List<std::uintptr_t> reads(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) {
    reads[static_cast<std::size_t>(i)] = place(queries[i].q);
  }
  std::sort(reads.data(), reads.data() + n);
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uintptr_t to = place(queries[i].o);
    const std::uintptr_t* const end = std::lower_bound(reads.data(), reads.data() + n, to + length);
    const std::uintptr_t* const begin =
        std::lower_bound(reads.data(), reads.data() + n, to < length ? 0 : to - length + 1);
    if (end - begin > (to == place(queries[i].q) ? 1 : 0)) {
      fail({"cache_attention: o of query ", i,
            " overlaps what is read; it must be q of that query, or have memory of its own"});
    }
  }
}

// Numbers [first, first + count) of a row of keys (values: side 1) as f32.
struct CacheRow {
  const kernels::CacheShape& s;

  template <class L>
  TINYSCALE_INLINE void widen(const std::uint8_t* page, int side, std::int64_t slot,
                              std::int64_t head, float* to) const {
    const std::int64_t n = s.head_size, row = side * s.page_tokens + slot;
    const std::uint8_t* const from =
        page + row * s.row_bytes() + head * n * s.row_bytes() / s.row();
    typename L::V v, scale;
    std::int64_t i = 0;
    if (s.format == DType::bf16) {
      for (; i + L::width <= n; i += L::width) {
        WideBf16::load<L>(from + 2 * i, v);
        store<L>(to + i, v);
      }
      for (; i < n; ++i) {
        to[i] = WideBf16::one(from + 2 * i);
      }
    } else if (s.format == DType::f16) {
      for (; i + L::width <= n; i += L::width) {
        WideF16::load<L>(from + 2 * i, v);
        store<L>(to + i, v);
      }
      for (; i < n; ++i) {
        to[i] = WideF16::one(from + 2 * i);
      }
    } else if (s.format == DType::int8) {
      const float by = WideF32::one(page + s.scale_at() + 4 * (row * s.kv_heads + head));
      broadcast<L>(by, scale);
      for (; i + L::width <= n; i += L::width) {
        std::int8_t codes[L::width];
        std::int32_t wide[L::width];
        std::memcpy(codes, from + i, sizeof(codes));
        for (int e = 0; e < L::width; ++e) {
          wide[e] = codes[e];
        }
        typename L::I words;
        std::memcpy(&words, wide, sizeof(words));
        to_float<L>(words, v);
        store<L>(to + i, v * scale);
      }
      for (; i < n; ++i) {
        std::int8_t code;
        std::memcpy(&code, from + i, 1);
        to[i] = by * static_cast<float>(code);
      }
    } else {
      std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(float));
    }
  }
};

struct CacheRows {  // of one head, f32
  const float* at;
  std::int64_t stride, count;
};

// One token and one key and value head. work: [group][keys] scores, then a page's rows.
struct CacheTask {
  const kernels::CacheShape& s;
  const kernels::CacheQuery& query;
  std::int64_t head;  // of keys
  float* work;

  template <class L>
  TINYSCALE_INLINE void run() const {
    const std::int64_t group = s.heads / s.kv_heads, keys = query.end - query.first;
    const std::int64_t size = s.head_size;
    const float* const q = query.q + head * group * size;
    float* const o = query.o + head * group * size;
    float* const rows = work + group * keys;
    for (std::int64_t at = query.first; at < query.end;) {
      const CacheRows k = page_rows<L>(0, at, rows);
      const std::int64_t count = k.count;
      for (std::int64_t g = 0; g < group; ++g) {
        scores<L>(k, q + g * size, work + g * keys + at - query.first);
      }
      at += count;
    }
    const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(size)));
    for (std::int64_t g = 0; g < group; ++g) {
      float* const p = work + g * keys;
      float max = 0.0f, sum = 0.0f;
      scale_row<L>(keys, scale, p);
      exp_row<L>(keys, p, p, max, sum);
      scale_row<L>(keys, 1.0f / sum, p);
    }
    std::fill(o, o + group * size, 0.0f);  // which may be q
    for (std::int64_t at = query.first; at < query.end;) {
      const CacheRows v = page_rows<L>(1, at, rows);
      const std::int64_t count = v.count;
      for (std::int64_t g = 0; g < group; ++g) {
        add_values<L>(v, work + g * keys + at - query.first, o + g * size);
      }
      at += count;
    }
  }

  // Rows of place `at` and behind it on one page: f32 where they stand, others in `rows`.
  template <class L>
  TINYSCALE_INLINE CacheRows page_rows(int side, std::int64_t at, float* rows) const {
    const std::int64_t slot = at % s.page_tokens;
    const std::int64_t count = std::min(query.end - at, s.page_tokens - slot);
    const std::uint8_t* const page = query.pages[at / s.page_tokens];
    if (s.format == DType::f32) {
      return {reinterpret_cast<const float*>(page) + (side * s.page_tokens + slot) * s.row() +
                  head * s.head_size,
              s.row(), count};
    }
    for (std::int64_t t = 0; t < count; ++t) {
      CacheRow{s}.widen<L>(page, side, slot + t, head, rows + t * s.head_size);
    }
    return {rows, s.head_size, count};
  }

  template <class L>
  TINYSCALE_INLINE void scores(const CacheRows& k, const float* q, float* p) const {
    std::int64_t t = 0;
    for (; t + 4 <= k.count; t += 4) {
      dots<L, 4>(q, k.at + t * k.stride, k.stride, p + t);
    }
    for (; t < k.count; ++t) {
      dots<L, 1>(q, k.at + t * k.stride, k.stride, p + t);
    }
  }

  template <class L, int KEYS>
  TINYSCALE_INLINE void dots(const float* q, const float* k, std::int64_t stride, float* p) const {
    typename L::V sum[static_cast<std::size_t>(KEYS)], left, v;
    const std::int64_t n = s.head_size;
    TINYSCALE_UNROLL
    for (int x = 0; x < KEYS; ++x) {
      sum[x] = typename L::V{};
    }
    for (std::int64_t j = 0; j < n; j += L::width) {
      load_some<L>(q + j, n - j, 0.0f, left);
      TINYSCALE_UNROLL
      for (int x = 0; x < KEYS; ++x) {
        load_some<L>(k + x * stride + j, n - j, 0.0f, v);
        add_product<L>(left, v, sum[x]);
      }
    }
    TINYSCALE_UNROLL
    for (int x = 0; x < KEYS; ++x) {
      p[x] = sum_lanes<L>(sum[x]);
    }
  }

  // o += p V, four vectors of o at a time.
  template <class L>
  TINYSCALE_INLINE void add_values(const CacheRows& values, const float* p, float* o) const {
    const std::int64_t count = values.count, row = values.stride;
    const float* const rows = values.at;
    const std::int64_t n = s.head_size;
    std::int64_t j = 0;
    typename L::V sum[4], v, left;
    for (; j + 4 * L::width <= n; j += 4 * L::width) {
      TINYSCALE_UNROLL
      for (int x = 0; x < 4; ++x) {
        load<L>(o + j + x * L::width, sum[x]);
      }
      for (std::int64_t t = 0; t < count; ++t) {
        broadcast<L>(p[t], left);
        TINYSCALE_UNROLL
        for (int x = 0; x < 4; ++x) {
          load<L>(rows + t * row + j + x * L::width, v);
          add_product<L>(left, v, sum[x]);
        }
      }
      TINYSCALE_UNROLL
      for (int x = 0; x < 4; ++x) {
        store<L>(o + j + x * L::width, sum[x]);
      }
    }
    for (; j < n; j += L::width) {
      load_some<L>(o + j, n - j, 0.0f, sum[0]);
      for (std::int64_t t = 0; t < count; ++t) {
        broadcast<L>(p[t], left);
        load_some<L>(rows + t * row + j, n - j, 0.0f, v);
        add_product<L>(left, v, sum[0]);
      }
      store_some<L>(o + j, n - j, sum[0]);
    }
  }
};

// Places [first, end) as rows of f32 keys and values, [kv_heads * head_size] each.
struct CacheGather {
  const kernels::CacheShape& s;
  const std::uint8_t* const* pages;
  std::int64_t first, end;
  float* keys;
  float* values;

  template <class L>
  TINYSCALE_INLINE void run() const {
    for (std::int64_t p = first; p < end; ++p) {
      for (std::int64_t h = 0; h < s.kv_heads; ++h) {
        const std::int64_t at = (p - first) * s.row() + h * s.head_size, slot = p % s.page_tokens;
        const std::uint8_t* const page = pages[p / s.page_tokens];
        CacheRow{s}.widen<L>(page, 0, slot, h, keys + at);
        CacheRow{s}.widen<L>(page, 1, slot, h, values + at);
      }
    }
  }
};

// A row of keys or values, rounded into a page.
inline void store_cache_row(const kernels::CacheShape& s, std::uint8_t* page, std::int64_t row,
                            const float* x) {
  std::uint8_t* const to = page + row * s.row_bytes();
  const std::int64_t n = s.row();
  if (s.format == DType::f32) {
    std::memcpy(to, x, static_cast<std::size_t>(4 * n));
  } else if (s.format == DType::int8) {
    const Scratch offsets(s.kv_heads);
    float* const scales = reinterpret_cast<float*>(page + s.scale_at()) + row * s.kv_heads;
    run_on_lanes(RoundActivations{x,
                                  n,
                                  s.head_size,
                                  s.head_size,
                                  0,
                                  false,
                                  {reinterpret_cast<std::int8_t*>(to), scales,
                                   reinterpret_cast<std::int32_t*>(offsets.data())}});
  } else {
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint16_t code = s.format == DType::bf16 ? to_bf16(x[i]) : to_f16(x[i]);
      std::memcpy(to + 2 * i, &code, 2);
    }
  }
}

}  // namespace detail

namespace kernels {

// A token's keys and values [kv_heads, head_size] to row `slot` of a page, rounded to its format:
// int8 as max|x| / 127 of each head. The page must stand at a multiple of 4 bytes.
inline void cache_store(const CacheShape& s, std::uint8_t* page, std::int64_t slot, const float* k,
                        const float* v) {
  detail::check_cache("cache_store", s);
  if (slot < 0 || slot >= s.page_tokens) {
    detail::fail({"cache_store: row ", slot, " of a page of ", s.page_tokens});
  }
  detail::store_cache_row(s, page, slot, k);
  detail::store_cache_row(s, page, s.page_tokens + slot, v);
}

// Places [first, end) of a sequence as f32 rows of keys and values.
inline void cache_load(const CacheShape& s, const std::uint8_t* const* pages, std::int64_t first,
                       std::int64_t end, float* keys, float* values) {
  detail::check_cache("cache_load", s);
  if (first < 0 || end < first) {
    detail::fail({"cache_load: tokens ", first, " to ", end, "; a rising range from 0 is right"});
  }
  parallel_for(end - first, 64, [&](std::int64_t begin, std::int64_t last) {
    const std::int64_t at = begin * s.row();
    detail::run_on_lanes(
        detail::CacheGather{s, pages, first + begin, first + last, keys + at, values + at});
  });
}

inline void cache_attention(const CacheShape& s, std::int64_t n, const CacheQuery* queries) {
  detail::check_cache("cache_attention", s);
  const std::int64_t group = s.heads / s.kv_heads;
  std::int64_t keys = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    if (queries[i].first < 0) {
      detail::fail({"cache_attention: query ", i, " sees from place ", queries[i].first, " on"});
    }
    keys += std::max<std::int64_t>(0, queries[i].end - queries[i].first);
  }
  detail::check_queries(s, n, queries);
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      CacheQuery query = queries[task / s.kv_heads];
      query.end = std::max(query.first, query.end);
      const detail::Scratch work(group * (query.end - query.first) + s.page_tokens * s.head_size);
      detail::run_on_lanes(detail::CacheTask{s, query, task % s.kv_heads, work.data()});
    }
  };
  if (keys * s.heads * s.head_size < (1 << 15)) {  // less than waking a thread pays
    body(0, n * s.kv_heads);
  } else {
    parallel_for(n * s.kv_heads, 1, body);
  }
}

// m tokens of one sequence at places first, first + 1, ..., each of which sees all before it and
// itself; their keys and values are in the pages. q, o: rows [heads, head_size], ldq and ldo apart;
// o may be q.
inline void cache_attention_prefill(const CacheShape& s, const std::uint8_t* const* pages,
                                    std::int64_t first, std::int64_t m, const float* q,
                                    std::int64_t ldq, float* o, std::int64_t ldo) {
  detail::check_cache("cache_attention_prefill", s);
  if (first < 0 || m < 0) {
    detail::fail({"cache_attention_prefill: ", m, " queries from token ", first,
                  " on; 0 or more are right"});
  }
  const std::int64_t row = detail::count_of("cache_attention_prefill", {s.heads, s.head_size});
  detail::check_in_place("cache_attention_prefill", {"o", o, row, m, ldo}, {{"q", q, row, m, ldq}});
  if (m <= detail::cache_few) {
    List<CacheQuery> queries(static_cast<std::size_t>(m));
    for (std::int64_t i = 0; i < m; ++i) {
      queries[static_cast<std::size_t>(i)] = {q + i * ldq, o + i * ldo, pages, 0, first + i + 1};
    }
    cache_attention(s, m, queries.data());
    return;
  }
  const std::int64_t keys = first + m;
  const detail::Scratch lease(2 * keys * s.row() + s.heads * m);
  float* const k = lease.data();
  float* const v = k + keys * s.row();
  cache_load(s, pages, 0, keys, k, v);
  AttentionShape shape;
  shape.queries = m;
  shape.keys = keys;
  shape.heads = s.heads;
  shape.kv_heads = s.kv_heads;
  shape.head_size = s.head_size;
  shape.q_stride = ldq;
  shape.o_stride = ldo;
  shape.k_stride = shape.v_stride = s.row();
  shape.causal = 1;
  shape.causal_offset = first;
  attention_forward(shape, q, k, v, o, v + keys * s.row());
}

}  // namespace kernels
}  // namespace tinyscale
