#pragma once
// This machine as a chip: what a loop of multiply-adds reaches, and what a streaming read moves
// from each level of memory, on all threads together: the best of a few runs, once a program.
// The loops are of vector extensions, compiled for the instruction sets that cpu() chooses from.

#include <algorithm>  // min, max
#include <atomic>     // start line of the threads
#include <cstddef>    // std::size_t
#include <cstdint>    // std::int64_t
#include <cstdio>     // fopen: cache sizes
#include <string>     // names
#include <thread>     // one for each core
#include <vector>     // samples

#include "tinyscale/base/config.hpp"
#include "tinyscale/base/cpu.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/threads.hpp"
#include "tinyscale/hardware/chip.hpp"
#include "tinyscale/measure/profile.hpp"

namespace tinyscale {

namespace detail {

// A loop runs `turns` times and returns a number that keeps it alive. Twelve sums in flight hide
// the latency of two multiply-add units; eight streams far apart keep the prefetchers busy.
using FmaLoop = float (*)(std::int64_t turns, float x, float y);
using ReadLoop = float (*)(const float* data, std::int64_t count);  // count: a multiple of 8 * 16

constexpr int kLoopSums = 12;

#if TINYSCALE_VECTOR_EXTENSIONS
#define TINYSCALE_LAPTOP_LOOPS(path, attribute, lanes)                                           \
  struct Lanes_##path {                                                                          \
    typedef float type __attribute__((vector_size(4 * lanes), may_alias));                       \
  };                                                                                             \
  attribute inline float fma_loop_##path(std::int64_t turns, float x, float y) {                 \
    typedef Lanes_##path::type V;                                                                \
    const V m = V{} + x, c = V{} + y;                                                            \
    V a0 = c, a1 = c + 1.0f, a2 = c + 2.0f, a3 = c + 3.0f, a4 = c + 4.0f, a5 = c + 5.0f;         \
    V a6 = c + 6.0f, a7 = c + 7.0f, a8 = c + 8.0f, a9 = c + 9.0f, a10 = c + 10.0f,               \
      a11 = c + 11.0f;                                                                           \
    for (std::int64_t i = 0; i < turns; ++i) {                                                   \
      a0 = a0 * m + c, a1 = a1 * m + c, a2 = a2 * m + c, a3 = a3 * m + c;                        \
      a4 = a4 * m + c, a5 = a5 * m + c, a6 = a6 * m + c, a7 = a7 * m + c;                        \
      a8 = a8 * m + c, a9 = a9 * m + c, a10 = a10 * m + c, a11 = a11 * m + c;                    \
    }                                                                                            \
    const V sum = ((a0 + a1) + (a2 + a3)) + ((a4 + a5) + (a6 + a7)) + ((a8 + a9) + (a10 + a11)); \
    return sum[0];                                                                               \
  }                                                                                              \
  attribute inline float add_loop_##path(std::int64_t turns, float x, float y) {                 \
    typedef Lanes_##path::type V;                                                                \
    const V m = V{} + x, c = V{} + y;                                                            \
    V a0 = c, a1 = c + 1.0f, a2 = c + 2.0f, a3 = c + 3.0f, a4 = c + 4.0f, a5 = c + 5.0f;         \
    V a6 = c + 6.0f, a7 = c + 7.0f, a8 = c + 8.0f, a9 = c + 9.0f, a10 = c + 10.0f,               \
      a11 = c + 11.0f;                                                                           \
    for (std::int64_t i = 0; i < turns; ++i) {                                                   \
      a0 = a0 + m, a1 = a1 + m, a2 = a2 + m, a3 = a3 + m, a4 = a4 + m, a5 = a5 + m;              \
      a6 = a6 + m, a7 = a7 + m, a8 = a8 + m, a9 = a9 + m, a10 = a10 + m, a11 = a11 + m;          \
    }                                                                                            \
    const V sum = ((a0 + a1) + (a2 + a3)) + ((a4 + a5) + (a6 + a7)) + ((a8 + a9) + (a10 + a11)); \
    return sum[0];                                                                               \
  }                                                                                              \
  attribute inline float read_loop_##path(const float* data, std::int64_t count) {               \
    typedef Lanes_##path::type V;                                                                \
    const std::int64_t part = count / 8, vectors = part / lanes;                                 \
    const V* p = reinterpret_cast<const V*>(data);                                               \
    const V *p1 = p + vectors, *p2 = p1 + vectors, *p3 = p2 + vectors, *p4 = p3 + vectors;       \
    const V *p5 = p4 + vectors, *p6 = p5 + vectors, *p7 = p6 + vectors;                          \
    V a0 = V{}, a1 = a0, a2 = a0, a3 = a0, a4 = a0, a5 = a0, a6 = a0, a7 = a0;                   \
    for (std::int64_t i = 0; i < vectors; ++i) {                                                 \
      a0 += p[i], a1 += p1[i], a2 += p2[i], a3 += p3[i];                                         \
      a4 += p4[i], a5 += p5[i], a6 += p6[i], a7 += p7[i];                                        \
    }                                                                                            \
    const V sum = ((a0 + a1) + (a2 + a3)) + ((a4 + a5) + (a6 + a7));                             \
    return sum[0];                                                                               \
  }

