#pragma once
// Attention of new tokens over a cache that is cut over devices, its tokens over the sequence axis.
// Each device has the queries of its heads; an all_gather brings those of its KV heads together,
// each attends to its own tokens, and an all_to_all brings the parts of a head back, to be merged:
//   l = log sum_i exp(l_i),  O = sum_i exp(l_i - l) O_i,  l_i = log sum exp of device i's scores.
// A device sends H/t K (s-1)/s numbers a token for queries, H/t (K+1) (s-1)/s for parts.

#include <cmath>    // exp
#include <cstdint>  // int64_t
#include <vector>   // vector

#include "tinyscale/base/list.hpp"
#include "tinyscale/compute/attention.hpp"
#include "tinyscale/mesh/device.hpp"
#include "tinyscale/model/decode.hpp"
#include "tinyscale/parallel/serve_layout.hpp"
#include "tinyscale/tensor/op_record.hpp"

namespace tinyscale {
namespace detail {

// The keys and values that a device keeps.
struct CutCache {
  KvPages pages;
  CacheTurns turns;
  std::int64_t most_pages = 0;  // in use at once

  CutCache(const ModelConfig& config, const CacheOptions& options, const CacheTurns& turns_)
      : pages(config, options), turns(turns_) {}

  // Room for the tokens of a run that are this device's.
  void extend(int sequence, std::int64_t first, std::int64_t n) {
    pages.extend(sequence, turns.count(first + n) - turns.count(first));
    const std::int64_t used = pages.pages_in_use();
    most_pages = used > most_pages ? used : most_pages;
  }
  void store(int layer, int sequence, std::int64_t place, const float* k, const float* v) {
    const std::int64_t at = turns.local(place), tokens = pages.page_tokens();
    kernels::cache_store(pages.shape(), pages.page(layer, sequence, at / tokens), at % tokens, k,
                         v);
  }
  // This device's rows [first, end) as f32.
  void load(int layer, int sequence, std::int64_t first, std::int64_t end, float* k,
            float* v) const {
    List<const std::uint8_t*> at;
    for (std::int64_t i = 0; i * pages.page_tokens() < end; ++i) {
      at.push_back(pages.page(layer, sequence, i));
    }
    kernels::cache_load(pages.shape(), at.data(), first, end, k, v);
  }
};

// How many of the first `tokens` the last of them does not see.
inline std::int64_t hidden_before(std::int64_t tokens, std::int64_t window) {
  return window > 0 && tokens > window ? tokens - window : 0;
}

// What one layer's attention reads, writes and multiplies.
struct CutAttentionWork {
  double rows_read = 0, rows_written = 0;  // of keys, and as many of values
  double pairs = 0;                        // query and key, of all heads

  // layer_bytes: of a token's keys and values.
  void record(const OpScope& scope, const Tensor& q, const kernels::CacheShape& shape,
              std::int64_t layer_bytes) const {
    if (context().profile == nullptr) {
      return;
    }
    const auto numbers = static_cast<double>(q.count());
    const double row = static_cast<double>(shape.row());
    const double bytes = static_cast<double>(layer_bytes) / (2 * row);  // scales too
    OpRecord op;
    op.name = "cached attention";
    op.shape = q.shape().text();
    op.reads.push_back({numbers, DType::f32, 0});
    op.reads.push_back({2 * row * rows_read, shape.format, bytes});
    op.writes.push_back({numbers, DType::f32, 0});
    op.writes.push_back({2 * row * rows_written, shape.format, bytes});
    op.matmul_flops = 4 * pairs * static_cast<double>(shape.head_size);
    op.vector_flops = vector_cost("softmax", pairs, &VectorCost::forward);
    op.count_bytes();
    scope.done(op);
  }
};

// One run's queries [n, H K] at places first, first + 1, .. over this device's keys; O and lse
// [n, H]. A stretch of queries sees as many keys each, or one more from each to the next; of a
// local layer that sees less than all, it is one query.
struct CutRun {
  const CutCache& cache;
  kernels::AttentionShape shape;  // strides and heads
  std::int64_t first = 0, n = 0;
  std::int64_t window = 0;  // tokens that a query sees, itself one; 0: all
  std::int64_t loaded = 0;  // the row of this device with which k and v begin
  const float *q, *k, *v;
  float *o, *lse;

  double attend() const {
    double pairs = 0;
    std::int64_t at = first;
    while (at < first + n) {
      const std::int64_t page = cache.turns.page;
      const std::int64_t turn = cache.turns.devices == 1 ? first + n : (at / page + 1) * page;
      const std::int64_t alike = window == 0 ? turn : at < window ? window : at + 1;
      const std::int64_t last = turn < alike ? turn : alike;
      const std::int64_t end = last < first + n ? last : first + n;
      pairs += stretch(at, end);
      at = end;
    }
    return pairs * static_cast<double>(shape.heads);
  }

