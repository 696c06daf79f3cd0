#pragma once
// A growing array of the library's own structs: the rows of a report, links, messages. Numbers and
// strings stay in std::vector. It is here for what a user waits for: every struct type put into a
// std::vector costs each of the user's compiles 4 to 8 ms, in a List a tenth of that.

#include <cstddef>
#include <initializer_list>
#include <vector>

namespace tinyscale {

// The used part of std::vector, with its names. T has a default value: places past the end hold it.
template <class T>
class List {
 public:
  using value_type = T;
  using size_type = std::size_t;
  using iterator = T*;
  using const_iterator = const T*;

  List() = default;
  explicit List(std::size_t n) : items_(new T[n]()), size_(n), capacity_(n) {}
  List(std::initializer_list<T> items) : List() { append(items.begin(), items.size()); }
  List(const List& other) : List() { append(other.items_, other.size_); }
  List(List&& other) noexcept { swap(other); }
  ~List() { delete[] items_; }
  List& operator=(List other) noexcept {
    swap(other);
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

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* data() { return items_; }
  const T* data() const { return items_; }
  T* begin() { return items_; }
  const T* begin() const { return items_; }
  T* end() { return items_ + size_; }
  const T* end() const { return items_ + size_; }
  T& operator[](std::size_t i) {
    check(i);
    return items_[i];
  }
  const T& operator[](std::size_t i) const {
    check(i);
    return items_[i];
  }
  T& front() { return (*this)[0]; }
  const T& front() const { return (*this)[0]; }
  T& back() { return (*this)[size_ - 1]; }
  const T& back() const { return (*this)[size_ - 1]; }

  void push_back(T item) {  // by value: the item may be one of this list
    if (size_ == capacity_) {
      reserve(size_ < 4 ? 4 : 2 * size_);
    }
    items_[size_] = static_cast<T&&>(item);
    ++size_;
  }
  void pop_back() {
    check(size_ - 1);
    items_[size_ - 1] = T();
    --size_;
  }
  void resize(std::size_t n) {
    if (n > capacity_) {
      reserve(n);
    }
    for (std::size_t i = n; i < size_; ++i) {
      items_[i] = T();
    }
    size_ = n;
  }
  void clear() { resize(0); }
  void assign(std::size_t n, const T& item) {
    List filled(n);
    for (T& each : filled) {
      each = item;
    }
    swap(filled);
  }
  void reserve(std::size_t capacity) {
    if (capacity > capacity_) {
      List larger;  // takes the items it has when one cannot be moved
      larger.items_ = new T[capacity]();
      larger.capacity_ = capacity;
      for (; larger.size_ < size_; ++larger.size_) {
        larger.items_[larger.size_] = static_cast<T&&>(items_[larger.size_]);
      }
      swap(larger);
    }
  }
  void swap(List& other) noexcept {
    T* const items = items_;
    const std::size_t size = size_, capacity = capacity_;
    items_ = other.items_, size_ = other.size_, capacity_ = other.capacity_;
    other.items_ = items, other.size_ = size, other.capacity_ = capacity;
  }

 private:
  void append(const T* items, std::size_t n) {
    reserve(size_ + n);
    for (std::size_t i = 0; i < n; ++i) {
      items_[size_] = items[i];
      ++size_;
    }
  }
  void check(std::size_t i) const {
#if defined(_GLIBCXX_ASSERTIONS)
    __glibcxx_assert(i < size_);
#else
    static_cast<void>(i);
#endif
  }

  T* items_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace tinyscale
