// The limits: multiply-adds in registers, and reading in eight streams far apart. They are written
// here, apart from the library, so that the ruler does not come from what it measures.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

#include "driver.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace bench {
namespace {

#if TINYSCALE_X86 && defined(__x86_64__)
#define BENCH_X86 1
// Twelve chains that wait for nobody; each turn is twelve instructions. The registers begin at
// zero: whatever else they held may be denormals, which take a hundred times as long.
#define BENCH_LOOP(name, v, ins)                                                                   \
  void name(std::int64_t turns) {                                                                  \
    asm volatile("vzeroall\n1:\n" ins " %%" v "14, %%" v "15, %%" v "0\n" ins " %%" v "14, %%" v   \
                 "15, %%" v "1\n" ins " %%" v "14, %%" v "15, %%" v "2\n" ins " %%" v "14, %%" v   \
                 "15, %%" v "3\n" ins " %%" v "14, %%" v "15, %%" v "4\n" ins " %%" v "14, %%" v   \
                 "15, %%" v "5\n" ins " %%" v "14, %%" v "15, %%" v "6\n" ins " %%" v "14, %%" v   \
                 "15, %%" v "7\n" ins " %%" v "14, %%" v "15, %%" v "8\n" ins " %%" v "14, %%" v   \
                 "15, %%" v "9\n" ins " %%" v "14, %%" v "15, %%" v "10\n" ins " %%" v "14, %%" v  \
                 "15, %%" v                                                                        \
                 "11\n"                                                                            \
                 "dec %0\n"                                                                        \
                 "jnz 1b\n"                                                                        \
                 "vzeroupper"                                                                      \
                 : "+r"(turns)                                                                     \
                 :                                                                                 \
                 : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", \
                   "xmm10", "xmm11", "xmm14", "xmm15", "cc");                                      \
  }
BENCH_LOOP(fma_zmm, "zmm", "vfmadd231ps")
BENCH_LOOP(fma_ymm, "ymm", "vfmadd231ps")
BENCH_LOOP(bf16_zmm, "zmm", "vdpbf16ps")
BENCH_LOOP(int8_zmm, "zmm", "vpdpbusd")

// Four chains of products of tiles of 16 rows of 64 bytes.
#define BENCH_TILES(name, ins)                                                              \
  void name(std::int64_t turns) {                                                           \
    alignas(64) unsigned char layout[64] = {1};                                             \
    for (int t = 0; t < 8; ++t) {                                                           \
      layout[16 + 2 * t] = 64;                                                              \
      layout[48 + t] = 16;                                                                  \
    }                                                                                       \
    asm volatile("ldtilecfg %0" : : "m"(layout) : "memory");                                \
    asm volatile("1:\n" ins " %%tmm6, %%tmm4, %%tmm0\n" ins " %%tmm7, %%tmm4, %%tmm1\n" ins \
                 " %%tmm6, %%tmm5, %%tmm2\n" ins                                            \
                 " %%tmm7, %%tmm5, %%tmm3\n"                                                \
                 "dec %0\n"                                                                 \
                 "jnz 1b\n"                                                                 \
                 "tilerelease"                                                              \
                 : "+r"(turns)                                                              \
                 :                                                                          \
                 : "cc");                                                                   \
  }
BENCH_TILES(bf16_tiles, "tdpbf16ps")
BENCH_TILES(int8_tiles, "tdpbsud")
#endif

typedef float Floats __attribute__((vector_size(16)));

void fma_plain(std::int64_t turns) {
  Floats sum[12] = {};
  const Floats x = {0.5f, 0.5f, 0.5f, 0.5f};
  for (std::int64_t i = 0; i < turns; ++i) {
    for (Floats& s : sum) {
      s = s * x + x;
    }
  }
  volatile float kept = 0;
  for (const Floats& s : sum) {
    kept = kept + s[0];
  }
}

struct Loop {
  void (*run)(std::int64_t) = fma_plain;
  double flops = 12 * 2 * 4;  // of a turn
};

Loop loop_of(Arithmetic kind) {
  Loop loop;
#if BENCH_X86
  if (kind == Arithmetic::bf16) {
    return ts::cpu().amx_bf16 ? Loop{bf16_tiles, 4 * 2 * 16 * 16 * 32}
                              : Loop{bf16_zmm, 12 * 2 * 32};
  }
  if (kind == Arithmetic::int8) {
    return ts::cpu().amx_int8 ? Loop{int8_tiles, 4 * 2 * 16 * 16 * 64}
                              : Loop{int8_zmm, 12 * 2 * 64};
  }
  if (kind == Arithmetic::f32 && ts::cpu().has(ts::CpuPath::avx512)) {
    return {fma_zmm, 12 * 2 * 16};
  }
  if (ts::cpu().has(ts::CpuPath::avx2)) {
    return {fma_ymm, 12 * 2 * 8};
  }
#else
  static_cast<void>(kind);
#endif
  return loop;
}

// Keeps this thread on the index-th processor that the program may use, for as long as it lives.
class OwnProcessor {
 public:
  explicit OwnProcessor(int index) {
#if defined(__linux__)
    moved_ = index >= 0 && sched_getaffinity(0, sizeof(all_), &all_) == 0;
    cpu_set_t own;
    CPU_ZERO(&own);
    for (std::size_t cpu = 0; moved_ && cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &all_) && index-- == 0) {
        CPU_SET(cpu, &own);
      }
    }
    moved_ = moved_ && sched_setaffinity(0, sizeof(own), &own) == 0;
#else
    static_cast<void>(index);
#endif
  }
#if defined(__linux__)
  ~OwnProcessor() {
    if (moved_) {
      sched_setaffinity(0, sizeof(all_), &all_);
    }
  }

 private:
  cpu_set_t all_;
  bool moved_ = false;
#endif
};

// Runs fn(part) on that many threads, each on a processor of its own; seconds from when all are
// there. Left to itself the system may begin by putting two on one.
template <class Fn>
double on_threads(int threads, const Fn& fn) {
  std::atomic<int> missing{threads};
  double start = 0;
  const auto part = [&](int index) {
    const OwnProcessor processor(threads > 1 ? index : -1);
    missing.fetch_sub(1);
    while (missing.load() > 0) {
      std::this_thread::yield();
    }
    if (index == 0) {
      start = now(clock_for(threads));
    }
    fn(index);
  };
  std::vector<std::thread> others;
  for (int index = 1; index < threads; ++index) {
    others.emplace_back(part, index);
  }
  part(0);
  for (std::thread& other : others) {
    other.join();
  }
  return now(clock_for(threads)) - start;
}

// Twelve chains of y = exp(-y) in registers: 2^n of the nearest integer n, a polynomial of the
// rest.
constexpr int exp_chains = 12;

template <class V, class I>
__attribute__((always_inline)) inline void exps_of(std::int64_t turns) {
  V y[exp_chains];
  for (int i = 0; i < exp_chains; ++i) {
    y[i] = V{} + 0.1f * static_cast<float>(i);
  }
  for (std::int64_t turn = 0; turn < turns; ++turn) {
#pragma GCC unroll 12
    for (int i = 0; i < exp_chains; ++i) {
      const V x = y[i] * -1.44269504f;
      const V near = x + 12582912.0f;  // 1.5 * 2^23: n in its low bits
      const V r = x - (near - 12582912.0f), s = r * r;
      const V p =
          ((r * 1.3264729e-3f + 9.6715132e-3f) * s + (r * 5.5507337e-2f + 0.24022242f)) * s +
          (r * 0.69314698f + 1.0f);
      y[i] = p * reinterpret_cast<V>((reinterpret_cast<I>(near) << 23) + 0x3F800000);
    }
  }
  volatile float kept = 0;
  for (int i = 0; i < exp_chains; ++i) {
    kept = kept + y[i][0];
  }
}

typedef int Ints __attribute__((vector_size(16)));
typedef float Floats8 __attribute__((vector_size(32)));
typedef int Ints8 __attribute__((vector_size(32)));
typedef float Floats16 __attribute__((vector_size(64)));
typedef int Ints16 __attribute__((vector_size(64)));

#if BENCH_X86
__attribute__((target("avx512f"), noinline)) void exps_wide(std::int64_t turns) {
  exps_of<Floats16, Ints16>(turns);
}
__attribute__((target("avx2,fma"), noinline)) void exps_middle(std::int64_t turns) {
  exps_of<Floats8, Ints8>(turns);
}
#endif

double exps_per_second(int threads) {
  Loop loop{exps_of<Floats, Ints>, exp_chains * 4};
#if BENCH_X86
  if (ts::cpu().has(ts::CpuPath::avx512)) {
    loop = {exps_wide, exp_chains * 16};
  } else if (ts::cpu().has(ts::CpuPath::avx2)) {
    loop = {exps_middle, exp_chains * 8};
  }
#endif
  const std::int64_t turns = static_cast<std::int64_t>(2e7 / loop.flops);
  const double seconds = on_threads(threads, [&](std::int64_t) { loop.run(turns); });
  return loop.flops * static_cast<double>(turns) * threads / seconds;
}

double rate_of(const Loop& loop, int threads) {
  const std::int64_t turns = static_cast<std::int64_t>(4e8 / loop.flops);  // some ms
  const double seconds = on_threads(threads, [&](std::int64_t) { loop.run(turns); });
  return loop.flops * static_cast<double>(turns) * threads / seconds;
}

// bf16 without tiles: what is widened to f32 may be the faster way.
double flops_per_second(Arithmetic kind, int threads) {
  const double own = rate_of(loop_of(kind), threads);
  const bool widened = kind == Arithmetic::bf16 && !ts::cpu().amx_bf16;
  return widened ? std::max(own, rate_of(loop_of(Arithmetic::f32), threads)) : own;
}

// Written past the caches, memory is not read first.
template <class V>
__attribute__((always_inline)) inline void store_past(V* to, const V& value) {
#if BENCH_X86
  asm volatile("vmovntdq %1, %0" : "=m"(*to) : "x"(value));
#else
  *to = value;
#endif
}

// One pass over streams of n vectors each, laid out one after the other.
template <class V>
__attribute__((always_inline)) inline void pass_of(V* data, std::size_t n, const Streams& s,
                                                   bool past) {
  const V one = V{} + 1;
  V seen[4] = {};
  constexpr std::size_t block = 64;  // vectors of a stream at a time
  for (std::size_t i = 0; i + block <= n; i += block) {
    V* at = data + i;
    for (int r = 0; r < s.read; ++r, at += n) {
      for (std::size_t j = 0; j < block; j += 4) {
        seen[0] |= at[j];
        seen[1] |= at[j + 1];
        seen[2] |= at[j + 2];
        seen[3] |= at[j + 3];
      }
    }
    for (int c = 0; c < s.change; ++c, at += n) {
      for (std::size_t j = 0; j < block; ++j) {
        at[j] += one;
      }
    }
    for (int w = 0; w < s.write; ++w, at += n) {
      for (std::size_t j = 0; past && j < block; ++j) {
        store_past(at + j, one);
      }
      for (std::size_t j = 0; !past && j < block; ++j) {
        at[j] = one;
      }
      asm volatile("" ::: "memory");
    }
  }
  seen[0] |= seen[1] | seen[2] | seen[3];
  volatile int kept = seen[0][0];
  static_cast<void>(kept);
}

typedef int Wide __attribute__((vector_size(64), may_alias));
typedef int Middle __attribute__((vector_size(32), may_alias));

#if BENCH_X86
__attribute__((target("avx512f"), noinline)) void pass_wide(char* data, std::size_t bytes,
                                                            const Streams& s, bool past) {
  pass_of(reinterpret_cast<Wide*>(data), bytes / 64, s, past);
}
__attribute__((target("avx2"), noinline)) void pass_middle(char* data, std::size_t bytes,
                                                           const Streams& s, bool past) {
  pass_of(reinterpret_cast<Middle*>(data), bytes / 32, s, past);
}
#else
void pass_middle(char* data, std::size_t bytes, const Streams& s, bool past) {
  pass_of(reinterpret_cast<Middle*>(data), bytes / 32, s, past);
}
#endif

void stream_pass(char* data, std::size_t bytes, const Streams& s, bool past) {
#if BENCH_X86
  if (ts::cpu().has(ts::CpuPath::avx512)) {
    pass_wide(data, bytes, s, past);
    return;
  }
#endif
  pass_middle(data, bytes, s, past);
}

// Reads n vectors in so many streams far apart, fetching 4 KB ahead: which number of streams is the
// fastest depends on the level and on the processor.
template <int STREAMS, class V>
__attribute__((always_inline)) inline void read_streams(const V* data, std::size_t n,
                                                        V (&seen)[8]) {
  constexpr int together = 8 / STREAMS < 4 ? 4 : 8 / STREAMS;
  const std::size_t share = n / STREAMS;
  for (std::size_t i = 0; i + together <= share; i += together) {
#pragma GCC unroll 8
    for (int s = 0; s < STREAMS; ++s) {
      const V* const at = data + static_cast<std::size_t>(s) * share + i;
#pragma GCC unroll 8
      for (int u = 0; u < together; ++u) {
        __builtin_prefetch(reinterpret_cast<const char*>(at + u) + 4096);
        seen[STREAMS == 1 ? u : s] |= at[u];
      }
    }
  }
}

template <class V>
__attribute__((always_inline)) inline int read_of(const V* data, std::size_t n, int streams) {
  V seen[8] = {};
  if (streams == 1) {
    read_streams<1>(data, n, seen);
  } else if (streams == 4) {
    read_streams<4>(data, n, seen);
  } else {
    read_streams<8>(data, n, seen);
  }
  seen[0] |= seen[1] | seen[2] | seen[3] | seen[4] | seen[5] | seen[6] | seen[7];
  return seen[0][0];
}

#if BENCH_X86
__attribute__((target("avx512f"), noinline)) int read_wide(const char* data, std::size_t bytes,
                                                           int streams) {
  return read_of(reinterpret_cast<const Wide*>(data), bytes / 64, streams);
}
__attribute__((target("avx2"), noinline)) int read_middle(const char* data, std::size_t bytes,
                                                          int streams) {
  return read_of(reinterpret_cast<const Middle*>(data), bytes / 32, streams);
}
#else
int read_middle(const char* data, std::size_t bytes, int streams) {
  return read_of(reinterpret_cast<const Middle*>(data), bytes / 32, streams);
}
#endif

int read_pass(const char* data, std::size_t bytes, int streams) {
#if BENCH_X86
  if (ts::cpu().has(ts::CpuPath::avx512)) {
    return read_wide(data, bytes, streams);
  }
#endif
  return read_middle(data, bytes, streams);
}

// Seconds to read the buffer once, every thread its share.
double read_seconds(const std::vector<char>& memory, int threads) {
  const std::size_t past = reinterpret_cast<std::uintptr_t>(memory.data()) % 64;
  const char* const data = memory.data() + (64 - past) % 64;
  const std::size_t share = (memory.size() - 64) / static_cast<std::size_t>(threads) / 4096 * 4096;
  const int times =
      static_cast<int>(std::max<std::size_t>(1, (std::size_t{64} << 20) / memory.size()));
  double best = 1e30;
  for (const int streams : {1, 4, 8}) {
    const auto pass = [&](std::int64_t part) {
      volatile int kept = 0;
      for (int t = 0; t < times; ++t) {
        kept = kept | read_pass(data + static_cast<std::size_t>(part) * share, share, streams);
      }
    };
    best = std::min(best, on_threads(threads, pass) / times);
  }
  return best;
}

}  // namespace

