#pragma once
// A vector program: what is to be computed of every row of a table, as a list of instructions.
//   VectorProgram p({8, 128}, 1024);                        // 8 x 128 rows of 1024 columns
//   const int x = p.dense_input(), max = p.apply(VectorOp::row_max, x);
//   const int e = p.apply(VectorOp::exp_sub, x, max), sum = p.apply(VectorOp::row_sum, e);
//   p.output(p.apply(VectorOp::div, e, sum), VectorOutput::full);
//   run(plan_vectors(p), &in, &out);                        // a softmax
// It holds no pointers: a plan is made once and runs on any memory of those sizes.

#include <cstddef>
#include <cstdint>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/shape.hpp"

namespace tinyscale {
namespace kernels {

// What an instruction does with the numbers a, b, c; gelu and its like as in elementwise.hpp.
enum class VectorOp : unsigned char {
  copy,
  add,
  sub,
  mul,
  div,
  mul_add,  // a b + c
  maximum,  // NaN where one is; b where they are equal
  less,     // 1 where a < b, else 0
  equal,
  where,  // a != 0 ? b : c
  exp,
  log,
  sqrt,
  tanh,
  erf,
  pow,  // a to the literal b, in double
  square,
  relu,
  sigmoid,
  silu,
  gelu,
  gelu_tanh,
  relu_slope,  // the derivative at a
  tanh_slope,
  silu_slope,
  gelu_slope,
  gelu_tanh_slope,
  exp_sub,        // exp(a - b)
  column_number,  // 0, 1, 2, .. in every row
  row_sum,        // of a row of a
  row_max,        // NaN where one is, -inf of no columns
  row_pick,       // number b of a row of a, 0 where there is none of this number
  // What a plan makes of them; not to be applied:
  cube,
  exp_below_max,  // exp(a - b) for a <= b
  sub_squares,    // a - b, and the sum of its squares
  sum_exp,        // row_max, and the sum of exp(a - it)
  gather,         // an input that lies otherwise than it is computed with
  column_sums,    // an output adds up
  total,
  total_squares,
  stream,  // copy past the caches
};

// Over what a value varies, as bits: rows 1, columns 2. Of two operands: both together.
enum class VectorExtent : unsigned char { single, per_row, per_column, full };

// What is written: the value itself, as [], [rows], [cols] or [rows, cols]; the sum of its rows
// [cols], gathered in double every 32 rows; or the sum of all, in double in a fixed order.
enum class VectorOutput : unsigned char { single, per_row, per_column, full, column_sums, total };

}  // namespace kernels

namespace detail {

struct VectorOpFacts {
  const char* name;
  int operands;
};

inline constexpr VectorOpFacts vector_op_facts[] = {
    {"copy", 1},          {"add", 2},           {"sub", 2},
    {"mul", 2},           {"div", 2},           {"mul_add", 3},
    {"maximum", 2},       {"less", 2},          {"equal", 2},
    {"where", 3},         {"exp", 1},           {"log", 1},
    {"sqrt", 1},          {"tanh", 1},          {"erf", 1},
    {"pow", 2},           {"square", 1},        {"relu", 1},
    {"sigmoid", 1},       {"silu", 1},          {"gelu", 1},
    {"gelu_tanh", 1},     {"relu_slope", 1},    {"tanh_slope", 1},
    {"silu_slope", 1},    {"gelu_slope", 1},    {"gelu_tanh_slope", 1},
    {"exp_sub", 2},       {"column_number", 0}, {"row_sum", 1},
    {"row_max", 1},       {"row_pick", 2},      {"cube", 1},
    {"exp_below_max", 2}, {"sub_squares", 2},   {"sum_exp", 1},
    {"gather", 1},        {"column_sums", 1},   {"total", 1},
    {"total_squares", 1}, {"stream", 1}};

constexpr const VectorOpFacts& facts_of(kernels::VectorOp op) {
  return vector_op_facts[static_cast<std::size_t>(op)];
}

inline const char* name_of(kernels::VectorOutput kind) {
  static const char* const names[] = {"single", "per_row",     "per_column",
                                      "full",   "column_sums", "total"};
  return names[static_cast<std::size_t>(kind)];
}

inline const char* name_of(kernels::VectorExtent extent) {
  return name_of(static_cast<kernels::VectorOutput>(extent));
}

constexpr bool varies_with_rows(kernels::VectorExtent e) {
  return (static_cast<unsigned>(e) & 1U) != 0;
}
constexpr bool varies_with_columns(kernels::VectorExtent e) {
  return (static_cast<unsigned>(e) & 2U) != 0;
}
constexpr kernels::VectorExtent joined(kernels::VectorExtent a, kernels::VectorExtent b) {
  return static_cast<kernels::VectorExtent>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}
constexpr bool is_row_reduction(kernels::VectorOp op) {
  return op >= kernels::VectorOp::row_sum && op <= kernels::VectorOp::row_pick;
}

struct VectorInput {
  std::int64_t strides[Shape::max_dims] = {};  // elements from one index of outer to the next
  std::int64_t column_step = 0;
};

// One value of a program: an input, a literal or what an instruction gives.
struct VectorValue {
  enum Kind : unsigned char { input, literal, result };
  Kind kind = result;
  kernels::VectorOp op = kernels::VectorOp::copy;
  kernels::VectorExtent extent = kernels::VectorExtent::single;
  int operands[3] = {-1, -1, -1};
  int index = 0;        // of an input
  float number = 0.0f;  // of a literal
};

struct VectorResult {
  int value = 0;
  kernels::VectorOutput kind = kernels::VectorOutput::full;
  bool squared = false;  // the total of the value's squares; only VectorRewrite makes these
};

}  // namespace detail

namespace kernels {

// Values are numbered in the order in which they are made. rows = the product of outer.
class VectorProgram {
 public:
  VectorProgram() = default;  // one row of one column
  VectorProgram(const Shape& outer, Dim cols) : outer_(outer), cols_(cols.value) {
    rows_ = outer.count();
    Shape{rows_, cols}.count();  // which says so when there are too many elements
  }

