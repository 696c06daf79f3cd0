#pragma once
// Batching rules: each op on operands of which some have a batch as dimension 0 more, as ops on all
// of it at once. Results have the batch as dimension 0 too.

#include <cstddef>  // size_t
#include <cstdint>  // int64_t

#include "tinyscale/compile/trace.hpp"

namespace tinyscale {
namespace detail {

inline constexpr std::int64_t most_ids = 16777216;  // whole numbers that a float holds: 2^24

// One op with its operands.
struct BatchRule {
  const Graph& graph;
  const GraphNode& node;
  const Parts& in;
  const List<char>& batched;  // of each node
  std::int64_t size;          // of the batch
  unsigned wanted;            // bits of the results that are needed

  Parts operator()() const {
    switch (node.op) {
      case Op::sum: return {moved(node.numbers.size())};
      case Op::max:
      case Op::argmax:
      case Op::slice:
      case Op::pad: return {moved(1)};
      case Op::softmax:
      case Op::log_softmax: return {run(node.op, over(node.shape), in, node.numbers)};
      case Op::matmul: return {product()};
      case Op::reshape: return {reshape(in[0], over(node.shape))};
      case Op::permute: return {turned()};
      case Op::broadcast_to: {
        const Shape shape = over(node.shape);
        return {run(node.op, shape, {aligned(0, node.shape.size())}, as_numbers(shape))};
      }
      case Op::concat: {
        Parts all;
        for (std::size_t i = 0; i < in.size(); ++i) {
          all.push_back(spread(i));
        }
        return {run(node.op, over(node.shape), all, {node.numbers[0] + 1})};
      }
      case Op::take: return {take()};
      case Op::scatter_add: return {scatter()};
      case Op::layer_norm:
      case Op::rms_norm:
      case Op::rope:
      case Op::attention:
      case Op::attention_backward: return folded();
      default: return {elements()};
    }
  }

 private:
  bool has(std::size_t i) const { return batched[static_cast<std::size_t>(node.inputs[i])] != 0; }
  const Shape& shape_of(std::size_t i) const { return graph.input_of(node, i).shape; }

  // A shape behind the batch.
  Shape over(const Shape& shape) const {
    if (shape.size() == Shape::max_dims) {
      fail({"vmap: ", name_of(node.op), " of the function has a ", shape, " tensor; at most ",
            Shape::max_dims - 1, " dims leave one for the batch"});
    }
    Shape all = {size};
    for (const std::int64_t n : shape) {
      all.push_back(n);
    }
    return all;
  }
  // Operand i where its result has `dims` dimensions: ones behind the batch.
  Tensor aligned(std::size_t i, int dims) const {
    const Shape& own = shape_of(i);
    if (!has(i) || own.size() == dims) {
      return in[i];
    }
    Shape all;
    for (int d = own.size(); d < dims; ++d) {
      all.push_back(1);
    }
    for (const std::int64_t n : own) {
      all.push_back(n);
    }
    return reshape(in[i], over(all));
  }
  // Operand i with a batch, where it has none the same for each.
  Tensor spread(std::size_t i) const {
    return has(i) ? in[i] : broadcast_to(in[i], over(shape_of(i)));
  }
  static Tensor run(Op op, const Shape& shape, const Parts& operands, const List<double>& numbers) {
    GraphNode call;
    call.op = op;
    call.shape = shape;
    call.numbers = numbers;
    return apply_op(call, operands, 1, {shape})[0];
  }

  Tensor elements() const {
    if (facts_of(node.op).kind != OpKind::elementwise) {
      fail({"vmap: ", name_of(node.op), " of the function has no batching rule: it needs what ",
            "other devices hold; map over the batch inside of each device"});
    }
    Parts all;
    for (std::size_t i = 0; i < in.size(); ++i) {
      all.push_back(aligned(i, node.shape.size()));
    }
    return run(node.op, over(node.shape), all, node.numbers);
  }
  // An op whose first numbers are dimensions.
  Tensor moved(std::size_t dims) const {
    List<double> numbers = node.numbers;
    for (std::size_t i = 0; i < dims; ++i) {
      numbers[i] += 1;
    }
    return run(node.op, over(node.shape), in, numbers);
  }
  Tensor turned() const {
    List<int> order = {0};
    for (const double dim : node.numbers) {
      order.push_back(static_cast<int>(dim) + 1);
    }
    return permute(in[0], order);
  }

  // x [.., K] w [K, N] of a batch of w's is a product for each; else the batch is one more of the
  // leading dimensions.
  Tensor product() const {
    const Shape &x = shape_of(0), &w = shape_of(1);
    if (w.size() > 2) {
      return run(Op::matmul, over(node.shape),
                 {aligned(0, node.shape.size()), aligned(1, node.shape.size())}, node.numbers);
    }
    if (!has(1)) {
      return run(Op::matmul, over(node.shape), in, node.numbers);
    }
    std::int64_t rows = 1;
    for (int d = 0; d + 1 < x.size(); ++d) {
      rows *= x[d];
    }
    const Tensor flat = reshape(in[0], has(0) ? Shape{size, rows, x[-1]} : Shape{rows, x[-1]});
    const Tensor y = run(Op::matmul, {size, rows, w[1]}, {flat, in[1]}, node.numbers);
    return reshape(y, over(node.shape));
  }

