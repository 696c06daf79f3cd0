#pragma once
// Which vector instructions this processor has, and the kernels' path that follows from it.
// Compiled programs ask the compiler's run-time library and cpuid; interpreted ones, which cannot
// link it, read the flags of /proc/cpuinfo. TINYSCALE_CPU=portable|neon|avx2|avx512 chooses a path.
// Units for low precision follow the path: vdpbf16ps (on AMD, where it does twice the work of an
// f32 multiply-add; on Intel it does half), vpdpbusd (VNNI), and AMX tiles when no path is forced.

#include <cstdint>
#include <cstdio>  // fopen, fgetc
#include <initializer_list>
#include <string>

#include "tinyscale/base/config.hpp"
#include "tinyscale/base/error.hpp"

// 1 where units for low precision can be reached: by assembler, which interpreters do without, and
// which beside g++ before 11 does not know their instructions.
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS && !TINYSCALE_INTERPRETER && \
    (defined(__clang__) || __GNUC__ >= 11)
#define TINYSCALE_X86_UNITS 1
#else
#define TINYSCALE_X86_UNITS 0
#endif

namespace tinyscale {

enum class CpuPath { portable, neon, avx2, avx512 };

inline const char* name_of(CpuPath path) {
  static const char* const names[] = {"portable", "neon", "avx2", "avx512"};
  return detail::name_in("CpuPath", names, path);
}

struct CpuInfo {
  CpuPath path = CpuPath::portable;  // what kernels use
  std::string name;                  // as the system calls it; may be empty
  bool neon = false;
  bool avx2 = false;
  bool fma = false;
  bool f16c = false;  // f16 to f32
  bool avx512f = false;
  bool avx512bw = false;
  bool avx512dq = false;
  bool avx512vl = false;
  bool avx_vnni = false;     // vpdpbusd on 32 bytes
  bool avx512_vnni = false;  // vpdpbusd on 64 bytes
  bool avx512_bf16 = false;
  bool amx_bf16 = false;  // with amx_tile, and the system lets this process use it
  bool amx_int8 = false;
  bool amd = false;
  std::int64_t l2_bytes =
      1 << 20;          // of a core's second cache; 1 MB where the processor is not asked
  bool forced = false;  // a path was asked for: no AMX
  std::string text;     // "name (path)", "name (path; bf16 vdpbf16ps; int8 vnni)"

