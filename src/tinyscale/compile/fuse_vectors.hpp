#pragma once
// Elementwise ops, and reductions with their neighbours, gathered into groups that pass over memory
// once: chains, softmax, norms, cross-entropy, whatever works along the rows of one table.

#include <cstddef>  // size_t
#include <cstdint>  // int64_t

#include "tinyscale/compile/fusion.hpp"
#include "tinyscale/compile/op_graph.hpp"
#include "tinyscale/compile/value_layout.hpp"
#include "tinyscale/compute/vector_program.hpp"

namespace tinyscale {
namespace detail {

constexpr std::size_t most_members = 64;  // of a group; each reads three operands at most

// What a node is in a group over a table [rows, cols].
enum class VectorRole : unsigned char { none, element, row_reduction, column_sums, total };

inline kernels::VectorOp vector_op(Op op) {
  using kernels::VectorOp;
  switch (op) {
    case Op::add: return VectorOp::add;
    case Op::sub: return VectorOp::sub;
    case Op::mul: return VectorOp::mul;
    case Op::div: return VectorOp::div;
    case Op::maximum: return VectorOp::maximum;
    case Op::less: return VectorOp::less;
    case Op::equal: return VectorOp::equal;
    case Op::where: return VectorOp::where;
    case Op::exp: return VectorOp::exp;
    case Op::log: return VectorOp::log;
    case Op::sqrt: return VectorOp::sqrt;
    case Op::tanh: return VectorOp::tanh;
    case Op::erf: return VectorOp::erf;
    case Op::pow: return VectorOp::pow;
    case Op::square: return VectorOp::square;
    case Op::relu: return VectorOp::relu;
    case Op::gelu: return VectorOp::gelu;
    case Op::gelu_tanh: return VectorOp::gelu_tanh;
    case Op::silu: return VectorOp::silu;
    case Op::sigmoid: return VectorOp::sigmoid;
    case Op::gelu_slope: return VectorOp::gelu_slope;
    case Op::gelu_tanh_slope: return VectorOp::gelu_tanh_slope;
    case Op::silu_slope: return VectorOp::silu_slope;
    case Op::sum: return VectorOp::row_sum;
    case Op::max: return VectorOp::row_max;
    default: return VectorOp::copy;
  }
}

inline bool is_element(const GraphNode& node) {
  return facts_of(node.op).kind == OpKind::elementwise && node.op != Op::round &&
         node.shape.count() > 0;
}

// The table that a node works along is that of its operand where it reduces.
inline VectorRole role_of(const Graph& graph, const ValueLayouts& layouts, int number) {
  const GraphNode& node = graph[number];
  if (is_element(node)) {
    return VectorRole::element;
  }
  if (layouts.is_copy(number) && node.shape.count() > 0) {
    return VectorRole::element;
  }
  if (node.op != Op::sum && node.op != Op::max) {
    return VectorRole::none;
  }
  const Shape& x = graph.input_of(node, 0).shape;
  if (x.size() == 0 || x.count() == 0) {
    return VectorRole::none;
  }
  const std::size_t dims = node.numbers.size();
  const bool last = dims == 1 && node.whole(0) == x.size() - 1;
  if (node.op == Op::max) {
    return last ? VectorRole::row_reduction : VectorRole::none;
  }
  if (last && x.size() > 1) {
    return VectorRole::row_reduction;
  }
  bool leading = true, all = dims > 0;
  for (int i = 0; i < x.size(); ++i) {
    const bool reduced = [&] {
      for (std::size_t d = 0; d < dims; ++d) {
        if (node.whole(d) == i) {
          return true;
        }
      }
      return false;
    }();
    leading = leading && (reduced == (i + 1 < x.size()) || x[i] == 1);
    all = all && (reduced || x[i] == 1);
  }
  return all ? VectorRole::total : leading ? VectorRole::column_sums : VectorRole::none;
}

// The rows and columns of a group's table, and how its members and operands lie in it.
struct VectorSpace {
  Shape shape;             // of full members
  bool flattened = false;  // members of other shapes with the same rows and columns are in it