 private:
  double stretch(std::int64_t begin, std::int64_t end) const {
    const bool mine = cache.turns.mine(begin);
    kernels::AttentionShape s = shape;
    s.queries = end - begin;
    const std::int64_t from = cache.turns.count(hidden_before(end, window));
    s.keys = cache.turns.count(end) - from;
    const float* const keys = k + (from - loaded) * s.k_stride;
    const float* const values = v + (from - loaded) * s.v_stride;
    s.causal = mine ? 1 : 0;
    s.causal_offset = s.keys - s.queries;
    float* const sums = lse + (begin - first) * s.heads;
    float* const out = o + (begin - first) * s.o_stride;
    if (s.keys == 0) {
      for (std::int64_t i = 0; i < s.queries * s.heads; ++i) {
        sums[i] = -INFINITY;
      }
      std::memset(out, 0, static_cast<std::size_t>(s.queries * s.o_stride) * sizeof(float));
      return 0;
    }
    std::vector<float> by_head(static_cast<std::size_t>(s.heads * s.queries));
    kernels::attention_forward(s, q + (begin - first) * s.q_stride, keys, values, out,
                               by_head.data());
    for (std::int64_t i = 0; i < s.queries * s.heads; ++i) {
      sums[i] = by_head[static_cast<std::size_t>(i % s.heads * s.queries + i / s.heads)];
    }
    const double all = static_cast<double>(s.queries) * static_cast<double>(s.keys);
    const auto later = static_cast<double>(s.queries);
    return mine ? all - later * (later - 1) / 2 : all;
  }
};

// Stores the step's keys and values [1, T, KV K] that are this device's and attends to what it has:
// O [1, T, H K] and lse [T, H]. `window` as in CutRun.
inline Tensor cut_attention(const StepTokens& step, const List<TokenRun>& runs, int layer,
                            std::int64_t window, const Tensor& q, const Tensor& k, const Tensor& v,
                            CutCache& cache, Tensor& lse) {
  const OpScope scope;
  const kernels::CacheShape cached = cache.pages.shape();
  kernels::AttentionShape s;
  s.heads = q.dim(2) / cached.head_size;
  s.kv_heads = cached.kv_heads;
  s.head_size = cached.head_size;
  s.q_stride = s.o_stride = q.dim(2);
  s.k_stride = s.v_stride = cached.row();
  Tensor y(q.shape());
  lse = Tensor(Shape{q.dim(1), s.heads});
  CutAttentionWork work;
  std::int64_t t = 0;
  for (const TokenRun& run : runs) {
    const auto n = static_cast<std::int64_t>(run.ids.size());
    const std::int64_t first = step.places[static_cast<std::size_t>(t)];
    for (std::int64_t i = 0; i < n; ++i) {
      if (cache.turns.mine(first + i)) {
        const std::int64_t from = (t + i) * cached.row();
        cache.store(layer, run.sequence, first + i, k.data() + from, v.data() + from);
        work.rows_written += 1;
      }
    }
    const std::int64_t from = cache.turns.count(hidden_before(first + 1, window));
    const std::int64_t rows = cache.turns.count(first + n) - from;
    Tensor keys({rows, cached.row()}), values({rows, cached.row()});
    cache.load(layer, run.sequence, from, from + rows, keys.data(), values.data());
    const CutRun one{cache,
                     s,
                     first,
                     n,
                     window,
                     from,
                     q.data() + t * q.dim(2),
                     keys.data(),
                     values.data(),
                     y.data() + t * q.dim(2),
                     lse.data() + t * s.heads};
    work.pairs += one.attend();
    work.rows_read += static_cast<double>(rows);
    t += n;
  }
  work.record(scope, q, cached, cache.pages.layer_bytes());
  return y;
}

// [s, T, h, K + 1] for an all_to_all: of each device's h heads the parts of O, and lse behind.
inline Tensor pack_parts(const Tensor& o, const Tensor& lse, std::int64_t devices) {
  const OpScope scope;
  const std::int64_t tokens = lse.dim(0), heads = lse.dim(1), own = heads / devices;
  const std::int64_t size = o.dim(2) / heads;
  Tensor packed({devices, tokens, own, size + 1});
  float* to = packed.data();
  for (std::int64_t d = 0; d < devices; ++d) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t h = d * own; h < (d + 1) * own; ++h, to += size + 1) {
        std::memcpy(to, o.data() + (t * heads + h) * size,
                    static_cast<std::size_t>(size) * sizeof(float));
        to[size] = lse.data()[t * heads + h];
      }
    }
  }
  scope.done_unary("pack parts", "copy", packed.shape());
  return packed;
}

// O [1, T, h K] of whole rows from the parts [s, T, h, K + 1] of all devices.
inline Tensor merge_parts(const Tensor& parts) {
  const OpScope scope;
  const std::int64_t devices = parts.dim(0), rows = parts.dim(1) * parts.dim(2);
  const std::int64_t size = parts.dim(3) - 1;
  Tensor y({1, parts.dim(1), parts.dim(2) * size});
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto part = [&](std::int64_t d) { return parts.data() + (d * rows + row) * (size + 1); };
    float most = -INFINITY;
    for (std::int64_t d = 0; d < devices; ++d) {
      most = part(d)[size] > most ? part(d)[size] : most;
    }
    float total = 0;
    float* const out = y.data() + row * size;
    std::memset(out, 0, static_cast<std::size_t>(size) * sizeof(float));
    for (std::int64_t d = 0; d < devices; ++d) {
      const float* const from = part(d);
      const float weight = std::exp(from[size] - most);
      total += weight;
      for (std::int64_t i = 0; i < size; ++i) {
        out[i] += weight * from[i];
      }
    }
    for (std::int64_t i = 0; i < size; ++i) {
      out[i] /= total;
    }
  }
  const auto in = static_cast<double>(parts.count()), out = static_cast<double>(y.count());
  scope.done("merge parts", parts.shape(), {in}, {out}, 0,
             2 * in + 14 * static_cast<double>(rows * devices) + 4 * out);
  return y;
}

}  // namespace detail
}  // namespace tinyscale
