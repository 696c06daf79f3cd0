#pragma once
// What a matmul of the shape that is left on one chip takes: the systolic closed form, whole tiles
// only, without stepping.
//   arrays side by side   ceil(K/R) ceil(N/(C A)) max(M, R) ticks, or the same of the transpose
//   a GPU                 ceil(blocks / cores) waves of 128x128, 128x256 or 256x128 blocks
// and never less than its bytes over the memory's bandwidth. Sources: docs of systolic/; the best
// rates ever measured for a chip's matmuls: stas00/ml-engineering, scaling book chapter 2.

#include <algorithm>  // max, min
#include <cmath>      // ceil

#include "tinyscale/base/list.hpp"
#include "tinyscale/hardware/chip.hpp"

namespace tinyscale {

// x [m, k] times w [k, n], `count` of them.
struct MatmulShape {
  double m = 0, k = 0, n = 0, count = 1;

  double flops() const { return 2 * m * k * n * count; }
};

// The best bf16 or fp8 rate that anybody has measured for a large matmul, as a share of the peak:
// A100 0.87, H100 0.80 (fp8 0.71), B200 0.78, MI300X 0.51, TPUs about 0.95; others 1.
inline double best_measured_matmul(const Chip& chip, DType format) {
  const bool fp8 = format == DType::fp8_e4m3 || format == DType::fp8_e5m2;
  const auto is = [&](const char* start) { return chip.name.rfind(start, 0) == 0; };
  if (is("a100")) {
    return 0.87;
  }
  if (is("h100") || is("h200") || is("h800")) {
    return fp8 ? 0.71 : 0.80;
  }
  if (is("b200") || is("gb200") || is("gb300")) {
    return fp8 ? 0.69 : 0.78;  // fp8 not measured: the ratio of the H100
  }
  return is("mi300x") ? 0.51 : chip.kind == "tpu" ? 0.95 : 1;
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
