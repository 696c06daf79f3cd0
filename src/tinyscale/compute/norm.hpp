#pragma once
// Layer norm and RMS norm by rows:
//   layer: n = (x - mean) rstd, rstd = 1 / sqrt(var + eps);
//   RMS:   n = x rstd,          rstd = 1 / sqrt(mean(x^2) + eps);
//   y = n w + b;  with g = dy w: dx = rstd (g - mean(g) - n mean(g n)) (RMS: without mean(g)).
// dw and db are sums over rows, taken in chunks that depend on the sizes and not on the threads.
// Ba et al., arXiv 1607.06450; Zhang and Sennrich, arXiv 1910.07467.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/compute/memory_check.hpp"
#include "tinyscale/compute/past_caches.hpp"
#include "tinyscale/compute/scratch.hpp"
#include "tinyscale/compute/softmax.hpp"
#include "tinyscale/compute/sums.hpp"

namespace tinyscale {
namespace kernels {

// The reference body: one row. mean is null for RMS norm, bias may be null.
inline void norm_reference(std::int64_t cols, float eps, const float* x, const float* weight,
                           const float* bias, float* y, float* mean, float* rstd) {
  const double count = static_cast<double>(cols);
  const double center = mean == nullptr ? 0.0 : sum_reference(cols, x) / count;
  double square = 0;
  for (std::int64_t j = 0; j < cols; ++j) {
    square += (double{x[j]} - center) * (double{x[j]} - center);
  }
  const double r = 1.0 / std::sqrt(square / count + double{eps});
  for (std::int64_t j = 0; j < cols; ++j) {
    const double n = (double{x[j]} - center) * r, b = bias == nullptr ? 0.0 : double{bias[j]};
    y[j] = static_cast<float>(n * double{weight[j]} + b);
  }
  *rstd = static_cast<float>(r);
  (mean == nullptr ? *rstd : *mean) = static_cast<float>(mean == nullptr ? r : center);
}

// Its gradients. Every row adds to dweight and dbias (or null).
inline void norm_backward_reference(std::int64_t cols, const float* x, const float* weight,
                                    const float* mean, const float* rstd, const float* dy,
                                    float* dx, double* dweight, double* dbias, float beta = 1.0f) {
  const double center = mean == nullptr ? 0.0 : double{*mean}, r = double{*rstd};
  double mean_g = 0, mean_gn = 0;
  for (std::int64_t j = 0; j < cols; ++j) {
    const double g = double{dy[j]} * double{weight[j]} / static_cast<double>(cols);
    mean_g += mean == nullptr ? 0.0 : g;
    mean_gn += g * (double{x[j]} - center) * r;
  }
  for (std::int64_t j = 0; j < cols; ++j) {
    const double n = (double{x[j]} - center) * r, g = double{dy[j]} * double{weight[j]};
    dx[j] = (beta == 0.0f ? 0.0f : dx[j]) + static_cast<float>(r * (g - mean_g - n * mean_gn));
    dweight[j] += double{dy[j]} * n;
    if (dbias != nullptr) {
      dbias[j] += double{dy[j]};
    }
  }
}

}  // namespace kernels

namespace detail {

struct NormRow {  // y of one row
  const float* x;
  const float* weight;
  const float* bias;
  float* y;
  float center, rstd;
  bool past;  // the caches

  template <class L>
  TINYSCALE_INLINE void at(std::int64_t j, std::int64_t left) const {
    typename L::V v, w, b{}, c, r;
    broadcast<L>(center, c);
    broadcast<L>(rstd, r);
    if (bias != nullptr) {
      load_some<L>(bias + j, left, 0.0f, b);
    }
    load_some<L>(weight + j, left, 0.0f, w);
    load_some<L>(x + j, left, 0.0f, v);  // last: the product and the sum are fused, or never
    put_some<L>(past, (v - c) * r * w + b, left, y + j);
  }
};

struct NormRows {
  std::int64_t begin, end, cols;
  float eps;
  const float* x;
  const float* weight;
  const float* bias;  // null: none
  float* y;
  float* mean;  // null: RMS norm
  float* rstd;
  bool past = false;

  template <class L>
  TINYSCALE_INLINE void run() const {
    for (std::int64_t i = begin; i < end; ++i) {
      norm<L>(i, x + i * cols, y + i * cols);
    }
    if (past) {
      end_past_caches();
    }
  }

