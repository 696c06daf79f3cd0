#pragma once
// A vector program printed as one C++ function: a local variable a value, strides as sums of
// products, what it needs besides <cmath> and <cstdint> noted for whoever prints the head.

#include <algorithm>  // find
#include <cstddef>    // size_t
#include <cstdint>    // int64_t
#include <string>     // source

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/compile/vector_loops.hpp"
#include "tinyscale/compute/vector_program.hpp"

namespace tinyscale {
namespace detail {

// What stands beside the lines of a kernel; each may be empty.
struct CppNotes {
  std::string title;
  List<std::string> inputs, values, outputs;  // by number
};

// What kernels call and include, gathered while they are printed.
struct CppNeeds {
  bool scratch = false;
  bool loops = false;    // over columns
  bool maximum = false;  // of a row
  bool functions[64] = {};

  void add(kernels::VectorOp op) { functions[static_cast<std::size_t>(op)] = true; }
};

// A number as C++ writes it, of type float.
inline std::string cpp_number(float number) {
  if (is_nan(static_cast<double>(number))) {
    return "NAN";
  }
  if (!is_finite(static_cast<double>(number))) {
    return number > 0.0f ? "INFINITY" : "-INFINITY";
  }
  const std::string text = printed('g', 9, static_cast<double>(number));
  return text + (text.find_first_of(".e") == std::string::npos ? ".0f" : "f");
}

// Of parts: the function is also given which, from the first to before the last.
enum class CppForm : unsigned char { whole, parts };

class CppKernel : public VectorLoops {
 public:
  CppKernel(const kernels::VectorProgram& program, const std::string& name, const CppNotes& notes,
            CppNeeds& needs, CppForm form = CppForm::whole)
      : VectorLoops(program), name_(name), notes_(notes), needs_(needs), form_(form) {}

  std::string text() {
    out_ = notes_.title.empty() ? "" : "// " + notes_.title + "\n";
    const bool reads = std::find(used_.begin(), used_.end(), 1) != used_.end();
    out_ += "extern \"C\" void " + name_ + "(const float* const* " + (reads ? "in" : "/*in*/") +
            ", float* const* " + (outputs_.empty() ? "/*out*/" : "out");
    if (form_ == CppForm::parts) {
      const bool apart = is_apart();
      out_ += std::string(",\n    std::int64_t ") + (apart ? "first" : "/*first*/") +
              ", std::int64_t " + (apart ? "last" : "/*last*/");
    }
    out_ += ") {\n";
    print_pointers();
    print_scratch();
    print_once();
    print_rows();
    print_sums();
    out_ += "}\n";
    return out_;
  }

 private:
  std::string named(int i) const {
    const VectorValue& v = value(i);
    return v.kind == VectorValue::literal ? cpp_number(v.number)
           : v.kind == VectorValue::input ? cat({"x", v.index})
                                          : cat({facts_of(v.op).name, "_", i});
  }

  void line(const std::string& text, const std::string& note = "") {
    out_.append(at(depth_) * 2, ' ');
    out_ += text + (note.empty() ? "" : "  // " + note) + "\n";
  }
  void open(const std::string& text, const std::string& note = "") {
    line(text + " {", note);
    ++depth_;
  }
  void close() {
    --depth_;
    line("}");
  }
  // The loop whose parts can be computed apart.
  void open_outer_loop(const std::string& index, std::int64_t end) {
    if (form_ == CppForm::parts && is_apart()) {
      open(cat({"for (std::int64_t ", index, " = first; ", index, " < last; ++", index, ")"}));
    } else {
      open_loop(index, end);
    }
  }
  void open_loop(const std::string& index, std::int64_t end) {
    open(cat({"for (std::int64_t ", index, " = 0; ", index, " < ", end, "; ++", index, ")"}));
  }
  static std::string note_of(const List<std::string>& notes, int i) {
    return at(i) < notes.size() ? notes[at(i)] : std::string();
  }

  static void add_term(std::string& sum, const std::string& index, std::int64_t stride) {
    if (stride != 0) {
      sum += (sum.empty() ? "" : " + ") + (stride == 1 ? index : cat({index, " * ", stride}));
    }
  }
  std::string dim_name(std::size_t d) const { return dims_.size() == 1 ? "row" : cat({"i", d}); }

