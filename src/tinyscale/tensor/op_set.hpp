#pragma once
// The op set: what a captured graph is made of. Fewer than fifty primitives, into which every other
// op can be taken apart (compile/decompose.hpp), and the composite ops that have a kernel of their
// own. The numbers of an op are what it was called with beside its tensors.

#include <cstddef>  // size_t

#include "tinyscale/base/list.hpp"

namespace tinyscale {

enum class Op : unsigned char {
  // sources
  input,
  constant,
  literal,
  iota,
  uniform,
  // elementwise
  add,
  sub,
  mul,
  div,
  maximum,
  less,
  equal,
  where,
  exp,
  log,
  sqrt,
  tanh,
  erf,
  pow,
  round,
  // reductions
  sum,
  max,
  argmax,
  // products
  matmul,
  // views
  reshape,
  permute,
  slice,
  broadcast_to,
  // copies
  concat,
  pad,
  // by number
  take,
  scatter_add,
  // between devices
  all_gather,
  reduce_scatter,
  all_reduce,
  all_to_all,
  shard,
  // the graph's own
  part,
  // composite: functions of one element
  square,
  relu,
  gelu,
  gelu_tanh,
  silu,
  sigmoid,
  gelu_slope,
  gelu_tanh_slope,
  silu_slope,
  // composite: along the last dimension
  softmax,
  log_softmax,
  layer_norm,
  layer_norm_backward,
  rms_norm,
  rms_norm_backward,
  cross_entropy,
  cross_entropy_backward,
  // composite: others
  dropout,
  rope,
  attention,
  attention_backward,
  linear_cross_entropy,
  linear_cross_entropy_all,
  adamw,
};

enum class OpKind : unsigned char {
  source,
  elementwise,
  reduction,
  product,
  view,
  copy,
  index,
  collective,
  structure,
  row,    // composite along the last dimension
  whole,  // composite that no loop over elements or rows alone computes
};

// Which operand of a product is a gradient.
enum class Dy { none, first, second };

// What is known of an op without its operands.
struct OpFacts {
  const char* name;
  OpKind kind;
  bool primitive;
  int parts;            // results; more than 1: `part` takes one
  const char* numbers;  // what its numbers are
};

// clang-format off
inline const List<OpFacts>& op_set() {
  static const List<OpFacts> ops = {
      {"input", OpKind::source, true, 1, "number"},
      {"constant", OpKind::source, true, 1, "number"},
      {"literal", OpKind::source, true, 1, "value"},
      {"iota", OpKind::source, true, 1, "n"},
      {"uniform", OpKind::source, true, 1, "p (of no use), seed (low, high), places"},
      {"add", OpKind::elementwise, true, 1, ""},
      {"sub", OpKind::elementwise, true, 1, ""},
      {"mul", OpKind::elementwise, true, 1, ""},
      {"div", OpKind::elementwise, true, 1, ""},
      {"maximum", OpKind::elementwise, true, 1, ""},
      {"less", OpKind::elementwise, true, 1, ""},
      {"equal", OpKind::elementwise, true, 1, ""},
      {"where", OpKind::elementwise, true, 1, ""},
      {"exp", OpKind::elementwise, true, 1, ""},
      {"log", OpKind::elementwise, true, 1, ""},
      {"sqrt", OpKind::elementwise, true, 1, ""},
      {"tanh", OpKind::elementwise, true, 1, ""},
      {"erf", OpKind::elementwise, true, 1, ""},
      {"pow", OpKind::elementwise, true, 1, "exponent"},
      {"round", OpKind::elementwise, true, 1, "format"},
      {"sum", OpKind::reduction, true, 1, "dimensions, which stay with size 1"},
      {"max", OpKind::reduction, true, 1, "dimension, which stays with size 1"},
      {"argmax", OpKind::reduction, true, 1, "dimension, which stays with size 1"},
      {"matmul", OpKind::product, true, 1, "format, operand that is a gradient"},
      {"reshape", OpKind::view, true, 1, "shape"},
      {"permute", OpKind::view, true, 1, "order"},
      {"slice", OpKind::view, true, 1, "dimension, begin, end, step"},
      {"broadcast_to", OpKind::view, true, 1, "shape"},
      {"concat", OpKind::copy, true, 1, "dimension"},
      {"pad", OpKind::copy, true, 1, "dimension, begin, size, step"},
      {"take", OpKind::index, true, 1, ""},
      {"scatter_add", OpKind::index, true, 1, "rows"},
      {"all_gather", OpKind::collective, true, 1, "dimension, axes of the mesh"},
      {"reduce_scatter", OpKind::collective, true, 1, "dimension, axes of the mesh"},
      {"all_reduce", OpKind::collective, true, 1, "how, axes of the mesh"},
      {"all_to_all", OpKind::collective, true, 1, "split, concat, axes of the mesh"},
      {"shard", OpKind::collective, true, 1, "dimension, axes of the mesh"},
      {"part", OpKind::structure, true, 1, "number"},
      {"square", OpKind::elementwise, false, 1, ""},
      {"relu", OpKind::elementwise, false, 1, ""},
      {"gelu", OpKind::elementwise, false, 1, ""},
      {"gelu_tanh", OpKind::elementwise, false, 1, ""},
      {"silu", OpKind::elementwise, false, 1, ""},
      {"sigmoid", OpKind::elementwise, false, 1, ""},
      {"gelu_slope", OpKind::elementwise, false, 1, ""},
      {"gelu_tanh_slope", OpKind::elementwise, false, 1, ""},
      {"silu_slope", OpKind::elementwise, false, 1, ""},
      {"softmax", OpKind::row, false, 1, ""},
      {"log_softmax", OpKind::row, false, 1, ""},
      {"layer_norm", OpKind::row, false, 3, "epsilon"},
      {"layer_norm_backward", OpKind::row, false, 3, ""},
      {"rms_norm", OpKind::row, false, 2, "epsilon"},
      {"rms_norm_backward", OpKind::row, false, 2, ""},
      {"cross_entropy", OpKind::row, false, 1, ""},
      {"cross_entropy_backward", OpKind::row, false, 1, ""},
      {"dropout", OpKind::whole, false, 1, "p, seed (low, high), places"},
      {"rope", OpKind::whole, false, 1, "head size, pairs, turn, places, theta, factors"},
      {"attention", OpKind::whole, false, 2, "heads, kv heads, causal"},
      {"attention_backward", OpKind::whole, false, 3, "heads, kv heads, causal"},
      {"linear_cross_entropy", OpKind::whole, false, 1, ""},
      {"linear_cross_entropy_all", OpKind::whole, false, 3, ""},
      {"adamw", OpKind::whole, false, 3, ""},
  };
  return ops;
}
// clang-format on

inline const OpFacts& facts_of(Op op) { return op_set()[static_cast<std::size_t>(op)]; }
inline const char* name_of(Op op) { return facts_of(op).name; }
inline bool is_primitive(Op op) { return facts_of(op).primitive; }

}  // namespace tinyscale
