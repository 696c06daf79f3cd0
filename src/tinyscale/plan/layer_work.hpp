#pragma once
// What one layer asks of one chip for one microbatch, forward: its matmuls in their local shapes,
// attention's scores and values, elementwise traffic, and the bytes that it sends.
// M tokens on the chip, D width, t tensor-parallel devices:
//   qkv [M, D, (H + 2 KV) K / t], out [M, H K / t, D], up [M, D, 2 F / t], down [M, F / t, D]
// A mixture's experts are dealt out to the chips of an expert group, to which tokens go k times,
// and cut over tensor ranks, each of which has all of the tokens; or whole, on more chips.

#include <algorithm>  // max, min
#include <cmath>      // ceil

#include "tinyscale/base/list.hpp"
#include "tinyscale/parallel/flops_forms.hpp"
#include "tinyscale/parallel/layout.hpp"
#include "tinyscale/parallel/memory_forms.hpp"
#include "tinyscale/plan/matmul_rate.hpp"

namespace tinyscale {

struct LayerWork {
  MatmulShape matmuls[12];
  int count = 0;
  double score_flops = 0;   // of scores and values, T x T
  double causal_flops = 0;  // the same for what a causal mask keeps
  double scores = 0;        // numbers of a T x T matrix for the chip's heads
  double elements = 0;      // read and written by fused elementwise ops
  double routed = 0;        // token copies that go to experts
  double queries = 0;       // numbers of queries of the chip's tokens
  double keys = 0;          // of keys and values
  double least_keys = 0;    // the same, before latent attention makes them from their ranks
  double recast = 0;        // numbers that fp8 rounds

