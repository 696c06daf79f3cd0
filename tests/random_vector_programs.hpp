#pragma once
// Random vector programs that are exact in float, and what tests of them need.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernel_tests.hpp"
#include "tinyscale.hpp"

namespace random_vector_programs {

namespace ts = tinyscale;
namespace kernel = tinyscale::kernels;
using kernel::VectorOp;
using kernel::VectorOutput;
using kernel::VectorProgram;
using kernel_tests::Floats;

inline std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

// The outputs of a program, each with a guard of 16 numbers behind it.
struct Outputs {
  std::vector<Floats> memory;
  std::vector<float*> pointers;

  explicit Outputs(const VectorProgram& p) {
    for (const ts::detail::VectorResult& out : p.outputs()) {
      const bool rows = out.kind == VectorOutput::full || out.kind == VectorOutput::per_row;
      const bool cols = out.kind == VectorOutput::full || out.kind == VectorOutput::per_column ||
                        out.kind == VectorOutput::column_sums;
      memory.emplace_back(size((rows ? p.rows() : 1) * (cols ? p.cols() : 1) + 16), 77.5f);
    }
    for (Floats& each : memory) {
      pointers.push_back(each.data());
    }
  }
};

inline std::vector<const float*> pointers_of(const std::vector<Floats>& inputs) {
  std::vector<const float*> out;
  for (const Floats& each : inputs) {
    out.push_back(each.data());
  }
  return out;
}

inline Outputs truth_of(const VectorProgram& p, const std::vector<const float*>& inputs) {
  Outputs out(p);
  kernel::run_reference(p, inputs.data(), out.pointers.data());
  return out;
}

struct Dice {
  std::uint64_t seed, at = 0;
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(ts::uniform01(seed, at++) * static_cast<float>(n)) % n;
  }
};

// Random programs whose every value is exact in float: whole numbers over a power of two, of so few
// digits that no order of additions rounds. A value is kept with a bound and its finest unit.
struct RandomProgram {
  struct Known {
    double bound, unit;
  };
  Dice dice;
  ts::Shape outer;
  std::int64_t cols;
  VectorProgram p;
  std::vector<Known> known;
  std::vector<Floats> inputs;

  RandomProgram(std::uint64_t seed, const ts::Shape& shape, std::int64_t columns)
      : dice{seed}, outer(shape), cols(columns), p(shape, columns) {
    const std::int64_t count = 1 + dice.below(4);
    for (std::int64_t i = 0; i < count; ++i) {
      add_input();
    }
    p.literal(0.5f);
    known.push_back({0.5, 0.5});
    p.literal(-2.0f);
    known.push_back({2, 1});
    for (std::int64_t i = 0, steps = 1 + dice.below(12); i < steps; ++i) {
      add_step();
    }
    for (std::int64_t i = 0, outputs = 1 + dice.below(4); i < outputs; ++i) {
      add_output();
    }
  }

  void add_input() {
    const std::int64_t kind = dice.below(6);
    std::int64_t floats = outer.count() * cols;
    if (kind == 0) {
      p.per_row_input();
      floats = outer.count();
    } else if (kind == 1) {
      p.per_column_input();
      floats = cols;
    } else if (kind == 2) {
      p.single_input();
    } else if (kind == 3) {  // transposed, broadcast and with gaps
      ts::List<std::int64_t> strides;
      std::int64_t step = 1 + dice.below(3);
      const std::int64_t column_step = dice.below(3);
      floats = 1 + cols * column_step;
      for (int d = 0; d < outer.size(); ++d) {
        strides.push_back(dice.below(3) == 0 ? 0 : step);
        floats += step * outer[d];
        step *= outer[d] + 1;
      }
      p.input(strides, column_step);
    } else if (kind == 4 && outer.size() > 1) {  // repeated over the first dim
      ts::List<std::int64_t> strides(size(outer.size()));
      for (int d = outer.size() - 1, step = static_cast<int>(cols); d > 0; --d) {
        strides[size(d)] = step;
        step *= static_cast<int>(outer[d]);
      }
      p.input(strides, 1);
    } else {
      p.dense_input();
    }
    Floats x(size(std::max<std::int64_t>(floats, 1)));
    for (float& each : x) {
      each = static_cast<float>(dice.below(5) - 2);
    }
    inputs.push_back(x);
    known.push_back({2, 1});
  }

