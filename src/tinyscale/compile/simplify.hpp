#pragma once
// Two passes that every compiler has: an expression computed once however often it is written
// (common subexpressions), and nothing computed that nobody uses (dead code). With them go ops that
// change nothing.

#include <cstddef>  // size_t
#include <cstdint>  // uint64_t
#include <cstring>  // memcpy
#include <utility>  // move

#include "tinyscale/compile/differentiate.hpp"
#include "tinyscale/compile/op_graph.hpp"

namespace tinyscale {
namespace detail {

// Equal nodes by their hashes: open addressing, as many places as a power of two.
class NodeTable {
 public:
  explicit NodeTable(std::size_t nodes) {
    std::size_t places = 16;
    while (places < 2 * nodes) {
      places *= 2;
    }
    slots_.resize(places);
    for (int& slot : slots_) {
      slot = -1;
    }
  }
  // A node before that is equal, or this one.
  int find(const Graph& graph, int number) {
    const GraphNode& node = graph[number];
    std::uint64_t hash = static_cast<std::uint64_t>(node.op) * 0x9E3779B97F4A7C15U;
    const auto mix = [&hash](std::uint64_t value) {
      hash = (hash ^ value) * 0xBF58476D1CE4E5B9U;
      hash ^= hash >> 29;
    };
    for (const int input : node.inputs) {
      mix(static_cast<std::uint64_t>(input) + 1);
    }
    for (const double value : node.numbers) {
      std::uint64_t bits = 0;
      std::memcpy(&bits, &value, sizeof(bits));
      mix(bits);
    }
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t at = hash & mask;; at = (at + 1) & mask) {
      if (slots_[at] < 0) {
        slots_[at] = number;
        return number;
      }
      if (equal_nodes(graph[slots_[at]], node)) {
        return slots_[at];
      }
    }
  }
  static bool equal_nodes(const GraphNode& a, const GraphNode& b) {
    if (a.op != b.op || a.shape != b.shape || a.inputs.size() != b.inputs.size() ||
        a.numbers.size() != b.numbers.size()) {
      return false;
    }
    for (std::size_t i = 0; i < a.inputs.size(); ++i) {
      if (a.inputs[i] != b.inputs[i]) {
        return false;
      }
    }
    return a.numbers.empty() ||
           std::memcmp(a.numbers.data(), b.numbers.data(), a.numbers.size() * sizeof(double)) == 0;
  }