  std::int64_t cols() const { return shape.size() > 0 ? shape[-1] : 1; }
  std::int64_t rows() const { return cols() > 0 ? shape.count() / cols() : 0; }
  bool is_full(const Shape& s) const {
    return s.count() == shape.count() && (s.size() > 0 ? s[-1] : 1) == cols();
  }
  bool is_rows(const Shape& s) const {  // one number a row
    return s.count() == rows() && s.size() > 0 && s[-1] == 1;
  }
};

// How an operand lies in a table: elements from row to row where all rows are evenly apart.
struct TableSteps {
  bool even = false;
  std::int64_t row = 0, column = 0;
};
inline TableSteps table_steps(const Tensor& x, const Shape& as) {
  const Strides steps = broadcast_steps(x.shape(), x.steps(), as);
  TableSteps out;
  if (as.size() == 0) {
    out.even = true;
    return out;
  }
  const int last = as.size() - 1;
  out.column = as[last] > 1 ? steps.of[last] : 0;
  Shape outer;
  for (int i = 0; i < last; ++i) {
    outer.push_back(as[i]);
  }
  const Walk walk(outer, steps, steps);
  out.even = walk.shape.size() <= 1;
  out.row = out.even ? walk.step_a() : 0;
  return out;
}

// Finds the groups.
class VectorFusion {
 public:
  VectorFusion(const Graph& graph, const ValueLayouts& layouts, Fusion& fusion, bool elements,
               bool rows)
      : graph_(graph),
        layouts_(layouts),
        fusion_(fusion),
        elements_(elements),
        rows_(rows),
        roles(graph.nodes.size()),
        spaces(graph.nodes.size()) {}

  // `claimed`: nodes that another pass has taken.
  void run(const List<char>& claimed) {
    for (int i = 0; i < graph_.size(); ++i) {
      const auto at = static_cast<std::size_t>(i);
      roles[at] = claimed[at] != 0 ? VectorRole::none : role_of(graph_, layouts_, i);
      if (roles[at] == VectorRole::none) {
        continue;
      }
      spaces[at].shape =
          roles[at] == VectorRole::element ? graph_[i].shape : graph_.input_of(graph_[i], 0).shape;
      if (layouts_.is_copy(i)) {
        spaces[at].shape = graph_.input_of(graph_[i], 0).shape;
        spaces[at].flattened = true;
      }
      for (const int input : graph_[i].inputs) {
        const int member = source_of(input);
        if (member >= 0 && !fusion_.same(member, i)) {
          join(fusion_.group_of(member), fusion_.group_of(i), i);
        }
      }
    }
  }

  int group(int node) const { return fusion_.group_of(node); }

  // The member of some group that an operand is, seen through views that fit; -1: it is none.
  int source_of(int operand) const {
    int node = operand;
    while (roles[static_cast<std::size_t>(node)] == VectorRole::none &&
           (graph_[node].op == Op::reshape || graph_[node].op == Op::broadcast_to)) {
      node = graph_[node].inputs[0];
    }
    const VectorRole role = roles[static_cast<std::size_t>(node)];
    return role == VectorRole::element || role == VectorRole::row_reduction ? node : -1;
  }

  // Whether a member can be handed to a user that sees it as `as` without leaving the table.
  bool fits(const VectorSpace& space, int member, int operand) const {
    const Shape& own = graph_[member].shape;
    const Shape& as = graph_[operand].shape;
    if (own.count() == 1) {
      return true;
    }
    if (space.is_full(own)) {
      return space.is_full(as) && !layouts_.is_copy(member);
    }
    if (!space.is_rows(own) || (!space.is_rows(as) && !space.is_full(as))) {
      return false;
    }
    // Through reshape and broadcast_to: rows stay rows where the last dimension is 1 throughout.
    for (int node = operand; node != member; node = graph_[node].inputs[0]) {
      const Shape& from = graph_.input_of(graph_[node], 0).shape;
      const bool kept = graph_[node].op == Op::reshape ? space.is_rows(graph_[node].shape)
                                                       : from.size() > 0 && from[-1] == 1;
      if (!kept) {
        return false;
      }
    }
    return true;
  }