  int pick() { return static_cast<int>(dice.below(static_cast<std::int64_t>(known.size()))); }
  bool try_add(VectorOp op, const Known& k, int a, int b = -1, int c = -1) {
    if (k.bound / k.unit > 1e6) {
      return false;
    }
    p.apply(op, a, b, c);
    known.push_back(k);
    return true;
  }

  void add_step() {
    const int ia = pick(), ib = pick(), ic = pick();
    const Known a = known[size(ia)], b = known[size(ib)], c = known[size(ic)];
    const Known either{std::max(a.bound, b.bound), std::min(a.unit, b.unit)};
    const bool columns = ts::detail::varies_with_columns(p.extent(ia));
    switch (dice.below(16)) {
      case 0: try_add(VectorOp::add, {a.bound + b.bound, either.unit}, ia, ib); break;
      case 1: try_add(VectorOp::sub, {a.bound + b.bound, either.unit}, ia, ib); break;
      case 2:
      case 3: try_add(VectorOp::mul, {a.bound * b.bound, a.unit * b.unit}, ia, ib); break;
      case 4:
        try_add(VectorOp::mul_add, {a.bound * b.bound + c.bound, std::min(a.unit * b.unit, c.unit)},
                ia, ib, ic);
        break;
      case 5: try_add(VectorOp::maximum, either, ia, ib); break;
      case 6: try_add(VectorOp::less, {1, 1}, ia, ib); break;
      case 7: try_add(VectorOp::equal, {1, 1}, ia, ib); break;
      case 8:
        try_add(VectorOp::where, {std::max(b.bound, c.bound), std::min(b.unit, c.unit)}, ia, ib,
                ic);
        break;
      case 9: try_add(VectorOp::relu, a, ia); break;
      case 10: try_add(VectorOp::relu_slope, {1, 1}, ia); break;
      case 11: try_add(VectorOp::copy, a, ia); break;
      case 12: {
        const bool twice = dice.below(2) == 0;
        p.literal(twice ? 2.0f : 3.0f);
        known.push_back({3, 1});
        const double power = twice ? 2.0 : 3.0;
        try_add(VectorOp::pow, {std::pow(a.bound, power), std::pow(a.unit, power)}, ia,
                static_cast<int>(known.size()) - 1);
        break;
      }
      case 13:
        if (columns) {
          try_add(VectorOp::row_sum, {a.bound * static_cast<double>(cols + 1), a.unit}, ia);
        }
        break;
      case 14:
        if (columns && cols > 0) {
          try_add(VectorOp::row_max, a, ia);
        }
        break;
      default:
        if (columns && !ts::detail::varies_with_columns(p.extent(ib))) {
          try_add(VectorOp::row_pick, a, ia, ib);
        } else {
          try_add(VectorOp::column_number, {static_cast<double>(cols + 1), 1}, -1);
        }
    }
  }

  void add_output() {
    const int i = dice.below(2) == 0 ? static_cast<int>(known.size()) - 1 : pick();
    const Known k = known[size(i)];
    const std::int64_t kind = dice.below(6);
    if (kind == 0 && k.bound / k.unit * static_cast<double>(outer.count() + 1) < 1e7) {
      p.output(i, VectorOutput::column_sums);
    } else if (kind == 1 &&
               k.bound / k.unit * static_cast<double>((outer.count() + 1) * (cols + 1)) < 1e7) {
      p.output(i, VectorOutput::total);
    } else if (kind < 4) {
      p.output(i, static_cast<VectorOutput>(p.extent(i)));
    } else {
      p.output(i, VectorOutput::full);
    }
  }
};

}  // namespace random_vector_programs
