#pragma once
// A function that is trained through: its graph and that of its gradients, cut in two. The forward
// part also returns what the backward part needs of it.

#include <cstddef>  // size_t

#include "tinyscale/compile/capture.hpp"
#include "tinyscale/compile/graph_cut.hpp"
#include "tinyscale/compile/rematerialize.hpp"
#include "tinyscale/compile/simplify.hpp"

namespace tinyscale {
namespace detail {

// Gradients of one result with respect to the capture's leaves.
struct BackwardPart {
  GraphCut cut;      // inputs: those of the function, then dy
  List<int> leaves;  // which leaf each output belongs to
  Shared<GraphPlan> plan;
  Rematerialization rematerialization;  // what a budget of bytes led to
  bool used = false;  // a backward pass inside of the function went through part of it
};

// What backward nodes read of a forward pass, seen through views.
class SavedResults {
 public:
  SavedResults(const Capture& capture, int forward) : capture_(capture), forward_(forward) {}

  // Nodes that `wanted` need and that must be saved; of those in `kept` alone, where it is given,
  // the others are computed again.
  List<char> find(const List<int>& wanted, const List<char>* kept, Rematerialization& again) const {
    const Graph& graph = capture_.graph;
    List<char> needed(graph.nodes.size()), saved(graph.nodes.size());
    List<int> open = wanted;
    while (!open.empty()) {
      const int node = open.back();
      open.pop_back();
      const bool source = facts_of(graph[node].op).kind == OpKind::source;
      if (needed[at(node)] != 0 || (source && !is_old(node))) {
        continue;
      }
      needed[at(node)] = 1;
      const bool may_be = is_result(node);
      if (may_be && (kept == nullptr || source || (*kept)[at(node)] != 0)) {
        saved[at(node)] = 1;
        continue;
      }
      if (node < forward_ && !is_free(graph[node])) {
        const NodeFlops own = flops_of(graph, graph[node]);
        again.flops += own.matmul + own.vector;
        ++again.nodes;
      }
      for (const int input : graph[node].inputs) {
        open.push_back(input);
      }
    }
    return saved;
  }
  // A source that the function writes later: its old numbers are gone by then.
  bool is_old(int node) const {
    return node < forward_ && facts_of(capture_.graph[node].op).kind == OpKind::source &&
           capture_.is_written(node);
  }

 private:
  static std::size_t at(int node) { return static_cast<std::size_t>(node); }
  // One of several results of an op is saved, not the op.
  bool is_result(int node) const {
    const GraphNode& made = capture_.graph[node];
    const bool one_of_several = made.op == Op::part && made.inputs[0] < forward_;
    return (node < forward_ && facts_of(made.op).kind != OpKind::view) || one_of_several;
  }

  const Capture& capture_;
  int forward_;
};

// Adds to the capture's graph what the gradients of result `result` are made of; `forward` is how
// many nodes the function itself made, `budget` how many bytes of them are saved, 0: all.
inline BackwardPart backward_part(Capture& capture, std::size_t result, int forward,
                                  double budget) {
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
  const Graph& graph = capture.graph;
  const SavedResults results(capture, forward);
  Rematerialization none;
  const List<char> there(graph.nodes.size());
  List<char> fixed(graph.nodes.size());
  for (int i = 0; i < forward; ++i) {
    fixed[static_cast<std::size_t>(i)] = results.is_old(i) ? 1 : 0;
  }
  KeptResults choice(graph, results.find(wanted, nullptr, none), there, fixed);
  choice.choose(budget, part.rematerialization);
  const List<char> saved = results.find(wanted, &choice.kept, part.rematerialization);
  List<Tensor> known(graph.nodes.size());
  for (int i = 0; i < graph.size(); ++i) {
    if (saved[static_cast<std::size_t>(i)] != 0) {
      known[static_cast<std::size_t>(i)] = phantom(graph[i].shape);
    }
  }
  part.cut = cut_graph(graph, wanted, known);
  if (part.rematerialization.nodes > 0) {
    sort_needed(part.cut.graph, true);  // so that it is not there for longer
    for (GraphNode& each : part.cut.graph.nodes) {
      each.backward = true;
    }
  }
  capture.graph.inputs = function_inputs;
  return part;
}

}  // namespace detail
}  // namespace tinyscale
