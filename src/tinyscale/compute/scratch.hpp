#pragma once
// Scratch memory that kernels borrow from the free lists of all threads.

#include <cstddef>
#include <cstdint>
#include <new>  // bad_alloc

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/pool.hpp"

namespace tinyscale {
namespace detail {

// Borrows `count` floats, contents undefined, until it goes out of scope.
class Scratch {
 public:
  explicit Scratch(std::int64_t count)
      : count_(static_cast<std::size_t>(count)), memory_(take(count)) {}
  ~Scratch() { pool_give(memory_, count_, sizeof(float)); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  float* data() const { return static_cast<float*>(memory_); }

 private:
  static void* take(std::int64_t count) {
    try {
      return pool_take(static_cast<std::size_t>(count), sizeof(float));
    } catch (const std::bad_alloc&) {
      fail({"kernel: ", count, " floats of scratch memory; this machine has none left"});
    }
  }

  std::size_t count_;
  void* memory_;
};

}  // namespace detail
}  // namespace tinyscale
