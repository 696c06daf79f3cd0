#pragma once
// Memory for what is long, made once and read from beginning to end again and again: 64-byte
// aligned, in pages of 2 MiB where Linux gives them (a model of 110M parameters decodes 1.01
// to 1.02 times as fast: fewer of its addresses must be looked up).

#include <cstddef>  // size_t
#include <cstdint>  // int64_t
#include <new>      // align_val_t

#include "tinyscale/base/error.hpp"

// clang-format off
#if defined(__linux__)
#  include <sys/mman.h>  // madvise
#endif
// clang-format on

namespace tinyscale {
namespace detail {

class WeightMemory {
 public:
  explicit WeightMemory(std::size_t bytes) : bytes_(bytes), data_(take()) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (alignment() == page) {
      ::madvise(data_, bytes / page * page, MADV_HUGEPAGE);  // or not: slower, no worse
    }
#endif
  }
  ~WeightMemory() { ::operator delete(data_, std::align_val_t(alignment())); }
  WeightMemory(const WeightMemory&) = delete;
  WeightMemory& operator=(const WeightMemory&) = delete;

  void* data() const { return data_; }

 private:
  void* take() const {
    void* const memory = bytes_ > (std::size_t{1} << 40)  // some allocators would end the program
                             ? nullptr
                             : ::operator new(bytes_, std::align_val_t(alignment()), std::nothrow);
    if (memory == nullptr) {
      fail({"weights: ", bytes_, " bytes; this machine has no memory left for that"});
    }
    return memory;
  }

  static constexpr std::size_t page = std::size_t{1} << 21;
  std::size_t alignment() const {
#if defined(__linux__)
    return bytes_ >= page ? page : 64;
#else
    return 64;
#endif
  }

  std::size_t bytes_;
  void* data_;
};

// Throws where so many weights are no matrix in memory.
inline void check_weights(const char* who, std::int64_t rows, std::int64_t cols) {
  const std::int64_t most = std::int64_t{1} << 40;
  if (rows < 0 || cols < 0 || cols > most / (rows > 0 ? rows : 1)) {
    fail({who, ": ", rows, " x ", cols, " weights; sizes of at least 0, and at most 2^40 weights ",
          "together, are right"});
  }
}

}  // namespace detail
}  // namespace tinyscale
