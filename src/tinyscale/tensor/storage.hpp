#pragma once
// The numbers of a tensor: a 64-byte aligned buffer of floats, counted by the memory meter that was
// current when it was made.

#include <cstddef>  // size_t
#include <cstdint>  // int64_t
#include <new>      // align_val_t, nothrow

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/shape.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/measure/context.hpp"
#include "tinyscale/measure/memory.hpp"

namespace tinyscale {
namespace detail {

struct Storage {
  float* data = nullptr;
  std::int64_t count = 0;
  MemoryKind kind = MemoryKind::activation;
  Shared<MemoryMeter> meter;

  Storage(const Shape& shape, MemoryKind k)
      : count(shape.count()), kind(k), meter(context().memory) {
    const bool fits = count <= (std::int64_t{1} << 38);
    if (fits) {
      const std::size_t n = bytes() == 0 ? sizeof(float) : bytes();
      data = static_cast<float*>(::operator new(n, std::align_val_t(64), std::nothrow));
    }
    if (data == nullptr) {
      throw Error(cat("Tensor: shape ", shape, " takes ",
                      format_bytes(4 * static_cast<double>(count)),
                      fits ? "; this machine has no memory left for that"
                           : "; a tensor holds at most 2^38 numbers, 1.1 TB"));
    }
    if (meter) {
      meter->add(kind, static_cast<double>(bytes()));
    }
  }
  ~Storage() {
    ::operator delete(data, std::align_val_t(64));
    if (meter) {
      meter->remove(kind, static_cast<double>(bytes()));
    }
  }
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  std::size_t bytes() const { return static_cast<std::size_t>(count) * sizeof(float); }
};

}  // namespace detail
}  // namespace tinyscale
