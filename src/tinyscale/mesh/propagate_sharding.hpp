#pragma once
// Shardings propagated through a graph: from those of its inputs follow those of all its values,
// and where an op needs other ones the collectives before it (what GSPMD does in XLA). The outcome
// is a graph again: that of one device, on its blocks, with collectives among its ops.

#include <cstddef>
#include <limits>  // infinity
#include <string>
#include <vector>

#include "tinyscale/base/list.hpp"
#include "tinyscale/compile/op_graph.hpp"
#include "tinyscale/mesh/dim_labels.hpp"
#include "tinyscale/mesh/reshard.hpp"

namespace tinyscale {

// A collective that was inserted, or a slice, which costs nothing.
struct InsertedStep : ShardedStep {
  int node = 0;          // of the device's graph
  int of = 0, by = -1;   // nodes of the whole graph: whose value moves, for which; -1: for a result
  double simulated = 0;  // seconds of the last run
  Algorithm how = Algorithm::automatic;
};

// A value of the whole graph on the mesh.
struct PlacedNode {
  Sharding sharding;               // as its op leaves it
  List<std::string> operands;      // as the op takes them
  std::string reason;              // why so
  std::vector<std::size_t> steps;  // made for it
};

namespace detail {

// A value under one of its shardings, as a node of the device's graph.
struct PlacedVersion {
  AxisPlaces places;
  int node = -1;
  bool gathered = false;
};

struct PlacedValue {
  AxisPlaces natural;
  List<PlacedVersion> versions;
  std::string free;                // a dim of which every device can make any part: '1'
  std::vector<std::string> names;  // of the dims
};

inline bool is_prefix(const std::string& shorter, const std::string& longer) {
  return longer.compare(0, shorter.size(), shorter) == 0;
}

// "D, D" becomes "D, D2".
inline void unique_names(std::vector<std::string>& names) {
  for (std::size_t d = 1; d < names.size(); ++d) {
    const std::string base = names[d];
    for (std::size_t e = 0, next = 2; e < d; ++e) {
      if (names[e] == names[d]) {
        names[d] = base + std::to_string(next++);
        e = static_cast<std::size_t>(-1);  // from the start
      }
    }
  }
}

class Propagation {
 public:
  Graph device;              // what each device runs
  List<InsertedStep> steps;  // in order
  List<PlacedNode> nodes;    // of the whole graph
  List<AxisPlaces> results;  // of its outputs
  List<Sharding> result_names;

  Propagation(const Graph& whole, const PlacedMesh& mesh, DType format)
      : nodes(whole.nodes.size()),
        whole_(whole),
        mesh_(mesh),
        format_(format),
        values_(whole.nodes.size()),
        uses_(use_counts(whole)) {
    device.constants = whole.constants;
  }

  int gather_again = -1;  // a node of the whole graph: what was gathered for it or before is let go

  // `inputs` names a sharding for each input, `wanted` one for each output; empty: as it comes.
  void run(const List<Sharding>& inputs, const List<Sharding>& wanted);

 private:
  const GraphNode& node_at(int i) const { return whole_[i]; }
  PlacedValue& value(int i) { return values_[static_cast<std::size_t>(i)]; }
  PlacedNode& row(int i) { return nodes[static_cast<std::size_t>(i)]; }

  Sharding named(int i, const AxisPlaces& places) {
    List<ShardedDim> dims;
    for (const std::string& name : value(i).names) {
      dims.push_back({name, {}});
    }
    return sharding_of(mesh_, places, dims);
  }
  std::string text(int i, const AxisPlaces& places) { return named(i, places).text(); }

  int emit(Op op, List<int> inputs, const Shape& shape, const AxisPlaces& places,
           const List<double>& numbers) {
    GraphNode node;
    node.op = op;
    node.inputs = std::move(inputs);
    node.shape = shape;
    local_shape_of(mesh_, places, node.shape);
    node.numbers = op == Op::reshape || op == Op::broadcast_to ? as_numbers(node.shape) : numbers;
    device.nodes.push_back(node);
    return device.size() - 1;
  }
  void set(int i, const AxisPlaces& places, int node) {
    value(i).natural = places;
    value(i).versions.push_back({places, node, false});
  }

