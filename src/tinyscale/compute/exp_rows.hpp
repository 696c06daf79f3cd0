#pragma once
// Exponentials of a row's differences to its maximum, and their sums: what softmax, cross-entropy
// and attention have in common.

#include <algorithm>
#include <cstdint>
#include <limits>

#include "tinyscale/compute/lane_math.hpp"
#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/compute/row_sums.hpp"

namespace tinyscale {
namespace detail {

// max and sum of exp(x - max) of a row that is read once: block by block, from a maximum of each
// lane that grows on the way. Nothing is compared with -inf: exp_negative sees to -inf.
template <class L>
struct SumExp {
  typedef typename L::V V;
  V best, top, total, more;

  TINYSCALE_INLINE void start() {
    broadcast<L>(-std::numeric_limits<float>::infinity(), best);
    broadcast<L>(-std::numeric_limits<float>::max(), top);
    total = more = V{};
  }

  // The next numbers of the row, whose maximum is `most`; meanwhile it becomes that of the m
  // numbers of y, which come after them, and those `ahead` of y are fetched.
  TINYSCALE_INLINE void add(std::int64_t n, const float* x, V& most, std::int64_t m, const float* y,
                            std::int64_t ahead) {
    const float infinity = std::numeric_limits<float>::infinity();
    V v, w, sum{}, second{}, next;
    max_vector<L>(best, most, best);
    const V before = top;
    max_vector<L>(top, best, top);
    const V bound = top;
    exp_negative<L>(before - bound, v);
    total = total * v;
    more = more * v;
    broadcast<L>(-infinity, most);
    next = most;
    std::int64_t j = 0;
    const std::int64_t both = std::min(n, m) / (2 * L::width) * 2 * L::width;
    for (; j + 2 * L::width <= n; j += 2 * L::width) {
      if (j < both) {
        prefetch<3>(y + j + ahead);
        prefetch<3>(y + j + ahead + L::width);
        load<L>(y + j, w);
        max_vector<L>(most, w, most);
        load<L>(y + j + L::width, w);
        max_vector<L>(next, w, next);
      }
      load<L>(x + j, v);
      exp_negative<L>(v - bound, v);
      sum = sum + v;
      load<L>(x + j + L::width, v);
      exp_negative<L>(v - bound, v);
      second = second + v;
    }
    for (; j < n; j += L::width) {
      load_some<L>(x + j, n - j, -infinity, v);
      exp_negative<L>(v - bound, v);
      sum = sum + v;
    }
    max_vector<L>(most, next, most);
    max_row<L>(m - both, y + both, most);
    total = total + sum;
    more = more + second;
  }

