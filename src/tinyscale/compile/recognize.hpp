#pragma once
// Composite ops that were written out in primitives, found as their last op is recorded: softmax,
// log_softmax, gelu, gelu_tanh, silu, layer_norm, rms_norm, attention. They then have one gradient
// rule and one kernel, as if they had been called by name.

#include <cmath>    // fabs, sqrt
#include <cstddef>  // size_t
#include <cstdint>  // int64_t
#include <limits>   // infinity

#include "tinyscale/compile/op_graph.hpp"
#include "tinyscale/tensor/arithmetic.hpp"
#include "tinyscale/tensor/normalize.hpp"
#include "tinyscale/tensor/views.hpp"

namespace tinyscale {
namespace detail {

// What a node turned out to be: an op of nodes, none where op is literal.
struct Recognized {
  Op op = Op::literal;
  List<int> inputs;
  List<double> numbers;
  float factor = 1.0f;  // attention: of the queries, so that the scores are divided by sqrt(K)

  explicit operator bool() const { return op != Op::literal; }
};

class Recognition {
 public:
  explicit Recognition(const Graph& graph) : graph_(graph) {}

  // The op of these operands, which would be recorded next.
  Recognized find(Op op, const List<int>& in, const Shape& shape) const {
    switch (op) {
      case Op::div: return quotient(in, shape);
      case Op::mul: return product(in, shape);
      case Op::sub: return difference(in);
      case Op::add: return shifted_norm(in, shape);
      case Op::matmul: return weighted_values(in, shape);
      default: return Recognized();
    }
  }

  // Whether gradients go through what was written as they go through the op: along every path to
  // an operand, or along none. `through`: whether they go on to each of `nodes`. The way over a
  // softmax's maximum does not count beside others: what goes there adds up to nothing.
  bool flows(const Recognized& found, const List<int>& nodes, const List<bool>& through,
             unsigned& grads) const {
    grads = 0;
    for (std::size_t k = 0; k < found.inputs.size(); ++k) {
      Paths paths;
      for (std::size_t i = 0; i < nodes.size(); ++i) {
        walk(nodes[i], found.inputs[k], through[i], found, paths);
      }
      const bool none = paths.open + paths.cut + paths.over_maximum == 0;  // hidden by another
      if (none || (paths.open > 0 ? paths.cut > 0 : paths.over_maximum > 0)) {
        return false;
      }
      grads |= paths.open > 0 ? 1U << k : 0U;
    }
    return true;
  }

 private:
  struct Paths {
    int open = 0, cut = 0;
    int over_maximum = 0;  // open ones
  };
  void walk(int node, int target, bool open, const Recognized& found, Paths& paths,
            bool over = false) const {
    if (node == target) {
      if (over) {
        paths.over_maximum += open ? 1 : 0;
      } else {
        ++(open ? paths.open : paths.cut);
      }
      return;
    }
    for (const int operand : found.inputs) {
      if (node == operand) {
        return;  // another operand: the pattern ends here
      }
    }
    const GraphNode& inner = at(node);
    for (std::size_t i = 0; i < inner.inputs.size(); ++i) {
      if (inner.inputs[i] >= least(found)) {
        walk(inner.inputs[i], target, open && (inner.grads >> i & 1U) != 0, found, paths,
             over || inner.op == Op::max);
      }
    }
  }
  // Nothing before the first operand is part of the pattern.
  static int least(const Recognized& found) {
    int first = found.inputs[0];
    for (const int input : found.inputs) {
      first = input < first ? input : first;
    }
    return first;
  }

  struct Factors {
    double number = 1;
    List<int> nodes;
  };

  const GraphNode& at(int node) const { return graph_[node]; }
  bool is(int node, Op op) const { return at(node).op == op; }
  int operand(int node, std::size_t i) const { return at(node).inputs[i]; }

  // The value of a literal, seen through views; false for others.
  bool literal(int node, double& value) const {
    while (facts_of(at(node).op).kind == OpKind::view) {
      node = operand(node, 0);
    }
    if (!is(node, Op::literal)) {
      return false;
    }
    value = at(node).numbers[0];
    return true;
  }
  static bool is_near(double a, double b) { return std::fabs(a - b) <= 1e-5 * std::fabs(b); }

