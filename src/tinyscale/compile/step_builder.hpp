#pragma once
// From a graph to steps: what is computed together, in an order in which each step finds what it
// reads.

#include <cstddef>  // size_t
#include <utility>  // move

#include "tinyscale/compile/compile_options.hpp"
#include "tinyscale/compile/fuse_products.hpp"
#include "tinyscale/compile/fuse_prologues.hpp"
#include "tinyscale/compile/fuse_vectors.hpp"
#include "tinyscale/compile/lower_vectors.hpp"
#include "tinyscale/compile/step.hpp"

namespace tinyscale {
namespace detail {

// Whether a composite op stays whole: its kernel is what the pass of that kind is.
inline bool stays_whole(Op op, const CompileOptions& options) {
  switch (op) {
    case Op::attention:
    case Op::attention_backward: return options.fuse_attention;
    case Op::linear_cross_entropy:
    case Op::linear_cross_entropy_all: return options.fuse_matmul && options.fuse_rows;
    case Op::rope:
    case Op::dropout:
    case Op::adamw: return options.fuse_elementwise;
    case Op::log_softmax: return false;  // a group of the vector engine
    default: break;
  }
  return facts_of(op).kind == OpKind::row ? options.fuse_rows : options.fuse_elementwise;
}

// Which composite ops of a graph are taken apart.
class WholeOps {
 public:
  WholeOps(const Graph& graph, const CompileOptions& options)
      : graph_(graph), options_(options), users_(users_of(graph)) {}

  bool stays(int node) const {
    const bool joins = options_.fuse_elementwise && options_.fuse_rows;
    return stays_whole(graph_[node].op, options_) &&
           !(graph_[node].op == Op::softmax && joins && has_neighbour(node));
  }

 private:
  // An elementwise op in front of or behind a softmax, one pass over memory with it: worth more
  // than the softmax's own kernel.
  bool has_neighbour(int softmax) const {
    const GraphNode& node = graph_[softmax];
    bool found = is_beside(node.inputs[0], node);
    for (const int input : graph_[node.inputs[0]].inputs) {
      found = found && graph_[input].op != Op::matmul;  // which takes along what follows it
    }
    for (const int user : users_[static_cast<std::size_t>(softmax)]) {
      found = found || (user >= 0 && is_beside(user, node));
    }
    return found;
  }
  bool is_beside(int other, const GraphNode& node) const {
    const GraphNode& beside = graph_[other];
    return is_element(beside) && beside.shape == node.shape && beside.backward == node.backward;
  }

  const Graph& graph_;
  const CompileOptions& options_;
  List<List<int>> users_;
};

// The steps of a graph in an order in which each finds its operands.
class StepBuilder {
 public:
  StepBuilder(const Graph& graph, const ValueLayouts& layouts, const CompileOptions& options)
      : graph_(graph),
        layouts_(layouts),
        options_(options),
        fusion_(graph, layouts),
        vectors_(graph, layouts, fusion_, options.fuse_elementwise, options.fuse_rows),
        prologues_(graph, layouts, fusion_, vectors_),
        claimed_(graph.nodes.size()) {}

  List<Step> build() {
    if (options_.fuse_matmul) {
      ProductFusion products(graph_, layouts_, fusion_);
      for (int i = 0; i < graph_.size(); ++i) {
        if (graph_[i].op == Op::matmul && claimed_[at(i)] == 0) {
          products_.push_back(products.run(i, claimed_));
        }
      }
    }
    vectors_.run(claimed_);
    for (const Step& product : products_) {
      prologues_.run(product);
    }
    mark_needed();
    List<Step> steps;
    for (int i = 0; i < graph_.size(); ++i) {
      emit(fusion_.group_of(i), steps);
    }
    return steps;
  }

 private:
  static std::size_t at(int node) { return static_cast<std::size_t>(node); }

  // What is read outside of the group that computes it.
  void mark_needed() {
    needed_ = List<char>(graph_.nodes.size());
    for (int i = 0; i < graph_.size(); ++i) {
      const List<int>& inputs = graph_[i].inputs;
      for (std::size_t k = 0; k < inputs.size(); ++k) {
        const int input = inputs[k], source = vectors_.source_of(input);
        const bool inside =
            source >= 0 && vectors_.roles[at(i)] != VectorRole::none && fusion_.same(source, i);
        if (!inside && !prologues_.is_made_for(i, k)) {
          needed_[at(layouts_.base_of(input))] = 1;
        }
      }
    }
    for (const int output : graph_.outputs) {
      if (output >= 0) {
        needed_[at(layouts_.base_of(output))] = 1;
      }
    }
    done_ = List<char>(graph_.nodes.size());
  }

  // The group's step behind those of all groups that it reads.
  void emit(int first_group, List<Step>& steps) {
    List<int> open;
    open.push_back(first_group);
    while (!open.empty()) {
      const int group = open.back();
      if (done_[at(group)] == 2) {
        open.pop_back();
        continue;
      }
      bool ready = true;
      for (const int node : fusion_.members(group)) {
        for (const int input : graph_[node].inputs) {
          const int other = fusion_.group_of(layouts_.base_of(input));
          if (other != group && done_[at(other)] != 2) {
            open.push_back(other);
            ready = false;
          }
        }
      }
      if (!ready) {
        if (done_[at(group)]++ > 0) {
          fail({"compile: the groups of a graph wait for one another; please report its text"});
        }
        continue;
      }
      open.pop_back();
      done_[at(group)] = 2;
      make_step(group, steps);
    }
  }

  void make_step(int group, List<Step>& steps) {
    const List<int>& members = fusion_.members(group);
    const int first = members[0];
    for (Step& product : products_) {
      if (product.product >= 0 && fusion_.same(product.product, first)) {
        prologues_.lower(product, needed_);
        steps.push_back(std::move(product));
        return;
      }
    }
    if (vectors_.roles[at(first)] != VectorRole::none) {
      steps.push_back(VectorLowering(graph_, layouts_, vectors_, members).lower(needed_));
      return;
    }
    const GraphNode& node = graph_[first];
    if (is_free(node)) {
      return;
    }
    if (node.op == Op::iota && needed_[at(first)] == 0) {
      return;
    }
    Step step;
    step.kind = node.op == Op::matmul ? StepKind::product : StepKind::kernel;
    step.product = node.op == Op::matmul ? first : -1;
    step.nodes.push_back(first);
    step.inputs = node.inputs;
    const int parts = facts_of(node.op).parts;
    for (int p = 0; p < parts; ++p) {
      step.outputs.push_back(parts == 1 ? first : -1);
    }
    for (int j = first + 1; j < graph_.size() && parts > 1; ++j) {
      if (graph_[j].op == Op::part && graph_[j].inputs[0] == first) {
        step.outputs[static_cast<std::size_t>(graph_[j].number(0))] = j;
      }
    }
    steps.push_back(std::move(step));
  }

  const Graph& graph_;
  const ValueLayouts& layouts_;
  const CompileOptions& options_;
  Fusion fusion_;
  VectorFusion vectors_;
  PrologueFusion prologues_;
  List<char> claimed_, needed_, done_;
  List<Step> products_;
};

}  // namespace detail
}  // namespace tinyscale
