#pragma once
// A vector program made shorter before it is planned: operations that are one loop together become
// one, gelu is found in its formula, and what no output needs is left out.

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "tinyscale/base/list.hpp"
#include "tinyscale/compute/vector_program.hpp"

namespace tinyscale {
namespace detail {

class VectorRewrite {
 public:
  explicit VectorRewrite(const kernels::VectorProgram& p)
      : values(p.values()), outputs(p.outputs()) {
    count_users();
    for (int i = 0; i < static_cast<int>(p.values().size()); ++i) {
      if (users[index(i)] > 0 && at(i).kind == VectorValue::result) {
        rewrite(i);
        count_users();
      }
    }
    for (VectorResult& out : outputs) {
      if (out.kind == kernels::VectorOutput::total && is(out.value, Op::square)) {
        out.value = at(out.value).operands[0];
        out.squared = true;
        count_users();
      }
    }
  }

  List<VectorValue> values;
  List<VectorResult> outputs;
  List<int> users;  // of each value; 0: not needed

 private:
  typedef kernels::VectorOp Op;

  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  VectorValue& at(int i) { return values[index(i)]; }
  VectorValue& operand(const VectorValue& v, int k) { return at(v.operands[k]); }
  bool is(int i, Op op) { return at(i).kind == VectorValue::result && at(i).op == op; }
  bool is_literal(int i) { return at(i).kind == VectorValue::literal; }

  void count_users() {
    users.assign(values.size(), 0);
    for (const VectorResult& out : outputs) {
      ++users[index(out.value)];
    }
    for (int i = static_cast<int>(values.size()) - 1; i >= 0; --i) {
      for (const int from : at(i).operands) {
        if (from >= 0 && users[index(i)] > 0) {
          ++users[index(from)];
        }
      }
    }
  }

  void become(int i, Op op, int a, int b = -1, int c = -1) {
    VectorValue& v = at(i);
    v.op = op;
    v.operands[0] = a;
    v.operands[1] = b;
    v.operands[2] = c;
  }

  int literal(float number) {
    VectorValue v;
    v.kind = VectorValue::literal;
    v.number = number;
    values.push_back(v);
    return static_cast<int>(values.size()) - 1;
  }

  void rewrite(int i) {
    for (int& from : at(i).operands) {
      while (from >= 0 && is(from, Op::copy)) {
        from = at(from).operands[0];
      }
    }
    const VectorValue v = at(i);
    const int a = v.operands[0], b = v.operands[1];
    switch (v.op) {
      case Op::pow: rewrite_power(i, a, at(b).number); break;
      case Op::sub:
        if (is_literal(b)) {
          become(i, Op::add, a, literal(-at(b).number));
          count_users();
          rewrite(i);
        }
        break;
      case Op::mul:
        if (a == b) {
          become(i, Op::square, a);
        } else {
          find_gelu(i);
        }
        break;
      case Op::exp:
        if (is(a, Op::sub) && (users[index(a)] == 1 || is(at(a).operands[1], Op::row_max))) {
          become(i, Op::exp_sub, at(a).operands[0], at(a).operands[1]);
          rewrite(i);
        }
        break;
      case Op::exp_sub:
        if (is(b, Op::row_max) && at(b).operands[0] == a) {
          at(i).op = Op::exp_below_max;
        }
        break;
      case Op::add:
        if (!join_multiply_add(i, a, b)) {
          join_multiply_add(i, b, a);
        }
        break;
      default: break;
    }
  }

  void rewrite_power(int i, int a, float power) {
    if (power == 1.0f) {
      become(i, Op::copy, a);
    } else if (power == 2.0f) {
      become(i, Op::square, a);
    } else if (power == 3.0f) {
      become(i, Op::cube, a);
    }
  }

  bool join_multiply_add(int i, int product, int other) {
    const VectorValue& v = at(product);
    if (users[index(product)] != 1 || v.extent != at(i).extent || v.kind != VectorValue::result ||
        (v.op != Op::mul && v.op != Op::square)) {
      return false;
    }
    const int a = v.operands[0];
    become(i, Op::mul_add, a, v.op == Op::square ? a : v.operands[1], other);
    return true;
  }

  // x (1 + erf(x / sqrt 2)) / 2 in whatever order it is multiplied.
  void find_gelu(int i) {
    double scale = 1.0;
    int factors[4], count = 0;
    if (!find_factors(i, true, scale, factors, count) || count != 2) {
      return;
    }
    for (int k = 0; k < 2; ++k) {
      const int x = factors[1 - k];
      double half = scale;
      if (is_one_plus_erf(factors[k], x, half) && is_near(half, 0.5)) {
        become(i, Op::gelu, x);
        return;
      }
    }
  }

  // The literals of a product multiplied into scale, and its other factors; false where a part of
  // it is needed elsewhere or there are too many.
  bool find_factors(int i, bool top, double& scale, int* factors, int& count) {
    if (is_literal(i)) {
      scale *= double{at(i).number};
      return true;
    }
    if (is(i, Op::mul) && (top || users[index(i)] == 1)) {
      return find_factors(at(i).operands[0], false, scale, factors, count) &&
             find_factors(at(i).operands[1], false, scale, factors, count);
    }
    if (count == 4) {
      return false;
    }
    factors[count++] = i;
    return true;
  }

  // s + s erf(x / sqrt 2), where s joins scale.
  bool is_one_plus_erf(int i, int x, double& scale) {
    const VectorValue& v = at(i);
    if (users[index(i)] != 1 || v.kind != VectorValue::result) {
      return false;
    }
    if (v.op == Op::mul_add && is_literal(v.operands[2])) {
      const double s = double{at(v.operands[2]).number};
      scale *= s;
      return (is_erf(v.operands[0], x) && is_near_literal(v.operands[1], s)) ||
             (is_erf(v.operands[1], x) && is_near_literal(v.operands[0], s));
    }
    return v.op == Op::add && ((is_near_literal(v.operands[0], 1.0) && is_erf(v.operands[1], x)) ||
                               (is_near_literal(v.operands[1], 1.0) && is_erf(v.operands[0], x)));
  }

  bool is_erf(int i, int x) {
    if (!is(i, Op::erf) || users[index(i)] != 1) {
      return false;
    }
    const int inside = at(i).operands[0];
    const VectorValue& v = at(inside);
    if (is(inside, Op::div)) {
      return v.operands[0] == x && is_near_literal(v.operands[1], 1.4142135623730951);
    }
    return is(inside, Op::mul) &&
           ((v.operands[0] == x && is_near_literal(v.operands[1], 0.70710678118654752)) ||
            (v.operands[1] == x && is_near_literal(v.operands[0], 0.70710678118654752)));
  }

  bool is_near_literal(int i, double number) {
    return is_literal(i) && is_near(double{at(i).number}, number);
  }
  static bool is_near(double a, double b) { return std::fabs(a - b) <= 2e-7 * std::fabs(b); }
};

}  // namespace detail
}  // namespace tinyscale
