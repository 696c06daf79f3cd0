#pragma once
// Softmax and cross-entropy by rows, from differences to the row's maximum (nothing overflows):
//   y_j = exp(x_j - max) / sum,  lse = max + log(sum),  loss = lse - x_target.
// dx = y (dy - sum(y dy));  d logits = scale (exp(x - lse) - onehot(target)).

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>

#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/exp_rows.hpp"
#include "tinyscale/compute/lane_math.hpp"
#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/compute/memory_check.hpp"
#include "tinyscale/compute/past_caches.hpp"
#include "tinyscale/compute/row_sums.hpp"
#include "tinyscale/compute/scratch.hpp"

namespace tinyscale {
namespace kernels {

// The reference bodies: lse of one row, then y, dx, losses, d logits.
inline double lse_reference(std::int64_t n, const float* x) {
  const double max = double{*std::max_element(x, x + n)};
  double sum = 0;
  for (std::int64_t j = 0; j < n; ++j) {
    sum += std::exp(double{x[j]} - max);
  }
  return max + std::log(sum);
}

inline void softmax_reference(std::int64_t rows, std::int64_t cols, const float* x, float* y) {
  for (std::int64_t i = 0; i < rows * cols; i += cols) {
    const double lse = lse_reference(cols, x + i);
    for (std::int64_t j = i; j < i + cols; ++j) {
      y[j] = static_cast<float>(std::exp(double{x[j]} - lse));
    }
  }
}

inline void softmax_backward_reference(std::int64_t rows, std::int64_t cols, const float* y,
                                       const float* dy, float* dx, float beta = 1.0f) {
  for (std::int64_t i = 0; i < rows * cols; i += cols) {
    double mean = 0;
    for (std::int64_t j = i; j < i + cols; ++j) {
      mean += double{y[j]} * double{dy[j]};
    }
    for (std::int64_t j = i; j < i + cols; ++j) {
      const float old = beta == 0.0f ? 0.0f : dx[j];
      dx[j] = old + static_cast<float>(double{y[j]} * (double{dy[j]} - mean));
    }
  }
}

inline void cross_entropy_reference(std::int64_t rows, std::int64_t vocab, const float* logits,
                                    const std::int32_t* targets, float* losses, float* lse) {
  for (std::int64_t i = 0; i < rows; ++i) {
    const float* const x = logits + i * vocab;
    const double all = lse_reference(vocab, x);
    lse[i] = static_cast<float>(all);
    losses[i] = targets[i] < 0 ? 0.0f : static_cast<float>(all - double{x[targets[i]]});
  }
}

inline void cross_entropy_backward_reference(std::int64_t rows, std::int64_t vocab,
                                             const float* logits, const float* lse,
                                             const std::int32_t* targets, float scale,
                                             float* dlogits, float beta = 1.0f) {
  for (std::int64_t at = 0; at < rows * vocab; ++at) {
    const std::int64_t i = at / vocab, j = at % vocab;
    const double y = std::exp(double{logits[at]} - double{lse[i]});
    const double slope = targets[i] < 0 ? 0.0 : y - (j == targets[i] ? 1.0 : 0.0);
    dlogits[at] = static_cast<float>(scale * slope) + (beta == 0.0f ? 0.0f : dlogits[at]);
  }
}

}  // namespace kernels

namespace detail {

// While exps of a row are taken the row before is divided and the maximum of the next one found:
// what waits for a sum, a maximum or memory does not wait alone. Rows wait in y, or, where y is
// written past the caches (whole vectors), in scratch.
struct SoftmaxRows {
  std::int64_t begin, end, cols;  // a row at least
  const float* x;
  float* y;
  float* two_rows;  // or null: not past the caches

  template <class L>
  TINYSCALE_INLINE void run() const {
    if (two_rows == nullptr) {
      rows<L, false>();
    } else {
      rows<L, true>();
      end_past_caches();
    }
  }

 private:
  template <bool PAST>
  float* waiting(std::int64_t i) const {
    return PAST ? two_rows + i % 2 * cols : y + i * cols;
  }

  template <class L, bool PAST>
  TINYSCALE_INLINE void rows() const {
    typename L::V best, factor, v;
    float max = 0.0f, sum = 0.0f;
    exp_row<L>(cols, x + begin * cols, waiting<PAST>(begin), max, sum);
    broadcast<L>(-std::numeric_limits<float>::infinity(), best);
    max_row<L>(begin + 1 < end ? cols : 0, x + (begin + 1) * cols, best);
    for (std::int64_t i = begin + 1; i < end; ++i) {
      broadcast<L>(1.0f / sum, factor);
      broadcast<L>(max_lanes<L>(best), best);
      sum = row<L, PAST>(x + i * cols, x + std::min(i + 1, end - 1) * cols, waiting<PAST>(i),
                         waiting<PAST>(i - 1), y + (i - 1) * cols, factor, best);
    }
    float* const last = waiting<PAST>(end - 1);
    if constexpr (PAST) {
      broadcast<L>(1.0f / sum, factor);
      for (std::int64_t j = 0; j < cols; j += L::width) {
        load<L>(last + j, v);
        store_past_caches(y + (end - 1) * cols + j, v * factor);
      }
    } else {
      scale_row<L>(cols, 1.0f / sum, last);
    }
  }

