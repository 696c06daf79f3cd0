#pragma once
// Vector lanes without intrinsics: one struct per register width, and a run-time choice of path.
// A kernel is a struct with a member template `run<L>()`; run_on_lanes() compiles it once for each
// instruction set (the target attribute stands here and nowhere else) and calls the widest one the
// machine has. Vectors are passed by reference, never by value: they stay inside one function.
// Sources of the polynomials: Cephes expf; the rational erf and tanh of Eigen and XLA.

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "tinyscale/base/config.hpp"
#include "tinyscale/base/cpu.hpp"

#if TINYSCALE_VECTOR_EXTENSIONS
#define TINYSCALE_INLINE inline __attribute__((always_inline))
#define TINYSCALE_UNROLL _Pragma("GCC unroll 32")
#else
#define TINYSCALE_INLINE inline
#define TINYSCALE_UNROLL
#endif

namespace tinyscale {
namespace detail {

// width: floats in a vector V; doubles: half as many, in a D; rows x vectors: the accumulators of
// the gemm tile, kept in registers.
struct Lanes1 {
  static constexpr int width = 1, rows = 4, vectors = 4;
  typedef float V;
  typedef float Loose;
  typedef std::int32_t I;
  typedef std::int32_t LooseI;
  static constexpr int doubles = 1;
  typedef double D;
  typedef float Half;
};

#if TINYSCALE_VECTOR_EXTENSIONS
struct Lanes4 {  // 16 bytes: SSE2, NEON, and whatever else has 16-byte registers
#if TINYSCALE_ARM64
  static constexpr int width = 4, rows = 6, vectors = 4;  // 32 registers
#else
  static constexpr int width = 4, rows = 4, vectors = 2;  // 16 registers
#endif
  typedef float V __attribute__((vector_size(16)));
  typedef float Loose __attribute__((vector_size(16), aligned(4), may_alias));
  typedef std::int32_t I __attribute__((vector_size(16)));
  typedef std::int32_t LooseI __attribute__((vector_size(16), aligned(4), may_alias));
  typedef std::uint16_t LooseShorts __attribute__((vector_size(8), aligned(2), may_alias));
  static constexpr int doubles = 2;
  typedef double D __attribute__((vector_size(16)));
  typedef float Half __attribute__((vector_size(8), aligned(4), may_alias));
};

struct Lanes8 {  // 32 bytes: AVX2, 16 registers
  static constexpr int width = 8, rows = 6, vectors = 2;
  typedef float V __attribute__((vector_size(32)));
  typedef float Loose __attribute__((vector_size(32), aligned(4), may_alias));
  typedef std::int32_t I __attribute__((vector_size(32)));
  typedef std::int32_t LooseI __attribute__((vector_size(32), aligned(4), may_alias));
  typedef std::uint16_t LooseShorts __attribute__((vector_size(16), aligned(2), may_alias));
  static constexpr int doubles = 4;
  typedef double D __attribute__((vector_size(32)));
  typedef float Half __attribute__((vector_size(16), aligned(4), may_alias));
};

struct Lanes16 {  // 64 bytes: AVX-512, 32 registers
  static constexpr int width = 16, rows = 6, vectors = 4;
  typedef float V __attribute__((vector_size(64)));
  typedef float Loose __attribute__((vector_size(64), aligned(4), may_alias));
  typedef std::int32_t I __attribute__((vector_size(64)));
  typedef std::int32_t LooseI __attribute__((vector_size(64), aligned(4), may_alias));
  typedef std::uint16_t LooseShorts __attribute__((vector_size(32), aligned(2), may_alias));
  static constexpr int doubles = 8;
  typedef double D __attribute__((vector_size(64)));
  typedef float Half __attribute__((vector_size(32), aligned(4), may_alias));
};
#endif

// The path in use: cpu().path unless a PathScope (tests, benchmarks) asks for a narrower one.
inline std::atomic<int>& forced_path() {
  static std::atomic<int> path{-1};
  return path;
}

inline CpuPath active_path() {
  const int forced = forced_path().load(std::memory_order_relaxed);
  return forced < 0 ? cpu().path : static_cast<CpuPath>(forced);
}

class PathScope {
 public:
  explicit PathScope(CpuPath path) : before_(forced_path().exchange(static_cast<int>(path))) {}
  ~PathScope() { forced_path().store(before_); }
  PathScope(const PathScope&) = delete;
  PathScope& operator=(const PathScope&) = delete;

