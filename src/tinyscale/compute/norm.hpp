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

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/compute/softmax.hpp"
#include "tinyscale/compute/sums.hpp"

namespace tinyscale {
namespace detail {

struct NormRows {
  std::int64_t begin, end, cols;
  float eps;
  const float* x;
  const float* weight;
  const float* bias;  // null: none
  float* y;
  float* mean;  // null: RMS norm
  float* rstd;

  template <class L>
  TINYSCALE_INLINE void run() const {
    for (std::int64_t i = begin; i < end; ++i) {
      row<L>(i, x + i * cols, y + i * cols);
    }
  }

  template <class L>
  TINYSCALE_INLINE void row(std::int64_t i, const float* xi, float* yi) const {
    typedef typename L::V V;
    const std::int64_t full = cols / L::width * L::width;
    const float count = static_cast<float>(cols);
    V v, w, b, c{}, total{};
    float center = 0.0f;
    if (mean != nullptr) {
      for (std::int64_t j = 0; j < full; j += L::width) {
        load<L>(xi + j, v);
        total = total + v;
      }
      center = sum_lanes<L>(total);
      for (std::int64_t j = full; j < cols; ++j) {
        center += xi[j];
      }
      center /= count;
      mean[i] = center;
      broadcast<L>(center, c);
    }
    total = V{};
    for (std::int64_t j = 0; j < full; j += L::width) {
      load<L>(xi + j, v);
      total = total + (v - c) * (v - c);
    }
    float square = sum_lanes<L>(total);
    for (std::int64_t j = full; j < cols; ++j) {
      square += (xi[j] - center) * (xi[j] - center);
    }
    const float r = 1.0f / std::sqrt(square / count + eps);
    rstd[i] = r;
    V vr;
    broadcast<L>(r, vr);
    for (std::int64_t j = 0; j < full; j += L::width) {
      load<L>(xi + j, v);
      load<L>(weight + j, w);
      b = V{};
      if (bias != nullptr) {
        load<L>(bias + j, b);
      }
      store<L>(yi + j, (v - c) * vr * w + b);
    }
    for (std::int64_t j = full; j < cols; ++j) {
      yi[j] = (xi[j] - center) * r * weight[j] + (bias == nullptr ? 0.0f : bias[j]);
    }
  }
};

struct NormBackwardRows {
  std::int64_t begin, end, cols;
  const float* x;
  const float* weight;
  const float* mean;  // null: RMS norm
  const float* rstd;
  const float* dy;
  float* dx;       // += ...
  float* dweight;  // += the sum over these rows
  float* dbias;    // null: none

  template <class L>
  TINYSCALE_INLINE void run() const {
    for (std::int64_t i = begin; i < end; ++i) {
      const float center = mean == nullptr ? 0.0f : mean[i];
      float mean_g = 0.0f, mean_gn = 0.0f;
      sums<L>(x + i * cols, dy + i * cols, center, rstd[i], mean_g, mean_gn);
      spread<L>(x + i * cols, dy + i * cols, dx + i * cols, center, rstd[i],
                mean == nullptr ? 0.0f : mean_g, mean_gn);
    }
  }

  template <class L>
  TINYSCALE_INLINE void sums(const float* xi, const float* dyi, float center, float r,
                             float& mean_g, float& mean_gn) const {
    typedef typename L::V V;
    const std::int64_t full = cols / L::width * L::width;
    V v, w, d, c, vr, sg{}, sgn{};
    broadcast<L>(center, c);
    broadcast<L>(r, vr);
    for (std::int64_t j = 0; j < full; j += L::width) {
      load<L>(xi + j, v);
      load<L>(weight + j, w);
      load<L>(dyi + j, d);
      const V g = d * w;
      sg = sg + g;
      sgn = sgn + g * ((v - c) * vr);
    }
    mean_g = sum_lanes<L>(sg);
    mean_gn = sum_lanes<L>(sgn);
    for (std::int64_t j = full; j < cols; ++j) {
      const float g = dyi[j] * weight[j];
      mean_g += g;
      mean_gn += g * ((xi[j] - center) * r);
    }
    mean_g /= static_cast<float>(cols);
    mean_gn /= static_cast<float>(cols);
  }