  // in0[row * 64 + col]
  std::string element(int input, bool columns, const std::string& col = "col") const {
    const VectorInput& in = inputs_[at(input)];
    std::string sum;
    for (std::size_t d = 0; d < dims_.size(); ++d) {
      add_term(sum, dim_name(d), in.strides[d]);
    }
    if (columns) {
      add_term(sum, col, in.column_step);
    }
    return cat({"in", input, "[", sum.empty() ? "0" : sum, "]"});
  }
  std::string result_element(int output, bool rows, bool columns) const {
    std::string sum;
    if (rows && rows_ != 1) {
      add_term(sum, "row", columns ? cols_ : 1);
    }
    if (columns) {
      add_term(sum, "col", 1);
    }
    return cat({"out", output, "[", sum.empty() ? "0" : sum, "]"});
  }

  std::string expression(int i) {
    const VectorValue& v = value(i);
    const auto name = [&](int k) { return v.operands[k] < 0 ? "" : named(v.operands[k]); };
    const std::string a = name(0), b = name(1), c = name(2);
    switch (v.op) {
      case Op::add: return a + " + " + b;
      case Op::sub: return a + " - " + b;
      case Op::mul: return a + " * " + b;
      case Op::div: return a + " / " + b;
      case Op::mul_add: return a + " * " + b + " + " + c;
      case Op::less: return a + " < " + b + " ? 1.0f : 0.0f";
      case Op::equal: return a + " == " + b + " ? 1.0f : 0.0f";
      case Op::where: return a + " != 0.0f ? " + b + " : " + c;
      case Op::square: return a + " * " + a;
      case Op::exp:
      case Op::log:
      case Op::sqrt:
      case Op::tanh:
      case Op::erf: return cat({"std::", facts_of(v.op).name, "(", a, ")"});
      case Op::exp_sub: return "std::exp(" + a + " - " + b + ")";
      case Op::column_number: return "static_cast<float>(col)";
      case Op::pow: return power(a, value(v.operands[1]).number);
      default:
        needs_.add(v.op);
        return cat({facts_of(v.op).name, "(", a, b.empty() ? "" : ", ", b, ")"});
    }
  }

  static std::string power(const std::string& a, float exponent) {
    if (exponent == 1.0f || exponent == 2.0f || exponent == 3.0f) {
      return a + (exponent > 1.0f ? " * " + a : "") + (exponent > 2.0f ? " * " + a : "");
    }
    std::string number = cpp_number(exponent);
    const bool finite = is_finite(static_cast<double>(exponent));
    number = finite ? printed('g', 17, static_cast<double>(exponent)) : "double{" + number + "}";
    number += finite && number.find_first_of(".e") == std::string::npos ? ".0" : "";
    return "static_cast<float>(std::pow(double{" + a + "}, " + number + "))";
  }

  void print_pointers() {
    depth_ = 1;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      if (used_[i] != 0) {
        line(cat({"const float* const in", i, " = in[", i, "];"}),
             note_of(notes_.inputs, static_cast<int>(i)));
      }
    }
    for (std::size_t o = 0; o < outputs_.size(); ++o) {
      line(cat({"float* const out", o, " = out[", o, "];"}),
           note_of(notes_.outputs, static_cast<int>(o)));
    }
  }

  void print_scratch() {
    List<std::string> rows;
    for (int i = 0; i < count(); ++i) {
      if (is_needed(i) && is_kept(i)) {
        rows.push_back(cat({"kept_", i}));
      }
    }
    for (std::size_t o = 0; o < outputs_.size(); ++o) {
      if (outputs_[o].kind == Output::column_sums) {
        rows.push_back(cat({"part_", o}));
        line(cat({"std::vector<double> sums_", o, "(", cols_, ");"}));
        needs_.scratch = true;
      } else if (outputs_[o].kind == Output::total) {
        line(cat({"double total_", o, " = 0.0;"}));
      }
    }
    if (!rows.empty()) {
      needs_.scratch = true;
      line(cat(
          {"std::vector<float> scratch(", static_cast<std::int64_t>(rows.size()) * cols_, ");"}));
    }
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const std::int64_t offset = static_cast<std::int64_t>(r) * cols_;
      line(cat({"float* const ", rows[r], " = scratch.data()",
                r == 0 ? std::string() : cat({" + ", offset}), ";"}));
    }
  }

