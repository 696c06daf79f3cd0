#pragma once
// The cheapest collectives from one sharding to another.
// A move takes mesh axes from one place to another: cut a dim (slice, free), leave it (all_gather),
// change dims (all_to_all), leave a partial sum (all_reduce) or cut a dim instead
// (reduce_scatter). The shortest path through all shardings, each move at its closed form, also
// finds the detours: a free slice over an idle axis first, so that more links gather.

#include <algorithm>  // max, reverse
#include <cmath>      // fabs
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tinyscale/base/format.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/mesh/choose_algorithm.hpp"
#include "tinyscale/mesh/sharding.hpp"

namespace tinyscale {
namespace detail {

// Places: 0 the partial sum, d + 1 dim d, -1 none.
struct AxisMove {
  int from = -1, to = -1;
  std::string axes;       // letters, in the order of the blocks
  int also = 0;           // all_gather of two dims at once: the second,
  std::size_t first = 0;  // and how many of the letters are the first's
};

inline Collective collective_of(const AxisMove& move) {
  return move.from == 0 ? (move.to < 0 ? Collective::all_reduce : Collective::reduce_scatter)
         : move.to < 0  ? Collective::all_gather
                        : Collective::all_to_all;
}

inline bool is_slice(const AxisMove& move) { return move.from < 0; }

inline AxisPlaces after_move(AxisPlaces places, const AxisMove& move) {
  if (move.also > 0) {
    const bool gone = move.from > 0;
    const std::size_t to = static_cast<std::size_t>(gone ? move.from : move.to);
    places[to] = gone ? std::string() : move.axes.substr(0, move.first);
    places[static_cast<std::size_t>(move.also)] =
        gone ? std::string() : move.axes.substr(move.first);
    return places;
  }
  if (move.from > 0) {
    std::string& from = places[static_cast<std::size_t>(move.from)];
    from.erase(from.size() - move.axes.size());
  }
  if (move.from == 0) {
    places[0] = without(places[0], move.axes);
  }
  if (move.to == 0) {  // of a search backwards
    places[0] = rising_union(places[0], move.axes);
  } else if (move.to > 0) {
    places[static_cast<std::size_t>(move.to)] += move.axes;
  }
  return places;
}

inline std::vector<int> axis_numbers(const std::string& letters) {
  std::vector<int> numbers;
  for (const char letter : letters) {
    numbers.push_back(static_cast<int>(axis_number(letter)));
  }
  return numbers;
}

inline CollectiveSpec spec_of(const PlacedMesh& mesh, Collective what, const std::string& letters,
                              std::int64_t elements, DType format) {
  CollectiveSpec spec;
  spec.what = what;
  spec.elements = elements;
  spec.element_bytes = bytes_of(format);
  spec.parts = parts_of_group(mesh.machine, mesh.axes, axis_numbers(letters));
  return spec;
}

struct MoveCost {
  std::string axes;
  Collective what = Collective::all_gather;
  std::int64_t local = 0;  // elements of a device before
  double seconds = 0, bytes = 0;
  Algorithm algorithm = Algorithm::automatic;
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
  CollectiveSpec spec = spec_of(mesh, cost.what, move.axes, local, format);
  spec.elements *= cost.what == Collective::all_gather ? spec.devices() : 1;
  const AlgorithmChoice choice = choose_algorithm(spec);
  spec.algorithm = choice.algorithm;
  cost.algorithm = choice.algorithm;
  cost.seconds = choice.seconds;
  const int n = spec.devices();
  const int last = n <= 16 ? n - 1 : n / 2;  // of large groups the device in the middle
  const int first = n <= 16 ? 0 : last;
  for (int index = first; index <= last; ++index) {
    cost.bytes += collective_bytes(spec, index) / (last - first + 1);
  }
  return cost;
}

// A sharding that a search has reached.
struct Reached {
  AxisPlaces places;
  double seconds = 0, bytes = 0;
  int moves = 0;
  std::size_t previous = 0;  // itself: the start
  AxisMove by;               // between them, in the direction of time
  std::string moved;         // all axes on the way
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

// The axes that a search may use: all of a mesh of up to 4, else those that are named.
inline std::string axes_to_use(const PlacedMesh& mesh, const AxisPlaces& a, const AxisPlaces& b) {
  return mesh.axes.size() > 4 ? rising_union(all_letters(a), all_letters(b)) : mesh.letters();
}

enum class Direction { forwards, backwards };

// Whether an axis may move twice, as one that is cut for free and then gathered.
enum class Detours { no, yes };

// All shardings in reach of one, cheapest first (Dijkstra); backwards: all that reach it.
class ShardingSearch {
 public:
  ShardingSearch(const PlacedMesh& mesh, const std::string& axes, const Shape& shape, DType format,
                 const AxisPlaces& start, Direction direction, Detours detours,
                 List<MoveCost>& known_costs)
      : mesh_(mesh),
        axes_(axes),
        shape_(shape),
        format_(format),
        backwards_(direction == Direction::backwards),
        detours_(detours),
        costs_(known_costs) {
    add({start, 0, 0, 0, 0, {}, "", false});
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
    const std::size_t found = number_of(places);
    return found == reached.size() ? nullptr : &reached[found];
  }

