#pragma once
// Composite ops of a graph replaced by the primitives that they are made of, but for those that a
// pass wants whole.

#include <cstddef>  // size_t
#include <utility>  // move

#include "tinyscale/base/function.hpp"
#include "tinyscale/compile/decompose.hpp"
#include "tinyscale/compile/differentiate.hpp"
#include "tinyscale/compile/graph_writer.hpp"

namespace tinyscale {

// The same graph of primitives alone, but for the ops that `whole` says yes to.
inline Graph take_apart(const Graph& graph,
                        const Function<bool(int node)>& whole = Function<bool(int node)>()) {
  detail::GraphWriter writer;
  const NoGrad no_gradients;
  const detail::RecorderScope scope(&writer);
  writer.begin_with(graph.constants);
  List<int> to(graph.nodes.size());
  List<List<int>> parts(graph.nodes.size());
  for (int i = 0; i < graph.size(); ++i) {
    const GraphNode& node = graph[i];
    int& own = to[static_cast<std::size_t>(i)];
    writer.in_backward = node.backward;
    if (node.op == Op::part && !parts[static_cast<std::size_t>(node.inputs[0])].empty()) {
      own =
          parts[static_cast<std::size_t>(node.inputs[0])][static_cast<std::size_t>(node.number(0))];
      continue;
    }
    if (is_primitive(node.op) || (whole && whole(i))) {
      List<int> inputs = node.inputs;
      for (int& input : inputs) {
        input = to[static_cast<std::size_t>(input)];
      }
      own = writer.add(node.op, std::move(inputs), node.shape, node.numbers);
      if (node.op == Op::constant) {
        writer.is_constant(static_cast<std::size_t>(node.number(0)), own);
      }
      continue;
    }
    detail::Parts in;
    for (const int input : node.inputs) {
      in.push_back(writer.tensor_of(to[static_cast<std::size_t>(input)]));
    }
    const detail::Parts results = detail::decompose(node.op, in, node.numbers);
    for (const Tensor& result : results) {
      parts[static_cast<std::size_t>(i)].push_back(writer.node_of(result));
    }
    own = parts[static_cast<std::size_t>(i)][0];
    if (facts_of(node.op).parts == 1) {
      parts[static_cast<std::size_t>(i)].clear();
    }
  }
  for (const int input : graph.inputs) {
    writer.graph.inputs.push_back(to[static_cast<std::size_t>(input)]);
  }
  for (const int output : graph.outputs) {
    writer.graph.outputs.push_back(output < 0 ? -1 : to[static_cast<std::size_t>(output)]);
  }
  Graph out;
  std::swap(out, writer.graph);
  return out;
}

}  // namespace tinyscale
