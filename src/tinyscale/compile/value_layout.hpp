#pragma once
// How the numbers of every node lie in memory, known before there is any: views of what buffer,
// with which steps. A view that no steps describe is a copy.

#include <cstddef>  // size_t
#include <cstdint>  // int64_t
#include <utility>  // move

#include "tinyscale/compile/evaluate.hpp"
#include "tinyscale/compile/op_graph.hpp"

namespace tinyscale {
namespace detail {

// A tensor that has shape and steps and no memory; it is never read.
inline Tensor phantom(const Shape& shape) {
  static float nowhere[1] = {};
  Shared<Storage> storage = Shared<Storage>::make();
  storage->data = nowhere;
  storage->count = shape.count() > 0 ? shape.count() : 1;
  return Tensor(shape, std::move(storage));
}

// The view that a node is of x, of real numbers or of a phantom; empty where it needs a copy.
inline Tensor view_of(const GraphNode& node, const Tensor& x) {
  switch (node.op) {
    case Op::reshape: {
      Strides steps = row_major(node.shape);
      if (!x.is_contiguous() && !steps_of_reshape(x, node.shape, steps)) {
        return Tensor();
      }
      return x.as_strided(node.shape, steps, 0);
    }
    case Op::permute: {
      const Strides from = x.steps();
      Strides steps;
      for (std::size_t i = 0; i < node.numbers.size(); ++i) {
        steps.of[i] = from.of[node.whole(i)];
      }
      return x.as_strided(node.shape, steps, 0);
    }
    case Op::slice: {
      const auto dim = static_cast<int>(node.number(0));
      Strides steps = x.steps();
      const std::int64_t offset = node.shape.count() > 0 ? node.whole(1) * steps.of[dim] : 0;
      steps.of[dim] *= node.shape[dim] > 1 ? node.whole(3) : 1;
      return x.as_strided(node.shape, steps, offset);
    }
    default: return x.as_strided(node.shape, broadcast_steps(x.shape(), x.steps(), node.shape), 0);
  }
}

// The same shape and steps as x.
inline Tensor phantom_like(const Tensor& x) {
  if (x.is_contiguous()) {
    return phantom(x.shape());
  }
  std::int64_t first = 0, last = 0;  // a step may be below 0
  for (int i = 0; i < x.dims(); ++i) {
    (x.stride(i) < 0 ? first : last) += (x.dim(i) - 1) * x.stride(i);  // of none it is dense
  }
  return phantom(Shape{last - first + 1}).as_strided(x.shape(), x.steps(), -first);
}

struct ValueLayouts {
  List<Tensor> values;  // phantoms
  List<int> base;       // the node whose buffer it is in; itself: it has one of its own
  List<char> copies;    // 1: a view in the graph, a copy in memory

  explicit ValueLayouts(const Graph& graph)
      : values(graph.nodes.size()), base(graph.nodes.size()), copies(graph.nodes.size()) {
    for (int i = 0; i < graph.size(); ++i) {
      const auto at = static_cast<std::size_t>(i);
      const GraphNode& node = graph[i];
      base[at] = i;
      if (facts_of(node.op).kind == OpKind::view) {
        const auto from = static_cast<std::size_t>(node.inputs[0]);
        values[at] = view_of(node, values[from]);
        copies[at] = values[at].defined() ? 0 : 1;
        base[at] = values[at].defined() ? base[from] : i;
      } else if (node.op == Op::constant) {
        const Tensor& known = graph.constants[static_cast<std::size_t>(node.number(0))];
        values[at] = phantom_like(known);
      }
      if (!values[at].defined()) {
        values[at] = phantom(node.shape);
      }
    }
  }
  const Tensor& of(int node) const { return values[static_cast<std::size_t>(node)]; }
  int base_of(int node) const { return base[static_cast<std::size_t>(node)]; }
  bool is_copy(int node) const { return copies[static_cast<std::size_t>(node)] != 0; }
};

}  // namespace detail
}  // namespace tinyscale
