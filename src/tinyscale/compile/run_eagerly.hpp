#pragma once
// A graph run op by op as eager execution runs it: each result in memory of its own, let go behind
// its last use. What a Profile counts meanwhile is what the eager ops count of themselves.

#include <algorithm>  // max
#include <cstddef>    // size_t
#include <vector>     // vector

#include "tinyscale/compile/buffer_plan.hpp"
#include "tinyscale/compile/differentiate.hpp"
#include "tinyscale/compile/graph_cost.hpp"
#include "tinyscale/compile/run_kernel.hpp"

namespace tinyscale {
namespace detail {

// The ops whose eager function counts itself and has no second result.
inline bool counts_itself(Op op) {
  switch (op) {
    case Op::softmax:
    case Op::log_softmax:
    case Op::cross_entropy:
    case Op::linear_cross_entropy:
    case Op::dropout:
    case Op::square:
    case Op::relu:
    case Op::gelu:
    case Op::gelu_tanh:
    case Op::silu:
    case Op::sigmoid: return true;
    default: return is_primitive(op);
  }
}

// The results of a composite op by its kernel.
inline Parts run_composite(const Graph& graph, const GraphNode& node, const Parts& operands) {
  const Uncounted scope;
  Tensor dense[8];
  const Tensor* in[8] = {};
  Tensor* out[4] = {};
  for (std::size_t i = 0; i < operands.size(); ++i) {
    dense[i] = operands[i].is_contiguous() ? operands[i] : operands[i].copied();
    in[i] = &dense[i];
  }
  const auto n = static_cast<std::size_t>(facts_of(node.op).parts);
  Parts results(n);
  for (std::size_t i = 0; i < n; ++i) {
    results[i] = Tensor(n == 1 ? node.shape : part_shape(graph, node, static_cast<int>(i)));
    out[i] = &results[i];
  }
  NodeKernel{graph, node, in, out}();
  return results;
}

// Where each node's value is let go: behind the last node that reads it or a view of it; the end
// for what the graph returns.
inline List<int> last_uses(const Graph& graph, const ValueLayouts& layouts) {
  List<int> last(graph.nodes.size());
  const auto read = [&](int node, int by) {
    for (int at = node;; at = graph[at].inputs[0]) {
      last[static_cast<std::size_t>(at)] = std::max(last[static_cast<std::size_t>(at)], by);
      const bool view = facts_of(graph[at].op).kind == OpKind::view && !layouts.is_copy(at);
      if (!view && graph[at].op != Op::part) {
        return;
      }
    }
  };
  for (int i = 0; i < graph.size(); ++i) {
    last[static_cast<std::size_t>(i)] = i;
    for (const int input : graph[i].inputs) {
      read(input, i);
    }
  }
  for (const int output : graph.outputs) {
    if (output >= 0) {
      read(output, graph.size());
    }
  }
  return last;
}

// The memory that a run takes, value by value; what it returns lives to the end.
inline List<BufferLife> eager_buffers(const Graph& graph) {
  const ValueLayouts layouts(graph);
  const List<int> last = last_uses(graph, layouts);
  List<BufferLife> buffers;
  for (int i = 0; i < graph.size(); ++i) {
    const GraphNode& node = graph[i];
    const int until = last[static_cast<std::size_t>(i)];
    const auto parts = facts_of(node.op).parts;
    for (int p = 0; p < parts && parts > 1; ++p) {
      buffers.push_back(BufferLife{i, i, until, part_shape(graph, node, p).count(), 0});
    }
    if (parts == 1 && (!is_free(node) || layouts.is_copy(i) || node.op == Op::literal)) {
      buffers.push_back(BufferLife{i, i, until, node.shape.count(), 0});
    }
  }
  return buffers;
}

}  // namespace detail

// The graph's outputs for these inputs and constants. A value of several results is let go as one.
inline std::vector<Tensor> run_eagerly(const Graph& graph, const std::vector<Tensor>& inputs,
                                       const List<Tensor>& constants) {
  const NoGrad no_graph;
  const detail::RecorderScope eager(nullptr);
  const detail::ValueLayouts layouts(graph);
  const List<int> last = detail::last_uses(graph, layouts);
  List<detail::Parts> values(graph.nodes.size());
  List<OpRecord> records = profiling() ? op_by_op(graph) : List<OpRecord>();
  std::size_t next = 0;
  List<List<int>> ends(graph.nodes.size() + 1);
  for (int i = 0; i < graph.size(); ++i) {
    ends[static_cast<std::size_t>(last[static_cast<std::size_t>(i)])].push_back(i);
  }
  for (int i = 0; i < graph.size(); ++i) {
    const GraphNode& node = graph[i];
    detail::Parts& value = values[static_cast<std::size_t>(i)];
    const detail::OpScope scope;
    const std::size_t counted = profiling() ? context().profile->totals().ops : 0;
    if (node.op == Op::input) {
      value = {inputs[static_cast<std::size_t>(node.number(0))].detach()};
    } else if (node.op == Op::constant) {
      value = {constants[static_cast<std::size_t>(node.number(0))].detach()};
    } else if (node.op == Op::part) {
      value = {values[static_cast<std::size_t>(node.inputs[0])]
                     [static_cast<std::size_t>(node.number(0))]};
    } else {
      detail::Parts in;
      for (const int input : node.inputs) {
        in.push_back(values[static_cast<std::size_t>(input)][0]);
      }
      value = node.op == Op::square            ? detail::Parts{square(in[0])}
              : detail::counts_itself(node.op) ? detail::evaluate_node(node, in)
                                               : detail::run_composite(graph, node, in);
    }
    if (profiling() && (!detail::is_free(node) || layouts.is_copy(i))) {
      OpRecord& record = records[next++];
      if (context().profile->totals().ops == counted) {
        scope.done(record);
      }
    }
    for (const int done : ends[static_cast<std::size_t>(i)]) {
      values[static_cast<std::size_t>(done)].clear();
    }
  }
  std::vector<Tensor> outputs;
  for (const int output : graph.outputs) {
    outputs.push_back(output < 0 ? Tensor() : values[static_cast<std::size_t>(output)][0]);
  }
  return outputs;
}

}  // namespace tinyscale
