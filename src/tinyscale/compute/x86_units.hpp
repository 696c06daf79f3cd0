#pragma once
// The processor's units for low precision, by assembler: the only place in the kernels that has
// any. Which of them a processor has says cpu(); interpreters do without. Sums pass through a
// variable of their own, as an element of an array in an asm statement would stay in memory.

#include <cstdint>

#include "tinyscale/base/cpu.hpp"
#include "tinyscale/compute/lanes.hpp"

#if TINYSCALE_X86_UNITS
namespace tinyscale {
namespace detail {

// 16 numbers from low and 16 from high, rounded to bf16, in the lower and upper half of `out`.
TINYSCALE_AVX512 inline void round_by_unit(const float* low, const float* high, Lanes16::I& out) {
  const Lanes16::V a = *reinterpret_cast<const Lanes16::Loose*>(low);
  const Lanes16::V b = *reinterpret_cast<const Lanes16::Loose*>(high);
  Lanes16::I both;
  asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(both) : "v"(a), "v"(b));
  out = both;
}

// sum += the two products of each word of bf16.
TINYSCALE_AVX512 inline void dot_bf16_pairs(const Lanes16::I& a, const Lanes16::I& b,
                                            Lanes16::V& sum) {
  Lanes16::V s = sum;
  asm("vdpbf16ps %2, %1, %0" : "+v"(s) : "v"(a), "v"(b));
  sum = s;
}

// sum += the four products of each word, a of int8, b of uint8.
TINYSCALE_AVX512 inline void dot_vnni(const Lanes16::I& a, const Lanes16::I& b, Lanes16::I& sum) {
  Lanes16::I s = sum;
  asm("vpdpbusd %1, %2, %0" : "+v"(s) : "v"(a), "v"(b));
  sum = s;
}
TINYSCALE_AVX2 inline void dot_vnni(const Lanes8::I& a, const Lanes8::I& b, Lanes8::I& sum) {
  Lanes8::I s = sum;
  asm("%{vex%} vpdpbusd %1, %2, %0" : "+x"(s) : "x"(a), "x"(b));
  sum = s;
}
// sum += the two products of each pair of 16 bits. One statement: g++ would do the products of a
// whole tile first, which have no registers.
TINYSCALE_AVX2 inline void dot_pairs_by_unit(const Lanes8::I& a, const Lanes8::I& b,
                                             Lanes8::I& sum) {
  Lanes8::I s = sum, both;
  asm("vpmaddwd %2, %3, %1\n\tvpaddd %1, %0, %0" : "+x"(s), "=&x"(both) : "x"(a), "x"(b));
  sum = s;
}
// f16 to f32.
TINYSCALE_AVX512 inline void halves_by_unit(const std::uint16_t* from, Lanes16::V& x) {
  Lanes16::V y;
  asm("vcvtph2ps %1, %0" : "=v"(y) : "m"(*reinterpret_cast<const Lanes16::LooseShorts*>(from)));
  x = y;
}
TINYSCALE_AVX2 inline void halves_by_unit(const std::uint16_t* from, Lanes8::V& x) {
  Lanes8::V y;
  asm("vcvtph2ps %1, %0" : "=x"(y) : "m"(*reinterpret_cast<const Lanes8::LooseShorts*>(from)));
  x = y;
}

// 16 words as bytes: their lowest 8 bits.
TINYSCALE_AVX512 inline void bytes_by_unit(const Lanes16::I& words, std::int8_t* to) {
  typedef std::int8_t Bytes __attribute__((vector_size(16), aligned(1), may_alias));
  asm("vpmovdb %1, %0" : "=m"(*reinterpret_cast<Bytes*>(to)) : "v"(words));
}
// Numbers of 16 bits as words: what g++ makes of it are two halves, put together.
TINYSCALE_AVX512 inline void words_by_unit(const std::uint8_t* from, Lanes16::I& words) {
  typedef std::uint16_t Shorts __attribute__((vector_size(32), aligned(1), may_alias));
  Lanes16::I out;
  asm("vpmovzxwd %1, %0" : "=v"(out) : "m"(*reinterpret_cast<const Shorts*>(from)));
  words = out;
}
TINYSCALE_AVX2 inline void words_by_unit(const std::uint8_t* from, Lanes8::I& words) {
  typedef std::uint16_t Shorts __attribute__((vector_size(16), aligned(1), may_alias));
  Lanes8::I out;
  asm("vpmovzxwd %1, %0" : "=x"(out) : "m"(*reinterpret_cast<const Shorts*>(from)));
  words = out;
}

// Tiles, as SoftTiles of amx_tiles.hpp has them in RAM.
struct AmxTiles {
  void start() {  // the layout is loaded for each task: the thread may be new
    alignas(64) std::uint8_t layout[64] = {1};
    for (int t = 0; t < 8; ++t) {
      layout[16 + 2 * t] = 64;  // bytes of a row
      layout[48 + t] = 16;      // rows
    }
    asm volatile("ldtilecfg %0" : : "m"(layout) : "memory");
  }
  void stop() { asm volatile("tilerelease" : : : "memory"); }
  template <int C>
  void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(C));
  }
  template <int T>
  void load(const void* from, std::int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(T) : "memory");
  }
  template <int T>
  void store(void* to, std::int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(T) : "memory");
  }
  template <int C, int A, int B>
  void dot_bf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
  }
  template <int C, int A, int B>
  void dot_int8() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
  }
};

}  // namespace detail
}  // namespace tinyscale
#endif