  // The local of a value, when it is no literal.
  void print_local(int i, const std::string& from) {
    line(cat({"const float ", named(i), " = ", from, ";"}), note_of(notes_.values, i));
  }

  void print_loop(int loop, const List<int>& reductions) {
    std::string clauses;
    for (const int i : reductions) {
      clauses += value(i).op == Op::row_max ? " reduction(row_maximum : " : " reduction(+ : ";
      clauses += (value(i).op == Op::row_sum ? cat({"sum_", i}) : named(i)) + ")";
    }
    for (std::size_t o = 0; o < outputs_.size() && loop == last_; ++o) {
      clauses += outputs_[o].kind == Output::total ? cat({" reduction(+ : total_", o, ")"}) : "";
    }
    needs_.loops = true;
    line("SIMD(omp simd" + clauses + ")");
    dims_.empty() ? open_outer_loop("col", cols_) : open_loop("col", cols_);
    for (int i = 0; i < count(); ++i) {
      if (!is_needed(i) || !has_columns(i) || is_literal(i) || !is_in(i, loop)) {
        continue;
      }
      const std::string kept = cat({"kept_", i, "[col]"});
      print_local(i, is_input(i)        ? element(value(i).index, true)
                     : is_made(i, loop) ? expression(i)
                                        : kept);
      if (is_kept(i) && is_made(i, loop)) {
        line(kept + " = " + named(i) + ";");
      }
    }
    for (const int i : reductions) {
      print_reduction(i);
    }
    for (std::size_t o = 0; o < outputs_.size(); ++o) {
      const int number = static_cast<int>(o);
      const VectorResult& out = outputs_[o];
      if (loop == 0 && out.kind == Output::per_column) {
        line(result_element(number, false, true) + " = " + named(out.value) + ";");
      } else if (loop > 0 && loop == last_ && out.kind == Output::full) {
        line(result_element(number, true, true) + " = " + named(out.value) + ";");
      } else if (loop > 0 && loop == last_ && is_sum(out.kind)) {
        line(cat({out.kind == Output::total ? cat({"total_", o}) : cat({"part_", o, "[col]"}),
                  " += ", named(out.value), ";"}));
      }
    }
    close();
  }

  void print_reduction(int i) {
    const VectorValue& v = value(i);
    const std::string a = named(v.operands[0]);
    if (v.op == Op::row_sum) {
      line(cat({"sum_", i, " += ", a, ";"}));
    } else if (v.op == Op::row_max) {
      needs_.add(Op::maximum);
      needs_.maximum = true;
      line(cat({named(i), " = maximum(", a, ", ", named(i), ");"}));
    } else {
      line(cat({named(i), " += static_cast<double>(col) == double{", named(v.operands[1]), "} ? ",
                a, " : 0.0f;"}));
    }
  }

  // What varies with no row.
  void print_once() {
    bool columns = false;
    for (int i = 0; i < count(); ++i) {
      if (!is_needed(i) || is_literal(i)) {
        continue;
      }
      if (is_single(i)) {
        print_local(i, is_input(i) ? element(value(i).index, false) : expression(i));
      } else {
        columns = columns || (has_columns(i) && is_in(i, 0));
      }
    }
    for (std::size_t o = 0; o < outputs_.size(); ++o) {
      if (outputs_[o].kind == Output::single) {
        line(cat({"out", o, "[0] = ", named(outputs_[o].value), ";"}));
      }
      columns = columns || outputs_[o].kind == Output::per_column;
    }
    if (columns) {
      print_loop(0, List<int>());
    }
  }

  bool has_rows() const {
    bool any = writes_ || last_ > 0;
    for (const VectorResult& out : outputs_) {
      any = any || out.kind == Output::per_row;
    }
    return any;
  }

