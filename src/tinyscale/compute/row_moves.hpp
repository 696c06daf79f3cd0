#pragma once
// Numbers that only move: a row in steps, a matrix turned over, rows chosen by number.

#include <algorithm>  // copy_n, fill_n, min
#include <cstdint>    // int64_t
#include <cstring>    // memcpy

#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/compute/transpose.hpp"

namespace tinyscale {
namespace kernels {

// The reference bodies. Of turn_matrix: transpose_reference.
inline void copy_steps_reference(std::int64_t n, const float* from, std::int64_t step_from,
                                 float* to, std::int64_t step_to) {
  for (std::int64_t i = 0; i < n; ++i) {
    to[i * step_to] = from[i * step_from];
  }
}
inline void take_rows_reference(std::int64_t n, std::int64_t width, const float* table,
                                const std::int32_t* ids, float* y) {
  for (std::int64_t i = 0; i < n * width; ++i) {
    y[i] = table[ids[i / width] * width + i % width];
  }
}
inline void add_rows_reference(std::int64_t n, std::int64_t width, const float* y,
                               const std::int32_t* ids, float* table) {
  for (std::int64_t i = 0; i < n * width; ++i) {
    table[ids[i / width] * width + i % width] += y[i];
  }
}
inline std::int64_t first_outside_reference(std::int64_t n, const std::int32_t* ids,
                                            std::int64_t end) {
  for (std::int64_t i = 0; i < n; ++i) {
    if (ids[i] < 0 || ids[i] >= end) {
      return i;
    }
  }
  return n;
}
inline void places_of_reference(std::int64_t n, const std::int32_t* ids, std::int32_t id_step,
                                std::int32_t first, std::int32_t step, std::int32_t* places) {
  for (std::int64_t i = 0; i < n; ++i) {
    places[i] = ids[i] * id_step + first + static_cast<std::int32_t>(i) * step;
  }
}

// to[i step_to] = from[i step_from], i < n.
TINYSCALE_OPTIMIZED inline void copy_steps(std::int64_t n, const float* from,
                                           std::int64_t step_from, float* to,
                                           std::int64_t step_to) {
  if (step_from == 1 && step_to == 1) {
    std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(float));
  } else if (step_from == 0 && step_to == 1) {
    std::fill_n(to, n, n > 0 ? *from : 0.0f);
  } else {
    for (std::int64_t i = 0; i < n; ++i) {
      to[i * step_to] = from[i * step_from];
    }
  }
}

// Rows by number, n of them: y[i] = table[ids[i]], and table[ids[i]] += y[i] in their order.
TINYSCALE_OPTIMIZED inline void take_rows(std::int64_t n, std::int64_t width, const float* table,
                                          const std::int32_t* ids, float* y) {
  for (std::int64_t i = 0; i < n && width == 1; ++i) {
    y[i] = table[ids[i]];
  }
  for (std::int64_t i = 0; i < n && width != 1; ++i) {
    std::copy_n(table + ids[i] * width, width, y + i * width);
  }
}
TINYSCALE_OPTIMIZED inline void add_rows(std::int64_t n, std::int64_t width, const float* y,
                                         const std::int32_t* ids, float* table) {
  for (std::int64_t i = 0; i < n; ++i) {
    float* const to = table + ids[i] * width;
    for (std::int64_t j = 0; j < width; ++j) {
      to[j] += y[i * width + j];
    }
  }
}

}  // namespace kernels

namespace detail {

// Columns begin to end of a matrix as rows of another: in squares, each of which writes whole
// vectors and whose rows are fetched before.
struct TurnColumns {
  std::int64_t rows, begin, end;
  const float* from;
  std::int64_t from_row;
  float* to;
  std::int64_t to_row;

