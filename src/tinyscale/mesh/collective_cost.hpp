#pragma once
// What a collective takes, in closed form: steps, links crossed one after another, seconds, when
// all devices begin at once and no other messages are on their links. V elements, N devices:
//   ring                 (N - 1) (alpha + V / N / W), an all_reduce twice that
//   halving / doubling   log2 N alpha + (N - 1) / N V / W
//   tree                 ceil(log2 N) (alpha + V / W)
//   chain of H links     (2 H - 1) (alpha + V / H / W)
//   direct, a switch     alpha + (N - 1) / N V / W
// Chan, Heimlich, Purkayastha, van de Geijn 2007; Thakur, Rabenseifner, Gropp 2005. Uneven chunks
// exactly; the replay of a run's messages gives the same.

#include <algorithm>  // max, min
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tinyscale/mesh/collective_bytes.hpp"

namespace tinyscale {
namespace detail {

// Rounds one after another. Not known: messages share links in a way that has no closed form.
struct CollectiveCost {
  std::int64_t steps = 0;
  std::int64_t hops = 0;
  double seconds = 0;
  bool known = true;

  // `elements` over the busiest link of `part`, that many places of the part away.
  void add(const CollectiveSpec& spec, const AxisPart& part, std::int64_t distance, double elements,
           std::int64_t rounds = 1) {
    const std::int64_t links = distance * part.spacing;
    steps += rounds;
    hops += links;
    // Devices between two of the part send along it too: `spacing` messages to a link.
    seconds += static_cast<double>(links) * part.latency +
               (elements > 0 ? elements * part.spacing * spec.element_bytes / part.bandwidth : 0);
  }
  void twice() {
    steps *= 2;
    hops *= 2;
    seconds *= 2;
  }
};

// Parts of more than one device, the slowest first.
inline List<AxisPart> real_parts(const CollectiveSpec& spec) {
  List<AxisPart> parts;
  for (const AxisPart& part : spec.parts) {
    if (part.size > 1) {
      parts.push_back(part);
    }
  }
  return parts;
}

inline bool has_port(const AxisPart& part) { return part.kind == AxisKind::switched; }

inline bool in_a_row(const AxisPart& part) {
  return part.kind == AxisKind::line || part.kind == AxisKind::ring;
}

// Whether the messages to neighbours all have links of their own.
inline bool suits(const AxisPart& part, Algorithm way) {
  return part.size <= 2 || part.kind == AxisKind::ring || part.kind == AxisKind::full ||
         way == natural_way(part.kind);
}

// One phase of one stream, alone. The first blocks are the largest, and always some device passes
// one of them on: its path is the time.
inline CollectiveCost phase_cost(const CollectiveSpec& spec, const AxisPart& part,
                                 const RowWalk& walk, const ChunkCut& cut, std::size_t phase) {
  const Row& row = walk.row(phase);
  const int steps = row_steps(row);
  CollectiveCost cost;
  if (spec.what == Collective::broadcast || spec.what == Collective::reduce) {
    const int hops = chain_hops(row, row.coordinate(spec.root));
    const int chunks = cut.chunks() / static_cast<int>(walk.streams);
    const int first = static_cast<int>(walk.stream) * chunks;
    cost.add(spec, part, hops + chunks - 1,
             static_cast<double>(cut.elements(first, chunks) + (hops - 1) * cut.elements(first)),
             hops + chunks - 1);
  } else if (spec.what == Collective::all_to_all) {
    double sum = 0, elements = 0;  // step k moves what is bound for steps - k + 1 devices
    for (int to = 0; to < steps; ++to) {
      sum += static_cast<double>(bound_elements(walk, cut, phase, 0, to));
      elements += sum;
    }
    cost.add(spec, part, steps, elements, steps);
  } else {
    cost.add(spec, part, steps, steps * static_cast<double>(walked_elements(walk, cut, phase, 0)),
             steps);
  }
  return cost;
}

// Streams of a torus take the rows in turns: they never meet on a link if all take equally long.
inline bool keep_in_step(const List<AxisPart>& parts, const ChunkCut& cut) {
  bool same = cut.ragged.empty() && cut.block % cut.parts == 0;
  for (const AxisPart& part : parts) {
    const AxisPart& first = parts[0];
    same = same && part.size == first.size && part.kind == first.kind &&
           part.spacing == first.spacing && !(part.latency < first.latency) &&
           !(part.latency > first.latency) && !(part.bandwidth < first.bandwidth) &&
           !(part.bandwidth > first.bandwidth) &&
           (part.kind != AxisKind::line || part.size <= 3);  // the middle of a line is ready early
  }
  return same;
}

// One phase after another. When the streams of a torus do not keep in step it is what it would be
// if each phase waited for the slowest, and not known.
inline CollectiveCost neighbour_cost(const CollectiveSpec& spec, const List<AxisPart>& parts) {
  const List<Row> rows = rows_of(spec);
  const std::size_t streams = stream_count(spec, rows);
  const ChunkCut cut = chunk_cut(spec, chunk_count(spec));
  CollectiveCost cost;
  cost.known = rows.size() == parts.size() && (streams == 1 || keep_in_step(parts, cut));
  for (std::size_t phase = 0; phase < rows.size() && rows.size() == parts.size(); ++phase) {
    double longest = 0;
    for (std::size_t stream = 0; stream < streams; ++stream) {
      const RowWalk walk{rows, stream, streams, spec.devices(),
                         spec.what == Collective::all_reduce};
      const std::size_t r = walked_row(rows, stream, phase);
      const CollectiveCost one = phase_cost(spec, parts[r], walk, cut, phase);
      cost.known = cost.known && suits(parts[r], rows[r].way);
      longest = std::max(longest, one.seconds);
      cost.steps += stream == 0 ? one.steps : 0;  // the same for all, in the end
      cost.hops += stream == 0 ? one.hops : 0;
    }
    cost.seconds += longest;
  }
  if (spec.what == Collective::all_reduce) {
    cost.twice();
  }
  return cost;
}

// A message along each part in turn: all the latencies, the bandwidth of the slowest.
inline void add_message(const CollectiveSpec& spec, int from, int to, std::int64_t elements,
                        CollectiveCost& cost) {
  double slowest = 0;  // seconds a byte
  int stride = spec.devices();
  for (const AxisPart& part : spec.parts) {
    stride /= part.size;
    const int right = modulo(to / stride % part.size - from / stride % part.size, part.size);
    if (right == 0) {
      continue;
    }
    const int straight = from / stride % part.size < to / stride % part.size
                             ? right
                             : part.size - right;  // along a line
    const int links =
        part.spacing * (!in_a_row(part)               ? 1
                        : part.kind == AxisKind::line ? straight
                                                      : std::min(right, part.size - right));
    cost.hops += links;
    cost.seconds += links * part.latency;
    slowest = std::max(slowest, part.spacing / part.bandwidth);
  }
  cost.seconds += elements > 0 ? static_cast<double>(elements) * spec.element_bytes * slowest : 0;
}

// The longest path through the messages when each has links of its own. Exact for what never
// shares a link, as trees and chains.
inline CollectiveCost path_cost(const CollectiveSpec& spec, const PreparedSchedule& schedule) {
  const ChunkCut cut = chunk_cut(spec, schedule.data.chunks);
  CollectiveCost cost;
  for (const auto& stream : schedule.streams) {
    List<CollectiveCost> at(static_cast<std::size_t>(spec.devices()));
    for (std::size_t s = stream.first; s < stream.last; ++s) {
      const List<CollectiveCost> before = at;
      for (std::size_t m = schedule.steps[s].first; m < schedule.steps[s].last; ++m) {
        const ScheduledMessage& message = schedule.messages[m];
        const std::size_t from = static_cast<std::size_t>(message.from);
        const std::size_t to = static_cast<std::size_t>(message.to);
        std::int64_t elements = 0;
        for (std::size_t t = message.first; t < message.last; ++t) {
          const Transfer& transfer = schedule.data.transfers[t];
          elements += cut.elements(transfer.chunk, transfer.chunks);
        }
        CollectiveCost end = before[from].seconds < before[to].seconds ? before[to] : before[from];
        add_message(spec, message.from, message.to, elements, end);
        at[from] = at[from].seconds < end.seconds ? end : at[from];
        at[to] = at[to].seconds < end.seconds ? end : at[to];
        cost = cost.seconds < end.seconds ? end : cost;
      }
    }
  }
  for (const auto& stream : schedule.streams) {
    cost.steps = std::max(cost.steps, static_cast<std::int64_t>(stream.last - stream.first));
  }
  return cost;
}

// The part along which devices `distance` numbers apart lie.
struct Partner {
  const AxisPart* part = nullptr;
  int distance = 0;
};

inline Partner partner(const List<AxisPart>& parts, int distance) {
  std::size_t p = parts.size() - 1;
  for (; p > 0 && distance >= parts[p].size; --p) {
    distance /= parts[p].size;
  }
  return {&parts[p], distance};
}

// Whether partners 1, 2, 4, ... away each lie along one part.
inline bool doubles(const List<AxisPart>& parts) {
  bool all = true;
  for (const AxisPart& part : parts) {
    all = all && (part.size & (part.size - 1)) == 0;
  }
  return all;
}

// Of partners d apart in a row d messages meet in the middle, d links each.
inline CollectiveCost doubling_cost(const CollectiveSpec& spec, const List<AxisPart>& parts) {
  const Doubling group(spec.devices());
  const bool all = spec.what == Collective::all_reduce;
  const ChunkCut cut = chunk_cut(spec, chunk_count(spec));
  CollectiveCost cost;
  cost.known = doubles(parts) || (parts.size() == 1 && !in_a_row(parts[0]));
  if (group.pairs() > 0) {
    cost.add(spec, parts[0], 1, static_cast<double>(all ? spec.elements : cut.elements(1)));
    const std::int64_t least = cut.elements(all ? 0 : 2 * group.pairs() - 1);
    cost.add(spec, parts[0], 1, static_cast<double>(spec.elements - (all ? 0 : least)));
  }
  CollectiveCost exchange;
  for (int distance = 1; distance < group.members; distance *= 2) {
    const Partner other = partner(parts, distance);
    const int away = in_a_row(*other.part) ? other.distance : 1;
    const int held = all ? distance : group.block(distance);
    exchange.add(spec, *other.part, away, static_cast<double>(cut.elements(0, held)) * away);
  }
  if (all) {
    exchange.twice();
  }
  cost.steps += exchange.steps;
  cost.hops += exchange.hops;
  cost.seconds += exchange.seconds;
  return cost;
}

// The root's path: it sends in every step.
inline CollectiveCost tree_cost(const CollectiveSpec& spec, const List<AxisPart>& parts) {
  const int n = spec.devices();
  CollectiveCost cost;
  for (int distance = 1; distance < n; distance *= 2) {
    const Partner other = partner(parts, distance);
    const int around = other.part->kind == AxisKind::ring
                           ? std::min(other.distance, other.part->size - other.distance)
                           : other.distance;
    cost.add(spec, *other.part, in_a_row(*other.part) ? around : 1,
             static_cast<double>(spec.elements));
  }
  if (spec.what == Collective::all_reduce) {
    cost.twice();
  }
  return cost;
}

// Messages `away` links off join those from nearer, which share a link with them, `away` latencies
// after the start; the link is busy from some arrival on until all have passed.
// `loads`: elements over the busiest link from each distance.
inline CollectiveCost shared_link_cost(const CollectiveSpec& spec, const AxisPart& part,
                                       const std::vector<double>& loads) {
  CollectiveCost latest;
  double left = 0;
  for (std::size_t away = loads.size(); away-- > 1;) {
    left += loads[away];
    CollectiveCost cost;
    cost.add(spec, part, static_cast<std::int64_t>(away), left);
    latest = cost.seconds < latest.seconds ? latest : cost;
  }
  return latest;
}

// In a row: how much from each distance.
inline CollectiveCost direct_row_cost(const CollectiveSpec& spec, const AxisPart& part) {
  const int n = part.size;
  const bool rooted = spec.what == Collective::broadcast || spec.what == Collective::reduce;
  const bool blocks = spec.what == Collective::gather || spec.what == Collective::scatter;
  if (rooted || blocks) {
    const Reach span = reach(natural_way(part.kind), n, spec.root);
    CollectiveCost cost;
    for (const int way : {1, -1}) {
      const int farthest = way > 0 ? span.right : span.left;
      std::vector<double> loads(static_cast<std::size_t>(farthest) + 1, 0);
      for (int away = 1; away <= farthest; ++away) {
        loads[static_cast<std::size_t>(away)] = static_cast<double>(
            blocks ? chunk_size(spec.elements, n, modulo(spec.root + way * away, n))
                   : spec.elements);
      }
      const CollectiveCost one = shared_link_cost(spec, part, loads);
      cost = one.seconds < cost.seconds ? cost : one;
    }
    return cost;
  }
  std::vector<double> loads(static_cast<std::size_t>(n / 2) + 1, 0);
  for (int away = 1; away <= n / 2; ++away) {  // each link carries one from each of as many devices
    loads[static_cast<std::size_t>(away)] = static_cast<double>(away * (spec.elements / n));
  }
  CollectiveCost cost = shared_link_cost(spec, part, loads);
  cost.known = part.kind == AxisKind::ring && spec.elements % n == 0;
  return cost;
}

inline CollectiveCost direct_cost(const CollectiveSpec& spec, const AxisPart& part) {
  const int n = part.size;
  const double whole = static_cast<double>(spec.elements);
  const double block = static_cast<double>(chunk_size(spec.elements, n, 0));
  const bool port = has_port(part);
  CollectiveCost cost;
  if (spec.what == Collective::permute) {
    const int right = modulo(spec.root, n), nearer = std::min(right, n - right);
    const int farther = part.kind == AxisKind::line ? n - nearer : nearer;
    cost.add(spec, part, in_a_row(part) ? farther : 1, in_a_row(part) ? nearer * whole : whole);
  } else if (in_a_row(part)) {
    cost = direct_row_cost(spec, part);
  } else if (spec.what == Collective::broadcast || spec.what == Collective::reduce) {
    cost.add(spec, part, 1, port ? (n - 1) * whole : whole);
  } else if (spec.what == Collective::gather || spec.what == Collective::scatter) {
    const double own = static_cast<double>(chunk_size(spec.elements, n, spec.root));
    const double most = static_cast<double>(chunk_size(spec.elements, n, spec.root == 0 ? 1 : 0));
    cost.add(spec, part, 1, port ? whole - own : most);
  } else {
    cost.add(spec, part, 1, port ? (n - 1) * block : block);
  }
  if (spec.what == Collective::all_reduce) {
    cost.twice();
  }
  return cost;
}

// Several parts as one: any two devices are as far as the farthest, over the slowest links.
inline AxisPart flattened(const List<AxisPart>& parts) {
  AxisPart one;
  one.kind = AxisKind::switched;
  for (const AxisPart& part : parts) {
    one.size *= part.size;
    const int farthest = part.kind == AxisKind::line   ? part.size - 1
                         : part.kind == AxisKind::ring ? part.size / 2
                                                       : 1;
    one.latency += farthest * part.spacing * part.latency;
    const double rate = part.bandwidth / part.spacing;
    one.bandwidth = one.bandwidth > 0 ? std::min(one.bandwidth, rate) : rate;
  }
  return one;
}

// Where a message of the algorithm never shares its links but is not always equally far or long.
inline bool is_path(const CollectiveSpec& spec, const List<AxisPart>& parts) {
  const bool blocks = spec.what == Collective::gather || spec.what == Collective::scatter;
  if (spec.what == Collective::barrier) {
    return true;
  }
  if (spec.algorithm == Algorithm::tree) {
    const bool from_0 = spec.root == 0 || spec.what == Collective::all_reduce;
    return blocks || (!from_0 && (parts.size() > 1 || parts[0].kind == AxisKind::line));
  }
  return spec.algorithm != Algorithm::direct && (blocks || spec.what == Collective::permute);
}

inline CollectiveCost cost_of(CollectiveSpec spec) {
  List<AxisPart> parts = real_parts(spec);
  if (parts.empty() || (spec.elements == 0 && spec.what != Collective::barrier) ||
      (spec.what == Collective::permute && modulo(spec.root, spec.devices()) == 0)) {
    return CollectiveCost();
  }
  const Algorithm how = spec.algorithm;
  const bool partners = how == Algorithm::halving_doubling || how == Algorithm::tree;
  const bool by_axis = how == Algorithm::torus || how == Algorithm::hierarchical;
  bool known = parts.size() == 1 || by_axis || spec.what == Collective::barrier;
  if (is_path(spec, parts)) {
    CollectiveCost cost = path_cost(spec, *prepare(make_schedule(spec)));
    cost.known = known && (partners || how == Algorithm::direct || suits(parts[0], how));
    return cost;
  }
  if (!by_axis && parts.size() > 1) {
    known = partners && doubles(parts);
    if (!known) {
      const AxisPart one = flattened(parts);
      parts.assign(1, one);
      spec.parts.assign(1, one);
    }
  }
  CollectiveCost cost = how == Algorithm::halving_doubling ? doubling_cost(spec, parts)
                        : how == Algorithm::tree           ? tree_cost(spec, parts)
                        : how == Algorithm::direct         ? direct_cost(spec, parts[0])
                                                           : neighbour_cost(spec, parts);
  cost.known = cost.known && known;
  return cost;
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

// Links that data crosses one after another: the latencies in the time. -1 as collective_seconds.
inline std::int64_t collective_hops(const CollectiveSpec& spec) {
  const detail::CollectiveCost cost = detail::checked_cost("collective_hops", spec);
  return cost.known ? cost.hops : -1;
}

// Seconds when all devices begin at once and their links carry nothing else. -1: messages share
// links in a way that has no closed form: a ring on a line, both neighbours at once through a
// switch's port, partners on a row when N is no power of two, all blocks at once on a line or
// uneven ones on a ring, a torus of unequal parts, chunks or lines of more than 3; of an algorithm
// for one row on several parts all but partners when the parts are powers of two.
inline double collective_seconds(const CollectiveSpec& spec) {
  const detail::CollectiveCost cost = detail::checked_cost("collective_seconds", spec);
  return cost.known ? cost.seconds : -1;
}

// Of any schedule for the collective of `spec`: the longest path of its messages, each
// on links of its own. It takes no less.
inline double schedule_seconds(const CollectiveSchedule& schedule, const CollectiveSpec& spec) {
  return detail::path_cost(spec, *detail::prepare(schedule)).seconds;
}

// The scaling book's rule of thumb for all_gather, reduce_scatter, all_reduce and all_to_all, W
// both ways of a ring (chapter 3) or out of a port (chapter 12):
//   max(T_min sum(X) / 2, V / (W axes)), all_to_all v N max(X) / (4 N W) of v bytes a device.
inline double rule_of_thumb_seconds(const CollectiveSpec& spec) {
  const List<AxisPart> parts = detail::real_parts(spec);
  const double bytes = static_cast<double>(spec.elements) * spec.element_bytes;
  double latency = 0, rate = 0;  // of all parts together
  double exchange = 0;
  for (const AxisPart& part : parts) {
    const bool row = detail::in_a_row(part);
    const double out = part.bandwidth / part.spacing * (part.kind == AxisKind::ring ? 2 : 1);
    latency += row ? part.latency * part.size / 2 : part.latency;
    rate += out;
    exchange = std::max(exchange, bytes / out * (row ? part.size / 4.0 : 1));
  }
  if (parts.empty()) {
    return 0;
  }
  if (spec.what == Collective::all_to_all) {
    return std::max(latency, exchange);
  }
  return std::max(latency, bytes / rate) * (spec.what == Collective::all_reduce ? 2 : 1);
}

}  // namespace tinyscale