  template <class L>
  TINYSCALE_INLINE void spread(const float* xi, const float* dyi, float* dxi, float center, float r,
                               float mean_g, float mean_gn) const {
    typedef typename L::V V;
    const std::int64_t full = cols / L::width * L::width;
    V v, w, d, o, c, vr, mg, mgn;
    broadcast<L>(center, c);
    broadcast<L>(r, vr);
    broadcast<L>(mean_g, mg);
    broadcast<L>(mean_gn, mgn);
    for (std::int64_t j = 0; j < full; j += L::width) {
      load<L>(xi + j, v);
      load<L>(weight + j, w);
      load<L>(dyi + j, d);
      load<L>(dxi + j, o);
      const V n = (v - c) * vr;
      store<L>(dxi + j, o + vr * (d * w - mg - n * mgn));
      load<L>(dweight + j, o);
      store<L>(dweight + j, o + d * n);
      if (dbias != nullptr) {
        load<L>(dbias + j, o);
        store<L>(dbias + j, o + d);
      }
    }
    for (std::int64_t j = full; j < cols; ++j) {
      const float n = (xi[j] - center) * r;
      dxi[j] += r * (dyi[j] * weight[j] - mean_g - n * mean_gn);
      dweight[j] += dyi[j] * n;
      if (dbias != nullptr) {
        dbias[j] += dyi[j];
      }
    }
  }
};

// Chunks of 16 to 512 rows, each with its own sums, which are then added in order and in double.
inline void norm_backward(std::int64_t rows, NormBackwardRows all) {
  const std::int64_t chunk = std::clamp<std::int64_t>((rows + 63) / 64, 16, 512);
  const std::int64_t chunks = (rows + chunk - 1) / chunk;
  List<float> sums(static_cast<std::size_t>(chunks * 2 * all.cols));
  parallel_for(chunks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t c = begin; c < end; ++c) {
      NormBackwardRows part = all;
      part.begin = c * chunk;
      part.end = std::min(rows, part.begin + chunk);
      part.dweight = sums.data() + c * 2 * all.cols;
      part.dbias = all.dbias == nullptr ? nullptr : part.dweight + all.cols;
      run_on_lanes(part);
    }
  });
  List<double> totals(static_cast<std::size_t>(2 * all.cols));
  for (std::int64_t c = 0; c < chunks; ++c) {
    kernel::add_to_sums(2 * all.cols, sums.data() + c * 2 * all.cols, totals.data());
  }
  for (std::int64_t j = 0; j < all.cols; ++j) {
    all.dweight[j] += static_cast<float>(totals[static_cast<std::size_t>(j)]);
    if (all.dbias != nullptr) {
      all.dbias[j] += static_cast<float>(totals[static_cast<std::size_t>(all.cols + j)]);
    }
  }
}

inline void norm_forward(std::int64_t rows, const NormRows& all) {
  parallel_for(rows, row_grain(all.cols), [&](std::int64_t begin, std::int64_t end) {
    NormRows part = all;
    part.begin = begin;
    part.end = end;
    run_on_lanes(part);
  });
}

}  // namespace detail

namespace kernel {

// x, y: [rows, cols]; weight, bias (or null): [cols]; mean, rstd: [rows], kept for backward.
inline void layer_norm_forward(std::int64_t rows, std::int64_t cols, float eps, const float* x,
                               const float* weight, const float* bias, float* y, float* mean,
                               float* rstd) {
  detail::norm_forward(rows, {0, 0, cols, eps, x, weight, bias, y, mean, rstd});
}

inline void layer_norm_backward(std::int64_t rows, std::int64_t cols, const float* x,
                                const float* weight, const float* mean, const float* rstd,
                                const float* dy, float* dx, float* dweight, float* dbias) {
  detail::norm_backward(rows, {0, 0, cols, x, weight, mean, rstd, dy, dx, dweight, dbias});
}

inline void rms_norm_forward(std::int64_t rows, std::int64_t cols, float eps, const float* x,
                             const float* weight, float* y, float* rstd) {
  detail::norm_forward(rows, {0, 0, cols, eps, x, weight, nullptr, y, nullptr, rstd});
}

inline void rms_norm_backward(std::int64_t rows, std::int64_t cols, const float* x,
                              const float* weight, const float* rstd, const float* dy, float* dx,
                              float* dweight) {
  detail::norm_backward(rows, {0, 0, cols, x, weight, nullptr, rstd, dy, dx, dweight, nullptr});
}

}  // namespace kernel
}  // namespace tinyscale
