#pragma once
// Recomputation by a byte budget: results of the forward pass that the backward pass reads are kept
// until then, or computed again when it comes to them. The cheapest FLOPs a byte go first, until
// what is kept fits (arXiv 1604.06174; chosen as a knapsack, greedily).

#include <cstddef>  // size_t
#include <utility>  // move

#include "tinyscale/compile/graph_cost.hpp"
#include "tinyscale/compile/op_graph.hpp"
#include "tinyscale/compile/simplify.hpp"

namespace tinyscale {

// What a budget led to.
struct Rematerialization {
  double kept_before = 0,
         kept = 0;   // bytes of the forward pass that live on into the backward pass
  double flops = 0;  // computed twice
  int nodes = 0;     // of which ops
};

namespace detail {

// Which results are kept.
class KeptResults {
 public:
  // `all`: those that may be kept; `there`: those that cost nothing to have; `fixed`: those that
  // are not computed, and that nothing is computed from unless they are kept.
  KeptResults(const Graph& graph, List<char> all, const List<char>& there, const List<char>& fixed)
      : kept(std::move(all)), graph_(graph), there_(there), fixed_(fixed) {}

  List<char> kept;

  // Lets go, the cheapest FLOPs a byte first, until so many bytes are left or nothing can go. 0:
  // all stay.
  void choose(double budget, Rematerialization& out) {
    for (int i = 0; i < graph_.size(); ++i) {
      out.kept_before += kept[at(i)] != 0 ? bytes(i) : 0;
    }
    out.kept = out.kept_before;
    while (budget > 0 && out.kept > budget) {
      int best = -1;
      double best_price = 0;
      for (int i = 0; i < graph_.size(); ++i) {
        if (kept[at(i)] == 0 || 1000 * bytes(i) < budget) {
          continue;  // so few bytes are not worth a kernel
        }
        const double flops = price(i);
        if (flops >= 0 && (best < 0 || flops / bytes(i) < best_price)) {
          best = i;
          best_price = flops / bytes(i);
        }
      }
      if (best < 0) {
        break;  // all that is left is what everything else is made of
      }
      kept[at(best)] = 0;
      out.kept -= bytes(best);
    }
  }

 private:
  static std::size_t at(int node) { return static_cast<std::size_t>(node); }
  double bytes(int node) const { return 4.0 * count_of(graph_[node].shape); }

  // FLOPs to compute a node again from what else is kept; -1: it cannot be, or would take most of
  // the pass.
  double price(int node) const {
    if (there_[at(node)] != 0) {
      return -1;
    }
    double flops = 0;
    int left = 64;
    List<int> open, seen;
    open.push_back(node);
    while (!open.empty()) {
      const int now = open.back();
      open.pop_back();
      bool known = false;
      for (const int before : seen) {
        known = known || before == now;
      }
      if (known || (now != node && (kept[at(now)] != 0 || there_[at(now)] != 0))) {
        continue;
      }
      if (fixed_[at(now)] != 0) {
        return -1;
      }
      if (facts_of(graph_[now].op).kind == OpKind::source) {
        continue;
      }
      if (--left < 0) {
        return -1;
      }
      seen.push_back(now);
      const NodeFlops own = flops_of(graph_, graph_[now]);
      flops += own.matmul + own.vector;
      for (const int input : graph_[now].inputs) {
        open.push_back(input);
      }
    }
    return flops;
  }

  const Graph& graph_;
  const List<char>&there_, &fixed_;
};

class Rematerializer {
 public:
  explicit Rematerializer(Graph& graph)
      : graph_(graph),
        late_(graph.nodes.size()),
        kept_(graph.nodes.size()),
        returned_(graph.nodes.size()),
        clone_(graph.nodes.size()) {
    for (int i = 0; i < graph.size(); ++i) {
      const GraphNode& node = graph[i];
      bool late = node.backward;
      for (const int input : node.inputs) {
        late = late || late_[at(input)] != 0;
      }
      late_[at(i)] = late ? 1 : 0;
    }
  }

  Rematerialization run(double budget) {
    Rematerialization out;
    find_kept();
    const List<char> fixed(graph_.nodes.size());
    KeptResults choice(graph_, kept_, returned_, fixed);
    choice.choose(budget, out);
    kept_ = choice.kept;
    if (out.kept < out.kept_before) {
      rewrite(out);
    }
    return out;
  }

 private:
  static std::size_t at(int node) { return static_cast<std::size_t>(node); }
  bool is_source(int node) const { return facts_of(graph_[node].op).kind == OpKind::source; }
  bool is_view(int node) const { return facts_of(graph_[node].op).kind == OpKind::view; }

  // Forward results, seen through views, that late nodes read.
  void find_kept() {
    for (int i = 0; i < graph_.size(); ++i) {
      if (late_[at(i)] == 0) {
        continue;
      }
      for (int input : graph_[i].inputs) {
        while (late_[at(input)] == 0 && is_view(input)) {
          input = graph_[input].inputs[0];
        }
        if (late_[at(input)] == 0 && !is_source(input)) {
          kept_[at(input)] = 1;
        }
      }
    }
    for (int output : graph_.outputs) {  // the caller keeps it anyway
      while (output >= 0 && is_view(output)) {
        output = graph_[output].inputs[0];
      }
      if (output >= 0) {
        returned_[at(output)] = 1;
      }
    }
  }

  // Late nodes read copies of what is no longer kept, made where the first of them needs it.
  void rewrite(Rematerialization& out) {
    Graph again;
    again.constants = graph_.constants;
    again.nodes.reserve(2 * graph_.nodes.size());
    List<int> to(graph_.nodes.size());
    for (int& place : clone_) {
      place = -1;
    }
    for (int i = 0; i < graph_.size(); ++i) {
      GraphNode node = graph_[i];
      for (int& input : node.inputs) {
        const bool from_forward = late_[at(i)] != 0 && late_[at(input)] == 0;
        input = from_forward ? copy_of(input, again, to, out) : to[at(input)];
      }
      again.nodes.push_back(std::move(node));
      to[at(i)] = again.size() - 1;
    }
    for (const int input : graph_.inputs) {
      again.inputs.push_back(to[at(input)]);
    }
    for (const int output : graph_.outputs) {
      again.outputs.push_back(output < 0 ? -1 : to[at(output)]);
    }
    std::swap(graph_, again);
    sort_needed(graph_);  // what is computed again may not be needed before
  }
  int copy_of(int node, Graph& again, const List<int>& to, Rematerialization& out) {
    if (is_source(node) || kept_[at(node)] != 0 || returned_[at(node)] != 0) {
      return to[at(node)];
    }
    if (clone_[at(node)] < 0) {
      GraphNode copy = graph_[node];
      for (int& input : copy.inputs) {
        input = copy_of(input, again, to, out);
      }
      copy.backward = true;
      if (!is_free(copy)) {
        const NodeFlops own = flops_of(graph_, graph_[node]);
        out.flops += own.matmul + own.vector;
        ++out.nodes;
      }
      again.nodes.push_back(std::move(copy));
      clone_[at(node)] = again.size() - 1;
    }
    return clone_[at(node)];
  }

  Graph& graph_;
  List<char> late_, kept_, returned_;
  List<int> clone_;
};

}  // namespace detail

// Cuts what the forward pass keeps to so many bytes, 0: all, where that can be; it computes the
// same numbers.
inline Rematerialization rematerialize(Graph& graph, double budget) {
  return detail::Rematerializer(graph).run(budget);
}

}  // namespace tinyscale
