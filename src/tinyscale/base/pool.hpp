#pragma once
// Memory that is used again: blocks by size, on free lists that all threads share, so that a step
// of training that repeats the last one asks the system for nothing. No thread owns a block.
// Free blocks are at most as many bytes as were ever in use at once, and 64 MiB: beyond that all
// go back to the system. Under a sanitizer every block comes from the system and returns there.

#include <atomic>
#include <cstddef>
#include <new>     // align_val_t, bad_alloc, nothrow
#include <thread>  // this_thread::yield

#include "tinyscale/base/config.hpp"

namespace tinyscale {
namespace detail {

struct FreeBlock {
  FreeBlock* next = nullptr;
};

// Small free blocks that a thread keeps to itself as long as one of these lives on it. Threads that
// meet again and again would else hand each other blocks, and wait for the lines of each other's
// caches whenever they write to one.
class ThreadBlocks {
 public:
  ThreadBlocks() : before_(current()) { current() = this; }
  ~ThreadBlocks();
  ThreadBlocks(const ThreadBlocks&) = delete;
  ThreadBlocks& operator=(const ThreadBlocks&) = delete;

  static constexpr std::size_t bins = 24;  // of the pool: up to 4 KiB
  static ThreadBlocks*& current() {
    static thread_local struct { ThreadBlocks* blocks; } own;
    return own.blocks;
  }

  FreeBlock* take(std::size_t bin) {
    FreeBlock* const block = first_[bin];
    if (block != nullptr) {
      first_[bin] = block->next;
      --count_[bin];
    }
    return block;
  }
  // Whether there was room for it.
  bool give(std::size_t bin, FreeBlock* block) {
    const bool fits = count_[bin] < most;
    if (fits) {
      block->next = first_[bin];
      first_[bin] = block;
      ++count_[bin];
    }
    return fits;
  }

 private:
  static constexpr unsigned char most = 8;
  ThreadBlocks* before_;
  FreeBlock* first_[bins] = {};
  unsigned char count_[bins] = {};
};

// All blocks are 64-byte aligned. Up to 1 KiB their sizes are multiples of 64, above that 64 bytes
// more than 4, 5, 6 or 7 times a power of two, so that a header and a round size fit.
class Pool {
 public:
  // Null when the system has no memory left.
  void* take(std::size_t bytes) {
    const SizeClass size = size_class(bytes);
    ThreadBlocks* const own = size.bin < ThreadBlocks::bins ? ThreadBlocks::current() : nullptr;
    FreeBlock* const kept = own != nullptr ? own->take(size.bin) : nullptr;
    if (kept != nullptr) {
      return kept;
    }
    Bin& bin = bins_[size.bin];
    const std::size_t side = thread_side();
    lock(bin);
    FreeBlock*& first = bin.first[bin.first[side] != nullptr ? side : 1 - side];
    FreeBlock* const block = first;
    if (block != nullptr) {
      first = block->next;
    }
    bin.busy.store(false, std::memory_order_release);
    if (size.bytes >= counted) {
      count_taken(size.bytes, block == nullptr);
    }
    return block != nullptr ? block : from_system(size.bytes);
  }

  // `bytes` as they were asked for.
  void give(void* memory, std::size_t bytes) {
    const SizeClass size = size_class(bytes);
    if (size.bytes >= counted) {
      live_.fetch_sub(size.bytes, std::memory_order_relaxed);
      free_.fetch_add(size.bytes, std::memory_order_relaxed);
    }
    FreeBlock* const block = new (memory) FreeBlock;
    ThreadBlocks* const own = size.bin < ThreadBlocks::bins ? ThreadBlocks::current() : nullptr;
    if (own == nullptr || !own->give(size.bin, block)) {
      put(size.bin, block);
    }
  }
  // A free block of a bin comes to all threads.
  void put(std::size_t number, FreeBlock* block) {
    Bin& bin = bins_[number];
    FreeBlock*& first = bin.first[thread_side()];
    lock(bin);
    block->next = first;
    first = block;
    bin.busy.store(false, std::memory_order_release);
  }

  // Every free block goes back to the system.
  void release() {
    for (std::size_t i = 0; i < 2 * bins; ++i) {
      Bin& bin = bins_[i / 2];
      lock(bin);
      FreeBlock* block = bin.first[i % 2];
      bin.first[i % 2] = nullptr;
      bin.busy.store(false, std::memory_order_release);
      const std::size_t bytes = bin_bytes(i / 2);
      while (block != nullptr) {
        FreeBlock* const next = block->next;
        ::operator delete(block, std::align_val_t(64));
        free_.fetch_sub(bytes >= counted ? bytes : 0, std::memory_order_relaxed);
        block = next;
      }
    }
  }

