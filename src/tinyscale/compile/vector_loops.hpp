#pragma once
// A vector program as loops over columns, one behind another in every row: as many as its sums and
// maxima make necessary. Numbers of one loop that a later one reads are computed again where that
// is cheap, else kept in a row of memory. Full outputs are written in the last loop, so that they
// may be the memory of an input.

#include <algorithm>  // max
#include <cstddef>    // size_t
#include <cstdint>    // int64_t

#include "tinyscale/base/list.hpp"
#include "tinyscale/compute/vector_program.hpp"

namespace tinyscale {
namespace detail {

// Functions whose numbers are worth keeping.
inline bool is_costly(kernels::VectorOp op) {
  typedef kernels::VectorOp Op;
  return op == Op::exp || op == Op::log || op == Op::tanh || op == Op::erf || op == Op::pow ||
         (op >= Op::sigmoid && op <= Op::gelu_tanh) || (op >= Op::tanh_slope && op <= Op::exp_sub);
}

class VectorLoops {
 public:
  explicit VectorLoops(const kernels::VectorProgram& program)
      : inputs_(program.inputs()),
        values_(program.values()),
        outputs_(program.outputs()),
        rows_(program.rows()),
        cols_(program.cols()) {
    for (int i = 0; i < program.outer().size(); ++i) {
      dims_.push_back(program.outer()[i]);
    }
    skip_copies();
    find_needed();
    flatten();
    join_dims();
    find_phases();
    find_loops();
  }

  // Whether rows of the outermost dim, or elements of the only row, can be computed apart: nothing
  // is written once or added up.
  bool is_apart() const {
    bool apart = !outputs_.empty() && (!dims_.empty() || !reduces_);
    for (const VectorResult& out : outputs_) {
      apart =
          apart && (out.kind == Output::full || (out.kind == Output::per_row && !dims_.empty()));
    }
    return apart;
  }
  // How many there are; elements come in blocks, so that their number does not show in the results.
  std::int64_t parts() const {
    return !is_apart() ? 0 : dims_.empty() ? (cols_ + part_block - 1) / part_block : dims_[0];
  }
  std::int64_t part_size() const { return dims_.empty() ? part_block : 1; }
  std::int64_t part_end() const { return dims_.empty() ? cols_ : dims_[0]; }
  // Numbers of one output in a part.
  std::int64_t part_floats() const {
    return dims_.empty() ? part_block : dims_[0] == 0 ? 0 : rows_ / dims_[0] * cols_;
  }

 protected:
  typedef kernels::VectorOp Op;
  typedef kernels::VectorOutput Output;
  static constexpr std::int64_t part_block = 4096;

  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  const VectorValue& value(int i) const { return values_[at(i)]; }
  int count() const { return static_cast<int>(values_.size()); }
  bool is_literal(int i) const { return value(i).kind == VectorValue::literal; }
  bool is_input(int i) const { return value(i).kind == VectorValue::input; }
  bool is_result(int i) const { return value(i).kind == VectorValue::result; }
  bool is_reduction(int i) const { return is_result(i) && is_row_reduction(value(i).op); }
  bool is_single(int i) const { return value(i).extent == kernels::VectorExtent::single; }
  bool is_per_row(int i) const { return value(i).extent == kernels::VectorExtent::per_row; }
  bool is_per_column(int i) const { return value(i).extent == kernels::VectorExtent::per_column; }
  bool has_columns(int i) const { return varies_with_columns(value(i).extent); }
  int operands(int i) const { return is_result(i) ? facts_of(value(i).op).operands : 0; }
  static bool is_sum(Output kind) { return kind == Output::column_sums || kind == Output::total; }

  bool is_needed(int i) const { return needed_[at(i)] != 0; }
  bool is_in(int i, int loop) const { return loops_[at(i)][at(loop)] != 0; }
  bool is_kept(int i) const { return has_columns(i) && is_result(i) && kept_[at(i)] >= 0; }
  bool is_made(int i, int loop) const {
    return is_in(i, loop) && (!is_kept(i) || kept_[at(i)] == loop);
  }

  // A number of an input, known before the first loop, needs no loop.
  bool picks_at_once(int i) const {
    const VectorValue& v = value(i);
    return is_reduction(i) && v.op == Op::row_pick && is_input(v.operands[0]) &&
           phase_[at(v.operands[1])] == 1;
  }

  List<VectorInput> inputs_;
  List<VectorValue> values_;
  List<VectorResult> outputs_;
  std::int64_t rows_, cols_;
  List<std::int64_t> dims_;  // of rows; none: there is one
  List<char> needed_, used_;
  List<int> phase_, kept_;  // loops
  List<List<char>> loops_;  // of each value with columns: those that read it
  int last_ = 0;            // loop
  bool reduces_ = false;    // some row
  bool writes_ = false;     // full outputs or sums

 private:
  void skip_copies() {
    const auto source = [&](int i) {
      while (is_result(i) && value(i).op == Op::copy) {
        i = value(i).operands[0];
      }
      return i;
    };
    for (VectorValue& v : values_) {
      for (int& operand : v.operands) {
        operand = operand >= 0 ? source(operand) : operand;
      }
    }
    for (VectorResult& out : outputs_) {
      out.value = source(out.value);
    }
  }

