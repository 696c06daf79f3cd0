#pragma once
// A group of nodes as a vector program: what it reads, what it computes of each row, what of that
// somebody else needs.

#include <cstddef>  // size_t
#include <cstdint>  // int64_t
#include <utility>  // move

#include "tinyscale/compile/fuse_vectors.hpp"
#include "tinyscale/compile/step.hpp"
#include "tinyscale/compute/vector_program.hpp"

namespace tinyscale {
namespace detail {

class VectorLowering {
 public:
  VectorLowering(const Graph& graph, const ValueLayouts& layouts, const VectorFusion& vectors,
                 const List<int>& members)
      : graph_(graph),
        layouts_(layouts),
        vectors_(vectors),
        members_(members),
        space_(vectors.spaces[static_cast<std::size_t>(group(members[0]))]),
        program_(outer(), Dim(space_.cols())) {}

  // Whether rows are one dimension: a program of other row counts can be made of it.
  bool is_even() const { return even_; }

  // `needed`: of each node, whether anything outside its group reads it. `last`: one more that is.
  Step lower(const List<char>& needed, int last = -1) {
    Step step;
    step.kind = StepKind::vectors;
    step.nodes = members_;
    for (const int node : members_) {
      const VectorRole role = vectors_.roles[static_cast<std::size_t>(node)];
      const bool sums = role == VectorRole::column_sums || role == VectorRole::total;
      const int value = sums ? operand(node, 0) : compute(node, role);
      made_.push_back(Made{node, value});
      step.values.push_back(value);
      if (needed[static_cast<std::size_t>(node)] != 0 && node != last) {
        step.outputs.push_back(node);
        program_.output(value, output_kind(node, role, program_.extent(value)));
      }
    }
    for (const Made& made : made_) {
      if (made.node == last) {
        step.outputs.push_back(last);
        program_.output(made.value, kernels::VectorOutput::full);
      }
    }
    for (const Read& read : reads_) {
      step.inputs.push_back(read.node);
    }
    step.vectors = kernels::plan_vectors(program_);
    step.program = program_;
    return step;
  }

 private:
  struct Made {
    int node, value;
  };
  struct Read {
    int node;
    List<std::int64_t> rows;
    std::int64_t column;
    int value;
  };
  struct Literal {
    int node, value;
  };

  int group(int node) const { return vectors_.group(node); }
  std::int64_t rows() const { return space_.rows(); }

  // Rows in one dimension where all operands lie evenly in it.
  Shape outer() {
    even_ = true;
    for (const int node : members_) {
      for (const int input : graph_[node].inputs) {
        even_ = even_ &&
                (inside(input) >= 0 || table_steps(layouts_.of(input), seen_as(node, input)).even);
      }
    }
    if (even_) {  // always where a group is flattened, but for one copy alone
      return Shape{space_.rows()};
    }
    Shape rows = space_.shape;
    Shape out;
    for (int i = 0; i + 1 < rows.size(); ++i) {
      out.push_back(rows[i]);
    }
    return out;
  }

  // The member of this group behind an operand, or -1.
  int inside(int operand) const {
    const int member = vectors_.source_of(operand);
    return member >= 0 && group(member) == group(members_[0]) ? member : -1;
  }
  // The shape in which a node reads an operand: its own, or that of what it reduces or copies.
  Shape seen_as(int node, int operand) const {
    const bool element = vectors_.roles[static_cast<std::size_t>(node)] == VectorRole::element;
    return element && !layouts_.is_copy(node) ? graph_[node].shape : graph_[operand].shape;
  }

  int literal(double number) { return program_.literal(static_cast<float>(number)); }

  int operand(int node, std::size_t i) {
    const int from = graph_[node].inputs[i];
    const int member = inside(from);
    if (member >= 0) {
      for (const Made& made : made_) {
        if (made.node == member) {
          return made.value;
        }
      }
    }
    int source = from;
    while (graph_[source].op == Op::reshape || graph_[source].op == Op::broadcast_to) {
      source = graph_[source].inputs[0];
    }
    if (graph_[source].op == Op::literal) {
      for (const Literal& known : literals_) {
        if (known.node == source) {
          return known.value;
        }
      }
      literals_.push_back(Literal{source, literal(graph_[source].number(0))});
      return literals_.back().value;
    }
    return read(from, seen_as(node, from), graph_[source].op == Op::iota);
  }

