#pragma once
// Schedules in which data moves from neighbour to neighbour: ring, ring both ways and line on one
// row of devices; hierarchical and torus on one row after another. A walk is the order in which a
// stream goes through the rows; torus has a stream for each row, that begins with it.
//   all_gather: in step k a device passes on what began k - 1 devices away
//   reduce_scatter, reduce, gather: all_gather, broadcast, scatter run backwards
// Chan, Heimlich, Purkayastha, van de Geijn 2007.

#include <algorithm>  // max, min
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tinyscale/base/list.hpp"
#include "tinyscale/mesh/schedule.hpp"

namespace tinyscale {
namespace detail {

// A row of devices `stride` numbers apart; `way` is ring, ring_both_ways or line.
struct Row {
  int size = 1;
  int stride = 1;
  Algorithm way = Algorithm::ring;

  int coordinate(int device) const { return device / stride % size; }
  int moved(int device, int to) const { return device + (to - coordinate(device)) * stride; }
};

// How far what device `c` of a row has travels each way; together n - 1.
struct Reach {
  int right = 0, left = 0;
};

inline Reach reach(Algorithm way, int n, int c) {
  switch (way) {
    case Algorithm::line: return {n - 1 - c, c};
    case Algorithm::ring_both_ways: return {n / 2, (n - 1) / 2};
    default: return {n - 1, 0};
  }
}

inline int row_steps(const Row& row) {
  return row.way == Algorithm::ring_both_ways ? row.size / 2 : row.size - 1;
}

inline Algorithm natural_way(AxisKind kind) {
  return kind == AxisKind::line   ? Algorithm::line
         : kind == AxisKind::ring ? Algorithm::ring_both_ways
                                  : Algorithm::ring;
}

// torus and hierarchical: a row for each part of more than one device; else all devices in one.
inline List<Row> rows_of(const CollectiveSpec& spec) {
  List<Row> rows;
  if (spec.algorithm != Algorithm::torus && spec.algorithm != Algorithm::hierarchical) {
    rows.push_back({spec.devices(), 1, spec.algorithm});
    return rows;
  }
  int stride = spec.devices();
  for (const AxisPart& part : spec.parts) {
    stride /= part.size;
    if (part.size > 1) {
      rows.push_back({part.size, stride, natural_way(part.kind)});
    }
  }
  return rows;
}

// Which row a stream of an all_gather or a broadcast goes through as number `phase`: hierarchical
// the slowest first, so that the innermost moves the most data; torus each another one.
inline std::size_t walked_row(const List<Row>& rows, std::size_t stream, std::size_t phase) {
  return (stream + phase) % rows.size();
}

inline std::size_t stream_count(const CollectiveSpec& spec, const List<Row>& rows) {
  return spec.algorithm == Algorithm::torus ? rows.size() : 1;
}

// Transfers in the order in which they are made; what continues the last one is joined to it.
struct ScheduleBuilder {
  CollectiveSchedule out;
  int stream = 0;

  void add(int step, int from, int to, int chunk, int chunks = 1) {
    if (!out.transfers.empty()) {
      Transfer& last = out.transfers.back();
      if (last.step == step && last.from == from && last.to == to && last.stream == stream &&
          last.chunk + last.chunks == chunk) {
        last.chunks += chunks;
        return;
      }
    }
    out.transfers.push_back({step, from, to, chunk, chunks, Action::copy, stream});
  }
  // `chunks` behind each other, around the end of `n`.
  void add_around(int step, int from, int to, int chunk, int chunks, int n) {
    const int first = modulo(chunk, n);
    const int straight = std::min(chunks, n - first);
    if (straight > 0) {
      add(step, from, to, first, straight);
    }
    if (straight < chunks) {
      add(step, from, to, 0, chunks - straight);
    }
  }
};

// The same transfers from the last step to the first, each the other way.
inline void run_backwards(CollectiveSchedule& schedule, Action action) {
  int last = 0;
  for (const Transfer& transfer : schedule.transfers) {
    last = std::max(last, transfer.step);
  }
  for (Transfer& transfer : schedule.transfers) {
    const int from = transfer.from;
    transfer.from = transfer.to;
    transfer.to = from;
    transfer.step = last - transfer.step;
    transfer.action = action;
  }
}

// all_reduce: `back` run backwards, summing, then `forth`.
inline void reduce_then(CollectiveSchedule& schedule) {
  List<Transfer> forth = schedule.transfers;
  run_backwards(schedule, Action::reduce);
  int steps = 0;
  for (const Transfer& transfer : forth) {
    steps = std::max(steps, transfer.step + 1);
  }
  for (Transfer& transfer : forth) {
    transfer.step += steps;
    schedule.transfers.push_back(transfer);
  }
}

// One stream's walk. Some devices differ from a given one only on the rows walked already, or only
// on those still to walk: `free_from` to `free_to` of the walk.
struct RowWalk {
  const List<Row>& rows;
  std::size_t stream = 0, streams = 1;
  int devices = 1;
  bool own_numbering = false;  // all_reduce: chunks that are gathered together lie together