  // An input: row (i0, i1, ..) begins i0 strides[0] + i1 strides[1] + .. elements after its
  // pointer, and its columns are column_step apart. A stride of 0 repeats.
  int input(const List<std::int64_t>& strides, std::int64_t column_step) {
    if (strides.size() != static_cast<std::size_t>(outer_.size())) {
      detail::fail({"VectorProgram: an input with ", strides.size(), " strides; outer is ", outer_,
                    ", so ", outer_.size()});
    }
    detail::VectorInput in;
    bool rows = false;
    for (int i = 0; i < outer_.size(); ++i) {
      const std::int64_t stride = strides[static_cast<std::size_t>(i)];
      in.strides[i] = outer_[i] == 1 ? 0 : stride;
      rows = rows || in.strides[i] != 0;
    }
    in.column_step = column_step;
    detail::VectorValue v;
    v.kind = detail::VectorValue::input;
    v.extent = static_cast<VectorExtent>((rows ? 1 : 0) + (column_step != 0 ? 2 : 0));
    v.index = static_cast<int>(inputs_.size());
    inputs_.push_back(in);
    return push(v);
  }
  int dense_input() { return input(row_strides(cols_), 1); }   // [outer, cols]
  int per_row_input() { return input(row_strides(1), 0); }     // [outer]
  int per_column_input() { return input(row_strides(0), 1); }  // [cols]
  int single_input() { return input(row_strides(0), 0); }

  int literal(float number) {
    detail::VectorValue v;
    v.kind = detail::VectorValue::literal;
    v.number = number;
    return push(v);
  }

  int apply(VectorOp op, int a = -1, int b = -1, int c = -1) {
    check_op(op, a, b, c);
    detail::VectorValue v;
    v.op = op;
    const int operands[3] = {a, b, c};
    for (int i = 0; i < detail::facts_of(op).operands; ++i) {
      v.operands[i] = operands[i];
      v.extent = detail::joined(v.extent, value(operands[i]).extent);
    }
    v.extent = detail::is_row_reduction(op)    ? VectorExtent::per_row
               : op == VectorOp::column_number ? VectorExtent::per_column
                                               : v.extent;
    return push(v);
  }

