#pragma once
// The op set as a table: each primitive, and of what primitives each composite op is made, found by
// taking it apart on a small sample.

#include <cstddef>  // size_t
#include <string>   // names
#include <vector>   // shapes

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/compile/simplify.hpp"
#include "tinyscale/compile/take_apart.hpp"

namespace tinyscale {

inline const char* name_of(OpKind kind) {
  switch (kind) {
    case OpKind::source: return "source";
    case OpKind::elementwise: return "elementwise";
    case OpKind::reduction: return "reduction";
    case OpKind::product: return "product";
    case OpKind::view: return "view";
    case OpKind::copy: return "copy";
    case OpKind::index: return "by number";
    case OpKind::collective: return "collective";
    case OpKind::structure: return "structure";
    case OpKind::row: return "row";
    default: return "whole";
  }
}

namespace detail {

// Operands of a composite op: [2, 4, 8] for what works on tokens, [4, 8] else.
struct SampleCall {
  List<Shape> inputs;
  List<double> numbers;
};
inline SampleCall sample_call(Op op) {
  const Shape x = {4, 8}, w = {8}, rows = {4}, one, tokens = {2, 4, 8}, table = {16, 8};
  switch (op) {
    case Op::layer_norm: return {{x, w, w}, {1e-5}};
    case Op::layer_norm_backward: return {{x, w, rows, rows, x}, {}};
    case Op::rms_norm: return {{x, w}, {1e-5}};
    case Op::rms_norm_backward: return {{x, w, rows, x}, {}};
    case Op::cross_entropy: return {{x, rows}, {}};
    case Op::cross_entropy_backward: return {{x, rows, one}, {}};
    case Op::dropout: return {{x}, {0.1, 1, 0, 1, 32, 0, 32, 0, 0}};
    case Op::rope: return {{tokens}, {4, 0, 0, 0, 1, 4, 10000}};
    case Op::attention: return {{tokens, tokens, tokens}, {2, 2, 1, 0}};
    case Op::attention_backward:
      return {{tokens, tokens, tokens, tokens, Shape{2, 2, 4}, tokens}, {2, 2, 1, 0}};
    case Op::linear_cross_entropy:
    case Op::linear_cross_entropy_all: return {{x, table, rows}, {}};
    case Op::adamw: return {{x, x, x, x, Shape{6}, one}, {}};
    default: return {{x}, {}};
  }
}

// One call of an op on small operands.
inline Graph sample_graph(Op op) {
  const SampleCall call = sample_call(op);
  Graph graph;
  GraphNode node;
  node.op = op;
  node.numbers = call.numbers;
  for (const Shape& shape : call.inputs) {
    GraphNode input;
    input.op = Op::input;
    input.shape = shape;
    input.numbers = {static_cast<double>(graph.inputs.size())};
    graph.inputs.push_back(graph.size());
    node.inputs.push_back(graph.size());
    graph.nodes.push_back(input);
  }
  node.shape = op == Op::cross_entropy || op == Op::linear_cross_entropy ? Shape{} : call.inputs[0];
  const int whole = graph.size();
  graph.nodes.push_back(node);
  const int parts = facts_of(op).parts;
  for (int p = 0; p < parts && parts > 1; ++p) {
    GraphNode part;
    part.op = Op::part;
    part.shape = part_shape(graph, node, p);
    part.inputs = {whole};
    part.numbers = {static_cast<double>(p)};
    graph.outputs.push_back(graph.size());
    graph.nodes.push_back(part);
  }
  if (parts == 1) {
    graph.outputs.push_back(whole);
  }
  return graph;
}

}  // namespace detail

// The primitives that a composite op is made of, as a graph on small operands.
inline Graph made_of(Op op) {
  if (is_primitive(op)) {
    detail::fail({"made_of: ", name_of(op), " is a primitive; a composite op is right"});
  }
  Graph out = take_apart(detail::sample_graph(op));
  detail::sort_needed(out);
  return out;
}

// A row an op. Of a composite: how many primitives it is made of (operands and literals are none),
// and which.
inline Table op_table() {
  Table out;
  int primitives = 0;
  for (const OpFacts& facts : op_set()) {
    primitives += facts.primitive ? 1 : 0;
  }
  out.title = detail::cat({"op set: ", primitives, " primitives, ",
                           op_set().size() - static_cast<std::size_t>(primitives), " composites"});
  out.columns = {"op", "kind", "results", "primitives", "made of"};
  for (std::size_t i = 0; i < op_set().size(); ++i) {
    const OpFacts& facts = op_set()[i];
    std::string made;
    int count = 0;
    if (!facts.primitive) {
      const Graph graph = made_of(static_cast<Op>(i));
      List<int> of_each(op_set().size());
      for (const GraphNode& node : graph.nodes) {
        const bool source =
            node.op == Op::input || node.op == Op::constant || node.op == Op::literal;
        of_each[static_cast<std::size_t>(node.op)] += source ? 0 : 1;
        count += source ? 0 : 1;
      }
      for (std::size_t k = 0; k < of_each.size(); ++k) {
        if (of_each[k] > 0) {
          made += (made.empty() ? "" : ", ") + std::string(op_set()[k].name) +
                  (of_each[k] > 1 ? detail::cat({" x", of_each[k]}) : "");
        }
      }
    }
    out.add({facts.name, name_of(facts.kind), detail::cat({facts.parts}),
             facts.primitive ? "1" : detail::cat({count}), made});
  }
  return out;
}

}  // namespace tinyscale