 private:
  List<int> slots_;
};

// The node that `node` is no more than another name of, or -1.
inline int same_as(const Graph& graph, const GraphNode& node) {
  const auto is_literal = [&graph](int i, double value) {
    return graph[i].op == Op::literal && graph[i].numbers[0] <= value &&
           graph[i].numbers[0] >= value;
  };
  switch (node.op) {
    case Op::reshape:
    case Op::broadcast_to:
    case Op::slice:
    case Op::pad: return graph.input_of(node, 0).shape == node.shape ? node.inputs[0] : -1;
    case Op::permute:
      for (std::size_t i = 0; i < node.numbers.size(); ++i) {
        if (node.whole(i) != static_cast<std::int64_t>(i)) {
          return -1;
        }
      }
      return node.inputs[0];
    case Op::concat: return node.inputs.size() == 1 ? node.inputs[0] : -1;
    case Op::mul:
      for (std::size_t i = 0; i < 2; ++i) {
        if (is_literal(node.inputs[i], 1.0) && graph.input_of(node, 1 - i).shape == node.shape) {
          return node.inputs[1 - i];
        }
      }
      return -1;
    case Op::div:
      return is_literal(node.inputs[1], 1.0) && graph.input_of(node, 0).shape == node.shape
                 ? node.inputs[0]
                 : -1;
    default: return -1;
  }
}

// Where each node went; -1: nowhere.
using NodeMap = List<int>;

// The nodes that the outputs need, each behind its operands, otherwise in their order. late: what a
// backward pass needs of the forward pass right before it is needed first.
inline NodeMap sort_needed(Graph& graph, bool late = false) {
  const auto n = static_cast<std::size_t>(graph.size());
  List<char> needed(n);
  List<int> open;
  const auto need = [&](int node) {
    if (node >= 0 && needed[static_cast<std::size_t>(node)] == 0) {
      needed[static_cast<std::size_t>(node)] = 1;
      open.push_back(node);
    }
  };
  for (const int output : graph.outputs) {
    need(output);
  }
  for (const int input : graph.inputs) {
    need(input);
  }
  while (!open.empty()) {
    const int node = open.back();
    open.pop_back();
    for (const int input : graph[node].inputs) {
      need(input);
    }
  }
  NodeMap to(n);
  for (int& place : to) {
    place = -1;
  }
  List<GraphNode> sorted;
  sorted.reserve(n);
  const int outputs = static_cast<int>(graph.outputs.size());
  for (int i = 0; i < graph.size() + outputs; ++i) {
    const int next =
        i < graph.size() ? i : graph.outputs[static_cast<std::size_t>(i - graph.size())];
    if (next < 0 || needed[static_cast<std::size_t>(next)] == 0) {
      continue;
    }
    const bool waits = facts_of(graph[next].op).kind != OpKind::source && !graph[next].backward;
    if (late && i < graph.size() && waits) {
      continue;
    }
    open.push_back(next);
    while (!open.empty()) {
      const int node = open.back();
      bool ready = true;
      for (const int input : graph[node].inputs) {
        if (to[static_cast<std::size_t>(input)] < 0) {
          open.push_back(input);
          ready = false;
        }
      }
      if (!ready) {
        continue;
      }
      open.pop_back();
      if (to[static_cast<std::size_t>(node)] < 0) {
        to[static_cast<std::size_t>(node)] = static_cast<int>(sorted.size());
        GraphNode moved = graph[node];
        for (int& input : moved.inputs) {
          input = to[static_cast<std::size_t>(input)];
        }
        sorted.push_back(std::move(moved));
      }
    }
  }
  graph.nodes.swap(sorted);
  for (int& output : graph.outputs) {
    output = output < 0 ? -1 : to[static_cast<std::size_t>(output)];
  }
  for (int& input : graph.inputs) {
    input = to[static_cast<std::size_t>(input)];
  }
  return to;
}

// One node for each result of an op: what takes it twice takes it once.
inline void merge_parts(Graph& graph) {
  List<int> to(graph.nodes.size());
  for (int i = 0; i < graph.size(); ++i) {
    GraphNode& node = graph[i];
    for (int& input : node.inputs) {
      input = to[static_cast<std::size_t>(input)];
    }
    to[static_cast<std::size_t>(i)] = i;
    for (int j = 0; j < i && node.op == Op::part; ++j) {
      if (NodeTable::equal_nodes(graph[j], node)) {
        to[static_cast<std::size_t>(i)] = j;
        break;
      }
    }
  }
  for (int& output : graph.outputs) {
    output = output < 0 ? -1 : to[static_cast<std::size_t>(output)];
  }
}

// The loss alone where the loss and its gradients are computed too.
inline void share_losses(Graph& graph) {
  for (int i = 0; i < graph.size(); ++i) {
    if (graph[i].op != Op::linear_cross_entropy_all) {
      continue;
    }
    for (int j = 0; j < i; ++j) {
      bool same = graph[j].op == Op::linear_cross_entropy;
      for (std::size_t k = 0; same && k < 3; ++k) {
        same = graph[j].inputs[k] == graph[i].inputs[k];
      }
      if (same) {
        graph[j].op = Op::part;
        graph[j].numbers = {0.0};
        graph[j].inputs = {i};
      }
    }
  }
}

// Writes a graph again, node by node, each expression once.
class GraphSimplifier {
 public:
  GraphSimplifier(const Graph& graph, bool in_place)
      : table_(2 * graph.nodes.size()), old_(graph), uses_(use_counts(graph)), in_place_(in_place) {
    graph_.constants = graph.constants;
    graph_.nodes.reserve(graph.nodes.size());
  }

  Graph run() {
    List<int> to(old_.nodes.size());
    for (int i = 0; i < old_.size(); ++i) {
      GraphNode node = old_[i];
      if (in_place_) {
        add_in_place(node);
      }
      for (int& input : node.inputs) {
        input = to[static_cast<std::size_t>(input)];
      }
      to[static_cast<std::size_t>(i)] = put(std::move(node));
    }
    for (const int input : old_.inputs) {
      graph_.inputs.push_back(to[static_cast<std::size_t>(input)]);
    }
    for (const int output : old_.outputs) {
      graph_.outputs.push_back(output < 0 ? -1 : to[static_cast<std::size_t>(output)]);
    }
    return std::move(graph_);
  }

 private:
  // The node that computes this, one that was there before if there is one.
  int put(GraphNode node) {
    shorten(node);
    const int same = same_as(graph_, node);
    if (same >= 0) {
      return same;
    }
    const bool own = node.op == Op::input || node.op == Op::constant;
    graph_.nodes.push_back(std::move(node));
    const int number = graph_.size() - 1;
    const int known = own ? number : table_.find(graph_, number);
    if (known != number) {
      graph_.nodes.pop_back();
    }
    return known;
  }

