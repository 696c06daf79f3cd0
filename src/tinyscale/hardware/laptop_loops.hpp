#pragma once
// Loops that do nothing but reach a limit of this machine: multiply-adds in registers, one loop for
// each number format that has a unit, and reads of memory in eight streams far apart.
// They are of vector extensions, for the instruction sets that cpu() chooses from; the units for
// bf16 and int8, AMX tiles where products use them, are named by their instruction, and left to f32
// in an interpreter.

#include <cstdint>

#include "tinyscale/base/config.hpp"
#include "tinyscale/base/cpu.hpp"

namespace tinyscale {
namespace detail {

// A loop runs `turns` times and returns a number that keeps it alive. Twelve sums in flight hide
// the latency of two multiply-add units; eight streams far apart keep the prefetchers busy.
using FmaLoop = float (*)(std::int64_t turns, float x, float y);
using ReadLoop = float (*)(const float* data, std::int64_t count);  // count: a multiple of 8 * 16

constexpr int kLoopSums = 12;

#if TINYSCALE_VECTOR_EXTENSIONS
#define TINYSCALE_LOOP_BODY inline __attribute__((always_inline))
#define TINYSCALE_LOOP_UNROLL _Pragma("GCC unroll 16")

struct LoopVector4 {
  typedef float V __attribute__((vector_size(16), may_alias));
};
struct LoopVector8 {
  typedef float V __attribute__((vector_size(32), may_alias));
};
struct LoopVector16 {
  typedef float V __attribute__((vector_size(64), may_alias));
};

template <class L>
TINYSCALE_LOOP_BODY float fma_body(std::int64_t turns, float x, float y) {
  typedef typename L::V V;
  const V m = V{} + x, c = V{} + y;
  V sums[kLoopSums];
  TINYSCALE_LOOP_UNROLL
  for (int i = 0; i < kLoopSums; ++i) {
    sums[i] = c + static_cast<float>(i);
  }
  for (std::int64_t turn = 0; turn < turns; ++turn) {
    TINYSCALE_LOOP_UNROLL
    for (int i = 0; i < kLoopSums; ++i) {
      sums[i] = sums[i] * m + c;
    }
  }
  V total = sums[0];
  TINYSCALE_LOOP_UNROLL
  for (int i = 1; i < kLoopSums; ++i) {
    total += sums[i];
  }
  return total[0];
}

template <class L>
TINYSCALE_LOOP_BODY float read_body(const float* data, std::int64_t count) {
  typedef typename L::V V;
  const std::int64_t vectors = count / 8 / static_cast<std::int64_t>(sizeof(V) / 4);
  const V* const p = reinterpret_cast<const V*>(data);
  V sums[8] = {};
  for (std::int64_t at = 0; at < vectors; ++at) {
    TINYSCALE_LOOP_UNROLL
    for (int i = 0; i < 8; ++i) {
      sums[i] += p[i * vectors + at];
    }
  }
  TINYSCALE_LOOP_UNROLL
  for (int i = 1; i < 8; ++i) {
    sums[0] += sums[i];
  }
  return sums[0][0];
}

// volatile: else the compiler may take the number out of a wide register after the clearing.
#define TINYSCALE_LAPTOP_LOOPS(PATH, VECTOR, ATTRIBUTE, CLEAR)                                    \
  TINYSCALE_OPTIMIZED ATTRIBUTE inline float fma_##PATH(std::int64_t turns, float x, float y) {   \
    const volatile float sum = fma_body<VECTOR>(turns, x, y);                                     \
    CLEAR;                                                                                        \
    return sum;                                                                                   \
  }                                                                                               \
  TINYSCALE_OPTIMIZED ATTRIBUTE inline float read_##PATH(const float* data, std::int64_t count) { \
    const volatile float sum = read_body<VECTOR>(data, count);                                    \
    CLEAR;                                                                                        \
    return sum;                                                                                   \
  }

TINYSCALE_LAPTOP_LOOPS(portable, LoopVector4, , )
#if TINYSCALE_X86
TINYSCALE_LAPTOP_LOOPS(avx2, LoopVector8, TINYSCALE_AVX2, __builtin_ia32_vzeroupper())
TINYSCALE_LAPTOP_LOOPS(avx512, LoopVector16, TINYSCALE_AVX512, __builtin_ia32_vzeroupper())
#endif
#undef TINYSCALE_LAPTOP_LOOPS

#if TINYSCALE_X86_UNITS
// Dot products of short numbers into 32-bit sums, of zeros: the rate is that of any numbers.
#define TINYSCALE_DOT_LOOP(NAME, TARGET, BYTES, REGISTERS, INSTRUCTION)                            \
  TINYSCALE_OPTIMIZED __attribute__((target(TARGET))) inline float NAME(std::int64_t turns, float, \
                                                                        float) {                   \
    typedef int V __attribute__((vector_size(BYTES)));                                             \
    const V a = {}, b = {};                                                                        \
    V sums[kLoopSums] = {};                                                                        \
    for (std::int64_t turn = 0; turn < turns; ++turn) {                                            \
      TINYSCALE_LOOP_UNROLL                                                                        \
      for (int i = 0; i < kLoopSums; ++i) {                                                        \
        asm volatile(INSTRUCTION " %2, %1, %0"                                                     \
                     : "+" REGISTERS(sums[i])                                                      \
                     : REGISTERS(a), REGISTERS(b));                                                \
      }                                                                                            \
    }                                                                                              \
    const volatile int sum = sums[0][0] + sums[kLoopSums - 1][0];                                  \
    __builtin_ia32_vzeroupper();                                                                   \
    return static_cast<float>(sum);                                                                \
  }