 private:
  // Group `b` (of node `i`, and perhaps others by now) joins group `a` where it may.
  void join(int a, int b, int i) {
    const auto at = static_cast<std::size_t>(i);
    const bool reduces = roles[at] != VectorRole::element || has_reduction(a) || has_reduction(b);
    if (reduces ? !rows_ : !elements_) {
      return;
    }
    if (graph_[fusion_.members(a)[0]].backward != graph_[fusion_.members(b)[0]].backward) {
      return;  // what is computed again stays behind what it was first computed with
    }
    if (fusion_.members(a).size() + fusion_.members(b).size() > most_members) {
      return;
    }
    VectorSpace joined;
    if (!join_spaces(space_of(a), space_of(b), joined) || !all_fit(joined, a, b) ||
        !fusion_.may_merge(a, b)) {
      return;
    }
    fusion_.merge(a, b);
    spaces[static_cast<std::size_t>(a)] = joined;
  }

  VectorSpace space_of(int group) const { return spaces[static_cast<std::size_t>(group)]; }
  bool has_reduction(int group) const {
    for (const int node : fusion_.members(group)) {
      if (roles[static_cast<std::size_t>(node)] != VectorRole::element) {
        return true;
      }
    }
    return false;
  }

  // The table of both, if there is one: equal ones, or one's rows are the other's elements.
  static bool join_spaces(const VectorSpace& a, const VectorSpace& b, VectorSpace& out) {
    if (a.is_full(b.shape)) {
      out = a;
      out.flattened = a.flattened || b.flattened || a.shape != b.shape;
      return true;
    }
    const bool b_rows = a.is_rows(b.shape) && !b.flattened;
    const bool a_rows = b.is_rows(a.shape) && !a.flattened;
    if (b_rows || a_rows) {
      out = b_rows ? a : b;
      Shape rows = out.shape;
      rows.set(-1, 1);
      out.flattened = out.flattened || rows != (b_rows ? b.shape : a.shape);
      return true;
    }
    const bool one = a.shape.count() == 1 || b.shape.count() == 1;
    if (one && !a.flattened && !b.flattened) {
      out = b.shape.count() == 1 ? a : b;
      return true;
    }
    return false;
  }

  // Every operand of every member can be read in the joined table.
  bool all_fit(const VectorSpace& space, int a, int b) const {
    for (const int group : {a, b}) {
      for (const int node : fusion_.members(group)) {
        for (const int operand : graph_[node].inputs) {
          // Sums over rows are there when the group is done, not before.
          const int base = layouts_.base_of(operand), from = fusion_.group_of(base);
          if (roles[static_cast<std::size_t>(base)] > VectorRole::row_reduction &&
              (from == a || from == b)) {
            return false;
          }
          const int member = source_of(operand);
          const int of = fusion_.group_of(member < 0 ? base : member);
          if (of == a || of == b) {  // a total is known once its group has run
            if (member < 0 || !fits(space, member, operand)) {
              return false;
            }
          } else if (space.flattened && !is_even(node, operand)) {
            return false;
          }
        }
        const Shape& own = graph_[node].shape;
        if (roles[static_cast<std::size_t>(node)] == VectorRole::element && own.count() != 1 &&
            !space.is_full(own) && !space.is_rows(own) && !layouts_.is_copy(node)) {
          return false;
        }
        if (roles[static_cast<std::size_t>(node)] > VectorRole::element &&
            !space.is_full(graph_.input_of(graph_[node], 0).shape)) {
          return false;
        }
      }
    }
    return true;
  }

  // Whether an operand from outside has its rows evenly apart as the node reads it.
  bool is_even(int node, int operand) const {
    const Shape& as =
        roles[static_cast<std::size_t>(node)] == VectorRole::element && !layouts_.is_copy(node)
            ? graph_[node].shape
            : graph_[operand].shape;
    return table_steps(layouts_.of(operand), as).even;
  }

  const Graph& graph_;
  const ValueLayouts& layouts_;
  Fusion& fusion_;
  bool elements_, rows_;

 public:
  List<VectorRole> roles;
  List<VectorSpace> spaces;  // of the group of that number
};

}  // namespace detail
}  // namespace tinyscale
