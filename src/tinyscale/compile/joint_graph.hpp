#pragma once
// A function that is trained through: its graph and that of its gradients, cut in two. The forward
// part also returns what the backward part needs of it.

#include <cstddef>  // size_t

#include "tinyscale/compile/capture.hpp"
#include "tinyscale/compile/graph_cut.hpp"

namespace tinyscale {
namespace detail {

// Gradients of one result with respect to the capture's leaves.
struct BackwardPart {
  GraphCut cut;      // inputs: those of the function, then dy
  List<int> leaves;  // which leaf each output belongs to
  Shared<GraphPlan> plan;
  bool used = false;  // a backward pass inside of the function went through part of it
};

// Adds to the capture's graph what the gradients of result `result` are made of; `forward` is how
// many nodes the function itself made.
inline BackwardPart backward_part(Capture& capture, std::size_t result, int forward) {
  BackwardPart part;
  const int node = capture.graph.outputs[result];
  if (capture.is_used(node)) {
    part.used = true;
    return part;
  }
  const List<int> function_inputs = capture.graph.inputs;
  const Tensor dy = capture.input(capture.graph[node].shape);
  Differentiation differentiation(capture);
  differentiation.start(node, dy);
  differentiation.run();
  List<int> wanted;
  for (std::size_t leaf = 0; leaf < capture.leaf_nodes.size(); ++leaf) {
    const int gradient = differentiation.gradient(capture.leaf_nodes[leaf]);
    if (gradient >= 0) {
      wanted.push_back(gradient);
      part.leaves.push_back(static_cast<int>(leaf));
    }
  }
  // What backward nodes read of the forward pass, seen through views.
  const Graph& graph = capture.graph;
  List<char> needed(graph.nodes.size()), saved(graph.nodes.size());
  List<int> open = wanted;
  while (!open.empty()) {
    int at = open.back();
    open.pop_back();
    const bool view = facts_of(graph[at].op).kind == OpKind::view;
    const bool source = facts_of(graph[at].op).kind == OpKind::source;
    const bool old = source && at < forward && capture.is_written(at);
    if (needed[static_cast<std::size_t>(at)] != 0 || (source && !old)) {
      continue;
    }
    needed[static_cast<std::size_t>(at)] = 1;
    // One of several results of an op is saved, not the op.
    const bool one_result = graph[at].op == Op::part && graph[at].inputs[0] < forward;
    if ((at < forward && !view) || one_result) {
      saved[static_cast<std::size_t>(at)] = 1;
      continue;
    }
    for (const int input : graph[at].inputs) {
      open.push_back(input);
    }
  }
  List<Tensor> known(graph.nodes.size());
  for (int i = 0; i < graph.size(); ++i) {
    if (saved[static_cast<std::size_t>(i)] != 0) {
      known[static_cast<std::size_t>(i)] = phantom(graph[i].shape);
    }
  }
  part.cut = cut_graph(graph, wanted, known);
  capture.graph.inputs = function_inputs;
  return part;
}

}  // namespace detail
}  // namespace tinyscale
