#pragma once
// Strides: how a view walks through numbers that it shares, and how two operands are walked
// together, one or both repeated (dimensions are matched from the right).

#include <algorithm>  // max
#include <cstdint>    // int64_t

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/shape.hpp"

namespace tinyscale {
namespace detail {

// The steps through a tensor that is not in row-major order without gaps, in elements.
struct Strides {
  std::int64_t of[Shape::max_dims] = {};
};

// Strides of a row-major tensor without gaps.
inline Strides row_major(const Shape& shape) {
  Strides steps;
  std::uint64_t step = 1;  // wraps where a size is 0 and the others are absurd
  for (int i = shape.size() - 1; i >= 0; --i) {
    steps.of[i] = static_cast<std::int64_t>(step);
    step *= static_cast<std::uint64_t>(shape.begin()[i]);
  }
  return steps;
}

inline Shape broadcast_shape(const char* op, const Shape& a, const Shape& b) {
  Shape shape;
  const int dims = std::max(a.size(), b.size());
  for (int i = 0; i < dims; ++i) {
    const int ia = i - (dims - a.size());
    const int ib = i - (dims - b.size());
    const std::int64_t da = ia >= 0 ? a[ia] : 1;
    const std::int64_t db = ib >= 0 ? b[ib] : 1;
    if (da != db && da != 1 && db != 1) {
      fail({op, ": shapes do not match: ", a.text(), " and ", b.text(),
            "; from the right, sizes must be equal or 1"});
    }
    shape.push_back(da == 1 ? db : da);
  }
  return shape;
}

// The steps of a tensor as it is repeated to fill a shape: 0 where it is.
inline Strides broadcast_steps(const Shape& from, const Strides& steps, const Shape& to) {
  Strides out;
  for (int i = to.size() - 1, j = from.size() - 1; j >= 0; --i, --j) {
    out.of[i] = from[j] == 1 ? 0 : steps.of[j];
  }
  return out;
}

// Two operands walked together in the row-major order of a shape. Dims that both cross in even
// steps become one, so that rows are long.
struct Walk {
  Shape shape;
  Strides a, b;

  Walk(const Shape& whole, const Strides& steps_a, const Strides& steps_b) {
    const bool some = whole.count() > 0;  // else the sizes beside 0 may be absurd
    for (int i = 0; i < whole.size() && some; ++i) {
      const std::int64_t n = whole.begin()[i];
      const int last = shape.size() - 1;
      if (last >= 0 && a.of[last] == steps_a.of[i] * n && b.of[last] == steps_b.of[i] * n) {
        shape.set(last, shape[last] * n);
      } else if (n != 1) {
        shape.push_back(n);
      }
      if (n != 1) {
        a.of[shape.size() - 1] = steps_a.of[i];
        b.of[shape.size() - 1] = steps_b.of[i];
      }
    }
    if (shape.empty()) {
      shape.push_back(some ? 1 : 0);
    }
  }

  std::int64_t columns() const { return shape[-1]; }
  std::int64_t step_a() const { return a.of[shape.size() - 1]; }
  std::int64_t step_b() const { return b.of[shape.size() - 1]; }

  // Calls body(first, a, b) for every row: the number of its first element, offsets in a and b.
  template <class Body>
  void rows(const Body& body) const {
    const std::int64_t end = shape.count();
    std::int64_t index[Shape::max_dims] = {};
    std::int64_t at_a = 0;
    std::int64_t at_b = 0;
    for (std::int64_t first = 0; first < end; first += columns()) {
      body(first, at_a, at_b);
      for (int i = shape.size() - 2; i >= 0; --i) {
        at_a += a.of[i];
        at_b += b.of[i];
        if (++index[i] < shape.begin()[i]) {
          break;
        }
        at_a -= a.of[i] * shape.begin()[i];
        at_b -= b.of[i] * shape.begin()[i];
        index[i] = 0;
      }
    }
  }
};

// The dimension along which the first operand lies without gaps, where its rows do not and both are
// long enough to turn the matrix of the two over; else -1.
inline int turned_dim(const Walk& walk) {
  const int last = walk.shape.size() - 1;
  for (int i = 0; i < last && walk.step_a() != 1 && walk.columns() >= 4; ++i) {
    if (walk.a.of[i] == 1 && walk.shape[i] >= 4) {
      return i;
    }
  }
  return -1;
}

}  // namespace detail
}  // namespace tinyscale
