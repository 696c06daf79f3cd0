#pragma once
// Memory of a plan: a buffer lives from the step that writes it to the last that reads it, and its
// place in one block of memory is another's before and after. Best fit by size, largest first.

#include <algorithm>  // max
#include <cstddef>    // size_t
#include <cstdint>    // int64_t

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/order.hpp"

namespace tinyscale {

// One buffer: when it is in use, where it stands; sizes and offsets in floats.
struct BufferLife {
  int node = -1;
  int first = 0, last = 0;  // steps
  std::int64_t count = 0;
  std::int64_t offset = 0;
};

namespace detail {

constexpr std::int64_t buffer_align = 16;  // floats: a cache line

// Sets the offsets; returns the size of the block. Where nothing is shared each has its own place.
inline std::int64_t place_buffers(List<BufferLife>& buffers, bool share) {
  std::vector<double> keys;
  for (const BufferLife& buffer : buffers) {
    keys.push_back(-static_cast<double>(buffer.count));
  }
  std::int64_t end = 0;
  List<std::size_t> placed;  // by offset
  for (const std::size_t at : stable_order(keys)) {
    BufferLife& buffer = buffers[at];
    const std::int64_t size = (buffer.count + buffer_align - 1) / buffer_align * buffer_align;
    std::int64_t offset = 0, best = -1, best_gap = 0;
    if (share) {
      for (const std::size_t other_at : placed) {
        const BufferLife& other = buffers[other_at];
        if (other.last < buffer.first || buffer.last < other.first) {
          continue;  // never at the same time
        }
        const std::int64_t gap = other.offset - offset;
        if (gap >= size && (best < 0 || gap < best_gap)) {
          best = offset;
          best_gap = gap;
        }
        const std::int64_t after =
            other.offset + (other.count + buffer_align - 1) / buffer_align * buffer_align;
        offset = std::max(offset, after);
      }
    } else {
      offset = end;
    }
    buffer.offset = best >= 0 ? best : offset;
    end = std::max(end, buffer.offset + size);
    std::size_t i = placed.size();
    placed.push_back(at);
    for (; i > 0 && buffers[placed[i - 1]].offset > buffer.offset; --i) {
      placed[i] = placed[i - 1];
    }
    placed[i] = at;
  }
  return end;
}

// The most that is in use at once.
inline std::int64_t peak_in_use(const List<BufferLife>& buffers, int steps) {
  List<std::int64_t> change(static_cast<std::size_t>(steps) + 2);
  for (const BufferLife& buffer : buffers) {
    change[static_cast<std::size_t>(buffer.first)] += buffer.count;
    change[static_cast<std::size_t>(buffer.last) + 1] -= buffer.count;
  }
  std::int64_t now = 0, peak = 0;
  for (const std::int64_t by : change) {
    now += by;
    peak = std::max(peak, now);
  }
  return peak;
}

}  // namespace detail
}  // namespace tinyscale
