#pragma once
// The same array under another sharding, by the cheapest collectives.
// A move takes mesh axes from one place to another: cut a dim (slice, free), leave it (all_gather),
// change dims (all_to_all), leave a partial sum (all_reduce) or cut a dim instead
// (reduce_scatter). The shortest path through all shardings, each move at its closed form, also
// finds the detours: a free slice over an idle axis first, so that more links gather.

#include <algorithm>  // max
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tinyscale/base/format.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/mesh/collective_cost.hpp"
#include "tinyscale/mesh/sharded.hpp"
#include "tinyscale/tensor/choose.hpp"

namespace tinyscale {
namespace detail {

// Places: 0 the partial sum, d + 1 dim d, -1 none.
struct AxisMove {
  int from = -1, to = -1;
  std::string axes;  // letters, in the order of the blocks
};

inline Collective collective_of(const AxisMove& move) {
  return move.from == 0 ? (move.to < 0 ? Collective::all_reduce : Collective::reduce_scatter)
         : move.to < 0  ? Collective::all_gather
                        : Collective::all_to_all;
}

inline bool is_slice(const AxisMove& move) { return move.from < 0; }

inline AxisPlaces after_move(AxisPlaces places, const AxisMove& move) {
  if (move.from > 0) {
    std::string& from = places[static_cast<std::size_t>(move.from)];
    from.erase(from.size() - move.axes.size());
  }
  for (std::size_t i = 0; move.from == 0 && i < move.axes.size(); ++i) {
    places[0].erase(places[0].find(move.axes[i]), 1);
  }
  if (move.to == 0) {  // of a search backwards
    places[0] = rising_union(places[0], move.axes);
  } else if (move.to > 0) {
    places[static_cast<std::size_t>(move.to)] += move.axes;
  }
  return places;
}

inline CollectiveSpec spec_of(const PlacedMesh& mesh, Collective what, const std::string& letters,
                              std::int64_t elements, DType format) {
  CollectiveSpec spec;
  spec.what = what;
  spec.algorithm = Algorithm::automatic;
  spec.elements = elements;
  spec.element_bytes = bytes_of(format);
  std::vector<int> numbers;
  for (const char letter : letters) {
    numbers.push_back(static_cast<int>(axis_number(letter)));
  }
  spec.parts = parts_of_group(mesh.machine, mesh.axes, numbers);
  return spec;
}

struct MoveCost {
  std::string axes;
  Collective what = Collective::all_gather;
  std::int64_t local = 0;  // elements of a device before
  double seconds = 0, bytes = 0;
  std::string algorithm;
};

inline MoveCost price(const PlacedMesh& mesh, const AxisMove& move, std::int64_t local,
                      DType format) {
  MoveCost cost;
  if (is_slice(move)) {
    return cost;
  }
  cost.axes = move.axes;
  cost.what = collective_of(move);
  cost.local = local;
  const bool gathers = cost.what == Collective::all_gather;
  const std::int64_t elements = local * (gathers ? shard_count(mesh, move.axes) : 1);
  CollectiveSpec spec = spec_of(mesh, cost.what, move.axes, elements, format);
  const CollectiveChoice choice = choose_algorithm(spec);
  spec.algorithm = choice.algorithm;
  cost.algorithm = name_of(choice.algorithm);
  cost.seconds = choice.seconds;
  cost.bytes = collective_bytes(spec, 0);
  return cost;
}

// A sharding that a search has reached.
struct Reached {
  AxisPlaces places;
  double seconds = 0, bytes = 0;
  int moves = 0;
  std::size_t previous = 0;  // itself: the start
  AxisMove by;               // between them, in the direction of time
  bool done = false;
};

// Cheaper in time, then in bytes, then in moves; sums in another order are equal.
inline bool cheaper(double seconds, double bytes, int moves, const Reached& other) {
  const double most = std::max(seconds, other.seconds);
  if (std::fabs(seconds - other.seconds) > 1e-12 * most) {
    return seconds < other.seconds;
  }
  return bytes != other.bytes ? bytes < other.bytes : moves < other.moves;
}

// Ordered choices of the letters, the empty one left out; of many letters in their order only.
inline std::vector<std::string> arrangements(const std::string& letters) {
  std::vector<std::string> all(1);
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (const char letter : letters) {
      const std::string& base = all[i];
      const bool rising = base.empty() || base.back() < letter;
      if (base.find(letter) == std::string::npos && (rising || letters.size() < 4)) {
        all.push_back(base + letter);
      }
    }
  }
  all.erase(all.begin());
  return all;
}

// All shardings in reach of one, cheapest first (Dijkstra); backwards: all that reach it.
class ShardingSearch {
 public:
  ShardingSearch(const Shared<const PlacedMesh>& mesh, const Shape& shape, DType format,
                 const AxisPlaces& start, bool backwards)
      : mesh_(*mesh), shape_(shape), format_(format), backwards_(backwards) {
    add({start, 0, 0, 0, 0, {}, false});
    while (true) {
      std::size_t next = reached.size();
      for (std::size_t i = 0; i < reached.size(); ++i) {
        const Reached& node = reached[i];
        if (!node.done && (next == reached.size() ||
                           cheaper(node.seconds, node.bytes, node.moves, reached[next]))) {
          next = i;
        }
      }
      if (next == reached.size()) {
        return;
      }
      reached[next].done = true;
      leave(next);
    }
  }