  void add(double m, double k, double n, double many = 1) {
    if (m > 0 && k > 0 && n > 0) {
      matmuls[count++] = {m, k, n, many};
    }
  }
  double flops() const {
    double sum = 0;
    for (int i = 0; i < count; ++i) {
      sum += matmuls[i].flops();
    }
    return sum;
  }
};

namespace detail {

inline void add_attention_work(const ModelConfig& c, double tokens, double parts, LayerWork& w) {
  const double width = static_cast<double>(c.width), heads = static_cast<double>(c.heads) / parts;
  const double out = heads * static_cast<double>(c.output_head());
  if (c.latent()) {
    const double rank = static_cast<double>(c.kv_lora_rank);
    const double scores = heads * static_cast<double>(c.score_head());
    const double queries = static_cast<double>(c.q_lora_rank);
    w.add(tokens, width, queries > 0 ? queries : scores);
    w.add(queries > 0 ? tokens : 0, queries, scores);
    w.add(tokens, width, rank + static_cast<double>(c.rope_head));
    w.add(tokens, rank, heads * static_cast<double>(c.head_size + c.output_head()));
    w.keys = tokens * heads * static_cast<double>(c.score_head() + c.output_head());
    w.least_keys = std::min(w.keys, tokens * static_cast<double>(c.cached_numbers()));
  } else {
    const double kv_heads = std::max(1.0, static_cast<double>(c.kv_heads) / parts);  // or copies
    const double keys = 2 * kv_heads * static_cast<double>(c.head_size);
    w.add(tokens, width, static_cast<double>(c.query_width()) / parts + keys);
    w.keys = w.least_keys = tokens * keys;
  }
  w.queries = tokens * heads * static_cast<double>(c.score_head());
  w.add(tokens, out, width);
  w.elements += 2 * (static_cast<double>(c.query_width()) / parts * tokens + w.keys);
}

inline void add_feed_forward_work(const ModelConfig& c, bool mixture, double tokens, double parts,
                                  double experts_here, double cut, LayerWork& w) {
  const double width = static_cast<double>(c.width), up = c.gated() ? 2 : 1;
  if (!mixture) {
    const double hidden = static_cast<double>(c.hidden) / parts;
    w.add(tokens, width, up * hidden);
    w.add(tokens, hidden, width);
    w.elements += tokens * hidden * (up + 1);
    return;
  }
  const double hidden = static_cast<double>(c.expert_hidden) / cut;
  w.routed = tokens * c.top_k / parts * cut;
  w.add(w.routed / experts_here, width, up * hidden, experts_here);
  w.add(w.routed / experts_here, hidden, width, experts_here);
  w.elements += w.routed * (hidden * (up + 1) + 6 * width);
  if (c.shared_experts > 0) {
    const double shared = static_cast<double>(c.expert_hidden) * c.shared_experts / parts;
    w.add(tokens, width, up * shared);
    w.add(tokens, shared, width);
    w.elements += tokens * shared * (up + 1);
  }
}

// Keys that a query sees in the mean on the busiest of n zigzag devices, whose two chunks lie in
// the middle of the sequence: without a window on each of them, T/2.
inline double busiest_keys(double context, double window, double n) {
  const double u = window > 0 ? std::min(window, context) : context;
  const auto below = [u](double x) { return x < u ? x * x / 2 : u * u / 2 + u * (x - u); };
  const double chunk = context / (2 * n);
  return (below((n + 1) * chunk) - below((n - 1) * chunk)) / (2 * chunk);
}

}  // namespace detail

// Of `batch` sequences of T tokens, cut over layout.context and layout.tensor.
inline LayerWork layer_work(const ModelConfig& c, const Layout& layout, double batch,
                            double context, bool mixture) {
  const double parts = static_cast<double>(layout.tensor);
  const double here = context / static_cast<double>(layout.context);
  const double tokens = batch * here;
  LayerWork w;
  detail::add_attention_work(c, tokens, parts, w);
  const auto dealt = static_cast<double>(layout.expert_devices());
  detail::add_feed_forward_work(c, mixture, tokens, parts, c.experts / dealt,
                                layout.whole_experts ? 1 : parts, w);
  w.elements += 10 * tokens * static_cast<double>(c.width) / (layout.sequence_parallel ? parts : 1);
  const double layers = static_cast<double>(c.layers);
  const double share = tokens / layers / parts;
  w.score_flops = share * attention_flops_per_token(c, context, AttentionFlops::full);
  w.causal_flops = share * attention_flops_per_token(c, context, AttentionFlops::causal);
  if (layout.context > 1 && layout.context_parallel != ContextParallel::ulysses && c.window > 0) {
    const auto window = static_cast<double>(c.window), n = static_cast<double>(layout.context);
    const double more = detail::busiest_keys(context, window, n) -
                        keys_seen(context, window, AttentionFlops::causal);
    w.causal_flops += share * 2 * static_cast<double>(c.local_layers() * c.heads) *
                      static_cast<double>(c.score_head() + c.output_head()) * more;
  }
  w.scores = tokens * context * static_cast<double>(c.heads) / parts;
  w.recast = 3 * tokens * static_cast<double>(c.width);
  for (int i = 0; i < w.count; ++i) {
    w.recast += w.matmuls[i].m * w.matmuls[i].n * w.matmuls[i].count / 2;
  }
  return w;
}

// Parameters that a chip of the busiest stage holds: its layers and a share of the embedding.
struct ChipParameters {
  double layers = 0;   // layers of a stage
  double dense = 0;    // in them, apart from routed experts
  double experts = 0;  // routed experts
  double tables = 0;   // embedding and output matrix
  double all() const { return dense + experts + tables; }
};

inline ChipParameters chip_parameters(const ModelConfig& c, const Layout& layout) {
  ChipParameters p;
  const double parts = static_cast<double>(layout.tensor);
  const double stages = static_cast<double>(layout.pipeline);
  p.layers = std::ceil(static_cast<double>(c.layers) / stages);
  const double share = p.layers / static_cast<double>(c.layers);
  const double expert = static_cast<double>(c.feed_forward_parameters(c.expert_hidden));
  const double routed = static_cast<double>(c.mixture_layers()) * c.experts * expert;
  const double positions =
      c.position == Position::learned ? static_cast<double>(c.context * c.width) : 0;
  const double table = static_cast<double>(c.vocabulary * c.width);
  const double whole = static_cast<double>(c.parameters());
  p.tables = (layout.pipeline > 1 || c.tied ? table : 2 * table) / parts + positions;
  p.experts = routed * share / (static_cast<double>(layout.expert) * parts);
  p.dense = (whole - routed - positions - table * (c.tied ? 1 : 2)) * share / parts +
            p.layers * detail::copied_parameters(c, parts) / parts;
  return p;
}

}  // namespace tinyscale
