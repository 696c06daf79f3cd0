#pragma once
// The plan of a vector program: what is computed once, what for every block of rows, and where each
// value stands. A block is several whole rows or a part of one, so small that all its values stay
// in the cache of level 1 (of level 2 where sums need a long row whole). A value that is an output
// is computed in its place, and a dense input is read where it is.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tinyscale/base/list.hpp"
#include "tinyscale/compute/past_caches.hpp"
#include "tinyscale/compute/vector_layout.hpp"
#include "tinyscale/compute/vector_program.hpp"
#include "tinyscale/compute/vector_rewrite.hpp"

namespace tinyscale {
namespace detail {

// Steps in the order of the values, and outputs at the end.
class VectorPlanner {
 public:
  VectorPlanner(const kernels::VectorProgram& p, kernels::VectorPlan& plan, double stream_bytes)
      : plan_(plan), code_(p) {
    plan_.outer = p.outer();
    plan_.rows = p.rows();
    plan_.cols = p.cols();
    plan_.inputs = p.inputs();
    plan_.output_count = static_cast<int>(p.outputs().size());
    lower_extents();
    flatten();
    plan_.streams = written_bytes() > stream_bytes;
    choose_block(8);
    emit();
    choose_block(VectorLayout(plan_).live());
    emit();
    VectorLayout(plan_).finish();
  }

 private:
  typedef kernels::VectorOp Op;
  typedef kernels::VectorExtent Extent;
  typedef kernels::VectorOutput Output;
  static constexpr std::int64_t cache_floats = 8192;  // of level 1, in use
  static constexpr std::int64_t longest = 2048, shortest = 512;

  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  const VectorValue& value(int i) const { return code_.values[index(i)]; }
  bool needed(int i) const { return code_.users[index(i)] > 0; }
  int count() const { return static_cast<int>(code_.values.size()); }
  Extent extent(int i) const { return extents_[index(i)]; }
  VectorPlace& place(int i) { return plan_.places[index(i)]; }

  static Extent row_part(Extent e) {
    return varies_with_rows(e) ? Extent::per_row : Extent::single;
  }

  // Of one row, what varies over columns is full, so that blocks share it out.
  void lower_extents() {
    extents_.assign(code_.values.size(), Extent::single);
    whole_rows_ = false;
    for (int i = 0; i < count(); ++i) {
      const VectorValue& v = value(i);
      Extent e = v.extent;
      if (v.kind == VectorValue::result && v.op != Op::column_number) {
        e = Extent::single;
        for (int k = 0; k < facts_of(v.op).operands; ++k) {
          e = joined(e, extent(v.operands[k]));
        }
        if (is_row_reduction(v.op)) {
          whole_rows_ = whole_rows_ || (needed(i) && e == Extent::full);
          e = row_part(e);
        }
      }
      extents_[index(i)] = plan_.rows == 1 && varies_with_columns(e) ? Extent::full : e;
    }
  }

  bool is_dense(const VectorInput& in, std::int64_t width) const {
    for (int i = plan_.outer.size() - 1; i >= 0; --i) {
      if (plan_.outer[i] != 1 && in.strides[i] != width) {
        return false;
      }
      width *= plan_.outer[i];
    }
    return true;
  }
  bool is_dense(int i) const {
    const VectorInput& in = plan_.inputs[index(value(i).index)];
    return (in.column_step == 1 || plan_.cols == 1) && is_dense(in, plan_.cols);
  }

  // A table of which nobody needs the rows is one long row.
  void flatten() {
    bool flat = !whole_rows_ && plan_.rows > 1;
    for (int i = 0; i < count() && flat; ++i) {
      const VectorValue& v = value(i);
      flat = !needed(i) || extent(i) == Extent::single ||
             (extent(i) == Extent::full && (v.kind != VectorValue::input || is_dense(i)));
    }
    for (const VectorResult& out : code_.outputs) {
      flat = flat &&
             (out.kind == Output::full || out.kind == Output::single || out.kind == Output::total);
    }
    if (flat) {
      plan_.cols *= plan_.rows;
      plan_.rows = 1;
      plan_.outer = Shape{};
      for (VectorInput& in : plan_.inputs) {
        in = VectorInput();
        in.column_step = 1;
      }
    }
  }

  double written_bytes() const {
    double bytes = 0;
    for (const VectorResult& out : code_.outputs) {
      const double table = static_cast<double>(plan_.rows) * static_cast<double>(plan_.cols);
      bytes += out.kind == Output::full ? 4.0 * table : 0.0;
    }
    return bytes;
  }