  // Numbers of rows in `each` rows of every example, as those in the rows of all: [B, ids]. One
  // outside stays so.
  Tensor numbers_of_all(std::size_t i, std::int64_t each) const {
    if (size * each > most_ids) {
      fail({"vmap: ", name_of(node.op), " of the function goes by number over ", size, " x ", each,
            " rows; at most 2^24 are right"});
    }
    const Tensor zero = full(Shape{}, 0.0f), last = full(Shape{}, static_cast<float>(each));
    const Tensor ids = reshape(in[i], {size, shape_of(i).count()});
    const Tensor outside = less(ids, zero) + (1.0f - less(ids, last));
    const Tensor first = reshape(arange(size), {size, 1}) * static_cast<float>(each);
    return where(outside, full(Shape{}, -1.0f), ids + first);
  }

  Tensor take() const {
    const Shape &table = shape_of(0), &ids = shape_of(1);
    const std::int64_t rows = table[0], width = table[1];
    if (!has(0)) {
      return run(Op::take, over(node.shape), in, {});
    }
    if (has(1)) {
      const Tensor flat = reshape(in[0], {size * rows, width});
      const Tensor y =
          run(Op::take, {size, ids.count(), width}, {flat, numbers_of_all(1, rows)}, {});
      return reshape(y, over(node.shape));
    }
    const Tensor wide = reshape(permute(in[0], {1, 0, 2}), {rows, size * width});
    const Tensor flat = reshape(in[1], {ids.count()});
    const Tensor y = run(Op::take, {ids.count(), size * width}, {wide, flat}, {});
    return reshape(permute(reshape(y, {ids.count(), size, width}), {1, 0, 2}), over(node.shape));
  }
  Tensor scatter() const {
    const std::int64_t rows = node.shape[0], width = node.shape[1], n = shape_of(0).count();
    if (!has(0)) {
      const Tensor from = permute(reshape(in[1], {size, n, width}), {1, 0, 2});
      const Tensor y = run(Op::scatter_add, {rows, size * width},
                           {reshape(in[0], {n}), reshape(from, {n, size * width})}, node.numbers);
      return permute(reshape(y, {rows, size, width}), {1, 0, 2});
    }
    const Tensor ids = reshape(numbers_of_all(0, rows), {size * n});
    const Tensor from = reshape(spread(1), {size * n, width});
    const Tensor y =
        run(Op::scatter_add, {size * rows, width}, {ids, from}, {static_cast<double>(size * rows)});
    return reshape(y, over(node.shape));
  }

  // The batch as part of the first dimension, or of the rows of a norm.
  Parts folded() const {
    const bool norm = facts_of(node.op).kind == OpKind::row;
    const auto fold = [&](const Shape& shape, bool flat) {
      Shape all = flat ? Shape{size * (shape.count() / shape[-1]), shape[-1]} : shape;
      if (!flat) {
        all.set(0, size * shape[0]);
      }
      return all;
    };
    Parts all = in;
    for (std::size_t i = 0; i < (norm ? 1 : in.size()); ++i) {
      all[i] = reshape(spread(i), fold(shape_of(i), norm));
    }
    GraphNode call = node;
    call.shape = fold(node.shape, norm);
    const List<Shape> shapes = part_shapes(graph, static_cast<int>(&node - graph.nodes.data()));
    List<Shape> of_all;
    for (std::size_t p = 0; p < shapes.size(); ++p) {
      of_all.push_back(fold(shapes[p], norm && p == 0));
    }
    Parts out = apply_op(call, all, wanted, of_all);
    for (std::size_t p = 0; p < out.size(); ++p) {
      out[p] = out[p].defined() ? reshape(out[p], over(shapes[p])) : out[p];
    }
    return out;
  }
};

// Whether each node depends on a batch, for a function whose input i has one where has[i].
inline List<char> batched_nodes(const Graph& graph, const List<char>& has) {
  List<char> batched(graph.nodes.size());
  for (std::size_t i = 0; i < batched.size(); ++i) {
    const GraphNode& node = graph.nodes[i];
    if (node.op == Op::input) {
      batched[i] = has[static_cast<std::size_t>(node.whole(0))];
    }
    for (const int input : node.inputs) {
      batched[i] = batched[i] != 0 || batched[static_cast<std::size_t>(input)] != 0 ? 1 : 0;
    }
  }
  return batched;
}

// Whether a composite op has a rule of its own, as every primitive has.
inline bool has_batch_rule(const GraphNode& node, const List<char>& batched) {
  switch (node.op) {
    case Op::softmax:
    case Op::log_softmax:
    case Op::rope:
    case Op::attention:
    case Op::attention_backward: return true;
    case Op::layer_norm:
    case Op::rms_norm:
      for (std::size_t i = 1; i < node.inputs.size(); ++i) {
        if (batched[static_cast<std::size_t>(node.inputs[i])] != 0) {
          return false;
        }
      }
      return true;
    default: return is_primitive(node.op) || facts_of(node.op).kind == OpKind::elementwise;
  }
}

}  // namespace detail
}  // namespace tinyscale
