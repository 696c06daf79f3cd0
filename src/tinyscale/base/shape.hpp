#pragma once
// The sizes of a tensor, a machine or a grid: [8, 4096].
// Up to eight dims are stored in place, so that a shape costs no allocation.

#include <cstdint>
#include <initializer_list>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

#include "tinyscale/base/error.hpp"

namespace tinyscale {

// One size, made from any integer type, so that {batch, width} is never a narrowing error.
struct Dim {
  std::int64_t value = 0;

  Dim() = default;
  Dim(int size) : value(size) {}
  Dim(unsigned size) : value(std::int64_t{size}) {}
  Dim(long size) : value(size) {}
  Dim(long long size) : value(size) {}
  Dim(unsigned long size) : Dim(static_cast<unsigned long long>(size)) {}
  Dim(unsigned long long size) : value(static_cast<std::int64_t>(size)) {
    if (size > static_cast<unsigned long long>(std::numeric_limits<std::int64_t>::max())) {
      detail::fail({"Dim: size ", size, " does not fit; at most 2^63 - 1"});
    }
  }
};

class Shape {
 public:
  static constexpr int max_dims = 8;

  Shape() = default;
  Shape(std::initializer_list<Dim> dims) {
    for (const Dim& dim : dims) {
      push_back(dim);
    }
  }
  explicit Shape(const std::vector<std::int64_t>& dims) {
    for (const std::int64_t dim : dims) {
      push_back(dim);
    }
  }

  // The number of dims; 0 for the shape of a scalar.
  int size() const { return size_; }
  bool empty() const { return size_ == 0; }

  // The size of dim `i`; a negative `i` counts from the end.
  std::int64_t operator[](int i) const { return dims_[index(i)]; }

  // The number of elements: the product of all sizes, 1 for a scalar.
  std::int64_t count() const {
    std::int64_t product = 1;
    bool overflow = false;
    for (const std::int64_t dim : *this) {
      if (dim == 0) {
        return 0;
      }
      const std::int64_t small = std::int64_t{1} << 31;  // needs no division
      overflow = overflow || ((product >= small || dim >= small) &&
                              product > std::numeric_limits<std::int64_t>::max() / dim);
      product = overflow ? 1 : product * dim;
    }
    if (overflow) {
      detail::fail({"Shape: ", text(), " has too many elements; at most 2^63 - 1"});
    }
    return product;
  }

  void push_back(Dim dim) {
    if (size_ == max_dims) {
      detail::fail({"Shape: a dim more than ", text(), "; at most ", max_dims, " dims"});
    }
    check_size(dim);
    dims_[size_++] = dim.value;
  }

  // Replaces the size of dim `i`; a negative `i` counts from the end.
  void set(int i, Dim dim) {
    check_size(dim);
    dims_[index(i)] = dim.value;
  }

  const std::int64_t* begin() const { return dims_; }
  const std::int64_t* end() const { return dims_ + size_; }
  std::vector<std::int64_t> values() const {
    std::vector<std::int64_t> out(static_cast<std::size_t>(size_));
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = dims_[i];
    }
    return out;
  }

  std::string text() const {
    std::string out = "[";
    for (int i = 0; i < size_; ++i) {
      out += (i > 0 ? ", " : "") + std::to_string(dims_[i]);
    }
    return out + "]";
  }

 private:
  int index(int i) const {
    if (i < -size_ || i >= size_) {
      const std::string right =
          size_ == 0 ? "it has no dims" : detail::cat({"dims are ", -size_, " to ", size_ - 1});
      detail::fail({"Shape: dim ", i, " of ", text(), "; ", right});
    }
    return i < 0 ? i + size_ : i;
  }

  static void check_size(Dim dim) {
    if (dim.value < 0) {
      detail::fail({"Shape: size ", dim.value, "; sizes are 0 or more"});
    }
  }

  std::int64_t dims_[max_dims] = {};
  int size_ = 0;
};

inline bool operator==(const Shape& a, const Shape& b) {
  bool same = a.size() == b.size();
  for (int i = 0; same && i < a.size(); ++i) {
    same = a.begin()[i] == b.begin()[i];
  }
  return same;
}
inline bool operator!=(const Shape& a, const Shape& b) { return !(a == b); }

inline void append_text(std::string& out, const Shape& shape) { out += shape.text(); }
inline std::ostream& operator<<(std::ostream& out, const Shape& shape) {
  return out << shape.text();
}

}  // namespace tinyscale