  // now = exp(from - best), whose sum it returns; to = factor before; best becomes the maxima of
  // next, each lane for itself.
  template <class L, bool PAST>
  TINYSCALE_INLINE float row(const float* from, const float* next, float* now, const float* before,
                             float* to, const typename L::V& factor, typename L::V& best) const {
    typedef typename L::V V;
    const float infinity = std::numeric_limits<float>::infinity();
    const std::int64_t ahead = std::max<std::int64_t>(cols, 4096);
    const std::int64_t whole = cols / L::width * L::width, left = cols - whole;
    V most, v, total{}, part{};
    broadcast<L>(-infinity, most);
    for (std::int64_t j = 0, stop = 0; j < whole;) {
      total = total + part;  // as exp_row does
      part = V{};
      for (stop = std::min(whole, j + summed_at_once); j < stop; j += L::width) {
        load<L>(from + j, v);
        exp_negative<L>(v - best, v);
        part = part + v;
        store<L>(now + j, v);
        prefetch<3>(next + j + ahead);
        load<L>(next + j, v);
        max_vector<L>(most, v, most);
        load<L>(before + j, v);
        if (PAST) {
          store_past_caches(to + j, v * factor);
        } else {
          store<L>(to + j, v * factor);
        }
      }
    }
    if (left > 0) {
      load_part<L>(from + whole, left, -infinity, v);
      exp_negative<L>(v - best, v);
      part = part + v;
      store_part<L>(now + whole, left, v);
      load_part<L>(next + whole, left, -infinity, v);
      max_vector<L>(most, v, most);
      load_part<L>(before + whole, left, 0.0f, v);
      store_part<L>(to + whole, left, v * factor);
    }
    best = most;
    return sum_lanes<L>(total + part);
  }
};

struct SoftmaxSlope {  // of one row
  const float* y;
  const float* dy;
  float* dx;
  float beta, mean;
  std::int64_t later;  // so far behind is the next row, fetched meanwhile
  bool past;           // the caches

  template <class L>
  TINYSCALE_INLINE void at(std::int64_t j, std::int64_t left) const {
    typename L::V vy, vd, vm;
    prefetch<3>(y + j + later);
    prefetch<3>(dy + j + later);
    broadcast<L>(mean, vm);
    load_some<L>(y + j, left, 0.0f, vy);
    load_some<L>(dy + j, left, 0.0f, vd);
    add_some<L>(beta, vy * (vd - vm), left, dx + j, past);
  }
};

struct SoftmaxBackwardRows {
  std::int64_t begin, end, cols;
  const float* y;
  const float* dy;
  float* dx;
  float beta;
  bool past;

  template <class L>
  TINYSCALE_INLINE void run() const {
    for (std::int64_t at = begin * cols; at < end * cols; at += cols) {
      const float mean = dot_row<L>(cols, y + at, dy + at);
      for_row_past<L>(past, cols, dx + at,
                      SoftmaxSlope{y + at, dy + at, dx + at, beta, mean, cols, past});
    }
    if (past) {
      end_past_caches();
    }
  }
};

struct CrossEntropyRows {
  std::int64_t begin, end, vocab;
  const float* logits;
  const std::int32_t* targets;
  float* losses;
  float* lse;
  float* top;

  template <class L>
  TINYSCALE_INLINE void run() const {
    sum_exp_rows<L>(end - begin, vocab, logits + begin * vocab, vocab, lse + begin, losses + begin);
    for (std::int64_t i = begin; i < end; ++i) {
      const float most = lse[i], log_sum = std::log(losses[i]);
      lse[i] = top != nullptr ? log_sum : most + log_sum;
      if (top != nullptr) {
        top[i] = most;
      }
      losses[i] = targets[i] < 0 ? 0.0f : most - logits[i * vocab + targets[i]] + log_sum;
    }
  }
};

struct CrossEntropySlope {  // of one row
  const float* x;
  float* dx;
  float top, lse, scale, beta;
  bool past;

  template <class L>
  TINYSCALE_INLINE void at(std::int64_t j, std::int64_t left) const {
    typename L::V v, vt, vl, vs;
    broadcast<L>(top, vt);
    broadcast<L>(lse, vl);
    broadcast<L>(scale, vs);
    load_some<L>(x + j, left, 0.0f, v);
    prefetch<3>(x + j + 1024);  // from memory this takes 0.75 of the time
    exp_negative<L>((v - vt) - vl, v);
    add_some<L>(beta, v * vs, left, dx + j, past);
  }
};

struct CrossEntropyBackwardRows {
  std::int64_t begin, end, vocab;
  const float* logits;
  const float* lse;
  const std::int32_t* targets;
  float scale;
  float* dlogits;
  float beta;
  const float* top;
  bool past;

