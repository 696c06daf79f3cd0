#pragma once
// A growing array of the library's own structs: the rows of a report, links, messages. Numbers and
// strings stay in std::vector. It is here for what a user waits for: every struct type put into a
// std::vector costs each of the user's compiles 4 to 8 ms, in a List a tenth of that.

#include <cstddef>
#include <initializer_list>
#include <new>  // bad_alloc, placement
#include <vector>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/pool.hpp"

namespace tinyscale {

namespace detail {

[[gnu::noinline]] inline void* list_memory(std::size_t n, std::size_t size) {
  try {
    return pool_take(n, size);
  } catch (const std::bad_alloc&) {
    fail({"List: ", n, " items of ", size, " bytes; this machine has no memory left for that"});
  }
}

// What a List is without its type.
class ListHead {
 public:
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 protected:
  ListHead() = default;
  ListHead(void* items, std::size_t size) : items_(items), size_(size), capacity_(size) {}
  void swap_heads(ListHead& other) noexcept {
    const ListHead own = *this;
    *this = other;
    other = own;
  }
  void check(std::size_t i) const {
#if defined(_GLIBCXX_ASSERTIONS)
    __glibcxx_assert(i < size_);
#else
    static_cast<void>(i);
#endif
  }

  void* items_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace detail

// The used part of std::vector, with its names. T has a default value: places past the end hold it.
template <class T>
class List : public detail::ListHead {
 public:
  using value_type = T;
  using size_type = std::size_t;
  using iterator = T*;
  using const_iterator = const T*;

  List() = default;
  explicit List(std::size_t n) : ListHead(n > 0 ? make(n) : nullptr, n) {}
  List(std::initializer_list<T> items) : List() { append(items.begin(), items.size()); }
  List(const List& other) : List() { append(other.begin(), other.size_); }
  List(List&& other) noexcept { swap_heads(other); }
  ~List() {
    if (items_ != nullptr) {
      for (std::size_t i = capacity_; i > 0; --i) {
        data()[i - 1].~T();
      }
      detail::pool_give(items_, capacity_, sizeof(T));
    }
  }
  List& operator=(List other) noexcept {
    swap_heads(other);
    return *this;
  }

  // A program may keep its own rows in a std::vector.
  template <class A>
  List(const std::vector<T, A>& other) : List() {
    append(other.data(), other.size());
  }
  template <class A>
  operator std::vector<T, A>() const {
    return std::vector<T, A>(begin(), end());
  }

  T* data() { return static_cast<T*>(items_); }
  const T* data() const { return static_cast<const T*>(items_); }
  T* begin() { return static_cast<T*>(items_); }
  const T* begin() const { return static_cast<const T*>(items_); }
  T* end() { return static_cast<T*>(items_) + size_; }
  const T* end() const { return static_cast<const T*>(items_) + size_; }
  T& operator[](std::size_t i) {
    check(i);
    return static_cast<T*>(items_)[i];
  }
  const T& operator[](std::size_t i) const {
    check(i);
    return static_cast<const T*>(items_)[i];
  }
  T& front() { return (*this)[0]; }
  const T& front() const { return (*this)[0]; }
  T& back() { return (*this)[size_ - 1]; }
  const T& back() const { return (*this)[size_ - 1]; }

  void push_back(T item) {  // by value: the item may be one of this list
    if (size_ == capacity_) {
      reserve(size_ < 4 ? 4 : 2 * size_);
    }
    static_cast<T*>(items_)[size_] = static_cast<T&&>(item);
    ++size_;
  }
  void pop_back() { resize(size_ - 1); }
  void resize(std::size_t n) {
    reserve(n);
    for (; size_ > n; --size_) {
      static_cast<T*>(items_)[size_ - 1] = T();
    }
    size_ = n;
  }
  void clear() { resize(0); }
  void reserve(std::size_t capacity) {
    if (capacity > capacity_) {
      List larger(capacity);
      for (std::size_t i = 0; i < size_; ++i) {
        static_cast<T*>(larger.items_)[i] = static_cast<T&&>(static_cast<T*>(items_)[i]);
      }
      larger.size_ = size_;
      swap_heads(larger);
    }
  }
  void assign(std::size_t n, const T& item) {
    List filled(n);
    for (T& each : filled) {
      each = T(item);
    }
    swap_heads(filled);
  }
  void swap(List& other) noexcept { swap_heads(other); }

 private:
  static T* make(std::size_t n) {
    static_assert(alignof(T) <= 64, "as far as the pool aligns");
    T* const items = static_cast<T*>(detail::list_memory(n, sizeof(T)));
    for (std::size_t i = 0; i < n; ++i) {
      new (items + i) T();
    }
    return items;
  }
  void append(const T* items, std::size_t n) {
    reserve(size_ + n);
    for (std::size_t i = 0; i < n; ++i) {
      static_cast<T*>(items_)[size_] = T(items[i]);  // no copy assignment is compiled
      ++size_;
    }
  }
};

}  // namespace tinyscale