  TINYSCALE_INLINE void finish(float& max, float& sum) const {
    V all, v;
    max = max_lanes<L>(best);
    broadcast<L>(max, all);
    exp_negative<L>(top - all, v);
    sum = sum_lanes<L>((total + more) * v);
  }
};

// The same of rows that begin `step` apart: eight at a time, so that memory is read in as many
// streams. AMD's is read in one in 0.65 of the time, but short rows eight at a time there too: what
// begins and ends one waits for long chains, of eight at once.
template <class L>
TINYSCALE_INLINE void sum_exp_rows(std::int64_t rows, std::int64_t n, const float* x,
                                   std::int64_t step, float* max, float* sum) {
  const std::int64_t block = cpu().amd ? 2048 : 512, together = cpu().amd && n > block ? 1 : 8;
  SumExp<L> each[8];
  typename L::V most;
  broadcast<L>(-std::numeric_limits<float>::infinity(), most);
  max_row<L>(rows > 0 ? std::min(block, n) : 0, x, most);
  for (std::int64_t i = 0; i < rows; i += together) {
    const std::int64_t count = std::min(rows - i, together);
    const std::int64_t ahead = count < 8 ? 4096 : block;
    for (std::int64_t r = 0; r < count; ++r) {
      each[r].start();
    }
    for (std::int64_t j = 0; j < n; j += block) {
      for (std::int64_t r = 0; r < count; ++r) {
        const bool last = r + 1 == count, ends = last && j + block >= n;
        const std::int64_t row = ends ? i + count : last ? i : i + r + 1;
        const std::int64_t at = ends ? 0 : last ? j + block : j;
        const std::int64_t m = row < rows ? std::min(block, n - at) : 0;
        each[r].add(std::min(block, n - j), x + (i + r) * step + j, most, m, x + row * step + at,
                    ahead);
      }
    }
    for (std::int64_t r = 0; r < count; ++r) {
      each[r].finish(max[i + r], sum[i + r]);
    }
  }
}

// max and sum of exp(x - max) of one row; writes exp(x - max) to y, which may be x.
template <class L>
TINYSCALE_INLINE void exp_row(std::int64_t n, const float* x, float* y, float& max, float& sum) {
  typedef typename L::V V;
  const float lowest = -std::numeric_limits<float>::infinity();
  const std::int64_t whole = n / L::width * L::width;
  V best, v, total{}, part{};
  broadcast<L>(lowest, best);
  max_row<L>(n, x, best);
  max = max_lanes<L>(best);
  broadcast<L>(max, best);
  for (std::int64_t j = 0, stop = 0; j < whole;) {
    total = total + part;
    part = V{};
    for (stop = std::min(whole, j + summed_at_once); j < stop; j += L::width) {
      load<L>(x + j, v);
      prefetch<3>(x + j + n);  // of the next row
      exp_negative<L>(v - best, v);
      part = part + v;
      store<L>(y + j, v);
    }
  }
  if (whole < n) {
    load_part<L>(x + whole, n - whole, lowest, v);
    exp_negative<L>(v - best, v);
    part = part + v;
    store_part<L>(y + whole, n - whole, v);
  }
  sum = sum_lanes<L>(total + part);
}

template <class L>
TINYSCALE_INLINE void scale_row(std::int64_t n, float factor, float* y) {
  typename L::V v, f;
  broadcast<L>(factor, f);
  std::int64_t j = 0;
  for (; j + L::width <= n; j += L::width) {
    load<L>(y + j, v);
    prefetch<3>(y + j + n);
    store<L>(y + j, v * f);
  }
  if (j < n) {
    load_part<L>(y + j, n - j, 0.0f, v);
    store_part<L>(y + j, n - j, v * f);
  }
}

// The same down the rows of p, each lane for itself: top becomes the maximum of it and of all p,
// p becomes exp(factor (p - top)), sum their sum. Lanes that see -inf alone get zeros.
template <class L>
TINYSCALE_INLINE void exp_columns(std::int64_t rows, std::int64_t stride, float factor, float* p,
                                  typename L::V& top, typename L::V& shift, typename L::V& sum) {
  typedef typename L::V V;
  V v, w, scale, low, one, second = top;
  broadcast<L>(factor * log2_e, scale);
  broadcast<L>(-127.0f, low);
  broadcast<L>(1.0f, one);
  std::int64_t x = 0;
  for (; x + 2 <= rows; x += 2) {
    load<L>(p + x * stride, v);
    load<L>(p + (x + 1) * stride, w);
    max_vector<L>(top, v, top);
    max_vector<L>(second, w, second);
  }
  if (x < rows) {
    load<L>(p + x * stride, v);
    max_vector<L>(top, v, top);
  }
  max_vector<L>(top, second, top);
  shift = top > -std::numeric_limits<float>::max() ? top : V{};
  sum = V{};
  for (x = 0; x < rows; ++x) {
    load<L>(p + x * stride, v);
    max_vector<L>((v - shift) * scale, low, v);
    exp2_product<L>(v, one, v);
    sum = sum + v;
    store<L>(p + x * stride, v);
  }
}

}  // namespace detail
}  // namespace tinyscale
