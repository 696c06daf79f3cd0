#pragma once
// A List that is not copied as it grows: every block is twice as large as the one before, and what
// is in it stays where it is.

#include <cstddef>
#include <utility>  // exchange, move

#include "tinyscale/base/list.hpp"

namespace tinyscale {
namespace detail {

template <class T>
class BlockList {
 public:
  BlockList() = default;
  BlockList(BlockList&& other) noexcept
      : blocks_(std::move(other.blocks_)), size_(std::exchange(other.size_, 0)) {}

  std::size_t size() const { return size_; }
  const T& operator[](std::size_t i) const {
    const std::size_t block = block_of(i);
    return blocks_[block][i - items_before(block)];
  }
  T& operator[](std::size_t i) {
    const std::size_t block = block_of(i);
    return blocks_[block][i - items_before(block)];
  }

  // A default T at its end.
  T& add() {
    if (size_ == items_before(blocks_.size())) {
      blocks_.push_back(List<T>(first_size << blocks_.size()));
    }
    return (*this)[size_++];
  }
  void push_back(const T& item) { add() = item; }

  class Iterator {
   public:
    Iterator(const BlockList* list, std::size_t at) : list_(list), at_(at) {}
    const T& operator*() const { return (*list_)[at_]; }
    void operator++() { ++at_; }
    bool operator!=(const Iterator& other) const { return at_ != other.at_; }

   private:
    const BlockList* list_;
    std::size_t at_;
  };
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, size_}; }

 private:
  static constexpr std::size_t first_size = 32;
  static std::size_t items_before(std::size_t block) { return (first_size << block) - first_size; }
  static std::size_t block_of(std::size_t i) {
    return 63U - static_cast<unsigned>(__builtin_clzll(i / first_size + 1));
  }

  List<List<T>> blocks_;
  std::size_t size_ = 0;
};

}  // namespace detail
}  // namespace tinyscale