 private:
  int before_;
};

#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS
template <class Kernel>
__attribute__((target("avx512f"), noinline)) void run_avx512(const Kernel& kernel) {
  kernel.template run<Lanes16>();
}

template <class Kernel>
__attribute__((target("avx2,fma"), noinline)) void run_avx2(const Kernel& kernel) {
  kernel.template run<Lanes8>();
}
#endif

template <class Kernel>
void run_on_lanes(const Kernel& kernel) {
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS
  const CpuPath path = active_path();
  if (path == CpuPath::avx512) {
    run_avx512(kernel);
    return;
  }
  if (path == CpuPath::avx2) {
    run_avx2(kernel);
    return;
  }
#endif
#if TINYSCALE_VECTOR_EXTENSIONS
  kernel.template run<Lanes4>();
#else
  kernel.template run<Lanes1>();
#endif
}

// From inside a kernel on L: calls another kernel as a function of its own, with its own registers.
template <class L, class Kernel>
TINYSCALE_INLINE void call_on_lanes(const Kernel& kernel) {
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS
  if constexpr (L::width == 16) {
    run_avx512(kernel);
  } else if constexpr (L::width == 8) {
    run_avx2(kernel);
  } else {
    kernel.template run<L>();
  }
#else
  kernel.template run<L>();
#endif
}

template <class L>
TINYSCALE_INLINE void load(const float* from, typename L::V& v) {
  v = *reinterpret_cast<const typename L::Loose*>(from);
}

template <class L>
TINYSCALE_INLINE void store(float* to, const typename L::V& v) {
  *reinterpret_cast<typename L::Loose*>(to) = v;
}

// The next `doubles` floats, widened.
template <class L>
TINYSCALE_INLINE void load_double(const float* from, typename L::D& v) {
#if TINYSCALE_VECTOR_EXTENSIONS
  v = __builtin_convertvector(*reinterpret_cast<const typename L::Half*>(from), typename L::D);
#else
  v = static_cast<double>(*from);
#endif
}

// The last count < width floats of a row; the other lanes hold fill.
template <class L>
TINYSCALE_INLINE void load_part(const float* from, std::int64_t count, float fill,
                                typename L::V& v) {
  float lanes[L::width];
  for (int i = 0; i < L::width; ++i) {
    lanes[i] = i < count ? from[i] : fill;
  }
  load<L>(lanes, v);
}

template <class L>
TINYSCALE_INLINE void store_part(float* to, std::int64_t count, const typename L::V& v) {
  float lanes[L::width];
  store<L>(lanes, v);
  for (int i = 0; i < L::width; ++i) {
    if (i < count) {
      to[i] = lanes[i];
    }
  }
}

// Every lane x. g++ builds `x - V{}` lane by lane when it meets it outside a target function, which
// every inlined template is; so each width has its own function with the attribute, inlined late.
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS
__attribute__((target("avx512f"))) inline void broadcast_16(float x, Lanes16::V& v) {
  v = x - Lanes16::V{};
}

__attribute__((target("avx2,fma"))) inline void broadcast_8(float x, Lanes8::V& v) {
  v = x - Lanes8::V{};
}
#endif

template <class L>
TINYSCALE_INLINE void broadcast(float x, typename L::V& v) {
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS && !defined(__clang__)
  if constexpr (L::width == 16) {
    broadcast_16(x, v);
    return;
  } else if constexpr (L::width == 8) {
    broadcast_8(x, v);
    return;
  }
#endif
  v = x - typename L::V{};
}

// Every lane the same 32 bits.
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS
__attribute__((target("avx512f"))) inline void broadcast_word(std::int32_t word, Lanes16::I& v) {
  v = word - Lanes16::I{};
}
__attribute__((target("avx2,fma"))) inline void broadcast_word(std::int32_t word, Lanes8::I& v) {
  v = word - Lanes8::I{};
}
#endif
template <class I>
TINYSCALE_INLINE void broadcast_word(std::int32_t word, I& v) {
  v = word - I{};
}

template <class L>
TINYSCALE_INLINE float sum_lanes(const typename L::V& v) {  // a tree: 8 + 4 + 2 + 1
  float lanes[L::width];
  store<L>(lanes, v);
  for (int half = L::width / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) {
      lanes[i] += lanes[i + half];
    }
  }
  return lanes[0];
}

template <class L>
TINYSCALE_INLINE float max_lanes(const typename L::V& v) {
  float lanes[L::width];
  store<L>(lanes, v);
  float best = lanes[0];
  for (int i = 1; i < L::width; ++i) {
    best = lanes[i] > best ? lanes[i] : best;
  }
  return best;
}

// All ones where a < b, else zero (a comparison of vectors gives this; a scalar one does not).
template <class L>
TINYSCALE_INLINE void less(const typename L::V& a, const typename L::V& b, typename L::I& mask) {
  if constexpr (L::width == 1) {
    mask = a < b ? -1 : 0;
  } else {
    mask = a < b;
  }
}

// y = mask ? yes : no, by bits.
template <class L>
TINYSCALE_INLINE void blend(const typename L::I& mask, const typename L::V& yes,
                            const typename L::V& no, typename L::V& y) {
  typename L::I yes_bits, no_bits;
  std::memcpy(&yes_bits, &yes, sizeof(yes));
  std::memcpy(&no_bits, &no, sizeof(no));
  const typename L::I bits = (mask & yes_bits) | (~mask & no_bits);
  std::memcpy(&y, &bits, sizeof(y));
}

template <class L>
TINYSCALE_INLINE void max_vector(const typename L::V& a, const typename L::V& b, typename L::V& y) {
  typename L::I mask;
  less<L>(a, b, mask);
  blend<L>(mask, b, a, y);
}

template <class L>
TINYSCALE_INLINE void clamp_vector(const typename L::V& x, float low, float high,
                                   typename L::V& y) {  // a NaN passes through
  typename L::V bound;
  typename L::I mask;
  broadcast<L>(low, bound);
  less<L>(x, bound, mask);
  blend<L>(mask, bound, x, y);
  broadcast<L>(high, bound);
  less<L>(bound, y, mask);
  blend<L>(mask, bound, y, y);
}

template <class L>
TINYSCALE_INLINE void to_float(const typename L::I& n, typename L::V& y) {
#if TINYSCALE_VECTOR_EXTENSIONS
  y = __builtin_convertvector(n, typename L::V);
#else
  y = static_cast<float>(n);
#endif
}

// e^x = 2^n e^r with n = round(x / ln 2), |r| <= ln 2 / 2: within 2 ulp; 0 and inf at the ends.
template <class L>
TINYSCALE_INLINE void exp_vector(const typename L::V& x, typename L::V& y) {
  typedef typename L::V V;
  typedef typename L::I I;
  V t;
  clamp_vector<L>(x, -104.0f, 89.0f, t);
  // Adding 1.5 * 2^23 leaves round(value) in the low bits. They are read as an integer: a
  // compiler under -ffast-math may cancel a subtraction of that number against its addition.
  const V shifted = t * 1.44269504088896341f + 12582912.0f;
  I n;
  std::memcpy(&n, &shifted, sizeof(n));
  n = n - 0x4B400000;  // the bits of 1.5 * 2^23
  V whole;
  to_float<L>(n, whole);
  const V r = (t - whole * 0.693359375f) + whole * 2.12194440e-4f;  // ln 2 in two parts
  V p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const I half = n >> 1;  // 2^n in two factors, so that 2^128 and 2^-149 can be reached
  const I bits_a = (half + 127) << 23;
  const I bits_b = (n - half + 127) << 23;
  V a, b;
  std::memcpy(&a, &bits_a, sizeof(a));
  std::memcpy(&b, &bits_b, sizeof(b));
  y = p * a * b;
}

// erf(x) = x P(x^2) / Q(x^2) on |x| < 3.83, beyond which a float erf is 1.
template <class L>
TINYSCALE_INLINE void erf_vector(const typename L::V& x, typename L::V& y) {
  typedef typename L::V V;
  V t;
  clamp_vector<L>(x, -3.832506856900711f, 3.832506856900711f, t);
  const V s = t * t;
  V p = s * 0.00022905065861350646f + 0.0034082910107109506f;
  p = p * s + 0.050955695062380861f;
  p = p * s + 0.18520832239976145f;
  p = p * s + 1.128379143519084f;
  V q = s * -1.1791602954361697e-7f + 0.000023547966471313185f;
  q = q * s + 0.0010179625278914885f;
  q = q * s + 0.014070470171167667f;
  q = q * s + 0.11098505178285362f;
  q = q * s + 0.49746925110067538f;
  q = q * s + 1.0f;
  y = t * p / q;
}

// tanh(x) = x P(x^2) / Q(x^2) on |x| < 9.
template <class L>
TINYSCALE_INLINE void tanh_vector(const typename L::V& x, typename L::V& y) {
  typedef typename L::V V;
  V t;
  clamp_vector<L>(x, -9.0f, 9.0f, t);
  const V s = t * t;
  V p = s * -2.76076847742355e-16f + 2.00018790482477e-13f;
  p = p * s + -8.60467152213735e-11f;
  p = p * s + 5.12229709037114e-08f;
  p = p * s + 1.48572235717979e-05f;
  p = p * s + 6.37261928875436e-04f;
  p = p * s + 4.89352455891786e-03f;
  V q = s * 1.19825839466702e-06f + 1.18534705686654e-04f;
  q = q * s + 2.26843463243900e-03f;
  q = q * s + 4.89352518554385e-03f;
  y = t * p / q;
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