  // avx2 stands for AVX2 with FMA and F16C, avx512 for F, BW, DQ and VL.
  bool has(CpuPath wanted) const {
    switch (wanted) {
      case CpuPath::portable: return true;
      case CpuPath::neon: return neon;
      case CpuPath::avx2: return avx2 && fma && f16c;
      case CpuPath::avx512:
        return avx2 && fma && f16c && avx512f && avx512bw && avx512dq && avx512vl;
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

#if TINYSCALE_X86 && !TINYSCALE_INTERPRETER
struct CpuidWords {
  std::uint32_t a, b, c, d;
};

inline CpuidWords cpuid(std::uint32_t leaf, std::uint32_t part) {
  CpuidWords w{leaf, 0, part, 0};
  asm volatile("cpuid" : "+a"(w.a), "=b"(w.b), "+c"(w.c), "=d"(w.d));
  return w;
}

// Linux gives a process the 8 KB of tile registers when it asks (arch_prctl, feature 18).
inline bool ask_for_tiles() {
#if defined(__linux__)
  long result = 158;
  asm volatile("syscall" : "+a"(result) : "D"(0x1023L), "S"(18L) : "rcx", "r11", "memory");
  return result == 0;
#else
  return false;
#endif
}

// Bytes of the second cache by the processor's list of caches, 0 where it has none.
inline std::int64_t second_cache(bool amd) {
  const std::uint32_t leaf = amd ? 0x8000001dU : 4U;
  if (cpuid(leaf & 0x80000000U, 0).a < leaf) {
    return 0;
  }
  for (std::uint32_t i = 0; i < 8; ++i) {
    const CpuidWords w = cpuid(leaf, i);
    if ((w.a & 31U) == 0) {
      break;
    }
    if ((w.a >> 5 & 7U) == 2) {
      return std::int64_t{1} * ((w.b >> 22) + 1) * ((w.b >> 12 & 1023U) + 1) * ((w.b & 4095U) + 1) *
             (std::int64_t{w.c} + 1);
    }
  }
  return 0;
}

inline void detect_low_precision(CpuInfo& info) {
  const CpuidWords vendor = cpuid(0, 0);
  info.amd = vendor.b == 0x68747541U;  // "Auth"enticAMD
  const std::int64_t l2 = second_cache(info.amd);
  info.l2_bytes = l2 > 0 ? l2 : info.l2_bytes;
  if (vendor.a < 7) {
    return;
  }
  const CpuidWords first = cpuid(7, 0);
  const CpuidWords second = first.a >= 1 ? cpuid(7, 1) : CpuidWords{0, 0, 0, 0};
  info.avx512_vnni = info.avx512f && (first.c >> 11 & 1U) != 0;
  info.avx_vnni = info.avx2 && (second.a >> 4 & 1U) != 0;
  info.avx512_bf16 = info.avx512f && (second.a >> 5 & 1U) != 0;
  const bool tiles = info.avx512f && (first.d >> 24 & 1U) != 0 && ask_for_tiles();
  info.amx_bf16 = tiles && (first.d >> 22 & 1U) != 0;
  info.amx_int8 = tiles && (first.d >> 25 & 1U) != 0;
}
#endif

inline CpuInfo detect_cpu() {
  CpuInfo info;
  info.name = cpuinfo_value("model name");
#if TINYSCALE_ARM64
  info.neon = true;
#elif TINYSCALE_X86 && TINYSCALE_INTERPRETER
  const std::string flags = " " + cpuinfo_value("flags") + " ";
  info.avx2 = flags.find(" avx2 ") != std::string::npos;
  info.fma = flags.find(" fma ") != std::string::npos;
  info.f16c = flags.find(" f16c ") != std::string::npos;
  info.avx512f = flags.find(" avx512f ") != std::string::npos;
  info.avx512bw = flags.find(" avx512bw ") != std::string::npos;
  info.avx512dq = flags.find(" avx512dq ") != std::string::npos;
  info.avx512vl = flags.find(" avx512vl ") != std::string::npos;
  info.avx_vnni = flags.find(" avx_vnni ") != std::string::npos;
  info.avx512_vnni = flags.find(" avx512_vnni ") != std::string::npos;
  info.avx512_bf16 = flags.find(" avx512_bf16 ") != std::string::npos;
  info.amd = cpuinfo_value("vendor_id") == "AuthenticAMD";
#elif TINYSCALE_X86
  __builtin_cpu_init();
  info.avx2 = __builtin_cpu_supports("avx2") != 0;
  info.fma = __builtin_cpu_supports("fma") != 0;
  info.f16c = (cpuid(1, 0).c >> 29 & 1U) != 0;
  info.avx512f = __builtin_cpu_supports("avx512f") != 0;
  info.avx512bw = __builtin_cpu_supports("avx512bw") != 0;
  info.avx512dq = __builtin_cpu_supports("avx512dq") != 0;
  info.avx512vl = __builtin_cpu_supports("avx512vl") != 0;
  detect_low_precision(info);
#endif
  return info;
}

// What low precision runs on, on that path; empty where it is widened to the path's own vectors, as
// in interpreters, which have no assembler.
inline const char* bf16_unit(const CpuInfo& info, CpuPath path) {
  if (path != CpuPath::avx512 || TINYSCALE_X86_UNITS == 0) {
    return "";
  }
  return info.amx_bf16 && !info.forced ? "amx" : info.avx512_bf16 && info.amd ? "vdpbf16ps" : "";
}

inline const char* int8_unit(const CpuInfo& info, CpuPath path) {
  if (TINYSCALE_X86_UNITS == 0) {
    return "";
  }
  if (path == CpuPath::avx512 && info.amx_int8 && !info.forced) {
    return "amx";
  }
  const bool vnni =
      path == CpuPath::avx512 ? info.avx512_vnni : path == CpuPath::avx2 && info.avx_vnni;
  return vnni ? "vnni" : "";
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
    fail({"TINYSCALE_CPU is \"", wanted, "\"; this processor has ", available});
  }
  info.forced = !wanted.empty();
  const std::string bf16 = bf16_unit(info, info.path);
  const std::string int8 = int8_unit(info, info.path);
  info.text = (info.name.empty() ? "processor" : info.name) + " (" + name_of(info.path) +
              (bf16.empty() ? "" : "; bf16 " + bf16) + (int8.empty() ? "" : "; int8 " + int8) + ")";
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
