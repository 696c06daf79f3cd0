#pragma once
// How many threads or stacks the system would give, asked before a mesh of thousands of devices
// takes them: half of them running and the rest refused is worse than an error at once.

#include <cstdio>
#include <cstdlib>  // strtod
#include <string>

#include "tinyscale/base/error.hpp"

namespace tinyscale {
namespace detail {

// The first number after `label` in a file of the system; -1: it has none, or says "max".
inline double system_number(const char* path, const char* label = "") {
  std::FILE* const file = std::fopen(path, "r");
  if (file == nullptr) {
    return -1;
  }
  std::string text(4096, '\0');
  text.resize(std::fread(&text[0], 1, text.size(), file));
  std::fclose(file);
  const std::size_t at = text.find(label);
  if (at == std::string::npos) {
    return -1;
  }
  char* end = nullptr;
  const char* const begin = text.c_str() + at + std::string(label).size();
  const double number = std::strtod(begin, &end);
  return end == begin ? -1 : number;
}

#if defined(__linux__)
struct SystemLimit {
  const char* what;
  double most, used;

  // Throws when it does not allow so many devices their own `what_each`.
  void check(int devices, const char* what_each) const {
    if (most > 0 && most - used < devices + 8.0) {
      fail({"mesh.run: ", devices, " devices need a ", what_each, " each; ", what, " allows ", most,
            used > 0 ? cat({", of which ", used, " are in use"}) : "",
            ": take fewer devices, or raise that limit"});
    }
  }
};
inline SystemLimit map_limit() {  // a stack, and the page below it that none may touch
  return {"memory maps, two a stack", system_number("/proc/sys/vm/max_map_count") / 2, 0};
}
#endif

// Throws when so many stacks more are too many for this process.
inline void check_stack_limit(int devices) {
#if defined(__linux__)
  if (devices > 256) {
    map_limit().check(devices, "stack");
  }
#else
  static_cast<void>(devices);
#endif
}

// Throws when so many threads more are too many for this process, its container or the system.
inline void check_thread_limit(int threads) {
#if defined(__linux__)
  if (threads <= 256) {
    return;
  }
  const double in_system = system_number("/proc/loadavg", "/");  // "0.1 0.2 0.3 2/345 ..."
  const SystemLimit limits[] = {
      {"ulimit -u", system_number("/proc/self/limits", "Max processes"), 0},
      {"the system", system_number("/proc/sys/kernel/threads-max"), in_system},
      map_limit(),
      {"the container", system_number("/sys/fs/cgroup/pids.max"),
       system_number("/sys/fs/cgroup/pids.current")}};
  for (const SystemLimit& limit : limits) {
    limit.check(threads, "thread");
  }
#else
  static_cast<void>(threads);
#endif
}

}  // namespace detail
}  // namespace tinyscale