  // x + rows added to zeros: the rows are added to x.
  void add_in_place(GraphNode& node) const {
    for (std::size_t i = 0; i < 2 && node.op == Op::add; ++i) {
      const GraphNode& added = old_.input_of(node, i);
      const int x = node.inputs[1 - i];
      if (added.op == Op::scatter_add && added.inputs.size() == 2 &&
          uses_[static_cast<std::size_t>(node.inputs[i])] == 1 && old_[x].shape == node.shape &&
          added.shape == node.shape && old_[x].op != Op::scatter_add) {
        node.op = Op::scatter_add;
        node.inputs = {added.inputs[0], added.inputs[1], x};
        node.numbers = added.numbers;
      }
    }
  }

  static bool is_swap(const GraphNode& node) {
    return node.op == Op::permute && node.shape.size() == 2 && node.whole(0) == 1;
  }
  int turned(int node) {
    const Shape& shape = graph_[node].shape;
    GraphNode view;
    view.op = Op::permute;
    view.shape = Shape{shape[1], shape[0]};
    view.inputs = {node};
    view.numbers = {1.0, 0.0};
    return put(std::move(view));
  }

  // A view of a view is one view, arithmetic of literals a literal, a product turned over the
  // product of its operands turned over: (A B)^T = B^T A^T, which lies in order.
  void shorten(GraphNode& node) {
    if (is_swap(node)) {
      const GraphNode& from = graph_.input_of(node, 0);
      if (from.op == Op::matmul && graph_.input_of(from, 0).shape.size() == 2 &&
          graph_.input_of(from, 1).shape.size() == 2) {
        const int a = from.inputs[0], b = from.inputs[1];
        List<double> numbers = from.numbers;
        if (gradient_operand(from) != Dy::none) {
          const Dy turned_dy = gradient_operand(from) == Dy::first ? Dy::second : Dy::first;
          numbers[1] = static_cast<double>(static_cast<int>(turned_dy));
        }
        const int left = turned(b), right = turned(a);
        node.op = Op::matmul;
        node.inputs = {left, right};
        node.numbers = std::move(numbers);
        return;
      }
    }
    const bool two = node.inputs.size() == 2 && graph_.input_of(node, 0).op == Op::literal &&
                     graph_.input_of(node, 1).op == Op::literal && node.shape.empty();
    if (two &&
        (node.op == Op::add || node.op == Op::sub || node.op == Op::mul || node.op == Op::div)) {
      const auto a = static_cast<float>(graph_.input_of(node, 0).numbers[0]);
      const auto b = static_cast<float>(graph_.input_of(node, 1).numbers[0]);
      const Arithmetic how = node.op == Op::add   ? Arithmetic::add
                             : node.op == Op::sub ? Arithmetic::sub
                             : node.op == Op::mul ? Arithmetic::mul
                                                  : Arithmetic::div;
      node.op = Op::literal;
      node.inputs.clear();
      node.numbers = {static_cast<double>(apply(how, a, b))};
      return;
    }
    if (node.op == Op::reshape && graph_.input_of(node, 0).op == Op::literal) {
      const List<double> value = graph_.input_of(node, 0).numbers;
      node.op = node.shape.empty() ? Op::literal : Op::broadcast_to;  // [1, 1] is one number too
      if (node.shape.empty()) {
        node.inputs.clear();
        node.numbers = value;
      }
      return;
    }
    while ((node.op == Op::reshape || node.op == Op::broadcast_to) &&
           graph_.input_of(node, 0).op == node.op) {
      node.inputs[0] = graph_.input_of(node, 0).inputs[0];
    }
    if (is_swap(node) && is_swap(graph_.input_of(node, 0))) {
      node.op = Op::reshape;  // to its own shape: same_as drops it
      node.inputs[0] = graph_.input_of(node, 0).inputs[0];
      node.numbers = as_numbers(node.shape);
    }
  }

  NodeTable table_;
  const Graph& old_;
  List<int> uses_;
  bool in_place_;
  Graph graph_;
};

// Both passes; the graph computes the same numbers. in_place: it is about to run on one device,
// where rows may be added to what is there (scatter_add with a third operand).
inline void simplify(Graph& graph, bool in_place = false) {
  Graph simple = GraphSimplifier(graph, in_place).run();
  std::swap(graph, simple);
  share_losses(graph);
  sort_needed(graph);
}

}  // namespace detail
}  // namespace tinyscale
