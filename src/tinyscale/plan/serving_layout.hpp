#pragma once
// How a replica's chips share weights and cache in decode, and what that sends (B tokens, D width,
// F hidden, bf16, W bytes/s of an axis). Of one feed-forward layer, closed forms in decode_limits:
//   Megatron over M axes  T = 4 B D / (M W)
//   2D weight stationary  T = 2 B D / (X W) + 4 B F / (Y Z W),  X ways of D
// The cache by heads is free but stops at the KV heads; by batch it takes two AllToAlls a layer, by
// sequence an AllGather of the queries and a merge. Source: "How To Scale Your Model", chapter 7.

#include <algorithm>  // max, min
#include <cmath>      // ceil
#include <cstdint>    // std::int64_t
#include <string>     // names

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/plan/serving_job.hpp"

namespace tinyscale {

enum class WeightSharding { tensor, two_dimensional, expert };
enum class CacheSharding { heads, batch, sequence };

inline const char* name_of(WeightSharding kind) {
  static const char* const names[] = {"tensor", "2D", "expert"};
  return detail::name_in("WeightSharding", names, kind);
}
inline const char* name_of(CacheSharding kind) {
  static const char* const names[] = {"heads", "batch", "sequence"};
  return detail::name_in("CacheSharding", names, kind);
}

// A collective of every layer, by what a chip sends for each token.
struct LayerTraffic {
  std::string what;
  double bytes = 0;      // for each token
  double bandwidth = 0;  // bytes/s
  double latency = 0;    // seconds, all calls of a layer
};

struct ServingSharding {
  std::string name;  // "tensor 8, cache by heads 8"
  WeightSharding weights = WeightSharding::tensor;
  CacheSharding cache = CacheSharding::heads;
  std::int64_t ways = 1, width_ways = 1;  // of the weights; of them over D
  double cache_ways = 1;  // parts of the cache, the rest are copies; 8 heads on 3 chips: 8 / 3
  double room_ways = 1;   // of the memory beside weights, which any number of sequences may fill
  double chip_bytes = 0;  // weights and cache on one chip
  List<LayerTraffic> traffic;
  ServingLaw law;
  double bound = 0, sum = 0;  // seconds of a decode step
  std::string why_not;        // empty for the chosen one
};

namespace detail {

// Dimensions of a machine as one axis: an AllGather of V bytes takes V (n - 1) / (n W) + latency.
struct ChipGroup {
  double ways = 1, bandwidth = 0, latency = 0;
};

// What a chip sends along a dimension; 0: not known, which only a leaf's spine may leave open.
inline double known_egress(const Machine& on, int d) {
  const std::size_t at = static_cast<std::size_t>(d);
  const bool leaf = at + 1 < on.links.size() && on.links[at + 1].kind == AxisKind::switched;
  return on.links[at].bandwidth.one_way() > 0 || leaf ? on.egress(d) : 0;
}

// Links that a message crosses at most along n chips in a row.
inline double hops_along(const Links& row, double n) {
  return row.kind == AxisKind::ring ? n / 2 : n - 1;
}

// Rings and lines work at once, on shares of the data; a switch passes what its chips send.
inline ChipGroup group_of(const Machine& on, unsigned subset) {
  ChipGroup group;
  double rows = 0, switches = -1, behind = 1;
  for (int d = on.dims.size() - 1; d >= 0; --d) {
    const double n = static_cast<double>(on.dims[d]);
    if ((subset >> d & 1U) == 0 || n == 1) {
      continue;
    }
    const Links& links = on.links[static_cast<std::size_t>(d)];
    const bool row = links.kind == AxisKind::ring || links.kind == AxisKind::line;
    if (row) {
      rows += known_egress(on, d);
    } else {
      const double rate = known_egress(on, d) * behind;
      switches = switches < 0 ? rate : std::min(switches, rate);
    }
    group.latency += links.latency * (row ? hops_along(links, n) : 1);
    group.ways *= n;
    behind *= n;
  }
  group.bandwidth = switches < 0 ? rows : rows > 0 ? std::min(rows, switches) : switches;
  return group;
}

// Bytes/s at which every chip's part of an AllToAll over `ways` neighbours goes, those of the last
// dimensions: on a ring of n a part v takes v n / (4 W), through a switch v (n - 1) / (n W).
inline ChipGroup all_to_all_group(const Machine& on, std::int64_t ways) {
  ChipGroup group;
  for (int d = on.dims.size() - 1; d >= 0 && group.ways < static_cast<double>(ways); --d) {
    const double left = static_cast<double>(ways) / group.ways;
    const double n = std::min(static_cast<double>(on.dims[d]), left);
    if (n <= 1) {
      continue;
    }
    const Links& links = on.links[static_cast<std::size_t>(d)];
    const bool row = links.kind == AxisKind::ring || links.kind == AxisKind::line;
    const double rate = known_egress(on, d) / (row ? n / 4 : (n - 1) / n);
    group.bandwidth = group.ways > 1 ? std::min(group.bandwidth, rate) : rate;
    group.latency += links.latency * (row ? hops_along(links, n) : 1);
    group.ways *= n;
  }
  return group;
}

// `calls` gathers or scatters over a group, of results of that many bytes in all.
inline void add_gathers(ServingSharding& to, const std::string& what, double bytes,
                        const ChipGroup& group, double calls) {
  if (group.ways > 1) {
    to.traffic.push_back(
        {what, bytes * (group.ways - 1) / group.ways, group.bandwidth, calls * group.latency});
  }
}

inline double activation_bytes() { return 2; }  // bf16

inline void add_weight_traffic(const ModelConfig& m, const Machine& on, unsigned x_dims,
                               ServingSharding& to) {
  const double a = activation_bytes(), width = static_cast<double>(m.width);
  const double heads = static_cast<double>(m.query_width());
  const double keys = static_cast<double>(2 * m.key_width());
  const double parts = m.block_norms == 1 ? 1 : 2;  // attention and feed-forward, or both at once
  const unsigned all = (1U << on.dims.size()) - 1;
  if (to.weights == WeightSharding::two_dimensional) {
    const ChipGroup x = group_of(on, x_dims), yz = group_of(on, all & ~x_dims);
    const double hidden = static_cast<double>(
        m.experts > 0 ? m.expert_hidden * (m.top_k + m.shared_experts) : m.hidden);
    const double middle = (m.gated() ? 3 : 2) * hidden + 2 * heads + keys;
    to.width_ways = static_cast<std::int64_t>(x.ways);
    add_gathers(to, "gather, scatter D", 2 * parts * a * width / x.ways, yz, 2 * parts);
    add_gathers(to, "reduce F", a * middle / yz.ways, x, 4);
    return;
  }
  const ChipGroup group = group_of(on, all);
  const bool expert = to.weights == WeightSharding::expert;
  const double gathers = expert ? 1 : parts;
  add_gathers(to, "gather, scatter D", 2 * gathers * a * width, group, 2 * gathers);
  if (expert) {
    const ChipGroup swap = all_to_all_group(on, to.ways);
    to.traffic.push_back({"dispatch, combine",
                          2 * a * width * m.top_k / static_cast<double>(on.chips()), swap.bandwidth,
                          2 * swap.latency});
  }
}

// Parts of the cache that heads make: alone the fullest chip's, of 40 on 16 that with 3; beside
// parts by batch or sequence, groups of chips with as many heads each.
inline double head_parts(CacheSharding cache, std::int64_t heads, std::int64_t chips) {
  if (cache == CacheSharding::heads) {
    const std::int64_t fullest = (heads + chips - 1) / chips;
    return static_cast<double>(heads) / static_cast<double>(fullest);
  }
  std::int64_t groups = std::min(heads, chips);
  while (heads % groups != 0 || chips % groups != 0) {
    --groups;
  }
  return static_cast<double>(groups);
}

// Parts that each of those is in by batch or sequence.
inline std::int64_t cache_groups(CacheSharding cache, std::int64_t chips, double by_heads,
                                 std::int64_t batch) {
  const std::int64_t rest = chips / static_cast<std::int64_t>(by_heads);
  return cache == CacheSharding::heads   ? 1
         : cache == CacheSharding::batch ? std::min(rest, batch)
                                         : rest;
}

inline void add_cache_traffic(const ModelConfig& m, const Machine& on, double by_heads,
                              std::int64_t batch, ServingSharding& to) {
  const double a = activation_bytes(), heads = static_cast<double>(m.query_width());
  const double keys = static_cast<double>(m.cached_numbers());
  const std::int64_t rest = cache_groups(to.cache, on.chips(), by_heads, batch);
  if (rest <= 1) {
    return;
  }
  if (to.cache == CacheSharding::batch) {
    const ChipGroup swap = all_to_all_group(on, rest);
    to.traffic.push_back({"AllToAll of heads",
                          a * (2 * heads + keys) / static_cast<double>(on.chips()), swap.bandwidth,
                          2 * swap.latency});
  } else {
    const ChipGroup group = group_of(on, (1U << on.dims.size()) - 1);
    const double merge = 2 * static_cast<double>(m.heads);  // a maximum and a sum for each head
    add_gathers(to, "gather Q, merge", a * (2 * heads + merge) / by_heads, group, 2);
  }
}

// Law, times and memory of one way to share; `x_dims` are the dimensions over D.
inline ServingSharding sharding_of(const ServingJob& job, const Machine& on, WeightSharding weights,
                                   CacheSharding cache, unsigned x_dims) {
  const ModelConfig& m = job.model;
  const std::int64_t chips = on.chips();
  ServingSharding s;
  s.weights = weights;
  s.cache = cache;
  s.ways = weights == WeightSharding::expert ? std::min<std::int64_t>(chips, m.experts) : chips;
  const std::int64_t heads = m.latent() ? 1 : m.kv_heads;  // that keep a cache of their own
  const double by_heads = head_parts(cache, heads, chips);
  const auto groups = static_cast<double>(cache_groups(cache, chips, by_heads, job.batch));
  const auto batch = static_cast<double>(job.batch);  // of which the fullest group has a whole part
  s.room_ways = by_heads * groups;
  s.cache_ways =
      by_heads * (cache == CacheSharding::batch ? batch / std::ceil(batch / groups) : groups);
  const double all = static_cast<double>(chips);
  s.law = even_law(job, on.chip, all);
  s.law.cached *= all / s.cache_ways;
  const double holders = static_cast<double>(weights == WeightSharding::expert ? s.ways : chips);
  s.law.experts *= all / holders;
  add_weight_traffic(m, on, x_dims, s);
  add_cache_traffic(m, on, by_heads, job.batch, s);
  for (const LayerTraffic& t : s.traffic) {
    const double layers = static_cast<double>(m.layers);
    s.law.link += t.bandwidth > 0 ? layers * t.bytes / t.bandwidth : 0;
    s.law.latency += layers * t.latency;
  }
  const StepWork step = decode_work(job);
  s.bound = s.law.bound(step);
  s.sum = s.law.sum(step);
  const double held = static_cast<double>(job.batch) * last_context(job) * serving_kv(job);
  s.chip_bytes = (weight_bytes(job) - routed_bytes(job)) / all + routed_bytes(job) / holders +
                 held / s.cache_ways;
  s.name = cat({name_of(weights), " ", s.ways});
  if (weights == WeightSharding::two_dimensional) {
    s.name += cat({" (", s.width_ways, " of D)"});
  }
  s.name += cat({", cache by ", name_of(cache), " ", short_number(s.cache_ways)});
  return s;
}

// What is worse than in the chosen one: memory first, then the cause that costs most time.
inline std::string why_not(const ServingSharding& s, const ServingSharding& best,
                           const ServingJob& job, const Machine& on) {
  if (s.chip_bytes > on.chip.memory_bytes) {
    return cat({"memory: ", format_bytes(s.chip_bytes), " a chip of ",
                format_bytes(on.chip.memory_bytes), ", ",
                short_number(static_cast<double>(on.chips()) / s.cache_ways),
                " copies of the cache"});
  }
  const StepWork step = decode_work(job);
  const double links = s.law.links(step) - best.law.links(step);
  const double cache = s.law.attention(step, false) - best.law.attention(step, false);
  const double weights = s.law.read(step.decode) - best.law.read(step.decode);
  if (links >= cache && links >= weights) {
    return links > 0 ? cat({"links: ", format_seconds(links), " more a step"})
                     : std::string("equal; the first is taken");
  }
  return cache >= weights ? cat({"cache: ", format_seconds(cache), " more to read a step"})
                          : cat({"experts: ", format_seconds(weights), " more to read a step"});
}

// Of serving_shardings, for a machine that was checked; the chosen one takes the least of `time`,
// of those that take as long the one with the least sum.
inline List<ServingSharding> shardings_of(const ServingJob& job, const Machine& on,
                                          double ServingSharding::*time) {
  List<ServingSharding> found;
  const auto shorter = [time](const ServingSharding& a, const ServingSharding& b) {
    return a.*time < b.*time || (!(b.*time < a.*time) && a.sum < b.sum);
  };
  const unsigned last = (1U << on.dims.size()) - 1;
  for (const CacheSharding cache :
       {CacheSharding::heads, CacheSharding::batch, CacheSharding::sequence}) {
    const auto add = [&](WeightSharding weights, unsigned x_dims) {
      const ServingSharding s = sharding_of(job, on, weights, cache, x_dims);
      for (const ServingSharding& other : found) {
        if (other.name == s.name && !shorter(s, other)) {
          return;  // the same over other dimensions
        }
      }
      found.push_back(s);
    };
    add(WeightSharding::tensor, 0);
    for (unsigned x = 1; x < last && on.chips() > 1; ++x) {
      const double ways = group_of(on, x).ways;
      if (ways > 1 && ways < static_cast<double>(on.chips())) {
        add(WeightSharding::two_dimensional, x);
      }
    }
    if (job.model.experts > 0 && on.chips() > 1) {
      add(WeightSharding::expert, 0);
    }
    if (!(found[0].cache_ways < static_cast<double>(on.chips()))) {
      break;  // heads divide the cache over all chips
    }
  }
  std::size_t best = 0;
  for (std::size_t i = 1; i < found.size(); ++i) {
    const bool fits = found[i].chip_bytes <= on.chip.memory_bytes;
    const bool best_fits = found[best].chip_bytes <= on.chip.memory_bytes;
    const bool less =
        fits ? shorter(found[i], found[best]) : found[i].chip_bytes < found[best].chip_bytes;
    if (fits != best_fits ? fits : less) {
      best = i;
    }
  }
  const ServingSharding chosen = found[best];
  found[best] = found[0];
  found[0] = chosen;
  for (std::size_t i = 1; i < found.size(); ++i) {
    found[i].why_not = why_not(found[i], chosen, job, on);
  }
  return found;
}

}  // namespace detail

// Every way to share the model over the machine's chips, the one chosen first: of those that fit,
// the one whose step is shortest when nothing overlaps.
inline List<ServingSharding> serving_shardings(const ServingJob& job, const Machine& on) {
  detail::check_serving(job, on, "serving_shardings");
  return detail::shardings_of(job, on, &ServingSharding::sum);
}

}  // namespace tinyscale