Way stream_limit(const Streams& streams, int threads) {
  const std::size_t share =
      static_cast<std::size_t>(streams.bytes / threads) / 4096 * 4096;  // of a stream, a thread's
  const int count = streams.read + streams.change + streams.write;
  const std::size_t all = std::max<std::size_t>(share, 4096) * static_cast<std::size_t>(count);
  const auto memory =
      std::make_shared<std::vector<char>>(all * static_cast<std::size_t>(threads) + 64);
  const std::size_t past = reinterpret_cast<std::uintptr_t>(memory->data()) % 64;
  char* const data = memory->data() + (64 - past) % 64;
  const double whole = streams.bytes / static_cast<double>(threads) /
                       static_cast<double>(std::max<std::size_t>(share, 4096));
  const int times = static_cast<int>(std::max(1.0, 4e7 / static_cast<double>(all)));  // some ms
  Way way;
  way.name = "limit";
  way.sample = [=] {
    double best = 1e30;
    for (const bool past : {false, true}) {
      const auto pass = [&](std::int64_t part) {
        char* const mine = data + static_cast<std::size_t>(part) * all;
        for (int t = 0; t < times; ++t) {
          stream_pass(mine, all / static_cast<std::size_t>(count), streams, past);
        }
        static_cast<void>(memory);
      };
      if (!past || (streams.write > 0 && all > 4 << 20)) {
        on_threads(threads, pass);  // comes into the cache
        best = std::min(best, on_threads(threads, pass) / times * whole);
      }
    }
    return best;
  };
  return way;
}

