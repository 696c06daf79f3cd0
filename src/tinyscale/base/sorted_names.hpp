#pragma once
// Names to find again: sorted once, n log n comparisons whatever the names are (a hash table can be
// made slow by who chooses them), then found in log n.

#include <cstddef>
#include <string>
#include <vector>

#include "tinyscale/base/order.hpp"

namespace tinyscale {
namespace detail {

class SortedNames {
 public:
  static constexpr std::size_t none = static_cast<std::size_t>(-1);

  SortedNames() = default;
  explicit SortedNames(std::vector<std::string> names)
      : names_(static_cast<Names&&>(names)), order_(stable_order(names_)) {}

  std::size_t size() const { return names_.size(); }
  const std::string& name(std::size_t place) const { return names_[place]; }
  // The place of that name among those given (of several the first), or none.
  std::size_t find(const std::string& name) const {
    std::size_t low = 0;
    for (std::size_t high = order_.size(); low < high;) {
      const std::size_t middle = low + (high - low) / 2;
      if (names_[order_[middle]] < name) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low < order_.size() && names_[order_[low]] == name ? order_[low] : none;
  }
  // The first place where a name stands that stood before, or none.
  std::size_t twice() const {
    std::size_t first = none;
    for (std::size_t i = 1; i < order_.size(); ++i) {
      if (order_[i] < first && names_[order_[i]] == names_[order_[i - 1]]) {
        first = order_[i];
      }
    }
    return first;
  }

 private:
  using Names = std::vector<std::string>;

  Names names_;
  std::vector<std::size_t> order_;
};

}  // namespace detail
}  // namespace tinyscale
