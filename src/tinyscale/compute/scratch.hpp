#pragma once
// Scratch memory that kernels borrow: a free list shared by all threads, so that no thread owns
// memory that must be freed when it ends.

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>  // align_val_t

namespace tinyscale {
namespace detail {

// What stands before the floats of a block: 64 bytes, so that they start on a cache line.
struct alignas(64) ScratchBlock {
  std::int64_t count = 0;
  ScratchBlock* next = nullptr;
};

struct ScratchList {
  std::mutex mutex;               // guards first
  ScratchBlock* first = nullptr;  // free blocks, the last returned first

  ~ScratchList() {
    while (first != nullptr) {
      ScratchBlock* const block = first;
      first = block->next;
      ::operator delete(block, std::align_val_t(64));
    }
  }
};

inline ScratchList& scratch_list() {
  static ScratchList list;
  return list;
}

// Borrows `count` floats, contents undefined, until it goes out of scope.
class Scratch {
 public:
  explicit Scratch(std::int64_t count) : block_(take(count)) {
    if (block_ == nullptr || block_->count < count) {
      ::operator delete(block_, std::align_val_t(64));
      block_ = new (::operator new(sizeof(ScratchBlock) + static_cast<std::size_t>(count) * 4,
                                   std::align_val_t(64))) ScratchBlock{count, nullptr};
    }
  }
  ~Scratch() {
    ScratchList& list = scratch_list();
    const std::lock_guard<std::mutex> lock(list.mutex);
    block_->next = list.first;
    list.first = block_;
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  float* data() const { return reinterpret_cast<float*>(block_ + 1); }

 private:
  // The first free block that is large enough, else any free block, else null.
  static ScratchBlock* take(std::int64_t count) {
    ScratchList& list = scratch_list();
    const std::lock_guard<std::mutex> lock(list.mutex);
    ScratchBlock** at = &list.first;
    for (ScratchBlock** link = at; *link != nullptr; link = &(*link)->next) {
      if ((*link)->count >= count) {
        at = link;
        break;
      }
    }
    ScratchBlock* const block = *at;
    if (block != nullptr) {
      *at = block->next;
    }
    return block;
  }

  ScratchBlock* block_;
};

}  // namespace detail
}  // namespace tinyscale
