#pragma once
// Gradients as more of the same graph: for each op what it hands back to its operands, written in
// ops, so that backward passes are fused, planned and differentiated again like anything else.

#include <cstdint>  // int64_t

#include "tinyscale/compile/decompose.hpp"
#include "tinyscale/compile/graph_writer.hpp"
#include "tinyscale/tensor/matmul_format.hpp"

namespace tinyscale {
namespace detail {

// dy summed over the dimensions in which an operand was repeated.
inline Tensor sum_like(const Tensor& dy, const Shape& shape) {
  if (dy.shape() == shape) {
    return dy;
  }
  List<int> dims;
  const int ahead = dy.dims() - shape.size();
  for (int i = 0; i < dy.dims(); ++i) {
    if (i < ahead || (shape[i - ahead] == 1 && dy.dim(i) != 1)) {
      dims.push_back(i);
    }
  }
  return reshape(dims.empty() ? dy : sum(dy, dims, KeepDim::yes), shape);
}

// What an op's gradient needs: its operands, its results, dy of each result (or empty ones).
struct Differential {
  const GraphNode& node;
  Parts in, out, dy;

  Parts operator()() const {
    const Tensor& d = dy[0];
    switch (node.op) {
      case Op::add: return {d, d};
      case Op::sub: return {d, needs(1) ? -d : Tensor()};
      case Op::mul: return {needs(0) ? d * in[1] : Tensor(), needs(1) ? d * in[0] : Tensor()};
      case Op::div: {
        const Tensor da = d / in[1];
        return {da, needs(1) ? -(da * out[0]) : Tensor()};
      }
      case Op::maximum: {  // of equal ones b; a NaN is the larger
        const Tensor a = less(in[1], in[0]) + (1.0f - equal(in[0], in[0]));
        return {where(a, d, zero()), where(a, zero(), d)};
      }
      case Op::where: return {Tensor(), where(in[0], d, zero()), where(in[0], zero(), d)};
      case Op::exp: return {d * out[0]};
      case Op::log: return {d / in[0]};
      case Op::sqrt: return {0.5f * (d / out[0])};
      case Op::tanh: return {d * (1.0f - out[0] * out[0])};
      case Op::erf: return {d * (1.12837916709551257f * exp(-(in[0] * in[0])))};
      case Op::sigmoid: return {d * (out[0] * (1.0f - out[0]))};
      case Op::pow: {
        const auto power = static_cast<float>(node.numbers[0]);
        if (!(power < 0 || power > 0)) {  // a constant, also where x is 0
          return {full(in[0].shape(), 0.0f)};
        }
        return {d * (pow(in[0], power - 1.0f) * power)};
      }
      case Op::square: return {2.0f * (d * in[0])};
      case Op::relu: return {where(less(zero(), in[0]), d, zero())};
      case Op::gelu: return {d * record(Op::gelu_slope, {&in[0]}, in[0].shape())};
      case Op::gelu_tanh: return {d * record(Op::gelu_tanh_slope, {&in[0]}, in[0].shape())};
      case Op::silu: return {d * record(Op::silu_slope, {&in[0]}, in[0].shape())};
      case Op::sum: return {broadcast_to(d, in[0].shape())};
      case Op::max: {
        const auto dim = static_cast<int>(node.numbers[0]);
        Shape along;
        for (int i = 0; i < in[0].dims(); ++i) {
          along.push_back(i == dim ? in[0].dim(dim) : 1);
        }
        const Tensor places = reshape(arange(in[0].dim(dim)), along);
        return {where(equal(places, argmax(in[0], dim, KeepDim::yes)), d, zero())};
      }
      case Op::matmul: return product();
      case Op::reshape: return {reshape(d, in[0].shape())};
      case Op::permute: {
        List<int> back(node.numbers.size());
        for (std::size_t i = 0; i < node.numbers.size(); ++i) {
          back[static_cast<std::size_t>(node.numbers[i])] = static_cast<int>(i);
        }
        return {permute(d, back)};
      }
      case Op::slice: {
        const auto dim = static_cast<int>(node.numbers[0]);
        return {pad(d, dim, node.whole(1), in[0].dim(dim), node.whole(3))};
      }
      case Op::pad: {
        const std::int64_t n = in[0].dim(static_cast<int>(node.numbers[0]));
        const std::int64_t begin = node.whole(1), step = node.whole(3);
        return {slice(d, static_cast<int>(node.numbers[0]), begin,
                      n > 0 ? begin + (n - 1) * step + 1 : begin, step)};
      }
      case Op::broadcast_to: return {d};
      case Op::concat: return concat_parts();
      case Op::take: {
        const Tensor rows = reshape(d, {in[1].count(), in[0].dim(1)});
        const Tensor ids = reshape(in[1], {in[1].count()});
        return {record(Op::scatter_add, {&ids, &rows}, in[0].shape(),
                       {static_cast<double>(in[0].dim(0))})};
      }
      case Op::scatter_add: return {Tensor(), record(Op::take, {&d, &in[0]}, in[1].shape())};
      default: return composite(d);
    }
  }

