#pragma once
// What the ops of a graph cost: FLOPs by the same table as eager ops, bytes of what is read and
// written where each node is run alone, or where steps run several together.

#include <cstddef>  // size_t
#include <cstdint>  // int64_t

#include "tinyscale/compile/step.hpp"
#include "tinyscale/compile/value_layout.hpp"
#include "tinyscale/tensor/attend.hpp"
#include "tinyscale/tensor/op_record.hpp"

namespace tinyscale {
namespace detail {

inline double count_of(const Shape& shape) { return static_cast<double>(shape.count()); }

// Numbers that are there, however often a view repeats them.
inline double distinct_numbers(const Tensor& x) {
  double n = x.count() > 0 ? 1 : 0;
  for (int i = 0; i < x.dims() && n > 0; ++i) {
    n *= x.dim(i) > 1 && x.stride(i) == 0 ? 1.0 : static_cast<double>(x.dim(i));
  }
  return n;
}

inline double element_flops(Op op, double n) {
  const auto table = [n](const char* name) { return vector_cost(name, n, &VectorCost::forward); };
  switch (op) {
    case Op::round: return n;
    case Op::gelu_slope: return table("gelu") + 4 * n;
    case Op::gelu_tanh_slope: return table("gelu_tanh") + 6 * n;
    case Op::silu_slope: return table("silu") + 2 * n;
    default: return table(name_of(op));
  }
}

struct NodeFlops {
  double matmul = 0, vector = 0;
};

inline NodeFlops attention_flops(const Graph& graph, const GraphNode& node, double products,
                                 double softmaxes) {
  const Shape &q = graph.input_of(node, 0).shape, &k = graph.input_of(node, 1).shape;
  kernels::AttentionShape s;
  s.batch = q[0];
  s.queries = q[1];
  s.keys = k[1];
  s.heads = node.whole(0);
  s.causal = node.numbers[2] > 0 ? 1 : 0;
  s.causal_offset = s.keys - s.queries;
  s.window = node.whole(3);
  const double pairs = attention_pairs(s);
  return {2 * products * pairs * static_cast<double>(q[2] / s.heads),
          softmaxes * vector_cost("softmax", pairs, &VectorCost::forward)};
}

inline NodeFlops flops_of(const Graph& graph, const GraphNode& node) {
  const OpKind kind = facts_of(node.op).kind;
  const double n = count_of(node.shape);
  if (kind == OpKind::elementwise) {
    return {0, element_flops(node.op, n)};
  }
  if (node.inputs.empty() || kind == OpKind::view || kind == OpKind::structure) {
    return {};
  }
  const Shape& x = graph.input_of(node, 0).shape;
  const double in = count_of(x);
  const auto row = [in](const char* name, double VectorCost::*pass) {
    return NodeFlops{0, vector_cost(name, in, pass)};
  };
  switch (node.op) {
    case Op::matmul: return {2 * n * static_cast<double>(x[-1]), 0};
    case Op::sum:
    case Op::max:
    case Op::argmax: return {0, in};
    case Op::scatter_add: return {0, count_of(graph.input_of(node, 1).shape)};
    case Op::softmax:
    case Op::log_softmax:
    case Op::layer_norm:
    case Op::rms_norm:
    case Op::cross_entropy:
    case Op::dropout:
    case Op::rope: return row(name_of(node.op), &VectorCost::forward);
    case Op::layer_norm_backward: return row("layer_norm", &VectorCost::backward);
    case Op::rms_norm_backward: return row("rms_norm", &VectorCost::backward);
    case Op::cross_entropy_backward: return row("cross_entropy", &VectorCost::backward);
    case Op::attention: return attention_flops(graph, node, 2, 1);
    case Op::attention_backward: return attention_flops(graph, node, 5, 1);
    case Op::linear_cross_entropy:
    case Op::linear_cross_entropy_all: {
      const Shape& w = graph.input_of(node, 1).shape;
      const double logits = in / static_cast<double>(x[-1]) * static_cast<double>(w[0]);
      const bool all = node.op == Op::linear_cross_entropy_all;
      const double loss = vector_cost("cross_entropy", logits, &VectorCost::forward);
      return {(all ? 6 : 2) * logits * static_cast<double>(x[-1]), (all ? 2 : 1) * loss};
    }
    case Op::adamw: return {0, vector_cost("adamw", in, &VectorCost::forward)};
    default: return {};
  }
}

// One op as if it were run alone.
inline OpRecord record_of(const Graph& graph, const ValueLayouts& layouts, const List<int>& inputs,
                          const List<int>& outputs, const List<int>& nodes) {
  OpRecord record;
  record.shape = graph[nodes.back()].shape.text();
  DType math = DType::f32;
  for (const int node : nodes) {
    const NodeFlops flops = flops_of(graph, graph[node]);
    record.matmul_flops += flops.matmul;
    record.vector_flops += flops.vector;
    if (graph[node].op == Op::matmul) {
      math = static_cast<DType>(static_cast<int>(graph[node].number(0)));
    }
  }
  for (const int input : inputs) {
    int source = input;
    while (facts_of(graph[source].op).kind == OpKind::view) {
      source = graph[source].inputs[0];
    }
    const bool table = graph[nodes[0]].op == Op::take && input == inputs[0];
    if (graph[source].op != Op::literal) {
      record.reads.push_back(
          {table ? count_of(graph[nodes[0]].shape) : distinct_numbers(layouts.of(input)), math, 0});
    }
  }
  for (const int output : outputs) {
    if (output >= 0) {
      record.writes.push_back({count_of(graph[output].shape), DType::f32, 0});
    }
  }
  record.count_bytes();
  return record;
}

inline List<int> distinct_inputs(const List<int>& inputs) {
  List<int> out;
  for (const int input : inputs) {
    bool known = false;
    for (const int before : out) {
      known = known || before == input;
    }
    if (!known) {
      out.push_back(input);
    }
  }
  return out;
}

}  // namespace detail

// Every op of a graph as eager execution runs it: one by one, each operand read, each result
// written. Views cost nothing.
inline List<OpRecord> op_by_op(const Graph& graph) {
  const detail::ValueLayouts layouts(graph);
  List<OpRecord> records;
  for (int i = 0; i < graph.size(); ++i) {
    const GraphNode& node = graph[i];
    if (detail::is_free(node) && !layouts.is_copy(i)) {
      continue;
    }
    List<int> outputs;
    if (facts_of(node.op).parts == 1) {
      outputs.push_back(i);
    }
    for (int j = i + 1; j < graph.size() && facts_of(node.op).parts > 1; ++j) {
      if (graph[j].op == Op::part && graph[j].inputs[0] == i) {
        outputs.push_back(j);
      }
    }
    records.push_back(
        detail::record_of(graph, layouts, detail::distinct_inputs(node.inputs), outputs, {i}));
    records.back().name = name_of(node.op);
  }
  return records;
}

}  // namespace tinyscale
