#pragma once
// Sorting, queues and names once for all types: the order of numbers, which the caller applies to
// its rows. The standard library's own cost the compiler a hundredth of a second for every type.

#include <cstddef>
#include <string>
#include <vector>

#include "tinyscale/base/list.hpp"

namespace tinyscale {
namespace detail {

// The indices of `keys`, the smallest key first, equal ones in their order (a merge sort).
template <class Key>
std::vector<std::size_t> stable_order(const std::vector<Key>& keys) {
  const std::size_t n = keys.size();
  std::vector<std::size_t> order(n), merged(n);
  for (std::size_t i = 0; i < n; ++i) {
    order[i] = i;
  }
  for (std::size_t run = 1; run < n; run *= 2) {
    for (std::size_t begin = 0; begin < n; begin += 2 * run) {
      const std::size_t middle = begin + run < n ? begin + run : n;
      const std::size_t end = middle + run < n ? middle + run : n;
      std::size_t a = begin;
      std::size_t b = middle;
      for (std::size_t i = begin; i < end; ++i) {
        const bool second = a == middle || (b < end && keys[order[b]] < keys[order[a]]);
        merged[i] = second ? order[b++] : order[a++];
      }
    }
    order.swap(merged);
  }
  return order;
}

// Few values, the smallest first.
template <class T>
void insertion_sort(T* begin, T* end) {
  for (T* at = begin; at < end; ++at) {
    const T value = *at;
    T* to = at;
    for (; to > begin && value < to[-1]; --to) {
      *to = to[-1];
    }
    *to = value;
  }
}

// What comes first of all entries, by their before().
template <class T>
class Heap {
 public:
  using Entry = T;

  bool empty() const { return heap_.empty(); }
  const Entry& first() const { return heap_[0]; }

  void push(const Entry& entry) {
    std::size_t at = heap_.size();
    heap_.push_back(entry);
    for (; at > 0 && entry.before(heap_[(at - 1) / 2]); at = (at - 1) / 2) {
      heap_[at] = heap_[(at - 1) / 2];
    }
    heap_[at] = entry;
  }

  Entry pop() {
    const Entry top = heap_[0];
    const Entry last = heap_.back();
    heap_.pop_back();
    const std::size_t n = heap_.size();
    std::size_t at = 0;
    for (std::size_t child = 1; child < n; child = 2 * at + 1) {
      child += child + 1 < n && heap_[child + 1].before(heap_[child]) ? 1U : 0U;
      if (!heap_[child].before(last)) {
        break;
      }
      heap_[at] = heap_[child];
      at = child;
    }
    if (n > 0) {
      heap_[at] = last;
    }
    return top;
  }

 private:
  List<Entry> heap_;
};

// An entry of what happens next: the smallest key, of equal ones the smallest item.
struct Event {
  double key = 0;
  std::size_t item = 0;
  int tag = 0;

  bool before(const Event& other) const {
    return key < other.key || (!(other.key < key) && item < other.item);
  }
};
using EventQueue = Heap<Event>;

// A number for each of many names, in the order in which they came (a hash table).
class NameTable {
 public:
  struct Entry {
    std::string name;
    int number = 0;
  };

  std::size_t size() const { return entries_.size(); }
  const Entry* begin() const { return entries_.begin(); }
  const Entry* end() const { return entries_.end(); }
  bool has(const std::string& name) const { return size() > 0 && slots_[slot(name)] > 0; }

  // The number of that name; a new one begins at 0.
  int& operator[](const std::string& name) {
    if (2 * size() >= slots_.size()) {
      slots_.assign(4 * size() + 16, 0);
      for (std::size_t i = 0; i < size(); ++i) {
        slots_[slot(entries_[i].name)] = i + 1;
      }
    }
    std::size_t& place = slots_[slot(name)];
    if (place == 0) {
      entries_.push_back({name, 0});
      place = size();
    }
    return entries_[place - 1].number;
  }

 private:
  // Where the name stands or would stand.
  std::size_t slot(const std::string& name) const {
    std::size_t hash = 5381;
    for (const char c : name) {
      hash = hash * 33 + static_cast<unsigned char>(c);
    }
    std::size_t at = hash % slots_.size();
    while (slots_[at] > 0 && entries_[slots_[at] - 1].name != name) {
      at = (at + 1) % slots_.size();
    }
    return at;
  }

  List<Entry> entries_;
  std::vector<std::size_t> slots_;  // place in entries_ + 1, or 0
};

}  // namespace detail
}  // namespace tinyscale