  bool only_sums_rows() const {
    bool sums = false;
    for (const VectorStep& s : plan_.steps) {
      if (s.extent == Extent::full) {
        return false;
      }
      sums = sums || s.op == Op::sum_exp;
    }
    return sums;
  }

  void choose_block(std::int64_t live) {
    const std::int64_t fit = cache_floats / std::max<std::int64_t>(live, 1);
    const std::int64_t floats = std::clamp(fit / 64 * 64, shortest, longest);
    plan_.block_cols = plan_.cols;
    plan_.block_rows = 1;
    if (whole_rows_ || plan_.cols <= floats) {
      plan_.block_rows = std::max<std::int64_t>(1, floats / std::max<std::int64_t>(plan_.cols, 1));
      if (only_sums_rows()) {  // long ones are read side by side, and no value of theirs is kept
        plan_.block_rows = std::max<std::int64_t>(plan_.block_rows, 8);
      }
      plan_.block_rows = std::min(plan_.block_rows, std::max<std::int64_t>(plan_.rows, 1));
    } else {
      const std::int64_t parts = (plan_.cols + floats - 1) / floats;
      plan_.block_cols = ((plan_.cols + parts - 1) / parts + 63) / 64 * 64;
    }
  }

  void emit() {
    plan_.places.clear();
    plan_.once.clear();
    plan_.steps.clear();
    plan_.column_outputs.clear();
    plan_.total_outputs.clear();
    plan_.single_outputs.clear();
    plan_.single_places.clear();
    moved_.clear();
    place_of_.assign(code_.values.size(), -1);
    emit_inputs();
    for (int i = 0; i < count(); ++i) {
      if (needed(i) && value(i).kind == VectorValue::result && place_of_[index(i)] < 0) {
        emit_value(i);
      }
    }
    for (std::size_t o = 0; o < code_.outputs.size(); ++o) {
      if (!sums_input(code_.outputs[o])) {
        emit_output(static_cast<int>(o), code_.outputs[o]);
      }
    }
    for (const int p : moved_) {
      move_operand(p);
    }
  }

  bool sums_input(const VectorResult& out) const {
    return value(out.value).kind == VectorValue::input &&
           (out.kind == Output::column_sums || out.kind == Output::total);
  }

  // Outputs that are inputs, read before a full output is written, which may be in their memory:
  // summed, or set aside where another output is full.
  void emit_inputs() {
    aside_.assign(code_.outputs.size(), -1);
    int tables = 0;
    for (const VectorResult& out : code_.outputs) {
      tables += out.kind == Output::full ? 1 : 0;
    }
    for (std::size_t o = 0; o < code_.outputs.size(); ++o) {
      const VectorResult& out = code_.outputs[o];
      if (sums_input(out)) {
        emit_output(static_cast<int>(o), out);
      } else if (value(out.value).kind == VectorValue::input && extent(out.value) == Extent::full &&
                 tables > (out.kind == Output::full ? 1 : 0)) {
        const int from = where(out.value);
        const VectorStep copy = make_step(Op::copy, Extent::full, &from, 1);
        push(copy);
        aside_[o] = copy.target;
      }
    }
  }

  int add_place(VectorPlace::Memory memory, Extent e) {
    VectorPlace p;
    p.memory = memory;
    p.extent = e;
    if (memory != VectorPlace::block && e == Extent::per_column) {
      p.moves = VectorPlace::by_column;
    }
    plan_.places.push_back(p);
    return static_cast<int>(plan_.places.size()) - 1;
  }

  static bool is_once(Extent e) { return !varies_with_rows(e); }

  // Where a value stands; inputs are placed when they are first used.
  int where(int i) {
    if (place_of_[index(i)] < 0) {
      place_of_[index(i)] = value(i).kind == VectorValue::input ? place_input(i) : place_literal(i);
    }
    return place_of_[index(i)];
  }

  int place_literal(int i) {
    const int p = add_place(VectorPlace::once, Extent::single);
    place(p).literal = true;
    place(p).number = value(i).number;
    return p;
  }

