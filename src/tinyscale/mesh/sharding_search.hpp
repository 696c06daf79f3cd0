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
#include "tinyscale/base/order.hpp"
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

// Bytes of an even all_to_all that a device sends in the mean: along every row all its data, each
// target's share as many times as the target is away.
inline double mean_all_to_all_bytes(const CollectiveSpec& spec) {
  const double all = static_cast<double>(spec.elements) * spec.element_bytes;
  if (spec.algorithm == Algorithm::direct) {
    return bus_factor(spec.what, spec.devices()) * all;
  }
  double times = 0;
  for (const Row& row : rows_of(spec)) {
    const double size = row.size;
    const Reach span = reach(row.way, row.size, 0);
    const double right = span.right, left = span.left;
    times += row.way == Algorithm::line ? (size * size - 1) / (3 * size)
                                        : (right * (right + 1) / 2 + left * (left + 1) / 2) / size;
  }
  return all * times;
}

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
  if (cost.what != Collective::all_to_all) {  // each number once to each other device, any way
    cost.bytes = bus_factor(cost.what, n) * static_cast<double>(spec.elements) * spec.element_bytes;
    return cost;
  }
  if (n > 64) {
    cost.bytes = mean_all_to_all_bytes(spec);
    return cost;
  }
  for (int index = 0; index < n; ++index) {
    cost.bytes += collective_bytes(spec, index) / n;
  }
  return cost;
}

// Prices of several searches on one mesh.
struct MoveCosts {
  NameTable numbers;  // of a price + 1
  List<MoveCost> costs;

  const MoveCost& of(const PlacedMesh& mesh, const AxisMove& move, std::int64_t local,
                     DType format) {
    const char what = static_cast<char>('A' + static_cast<int>(collective_of(move)));
    int& number = numbers[move.axes + what + std::to_string(local) + name_of(format)];
    if (number == 0) {
      costs.push_back(price(mesh, move, local, format));
      number = static_cast<int>(costs.size());
    }
    return costs[static_cast<std::size_t>(number) - 1];
  }
};

// The cost of a way to sharding `number` of a search.
struct WayCost {
  double seconds = 0, bytes = 0;
  int moves = 0;
  std::size_t number = 0;

  // Cheaper in time, then in bytes, then in moves; sums in another order are equal.
  bool cheaper(const WayCost& other) const {
    const double most = std::max(seconds, other.seconds);
    if (std::fabs(seconds - other.seconds) > 1e-12 * most) {
      return seconds < other.seconds;
    }
    return bytes != other.bytes ? bytes < other.bytes : moves < other.moves;
  }
  bool before(const WayCost& other) const {
    return cheaper(other) || (number < other.number && !other.cheaper(*this));
  }
};

// A sharding that a search has reached.
struct Reached : WayCost {
  AxisPlaces places;
  std::int64_t local = 0;    // elements of a device
  std::size_t previous = 0;  // itself: the start
  AxisMove by;               // between them, in the direction of time
  std::string moved;         // all axes on the way
  bool done = false;
};

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

// The shardings that a search may try: all over some axes, or, of too many, those that cut each dim
// over the first of the axes that it has or shall have.
struct SearchSpace {
  std::string axes;
  AxisPlaces one, other;  // as each place has it, then shall; the other way round; empty: all
  std::string summed;     // axes of a sum to come, over which a dim may be cut first

  bool has(const AxisPlaces& places) const {
    bool in = one.empty() || without(places[0], one[0]).empty();
    for (std::size_t d = 1; in && !one.empty() && d < places.size(); ++d) {
      const std::size_t n = places[d].size();
      in = places[d] == one[d].substr(0, n) || places[d] == other[d].substr(0, n) ||
           places[d] == summed.substr(0, n);
    }
    return in;
  }
};

// D dims over N axes: at most (D + 1) (D + 2) .. (D + N) ways.
inline bool too_many_ways(std::size_t dims, std::size_t axes, std::size_t most) {
  std::size_t ways = 1;
  for (std::size_t i = 1; i <= axes && ways <= most; ++i) {
    ways *= dims + i;
  }
  return ways > most;
}