  // Null: out of reach.
  const Reached* find(const AxisPlaces& places) const {
    for (const Reached& node : reached) {
      if (node.places == places) {
        return &node;
      }
    }
    return nullptr;
  }

  // The moves between the start and a place, in the order of time.
  List<AxisMove> moves(const Reached& place) const {
    List<AxisMove> way;
    for (const Reached* at = &place; at->moves > 0; at = &reached[at->previous]) {
      way.push_back(at->by);
    }
    for (std::size_t i = 0; !backwards_ && 2 * i + 1 < way.size(); ++i) {
      const AxisMove first = way[i];
      way[i] = way[way.size() - 1 - i];
      way[way.size() - 1 - i] = first;
    }
    return way;
  }

  List<Reached> reached;

 private:
  void leave(std::size_t node) {
    const AxisPlaces places = reached[node].places;
    std::string idle;
    for (const char letter : mesh_.letters()) {
      bool used = false;
      for (const std::string& letters : places) {
        used = used || letters.find(letter) != std::string::npos;
      }
      if (!used) {
        idle += letter;
      }
    }
    for (const std::string& axes : arrangements(idle)) {
      leave_from(node, -1, axes);
    }
    for (const std::string& axes : arrangements(backwards_ ? std::string() : places[0])) {
      leave_from(node, 0, axes);
    }
    for (std::size_t d = 1; d < places.size(); ++d) {
      for (std::size_t first = 0; first < places[d].size(); ++first) {
        leave_from(node, static_cast<int>(d), places[d].substr(first));
      }
    }
  }

  void leave_from(std::size_t node, int from, const std::string& axes) {
    for (int to = -1; to <= shape_.size(); ++to) {
      const bool slice = backwards_ ? to < 0 : from < 0;  // one axis at a time, they are free
      if (to != from && (to != 0 || backwards_) && !(slice && axes.size() > 1)) {
        try_move(node, {from, to, axes});
      }
    }
  }

  void try_move(std::size_t node, const AxisMove& move) {
    Reached next;
    next.places = after_move(reached[node].places, move);
    next.by = backwards_ ? AxisMove{move.to, move.from, move.axes} : move;
    Shape local = shape_;
    Shape other = shape_;
    if (!local_shape_of(mesh_, backwards_ ? next.places : reached[node].places, local) ||
        !local_shape_of(mesh_, next.places, other)) {
      return;
    }
    const MoveCost cost = is_slice(next.by) ? MoveCost() : cost_of(next.by, local.count());
    next.seconds = reached[node].seconds + cost.seconds;
    next.bytes = reached[node].bytes + cost.bytes;
    next.moves = reached[node].moves + 1;
    next.previous = node;
    add(next);
  }

  void add(const Reached& node) {
    for (Reached& known : reached) {
      if (known.places == node.places) {
        if (!known.done && cheaper(node.seconds, node.bytes, node.moves, known)) {
          known = node;
        }
        return;
      }
    }
    reached.push_back(node);
  }

  MoveCost cost_of(const AxisMove& move, std::int64_t local) {
    for (const MoveCost& known : costs_) {
      if (known.local == local && known.what == collective_of(move) && known.axes == move.axes) {
        return known;
      }
    }
    costs_.push_back(price(mesh_, move, local, format_));
    return costs_.back();
  }