  int place_input(int i) {
    const int number = value(i).index;
    const VectorInput& in = plan_.inputs[index(number)];
    const Extent e = extent(i);
    VectorPlace::Moves moves = VectorPlace::no;
    if (e == Extent::full) {
      const bool row = plan_.block_rows == 1 && in.column_step == 1;
      moves = is_dense(i) ? VectorPlace::densely : row ? VectorPlace::strided : VectorPlace::no;
    } else if (e == Extent::per_row && is_dense(in, 1)) {
      moves = VectorPlace::by_row;
    } else if (e == Extent::per_column && in.column_step == 1) {
      moves = VectorPlace::by_column;
    }
    if (moves != VectorPlace::no) {
      const int p = add_place(VectorPlace::input, e);
      place(p).index = number;
      place(p).moves = moves;
      return p;
    }
    VectorStep s;
    s.op = Op::gather;
    s.extent = e;
    s.flat = true;
    s.number = number;
    s.target = add_place(is_once(e) ? VectorPlace::once : VectorPlace::block, e);
    (is_once(e) ? plan_.once : plan_.steps).push_back(s);
    return s.target;
  }

  // An operation on places; its target is new unless there is one.
  VectorStep make_step(Op op, Extent e, const int* places, int operands, int target = -1) {
    VectorStep s;
    s.op = op;
    s.extent = e;
    s.flat = !is_row_reduction(op) && op != Op::sum_exp && op != Op::column_number;
    for (int k = 0; k < operands; ++k) {
      const Extent from = place(places[k]).extent;
      s.places[k] = places[k];
      const bool same = from == e || (plan_.cols == 1 && from == Extent::per_row);
      s.moves[k] = same || from == Extent::per_column;
      s.scalar[k] = !same && from == Extent::per_row;
      s.flat = s.flat && (same || from == Extent::single);
    }
    s.target =
        target >= 0 ? target : add_place(is_once(e) ? VectorPlace::once : VectorPlace::block, e);
    return s;
  }

  void push(const VectorStep& s) { (is_once(s.extent) ? plan_.once : plan_.steps).push_back(s); }

  void emit_value(int i) {
    const VectorValue& v = value(i);
    int places[3] = {-1, -1, -1};
    const int operands = facts_of(v.op).operands;
    for (int k = 0; k < operands; ++k) {
      places[k] = where(v.operands[k]);
    }
    const Extent e = extent(i);
    if (v.op == Op::row_max && e == Extent::per_row && emit_sum_exp(i, places)) {
      return;
    }
    const int squares = v.op == Op::sub && e == Extent::full ? squares_of(i) : -1;
    VectorStep s = make_step(squares < 0 ? v.op : Op::sub_squares, e, places, operands);
    place_of_[index(i)] = s.target;
    if (is_row_reduction(v.op)) {
      for (int k = 0; k < operands; ++k) {
        s.scalar[k] = false;
        s.moves[k] = true;
      }
    }
    const bool sums =
        v.op == Op::square || v.op == Op::mul || v.op == Op::exp_sub || v.op == Op::exp_below_max;
    const int sum = squares >= 0 ? sum_of(squares) : sums && e == Extent::full ? sum_of(i) : -1;
    if (squares >= 0) {
      place_of_[index(squares)] = s.target;  // never read
    }
    if (sum >= 0) {
      s.sum = add_place(VectorPlace::block, Extent::per_row);
      s.flat = false;
      place_of_[index(sum)] = s.sum;
      place(s.target).unwanted = code_.users[index(i)] == 1;
    }
    push(s);
  }

  // The square of a value, where only its sum is wanted; -1 when there is none.
  int squares_of(int i) const {
    for (int j = i + 1; j < count(); ++j) {
      if (needed(j) && value(j).op == Op::square && value(j).operands[0] == i &&
          code_.users[index(j)] == 1 && sum_of(j) >= 0) {
        return j;
      }
    }
    return -1;
  }

  // The first row_sum of a value, -1 when there is none.
  int sum_of(int i) const {
    for (int j = i + 1; j < count(); ++j) {
      if (needed(j) && value(j).kind == VectorValue::result && value(j).op == Op::row_sum &&
          value(j).operands[0] == i) {
        return j;
      }
    }
    return -1;
  }

  // Where all that is wanted of exp(a - max) is its sum, a is read once.
  bool emit_sum_exp(int i, const int* places) {
    for (int j = i + 1; j < count(); ++j) {
      if (needed(j) && value(j).op == Op::exp_below_max && value(j).operands[1] == i) {
        const int sum = sum_of(j);
        if (code_.users[index(j)] == 1 && sum >= 0) {
          VectorStep s = make_step(Op::sum_exp, Extent::per_row, places, 1);
          s.scalar[0] = false;
          s.moves[0] = true;
          s.sum = add_place(VectorPlace::block, Extent::per_row);
          push(s);
          place_of_[index(i)] = s.target;
          place_of_[index(j)] = s.target;  // never read
          place_of_[index(sum)] = s.sum;
          return true;
        }
      }
    }
    return false;
  }

