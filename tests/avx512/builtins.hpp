#pragma once
// g++'s built-in functions on 64 bytes that the kernels call, number by number, for processors
// without AVX-512 (tools/emulate_avx512.sh).

namespace tinyscale {
namespace emulated {

typedef float V __attribute__((vector_size(64)));

#define TINYSCALE_EMULATED inline __attribute__((always_inline))

TINYSCALE_EMULATED V loadups512_mask(const float* from, V v, unsigned short mask) {
  for (int i = 0; i < 16; ++i) {
    if ((mask >> i & 1) != 0) {
      v[i] = from[i];
    }
  }
  return v;
}
TINYSCALE_EMULATED void storeups512_mask(float* to, const V& v, unsigned short mask) {
  for (int i = 0; i < 16; ++i) {
    if ((mask >> i & 1) != 0) {
      to[i] = v[i];
    }
  }
}
// The second where either is NaN.
TINYSCALE_EMULATED V maxps512_mask(const V& a, const V& b, const V&, int, int) {
  return a > b ? a : b;
}
TINYSCALE_EMULATED V minps512_mask(const V& a, const V& b, const V&, int, int) {
  return a < b ? a : b;
}
TINYSCALE_EMULATED V sqrtps512_mask(V x, const V&, int, int) {
  for (int i = 0; i < 16; ++i) {
    x[i] = __builtin_sqrtf(x[i]);
  }
  return x;
}
TINYSCALE_EMULATED V vfmaddps512_mask(const V& a, const V& b, V sum, int, int) {
  for (int i = 0; i < 16; ++i) {
    sum[i] = __builtin_fmaf(a[i], b[i], sum[i]);
  }
  return sum;
}
TINYSCALE_EMULATED void movntps512(float* to, const V& v) { __builtin_memcpy(to, &v, sizeof(v)); }

}  // namespace emulated
}  // namespace tinyscale