  void find_needed() {
    needed_ = List<char>(values_.size());
    used_ = List<char>(inputs_.size());
    for (const VectorResult& out : outputs_) {
      needed_[at(out.value)] = 1;
    }
    for (int i = count() - 1; i >= 0; --i) {
      for (int k = 0; k < operands(i) && is_needed(i); ++k) {
        needed_[at(value(i).operands[k])] = 1;
      }
      if (is_input(i) && is_needed(i)) {
        used_[at(value(i).index)] = 1;
      }
    }
  }

  bool is_dense(const VectorInput& in) const {
    std::int64_t width = cols_;
    for (std::size_t i = dims_.size(); i > 0; --i) {
      if (dims_[i - 1] != 1 && in.strides[i - 1] != width) {
        return false;
      }
      width *= dims_[i - 1];
    }
    return in.column_step == 1 || cols_ == 1;
  }

  // A table of which nobody needs the rows is one long row.
  void flatten() {
    bool flat = rows_ > 1;
    for (int i = 0; i < count() && flat; ++i) {
      const bool full = value(i).extent == kernels::VectorExtent::full;
      flat = !is_needed(i) || is_single(i) ||
             (full && (!is_input(i) || is_dense(inputs_[at(value(i).index)])));
    }
    for (const VectorResult& out : outputs_) {
      flat = flat &&
             (out.kind == Output::full || out.kind == Output::single || out.kind == Output::total);
    }
    if (flat) {
      cols_ *= rows_;
      rows_ = 1;
      dims_.clear();
      for (VectorInput& in : inputs_) {
        in = VectorInput();
        in.column_step = 1;
      }
    }
  }

  // Dims of 1 left out, and neighbours that all inputs step through evenly made one.
  void join_dims() {
    List<std::int64_t> dims;
    List<int> from;  // the dim whose strides count
    for (std::size_t d = 0; d < dims_.size(); ++d) {
      if (dims_[d] == 1) {
        continue;
      }
      bool even = !dims.empty();
      for (std::size_t i = 0; i < inputs_.size(); ++i) {
        const VectorInput& in = inputs_[i];
        even = even && (used_[i] == 0 || in.strides[from.back()] == in.strides[d] * dims_[d]);
      }
      if (even) {
        dims.back() *= dims_[d];
        from.back() = static_cast<int>(d);
      } else {
        dims.push_back(dims_[d]);
        from.push_back(static_cast<int>(d));
      }
    }
    for (VectorInput& in : inputs_) {
      for (std::size_t d = 0; d < dims.size(); ++d) {
        in.strides[d] = in.strides[from[d]];
      }
    }
    dims_ = dims;
  }

  // Loop 0 is before all rows, loops 1, 2, .. in each row. A value can be computed in the loop of
  // its phase, one without columns just before it.
  void find_phases() {
    phase_ = List<int>(values_.size());
    for (int i = 0; i < count(); ++i) {
      int phase = 1;
      for (int k = 0; k < operands(i); ++k) {
        phase = std::max(phase, phase_[at(value(i).operands[k])]);
      }
      const bool loops = is_reduction(i) && is_needed(i) && !picks_at_once(i);
      phase_[at(i)] = phase + (loops ? 1 : 0);
      last_ = loops ? std::max(last_, phase) : last_;
      reduces_ = reduces_ || (is_reduction(i) && is_needed(i));
    }
    for (const VectorResult& out : outputs_) {
      if (out.kind == Output::full || is_sum(out.kind)) {
        last_ = std::max(last_, phase_[at(out.value)]);
        writes_ = true;
      }
    }
  }

  void find_loops() {
    loops_ = List<List<char>>(values_.size());
    for (List<char>& each : loops_) {
      each = List<char>(at(last_ + 1));
    }
    kept_ = List<int>(values_.size());
    for (const VectorResult& out : outputs_) {
      if (has_columns(out.value)) {
        loops_[at(out.value)][at(out.kind == Output::per_column ? 0 : last_)] = 1;
      }
    }
    for (int i = count() - 1; i >= 0; --i) {
      if (!is_needed(i)) {
        continue;
      }
      if (is_reduction(i)) {
        const int a = value(i).operands[0];
        if (!picks_at_once(i)) {
          loops_[at(a)][at(phase_[at(i)] - 1)] = 1;
        }
      } else if (has_columns(i)) {
        keep(i);
        for (int k = 0; k < operands(i); ++k) {
          const int from = value(i).operands[k];
          for (int loop = 0; loop <= last_ && has_columns(from); ++loop) {
            if (is_made(i, loop)) {
              loops_[at(from)][at(loop)] = 1;
            }
          }
        }
      }
    }
  }

  // Whether the numbers are kept, and from which loop on.
  void keep(int i) {
    kept_[at(i)] = -1;
    if (!is_result(i) || !is_costly(value(i).op)) {
      return;
    }
    int first = -1, times = 0;
    for (int loop = 0; loop <= last_; ++loop) {
      if (is_in(i, loop)) {
        first = first < 0 ? loop : first;
        ++times;
      }
    }
    if (is_per_column(i) && rows_ > 1 && times > 0) {
      loops_[at(i)][0] = 1;
      kept_[at(i)] = times > 1 || first > 0 ? 0 : -1;
    } else if (times > 1) {
      kept_[at(i)] = first;
    }
  }
};

}  // namespace detail
}  // namespace tinyscale