  int output_place(int number, Extent e) {
    const int p = add_place(VectorPlace::output, e);
    place(p).index = number;
    place(p).moves = e == Extent::full      ? VectorPlace::densely
                     : e == Extent::per_row ? VectorPlace::by_row
                                            : VectorPlace::by_column;
    return p;
  }

  void emit_output(int number, const VectorResult& out) {
    const int aside = aside_[index(number)];
    const int from = aside >= 0 ? aside : where(out.value);
    if (out.kind == Output::single) {
      plan_.single_outputs.push_back(number);
      plan_.single_places.push_back(from);
      return;
    }
    Extent e = out.kind == Output::per_row      ? Extent::per_row
               : out.kind == Output::per_column ? Extent::per_column
                                                : Extent::full;
    e = plan_.rows == 1 && e == Extent::per_column ? Extent::full : e;
    if (out.kind == Output::column_sums || out.kind == Output::total) {
      int full = from;
      if (place(from).extent != Extent::full) {
        const VectorStep widen = make_step(Op::copy, Extent::full, &from, 1);
        push(widen);
        full = widen.target;
      }
      const bool total = out.kind == Output::total;
      List<int>& all = total ? plan_.total_outputs : plan_.column_outputs;
      VectorStep s = make_step(!total        ? Op::column_sums
                               : out.squared ? Op::total_squares
                                             : Op::total,
                               Extent::full, &full, 1,
                               total ? full : add_place(VectorPlace::block, Extent::full));
      s.number = static_cast<int>(all.size());
      all.push_back(number);
      push(s);
      return;
    }
    const bool stream = plan_.streams && e == Extent::full;
    const bool parted = e == Extent::per_row && plan_.block_cols < plan_.cols;
    if (!stream && !parted && can_move(from, e)) {
      const VectorPlace in_memory = place(output_place(number, e));
      plan_.places.pop_back();
      place(from) = in_memory;
      if (e == Extent::full) {
        moved_.push_back(from);
      }
      return;
    }
    int source = from;
    if (stream && place(from).extent != Extent::full) {
      const VectorStep widen = make_step(Op::copy, Extent::full, &from, 1);
      push(widen);
      source = widen.target;
    }
    VectorStep s =
        make_step(stream ? Op::stream : Op::copy, e, &source, 1, output_place(number, e));
    s.first_columns = parted;
    push(s);
  }

  // May the value of a block be computed in an output's memory? That may be an input's memory too,
  // which no later step must read.
  bool can_move(int from, Extent e) {
    const VectorPlace& p = place(from);
    if (p.memory != VectorPlace::block || p.extent != e || is_once(e)) {
      return false;
    }
    bool made = false;
    for (const VectorStep& s : plan_.steps) {
      for (const int read : s.places) {
        if (made && e == Extent::full && read >= 0 && place(read).memory == VectorPlace::input &&
            place(read).extent == Extent::full) {
          return false;
        }
      }
      if (s.target == from || s.sum == from) {
        if (s.op == Op::gather) {
          return false;
        }
        made = true;
      }
    }
    return made;
  }

  // What ends in the making of an output is computed in its memory too: so the output's lines are
  // on their way while something longer is computed.
  void move_operand(int output) {
    const List<int> last = last_uses(plan_);
    for (std::size_t s = 0; s < plan_.steps.size(); ++s) {
      const VectorStep step = plan_.steps[s];
      for (int k = 0; k < 3 && step.target == output && step.op != Op::row_pick; ++k) {
        const int p = step.places[k];
        if (p >= 0 && last[index(p)] == static_cast<int>(s) && !place(p).unwanted &&
            can_move(p, Extent::full)) {
          place(p) = place(output);
          return;
        }
      }
    }
  }

  kernels::VectorPlan& plan_;
  VectorRewrite code_;
  List<Extent> extents_;
  List<int> place_of_, moved_;
  List<int> aside_;  // of each output, where an input that it is stands before it is written
  bool whole_rows_ = false;
};

}  // namespace detail

namespace kernels {

// Makes the plan; to be kept and run many times. Full outputs of more bytes than stream_bytes are
// written past the caches: what reads them later finds little of them there.
inline VectorPlan plan_vectors(const VectorProgram& p,
                               double stream_bytes = detail::past_caches_bytes) {
  if (p.outputs().empty()) {
    detail::fail({"plan_vectors: the program of ", p.values().size(),
                  " values has no output; there is nothing to compute"});
  }
  VectorPlan plan;
  detail::VectorPlanner(p, plan, stream_bytes);
  return plan;
}

}  // namespace kernels
}  // namespace tinyscale