  template <class L>
  TINYSCALE_INLINE void norm(std::int64_t i, const float* xi, float* yi) const {
    const float count = static_cast<float>(cols);
    const float center = mean == nullptr ? 0.0f : row_sum<L>(cols, ValueTerm{xi}) / count;
    const float square = row_sum<L>(cols, SquareTerm{xi, center, xi + cols});
    const float variance = square / count + eps;
    if (!is_finite(double{square}) || variance < 1e-36f) {  // f32 has no such squares
      kernels::norm_reference(cols, eps, xi, weight, bias, yi, mean == nullptr ? mean : mean + i,
                              rstd + i);
      return;
    }
    const float r = 1.0f / std::sqrt(variance);
    if (mean != nullptr) {
      mean[i] = center;
    }
    rstd[i] = r;
    for_row_past<L>(past, cols, yi, NormRow{xi, weight, bias, yi, center, r, past});
  }
};

struct NormBackward {
  std::int64_t cols;
  const float* x;
  const float* weight;
  const float* mean;  // null: RMS norm
  const float* rstd;
  const float* dy;
  float beta;
  float* dx;       // beta dx + ...
  float* dweight;  // += the sum over these rows
  float* dbias;    // null: none
};

struct NormSlope {  // of one row, in members of its own: a store might change those of another
  const float* x;
  const float* weight;
  const float* dy;
  float* dx;
  float* dweight;
  float* dbias;  // null: none
  float beta, center, rstd, mean_g, mean_gn;

  template <class L>
  TINYSCALE_INLINE void at(std::int64_t j, std::int64_t left) const {
    typename L::V v, w, d, c, r, mg, mgn;
    broadcast<L>(center, c);
    broadcast<L>(rstd, r);
    broadcast<L>(mean_g, mg);
    broadcast<L>(mean_gn, mgn);
    load_some<L>(x + j, left, 0.0f, v);
    load_some<L>(weight + j, left, 0.0f, w);
    load_some<L>(dy + j, left, 0.0f, d);
    v = (v - c) * r;
    add_some<L>(beta, r * (d * w - mg - v * mgn), left, dx + j);
    add_some<L>(1.0f, d * v, left, dweight + j);
    if (dbias != nullptr) {
      add_some<L>(1.0f, d, left, dbias + j);
    }
  }
};

// all_g = the sum of a b, all_gn = the sum of a b (x - center). What is read next is fetched: the
// numbers of x and a that are `ahead`, and `later`.
template <class L>
TINYSCALE_INLINE void slope_sums(std::int64_t n, const float* x, const float* a, const float* b,
                                 float center, std::int64_t ahead, const float* later, float& all_g,
                                 float& all_gn) {
  typename L::V g[2] = {}, gn[2] = {}, c, v, w;
  broadcast<L>(center, c);
  std::int64_t j = 0;
  for (; j + 2 * L::width <= n; j += 2 * L::width) {
    TINYSCALE_UNROLL
    for (int part = 0; part < 2; ++part) {
      prefetch<3>(a + j + part * L::width + ahead);
      prefetch<3>(x + j + part * L::width + ahead);
      prefetch<3>(later + j + part * L::width);
      load<L>(a + j + part * L::width, v);
      load<L>(b + j + part * L::width, w);
      v = v * w;
      g[part] = g[part] + v;
      load<L>(x + j + part * L::width, w);
      gn[part] = gn[part] + v * (w - c);
    }
  }
  for (; j < n; j += L::width) {
    load_some<L>(a + j, n - j, 0.0f, v);
    load_some<L>(b + j, n - j, 0.0f, w);
    v = v * w;
    g[0] = g[0] + v;
    load_some<L>(x + j, n - j, center, w);
    gn[0] = gn[0] + v * (w - c);
  }
  all_g = sum_lanes<L>(g[0] + g[1]);
  all_gn = sum_lanes<L>(gn[0] + gn[1]);
}

// A few rows at a time where all is in the cache: what their columns add to dweight and dbias is
// gathered in registers. In memory one by one, in the order in which they stand there.
struct NormBackwardRows {
  const NormBackward& n;
  std::int64_t begin, end, step;

  static constexpr std::int64_t most = 8;  // of step
  struct Row {
    float center, rstd, mean_g, mean_gn;
  };

