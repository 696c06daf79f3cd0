#pragma once
// What a matmul of the shape that is left on one chip takes: the systolic closed form, whole tiles
// only, without stepping.
//   arrays side by side   ceil(K/R) ceil(N/(C A)) max(M, R) ticks, or the same of the transpose
//   a GPU                 ceil(blocks / cores) waves of 128x128, 128x256 or 256x128 blocks
// and never less than its bytes over the memory's bandwidth. Sources: docs of systolic/; scaling
// book chapter 2; hardware/best_matmul.

#include <algorithm>  // max, min
#include <cmath>      // ceil

#include "tinyscale/base/list.hpp"
#include "tinyscale/hardware/best_matmul.hpp"
#include "tinyscale/hardware/chip.hpp"

namespace tinyscale {

// x [m, k] times w [k, n], `count` of them.
struct MatmulShape {
  double m = 0, k = 0, n = 0, count = 1;

  double flops() const { return 2 * m * k * n * count; }
};

// The share of the peak that a large matmul may hope for: the best that was measured on the chip or
// on its kin, the ratio of the kin's bf16 where fp8 was not; 0.95 of a TPU; 1 of other chips.
inline double large_matmul_share(const Chip& chip, DType format) {
  Chip kin = chip;
  kin.name = detail::measured_kin(chip.name);
  const double best = best_matmul_fraction(kin, format);
  return best > 0             ? best
         : !kin.name.empty()  ? best_matmul_fraction(kin, DType::bf16)
         : chip.kind == "tpu" ? 0.95
                              : 1;
}

namespace detail {

// Ticks of A arrays of R x C side by side over those that hold no padding.
inline double array_efficiency(const Chip& chip, double m, double k, double n) {
  const double rows = chip.mxu_rows, wide = static_cast<double>(chip.mxu_cols) * chip.mxus;
  const auto ticks = [&](double stream, double down, double across) {
    return std::ceil(down / rows) * std::ceil(across / wide) * std::max(stream, rows);
  };
  const double useful = m * k * n / (rows * wide);
  return useful / std::min(ticks(m, k, n), ticks(n, k, m));
}

// Blocks to the cores in waves, each as long as K and the way in and out of a core's arrays.
inline double wave_efficiency(const Chip& chip, double m, double k, double n) {
  static const double blocks[][2] = {{128, 128}, {128, 256}, {256, 128}};
  const double through = 2.0 * chip.mxu_rows + chip.mxu_cols;
  double best = 0;
  for (const auto& block : blocks) {
    const double count = std::ceil(m / block[0]) * std::ceil(n / block[1]);
    const double waves = std::ceil(count / chip.cores);
    const double area = waves * chip.cores * block[0] * block[1];
    best = std::max(best, m * n / area * k / (k + through));
  }
  return best;
}

}  // namespace detail

// The share of the arrays' ticks that do work for the shape; 1 where the chip has no arrays.
inline double mapping_efficiency(const Chip& chip, double m, double k, double n) {
  const bool arrays = chip.mxu_rows >= 8 && chip.mxu_cols > 0 && chip.mxus > 0 && chip.cores > 0;
  if (!arrays || !(m > 0 && k > 0 && n > 0)) {
    return 1;
  }
  return chip.kind == "gpu" ? detail::wave_efficiency(chip, m, k, n)
                            : detail::array_efficiency(chip, m, k, n);
}

}  // namespace tinyscale
