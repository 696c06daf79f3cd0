#pragma once
// What follows a matrix product, done to each block of it while it is in cache: a factor, a bias,
// an activation, another tensor added.

#include <cstddef>  // size_t
#include <cstdint>  // int64_t

#include "tinyscale/compile/fuse_vectors.hpp"
#include "tinyscale/compile/step.hpp"
#include "tinyscale/compile/value_layout.hpp"

namespace tinyscale {
namespace detail {

// A product by a matrix, whose result is written in the order of its rows.
inline bool is_plain_product(const Graph& graph, const GraphNode& node) {
  return node.op == Op::matmul && graph.input_of(node, 1).shape.size() == 2 &&
         static_cast<DType>(static_cast<int>(node.number(0))) == DType::f32 &&
         node.shape.count() > 0;
}

class ProductFusion {
 public:
  ProductFusion(const Graph& graph, const ValueLayouts& layouts, Fusion& fusion)
      : graph_(graph), layouts_(layouts), fusion_(fusion), users_(users_of(graph)) {}

  // The step of a product, with as much of what follows as one pass can do. `claimed` is marked.
  Step run(int product, List<char>& claimed) {
    Step step;
    step.kind = StepKind::product;
    step.product = product;
    step.nodes.push_back(product);
    step.inputs = graph_[product].inputs;
    claimed[at(product)] = 1;
    int now = product;
    if (is_plain_product(graph_, graph_[product])) {
      while (follow(step, now, claimed)) {
      }
    }
    step.outputs.push_back(now);
    return step;
  }

 private:
  static std::size_t at(int node) { return static_cast<std::size_t>(node); }

  bool follow(Step& step, int& now, List<char>& claimed) {
    if (step.residual >= 0) {
      return false;
    }
    const List<int>& users = users_[at(now)];
    const int next = next_of(step, users);
    if (next < 0 || claimed[at(next)] != 0 || graph_[next].backward != graph_[now].backward ||
        graph_[next].shape != graph_[now].shape) {
      return false;
    }
    const GraphNode& node = graph_[next];
    if (!take(step, now, node, users.size() == 1) || !merge(step, next)) {
      return false;
    }
    apply(step, now, node);
    step.nodes.push_back(next);
    claimed[at(next)] = 1;
    now = next;
    return true;
  }

  // The one user, or the activation among several: its input may be kept.
  int next_of(const Step& step, const List<int>& users) const {
    if (users.size() == 1) {
      return users[0];
    }
    if (step.activation != kernels::Activation::none) {
      return -1;
    }
    for (const int user : users) {
      if (user >= 0 && activation(graph_[user].op) != kernels::Activation::none &&
          graph_[user].backward == graph_[step.nodes[0]].backward) {
        return user;
      }
    }
    return -1;
  }

  static kernels::Activation activation(Op op) {
    switch (op) {
      case Op::gelu: return kernels::Activation::gelu;
      case Op::gelu_tanh: return kernels::Activation::gelu_tanh;
      case Op::silu: return kernels::Activation::silu;
      default: return kernels::Activation::none;
    }
  }

  // Which operand of a node with two is not `now`.
  int other(const GraphNode& node, int now) const {
    return node.inputs[0] == now ? node.inputs[1] : node.inputs[0];
  }
  bool is_literal(int node) const { return graph_[node].op == Op::literal; }
  // [N], the same for all rows.
  bool is_bias(int node, const Shape& y) const {
    const TableSteps lies = table_steps(layouts_.of(node), y);
    return lies.even && lies.row == 0 && lies.column == 1 && graph_[node].shape.count() == y[-1];
  }

  bool take(const Step& step, int now, const GraphNode& node, bool alone) const {
    const bool plain = step.activation == kernels::Activation::none;
    if (activation(node.op) != kernels::Activation::none) {
      return plain && step.before < 0;
    }
    if (!alone || (node.op != Op::mul && node.op != Op::add) || node.inputs[0] == node.inputs[1]) {
      return false;
    }
    const int x = other(node, now);
    if (node.op == Op::mul) {
      return plain && step.bias < 0 && is_literal(x) && graph_[x].shape.empty();
    }
    if (plain && step.bias < 0 && is_bias(x, node.shape)) {
      return true;
    }
    return graph_[x].shape == node.shape && layouts_.of(x).is_contiguous() && !is_literal(x);
  }
  void apply(Step& step, int now, const GraphNode& node) const {
    const kernels::Activation act = activation(node.op);
    if (act != kernels::Activation::none) {
      step.activation = act;
      if (users_[at(now)].size() > 1) {
        step.before = now;
        step.outputs.push_back(now);
      }
      return;
    }
    const int x = other(node, now);
    if (node.op == Op::mul) {
      step.scale *= static_cast<float>(graph_[x].number(0));
      return;
    }
    const bool bias =
        step.activation == kernels::Activation::none && step.bias < 0 && is_bias(x, node.shape);
    (bias ? step.bias : step.residual) = x;
    step.inputs.push_back(x);
  }
  bool merge(const Step& step, int next) {
    const int a = fusion_.group_of(step.nodes[0]), b = fusion_.group_of(next);
    if (!fusion_.may_merge(a, b)) {
      return false;
    }
    fusion_.merge(a, b);
    return true;
  }

  const Graph& graph_;
  const ValueLayouts& layouts_;
  Fusion& fusion_;
  List<List<int>> users_;
};

}  // namespace detail
}  // namespace tinyscale
