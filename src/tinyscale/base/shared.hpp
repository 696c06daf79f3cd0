#pragma once
// A counted pointer: the last one that lets go deletes the object. What std::shared_ptr does, for a
// tenth of what each type in one costs a user's compile.

#include <atomic>
#include <cstddef>  // nullptr_t
#include <cstdint>  // uint32_t
#include <new>      // placement

#include "tinyscale/base/pool.hpp"

namespace tinyscale {
namespace detail {

// How many hold an object, and how it ends; `block` is the size of the memory that holds both, in
// units of 16 bytes, 0 when the object was made by new.
struct Holders {
  using Destroy = void (*)(void* object, bool made_by_new);

  std::atomic<int> count{1};
  std::uint32_t block = 0;
  Destroy destroy = nullptr;  // nothing to destroy while the object is not there yet
};

// What needs no type, which is all but the making: who holds a Shared need not know the object's.
class SharedHead {
 public:
  SharedHead() = default;
  SharedHead(const SharedHead& other) : object_(other.object_), holders_(other.holders_) {
    if (holders_ != nullptr) {
      holders_->count.fetch_add(1, std::memory_order_relaxed);
    }
  }
  ~SharedHead() {
    if (holders_ != nullptr) {
      let_go();
    }
  }
  explicit operator bool() const { return object_ != nullptr; }
  bool operator==(std::nullptr_t) const { return object_ == nullptr; }
  bool operator!=(std::nullptr_t) const { return object_ != nullptr; }
  int use_count() const {
    return holders_ == nullptr ? 0 : holders_->count.load(std::memory_order_acquire);
  }

 protected:
  // Gives up holding; the last holder deletes the object. Who holds it alone need not count down.
  // Out of line, as all that is below: every function that has a Shared would hold a copy.
  [[gnu::noinline]] void let_go() {
    if (use_count() == 1 || holders_->count.fetch_sub(1) == 1) {
      const std::size_t block = std::size_t{16} * holders_->block;
      if (holders_->destroy != nullptr) {
        holders_->destroy(object_, block == 0);
      }
      pool_give(holders_, 1, block == 0 ? sizeof(Holders) : block);
    }
  }
  void hold(void* object, Holders::Destroy destroy) {
    holders_ = new (pool_take(1, sizeof(Holders))) Holders;
    holders_->destroy = destroy;
    object_ = object;
  }
  // Memory for the count and `bytes` more, which begin where object_ points: 16 bytes on.
  [[gnu::noinline]] void make_block(std::size_t bytes) {
    static_assert(sizeof(Holders) <= 16, "the object begins 16 bytes on");
    const std::size_t units = (bytes + 15) / 16 + 1;
    void* const memory = pool_take(1, 16 * units);
    holders_ = new (memory) Holders;
    holders_->block = static_cast<std::uint32_t>(units);
    object_ = static_cast<char*>(memory) + 16;
  }
  void swap(SharedHead& other) noexcept {
    void* const object = object_;
    Holders* const holders = holders_;
    object_ = other.object_;
    holders_ = other.holders_;
    other.object_ = object;
    other.holders_ = holders;
  }

  void* object_ = nullptr;
  Holders* holders_ = nullptr;
};

}  // namespace detail

template <class T>
class Shared : public detail::SharedHead {
 public:
  Shared() = default;
  explicit Shared(T* object) { hold(const_cast<void*>(static_cast<const void*>(object)), destroy); }
  Shared(const Shared&) = default;
  Shared(Shared&& other) noexcept { swap(other); }
  Shared& operator=(Shared other) noexcept {
    swap(other);
    return *this;
  }

  // A default T in memory that is used again, with `more` bytes behind it.
  static Shared make(std::size_t more = 0) {
    static_assert(alignof(T) <= 16, "as far as make_block aligns");
    Shared made;
    made.make_block(sizeof(T) + more);
    new (made.object_) T;
    made.holders_->destroy = destroy;
    return made;
  }

  T* get() const { return static_cast<T*>(object_); }
  T* operator->() const { return static_cast<T*>(object_); }
  T& operator*() const { return *static_cast<T*>(object_); }
  void reset() { *this = Shared(); }
  void reset(T* object) { *this = Shared(object); }

 private:
  static void destroy(void* object, bool made_by_new) {
    if (made_by_new) {
      delete static_cast<T*>(object);
    } else {
      static_cast<T*>(object)->~T();
    }
  }
};

}  // namespace tinyscale
