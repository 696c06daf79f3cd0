#pragma once
// This machine as a chip: what multiply-adds reach in each number format and what reads move from
// each level of memory, on one thread and on all, measured in less than two seconds.
// Short runs of everything in turn, round after round: whatever else the machine does takes away
// from single runs only, and the best of each comes close to what is there.

#include <algorithm>  // min, max
#include <atomic>     // where the threads meet
#include <cstddef>    // std::size_t
#include <cstdint>    // std::int64_t
#include <cstdio>     // fopen: cache sizes
#include <exception>  // no more threads
#include <string>     // names
#include <thread>     // yield
#include <vector>     // memory to read

#include "tinyscale/base/config.hpp"
#include "tinyscale/base/cpu.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/order.hpp"
#include "tinyscale/base/threads.hpp"
#include "tinyscale/hardware/chip.hpp"
#include "tinyscale/hardware/laptop_loops.hpp"
#include "tinyscale/measure/profile.hpp"

namespace tinyscale {

// What so many threads reach together.
struct LaptopRates {
  int threads = 1;
  double f32 = 0, bf16 = 0, int8 = 0;          // FLOP/s of multiply-adds; 0: no unit for it
  double bandwidth[4] = {0.0, 0.0, 0.0, 0.0};  // bytes/s read from L1, L2, L3, DRAM
};

struct LaptopMeasurement {
  LaptopRates one, all;
  double core_bytes[4] = {0.0, 0.0, 0.0, 0.0};  // L1 and L2 of one core, L3 of all, DRAM
  int rounds = 0;
  double seconds = 0;  // what the measuring took
};

namespace detail {

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

// Measures seven quantities: three formats, then the four levels of memory.
class LaptopMeter {
 public:
  static constexpr int formats = 3, quantities = 7;

  explicit LaptopMeter(int threads) : threads_(threads) {
    const std::vector<double> caches = cache_sizes();
    // Half of L1, a third of L2; of L3 each thread's part of a quarter, but 1.5 to 4 times its L2:
    // more of a large one may be lent to others, and takes longer than a thread is left alone.
    const double l3 = std::max(1.5, std::min(4.0, caches[2] / 4 / threads / caches[1])) * caches[1];
    const double each[4] = {caches[0] / 2, caches[1] / 3, l3, 4194304};
    for (int level = 0; level < 4; ++level) {
      floats_[level] = static_cast<std::int64_t>(each[level]) / 4 / block * block;
    }
    bytes_ = std::max(std::max(64e6, std::min(4 * caches[2], 256e6)), l3 * threads);
    windows_ = static_cast<std::int64_t>(bytes_ / 4) / floats_[3] + 1;
    memory_.resize(static_cast<std::size_t>(windows_ * floats_[3] + threads * floats_[2] + 16));
    const std::size_t past = reinterpret_cast<std::uintptr_t>(memory_.data()) % 64 / 4;
    data_ = memory_.data() + (16 - past) % 16;
    flops_[0] = loops_.fma_flops();
    flops_[1] = loops_.bf16_flops;
    flops_[2] = loops_.int8_flops;
    for (int i = 0; i < 3; ++i) {
      core_bytes_[i] = caches[static_cast<std::size_t>(i)];
    }
  }

  LaptopMeasurement measure() {
    LaptopMeasurement found;
    for (int q = 0; q < quantities; ++q) {
      choose_turns(q);
    }
    for (round_ = 1;; ++round_) {
      alone();
      if (threads_ > 1) {
        together();
      }
      const double passed = seconds_now() - started_;
      if ((passed > longest && round_ >= 6) || (passed > shortest && settled()) ||
          (passed > 3 && round_ >= 3)) {
        break;
      }
    }
    found.one = rates(0, 1);
    found.all = threads_ > 1 ? rates(1, threads_) : found.one;
    std::copy(core_bytes_, core_bytes_ + 3, found.core_bytes);
    found.core_bytes[3] = bytes_;
    found.rounds = round_;
    found.seconds = seconds_now() - started_;
    return found;
  }

 private:
  static constexpr std::int64_t block = 8 * 16;  // whole vectors in each of the eight streams
  static constexpr double run_seconds = 7e-4, shortest = 0.4, longest = 1.5;

  struct Seat {
    LaptopMeter* meter = nullptr;
    int number = 0;
    int processor = -1;
    double begin[quantities] = {}, end[quantities] = {};
  };

  bool exists(int q) const { return q >= formats || flops_[q] > 0; }

