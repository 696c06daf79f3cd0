#pragma once
// What a collective takes: steps, links crossed one after another, seconds, when all devices begin
// at once and no other messages are on their links. The replay of a run's messages gives the same.
// Adding what came takes no time (gamma = 0 in the textbooks' forms).

#include <algorithm>  // max, min
#include <cstdint>
#include <cstdlib>  // abs
#include <vector>

#include "tinyscale/mesh/check_schedule.hpp"
#include "tinyscale/mesh/closed_forms.hpp"

namespace tinyscale {
namespace detail {

inline int farthest(const AxisPart& part) {
  return part.kind == AxisKind::line   ? part.size - 1
         : part.kind == AxisKind::ring ? part.size / 2
                                       : 1;
}

// Several parts as one: any two devices are as far as the farthest, over the slowest links.
inline AxisPart flattened(const List<AxisPart>& parts) {
  AxisPart one;
  one.kind = AxisKind::switched;
  for (const AxisPart& part : parts) {
    one.size *= part.size;
    one.latency += part.across() ? part.far_latency : farthest(part) * part.spacing * part.latency;
    const double rate = part.bandwidth / part.spacing;
    one.bandwidth = one.bandwidth > 0 ? std::min(one.bandwidth, rate) : rate;
  }
  return one;
}

// About how long `direct` takes along several parts or a line: the farthest message's latencies,
// then what the busiest link of all carries. Messages go along the slowest part first.
inline CollectiveCost direct_estimate(const CollectiveSpec& spec, const List<AxisPart>& parts) {
  const bool to_root = spec.what == Collective::reduce || spec.what == Collective::gather;
  const bool rooted = is_rooted(spec.what);
  const int n = spec.devices();
  const double each = static_cast<double>(
      rooted_whole(spec.what) ? spec.elements : chunk_size(spec.elements, n, 0));
  CollectiveCost cost;
  double busiest = 0;         // seconds
  int before = 1, after = n;  // devices of the parts before and after
  for (const AxisPart& part : parts) {
    const int m = part.size;
    after /= m;
    const int hops = chain_hops({m, 1, natural_way(part.kind)}, spec.root / after % m);
    const int pairs = part.kind == AxisKind::full       ? 1  // whose messages meet on a link
                      : part.kind == AxisKind::switched ? m - 1
                      : rooted                          ? hops
                      : part.kind == AxisKind::ring     ? m / 2 * (m / 2 + 1) / 2
                                                        : m / 2 * ((m + 1) / 2);
    const double messages = static_cast<double>(to_root ? before : rooted ? after : n / m) * pairs;
    before *= m;
    if (part.across()) {
      cost.seconds += part.far_latency;
      busiest = std::max(busiest, n / m * each * spec.element_bytes / part.all_bandwidth);
      continue;
    }
    CollectiveCost load;
    load.add(spec, part, 0, messages * each);
    busiest = std::max(busiest, load.seconds);
    cost.add(spec, part, in_a_row(part) && rooted ? hops : farthest(part), 0, 0);
  }
  cost.steps = 1;
  cost.seconds += busiest;
  if (spec.what == Collective::all_reduce) {
    cost.twice();
  }
  return cost;
}

// A row of blocks from or to a root, or all of them moved on: as many steps as the farthest is
// away.
inline CollectiveCost blocks_cost(const CollectiveSpec& spec, const AxisPart& part) {
  const int n = part.size;
  const Row row{n, 1, spec.algorithm};
  const bool moved = spec.what == Collective::permute;
  const int hops = moved ? std::max(std::abs(permute_hops(row.way, n, 0, spec.root)),
                                    std::abs(permute_hops(row.way, n, n - 1, spec.root)))
                         : chain_hops(row, spec.root);
  const std::int64_t each = moved ? spec.elements : chunk_size(spec.elements, n, 0);
  CollectiveCost cost;
  cost.add(spec, part, hops, static_cast<double>(each) * hops, hops);
  cost.known = moved || spec.elements % n == 0;
  return cost;
}

// Everyone hears from the farthest. Through a spine or one of its leaves, whichever takes longer.
inline CollectiveCost farthest_cost(const CollectiveSpec& spec, const List<AxisPart>& parts) {
  CollectiveCost cost;
  for (const AxisPart& part : parts) {
    bool slower = false;
    for (const AxisPart& other : parts) {
      const bool together = is_leaf_of(part, other) || is_leaf_of(other, part);
      slower = slower || (together && (other.latency > part.latency ||
                                       (!(other.latency < part.latency) && other.dim < part.dim)));
    }
    if (part.across()) {
      cost.seconds += part.far_latency;
    } else if (!slower) {
      cost.add(spec, part, farthest(part), 0, 0);
    }
  }
  cost.steps = 1;
  return cost;
}

// Whether the longest path has to be looked for: messages never share links, but are not always
// equally far or long. Of very many uneven blocks it is not.
inline bool is_path(const CollectiveSpec& spec, const List<AxisPart>& parts) {
  const bool blocks = rooted_blocks(spec.what);
  const bool from_0 = spec.root == 0 || spec.what == Collective::all_reduce;
  if (spec.algorithm == Algorithm::tree) {
    return blocks || spec.what == Collective::barrier ||
           (!from_0 && (parts.size() > 1 ? doubles(parts) : parts[0].kind == AxisKind::line));
  }
  const int n = spec.devices();
  return spec.algorithm != Algorithm::direct && blocks && spec.elements % n != 0 && n <= 512;
}

// Whether devices that share links all send as much at once; across dimensions nobody knows. Behind
// an oversubscribed uplink: along one part they are those of other groups; along several they must
// all have the same to do, as they must along several parts of one dimension.
inline bool shares_evenly(const CollectiveSpec& spec, const List<AxisPart>& parts) {
  bool shared = false;
  for (const AxisPart& part : parts) {
    if (part.across()) {
      return false;
    }
    shared = shared || (part.shared && parts.size() > 1);
    for (const AxisPart& other : parts) {
      shared = shared || (&other != &part && part.dim >= 0 && other.dim == part.dim);
    }
  }
  return !shared || (!is_rooted(spec.what) && spec.what != Collective::barrier &&
                     spec.algorithm != Algorithm::tree && spec.elements % spec.devices() == 0);
}

inline CollectiveCost cost_of(CollectiveSpec spec) {
  List<AxisPart> parts = real_parts(spec);
  if (moves_nothing(spec) ||
      (spec.what == Collective::permute && modulo(spec.root, spec.devices()) == 0)) {
    return CollectiveCost();
  }
  const Algorithm how = spec.algorithm;
  const bool barrier = spec.what == Collective::barrier;
  const bool partners = how == Algorithm::halving_doubling || how == Algorithm::tree;
  const bool by_axis = how == Algorithm::torus || how == Algorithm::hierarchical;
  const bool along = !partners && !by_axis && how != Algorithm::direct;
  const bool evenly = shares_evenly(spec, parts);
  bool known = evenly && (barrier || by_axis || parts.size() == 1);
  known = known && (!along || suits(parts[0], how));
  if (is_path(spec, parts)) {
    CollectiveCost cost = path_cost(spec, *prepare(make_schedule(spec)));
    cost.known = known;
    return cost;
  }
  if (barrier) {
    CollectiveCost cost = farthest_cost(spec, parts);
    cost.known = known;
    return cost;
  }
  const bool moved = spec.what == Collective::permute;
  if (how == Algorithm::direct && moved) {
    CollectiveCost cost = permute_cost(spec, parts);
    cost.known = known;
    return cost;
  }
  const bool shares =
      parts.size() > 1 || parts[0].across() ||
      (parts[0].kind == AxisKind::line && parts[0].size > 2 && !is_rooted(spec.what));
  if (how == Algorithm::direct && shares) {
    CollectiveCost cost = direct_estimate(spec, parts);
    cost.known = false;
    return cost;
  }
  if (!by_axis && parts.size() > 1) {
    known = evenly && partners && doubles(parts);
    if (how != Algorithm::tree && (!partners || !doubles(parts))) {
      const AxisPart one = flattened(parts);
      parts.assign(1, one);
      spec.parts.assign(1, one);
    }
  }
  if (along && !suits(parts[0], how)) {
    parts[0] = crowded(parts[0], spec);
  }
  CollectiveCost cost = how == Algorithm::halving_doubling  ? doubling_cost(spec, parts)
                        : how == Algorithm::tree            ? tree_cost(spec, parts)
                        : how == Algorithm::direct          ? direct_cost(spec, parts[0])
                        : rooted_blocks(spec.what) || moved ? blocks_cost(spec, parts[0])
                                                            : neighbour_cost(spec, parts);
  cost.known = cost.known && known;
  return cost;
}

// Whether a call may have a closed form: not across dimensions, nor of uneven rows.
inline bool has_form(const CollectiveSpec& spec, const ChunkCut& cut) {
  bool has = spec.algorithm != Algorithm::custom && cut.even();
  for (const AxisPart& part : spec.parts) {
    has = has && (part.dim >= 0 || part.size == 1);
  }
  return has;
}

inline CollectiveCost checked_cost(const char* function, const CollectiveSpec& spec) {
  check_spec(function, spec);
  for (const AxisPart& part : spec.parts) {
    if (part.size > 1 && (!(part.bandwidth > 0) || !(part.latency >= 0) || part.spacing < 1)) {
      fail({function, ": a part of ", part.size, " devices with bandwidth ", part.bandwidth,
            " bytes/s, latency ", part.latency, " s, spacing ", part.spacing,
            "; above 0, from 0 and from 1 are right"});
    }
  }
  return cost_of(spec);
}

}  // namespace detail

// Steps one after another, of the longest stream.
inline std::int64_t collective_steps(CollectiveSpec spec) {
  detail::check_spec("collective_steps", spec);
  for (AxisPart& part : spec.parts) {
    part.bandwidth = 1;  // any
  }
  return detail::cost_of(spec).steps;
}

// Links crossed one after another: those of the farthest message of each step, as a run counts
// them. -1 as collective_seconds.
inline std::int64_t collective_hops(const CollectiveSpec& spec) {
  const detail::CollectiveCost cost = detail::checked_cost("collective_hops", spec);
  return cost.known ? cost.hops : -1;
}

// Seconds when all devices begin at once and their links carry nothing else. -1: messages share
// links in a way that has no closed form: a ring on a line, both neighbours at once through a
// switch's port, partners on a row when N is no power of two, all blocks at once on a line or
// uneven ones on a ring, a torus of unequal parts, chunks or lines of more than 3, an uplink that
// is oversubscribed and unevenly used; of an algorithm for one row on several parts all but
// partners when the parts are powers of two.
inline double collective_seconds(const CollectiveSpec& spec) {
  const detail::CollectiveCost cost = detail::checked_cost("collective_seconds", spec);
  return cost.known ? cost.seconds : -1;
}

// Any schedule for the collective of `spec` takes at least this: the longest path of its messages,
// each on links of its own, or what the busiest device's links need for all that it sends or takes.
inline double schedule_seconds(const CollectiveSchedule& schedule, const CollectiveSpec& spec) {
  if (detail::moves_nothing(spec)) {
    return 0;
  }
  detail::check_own_schedule(schedule, spec);
  check_schedule(schedule);
  double rate = 0;  // out of a device
  for (const AxisPart& part : detail::real_parts(spec)) {
    const int links = part.kind == AxisKind::full ? part.size - 1 : detail::in_a_row(part) ? 2 : 1;
    rate += links * part.bandwidth / part.spacing;
  }
  const ChunkCut cut = detail::chunk_cut(spec, schedule.chunks);
  std::vector<std::int64_t> moved(static_cast<std::size_t>(2 * schedule.devices), 0);
  double most = 0;
  for (const Transfer& transfer : schedule.transfers) {
    for (const int end : {2 * transfer.from, 2 * transfer.to + 1}) {
      std::int64_t& elements = moved[static_cast<std::size_t>(end)];
      elements += cut.elements(transfer.chunk, transfer.chunks);
      most = std::max(most, static_cast<double>(elements) * spec.element_bytes);
    }
  }
  return std::max(detail::path_cost(spec, *detail::prepare(schedule)).seconds,
                  most > 0 ? most / rate : 0);
}

// The scaling book's rule of thumb for all_gather, reduce_scatter, all_reduce and all_to_all:
//   max(T_min sum(X) / 2, V / (W axes)), all_to_all v N max(X) / (4 N W) of v bytes a device;
// W both ways of a ring, all rows of links at once (chapter 3); behind switches the slowest level,
// W out of a port, or out of all the group's ports of a node (chapter 12).
inline double rule_of_thumb_seconds(const CollectiveSpec& spec) {
  const List<AxisPart> parts = detail::real_parts(spec);
  const double bytes = static_cast<double>(spec.elements) * spec.element_bytes;
  double latency = 0, rate = 0;  // of all rows together
  double level = 0;              // seconds of the slowest
  double exchange = 0;
  for (const AxisPart& part : parts) {
    const bool row = detail::in_a_row(part);
    const double out = part.bandwidth / part.spacing *
                       (part.kind == AxisKind::ring   ? 2
                        : part.kind == AxisKind::full ? part.size - 1
                                                      : 1);
    latency += row ? part.latency * part.size / 2 : part.latency;
    rate += row ? out : 0;
    double ports = 1;
    for (const AxisPart& other : parts) {
      ports *= part.dim >= 0 && other.dim > part.dim ? other.size : 1;
    }
    level = row ? level : std::max(level, bytes / (out * ports));
    exchange = std::max(exchange, bytes / out * (row ? part.size / 4.0 : 1));
  }
  if (parts.empty()) {
    return 0;
  }
  if (spec.what == Collective::all_to_all) {
    return std::max(latency, exchange);
  }
  level = rate > 0 ? std::max(level, bytes / rate) : level;
  return std::max(latency, level) * (spec.what == Collective::all_reduce ? 2 : 1);
}

}  // namespace tinyscale
