#pragma once
// What the processor itself counts while a program runs: cycles, instructions, cache misses, and
// from these the bytes that came from memory (a line of 64 each). To stand beside the model's
// counts. Linux only, through perf_event_open, of the program's own threads and outside the kernel.
// Where that is not allowed (containers, most virtual machines, interpreters) `why` says so.

#include <cstdint>
#include <cstdlib>  // atoi
#include <cstring>  // strerror
#include <string>

#include "tinyscale/base/config.hpp"
#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"

// clang-format off
#if defined(__linux__) && !TINYSCALE_INTERPRETER && defined(__has_include)
#if __has_include(<linux/perf_event.h>)
#  include <dirent.h>
#  include <errno.h>
#  include <linux/perf_event.h>
#  include <sys/syscall.h>
#  include <unistd.h>
#define TINYSCALE_PERF_EVENTS 1
#endif
#endif
// clang-format on

namespace tinyscale {

// Sums over all threads since the counters were made. Where more is counted than the processor has
// counters for (other programs' events too) they take turns, and counts are scaled to all the time.
struct HardwareCounts {
  bool counted = false;
  double share = 1;  // of the time that was counted, of the event that had least
  double cycles = 0, instructions = 0, cache_misses = 0;

  double memory_bytes() const { return 64 * cache_misses; }
  double instructions_per_cycle() const { return cycles > 0 ? instructions / cycles : 0; }
};

namespace detail {

// Opens one event (0 cycles, 1 instructions, 2 cache misses) of one thread; an error is < 0:
// -errno.
using PerfOpener = int (*)(int event, int thread);

#if defined(TINYSCALE_PERF_EVENTS)
constexpr int thread_is_gone = -ESRCH;
#else
constexpr int thread_is_gone = -3;
#endif

inline int open_perf_event(int event, int thread) {
#if defined(TINYSCALE_PERF_EVENTS)
  perf_event_attr attr;
  std::memset(&attr, 0, sizeof(attr));
  attr.size = sizeof(attr);
  attr.type = PERF_TYPE_HARDWARE;
  attr.config = event == 0   ? PERF_COUNT_HW_CPU_CYCLES
                : event == 1 ? PERF_COUNT_HW_INSTRUCTIONS
                             : PERF_COUNT_HW_CACHE_MISSES;
  attr.exclude_kernel = 1;
  attr.exclude_hv = 1;
  attr.inherit = 1;  // threads that start later count too
  attr.read_format = PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
  const long file = syscall(SYS_perf_event_open, &attr, thread, -1, -1, PERF_FLAG_FD_CLOEXEC);
  return file < 0 ? -errno : static_cast<int>(file);
#else
  static_cast<void>(event + thread);
  return -1;
#endif
}

// The numbers of this program's threads, as the system names them.
inline List<int> program_thread_ids() {
  List<int> ids;
#if defined(TINYSCALE_PERF_EVENTS)
  DIR* const folder = opendir("/proc/self/task");
  for (dirent* entry = folder != nullptr ? readdir(folder) : nullptr; entry != nullptr;
       entry = readdir(folder)) {
    if (entry->d_name[0] != '.') {
      ids.push_back(std::atoi(entry->d_name));
    }
  }
  if (folder != nullptr) {
    closedir(folder);
  }
#endif
  return ids.empty() ? List<int>{0} : ids;
}

}  // namespace detail

// Counts from its making to its end.
class HardwareCounters {
 public:
  explicit HardwareCounters(detail::PerfOpener open = detail::open_perf_event) {
    for (const int thread : detail::program_thread_ids()) {
      const std::size_t before = files_.size();
      for (int event = 0; event < events && why_.empty(); ++event) {
        const int file = open(event, thread);
        if (file >= 0) {
          files_.push_back(file);
        } else if (file == detail::thread_is_gone) {  // perhaps between two events
          close_from(before);
          break;
        } else {
          why_ = reason(-file);
        }
      }
    }
    if (!why_.empty()) {
      close_from(0);
    }
  }
  ~HardwareCounters() { close_from(0); }
  HardwareCounters(const HardwareCounters&) = delete;
  HardwareCounters& operator=(const HardwareCounters&) = delete;

  // Why nothing is counted; empty when it is.
  const std::string& why() const { return why_; }

  HardwareCounts read() const {
    HardwareCounts found;
    double* const sums[events] = {&found.cycles, &found.instructions, &found.cache_misses};
#if defined(TINYSCALE_PERF_EVENTS)
    for (std::size_t i = 0; i < files_.size(); ++i) {
      std::uint64_t got[3] = {0, 0, 0};  // count, time enabled, time counted
      if (::read(files_[i], got, sizeof(got)) != sizeof(got)) {
        continue;
      }
      if (got[1] > 0 && got[2] == 0) {  // it never had its turn: nothing is known
        return {};
      }
      const double share =
          got[1] > 0 ? static_cast<double>(got[2]) / static_cast<double>(got[1]) : 1;
      *sums[i % events] += static_cast<double>(got[0]) / share;
      found.share = share < found.share ? share : found.share;
      found.counted = true;
    }
#else
    static_cast<void>(sums);
#endif
    return found;
  }

 private:
  static constexpr int events = 3;

  static std::string reason(int code) {
#if defined(TINYSCALE_PERF_EVENTS)
    const bool refused = code == EACCES || code == EPERM;
    return detail::cat({"hardware counters: not here: ",
                        refused          ? "the system does not allow them (perf_event_paranoid)"
                        : code == ENOENT ? "this processor, perhaps a virtual one, offers none"
                                         : std::strerror(code)});
#else
    static_cast<void>(code);
    return "hardware counters: not here: they need Linux and a compiled program";
#endif
  }

  void close_from(std::size_t first) {
#if defined(TINYSCALE_PERF_EVENTS)
    for (std::size_t i = first; i < files_.size(); ++i) {
      ::close(files_[i]);
    }
#endif
    files_.resize(first);
  }

  List<int> files_;  // events of the first thread, of the second, ...
  std::string why_;
};

}  // namespace tinyscale
