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
  DType format = DType::f32;  // in which its numbers are sent
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

// Ids that rows are taken by or argmax gives, what they are made of, and what equal() compares are
// sent in f32 whatever the format: in 8 or 16 bits 257 is another row.
inline List<char> exact_values(const Graph& graph) {
  List<char> exact(graph.nodes.size());
  const auto moves = [](OpKind kind) { return kind == OpKind::view || kind == OpKind::copy; };
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const GraphNode& node = graph.nodes[i];
    const bool of_ids = !node.inputs.empty() && exact[static_cast<std::size_t>(node.inputs[0])];
    exact[i] = node.op == Op::argmax || (of_ids && moves(facts_of(node.op).kind));
  }
  for (std::size_t i = exact.size(); i-- > 0;) {
    const GraphNode& node = graph.nodes[i];
    const OpKind kind = facts_of(node.op).kind;
    const bool made_of = exact[i] && (moves(kind) || kind == OpKind::elementwise);
    for (std::size_t k = 0; k < node.inputs.size(); ++k) {
      const bool ids = kind == OpKind::index && (k == 1) == (node.op == Op::take);
      char& of_input = exact[static_cast<std::size_t>(node.inputs[k])];
      of_input = of_input != 0 || made_of || ids || node.op == Op::equal;
    }
  }
  return exact;
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
        exact_(exact_values(whole)),
        values_(whole.nodes.size()),
        uses_(use_counts(whole)) {
    device.constants = whole.constants;
  }

  int gather_again = -1;  // a node of the whole graph: what was gathered for it or before is let go

  // `inputs` names a sharding for each input, `wanted` one for each output; empty: as it comes.
  void run(const List<Sharding>& inputs, const List<Sharding>& wanted);

 private:
  const GraphNode& node_at(int i) const { return whole_[i]; }
  DType format_of(int i) const {
    return exact_[static_cast<std::size_t>(i)] != 0 ? DType::f32 : format_;
  }
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
  std::vector<int> sources_of(int i) const;
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
  List<char> exact_;
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
    ShardingSearch search(mesh_, space, node_at(i).shape, format_of(i), from, Direction::forwards,
                          detours, costs_);
    if (const Reached* const end = search.find(goal)) {
      moves = search.moves(*end);
      return end->seconds;
    }
  }
  return std::numeric_limits<double>::infinity();
}

// The dim of its operand that each dim of a permuted or broadcast value is, or -1.
inline std::vector<int> Propagation::sources_of(int i) const {
  const GraphNode& node = node_at(i);
  std::vector<int> sources(static_cast<std::size_t>(node.shape.size()), -1);
  if (node.op == Op::permute) {
    for (std::size_t d = 0; d < sources.size(); ++d) {
      sources[d] = static_cast<int>(node.numbers[d]);
    }
    return sources;
  }
  const std::vector<int> labels = aligned_labels(whole_.input_of(node, 0).shape, node.shape);
  for (std::size_t s = 0; s < labels.size(); ++s) {
    if (labels[s] >= 0) {
      sources[static_cast<std::size_t>(labels[s])] = static_cast<int>(s);
    }
  }
  return sources;
}

// What a value that is made where it is needed asks of its operand, or has of it.
inline AxisPlaces Propagation::under(int i, const AxisPlaces& places) const {
  AxisPlaces out(static_cast<std::size_t>(whole_.input_of(node_at(i), 0).shape.size()) + 1);
  out[0] = places[0];
  const std::vector<int> sources = sources_of(i);
  for (std::size_t d = 0; d < sources.size(); ++d) {
    if (sources[d] >= 0) {
      out[static_cast<std::size_t>(sources[d]) + 1] = places[d + 1];
    }
  }
  return out;
}
inline AxisPlaces Propagation::over(int i, const AxisPlaces& places) const {
  AxisPlaces out(1, places[0]);
  for (const int source : sources_of(i)) {
    out.push_back(source < 0 ? "" : places[static_cast<std::size_t>(source) + 1]);
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
  const Op op = is_slice(move)                       ? Op::shard
                : what == Collective::reduce_scatter ? Op::reduce_scatter
                : what == Collective::all_gather     ? Op::all_gather
                : what == Collective::all_reduce     ? Op::all_reduce
                                                     : Op::all_to_all;
  const int first = op == Op::all_reduce   ? static_cast<int>(how)
                    : op == Op::all_gather ? move.from - 1
                                           : move.to - 1;
  List<double> numbers = {static_cast<double>(first)};
  if (op == Op::all_to_all) {
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
  const MoveCost cost_of_move = price(mesh_, move, local.count(), format_of(i));
  const InsertedStep step = {{move_name(move), axes_text(mesh_, move.axes), text(i, before),
                              text(i, after), is_slice(move) ? "" : name_of(cost_of_move.algorithm),
                              cost_of_move.bytes, 0, cost_of_move.seconds},
                             node,
                             i,
                             by,
                             0,
                             cost_of_move.algorithm,
                             format_of(i)};
  if (by >= 0) {
    row(by).steps.push_back(steps.size());
  }
  steps.push_back(step);
}

}  // namespace detail
}  // namespace tinyscale