  double way(int i, const AxisPlaces& from, const AxisPlaces& goal, List<AxisMove>& moves);
  double cost(int i, const AxisPlaces& goal);
  int bring(int i, const AxisPlaces& goal, int by);
  int move(int i, int at, AxisPlaces& places, const AxisMove& by_move, int by);
  int collective(int at, const Shape& shape, const AxisPlaces& after, const AxisMove& move,
                 Reduce how);
  void note(int i, int node, const AxisPlaces& before, const AxisPlaces& after,
            const AxisMove& move, int by);

  bool is_made_where_needed(int i) const {
    const Op op = node_at(i).op;
    return op == Op::literal || op == Op::permute || op == Op::broadcast_to;
  }
  AxisPlaces under(int i, const AxisPlaces& places) const;
  AxisPlaces over(int i, const AxisPlaces& places) const;

  void let_go();
  void place(int i);
  void place_source(int i);
  void place_view(int i);
  void place_reshape(int i);
  void place_op(int i);
  void name_dims(int i, const DimLabels& labels);
  std::string pending(int i, std::vector<char>& keeps);
  std::vector<std::string> summed_cuts(int i, const DimLabels& labels);
  List<AxisPlaces> goals(int i, const DimLabels& labels, const std::string& kept,
                         const std::vector<char>& keeps, AxisPlaces& result);
  AxisPlaces goal_of(int i, std::size_t operand, const DimLabels& labels,
                     const std::vector<std::string>& cuts, const std::string& kept);
  std::string reason_of(int i, const DimLabels& labels, const List<AxisPlaces>& goals,
                        const AxisPlaces& result);