  void print_rows() {
    if (!has_rows()) {
      return;
    }
    for (std::size_t d = 0; d < dims_.size(); ++d) {
      d == 0 ? open_outer_loop(dim_name(d), dims_[d]) : open_loop(dim_name(d), dims_[d]);
    }
    if (dims_.size() > 1) {
      std::string row;
      for (std::size_t d = 0; d < dims_.size(); ++d) {
        row = d == 0 ? "i0" : cat({d > 1 ? "(" + row + ")" : row, " * ", dims_[d], " + i", d});
      }
      if (reads_row()) {
        line("const std::int64_t row = " + row + ";");
      }
    }
    for (int loop = 1; loop <= last_ + 1; ++loop) {
      print_row_values(loop);
      if (loop <= last_) {
        const List<int> reductions = begin_reductions(loop);
        print_loop(loop, reductions);
        for (const int i : reductions) {
          if (value(i).op == Op::row_sum) {
            print_local(i, cat({"static_cast<float>(sum_", i, ")"}));
          }
        }
      }
    }
    for (std::size_t o = 0; o < outputs_.size(); ++o) {
      if (outputs_[o].kind == Output::per_row) {
        line(result_element(static_cast<int>(o), true, false) + " = " + named(outputs_[o].value) +
             ";");
      }
    }
    print_parts();
    for (std::size_t d = 0; d < dims_.size(); ++d) {
      close();
    }
  }

  bool reads_row() const {
    bool reads = false;
    for (const VectorResult& out : outputs_) {
      reads = reads || (out.kind == Output::full && cols_ != 0) || out.kind == Output::per_row ||
              out.kind == Output::column_sums;
    }
    return reads;
  }

  // Values of a row that are known before this loop and not before the last.
  void print_row_values(int loop) {
    for (int i = 0; i < count(); ++i) {
      const bool row = is_needed(i) && is_per_row(i) && phase_[at(i)] == loop;
      if (!row || is_literal(i) || (is_reduction(i) && !picks_at_once(i))) {
        continue;
      }
      if (is_input(i)) {
        print_local(i, element(value(i).index, false));
      } else if (is_reduction(i)) {
        const std::string number = named(value(i).operands[1]);
        const std::string place = "static_cast<std::int64_t>(" + number + ")";
        line(cat({"const bool there_", i, " = ", number, " >= 0.0f && double{", number, "} < ",
                  cols_, ".0 && std::floor(", number, ") == ", number, ";"}));
        print_local(i, cat({"there_", i, " ? ",
                            element(value(value(i).operands[0]).index, true, place), " : 0.0f"}));
      } else {
        print_local(i, expression(i));
      }
    }
  }

  List<int> begin_reductions(int loop) {
    List<int> out;
    for (int i = 0; i < count(); ++i) {
      if (!is_needed(i) || !is_reduction(i) || picks_at_once(i) || phase_[at(i)] != loop + 1) {
        continue;
      }
      out.push_back(i);
      const std::string note = note_of(notes_.values, i);
      if (value(i).op == Op::row_sum) {
        line(cat({"double sum_", i, " = 0.0;"}));
      } else {
        line(cat({"float ", named(i), " = ", value(i).op == Op::row_max ? "-INFINITY" : "0.0f",
                  ";"}),
             note);
      }
    }
    return out;
  }

  // Sums of columns are gathered in double every 32 rows.
  void print_parts() {
    bool any = false;
    for (const VectorResult& out : outputs_) {
      any = any || out.kind == Output::column_sums;
    }
    if (!any) {
      return;
    }
    if (rows_ != 1) {
      open(cat({"if (row % 32 == 31 || row == ", rows_ - 1, ")"}));
    }
    open_loop("col", cols_);
    for (std::size_t o = 0; o < outputs_.size(); ++o) {
      if (outputs_[o].kind == Output::column_sums) {
        line(cat({"sums_", o, "[static_cast<std::size_t>(col)] += part_", o, "[col];"}));
        line(cat({"part_", o, "[col] = 0.0f;"}));
      }
    }
    close();
    if (rows_ != 1) {
      close();
    }
  }

  void print_sums() {
    for (std::size_t o = 0; o < outputs_.size(); ++o) {
      if (outputs_[o].kind == Output::total) {
        line(cat({"out", o, "[0] = static_cast<float>(total_", o, ");"}));
      } else if (outputs_[o].kind == Output::column_sums) {
        open_loop("col", cols_);
        line(cat({"out", o, "[col] = static_cast<float>(sums_", o,
                  "[static_cast<std::size_t>(col)]);"}));
        close();
      }
    }
  }

  std::string name_;
  CppNotes notes_;
  CppNeeds& needs_;
  CppForm form_;
  int depth_ = 0;
  std::string out_;
};

}  // namespace detail
}  // namespace tinyscale
