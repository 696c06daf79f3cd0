#pragma once
// A counted pointer: the last one that lets go deletes the object. What std::shared_ptr does, for a
// tenth of what each type in one costs a user's compile.

#include <atomic>
#include <cstddef>  // nullptr_t

namespace tinyscale {
namespace detail {

// What needs no type: the object, and how many hold it.
class SharedHead {
 public:
  SharedHead() = default;
  SharedHead(const SharedHead& other) : object_(other.object_), holders_(other.holders_) {
    if (holders_ != nullptr) {
      holders_->fetch_add(1);
    }
  }
  explicit operator bool() const { return object_ != nullptr; }
  bool operator==(std::nullptr_t) const { return object_ == nullptr; }
  bool operator!=(std::nullptr_t) const { return object_ != nullptr; }
  int use_count() const { return holders_ == nullptr ? 0 : holders_->load(); }

 protected:
  // True for the last holder, who deletes the object.
  bool let_go() {
    if (holders_ == nullptr || holders_->fetch_sub(1) > 1) {
      return false;
    }
    delete holders_;
    return true;
  }
  void swap(SharedHead& other) noexcept {
    void* const object = object_;
    std::atomic<int>* const holders = holders_;
    object_ = other.object_;
    holders_ = other.holders_;
    other.object_ = object;
    other.holders_ = holders;
  }

  void* object_ = nullptr;
  std::atomic<int>* holders_ = nullptr;
};

}  // namespace detail

template <class T>
class Shared : public detail::SharedHead {
 public:
  Shared() = default;
  explicit Shared(T* object) {
    holders_ = new std::atomic<int>(1);
    object_ = const_cast<void*>(static_cast<const void*>(object));
  }
  Shared(const Shared&) = default;
  Shared(Shared&& other) noexcept { swap(other); }
  ~Shared() {
    if (let_go()) {
      delete static_cast<T*>(object_);
    }
  }
  Shared& operator=(Shared other) noexcept {
    swap(other);
    return *this;
  }

  T* get() const { return static_cast<T*>(object_); }
  T* operator->() const { return static_cast<T*>(object_); }
  T& operator*() const { return *static_cast<T*>(object_); }
  void reset() { *this = Shared(); }
  void reset(T* object) { *this = Shared(object); }
};

}  // namespace tinyscale