  // A node as a number times other nodes.
  void collect(int node, Factors& out, int depth = 0) const {
    double value = 0;
    if (literal(node, value)) {
      out.number *= value;
    } else if (is(node, Op::mul) && depth < 4) {
      collect(operand(node, 0), out, depth + 1);
      collect(operand(node, 1), out, depth + 1);
    } else if (is(node, Op::div) && depth < 4 && literal(operand(node, 1), value)) {
      out.number /= value;
      collect(operand(node, 0), out, depth + 1);
    } else {
      out.nodes.push_back(node);
    }
  }
  Factors factors(int node) const {
    Factors out;
    collect(node, out);
    return out;
  }
  // node = term + a literal.
  bool plus_literal(int node, int& term, double& value) const {
    if (!is(node, Op::add)) {
      return false;
    }
    for (std::size_t i = 0; i < 2; ++i) {
      if (literal(operand(node, i), value)) {
        term = operand(node, 1 - i);
        return true;
      }
    }
    return false;
  }
  // 1 + exp(-x).
  bool one_plus_exp_minus(int node, int x) const {
    int term = -1;
    double one = 0;
    if (!plus_literal(node, term, one) || !is_near(one, 1) || !is(term, Op::exp)) {
      return false;
    }
    const Factors minus = factors(operand(term, 0));
    return is_near(minus.number, -1) && minus.nodes.size() == 1 && minus.nodes[0] == x;
  }
  bool is_sigmoid(int node, int x) const {
    double one = 0;
    return (is(node, Op::sigmoid) && operand(node, 0) == x) ||
           (is(node, Op::div) && literal(operand(node, 0), one) && is_near(one, 1) &&
            one_plus_exp_minus(operand(node, 1), x));
  }

  // The x of x - max(x, last dimension, kept), or -1.
  int less_its_max(int node) const {
    if (!is(node, Op::sub) || !is(operand(node, 1), Op::max)) {
      return -1;
    }
    const int x = operand(node, 0), max = operand(node, 1);
    return operand(max, 0) == x && along_last(max) ? x : -1;
  }
  bool along_last(int node) const {
    return at(node).numbers.size() == 1 &&
           at(node).whole(0) == graph_.input_of(at(node), 0).shape.size() - 1;
  }

  Recognized quotient(const List<int>& in, const Shape& shape) const {
    Recognized found;
    if (is(in[0], Op::exp) && is(in[1], Op::sum) && operand(in[1], 0) == in[0] &&
        along_last(in[1])) {
      const int x = less_its_max(operand(in[0], 0));
      if (x >= 0) {
        found.op = Op::softmax;
        found.inputs = {x};
      }
    } else if (at(in[0]).shape == shape && at(in[1]).shape == shape &&
               one_plus_exp_minus(in[1], in[0])) {
      found.op = Op::silu;
      found.inputs = {in[0]};
    }
    return found;
  }

  // x - max - log(sum(exp(x - max))), as (x - max) - log.
  Recognized difference(const List<int>& in) const {
    Recognized found;
    const int x = less_its_max(in[0]);
    if (x >= 0 && is(in[1], Op::log) && is(operand(in[1], 0), Op::sum)) {
      const int sum = operand(in[1], 0);
      if (along_last(sum) && is(operand(sum, 0), Op::exp) && operand(operand(sum, 0), 0) == in[0]) {
        found.op = Op::log_softmax;
        found.inputs = {x};
      }
    }
    return found;
  }

  Recognized product(const List<int>& in, const Shape& shape) const {
    Recognized found;
    Factors all;
    collect(in[0], all);
    collect(in[1], all);
    if (all.nodes.size() != 2) {
      return norm(in, shape);
    }
    for (std::size_t i = 0; i < 2; ++i) {
      const int x = all.nodes[i], other = all.nodes[1 - i];
      if (at(x).shape != at(other).shape || at(x).shape != shape) {
        continue;
      }
      int term = -1;
      double one = 0;
      if (is_near(all.number, 1) && is_sigmoid(other, x)) {
        found.op = Op::silu;
      } else if (is_near(all.number, 0.5) && plus_literal(other, term, one) && is_near(one, 1)) {
        found.op = is(term, Op::erf) && is_root_half(operand(term, 0), x)     ? Op::gelu
                   : is(term, Op::tanh) && is_gelu_inner(operand(term, 0), x) ? Op::gelu_tanh
                                                                              : Op::literal;
      }
      if (found) {
        found.inputs = {x};
        return found;
      }
    }
    return norm(in, shape);
  }
  bool is_root_half(int node, int x) const {
    const Factors all = factors(node);
    return is_near(all.number, 0.70710678118654752) && all.nodes.size() == 1 && all.nodes[0] == x;
  }
  // sqrt(2 / pi) (x + 0.044715 x^3).
  bool is_gelu_inner(int node, int x) const {
    const Factors all = factors(node);
    if (!is_near(all.number, 0.79788456080286536) || all.nodes.size() != 1 ||
        !is(all.nodes[0], Op::add)) {
      return false;
    }
    for (std::size_t i = 0; i < 2; ++i) {
      const int sum = all.nodes[0];
      if (operand(sum, i) == x && is_cube(operand(sum, 1 - i), x)) {
        return true;
      }
    }
    return false;
  }
  bool is_cube(int node, int x) const {
    const Factors all = factors(node);
    if (!is_near(all.number, 0.044715)) {
      return false;
    }
    if (all.nodes.size() == 1 && is(all.nodes[0], Op::pow)) {
      return operand(all.nodes[0], 0) == x && is_near(at(all.nodes[0]).numbers[0], 3);
    }
    bool same = all.nodes.size() == 3;
    for (std::size_t i = 0; same && i < 3; ++i) {
      same = all.nodes[i] == x;
    }
    return same;
  }