 private:
  bool needs(std::size_t i) const { return flows_to(node.grads, i); }
  static Tensor zero() { return full(Shape{}, 0.0f); }

  Parts product() const {
    const Tensor &x = in[0], &w = in[1], &d = dy[0];
    if (w.dims() > 2) {
      return {needs(0) ? matmul_of_gradient(d, transpose(w, -1, -2), Dy::first) : Tensor(),
              needs(1) ? matmul_of_gradient(transpose(x, -1, -2), d, Dy::second) : Tensor()};
    }
    Parts out_parts(2);
    if (needs(0)) {
      out_parts[0] = matmul_of_gradient(d, transpose(w, 0, 1), Dy::first);
    }
    if (needs(1)) {
      std::int64_t rows = 1;
      for (int i = 0; i + 1 < x.dims(); ++i) {
        rows *= x.dim(i);
      }
      out_parts[1] = matmul_of_gradient(transpose(reshape(x, {rows, x.dim(-1)}), 0, 1),
                                        reshape(d, {rows, d.dim(-1)}), Dy::second);
    }
    return out_parts;
  }

  Parts concat_parts() const {
    const auto dim = static_cast<int>(node.numbers[0]);
    Parts parts;
    std::int64_t begin = 0;
    for (const Tensor& part : in) {
      parts.push_back(slice(dy[0], dim, begin, begin + part.dim(dim)));
      begin += part.dim(dim);
    }
    return parts;
  }

  Parts composite(const Tensor& d) const {
    switch (node.op) {
      case Op::softmax: return {out[0] * (d - sum(out[0] * d, -1, KeepDim::yes))};
      case Op::log_softmax: return {d - exp(out[0]) * sum(d, -1, KeepDim::yes)};
      case Op::layer_norm: {
        const Tensor all =
            record(Op::layer_norm_backward, {&in[0], &in[1], &out[1], &out[2], &d}, in[0].shape());
        return {part(all, 0, in[0]), part(all, 1, in[1]), part(all, 2, in[1])};
      }
      case Op::rms_norm: {
        const Tensor all =
            record(Op::rms_norm_backward, {&in[0], &in[1], &out[1], &d}, in[0].shape());
        return {part(all, 0, in[0]), part(all, 1, in[1])};
      }
      case Op::cross_entropy:
        return {record(Op::cross_entropy_backward, {&in[0], &in[1], &d}, in[0].shape()), Tensor()};
      case Op::linear_cross_entropy: {
        const Tensor all = record(Op::linear_cross_entropy_all, {&in[0], &in[1], &in[2]}, Shape{});
        return {part(all, 1, in[0]) * d, part(all, 2, in[1]) * d, Tensor()};
      }
      case Op::dropout: return {record(Op::dropout, {&d}, d.shape(), node.numbers)};
      case Op::rope: {
        List<double> turned = node.numbers;
        turned[2] = 1 - turned[2];
        return {record(Op::rope, {&d}, d.shape(), turned)};
      }
      case Op::attention: {
        const Tensor all =
            record(Op::attention_backward, {&in[0], &in[1], &in[2], &out[0], &out[1], &d},
                   in[0].shape(), node.numbers);
        return {part(all, 0, in[0]), part(all, 1, in[1]), part(all, 2, in[2])};
      }
      default:
        fail({"backward: ", name_of(node.op), " of a captured graph has no gradient of its own; ",
              "take it apart first (decompose), or compile without a second derivative"});
    }
  }
  static Tensor part(const Tensor& all, int number, const Tensor& like) {
    return thread_recorder()->part(all, number, like.shape());
  }
};

// Shapes of the results of an op of several.
inline Shape part_shape(const Graph& graph, const GraphNode& node, int number) {
  const auto rows = [&](const Shape& x) {
    return Shape{x.count() / std::max<std::int64_t>(x[-1], 1)};
  };
  const Shape& first = graph.input_of(node, 0).shape;
  switch (node.op) {
    case Op::layer_norm:
    case Op::rms_norm: return number == 0 ? first : rows(first);
    case Op::layer_norm_backward:
    case Op::rms_norm_backward: return number == 0 ? first : graph.input_of(node, 1).shape;
    case Op::attention: return number == 0 ? first : Shape{first[0], node.whole(0), first[1]};
    case Op::attention_backward:
      return graph.input_of(node, static_cast<std::size_t>(number)).shape;
    case Op::linear_cross_entropy_all:
      return number == 0 ? Shape{}
                         : graph.input_of(node, static_cast<std::size_t>(number - 1)).shape;
    default: return node.shape;
  }
}

// Gradients of sum(node dy) for pairs (node, dy), as nodes behind all others: for each node of the
// graph the one of its gradient, or -1. `again`: the new nodes say where gradients flow, too.
class Differentiation {
 public:
  explicit Differentiation(GraphWriter& writer, bool again = false)
      : writer_(writer), again_(again), end_(writer.graph.size()) {
    const auto n = static_cast<std::size_t>(end_);
    gradients_.resize(n);
    parts_.resize(n);
    for (int& gradient : gradients_) {
      gradient = -1;
    }
  }