  // Output number 0, 1, ..: a value that varies over less is repeated. A full output may be the
  // memory of a dense input; else no output shares memory with an input or another output.
  void output(int value_number, VectorOutput kind) {
    const char* const name = detail::name_of(kind);
    check_value(value_number, "an output");
    const VectorExtent extent = value(value_number).extent;
    if (kind < VectorOutput::full && detail::joined(extent, static_cast<VectorExtent>(kind)) !=
                                         static_cast<VectorExtent>(kind)) {
      detail::fail({"VectorProgram: value ", value_number, " is ", detail::name_of(extent),
                    ", an output ", name, " cannot hold it"});
    }
    outputs_.push_back({value_number, kind});
  }

  // The same of so many rows; its own must be in one dimension.
  VectorProgram with_rows(Dim rows) const {
    if (outer_.size() != 1) {
      detail::fail({"VectorProgram: with_rows of a program whose outer is ", outer_,
                    "; it must have one dimension"});
    }
    VectorProgram out = *this;
    out.outer_ = Shape{rows};
    out.rows_ = rows.value;
    Shape{rows, cols_}.count();
    return out;
  }

  const Shape& outer() const { return outer_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  VectorExtent extent(int value_number) const {
    check_value(value_number, "extent");
    return value(value_number).extent;
  }
  const List<detail::VectorInput>& inputs() const { return inputs_; }
  const List<detail::VectorValue>& values() const { return values_; }
  const List<detail::VectorResult>& outputs() const { return outputs_; }

 private:
  const detail::VectorValue& value(int i) const { return values_[static_cast<std::size_t>(i)]; }

  int push(const detail::VectorValue& v) {
    values_.push_back(v);
    return static_cast<int>(values_.size()) - 1;
  }

  List<std::int64_t> row_strides(std::int64_t of_last) const {
    List<std::int64_t> strides(static_cast<std::size_t>(outer_.size()));
    for (std::size_t i = strides.size(); i > 0; --i) {
      strides[i - 1] = of_last;
      of_last *= outer_[static_cast<int>(i) - 1];
    }
    return strides;
  }

  void check_value(int i, const char* user) const {
    if (i < 0 || i >= static_cast<int>(values_.size())) {
      detail::fail(
          {"VectorProgram: value ", i, " of ", user, "; there are ", values_.size(), " values"});
    }
  }

  void check_op(VectorOp op, int a, int b, int c) const {
    const char* const name = detail::facts_of(op).name;
    if (op >= VectorOp::cube) {
      detail::fail({"VectorProgram: ", name, " is made by a plan, not applied"});
    }
    const int wanted = detail::facts_of(op).operands;
    const int given = (a >= 0 ? 1 : 0) + (b >= 0 ? 1 : 0) + (c >= 0 ? 1 : 0);
    if (given != wanted) {
      detail::fail({"VectorProgram: ", name, " takes ", wanted, " values, here are ", given});
    }
    const int operands[3] = {a, b, c};
    for (int i = 0; i < wanted; ++i) {
      check_value(operands[i], name);
    }
    if (op == VectorOp::pow && value(b).kind != detail::VectorValue::literal) {
      detail::fail({"VectorProgram: pow to value ", b, "; the exponent is a literal"});
    }
    if (detail::is_row_reduction(op) && !detail::varies_with_columns(value(a).extent)) {
      detail::fail({"VectorProgram: ", name, " of value ", a, ", which is ",
                    detail::name_of(value(a).extent), "; it takes full or per_column"});
    }
    if (op == VectorOp::row_pick && detail::varies_with_columns(value(b).extent)) {
      detail::fail({"VectorProgram: row_pick by value ", b, ", which is ",
                    detail::name_of(value(b).extent), "; it takes per_row or single"});
    }
  }

  Shape outer_;
  std::int64_t rows_ = 1, cols_ = 1;
  List<detail::VectorInput> inputs_;
  List<detail::VectorValue> values_;
  List<detail::VectorResult> outputs_;
};

}  // namespace kernels

namespace detail {

// Where row `row` of an input begins, in elements after its pointer.
inline std::int64_t row_offset(const Shape& outer, const VectorInput& in, std::int64_t row) {
  std::int64_t offset = 0;
  for (int i = outer.size() - 1; i >= 0 && row > 0; --i) {
    offset += row % outer[i] * in.strides[i];
    row /= outer[i];
  }
  return offset;
}

}  // namespace detail
}  // namespace tinyscale
