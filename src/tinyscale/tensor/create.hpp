#pragma once
// Tensors from nothing: constants, counter-based random numbers, a list.
// A random element depends on the seed and its index alone (Philox), never on the layout or order.

#include <algorithm>  // fill_n
#include <cmath>      // fabs, frexp, nextafter
#include <cstdint>    // uint64_t
#include <limits>     // numeric_limits
#include <vector>     // vector

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/random.hpp"
#include "tinyscale/tensor/arithmetic.hpp"
#include "tinyscale/tensor/record.hpp"
#include "tinyscale/tensor/tensor.hpp"

namespace tinyscale {

inline Tensor full(const Shape& shape, float value) {
  if (detail::recording()) {
    const Tensor one = detail::record(Op::literal, {}, Shape{}, {static_cast<double>(value)});
    return shape.empty()
               ? one
               : detail::record(Op::broadcast_to, {&one}, shape, detail::as_numbers(shape));
  }
  Tensor t(shape);
  std::fill_n(t.data(), t.count(), value);
  return t;
}

// Every quotient is rounded once: where a reciprocal is exact, which is cheaper, by that.
inline Tensor operator/(const Tensor& x, float divisor) {
  int exponent = 0;
  const bool power_of_two = std::fabs(std::frexp(divisor, &exponent)) == 0.5f;
  const float reciprocal = 1.0f / divisor;  // of the smallest numbers it is infinite
  return power_of_two && detail::is_finite(static_cast<double>(reciprocal))
             ? scale(x, reciprocal)
             : div(x, full(Shape{}, divisor));
}
inline Tensor operator/(float value, const Tensor& x) { return div(full(Shape{}, value), x); }

inline Tensor zeros(const Shape& shape) { return full(shape, 0.0f); }

inline Tensor ones(const Shape& shape) { return full(shape, 1.0f); }

// As many of one number as x has.
inline Tensor full_like(const Tensor& x, float value) {
  detail::check_defined(x);
  return full(x.shape(), value);
}
inline Tensor zeros_like(const Tensor& x) { return full_like(x, 0.0f); }

inline Tensor ones_like(const Tensor& x) { return full_like(x, 1.0f); }

// Normal numbers of mean 0 and standard deviation `scale`.
inline Tensor randn(const Shape& shape, std::uint64_t seed, float scale = 1.0f) {
  Tensor t(shape);
  detail::fill_normal(t.data(), t.count(), seed, 0, scale);
  return t;
}

// Uniform numbers in [low, high).
inline Tensor uniform(const Shape& shape, std::uint64_t seed, float low = 0.0f, float high = 1.0f) {
  if (!(low <= high) || !detail::is_finite(low) || !detail::is_finite(high)) {
    detail::fail({"uniform: numbers from ", static_cast<double>(low), " to ",
                  static_cast<double>(high), "; finite ends, the lower one first, are right"});
  }
  Tensor t(shape);
  detail::fill_uniform(t.data(), t.count(), seed, 0, 1.0f);
  const double span = static_cast<double>(high) - static_cast<double>(low);
  const bool wide = span > static_cast<double>(std::numeric_limits<float>::max());
  for (std::int64_t i = 0; i < t.count(); ++i) {
    const float at = t.data()[i];
    const float x =
        wide ? static_cast<float>(static_cast<double>(low) + span * static_cast<double>(at))
             : low + (high - low) * at;
    t.data()[i] = x >= high && low < high ? std::nextafter(high, low) : x;  // rounded up
  }
  return t;
}

// The given numbers in row-major order.
inline Tensor tensor(const Shape& shape, const std::vector<float>& values) {
  if (static_cast<std::int64_t>(values.size()) != shape.count()) {
    detail::fail({"tensor: ", values.size(), " values given for shape ", shape.text(),
                  ", which holds ", shape.count()});
  }
  Tensor t(shape);
  float* to = t.data();
  for (std::size_t i = 0; i < values.size(); ++i) {
    to[i] = values[i];
  }
  return t;
}

// 0, 1, ..., n - 1.
inline Tensor arange(Dim n) {
  if (n.value > (std::int64_t{1} << 24) + 1) {
    detail::fail({"arange: ", n.value, " numbers; up to 16777217 are whole numbers of f32"});
  }
  if (detail::recording()) {
    return detail::record(Op::iota, {}, Shape{n}, {static_cast<double>(n.value)});
  }
  Tensor t(Shape{n});
  for (std::int64_t i = 0; i < n.value; ++i) {
    t.data()[i] = static_cast<float>(i);
  }
  return t;
}

}  // namespace tinyscale