bool processor_flag(const char* flag) {
  const std::string flags = " " + ts::detail::cpuinfo_value("flags") + " ";
  return flags.find(" " + std::string(flag) + " ") != std::string::npos;
}

bool has_arithmetic(Arithmetic kind) {
  switch (kind) {
    case Arithmetic::f32: return true;
    case Arithmetic::f32_avx2: return ts::cpu().has(ts::CpuPath::avx2);
    case Arithmetic::bf16: return ts::cpu().amx_bf16 || processor_flag("avx512_bf16");
    case Arithmetic::int8: return ts::cpu().amx_int8 || processor_flag("avx512_vnni");
  }
  return false;
}

Way limit(double flops, double bytes, int threads, Arithmetic kind, double exps) {
  Way way;
  way.name = "limit";
  if (!has_arithmetic(kind)) {
    return way;
  }
  std::shared_ptr<std::vector<char>> memory;
  const double held = std::max(65536.0, std::min(bytes, 256.0 * (1 << 20)));
  if (bytes > 0) {
    memory = std::make_shared<std::vector<char>>(static_cast<std::size_t>(held) + 64, '\1');
  }
  way.sample = [=] {
    const double products = flops > 0 ? flops / flops_per_second(kind, threads) : 0;
    const double compute = products + (exps > 0 ? exps / exps_per_second(threads) : 0);
    const double reading = memory ? bytes / held * read_seconds(*memory, threads) : 0;
    return std::max(compute, reading);
  };
  return way;
}

}  // namespace bench