  const PlacedMesh& mesh_;
  Shape shape_;
  DType format_;
  bool backwards_;
  List<MoveCost> costs_;
};

inline Tensor reduced(const List<Tensor>& terms, Reduce how) {
  Tensor total = terms[0];
  for (std::size_t i = 1; i < terms.size(); ++i) {
    total = how == Reduce::max ? maximum(total, terms[i]) : total + terms[i];
  }
  return total;
}

// Part i of n along a dim, with memory of its own.
inline Tensor part_of(const Tensor& x, int dim, std::int64_t n, std::int64_t i) {
  const std::int64_t size = x.dim(dim) / n;
  return slice(x, dim, i * size, (i + 1) * size).clone();
}

// The tensors of one group of devices, by index in it, after the move.
inline List<Tensor> moved(const List<Tensor>& in, const AxisMove& move, Reduce how) {
  const std::int64_t n = static_cast<std::int64_t>(in.size());
  List<Tensor> out;
  Tensor all;
  if (move.from == 0) {
    all = reduced(in, how);
  } else if (move.to < 0) {
    all = concat(in, move.from - 1);
  }
  for (std::int64_t i = 0; i < n; ++i) {
    if (move.to < 0) {
      out.push_back(all.clone());
    } else if (move.from <= 0) {
      const Tensor& from = is_slice(move) ? in[static_cast<std::size_t>(i)] : all;
      out.push_back(part_of(from, move.to - 1, n, i));
    } else {
      List<Tensor> parts;
      for (const Tensor& one : in) {
        parts.push_back(part_of(one, move.to - 1, n, i));
      }
      out.push_back(concat(parts, move.from - 1));
    }
  }
  return out;
}

// The ranks of the group over some axes that `first` begins.
inline std::vector<std::size_t> group_of(const PlacedMesh& mesh, const std::string& letters,
                                         int first) {
  std::vector<std::size_t> members(static_cast<std::size_t>(shard_count(mesh, letters)));
  for (std::size_t i = 0; i < members.size(); ++i) {
    std::size_t left = i;
    members[i] = static_cast<std::size_t>(first);
    for (std::size_t a = letters.size(); a-- > 0;) {
      const AxisPlacement& axis = mesh.axes[axis_number(letters[a])];
      const std::size_t size = static_cast<std::size_t>(axis.size);
      members[i] += left % size * static_cast<std::size_t>(axis.stride);
      left /= size;
    }
  }
  return members;
}

inline void move_shards(const PlacedMesh& mesh, List<Tensor>& shards, const AxisMove& move,
                        Reduce how) {
  Context quiet = device_context(-1);
  const ContextScope scope(quiet);
  for (int first = 0; first < mesh.devices(); ++first) {
    if (shard_index(mesh, move.axes, first) == 0) {
      const std::vector<std::size_t> members = group_of(mesh, move.axes, first);
      List<Tensor> group;
      for (const std::size_t rank : members) {
        group.push_back(shards[rank]);
      }
      group = moved(group, move, how);
      for (std::size_t i = 0; i < members.size(); ++i) {
        shards[members[i]] = group[i];
      }
    }
  }
}

// Makes a move and writes it into the report.
inline void make_move(Sharded& a, const AxisMove& move, ShardedReport& report,
                      Reduce how = Reduce::sum) {
  const AxisPlaces places = a.places();
  ShardedStep step;
  step.name = is_slice(move) ? "slice" : name_of(collective_of(move));
  step.axes = axes_text(*a.mesh, move.axes);
  step.before = a.sharding.text();
  const MoveCost cost = price(*a.mesh, move, a.local_shape().count(), a.format);
  step.algorithm = cost.algorithm;
  step.bytes = cost.bytes;
  step.seconds = cost.seconds;
  report.bytes += cost.bytes;
  report.comms_seconds += cost.seconds;
  if (!a.shards.empty()) {
    move_shards(*a.mesh, a.shards, move, how);
  }
  a.sharding = sharding_of(*a.mesh, after_move(places, move), a.sharding.dims);
  step.after = a.sharding.text();
  report.steps.push_back(step);
}

// "all_gather b over x" for each move but the free ones.
inline std::string moves_text(const PlacedMesh& mesh, const List<AxisMove>& moves,
                              const std::string& array) {
  std::string out;
  for (const AxisMove& move : moves) {
    out += out.empty() ? "" : ", ";
    out += is_slice(move) ? "slice" : name_of(collective_of(move));
    out += " " + array + " over " + axes_text(mesh, move.axes);
  }
  return out;
}

inline void check_same_names(const char* function, const Sharding& a, const Sharding& b) {
  bool same = a.dims.size() == b.dims.size();
  for (std::size_t d = 0; same && d < a.dims.size(); ++d) {
    same = a.dims[d].name == b.dims[d].name;
  }
  if (!same) {
    fail({function, ": the array is [", a.text(), "], wanted is [", b.text(),
          "]; the same dims in the same order are right"});
  }
}

inline void reshard_into(Sharded& a, const Sharding& wanted, ShardedReport& report,
                         const char* function) {
  check_same_names(function, a.sharding, wanted);
  const AxisPlaces goal = places_of(*a.mesh, wanted, a.shape);
  const ShardingSearch search(a.mesh, a.shape, a.format, a.places(), false);
  const Reached* const end = search.find(goal);
  if (end == nullptr) {
    fail({function, ": from ", a.text(), " to [", wanted.text(),
          "]; a sum that is made is not undone, leave out what stands in braces"});
  }
  for (const AxisMove& move : search.moves(*end)) {
    make_move(a, move, report);
  }
  a.sharding = wanted;
}

inline void finish(Sharded& a, const ShardedReport& report) {
  a.made = Shared<const ShardedReport>(new ShardedReport(report));
}

}  // namespace detail

// The same array under another sharding: reshard(c, "I_x, J").
inline Sharded reshard(const Sharded& a, const std::string& text) {
  Sharded out = a;
  ShardedReport report;
  report.title = "reshard " + a.text() + " -> [" + parse_sharding(text).text() + "]";
  detail::reshard_into(out, parse_sharding(text), report, "reshard");
  report.reason = report.steps.empty()
                      ? "nothing moves"
                      : detail::cat("the cheapest way: ", format_seconds(report.comms_seconds));
  detail::finish(out, report);
  return out;
}

}  // namespace tinyscale
