#pragma once
// Bytes that a device sends in a collective, in closed form: what a run's counters must equal.
// Every device passes on its partial sum of each chunk but its own once, so a reduce_scatter sends
// V - V / N by any algorithm; an all_gather moves as much, but not every device sends the same.

#include <algorithm>  // max, min
#include <cstddef>
#include <cstdint>

#include "tinyscale/mesh/make_schedule.hpp"

namespace tinyscale {
namespace detail {

// Where the chunks of a schedule lie; of an all_to_all those of one device, as a scatter's.
inline ChunkCut device_cut(CollectiveSpec spec) {
  const int n = spec.devices();
  const bool all = spec.what == Collective::all_reduce;
  if (spec.algorithm == Algorithm::halving_doubling) {
    return chunk_cut(spec, all ? Doubling(n).members : n);
  }
  const List<Row> rows = rows_of(spec);
  const int streams = static_cast<int>(stream_count(spec, rows));
  spec.what = spec.what == Collective::all_to_all ? Collective::scatter : spec.what;
  return chunk_cut(spec, streams * (rooted_whole(spec.what) ? chain_chunks(rows, spec.root)
                                    : all                   ? n
                                                            : block_count(spec.what, n)));
}

// Elements of what devices alike on the rows walked already have together of a stream.
inline std::int64_t walked_elements(const RowWalk& walk, const ChunkCut& cut, std::size_t phase,
                                    int device) {
  std::int64_t elements = 0;
  for (const int block : walk.alike(device, 0, phase)) {
    elements += cut.elements(walk.chunk_of(block));
  }
  return elements;
}

// all_to_all: elements that any device of a row has for coordinate `to`.
inline std::int64_t bound_elements(const RowWalk& walk, const ChunkCut& cut, std::size_t phase,
                                   int device, int to) {
  const Row& row = walk.row(phase);
  std::int64_t elements = 0;
  for (const int end : walk.alike(row.moved(device, to), phase + 1, walk.rows.size())) {
    elements += cut.elements(walk.chunk_of(end));
  }
  return elements * static_cast<std::int64_t>(walk.alike(device, 0, phase).size());
}

// How often what goes from coordinate `origin` to each in reach leaves coordinate x.
inline int times_passed(const Row& row, int x, int origin) {
  const Reach span = reach(row.way, row.size, origin);
  return (modulo(x - origin, row.size) < span.right ? 1 : 0) +
         (modulo(origin - x, row.size) < span.left ? 1 : 0);
}

// From how many coordinates what goes to `target` leaves coordinate x.
inline int times_passed_to(const Row& row, int x, int target) {
  const Reach span = reach(row.way, row.size, target);
  const bool line = row.way == Algorithm::line;  // from the left end as far as the target
  const int right = modulo(target - x, row.size), left = modulo(x - target, row.size);
  return right == 0 ? 0
                    : std::max(0, (line ? span.left : span.right) - right + 1) +
                          std::max(0, (line ? span.right : span.left) - left + 1);
}

inline std::int64_t sent_along(const CollectiveSpec& spec, const RowWalk& walk, const ChunkCut& cut,
                               std::size_t phase, int index) {
  const Row& row = walk.row(phase);
  const int x = row.coordinate(index);
  std::int64_t sent = 0;
  if (spec.what == Collective::broadcast) {
    bool in_line = true;  // with a device that has it
    for (std::size_t later = phase + 1; later < walk.rows.size(); ++later) {
      in_line =
          in_line && walk.row(later).coordinate(index) == walk.row(later).coordinate(spec.root);
    }
    const int chunks = cut.chunks() / static_cast<int>(walk.streams);
    const std::int64_t share = cut.elements(static_cast<int>(walk.stream) * chunks, chunks);
    return in_line ? share * times_passed(row, x, row.coordinate(spec.root)) : 0;
  }
  for (int c = 0; c < row.size; ++c) {
    if (spec.what == Collective::all_to_all) {
      sent += times_passed_to(row, x, c) * bound_elements(walk, cut, phase, index, c);
    } else {
      sent += times_passed(row, x, c) * walked_elements(walk, cut, phase, row.moved(index, c));
    }
  }
  return sent;
}

// A row of blocks from or to a root.
inline std::int64_t sent_by_blocks(const CollectiveSpec& spec, const Row& row, int index) {
  const bool gathers = spec.what == Collective::gather;
  const Reach span = reach(row.way, row.size, spec.root);
  // Devices between it and the root, of a gather itself too.
  const int right = modulo(index - spec.root, row.size) - (gathers ? 1 : 0);
  const int left = modulo(spec.root - index, row.size) - (gathers ? 1 : 0);
  std::int64_t sent = 0;
  for (int away = std::max(right, 0) + 1; right >= 0 && away <= span.right; ++away) {
    sent += chunk_size(spec.elements, row.size, modulo(spec.root + away, row.size));
  }
  for (int away = std::max(left, 0) + 1; left >= 0 && away <= span.left; ++away) {
    sent += chunk_size(spec.elements, row.size, modulo(spec.root - away, row.size));
  }
  return sent;
}

inline std::int64_t sent_to_neighbours(const CollectiveSpec& spec, int index) {
  const List<Row> rows = rows_of(spec);
  const int n = spec.devices();
  if (rooted_blocks(spec.what)) {
    return sent_by_blocks(spec, rows[0], index);
  }
  std::int64_t sent = 0;
  if (spec.what == Collective::permute) {
    for (int origin = 0; origin < n; ++origin) {
      const int hops = permute_hops(rows[0].way, n, origin, spec.root);
      const int away = hops < 0 ? modulo(origin - index, n) : modulo(index - origin, n);
      sent += away < (hops < 0 ? -hops : hops) ? spec.elements : 0;
    }
    return sent;
  }
  const std::size_t streams = stream_count(spec, rows);
  const bool all = spec.what == Collective::all_reduce;
  const ChunkCut cut = device_cut(spec);
  sent = all ? spec.elements : 0;
  for (std::size_t stream = 0; stream < streams; ++stream) {
    const RowWalk walk{rows, stream, streams, n, all};
    sent -= all ? cut.elements(walk.chunk_of(index)) : 0;
    for (std::size_t phase = 0; phase < rows.size(); ++phase) {
      sent += sent_along(spec, walk, cut, phase, index);
    }
  }
  return sent;
}

inline std::int64_t sent_by_doubling(const CollectiveSpec& spec, int index) {
  const Doubling group(spec.devices());
  const bool all = spec.what == Collective::all_reduce;
  const ChunkCut cut = device_cut(spec);
  const bool paired = index < 2 * group.pairs();
  if (paired && index % 2 == 1) {
    return all ? spec.elements : cut.elements(index);
  }
  const int member = paired ? index / 2 : index - group.pairs();
  std::int64_t sent = paired ? spec.elements - (all ? 0 : cut.elements(index + 1)) : 0;
  const int chunk = group.reversed(member);  // of an all_reduce
  sent += all ? spec.elements - cut.elements(chunk) : 0;
  for (int held = 1; held < group.members; held *= 2) {
    const int first = (all ? chunk : member) / held * held;
    const int begin = all ? first : group.device(first);
    sent += cut.elements(begin, (all ? first + held : group.device(first + held)) - begin);
  }
  return sent;
}

// Elements of devices v to v + count - 1 behind the root.
inline std::int64_t elements_below(const CollectiveSpec& spec, int v, int count) {
  std::int64_t elements = 0;
  for (int i = v; i < v + count; ++i) {
    elements += chunk_size(spec.elements, spec.devices(), modulo(spec.root + i, spec.devices()));
  }
  return elements;
}

inline std::int64_t sent_in_tree(const CollectiveSpec& spec, int index) {
  const int n = spec.devices();
  const bool all = spec.what == Collective::all_reduce;
  const int v = modulo(index - (all ? 0 : spec.root), n);
  if (spec.what == Collective::reduce) {
    return v == 0 ? 0 : spec.elements;
  }
  std::int64_t sent = all && v > 0 ? spec.elements : 0;
  int subtree = 1;
  for (int distance = 1; distance < n && v % (2 * distance) == 0; distance *= 2) {
    if (v + distance < n) {
      const int below = std::min(distance, n - v - distance);
      subtree += below;
      sent += spec.what == Collective::scatter  ? elements_below(spec, v + distance, below)
              : spec.what == Collective::gather ? 0
                                                : spec.elements;
    }
  }
  return spec.what != Collective::gather ? sent : v == 0 ? 0 : elements_below(spec, v, subtree);
}

inline std::int64_t sent_directly(const CollectiveSpec& spec, int index) {
  const int n = spec.devices();
  const std::int64_t own = chunk_size(spec.elements, n, index);
  const bool root = index == spec.root;
  switch (spec.what) {
    case Collective::all_gather: return (n - 1) * own;
    case Collective::all_reduce: return spec.elements - own + (n - 1) * own;
    case Collective::all_to_all: return spec.elements - own;
    case Collective::broadcast: return root ? (n - 1) * spec.elements : 0;
    case Collective::scatter: return root ? spec.elements - own : 0;
    case Collective::gather: return root ? 0 : own;
    case Collective::permute: return modulo(spec.root, n) == 0 ? 0 : spec.elements;
    default: return 0;
  }
}

}  // namespace detail

// Bytes that the device at `index` of the group sends.
inline double collective_bytes(const CollectiveSpec& spec, int index) {
  detail::check_spec("collective_bytes", spec);
  const int n = spec.devices();
  if (index < 0 || index >= n) {
    detail::fail(
        {"collective_bytes: index ", index, " of ", n, " devices; indices are 0 to ", n - 1});
  }
  std::int64_t elements = 0;
  if (detail::moves_nothing(spec) || spec.what == Collective::barrier) {
    elements = 0;
  } else if (spec.what == Collective::reduce) {
    elements = index == spec.root ? 0 : spec.elements;
  } else if (spec.what == Collective::reduce_scatter) {
    elements = spec.elements - detail::chunk_size(spec.elements, n, index);
  } else if (spec.algorithm == Algorithm::direct) {
    elements = detail::sent_directly(spec, index);
  } else if (spec.algorithm == Algorithm::tree) {
    elements = detail::sent_in_tree(spec, index);
  } else if (spec.algorithm == Algorithm::halving_doubling) {
    elements = detail::sent_by_doubling(spec, index);
  } else {
    elements = detail::sent_to_neighbours(spec, index);
  }
  return static_cast<double>(elements) * spec.element_bytes;
}

// What turns algbw, the vector's bytes over seconds, into busbw: about what each device's link
// carries, whatever the algorithm (nccl-tests, PERFORMANCE.md).
inline double bus_factor(Collective what, int devices) {
  const double share = devices < 1 ? 0 : (devices - 1.0) / devices;
  switch (what) {
    case Collective::all_reduce: return 2 * share;
    case Collective::all_gather:
    case Collective::reduce_scatter:
    case Collective::all_to_all:
    case Collective::gather:
    case Collective::scatter: return share;
    default: return 1;
  }
}

}  // namespace tinyscale
