#pragma once
// Sums and maxima of one row: of its numbers, of products, of squares.

#include <algorithm>
#include <cstdint>
#include <limits>

#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/compute/past_caches.hpp"

namespace tinyscale {
namespace detail {

// Terms that are added up before they are added to the others: a sum of f32 in one go would no
// longer grow at 2^24 equal terms a lane.
constexpr std::int64_t summed_at_once = 1 << 14;

// The sum of a row of terms, four vectors at a time; a lane past the row counts as 0.
template <class L, class Term>
TINYSCALE_INLINE float row_sum(std::int64_t n, const Term& term) {
  typename L::V total{}, v;
  std::int64_t j = 0;
  while (j < n) {
    const std::int64_t end = std::min(n, j + summed_at_once);
    typename L::V sums[4] = {};
    for (; j + 4 * L::width <= end; j += 4 * L::width) {
      TINYSCALE_UNROLL
      for (int part = 0; part < 4; ++part) {
        term.template get<L>(j + part * L::width, L::width, v);
        sums[part] = sums[part] + v;
      }
    }
    for (; j < end; j += L::width) {
      term.template get<L>(j, end - j, v);
      sums[0] = sums[0] + v;
    }
    total = total + ((sums[0] + sums[1]) + (sums[2] + sums[3]));
  }
  return sum_lanes<L>(total);
}

struct ValueTerm {
  const float* x;
  template <class L>
  TINYSCALE_INLINE void get(std::int64_t j, std::int64_t left, typename L::V& v) const {
    load_some<L>(x + j, left, 0.0f, v);
  }
};

struct ProductTerm {
  const float* a;
  const float* b;
  template <class L>
  TINYSCALE_INLINE void get(std::int64_t j, std::int64_t left, typename L::V& v) const {
    typename L::V w;
    load_some<L>(a + j, left, 0.0f, v);
    load_some<L>(b + j, left, 0.0f, w);
    v = v * w;
  }
};

struct SquareTerm {
  const float* x;
  float center;
  const float* later;  // read next: fetched meanwhile
  template <class L>
  TINYSCALE_INLINE void get(std::int64_t j, std::int64_t left, typename L::V& v) const {
    typename L::V c;
    prefetch<3>(later + j);
    broadcast<L>(center, c);
    load_some<L>(x + j, left, center, v);
    v = (v - c) * (v - c);
  }
};

// y = beta y + v, where beta is 0 (y is not read) or 1; past the caches only with 0.
template <class L>
TINYSCALE_INLINE void add_some(float beta, const typename L::V& v, std::int64_t left, float* y,
                               bool past = false) {
  typename L::V old{};
  if (beta != 0.0f) {
    load_some<L>(y, left, 0.0f, old);
  }
  put_some<L>(past, old + v, left, y);
}

template <class L>
TINYSCALE_INLINE float dot_row(std::int64_t n, const float* a, const float* b) {
  return row_sum<L>(n, ProductTerm{a, b});
}

// best = the maximum of it and of a row, each lane for itself.
template <class L>
TINYSCALE_INLINE void max_row(std::int64_t n, const float* x, typename L::V& best) {
  typename L::V second = best, v;
  std::int64_t j = 0;
  for (; j + 2 * L::width <= n; j += 2 * L::width) {
    load<L>(x + j, v);
    max_vector<L>(best, v, best);
    load<L>(x + j + L::width, v);
    max_vector<L>(second, v, second);
  }
  for (; j < n; j += L::width) {
    load_some<L>(x + j, n - j, -std::numeric_limits<float>::infinity(), v);
    max_vector<L>(best, v, best);
  }
  max_vector<L>(best, second, best);
}

}  // namespace detail
}  // namespace tinyscale
