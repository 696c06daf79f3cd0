#pragma once
// The closed forms of collectives, one function for each way in which data travels: rounds of
// `links` latencies and what the busiest link carries. V elements, N devices:
//   ring                 (N - 1) (alpha + V / N / W), an all_reduce twice that
//   halving / doubling   log2 N alpha + (N - 1) / N V / W
//   tree                 ceil(log2 N) (alpha + V / W)
//   chain of H links     (2 H - 1) (alpha + V / H / W)
//   direct, a switch     alpha + (N - 1) / N V / W
// Chan, Heimlich, Purkayastha, van de Geijn 2007; Thakur, Rabenseifner, Gropp 2005. Uneven chunks
// exactly: the first blocks are the largest, and some device passes one of them on in every step.

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

// A part that does not suit the way, about: a message around the end of a line crosses all of it,
// in every round, or in those in which a root's data gets there; two at once share a port, or the
// line with that message.
inline AxisPart crowded(AxisPart part, const CollectiveSpec& spec) {
  const Reach span = reach(spec.algorithm, part.size, spec.root);
  const int beyond =
      std::max({0, spec.root + span.right - part.size + 1, span.left - spec.root});  // the end
  const double rounds = !is_rooted(spec.what)      ? 1
                        : rooted_blocks(spec.what) ? beyond * 1.0 / std::max(span.right, span.left)
                                                   : (beyond > 0 ? 0.5 : 0);
  if (part.kind == AxisKind::line) {
    part.latency *= 1 + rounds * (part.size - 2);
  }
  if (spec.algorithm != Algorithm::ring && !is_rooted(spec.what) &&
      spec.what != Collective::permute) {
    part.bandwidth /= 2;
  }
  return part;
}

