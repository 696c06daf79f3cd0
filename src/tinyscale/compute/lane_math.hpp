#pragma once
// Functions of vector lanes: exp, log, erf, tanh, sigmoid, the slope of gelu, sqrt.
// Sources: Cephes expf and logf; the rational erf and tanh of Eigen and XLA; the slope is our fit.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "tinyscale/compute/lanes.hpp"

namespace tinyscale {
namespace detail {

// e^x = 2^n e^r with n = round(x / ln 2), |r| <= ln 2 / 2. Polynomials here are summed in pairs
// (Estrin), since what limits a loop of them is how long each waits for its own last result.
template <class L>
TINYSCALE_INLINE void exp_parts(const typename L::V& x, typename L::I& n,
                                typename L::V& power_of_r) {
  typedef typename L::V V;
  // Adding 1.5 * 2^23 leaves round(value) in the low bits. They are read as an integer: a
  // compiler under -ffast-math may cancel a subtraction of that number against its addition.
  const V shifted = x * 1.44269504088896341f + 12582912.0f;
  typename L::U bits;  // which may wrap, where x is too far away to be asked for
  std::memcpy(&bits, &shifted, sizeof(bits));
  bits = bits - 0x4B400000U;  // the bits of 1.5 * 2^23
  std::memcpy(&n, &bits, sizeof(n));
  V whole;
  to_float<L>(n, whole);
  const V r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;  // ln 2 in two parts
  const V s = r * r;
  const V high = (r * 1.9875691500e-4f + 1.3981999507e-3f) * s;
  const V middle = r * 8.3334519073e-3f + 4.1665795894e-2f + high;
  power_of_r = (middle * s + (r * 1.6666665459e-1f + 5.0000001201e-1f)) * s + (r + 1.0f);
}

// Within 2 ulp; 0 and inf at the ends.
template <class L>
TINYSCALE_INLINE void exp_vector(const typename L::V& x, typename L::V& y) {
  typedef typename L::I I;
  typename L::V t, a, b;
  I n;
  clamp_vector<L>(x, -104.0f, 89.0f, t);
  exp_parts<L>(t, n, y);
  const I half = n >> 1;  // 2^n in two factors, so that 2^128 and 2^-149 can be reached
  const I bits_a = (half + 127) << 23;
  const I bits_b = (n - half + 127) << 23;
  std::memcpy(&a, &bits_a, sizeof(a));
  std::memcpy(&b, &bits_b, sizeof(b));
  y = y * a * b;
}

// e^x for x <= 0 or little above, as a softmax needs it: one factor of 2^n, and 0 below 2^-126.
// It is x that is compared: far below, and for a NaN, n is any number.
template <class L>
TINYSCALE_INLINE void exp_negative(const typename L::V& x, typename L::V& y) {
  typename L::V power;
  typename L::I n;
  exp_parts<L>(x, n, y);
  typename L::U bits;
  std::memcpy(&bits, &n, sizeof(bits));
  bits = (bits + 127U) << 23;
  std::memcpy(&power, &bits, sizeof(power));
  y = x < -87.68f ? typename L::V{} : y * power;
}

constexpr float log2_e = 1.44269504088896341f;

// 2^x for x <= 0 or little above, within 1.6e-7 of it: n = round(x), 2^(x - n) by our own fit; 0
// below 2^-126.5. A NaN passes through.
template <class L>
TINYSCALE_INLINE void exp2_negative(const typename L::V& x, typename L::V& y) {
  typedef typename L::V V;
  V t, power;
  typename L::I n;
  broadcast<L>(-127.0f, t);
  max_vector<L>(x, t, t);
  const V shifted = t + 12582912.0f;  // as above
  std::memcpy(&n, &shifted, sizeof(n));
  n = n - 0x4B400000;
  to_float<L>(n, power);
  const V r = t - power;
  const typename L::I bits = (n + 127) << 23;
  std::memcpy(&power, &bits, sizeof(power));
  const V s = r * r;
  const V high = (r * 1.3264728769e-3f + 9.6715131831e-3f) * s;
  y = ((r * 5.5507337445e-2f + 2.4022242077e-1f + high) * s + (r * 6.9314697760e-1f + 1.0f)) *
      power;
}

// sum += e^x for x <= 0, within 1.2e-7 (1 + |x| / 6) of it.
template <class L>
TINYSCALE_INLINE void add_exp(const typename L::V& x, typename L::V& sum) {
  typename L::V y;
  exp2_negative<L>(x * log2_e, y);
  sum = sum + y;
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

// 1 / (1 + e^-x), from e^-|x|, which cannot overflow.
template <class L>
TINYSCALE_INLINE void sigmoid_vector(const typename L::V& x, typename L::V& y) {
  typename L::V e, one;
  broadcast<L>(1.0f, one);
  exp_negative<L>(x < 0.0f ? x : -x, e);
  y = (x < 0.0f ? e : one) / (1.0f + e);
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

// sqrt(x) from an estimate of 1 / sqrt(x) by bits and Newton steps: within 1 ulp from 1e-37, else
// off by at most 1e-19. The estimate's square stays finite, in whatever order it is multiplied.
template <class L>
TINYSCALE_INLINE void sqrt_vector(const typename L::V& x, typename L::V& y) {
  typedef typename L::V V;
  typedef typename L::I I;
  V g;
  broadcast<L>(1e-37f, g);
  max_vector<L>(x, g, g);
  I bits;
  std::memcpy(&bits, &g, sizeof(bits));
  bits = 0x5F3759DF - (bits >> 1);
  std::memcpy(&g, &bits, sizeof(g));
  const V h = x * 0.5f;
  g = g * (1.5f - h * g * g);
  g = g * (1.5f - h * g * g);
  g = g * (1.5f - h * g * g);
  const V s = x * g;
  y = s + 0.5f * g * (x - s * s);
}

}  // namespace detail
}  // namespace tinyscale