  template <class L>
  TINYSCALE_INLINE void run() const {
    const float count = static_cast<float>(n.cols);
    // Rows of x, dy, dx and of what is per column fit L1, or do not.
    const std::int64_t ahead = n.cols <= 1536 ? fetch_ahead(1024) : 1024;
    Row rows[most];
    for (std::int64_t i = begin; i < end; i += step) {
      const std::int64_t size = std::min(step, end - i);
      float g = 0.0f, gn = 0.0f;
      for (std::int64_t r = 0; r < size; ++r) {
        const std::int64_t at = (i + r) * n.cols;
        const float center = n.mean == nullptr ? 0.0f : n.mean[i + r], rstd = n.rstd[i + r];
        const float* const later = ahead == 0 ? n.x + at : n.dx + at;
        slope_sums<L>(n.cols, n.x + at, n.dy + at, n.weight, center, ahead, later, g, gn);
        rows[r] = {center, rstd, n.mean == nullptr ? 0.0f : g / count, gn * rstd / count};
      }
      if (step == 1) {
        const Row& row = rows[0];
        const std::int64_t at = i * n.cols;
        for_row<L>(n.cols, NormSlope{n.x + at, n.weight, n.dy + at, n.dx + at, n.dweight, n.dbias,
                                     n.beta, row.center, row.rstd, row.mean_g, row.mean_gn});
        continue;
      }
      constexpr int vectors = L::width == 16 ? 4 : 2;
      std::int64_t j = 0;
      for (; j + vectors * L::width <= n.cols; j += vectors * L::width) {
        columns<L, vectors>(i * n.cols + j, size, rows, j, vectors * L::width);
      }
      for (; j < n.cols; j += L::width) {
        columns<L, 1>(i * n.cols + j, size, rows, j, n.cols - j);
      }
    }
  }

  // Up to four vectors of columns from j on, of size rows from x[at] on.
  template <class L, int VECTORS>
  TINYSCALE_INLINE void columns(std::int64_t at, std::int64_t size, const Row* rows, std::int64_t j,
                                std::int64_t left) const {
    typename L::V weight[4], dw[4] = {}, db[4] = {}, v, d, t;
    TINYSCALE_UNROLL
    for (int part = 0; part < VECTORS; ++part) {
      load_some<L>(n.weight + j + part * L::width, left - part * L::width, 0.0f, weight[part]);
    }
    for (const Row* row = rows; row < rows + size; ++row, at += n.cols) {
      TINYSCALE_UNROLL
      for (int part = 0; part < VECTORS; ++part) {
        const std::int64_t p = at + part * L::width, some = left - part * L::width;
        load_some<L>(n.x + p, some, 0.0f, v);
        load_some<L>(n.dy + p, some, 0.0f, d);
        db[part] = db[part] + d;
        broadcast<L>(row->center, t);
        v = v - t;
        broadcast<L>(row->rstd, t);
        v = v * t;
        dw[part] = dw[part] + d * v;
        broadcast<L>(row->mean_gn, t);
        v = v * t;
        broadcast<L>(row->mean_g, t);
        d = d * weight[part] - t;
        broadcast<L>(row->rstd, t);
        add_some<L>(n.beta, t * (d - v), some, n.dx + p);
      }
    }
    TINYSCALE_UNROLL
    for (int part = 0; part < VECTORS; ++part) {
      const std::int64_t p = part * L::width;
      add_some<L>(1.0f, dw[part], left - p, n.dweight + j + p);
      if (n.dbias != nullptr) {
        add_some<L>(1.0f, db[part], left - p, n.dbias + j + p);
      }
    }
  }
};

// Chunks of 32 to 512 rows, each with its own sums, which are then added in order and in double.
inline void norm_backward(const char* who, std::int64_t rows, const NormBackward& all) {
  const Memory dx{"dx", all.dx, count_of(who, {rows, all.cols})};
  check_in_place(who, dx, {{"x", all.x, dx.columns}, {"dy", all.dy, dx.columns}});
  check_own(who, dx,
            {{"weight", all.weight, all.cols}, {"mean", all.mean, rows}, {"rstd", all.rstd, rows}});
  const std::int64_t chunk = std::clamp<std::int64_t>((rows + 63) / 64, 32, 512);
  const std::int64_t chunks = (rows + chunk - 1) / chunk;
  const std::int64_t cached = rows * all.cols <= (1 << 17) ? 1024 / (all.cols + 1) : 1;
  const std::int64_t step = std::clamp<std::int64_t>(cached, 1, NormBackwardRows::most);
  const std::int64_t wide = 2 * all.cols;  // of dweight, then of dbias
  const Scratch lease(chunks * wide), totals_lease(2 * wide);
  double* const totals = reinterpret_cast<double*>(totals_lease.data());
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t c = begin; c < end; ++c) {
      NormBackward part = all;
      part.dweight = lease.data() + c * wide;
      part.dbias = all.dbias == nullptr ? nullptr : part.dweight + all.cols;
      std::fill(part.dweight, part.dweight + wide, 0.0f);
      run_on_lanes(NormBackwardRows{part, c * chunk, std::min(rows, (c + 1) * chunk), step});
    }
  };
  parallel_for(chunks, 1, body);
  std::fill(totals, totals + wide, 0.0);
  for (std::int64_t c = 0; c < chunks; ++c) {
    kernels::add_to_sums(wide, lease.data() + c * wide, totals);
  }
  for (std::int64_t j = 0; j < all.cols; ++j) {
    all.dweight[j] += static_cast<float>(totals[j]);
    if (all.dbias != nullptr) {
      all.dbias[j] += static_cast<float>(totals[all.cols + j]);
    }
  }
}

