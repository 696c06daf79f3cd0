#pragma once
// How an op asks to be recorded in place of being run: one branch where no capture is under way.

#include <cstdint>           // uint64_t
#include <initializer_list>  // inputs of an op

#include "tinyscale/tensor/recorder.hpp"
#include "tinyscale/tensor/tensor.hpp"

namespace tinyscale {
namespace detail {

inline bool recording() { return thread_recorder() != nullptr; }

// Call it only while recording().
inline Tensor record(Op op, std::initializer_list<const Tensor*> inputs, const Shape& shape,
                     const List<double>& numbers = List<double>()) {
  return thread_recorder()->record(op, inputs.begin(), inputs.size(), shape, numbers);
}

// x with its numbers, for what is not recorded and runs now: the graph breaks here.
inline Tensor numbers_now(const Tensor& x, const char* file, int line) {
  if (!recording()) {
    return x;
  }
  if (!x.is_recorded()) {
    thread_recorder()->read_outside(x, file, line);
    return x;
  }
  x.origin(file, line);
  return Tensor(x.shape(), x.storage());
}

// A shape, order or list of sizes as numbers of an op.
template <class Sizes>
List<double> as_numbers(const Sizes& sizes) {
  List<double> numbers;
  for (const auto size : sizes) {
    numbers.push_back(static_cast<double>(size));
  }
  return numbers;
}

// 64 bits in two numbers of 32: a double holds no more than 53.
inline void add_seed(List<double>& numbers, std::uint64_t seed) {
  numbers.push_back(static_cast<double>(seed & 0xFFFFFFFFU));
  numbers.push_back(static_cast<double>(seed >> 32));
}
inline std::uint64_t seed_from(double low, double high) {
  return static_cast<std::uint64_t>(low) | static_cast<std::uint64_t>(high) << 32;
}

}  // namespace detail
}  // namespace tinyscale