  template <class L>
  TINYSCALE_INLINE void run() const {
    for (std::int64_t i = begin; i < end; ++i) {
      float* const dx = dlogits + i * vocab;
      if (targets[i] < 0) {
        std::fill(dx, dx + (beta == 0.0f ? vocab : 0), 0.0f);
        continue;
      }
      for_row_past<L>(past, vocab, dx,
                      CrossEntropySlope{logits + i * vocab, dx, top != nullptr ? top[i] : 0.0f,
                                        lse[i], scale, beta, past});
      if (targets[i] < vocab) {
        dx[targets[i]] -= scale;
      }
    }
    if (past) {
      end_past_caches();
    }
  }
};

// Targets are numbers of the vocabulary, or below 0; what is read stays.
inline void check_losses(const char* who, std::int64_t rows, std::int64_t vocab,
                         const std::int32_t* targets, const float* losses, const float* lse,
                         std::initializer_list<Memory> read) {
  for (std::int64_t i = 0; i < rows; ++i) {
    if (targets[i] >= vocab) {
      fail({who, ": target ", i, " is ", targets[i], "; the vocabulary is ", vocab,
            ", a target below that, or below 0 for a row that is left out"});
    }
  }
  check_own(who, {"losses", losses, rows}, read);
  check_own(who, {"lse", lse, rows}, read);
}

// Rows per task so that a task is worth a thread's while; a function of the sizes only.
inline std::int64_t row_grain(std::int64_t cols) {
  return std::max<std::int64_t>(1, 8192 / std::max<std::int64_t>(cols, 1));
}

}  // namespace detail

namespace kernels {

inline void softmax_forward(std::int64_t rows, std::int64_t cols, const float* x, float* y) {
  const std::int64_t n = detail::count_of("softmax_forward", {rows, cols});
  if (!detail::is_plain(y, x, n)) {
    detail::check_in_place("softmax_forward", {"y", y, n}, {{"x", x, n}});
  }
  const bool past = x != y && cols % 16 == 0 && cols <= 16384 &&  // of which two rows stay at hand
                    detail::before_line(y) == 0 && detail::past_caches(rows * cols);
  parallel_for(rows, detail::row_grain(cols), [&](std::int64_t begin, std::int64_t end) {
    if (past) {
      const detail::Scratch two_rows(2 * cols);
      detail::run_on_lanes(detail::SoftmaxRows{begin, end, cols, x, y, two_rows.data()});
    } else {
      detail::run_on_lanes(detail::SoftmaxRows{begin, end, cols, x, y, nullptr});
    }
  });
}

inline void softmax_backward(std::int64_t rows, std::int64_t cols, const float* y, const float* dy,
                             float* dx, float beta = 1.0f) {
  const std::int64_t n = detail::count_of("softmax_backward", {rows, cols});
  detail::check_in_place("softmax_backward", {"dx", dx, n}, {{"y", y, n}, {"dy", dy, n}});
  const bool past = beta == 0.0f && dx != y && dx != dy && detail::past_caches(rows * cols);
  parallel_for(rows, detail::row_grain(cols), [&](std::int64_t begin, std::int64_t end) {
    detail::run_on_lanes(detail::SoftmaxBackwardRows{begin, end, cols, y, dy, dx, beta, past});
  });
}

// losses[rows], lse[rows]; a negative target gives loss 0 (and no gradient below). With top[rows]
// the maxima go there and lse is less them, which keeps its digits far from 0.
inline void cross_entropy_forward(std::int64_t rows, std::int64_t vocab, const float* logits,
                                  const std::int32_t* targets, float* losses, float* lse,
                                  float* top = nullptr) {
  const char* const who = "cross_entropy_forward";
  detail::check_losses(who, rows, vocab, targets, losses, lse,
                       {{"logits", logits, detail::count_of(who, {rows, vocab})}});
  const std::int64_t grain = rows < 32 ? 1 : 8;  // rows that are read together
  parallel_for(
      rows, std::max(grain, detail::row_grain(vocab)), [&](std::int64_t begin, std::int64_t end) {
        detail::run_on_lanes(
            detail::CrossEntropyRows{begin, end, vocab, logits, targets, losses, lse, top});
      });
}

// lse may be of more columns than are here; a target from vocab on is one of those.
inline void cross_entropy_backward(std::int64_t rows, std::int64_t vocab, const float* logits,
                                   const float* lse, const std::int32_t* targets, float scale,
                                   float* dlogits, float beta = 1.0f, const float* top = nullptr) {
  const char* const who = "cross_entropy_backward";
  const detail::Memory dx{"dlogits", dlogits, detail::count_of(who, {rows, vocab})};
  detail::check_in_place(who, dx, {{"logits", logits, dx.columns}});
  detail::check_own(who, dx, {{"lse", lse, rows}, {"targets", targets, rows}, {"top", top, rows}});
  const bool past = beta == 0.0f && dlogits != logits && detail::past_caches(rows * vocab);
  parallel_for(rows, detail::row_grain(vocab), [&](std::int64_t begin, std::int64_t end) {
    detail::run_on_lanes(detail::CrossEntropyBackwardRows{begin, end, vocab, logits, lse, targets,
                                                          scale, dlogits, beta, top, past});
  });
}

}  // namespace kernels
}  // namespace tinyscale