  // The x of mean(x) along the last dimension, kept; or -1.
  int mean_of(int node) const {
    const Factors all = factors(node);
    if (all.nodes.size() != 1 || !is(all.nodes[0], Op::sum) || !along_last(all.nodes[0])) {
      return -1;
    }
    const int x = operand(all.nodes[0], 0);
    const double one = all.number * static_cast<double>(at(x).shape[-1]);
    return std::fabs(one - 1) < 1.2e-7 ? x : -1;  // a float's digits, to tell n from n - 1
  }
  // The c of mean(c^2) + epsilon, or -1.
  int mean_square(int node, double& epsilon) const {
    int term = -1;
    if (!plus_literal(node, term, epsilon) || !(epsilon >= 0) ||
        !(epsilon <= static_cast<double>(std::numeric_limits<float>::max()))) {
      return -1;
    }
    const int square = mean_of(term);
    const bool found =
        square >= 0 && ((is(square, Op::mul) && operand(square, 0) == operand(square, 1)) ||
                        (is(square, Op::pow) && at(square).numbers[0] == 2.0));
    return found ? operand(square, 0) : -1;
  }
  // The c of c / sqrt(mean(c^2) + epsilon), or -1.
  int normalized(int node, double& epsilon) const {
    double one = 0;
    for (std::size_t i = 0; i < at(node).inputs.size() && i < 2; ++i) {
      const int c = operand(node, i);
      int root = is(node, Op::div) && i == 0 ? operand(node, 1) : -1;
      if (is(node, Op::mul)) {
        const int other = operand(node, 1 - i);
        if (is(other, Op::div) && literal(operand(other, 0), one) && is_near(one, 1)) {
          root = operand(other, 1);
        } else if (is(other, Op::pow) && at(other).numbers[0] == -0.5 &&
                   mean_square(operand(other, 0), epsilon) == c) {
          return c;
        }
      }
      if (root >= 0 && is(root, Op::sqrt) && mean_square(operand(root, 0), epsilon) == c) {
        return c;
      }
    }
    return -1;
  }
  // weight c / sqrt(mean(c^2) + epsilon): where c is x - mean(x), a layer norm without bias.
  Recognized norm(const List<int>& in, const Shape& shape) const {
    Recognized found;
    for (std::size_t i = 0; i < 2 && !found; ++i) {
      double epsilon = 0;
      const int c = normalized(in[i], epsilon);
      if (c < 0 || at(c).shape != shape || !is_of_columns(in[1 - i], shape)) {
        continue;
      }
      const int x = is(c, Op::sub) && mean_of(operand(c, 1)) == operand(c, 0) ? operand(c, 0) : -1;
      if (x >= 0 && at(x).shape != shape) {
        continue;
      }
      found.op = x >= 0 ? Op::layer_norm : Op::rms_norm;
      found.inputs = {x >= 0 ? x : c, in[1 - i]};
      found.numbers = {epsilon};
    }
    return found;
  }
  Recognized shifted_norm(const List<int>& in, const Shape& shape) const {
    Recognized found;
    for (std::size_t i = 0; i < 2 && !found; ++i) {
      if (!is(in[i], Op::part) || at(in[i]).whole(0) != 0 || at(in[i]).shape != shape) {
        continue;
      }
      const GraphNode& norm = at(operand(in[i], 0));
      if (norm.op == Op::layer_norm && norm.inputs.size() == 2 && is_of_columns(in[1 - i], shape)) {
        found.op = Op::layer_norm;
        found.inputs = {norm.inputs[0], norm.inputs[1], in[1 - i]};
        found.numbers = norm.numbers;
      }
    }
    return found;
  }
  bool is_of_columns(int node, const Shape& shape) const {
    return shape.size() > 1 && at(node).shape == Shape{shape[-1]};
  }

