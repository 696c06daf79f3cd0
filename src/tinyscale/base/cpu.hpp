#pragma once
// Which vector instructions this processor has, and the kernels' path that follows from it.
// Compiled programs ask the compiler's run-time library; interpreted ones, which cannot link it,
// read the flags of /proc/cpuinfo. TINYSCALE_CPU=portable|neon|avx2|avx512 chooses a lesser path.

#include <cstdio>  // fopen, fgetc
#include <initializer_list>
#include <string>

#include "tinyscale/base/config.hpp"
#include "tinyscale/base/error.hpp"

namespace tinyscale {

enum class CpuPath { portable, neon, avx2, avx512 };

inline const char* name_of(CpuPath path) {
  switch (path) {
    case CpuPath::portable: return "portable";
    case CpuPath::neon: return "neon";
    case CpuPath::avx2: return "avx2";
    case CpuPath::avx512: return "avx512";
  }
  return "?";
}

struct CpuInfo {
  CpuPath path = CpuPath::portable;  // what kernels use
  std::string name;                  // as the system calls it; may be empty
  bool neon = false;
  bool avx2 = false;
  bool fma = false;
  bool avx512f = false;
  bool avx512bw = false;
  bool avx512dq = false;
  bool avx512vl = false;
  std::string text;  // "name (path)"

  // avx2 stands for AVX2 with FMA, avx512 for F, BW, DQ and VL.
  bool has(CpuPath wanted) const {
    switch (wanted) {
      case CpuPath::portable: return true;
      case CpuPath::neon: return neon;
      case CpuPath::avx2: return avx2 && fma;
      case CpuPath::avx512: return avx2 && fma && avx512f && avx512bw && avx512dq && avx512vl;
    }
    return false;
  }
};

namespace detail {

// The text after "key : " in /proc/cpuinfo, for the first processor; empty when there is none.
inline std::string cpuinfo_value(const std::string& key) {
  std::FILE* file = std::fopen("/proc/cpuinfo", "r");
  if (file == nullptr) {
    return "";
  }
  std::string value;
  std::string line;
  for (int c = std::fgetc(file); c != EOF && value.empty(); c = std::fgetc(file)) {
    if (c != '\n') {
      line += static_cast<char>(c);
      continue;
    }
    const std::size_t colon = line.find(':');
    if (line.compare(0, key.size(), key) == 0 && colon != std::string::npos &&
        line.find_first_not_of(" \t", key.size()) == colon && colon + 2 <= line.size()) {
      value = line.substr(colon + 2);
    }
    line.clear();
  }
  std::fclose(file);
  return value;
}

inline CpuInfo detect_cpu() {
  CpuInfo info;
  info.name = cpuinfo_value("model name");
#if TINYSCALE_ARM64
  info.neon = true;
#elif TINYSCALE_X86 && TINYSCALE_INTERPRETER
  const std::string flags = " " + cpuinfo_value("flags") + " ";
  info.avx2 = flags.find(" avx2 ") != std::string::npos;
  info.fma = flags.find(" fma ") != std::string::npos;
  info.avx512f = flags.find(" avx512f ") != std::string::npos;
  info.avx512bw = flags.find(" avx512bw ") != std::string::npos;
  info.avx512dq = flags.find(" avx512dq ") != std::string::npos;
  info.avx512vl = flags.find(" avx512vl ") != std::string::npos;
#elif TINYSCALE_X86
  __builtin_cpu_init();
  info.avx2 = __builtin_cpu_supports("avx2") != 0;
  info.fma = __builtin_cpu_supports("fma") != 0;
  info.avx512f = __builtin_cpu_supports("avx512f") != 0;
  info.avx512bw = __builtin_cpu_supports("avx512bw") != 0;
  info.avx512dq = __builtin_cpu_supports("avx512dq") != 0;
  info.avx512vl = __builtin_cpu_supports("avx512vl") != 0;
#endif
  return info;
}

// Sets the path: the one that was asked for, or with an empty string the best there is.
inline CpuInfo choose_path(CpuInfo info, const std::string& wanted) {
  std::string available;
  bool found = false;
  for (const CpuPath path : {CpuPath::portable, CpuPath::neon, CpuPath::avx2, CpuPath::avx512}) {
    if (!info.has(path)) {
      continue;
    }
    available += (available.empty() ? "" : ", ") + std::string(name_of(path));
    if (wanted.empty() || wanted == name_of(path)) {
      info.path = path;
      found = true;
    }
  }
  if (!found) {
    throw Error(cat("TINYSCALE_CPU is \"", wanted, "\"; this processor has ", available));
  }
  info.text = (info.name.empty() ? "processor" : info.name) + " (" + name_of(info.path) + ")";
  return info;
}

}  // namespace detail

// This machine's processor; detected once.
inline const CpuInfo& cpu() {
  static const CpuInfo info =
      detail::choose_path(detail::detect_cpu(), detail::environment("TINYSCALE_CPU"));
  return info;
}

}  // namespace tinyscale
