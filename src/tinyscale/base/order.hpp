#pragma once
// Sorting once for all types: the order of numbers, which the caller applies to its rows. A sort of
// the standard library costs the compiler a hundredth of a second for every type that is sorted.

#include <cstddef>
#include <vector>

namespace tinyscale {
namespace detail {

// The indices of `keys`, the smallest key first, equal ones in their order (a merge sort).
inline std::vector<std::size_t> stable_order(const std::vector<double>& keys) {
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

}  // namespace detail
}  // namespace tinyscale
