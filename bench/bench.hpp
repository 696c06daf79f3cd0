#pragma once
// What the benchmarks share: several ways of doing one thing, timed side by side, and the peers.
// Ways are run in turn, once each a round, so that whatever disturbs the machine disturbs all of
// them; the figures are medians over the rounds after one round of warm-up.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <dlfcn.h>
#endif

#include "tinyscale.hpp"

namespace bench {

namespace ts = tinyscale;

using Work = std::function<void()>;

inline double seconds_of(const Work& work, std::int64_t times) {
  const auto start = std::chrono::steady_clock::now();
  for (std::int64_t i = 0; i < times; ++i) {
    work();
  }
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
  return passed.count();
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

struct Rounds {
  int rounds = 7;
  double least_seconds = 4e-3;  // of one sample: short work is repeated within it
};

// Median seconds of one call of each way; an empty way (a peer that is missing) gives 0.
inline std::vector<double> compare(const std::vector<Work>& ways, Rounds options = Rounds()) {
  std::vector<std::int64_t> times(ways.size(), 1);
  std::vector<std::vector<double>> samples(ways.size());
  for (std::size_t w = 0; w < ways.size(); ++w) {
    if (ways[w]) {
      double once = seconds_of(ways[w], 1);
      once = std::min(once, seconds_of(ways[w], 1));
      times[w] = static_cast<std::int64_t>(std::ceil(options.least_seconds / (once + 1e-9)));
      times[w] = std::max<std::int64_t>(1, times[w]);
    }
  }
  for (int round = 0; round < options.rounds; ++round) {
    for (std::size_t w = 0; w < ways.size(); ++w) {
      if (ways[w]) {
        samples[w].push_back(seconds_of(ways[w], times[w]) / static_cast<double>(times[w]));
      }
    }
  }
  std::vector<double> medians;
  for (const std::vector<double>& sample : samples) {
    medians.push_back(median(sample));
  }
  return medians;
}

// a / b with two digits, "-" when one of them was not measured.
inline std::string ratio(double a, double b) {
  return a > 0 && b > 0 ? ts::format_fixed(a / b, 2) : "-";
}

inline std::string rate(double work, double seconds, double unit) {
  return seconds > 0 ? ts::format_fixed(work / seconds / unit, 1) : "-";
}

inline void skip(const std::string& peer, const std::string& why) {
  std::printf("skipped: %s: %s\n", peer.c_str(), why.c_str());
}

// One thread: the same code, its loops kept on the caller.
inline Work serial(const Work& work) {
  if (!work) {
    return work;
  }
  return [work] {
    const ts::detail::SerialScope scope;
    work();
  };
}

// The limit of arithmetic, timed in the same rounds as what it limits: limit_flops multiply-adds'
// FLOPs in registers, on all threads, or on one inside serial().
constexpr double limit_flops = 2e8;

inline void limit_loop() {
  const ts::detail::LaptopLoops loops = ts::detail::laptop_loops();
  const int parts = 4 * ts::thread_count();
  const double flops_of_turn = 2.0 * ts::detail::kLoopSums * loops.lanes;
  const auto turns = static_cast<std::int64_t>(limit_flops / flops_of_turn / parts);
  ts::parallel_for(parts, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t part = begin; part < end; ++part) {
      ts::detail::keep_alive(loops.fma(turns, 0.999f, 0.001f));
    }
  });
}

// The limit of memory, timed in the same way: a buffer of so many bytes is read once, on all
// threads, or on one inside serial(). Writes cost more, so work that writes stays below it.
class ReadLimit {
 public:
  explicit ReadLimit(double bytes)
      : floats_(static_cast<std::int64_t>(bytes / 4) / kBlock * kBlock),
        buffer_(static_cast<std::size_t>(floats_ + 16), 1.0f) {
    const std::size_t past = reinterpret_cast<std::uintptr_t>(buffer_.data()) % 64 / 4;
    data_ = buffer_.data() + (16 - past) % 16;
  }
  ReadLimit(const ReadLimit&) = delete;
  ReadLimit& operator=(const ReadLimit&) = delete;

  void operator()() const {
    const ts::detail::LaptopLoops loops = ts::detail::laptop_loops();
    const std::int64_t parts = ts::thread_count();
    ts::parallel_for(parts, 1, [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t first = at(begin, parts), last = at(end, parts);
      ts::detail::keep_alive(loops.read(data_ + first, last - first));
    });
  }
  Work work() const {
    return [this] { (*this)(); };
  }

 private:
  static constexpr std::int64_t kBlock = 8 * 16;  // whole vectors in each of the loop's streams
  std::int64_t at(std::int64_t part, std::int64_t parts) const {
    return floats_ / kBlock * part / parts * kBlock;
  }

  std::int64_t floats_;
  std::vector<float> buffer_;
  const float* data_ = nullptr;
};

// How the machine was read; every program prints it first.
inline void print_machine(const char* question) {
  std::printf("%s\n%s, %d threads\n\n", question, ts::cpu().text.c_str(), ts::thread_count());
}

// Numbers in [-1, 1), the same on every machine.
inline std::vector<float> numbers(std::size_t count, std::uint64_t seed) {
  std::vector<float> out(count);
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = 2.0f * ts::uniform01(seed, i) - 1.0f;
  }
  return out;
}

// OpenBLAS, when its shared library can be opened; nothing is linked.
struct OpenBlas {
  using Sgemm = void (*)(int order, int ta, int tb, int m, int n, int k, float alpha,
                         const float* a, int lda, const float* b, int ldb, float beta, float* c,
                         int ldc);
  Sgemm sgemm = nullptr;
  void (*set_threads)(int) = nullptr;

  std::string core;  // whose kernels it chose

  OpenBlas() {
#if defined(__unix__) || defined(__APPLE__)
    void* library = nullptr;
    for (const char* name : {"libopenblas.so.0", "libopenblas.so", "libopenblas.dylib"}) {
      library = library != nullptr ? library : dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    if (library != nullptr) {
      sgemm = reinterpret_cast<Sgemm>(dlsym(library, "cblas_sgemm"));
      set_threads = reinterpret_cast<void (*)(int)>(dlsym(library, "openblas_set_num_threads"));
      const auto name = reinterpret_cast<char* (*)()>(dlsym(library, "openblas_get_corename"));
      core = name != nullptr ? name() : "";
    }
#endif
  }
  bool found() const { return sgemm != nullptr && set_threads != nullptr; }

  // C[m, n] = A[m, k] B[k, n], row-major.
  void multiply(int m, int n, int k, const float* a, const float* b, float* c) const {
    sgemm(101, 111, 111, m, n, k, 1.0f, a, k, b, n, 0.0f, c, n);
  }
};

// The numbers that a Python program prints; none when Python or what it imports is missing.
inline std::vector<double> python_numbers(const std::string& program) {
  std::vector<double> found;
#if defined(__unix__) || defined(__APPLE__)
  std::fflush(stdout);
  const std::string command = "python3 - 2>/dev/null <<'END'\n" + program + "\nEND\n";
  std::FILE* const pipe = popen(command.c_str(), "r");
  if (pipe != nullptr) {
    for (double value = 0; std::fscanf(pipe, "%lf", &value) == 1;) {
      found.push_back(value);
    }
    if (pclose(pipe) != 0) {
      found.clear();
    }
  }
#else
  static_cast<void>(program);
#endif
  return found;
}

}  // namespace bench