inline SearchSpace space_of(const std::string& axes, const AxisPlaces& has, const AxisPlaces& shall,
                            bool all) {
  SearchSpace space = {axes, {}, {}, ""};
  for (std::size_t d = 0; !all && d < has.size(); ++d) {
    space.one.push_back(has[d] + without(shall[d], has[d]));
    space.other.push_back(shall[d] + without(has[d], shall[d]));
  }
  return space;
}

inline std::string few_ways_text(std::size_t axes) {
  return cat({"; ", axes, " axes leave too many ways, so only those were searched that cut each ",
              "dim over the first of the axes that it has or shall have"});
}

enum class Direction { forwards, backwards };

// Whether an axis may move twice, as one that is cut for free and then gathered.
enum class Detours { no, yes };

// All shardings in reach of one, cheapest first (Dijkstra); backwards: all that reach it.
class ShardingSearch {
 public:
  ShardingSearch(const PlacedMesh& mesh, const SearchSpace& space, const Shape& shape, DType format,
                 const AxisPlaces& start, Direction direction, Detours detours,
                 MoveCosts& known_costs)
      : mesh_(mesh),
        space_(space),
        shape_(shape),
        format_(format),
        backwards_(direction == Direction::backwards),
        detours_(detours),
        costs_(known_costs) {
    Shape local = shape;
    local_shape_of(mesh, start, local);
    Reached first;
    first.places = start;
    first.local = local.count();
    add(first, key_of(start));
    while (!open_.empty()) {
      const std::size_t next = open_.pop().number;
      if (!reached[next].done) {
        reached[next].done = true;
        leave(next);
      }
    }
  }

  // Null: out of reach.
  const Reached* find(const AxisPlaces& places) {
    const std::string key = key_of(places);
    return numbers_.has(key) ? &reached[number_of(key)] : nullptr;
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
    const std::vector<std::string> idle = arrangements(without(space_.axes, all_letters(places)));
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
    const Reached& from = reached[node];
    Reached next;
    if (detours_ == Detours::no) {
      next.moved = rising_union(from.moved, move.axes);
      if (next.moved.size() < from.moved.size() + move.axes.size()) {
        return;
      }
    }
    next.places = after_move(from.places, move);
    const std::string key = key_of(next.places);
    if (numbers_.has(key)) {
      const Reached& known = reached[number_of(key)];
      if (known.done) {
        return;
      }
      next.local = known.local;
    } else {
      Shape local = shape_;
      if (!space_.has(next.places) || !local_shape_of(mesh_, next.places, local)) {
        return;
      }
      next.local = local.count();
    }
    next.by = backwards_ ? AxisMove{move.to, move.from, move.axes, move.also, move.first} : move;
    next.seconds = from.seconds;
    next.bytes = from.bytes;
    if (!is_slice(next.by)) {
      const MoveCost& cost =
          costs_.of(mesh_, next.by, backwards_ ? next.local : from.local, format_);
      next.seconds += cost.seconds;
      next.bytes += cost.bytes;
    }
    next.moves = from.moves + 1;
    next.previous = node;
    add(next, key);
  }

  static std::string key_of(const AxisPlaces& places) {
    std::string key;
    for (const std::string& letters : places) {
      key += letters + ' ';
    }
    return key;
  }
  std::size_t number_of(const std::string& key) { return static_cast<std::size_t>(numbers_[key]); }

  // A new sharding, or one that may be cheaper now.
  void add(Reached& node, const std::string& key) {
    const bool known = numbers_.has(key);
    node.number = known ? number_of(key) : reached.size();
    if (!known) {
      numbers_[key] = static_cast<int>(node.number);
      reached.push_back(node);
    } else if (node.cheaper(reached[node.number])) {
      reached[node.number] = node;
    } else {
      return;
    }
    open_.push(node);
  }

  const PlacedMesh& mesh_;
  const SearchSpace& space_;
  Shape shape_;
  DType format_;
  bool backwards_;
  Detours detours_;
  MoveCosts& costs_;
  NameTable numbers_;   // of what is reached, by key
  Heap<WayCost> open_;  // what is to be left
};

}  // namespace detail
}  // namespace tinyscale
