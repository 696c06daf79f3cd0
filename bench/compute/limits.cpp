// The limits: multiply-adds in registers, and reading in eight streams far apart. They are written
// here, apart from the library, so that the ruler does not come from what it measures.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "driver.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace bench {
namespace {

#if TINYSCALE_X86 && defined(__x86_64__)
#define BENCH_X86 1
// Twelve chains that wait for nobody; each turn is twelve instructions.
#define BENCH_LOOP(name, v, ins)                                                                   \
  void name(std::int64_t turns) {                                                                  \
    asm volatile("1:\n" ins " %%" v "14, %%" v "15, %%" v "0\n" ins " %%" v "14, %%" v "15, %%" v   \
                 "1\n" ins " %%" v "14, %%" v "15, %%" v "2\n" ins " %%" v "14, %%" v "15, %%" v    \
                 "3\n" ins " %%" v "14, %%" v "15, %%" v "4\n" ins " %%" v "14, %%" v "15, %%" v    \
                 "5\n" ins " %%" v "14, %%" v "15, %%" v "6\n" ins " %%" v "14, %%" v "15, %%" v    \
                 "7\n" ins " %%" v "14, %%" v "15, %%" v "8\n" ins " %%" v "14, %%" v "15, %%" v    \
                 "9\n" ins " %%" v "14, %%" v "15, %%" v "10\n" ins " %%" v "14, %%" v "15, %%" v   \
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
  if (kind == Arithmetic::bf16_dot) {
    return {bf16_zmm, 12 * 2 * 32};
  }
  if (kind == Arithmetic::int8_dot) {
    return {int8_zmm, 12 * 2 * 64};
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

// Runs fn(part) on that many threads; seconds.
template <class Fn>
double on_threads(int threads, const Fn& fn) {
  const double start = now(clock_for(threads));
  if (threads <= 1) {
    fn(0);
  } else {
    ts::parallel_for(threads, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part) {
        fn(part);
      }
    });
  }
  return now(clock_for(threads)) - start;
}

double flops_per_second(Arithmetic kind, int threads) {
  const Loop loop = loop_of(kind);
  const std::int64_t turns = static_cast<std::int64_t>(4e8 / loop.flops);  // some ms
  const double seconds = on_threads(threads, [&](std::int64_t) { loop.run(turns); });
  return loop.flops * static_cast<double>(turns) * threads / seconds;
}

// A buffer that is read in eight streams, each an eighth of a thread's share.
class Reader {
 public:
  explicit Reader(std::size_t bytes) : words_(bytes / 8 / 64 * 64), data_(words_ + 8, 1) {}

  double bytes_per_second(int threads) {
    const std::size_t share = words_ / static_cast<std::size_t>(threads) / 64 * 64;
    const int times = words_ * 8 < (8u << 20) ? static_cast<int>((8u << 20) / (words_ * 8 + 1)) + 1 : 1;
    volatile std::uint64_t kept = 0;
    const double seconds = on_threads(threads, [&](std::int64_t part) {
      for (int t = 0; t < times; ++t) {
        kept = kept + read(data_.data() + static_cast<std::size_t>(part) * share, share / 8);
      }
    });
    return 8.0 * static_cast<double>(share) * threads * times / seconds;
  }

 private:
  typedef std::uint64_t Words __attribute__((vector_size(32), aligned(8)));

#if BENCH_X86
  __attribute__((target("avx2"), noinline))
#endif
  static std::uint64_t
  read(const std::uint64_t* data, std::size_t stream) {
    Words sum[8] = {};
    for (std::size_t i = 0; i + 8 <= stream; i += 8) {
      for (std::size_t s = 0; s < 8; ++s) {
        const std::uint64_t* const from = data + s * stream + i;
        sum[s] |= *reinterpret_cast<const Words*>(from) | *reinterpret_cast<const Words*>(from + 4);
      }
    }
    for (std::size_t s = 1; s < 8; ++s) {
      sum[0] |= sum[s];
    }
    return sum[0][0] | sum[0][1] | sum[0][2] | sum[0][3];
  }

  std::size_t words_;
  std::vector<std::uint64_t> data_;
};

}  // namespace

bool processor_flag(const char* flag) {
  const std::string flags = " " + ts::detail::cpuinfo_value("flags") + " ";
  return flags.find(" " + std::string(flag) + " ") != std::string::npos;
}

bool has_arithmetic(Arithmetic kind) {
  switch (kind) {
    case Arithmetic::f32: return true;
    case Arithmetic::f32_avx2: return ts::cpu().has(ts::CpuPath::avx2);
    case Arithmetic::bf16_dot: return processor_flag("avx512_bf16");
    case Arithmetic::int8_dot: return processor_flag("avx512_vnni");
  }
  return false;
}

Way limit(double flops, double bytes, int threads, Arithmetic kind) {
  Way way;
  way.name = "limit";
  if (!has_arithmetic(kind)) {
    return way;
  }
  std::shared_ptr<Reader> reader;
  if (bytes > 0) {
    const double most = 256.0 * (1 << 20);
    reader = std::make_shared<Reader>(static_cast<std::size_t>(std::max(65536.0, std::min(bytes, most))));
  }
  way.sample = [=] {
    const double compute = flops > 0 ? flops / flops_per_second(kind, threads) : 0;
    const double memory = reader ? bytes / reader->bytes_per_second(threads) : 0;
    return std::max(compute, memory);
  };
  return way;
}

}  // namespace bench