  // softmax(mask(q k^T / s)) v of [.., T, K]: each of the leading indices a sequence of one head.
  Recognized weighted_values(const List<int>& in, const Shape&) const {
    Recognized found;
    if (!is(in[0], Op::softmax)) {
      return found;
    }
    int scores = operand(in[0], 0);
    const Shape& s = at(scores).shape;
    bool causal = false;
    if (is(scores, Op::where)) {
      double hidden = 0;
      if (!literal(operand(scores, 1), hidden) || !(hidden < -std::numeric_limits<double>::max()) ||
          !is_future(operand(scores, 0), s)) {
        return found;
      }
      causal = true;
      scores = operand(scores, 2);
    }
    const Factors all = factors(scores);
    const int product = all.nodes.size() == 1 ? all.nodes[0] : -1;
    if (product < 0 || !is(product, Op::matmul) || at(product).shape != s) {
      return found;
    }
    const auto f32 = static_cast<int>(DType::f32);  // the fused op's format
    if (static_cast<int>(at(product).number(0)) != f32 || context().matmul_format != DType::f32) {
      return found;
    }
    const int q = operand(product, 0), turned = operand(product, 1), v = in[1];
    if (!is(turned, Op::permute) || !swaps_last(at(turned))) {
      return found;
    }
    const int k = operand(turned, 0);
    const int dims = at(q).shape.size();
    bool fits = dims >= 3 && at(k).shape == at(v).shape && at(k).shape.size() == dims &&
                at(q).shape[-1] == at(k).shape[-1] && at(q).shape[-1] > 0 &&
                (!causal || at(k).shape[-2] == at(q).shape[-2]);
    for (int i = 0; fits && i + 2 < dims; ++i) {
      fits = at(q).shape[i] == at(k).shape[i];
    }
    if (fits) {
      found.op = Op::attention;
      found.inputs = {q, k, v};
      found.numbers = {1.0, 1.0, causal ? 1.0 : 0.0, 0.0};
      const double size = static_cast<double>(at(q).shape[-1]);
      found.factor = static_cast<float>(all.number * std::sqrt(size));
    }
    return found;
  }
  static bool swaps_last(const GraphNode& node) {
    const int dims = node.shape.size();
    for (int i = 0; i < dims; ++i) {
      const int from = i == dims - 1 ? dims - 2 : i == dims - 2 ? dims - 1 : i;
      if (node.whole(static_cast<std::size_t>(i)) != from) {
        return false;
      }
    }
    return true;
  }
  // 1 where column > row, of [T, T] or more: less(rows, columns).
  bool is_future(int node, const Shape& scores) const {
    return is(node, Op::less) && counts(operand(node, 0), -2, scores) &&
           counts(operand(node, 1), -1, scores);
  }
  // 0, 1, .. along one dimension (of two: -2 the rows).
  bool counts(int node, int dim, const Shape& scores) const {
    const Shape& shape = at(node).shape;
    int source = node;
    while (is(source, Op::reshape)) {
      source = operand(source, 0);
    }
    const std::int64_t n = scores[dim];
    return is(source, Op::iota) && at(source).shape[0] == n && shape.count() == n &&
           shape.size() >= -dim && shape[dim] == n;
  }

  const Graph& graph_;
};

// Records the op instead of what was written, whose result has that shape. Of attention, written
// for [.., T, K], the leading dimensions are one.
inline Tensor record_found(const Recognized& found, const List<Tensor>& in, const Shape& shape) {
  if (found.op == Op::layer_norm || found.op == Op::rms_norm) {
    return record_norm(found.op, in[0], in[1], in.size() > 2 ? in[2] : Tensor(),
                       static_cast<float>(found.numbers[0]));
  }
  if (found.op != Op::attention) {
    return record(found.op, {&in[0]}, shape);
  }
  List<Tensor> flat;
  for (const Tensor& x : in) {
    const std::int64_t rows = x.dim(-2), size = x.dim(-1);
    const std::int64_t all = rows * size > 0 ? x.count() / (rows * size) : 0;
    flat.push_back(reshape(x, {all, rows, size}));
  }
  const Tensor q = std::fabs(found.factor - 1.0f) > 1e-6f ? flat[0] * found.factor : flat[0];
  const Tensor all = record(Op::attention, {&q, &flat[1], &flat[2]}, q.shape(), found.numbers);
  return reshape(thread_recorder()->part(all, 0, q.shape()), shape);
}

}  // namespace detail
}  // namespace tinyscale
