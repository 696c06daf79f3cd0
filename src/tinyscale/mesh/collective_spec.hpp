#pragma once
// What one collective is, apart from its numbers: what it does, by which algorithm, over which
// links. Its schedule (who sends which chunk to whom in which step) and its cost in closed form are
// functions of this alone.

#include <algorithm>  // min
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/format.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/hardware/network.hpp"  // AxisKind

namespace tinyscale {

enum class Collective {
  all_gather,
  reduce_scatter,
  all_reduce,
  all_to_all,
  broadcast,
  reduce,
  gather,
  scatter,
  permute,
  barrier,
};

// How chunks travel. `ring`, `ring_both_ways`, `line`, `halving_doubling`, `tree` and `direct` see
// the group as one row of devices, `torus` and `hierarchical` as the axes that it is made of.
enum class Algorithm {
  automatic,         // the cheapest by its closed form
  ring,              // to the next device, around the end
  ring_both_ways,    // both neighbours at once: half the steps
  line,              // both neighbours, no way around the end
  halving_doubling,  // partners at distance 1, 2, 4, ...
  tree,              // binomial, from or to a root
  direct,            // to every other device at once
  torus,             // all axes at once, a share of the data along each
  hierarchical,      // one axis after another, the innermost with the most data
  custom,            // a schedule of the user's
};

enum class Reduce { sum, mean, max, min };

// The stretch of one dimension of the machine that an axis, or a part of it, lies on.
struct AxisPart {
  int size = 1;
  AxisKind kind = AxisKind::line;
  int dim = -1;          // of the machine; -1: not along one dimension
  int spacing = 1;       // links from one device to the next
  double latency = 0;    // seconds a hop
  double bandwidth = 0;  // bytes/s: a link one way, or what a port sends
  int port = -1;         // of a switch: the dimension of its ports; -1: the part's own
  bool shared = false;   // the bandwidth is a share of an uplink, of which alone there is more
  // Across dimensions, where links have no closed form, latency and bandwidth are those of messages
  // to both neighbours at once, and these of all to all at once. 0: along dimensions.
  double far_latency = 0;    // seconds to the farthest device
  double all_bandwidth = 0;  // bytes/s of each of n (n - 1) messages

  bool across() const { return all_bandwidth > 0; }
};

struct CollectiveSpec {
  Collective what = Collective::all_gather;
  Algorithm algorithm = Algorithm::ring;
  List<AxisPart> parts;       // of the group, the slowest first; device = row-major number
  std::int64_t elements = 0;  // of the whole vector: what all_gather makes, what reduce_scatter,
                              // all_reduce, all_to_all and scatter take from a device, gather
                              // makes; broadcast and reduce move, permute from a device
  double element_bytes = 4;   // on the wire
  int root = 0;               // index in the group; permute: the shift, from 0

  int devices() const {
    int product = 1;
    for (const AxisPart& part : parts) {
      product *= part.size;
    }
    return product;
  }
};

inline const char* name_of(Collective what) {
  static const char* const names[] = {"all_gather", "reduce_scatter", "all_reduce", "all_to_all",
                                      "broadcast",  "reduce",         "gather",     "scatter",
                                      "permute",    "barrier"};
  return detail::name_in("Collective", names, what);
}

inline const char* name_of(Algorithm algorithm) {
  static const char* const names[] = {"automatic",        "ring",  "ring both ways", "line",
                                      "halving/doubling", "tree",  "direct",         "torus",
                                      "hierarchical",     "custom"};
  return detail::name_in("Algorithm", names, algorithm);
}

inline const char* name_of(Reduce how) {
  static const char* const names[] = {"sum", "mean", "max", "min"};
  return detail::name_in("Reduce", names, how);
}

namespace detail {

// Chunk c of n covers elements chunk_begin(c) to chunk_begin(c + 1); the first are the larger ones.
inline std::int64_t chunk_begin(std::int64_t elements, int n, int c) {
  return elements / n * c + std::min<std::int64_t>(c, elements % n);
}

inline std::int64_t chunk_size(std::int64_t elements, int n, int c) {
  return elements / n + (c < elements % n ? 1 : 0);
}

inline int modulo(std::int64_t value, int n) { return static_cast<int>((value % n + n) % n); }

}  // namespace detail

// Where the chunks of a schedule lie in the vector that it moves: `blocks` of `block` elements, one
// for each device (all_gather, reduce_scatter, gather, scatter, permute), or for each sender and
// receiver (all_to_all, sender the slower), or one in all; each cut in `parts` chunks.
struct ChunkCut {
  int blocks = 1;
  int parts = 1;
  std::int64_t block = 0;            // elements of each
  std::vector<std::int64_t> ragged;  // instead: where each block begins, and the end

  int chunks() const { return blocks * parts; }
  std::int64_t begin(int chunk) const {  // chunk may be chunks(): the end
    if (chunk == chunks()) {
      return ragged.empty() ? block * blocks : ragged.back();
    }
    const int b = chunk / parts;
    const std::int64_t first = ragged.empty() ? block * b : ragged[static_cast<std::size_t>(b)];
    const std::int64_t size =
        ragged.empty() ? block : ragged[static_cast<std::size_t>(b) + 1] - first;
    return first + detail::chunk_begin(size, parts, chunk % parts);
  }
  bool even() const {
    bool same = true;
    for (std::size_t b = 1; b + 1 < ragged.size(); ++b) {
      same = same && ragged[b + 1] - ragged[b] == ragged[1] - ragged[0];
    }
    return same;
  }
  std::int64_t elements(int chunk, int count = 1) const {
    return begin(chunk + count) - begin(chunk);
  }
};

namespace detail {

// From or to a root: the whole vector, or a block for each device.
inline bool rooted_whole(Collective what) {
  return what == Collective::broadcast || what == Collective::reduce;
}
inline bool rooted_blocks(Collective what) {
  return what == Collective::gather || what == Collective::scatter;
}
inline bool is_rooted(Collective what) { return rooted_whole(what) || rooted_blocks(what); }

// No messages, by any algorithm.
inline bool moves_nothing(const CollectiveSpec& spec) {
  return spec.devices() == 1 || (spec.elements == 0 && spec.what != Collective::barrier);
}

// How many blocks the vector of a collective over n devices has.
inline int block_count(Collective what, int n) {
  switch (what) {
    case Collective::all_reduce:
    case Collective::broadcast:
    case Collective::reduce:
    case Collective::barrier: return 1;
    case Collective::all_to_all:  // no schedule has more
      return static_cast<int>(
          std::min<std::int64_t>(std::int64_t{n} * n, std::numeric_limits<int>::max()));
    default: return n;
  }
}

}  // namespace detail
}  // namespace tinyscale
