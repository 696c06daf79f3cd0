#pragma once
// A node of a graph through the eager ops: what eager execution of the same ops costs, and the
// reference for everything that is done to a graph.

#include <cstddef>  // size_t
#include <vector>   // vector

#include "tinyscale/compile/decompose.hpp"
#include "tinyscale/compile/op_graph.hpp"
#include "tinyscale/tensor/backward.hpp"
#include "tinyscale/tensor/matmul_format.hpp"

namespace tinyscale {
namespace detail {

inline Tensor round_numbers(const Tensor& x, DType format) {
  Tensor y = x.copied();
  for (std::int64_t i = 0; i < y.count(); ++i) {
    y.data()[i] = round_to(y.data()[i], format);
  }
  return y;
}

inline List<int> as_ints(const List<double>& numbers) {
  List<int> out;
  for (const double number : numbers) {
    out.push_back(static_cast<int>(number));
  }
  return out;
}

inline Tensor evaluate_primitive(const GraphNode& node, const Parts& in) {
  const auto first = [&node] { return static_cast<int>(node.numbers[0]); };
  switch (node.op) {
    case Op::literal: return full(node.shape, static_cast<float>(node.numbers[0]));
    case Op::iota: return arange(node.shape[0]);
    case Op::uniform: {
      Tensor chance(node.shape);
      draw_places(chance.data(), seed_from(node.numbers[1], node.numbers[2]),
                  drop_places(node.numbers));
      return chance;
    }
    case Op::add: return in[0] + in[1];
    case Op::sub: return in[0] - in[1];
    case Op::mul: return in[0] * in[1];
    case Op::div: return in[0] / in[1];
    case Op::maximum: return maximum(in[0], in[1]);
    case Op::less: return less(in[0], in[1]);
    case Op::equal: return equal(in[0], in[1]);
    case Op::where: return where(in[0], in[1], in[2]);
    case Op::exp: return exp(in[0]);
    case Op::log: return log(in[0]);
    case Op::sqrt: return sqrt(in[0]);
    case Op::tanh: return tanh(in[0]);
    case Op::erf: return erf(in[0]);
    case Op::pow: return pow(in[0], static_cast<float>(node.numbers[0]));
    case Op::round: return round_numbers(in[0], static_cast<DType>(first()));
    case Op::sum: return sum(in[0], as_ints(node.numbers), KeepDim::yes);
    case Op::max: return max(in[0], first(), KeepDim::yes);
    case Op::argmax: return argmax(in[0], first(), KeepDim::yes);
    case Op::matmul: {
      const MatmulFormat format(static_cast<DType>(first()), context().rounding);
      return matmul_of_gradient(in[0], in[1], gradient_operand(node));
    }
    case Op::reshape: return reshape(in[0], node.shape);
    case Op::permute: return permute(in[0], as_ints(node.numbers));
    case Op::slice: return slice(in[0], first(), node.whole(1), node.whole(2), node.whole(3));
    case Op::broadcast_to: return broadcast_to(in[0], node.shape);
    case Op::concat: return concat(in, first());
    case Op::pad: return pad(in[0], first(), node.whole(1), node.whole(2), node.whole(3));
    case Op::take: return embedding(in[0], in[1]);
    case Op::scatter_add: {
      Tensor y = in.size() > 2 ? in[2].copied() : zeros(node.shape);
      const std::vector<std::int32_t> ids = ids_of("scatter_add", in[0]);
      const Tensor rows = contiguous(in[1]);
      const std::int64_t width = rows.dim(-1);
      for (std::size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] < 0 || ids[i] >= node.shape[0]) {
          fail({"scatter_add: id ", ids[i], " at position ", i, " is outside ", node.shape[0],
                " rows"});
        }
        float* const to = y.data() + ids[i] * width;
        kernels::add(width, to, rows.data() + static_cast<std::int64_t>(i) * width, to);
      }
      return y;
    }
    default: fail({"compile: ", name_of(node.op), " of a graph is no op that one machine runs"});
  }
}

// Results of a composite op, by the eager op where there is one.
inline Parts evaluate_composite(const GraphNode& node, const Parts& in) {
  const MatmulFormat whole{ProductFormat()};  // as where it was recorded
  switch (node.op) {
    case Op::relu: return {relu(in[0])};
    case Op::gelu: return {gelu(in[0])};
    case Op::gelu_tanh: return {gelu_tanh(in[0])};
    case Op::silu: return {silu(in[0])};
    case Op::sigmoid: return {sigmoid(in[0])};
    case Op::softmax: return {softmax(in[0])};
    case Op::log_softmax: return {log_softmax(in[0])};
    case Op::cross_entropy: return {cross_entropy(in[0], in[1])};
    case Op::linear_cross_entropy: return {linear_cross_entropy(in[0], in[1], in[2])};
    case Op::dropout:
      return {dropout_at(in[0], static_cast<float>(node.numbers[0]),
                         seed_from(node.numbers[1], node.numbers[2]), drop_places(node.numbers))};
    default: return decompose(node.op, in, node.numbers);
  }
}

inline Parts evaluate_node(const GraphNode& node, const Parts& in) {
  const RecorderScope eager(nullptr);
  const NoGrad no_graph;
  return is_primitive(node.op) ? Parts{evaluate_primitive(node, in)} : evaluate_composite(node, in);
}

}  // namespace detail
}  // namespace tinyscale