  template <class L>
  TINYSCALE_INLINE void run() const {
    std::int64_t c = begin;
    if constexpr (turns_squares<L>) {
      constexpr std::int64_t width = L::width;
      typename L::V square[static_cast<std::size_t>(width)];
      for (; c + width <= end && rows >= width; c += width) {
        for (std::int64_t r = 0; r < rows; r += width) {
          r = std::min(r, rows - width);  // the last square may overlap
          const float* const in = from + r * from_row + c;
          TINYSCALE_UNROLL
          for (std::int64_t i = 0; i < width; ++i) {
            load<L>(in + i * from_row, square[i]);
            prefetch<3>(in + (i + 2 * width) * from_row);
          }
          turn_square(square);
          TINYSCALE_UNROLL
          for (std::int64_t i = 0; i < width; ++i) {
            store<L>(to + (c + i) * to_row + r, square[i]);
          }
        }
      }
    }
    transpose(rows, end - c, from + c, from_row, to + c * to_row, to_row);
  }
};

// Whether some id is not from 0 to `most`: then it, or what is left to that, has a sign (of an id
// below 0 it may have none).
struct SomeOutside {
  std::int64_t n;
  const std::int32_t* ids;
  std::int32_t most;
  bool* found;

  template <class L>
  TINYSCALE_INLINE void run() const {
    typename L::I bound;
    typename L::U last, v, signs{};  // which may wrap
    broadcast_word(most, bound);
    std::memcpy(&last, &bound, sizeof last);
    std::int64_t i = 0;
    for (; i + L::width <= n; i += L::width) {
      std::memcpy(&v, ids + i, sizeof v);
      signs = signs | v | (last - v);
    }
    std::int32_t lanes[static_cast<std::size_t>(L::width)], any = 0;
    std::memcpy(lanes, &signs, sizeof signs);
    for (const std::int32_t lane : lanes) {
      any |= lane;
    }
    for (; i < n; ++i) {
      any |= ids[i] < 0 || ids[i] > most ? -1 : 0;
    }
    *found = any < 0;
  }
};

struct PlacesOf {
  std::int64_t n;
  const std::int32_t* ids;
  std::int32_t id_step, first, step;
  std::int32_t* places;

  template <class L>
  TINYSCALE_INLINE void run() const {
    typename L::I at, v, more;
    lane_numbers<L>(at);
    at = at * step + first;
    broadcast_word(step * static_cast<std::int32_t>(L::width), more);
    std::int64_t i = 0;
    for (; i + L::width <= n; i += L::width) {
      std::memcpy(&v, ids + i, sizeof v);
      v = v * id_step + at;
      at = at + more;
      std::memcpy(places + i, &v, sizeof v);
    }
    for (; i < n; ++i) {
      places[i] = ids[i] * id_step + first + static_cast<std::int32_t>(i) * step;
    }
  }
};

}  // namespace detail

namespace kernels {

// The first i whose id is not from 0 to below `end`, or n.
inline std::int64_t first_outside(std::int64_t n, const std::int32_t* ids, std::int64_t end) {
  bool found = end < 1;
  if (!found) {
    const std::int64_t last = std::min<std::int64_t>(end - 1, 2147483647);
    detail::run_on_lanes(detail::SomeOutside{n, ids, static_cast<std::int32_t>(last), &found});
  }
  std::int64_t i = found ? 0 : n;
  while (i < n && ids[i] >= 0 && ids[i] < end) {
    ++i;
  }
  return i;
}

// places[i] = ids[i] id_step + first + i step; all below 2^31.
inline void places_of(std::int64_t n, const std::int32_t* ids, std::int32_t id_step,
                      std::int32_t first, std::int32_t step, std::int32_t* places) {
  detail::run_on_lanes(detail::PlacesOf{n, ids, id_step, first, step, places});
}

// to[j][i] = from[i][j] of a matrix [rows, cols] whose rows begin so far apart.
inline void turn_matrix(std::int64_t rows, std::int64_t cols, const float* from,
                        std::int64_t from_row, float* to, std::int64_t to_row) {
  constexpr std::int64_t band = 64;
  const std::int64_t bands = (cols + band - 1) / band;
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    detail::run_on_lanes(detail::TurnColumns{rows, begin * band, std::min(cols, end * band), from,
                                             from_row, to, to_row});
  };
  if (rows * cols < 16384) {
    body(0, bands);
  } else {
    parallel_for(bands, 1, body);
  }
}

}  // namespace kernels
}  // namespace tinyscale