 private:
  static constexpr std::size_t counted = 4096;  // smaller blocks are not worth counting
  static constexpr std::size_t bins = 16 + 4 * 60;
  static_assert(ThreadBlocks::bins <= 24, "what a thread keeps is not counted");
  struct Bin {
    std::atomic<bool> busy{false};
    FreeBlock* first[2] = {};  // by the side that gave them; guarded by busy
  };
  struct SizeClass {
    std::size_t bin, bytes;
  };

  // Threads are on one side or the other, and take first what was given on theirs: two that work at
  // once find in their own cache what they take. A thread that starts after another is on the
  // other.
  static std::size_t thread_side() {
    static thread_local struct { unsigned int number; } own;
    if (own.number == 0) {
      static std::atomic<unsigned int> threads{0};
      own.number = threads.fetch_add(1, std::memory_order_relaxed) % 2 + 1;
    }
    return own.number - 1;
  }

  static void lock(Bin& bin) {
    while (bin.busy.exchange(true, std::memory_order_acquire)) {
      std::this_thread::yield();
    }
  }

  static std::size_t bin_bytes(std::size_t bin) {
    return bin < 16 ? 64 * (bin + 1) : 64 * ((4 + bin % 4) * (std::size_t{4} << (bin / 4 - 4)) + 1);
  }
  static SizeClass size_class(std::size_t bytes) {
    const std::size_t lines = bytes / 64 + (bytes % 64 != 0 || bytes == 0 ? 1 : 0);
    if (lines <= 16) {
      return {lines - 1, 64 * lines};
    }
    std::size_t k = 4;  // 2^k < round size <= 2^(k + 1), in lines
    while ((lines - 2) >> (k + 1) != 0) {
      ++k;
    }
    const std::size_t step = std::size_t{1} << (k - 2);
    const std::size_t j = (lines - 2 - 3 * step) / step;  // 0 to 4
    const std::size_t bin = 16 + 4 * (k - 4) + j;
    return {bin, bin_bytes(bin)};
  }

  void count_taken(std::size_t bytes, bool made) {
    const std::size_t live = live_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    std::size_t peak = peak_.load(std::memory_order_relaxed);
    while (live > peak && !peak_.compare_exchange_weak(peak, live, std::memory_order_relaxed)) {
    }
    if (!made) {
      free_.fetch_sub(bytes, std::memory_order_relaxed);
    } else if (free_.load(std::memory_order_relaxed) > peak + (std::size_t{64} << 20)) {
      release();
    }
  }

  void* from_system(std::size_t bytes) {
    void* memory = ::operator new(bytes, std::align_val_t(64), std::nothrow);
    if (memory == nullptr) {
      release();
      memory = ::operator new(bytes, std::align_val_t(64), std::nothrow);
    }
    if (memory == nullptr && bytes >= counted) {
      live_.fetch_sub(bytes, std::memory_order_relaxed);
    }
    return memory;
  }

  Bin bins_[bins];
  std::atomic<std::size_t> live_{0}, free_{0}, peak_{0};  // bytes of counted blocks
};

// Never destroyed: tensors may outlive every other static object.
inline Pool& pool() {
  static Pool all;
  return all;
}

inline ThreadBlocks::~ThreadBlocks() {
  current() = before_;
  for (std::size_t bin = 0; bin < bins; ++bin) {
    for (FreeBlock* block = take(bin); block != nullptr; block = take(bin)) {
      pool().put(bin, block);
    }
  }
}

// Memory for `n` things of `size` bytes, 64-byte aligned; give it back with the same numbers. More
// than a terabyte is not asked for: some allocators would end the program.
[[gnu::noinline]] inline void* pool_take(std::size_t n, std::size_t size) {
  if (n > (std::size_t{1} << 40) / size) {
    throw std::bad_alloc();
  }
#if TINYSCALE_POOL
  void* const memory = pool().take(n * size);
#else
  void* const memory = ::operator new(n* size, std::align_val_t(64), std::nothrow);
#endif
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}

[[gnu::noinline]] inline void pool_give(void* memory, std::size_t n, std::size_t size) {
#if TINYSCALE_POOL
  pool().give(memory, n * size);
#else
  static_cast<void>(n * size);
  ::operator delete(memory, std::align_val_t(64));
#endif
}

}  // namespace detail

// Gives memory that is kept for reuse back to the system.
inline void release_memory() { detail::pool().release(); }

}  // namespace tinyscale