  // Turns of 1000 multiply-adds of every sum, or of one read of the level's bytes.
  void work(int q, std::int64_t turns, int thread, int threads) {
    if (q < formats) {
      const FmaLoop loop = q == 0 ? loops_.fma : q == 1 ? loops_.bf16 : loops_.int8;
      keep_alive(loop(1000 * turns, 0.999f, 0.001f));
      return;
    }
    // Main memory is walked window by window, so that none is still in a cache when it returns. The
    // caches' part stands behind it; each round takes another place there, for some pages collide.
    const int level = q - formats;
    const std::int64_t spare = (floats_[2] - floats_[level % 3]) / block + 1;
    const std::int64_t place = round_ * floats_[level] / block % spare * block;
    const std::int64_t cached = windows_ * floats_[3] + thread * floats_[2] + place;
    float sum = 0;
    for (std::int64_t i = 0; i < turns; ++i) {
      const std::int64_t window = (window_ + i * threads + thread) % windows_ * floats_[3];
      sum += loops_.read(data_ + (level == 3 ? window : cached), floats_[level]);
    }
    keep_alive(sum);
  }

  double timed(int q, std::int64_t turns) {
    const double start = seconds_now();
    work(q, turns, 0, 1);
    window_ += q == quantities - 1 ? turns : 0;
    return seconds_now() - start;
  }

  void choose_turns(int q) {
    turns_[q] = 1;
    if (exists(q)) {
      double seconds = timed(q, 1);
      for (; seconds < run_seconds / 8 && turns_[q] < (1 << 30); seconds = timed(q, turns_[q])) {
        turns_[q] *= 4;
      }
      const double more = run_seconds / std::max(seconds, 1e-9);
      turns_[q] = std::max<std::int64_t>(
          1, static_cast<std::int64_t>(static_cast<double>(turns_[q]) * more));
    }
    for (auto& best : best_) {
      std::fill(best[q], best[q] + 3, 1e30);
    }
  }

  // Keeps the three shortest.
  void note(int mode, int q, double seconds) {
    double* const best = best_[mode][q];
    best[2] = std::min(best[2], std::max(seconds, 1e-9));
    insertion_sort(best, best + 3);
  }

  bool settled() const {
    for (int mode = 0; mode < (threads_ > 1 ? 2 : 1); ++mode) {
      for (int q = 0; q < quantities; ++q) {
        if (exists(q) && best_[mode][q][2] > 1.01 * best_[mode][q][0]) {
          return false;
        }
      }
    }
    return true;
  }

  void alone() {
    for (int q = 0; q < quantities; ++q) {
      if (exists(q)) {
        work(q, q < quantities - 1 ? 1 : 0, 0, 1);  // what is read is in its cache then
        note(0, q, timed(q, turns_[q]));
      }
    }
  }

  void together() {
    List<Seat> seats(static_cast<std::size_t>(threads_));
    seats_ = &seats;
    arrived_.store(0);
    expected_.store(0);
    ThreadGroup crew;
    int started = 1;
    try {
      for (; started < threads_; ++started) {
        Seat& seat = seats[static_cast<std::size_t>(started)];
        seat.meter = this;
        seat.number = started;
        crew.start(
            [](void* own) { static_cast<Seat*>(own)->meter->take_part(*static_cast<Seat*>(own)); },
            &seat);
      }
    } catch (const std::exception&) {
      threads_ = started;  // the system gives no more
    }
    expected_.store(started);
    take_part(seats[0]);
    window_ += turns_[quantities - 1] * started;
  }

  // Returns when all threads are there; `meeting` counts them from 1.
  void meet(int meeting) {
    arrived_.fetch_add(1);
    for (int i = 0; expected_.load() == 0 || arrived_.load() < meeting * expected_.load(); ++i) {
      if (i < 200) {
        cpu_relax();
      } else {
        std::this_thread::yield();
      }
    }
  }

  void take_part(Seat& own) {
    int meeting = 0;
    own.processor = current_processor();
    meet(++meeting);
    if (own.number > 0 && own.processor == (*seats_)[0].processor) {
      leave_processor(own.processor);
    }
    const int threads = expected_.load();
    for (int q = 0; q < quantities; ++q) {
      if (!exists(q)) {
        continue;
      }
      work(q, q < quantities - 1 ? 1 : 0, own.number, threads);
      meet(++meeting);
      own.begin[q] = seconds_now();
      work(q, turns_[q], own.number, threads);
      own.end[q] = seconds_now();
    }
    meet(++meeting);
    for (int q = 0; q < quantities && own.number == 0; ++q) {
      double begin = own.begin[q], end = own.end[q];
      for (int t = 1; t < threads && exists(q); ++t) {
        const Seat& seat = (*seats_)[static_cast<std::size_t>(t)];
        begin = std::min(begin, seat.begin[q]);
        end = std::max(end, seat.end[q]);
      }
      if (exists(q)) {
        note(1, q, end - begin);
      }
    }
  }