  // An operand from outside, as it lies under the table.
  int read(int node, const Shape& as, bool counts) {
    const Tensor& x = layouts_.of(node);
    List<std::int64_t> steps;
    std::int64_t column = 0;
    if (even_) {
      const bool narrow = as.count() != space_.shape.count();  // one number a row, or one at all
      const TableSteps lies = table_steps(x, as);
      if (!narrow) {
        steps.push_back(lies.row);
        column = lies.column;
      } else {
        steps.push_back(as.count() == 1 ? 0 : lies.row);
      }
    } else {
      const Strides all = broadcast_steps(x.shape(), x.steps(), space_.shape);
      for (int i = 0; i + 1 < space_.shape.size(); ++i) {
        steps.push_back(space_.shape[i] == 1 ? 0 : all.of[i]);
      }
      const int last = space_.shape.size() - 1;
      column = last >= 0 && space_.shape[last] > 1 ? all.of[last] : 0;
    }
    bool still = true;
    for (const std::int64_t step : steps) {
      still = still && step == 0;
    }
    if (counts && still && column == 1 && graph_[source_of(node)].shape[0] == space_.cols()) {
      if (numbers_ < 0) {
        numbers_ = program_.apply(kernels::VectorOp::column_number);
      }
      return numbers_;
    }
    for (const Read& known : reads_) {
      bool same = known.node == node && known.column == column;
      for (std::size_t i = 0; same && i < steps.size(); ++i) {
        same = known.rows[i] == steps[i];
      }
      if (same) {
        return known.value;
      }
    }
    reads_.push_back(Read{node, steps, column, program_.input(steps, column)});
    return reads_.back().value;
  }
  int source_of(int node) const {
    while (graph_[node].op == Op::reshape || graph_[node].op == Op::broadcast_to) {
      node = graph_[node].inputs[0];
    }
    return node;
  }

  int compute(int number, VectorRole role) {
    using kernels::VectorOp;
    const GraphNode& node = graph_[number];
    if (layouts_.is_copy(number)) {
      return program_.apply(VectorOp::copy, operand(number, 0));
    }
    const int a = operand(number, 0);
    if (role == VectorRole::row_reduction) {
      const bool varies = varies_with_columns(program_.extent(a));
      if (varies) {
        const int picked = pick(node);
        return picked >= 0 ? picked : program_.apply(vector_op(node.op), a);
      }
      return node.op == Op::max
                 ? program_.apply(VectorOp::copy, a)
                 : program_.apply(VectorOp::mul, a, literal(static_cast<double>(space_.cols())));
    }
    if (node.op == Op::pow) {
      return program_.apply(VectorOp::pow, a, literal(node.number(0)));
    }
    const int b = node.inputs.size() > 1 ? operand(number, 1) : -1;
    const int c = node.inputs.size() > 2 ? operand(number, 2) : -1;
    return program_.apply(vector_op(node.op), a, b, c);
  }

  // The sum along a row of x where the column is a number of the row, else 0: that element of x.
  int pick(const GraphNode& sum) {
    const int chosen = sum.op == Op::sum ? inside(sum.inputs[0]) : -1;
    if (chosen < 0 || graph_[chosen].op != Op::where) {
      return -1;
    }
    const int hit = inside(graph_[chosen].inputs[0]);
    if (hit < 0 || graph_[hit].op != Op::equal || !is_zero(operand(chosen, 2))) {
      return -1;
    }
    const int x = operand(chosen, 1);
    for (std::size_t i = 0; i < 2; ++i) {
      const int column = operand(hit, i), row = operand(hit, 1 - i);
      if (column == numbers_ && column >= 0 && varies_with_columns(program_.extent(x)) &&
          !varies_with_columns(program_.extent(row))) {
        return pick_one(x, row);
      }
    }
    return -1;
  }
  // Of a difference to a number a row: the difference of what is picked, so that nobody needs all.
  int pick_one(int x, int row) {
    using kernels::VectorOp;
    const VectorValue from = program_.values()[static_cast<std::size_t>(x)];
    if (from.kind == VectorValue::result && from.op == VectorOp::sub &&
        varies_with_columns(program_.extent(from.operands[0])) &&
        !varies_with_columns(program_.extent(from.operands[1]))) {
      const int one = program_.apply(VectorOp::less, numbers_, program_.literal(3e38f));
      const int there = program_.apply(VectorOp::row_pick, one, row);  // else there is nothing: 0
      const int less =
          program_.apply(VectorOp::sub, pick_one(from.operands[0], row), from.operands[1]);
      return program_.apply(VectorOp::where, there, less, program_.literal(0.0f));
    }
    return program_.apply(VectorOp::row_pick, x, row);
  }
  bool is_zero(int value) const {
    for (const Literal& known : literals_) {
      if (known.value == value) {
        return !(graph_[known.node].number(0) < 0) && !(graph_[known.node].number(0) > 0);
      }
    }
    return false;
  }

  kernels::VectorOutput output_kind(int node, VectorRole role, kernels::VectorExtent extent) const {
    using kernels::VectorOutput;
    if (role == VectorRole::column_sums) {
      return VectorOutput::column_sums;
    }
    if (role == VectorRole::total) {
      return VectorOutput::total;
    }
    if (graph_[node].shape.count() == space_.shape.count()) {
      return VectorOutput::full;
    }
    const bool one = graph_[node].shape.count() == 1 && extent == kernels::VectorExtent::single;
    return one ? VectorOutput::single : VectorOutput::per_row;  // where it is repeated
  }

  const Graph& graph_;
  const ValueLayouts& layouts_;
  const VectorFusion& vectors_;
  const List<int>& members_;
  VectorSpace space_;
  bool even_ = true;
  kernels::VectorProgram program_;
  List<Made> made_;
  List<Read> reads_;
  List<Literal> literals_;
  int numbers_ = -1;
};

}  // namespace detail
}  // namespace tinyscale
