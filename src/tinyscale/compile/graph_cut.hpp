#pragma once
// Part of a graph as a graph of its own: what some nodes need, up to nodes whose numbers are known.

#include <cstddef>  // size_t
#include <cstring>  // memcmp
#include <utility>  // move

#include "tinyscale/compile/graph_plan.hpp"
#include "tinyscale/compile/op_graph.hpp"

namespace tinyscale {
namespace detail {

// Bit for bit.
inline bool same_numbers(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape()) {
    return false;
  }
  const Tensor x = contiguous(a.detach()), y = contiguous(b.detach());
  return std::memcmp(x.data(), y.data(), static_cast<std::size_t>(x.count()) * sizeof(float)) == 0;
}

struct GraphCut {
  Graph graph;
  List<int> known;  // behind the constants of the graph that was cut: nodes of it
};

// The nodes that `wanted` need, as outputs of a graph with the same inputs and constants. Where
// known[i] is defined, node i is one more constant.
inline GraphCut cut_graph(const Graph& graph, const List<int>& wanted,
                          const List<Tensor>& known = List<Tensor>()) {
  GraphCut cut;
  Graph& out = cut.graph;
  out.constants = graph.constants;
  const auto n = static_cast<std::size_t>(graph.size());
  List<char> needed(n);
  for (const int node : wanted) {
    if (node >= 0) {
      needed[static_cast<std::size_t>(node)] = 1;
    }
  }
  for (const int node : graph.inputs) {
    needed[static_cast<std::size_t>(node)] = 1;
  }
  const auto is_known = [&known](std::size_t i) { return i < known.size() && known[i].defined(); };
  for (std::size_t i = n; i > 0; --i) {
    if (needed[i - 1] != 0 && !is_known(i - 1)) {
      for (const int input : graph.nodes[i - 1].inputs) {
        needed[static_cast<std::size_t>(input)] = 1;
      }
    }
  }
  List<int> to(n);
  for (std::size_t i = 0; i < n; ++i) {
    if (needed[i] == 0) {
      continue;
    }
    to[i] = out.size();
    GraphNode node;
    const GraphNode& old = graph.nodes[i];
    node.shape = old.shape;
    if (is_known(i)) {
      node.op = Op::constant;
      node.numbers = {static_cast<double>(out.constants.size())};
      cut.known.push_back(static_cast<int>(i));
      out.constants.push_back(known[i].detach());
    } else {
      node = old;
      for (int& input : node.inputs) {
        input = to[static_cast<std::size_t>(input)];
      }
    }
    out.nodes.push_back(std::move(node));
  }
  for (const int input : graph.inputs) {
    out.inputs.push_back(to[static_cast<std::size_t>(input)]);
  }
  for (const int node : wanted) {
    out.outputs.push_back(node < 0 ? -1 : to[static_cast<std::size_t>(node)]);
  }
  return cut;
}

// Whether two graphs are the same but for whose numbers their constants are.
inline bool same_graph(const Graph& a, const Graph& b) {
  bool same = a.nodes.size() == b.nodes.size() && a.outputs.size() == b.outputs.size() &&
              a.inputs.size() == b.inputs.size() && a.constants.size() == b.constants.size();
  for (std::size_t i = 0; same && i < a.nodes.size(); ++i) {
    same = NodeTable::equal_nodes(a.nodes[i], b.nodes[i]);
  }
  for (std::size_t i = 0; same && i < a.outputs.size(); ++i) {
    same = a.outputs[i] == b.outputs[i];
  }
  for (std::size_t i = 0; same && i < a.constants.size(); ++i) {
    same = a.constants[i].is_contiguous() == b.constants[i].is_contiguous() &&
           a.constants[i].strides() == b.constants[i].strides();
  }
  return same;
}

// The node at which two graphs differ, or -1.
inline int first_difference(const Graph& a, const Graph& b) {
  for (int i = 0; i < a.size() && i < b.size(); ++i) {
    if (!NodeTable::equal_nodes(a[i], b[i])) {
      return i;
    }
  }
  return a.size() == b.size() ? -1 : std::min(a.size(), b.size());
}

// Plans of graphs that were met before.
class PlanCache {
 public:
  struct Found {
    Shared<GraphPlan> plan;
    bool made = false;
  };
  Found find(const Graph& graph, const CompileOptions& options,
             const List<GraphPlan::Write>& writes) {
    for (const Known& known : known_) {
      if (same_graph(known.graph, graph) && same_writes(known.writes, writes)) {
        return {known.plan, false};
      }
    }
    Known made;
    made.graph = graph;
    made.writes = writes;
    made.plan = Shared<GraphPlan>(new GraphPlan(graph, options, writes));
    for (Tensor& constant : made.graph.constants) {  // shape and steps, no numbers
      constant = phantom_like(constant);
    }
    known_.push_back(made);
    return {made.plan, true};
  }
  std::size_t size() const { return known_.size(); }

 private:
  struct Known {
    Graph graph;
    List<GraphPlan::Write> writes;
    Shared<GraphPlan> plan;
  };
  static bool same_writes(const List<GraphPlan::Write>& a, const List<GraphPlan::Write>& b) {
    bool same = a.size() == b.size();
    for (std::size_t i = 0; same && i < a.size(); ++i) {
      same =
          a[i].output == b[i].output && a[i].input == b[i].input && a[i].constant == b[i].constant;
    }
    return same;
  }

  List<Known> known_;
};

}  // namespace detail
}  // namespace tinyscale