  LaptopRates rates(int mode, int threads) const {
    LaptopRates found;
    found.threads = threads;
    const auto rate = [&](int q, double work_of_turn) {
      return threads * work_of_turn * static_cast<double>(turns_[q]) / best_[mode][q][0];
    };
    found.f32 = rate(0, 1000 * flops_[0]);
    found.bf16 = exists(1) ? rate(1, 1000 * flops_[1]) : 0;
    found.int8 = exists(2) ? rate(2, 1000 * flops_[2]) : 0;
    for (int level = 3; level >= 0; --level) {  // what comes from afar passes what is nearer
      found.bandwidth[level] =
          std::max(rate(formats + level, 4.0 * static_cast<double>(floats_[level])),
                   level < 3 ? found.bandwidth[level + 1] : 0.0);
    }
    return found;
  }

  double started_ = seconds_now();
  int threads_, round_ = 0;
  LaptopLoops loops_ = laptop_loops();
  double flops_[formats];  // of one turn of a loop
  std::int64_t floats_[4], turns_[quantities];
  double best_[2][quantities][3];
  double bytes_ = 0, core_bytes_[3];
  std::vector<float> memory_;
  const float* data_ = nullptr;
  std::int64_t windows_ = 1, window_ = 0;
  List<Seat>* seats_ = nullptr;
  std::atomic<int> arrived_{0}, expected_{0};
};

inline int laptop_threads() {
#if defined(TINYSCALE_NO_THREADS)
  return 1;
#else
  // More threads than processors would take turns.
  const unsigned processors = std::thread::hardware_concurrency();
  return processors == 0 ? program_threads()
                         : std::min(program_threads(), static_cast<int>(processors));
#endif
}

}  // namespace detail

inline LaptopMeasurement measure_laptop() {
  return detail::LaptopMeter(detail::laptop_threads()).measure();
}

// The measurement, made the first time that it is asked for.
inline const LaptopMeasurement& laptop_measurement() {
  static const LaptopMeasurement found = measure_laptop();
  return found;
}

// This machine as a Chip, with the rates of the threads that loops may use here: see ThreadScope.
// Formats without a faster unit than f32's are counted at its rate.
inline Chip laptop() {
  const LaptopMeasurement& found = laptop_measurement();
  const int threads = std::min(thread_count(), found.all.threads);
  const auto rate = [&](double one, double all) {  // threads that wait for a processor add nothing
    const double most = threads == found.all.threads ? all : std::min(all, threads * one);
    return threads == 1 ? one : std::max(one, most);
  };
  Chip chip;
  chip.name = "laptop";
  chip.vendor = cpu().name;
  chip.kind = "cpu";
  chip.cores = threads;
  chip.flops_f32 = rate(found.one.f32, found.all.f32);
  chip.flops_bf16 = std::max(chip.flops_f32, rate(found.one.bf16, found.all.bf16));
  chip.flops_int8 = std::max(chip.flops_f32, rate(found.one.int8, found.all.int8));
  chip.core_flops_f32 = found.one.f32;
  chip.core_flops_bf16 = std::max(found.one.f32, found.one.bf16);
  chip.core_flops_int8 = std::max(found.one.f32, found.one.int8);
  chip.vector_flops = chip.flops_f32 / 2;  // a multiply-add is two, an addition or product one
  chip.memory_bytes = detail::size_from_file("/proc/meminfo", "MemTotal: %lld %c");
  chip.memory_bytes = std::max(chip.memory_bytes, found.core_bytes[3]);
  const char* const names[4] = {"L1", "L2", "L3", "DRAM"};
  for (int i = 0; i < 4; ++i) {
    const double bytes = i < 2    ? found.core_bytes[i] * threads
                         : i == 2 ? found.core_bytes[2]
                                  : chip.memory_bytes;
    chip.levels.push_back({names[i], bytes, rate(found.one.bandwidth[i], found.all.bandwidth[i]),
                           found.one.bandwidth[i]});
  }
  chip.sram_bytes = chip.levels[1].bytes;
  chip.sram_bandwidth = chip.levels[1].bandwidth;
  chip.memory_bandwidth = chip.levels[3].bandwidth;
  chip.measured = true;
  chip.source = detail::cat({"measured: the best of ", found.rounds,
                             " short runs of multiply-adds and of reads in eight streams"});
#if !defined(__OPTIMIZE__) && defined(TINYSCALE_KERNELS_AS_FLAGS)
  chip.doubt = "; compiled without optimisation, so the rates are too low";
#endif
  return chip;
}

}  // namespace tinyscale
