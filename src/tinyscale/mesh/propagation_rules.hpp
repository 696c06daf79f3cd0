#pragma once
// The rules of the propagation: how each kind of op takes its operands.
//   loops     cuts of both united; where they clash the one that is cheaper to move gives way
//   sums      over a cut dim: a partial sum, which linear ops pass on and others have summed first
//   products  the four cases of the scaling book (chapter 3)
//   views     what goes through stays, the rest is gathered

#include <cstddef>
#include <limits>  // infinity
#include <string>
#include <utility>  // move
#include <vector>

#include "tinyscale/mesh/propagate_sharding.hpp"

namespace tinyscale {
namespace detail {

inline void Propagation::run(const List<Sharding>& inputs, const List<Sharding>& wanted) {
  for (std::size_t k = 0; k < whole_.inputs.size(); ++k) {
    const int i = whole_.inputs[k];
    for (const ShardedDim& dim : inputs[k].dims) {
      value(i).names.push_back(dim.name);
    }
    value(i).natural = places_of(mesh_, inputs[k], node_at(i).shape);
  }
  for (int i = 0; i < whole_.size(); ++i) {
    place(i);
    row(i).sharding = named(i, value(i).natural);
    if (i == gather_again) {
      let_go();
    }
  }
  for (std::size_t k = 0; k < whole_.outputs.size(); ++k) {
    const int i = whole_.outputs[k];
    AxisPlaces goal = value(i).natural;
    goal[0].clear();
    Sharding names = named(i, goal);
    if (k < wanted.size() && !wanted[k].text().empty()) {
      names = wanted[k];
      goal = places_of(mesh_, names, node_at(i).shape);
    }
    device.outputs.push_back(bring(i, goal, -1));
    results.push_back(goal);
    result_names.push_back(names);
  }
}

inline void Propagation::let_go() {
  for (int i = 0; i < whole_.size(); ++i) {
    List<PlacedVersion> left;
    for (const PlacedVersion& version : value(i).versions) {
      if (!version.gathered && !is_made_where_needed(i)) {
        left.push_back(version);
      }
    }
    value(i).versions.swap(left);
  }
}

inline void Propagation::place(int i) {
  const GraphNode& node = node_at(i);
  switch (facts_of(node.op).kind) {
    case OpKind::source: place_source(i); break;
    case OpKind::view:
      node.op == Op::reshape ? place_reshape(i)
      : node.op == Op::slice ? place_op(i)
                             : place_view(i);
      break;
    case OpKind::elementwise:
    case OpKind::reduction:
    case OpKind::product:
    case OpKind::copy:
    case OpKind::index: place_op(i); break;
    default:
      fail({"compile: node %", i, ", ", name_of(node.op), " ", node.shape,
            ", has no rule by which a sharding goes through it; primitives but for collectives ",
            "have one (take_apart)"});
  }
}

// Inputs are cut as they were said to be; all else every device has whole, or makes.
inline void Propagation::place_source(int i) {
  const GraphNode& node = node_at(i);
  PlacedValue& own = value(i);
  const auto dims = static_cast<std::size_t>(node.shape.size());
  own.free = std::string(dims, node.op == Op::literal ? '1' : '0');
  if (node.op != Op::input) {
    own.natural = AxisPlaces(dims + 1);
    for (std::size_t d = 0; d < dims; ++d) {
      own.names.push_back(cat({"d", d}));
    }
  }
  if (node.op == Op::literal) {
    return;
  }
  const int made = emit(node.op, {}, node.shape, own.natural, node.numbers);
  own.versions.push_back({own.natural, made, false});
  if (node.op == Op::input) {
    device.inputs.push_back(made);
  }
  row(i).reason = node.op == Op::input      ? "given"
                  : node.op == Op::constant ? "captured: whole on every device"
                                            : "made whole on every device";
}

// Of what is a view of its operand whatever the sharding, the operand moves.
inline void Propagation::place_view(int i) {
  const GraphNode& node = node_at(i);
  const int in = node.inputs[0];
  AxisPlaces from = value(in).natural;
  if (uses_[static_cast<std::size_t>(in)] > 1 || node.op == Op::broadcast_to) {
    from[0].clear();  // summed once, and before it grows
  }
  PlacedValue& own = value(i);
  own.natural = over(i, from);
  const std::vector<int> sources = sources_of(i);
  for (std::size_t d = 0; d < sources.size(); ++d) {
    const int source = sources[d];
    own.names.push_back(source < 0 ? cat({"d", d})
                                   : value(in).names[static_cast<std::size_t>(source)]);
    own.free += source < 0 ? '1' : value(in).free[static_cast<std::size_t>(source)];
  }
  unique_names(own.names);
  row(i).reason = "a view: cut as what it shows";
}

inline void Propagation::place_reshape(int i) {
  const GraphNode& node = node_at(i);
  const int in = node.inputs[0];
  const Shape& shape = node_at(in).shape;
  AxisPlaces from = value(in).natural;
  if (uses_[static_cast<std::size_t>(in)] > 1) {
    from[0].clear();
  }
  const ReshapedPlaces through(mesh_, from, shape, node.shape);
  PlacedValue& own = value(i);
  own.names.resize(static_cast<std::size_t>(node.shape.size()));
  own.free = std::string(own.names.size(), '0');
  for (const DimRuns::Run& run : DimRuns(shape, node.shape).runs) {
    bool free = run.from < run.from_end;
    for (int d = run.from; d < run.from_end; ++d) {
      free = free && (value(in).free[static_cast<std::size_t>(d)] == '1' || shape[d] == 1);
    }
    std::string joined_name;
    for (int d = run.from; d < run.from_end; ++d) {
      joined_name += shape[d] == 1 ? "" : value(in).names[static_cast<std::size_t>(d)];
    }
    for (int e = run.to; e < run.to_end; ++e) {
      const auto at = static_cast<std::size_t>(e);
      own.free[at] = free ? '1' : '0';
      own.names[at] = joined_name.empty() || node.shape[e] == 1 ? cat({"d", e}) : joined_name;
    }
  }
  unique_names(own.names);
  row(i).operands.push_back(text(in, through.from));
  const int source = bring(in, through.from, i);
  set(i, through.to, emit(Op::reshape, {source}, node.shape, through.to, node.numbers));
  row(i).reason =
      through.lost.empty()
          ? "the cut dims stay the slowest of what they become"
          : cat({"over ", axes_text(mesh_, through.lost),
                 " a dim is cut that is not the slowest of what it becomes, or does not divide, ",
                 "so it is gathered"});
}

inline void Propagation::name_dims(int i, const DimLabels& labels) {
  const GraphNode& node = node_at(i);
  PlacedValue& own = value(i);
  own.names.resize(static_cast<std::size_t>(node.shape.size()));
  own.free = std::string(own.names.size(), '1');
  std::string of_free = own.free;  // whether the name is that of a free dim
  for (std::size_t k = 0; k < labels.of.size(); ++k) {
    const PlacedValue& in = value(node.inputs[k]);
    for (std::size_t d = 0; d < labels.of[k].size(); ++d) {
      const int label = labels.of[k][d];
      if (label < 0 || label >= node.shape.size()) {
        continue;
      }
      const auto at = static_cast<std::size_t>(label);
      own.free[at] = in.free[d] == '1' ? own.free[at] : '0';
      const bool first = own.names[at].empty();
      if (first || (in.free[d] != '1' && of_free[at] == '1')) {
        own.names[at] = in.names[d];
        of_free[at] = in.free[d];
      }
    }
  }
  const OpKind kind = facts_of(node.op).kind;
  for (std::size_t d = 0; d < own.names.size(); ++d) {
    const bool reduced = kind == OpKind::reduction || kind == OpKind::copy || node.op == Op::slice;
    if (own.names[d].empty()) {
      own.names[d] = reduced ? value(node.inputs[0]).names[d] : cat({"d", d});
      own.free[d] = '0';
    }
  }
  unique_names(own.names);
}

// The axes over which the result may stay a sum because the op is linear, and which operands are
// such sums. A sum that several ops use is made once, at the first.
inline std::string Propagation::pending(int i, std::vector<char>& keeps) {
  const GraphNode& node = node_at(i);
  const std::size_t n = node.inputs.size();
  keeps.assign(n, 0);
  std::string kept;
  std::size_t sums = 0;
  std::string cuts;
  for (std::size_t k = 0; k < n; ++k) {
    const AxisPlaces& own = value(node.inputs[k]).natural;
    const bool once = uses_[static_cast<std::size_t>(node.inputs[k])] == 1;
    if (!own[0].empty() && once && (sums == 0 || own[0] == kept)) {
      kept = own[0];
      keeps[k] = 1;
      ++sums;
    }
    cuts += all_letters(own).substr(own[0].size());
  }
  bool linear = false;
  switch (node.op) {
    case Op::add:
    case Op::sub:
    case Op::concat: linear = sums == n; break;
    case Op::mul:
      linear = sums == 1 && node_at(node.inputs[keeps[0] != 0 ? 0 : 1]).shape == node.shape &&
               value(node.inputs[keeps[0] != 0 ? 1 : 0]).natural[0].empty();
      break;
    case Op::div:
      linear = sums == 1 && keeps[0] != 0 && node_at(node.inputs[0]).shape == node.shape &&
               value(node.inputs[1]).natural[0].empty();
      break;
    case Op::sum:
    case Op::slice:
    case Op::pad: linear = sums == 1; break;
    default: break;
  }
  if (!linear || without(cuts, kept) != cuts) {
    keeps.assign(n, 0);
    return "";
  }
  return kept;
}

// Over which axes what is summed over is cut in all operands alike; what every device can make
// counts as cut.
inline std::vector<std::string> Propagation::summed_cuts(int i, const DimLabels& labels) {
  const GraphNode& node = node_at(i);
  std::vector<std::string> cuts(static_cast<std::size_t>(node.shape.size() + labels.summed));
  for (int l = node.shape.size(); l < node.shape.size() + labels.summed; ++l) {
    std::string& cut = cuts[static_cast<std::size_t>(l)];
    bool first = true;
    for (std::size_t k = 0; k < labels.of.size(); ++k) {
      const PlacedValue& in = value(node.inputs[k]);
      for (std::size_t d = 0; d < labels.of[k].size(); ++d) {
        if (labels.of[k][d] != l || (in.free[d] == '1' && in.natural[d + 1].empty())) {
          continue;
        }
        const std::string& own = in.natural[d + 1];
        if (first) {
          cut = own;
        } else if (labels.cuts_sum && is_prefix(cut, own)) {
          cut = own;
        }
        while (!labels.cuts_sum && !is_prefix(cut, own)) {
          cut.pop_back();
        }
        first = false;
      }
    }
  }
  return cuts;
}

inline AxisPlaces Propagation::goal_of(int i, std::size_t operand, const DimLabels& labels,
                                       const std::vector<std::string>& cuts,
                                       const std::string& kept) {
  const GraphNode& node = node_at(i);
  AxisPlaces goal(value(node.inputs[operand]).natural.size());
  goal[0] = kept;
  for (std::size_t d = 0; d < labels.of[operand].size(); ++d) {
    const int label = labels.of[operand][d];
    goal[d + 1] = label < 0 ? "" : cuts[static_cast<std::size_t>(label)];
  }
  return goal;
}

// How each operand is to lie: each of them in turn comes first, the others add what is still free;
// of these ways the one that takes least time.
inline List<AxisPlaces> Propagation::goals(int i, const DimLabels& labels, const std::string& kept,
                                           const std::vector<char>& keeps, AxisPlaces& result) {
  const GraphNode& node = node_at(i);
  const std::size_t n = labels.of.size();
  const std::vector<std::string> base = summed_cuts(i, labels);
  List<AxisPlaces> best;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t lead = 0; lead < n && lead < 8; ++lead) {
    std::vector<std::string> cuts = base;
    std::string used = kept + all_letters(base);
    for (std::size_t turn = 0; turn < n; ++turn) {
      const std::size_t k = turn == 0 ? lead : turn <= lead ? turn - 1 : turn;
      const AxisPlaces& own = value(node.inputs[k]).natural;
      for (std::size_t d = 0; d < labels.of[k].size(); ++d) {
        const int label = labels.of[k][d];
        if (label < 0 || label >= node.shape.size()) {
          continue;
        }
        std::string& cut = cuts[static_cast<std::size_t>(label)];
        while (cut.size() < own[d + 1].size() && is_prefix(cut, own[d + 1]) &&
               used.find(own[d + 1][cut.size()]) == std::string::npos) {
          used += own[d + 1][cut.size()];
          cut += own[d + 1][cut.size()];
        }
      }
    }
    List<AxisPlaces> ways;
    double seconds = 0;
    for (std::size_t k = 0; k < n; ++k) {
      ways.push_back(goal_of(i, k, labels, cuts, keeps[k] != 0 ? kept : ""));
      seconds += cost(node.inputs[k], ways[k]);
    }
    if (best.empty() || seconds < least * (1 - 1e-12)) {
      least = seconds;
      best = ways;
      result = AxisPlaces(1);
      for (std::size_t d = 0; d < static_cast<std::size_t>(node.shape.size()); ++d) {
        result.push_back(cuts[d]);
      }
      result[0] = rising_union(kept, all_letters(cuts).substr(all_letters(result).size()));
    }
  }
  return best;
}

// The case of a product, or what became of the cuts of the operands.
inline std::string Propagation::reason_of(int i, const DimLabels& labels,
                                          const List<AxisPlaces>& ways, const AxisPlaces& result) {
  const GraphNode& node = node_at(i);
  std::string gone;  // axes that cut an operand and do no longer, with the dims
  for (std::size_t k = 0; k < ways.size(); ++k) {
    const PlacedValue& in = value(node.inputs[k]);
    for (std::size_t d = 0; d < in.names.size(); ++d) {
      const std::string lost = without(in.natural[d + 1], ways[k][d + 1]);
      const int label = labels.of[k][d];
      if (!lost.empty() && label < node.shape.size()) {
        gone += cat({gone.empty() ? "" : ", ", in.names[d], " over ", axes_text(mesh_, lost)});
      }
    }
  }
  if (node.op != Op::matmul) {
    const std::string summed = without(result[0], ways[0][0] + ways.back()[0]);
    return !gone.empty()     ? gone + ": gathered, for it clashes with others or is needed whole"
           : !summed.empty() ? "each device has a part of the sum over " + axes_text(mesh_, summed)
           : !result[0].empty() ? "linear: still a sum over " + axes_text(mesh_, result[0])
                                : std::string();
  }
  const PlacedValue &a = value(node.inputs[0]), &b = value(node.inputs[1]);
  const std::string& j = a.names.back();
  const std::string& cut_a = a.natural.back();
  const std::string& cut_b = b.natural[b.natural.size() - 2];
  std::string out =
      cut_a.empty() && cut_b.empty() ? "case 1: " + j + " is whole in both"
      : !result[0].empty()
          ? "case 3: " + j + " is cut over " + axes_text(mesh_, result[0]) +
                " in both, so a device's product is a summand"
          : "case 2: " + j + " is cut over " + axes_text(mesh_, cut_a.empty() ? cut_b : cut_a) +
                (cut_a.empty() || cut_b.empty() ? " in one" : ", otherwise in the other") +
                ", so it is gathered";
  if (!gone.empty()) {
    out = (out[5] == '1' ? "case 4" : out + "; case 4") + (": one axis for two dims, so " + gone) +
          " is taken whole";
  }
  return out;
}

inline void Propagation::place_op(int i) {
  const GraphNode& node = node_at(i);
  const DimLabels labels = labels_of(whole_, node);
  name_dims(i, labels);
  std::vector<char> keeps;
  const std::string kept = pending(i, keeps);
  AxisPlaces result;
  const List<AxisPlaces> ways = goals(i, labels, kept, keeps, result);
  row(i).reason = reason_of(i, labels, ways, result);
  List<int> inputs;
  for (std::size_t k = 0; k < ways.size(); ++k) {
    row(i).operands.push_back(text(node.inputs[k], ways[k]));
    inputs.push_back(bring(node.inputs[k], ways[k], i));
  }
  const int made = emit(node.op, std::move(inputs), node.shape, result, node.numbers);
  if (node.op == Op::max && !result[0].empty()) {  // the largest of all is no sum: at once
    AxisPlaces after = result;
    after[0].clear();
    const AxisMove largest = {0, -1, result[0], 0, 0};
    const int all = collective(made, node.shape, after, largest, Reduce::max);
    note(i, all, result, after, largest, i);
    set(i, after, all);
    return;
  }
  set(i, result, made);
}

}  // namespace detail
}  // namespace tinyscale
