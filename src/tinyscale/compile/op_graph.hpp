#pragma once
// A captured graph: ops in an order in which each stands behind its operands. Nothing but shapes;
// the numbers of captured tensors are those that the tensors hold when the graph is run.

#include <cstddef>  // size_t
#include <cstdint>  // int64_t
#include <ostream>  // operator<<
#include <string>   // names

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/tensor/op_set.hpp"
#include "tinyscale/tensor/tensor.hpp"

namespace tinyscale {

struct GraphNode {
  Op op = Op::literal;
  Shape shape;
  List<int> inputs;       // nodes before this one
  List<double> numbers;   // op_set() says what they are
  unsigned grads = 0;     // bit i: a gradient flows to input i
  bool backward = false;  // made by a backward pass

  double number(std::size_t i) const { return numbers[i]; }
  std::int64_t whole(std::size_t i) const { return static_cast<std::int64_t>(numbers[i]); }
};

struct Graph {
  List<GraphNode> nodes;
  List<Tensor> constants;  // tensors that the function used without being given them
  List<int> inputs;        // nodes, in the order of the function's arguments
  List<int> outputs;       // nodes

  const GraphNode& operator[](int node) const { return nodes[static_cast<std::size_t>(node)]; }
  GraphNode& operator[](int node) { return nodes[static_cast<std::size_t>(node)]; }
  int size() const { return static_cast<int>(nodes.size()); }
  const GraphNode& input_of(const GraphNode& node, std::size_t i) const {
    return (*this)[node.inputs[i]];
  }

  // A row a node: number, op, operands, numbers, shape.
  Table table() const;
  std::string text() const { return table().text(); }
};

namespace detail {

// Of a product: which operand is rounded as a gradient.
inline Dy gradient_operand(const GraphNode& node) {
  return node.numbers.size() > 1 ? static_cast<Dy>(static_cast<int>(node.number(1))) : Dy::none;
}

// A graph of gradients whose products with one are in another format.
inline Graph in_format(Graph graph, DType format) {
  for (GraphNode& node : graph.nodes) {
    if (node.op == Op::matmul && gradient_operand(node) != Dy::none) {
      node.numbers[0] = static_cast<double>(static_cast<int>(format));
    }
  }
  return graph;
}

// How many nodes use each node; an output counts as a use.
inline List<int> use_counts(const Graph& graph) {
  List<int> uses(graph.nodes.size());
  for (const GraphNode& node : graph.nodes) {
    for (const int input : node.inputs) {
      ++uses[static_cast<std::size_t>(input)];
    }
  }
  for (const int output : graph.outputs) {
    if (output >= 0) {
      ++uses[static_cast<std::size_t>(output)];
    }
  }
  return uses;
}

// Whether the node moves no numbers: a source, a view, a choice of one result.
inline bool is_free(const GraphNode& node) {
  const OpKind kind = facts_of(node.op).kind;
  return node.op == Op::input || node.op == Op::constant || node.op == Op::literal ||
         kind == OpKind::view || kind == OpKind::structure;
}

inline std::string numbers_text(const GraphNode& node) {
  std::string out;
  for (std::size_t i = 0; i < node.numbers.size() && i < 8; ++i) {
    out += (i > 0 ? ", " : "") + printed('g', 6, node.numbers[i]);
  }
  return out + (node.numbers.size() > 8 ? ", .." : "");
}

}  // namespace detail

inline Table Graph::table() const {
  Table out;
  out.title = detail::cat({"graph: ", nodes.size(), " nodes, ", inputs.size(), " inputs, ",
                           constants.size(), " constants"});
  out.columns = {"node", "op", "of", "numbers", "shape", "returned"};
  for (int i = 0; i < size(); ++i) {
    const GraphNode& node = (*this)[i];
    std::string of;
    for (const int input : node.inputs) {
      of += (of.empty() ? "%" : ", %") + std::to_string(input);
    }
    std::string returned;
    for (std::size_t o = 0; o < outputs.size(); ++o) {
      returned += outputs[o] == i ? (returned.empty() ? "" : ", ") + std::to_string(o) : "";
    }
    out.add({detail::cat({"%", i}), name_of(node.op), of, detail::numbers_text(node),
             node.shape.text(), returned});
  }
  return out;
}

inline std::ostream& operator<<(std::ostream& out, const Graph& graph) {
  return out << graph.text();
}

}  // namespace tinyscale
