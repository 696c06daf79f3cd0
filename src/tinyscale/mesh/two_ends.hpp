#pragma once
// Work that two sides share.

#include <algorithm>  // max
#include <atomic>
#include <cstdint>

namespace tinyscale {
namespace detail {

// What two sides take from both ends until nothing is left. A thread that begins on the same side
// in every call finds what it read and wrote there before in its own cache.
class TwoEnds {
 public:
  explicit TwoEnds(std::int64_t n, int threads)
      : share_(std::int64_t{4} * threads), left_(pack(0, n)) {}

  // The next [begin, end); false when all is taken.
  bool take(bool from_back, std::int64_t& begin, std::int64_t& end) {
    std::uint64_t now = left_.load();
    std::uint64_t then = 0;
    do {
      const std::int64_t first = static_cast<std::int64_t>(now >> 32);
      const std::int64_t last = static_cast<std::int64_t>(now & 0xffffffffU);
      if (first == last) {
        return false;
      }
      const std::int64_t some = std::max<std::int64_t>(1, (last - first) / share_);
      begin = from_back ? last - some : first;
      end = begin + some;
      then = from_back ? pack(first, begin) : pack(end, last);
    } while (!left_.compare_exchange_weak(now, then));
    return true;
  }

 private:
  static std::uint64_t pack(std::int64_t first, std::int64_t last) {
    return static_cast<std::uint64_t>(first) << 32 | static_cast<std::uint64_t>(last);
  }

  std::int64_t share_;
  std::atomic<std::uint64_t> left_;
};

}  // namespace detail
}  // namespace tinyscale