TINYSCALE_DOT_LOOP(dot_bf16_512, "avx512f,avx512bf16", 64, "v", "vdpbf16ps")
TINYSCALE_DOT_LOOP(dot_int8_512, "avx512f,avx512vnni", 64, "v", "vpdpbusd")
TINYSCALE_DOT_LOOP(dot_int8_256, "avx2,avxvnni", 32, "x", "%{vex%} vpdpbusd")
#undef TINYSCALE_DOT_LOOP

// Four sums of 16 x 16 in tiles, enough for their latency; loading the layout sets all to zero.
#define TINYSCALE_TILE_LOOP(NAME, INSTRUCTION)                                                 \
  inline float NAME(std::int64_t turns, float, float) {                                        \
    alignas(64) std::uint8_t layout[64] = {1};                                                 \
    for (int tile = 0; tile < 8; ++tile) {                                                     \
      layout[16 + 2 * tile] = 64;                                                              \
      layout[48 + tile] = 16;                                                                  \
    }                                                                                          \
    asm volatile("ldtilecfg %0" : : "m"(layout) : "memory");                                   \
    for (std::int64_t turn = 0; turn < turns; ++turn) {                                        \
      asm volatile(INSTRUCTION " %tmm6, %tmm4, %tmm0\n\t" INSTRUCTION                          \
                               " %tmm7, %tmm4, %tmm1\n\t" INSTRUCTION                          \
                               " %tmm6, %tmm5, %tmm2\n\t" INSTRUCTION " %tmm7, %tmm5, %tmm3"); \
    }                                                                                          \
    asm volatile("tilerelease" : : : "memory");                                                \
    return 0.0f;                                                                               \
  }

TINYSCALE_TILE_LOOP(tiles_bf16, "tdpbf16ps")
TINYSCALE_TILE_LOOP(tiles_int8, "tdpbsud")
#undef TINYSCALE_TILE_LOOP
#endif
#undef TINYSCALE_LOOP_BODY
#undef TINYSCALE_LOOP_UNROLL
#else
TINYSCALE_OPTIMIZED inline float fma_portable(std::int64_t turns, float x, float y) {
  float sums[4 * kLoopSums] = {};
  for (std::int64_t turn = 0; turn < turns; ++turn) {
    for (float& sum : sums) {
      sum = sum * x + y;
    }
  }
  float total = 0;
  for (const float sum : sums) {
    total += sum;
  }
  return total;
}

inline float read_portable(const float* data, std::int64_t count) {
  float sums[16] = {};
  for (std::int64_t i = 0; i + 16 <= count; i += 16) {
    for (int lane = 0; lane < 16; ++lane) {
      sums[lane] += data[i + lane];
    }
  }
  return sums[0] + sums[7] + sums[15];
}
#endif

// The loops of the path in use. bf16 and int8 are null where there is no unit for them; *_flops are
// of one turn.
struct LaptopLoops {
  FmaLoop fma = fma_portable;
  ReadLoop read = read_portable;
  int lanes = 4;
  FmaLoop bf16 = nullptr, int8 = nullptr;
  double bf16_flops = 0, int8_flops = 0;

  double fma_flops() const { return 2.0 * kLoopSums * lanes; }
};

inline LaptopLoops laptop_loops() {
  LaptopLoops loops;
#if TINYSCALE_VECTOR_EXTENSIONS && TINYSCALE_X86
  const CpuPath path = cpu().path;
  if (path == CpuPath::avx512) {
    loops.fma = fma_avx512;
    loops.read = read_avx512;
    loops.lanes = 16;
  } else if (path == CpuPath::avx2) {
    loops.fma = fma_avx2;
    loops.read = read_avx2;
    loops.lanes = 8;
  }
#if TINYSCALE_X86_UNITS
  const bool tiles = path == CpuPath::avx512 && !cpu().forced;
  if (tiles && cpu().amx_bf16) {
    loops.bf16 = tiles_bf16;
    loops.bf16_flops = 4 * 2.0 * 16 * 16 * 32;
  } else if (path == CpuPath::avx512 && cpu().avx512_bf16) {
    loops.bf16 = dot_bf16_512;
    loops.bf16_flops = 4.0 * 16 * kLoopSums;
  }
  if (tiles && cpu().amx_int8) {
    loops.int8 = tiles_int8;
    loops.int8_flops = 4 * 2.0 * 16 * 16 * 64;
  } else if (path == CpuPath::avx512 && cpu().avx512_vnni) {
    loops.int8 = dot_int8_512;
    loops.int8_flops = 8.0 * 16 * kLoopSums;
  } else if (path == CpuPath::avx2 && cpu().avx_vnni) {
    loops.int8 = dot_int8_256;
    loops.int8_flops = 8.0 * 8 * kLoopSums;
  }
#endif
#endif
  return loops;
}

inline void keep_alive(float value) {
  volatile float sink = value;  // a local one: threads share nothing
  static_cast<void>(sink);
}

}  // namespace detail
}  // namespace tinyscale
