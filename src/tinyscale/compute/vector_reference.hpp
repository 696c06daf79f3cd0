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
    case VectorOp::exp: return std::exp(a);
    case VectorOp::log: return std::log(a);
    case VectorOp::sqrt: return std::sqrt(a);
    case VectorOp::tanh: return std::tanh(a);
    case VectorOp::erf: return std::erf(a);
    case VectorOp::pow: return std::pow(a, b);
    case VectorOp::square: return a * a;
    case VectorOp::relu: return a < 0.0 ? 0.0 : a;
    case VectorOp::sigmoid: return 1.0 / (1.0 + std::exp(-a));
    case VectorOp::silu: return kernels::silu_reference(a);
    case VectorOp::gelu: return kernels::gelu_reference(a);
    case VectorOp::gelu_tanh: return kernels::gelu_tanh_reference(a);
    case VectorOp::relu_slope: return a > 0.0 ? 1.0 : 0.0;
    case VectorOp::tanh_slope: return kernels::tanh_slope_reference(a);
    case VectorOp::silu_slope: return kernels::silu_slope_reference(a);
    case VectorOp::gelu_slope: return kernels::gelu_slope_reference(a);
    case VectorOp::gelu_tanh_slope: return kernels::gelu_tanh_slope_reference(a);
    case VectorOp::exp_sub: return std::exp(a - b);
    default: return a;
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

inline VectorNumbers reference_value(const kernels::VectorProgram& p, const VectorValue& v,
                                     List<VectorNumbers>& all, const float* const* inputs) {
  VectorNumbers out;
  out.extent = v.extent;
  out.cols = p.cols();
  const std::int64_t rows = varies_with_rows(v.extent) ? p.rows() : 1;
  const std::int64_t cols = varies_with_columns(v.extent) ? p.cols() : 1;
  out.numbers.resize(static_cast<std::size_t>(rows * cols));
  const auto operand = [&](int i) -> VectorNumbers& {
    return all[static_cast<std::size_t>(v.operands[i])];
  };
  const int operands = facts_of(v.op).operands;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t j = 0; j < cols; ++j) {
      double& y = out.at(r, j);
      if (v.kind == VectorValue::literal) {
        y = double{v.number};
      } else if (v.kind == VectorValue::input) {
        const VectorInput& in = p.inputs()[static_cast<std::size_t>(v.index)];
        y = double{inputs[v.index][row_offset(p.outer(), in, r) + j * in.column_step]};
      } else if (is_row_reduction(v.op)) {
        y = row_reduction_reference(v.op, r, p.cols(), operand(0),
                                    operands > 1 ? operand(1).at(r, 0) : 0.0);
      } else if (v.op == kernels::VectorOp::column_number) {
        y = static_cast<double>(j);
      } else {
        y = vector_op_reference(v.op, operand(0).at(r, j), operands > 1 ? operand(1).at(r, j) : 0.0,
                                operands > 2 ? operand(2).at(r, j) : 0.0);
      }
    }
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
    all.push_back(detail::reference_value(p, v, all, inputs));
  }
  for (std::size_t o = 0; o < p.outputs().size(); ++o) {
    const VectorOutput kind = p.outputs()[o].kind;
    detail::VectorNumbers& value = all[static_cast<std::size_t>(p.outputs()[o].value)];
    const bool sums = kind == VectorOutput::column_sums || kind == VectorOutput::total;
    detail::VectorNumbers out;
    out.cols = p.cols();
    out.extent = kind == VectorOutput::column_sums ? VectorExtent::per_column
                 : kind == VectorOutput::total     ? VectorExtent::single
                                                   : static_cast<VectorExtent>(kind);
    const std::int64_t rows = detail::varies_with_rows(out.extent) ? p.rows() : 1;
    const std::int64_t cols = detail::varies_with_columns(out.extent) ? p.cols() : 1;
    out.numbers.resize(static_cast<std::size_t>(rows * cols));
    for (std::int64_t r = 0; r < (sums ? p.rows() : rows); ++r) {
      for (std::int64_t j = 0; j < (sums ? p.cols() : cols); ++j) {
        out.at(r, j) = value.at(r, j) + (sums ? out.at(r, j) : 0.0);
      }
    }
    for (std::size_t i = 0; i < out.numbers.size(); ++i) {
      outputs[o][i] = static_cast<float>(out.numbers[i]);
    }
  }
}

}  // namespace kernels
}  // namespace tinyscale