  // The moves between the start and a place, in the order of time.
  List<AxisMove> moves(const Reached& place) const {
    List<AxisMove> way;
    for (const Reached* at = &place; at->moves > 0; at = &reached[at->previous]) {
      way.push_back(at->by);
    }
    if (!backwards_) {
      std::reverse(way.begin(), way.end());
    }
    return way;
  }

  List<Reached> reached;

 private:
  void leave(std::size_t node) {
    const AxisPlaces places = reached[node].places;
    const std::vector<std::string> idle = arrangements(without(axes_, all_letters(places)));
    for (const std::string& axes : idle) {
      leave_from(node, -1, axes);
    }
    for (const std::string& axes : arrangements(backwards_ ? std::string() : places[0])) {
      leave_from(node, 0, axes);
    }
    leave_two_dims(node, idle);
    for (std::size_t d = 1; d < places.size(); ++d) {
      for (std::size_t first = 0; first < places[d].size(); ++first) {
        leave_from(node, static_cast<int>(d), places[d].substr(first));
      }
    }
  }

  // Both whole before, or after, all their axes are gathered together.
  void leave_two_dims(std::size_t node, const std::vector<std::string>& idle) {
    const AxisPlaces places = reached[node].places;
    for (std::size_t d = 1; d < places.size(); ++d) {
      for (std::size_t e = d + 1; e < places.size(); ++e) {
        const int one = static_cast<int>(d), two = static_cast<int>(e);
        if (!backwards_ && !places[d].empty() && !places[e].empty()) {
          try_move(node, {one, -1, places[d] + places[e], two, places[d].size()});
        }
        for (std::size_t i = 0; backwards_ && (places[d] + places[e]).empty() && i < idle.size();
             ++i) {
          for (std::size_t first = 1; first < idle[i].size(); ++first) {
            try_move(node, {-1, one, idle[i], two, first});
          }
        }
      }
    }
  }

  void leave_from(std::size_t node, int from, const std::string& axes) {
    for (int to = -1; to <= shape_.size(); ++to) {
      const bool slice = backwards_ ? to < 0 : from < 0;  // one axis at a time, they are free
      if (to != from && (to != 0 || backwards_) && !(slice && axes.size() > 1)) {
        try_move(node, {from, to, axes, 0, 0});
      }
    }
  }

  void try_move(std::size_t node, const AxisMove& move) {
    Reached next;
    next.moved = rising_union(reached[node].moved, move.axes);
    if (detours_ == Detours::no &&
        next.moved.size() < reached[node].moved.size() + move.axes.size()) {
      return;
    }
    next.places = after_move(reached[node].places, move);
    next.by = backwards_ ? AxisMove{move.to, move.from, move.axes, move.also, move.first} : move;
    Shape here = shape_;
    Shape there = shape_;
    if (!local_shape_of(mesh_, reached[node].places, here) ||
        !local_shape_of(mesh_, next.places, there)) {
      return;
    }
    const std::int64_t local = (backwards_ ? there : here).count();
    const MoveCost cost = is_slice(next.by) ? MoveCost() : cost_of(next.by, local);
    next.seconds = reached[node].seconds + cost.seconds;
    next.bytes = reached[node].bytes + cost.bytes;
    next.moves = reached[node].moves + 1;
    next.previous = node;
    add(next);
  }

  std::size_t number_of(const AxisPlaces& places) const {
    std::size_t at = 0;
    while (at < reached.size() && reached[at].places != places) {
      ++at;
    }
    return at;
  }

  void add(const Reached& node) {
    const std::size_t at = number_of(node.places);
    if (at == reached.size()) {
      reached.push_back(node);
    } else if (!reached[at].done && cheaper(node.seconds, node.bytes, node.moves, reached[at])) {
      reached[at] = node;
    }
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
  std::string axes_;
  Shape shape_;
  DType format_;
  bool backwards_;
  Detours detours_;
  List<MoveCost>& costs_;  // of several searches on one mesh
};

}  // namespace detail
}  // namespace tinyscale