TINYSCALE_LAPTOP_LOOPS(portable, , 4)
#if TINYSCALE_X86
TINYSCALE_LAPTOP_LOOPS(avx2, __attribute__((target("avx2,fma"))), 8)
TINYSCALE_LAPTOP_LOOPS(avx512, __attribute__((target("avx512f"))), 16)
#endif
#undef TINYSCALE_LAPTOP_LOOPS
#else
inline float fma_loop_portable(std::int64_t turns, float x, float y) {
  float sums[4 * kLoopSums] = {};
  for (std::int64_t i = 0; i < turns; ++i) {
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

inline float add_loop_portable(std::int64_t turns, float x, float y) {
  return fma_loop_portable(turns, 1.0f, x + y);
}

inline float read_loop_portable(const float* data, std::int64_t count) {
  float sums[16] = {};
  for (std::int64_t i = 0; i + 16 <= count; i += 16) {
    for (int lane = 0; lane < 16; ++lane) {
      sums[lane] += data[i + lane];
    }
  }
  return sums[0] + sums[7] + sums[15];
}
#endif

struct LaptopLoops {
  FmaLoop fma = fma_loop_portable, add = add_loop_portable;
  ReadLoop read = read_loop_portable;
  int lanes = 4;
};

inline LaptopLoops laptop_loops() {
  LaptopLoops loops;
#if TINYSCALE_VECTOR_EXTENSIONS && TINYSCALE_X86
  if (cpu().path == CpuPath::avx512) {
    loops = {fma_loop_avx512, add_loop_avx512, read_loop_avx512, 16};
  } else if (cpu().path == CpuPath::avx2) {
    loops = {fma_loop_avx2, add_loop_avx2, read_loop_avx2, 8};
  }
#endif
  return loops;
}

inline void keep_alive(float value) {
  volatile float sink = value;  // a local one: threads share nothing
  static_cast<void>(sink);
}

struct TogetherThread {
  const LoopBody* body = nullptr;
  std::int64_t number = 0, turns = 0;
  std::atomic<int>* ready = nullptr;
  std::atomic<bool>* go = nullptr;

  static void run(void* argument) {
    const TogetherThread& self = *static_cast<TogetherThread*>(argument);
    self.ready->fetch_add(1);
    while (!self.go->load()) {
      std::this_thread::yield();
    }
    (*self.body)(self.number, self.turns);
  }
};

// Seconds in which all threads, started together, have each run body(thread, turns) once.
inline double run_together(int threads, std::int64_t turns, const LoopBody& body) {
  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  List<TogetherThread> each(static_cast<std::size_t>(threads));
  ThreadGroup crew;
#if defined(TINYSCALE_NO_THREADS)
  static_cast<void>(threads);
#else
  for (int t = 1; t < threads; ++t) {
    TogetherThread& own = each[static_cast<std::size_t>(t)];
    own = {&body, t, turns, &ready, &go};
    try {
      crew.start(&TogetherThread::run, &own);
    } catch (...) {
      go.store(true);
      throw;
    }
  }
#endif
  while (ready.load() < static_cast<int>(crew.size())) {
    std::this_thread::yield();
  }
  const double start = seconds_now();
  go.store(true);
  body(0, turns);
  crew.join();
  return seconds_now() - start;
}

// Work a second of `threads` threads: turns grown until a run takes 5 ms, then the best of 16 runs,
// for what else the machine does can only take away.
inline double measured_rate(int threads, double work_of_turn, const LoopBody& body) {
  std::int64_t turns = 1;
  const auto seconds = [&] {  // of the faster of two
    const double once = run_together(threads, turns, body);
    return std::min(once, run_together(threads, turns, body));
  };
  for (double best = seconds(); best < 5e-3 && turns < (std::int64_t{1} << 40); best = seconds()) {
    turns *= best < 5e-4 ? 8 : 2;
  }
  double fastest = seconds();
  for (int repeat = 1; repeat < 8; ++repeat) {
    fastest = std::min(fastest, seconds());
  }
  return threads * work_of_turn * static_cast<double>(turns) / fastest;
}

// A file's first word as a number with K, M or G behind it ("32768K"); 0 where there is none.
inline double size_from_file(const std::string& path, const char* format) {
  std::FILE* const file = std::fopen(path.c_str(), "r");
  if (file == nullptr) {
    return 0;
  }
  long long number = 0;
  char unit = ' ';
  const int found = std::fscanf(file, format, &number, &unit);
  std::fclose(file);
  const double scale = unit == 'K' || unit == 'k' ? 1024.0 : unit == 'M' ? 1048576.0 : 1.0;
  return found > 0 ? static_cast<double>(number) * scale : 0;
}

// Bytes of L1 data, L2 and L3 for the first core; usual sizes where the system does not say.
inline std::vector<double> cache_sizes() {
  const std::string folder = "/sys/devices/system/cpu/cpu0/cache/index";
  std::vector<double> sizes = {size_from_file(folder + "0/size", "%lld%c"),
                               size_from_file(folder + "2/size", "%lld%c"),
                               size_from_file(folder + "3/size", "%lld%c")};
  const double usual[3] = {32768, 1048576, 16777216};
  for (std::size_t i = 0; i < 3; ++i) {
    sizes[i] = sizes[i] > 0 ? sizes[i] : usual[i];
  }
  sizes[1] = std::max(sizes[1], 2 * sizes[0]);
  sizes[2] = std::max(sizes[2], 2 * sizes[1]);
  return sizes;
}

// Bytes a second when each thread reads its own `bytes_each` again and again.
inline double read_bandwidth(const LaptopLoops& loops, const List<const float*>& data,
                             double bytes_each) {
  const std::int64_t block = 8 * 16;  // whole vectors in each of the eight streams
  const std::int64_t floats = static_cast<std::int64_t>(bytes_each) / 4 / block * block;
  return measured_rate(static_cast<int>(data.size()), 4.0 * static_cast<double>(floats),
                       [&](std::int64_t thread, std::int64_t turns) {
                         float sum = 0;
                         for (std::int64_t i = 0; i < turns; ++i) {
                           sum += loops.read(data[static_cast<std::size_t>(thread)], floats);
                         }
                         keep_alive(sum);
                       });
}

// Each level is read at half its size; L1 and L2 belong to a core, L3 is shared by all.
inline List<MemoryLevel> measured_levels(const LaptopLoops& loops, int threads) {
  const std::vector<double> caches = cache_sizes();
  const double all = std::max(64e6, std::min(4 * caches[2], 256e6));
  const std::size_t floats = static_cast<std::size_t>(all / threads / 4);
  List<std::vector<float>> owned(static_cast<std::size_t>(threads));
  List<const float*> data(owned.size());
  // Pages are first touched by the thread that reads them.
  run_together(threads, 1, [&](std::int64_t thread, std::int64_t) {
    const std::size_t t = static_cast<std::size_t>(thread);
    owned[t].resize(floats + 16);
    const std::size_t past = reinterpret_cast<std::uintptr_t>(owned[t].data()) % 64 / 4;
    data[t] = owned[t].data() + (16 - past) % 16;
  });
  List<MemoryLevel> levels(4);
  const char* const names[4] = {"L1", "L2", "L3", "DRAM"};
  const double held[4] = {caches[0] * threads, caches[1] * threads, caches[2], all};
  for (std::size_t i = 0; i < 4; ++i) {
    const double part = i < 3 ? held[i] / 2 : all;
    levels[i] = {names[i], held[i], read_bandwidth(loops, data, part / threads)};
  }
  return levels;
}

}  // namespace detail

// What laptop() found, with the one-core figure that a program without threads can reach.
struct LaptopMeasurement {
  double fma_one_core = 0, fma_all_cores = 0;  // f32 FLOP/s of multiply-adds
  double add_all_cores = 0;                    // f32 FLOP/s of additions alone
  List<MemoryLevel> levels;                    // L1, L2, L3, DRAM: all cores together
  int threads = 1;
  double seconds = 0;  // what the measuring took
};

inline LaptopMeasurement measure_laptop() {
  const double start = detail::seconds_now();
  const detail::LaptopLoops loops = detail::laptop_loops();
  const double lanes = static_cast<double>(detail::kLoopSums) * loops.lanes;
  const auto fma = [&](std::int64_t, std::int64_t turns) {
    detail::keep_alive(loops.fma(1000 * turns, 0.999f, 0.001f));
  };
  const auto add = [&](std::int64_t, std::int64_t turns) {
    detail::keep_alive(loops.add(1000 * turns, 0.001f, 0.0f));
  };
  LaptopMeasurement found;
  found.threads = std::max(1, thread_count());
#if defined(TINYSCALE_NO_THREADS)
  found.threads = 1;
#endif
  found.fma_one_core = detail::measured_rate(1, 2000.0 * lanes, fma);
  found.fma_all_cores = detail::measured_rate(found.threads, 2000.0 * lanes, fma);
  found.add_all_cores = detail::measured_rate(found.threads, 1000.0 * lanes, add);
  found.levels = detail::measured_levels(loops, found.threads);
  found.seconds = detail::seconds_now() - start;
  return found;
}

// The measurement, made the first time that it is asked for.
inline const LaptopMeasurement& laptop_measurement() {
  static const LaptopMeasurement found = measure_laptop();
  return found;
}

// This machine as a Chip. bf16 is counted at the f32 rate: the host kernels compute in f32.
inline Chip laptop() {
  const LaptopMeasurement& found = laptop_measurement();
  Chip chip;
  chip.name = "laptop";
  chip.vendor = cpu().name;
  chip.kind = "cpu";
  chip.flops_f32 = chip.flops_bf16 = found.fma_all_cores;
  chip.vector_flops = found.add_all_cores;
  chip.levels = found.levels;
  chip.sram_bytes = found.levels[1].bytes;
  chip.sram_bandwidth = found.levels[1].bandwidth;
  chip.memory_bytes = detail::size_from_file("/proc/meminfo", "MemTotal: %lld %c");
  chip.memory_bandwidth = found.levels[3].bandwidth;
  chip.levels[3].bytes = std::max(chip.memory_bytes, found.levels[3].bytes);
  chip.cores = found.threads;
  chip.measured = true;
  chip.source =
      "measured: the best of 16 runs of multiply-add loops, add loops and streaming reads";
#if !defined(__OPTIMIZE__)
  chip.source += "; compiled without optimisation, so the rates are too low";
#endif
  return chip;
}

}  // namespace tinyscale