  void start(int node, const Tensor& dy) { gather(node, dy); }

  void run() {
    const RecorderScope scope(&writer_);
    const bool before = writer_.in_backward;
    writer_.in_backward = true;
    hand_back_all();
    writer_.in_backward = before;
  }

  int gradient(int node) const { return node < end_ ? gradients_[at(node)] : -1; }

 private:
  void hand_back_all() {
    for (int i = end_ - 1; i >= 0; --i) {
      const GraphNode node = writer_.graph[i];  // a copy: the graph grows
      const bool several = facts_of(node.op).parts > 1;
      if (node.grads == 0 || (!several && gradients_[at(i)] < 0) ||
          (several && parts_[at(i)].empty())) {
        continue;
      }
      if (node.op == Op::part) {
        List<int>& parts = parts_[at(node.inputs[0])];
        const auto number = static_cast<std::size_t>(node.number(0));
        while (parts.size() <= number) {
          parts.push_back(-1);
        }
        parts[number] =
            parts[number] < 0 ? gradients_[at(i)] : sum_of(parts[number], gradients_[at(i)]);
        continue;
      }
      hand_back(i, node);
    }
  }
  static std::size_t at(int node) { return static_cast<std::size_t>(node); }
  Tensor tensor_of(int node) { return writer_.tensor_of(node, again_); }
  int sum_of(int a, int b) { return writer_.node_of(tensor_of(a) + tensor_of(b)); }
  void gather(int node, const Tensor& dy) {
    const RecorderScope scope(&writer_);
    const Shape shape = writer_.graph[node].shape;  // a copy: the graph grows
    const int more = writer_.node_of(sum_like(dy, shape));
    int& gradient = gradients_[at(node)];
    gradient = gradient < 0 ? more : sum_of(gradient, more);
  }
  void hand_back(int i, const GraphNode& node) {
    Differential rule{node, {}, {}, {}};
    for (std::size_t k = 0; k < node.inputs.size(); ++k) {
      rule.in.push_back(writer_.tensor_of(node.inputs[k], again_ && flows_to(node.grads, k)));
    }
    if (facts_of(node.op).parts > 1) {
      for (int p = 0; p < facts_of(node.op).parts; ++p) {
        const Shape shape = part_shape(writer_.graph, node, p);
        rule.out.push_back(part_of(i, p, shape));
        const List<int>& given = parts_[at(i)];
        const bool has =
            given.size() > static_cast<std::size_t>(p) && given[static_cast<std::size_t>(p)] >= 0;
        if (has && p > 0) {
          fail({"backward: a gradient through result ", p, " of ", name_of(node.op)});
        }
        rule.dy.push_back(has ? tensor_of(given[static_cast<std::size_t>(p)]) : Tensor());
      }
    } else {
      rule.out.push_back(tensor_of(i));
      rule.dy.push_back(tensor_of(gradients_[at(i)]));
    }
    const Parts back = rule();
    for (std::size_t input = 0; input < back.size(); ++input) {
      if (flows_to(node.grads, input) && back[input].defined()) {
        gather(node.inputs[input], back[input]);
      }
    }
  }
  // Result p of node i: the part that stands there, or a new one.
  Tensor part_of(int i, int p, const Shape& shape) {
    for (int j = i + 1; j < end_; ++j) {
      const GraphNode& node = writer_.graph[j];
      if (node.op == Op::part && node.inputs[0] == i && static_cast<int>(node.number(0)) == p) {
        return tensor_of(j);
      }
      if (j > i + 4) {
        break;
      }
    }
    return writer_.part(tensor_of(i), p, shape);
  }

  GraphWriter& writer_;
  bool again_;
  int end_;
  List<int> gradients_;
  List<List<int>> parts_;
};

}  // namespace detail
}  // namespace tinyscale