// One phase of one stream, alone. The first blocks are the largest, and always some device passes
// one of them on: its path is the time.
inline CollectiveCost phase_cost(const CollectiveSpec& spec, const AxisPart& part,
                                 const RowWalk& walk, const ChunkCut& cut, std::size_t phase) {
  const Row& row = walk.row(phase);
  const int steps = row_steps(row);
  CollectiveCost cost;
  if (rooted_whole(spec.what)) {
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
inline bool keep_in_step(const List<AxisPart>& parts, const List<Row>& rows, int root,
                         const ChunkCut& cut) {
  bool same = cut.ragged.empty() && cut.block % cut.parts == 0;
  for (const Row& row : rows) {
    same = same &&
           chain_hops(row, row.coordinate(root)) == chain_hops(rows[0], rows[0].coordinate(root));
  }
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

// One phase after another: the slowest stream. When the streams of a torus do not keep in step it
// is about that, or what the busiest part carries of all, and not known.
inline CollectiveCost neighbour_cost(const CollectiveSpec& spec, const List<AxisPart>& parts) {
  const List<Row> rows = rows_of(spec);
  const std::size_t streams = stream_count(spec, rows);
  const ChunkCut cut = device_cut(spec);
  std::vector<double> carried(rows.size(), 0);
  CollectiveCost longest;
  for (std::size_t stream = 0; stream < streams; ++stream) {
    const RowWalk walk{rows, stream, streams, spec.devices(), spec.what == Collective::all_reduce};
    CollectiveCost cost;
    for (std::size_t phase = 0; phase < rows.size(); ++phase) {
      const std::size_t r = walked_row(rows, stream, phase);
      const CollectiveCost one = phase_cost(spec, parts[r], walk, cut, phase);
      cost.steps += one.steps;
      cost.hops += one.hops;
      cost.seconds += one.seconds;
      carried[r] += one.seconds - static_cast<double>(one.hops) * parts[r].latency;
    }
    longest = stream > 0 && cost.seconds <= longest.seconds ? longest : cost;
  }
  longest.known = streams == 1 || keep_in_step(parts, rows, spec.root, cut);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    longest.known = longest.known && suits(parts[r], rows[r].way);
    longest.seconds = std::max(longest.seconds, carried[r]);
  }
  if (spec.what == Collective::all_reduce) {
    longest.twice();
  }
  return longest;
}

// Whether the way through a part's switch leads through the other's above it as well: a spine above
// leaves, whose latency is that of both.
inline bool is_leaf_of(const AxisPart& part, const AxisPart& above) {
  return part.port >= 0 && part.port == above.port && above.dim < part.dim;
}

// Whether a message from one device to another goes along a part.
inline bool goes_along(const CollectiveSpec& spec, std::size_t p, int from, int to) {
  int stride = 1;
  for (std::size_t faster = p + 1; faster < spec.parts.size(); ++faster) {
    stride *= spec.parts[faster].size;
  }
  return (from / stride - to / stride) % spec.parts[p].size != 0;
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
    bool passed = false;
    for (std::size_t p = 0; part.port >= 0 && p < spec.parts.size(); ++p) {
      passed = passed || (is_leaf_of(part, spec.parts[p]) && goes_along(spec, p, from, to));
    }
    const int links =
        part.spacing * (passed                        ? 0
                        : !in_a_row(part)             ? 1
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
    std::vector<double> at(static_cast<std::size_t>(spec.devices()), 0);
    std::int64_t hops = 0;
    for (std::size_t s = stream.first; s < stream.last; ++s) {
      const std::vector<double> before = at;
      std::int64_t farthest = 0;
      for (std::size_t m = schedule.steps[s].first; m < schedule.steps[s].last; ++m) {
        const ScheduledMessage& message = schedule.messages[m];
        const std::size_t from = static_cast<std::size_t>(message.from);
        const std::size_t to = static_cast<std::size_t>(message.to);
        std::int64_t elements = 0;
        for (std::size_t t = message.first; t < message.last; ++t) {
          const Transfer& transfer = schedule.data.transfers[t];
          elements += cut.elements(transfer.chunk, transfer.chunks);
        }
        CollectiveCost one;
        add_message(spec, message.from, message.to, elements, one);
        const double end = std::max(before[from], before[to]) + one.seconds;
        at[from] = std::max(at[from], end);
        at[to] = std::max(at[to], end);
        cost.seconds = std::max(cost.seconds, end);
        farthest = std::max(farthest, one.hops);
      }
      hops += farthest;
    }
    cost.steps = std::max(cost.steps, static_cast<std::int64_t>(stream.last - stream.first));
    cost.hops = std::max(cost.hops, hops);
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

// Of partners d apart in a row d messages meet in the middle, d links each; those of an all_reduce
// must be equally large.
inline CollectiveCost doubling_cost(const CollectiveSpec& spec, const List<AxisPart>& parts) {
  const Doubling group(spec.devices());
  const bool all = spec.what == Collective::all_reduce;
  const ChunkCut cut = device_cut(spec);
  CollectiveCost cost;
  cost.known = doubles(parts) || (parts.size() == 1 && !in_a_row(parts[0]));
  for (int distance = 1; distance < group.members; distance *= 2) {
    const Partner other = partner(parts, distance);
    const bool shares = in_a_row(*other.part) && other.distance > 1;
    const int held = all ? group.members / 2 / distance : group.device(distance);
    cost.add(spec, *other.part, shares ? other.distance : 1,
             static_cast<double>(cut.elements(0, held)) * (shares ? other.distance : 1));
    cost.known = cost.known && !(all && shares && spec.elements % group.members != 0);
  }
  if (all) {
    cost.twice();
  }
  if (group.pairs() > 0) {
    const std::int64_t least = all ? 0 : cut.elements(2 * group.pairs() - 1);
    cost.add(spec, parts[0], 1, static_cast<double>(all ? spec.elements : cut.elements(1)));
    cost.add(spec, parts[0], 1, static_cast<double>(spec.elements - least));
  }
  return cost;
}

// The root's path: it sends in every step. About so when partners are not along one part each.
inline CollectiveCost tree_cost(const CollectiveSpec& spec, const List<AxisPart>& parts) {
  const int n = spec.devices();
  CollectiveCost cost;
  for (std::int64_t away = 1; away < n; away *= 2) {
    const int distance = static_cast<int>(away);
    if (parts.size() > 1 && !doubles(parts)) {
      add_message(spec, 0, distance, spec.elements, cost);
      ++cost.steps;
      continue;
    }
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
  latest.hops = (static_cast<std::int64_t>(loads.size()) - 1) * part.spacing;  // the farthest's
  return latest;
}

// In a row: how much from each distance.
inline CollectiveCost direct_row_cost(const CollectiveSpec& spec, const AxisPart& part) {
  const int n = part.size;
  if (is_rooted(spec.what)) {
    const Reach span = reach(natural_way(part.kind), n, spec.root);
    // Half around a ring everything goes up: to the root it comes from the other side.
    const bool swap = spec.what == Collective::gather && part.kind == AxisKind::ring;
    CollectiveCost cost;
    for (const int way : {1, -1}) {
      const int farthest = (way > 0) != swap ? span.right : span.left;
      std::vector<double> loads(static_cast<std::size_t>(farthest) + 1, 0);
      for (int away = 1; away <= farthest; ++away) {
        loads[static_cast<std::size_t>(away)] = static_cast<double>(
            rooted_blocks(spec.what)
                ? chunk_size(spec.elements, n, modulo(spec.root + way * away, n))
                : spec.elements);
      }
      const CollectiveCost one = shared_link_cost(spec, part, loads);
      cost.steps = 1;
      cost.hops = std::max(cost.hops, one.hops);
      cost.seconds = std::max(cost.seconds, one.seconds);
    }
    return cost;
  }
  const std::int64_t block = spec.elements / n;
  std::vector<double> loads(static_cast<std::size_t>(n / 2) + 1, 0);
  for (int away = 1; away <= n / 2; ++away) {  // each link carries one from each of as many devices
    loads[static_cast<std::size_t>(away)] = static_cast<double>(away * block);
  }
  CollectiveCost cost = shared_link_cost(spec, part, loads);
  cost.known = part.kind == AxisKind::ring && spec.elements % n == 0;
  return cost;
}

// A direct permute: along each part all devices shift by a digit of the shift, or by one more where
// faster digits carry. All the latencies, and the bytes that the busiest link carries.
inline CollectiveCost permute_cost(const CollectiveSpec& spec, const List<AxisPart>& parts) {
  int shift = modulo(spec.root, spec.devices());
  bool carries = false;
  CollectiveCost cost;
  double busiest = 0;  // seconds
  for (std::size_t p = parts.size(); p-- > 0;) {
    const AxisPart& part = parts[p];
    const int digit = shift % part.size;
    int links = 0, together = 0;
    for (const int right : {digit, carries ? (digit + 1) % part.size : digit}) {
      const int nearer = std::min(right, part.size - right);
      const int farther = part.kind == AxisKind::line && right > 0 ? part.size - nearer : nearer;
      links = std::max(links, in_a_row(part) ? farther : std::min(right, 1));
      together = std::max(together, in_a_row(part) ? nearer : std::min(right, 1));
    }
    CollectiveCost load;
    load.add(spec, part, 0, together * static_cast<double>(spec.elements));
    busiest = std::max(busiest, load.seconds);
    cost.add(spec, part, links, 0, 0);
    carries = carries || digit > 0;
    shift /= part.size;
  }
  cost.steps = 1;
  cost.seconds += busiest;
  return cost;
}

inline CollectiveCost direct_cost(const CollectiveSpec& spec, const AxisPart& part) {
  const int n = part.size;
  const double whole = static_cast<double>(spec.elements);
  const double block = static_cast<double>(chunk_size(spec.elements, n, 0));
  const bool port = has_port(part);
  CollectiveCost cost;
  if (in_a_row(part)) {
    cost = direct_row_cost(spec, part);
  } else if (rooted_whole(spec.what)) {
    cost.add(spec, part, 1, port ? (n - 1) * whole : whole);
  } else if (rooted_blocks(spec.what)) {
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

}  // namespace detail
}  // namespace tinyscale