  const Graph& whole_;
  const PlacedMesh& mesh_;
  DType format_;
  List<PlacedValue> values_;
  List<int> uses_;
  MoveCosts costs_;
};

// The moves from one sharding to another and their seconds; infinity: a sum cannot be unmade.
inline double Propagation::way(int i, const AxisPlaces& from, const AxisPlaces& goal,
                               List<AxisMove>& moves) {
  moves.clear();
  if (from == goal) {
    return 0;
  }
  const std::string axes = axes_to_use(mesh_, from, goal);
  const bool few = too_many_ways(from.size() - 1, axes.size(), 2000);
  const SearchSpace space = space_of(axes, from, goal, !few);
  for (const Detours detours : {Detours::no, Detours::yes}) {
    ShardingSearch search(mesh_, space, node_at(i).shape, format_, from, Direction::forwards,
                          detours, costs_);
    if (const Reached* const end = search.find(goal)) {
      moves = search.moves(*end);
      return end->seconds;
    }
  }
  return std::numeric_limits<double>::infinity();
}

// What a value that is made where it is needed asks of its operand; its names go the same way.
inline AxisPlaces Propagation::under(int i, const AxisPlaces& places) const {
  const GraphNode& node = node_at(i);
  const Shape& in = whole_.input_of(node, 0).shape;
  AxisPlaces out(static_cast<std::size_t>(in.size()) + 1);
  out[0] = places[0];
  const std::vector<int> aligned = aligned_labels(in, node.shape);
  for (int d = 0; d < node.shape.size(); ++d) {
    const auto at = static_cast<std::size_t>(d);
    if (node.op == Op::permute) {
      out[static_cast<std::size_t>(node.numbers[at]) + 1] = places[at + 1];
    }
  }
  for (std::size_t d = 0; node.op == Op::broadcast_to && d < aligned.size(); ++d) {
    out[d + 1] = aligned[d] < 0 ? "" : places[static_cast<std::size_t>(aligned[d]) + 1];
  }
  return out;
}
inline AxisPlaces Propagation::over(int i, const AxisPlaces& places) const {
  const GraphNode& node = node_at(i);
  const Shape& in = whole_.input_of(node, 0).shape;
  AxisPlaces out(static_cast<std::size_t>(node.shape.size()) + 1);
  out[0] = places[0];
  for (std::size_t d = 0; node.op == Op::permute && d + 1 < out.size(); ++d) {
    out[d + 1] = places[static_cast<std::size_t>(node.numbers[d]) + 1];
  }
  const std::vector<int> aligned =
      node.op == Op::permute ? std::vector<int>() : aligned_labels(in, node.shape);
  for (std::size_t d = 0; d < aligned.size(); ++d) {
    if (aligned[d] >= 0) {
      out[static_cast<std::size_t>(aligned[d]) + 1] = places[d + 1];
    }
  }
  return out;
}

// Seconds until a value is there under a sharding, from the cheapest of those that it has.
inline double Propagation::cost(int i, const AxisPlaces& goal) {
  if (node_at(i).op == Op::literal) {
    return 0;
  }
  if (is_made_where_needed(i)) {
    return cost(node_at(i).inputs[0], under(i, goal));
  }
  double least = std::numeric_limits<double>::infinity();
  List<AxisMove> moves;
  for (const PlacedVersion& version : value(i).versions) {
    const double seconds = way(i, version.places, goal, moves);
    least = seconds < least ? seconds : least;
  }
  return least;
}

// The node of the device's graph that has value i under a sharding.
inline int Propagation::bring(int i, const AxisPlaces& goal, int by) {
  for (const PlacedVersion& version : value(i).versions) {
    if (version.places == goal) {
      return version.node;
    }
  }
  const GraphNode& node = node_at(i);
  if (is_made_where_needed(i)) {
    List<int> inputs;
    if (!node.inputs.empty()) {
      inputs.push_back(bring(node.inputs[0], under(i, goal), by));
    }
    const int made = emit(node.op, std::move(inputs), node.shape, goal, node.numbers);
    value(i).versions.push_back({goal, made, false});
    return made;
  }
  double least = std::numeric_limits<double>::infinity();
  PlacedVersion start;
  List<AxisMove> best, moves;
  for (const PlacedVersion& version : value(i).versions) {
    const double seconds = way(i, version.places, goal, moves);
    if (seconds < least) {
      least = seconds;
      start = version;
      best = moves;
    }
  }
  if (start.node < 0) {
    fail({"compile: ", by < 0 ? "the result is" : "a value is", " [", text(i, value(i).natural),
          "], wanted is [", text(i, goal),
          "]; a sum that is made is not undone, leave out what stands in braces"});
  }
  for (const AxisMove& one : best) {
    if (one.also > 0) {  // of two dims at once: one after the other sends as much
      AxisMove second = {one.also, -1, one.axes.substr(one.first), 0, 0};
      start.node = move(i, start.node, start.places, second, by);
      second = {one.from, -1, one.axes.substr(0, one.first), 0, 0};
      start.node = move(i, start.node, start.places, second, by);
    } else {
      start.node = move(i, start.node, start.places, one, by);
    }
  }
  return start.node;
}

inline int Propagation::move(int i, int at, AxisPlaces& places, const AxisMove& by_move, int by) {
  const AxisPlaces after = after_move(places, by_move);
  const int made = collective(at, node_at(i).shape, after, by_move, Reduce::sum);
  note(i, made, places, after, by_move, by);
  places = after;
  const bool again = !is_slice(by_move) && collective_of(by_move) == Collective::all_gather;
  value(i).versions.push_back({after, made, again});
  return made;
}

inline int Propagation::collective(int at, const Shape& shape, const AxisPlaces& after,
                                   const AxisMove& move, Reduce how) {
  const Collective what = collective_of(move);
  Op op = Op::shard;
  List<double> numbers;
  if (is_slice(move) || (move.from == 0 && move.to > 0)) {
    op = is_slice(move) ? Op::shard : Op::reduce_scatter;
    numbers.push_back(move.to - 1);
  } else if (what == Collective::all_gather) {
    op = Op::all_gather;
    numbers.push_back(move.from - 1);
  } else if (what == Collective::all_reduce) {
    op = Op::all_reduce;
    numbers.push_back(static_cast<double>(how));
  } else {
    op = Op::all_to_all;
    numbers.push_back(move.to - 1);
    numbers.push_back(move.from - 1);
  }
  for (const int axis : axis_numbers(move.axes)) {
    numbers.push_back(axis);
  }
  return emit(op, {at}, shape, after, numbers);
}

// A line of the list of collectives.
inline void Propagation::note(int i, int node, const AxisPlaces& before, const AxisPlaces& after,
                              const AxisMove& move, int by) {
  Shape local = node_at(i).shape;
  local_shape_of(mesh_, before, local);
  const MoveCost cost_of_move = price(mesh_, move, local.count(), format_);
  InsertedStep step;
  step.name = move_name(move);
  step.axes = axes_text(mesh_, move.axes);
  step.before = text(i, before);
  step.after = text(i, after);
  step.algorithm = is_slice(move) ? "" : name_of(cost_of_move.algorithm);
  step.how = cost_of_move.algorithm;
  step.bytes = cost_of_move.bytes;
  step.seconds = cost_of_move.seconds;
  step.node = node;
  step.of = i;
  step.by = by;
  if (by >= 0) {
    row(by).steps.push_back(steps.size());
  }
  steps.push_back(step);
}

}  // namespace detail
}  // namespace tinyscale
