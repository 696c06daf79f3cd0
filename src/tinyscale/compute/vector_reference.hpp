#pragma once
// The reference body of vector programs: value after value over the whole table, in double.

#include <algorithm>  // max
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "tinyscale/compute/elementwise.hpp"
#include "tinyscale/compute/vector_program.hpp"

namespace tinyscale {
namespace detail {

// The numbers of a value: as many as it varies over.
struct VectorNumbers {
  kernels::VectorExtent extent = kernels::VectorExtent::single;
  std::int64_t cols = 1;
  std::vector<double> numbers;

  double& at(std::int64_t row, std::int64_t col) {
    const std::int64_t width = varies_with_columns(extent) ? cols : 1;
    const std::int64_t place =
        (varies_with_rows(extent) ? row * width : 0) + (varies_with_columns(extent) ? col : 0);
    return numbers[static_cast<std::size_t>(place)];
  }
};

// Ops of one number, slopes first.
inline double slope_op_reference(kernels::VectorOp op, double a) {
  using kernels::VectorOp;
  switch (op) {
    case VectorOp::relu_slope: return kernels::relu_slope_reference(a);
    case VectorOp::tanh_slope: return kernels::tanh_slope_reference(a);
    case VectorOp::silu_slope: return kernels::silu_slope_reference(a);
    case VectorOp::gelu_slope: return kernels::gelu_slope_reference(a);
    case VectorOp::gelu_tanh_slope: return kernels::gelu_tanh_slope_reference(a);
    default: return a;
  }
}

inline double unary_op_reference(kernels::VectorOp op, double a) {
  using kernels::VectorOp;
  switch (op) {
    case VectorOp::exp: return kernels::exp_reference(a);
    case VectorOp::log: return kernels::log_reference(a);
    case VectorOp::sqrt: return kernels::sqrt_reference(a);
    case VectorOp::tanh: return kernels::tanh_reference(a);
    case VectorOp::erf: return kernels::erf_reference(a);
    case VectorOp::square: return kernels::square_reference(a);
    case VectorOp::relu: return kernels::relu_reference(a);
    case VectorOp::sigmoid: return kernels::sigmoid_reference(a);
    case VectorOp::silu: return kernels::silu_reference(a);
    case VectorOp::gelu: return kernels::gelu_reference(a);
    case VectorOp::gelu_tanh: return kernels::gelu_tanh_reference(a);
    default: return slope_op_reference(op, a);
  }
}

inline double vector_op_reference(kernels::VectorOp op, double a, double b, double c) {
  using kernels::VectorOp;
  switch (op) {
    case VectorOp::add: return a + b;
    case VectorOp::sub: return a - b;
    case VectorOp::mul: return a * b;
    case VectorOp::div: return a / b;
    case VectorOp::mul_add: return a * b + c;
    case VectorOp::maximum: return is_nan(a) ? a : a > b ? a : b;
    case VectorOp::less: return a < b ? 1.0 : 0.0;
    case VectorOp::equal: return a == b ? 1.0 : 0.0;
    case VectorOp::where: return a != 0.0 ? b : c;
    case VectorOp::pow: return std::pow(a, b);
    case VectorOp::exp_sub: return std::exp(a - b);
    default: return unary_op_reference(op, a);
  }
}

inline double row_reduction_reference(kernels::VectorOp op, std::int64_t row, std::int64_t cols,
                                      VectorNumbers& a, double number) {
  using kernels::VectorOp;
  double result = op == VectorOp::row_max ? -std::numeric_limits<double>::infinity() : 0.0;
  for (std::int64_t j = 0; j < cols; ++j) {
    const double x = a.at(row, j);
    if (op == VectorOp::row_sum) {
      result += x;
    } else if (op == VectorOp::row_max) {
      result = is_nan(x) || is_nan(result) ? result + x : std::max(result, x);
    } else if (number == static_cast<double>(j)) {
      result = x;
    }
  }
  return result;
}

// As many numbers as a value of this extent has, each 0.
inline VectorNumbers zeros_of(const kernels::VectorProgram& p, kernels::VectorExtent extent) {
  const std::int64_t rows = varies_with_rows(extent) ? p.rows() : 1;
  const std::int64_t cols = varies_with_columns(extent) ? p.cols() : 1;
  return {extent, p.cols(), std::vector<double>(static_cast<std::size_t>(rows * cols))};
}

// Operand i of number (r, j) of a value; 0 where there is none.
inline double operand_reference(const VectorValue& v, List<VectorNumbers>& all, int i,
                                std::int64_t r, std::int64_t j) {
  return i < facts_of(v.op).operands ? all[static_cast<std::size_t>(v.operands[i])].at(r, j) : 0.0;
}

// Number (r, j) of a value, those before it known.
inline double element_reference(const kernels::VectorProgram& p, const VectorValue& v,
                                List<VectorNumbers>& all, const float* const* inputs,
                                std::int64_t r, std::int64_t j) {
  if (v.kind == VectorValue::literal) {
    return double{v.number};
  }
  if (v.kind == VectorValue::input) {
    const VectorInput& in = p.inputs()[static_cast<std::size_t>(v.index)];
    return double{inputs[v.index][row_offset(p.outer(), in, r) + j * in.column_step]};
  }
  if (is_row_reduction(v.op)) {
    VectorNumbers& row = all[static_cast<std::size_t>(v.operands[0])];
    return row_reduction_reference(v.op, r, p.cols(), row, operand_reference(v, all, 1, r, 0));
  }
  const auto operand = [&](int i) { return operand_reference(v, all, i, r, j); };
  return v.op == kernels::VectorOp::column_number
             ? static_cast<double>(j)
             : vector_op_reference(v.op, operand(0), operand(1), operand(2));
}

inline VectorNumbers value_reference(const kernels::VectorProgram& p, const VectorValue& v,
                                     List<VectorNumbers>& all, const float* const* inputs) {
  VectorNumbers out = zeros_of(p, v.extent);
  const std::int64_t width = varies_with_columns(v.extent) ? p.cols() : 1;
  for (std::size_t i = 0; i < out.numbers.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    out.numbers[i] = element_reference(p, v, all, inputs, at / width, at % width);
  }
  return out;
}

// What is asked for of a value: its numbers, or their sums.
inline VectorNumbers output_reference(const kernels::VectorProgram& p, kernels::VectorOutput kind,
                                      VectorNumbers& value) {
  using kernels::VectorOutput;
  const bool sums = kind == VectorOutput::column_sums || kind == VectorOutput::total;
  VectorNumbers out =
      zeros_of(p, kind == VectorOutput::column_sums ? kernels::VectorExtent::per_column
                  : kind == VectorOutput::total     ? kernels::VectorExtent::single
                                                    : static_cast<kernels::VectorExtent>(kind));
  const std::int64_t rows = sums || varies_with_rows(out.extent) ? p.rows() : 1;
  const std::int64_t cols = sums || varies_with_columns(out.extent) ? p.cols() : 1;
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    double& y = out.at(i / cols, i % cols);
    y = value.at(i / cols, i % cols) + (sums ? y : 0.0);
  }
  return out;
}

}  // namespace detail

namespace kernels {

// inputs[i] and outputs[i] as the program numbers them.
inline void run_reference(const VectorProgram& p, const float* const* inputs,
                          float* const* outputs) {
  List<detail::VectorNumbers> all;
  for (const detail::VectorValue& v : p.values()) {
    all.push_back(detail::value_reference(p, v, all, inputs));
  }
  for (std::size_t o = 0; o < p.outputs().size(); ++o) {
    const auto value = static_cast<std::size_t>(p.outputs()[o].value);
    const detail::VectorNumbers out = detail::output_reference(p, p.outputs()[o].kind, all[value]);
    for (std::size_t i = 0; i < out.numbers.size(); ++i) {
      outputs[o][i] = static_cast<float>(out.numbers[i]);
    }
  }
}

}  // namespace kernels
}  // namespace tinyscale