inline void norm_forward(const char* who, std::int64_t rows, const NormRows& all) {
  const std::int64_t n = count_of(who, {rows, all.cols});
  const bool plain = is_plain(all.y, all.x, n) && is_apart(all.y, n, all.weight, all.cols) &&
                     is_apart(all.y, n, all.bias, all.cols) && is_apart(all.mean, rows, all.x, n) &&
                     is_apart(all.rstd, rows, all.x, n);
  if (!plain) {
    check_in_place(who, {"y", all.y, n}, {{"x", all.x, n}});
    check_own(who, {"y", all.y, n},
              {{"weight", all.weight, all.cols}, {"bias", all.bias, all.cols}});
    check_own(who, {"mean", all.mean, rows}, {{"x", all.x, n}});
    check_own(who, {"rstd", all.rstd, rows}, {{"x", all.x, n}});
  }
  parallel_for(rows, row_grain(all.cols), [&](std::int64_t begin, std::int64_t end) {
    NormRows part = all;
    part.past = all.y != all.x && past_caches(rows * all.cols);
    part.begin = begin;
    part.end = end;
    run_on_lanes(part);
  });
}

}  // namespace detail

namespace kernels {

// x, y: [rows, cols]; weight, bias (or null): [cols]; mean, rstd: [rows], kept for backward.
inline void layer_norm_forward(std::int64_t rows, std::int64_t cols, float eps, const float* x,
                               const float* weight, const float* bias, float* y, float* mean,
                               float* rstd) {
  detail::norm_forward("layer_norm_forward", rows,
                       {0, 0, cols, eps, x, weight, bias, y, mean, rstd});
}

// dx = beta dx + ... (beta 0 or 1); dweight and dbias (or null) are added to.
inline void layer_norm_backward(std::int64_t rows, std::int64_t cols, const float* x,
                                const float* weight, const float* mean, const float* rstd,
                                const float* dy, float* dx, float* dweight, float* dbias,
                                float beta = 1.0f) {
  detail::norm_backward("layer_norm_backward", rows,
                        {cols, x, weight, mean, rstd, dy, beta, dx, dweight, dbias});
}

inline void rms_norm_forward(std::int64_t rows, std::int64_t cols, float eps, const float* x,
                             const float* weight, float* y, float* rstd) {
  detail::norm_forward("rms_norm_forward", rows,
                       {0, 0, cols, eps, x, weight, nullptr, y, nullptr, rstd});
}

inline void rms_norm_backward(std::int64_t rows, std::int64_t cols, const float* x,
                              const float* weight, const float* rstd, const float* dy, float* dx,
                              float* dweight, float beta = 1.0f) {
  detail::norm_backward("rms_norm_backward", rows,
                        {cols, x, weight, nullptr, rstd, dy, beta, dx, dweight, nullptr});
}

}  // namespace kernels
}  // namespace tinyscale