  const Row& row(std::size_t phase) const { return rows[walked_row(rows, stream, phase)]; }

  // Devices with any coordinates on those rows, and the ones of `device` elsewhere; rising.
  std::vector<int> alike(int device, std::size_t free_from, std::size_t free_to) const {
    std::vector<int> found(1, device);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const std::size_t phase = (r + rows.size() - stream) % rows.size();
      if (phase < free_from || phase >= free_to) {
        continue;
      }
      std::vector<int> more;
      for (const int one : found) {
        for (int c = 0; c < rows[r].size; ++c) {
          more.push_back(rows[r].moved(one, c));
        }
      }
      found.swap(more);
    }
    return found;
  }

  int chunk_of(int block) const {
    if (!own_numbering) {
      return block * static_cast<int>(streams) + static_cast<int>(stream);
    }
    int number = static_cast<int>(stream);
    for (std::size_t phase = rows.size(); phase-- > 0;) {
      number = number * row(phase).size + row(phase).coordinate(block);
    }
    return number;
  }
};

// A hop along a row: `way` is 1 to the right, -1 to the left. What it carries began `done` devices
// back, at `origin`, and travels as far as `reach` devices.
struct Hop {
  int step = 0, from = 0, to = 0;
  int origin = 0, way = 1, done = 0, reach = 0;
};

// What the devices at the origin have when phase begins: that of the rows walked before.
inline void pass_on(ScheduleBuilder& to_add, const RowWalk& walk, std::size_t phase,
                    const Hop& hop) {
  const std::vector<int> blocks = walk.alike(walk.row(phase).moved(hop.from, hop.origin), 0, phase);
  if (walk.own_numbering) {
    to_add.add(hop.step, hop.from, hop.to, walk.chunk_of(blocks[0]),
               static_cast<int>(blocks.size()));
    return;
  }
  for (const int block : blocks) {
    to_add.add(hop.step, hop.from, hop.to, walk.chunk_of(block));
  }
}

// What goes from the origin to each device farther on: from any device on the rows walked before,
// to any on those still to walk.
inline void pass_blocks(ScheduleBuilder& to_add, const RowWalk& walk, std::size_t phase,
                        const Hop& hop) {
  const Row& row = walk.row(phase);
  const std::vector<int> sources = walk.alike(row.moved(hop.from, hop.origin), 0, phase);
  for (int i = hop.done + 1; i <= hop.reach; ++i) {
    const int away = hop.way > 0 ? i : hop.done + 1 + hop.reach - i;  // rising targets are joined
    const int target = row.moved(hop.from, modulo(hop.origin + hop.way * away, row.size));
    for (const int source : sources) {
      for (const int end : walk.alike(target, phase + 1, walk.rows.size())) {
        to_add.add(hop.step, hop.from, hop.to, walk.chunk_of(source * walk.devices + end));
      }
    }
  }
}

// all_to_all where `exchanges`, else all_gather: both ways of the row at once.
inline void travel_along(ScheduleBuilder& to_add, const RowWalk& walk, std::size_t phase, int first,
                         bool exchanges) {
  const Row& row = walk.row(phase);
  for (int done = 0; done < row_steps(row); ++done) {
    for (int device = 0; device < walk.devices; ++device) {
      const int x = row.coordinate(device);
      for (const int way : {1, -1}) {
        const int origin = modulo(x - way * done, row.size);
        const Reach span = reach(row.way, row.size, origin);
        const Hop hop = {first + done,
                         device,
                         row.moved(device, modulo(x + way, row.size)),
                         origin,
                         way,
                         done,
                         way > 0 ? span.right : span.left};
        if (done >= hop.reach) {
          continue;
        }
        if (exchanges) {
          pass_blocks(to_add, walk, phase, hop);
        } else {
          pass_on(to_add, walk, phase, hop);
        }
      }
    }
  }
}

// Links of the longer of the two chains that leave the root of a row.
inline int chain_hops(const Row& row, int root) {
  const Reach span = reach(row.way, row.size, root);
  return std::max(span.right, span.left);
}

// As many chunks as the longest chain has links stream through each.
inline int chain_chunks(const List<Row>& rows, int root) {
  int chunks = 1;
  for (const Row& row : rows) {
    chunks = std::max(chunks, chain_hops(row, row.coordinate(root)));
  }
  return chunks;
}

inline void broadcast_along(ScheduleBuilder& to_add, const RowWalk& walk, std::size_t phase,
                            int first, int root, int chunks) {
  const Row& row = walk.row(phase);
  const int n = row.size;
  const int r = row.coordinate(root);
  const Reach span = reach(row.way, n, r);
  for (const int begin : walk.alike(root, 0, phase)) {
    for (int x = 0; x < n; ++x) {
      const int device = row.moved(begin, x);
      const int right = modulo(x - r, n), left = modulo(r - x, n);
      for (int c = 0; c < chunks; ++c) {
        const int chunk = static_cast<int>(walk.stream) * chunks + c;
        if (right < span.right) {
          to_add.add(first + right + c, device, row.moved(begin, modulo(x + 1, n)), chunk);
        }
        if (left < span.left) {
          to_add.add(first + left + c, device, row.moved(begin, modulo(x - 1, n)), chunk);
        }
      }
    }
  }
}

// The block for the farthest device leaves the root first.
inline void scatter_along(ScheduleBuilder& to_add, const Row& row, int root) {
  const int n = row.size;
  const Reach span = reach(row.way, n, root);
  for (int away = 1; away <= std::max(span.right, span.left); ++away) {
    for (int hop = 0; hop < away; ++hop) {
      if (away <= span.right) {
        to_add.add(span.right - away + hop, modulo(root + hop, n), modulo(root + hop + 1, n),
                   modulo(root + away, n));
      }
      if (away <= span.left) {
        to_add.add(span.left - away + hop, modulo(root - hop, n), modulo(root - hop - 1, n),
                   modulo(root - away, n));
      }
    }
  }
}

// Links that the block of a device crosses to the one `shift` behind it, below 0 to the left.
inline int permute_hops(Algorithm way, int n, int device, int shift) {
  const int right = modulo(shift, n);
  const bool straight = way == Algorithm::line             ? device + right < n
                        : way == Algorithm::ring_both_ways ? right <= n / 2
                                                           : true;
  return straight ? right : right - n;
}

inline void permute_along(ScheduleBuilder& to_add, const Row& row, int shift) {
  for (int device = 0; device < row.size; ++device) {
    const int hops = permute_hops(row.way, row.size, device, shift);
    const int way = hops < 0 ? -1 : 1;
    for (int step = 0; step < hops * way; ++step) {
      to_add.add(step, modulo(device + way * step, row.size),
                 modulo(device + way * (step + 1), row.size), device);
    }
  }
}

inline void schedule_neighbours(ScheduleBuilder& to_add, const CollectiveSpec& spec) {
  const List<Row> rows = rows_of(spec);
  const Collective what = spec.what;
  if (rooted_blocks(what)) {
    scatter_along(to_add, rows[0], spec.root);
    return;
  }
  if (what == Collective::permute) {
    permute_along(to_add, rows[0], spec.root);
    return;
  }
  const std::size_t streams = stream_count(spec, rows);
  const bool chain = rooted_whole(what);
  const int chunks = chain ? chain_chunks(rows, spec.root) : 1;
  const bool reduces = what == Collective::all_reduce;
  to_add.out.chunks = static_cast<int>(streams) * (chain     ? chunks
                                                   : reduces ? spec.devices()
                                                             : block_count(what, spec.devices()));
  for (std::size_t stream = 0; stream < streams; ++stream) {
    const RowWalk walk{rows, stream, streams, spec.devices(), reduces};
    to_add.stream = static_cast<int>(stream);
    int first = 0;
    for (std::size_t phase = 0; phase < rows.size(); ++phase) {
      const Row& row = walk.row(phase);
      if (chain) {
        broadcast_along(to_add, walk, phase, first, spec.root, chunks);
        first += chain_hops(row, row.coordinate(spec.root)) + chunks - 1;
      } else {
        travel_along(to_add, walk, phase, first, what == Collective::all_to_all);
        first += row_steps(row);
      }
    }
  }
}

}  // namespace detail
}  // namespace tinyscale
