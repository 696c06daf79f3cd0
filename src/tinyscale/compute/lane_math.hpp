#pragma once
// Functions of vector lanes: exp, log, erf, tanh, 1 + e^-x, the slope of gelu, sqrt.
// Sources: Cephes expf and logf; the rational erf and tanh of Eigen and XLA; 2^x and the slope are
// our fits.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "tinyscale/compute/lanes.hpp"

namespace tinyscale {
namespace detail {

// e^x within 2 ulp, 0 and inf at the ends: 2^n e^r with n = round(x / ln 2), |r| <= ln 2 / 2.
// Polynomials here are summed in pairs (Estrin), since what limits a loop of them is how long each
// waits for its own last result.
template <class L>
TINYSCALE_INLINE void exp_vector(const typename L::V& x, typename L::V& y) {
  typedef typename L::V V;
  typedef typename L::I I;
  V t, a, b;
  I n;
  clamp_vector<L>(x, -104.0f, 89.0f, t);
  // Adding 1.5 * 2^23 leaves round(value) in the low bits. They are read as an integer: a
  // compiler under -ffast-math may cancel a subtraction of that number against its addition.
  const V shifted = t * 1.44269504088896341f + 12582912.0f;
  std::memcpy(&n, &shifted, sizeof(n));
  n = n - 0x4B400000;  // the bits of 1.5 * 2^23
  to_float<L>(n, a);
  const V r = (t - a * 0.693359375f) + a * 2.12194440e-4f;  // ln 2 in two parts
  const V s = r * r;
  const V high = (r * 1.9875691500e-4f + 1.3981999507e-3f) * s;
  const V middle = r * 8.3334519073e-3f + 4.1665795894e-2f + high;
  y = (middle * s + (r * 1.6666665459e-1f + 5.0000001201e-1f)) * s + (r + 1.0f);
  const I half = n >> 1;  // 2^n in two factors, so that 2^128 and 2^-149 can be reached
  const I bits_a = (half + 127) << 23;
  const I bits_b = (n - half + 127) << 23;
  std::memcpy(&a, &bits_a, sizeof(a));
  std::memcpy(&b, &bits_b, sizeof(b));
  y = y * a * b;
}

constexpr float log2_e = 1.44269504088896341f;
constexpr float exp_lowest = -88.029692f;  // -127 ln 2

// 2^(a b) for a b from -127 to 127, 0 below -126.5: n = round(a b), 2^(a b - n) by our own fit,
// within 1.8e-7 of it, and 2^-24 |a b| more where the product is rounded, as it is unless fused.
template <class L>
TINYSCALE_INLINE void exp2_product(const typename L::V& a, const typename L::V& b,
                                   typename L::V& y) {
  typedef typename L::V V;
  V power;
  typename L::U bits;                     // which may wrap, for a NaN
  const V shifted = a * b + 12583039.0f;  // as above, but 127 more: n + 127 is left in the low bits
  std::memcpy(&bits, &shifted, sizeof(bits));
  const typename L::U above = bits - 0x4B40007FU;
  typename L::I n;
  std::memcpy(&n, &above, sizeof(n));
  to_float<L>(n, power);
  const V r = a * b - power;
  bits = bits << 23;
  std::memcpy(&power, &bits, sizeof(power));
  const V s = r * r;
  const V high = (r * 1.3264728769e-3f + 9.6715131831e-3f);
  y = ((high * s + (r * 5.5507337445e-2f + 2.4022242077e-1f)) * s + (r * 6.9314697760e-1f + 1.0f)) *
      power;
}

// e^x for x <= 0 or little above, as a softmax needs it: 0 below 2^-126.5. A NaN passes through.
template <class L>
TINYSCALE_INLINE void exp_negative(const typename L::V& x, typename L::V& y) {
  typename L::V low, factor;
  broadcast<L>(exp_lowest, low);
  broadcast<L>(log2_e, factor);
  max_vector<L>(x, low, low);
  exp2_product<L>(low, factor, y);
}

// ln(x) of a normal x > 0: x = 2^n m with m from sqrt(1/2) to sqrt(2). Else x itself.
template <class L>
TINYSCALE_INLINE void log_vector(const typename L::V& x, typename L::V& y) {
  typedef typename L::V V;
  typedef typename L::I I;
  I bits;
  std::memcpy(&bits, &x, sizeof(bits));
  const I n = (bits - 0x3F3504F3) >> 23;
  bits = bits - (n << 23);
  V m, e;
  std::memcpy(&m, &bits, sizeof(m));
  to_float<L>(n, e);
  m = m - 1.0f;
  V p = m * 7.0376836292e-2f + -1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m + -1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m + -1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m + -2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  const V s = m * m;
  p = p * m * s + e * -2.12194440e-4f - 0.5f * s + m + e * 0.693359375f;
  y = x > 0.0f ? p : x;
}

// y = min(x^2, most): where a quotient x P(y) / Q(y) has come to 1 it goes on growing with x alone,
// up to the bound of its result. The quotient of a smaller x may be an ulp or two beyond 1.
template <class L>
TINYSCALE_INLINE void square_below(const typename L::V& x, float most, typename L::V& y) {
  typename L::V bound;
  broadcast<L>(most, bound);
  min_vector<L>(x * x, bound, y);
}

// erf(x) = x P(x^2) / Q(x^2) on |x| < 3.83, beyond which a float erf is 1.
template <class L>
TINYSCALE_INLINE void erf_vector(const typename L::V& x, typename L::V& y) {
  typedef typename L::V V;
  V s;
  square_below<L>(x, 14.6888f, s);
  const V u = s * s;
  const V p =
      (u * 0.00022905065861350646f + (s * 0.0034082910107109506f + 0.050955695062380861f)) * u +
      (s * 0.18520832239976145f + 1.128379143519084f);
  V q = u * -1.1791602954361697e-7f + (s * 0.000023547966471313185f + 0.0010179625278914885f);
  q = q * u + (s * 0.014070470171167667f + 0.11098505178285362f);
  q = q * u + (s * 0.49746925110067538f + 1.0f);
  clamp_vector<L>(x * p / q, -1.0f, 1.0f, y);
}

// d gelu / dx = (1 + erf(x / sqrt 2)) / 2 + x exp(-x^2 / 2) / sqrt(2 pi) = 1/2 + x P(x^2) / Q(x^2),
// fitted on |x| < 6, beyond which it is 0 or 1: within 2.2e-7.
template <class L>
TINYSCALE_INLINE void gelu_slope_vector(const typename L::V& x, typename L::V& y) {
  typedef typename L::V V;
  V t;
  clamp_vector<L>(x, -6.0f, 6.0f, t);
  const V s = t * t;
  const V u = s * s;
  V p = u * 1.70452630e-8f + (s * 9.22469186e-7f + 3.40921479e-5f);
  p = p * u + (s * 2.02711578e-4f + 1.38573892e-2f);
  p = p * u + (s * -2.23722328e-2f + 7.97884531e-1f);
  V q = u * (s * 1.31469524e-9f + 3.38953774e-7f) + (s * 1.03076124e-5f + 2.45319068e-4f);
  q = q * u + (s * 3.97146140e-3f + 4.41332434e-2f);
  q = q * u + (s * 3.05293527e-1f + 1.0f);
  y = t * p / q + 0.5f;
}

// t = x within bounds, y = 1 + e^-t: silu(x) = max(x, silu_lowest) / y. From the lowest on y stays
// at 2^126, a quotient of which is 0 in effect, also where -ffast-math takes it by a reciprocal.
constexpr float silu_lowest = -87.336544f;  // -126 ln 2
template <class L>
TINYSCALE_INLINE void one_and_exp(const typename L::V& x, typename L::V& t, typename L::V& y) {
  typename L::V factor;
  clamp_vector<L>(x, silu_lowest, -exp_lowest, t);
  broadcast<L>(-log2_e, factor);
  exp2_product<L>(t, factor, y);
  y = y + 1.0f;
}

// The same of e^-2u, u = sqrt(2 / pi) (t + 0.044715 t^3): gelu_tanh(x) = x (1 + tanh(u)) / 2 is
// max(x, gelu_lowest) / y.
constexpr float gelu_lowest = -10.001f;
template <class L>
TINYSCALE_INLINE void one_and_exp_gelu(const typename L::V& x, typename L::V& t, typename L::V& y) {
  clamp_vector<L>(x, gelu_lowest, 10.031f, t);
  exp2_product<L>(t, t * t * -0.10294324f + -2.3022082f, y);
  y = y + 1.0f;
}

// tanh(x) = x P(x^2) / Q(x^2) on |x| < 9.
template <class L>
TINYSCALE_INLINE void tanh_vector(const typename L::V& x, typename L::V& y) {
  typedef typename L::V V;
  V s;
  square_below<L>(x, 81.0f, s);
  V p = s * -2.76076847742355e-16f + 2.00018790482477e-13f;
  p = p * s + -8.60467152213735e-11f;
  p = p * s + 5.12229709037114e-08f;
  p = p * s + 1.48572235717979e-05f;
  p = p * s + 6.37261928875436e-04f;
  p = p * s + 4.89352455891786e-03f;
  V q = s * 1.19825839466702e-06f + 1.18534705686654e-04f;
  q = q * s + 2.26843463243900e-03f;
  q = q * s + 4.89352518554385e-03f;
  clamp_vector<L>(x * p / q, -1.0f, 1.0f, y);
}

// ln(x) of any x: -inf of 0, NaN below, and denormal numbers scaled by 2^24 first.
template <class L>
TINYSCALE_INLINE void any_log(const typename L::V& x, typename L::V& y) {
  typedef typename L::V V;
  constexpr float inf = std::numeric_limits<float>::infinity();
  V zero{}, t, low, none;
  t = x < std::numeric_limits<float>::min() ? x * 16777216.0f : x;
  broadcast<L>(1.0f, low);
  t = x > zero ? t : low;
  log_vector<L>(t, y);
  y = x < std::numeric_limits<float>::min() ? y - 16.6355323334f : y;
  broadcast<L>(-inf, low);
  broadcast<L>(std::numeric_limits<float>::quiet_NaN(), none);
  low = x == zero ? low : none;
  y = x > zero ? y : low;
  broadcast<L>(inf, low);
  y = x == low ? x : y;
}

// The square root, exactly rounded, NaN below 0. g++ and clang, younger and older ones, name the
// instruction differently.
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS
TINYSCALE_AVX512 inline void exact_sqrt(const Lanes16::V& x, Lanes16::V& y) {
#if !defined(__clang__)
  y = __builtin_ia32_sqrtps512_mask(x, x, -1, 4);
#elif __has_builtin(__builtin_elementwise_sqrt)
  y = __builtin_elementwise_sqrt(x);
#else
  y = __builtin_ia32_sqrtps512(x, 4);
#endif
}
TINYSCALE_AVX2 inline void exact_sqrt(const Lanes8::V& x, Lanes8::V& y) {
#if !defined(__clang__)
  y = __builtin_ia32_sqrtps256(x);
#elif __has_builtin(__builtin_elementwise_sqrt)
  y = __builtin_elementwise_sqrt(x);
#else
  y = __builtin_ia32_sqrtps256(x);
#endif
}
inline void exact_sqrt(const Lanes4::V& x, Lanes4::V& y) {
#if !defined(__clang__)
  y = __builtin_ia32_sqrtps(x);
#elif __has_builtin(__builtin_elementwise_sqrt)
  y = __builtin_elementwise_sqrt(x);
#else
  y = __builtin_ia32_sqrtps(x);
#endif
}
#endif
template <class V>  // of lanes without such an instruction
TINYSCALE_INLINE void exact_sqrt(const V& x, V& y) {
  float lanes[sizeof(V) / sizeof(float)];
  std::memcpy(lanes, &x, sizeof(V));
  for (float& lane : lanes) {
    lane = std::sqrt(lane);
  }
  std::memcpy(&y, lanes, sizeof(V));
}

}  // namespace detail
}  // namespace tinyscale
