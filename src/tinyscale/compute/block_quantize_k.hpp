#pragma once
// Numbers into super-blocks of 256: q2_k .. q6_k. For each run of 16 or 32 elements the scale (and
// minimum) of least squared error is searched: round with a step near range / levels, solve for the
// scale and minimum that suit those codes, keep the best. Then the scales are rounded to their few
// bits under the block's f16 ones, and the codes chosen again for what is really stored.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "tinyscale/base/format.hpp"
#include "tinyscale/compute/block_dequantize.hpp"

namespace tinyscale {
namespace detail {

// To the nearest integer, halves away from zero; |x| < 2^31.
inline int round_away(float x) {
  const int whole = static_cast<int>(x);
  const float rest = x - static_cast<float>(whole);
  return whole + (rest >= 0.5f ? 1 : rest <= -0.5f ? -1 : 0);
}

// Halves to the even one.
inline int round_even(float x) {
  const int whole = static_cast<int>(x);
  const float rest = x - static_cast<float>(whole);
  const bool odd = whole % 2 != 0;
  return whole + (rest > 0.5f || (rest == 0.5f && odd)     ? 1
                  : rest < -0.5f || (rest == -0.5f && odd) ? -1
                                                           : 0);
}

inline int round_between(float x, int least, int most) {
  return !(x > static_cast<float>(least)) ? least
         : x >= static_cast<float>(most)  ? most
                                          : round_away(x);
}

inline void put_half(std::uint8_t* to, float x) {
  const std::uint16_t code = to_f16(x);
  std::memcpy(to, &code, 2);
}

struct BlockFit {
  double scale = 0, minimum = 0;  // x = scale q - minimum
};

// The reference bodies: the code of a number, every one tried; the squared error of numbers under a
// scale and minimum; and the least that a fine grid of both finds (affine false: no minimum).
inline int nearest_code_reference(double x, const BlockFit& fit, int least, int most) {
  int best = least;
  double best_off = std::fabs(fit.scale * best - fit.minimum - x);
  for (int q = least + 1; q <= most; ++q) {
    const double off = std::fabs(fit.scale * q - fit.minimum - x);
    best = off < best_off ? q : best;
    best_off = off < best_off ? off : best_off;
  }
  return best;
}
inline double fit_error_reference(int n, const float* x, const BlockFit& fit, int least, int most) {
  double sum = 0;
  for (int i = 0; i < n; ++i) {
    const int q = nearest_code_reference(double{x[i]}, fit, least, most);
    const double off = fit.scale * q - fit.minimum - double{x[i]};
    sum += off * off;
  }
  return sum;
}
inline double fit_grid_reference(int n, const float* x, bool affine, int least, int most) {
  double low = 0, high = 0, best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < n; ++i) {
    low = std::min(low, double{x[i]});
    high = std::max(high, double{x[i]});
  }
  const double range = affine ? high - low : 2 * std::max(high, -low);
  for (int s = -150; s <= 150; ++s) {  // of either sign, of what the range asks up to 1.5
    for (int m = 0; m <= (affine && s > 0 ? 30 : 0); ++m) {
      const BlockFit fit{s * 0.01 * range / (most - least), -low * m / 25};
      if (s > 0 || !affine) {
        best = std::min(best, fit_error_reference(n, x, fit, least, most));
      }
    }
  }
  return best;
}

// Codes 0 .. most, minimum >= 0: what q2_k, q4_k and q5_k can store.
inline BlockFit fit_affine(int n, const float* x, int most) {
  double least = 0, largest = static_cast<double>(x[0]);  // 0: a minimum below 0 cannot be stored
  for (int i = 0; i < n; ++i) {
    const double v = static_cast<double>(x[i]);
    least = v < least ? v : least;
    largest = v > largest ? v : largest;
  }
  if (!(largest > least)) {
    return {0, -least};
  }
  BlockFit best;
  double best_error = -1;
  for (int step = -10; step <= 10; ++step) {
    const double inverse = (most + 0.1 * step) / (largest - least);
    if (!(inverse > 0)) {
      continue;
    }
    double q1 = 0, q2 = 0, x1 = 0, xq = 0, x2 = 0;
    for (int i = 0; i < n; ++i) {
      const double v = static_cast<double>(x[i]);
      const double q = round_between(static_cast<float>((v - least) * inverse), 0, most);
      q1 += q;
      q2 += q * q;
      x1 += v;
      xq += v * q;
      x2 += v * v;
    }
    const double det = n * q2 - q1 * q1;
    BlockFit fit{q2 > 0 ? xq / q2 : 0, 0};
    if (det > 0 && q1 * xq - x1 * q2 > 0) {
      fit = {(n * xq - x1 * q1) / det, (q1 * xq - x1 * q2) / det};
    }
    const double s = fit.scale, m = fit.minimum;
    const double error = x2 + s * s * q2 + n * m * m - 2 * s * xq + 2 * m * x1 - 2 * s * m * q1;
    if (s > 0 && (best_error < 0 || error < best_error)) {
      best = fit;
      best_error = error;
    }
  }
  return best;
}

// Codes -half .. half - 1 (q3_k, q6_k): the scale, of either sign.
inline double fit_symmetric(int n, const float* x, int half) {
  float extreme = 0;
  for (int i = 0; i < n; ++i) {
    extreme = std::fabs(x[i]) > std::fabs(extreme) ? x[i] : extreme;
  }
  double best = 0, best_gain = 0;
  for (int step = -9; extreme != 0.0f && step <= 9; ++step) {
    const double inverse = -(half + 0.1 * step) / static_cast<double>(extreme);
    double q2 = 0, xq = 0;
    for (int i = 0; i < n; ++i) {
      const double v = static_cast<double>(x[i]);
      const double q = round_between(static_cast<float>(v * inverse), -half, half - 1);
      q2 += q * q;
      xq += v * q;
    }
    if (q2 > 0 && xq * xq / q2 > best_gain) {  // what this scale takes off the squared error
      best_gain = xq * xq / q2;
      best = xq / q2;
    }
  }
  return best;
}

inline float float_or_zero(float over, float by) { return by != 0.0f ? over / by : 0.0f; }

// The scales and minimums of a super-block with their two f16 factors, as they are stored.
struct StoredScales {
  int scale[16] = {}, minimum[16] = {};
  float d = 0, least = 0;  // after rounding to f16
};

inline StoredScales store_affine(const float* x, int parts, int most, int scale_most) {
  BlockFit fits[16];
  double scale = 0, minimum = 0;
  const int n = 256 / parts;
  for (int p = 0; p < parts; ++p) {
    fits[p] = fit_affine(n, x + n * p, most);
    scale = fits[p].scale > scale ? fits[p].scale : scale;
    minimum = fits[p].minimum > minimum ? fits[p].minimum : minimum;
  }
  StoredScales s;
  s.d = half_to_float(to_f16(static_cast<float>(scale / scale_most)));
  s.least = half_to_float(to_f16(static_cast<float>(minimum / scale_most)));
  for (int p = 0; p < parts; ++p) {
    s.scale[p] =
        round_between(float_or_zero(static_cast<float>(fits[p].scale), s.d), 0, scale_most);
    s.minimum[p] =
        round_between(float_or_zero(static_cast<float>(fits[p].minimum), s.least), 0, scale_most);
  }
  return s;
}

// Scales -scale_half .. scale_half - 1 under one factor: the largest becomes -scale_half.
inline StoredScales store_symmetric(const float* x, int half, int scale_half) {
  float fits[16], extreme = 0;
  for (int p = 0; p < 16; ++p) {
    fits[p] = static_cast<float>(fit_symmetric(16, x + 16 * p, half));
    extreme = std::fabs(fits[p]) > std::fabs(extreme) ? fits[p] : extreme;
  }
  StoredScales s;
  s.d = half_to_float(to_f16(extreme / static_cast<float>(-scale_half)));
  for (int p = 0; p < 16; ++p) {
    s.scale[p] = round_between(float_or_zero(fits[p], s.d), -scale_half, scale_half - 1);
  }
  return s;
}

// The codes 0 .. most of all 256 elements for the scales as stored; symmetric ones `zero` higher.
inline void choose_codes(const float* x, const StoredScales& s, int parts, int zero, int most,
                         std::uint8_t* codes) {
  const int n = 256 / parts;
  for (int i = 0; i < 256; ++i) {
    const float scale = s.d * static_cast<float>(s.scale[i / n]);
    const float minimum = s.least * static_cast<float>(s.minimum[i / n]);
    const float at = float_or_zero(x[i] + minimum, scale);
    codes[i] = static_cast<std::uint8_t>(round_between(at, -zero, most - zero) + zero);
  }
}

inline void or_byte(std::uint8_t& byte, int bits) { byte = static_cast<std::uint8_t>(byte | bits); }

inline void quantize_q2_k(const float* x, std::uint8_t* b) {
  std::uint8_t codes[256];
  const StoredScales s = store_affine(x, 16, 3, 15);
  choose_codes(x, s, 16, 0, 3, codes);
  std::memset(b, 0, 84);
  for (int p = 0; p < 16; ++p) {
    b[p] = static_cast<std::uint8_t>(s.scale[p] | s.minimum[p] << 4);
  }
  for (int i = 0; i < 256; ++i) {
    or_byte(b[16 + 32 * (i / 128) + i % 32], codes[i] << (2 * (i % 128 / 32)));
  }
  put_half(b + 80, s.d);
  put_half(b + 82, s.least);
}

inline void quantize_q3_k(const float* x, std::uint8_t* b) {
  std::uint8_t codes[256];
  const StoredScales s = store_symmetric(x, 4, 32);
  choose_codes(x, s, 16, 4, 7, codes);
  std::memset(b, 0, 110);
  for (int i = 0; i < 256; ++i) {
    const int row = i % 128 / 32;
    or_byte(b[32 + 32 * (i / 128) + i % 32], (codes[i] & 3) << (2 * row));
    or_byte(b[i % 32], (codes[i] >> 2) << (4 * (i / 128) + row));
  }
  for (int p = 0; p < 16; ++p) {
    const int stored = s.scale[p] + 32;
    or_byte(b[96 + p % 8], (stored & 15) << (p < 8 ? 0 : 4));
    or_byte(b[96 + 8 + p % 4], (stored >> 4) << (2 * (p / 4)));
  }
  put_half(b + 108, s.d);
}

inline void quantize_q45_k(const float* x, int bits, std::uint8_t* b) {
  std::uint8_t codes[256];
  const int most = (1 << bits) - 1;
  const StoredScales s = store_affine(x, 8, most, 63);
  choose_codes(x, s, 8, 0, most, codes);
  std::memset(b, 0, bits == 5 ? 176 : 144);
  put_half(b, s.d);
  put_half(b + 2, s.least);
  for (int p = 0; p < 4; ++p) {  // six_bit_pair reads them
    const int scale = s.scale[p + 4], minimum = s.minimum[p + 4];
    or_byte(b[4 + p], s.scale[p] | (scale >> 4) << 6);
    or_byte(b[8 + p], s.minimum[p] | (minimum >> 4) << 6);
    or_byte(b[12 + p], (scale & 15) | (minimum & 15) << 4);
  }
  for (int i = 0; i < 256; ++i) {
    const int part = i / 32;
    or_byte(b[(bits == 5 ? 48 : 16) + 32 * (part / 2) + i % 32], (codes[i] & 15)
                                                                     << (4 * (part % 2)));
    if (bits == 5) {
      or_byte(b[16 + i % 32], (codes[i] >> 4) << part);
    }
  }
}

inline void quantize_q6_k(const float* x, std::uint8_t* b) {
  std::uint8_t codes[256];
  const StoredScales s = store_symmetric(x, 32, 128);
  choose_codes(x, s, 16, 32, 63, codes);
  std::memset(b, 0, 210);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, row = i % 128 / 32;
    or_byte(b[64 * half + 32 * (row % 2) + i % 32], (codes[i] & 15) << (4 * (row / 2)));
    or_byte(b[128 + 32 * half + i % 32], (codes[i] >> 4) << (2 * row));
  }
  for (int p = 0; p < 16; ++p) {
    b[192 + p] = static_cast<std::uint8_t>(s.scale[p]);
  }
  put_half(b + 208, s.d);
}

}  // namespace detail
}  // namespace tinyscale
