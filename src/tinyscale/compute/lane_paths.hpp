#pragma once
// Vector lanes without intrinsics: one struct per register width, and a run-time choice of path.
// A kernel is a struct with a member template `run<L>()`; run_on_lanes() compiles it once for each
// instruction set (the target attribute stands here and nowhere else) and calls the widest one the
// machine has.

#include <atomic>
#include <cstdint>

#include "tinyscale/base/config.hpp"
#include "tinyscale/base/cpu.hpp"

#if TINYSCALE_VECTOR_EXTENSIONS
#define TINYSCALE_INLINE inline __attribute__((always_inline))
#define TINYSCALE_UNROLL _Pragma("GCC unroll 32")
#else
#define TINYSCALE_INLINE inline
#define TINYSCALE_UNROLL
#endif
#if TINYSCALE_VECTOR_EXTENSIONS && defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define TINYSCALE_SHUFFLE 1
#endif
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
  typedef std::uint32_t U;
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
  typedef std::uint32_t U __attribute__((vector_size(16)));
  typedef std::int32_t LooseI __attribute__((vector_size(16), aligned(4), may_alias));
  typedef std::uint16_t Shorts __attribute__((vector_size(8)));
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
  typedef std::uint32_t U __attribute__((vector_size(32)));
  typedef std::int32_t LooseI __attribute__((vector_size(32), aligned(4), may_alias));
  typedef std::uint16_t Shorts __attribute__((vector_size(16)));
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
  typedef std::uint32_t U __attribute__((vector_size(64)));
  typedef std::int32_t LooseI __attribute__((vector_size(64), aligned(4), may_alias));
  typedef std::uint16_t Shorts __attribute__((vector_size(32)));
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
// vzeroupper: below -O2 g++ leaves the wide registers' upper halves in use, and on Intel every
// scalar instruction after that waits for the one before: 60 times slower.
template <class Kernel>
TINYSCALE_AVX512 __attribute__((noinline)) void run_avx512(const Kernel& kernel) {
  kernel.template run<Lanes16>();
  __builtin_ia32_vzeroupper();
}

template <class Kernel>
TINYSCALE_AVX2 __attribute__((noinline)) void run_avx2(const Kernel& kernel) {
  kernel.template run<Lanes8>();
  __builtin_ia32_vzeroupper();
}
#endif

template <class Kernel>
TINYSCALE_OPTIMIZED void run_portable(const Kernel& kernel) {
#if TINYSCALE_VECTOR_EXTENSIONS
  kernel.template run<Lanes4>();
#else
  kernel.template run<Lanes1>();
#endif
}

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
  run_portable(kernel);
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

}  // namespace detail
}  // namespace tinyscale
