// SPDX-License-Identifier: MIT
// Generated from src/ by `make header`: edit the parts, not this file.
//
// tinyscale: a laptop laboratory for machine-learning systems, in one C++17 header.
//
//   #include "tinyscale.hpp"          g++ -std=c++17 -O2 -pthread program.cpp
//
// This is the spine: it lists the parts in reading order, one floor after another, and a part
// includes only its own floor and floors below. With -Isrc a program compiles the parts, with -I.
// the joined file ../tinyscale.hpp, which `make header` writes from this list; both are the same.
//
// Letters used throughout: B batch, T time (positions), D model width, F hidden width, H heads,
// K head size (in a product: the inner size), L layers, V vocabulary, M K N sizes of a matmul.
//
// Contents: search for >> and a name to jump to that part.
//   tinyscale/base/config.hpp                The version, what the compiler and machine offer
//   tinyscale/base/error.hpp                 One exception type for everything that can go wrong
//   tinyscale/base/cpu.hpp                   Which vector instructions this processor has
//   tinyscale/base/pool.hpp                  Memory that is used again
//   tinyscale/base/list.hpp                  A growing array of the library's own structs
//   tinyscale/base/format.hpp                Number formats
//   tinyscale/base/order.hpp                 Sorting, queues and names once for all types
//   tinyscale/base/thread_scope.hpp          How many threads loops may use
//   tinyscale/base/threads.hpp               Host loops on several threads
//   tinyscale/base/random.hpp                Random numbers by counter
//   tinyscale/base/save_file.hpp             A file that appears whole or not at all
//   tinyscale/base/shared.hpp                A counted pointer
//   tinyscale/base/shape.hpp                 The sizes of a tensor, a machine or a grid
//   tinyscale/base/text.hpp                  Numbers as people read them, and tables that line up
//   tinyscale/measure/compare.hpp            Predicted beside counted
//   tinyscale/measure/memory.hpp             Memory in use, by what it is for
//   tinyscale/measure/context.hpp            Where an op's counts go
//   tinyscale/measure/counters.hpp           What an op costs
//   tinyscale/measure/hardware_counters.hpp  What the processor itself counts while a program
//   tinyscale/measure/profile.hpp            A profile
//   tinyscale/measure/quantity.hpp           A quantity that explains itself
//   tinyscale/hardware/chip.hpp              A chip
//   tinyscale/hardware/chip_table.hpp        A chip as a table
//   tinyscale/hardware/laptop_loops.hpp      Loops that do nothing but reach a limit of this
//   tinyscale/hardware/laptop.hpp            This machine as a chip
//   tinyscale/hardware/presets.hpp           Chip presets
//   tinyscale/hardware/network.hpp           A machine
//   tinyscale/hardware/roofline.hpp          The roofline
//   tinyscale/compute/lanes.hpp              Vector lanes without intrinsics
//   tinyscale/compute/transpose.hpp          Turning a matrix in memory
//   tinyscale/compute/lane_math.hpp          Functions of vector lanes
//   tinyscale/compute/elementwise.hpp        Element-wise kernels
//   tinyscale/compute/sums.hpp               Sums of floats gathered in double
//   tinyscale/compute/adamw.hpp              AdamW
//   tinyscale/compute/scratch.hpp            Scratch memory that kernels borrow from the free
//   tinyscale/compute/gemm_tile.hpp          Register tile of a matrix product
//   tinyscale/compute/gemm_check.hpp         What a matrix product is asked for
//   tinyscale/compute/gemm_short.hpp         Matrix product with a short A (decode
//   tinyscale/compute/gemm.hpp               Matrix product
//   tinyscale/compute/x86_units.hpp          The processor's units for low precision
//   tinyscale/compute/word_pack.hpp          Operands of low-precision products as words of 32
//   tinyscale/compute/gemm_words.hpp         Matrix products whose operands are words along k
//   tinyscale/compute/amx_tiles.hpp          Tiles
//   tinyscale/compute/gemm_bf16.hpp          Matrix product of bf16 numbers, summed in f32
//   tinyscale/compute/gemm_int8.hpp          Matrix product of int8 numbers, exact in int32
//   tinyscale/compute/gemv_quantized.hpp     Quantised weights W [N
//   tinyscale/compute/gemm_fused.hpp         What stands around a matrix product
//   tinyscale/compute/softmax.hpp            Softmax and cross-entropy by rows
//   tinyscale/compute/attention_product.hpp  Products of attention
//   tinyscale/compute/attention.hpp          Attention
//   tinyscale/compute/attention_backward.hpp Backward of attention
//   tinyscale/compute/linear_cross_entropy.hpp Cross-entropy fused with the matrix product before
//   tinyscale/compute/norm.hpp               Layer norm and RMS norm by rows
//   tinyscale/compute/rope.hpp               Rotary position embedding
//   tinyscale/tensor/storage.hpp             The numbers of a tensor
//   tinyscale/tensor/graph.hpp               The graph of ops behind a tensor
//   tinyscale/tensor/strides.hpp             Strides
//   tinyscale/tensor/tensor.hpp              A tensor
//   tinyscale/tensor/backward.hpp            Gradients
//   tinyscale/tensor/op_record.hpp           What an op costs
//   tinyscale/tensor/arithmetic.hpp          Elementwise arithmetic with broadcasting
//   tinyscale/tensor/activations.hpp         Functions of one element
//   tinyscale/tensor/create.hpp              Tensors from nothing
//   tinyscale/tensor/views.hpp               Moving numbers about
//   tinyscale/tensor/reduce.hpp              Sums, means, maxima and softmax
//   tinyscale/tensor/matmul.hpp              Matrix products
//   tinyscale/tensor/attend.hpp              Attention over keys and values (arXiv 1706.03762)
//   tinyscale/tensor/normalize.hpp           Layer norm (arXiv 1607.06450)
//   tinyscale/tensor/tokens.hpp              Where a model meets text
//   tinyscale/tensor/choose.hpp              Choosing numbers
//   tinyscale/tensor/einsum.hpp              Products by letters
//   tinyscale/systolic/array_report.hpp      What a run on a systolic array costs
//   tinyscale/systolic/array_schedule.hpp    When each fold shifts in, streams and leaves
//   tinyscale/systolic/array_timing.hpp      The ticks of a systolic array in closed form
//   tinyscale/systolic/array_operands.hpp    The operands of a product as the PEs read them
//   tinyscale/systolic/pe_step.hpp           One multiply-add of every PE in every tick of a
//   tinyscale/systolic/array_registers.hpp   The registers of an array of PEs
//   tinyscale/systolic/array_stepper.hpp     The array and its clock
//   tinyscale/systolic/systolic_array.hpp    A systolic array of R x C processing elements
//   tinyscale/systolic/sram_trace.hpp        Every word that an array reads from and writes to
//   tinyscale/systolic/wavefront.hpp         Which PE holds what in one tick
//   tinyscale/systolic/chip_schedule.hpp     How a product goes through a chip
//   tinyscale/systolic/chip_timing.hpp       What one product costs on a whole chip
//   tinyscale/systolic/chip_matmul.hpp       One product on a chip
//   tinyscale/systolic/on_chip.hpp           A program whose matrix products run on an emulated
//   tinyscale/systolic/tile_clock.hpp        The clock of a tile kernel, and its report
//   tinyscale/systolic/tile.hpp              What the body of a tile kernel sees
//   tinyscale/systolic/tile_kernel.hpp       A kernel written tile by tile
//   tinyscale/systolic/tile_kernels.hpp      Four tile kernels
//   tinyscale/mesh/fabric.hpp                Where the devices of a run meet
//   tinyscale/mesh/collective_cost.hpp       What a collective on one mesh axis costs
//   tinyscale/mesh/mesh_axis.hpp             Named mesh axes and where they lie on the machine
//   tinyscale/mesh/message_log.hpp           The log of a mesh run
//   tinyscale/mesh/endpoint.hpp              One device's side of the fabric
//   tinyscale/mesh/all_gather.hpp            all_gather
//   tinyscale/mesh/reduce_scatter.hpp        reduce_scatter
//   tinyscale/mesh/all_reduce.hpp            all_reduce
//   tinyscale/mesh/broadcast.hpp             broadcast
//   tinyscale/mesh/permute.hpp               permute
//   tinyscale/mesh/device.hpp                A device of a mesh
//   tinyscale/mesh/route.hpp                 The directed links of a machine
//   tinyscale/mesh/fair_links.hpp            Messages that share links
//   tinyscale/mesh/guess.hpp                 A learner's guess held against what a run counted
//   tinyscale/mesh/replay.hpp                Simulated time
//   tinyscale/mesh/mesh_run.hpp              What a mesh program cost
//   tinyscale/mesh/mesh.hpp                  A mesh
//   tinyscale/model/experts.hpp              Which expert each token visits
//   tinyscale/model/hooks.hpp                What surrounds a forward pass
//   tinyscale/model/model_config.hpp         The shape of a transformer
//   tinyscale/model/tokenizer.hpp            Text to token numbers and back
//   tinyscale/model/transformer.hpp          The transformer
//   tinyscale/model/forward.hpp              The transformer's forward pass
//   tinyscale/model/json.hpp                 A strict reader for the little JSON that files carry
//   tinyscale/model/read_text.hpp            A text to learn
//   tinyscale/model/safetensors.hpp          The safetensors format
//   tinyscale/model/checkpoint.hpp           A transformer in a file
//   tinyscale/model/data.hpp                 What a step learns from
//   tinyscale/model/generate.hpp             Text from a model, token by token
//   tinyscale/model/model_presets.hpp        Published architectures by name
//   tinyscale/model/optimizer.hpp            AdamW with decoupled weight decay on matrices alone
//   tinyscale/model/train_step.hpp           One step of training
//   tinyscale/model/training_memory.hpp      What training holds on one device
//   tinyscale/parallel/layout.hpp            A layout
//   tinyscale/parallel/train_report.hpp      What a training run says afterwards
//   tinyscale/parallel/train.hpp             ts::train for one device and many
//   tinyscale/plan/transformer_math.hpp      Transformer maths
//   tinyscale/plan/serving.hpp               What serving a model takes
//   tinyscale/plan/training_layout.hpp       Training layouts
//   tinyscale/plan/training.hpp              What a training run costs on a machine
//   tinyscale/show/svg.hpp                   A picture as text
//   tinyscale/show/html.hpp                  One self-contained page
//   tinyscale/show/display.hpp               A value shown where the reader is
//   tinyscale/show/heat_map.hpp              A matrix as coloured cells
//   tinyscale/show/plot.hpp                  Lines and points over two axes
//   tinyscale/show/pictures.hpp              The roofline and the loss curve
//   tinyscale/show/array_pictures.hpp        Pictures of a systolic array
//   tinyscale/show/report_pictures.hpp       Pictures of whole reports

#pragma once
#ifndef TINYSCALE_HPP
#define TINYSCALE_HPP

#ifdef TINYSCALE_EXTERN  // declarations only, for a program that links the library of `make lib`
#  include "tinyscale_extern.hpp"
#else  // the whole library

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <initializer_list>
#include <iostream>
#include <limits>
#include <mutex>
#include <new>
#include <ostream>
#include <sched.h>
#include <stdexcept>
#include <string>
#include <sys/stat.h>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

// >> tinyscale/base/config.hpp
// The version, what the compiler and machine offer, and every macro a user may set:
//   TINYSCALE_INTERPRETER  1 under cling or clang-repl: no processor symbols, no inline assembly
//   TINYSCALE_NO_THREADS   everything runs on the calling thread
//   TINYSCALE_USE_OPENMP   host loops use OpenMP (compile with -fopenmp)
// detail::environment is the one place where environment variables are read.

#define TINYSCALE_VERSION_MAJOR 0
#define TINYSCALE_VERSION_MINOR 1
#define TINYSCALE_VERSION_PATCH 0
#define TINYSCALE_VERSION "0.1.0"

#ifndef TINYSCALE_INTERPRETER
#if defined(__CLING__) || defined(__CLANG_REPL__)
#define TINYSCALE_INTERPRETER 1
#else
#define TINYSCALE_INTERPRETER 0
#endif
#endif

// Types such as float __attribute__((vector_size(32))).
#ifndef TINYSCALE_VECTOR_EXTENSIONS
#if defined(__GNUC__) || defined(__clang__)
#define TINYSCALE_VECTOR_EXTENSIONS 1
#else
#define TINYSCALE_VECTOR_EXTENSIONS 0
#endif
#endif

#ifndef TINYSCALE_X86
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define TINYSCALE_X86 1
#else
#define TINYSCALE_X86 0
#endif
#endif

#ifndef TINYSCALE_ARM64
#if defined(__aarch64__) && (defined(__GNUC__) || defined(__clang__))
#define TINYSCALE_ARM64 1
#else
#define TINYSCALE_ARM64 0
#endif
#endif

#if defined(__EMSCRIPTEN__) && !defined(__EMSCRIPTEN_PTHREADS__) && !defined(TINYSCALE_NO_THREADS)
#define TINYSCALE_NO_THREADS 1
#endif

// In the joined header every name lives in an inline namespace of version and features, as in
// tinyscale::v0_1_0_no_threads::Tensor: files compiled with different ones do not link.
#if defined(TINYSCALE_NO_THREADS)
#undef TINYSCALE_USE_OPENMP
#define TINYSCALE_ABI_FEATURES _no_threads
#elif defined(TINYSCALE_USE_OPENMP) && defined(_OPENMP)
#define TINYSCALE_ABI_FEATURES _openmp
#else
#define TINYSCALE_ABI_FEATURES
#endif
#define TINYSCALE_ABI_PASTE(major, minor, patch, features) v##major##_##minor##_##patch##features
#define TINYSCALE_ABI_NAME(major, minor, patch, features) \
  TINYSCALE_ABI_PASTE(major, minor, patch, features)
#define TINYSCALE_ABI                                                                           \
  TINYSCALE_ABI_NAME(TINYSCALE_VERSION_MAJOR, TINYSCALE_VERSION_MINOR, TINYSCALE_VERSION_PATCH, \
                     TINYSCALE_ABI_FEATURES)

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace detail {

// The value of an environment variable, empty when it is not set.
//   TINYSCALE_THREADS  threads that host loops use (default: what the hardware has)
//   TINYSCALE_CPU      portable, neon, avx2 or avx512: the kernels' path (default: the best)
inline std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/base/error.hpp
// One exception type for everything that can go wrong, and the way its sentence is joined:
//   detail::fail({"matmul: inner sizes differ: x is ", x.shape(), ", w is ", w.shape()});
// A message says the function, what was given, and what would be right.

namespace tinyscale { inline namespace TINYSCALE_ABI {

// What every function of this library throws.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
};

namespace detail {

// By bits: under -ffast-math the compiler takes std::isfinite for true and x != x for false.
inline std::uint64_t exponent_and_mantissa(double x) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
  return bits & 0x7fffffffffffffffU;
}
inline bool is_finite(double x) { return exponent_and_mantissa(x) < 0x7ff0000000000000U; }
inline bool is_nan(double x) { return exponent_and_mantissa(x) > 0x7ff0000000000000U; }

// What this program's locale (setlocale) writes between whole and tenths; "." unless it is set.
inline std::string decimal_point() {
  char half[16];
  const int length = std::snprintf(half, sizeof half, "%.1f", 0.5);
  return std::string(half + 1, static_cast<std::size_t>(length) - 2);
}

// printf's %.<digits>f for kind 'f', else %.<digits>g; a point in every locale, nan without sign.
inline std::string printed(char kind, int digits, double value) {
  char buffer[400];
  std::snprintf(buffer, sizeof buffer, kind == 'f' ? "%.*f" : "%.*g", digits, value);
  std::string out = is_nan(value) ? "nan" : buffer;
  const std::string point = decimal_point();
  const std::size_t at = out.find(point);
  return at == std::string::npos ? out : out.replace(at, point.size(), ".");
}

// One part of a sentence: its value or where it is, and how it is written. A list of them costs the
// caller a few stores and one call, where joining strings in place costs each of the user's
// compiles. A type of this library joins in by a function append_text(std::string&, const Type&)
// beside it.
class Piece {
 public:
  Piece(const char* text)
      : Piece(text,
              [](std::string& out, const Piece& p) { out += static_cast<const char*>(p.at_); }) {}
  Piece(char* text) : Piece(static_cast<const char*>(text)) {}
  Piece(const std::string& text)
      : Piece(&text, [](std::string& out, const Piece& p) {
          out += *static_cast<const std::string*>(p.at_);
        }) {}
  template <class T>
  Piece(const T& value)
      : Piece(&value, [](std::string& out, const Piece& p) {
          append_text(out, *static_cast<const T*>(p.at_));
        }) {}
  Piece(char one) : write_(letter), whole_(one) {}
  Piece(int value) : write_(whole), whole_(value) {}
  Piece(long value) : write_(whole), whole_(value) {}
  Piece(long long value) : write_(whole), whole_(value) {}
  Piece(unsigned value) : write_(natural), natural_(value) {}
  Piece(unsigned long value) : write_(natural), natural_(value) {}
  Piece(unsigned long long value) : write_(natural), natural_(value) {}
  Piece(float value) : Piece(static_cast<double>(value)) {}
  Piece(double value) : write_(real), real_(value) {}

  void append_to(std::string& out) const { write_(out, *this); }

 private:
  using Write = void (*)(std::string& out, const Piece& piece);
  Piece(const void* at, Write write) : write_(write), at_(at) {}

  static void letter(std::string& out, const Piece& p) { out += static_cast<char>(p.whole_); }
  static void whole(std::string& out, const Piece& p) { out += std::to_string(p.whole_); }
  static void natural(std::string& out, const Piece& p) { out += std::to_string(p.natural_); }
  // At most nine significant digits, no trailing zeros: 0.1, 1e+30, 197000000.
  static void real(std::string& out, const Piece& p) { out += printed('g', 9, p.real_); }

  Write write_;
  union {
    const void* at_;
    long long whole_;
    unsigned long long natural_;
    double real_;
  };
};

[[gnu::noinline]] inline std::string join(std::initializer_list<Piece> pieces) {
  std::string out;
  for (const Piece& piece : pieces) {
    piece.append_to(out);
  }
  return out;
}

// Joins strings, characters, integers, floating point numbers and shapes into one string.
template <class... Parts>
std::string cat(const Parts&... parts) {
  return join({parts...});
}

// Throws the sentence as an Error.
[[noreturn, gnu::cold, gnu::noinline]] inline void fail(std::initializer_list<Piece> sentence) {
  throw Error(join(sentence));
}

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/base/cpu.hpp
// Which vector instructions this processor has, and the kernels' path that follows from it.
// Compiled programs ask the compiler's run-time library and cpuid; interpreted ones, which cannot
// link it, read the flags of /proc/cpuinfo. TINYSCALE_CPU=portable|neon|avx2|avx512 chooses a path.
// Units for low precision follow the path: vdpbf16ps (on AMD, where it does twice the work of an
// f32 multiply-add; on Intel it does half), vpdpbusd (VNNI), and AMX tiles when no path is forced.

// 1 where units for low precision can be reached: by assembler, which interpreters do without.
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS && !TINYSCALE_INTERPRETER
#define TINYSCALE_X86_UNITS 1
#else
#define TINYSCALE_X86_UNITS 0
#endif

namespace tinyscale { inline namespace TINYSCALE_ABI {

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
  bool avx_vnni = false;     // vpdpbusd on 32 bytes
  bool avx512_vnni = false;  // vpdpbusd on 64 bytes
  bool avx512_bf16 = false;
  bool amx_bf16 = false;  // with amx_tile, and the system lets this process use it
  bool amx_int8 = false;
  bool amd = false;
  bool forced = false;  // a path was asked for: no AMX
  std::string text;     // "name (path)", "name (path; bf16 vdpbf16ps; int8 vnni)"

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

inline void detect_low_precision(CpuInfo& info) {
  const CpuidWords vendor = cpuid(0, 0);
  info.amd = vendor.b == 0x68747541U;  // "Auth"enticAMD
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

}}  // namespace tinyscale

// >> tinyscale/base/pool.hpp
// Memory that is used again: blocks by size, on free lists that all threads share, so that a step
// of training that repeats the last one asks the system for nothing. No thread owns a block.
// Free blocks are at most as many bytes as were ever in use at once, and 64 MiB: beyond that all
// go back to the system. Under a sanitizer every block comes from the system and returns there.

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(memory_sanitizer)
#define TINYSCALE_POOL 0
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define TINYSCALE_POOL 0
#endif
#ifndef TINYSCALE_POOL
#define TINYSCALE_POOL 1
#endif

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace detail {

// All blocks are 64-byte aligned. Up to 1 KiB their sizes are multiples of 64, above that 64 bytes
// more than 4, 5, 6 or 7 times a power of two, so that a header and a round size fit.
class Pool {
 public:
  // Null when the system has no memory left.
  void* take(std::size_t bytes) {
    const SizeClass size = size_class(bytes);
    Bin& bin = bins_[size.bin];
    lock(bin);
    FreeBlock* const block = bin.first;
    if (block != nullptr) {
      bin.first = block->next;
    }
    bin.busy.store(false, std::memory_order_release);
    if (size.bytes >= counted) {
      count_taken(size.bytes, block == nullptr);
    }
    return block != nullptr ? block : from_system(size.bytes);
  }

  // `bytes` as they were asked for.
  void give(void* memory, std::size_t bytes) {
    const SizeClass size = size_class(bytes);
    if (size.bytes >= counted) {
      live_.fetch_sub(size.bytes, std::memory_order_relaxed);
      free_.fetch_add(size.bytes, std::memory_order_relaxed);
    }
    FreeBlock* const block = new (memory) FreeBlock;
    Bin& bin = bins_[size.bin];
    lock(bin);
    block->next = bin.first;
    bin.first = block;
    bin.busy.store(false, std::memory_order_release);
  }

  // Every free block goes back to the system.
  void release() {
    for (std::size_t i = 0; i < bins; ++i) {
      lock(bins_[i]);
      FreeBlock* block = bins_[i].first;
      bins_[i].first = nullptr;
      bins_[i].busy.store(false, std::memory_order_release);
      const std::size_t bytes = bin_bytes(i);
      while (block != nullptr) {
        FreeBlock* const next = block->next;
        ::operator delete(block, std::align_val_t(64));
        free_.fetch_sub(bytes >= counted ? bytes : 0, std::memory_order_relaxed);
        block = next;
      }
    }
  }

 private:
  static constexpr std::size_t counted = 4096;  // smaller blocks are not worth counting
  static constexpr std::size_t bins = 16 + 4 * 60;
  struct FreeBlock {
    FreeBlock* next = nullptr;
  };
  struct Bin {
    std::atomic<bool> busy{false};
    FreeBlock* first = nullptr;  // guarded by busy
  };
  struct SizeClass {
    std::size_t bin, bytes;
  };

  static void lock(Bin& bin) {
    while (bin.busy.exchange(true, std::memory_order_acquire)) {
      std::this_thread::yield();
    }
  }

  static std::size_t bin_bytes(std::size_t bin) {
    return bin < 16 ? 64 * (bin + 1) : 64 * ((4 + bin % 4) * (std::size_t{4} << (bin / 4 - 4)) + 1);
  }
  static SizeClass size_class(std::size_t bytes) {
    const std::size_t lines = bytes / 64 + (bytes % 64 != 0 || bytes == 0 ? 1 : 0);
    if (lines <= 16) {
      return {lines - 1, 64 * lines};
    }
    std::size_t k = 4;  // 2^k < round size <= 2^(k + 1), in lines
    while ((lines - 2) >> (k + 1) != 0) {
      ++k;
    }
    const std::size_t step = std::size_t{1} << (k - 2);
    const std::size_t j = (lines - 2 - 3 * step) / step;  // 0 to 4
    const std::size_t bin = 16 + 4 * (k - 4) + j;
    return {bin, bin_bytes(bin)};
  }

  void count_taken(std::size_t bytes, bool made) {
    const std::size_t live = live_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    std::size_t peak = peak_.load(std::memory_order_relaxed);
    while (live > peak && !peak_.compare_exchange_weak(peak, live, std::memory_order_relaxed)) {
    }
    if (!made) {
      free_.fetch_sub(bytes, std::memory_order_relaxed);
    } else if (free_.load(std::memory_order_relaxed) > peak + (std::size_t{64} << 20)) {
      release();
    }
  }

  void* from_system(std::size_t bytes) {
    void* memory = ::operator new(bytes, std::align_val_t(64), std::nothrow);
    if (memory == nullptr) {
      release();
      memory = ::operator new(bytes, std::align_val_t(64), std::nothrow);
    }
    if (memory == nullptr && bytes >= counted) {
      live_.fetch_sub(bytes, std::memory_order_relaxed);
    }
    return memory;
  }

  Bin bins_[bins];
  std::atomic<std::size_t> live_{0}, free_{0}, peak_{0};  // bytes of counted blocks
};

// Never destroyed: tensors may outlive every other static object.
inline Pool& pool() {
  static Pool all;
  return all;
}

// Memory for `n` things of `size` bytes, 64-byte aligned; give it back with the same numbers. More
// than a terabyte is not asked for: some allocators would end the program.
[[gnu::noinline]] inline void* pool_take(std::size_t n, std::size_t size) {
  if (n > (std::size_t{1} << 40) / size) {
    throw std::bad_alloc();
  }
#if TINYSCALE_POOL
  void* const memory = pool().take(n * size);
#else
  void* const memory = ::operator new(n* size, std::align_val_t(64), std::nothrow);
#endif
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}

[[gnu::noinline]] inline void pool_give(void* memory, std::size_t n, std::size_t size) {
#if TINYSCALE_POOL
  pool().give(memory, n * size);
#else
  static_cast<void>(n * size);
  ::operator delete(memory, std::align_val_t(64));
#endif
}

}  // namespace detail

// Gives memory that is kept for reuse back to the system.
inline void release_memory() { detail::pool().release(); }

}}  // namespace tinyscale

// >> tinyscale/base/list.hpp
// A growing array of the library's own structs: the rows of a report, links, messages. Numbers and
// strings stay in std::vector. It is here for what a user waits for: every struct type put into a
// std::vector costs each of the user's compiles 4 to 8 ms, in a List a tenth of that.

namespace tinyscale { inline namespace TINYSCALE_ABI {

namespace detail {

// What a List is without its type.
class ListHead {
 public:
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 protected:
  ListHead() = default;
  ListHead(void* items, std::size_t size) : items_(items), size_(size), capacity_(size) {}
  void swap_heads(ListHead& other) noexcept {
    const ListHead own = *this;
    *this = other;
    other = own;
  }
  void check(std::size_t i) const {
#if defined(_GLIBCXX_ASSERTIONS)
    __glibcxx_assert(i < size_);
#else
    static_cast<void>(i);
#endif
  }

  void* items_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace detail

// The used part of std::vector, with its names. T has a default value: places past the end hold it.
template <class T>
class List : public detail::ListHead {
 public:
  using value_type = T;
  using size_type = std::size_t;
  using iterator = T*;
  using const_iterator = const T*;

  List() = default;
  explicit List(std::size_t n) : ListHead(n > 0 ? make(n) : nullptr, n) {}
  List(std::initializer_list<T> items) : List() { append(items.begin(), items.size()); }
  List(const List& other) : List() { append(other.begin(), other.size_); }
  List(List&& other) noexcept { swap_heads(other); }
  ~List() {
    if (items_ != nullptr) {
      for (std::size_t i = capacity_; i > 0; --i) {
        data()[i - 1].~T();
      }
      detail::pool_give(items_, capacity_, sizeof(T));
    }
  }
  List& operator=(List other) noexcept {
    swap_heads(other);
    return *this;
  }

  // A program may keep its own rows in a std::vector.
  template <class A>
  List(const std::vector<T, A>& other) : List() {
    append(other.data(), other.size());
  }
  template <class A>
  operator std::vector<T, A>() const {
    return std::vector<T, A>(begin(), end());
  }

  T* data() { return static_cast<T*>(items_); }
  const T* data() const { return static_cast<const T*>(items_); }
  T* begin() { return static_cast<T*>(items_); }
  const T* begin() const { return static_cast<const T*>(items_); }
  T* end() { return static_cast<T*>(items_) + size_; }
  const T* end() const { return static_cast<const T*>(items_) + size_; }
  T& operator[](std::size_t i) {
    check(i);
    return static_cast<T*>(items_)[i];
  }
  const T& operator[](std::size_t i) const {
    check(i);
    return static_cast<const T*>(items_)[i];
  }
  T& front() { return (*this)[0]; }
  const T& front() const { return (*this)[0]; }
  T& back() { return (*this)[size_ - 1]; }
  const T& back() const { return (*this)[size_ - 1]; }

  void push_back(T item) {  // by value: the item may be one of this list
    if (size_ == capacity_) {
      reserve(size_ < 4 ? 4 : 2 * size_);
    }
    static_cast<T*>(items_)[size_] = static_cast<T&&>(item);
    ++size_;
  }
  void pop_back() { resize(size_ - 1); }
  void resize(std::size_t n) {
    reserve(n);
    for (; size_ > n; --size_) {
      static_cast<T*>(items_)[size_ - 1] = T();
    }
    size_ = n;
  }
  void clear() { resize(0); }
  void reserve(std::size_t capacity) {
    if (capacity > capacity_) {
      List larger(capacity);
      for (std::size_t i = 0; i < size_; ++i) {
        static_cast<T*>(larger.items_)[i] = static_cast<T&&>(static_cast<T*>(items_)[i]);
      }
      larger.size_ = size_;
      swap_heads(larger);
    }
  }
  void assign(std::size_t n, const T& item) {
    List filled(n);
    for (T& each : filled) {
      each = T(item);
    }
    swap_heads(filled);
  }
  void swap(List& other) noexcept { swap_heads(other); }

 private:
  static T* make(std::size_t n) {
    static_assert(alignof(T) <= 64, "as far as the pool aligns");
    T* const items = static_cast<T*>(detail::pool_take(n, sizeof(T)));
    for (std::size_t i = 0; i < n; ++i) {
      new (items + i) T();
    }
    return items;
  }
  void append(const T* items, std::size_t n) {
    reserve(size_ + n);
    for (std::size_t i = 0; i < n; ++i) {
      static_cast<T*>(items_)[size_] = T(items[i]);  // no copy assignment is compiled
      ++size_;
    }
  }
};

}}  // namespace tinyscale

// >> tinyscale/base/format.hpp
// Number formats: how many bytes an element takes, and rounding a float to each of them.
//   value = (-1)^sign * 1.mantissa * 2^(exponent - bias), without the leading 1 when exponent is 0
//   format  exponent, mantissa bits   largest    source
//   bf16        8, 7                  3.39e38    the upper half of an f32
//   f16         5, 10                 65504      IEEE 754
//   fp8_e4m3    4, 3                  448        OCP 8-bit floating point 1.0 (no infinity)
//   fp8_e5m2    5, 2                  57344      OCP 8-bit floating point 1.0

namespace tinyscale { inline namespace TINYSCALE_ABI {

enum class DType { f64, f32, bf16, f16, fp8_e4m3, fp8_e5m2, int32, int8, int4 };

// Bytes of one element; half a byte for int4.
inline double bytes_of(DType format) {
  switch (format) {
    case DType::f64: return 8;
    case DType::f32:
    case DType::int32: return 4;
    case DType::bf16:
    case DType::f16: return 2;
    case DType::fp8_e4m3:
    case DType::fp8_e5m2:
    case DType::int8: return 1;
    case DType::int4: return 0.5;
  }
  return 0;
}

inline const char* name_of(DType format) {
  switch (format) {
    case DType::f64: return "f64";
    case DType::f32: return "f32";
    case DType::bf16: return "bf16";
    case DType::f16: return "f16";
    case DType::fp8_e4m3: return "fp8_e4m3";
    case DType::fp8_e5m2: return "fp8_e5m2";
    case DType::int32: return "int32";
    case DType::int8: return "int8";
    case DType::int4: return "int4";
  }
  return "?";
}

inline void append_text(std::string& out, DType format) { out += name_of(format); }

// The format of that name; throws and lists the names when there is none.
inline DType dtype(const std::string& name) {
  std::string names;
  for (int i = 0; i <= static_cast<int>(DType::int4); ++i) {
    const DType format = static_cast<DType>(i);
    if (name == name_of(format)) {
      return format;
    }
    names += (i > 0 ? ", " : "") + std::string(name_of(format));
  }
  detail::fail({"dtype: no format \"", name, "\"; there are ", names});
}

namespace detail {

inline std::uint32_t bits_of(float x) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline float float_of(std::uint32_t bits) {
  float x = 0;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// A format below 32 bits, by its codes without the sign.
struct SmallFloat {
  int exponent_bits;
  int mantissa_bits;
  std::uint32_t largest;   // code of the largest finite value
  std::uint32_t overflow;  // code of what is larger: infinity, or NaN where there is none
  std::uint32_t nan;
};

inline SmallFloat small_f16() { return {5, 10, 0x7bff, 0x7c00, 0x7e00}; }
inline SmallFloat small_e4m3() { return {4, 3, 0x7e, 0x7f, 0x7f}; }
inline SmallFloat small_e5m2() { return {5, 2, 0x7b, 0x7c, 0x7e}; }
inline SmallFloat saturated(SmallFloat f) {
  f.overflow = f.largest;
  return f;
}

// Rounds to nearest, ties to even; returns the code with its sign.
inline std::uint32_t encode(float x, const SmallFloat& f) {
  const std::uint32_t bits = bits_of(x);
  const std::uint32_t sign = (bits >> 31) << (f.exponent_bits + f.mantissa_bits);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) {
    return sign | f.nan;
  }
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(magnitude >> 23) - 127 + bias;  // in the small format
  int shift = 23 - f.mantissa_bits;
  std::uint32_t code = 0;
  if (exponent >= 1) {
    code = static_cast<std::uint32_t>(exponent - 1) << f.mantissa_bits;
  } else {
    shift += 1 - exponent;  // below the smallest normal value: fewer mantissa bits
  }
  if (shift > 24 || magnitude < 0x00800000U) {
    return sign;  // less than half of the smallest value
  }
  const std::uint32_t mantissa = (magnitude & 0x007fffffU) | 0x00800000U;
  const std::uint32_t half = 1U << (shift - 1);
  const std::uint32_t rest = mantissa & ((1U << shift) - 1);
  std::uint32_t kept = mantissa >> shift;
  kept += (rest > half || (rest == half && (kept & 1U) != 0)) ? 1U : 0U;
  code += kept;  // a carry moves into the exponent, which is what rounding up means
  return sign | (code > f.largest ? f.overflow : code);
}

inline float decode(std::uint32_t code, const SmallFloat& f) {
  const std::uint32_t magnitude = code & ((1U << (f.exponent_bits + f.mantissa_bits)) - 1);
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(magnitude >> f.mantissa_bits);
  const std::uint32_t mantissa = magnitude & ((1U << f.mantissa_bits) - 1);
  float value = 0;
  if (magnitude > f.largest) {
    value = magnitude == f.overflow && f.overflow != f.nan
                ? std::numeric_limits<float>::infinity()
                : std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<float>(mantissa), 1 - bias - f.mantissa_bits);
  } else {
    const float one_and_mantissa = static_cast<float>(mantissa + (1U << f.mantissa_bits));
    value = std::ldexp(one_and_mantissa, exponent - bias - f.mantissa_bits);
  }
  return (code >> (f.exponent_bits + f.mantissa_bits)) != 0 ? -value : value;
}

}  // namespace detail

inline std::uint16_t to_bf16(float x) {
  std::uint32_t bits = detail::bits_of(x);
  if ((bits & 0x7fffffffU) > 0x7f800000U) {
    return static_cast<std::uint16_t>((bits >> 16) | 0x0040U);  // stays a NaN
  }
  bits += 0x7fffU + ((bits >> 16) & 1U);  // to nearest, ties to even
  return static_cast<std::uint16_t>(bits >> 16);
}
inline float from_bf16(std::uint16_t code) {
  return detail::float_of(static_cast<std::uint32_t>(code) << 16);
}

inline std::uint16_t to_f16(float x) {
  return static_cast<std::uint16_t>(detail::encode(x, detail::small_f16()));
}
inline float from_f16(std::uint16_t code) { return detail::decode(code, detail::small_f16()); }

// Beyond 448: NaN, or +-448 when saturated.
inline std::uint8_t to_fp8_e4m3(float x) {
  return static_cast<std::uint8_t>(detail::encode(x, detail::small_e4m3()));
}
inline std::uint8_t to_fp8_e4m3_saturated(float x) {
  return static_cast<std::uint8_t>(detail::encode(x, detail::saturated(detail::small_e4m3())));
}
inline float from_fp8_e4m3(std::uint8_t code) { return detail::decode(code, detail::small_e4m3()); }

// Beyond 57344: infinity, or +-57344 when saturated.
inline std::uint8_t to_fp8_e5m2(float x) {
  return static_cast<std::uint8_t>(detail::encode(x, detail::small_e5m2()));
}
inline std::uint8_t to_fp8_e5m2_saturated(float x) {
  return static_cast<std::uint8_t>(detail::encode(x, detail::saturated(detail::small_e5m2())));
}
inline float from_fp8_e5m2(std::uint8_t code) { return detail::decode(code, detail::small_e5m2()); }

// Integers with one scale for all: x ~ values * scale, scale = max|x| / 127.
struct Int8Values {
  List<std::int8_t> values;
  float scale = 1;
};

inline Int8Values to_int8(const std::vector<float>& x) {
  float largest = 0;
  for (const float value : x) {
    if (!detail::is_finite(double{value})) {
      detail::fail({"to_int8: a value is ", double{value}, "; values must be finite"});
    }
    largest = std::fmax(largest, std::fabs(value));
  }
  Int8Values out;
  out.scale = largest / 127.0F;
  out.scale = out.scale > 0 ? out.scale : 1.0F;
  out.values.reserve(x.size());
  for (const float value : x) {
    const float scaled = std::fmin(std::fmax(value / out.scale, -127.0F), 127.0F);
    out.values.push_back(static_cast<std::int8_t>(std::nearbyint(scaled)));
  }
  return out;
}

inline std::vector<float> from_int8(const Int8Values& x) {
  std::vector<float> out(x.values.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<float>(x.values[i]) * x.scale;
  }
  return out;
}

namespace detail {
inline float round_between(float x, float low, float high) {
  return std::fmin(std::fmax(std::nearbyint(x), low), high);
}
}  // namespace detail

// The nearest value of that format, as a float. f32 and f64 leave it; integers round and saturate.
inline float round_to(float x, DType format) {
  switch (format) {
    case DType::f64:
    case DType::f32: return x;
    case DType::bf16: return from_bf16(to_bf16(x));
    case DType::f16: return from_f16(to_f16(x));
    case DType::fp8_e4m3: return from_fp8_e4m3(to_fp8_e4m3(x));
    case DType::fp8_e5m2: return from_fp8_e5m2(to_fp8_e5m2(x));
    case DType::int32: return detail::round_between(x, -2147483648.0F, 2147483520.0F);
    case DType::int8: return detail::round_between(x, -128.0F, 127.0F);
    case DType::int4: return detail::round_between(x, -8.0F, 7.0F);
  }
  return x;
}

}}  // namespace tinyscale

// >> tinyscale/base/order.hpp
// Sorting, queues and names once for all types: the order of numbers, which the caller applies to
// its rows. The standard library's own cost the compiler a hundredth of a second for every type.

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace detail {

// The indices of `keys`, the smallest key first, equal ones in their order (a merge sort).
inline std::vector<std::size_t> stable_order(const std::vector<double>& keys) {
  const std::size_t n = keys.size();
  std::vector<std::size_t> order(n), merged(n);
  for (std::size_t i = 0; i < n; ++i) {
    order[i] = i;
  }
  for (std::size_t run = 1; run < n; run *= 2) {
    for (std::size_t begin = 0; begin < n; begin += 2 * run) {
      const std::size_t middle = begin + run < n ? begin + run : n;
      const std::size_t end = middle + run < n ? middle + run : n;
      std::size_t a = begin;
      std::size_t b = middle;
      for (std::size_t i = begin; i < end; ++i) {
        const bool second = a == middle || (b < end && keys[order[b]] < keys[order[a]]);
        merged[i] = second ? order[b++] : order[a++];
      }
    }
    order.swap(merged);
  }
  return order;
}

// What happens next: the entry of the smallest key, of equal ones the smallest item (a heap).
class EventQueue {
 public:
  struct Entry {
    double key = 0;
    std::size_t item = 0;
    int tag = 0;

    bool before(const Entry& other) const {
      return key < other.key || (!(other.key < key) && item < other.item);
    }
  };

  bool empty() const { return heap_.empty(); }
  const Entry& first() const { return heap_[0]; }

  void push(const Entry& entry) {
    std::size_t at = heap_.size();
    heap_.push_back(entry);
    for (; at > 0 && entry.before(heap_[(at - 1) / 2]); at = (at - 1) / 2) {
      heap_[at] = heap_[(at - 1) / 2];
    }
    heap_[at] = entry;
  }

  Entry pop() {
    const Entry top = heap_[0];
    const Entry last = heap_.back();
    heap_.pop_back();
    const std::size_t n = heap_.size();
    std::size_t at = 0;
    for (std::size_t child = 1; child < n; child = 2 * at + 1) {
      child += child + 1 < n && heap_[child + 1].before(heap_[child]) ? 1U : 0U;
      if (!heap_[child].before(last)) {
        break;
      }
      heap_[at] = heap_[child];
      at = child;
    }
    if (n > 0) {
      heap_[at] = last;
    }
    return top;
  }

 private:
  List<Entry> heap_;
};

// A number for each of many names, in the order in which they came (a hash table).
class NameTable {
 public:
  struct Entry {
    std::string name;
    int number = 0;
  };

  std::size_t size() const { return entries_.size(); }
  const Entry* begin() const { return entries_.begin(); }
  const Entry* end() const { return entries_.end(); }
  bool has(const std::string& name) const { return size() > 0 && slots_[slot(name)] > 0; }

  // The number of that name; a new one begins at 0.
  int& operator[](const std::string& name) {
    if (2 * size() >= slots_.size()) {
      slots_.assign(4 * size() + 16, 0);
      for (std::size_t i = 0; i < size(); ++i) {
        slots_[slot(entries_[i].name)] = i + 1;
      }
    }
    std::size_t& place = slots_[slot(name)];
    if (place == 0) {
      entries_.push_back({name, 0});
      place = size();
    }
    return entries_[place - 1].number;
  }

 private:
  // Where the name stands or would stand.
  std::size_t slot(const std::string& name) const {
    std::size_t hash = 5381;
    for (const char c : name) {
      hash = hash * 33 + static_cast<unsigned char>(c);
    }
    std::size_t at = hash % slots_.size();
    while (slots_[at] > 0 && entries_[slots_[at] - 1].name != name) {
      at = (at + 1) % slots_.size();
    }
    return at;
  }

  List<Entry> entries_;
  std::vector<std::size_t> slots_;  // place in entries_ + 1, or 0
};

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/base/thread_scope.hpp
// How many threads loops may use, and the threads themselves.
// thread_count() is TINYSCALE_THREADS or what the hardware runs at once; a ThreadScope changes it
// for the thread that makes it. Results do not depend on it. TINYSCALE_NO_THREADS: always 1.

#if defined(__linux__)
#endif

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace detail {

// "1".."1024"; throws on anything else.
inline int parse_thread_count(const std::string& text) {
  int count = 0;
  for (const char c : text) {
    count = (c >= '0' && c <= '9' && count >= 0 && count <= 1024) ? count * 10 + (c - '0') : -1;
  }
  if (count < 1 || count > 1024) {
    fail({"TINYSCALE_THREADS is \"", text, "\"; it must be a number from 1 to 1024"});
  }
  return count;
}

// What the innermost ThreadScope of this thread allows; 0: there is none.
inline int& thread_limit() {
  static thread_local struct { int count; } own;
  return own.count;
}

// Threads of the program: TINYSCALE_THREADS, or as many as the hardware runs at once.
inline int program_threads() {
  static const int count = [] {
    const std::string wanted = environment("TINYSCALE_THREADS");
    const unsigned hardware = std::thread::hardware_concurrency();
    return wanted.empty() ? static_cast<int>(std::min(std::max(hardware, 1U), 1024U))
                          : parse_thread_count(wanted);
  }();
  return count;
}

}  // namespace detail

// Threads that parallel_for may use here, the caller included.
inline int thread_count() {
#if defined(TINYSCALE_NO_THREADS)
  return 1;
#else
  return detail::thread_limit() > 0 ? detail::thread_limit() : detail::program_threads();
#endif
}

// While one is alive, loops of the thread that made it run on so many threads, fewer or more than
// the program has otherwise. Inside another scope: on no more than that one allows.
class ThreadScope {
 public:
  explicit ThreadScope(int threads) : before_(detail::thread_limit()) {
    if (threads < 1 || threads > 1024) {
      detail::fail({"ThreadScope: ", threads, " threads; 1 to 1024 are right"});
    }
    detail::thread_limit() = before_ > 0 ? std::min(before_, threads) : threads;
  }
  ~ThreadScope() { detail::thread_limit() = before_; }
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

 private:
  int before_;
};

namespace detail {

struct SerialScope {  // loops stay on their thread
  const ThreadScope one{1};
};

// Threads that are joined together, also when an exception leaves.
class ThreadGroup {
 public:
  ThreadGroup() = default;
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;
  ~ThreadGroup() { join(); }

  std::size_t size() const { return threads_.size(); }
  // Throws std::system_error when the system gives no more threads.
  void start(void (*body)(void* argument), void* argument) {
    threads_.push_back(std::thread());
    threads_.back() = std::thread(body, argument);
  }
  void join() {
    for (std::thread& thread : threads_) {
      if (thread.joinable()) {
        thread.join();
      }
    }
    threads_.clear();
  }

 private:
  List<std::thread> threads_;
};

inline void cpu_relax() {
#if TINYSCALE_X86
  __builtin_ia32_pause();
#endif
}

// The processor that this thread is on; -1 where the system does not say.
inline int current_processor() {
#if defined(CPU_SETSIZE) && !TINYSCALE_INTERPRETER
  return sched_getcpu();
#else
  return -1;
#endif
}

// Moves this thread to another processor, if it may use one. Linux often wakes a worker where its
// caller runs; there they would yield to each other for ever, and two be as slow as one.
inline void leave_processor(int processor) {
#if defined(CPU_SETSIZE) && !TINYSCALE_INTERPRETER
  cpu_set_t all, others;
  if (processor >= 0 && processor < CPU_SETSIZE && sched_getaffinity(0, sizeof(all), &all) == 0) {
    others = all;
    CPU_CLR(static_cast<std::size_t>(processor), &others);
    if (sched_setaffinity(0, sizeof(others), &others) == 0) {
      sched_setaffinity(0, sizeof(all), &all);
    }
  }
#else
  static_cast<void>(processor);
#endif
}

// Where a sleeping thread wakes: not on the processor of who wakes it. Linux often puts it there,
// and moves it only after some milliseconds; meanwhile two threads are as slow as one.
class WakePlace {
 public:
#if defined(CPU_SETSIZE) && defined(__GLIBC__) && !TINYSCALE_INTERPRETER
  void keep_off(int processor) {  // called by who wakes it
    if (processor >= 0 && processor < CPU_SETSIZE && !moved_ &&
        pthread_getaffinity_np(thread_, sizeof(allowed_), &allowed_) == 0) {
      cpu_set_t others = allowed_;
      CPU_CLR(static_cast<std::size_t>(processor), &others);
      moved_ = pthread_setaffinity_np(thread_, sizeof(others), &others) == 0;
    }
  }
  void restore() {  // called by the thread itself, awake
    if (moved_) {
      moved_ = false;
      pthread_setaffinity_np(thread_, sizeof(allowed_), &allowed_);
    }
  }

 private:
  const pthread_t thread_ = pthread_self();
  cpu_set_t allowed_;
  bool moved_ = false;
#else
  void keep_off(int) {}
  void restore() {}
#endif
};

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/base/threads.hpp
// Host loops on several threads: parallel_for(n, grain, body) hands out chunks of [0, n).
// One pool for the program; its workers start when a loop first asks for them and end with it.
// Whoever is free takes the next chunk; a wait is a short spin, then yields, then sleep. Several
// callers share the workers; a loop inside a body stays on its thread. TINYSCALE_USE_OPENMP with
// -fopenmp: OpenMP's threads instead.

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace detail {

// What a loop calls; it refers to the callable, which lives as long as the loop runs.
class LoopBody {
 public:
  template <class F>
  LoopBody(const F& f)
      : object_(const_cast<void*>(static_cast<const void*>(&f))), call_(&call_object<F>) {}
  LoopBody(void (*f)(std::int64_t begin, std::int64_t end)) : function_(f), call_(&call_function) {}

  void operator()(std::int64_t begin, std::int64_t end) const { call_(*this, begin, end); }

 private:
  template <class F>
  static void call_object(const LoopBody& self, std::int64_t begin, std::int64_t end) {
    (*static_cast<F*>(self.object_))(begin, end);
  }
  static void call_function(const LoopBody& self, std::int64_t begin, std::int64_t end) {
    self.function_(begin, end);
  }

  void* object_ = nullptr;
  void (*function_)(std::int64_t begin, std::int64_t end) = nullptr;
  void (*call_)(const LoopBody& self, std::int64_t begin, std::int64_t end);
};

// One loop in flight: chunks are handed out in order. A chunk is a part of what is left, so the
// last ones are small and all threads end together. Of several exceptions the one of the lowest
// chunk is kept: it was handed out before the others, so it is always the same one.
struct Loop {
  const LoopBody* body = nullptr;
  std::int64_t n = 0, grain = 1;
  std::int64_t share = 1;  // a chunk is what is left / share
  alignas(64) std::atomic<std::int64_t> next{0};
  std::mutex mutex;  // guards the two below
  std::exception_ptr error;
  std::int64_t error_begin = 0;

  void start(const LoopBody& loop_body, std::int64_t count, std::int64_t least) {
    body = &loop_body;
    n = count;
    grain = least;
    share = std::int64_t{4} * thread_count();
    error = nullptr;
    next.store(0);
  }

  // Takes the next chunk, [begin, end); false when all are taken.
  bool take(std::int64_t& begin, std::int64_t& end) {
    begin = next.load();
    do {
      if (begin >= n) {
        return false;
      }
      const std::int64_t left = n - begin;
      const std::int64_t chunk = std::max<std::int64_t>(1, left / share / grain) * grain;
      end = left < chunk ? n : begin + chunk;
    } while (!next.compare_exchange_weak(begin, end));
    return true;
  }

  void work() {
    const SerialScope serial;
    for (std::int64_t begin = 0, end = 0; take(begin, end);) {
      try {
        (*body)(begin, end);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(mutex);
        if (!error || begin < error_begin) {
          error = std::current_exception();
          error_begin = begin;
        }
        next.store(n);
      }
    }
  }
};

#if !defined(TINYSCALE_NO_THREADS)
// A loop that workers may join. A worker counts itself inside before it looks whether the slot is
// open; the caller closes it before it waits for inside to be 0, so none can come in late.
struct LoopSlot {
  Loop loop;
  std::atomic<bool> taken{false}, open{false}, caller_sleeps{false};
  std::atomic<int> seats{0};  // workers that may still join
  int processor = -1;         // where the caller is
  alignas(64) std::atomic<int> inside{0};
};

// The worker threads, and a slot for each of the callers at work at once.
class ThreadPool {
 public:
  ThreadPool() = default;
  ~ThreadPool() {
    stop_.store(true);
    { const std::lock_guard<std::mutex> lock(mutex_); }
    wake_.notify_all();
    threads_.join();
  }
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // On thread_count() threads. False when all slots are taken; then nothing was done.
  bool run(const LoopBody& body, std::int64_t n, std::int64_t grain) {
    LoopSlot* slot = slots_;
    while (slot->taken.exchange(true)) {
      if (++slot == slots_ + slot_count) {
        return false;
      }
    }
    const std::int64_t start = now();
    slot->loop.start(body, n, grain);
    if (start >= alone_until_.load()) {
      invite(*slot, thread_count() - 1);
    }
    slot->loop.work();
    slot->open.store(false);
    if (slot->inside.load() > 0) {
      wait_for_workers(*slot, start);
    }
    const std::exception_ptr error = slot->loop.error;
    slot->loop.error = nullptr;
    slot->taken.store(false);
    if (error) {
      std::rethrow_exception(error);
    }
    return true;
  }

 private:
  struct Sleeper {
    WakePlace place;
    Sleeper* next = nullptr;
  };
  static constexpr int slot_count = 8;
  static constexpr int spins = 100;   // one or two us; longer spins burn the time of who is awaited
  static constexpr int yields = 200;  // some 50 us when no other thread wants the processor

  static std::int64_t now() {  // ns
    const auto passed = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count();
  }

  void invite(LoopSlot& slot, int helpers) {
    grow(helpers);
    slot.processor = current_processor();
    slot.seats.store(helpers);
    slot.open.store(true);
    generation_.fetch_add(1);
    if (sleepers_.load() > 0) {
      {
        const std::lock_guard<std::mutex> lock(mutex_);  // a worker is before its check or asleep
        for (Sleeper* s = asleep_; s != nullptr; s = s->next) {
          s->place.keep_off(slot.processor);
        }
      }
      for (int i = 0; i < helpers; ++i) {
        wake_.notify_one();
      }
    }
  }

  // Starts workers until there are so many, or the system gives no more.
  void grow(int workers) {
    if (workers <= workers_.load()) {
      return;
    }
    const std::lock_guard<std::mutex> lock(growing_);
    try {
      while (workers_.load() < workers) {
        threads_.start([](void* pool) { static_cast<ThreadPool*>(pool)->serve(); }, this);
        workers_.fetch_add(1);
      }
    } catch (const std::exception&) {
      workers_.store(1024);  // those there are do the work
    }
  }

  void serve() {
    std::uint64_t seen = 0;
    int together = 0;  // loops in a row for which worker and caller met on one processor
    while (wait_for_loop(seen)) {
      seen = generation_.load();
      for (LoopSlot& slot : slots_) {
        if (slot.open.load()) {
          join(slot, together);
        }
      }
    }
  }

  void join(LoopSlot& slot, int& together) {
    slot.inside.fetch_add(1);
    if (slot.open.load() && slot.seats.fetch_sub(1) > 0) {
      const int here = current_processor();
      together = here >= 0 && here == slot.processor ? together + 1 : 0;
      if (together % 64 == 2) {
        leave_processor(here);
      }
      slot.loop.work();
    }
    if (slot.inside.fetch_sub(1) == 1 && slot.caller_sleeps.load()) {
      { const std::lock_guard<std::mutex> lock(mutex_); }
      done_.notify_all();
    }
  }

  // Spins, then yields, until ready() or its patience ends.
  template <class Ready>
  static bool wait_awake(const Ready& ready) {
    for (int i = 0; i < spins + yields; ++i) {
      if (ready()) {
        return true;
      }
      if (i < spins) {
        cpu_relax();
      } else {
        std::this_thread::yield();
      }
    }
    return false;
  }

  // Returns when there is a loop that was not seen yet; false when the pool ends.
  bool wait_for_loop(std::uint64_t seen) {
    const auto ready = [&] { return stop_.load() || generation_.load() != seen; };
    if (!wait_awake(ready)) {
      Sleeper me;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        me.next = asleep_;
        asleep_ = &me;
        sleepers_.fetch_add(1);
        wake_.wait(lock, ready);
        sleepers_.fetch_sub(1);
        Sleeper** at = &asleep_;
        while (*at != &me) {
          at = &(*at)->next;
        }
        *at = me.next;
      }
      me.place.restore();
    }
    return !stop_.load();
  }

  // A worker that keeps its caller waiting for longer than the loop took was stopped by the system:
  // callers then work alone for eight times as long, and where it happens again soon, for twice as
  // long as before. This is to keep what stops cost a small share.
  void wait_for_workers(LoopSlot& slot, std::int64_t start) {
    const std::int64_t done = now();
    const auto ready = [&] { return slot.inside.load() == 0; };
    if (!wait_awake(ready)) {
      std::unique_lock<std::mutex> lock(mutex_);
      slot.caller_sleeps.store(true);
      done_.wait(lock, ready);
      slot.caller_sleeps.store(false);
    }
    const std::int64_t end = now();
    const std::int64_t late = (end - done) - (done - start);
    if (late > 20000) {
      const std::int64_t last = pause_.load();
      const bool soon = start - alone_until_.load() < last;
      const std::int64_t twice = soon ? std::min<std::int64_t>(2 * last, 1000000000) : 0;
      pause_.store(std::max(8 * late, twice));
      alone_until_.store(end + pause_.load());
    }
  }

  LoopSlot slots_[slot_count];
  std::atomic<std::int64_t> alone_until_{0}, pause_{0};  // ns: see wait_for_workers
  std::atomic<bool> stop_{false};
  alignas(64) std::atomic<std::uint64_t> generation_{0};
  std::atomic<int> sleepers_{0}, workers_{0};
  std::mutex mutex_;  // for the two condition variables and the list
  Sleeper* asleep_ = nullptr;
  std::condition_variable wake_, done_;
  std::mutex growing_;  // guards the threads below
  ThreadGroup threads_;
};

inline ThreadPool& thread_pool() {
  static ThreadPool pool;
  return pool;
}
#endif

#if defined(TINYSCALE_USE_OPENMP) && defined(_OPENMP)
inline bool run_loop(const LoopBody& body, std::int64_t n, std::int64_t grain) {
  Loop loop;
  loop.start(body, n, grain);
#pragma omp parallel num_threads(thread_count())
  loop.work();
  if (loop.error) {
    std::rethrow_exception(loop.error);
  }
  return true;
}
#elif defined(TINYSCALE_NO_THREADS)
inline bool run_loop(const LoopBody&, std::int64_t, std::int64_t) { return false; }
#else
inline bool run_loop(const LoopBody& body, std::int64_t n, std::int64_t grain) {
  return thread_pool().run(body, n, grain);
}
#endif

}  // namespace detail

// Calls body(begin, end) for chunks that cover [0, n) once each, on several threads; returns when
// all are done. `grain` is the least work worth a thread, in iterations: every begin is a multiple
// of it, and n <= grain stays on the caller. What a body throws is thrown here.
inline void parallel_for(std::int64_t n, std::int64_t grain, const detail::LoopBody& body) {
  if (n <= 0) {
    return;
  }
  grain = std::max<std::int64_t>(1, grain);
  if (n <= grain || thread_count() == 1 || !detail::run_loop(body, n, grain)) {
    body(0, n);
  }
}

}}  // namespace tinyscale

// >> tinyscale/base/random.hpp
// Random numbers by counter: element `index` of stream `seed` is a pure function of both, so that
// a shard, a mask or an order of data is the same whatever the layout.
// Philox 4x32-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

namespace tinyscale { inline namespace TINYSCALE_ABI {

// Four random words from a counter and a key, by ten rounds of multiply and exchange.
inline std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                               std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53U} * counter[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57U} * counter[2];
    counter = {
        static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(p1),
        static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(p0)};
    key[0] += 0x9E3779B9U;  // golden ratio
    key[1] += 0xBB67AE85U;  // sqrt(3) - 1
  }
  return counter;
}

namespace detail {

// Words 4 block .. 4 block + 3 of a stream; the kind keeps uniform, normal and integers apart.
enum class RandomKind : std::uint32_t { uniform = 0, normal = 1, integer = 2 };
inline std::array<std::uint32_t, 4> random_block(std::uint64_t seed, std::uint64_t block,
                                                 RandomKind kind) {
  return philox4x32({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                     static_cast<std::uint32_t>(kind), 0},
                    {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
}

// The upper 24 bits as a multiple of 2^-24: in [0, 1), each value exact.
inline float unit_float(std::uint32_t word) {
  return static_cast<float>(word >> 8) * (1.0F / 16777216.0F);
}

inline std::array<float, 4> uniform_block(std::uint64_t seed, std::uint64_t block) {
  const std::array<std::uint32_t, 4> words = random_block(seed, block, RandomKind::uniform);
  return {unit_float(words[0]), unit_float(words[1]), unit_float(words[2]), unit_float(words[3])};
}

// Box-Muller: sqrt(-2 ln u) (cos, sin)(2 pi v) are two independent normal numbers.
inline std::array<float, 4> normal_block(std::uint64_t seed, std::uint64_t block) {
  const std::array<std::uint32_t, 4> words = random_block(seed, block, RandomKind::normal);
  std::array<float, 4> out = {};
  for (std::size_t pair = 0; pair < 4; pair += 2) {
    const float u = (static_cast<float>(words[pair] >> 8) + 0.5F) * (1.0F / 16777216.0F);
    const float angle = 6.28318531F * unit_float(words[pair + 1]);
    const float radius = std::sqrt(-2.0F * std::log(u));
    out[pair] = radius * std::cos(angle);
    out[pair + 1] = radius * std::sin(angle);
  }
  return out;
}

// out[i] = scale * element (first_index + i), for one kind of block.
inline void fill_blocks(float* out, std::int64_t n, std::uint64_t seed, std::uint64_t first_index,
                        float scale, std::array<float, 4> (*make)(std::uint64_t, std::uint64_t)) {
  parallel_for(n, 16384, [=](std::int64_t begin, std::int64_t end) {
    while (begin < end) {
      const std::uint64_t index = first_index + static_cast<std::uint64_t>(begin);
      const std::array<float, 4> block = make(seed, index / 4);
      for (std::uint64_t lane = index % 4; lane < 4 && begin < end; ++lane) {
        out[begin++] = scale * block[lane];
      }
    }
  });
}

// out[i] = scale * uniform01(seed, first_index + i).
inline void fill_uniform(float* out, std::int64_t n, std::uint64_t seed, std::uint64_t first_index,
                         float scale) {
  fill_blocks(out, n, seed, first_index, scale, uniform_block);
}

// out[i] = scale * normal01(seed, first_index + i).
inline void fill_normal(float* out, std::int64_t n, std::uint64_t seed, std::uint64_t first_index,
                        float scale) {
  fill_blocks(out, n, seed, first_index, scale, normal_block);
}

}  // namespace detail

// In [0, 1).
inline float uniform01(std::uint64_t seed, std::uint64_t index) {
  return detail::uniform_block(seed, index / 4)[index % 4];
}

// Mean 0, variance 1.
inline float normal01(std::uint64_t seed, std::uint64_t index) {
  return detail::normal_block(seed, index / 4)[index % 4];
}

// An integer in [0, n), n > 0: the upper half of word * n; its bias is below n / 2^64.
inline std::uint64_t random_below(std::uint64_t seed, std::uint64_t index, std::uint64_t n) {
  if (n == 0) {
    detail::fail({"random_below: n is 0; n must be 1 or more"});
  }
  const std::array<std::uint32_t, 4> words =
      detail::random_block(seed, index / 2, detail::RandomKind::integer);
  const std::uint64_t low = words[2 * (index % 2)];
  const std::uint64_t high = words[2 * (index % 2) + 1];
  const std::uint64_t n_low = n & 0xffffffffU;
  const std::uint64_t n_high = n >> 32;
  const std::uint64_t middle = ((low * n_low) >> 32) + high * n_low;
  const std::uint64_t middle_low = (middle & 0xffffffffU) + low * n_high;
  return high * n_high + (middle >> 32) + (middle_low >> 32);
}

}}  // namespace tinyscale

// >> tinyscale/base/save_file.hpp
// A file that appears whole or not at all: written beside its place under another name, then
// renamed. A link stays one, and what is no regular file (a folder, a device) is left alone.

#if defined(__unix__) || defined(__APPLE__)
#endif

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace detail {

// Where saving to `path` ends: there, or at the file that a link there leads to.
inline std::string save_target(const char* function, const std::string& path) {
#if defined(__unix__) || defined(__APPLE__)
  struct stat seen;
  if (::lstat(path.c_str(), &seen) != 0 || S_ISREG(seen.st_mode)) {
    return path;
  }
  char* const found = ::realpath(path.c_str(), nullptr);
  std::string real = found != nullptr ? found : "";
  std::free(found);
  if (real.empty() || ::stat(real.c_str(), &seen) != 0 || !S_ISREG(seen.st_mode)) {
    fail({function, ": \"", path,
          "\" is there and is no regular file (a folder, a "
          "device, a link to nothing); a new name or an old file is right"});
  }
  return real;
#else
  static_cast<void>(function);
  return path;
#endif
}

class SaveFile {
 public:
  SaveFile(const char* function, const std::string& path)
      : function_(function),
        path_(path),
        target_(save_target(function, path)),
        beside_(target_ + ".saving"),
        file_(std::fopen(beside_.c_str(), "wb")) {
    if (file_ == nullptr) {
      fail("; give a path in a folder that exists and can be written");
    }
  }
  SaveFile(const SaveFile&) = delete;
  SaveFile& operator=(const SaveFile&) = delete;
  ~SaveFile() {
    if (file_ != nullptr) {  // finish() was not reached
      std::fclose(file_);
      std::remove(beside_.c_str());
    }
  }

  void write(const void* data, std::size_t bytes) {
    if (bytes > 0 && std::fwrite(data, 1, bytes, file_) != bytes) {
      fail("; the old file is as it was");
    }
  }

  // The new file takes its place.
  void finish() {
    std::FILE* const file = file_;
    const bool flushed = std::fflush(file) == 0;
    file_ = nullptr;
    if (std::fclose(file) != 0 || !flushed) {
      fail("; the old file is as it was");
    }
#if defined(_WIN32)
    std::remove(target_.c_str());  // rename does not replace a file there
#endif
    if (std::rename(beside_.c_str(), target_.c_str()) != 0) {
      fail("; give a path to a file");
    }
  }

 private:
  [[noreturn]] void fail(const char* advice) {
    const std::string reason = std::strerror(errno);
    if (file_ != nullptr) {
      std::fclose(file_);
      file_ = nullptr;
    }
    std::remove(beside_.c_str());
    detail::fail({function_, ": cannot write \"", path_, "\": ", reason, advice});
  }

  const char* function_;
  std::string path_, target_, beside_;
  std::FILE* file_;
};

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/base/shared.hpp
// A counted pointer: the last one that lets go deletes the object. What std::shared_ptr does, for a
// tenth of what each type in one costs a user's compile.

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace detail {

// How many hold an object; `block` is the size of the memory that holds both, 0 when the object
// was made by new.
struct Holders {
  std::atomic<int> count{1};
  std::size_t block = 0;
};

// What needs no type: the object, and how many hold it.
class SharedHead {
 public:
  SharedHead() = default;
  SharedHead(const SharedHead& other) : object_(other.object_), holders_(other.holders_) {
    if (holders_ != nullptr) {
      holders_->count.fetch_add(1, std::memory_order_relaxed);
    }
  }
  explicit operator bool() const { return object_ != nullptr; }
  bool operator==(std::nullptr_t) const { return object_ == nullptr; }
  bool operator!=(std::nullptr_t) const { return object_ != nullptr; }
  int use_count() const {
    return holders_ == nullptr ? 0 : holders_->count.load(std::memory_order_acquire);
  }

 protected:
  // Gives up holding; the last holder deletes the object. Who holds it alone need not count down.
  // Out of line, as all that is below: every function that has a Shared would hold a copy.
  using Destroy = void (*)(void* object, std::size_t block);
  [[gnu::noinline]] void let_go(Destroy destroy) {
    if (use_count() == 1 || holders_->count.fetch_sub(1) == 1) {
      const std::size_t block = holders_->block;
      destroy(object_, block);
      pool_give(holders_, 1, block == 0 ? sizeof(Holders) : block);
    }
  }
  // Memory for the count and `bytes` more, which begin where object_ points: 16 bytes on.
  [[gnu::noinline]] void make_block(std::size_t bytes) {
    static_assert(sizeof(Holders) <= 16, "the object begins 16 bytes on");
    void* const memory = pool_take(1, bytes + 16);
    holders_ = new (memory) Holders;
    holders_->block = bytes + 16;
    object_ = static_cast<char*>(memory) + 16;
  }
  void swap(SharedHead& other) noexcept {
    void* const object = object_;
    Holders* const holders = holders_;
    object_ = other.object_;
    holders_ = other.holders_;
    other.object_ = object;
    other.holders_ = holders;
  }

  void* object_ = nullptr;
  Holders* holders_ = nullptr;
};

}  // namespace detail

template <class T>
class Shared : public detail::SharedHead {
 public:
  Shared() = default;
  explicit Shared(T* object) {
    holders_ = new (detail::pool_take(1, sizeof(detail::Holders))) detail::Holders;
    object_ = const_cast<void*>(static_cast<const void*>(object));
  }
  Shared(const Shared&) = default;
  Shared(Shared&& other) noexcept { swap(other); }
  ~Shared() {
    if (holders_ != nullptr) {
      let_go(destroy);
    }
  }
  Shared& operator=(Shared other) noexcept {
    swap(other);
    return *this;
  }

  // A default T in memory that is used again, with `more` bytes behind it.
  static Shared make(std::size_t more = 0) {
    static_assert(alignof(T) <= 16, "as far as make_block aligns");
    Shared made;
    made.make_block(sizeof(T) + more);
    new (made.object_) T;
    return made;
  }

  T* get() const { return static_cast<T*>(object_); }
  T* operator->() const { return static_cast<T*>(object_); }
  T& operator*() const { return *static_cast<T*>(object_); }
  void reset() { *this = Shared(); }
  void reset(T* object) { *this = Shared(object); }

 private:
  static void destroy(void* object, std::size_t block) {
    if (block > 0) {
      static_cast<T*>(object)->~T();
    } else {
      delete static_cast<T*>(object);
    }
  }
};

}}  // namespace tinyscale

// >> tinyscale/base/shape.hpp
// The sizes of a tensor, a machine or a grid: [8, 4096].
// Up to eight dims are stored in place, so that a shape costs no allocation.

namespace tinyscale { inline namespace TINYSCALE_ABI {

// One size, made from any integer type, so that {batch, width} is never a narrowing error.
struct Dim {
  std::int64_t value = 0;

  Dim() = default;
  Dim(int size) : value(size) {}
  Dim(unsigned size) : value(std::int64_t{size}) {}
  Dim(long size) : value(size) {}
  Dim(long long size) : value(size) {}
  Dim(unsigned long size) : Dim(static_cast<unsigned long long>(size)) {}
  Dim(unsigned long long size) : value(static_cast<std::int64_t>(size)) {
    if (size > static_cast<unsigned long long>(std::numeric_limits<std::int64_t>::max())) {
      detail::fail({"Dim: size ", size, " does not fit; at most 2^63 - 1"});
    }
  }
};

class Shape {
 public:
  static constexpr int max_dims = 8;

  Shape() = default;
  Shape(std::initializer_list<Dim> dims) {
    for (const Dim& dim : dims) {
      push_back(dim);
    }
  }
  explicit Shape(const std::vector<std::int64_t>& dims) {
    for (const std::int64_t dim : dims) {
      push_back(dim);
    }
  }

  // The number of dims; 0 for the shape of a scalar.
  int size() const { return size_; }
  bool empty() const { return size_ == 0; }

  // The size of dim `i`; a negative `i` counts from the end.
  std::int64_t operator[](int i) const { return dims_[index(i)]; }

  // The number of elements: the product of all sizes, 1 for a scalar.
  std::int64_t count() const {
    std::int64_t product = 1;
    bool overflow = false;
    for (const std::int64_t dim : *this) {
      if (dim == 0) {
        return 0;
      }
      const std::int64_t small = std::int64_t{1} << 31;  // needs no division
      overflow = overflow || ((product >= small || dim >= small) &&
                              product > std::numeric_limits<std::int64_t>::max() / dim);
      product = overflow ? 1 : product * dim;
    }
    if (overflow) {
      detail::fail({"Shape: ", text(), " has too many elements; at most 2^63 - 1"});
    }
    return product;
  }

  void push_back(Dim dim) {
    if (size_ == max_dims) {
      detail::fail({"Shape: a dim more than ", text(), "; at most ", max_dims, " dims"});
    }
    check_size(dim);
    dims_[size_++] = dim.value;
  }

  // Replaces the size of dim `i`; a negative `i` counts from the end.
  void set(int i, Dim dim) {
    check_size(dim);
    dims_[index(i)] = dim.value;
  }

  const std::int64_t* begin() const { return dims_; }
  const std::int64_t* end() const { return dims_ + size_; }
  std::vector<std::int64_t> values() const {
    std::vector<std::int64_t> out(static_cast<std::size_t>(size_));
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = dims_[i];
    }
    return out;
  }

  std::string text() const {
    std::string out = "[";
    for (int i = 0; i < size_; ++i) {
      out += (i > 0 ? ", " : "") + std::to_string(dims_[i]);
    }
    return out + "]";
  }

 private:
  int index(int i) const {
    if (i < -size_ || i >= size_) {
      const std::string right =
          size_ == 0 ? "it has no dims" : detail::cat("dims are ", -size_, " to ", size_ - 1);
      detail::fail({"Shape: dim ", i, " of ", text(), "; ", right});
    }
    return i < 0 ? i + size_ : i;
  }

  static void check_size(Dim dim) {
    if (dim.value < 0) {
      detail::fail({"Shape: size ", dim.value, "; sizes are 0 or more"});
    }
  }

  std::int64_t dims_[max_dims] = {};
  int size_ = 0;
};

inline bool operator==(const Shape& a, const Shape& b) {
  bool same = a.size() == b.size();
  for (int i = 0; same && i < a.size(); ++i) {
    same = a.begin()[i] == b.begin()[i];
  }
  return same;
}
inline bool operator!=(const Shape& a, const Shape& b) { return !(a == b); }

inline void append_text(std::string& out, const Shape& shape) { out += shape.text(); }
inline std::ostream& operator<<(std::ostream& out, const Shape& shape) {
  return out << shape.text();
}

}}  // namespace tinyscale

// >> tinyscale/base/text.hpp
// Numbers as people read them, and tables that line up.
//   format_bytes(1.23e9) -> "1.23 GB"   format_seconds(1.23e-5) -> "12.3 us"
//   format_count(803840) -> "803,840"   format_percent(0.123) -> "12.3 %"

namespace tinyscale { inline namespace TINYSCALE_ABI {

namespace detail {

// Three significant digits without exponent or trailing zeros, for 0.001 <= |v| < 1e6.
inline std::string three_digits(double v) {
  const double size = std::fabs(v);
  const int decimals = size < 9.995 ? 2 : size < 99.95 ? 1 : 0;
  std::string out = printed('f', decimals, v);
  if (decimals > 0) {
    out.erase(out.find_last_not_of('0') + 1);
    if (out.back() == '.') {
      out.pop_back();
    }
  }
  return out;
}

inline std::string with_unit(const std::string& number, const std::string& unit) {
  return unit.empty() ? number : number + " " + unit;
}

}  // namespace detail

// A value with the SI prefix that leaves one to three digits before the point: "1.23 GB".
inline std::string format_si(double v, const std::string& unit) {
  static const char* const prefixes[] = {"a", "f", "p", "n", "u", "m", "", "k",
                                         "M", "G", "T", "P", "E", "Z", "Y"};
  const int none = 6;
  const int last = 14;
  if (!detail::is_finite(v) || v == 0) {
    return detail::with_unit(v == 0 ? "0" : detail::cat(v), unit);
  }
  int prefix = none;
  while (std::fabs(v) >= 999.5 && prefix < last) {
    v /= 1000;
    ++prefix;
  }
  while (std::fabs(v) < 0.9995 && prefix > 0) {
    v *= 1000;
    --prefix;
  }
  const bool plain = std::fabs(v) >= 0.001 && std::fabs(v) < 1e6;
  return detail::with_unit(plain ? detail::three_digits(v) : detail::cat(v),
                           prefixes[prefix] + unit);
}

// Decimal: 1 kB = 1000 B.
inline std::string format_bytes(double bytes) {
  const bool fraction = std::fabs(bytes) < 0.9995;
  return fraction ? detail::cat(bytes, " B") : format_si(bytes, "B");
}

inline std::string format_seconds(double seconds) {
  const double size = std::fabs(seconds);
  if (!detail::is_finite(seconds) || size < 119.5) {
    return format_si(seconds, "s");
  }
  if (size < 7170) {
    return detail::three_digits(seconds / 60) + " min";
  }
  if (size < 48 * 3600.0) {
    return detail::three_digits(seconds / 3600) + " h";
  }
  const double days = seconds / 86400;
  return (std::fabs(days) < 1e6 ? detail::three_digits(days) : detail::cat(days)) + " days";
}

// To the nearest integer, in groups of three digits.
inline std::string format_count(double v) {
  if (!detail::is_finite(v) || std::fabs(v) >= 1e18) {
    return detail::cat(v);
  }
  std::string out = detail::printed('f', 0, std::fabs(v));
  const bool negative = v < 0 && out != "0";
  for (int i = static_cast<int>(out.size()) - 3; i > 0; i -= 3) {
    out.insert(static_cast<std::size_t>(i), ",");
  }
  return negative ? "-" + out : out;
}

// "1.8985" for format_fixed(1.89851, 4).
inline std::string format_fixed(double v, int digits) { return detail::printed('f', digits, v); }

inline std::string format_percent(double fraction) {
  return detail::printed('f', 1, 100 * fraction) + " %";
}

// The inside of a JSON string: quotes, backslashes and control characters escaped.
inline std::string json_escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += std::string("\\u00") + "01"[c >> 4] + "0123456789abcdef"[c & 15];
    } else {
      out += c;
    }
  }
  return out;
}

namespace detail {

// Columns on the screen: every byte that does not continue a UTF-8 character.
inline std::size_t text_width(const std::string& text) {
  std::size_t width = 0;
  for (const char c : text) {
    width += (static_cast<unsigned char>(c) & 0xC0U) != 0x80U ? 1U : 0U;
  }
  return width;
}

// Starts as a number does: "12.3 us", "-4", ".5". Such cells are aligned at their right.
inline bool looks_like_number(const std::string& cell) {
  std::size_t i = !cell.empty() && (cell[0] == '-' || cell[0] == '+') ? 1U : 0U;
  i += i < cell.size() && cell[i] == '.' ? 1U : 0U;
  return i < cell.size() && cell[i] >= '0' && cell[i] <= '9';
}

// Exactly a number of the JSON grammar: -?(0|[1-9][0-9]*)(.[0-9]+)?([eE][+-]?[0-9]+)?
inline bool is_json_number(const std::string& cell) {
  std::size_t i = 0;
  const auto digits = [&] {
    const std::size_t first = i;
    while (i < cell.size() && cell[i] >= '0' && cell[i] <= '9') {
      ++i;
    }
    return i > first;
  };
  i += !cell.empty() && cell[0] == '-' ? 1U : 0U;
  const std::size_t first = i;
  if (!digits() || (cell[first] == '0' && i > first + 1)) {
    return false;
  }
  if (i < cell.size() && cell[i] == '.') {
    ++i;
    if (!digits()) {
      return false;
    }
  }
  if (i < cell.size() && (cell[i] == 'e' || cell[i] == 'E')) {
    ++i;
    i += i < cell.size() && (cell[i] == '+' || cell[i] == '-') ? 1U : 0U;
    if (!digits()) {
      return false;
    }
  }
  return i == cell.size();
}

inline std::string json_value(const std::string& cell) {
  return is_json_number(cell) ? cell : "\"" + json_escape(cell) + "\"";
}

inline std::string csv_cell(const std::string& cell) {
  if (cell.find_first_of(",\"\n\r") == std::string::npos) {
    return cell;
  }
  std::string out = "\"";
  for (const char c : cell) {
    out += c == '"' ? std::string("\"\"") : std::string(1, c);
  }
  return out + "\"";
}

}  // namespace detail

// Rows of text under named columns: printed in line, as CSV or as JSON.
struct Table {
  std::vector<std::string> columns;
  List<std::vector<std::string>> rows;
  std::string title;

  // Appends a row; it must have a cell for each column.
  void add(std::vector<std::string> row) {
    if (row.size() != columns.size()) {
      detail::fail({"Table: a row of ", row.size(), " cells for ", columns.size(),
                    " columns; a row must have a cell for each column"});
    }
    rows.push_back(std::move(row));
  }

  std::string text() const {
    std::vector<std::size_t> widths(columns.size());
    std::vector<int> right(columns.size());
    for (std::size_t c = 0; c < columns.size(); ++c) {
      widths[c] = detail::text_width(columns[c]);
      bool any = false;
      bool all = true;
      for (const std::vector<std::string>& row : rows) {
        const std::string& cell = row.at(c);
        widths[c] = std::max(widths[c], detail::text_width(cell));
        const bool blank = cell.empty() || cell == "-";
        any = any || !blank;
        all = all && (blank || detail::looks_like_number(cell));
      }
      right[c] = any && all ? 1 : 0;
    }
    std::string out = title.empty() ? "" : title + "\n";
    out += line(columns, widths, right);
    std::vector<std::string> rule;
    for (const std::size_t width : widths) {
      rule.push_back(std::string(width, '-'));
    }
    out += line(rule, widths, right);
    for (const std::vector<std::string>& row : rows) {
      out += line(row, widths, right);
    }
    return out;
  }

  std::string csv() const {
    std::string out = csv_line(columns);
    for (const std::vector<std::string>& row : rows) {
      out += csv_line(row);
    }
    return out;
  }

  // {"title": "...", "rows": [{"column": cell, ...}, ...]}; cells that are numbers stay numbers.
  std::string json() const {
    std::string out = "{\"title\": \"" + json_escape(title) + "\", \"rows\": [";
    for (std::size_t r = 0; r < rows.size(); ++r) {
      out += r > 0 ? ",\n  {" : "\n  {";
      for (std::size_t c = 0; c < columns.size(); ++c) {
        out += (c > 0 ? ", \"" : "\"") + json_escape(columns[c]) + "\": ";
        out += detail::json_value(rows[r].at(c));
      }
      out += "}";
    }
    return out + "]}\n";
  }

 private:
  static std::string line(const std::vector<std::string>& cells,
                          const std::vector<std::size_t>& widths, const std::vector<int>& right) {
    std::string out;
    for (std::size_t c = 0; c < cells.size(); ++c) {
      const std::string padding(widths[c] - detail::text_width(cells[c]), ' ');
      out += c > 0 ? "  " : "";
      out += right[c] != 0 ? padding + cells[c] : cells[c] + padding;
    }
    out.erase(out.find_last_not_of(' ') + 1);
    return out + "\n";
  }

  static std::string csv_line(const std::vector<std::string>& cells) {
    std::string out;
    for (std::size_t c = 0; c < cells.size(); ++c) {
      out += (c > 0 ? "," : "") + detail::csv_cell(cells[c]);
    }
    return out + "\n";
  }
};

inline std::ostream& operator<<(std::ostream& out, const Table& table) {
  return out << table.text();
}

}}  // namespace tinyscale

// >> tinyscale/measure/compare.hpp
// Predicted beside counted: rows that say what a formula promised and what a run did,
// and reports side by side.

namespace tinyscale { inline namespace TINYSCALE_ABI {

struct ReportRow {
  std::string name, unit;
  double predicted = 0, counted = 0;

  // counted / predicted; 1 when both are 0.
  double ratio() const { return predicted == counted ? 1 : counted / predicted; }
  // Whether they differ by at most `relative` of the larger.
  bool equal(double relative) const {
    const double larger = std::fmax(std::fabs(predicted), std::fabs(counted));
    return predicted == counted || std::fabs(predicted - counted) <= relative * larger;
  }
};

struct Comparison {
  std::string title;
  List<ReportRow> rows;

  void add(const std::string& name, const std::string& unit, double predicted, double counted) {
    rows.push_back({name, unit, predicted, counted});
  }

  // Whether every row agrees to within `relative`; 0 asks for the same number.
  bool equal(double relative) const {
    for (const ReportRow& row : rows) {
      if (!row.equal(relative)) {
        return false;
      }
    }
    return true;
  }

  Table table() const {
    Table out;
    out.title = title;
    out.columns = {"name", "unit", "formula", "counted", "counted/formula"};
    for (const ReportRow& row : rows) {
      out.add({row.name, row.unit, detail::cat(row.predicted), detail::cat(row.counted),
               detail::printed('f', 3, row.ratio())});
    }
    return out;
  }
  operator Table() const { return table(); }

  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
};

inline std::ostream& operator<<(std::ostream& out, const Comparison& comparison) {
  return out << comparison.table();
}

namespace detail {

// The row whose first cell is `key`, the n-th of them; null when there is none.
inline const std::vector<std::string>* find_row(const Table& table, const std::string& key,
                                                std::size_t n) {
  for (const std::vector<std::string>& row : table.rows) {
    if (!row.empty() && row[0] == key && n-- == 0) {
      return &row;
    }
  }
  return nullptr;
}

}  // namespace detail

// Reports side by side: rows are matched by their first cell, columns are "title: column".
// A report takes part by converting to a Table.
inline Table compare(const List<Table>& reports) {
  if (reports.empty() || reports[0].columns.empty()) {
    detail::fail({"compare: there is no report; give one or more, each with columns"});
  }
  Table out;
  out.columns.push_back(reports[0].columns[0]);
  std::vector<std::string> keys;    // first cells
  std::vector<std::size_t> before;  // how many equal ones come before each
  for (std::size_t r = 0; r < reports.size(); ++r) {
    const std::string name =
        reports[r].title.empty() ? detail::cat("report ", r + 1) : reports[r].title;
    for (std::size_t c = 1; c < reports[r].columns.size(); ++c) {
      out.columns.push_back(name + ": " + reports[r].columns[c]);
    }
    std::vector<std::string> seen;
    for (const std::vector<std::string>& row : reports[r].rows) {
      std::size_t n = 0;
      for (const std::string& key : seen) {
        n += key == row.at(0) ? 1U : 0U;
      }
      seen.push_back(row.at(0));
      bool known = false;
      for (std::size_t i = 0; i < keys.size(); ++i) {
        known = known || (before[i] == n && keys[i] == row[0]);
      }
      if (!known) {
        keys.push_back(row[0]);
        before.push_back(n);
      }
    }
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    std::vector<std::string> cells = {keys[i]};
    for (const Table& report : reports) {
      const std::vector<std::string>* row = detail::find_row(report, keys[i], before[i]);
      for (std::size_t c = 1; c < report.columns.size(); ++c) {
        cells.push_back(row == nullptr ? "-" : row->at(c));
      }
    }
    out.add(cells);
  }
  return out;
}

}}  // namespace tinyscale

// >> tinyscale/measure/memory.hpp
// Memory in use, by what it is for, with the highest that each and all of it has been.
// Safe to use from several threads; the peak of the sum is exact, not the sum of the peaks.

namespace tinyscale { inline namespace TINYSCALE_ABI {

enum class MemoryKind { parameter, gradient, optimizer, activation, kv_cache, buffer };

inline const char* name_of(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::parameter: return "parameter";
    case MemoryKind::gradient: return "gradient";
    case MemoryKind::optimizer: return "optimizer";
    case MemoryKind::activation: return "activation";
    case MemoryKind::kv_cache: return "kv_cache";
    case MemoryKind::buffer: return "buffer";
  }
  return "?";
}

namespace detail {

// A level that goes up and down, and its highest value.
struct PeakCounter {
  std::atomic<std::int64_t> level{0};
  std::atomic<std::int64_t> peak{0};

  void change(std::int64_t amount) {
    const std::int64_t now = level.fetch_add(amount) + amount;
    if (amount <= 0) {
      return;
    }
    std::int64_t highest = peak.load();
    while (now > highest && !peak.compare_exchange_weak(highest, now)) {
    }
  }
};

}  // namespace detail

struct MemoryMeter {
  static constexpr int kinds = 6;

  void add(MemoryKind kind, double bytes) { change(kind, static_cast<std::int64_t>(bytes)); }
  void remove(MemoryKind kind, double bytes) { change(kind, -static_cast<std::int64_t>(bytes)); }

  double current(MemoryKind kind) const { return static_cast<double>(of(kind).level.load()); }
  double current_total() const { return static_cast<double>(total_.level.load()); }
  double peak(MemoryKind kind) const { return static_cast<double>(of(kind).peak.load()); }
  double peak_total() const { return static_cast<double>(total_.peak.load()); }

  // From now on the peaks are those of what follows.
  void reset_peak() {
    for (detail::PeakCounter& counter : by_kind_) {
      counter.peak.store(counter.level.load());
    }
    total_.peak.store(total_.level.load());
  }

  // A row for each kind that was used, and their sum.
  Table table() const {
    Table out;
    out.title = "memory";
    out.columns = {"kind", "now", "peak"};
    for (int i = 0; i < kinds; ++i) {
      const MemoryKind kind = static_cast<MemoryKind>(i);
      if (peak(kind) > 0 || current(kind) > 0) {
        out.add({name_of(kind), format_bytes(current(kind)), format_bytes(peak(kind))});
      }
    }
    out.add({"total", format_bytes(current_total()), format_bytes(peak_total())});
    return out;
  }

 private:
  void change(MemoryKind kind, std::int64_t bytes) {
    by_kind_[static_cast<std::size_t>(kind)].change(bytes);
    total_.change(bytes);
  }
  const detail::PeakCounter& of(MemoryKind kind) const {
    return by_kind_[static_cast<std::size_t>(kind)];
  }

  std::array<detail::PeakCounter, kinds> by_kind_;
  detail::PeakCounter total_;
};

}}  // namespace tinyscale

// >> tinyscale/measure/context.hpp
// Where an op's counts go: the profile, the memory meter and the device number of this thread.
// There is one context for the program, shared by all threads that have none of their own, and
// one for each simulated device, set on the device's thread by a ContextScope.

namespace tinyscale { inline namespace TINYSCALE_ABI {

class Profile;

struct Context {
  Profile* profile = nullptr;                   // null: nothing is recorded
  Shared<MemoryMeter> memory{new MemoryMeter};  // outlives its tensors
  int device = -1;                              // -1: the program itself
  MemoryKind kind = MemoryKind::activation;     // what allocations are for
  int no_grad = 0;                              // scopes alive that switch gradients off
  DType matmul_format = DType::f32;             // in which matmuls read their operands
};

namespace detail {

inline Context*& thread_context() {
  static thread_local struct { Context* context; } own;
  return own.context;
}

inline Context& program_context() {
  static Context context;
  return context;
}

}  // namespace detail

// The context of this thread.
inline Context& context() {
  Context* own = detail::thread_context();
  return own != nullptr ? *own : detail::program_context();
}

// Makes `context` this thread's context while it lives; the context must outlive it.
class ContextScope {
 public:
  explicit ContextScope(Context& context) : previous_(detail::thread_context()) {
    detail::thread_context() = &context;
  }
  ~ContextScope() { detail::thread_context() = previous_; }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  Context* previous_;
};

// What is allocated while it lives counts as `kind`.
class MemoryScope {
 public:
  explicit MemoryScope(MemoryKind kind) : context_(&context()), previous_(context_->kind) {
    context_->kind = kind;
  }
  ~MemoryScope() { context_->kind = previous_; }
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  Context* context_;
  MemoryKind previous_;
};

// Matmuls read their operands in `format` while it lives: f32, or bf16 with sums in f32.
class MatmulFormat {
 public:
  explicit MatmulFormat(DType format) : context_(&context()), previous_(context_->matmul_format) {
    if (format != DType::f32 && format != DType::bf16) {
      detail::fail({"MatmulFormat: ", name_of(format), "; f32 or bf16 is right"});
    }
    context_->matmul_format = format;
  }
  ~MatmulFormat() { context_->matmul_format = previous_; }
  MatmulFormat(const MatmulFormat&) = delete;
  MatmulFormat& operator=(const MatmulFormat&) = delete;

 private:
  Context* context_;
  DType previous_;
};

}}  // namespace tinyscale

// >> tinyscale/measure/counters.hpp
// What an op costs: floating point operations and bytes, counted from its operands' shapes.
// Bytes are those of the op alone: each operand read once, each result written once, at its
// number format. A matmul of (M, K) by (K, N) is 2 M K N matmul FLOPs; the rest is vector FLOPs.

namespace tinyscale { inline namespace TINYSCALE_ABI {

// One operand of an op: how many elements of which format it moves.
struct Operand {
  double elements = 0;
  DType format = DType::f32;

  double bytes() const { return elements * bytes_of(format); }
};

struct OpRecord {
  std::string name;
  List<Operand> reads, writes;
  double matmul_flops = 0, vector_flops = 0;  // counts
  double bytes_read = 0, bytes_written = 0;   // bytes
  double seconds = 0;                         // measured, on this machine
  int device = -1;                            // -1: the program itself
  std::string shape;                          // "[8, 4096] x [4096, 4096]"

  double flops() const { return matmul_flops + vector_flops; }
  double bytes() const { return bytes_read + bytes_written; }

  // Sets bytes_read and bytes_written from the operands.
  void count_bytes() {
    bytes_read = 0;
    bytes_written = 0;
    for (const Operand& operand : reads) {
      bytes_read += operand.bytes();
    }
    for (const Operand& operand : writes) {
      bytes_written += operand.bytes();
    }
  }
};

// Sums over ops.
struct Counters {
  double matmul_flops = 0, vector_flops = 0;
  double bytes_read = 0, bytes_written = 0;
  double seconds = 0;
  std::size_t ops = 0;

  double flops() const { return matmul_flops + vector_flops; }
  double bytes() const { return bytes_read + bytes_written; }
  double intensity() const { return bytes() > 0 ? flops() / bytes() : 0; }  // FLOPs per byte

  void add(const OpRecord& record) {
    matmul_flops += record.matmul_flops;
    vector_flops += record.vector_flops;
    bytes_read += record.bytes_read;
    bytes_written += record.bytes_written;
    seconds += record.seconds;
    ++ops;
  }
};

}}  // namespace tinyscale

// >> tinyscale/measure/hardware_counters.hpp
// What the processor itself counts while a program runs: cycles, instructions, cache misses, and
// from these the bytes that came from memory (a line of 64 each). To stand beside the model's
// counts. Linux only, through perf_event_open, of the program's own threads and outside the kernel.
// Where that is not allowed (containers, most virtual machines, interpreters) `why` says so.

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

namespace tinyscale { inline namespace TINYSCALE_ABI {

// Sums over all threads since the counters were made.
struct HardwareCounts {
  bool counted = false;
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
      for (int event = 0; event < events && why_.empty(); ++event) {
        const int file = open(event, thread);
        if (file >= 0) {
          files_.push_back(file);
        } else if (file == detail::thread_is_gone) {
          break;
        } else {
          why_ = reason(-file);
        }
      }
    }
    if (!why_.empty()) {
      close_all();
    }
  }
  ~HardwareCounters() { close_all(); }
  HardwareCounters(const HardwareCounters&) = delete;
  HardwareCounters& operator=(const HardwareCounters&) = delete;

  // Why nothing is counted; empty when it is.
  const std::string& why() const { return why_; }

  HardwareCounts read() const {
    HardwareCounts found;
    double* const sums[events] = {&found.cycles, &found.instructions, &found.cache_misses};
#if defined(TINYSCALE_PERF_EVENTS)
    for (std::size_t i = 0; i < files_.size(); ++i) {
      std::uint64_t count = 0;
      if (::read(files_[i], &count, sizeof(count)) == sizeof(count)) {
        *sums[i % events] += static_cast<double>(count);
        found.counted = true;
      }
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
    return detail::cat("hardware counters: not here: ",
                       refused          ? "the system does not allow them (perf_event_paranoid)"
                       : code == ENOENT ? "this processor, perhaps a virtual one, offers none"
                                        : std::strerror(code));
#else
    static_cast<void>(code);
    return "hardware counters: not here: they need Linux and a compiled program";
#endif
  }

  void close_all() {
#if defined(TINYSCALE_PERF_EVENTS)
    for (const int file : files_) {
      ::close(file);
    }
#endif
    files_.clear();
  }

  List<int> files_;  // events of the first thread, of the second, ...
  std::string why_;
};

}}  // namespace tinyscale

// >> tinyscale/measure/profile.hpp
// A profile: every op that ran in its context while it was alive, devices' ops included.
// Without one, an op's counting costs a branch.

namespace tinyscale { inline namespace TINYSCALE_ABI {

struct Chip;
struct RooflineReport;

// Installs itself in the context of the thread that makes it, until it ends. A profile made
// while another is alive counts for both.
class Profile {
 public:
  Profile() : context_(&context()), outer_(context_->profile) { context_->profile = this; }
  ~Profile() { context_->profile = outer_; }
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  // May be called from several threads.
  void record(OpRecord record) {
    if (record.device < 0) {
      record.device = context().device;
    }
    if (outer_ != nullptr) {
      outer_->record(record);
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    totals_.add(record);
    records_.push_back(std::move(record));
  }

  List<OpRecord> records() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return records_;
  }

  Counters totals() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return totals_;
  }

  void clear() {
    const std::lock_guard<std::mutex> lock(mutex_);
    records_.clear();
    totals_ = Counters();
  }

  // From now on the processor's own counters are read too, where the system allows it; a roofline
  // on this machine shows them beside the model's counts, or says once why there are none.
  void count_hardware(detail::PerfOpener open = detail::open_perf_event) {
    hardware_ = Shared<HardwareCounters>(new HardwareCounters(open));
  }
  const Shared<HardwareCounters>& hardware() const { return hardware_; }  // null: not asked for

  // Every op priced on a chip as if its f32 operands were of `format`; see hardware/roofline.hpp,
  // which defines it.
  RooflineReport roofline(const Chip& chip, DType format = DType::f32) const;

 private:
  Context* context_;
  Profile* outer_;
  mutable std::mutex mutex_;  // guards the two below
  List<OpRecord> records_;
  Counters totals_;
  Shared<HardwareCounters> hardware_;
};

// Whether ops of this thread are recorded.
inline bool profiling() { return context().profile != nullptr; }

namespace detail {

// Of a clock that only goes forward.
inline double seconds_now() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/measure/quantity.hpp
// A quantity that explains itself: a number, its unit, and the formula that it came from.
//   named("T", F / C).explain()  ->  "T = F / C" / "= 6e+12 FLOP / 2e+14 FLOP/s" / "= 0.03 s"
// Arithmetic keeps the derivation and works the unit out; a named quantity stands as a symbol.

namespace tinyscale { inline namespace TINYSCALE_ABI {

class Quantity;

namespace detail {

// What a quantity was made of; shared, never changed.
struct QuantityNode {
  double value = 0;
  std::string unit, name, source;
  std::string op;         // "+", "max", ...; empty for a given number
  List<Quantity> inputs;  // of the op
};

// Adds the powers of a unit's bases: "FLOP/s" is {FLOP 1, s -1}.
inline void add_unit(NameTable& powers, const std::string& unit, int sign) {
  std::string base;
  int power = sign;
  for (const char c : unit + "*") {
    if (c == '*' || c == '/') {
      if (!base.empty() && base != "1") {
        powers[base] += power;
      }
      base.clear();
      power = c == '/' ? -sign : sign;
    } else {
      base += c;
    }
  }
}

inline std::string unit_text(const NameTable& powers) {
  std::string over, under;
  for (const NameTable::Entry& base : powers) {
    for (int i = 0; i < base.number; ++i) {
      over += (over.empty() ? "" : "*") + base.name;
    }
    for (int i = 0; i < -base.number; ++i) {
      under += "/" + base.name;
    }
  }
  return over.empty() && !under.empty() ? "1" + under : over + under;
}

inline std::string combined_unit(const std::string& a, const std::string& b, int sign) {
  NameTable powers;
  add_unit(powers, a, 1);
  add_unit(powers, b, sign);
  return unit_text(powers);
}

}  // namespace detail

class Quantity {
 public:
  Quantity() : node_(new detail::QuantityNode) {}
  Quantity(double value) : Quantity(value, "") {}  // a plain number: no unit
  Quantity(double value, const std::string& unit, const std::string& name = "",
           const std::string& source = "") {
    const Shared<detail::QuantityNode> node(new detail::QuantityNode);
    node->value = value;
    node->unit = unit;
    node->name = name;
    node->source = source;
    node_ = node;
  }
  explicit Quantity(Shared<detail::QuantityNode> node) : node_(std::move(node)) {}

  double value() const { return node_->value; }
  const std::string& unit() const { return node_->unit; }
  const std::string& name() const { return node_->name; }
  const std::string& source() const { return node_->source; }
  const List<Quantity>& inputs() const { return node_->inputs; }
  const std::string& op() const { return node_->op; }

  std::string formula() const;               // "6 * P * B / (N * C)"
  std::string text() const;                  // "5.33 s"
  std::string explain(int depth = 8) const;  // the formula, the numbers put in, and so for inputs

 private:
  Shared<detail::QuantityNode> node_;
};

namespace detail {

inline std::string short_number(double value) { return printed('g', 6, value); }

// Seconds, bytes and dollars read better scaled; the rest is a number and its unit.
inline std::string quantity_text(double value, const std::string& unit) {
  if (unit == "s") {
    return format_seconds(value);
  }
  if (unit == "B") {
    return format_bytes(value);
  }
  return unit.empty() ? short_number(value) : short_number(value) + " " + unit;
}

inline int binding_strength(const Quantity& q) {
  const std::string& op = q.op();
  if (op.empty() || !q.name().empty()) {
    return 3;
  }
  return op == "+" || op == "-" ? 1 : op == "*" || op == "/" ? 2 : 3;
}

enum class QuantityStyle { symbols, numbers };

inline std::string expression(const Quantity& q, QuantityStyle style);

// An input of an expression: its name or its number, or its own expression when it has no name.
inline std::string term(const Quantity& q, QuantityStyle style, int least_strength) {
  if (q.op().empty() || !q.name().empty()) {
    const bool symbol = style == QuantityStyle::symbols && !q.name().empty();
    return symbol ? q.name() : q.text();
  }
  const std::string inner = expression(q, style);
  return binding_strength(q) < least_strength ? "(" + inner + ")" : inner;
}

inline std::string expression(const Quantity& q, QuantityStyle style) {
  const std::string& op = q.op();
  const List<Quantity>& in = q.inputs();
  if (op.empty()) {
    return q.text();
  }
  if (op == "+" || op == "-" || op == "*" || op == "/") {
    const int own = op == "+" || op == "-" ? 1 : 2;
    const int right = op == "-" || op == "/" ? own + 1 : own;
    return term(in[0], style, own) + " " + op + " " + term(in[1], style, right);
  }
  std::string list;
  for (const Quantity& input : in) {
    list += (list.empty() ? "" : ", ") + term(input, style, 0);
  }
  return op + "(" + list + ")";
}

// The named inputs of an expression, those inside its unnamed parts included.
inline void named_inputs(const Quantity& q, List<Quantity>& out) {
  for (const Quantity& input : q.inputs()) {
    if (input.name().empty()) {
      named_inputs(input, out);
    } else {
      out.push_back(input);
    }
  }
}

inline void explain_into(const Quantity& q, int depth, int indent, std::string& out,
                         std::vector<std::string>& told) {
  const std::string margin(static_cast<std::size_t>(2 * indent), ' ');
  const std::string name = q.name().empty() ? "result" : q.name();
  for (const std::string& other : told) {
    if (other == name + q.text()) {
      return;
    }
  }
  told.push_back(name + q.text());
  const std::string source = q.source().empty() ? "" : "   [" + q.source() + "]";
  if (q.op().empty()) {
    out += margin + name + " = " + q.text() + source + "\n";
    return;
  }
  const std::string under = margin + std::string(name.size(), ' ') + " = ";
  out += margin + name + " = " + expression(q, QuantityStyle::symbols) + source + "\n";
  out += under + expression(q, QuantityStyle::numbers) + "\n";
  out += under + q.text() + "\n";
  List<Quantity> inputs;
  named_inputs(q, inputs);
  for (const Quantity& input : inputs) {
    if (depth > 0) {
      explain_into(input, depth - 1, indent + 1, out, told);
    }
  }
}

inline Quantity make_quantity(const char* op, double value, const std::string& unit,
                              const List<Quantity>& inputs) {
  const Shared<QuantityNode> node(new QuantityNode);
  node->op = op;
  node->value = value;
  node->unit = unit;
  node->inputs = inputs;
  return Quantity(node);
}

inline void same_unit(const char* op, const Quantity& a, const Quantity& b) {
  if (a.unit() != b.unit()) {
    fail({"Quantity: ", a.text(), " ", op, " ", b.text(), ": the units are \"", a.unit(),
          "\" and \"", b.unit(), "\"; both must be the same"});
  }
}

}  // namespace detail

inline std::string Quantity::formula() const {
  return detail::expression(*this, detail::QuantityStyle::symbols);
}

inline std::string Quantity::text() const { return detail::quantity_text(value(), unit()); }

inline std::string Quantity::explain(int depth) const {
  std::string out;
  std::vector<std::string> told;
  detail::explain_into(*this, depth, 0, out, told);
  return out;
}

inline Quantity operator+(const Quantity& a, const Quantity& b) {
  detail::same_unit("+", a, b);
  return detail::make_quantity("+", a.value() + b.value(), a.unit(), {a, b});
}

inline Quantity operator-(const Quantity& a, const Quantity& b) {
  detail::same_unit("-", a, b);
  return detail::make_quantity("-", a.value() - b.value(), a.unit(), {a, b});
}

inline Quantity operator*(const Quantity& a, const Quantity& b) {
  const std::string unit = detail::combined_unit(a.unit(), b.unit(), 1);
  return detail::make_quantity("*", a.value() * b.value(), unit, {a, b});
}

inline Quantity operator/(const Quantity& a, const Quantity& b) {
  const std::string unit = detail::combined_unit(a.unit(), b.unit(), -1);
  return detail::make_quantity("/", a.value() / b.value(), unit, {a, b});
}

inline Quantity max(const Quantity& a, const Quantity& b) {
  detail::same_unit("max", a, b);
  return detail::make_quantity("max", std::max(a.value(), b.value()), a.unit(), {a, b});
}

inline Quantity ceil(const Quantity& a) {
  return detail::make_quantity("ceil", std::ceil(a.value()), a.unit(), {a});
}

// The square root of a plain number: no unit.
inline Quantity sqrt(const Quantity& a) {
  detail::same_unit("sqrt", a, Quantity(0.0));
  return detail::make_quantity("sqrt", std::sqrt(a.value()), "", {a});
}

// The same quantity under a name, by which formulas that use it call it.
inline Quantity named(const std::string& name, const Quantity& q, const std::string& source = "") {
  const Shared<detail::QuantityNode> node(new detail::QuantityNode);
  node->value = q.value();
  node->unit = q.unit();
  node->name = name;
  node->source = source.empty() ? q.source() : source;
  node->op = q.op();
  node->inputs = q.inputs();
  return Quantity(node);
}

inline std::ostream& operator<<(std::ostream& out, const Quantity& q) { return out << q.text(); }

}}  // namespace tinyscale

// >> tinyscale/hardware/chip.hpp
// A chip: what it can compute, hold and move in a second, as one plain struct that a user can fill.
//   critical intensity = flops_per_second / memory_bandwidth   (FLOPs per byte)
// SI base units: FLOP/s, bytes, bytes/s, Hz, seconds, W, USD; 0 is "not known".
// Source: "How To Scale Your Model", chapters 1 and 2.

namespace tinyscale { inline namespace TINYSCALE_ABI {

// One level of memory: operands that fit in `bytes` stream at `bandwidth` bytes a second.
struct MemoryLevel {
  std::string name;
  double bytes = 0;
  double bandwidth = 0;
  double core_bandwidth = 0;  // what one core alone moves; 0: not known
};

// Energy in pJ of one multiply-accumulate by the format of its operands, and of one byte moved.
struct ChipEnergy {
  double mac_int8 = 0, mac_bf16 = 0, mac_f32 = 0;  // 0: not known
  double sram_byte = 0, memory_byte = 0;
  std::string source;
};

struct Chip {
  std::string name, vendor;
  std::string kind;  // tpu, gpu, npu, wafer, cpu
  int year = 0;

  // Matmul FLOP/s, dense, by the format of the operands.
  double flops_bf16 = 0, flops_int8 = 0, flops_fp8 = 0, flops_fp4 = 0, flops_f32 = 0;
  double vector_flops = 0;  // elementwise f32 FLOP/s; 0 does not limit an op
  double core_flops_bf16 = 0, core_flops_int8 = 0, core_flops_f32 = 0;  // one core alone

  double memory_bytes = 0, memory_bandwidth = 0;  // HBM or DRAM
  double sram_bytes = 0, sram_bandwidth = 0;      // VMEM or shared memory
  List<MemoryLevel> levels;                       // smallest first; empty: main memory only

  int mxu_rows = 0, mxu_cols = 0, mxus = 0;  // peak = 2 rows cols mxus clock
  int cores = 1;
  double clock_hz = 0;
  int fifo_tiles = 0;  // weight tiles of a FIFO of its own that memory fills; 0: they lie in SRAM
  double accumulator_bytes = 0;  // of a memory for sums alone; 0: they lie in SRAM
  ChipEnergy energy;

  int links = 0;
  double link_bandwidth = 0;  // one way, one link
  double hop_latency = 0;
  std::string topology, wrap;
  int domain_chips = 1, host_chips = 1;
  double dcn_bandwidth = 0, pcie_bandwidth = 0;  // for each chip

  double watts = 0, dollars_per_hour = 0;
  std::string source, price_source;
  bool measured = false;  // the rates were measured on this machine

  double peak(DType format) const;       // matmul FLOP/s when the operands have this format
  double intensity(DType format) const;  // FLOPs per byte above which memory does not limit
  double unit_peak() const;              // 2 rows cols mxus clock
};

namespace detail {

// What runs a matmul whose operands have this format: the unit made for it, else the next wider.
// A TPU multiplies f32 as six bf16 passes (JAX precision "highest"), hence bf16 / 6.
inline double matmul_rate(const Chip& chip, DType format) {
  const double bf16 = chip.flops_bf16;
  const double int8 = chip.flops_int8 > 0 ? chip.flops_int8 : bf16;
  const double fp8 = chip.flops_fp8 > 0 ? chip.flops_fp8 : bf16;
  switch (format) {
    case DType::bf16:
    case DType::f16: return bf16 > 0 ? bf16 : chip.flops_f32;
    case DType::int8:
    case DType::int4: return int8 > 0 ? int8 : chip.flops_f32;
    case DType::fp8_e4m3:
    case DType::fp8_e5m2: return fp8 > 0 ? fp8 : chip.flops_f32;
    case DType::f32: return chip.flops_f32 > 0 ? chip.flops_f32 : bf16 / 6.0;
    default: return 0.0;
  }
}

}  // namespace detail

inline double Chip::peak(DType format) const {
  const double rate = detail::matmul_rate(*this, format);
  if (!(rate > 0) || !detail::is_finite(rate)) {
    detail::fail({"Chip::peak: ", name.empty() ? "this chip" : name, " has no rate for ",
                  name_of(format), "; set flops_bf16 or flops_f32, or price it in another format"});
  }
  return rate;
}

inline double Chip::intensity(DType format) const {
  if (!(memory_bandwidth > 0) || !detail::is_finite(memory_bandwidth)) {
    detail::fail({"Chip::intensity: ", name.empty() ? "this chip" : name,
                  " has no memory_bandwidth; set it in bytes per second"});
  }
  return peak(format) / memory_bandwidth;
}

inline double Chip::unit_peak() const {
  return 2.0 * mxu_rows * mxu_cols * static_cast<double>(mxus) * clock_hz;
}

}}  // namespace tinyscale

// >> tinyscale/hardware/chip_table.hpp
// A chip as a table: what it can do, how much it holds, and the ridge that divides its work.

namespace tinyscale { inline namespace TINYSCALE_ABI {

// Rows of (what, value, kind): given by a preset's source, or measured on this laptop.
inline Table chip_table(const Chip& chip) {
  const std::string kind = chip.measured ? "measured" : "given";
  const bool cores = chip.core_flops_f32 > 0;  // what one core alone reaches is known
  Table t;
  t.title = chip.name;
  t.columns = {"what", "value", "kind"};
  if (cores) {
    t.title = detail::cat(chip.name, ", ", chip.cores, chip.cores == 1 ? " thread" : " threads");
    t.columns = {"what", "value", "one thread", "kind"};
  }
  const auto add = [&](const std::string& what, double value, double core, const char* unit) {
    if (!cores) {
      t.add({what, format_si(value, unit), kind});
    } else {
      t.add({what, format_si(value, unit), core > 0 ? format_si(core, unit) : "-", kind});
    }
  };
  const double rates[3][2] = {{chip.flops_bf16, chip.core_flops_bf16},
                              {chip.flops_int8, chip.core_flops_int8},
                              {chip.flops_f32, chip.core_flops_f32}};
  const char* const names[3] = {"bf16", "int8", "f32"};
  for (int i = 0; i < 3; ++i) {
    if (rates[i][0] > 0) {
      add(detail::cat("matmul peak, ", names[i]), rates[i][0], rates[i][1], "FLOP/s");
    }
  }
  if (chip.vector_flops > 0) {
    add("vector peak", chip.vector_flops, chip.core_flops_f32 / 2, "FLOP/s");
  }
  for (const MemoryLevel& level : chip.levels) {
    add(detail::cat(level.name, ", ", format_bytes(level.bytes)), level.bandwidth,
        level.core_bandwidth, "B/s");
  }
  if (chip.levels.empty()) {
    add(detail::cat("memory, ", format_bytes(chip.memory_bytes)), chip.memory_bandwidth, 0, "B/s");
  }
  return t;
}

inline std::ostream& operator<<(std::ostream& out, const Chip& chip) {
  return out << chip_table(chip);
}

}}  // namespace tinyscale

// >> tinyscale/hardware/laptop_loops.hpp
// Loops that do nothing but reach a limit of this machine: multiply-adds in registers, one loop for
// each number format that has a unit, and reads of memory in eight streams far apart.
// They are of vector extensions, for the instruction sets that cpu() chooses from; the units for
// bf16 and int8 are named by their instruction, and left to f32 in an interpreter. AMX tiles are
// not measured: where a product runs on them it can pass the roof.

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace detail {

// A loop runs `turns` times and returns a number that keeps it alive. Twelve sums in flight hide
// the latency of two multiply-add units; eight streams far apart keep the prefetchers busy.
using FmaLoop = float (*)(std::int64_t turns, float x, float y);
using ReadLoop = float (*)(const float* data, std::int64_t count);  // count: a multiple of 8 * 16

constexpr int kLoopSums = 12;

#if TINYSCALE_VECTOR_EXTENSIONS
#define TINYSCALE_LOOP_BODY inline __attribute__((always_inline))
#define TINYSCALE_LOOP_UNROLL _Pragma("GCC unroll 16")

struct LoopVector4 {
  typedef float V __attribute__((vector_size(16), may_alias));
};
struct LoopVector8 {
  typedef float V __attribute__((vector_size(32), may_alias));
};
struct LoopVector16 {
  typedef float V __attribute__((vector_size(64), may_alias));
};

template <class L>
TINYSCALE_LOOP_BODY float fma_body(std::int64_t turns, float x, float y) {
  typedef typename L::V V;
  const V m = V{} + x, c = V{} + y;
  V sums[kLoopSums];
  TINYSCALE_LOOP_UNROLL
  for (int i = 0; i < kLoopSums; ++i) {
    sums[i] = c + static_cast<float>(i);
  }
  for (std::int64_t turn = 0; turn < turns; ++turn) {
    TINYSCALE_LOOP_UNROLL
    for (int i = 0; i < kLoopSums; ++i) {
      sums[i] = sums[i] * m + c;
    }
  }
  V total = sums[0];
  TINYSCALE_LOOP_UNROLL
  for (int i = 1; i < kLoopSums; ++i) {
    total += sums[i];
  }
  return total[0];
}

template <class L>
TINYSCALE_LOOP_BODY float read_body(const float* data, std::int64_t count) {
  typedef typename L::V V;
  const std::int64_t vectors = count / 8 / static_cast<std::int64_t>(sizeof(V) / 4);
  const V* const p = reinterpret_cast<const V*>(data);
  V sums[8] = {};
  for (std::int64_t at = 0; at < vectors; ++at) {
    TINYSCALE_LOOP_UNROLL
    for (int i = 0; i < 8; ++i) {
      sums[i] += p[i * vectors + at];
    }
  }
  TINYSCALE_LOOP_UNROLL
  for (int i = 1; i < 8; ++i) {
    sums[0] += sums[i];
  }
  return sums[0][0];
}

#define TINYSCALE_LAPTOP_LOOPS(PATH, VECTOR, ATTRIBUTE)                       \
  ATTRIBUTE inline float fma_##PATH(std::int64_t turns, float x, float y) {   \
    return fma_body<VECTOR>(turns, x, y);                                     \
  }                                                                           \
  ATTRIBUTE inline float read_##PATH(const float* data, std::int64_t count) { \
    return read_body<VECTOR>(data, count);                                    \
  }

TINYSCALE_LAPTOP_LOOPS(portable, LoopVector4, )
#if TINYSCALE_X86
TINYSCALE_LAPTOP_LOOPS(avx2, LoopVector8, __attribute__((target("avx2,fma"))))
TINYSCALE_LAPTOP_LOOPS(avx512, LoopVector16, __attribute__((target("avx512f"))))
#endif
#undef TINYSCALE_LAPTOP_LOOPS

#if TINYSCALE_X86 && !TINYSCALE_INTERPRETER
// Dot products of short numbers into 32-bit sums, of zeros: the rate is that of any numbers.
#define TINYSCALE_DOT_LOOP(NAME, TARGET, BYTES, REGISTERS, INSTRUCTION)                 \
  __attribute__((target(TARGET))) inline float NAME(std::int64_t turns, float, float) { \
    typedef int V __attribute__((vector_size(BYTES)));                                  \
    const V a = {}, b = {};                                                             \
    V sums[kLoopSums] = {};                                                             \
    for (std::int64_t turn = 0; turn < turns; ++turn) {                                 \
      TINYSCALE_LOOP_UNROLL                                                             \
      for (int i = 0; i < kLoopSums; ++i) {                                             \
        asm volatile(INSTRUCTION " %2, %1, %0"                                          \
                     : "+" REGISTERS(sums[i])                                           \
                     : REGISTERS(a), REGISTERS(b));                                     \
      }                                                                                 \
    }                                                                                   \
    return static_cast<float>(sums[0][0] + sums[kLoopSums - 1][0]);                     \
  }

TINYSCALE_DOT_LOOP(dot_bf16_512, "avx512f,avx512bf16", 64, "v", "vdpbf16ps")
TINYSCALE_DOT_LOOP(dot_int8_512, "avx512f,avx512vnni", 64, "v", "vpdpbusd")
TINYSCALE_DOT_LOOP(dot_int8_256, "avx2,avxvnni", 32, "x", "%{vex%} vpdpbusd")
#undef TINYSCALE_DOT_LOOP
#endif
#undef TINYSCALE_LOOP_BODY
#undef TINYSCALE_LOOP_UNROLL
#else
inline float fma_portable(std::int64_t turns, float x, float y) {
  float sums[4 * kLoopSums] = {};
  for (std::int64_t turn = 0; turn < turns; ++turn) {
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

inline float read_portable(const float* data, std::int64_t count) {
  float sums[16] = {};
  for (std::int64_t i = 0; i + 16 <= count; i += 16) {
    for (int lane = 0; lane < 16; ++lane) {
      sums[lane] += data[i + lane];
    }
  }
  return sums[0] + sums[7] + sums[15];
}
#endif

// The loops of the path in use. bf16 and int8 are null where there is no unit for them; *_flops are
// of one turn.
struct LaptopLoops {
  FmaLoop fma = fma_portable;
  ReadLoop read = read_portable;
  int lanes = 4;
  FmaLoop bf16 = nullptr, int8 = nullptr;
  double bf16_flops = 0, int8_flops = 0;

  double fma_flops() const { return 2.0 * kLoopSums * lanes; }
};

inline LaptopLoops laptop_loops() {
  LaptopLoops loops;
#if TINYSCALE_VECTOR_EXTENSIONS && TINYSCALE_X86
  const CpuPath path = cpu().path;
  if (path == CpuPath::avx512) {
    loops.fma = fma_avx512;
    loops.read = read_avx512;
    loops.lanes = 16;
  } else if (path == CpuPath::avx2) {
    loops.fma = fma_avx2;
    loops.read = read_avx2;
    loops.lanes = 8;
  }
#if !TINYSCALE_INTERPRETER
  if (path == CpuPath::avx512 && cpu().avx512_bf16) {
    loops.bf16 = dot_bf16_512;
    loops.bf16_flops = 4.0 * 16 * kLoopSums;
  }
  if (path == CpuPath::avx512 && cpu().avx512_vnni) {
    loops.int8 = dot_int8_512;
    loops.int8_flops = 8.0 * 16 * kLoopSums;
  } else if (path == CpuPath::avx2 && cpu().avx_vnni) {
    loops.int8 = dot_int8_256;
    loops.int8_flops = 8.0 * 8 * kLoopSums;
  }
#endif
#endif
  return loops;
}

inline void keep_alive(float value) {
  volatile float sink = value;  // a local one: threads share nothing
  static_cast<void>(sink);
}

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/hardware/laptop.hpp
// This machine as a chip: what multiply-adds reach in each number format and what reads move from
// each level of memory, on one thread and on all, measured in less than two seconds.
// Short runs of everything in turn, round after round: whatever else the machine does takes away
// from single runs only, and the best of each comes close to what is there.

namespace tinyscale { inline namespace TINYSCALE_ABI {

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
    // Half of L1, a third of L2; of L3 each thread's part of a quarter, but more than its L2.
    const double l3 = std::max(1.5 * caches[1], caches[2] / 4 / threads);
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
      if ((passed > longest && round_ >= 6) || (passed > shortest && settled()) || passed > 3) {
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
    std::sort(best, best + 3);
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
    for (int level = 0; level < 4; ++level) {
      found.bandwidth[level] = rate(formats + level, 4.0 * static_cast<double>(floats_[level]));
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
  chip.source = detail::cat("measured: the best of ", found.rounds,
                            " short runs of multiply-adds and of reads in eight streams");
#if !defined(__OPTIMIZE__)
  chip.source += "; compiled without optimisation, so the rates are too low";
#endif
  return chip;
}

}}  // namespace tinyscale

// >> tinyscale/hardware/presets.hpp
// Chip presets: one row for each chip, with where its numbers come from at the end of the row.
// S = read there, K = from general knowledge of the paper or data sheet, inferred and derived =
// arithmetic from the other columns. TPU links: the scaling book's rate, 10 % under the vendor's.
// Prices: US list, on demand, seen by February 2025; they change: set dollars_per_hour.

namespace tinyscale { inline namespace TINYSCALE_ABI {

namespace detail {

// The columns of the table: a line of five to a chip, and 0 or "" where nothing is known.
struct ChipRow {
  const char *name, *vendor, *kind;
  int year;
  double flops_bf16, flops_int8, flops_fp8, flops_fp4, flops_f32;
  double memory_bytes, memory_bandwidth, sram_bytes, sram_bandwidth, l2_bytes, l2_bandwidth;
  int mxu_rows, mxu_cols, mxus, cores;
  double clock_hz;
  int links;
  double link_bandwidth;
  const char *topology, *wrap;
  int domain_chips, host_chips;
  double dcn_bandwidth, pcie_bandwidth, watts, dollars_per_hour, hop_latency;
  const char *price_source, *source;
};

// clang-format off
inline const List<ChipRow>& chip_rows() {
  static const List<ChipRow> rows = {
      {"tpu-v1", "google", "tpu", 2015, 0, 9.2e13, 0, 0, 0,
       8589934592, 3.4e10, 25165824, 1.79e11, 0, 0, 256, 256, 1, 1,
       7e8, 0, 0, "", "", 1, 4,
       0, 1.4e10, 75, 0, 0, "",
       "K:Jouppi ISCA 2017 (half speed for 8 x 16 bit, a quarter for 16 x 16)"},
      {"tpu-v2", "google", "tpu", 2017, 4.6e13, 0, 0, 0, 0,
       1.6e10, 7e11, 33554432, 0, 0, 0, 128, 128, 2, 2,
       7e8, 4, 6.2e10, "torus2d", "full axis 16", 256, 4,
       0, 0, 280, 1.125, 0, "K: v2-8 $4.50 / 4 chips",
       "K:Jouppi CACM 2020, TPUv4i paper table 1"},
      {"tpu-v3", "google", "tpu", 2018, 1.23e14, 0, 0, 0, 0,
       3.2e10, 9e11, 33554432, 0, 0, 0, 128, 128, 4, 2,
       9.4e8, 4, 8.2e10, "torus2d", "full axis 32", 1024, 4,
       0, 0, 450, 2, 0, "K: v3-8 $8.00 / 4 chips",
       "K:Jouppi CACM 2020; S:scaling book tpus.md (gives 1.4e14 and 1e11 per link)"},
      {"tpu-v4", "google", "tpu", 2020, 2.75e14, 2.75e14, 0, 0, 0,
       34359738368, 1.228e12, 167772160, 0, 0, 0, 128, 128, 8, 2,
       1.05e9, 6, 4.5e10, "torus3d", "axis multiple of 4 (optical)", 4096, 4,
       6.25e9, 1.6e10, 192, 3.22, 1e-6, "S: skypilot catalogue v4-8 12.88 / 4",
       "S:scaling book; S:glennklockwood.com quoting Google docs; K:Jouppi ISCA 2023"},
      {"tpu-v5e", "google", "tpu", 2023, 1.97e14, 3.93e14, 0, 0, 0,
       1.6e10, 8.19e11, 134217728, 1.8e13, 0, 0, 128, 128, 4, 1,
       1.5e9, 4, 4.5e10, "torus2d", "only on a full axis of 16", 256, 8,
       3.125e9, 1.6e10, 0, 1.2, 1e-6, "S: scaling book; S: quoted list price",
       "S:cloud.google.com/tpu/docs/v5e; S:scaling book"},
      {"tpu-v5p", "google", "tpu", 2023, 4.59e14, 9.18e14, 4.59e14, 0, 0,
       102005473280, 2.765e12, 134217728, 6.08e13, 0, 0, 128, 128, 8, 2,
       1.75e9, 6, 9e10, "torus3d", "axis multiple of 4 (optical)", 8960, 4,
       6.25e9, 1.6e10, 0, 4.2, 1e-6, "S: skypilot catalogue v5p-11520 24192 / 5760; scaling book",
       "S:docs.cloud.google.com/tpu/docs/v5p; S:scaling book"},
      {"tpu-v6e", "google", "tpu", 2024, 9.18e14, 1.836e15, 9.18e14, 0, 0,
       3.2e10, 1.64e12, 134217728, 0, 0, 0, 256, 256, 4, 1,
       1.75e9, 4, 9e10, "torus2d", "only on a full axis of 16", 256, 8,
       1.25e10, 3.2e10, 0, 2.7, 1e-6, "S: skypilot catalogue v6e-1",
       "S:cloud.google.com/tpu/docs/v6e (two editions); S:scaling book"},
      {"tpu-v7", "google", "tpu", 2025, 2.307e15, 0, 4.614e15, 0, 0,
       206158430208, 7.38e12, 0, 0, 0, 0, 256, 256, 8, 2,
       2.2e9, 6, 9e10, "torus3d", "axis multiple of 4 (optical)", 9216, 4,
       1.25e10, 0, 0, 12, 0, "K: list price, low confidence",
       "S:docs.cloud.google.com/tpu/docs/tpu7x; S:scaling book; S:ml-engineering"},
      {"a100-40", "nvidia", "gpu", 2020, 3.12e14, 6.24e14, 0, 0, 1.95e13,
       4e10, 1.555e12, 21233664, 1.95e13, 41943040, 5.1e12, 16, 16, 432, 108,
       1.41e9, 12, 2.5e10, "switch", "", 8, 8,
       2.5e10, 3.1e10, 400, 3.67, 0, "K: GCP a2-highgpu-1g",
       "S:LLM-Viewer table; S:ml-engineering; S:scaling book gpus.md"},
      {"a100-80", "nvidia", "gpu", 2020, 3.12e14, 6.24e14, 0, 0, 1.95e13,
       8e10, 2.039e12, 21233664, 1.95e13, 41943040, 5.1e12, 16, 16, 432, 108,
       1.41e9, 12, 2.5e10, "switch", "", 8, 8,
       2.5e10, 3.1e10, 400, 5.07, 0, "K: GCP a2-ultragpu-1g",
       "S:ml-engineering; S:scaling book gpus.md"},
      {"h100-sxm", "nvidia", "gpu", 2022, 9.894e14, 1.979e15, 1.979e15, 0, 6.7e13,
       8e10, 3.35e12, 34603008, 3.3e13, 52428800, 5.5e12, 16, 32, 528, 132,
       1.83e9, 18, 2.5e10, "switch", "", 8, 8,
       5e10, 6.3e10, 700, 10.8, 0, "S: scaling book (Google Cloud)",
       "S:ml-engineering; S:scaling book gpus.md"},
      {"h100-pcie", "nvidia", "gpu", 2022, 7.56e14, 1.513e15, 1.513e15, 0, 5.1e13,
       8e10, 2e12, 29884416, 0, 52428800, 0, 16, 32, 456, 114,
       1.62e9, 18, 1.67e10, "pair bridge", "", 2, 8,
       0, 6.3e10, 350, 0, 0, "",
       "S:ml-engineering; clock and SM count K"},
      {"h200", "nvidia", "gpu", 2024, 9.894e14, 1.979e15, 1.979e15, 0, 6.7e13,
       1.41e11, 4.8e12, 34603008, 3.3e13, 52428800, 5.5e12, 16, 32, 528, 132,
       1.83e9, 18, 2.5e10, "switch", "", 8, 8,
       5e10, 6.3e10, 700, 10, 0, "S: scaling book gpus.md (about)",
       "S:ml-engineering; S:scaling book"},
      {"b200", "nvidia", "gpu", 2025, 2.25e15, 4.5e15, 4.5e15, 9e15, 8e13,
       1.8e11, 8e12, 38797312, 0, 132120576, 0, 32, 32, 592, 148,
       1.85e9, 18, 5e10, "switch", "", 8, 8,
       5e10, 6.3e10, 1000, 0, 0, "",
       "S:ml-engineering; S:scaling book gpus.md (192 GB there); clock inferred"},
      {"gb200", "nvidia", "gpu", 2025, 2.5e15, 5e15, 5e15, 1e16, 8e13,
       1.86e11, 8e12, 38797312, 0, 132120576, 0, 32, 32, 592, 148,
       2.06e9, 18, 5e10, "switch", "", 72, 4,
       5e10, 0, 1200, 0, 0, "",
       "S:ml-engineering; S:scaling book gpus.md; TDP K"},
      {"mi300x", "amd", "gpu", 2023, 1.307e15, 2.614e15, 2.614e15, 0, 1.634e14,
       1.92e11, 5.3e12, 19922944, 0, 268435456, 1.72e13, 16, 16, 1216, 304,
       2.1e9, 7, 6.4e10, "fully connected", "", 8, 8,
       5e10, 6.3e10, 750, 0, 0, "",
       "S:ml-engineering; LDS 64 KiB a CU and Infinity Cache bandwidth K"},
      {"gemmini", "berkeley", "npu", 2019, 0, 5.12e11, 0, 0, 0,
       0, 1.6e10, 262144, 0, 0, 0, 16, 16, 1, 1,
       1e9, 0, 0, "", "", 1, 1,
       0, 0, 0, 0, 0, "",
       "K:Genc DAC 2021, default configuration: 128-bit bus, 64 KiB of accumulators"},
      {"wse-2", "cerebras", "wafer", 2021, 7.5e15, 0, 0, 0, 0,
       4e10, 2e16, 4e10, 2e16, 0, 0, 1, 4, 850000, 850000,
       1.1e9, 4, 0, "mesh2d on wafer", "none", 1, 1,
       1.5e11, 0, 23000, 0, 0, "",
       "S:aiwiki and others (cores, SRAM, 20 PB/s, 220 Pbit/s fabric); S:nextplatform (4-wide "
       "fp16 SIMD); peak and clock inferred"},
      {"wse-3", "cerebras", "wafer", 2024, 1.25e16, 0, 0, 0, 0,
       4.4e10, 2.1e16, 4.4e10, 2.1e16, 0, 0, 1, 8, 900000, 900000,
       1.1e9, 4, 0, "mesh2d on wafer", "none", 1, 1,
       1.5e11, 0, 23000, 0, 0, "",
       "S:yobitel, nextplatform, argonne tutorial; dense peak inferred (125 PFLOP/s is the "
       "sparse figure)"},
      {"laptop-x86", "generic", "cpu", 2023, 9e11, 1.8e12, 0, 0, 9e11,
       17179869184, 9e10, 10878976, 1.8e12, 25165824, 3e11, 1, 8, 16, 8,
       3.5e9, 0, 0, "", "", 1, 1,
       0, 0, 45, 0, 0, "",
       "derived: 8 cores x 2 FMA units x 8 fp32 lanes x 3.5 GHz; dual-channel DDR5-5600"},
      {"laptop-arm", "generic", "cpu", 2023, 4.5e11, 9e11, 0, 0, 4.5e11,
       17179869184, 1e11, 16777216, 1e12, 16777216, 3e11, 1, 4, 16, 4,
       3.5e9, 0, 0, "", "", 1, 1,
       0, 0, 20, 0, 0, "",
       "derived: 4 performance cores x 4 NEON units x 4 lanes x 3.5 GHz; 100 GB/s unified "
       "memory"},
  };
  return rows;
}
// clang-format on

// Words that people use for a preset.
inline std::string chip_alias(const std::string& name) {
  static const char* const pairs[][2] = {
      {"v1", "tpu-v1"},        {"v2", "tpu-v2"},    {"v3", "tpu-v3"},
      {"v4", "tpu-v4"},        {"v4p", "tpu-v4"},   {"tpu-v4p", "tpu-v4"},
      {"v5e", "tpu-v5e"},      {"v5p", "tpu-v5p"},  {"v6e", "tpu-v6e"},
      {"trillium", "tpu-v6e"}, {"v7", "tpu-v7"},    {"tpu7x", "tpu-v7"},
      {"ironwood", "tpu-v7"},  {"a100", "a100-80"}, {"h100", "h100-sxm"},
      {"gb200-nvl72", "gb200"}};
  for (const auto& pair : pairs) {
    if (name == pair[0]) {
      return pair[1];
    }
  }
  return name;
}

// Elementwise f32 rate: the published f32 rate (a fused multiply-add counts as two), else for a TPU
// 8 sublanes x 128 lanes x 4 ALUs x clock x cores (scaling book, 2: v5p 7e12 a core), else 0.
// An array for int8 alone activates a value a column and clock (TPU v1's 256; Gemmini).
inline double vector_rate(const ChipRow& row) {
  if (row.flops_f32 > 0) {
    return row.flops_f32;
  }
  if (row.flops_bf16 <= 0) {
    return row.mxu_cols * row.clock_hz;
  }
  return std::strcmp(row.kind, "tpu") == 0 ? 8.0 * 128.0 * 4.0 * row.clock_hz * row.cores : 0.0;
}

inline void copy_rates(const ChipRow& row, Chip& chip) {
  chip.flops_bf16 = row.flops_bf16;
  chip.flops_int8 = row.flops_int8;
  chip.flops_fp8 = row.flops_fp8;
  chip.flops_fp4 = row.flops_fp4;
  chip.flops_f32 = row.flops_f32;
  chip.vector_flops = vector_rate(row);
  chip.memory_bytes = row.memory_bytes;
  chip.memory_bandwidth = row.memory_bandwidth;
  chip.sram_bytes = row.sram_bytes;
  chip.sram_bandwidth = row.sram_bandwidth;
  chip.mxu_rows = row.mxu_rows;
  chip.mxu_cols = row.mxu_cols;
  chip.mxus = row.mxus;
  chip.cores = row.cores;
  chip.clock_hz = row.clock_hz;
}

// pJ by rule: a multiply-accumulate is a multiplication and an addition, SRAM a 1 MiB bank's 64
// bits. 45 nm: Horowitz, ISSCC 2014; 7 nm: "Ten Lessons", ISCA 2021, table 2 (K; HBM2 250-450 pJ
// per 64 bits, DDR3 1300-2600). Of other nodes only the memory is known.
inline ChipEnergy energy_of(const std::string& name, const std::string& kind) {
  ChipEnergy energy;
  const bool hbm = kind == "gpu" || (kind == "tpu" && name != "tpu-v1");
  energy.memory_byte = hbm ? 350.0 / 8 : name == "tpu-v1" ? 1300.0 / 8 : 0;
  energy.source = hbm ? "K: HBM2" : name == "tpu-v1" ? "K: DDR3, at least" : "";
  if (name == "tpu-v4" || name == "a100-40" || name == "a100-80") {
    energy = {0.077, 0.59, 1.69, 14.0 / 8, 350.0 / 8, "K: 7 nm and HBM2, ISCA 2021"};
  }
  return energy;
}

inline Chip chip_from(const ChipRow& row) {
  Chip chip;
  chip.name = row.name;
  chip.vendor = row.vendor;
  chip.kind = row.kind;
  chip.year = row.year;
  copy_rates(row, chip);
  chip.links = row.links;
  chip.link_bandwidth = row.link_bandwidth;
  chip.hop_latency = row.hop_latency;
  chip.topology = row.topology;
  chip.wrap = row.wrap;
  chip.domain_chips = row.domain_chips;
  chip.host_chips = row.host_chips;
  chip.dcn_bandwidth = row.dcn_bandwidth;
  chip.pcie_bandwidth = row.pcie_bandwidth;
  chip.watts = row.watts;
  chip.dollars_per_hour = row.dollars_per_hour;
  chip.price_source = row.price_source;
  chip.source = row.source;
  chip.energy = energy_of(chip.name, chip.kind);
  chip.fifo_tiles = chip.name == "tpu-v1" ? 4 : 0;
  chip.accumulator_bytes = chip.name == "tpu-v1"    ? 4096.0 * 256 * 4
                           : chip.name == "gemmini" ? 65536
                                                    : 0;
  if (chip.kind == "cpu") {  // a CPU's caches hold whole operands without being told to
    chip.levels = {{"L2", row.sram_bytes, row.sram_bandwidth},
                   {"L3", row.l2_bytes, row.l2_bandwidth},
                   {"DRAM", row.memory_bytes, row.memory_bandwidth}};
  }
  return chip;
}

}  // namespace detail

// The names that chip() knows.
inline std::vector<std::string> chips() {
  std::vector<std::string> names;
  for (const detail::ChipRow& row : detail::chip_rows()) {
    names.push_back(row.name);
  }
  return names;
}

// The preset of this name ("tpu-v5e", "h100"); throws with the list of names when there is none.
inline Chip chip(const std::string& name) {
  const std::string full = detail::chip_alias(name);
  std::string known;
  for (const detail::ChipRow& row : detail::chip_rows()) {
    if (full == row.name) {
      return detail::chip_from(row);
    }
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  detail::fail({"chip: no chip named \"", name, "\"; the names are ", known});
}

}}  // namespace tinyscale

// >> tinyscale/hardware/network.hpp
// A machine: chips at the points of a grid, and the links along each dimension of it.
// Which dimensions close to a ring (scaling book, chapter 2): v2, v5e, v6e only with all 16 chips,
// v3 with 32; v4, v5p, v7 when the slice is whole 4x4x4 cubes; through a switch always.
// GPUs are {nodes, GPUs of a node}: along a dimension a GPU has two links, each of half its egress
// (into its node's switch, or of its share of the node's network ports), as a ring uses them.

namespace tinyscale { inline namespace TINYSCALE_ABI {

struct Machine {
  std::string name;
  Chip chip;
  Shape dims;                           // chips along each dimension, innermost last
  std::vector<int> wraps;               // 1 where the dimension is a ring, 0 where it is a line
  std::vector<double> axis_bandwidths;  // one link, one way, along each dimension: bytes/s
  double link_bandwidth = 0;            // the same along the innermost dimension
  double link_latency = 0;              // seconds for a hop
  double dollars_per_hour = 0;          // for one chip; 0 is "not known"

  std::int64_t chips() const { return dims.count(); }
  double axis_bandwidth(int dim) const;  // one link, one way: bytes/s
  double ring_bandwidth(int dim) const;  // what a chip sends along a dimension: bytes/s
};

namespace detail {

inline std::size_t machine_dim(const Machine& machine, int dim) {
  if (dim < 0 || dim >= machine.dims.size()) {
    fail({"Machine: dimension ", dim, " of ", machine.name, "; its dimensions are 0 to ",
          machine.dims.size() - 1});
  }
  return static_cast<std::size_t>(dim);
}

inline bool is_torus3d(const Chip& chip) { return chip.topology == "torus3d"; }

inline bool is_torus2d(const Chip& chip) { return chip.topology == "torus2d"; }

// Whether any two chips of a dimension are one hop apart.
inline bool is_switched(const Chip& chip) { return chip.kind == "gpu" || chip.kind == "cpu"; }

// Dimensions that close: the longest axis of a 2D slice, or whole cubes joined by optical switches.
inline std::vector<int> machine_wraps(const Chip& chip, const Shape& dims) {
  std::vector<int> wraps(static_cast<std::size_t>(dims.size()));
  bool cubes = dims.size() == 3;
  for (int i = 0; i < dims.size(); ++i) {
    cubes = cubes && dims[i] % 4 == 0;
  }
  const std::int64_t full = chip.wrap == "full axis 32" ? 32 : 16;
  for (int i = 0; i < dims.size(); ++i) {
    const bool closes = is_torus3d(chip)   ? cubes
                        : is_torus2d(chip) ? dims[i] == full
                                           : is_switched(chip);
    wraps[static_cast<std::size_t>(i)] = closes && dims[i] > 1 ? 1 : 0;
  }
  return wraps;
}

// GPUs: half the egress a link (a ring uses two). CPU cores: a copy through shared memory reads and
// writes. A wafer's neighbour is another system on the network.
inline std::vector<double> machine_bandwidths(const Chip& chip, const Shape& dims) {
  const int count = dims.size();
  std::vector<double> rates(static_cast<std::size_t>(count), chip.link_bandwidth);
  for (int i = 0; i < count; ++i) {
    double& rate = rates[static_cast<std::size_t>(i)];
    if (chip.kind == "gpu") {
      const bool inner = i == count - 1;
      rate = inner ? chip.links * chip.link_bandwidth / 2.0 : chip.dcn_bandwidth / 2.0;
    } else if (chip.kind == "cpu") {
      rate = chip.memory_bandwidth / 2.0;
    } else if (!(rate > 0)) {
      rate = chip.dcn_bandwidth;
    }
  }
  return rates;
}

inline std::string machine_name(const Chip& chip, const Shape& dims) {
  std::string name = (chip.name.empty() ? "unnamed chip" : chip.name) + " ";
  for (int i = 0; i < dims.size(); ++i) {
    name += cat(i == 0 ? "" : "x", dims[i]);
  }
  return name;
}

inline void check_machine(const Chip& chip, const Shape& dims) {
  if (dims.size() == 0) {
    fail({"machine: ", chip.name, " with no dimensions; give the chips along each, as {4, 2}"});
  }
  for (int i = 0; i < dims.size(); ++i) {
    if (dims[i] < 1) {
      fail({"machine: ", chip.name, " ", dims, ": every dimension needs at least one chip"});
    }
  }
  const int most = is_torus3d(chip) ? 3 : 2;
  if (dims.size() > most) {
    fail({"machine: ", chip.name, " ", dims, " has ", dims.size(), " dimensions; its network has ",
          most});
  }
  if (chip.kind == "tpu" && dims.count() > chip.domain_chips) {
    fail({"machine: ", chip.name, " ", dims, " is ", dims.count(), " chips; a pod has ",
          chip.domain_chips});
  }
  if (chip.kind == "gpu" && dims[-1] > chip.domain_chips) {
    fail({"machine: ", chip.name, " ", dims, ": the last dimension is a switch domain of at most ",
          chip.domain_chips, " GPUs; write {nodes, ", chip.domain_chips, "}"});
  }
}

inline void check_rate(const char* function, const Machine& machine, const std::string& what,
                       double value) {
  if (!(value > 0) || !is_finite(value)) {
    fail({function, ": ", machine.name, ": ", what, " is ", value,
          " bytes/s; a finite number above 0 is right, as a chip's link_bandwidth, ",
          "between nodes its dcn_bandwidth"});
  }
}

// What a simulation reads of a machine, which a user may have filled by hand.
inline void check_network(const char* function, const Machine& machine) {
  const std::size_t dims = static_cast<std::size_t>(machine.dims.size());
  if (machine.wraps.size() != dims || machine.axis_bandwidths.size() != dims) {
    fail({function, ": ", machine.name, " ", machine.dims, " has ", machine.wraps.size(),
          " wraps and ", machine.axis_bandwidths.size(),
          " axis_bandwidths; one of each for every dimension is right"});
  }
  if (!(machine.link_latency >= 0) || !is_finite(machine.link_latency)) {
    fail({function, ": ", machine.name, ": link_latency is ", machine.link_latency,
          " s; a finite number from 0 is right"});
  }
  for (std::size_t i = 0; i < dims; ++i) {
    if (machine.dims[static_cast<int>(i)] > 1) {
      check_rate(function, machine, cat("axis_bandwidths[", i, "]"), machine.axis_bandwidths[i]);
    }
  }
  if (machine.chips() > 1) {
    check_rate(function, machine, "link_bandwidth", machine.link_bandwidth);
  }
}

}  // namespace detail

inline double Machine::axis_bandwidth(int dim) const {
  return axis_bandwidths[detail::machine_dim(*this, dim)];
}

// Both links of a ring (W in the scaling book), one link of a line: its ends have no second.
inline double Machine::ring_bandwidth(int dim) const {
  const std::size_t i = detail::machine_dim(*this, dim);
  return axis_bandwidths[i] * (wraps[i] != 0 ? 2.0 : 1.0);
}

// A machine of this chip, which may be the user's own; where no latency is known a hop takes 1 us.
inline Machine machine(const Chip& chip, Shape dims) {
  detail::check_machine(chip, dims);
  Machine result;
  result.name = detail::machine_name(chip, dims);
  result.chip = chip;
  result.dims = dims;
  result.wraps = detail::machine_wraps(chip, dims);
  result.axis_bandwidths = detail::machine_bandwidths(chip, dims);
  result.link_bandwidth = result.axis_bandwidths.back();
  result.link_latency = chip.hop_latency > 0 ? chip.hop_latency : 1e-6;
  result.dollars_per_hour = chip.dollars_per_hour;
  detail::check_network("machine", result);
  return result;
}

// A machine of a preset: machine("tpu-v5e", {4, 2}), machine("h100", {nodes, 8}).
inline Machine machine(const std::string& chip_name, Shape dims) {
  return machine(chip(chip_name), dims);
}

}}  // namespace tinyscale

// >> tinyscale/hardware/roofline.hpp
// The roofline: what bounds an op on a chip, and how long it must take at least.
//   T = max(T_math = matmul FLOPs / peak, T_vector = vector FLOPs / rate, T_mem = bytes / rate)
// Source: "How To Scale Your Model", chapter 1. Operands are read once, results written once.

namespace tinyscale { inline namespace TINYSCALE_ABI {

// All ops of one name and shape: sums over `count` of them, times in seconds.
struct RooflineRow {
  std::string name, shape;
  int count = 0;
  double matmul_flops = 0, vector_flops = 0, bytes = 0;
  double intensity = 0;                           // FLOPs per byte
  double t_math = 0, t_vector = 0, t_memory = 0;  // formula
  double seconds = 0;                             // formula: the largest of the three
  double measured = 0;                            // host time; 0 when nothing was timed

  // How much of what the chip allows was reached: formula / measured; 0 when nothing was timed.
  double of_roof() const { return measured > 0 ? seconds / measured : 0; }

  std::string bound;  // math, vector, memory
  std::string level;  // the memory that holds the operands
};

struct RooflineReport {
  std::string chip;
  DType format = DType::f32;
  bool on_host = false;     // this machine: the measured column belongs beside the formula
  double vector_flops = 0;  // 0: no rate known, vector work does not limit
  List<RooflineRow> rows;
  RooflineRow total;
  HardwareCounts hardware;    // on this machine, when the profile was told to count
  std::string hardware_note;  // why there are none

  Table table() const;
  Table hardware_table() const;
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
};

namespace detail {

// Elements recorded as f32 are priced in `format`; token numbers and stored low precision stay.
inline double operand_bytes(const List<Operand>& operands, DType format) {
  double bytes = 0;
  for (const Operand& operand : operands) {
    bytes += operand.elements * bytes_of(operand.format == DType::f32 ? format : operand.format);
  }
  return bytes;
}

// The format that a matmul computes in: the wider of its two factors, the first that it reads, with
// f32 as `format`.
inline DType math_format(const List<Operand>& reads, DType format) {
  if (reads.size() < 2) {
    return format;
  }
  const DType x = reads[0].format, w = reads[1].format;
  const DType wider = bytes_of(x) >= bytes_of(w) ? x : w;
  return bytes_of(wider) >= 4 ? format : wider;
}

inline double priced_bytes(const OpRecord& op, DType format) {
  const double reads = op.reads.empty() ? op.bytes_read : operand_bytes(op.reads, format);
  const double writes = op.writes.empty() ? op.bytes_written : operand_bytes(op.writes, format);
  return reads + writes;
}

// The smallest level that holds this many bytes; main memory when none does.
inline MemoryLevel level_for(const Chip& chip, double bytes) {
  for (const MemoryLevel& level : chip.levels) {
    if (bytes <= level.bytes && level.bandwidth > 0) {
      return level;
    }
  }
  const char* const name = chip.kind == "cpu" ? "DRAM" : chip.kind == "wafer" ? "SRAM" : "HBM";
  return {name, chip.memory_bytes, chip.memory_bandwidth};
}

inline void bound_row(RooflineRow& row) {
  row.seconds = std::max(row.t_math, std::max(row.t_vector, row.t_memory));
  row.bound = row.seconds <= 0              ? "nothing"
              : row.t_memory >= row.seconds ? "memory"
              : row.t_math >= row.seconds   ? "math"
                                            : "vector";
  row.intensity = row.bytes > 0 ? (row.matmul_flops + row.vector_flops) / row.bytes : 0;
}

inline void check_priced(const Chip& chip, const std::string& what, double rate, double least) {
  if (!(rate >= least) || !is_finite(rate)) {
    fail({"roofline: ", chip.name.empty() ? "this chip" : chip.name, ": ", what, " is ", rate,
          "; a finite number ", least > 0 ? "above 0" : "from 0", " is right"});
  }
}

inline RooflineRow roofline_row(const OpRecord& op, const Chip& chip, DType format) {
  check_priced(chip, "vector_flops", chip.vector_flops, 0);
  for (const MemoryLevel& level : chip.levels) {
    check_priced(chip, "the bandwidth of level " + level.name, level.bandwidth, 0);
  }
  RooflineRow row;
  row.name = op.name;
  row.shape = op.shape;
  row.count = 1;
  row.matmul_flops = op.matmul_flops;
  row.vector_flops = op.vector_flops;
  row.bytes = priced_bytes(op, format);
  const MemoryLevel level = level_for(chip, row.bytes);
  if (row.bytes > 0) {
    check_priced(chip, "memory_bandwidth", level.bandwidth, 1e-300);
  }
  row.level = level.name;
  row.t_math =
      row.matmul_flops > 0 ? row.matmul_flops / chip.peak(math_format(op.reads, format)) : 0;
  row.t_vector = chip.vector_flops > 0 ? row.vector_flops / chip.vector_flops : 0;
  row.t_memory = level.bandwidth > 0 ? row.bytes / level.bandwidth : 0;
  row.measured = op.seconds;
  bound_row(row);
  return row;
}

inline void add_row(RooflineRow& sum, const RooflineRow& row) {
  sum.count += row.count;
  sum.matmul_flops += row.matmul_flops;
  sum.vector_flops += row.vector_flops;
  sum.bytes += row.bytes;
  sum.t_math += row.t_math;
  sum.t_vector += row.t_vector;
  sum.t_memory += row.t_memory;
  sum.measured += row.measured;
}

}  // namespace detail

// One record priced on a chip; the same numbers as a Profile's row of one op.
inline RooflineRow roofline(const OpRecord& op, const Chip& chip, DType format = DType::f32) {
  return detail::roofline_row(op, chip, format);
}

// Ops of the same name and shape are one row, in the order in which they first ran.
inline RooflineReport roofline(const List<OpRecord>& ops, const Chip& chip,
                               DType format = DType::f32) {
  RooflineReport report;
  report.chip = chip.name.empty() ? "unnamed chip" : chip.name;
  report.format = format;
  report.on_host = chip.measured;
  report.vector_flops = chip.vector_flops;
  double seconds = 0;
  for (const OpRecord& op : ops) {
    const RooflineRow row = detail::roofline_row(op, chip, format);
    seconds += row.seconds;
    detail::add_row(report.total, row);
    std::size_t same = 0;
    while (same < report.rows.size() &&
           (report.rows[same].name != row.name || report.rows[same].shape != row.shape)) {
      ++same;
    }
    if (same == report.rows.size()) {
      report.rows.push_back(row);
    } else {
      detail::add_row(report.rows[same], row);
      detail::bound_row(report.rows[same]);
    }
  }
  report.total.name = "total";
  detail::bound_row(report.total);
  report.total.seconds = seconds;  // ops run one after the other: a sum of maxima
  return report;
}

inline Table RooflineReport::table() const {
  Table out;
  out.title = detail::cat("Roofline of ", chip, ", priced as ", name_of(format),
                          vector_flops > 0 ? "" : " (vector rate not known: it does not limit)");
  out.columns = {"op",        "shape",      "count",  "matmul FLOPs", "vector FLOPs",
                 "bytes",     "FLOPs/byte", "T_math", "T_vector",     "T_mem",
                 "T formula", "bound by",   "level"};
  if (on_host) {
    out.columns.push_back("T measured");
    out.columns.push_back("of its roof");
  }
  List<RooflineRow> all = rows;
  all.push_back(total);
  for (const RooflineRow& row : all) {
    std::vector<std::string> cells = {row.name,
                                      row.shape,
                                      detail::cat(row.count),
                                      format_si(row.matmul_flops, ""),
                                      format_si(row.vector_flops, ""),
                                      format_bytes(row.bytes),
                                      format_fixed(row.intensity, 2),
                                      format_seconds(row.t_math),
                                      format_seconds(row.t_vector),
                                      format_seconds(row.t_memory),
                                      format_seconds(row.seconds),
                                      row.bound,
                                      row.level};
    if (on_host) {
      cells.push_back(row.measured > 0 ? format_seconds(row.measured) : "-");
      cells.push_back(row.measured > 0 ? format_percent(row.of_roof()) : "-");
    }
    out.add(cells);
  }
  return out;
}

// The processor's counts beside the model's, whose bytes are those of each op alone: what stays in
// a cache from one op to the next does not come from memory again.
inline Table RooflineReport::hardware_table() const {
  Table out;
  out.title = "Hardware counters, all threads";
  out.columns = {"what", "counted", "model"};
  const auto si = [](double value) { return format_si(value, ""); };
  out.add({"cycles", si(hardware.cycles), "-"});
  out.add({"instructions", si(hardware.instructions), "-"});
  out.add({"instructions a cycle", format_fixed(hardware.instructions_per_cycle(), 2), "-"});
  out.add({"FLOPs a cycle",
           hardware.cycles > 0
               ? format_fixed((total.matmul_flops + total.vector_flops) / hardware.cycles, 2)
               : "-",
           "-"});
  out.add({"cache misses", si(hardware.cache_misses), si(total.bytes / 64)});
  out.add({"bytes", format_bytes(hardware.memory_bytes()), format_bytes(total.bytes)});
  return out;
}

inline std::ostream& operator<<(std::ostream& out, const RooflineReport& report) {
  out << report.table();
  if (report.hardware.counted) {
    out << "\n" << report.hardware_table();
  }
  return report.hardware_note.empty() ? out : out << report.hardware_note << "\n";
}

inline RooflineReport Profile::roofline(const Chip& on, DType format) const {
  RooflineReport report = tinyscale::roofline(records(), on, format);
  if (hardware_ != nullptr && on.measured) {
    report.hardware = hardware_->read();
    report.hardware_note = hardware_->why();
  }
  return report;
}

}}  // namespace tinyscale

// >> tinyscale/compute/lanes.hpp
// Vector lanes without intrinsics: one struct per register width, and a run-time choice of path.
// A kernel is a struct with a member template `run<L>()`; run_on_lanes() compiles it once for each
// instruction set (the target attribute stands here and nowhere else) and calls the widest one the
// machine has. Vectors are passed by reference, never by value: they stay inside one function.

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

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace detail {

// width: floats in a vector V; doubles: half as many, in a D; rows x vectors: the accumulators of
// the gemm tile, kept in registers.
struct Lanes1 {
  static constexpr int width = 1, rows = 4, vectors = 4;
  typedef float V;
  typedef float Loose;
  typedef std::int32_t I;
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
  typedef std::int32_t LooseI __attribute__((vector_size(16), aligned(4), may_alias));
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
  typedef std::int32_t LooseI __attribute__((vector_size(32), aligned(4), may_alias));
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
  typedef std::int32_t LooseI __attribute__((vector_size(64), aligned(4), may_alias));
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
template <class Kernel>
__attribute__((target("avx512f"), noinline)) void run_avx512(const Kernel& kernel) {
  kernel.template run<Lanes16>();
}

template <class Kernel>
__attribute__((target("avx2,fma"), noinline)) void run_avx2(const Kernel& kernel) {
  kernel.template run<Lanes8>();
}
#endif

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
#if TINYSCALE_VECTOR_EXTENSIONS
  kernel.template run<Lanes4>();
#else
  kernel.template run<Lanes1>();
#endif
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

template <class L>
TINYSCALE_INLINE void load(const float* from, typename L::V& v) {
  v = *reinterpret_cast<const typename L::Loose*>(from);
}

template <class L>
TINYSCALE_INLINE void store(float* to, const typename L::V& v) {
  *reinterpret_cast<typename L::Loose*>(to) = v;
}

// Into the cache of level 2, or (LEVEL 3) of level 1.
template <int LEVEL = 2>
TINYSCALE_INLINE void prefetch(const void* at) {
#if TINYSCALE_VECTOR_EXTENSIONS
  __builtin_prefetch(at, 0, LEVEL);
#else
  static_cast<void>(at);
#endif
}

// The next `doubles` floats, widened.
template <class L>
TINYSCALE_INLINE void load_double(const float* from, typename L::D& v) {
#if TINYSCALE_VECTOR_EXTENSIONS
  v = __builtin_convertvector(*reinterpret_cast<const typename L::Half*>(from), typename L::D);
#else
  v = static_cast<double>(*from);
#endif
}

// Every lane x. g++ builds `x - V{}` lane by lane when it meets it outside a target function, which
// every inlined template is; so each width has its own function with the attribute, inlined late.
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS
__attribute__((target("avx512f"))) inline void broadcast_16(float x, Lanes16::V& v) {
  v = x - Lanes16::V{};
}

__attribute__((target("avx2,fma"))) inline void broadcast_8(float x, Lanes8::V& v) {
  v = x - Lanes8::V{};
}
#endif

template <class L>
TINYSCALE_INLINE void broadcast(float x, typename L::V& v) {
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS && !defined(__clang__)
  if constexpr (L::width == 16) {
    broadcast_16(x, v);
    return;
  } else if constexpr (L::width == 8) {
    broadcast_8(x, v);
    return;
  }
#endif
  v = x - typename L::V{};
}

// Every lane the same 32 bits.
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS
__attribute__((target("avx512f"))) inline void broadcast_word(std::int32_t word, Lanes16::I& v) {
  v = word - Lanes16::I{};
}
__attribute__((target("avx2,fma"))) inline void broadcast_word(std::int32_t word, Lanes8::I& v) {
  v = word - Lanes8::I{};
}
#endif
template <class I>
TINYSCALE_INLINE void broadcast_word(std::int32_t word, I& v) {
  v = word - I{};
}

// 0, 1, 2, ...
template <class L>
TINYSCALE_INLINE void lane_numbers(typename L::I& v) {
  static constexpr std::int32_t numbers[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                               8, 9, 10, 11, 12, 13, 14, 15};
  std::memcpy(&v, numbers, sizeof(v));
}

// The first count < width lanes, by the masks of each instruction set: nothing beyond is touched.
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS
__attribute__((target("avx512f"))) inline void load_part_16(const float* from, std::int64_t count,
                                                            Lanes16::V& v) {
  v = __builtin_ia32_loadups512_mask(from, v, static_cast<unsigned short>((1 << count) - 1));
}

__attribute__((target("avx512f"))) inline void store_part_16(float* to, std::int64_t count,
                                                             const Lanes16::V& v) {
  __builtin_ia32_storeups512_mask(to, v, static_cast<unsigned short>((1 << count) - 1));
}

__attribute__((target("avx2,fma"))) inline void load_part_8(const float* from, std::int64_t count,
                                                            Lanes8::V& v) {
  Lanes8::I lanes;
  lane_numbers<Lanes8>(lanes);
  const Lanes8::I mask = lanes < static_cast<std::int32_t>(count);
  const Lanes8::V found =
      __builtin_ia32_maskloadps256(reinterpret_cast<const Lanes8::V*>(from), mask);
  v = mask ? found : v;
}

__attribute__((target("avx2,fma"))) inline void store_part_8(float* to, std::int64_t count,
                                                             const Lanes8::V& v) {
  Lanes8::I lanes;
  lane_numbers<Lanes8>(lanes);
  const Lanes8::I mask = lanes < static_cast<std::int32_t>(count);
  __builtin_ia32_maskstoreps256(reinterpret_cast<Lanes8::V*>(to), mask, v);
}
#endif

// The last count < width floats of a row; the other lanes hold fill.
template <class L>
TINYSCALE_INLINE void load_part(const float* from, std::int64_t count, float fill,
                                typename L::V& v) {
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS
  if constexpr (L::width >= 8) {
    broadcast<L>(fill, v);
    if constexpr (L::width == 16) {
      load_part_16(from, count, v);
    } else {
      load_part_8(from, count, v);
    }
    return;
  }
#endif
  float lanes[L::width];
  for (int i = 0; i < L::width; ++i) {
    lanes[i] = i < count ? from[i] : fill;
  }
  load<L>(lanes, v);
}

template <class L>
TINYSCALE_INLINE void store_part(float* to, std::int64_t count, const typename L::V& v) {
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS
  if constexpr (L::width == 16) {
    store_part_16(to, count, v);
    return;
  } else if constexpr (L::width == 8) {
    store_part_8(to, count, v);
    return;
  }
#endif
  float lanes[L::width];
  store<L>(lanes, v);
  for (int i = 0; i < L::width && i < count; ++i) {
    to[i] = lanes[i];
  }
}

// A whole vector, or the part of it that is left of a row.
template <class L>
TINYSCALE_INLINE void load_some(const float* from, std::int64_t left, float fill,
                                typename L::V& v) {
  if (left >= L::width) {
    load<L>(from, v);
  } else {
    load_part<L>(from, left, fill, v);
  }
}

template <class L>
TINYSCALE_INLINE void store_some(float* to, std::int64_t left, const typename L::V& v) {
  if (left >= L::width) {
    store<L>(to, v);
  } else {
    store_part<L>(to, left, v);
  }
}

// step.at<L>(j, count) for each vector of a row, the last perhaps a part.
template <class L, class Step>
TINYSCALE_INLINE void for_row(std::int64_t n, const Step& step) {
  std::int64_t j = 0;
  for (; j + L::width <= n; j += L::width) {
    step.template at<L>(j, L::width);
  }
  if (j < n) {
    step.template at<L>(j, n - j);
  }
}

// y = x with its halves, then its quarters ... exchanged: lane i gets lane i ^ distance.
template <class L, int DISTANCE>
TINYSCALE_INLINE void swap_lanes(const typename L::V& x, typename L::V& y) {
#if TINYSCALE_SHUFFLE
#define TINYSCALE_FOUR(I) (I) ^ DISTANCE, (I + 1) ^ DISTANCE, (I + 2) ^ DISTANCE, (I + 3) ^ DISTANCE
  if constexpr (L::width == 16) {
    y = __builtin_shufflevector(x, x, TINYSCALE_FOUR(0), TINYSCALE_FOUR(4), TINYSCALE_FOUR(8),
                                TINYSCALE_FOUR(12));
    return;
  } else if constexpr (L::width == 8) {
    y = __builtin_shufflevector(x, x, TINYSCALE_FOUR(0), TINYSCALE_FOUR(4));
    return;
  } else if constexpr (L::width == 4) {
    y = __builtin_shufflevector(x, x, TINYSCALE_FOUR(0));
    return;
  }
#undef TINYSCALE_FOUR
#endif
  float from[L::width], to[L::width];
  store<L>(from, x);
  for (int i = 0; i < L::width; ++i) {
    to[i] = from[(i ^ DISTANCE) % L::width];
  }
  load<L>(to, y);
}

// All ones where a < b, else zero (a comparison of vectors gives this; a scalar one does not).
template <class L>
TINYSCALE_INLINE void less(const typename L::V& a, const typename L::V& b, typename L::I& mask) {
  if constexpr (L::width == 1) {
    mask = a < b ? -1 : 0;
  } else {
    mask = a < b;
  }
}

template <class L>
TINYSCALE_INLINE void blend(const typename L::I& mask, const typename L::V& yes,
                            const typename L::V& no, typename L::V& y) {
  y = mask ? yes : no;
}

// The larger and the smaller of a and b, a where either is NaN: one instruction, which g++ does not
// find where b is a constant.
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS && !defined(__clang__)
__attribute__((target("avx512f"))) inline void max_16(const Lanes16::V& a, const Lanes16::V& b,
                                                      Lanes16::V& y) {
  y = __builtin_ia32_maxps512_mask(b, a, a, -1, 4);
}

__attribute__((target("avx512f"))) inline void min_16(const Lanes16::V& a, const Lanes16::V& b,
                                                      Lanes16::V& y) {
  y = __builtin_ia32_minps512_mask(b, a, a, -1, 4);
}
#endif

template <class L>
TINYSCALE_INLINE void max_vector(const typename L::V& a, const typename L::V& b, typename L::V& y) {
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS && !defined(__clang__)
  if constexpr (L::width == 16) {
    max_16(a, b, y);
    return;
  }
#endif
  y = a < b ? b : a;
}

template <class L>
TINYSCALE_INLINE void min_vector(const typename L::V& a, const typename L::V& b, typename L::V& y) {
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS && !defined(__clang__)
  if constexpr (L::width == 16) {
    min_16(a, b, y);
    return;
  }
#endif
  y = b < a ? b : a;
}

// Lanes folded into one: halves, quarters, ... (a tree: 8 + 4 + 2 + 1).
template <class L, int DISTANCE = L::width / 2>
TINYSCALE_INLINE float sum_lanes(const typename L::V& v) {
  if constexpr (DISTANCE == 0) {
    float lanes[L::width];
    store<L>(lanes, v);
    return lanes[0];
  } else {
    typename L::V w;
    swap_lanes<L, DISTANCE>(v, w);
    return sum_lanes<L, DISTANCE / 2>(v + w);
  }
}

template <class L, int DISTANCE = L::width / 2>
TINYSCALE_INLINE float max_lanes(const typename L::V& v) {
  if constexpr (DISTANCE == 0) {
    float lanes[L::width];
    store<L>(lanes, v);
    return lanes[0];
  } else {
    typename L::V w;
    swap_lanes<L, DISTANCE>(v, w);
    max_vector<L>(v, w, w);
    return max_lanes<L, DISTANCE / 2>(w);
  }
}

template <class L>
TINYSCALE_INLINE void clamp_vector(const typename L::V& x, float low, float high,
                                   typename L::V& y) {  // a NaN passes through
  typename L::V bound;
  broadcast<L>(low, bound);
  max_vector<L>(x, bound, y);
  broadcast<L>(high, bound);
  min_vector<L>(y, bound, y);
}

template <class L>
TINYSCALE_INLINE void to_float(const typename L::I& n, typename L::V& y) {
#if TINYSCALE_VECTOR_EXTENSIONS
  y = __builtin_convertvector(n, typename L::V);
#else
  y = static_cast<float>(n);
#endif
}

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/compute/transpose.hpp
// Turning a matrix in memory, or sixteen vectors in registers.

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace detail {

// to[j][i] = from[i][j], in squares of four where the compiler can shuffle.
inline void transpose(std::int64_t rows, std::int64_t cols, const float* from,
                      std::int64_t from_row, float* to, std::int64_t to_row) {
  std::int64_t i = 0;
#if TINYSCALE_SHUFFLE
  typedef Lanes4::V V;
  for (; i + 4 <= rows; i += 4) {
    for (std::int64_t j = 0; j < cols; j += 4) {
      j = std::max<std::int64_t>(0, std::min(j, cols - 4));  // the last square may overlap
      if (cols < 4) {
        break;
      }
      V a, b, c, d;
      load<Lanes4>(from + i * from_row + j, a);
      load<Lanes4>(from + (i + 1) * from_row + j, b);
      load<Lanes4>(from + (i + 2) * from_row + j, c);
      load<Lanes4>(from + (i + 3) * from_row + j, d);
      const V ab = __builtin_shufflevector(a, b, 0, 4, 1, 5);
      const V cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
      const V ab2 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
      const V cd2 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
      float* out = to + j * to_row + i;
      store<Lanes4>(out, __builtin_shufflevector(ab, cd, 0, 1, 4, 5));
      store<Lanes4>(out + to_row, __builtin_shufflevector(ab, cd, 2, 3, 6, 7));
      store<Lanes4>(out + 2 * to_row, __builtin_shufflevector(ab2, cd2, 0, 1, 4, 5));
      store<Lanes4>(out + 3 * to_row, __builtin_shufflevector(ab2, cd2, 2, 3, 6, 7));
    }
  }
  i = cols < 4 ? 0 : i;
#endif
  for (; i < rows; ++i) {
    for (std::int64_t j = 0; j < cols; ++j) {
      to[j * to_row + i] = from[i * from_row + j];
    }
  }
}

// r[i], lane j of 16 x 16 numbers to r[j], lane i, by squares of 4 and then squares of those.
template <class V>
TINYSCALE_INLINE void turn_square(V (&r)[16]) {
#if TINYSCALE_SHUFFLE
#define TINYSCALE_PICK(a, b, x, y, z, w, four)                                                    \
  __builtin_shufflevector(a, b, x, y, z, w, x + four, y + four, z + four, w + four, x + 2 * four, \
                          y + 2 * four, z + 2 * four, w + 2 * four, x + 3 * four, y + 3 * four,   \
                          z + 3 * four, w + 3 * four)
#define TINYSCALE_QUADS(a, b, x)                                                              \
  __builtin_shufflevector(a, b, x, x + 1, x + 2, x + 3, x + 8, x + 9, x + 10, x + 11, x + 16, \
                          x + 17, x + 18, x + 19, x + 24, x + 25, x + 26, x + 27)
  V t[16];
  TINYSCALE_UNROLL
  for (int i = 0; i < 16; i += 4) {
    const V a = TINYSCALE_PICK(r[i], r[i + 1], 0, 16, 1, 17, 4);
    const V b = TINYSCALE_PICK(r[i], r[i + 1], 2, 18, 3, 19, 4);
    const V c = TINYSCALE_PICK(r[i + 2], r[i + 3], 0, 16, 1, 17, 4);
    const V d = TINYSCALE_PICK(r[i + 2], r[i + 3], 2, 18, 3, 19, 4);
    t[i] = TINYSCALE_PICK(a, c, 0, 1, 16, 17, 4);
    t[i + 1] = TINYSCALE_PICK(a, c, 2, 3, 18, 19, 4);
    t[i + 2] = TINYSCALE_PICK(b, d, 0, 1, 16, 17, 4);
    t[i + 3] = TINYSCALE_PICK(b, d, 2, 3, 18, 19, 4);
  }
  TINYSCALE_UNROLL
  for (int i = 0; i < 4; ++i) {
    const V a = TINYSCALE_QUADS(t[i], t[i + 4], 0);
    const V b = TINYSCALE_QUADS(t[i], t[i + 4], 4);
    const V c = TINYSCALE_QUADS(t[i + 8], t[i + 12], 0);
    const V d = TINYSCALE_QUADS(t[i + 8], t[i + 12], 4);
    r[i] = TINYSCALE_QUADS(a, c, 0);
    r[i + 4] = TINYSCALE_QUADS(b, d, 0);
    r[i + 8] = TINYSCALE_QUADS(a, c, 4);
    r[i + 12] = TINYSCALE_QUADS(b, d, 4);
  }
#undef TINYSCALE_PICK
#undef TINYSCALE_QUADS
#endif
}

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/compute/lane_math.hpp
// Functions of vector lanes: exp, log, erf, tanh, sigmoid, the slope of gelu, sqrt.
// Sources: Cephes expf and logf; the rational erf and tanh of Eigen and XLA; the slope is our fit.

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace detail {

// e^x = 2^n e^r with n = round(x / ln 2), |r| <= ln 2 / 2. Polynomials here are summed in pairs
// (Estrin), since what limits a loop of them is how long each waits for its own last result.
template <class L>
TINYSCALE_INLINE void exp_parts(const typename L::V& x, typename L::I& n,
                                typename L::V& power_of_r) {
  typedef typename L::V V;
  // Adding 1.5 * 2^23 leaves round(value) in the low bits. They are read as an integer: a
  // compiler under -ffast-math may cancel a subtraction of that number against its addition.
  const V shifted = x * 1.44269504088896341f + 12582912.0f;
  std::memcpy(&n, &shifted, sizeof(n));
  n = n - 0x4B400000;  // the bits of 1.5 * 2^23
  V whole;
  to_float<L>(n, whole);
  const V r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;  // ln 2 in two parts
  const V s = r * r;
  const V high = (r * 1.9875691500e-4f + 1.3981999507e-3f) * s;
  const V middle = r * 8.3334519073e-3f + 4.1665795894e-2f + high;
  power_of_r = (middle * s + (r * 1.6666665459e-1f + 5.0000001201e-1f)) * s + (r + 1.0f);
}

// Within 2 ulp; 0 and inf at the ends.
template <class L>
TINYSCALE_INLINE void exp_vector(const typename L::V& x, typename L::V& y) {
  typedef typename L::I I;
  typename L::V t, a, b;
  I n;
  clamp_vector<L>(x, -104.0f, 89.0f, t);
  exp_parts<L>(t, n, y);
  const I half = n >> 1;  // 2^n in two factors, so that 2^128 and 2^-149 can be reached
  const I bits_a = (half + 127) << 23;
  const I bits_b = (n - half + 127) << 23;
  std::memcpy(&a, &bits_a, sizeof(a));
  std::memcpy(&b, &bits_b, sizeof(b));
  y = y * a * b;
}

// e^x for x <= 0 or little above, as a softmax needs it: one factor of 2^n, and 0 below 2^-126.
// It is x that is compared: far below, and for a NaN, n is any number.
template <class L>
TINYSCALE_INLINE void exp_negative(const typename L::V& x, typename L::V& y) {
  typename L::V power;
  typename L::I n;
  exp_parts<L>(x, n, y);
  const typename L::I bits = (n + 127) << 23;
  std::memcpy(&power, &bits, sizeof(power));
  y = x < -87.68f ? typename L::V{} : y * power;
}

constexpr float log2_e = 1.44269504088896341f;

// 2^x for x <= 0 or little above, within 1.6e-7 of it: n = round(x), 2^(x - n) by our own fit; 0
// below 2^-126.5. A NaN passes through.
template <class L>
TINYSCALE_INLINE void exp2_negative(const typename L::V& x, typename L::V& y) {
  typedef typename L::V V;
  V t, power;
  typename L::I n;
  broadcast<L>(-127.0f, t);
  max_vector<L>(x, t, t);
  const V shifted = t + 12582912.0f;  // as above
  std::memcpy(&n, &shifted, sizeof(n));
  n = n - 0x4B400000;
  to_float<L>(n, power);
  const V r = t - power;
  const typename L::I bits = (n + 127) << 23;
  std::memcpy(&power, &bits, sizeof(power));
  const V s = r * r;
  const V high = (r * 1.3264728769e-3f + 9.6715131831e-3f) * s;
  y = ((r * 5.5507337445e-2f + 2.4022242077e-1f + high) * s + (r * 6.9314697760e-1f + 1.0f)) *
      power;
}

// sum += e^x for x <= 0, within 1.2e-7 (1 + |x| / 6) of it.
template <class L>
TINYSCALE_INLINE void add_exp(const typename L::V& x, typename L::V& sum) {
  typename L::V y;
  exp2_negative<L>(x * log2_e, y);
  sum = sum + y;
}

// ln(x) of a normal x > 0: x = 2^n m with m from sqrt(1/2) to sqrt(2). Else x itself.
template <class L>
TINYSCALE_INLINE void log_vector(const typename L::V& x, typename L::V& y) {
  typedef typename L::V V;
  typedef typename L::I I;
  I bits;
  std::memcpy(&bits, &x, sizeof(bits));
  const I n = (bits - 0x3F3504F3) >> 23;
  bits = bits - (n << 23);
  V m, e;
  std::memcpy(&m, &bits, sizeof(m));
  to_float<L>(n, e);
  m = m - 1.0f;
  V p = m * 7.0376836292e-2f + -1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m + -1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m + -1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m + -2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  const V s = m * m;
  p = p * m * s + e * -2.12194440e-4f - 0.5f * s + m + e * 0.693359375f;
  y = x > 0.0f ? p : x;
}

// erf(x) = x P(x^2) / Q(x^2) on |x| < 3.83, beyond which a float erf is 1: so is the quotient at
// this bound, with fused multiply-adds and without, or gelu(-1e9) would be -60.
template <class L>
TINYSCALE_INLINE void erf_vector(const typename L::V& x, typename L::V& y) {
  typedef typename L::V V;
  V t;
  clamp_vector<L>(x, -3.8326f, 3.8326f, t);
  const V s = t * t;
  const V u = s * s;
  const V p =
      (u * 0.00022905065861350646f + (s * 0.0034082910107109506f + 0.050955695062380861f)) * u +
      (s * 0.18520832239976145f + 1.128379143519084f);
  V q = u * -1.1791602954361697e-7f + (s * 0.000023547966471313185f + 0.0010179625278914885f);
  q = q * u + (s * 0.014070470171167667f + 0.11098505178285362f);
  q = q * u + (s * 0.49746925110067538f + 1.0f);
  y = t * p / q;
}

// d gelu / dx = (1 + erf(x / sqrt 2)) / 2 + x exp(-x^2 / 2) / sqrt(2 pi) = 1/2 + x P(x^2) / Q(x^2),
// fitted on |x| < 6, beyond which it is 0 or 1: within 2.2e-7.
template <class L>
TINYSCALE_INLINE void gelu_slope_vector(const typename L::V& x, typename L::V& y) {
  typedef typename L::V V;
  V t;
  clamp_vector<L>(x, -6.0f, 6.0f, t);
  const V s = t * t;
  const V u = s * s;
  V p = u * 1.70452630e-8f + (s * 9.22469186e-7f + 3.40921479e-5f);
  p = p * u + (s * 2.02711578e-4f + 1.38573892e-2f);
  p = p * u + (s * -2.23722328e-2f + 7.97884531e-1f);
  V q = u * (s * 1.31469524e-9f + 3.38953774e-7f) + (s * 1.03076124e-5f + 2.45319068e-4f);
  q = q * u + (s * 3.97146140e-3f + 4.41332434e-2f);
  q = q * u + (s * 3.05293527e-1f + 1.0f);
  y = t * p / q + 0.5f;
}

// 1 / (1 + e^-x), from e^-|x|, which cannot overflow.
template <class L>
TINYSCALE_INLINE void sigmoid_vector(const typename L::V& x, typename L::V& y) {
  typename L::V e, one;
  broadcast<L>(1.0f, one);
  exp_negative<L>(x < 0.0f ? x : -x, e);
  y = (x < 0.0f ? e : one) / (1.0f + e);
}

// tanh(x) = x P(x^2) / Q(x^2) on |x| < 9.
template <class L>
TINYSCALE_INLINE void tanh_vector(const typename L::V& x, typename L::V& y) {
  typedef typename L::V V;
  V t;
  clamp_vector<L>(x, -9.0f, 9.0f, t);
  const V s = t * t;
  V p = s * -2.76076847742355e-16f + 2.00018790482477e-13f;
  p = p * s + -8.60467152213735e-11f;
  p = p * s + 5.12229709037114e-08f;
  p = p * s + 1.48572235717979e-05f;
  p = p * s + 6.37261928875436e-04f;
  p = p * s + 4.89352455891786e-03f;
  V q = s * 1.19825839466702e-06f + 1.18534705686654e-04f;
  q = q * s + 2.26843463243900e-03f;
  q = q * s + 4.89352518554385e-03f;
  y = t * p / q;
}

// sqrt(x) from an estimate of 1 / sqrt(x) by bits and Newton steps: within 1 ulp from 1e-37, else
// off by at most 1e-19. The estimate's square stays finite, in whatever order it is multiplied.
template <class L>
TINYSCALE_INLINE void sqrt_vector(const typename L::V& x, typename L::V& y) {
  typedef typename L::V V;
  typedef typename L::I I;
  V g;
  broadcast<L>(1e-37f, g);
  max_vector<L>(x, g, g);
  I bits;
  std::memcpy(&bits, &g, sizeof(bits));
  bits = 0x5F3759DF - (bits >> 1);
  std::memcpy(&g, &bits, sizeof(g));
  const V h = x * 0.5f;
  g = g * (1.5f - h * g * g);
  g = g * (1.5f - h * g * g);
  g = g * (1.5f - h * g * g);
  const V s = x * g;
  y = s + 0.5f * g * (x - s * s);
}

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/compute/elementwise.hpp
// Element-wise kernels: y[i] = f(a[i], b[i]); backward ones dx[i] = beta dx[i] + f'(x[i]) dy[i],
// where beta is 0 (dx is not read) or 1. Each has a reference body for one number,
// or is what its comment says.
// Work is split into fixed blocks, so the result does not depend on the number of threads.
// gelu(x) = x (1 + erf(x / sqrt 2)) / 2 (Hendrycks and Gimpel, arXiv 1606.08415).

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace kernels {

// The reference bodies: f(x), and f'(x) as the slope.
inline double silu_reference(double x) { return x / (1 + std::exp(-x)); }
inline double gelu_reference(double x) { return x * (1 + std::erf(x * std::sqrt(0.5))) / 2; }
inline double gelu_tanh_reference(double x) {
  return x * (1 + std::tanh(0.79788456080286536 * (x + 0.044715 * x * x * x))) / 2;
}
inline double tanh_slope_reference(double x) { return 1 - std::tanh(x) * std::tanh(x); }
inline double silu_slope_reference(double x) {
  const double s = 1 / (1 + std::exp(-x));
  return s * (1 + x * (1 - s));
}
inline double gelu_slope_reference(double x) {  // 0.3989... = 1 / sqrt(2 pi)
  return (1 + std::erf(x * std::sqrt(0.5))) / 2 + 0.39894228040143268 * x * std::exp(-x * x / 2);
}
inline double gelu_tanh_slope_reference(double x) {  // t = tanh(u); t' = (1 - t^2) u'
  const double t = std::tanh(0.79788456080286536 * (x + 0.044715 * x * x * x));
  return (1 + t + x * (1 - t * t) * 0.79788456080286536 * (1 + 0.134145 * x * x)) / 2;
}

}  // namespace kernels

namespace detail {

constexpr std::int64_t elementwise_block = 8192;  // floats; a multiple of every lane width

struct MapOperands {
  std::int64_t n;
  const float* a;
  const float* b;
  float beta;  // 0: y is not read
  float* y;
};

// One block: loads a and b (and y where Op adds to it), applies op, stores y.
template <class Op>
struct MapBlock {
  const Op& op;
  const MapOperands& m;

  template <class L>
  TINYSCALE_INLINE void run() const {
    typedef typename L::V V;
    const bool adds = Op::adds && m.beta != 0.0f;
    V va, vb, vy;
    for (std::int64_t i = 0; i < m.n; i += L::width) {
      load_some<L>(m.a + i, m.n - i, 0.0f, va);
      load_some<L>(m.b + i, m.n - i, 0.0f, vb);
      vy = V{};
      if (adds) {
        load_some<L>(m.y + i, m.n - i, 0.0f, vy);
      }
      op.template apply<L>(va, vb, vy);
      store_some<L>(m.y + i, m.n - i, vy);
    }
  }
};

template <class Op>
void map_block(const void* op, const MapOperands& m) {
  run_on_lanes(MapBlock<Op>{*static_cast<const Op*>(op), m});
}

// The blocks of all ops: what differs is a function pointer, so it is compiled once.
inline void map_blocks(void (*block)(const void* op, const MapOperands& m), const void* op,
                       const MapOperands& all) {
  const std::int64_t blocks = (all.n + elementwise_block - 1) / elementwise_block;
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t at = i * elementwise_block;
      block(op, MapOperands{std::min(elementwise_block, all.n - at), all.a + at, all.b + at,
                            all.beta, all.y + at});
    }
  };
  if (blocks <= 2) {
    body(0, blocks);
  } else {
    parallel_for(blocks, 2, body);
  }
}

template <class Op>
void map(const Op& op, std::int64_t n, const float* a, const float* b, float* y,
         float beta = 1.0f) {
  map_blocks(&map_block<Op>, &op, MapOperands{n, a, b, beta, y});
}

// An operation: y = EXPRESSION of the vectors a and b (and of y itself where ADDS is true).
#define TINYSCALE_MAP_OP(NAME, ADDS, ...)                                       \
  struct NAME {                                                                 \
    static constexpr bool adds = ADDS;                                          \
    template <class L>                                                          \
    TINYSCALE_INLINE void apply(const typename L::V& a, const typename L::V& b, \
                                typename L::V& y) const {                       \
      typedef typename L::V V;                                                  \
      (void)sizeof(V);                                                          \
      (void)b;                                                                  \
      __VA_ARGS__                                                               \
    }                                                                           \
  }

TINYSCALE_MAP_OP(AddOp, false, y = a + b;);
TINYSCALE_MAP_OP(SubOp, false, y = a - b;);
TINYSCALE_MAP_OP(MulOp, false, y = a * b;);
TINYSCALE_MAP_OP(DivOp, false, y = a / b;);
TINYSCALE_MAP_OP(MultiplyAddOp, true, y = y + a * b;);
TINYSCALE_MAP_OP(ExpOp, false, exp_vector<L>(a, y););
TINYSCALE_MAP_OP(TanhOp, false, tanh_vector<L>(a, y););
TINYSCALE_MAP_OP(TanhBackwardOp, true, V t; tanh_vector<L>(a, t); y = y + b * (1.0f - t * t););
TINYSCALE_MAP_OP(ReluOp, false, max_vector<L>(a, V{}, y););

TINYSCALE_MAP_OP(ReluBackwardOp, true, V g; typename L::I positive; less<L>(V{}, a, positive);
                 blend<L>(positive, b, V{}, g); y = y + g;);

TINYSCALE_MAP_OP(SiluOp, false, V s; sigmoid_vector<L>(a, s); y = a * s;);

TINYSCALE_MAP_OP(SiluBackwardOp, true, V s; sigmoid_vector<L>(a, s);
                 y = y + b * s * (1.0f + a * (1.0f - s)););

TINYSCALE_MAP_OP(GeluOp, false, V t; erf_vector<L>(a * 0.70710678118654752f, t);
                 y = 0.5f * a * (1.0f + t););

TINYSCALE_MAP_OP(GeluBackwardOp, true, V slope; gelu_slope_vector<L>(a, slope); y = y + b * slope;);

// gelu_tanh(x) = x (1 + tanh(u)) / 2, u = sqrt(2 / pi) (x + 0.044715 x^3)
TINYSCALE_MAP_OP(GeluTanhOp, false, V t;
                 tanh_vector<L>(0.79788456080286536f * a * (1.0f + 0.044715f * a * a), t);
                 y = 0.5f * a * (1.0f + t););

TINYSCALE_MAP_OP(GeluTanhBackwardOp, true, V t; V x; clamp_vector<L>(a, -12.0f, 12.0f, x);
                 const V s = x * x;
                 tanh_vector<L>(0.79788456080286536f * x * (1.0f + 0.044715f * s), t);
                 const V du = 0.79788456080286536f * (1.0f + 0.134145f * s);
                 y = y + b * (0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * du););

#undef TINYSCALE_MAP_OP

struct ScaleOp {  // y = factor a
  static constexpr bool adds = false;
  float factor;
  template <class L>
  TINYSCALE_INLINE void apply(const typename L::V& a, const typename L::V&,
                              typename L::V& y) const {
    typename L::V f;
    broadcast<L>(factor, f);
    y = a * f;
  }
};

}  // namespace detail

namespace kernels {

// Arithmetic: y[i] = a[i] op b[i]. y may be a or b.
inline void add(std::int64_t n, const float* a, const float* b, float* y) {
  detail::map(detail::AddOp{}, n, a, b, y);
}
inline void sub(std::int64_t n, const float* a, const float* b, float* y) {
  detail::map(detail::SubOp{}, n, a, b, y);
}
inline void mul(std::int64_t n, const float* a, const float* b, float* y) {
  detail::map(detail::MulOp{}, n, a, b, y);
}
inline void div(std::int64_t n, const float* a, const float* b, float* y) {
  detail::map(detail::DivOp{}, n, a, b, y);
}
inline void multiply_add(std::int64_t n, const float* a, const float* b, float* y,
                         float beta = 1.0f) {  // y = beta y + a b
  detail::map(detail::MultiplyAddOp{}, n, a, b, y, beta);
}
inline void scale(std::int64_t n, float factor, const float* x, float* y) {  // y = factor x
  detail::map(detail::ScaleOp{factor}, n, x, x, y);
}

// Activations: y[i] = f(x[i]).
inline void exp_forward(std::int64_t n, const float* x, float* y) {
  detail::map(detail::ExpOp{}, n, x, x, y);
}
inline void tanh_forward(std::int64_t n, const float* x, float* y) {
  detail::map(detail::TanhOp{}, n, x, x, y);
}
inline void relu_forward(std::int64_t n, const float* x, float* y) {  // max(x, 0)
  detail::map(detail::ReluOp{}, n, x, x, y);
}
inline void silu_forward(std::int64_t n, const float* x, float* y) {  // x / (1 + exp(-x))
  detail::map(detail::SiluOp{}, n, x, x, y);
}
inline void gelu_forward(std::int64_t n, const float* x, float* y) {
  detail::map(detail::GeluOp{}, n, x, x, y);
}
inline void gelu_tanh_forward(std::int64_t n, const float* x, float* y) {
  detail::map(detail::GeluTanhOp{}, n, x, x, y);
}

// Their derivatives: dx[i] = beta dx[i] + f'(x[i]) dy[i].
inline void tanh_backward(std::int64_t n, const float* x, const float* dy, float* dx,
                          float beta = 1.0f) {
  detail::map(detail::TanhBackwardOp{}, n, x, dy, dx, beta);
}
inline void relu_backward(std::int64_t n, const float* x, const float* dy, float* dx,
                          float beta = 1.0f) {
  detail::map(detail::ReluBackwardOp{}, n, x, dy, dx, beta);
}
inline void silu_backward(std::int64_t n, const float* x, const float* dy, float* dx,
                          float beta = 1.0f) {
  detail::map(detail::SiluBackwardOp{}, n, x, dy, dx, beta);
}
inline void gelu_backward(std::int64_t n, const float* x, const float* dy, float* dx,
                          float beta = 1.0f) {
  detail::map(detail::GeluBackwardOp{}, n, x, dy, dx, beta);
}
inline void gelu_tanh_backward(std::int64_t n, const float* x, const float* dy, float* dx,
                               float beta = 1.0f) {
  detail::map(detail::GeluTanhBackwardOp{}, n, x, dy, dx, beta);
}

}  // namespace kernels
}}  // namespace tinyscale

// >> tinyscale/compute/sums.hpp
// Sums of floats gathered in double, so that 2^25 terms lose none: a row into one number, or each
// column of many rows into its own (columns: 32 rows at a time in float). The order of additions
// never depends on the threads.

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace kernels {

// The reference body: the sum of x[i]^power; step is the number of columns where x is a column.
inline double sum_reference(std::int64_t n, const float* x, int power = 1, std::int64_t step = 1) {
  double total = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    total += std::pow(double{x[i * step]}, power);
  }
  return total;
}

}  // namespace kernels

namespace detail {

// result = sum of x[i]^POWER in four vectors of doubles, then the rest one by one.
template <int POWER>
struct SumBlock {
  std::int64_t n;
  const float* x;
  double* result;

  template <class L>
  TINYSCALE_INLINE void run() const {
    typename L::D sums[4] = {}, v;
    constexpr std::int64_t step = 4 * L::doubles;
    std::int64_t i = 0;
    for (; i + step <= n; i += step) {
      TINYSCALE_UNROLL
      for (int part = 0; part < 4; ++part) {
        load_double<L>(x + i + part * L::doubles, v);
        sums[part] = sums[part] + (POWER == 2 ? v * v : v);
      }
    }
    sums[0] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    double lanes[L::doubles];
    std::memcpy(lanes, &sums[0], sizeof(lanes));
    double total = 0;
    for (const double lane : lanes) {
      total += lane;
    }
    for (; i < n; ++i) {
      const double value = static_cast<double>(x[i]);
      total += POWER == 2 ? value * value : value;
    }
    *result = total;
  }
};

struct ColumnSums {  // sums[i] += x[i]
  std::int64_t n;
  const float* x;
  double* sums;

  template <class L>
  TINYSCALE_INLINE void run() const {
    typename L::D v, s;
    std::int64_t i = 0;
    for (; i + L::doubles <= n; i += L::doubles) {
      load_double<L>(x + i, v);
      std::memcpy(&s, sums + i, sizeof(s));
      s = s + v;
      std::memcpy(sums + i, &s, sizeof(s));
    }
    for (; i < n; ++i) {
      sums[i] += static_cast<double>(x[i]);
    }
  }
};

constexpr std::int64_t sum_columns = 128;  // of a task

// Up to 128 columns of x: 32 rows in float, which then join the totals in double.
struct ColumnBlock {
  std::int64_t rows, cols, n;
  const float* x;
  double* totals;

  template <class L>
  TINYSCALE_INLINE void run() const {
    float part[static_cast<std::size_t>(sum_columns)] = {};
    typename L::V v, sum;
    for (std::int64_t row = 0; row < rows; row += 32) {
      const std::int64_t end = std::min(rows, row + 32);
      for (std::int64_t j = 0; j < n; j += L::width) {
        sum = typename L::V{};
        for (std::int64_t i = row; i < end; ++i) {
          load_some<L>(x + i * cols + j, n - j, 0.0f, v);
          sum = sum + v;
        }
        store<L>(part + j, sum);
      }
      call_on_lanes<L>(ColumnSums{n, part, totals});
    }
  }
};

}  // namespace detail

namespace kernels {

inline double sum(std::int64_t n, const float* x) {
  double total = 0;
  detail::run_on_lanes(detail::SumBlock<1>{n, x, &total});
  return total;
}

inline void add_to_sums(std::int64_t n, const float* x, double* sums) {
  detail::run_on_lanes(detail::ColumnSums{n, x, sums});
}

// y[j] = beta y[j] + the sum of column j of x [rows, cols]; beta is 0 (y is not read) or 1.
inline void column_sums(std::int64_t rows, std::int64_t cols, const float* x, float* y,
                        float beta = 1.0f) {
  const std::int64_t wide = detail::sum_columns;
  parallel_for((cols + wide - 1) / wide, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t j = begin * wide; j < std::min(cols, end * wide); j += wide) {
      double totals[static_cast<std::size_t>(detail::sum_columns)] = {};
      const std::int64_t n = std::min(wide, cols - j);
      detail::run_on_lanes(detail::ColumnBlock{rows, cols, n, x + j, totals});
      for (std::int64_t i = 0; i < n; ++i) {
        y[j + i] = static_cast<float>(totals[i]) + (beta == 0.0f ? 0.0f : y[j + i]);
      }
    }
  });
}

// The sum of x[i]^2: blocks of fixed size, added in order.
inline double sum_of_squares(std::int64_t n, const float* x) {
  const std::int64_t block = detail::elementwise_block;
  const std::int64_t blocks = (n + block - 1) / block;
  List<double> sums(static_cast<std::size_t>(blocks));
  parallel_for(blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      const std::int64_t at = b * block;
      detail::run_on_lanes(
          detail::SumBlock<2>{std::min(block, n - at), x + at, &sums[static_cast<std::size_t>(b)]});
    }
  });
  double total = 0.0;
  for (const double part : sums) {
    total += part;
  }
  return total;
}

}  // namespace kernels
}}  // namespace tinyscale

// >> tinyscale/compute/adamw.hpp
// AdamW. With g = grad_scale * grad and step t counted from 1:
//   m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2,
//   p = p (1 - lr wd) - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps).
// 28 bytes moved a parameter. Loshchilov and Hutter, arXiv 1711.05101.

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace kernels {

struct AdamWStep {
  float learning_rate = 1e-3f, beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f;
  float weight_decay = 0.0f, grad_scale = 1.0f;
  std::int64_t step = 1;
};

// The reference body.
inline void adamw_reference(std::int64_t n, const AdamWStep& s, const float* grad, float* param,
                            float* m, float* v) {
  const double b1 = double{s.beta1}, b2 = double{s.beta2}, lr = double{s.learning_rate};
  const double t = static_cast<double>(s.step);
  for (std::int64_t i = 0; i < n; ++i) {
    const double g = double{s.grad_scale} * double{grad[i]};
    m[i] = static_cast<float>(b1 * double{m[i]} + (1 - b1) * g);
    v[i] = static_cast<float>(b2 * double{v[i]} + (1 - b2) * g * g);
    const double root = std::sqrt(double{v[i]} / (1 - std::pow(b2, t))) + double{s.epsilon};
    const double rate = lr / (1 - std::pow(b1, t)), decay = 1 - lr * double{s.weight_decay};
    param[i] = static_cast<float>(double{param[i]} * decay - rate * double{m[i]} / root);
  }
}

}  // namespace kernels

namespace detail {

struct AdamWBlock {
  std::int64_t n;
  float beta1, beta2, epsilon, grad_scale;
  float decay, rate, root;  // 1 - lr wd, lr / (1 - b1^t), 1 / sqrt(1 - b2^t)
  const float* grad;
  float* param;
  float* m;
  float* v;

  template <class L>
  TINYSCALE_INLINE void step(const typename L::V& grads, typename L::V& p, typename L::V& first,
                             typename L::V& second) const {
    typename L::V c, d, deviation;
    broadcast<L>(grad_scale, c);
    const typename L::V g = grads * c;
    broadcast<L>(beta1, c);
    broadcast<L>(1.0f - beta1, d);
    first = first * c + g * d;
    broadcast<L>(beta2, c);
    broadcast<L>(1.0f - beta2, d);
    second = second * c + g * g * d;
    sqrt_vector<L>(second, deviation);
    broadcast<L>(root, c);
    broadcast<L>(epsilon, d);
    const typename L::V below = deviation * c + d;
    broadcast<L>(decay, c);
    broadcast<L>(rate, d);
    p = p * c - d * first / below;
  }

  template <class L>
  TINYSCALE_INLINE void at(std::int64_t i, std::int64_t left) const {
    typename L::V vg, vp, vm, vv;
    load_some<L>(grad + i, left, 0.0f, vg);
    load_some<L>(param + i, left, 0.0f, vp);
    load_some<L>(m + i, left, 0.0f, vm);
    load_some<L>(v + i, left, 0.0f, vv);
    step<L>(vg, vp, vm, vv);
    store_some<L>(param + i, left, vp);
    store_some<L>(m + i, left, vm);
    store_some<L>(v + i, left, vv);
  }

  template <class L>
  TINYSCALE_INLINE void run() const {
    for_row<L>(n, *this);
  }
};

}  // namespace detail

namespace kernels {

inline void adamw(std::int64_t n, const AdamWStep& s, const float* grad, float* param, float* m,
                  float* v) {
  const double t = static_cast<double>(s.step);
  const double lr = static_cast<double>(s.learning_rate);
  const double decay = 1.0 - lr * static_cast<double>(s.weight_decay);
  const double rate = lr / (1.0 - std::pow(static_cast<double>(s.beta1), t));
  const double root = 1.0 / std::sqrt(1.0 - std::pow(static_cast<double>(s.beta2), t));
  const std::int64_t block = detail::elementwise_block;
  parallel_for((n + block - 1) / block, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      const std::int64_t at = b * block;
      detail::run_on_lanes(detail::AdamWBlock{std::min(block, n - at), s.beta1, s.beta2, s.epsilon,
                                              s.grad_scale, static_cast<float>(decay),
                                              static_cast<float>(rate), static_cast<float>(root),
                                              grad + at, param + at, m + at, v + at});
    }
  });
}

}  // namespace kernels
}}  // namespace tinyscale

// >> tinyscale/compute/scratch.hpp
// Scratch memory that kernels borrow from the free lists of all threads.

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace detail {

// Borrows `count` floats, contents undefined, until it goes out of scope.
class Scratch {
 public:
  explicit Scratch(std::int64_t count)
      : count_(static_cast<std::size_t>(count)), memory_(take(count)) {}
  ~Scratch() { pool_give(memory_, count_, sizeof(float)); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  float* data() const { return static_cast<float*>(memory_); }

 private:
  static void* take(std::int64_t count) {
    try {
      return pool_take(static_cast<std::size_t>(count), sizeof(float));
    } catch (const std::bad_alloc&) {
      fail({"kernel: ", count, " floats of scratch memory; this machine has none left"});
    }
  }

  std::size_t count_;
  void* memory_;
};

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/compute/gemm_tile.hpp
// Register tile of a matrix product: a block of C that stays in registers while k runs.
// Each step of k loads one row of B's panel, broadcasts one number of each row of A, and does
// rows x vectors multiply-adds: 24 of them on 10 loads with AVX-512 (6 rows of 4 vectors), and
// fetches what the next panel will need: memory works while the multipliers do.

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace detail {

// Operands as strides: a(i, p) = a[i * a_row + p * a_col]. Where a_tile is not 0, A is packed: row
// i begins at i * a_tile for the first row of each tile, and those of one tile are a_row apart.
struct GemmOperands {
  std::int64_t m, n, k;
  const float* a;
  std::int64_t a_row, a_col;
  const float* b;
  std::int64_t b_row, b_col;
  float beta;
  float* c;
  std::int64_t ldc;
  const void* epilogue = nullptr;  // what finish does to rows [0, m) of a finished block of C
  void (*finish)(const GemmOperands& g, std::int64_t row, std::int64_t m, std::int64_t column,
                 std::int64_t n) = nullptr;
  std::int64_t a_tile = 0;

  const float* a_at(std::int64_t i, std::int64_t p) const {
    return a + i * (a_tile == 0 ? a_row : a_tile) + p * a_col;
  }
};

// Rows [0, m) of one panel of B. ahead: what will be read next; in each step of k one cache line of
// it is fetched, then it moves by ahead_row. ahead_tile: what a tile fetches is so much after its
// own.
struct PanelWork {
  std::int64_t m, k;
  const float* a;
  std::int64_t a_row, a_col;
  const float* b;
  std::int64_t b_row;
  float* c;
  std::int64_t ldc;
  float beta;  // 0 or 1
  const float* ahead;
  std::int64_t ahead_row;
  std::int64_t a_tile = 0, ahead_tile = 0;
  float* copy = nullptr;  // for GemmFirst
};

// One step of k: a row of B, a number of each row of A. COPIES: 1 to leave the row of B in copy.
template <class L, int ROWS, int VECTORS, int COPIES = 0>
TINYSCALE_INLINE void gemm_step(
    const float* a, const std::int64_t (&rows)[static_cast<std::size_t>(ROWS)], const float* b,
    typename L::V (&sum)[static_cast<std::size_t>(ROWS)][static_cast<std::size_t>(VECTORS)],
    float* copy = nullptr) {
  typename L::V right[static_cast<std::size_t>(VECTORS)];
  TINYSCALE_UNROLL
  for (int j = 0; j < VECTORS; ++j) {
    load<L>(b + j * L::width, right[j]);
    if constexpr (COPIES != 0) {
      store<L>(copy + j * L::width, right[j]);
    }
  }
  TINYSCALE_UNROLL
  for (int i = 0; i < ROWS; ++i) {
    typename L::V left;
    broadcast<L>(a[rows[i]], left);
    TINYSCALE_UNROLL
    for (int j = 0; j < VECTORS; ++j) {
      sum[i][j] = sum[i][j] + left * right[j];
    }
  }
}

// C[ROWS, VECTORS * width] (+)= A[ROWS, k] B[k, ...]: the whole tile in registers. Rows from
// `valid` on repeat the first one and are not stored.
template <class L, int ROWS, int VECTORS, int COPIES = 0>
TINYSCALE_INLINE void gemm_tile(const PanelWork& w, std::int64_t row, std::int64_t valid,
                                const float* ahead) {
  typedef typename L::V V;
  V sum[static_cast<std::size_t>(ROWS)][static_cast<std::size_t>(VECTORS)];
  TINYSCALE_UNROLL
  for (int i = 0; i < ROWS; ++i) {
    TINYSCALE_UNROLL
    for (int j = 0; j < VECTORS; ++j) {
      sum[i][j] = V{};
    }
  }
  std::int64_t rows[static_cast<std::size_t>(ROWS)];
  TINYSCALE_UNROLL
  for (int i = 0; i < ROWS; ++i) {
    rows[i] = i < valid ? i * w.a_row : 0;
  }
  const std::int64_t a_col = w.a_col, b_row = w.b_row, ahead_row = w.ahead_row;
  const std::int64_t ldc = w.ldc;
  const bool adds = w.beta != 0.0f;
  const float* a = w.a + row * (w.a_tile == 0 ? w.a_row : w.a_tile);
  const float* b = w.b;
  float* c = w.c + row * ldc;
  std::int64_t p = w.k;
  if constexpr (COPIES != 0) {
    constexpr std::int64_t reach = 16;  // steps
    float* copy = w.copy;
    for (; p > 0; --p, a += a_col, b += b_row, copy += VECTORS * L::width) {
      TINYSCALE_UNROLL
      for (int j = 0; j < VECTORS * L::width; j += 16) {
        prefetch(b + (p > reach ? reach * b_row : 0) + j);
      }
      gemm_step<L, ROWS, VECTORS, 1>(a, rows, b, sum, copy);
    }
  } else if constexpr (ROWS == L::rows && VECTORS == L::vectors) {
    for (; p > 1; p -= 2, a += 2 * a_col, b += 2 * b_row, ahead += 2 * ahead_row) {
      prefetch(ahead);
      gemm_step<L, ROWS, VECTORS>(a, rows, b, sum);
      gemm_step<L, ROWS, VECTORS>(a + a_col, rows, b + b_row, sum);
    }
  }
  for (; p > 0; --p, a += a_col, b += b_row, ahead += ahead_row) {
    prefetch(ahead);
    gemm_step<L, ROWS, VECTORS>(a, rows, b, sum);
  }
  TINYSCALE_UNROLL
  for (int i = 0; i < ROWS; ++i) {
    TINYSCALE_UNROLL
    for (int j = 0; j < VECTORS; ++j) {
      if (i >= valid) {
        return;
      }
      float* to = c + i * ldc + j * L::width;
      if (adds) {
        V old;
        load<L>(to, old);
        sum[i][j] = sum[i][j] + old;
      }
      store<L>(to, sum[i][j]);
    }
  }
}

// The first rows of a panel, which leaves a copy of it in w.copy for the others.
template <class L>
struct GemmFirst {
  const PanelWork& w;

  template <class Same>
  TINYSCALE_INLINE void run() const {
    gemm_tile<L, L::rows, L::vectors, 1>(w, 0, w.m, w.b);
  }
};

// Full tiles, the last perhaps in part, or a tile of 2 rows. Of a row of what is ahead each of four
// tiles in turn fetches one line.
template <class L, int VECTORS>
struct GemmPanel {
  const PanelWork& w;

  template <class Same>
  TINYSCALE_INLINE void run() const {
    std::int64_t tile = 0;
    for (std::int64_t i = 0; i < w.m; ++tile) {
      const std::int64_t next = w.m - i > L::rows ? tile + 1 : 0;
      const std::int64_t place =
          w.ahead_tile == 0 ? tile % 4 * 16 + tile / 4 % 2 * w.ahead_row : next * w.ahead_tile;
      const float* const ahead = w.ahead + place;
      if (w.m - i > 2) {
        gemm_tile<L, L::rows, VECTORS>(w, i, w.m - i, ahead);
        i += L::rows;
      } else {
        gemm_tile<L, 2, VECTORS>(w, i, w.m - i, ahead);
        i += 2;
      }
    }
  }
};

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/compute/gemm_check.hpp
// What a matrix product is asked for: its operands as strides, and the arguments no product can be
// made of, named in an Error.

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace kernels {

enum class Trans { no, yes };  // yes: the matrix is stored transposed

}  // namespace kernels

namespace detail {

// One past the last float of a rows x columns matrix; throws where that cannot be counted.
inline std::int64_t gemm_extent(const char* who, std::int64_t rows, std::int64_t columns,
                                std::int64_t stride) {
  const std::int64_t most = std::int64_t{1} << 60;
  if (rows < 0 || columns < 0 || stride < 0 || columns > most ||
      (rows > 1 && stride > most / rows)) {
    fail({who, ": ", rows, " rows of ", columns, " numbers, ", stride,
          " apart, are no matrix in memory; sizes must be from 0 to 2^60"});
  }
  return rows == 0 || columns == 0 ? 0 : (rows - 1) * stride + columns;
}

// Whether C (m x n, ldc apart) shares a number with a matrix that starts at x. Columns side by side
// in rows of one length are apart although their ranges in memory cross.
inline bool gemm_overlap(const float* c, std::int64_t m, std::int64_t n, std::int64_t ldc,
                         const float* x, std::int64_t extent, std::int64_t columns,
                         std::int64_t ldx) {
  const std::less<const float*> before;
  if (extent == 0 || !before(x, c + (m - 1) * ldc + n) || !before(c, x + extent)) {
    return false;
  }
  if (ldc == 0) {  // of one row
    return true;
  }
  const std::int64_t shift = ((x - c) % ldc + ldc) % ldc;
  return ldx != ldc || shift < n || shift + columns > ldc;
}

// Throws on what no product can be made of; true where there is something to do.
inline bool gemm_check(const char* who, kernels::Trans ta, kernels::Trans tb, const GemmOperands& g,
                       std::int64_t lda, std::int64_t ldb) {
  const bool a_no = ta == kernels::Trans::no, b_no = tb == kernels::Trans::no;
  const std::int64_t a = gemm_extent(who, a_no ? g.m : g.k, a_no ? g.k : g.m, lda);
  const std::int64_t b = gemm_extent(who, b_no ? g.k : g.n, b_no ? g.n : g.k, ldb);
  const std::int64_t c = gemm_extent(who, g.m, g.n, g.ldc);
  if (g.beta != 0.0f && g.beta != 1.0f) {
    fail({who, ": beta is ", static_cast<double>(g.beta), "; it must be 0 or 1"});
  }
  if (g.m > 1 && g.ldc < g.n) {
    fail({who, ": rows of C are ", g.ldc, " apart; they must be at least n = ", g.n});
  }
  if (c == 0) {
    return false;
  }
  if (g.c == nullptr || (a > 0 && g.a == nullptr) || (b > 0 && g.b == nullptr)) {
    fail({who, ": ",
          g.c == nullptr   ? "C"
          : g.a == nullptr ? "A"
                           : "B",
          " is null; m, n, k are ", g.m, ", ", g.n, ", ", g.k});
  }
  const bool in_a = gemm_overlap(g.c, g.m, g.n, g.ldc, g.a, a, a_no ? g.k : g.m, lda);
  if (in_a || gemm_overlap(g.c, g.m, g.n, g.ldc, g.b, b, b_no ? g.n : g.k, ldb)) {
    fail({who, ": C overlaps ", in_a ? "A" : "B", "; it must have memory of its own"});
  }
  return true;
}

inline GemmOperands gemm_operands(kernels::Trans ta, kernels::Trans tb, std::int64_t m,
                                  std::int64_t n, std::int64_t k, const float* a, std::int64_t lda,
                                  const float* b, std::int64_t ldb, float beta, float* c,
                                  std::int64_t ldc) {
  const bool a_no = ta == kernels::Trans::no;
  const bool b_no = tb == kernels::Trans::no;
  return {m,    n, k,  a, a_no ? lda : 1, a_no ? 1 : lda, b, b_no ? ldb : 1, b_no ? 1 : ldb,
          beta, c, ldc};
}

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/compute/gemm_short.hpp
// Matrix product with a short A (decode: one row a sequence): reading B is the whole cost, so B is
// read once, 8 rows at a time: 8 streams fetch from memory about twice as fast as one does.

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace detail {

constexpr std::int64_t gemm_few = 64;              // rows of A up to which B is read in streams
constexpr std::int64_t gemm_few_packed_rows = 32;  // the same of a packed B

// What a tile fetches while it multiplies: `count` times what is here and `next` behind it.
struct Ahead {
  const float* at;
  std::int64_t next, row, count;
};

// C[ROWS, two vectors] += A[ROWS, deep] B[deep, two vectors], the second `next` behind the first.
// KEEP: copies what it reads of B to `keep`, row after row.
template <class L, int ROWS, int DEPTH, bool KEEP>
TINYSCALE_INLINE void gemm_few_tile(const float* a, std::int64_t deep, const float* b,
                                    std::int64_t b_row, std::int64_t next, float* c,
                                    std::int64_t ldc, const Ahead& ahead, float* keep) {
  typename L::V sum[static_cast<std::size_t>(ROWS)][2], right[2], v;
  const std::int64_t quiet = deep - ahead.count;
  const float* fetch = ahead.at;
  TINYSCALE_UNROLL
  for (int x = 0; x < ROWS; ++x) {
    load<L>(c + x * ldc, sum[x][0]);
    load<L>(c + x * ldc + L::width, sum[x][1]);
  }
  for (std::int64_t q = deep; q > 0; --q) {
    load<L>(b, right[0]);
    load<L>(b + next, right[1]);
    if (q > quiet) {
      prefetch(fetch);
      prefetch(fetch + ahead.next);
      fetch += ahead.row;
    }
    if constexpr (KEEP) {
      store<L>(keep, right[0]);
      store<L>(keep + L::width, right[1]);
      keep += 2 * L::width;
    }
    TINYSCALE_UNROLL
    for (int x = 0; x < ROWS; ++x) {
      broadcast<L>(a[x * DEPTH], v);
      sum[x][0] = sum[x][0] + v * right[0];
      sum[x][1] = sum[x][1] + v * right[1];
    }
    b += b_row;
    ++a;
  }
  TINYSCALE_UNROLL
  for (int x = 0; x < ROWS; ++x) {
    store<L>(c + x * ldc, sum[x][0]);
    store<L>(c + x * ldc + L::width, sum[x][1]);
  }
}

// One row of A or a few, B as stored: C[m, begin..end) from 8 rows of B at a time (32 of them for
// more than 16 rows of A), in tiles of two vectors, while the next rows are fetched. C adds up in a
// copy that stays in cache. Vectors of B start where cache lines do; the first and the last of a
// chunk overlap their neighbours.
struct GemmFew {
  const GemmOperands& g;
  const float* a;  // [k / depth][rows][depth], rows 1 (not used) or a multiple of 4
  std::int64_t rows;
  std::int64_t begin, end;  // columns, at least L::width
  std::int64_t origin;      // of the first vector, begin or before it
  float* copy;              // [rows][row]

  static constexpr std::int64_t depth(std::int64_t rows) { return rows > 16 ? 32 : 8; }
  static constexpr std::int64_t row(std::int64_t columns) { return (columns + 63) / 32 * 32 + 16; }

  std::int64_t column(std::int64_t j, std::int64_t width) const {
    return std::max(begin, std::min(origin + j, end - width));
  }

  template <class L>
  TINYSCALE_INLINE void run() const {
    const std::int64_t columns = end - origin, ld = row(columns);
    typename L::V v;
    std::memset(copy, 0, static_cast<std::size_t>(rows * ld) * sizeof(float));
    for (std::int64_t i = 0; i < g.m && g.beta != 0.0f; ++i) {
      for (std::int64_t j = 0; j < columns; j += L::width) {
        load<L>(g.c + i * g.ldc + column(j, L::width), v);
        store<L>(copy + i * ld + j, v);
      }
    }
    std::int64_t p = 0;
    for (; p + 8 <= g.k && rows == 1; p += 8) {
      add_rows<L, 8>(p, columns);
    }
    for (; p < g.k && rows == 1; ++p) {
      add_rows<L, 1>(p, columns);
    }
    if (depth(rows) == 32) {
      blocks<L, 32>(columns, ld);
    } else if (rows > 1) {
      blocks<L, 8>(columns, ld);
    }
    for (std::int64_t i = 0; i < g.m; ++i) {
      for (std::int64_t j = 0; j < columns; j += L::width) {
        load<L>(copy + i * ld + j, v);
        store<L>(g.c + i * g.ldc + column(j, L::width), v);
      }
    }
  }

  // A of one row. The processor sees the streams by itself.
  template <class L, int DEPTH>
  TINYSCALE_INLINE void add_rows(std::int64_t p, std::int64_t columns) const {
    typename L::V left[static_cast<std::size_t>(DEPTH)], sum, v;
    TINYSCALE_UNROLL
    for (int r = 0; r < DEPTH; ++r) {
      broadcast<L>(g.a[(p + r) * g.a_col], left[r]);
    }
    const float* const b = g.b + p * g.b_row;
    const std::int64_t b_row = g.b_row;
    float* const to = copy;
    const std::int64_t low = begin, high = end - L::width, shift = origin;
    for (std::int64_t j = 0; j < columns; j += L::width) {
      const float* from = b + std::max(low, std::min(shift + j, high));
      load<L>(to + j, sum);
      TINYSCALE_UNROLL
      for (int r = 0; r < DEPTH; ++r) {
        load<L>(from + r * b_row, v);
        sum = sum + left[r] * v;
      }
      store<L>(to + j, sum);
    }
  }

  template <class L, int DEPTH>
  TINYSCALE_INLINE void blocks(std::int64_t columns, std::int64_t ld) const {
    alignas(64) float kept[static_cast<std::size_t>(2 * L::width * DEPTH)];
    for (std::int64_t p = 0; p < g.k; p += DEPTH) {
      for (std::int64_t j = 0; j < columns; j += 2 * L::width) {
        std::int64_t i = 0;
        if constexpr (L::width == 16) {
          for (; i + 8 <= rows; i += 8) {
            tile<L, 8, DEPTH>(i, p, j, ld, kept);
          }
        }
        for (; i < rows; i += 4) {
          tile<L, 4, DEPTH>(i, p, j, ld, kept);
        }
      }
    }
  }

  // Up to 16 rows the first tile fetches: the others find the rows in cache. Of more rows the first
  // keeps what it reads of B where the others find it, and each fetches its share.
  template <class L, int ROWS, int DEPTH>
  TINYSCALE_INLINE void tile(std::int64_t i, std::int64_t p, std::int64_t j, std::int64_t ld,
                             float* kept) const {
    const std::int64_t first = column(j, L::width), b_row = g.b_row;
    const std::int64_t next = column(j + L::width, L::width) - first;
    const float* const b = g.b + p * b_row + first;
    const float* const left = a + p * rows + i * DEPTH;
    const std::int64_t deep = std::min<std::int64_t>(DEPTH, g.k - p);
    float* const c = copy + i * ld + j;
    Ahead ahead{b + DEPTH * b_row, next, b_row, p + 2 * DEPTH <= g.k ? DEPTH : 0};
    if constexpr (DEPTH == 8) {
      ahead.count = i == 0 ? ahead.count : 0;
      gemm_few_tile<L, ROWS, DEPTH, false>(left, deep, b, b_row, next, c, ld, ahead, nullptr);
      return;
    }
    ahead.at += i * ahead.count / rows * b_row;
    ahead.count = (ahead.count * ROWS + rows - 1) / rows;
    if (i == 0) {
      gemm_few_tile<L, ROWS, DEPTH, true>(left, deep, b, b_row, next, c, ld, ahead, kept);
    } else {
      gemm_few_tile<L, ROWS, DEPTH, false>(left, deep, kept, 2 * L::width, L::width, c, ld, ahead,
                                           nullptr);
    }
  }
};

// A few rows of A, B packed in panels [k][width of the tile]: panel after panel as they lie in
// memory, in pieces that stay in L1 while the next piece is fetched.
struct GemmStream {
  static constexpr int depth = 32;  // rows of B in a piece
  const GemmOperands& g;
  const float* a;  // [k / depth][rows][depth], rows a multiple of 4
  std::int64_t rows;
  std::int64_t begin, end;  // columns; begin starts a panel
  const float* packed;
  const float* edge;  // the last, narrower panel
  std::int64_t edge_row;

  template <class L>
  TINYSCALE_INLINE void run() const {
    constexpr std::int64_t wide = L::width * L::vectors;
    alignas(64) float copy[static_cast<std::size_t>(gemm_few_packed_rows * wide)];
    for (std::int64_t j = begin; j < end; j += wide) {
      const bool whole = j + wide <= g.n;
      const bool more = j + 2 * wide <= g.n;
      panel<L>(whole ? packed + j * g.k : edge, whole ? wide : edge_row, more, copy);
      const std::int64_t columns = std::min(wide, g.n - j);
      for (std::int64_t i = 0; i < g.m; ++i) {
        float* const c = g.c + i * g.ldc + j;
        for (std::int64_t x = 0; x < columns; ++x) {
          c[x] = g.beta == 0.0f ? copy[i * wide + x] : copy[i * wide + x] + c[x];
        }
      }
      if (g.finish != nullptr) {
        g.finish(g, 0, g.m, j, columns);
      }
    }
  }

  template <class L>
  TINYSCALE_INLINE void panel(const float* b, std::int64_t row, bool more, float* copy) const {
    constexpr std::int64_t wide = L::width * L::vectors, two = 2 * L::width;
    std::memset(copy, 0, static_cast<std::size_t>(rows * wide) * sizeof(float));
    for (std::int64_t p = 0; p < g.k; p += depth, b += depth * row) {
      const std::int64_t deep = std::min<std::int64_t>(depth, g.k - p);
      const bool fetches = p + 2 * depth <= g.k || (more && p + depth >= g.k);
      for (std::int64_t j = 0; j < row; j += two) {
        const std::int64_t next = j + two <= row ? L::width : 0;
        const float* const ahead = fetches ? b + (row + j) * deep : b;
        std::int64_t i = 0;
        if constexpr (L::width == 16) {
          for (; i + 8 <= rows; i += 8) {
            tile<L, 8>(i, p, b + j, row, next, copy + j, ahead, fetches);
          }
        }
        for (; i < rows; i += 4) {
          tile<L, 4>(i, p, b + j, row, next, copy + j, ahead, fetches);
        }
      }
    }
  }

  // Each tile of rows fetches its share, so that memory always works.
  template <class L, int ROWS>
  TINYSCALE_INLINE void tile(std::int64_t i, std::int64_t p, const float* b, std::int64_t row,
                             std::int64_t next, float* copy, const float* ahead,
                             bool fetches) const {
    constexpr std::int64_t wide = L::width * L::vectors;
    const std::int64_t deep = std::min<std::int64_t>(depth, g.k - p),
                       share = 2 * L::width * ROWS / rows;
    const Ahead mine{ahead + i / ROWS * share * deep, share / 2, share, fetches ? deep : 0};
    gemm_few_tile<L, ROWS, depth, false>(a + p * rows + i * depth, deep, b, row, next,
                                         copy + i * wide, wide, mine, nullptr);
  }
};

constexpr std::int64_t gemm_in_cache = 1 << 20;    // floats of B that streams gain nothing for
constexpr std::int64_t gemm_in_place = 72 * 1024;  // floats of B read where they stand: 288 KB

// Floats from the start of a page of memory to x.
inline std::int64_t page_place(const float* x) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(x) / sizeof(float) % 1024);
}

// A as [k / depth][rows][depth], the first row in the place of rows that are not there.
inline void gemm_pack_few(const GemmOperands& g, std::int64_t rows, std::int64_t depth, float* to) {
  for (std::int64_t p = 0; p < g.k; p += depth) {
    const std::int64_t count = std::min<std::int64_t>(depth, g.k - p);
    for (std::int64_t i = 0; i < rows; ++i, to += depth) {
      const float* from = g.a + (i < g.m ? i : 0) * g.a_row + p * g.a_col;
      for (std::int64_t q = 0; q < count; ++q) {
        to[q] = from[q * g.a_col];
      }
    }
  }
}

// Few rows of A, a large B packed: packed + j * k holds column j's panel, edge the last, narrower
// one.
inline void gemm_few_packed(const GemmOperands& g, const float* packed, const float* edge,
                            std::int64_t edge_row) {
  const std::int64_t rows = (g.m + 3) / 4 * 4, chunk = 256;  // a multiple of every panel's width
  const Scratch left(rows * (g.k + GemmStream::depth));
  gemm_pack_few(g, rows, GemmStream::depth, left.data());
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    run_on_lanes(GemmStream{g, left.data(), rows, begin * chunk, std::min(g.n, end * chunk), packed,
                            edge, edge_row});
  };
  parallel_for((g.n + chunk - 1) / chunk, 1, body);
}

// Few rows of A, B as stored, in chunks of columns; false where another way is better.
inline bool gemm_few_rows(const GemmOperands& g, std::int64_t width) {
  const std::int64_t in_cache = g.m > gemm_few / 2 ? 4 * gemm_in_cache : gemm_in_cache;
  if (g.m > gemm_few || g.b_col != 1 || g.n < width || (g.m > 1 && g.n * g.k <= in_cache)) {
    return false;
  }
  const std::int64_t rows = g.m == 1 ? 1 : (g.m + 3) / 4 * 4;
  const std::int64_t depth = GemmFew::depth(rows);
  const Scratch left(g.m == 1 ? 0 : rows * (g.k + depth));
  if (g.m > 1) {
    gemm_pack_few(g, rows, depth, left.data());
  }
  const std::int64_t chunk = g.n < 2048 ? 256 : g.m == 1 ? 1024 : 512, shift = page_place(g.b) % 16;
  const std::int64_t chunks = std::max<std::int64_t>(1, (g.n + shift - 17 + chunk) / chunk);
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    const Scratch copy(rows * GemmFew::row(chunk + 16) + 1024);
    for (std::int64_t x = begin; x < end; ++x) {
      const std::int64_t origin = x * chunk - shift, first = std::max<std::int64_t>(0, origin);
      const std::int64_t last = x + 1 == chunks ? g.n : origin + chunk;
      // C's copy at B's place in a page: a store never seems to be what the next loads read.
      const std::int64_t place = (page_place(g.b + first) - page_place(copy.data()) + 1024) % 1024;
      run_on_lanes(GemmFew{g, left.data(), rows, first, last, origin, copy.data() + place});
      if (g.finish != nullptr) {
        g.finish(g, 0, g.m, first, last - first);
      }
    }
  };
  if (g.m * g.n * g.k < (1 << 17)) {
    body(0, chunks);
  } else {
    parallel_for(chunks, 1, body);
  }
  return true;
}

// Short A, B transposed: C[i, j] is a dot product of two rows; 4 rows of B at a time, a quarter of
// the columns apart: one stream a memory page.
struct GemmDots {
  const GemmOperands& g;
  std::int64_t begin, end;

  template <class L>
  TINYSCALE_INLINE void run() const {
    const std::int64_t apart = (end - begin) / 4;
    for (std::int64_t j = 0; j < apart; ++j) {
      for (std::int64_t i = 0; i < g.m; ++i) {
        dots<L, 4>(i, begin + j, apart);
      }
    }
    for (std::int64_t j = begin + 4 * apart; j < end; ++j) {
      for (std::int64_t i = 0; i < g.m; ++i) {
        dots<L, 1>(i, j, 0);
      }
    }
  }

  template <class L, int ROWS>
  TINYSCALE_INLINE void dots(std::int64_t i, std::int64_t j, std::int64_t apart) const {
    typename L::V sum[static_cast<std::size_t>(ROWS)][2], left, v;
    TINYSCALE_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      sum[r][0] = sum[r][1] = typename L::V{};
    }
    const float* a = g.a + i * g.a_row;
    const float* b = g.b + j * g.b_col;
    const std::int64_t step = apart * g.b_col, k = g.k;
    std::int64_t p = 0;
    for (; p + 2 * L::width <= k; p += 2 * L::width) {
      TINYSCALE_UNROLL
      for (int half = 0; half < 2; ++half) {
        load<L>(a + p + half * L::width, left);
        TINYSCALE_UNROLL
        for (int r = 0; r < ROWS; ++r) {
          load<L>(b + r * step + p + half * L::width, v);
          sum[r][half] = sum[r][half] + left * v;
        }
      }
    }
    float* c = g.c + i * g.ldc + j;
    TINYSCALE_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      float total = sum_lanes<L>(sum[r][0] + sum[r][1]);
      for (std::int64_t x = p; x < k; ++x) {
        total += a[x] * b[r * step + x];
      }
      float* to = c + r * apart;
      *to = g.beta == 0.0f ? total : total + *to;
    }
  }
};

constexpr std::int64_t gemm_dots = 8;  // rows of A up to which a transposed B is not packed

// Short A, B transposed, in chunks of columns; false where another way is better.
inline bool gemm_skinny(const GemmOperands& g) {
  if (g.b_col == 1 || g.b_row != 1 || g.a_col != 1 || g.m > gemm_dots) {
    return false;
  }
  const std::int64_t chunk = g.n < 2048 ? 32 : 256;
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t x = begin; x < end; ++x) {
      const std::int64_t first = x * chunk, last = std::min(g.n, first + chunk);
      run_on_lanes(GemmDots{g, first, last});
      if (g.finish != nullptr) {
        g.finish(g, 0, g.m, first, last - first);
      }
    }
  };
  const std::int64_t chunks = (g.n + chunk - 1) / chunk;
  if (g.m * g.n * g.k < (1 << 17)) {
    body(0, chunks);
  } else {
    parallel_for(chunks, 1, body);
  }
  return true;
}

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/compute/gemm.hpp
// Matrix product: C[M, N] = A[M, K] B[K, N] + beta C; 2 M K N flops.
// Three ideas make it fast. A tile of C (6 x 64 with AVX-512) stays in registers while k runs.
// B is copied into panels one tile wide only when that pays: it is large, or transposed. Up to 1024
// rows each panel is copied by its first tile of C, while that multiplies, and stays in L2.
// Short A (decode) reads B where it stands: up to 3 rows in streams, then in tiles.
// Each element of C adds its products in an order that the number of threads cannot change.
// Goto and van de Geijn, Anatomy of High-Performance Matrix Multiplication (2008).

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace kernels {

// The reference body. A is lda floats from row to row as stored; so are B and C.
inline void gemm_reference(Trans ta, Trans tb, std::int64_t m, std::int64_t n, std::int64_t k,
                           const float* a, std::int64_t lda, const float* b, std::int64_t ldb,
                           float beta, float* c, std::int64_t ldc) {
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0.0;
      for (std::int64_t p = 0; p < k; ++p) {
        const float x = ta == Trans::no ? a[i * lda + p] : a[p * lda + i];
        const float y = tb == Trans::no ? b[p * ldb + j] : b[j * ldb + p];
        sum += static_cast<double>(x) * static_cast<double>(y);
      }
      const float old = beta == 0.0f ? 0.0f : beta * c[i * ldc + j];
      c[i * ldc + j] = static_cast<float>(sum) + old;
    }
  }
}

}  // namespace kernels

namespace detail {

constexpr std::int64_t gemm_depth = 1024;      // most k of one pass: a panel of B stays in L2
constexpr std::int64_t gemm_rows = 96;         // most rows of one task
constexpr std::int64_t gemm_packed = 1 << 20;  // floats of B packed at once: 4 MB
constexpr std::int64_t gemm_copied = 1024;     // most rows for which panels are copied one by one

// Where the panels of B are read from: [k][wide] each, or in place where packed is null.
struct GemmPanels {
  std::int64_t first, columns;  // of C, in this pass
  const float* packed;
  const float* edge;      // the last, narrower panel, padded with zeros; packed like the others
  std::int64_t edge_row;  // from row to row of it
  std::int64_t depth;     // k of one pass over C
  bool copied = false;    // each block copies the panels of B, one at a time
};

// Copies columns [j, j + valid) of rows [p, p + depth) of B to to[depth][wide], zeros behind them.
struct GemmPack {
  const GemmOperands& g;
  std::int64_t p, depth, j, valid, wide;
  float* to;

  static constexpr std::int64_t strip = 16;  // rows at a time, while the next ones are fetched

  template <class L>
  TINYSCALE_INLINE void run() const {
    for (std::int64_t q = 0; q < depth; q += strip) {
      const std::int64_t rows = depth - q < strip ? depth - q : strip;
      if (g.b_col == 1) {
        for (std::int64_t r = 0; r < rows; ++r) {
          copy_row<L>(g.b + (p + q + r) * g.b_row + j, to + (q + r) * wide);
        }
        continue;
      }
      const float* from = g.b + j * g.b_col + p + q;  // b_row is 1
      for (std::int64_t x = 0; x < valid && q + strip < depth; ++x) {
        prefetch(from + x * g.b_col + strip);
      }
      transpose(valid, rows, from, g.b_col, to + q * wide, wide);
      for (std::int64_t r = q; r < q + rows && valid < wide; ++r) {
        std::fill(to + r * wide + valid, to + (r + 1) * wide, 0.0f);
      }
    }
  }

  template <class L>
  TINYSCALE_INLINE void copy_row(const float* from, float* row) const {
    const std::int64_t whole = valid, all = wide;
    std::int64_t x = 0;
    typename L::V v;
    for (; x + L::width <= whole; x += L::width) {
      prefetch(from + x + strip * g.b_row);
      load<L>(from + x, v);
      store<L>(row + x, v);
    }
    for (; x < all; ++x) {
      row[x] = x < whole ? from[x] : 0.0f;
    }
  }
};

// Copies A, transposed, to [tile][k][rows of a tile]: k in [begin, end), whole tiles only.
struct GemmPackRows {
  const GemmOperands& g;
  std::int64_t begin, end;
  float* to;

  template <class L>
  TINYSCALE_INLINE void run() const {
    for (std::int64_t p = begin; p < end; p += 8) {  // rows of A as stored, which stay in L1
      const std::int64_t last = std::min(end, p + 8);
      for (std::int64_t i = 0; i + L::rows <= g.m; i += L::rows) {
        for (std::int64_t q = p; q < last; ++q) {
          std::memcpy(to + i * g.k + q * L::rows, g.a + q * g.a_col + i, L::rows * sizeof(float));
        }
      }
      for (std::int64_t i = g.m / L::rows * L::rows; i < g.m; ++i) {
        for (std::int64_t q = p; q < last; ++q) {
          to[i / L::rows * L::rows * g.k + q * L::rows + i % L::rows] = g.a[q * g.a_col + i];
        }
      }
    }
  }
};

// Rows [begin, end) of C, columns of one pass.
struct GemmBlock {
  const GemmOperands& g;
  const GemmPanels& panels;
  std::int64_t begin, end;  // rows

  template <class L>
  TINYSCALE_INLINE void run() const {
    constexpr std::int64_t wide = L::width * L::vectors;
    const std::int64_t columns = panels.columns, full = columns / wide * wide;
    const Scratch copy(panels.copied ? panels.depth * wide : 0);
    for (std::int64_t p = 0; p < g.k; p += panels.depth) {
      const std::int64_t depth = std::min(panels.depth, g.k - p);
      for (std::int64_t j = 0; j < full; j += wide) {
        if (panels.copied) {
          copied<L>(p, depth, j, copy.data());
          continue;
        }
        const bool stands = panels.packed == nullptr;
        const std::int64_t row = stands ? g.b_row : wide;
        const float* b =
            stands ? g.b + p * row + panels.first + j : panels.packed + j * g.k + p * wide;
        const std::int64_t reach = 8;
        const bool last = stands ? p + depth + reach > g.k : j + wide >= full;
        const float* ahead = b + (last ? 0 : stands ? reach * row : g.k * wide);
        panel<L, L::vectors>(p, depth, b, row, j, wide, ahead, row);
      }
      std::int64_t j = full;
      const std::int64_t step = panels.edge_row;
      const float* b = panels.edge + p * step;
      if constexpr (L::vectors > 2) {
        for (; columns - j > L::width; j += 2 * L::width, b += 2 * L::width) {
          const std::int64_t valid = std::min<std::int64_t>(2 * L::width, columns - j);
          panel<L, 2>(p, depth, b, step, j, valid, b, 0);
        }
      }
      for (; j < columns; j += L::width, b += L::width) {
        panel<L, 1>(p, depth, b, step, j, std::min<std::int64_t>(L::width, columns - j), b, 0);
      }
    }
  }

  // One full panel, which is copied: by its first tile, or before where B is transposed. Then the
  // tiles fetch the next rows of A.
  template <class L>
  TINYSCALE_INLINE void copied(std::int64_t p, std::int64_t depth, std::int64_t j,
                               float* copy) const {
    constexpr std::int64_t wide = L::width * L::vectors;
    std::int64_t done = 0;
    if (g.b_col == 1) {
      done = std::min<std::int64_t>(L::rows, end - begin);
      const float* b = g.b + p * g.b_row + panels.first + j;
      float* c = g.c + begin * g.ldc + panels.first + j;
      const float beta = p == 0 ? g.beta : 1.0f;
      PanelWork w{done, depth, g.a_at(begin, p), g.a_row, g.a_col, b, g.b_row, c, g.ldc, beta,
                  b,    0};
      w.copy = copy;
      call_on_lanes<L>(GemmFirst<L>{w});
      finish(p, depth, begin, done, j, wide);
    } else {
      call_on_lanes<L>(GemmPack{g, p, depth, panels.first + j, wide, wide, copy});
    }
    const GemmBlock rest{g, panels, begin + done, end};
    const std::int64_t tile = g.a_at(L::rows, 0) - g.a;
    const bool along = g.a_col == 1 || g.a_tile != 0;
    rest.panel<L, L::vectors>(p, depth, copy, wide, j, wide, along ? g.a_at(begin + done, p) : copy,
                              along ? tile / g.k : 0, along ? tile : 0);
  }

  void finish(std::int64_t p, std::int64_t depth, std::int64_t row, std::int64_t m, std::int64_t j,
              std::int64_t n) const {
    if (g.finish != nullptr && p + depth == g.k) {
      g.finish(g, row, m, panels.first + j, n);
    }
  }

  // Writes through a small copy where the panel is wider than what is left of C.
  template <class L, int VECTORS>
  TINYSCALE_INLINE void panel(std::int64_t p, std::int64_t depth, const float* b,
                              std::int64_t b_row, std::int64_t j, std::int64_t valid,
                              const float* ahead, std::int64_t ahead_row,
                              std::int64_t ahead_tile = 0) const {
    constexpr std::int64_t wide = L::width * VECTORS;
    const std::int64_t m = end - begin;
    float* c = g.c + begin * g.ldc + panels.first + j;
    const float beta = p == 0 ? g.beta : 1.0f;
    PanelWork w{m,    depth, g.a_at(begin, p), g.a_row,  g.a_col,   b, b_row, c, g.ldc,
                beta, ahead, ahead_row,        g.a_tile, ahead_tile};
    if (valid == wide) {
      call_on_lanes<L>(GemmPanel<L, VECTORS>{w});
    } else {
      float copy[static_cast<std::size_t>(gemm_rows * wide)];
      w.c = copy;
      w.ldc = wide;
      w.beta = 0.0f;
      for (std::int64_t i = 0; i < m; ++i) {
        const std::int64_t row = i % gemm_rows;
        if (row == 0) {
          w.m = std::min(gemm_rows, m - i);
          call_on_lanes<L>(GemmPanel<L, VECTORS>{w});
          w.a = g.a_at(begin + i + gemm_rows, p);
        }
        for (std::int64_t x = 0; x < valid; ++x) {
          const float old = beta == 0.0f ? 0.0f : c[i * g.ldc + x];
          c[i * g.ldc + x] = copy[row * wide + x] + old;
        }
      }
    }
    finish(p, depth, begin, m, j, valid);
  }
};

struct TileSize {
  std::int64_t width = 0, wide = 0, rows = 0;
  std::int64_t rounded(std::int64_t columns) const { return (columns + width - 1) / width * width; }
};

struct TileQuery {  // asks the active path for its tile
  TileSize* size;
  template <class L>
  TINYSCALE_INLINE void run() const {
    size->width = L::width;
    size->wide = L::width * L::vectors;
    size->rows = L::rows;
  }
};

inline TileSize tile_size() {
  TileSize size;
  run_on_lanes(TileQuery{&size});
  return size;
}

// Packs columns [first, first + columns) of B: full panels (none where packed is null), the edge.
// A task is 16 rows of B as stored, or one panel of a transposed B.
inline void gemm_pack(const GemmOperands& g, std::int64_t first, std::int64_t columns,
                      const TileSize& tile, float* packed, float* edge, bool serial) {
  const bool along = g.b_col == 1;
  const std::int64_t full = columns / tile.wide * tile.wide, left = columns - full;
  const std::int64_t strip = along ? 16 : g.k;
  const std::int64_t tasks = along ? (g.k + strip - 1) / strip : full / tile.wide + 1;
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t x = begin; x < end; ++x) {
      const std::int64_t p = along ? x * strip : 0, depth = std::min(strip, g.k - p);
      const std::int64_t last = along ? full : std::min(full, (x + 1) * tile.wide);
      for (std::int64_t j = along ? 0 : x * tile.wide; j < last && packed != nullptr;
           j += tile.wide) {
        float* const to = packed + j * g.k + p * tile.wide;
        run_on_lanes(GemmPack{g, p, depth, first + j, tile.wide, tile.wide, to});
      }
      if (left > 0 && (along || x + 1 == tasks)) {
        const std::int64_t wide = tile.rounded(left);
        run_on_lanes(GemmPack{g, p, depth, first + full, left, wide, edge + p * wide});
      }
    }
  };
  if (packed == nullptr && left == 0) {
    return;
  }
  if (serial) {
    body(0, tasks);
  } else {
    parallel_for(tasks, 1, body);
  }
}

// k of one pass over C: equal parts of at most gemm_depth.
inline std::int64_t gemm_pass_depth(std::int64_t k) {
  const std::int64_t passes = (k + gemm_depth - 1) / gemm_depth;
  return ((k + passes - 1) / passes + 7) / 8 * 8;
}

// Tasks: about an eighth of the rows, in multiples of every tile's; of short A 256 columns instead,
// so that B is read once; of copied panels 64 columns, and as few rows as give each thread some.
inline void gemm_blocks(const GemmOperands& g, const GemmPanels& all, bool serial) {
  std::int64_t tall = std::min(gemm_rows, std::max<std::int64_t>(24, g.m / 96 * 12));
  std::int64_t chunk = all.columns;
  if (all.copied || g.m <= gemm_rows) {
    tall = g.m;
    const std::int64_t some = all.copied ? 64 : 256;  // a multiple of every panel's width
    chunk = serial || thread_count() == 1 ? all.columns : some;
  }
  const std::int64_t parts = (all.columns + chunk - 1) / chunk;
  while (all.copied && chunk < all.columns && tall > 192 &&
         (g.m + tall - 1) / tall * parts < 4 * thread_count()) {
    tall = (tall / 2 + 11) / 12 * 12;
  }
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t x = begin; x < end; ++x) {
      const std::int64_t row = x / parts * tall, column = x % parts * chunk;
      GemmPanels part = all;
      part.first += column;
      part.columns = std::min(chunk, all.columns - column);
      part.packed = all.packed == nullptr ? nullptr : all.packed + column * g.k;
      run_on_lanes(GemmBlock{g, part, row, std::min(g.m, row + tall)});
    }
  };
  const std::int64_t tasks = (g.m + tall - 1) / tall * parts;
  if (serial) {
    body(0, tasks);
  } else {
    parallel_for(tasks, 1, body);
  }
}

// Multiply-adds that take about 5 microseconds, less than waking a thread pays.
inline bool gemm_is_small(const GemmOperands& g) { return g.m * g.n * g.k < (1 << 18); }

// One pass: columns [first, first + columns) of C, packing first what cannot be read in place.
inline void gemm_pass(const GemmOperands& g, std::int64_t first, std::int64_t columns,
                      const TileSize& tile) {
  const std::int64_t full = columns / tile.wide * tile.wide;
  const std::int64_t left = tile.rounded(columns - full);
  const bool in_place = g.b_col == 1 && (g.m <= 18 || g.n * g.k <= gemm_in_place);
  const bool small = gemm_is_small(g);
  GemmPanels panels{first, columns, nullptr, nullptr, left, gemm_pass_depth(g.k)};
  panels.copied = !in_place && g.m <= gemm_copied;
  if ((in_place || panels.copied) && (left == 0 || (left == columns - full && g.b_col == 1))) {
    panels.edge = g.b + (left == 0 ? 0 : first + full);
    panels.edge_row = g.b_row;
    gemm_blocks(g, panels, small);
    return;
  }
  const std::int64_t most = in_place || panels.copied ? 0 : full;  // columns packed here
  const Scratch lease((most + left) * g.k);
  float* const packed = most == 0 ? nullptr : lease.data();
  float* const edge = lease.data() + most * g.k;
  gemm_pack(g, first, columns, tile, packed, edge, small);
  panels.packed = packed;
  panels.edge = edge;
  gemm_blocks(g, panels, small);
}

// The product that the operands describe; m, n > 0.
inline void gemm_run(const GemmOperands& g) {
  if (g.k <= 0) {
    for (std::int64_t i = 0; i < g.m && g.beta == 0.0f; ++i) {
      std::fill(g.c + i * g.ldc, g.c + i * g.ldc + g.n, 0.0f);
    }
    if (g.finish != nullptr) {
      g.finish(g, 0, g.m, 0, g.n);
    }
    return;
  }
  const TileSize tile = tile_size();
  if (gemm_few_rows(g, tile.width) || gemm_skinny(g)) {
    return;
  }
  if (g.a_row == 1 && g.a_col != 1 && g.a_tile == 0 && g.n >= 256 && g.m * g.k > (1 << 17)) {
    const Scratch lease((g.m + tile.rows) * g.k);
    parallel_for(g.k, 32, [&](std::int64_t begin, std::int64_t end) {
      run_on_lanes(GemmPackRows{g, begin, end, lease.data()});
    });
    GemmOperands packed = g;
    packed.a = lease.data();
    packed.a_col = tile.rows;
    packed.a_tile = g.k;
    gemm_run(packed);
    return;
  }
  const std::int64_t panels = std::max<std::int64_t>(gemm_packed / g.k / tile.wide, 1);
  const std::int64_t fit = g.m <= gemm_copied ? g.n : panels * tile.wide;
  for (std::int64_t j = 0; j < g.n; j += fit) {
    gemm_pass(g, j, std::min(fit, g.n - j), tile);
  }
}

}  // namespace detail

namespace kernels {

// C = op(A) op(B) + beta C. beta is 0 (C is not read) or 1. C must not overlap A or B.
inline void gemm(Trans ta, Trans tb, std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
                 std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c,
                 std::int64_t ldc) {
  const detail::GemmOperands g =
      detail::gemm_operands(ta, tb, m, n, k, a, lda, b, ldb, beta, c, ldc);
  if (detail::gemm_check("gemm", ta, tb, g, lda, ldb)) {
    detail::gemm_run(g);
  }
}

}  // namespace kernels
}}  // namespace tinyscale

// >> tinyscale/compute/x86_units.hpp
// The processor's units for low precision, by assembler: the only place in the kernels that has
// any. Which of them a processor has says cpu(); interpreters do without. Sums pass through a
// variable of their own, as an element of an array in an asm statement would stay in memory.

#if TINYSCALE_X86_UNITS
namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace detail {

// 16 numbers from low and 16 from high, rounded to bf16, in the lower and upper half of `out`.
__attribute__((target("avx512f"))) inline void round_by_unit(const float* low, const float* high,
                                                             Lanes16::I& out) {
  const Lanes16::V a = *reinterpret_cast<const Lanes16::Loose*>(low);
  const Lanes16::V b = *reinterpret_cast<const Lanes16::Loose*>(high);
  Lanes16::I both;
  asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(both) : "v"(a), "v"(b));
  out = both;
}

// sum += the two products of each word of bf16.
__attribute__((target("avx512f"))) inline void dot_bf16_pairs(const Lanes16::I& a,
                                                              const Lanes16::I& b,
                                                              Lanes16::V& sum) {
  Lanes16::V s = sum;
  asm("vdpbf16ps %2, %1, %0" : "+v"(s) : "v"(a), "v"(b));
  sum = s;
}

// sum += the four products of each word, a of int8, b of uint8.
__attribute__((target("avx512f"))) inline void dot_vnni(const Lanes16::I& a, const Lanes16::I& b,
                                                        Lanes16::I& sum) {
  Lanes16::I s = sum;
  asm("vpdpbusd %1, %2, %0" : "+v"(s) : "v"(a), "v"(b));
  sum = s;
}
__attribute__((target("avx2,fma"))) inline void dot_vnni(const Lanes8::I& a, const Lanes8::I& b,
                                                         Lanes8::I& sum) {
  Lanes8::I s = sum;
  asm("%{vex%} vpdpbusd %1, %2, %0" : "+x"(s) : "x"(a), "x"(b));
  sum = s;
}
// f16 to f32; every processor with VNNI can.
__attribute__((target("avx512f"))) inline void halves_by_unit(const std::uint16_t* from,
                                                              Lanes16::V& x) {
  Lanes16::V y;
  asm("vcvtph2ps %1, %0" : "=v"(y) : "m"(*reinterpret_cast<const Lanes16::LooseShorts*>(from)));
  x = y;
}
__attribute__((target("avx2,fma"))) inline void halves_by_unit(const std::uint16_t* from,
                                                               Lanes8::V& x) {
  Lanes8::V y;
  asm("vcvtph2ps %1, %0" : "=x"(y) : "m"(*reinterpret_cast<const Lanes8::LooseShorts*>(from)));
  x = y;
}

// Tiles, as SoftTiles of amx_tiles.hpp has them in RAM.
struct AmxTiles {
  void start() {  // the layout is loaded for each task: the thread may be new
    alignas(64) std::uint8_t layout[64] = {1};
    for (int t = 0; t < 8; ++t) {
      layout[16 + 2 * t] = 64;  // bytes of a row
      layout[48 + t] = 16;      // rows
    }
    asm volatile("ldtilecfg %0" : : "m"(layout) : "memory");
  }
  void stop() { asm volatile("tilerelease" : : : "memory"); }
  template <int C>
  void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(C));
  }
  template <int T>
  void load(const void* from, std::int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(T) : "memory");
  }
  template <int T>
  void store(void* to, std::int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(T) : "memory");
  }
  template <int C, int A, int B>
  void dot_bf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
  }
  template <int C, int A, int B>
  void dot_int8() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
  }
};

}  // namespace detail
}}  // namespace tinyscale
#endif

// >> tinyscale/compute/word_pack.hpp
// Operands of low-precision products as words of 32 bits along k: 2 bf16 numbers or 4 int8 numbers,
// rounded, turned and laid out in one pass over memory.
//   A packed:  [k / depth][row][depth]       B packed:  [panel][k][64 columns]

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace detail {

constexpr std::int64_t word_depth = 256;    // words of k of one tile: 64 KB of a panel, in L2
constexpr std::int64_t word_few = 16;       // rows of A up to which reading B is the cost
constexpr std::int64_t word_piece = 64;     // words of k then: 16 KB of a panel
constexpr std::int64_t word_pass = 2048;    // words of k packed at once
constexpr std::int64_t word_block = 96;     // rows of one task: a multiple of every tile's rows
constexpr std::int64_t word_wide = 64;      // columns of a panel
constexpr std::int64_t word_fit = 1 << 20;  // words of A, and of B, packed at once: 4 MB each
constexpr std::int64_t word_step = 16;      // words of k in weights packed once: a multiple of it

// f32_by_unit: f32, rounded by the processor's own instruction, which takes denormals as zero.
enum class WordKind { f32, f32_by_unit, bf16, int8 };

// An operand as strides: element (x, p) with x a row of A or a column of B, p along k. Either
// stride is 1.
struct WordSource {
  WordKind kind;
  const void* data;
  std::int64_t x_stride, k_stride, xs, ks;
  std::uint32_t flip = 0;  // xor of each word: 0x80808080 turns int8 into uint8, 128 higher

  std::int64_t per_word() const { return kind == WordKind::int8 ? 4 : 2; }
};

// The reference body of packing: word w of row x, zeros beyond the ends.
inline std::uint32_t word_at(const WordSource& s, std::int64_t x, std::int64_t w) {
  const std::int64_t per = s.per_word();
  std::uint32_t word = 0;
  for (std::int64_t e = 0; e < per; ++e) {
    const std::int64_t p = w * per + e;
    if (x >= s.xs || p >= s.ks) {
      break;
    }
    const std::int64_t at = x * s.x_stride + p * s.k_stride;
    const std::uint32_t code =
        s.kind == WordKind::int8   ? static_cast<const std::uint8_t*>(s.data)[at]
        : s.kind == WordKind::bf16 ? static_cast<const std::uint16_t*>(s.data)[at]
                                   : to_bf16(static_cast<const float*>(s.data)[at]);
    word |= code << (e * 32 / per);
  }
  return word ^ s.flip;
}

#if TINYSCALE_VECTOR_EXTENSIONS
typedef std::uint32_t Words16 __attribute__((vector_size(64)));
typedef std::uint32_t LooseWords16 __attribute__((vector_size(64), aligned(1), may_alias));
typedef std::uint16_t LooseShorts16 __attribute__((vector_size(32), aligned(1), may_alias));
typedef std::uint8_t LooseBytes16 __attribute__((vector_size(16), aligned(1), may_alias));

// 16 words of row x from word w, read along k.
TINYSCALE_INLINE void words_along_k(const WordSource& s, std::int64_t x, std::int64_t w,
                                    std::uint32_t* to) {
  const std::int64_t at = x * s.x_stride + w * s.per_word();
#if TINYSCALE_X86_UNITS
  if (s.kind == WordKind::f32_by_unit) {
    const float* from = static_cast<const float*>(s.data) + at;
    Lanes16::I v;
    round_by_unit(from, from + 16, v);
    *reinterpret_cast<Lanes16::LooseI*>(to) = v;
    return;
  }
#endif
  const std::int64_t bytes = s.kind == WordKind::int8 ? 1 : 2;
  const unsigned char* const from = static_cast<const unsigned char*>(s.data) + at * bytes;
  *reinterpret_cast<LooseWords16*>(to) = *reinterpret_cast<const LooseWords16*>(from) ^ s.flip;
}

// Word w of 16 rows from x, where neighbours in memory are neighbours in x.
TINYSCALE_INLINE void words_along_x(const WordSource& s, std::int64_t x, std::int64_t w,
                                    std::uint32_t* to) {
  Words16 out = {};
  const std::int64_t at = x + w * s.per_word() * s.k_stride;
#if TINYSCALE_X86_UNITS
  if (s.kind == WordKind::f32_by_unit) {
    const float* from = static_cast<const float*>(s.data) + at;
    Lanes16::I v;
    round_by_unit(from, from + s.k_stride, v);
    const LooseShorts16* halves = reinterpret_cast<const LooseShorts16*>(&v);
    out = __builtin_convertvector(halves[0], Words16) | __builtin_convertvector(halves[1], Words16)
                                                            << 16;
    *reinterpret_cast<LooseWords16*>(to) = out;
    return;
  }
#endif
  if (s.kind == WordKind::bf16) {
    const std::uint16_t* from = static_cast<const std::uint16_t*>(s.data) + at;
    const LooseShorts16& low = *reinterpret_cast<const LooseShorts16*>(from);
    const LooseShorts16& high = *reinterpret_cast<const LooseShorts16*>(from + s.k_stride);
    out = __builtin_convertvector(low, Words16) | __builtin_convertvector(high, Words16) << 16;
  } else {
    const std::uint8_t* from = static_cast<const std::uint8_t*>(s.data) + at;
    for (int e = 0; e < 4; ++e) {
      const LooseBytes16& row = *reinterpret_cast<const LooseBytes16*>(from + e * s.k_stride);
      out = out | __builtin_convertvector(row, Words16) << (8 * e);
    }
  }
  *reinterpret_cast<LooseWords16*>(to) = out ^ s.flip;
}
#endif

// Words [w0, w0 + ws) of rows [x0, x0 + xs), to[x * to_x + w * to_w]; one of to_x and to_w is 1.
struct WordPack {
  const WordSource& s;
  std::int64_t x0, xs, w0, ws;
  std::uint32_t* to;
  std::int64_t to_x, to_w;

  TINYSCALE_INLINE void run() const {
    for (std::int64_t x = 0; x < xs; x += 16) {
      for (std::int64_t w = 0; w < ws; w += 16) {
        block(x, w, std::min<std::int64_t>(16, xs - x), std::min<std::int64_t>(16, ws - w));
      }
    }
  }

  TINYSCALE_INLINE void block(std::int64_t x, std::int64_t w, std::int64_t wide,
                              std::int64_t deep) const {
#if TINYSCALE_VECTOR_EXTENSIONS
    const bool along_k = s.k_stride == 1, straight = (along_k ? to_w : to_x) == 1;
    const std::int64_t rows = std::min(wide, s.xs - x0 - x);  // that are there
    if (s.kind != WordKind::f32 && (rows == 16 || (along_k && straight)) && deep == 16 &&
        (w0 + w + 16) * s.per_word() <= s.ks) {
      const std::int64_t stride_in = along_k ? to_x : to_w;
      std::uint32_t square[16][16];
      std::uint32_t* const start = to + x * to_x + w * to_w;
      for (std::int64_t r = 0; r < (along_k ? wide : 16); ++r) {
        std::uint32_t* const row = straight ? start + r * stride_in : square[r];
        if (r >= rows && along_k) {
          std::fill(row, row + 16, s.flip);
        } else if (along_k) {
          words_along_k(s, x0 + x + r, w0 + w, row);
        } else {
          words_along_x(s, x0 + x, w0 + w + r, row);
        }
      }
      for (std::int64_t r = 0; r < 16 && !straight; ++r) {
        for (std::int64_t e = 0; e < 16; ++e) {
          start[r * (along_k ? to_w : to_x) + e] = square[e][r];
        }
      }
      return;
    }
#endif
    for (std::int64_t r = 0; r < wide; ++r) {
      for (std::int64_t e = 0; e < deep; ++e) {
        to[(x + r) * to_x + (w + e) * to_w] = word_at(s, x0 + x + r, w0 + w + e);
      }
    }
  }
};

#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS
__attribute__((target("avx512f,avx512bw"), noinline)) inline void pack_words_512(
    const WordPack& pack) {
  pack.run();
}
#endif

inline void pack_words(const WordPack& pack) {
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS
  if (active_path() == CpuPath::avx512) {
    pack_words_512(pack);
    return;
  }
#endif
  pack.run();
}

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/compute/gemm_words.hpp
// Matrix products whose operands are words along k (word_pack.hpp). One instruction multiplies a
// word of A with 16 words of B and adds up the products of each word; the rest is as in an f32
// product. What multiplies is a WordUnit: dot products in registers, or tiles (amx_tiles.hpp).

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace detail {

// Rows [row, row_end) x panels [panel, panel_end) of C, one pass of k, from packed A and B.
struct WordTask {
  const std::uint32_t* a;
  std::int64_t a_rows;  // packed, a multiple of the tile's
  const std::uint32_t* b;
  std::int64_t words, row, row_end, panel, panel_end, n;
  void* c;  // float, or int32 for int8
  std::int64_t ldc;
  const std::int32_t* start;  // of each row where nothing is added to (int8), or null
  bool add;                   // to what C holds

  bool a_along_x;  // A packed [depth][row] inside a block of rows, and not [row][depth]

  // Row i from word w, and the words from it to the next row and to the next word of k.
  const std::uint32_t* a_at(std::int64_t w, std::int64_t i, std::int64_t& to_row,
                            std::int64_t& to_word) const {
    const std::int64_t first = i / word_block * word_block, inside = w % word_depth;
    const std::int64_t depth = std::min(word_depth, words - (w - inside));
    to_row = a_along_x ? 1 : depth;
    to_word = a_along_x ? std::min(word_block, a_rows - first) : 1;
    return a + (w - inside) * a_rows + first * depth + (i - first) * to_row + inside * to_word;
  }
};

// The dot products of U in registers: ROWS x (VECTORS of 16) numbers of C, as gemm_tile does. Many
// rows of A share a panel's block of k in L2. For few rows reading B is the cost: panel after panel
// as they lie in memory, in pieces that stay in L1 while the next piece is fetched.
template <class U>
struct WordTiles {
  typedef typename U::Sum Sum;
  typedef typename U::Scalar Scalar;
  const WordTask& t;

  TINYSCALE_INLINE void run() const {
    const bool few = t.row_end - t.row <= word_few;
    const std::int64_t step = few ? word_piece : word_depth, panels = t.panel_end - t.panel;
    const std::int64_t steps = (t.words + step - 1) / step;
    for (std::int64_t y = 0; y < panels * steps; ++y) {
      const std::int64_t w = (few ? y % steps : y / panels) * step;
      const std::int64_t x = t.panel + (few ? y / steps : y % panels);
      const std::int64_t depth = std::min(step, t.words - w);
      const std::int64_t columns = std::min(word_wide, t.n - x * word_wide);
      const bool last = w + step >= t.words && columns + x * word_wide >= t.n;
      for (std::int64_t i = t.row; i < t.row_end; i += U::rows) {
        const std::int64_t ahead = few && i == t.row && !last ? depth * word_wide : 0;
        if constexpr (U::width == 16) {
          if (few && t.row_end - i > U::rows) {
            for (std::int64_t j = 0; j < columns; j += 32) {
              tile<8, 2>(w, depth, x, j, i, columns - j, ahead);
            }
            i += 8 - U::rows;
            continue;
          }
        }
        std::int64_t j = 0;
        for (; j + U::vectors * U::width <= columns; j += U::vectors * U::width) {
          tile<U::rows, U::vectors>(w, depth, x, j, i, U::vectors * U::width, ahead);
        }
        for (; j < columns; j += U::width) {
          tile<U::rows, 1>(w, depth, x, j, i, columns - j, ahead);
        }
      }
    }
  }

  // `ahead` words behind this piece is the next; each tile fetches its share of it.
  template <int ROWS, int VECTORS>
  TINYSCALE_INLINE void tile(std::int64_t w, std::int64_t depth, std::int64_t x, std::int64_t j,
                             std::int64_t i, std::int64_t columns, std::int64_t ahead) const {
    Sum sum[static_cast<std::size_t>(ROWS)][static_cast<std::size_t>(VECTORS)];
    TINYSCALE_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      TINYSCALE_UNROLL
      for (int v = 0; v < VECTORS; ++v) {
        sum[r][v] = Sum{};
      }
    }
    std::int64_t to_row = 0, to_word = 0;
    const std::uint32_t* a = t.a_at(w, i, to_row, to_word);
    const std::uint32_t* const piece = t.b + x * t.words * word_wide + w * word_wide;
    const std::uint32_t* b = piece + j;
    const std::uint32_t* next = piece + ahead + j * depth;
    for (std::int64_t p = 0; p < depth; ++p) {
      for (int v = 0; v < VECTORS * U::width && ahead != 0; v += 16) {
        prefetch(next + v);
      }
      next += VECTORS * U::width;
      typename U::Words right[static_cast<std::size_t>(VECTORS)], left;
      TINYSCALE_UNROLL
      for (int v = 0; v < VECTORS; ++v) {
        U::load(b + p * word_wide + v * U::width, right[v]);
      }
      TINYSCALE_UNROLL
      for (int r = 0; r < ROWS; ++r) {
        U::broadcast(a[r * to_row], left);
        TINYSCALE_UNROLL
        for (int v = 0; v < VECTORS; ++v) {
          U::dot(left, right[v], sum[r][v]);
        }
      }
      a += to_word;
    }
    TINYSCALE_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      if (i + r < t.row_end) {
        TINYSCALE_UNROLL
        for (int v = 0; v < VECTORS; ++v) {
          finish(w, i + r, x * word_wide + j + v * U::width, columns - v * U::width, sum[r][v]);
        }
      }
    }
  }

  // Writes a vector of C, or adds it to what C holds.
  TINYSCALE_INLINE void finish(std::int64_t w, std::int64_t i, std::int64_t j, std::int64_t columns,
                               Sum& sum) const {
    Scalar* const c = static_cast<Scalar*>(t.c) + i * t.ldc + j;
    const bool add = t.add || w > 0;
    if constexpr (U::integer) {
      typename U::Words start;
      U::broadcast(add ? 0U : static_cast<std::uint32_t>(t.start[i]), start);
      sum = sum + start;
    }
    if (columns >= U::width) {
      typedef typename U::LooseSum Loose;
      if (add) {
        sum = sum + *reinterpret_cast<const Loose*>(c);
      }
      *reinterpret_cast<Loose*>(c) = sum;
      return;
    }
    Scalar lanes[static_cast<std::size_t>(U::width)];
    std::memcpy(lanes, &sum, sizeof(sum));
    for (std::int64_t x = 0; x < columns; ++x) {
      c[x] = add ? c[x] + lanes[x] : lanes[x];
    }
  }
};

// What multiplies: runs a task; rows of A and words of k come in such multiples.
struct WordUnit {
  void (*run)(const WordTask&);
  std::int64_t rows, step;
  bool tiles;  // reads A along k whatever way it is stored

  bool a_along_x(const WordSource& a) const { return !tiles && a.k_stride != 1; }
};

struct WordGemm {
  WordUnit unit;
  WordSource a, b;
  const std::uint32_t* b_packed;  // by pack_all, or null: b is packed here
  float beta;
  void* c;
  std::int64_t ldc;
  const std::int32_t* start;
};

inline std::int64_t round_up(std::int64_t x, std::int64_t step) {
  return (x + step - 1) / step * step;
}

inline std::int64_t words_of_k(const WordSource& s, std::int64_t step) {
  return round_up((s.ks + s.per_word() - 1) / s.per_word(), step);
}

// Panels [begin, end) of the columns from `first`, words [w, w + words), one after another.
inline void pack_panels(const WordSource& b, std::int64_t first, std::int64_t begin,
                        std::int64_t end, std::int64_t w, std::int64_t words, std::uint32_t* to) {
  for (std::int64_t x = begin; x < end; ++x) {
    pack_words(WordPack{b, first + x * word_wide, word_wide, w, words, to + x * words * word_wide,
                        1, word_wide});
  }
}

// A whole B, packed once: [word_pass of k][panel][k][64]. Aligned to cache lines.
class WordBuffer {
 public:
  explicit WordBuffer(std::int64_t count)
      : data_(static_cast<std::uint32_t*>(
            ::operator new(static_cast<std::size_t>(count) * 4 + 64, std::align_val_t(64)))) {}
  ~WordBuffer() { ::operator delete(data_, std::align_val_t(64)); }
  WordBuffer(const WordBuffer&) = delete;
  WordBuffer& operator=(const WordBuffer&) = delete;

  std::uint32_t* data() const { return data_; }

 private:
  std::uint32_t* data_;
};

inline Shared<WordBuffer> pack_all(const WordSource& b) {
  const std::int64_t words = words_of_k(b, word_step);
  const std::int64_t panels = (b.xs + word_wide - 1) / word_wide;
  Shared<WordBuffer> buffer(new WordBuffer(words * panels * word_wide));
  for (std::int64_t w = 0; w < words; w += word_pass) {
    const std::int64_t deep = std::min(word_pass, words - w);
    std::uint32_t* const to = buffer->data() + w * panels * word_wide;
    parallel_for(panels, 1, [&](std::int64_t begin, std::int64_t end) {
      pack_panels(b, 0, begin, end, w, deep, to);
    });
  }
  return buffer;
}

// Rows [i, i + rows) of C, columns [j, j + columns), words [w, w + words): packs and multiplies.
struct WordPart {
  std::int64_t w, words, i, rows, j, columns;
  std::uint32_t *a, *b;
};

inline void pack_rows(const WordGemm& g, const WordPart& p, std::int64_t begin, std::int64_t end) {
  const std::int64_t padded = round_up(p.rows, g.unit.rows);
  const bool along_x = g.unit.a_along_x(g.a);
  for (std::int64_t x = begin; x < end; ++x) {
    const std::int64_t first = x * word_block;
    const std::int64_t count = std::min(padded - first, word_block);
    for (std::int64_t d = 0; d < p.words; d += word_depth) {
      const std::int64_t depth = std::min(word_depth, p.words - d);
      pack_words(WordPack{g.a, p.i + first, count, p.w + d, depth, p.a + d * padded + first * depth,
                          along_x ? 1 : depth, along_x ? count : 1});
    }
  }
}

inline void word_part(const WordGemm& g, const WordPart& p) {
  const std::int64_t panels = (p.columns + word_wide - 1) / word_wide;
  const std::int64_t blocks = (p.rows + word_block - 1) / word_block;
  const std::int64_t a_blocks = p.j == 0 ? blocks : 0;  // A is packed with the first columns
  const std::int64_t b_panels = g.b_packed == nullptr ? panels : 0;
  const auto pack = [&](std::int64_t begin, std::int64_t end) {
    pack_panels(g.b, p.j, begin, std::min(end, b_panels), p.w, p.words, p.b);
    if (end > b_panels) {
      pack_rows(g, p, std::max(begin, b_panels) - b_panels, end - b_panels);
    }
  };
  const std::int64_t wide = 4;  // panels of a task
  const std::int64_t groups = (panels + wide - 1) / wide;
  const auto multiply = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t x = begin; x < end; ++x) {
      const std::int64_t row = x / groups * word_block, panel = x % groups * wide;
      g.unit.run(WordTask{p.a, round_up(p.rows, g.unit.rows), p.b, p.words, row,
                          std::min(p.rows, row + word_block), panel, std::min(panels, panel + wide),
                          p.columns, static_cast<float*>(g.c) + p.i * g.ldc + p.j, g.ldc,
                          g.start == nullptr ? nullptr : g.start + p.i, g.beta != 0.0f || p.w > 0,
                          g.unit.a_along_x(g.a)});
    }
  };
  if (p.rows * p.columns * p.words < (1 << 18)) {  // less than waking a thread pays
    pack(0, a_blocks + b_panels);
    multiply(0, blocks * groups);
    return;
  }
  parallel_for(a_blocks + b_panels, 1, pack);
  parallel_for(blocks * groups, 1, multiply);
}

// C = A B + beta C in parts that fit the scratch; each number of C adds its words in order of k.
inline void word_gemm(const WordGemm& g) {
  const std::int64_t words = words_of_k(g.b, g.b_packed != nullptr ? word_step : g.unit.step);
  const std::int64_t pass = std::min(word_pass, words);
  const std::int64_t rows =
      std::min(g.a.xs, std::max<std::int64_t>(1, word_fit / pass / word_block) * word_block);
  const std::int64_t wide = round_up(g.b.xs, word_wide);
  const std::int64_t columns =
      g.b_packed != nullptr
          ? wide
          : std::min(wide, std::max<std::int64_t>(1, word_fit / pass / word_wide) * word_wide);
  const Scratch a_lease(round_up(rows, g.unit.rows) * pass +
                        8 * word_depth);  // a tile may end later
  const Scratch b_lease(g.b_packed != nullptr ? 0 : columns * pass);
  WordPart p{};
  p.a = reinterpret_cast<std::uint32_t*>(a_lease.data());
  p.b = reinterpret_cast<std::uint32_t*>(b_lease.data());
  for (p.w = 0; p.w < words; p.w += pass) {
    p.words = std::min(pass, words - p.w);
    if (g.b_packed != nullptr) {
      p.b = const_cast<std::uint32_t*>(g.b_packed) + p.w * wide;
    }
    for (p.i = 0; p.i < g.a.xs; p.i += rows) {
      p.rows = std::min(rows, g.a.xs - p.i);
      for (p.j = 0; p.j < g.b.xs; p.j += columns) {
        p.columns = std::min(columns, g.b.xs - p.j);
        word_part(g, p);
      }
    }
  }
}

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/compute/amx_tiles.hpp
// Tiles: 8 registers of 16 rows x 64 bytes, and one instruction that multiplies two of them,
// C[16, 16] += A[16, 16 words] B[16 words, 16]. Four C tiles take two of A and two of B: 32 x 32 of
// C on 4 loads a step. The kernel asks a tile unit: the processor's (Intel AMX; run-time detection
// only), or RAM with the same meaning, which tests run where there is no AMX.

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace detail {

// The reference body, which is the whole unit in RAM. dot_bf16 sums even and odd places apart, as
// the processor does (it also takes denormals as zero).
struct SoftTiles {
  std::uint32_t tiles[8][16][16];

  void start() {}
  void stop() {}
  template <int C>
  void zero() {
    std::memset(tiles[C], 0, sizeof(tiles[C]));
  }
  template <int T>
  void load(const void* from, std::int64_t stride) {  // bytes from row to row
    for (int r = 0; r < 16; ++r) {
      std::memcpy(tiles[T][r], static_cast<const char*>(from) + r * stride, 64);
    }
  }
  template <int T>
  void store(void* to, std::int64_t stride) {
    for (int r = 0; r < 16; ++r) {
      std::memcpy(static_cast<char*>(to) + r * stride, tiles[T][r], 64);
    }
  }
  template <int C, int A, int B>
  void dot_bf16() {
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 16; ++j) {
        float even = 0.0f, odd = 0.0f;
        for (int p = 0; p < 16; ++p) {
          const std::uint32_t a = tiles[A][i][p], b = tiles[B][p][j];
          even += float_of(a << 16) * float_of(b << 16);
          odd += float_of(a & 0xffff0000U) * float_of(b & 0xffff0000U);
        }
        tiles[C][i][j] = bits_of(float_of(tiles[C][i][j]) + (even + odd));
      }
    }
  }
  template <int C, int A, int B>
  void dot_int8() {  // A of int8, B of uint8
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 16; ++j) {
        for (int p = 0; p < 16; ++p) {
          for (int e = 0; e < 32; e += 8) {
            const auto a = static_cast<std::int8_t>(tiles[A][i][p] >> e);
            const auto b = static_cast<std::uint8_t>(tiles[B][p][j] >> e);
            tiles[C][i][j] += static_cast<std::uint32_t>(a * b);
          }
        }
      }
    }
  }
};

// What the elements of words are, for a task in tiles: bf16 words give float, int8 words int32.
struct Bf16InTiles {
  typedef float Scalar;
  template <int C, int A, int B, class Tiles>
  static void dot(Tiles& tiles) {
    tiles.template dot_bf16<C, A, B>();
  }
};
struct Int8InTiles {
  typedef std::int32_t Scalar;
  template <int C, int A, int B, class Tiles>
  static void dot(Tiles& tiles) {
    tiles.template dot_int8<C, A, B>();
  }
};

// C[32, 32] (+)= A[32, depth] B[depth, 32]; depth is a multiple of 16 words, a row of A its depth.
template <class Tiles, class Element>
void tile_square(Tiles& tiles, const std::uint32_t* a, const std::uint32_t* b, std::int64_t depth,
                 bool add, typename Element::Scalar* c, std::int64_t ldc) {
  if (add) {
    tiles.template load<0>(c, ldc * 4);
    tiles.template load<1>(c + 16, ldc * 4);
    tiles.template load<2>(c + 16 * ldc, ldc * 4);
    tiles.template load<3>(c + 16 * ldc + 16, ldc * 4);
  } else {
    tiles.template zero<0>();
    tiles.template zero<1>();
    tiles.template zero<2>();
    tiles.template zero<3>();
  }
  for (std::int64_t p = 0; p < depth; p += 16) {
    tiles.template load<4>(a + p, depth * 4);
    tiles.template load<6>(b + p * word_wide, word_wide * 4);
    tiles.template load<7>(b + p * word_wide + 16, word_wide * 4);
    Element::template dot<0, 4, 6>(tiles);
    Element::template dot<1, 4, 7>(tiles);
    tiles.template load<5>(a + 16 * depth + p, depth * 4);
    Element::template dot<2, 5, 6>(tiles);
    Element::template dot<3, 5, 7>(tiles);
  }
  tiles.template store<0>(c, ldc * 4);
  tiles.template store<1>(c + 16, ldc * 4);
  tiles.template store<2>(c + 16 * ldc, ldc * 4);
  tiles.template store<3>(c + 16 * ldc + 16, ldc * 4);
}

// Copies between C and the square that stands for its edge.
template <class Scalar>
void copy_edge(const Scalar* from, std::int64_t from_row, Scalar* to, std::int64_t to_row,
               std::int64_t rows, std::int64_t columns) {
  for (std::int64_t r = 0; r < rows; ++r) {
    std::copy(from + r * from_row, from + r * from_row + columns, to + r * to_row);
  }
}

template <class Tiles, class Element>
void run_tiles(const WordTask& t) {
  typedef typename Element::Scalar Scalar;
  Tiles tiles;
  tiles.start();
  alignas(64) Scalar square[32 * 32] = {};
  for (std::int64_t w = 0; w < t.words; w += word_depth) {
    const std::int64_t depth = std::min(word_depth, t.words - w);
    for (std::int64_t j = t.panel * word_wide; j < std::min(t.n, t.panel_end * word_wide);
         j += 32) {
      const std::uint32_t* const b =
          t.b + j / word_wide * t.words * word_wide + w * word_wide + j % word_wide;
      const std::int64_t columns = std::min<std::int64_t>(32, t.n - j);
      for (std::int64_t i = t.row; i < t.row_end; i += 32) {
        const std::int64_t rows = std::min<std::int64_t>(32, t.row_end - i);
        Scalar* const c = static_cast<Scalar*>(t.c) + i * t.ldc + j;
        const bool whole = rows == 32 && columns == 32, add = t.add || w > 0;
        for (std::int64_t r = 0; r < rows && !add && t.start != nullptr; ++r) {
          std::fill(c + r * t.ldc, c + r * t.ldc + columns, static_cast<Scalar>(t.start[i + r]));
        }
        const bool from_c = add || t.start != nullptr;
        if (!whole && from_c) {
          copy_edge(c, t.ldc, square, 32, rows, columns);
        }
        std::int64_t to_row = 0, to_word = 0;
        const std::uint32_t* const a = t.a_at(w, i, to_row, to_word);
        tile_square<Tiles, Element>(tiles, a, b, depth, from_c, whole ? c : square,
                                    whole ? t.ldc : 32);
        if (!whole) {
          copy_edge(square, 32, c, t.ldc, rows, columns);
        }
      }
    }
  }
  tiles.stop();
}

template <class Tiles, class Element>
WordUnit tile_unit() {
  return {run_tiles<Tiles, Element>, 32, 16, true};
}

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/compute/gemm_bf16.hpp
// Matrix product of bf16 numbers, summed in f32: C[M, N] = A[M, K] B[K, N] + beta C; 2 M K N flops.
// f32 operands are rounded to nearest, ties to even, as they are packed: what training in bf16 with
// f32 master weights calls. Products of bf16 numbers are exact in f32; each sum rounds.
//   AMX tiles               16 x the f32 rate
//   vdpbf16ps (AMD)         2 x: two products a lane; takes denormals as zero
//   elsewhere               the f32 product of the rounded operands
// A NaN or an infinity in a row of A or column of B reaches every number of C it belongs to.

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace kernels {

// The reference body.
inline void gemm_bf16_reference(Trans ta, Trans tb, std::int64_t m, std::int64_t n, std::int64_t k,
                                const float* a, std::int64_t lda, const float* b, std::int64_t ldb,
                                float beta, float* c, std::int64_t ldc) {
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0.0;
      for (std::int64_t p = 0; p < k; ++p) {
        const float x = ta == Trans::no ? a[i * lda + p] : a[p * lda + i];
        const float y = tb == Trans::no ? b[p * ldb + j] : b[j * ldb + p];
        sum += double{from_bf16(to_bf16(x))} * double{from_bf16(to_bf16(y))};
      }
      const float old = beta == 0.0f ? 0.0f : beta * c[i * ldc + j];
      c[i * ldc + j] = static_cast<float>(sum) + old;
    }
  }
}

}  // namespace kernels

namespace detail {

#if TINYSCALE_X86_UNITS
#define TINYSCALE_BF16_TARGET __attribute__((target("avx512f")))
struct DotBf16 {
  static constexpr int width = 16, rows = 6, vectors = 4;
  static constexpr bool integer = false;
  typedef Lanes16::V Sum;
  typedef Lanes16::Loose LooseSum;
  typedef Lanes16::I Words;
  typedef float Scalar;

  TINYSCALE_BF16_TARGET static inline void load(const std::uint32_t* from, Words& w) {
    w = *reinterpret_cast<const Lanes16::LooseI*>(from);
  }
  TINYSCALE_BF16_TARGET static inline void broadcast(std::uint32_t word, Words& w) {
    broadcast_word(static_cast<std::int32_t>(word), w);
  }
  TINYSCALE_BF16_TARGET static inline void dot(const Words& a, const Words& b, Sum& sum) {
    dot_bf16_pairs(a, b, sum);
  }
};

TINYSCALE_BF16_TARGET inline void run_dot_bf16(const WordTask& task) {
  WordTiles<DotBf16>{task}.run();
}
#undef TINYSCALE_BF16_TARGET
#endif

// The unit of the active path; run is null where bf16 is widened to f32.
inline WordUnit bf16_word_unit() {
#if TINYSCALE_X86_UNITS
  const char* const unit = bf16_unit(cpu(), active_path());
  if (unit[0] == 'a' && forced_path().load(std::memory_order_relaxed) < 0) {
    return tile_unit<AmxTiles, Bf16InTiles>();
  }
  if (unit[0] == 'v') {
    return {run_dot_bf16, DotBf16::rows, 1, false};
  }
#endif
  return {nullptr, 1, 1, false};
}

inline WordSource word_source(WordKind kind, const void* data, kernels::Trans trans,
                              std::int64_t xs, std::int64_t ks, std::int64_t ld) {
  const bool along_k = trans == kernels::Trans::yes;
  return {kind, data, along_k ? ld : 1, along_k ? 1 : ld, xs, ks, 0};
}

// f32 numbers, rounded as the active unit does it fastest.
inline WordKind f32_words() {
#if TINYSCALE_X86_UNITS
  return cpu().avx512_bf16 && active_path() == CpuPath::avx512 ? WordKind::f32_by_unit
                                                               : WordKind::f32;
#else
  return WordKind::f32;
#endif
}

// Rows [begin, end) of A or columns of B, rounded and widened to f32, at to; the layout is kept.
inline void widen_bf16(const WordSource& s, std::int64_t begin, std::int64_t end, float* to) {
  const bool along_k = s.k_stride == 1;
  const std::int64_t lines = along_k ? end - begin : s.ks;
  const std::int64_t count = along_k ? s.ks : end - begin;
  parallel_for(lines, 1 + 4096 / count, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t line = first; line < last; ++line) {
      const std::int64_t at = along_k ? (begin + line) * s.x_stride : line * s.k_stride + begin;
      float* const out = to + line * count;
      for (std::int64_t i = 0; i < count; ++i) {
        out[i] = from_bf16(s.kind == WordKind::bf16
                               ? static_cast<const std::uint16_t*>(s.data)[at + i]
                               : to_bf16(static_cast<const float*>(s.data)[at + i]));
      }
    }
  });
}

// Columns [begin, end) of a packed B as f32, to[k][end - begin]; begin starts a panel.
inline void widen_packed(const std::uint32_t* packed, std::int64_t n, std::int64_t k,
                         std::int64_t begin, std::int64_t end, float* to) {
  const std::int64_t words = round_up((k + 1) / 2, word_step), wide = round_up(n, word_wide);
  parallel_for(k, 64, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t p = first; p < last; ++p) {
      const std::int64_t w = p / 2 / word_pass * word_pass;  // first word of its pass
      const std::int64_t deep = std::min(word_pass, words - w);
      for (std::int64_t j = begin; j < end; ++j) {
        const std::uint32_t* const panel = packed + w * wide + j / word_wide * deep * word_wide;
        const std::uint32_t word = panel[(p / 2 - w) * word_wide + j % word_wide];
        to[p * (end - begin) + j - begin] = float_of(p % 2 == 0 ? word << 16 : word & 0xffff0000U);
      }
    }
  });
}

// Where the processor has no unit: the f32 product of the rounded operands, in blocks.
inline void bf16_by_f32(const WordGemm& g) {
  const std::int64_t m = g.a.xs, n = g.b.xs, k = g.a.ks;
  const std::int64_t rows = std::min(m, std::max<std::int64_t>(word_block, 4 * word_fit / k));
  const std::int64_t fit = std::max<std::int64_t>(1, word_fit / k / word_wide) * word_wide;
  const std::int64_t columns = std::min(n, fit);
  const Scratch a(rows * k), b(columns * k);
  for (std::int64_t j = 0; j < n; j += columns) {
    const std::int64_t wide = std::min(columns, n - j);
    const bool b_yes = g.b_packed == nullptr && g.b.k_stride == 1;
    if (g.b_packed != nullptr) {
      widen_packed(g.b_packed, n, k, j, j + wide, b.data());
    } else {
      widen_bf16(g.b, j, j + wide, b.data());
    }
    for (std::int64_t i = 0; i < m; i += rows) {
      const std::int64_t tall = std::min(rows, m - i);
      const bool a_yes = g.a.k_stride != 1;
      if (rows < m || j == 0) {
        widen_bf16(g.a, i, i + tall, a.data());
      }
      kernels::gemm(a_yes ? kernels::Trans::yes : kernels::Trans::no,
                    b_yes ? kernels::Trans::yes : kernels::Trans::no, tall, wide, k, a.data(),
                    a_yes ? tall : k, b.data(), b_yes ? k : wide, g.beta,
                    static_cast<float*>(g.c) + i * g.ldc + j, g.ldc);
    }
  }
}

inline void bf16_product(const WordSource& a, const WordSource& b, const std::uint32_t* b_packed,
                         float beta, float* c, std::int64_t ldc) {
  if (a.xs <= 0 || b.xs <= 0 || a.ks <= 0) {
    kernels::gemm(kernels::Trans::no, kernels::Trans::no, a.xs, b.xs, 0, nullptr, 0, nullptr, 0,
                  beta, c, ldc);
    return;
  }
  const WordGemm g{bf16_word_unit(), a, b, b_packed, beta, c, ldc, nullptr};
  if (g.unit.run == nullptr) {
    bf16_by_f32(g);
  } else {
    word_gemm(g);
  }
}

inline WordSource rows_of(WordKind kind, const void* data, kernels::Trans trans, std::int64_t m,
                          std::int64_t k, std::int64_t ld) {
  return word_source(
      kind, data, trans == kernels::Trans::no ? kernels::Trans::yes : kernels::Trans::no, m, k, ld);
}

}  // namespace detail

namespace kernels {

// C = op(A) op(B) + beta C. beta is 0 (C is not read) or 1. C must not overlap A or B.
inline void gemm_bf16(Trans ta, Trans tb, std::int64_t m, std::int64_t n, std::int64_t k,
                      const float* a, std::int64_t lda, const float* b, std::int64_t ldb,
                      float beta, float* c, std::int64_t ldc) {
  const detail::GemmOperands g =
      detail::gemm_operands(ta, tb, m, n, k, a, lda, b, ldb, beta, c, ldc);
  if (detail::gemm_check("gemm_bf16", ta, tb, g, lda, ldb)) {
    const detail::WordKind kind = detail::f32_words();
    detail::bf16_product(detail::rows_of(kind, a, ta, m, k, lda),
                         detail::word_source(kind, b, tb, n, k, ldb), nullptr, beta, c, ldc);
  }
}

// The same of operands that are bf16 codes already, as to_bf16 gives.
inline void gemm_bf16(Trans ta, Trans tb, std::int64_t m, std::int64_t n, std::int64_t k,
                      const std::uint16_t* a, std::int64_t lda, const std::uint16_t* b,
                      std::int64_t ldb, float beta, float* c, std::int64_t ldc) {
  const detail::WordKind kind = detail::WordKind::bf16;
  detail::bf16_product(detail::rows_of(kind, a, ta, m, k, lda),
                       detail::word_source(kind, b, tb, n, k, ldb), nullptr, beta, c, ldc);
}

// Weights [K, N] rounded to bf16 and laid out once, for many products; good on every path.
struct PackedBf16 {
  std::int64_t k = 0, n = 0;
  Shared<detail::WordBuffer> words;
};

inline PackedBf16 pack_bf16(Trans tb, std::int64_t k, std::int64_t n, const float* b,
                            std::int64_t ldb) {
  PackedBf16 packed{k, n, {}};
  if (k > 0 && n > 0) {
    packed.words = detail::pack_all(detail::word_source(detail::f32_words(), b, tb, n, k, ldb));
  }
  return packed;
}

// C = op(A) B + beta C, A [M, K].
inline void gemm_bf16(Trans ta, std::int64_t m, const float* a, std::int64_t lda,
                      const PackedBf16& b, float beta, float* c, std::int64_t ldc) {
  const detail::WordKind kind = detail::f32_words();
  detail::bf16_product(detail::rows_of(kind, a, ta, m, b.k, lda),
                       detail::word_source(kind, nullptr, Trans::no, b.n, b.k, b.n),
                       b.words ? b.words->data() : nullptr, beta, c, ldc);
}

}  // namespace kernels
}}  // namespace tinyscale

// >> tinyscale/compute/gemm_int8.hpp
// Matrix product of int8 numbers, exact in int32: C[M, N] = A[M, K] B[K, N]; 2 M K N operations.
// Four products a lane: vpdpbusd (VNNI) takes one side without sign, so B is kept 128 higher and
// 128 times the sum of A's row is taken off. Elsewhere words are widened to pairs of 16 bits.
// With scales it gives f32: c = a_scale[row] * sum over blocks of k of b_scale[block][column] * C.

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace kernels {

// The reference body.
inline void gemm_int8_reference(Trans ta, Trans tb, std::int64_t m, std::int64_t n, std::int64_t k,
                                const std::int8_t* a, std::int64_t lda, const std::int8_t* b,
                                std::int64_t ldb, std::int32_t* c, std::int64_t ldc) {
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      std::int32_t sum = 0;
      for (std::int64_t p = 0; p < k; ++p) {
        const std::int8_t x = ta == Trans::no ? a[i * lda + p] : a[p * lda + i];
        const std::int8_t y = tb == Trans::no ? b[p * ldb + j] : b[j * ldb + p];
        sum += x * y;
      }
      c[i * ldc + j] = sum;
    }
  }
}

}  // namespace kernels

namespace detail {

// sum += the four products of each word, a of int8, b of uint8. VNNI by assembler, else widened:
// the bytes at even and odd places as pairs of 16 bits, multiplied and added in pairs.
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS
typedef std::int16_t Shorts8 __attribute__((vector_size(16)));
typedef std::int16_t Shorts16 __attribute__((vector_size(32)));
__attribute__((target("avx2,fma"))) inline void dot_widened(const Lanes8::I& a, const Lanes8::I& b,
                                                            Lanes8::I& sum) {
  Shorts16 left, right;
  std::memcpy(&left, &a, sizeof(a));
  std::memcpy(&right, &b, sizeof(b));
  sum = sum + __builtin_ia32_pmaddwd256((left << 8) >> 8, right & 255) +
        __builtin_ia32_pmaddwd256(left >> 8, (right >> 8) & 255);
}
TINYSCALE_INLINE void dot_widened(const Lanes4::I& a, const Lanes4::I& b, Lanes4::I& sum) {
  Shorts8 left, right;
  std::memcpy(&left, &a, sizeof(a));
  std::memcpy(&right, &b, sizeof(b));
  sum = sum + __builtin_ia32_pmaddwd128((left << 8) >> 8, right & 255) +
        __builtin_ia32_pmaddwd128(left >> 8, (right >> 8) & 255);
}
#else
template <class I>
TINYSCALE_INLINE void dot_widened(const I& a, const I& b, I& sum) {
  sum = sum + (a << 24 >> 24) * (b & 255) + (a << 16 >> 24) * (b >> 8 & 255) +
        (a << 8 >> 24) * (b >> 16 & 255) + (a >> 24) * (b >> 24 & 255);
}
#endif

enum class Int8Dot { widened, vnni };

template <class L, Int8Dot DOT>
struct DotInt8 {
  static constexpr int width = L::width, rows = L::rows, vectors = L::vectors;
  static constexpr bool integer = true;
  typedef typename L::I Sum;
  typedef typename L::I Words;
  typedef typename L::LooseI LooseSum;
  typedef std::int32_t Scalar;
  typedef L Lanes;
  typedef typename L::V Floats;

  static TINYSCALE_INLINE void load(const std::uint32_t* from, Words& w) {
    w = *reinterpret_cast<const LooseSum*>(from);
  }
  // f16 numbers as f32: by instruction, or the bits in an f32's place times 2^112.
  static TINYSCALE_INLINE void load_halves(const std::uint16_t* from, Floats& x) {
#if TINYSCALE_X86_UNITS
    if constexpr (DOT == Int8Dot::vnni) {
      halves_by_unit(from, x);
      return;
    }
#endif
    Words half, bits;
#if TINYSCALE_VECTOR_EXTENSIONS
    half = __builtin_convertvector(*reinterpret_cast<const typename L::LooseShorts*>(from), Words);
#else
    half = *from;
#endif
    bits = (half & 0x7fff) << 13;
    std::memcpy(&x, &bits, sizeof(x));
    x = x * 5.192296858534828e33f;
    std::memcpy(&bits, &x, sizeof(x));
    bits = bits | ((half >> 15) << 31);
    std::memcpy(&x, &bits, sizeof(x));
  }
  static TINYSCALE_INLINE void broadcast(std::uint32_t word, Words& w) {
    broadcast_word(static_cast<std::int32_t>(word), w);
  }
  static TINYSCALE_INLINE void dot(const Words& a, const Words& b, Sum& sum) {
#if TINYSCALE_X86_UNITS
    if constexpr (DOT == Int8Dot::vnni) {
      dot_vnni(a, b, sum);
    } else {
      dot_widened(a, b, sum);
    }
#else
    dot_widened(a, b, sum);
#endif
  }
};

// Runs kernel.run<DotInt8<...>>() on the active path's unit.
template <class Kernel, Int8Dot DOT>
struct OnInt8 {
  const Kernel& kernel;
  template <class L>
  TINYSCALE_INLINE void run() const {
    kernel.template run<DotInt8<L, DOT>>();
  }
};

template <class Kernel>
void run_on_int8(const Kernel& kernel) {
#if TINYSCALE_X86 && TINYSCALE_VECTOR_EXTENSIONS
  const CpuPath path = active_path();
#if TINYSCALE_X86_UNITS
  if (path == CpuPath::avx512 && cpu().avx512_vnni) {
    run_avx512(OnInt8<Kernel, Int8Dot::vnni>{kernel});
    return;
  }
  if (path != CpuPath::portable && cpu().avx_vnni) {
    run_avx2(OnInt8<Kernel, Int8Dot::vnni>{kernel});
    return;
  }
#endif
  if (path != CpuPath::portable) {
    run_avx2(OnInt8<Kernel, Int8Dot::widened>{kernel});
    return;
  }
#endif
#if TINYSCALE_VECTOR_EXTENSIONS
  OnInt8<Kernel, Int8Dot::widened>{kernel}.template run<Lanes4>();
#else
  OnInt8<Kernel, Int8Dot::widened>{kernel}.template run<Lanes1>();
#endif
}

struct Int8Tiles {
  const WordTask& t;
  template <class U>
  TINYSCALE_INLINE void run() const {
    WordTiles<U>{t}.run();
  }
};

inline WordUnit int8_word_unit() {
#if TINYSCALE_X86_UNITS
  if (int8_unit(cpu(), active_path())[0] == 'a' &&
      forced_path().load(std::memory_order_relaxed) < 0) {
    return tile_unit<AmxTiles, Int8InTiles>();
  }
#endif
  return {[](const WordTask& task) { run_on_int8(Int8Tiles{task}); }, 12, 1, false};
}

// start[i] = -128 times the sum of row i of A.
struct RowStarts {
  const WordSource& a;
  std::int64_t begin, end;
  std::int32_t* start;

  template <class U>
  TINYSCALE_INLINE void run() const {
    const auto* const codes = static_cast<const std::int8_t*>(a.data);
    typename U::Words ones, words;
    U::broadcast(0x01010101U, ones);
    for (std::int64_t i = begin; i < end; ++i) {
      typename U::Sum sum{};
      std::int32_t total = 0;
      std::int64_t p = 0;
      for (; a.k_stride == 1 && p + 4 * U::width <= a.ks; p += 4 * U::width) {
        std::memcpy(&words, codes + i * a.x_stride + p, sizeof(words));
        U::dot(words, ones, sum);
      }
      std::int32_t lanes[static_cast<std::size_t>(U::width)];
      std::memcpy(lanes, &sum, sizeof(sum));
      for (const std::int32_t lane : lanes) {
        total += lane;
      }
      for (; p < a.ks; ++p) {
        total += codes[i * a.x_stride + p * a.k_stride];
      }
      start[i] = -128 * total;
    }
  }
};

inline void int8_product(const WordUnit& unit, const WordSource& a, WordSource b,
                         const std::uint32_t* b_packed, std::int32_t* c, std::int64_t ldc) {
  if (a.ks > 131071) {
    fail({"gemm_int8: k is ", a.ks, "; int32 holds the sum of at most 131071 products"});
  }
  for (std::int64_t i = 0; i < a.xs && a.ks <= 0; ++i) {
    std::fill(c + i * ldc, c + i * ldc + b.xs, 0);
  }
  if (a.xs <= 0 || b.xs <= 0 || a.ks <= 0) {
    return;
  }
  const Scratch lease(a.xs);
  auto* const start = reinterpret_cast<std::int32_t*>(lease.data());
  parallel_for(a.xs, 1 + 65536 / a.ks, [&](std::int64_t begin, std::int64_t end) {
    run_on_int8(RowStarts{a, begin, end, start});
  });
  b.flip = 0x80808080U;
  word_gemm({unit, a, b, b_packed, 0.0f, c, ldc, start});
}

}  // namespace detail

namespace kernels {

// C = op(A) op(B), exact. C must not overlap A or B.
inline void gemm_int8(Trans ta, Trans tb, std::int64_t m, std::int64_t n, std::int64_t k,
                      const std::int8_t* a, std::int64_t lda, const std::int8_t* b,
                      std::int64_t ldb, std::int32_t* c, std::int64_t ldc) {
  const detail::WordKind kind = detail::WordKind::int8;
  detail::int8_product(detail::int8_word_unit(), detail::rows_of(kind, a, ta, m, k, lda),
                       detail::word_source(kind, b, tb, n, k, ldb), nullptr, c, ldc);
}

// Weights [K, N] laid out once, for many products; good on every path.
struct PackedInt8 {
  std::int64_t k = 0, n = 0;
  Shared<detail::WordBuffer> words;
};

inline PackedInt8 pack_int8(Trans tb, std::int64_t k, std::int64_t n, const std::int8_t* b,
                            std::int64_t ldb) {
  PackedInt8 packed{k, n, {}};
  if (k > 0 && n > 0) {
    detail::WordSource from = detail::word_source(detail::WordKind::int8, b, tb, n, k, ldb);
    from.flip = 0x80808080U;
    packed.words = detail::pack_all(from);
  }
  return packed;
}

// C = op(A) B, A [M, K].
inline void gemm_int8(Trans ta, std::int64_t m, const std::int8_t* a, std::int64_t lda,
                      const PackedInt8& b, std::int32_t* c, std::int64_t ldc) {
  const detail::WordKind kind = detail::WordKind::int8;
  detail::int8_product(detail::int8_word_unit(), detail::rows_of(kind, a, ta, m, b.k, lda),
                       detail::word_source(kind, nullptr, Trans::no, b.n, b.k, b.n),
                       b.words ? b.words->data() : nullptr, c, ldc);
}

// One scale for each row of A, and one for each column of B in each block of k: b[k / block][n].
struct Int8Scales {
  const float* a = nullptr;
  const float* b = nullptr;
  std::int64_t block = 0;  // numbers of k that share a scale; k for one scale a column
};

// C = scaled op(A) op(B) in f32.
inline void gemm_int8(Trans ta, Trans tb, std::int64_t m, std::int64_t n, std::int64_t k,
                      const std::int8_t* a, std::int64_t lda, const std::int8_t* b,
                      std::int64_t ldb, const Int8Scales& scales, float* c, std::int64_t ldc) {
  if (m <= 0 || n <= 0) {
    return;
  }
  if (scales.block <= 0 && k > 0) {
    detail::fail({"gemm_int8: blocks of ", scales.block, "; at least 1 number of k"});
  }
  const std::int64_t fit = std::max<std::int64_t>(1, detail::word_fit / m / 64) * 64;
  const std::int64_t wide = std::min(n, fit);
  const detail::Scratch lease(m * wide);
  auto* const sums = reinterpret_cast<std::int32_t*>(lease.data());
  for (std::int64_t j = 0; j < n; j += wide) {
    const std::int64_t columns = std::min(wide, n - j);
    for (std::int64_t p = 0; p < std::max<std::int64_t>(k, 1);
         p += std::max<std::int64_t>(scales.block, 1)) {
      const std::int64_t depth = std::min(scales.block, k - p);
      gemm_int8(ta, tb, m, columns, depth, a + (ta == Trans::no ? p : p * lda), lda,
                b + (tb == Trans::no ? p * ldb + j : j * ldb + p), ldb, sums, wide);
      const float* const b_scale = k > 0 ? scales.b + p / scales.block * n + j : nullptr;
      parallel_for(m, 1 + 16384 / columns, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          for (std::int64_t x = 0; x < columns; ++x) {
            const float sum =
                k > 0 ? static_cast<float>(sums[i * wide + x]) * scales.a[i] * b_scale[x] : 0.0f;
            float& to = c[i * ldc + j + x];
            to = p == 0 ? sum : to + sum;
          }
        }
      });
    }
  }
}

}  // namespace kernels
}}  // namespace tinyscale

// >> tinyscale/compute/gemv_quantized.hpp
// Quantised weights W [N, K] and their products with activations, y = W x: the bytes of W are the
// whole cost of a decoded token. K is cut into groups that share a scale; weights are int8 or
// 4-bit.
//   y[n] = sum over groups of  w_scale[n][group] * x_scale[group] * (integer dot product)
// x is rounded to int8 by group, as llama2.c and ggml do. 16 rows of W are laid side by side, a
// lane a row, so that no lanes are added up: [panel of 16 rows][k / 4][row] words of 4 int8, kept
// 128 higher; 4-bit ones 8 higher, the second word of each pair in the upper half of the bytes.

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace kernels {

struct QuantizedMatrix {
  std::int64_t rows = 0, cols = 0;
  std::int64_t group = 32;  // columns that share a scale: a multiple of 8; the last may be shorter
  int bits = 8;             // or 4
  bool half_scales = true;  // scales as f16 where that is exact, else f32
  Shared<detail::WordBuffer> data, scales;  // scales: [panel][group][16]

  std::int64_t groups() const { return (cols + group - 1) / group; }
  double bytes() const {  // that a product reads
    const double padded = static_cast<double>((rows + 15) / 16 * 16 * groups());
    return padded * (static_cast<double>(group * bits) / 8 + (half_scales ? 2 : 4));
  }

  // One number: its code (-128..127, or -8..7) and its scale.
  int code(std::int64_t row, std::int64_t col) const {
    const std::int64_t per_panel = groups() * group * 16 * bits / 8;
    const auto* const panel =
        reinterpret_cast<const std::uint8_t*>(data->data()) + row / 16 * per_panel;
    if (bits == 8) {
      return panel[(col / 4 * 16 + row % 16) * 4 + col % 4] - 128;
    }
    const int both = panel[(col / 8 * 16 + row % 16) * 4 + col % 4];
    return (col % 8 < 4 ? both & 15 : both >> 4) - 8;
  }
  float scale(std::int64_t row, std::int64_t col) const {
    const std::int64_t at = (row / 16 * groups() + col / group) * 16 + row % 16;
    const auto* const halves = reinterpret_cast<const std::uint16_t*>(scales->data());
    return half_scales ? from_f16(halves[at]) : detail::float_of(scales->data()[at]);
  }
};

// From codes [rows, cols] and scales [rows, groups], as files hold them.
inline QuantizedMatrix pack_quantized(std::int64_t rows, std::int64_t cols, std::int64_t group,
                                      int bits, const std::int8_t* codes, const float* scales) {
  if (rows < 0 || cols < 0 || group < 8 || group % 8 != 0 || (bits != 4 && bits != 8)) {
    detail::fail({"pack_quantized: ", rows, " x ", cols, ", groups of ", group, ", ", bits,
                  " bits; groups are multiples of 8, of 4 or 8 bits"});
  }
  QuantizedMatrix q{rows, cols, group, bits, true, {}, {}};
  const std::int64_t groups = q.groups(), panels = (rows + 15) / 16;
  for (std::int64_t i = 0; i < rows * groups && q.half_scales; ++i) {
    q.half_scales = from_f16(to_f16(scales[i])) == scales[i];
  }
  const std::int64_t words = panels * groups * group * bits / 8 * 4;
  q.data = Shared<detail::WordBuffer>(new detail::WordBuffer(words + 16));
  q.scales = Shared<detail::WordBuffer>(new detail::WordBuffer(panels * groups * 16));
  std::fill(q.data->data(), q.data->data() + words, bits == 8 ? 0x80808080U : 0x88888888U);
  std::fill(q.scales->data(), q.scales->data() + panels * groups * 16, 0U);
  const std::int64_t per_panel = groups * group * 16 * bits / 8;
  parallel_for(panels, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin * 16; row < std::min(rows, end * 16); ++row) {
      auto* const panel = reinterpret_cast<std::uint8_t*>(q.data->data()) + row / 16 * per_panel;
      for (std::int64_t col = 0; col < cols; ++col) {
        const int code = codes[row * cols + col] + (bits == 8 ? 128 : 8);
        if (bits == 8) {
          panel[(col / 4 * 16 + row % 16) * 4 + col % 4] = static_cast<std::uint8_t>(code);
        } else {
          std::uint8_t& both = panel[(col / 8 * 16 + row % 16) * 4 + col % 4];
          both = static_cast<std::uint8_t>(col % 8 < 4 ? (both & 240) | (code & 15)
                                                       : (both & 15) | (code & 15) << 4);
        }
      }
      for (std::int64_t g = 0; g < groups; ++g) {
        const std::int64_t at = (row / 16 * groups + g) * 16 + row % 16;
        const float scale = scales[row * groups + g];
        if (q.half_scales) {
          reinterpret_cast<std::uint16_t*>(q.scales->data())[at] = to_f16(scale);
        } else {
          q.scales->data()[at] = detail::bits_of(scale);
        }
      }
    }
  });
  return q;
}

// Rounds weights [rows, cols]. 8 bits: scale = max|w| / 127; 4 bits: the largest by magnitude
// becomes -8. Scales are f16. The same numbers as ggml's q8_0 and q4_0 in groups of 32.
inline QuantizedMatrix quantize(std::int64_t rows, std::int64_t cols, std::int64_t group, int bits,
                                const float* w) {
  if (rows <= 0 || cols <= 0 || group < 8) {
    return pack_quantized(rows, cols, group, bits, nullptr, nullptr);
  }
  const std::int64_t groups = (cols + group - 1) / group;
  List<std::int8_t> codes(static_cast<std::size_t>(rows * cols));
  List<float> scales(static_cast<std::size_t>(rows * groups));
  for (std::int64_t at = 0; at < rows * groups; ++at) {
    const std::int64_t first = at / groups * cols + at % groups * group;
    const std::int64_t last = std::min(first + group, (at / groups + 1) * cols);
    float largest = 0;
    for (std::int64_t i = first; i < last; ++i) {
      if (!(std::fabs(w[i]) <= 65504.0f)) {
        detail::fail({"quantize: weight ", i / cols, ", ", i % cols, " is ", double{w[i]},
                      "; weights must be within +-65504"});
      }
      largest = std::fabs(w[i]) > std::fabs(largest) ? w[i] : largest;
    }
    const float scale = bits == 8 ? std::fabs(largest) / 127.0f : largest / -8.0f;
    const float inverse = std::fabs(scale) > 1e-38f ? 1.0f / scale : 0.0f;  // finite
    for (std::int64_t i = first; i < last; ++i) {
      const float code = bits == 8 ? std::round(w[i] * inverse)
                                   : std::fmin(15.0f, std::trunc(w[i] * inverse + 8.5f)) - 8.0f;
      codes[static_cast<std::size_t>(i)] = static_cast<std::int8_t>(code);
    }
    scales[static_cast<std::size_t>(at)] = from_f16(to_f16(scale));
  }
  return pack_quantized(rows, cols, group, bits, codes.data(), scales.data());
}

// The reference body, without rounding x: y[n] = sum of w x.
inline void gemv_quantized_reference(const QuantizedMatrix& w, const float* x, float* y) {
  for (std::int64_t n = 0; n < w.rows; ++n) {
    double sum = 0.0;
    for (std::int64_t p = 0; p < w.cols; ++p) {
      sum += double{w.scale(n, p)} * w.code(n, p) * double{x[p]};
    }
    y[n] = static_cast<float>(sum);
  }
}

}  // namespace kernels

namespace detail {

// One x, rounded to int8 by group: scale = max|x| / 127. A NaN or an infinity makes its group's
// scale, and so every y, NaN. offset: what the shift of W's codes adds to each dot product.
struct RoundedActivations {
  std::int8_t* codes;  // groups * group, zeros after cols
  float* scales;
  std::int32_t* offsets;
};

struct RoundActivations {
  const float* x;
  std::int64_t cols, group;
  std::int32_t shift;  // 128, or 8 for 4 bits
  RoundedActivations to;

  template <class L>
  TINYSCALE_INLINE void run() const {
    for (std::int64_t g = 0; g * group < cols; ++g) {
      const std::int64_t count = std::min(group, cols - g * group);
      const float* const from = x + g * group;
      std::int8_t* const codes = to.codes + g * group;
      const std::uint32_t largest = largest_bits<L>(from, count);
      const float scale = float_of(largest) / 127.0f;
      const bool finite = largest < 0x7f800000U;
      to.scales[g] = finite ? scale : std::numeric_limits<float>::quiet_NaN();
      const float inverse = finite && scale > 1e-38f ? 1.0f / scale : 0.0f;  // finite
      std::int32_t sum = 0;
      for (std::int64_t i = 0; i < group; i += L::width) {
        std::int32_t lanes[static_cast<std::size_t>(L::width)];
        typename L::V v;
        if (i + L::width <= count) {
          load<L>(from + i, v);
        } else {
          load_part<L>(from + i, std::max<std::int64_t>(0, count - i), 0.0f, v);
        }
        // The low bits of v + 1.5 * 2^23 are round(v), to nearest; a NaN gives 0 below.
        v = v * (finite ? inverse : 0.0f) + 12582912.0f;
        std::memcpy(lanes, &v, sizeof(v));
        for (int e = 0; e < L::width && i + e < group; ++e) {
          const std::int32_t code = finite ? lanes[e] - 0x4B400000 : 0;
          codes[i + e] = static_cast<std::int8_t>(code);
          sum += code;
        }
      }
      to.offsets[g] = -shift * sum;
    }
  }

  template <class L>
  static TINYSCALE_INLINE std::uint32_t largest_bits(const float* from, std::int64_t count) {
    typename L::I best{}, bits, mask;
    std::int64_t i = 0;
    for (; i + L::width <= count; i += L::width) {
      std::memcpy(&bits, from + i, sizeof(bits));
      bits = bits & 0x7fffffff;
      if constexpr (L::width == 1) {
        mask = bits > best ? -1 : 0;
      } else {
        mask = bits > best;
      }
      best = (bits & mask) | (best & ~mask);
    }
    std::int32_t lanes[static_cast<std::size_t>(L::width)];
    std::memcpy(lanes, &best, sizeof(best));
    std::uint32_t largest = 0;
    for (const std::int32_t lane : lanes) {
      largest = std::max(largest, static_cast<std::uint32_t>(lane));
    }
    for (; i < count; ++i) {
      largest = std::max(largest, bits_of(from[i]) & 0x7fffffffU);
    }
    return largest;
  }
};

// Panels p, p + stride, ... of y for one x, up to 4: as many far streams, each of which the next
// call goes on with, bring more from memory than one does.
struct QuantizedPanels {
  const kernels::QuantizedMatrix& w;
  const RoundedActivations& x;
  std::int64_t first, stride, count;
  float* y;

  template <class U>
  TINYSCALE_INLINE void run() const {
    constexpr int panels = U::width >= 4 ? U::width / 4 : 1;
    std::int64_t v = 0;
    for (; v + panels <= count; v += panels) {
      some<U, panels>(first + v * stride);
    }
    for (; v < count; ++v) {
      some<U, 1>(first + v * stride);
    }
  }

  template <class U, int PANELS>
  TINYSCALE_INLINE void some(std::int64_t p) const {
    if (w.bits == 8) {
      bits<U, PANELS, 8>(p);
    } else {
      bits<U, PANELS, 4>(p);
    }
  }

  template <class U, int PANELS, int BITS>
  TINYSCALE_INLINE void bits(std::int64_t p) const {
    constexpr int vectors = PANELS * 16 / U::width, each = 16 / U::width;
    const std::int64_t groups = w.groups(), words = w.group / (BITS == 8 ? 4 : 8) * 16;
    const std::int64_t apart = stride * groups * words;
    const std::uint32_t* from = w.data->data() + p * groups * words;
    typename U::Floats sum[static_cast<std::size_t>(vectors)];
    TINYSCALE_UNROLL
    for (int v = 0; v < vectors; ++v) {
      sum[v] = typename U::Floats{};
    }
    for (std::int64_t g = 0; g < groups; ++g, from += words) {
      typename U::Words dots[static_cast<std::size_t>(vectors)], low, high, weights;
      const std::int8_t* const codes = x.codes + g * w.group;
      TINYSCALE_UNROLL
      for (int v = 0; v < vectors; ++v) {
        U::broadcast(static_cast<std::uint32_t>(x.offsets[g]), dots[v]);
      }
      for (std::int64_t at = 0; at < words; at += 16) {
        std::uint32_t pair[2];
        std::memcpy(pair, codes + at / (BITS == 8 ? 4 : 2), BITS == 8 ? 4 : 8);
        U::broadcast(pair[0], low);
        if constexpr (BITS == 4) {
          U::broadcast(pair[1], high);
        }
        TINYSCALE_UNROLL
        for (int v = 0; v < vectors; ++v) {
          U::load(from + v / each * apart + at + v % each * U::width, weights);
          if constexpr (BITS == 4) {
            U::dot(low, weights & 0x0f0f0f0f, dots[v]);
            U::dot(high, (weights >> 4) & 0x0f0f0f0f, dots[v]);
          } else {
            U::dot(low, weights, dots[v]);
          }
        }
      }
      TINYSCALE_UNROLL
      for (int v = 0; v < vectors; ++v) {
        typename U::Floats scale, value;
        load_scales<U>(((p + v / each * stride) * groups + g) * 16 + v % each * U::width, scale);
        to_float<typename U::Lanes>(dots[v], value);
        sum[v] = sum[v] + value * (scale * x.scales[g]);
      }
    }
    TINYSCALE_UNROLL
    for (int v = 0; v < vectors; ++v) {
      const std::int64_t row = (p + v / each * stride) * 16 + v % each * U::width;
      const std::int64_t rows = w.rows - row;
      if (rows >= U::width) {
        store<typename U::Lanes>(y + row, sum[v]);
      } else if (rows > 0) {
        store_part<typename U::Lanes>(y + row, rows, sum[v]);
      }
    }
  }

  template <class U>
  TINYSCALE_INLINE void load_scales(std::int64_t at, typename U::Floats& scale) const {
    if (!w.half_scales) {
      load<typename U::Lanes>(reinterpret_cast<const float*>(w.scales->data()) + at, scale);
    } else {
      U::load_halves(reinterpret_cast<const std::uint16_t*>(w.scales->data()) + at, scale);
    }
  }
};

}  // namespace detail

namespace kernels {

// y[m][rows] = x[m][cols] W': a row of x at a time, 64 rows of W from cache after the first.
inline void gemm_quantized(const QuantizedMatrix& w, std::int64_t m, const float* x,
                           std::int64_t ldx, float* y, std::int64_t ldy) {
  if (m <= 0 || w.rows <= 0) {
    return;
  }
  const std::int64_t groups = w.groups(), bytes = (groups * w.group + 3) / 4;
  const detail::Scratch lease(m * (bytes + 2 * groups) + 1);
  const auto at = [&](std::int64_t i) {
    float* const start = lease.data() + i * (bytes + 2 * groups);
    return detail::RoundedActivations{reinterpret_cast<std::int8_t*>(start), start + bytes,
                                      reinterpret_cast<std::int32_t*>(start + bytes + groups)};
  };
  for (std::int64_t i = 0; i < m; ++i) {
    detail::run_on_lanes(
        detail::RoundActivations{x + i * ldx, w.cols, w.group, w.bits == 8 ? 128 : 8, at(i)});
  }
  const std::int64_t panels = (w.rows + 15) / 16, chunks = (panels + 3) / 4;
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; ++p) {
      const std::int64_t count = (panels - p + chunks - 1) / chunks;
      for (std::int64_t i = 0; i < m; ++i) {
        const detail::RoundedActivations rounded = at(i);
        detail::run_on_int8(detail::QuantizedPanels{w, rounded, p, chunks, count, y + i * ldy});
      }
    }
  };
  if (m * w.rows * w.cols < (1 << 18)) {  // less than waking a thread pays
    body(0, chunks);
  } else {
    parallel_for(chunks, 1, body);
  }
}

inline void gemv_quantized(const QuantizedMatrix& w, const float* x, float* y) {
  gemm_quantized(w, 1, x, w.cols, y, w.rows);
}

}  // namespace kernels
}}  // namespace tinyscale

// >> tinyscale/compute/gemm_fused.hpp
// What stands around a matrix product: the work that follows it, done to each block of C while it
// is in cache; weights packed once and used many times; many products of one size.
//   C = act(scale (A B + beta C) + bias) + residual

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace kernels {

enum class Activation { none, gelu, gelu_tanh, silu };

struct GemmEpilogue {
  float scale = 1.0f;
  const float* bias = nullptr;  // (n)
  Activation activation = Activation::none;
  float* before = nullptr;  // (m, n): what goes into the activation, kept for backward
  std::int64_t ld_before = 0;
  const float* residual = nullptr;  // (m, n), added last; not C: that is what beta is for
  std::int64_t ld_residual = 0;
};

// The reference body: what is done to C(i, j).
inline void gemm_epilogue_reference(const GemmEpilogue& e, std::int64_t i, std::int64_t j,
                                    float* c) {
  double x = static_cast<double>(e.scale) * static_cast<double>(*c);
  x += e.bias != nullptr ? static_cast<double>(e.bias[j]) : 0.0;
  if (e.before != nullptr) {
    e.before[i * e.ld_before + j] = static_cast<float>(x);
  }
  x = e.activation == Activation::gelu        ? gelu_reference(x)
      : e.activation == Activation::gelu_tanh ? gelu_tanh_reference(x)
      : e.activation == Activation::silu      ? silu_reference(x)
                                              : x;
  x += e.residual != nullptr ? static_cast<double>(e.residual[i * e.ld_residual + j]) : 0.0;
  *c = static_cast<float>(x);
}

}  // namespace kernels

namespace detail {

// Rows [0, m), columns [column, column + n) of C and of all that goes with it.
struct GemmFinish {
  const kernels::GemmEpilogue& e;
  float* c;
  std::int64_t ldc, row, m, column, n;

  template <class L>
  TINYSCALE_INLINE void run() const {
    for (std::int64_t i = row; i < row + m; ++i) {
      float* to = c + i * ldc + column;
      for (std::int64_t j = 0; j < n; j += L::width) {
        typename L::V x;
        take<L>(to + j, n - j, x);
        apply<L>(i, column + j, n - j, x);
        put<L>(to + j, n - j, x);
      }
    }
  }

  template <class L>
  TINYSCALE_INLINE void apply(std::int64_t i, std::int64_t j, std::int64_t left,
                              typename L::V& x) const {
    typename L::V y;
    x = x * e.scale;
    if (e.bias != nullptr) {
      take<L>(e.bias + j, left, y);
      x = x + y;
    }
    if (e.before != nullptr) {
      put<L>(e.before + i * e.ld_before + j, left, x);
    }
    if (e.activation == kernels::Activation::gelu) {
      erf_vector<L>(x * 0.70710678118654752f, y);
      x = 0.5f * x * (1.0f + y);
    } else if (e.activation == kernels::Activation::gelu_tanh) {
      tanh_vector<L>(0.79788456080286536f * x * (1.0f + 0.044715f * x * x), y);
      x = 0.5f * x * (1.0f + y);
    } else if (e.activation == kernels::Activation::silu) {
      exp_vector<L>(-x, y);
      x = x / (1.0f + y);
    }
    if (e.residual != nullptr) {
      take<L>(e.residual + i * e.ld_residual + j, left, y);
      x = x + y;
    }
  }

  template <class L>
  TINYSCALE_INLINE void take(const float* from, std::int64_t left, typename L::V& x) const {
    if (left >= L::width) {
      load<L>(from, x);
    } else {
      load_part<L>(from, left, 0.0f, x);
    }
  }
  template <class L>
  TINYSCALE_INLINE void put(float* to, std::int64_t left, const typename L::V& x) const {
    if (left >= L::width) {
      store<L>(to, x);
    } else {
      store_part<L>(to, left, x);
    }
  }
};

inline void gemm_finish(const GemmOperands& g, std::int64_t row, std::int64_t m,
                        std::int64_t column, std::int64_t n) {
  const kernels::GemmEpilogue& e = *static_cast<const kernels::GemmEpilogue*>(g.epilogue);
  run_on_lanes(GemmFinish{e, g.c, g.ldc, row, m, column, n});
}

// Sets what follows; throws where it writes or reads what is still needed.
inline void gemm_follow(const char* who, GemmOperands& g, const kernels::GemmEpilogue& e) {
  const std::int64_t kept = e.before == nullptr ? 0 : gemm_extent(who, g.m, g.n, e.ld_before);
  const std::int64_t added = e.residual == nullptr ? 0 : gemm_extent(who, g.m, g.n, e.ld_residual);
  if ((kept > 0 && g.m > 1 && e.ld_before < g.n) || (added > 0 && g.m > 1 && e.ld_residual < g.n)) {
    fail({who, ": rows of before and residual are ", e.ld_before, " and ", e.ld_residual,
          " apart; they must be at least n = ", g.n});
  }
  if (gemm_overlap(g.c, g.m, g.n, g.ldc, e.before, kept, g.n, e.ld_before) ||
      gemm_overlap(g.c, g.m, g.n, g.ldc, e.residual, added, g.n, e.ld_residual)) {
    fail({who, ": C overlaps before or residual; each must have memory of its own"});
  }
  g.epilogue = &e;
  g.finish = &gemm_finish;
}

}  // namespace detail

namespace kernels {

// gemm, then the epilogue on each block as it is finished.
inline void gemm_fused(Trans ta, Trans tb, std::int64_t m, std::int64_t n, std::int64_t k,
                       const float* a, std::int64_t lda, const float* b, std::int64_t ldb,
                       float beta, float* c, std::int64_t ldc, const GemmEpilogue& epilogue) {
  detail::GemmOperands g = detail::gemm_operands(ta, tb, m, n, k, a, lda, b, ldb, beta, c, ldc);
  if (detail::gemm_check("gemm_fused", ta, tb, g, lda, ldb)) {
    detail::gemm_follow("gemm_fused", g, epilogue);
    detail::gemm_run(g);
  }
}

// B as the kernels of one path read it.
struct PackedWeights {
  std::int64_t k = 0, n = 0;
  CpuPath path = CpuPath::portable;
  Shared<detail::Scratch> memory;  // panels [k][tile's width], then the narrower last one
};

// op(B) is k x n.
inline PackedWeights pack_weights(Trans tb, std::int64_t k, std::int64_t n, const float* b,
                                  std::int64_t ldb) {
  const bool no = tb == Trans::no;
  if (detail::gemm_extent("pack_weights", no ? k : n, no ? n : k, ldb) > 0 && b == nullptr) {
    detail::fail({"pack_weights: B is null; k, n are ", k, ", ", n});
  }
  PackedWeights w{k, n, detail::active_path(), {}};
  if (k == 0 || n == 0) {
    return w;
  }
  const detail::TileSize tile = detail::tile_size();
  const std::int64_t full = n / tile.wide * tile.wide;
  detail::gemm_extent("pack_weights", k, n + tile.width, n + tile.width);
  w.memory = Shared<detail::Scratch>(new detail::Scratch((full + tile.rounded(n - full)) * k));
  const detail::GemmOperands g =
      detail::gemm_operands(Trans::no, tb, 1, n, k, nullptr, k, b, ldb, 0.0f, nullptr, n);
  detail::gemm_pack(g, 0, n, tile, w.memory->data(), w.memory->data() + full * k,
                    n * k < (1 << 16));
  return w;
}

// C[m, n] = A[m, k] W + beta C, then the epilogue.
inline void gemm_packed(std::int64_t m, const float* a, std::int64_t lda, const PackedWeights& w,
                        float beta, float* c, std::int64_t ldc,
                        const GemmEpilogue& epilogue = GemmEpilogue()) {
  if (w.path != detail::active_path()) {
    detail::fail({"gemm_packed: the weights were packed for the path ", name_of(w.path), " and ",
                  name_of(detail::active_path()), " is in use; pack them again"});
  }
  float none = 0.0f;
  const float* const packed = w.memory == nullptr ? &none : w.memory->data();
  detail::GemmOperands g =
      detail::gemm_operands(Trans::no, Trans::no, m, w.n, w.k, a, lda, packed, w.n, beta, c, ldc);
  if (!detail::gemm_check("gemm_packed", Trans::no, Trans::no, g, lda, w.n)) {
    return;
  }
  detail::gemm_follow("gemm_packed", g, epilogue);
  if (w.k == 0) {
    detail::gemm_run(g);
    return;
  }
  const detail::TileSize tile = detail::tile_size();
  const std::int64_t full = w.n / tile.wide * tile.wide;
  if (m > 4 && m <= detail::gemm_few_packed_rows && w.n * w.k > detail::gemm_in_cache) {
    detail::gemm_few_packed(g, packed, packed + full * w.k, tile.rounded(w.n - full));
    return;
  }
  const detail::GemmPanels panels{
      0, w.n, packed, packed + full * w.k, tile.rounded(w.n - full), detail::gemm_pass_depth(w.k)};
  detail::gemm_blocks(g, panels, detail::gemm_is_small(g));
}

// Products of one size: matrix x of A starts at a + x stride_a, and so on. A stride of 0 shares A
// or B. Small ones are dealt out whole, large ones one after another, each on all threads.
inline void gemm_batched(std::int64_t batch, Trans ta, Trans tb, std::int64_t m, std::int64_t n,
                         std::int64_t k, const float* a, std::int64_t lda, std::int64_t stride_a,
                         const float* b, std::int64_t ldb, std::int64_t stride_b, float beta,
                         float* c, std::int64_t ldc, std::int64_t stride_c) {
  const std::int64_t c_size = detail::gemm_extent("gemm_batched", m, n, ldc);
  detail::gemm_extent("gemm_batched", batch, c_size, stride_c);
  const bool beside = stride_c >= n && stride_c <= ldc / std::max<std::int64_t>(batch, 1);
  if (batch > 1 && c_size > 0 && stride_c < c_size && !beside) {
    detail::fail(
        {"gemm_batched: matrices of C are ", stride_c, " apart and overlap; each takes ", c_size});
  }
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t x = begin; x < end; ++x) {
      gemm(ta, tb, m, n, k, a + x * stride_a, lda, b + x * stride_b, ldb, beta, c + x * stride_c,
           ldc);
    }
  };
  const double work = static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  if (batch < 2 * thread_count() || work > (1 << 24)) {
    body(0, batch);
  } else {
    parallel_for(batch, 1 + static_cast<std::int64_t>((1 << 18) / (work + 1.0)), body);
  }
}

}  // namespace kernels
}}  // namespace tinyscale

// >> tinyscale/compute/softmax.hpp
// Softmax and cross-entropy by rows, from differences to the row's maximum (nothing overflows):
//   y_j = exp(x_j - max) / sum,  lse = max + log(sum),  loss = lse - x_target.
// dx = y (dy - sum(y dy));  d logits = scale (exp(x - lse) - onehot(target)).

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace kernels {

// The reference bodies: lse of one row, then y, dx, losses, d logits.
inline double lse_reference(std::int64_t n, const float* x) {
  const double max = double{*std::max_element(x, x + n)};
  double sum = 0;
  for (std::int64_t j = 0; j < n; ++j) {
    sum += std::exp(double{x[j]} - max);
  }
  return max + std::log(sum);
}

inline void softmax_reference(std::int64_t rows, std::int64_t cols, const float* x, float* y) {
  for (std::int64_t i = 0; i < rows * cols; i += cols) {
    const double lse = lse_reference(cols, x + i);
    for (std::int64_t j = i; j < i + cols; ++j) {
      y[j] = static_cast<float>(std::exp(double{x[j]} - lse));
    }
  }
}

inline void softmax_backward_reference(std::int64_t rows, std::int64_t cols, const float* y,
                                       const float* dy, float* dx, float beta = 1.0f) {
  for (std::int64_t i = 0; i < rows * cols; i += cols) {
    double mean = 0;
    for (std::int64_t j = i; j < i + cols; ++j) {
      mean += double{y[j]} * double{dy[j]};
    }
    for (std::int64_t j = i; j < i + cols; ++j) {
      const float old = beta == 0.0f ? 0.0f : dx[j];
      dx[j] = old + static_cast<float>(double{y[j]} * (double{dy[j]} - mean));
    }
  }
}

inline void cross_entropy_reference(std::int64_t rows, std::int64_t vocab, const float* logits,
                                    const std::int32_t* targets, float* losses, float* lse) {
  for (std::int64_t i = 0; i < rows; ++i) {
    const float* const x = logits + i * vocab;
    const double all = lse_reference(vocab, x);
    lse[i] = static_cast<float>(all);
    losses[i] = targets[i] < 0 ? 0.0f : static_cast<float>(all - double{x[targets[i]]});
  }
}

inline void cross_entropy_backward_reference(std::int64_t rows, std::int64_t vocab,
                                             const float* logits, const float* lse,
                                             const std::int32_t* targets, float scale,
                                             float* dlogits, float beta = 1.0f) {
  for (std::int64_t at = 0; at < rows * vocab; ++at) {
    const std::int64_t i = at / vocab, j = at % vocab;
    const double y = std::exp(double{logits[at]} - double{lse[i]});
    const double slope = targets[i] < 0 ? 0.0 : y - (j == targets[i] ? 1.0 : 0.0);
    dlogits[at] = static_cast<float>(scale * slope) + (beta == 0.0f ? 0.0f : dlogits[at]);
  }
}

}  // namespace kernels

namespace detail {

// The sum of a row of terms, four vectors at a time; a lane past the row counts as 0.
template <class L, class Term>
TINYSCALE_INLINE float row_sum(std::int64_t n, const Term& term) {
  typename L::V sums[4] = {}, v;
  std::int64_t j = 0;
  for (; j + 4 * L::width <= n; j += 4 * L::width) {
    TINYSCALE_UNROLL
    for (int part = 0; part < 4; ++part) {
      term.template get<L>(j + part * L::width, L::width, v);
      sums[part] = sums[part] + v;
    }
  }
  for (; j < n; j += L::width) {
    term.template get<L>(j, n - j, v);
    sums[0] = sums[0] + v;
  }
  return sum_lanes<L>((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

struct ValueTerm {
  const float* x;
  template <class L>
  TINYSCALE_INLINE void get(std::int64_t j, std::int64_t left, typename L::V& v) const {
    load_some<L>(x + j, left, 0.0f, v);
  }
};

struct ProductTerm {
  const float* a;
  const float* b;
  template <class L>
  TINYSCALE_INLINE void get(std::int64_t j, std::int64_t left, typename L::V& v) const {
    typename L::V w;
    load_some<L>(a + j, left, 0.0f, v);
    load_some<L>(b + j, left, 0.0f, w);
    v = v * w;
  }
};

struct SquareTerm {
  const float* x;
  float center;
  template <class L>
  TINYSCALE_INLINE void get(std::int64_t j, std::int64_t left, typename L::V& v) const {
    typename L::V c;
    broadcast<L>(center, c);
    load_some<L>(x + j, left, center, v);
    v = (v - c) * (v - c);
  }
};

// y = beta y + v, where beta is 0 (y is not read) or 1.
template <class L>
TINYSCALE_INLINE void add_some(float beta, const typename L::V& v, std::int64_t left, float* y) {
  typename L::V old{};
  if (beta != 0.0f) {
    load_some<L>(y, left, 0.0f, old);
  }
  store_some<L>(y, left, old + v);
}

template <class L>
TINYSCALE_INLINE float dot_row(std::int64_t n, const float* a, const float* b) {
  return row_sum<L>(n, ProductTerm{a, b});
}

// best = the maximum of it and of a row, each lane for itself.
template <class L>
TINYSCALE_INLINE void max_row(std::int64_t n, const float* x, typename L::V& best) {
  typename L::V second = best, v;
  std::int64_t j = 0;
  for (; j + 2 * L::width <= n; j += 2 * L::width) {
    load<L>(x + j, v);
    max_vector<L>(best, v, best);
    load<L>(x + j + L::width, v);
    max_vector<L>(second, v, second);
  }
  for (; j < n; j += L::width) {
    load_some<L>(x + j, n - j, -std::numeric_limits<float>::infinity(), v);
    max_vector<L>(best, v, best);
  }
  max_vector<L>(best, second, best);
}

// max and sum of exp(x - max) of one row, read once: block by block, from a maximum of each lane
// that grows on the way. Nothing is compared with -inf: in place of exp(-inf) stands 2^-126.
template <class L>
TINYSCALE_INLINE void sum_exp_row(std::int64_t n, const float* x, float& max, float& sum) {
  typedef typename L::V V;
  constexpr std::int64_t block = 512, ahead = 4096;
  const float lowest = -std::numeric_limits<float>::infinity();
  V best, top, before, v, total{}, more{};
  broadcast<L>(lowest, best);
  broadcast<L>(-std::numeric_limits<float>::max(), top);
  for (std::int64_t begin = 0; begin < n; begin += block) {
    const std::int64_t end = std::min(n, begin + block);
    max_row<L>(end - begin, x + begin, best);
    before = top;
    max_vector<L>(top, best, top);
    exp_negative<L>(before - top, v);
    total = total * v;
    more = more * v;
    std::int64_t j = begin;
    for (; j + 2 * L::width <= end; j += 2 * L::width) {
      prefetch<3>(x + j + ahead);
      prefetch<3>(x + j + ahead + L::width);
      load<L>(x + j, v);
      add_exp<L>(v - top, total);
      load<L>(x + j + L::width, v);
      add_exp<L>(v - top, more);
    }
    for (; j < end; j += L::width) {
      load_some<L>(x + j, end - j, lowest, v);
      add_exp<L>(v - top, total);
    }
  }
  max = max_lanes<L>(best);
  broadcast<L>(max, best);
  exp_negative<L>(top - best, v);
  sum = sum_lanes<L>((total + more) * v);
}

// max and sum of exp(x - max) of one row; writes exp(x - max) to y, which may be x.
template <class L>
TINYSCALE_INLINE void exp_row(std::int64_t n, const float* x, float* y, float& max, float& sum) {
  typedef typename L::V V;
  const float lowest = -std::numeric_limits<float>::infinity();
  V best, v, total{};
  broadcast<L>(lowest, best);
  max_row<L>(n, x, best);
  max = max_lanes<L>(best);
  broadcast<L>(max, best);
  for (std::int64_t j = 0; j < n; j += L::width) {
    load_some<L>(x + j, n - j, lowest, v);
    prefetch<3>(x + j + n);  // of the next row
    exp_negative<L>(v - best, v);
    total = total + v;
    store_some<L>(y + j, n - j, v);
  }
  sum = sum_lanes<L>(total);
}

template <class L>
TINYSCALE_INLINE void scale_row(std::int64_t n, float factor, float* y) {
  typename L::V v, f;
  broadcast<L>(factor, f);
  for (std::int64_t j = 0; j < n; j += L::width) {
    load_some<L>(y + j, n - j, 0.0f, v);
    prefetch<3>(y + j + n);
    store_some<L>(y + j, n - j, v * f);
  }
}

// The same down the rows of p, each lane for itself: top becomes the maximum of it and of all p,
// p becomes exp(factor (p - top)), sum their sum. Lanes that see -inf alone get zeros.
template <class L>
TINYSCALE_INLINE void exp_columns(std::int64_t rows, std::int64_t stride, float factor, float* p,
                                  typename L::V& top, typename L::V& shift, typename L::V& sum) {
  typedef typename L::V V;
  V v, w, scale, second = top;
  broadcast<L>(factor * log2_e, scale);
  std::int64_t x = 0;
  for (; x + 2 <= rows; x += 2) {
    load<L>(p + x * stride, v);
    load<L>(p + (x + 1) * stride, w);
    max_vector<L>(top, v, top);
    max_vector<L>(second, w, second);
  }
  if (x < rows) {
    load<L>(p + x * stride, v);
    max_vector<L>(top, v, top);
  }
  max_vector<L>(top, second, top);
  shift = top > -std::numeric_limits<float>::max() ? top : V{};
  sum = V{};
  for (x = 0; x < rows; ++x) {
    load<L>(p + x * stride, v);
    exp2_negative<L>((v - shift) * scale, v);
    sum = sum + v;
    store<L>(p + x * stride, v);
  }
}

struct SoftmaxRows {
  std::int64_t begin, end, cols;
  const float* x;
  float* y;

  template <class L>
  TINYSCALE_INLINE void run() const {
    for (std::int64_t i = begin; i < end; ++i) {
      float max = 0.0f, sum = 0.0f;
      exp_row<L>(cols, x + i * cols, y + i * cols, max, sum);
      scale_row<L>(cols, 1.0f / sum, y + i * cols);
    }
  }
};

struct SoftmaxSlope {  // of one row
  const float* y;
  const float* dy;
  float* dx;
  float beta, mean;

  template <class L>
  TINYSCALE_INLINE void at(std::int64_t j, std::int64_t left) const {
    typename L::V vy, vd, vm;
    broadcast<L>(mean, vm);
    load_some<L>(y + j, left, 0.0f, vy);
    load_some<L>(dy + j, left, 0.0f, vd);
    add_some<L>(beta, vy * (vd - vm), left, dx + j);
  }
};

struct SoftmaxBackwardRows {
  std::int64_t begin, end, cols;
  const float* y;
  const float* dy;
  float* dx;
  float beta;

  template <class L>
  TINYSCALE_INLINE void run() const {
    for (std::int64_t at = begin * cols; at < end * cols; at += cols) {
      const float mean = dot_row<L>(cols, y + at, dy + at);
      for_row<L>(cols, SoftmaxSlope{y + at, dy + at, dx + at, beta, mean});
    }
  }
};

struct CrossEntropyRows {
  std::int64_t begin, end, vocab;
  const float* logits;
  const std::int32_t* targets;
  float* losses;
  float* lse;

  template <class L>
  TINYSCALE_INLINE void run() const {
    for (std::int64_t i = begin; i < end; ++i) {
      float max = 0.0f, sum = 0.0f;
      sum_exp_row<L>(vocab, logits + i * vocab, max, sum);
      lse[i] = max + std::log(sum);
      losses[i] = targets[i] < 0 ? 0.0f : lse[i] - logits[i * vocab + targets[i]];
    }
  }
};

struct CrossEntropyBackwardRows {
  std::int64_t begin, end, vocab;
  const float* logits;
  const float* lse;
  const std::int32_t* targets;
  float scale;
  float* dlogits;
  float beta;

  template <class L>
  TINYSCALE_INLINE void run() const {
    for (std::int64_t i = begin; i < end; ++i) {
      float* const dx = dlogits + i * vocab;
      if (targets[i] < 0) {
        std::fill(dx, dx + (beta == 0.0f ? vocab : 0), 0.0f);
        continue;
      }
      typename L::V v, vl, vs;
      broadcast<L>(lse[i], vl);
      broadcast<L>(scale, vs);
      for (std::int64_t j = 0; j < vocab; j += L::width) {
        load_some<L>(logits + i * vocab + j, vocab - j, 0.0f, v);
        exp_negative<L>(v - vl, v);
        add_some<L>(beta, v * vs, vocab - j, dx + j);
      }
      dx[targets[i]] -= scale;
    }
  }
};

// Rows per task so that a task is worth a thread's while; a function of the sizes only.
inline std::int64_t row_grain(std::int64_t cols) {
  return std::max<std::int64_t>(1, 8192 / std::max<std::int64_t>(cols, 1));
}

}  // namespace detail

namespace kernels {

inline void softmax_forward(std::int64_t rows, std::int64_t cols, const float* x, float* y) {
  parallel_for(rows, detail::row_grain(cols), [&](std::int64_t begin, std::int64_t end) {
    detail::run_on_lanes(detail::SoftmaxRows{begin, end, cols, x, y});
  });
}

inline void softmax_backward(std::int64_t rows, std::int64_t cols, const float* y, const float* dy,
                             float* dx, float beta = 1.0f) {
  parallel_for(rows, detail::row_grain(cols), [&](std::int64_t begin, std::int64_t end) {
    detail::run_on_lanes(detail::SoftmaxBackwardRows{begin, end, cols, y, dy, dx, beta});
  });
}

// losses[rows], lse[rows]; a negative target gives loss 0 (and no gradient below).
inline void cross_entropy_forward(std::int64_t rows, std::int64_t vocab, const float* logits,
                                  const std::int32_t* targets, float* losses, float* lse) {
  parallel_for(rows, detail::row_grain(vocab), [&](std::int64_t begin, std::int64_t end) {
    detail::run_on_lanes(detail::CrossEntropyRows{begin, end, vocab, logits, targets, losses, lse});
  });
}

inline void cross_entropy_backward(std::int64_t rows, std::int64_t vocab, const float* logits,
                                   const float* lse, const std::int32_t* targets, float scale,
                                   float* dlogits, float beta = 1.0f) {
  parallel_for(rows, detail::row_grain(vocab), [&](std::int64_t begin, std::int64_t end) {
    detail::run_on_lanes(detail::CrossEntropyBackwardRows{begin, end, vocab, logits, lse, targets,
                                                          scale, dlogits, beta});
  });
}

}  // namespace kernels
}}  // namespace tinyscale

// >> tinyscale/compute/attention_product.hpp
// Products of attention: C = share (A B) + keep C with scores as A or as C. Of the sums over keys
// (or queries) each tile of rows takes those that causality shows to one of its rows: few rows and
// many columns in a tile, so that little is multiplied beyond the diagonal.

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace detail {

// Rows of a tile that is so many vectors wide: 16 sums where registers are many.
template <class L, int VECTORS>
constexpr int attention_tile = L::width == 1 || L::vectors < 4 ? L::rows
                               : VECTORS == 4                  ? 4
                                                               : 8;

constexpr std::int64_t attention_all = std::int64_t{1} << 40;  // bounds no tile

// Row i sums over p in [i + from, i + to], as far as that is in [0, k).
struct AttentionProduct {
  std::int64_t m, n, k;
  const float* a;
  std::int64_t a_row, a_col;
  const float* b;
  std::int64_t b_row;
  float* c;
  std::int64_t c_row;
  float beta = 0.0f;  // 0: C is not read
  std::int64_t from = -attention_all, to = attention_all;
  const float* share = nullptr;  // of each row: what its sum is multiplied by; null: 1
  const float* keep = nullptr;   // likewise what C is, where it is read

  template <class L>
  TINYSCALE_INLINE void run() const;
};

// Columns [column, column + VECTORS * width) of it; of one vector perhaps only the first `left`.
template <class L, int VECTORS>
struct AttentionPanel {
  static constexpr int rows = attention_tile<L, VECTORS>;
  typedef std::int64_t Offsets[static_cast<std::size_t>(rows)];
  const AttentionProduct& w;
  std::int64_t column, left;

  template <class Same>
  TINYSCALE_INLINE void run() const {
    Offsets at, a_at, c_at;
    const std::int64_t m = w.m, k = w.k, from = w.from, to = w.to;
    for (std::int64_t i = 0; i < m; i += rows) {
      if (i == 0 || m - i < rows) {
        TINYSCALE_UNROLL
        for (int r = 0; r < rows; ++r) {  // rows that are not there repeat the first one
          at[r] = r < m - i ? r : 0;
          a_at[r] = at[r] * w.a_row;
          c_at[r] = at[r] * w.c_row;
        }
      }
      const std::int64_t first = std::clamp<std::int64_t>(i + from, 0, k);
      const std::int64_t last = std::clamp<std::int64_t>(std::min(i + rows, m) + to, first, k);
      if (first < last || w.beta == 0.0f) {
        tile(i, first, last - first, at, a_at, c_at);
      }
    }
  }

  TINYSCALE_INLINE void tile(std::int64_t i, std::int64_t first, std::int64_t k, const Offsets& at,
                             const Offsets& a_at, const Offsets& c_at) const {
    typename L::V f, sum[static_cast<std::size_t>(rows)][static_cast<std::size_t>(VECTORS)] = {};
    const std::int64_t a_col = w.a_col, b_row = w.b_row;
    const std::int64_t count = VECTORS > 1 ? L::width : left;
    const float* a = w.a + i * w.a_row + first * a_col;
    const float* b = w.b + first * b_row + column;
    if (L::width > 4 && (VECTORS > 1 || count == L::width)) {
      for (; k > 1; k -= 2, a += 2 * a_col, b += 2 * b_row) {
        gemm_step<L, rows, VECTORS>(a, a_at, b, sum);
        gemm_step<L, rows, VECTORS>(a + a_col, a_at, b + b_row, sum);
      }
    }
    for (; k > 0; --k, a += a_col, b += b_row) {
      float part[static_cast<std::size_t>(L::width)];
      if (VECTORS == 1 && count < L::width) {
        load_part<L>(b, count, 0.0f, f);
        store<L>(part, f);
      }
      gemm_step<L, rows, VECTORS>(a, a_at, VECTORS == 1 && count < L::width ? part : b, sum);
    }
    float* const c = w.c + i * w.c_row + column;
    if (w.share != nullptr) {
      TINYSCALE_UNROLL
      for (int r = 0; r < rows; ++r) {
        broadcast<L>(w.share[i + at[r]], f);
        TINYSCALE_UNROLL
        for (int j = 0; j < VECTORS; ++j) {
          sum[r][j] = sum[r][j] * f;
        }
      }
    }
    if (w.beta != 0.0f) {
      TINYSCALE_UNROLL
      for (int r = 0; r < rows; ++r) {
        typename L::V old;
        broadcast<L>(w.keep == nullptr ? 1.0f : w.keep[i + at[r]], f);
        TINYSCALE_UNROLL
        for (int j = 0; j < VECTORS; ++j) {
          load_some<L>(c + c_at[r] + j * L::width, count, 0.0f, old);
          sum[r][j] = sum[r][j] + old * f;
        }
      }
    }
    TINYSCALE_UNROLL
    for (int r = 0; r < rows; ++r) {
      TINYSCALE_UNROLL
      for (int j = 0; j < VECTORS; ++j) {
        store_some<L>(c + c_at[r] + j * L::width, count, sum[r][j]);
      }
    }
  }
};

template <class L>
TINYSCALE_INLINE void AttentionProduct::run() const {
  std::int64_t j = 0;
  if constexpr (L::vectors == 4 && L::width > 1) {
    for (; j + 4 * L::width <= n; j += 4 * L::width) {
      call_on_lanes<L>(AttentionPanel<L, 4>{*this, j, L::width});
    }
  }
  for (; j + 2 * L::width <= n; j += 2 * L::width) {
    call_on_lanes<L>(AttentionPanel<L, 2>{*this, j, L::width});
  }
  for (; j < n; j += L::width) {  // the last perhaps in part
    call_on_lanes<L>(AttentionPanel<L, 1>{*this, j, std::min<std::int64_t>(L::width, n - j)});
  }
}

inline void attention_product(const AttentionProduct& w) {
  if (w.m > 0 && w.n > 0) {
    run_on_lanes(w);
  }
}

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/compute/attention.hpp
// Attention: O = softmax(Q K^T / sqrt(head_size)) V for each sequence and head, in blocks of
// queries and keys: no [queries, keys] matrix is kept, and causal blocks stop at the diagonal.
// Lanes are queries: scores are held as [keys, queries of a block], so the maximum and the sum of a
// softmax run down the keys, lane by lane, and K and V are read where they stand.
//   Each block of keys: S = K Q^T; m' = max(m, S); P = exp(S - m'); O^T = O^T exp(m - m') + V^T P.
// Forward saves lse = m + log sum P of each query.
// Grouped queries: heads / kv_heads query heads share one key and value head.
// Dao et al., FlashAttention, arXiv 2205.14135; Ainslie et al., GQA, arXiv 2305.13245.

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace kernels {

struct AttentionShape {
  std::int64_t batch = 1, queries = 1, keys = 1, heads = 1, kv_heads = 1, head_size = 1;
  std::int64_t q_stride = 0, k_stride = 0, v_stride = 0, o_stride = 0;  // floats, token to token
  std::int64_t q_batch = 0, k_batch = 0, v_batch = 0, o_batch = 0;      // sequence to sequence
  int causal = 0;                  // 1: query i sees keys <= i + causal_offset
  std::int64_t causal_offset = 0;  // keys - queries when queries are the last tokens
};

// The reference body: one query of one head. q, o: [head_size]; k, v: this head's rows.
inline float attention_reference(const AttentionShape& s, std::int64_t seen, const float* q,
                                 const float* k, const float* v, float* o) {
  std::vector<double> sums(static_cast<std::size_t>(s.head_size), 0.0);
  double total = 0;
  for (std::int64_t j = 0; j < seen; ++j) {
    double score = 0;
    for (std::int64_t d = 0; d < s.head_size; ++d) {
      score += static_cast<double>(q[d]) * static_cast<double>(k[j * s.k_stride + d]);
    }
    const double p = std::exp(score / std::sqrt(static_cast<double>(s.head_size)));
    total += p;
    for (std::int64_t d = 0; d < s.head_size; ++d) {
      sums[static_cast<std::size_t>(d)] += p * static_cast<double>(v[j * s.v_stride + d]);
    }
  }
  for (std::int64_t d = 0; d < s.head_size; ++d) {
    o[d] = seen == 0 ? 0.0f : static_cast<float>(sums[static_cast<std::size_t>(d)] / total);
  }
  return seen == 0 ? 0.0f : static_cast<float>(std::log(total));
}

}  // namespace kernels

namespace detail {

constexpr std::int64_t attention_queries = 64;  // whose scores are held at once
constexpr std::int64_t attention_group = 8;     // blocks of queries for which keys are read once
constexpr std::int64_t attention_keys = 64;     // likewise
constexpr std::int64_t attention_few = 8;       // queries: so few are handled row by row

// Keys that query i sees.
inline std::int64_t visible_keys(const kernels::AttentionShape& s, std::int64_t i) {
  if (s.causal == 0) {
    return s.keys;
  }
  return std::max<std::int64_t>(0, std::min(s.keys, i + s.causal_offset + 1));
}

inline float attention_scale(const kernels::AttentionShape& s) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(s.head_size)));
}

// C[m, n] = A B + beta C in panels of two vectors or one; n is a whole number of vectors.
struct Panels {
  std::int64_t m, n, k;
  const float* a;
  std::int64_t a_row, a_col;
  const float* b;
  std::int64_t b_row;
  float* c;
  std::int64_t c_row;
  float beta;

  template <class L>
  TINYSCALE_INLINE void run() const {
    std::int64_t j = 0;
    for (; j + 2 * L::width <= n; j += 2 * L::width) {
      const PanelWork w{m, k, a, a_row, a_col, b + j, b_row, c + j, c_row, beta, b + j, 0};
      call_on_lanes<L>(GemmPanel<L, 2>{w});
    }
    if (j < n) {
      const PanelWork w{m, k, a, a_row, a_col, b + j, b_row, c + j, c_row, beta, b + j, 0};
      call_on_lanes<L>(GemmPanel<L, 1>{w});
    }
  }
};

inline void panels(const Panels& p) {
  if (p.m > 0 && p.n > 0) {
    run_on_lanes(p);
  }
}

// One head's rows of q, k, v, o and their gradients (null in forward).
struct AttentionHead {
  const float* q;
  const float* k;
  const float* v;
  float* o;
  float* lse;
  const float* d_o;
  float* dq;
  float* dk;
  float* dv;
};

// Queries [begin, begin + rows) as lanes against keys [key, key + keys): lane i sees key x of them
// where x + lead <= i. Scores stand as [keys, attention_queries].
struct AttentionBlock {
  const kernels::AttentionShape& s;
  std::int64_t begin, key, rows, keys, lead;

  AttentionBlock(const kernels::AttentionShape& shape, std::int64_t query, std::int64_t first)
      : s(shape), begin(query), key(first) {
    rows = std::min(attention_queries, s.queries - begin);
    keys = std::min(attention_keys, visible_keys(s, begin + rows - 1) - key);
    lead = s.causal == 0 ? -attention_all : key - begin - s.causal_offset;
  }
  // Keys whose scores a vector of lanes must have: all that one of the tiles it has part in sums
  // over, be they tiles of lanes or of keys.
  template <class L>
  TINYSCALE_INLINE std::int64_t held(std::int64_t lane) const {
    constexpr std::int64_t tile = attention_tile<L, 2>;
    const std::int64_t end = std::min((lane + L::width + tile - 1) / tile * tile, rows) - lead;
    return lane >= rows ? 0 : std::clamp<std::int64_t>((end + tile - 1) / tile * tile, 0, keys);
  }
};

// Rows of x to [size, attention_queries], where lanes that stand for no row get zeros, and to rows
// that stand one behind the other, as small caches like them; either may be null.
struct AttentionTurn {
  std::int64_t rows, size;
  const float* x;
  std::int64_t stride;
  float* turned;
  float* same;

  template <class L>
  TINYSCALE_INLINE void run() const {
    constexpr std::int64_t wide = attention_queries;
    std::int64_t i = 0;
    if (rows < wide && turned != nullptr) {
      std::fill(turned, turned + size * wide, 0.0f);
    }
    if constexpr (L::width == 16) {
      for (; i + 16 <= rows && size % 16 == 0; i += 16) {
        for (std::int64_t j = 0; j < size; j += 16) {
          square<L>(i, j);
        }
      }
    }
    if (turned != nullptr) {
      transpose(rows - i, size, x + i * stride, stride, turned + i, wide);
    }
    for (; i < rows && same != nullptr; ++i) {
      std::copy(x + i * stride, x + i * stride + size, same + i * size);
    }
  }

  template <class L>
  TINYSCALE_INLINE void square(std::int64_t i, std::int64_t j) const {
    typename L::V r[16];
    TINYSCALE_UNROLL
    for (int y = 0; y < 16; ++y) {
      load<L>(x + (i + y) * stride + j, r[y]);
      if (same != nullptr) {
        store<L>(same + (i + y) * size + j, r[y]);
      }
    }
    if (turned == nullptr) {
      return;
    }
    turn_square(r);
    TINYSCALE_UNROLL
    for (int y = 0; y < 16; ++y) {
      store<L>(turned + (j + y) * attention_queries + i, r[y]);
    }
  }
};

// scores[keys, lanes] = A[keys, sizes] X[sizes, lanes]
struct AttentionScores {
  const AttentionBlock& t;
  const float* a;
  std::int64_t a_row;
  const float* x;
  float* c;

  template <class L>
  TINYSCALE_INLINE void run() const {
    constexpr std::int64_t row = attention_queries;
    const float* const from = a + t.key * a_row;
    for (std::int64_t at = 0; at < t.rows; at += 2 * L::width) {
      const std::int64_t one = t.held<L>(at), two = t.held<L>(at + L::width);
      const std::int64_t both = std::min(one, two), size = t.s.head_size;
      const AttentionProduct w{both, row, size, from, a_row, 1, x, row, c, row};
      call_on_lanes<L>(AttentionPanel<L, 2>{w, at, L::width});
      const AttentionProduct v{std::max(one, two) - both,
                               row,
                               size,
                               from + both * a_row,
                               a_row,
                               1,
                               x,
                               row,
                               c + both * row,
                               row};
      call_on_lanes<L>(AttentionPanel<L, 1>{v, two > one ? at + L::width : at, L::width});
    }
  }
};

// Scores of a vector of lanes that causality hides become -inf.
template <class L>
TINYSCALE_INLINE void hide_scores(std::int64_t keys, std::int64_t clear, float* p) {
  typename L::V v, hidden;
  typename L::I lane, mask, bound;
  lane_numbers<L>(lane);
  broadcast<L>(-std::numeric_limits<float>::infinity(), hidden);
  for (std::int64_t x = std::max<std::int64_t>(0, clear); x < keys; ++x) {
    broadcast_word(static_cast<std::int32_t>(std::min<std::int64_t>(x - clear, L::width)), bound);
    mask = lane <= bound;
    load<L>(p + x * attention_queries, v);
    blend<L>(mask, hidden, v, v);
    store<L>(p + x * attention_queries, v);
  }
}

// Raw scores to probabilities before they are divided by their sum; of each lane the largest score
// and the sum so far, and what O keeps and what it gets of the new block.
struct AttentionFold {
  const AttentionBlock& t;
  float scale;
  float* p;
  float* lanes;  // rows of attention_queries: top, sum, lse, keep, share

  template <class L>
  TINYSCALE_INLINE void run() const {
    constexpr std::int64_t row = attention_queries;
    typename L::V before, top, shift, f, more, total;
    typename L::I lane, zero;
    lane_numbers<L>(zero);
    for (std::int64_t i = 0; i < t.rows; i += L::width) {
      float* const at = lanes + i;
      hide_scores<L>(t.held<L>(i), i + 1 - t.lead, p + i);
      load<L>(at, before);
      top = before;
      exp_columns<L>(t.held<L>(i), row, scale, p + i, top, shift, more);
      store<L>(at, top);
      broadcast<L>(scale * log2_e, f);
      exp2_negative<L>((before - shift) * f, before);
      load<L>(at + row, total);
      before = before * total;
      total = more + before;
      store<L>(at + row, total);
      log_vector<L>(total, more);
      broadcast<L>(scale, f);
      const std::int64_t blind = t.s.keys == 0 ? L::width : t.lead - t.key - i;  // see no key
      lane = zero - static_cast<std::int32_t>(std::clamp<std::int64_t>(blind, 0, L::width));
      store<L>(at + 2 * row, lane >= 0 ? top * f + more : typename L::V{});
      f = lane >= 0 ? 1.0f / total : typename L::V{};
      store<L>(at + 3 * row, before * f);
      store<L>(at + 4 * row, f);
    }
  }
};

// Queries [first, last) of one head: every block of them against a block of keys, then the next.
inline void attention_forward_task(const kernels::AttentionShape& s, const AttentionHead& t,
                                   std::int64_t first, std::int64_t last) {
  constexpr std::int64_t wide = attention_queries;
  const std::int64_t size = s.head_size, own = wide * (size + 5);  // floats that a block keeps
  const std::int64_t blocks = (last - first + wide - 1) / wide;
  const Scratch lease(blocks * own + attention_keys * (wide + size));
  float* const p = lease.data() + blocks * own;  // [keys, lanes]
  float* const v = p + wide * attention_keys;
  for (std::int64_t j = 0; j == 0 || j < visible_keys(s, last - 1); j += attention_keys) {
    const std::int64_t keys = std::min(attention_keys, s.keys - j);
    run_on_lanes(AttentionTurn{keys, size, t.v + j * s.v_stride, s.v_stride, nullptr, v});
    float* qt = lease.data();  // Q^T: [head_size, lanes], then the rows of a fold
    for (std::int64_t begin = first; begin < last; begin += wide, qt += own) {
      AttentionBlock block(s, begin, j);
      float* const lanes = qt + wide * size;
      if (j == 0) {
        const float* const q = t.q + begin * s.q_stride;
        run_on_lanes(AttentionTurn{block.rows, size, q, s.q_stride, qt, nullptr});
        std::fill(lanes, lanes + wide, -std::numeric_limits<float>::infinity());
        std::fill(lanes + wide, lanes + 2 * wide, 0.0f);
      } else if (block.keys <= 0) {
        continue;
      }
      run_on_lanes(AttentionScores{block, t.k, s.k_stride, qt, p});
      run_on_lanes(AttentionFold{block, attention_scale(s), p, lanes});
      attention_product({block.rows, size, block.keys, p, 1, wide, v, size,
                         t.o + begin * s.o_stride, s.o_stride, j == 0 ? 0.0f : 1.0f, -attention_all,
                         -block.lead, lanes + 4 * wide, lanes + 3 * wide});
      std::copy(lanes + 2 * wide, lanes + 2 * wide + block.rows, t.lse + begin);
    }
  }
}

// Scores of few queries (decode) as rows, each to probabilities.
struct AttentionRows {
  const kernels::AttentionShape& s;
  const AttentionHead& t;  // the first of a group
  std::int64_t rows;
  float* p;  // [rows, keys]

  template <class L>
  TINYSCALE_INLINE void run() const {
    for (std::int64_t j = 0; j < s.keys; j += attention_keys) {
      for (std::int64_t r = 0; r < rows; ++r) {
        const float* q = t.q + r / s.queries * s.head_size + r % s.queries * s.q_stride;
        const std::int64_t end = std::min(j + attention_keys, visible_keys(s, r % s.queries));
        for (std::int64_t x = j; x < end; ++x) {
          p[r * s.keys + x] = dot_row<L>(s.head_size, q, t.k + x * s.k_stride);
        }
      }
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t seen = visible_keys(s, r % s.queries);
      float* const row = p + r * s.keys;
      std::fill(row + seen, row + s.keys, 0.0f);
      float max = 0.0f, sum = 0.0f;
      scale_row<L>(seen, attention_scale(s), row);
      exp_row<L>(seen, row, row, max, sum);
      scale_row<L>(seen, 1.0f / sum, row);
      t.lse[r] = seen == 0 ? 0.0f : max + std::log(sum);
    }
  }
};

// All query heads of one key and value head, so that K and V come from memory once.
inline void attention_few_task(const kernels::AttentionShape& s, const AttentionHead& t,
                               std::int64_t group) {
  const std::int64_t width = tile_size().width, full = s.head_size / width * width;
  const Scratch lease(group * s.queries * s.keys);
  float* const p = lease.data();
  run_on_lanes(AttentionRows{s, t, group * s.queries, p});
  for (std::int64_t j = 0; j == 0 || j < s.keys; j += attention_keys) {
    const std::int64_t keys = std::min(attention_keys, s.keys - j);
    const float beta = j == 0 ? 0.0f : 1.0f;
    for (std::int64_t h = 0; h < group; ++h) {
      const float* ph = p + h * s.queries * s.keys + j;
      const float* v = t.v + j * s.v_stride;
      float* const o = t.o + h * s.head_size;
      panels({s.queries, full, keys, ph, s.keys, 1, v, s.v_stride, o, s.o_stride, beta});
      for (std::int64_t i = 0; i < s.queries; ++i) {
        for (std::int64_t d = full; d < s.head_size; ++d) {  // less than a vector
          float sum = j == 0 ? 0.0f : o[i * s.o_stride + d];
          for (std::int64_t x = 0; x < keys; ++x) {
            sum += ph[i * s.keys + x] * v[x * s.v_stride + d];
          }
          o[i * s.o_stride + d] = sum;
        }
      }
    }
  }
}

// Sequence b, query head h.
inline AttentionHead head_of(const kernels::AttentionShape& s, AttentionHead t, std::int64_t b,
                             std::int64_t h) {
  const std::int64_t kv = h / (s.heads / s.kv_heads) * s.head_size;
  t.q += b * s.q_batch + h * s.head_size;
  t.k += b * s.k_batch + kv;
  t.v += b * s.v_batch + kv;
  t.o += b * s.o_batch + h * s.head_size;
  t.lse += (b * s.heads + h) * s.queries;
  return t;
}

}  // namespace detail

namespace kernels {

// q, o: [batch, queries, heads * head_size]; k, v: [batch, keys, kv_heads * head_size], with
// strides; lse: [batch, heads, queries]. A query that sees no key gets zeros.
inline void attention_forward(const AttentionShape& s, const float* q, const float* k,
                              const float* v, float* o, float* lse) {
  const detail::AttentionHead all{q, k, v, o, lse, nullptr, nullptr, nullptr, nullptr};
  const bool few = s.queries <= detail::attention_few;
  const std::int64_t group = few ? s.heads / s.kv_heads : 1;  // heads of a task
  const std::int64_t whole =
      (s.queries + detail::attention_queries - 1) / detail::attention_queries;
  const std::int64_t step =
      detail::attention_queries * (s.batch * s.heads * whole < 64 ? 1 : detail::attention_group);
  const std::int64_t blocks = few ? 1 : (s.queries + step - 1) / step;
  const std::int64_t tasks = s.heads / group * blocks;  // of a sequence
  parallel_for(s.batch * tasks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t head = task % tasks / blocks * group, first = task % blocks * step;
      const detail::AttentionHead t = detail::head_of(s, all, task / tasks, head);
      if (few) {
        detail::attention_few_task(s, t, group);
      } else {
        detail::attention_forward_task(s, t, first, std::min(s.queries, first + step));
      }
    }
  });
}

}  // namespace kernels
}}  // namespace tinyscale

// >> tinyscale/compute/attention_backward.hpp
// Backward of attention, in the blocks of forward (lanes are queries); P = exp(S - lse) again:
//   dV = P^T dO,  dS = P (dO V^T - sum(dO O)),  dQ = dS K scale,  dK = dS^T Q scale.

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace kernels {

// The reference body: what one query of one head adds to its dq and to this head's dk and dv.
inline void attention_backward_reference(const AttentionShape& s, std::int64_t seen, const float* q,
                                         const float* k, const float* v, const float* o, float lse,
                                         const float* d_o, double* dq, double* dk, double* dv) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(s.head_size));
  for (std::int64_t j = 0; j < seen; ++j) {
    const std::int64_t at_k = j * s.k_stride, at_v = j * s.v_stride;
    double score = 0, dp = 0;
    for (std::int64_t d = 0; d < s.head_size; ++d) {
      score += double{q[d]} * double{k[at_k + d]} * scale;
      dp += double{d_o[d]} * (double{v[at_v + d]} - double{o[d]});  // less sum(dO O)
    }
    const double p = std::exp(score - double{lse}), ds = p * dp * scale;
    for (std::int64_t d = 0; d < s.head_size; ++d) {
      dq[d] += ds * double{k[at_k + d]};
      dk[at_k + d] += ds * double{q[d]};
      dv[at_v + d] += p * double{d_o[d]};
    }
  }
}

}  // namespace kernels

namespace detail {

// sum(dO O) of each row.
struct AttentionMeans {
  std::int64_t rows, head_size, stride;
  const float* o;
  const float* d_o;
  float* mean;

  template <class L>
  TINYSCALE_INLINE void run() const {
    for (std::int64_t i = 0; i < rows; ++i) {
      mean[i] = dot_row<L>(head_size, o + i * stride, d_o + i * stride);
    }
  }
};

// Raw scores p to probabilities, dP in g to dS scale.
struct AttentionSlopes {
  const AttentionBlock& t;
  float scale;
  const float* lse;
  const float* mean;
  float* p;
  float* g;

  template <class L>
  TINYSCALE_INLINE void run() const {
    typename L::V vp, vg, f, vl, vm;
    broadcast<L>(scale, f);
    for (std::int64_t lane = 0; lane < t.rows; lane += L::width) {
      const std::int64_t keys = t.held<L>(lane);
      hide_scores<L>(keys, lane + 1 - t.lead, p + lane);
      load<L>(lse + lane, vl);
      load<L>(mean + lane, vm);
      vm = vm * f;
      for (std::int64_t at = lane; at < keys * attention_queries; at += attention_queries) {
        load<L>(p + at, vp);
        load<L>(g + at, vg);
        exp2_negative<L>((vp * f - vl) * log2_e, vp);
        store<L>(p + at, vp);
        store<L>(g + at, vp * (vg * f - vm));
      }
    }
  }
};

// Floats of scratch: of a block of queries Q and dO, turned and as rows, and two rows of lanes.
inline std::int64_t attention_kept(std::int64_t size) { return attention_queries * (4 * size + 2); }

// Queries [first, last) of one head; its part of dk and dv is added to them.
inline void attention_backward_group(const kernels::AttentionShape& s, const AttentionHead& t,
                                     std::int64_t first, std::int64_t last, float beta, float* p) {
  constexpr std::int64_t wide = attention_queries;
  const std::int64_t size = s.head_size, turned = wide * size;
  const float scale = attention_scale(s);
  float* const g = p + wide * attention_keys;  // dS; p: [keys, lanes]
  float* const k = g + wide * attention_keys;
  for (std::int64_t j = 0; j == 0 || j < visible_keys(s, last - 1); j += attention_keys) {
    const std::int64_t at_k = j * s.k_stride, at_v = j * s.v_stride;
    const std::int64_t keys = std::min(attention_keys, s.keys - j);
    run_on_lanes(AttentionTurn{keys, size, t.k + at_k, s.k_stride, nullptr, k});
    float* qt = k + attention_keys * size;
    for (std::int64_t begin = first; begin < last; begin += wide, qt += attention_kept(size)) {
      AttentionBlock block(s, begin, j);
      const std::int64_t at_q = begin * s.q_stride, at_o = begin * s.o_stride, rows = block.rows;
      float *gt = qt + turned, *q = gt + turned, *d_o = q + turned, *mean = d_o + turned;
      if (j == 0) {
        std::fill(mean, mean + 2 * wide, 0.0f);
        std::copy(t.lse + begin, t.lse + begin + rows, mean + wide);
        run_on_lanes(AttentionMeans{rows, size, s.o_stride, t.o + at_o, t.d_o + at_o, mean});
        run_on_lanes(AttentionTurn{rows, size, t.q + at_q, s.q_stride, qt, q});
        run_on_lanes(AttentionTurn{rows, size, t.d_o + at_o, s.o_stride, gt, d_o});
      } else if (block.keys <= 0) {
        continue;
      }
      run_on_lanes(AttentionScores{block, t.k, s.k_stride, qt, p});
      run_on_lanes(AttentionScores{block, t.v, s.v_stride, gt, g});
      run_on_lanes(AttentionSlopes{block, scale, mean + wide, mean, p, g});
      attention_product({rows, size, block.keys, g, 1, wide, k, size, t.dq + at_q, s.q_stride,
                         j == 0 ? beta : 1.0f, -attention_all, -block.lead});
      attention_product({block.keys, size, rows, p, wide, 1, d_o, size, t.dv + at_v, s.v_stride,
                         1.0f, block.lead});
      attention_product(
          {block.keys, size, rows, g, wide, 1, q, size, t.dk + at_k, s.k_stride, 1.0f, block.lead});
    }
  }
}

inline void attention_backward_task(const kernels::AttentionShape& s, const AttentionHead& all,
                                    std::int64_t b, std::int64_t kv, float beta) {
  const std::int64_t group = s.heads / s.kv_heads;
  const std::int64_t step = attention_queries * attention_group;
  const Scratch lease(attention_keys * (2 * attention_queries + s.head_size) +
                      attention_group * attention_kept(s.head_size));
  float* const dk = all.dk + b * s.k_batch + kv * s.head_size;
  float* const dv = all.dv + b * s.v_batch + kv * s.head_size;
  for (std::int64_t j = 0; j < s.keys && beta == 0.0f; ++j) {
    std::fill(dk + j * s.k_stride, dk + j * s.k_stride + s.head_size, 0.0f);
    std::fill(dv + j * s.v_stride, dv + j * s.v_stride + s.head_size, 0.0f);
  }
  for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) {
    AttentionHead t = head_of(s, all, b, h);
    t.d_o += b * s.o_batch + h * s.head_size;
    t.dq += b * s.q_batch + h * s.head_size;
    t.dk = dk;
    t.dv = dv;
    for (std::int64_t first = 0; first < s.queries; first += step) {
      attention_backward_group(s, t, first, std::min(s.queries, first + step), beta, lease.data());
    }
  }
}

}  // namespace detail

namespace kernels {

// dq, dk, dv = beta times themselves (0: not read, or 1) + ..., laid out as q, k, v; d_o as o.
// A task owns one key and value head.
inline void attention_backward(const AttentionShape& s, const float* q, const float* k,
                               const float* v, const float* o, const float* lse, const float* d_o,
                               float* dq, float* dk, float* dv, float beta = 1.0f) {
  const detail::AttentionHead all{q,  k,  v, const_cast<float*>(o), const_cast<float*>(lse), d_o,
                                  dq, dk, dv};
  parallel_for(s.batch * s.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      detail::attention_backward_task(s, all, task / s.kv_heads, task % s.kv_heads, beta);
    }
  });
}

}  // namespace kernels
}}  // namespace tinyscale

// >> tinyscale/compute/linear_cross_entropy.hpp
// Cross-entropy fused with the matrix product before it: logits = x w^T exist for a block of rows
// of x at a time, never for the whole batch. They stand as [vocabulary, rows], so that lanes are
// rows: the softmax runs down the vocabulary, and w is never transposed. Each chunk c of the
// vocabulary keeps its own maximum, so that an exponential is taken once:
//   e = exp(logit - max_c),  lse = log sum over c of exp(max_c) sum_c e,
//   d logit = scale (e exp(max_c - lse) - onehot(target)),  dx = d logit w,  dw = d logit^T x.

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace kernels {

// The reference body of the losses. Of the gradients: cross_entropy_backward_reference, and
// gemm_reference of what it gives.
inline void linear_cross_entropy_reference(std::int64_t rows, std::int64_t width,
                                           std::int64_t vocab, const float* x, const float* w,
                                           const std::int32_t* targets, float* losses, float* lse) {
  std::vector<float> logits(static_cast<std::size_t>(rows * vocab));
  gemm_reference(Trans::no, Trans::yes, rows, vocab, width, x, width, w, width, 0.0f, logits.data(),
                 vocab);
  cross_entropy_reference(rows, vocab, logits.data(), targets, losses, lse);
}

struct LinearCrossEntropy {
  std::int64_t rows, width, vocab;
  const float* x;               // [rows, width]
  const float* w;               // [vocab, width]
  const std::int32_t* targets;  // below 0: the row is left out
  float scale;                  // of the gradients: 1 / rows for a mean
  float* dx;                    // null: not wanted
  float* dw;
  float beta_x, beta_w;  // of dx and dw: 0 (not read) or 1
};

}  // namespace kernels

namespace detail {

constexpr std::int64_t vocab_chunk = 512;
constexpr std::int64_t logits_floats = 1 << 23;  // held at once: 32 MB

// One chunk of logits, 16 lanes a task: to exponentials, with their maxima and sums; and from
// there (or, where lse is given, from raw logits) to gradients.
struct LogitLanes {
  std::int64_t first, last;  // tasks
  std::int64_t count, stride;
  float* logits;
  float* top;  // of each lane
  float* sum;
  const float* lse;     // null: logits are exponentials already
  const float* factor;  // null: this is the way forward

  template <class L>
  TINYSCALE_INLINE void run() const {
    typename L::V v, f, t, shift, total;
    for (std::int64_t i = first * 16; i < last * 16; i += L::width) {
      if (factor == nullptr) {
        broadcast<L>(-std::numeric_limits<float>::infinity(), t);
        exp_columns<L>(count, stride, 1.0f, logits + i, t, shift, total);
        store<L>(top + i, t);
        store<L>(sum + i, total);
        continue;
      }
      load<L>(factor + i, f);
      for (std::int64_t j = 0; j < count; ++j) {
        float* const at = logits + j * stride + i;
        load<L>(at, v);
        if (lse != nullptr) {
          load<L>(lse + i, t);
          exp_negative<L>(v - t, v);
        }
        store<L>(at, v * f);
      }
    }
  }
};

// Rows [begin, begin + rows) of one call.
struct LogitsBlock {
  const kernels::LinearCrossEntropy& c;
  std::int64_t begin, rows, lanes;  // lanes: from row to row of what follows
  float* xt;                        // [width, lanes]
  float* logits;                    // [vocab, lanes]
  float* tops;                      // [chunks, lanes]; sums follow
  float* sums;
  float* factor;  // [lanes]; lse follows
  float* lse;

  std::int64_t whole() const { return (rows + 15) / 16 * 16; }  // vectors of every path
  void over_lanes(LogitLanes part) const {
    const auto body = [&part](std::int64_t first, std::int64_t last) {
      LogitLanes mine = part;
      mine.first = first;
      mine.last = last;
      run_on_lanes(mine);
    };
    if (part.count * lanes < (1 << 14)) {
      body(0, whole() / 16);
    } else {
      parallel_for(whole() / 16, 1, body);
    }
  }
  void product(std::int64_t j, std::int64_t count) const {
    kernels::gemm(kernels::Trans::no, kernels::Trans::no, count, whole(), c.width,
                  c.w + j * c.width, c.width, xt, lanes, 0.0f, logits + j * lanes, lanes);
  }
  void forward(float* losses) const {
    for (std::int64_t i = 0; i < rows; ++i) {
      lse[i] = 0.0f;  // until the end: the logit of the target
    }
    for (std::int64_t j = 0; j < c.vocab; j += vocab_chunk) {
      const std::int64_t count = std::min(vocab_chunk, c.vocab - j);
      product(j, count);
      for (std::int64_t i = 0; i < rows; ++i) {
        const std::int64_t target = c.targets[begin + i] - j;
        lse[i] = target >= 0 && target < count ? logits[(j + target) * lanes + i] : lse[i];
      }
      const std::int64_t at = j / vocab_chunk * lanes;
      over_lanes({0, 0, count, lanes, logits + j * lanes, tops + at, sums + at, nullptr, nullptr});
    }
    const std::int64_t end = (c.vocab + vocab_chunk - 1) / vocab_chunk * lanes;
    for (std::int64_t i = 0; i < rows; ++i) {
      float top = tops[i];
      for (std::int64_t at = i; at < end; at += lanes) {
        top = std::max(top, tops[at]);
      }
      double sum = 0;
      for (std::int64_t at = i; at < end; at += lanes) {
        sum += static_cast<double>(sums[at]) * std::exp(static_cast<double>(tops[at] - top));
      }
      const float wanted = lse[i];
      lse[i] = top + static_cast<float>(std::log(sum));
      losses[i] = c.targets[begin + i] < 0 ? 0.0f : lse[i] - wanted;
    }
  }
  // From exponentials where forward was here before, else (again) from raw logits.
  void backward(const float* raw_lse) const {
    const float* x = c.x + begin * c.width;
    float* const dx = c.dx == nullptr ? nullptr : c.dx + begin * c.width;
    for (std::int64_t j = 0; j < c.vocab; j += vocab_chunk) {
      const std::int64_t count = std::min(vocab_chunk, c.vocab - j);
      float* const part = logits + j * lanes;
      if (raw_lse != nullptr) {
        product(j, count);
      }
      for (std::int64_t i = 0; i < rows; ++i) {
        const float top = raw_lse != nullptr ? 0.0f : tops[j / vocab_chunk * lanes + i] - lse[i];
        factor[i] = c.targets[begin + i] < 0 ? 0.0f : c.scale * std::exp(top);
      }
      over_lanes({0, 0, count, lanes, part, nullptr, nullptr, raw_lse, factor});
      for (std::int64_t i = 0; i < rows; ++i) {
        const std::int64_t target = c.targets[begin + i] - j;
        if (c.targets[begin + i] >= 0 && target >= 0 && target < count) {
          part[target * lanes + i] -= c.scale;
        }
      }
      if (dx != nullptr) {
        kernels::gemm(kernels::Trans::yes, kernels::Trans::no, rows, c.width, count, part, lanes,
                      c.w + j * c.width, c.width, j == 0 ? c.beta_x : 1.0f, dx, c.width);
      }
      if (c.dw != nullptr) {
        kernels::gemm(kernels::Trans::no, kernels::Trans::no, count, c.width, rows, part, lanes, x,
                      c.width, begin == 0 ? c.beta_w : 1.0f, c.dw + j * c.width, c.width);
      }
    }
  }
};

// Blocks of rows, as equal as they can be; backward alone is given lse and recomputes logits.
enum class LossPass { forward, backward, both };

inline void linear_cross_entropy_blocks(const kernels::LinearCrossEntropy& c, LossPass pass,
                                        float* losses, float* lse) {
  const std::int64_t most = std::clamp<std::int64_t>(logits_floats / c.vocab, 64, 512);
  const std::int64_t blocks = (c.rows + most - 1) / most;
  const std::int64_t step = blocks == 0 ? 0 : (c.rows + blocks - 1) / blocks;
  const std::int64_t lanes = ((step + 15) / 16 | 1) * 16;  // odd: spread over the sets of a cache
  const std::int64_t chunks = (c.vocab + vocab_chunk - 1) / vocab_chunk;
  const Scratch lease(lanes * (c.width + c.vocab + 2 * chunks + 2));
  float* const logits = lease.data() + lanes * c.width;
  float* const tops = logits + lanes * c.vocab;
  float* const factor = tops + 2 * lanes * chunks;
  for (std::int64_t begin = 0; begin < c.rows; begin += step) {
    const std::int64_t rows = std::min(step, c.rows - begin);
    const LogitsBlock block{
        c,      begin,         rows, lanes, lease.data(), logits, tops, tops + lanes * chunks,
        factor, factor + lanes};
    std::fill(block.xt, block.xt + (rows % 16 == 0 ? 0 : c.width * lanes), 0.0f);
    std::fill(factor, factor + 2 * lanes, 0.0f);
    transpose(rows, c.width, c.x + begin * c.width, c.width, block.xt, lanes);
    if (pass == LossPass::backward) {
      std::copy(lse + begin, lse + begin + rows, block.lse);
      block.backward(block.lse);
      continue;
    }
    block.forward(losses + begin);
    std::copy(block.lse, block.lse + rows, lse + begin);
    if (pass == LossPass::both) {
      block.backward(nullptr);
    }
  }
}

}  // namespace detail

namespace kernels {

// losses[rows], lse[rows] of logits x w^T; a negative target gives loss 0.
inline void linear_cross_entropy_forward(std::int64_t rows, std::int64_t width, std::int64_t vocab,
                                         const float* x, const float* w,
                                         const std::int32_t* targets, float* losses, float* lse) {
  const LinearCrossEntropy c{rows, width, vocab, x, w, targets, 1.0f, nullptr, nullptr, 0.0f, 0.0f};
  detail::linear_cross_entropy_blocks(c, detail::LossPass::forward, losses, lse);
}

// dx, dw = beta times themselves + scale d losses, from lse: the logits are computed again.
inline void linear_cross_entropy_backward(std::int64_t rows, std::int64_t width, std::int64_t vocab,
                                          const float* x, const float* w,
                                          const std::int32_t* targets, const float* lse,
                                          float scale, float* dx, float* dw, float beta = 1.0f) {
  const LinearCrossEntropy c{rows, width, vocab, x, w, targets, scale, dx, dw, beta, beta};
  detail::linear_cross_entropy_blocks(c, detail::LossPass::backward, nullptr,
                                      const_cast<float*>(lse));
}

// Both at once, where the scale is known in advance: logits are computed once.
inline void linear_cross_entropy(const LinearCrossEntropy& c, float* losses, float* lse) {
  detail::linear_cross_entropy_blocks(c, detail::LossPass::both, losses, lse);
}

}  // namespace kernels
}}  // namespace tinyscale

// >> tinyscale/compute/norm.hpp
// Layer norm and RMS norm by rows:
//   layer: n = (x - mean) rstd, rstd = 1 / sqrt(var + eps);
//   RMS:   n = x rstd,          rstd = 1 / sqrt(mean(x^2) + eps);
//   y = n w + b;  with g = dy w: dx = rstd (g - mean(g) - n mean(g n)) (RMS: without mean(g)).
// dw and db are sums over rows, taken in chunks that depend on the sizes and not on the threads.
// Ba et al., arXiv 1607.06450; Zhang and Sennrich, arXiv 1910.07467.

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace kernels {

// The reference body: one row. mean is null for RMS norm, bias may be null.
inline void norm_reference(std::int64_t cols, float eps, const float* x, const float* weight,
                           const float* bias, float* y, float* mean, float* rstd) {
  const double count = static_cast<double>(cols);
  const double center = mean == nullptr ? 0.0 : sum_reference(cols, x) / count;
  double square = 0;
  for (std::int64_t j = 0; j < cols; ++j) {
    square += (double{x[j]} - center) * (double{x[j]} - center);
  }
  const double r = 1.0 / std::sqrt(square / count + double{eps});
  for (std::int64_t j = 0; j < cols; ++j) {
    const double n = (double{x[j]} - center) * r, b = bias == nullptr ? 0.0 : double{bias[j]};
    y[j] = static_cast<float>(n * double{weight[j]} + b);
  }
  *rstd = static_cast<float>(r);
  (mean == nullptr ? *rstd : *mean) = static_cast<float>(mean == nullptr ? r : center);
}

// Its gradients. Every row adds to dweight and dbias (or null).
inline void norm_backward_reference(std::int64_t cols, const float* x, const float* weight,
                                    const float* mean, const float* rstd, const float* dy,
                                    float* dx, double* dweight, double* dbias, float beta = 1.0f) {
  const double center = mean == nullptr ? 0.0 : double{*mean}, r = double{*rstd};
  double mean_g = 0, mean_gn = 0;
  for (std::int64_t j = 0; j < cols; ++j) {
    const double g = double{dy[j]} * double{weight[j]} / static_cast<double>(cols);
    mean_g += mean == nullptr ? 0.0 : g;
    mean_gn += g * (double{x[j]} - center) * r;
  }
  for (std::int64_t j = 0; j < cols; ++j) {
    const double n = (double{x[j]} - center) * r, g = double{dy[j]} * double{weight[j]};
    const float old = beta == 0.0f ? 0.0f : dx[j];
    dx[j] = old + static_cast<float>(r * (g - mean_g - n * mean_gn));
    dweight[j] += double{dy[j]} * n;
    if (dbias != nullptr) {
      dbias[j] += double{dy[j]};
    }
  }
}

}  // namespace kernels

namespace detail {

struct NormRow {  // y of one row
  const float* x;
  const float* weight;
  const float* bias;
  float* y;
  float center, rstd;

  template <class L>
  TINYSCALE_INLINE void at(std::int64_t j, std::int64_t left) const {
    typename L::V v, w, b{}, c, r;
    broadcast<L>(center, c);
    broadcast<L>(rstd, r);
    load_some<L>(x + j, left, 0.0f, v);
    load_some<L>(weight + j, left, 0.0f, w);
    if (bias != nullptr) {
      load_some<L>(bias + j, left, 0.0f, b);
    }
    store_some<L>(y + j, left, (v - c) * r * w + b);
  }
};

struct NormRows {
  std::int64_t begin, end, cols;
  float eps;
  const float* x;
  const float* weight;
  const float* bias;  // null: none
  float* y;
  float* mean;  // null: RMS norm
  float* rstd;

  template <class L>
  TINYSCALE_INLINE void run() const {
    for (std::int64_t i = begin; i < end; ++i) {
      norm<L>(i, x + i * cols, y + i * cols);
    }
  }

  template <class L>
  TINYSCALE_INLINE void norm(std::int64_t i, const float* xi, float* yi) const {
    const float count = static_cast<float>(cols);
    const float center = mean == nullptr ? 0.0f : row_sum<L>(cols, ValueTerm{xi}) / count;
    const float square = row_sum<L>(cols, SquareTerm{xi, center});
    const float r = 1.0f / std::sqrt(square / count + eps);
    if (mean != nullptr) {
      mean[i] = center;
    }
    rstd[i] = r;
    for_row<L>(cols, NormRow{xi, weight, bias, yi, center, r});
  }
};

struct NormBackward {
  std::int64_t cols;
  const float* x;
  const float* weight;
  const float* mean;  // null: RMS norm
  const float* rstd;
  const float* dy;
  float beta;
  float* dx;       // beta dx + ...
  float* dweight;  // += the sum over these rows
  float* dbias;    // null: none
};

struct NormSlope {  // of one row
  const NormBackward& n;
  std::int64_t i;
  float center, rstd, mean_g, mean_gn;

  template <class L>
  TINYSCALE_INLINE void at(std::int64_t j, std::int64_t left) const {
    typename L::V v, w, d, c, r, mg, mgn;
    broadcast<L>(center, c);
    broadcast<L>(rstd, r);
    broadcast<L>(mean_g, mg);
    broadcast<L>(mean_gn, mgn);
    load_some<L>(n.x + i * n.cols + j, left, 0.0f, v);
    load_some<L>(n.weight + j, left, 0.0f, w);
    load_some<L>(n.dy + i * n.cols + j, left, 0.0f, d);
    v = (v - c) * r;
    add_some<L>(n.beta, r * (d * w - mg - v * mgn), left, n.dx + i * n.cols + j);
    add_some<L>(1.0f, d * v, left, n.dweight + j);
    if (n.dbias != nullptr) {
      add_some<L>(1.0f, d, left, n.dbias + j);
    }
  }
};

// all_g = the sum of a b, all_gn = the sum of a b (x - center).
template <class L>
TINYSCALE_INLINE void slope_sums(std::int64_t n, const float* x, const float* a, const float* b,
                                 float center, float& all_g, float& all_gn) {
  typename L::V g[2] = {}, gn[2] = {}, c, v, w;
  broadcast<L>(center, c);
  std::int64_t j = 0;
  for (; j + 2 * L::width <= n; j += 2 * L::width) {
    TINYSCALE_UNROLL
    for (int part = 0; part < 2; ++part) {
      load<L>(a + j + part * L::width, v);
      load<L>(b + j + part * L::width, w);
      v = v * w;
      g[part] = g[part] + v;
      load<L>(x + j + part * L::width, w);
      gn[part] = gn[part] + v * (w - c);
    }
  }
  for (; j < n; j += L::width) {
    load_some<L>(a + j, n - j, 0.0f, v);
    load_some<L>(b + j, n - j, 0.0f, w);
    v = v * w;
    g[0] = g[0] + v;
    load_some<L>(x + j, n - j, center, w);
    gn[0] = gn[0] + v * (w - c);
  }
  all_g = sum_lanes<L>(g[0] + g[1]);
  all_gn = sum_lanes<L>(gn[0] + gn[1]);
}

// A few rows at a time where all is in the cache: what their columns add to dweight and dbias is
// gathered in registers. In memory one by one, in the order in which they stand there.
struct NormBackwardRows {
  const NormBackward& n;
  std::int64_t begin, end, step;

  static constexpr std::int64_t most = 8;  // of step
  struct Row {
    float center, rstd, mean_g, mean_gn;
  };

  template <class L>
  TINYSCALE_INLINE void run() const {
    const float count = static_cast<float>(n.cols);
    Row rows[most];
    for (std::int64_t i = begin; i < end; i += step) {
      const std::int64_t size = std::min(step, end - i);
      float g = 0.0f, gn = 0.0f;
      for (std::int64_t r = 0; r < size; ++r) {
        const std::int64_t at = (i + r) * n.cols;
        const float center = n.mean == nullptr ? 0.0f : n.mean[i + r], rstd = n.rstd[i + r];
        slope_sums<L>(n.cols, n.x + at, n.dy + at, n.weight, center, g, gn);
        rows[r] = {center, rstd, n.mean == nullptr ? 0.0f : g / count, gn * rstd / count};
      }
      if (step == 1) {
        const Row& row = rows[0];
        for_row<L>(n.cols, NormSlope{n, i, row.center, row.rstd, row.mean_g, row.mean_gn});
        continue;
      }
      constexpr int vectors = L::width == 16 ? 4 : 2;
      std::int64_t j = 0;
      for (; j + vectors * L::width <= n.cols; j += vectors * L::width) {
        columns<L, vectors>(i * n.cols + j, size, rows, j, vectors * L::width);
      }
      for (; j < n.cols; j += L::width) {
        columns<L, 1>(i * n.cols + j, size, rows, j, n.cols - j);
      }
    }
  }

  // Up to four vectors of columns from j on, of size rows from x[at] on.
  template <class L, int VECTORS>
  TINYSCALE_INLINE void columns(std::int64_t at, std::int64_t size, const Row* rows, std::int64_t j,
                                std::int64_t left) const {
    typename L::V weight[4], dw[4] = {}, db[4] = {}, v, d, t;
    TINYSCALE_UNROLL
    for (int part = 0; part < VECTORS; ++part) {
      load_some<L>(n.weight + j + part * L::width, left - part * L::width, 0.0f, weight[part]);
    }
    for (const Row* row = rows; row < rows + size; ++row, at += n.cols) {
      TINYSCALE_UNROLL
      for (int part = 0; part < VECTORS; ++part) {
        const std::int64_t p = at + part * L::width, some = left - part * L::width;
        load_some<L>(n.x + p, some, 0.0f, v);
        load_some<L>(n.dy + p, some, 0.0f, d);
        db[part] = db[part] + d;
        broadcast<L>(row->center, t);
        v = v - t;
        broadcast<L>(row->rstd, t);
        v = v * t;
        dw[part] = dw[part] + d * v;
        broadcast<L>(row->mean_gn, t);
        v = v * t;
        broadcast<L>(row->mean_g, t);
        d = d * weight[part] - t;
        broadcast<L>(row->rstd, t);
        add_some<L>(n.beta, t * (d - v), some, n.dx + p);
      }
    }
    TINYSCALE_UNROLL
    for (int part = 0; part < VECTORS; ++part) {
      const std::int64_t p = part * L::width;
      add_some<L>(1.0f, dw[part], left - p, n.dweight + j + p);
      if (n.dbias != nullptr) {
        add_some<L>(1.0f, db[part], left - p, n.dbias + j + p);
      }
    }
  }
};

// Chunks of 32 to 512 rows, each with its own sums, which are then added in order and in double.
inline void norm_backward(std::int64_t rows, const NormBackward& all) {
  const std::int64_t chunk = std::clamp<std::int64_t>((rows + 63) / 64, 32, 512);
  const std::int64_t chunks = (rows + chunk - 1) / chunk;
  const std::int64_t cached = rows * all.cols <= (1 << 17) ? 1024 / (all.cols + 1) : 1;
  const std::int64_t step = std::clamp<std::int64_t>(cached, 1, NormBackwardRows::most);
  const std::int64_t wide = 2 * all.cols;  // of dweight, then of dbias
  const Scratch lease(chunks * wide), totals_lease(2 * wide);
  double* const totals = reinterpret_cast<double*>(totals_lease.data());
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t c = begin; c < end; ++c) {
      NormBackward part = all;
      part.dweight = lease.data() + c * wide;
      part.dbias = all.dbias == nullptr ? nullptr : part.dweight + all.cols;
      std::fill(part.dweight, part.dweight + wide, 0.0f);
      run_on_lanes(NormBackwardRows{part, c * chunk, std::min(rows, (c + 1) * chunk), step});
    }
  };
  parallel_for(chunks, 1, body);
  std::fill(totals, totals + wide, 0.0);
  for (std::int64_t c = 0; c < chunks; ++c) {
    kernels::add_to_sums(wide, lease.data() + c * wide, totals);
  }
  for (std::int64_t j = 0; j < all.cols; ++j) {
    all.dweight[j] += static_cast<float>(totals[j]);
    if (all.dbias != nullptr) {
      all.dbias[j] += static_cast<float>(totals[all.cols + j]);
    }
  }
}

inline void norm_forward(std::int64_t rows, const NormRows& all) {
  parallel_for(rows, row_grain(all.cols), [&](std::int64_t begin, std::int64_t end) {
    NormRows part = all;
    part.begin = begin;
    part.end = end;
    run_on_lanes(part);
  });
}

}  // namespace detail

namespace kernels {

// x, y: [rows, cols]; weight, bias (or null): [cols]; mean, rstd: [rows], kept for backward.
inline void layer_norm_forward(std::int64_t rows, std::int64_t cols, float eps, const float* x,
                               const float* weight, const float* bias, float* y, float* mean,
                               float* rstd) {
  detail::norm_forward(rows, {0, 0, cols, eps, x, weight, bias, y, mean, rstd});
}

// dx = beta dx + ... (beta 0 or 1); dweight and dbias (or null) are added to.
inline void layer_norm_backward(std::int64_t rows, std::int64_t cols, const float* x,
                                const float* weight, const float* mean, const float* rstd,
                                const float* dy, float* dx, float* dweight, float* dbias,
                                float beta = 1.0f) {
  detail::norm_backward(rows, {cols, x, weight, mean, rstd, dy, beta, dx, dweight, dbias});
}

inline void rms_norm_forward(std::int64_t rows, std::int64_t cols, float eps, const float* x,
                             const float* weight, float* y, float* rstd) {
  detail::norm_forward(rows, {0, 0, cols, eps, x, weight, nullptr, y, nullptr, rstd});
}

inline void rms_norm_backward(std::int64_t rows, std::int64_t cols, const float* x,
                              const float* weight, const float* rstd, const float* dy, float* dx,
                              float* dweight, float beta = 1.0f) {
  detail::norm_backward(rows, {cols, x, weight, nullptr, rstd, dy, beta, dx, dweight, nullptr});
}

}  // namespace kernels
}}  // namespace tinyscale

// >> tinyscale/compute/rope.hpp
// Rotary position embedding: pair i of a head at position t turns by t / theta^(2 i / head_size).
//   interleaved: pairs (x[2 i], x[2 i + 1]);  halves: pairs (x[i], x[i + head_size / 2]).
// The backward pass turns the gradient by the opposite angle. Su et al., arXiv 2104.09864.

namespace tinyscale { inline namespace TINYSCALE_ABI {

enum class RopePairs { interleaved, halves };

namespace kernels {

enum class RopeTurn { forward, inverse };

struct RopeShape {  // x is [batch, tokens, heads * head_size]
  std::int64_t batch = 1, tokens = 1, heads = 1, head_size = 2, first_position = 0;
  double theta = 10000.0;
  RopePairs pairs = RopePairs::interleaved;
};

// The reference body; backward: the inverse turn.
inline void rope_reference(const RopeShape& s, RopeTurn turn, const float* x, float* y) {
  const std::int64_t half = s.head_size / 2;
  for (std::int64_t at = 0; at < s.batch * s.tokens * s.heads * half; ++at) {
    const std::int64_t i = at % half, head = at / half, t = head / s.heads % s.tokens;
    const bool interleaved = s.pairs == RopePairs::interleaved;
    const std::int64_t a = head * s.head_size + (interleaved ? 2 * i : i);
    const std::int64_t b = a + (interleaved ? 1 : half);
    const double power = static_cast<double>(2 * i) / static_cast<double>(s.head_size);
    const double angle = static_cast<double>(s.first_position + t) / std::pow(s.theta, power);
    const double c = std::cos(angle), n = std::sin(turn == RopeTurn::forward ? angle : -angle);
    const double xa = double{x[a]}, xb = double{x[b]};
    y[a] = static_cast<float>(xa * c - xb * n);
    y[b] = static_cast<float>(xa * n + xb * c);
  }
}

}  // namespace kernels

namespace detail {

// y = turned x, or y += turned x, for one token: cos and sin are [head_size / 2].
template <bool add>
void rope_token(const kernels::RopeShape& s, const float* cos, const float* sin, const float* x,
                float* y) {
  const std::int64_t half = s.head_size / 2;
  const bool interleaved = s.pairs == RopePairs::interleaved;
  for (std::int64_t h = 0; h < s.heads; ++h) {
    for (std::int64_t i = 0; i < half; ++i) {
      const std::int64_t a = h * s.head_size + (interleaved ? 2 * i : i);
      const std::int64_t b = interleaved ? a + 1 : a + half;
      const float xa = x[a];
      const float xb = x[b];
      const float ya = xa * cos[i] - xb * sin[i];
      const float yb = xa * sin[i] + xb * cos[i];
      y[a] = add ? y[a] + ya : ya;
      y[b] = add ? y[b] + yb : yb;
    }
  }
}

inline void rope_all(const kernels::RopeShape& s, kernels::RopeTurn turn, const float* x, float* y,
                     bool add) {
  const std::int64_t half = s.head_size / 2;
  const std::int64_t width = s.heads * s.head_size;
  List<double> frequency(static_cast<std::size_t>(half));
  for (std::int64_t i = 0; i < half; ++i) {
    const double part = static_cast<double>(2 * i) / static_cast<double>(s.head_size);
    frequency[static_cast<std::size_t>(i)] = std::pow(s.theta, -part);
  }
  parallel_for(s.tokens, 8, [&](std::int64_t begin, std::int64_t end) {
    List<float> cos(frequency.size()), sin(frequency.size());
    for (std::int64_t t = begin; t < end; ++t) {
      for (std::size_t i = 0; i < frequency.size(); ++i) {
        const double angle = static_cast<double>(s.first_position + t) * frequency[i];
        cos[i] = static_cast<float>(std::cos(angle));
        sin[i] = static_cast<float>(turn == kernels::RopeTurn::forward ? std::sin(angle)
                                                                       : -std::sin(angle));
      }
      for (std::int64_t b = 0; b < s.batch; ++b) {
        const std::int64_t at = (b * s.tokens + t) * width;
        if (add) {
          rope_token<true>(s, cos.data(), sin.data(), x + at, y + at);
        } else {
          rope_token<false>(s, cos.data(), sin.data(), x + at, y + at);
        }
      }
    }
  });
}

}  // namespace detail

namespace kernels {

// y = x turned (y may be x). head_size must be even.
inline void rope(const RopeShape& s, RopeTurn turn, const float* x, float* y) {
  detail::rope_all(s, turn, x, y, false);
}

// dx = beta dx + dy turned back; beta is 0 (dx is not read) or 1.
inline void rope_backward(const RopeShape& s, const float* dy, float* dx, float beta = 1.0f) {
  detail::rope_all(s, RopeTurn::inverse, dy, dx, beta != 0.0f);
}

}  // namespace kernels
}}  // namespace tinyscale

// >> tinyscale/tensor/storage.hpp
// The numbers of a tensor: a 64-byte aligned buffer of floats, counted by the memory meter that was
// current when it was made.

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace detail {

// Stands in one block with its numbers, which begin 64 bytes after the block.
struct Storage {
  float* data = nullptr;
  std::int64_t count = 0;
  Shared<MemoryMeter> meter;
  MemoryKind kind = MemoryKind::activation;
  std::atomic<int> kept{0};  // ops that need these numbers for their backward pass

  Storage() = default;
  ~Storage() {
    if (meter) {
      meter->remove(kind, static_cast<double>(bytes()));
    }
  }
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  std::size_t bytes() const { return static_cast<std::size_t>(count) * sizeof(float); }
};

inline Shared<Storage> make_storage(const Shape& shape, std::int64_t count, MemoryKind kind) {
  static_assert(sizeof(Storage) <= 48, "the numbers begin 64 bytes after the block");
  const bool fits = count <= (std::int64_t{1} << 38);
  Shared<Storage> storage;
  try {
    const auto numbers = static_cast<std::size_t>(fits && count > 0 ? count : 1);
    storage = Shared<Storage>::make(48 - sizeof(Storage) + (fits ? numbers * sizeof(float) : 0));
  } catch (const std::bad_alloc&) {
    storage.reset();
  }
  if (!storage || !fits) {
    fail({"Tensor: shape ", shape, " takes ", format_bytes(4 * static_cast<double>(count)),
          fits ? "; this machine has no memory left for that"
               : "; a tensor holds at most 2^38 numbers, 1.1 TB"});
  }
  storage->data = reinterpret_cast<float*>(reinterpret_cast<char*>(storage.get()) + 48);
  storage->count = count;
  storage->kind = kind;
  storage->meter = context().memory;
  if (storage->meter) {
    storage->meter->add(kind, static_cast<double>(storage->bytes()));
  }
  return storage;
}

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/tensor/graph.hpp
// The graph of ops behind a tensor, for reverse-mode differentiation (a Wengert list as a graph).
// A slot holds the gradient apart from the numbers, so that a result whose value the backward pass
// does not need is freed at once.

namespace tinyscale { inline namespace TINYSCALE_ABI {

class Tensor;

namespace detail {

// What an op does with the gradient of its result: std::function<void(const Tensor& dy)>, at a
// fraction of its price to the compiler.
class Backward {
 public:
  Backward() = default;
  template <class F>
  Backward(F body)
      : body_(new (pool_take(1, sizeof(F))) F(static_cast<F&&>(body))),
        run_(&run<F>),
        drop_(&drop<F>) {}
  Backward(Backward&& other) noexcept : body_(other.body_), run_(other.run_), drop_(other.drop_) {
    other.body_ = nullptr;
  }
  Backward& operator=(Backward&& other) noexcept {
    reset();
    body_ = other.body_;
    run_ = other.run_;
    drop_ = other.drop_;
    other.body_ = nullptr;
    return *this;
  }
  ~Backward() { reset(); }

  explicit operator bool() const { return body_ != nullptr; }
  void operator()(const Tensor& dy) const { run_(body_, dy); }
  void reset() {
    if (body_ != nullptr) {
      void* body = body_;
      body_ = nullptr;
      drop_(body);
    }
  }

 private:
  template <class F>
  static void run(void* body, const Tensor& dy) {
    (*static_cast<F*>(body))(dy);
  }
  template <class F>
  static void drop(void* body) {
    static_cast<F*>(body)->~F();
    pool_give(body, 1, sizeof(F));
  }

  void* body_ = nullptr;
  void (*run_)(void* body, const Tensor& dy) = nullptr;
  void (*drop_)(void* body) = nullptr;
};

// Where a tensor's gradient gathers, and the op behind the tensor: where the gradient goes, and
// how.
struct GradSlot {
  Shape shape;
  Shared<Storage> grad;
  int order = 0;  // longest path from a leaf: the backward pass runs in falling order
  bool queued = false;
  bool leaf = true;  // a parameter: no op stands behind it
  const char* name = "";
  Backward backward;
  int input_count = 0;  // they stand behind this struct, in its block

  ~GradSlot() {
    if (input_count > 0) {
      end_graph();
    }
  }
  Shared<GradSlot>* inputs() { return reinterpret_cast<Shared<GradSlot>*>(this + 1); }
  void add_input(const Shared<GradSlot>& slot) {
    new (inputs() + input_count) Shared<GradSlot>(slot);
    ++input_count;
    order = slot->order < order ? order : slot->order + 1;
  }
  void drop_inputs() {
    for (; input_count > 0; --input_count) {
      inputs()[input_count - 1].~Shared();
    }
  }
  void end_graph();
};
using Slot = Shared<GradSlot>;

// The graph behind a slot in a loop: a long chain of ops would overflow the stack if each op's end
// were called by that of the op after it. An op's closure holds no slots but those of its inputs.
inline void GradSlot::end_graph() {
  List<Slot> ending;
  GradSlot* op = this;
  for (Slot last;;) {
    op->backward.reset();
    for (int i = 0; i < op->input_count; ++i) {
      ending.push_back(std::move(op->inputs()[i]));
    }
    op->drop_inputs();
    do {  // the next that nobody else holds
      if (ending.empty()) {
        return;
      }
      last = std::move(ending.back());
      ending.pop_back();
    } while (last.use_count() != 1);
    op = last.get();
  }
}

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/tensor/strides.hpp
// Strides: how a view walks through numbers that it shares, and how two operands are walked
// together, one or both repeated (dimensions are matched from the right).

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace detail {

// The steps through a tensor that is not in row-major order without gaps, in elements.
struct Strides {
  std::int64_t of[Shape::max_dims] = {};
};

// Strides of a row-major tensor without gaps.
inline Strides row_major(const Shape& shape) {
  Strides steps;
  std::uint64_t step = 1;  // wraps where a size is 0 and the others are absurd
  for (int i = shape.size() - 1; i >= 0; --i) {
    steps.of[i] = static_cast<std::int64_t>(step);
    step *= static_cast<std::uint64_t>(shape.begin()[i]);
  }
  return steps;
}

inline Shape broadcast_shape(const char* op, const Shape& a, const Shape& b) {
  Shape shape;
  const int dims = std::max(a.size(), b.size());
  for (int i = 0; i < dims; ++i) {
    const int ia = i - (dims - a.size());
    const int ib = i - (dims - b.size());
    const std::int64_t da = ia >= 0 ? a[ia] : 1;
    const std::int64_t db = ib >= 0 ? b[ib] : 1;
    if (da != db && da != 1 && db != 1) {
      fail({op, ": shapes do not match: ", a.text(), " and ", b.text(),
            "; from the right, sizes must be equal or 1"});
    }
    shape.push_back(da == 1 ? db : da);
  }
  return shape;
}

// The steps of a tensor as it is repeated to fill a shape: 0 where it is.
inline Strides broadcast_steps(const Shape& from, const Strides& steps, const Shape& to) {
  Strides out;
  for (int i = to.size() - 1, j = from.size() - 1; j >= 0; --i, --j) {
    out.of[i] = from[j] == 1 ? 0 : steps.of[j];
  }
  return out;
}

// Two operands walked together in the row-major order of a shape. Dims that both cross in even
// steps become one, so that rows are long.
struct Walk {
  Shape shape;
  Strides a, b;

  Walk(const Shape& whole, const Strides& steps_a, const Strides& steps_b) {
    for (int i = 0; i < whole.size(); ++i) {
      const std::int64_t n = whole.begin()[i];
      const int last = shape.size() - 1;
      if (last >= 0 && a.of[last] == steps_a.of[i] * n && b.of[last] == steps_b.of[i] * n) {
        shape.set(last, shape[last] * n);
      } else if (n != 1) {
        shape.push_back(n);
      }
      if (n != 1) {
        a.of[shape.size() - 1] = steps_a.of[i];
        b.of[shape.size() - 1] = steps_b.of[i];
      }
    }
    if (shape.empty()) {
      shape.push_back(1);
    }
  }

  std::int64_t columns() const { return shape[-1]; }
  std::int64_t step_a() const { return a.of[shape.size() - 1]; }
  std::int64_t step_b() const { return b.of[shape.size() - 1]; }

  // Calls body(first, a, b) for every row: the number of its first element, offsets in a and b.
  template <class Body>
  void rows(const Body& body) const {
    const std::int64_t end = shape.count();
    std::int64_t index[Shape::max_dims] = {};
    std::int64_t at_a = 0;
    std::int64_t at_b = 0;
    for (std::int64_t first = 0; first < end; first += columns()) {
      body(first, at_a, at_b);
      for (int i = shape.size() - 2; i >= 0; --i) {
        at_a += a.of[i];
        at_b += b.of[i];
        if (++index[i] < shape.begin()[i]) {
          break;
        }
        at_a -= a.of[i] * shape.begin()[i];
        at_b -= b.of[i] * shape.begin()[i];
        index[i] = 0;
      }
    }
  }
};

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/tensor/tensor.hpp
// A tensor: a shape, a shared buffer of floats, and the record of how it was made.
// Row-major unless it is a view, float32. Copying a Tensor copies the handle, never the numbers.

namespace tinyscale { inline namespace TINYSCALE_ABI {

class Tensor {
 public:
  Tensor() = default;
  // Uninitialised numbers; users call zeros, full, randn, ...
  explicit Tensor(const Shape& shape) : Tensor(shape, context().kind) {}
  Tensor(const Shape& shape, MemoryKind kind)
      : shape_(shape),
        count_(shape.count()),
        storage_(detail::make_storage(shape, count_, kind)),
        data_(storage_->data) {}
  Tensor(const Shape& shape, Shared<detail::Storage> storage)
      : shape_(shape), count_(shape.count()), storage_(std::move(storage)), data_(storage_->data) {}

  // Out of line: each holds three counts, and every op copies, moves and drops tensors.
  [[gnu::noinline]] Tensor(const Tensor& other) = default;
  [[gnu::noinline]] Tensor(Tensor&& other) = default;
  [[gnu::noinline]] Tensor& operator=(const Tensor& other) = default;
  [[gnu::noinline]] Tensor& operator=(Tensor&& other) = default;
  [[gnu::noinline]] ~Tensor() = default;

  bool defined() const { return storage_ != nullptr; }
  const Shape& shape() const { return shape_; }
  int dims() const { return shape_.size(); }
  std::int64_t dim(int i) const { return shape_[i]; }  // negative i counts from the end
  std::int64_t count() const { return count_; }

  // The numbers in row-major order; throws when they do not lie so (see contiguous()).
  float* data() { return layout_ || !storage_ ? checked() : data_; }
  const float* data() const { return layout_ || !storage_ ? checked() : data_; }
  // The first number, wherever the others are.
  float* origin() const { return checked_defined(); }
  bool is_contiguous() const { return !layout_; }
  // The steps from an element to the next of dimension i, in elements.
  std::int64_t stride(int i) const {
    const int dim = i < 0 ? i + dims() : i;
    return layout_ ? layout_->of[dim] : detail::row_major(shape_).of[dim];
  }
  std::vector<std::int64_t> strides() const {
    const detail::Strides by = steps();
    return std::vector<std::int64_t>(by.of, by.of + dims());
  }
  detail::Strides steps() const { return layout_ ? *layout_ : detail::row_major(shape_); }
  const Shared<detail::Storage>& storage() const { return storage_; }

  // Other dims of the same numbers: element i is at origin() + offset + sum of i[d] strides[d].
  // Records nothing for backward(). Throws when that leaves the buffer.
  Tensor as_strided(const Shape& shape, const detail::Strides& steps, std::int64_t offset) const;

  // The one number of a tensor of one element.
  float item() const {
    if (count() != 1) {
      detail::fail({"item: the tensor has ", count(), " elements, shape ", shape_.text(),
                    "; item() needs exactly 1"});
    }
    return data_[0];
  }
  float at(std::initializer_list<Dim> index) const {
    if (static_cast<int>(index.size()) != dims()) {
      detail::fail({"at: ", index.size(), " indices given for shape ", shape_.text(),
                    "; one per dimension is right"});
    }
    const detail::Strides by = steps();
    std::int64_t offset = 0;
    int axis = 0;
    for (const Dim& i : index) {
      if (i.value < 0 || i.value >= shape_[axis]) {
        detail::fail(
            {"at: index ", i.value, " in dimension ", axis, " is outside shape ", shape_.text()});
      }
      offset += by.of[axis] * i.value;
      ++axis;
    }
    return checked_defined()[offset];
  }
  std::vector<float> values() const {
    const Tensor flat = is_contiguous() ? *this : clone();
    return count() == 0 ? std::vector<float>()
                        : std::vector<float>(flat.data_, flat.data_ + count_);
  }

  bool requires_grad() const { return slot_ != nullptr; }
  const detail::Slot& slot() const { return slot_; }
  void set_slot(detail::Slot slot) { slot_ = std::move(slot); }

  // The same numbers, cut off from the graph.
  Tensor detach() const {
    Tensor same = *this;
    same.slot_.reset();
    return same;
  }
  // A copy of the numbers in row-major order, cut off from the graph.
  Tensor clone() const;

  // The gathered gradient; an empty Tensor before backward() or after zero_grad().
  Tensor grad() const {
    return slot_ && slot_->grad ? Tensor(slot_->shape, slot_->grad) : Tensor();
  }
  void zero_grad() const {
    if (slot_) {
      slot_->grad.reset();
    }
  }
  // Gradients of this scalar with respect to every parameter behind it; frees the graph.
  void backward() const;

 private:
  float* checked() const {
    if (layout_) {
      detail::fail({"data: shape ", shape_.text(), " has strides ", Shape(strides()).text(),
                    ", not the row-major ", Shape(Tensor(shape_, storage_).strides()).text(),
                    "; take contiguous() first"});
    }
    return checked_defined();
  }
  float* checked_defined() const {
    if (!storage_) {
      detail::fail(
          {"data: the tensor is empty (default-constructed); make one with zeros, full, ..."});
    }
    return data_;
  }

  Shape shape_;
  std::int64_t count_ = 0;
  Shared<detail::Storage> storage_;
  float* data_ = nullptr;
  Shared<detail::Strides> layout_;  // null: row-major without gaps
  detail::Slot slot_;
};

inline Tensor Tensor::as_strided(const Shape& shape, const detail::Strides& steps,
                                 std::int64_t offset) const {
  std::int64_t low = checked_defined() - storage_->data + offset;
  std::int64_t high = low;
  bool dense = true;
  const detail::Strides wanted = detail::row_major(shape);
  Tensor view;
  view.count_ = shape.count();
  for (int i = 0; i < shape.size() && view.count_ > 0; ++i) {
    const std::int64_t reach = (shape[i] - 1) * steps.of[i];
    (reach < 0 ? low : high) += reach;
    dense = dense && (shape[i] == 1 || steps.of[i] == wanted.of[i]);
  }
  if (low < 0 || (view.count_ > 0 && high >= storage_->count)) {
    detail::fail({"as_strided: shape ", shape.text(), " reaches elements ", low, " to ", high,
                  " of a buffer of ", storage_->count});
  }
  view.shape_ = shape;
  view.storage_ = storage_;
  view.data_ = data_ + offset;
  if (!dense) {
    view.layout_ = Shared<detail::Strides>::make();
    *view.layout_ = steps;
  }
  return view;
}

inline Tensor Tensor::clone() const {
  if (!storage_) {
    return Tensor();
  }
  Tensor copy(shape_);
  const detail::Strides own = steps();
  const detail::Walk walk(shape_, own, own);
  const std::int64_t columns = walk.columns();
  const std::int64_t step = walk.step_a();
  walk.rows([&](std::int64_t first, std::int64_t offset, std::int64_t) {
    float* const to = copy.data_ + first;
    if (step == 1) {
      std::memcpy(to, data_ + offset, static_cast<std::size_t>(columns) * sizeof(float));
    }
    for (std::int64_t j = 0; j < columns && step != 1; ++j) {
      to[j] = data_[offset + j * step];
    }
  });
  return copy;
}

// Prints the shape and at most the first eight numbers.
inline std::ostream& operator<<(std::ostream& out, const Tensor& t) {
  out << t.shape().text() << " {";
  const detail::Strides steps = t.steps();
  for (std::int64_t i = 0; i < t.count() && i < 8; ++i) {
    std::int64_t left = i;
    std::int64_t offset = 0;
    for (int d = t.dims() - 1; d >= 0; --d) {
      offset += left % t.dim(d) * steps.of[d];
      left /= t.dim(d);
    }
    out << (i ? ", " : "") << t.origin()[offset];
  }
  return out << (t.count() > 8 ? ", ...}" : "}");
}

}}  // namespace tinyscale

// >> tinyscale/tensor/backward.hpp
// Gradients: what an op keeps, how a gradient gathers in a slot, and the walk back over the graph.

namespace tinyscale { inline namespace TINYSCALE_ABI {

// While alive, ops on this thread record nothing for backward().
class NoGrad {
 public:
  NoGrad() { ++context().no_grad; }
  ~NoGrad() { --context().no_grad; }
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;
};

// A leaf that gathers gradients, tagged as a parameter in the memory meter. Shares no numbers.
inline Tensor parameter(const Tensor& value) {
  if (!value.defined()) {
    value.data();  // throws
  }
  const MemoryScope scope(MemoryKind::parameter);
  Tensor leaf = value.clone();
  leaf.set_slot(detail::Slot::make());
  leaf.slot()->shape = value.shape();
  return leaf;
}

namespace detail {

// Numbers that a backward pass needs: ops that write in place refuse them as long as it lives.
class Kept : public Tensor {
 public:
  Kept() = default;
  explicit Kept(const Tensor& x) : Tensor(x.detach()) { count_one(1); }
  Kept(const Kept& other) : Tensor(other) { count_one(1); }
  Kept(Kept&& other) noexcept : Tensor(static_cast<Tensor&&>(other)) {}
  Kept& operator=(const Kept&) = delete;
  ~Kept() { count_one(-1); }

 private:
  void count_one(int change) const {
    if (defined()) {
      storage()->kept.fetch_add(change, std::memory_order_relaxed);
    }
  }
};

// The gradient buffer of a slot, zero at first use. A leaf's is a gradient, the rest activations.
inline float* grad_buffer(const Slot& slot) {
  if (!slot->grad) {
    const MemoryKind kind = slot->leaf ? MemoryKind::gradient : MemoryKind::activation;
    slot->grad = make_storage(slot->shape, slot->shape.count(), kind);
    std::memset(slot->grad->data, 0, slot->grad->bytes());
  }
  return slot->grad->data;
}

// The same for a kernel that writes instead of adding where `beta` says 0: at first use it does.
inline float* grad_buffer(const Slot& slot, float& beta) {
  beta = slot->grad ? 1.0f : 0.0f;
  if (!slot->grad) {
    const MemoryKind kind = slot->leaf ? MemoryKind::gradient : MemoryKind::activation;
    slot->grad = make_storage(slot->shape, slot->shape.count(), kind);
  }
  return slot->grad->data;
}

// Adds dx to a slot's gradient; takes the buffer over when it is the first and nobody else's.
inline void add_grad(const Slot& slot, const Tensor& dx) {
  if (!dx.is_contiguous()) {
    add_grad(slot, dx.clone());
    return;
  }
  const bool fits = !slot->leaf || dx.storage()->kind == MemoryKind::gradient;
  if (!slot->grad && fits && dx.storage().use_count() == 1 && dx.storage()->count == dx.count()) {
    slot->grad = dx.storage();
    return;
  }
  float beta = 0;
  float* out = grad_buffer(slot, beta);
  if (beta > 0) {
    kernels::add(dx.count(), out, dx.data(), out);
  } else if (dx.count() > 0) {
    std::memcpy(out, dx.data(), slot->grad->bytes());
  }
}

// True if the graph must remember an op over these inputs.
inline bool tracked(std::initializer_list<const Tensor*> inputs) {
  if (context().no_grad > 0) {
    return false;
  }
  for (const Tensor* input : inputs) {
    if (input->requires_grad()) {
      return true;
    }
  }
  return false;
}

// Joins `result` to the graph behind `inputs`; call it only when they are tracked.
inline void attach(Tensor& result, const char* name, const Tensor* const* inputs, std::size_t n,
                   Backward backward) {
  Slot slot = Slot::make(n * sizeof(Slot));
  slot->shape = result.shape();
  slot->leaf = false;
  slot->name = name;
  slot->backward = std::move(backward);
  for (std::size_t i = 0; i < n; ++i) {
    if (inputs[i]->requires_grad()) {
      slot->add_input(inputs[i]->slot());
    }
  }
  result.set_slot(std::move(slot));
}

inline void attach(Tensor& result, const char* name, std::initializer_list<const Tensor*> inputs,
                   Backward backward) {
  attach(result, name, inputs.begin(), inputs.size(), std::move(backward));
}

// Ops that wait for the backward pass; the last of the forward pass goes first.
class ReadyOps {
 public:
  bool empty() const { return queue_.empty(); }
  void push(const Slot& slot) {
    slot->queued = true;
    queue_.push({-static_cast<double>(slot->order), slots_.size(), 0});
    slots_.push_back(slot);
  }
  Slot pop() {
    Slot slot = std::move(slots_[queue_.pop().item]);
    slot->queued = false;
    return slot;
  }

 private:
  EventQueue queue_;
  List<Slot> slots_;
};

}  // namespace detail

inline void Tensor::backward() const {
  if (!slot_) {
    detail::fail({"backward: no parameter stands behind this tensor; wrap one with parameter()"});
  }
  if (count() != 1) {
    detail::fail({"backward: the loss must be one number, this has shape ", shape_.text(),
                  "; take mean() or sum() first"});
  }
  NoGrad no_graph_of_the_backward_pass;
  *detail::grad_buffer(slot_) += 1.0f;
  detail::ReadyOps ready;
  if (!slot_->leaf) {
    ready.push(slot_);
  }
  while (!ready.empty()) {
    const detail::Slot slot = ready.pop();
    if (!slot->backward) {
      detail::fail(
          {"backward: this graph was used before and is freed; run the forward pass again"});
    }
    if (slot->grad) {
      slot->backward(Tensor(slot->shape, std::move(slot->grad)));
      slot->grad.reset();
    }
    slot->backward.reset();
    for (int i = 0; i < slot->input_count; ++i) {
      const detail::Slot& input = slot->inputs()[i];
      if (!input->leaf && !input->queued) {
        ready.push(input);
      }
    }
    slot->drop_inputs();
  }
}

}}  // namespace tinyscale

// >> tinyscale/tensor/op_record.hpp
// What an op costs: bytes of each operand once, 2 M K N for a matmul, and for everything else a
// published number of vector operations an element (the table below; an exp by polynomial is 10).

namespace tinyscale { inline namespace TINYSCALE_ABI {

// Vector operations an element of the named op, as profiles count them.
struct VectorCost {
  const char* name;
  double forward;
  double backward;
};

// clang-format off
inline const List<VectorCost>& vector_costs() {
  static const List<VectorCost> costs = {
      {"add", 1, 1},        {"sub", 1, 1},         {"mul", 1, 2},           {"div", 4, 9},
      {"exp", 10, 1},       {"log", 10, 4},        {"sqrt", 4, 5},          {"tanh", 12, 3},
      {"relu", 1, 1},       {"square", 1, 2},      {"neg", 1, 1},           {"silu", 16, 18},
      {"gelu", 22, 26},     {"gelu_tanh", 18, 24}, {"sum", 1, 1},           {"softmax", 16, 4},
      {"layer_norm", 8, 13}, {"rms_norm", 5, 10},  {"cross_entropy", 13, 13}, {"rope", 3, 3},
      {"dropout", 2, 1},    {"log_softmax", 13, 13}, {"copy", 0, 0},        {"max", 1, 1},
      {"less", 1, 0},        {"equal", 1, 0},         {"where", 1, 2},
      {"pow", 40, 42},
  };
  return costs;
}
// clang-format on

inline double vector_cost(const std::string& op, double elements, double VectorCost::*pass) {
  for (const VectorCost& cost : vector_costs()) {
    if (op == cost.name) {
      return elements * (cost.*pass);
    }
  }
  detail::fail({"vector_cost: no op is called '", op, "'; vector_costs() lists them"});
}

namespace detail {

// Times one op and hands its record to the profile that is alive, if any; else costs one branch.
class OpScope {
 public:
  OpScope() : profile_(context().profile) {
    if (profile_ != nullptr) {
      start_ = seconds_now();
    }
  }

  void done(const char* name, const Shape& shape, std::initializer_list<double> reads,
            std::initializer_list<double> writes, double matmul_flops, double vector_flops,
            DType read_as = DType::f32) const {
    if (profile_ == nullptr) {
      return;
    }
    OpRecord record;
    record.seconds = seconds_now() - start_;
    record.name = name;
    record.shape = shape.text();
    record.matmul_flops = matmul_flops;
    record.vector_flops = vector_flops;
    record.device = context().device;
    for (const double elements : reads) {
      record.reads.push_back(Operand{elements, read_as});
      record.bytes_read += elements * bytes_of(read_as);
    }
    for (const double elements : writes) {
      record.writes.push_back(Operand{elements, DType::f32});
      record.bytes_written += elements * bytes_of(DType::f32);
    }
    profile_->record(std::move(record));
  }

  // An op on one operand of n elements, priced by the table.
  void done_unary(const char* name, const char* price, const Shape& shape,
                  double VectorCost::*pass = &VectorCost::forward) const {
    if (profile_ == nullptr) {
      return;
    }
    const double n = static_cast<double>(shape.count());
    const double inputs = pass == &VectorCost::forward ? n : 2 * n;
    done(name, shape, {inputs}, {n}, 0, vector_cost(price, n, pass));
  }

 private:
  Profile* profile_;
  double start_ = 0;
};

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/tensor/arithmetic.hpp
// Elementwise arithmetic with broadcasting: dimensions are matched from the right, and a dimension
// of size 1 (or missing) is repeated. The gradient of a repeated operand is summed back.

namespace tinyscale { inline namespace TINYSCALE_ABI {

namespace detail {

inline Walk walk(const char* op, const Tensor& a, const Tensor& b) {
  const Shape shape = broadcast_shape(op, a.shape(), b.shape());
  return Walk(shape, broadcast_steps(a.shape(), a.steps(), shape),
              broadcast_steps(b.shape(), b.steps(), shape));
}

enum class Arithmetic { add, sub, mul, div, less, equal, second };

inline float apply(Arithmetic op, float a, float b) {
  switch (op) {
    case Arithmetic::add: return a + b;
    case Arithmetic::sub: return a - b;
    case Arithmetic::mul: return a * b;
    case Arithmetic::div: return a / b;
    case Arithmetic::less: return a < b ? 1.0f : 0.0f;
    case Arithmetic::equal: return a == b ? 1.0f : 0.0f;
    case Arithmetic::second: break;
  }
  return b;
}

inline void apply_same(Arithmetic op, std::int64_t n, const float* a, const float* b, float* y) {
  if (n >= 8 && op <= Arithmetic::div) {
    switch (op) {
      case Arithmetic::add: kernels::add(n, a, b, y); break;
      case Arithmetic::sub: kernels::sub(n, a, b, y); break;
      case Arithmetic::mul: kernels::mul(n, a, b, y); break;
      default: kernels::div(n, a, b, y); break;
    }
    return;
  }
  for (std::int64_t i = 0; i < n; ++i) {
    y[i] = apply(op, a[i], b[i]);
  }
}

// The same for operands in steps, which are gathered in blocks for the kernel.
inline void apply_row(Arithmetic op, std::int64_t n, const float* a, std::int64_t step_a,
                      const float* b, std::int64_t step_b, float* y, std::int64_t step_y) {
  if (step_a == 1 && step_b == 1 && step_y == 1) {
    apply_same(op, n, a, b, y);
    return;
  }
  float blocks[3][256];
  for (std::int64_t begin = 0; begin < n; begin += 256) {
    const std::int64_t m = std::min<std::int64_t>(256, n - begin);
    for (std::int64_t i = 0; i < m; ++i) {
      blocks[0][i] = a[(begin + i) * step_a];
      blocks[1][i] = b[(begin + i) * step_b];
    }
    apply_same(op, m, blocks[0], blocks[1], blocks[2]);
    for (std::int64_t i = 0; i < m; ++i) {
      y[(begin + i) * step_y] = blocks[2][i];
    }
  }
}

inline Tensor arithmetic(Arithmetic op, const char* name, const Tensor& a, const Tensor& b) {
  if (a.shape() == b.shape() && a.is_contiguous() && b.is_contiguous()) {
    const float* const pa = a.data();
    Tensor y(a.shape());
    apply_same(op, y.count(), pa, b.data(), y.data());
    return y;
  }
  const float* const pa = a.origin();
  const float* const pb = b.origin();
  Tensor y(broadcast_shape(name, a.shape(), b.shape()));
  const Walk plan = walk(name, a, b);
  plan.rows([&](std::int64_t first, std::int64_t at_a, std::int64_t at_b) {
    apply_row(op, plan.columns(), pa + at_a, plan.step_a(), pb + at_b, plan.step_b(),
              y.data() + first, 1);
  });
  return y;
}

// to = to op from, in place; `from` is repeated to the shape of `to`.
inline void apply_in_place(Arithmetic op, const char* name, const Tensor& to, const Tensor& from) {
  const Walk plan = walk(name, to, from);
  plan.rows([&](std::int64_t, std::int64_t at_a, std::int64_t at_b) {
    float* const y = to.origin() + at_a;
    apply_row(op, plan.columns(), y, plan.step_a(), from.origin() + at_b, plan.step_b(), y,
              plan.step_a());
  });
}

// x summed over the dimensions in which `shape` was repeated, in double and in index order. Where
// x itself repeats a number (a step of 0), it is multiplied instead.
inline Tensor sum_to(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) {
    return x;
  }
  Tensor once = x.detach();
  double times = 1;
  for (int i = 0, j = shape.size() - x.dims(); i < x.dims(); ++i, ++j) {
    if (x.dim(i) > 1 && x.stride(i) == 0 && (j < 0 || shape[j] == 1)) {
      Shape smaller = once.shape();
      smaller.set(i, 1);
      times *= static_cast<double>(x.dim(i));
      once = once.as_strided(smaller, once.steps(), 0);
    }
  }
  List<double> sums(static_cast<std::size_t>(shape.count()));
  const Walk plan(once.shape(), broadcast_steps(shape, row_major(shape), once.shape()),
                  once.steps());
  const std::int64_t columns = plan.columns();
  const std::int64_t step = plan.step_a();
  const bool even = plan.step_b() == 1 && columns >= 16;
  double* const out = sums.data();
  plan.rows([&](std::int64_t, std::int64_t a, std::int64_t b) {
    const float* const in = once.origin() + b;
    if (even && step == 1) {
      kernels::add_to_sums(columns, in, out + a);
    } else if (even && step == 0) {
      out[a] += kernels::sum(columns, in);
    } else {
      for (std::int64_t j = 0; j < columns; ++j) {
        out[a + j * step] += static_cast<double>(in[j * plan.step_b()]);
      }
    }
  });
  Tensor dx(shape);
  for (std::int64_t i = 0; i < dx.count(); ++i) {
    dx.data()[i] = static_cast<float>(times * out[i]);
  }
  return dx;
}

inline void add_grad_to(const Slot& slot, const Tensor& dx) {
  if (slot->shape == dx.shape()) {
    add_grad(slot, dx);
  } else {
    add_grad(slot, sum_to(dx, slot->shape));
  }
}

inline void record_arithmetic(const OpScope& scope, const char* name, const char* price,
                              const Tensor& a, const Tensor& b, const Shape& shape,
                              double VectorCost::*pass) {
  if (context().profile != nullptr) {
    const double n = static_cast<double>(shape.count());
    scope.done(name, shape, {static_cast<double>(a.count()), static_cast<double>(b.count())}, {n},
               0, vector_cost(price, n, pass));
  }
}

inline Tensor binary(Arithmetic op, const char* name, const Tensor& a, const Tensor& b) {
  const OpScope scope;
  Tensor y = arithmetic(op, name, a, b);
  record_arithmetic(scope, name, name, a, b, y.shape(), &VectorCost::forward);
  return y;
}

}  // namespace detail

// A copy of the numbers in row-major order; unlike clone() it carries the gradient back.
inline Tensor copy(const Tensor& x) {
  const detail::OpScope scope;
  x.origin();  // an empty one throws
  Tensor y = x.clone();
  scope.done_unary("copy", "copy", x.shape());
  if (detail::tracked({&x})) {
    detail::attach(y, "copy", {&x},
                   [sx = x.slot()](const Tensor& dy) { detail::add_grad(sx, dy); });
  }
  return y;
}

// The same tensor, copied only if it is a view out of row-major order.
inline Tensor contiguous(const Tensor& x) { return x.is_contiguous() ? x : copy(x); }

inline Tensor add(const Tensor& a, const Tensor& b) {
  Tensor y = detail::binary(detail::Arithmetic::add, "add", a, b);
  if (detail::tracked({&a, &b})) {
    detail::attach(y, "add", {&a, &b}, [sa = a.slot(), sb = b.slot()](const Tensor& dy) {
      if (sb) {
        detail::add_grad_to(sb, dy);
      }
      if (sa) {
        detail::add_grad_to(sa, dy);
      }
    });
  }
  return y;
}

inline Tensor mul(const Tensor& a, const Tensor& b) {
  Tensor y = detail::binary(detail::Arithmetic::mul, "mul", a, b);
  if (detail::tracked({&a, &b})) {
    using detail::Kept;
    detail::attach(
        y, "mul", {&a, &b},
        [ka = b.slot() ? Kept(a) : Kept(), kb = a.slot() ? Kept(b) : Kept(), sa = a.slot(),
         sb = b.slot()](const Tensor& dy) {
          if (sa) {
            detail::add_grad_to(sa, detail::binary(detail::Arithmetic::mul, "mul", dy, kb));
          }
          if (sb) {
            detail::add_grad_to(sb, detail::binary(detail::Arithmetic::mul, "mul", dy, ka));
          }
        });
  }
  return y;
}

inline Tensor scale(const Tensor& x, float factor) {
  if (!x.is_contiguous()) {
    return scale(contiguous(x), factor);
  }
  const detail::OpScope scope;
  Tensor y(x.shape());
  kernels::scale(x.count(), factor, x.data(), y.data());
  scope.done_unary("scale", "mul", x.shape());
  if (detail::tracked({&x})) {
    detail::attach(y, "scale", {&x}, [factor, sx = x.slot()](const Tensor& dy) {
      detail::add_grad(sx, scale(dy, factor));
    });
  }
  return y;
}

inline Tensor neg(const Tensor& x) { return scale(x, -1.0f); }

inline Tensor sub(const Tensor& a, const Tensor& b) {
  Tensor y = detail::binary(detail::Arithmetic::sub, "sub", a, b);
  if (detail::tracked({&a, &b})) {
    detail::attach(y, "sub", {&a, &b}, [sa = a.slot(), sb = b.slot()](const Tensor& dy) {
      if (sb) {
        detail::add_grad_to(sb, scale(dy, -1.0f));
      }
      if (sa) {
        detail::add_grad_to(sa, dy);
      }
    });
  }
  return y;
}

inline Tensor div(const Tensor& a, const Tensor& b) {
  Tensor y = detail::binary(detail::Arithmetic::div, "div", a, b);
  if (detail::tracked({&a, &b})) {
    detail::attach(y, "div", {&a, &b},
                   [kb = detail::Kept(b), ky = detail::Kept(y), sa = a.slot(),
                    sb = b.slot()](const Tensor& dy) {
                     const Tensor da = detail::binary(detail::Arithmetic::div, "div", dy, kb);
                     if (sb) {  // d(a/b)/db = -(a/b)/b
                       detail::add_grad_to(sb, neg(mul(da, ky)));
                     }
                     if (sa) {
                       detail::add_grad_to(sa, da);
                     }
                   });
  }
  return y;
}

inline Tensor add(const Tensor& x, float value) {
  if (!x.is_contiguous()) {
    return add(contiguous(x), value);
  }
  const detail::OpScope scope;
  Tensor y(x.shape());
  const float* in = x.data();
  float* out = y.data();
  for (std::int64_t i = 0; i < x.count(); ++i) {
    out[i] = in[i] + value;
  }
  scope.done_unary("add", "add", x.shape());
  if (detail::tracked({&x})) {
    detail::attach(y, "add", {&x}, [sx = x.slot()](const Tensor& dy) { detail::add_grad(sx, dy); });
  }
  return y;
}

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator+(const Tensor& x, float value) { return add(x, value); }
inline Tensor operator+(float value, const Tensor& x) { return add(x, value); }
inline Tensor operator-(const Tensor& x, float value) { return add(x, -value); }
inline Tensor operator-(float value, const Tensor& x) { return add(neg(x), value); }
inline Tensor operator*(const Tensor& x, float factor) { return scale(x, factor); }
inline Tensor operator*(float factor, const Tensor& x) { return scale(x, factor); }
inline Tensor operator/(const Tensor& x, float divisor) { return scale(x, 1.0f / divisor); }
inline Tensor operator-(const Tensor& x) { return neg(x); }

}}  // namespace tinyscale

// >> tinyscale/tensor/activations.hpp
// Functions of one element: gelu (erf and tanh forms, arXiv 1606.08415), silu, relu, exp, log, ...

namespace tinyscale { inline namespace TINYSCALE_ABI {

namespace detail {

using UnaryForward = void (*)(std::int64_t n, const float* x, float* y);
// dx += dy * f'(.), given the op's input or its output, whichever its derivative needs.
using UnaryBackward = void (*)(std::int64_t n, const float* kept, const float* dy, float* dx,
                               float beta);

enum class Needs { input, output };

inline Tensor unary(const char* name, const Tensor& x, UnaryForward forward, UnaryBackward backward,
                    Needs keep) {
  if (!x.is_contiguous()) {
    return unary(name, contiguous(x), forward, backward, keep);
  }
  const OpScope scope;
  Tensor y(x.shape());
  forward(x.count(), x.data(), y.data());
  scope.done_unary(name, name, x.shape());
  if (tracked({&x})) {
    attach(y, name, {&x},
           [name, backward, sx = x.slot(),
            kept = Kept(keep == Needs::input ? x : y)](const Tensor& dy) {
             const OpScope backward_scope;
             float beta = 0;
             float* const dx = grad_buffer(sx, beta);
             backward(dy.count(), kept.data(), dy.data(), dx, beta);
             if (profiling()) {
               backward_scope.done_unary(cat(name, " backward").c_str(), name, dy.shape(),
                                         &VectorCost::backward);
             }
           });
  }
  return y;
}

// dx = beta dx + slope, where beta 0 does not read dx.
inline void gather(float slope, float beta, float& dx) { dx = beta == 0.0f ? slope : dx + slope; }

template <class F>
inline void each(std::int64_t n, const F& body) {
  for (std::int64_t i = 0; i < n; ++i) {
    body(i);
  }
}

}  // namespace detail

// x Phi(x), with the exact normal distribution function (erf).
inline Tensor gelu(const Tensor& x) {
  return detail::unary("gelu", x, &kernels::gelu_forward, &kernels::gelu_backward,
                       detail::Needs::input);
}

// The tanh approximation of GPT-2.
inline Tensor gelu_tanh(const Tensor& x) {
  return detail::unary("gelu_tanh", x, &kernels::gelu_tanh_forward, &kernels::gelu_tanh_backward,
                       detail::Needs::input);
}

// x / (1 + exp(-x)).
inline Tensor silu(const Tensor& x) {
  return detail::unary("silu", x, &kernels::silu_forward, &kernels::silu_backward,
                       detail::Needs::input);
}

inline Tensor relu(const Tensor& x) {
  return detail::unary("relu", x, &kernels::relu_forward, &kernels::relu_backward,
                       detail::Needs::input);
}

inline Tensor tanh(const Tensor& x) {
  return detail::unary("tanh", x, &kernels::tanh_forward, &kernels::tanh_backward,
                       detail::Needs::input);
}

inline Tensor exp(const Tensor& x) {
  return detail::unary("exp", x, &kernels::exp_forward, &kernels::multiply_add,
                       detail::Needs::output);
}

inline Tensor log(const Tensor& x) {
  return detail::unary(
      "log", x,
      [](std::int64_t n, const float* in, float* y) {
        detail::each(n, [&](std::int64_t i) { y[i] = std::log(in[i]); });
      },
      [](std::int64_t n, const float* in, const float* dy, float* dx, float beta) {
        detail::each(n, [&](std::int64_t i) { detail::gather(dy[i] / in[i], beta, dx[i]); });
      },
      detail::Needs::input);
}

inline Tensor sqrt(const Tensor& x) {
  return detail::unary(
      "sqrt", x,
      [](std::int64_t n, const float* in, float* y) {
        detail::each(n, [&](std::int64_t i) { y[i] = std::sqrt(in[i]); });
      },
      [](std::int64_t n, const float* y, const float* dy, float* dx, float beta) {
        detail::each(n, [&](std::int64_t i) { detail::gather(0.5f * dy[i] / y[i], beta, dx[i]); });
      },
      detail::Needs::output);
}

inline Tensor square(const Tensor& x) {
  return detail::unary(
      "square", x,
      [](std::int64_t n, const float* in, float* y) {
        detail::each(n, [&](std::int64_t i) { y[i] = in[i] * in[i]; });
      },
      [](std::int64_t n, const float* in, const float* dy, float* dx, float beta) {
        detail::each(n, [&](std::int64_t i) { detail::gather(2.0f * dy[i] * in[i], beta, dx[i]); });
      },
      detail::Needs::input);
}

}}  // namespace tinyscale

// >> tinyscale/tensor/create.hpp
// Tensors from nothing: constants, counter-based random numbers, a list.
// A random element depends on the seed and its index alone (Philox), never on the layout or order.

namespace tinyscale { inline namespace TINYSCALE_ABI {

inline Tensor full(const Shape& shape, float value) {
  Tensor t(shape);
  std::fill_n(t.data(), t.count(), value);
  return t;
}

inline Tensor zeros(const Shape& shape) { return full(shape, 0.0f); }

inline Tensor ones(const Shape& shape) { return full(shape, 1.0f); }

// Normal numbers of mean 0 and standard deviation `scale`.
inline Tensor randn(const Shape& shape, std::uint64_t seed, float scale = 1.0f) {
  Tensor t(shape);
  detail::fill_normal(t.data(), t.count(), seed, 0, scale);
  return t;
}

// Uniform numbers in [low, high).
inline Tensor uniform(const Shape& shape, std::uint64_t seed, float low = 0.0f, float high = 1.0f) {
  Tensor t(shape);
  detail::fill_uniform(t.data(), t.count(), seed, 0, 1.0f);
  for (std::int64_t i = 0; i < t.count(); ++i) {
    t.data()[i] = low + (high - low) * t.data()[i];
  }
  return t;
}

// The given numbers in row-major order.
inline Tensor tensor(const Shape& shape, const std::vector<float>& values) {
  if (static_cast<std::int64_t>(values.size()) != shape.count()) {
    detail::fail({"tensor: ", values.size(), " values given for shape ", shape.text(),
                  ", which holds ", shape.count()});
  }
  Tensor t(shape);
  float* to = t.data();
  for (std::size_t i = 0; i < values.size(); ++i) {
    to[i] = values[i];
  }
  return t;
}

// 0, 1, ..., n - 1.
inline Tensor arange(Dim n) {
  Tensor t(Shape{n});
  for (std::int64_t i = 0; i < n.value; ++i) {
    t.data()[i] = static_cast<float>(i);
  }
  return t;
}

}}  // namespace tinyscale

// >> tinyscale/tensor/views.hpp
// Moving numbers about. Views share them: reshape, permute, transpose, slice, broadcast_to,
// squeeze, unsqueeze, split. Joining copies them: concat, stack.

namespace tinyscale { inline namespace TINYSCALE_ABI {

namespace detail {

inline int check_dim(const char* op, const Tensor& x, int dim) {
  if (dim < -x.dims() || dim >= x.dims()) {
    fail({op, ": dimension ", dim, " is outside shape ", x.shape().text()});
  }
  return dim < 0 ? dim + x.dims() : dim;
}

// Elements in one step of dimension `dim`.
inline std::int64_t inner_count(const Shape& shape, int dim) {
  std::int64_t n = 1;
  for (int i = dim + 1; i < shape.size(); ++i) {
    n *= shape[i];
  }
  return n;
}

// Copies `blocks` blocks of n floats between two strided places.
inline void copy_blocks(std::int64_t blocks, std::int64_t n, const float* from,
                        std::int64_t from_stride, float* to, std::int64_t to_stride) {
  for (std::int64_t i = 0; i < blocks && n > 0; ++i) {
    std::memcpy(to + i * to_stride, from + i * from_stride,
                static_cast<std::size_t>(n) * sizeof(float));
  }
}

inline void record_copy(const OpScope& scope, const char* name, const Tensor& y) {
  const double n = static_cast<double>(y.count());
  scope.done(name, y.shape(), {n}, {n}, 0, 0);
}

// Joins a view to the graph: its gradient is added to the same view of x's gradient.
template <class View>
inline Tensor attach_view(Tensor y, const char* name, const Tensor& x, View view) {
  if (tracked({&x})) {
    attach(y, name, {&x}, [view, sx = x.slot()](const Tensor& dy) {
      grad_buffer(sx);
      apply_in_place(Arithmetic::add, "add", view(Tensor(sx->shape, sx->grad)), dy);
    });
  }
  return y;
}

// The steps of x under another shape of as many elements, or false when only a copy has them.
inline bool steps_of_reshape(const Tensor& x, const Shape& shape, Strides& out) {
  const Walk runs(x.shape(), x.steps(), x.steps());
  std::int64_t left = 0;  // of the elements of a run
  std::int64_t step = 0;
  int run = runs.shape.size();
  for (int i = shape.size() - 1; i >= 0; --i) {
    if (shape[i] == 1) {
      continue;
    }
    if (left <= 1) {
      --run;
      left = runs.shape[run];
      step = runs.a.of[run];
    }
    if (left % shape[i] != 0) {
      return false;
    }
    out.of[i] = step;
    step *= shape[i];
    left /= shape[i];
  }
  return true;
}

}  // namespace detail

// The same numbers under another shape of the same count; copied only where a view's order asks.
inline Tensor reshape(const Tensor& x, const Shape& shape) {
  x.origin();  // an empty one throws
  if (shape.count() != x.count()) {
    detail::fail({"reshape: shape ", x.shape().text(), " has ", x.count(), " elements, shape ",
                  shape.text(), " needs ", shape.count()});
  }
  detail::Strides steps = detail::row_major(shape);
  if (!x.is_contiguous() && !detail::steps_of_reshape(x, shape, steps)) {
    return reshape(copy(x), shape);
  }
  Tensor y = x.as_strided(shape, steps, 0);
  if (detail::tracked({&x})) {
    detail::attach(y, "reshape", {&x},
                   [sx = x.slot()](const Tensor& dy) { detail::add_grad(sx, dy); });
  }
  return y;
}

// Dimension i of the result is dimension order[i] of x (a view).
inline Tensor permute(const Tensor& x, const List<int>& order) {
  const detail::Strides from = x.steps();
  detail::Strides steps;
  Shape shape;
  List<int> back(order.size());
  int seen = 0;
  for (const int dim : order) {
    const int d = detail::check_dim("permute", x, dim);
    back[static_cast<std::size_t>(d) % order.size()] = shape.size();
    steps.of[shape.size()] = from.of[d];
    shape.push_back(x.dim(d));
    seen |= 1 << d;
  }
  if (shape.size() != x.dims() || seen + 1 != 1 << x.dims()) {
    detail::fail({"permute: ", order.size(), " dimensions given for shape ", x.shape().text(),
                  "; each of its ", x.dims(), " once is right"});
  }
  Tensor y = x.as_strided(shape, steps, 0);
  if (detail::tracked({&x})) {
    detail::attach(y, "permute", {&x}, [back, sx = x.slot()](const Tensor& dy) {
      detail::add_grad(sx, permute(dy, back));
    });
  }
  return y;
}

// Swaps two dimensions (a view).
inline Tensor transpose(const Tensor& x, int dim0, int dim1) {
  const int d0 = detail::check_dim("transpose", x, dim0);
  const int d1 = detail::check_dim("transpose", x, dim1);
  List<int> order;
  for (int i = 0; i < x.dims(); ++i) {
    order.push_back(i == d0 ? d1 : (i == d1 ? d0 : i));
  }
  return permute(x, order);
}

// Elements begin, begin + step, .. below end of one dimension (a view).
inline Tensor slice(const Tensor& x, int dim, Dim begin, Dim end, Dim step = 1) {
  const int d = detail::check_dim("slice", x, dim);
  if (begin.value < 0 || end.value < begin.value || end.value > x.dim(d) || step.value < 1) {
    detail::fail({"slice: ", begin.value, " to ", end.value, " of dimension ", dim,
                  step.value == 1 ? "" : detail::cat(" by ", step.value), " is outside shape ",
                  x.shape().text()});
  }
  detail::Strides steps = x.steps();
  Shape shape = x.shape();
  shape.set(d, end.value == begin.value ? 0 : (end.value - begin.value - 1) / step.value + 1);
  const std::int64_t offset = shape.count() > 0 ? begin.value * steps.of[d] : 0;
  steps.of[d] *= shape[d] > 1 ? step.value : 1;  // a huge step over one element is none
  return detail::attach_view(
      x.as_strided(shape, steps, offset), "slice", x,
      [d, begin, end, step](const Tensor& g) { return slice(g, d, begin, end, step); });
}

// x repeated to fill a shape, dimensions matched from the right (a view with steps of 0).
inline Tensor broadcast_to(const Tensor& x, const Shape& shape) {
  x.origin();  // an empty one throws
  if (detail::broadcast_shape("broadcast_to", x.shape(), shape) != shape) {
    detail::fail({"broadcast_to: shape ", x.shape().text(), " cannot fill ", shape.text(),
                  "; from the right, sizes must be equal or 1"});
  }
  Tensor y = x.as_strided(shape, detail::broadcast_steps(x.shape(), x.steps(), shape), 0);
  if (detail::tracked({&x})) {
    detail::attach(y, "broadcast_to", {&x},
                   [sx = x.slot()](const Tensor& dy) { detail::add_grad_to(sx, dy); });
  }
  return y;
}

// A new dimension of size 1 before dimension `dim`; at the end for dims() or -1.
inline Tensor unsqueeze(const Tensor& x, int dim) {
  const int d = dim < 0 ? dim + x.dims() + 1 : dim;
  if (d < 0 || d > x.dims()) {
    detail::fail({"unsqueeze: dimension ", dim, " of shape ", x.shape().text(), "; -", x.dims() + 1,
                  " to ", x.dims(), " are right"});
  }
  Shape shape;
  for (int i = 0; i <= x.dims(); ++i) {
    if (i == d) {
      shape.push_back(1);
    }
    if (i < x.dims()) {
      shape.push_back(x.dim(i));
    }
  }
  return reshape(x, shape);
}

// Without dimension `dim`, which must be of size 1.
inline Tensor squeeze(const Tensor& x, int dim) {
  const int d = detail::check_dim("squeeze", x, dim);
  Shape shape;
  for (int i = 0; i < x.dims(); ++i) {
    if (i != d) {
      shape.push_back(x.dim(i));
    }
  }
  if (x.dim(d) != 1) {
    detail::fail({"squeeze: dimension ", dim, " of shape ", x.shape().text(), " is not of size 1"});
  }
  return reshape(x, shape);
}

// Parts of `size` along one dimension, the last one smaller where it does not divide (views).
inline std::vector<Tensor> split(const Tensor& x, Dim size, int dim) {
  const int d = detail::check_dim("split", x, dim);
  if (size.value < 1) {
    detail::fail({"split: parts of ", size.value, "; 1 or more is right"});
  }
  std::vector<Tensor> parts;
  for (std::int64_t i = 0; i < x.dim(d); i += size.value) {
    parts.push_back(slice(x, d, i, std::min(x.dim(d), i + size.value)));
  }
  return parts;
}

// Tensors joined along one dimension (a copy); the other sizes must be equal.
inline Tensor concat(const std::vector<Tensor>& parts, int dim) {
  if (parts.empty()) {
    detail::fail({"concat: no tensors given; at least one is right"});
  }
  const int d = detail::check_dim("concat", parts[0], dim);
  const detail::OpScope scope;
  Shape shape = parts[0].shape();
  shape.set(d, 0);
  for (const Tensor& part : parts) {
    Shape same = part.shape();
    if (same.size() == shape.size()) {
      same.set(d, shape[d]);
    }
    if (same != shape) {
      detail::fail({"concat: shapes ", parts[0].shape().text(), " and ", part.shape().text(),
                    " differ outside dimension ", dim});
    }
    shape.set(d, shape[d] + part.dim(d));
  }
  Tensor y(shape);
  std::int64_t end = 0;
  for (const Tensor& part : parts) {
    const Tensor place = slice(y, d, end, end + part.dim(d));
    detail::apply_in_place(detail::Arithmetic::second, "concat", place, part);
    end += part.dim(d);
  }
  detail::record_copy(scope, "concat", y);
  List<const Tensor*> inputs;
  List<detail::Slot> slots;
  List<std::int64_t> sizes;
  bool needed = false;
  for (const Tensor& part : parts) {
    inputs.push_back(&part);
    slots.push_back(part.slot());
    sizes.push_back(part.dim(d));
    needed = needed || detail::tracked({&part});
  }
  if (needed) {
    detail::attach(y, "concat", inputs.data(), inputs.size(), [slots, sizes, d](const Tensor& dy) {
      std::int64_t begin = 0;
      for (std::size_t i = 0; i < slots.size(); ++i) {
        if (slots[i]) {
          detail::add_grad(slots[i], slice(dy, d, begin, begin + sizes[i]));
        }
        begin += sizes[i];
      }
    });
  }
  return y;
}

// Tensors of one shape joined along a new dimension (a copy).
inline Tensor stack(const std::vector<Tensor>& parts, int dim) {
  std::vector<Tensor> rows;
  for (const Tensor& part : parts) {
    rows.push_back(unsqueeze(part, dim));
  }
  return concat(rows, dim);
}

}}  // namespace tinyscale

// >> tinyscale/tensor/reduce.hpp
// Sums, means, maxima and softmax. Sums are gathered in double, in an order that is always the
// same.

namespace tinyscale { inline namespace TINYSCALE_ABI {

// Whether a dimension that was reduced stays, with size 1.
enum class KeepDim { no, yes };

namespace detail {

// The shape of x with size 1 in the given dimensions; `rest` is the shape without them.
inline Shape reduced_shape(const char* op, const Tensor& x, const List<int>& dims, Shape& rest) {
  Shape kept = x.shape();
  unsigned gone = 0;
  for (const int dim : dims) {
    if (dim < -x.dims() || dim >= x.dims()) {
      fail({op, ": dimension ", dim, " is outside shape ", x.shape().text()});
    }
    kept.set(dim, 1);
    gone |= 1U << (dim < 0 ? dim + x.dims() : dim);
  }
  rest = Shape();
  for (int i = 0; i < x.dims(); ++i) {
    if ((gone >> i & 1U) == 0) {
      rest.push_back(x.dim(i));
    }
  }
  return kept;
}

}  // namespace detail

// Sum over the given dimensions.
inline Tensor sum(const Tensor& x, const List<int>& dims, KeepDim keep = KeepDim::no) {
  const detail::OpScope scope;
  x.origin();  // an empty one throws
  Shape rest;
  const Shape kept = detail::reduced_shape("sum", x, dims, rest);
  Tensor y = detail::sum_to(x.detach(), kept);
  y = kept == x.shape() ? y.clone() : y;
  y = Tensor(keep == KeepDim::yes ? kept : rest, y.storage());
  const double n = static_cast<double>(x.count());
  scope.done("sum", x.shape(), {n}, {static_cast<double>(y.count())}, 0, n);
  if (detail::tracked({&x})) {
    detail::attach(y, "sum", {&x}, [kept, sx = x.slot()](const Tensor& dy) {
      const detail::Strides steps =
          detail::broadcast_steps(kept, detail::row_major(kept), sx->shape);
      detail::add_grad(sx, dy.as_strided(sx->shape, steps, 0));
    });
  }
  return y;
}

// Sum over one dimension, which disappears.
inline Tensor sum(const Tensor& x, int dim, KeepDim keep = KeepDim::no) {
  return sum(x, List<int>{dim}, keep);
}

// Sum of all elements, a tensor of shape [].
inline Tensor sum(const Tensor& x) {
  List<int> all;
  for (int i = 0; i < x.dims(); ++i) {
    all.push_back(i);
  }
  return sum(x, all);
}

// Mean of all elements, a tensor of shape [].
inline Tensor mean(const Tensor& x) {
  if (x.count() == 0) {
    detail::fail({"mean: the tensor has no elements, shape ", x.shape().text()});
  }
  return scale(sum(x), 1.0f / static_cast<float>(x.count()));
}

inline Tensor mean(const Tensor& x, const List<int>& dims, KeepDim keep = KeepDim::no) {
  const Tensor total = sum(x, dims, keep);
  if (x.count() == 0) {
    detail::fail({"mean: the tensor has no elements, shape ", x.shape().text()});
  }
  return scale(total, static_cast<float>(total.count()) / static_cast<float>(x.count()));
}

// The largest number along one dimension (NaN if there is one); the first of equal ones gets the
// gradient.
inline Tensor max(const Tensor& x, int dim, KeepDim keep = KeepDim::no) {
  const detail::OpScope scope;
  Shape rest;
  const Shape kept = detail::reduced_shape("max", x, {dim}, rest);
  const int d = dim < 0 ? dim + x.dims() : dim;
  if (x.dim(d) == 0) {
    detail::fail({"max: dimension ", dim, " of shape ", x.shape().text(), " is empty"});
  }
  const std::int64_t step = x.stride(d);
  const std::int64_t n = step == 0 ? 1 : x.dim(d);  // a number repeated is one
  Tensor y(keep == KeepDim::yes ? kept : rest);
  List<std::int64_t> place(static_cast<std::size_t>(y.count()));  // along the dimension
  const detail::Walk plan(kept, detail::row_major(kept), x.steps());
  plan.rows([&](std::int64_t first, std::int64_t, std::int64_t at) {
    for (std::int64_t j = 0; j < plan.columns(); ++j) {
      const float* const in = x.origin() + at + j * plan.step_b();
      std::int64_t best = 0;
      for (std::int64_t i = 1; i < n; ++i) {
        const bool nan = detail::is_nan(static_cast<double>(in[best * step]));
        best = !nan && !(in[i * step] <= in[best * step]) ? i : best;
      }
      y.data()[first + j] = in[best * step];
      place[static_cast<std::size_t>(first + j)] = best;
    }
  });
  const double elements = static_cast<double>(x.count());
  scope.done("max", x.shape(), {elements}, {static_cast<double>(y.count())}, 0, elements);
  if (detail::tracked({&x})) {
    detail::attach(y, "max", {&x}, [kept, d, place, sx = x.slot()](const Tensor& dy) {
      float* const dx = detail::grad_buffer(sx);
      const detail::Strides steps = detail::row_major(sx->shape);
      const detail::Walk rows(kept, detail::row_major(kept), steps);
      rows.rows([&](std::int64_t first, std::int64_t, std::int64_t at) {
        for (std::int64_t j = 0; j < rows.columns(); ++j) {
          const std::int64_t row = place[static_cast<std::size_t>(first + j)];
          dx[at + j * rows.step_b() + row * steps.of[d]] += dy.data()[first + j];
        }
      });
    });
  }
  return y;
}

namespace detail {

inline void check_last_dim(const char* op, const Tensor& x) {
  if (x.dims() < 1 || x.dim(-1) < 1) {
    fail({op, ": shape ", x.shape().text(), " has no last dimension to work along"});
  }
}

}  // namespace detail

// exp(x) / sum(exp(x)) along the last dimension.
inline Tensor softmax(const Tensor& x) {
  detail::check_last_dim("softmax", x);
  if (!x.is_contiguous()) {
    return softmax(contiguous(x));
  }
  const detail::OpScope scope;
  const std::int64_t columns = x.dim(-1);
  const std::int64_t rows = x.count() / columns;
  Tensor y(x.shape());
  kernels::softmax_forward(rows, columns, x.data(), y.data());
  scope.done_unary("softmax", "softmax", x.shape());
  if (detail::tracked({&x})) {
    detail::attach(
        y, "softmax", {&x}, [rows, columns, ky = detail::Kept(y), sx = x.slot()](const Tensor& dy) {
          const detail::OpScope backward;
          float beta = 0;
          float* const dx = detail::grad_buffer(sx, beta);
          kernels::softmax_backward(rows, columns, ky.data(), dy.data(), dx, beta);
          backward.done_unary("softmax backward", "softmax", dy.shape(), &VectorCost::backward);
        });
  }
  return y;
}

// log(softmax(x)) along the last dimension.
inline Tensor log_softmax(const Tensor& x) {
  detail::check_last_dim("log_softmax", x);
  if (!x.is_contiguous()) {
    return log_softmax(contiguous(x));
  }
  const detail::OpScope scope;
  const std::int64_t columns = x.dim(-1);
  Tensor y(x.shape());
  for (std::int64_t first = 0; first < x.count(); first += columns) {
    const float* in = x.data() + first;
    const float top = *std::max_element(in, in + columns);
    double total = 0;
    for (std::int64_t j = 0; j < columns; ++j) {
      total += std::exp(static_cast<double>(in[j] - top));
    }
    const float shift = top + static_cast<float>(std::log(total));
    for (std::int64_t j = 0; j < columns; ++j) {
      y.data()[first + j] = in[j] - shift;
    }
  }
  scope.done_unary("log_softmax", "log_softmax", x.shape());
  if (detail::tracked({&x})) {
    detail::attach(y, "log_softmax", {&x},
                   [columns, ky = detail::Kept(y), sx = x.slot()](const Tensor& dy) {
                     float* dx = detail::grad_buffer(sx);
                     for (std::int64_t first = 0; first < dy.count(); first += columns) {
                       double total = 0;
                       for (std::int64_t j = 0; j < columns; ++j) {
                         total += static_cast<double>(dy.data()[first + j]);
                       }
                       for (std::int64_t j = first; j < first + columns; ++j) {
                         dx[j] += dy.data()[j] - static_cast<float>(total) * std::exp(ky.data()[j]);
                       }
                     }
                   });
  }
  return y;
}

}}  // namespace tinyscale

// >> tinyscale/tensor/matmul.hpp
// Matrix products: 2 M K N flops. x may have any leading dimensions; they are flattened into M.
// A thread-local hook lets a floor above run the forward products on an emulated chip.

namespace tinyscale { inline namespace TINYSCALE_ABI {

namespace detail {

// Product of x [M, K] and w [K, N], given in place of the host kernel's.
using MatmulHook = std::function<Tensor(const Tensor& x, const Tensor& w)>;

inline const MatmulHook*& matmul_hook() {
  static thread_local struct { const MatmulHook* hook; } own;
  return own.hook;
}

using kernels::Trans;

// A matrix as the kernel reads it: rows or columns without gaps, any step from one to the next.
struct Matrix {
  Tensor own;  // keeps the numbers, or a copy of those that lie in no such order
  Trans trans = Trans::no;
  std::int64_t ld = 0;
};

// The last two dimensions of x (of a matrix in row-major order any shape will do); `trans` turns
// them.
inline Matrix matrix_of(const Tensor& x, Trans trans, std::int64_t columns) {
  Matrix m{x, trans, columns};
  if (!x.is_contiguous()) {
    const bool rows = x.stride(-1) == 1 && x.stride(-2) >= x.dim(-1);
    const bool turned = x.stride(-2) == 1 && x.stride(-1) >= x.dim(-2);
    if (rows) {
      m.ld = x.stride(-2);
    } else if (turned) {
      m.trans = trans == Trans::no ? Trans::yes : Trans::no;
      m.ld = x.stride(-1);
    } else {
      m.own = x.clone();
    }
  }
  return m;
}

// One product in the format that the context asks for.
inline void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const Matrix& a,
                     const float* a_data, const Matrix& b, const float* b_data, float beta,
                     float* y) {
  if (context().matmul_format == DType::bf16) {
    kernels::gemm_bf16(a.trans, b.trans, m, n, k, a_data, a.ld, b_data, b.ld, beta, y, n);
  } else {
    kernels::gemm(a.trans, b.trans, m, n, k, a_data, a.ld, b_data, b.ld, beta, y, n);
  }
}

// y = op(a) op(b) (+ y), recorded; M, K, N are those of the product.
inline void product(const char* name, Trans ta, Trans tb, std::int64_t m, std::int64_t n,
                    std::int64_t k, const Tensor& a, const Tensor& b, float beta, float* y) {
  const OpScope scope;
  const Matrix ma = matrix_of(a, ta, ta == Trans::no ? k : m);
  const Matrix mb = matrix_of(b, tb, tb == Trans::no ? n : k);
  multiply(m, n, k, ma, ma.own.origin(), mb, mb.own.origin(), beta, y);
  if (context().profile != nullptr) {
    const double dm = static_cast<double>(m);
    const double dn = static_cast<double>(n);
    const double dk = static_cast<double>(k);
    scope.done(name, Shape{m, k, n}, {dm * dk, dk * dn}, {dm * dn}, 2 * dm * dk * dn, 0,
               context().matmul_format);
  }
}

struct Matmul {
  std::int64_t m = 0;
  std::int64_t k = 0;
  std::int64_t n = 0;
  Shape shape;  // of the result
};

// w is [K, N], or [N, K] when transposed.
inline Matmul matmul_sizes(const char* op, const Tensor& x, const Tensor& w, Trans transposed) {
  if (x.dims() < 1 || w.dims() != 2) {
    fail({op, ": x is ", x.shape().text(), ", w is ", w.shape().text(),
          "; x needs at least one dimension and w exactly two"});
  }
  Matmul sizes;
  sizes.k = x.dim(-1);
  sizes.n = w.dim(transposed == Trans::no ? 1 : 0);
  const std::int64_t inner = w.dim(transposed == Trans::no ? 0 : 1);
  if (sizes.k != inner) {
    fail({op, ": inner sizes differ: x is ", x.shape().text(), ", w is ", w.shape().text(),
          "; x columns must equal w ", transposed == Trans::no ? "rows" : "columns"});
  }
  sizes.m = 1;
  for (int i = 0; i + 1 < x.dims(); ++i) {
    sizes.shape.push_back(x.dim(i));
    sizes.m *= x.dim(i);
  }
  sizes.shape.push_back(sizes.n);
  return sizes;
}

inline Tensor matmul_any(const char* name, const Tensor& x, const Tensor& w, Trans tw,
                         const Tensor& bias = Tensor()) {
  const Matmul s = matmul_sizes(name, x, w, tw);
  if (!x.is_contiguous() && x.dims() != 2) {
    return reshape(matmul_any(name, reshape(x, {s.m, s.k}), w, tw, bias), s.shape);
  }
  x.origin();  // an empty one throws
  w.origin();
  const MatmulHook* const hook = matmul_hook();
  if (hook != nullptr && tracked({&x, &w, &bias})) {
    fail({name, ": no gradient flows through an emulated chip; run it under a NoGrad"});
  }
  Tensor y =
      hook == nullptr ? Tensor(s.shape) : (*hook)(x, tw == Trans::no ? w : transpose(w, 0, 1));
  if (hook == nullptr) {
    product("matmul", Trans::no, tw, s.m, s.n, s.k, x, w, 0.0f, y.data());
  }
  if (bias.defined()) {
    const OpScope scope;
    apply_in_place(Arithmetic::add, name, y, bias);
    record_arithmetic(scope, "add", "add", y, bias, y.shape(), &VectorCost::forward);
  }
  if (tracked({&x, &w, &bias})) {
    attach(y, name, {&x, &w, &bias},
           [s, tw, kx = w.slot() ? Kept(x) : Kept(), kw = x.slot() ? Kept(w) : Kept(),
            sx = x.slot(), sw = w.slot(), sb = bias.slot()](const Tensor& dy) {
             const Trans other = tw == Trans::no ? Trans::yes : Trans::no;
             float beta = 0;
             if (sx) {  // dx = dy w^T
               float* dx = grad_buffer(sx, beta);
               product("matmul dx", Trans::no, other, s.m, s.k, s.n, dy, kw, beta, dx);
             }
             if (sw) {  // dw = x^T dy, or dy^T x
               float* dw = grad_buffer(sw, beta);
               const bool plain = tw == Trans::no;
               product("matmul dw", Trans::yes, Trans::no, plain ? s.k : s.n, plain ? s.n : s.k,
                       s.m, plain ? kx : dy, plain ? dy : kx, beta, dw);
             }
             if (sb) {
               add_grad_to(sb, dy);
             }
           });
  }
  return y;
}

inline Shape leading(const Shape& shape) {
  Shape lead;
  for (int i = 0; i + 2 < shape.size(); ++i) {
    lead.push_back(shape[i]);
  }
  return lead;
}

// x [.., M, K] times w [.., K, N]: one product for each of the leading dimensions, which are
// repeated to one another.
inline Tensor matmul_batched(const Tensor& x, const Tensor& w) {
  if (x.dims() < 2 || w.dims() < 2 || x.dim(-1) != w.dim(-2)) {
    fail({"matmul: x is ", x.shape().text(), ", w is ", w.shape().text(),
          "; x [.., M, K] and w [.., K, N] are right"});
  }
  const OpScope scope;
  const std::int64_t m = x.dim(-2);
  const std::int64_t k = x.dim(-1);
  const std::int64_t n = w.dim(-1);
  const Shape batch = broadcast_shape("matmul", leading(x.shape()), leading(w.shape()));
  Shape shape = batch;
  shape.push_back(m);
  shape.push_back(n);
  Tensor y(shape);
  const Matrix mx = matrix_of(x, Trans::no, k);
  const Matrix mw = matrix_of(w, Trans::no, n);
  const Walk plan(batch, broadcast_steps(leading(x.shape()), mx.own.steps(), batch),
                  broadcast_steps(leading(w.shape()), mw.own.steps(), batch));
  plan.rows([&](std::int64_t first, std::int64_t at_x, std::int64_t at_w) {
    for (std::int64_t j = 0; j < plan.columns(); ++j) {
      multiply(m, n, k, mx, mx.own.origin() + at_x + j * plan.step_a(), mw,
               mw.own.origin() + at_w + j * plan.step_b(), 0.0f, y.data() + (first + j) * m * n);
    }
  });
  const double products = static_cast<double>(batch.count());
  scope.done("matmul", shape, {static_cast<double>(x.count()), static_cast<double>(w.count())},
             {static_cast<double>(y.count())},
             2 * products * static_cast<double>(m) * static_cast<double>(k * n), 0,
             context().matmul_format);
  if (tracked({&x, &w})) {
    attach(y, "matmul", {&x, &w},
           [kx = w.slot() ? Kept(x) : Kept(), kw = x.slot() ? Kept(w) : Kept(), sx = x.slot(),
            sw = w.slot()](const Tensor& dy) {
             if (sx) {
               add_grad_to(sx, matmul_batched(dy, transpose(kw, -1, -2)));
             }
             if (sw) {
               add_grad_to(sw, matmul_batched(transpose(kx, -1, -2), dy));
             }
           });
  }
  return y;
}

}  // namespace detail

// x [.., M, K] times w [K, N] gives [.., M, N], times w [.., K, N] a product for each of the
// leading dimensions. Throws when the inner sizes differ.
inline Tensor matmul(const Tensor& x, const Tensor& w) {
  if (w.dims() > 2) {
    return detail::matmul_batched(x, w);
  }
  return detail::matmul_any("matmul", x, w, kernels::Trans::no);
}

// x [.., M, K] times the transpose of w [N, K]: the linear layer with weights stored [out, in].
inline Tensor matmul_transposed(const Tensor& x, const Tensor& w) {
  return detail::matmul_any("matmul_transposed", x, w, kernels::Trans::yes);
}

// x w^T + bias in one op; w [N, K], bias [N].
inline Tensor linear(const Tensor& x, const Tensor& w, const Tensor& bias) {
  if (bias.defined() && (bias.dims() != 1 || w.dims() != 2 || bias.dim(0) != w.dim(0))) {
    detail::fail({"linear: w is ", w.shape().text(), ", bias is ", bias.shape().text(),
                  "; w [N, K] and bias [N] are right"});
  }
  return detail::matmul_any("linear", x, w, kernels::Trans::yes, bias);
}

}}  // namespace tinyscale

// >> tinyscale/tensor/attend.hpp
// Attention over keys and values (arXiv 1706.03762), grouped-query (arXiv 2305.13245), and rotary
// positions (arXiv 2104.09864). No [T, S] matrix outlives a row of it: the backward pass
// recomputes from the log-sum-exp of each row (arXiv 2205.14135).

namespace tinyscale { inline namespace TINYSCALE_ABI {

// causal: query i of T sees key j of S if j <= i + (S - T), so queries end where keys end.
enum class Mask { none, causal };

namespace detail {

inline kernels::AttentionShape attention_shape(const Tensor& q, const Tensor& k, const Tensor& v,
                                               std::int64_t heads, std::int64_t kv_heads,
                                               Mask mask) {
  if (q.dims() != 3 || k.dims() != 3 || k.shape() != v.shape() || q.dim(0) != k.dim(0) ||
      heads < 1 || kv_heads < 1 || heads % kv_heads != 0 || q.dim(2) % heads != 0 ||
      k.dim(2) != q.dim(2) / heads * kv_heads || (mask == Mask::causal && k.dim(1) < q.dim(1))) {
    fail({"attention: q is ", q.shape().text(), ", k is ", k.shape().text(), ", v is ",
          v.shape().text(), " with ", heads, " heads and ", kv_heads,
          " kv heads; right is q [B, T, heads K], k and v [B, S, kv_heads K], heads a ",
          "multiple of kv_heads, and S >= T when causal"});
  }
  kernels::AttentionShape s;
  s.batch = q.dim(0);
  s.queries = q.dim(1);
  s.keys = k.dim(1);
  s.heads = heads;
  s.kv_heads = kv_heads;
  s.head_size = q.dim(2) / heads;
  s.q_stride = q.stride(1);
  s.k_stride = k.stride(1);
  s.v_stride = v.stride(1);
  s.o_stride = q.dim(2);
  s.q_batch = q.stride(0);
  s.k_batch = k.stride(0);
  s.v_batch = v.stride(0);
  s.o_batch = q.dim(1) * q.dim(2);
  s.causal = mask == Mask::causal ? 1 : 0;
  s.causal_offset = k.dim(1) - q.dim(1);
  return s;
}

// Pairs (query, key) that are really multiplied, over all heads and sequences.
inline double attention_pairs(const kernels::AttentionShape& s) {
  const double t = static_cast<double>(s.queries);
  const double keys = static_cast<double>(s.keys);
  const double pairs = s.causal ? t * (keys - t) + t * (t + 1) / 2 : t * keys;
  return pairs * static_cast<double>(s.batch * s.heads);
}

inline void record_attention(const OpScope& scope, const char* name,
                             const kernels::AttentionShape& s, const Tensor& q, const Tensor& k,
                             double products, double reads_of_q) {
  if (context().profile == nullptr) {
    return;
  }
  const double pairs = attention_pairs(s);
  const double nq = static_cast<double>(q.count());
  const double nk = static_cast<double>(k.count());
  scope.done(name, q.shape(), {reads_of_q * nq, nk, nk}, {nq},
             2 * products * pairs * static_cast<double>(s.head_size),
             vector_cost("softmax", pairs, &VectorCost::forward));
}

// Where the gradients of q, k, v go: `apart` holds those that nobody asked for or that share a
// slot with one before. 0: written, where each is the first; 1: added.
inline float gradient_places(const Slot (&slots)[3], const Tensor* const (&inputs)[3],
                             Tensor (&apart)[3], float* (&to)[3]) {
  bool first = true;
  for (const Slot& slot : slots) {
    first = first && (!slot || !slot->grad);
  }
  for (int i = 0; i < 3; ++i) {
    bool shared = !slots[i];
    for (int j = 0; j < i; ++j) {
      shared = shared || slots[i].get() == slots[j].get();
    }
    float beta = 0;
    if (shared) {
      apart[i] = zeros(inputs[i]->shape());
      to[i] = apart[i].data();
    } else {
      to[i] = first ? grad_buffer(slots[i], beta) : grad_buffer(slots[i]);
    }
  }
  return first ? 0.0f : 1.0f;
}

}  // namespace detail

// q [B, T, heads K], k and v [B, S, kv_heads K] give [B, T, heads K]; scores divided by sqrt(K).
inline Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, std::int64_t heads,
                        std::int64_t kv_heads, Mask mask) {
  const kernels::AttentionShape s = detail::attention_shape(q, k, v, heads, kv_heads, mask);
  const bool graph = detail::tracked({&q, &k, &v});  // whose gradients are written row after row
  for (const Tensor* x : {&q, &k, &v}) {
    if (!x->is_contiguous() && (graph || x->stride(2) != 1)) {
      return attention(contiguous(q), contiguous(k), contiguous(v), heads, kv_heads, mask);
    }
  }
  const detail::OpScope scope;
  Tensor y(q.shape());
  Tensor lse(Shape{s.batch, heads, s.queries});
  kernels::attention_forward(s, q.origin(), k.origin(), v.origin(), y.data(), lse.data());
  detail::record_attention(scope, "attention", s, q, k, 2, 1);
  if (graph) {
    detail::attach(
        y, "attention", {&q, &k, &v},
        [s, lse, kq = detail::Kept(q), kk = detail::Kept(k), kv = detail::Kept(v),
         ky = detail::Kept(y), sq = q.slot(), sk = k.slot(), sv = v.slot()](const Tensor& dy) {
          const detail::OpScope backward;
          const detail::Slot slots[3] = {sq, sk, sv};
          const Tensor* const inputs[3] = {&kq, &kk, &kv};
          Tensor apart[3];
          float* to[3];
          const float beta = detail::gradient_places(slots, inputs, apart, to);
          kernels::attention_backward(s, kq.data(), kk.data(), kv.data(), ky.data(), lse.data(),
                                      dy.data(), to[0], to[1], to[2], beta);
          for (int i = 0; i < 3; ++i) {
            if (slots[i] && apart[i].defined()) {
              detail::add_grad(slots[i], apart[i]);
            }
          }
          detail::record_attention(backward, "attention backward", s, kq, kk, 5, 3);
        });
  }
  return y;
}

// Rotates pairs of x [B, T, heads K] by (first_position + t) theta^(-2i/K).
inline Tensor rope(const Tensor& x, std::int64_t head_size, std::int64_t first_position,
                   float theta = 10000.0f, RopePairs pairs = RopePairs::interleaved) {
  if (x.dims() != 3 || head_size < 2 || head_size % 2 != 0 || x.dim(2) % head_size != 0) {
    detail::fail({"rope: x is ", x.shape().text(), " with head size ", head_size,
                  "; right is [B, T, heads K] with an even K"});
  }
  if (!(theta > 0.0f) || !detail::is_finite(static_cast<double>(theta))) {
    detail::fail(
        {"rope: theta is ", static_cast<double>(theta), "; a finite number above 0 is right"});
  }
  if (!x.is_contiguous()) {
    return rope(contiguous(x), head_size, first_position, theta, pairs);
  }
  const detail::OpScope scope;
  kernels::RopeShape shape;
  shape.batch = x.dim(0);
  shape.tokens = x.dim(1);
  shape.heads = x.dim(2) / head_size;
  shape.head_size = head_size;
  shape.first_position = first_position;
  shape.theta = theta;
  shape.pairs = pairs;
  Tensor y(x.shape());
  kernels::rope(shape, kernels::RopeTurn::forward, x.data(), y.data());
  scope.done_unary("rope", "rope", x.shape());
  if (detail::tracked({&x})) {
    detail::attach(y, "rope", {&x}, [shape, sx = x.slot()](const Tensor& dy) {
      const detail::OpScope backward;
      kernels::rope_backward(shape, dy.data(), detail::grad_buffer(sx));
      backward.done_unary("rope backward", "rope", dy.shape(), &VectorCost::backward);
    });
  }
  return y;
}

}}  // namespace tinyscale

// >> tinyscale/tensor/normalize.hpp
// Layer norm (arXiv 1607.06450), RMS norm (arXiv 1910.07467) along the last dimension, and dropout.

namespace tinyscale { inline namespace TINYSCALE_ABI {

namespace detail {

inline void check_norm(const char* op, const char* what, const Tensor& x, const Tensor& w) {
  check_last_dim(op, x);
  if (w.dims() != 1 || w.dim(0) != x.dim(-1)) {
    fail({op, ": x is ", x.shape().text(), ", ", what, " is ", w.shape().text(), "; ", what,
          " must be [", x.dim(-1), "]"});
  }
}

inline void check_epsilon(const char* op, float epsilon) {
  const double value = static_cast<double>(epsilon);
  if (!(value >= 0) || !is_finite(value)) {
    fail({op, ": epsilon is ", value, "; a finite number from 0 is right"});
  }
}

inline float* grad_or_null(const Slot& slot) { return slot ? grad_buffer(slot) : nullptr; }

// Where a gradient must be written although nobody asked for it.
inline Tensor scratch_like(const Slot& slot, const Shape& shape) {
  return slot ? Tensor() : zeros(shape);
}

}  // namespace detail

// (x - mean) / sqrt(var + epsilon) * weight + bias; weight [D], bias [D] or empty.
inline Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                         float epsilon = 1e-5f) {
  const bool dense = x.is_contiguous() && weight.is_contiguous() && bias.is_contiguous();
  if (!dense) {
    return layer_norm(contiguous(x), contiguous(weight), contiguous(bias), epsilon);
  }
  detail::check_norm("layer_norm", "weight", x, weight);
  detail::check_epsilon("layer_norm", epsilon);
  if (bias.defined()) {
    detail::check_norm("layer_norm", "bias", x, bias);
  }
  const detail::OpScope scope;
  const std::int64_t columns = x.dim(-1);
  const std::int64_t rows = x.count() / columns;
  Tensor y(x.shape());
  Tensor mean(Shape{rows});
  Tensor rstd(Shape{rows});
  kernels::layer_norm_forward(rows, columns, epsilon, x.data(), weight.data(),
                              bias.defined() ? bias.data() : nullptr, y.data(), mean.data(),
                              rstd.data());
  scope.done_unary("layer_norm", "layer_norm", x.shape());
  if (detail::tracked({&x, &weight, &bias})) {
    detail::attach(y, "layer_norm", {&x, &weight, &bias},
                   [=, kx = detail::Kept(x), kw = detail::Kept(weight), sx = x.slot(),
                    sw = weight.slot(), sb = bias.slot()](const Tensor& dy) {
                     const detail::OpScope backward;
                     Tensor unused_x = detail::scratch_like(sx, kx.shape());
                     Tensor unused_w = detail::scratch_like(sw, kw.shape());
                     kernels::layer_norm_backward(
                         rows, columns, kx.data(), kw.data(), mean.data(), rstd.data(), dy.data(),
                         sx ? detail::grad_buffer(sx) : unused_x.data(),
                         sw ? detail::grad_buffer(sw) : unused_w.data(), detail::grad_or_null(sb));
                     backward.done_unary("layer_norm backward", "layer_norm", dy.shape(),
                                         &VectorCost::backward);
                   });
  }
  return y;
}

// x / sqrt(mean(x^2) + epsilon) * weight.
inline Tensor rms_norm(const Tensor& x, const Tensor& weight, float epsilon = 1e-5f) {
  if (!x.is_contiguous() || !weight.is_contiguous()) {
    return rms_norm(contiguous(x), contiguous(weight), epsilon);
  }
  detail::check_norm("rms_norm", "weight", x, weight);
  detail::check_epsilon("rms_norm", epsilon);
  const detail::OpScope scope;
  const std::int64_t columns = x.dim(-1);
  const std::int64_t rows = x.count() / columns;
  Tensor y(x.shape());
  Tensor rstd(Shape{rows});
  kernels::rms_norm_forward(rows, columns, epsilon, x.data(), weight.data(), y.data(), rstd.data());
  scope.done_unary("rms_norm", "rms_norm", x.shape());
  if (detail::tracked({&x, &weight})) {
    detail::attach(
        y, "rms_norm", {&x, &weight},
        [=, kx = detail::Kept(x), kw = detail::Kept(weight), sx = x.slot(),
         sw = weight.slot()](const Tensor& dy) {
          const detail::OpScope backward;
          Tensor unused_x = detail::scratch_like(sx, kx.shape());
          Tensor unused_w = detail::scratch_like(sw, kw.shape());
          kernels::rms_norm_backward(rows, columns, kx.data(), kw.data(), rstd.data(), dy.data(),
                                     sx ? detail::grad_buffer(sx) : unused_x.data(),
                                     sw ? detail::grad_buffer(sw) : unused_w.data());
          backward.done_unary("rms_norm backward", "rms_norm", dy.shape(), &VectorCost::backward);
        });
  }
  return y;
}

// Keeps an element with probability 1 - p and divides it by that; the mask is a function of the
// seed and the element's index in the whole tensor, so it is the same in every layout; a shard
// gives the index of its first element.
inline Tensor dropout(const Tensor& x, float p, std::uint64_t seed, std::int64_t first = 0) {
  if (!(p >= 0.0f && p < 1.0f)) {
    detail::fail({"dropout: p is ", static_cast<double>(p), "; right is 0 <= p < 1"});
  }
  x.origin();  // an empty one throws
  if (p <= 0.0f) {
    return x;
  }
  Tensor mask(x.shape());
  detail::fill_uniform(mask.data(), x.count(), seed, static_cast<std::uint64_t>(first), 1.0f);
  for (std::int64_t i = 0; i < x.count(); ++i) {
    mask.data()[i] = mask.data()[i] >= p ? 1.0f / (1.0f - p) : 0.0f;
  }
  return mul(x, mask);
}

}}  // namespace tinyscale

// >> tinyscale/tensor/tokens.hpp
// Where a model meets text: the embedding lookup and the cross-entropy of the next token.

namespace tinyscale { inline namespace TINYSCALE_ABI {

// Rows of table [V, D] by number: ids of shape `ids_shape` give [ids_shape.., D].
inline Tensor embedding(const Tensor& table, const std::vector<std::int32_t>& ids,
                        const Shape& ids_shape) {
  if (table.dims() != 2 || static_cast<std::int64_t>(ids.size()) != ids_shape.count()) {
    detail::fail({"embedding: table is ", table.shape().text(), ", ", ids.size(), " ids for shape ",
                  ids_shape.text(),
                  "; the table needs two dimensions and the ids one per element"});
  }
  if (!table.is_contiguous()) {
    return embedding(contiguous(table), ids, ids_shape);
  }
  const detail::OpScope scope;
  const std::int64_t width = table.dim(1);
  Shape shape = ids_shape;
  shape.push_back(width);
  Tensor y(shape);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= table.dim(0)) {
      detail::fail({"embedding: id ", ids[i], " at position ", i, " is outside the table's ",
                    table.dim(0), " rows"});
    }
    const float* row = table.data() + ids[i] * width;
    float* to = y.data() + static_cast<std::int64_t>(i) * width;
    for (std::int64_t k = 0; k < width; ++k) {
      to[k] = row[k];
    }
  }
  const double n = static_cast<double>(y.count());
  scope.done("embedding", shape, {n, static_cast<double>(ids.size())}, {n}, 0, 0);
  if (detail::tracked({&table})) {
    detail::attach(y, "embedding", {&table},
                   [kept = List<std::int32_t>(ids), width, st = table.slot()](const Tensor& dy) {
                     float* out = detail::grad_buffer(st);
                     for (std::size_t i = 0; i < kept.size(); ++i) {
                       float* const to = out + kept[i] * width;
                       kernels::add(width, to, dy.data() + static_cast<std::int64_t>(i) * width,
                                    to);
                     }
                   });
  }
  return y;
}

namespace detail {

// How many rows count: those whose target is not -1.
inline double check_targets(const char* op, const std::vector<std::int32_t>& targets,
                            const Shape& logits, std::int64_t rows) {
  if (static_cast<std::int64_t>(targets.size()) != rows) {
    fail({op, ": logits are ", logits.text(), ", so ", rows, " targets are right; given ",
          targets.size()});
  }
  std::int64_t counted = 0;
  for (const std::int32_t target : targets) {
    if (target < -1 || target >= logits[-1]) {
      fail({op, ": target ", target, " is outside the ", logits[-1],
            " classes (-1 leaves a row out)"});
    }
    counted += target >= 0 ? 1 : 0;
  }
  return static_cast<double>(std::max<std::int64_t>(counted, 1));
}

// Gives a gradient that was made for dy = 1 away.
inline void add_scaled_grad(const Slot& slot, Tensor& dx, float dy) {
  if (slot) {
    if (dy != 1.0f) {
      kernels::scale(dx.count(), dy, dx.data(), dx.data());
    }
    add_grad(slot, dx);
    dx = Tensor();
  }
}

// The product, the loss, and what of the backward pass is done with them.
inline void record_linear_loss(const OpScope& scope, const Matmul& s, std::int64_t dx,
                               std::int64_t dw) {
  if (context().profile == nullptr) {
    return;
  }
  const double m = static_cast<double>(s.m);
  const double n = static_cast<double>(s.n);
  const double k = static_cast<double>(s.k);
  const int products = 1 + (dx > 0 ? 1 : 0) + (dw > 0 ? 1 : 0);
  double flops = vector_cost("cross_entropy", m * n, &VectorCost::forward);
  if (products > 1) {
    flops += vector_cost("cross_entropy", m * n, &VectorCost::backward);
  }
  scope.done("linear_cross_entropy", Shape{s.m, s.k, s.n}, {m * k, n * k, m},
             {m, static_cast<double>(dx), static_cast<double>(dw)}, 2 * products * m * n * k,
             flops);
}

inline Tensor mean_loss(const Tensor& losses, double n) {
  double total = 0;
  for (std::int64_t i = 0; i < losses.count(); ++i) {
    total += static_cast<double>(losses.data()[i]);
  }
  return full(Shape{}, static_cast<float>(total / n));
}

}  // namespace detail

// Mean of -log softmax(logits)[target] over the rows of logits [.., V]; a target of -1 is left out.
inline Tensor cross_entropy(const Tensor& logits, const std::vector<std::int32_t>& targets) {
  detail::check_last_dim("cross_entropy", logits);
  const std::int64_t vocabulary = logits.dim(-1);
  const std::int64_t rows = logits.count() / vocabulary;
  const double n = detail::check_targets("cross_entropy", targets, logits.shape(), rows);
  if (!logits.is_contiguous()) {
    return cross_entropy(contiguous(logits), targets);
  }
  const detail::OpScope scope;
  Tensor losses(Shape{rows});
  Tensor lse(Shape{rows});
  kernels::cross_entropy_forward(rows, vocabulary, logits.data(), targets.data(), losses.data(),
                                 lse.data());
  Tensor y = detail::mean_loss(losses, n);
  const double elements = static_cast<double>(logits.count());
  scope.done("cross_entropy", logits.shape(), {elements, static_cast<double>(rows)},
             {static_cast<double>(rows)}, 0,
             vector_cost("cross_entropy", elements, &VectorCost::forward));
  if (detail::tracked({&logits})) {
    detail::attach(y, "cross_entropy", {&logits},
                   [=, known = List<std::int32_t>(targets), kl = detail::Kept(logits),
                    sl = logits.slot()](const Tensor& dy) {
                     const detail::OpScope backward;
                     float beta = 0;
                     float* const dx = detail::grad_buffer(sl, beta);
                     kernels::cross_entropy_backward(rows, vocabulary, kl.data(), lse.data(),
                                                     known.data(),
                                                     static_cast<float>(dy.item() / n), dx, beta);
                     backward.done_unary("cross_entropy backward", "cross_entropy", kl.shape(),
                                         &VectorCost::backward);
                   });
  }
  return y;
}

// cross_entropy of the logits x w^T, x [.., D], w [V, D], which never exist for all rows at once.
// Where gradients will be asked for they are made here, beside the loss, while the logits are.
inline Tensor linear_cross_entropy(const Tensor& x, const Tensor& w,
                                   const std::vector<std::int32_t>& targets) {
  const detail::Matmul s = detail::matmul_sizes("linear_cross_entropy", x, w, kernels::Trans::yes);
  const double n = detail::check_targets("linear_cross_entropy", targets, s.shape, s.m);
  if (context().matmul_format != DType::f32 || s.k < 1 || s.n < 1) {
    return cross_entropy(matmul_transposed(x, w), targets);
  }
  const Tensor rows = contiguous(x);
  const Tensor columns = contiguous(w);
  const detail::OpScope scope;
  const bool graph = detail::tracked({&rows, &columns});
  Tensor losses(Shape{s.m});
  Tensor lse(Shape{s.m});
  Tensor dx, dw;
  if (graph && rows.slot()) {
    dx = Tensor(rows.shape());
  }
  if (graph && columns.slot()) {
    dw = Tensor(columns.shape(), MemoryKind::gradient);
  }
  kernels::LinearCrossEntropy all{s.m,
                                  s.k,
                                  s.n,
                                  rows.data(),
                                  columns.data(),
                                  targets.data(),
                                  static_cast<float>(1.0 / n),
                                  dx.defined() ? dx.data() : nullptr,
                                  dw.defined() ? dw.data() : nullptr,
                                  0.0f,
                                  0.0f};
  if (graph) {
    kernels::linear_cross_entropy(all, losses.data(), lse.data());
  } else {
    kernels::linear_cross_entropy_forward(s.m, s.k, s.n, all.x, all.w, all.targets, losses.data(),
                                          lse.data());
  }
  Tensor y = detail::mean_loss(losses, n);
  detail::record_linear_loss(scope, s, dx.count(), dw.count());
  if (graph) {
    detail::attach(y, "linear_cross_entropy", {&rows, &columns},
                   [dx, dw, sx = rows.slot(), sw = columns.slot()](const Tensor& dy) mutable {
                     detail::add_scaled_grad(sx, dx, dy.item());
                     detail::add_scaled_grad(sw, dw, dy.item());
                   });
  }
  return y;
}

}}  // namespace tinyscale

// >> tinyscale/tensor/choose.hpp
// Choosing numbers: comparisons (1 where true, else 0), where, maxima of two, rows and elements by
// number, and writing in place where no gradient needs what was there.

namespace tinyscale { inline namespace TINYSCALE_ABI {

// 1 where the comparison holds, else 0; a NaN compares to nothing. They carry no gradient.
inline Tensor less(const Tensor& a, const Tensor& b) {
  return detail::binary(detail::Arithmetic::less, "less", a, b);
}
inline Tensor greater(const Tensor& a, const Tensor& b) { return less(b, a); }
inline Tensor equal(const Tensor& a, const Tensor& b) {
  return detail::binary(detail::Arithmetic::equal, "equal", a, b);
}

// a where the condition is not 0, else b; shapes are matched from the right.
inline Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  const detail::OpScope scope;
  const Shape shape = detail::broadcast_shape(
      "where", detail::broadcast_shape("where", condition.shape(), a.shape()), b.shape());
  const Tensor c = broadcast_to(condition.detach(), shape).clone();
  const Tensor from = broadcast_to(a.detach(), shape).clone();
  Tensor y = broadcast_to(b.detach(), shape).clone();
  for (std::int64_t i = 0; i < y.count(); ++i) {
    const float kept = y.data()[i];
    y.data()[i] = c.data()[i] != 0.0f ? from.data()[i] : kept;
  }
  scope.done_unary("where", "where", shape);
  if (detail::tracked({&a, &b})) {
    detail::attach(y, "where", {&a, &b}, [c, sa = a.slot(), sb = b.slot()](const Tensor& dy) {
      const Tensor zero = zeros(Shape{});
      if (sa) {
        detail::add_grad_to(sa, where(c, dy, zero));
      }
      if (sb) {
        detail::add_grad_to(sb, where(c, zero, dy));
      }
    });
  }
  return y;
}

// x with `value` where the mask is not 0.
inline Tensor masked_fill(const Tensor& x, const Tensor& mask, float value) {
  return where(mask, full(Shape{}, value), x);
}

// The larger of two (NaN if one is NaN); of equal ones b, which gets the gradient.
inline Tensor maximum(const Tensor& a, const Tensor& b) {
  const Tensor da = a.detach();
  const Tensor nan = 1.0f - equal(da, da);
  return where(less(b.detach(), da) + nan, a, b);
}
inline Tensor minimum(const Tensor& a, const Tensor& b) { return neg(maximum(neg(a), neg(b))); }

// x^exponent, element by element, in double.
inline Tensor pow(const Tensor& x, float exponent) {
  const detail::OpScope scope;
  Tensor y = x.clone();
  x.origin();  // an empty one throws
  for (std::int64_t i = 0; i < y.count(); ++i) {
    y.data()[i] = static_cast<float>(
        std::pow(static_cast<double>(y.data()[i]), static_cast<double>(exponent)));
  }
  scope.done_unary("pow", "pow", x.shape());
  if (detail::tracked({&x})) {
    detail::attach(y, "pow", {&x},
                   [exponent, kx = detail::Kept(x), sx = x.slot()](const Tensor& dy) {
                     detail::add_grad(sx, dy * scale(pow(kx, exponent - 1.0f), exponent));
                   });
  }
  return y;
}

// Row ids[i] of dimension `dim` as row i of the result.
inline Tensor index_select(const Tensor& x, int dim, const std::vector<std::int32_t>& ids) {
  const int d = detail::check_dim("index_select", x, dim);
  const Tensor front = transpose(x, 0, d);
  const std::int64_t rows = front.dim(0);
  const std::int64_t inner = detail::inner_count(front.shape(), 0);
  Shape shape = front.shape();
  shape.set(0, ids.size());
  const Tensor chosen = embedding(reshape(front, {rows, inner}), ids, {ids.size()});
  return transpose(reshape(chosen, shape), 0, d);
}

namespace detail {

// Where element i of a gather along dimension `dim` stands among all of a shape's elements.
inline std::vector<std::int32_t> gather_places(const char* op, const Tensor& x, int dim,
                                               const std::vector<std::int32_t>& ids,
                                               const Shape& shape) {
  const int d = check_dim(op, x, dim);
  bool fits = shape.size() == x.dims() && x.count() <= std::int64_t{1} << 31 &&
              static_cast<std::int64_t>(ids.size()) == shape.count();
  for (int i = 0; fits && i < x.dims(); ++i) {
    fits = i == d || shape[i] <= x.dim(i);
  }
  if (!fits) {
    fail({op, ": x is ", x.shape().text(), ", ", ids.size(), " ids for shape ", shape.text(),
          "; as many dimensions, none larger but dimension ", dim,
          ", and one id an element are right"});
  }
  std::vector<std::int32_t> places(ids.size());
  const Strides steps = row_major(x.shape());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= x.dim(d)) {
      fail({op, ": id ", ids[i], " at position ", i, " is outside dimension ", dim, " of shape ",
            x.shape().text()});
    }
    std::int64_t place = ids[i] * steps.of[d];
    auto left = static_cast<std::int64_t>(i);
    for (int j = x.dims() - 1; j >= 0; --j) {
      place += j == d ? 0 : left % shape[j] * steps.of[j];
      left /= shape[j];
    }
    places[i] = static_cast<std::int32_t>(place);
  }
  return places;
}

}  // namespace detail

// y[i, j, k] = x[i, id, k] for dim 1 with id = ids[i, j, k]; `shape` is that of ids and of y.
inline Tensor gather(const Tensor& x, int dim, const std::vector<std::int32_t>& ids,
                     const Shape& shape) {
  const auto places = detail::gather_places("gather", x, dim, ids, shape);
  return reshape(embedding(reshape(x, {x.count(), 1}), places, shape), shape);
}

// x with y[i, j, k] added at x[i, id, k] for dim 1 with id = ids[i, j, k]: gather's transpose.
inline Tensor scatter_add(const Tensor& x, int dim, const std::vector<std::int32_t>& ids,
                          const Tensor& y) {
  const auto places = detail::gather_places("scatter_add", x, dim, ids, y.shape());
  const detail::OpScope scope;
  Tensor out = x.clone();
  const Tensor from = contiguous(y.detach());
  for (std::size_t i = 0; i < places.size(); ++i) {
    out.data()[places[i]] += from.data()[i];
  }
  scope.done_unary("scatter_add", "add", y.shape());
  if (detail::tracked({&x, &y})) {
    detail::attach(out, "scatter_add", {&x, &y},
                   [places, shape = y.shape(), sx = x.slot(), sy = y.slot()](const Tensor& dy) {
                     if (sy) {
                       const Tensor all = reshape(dy, {dy.count(), 1});
                       detail::add_grad(sy, embedding(all, places, shape));
                     }
                     if (sx) {
                       detail::add_grad(sx, dy);
                     }
                   });
  }
  return out;
}

namespace detail {

// Whether two elements of x may be the same number: a dimension steps no further than those with
// smaller steps reach. Views of slice, permute, reshape repeat none.
inline bool repeats(const Tensor& x) {
  std::int64_t reach = 0;  // of the dimensions before, in the order of their steps
  for (std::int64_t last = -1; !x.is_contiguous();) {
    std::int64_t step = std::numeric_limits<std::int64_t>::max(), size = 0;
    for (int i = 0; i < x.dims(); ++i) {
      const std::int64_t next = std::abs(x.stride(i));
      if (x.dim(i) > 1 && next > last && next <= step) {
        size = next == step ? 0 : x.dim(i);  // two with one step
        step = next;
      }
    }
    if (step == std::numeric_limits<std::int64_t>::max()) {
      break;
    }
    if (step <= reach || size == 0) {
      return true;
    }
    reach += (size - 1) * step;
    last = step;
  }
  return false;
}

// x = x op from, where nothing but x itself would notice.
inline const Tensor& write(Arithmetic op, const char* name, const Tensor& x, const Tensor& from) {
  x.origin();  // an empty one throws
  if (broadcast_shape(name, x.shape(), from.shape()) != x.shape()) {
    fail({name, ": shape ", from.shape().text(), " cannot fill ", x.shape().text(),
          "; from the right, sizes must be equal or 1"});
  }
  if (context().no_grad == 0 && (x.requires_grad() || from.requires_grad())) {
    fail({name, ": the tensor written or read has a gradient, which writing in place ",
          "would lose; write under a NoGrad, or use an op with a result of its own"});
  }
  if (x.storage()->kept.load() > 0) {
    fail({name, ": a backward pass that is still to come needs the numbers of this ",
          x.shape().text(), " tensor; write after it, or to a clone()"});
  }
  if (repeats(x)) {
    fail({name, ": some of the ", x.count(), " elements of this ", x.shape().text(),
          " view are the same number; write to a clone()"});
  }
  const bool shared = x.storage().get() == from.storage().get();
  apply_in_place(op, name, x, shared ? from.clone() : from);
  return x;
}

}  // namespace detail

// In place. They throw when a backward pass needs the old numbers, or a view repeats one.
inline const Tensor& add_(const Tensor& x, const Tensor& y) {
  return detail::write(detail::Arithmetic::add, "add_", x, y);
}
inline const Tensor& sub_(const Tensor& x, const Tensor& y) {
  return detail::write(detail::Arithmetic::sub, "sub_", x, y);
}
inline const Tensor& mul_(const Tensor& x, const Tensor& y) {
  return detail::write(detail::Arithmetic::mul, "mul_", x, y);
}
inline const Tensor& copy_(const Tensor& x, const Tensor& y) {
  return detail::write(detail::Arithmetic::second, "copy_", x, y);
}
inline const Tensor& scale_(const Tensor& x, float factor) {
  return detail::write(detail::Arithmetic::mul, "scale_", x, full(Shape{}, factor));
}
inline const Tensor& fill_(const Tensor& x, float value) {
  return detail::write(detail::Arithmetic::second, "fill_", x, full(Shape{}, value));
}

}}  // namespace tinyscale

// >> tinyscale/tensor/einsum.hpp
// Products by letters: einsum("bthd,bshd->bhts", q, k) sums over the letters that the result lacks.
// Letters of both operands and of the result are leading dimensions of a matmul, letters of one
// operand its rows or columns, letters that are summed its inner size.

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace detail {

// The letters of each operand and of the result.
struct EinsumSpec {
  std::string a, b, out;
};

inline EinsumSpec parse_einsum(const std::string& spec) {
  const std::size_t comma = spec.find(',');
  const std::size_t arrow = spec.find("->");
  bool good = comma < arrow && arrow != std::string::npos;
  EinsumSpec s;
  if (good) {
    s = {spec.substr(0, comma), spec.substr(comma + 1, arrow - comma - 1), spec.substr(arrow + 2)};
    for (const std::string* part : {&s.a, &s.b, &s.out}) {
      for (std::size_t i = 0; i < part->size(); ++i) {
        const char c = (*part)[i];
        good = good && c >= 'a' && c <= 'z' && part->find(c, i + 1) == std::string::npos;
      }
    }
    for (const char c : s.out) {
      good = good && (s.a + s.b).find(c) != std::string::npos;
    }
  }
  if (!good) {
    fail({"einsum: \"", spec, "\"; two operands, each letter a to z at most once in ",
          "each, and a result of their letters are right, as in \"ik,kj->ij\""});
  }
  return s;
}

// x with its letters in another order, as three dimensions: leading, rows, columns.
inline Tensor einsum_operand(const Tensor& x, std::string letters, const std::string (&groups)[3]) {
  List<int> gone;
  std::string left;
  for (std::size_t i = 0; i < letters.size(); ++i) {
    const bool kept = (groups[0] + groups[1] + groups[2]).find(letters[i]) != std::string::npos;
    if (kept) {
      left += letters[i];
    } else {
      gone.push_back(static_cast<int>(i));
    }
  }
  const Tensor y = gone.empty() ? x : sum(x, gone);
  List<int> order;
  Shape shape;
  for (const std::string& group : groups) {
    std::int64_t size = 1;
    for (const char c : group) {
      order.push_back(static_cast<int>(left.find(c)));
      size *= y.dim(order.back());
    }
    shape.push_back(size);
  }
  return reshape(permute(y, order), shape);
}

}  // namespace detail

// The sum of the products of two operands over every letter that is not in the result.
inline Tensor einsum(const std::string& spec, const Tensor& a, const Tensor& b) {
  const detail::EinsumSpec s = detail::parse_einsum(spec);
  const auto in = [](const std::string& text, char c) { return text.find(c) != std::string::npos; };
  bool fits = static_cast<int>(s.a.size()) == a.dims() && static_cast<int>(s.b.size()) == b.dims();
  std::string lead, rows, columns, inner;
  for (std::size_t i = 0; fits && i < s.a.size(); ++i) {
    const std::size_t j = s.b.find(s.a[i]);
    if (j == std::string::npos) {
      rows += in(s.out, s.a[i]) ? std::string(1, s.a[i]) : "";
    } else {
      fits = a.dim(static_cast<int>(i)) == b.dim(static_cast<int>(j));
      (in(s.out, s.a[i]) ? lead : inner) += s.a[i];
    }
  }
  if (!fits) {
    detail::fail({"einsum: \"", spec, "\" of ", a.shape().text(), " and ", b.shape().text(),
                  "; a letter a dimension and one size a letter are ", "right"});
  }
  for (const char c : s.b) {
    columns += in(s.out, c) && !in(s.a, c) ? std::string(1, c) : "";
  }
  const Tensor y = matmul(detail::einsum_operand(a, s.a, {lead, rows, inner}),
                          detail::einsum_operand(b, s.b, {lead, inner, columns}));
  Shape shape;
  List<int> order;
  for (const char c : lead + rows + columns) {
    shape.push_back(in(s.a, c) ? a.dim(static_cast<int>(s.a.find(c)))
                               : b.dim(static_cast<int>(s.b.find(c))));
  }
  for (const char c : s.out) {
    order.push_back(static_cast<int>((lead + rows + columns).find(c)));
  }
  return permute(reshape(y, shape), order);
}

}}  // namespace tinyscale

// >> tinyscale/systolic/array_report.hpp
// What a run on a systolic array costs: ticks, traffic, and a ledger of where every PE-tick went.
// rows * cols * cycles = useful + padded + fill + drain + weight_shift + weight_stall + dma_stall,
// exactly; utilization = mapping_efficiency * time_efficiency. M, K, N: x [M, K] times w [K, N];
// T is the length of the stream through one fold, a fold is one pass with one stationary tile.

namespace tinyscale { inline namespace TINYSCALE_ABI {

// Which operand stays in the PEs: a tile of w, of x, or of the product.
enum class Dataflow { weight_stationary, input_stationary, output_stationary };

// serial: a fold begins when the one before has left the array. skewed: column by column, as soon
// as a column is free. doubled: a second register per PE hides the shift behind the stream.
enum class Schedule { doubled, serial, skewed };

// How the sums of an output-stationary array leave: R ticks of shifting, or at once over own wires.
enum class Drain { shifted, instant };

inline const char* name_of(Dataflow dataflow) {
  return dataflow == Dataflow::weight_stationary  ? "weight_stationary"
         : dataflow == Dataflow::input_stationary ? "input_stationary"
                                                  : "output_stationary";
}

inline const char* name_of(Schedule schedule) {
  return schedule == Schedule::doubled  ? "doubled"
         : schedule == Schedule::serial ? "serial"
                                        : "skewed";
}

inline const char* name_of(Drain drain) { return drain == Drain::shifted ? "shifted" : "instant"; }

// Every tick of every PE, in PE-ticks.
struct LossLedger {
  std::int64_t useful = 0;        // a multiply-add of the product: M K N in all
  std::int64_t padded = 0;        // a multiply-add on the zeros that fill up an edge tile
  std::int64_t fill = 0;          // the wave has not reached the PE yet
  std::int64_t drain = 0;         // the wave has passed, later PEs still work or results leave
  std::int64_t weight_shift = 0;  // the stationary tile is being shifted in
  std::int64_t weight_stall = 0;  // the tile is not on the chip yet; an array alone never waits
  std::int64_t dma_stall = 0;     // what streams is not on the chip yet

  std::int64_t total() const {
    return useful + padded + fill + drain + weight_shift + weight_stall + dma_stall;
  }
};

inline bool operator==(const LossLedger& a, const LossLedger& b) {
  return a.useful == b.useful && a.padded == b.padded && a.fill == b.fill && a.drain == b.drain &&
         a.weight_shift == b.weight_shift && a.weight_stall == b.weight_stall &&
         a.dma_stall == b.dma_stall;
}

inline bool operator!=(const LossLedger& a, const LossLedger& b) { return !(a == b); }

struct SystolicTiming;

namespace detail {
inline Table systolic_table(const SystolicTiming& t, const char* column);
}

// The costs of x [M, K] times w [K, N]; traffic in words, to and from the edges of the array.
struct SystolicTiming {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  Dataflow dataflow = Dataflow::weight_stationary;
  Schedule schedule = Schedule::doubled;
  Drain drain = Drain::shifted;
  bool tight = false;  // ends with the last useful result, not with that of a full tile
  DType format = DType::f32;
  std::int64_t passes = 1;  // bf16 products per f32 product
  std::int64_t m = 0;
  std::int64_t k = 0;
  std::int64_t n = 0;
  std::int64_t row_folds = 0;  // column folds are the outer loop, row folds the inner one
  std::int64_t col_folds = 0;
  std::int64_t stream = 0;  // T, all passes
  std::int64_t cycles = 0;
  std::int64_t macs = 0;          // useful ones: M K N, times the passes
  double utilization = 0;         // macs / (rows cols cycles)
  double mapping_efficiency = 0;  // macs / (rows cols T folds): what padding leaves
  double time_efficiency = 0;     // T folds / cycles: what waiting leaves
  std::int64_t sram_reads_input = 0;
  std::int64_t sram_reads_weight = 0;
  std::int64_t sram_writes_output = 0;  // partial sums too, when K takes several row folds
  std::int64_t accumulator_reads = 0;   // adding a fold's sums to those of the folds before
  std::int64_t accumulator_writes = 0;
  LossLedger ledger;

  std::int64_t folds() const { return row_folds * col_folds; }
  Table table() const { return detail::systolic_table(*this, "formula"); }
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
};

// The same, counted by stepping every PE through every tick, and the product itself.
struct SystolicRun : SystolicTiming {
  Tensor output;                   // [.., M, N]; of int8 operands, the floats nearest to the sums
  std::vector<std::int32_t> sums;  // int8: exact, row-major; else empty

  Table table() const { return detail::systolic_table(*this, "simulated"); }
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
};

namespace detail {

// A fraction as a bare number of percent, which a spreadsheet can read.
inline std::string percent(double fraction) { return printed('f', 4, 100 * fraction); }

inline Table systolic_table(const SystolicTiming& t, const char* column) {
  Table table;
  table.title =
      cat(t.rows, " x ", t.cols, " array, ", name_of(t.dataflow), ", ", name_of(t.schedule), ", ",
          name_of(t.format), t.tight ? ", tight" : "", ": x [", t.m, ", ", t.k, "] times w [", t.k,
          ", ", t.n, "], ", t.row_folds, " x ", t.col_folds, " folds");
  table.columns = {"quantity", column, "unit", "% of PE-ticks"};
  const auto count = [&table](const char* name, std::int64_t value, const char* unit) {
    table.add({name, std::to_string(value), unit, ""});
  };
  count("cycles", t.cycles, "ticks");
  count("macs", t.macs, "multiply-adds");
  table.add({"utilization", percent(t.utilization), "% of PE-ticks", ""});
  table.add({"mapping efficiency", percent(t.mapping_efficiency), "% of stream slots", ""});
  count("sram reads input", t.sram_reads_input, "words");
  count("sram reads weight", t.sram_reads_weight, "words");
  count("sram writes output", t.sram_writes_output, "words");
  count("accumulator reads", t.accumulator_reads, "words");
  count("accumulator writes", t.accumulator_writes, "words");
  const double all = static_cast<double>(t.ledger.total());
  const auto share = [&table, all](const char* name, std::int64_t value) {
    table.add({name, std::to_string(value), "PE-ticks",
               percent(all > 0 ? static_cast<double>(value) / all : 0.0)});
  };
  share("useful", t.ledger.useful);
  share("padded", t.ledger.padded);
  share("fill", t.ledger.fill);
  share("drain", t.ledger.drain);
  share("weight shift", t.ledger.weight_shift);
  share("weight stall", t.ledger.weight_stall);
  share("dma stall", t.ledger.dma_stall);
  return table;
}

}  // namespace detail

inline std::ostream& operator<<(std::ostream& out, const SystolicTiming& t) {
  return out << t.table();
}

inline std::ostream& operator<<(std::ostream& out, const SystolicRun& run) {
  return out << run.table();
}

}}  // namespace tinyscale

// >> tinyscale/systolic/array_schedule.hpp
// When each fold shifts in, streams and leaves, and what every PE does in between.
// A fold is placed after the one before it, no earlier than its operands are on the chip. What a PE
// does changes when an event reaches it: all PEs at once, column by column, or with the wave that
// takes a tick per PE east and south. Ticks between events, summed over PEs, have closed forms:
//   D(x) = PEs that a wave of x ticks has reached; G(x) = D(0) + .. + D(x - 1)

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace detail {

// One pass of the array with one stationary tile; ticks count from the start of the run.
struct Fold {
  std::int64_t m0 = 0, k0 = 0, n0 = 0;  // where its tile of x [M, K], w [K, N] or both begins
  std::int64_t length = 0;              // T
  std::int64_t load = 0, stream = 0;    // first tick of the shift-in and of the stream
  std::int64_t drain = 0;               // outputs stationary: PE (0, 0) gives its sum up
  std::int64_t weight_stall = 0, dma_stall = 0;  // of the gap before the stream

  std::int64_t end() const { return stream + length; }
};

// The ticks at which the stationary tile and the operand that streams are on the chip.
struct FoldSupply {
  std::int64_t tile = 0, stream = 0;
};

inline bool keeps_outputs(const SystolicTiming& t) {
  return t.dataflow == Dataflow::output_stationary;
}

inline void place_outputs(const SystolicTiming& t, const Fold* before, const FoldSupply& supply,
                          Fold& fold) {
  const bool doubled = t.schedule == Schedule::doubled;
  const std::int64_t shift = t.drain == Drain::instant ? 0 : t.rows;
  const std::int64_t left = doubled || before == nullptr ? 0 : t.rows + t.cols - 2 + shift;
  const std::int64_t free =
      before == nullptr ? 0 : (doubled ? before->drain : before->end() + left);
  fold.stream = std::max({free, supply.stream, supply.tile});
  fold.dma_stall = fold.stream - free;
  fold.drain = fold.end();
  if (doubled && before != nullptr) {
    fold.drain = std::max(fold.drain, before->drain + t.rows);
  }
}

// Places a fold whose length is set after the one before it (null: the first). Where the stream
// waits for the tile, at most R ticks of the gap are its shift, the rest a stall (TPU v1, table 3).
inline void place_fold(const SystolicTiming& t, const Fold* before, const FoldSupply& supply,
                       Fold& fold) {
  if (keeps_outputs(t)) {
    return place_outputs(t, before, supply, fold);
  }
  if (t.schedule == Schedule::doubled) {
    const std::int64_t earliest = before == nullptr ? 0 : before->end();
    fold.load = supply.tile;
    if (before != nullptr) {
      fold.load = std::max({fold.load, before->stream, before->load + t.rows});
    }
    const std::int64_t ready = std::max(fold.load + t.rows, earliest);
    fold.stream = std::max(ready, supply.stream);
    fold.dma_stall = fold.stream - ready;
    fold.weight_stall = std::max<std::int64_t>(0, ready - earliest - t.rows);
    return;
  }
  std::int64_t free = 0;
  if (before != nullptr) {
    free = before->end() + t.rows - 1 + (t.schedule == Schedule::serial ? t.cols - 1 : 0);
  }
  fold.load = std::max(free, supply.tile);
  fold.weight_stall = fold.load - free;
  fold.stream = std::max(fold.load + t.rows, supply.stream);
  fold.dma_stall = fold.stream - fold.load - t.rows;
}

// The PEs of a fold's tile that are not padding; columns are those of all arrays side by side.
inline std::int64_t fold_rows(const SystolicTiming& t, const Fold& f) {
  return std::min(t.rows, keeps_outputs(t) ? t.m - f.m0 : t.k - f.k0);
}
inline std::int64_t fold_cols(const SystolicTiming& t, const Fold& f, std::int64_t arrays) {
  return std::min(t.cols * arrays,
                  t.dataflow == Dataflow::input_stationary ? t.m - f.m0 : t.n - f.n0);
}

// The tick after the one in which a fold's last result leaves, or (tight) its last useful one.
inline std::int64_t fold_end(const SystolicTiming& t, const Fold& f, std::int64_t arrays) {
  const std::int64_t cols = t.tight ? std::min(t.cols, fold_cols(t, f, arrays)) : t.cols;
  if (!keeps_outputs(t)) {
    return f.end() + t.rows + cols - 2;
  }
  return t.drain == Drain::instant ? f.end() + (t.tight ? fold_rows(t, f) : t.rows) + cols - 2
                                   : f.drain + 2 * t.rows + cols - 2;
}

// What a PE does with a tick. streaming: useful or padded, as its place in the tile says; the clock
// says useful apart.
enum class PeState {
  streaming,
  fill,
  drain,
  weight_shift,
  weight_stall,
  dma_stall,
  absent,
  useful
};
enum class Arrival { together, by_column, by_wave };  // at PE (r, c): tick, + c, + r + c

struct PeEvent {
  std::int64_t tick = 0;
  Arrival arrival = Arrival::together;
  PeState state = PeState::fill;
  std::int64_t fold = 0;  // that streams, where it does
};

inline void waiting_events(const Fold& before, const Fold& f, List<PeEvent>& out) {
  const std::int64_t shift = before.end() + f.weight_stall;
  if (f.weight_stall > 0) {
    out.push_back({before.end(), Arrival::by_wave, PeState::weight_stall});
  }
  if (shift < f.stream - f.dma_stall) {
    out.push_back({shift, Arrival::by_wave, PeState::weight_shift});
  }
}

inline void loading_events(const SystolicTiming& t, const Fold& f, List<PeEvent>& out) {
  const Arrival arrival = t.schedule == Schedule::serial ? Arrival::together : Arrival::by_column;
  if (f.weight_stall > 0) {
    out.push_back({f.load - f.weight_stall, arrival, PeState::weight_stall});
  }
  out.push_back({f.load, arrival, PeState::weight_shift});
  out.push_back({f.load + t.rows, arrival, PeState::fill});
}

// The events from the end of the fold before to the start of this one's stream, in the order in
// which they reach any PE.
inline void fold_events(const SystolicTiming& t, const Fold* before, const Fold& f,
                        std::int64_t index, List<PeEvent>& out) {
  const bool doubled = t.schedule == Schedule::doubled;
  const bool waits = doubled && !keeps_outputs(t) && before != nullptr;
  if (before != nullptr && !waits && before->end() < f.stream) {
    out.push_back({before->end(), Arrival::by_wave, PeState::drain});
  }
  if (waits) {
    waiting_events(*before, f, out);
  } else if (!keeps_outputs(t)) {
    loading_events(t, f, out);
  }
  if (f.dma_stall > 0) {
    const bool together = keeps_outputs(t) && !doubled;
    out.push_back({f.stream - f.dma_stall, together ? Arrival::together : Arrival::by_wave,
                   PeState::dma_stall});
  }
  if (keeps_outputs(t) && !doubled) {
    out.push_back({f.stream, Arrival::together, PeState::fill});
  }
  out.push_back({f.stream, Arrival::by_wave, PeState::streaming, index});
}

inline std::int64_t& entry(LossLedger& l, PeState state) {  // streaming: until it is split
  return state == PeState::streaming      ? l.useful
         : state == PeState::fill         ? l.fill
         : state == PeState::drain        ? l.drain
         : state == PeState::weight_shift ? l.weight_shift
         : state == PeState::weight_stall ? l.weight_stall
                                          : l.dma_stall;
}

inline void add_times(const LossLedger& part, std::int64_t times, LossLedger& sum) {
  sum.useful += times * part.useful;
  sum.padded += times * part.padded;
  sum.fill += times * part.fill;
  sum.drain += times * part.drain;
  sum.weight_shift += times * part.weight_shift;
  sum.weight_stall += times * part.weight_stall;
  sum.dma_stall += times * part.dma_stall;
}

// The sum over all PEs of the ticks since an event reached them, `ago` ticks after its own.
inline std::int64_t ticks_since(const SystolicTiming& t, Arrival arrival, std::int64_t ago) {
  const std::int64_t r = t.rows, c = t.cols;
  const auto line = [](std::int64_t x) { return x * (x + 1) / 2; };  // 1 + .. + x
  if (ago <= 0) {
    return 0;
  }
  if (arrival == Arrival::together) {
    return r * c * ago;
  }
  if (arrival == Arrival::by_column) {
    return ago >= c ? r * (c * ago - line(c - 1)) : r * line(ago);
  }
  if (ago >= r + c - 1) {
    return r * c * ago - (c * line(r - 1) + r * line(c - 1));
  }
  const auto corner = [&line](std::int64_t x) {  // x (x + 1) (x + 2) / 6, modulo 2^64
    const std::uint64_t pair = x > 0 ? static_cast<std::uint64_t>(line(x)) : 0;
    const std::uint64_t next = x > 0 ? static_cast<std::uint64_t>(x) + 2 : 0;
    return pair % 3 == 0 ? pair / 3 * next : next / 3 * pair;
  };
  return static_cast<std::int64_t>(corner(ago) - corner(ago - r) - corner(ago - c) +
                                   corner(ago - r - c));
}

// Gives the PE-ticks between events to their states, up to the last tick.
class LedgerSums {
 public:
  LedgerSums(const SystolicTiming& t, std::int64_t end)
      : t_(t), end_(end), since_(t.rows * t.cols * end) {}

  void add(const PeEvent& event) {
    const std::int64_t since = ticks_since(t_, event.arrival, end_ - event.tick);
    entry(ledger, last_) += since_ - since;
    last_ = event.state;
    since_ = since;
  }

  // n folds more like the last one, `ticks` apart: each books what that one added to `before`.
  void repeat(const LossLedger& before, std::int64_t n, std::int64_t ticks) {
    const LossLedger now = ledger;
    add_times(now, n, ledger);
    add_times(before, -n, ledger);
    since_ -= n * ticks * t_.rows * t_.cols;
  }

  // The end; of the PE-ticks that streamed, `macs` were useful, those of all `arrays` together.
  LossLedger finish(std::int64_t macs, std::int64_t arrays) {
    entry(ledger, last_) += since_;
    LossLedger all;
    add_times(ledger, arrays, all);
    all.padded = all.useful - macs;
    all.useful = macs;
    return all;
  }

  LossLedger ledger;  // of one array; useful: all that streamed

 private:
  const SystolicTiming& t_;
  std::int64_t end_;
  std::int64_t since_;
  PeState last_ = PeState::fill;
};

// Words to and from the edges, of folds like this one; `arrays` stand side by side.
inline void add_traffic(const Fold& f, std::int64_t arrays, SystolicTiming& t) {
  const std::int64_t rows = fold_rows(t, f), cols = fold_cols(t, f, arrays);
  const std::int64_t used = (cols - 1) / t.cols + 1;  // arrays with columns
  if (keeps_outputs(t)) {
    t.sram_reads_input += f.length * rows * used;
    t.sram_reads_weight += f.length * cols;
    t.sram_writes_output += rows * cols;
    return;
  }
  const bool inputs = t.dataflow == Dataflow::input_stationary;
  (inputs ? t.sram_reads_weight : t.sram_reads_input) += f.length * rows * used;
  (inputs ? t.sram_reads_input : t.sram_reads_weight) += rows * cols;
  t.accumulator_writes += f.length * cols;
  t.accumulator_reads += (f.k0 == 0 ? f.length - f.length / t.passes : f.length) * cols;
  t.sram_writes_output = t.accumulator_writes;
}

// The ratios, from counts that are complete; `streamed` ticks of T in all.
inline void rate(SystolicTiming& t, std::int64_t streamed) {
  const double slots = static_cast<double>(t.rows * t.cols);
  t.utilization = static_cast<double>(t.macs) / (slots * static_cast<double>(t.cycles));
  t.mapping_efficiency = static_cast<double>(t.macs) / (slots * static_cast<double>(streamed));
  t.time_efficiency = static_cast<double>(streamed) / static_cast<double>(t.cycles);
}

// All counts of placed folds, without stepping; t holds the sizes and the modes. MXU q of `arrays`
// holds columns n0 + q cols .. of a fold.
inline SystolicTiming time_folds(const SystolicTiming& problem, const List<Fold>& folds,
                                 std::int64_t arrays) {
  SystolicTiming t = problem;
  for (const Fold& f : folds) {
    t.cycles = std::max(t.cycles, fold_end(t, f, arrays));
    t.macs += f.length * fold_rows(t, f) * fold_cols(t, f, arrays);
    add_traffic(f, arrays, t);
  }
  LedgerSums sums(t, t.cycles);
  List<PeEvent> events;
  for (std::size_t i = 0; i < folds.size(); ++i) {
    events.clear();
    fold_events(t, i == 0 ? nullptr : &folds[i - 1], folds[i], 0, events);
    for (const PeEvent& event : events) {
      sums.add(event);
    }
  }
  sums.add({folds.back().end(), Arrival::by_wave, PeState::drain});
  t.ledger = sums.finish(t.macs, arrays);
  return t;
}

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/systolic/array_timing.hpp
// The ticks of a systolic array in closed form: no stepping, the same numbers.
// With R x C PEs, F folds and T stream slots a fold (T = M, N, K for weights, inputs, outputs,
// times the passes of a format):
//   serial   F (T + 2R + C - 2)                    the count of SCALE-Sim v2 and v3, plus its one
//   doubled  (F - 1) max(T, R) + T + 2R + C - 2    as the TPU papers describe it
// Rules: activations move east, sums south, one PE a tick; every row starts a tick after the last.

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace detail {

inline std::int64_t folds_of(std::int64_t size, std::int64_t pes) { return (size - 1) / pes + 1; }

// Fills in T and the folds of a case whose array and M, K, N are set.
inline void fold(SystolicTiming& t) {
  const bool outputs = keeps_outputs(t);
  const bool inputs = t.dataflow == Dataflow::input_stationary;
  const std::int64_t most = INT64_MAX / t.passes;  // more than countable() lets through
  t.stream = std::min(outputs ? t.k : inputs ? t.n : t.m, most) * t.passes;
  t.row_folds = folds_of(outputs ? t.m : t.k, t.rows);
  t.col_folds = folds_of(inputs ? t.m : t.n, t.cols);
}

// Whether every count of a folded case fits 64 bits: all are below PEs x folds x a fold's ticks.
inline bool countable(const SystolicTiming& t) {
  const double rows = static_cast<double>(t.rows);
  const double cols = static_cast<double>(t.cols);
  const double folds = static_cast<double>(t.row_folds) * static_cast<double>(t.col_folds);
  return rows * cols * folds * (static_cast<double>(t.stream) + 3 * (rows + cols)) < 0x1p62;
}

// Ticks from the first stream slot of a fold to that of the next one.
inline std::int64_t fold_period(const SystolicTiming& t) {
  if (t.schedule == Schedule::doubled) {
    return std::max(t.stream, t.rows);
  }
  if (t.schedule == Schedule::skewed) {
    return t.stream + 2 * t.rows - 1;
  }
  const std::int64_t wave = t.stream + t.rows + t.cols - 2;  // first PE's start to last PE's end
  return t.drain == Drain::instant ? wave : wave + t.rows;
}

// Fold f where its tile is; column folds are the outer loop, row folds the inner one.
inline Fold tile_of(const SystolicTiming& t, std::int64_t f) {
  Fold fold;
  const std::int64_t down = f % t.row_folds * t.rows, across = f / t.row_folds * t.cols;
  (keeps_outputs(t) ? fold.m0 : fold.k0) = down;
  (t.dataflow == Dataflow::input_stationary ? fold.m0 : fold.n0) = across;
  fold.length = t.stream;
  return fold;
}

// Fold f and its ticks.
inline Fold nth_fold(const SystolicTiming& t, std::int64_t f) {
  Fold fold = tile_of(t, f);
  const std::int64_t period = fold_period(t);
  if (!keeps_outputs(t)) {
    fold.stream = t.rows + f * period;
    const bool early = t.schedule == Schedule::doubled && f > 0;  // while the one before streams
    fold.load = early ? fold.stream - period : fold.stream - t.rows;
  } else if (t.schedule == Schedule::doubled) {
    fold.drain = t.stream + f * period;
    fold.stream = f == 0 ? 0 : fold.drain - period;
  } else {
    fold.stream = f * period;
    fold.drain = fold.end();
  }
  return fold;
}

// The first three folds, as many more like them, and those at the end that a tight one cuts short.
inline LossLedger time_ledger(const SystolicTiming& t) {
  LedgerSums sums(t, t.cycles);
  List<PeEvent> events;
  const std::int64_t folds = t.folds();
  const std::int64_t period = fold_period(t);
  LossLedger before;
  for (std::int64_t f = 0; f < folds; ++f) {
    events.clear();
    const Fold last = nth_fold(t, f == 0 ? 0 : f - 1);
    const Fold now = nth_fold(t, f);
    fold_events(t, f == 0 ? nullptr : &last, now, f, events);
    before = sums.ledger;
    for (const PeEvent& event : events) {
      sums.add(event);
    }
    if (f == 2) {
      const std::int64_t whole = (t.cycles - t.rows - t.cols - now.stream) / period;
      const std::int64_t alike = std::max<std::int64_t>(0, std::min(folds - 1 - f, whole));
      sums.repeat(before, alike, period);
      f += alike;
    }
  }
  sums.add({nth_fold(t, folds - 1).end(), Arrival::by_wave, PeState::drain});
  return sums.finish(t.macs, 1);
}

inline void time_traffic(SystolicTiming& t) {
  const std::int64_t mk = t.m * t.k * t.passes;
  const std::int64_t kn = t.k * t.n * t.passes;
  const std::int64_t mn = t.m * t.n;
  if (keeps_outputs(t)) {
    t.sram_reads_input = t.col_folds * mk;
    t.sram_reads_weight = t.row_folds * kn;
    t.sram_writes_output = mn;
    return;
  }
  const bool inputs = t.dataflow == Dataflow::input_stationary;
  t.sram_reads_input = inputs ? t.m * t.k : t.col_folds * mk;  // a tile is read once for all passes
  t.sram_reads_weight = inputs ? t.col_folds * kn : t.k * t.n;
  t.accumulator_writes = t.row_folds * t.passes * mn;
  t.accumulator_reads = t.accumulator_writes - mn;
  t.sram_writes_output = t.accumulator_writes;
}

// All costs of a case that fold() has seen.
inline void time_array(SystolicTiming& t) {
  t.cycles = fold_end(t, nth_fold(t, t.folds() - 1), 1);
  if (t.tight && t.col_folds > 1) {  // the last column of tiles may be narrower than the one before
    t.cycles = std::max(t.cycles, fold_end(t, nth_fold(t, t.folds() - 1 - t.row_folds), 1));
  }
  t.macs = t.m * t.k * t.n * t.passes;
  t.ledger = time_ledger(t);
  time_traffic(t);
  rate(t, t.stream * t.folds());
}

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/systolic/array_operands.hpp
// The operands of a product as the PEs read them: rounded to the array's format, in pieces.
//   f32: as they are. bf16, fp8: rounded to nearest even as round_to() does; products are exact in
//   f32. int8: whole numbers -128 .. 127, summed in int32. bf16 in 3 or 6 passes: an f32 is
//   b1 + b2 + b3, each the bf16 nearest to what is left; the products are summed smallest first:
//   3: b2 b1, b1 b2, b1 b1        6: b3 b1, b2 b2, b1 b3, b2 b1, b1 b2, b1 b1
// (JAX precision "high" and "highest"; the first of a pair is the piece that streams.)

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace detail {

// A matrix in place, perhaps transposed.
struct MatrixView {
  const float* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t row_step = 0;
  std::int64_t col_step = 0;

  float at(std::int64_t i, std::int64_t j) const { return data[i * row_step + j * col_step]; }
  MatrixView transposed() const { return {data, cols, rows, col_step, row_step}; }
};

inline MatrixView matrix_view(const float* data, std::int64_t rows, std::int64_t cols) {
  return {data, rows, cols, cols, 1};
}

// The pieces that a pass multiplies: of what streams, and of what is stationary.
struct PiecePair {
  int stream = 0, tile = 0;
};

inline PiecePair pieces_of_pass(std::int64_t passes, std::int64_t pass) {
  static constexpr int stream[] = {2, 1, 0, 1, 0, 0};
  static constexpr int tile[] = {0, 1, 2, 0, 1, 0};
  const std::int64_t i = 6 - passes + pass;
  return {stream[i], tile[i]};
}

// 1, 2 or 3 pieces of one operand, row-major; words are floats, or int32 in their place. f32 that
// lies so already is read where it is; else a copy is made, rounded or turned.
struct ArrayOperand {
  List<float> own[3];
  const float* piece[3] = {};
  int pieces = 1;
  std::int64_t cols = 0;
};

inline float int8_word(float x, const char* function, const char* name) {
  const bool whole = x >= -128 && x <= 127 && x == static_cast<float>(static_cast<int>(x));
  if (!whole) {
    fail({function, ": ", name, " holds ", x,
          "; an int8 array takes whole numbers from -128 to 127"});
  }
  const auto n = static_cast<std::int32_t>(x);
  float word = 0;
  std::memcpy(&word, &n, sizeof word);
  return word;
}

// Throws where an int8 array is given a number that is no int8.
inline ArrayOperand array_operand(const MatrixView& m, DType format, std::int64_t passes,
                                  const char* function, const char* name) {
  ArrayOperand operand;
  operand.pieces = passes == 1 ? 1 : passes == 3 ? 2 : 3;
  operand.cols = m.cols;
  if (format == DType::f32 && m.col_step == 1 && m.row_step == m.cols) {
    operand.piece[0] = m.data;
    return operand;
  }
  for (int p = 0; p < operand.pieces; ++p) {
    operand.own[p] = List<float>(static_cast<std::size_t>(m.rows * m.cols));
    operand.piece[p] = operand.own[p].data();
  }
  for (std::int64_t i = 0; i < m.rows; ++i) {
    for (std::int64_t j = 0; j < m.cols; ++j) {
      float left = m.at(i, j);
      const auto at = static_cast<std::size_t>(i * m.cols + j);
      for (int p = 0; p < operand.pieces; ++p) {
        const float piece = format == DType::int8  ? int8_word(left, function, name)
                            : format == DType::f32 ? left
                                                   : round_to(left, format);
        operand.own[p].data()[at] = piece;
        left = is_finite(piece) ? left - piece : 0.0f;  // an infinity has no rest
      }
    }
  }
  return operand;
}

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/systolic/pe_step.hpp
// One multiply-add of every PE in every tick of a block, a few rows of PEs at a time.
// No wire of the array leads west or north, so a strip of PEs can be stepped through a whole block
// of ticks before those to its south: its sums and weights stay in the CPU's registers. What moves
// through a row or a column stands still in memory, and the PEs' view of it moves the other way.
// A multiply-add rounds once (std::fma) on every CPU path, so results are the same bits everywhere.

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace detail {

constexpr std::int64_t block_ticks = 64;
constexpr int strip_rows = 8;  // rows of PEs stepped together

// A tick at which something in the PEs changes: with the wave (+ r + c), or by column (+ c, or
// not).
struct PeChange {
  std::int64_t tick = 0;  // in the block
  int kind = 0;           // 1: with the wave; 2: by column; 3: all columns at once
};

// Where the registers of the PEs are, for a block of ticks j = 0 .. block_ticks - 1. Planes have
// `step` words a row and begin at PE row `first`; rows above it fill up the first strip.
struct PeBlock {
  std::int64_t first = 0, rows = 0, cols = 0, step = 0;  // rows: a multiple of strip_rows
  const float* west = nullptr;                           // moves east: row r, tick j, PE c is at
  std::int64_t west_step = 0;                            //   west[r west_step + now(j) + c]
  const float* north[3] = {};                            // moves south: [(now(j) + r) step + c]
  const std::int32_t* wave = nullptr;                    // moves both ways: [now(j) + r + c]
  const std::int32_t* leaving = nullptr;                 // the same: sums leave, to plane - 1
  const std::int32_t* loaded = nullptr;                  // by column: [now(j) loaded_tick + c ..]
  std::int64_t loaded_tick = 1, loaded_col = 1;
  float *weight = nullptr, *sum = nullptr;  // resting registers
  float *held[3] = {}, *next[3] = {};       // pieces of the weight in use, and loaded
  int pieces = 1, passes = 1;
  int piece_of[6] = {};    // the piece that pass q multiplies
  float* edge = nullptr;   // [block_ticks + 1, step]: sums going south
  float* exits = nullptr;  // planes of sums that have left their PE
  const List<PeChange>* changes = nullptr;
  const List<std::int32_t>* leavers = nullptr;  // the planes + 1 of this block

  static std::int64_t now(std::int64_t j) { return block_ticks - 1 - j; }

  // The kinds of change that PEs (r .., c ..) see in tick j, and until when nothing else begins.
  int changes_at(std::int64_t j, std::int64_t r, std::int64_t c, std::int64_t width,
                 std::int64_t& until) const {
    int kinds = 0;
    until = block_ticks;
    for (const PeChange& change : *changes) {
      const std::int64_t begin = change.tick + (change.kind == 1   ? r + c
                                                : change.kind == 2 ? c
                                                                   : 0);
      const std::int64_t end = begin + (change.kind == 1   ? strip_rows + width - 1
                                        : change.kind == 2 ? width
                                                           : 1);
      if (begin > j) {
        until = std::min(until, begin);
      } else if (end > j) {
        kinds |= change.kind == 1 ? 1 : 2;
        until = std::min(until, end);
      }
    }
    return kinds;
  }
};

// Floats or 32-bit integers in the lanes of L, from words of either kind.
template <class L, class Word>
struct WordLanes {
  typedef typename L::V V;
  typedef typename L::Loose Loose;
};
template <class L>
struct WordLanes<L, std::int32_t> {
  typedef typename L::I V;
  typedef typename L::LooseI Loose;
};

template <class L, class Word>
TINYSCALE_INLINE void load_words(const float* from, typename WordLanes<L, Word>::V& v) {
  if constexpr (L::width == 1) {
    std::memcpy(&v, from, sizeof v);
  } else {
    v = *reinterpret_cast<const typename WordLanes<L, Word>::Loose*>(from);
  }
}

template <class L, class Word>
TINYSCALE_INLINE void store_words(float* to, const typename WordLanes<L, Word>::V& v) {
  if constexpr (L::width == 1) {
    std::memcpy(to, &v, sizeof v);
  } else {
    *reinterpret_cast<typename WordLanes<L, Word>::Loose*>(to) = v;
  }
}

// s = a w + s, rounded once.
template <class L, class Word>
TINYSCALE_INLINE void multiply_add(const typename WordLanes<L, Word>::V& a,
                                   const typename WordLanes<L, Word>::V& w,
                                   typename WordLanes<L, Word>::V& s) {
#if defined(__clang__)
#pragma clang fp contract(on)
#endif
  if constexpr (L::width == 1 && sizeof(Word) == sizeof(float) && static_cast<Word>(0.5f) > 0) {
    s = std::fma(a, w, s);
  } else {
    s = a * w + s;
  }
}

// Lanes whose code is `code`.
template <class L>
TINYSCALE_INLINE void lanes_with(const std::int32_t* codes, std::int32_t code,
                                 typename L::I& mask) {
  if constexpr (L::width == 1) {
    mask = *codes == code ? -1 : 0;
  } else {
    typename L::I all;
    broadcast_word(code, all);
    mask = *reinterpret_cast<const typename L::LooseI*>(codes) == all;
  }
}

// to = mask ? yes : to, in memory; and in a register.
template <class L, class Word>
TINYSCALE_INLINE void keep_where(const typename L::I& mask,
                                 const typename WordLanes<L, Word>::V& yes, float* to) {
  typename WordLanes<L, Word>::V old;
  load_words<L, Word>(to, old);
  old = mask ? yes : old;
  store_words<L, Word>(to, old);
}

// The registers of a strip, to and from memory.
template <class L, class Word>
TINYSCALE_INLINE void load_strip(const float* from, std::int64_t step,
                                 typename WordLanes<L, Word>::V (&v)[strip_rows]) {
  TINYSCALE_UNROLL
  for (int g = 0; g < strip_rows; ++g) {
    load_words<L, Word>(from + g * step, v[g]);
  }
}
template <class L, class Word>
TINYSCALE_INLINE void store_strip(float* to, std::int64_t step,
                                  const typename WordLanes<L, Word>::V (&v)[strip_rows]) {
  TINYSCALE_UNROLL
  for (int g = 0; g < strip_rows; ++g) {
    store_words<L, Word>(to + g * step, v[g]);
  }
}

// sum(r, c) = activation(r, c - 1) weight(r, c) + sum(r - 1, c): sums move south.
template <class Word>
struct SumsMoveSouth {
  PeBlock b;

  template <class L>
  TINYSCALE_INLINE void run() const {
    typename WordLanes<L, Word>::V w[strip_rows], s[strip_rows], a, in, above;
    for (std::int64_t c = 0; c < b.cols; c += L::width) {
      for (std::int64_t j = 0; j <= block_ticks; ++j) {
        store_words<L, Word>(b.edge + j * b.step + c, typename WordLanes<L, Word>::V{});
      }
      for (std::int64_t r = 0; r < b.rows; r += strip_rows) {
        load_strip<L, Word>(b.sum + r * b.step + c, b.step, s);
        const auto old = s[strip_rows - 1];
        load_words<L, Word>(b.edge + c, above);
        for (std::int64_t j = 0, until = 0; j < block_ticks;) {
          const int kinds = b.changes_at(j, r - b.first, c, L::width, until);
          load_strip<L, Word>(b.weight + r * b.step + c, b.step, w);
          for (; j < until; ++j) {
            if ((kinds & 1) != 0) {
              switch_weights<L>(j, r, c);
              load_strip<L, Word>(b.weight + r * b.step + c, b.step, w);
            }
            in = above;
            load_words<L, Word>(b.edge + (j + 1) * b.step + c, above);
            const float* west = b.west + r * b.west_step + PeBlock::now(j) + c;
            TINYSCALE_UNROLL
            for (int g = strip_rows - 1; g > 0; --g) {  // from the last row: neighbours' old values
              load_words<L, Word>(west + g * b.west_step, a);
              auto sum = s[g - 1];
              multiply_add<L, Word>(a, w[g], sum);
              s[g] = sum;
            }
            load_words<L, Word>(west, a);
            multiply_add<L, Word>(a, w[0], in);
            s[0] = in;
            store_words<L, Word>(b.edge + (j + 1) * b.step + c, s[strip_rows - 1]);
            if ((kinds & 2) != 0) {
              take_weights<L>(j, r, c);
            }
          }
        }
        store_words<L, Word>(b.edge + c, old);
        store_strip<L, Word>(b.sum + r * b.step + c, b.step, s);
      }
    }
  }

 private:
  // PEs that the first slot of a fold reaches take the loaded weights, those that a pass reaches
  // its piece.
  template <class L>
  TINYSCALE_INLINE void switch_weights(std::int64_t j, std::int64_t r, std::int64_t c) const {
    typename L::I mask;
    typename WordLanes<L, Word>::V loaded;
    for (std::int64_t g = std::max(r, b.first); g < r + strip_rows; ++g) {
      const std::int32_t* codes = b.wave + PeBlock::now(j) + g - b.first + c;
      const std::int64_t at = g * b.step + c;
      lanes_with<L>(codes, 1, mask);
      for (int p = 0; p < b.pieces; ++p) {
        load_words<L, Word>(b.next[p] + at, loaded);
        keep_where<L, Word>(mask, loaded, b.held[p] + at);
      }
      for (int q = 0; q < b.passes; ++q) {
        lanes_with<L>(codes, q + 1, mask);
        load_words<L, Word>(b.held[b.piece_of[q]] + at, loaded);
        keep_where<L, Word>(mask, loaded, b.weight + at);
      }
    }
  }

  // Columns whose shift-in is complete keep what has come to each PE.
  template <class L>
  TINYSCALE_INLINE void take_weights(std::int64_t j, std::int64_t r, std::int64_t c) const {
    typename L::I mask;
    typename WordLanes<L, Word>::V moving;
    lanes_with<L>(b.loaded + PeBlock::now(j) * b.loaded_tick + c * b.loaded_col, 1, mask);
    for (int p = 0; p < b.pieces; ++p) {
      for (std::int64_t g = std::max(r, b.first); g < r + strip_rows; ++g) {
        load_words<L, Word>(b.north[p] + (PeBlock::now(j) + g - b.first) * b.step + c, moving);
        keep_where<L, Word>(mask, moving, b.next[p] + g * b.step + c);
      }
    }
  }
};

// sum(r, c) += activation(r, c - 1) weight(r - 1, c): both operands move on, sums stay.
template <class Word>
struct SumsStay {
  PeBlock b;

  template <class L>
  TINYSCALE_INLINE void run() const {
    typename WordLanes<L, Word>::V s[strip_rows], a, w;
    for (std::int64_t c = 0; c < b.cols; c += L::width) {
      for (std::int64_t r = 0; r < b.rows; r += strip_rows) {
        float* sums = b.sum + r * b.step + c;
        load_strip<L, Word>(sums, b.step, s);
        for (std::int64_t j = 0, until = 0; j < block_ticks;) {
          const int kinds = b.changes_at(j, r - b.first, c, L::width, until);
          for (; j < until; ++j) {
            if (kinds != 0) {
              store_strip<L, Word>(sums, b.step, s);
              switch_sums<L>(j, r, c);
              load_strip<L, Word>(sums, b.step, s);
            }
            const float* west = b.west + r * b.west_step + PeBlock::now(j) + c;
            const float* north = b.north[0] + (PeBlock::now(j) + r - b.first) * b.step + c;
            TINYSCALE_UNROLL
            for (int g = 0; g < strip_rows; ++g) {
              load_words<L, Word>(west + g * b.west_step, a);
              load_words<L, Word>(north + g * b.step, w);
              multiply_add<L, Word>(a, w, s[g]);
            }
          }
        }
        store_strip<L, Word>(sums, b.step, s);
      }
    }
  }

 private:
  // A sum that is to leave goes to its fold's plane; the first slot of a fold begins from +0.
  template <class L>
  TINYSCALE_INLINE void switch_sums(std::int64_t j, std::int64_t r, std::int64_t c) const {
    typename L::I mask;
    typename WordLanes<L, Word>::V sum;
    for (std::int64_t g = std::max(r, b.first); g < r + strip_rows; ++g) {
      const std::int64_t slot = PeBlock::now(j) + g - b.first + c;
      load_words<L, Word>(b.sum + g * b.step + c, sum);
      for (const std::int32_t plane : *b.leavers) {
        lanes_with<L>(b.leaving + slot, plane, mask);
        keep_where<L, Word>(mask, sum, b.exits + ((plane - 1) * b.rows + g) * b.step + c);
      }
      lanes_with<L>(b.wave + slot, 1, mask);
      keep_where<L, Word>(mask, typename WordLanes<L, Word>::V{}, b.sum + g * b.step + c);
    }
  }
};

// Whether the lanes of the path in use round a w + s once: asked of the code itself, since compiler
// flags decide it. (1 + e)^2 - (1 + 2 e) is e^2 when fused, else 0.
struct FusedProbe {
  const float* in;  // 16 times 1 + e, then 16 times -(1 + 2 e)
  float* out;

  template <class L>
  TINYSCALE_INLINE void run() const {
    typename L::V a, s;
    load<L>(in, a);
    load<L>(in + 16, s);
    multiply_add<L, float>(a, a, s);
    store<L>(out, s);
  }
};

inline bool lanes_are_fused() {
  const volatile float e = 1.0f / 4096;
  float in[32], out[16] = {};
  for (int i = 0; i < 16; ++i) {
    in[i] = 1 + e;
    in[16 + i] = -(1 + 2 * e);
  }
  run_on_lanes(FusedProbe{in, out});
  return out[0] == e * e;
}

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/systolic/array_registers.hpp
// The registers of an array of PEs, and the feeder that puts words on its west and north edges.

namespace tinyscale { inline namespace TINYSCALE_ABI {

// A word to or from on-chip memory: the tick, the row or column of PEs, the place in its matrix.
struct SramAccess {
  std::int64_t tick = 0, port = 0, word = 0;
};

namespace detail {

// What a run computes with. The stream is x and the tile w; inputs stationary, w^T and x^T.
struct ArrayWork {
  const ArrayOperand* stream = nullptr;
  const ArrayOperand* tile = nullptr;
  float* out = nullptr;                // [M, N] words: floats, or int32 in their place
  std::int64_t array = 0, arrays = 1;  // this MXU of several that stand side by side
  const List<Fold>* folds = nullptr;   // placed; null: each placed after the one before
  std::int64_t first = 0, last = 0;    // the folds to step, [first, last)
  List<SramAccess>* trace[3] = {};     // of stream, tile, output; or null
  List<std::int64_t>* starts =
      nullptr;  // by tick: PEs that began to multiply less those that ended
};

// 32-bit registers in rows of `step`, zeros before the first: +0.0f or the integer 0.
struct PeRegisters {
  List<float> words;  // begins at a cache line, as `step` does
  std::int64_t first = 0;

  PeRegisters() = default;
  PeRegisters(std::int64_t rows, std::int64_t step)
      : words(static_cast<std::size_t>((rows + strip_rows) * step + 16)),
        first(strip_rows * step) {}
  float* data() { return words.data() + first; }
};

struct ArrayRegisters {
  SystolicTiming t;  // counts SRAM accesses
  ArrayWork work;
  PeBlock b;
  std::int64_t begin = 0;   // the block's first tick
  std::int64_t planes = 1;  // of sums that leave at the same time
  PeRegisters west, north[3], weight, sum, held[3], next[3], edge, exits;

  ArrayRegisters(const SystolicTiming& problem, const ArrayWork& w) : t(problem), work(w) {
    b.first = (strip_rows - t.rows % strip_rows) % strip_rows;
    b.rows = t.rows + b.first;
    b.cols = (t.cols + 15) / 16 * 16;
    b.step = b.cols + 16;
    b.west_step = block_ticks + b.cols + 16;
    b.pieces = keeps_outputs(t) ? 1 : work.tile->pieces;
    b.passes = static_cast<int>(t.passes);
    west = PeRegisters(b.rows, b.west_step);
    sum = PeRegisters(b.rows, b.step);
    for (int p = 0; p < b.pieces; ++p) {
      north[p] = PeRegisters(block_ticks + t.rows, b.step);
      b.north[p] = north[p].data();
    }
    keeps_outputs(t) ? make_exits() : make_weights();
    b.west = west.data();
    b.sum = sum.data();
  }

  // The registers that move, as many places on as a block has ticks: room for what enters next.
  void move_on(bool down) {
    const auto words = static_cast<std::size_t>(b.cols);
    const float idle = t.format == DType::int8 ? 0.0f : -0.0f;  // s + -0 * +0 is s, -0 too
    for (std::int64_t r = b.first; r < b.rows; ++r) {
      float* row = west.data() + r * b.west_step;
      std::memmove(row + block_ticks, row, words * sizeof(float));
      std::fill(row, row + block_ticks, idle);
    }
    for (int p = 0; down && p < b.pieces; ++p) {
      float* plane = north[p].data();
      std::memmove(plane + block_ticks * b.step, plane,
                   static_cast<std::size_t>(t.rows * b.step) * sizeof(float));
      std::fill(plane, plane + block_ticks * b.step, 0.0f);
    }
  }

  // The words of a fold's stream that reach the west edge in this block: slot i enters row r in
  // tick stream + i + r.
  void feed_west(const Fold& f) {
    const std::int64_t slots = f.length / t.passes, rows = fold_rows(t, f);
    const std::int64_t cols = work.stream->cols;
    for (std::int64_t q = 0; q < t.passes; ++q) {
      const float* words = work.stream->piece[pieces_of_pass(t.passes, q).stream];
      const std::int64_t base = f.stream + q * slots - begin;
      if (keeps_outputs(t)) {
        for (std::int64_t r = 0; r < rows; ++r) {
          const std::int64_t j = base + r, first = std::max<std::int64_t>(0, -j);
          const std::int64_t last = std::min(slots, block_ticks - j);
          float* to = west.data() + (b.first + r) * b.west_step + PeBlock::now(j);
          const std::int64_t from = (f.m0 + r) * cols;
          for (std::int64_t i = first; i < last; ++i) {
            to[-i] = words[from + i];
          }
          t.sram_reads_input += std::max<std::int64_t>(0, last - first);
          for (std::int64_t i = first; work.trace[0] != nullptr && i < last; ++i) {
            work.trace[0]->push_back({begin + j + i, r, from + i});
          }
        }
        continue;
      }
      const std::int64_t begin_i = std::max<std::int64_t>(0, 1 - rows - base);
      const std::int64_t end_i = std::min(slots, block_ticks - base);
      for (std::int64_t i = begin_i; i < end_i; ++i) {
        const std::int64_t j = base + i, first = std::max<std::int64_t>(0, -j);
        const std::int64_t last = std::min(rows, block_ticks - j);
        float* to = west.data() + b.first * b.west_step + PeBlock::now(j);
        const std::int64_t from = (stream_row(f) + i) * cols + f.k0;
        for (std::int64_t r = first; r < last; ++r) {
          to[r * (b.west_step - 1)] = words[from + r];
        }
        (inputs() ? t.sram_reads_weight : t.sram_reads_input) += last - first;
        for (std::int64_t r = first; work.trace[0] != nullptr && r < last; ++r) {
          work.trace[0]->push_back({begin + j + r, r, from + r});
        }
      }
    }
  }

  // The words that move south: a tile of weights, its last row first, or a stream of w.
  void feed_north(const Fold& f) {
    if (keeps_outputs(t)) {
      const std::int64_t slots = f.length / t.passes;
      for (std::int64_t q = 0; q < t.passes; ++q) {
        enter(f, work.tile->piece[pieces_of_pass(t.passes, q).tile], 0, f.stream + q * slots, 0,
              slots);
      }
      return;
    }
    for (int p = 0; p < b.pieces; ++p) {
      enter(f, work.tile->piece[p], p, f.load, t.rows - fold_rows(t, f), t.rows);
    }
  }

  bool inputs() const { return t.dataflow == Dataflow::input_stationary; }
  std::int64_t stream_row(const Fold& f) const { return inputs() ? f.n0 : f.m0; }
  std::int64_t across(const Fold& f) const {  // the first column of this array's tile
    return (inputs() ? f.m0 : f.n0) + work.array * t.cols;
  }
  std::int64_t used_cols(const Fold& f) const {
    const std::int64_t left = fold_cols(t, f, work.arrays) - work.array * t.cols;
    return std::max<std::int64_t>(0, std::min(t.cols, left));
  }

 private:
  void make_weights() {
    weight = PeRegisters(b.rows, b.step);
    edge = PeRegisters(block_ticks + 1, b.step);
    b.weight = weight.data();
    b.edge = edge.data();
    for (int p = 0; p < b.pieces; ++p) {
      held[p] = PeRegisters(b.rows, b.step);
      next[p] = PeRegisters(b.rows, b.step);
      b.held[p] = held[p].data();
      b.next[p] = next[p].data();
    }
    for (int q = 0; q < b.passes; ++q) {
      b.piece_of[q] = pieces_of_pass(t.passes, q).tile;
    }
    const bool serial = t.schedule == Schedule::serial;
    b.loaded_tick = serial ? 16 : 1;
    b.loaded_col = serial ? 0 : 1;
  }

  // A sum leaves the array at most 2 R ticks after its PE gave it up, and is collected at the end
  // of that block.
  void make_exits() {
    planes = 2 + (2 * t.rows + block_ticks) / fold_period(t);
    exits = PeRegisters(planes * b.rows, b.step);
    b.exits = exits.data();
  }

  // Row i of [first, last) enters column c in tick start + i (+ c unless all columns shift at
  // once).
  void enter(const Fold& f, const float* words, int piece, std::int64_t start, std::int64_t first,
             std::int64_t last) {
    const bool outputs = keeps_outputs(t);
    const std::int64_t skew = outputs || t.schedule != Schedule::serial ? 1 : 0;
    const std::int64_t cols = used_cols(f);
    if (cols == 0) {
      return;
    }
    const std::int64_t base = start - begin;
    const std::int64_t begin_i = std::max(first, skew * (1 - cols) - base);
    const std::int64_t end_i = std::min(last, block_ticks - base);
    for (std::int64_t i = begin_i; i < end_i; ++i) {
      const std::int64_t j = base + i;
      const std::int64_t begin_c = std::max<std::int64_t>(0, -j);
      const std::int64_t end_c = skew == 0 ? cols : std::min(cols, block_ticks - j);
      const std::int64_t row = outputs ? i : f.k0 + t.rows - 1 - i;
      const std::int64_t from = row * work.tile->cols + across(f);
      float* to = north[piece].data() + PeBlock::now(j) * b.step;
      for (std::int64_t c = begin_c; c < end_c; ++c) {
        to[c - skew * c * b.step] = words[from + c];
      }
      if (piece == 0) {
        (inputs() ? t.sram_reads_input : t.sram_reads_weight) += end_c - begin_c;
        for (std::int64_t c = begin_c; work.trace[1] != nullptr && c < end_c; ++c) {
          work.trace[1]->push_back({begin + j + skew * c, c, from + c});
        }
      }
    }
  }
};

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/systolic/array_stepper.hpp
// The array and its clock: every PE, every tick, with the counters of what really happened.
// A block of ticks at a time: the feeder puts words on the edges, the PEs step, results that reach
// an edge are collected, and each PE books the ticks for which it did the same. Weights stationary:
// row r is fed r ticks after row 0; the switch to the weights that shifted in rides on the fold's
// first activation (TPU v1). Outputs stationary: the bottom row's sum leaves a column first.

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace detail {

class ArrayStepper {
 public:
  ArrayStepper(const SystolicTiming& problem, const ArrayWork& work)
      : registers_(problem, work),
        wave_(static_cast<std::size_t>(block_ticks + problem.rows + registers_.b.cols)),
        leaving_(wave_.size()),
        loaded_(static_cast<std::size_t>(block_ticks * 16 + registers_.b.cols)),
        state_(static_cast<std::size_t>(problem.rows * problem.cols)),
        since_(state_.size()) {
    const PeState first = work.first == 0 ? PeState::fill : PeState::absent;
    std::fill(state_.begin(), state_.end(), first);
    PeBlock& b = registers_.b;
    b.wave = wave_.data();
    b.leaving = leaving_.data();
    b.loaded = loaded_.data();
    b.changes = &changes_;
    b.leavers = &leavers_;
    while (number_ < work.first) {
      pass_fold();
    }
    front_ = number_;
    upcoming_ = place_next();
    if (number_ > 0) {
      registers_.begin = outputs() ? upcoming_.stream : upcoming_.load;
    }
  }
  ArrayStepper(const ArrayStepper&) = delete;
  ArrayStepper& operator=(const ArrayStepper&) = delete;

  // The results of all folds have left.
  bool done() const { return pulled_ && due_ == 0; }

  // Steps the next block; settle() or finish() then books it.
  void step() {
    pull(registers_.begin + block_ticks);
    registers_.move_on(moves_down());
    feed();
    outputs() ? step_block<SumsStay>() : step_block<SumsMoveSouth>();
    for (std::size_t i = 0; i < live_.size(); ++i) {
      const auto index = front_ + static_cast<std::int64_t>(i);
      outputs() ? collect_sums(live_[i], index) : collect_south(live_[i]);
    }
  }

  // Steps up to and with a tick and no further: all registers are then those of that tick.
  void step_to(std::int64_t tick) {
    registers_.begin = (tick + 1) % block_ticks - block_ticks;
    while (registers_.begin <= tick) {
      step();
      settle();
    }
  }

  // Steps until the last result has left; gives the tick after that one.
  std::int64_t run() {
    for (step(); !done(); step()) {
      settle();
    }
    return last_exit_ + 1;
  }

  // After run(): the counters, when the last of all arrays' results has left in the tick before
  // `end`.
  SystolicTiming finish(std::int64_t end) {
    book(end);
    for (std::size_t i = 0; i < state_.size(); ++i) {
      if (state_[i] != PeState::absent) {
        close(state_[i], since_[i], end);
      }
    }
    SystolicTiming t = registers_.t;
    t.cycles = end;
    const auto booked = [this](PeState s) { return booked_[static_cast<int>(s)]; };
    t.ledger = {booked(PeState::useful),       booked(PeState::streaming),
                booked(PeState::fill),         booked(PeState::drain),
                booked(PeState::weight_shift), booked(PeState::weight_stall),
                booked(PeState::dma_stall)};
    t.macs = t.ledger.useful;
    t.sram_writes_output = outputs() ? t.sram_writes_output : t.accumulator_writes;
    return t;
  }

  // For pictures, after step_to().
  const ArrayRegisters& registers() const { return registers_; }
  const List<Fold>& live() const { return live_; }
  PeState state(std::int64_t r, std::int64_t c) const {
    return state_[static_cast<std::size_t>(r * t().cols + c)];
  }

 private:
  const SystolicTiming& t() const { return registers_.t; }
  const ArrayWork& work() const { return registers_.work; }
  bool outputs() const { return keeps_outputs(t()); }
  bool instant() const { return t().drain == Drain::instant; }
  bool whole() const { return t().format == DType::int8; }
  std::int64_t folds() const {
    return work().folds != nullptr ? static_cast<std::int64_t>(work().folds->size()) : t().folds();
  }

  // Where the lanes do not round as std::fma does, f32 is stepped one PE after another.
  template <template <class> class Kernel>
  void step_block() const {
    if (whole()) {
      run_on_lanes(Kernel<std::int32_t>{registers_.b});
    } else if (fused_) {
      run_on_lanes(Kernel<float>{registers_.b});
    } else {
      Kernel<float>{registers_.b}.template run<Lanes1>();
    }
  }

  void settle() {
    book(registers_.begin + block_ticks);
    registers_.begin += block_ticks;
    drop();
  }

  Fold place_next() const {
    if (number_ >= folds()) {
      return {};
    }
    if (work().folds != nullptr) {
      return (*work().folds)[static_cast<std::size_t>(number_)];
    }
    Fold fold = tile_of(t(), number_);
    place_fold(t(), number_ == 0 ? nullptr : &placed_, {}, fold);
    return fold;
  }

  void pass_fold() {
    placed_ = place_next();
    ++number_;
  }

  // Whether words are on their way south in this block or just before it.
  bool moves_down() const {
    for (const Fold& f : live_) {
      if (f.load < registers_.begin + block_ticks &&
          f.load + 2 * t().rows + t().cols >= registers_.begin) {
        return true;
      }
    }
    return outputs();
  }

  // Takes up the folds, and their events, that begin before that tick.
  void pull(std::int64_t until) {
    while (!pulled_) {
      const bool end = number_ == folds();
      const std::int64_t begins = outputs() ? upcoming_.stream - upcoming_.dma_stall
                                            : upcoming_.load - upcoming_.weight_stall;
      const std::int64_t before = placed_.end();
      if ((end || number_ > work().first ? (end ? before : std::min(before, begins)) : begins) >=
          until) {
        return;
      }
      if (end) {
        events_.push_back({before, Arrival::by_wave, PeState::drain});
        pulled_ = true;
        return;
      }
      const std::size_t have = events_.size();
      fold_events(t(), number_ == 0 ? nullptr : &placed_, upcoming_, number_, events_);
      if (number_ == work().last) {  // from here on the PEs are another stepper's
        events_.back().state = PeState::absent;
        pulled_ = true;
        return;
      }
      if (number_ == work().first && number_ > 0) {
        events_[have] = PeEvent(events_.back());
        events_.resize(have + 1);
      }
      live_.push_back(upcoming_);
      const std::int64_t cols = t().tight ? registers_.used_cols(upcoming_) : t().cols;
      const std::int64_t rows = t().tight ? fold_rows(t(), upcoming_) : t().rows;
      due_ += cols * (outputs() ? rows : upcoming_.length);
      pass_fold();
      upcoming_ = place_next();
    }
  }

  void feed() {
    std::fill(wave_.begin(), wave_.end(), 0);
    std::fill(leaving_.begin(), leaving_.end(), 0);
    std::fill(loaded_.begin(), loaded_.end(), 0);
    changes_.clear();
    leavers_.clear();
    for (std::size_t i = 0; i < live_.size(); ++i) {
      if (registers_.used_cols(live_[i]) > 0) {
        registers_.feed_west(live_[i]);
        registers_.feed_north(live_[i]);
      }
      mark(live_[i], front_ + static_cast<std::int64_t>(i));
    }
  }

  // Puts a code into the control bits that move with the wave, if any PE sees it in this block.
  bool send(List<std::int32_t>& bits, std::int64_t tick, std::int32_t value) {
    const std::int64_t at = PeBlock::now(tick - registers_.begin);
    if (at < 0 || at > block_ticks + t().rows + t().cols - 3) {
      return false;
    }
    bits[static_cast<std::size_t>(at)] = value;
    changes_.push_back({tick - registers_.begin, 1});
    return true;
  }

  void mark(const Fold& f, std::int64_t index) {
    if (outputs()) {
      const auto plane = static_cast<std::int32_t>(index % registers_.planes + 1);
      if (send(leaving_, f.drain, plane)) {
        leavers_.push_back(plane);
      }
      send(wave_, f.stream, 1);
      return;
    }
    for (std::int64_t q = 0; q < t().passes; ++q) {
      send(wave_, f.stream + q * (f.length / t().passes), static_cast<std::int32_t>(q + 1));
    }
    const std::int64_t j = f.load + t().rows - 1 - registers_.begin;  // the shift is complete
    const std::int64_t at = PeBlock::now(j);
    if (t().schedule != Schedule::serial) {
      if (at >= 0 && at <= block_ticks + t().cols - 2) {
        loaded_[static_cast<std::size_t>(at)] = 1;
        changes_.push_back({j, 2});
      }
    } else if (at >= 0 && at < block_ticks) {
      std::fill_n(loaded_.begin() + at * 16, 16, 1);
      changes_.push_back({j, 3});
    }
  }

  // Results for consecutive words of the product: the first leaves in `tick` through `port`, the
  // next a tick later. Accumulators add to what they have.
  struct Line {
    const float* from;
    std::int64_t apart;  // of one result from the next in the registers
    std::int64_t count;  // those that are no padding
    std::int64_t word, tick, port, next_port;
  };

  void deliver(const Line& line, bool adds) {
    float* to = work().out + line.word;
    for (std::int64_t i = 0; i < line.count && adds && whole(); ++i) {
      std::int32_t a = 0, b = 0;
      std::memcpy(&a, to + i, sizeof a);
      std::memcpy(&b, line.from + i * line.apart, sizeof b);
      a += b;
      std::memcpy(to + i, &a, sizeof a);
    }
    for (std::int64_t i = 0; i < line.count && !adds; ++i) {
      to[i] = line.from[i * line.apart];
    }
    for (std::int64_t i = 0; i < line.count && adds && !whole(); ++i) {
      to[i] += line.from[i * line.apart];
    }
    for (std::int64_t i = 0; i < line.count && work().trace[2] != nullptr; ++i) {
      work().trace[2]->push_back({line.tick + i, line.port + i * line.next_port, line.word + i});
    }
  }

  // `count` results have left, the last one in that tick.
  void leave(std::int64_t count, std::int64_t tick) {
    due_ -= count;
    last_exit_ = count > 0 ? std::max(last_exit_, tick) : last_exit_;
  }

  // South edge: sums that are complete go to the accumulators. Slot i of column c leaves in tick
  // base + i + c of the block; inner loops run along a row of the product.
  void collect_south(const Fold& f) {
    const ArrayRegisters& g = registers_;
    const std::int64_t slots = f.length / t().passes, used = g.used_cols(f);
    const std::int64_t due = t().tight ? used : t().cols;
    const bool inputs = g.inputs();
    for (std::int64_t q = 0; q < t().passes; ++q) {
      const std::int64_t base = f.stream + q * slots + t().rows - 1 - g.begin;
      const bool adds = f.k0 > 0 || q > 0;
      const std::int64_t outer = inputs ? due : slots, inner = inputs ? slots : due;
      const std::int64_t end = std::min(outer, block_ticks - base);
      for (std::int64_t o = std::max<std::int64_t>(0, 1 - inner - base); o < end; ++o) {
        const std::int64_t j = base + o, first = std::max<std::int64_t>(0, -j);
        const std::int64_t last = std::min(inner, block_ticks - j);
        const std::int64_t real =
            inputs ? (o < used ? last : first) : std::max(first, std::min(last, used));
        const std::int64_t c = inputs ? o : first, i = inputs ? first : o;
        const std::int64_t word = inputs ? (g.across(f) + c) * t().n + g.stream_row(f) + i
                                         : (g.stream_row(f) + i) * t().n + g.across(f) + c;
        deliver({g.b.edge + (j + first + 1) * g.b.step + c, g.b.step + (inputs ? 0 : 1),
                 real - first, word, g.begin + j + first, c, inputs ? 0 : 1},
                adds);
        leave(last - first, g.begin + j + last - 1);
        registers_.t.accumulator_writes += real - first;
        registers_.t.accumulator_reads += adds ? real - first : 0;
      }
    }
  }

  // Sums that leave: shifted, row R - 1 - q of column c with shift q; instant, as they end.
  void collect_sums(const Fold& f, std::int64_t index) {
    const ArrayRegisters& g = registers_;
    const std::int64_t rows = fold_rows(t(), f), used = g.used_cols(f);
    const std::int64_t due_rows = t().tight ? rows : t().rows;
    const std::int64_t due_cols = t().tight ? used : t().cols;
    const float* plane = g.b.exits + (index % g.planes * g.b.rows + g.b.first) * g.b.step;
    for (std::int64_t r = 0; r < due_rows; ++r) {
      const std::int64_t j = f.drain - g.begin + (instant() ? r : 2 * t().rows - 2 - r);
      const std::int64_t first = std::max<std::int64_t>(0, -j);
      const std::int64_t last = std::min(due_cols, block_ticks - j);
      if (first >= last) {
        continue;
      }
      const std::int64_t real = r < rows ? std::max(first, std::min(last, used)) : first;
      const std::int64_t tick = g.begin + j - (instant() ? 1 : 0);
      deliver(
          {plane + r * g.b.step + first, 1, real - first, (f.m0 + r) * t().n + g.across(f) + first,
           tick + first, (instant() ? r * t().cols : 0) + first, 1},
          false);
      leave(last - first, tick + last - 1);
      registers_.t.sram_writes_output += real - first;
    }
  }

  // The PEs that an event reaches in [begin, limit) book what they did until then.
  void book(std::int64_t limit) {
    const std::int64_t begin = registers_.begin, rows = t().rows, cols = t().cols;
    std::size_t over = 0;  // events that have reached all PEs
    for (const PeEvent& event : events_) {
      const std::int64_t down = event.arrival == Arrival::by_wave ? 1 : 0;
      const std::int64_t east = event.arrival == Arrival::together ? 0 : 1;
      if (event.tick >= limit) {
        break;
      }
      std::int64_t real_rows = 0, real_cols = 0;
      if (event.state == PeState::streaming) {
        const Fold& f = live_[static_cast<std::size_t>(event.fold - front_)];
        real_rows = fold_rows(t(), f);
        real_cols = registers_.used_cols(f);
      }
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::int64_t tick = event.tick + down * r;
        if (tick >= limit || (east == 0 && tick < begin)) {
          break;
        }
        const std::int64_t first = east == 0 ? 0 : std::max<std::int64_t>(0, begin - tick);
        const std::int64_t last = east == 0 ? cols : std::min(cols, limit - tick);
        PeState* states = state_.data() + r * cols;
        std::int64_t* since = since_.data() + r * cols;
        for (std::int64_t c = first; c < last; ++c) {
          close(states[c], since[c], tick + east * c);
          since[c] = tick + east * c;
          states[c] = r < real_rows && c < real_cols ? PeState::useful : event.state;
        }
      }
      const std::int64_t everywhere = event.tick + down * (rows - 1) + east * (cols - 1);
      if (everywhere < limit && over == static_cast<std::size_t>(&event - events_.begin())) {
        ++over;
      }
    }
    remove_front(events_, over);
  }

  void close(PeState state, std::int64_t since, std::int64_t tick) {
    booked_[static_cast<int>(state)] += tick - since;
    const bool multiplied = state == PeState::useful || state == PeState::streaming;
    if (work().starts != nullptr && multiplied) {
      ++(*work().starts)[static_cast<std::size_t>(since)];
      --(*work().starts)[static_cast<std::size_t>(tick)];
    }
  }

  template <class T>
  static void remove_front(List<T>& list, std::size_t n) {
    for (std::size_t i = n; n > 0 && i < list.size(); ++i) {
      list[i - n] = list[i];
    }
    list.resize(list.size() - n);
  }

  void drop() {
    std::size_t over = 0;
    while (over < live_.size()) {
      const Fold& f = live_[over];
      const std::int64_t left =
          outputs() ? f.drain + 2 * t().rows + t().cols : f.end() + t().rows + t().cols;
      if (left > registers_.begin) {
        break;
      }
      ++over;
    }
    remove_front(live_, over);
    front_ += static_cast<std::int64_t>(over);
  }

  ArrayRegisters registers_;
  bool fused_ = lanes_are_fused();
  std::int64_t number_ = 0;  // of the fold to place next
  std::int64_t front_ = 0;   // of the fold that is live_[0]
  Fold placed_, upcoming_;   // the last one placed, and the next
  List<Fold> live_;          // that shift in, stream or leave in this block
  bool pulled_ = false;      // no fold and no event is to come
  List<PeEvent> events_;     // that have not reached every PE
  std::int64_t due_ = 0;     // results that have yet to leave, padding too unless tight
  std::int64_t last_exit_ = -1;
  List<std::int32_t> wave_, leaving_, loaded_;
  List<PeChange> changes_;
  List<std::int32_t> leavers_;
  List<PeState> state_;       // what each PE does
  List<std::int64_t> since_;  // and since when
  std::int64_t booked_[8] = {};
};

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/systolic/systolic_array.hpp
// A systolic array of R x C processing elements: matmul() steps every PE through every tick and
// gives the product with its counters; timing() gives the same counters in closed form.
// Kung and Leiserson 1979; Jouppi et al. 2017 (TPU v1). Sums are fp32, a multiply-add rounds once:
//   weights, inputs stationary: for each tile of R rows of w, s = fma(x, w, s) down the rows from
//   +0, then the tiles' sums are added in order; outputs stationary: one s over k = 0 .. K - 1.
// In several passes: each tile pass by pass, or one s over all k of a pass, then of the next.

namespace tinyscale { inline namespace TINYSCALE_ABI {

class SystolicArray {
 public:
  // Throws unless there is at least one row and one column.
  SystolicArray(Dim rows, Dim cols, Dataflow dataflow = Dataflow::weight_stationary)
      : rows_(rows.value), cols_(cols.value), dataflow_(dataflow) {
    if (rows_ < 1 || cols_ < 1) {
      detail::fail({"SystolicArray: ", rows_, " rows and ", cols_,
                    " columns were given; an array has at least 1 of each"});
    }
  }

  Schedule schedule = Schedule::doubled;
  Drain drain = Drain::shifted;
  bool tight = false;         // stop at the last useful result: no wait for that of a full tile
  DType format = DType::f32;  // of the operands; also bf16, fp8_e4m3, fp8_e5m2, int8
  int passes = 1;             // bf16 only: 3 or 6 products of bf16 pieces for an f32 one

  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  Dataflow dataflow() const { return dataflow_; }

  // x [.., M, K] times w [K, N]: the product [.., M, N] and what it cost, stepped tick by tick.
  // Throws when the inner sizes differ, a size is zero, or an int8 array is given no int8. No
  // gradient flows through it.
  SystolicRun matmul(const Tensor& x, const Tensor& w) const;

  // The costs of x [M, K] times w [K, N], no stepping. Throws when a size is below 1, or so large
  // that a count does not fit 64 bits.
  SystolicTiming timing(Dim m, Dim k, Dim n) const {
    SystolicTiming t = problem("SystolicArray::timing", m.value, k.value, n.value);
    detail::time_array(t);
    return t;
  }

  // The case before any count: sizes, folds and T.
  SystolicTiming problem(const char* function, std::int64_t m, std::int64_t k,
                         std::int64_t n) const {
    check_modes(function);
    if (m < 1 || k < 1 || n < 1) {
      detail::fail({function, ": M, K, N are ", m, ", ", k, ", ", n, "; each must be at least 1"});
    }
    if (format == DType::int8 && k > 131071) {
      detail::fail({function, ": K is ", k, "; int32 sums of int8 products hold at most 131071"});
    }
    SystolicTiming t;
    t.rows = rows_;
    t.cols = cols_;
    t.dataflow = dataflow_;
    t.schedule = schedule;
    t.drain = drain;
    t.tight = tight;
    t.format = format;
    t.passes = passes;
    t.m = m;
    t.k = k;
    t.n = n;
    detail::fold(t);
    if (!detail::countable(t)) {
      detail::fail({function, ": M, K, N are ", m, ", ", k, ", ", n, " on ", rows_, " x ", cols_,
                    " PEs; the PE-ticks must stay below 2^62"});
    }
    return t;
  }

 private:
  void check_modes(const char* function) const {
    const bool outputs = dataflow_ == Dataflow::output_stationary;
    const bool shifted = drain == Drain::shifted;
    if (!outputs && !shifted) {
      detail::fail({function, ": drain is instant, the array ", name_of(dataflow_),
                    "; instant is for output_stationary, here drain must be shifted"});
    }
    if (outputs && schedule != Schedule::serial && (schedule == Schedule::skewed || !shifted)) {
      detail::fail({function, ": schedule is ", name_of(schedule), ", drain ", name_of(drain),
                    "; an output_stationary array has serial with shifted or instant, and doubled "
                    "with shifted"});
    }
    if (format != DType::f32 && format != DType::bf16 && format != DType::fp8_e4m3 &&
        format != DType::fp8_e5m2 && format != DType::int8) {
      detail::fail({function, ": format is ", name_of(format),
                    "; there are f32, bf16, fp8_e4m3, fp8_e5m2 and int8"});
    }
    if (passes != 1 && (format != DType::bf16 || (passes != 3 && passes != 6))) {
      detail::fail({function, ": passes is ", passes, ", format ", name_of(format),
                    "; bf16 has 1, 3 or 6 passes, other formats 1"});
    }
  }

  std::int64_t rows_;
  std::int64_t cols_;
  Dataflow dataflow_;
};

namespace detail {

constexpr std::int64_t most_stepped = std::int64_t{1} << 26;  // PEs
constexpr double most_pe_ticks = 0x1p40;                      // a minute or more

// The operands of a case as the array reads them.
struct ArrayOperands {
  ArrayOperand stream, tile;

  ArrayOperands(const SystolicTiming& t, const char* function, const MatrixView& x,
                const MatrixView& w) {
    const bool inputs = t.dataflow == Dataflow::input_stationary;  // the transposed product
    ArrayOperand ox = array_operand(inputs ? x.transposed() : x, t.format, t.passes, function, "x");
    ArrayOperand ow = array_operand(inputs ? w.transposed() : w, t.format, t.passes, function, "w");
    stream = std::move(inputs ? ow : ox);
    tile = std::move(inputs ? ox : ow);
  }

  ArrayWork work(float* out) const {
    ArrayWork all;
    all.stream = &stream;
    all.tile = &tile;
    all.out = out;
    return all;
  }
};

inline void add_counts(const SystolicTiming& part, SystolicTiming& all) {
  all.macs += part.macs;
  all.sram_reads_input += part.sram_reads_input;
  all.sram_reads_weight += part.sram_reads_weight;
  all.sram_writes_output += part.sram_writes_output;
  all.accumulator_reads += part.accumulator_reads;
  all.accumulator_writes += part.accumulator_writes;
  add_times(part.ledger, 1, all.ledger);
}

// Columns of tiles are independent: each part of them has an array of its own on a thread of its
// own, and its PEs are counted from the moment the wave of its first tile reaches them.
inline List<ArrayWork> divide(const SystolicTiming& t, const ArrayWork& whole) {
  const std::int64_t folds =
      whole.folds == nullptr ? t.folds() : static_cast<std::int64_t>(whole.folds->size());
  const std::int64_t parts = std::max<std::int64_t>(
      1, std::min<std::int64_t>(t.rows * t.cols * folds * t.stream >> 21,
                                whole.trace[0] == nullptr ? thread_count() / whole.arrays : 1));
  List<ArrayWork> works;
  std::int64_t first = 0;
  for (std::int64_t f = 1; f <= folds; ++f) {
    const Fold fold = f == folds               ? Fold()
                      : whole.folds != nullptr ? (*whole.folds)[static_cast<std::size_t>(f)]
                                               : tile_of(t, f);
    const bool whole_k = whole.folds == nullptr ||  // the sums before this fold are complete
                         (*whole.folds)[static_cast<std::size_t>(f - 1)].k0 + t.rows >= t.k;
    const bool begins = keeps_outputs(t) ? fold.m0 == 0 : fold.k0 == 0 && whole_k;
    const auto done =
        static_cast<std::int64_t>(works.size() / static_cast<std::size_t>(whole.arrays));
    if (f == folds || (begins && f * parts >= folds * (done + 1))) {
      for (std::int64_t a = 0; a < whole.arrays; ++a) {
        works.push_back(whole);
        works.back().array = a;
        works.back().first = first;
        works.back().last = f;
      }
      first = f;
    }
  }
  return works;
}

// Steps every PE of every array through a run; `whole` says what is computed.
inline SystolicTiming step_array(const SystolicTiming& problem, const ArrayWork& whole) {
  List<ArrayWork> works = divide(problem, whole);
  List<Shared<ArrayStepper>> steppers(works.size());
  std::vector<std::int64_t> ends(works.size());
  const auto step = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto at = static_cast<std::size_t>(i);
      steppers[at].reset(new ArrayStepper(problem, works[at]));
      ends[at] = steppers[at]->run();
    }
  };
  parallel_for(static_cast<std::int64_t>(works.size()), 1, LoopBody(step));
  SystolicTiming all = problem;
  all.cycles = *std::max_element(ends.begin(), ends.end());  // tight: not always the last tile's
  for (const Shared<ArrayStepper>& stepper : steppers) {
    add_counts(stepper->finish(all.cycles), all);
  }
  return all;
}

// The same for placed folds on several arrays; null: the folds of the case, on one array. x [M, K],
// w [K, N], out [M, N] words.
inline SystolicTiming step_folds(const SystolicTiming& problem, const List<Fold>* folds,
                                 std::int64_t arrays, const MatrixView& x, const MatrixView& w,
                                 float* out, const char* function) {
  const std::int64_t ticks =
      folds == nullptr ? nth_fold(problem, problem.folds() - 1).end() : folds->back().end();
  if (static_cast<double>(problem.rows * problem.cols * arrays) * static_cast<double>(ticks) >
      most_pe_ticks) {
    fail({function, ": ", arrays, " x ", problem.rows, " x ", problem.cols, " PEs for ", ticks,
          " ticks; at most 2^40 PE-ticks are stepped, timing takes larger ones"});
  }
  const ArrayOperands operands(problem, function, x, w);
  ArrayWork work = operands.work(out);
  work.arrays = arrays;
  work.folds = folds;
  return step_array(problem, work);
}

// Sizes of x [.., M, K] times w [K, N], and the case they make on the array.
struct ArrayProblem {
  Shape output;  // [.., M, N]
  SystolicTiming timing;
  MatrixView x, w;
  Tensor own_x, own_w;  // what they look at

  ArrayProblem(const char* function, const SystolicArray& array, const Tensor& tx,
               const Tensor& tw) {
    const Matmul sizes = matmul_sizes(function, tx, tw, kernels::Trans::no);
    output = sizes.shape;
    timing = array.problem(function, sizes.m, sizes.k, sizes.n);
    if (timing.rows > most_stepped / timing.cols) {
      fail({function, ": the array is ", timing.rows, " x ", timing.cols,
            "; at most 2^26 PEs can be stepped, timing() takes larger ones"});
    }
    own_x = contiguous(tx);
    own_w = contiguous(tw);
    x = matrix_view(own_x.data(), sizes.m, sizes.k);
    w = matrix_view(own_w.data(), sizes.k, sizes.n);
  }
};

// int32 sums, and the floats nearest to them in their place.
inline std::vector<std::int32_t> whole_sums(float* words, std::int64_t count) {
  std::vector<std::int32_t> sums(static_cast<std::size_t>(count));
  std::memcpy(sums.data(), words, sums.size() * sizeof(float));
  for (std::int64_t i = 0; i < count; ++i) {
    words[i] = static_cast<float>(sums[static_cast<std::size_t>(i)]);
  }
  return sums;
}

}  // namespace detail

inline SystolicRun SystolicArray::matmul(const Tensor& x, const Tensor& w) const {
  const detail::ArrayProblem p("SystolicArray::matmul", *this, x, w);
  SystolicRun run;
  run.output = zeros(p.output);
  static_cast<SystolicTiming&>(run) = detail::step_folds(
      p.timing, nullptr, 1, p.x, p.w, run.output.data(), "SystolicArray::matmul");
  detail::rate(run, run.stream * run.folds());
  if (format == DType::int8) {
    run.sums = detail::whole_sums(run.output.data(), run.output.count());
  }
  return run;
}

}}  // namespace tinyscale

// >> tinyscale/systolic/sram_trace.hpp
// Every word that an array reads from and writes to on-chip memory, tick by tick.
// As SCALE-Sim writes it: a line per tick, a column per port, an address or nothing; x begins at 0,
// w at 10,000,000, the product at 20,000,000. Ticks count from 0 in all three files, so that they
// can be laid side by side (SCALE-Sim counts reads from 1 and writes from 0).

namespace tinyscale { inline namespace TINYSCALE_ABI {

// Accesses in the order of their ticks. Rows of PEs are ports for what streams, columns for the
// rest; with instant drain each PE has a port of its own: row * cols + column.
struct SramTrace {
  List<SramAccess> input, weight, output;

  std::string csv_input() const { return csv(input, 0); }
  std::string csv_weight() const { return csv(weight, 10000000); }
  std::string csv_output() const { return csv(output, 20000000); }

 private:
  static std::string csv(const List<SramAccess>& accesses, std::int64_t offset) {
    std::int64_t ports = 0;
    for (const SramAccess& access : accesses) {
      ports = std::max(ports, access.port + 1);
    }
    std::string out = "tick";
    for (std::int64_t p = 0; p < ports; ++p) {
      out += ",port " + std::to_string(p);
    }
    std::int64_t tick = -1, port = 0;
    for (const SramAccess& access : accesses) {
      if (access.tick != tick) {
        out += (tick < 0 ? "" : std::string(static_cast<std::size_t>(ports - port), ',')) + "\n" +
               std::to_string(access.tick);
        tick = access.tick;
        port = 0;
      }
      out += std::string(static_cast<std::size_t>(access.port + 1 - port), ',') +
             std::to_string(access.word + offset);
      port = access.port + 1;
    }
    return out + std::string(static_cast<std::size_t>(ports - port), ',') + "\n";
  }
};

namespace detail {

constexpr std::int64_t most_traced = std::int64_t{1} << 24;

// In the order of ticks, then ports: by counting, since both are small numbers.
inline List<SramAccess> by_tick(const List<SramAccess>& accesses, std::int64_t ticks) {
  List<std::size_t> first(static_cast<std::size_t>(ticks + 1));
  for (const SramAccess& access : accesses) {
    ++first[static_cast<std::size_t>(access.tick + 1)];
  }
  for (std::size_t i = 1; i < first.size(); ++i) {
    first[i] += first[i - 1];
  }
  List<SramAccess> sorted(accesses.size());
  for (const SramAccess& access : accesses) {
    std::size_t at = first[static_cast<std::size_t>(access.tick)]++;
    for (; at > 0 && sorted[at - 1].tick == access.tick && sorted[at - 1].port > access.port;
         --at) {
      sorted[at] = sorted[at - 1];
    }
    sorted[at] = access;
  }
  return sorted;
}

// Places in a matrix [rows, cols] from those in its transpose.
inline void turn_words(List<SramAccess>& accesses, std::int64_t rows, std::int64_t cols) {
  for (SramAccess& access : accesses) {
    access.word = access.word % rows * cols + access.word / rows;
  }
}

}  // namespace detail

// The accesses of array.matmul(x, w), from stepping it. Throws when there are more than 2^24 words.
inline SramTrace sram_trace(const SystolicArray& array, const Tensor& x, const Tensor& w) {
  const detail::ArrayProblem p("sram_trace", array, x, w);
  const SystolicTiming& t = p.timing;
  SystolicTiming counted = t;
  detail::time_array(counted);
  const std::int64_t words =
      counted.sram_reads_input + counted.sram_reads_weight + counted.sram_writes_output;
  if (words > detail::most_traced) {
    detail::fail({"sram_trace: ", words, " words are read and written; at most ",
                  detail::most_traced, " are traced, timing() counts more"});
  }
  const detail::ArrayOperands operands(t, "sram_trace", p.x, p.w);
  Tensor product = zeros(p.output);
  SramTrace trace;
  const bool inputs = t.dataflow == Dataflow::input_stationary;
  detail::ArrayWork work = operands.work(product.data());
  work.trace[0] = inputs ? &trace.weight : &trace.input;
  work.trace[1] = inputs ? &trace.input : &trace.weight;
  work.trace[2] = &trace.output;
  detail::step_array(t, work);
  if (inputs) {
    detail::turn_words(trace.weight, t.k, t.n);
    detail::turn_words(trace.input, t.m, t.k);
  }
  trace.input = detail::by_tick(trace.input, counted.cycles);
  trace.weight = detail::by_tick(trace.weight, counted.cycles);
  trace.output = detail::by_tick(trace.output, counted.cycles);
  return trace;
}

}}  // namespace tinyscale

// >> tinyscale/systolic/wavefront.hpp
// Which PE holds what in one tick: a picture of the array's real registers.
// The array is stepped up to that tick; nothing is computed from a formula. Small arrays show each
// PE's operands, large ones a letter a PE.

namespace tinyscale { inline namespace TINYSCALE_ABI {

// One PE after a tick. Indices are those of the operands it multiplies: x[m, k] and w[k, n].
struct WavefrontCell {
  char state = '>';  // '#' useful, 'o' padded, '>' fill, '<' drain, 'v' shift, '.' stall
  std::int64_t fold = -1;
  std::int64_t m = -1;
  std::int64_t k = -1;
  std::int64_t n = -1;
  float moving = 0;  // the register that moves east
  float held = 0;    // the stationary weight or input; outputs stationary: the weight moving south
  float next = 0;    // the second register: the next weight, or a sum on its way out
  float sum = 0;

  // Its operands, or why it has none, in at least 14 columns.
  std::string text() const {
    std::string what = state == '#'   ? detail::cat("x", m, ",", k, " w", k, ",", n)
                       : state == 'o' ? "padded"
                       : state == '>' ? "fill"
                       : state == '<' ? "drain"
                                      : "shift";
    what.resize(std::max<std::size_t>(what.size() + 2, 14), ' ');
    return what;
  }
};

struct Wavefront {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t tick = 0;
  Dataflow dataflow = Dataflow::weight_stationary;
  List<WavefrontCell> cells;  // row-major

  const WavefrontCell& at(std::int64_t r, std::int64_t c) const {
    return cells[static_cast<std::size_t>(r * cols + c)];
  }

  // PEs that multiply in this tick, padding included.
  std::int64_t busy() const {
    std::int64_t count = 0;
    for (const WavefrontCell& cell : cells) {
      count += cell.state == '#' || cell.state == 'o' ? 1 : 0;
    }
    return count;
  }

  std::string text() const {
    std::string out = detail::cat("tick ", tick, ", ", name_of(dataflow), ": ", busy(), " of ",
                                  rows * cols, " PEs multiply\n");
    const bool detailed = cols <= 6 && rows <= 16;
    for (std::int64_t r = 0; r < rows; ++r) {
      std::string line;
      for (std::int64_t c = 0; c < cols; ++c) {
        line += detailed ? at(r, c).text() : std::string(1, at(r, c).state);
      }
      out += line.erase(line.find_last_not_of(' ') + 1) + "\n";
    }
    return detailed ? out : out + "# useful  o padded  > fill  < drain  v weights shift in\n";
  }

  // One row per PE.
  Table table() const {
    Table t;
    t.columns = {"row", "col", "state", "fold", "m", "k", "n", "moving", "held", "next", "sum"};
    for (std::int64_t i = 0; i < rows * cols; ++i) {
      const WavefrontCell& cell = cells[static_cast<std::size_t>(i)];
      t.add({std::to_string(i / cols), std::to_string(i % cols), std::string(1, cell.state),
             std::to_string(cell.fold), std::to_string(cell.m), std::to_string(cell.k),
             std::to_string(cell.n), detail::cat(cell.moving), detail::cat(cell.held),
             detail::cat(cell.next), detail::cat(cell.sum)});
    }
    return t;
  }

  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
};

inline std::ostream& operator<<(std::ostream& out, const Wavefront& w) { return out << w.text(); }

namespace detail {

// The product's indices of a PE that multiplies: it sees the slot that was sent r + c ticks ago.
inline void name_operands(const ArrayStepper& stepper, std::int64_t tick, std::int64_t r,
                          std::int64_t c, WavefrontCell& cell) {
  const SystolicTiming& t = stepper.registers().t;
  for (const Fold& f : stepper.live()) {
    const std::int64_t slot = tick - r - c - f.stream;
    if (slot >= 0 && slot < f.length) {
      const std::int64_t index = slot % (f.length / t.passes);
      const bool inputs = t.dataflow == Dataflow::input_stationary;
      cell.fold =
          (keeps_outputs(t) ? f.m0 : f.k0) / t.rows + (inputs ? f.m0 : f.n0) / t.cols * t.row_folds;
      cell.m = keeps_outputs(t) ? f.m0 + r : inputs ? f.m0 + c : index;
      cell.k = keeps_outputs(t) ? index : f.k0 + r;
      cell.n = inputs ? index : f.n0 + c;
    }
  }
}

// A word of a register as a number: in an int8 array it holds an integer.
inline float register_value(const SystolicTiming& t, const float* word) {
  std::int32_t whole = 0;
  std::memcpy(&whole, word, sizeof whole);
  return t.format == DType::int8 ? static_cast<float>(whole) : *word;
}

inline WavefrontCell snapshot_cell(const ArrayStepper& stepper, std::int64_t tick, std::int64_t r,
                                   std::int64_t c) {
  const PeBlock& b = stepper.registers().b;
  const SystolicTiming& t = stepper.registers().t;
  const std::int64_t at = (b.first + r) * b.step + c;
  const bool outputs = keeps_outputs(t);
  WavefrontCell cell;
  const PeState state = stepper.state(r, c);
  cell.state = state == PeState::useful         ? '#'
               : state == PeState::streaming    ? 'o'
               : state == PeState::fill         ? '>'
               : state == PeState::drain        ? '<'
               : state == PeState::weight_shift ? 'v'
                                                : '.';
  if (state == PeState::streaming || state == PeState::useful) {
    name_operands(stepper, tick, r, c, cell);
  }
  cell.moving = register_value(t, b.west + (b.first + r) * b.west_step + c) + 0.0f;  // idle: -0
  cell.held = register_value(t, outputs ? b.north[0] + r * b.step + c : b.weight + at);
  if (!outputs) {  // while a tile shifts in, what passes by; then what came to rest
    bool shifting = false;
    for (const Fold& f : stepper.live()) {
      const std::int64_t shift = tick - f.load - (t.schedule == Schedule::serial ? 0 : c);
      shifting = shifting || (shift >= r && shift < t.rows - 1);
    }
    cell.next = register_value(t, shifting ? b.north[0] + r * b.step + c : b.next[0] + at);
  } else if (t.drain == Drain::shifted) {
    for (const Fold& f : stepper.live()) {  // a sum moves south once its column's shift has begun
      const std::int64_t shifts = std::max<std::int64_t>(0, tick - f.drain - t.rows + 1 - c);
      if (tick >= f.drain + std::max<std::int64_t>(0, r - shifts) + c && shifts <= r) {
        const std::int64_t fold = f.m0 / t.rows + f.n0 / t.cols * t.row_folds;
        const std::int64_t plane = fold % stepper.registers().planes;
        cell.next = register_value(t, b.exits + (plane * b.rows) * b.step + at - shifts * b.step);
      }
    }
  }
  cell.sum = register_value(t, b.sum + at);
  return cell;
}

}  // namespace detail

// PEs that multiply in each tick of a run, padding included.
struct ActivePes {
  std::vector<std::int64_t> simulated;  // counted from what every PE did
  std::vector<std::int64_t> formula;    // sum over folds of D(t - s) - D(t - s - T)
};

inline ActivePes active_pes(const SystolicArray& array, const Tensor& x, const Tensor& w) {
  const detail::ArrayProblem p("active_pes", array, x, w);
  const detail::ArrayOperands operands(p.timing, "active_pes", p.x, p.w);
  const SystolicTiming t = array.timing(p.timing.m, p.timing.k, p.timing.n);
  if (t.cycles > std::int64_t{1} << 24) {
    detail::fail({"active_pes: the run takes ", t.cycles, " ticks; at most 2^24 are counted"});
  }
  Tensor product = zeros(p.output);
  List<std::int64_t> starts(static_cast<std::size_t>(t.cycles + 1));
  detail::ArrayWork work = operands.work(product.data());
  work.starts = &starts;
  work.last = t.folds();
  detail::ArrayStepper stepper(p.timing, work);
  stepper.finish(stepper.run());
  ActivePes active;
  std::int64_t now = 0;
  for (std::int64_t tick = 0; tick < t.cycles; ++tick) {
    now += starts[static_cast<std::size_t>(tick)];
    active.simulated.push_back(now);
  }
  active.formula.resize(active.simulated.size());
  const auto reached = [&t](std::int64_t tick) {  // D: PEs that a wave begun at tick 0 has reached
    return detail::ticks_since(t, detail::Arrival::by_wave, tick + 1) -
           detail::ticks_since(t, detail::Arrival::by_wave, tick);
  };
  for (std::int64_t f = 0; f < t.folds(); ++f) {
    const detail::Fold fold = detail::nth_fold(t, f);
    const std::int64_t last = std::min(t.cycles, fold.end() + t.rows + t.cols - 2);
    for (std::int64_t tick = fold.stream; tick < last; ++tick) {
      active.formula[static_cast<std::size_t>(tick)] +=
          reached(tick - fold.stream) - reached(tick - fold.end());
    }
  }
  return active;
}

// The array in the given tick (from 0) of array.matmul(x, w). Throws after the last one.
inline Wavefront wavefront(const SystolicArray& array, const Tensor& x, const Tensor& w, Dim tick) {
  const detail::ArrayProblem p("wavefront", array, x, w);
  const std::int64_t steps = array.timing(p.timing.m, p.timing.k, p.timing.n).cycles;
  if (tick.value < 0) {
    detail::fail({"wavefront: tick ", tick.value, "; ticks count from 0"});
  }
  if (tick.value >= steps) {
    detail::fail({"wavefront: tick ", tick.value, " of a run that ends after ", steps,
                  " ticks; give one from 0 to ", steps - 1});
  }
  const detail::ArrayOperands operands(p.timing, "wavefront", p.x, p.w);
  Tensor product = zeros(p.output);
  detail::ArrayWork work = operands.work(product.data());
  work.last = p.timing.folds();
  detail::ArrayStepper stepper(p.timing, work);
  stepper.step_to(tick.value);
  Wavefront picture{p.timing.rows, p.timing.cols, tick.value, p.timing.dataflow, {}};
  for (std::int64_t r = 0; r < picture.rows; ++r) {
    for (std::int64_t c = 0; c < picture.cols; ++c) {
      picture.cells.push_back(detail::snapshot_cell(stepper, tick.value, r, c));
    }
  }
  return picture;
}

// The array in ticks first, first + every, ..: the frames of a strip. Throws as wavefront() does.
inline List<Wavefront> wavefronts(const SystolicArray& array, const Tensor& x, const Tensor& w,
                                  Dim first, Dim count, Dim every = 1) {
  List<Wavefront> frames;
  for (std::int64_t i = 0; i < count.value; ++i) {
    frames.push_back(wavefront(array, x, w, first.value + i * every.value));
  }
  return frames;
}

}}  // namespace tinyscale

// >> tinyscale/systolic/chip_schedule.hpp
// How a product goes through a chip: memory -> on-chip memory or weight FIFO -> MXUs side by side
// -> accumulators -> vector unit -> memory, in integer ticks of the array.
//   for n by tile.n, m by tile.m, k by tile.k: for the columns of all MXUs, for R rows: one fold
// An operand is fetched for each use, or once if all of it is kept on chip. One memory serves all
// transfers in the order of need. A weight tile waits until the one Q before it was shifted in (Q:
// the FIFO, or 2), a tile of x and a block's accumulators until those two before are free. Results
// leave before the tiles of the block after next come, or ahead of a read that starts after they
// are ready.

namespace tinyscale { inline namespace TINYSCALE_ABI {

// Where an operand lies before, the result afterwards.
enum class Home { memory, chip };

// Rows of x, inner size and columns of w that are worked on together; 0: searched for.
struct ChipTile {
  std::int64_t m = 0, k = 0, n = 0;
};

struct ChipMatmul {
  DType format = DType::f64;  // of the operands; f64: the chip's bf16, else int8, else f32
  DType result = DType::f32;  // in which results leave
  ChipTile tile;
  Home x = Home::memory, w = Home::memory, y = Home::memory;
};

namespace detail {

constexpr std::int64_t most_folds = std::int64_t{1} << 22;  // of 80 bytes each
constexpr std::int64_t most_ticks = std::int64_t{1} << 34;
constexpr std::int64_t most_bytes = std::int64_t{1} << 44;

// A rate as a whole number of parts a tick, 2^16 to a unit (one, from 4096 units a tick on); 0: no
// limit. Times add up in parts and are rounded up to a tick only where the array waits for them.
struct TickRate {
  std::int64_t parts = 0, unit = 1;

  std::int64_t ticks(std::int64_t amount) const {
    const bool exact = amount < most_bytes;
    return exact ? up(amount * unit) : parts == 0 ? 0 : amount / parts * unit;
  }
  std::int64_t up(std::int64_t part) const { return parts == 0 ? 0 : (part + parts - 1) / parts; }
};

inline TickRate tick_rate(double per_second, double ticks_per_second) {
  const double rate = per_second / ticks_per_second;
  if (!(rate > 0)) {
    return {};
  }
  const std::int64_t unit = rate < 4096 ? 65536 : 1;
  const double parts = std::min(rate * static_cast<double>(unit), 0x1p28);
  return {std::max<std::int64_t>(1, std::llround(parts)), unit};
}

// What a schedule needs to know of chip and product.
struct ChipCase {
  SystolicTiming array;  // rows, cols, M, K, N, dataflow, passes
  ChipMatmul o;
  std::int64_t arrays = 1;
  std::int64_t word = 2, result_word = 4;  // bytes; 0: the result stays on the chip
  std::int64_t fifo = 0;
  double sram = 0, accumulators = 0;  // bytes; 0: not known, none of their own
  TickRate memory, vector;            // bytes, results a tick

  std::int64_t wide() const { return array.cols * arrays; }
  std::int64_t fetched(Home home) const { return home == Home::chip ? 0 : word; }
};

struct ChipPlan {
  ChipTile tile;
  bool keep_x = false, keep_w = false, fits = false;
  std::int64_t predicted = 0, bytes = 0, on_chip = 0, accumulators = 0, folds = 0;

  // Fewer ticks, then fewer bytes moved; what fits before what does not, of that what needs least.
  bool better_than(const ChipPlan& b) const {
    const std::int64_t need = fits ? predicted : on_chip + accumulators;
    const std::int64_t theirs = b.fits ? b.predicted : b.on_chip + b.accumulators;
    return b.folds == 0 || (fits != b.fits   ? fits
                            : need != theirs ? need < theirs
                                             : bytes < b.bytes);
  }
};

// Bytes that a plan holds and moves, and the ticks that follow: the slower of arrays, memory and
// vector unit, and the first tiles' way in and the last block's way out.
inline void predict(const ChipCase& c, ChipPlan& p) {
  const std::int64_t m = c.array.m, k = c.array.k, n = c.array.n, rows = c.array.rows;
  const ChipTile& t = p.tile;
  const std::int64_t fm = folds_of(m, t.m), fn = folds_of(n, t.n), blocks = fm * fn;
  const std::int64_t twice = blocks * folds_of(k, t.k) > 1 ? 2 : 1;
  const std::int64_t sums = (blocks > 1 ? 2 : 1) * t.m * t.n * 4, out = t.m * t.n * c.result_word;
  const std::int64_t x = p.keep_x ? m * k : twice * t.m * t.k;
  const std::int64_t w = p.keep_w ? k * n : c.fifo > 0 ? 0 : 2 * rows * c.wide();
  const std::int64_t x_word = c.fetched(c.o.x), w_word = c.fetched(c.o.w);
  p.accumulators = c.accumulators > 0 ? sums : 0;
  p.on_chip = (x + w) * c.word + sums - p.accumulators;
  p.on_chip += c.o.y == Home::chip ? m * n * static_cast<std::int64_t>(bytes_of(c.o.result)) : 0;
  p.bytes = m * k * (p.keep_x ? 1 : fn) * x_word + k * n * (p.keep_w ? 1 : fm) * w_word +
            m * n * c.result_word;
  const std::int64_t last = std::max((m - (fm - 1) * t.m) * c.array.passes, rows);
  const std::int64_t tiles = folds_of(k, rows) * folds_of(n, c.wide());
  const std::int64_t arrays = ((fm - 1) * std::max(t.m * c.array.passes, rows) + last) * tiles;
  const std::int64_t first = t.m * t.k * x_word + rows * std::min(c.wide(), n) * w_word;
  p.folds = fm * tiles;
  p.predicted = std::max(std::max(arrays, c.vector.ticks(m * n)) + c.memory.ticks(first),
                         c.memory.ticks(p.bytes - out)) +
                2 * rows + c.array.cols - 2 + c.vector.ticks(t.m * t.n) + c.memory.ticks(out);
  p.fits = (!(c.sram > 0) || static_cast<double>(p.on_chip) <= c.sram) &&
           (!(c.accumulators > 0) || static_cast<double>(p.accumulators) <= c.accumulators) &&
           p.folds <= most_folds && p.predicted <= most_ticks && p.bytes < most_bytes;
}

// Places every fold of a plan on the clock.
class ChipTimeline {
 public:
  ChipTimeline(const ChipCase& problem, const ChipPlan& plan) : c(problem), p(plan) {
    const ChipTile& t = p.tile;
    const auto tiles = static_cast<std::size_t>(folds_of(c.array.m, t.m) * k_tiles());
    const auto weights =
        static_cast<std::size_t>(folds_of(c.array.k, c.array.rows) * folds_of(c.array.n, c.wide()));
    x_at_.assign(p.keep_x ? tiles : 0, c.o.x == Home::chip ? 0 : -1);
    w_at_.assign(p.keep_w ? weights : 0, c.o.w == Home::chip ? 0 : -1);
    folds.reserve(static_cast<std::size_t>(p.folds));
    for (std::int64_t n = 0; n < c.array.n; n += t.n) {
      for (std::int64_t m = 0; m < c.array.m; m += t.m) {
        block(m, n, std::min(t.m, c.array.m - m), std::min(t.n, c.array.n - n));
      }
    }
    write_until(results_.size());
    cycles = std::max(cycles, array_end());
  }

  List<Fold> folds;
  std::int64_t cycles = 0;
  std::int64_t bytes_read = 0, bytes_written = 0;

 private:
  struct Result {
    std::int64_t bytes = 0, ready = 0, end = 0;
  };

  std::int64_t k_tiles() const { return folds_of(c.array.k, p.tile.k); }
  std::int64_t array_end() const { return fold_end(c.array, folds.back(), c.arrays); }

  std::int64_t move(std::int64_t bytes, std::int64_t ready) {
    busy_ = std::max(busy_, ready * c.memory.parts) + bytes * c.memory.unit;
    return c.memory.up(busy_);
  }

  void write_until(std::size_t count) {
    for (; written_ < count; ++written_) {
      Result& r = results_[written_];
      bytes_written += r.bytes;
      r.end = r.bytes == 0 ? r.ready : move(r.bytes, r.ready);
      cycles = std::max(cycles, r.end);
    }
  }

  // A tile of an operand; of one that is kept (the others have no `at`) only for its first use.
  std::int64_t fetch(List<std::int64_t>& at, std::int64_t tile, std::int64_t words,
                     std::int64_t ready) {
    std::int64_t own = -1;
    std::int64_t& arrival = at.empty() ? own : at[static_cast<std::size_t>(tile)];
    if (arrival >= 0) {
      return arrival;
    }
    while (written_ < results_.size() &&
           results_[written_].ready * c.memory.parts <= std::max(busy_, ready * c.memory.parts)) {
      write_until(written_ + 1);
    }
    bytes_read += words * c.word;
    return arrival = move(words * c.word, ready);
  }

  std::int64_t fetch_w(const Fold& f) {
    const std::int64_t rows = c.array.rows, left = c.array.n - f.n0;
    const std::int64_t words = std::min(rows, c.array.k - f.k0) * std::min(c.wide(), left);
    const std::int64_t tile = f.k0 / rows * folds_of(c.array.n, c.wide()) + f.n0 / c.wide();
    const std::size_t depth = static_cast<std::size_t>(c.fifo > 0 ? c.fifo : 2), i = folds.size();
    return fetch(w_at_, tile, words, p.keep_w || i < depth ? 0 : folds[i - depth].load + rows);
  }

  std::int64_t fetch_x(const Fold& f, std::int64_t rows) {
    const std::int64_t words = rows * std::min(p.tile.k, c.array.k - f.k0);
    const std::int64_t tile = f.m0 / p.tile.m * k_tiles() + f.k0 / p.tile.k;
    return fetch(x_at_, tile, words, p.keep_x ? 0 : x_used_[0]);
  }

  void block(std::int64_t m0, std::int64_t n0, std::int64_t rows, std::int64_t columns) {
    const std::size_t blocks = results_.size();
    write_until(std::max<std::size_t>(blocks, 1) - 1);  // two blocks of accumulators
    const std::int64_t free = blocks < 2 ? 0 : results_[blocks - 2].end;
    for (std::int64_t k0 = 0; k0 < c.array.k; k0 += p.tile.k) {
      const std::int64_t k1 = std::min(c.array.k, k0 + p.tile.k);
      std::int64_t x = -1;
      for (std::int64_t n = n0; n < n0 + columns; n += c.wide()) {
        for (std::int64_t k = k0; k < k1; k += c.array.rows) {
          Fold fold;
          fold.m0 = m0;
          fold.k0 = k;
          fold.n0 = n;
          fold.length = rows * c.array.passes;
          const std::int64_t w = fetch_w(fold);  // needed R ticks before x
          x = x < 0 ? fetch_x(fold, rows) : x;
          const FoldSupply supply{w, std::max(x, free)};
          place_fold(c.array, folds.empty() ? nullptr : &folds.back(), supply, fold);
          folds.push_back(fold);
        }
      }
      x_used_[0] = x_used_[1];
      x_used_[1] = folds.back().end() + c.array.rows - 1;
    }
    vector_free_ = std::max(vector_free_, array_end()) + c.vector.ticks(rows * columns);
    results_.push_back({rows * columns * c.result_word, vector_free_, 0});
  }

  const ChipCase& c;
  const ChipPlan& p;
  List<std::int64_t> x_at_, w_at_;   // arrival of each tile; -1: not yet
  std::int64_t x_used_[2] = {0, 0};  // the last ticks of the two latest tiles of x
  List<Result> results_;
  std::size_t written_ = 0;
  std::int64_t busy_ = 0;  // of the memory, in 1 / memory.parts of a tick
  std::int64_t vector_free_ = 0;
};

// Sizes to try: the given one, or the whole and its parts in multiples of the unit.
inline List<std::int64_t> tile_sizes(std::int64_t size, std::int64_t given, std::int64_t unit) {
  List<std::int64_t> sizes = {given > 0 ? std::min(given, size) : size};
  const std::int64_t units = folds_of(size, unit);
  for (std::int64_t parts = 2; given == 0 && sizes.back() > unit; parts += 1 + parts / 4) {
    sizes.push_back(folds_of(units, std::min(parts, units)) * unit);
  }
  return sizes;
}

// For each m the plan that is predicted best, and of these the one that is best on the clock, where
// plans of up to 2^15 folds are placed; larger ones are charged an eighth more than predicted.
inline ChipPlan best_plan(const ChipCase& c) {
  ChipPlan best, p, fewest;
  for (const std::int64_t m : tile_sizes(c.array.m, c.o.tile.m, 1)) {
    ChipPlan of_m;
    for (const std::int64_t k : tile_sizes(c.array.k, c.o.tile.k, c.array.rows)) {
      for (const std::int64_t n : tile_sizes(c.array.n, c.o.tile.n, c.wide())) {
        for (int way = 0; way < 4; ++way) {
          p.tile = {m, k, n};
          p.keep_x = c.o.x == Home::chip || way % 2 == 1;
          p.keep_w = c.o.w == Home::chip || (way / 2 == 1 && c.fifo == 0);
          predict(c, p);
          of_m = p.better_than(of_m) ? p : of_m;
        }
      }
    }
    p = of_m;
    p.predicted = p.fits && p.folds <= 32768 ? ChipTimeline(c, p).cycles : p.predicted / 8 * 9;
    if (p.better_than(fewest)) {
      fewest = p;
      best = of_m;
    }
  }
  return best;
}

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/systolic/chip_timing.hpp
// What one product costs on a whole chip: ticks, bytes at each level, stalls, energy, and the
// bound. A format that the chip multiplies at twice its arrays' rate makes the arrays tick twice a
// clock (int8 on v5e), one at half the rate every second clock.

namespace tinyscale { inline namespace TINYSCALE_ABI {

// The costs of x [M, K] times w [K, N]; ledger and traffic in words are those of all arrays.
struct ChipTiming : SystolicTiming {
  std::string chip;
  std::string kind = "formula";       // or simulated: by stepping
  ChipTile tile;                      // of a GPU: a thread block's
  std::int64_t predicted_cycles = 0;  // in closed form, by which the tile was chosen
  std::int64_t cold_cycles = 0;       // until the first tiles were there: part of the stalls
  double seconds = 0;
  std::int64_t hbm_bytes_read = 0, hbm_bytes_written = 0;
  std::int64_t chip_bytes_read = 0, chip_bytes_written = 0;  // on-chip memory and weight FIFO
  std::int64_t accumulator_bytes_read = 0, accumulator_bytes_written = 0;
  std::int64_t on_chip_bytes = 0, accumulator_bytes = 0;  // held at once
  // Ticks that each part would need alone, and the longest of them: matmul, shift, memory, vector.
  std::int64_t matmul_cycles = 0, shift_cycles = 0, memory_cycles = 0, vector_cycles = 0;
  std::string bound;
  double mac_joules = 0, chip_joules = 0, hbm_joules = 0;
  double mac_pj = 0, chip_pj = 0, hbm_pj = 0;  // of a multiply-add, of a byte; 0: not known
  std::string energy_source;
  std::int64_t waves = 0, last_wave = 0, blocks_at_once = 0;  // thread blocks of a GPU

  // The share of the ticks that an entry of the ledger takes.
  double share(std::int64_t pe_ticks) const {
    return static_cast<double>(pe_ticks) / static_cast<double>(ledger.total());
  }
  Table table() const;
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
};

inline Table ChipTiming::table() const {
  Table t = detail::systolic_table(*this, kind.c_str());
  t.title = detail::cat("x [", m, ", ", k, "] times w [", k, ", ", n, "] in ", format,
                        passes > 1 ? " x 6 passes" : "", " on ", chip,
                        waves > 0 ? " (a GPU, approximated)" : "", ", tiles of ", tile.m, " x ",
                        tile.k, " x ", tile.n, ", bound by ", bound);
  // clang-format off
  const char* const names[] = {
      "predicted cycles", "cold start", "matmul alone", "weight shift alone", "memory alone",
      "vector unit alone", "hbm read", "hbm written", "on-chip read", "on-chip written",
      "accumulators read", "accumulators written", "on-chip memory used", "accumulators used"};
  const std::int64_t counts[] = {
      predicted_cycles, cold_cycles, matmul_cycles, shift_cycles, memory_cycles,
      vector_cycles, hbm_bytes_read, hbm_bytes_written, chip_bytes_read, chip_bytes_written,
      accumulator_bytes_read, accumulator_bytes_written, on_chip_bytes, accumulator_bytes};
  // clang-format on
  for (int i = 0; i < 14; ++i) {
    t.add({names[i], std::to_string(counts[i]), i < 6 ? "ticks" : "B", ""});
  }
  if (waves > 0) {
    t.add({"waves", std::to_string(waves),
           detail::cat("last wave ", last_wave, " of ", blocks_at_once, " full"), ""});
  }
  t.add({"time", format_fixed(seconds * 1e6, 3), "us", ""});
  const double joules[] = {mac_joules, chip_joules, hbm_joules}, pj[] = {mac_pj, chip_pj, hbm_pj};
  const char* const levels[] = {"multiply-adds", "on-chip memory", "hbm"};
  for (int i = 0; i < 3; ++i) {
    const bool known = pj[i] > 0;
    t.add({detail::cat("energy of ", levels[i]),
           known ? format_fixed(joules[i] * 1e6, 3) : "unknown",
           known ? detail::cat("uJ, ", pj[i], i == 0 ? " pJ each" : " pJ/B") : "", ""});
  }
  t.add({"energy by", energy_source.empty() ? "no source" : energy_source, "", ""});
  return t;
}

inline std::ostream& operator<<(std::ostream& out, const ChipTiming& t) { return out << t.table(); }

namespace detail {

inline double format_rate(const Chip& chip, DType format) {
  return format == DType::bf16                                    ? chip.flops_bf16
         : format == DType::int8                                  ? chip.flops_int8
         : format == DType::fp8_e4m3 || format == DType::fp8_e5m2 ? chip.flops_fp8
         : format != DType::f32                                   ? 0
         : chip.flops_f32 > 0                                     ? chip.flops_f32
                                                                  : chip.flops_bf16;  // in passes
}

// Checks the chip and sets the format; ticks a second of the arrays in it.
inline double chip_ticks(const char* function, const Chip& chip, DType& format) {
  const std::string name = chip.name.empty() ? "this chip" : chip.name;
  if (chip.kind == "cpu" || chip.kind == "wafer") {
    fail({function, ": ", name, " is a ", chip.kind, "; a tpu, npu or gpu has arrays to emulate"});
  }
  if (chip.mxu_rows < 1 || chip.mxu_cols < 1 || chip.mxus < 1 || chip.cores < 1 ||
      (chip.kind == "gpu" && chip.mxus < chip.cores) || chip.unit_peak() > 0x1p27 * chip.clock_hz) {
    fail({function, ": ", name, " has ", chip.mxus, " arrays of ", chip.mxu_rows, " x ",
          chip.mxu_cols, " on ", chip.cores,
          " cores; 1 of each to 2^26 PEs in all, on a gpu 1 array a core, are emulated"});
  }
  for (const double rate : {chip.clock_hz, chip.memory_bandwidth}) {
    if (!(rate > 0) || !is_finite(rate)) {
      fail({function, ": ", name, " has clock_hz ", chip.clock_hz, ", memory_bandwidth ",
            chip.memory_bandwidth, "; finite numbers above 0 are right"});
    }
  }
  std::string known;
  for (const DType each :
       {DType::bf16, DType::int8, DType::f32, DType::fp8_e4m3, DType::fp8_e5m2}) {
    if (format_rate(chip, each) > 0 && is_finite(format_rate(chip, each))) {
      known += (known.empty() ? "" : ", ") + std::string(name_of(each));
      format = format == DType::f64 ? each : format;
    }
  }
  const double rate = format_rate(chip, format) / chip.unit_peak();
  if (!(rate > 0) || !is_finite(rate)) {
    fail({function, ": ", name, " has no ", name_of(format), "; it has ",
          known.empty() ? "no format: set flops_bf16, say" : known});
  }
  return rate >= 0.75 ? chip.clock_hz * std::round(rate) : chip.clock_hz / std::round(1 / rate);
}

inline ChipCase chip_case(const char* function, const Chip& chip, const ChipTiming& r,
                          const ChipMatmul& o, double ticks) {
  if (r.m < 1 || r.k < 1 || r.n < 1) {
    fail({function, ": M, K, N are ", r.m, ", ", r.k, ", ", r.n, "; each must be at least 1"});
  }
  if (static_cast<double>(r.m) * static_cast<double>(r.k) * static_cast<double>(r.n) > 0x1p56) {
    fail({function, ": M, K, N are ", r.m, ", ", r.k, ", ", r.n, "; M K N is at most 2^56"});
  }
  if (r.format == DType::int8 && r.k > 131071) {
    fail({function, ": K is ", r.k, "; int32 sums of int8 products hold at most 131071"});
  }
  if (bytes_of(o.result) < 1) {
    fail({function, ": results in ", o.result, "; a format of whole bytes is right"});
  }
  ChipCase c;
  const bool gpu = chip.kind == "gpu";  // the arrays of one core work side by side
  c.array = r;
  c.array.rows = chip.mxu_rows;
  c.array.cols = chip.mxu_cols;
  c.array.dataflow = gpu ? Dataflow::output_stationary : Dataflow::weight_stationary;
  const bool in_passes = r.format == DType::f32 && !(chip.flops_f32 > 0);
  c.array.format = in_passes ? DType::bf16 : r.format;
  c.array.passes = in_passes ? 6 : 1;
  fold(c.array);
  c.arrays = gpu ? std::max(1, chip.mxus / chip.cores) : chip.mxus;
  c.o = o;
  c.word = static_cast<std::int64_t>(bytes_of(r.format));
  c.result_word = o.y == Home::chip ? 0 : static_cast<std::int64_t>(bytes_of(o.result));
  c.fifo = chip.fifo_tiles;
  c.sram = gpu ? chip.sram_bytes / chip.cores : chip.sram_bytes;
  c.accumulators = gpu ? 131072 : chip.accumulator_bytes;  // half of the registers (K)
  c.memory = tick_rate(chip.memory_bandwidth, ticks);
  c.vector = tick_rate(chip.vector_flops, ticks);
  return c;
}

inline void check_fit(const char* function, const ChipTiming& r, const ChipCase& c) {
  const bool sums = c.accumulators > 0 && static_cast<double>(r.accumulator_bytes) > c.accumulators;
  const double needed = static_cast<double>(sums ? r.accumulator_bytes : r.on_chip_bytes);
  const double room = sums ? c.accumulators : c.sram;
  if (room > 0 && needed > room) {
    fail({function, ": tiles of ", r.tile.m, " x ", r.tile.k, " x ", r.tile.n, " need ", needed,
          " B of ", sums ? "accumulators" : "on-chip memory", ", ", needed - room,
          " more than the ", room, " of ", r.chip,
          "; a smaller tile, or operands that lie in memory, need less"});
  }
}

// What is stepped: operands rounded to the format, and where the product goes. Null: only timed.
struct ChipNumbers {
  MatrixView x, w;
  float* out;
};

inline void count_folds(const char* function, ChipTiming& r, const ChipCase& c,
                        const List<Fold>* folds, const ChipNumbers* numbers) {
  SystolicTiming& t = r;
  t = c.array;
  if (numbers != nullptr) {
    t = step_folds(t, folds, folds == nullptr ? 1 : c.arrays, numbers->x, numbers->w, numbers->out,
                   function);
  } else if (folds != nullptr) {
    t = time_folds(t, *folds, c.arrays);
  } else {
    time_array(t);
  }
}

// MXUs side by side that share memory, on-chip memory and vector unit.
inline void time_mxus(const char* function, ChipTiming& r, const ChipCase& c,
                      const ChipNumbers* numbers) {
  const ChipTile& tile = c.o.tile;
  if (tile.m < 0 || tile.k < 0 || tile.n < 0 || (tile.k % c.array.rows != 0 && tile.k < r.k) ||
      (tile.n % c.wide() != 0 && tile.n < r.n)) {
    fail({function, ": tile ", tile.m, " x ", tile.k, " x ", tile.n, "; on ", r.chip,
          " k must be a multiple of ", c.array.rows, ", n of ", c.wide(), ", or the whole"});
  }
  if (c.fifo > 0 && c.o.w == Home::chip) {
    fail({function, ": w lies on the chip; the weights of ", r.chip,
          " come through a FIFO from memory"});
  }
  const ChipPlan plan = best_plan(c);
  r.tile = plan.tile;
  r.on_chip_bytes = plan.on_chip;
  r.accumulator_bytes = plan.accumulators;
  check_fit(function, r, c);
  if (!plan.fits) {
    fail({function, ": ", plan.folds, " folds, ", plan.predicted, " ticks; at most 2^22 and 2^34 ",
          "are emulated, larger tiles make fewer folds"});
  }
  const ChipTimeline line(c, plan);
  count_folds(function, r, c, &line.folds, numbers);
  r.ledger.drain += r.ledger.total() / r.cycles * (line.cycles - r.cycles);
  r.cycles = line.cycles;
  r.predicted_cycles = plan.predicted;
  r.cold_cycles = line.folds[0].stream - c.array.rows;
  r.hbm_bytes_read = line.bytes_read;
  r.hbm_bytes_written = line.bytes_written;
  r.chip_bytes_written = line.bytes_read;
  r.chip_bytes_written +=
      c.o.y == Home::chip ? r.m * r.n * static_cast<std::int64_t>(bytes_of(c.o.result)) : 0;
  r.matmul_cycles = (r.ledger.useful + r.ledger.padded) / (c.array.rows * c.wide());
  r.shift_cycles = plan.folds * c.array.rows;
}

// What follows from the counts: bytes, the part that alone would take longest, energy.
inline void finish(ChipTiming& r, const Chip& chip, const ChipCase& c, double ticks) {
  const std::int64_t hbm = r.hbm_bytes_read + r.hbm_bytes_written;
  r.seconds = static_cast<double>(r.cycles) / ticks;
  r.utilization = r.share(r.ledger.useful);
  r.time_efficiency = r.share(r.ledger.useful + r.ledger.padded);
  r.mapping_efficiency = r.utilization / r.time_efficiency;
  r.chip_bytes_read = (r.sram_reads_input + r.sram_reads_weight) * c.word;
  r.accumulator_bytes_read = (r.accumulator_reads + r.m * r.n) * 4;  // the last time to leave
  r.accumulator_bytes_written = std::max(r.accumulator_writes, r.m * r.n) * 4;
  r.memory_cycles = c.memory.ticks(hbm);
  r.vector_cycles = c.vector.ticks(r.m * r.n);
  const std::int64_t parts[] = {r.matmul_cycles, r.shift_cycles, r.memory_cycles, r.vector_cycles};
  const char* const names[] = {"matmul", "shift", "memory", "vector"};
  r.bound = names[std::max_element(parts, parts + 4) - parts];
  const ChipEnergy& e = chip.energy;
  r.mac_pj = r.format == DType::int8   ? e.mac_int8
             : r.format == DType::f32  ? e.mac_f32
             : r.format == DType::bf16 ? e.mac_bf16
                                       : 0;
  r.chip_pj = e.sram_byte;
  r.hbm_pj = e.memory_byte;
  r.energy_source = e.source;
  const std::int64_t moved = r.chip_bytes_read + r.chip_bytes_written + r.accumulator_bytes_read +
                             r.accumulator_bytes_written;
  r.mac_joules = static_cast<double>(r.ledger.useful) * r.mac_pj * 1e-12;
  r.chip_joules = static_cast<double>(moved) * r.chip_pj * 1e-12;
  r.hbm_joules = static_cast<double>(hbm) * r.hbm_pj * 1e-12;
}

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/systolic/chip_matmul.hpp
// One product on a chip: chip_timing() places every fold on the clock, matmul_on() also steps every
// PE through every tick. Operands are rounded to the format (int8: with one scale each), sums are
// f32. A GPU is approximated: its matrix units are output-stationary arrays, a core's side by side;
// blocks of the product go to the cores in waves, down the columns. A wave fetches the rows and
// columns that it touches once (through L2) and takes the longer of arrays and memory; a last wave
// that leaves cores idle takes as long as a full one, and whole blocks are multiplied at the edges.

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace detail {

// All waves of blocks of r.tile, and the ledger of all cores: at the edges whole blocks stream, and
// cores that the last wave leaves idle drain.
inline void time_waves(const char* function, ChipTiming& r, const ChipCase& c) {
  const std::int64_t rows = c.array.rows, t = c.array.stream, at_once = r.blocks_at_once;
  const std::int64_t down = folds_of(r.m, r.tile.m), blocks = down * folds_of(r.n, r.tile.n);
  const std::int64_t folds = r.tile.m / rows * folds_of(r.tile.n, c.wide());  // of a block
  const std::int64_t pes = c.arrays * rows * c.array.cols * at_once;
  bool short_enough = t < most_ticks / folds;
  const std::int64_t ticks =
      short_enough ? (folds - 1) * std::max(t, rows) + t + 2 * rows + c.array.cols - 2 : 0;
  r.cycles = 0;
  for (std::int64_t first = 0; first < blocks && short_enough; first += at_once, ++r.waves) {
    r.last_wave = std::min(blocks - first, at_once);
    std::int64_t x_rows = 0, columns = 0, results = 0;
    for (std::int64_t b = first; b < first + r.last_wave; ++b) {
      const std::int64_t m = std::min(r.tile.m, r.m - b % down * r.tile.m);
      const std::int64_t n = std::min(r.tile.n, r.n - b / down * r.tile.n);
      x_rows += b - first < down ? m : 0;
      columns += b == first || b % down == 0 ? n : 0;
      results += m * n;
      r.chip_bytes_written += r.k * (m + n) * c.word;  // each block's slices, through L2
    }
    const std::int64_t read = r.k * (x_rows * c.fetched(c.o.x) + columns * c.fetched(c.o.w));
    r.hbm_bytes_read += read;
    r.hbm_bytes_written += results * c.result_word;
    short_enough = read < most_bytes;
    r.cycles += std::max(ticks, short_enough ? c.memory.ticks(read + results * c.result_word) : 0);
    short_enough = short_enough && r.cycles <= most_ticks;
  }
  if (!short_enough) {
    fail({function, ": blocks of ", r.tile.m, " x ", r.k, " x ", r.tile.n, " take more than the ",
          "2^34 ticks that are emulated on ", r.chip});
  }
  LossLedger& l = r.ledger;
  l.useful = r.m * r.k * r.n * c.array.passes;
  r.matmul_cycles = r.waves * folds * t;
  l.padded = r.matmul_cycles * pes - l.useful;
  l.fill = r.waves * (pes * (rows + c.array.cols - 2) / 2);
  l.dma_stall = (r.cycles - r.waves * ticks) * pes;
  l.drain = r.cycles * pes - l.total();
  r.predicted_cycles =
      std::max(r.waves * ticks, c.memory.ticks(r.hbm_bytes_read + r.hbm_bytes_written));
}

// Sums live in half of a core's registers, two slices of 64 of K in its shared memory. Of three
// blocks, or the given one, the one that takes the fewest ticks.
inline void time_gpu(const char* function, ChipTiming& r, const ChipCase& c,
                     const ChipNumbers* numbers) {
  const std::int64_t rows = c.array.rows, k = r.k;
  const double product = static_cast<double>(r.m) * static_cast<double>(r.n);
  if (product > static_cast<double>(most_folds * rows)) {
    fail({function, ": M, N are ", r.m, ", ", r.n, "; M N is at most ", most_folds * rows, " on ",
          r.chip});
  }
  const ChipTile tiles[] = {
      {c.o.tile.m, k, c.o.tile.n}, {128, k, 128}, {128, k, 256}, {256, k, 128}};
  const bool given = c.o.tile.m != 0 || c.o.tile.n != 0;
  ChipTiming best;
  for (int i = given ? 0 : 1; i < (given ? 1 : 4); ++i) {
    ChipTiming trial = r;
    const ChipTile& tile = trial.tile = tiles[i];
    if (tile.m < 1 || tile.n < 1 || tile.m % rows != 0 || tile.n % c.wide() != 0) {
      fail({function, ": tile m ", tile.m, ", n ", tile.n, "; on ", r.chip,
            " they must be multiples of ", rows, " and ", c.wide()});
    }
    const std::int64_t m = std::min(tile.m, most_folds), n = std::min(tile.n, most_folds);
    trial.accumulator_bytes = m * n * 4;
    trial.on_chip_bytes = 2 * (m + n) * std::min<std::int64_t>(64, k) * c.word;
    if (best.waves > 0 && c.sram > 0 && static_cast<double>(trial.on_chip_bytes) > c.sram) {
      continue;
    }
    check_fit(function, trial, c);
    time_waves(function, trial, c);
    best = best.waves == 0 || trial.cycles < best.cycles ? trial : best;
  }
  r = best;
  count_folds(function, r, c, nullptr, numbers);  // which core takes which folds is all the same
  r.cycles = best.cycles;
  r.ledger = best.ledger;
}

inline void time_product(const char* function, ChipTiming& r, const Chip& chip,
                         const ChipMatmul& options, const ChipNumbers* numbers) {
  r.chip = chip.name.empty() ? "this chip" : chip.name;
  const double ticks = chip_ticks(function, chip, r.format);
  const ChipCase c = chip_case(function, chip, r, options, ticks);
  if (chip.kind == "gpu") {
    r.blocks_at_once = chip.cores;
    time_gpu(function, r, c, numbers);
  } else {
    time_mxus(function, r, c, numbers);
  }
  finish(r, chip, c, ticks);
}

// Values times a scale in a format; of int8 whole numbers, and the scale that is left.
inline Tensor values_in(const Tensor& from, DType format, float& scale) {
  Tensor t = contiguous(from).clone();
  for (std::int64_t i = 0; i < t.count(); ++i) {
    const float x = t.data()[i] * scale;
    t.data()[i] = format == DType::int8 ? x : round_to(x, format);
  }
  scale = 1;
  if (format == DType::int8) {
    const Int8Values values = to_int8(std::vector<float>(t.data(), t.data() + t.count()));
    std::copy(values.values.begin(), values.values.end(), t.data());
    scale = values.scale;
  }
  return t;
}

}  // namespace detail

// The costs of x [M, K] times w [K, N] on the chip. Throws when the chip lacks the format or what
// an emulation needs, a size is below 1, or the tile that is given, or every tile, does not fit.
inline ChipTiming chip_timing(const Chip& chip, Dim m, Dim k, Dim n,
                              const ChipMatmul& options = ChipMatmul()) {
  ChipTiming r;
  r.format = options.format;
  r.m = m.value;
  r.k = k.value;
  r.n = n.value;
  detail::time_product("chip_timing", r, chip, options, nullptr);
  return r;
}

struct ChipRun : ChipTiming {
  Tensor output;  // [.., M, N]
};

// The product of x [.., M, K] and w [K, N], every PE of every array stepped, and the same costs; a
// GPU's product is stepped too, its ticks are those of the waves.
// Throws as chip_timing does, and when the inner sizes differ. No gradient flows through it.
inline ChipRun matmul_on(const Chip& chip, const Tensor& x, const Tensor& w,
                         const ChipMatmul& options = ChipMatmul()) {
  const detail::Matmul sizes = detail::matmul_sizes("matmul_on", x, w, kernels::Trans::no);
  ChipRun run;
  run.kind = chip.kind == "gpu" ? "formula" : "simulated";
  run.m = sizes.m;
  run.k = sizes.k;
  run.n = sizes.n;
  run.format = options.format;
  detail::chip_ticks("matmul_on", chip, run.format);
  float scale_x = 1, scale_w = 1;
  const bool whole = run.format == DType::int8;
  const Tensor own_x = whole ? detail::values_in(x.detach(), run.format, scale_x) : contiguous(x);
  const Tensor own_w = whole ? detail::values_in(w.detach(), run.format, scale_w) : contiguous(w);
  run.output = zeros(sizes.shape);
  const detail::ChipNumbers numbers{detail::matrix_view(own_x.data(), sizes.m, sizes.k),
                                    detail::matrix_view(own_w.data(), sizes.k, sizes.n),
                                    run.output.data()};
  detail::time_product("matmul_on", run, chip, options, &numbers);
  if (whole) {
    detail::whole_sums(run.output.data(), run.output.count());
  }
  float scale = scale_x * scale_w;
  run.output = detail::values_in(run.output, options.result, scale);
  for (std::int64_t i = 0; i < run.output.count(); ++i) {
    run.output.data()[i] *= scale;
  }
  return run;
}

// Efficiency against N, a row each: the sawtooth of tiles, and on a GPU of waves over its cores.
inline Table efficiency_curve(const Chip& chip, Dim m, Dim k, const std::vector<std::int64_t>& ns,
                              const ChipMatmul& options = ChipMatmul()) {
  Table t;
  t.columns = {"N", "tile m", "tile n", "waves", "last wave", "of", "cycles", "% of PE-ticks"};
  for (const std::int64_t n : ns) {
    const ChipTiming each = chip_timing(chip, m, k, n, options);
    t.title = detail::cat("x [", each.m, ", ", each.k, "] times w [", each.k, ", N] on ", each.chip,
                          " (formula)");
    t.add({std::to_string(n), std::to_string(each.tile.m), std::to_string(each.tile.n),
           std::to_string(each.waves), std::to_string(each.last_wave),
           std::to_string(each.blocks_at_once), std::to_string(each.cycles),
           detail::percent(each.utilization)});
  }
  return t;
}

}}  // namespace tinyscale

// >> tinyscale/systolic/on_chip.hpp
// A program whose matrix products run on an emulated chip: matmul, matmul_transposed and linear of
// this thread, each as one matmul_on. Products over leading dimensions of w, attention and all that
// is no product run on the host and cost nothing here.

namespace tinyscale { inline namespace TINYSCALE_ABI {

// stepped: by the emulated PEs. host: by the host's kernel, in f32, with the chip's costs beside.
enum class Numbers { stepped, host };

struct OnChip {
  ChipMatmul matmul;
  Numbers numbers = Numbers::stepped;
  // What to call a product, by its weights (origin() tells whose they are); default: by its sizes.
  std::function<std::string(const Tensor& w)> name;
};

// One product, or the sum of several.
struct OnChipRow {
  std::string name;
  std::int64_t products = 0;
  SystolicTiming counts;  // cycles, ledger and traffic of all arrays
  ChipTile tile;          // of one product
  std::int64_t hbm_bytes = 0;
  double seconds = 0;
  std::string bound;  // mixed: not the same for all

  void add(const OnChipRow& row) {  // one after another
    bound = products == 0 || bound == row.bound ? row.bound : "mixed";
    const std::int64_t cycles = counts.cycles + row.counts.cycles;
    detail::add_counts(row.counts, counts);
    counts.cycles = cycles;
    products += row.products;
    hbm_bytes += row.hbm_bytes;
    seconds += row.seconds;
  }
};

namespace detail {

// Up to the first number between points: "model.layers.3" of "model.layers.3.mlp.up_proj.weight".
inline std::string layer_of(const std::string& name) {
  for (std::size_t i = name.find('.'); i != std::string::npos; i = name.find('.', i + 1)) {
    const std::size_t end = name.find_first_not_of("0123456789", i + 1);
    if (end != i + 1 && (end == std::string::npos || name[end] == '.')) {
      return name.substr(0, end);
    }
  }
  return name;
}

struct HookScope {
  explicit HookScope(const MatmulHook* hook) : before(matmul_hook()) { matmul_hook() = hook; }
  ~HookScope() { matmul_hook() = before; }
  HookScope(const HookScope&) = delete;
  HookScope& operator=(const HookScope&) = delete;
  const MatmulHook* before;
};

}  // namespace detail

struct OnChipReport {
  std::string chip;
  Numbers numbers = Numbers::stepped;
  List<OnChipRow> rows;  // one for each product, in order

  // Rows of the same layer together, in order of appearance.
  List<OnChipRow> layers() const {
    List<OnChipRow> sums;
    for (const OnChipRow& row : rows) {
      const std::string layer = detail::layer_of(row.name);
      std::size_t i = 0;
      while (i < sums.size() && sums[i].name != layer) {
        ++i;
      }
      sums.resize(std::max(sums.size(), i + 1));
      sums[i].name = layer;
      sums[i].add(row);
    }
    return sums;
  }
  OnChipRow total() const {
    OnChipRow all;
    all.name = "all";
    for (const OnChipRow& row : rows) {
      all.add(row);
    }
    return all;
  }
  Table table() const { return table_of(rows); }
  Table layer_table() const { return table_of(layers()); }
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }

 private:
  Table table_of(List<OnChipRow> all) const {
    const bool host = numbers == Numbers::host;
    const char* const cycles = host ? "cycles formula" : "cycles simulated";
    Table t;
    t.title = "Products on " + chip + (host ? "; their numbers are the host's, in f32" : "");
    t.columns = {"product",        "count",       cycles,  "useful %", "padded %", "weight shift %",
                 "weight stall %", "dma stall %", "hbm B", "us",       "bound"};
    all.push_back(total());
    for (const OnChipRow& r : all) {
      const LossLedger& l = r.counts.ledger;
      const double pe_ticks = std::max(1.0, static_cast<double>(l.total()));
      const auto share = [pe_ticks](std::int64_t part) {
        return format_fixed(100 * static_cast<double>(part) / pe_ticks, 2);
      };
      t.add({r.name, std::to_string(r.products), std::to_string(r.counts.cycles), share(l.useful),
             share(l.padded), share(l.weight_shift), share(l.weight_stall), share(l.dma_stall),
             std::to_string(r.hbm_bytes), format_fixed(r.seconds * 1e6, 3), r.bound});
    }
    return t;
  }
};

inline std::ostream& operator<<(std::ostream& out, const OnChipReport& r) {
  return out << r.table();
}

// Calls fn with every product of this thread on the chip, without gradients, and says what each
// cost; fn keeps what it computes. Throws what matmul_on throws, and what fn does.
inline OnChipReport on_chip(const Chip& chip, const std::function<void()>& fn,
                            const OnChip& options = OnChip()) {
  if (!fn) {
    detail::fail({"on_chip: fn is empty; give the program whose products are to run on the chip"});
  }
  OnChipReport report;
  report.chip = chip.name;
  report.numbers = options.numbers;
  const detail::MatmulHook hook = [&](const Tensor& x, const Tensor& w) {
    const detail::HookScope host(nullptr);
    const detail::Matmul s = detail::matmul_sizes("on_chip", x, w, kernels::Trans::no);
    ChipMatmul own = options.matmul;
    for (const OnChipRow& seen : report.rows) {  // the tile of a shape is searched once
      const SystolicTiming& t = seen.counts;
      own.tile = t.m == s.m && t.k == s.k && t.n == s.n ? seen.tile : own.tile;
    }
    ChipRun run;
    if (options.numbers == Numbers::stepped) {
      run = matmul_on(chip, x, w, own);
    } else {
      static_cast<ChipTiming&>(run) = chip_timing(chip, s.m, s.k, s.n, own);
      run.output = matmul(x, w);
    }
    const std::string sizes = detail::cat("[", s.m, ", ", s.k, "] x [", s.k, ", ", s.n, "]");
    report.rows.push_back({options.name ? options.name(w) : sizes, 1, run, run.tile,
                           run.hbm_bytes_read + run.hbm_bytes_written, run.seconds, run.bound});
    return run.output;
  };
  const NoGrad no_grad;
  const detail::HookScope scope(&hook);
  fn();
  return report;
}

}}  // namespace tinyscale

// >> tinyscale/systolic/tile_clock.hpp
// The clock of a tile kernel, and its report. An op is put on its unit (DMA, MXUs, vector unit)
// when it is recorded: a unit works in order, an op starts when its operands are ready. A
// generation is a run of loads, a segment the ops up to the next run; with `stages` = n, generation
// g starts when segment g - n has ended (n = 1: no load beside compute), right after that segment's
// stores.

namespace tinyscale { inline namespace TINYSCALE_ABI {

// What a kernel did on a chip. Cycles are ticks of its clock; on a GPU those of the SM that ends
// last, which has its share of the bandwidth.
struct KernelRun {
  std::string name, chip, grid;
  DType format = DType::bf16;
  int stages = 2;
  std::int64_t programs = 1, hbm_bytes_read = 0, hbm_bytes_written = 0;  // masked lanes do not move
  std::int64_t on_chip_peak = 0, on_chip_bytes = 0;  // needed, available; 0: not known
  std::int64_t dma_cycles = 0, mxu_cycles = 0, vector_cycles = 0, cycles = 0;  // at work, in all
  std::int64_t matmul_flops = 0, vector_flops = 0;
  double overlap = 0, seconds = 0;  // the share of the DMA's cycles that compute hides
  std::string bound;                // the busiest unit: matmul, vector, memory

  std::int64_t hbm_bytes() const { return hbm_bytes_read + hbm_bytes_written; }
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
  Table table() const {
    Table t;
    t.title = detail::cat("kernel ", name, " on ", chip, ": grid ", grid, ", ", format, ", ",
                          stages, stages == 1 ? " stage" : " stages");
    t.columns = {"quantity", "simulated", "unit"};
    const char* const names[] = {"programs",    "matmul FLOPs", "vector FLOPs",   "HBM read",
                                 "HBM written", "on-chip peak", "on-chip memory", "DMA",
                                 "MXU",         "vector unit",  "cycles"};
    const std::int64_t counts[] = {programs,          matmul_flops,  vector_flops,  hbm_bytes_read,
                                   hbm_bytes_written, on_chip_peak,  on_chip_bytes, dma_cycles,
                                   mxu_cycles,        vector_cycles, cycles};
    for (int i = 0; i < 11; ++i) {
      const bool unknown = i == 6 && on_chip_bytes <= 0;
      t.add({names[i], unknown ? "size not known" : std::to_string(counts[i]),
             i < 3 || unknown ? ""
             : i < 7          ? "bytes"
                              : "ticks"});
    }
    t.add({"DMA hidden", detail::percent(overlap), "% of its ticks"});
    t.add({"time", detail::cat(seconds), "s"});
    t.add({"bound by", bound, ""});
    return t;
  }
};

inline std::ostream& operator<<(std::ostream& out, const KernelRun& run) {
  return out << run.table();
}

namespace detail {

enum TileUnit { tile_dma, tile_mxu, tile_vector, tile_none };

struct TileOp {
  TileUnit unit = tile_none;
  std::int64_t cycles = 0, bytes = 0;     // bytes: of the result on the chip; of a store: sent
  bool store = false;                     // else what the DMA does is a load
  int inputs[3] = {-1, -1, -1};           // of a dot: x, w, and the sums that it adds to
  int last = -1;                          // the last op that reads the result
  std::int64_t segment = 0, end[2] = {};  // [0] as it is, [1] as if transfers took no time
};

// A generation of loads and what follows up to the next one.
struct TileSegment {
  std::int64_t loads = 0, stores = 0, live = 0;  // bytes; live: the most within the segment
  std::int64_t end[2] = {};                      // of its compute
  List<TileOp> out;                              // its stores, sent later
};

struct TileCore {
  std::int64_t free[3][2] = {}, busy[3] = {};  // of DMA, MXUs, vector unit
  List<TileSegment> segments;
  std::int64_t sent = 0, weighed = 0, peak = 0;  // segments; segments; bytes
  bool loading = false;                          // the last op was a load

  std::int64_t size() const { return static_cast<std::int64_t>(segments.size()); }
  TileSegment& at(std::int64_t i) { return segments[static_cast<std::size_t>(i)]; }

  // Occupies a unit from op.end on, or from when it is free; op.end becomes the end.
  void occupy(TileOp& op) {
    for (int k = 0; k < 2; ++k) {
      const std::int64_t taken = op.unit == tile_dma && k == 1 ? 0 : op.cycles;
      op.end[k] = free[op.unit][k] = std::max(op.end[k], free[op.unit][k]) + taken;
    }
    busy[op.unit] += op.cycles;
  }

  // Sends the stores of the segments before `end`.
  void send(std::int64_t end) {
    for (; sent < end; ++sent) {
      for (TileOp& store : at(sent).out) {
        occupy(store);
      }
    }
  }

  void next_segment(int stages) {
    for (int k = 0; k < 2 && size() > 0; ++k) {
      at(size() - 1).end[k] = std::max(free[tile_mxu][k], free[tile_vector][k]);
    }
    send(size() - stages + 1);
    segments.push_back(TileSegment());
  }

  // On-chip bytes of the segments before `end`: live tiles, the generations that are loaded beside
  // them, and the tiles on their way out.
  void weigh(std::int64_t end, int stages) {
    for (; weighed < end; ++weighed) {
      std::int64_t bytes = at(weighed).live;
      for (std::int64_t d = 1; d < stages; ++d) {
        bytes += weighed + d < size() ? at(weighed + d).loads : 0;
        bytes += weighed >= d ? at(weighed - d).stores : 0;
      }
      peak = std::max(peak, bytes);
    }
  }
};

inline std::int64_t ticks(double amount, double rate) {
  const double whole = rate > 0 ? std::ceil(amount / rate - 1e-9) : 0;
  return static_cast<std::int64_t>(std::min(0x1p62, whole));
}

// A GPU's programs run on its SMs, those of other chips one after another on all of it.
inline int tile_cores(const Chip& chip) { return chip.kind == "gpu" ? std::max(chip.cores, 1) : 1; }

// Ticks for which a dot [m, k] x [k, n] holds the MXUs of a core: the streams of its folds, dealt
// to the arrays, m cut where that helps. The next weights shift in meanwhile, so fill and drain are
// not charged. Formats other than the array's own take as many passes as their peak is lower.
inline std::int64_t dot_ticks(const Chip& chip, DType format, std::int64_t m, std::int64_t k,
                              std::int64_t n) {
  const int cores = tile_cores(chip);
  const std::int64_t arrays = chip.mxu_rows > 0 && chip.mxu_cols > 0 ? chip.mxus / cores : 0;
  const double peak = chip.peak(format) / chip.clock_hz;  // flops a tick
  if (arrays < 1) {
    return ticks(2.0 * static_cast<double>(m * n) * static_cast<double>(k), peak / cores);
  }
  const std::int64_t folds = folds_of(k, chip.mxu_rows) * folds_of(n, chip.mxu_cols);
  std::int64_t best = 0;
  for (std::int64_t parts = 1; parts <= std::min<std::int64_t>({arrays, m, 64}); ++parts) {
    const std::int64_t stream = std::max<std::int64_t>(folds_of(m, parts), chip.mxu_rows);
    const std::int64_t each = folds_of(folds * parts, arrays) * stream;
    best = parts == 1 ? each : std::min(best, each);
  }
  const double passes = std::round(4 * chip.unit_peak() / chip.clock_hz / peak);  // in quarters
  return ticks(static_cast<double>(best) * std::max(1.0, passes), 4);
}

// As a shape prints, but of any numbers.
inline std::string list_text(const List<Dim>& list) {
  std::string out = "[";
  for (const Dim& x : list) {
    out += (out.size() > 1 ? ", " : "") + std::to_string(x.value);
  }
  return out + "]";
}

// The program that runs now, on its core, and what the whole run has counted.
struct TileRecorder {
  Chip chip;
  KernelRun run;
  List<Dim> grid, ids;
  std::int64_t program = 0;
  List<TileCore> cores;
  TileCore* core = nullptr;
  List<TileOp> ops;  // of the program

  TileOp& at(int i) { return ops[static_cast<std::size_t>(i)]; }
  std::string place() const { return cat(" in program ", list_text(ids), " of ", run.name); }
  std::int64_t bytes(std::int64_t elements) const {
    return ticks(static_cast<double>(elements) * bytes_of(run.format), 1);
  }
  // An op that takes `work` at a rate of the whole chip a second.
  TileOp op(TileUnit unit, std::int64_t work, double rate, std::int64_t result) const {
    TileOp made;
    made.unit = unit;
    made.cycles = ticks(static_cast<double>(work), rate / chip.clock_hz / tile_cores(chip));
    made.bytes = result;
    return made;
  }

  int add(TileOp op) {
    if (op.cycles > std::int64_t{1} << 44) {
      fail({"Kernel::run: an op", place(), " takes more than 2^44 ticks of ", chip.name});
    }
    const int number = static_cast<int>(ops.size());
    const bool load = op.unit == tile_dma && !op.store;
    if (core->segments.empty() || (load && !core->loading)) {
      core->next_segment(run.stages);
    }
    core->loading = load || (op.unit == tile_none && core->loading);
    op.segment = core->size() - 1;
    for (int k = 0; k < 2; ++k) {
      const std::int64_t before = op.segment - run.stages;
      op.end[k] = load && before >= 0 ? core->at(before).end[k] : 0;
      for (const int i : op.inputs) {
        op.end[k] = std::max(op.end[k], i < 0 ? 0 : at(i).end[k]);
        (i < 0 ? op : at(i)).last = i < 0 ? -1 : number;
      }
    }
    if (op.store) {
      core->at(op.segment).stores += op.bytes;
      op.bytes = 0;
      core->at(op.segment).out.push_back(op);
    } else if (op.unit != tile_none) {
      core->occupy(op);
    }
    ops.push_back(op);
    return number;
  }

  // Makes the last op add to the tile of op `sums`, if it is a dot and that number.
  bool add_to(int sums, int number) {
    TileOp& dot = ops.back();
    if (number + 1 != static_cast<int>(ops.size()) || dot.unit != tile_mxu || dot.inputs[2] >= 0) {
      return false;
    }
    dot.inputs[2] = sums;
    at(sums).last = number;
    for (int k = 0; k < 2; ++k) {
      dot.end[k] = std::max(dot.end[k], at(sums).end[k] + dot.cycles);
      core->free[tile_mxu][k] = dot.end[k];
    }
    return true;
  }

  // The live bytes of the program's segments, in the order of its ops: a tile lives from its op to
  // the last that reads it. A vector op writes over a tile that it is the last to read.
  void end_program() {
    std::int64_t live = 0;
    for (int n = 0; n < static_cast<int>(ops.size()); ++n) {
      const TileOp& op = at(n);
      const auto drop = [this, n, &live](int i) {
        if (i >= 0 && at(i).last <= n) {
          live -= at(i).bytes;
          at(i).bytes = 0;
        }
      };
      TileSegment& segment = core->at(op.segment);
      segment.loads += op.unit == tile_dma && op.last >= 0 ? op.bytes : 0;
      for (int i = op.unit == tile_vector ? 0 : 2; i < 3; ++i) {
        drop(op.inputs[i]);
      }
      live += op.bytes;
      segment.live = std::max(segment.live, live);
      for (const int i : {op.inputs[0], op.inputs[1], n}) {
        drop(i);
      }
    }
    ops.clear();
    core->loading = false;
    weigh(core->size() - run.stages + 1);
  }

  // Weighs the core's segments before `end`; throws when the peak is more than there is.
  void weigh(std::int64_t end) {
    core->weigh(end, run.stages);
    run.on_chip_peak = std::max(run.on_chip_peak, core->peak);
    const std::int64_t over = run.on_chip_peak - run.on_chip_bytes;
    if (run.on_chip_bytes > 0 && over > 0) {
      fail({"Kernel::run: ", run.name, " needs ", core->peak, " bytes on the chip, ",
            tile_cores(chip) > 1 ? "an SM of " : "", chip.name, " has ", run.on_chip_bytes, ": ",
            over, " too many; smaller tiles, fewer stages than ", run.stages,
            " or a format narrower than ", run.format, " would help"});
    }
  }

  // Ends the core's clock; the run is as long as that of the core that ends last.
  void end_core() {
    core->send(core->size());
    weigh(core->size());
    std::int64_t end[2] = {};
    for (int k = 0; k < 2; ++k) {
      end[k] = std::max({core->free[0][k], core->free[1][k], core->free[2][k]});
    }
    if (end[0] > run.cycles) {
      run.cycles = end[0];
      run.dma_cycles = core->busy[tile_dma];
      run.mxu_cycles = core->busy[tile_mxu];
      run.vector_cycles = core->busy[tile_vector];
      const auto hidden = static_cast<double>(run.dma_cycles - (end[0] - end[1]));
      run.overlap = hidden / std::max(1.0, static_cast<double>(run.dma_cycles));
    }
  }
};

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/systolic/tile.hpp
// What the body of a tile kernel sees: where its program stands in the grid, blocks loaded from
// HBM, arithmetic on them, blocks stored. Numbers are real and stay f32; in bytes and in MXU passes
// what is loaded, stored and multiplied has the kernel's format, a computed tile f32.
// In the spirit of Triton (Tillet et al. 2019) and Pallas.

namespace tinyscale { inline namespace TINYSCALE_ABI {

struct TileValue;
namespace detail {
TileValue tile_math(Arithmetic op, const TileValue& a, const TileValue& b);
}

// A tile on the chip: [r, c], [n] or one number. It lives within its program.
struct TileValue {
  using V = const TileValue&;
  TileValue(float number) : numbers(full(Shape{}, number)) {}
  TileValue(const Tensor& made, const Shared<detail::TileRecorder>& by, int number)
      : numbers(made), recorder(by), program(by->program), op(number) {}

  const Shape& shape() const { return numbers.shape(); }
  friend TileValue operator+(V a, V b) { return detail::tile_math(detail::Arithmetic::add, a, b); }
  friend TileValue operator-(V a, V b) { return detail::tile_math(detail::Arithmetic::sub, a, b); }
  friend TileValue operator*(V a, V b) { return detail::tile_math(detail::Arithmetic::mul, a, b); }
  friend TileValue operator/(V a, V b) { return detail::tile_math(detail::Arithmetic::div, a, b); }
  TileValue& operator+=(V b) { return *this = *this + b; }
  TileValue& operator-=(V b) { return *this = *this - b; }
  TileValue& operator*=(V b) { return *this = *this * b; }
  TileValue& operator/=(V b) { return *this = *this / b; }
  TileValue& operator+=(TileValue&& b);  // a dot adds to the sums where they are, at no cost

  Tensor numbers;
  Shared<detail::TileRecorder> recorder;  // null: a number from outside
  std::int64_t program = -1;
  int op = -1;
};

namespace detail {

using TileOperands = std::initializer_list<const TileValue*>;

// Puts an op on the clock; its operands must be of the program that runs.
inline TileValue record_tile(const Shared<TileRecorder>& by, TileOp op, const Tensor& numbers,
                             TileOperands operands) {
  int inputs = 0;
  for (const TileValue* x : operands) {
    if (x->recorder && (x->recorder.get() != by.get() || x->program != by->program)) {
      fail({"Tile: a tile ", x->shape(), " of another program is used", by->place(),
            "; a tile lives within its program"});
    }
    op.inputs[inputs++] = x->op;
  }
  return TileValue(numbers, by, by->add(op));
}

// A vector op, at the price of vector_costs() for each element of its largest operand.
inline TileValue vector_tile(const char* price, const Tensor& numbers, TileOperands operands) {
  const TileValue* recorded = *operands.begin();
  std::int64_t elements = numbers.count();
  for (const TileValue* x : operands) {
    recorded = recorded->recorder ? recorded : x;
    elements = std::max(elements, x->numbers.count());
  }
  if (!recorded->recorder) {
    return TileValue(numbers.item());
  }
  TileRecorder& r = *recorded->recorder;
  elements *= static_cast<std::int64_t>(vector_cost(price, 1, &VectorCost::forward));
  r.run.vector_flops += elements;
  const TileOp op = r.op(tile_vector, elements, r.chip.vector_flops, 4 * numbers.count());
  return record_tile(recorded->recorder, op, numbers, operands);
}

inline TileValue tile_math(Arithmetic op, const TileValue& a, const TileValue& b) {
  const char* const names[] = {"add", "sub", "mul", "div", "less"};
  const char* const name = names[static_cast<int>(op)];
  return vector_tile(name, arithmetic(op, name, a.numbers, b.numbers), {&a, &b});
}

// The view of a block as far as it lies inside the tensor; `tile` becomes the shape of the whole
// block, without the dims before its last two, which must have size 1.
inline Tensor tile_block(const char* what, const TileRecorder& r, const Tensor& x,
                         const List<Dim>& offsets, const List<Dim>& sizes, bool masked,
                         Shape& tile) {
  const auto dims = static_cast<std::size_t>(x.dims());
  const char* right = !x.defined() ? "the tensor must not be empty"
                      : sizes.size() != dims || offsets.size() != dims
                          ? "an offset and a size for each dim of the tensor are right"
                          : nullptr;
  Shape inside;
  Strides steps;
  std::int64_t first = 0;
  bool gone = false;
  for (std::size_t i = 0; right == nullptr && i < dims; ++i) {
    const int dim = static_cast<int>(i);
    const std::int64_t begin = offsets[i].value, n = sizes[i].value;
    const bool outside = begin < 0 || begin >= x.dim(dim);
    const std::int64_t left = outside ? 0 : std::min(n, x.dim(dim) - begin);
    right = begin < 0                ? "offsets are 0 or more"
            : n < 1                  ? "sizes are 1 or more"
            : i + 2 < dims && n != 1 ? "dims before the last two take size 1"
            : left < n && !masked    ? "it reaches outside; masked takes what is inside"
                                     : nullptr;
    if (right == nullptr && i + 2 >= dims) {
      steps.of[inside.size()] = x.stride(dim);
      tile.push_back(n);
      inside.push_back(left);
    }
    gone = gone || left < 1;
    first += gone ? 0 : begin * x.stride(dim);
  }
  if (right != nullptr) {
    fail({what, ": block ", list_text(sizes), " at ", list_text(offsets), " of tensor ", x.shape(),
          r.place(), ": ", right});
  }
  return gone ? Tensor(Shape{0}) : x.as_strided(inside, steps, first);
}

}  // namespace detail

// The running program: its place in the grid, and what it can do.
class Tile {
 public:
  using X = const Tensor&;
  using V = const TileValue&;
  using At = const List<Dim>&;
  explicit Tile(const Shared<detail::TileRecorder>& recorder) : recorder_(recorder) {}

  std::int64_t id(int axis) const { return part("id", recorder_->ids, axis); }
  std::int64_t grid(int axis) const { return part("grid", recorder_->grid, axis); }

  // Tiles from nothing, in no time: a number everywhere; first, first + 1, .. as [n, 1] (dim 0) or
  // [1, n] (dim 1).
  TileValue full(const Shape& s, float x) const { return make(tinyscale::full(s, x)); }
  TileValue zeros(const Shape& s) const { return full(s, 0.0f); }
  TileValue arange(Dim n, int dim, Dim first) const {
    const Tensor numbers = tinyscale::arange(n) + static_cast<float>(first.value);
    return make(reshape(numbers, dim == 0 ? Shape{n, 1} : Shape{1, n}));
  }

  // The block of these sizes at an offset. Throws when it reaches outside the tensor; masked, lanes
  // outside are not moved: they become `fill`, or are not written.
  TileValue load(X x, At at, At sizes) const { return load("load", x, at, sizes, nullptr); }
  TileValue load_masked(X x, At at, At sizes, float fill = 0.0f) const {
    return load("load_masked", x, at, sizes, &fill);
  }
  void store(X x, At at, V v) const { store("store", x, at, v, false); }
  void store_masked(X x, At at, V v) const { store("store_masked", x, at, v, true); }

  // a [m, k] times b [k, n]; transposed: b [n, k].
  TileValue dot(V a, V b) const { return dot("dot", a, b, kernels::Trans::no); }
  TileValue dot_transposed(V a, V b) const {
    return dot("dot_transposed", a, b, kernels::Trans::yes);
  }

  // Along a dim, which stays with size 1.
  TileValue sum(V v, int dim) const {
    return made("sum", tinyscale::sum(v.numbers, dim, KeepDim::yes), {&v});
  }
  TileValue max(V v, int dim) const {
    return made("max", tinyscale::max(v.numbers, dim, KeepDim::yes), {&v});
  }
  TileValue maximum(V a, V b) const {
    return made("max", tinyscale::maximum(a.numbers, b.numbers), {&a, &b});
  }
  TileValue minimum(V a, V b) const {
    return made("max", tinyscale::minimum(a.numbers, b.numbers), {&a, &b});
  }
  TileValue exp(V v) const { return made("exp", tinyscale::exp(v.numbers), {&v}); }
  TileValue sqrt(V v) const { return made("sqrt", tinyscale::sqrt(v.numbers), {&v}); }
  TileValue tanh(V v) const { return made("tanh", tinyscale::tanh(v.numbers), {&v}); }
  TileValue gelu(V v) const { return made("gelu", tinyscale::gelu(v.numbers), {&v}); }
  // 1 where a < b, else 0; a where the condition is not 0, else b.
  TileValue less(V a, V b) const { return detail::tile_math(detail::Arithmetic::less, a, b); }
  TileValue where(V c, V a, V b) const {
    return made("where", tinyscale::where(c.numbers, a.numbers, b.numbers), {&c, &a, &b});
  }
  // Scores [r, c] of queries and keys from these positions on: -1e30 where the key is the later.
  TileValue causal(V scores, Dim query, Dim key) const {
    const TileValue queries = arange(scores.shape()[0], 0, query);
    return where(less(queries, arange(scores.shape()[-1], 1, key)), -1e30f, scores);
  }

 private:
  static TileValue made(const char* price, X numbers, detail::TileOperands operands) {
    return detail::vector_tile(price, numbers, operands);
  }
  TileValue make(X numbers) const {
    const detail::TileOp op = recorder_->op(detail::tile_none, 0, 0, 4 * numbers.count());
    return detail::record_tile(recorder_, op, numbers, {});
  }
  std::int64_t part(const char* what, At of, int axis) const {
    if (axis < 0 || axis >= static_cast<int>(of.size())) {
      detail::fail({what, ": axis ", axis, " of grid ", detail::list_text(recorder_->grid), " of ",
                    recorder_->run.name, "; axes are 0 to ", of.size() - 1});
    }
    return of[static_cast<std::size_t>(axis)].value;
  }

  TileValue load(const char* what, X x, At at, At sizes, const float* fill) const {
    detail::TileRecorder& r = *recorder_;
    Shape tile;
    const Tensor inside = detail::tile_block(what, r, x, at, sizes, fill != nullptr, tile);
    const bool whole = inside.shape() == tile;
    const Tensor numbers = whole ? inside.clone() : tinyscale::full(tile, *fill);
    if (!whole && inside.count() > 0) {
      const Tensor to = numbers.as_strided(inside.shape(), numbers.steps(), 0);
      detail::apply_in_place(detail::Arithmetic::second, what, to, inside);
    }
    const std::int64_t moved = r.bytes(inside.count());
    r.run.hbm_bytes_read += moved;
    const double rate = r.chip.memory_bandwidth;
    return detail::record_tile(
        recorder_, r.op(detail::tile_dma, moved, rate, r.bytes(numbers.count())), numbers, {});
  }

  void store(const char* what, X x, At at, V v, bool masked) const {
    detail::TileRecorder& r = *recorder_;
    Shape tile;
    List<Dim> sizes;
    const int more = x.dims() - v.shape().size();  // dims of size 1 in front
    for (int i = std::min(0, -more); i < v.shape().size(); ++i) {
      sizes.push_back(i < 0 ? 1 : v.shape()[i]);
    }
    const Tensor inside = detail::tile_block(what, r, x, at, sizes, masked, tile);
    const std::int64_t moved = r.bytes(inside.count());
    r.run.hbm_bytes_written += moved;
    detail::TileOp op =
        r.op(detail::tile_dma, moved, r.chip.memory_bandwidth, r.bytes(v.numbers.count()));
    op.store = true;
    detail::record_tile(recorder_, op, Tensor(), {&v});
    if (moved > 0) {
      const Tensor from = reshape(v.numbers, tile);
      detail::write(detail::Arithmetic::second, what, inside,
                    from.as_strided(inside.shape(), from.steps(), 0));
    }
  }

  TileValue dot(const char* what, V a, V b, kernels::Trans trans) const {
    detail::TileRecorder& r = *recorder_;
    const int inner = trans == kernels::Trans::no ? 0 : 1;
    const Shape &x = a.shape(), &y = b.shape();
    if (x.size() != 2 || y.size() != 2 || x[1] != y[inner]) {
      detail::fail({what, ": inner sizes differ: a is ", x, ", b is ", y, r.place(),
                    "; a [m, k] and b ", inner == 0 ? "[k, n]" : "[n, k]", " are right"});
    }
    const std::int64_t m = x[0], k = x[1], n = y[1 - inner];
    Tensor out(Shape{m, n});
    kernels::gemm(kernels::Trans::no, trans, m, n, k, a.numbers.data(), k, b.numbers.data(), y[1],
                  0.0f, out.data(), n);
    r.run.matmul_flops += 2 * m * n * k;
    detail::TileOp op = r.op(detail::tile_mxu, 0, 0, 4 * m * n);
    op.cycles = detail::dot_ticks(r.chip, r.run.format, m, k, n);
    return detail::record_tile(recorder_, op, out, {&a, &b});
  }

  Shared<detail::TileRecorder> recorder_;
};

inline TileValue& TileValue::operator+=(TileValue&& b) {
  const bool both = recorder.get() == b.recorder.get() && op >= 0 && b.op >= 0;
  if (!both || program != recorder->program || b.program != program || shape() != b.shape() ||
      !recorder->add_to(op, b.op)) {
    return *this = *this + b;
  }
  numbers = detail::arithmetic(detail::Arithmetic::add, "add", numbers, b.numbers);
  op = b.op;
  return *this;
}

}}  // namespace tinyscale

// >> tinyscale/systolic/tile_kernel.hpp
// A kernel written tile by tile: a body that runs once for each cell of a grid. Programs run in
// row-major order, one after another, on the whole chip (all of its MXUs and on-chip memory); a GPU
// deals them to its SMs, each with its share of everything. Nothing is kept between programs: a
// block that two of them load is moved twice.

namespace tinyscale { inline namespace TINYSCALE_ABI {

struct Kernel {
  std::string name;
  List<Dim> grid;  // 1 to 3 sizes
  std::function<void(Tile&)> body;
  int stages = 2;              // generations of loads in flight; 1: none beside compute
  DType format = DType::bf16;  // of what is loaded, stored and multiplied

  // Runs every program. Throws when a size is not legal, the chip's rates are not known, or the
  // tiles need more on-chip memory than there is. No profile and no gradient sees the body's ops.
  KernelRun run(const Chip& chip) const;
};

inline Kernel kernel(const std::string& name, const List<Dim>& grid,
                     const std::function<void(Tile&)>& body) {
  return Kernel{name, grid, body};
}

namespace detail {

// A body that outlives its run; it costs less to compile than a std::function.
struct TileBody {
  template <class F>
  TileBody(const F& f)
      : of(&f), call([](const void* own, Tile& t) { (*static_cast<const F*>(own))(t); }) {}
  const void* of;
  void (*call)(const void* of, Tile& t);
};

// This thread's context without its profile and gradients, matmuls in f32.
inline Context quiet_context() {
  Context own = context();
  own.profile = nullptr;
  own.no_grad += 1;
  own.matmul_format = DType::f32;
  return own;
}

// The number of programs; throws when a size is not legal or the chip's rates are not known.
inline std::int64_t programs_of(const Kernel& k, const Chip& chip) {
  bool legal = !k.grid.empty() && k.grid.size() <= 3 && k.stages >= 1 && k.stages <= 64;
  double programs = 1;
  for (const Dim& size : k.grid) {
    programs *= static_cast<double>(size.value);
    legal = legal && size.value >= 1 && programs < 0x1p40;
  }
  if (!legal) {
    fail({"Kernel::run: ", k.name, " has grid ", list_text(k.grid), " and ", k.stages,
          " stages; 1 to 3 sizes from 1 and 1 to 64 stages are right"});
  }
  if (!(chip.clock_hz > 0) || !(chip.memory_bandwidth > 0)) {
    fail({"Kernel::run: ", k.name, " on ", chip.name, ": clock_hz is ", chip.clock_hz,
          ", memory_bandwidth ", chip.memory_bandwidth, "; both must be above 0"});
  }
  return static_cast<std::int64_t>(programs);
}

inline KernelRun run_kernel(const Kernel& k, const Chip& chip, const TileBody& body) {
  const std::int64_t programs = programs_of(k, chip);
  Context own = quiet_context();
  const ContextScope scope(own);
  const Shared<TileRecorder> recorder = Shared<TileRecorder>::make();
  TileRecorder& r = *recorder;
  KernelRun& run = r.run;
  r.chip = chip;
  r.grid = r.ids = k.grid;
  run.name = k.name;
  run.chip = chip.name;
  run.grid = list_text(k.grid);
  run.format = k.format;
  run.stages = k.stages;
  run.programs = programs;
  const int cores = tile_cores(chip);
  run.on_chip_bytes = chip.sram_bytes > 0  // not so of a NaN
                          ? static_cast<std::int64_t>(std::min(0x1p62, chip.sram_bytes / cores))
                          : 0;
  r.cores.resize(static_cast<std::size_t>(std::min<std::int64_t>(cores, programs)));
  Tile tile(recorder);
  for (r.program = 0; r.program < programs; ++r.program) {
    std::int64_t left = r.program;
    for (std::size_t axis = k.grid.size(); axis-- > 0; left /= k.grid[axis].value) {
      r.ids[axis] = left % k.grid[axis].value;
    }
    r.core = &r.cores[static_cast<std::size_t>(r.program % cores)];
    body.call(body.of, tile);
    r.end_program();
  }
  for (TileCore& core : r.cores) {
    r.core = &core;
    r.end_core();
  }
  run.seconds = static_cast<double>(run.cycles) / chip.clock_hz;
  const std::int64_t parts[] = {run.dma_cycles, run.mxu_cycles, run.vector_cycles};
  const char* const names[] = {"memory", "matmul", "vector"};
  run.bound = names[std::max_element(parts, parts + 3) - parts];
  return run;
}

}  // namespace detail

inline KernelRun Kernel::run(const Chip& chip) const {
  if (!body) {
    detail::fail({"Kernel::run: ", name, " has no body; give it what a program does"});
  }
  return detail::run_kernel(*this, chip, body);
}

}}  // namespace tinyscale

// >> tinyscale/systolic/tile_kernels.hpp
// Four tile kernels, each run beside the ops that it replaces: matmul with bias and GELU, softmax,
// layer norm, attention (FlashAttention, arXiv 2205.14135). What a kernel saves is HBM traffic: the
// ops write every intermediate result and read it again. The least is each operand and the result
// once. In blocks [BM, BN] a matmul moves s (M K ceil(N / BN) + K N ceil(M / BM) + M N) bytes.

namespace tinyscale { inline namespace TINYSCALE_ABI {

struct TileOptions {
  List<Dim> block;  // {M, N, K} of a matmul, {rows}, {queries, keys}; empty: the largest that fits
  int stages = 2;
  DType format = DType::bf16;
};

// A kernel's run beside that of the ops.
struct TiledRun : KernelRun {
  Tensor output;
  std::int64_t unfused_ops = 0, unfused_bytes = 0, least_bytes = 0;  // in the kernel's format
  double largest_difference = 0;  // |output - that of the ops|; NaN: only one of them is

  Table traffic() const {
    Table t;
    t.title = name + ": HBM traffic";
    t.columns = {"by", "bytes", "times the least", "source"};
    const auto row = [&t, this](const std::string& by, std::int64_t bytes, const char* source) {
      const auto least = static_cast<double>(std::max<std::int64_t>(least_bytes, 1));
      const std::string times = format_fixed(static_cast<double>(bytes) / least, 2);
      t.add({by, std::to_string(bytes), times, source});
    };
    row(detail::cat(unfused_ops, " unfused ops"), unfused_bytes, "counted");
    row("the kernel", hbm_bytes(), "simulated");
    row("the least", least_bytes, "formula");
    return t;
  }
};

inline std::ostream& operator<<(std::ostream& out, const TiledRun& run) {
  return out << run.table() << run.traffic();
}

// HBM bytes of [M, K] times [K, N] in blocks [BM, BN] of the result.
inline std::int64_t tiled_matmul_bytes(Dim m, Dim n, Dim k, Dim bm, Dim bn, DType format) {
  for (const Dim& size : {m, n, k, bm, bn}) {
    if (size.value < 1 || size.value > 1 << 20) {
      detail::fail({"tiled_matmul_bytes: M, N, K, BM, BN are ", m.value, ", ", n.value, ", ",
                    k.value, ", ", bm.value, ", ", bn.value, "; each must be from 1 to 2^20"});
    }
  }
  const std::int64_t moved = m.value * k.value * detail::folds_of(n.value, bn.value) +
                             k.value * n.value * detail::folds_of(m.value, bm.value) +
                             m.value * n.value;
  return detail::ticks(static_cast<double>(moved) * bytes_of(format), 1);
}

namespace detail {

// The block that was given, else the largest power of two b up to `most` for which square b^2 +
// linear b bytes fit on the chip, in each dim no larger than it takes to hold `sizes`; 8 at least.
inline List<Dim> block_or_fit(const char* what, const Chip& chip, const TileOptions& options,
                              const List<Dim>& sizes, double most, double square, double linear) {
  bool legal = options.block.empty() || options.block.size() == sizes.size();
  for (const Dim& size : options.block) {
    legal = legal && size.value > 0;
  }
  if (!legal) {
    fail({what, ": block ", list_text(options.block), "; ", sizes.size(),
          sizes.size() == 1 ? " size from 1 is right" : " sizes from 1 are right"});
  }
  const double room = chip.sram_bytes > 0 ? chip.sram_bytes / tile_cores(chip) : 1e300;
  double b = 8;
  while (2 * b <= most && (square * 2 * b + linear) * 2 * b <= room) {
    b *= 2;
  }
  List<Dim> block = options.block;
  for (std::size_t i = block.size(); i < sizes.size(); ++i) {
    block.push_back(8);
    while (block[i].value < std::min(static_cast<std::int64_t>(b), sizes[i].value)) {
      block[i].value *= 2;
    }
  }
  return block;
}

// Counts what is computed while it is alive: the ops that a kernel replaces.
struct UnfusedOps {
  Context own = quiet_context();
  const ContextScope scope{own};
  const HookScope host{nullptr};
  const Profile profile;

  // The kernel's run with its output and the least elements that move, beside these ops.
  TiledRun beside(const KernelRun& kernel, const Tensor& output, std::int64_t least,
                  const Tensor& theirs) {
    TiledRun run;
    static_cast<KernelRun&>(run) = kernel;
    const double s = bytes_of(run.format);
    run.output = output;
    run.least_bytes = ticks(static_cast<double>(least) * s, 1);
    run.unfused_ops = static_cast<std::int64_t>(profile.totals().ops);
    run.unfused_bytes = ticks(profile.totals().bytes() / bytes_of(DType::f32) * s, 1);
    const Tensor wanted = contiguous(theirs);
    for (std::int64_t i = 0; i < output.count(); ++i) {
      const double a = output.data()[i], b = wanted.data()[i];
      const double gap = a == b || (a != a && b != b) ? 0 : std::fabs(a - b);
      run.largest_difference = gap <= run.largest_difference ? run.largest_difference : gap;
    }
    return run;
  }
};

// The rows of x [.., D] in as large blocks as fit with `live` f32 tiles at a time.
struct TileRows {
  TileRows(const char* name, const Chip& chip, const Tensor& x, const TileOptions& options,
           double live) {
    check_last_dim(name, x);
    d = x.dim(-1);
    const std::int64_t rows = x.count() / d;
    const double row =
        (4 * live + 2 * options.stages * bytes_of(options.format)) * static_cast<double>(d);
    const double most = static_cast<double>(rows) / (4 * tile_cores(chip));
    b = block_or_fit(name, chip, options, {rows}, most, 0, row)[0].value;
    blocks = folds_of(rows, b);
    from = reshape(x.detach(), {rows, d});
    to = zeros({rows, d});
  }
  TileValue load(Tile& t) const { return t.load_masked(from, {t.id(0) * b, 0}, {b, d}); }
  void store(Tile& t, const TileValue& v) const { t.store_masked(to, {t.id(0) * b, 0}, v); }

  Tensor from, to;
  std::int64_t d = 0, b = 0, blocks = 0;
};

}  // namespace detail

// a [M, K] times b [K, N]; with a bias [N], GELU(a b + bias), all in one kernel.
inline TiledRun tiled_matmul(const Chip& chip, const Tensor& a, const Tensor& b,
                             const Tensor& bias = Tensor(), const TileOptions& options = {}) {
  const detail::Matmul s = detail::matmul_sizes("tiled_matmul", a, b, kernels::Trans::no);
  if (bias.defined() && bias.shape() != Shape{s.n}) {
    detail::fail({"tiled_matmul: b is ", b.shape(), ", bias is ", bias.shape(), "; bias must be [",
                  s.n, "]"});
  }
  const double programs = std::max(4, detail::tile_cores(chip));
  const double most = std::sqrt(static_cast<double>(s.m) * static_cast<double>(s.n) / programs);
  const int deep = std::max(chip.mxu_rows, 16);  // K of a block: what fills the rows of an array
  const double width = options.stages * bytes_of(options.format);
  const List<Dim> block = detail::block_or_fit("tiled_matmul", chip, options,
                                               {s.m, s.n, std::min<std::int64_t>(s.k, deep)},
                                               std::min(most, 1024.0), 4 + width, 4 * width * deep);
  const std::int64_t bm = block[0].value, bn = block[1].value, bk = block[2].value;
  const Tensor from = reshape(a.detach(), {s.m, s.k}), y = zeros({s.m, s.n});
  const auto body = [&](Tile& t) {
    const std::int64_t i = t.id(0) * bm, j = t.id(1) * bn;
    TileValue acc = t.zeros({bm, bn});
    for (std::int64_t p = 0; p < s.k; p += bk) {
      const TileValue x = t.load_masked(from, {i, p}, {bm, bk});
      acc += t.dot(x, t.load_masked(b, {p, j}, {bk, bn}));
    }
    if (bias.defined()) {
      acc = t.gelu(acc + t.load_masked(bias, {j}, {bn}));
    }
    t.store_masked(y, {i, j}, acc);
  };
  const List<Dim> grid{detail::folds_of(s.m, bm), detail::folds_of(s.n, bn)};
  const KernelRun run = detail::run_kernel(
      {"tiled_matmul", grid, nullptr, options.stages, options.format}, chip, body);
  detail::UnfusedOps ops;
  Tensor product = matmul(a, b);
  product = bias.defined() ? gelu(product + bias) : product;
  return ops.beside(run, reshape(y, s.shape), a.count() + b.count() + bias.count() + y.count(),
                    product);
}

// Along the last dim, a whole row in a tile; the ops are max, subtract, exp, sum, divide.
inline TiledRun tiled_softmax(const Chip& chip, const Tensor& x, const TileOptions& options = {}) {
  const detail::TileRows rows("tiled_softmax", chip, x, options, 2);
  const auto body = [&](Tile& t) {
    TileValue v = rows.load(t);
    v = t.exp(v - t.max(v, 1));
    rows.store(t, v / t.sum(v, 1));
  };
  const KernelRun run = detail::run_kernel(
      {"tiled_softmax", {rows.blocks}, nullptr, options.stages, options.format}, chip, body);
  detail::UnfusedOps ops;
  const Tensor e = exp(x - max(x, -1, KeepDim::yes));
  return ops.beside(run, reshape(rows.to, x.shape()), 2 * x.count(), e / sum(e, -1, KeepDim::yes));
}

// (x - mean) / sqrt(variance + epsilon) * weight + bias along the last dim; weight and bias [D].
inline TiledRun tiled_layer_norm(const Chip& chip, const Tensor& x, const Tensor& weight,
                                 const Tensor& bias, const TileOptions& options = {},
                                 float epsilon = 1e-5f) {
  detail::check_norm("tiled_layer_norm", "weight", x, weight);
  detail::check_norm("tiled_layer_norm", "bias", x, bias);
  const detail::TileRows rows("tiled_layer_norm", chip, x, options, 3);
  const float each = 1.0f / static_cast<float>(rows.d);
  const auto body = [&](Tile& t) {
    TileValue v = rows.load(t);
    v -= t.sum(v, 1) * each;
    v /= t.sqrt(t.sum(v * v, 1) * each + epsilon);
    v *= t.load(weight, {0}, {rows.d});
    rows.store(t, v + t.load(bias, {0}, {rows.d}));
  };
  const KernelRun run = detail::run_kernel(
      {"tiled_layer_norm", {rows.blocks}, nullptr, options.stages, options.format}, chip, body);
  detail::UnfusedOps ops;
  const Tensor c = x - sum(x, -1, KeepDim::yes) * each;
  const Tensor deviation = sqrt(sum(square(c), -1, KeepDim::yes) * each + epsilon);
  return ops.beside(run, reshape(rows.to, x.shape()), 2 * (x.count() + rows.d),
                    c / deviation * weight + bias);
}

// softmax(q k^T / sqrt(d)) v, the softmax gathered block by block of keys; q [T, d], k and v [S,
// d], or all of them [heads, .., d]. causal: query i sees key j when j <= i + S - T.
inline TiledRun flash_attention(const Chip& chip, const Tensor& q, const Tensor& k, const Tensor& v,
                                Mask mask = Mask::none, const TileOptions& options = {}) {
  const int dims = q.dims();
  if (dims < 2 || dims > 3 || k.dims() != dims || k.shape() != v.shape() ||
      q.dim(-1) != k.dim(-1) || q.dim(0) * k.dim(0) == 0 || (dims == 3 && q.dim(0) != k.dim(0)) ||
      (mask == Mask::causal && k.dim(-2) < q.dim(-2)) || q.count() == 0 || k.count() == 0) {
    detail::fail({"flash_attention: q is ", q.shape(), ", k is ", k.shape(), ", v is ", v.shape(),
                  "; right is q [T, d], k and v [S, d], or all [heads, .., d], and S >= T when ",
                  "causal"});
  }
  const std::int64_t queries = q.dim(-2), keys = k.dim(-2), d = q.dim(-1);
  const std::int64_t heads = dims == 3 ? q.dim(0) : 1;
  const float factor = 1.0f / std::sqrt(static_cast<float>(d));
  const double s = bytes_of(options.format), width = static_cast<double>(d);
  const double most = std::min(512.0, static_cast<double>(std::max(queries, keys)) / 2);
  const List<Dim> block =
      detail::block_or_fit("flash_attention", chip, options, {queries, keys}, most, 12,
                           (8 + (2 + 3 * options.stages) * s) * width);
  const std::int64_t bq = block[0].value, bk = block[1].value;
  const Tensor q3 = reshape(q.detach(), {heads, queries, d}), y = zeros({heads, queries, d});
  const Tensor k3 = reshape(k.detach(), {heads, keys, d});
  const Tensor v3 = reshape(v.detach(), {heads, keys, d});
  const auto body = [&](Tile& t) {
    const std::int64_t i = t.id(1) * bq, last = i + bq + keys - queries;
    const TileValue x = t.load_masked(q3, {t.id(0), i, 0}, {1, bq, d}) * factor;
    TileValue top = t.full({bq, 1}, -1e30f), total = t.zeros({bq, 1}), acc = t.zeros({bq, d});
    for (std::int64_t j = 0; j < (mask == Mask::causal ? std::min(last, keys) : keys); j += bk) {
      TileValue p = t.dot_transposed(x, t.load_masked(k3, {t.id(0), j, 0}, {1, bk, d}));
      if (mask == Mask::causal && j + bk > i + keys - queries) {
        p = t.causal(p, i + keys - queries, j);
      }
      if (j + bk > keys) {
        p = t.where(t.less(t.arange(bk, 1, j), static_cast<float>(keys)), p, -1e30f);
      }
      const TileValue higher = t.maximum(top, t.max(p, 1));
      const TileValue fade = t.exp(top - higher);  // of what was gathered below a lower top
      top = higher;
      p = t.exp(p - top);
      total *= fade;
      total += t.sum(p, 1);
      acc *= fade;
      acc += t.dot(p, t.load_masked(v3, {t.id(0), j, 0}, {1, bk, d}));
    }
    t.store_masked(y, {t.id(0), i, 0}, acc / total);
  };
  const Tensor query = reshape(arange(queries), {queries, 1}) + static_cast<float>(keys - queries);
  const Tensor hidden = less(query, arange(keys));
  const List<Dim> grid{heads, detail::folds_of(queries, bq)};
  const KernelRun run = detail::run_kernel(
      {"flash_attention", grid, nullptr, options.stages, options.format}, chip, body);
  detail::UnfusedOps ops;
  Tensor scores = matmul(q * factor, transpose(k, -1, -2));
  scores = mask == Mask::causal ? masked_fill(scores, hidden, -1e30f) : scores;
  return ops.beside(run, reshape(y, q.shape()), 2 * (q.count() + k.count()),
                    matmul(softmax(scores), v));
}

}}  // namespace tinyscale

// >> tinyscale/mesh/fabric.hpp
// Where the devices of a run meet: mailboxes, the start of collectives, and the judgement when none
// can go on. Sends never block; a device waits for a message or for its peers to call a collective.
// When no device runs and some wait, nothing can ever arrive: all throw one Error that says where
// each stands. However the threads were scheduled, that state is the same (Kahn 1974).

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace detail {

// "0-3, 5"
inline std::string rank_list(const std::vector<int>& ranks) {
  std::string out;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) {
      ++last;
    }
    out += cat(out.empty() ? "" : ", ", ranks[i]);
    out += last > i ? cat(last > i + 1 ? "-" : ", ", ranks[last]) : "";
    i = last;
  }
  return out;
}

inline std::string device_list(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "device " : "devices ") + rank_list(ranks);
}

struct Packet {
  Shape shape;
  std::vector<float> numbers;
  std::size_t index = 0;  // in the sender's log
};

// Chunks of collectives and a user's sends are kept apart.
enum class Channel { collective, user };

class Fabric {
 public:
  explicit Fabric(int devices) : devices_(static_cast<std::size_t>(devices)), running_(devices) {}

  void put(int from, int to, Channel channel, Packet packet) {
    const std::lock_guard<std::mutex> lock(mutex_);
    State& receiver = state(to);
    receiver.box(channel, from).packets.push_back(std::move(packet));
    if (receiver.now == Now::receives && receiver.from == from && receiver.channel == channel) {
      wake(receiver);
    }
  }

  // The next packet of that sender; `where` says which line of the program asks for it.
  Packet take(int me, int from, Channel channel, const std::string& where) {
    std::unique_lock<std::mutex> lock(mutex_);
    State& self = state(me);
    if (self.box(channel, from).empty()) {
      self.from = from;
      self.channel = channel;
      self.where = where;
      wait(lock, self, Now::receives);
    }
    Box& box = self.box(channel, from);  // others may have moved the boxes while it waited
    Packet packet = std::move(box.packets[box.next]);
    if (++box.next == box.packets.size()) {
      box.packets.clear();
      box.next = 0;
    }
    return packet;
  }

  // Returns when every member called it with equal text. `key` is the same for all of a group.
  void meet(int me, const std::string& key, const std::vector<int>& members,
            const std::string& text, const std::string& where) {
    if (members.size() < 2) {
      return;
    }
    std::unique_lock<std::mutex> lock(mutex_);
    Meeting& meeting = meetings_[find_meeting(key)];
    meeting.members = members;
    meeting.came.push_back(me);
    meeting.texts.push_back(text);
    if (meeting.texts.size() == members.size() && !disagrees(meeting)) {
      meeting = std::move(meetings_.back());
      meetings_.pop_back();
      for (const int rank : members) {
        if (rank != me) {
          wake(state(rank));
        }
      }
      return;
    }
    state(me).meeting = key;
    state(me).where = where;
    wait(lock, state(me), Now::meets);
  }

  void returned(int me, const std::string& where) { end(me, Now::returned, where, ""); }

  // A device that throws because the run ended already is no further cause.
  void threw(int me, const std::string& where, const std::string& message) {
    end(me, Now::threw, where, message);
  }

  // After all devices have ended: empty when all is well.
  std::string failure() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_.empty()) {
      for (const State& device : devices_) {
        if (device.now == Now::threw || unread(device) > 0) {
          conclude();
          break;
        }
      }
    }
    return failure_;
  }

 private:
  enum class Now { runs, receives, meets, returned, threw };

  struct Box {
    Channel channel = Channel::collective;
    int from = 0;
    List<Packet> packets;
    std::size_t next = 0;

    bool empty() const { return next == packets.size(); }
  };
  struct State {
    std::condition_variable changed;
    Now now = Now::runs;
    std::string where;    // "call 2, all_gather([4], x, dim 0)"
    std::string message;  // what it threw
    int from = 0;         // receives: from whom
    Channel channel = Channel::collective;
    std::string meeting;  // meets: which
    List<Box> boxes;      // by channel, then by sender

    Box& box(Channel of, int sender) {
      std::size_t at = 0;
      while (at < boxes.size() &&
             (boxes[at].channel < of || (boxes[at].channel == of && boxes[at].from < sender))) {
        ++at;
      }
      if (at == boxes.size() || boxes[at].channel != of || boxes[at].from != sender) {
        boxes.push_back({});
        for (std::size_t i = boxes.size() - 1; i > at; --i) {
          boxes[i] = std::move(boxes[i - 1]);
        }
        boxes[at] = {of, sender, {}, 0};
      }
      return boxes[at];
    }
  };
  struct Meeting {
    std::string key;
    std::vector<int> members;
    std::vector<int> came;
    std::vector<std::string> texts;  // what each that came called
  };

  // One not there yet is added.
  std::size_t find_meeting(const std::string& key) {
    std::size_t at = 0;
    while (at < meetings_.size() && meetings_[at].key != key) {
      ++at;
    }
    if (at == meetings_.size()) {
      meetings_.push_back({key, {}, {}, {}});
    }
    return at;
  }

  State& state(int rank) { return devices_[static_cast<std::size_t>(rank)]; }

  void wake(State& device) {
    device.now = Now::runs;
    ++running_;
    device.changed.notify_one();
  }

  void wait(std::unique_lock<std::mutex>& lock, State& self, Now how) {
    if (failure_.empty()) {
      self.now = how;
      if (--running_ == 0) {
        conclude();
      }
      self.changed.wait(lock, [&] { return self.now == Now::runs || !failure_.empty(); });
    }
    if (!failure_.empty()) {
      detail::fail({failure_});
    }
  }

  void end(int me, Now how, const std::string& where, const std::string& message) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_.empty()) {
      return;
    }
    State& self = state(me);
    self.now = how;
    self.where = where;
    self.message = message;
    --running_;
    bool some_wait = false;
    for (const State& device : devices_) {
      some_wait = some_wait || device.now == Now::receives || device.now == Now::meets;
    }
    if (running_ == 0 && some_wait) {
      conclude();
    }
  }

  static std::size_t unread(const State& device) {
    std::size_t count = 0;
    for (const Box& box : device.boxes) {
      count += box.packets.size() - box.next;
    }
    return count;
  }

  std::vector<int> in_state(Now now) const {
    std::vector<int> ranks;
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      if (devices_[i].now == now) {
        ranks.push_back(static_cast<int>(i));
      }
    }
    return ranks;
  }

  static bool disagrees(const Meeting& meeting) {
    for (const std::string& text : meeting.texts) {
      if (text != meeting.texts.front()) {
        return true;
      }
    }
    return false;
  }

  std::string waits_for(const State& device) {
    if (device.now == Now::receives) {
      return cat("waits for a message from device ", device.from);
    }
    const Meeting& meeting = meetings_[find_meeting(device.meeting)];
    if (disagrees(meeting)) {
      return "its peers call something else";
    }
    std::vector<int> missing;
    for (const int rank : meeting.members) {
      bool came = false;
      for (const int other : meeting.came) {
        came = came || other == rank;
      }
      if (!came) {
        missing.push_back(rank);
      }
    }
    return cat("waits for ", device_list(missing), " to call it");
  }

  std::string describe(const State& device) {
    std::string text = device.where;
    if (device.now == Now::threw) {
      text = cat("threw ", device.where, ": ", device.message);
    } else if (device.now == Now::returned) {
      text = cat("returned ", device.where);
    } else {
      text += ": " + waits_for(device);
    }
    for (const Box& box : device.boxes) {
      const std::size_t count = box.packets.size() - box.next;
      if (count > 0) {
        text += cat("; ", count, count == 1 ? " message" : " messages", " from device ", box.from,
                    " not received");
      }
    }
    return text;
  }

  std::string cause() const {
    const std::vector<int> threw = in_state(Now::threw);
    if (!threw.empty()) {
      return cat(device_list(threw),
                 " threw: ", devices_[static_cast<std::size_t>(threw[0])].message);
    }
    const Meeting* first = nullptr;  // by key, whatever the threads did
    for (const Meeting& meeting : meetings_) {
      if (disagrees(meeting) && (first == nullptr || meeting.key < first->key)) {
        first = &meeting;
      }
    }
    if (first != nullptr) {
      return cat(device_list(first->members), " must make the same call and do not");
    }
    const std::vector<int> returned = in_state(Now::returned);
    if (returned.size() == devices_.size()) {
      return "messages were sent that nobody received";
    }
    if (!returned.empty()) {
      return cat(device_list(returned), " returned while others wait");
    }
    return "deadlock: every device waits and nothing can arrive";
  }

  void conclude() {
    NameTable lines;  // their texts
    List<std::vector<int>> ranks(devices_.size());
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      int& line = lines[describe(devices_[i])];
      line = line == 0 ? static_cast<int>(lines.size()) : line;
      ranks[static_cast<std::size_t>(line - 1)].push_back(static_cast<int>(i));
    }
    std::string text = "mesh.run: " + cause();
    for (const NameTable::Entry& line : lines) {
      text += cat("\n  ", device_list(ranks[static_cast<std::size_t>(line.number - 1)]), ": ",
                  line.name);
    }
    failure_ = text;
    for (State& device : devices_) {
      device.changed.notify_one();
    }
  }

  std::mutex mutex_;  // guards all below
  List<State> devices_;
  List<Meeting> meetings_;
  int running_;
  std::string failure_;  // not empty: the run is over
};

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/mesh/collective_cost.hpp
// What a collective on one mesh axis costs, in closed form: steps, bytes that a device sends, time.
// A vector of V bytes over N devices is N chunks; each step moves a chunk to a neighbour in
// alpha + (V / N) / W: all_gather and reduce_scatter take N - 1 steps, all_reduce twice that.
// Chan, Heimlich, Purkayastha, van de Geijn 2007 (ring, pipelined chain); tests hold the counted
// bytes and steps of a run against these exactly.

namespace tinyscale { inline namespace TINYSCALE_ABI {

// How the devices of an axis pass chunks on: between the ends of a line, around a ring one way, or
// around a ring both ways at once (about half the steps).
enum class AxisKind { line, ring, ring_both_ways };

inline const char* name_of(AxisKind kind) {
  switch (kind) {
    case AxisKind::line: return "line";
    case AxisKind::ring: return "ring";
    case AxisKind::ring_both_ways: return "ring both ways";
  }
  return "?";
}

enum class Collective { all_gather, reduce_scatter, all_reduce, broadcast, permute };

// One collective on one axis. `elements` are those of the whole vector: what all_gather makes, what
// reduce_scatter takes, what the others move. Numbers are float32.
struct CollectiveStage {
  Collective what = Collective::all_gather;
  AxisKind kind = AxisKind::ring;
  int devices = 1;
  std::int64_t elements = 0;
  int offset = 0;  // broadcast: the root's index; permute: the shift
};

// One link, one way.
struct LinkSpeed {
  double latency = 0;     // seconds a hop
  double bandwidth = 1;   // bytes/s
  bool switched = false;  // any two devices of the axis are one hop apart
};

namespace detail {

constexpr double element_bytes = 4;

// Chunk c of n covers elements chunk_begin(c) to chunk_begin(c + 1); the first are the larger ones.
inline std::int64_t chunk_begin(std::int64_t elements, int n, int c) {
  return elements / n * c + std::min<std::int64_t>(c, elements % n);
}

inline std::int64_t chunk_size(std::int64_t elements, int n, int c) {
  return elements / n + (c < elements % n ? 1 : 0);
}

inline int modulo(std::int64_t value, int n) { return static_cast<int>((value % n + n) % n); }

// How far the chunk of device `c` travels each way; together n - 1.
struct Reach {
  int right = 0, left = 0;
};

inline Reach reach(AxisKind kind, int n, int c) {
  switch (kind) {
    case AxisKind::line: return {n - 1 - c, c};
    case AxisKind::ring: return {n - 1, 0};
    case AxisKind::ring_both_ways: return {n / 2, (n - 1) / 2};
  }
  return {};
}

inline int axis_steps(AxisKind kind, int n) {
  return kind == AxisKind::ring_both_ways ? n / 2 : n - 1;
}

inline void check_stage(const char* function, const CollectiveStage& stage) {
  if (stage.devices < 1 || stage.elements < 0) {
    fail({function, ": ", stage.elements, " elements over ", stage.devices,
          " devices; needs 0 or more elements and at least 1 device"});
  }
  if (stage.what == Collective::broadcast && (stage.offset < 0 || stage.offset >= stage.devices)) {
    fail({function, ": root ", stage.offset, " of ", stage.devices, " devices; the root is 0 to ",
          stage.devices - 1});
  }
}

// A broadcast is a chain of `hops` links through which as many chunks stream.
inline int broadcast_hops(const CollectiveStage& stage) {
  const Reach span = reach(stage.kind, stage.devices, stage.offset);
  return std::max(span.right, span.left);
}

inline double gather_elements_sent(const CollectiveStage& stage, int index) {
  std::int64_t sent = 0;
  for (int c = 0; c < stage.devices; ++c) {
    const Reach span = reach(stage.kind, stage.devices, c);
    const std::int64_t size = chunk_size(stage.elements, stage.devices, c);
    sent += modulo(index - c, stage.devices) < span.right ? size : 0;
    sent += modulo(c - index, stage.devices) < span.left ? size : 0;
  }
  return static_cast<double>(sent);
}

// Every device passes on its partial sum of each chunk but its own, once.
inline double scatter_elements_sent(const CollectiveStage& stage, int index) {
  return static_cast<double>(stage.elements - chunk_size(stage.elements, stage.devices, index));
}

inline double broadcast_elements_sent(const CollectiveStage& stage, int index) {
  const Reach span = reach(stage.kind, stage.devices, stage.offset);
  const int right = modulo(index - stage.offset, stage.devices) < span.right ? 1 : 0;
  const int left = modulo(stage.offset - index, stage.devices) < span.left ? 1 : 0;
  return static_cast<double>(stage.elements) * (right + left);
}

}  // namespace detail

// Steps of a collective: how often a device waits for a neighbour, one after another.
inline std::int64_t collective_steps(const CollectiveStage& stage) {
  detail::check_stage("collective_steps", stage);
  const int n = stage.devices;
  switch (stage.what) {
    case Collective::all_gather:
    case Collective::reduce_scatter: return detail::axis_steps(stage.kind, n);
    case Collective::all_reduce: return std::int64_t{2} * detail::axis_steps(stage.kind, n);
    case Collective::broadcast: return n == 1 ? 0 : 2 * detail::broadcast_hops(stage) - 1;
    case Collective::permute: return detail::modulo(stage.offset, n) == 0 ? 0 : 1;
  }
  return 0;
}

// Bytes that the device at `index` of the axis sends.
inline double collective_bytes(const CollectiveStage& stage, int index) {
  detail::check_stage("collective_bytes", stage);
  if (index < 0 || index >= stage.devices) {
    detail::fail({"collective_bytes: index ", index, " of ", stage.devices,
                  " devices; indices are 0 to ", stage.devices - 1});
  }
  double elements = 0;
  switch (stage.what) {
    case Collective::all_gather: elements = detail::gather_elements_sent(stage, index); break;
    case Collective::reduce_scatter: elements = detail::scatter_elements_sent(stage, index); break;
    case Collective::all_reduce:
      elements =
          detail::gather_elements_sent(stage, index) + detail::scatter_elements_sent(stage, index);
      break;
    case Collective::broadcast: elements = detail::broadcast_elements_sent(stage, index); break;
    case Collective::permute:
      elements = static_cast<double>(collective_steps(stage) * stage.elements);
      break;
  }
  return elements * detail::element_bytes;
}

// Links that the data crosses one after another: the number of latencies in the time.
inline std::int64_t collective_hops(const CollectiveStage& stage) {
  if (stage.what != Collective::permute || collective_steps(stage) == 0) {
    return collective_steps(stage);
  }
  const int shift = detail::modulo(stage.offset, stage.devices);
  const int back = stage.devices - shift;
  return stage.kind == AxisKind::line ? std::max(shift, back) : std::min(shift, back);
}

// Time when every device of the axis begins at once and owns its links:
// hops alpha + (what the busiest link carries, the largest chunk of each step) / W.
inline double collective_seconds(const CollectiveStage& stage, const LinkSpeed& link) {
  detail::check_stage("collective_seconds", stage);
  const int n = stage.devices;
  const double steps = static_cast<double>(collective_steps(stage));
  if (stage.what == Collective::permute && link.switched) {
    const double bytes = static_cast<double>(stage.elements) * detail::element_bytes;
    return steps * (link.latency + bytes / link.bandwidth);
  }
  const double latency = static_cast<double>(collective_hops(stage)) * link.latency;
  double elements = 0;  // that pass through the busiest link
  switch (stage.what) {
    case Collective::all_gather:
    case Collective::reduce_scatter:
    case Collective::all_reduce:
      elements = steps * static_cast<double>(detail::chunk_size(stage.elements, n, 0));
      break;
    case Collective::broadcast: {
      const int hops = detail::broadcast_hops(stage);
      if (hops > 0) {
        elements = static_cast<double>(stage.elements) +
                   (hops - 1.0) * static_cast<double>(detail::chunk_size(stage.elements, hops, 0));
      }
      break;
    }
    case Collective::permute: {
      const int shift = detail::modulo(stage.offset, n);
      elements = std::min(shift, n - shift) * static_cast<double>(stage.elements);
      break;
    }
  }
  return latency + elements * detail::element_bytes / link.bandwidth;
}

}}  // namespace tinyscale

// >> tinyscale/mesh/mesh_axis.hpp
// Named mesh axes and where they lie on the machine.
// Axes map onto the machine's dimensions in order: rank and chip number are the same row-major
// count. An axis that is exactly one dimension of at least 3 chips that closes is a ring; any other
// is a line.

namespace tinyscale { inline namespace TINYSCALE_ABI {

struct MeshAxis {
  std::string name;
  Dim size;
};

// One axis "x" or several {"x", "y"}, the first the slowest: block (ix, iy) is number ix * Y + iy.
struct Axes {
  std::vector<std::string> names;

  Axes(const char* name) : names(1, name) {}
  Axes(const std::string& name) : names(1, name) {}
  Axes(std::initializer_list<std::string> list) : names(list) {}
  Axes(const std::vector<std::string>& list) : names(list) {}
};

// Whether collectives on a ring use its links one way or both ways.
enum class Ring { one_way, both_ways };

struct AxisPlacement {
  std::string name;
  int size = 1;
  int stride = 1;  // from one device of the axis to the next, in ranks
  int dim = -1;    // the machine's dimension that the axis is; -1: part of one, or several
  AxisKind kind = AxisKind::line;
  LinkSpeed link;  // of the slowest dimension when there are several
};

namespace detail {

inline std::string axis_names(const List<MeshAxis>& axes) {
  std::string out;
  for (const MeshAxis& axis : axes) {
    out += (out.empty() ? "" : ", ") + axis.name;
  }
  return out;
}

inline void check_axes(const Machine& machine, const List<MeshAxis>& axes) {
  check_network("Mesh", machine);
  if (axes.empty()) {
    detail::fail({"Mesh: no axes; give a name and a size for each, as {{\"x\", 4}, {\"y\", 2}}"});
  }
  Shape sizes;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const MeshAxis& axis = axes[i];
    if (axis.name.empty()) {
      fail({"Mesh: axis ", i, " has no name; give every axis one, as \"x\""});
    }
    if (axis.size.value < 1) {
      fail({"Mesh: axis ", axis.name, " has ", axis.size.value,
            " devices; every axis needs at least 1"});
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (axes[j].name == axis.name) {
        fail({"Mesh: two axes are named ", axis.name, "; names must differ"});
      }
    }
    sizes.push_back(axis.size);
  }
  if (sizes.count() != machine.chips()) {
    fail({"Mesh: axes ", axis_names(axes), " of sizes ", sizes, " are ", sizes.count(),
          " devices, machine ", machine.name, " has ", machine.chips(),
          " chips; they must be equal"});
  }
  if (machine.chips() > std::numeric_limits<int>::max()) {
    fail({"Mesh: ", machine.chips(), " devices; at most 2147483647"});
  }
}

// The machine's dimension that an axis is, or -1.
inline int dim_of_axis(const Machine& machine, std::int64_t chips_before, std::int64_t size) {
  std::int64_t before = 1;
  for (int d = 0; d < machine.dims.size(); ++d) {
    if (before == chips_before && machine.dims[d] == size) {
      return d;
    }
    before *= machine.dims[d];
  }
  return -1;
}

inline LinkSpeed link_of_dim(const Machine& machine, int dim) {
  LinkSpeed link = {machine.link_latency, machine.link_bandwidth, is_switched(machine.chip)};
  if (dim >= 0) {
    link.bandwidth = machine.axis_bandwidth(dim);
  }
  for (int d = 0; dim < 0 && d < machine.dims.size(); ++d) {
    if (machine.dims[d] > 1) {
      link.bandwidth = std::min(link.bandwidth, machine.axis_bandwidth(d));
    }
  }
  return link;
}

// Whether a dimension's ends are joined; two chips have just the link between them.
inline bool closes(const Machine& machine, int dim) {
  return machine.wraps[static_cast<std::size_t>(dim)] != 0 && machine.dims[dim] > 2;
}

inline List<AxisPlacement> place_axes(const Machine& machine, const List<MeshAxis>& axes,
                                      Ring ring) {
  List<AxisPlacement> placed;
  std::int64_t before = 1;
  for (const MeshAxis& axis : axes) {
    AxisPlacement place;
    place.name = axis.name;
    place.size = static_cast<int>(axis.size.value);
    place.dim = dim_of_axis(machine, before, axis.size.value);
    if (place.dim >= 0 && closes(machine, place.dim)) {
      place.kind = ring == Ring::one_way ? AxisKind::ring : AxisKind::ring_both_ways;
    }
    place.link = link_of_dim(machine, place.dim);
    before *= axis.size.value;
    place.stride = static_cast<int>(machine.chips() / before);
    placed.push_back(place);
  }
  return placed;
}

}  // namespace detail

// Which axis is a ring and which a line.
struct MeshPlacement {
  std::string machine;
  List<AxisPlacement> axes;

  Table table() const {
    Table out;
    out.title = "mesh on " + machine;
    out.columns = {"axis", "devices", "kind", "dimension", "link one way"};
    for (const AxisPlacement& axis : axes) {
      const std::string dim = axis.dim < 0 ? "part or several" : std::to_string(axis.dim);
      out.add({axis.name, std::to_string(axis.size), name_of(axis.kind), dim,
               format_si(axis.link.bandwidth, "B/s")});
    }
    return out;
  }
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
};

inline std::ostream& operator<<(std::ostream& out, const MeshPlacement& placement) {
  return out << placement.table();
}

}}  // namespace tinyscale

// >> tinyscale/mesh/message_log.hpp
// The log of a mesh run: every message with its size, and what it had to wait for.
// A device's program is a sequence of steps; a message belongs to a step of its sender and one of
// its receiver. Nothing here depends on how the threads were scheduled.

namespace tinyscale { inline namespace TINYSCALE_ABI {

// A chunk of a collective leaves when both sides are ready, a user's send when the sender is.
enum class MessageStart { both_ready, sender_ready };

struct Message {
  int from = 0, to = 0;  // ranks
  double bytes = 0;
  int from_step = 0, to_step = 0;  // in the sender's and in the receiver's program
  int call = 0;                    // which of MessageLog::calls
  int group = 0;                   // lowest rank of the devices that ran the call together
  int step = 0;                    // in the call, from 0
  MessageStart start = MessageStart::both_ready;
};

// One line of the program: a collective, over all groups of devices that ran it.
struct CollectiveCall {
  std::string name, axes, arguments;  // "all_gather", "x,y", "[1024], dim 0"
  int devices = 1;                    // of a group
  List<CollectiveStage> stages;       // for the formula, with the axis of each
  std::vector<int> stage_axes;
};

struct MessageLog {
  int devices = 0;
  List<CollectiveCall> calls;  // in program order
  List<Message> messages;      // by sender, then in its order
};

namespace detail {

// What one device notes while it runs; joined in rank order afterwards.
struct DeviceLog {
  struct Receipt {
    int from = 0;
    std::size_t index = 0;  // of the sender's message
    int step = 0;           // of the receiver
  };

  std::vector<std::string> keys;  // one for each call, equal for the same line elsewhere
  List<CollectiveCall> calls;
  List<Message> sent;  // call: index into `calls`
  List<Receipt> received;
};

// The number of a call in the program; one not seen before is added.
inline int find_call(NameTable& numbers, MessageLog& log, const std::string& key,
                     const CollectiveCall& call) {
  int& number = numbers[key];
  if (number == 0) {
    log.calls.push_back(call);
    number = static_cast<int>(log.calls.size());
  }
  return number - 1;
}

// One log of all devices: their calls matched, their messages in rank order.
inline MessageLog join_logs(const List<const DeviceLog*>& devices) {
  MessageLog log;
  log.devices = static_cast<int>(devices.size());
  NameTable numbers;
  std::vector<std::size_t> first;  // message of each device
  for (const DeviceLog* device : devices) {
    std::vector<int> call_of;
    for (std::size_t i = 0; i < device->keys.size(); ++i) {
      call_of.push_back(find_call(numbers, log, device->keys[i], device->calls[i]));
    }
    first.push_back(log.messages.size());
    for (Message message : device->sent) {
      message.call = call_of[static_cast<std::size_t>(message.call)];
      log.messages.push_back(message);
    }
  }
  for (const DeviceLog* device : devices) {
    for (const DeviceLog::Receipt& receipt : device->received) {
      log.messages[first[static_cast<std::size_t>(receipt.from)] + receipt.index].to_step =
          receipt.step;
    }
  }
  return log;
}

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/mesh/endpoint.hpp
// One device's side of the fabric: who its peers are, the call it is in, and the log it writes.
// A collective opens a call, which waits until all its peers make the same one, then sends and
// takes chunks in steps: a step is what a device does at the same time.

namespace tinyscale { inline namespace TINYSCALE_ABI {

enum class Reduce { sum, mean, max, min };

inline const char* name_of(Reduce how) {
  switch (how) {
    case Reduce::sum: return "sum";
    case Reduce::mean: return "mean";
    case Reduce::max: return "max";
    case Reduce::min: return "min";
  }
  return "?";
}

namespace detail {

// The devices that share all coordinates but that of one axis, as one of them sees it.
struct AxisGroup {
  int axis = 0;
  AxisKind kind = AxisKind::line;
  int size = 1;
  int index = 0;
  int first = 0;   // rank of index 0
  int stride = 1;  // in ranks

  int rank(std::int64_t i) const { return first + modulo(i, size) * stride; }
};

enum class Keep { totals, records };

class Endpoint {
 public:
  Endpoint(Fabric& fabric, const List<AxisPlacement>& axes, int rank, int devices)
      : fabric_(fabric), axes_(axes), rank_(rank), devices_(devices) {}

  int rank() const { return rank_; }
  int devices() const { return devices_; }
  const DeviceLog& log() const { return log_; }

  // What the device's ops came to so far. Their records are let go now and then when nobody outside
  // asked for them: a long training would fill the memory.
  void keep_records(Keep keep) { keep_ = keep; }
  Counters counters() const {
    Counters sum = let_go_;
    const Counters recent = context().profile->totals();
    sum.matmul_flops += recent.matmul_flops;
    sum.vector_flops += recent.vector_flops;
    sum.bytes_read += recent.bytes_read;
    sum.bytes_written += recent.bytes_written;
    sum.seconds += recent.seconds;
    sum.ops += recent.ops;
    return sum;
  }

  // Where the device stands: in a call, or after so many.
  std::string where() const {
    const std::size_t calls = log_.keys.size();
    return open_ ? "in " + where_ : cat("after ", calls, calls == 1 ? " call" : " calls");
  }

  AxisGroup group(int axis) const {
    const AxisPlacement& place = axes_[static_cast<std::size_t>(axis)];
    AxisGroup group;
    group.axis = axis;
    group.kind = place.kind;
    group.size = place.size;
    group.index = rank_ / place.stride % place.size;
    group.first = rank_ - group.index * place.stride;
    group.stride = place.stride;
    return group;
  }

  int find_axis(const char* function, const std::string& name) const {
    std::string names;
    for (std::size_t i = 0; i < axes_.size(); ++i) {
      if (axes_[i].name == name) {
        return static_cast<int>(i);
      }
      names += (names.empty() ? "" : ", ") + axes_[i].name;
    }
    fail({function, ": no axis ", name, " on this mesh; its axes are ", names});
  }

  List<AxisGroup> groups(const char* function, const Axes& axes) const {
    if (axes.names.empty()) {
      fail({function, ": no axis given; name at least one"});
    }
    List<AxisGroup> out;
    for (const std::string& name : axes.names) {
      const int axis = find_axis(function, name);
      for (const AxisGroup& earlier : out) {
        if (earlier.axis == axis) {
          fail({function, ": axis ", name, " is given twice; each axis at most once"});
        }
      }
      out.push_back(group(axis));
    }
    return out;
  }

  // All ranks that differ from this one in these axes only, in rising order.
  std::vector<int> members(const List<AxisGroup>& groups) const {
    std::vector<int> ranks(1, rank_);
    for (const AxisGroup& group : groups) {
      std::vector<int> more;
      for (const int base : ranks) {
        for (int i = 0; i < group.size; ++i) {
          more.push_back(base + (i - group.index) * group.stride);
        }
      }
      ranks = more;
    }
    std::vector<double> keys;
    for (const int rank : ranks) {
      keys.push_back(rank);
    }
    std::vector<int> sorted;
    for (const std::size_t i : stable_order(keys)) {
      sorted.push_back(ranks[i]);
    }
    return sorted;
  }

  // Begins a collective over `ranks` (this one among them) once all of them call the same.
  void open(const CollectiveCall& call, const std::vector<int>& ranks) {
    begin(call, MessageStart::both_ready);
    group_ = ranks.front();
    // Lowest and highest rank tell groups apart: their distance says which axes it spans.
    fabric_.meet(rank_, cat(ranks.front(), "-", ranks.back()), ranks, text(call), where_);
  }

  // Begins a send or a receive of the user: nobody else needs to call it.
  void open_alone(const CollectiveCall& call) {
    begin(call, MessageStart::sender_ready);
    group_ = rank_;
  }

  void close() { open_ = false; }

  // What follows, until the next step, happens at the same time.
  void step() {
    ++step_;
    ++call_step_;
  }

  void send(int to, const float* numbers, std::int64_t count, const Shape& shape = Shape()) {
    Packet packet;
    packet.shape = shape;
    packet.numbers.assign(numbers, numbers + count);
    packet.index = log_.sent.size();
    Message message;
    message.from = rank_;
    message.to = to;
    message.bytes = static_cast<double>(count) * element_bytes;
    message.from_step = step_;
    message.call = static_cast<int>(log_.calls.size()) - 1;
    message.group = group_;
    message.step = call_step_;
    message.start = start_;
    log_.sent.push_back(message);
    fabric_.put(rank_, to, channel(), std::move(packet));
  }

  Packet take(int from) {
    Packet packet = fabric_.take(rank_, from, channel(), where_);
    log_.received.push_back({from, packet.index, step_});
    return packet;
  }

 private:
  static std::string text(const CollectiveCall& call) {
    std::string inside = call.arguments;
    inside += !inside.empty() && !call.axes.empty() ? ", " : "";
    return cat(call.name, "(", inside, call.axes, ")");
  }

  Channel channel() const {
    return start_ == MessageStart::both_ready ? Channel::collective : Channel::user;
  }

  void begin(const CollectiveCall& call, MessageStart start) {
    if (keep_ == Keep::totals && context().profile->totals().ops > 1000) {
      let_go_ = counters();
      context().profile->clear();
    }
    // The n-th time that a device runs a line is the same as the n-th time on its peers. Sends
    // differ in whom they name, so they are counted alone: the n-th send of each is one row.
    const std::string line = start == MessageStart::both_ready ? text(call) : call.name;
    log_.keys.push_back(cat(line, " #", ++times_[line]));
    log_.calls.push_back(call);
    where_ = cat("call ", log_.keys.size(), ", ", text(call));
    start_ = start;
    call_step_ = -1;
    open_ = true;
  }

  Fabric& fabric_;
  const List<AxisPlacement>& axes_;
  int rank_;
  int devices_;
  DeviceLog log_;
  Keep keep_ = Keep::records;
  Counters let_go_;
  NameTable times_;
  std::string where_;
  bool open_ = false;
  MessageStart start_ = MessageStart::both_ready;
  int group_ = 0;
  int step_ = -1;
  int call_step_ = -1;
};

inline std::string axes_text(const Axes& axes) {
  std::string out;
  for (const std::string& name : axes.names) {
    out += (out.empty() ? "" : ",") + name;
  }
  return out;
}

inline int count_devices(const List<AxisGroup>& groups) {
  int devices = 1;
  for (const AxisGroup& group : groups) {
    devices *= group.size;
  }
  return devices;
}

// The number of this device among those of several axes, the first axis the slowest.
inline int index_over(const List<AxisGroup>& groups) {
  int index = 0;
  for (const AxisGroup& group : groups) {
    index = index * group.size + group.index;
  }
  return index;
}

inline void check_given(const char* function, const Tensor& t) {
  if (!t.defined()) {
    fail({function, ": the tensor is empty (default-constructed); give one with a shape"});
  }
}

// What a collective moves: a tensor with data, and no gradient to carry back.
inline void check_moved(const char* function, const Tensor& t) {
  check_given(function, t);
  if (t.requires_grad() && context().no_grad == 0) {
    fail({function, ": the tensor ", t.shape(),
          " requires a gradient, and a collective "
          "carries none back; right is t.detach(), or a NoGrad scope"});
  }
}

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/mesh/all_gather.hpp
// all_gather: A[I_x] -> A[I], every device ends with the chunks of all.
// In step k a device passes on the chunk that began k - 1 devices away, to its right while that
// chunk still has to go right, and to its left; N - 1 steps on a line or a ring used one way.

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace detail {

// `whole` holds chunks of `elements` numbers, this device's filled in; fills in the others.
inline void gather_chunks(Endpoint& device, const AxisGroup& axis, float* whole,
                          std::int64_t elements) {
  const int n = axis.size;
  const auto send = [&](int c, int to) {
    device.send(axis.rank(to), whole + chunk_begin(elements, n, c), chunk_size(elements, n, c));
  };
  const auto take = [&](int c, int from) {
    const Packet packet = device.take(axis.rank(from));
    if (!packet.numbers.empty()) {
      std::memcpy(whole + chunk_begin(elements, n, c), packet.numbers.data(),
                  packet.numbers.size() * sizeof(float));
    }
  };
  for (int k = 1; k <= axis_steps(axis.kind, n); ++k) {
    const int goes_right = modulo(axis.index - (k - 1), n);
    const int goes_left = modulo(axis.index + (k - 1), n);
    const int from_left = modulo(axis.index - k, n);
    const int from_right = modulo(axis.index + k, n);
    device.step();
    if (k <= reach(axis.kind, n, goes_right).right) {
      send(goes_right, axis.index + 1);
    }
    if (k <= reach(axis.kind, n, goes_left).left) {
      send(goes_left, axis.index - 1);
    }
    if (k <= reach(axis.kind, n, from_left).right) {
      take(from_left, axis.index - 1);
    }
    if (k <= reach(axis.kind, n, from_right).left) {
      take(from_right, axis.index + 1);
    }
  }
}

// Along one axis; the results of its devices side by side in dimension d.
inline Tensor gather_axis(Endpoint& device, const AxisGroup& axis, const Tensor& t, int d) {
  const std::int64_t block = inner_count(t.shape(), d) * t.dim(d);  // contiguous in t
  const std::int64_t blocks = block == 0 ? 0 : t.count() / block;
  const std::int64_t elements = t.count() * axis.size;
  Shape shape = t.shape();
  shape.set(d, t.dim(d) * axis.size);
  Tensor out(shape);
  std::vector<float> chunks;
  float* whole = out.data();
  if (blocks > 1) {
    chunks.resize(static_cast<std::size_t>(elements));
    whole = chunks.data();
  }
  copy_blocks(1, t.count(), contiguous(t).data(), 0, whole + axis.index * t.count(), 0);
  gather_chunks(device, axis, whole, elements);
  for (int c = 0; c < axis.size && blocks > 1; ++c) {
    copy_blocks(blocks, block, whole + c * t.count(), block, out.data() + c * block,
                block * axis.size);
  }
  return out;
}

// All devices of the axes call it with equal shapes. The innermost axis is gathered first.
inline Tensor all_gather(Endpoint& device, const Tensor& t, const Axes& axes, int dim) {
  check_moved("all_gather", t);
  const int d = check_dim("all_gather", t, dim);
  const List<AxisGroup> groups = device.groups("all_gather", axes);
  CollectiveCall call;
  call.name = "all_gather";
  call.axes = axes_text(axes);
  call.arguments = cat(t.shape(), ", dim ", d);
  call.devices = count_devices(groups);
  std::int64_t elements = t.count();
  for (std::size_t i = groups.size(); i-- > 0;) {
    elements *= groups[i].size;
    call.stages.push_back({Collective::all_gather, groups[i].kind, groups[i].size, elements, 0});
    call.stage_axes.push_back(groups[i].axis);
  }
  device.open(call, device.members(groups));
  Tensor out = t.detach();
  for (std::size_t i = groups.size(); i-- > 0;) {
    out = gather_axis(device, groups[i], out, d);
  }
  device.close();
  return out;
}

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/mesh/reduce_scatter.hpp
// reduce_scatter: A[I] {U_x} -> A[I_x], the sum over devices, each keeping its own chunk of it.
// all_gather run backwards: the partial sum of a chunk comes from the far ends towards its device
// c, which ends with (x_c + right part) + left part, each part summed from its far end inwards.

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace detail {

// A NaN on any device is the result: max and min do not hide it.
inline void combine(Reduce how, const std::vector<float>& part, float* into) {
  const std::size_t n = part.size();
  for (std::size_t i = 0; i < n; ++i) {
    switch (how) {
      case Reduce::sum:
      case Reduce::mean: into[i] += part[i]; break;
      case Reduce::max: into[i] = into[i] < part[i] || is_nan(part[i]) ? part[i] : into[i]; break;
      case Reduce::min: into[i] = part[i] < into[i] || is_nan(part[i]) ? part[i] : into[i]; break;
    }
  }
}

// `whole` holds this device's `elements` numbers; its own chunk becomes the result over the axis
// (a mean still to be divided), the others are used up.
inline void scatter_chunks(Endpoint& device, const AxisGroup& axis, float* whole,
                           std::int64_t elements, Reduce how) {
  const int n = axis.size;
  const auto send = [&](int c, int to) {
    device.send(axis.rank(to), whole + chunk_begin(elements, n, c), chunk_size(elements, n, c));
  };
  const auto take = [&](int c, int from) {
    combine(how, device.take(axis.rank(from)).numbers, whole + chunk_begin(elements, n, c));
  };
  for (int k = axis_steps(axis.kind, n); k >= 1; --k) {
    const int goes_left = modulo(axis.index - k, n);
    const int goes_right = modulo(axis.index + k, n);
    const int from_right = modulo(axis.index - (k - 1), n);
    const int from_left = modulo(axis.index + (k - 1), n);
    device.step();
    if (k <= reach(axis.kind, n, goes_left).right) {
      send(goes_left, axis.index - 1);
    }
    if (k <= reach(axis.kind, n, goes_right).left) {
      send(goes_right, axis.index + 1);
    }
    if (k <= reach(axis.kind, n, from_right).right) {
      take(from_right, axis.index + 1);
    }
    if (k <= reach(axis.kind, n, from_left).left) {
      take(from_left, axis.index - 1);
    }
  }
}

inline void divide(float* numbers, std::int64_t count, int devices) {
  for (std::int64_t i = 0; i < count; ++i) {
    numbers[i] /= static_cast<float>(devices);
  }
}

// Along one axis; device i keeps part i of dimension d.
inline Tensor scatter_axis(Endpoint& device, const AxisGroup& axis, const Tensor& t, int d,
                           Reduce how) {
  Shape shape = t.shape();
  shape.set(d, t.dim(d) / axis.size);
  Tensor out(shape);
  const std::int64_t block = inner_count(shape, d) * shape[d];
  const std::int64_t blocks = block == 0 ? 0 : out.count() / block;
  std::vector<float> chunks(static_cast<std::size_t>(t.count()));
  const Tensor own = contiguous(t);
  for (int c = 0; c < axis.size; ++c) {
    copy_blocks(blocks, block, own.data() + c * block, block * axis.size,
                chunks.data() + c * out.count(), block);
  }
  scatter_chunks(device, axis, chunks.data(), t.count(), how);
  copy_blocks(1, out.count(), chunks.data() + axis.index * out.count(), 0, out.data(), 0);
  return out;
}

// All devices of the axes call it with equal shapes. The outermost axis is scattered first.
inline Tensor reduce_scatter(Endpoint& device, const Tensor& t, const Axes& axes, int dim,
                             Reduce how) {
  check_moved("reduce_scatter", t);
  const int d = check_dim("reduce_scatter", t, dim);
  const List<AxisGroup> groups = device.groups("reduce_scatter", axes);
  CollectiveCall call;
  call.name = "reduce_scatter";
  call.axes = axes_text(axes);
  call.arguments = cat(t.shape(), ", dim ", d, ", ", name_of(how));
  call.devices = count_devices(groups);
  if (t.dim(d) % call.devices != 0) {
    fail({"reduce_scatter: dimension ", d, " of ", t.shape(), " over ", call.devices,
          " devices of ", call.axes, "; its size must be a multiple of ", call.devices});
  }
  std::int64_t elements = t.count();
  for (const AxisGroup& group : groups) {
    call.stages.push_back({Collective::reduce_scatter, group.kind, group.size, elements, 0});
    call.stage_axes.push_back(group.axis);
    elements /= group.size;
  }
  device.open(call, device.members(groups));
  Tensor out = t.detach();
  for (const AxisGroup& group : groups) {
    out = scatter_axis(device, group, out, d, how);
  }
  if (how == Reduce::mean) {
    divide(out.data(), out.count(), call.devices);
  }
  device.close();
  return out;
}

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/mesh/all_reduce.hpp
// all_reduce: A[I] {U_x} -> A[I], every device ends with the same sum, bit for bit.
// reduce_scatter, then all_gather of what each device has summed: 2 (N - 1) / N of the bytes. Over
// several axes the chunk of the first is reduced over the second, and gathered back last.

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace detail {

inline void add_stage(CollectiveCall& call, Collective what, const AxisGroup& group,
                      std::int64_t elements) {
  call.stages.push_back({what, group.kind, group.size, elements, 0});
  call.stage_axes.push_back(group.axis);
}

// The stages that the first device of the axes runs: it has the largest chunks.
inline void all_reduce_stages(CollectiveCall& call, const List<AxisGroup>& groups,
                              std::int64_t elements) {
  List<std::int64_t> sizes;
  for (const AxisGroup& group : groups) {
    sizes.push_back(elements);
    add_stage(call, Collective::reduce_scatter, group, elements);
    elements = chunk_size(elements, group.size, 0);
  }
  for (std::size_t i = groups.size(); i-- > 0;) {
    add_stage(call, Collective::all_gather, groups[i], sizes[i]);
  }
}

// All devices of the axes call it with equal shapes; any size, chunks may be uneven.
inline Tensor all_reduce(Endpoint& device, const Tensor& t, const Axes& axes, Reduce how) {
  check_moved("all_reduce", t);
  const List<AxisGroup> groups = device.groups("all_reduce", axes);
  CollectiveCall call;
  call.name = "all_reduce";
  call.axes = axes_text(axes);
  call.arguments = cat(t.shape(), ", ", name_of(how));
  call.devices = count_devices(groups);
  all_reduce_stages(call, groups, t.count());
  device.open(call, device.members(groups));
  Tensor out = t.clone();
  List<float*> begins;
  List<std::int64_t> sizes;
  float* numbers = out.data();
  std::int64_t count = out.count();
  for (const AxisGroup& group : groups) {
    begins.push_back(numbers);
    sizes.push_back(count);
    scatter_chunks(device, group, numbers, count, how);
    numbers += chunk_begin(count, group.size, group.index);
    count = chunk_size(count, group.size, group.index);
  }
  if (how == Reduce::mean) {
    divide(numbers, count, call.devices);
  }
  for (std::size_t i = groups.size(); i-- > 0;) {
    gather_chunks(device, groups[i], begins[i], sizes[i]);
  }
  device.close();
  return out;
}

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/mesh/broadcast.hpp
// broadcast: every device of an axis ends with the root's numbers.
// A chain from neighbour to neighbour of H links, through which H chunks stream: 2 H - 1 steps of
// alpha + (V / H) / W. On a line, or a ring used both ways, two chains leave the root.

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace detail {

// Where a device stands in the chains: how far from the root, whether it takes and passes on.
struct ChainPlace {
  int distance = 0;           // links from the root
  int from = -1;              // index of the device before, -1 at the root
  int right = -1, left = -1;  // indices of the devices after, -1 at an end
};

inline ChainPlace chain_place(const AxisGroup& axis, int root) {
  const int n = axis.size;
  const Reach span = reach(axis.kind, n, root);
  const int right = modulo(axis.index - root, n);
  const int left = modulo(root - axis.index, n);
  ChainPlace place;
  if (right <= span.right) {
    place.distance = right;
    place.from = right > 0 ? modulo(axis.index - 1, n) : -1;
    place.right = right < span.right ? modulo(axis.index + 1, n) : -1;
  }
  if (right == 0 || right > span.right) {
    place.distance = left;
    place.from = left > 0 ? modulo(axis.index + 1, n) : -1;
    place.left = left < span.left ? modulo(axis.index - 1, n) : -1;
  }
  return place;
}

inline void stream_chunks(Endpoint& device, const AxisGroup& axis, int root, float* numbers,
                          std::int64_t elements) {
  const Reach span = reach(axis.kind, axis.size, root);
  const int chunks = std::max(span.right, span.left);
  const ChainPlace place = chain_place(axis, root);
  for (int step = 0; step < 2 * chunks - 1; ++step) {
    const int out = step - place.distance;  // chunk to pass on; the next one comes in meanwhile
    const int in = out + 1;
    device.step();
    for (const int to : {place.right, place.left}) {
      if (to >= 0 && out >= 0 && out < chunks) {
        device.send(axis.rank(to), numbers + chunk_begin(elements, chunks, out),
                    chunk_size(elements, chunks, out));
      }
    }
    if (place.from >= 0 && in >= 0 && in < chunks) {
      const Packet packet = device.take(axis.rank(place.from));
      if (!packet.numbers.empty()) {
        std::memcpy(numbers + chunk_begin(elements, chunks, in), packet.numbers.data(),
                    packet.numbers.size() * sizeof(float));
      }
    }
  }
}

// All devices of the axis call it with equal shapes; `root` is an index on the axis.
inline Tensor broadcast_from(Endpoint& device, const Tensor& t, const std::string& name, int root) {
  check_moved("broadcast", t);
  const AxisGroup axis = device.group(device.find_axis("broadcast", name));
  if (root < 0 || root >= axis.size) {
    fail({"broadcast: root ", root, " on axis ", name, " of ", axis.size,
          " devices; the root is 0 to ", axis.size - 1});
  }
  CollectiveCall call;
  call.name = "broadcast";
  call.axes = name;
  call.arguments = cat(t.shape(), ", root ", root);
  call.devices = axis.size;
  call.stages.push_back({Collective::broadcast, axis.kind, axis.size, t.count(), root});
  call.stage_axes.push_back(axis.axis);
  device.open(call, device.members({axis}));
  Tensor out = t.clone();
  stream_chunks(device, axis, root, out.data(), t.count());
  device.close();
  return out;
}

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/mesh/permute.hpp
// permute: device i of an axis ends with the numbers of device i - shift, around the end.
// And what has no formula: a user's own send and recv, and the barrier, in which device r tells
// r + 1, r + 2, r + 4, ... that it has come (dissemination, ceil(log2 N) steps of no bytes).

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace detail {

inline Tensor from_packet(const Packet& packet) {
  Tensor out(packet.shape);
  copy_blocks(1, out.count(), packet.numbers.data(), 0, out.data(), 0);
  return out;
}

// All devices of the axis call it with equal shapes and shift; a shift may be negative.
inline Tensor permute(Endpoint& device, const Tensor& t, const std::string& name, int shift) {
  check_moved("permute", t);
  const AxisGroup axis = device.group(device.find_axis("permute", name));
  CollectiveCall call;
  call.name = "permute";
  call.axes = name;
  call.arguments = cat(t.shape(), ", shift ", shift);
  call.devices = axis.size;
  const int offset = modulo(shift, axis.size);
  call.stages.push_back({Collective::permute, axis.kind, axis.size, t.count(), offset});
  call.stage_axes.push_back(axis.axis);
  device.open(call, device.members({axis}));
  Tensor out;
  if (offset == 0) {
    out = t.clone();
  } else {
    device.step();
    device.send(axis.rank(axis.index + offset), contiguous(t).data(), t.count(), t.shape());
    out = from_packet(device.take(axis.rank(std::int64_t{axis.index} - offset)));
  }
  device.close();
  return out;
}

inline void check_peer(const char* function, const Endpoint& device, int rank) {
  if (rank < 0 || rank >= device.devices() || rank == device.rank()) {
    fail({function, ": device ", device.rank(), " names device ", rank,
          "; the others are among 0 to ", device.devices() - 1});
  }
}

// Returns at once; the receiver calls recv_from.
inline void send_to(Endpoint& device, const Tensor& t, int rank) {
  check_moved("send", t);
  check_peer("send", device, rank);
  CollectiveCall call;
  call.name = "send";
  call.arguments = cat(t.shape(), ", to ", rank);
  call.devices = 2;
  device.open_alone(call);
  device.step();
  device.send(rank, contiguous(t).data(), t.count(), t.shape());
  device.close();
}

// The next tensor that device `rank` sent to this one.
inline Tensor recv_from(Endpoint& device, int rank) {
  check_peer("recv", device, rank);
  CollectiveCall call;
  call.name = "recv";
  call.arguments = cat("from ", rank);
  call.devices = 2;
  device.open_alone(call);
  device.step();
  Tensor out = from_packet(device.take(rank));
  device.close();
  return out;
}

// Every device of the mesh calls it.
inline void barrier(Endpoint& device) {
  CollectiveCall call;
  call.name = "barrier";
  call.devices = device.devices();
  std::vector<int> all;
  for (int rank = 0; rank < device.devices(); ++rank) {
    all.push_back(rank);
  }
  device.open(call, all);
  for (int distance = 1; distance < device.devices(); distance *= 2) {
    device.step();
    device.send(modulo(device.rank() + distance, device.devices()), nullptr, 0);
    device.take(modulo(device.rank() - distance, device.devices()));
  }
  device.close();
}

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/mesh/device.hpp
// A device of a mesh: what the program of one chip may ask and call.
// Collectives are called by every device of their axes, in the same order and with equal shapes.
// They move real numbers between the devices' threads, step by step; results carry no gradient.

namespace tinyscale { inline namespace TINYSCALE_ABI {

namespace detail {

struct KeptTensor {
  std::string name;
  Tensor value;
};

}  // namespace detail

class Device {
 public:
  Device(detail::Fabric& fabric, const List<AxisPlacement>& axes, int rank, int devices)
      : endpoint_(fabric, axes, rank, devices) {}

  int rank() const { return endpoint_.rank(); }
  int size() const { return endpoint_.devices(); }
  int index(const std::string& axis) const { return group("index", axis).index; }
  int size(const std::string& axis) const { return group("size", axis).size; }

  // A[I_x] -> A[I]: the chunks of all devices side by side in `dim`, in order of their indices.
  Tensor all_gather(const Tensor& t, const Axes& axes, int dim = 0) {
    return detail::all_gather(endpoint_, t, axes, dim);
  }
  // A[I] {U_x} -> A[I_x]: device i keeps part i of `dim` of the sum; it must divide evenly.
  Tensor reduce_scatter(const Tensor& t, const Axes& axes, int dim = 0, Reduce how = Reduce::sum) {
    return detail::reduce_scatter(endpoint_, t, axes, dim, how);
  }
  // A[I] {U_x} -> A[I]: the same sum on every device, bit for bit; any shape.
  Tensor all_reduce(const Tensor& t, const Axes& axes, Reduce how = Reduce::sum) {
    return detail::all_reduce(endpoint_, t, axes, how);
  }
  // The numbers of the device at index `root` of the axis, on all of it.
  Tensor broadcast(const Tensor& t, const std::string& axis, int root = 0) {
    return detail::broadcast_from(endpoint_, t, axis, root);
  }
  // Device i's numbers go to device i + shift of the axis, around the end.
  Tensor permute(const Tensor& t, const std::string& axis, int shift) {
    return detail::permute(endpoint_, t, axis, shift);
  }
  // To and from a rank of the mesh. A send returns at once; a recv waits for one.
  void send(const Tensor& t, int to_rank) { detail::send_to(endpoint_, t, to_rank); }
  Tensor recv(int from_rank) { return detail::recv_from(endpoint_, from_rank); }
  // Returns when every device of the mesh has called it.
  void barrier() { detail::barrier(endpoint_); }

  // A[I] -> A[I_x] of a tensor that every device has: this one's part of `dim`, no communication.
  Tensor shard(const Tensor& t, const Axes& axes, int dim) const {
    detail::check_given("shard", t);
    const int d = detail::check_dim("shard", t, dim);
    const List<detail::AxisGroup> groups = endpoint_.groups("shard", axes);
    const int parts = detail::count_devices(groups);
    if (t.dim(d) % parts != 0) {
      detail::fail({"shard: dimension ", d, " of ", t.shape(), " over ", parts, " devices of ",
                    detail::axes_text(axes), "; its size must be a multiple of ", parts});
    }
    const std::int64_t part = t.dim(d) / parts;
    const std::int64_t begin = part * detail::index_over(groups);
    return copy(slice(t, d, begin, begin + part));  // a device has memory of its own
  }
  // Says that every device of the axes has the whole of t; no communication.
  Tensor replicate(const Tensor& t, const Axes& axes) const {
    detail::check_given("replicate", t);
    endpoint_.groups("replicate", axes);
    return t;
  }

  // Keeps a tensor for MeshRun::kept(rank, name); a second one of that name replaces it.
  void keep(const std::string& name, const Tensor& t) {
    std::size_t at = 0;
    while (at < kept_.size() && kept_[at].name != name) {
      ++at;
    }
    if (at == kept_.size()) {
      kept_.push_back({});
      for (; at > 0 && name < kept_[at - 1].name; --at) {
        kept_[at] = kept_[at - 1];
      }
    }
    kept_[at] = {name, t};
  }

  const List<detail::KeptTensor>& kept() const { return kept_; }
  detail::Endpoint& endpoint() { return endpoint_; }

 private:
  detail::AxisGroup group(const char* function, const std::string& axis) const {
    return endpoint_.group(endpoint_.find_axis(function, axis));
  }

  detail::Endpoint endpoint_;
  List<detail::KeptTensor> kept_;
};

}}  // namespace tinyscale

// >> tinyscale/mesh/route.hpp
// The directed links of a machine, and the links that a message between two chips crosses.
// Dimension order: along the first dimension to the right coordinate, then the second, ...; around
// a ring the shorter way, upwards when both are equal. Through a switch it is one hop, over the
// sender's port of that way and the receiver's.

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace detail {

// Link (chip, dim, way): way 0 leaves the chip along `dim` upwards, 1 downwards; 2 and 3 enter it
// from a switch, from below and from above.
struct MachineLinks {
  explicit MachineLinks(const Machine& described)
      : machine(described), switched(is_switched(described.chip)) {
    std::int64_t stride = 1;
    strides.resize(static_cast<std::size_t>(machine.dims.size()));
    for (int d = machine.dims.size() - 1; d >= 0; --d) {
      strides[static_cast<std::size_t>(d)] = stride;
      stride *= machine.dims[d];
    }
  }

  std::size_t count() const {
    return static_cast<std::size_t>(machine.chips() * machine.dims.size() * 4);
  }
  std::size_t id(std::int64_t chip, int dim, int way) const {
    return static_cast<std::size_t>((chip * machine.dims.size() + dim) * 4 + way);
  }
  int dim_of(std::size_t link) const { return static_cast<int>(link / 4) % machine.dims.size(); }
  double bandwidth(std::size_t link) const { return machine.axis_bandwidth(dim_of(link)); }
  // The chips at its ends; -1 is a switch.
  std::int64_t from(std::size_t link) const { return link % 4 < 2 ? chip_of(link) : -1; }
  std::int64_t to(std::size_t link) const {
    if (link % 4 >= 2) {
      return chip_of(link);
    }
    return switched ? -1 : neighbour(chip_of(link), dim_of(link), static_cast<int>(link % 4));
  }

  std::vector<std::size_t> route(std::int64_t chip, std::int64_t target) const {
    std::vector<std::size_t> links;
    for (int d = 0; d < machine.dims.size(); ++d) {
      const std::int64_t away = distance(chip, target, d);
      const int way = away > 0 ? 0 : 1;
      if (switched && away != 0) {
        links.push_back(id(chip, d, way));
        chip +=
            (coordinate(target, d) - coordinate(chip, d)) * strides[static_cast<std::size_t>(d)];
        links.push_back(id(chip, d, way + 2));
        continue;
      }
      for (std::int64_t left = away > 0 ? away : -away; left > 0; --left) {
        links.push_back(id(chip, d, way));
        chip = neighbour(chip, d, way);
      }
    }
    return links;
  }

  // How often a message pays the latency of a link: once for both ports of a switch.
  int hops(const std::vector<std::size_t>& crossed) const {
    const int links = static_cast<int>(crossed.size());
    return switched ? links / 2 : links;
  }

  Machine machine;
  bool switched;

 private:
  std::int64_t chip_of(std::size_t link) const {
    return static_cast<std::int64_t>(link / 4) / machine.dims.size();
  }
  // Steps along `dim` from chip to target, below 0 downwards.
  std::int64_t distance(std::int64_t chip, std::int64_t target, int dim) const {
    const std::int64_t n = machine.dims[dim];
    const std::int64_t there = coordinate(target, dim) - coordinate(chip, dim);
    const std::int64_t up = (there + n) % n;
    return !closes(machine, dim) ? there : up <= n - up ? up : up - n;
  }
  std::int64_t coordinate(std::int64_t chip, int dim) const {
    return chip / strides[static_cast<std::size_t>(dim)] % machine.dims[dim];
  }
  std::int64_t neighbour(std::int64_t chip, int dim, int way) const {
    const std::int64_t n = machine.dims[dim];
    const std::int64_t here = coordinate(chip, dim);
    const std::int64_t there = (here + (way == 0 ? 1 : n - 1)) % n;
    return chip + (there - here) * strides[static_cast<std::size_t>(dim)];
  }

  List<std::int64_t> strides;  // chips from one to the next along each dimension
};

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/mesh/fair_links.hpp
// Messages that share links: each gets its max-min fair rate. All rates of a set of messages rise
// together until a link is full; those through it are settled, the others rise on
// (Bertsekas and Gallager, Data Networks, 6.5.2).

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace detail {

// Messages in transfer that share links; each gets its max-min fair rate.
class FairLinks {
 public:
  struct Flow {
    std::vector<std::size_t> route;
    double bytes = 0;  // left
    double rate = 0;
    double since = 0;  // when `bytes` was right
    int version = 0;   // counts the changes of rate
    bool settled = false;
  };

  FairLinks(const Machine& machine, std::size_t messages)
      : links_(machine), flows_(messages), on_link_(links_.count()), seen_(links_.count(), 0) {}

  Flow& flow(std::size_t m) { return flows_[m]; }
  const MachineLinks& links() const { return links_; }

  void join(std::size_t m) {
    for (const std::size_t link : flows_[m].route) {
      on_link_[link].push_back(m);
    }
  }
  void leave(std::size_t m) {
    for (const std::size_t link : flows_[m].route) {
      std::vector<std::size_t>& on = on_link_[link];
      std::size_t at = 0;
      while (on[at] != m) {
        ++at;
      }
      on.erase(on.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }

  // New rates for all that share links, however indirectly, with the links of `changed`;
  // gives the flows whose rate is another now.
  std::vector<std::size_t> share(const std::vector<std::size_t>& changed, double now) {
    std::vector<std::size_t> restarted;
    ++round_;
    for (const std::size_t m : changed) {
      for (const std::size_t link : flows_[m].route) {
        if (seen_[link] != round_) {
          share_component(link, now, restarted);
        }
      }
    }
    return restarted;
  }

 private:
  void share_component(std::size_t first, double now, std::vector<std::size_t>& restarted) {
    std::vector<std::size_t> links(1, first);
    std::vector<std::size_t> flows;
    seen_[first] = round_;
    for (std::size_t i = 0; i < links.size(); ++i) {
      for (const std::size_t m : on_link_[links[i]]) {
        if (flows_[m].settled) {
          continue;  // reached by another of its links
        }
        flows_[m].settled = true;
        flows.push_back(m);
        for (const std::size_t link : flows_[m].route) {
          if (seen_[link] != round_) {
            seen_[link] = round_;
            links.push_back(link);
          }
        }
      }
    }
    for (const std::size_t m : flows) {
      flows_[m].settled = false;
    }
    fill(links, flows, now, restarted);
  }

  // Raises all rates together; the flows of the link that is full first are settled; repeat.
  void fill(const std::vector<std::size_t>& links, const std::vector<std::size_t>& flows,
            double now, std::vector<std::size_t>& restarted) {
    std::size_t left = flows.size();
    std::vector<double> room;
    for (const std::size_t link : links) {
      room.push_back(links_.bandwidth(link));
    }
    while (left > 0) {
      std::size_t tight = 0;
      double least = std::numeric_limits<double>::infinity();
      for (std::size_t i = 0; i < links.size(); ++i) {
        const double unsettled = static_cast<double>(count_unsettled(links[i]));
        if (unsettled > 0 && room[i] / unsettled < least) {
          least = room[i] / unsettled;
          tight = i;
        }
      }
      for (const std::size_t m : on_link_[links[tight]]) {
        if (!flows_[m].settled) {
          flows_[m].settled = true;
          --left;
          set_rate(m, least, now, restarted);
          for (std::size_t i = 0; i < links.size(); ++i) {
            bool on = false;
            for (const std::size_t link : flows_[m].route) {
              on = on || link == links[i];
            }
            room[i] = on ? std::max(room[i] - least, 0.0) : room[i];
          }
        }
      }
    }
    for (const std::size_t m : flows) {
      flows_[m].settled = false;
    }
  }

  std::size_t count_unsettled(std::size_t link) const {
    std::size_t count = 0;
    for (const std::size_t m : on_link_[link]) {
      count += flows_[m].settled ? 0U : 1U;
    }
    return count;
  }

  void set_rate(std::size_t m, double rate, double now, std::vector<std::size_t>& restarted) {
    Flow& flow = flows_[m];
    if (flow.rate < rate || flow.rate > rate) {
      flow.bytes = std::max(0.0, flow.bytes - flow.rate * (now - flow.since));
      flow.since = now;
      flow.rate = rate;
      ++flow.version;
      restarted.push_back(m);
    }
  }

  MachineLinks links_;
  List<Flow> flows_;
  List<std::vector<std::size_t>> on_link_;
  std::vector<int> seen_;  // the round in which a link was last looked at
  int round_ = 0;
};

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/mesh/guess.hpp
// A learner's guess held against what a run counted, with a hint when it is off by a known slip.
// Bytes are those that the busiest device sends, as float32; steps are summed over the program.

namespace tinyscale { inline namespace TINYSCALE_ABI {

// What is negative is not guessed.
struct Guess {
  double bytes_per_device = -1;
  std::int64_t steps = -1;
  double seconds = -1;  // simulated; right within 1 %
};

struct CheckRow {
  std::string name, unit;
  double guessed = 0, counted = 0;
  bool right = false;
  std::string hint;
};

struct CheckReport {
  List<CheckRow> rows;
  bool right = false;  // something was guessed, and all of it right

  // "bytes: right. steps: you 6, counted 3: why"
  std::string text() const {
    std::string out;
    for (const CheckRow& row : rows) {
      out += out.empty() ? "" : (out.back() == '.' ? " " : ". ");
      if (row.right) {
        out += row.name + ": right.";
      } else {
        out += row.name + ": you " + number(row, row.guessed) + ", counted " +
               number(row, row.counted) + (row.hint.empty() ? "" : ": " + row.hint);
      }
    }
    return out.empty() ? "nothing guessed" : out;
  }
  Table table() const {
    Table out;
    out.title = "guess";
    out.columns = {"quantity", "unit", "guessed", "counted", "right", "hint"};
    for (const CheckRow& row : rows) {
      out.add({row.name, row.unit, detail::cat(row.guessed), detail::cat(row.counted),
               row.right ? "yes" : "no", row.hint});
    }
    return out;
  }
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }

 private:
  static std::string number(const CheckRow& row, double value) {
    return row.unit == "s" ? format_seconds(value) : detail::cat(value);
  }
};

inline std::ostream& operator<<(std::ostream& out, const CheckReport& report) {
  return out << report.text() << "\n";
}

namespace detail {

struct Counted {
  double bytes_most = 0, bytes_least = 0, bytes_total = 0;  // sent by devices
  std::int64_t steps = 0;
  std::int64_t one_way_steps = 0;  // if no ring were used both ways
  double seconds = 0;
  int devices = 1;                 // of the mesh
  int group = 1;                   // of the largest collective
  std::vector<std::string> names;  // of the collectives
};

inline bool same(double a, double b) { return std::abs(a - b) <= 1e-9 * std::abs(b); }

inline bool has_name(const Counted& counted, const std::string& name) {
  for (const std::string& known : counted.names) {
    if (known == name) {
      return true;
    }
  }
  return false;
}

inline std::string steps_hint(std::int64_t you, const Counted& counted) {
  const double guess = static_cast<double>(you);
  const double steps = static_cast<double>(counted.steps);
  if (steps <= 0) {
    return "no message was sent";
  }
  if (you == counted.one_way_steps) {
    return "a bidirectional ring halves them";
  }
  if (has_name(counted, "all_reduce") && same(guess * 2, steps)) {
    return "all_reduce is reduce_scatter and then all_gather, each of its own steps";
  }
  if (has_name(counted, "all_reduce") && same(guess, 2.0 * counted.group)) {
    return cat("a device has one chunk already: 2 (N - 1) with N = ", counted.group);
  }
  if (same(guess, counted.group) && same(guess, steps + 1)) {
    return cat("a device has its own chunk already: N - 1 with N = ", counted.group);
  }
  if (same(guess, steps * 2)) {
    return has_name(counted, "all_reduce") ? "half as many; is N what you think?"
                                           : "only all_reduce takes 2 (N - 1)";
  }
  if (counted.names.size() == 1 && counted.names[0] == "all_reduce" &&
      same(steps, 2.0 * (counted.group - 1))) {
    return cat("all_reduce takes 2 (N - 1) steps, here N = ", counted.group);
  }
  if (same(guess, steps / 2)) {
    return "that is with both ways of a ring used at once";
  }
  return cat("the largest collective is over N = ", counted.group, " devices");
}

inline std::string bytes_hint(double you, const Counted& counted) {
  const double most = counted.bytes_most;
  if (same(you, counted.bytes_total)) {
    return "that is all devices together";
  }
  if (same(you * element_bytes, most)) {
    return "that is the number of elements; a float32 is 4 bytes";
  }
  if (counted.bytes_least < most) {
    return cat("of the busiest device; the least busy sends ", counted.bytes_least,
               ", the mean is ", counted.bytes_total / counted.devices);
  }
  if (same(you * (counted.group - 1), most * counted.group)) {
    return cat("a device has its own chunk already: (N - 1) / N of it with N = ", counted.group);
  }
  if (same(you * 2, most) || same(you, most * 2)) {
    return "all_reduce moves 2 (N - 1) / N of the vector, all_gather and reduce_scatter half of it";
  }
  return "";
}

inline CheckReport check_guess(const Guess& guess, const Counted& counted) {
  if (is_nan(guess.bytes_per_device) || is_nan(guess.seconds)) {
    fail({"check: the guess is ", guess.bytes_per_device, " bytes and ", guess.seconds,
          " seconds; numbers are right, negative for what is not guessed"});
  }
  CheckReport report;
  const auto add = [&report](const CheckRow& row) {
    report.rows.push_back(row);
    report.rows.back().hint = row.right ? "" : row.hint;
    report.right = row.right && (report.right || report.rows.size() == 1);
  };
  if (guess.bytes_per_device >= 0) {
    const double you = guess.bytes_per_device;
    add({"bytes", "B", you, counted.bytes_most, same(you, counted.bytes_most),
         bytes_hint(you, counted)});
  }
  if (guess.steps >= 0) {
    add({"steps", "", static_cast<double>(guess.steps), static_cast<double>(counted.steps),
         guess.steps == counted.steps, steps_hint(guess.steps, counted)});
  }
  if (guess.seconds >= 0) {
    const bool right = std::abs(guess.seconds - counted.seconds) <= 0.01 * counted.seconds;
    add({"seconds", "s", guess.seconds, counted.seconds, right, "simulated, on this machine"});
  }
  return report;
}

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/mesh/replay.hpp
// Simulated time: a message log replayed on a machine, event by event.
// A message starts when its sender's (and, in a collective, its receiver's) earlier steps are done,
// takes latency for each hop, then its bytes at a max-min fair share of those links.
// A pure function of log and machine.

namespace tinyscale { inline namespace TINYSCALE_ABI {

// When each message of a log ran on a machine, in simulated seconds.
struct Timeline {
  double seconds = 0;                 // until the last message has arrived
  std::vector<double> start, finish;  // of each message
  std::vector<int> after;             // the message whose end let each one start, or -1
  std::vector<int> hops;              // latencies each one paid
  std::vector<double> link_bytes;     // by detail::MachineLinks number
};

namespace detail {

constexpr std::size_t no_message = std::numeric_limits<std::size_t>::max();

// The steps of every device and which of them are done.
class StepOrder {
 public:
  explicit StepOrder(const MessageLog& log) : log_(log) {
    const std::size_t devices = static_cast<std::size_t>(log.devices);
    List<std::vector<std::size_t>> ends(devices);  // messages, in order
    List<std::vector<double>> step_of(devices);    // of each of these
    for (std::size_t m = 0; m < log.messages.size(); ++m) {
      const Message& message = log.messages[m];
      ends[static_cast<std::size_t>(message.from)].push_back(m);
      step_of[static_cast<std::size_t>(message.from)].push_back(message.from_step);
      ends[static_cast<std::size_t>(message.to)].push_back(m);
      step_of[static_cast<std::size_t>(message.to)].push_back(message.to_step);
    }
    steps_.resize(devices);
    next_.assign(devices, 0);
    for (std::size_t d = 0; d < devices; ++d) {
      int last = -1;
      for (const std::size_t i : stable_order(step_of[d])) {
        const int step = static_cast<int>(step_of[d][i]);
        if (steps_[d].empty() || step != last) {
          steps_[d].push_back({step, 0, {}});
          last = step;
        }
        steps_[d].back().messages.push_back(ends[d][i]);
        ++steps_[d].back().unfinished;
      }
    }
  }

  // Messages of the step that a device is in.
  const std::vector<std::size_t>& current(int device) const {
    static const std::vector<std::size_t> none;
    const std::size_t d = static_cast<std::size_t>(device);
    return next_[d] < steps_[d].size() ? steps_[d][next_[d]].messages : none;
  }

  bool may_start(std::size_t m) const {
    const Message& message = log_.messages[m];
    return at_step(message.from, message.from_step) &&
           (message.start == MessageStart::sender_ready || at_step(message.to, message.to_step));
  }

  // Marks one end of a message as finished.
  void finish(int device, int step) {
    List<Step>& steps = steps_[static_cast<std::size_t>(device)];
    std::size_t low = 0;
    for (std::size_t high = steps.size(); low < high;) {
      const std::size_t middle = low + (high - low) / 2;
      if (steps[middle].number < step) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    --steps[low].unfinished;
  }

  // Moves a device to its next step if this one is done.
  bool advance(int device) {
    const std::size_t d = static_cast<std::size_t>(device);
    if (next_[d] < steps_[d].size() && steps_[d][next_[d]].unfinished == 0) {
      ++next_[d];
      return true;
    }
    return false;
  }

 private:
  struct Step {
    int number = 0;
    int unfinished = 0;
    std::vector<std::size_t> messages;
  };

  bool at_step(int device, int step) const {
    const std::size_t d = static_cast<std::size_t>(device);
    return next_[d] < steps_[d].size() && steps_[d][next_[d]].number == step;
  }

  const MessageLog& log_;
  List<List<Step>> steps_;
  std::vector<std::size_t> next_;
};

class Replay {
 public:
  Replay(const MessageLog& log, const Machine& machine)
      : log_(log), order_(log), links_(machine, log.messages.size()) {
    const std::size_t count = log.messages.size();
    out_.start.assign(count, -1);
    out_.finish.assign(count, -1);
    out_.after.assign(count, -1);
    out_.hops.assign(count, 0);
    out_.link_bytes.assign(links_.links().count(), 0);
  }

  Timeline run() {
    for (int d = 0; d < log_.devices; ++d) {
      start_ready(d, 0, no_message);
    }
    while (!events_.empty()) {
      const double now = events_.first().key;
      std::vector<std::size_t> changed;
      std::vector<std::size_t> done;
      while (!events_.empty() && !(events_.first().key > now)) {
        handle(events_.pop(), changed, done);
      }
      for (const std::size_t m : done) {
        finish(m, now);
      }
      for (const std::size_t m : links_.share(changed, now)) {
        const FairLinks::Flow& flow = links_.flow(m);
        events_.push({now + flow.bytes / flow.rate, m, flow.version});
      }
    }
    check_all_ran();
    return out_;
  }

 private:
  // Starts what waits for `device` alone now; `cause` is the message whose end made it so.
  void start_ready(int device, double now, std::size_t cause) {
    for (const std::size_t m : order_.current(device)) {
      if (out_.start[m] < 0 && order_.may_start(m)) {
        const Message& message = log_.messages[m];
        FairLinks::Flow& flow = links_.flow(m);
        flow.route = links_.links().route(message.from, message.to);
        flow.bytes = message.bytes;
        out_.start[m] = now;
        out_.after[m] = cause == no_message ? -1 : static_cast<int>(cause);
        out_.hops[m] = links_.links().hops(flow.route);
        for (const std::size_t link : flow.route) {
          out_.link_bytes[link] += message.bytes;
        }
        const double latency = links_.links().machine.link_latency;
        events_.push({now + out_.hops[m] * latency, m, 0});
      }
    }
  }

  void handle(const EventQueue::Entry& event, std::vector<std::size_t>& changed,
              std::vector<std::size_t>& done) {
    // Tag 0: latency is over; else the transfer is, at the rate of that version.
    FairLinks::Flow& flow = links_.flow(event.item);
    if (event.tag == 0 && flow.bytes > 0) {
      flow.since = event.key;
      links_.join(event.item);
      changed.push_back(event.item);
    } else if (event.tag == flow.version) {
      if (flow.version > 0) {
        links_.leave(event.item);
        changed.push_back(event.item);
      }
      ++flow.version;
      done.push_back(event.item);
    }
  }

  void finish(std::size_t m, double now) {
    const Message& message = log_.messages[m];
    out_.finish[m] = now;
    out_.seconds = std::max(out_.seconds, now);
    order_.finish(message.from, message.from_step);
    order_.finish(message.to, message.to_step);
    for (const int device : {message.from, message.to}) {
      while (order_.advance(device)) {
        start_ready(device, now, m);
      }
    }
  }

  void check_all_ran() const {
    for (std::size_t m = 0; m < out_.finish.size(); ++m) {
      if (out_.finish[m] < 0) {
        fail({"time: message ", m, " from device ", log_.messages[m].from, " to device ",
              log_.messages[m].to, " waits for itself; steps of the log must have an order"});
      }
    }
  }

  const MessageLog& log_;
  StepOrder order_;
  FairLinks links_;
  EventQueue events_;
  Timeline out_;
};

}  // namespace detail

// What the messages of `log` take on `machine`, which needs one chip for each device of the log.
inline Timeline time(const MessageLog& log, const Machine& machine) {
  if (machine.chips() != log.devices) {
    detail::fail({"time: the log is of ", log.devices, " devices, machine ", machine.name, " has ",
                  machine.chips(), " chips; they must be equal"});
  }
  detail::check_network("time", machine);
  return detail::Replay(log, machine).run();
}

}}  // namespace tinyscale

// >> tinyscale/mesh/mesh_run.hpp
// What a mesh program cost: bytes and steps counted from its messages, simulated time beside the
// formula, the links and the critical path. The same log can be timed again on another machine.

namespace tinyscale { inline namespace TINYSCALE_ABI {

// One line of the program; bytes are those of the busiest device.
struct CollectiveRow {
  std::string name, axes, arguments;
  int groups = 0;        // that ran it side by side
  int devices = 1;       // of a group
  double bytes_out = 0;  // sent by a device
  double bytes_in = 0;   // received by a device
  std::int64_t steps = 0;
  std::int64_t hops = 0;  // latencies paid one after another: the most of each step
  double seconds = 0;     // simulated: first start to last arrival, of the slowest group
  double formula = -1;    // seconds, if its links are free; -1: it has no formula
};

// One directed link of the machine.
struct LinkRow {
  std::int64_t from = 0, to = 0;  // chips; -1: the switch of that dimension
  int dim = 0;                    // of the machine
  double bytes = 0;
  double busy = 0;  // share of the run's simulated time that its bytes take at full speed
};

// The chain of messages that sets the simulated time, each waiting for the one before.
struct CriticalPath {
  std::int64_t messages = 0;
  double latency = 0, transfer = 0;  // seconds; together the run's
  std::vector<int> devices;          // through which it goes
};

namespace detail {

// What a run leaves behind; shared by all timings of it.
struct MeshRecord {
  MessageLog log;
  List<MeshAxis> axes;
  List<List<KeptTensor>> kept;  // by rank
  List<Counters> counters;
  List<Shared<MemoryMeter>> memory;
};

inline Table collective_table(const List<CollectiveRow>& rows) {
  Table out;
  out.columns = {"collective", "axis",  "arguments", "devices",   "groups", "bytes out",
                 "bytes in",   "steps", "hops",      "simulated", "formula"};
  for (const CollectiveRow& row : rows) {
    out.add({row.name, row.axes, row.arguments, std::to_string(row.devices),
             std::to_string(row.groups), format_count(row.bytes_out), format_count(row.bytes_in),
             std::to_string(row.steps), std::to_string(row.hops), format_seconds(row.seconds),
             row.formula < 0 ? "-" : format_seconds(row.formula)});
  }
  return out;
}

inline Table link_table(const List<LinkRow>& rows, std::size_t most) {
  Table out;
  out.columns = {"link", "dimension", "bytes", "busy"};
  for (std::size_t i = 0; i < rows.size() && i < most; ++i) {
    const std::string from = rows[i].from < 0 ? "switch" : std::to_string(rows[i].from);
    const std::string to = rows[i].to < 0 ? "switch" : std::to_string(rows[i].to);
    out.add({from + " -> " + to, std::to_string(rows[i].dim), format_count(rows[i].bytes),
             format_percent(rows[i].busy)});
  }
  return out;
}

}  // namespace detail

class MeshRun {
 public:
  MeshRun(Shared<detail::MeshRecord> record, Machine machine)
      : timeline(time(record->log, machine)),
        record_(std::move(record)),
        machine_(std::move(machine)) {
    seconds = timeline.seconds;
  }

  double seconds = 0;  // simulated, of all messages
  Timeline timeline;   // of each message

  const MessageLog& log() const { return record_->log; }
  const Machine& machine() const { return machine_; }
  int devices() const { return record_->log.devices; }

  // The same messages on another machine with as many chips.
  MeshRun on(const Machine& other) const { return MeshRun(record_, other); }

  // What Device::keep kept.
  Tensor kept(int rank, const std::string& name) const {
    std::string names;
    for (const detail::KeptTensor& known : record_->kept[checked("kept", rank)]) {
      if (known.name == name) {
        return known.value;
      }
      names += (names.empty() ? "" : ", ") + known.name;
    }
    detail::fail({"kept: device ", rank, " kept nothing named ", name, "; it kept ",
                  names.empty() ? "nothing" : names});
  }

  // The ops of one device.
  Counters counters(int rank) const { return record_->counters[checked("counters", rank)]; }
  const MemoryMeter& memory(int rank) const { return *record_->memory[checked("memory", rank)]; }

  double bytes_sent(int rank) const {
    checked("bytes_sent", rank);
    double bytes = 0;
    for (const Message& message : log().messages) {
      bytes += message.from == rank ? message.bytes : 0;
    }
    return bytes;
  }

  // The sum over the program's lines: sends that devices make at the same time are one line.
  std::int64_t steps() const {
    std::int64_t count = 0;
    for (const CollectiveRow& row : collectives()) {
      count += row.steps;
    }
    return count;
  }

  List<CollectiveRow> collectives() const {
    List<std::vector<std::size_t>> messages_of(log().calls.size());
    for (std::size_t m = 0; m < log().messages.size(); ++m) {
      messages_of[static_cast<std::size_t>(log().messages[m].call)].push_back(m);
    }
    List<CollectiveRow> rows;
    for (std::size_t c = 0; c < messages_of.size(); ++c) {
      if (log().calls[c].name != "recv") {
        rows.push_back(row_of(log().calls[c], messages_of[c]));
      }
    }
    return rows;
  }

  // Links that carried something, the busiest first; a chip's two ports to a switch are one.
  List<LinkRow> links() const {
    const detail::MachineLinks all(machine_);
    List<LinkRow> rows;
    for (std::size_t link = 0; link < all.count(); ++link) {
      const double bytes = timeline.link_bytes[link];
      if (bytes > 0) {
        const double rate = all.bandwidth(link) * (all.switched ? 2 : 1);
        const double busy = seconds > 0 ? bytes / rate / seconds : 0;
        const LinkRow row = {all.from(link), all.to(link), all.dim_of(link), bytes, busy};
        if (!rows.empty() && rows.back().from == row.from && rows.back().to == row.to &&
            rows.back().dim == row.dim) {
          rows.back().bytes += bytes;
          rows.back().busy += busy;
        } else {
          rows.push_back(row);
        }
      }
    }
    std::vector<double> keys;
    for (const LinkRow& row : rows) {
      keys.push_back(-row.busy);
    }
    List<LinkRow> sorted;
    for (const std::size_t i : detail::stable_order(keys)) {
      sorted.push_back(rows[i]);
    }
    return sorted;
  }

  CriticalPath critical_path() const {
    CriticalPath path;
    int last = -1;
    for (std::size_t m = 0; m < timeline.finish.size(); ++m) {
      if (last < 0 || timeline.finish[m] > timeline.finish[static_cast<std::size_t>(last)]) {
        last = static_cast<int>(m);
      }
    }
    std::vector<int> back;  // devices, from the end
    for (int m = last; m >= 0; m = timeline.after[static_cast<std::size_t>(m)]) {
      const std::size_t i = static_cast<std::size_t>(m);
      const double latency = timeline.hops[i] * machine_.link_latency;
      ++path.messages;
      path.latency += latency;
      path.transfer += timeline.finish[i] - timeline.start[i] - latency;
      if (back.empty()) {
        back.push_back(log().messages[i].to);
      }
      back.push_back(log().messages[i].from);
    }
    for (std::size_t i = back.size(); i-- > 0;) {
      path.devices.push_back(back[i]);
    }
    return path;
  }

  Table table() const {
    Table out = detail::collective_table(collectives());
    out.title = "collectives on " + machine_.name + " (bytes of the busiest device)";
    return out;
  }
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }

  // Is the guess what was counted?
  CheckReport check(const Guess& guess) const {
    detail::Counted counted;
    counted.devices = devices();
    for (int rank = 0; rank < devices(); ++rank) {
      const double bytes = bytes_sent(rank);
      counted.bytes_most = std::max(counted.bytes_most, bytes);
      counted.bytes_least = rank == 0 ? bytes : std::min(counted.bytes_least, bytes);
      counted.bytes_total += bytes;
    }
    counted.seconds = seconds;
    for (const CollectiveRow& row : collectives()) {
      counted.steps += row.steps;
      counted.names.push_back(row.name);
      counted.group = std::max(counted.group, row.devices);
    }
    counted.one_way_steps = counted.steps;
    for (const CollectiveCall& call : log().calls) {
      for (CollectiveStage stage : call.stages) {
        const std::int64_t steps = collective_steps(stage);
        stage.kind = stage.kind == AxisKind::ring_both_ways ? AxisKind::ring : stage.kind;
        counted.one_way_steps += collective_steps(stage) - steps;
      }
    }
    return detail::check_guess(guess, counted);
  }

 private:
  std::size_t checked(const char* function, int rank) const {
    if (rank < 0 || rank >= devices()) {
      detail::fail({function, ": rank ", rank, " of ", devices(), " devices; ranks are 0 to ",
                    devices() - 1});
    }
    return static_cast<std::size_t>(rank);
  }

  CollectiveRow row_of(const CollectiveCall& call, const std::vector<std::size_t>& messages) const {
    CollectiveRow row;
    row.name = call.name;
    row.axes = call.axes;
    row.arguments = call.name == "send" ? "" : call.arguments;
    row.devices = call.devices;
    const std::size_t ranks = static_cast<std::size_t>(devices());
    std::vector<double> out(ranks), in(ranks);
    std::vector<double> begin(ranks), end(ranks, -1);  // of each group, by its lowest rank
    std::vector<int> hops;                             // by step, -1: none
    for (const std::size_t m : messages) {
      const Message& message = log().messages[m];
      const std::size_t from = static_cast<std::size_t>(message.from);
      const std::size_t to = static_cast<std::size_t>(message.to);
      row.bytes_out = std::max(row.bytes_out, out[from] += message.bytes);
      row.bytes_in = std::max(row.bytes_in, in[to] += message.bytes);
      const std::size_t step = static_cast<std::size_t>(message.step);
      if (step >= hops.size()) {
        hops.resize(step + 1, -1);
      }
      hops[step] = std::max(hops[step], timeline.hops[m]);
      const std::size_t group = static_cast<std::size_t>(message.group);
      if (end[group] < 0) {
        ++row.groups;
        begin[group] = timeline.start[m];
      }
      begin[group] = std::min(begin[group], timeline.start[m]);
      end[group] = std::max(end[group], timeline.finish[m]);
      row.seconds = std::max(row.seconds, end[group] - begin[group]);
    }
    row.groups = messages.empty() ? devices() / call.devices : row.groups;
    for (const int most : hops) {
      row.steps += most >= 0 ? 1 : 0;
      row.hops += most >= 0 ? most : 0;
    }
    row.formula = formula_of(call);
    return row;
  }

  double formula_of(const CollectiveCall& call) const {
    const List<AxisPlacement> axes = detail::place_axes(machine_, record_->axes, Ring::one_way);
    double sum = call.stages.empty() ? -1 : 0;
    for (std::size_t i = 0; i < call.stages.size(); ++i) {
      const std::size_t axis = static_cast<std::size_t>(call.stage_axes[i]);
      sum += collective_seconds(call.stages[i], axes[axis].link);
    }
    return sum;
  }

  Shared<detail::MeshRecord> record_;
  Machine machine_;
};

inline std::ostream& operator<<(std::ostream& out, const MeshRun& run) {
  constexpr std::size_t most_links = 16;
  const List<LinkRow> links = run.links();
  Table table = detail::link_table(links, most_links);
  table.title = detail::cat("links: ", links.size(), " used",
                            links.size() > most_links ? ", the busiest 16" : "");
  out << run.table() << "\n" << table << "\n";
  const CriticalPath path = run.critical_path();
  out << "simulated " << format_seconds(run.seconds) << " on " << run.machine().name
      << "; critical path of " << path.messages << " messages: " << format_seconds(path.latency)
      << " latency, " << format_seconds(path.transfer) << " transfer\n";
  constexpr std::size_t most_devices = 16;
  out << "through devices";
  for (std::size_t i = 0; i < path.devices.size() && i < most_devices; ++i) {
    out << (i == 0 ? " " : " > ") << path.devices[i];
  }
  return out << (path.devices.size() > most_devices ? " > ...\n" : "\n");
}

}}  // namespace tinyscale

// >> tinyscale/mesh/mesh.hpp
// A mesh: the devices of a machine under named axes, and a program run on all of them.
// Each device is a thread with a context of its own (ops, memory, device number); host loops inside
// are serial. When a device fails, or all wait, the run ends with an Error that says where each is.

namespace tinyscale { inline namespace TINYSCALE_ABI {

using DeviceProgram = std::function<void(Device&)>;

namespace detail {

// One device while it runs, and what it leaves.
struct DeviceThread {
  DeviceThread(Fabric& shared, const List<AxisPlacement>& axes, int rank, int devices)
      : device(shared, axes, rank, devices), fabric(&shared) {}

  Device device;
  const DeviceProgram* program = nullptr;
  Fabric* fabric = nullptr;
  Context context;         // its profile is null until the device runs
  List<OpRecord> records;  // for the caller's profile
  Counters counters;
};

inline std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  } catch (...) {
    return "something that is not a std::exception";
  }
}

// Runs the program on one device; whatever it throws goes to the fabric.
inline void run_device(const DeviceProgram& program, Fabric& fabric, DeviceThread& self) {
  const ContextScope scope(self.context);
  const ThreadScope share(std::max(1, thread_count() / self.device.size()));
  const Profile profile;
  try {
    program(self.device);
    fabric.returned(self.device.rank(), self.device.endpoint().where());
  } catch (...) {
    fabric.threw(self.device.rank(), self.device.endpoint().where(),
                 message_of(std::current_exception()));
  }
  self.counters = self.device.endpoint().counters();
  self.records = profile.records();
}

inline void run_device_thread(void* device) {
  DeviceThread& self = *static_cast<DeviceThread*>(device);
  run_device(*self.program, *self.fabric, self);
}

#if defined(TINYSCALE_NO_THREADS)
inline void run_devices(const DeviceProgram& program, Fabric& fabric,
                        List<Shared<DeviceThread>>& devices) {
  if (devices.size() > 1) {
    fail({"mesh.run: ", devices.size(), " devices need threads, and this program is ",
          "compiled with TINYSCALE_NO_THREADS; use a mesh of 1 device"});
  }
  run_device(program, fabric, *devices[0]);
}
#else
inline void run_devices(const DeviceProgram& program, Fabric& fabric,
                        List<Shared<DeviceThread>>& devices) {
  ThreadGroup group;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    devices[i]->program = &program;
    try {
      group.start(&run_device_thread, devices[i].get());
    } catch (const std::system_error&) {
      for (std::size_t rank = i; rank < devices.size(); ++rank) {
        fabric.threw(static_cast<int>(rank), "at its start",
                     cat("the system gives ", i, " threads; a mesh can have so many devices"));
      }
      break;
    }
  }
  group.join();
}
#endif

}  // namespace detail

class Mesh {
 public:
  // Axis sizes multiply to the machine's chips; the last axis is the fastest.
  Mesh(const Machine& machine, const List<MeshAxis>& axes) : machine_(machine), axes_(axes) {
    detail::check_axes(machine, axes);
  }

  Ring ring = Ring::one_way;  // how collectives use an axis that is a ring

  const Machine& machine() const { return machine_; }
  const List<MeshAxis>& axes() const { return axes_; }
  int size() const { return static_cast<int>(machine_.chips()); }
  int size(const std::string& axis) const {
    for (const MeshAxis& known : axes_) {
      if (known.name == axis) {
        return static_cast<int>(known.size.value);
      }
    }
    detail::fail(
        {"size: no axis ", axis, " on this mesh; its axes are ", detail::axis_names(axes_)});
  }
  MeshPlacement placement() const {
    return {machine_.name, detail::place_axes(machine_, axes_, ring)};
  }

  // Runs `program` on every device at once; returns when all have returned.
  MeshRun run(const DeviceProgram& program) const {
    if (!program) {
      detail::fail({"Mesh::run: the program is empty; give a function of Device&"});
    }
    const List<AxisPlacement> placed = detail::place_axes(machine_, axes_, ring);
    Context& caller = context();
    detail::Fabric fabric(size());
    List<Shared<detail::DeviceThread>> devices;
    for (int rank = 0; rank < size(); ++rank) {
      devices.push_back(
          Shared<detail::DeviceThread>(new detail::DeviceThread(fabric, placed, rank, size())));
      devices.back()->device.endpoint().keep_records(
          caller.profile != nullptr ? detail::Keep::records : detail::Keep::totals);
      devices.back()->context.device = rank;
      devices.back()->context.kind = caller.kind;
      devices.back()->context.no_grad = caller.no_grad;
    }
    detail::run_devices(program, fabric, devices);
    if (caller.profile != nullptr) {  // in rank order, whatever the threads did
      for (const Shared<detail::DeviceThread>& device : devices) {
        for (OpRecord& record : device->records) {
          caller.profile->record(std::move(record));
        }
      }
    }
    const std::string failure = fabric.failure();
    if (!failure.empty()) {
      detail::fail({failure});
    }
    return MeshRun(record_of(devices), machine_);
  }

 private:
  Shared<detail::MeshRecord> record_of(const List<Shared<detail::DeviceThread>>& devices) const {
    Shared<detail::MeshRecord> record(new detail::MeshRecord);
    List<const detail::DeviceLog*> logs;
    for (const Shared<detail::DeviceThread>& device : devices) {
      logs.push_back(&device->device.endpoint().log());
      record->kept.push_back(device->device.kept());
      record->counters.push_back(device->counters);
      record->memory.push_back(device->context.memory);
    }
    record->log = detail::join_logs(logs);
    record->axes = axes_;
    return record;
  }

  Machine machine_;
  List<MeshAxis> axes_;
};

}}  // namespace tinyscale

// >> tinyscale/model/experts.hpp
// Which expert each token visits: the top_k most probable of the router, ties to the lower number
// (mixture of experts, arXiv 2101.03961; weights of the chosen ones sum to 1, arXiv 2401.04088).

namespace tinyscale { inline namespace TINYSCALE_ABI {

struct Routing {
  List<std::vector<std::int32_t>> rows;  // of each expert: the tokens it gets, ascending
  std::vector<std::int32_t> chosen;      // [N, k] places in the flat probabilities [N, E]
  std::vector<std::int32_t> places;      // [N, k] rows in the experts' outputs, joined in order
};

// Routes N tokens by their probabilities [N, E].
inline Routing route(const Tensor& probabilities, int top_k) {
  const std::int64_t tokens = probabilities.dim(0);
  const std::int64_t experts = probabilities.dim(1);
  if (top_k < 1 || top_k > experts) {
    detail::fail(
        {"route: top_k is ", top_k, " of ", experts, " experts; 1 to ", experts, " is right"});
  }
  Routing routing;
  routing.rows.resize(static_cast<std::size_t>(experts));
  std::vector<std::int32_t> order(static_cast<std::size_t>(experts));
  for (std::int64_t n = 0; n < tokens; ++n) {
    const float* p = probabilities.data() + n * experts;
    for (std::size_t i = 0; i < order.size(); ++i) {
      order[i] = static_cast<std::int32_t>(i);
    }
    for (int j = 0; j < top_k; ++j) {
      std::size_t best = static_cast<std::size_t>(j);
      for (std::size_t i = best + 1; i < order.size(); ++i) {
        const std::int32_t a = order[i];
        const std::int32_t b = order[best];
        best = (p[a] != p[b] ? p[a] > p[b] : a < b) ? i : best;
      }
      const std::int32_t e = order[best];
      order[best] = order[static_cast<std::size_t>(j)];
      order[static_cast<std::size_t>(j)] = e;
      auto& rows = routing.rows[static_cast<std::size_t>(e)];
      routing.chosen.push_back(static_cast<std::int32_t>(n * experts + e));
      routing.places.push_back(static_cast<std::int32_t>(rows.size()));  // within the expert
      rows.push_back(static_cast<std::int32_t>(n));
    }
  }
  std::vector<std::int32_t> first(static_cast<std::size_t>(experts), 0);
  for (std::size_t e = 1; e < first.size(); ++e) {
    first[e] = first[e - 1] + static_cast<std::int32_t>(routing.rows[e - 1].size());
  }
  for (std::size_t i = 0; i < routing.places.size(); ++i) {
    routing.places[i] += first[static_cast<std::size_t>(routing.chosen[i] % experts)];
  }
  return routing;
}

}}  // namespace tinyscale

// >> tinyscale/model/hooks.hpp
// What surrounds a forward pass: named parameters, the cache of keys and values, and the hooks by
// which a parallel strategy puts collectives between the parts of the transformer.
// An empty hook is the identity.

namespace tinyscale { inline namespace TINYSCALE_ABI {

// How a parameter is cut over devices: not at all, by its rows (outputs of a linear layer, tokens
// of the embedding), by its columns (inputs of a linear layer), or with the expert it belongs to.
enum class Split { whole, rows, columns, expert };

struct Parameter {
  std::string name;  // as in Hugging Face's Llama files
  Tensor value;
  Split split = Split::whole;
  int layer = -1;  // -1: embeddings, last norm, output matrix
};

// Keys and values of the tokens seen so far: room for the whole context, one pair of
// [B, context, KV K] a layer.
struct KvCache {
  std::vector<Tensor> keys;
  std::vector<Tensor> values;

  // Writes the rows of tokens first, first + 1, .. into their place; the rows of all tokens so far.
  static Tensor append(Tensor& rows, const Tensor& x, std::int64_t first, std::int64_t context) {
    if (!rows.defined()) {
      const MemoryScope scope(MemoryKind::kv_cache);
      rows = zeros({x.dim(0), context, x.dim(2)});
    }
    const std::int64_t end = first + x.dim(1);
    if (rows.dim(0) != x.dim(0) || rows.dim(2) != x.dim(2) || end > rows.dim(1)) {
      detail::fail(
          {"KvCache: ", x.shape(), " from token ", first, " on; the cache is ", rows.shape()});
    }
    copy_(slice(rows, 1, first, end), x);
    return slice(rows, 1, 0, end);
  }
};

// What a strategy may put between the parts of a forward pass.
struct Hooks {
  // The parameter as an op will use it (gathered, say); index is its place in parameters.
  std::function<Tensor(const Tensor& value, int index)> weight;
  // Before the matmuls that read x (query-key-value, up, output matrix), after those that write
  // back to the width (attention output, down). The bias is added after linear_out.
  std::function<Tensor(const Tensor& x)> linear_in;
  std::function<Tensor(const Tensor& y)> linear_out;
  std::function<Tensor(const Tensor& table, const std::vector<std::int32_t>& ids,
                       const Shape& shape)>
      embedding;
  std::function<Tensor(int layer, const Tensor& q, const Tensor& k, const Tensor& v)> attention;
  std::function<Tensor(int layer, const Tensor& x)> feed_forward;  // all of it, after the norm
  std::function<Tensor(const Tensor& logits, const std::vector<std::int32_t>& targets)> loss;
  // Sums gradients over devices between the backward pass and clipping; may replace the loss.
  std::function<void(const std::vector<Tensor>& tensors, double& loss)> reduce;
  std::int64_t first_sequence = 0;  // of this device's part in the whole batch
  std::int64_t first_position = 0;  // of this pass's tokens in their sequences
  KvCache* cache = nullptr;         // read and extended when set
  double dropout = 0.0;
  std::uint64_t dropout_seed = 0;
};

}}  // namespace tinyscale

// >> tinyscale/model/model_config.hpp
// The shape of a transformer: a plain struct from which everything else follows.
// Parameters of a layer: attention D K (2 H + 2 KV), feed-forward 2 D F (3 D F when gated),
// with D width, H heads, KV key-value heads, K head size, F hidden width.

namespace tinyscale { inline namespace TINYSCALE_ABI {

enum class Norm { layer, rms };
enum class Position { learned, rotary };
enum class Activation { gelu, gelu_tanh, swiglu, geglu };  // the last two are gated: 3 matrices

struct ModelConfig {
  std::string name = "custom";
  std::int64_t layers = 1;
  std::int64_t width = 64;        // D, numbers a token carries from block to block
  std::int64_t heads = 1;         // H, query heads
  std::int64_t kv_heads = 1;      // KV, fewer than heads: grouped-query attention
  std::int64_t head_size = 64;    // K
  std::int64_t hidden = 256;      // F of the dense feed-forward
  std::int64_t vocabulary = 256;  // V
  std::int64_t context = 64;      // longest sequence, tokens
  Norm norm = Norm::layer;
  Position position = Position::learned;
  Activation activation = Activation::gelu;
  bool bias = false;               // biases on every linear layer and on layer norms
  bool tied = true;                // the output matrix is the embedding table
  bool qkv_bias = false;           // biases on query, key and value alone
  bool qk_norm = false;            // RMS norm of every query and key head
  int experts = 0;                 // 0: dense
  int top_k = 0;                   // experts that a token visits
  std::int64_t expert_hidden = 0;  // F of one expert
  int shared_experts = 0;          // experts that every token visits
  double rope_theta = 10000.0;
  double norm_epsilon = 1e-5;
  double initializer_range = 0.0;  // deviation of a new linear weight; 0: by the width

  int block_norms = 2;  // norms in one block: 1 parallel, 2 before, 4 before and after
  std::int64_t other_parameters = 0;  // what the fields above do not describe
  std::int64_t other_active = 0;      // the same for the parameters that a token uses
  std::int64_t kv_width = 0;          // numbers cached per token and layer when not 2 KV K
  double training_tokens = 0;         // as published by the model's makers; 0: not published
  std::string beyond;  // what this library's transformer lacks to run it; empty: it runs

  bool gated() const { return activation == Activation::swiglu || activation == Activation::geglu; }
  std::int64_t query_width() const { return heads * head_size; }
  std::int64_t key_width() const { return kv_heads * head_size; }
  std::int64_t cached_numbers() const { return kv_width > 0 ? kv_width : 2 * key_width(); }
  std::int64_t norm_parameters() const { return norm == Norm::layer && bias ? 2 * width : width; }
  std::int64_t attention_parameters() const;                 // of one layer, without its norm
  std::int64_t feed_forward_parameters(std::int64_t) const;  // of one dense layer that wide
  std::int64_t layer_parameters(std::int64_t experts_counted) const;
  std::int64_t embedding_parameters() const;  // both tables and the output matrix
  std::int64_t parameters() const;
  std::int64_t active_parameters() const;  // those that one token uses
  void validate() const;
};

inline std::int64_t ModelConfig::attention_parameters() const {
  std::int64_t n = width * (2 * query_width() + 2 * key_width());
  if (bias || qkv_bias) {
    n += query_width() + 2 * key_width();
  }
  return n + (bias ? width : 0) + (qk_norm ? 2 * head_size : 0);
}

inline std::int64_t ModelConfig::feed_forward_parameters(std::int64_t wide) const {
  const std::int64_t inputs = gated() ? 2 : 1;
  return (inputs + 1) * width * wide + (bias ? inputs * wide + width : 0);
}

// A mixture counts its router and as many experts as asked.
inline std::int64_t ModelConfig::layer_parameters(std::int64_t experts_counted) const {
  std::int64_t n = attention_parameters() + block_norms * norm_parameters();
  if (experts == 0) {
    return n + feed_forward_parameters(hidden);
  }
  return n + width * experts +
         (experts_counted + shared_experts) * feed_forward_parameters(expert_hidden);
}

inline std::int64_t ModelConfig::embedding_parameters() const {
  const std::int64_t places = position == Position::learned ? context : 0;
  return vocabulary * width * (tied ? 1 : 2) + places * width;
}

inline std::int64_t ModelConfig::parameters() const {
  return layers * layer_parameters(experts) + norm_parameters() + embedding_parameters() +
         other_parameters;
}

inline std::int64_t ModelConfig::active_parameters() const {
  return layers * layer_parameters(top_k) + norm_parameters() + embedding_parameters() +
         (other_active != 0 ? other_active : other_parameters);
}

namespace detail {

// The fields that count something lie between bounds with which no loop and no product runs away.
inline void check_config_counts(const ModelConfig& c) {
  const std::int64_t size = 2147483647, few = 1000000;
  const struct {
    const char* field;
    std::int64_t value, least, most;
  } counts[] = {{"layers", c.layers, 1, few},
                {"width", c.width, 1, size},
                {"heads", c.heads, 1, few},
                {"kv_heads", c.kv_heads, 1, few},
                {"head_size", c.head_size, 1, size},
                {"vocabulary", c.vocabulary, 1, size},
                {"context", c.context, 1, size},
                {"experts", c.experts, 0, few},
                {"shared_experts", c.shared_experts, 0, few},
                {"hidden", c.hidden, c.experts > 0 ? 0 : 1, size},
                {"expert_hidden", c.expert_hidden, c.experts > 0 ? 1 : 0, size},
                {"block_norms", c.block_norms, 0, 4},
                {"kv_width", c.kv_width, 0, size}};
  for (const auto& count : counts) {
    const bool low = count.value < count.least;
    if (low || count.value > count.most) {
      fail({"ModelConfig: ", c.name, ": ", count.field, " is ", count.value, "; at ",
            low ? "least " : "most ", low ? count.least : count.most, " is right"});
    }
  }
}

// Doubles do not overflow: when this is below 1e18, parameters() does not either.
inline void check_config_product(const ModelConfig& c) {
  const auto n = [](std::int64_t value) { return static_cast<double>(value); };
  const double hidden =
      c.experts > 0 ? n(c.experts + c.shared_experts) * n(c.expert_hidden) : n(c.hidden);
  const double layer = 2 * n(c.heads + c.kv_heads) * n(c.head_size) + 3 * hidden + n(c.experts) + 4;
  const double about = n(c.width) * (n(c.layers) * layer + 2 * n(c.vocabulary) + n(c.context));
  if (about > 1e18) {
    fail({"ModelConfig: ", c.name, ": its sizes make about ", about,
          " parameters; at most 1e+18 can be counted"});
  }
}

inline void config_above_zero(const ModelConfig& c, const char* field, double value) {
  if (!is_finite(value) || value <= 0 || value >= 1e30) {
    fail({"ModelConfig: ", c.name, ": ", field, " is ", value,
          "; a number above 0 and below 1e+30 is right"});
  }
}

}  // namespace detail

// Throws an Error that names the first field that cannot be right.
inline void ModelConfig::validate() const {
  detail::check_config_counts(*this);
  detail::check_config_product(*this);
  detail::config_above_zero(*this, "rope_theta", rope_theta);
  detail::config_above_zero(*this, "norm_epsilon", norm_epsilon);
  if (heads % kv_heads != 0) {
    detail::fail({"ModelConfig: ", name, ": ", heads, " heads over ", kv_heads,
                  " kv_heads; heads must be a multiple of kv_heads"});
  }
  if (position == Position::rotary && head_size % 2 != 0) {
    detail::fail({"ModelConfig: ", name, ": head_size is ", head_size,
                  "; rotary positions turn pairs, so it must be even"});
  }
  if (experts > 0 && (top_k < 1 || top_k > experts)) {
    detail::fail({"ModelConfig: ", name, ": top_k is ", top_k, " of ", experts, " experts; 1 to ",
                  experts, " is right"});
  }
  if (!detail::is_finite(initializer_range) || initializer_range < 0 || initializer_range >= 100) {
    detail::fail({"ModelConfig: ", name, ": initializer_range is ", initializer_range,
                  "; a deviation is right, or 0 for one that suits the width"});
  }
}

}}  // namespace tinyscale

// >> tinyscale/model/tokenizer.hpp
// Text to token numbers and back, one token a character (code point) or one a byte.
// A character's id is its rank in the sorted vocabulary, a byte's id its value.

namespace tinyscale { inline namespace TINYSCALE_ABI {

namespace detail {

// Where `character` stands, or would, among sorted ones.
inline std::size_t place_of(const std::string& character, const std::vector<std::string>& sorted) {
  std::size_t low = 0;
  for (std::size_t high = sorted.size(); low < high;) {
    const std::size_t middle = low + (high - low) / 2;
    if (sorted[middle] < character) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Bytes of the UTF-8 character that begins at `at`; 0 when the bytes there are not UTF-8.
inline std::size_t character_size(const std::string& text, std::size_t at) {
  const auto first = static_cast<unsigned char>(text[at]);
  const std::size_t size = first < 0x80                     ? 1
                           : first >= 0xC2 && first < 0xE0  ? 2
                           : first >= 0xE0 && first < 0xF0  ? 3
                           : first >= 0xF0 && first <= 0xF4 ? 4
                                                            : 0;
  if (size == 0 || at + size > text.size()) {
    return 0;
  }
  for (std::size_t i = 1; i < size; ++i) {
    if ((static_cast<unsigned char>(text[at + i]) & 0xC0) != 0x80) {
      return 0;
    }
  }
  return size;
}

}  // namespace detail

class Tokenizer {
 public:
  enum class Kind { characters, bytes };

  Tokenizer() = default;  // bytes
  // Characters: the vocabulary in ascending byte order, each once.
  explicit Tokenizer(std::vector<std::string> characters)
      : kind_(Kind::characters), characters_(std::move(characters)) {}

  Kind kind() const { return kind_; }
  const std::vector<std::string>& characters() const { return characters_; }
  std::int64_t vocabulary() const {
    return kind_ == Kind::bytes ? 256 : static_cast<std::int64_t>(characters_.size());
  }
  std::string text() const {
    return kind_ == Kind::bytes ? "bytes (256)"
                                : detail::cat("characters (", vocabulary(), " distinct)");
  }
  bool operator==(const Tokenizer& other) const {
    return kind_ == other.kind_ && characters_ == other.characters_;
  }

  std::vector<std::int32_t> encode(const std::string& text) const;
  std::string decode(const std::vector<std::int32_t>& ids) const;

 private:
  Kind kind_ = Kind::bytes;
  std::vector<std::string> characters_;
};

// A character that the vocabulary lacks is an Error.
inline std::vector<std::int32_t> Tokenizer::encode(const std::string& text) const {
  std::vector<std::int32_t> ids;
  ids.reserve(text.size());
  std::vector<std::int32_t> ascii(128, -1);  // the common case without a search
  for (std::size_t i = 0; i < characters_.size(); ++i) {
    const auto first = static_cast<unsigned char>(characters_[i][0]);
    if (first < 128) {
      ascii[first] = static_cast<std::int32_t>(i);
    }
  }
  for (std::size_t at = 0; at < text.size();) {
    const auto byte = static_cast<unsigned char>(text[at]);
    if (kind_ == Kind::bytes) {
      ids.push_back(byte);
      ++at;
      continue;
    }
    const std::size_t size = std::max<std::size_t>(1, detail::character_size(text, at));
    std::int32_t id = size == 1 && byte < 128 ? ascii[byte] : -1;
    if (size > 1) {
      const std::size_t found = detail::place_of(text.substr(at, size), characters_);
      if (found < characters_.size() && characters_[found] == text.substr(at, size)) {
        id = static_cast<std::int32_t>(found);
      }
    }
    if (id < 0) {
      detail::fail({"encode: the character \"", text.substr(at, size), "\" at byte ",
                    static_cast<std::int64_t>(at), " is not among the ", vocabulary(),
                    " of the training text; leave it out"});
    }
    ids.push_back(id);
    at += size;
  }
  return ids;
}

// An id that stands for nothing (a model may have a larger vocabulary than the text) gives "?".
inline std::string Tokenizer::decode(const std::vector<std::int32_t>& ids) const {
  std::string text;
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= vocabulary()) {
      text += '?';
    } else if (kind_ == Kind::bytes) {
      text += static_cast<char>(static_cast<unsigned char>(id));
    } else {
      text += characters_[static_cast<std::size_t>(id)];
    }
  }
  return text;
}

namespace detail {

// Characters when the text is UTF-8 with at most 256 distinct, else bytes.
inline Tokenizer tokenizer_for(const std::string& text) {
  std::vector<std::string> found;
  std::vector<int> seen(128);
  for (std::size_t at = 0; at < text.size();) {
    const auto byte = static_cast<unsigned char>(text[at]);
    const std::size_t size = character_size(text, at);
    if (size == 0) {
      return Tokenizer();
    }
    if (byte >= 128 || !seen[byte]) {
      const std::string character = text.substr(at, size);
      const std::size_t place = place_of(character, found);
      if (place == found.size() || found[place] != character) {
        found.insert(found.begin() + static_cast<std::ptrdiff_t>(place), character);
        if (found.size() > 256) {
          return Tokenizer();
        }
      }
      if (byte < 128) {
        seen[byte] = 1;
      }
    }
    at += size;
  }
  return Tokenizer(std::move(found));
}

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/model/transformer.hpp
// The transformer, written once for GPT-2 and Llama styles.
// Block: x += attention(norm(x)); x += feed_forward(norm(x)). Letters: B sequences, T tokens each,
// D width, H heads of K numbers, F hidden, V vocabulary. Linear weights are [out, in].
// Parallel strategies change it through Hooks alone.

namespace tinyscale { inline namespace TINYSCALE_ABI {

namespace detail {

inline std::uint64_t parameter_seed(std::uint64_t seed, std::uint64_t place) {
  return seed + (place + 1) * 0x9E3779B97F4A7C15ull;
}

}  // namespace detail

class Transformer {
 public:
  explicit Transformer(ModelConfig config, std::uint64_t seed = 1);

  ModelConfig config;
  List<Parameter> parameters;
  Tokenizer tokenizer;  // of the text it learned; saved with it

  std::vector<Tensor> tensors() const;
  std::int64_t count() const;

  // Logits [B, T, V] of ids [B, T]; loss is the mean cross-entropy against the next tokens.
  Tensor forward(const std::vector<std::int32_t>& ids, std::int64_t batch, std::int64_t time,
                 const Hooks& hooks = Hooks()) const;
  Tensor loss(const std::vector<std::int32_t>& ids, const std::vector<std::int32_t>& targets,
              std::int64_t batch, std::int64_t time, const Hooks& hooks = Hooks()) const;

  // The pieces of forward, for a pipeline: embed, then block 0 .. layers - 1, then head.
  Tensor embed(const std::vector<std::int32_t>& ids, std::int64_t batch, std::int64_t time,
               const Hooks& hooks) const;                              // (B, T, D)
  Tensor block(int layer, const Tensor& x, const Hooks& hooks) const;  // (B, T, D)
  Tensor feed_forward(int layer, const Tensor& x, const Hooks& hooks) const;
  Tensor head(const Tensor& x, const Hooks& hooks) const;  // (B, T, V)

  // Safetensors, tokenizer and config in its metadata (checkpoint.hpp).
  void save(const std::string& path) const;

 private:
  // Places in `parameters`; -1 where this architecture has none.
  struct Linear {
    int weight = -1;
    int bias = -1;
  };
  struct FeedForward {
    Linear gate, up, down;
  };
  struct Block {
    Linear norm1, norm2, query, key, value, output;
    int query_norm = -1;
    int key_norm = -1;
    FeedForward dense;  // of a mixture: its shared experts as one
    int router = -1;
    List<FeedForward> experts;
  };

  int add(const std::string& name, const Shape& shape, float scale, Split split, int layer);
  Linear add_linear(const std::string& name, std::int64_t out, std::int64_t in, Split split,
                    int layer);
  Linear add_norm(const std::string& name, int layer);
  FeedForward add_feed_forward(const std::string& name, std::int64_t wide, int layer);
  void add_block(int layer);

  Tensor use(int index, const Hooks& hooks) const;
  Tensor head_input(const Tensor& x, const Hooks& hooks) const;
  Tensor normalise(const Linear& norm, const Tensor& x, const Hooks& hooks) const;
  Tensor project(const Linear& linear, const Tensor& x, const Hooks& hooks) const;
  Tensor write_back(const Linear& linear, const Tensor& x, const Hooks& hooks) const;
  Tensor place_heads(int norm, const Tensor& x, const Hooks& hooks) const;
  Tensor attend(int layer, const Tensor& x, const Hooks& hooks) const;
  Tensor gated(const FeedForward& part, const Tensor& x, const Hooks& hooks) const;
  Tensor mixture(const Block& block, const Tensor& x, const Hooks& hooks) const;
  Tensor drop(const Tensor& x, int place, const Hooks& hooks) const;

  std::uint64_t seed_ = 1;
  int embedding_ = -1;
  int position_ = -1;
  Linear last_norm_;
  int head_ = -1;
  List<Block> blocks_;
};

// Tables are N(0, 0.02). Linear weights are N(0, sqrt(2 / (5 width))) (Nguyen and Salazar, arXiv
// 1910.05895) or N(0, initializer_range), GPT-2's 0.02; those that write to the residual stream
// that over sqrt(2 layers).
inline Transformer::Transformer(ModelConfig shape, std::uint64_t seed)
    : config(std::move(shape)), seed_(seed) {
  if (!config.beyond.empty()) {
    detail::fail({"Transformer: ", config.name, " is planned, not run: it has ", config.beyond,
                  "; config(\"nano\") is one that runs"});
  }
  config.validate();
  const std::int64_t d = config.width;
  embedding_ = add("model.embed_tokens.weight", {config.vocabulary, d}, 0.02f, Split::rows, -1);
  if (config.position == Position::learned) {
    position_ = add("model.embed_positions.weight", {config.context, d}, 0.02f, Split::whole, -1);
  }
  for (int layer = 0; layer < config.layers; ++layer) {
    add_block(layer);
  }
  last_norm_ = add_norm("model.norm", -1);
  if (!config.tied) {
    head_ = add("lm_head.weight", {config.vocabulary, d}, 0.02f, Split::rows, -1);
  }
}

// scale 0 fills with zeros, below 0 with ones; else element i is normal01(seed of the place, i).
inline int Transformer::add(const std::string& name, const Shape& shape, float scale, Split split,
                            int layer) {
  const auto place = static_cast<std::uint64_t>(parameters.size());
  const MemoryScope scope(MemoryKind::parameter);
  const Tensor start = scale > 0.0f ? randn(shape, detail::parameter_seed(seed_, place), scale)
                                    : full(shape, scale < 0.0f ? 1.0f : 0.0f);
  parameters.push_back(Parameter{name, parameter(start), split, layer});
  return static_cast<int>(place);
}

inline Transformer::Linear Transformer::add_linear(const std::string& name, std::int64_t out,
                                                   std::int64_t in, Split split, int layer) {
  const auto depth = static_cast<float>(2 * config.layers);
  const auto range = static_cast<float>(config.initializer_range);
  const auto width = static_cast<float>(config.width);
  const float base = range > 0.0f ? range : std::sqrt(2.0f / (5.0f * width));
  const float scale = split == Split::columns ? base / std::sqrt(depth) : base;
  const bool qkv = config.qkv_bias && name.find(".self_attn.o_") == std::string::npos &&
                   name.find(".self_attn.") != std::string::npos;
  Linear linear;
  linear.weight = add(name + ".weight", {out, in}, scale, split, layer);
  if (config.bias || qkv) {
    const Split bias_split = split == Split::columns ? Split::whole : split;
    linear.bias = add(name + ".bias", {out}, 0.0f, bias_split, layer);
  }
  return linear;
}

inline Transformer::Linear Transformer::add_norm(const std::string& name, int layer) {
  Linear norm;
  norm.weight = add(name + ".weight", {config.width}, -1.0f, Split::whole, layer);
  if (config.norm == Norm::layer && config.bias) {
    norm.bias = add(name + ".bias", {config.width}, 0.0f, Split::whole, layer);
  }
  return norm;
}

inline Transformer::FeedForward Transformer::add_feed_forward(const std::string& name,
                                                              std::int64_t wide, int layer) {
  FeedForward part;
  if (config.gated()) {
    part.gate = add_linear(name + ".gate_proj", wide, config.width, Split::rows, layer);
  }
  part.up = add_linear(name + ".up_proj", wide, config.width, Split::rows, layer);
  part.down = add_linear(name + ".down_proj", config.width, wide, Split::columns, layer);
  return part;
}

inline void Transformer::add_block(int layer) {
  const std::string at = detail::cat("model.layers.", layer);
  const std::int64_t d = config.width;
  Block b;
  b.norm1 = add_norm(at + ".input_layernorm", layer);
  b.query = add_linear(at + ".self_attn.q_proj", config.query_width(), d, Split::rows, layer);
  b.key = add_linear(at + ".self_attn.k_proj", config.key_width(), d, Split::rows, layer);
  b.value = add_linear(at + ".self_attn.v_proj", config.key_width(), d, Split::rows, layer);
  if (config.qk_norm) {
    const Shape head = {config.head_size};
    b.query_norm = add(at + ".self_attn.q_norm.weight", head, -1.0f, Split::whole, layer);
    b.key_norm = add(at + ".self_attn.k_norm.weight", head, -1.0f, Split::whole, layer);
  }
  b.output = add_linear(at + ".self_attn.o_proj", d, config.query_width(), Split::columns, layer);
  b.norm2 = add_norm(at + ".post_attention_layernorm", layer);
  if (config.experts == 0) {
    b.dense = add_feed_forward(at + ".mlp", config.hidden, layer);
  } else {
    b.router = add(at + ".mlp.gate.weight", {config.experts, d}, 0.02f, Split::whole, layer);
    for (int e = 0; e < config.experts; ++e) {
      b.experts.push_back(
          add_feed_forward(detail::cat(at, ".mlp.experts.", e), config.expert_hidden, layer));
    }
    if (config.shared_experts > 0) {
      b.dense = add_feed_forward(at + ".mlp.shared_experts",
                                 config.shared_experts * config.expert_hidden, layer);
    }
  }
  blocks_.push_back(std::move(b));
}

inline std::vector<Tensor> Transformer::tensors() const {
  std::vector<Tensor> all;
  for (const Parameter& p : parameters) {
    all.push_back(p.value);
  }
  return all;
}

inline std::int64_t Transformer::count() const {
  std::int64_t n = 0;
  for (const Parameter& p : parameters) {
    n += p.value.count();
  }
  return n;
}

}}  // namespace tinyscale

// >> tinyscale/model/forward.hpp
// The transformer's forward pass: embed, then blocks, then head. Its backward pass follows from it.
// Letters as in transformer.hpp; a device that holds a shard sees its own H, F and V.

namespace tinyscale { inline namespace TINYSCALE_ABI {

inline Tensor Transformer::forward(const std::vector<std::int32_t>& ids, std::int64_t batch,
                                   std::int64_t time, const Hooks& hooks) const {
  Tensor x = embed(ids, batch, time, hooks);  // (B, T, D)
  for (int layer = 0; layer < config.layers; ++layer) {
    x = block(layer, x, hooks);
  }
  return head(x, hooks);  // (B, T, V)
}

inline Tensor Transformer::loss(const std::vector<std::int32_t>& ids,
                                const std::vector<std::int32_t>& targets, std::int64_t batch,
                                std::int64_t time, const Hooks& hooks) const {
  if (hooks.loss) {
    return hooks.loss(forward(ids, batch, time, hooks), targets);
  }
  Tensor x = embed(ids, batch, time, hooks);  // (B, T, D)
  for (int layer = 0; layer < config.layers; ++layer) {
    x = block(layer, x, hooks);
  }
  return linear_cross_entropy(head_input(x, hooks), use(config.tied ? embedding_ : head_, hooks),
                              targets);  // no (B, T, V) at any time
}

inline Tensor Transformer::embed(const std::vector<std::int32_t>& ids, std::int64_t batch,
                                 std::int64_t time, const Hooks& hooks) const {
  const std::int64_t end = hooks.first_position + time;
  if (batch < 1 || time < 1 || static_cast<std::int64_t>(ids.size()) != batch * time) {
    detail::fail({"forward: ", ids.size(), " ids for ", batch, " sequences of ", time,
                  " tokens; one id a token is right"});
  }
  if (end > config.context) {
    detail::fail({"forward: ", time, " tokens from position ", hooks.first_position,
                  " on; the context of ", config.name, " is ", config.context});
  }
  const Tensor table = use(embedding_, hooks);
  Tensor x = hooks.embedding ? hooks.embedding(table, ids, {batch, time})
                             : embedding(table, ids, {batch, time});  // (B, T, D)
  if (position_ >= 0) {
    const Tensor places = use(position_, hooks);
    x = x + (time == config.context ? places : slice(places, 0, hooks.first_position, end));
  }
  return drop(x, 0, hooks);
}

inline Tensor Transformer::block(int layer, const Tensor& x, const Hooks& hooks) const {
  const Block& b = blocks_[static_cast<std::size_t>(layer)];
  const Tensor y =
      x + drop(attend(layer, normalise(b.norm1, x, hooks), hooks), 2 * layer + 1, hooks);
  const Tensor z = normalise(b.norm2, y, hooks);
  const Tensor f =
      hooks.feed_forward ? hooks.feed_forward(layer, z) : feed_forward(layer, z, hooks);
  return y + drop(f, 2 * layer + 2, hooks);
}

inline Tensor Transformer::head(const Tensor& x, const Hooks& hooks) const {
  return matmul_transposed(head_input(x, hooks), use(config.tied ? embedding_ : head_, hooks));
}

inline Tensor Transformer::head_input(const Tensor& x, const Hooks& hooks) const {
  const Tensor y = normalise(last_norm_, x, hooks);
  return hooks.linear_in ? hooks.linear_in(y) : y;
}

inline Tensor Transformer::feed_forward(int layer, const Tensor& x, const Hooks& hooks) const {
  const Block& b = blocks_[static_cast<std::size_t>(layer)];
  const Tensor in = hooks.linear_in ? hooks.linear_in(x) : x;
  return b.experts.empty() ? gated(b.dense, in, hooks) : mixture(b, in, hooks);
}

inline Tensor Transformer::use(int index, const Hooks& hooks) const {
  const Tensor& value = parameters[static_cast<std::size_t>(index)].value;
  return hooks.weight ? hooks.weight(value, index) : value;
}

inline Tensor Transformer::normalise(const Linear& norm, const Tensor& x,
                                     const Hooks& hooks) const {
  const auto epsilon = static_cast<float>(config.norm_epsilon);
  const Tensor weight = use(norm.weight, hooks);
  if (config.norm == Norm::rms) {
    return rms_norm(x, weight, epsilon);
  }
  return layer_norm(x, weight, norm.bias >= 0 ? use(norm.bias, hooks) : Tensor(), epsilon);
}

// x W^T + bias for layers that read the width.
inline Tensor Transformer::project(const Linear& linear, const Tensor& x,
                                   const Hooks& hooks) const {
  return tinyscale::linear(x, use(linear.weight, hooks),
                           linear.bias >= 0 ? use(linear.bias, hooks) : Tensor());
}

// The same for layers that write to it: where inputs are cut over devices, y is a partial sum
// until linear_out, so the bias comes after.
inline Tensor Transformer::write_back(const Linear& linear, const Tensor& x,
                                      const Hooks& hooks) const {
  if (!hooks.linear_out) {
    return project(linear, x, hooks);
  }
  const Tensor y = hooks.linear_out(matmul_transposed(x, use(linear.weight, hooks)));
  return linear.bias >= 0 ? y + use(linear.bias, hooks) : y;
}

// Queries or keys (B, T, H K): each head normalised, then turned to its position.
inline Tensor Transformer::place_heads(int norm, const Tensor& x, const Hooks& hooks) const {
  Tensor y = x;
  if (norm >= 0) {
    const Shape heads = {x.dim(0), x.dim(1), x.dim(2) / config.head_size, config.head_size};
    const auto epsilon = static_cast<float>(config.norm_epsilon);
    y = reshape(rms_norm(reshape(x, heads), use(norm, hooks), epsilon), x.shape());
  }
  if (config.position == Position::rotary) {
    y = rope(y, config.head_size, hooks.first_position, static_cast<float>(config.rope_theta),
             RopePairs::halves);
  }
  return y;
}

inline Tensor Transformer::attend(int layer, const Tensor& x, const Hooks& hooks) const {
  const Block& b = blocks_[static_cast<std::size_t>(layer)];
  const Tensor in = hooks.linear_in ? hooks.linear_in(x) : x;
  const Tensor q = place_heads(b.query_norm, project(b.query, in, hooks), hooks);  // (B, T, H K)
  Tensor k = place_heads(b.key_norm, project(b.key, in, hooks), hooks);            // (B, T, KV K)
  Tensor v = project(b.value, in, hooks);
  if (hooks.cache != nullptr) {
    const auto at = static_cast<std::size_t>(layer);
    hooks.cache->keys.resize(blocks_.size());
    hooks.cache->values.resize(blocks_.size());
    k = hooks.cache->append(hooks.cache->keys[at], k, hooks.first_position, config.context);
    v = hooks.cache->append(hooks.cache->values[at], v, hooks.first_position, config.context);
  }
  const Tensor o = hooks.attention ? hooks.attention(layer, q, k, v)
                                   : attention(q, k, v, q.dim(2) / config.head_size,
                                               k.dim(2) / config.head_size, Mask::causal);
  return write_back(b.output, o, hooks);
}

// down(activation(up x)), or down(activation(gate x) * up x).
inline Tensor Transformer::gated(const FeedForward& part, const Tensor& x,
                                 const Hooks& hooks) const {
  const Tensor up = project(part.up, x, hooks);  // (B, T, F)
  Tensor h;
  switch (config.activation) {
    case Activation::gelu: h = gelu(up); break;
    case Activation::gelu_tanh: h = gelu_tanh(up); break;
    case Activation::swiglu: h = silu(project(part.gate, x, hooks)) * up; break;
    case Activation::geglu: h = gelu_tanh(project(part.gate, x, hooks)) * up; break;
  }
  return write_back(part.down, h, hooks);
}

// Every token's output is the weighted sum of its top_k experts' (and the shared ones').
inline Tensor Transformer::mixture(const Block& block, const Tensor& x, const Hooks& hooks) const {
  const std::int64_t n = x.count() / config.width;
  const std::int64_t k = config.top_k;
  const Tensor rows = reshape(x, {n, config.width});
  const Tensor p = softmax(matmul_transposed(rows, use(block.router, hooks)));  // (N, E)
  const Routing routing = route(p, config.top_k);
  std::vector<Tensor> parts;
  for (std::size_t e = 0; e < block.experts.size(); ++e) {
    const auto& own = routing.rows[e];
    if (!own.empty()) {
      parts.push_back(gated(block.experts[e], embedding(rows, own, {own.size()}), hooks));
    }
  }
  const Tensor chosen =
      reshape(embedding(reshape(p, {p.count(), 1}), routing.chosen, {n, k}), {n, k});
  const Tensor weights = chosen / reshape(sum(chosen, 1), {n, 1});
  const Tensor outputs = embedding(concat(parts, 0), routing.places, {n, k});  // (N, k, D)
  const Tensor y = reshape(sum(outputs * reshape(weights, {n, k, 1}), 1), x.shape());
  return block.dense.up.weight >= 0 ? y + gated(block.dense, x, hooks) : y;
}

inline Tensor Transformer::drop(const Tensor& x, int place, const Hooks& hooks) const {
  if (hooks.dropout <= 0.0) {
    return x;
  }
  const std::uint64_t seed =
      detail::parameter_seed(hooks.dropout_seed, static_cast<std::uint64_t>(place));
  const std::int64_t first = hooks.first_sequence * (x.count() / x.dim(0));
  return dropout(x, static_cast<float>(hooks.dropout), seed, first);
}

}}  // namespace tinyscale

// >> tinyscale/model/json.hpp
// A strict reader for the little JSON that files carry (RFC 8259): objects keep their order,
// numbers are doubles, a repeated key or anything after the value is an Error with its position.

namespace tinyscale { inline namespace TINYSCALE_ABI {

struct JsonField;

struct Json {
  enum class Kind { null, boolean, number, text, list, object };
  Kind kind = Kind::null;
  double number = 0;  // also a boolean's 0 or 1
  std::string text;
  List<Json> list;
  List<JsonField> fields;

  // The field of that name, or null when there is none.
  const Json* find(const std::string& key) const;
};

struct JsonField {
  std::string name;
  Json value;
};

inline const Json* Json::find(const std::string& key) const {
  for (const JsonField& field : fields) {
    if (field.name == key) {
      return &field.value;
    }
  }
  return nullptr;
}

namespace detail {

// All digits of a double, as JSON has it.
inline std::string exact_number(double value) { return printed('g', 17, value); }

class JsonReader {
 public:
  explicit JsonReader(const std::string& text) : text_(text) {}

  Json whole() {
    Json value = read(0);
    skip_space();
    if (at_ != text_.size()) {
      fail("text after the value");
    }
    return value;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    detail::fail({"json: ", what, " at byte ", static_cast<std::int64_t>(at_)});
  }
  void skip_space() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) {
      ++at_;
    }
  }
  char peek() {
    skip_space();
    if (at_ >= text_.size()) {
      fail("the text ends early");
    }
    return text_[at_];
  }
  bool take(char c) {
    if (peek() != c) {
      return false;
    }
    ++at_;
    return true;
  }

  Json read(int depth) {
    if (depth > 64) {
      fail("more than 64 levels");
    }
    Json value;
    const char c = peek();
    if (c == '{') {
      read_object(value, depth);
    } else if (c == '[') {
      read_list(value, depth);
    } else if (c == '"') {
      value.kind = Json::Kind::text;
      value.text = read_text();
    } else if (c == 't' || c == 'f' || c == 'n') {
      read_word(value);
    } else {
      value.kind = Json::Kind::number;
      value.number = read_number();
    }
    return value;
  }

  void read_object(Json& value, int depth) {
    value.kind = Json::Kind::object;
    ++at_;
    if (take('}')) {
      return;
    }
    do {
      if (peek() != '"') {
        fail("a key must be a string");
      }
      std::string key = read_text();
      if (!take(':')) {
        fail("a colon is missing");
      }
      value.fields.push_back({std::move(key), read(depth + 1)});
    } while (take(','));
    if (!take('}')) {
      fail("a comma or } is missing");
    }
    check_unique(value);
  }

  void check_unique(const Json& object) const {
    NameTable times;
    for (const JsonField& field : object.fields) {
      if (++times[field.name] > 1) {
        fail(cat("the key \"", field.name, "\" stands twice, before"));
      }
    }
  }

  void read_list(Json& value, int depth) {
    value.kind = Json::Kind::list;
    ++at_;
    if (take(']')) {
      return;
    }
    do {
      value.list.push_back(read(depth + 1));
    } while (take(','));
    if (!take(']')) {
      fail("a comma or ] is missing");
    }
  }

  void read_word(Json& value) {
    if (text_.compare(at_, 4, "true") == 0 || text_.compare(at_, 5, "false") == 0) {
      value.kind = Json::Kind::boolean;
      value.number = text_[at_] == 't' ? 1 : 0;
      at_ += value.number != 0 ? 4u : 5u;
    } else if (text_.compare(at_, 4, "null") == 0) {
      at_ += 4;
    } else {
      fail("an unknown word");
    }
  }

  bool digits() {
    const std::size_t start = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
      ++at_;
    }
    return at_ > start;
  }
  bool next_is(char a, char b) const {
    return at_ < text_.size() && (text_[at_] == a || text_[at_] == b);
  }
  double read_number() {
    const std::size_t start = at_;
    if (next_is('-', '-')) {
      ++at_;
    }
    const bool zero = next_is('0', '0');
    const std::size_t first = at_;
    bool good = digits() && !(zero && at_ > first + 1);
    if (good && next_is('.', '.')) {
      ++at_;
      good = digits();
    }
    if (good && next_is('e', 'E')) {
      ++at_;
      if (next_is('+', '-')) {
        ++at_;
      }
      good = digits();
    }
    if (!good) {
      fail("not a JSON value");
    }
    std::string number = text_.substr(start, at_ - start);
    const std::size_t point = number.find('.');
    if (point != std::string::npos) {
      number.replace(point, 1, decimal_point());  // what strtod expects
    }
    return std::strtod(number.c_str(), nullptr);
  }

  std::string read_text() {
    std::string out;
    for (++at_; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '"') {
        ++at_;
        return out;
      }
      if (static_cast<unsigned char>(c) < 0x20) {
        fail("a control character in a string");
      }
      if (c == '\\') {
        read_escape(out);
      } else {
        out += c;
      }
    }
    fail("a string has no end");
  }

  void read_escape(std::string& out) {
    static const char names[] = "\"\\/bfnrt";
    static const char values[] = "\"\\/\b\f\n\r\t";
    const char c = ++at_ < text_.size() ? text_[at_] : '\0';
    for (int i = 0; names[i] != '\0'; ++i) {
      if (c == names[i]) {
        out += values[i];
        return;
      }
    }
    if (c != 'u') {
      fail("an unknown escape");
    }
    std::uint32_t code = read_hex();
    if (code >= 0xD800 && code < 0xDC00 && text_.compare(at_ + 1, 2, "\\u") == 0) {
      at_ += 2;
      const std::uint32_t low = read_hex();
      if (low < 0xDC00 || low > 0xDFFF) {
        fail("half of a surrogate pair");
      }
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xD800 && code <= 0xDFFF) {
      fail("half of a surrogate pair");
    }
    append_utf8(out, code);
  }

  // Four hexadecimal digits after the 'u'; ends on the last of them.
  std::uint32_t read_hex() {
    std::uint32_t code = 0;
    for (int i = 0; i < 4; ++i) {
      const char c = ++at_ < text_.size() ? text_[at_] : '\0';
      const bool digit = c >= '0' && c <= '9';
      const char lower = static_cast<char>(c | 0x20);
      if (!digit && (lower < 'a' || lower > 'f')) {
        fail("four hexadecimal digits must follow \\u");
      }
      code = code * 16 + static_cast<std::uint32_t>(digit ? c - '0' : lower - 'a' + 10);
    }
    return code;
  }

  static void append_utf8(std::string& out, std::uint32_t code) {
    const auto tail = [&out, code](int shift) {
      out += static_cast<char>(0x80 | ((code >> shift) & 0x3F));
    };
    if (code < 0x80) {
      out += static_cast<char>(code);
    } else if (code < 0x800) {
      out += static_cast<char>(0xC0 | (code >> 6));
      tail(0);
    } else if (code < 0x10000) {
      out += static_cast<char>(0xE0 | (code >> 12));
      tail(6), tail(0);
    } else {
      out += static_cast<char>(0xF0 | (code >> 18));
      tail(12), tail(6), tail(0);
    }
  }

  const std::string& text_;
  std::size_t at_ = 0;
};

}  // namespace detail

// The value that the text spells; an Error says what is wrong and at which byte.
inline Json parse_json(const std::string& text) { return detail::JsonReader(text).whole(); }

}}  // namespace tinyscale

// >> tinyscale/model/read_text.hpp
// A text to learn: its tokens, of which the first 90 % train and the rest validate.

namespace tinyscale { inline namespace TINYSCALE_ABI {

struct Text {
  std::string name;
  Tokenizer tokenizer;
  std::vector<std::int32_t> tokens;
  std::int64_t split = 0;  // tokens [0, split) train, the rest validate

  std::vector<std::int32_t> train() const { return {tokens.begin(), tokens.begin() + split}; }
  std::vector<std::int32_t> validation() const { return {tokens.begin() + split, tokens.end()}; }
  // "input.txt: 1,115,394 tokens, characters (65 distinct)"
  std::string text() const {
    return detail::cat(name, ": ", format_count(static_cast<double>(tokens.size())), " tokens, ",
                       tokenizer.text());
  }
};

inline std::ostream& operator<<(std::ostream& out, const Text& text) { return out << text.text(); }

namespace detail {

// A file, closed at the end of its scope.
class File {
 public:
  explicit File(std::FILE* file) : file_(file) {}
  File(File&& other) noexcept : file_(other.release()) {}
  File& operator=(File&&) = delete;
  ~File() {
    if (file_ != nullptr) {
      std::fclose(file_);
    }
  }
  std::FILE* get() const { return file_; }
  std::FILE* release() {
    std::FILE* file = file_;
    file_ = nullptr;
    return file;
  }

 private:
  std::FILE* file_;
};

inline File open_file(const std::string& path, const char* mode, const char* who) {
  File file(std::fopen(path.c_str(), mode));
  if (file.get() == nullptr) {
    fail({who, ": cannot open \"", path, "\": ", std::strerror(errno)});
  }
  return file;
}

inline std::string read_file(const std::string& path, const char* who) {
  const File file = open_file(path, "rb", who);
  std::string data;
  std::string piece(1 << 16, '\0');
  for (;;) {
    const std::size_t got = std::fread(&piece[0], 1, piece.size(), file.get());
    data.append(piece, 0, got);
    if (got < piece.size()) {
      break;
    }
  }
  if (std::ferror(file.get())) {
    fail({who, ": cannot read \"", path, "\": ", std::strerror(errno)});
  }
  return data;
}

}  // namespace detail

// A text that is already in memory.
inline Text make_text(const std::string& name, const std::string& data) {
  if (data.empty()) {
    detail::fail({"read_text: \"", name, "\" is empty; a text to learn is right"});
  }
  Text text;
  text.name = name;
  text.tokenizer = detail::tokenizer_for(data);
  text.tokens = text.tokenizer.encode(data);
  text.split = static_cast<std::int64_t>(text.tokens.size()) * 9 / 10;
  return text;
}

// Characters when at most 256 are distinct, else bytes; the text prints which. A byte order mark
// (EF BB BF, which some editors put before UTF-8) is left out.
inline Text read_text(const std::string& path) {
  std::string data = detail::read_file(path, "read_text");
  if (data.compare(0, 3, "\xEF\xBB\xBF") == 0) {
    data.erase(0, 3);
  }
  return make_text(path.substr(path.find_last_of("/\\") + 1), data);
}

}}  // namespace tinyscale

// >> tinyscale/model/safetensors.hpp
// The safetensors format: 8 bytes of length N, N bytes of JSON, then the tensors' bytes.
// The reader trusts nothing: lengths, ranges, shapes and names are checked before any is used.

namespace tinyscale { inline namespace TINYSCALE_ABI {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;
  Shape shape;
  std::uint64_t begin = 0;  // bytes [begin, end) of the data area
  std::uint64_t end = 0;
};

struct SafetensorsNote {
  std::string name, text;
};

struct Safetensors {
  std::string path;
  List<SafetensorsNote> metadata;
  List<SafetensorsEntry> entries;  // by place in the file
  std::string bytes;               // the whole file
  std::size_t data_start = 0;

  const SafetensorsEntry* find(const std::string& name) const;
  const std::string* find_metadata(const std::string& key) const;
  Tensor read(const SafetensorsEntry& entry) const;  // F32; F16, BF16 and F64 are converted
};

namespace detail {

// Bytes of an element; 0 for a dtype that the format does not know.
inline std::uint64_t safetensors_size(const std::string& dtype) {
  static const char* const names[] = {"F64", "I64", "U64",  "F32",     "I32",
                                      "U32", "F16", "BF16", "I16",     "U16",
                                      "I8",  "U8",  "BOOL", "F8_E4M3", "F8_E5M2"};
  static const std::uint64_t sizes[] = {8, 8, 8, 4, 4, 4, 2, 2, 2, 2, 1, 1, 1, 1, 1};
  for (std::size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); ++i) {
    if (dtype == names[i]) {
      return sizes[i];
    }
  }
  return 0;
}

// A whole number from 0 to 2^53 (where doubles stop being exact), or an Error.
inline std::uint64_t json_whole(const Json& value, const std::string& who) {
  const double n = value.number;
  if (value.kind != Json::Kind::number || !(n >= 0 && n <= 9007199254740992.0) ||
      static_cast<double>(static_cast<std::uint64_t>(n)) != n) {
    detail::fail({who + ": a size is not a whole number from 0 to 2^53"});
  }
  return static_cast<std::uint64_t>(n);
}

// parse_json whose errors name the file.
inline Json parse_named(const std::string& text, const std::string& who) {
  try {
    return parse_json(text);
  } catch (const Error& error) {
    detail::fail({who + error.what()});
  }
}

inline SafetensorsEntry safetensors_entry(const std::string& name, const Json& value,
                                          const std::string& file) {
  const std::string who = cat(file, "tensor \"", name, "\"");
  const Json* dtype = value.find("dtype");
  const Json* shape = value.find("shape");
  const Json* range = value.find("data_offsets");
  if (dtype == nullptr || dtype->kind != Json::Kind::text || shape == nullptr ||
      shape->kind != Json::Kind::list || range == nullptr || range->list.size() != 2) {
    detail::fail({who + " lacks dtype, shape or data_offsets"});
  }
  SafetensorsEntry entry;
  entry.name = name;
  entry.dtype = dtype->text;
  entry.begin = json_whole(range->list[0], who);
  entry.end = json_whole(range->list[1], who);
  const std::uint64_t size = safetensors_size(entry.dtype);
  if (size == 0) {
    fail({who, " has the unknown dtype \"", entry.dtype, "\""});
  }
  if (shape->list.size() > static_cast<std::size_t>(Shape::max_dims)) {
    fail({who, " has ", shape->list.size(), " dimensions; at most ", Shape::max_dims});
  }
  for (const Json& dim : shape->list) {
    entry.shape.push_back(static_cast<std::int64_t>(json_whole(dim, who)));
  }
  std::uint64_t count = 0;
  try {
    count = static_cast<std::uint64_t>(entry.shape.count());
  } catch (const Error& error) {  // the product overflows
    fail({who, ": ", error.what()});
  }
  if (entry.end < entry.begin || (entry.end - entry.begin) % size != 0 ||
      (entry.end - entry.begin) / size != count) {
    fail({who, ": bytes ", entry.begin, " to ", entry.end, " for shape ", entry.shape.text(),
          " of ", entry.dtype, "; their number must be ", size, " an element"});
  }
  return entry;
}

// The ranges, in order, must cover the data area without gap or overlap.
inline void check_cover(Safetensors& file, const std::string& who) {
  for (const bool by_begin : {false, true}) {  // by begin, those of equal begin by end
    std::vector<double> keys;
    for (const SafetensorsEntry& entry : file.entries) {
      keys.push_back(static_cast<double>(by_begin ? entry.begin : entry.end));
    }
    List<SafetensorsEntry> sorted;
    for (const std::size_t i : stable_order(keys)) {
      sorted.push_back(file.entries[i]);
    }
    file.entries.swap(sorted);
  }
  std::uint64_t at = 0;
  for (const SafetensorsEntry& entry : file.entries) {
    if (entry.begin != at) {
      fail({who, "tensor \"", entry.name, "\" begins at byte ", entry.begin,
            "; the one before ends at ", at, ", and nothing may lie between or twice"});
    }
    at = entry.end;
  }
  const std::uint64_t data = file.bytes.size() - file.data_start;
  if (at != data) {
    fail({who, "the tensors end at byte ", at, " of the data, the file at ", data});
  }
}

inline Json safetensors_header(const Safetensors& file, const std::string& who) {
  std::uint64_t n = 0;
  if (file.bytes.size() < 8) {
    fail({who, file.bytes.size(), " bytes are no safetensors file; it begins with 8"});
  }
  std::memcpy(&n, file.bytes.data(), 8);  // little-endian, as are the machines that this runs on
  if (n > 100000000) {
    fail({who, "a header of ", n, " bytes; at most 100000000 are right"});
  }
  if (n > file.bytes.size() - 8) {
    fail({who, "a header of ", n, " bytes; only ", file.bytes.size() - 8, " follow"});
  }
  if (n == 0 || file.bytes[8] != '{') {
    detail::fail({who + "the header does not begin with {"});
  }
  return parse_named(file.bytes.substr(8, static_cast<std::size_t>(n)), who);
}

}  // namespace detail

// Reads and checks a whole file.
inline Safetensors read_safetensors(const std::string& path) {
  Safetensors file;
  file.path = path;
  file.bytes = detail::read_file(path, "load");
  const std::string who = detail::cat("load: \"", path, "\": ");
  const Json header = detail::safetensors_header(file, who);
  std::uint64_t n = 0;
  std::memcpy(&n, file.bytes.data(), 8);
  file.data_start = 8 + static_cast<std::size_t>(n);
  for (const JsonField& field : header.fields) {
    if (field.name != "__metadata__") {
      file.entries.push_back(detail::safetensors_entry(field.name, field.value, who));
      continue;
    }
    if (field.value.kind != Json::Kind::object) {
      detail::fail({who + "__metadata__ is not an object of strings"});
    }
    for (const JsonField& note : field.value.fields) {
      if (note.value.kind != Json::Kind::text) {
        detail::fail({who, "metadata \"", note.name, "\" is not a string"});
      }
      file.metadata.push_back({note.name, note.value.text});
    }
  }
  detail::check_cover(file, who);
  return file;
}

inline const SafetensorsEntry* Safetensors::find(const std::string& name) const {
  for (const SafetensorsEntry& entry : entries) {
    if (entry.name == name) {
      return &entry;
    }
  }
  return nullptr;
}

inline const std::string* Safetensors::find_metadata(const std::string& key) const {
  for (const SafetensorsNote& note : metadata) {
    if (note.name == key) {
      return &note.text;
    }
  }
  return nullptr;
}

inline Tensor Safetensors::read(const SafetensorsEntry& entry) const {
  Tensor out(entry.shape);
  const char* from = bytes.data() + data_start + entry.begin;
  if (entry.dtype == "F32") {
    std::memcpy(out.data(), from, static_cast<std::size_t>(entry.end - entry.begin));
    return out;
  }
  if (entry.dtype != "BF16" && entry.dtype != "F16" && entry.dtype != "F64") {
    detail::fail({"load: \"", path, "\": tensor \"", entry.name, "\" is ", entry.dtype,
                  "; F32, F16, BF16 or F64 is right"});
  }
  for (std::int64_t i = 0; i < out.count(); ++i) {
    if (entry.dtype == "F64") {
      double value = 0;
      std::memcpy(&value, from + 8 * i, 8);
      out.data()[i] = static_cast<float>(value);
      continue;
    }
    std::uint16_t code = 0;
    std::memcpy(&code, from + 2 * i, 2);
    out.data()[i] = entry.dtype == "F16" ? from_f16(code) : from_bf16(code);
  }
  return out;
}

namespace detail {

inline std::string safetensors_text(const List<Parameter>& tensors,
                                    const List<SafetensorsNote>& metadata) {
  std::string json = "{\"__metadata__\":{";
  for (const SafetensorsNote& note : metadata) {
    json += cat(json.back() == '{' ? "" : ",", "\"", json_escape(note.name), "\":\"",
                json_escape(note.text), "\"");
  }
  json += "}";
  std::int64_t at = 0;
  for (const Parameter& tensor : tensors) {
    const std::int64_t end = at + 4 * tensor.value.count();
    json += cat(",\"", json_escape(tensor.name),
                "\":{\"dtype\":\"F32\",\"shape\":", tensor.value.shape().text(),
                ",\"data_offsets\":[", at, ",", end, "]}");
    at = end;
  }
  json += "}";
  json.append((8 - json.size() % 8) % 8, ' ');  // so that the data begins at a multiple of 8
  return json;
}

}  // namespace detail

// Writes F32 tensors beside `path`, then renames: a save that fails leaves the old file whole.
inline void write_safetensors(const std::string& path, const List<Parameter>& tensors,
                              const List<SafetensorsNote>& metadata) {
  const std::string json = detail::safetensors_text(tensors, metadata);
  const std::uint64_t n = json.size();
  detail::SaveFile file("save", path);
  file.write(&n, 8);
  file.write(json.data(), json.size());
  for (const Parameter& tensor : tensors) {
    const Tensor value = contiguous(tensor.value);
    file.write(value.data(), 4 * static_cast<std::size_t>(value.count()));
  }
  file.finish();
}

}}  // namespace tinyscale

// >> tinyscale/model/checkpoint.hpp
// A transformer in a file: parameters under the names of Hugging Face's Llama files, config and
// tokenizer as JSON in the metadata. GPT-2 names are read too (wte, h.0.attn.c_attn, ...), with
// matrices [out, in] or, as in the original files, [in, out].

namespace tinyscale { inline namespace TINYSCALE_ABI {

namespace detail {

template <class T>
struct ConfigField {
  const char* first;
  T* second;
};

// The fields of a config by type, for writing and for reading.
inline std::array<ConfigField<std::int64_t>, 9> config_sizes(ModelConfig& c) {
  return {{{"layers", &c.layers},
           {"width", &c.width},
           {"heads", &c.heads},
           {"kv_heads", &c.kv_heads},
           {"head_size", &c.head_size},
           {"hidden", &c.hidden},
           {"vocabulary", &c.vocabulary},
           {"context", &c.context},
           {"expert_hidden", &c.expert_hidden}}};
}

inline std::array<ConfigField<bool>, 4> config_switches(ModelConfig& c) {
  return {
      {{"bias", &c.bias}, {"tied", &c.tied}, {"qkv_bias", &c.qkv_bias}, {"qk_norm", &c.qk_norm}}};
}

inline std::array<ConfigField<int>, 3> config_counts(ModelConfig& c) {
  return {{{"experts", &c.experts}, {"top_k", &c.top_k}, {"shared_experts", &c.shared_experts}}};
}

inline std::array<ConfigField<double>, 2> config_numbers(ModelConfig& c) {
  return {{{"rope_theta", &c.rope_theta}, {"norm_epsilon", &c.norm_epsilon}}};
}

// The words of the enums, in their order.
constexpr const char* norm_words[] = {"layer", "rms", nullptr};
constexpr const char* position_words[] = {"learned", "rotary", nullptr};
constexpr const char* activation_words[] = {"gelu", "gelu_tanh", "swiglu", "geglu", nullptr};
constexpr const char* tokenizer_words[] = {"characters", "bytes", nullptr};

inline std::string config_json(ModelConfig c) {
  std::string json = cat("{\"name\":\"", json_escape(c.name), "\"");
  for (const auto& field : config_sizes(c)) {
    json += cat(",\"", field.first, "\":", *field.second);
  }
  for (const auto& field : config_counts(c)) {
    json += cat(",\"", field.first, "\":", *field.second);
  }
  for (const auto& field : config_switches(c)) {
    json += cat(",\"", field.first, "\":", *field.second ? "true" : "false");
  }
  for (const auto& field : config_numbers(c)) {
    json += cat(",\"", field.first, "\":", exact_number(*field.second));
  }
  json += cat(",\"norm\":\"", norm_words[static_cast<int>(c.norm)], "\",\"position\":\"",
              position_words[static_cast<int>(c.position)], "\",\"activation\":\"",
              activation_words[static_cast<int>(c.activation)], "\"}");
  return json;
}

inline const Json& config_field(const Json& json, const char* key, Json::Kind kind,
                                const std::string& who) {
  const Json* field = json.find(key);
  if (field == nullptr || field->kind != kind) {
    fail({who, "its config lacks ", key});
  }
  return *field;
}

// The place of a field's word among the right ones.
inline int config_word(const Json& json, const char* key, const char* const* words,
                       const std::string& who) {
  const std::string& word = config_field(json, key, Json::Kind::text, who).text;
  std::string right;
  for (int i = 0; words[i] != nullptr; ++i) {
    if (word == words[i]) {
      return i;
    }
    right += cat(i > 0 ? ", " : "", words[i]);
  }
  fail({who, key, " is \"", word, "\"; right is one of ", right});
}

inline ModelConfig config_from_json(const std::string& text, const std::string& who) {
  const Json json = parse_named(text, who);
  ModelConfig c;
  c.name = config_field(json, "name", Json::Kind::text, who).text;
  for (const auto& field : config_sizes(c)) {
    const Json& value = config_field(json, field.first, Json::Kind::number, who);
    *field.second = static_cast<std::int64_t>(json_whole(value, who + "config"));
  }
  for (const auto& field : config_counts(c)) {
    const Json& value = config_field(json, field.first, Json::Kind::number, who);
    const std::uint64_t n = json_whole(value, who + "config");
    if (n > 1000000) {
      fail({who, "its config has ", n, " ", field.first, "; at most 1000000"});
    }
    *field.second = static_cast<int>(n);
  }
  for (const auto& field : config_switches(c)) {
    *field.second = config_field(json, field.first, Json::Kind::boolean, who).number != 0;
  }
  for (const auto& field : config_numbers(c)) {
    *field.second = config_field(json, field.first, Json::Kind::number, who).number;
  }
  c.norm = static_cast<Norm>(config_word(json, "norm", norm_words, who));
  c.position = static_cast<Position>(config_word(json, "position", position_words, who));
  c.activation = static_cast<Activation>(config_word(json, "activation", activation_words, who));
  try {
    c.validate();
  } catch (const Error& error) {
    detail::fail({who + error.what()});
  }
  return c;
}

inline std::string tokenizer_json(const Tokenizer& tokenizer) {
  std::string json = "{\"kind\":\"";
  json += tokenizer_words[static_cast<int>(tokenizer.kind())];
  json += "\",\"characters\":[";
  for (const std::string& character : tokenizer.characters()) {
    json += cat(json.back() == '[' ? "" : ",", "\"", json_escape(character), "\"");
  }
  return json + "]}";
}

inline Tokenizer tokenizer_from_json(const std::string& text, const std::string& who) {
  const Json json = parse_named(text, who);
  const int kind = config_word(json, "kind", tokenizer_words, who + "tokenizer ");
  if (static_cast<Tokenizer::Kind>(kind) == Tokenizer::Kind::bytes) {
    return Tokenizer();
  }
  std::vector<std::string> characters;
  for (const Json& item : config_field(json, "characters", Json::Kind::list, who).list) {
    if (item.text.empty() || character_size(item.text, 0) != item.text.size()) {
      fail({who, "its tokenizer has the character \"", item.text,
            "\"; exactly one in UTF-8 is right"});
    }
    if (!characters.empty() && item.text <= characters.back()) {
      detail::fail({who + "its tokenizer's characters are not in ascending order, each once"});
    }
    characters.push_back(item.text);
  }
  return Tokenizer(std::move(characters));
}

// A config from a file may lie: what it would allocate must be near what the file holds.
inline void check_config_fits(const ModelConfig& c, const Safetensors& file,
                              const std::string& who) {
  const auto number = [](std::int64_t n) { return static_cast<double>(n); };
  const double experts = c.experts > 0 ? c.experts + c.shared_experts : 1;
  const double hidden = number(c.experts > 0 ? c.expert_hidden : c.hidden);
  const double places = c.position == Position::learned ? number(c.context) : 0;
  const double layer = 2 * number(c.heads) * number(c.head_size) +
                       2 * number(c.kv_heads) * number(c.head_size) + 2 * experts * hidden;
  const double least = number(c.width) * (number(c.vocabulary) + places + number(c.layers) * layer);
  const double held = static_cast<double>(file.bytes.size() - file.data_start);
  if (least > held) {  // every number takes at least a byte
    fail({who, "its config describes at least ", least, " parameters in ", held, " bytes of data"});
  }
}

// Where a GPT-2 file keeps a parameter of ours; part 0, 1, 2 of three in c_attn, else -1.
struct Gpt2Place {
  std::string name;
  int part = -1;
};

inline Gpt2Place gpt2_place(std::string name) {
  static const struct {
    const char* ours;
    const char* theirs;
    int part;
  } table[] = {{"model.embed_tokens", "wte", -1},
               {"model.embed_positions", "wpe", -1},
               {"model.norm", "ln_f", -1},
               {"model.layers.", "h.", -1},
               {"input_layernorm", "ln_1", -1},
               {"post_attention_layernorm", "ln_2", -1},
               {"self_attn.o_proj", "attn.c_proj", -1},
               {"self_attn.q_proj", "attn.c_attn", 0},
               {"self_attn.k_proj", "attn.c_attn", 1},
               {"self_attn.v_proj", "attn.c_attn", 2},
               {"mlp.up_proj", "mlp.c_fc", -1},
               {"mlp.down_proj", "mlp.c_proj", -1}};
  Gpt2Place place;
  for (const auto& row : table) {
    const std::size_t at = name.find(row.ours);
    if (at != std::string::npos) {
      name.replace(at, std::string(row.ours).size(), row.theirs);
      place.part = row.part >= 0 ? row.part : place.part;
    }
  }
  place.name = std::move(name);
  return place;
}

// The parameter's numbers from the file, in our layout; empty when the file lacks them.
inline Tensor find_parameter(const Safetensors& file, const std::string& name, std::int64_t width,
                             NameTable& used) {
  const Gpt2Place place = gpt2_place(name);
  const SafetensorsEntry* entry = file.find(name);
  const bool own_name = entry != nullptr;
  for (const char* prefix : {"transformer.", ""}) {
    entry = entry != nullptr ? entry : file.find(prefix + place.name);
  }
  if (entry == nullptr) {
    return Tensor();
  }
  ++used[entry->name];
  Tensor value = file.read(*entry);
  if (own_name) {
    return value;
  }
  const bool in_layer = place.name.compare(0, 2, "h.") == 0;
  const SafetensorsEntry* qkv = nullptr;  // its shape tells which way round all matrices are
  for (const char* prefix : {"transformer.", ""}) {
    qkv = qkv != nullptr ? qkv : file.find(std::string(prefix) + "h.0.attn.c_attn.weight");
  }
  if (value.dims() == 2 && in_layer && qkv != nullptr && qkv->shape == Shape{width, 3 * width}) {
    value = transpose(value, 0, 1);
  }
  if (place.part >= 0) {
    const std::int64_t rows = value.dim(0) / 3;
    value = slice(value, 0, place.part * rows, (place.part + 1) * rows);
  }
  return value;
}

// Tensors of other programs' files that hold nothing to learn.
inline bool harmless(const std::string& name, const Transformer& model) {
  const auto ends = [&name](const std::string& tail) {
    return name.size() >= tail.size() &&
           name.compare(name.size() - tail.size(), tail.size(), tail) == 0;
  };
  return ends(".attn.bias") || ends(".attn.masked_bias") || ends(".rotary_emb.inv_freq") ||
         (model.config.tied && name == "lm_head.weight");
}

inline void read_parameters(Transformer& model, const Safetensors& file, const std::string& who) {
  NameTable used;
  for (Parameter& p : model.parameters) {
    const Tensor value = find_parameter(file, p.name, model.config.width, used);
    if (!value.defined()) {
      fail({who, "no tensor for the parameter ", p.name});
    }
    if (value.shape() != p.value.shape()) {
      fail({who, "the tensor for ", p.name, " is ", value.shape().text(), "; the model ",
            model.config.name, " has ", p.value.shape().text()});
    }
    std::memcpy(p.value.data(), contiguous(value).data(),
                static_cast<std::size_t>(value.count()) * 4);
  }
  for (const SafetensorsEntry& entry : file.entries) {
    if (!used.has(entry.name) && !harmless(entry.name, model)) {
      fail({who, "the tensor \"", entry.name, "\" has no place in the model ", model.config.name});
    }
  }
}

}  // namespace detail

inline void Transformer::save(const std::string& path) const {
  write_safetensors(path, parameters,
                    {{"format", "pt"},
                     {"tinyscale.config", detail::config_json(config)},
                     {"tinyscale.tokenizer", detail::tokenizer_json(tokenizer)}});
}

// Another program's weights into a model of the given shape.
inline Transformer load(const std::string& path, const ModelConfig& config) {
  const Safetensors file = read_safetensors(path);
  const std::string who = detail::cat("load: \"", path, "\": ");
  config.validate();
  detail::check_config_fits(config, file, who);
  Transformer model(config);
  detail::read_parameters(model, file, who);
  return model;
}

// A model that save() wrote, its tokenizer with it.
inline Transformer load(const std::string& path) {
  const Safetensors file = read_safetensors(path);
  const std::string who = detail::cat("load: \"", path, "\": ");
  const std::string* config = file.find_metadata("tinyscale.config");
  const std::string* tokenizer = file.find_metadata("tinyscale.tokenizer");
  if (config == nullptr || tokenizer == nullptr) {
    detail::fail({who + "it carries no config of this library; call load(path, config)"});
  }
  const ModelConfig shape = detail::config_from_json(*config, who);
  detail::check_config_fits(shape, file, who);
  Transformer model(shape);
  model.tokenizer = detail::tokenizer_from_json(*tokenizer, who);
  detail::read_parameters(model, file, who);
  return model;
}

}}  // namespace tinyscale

// >> tinyscale/model/data.hpp
// What a step learns from: windows of the text at random places. A sequence's place depends on the
// seed, the step and its number in the whole batch, so every layout of devices sees the same data.

namespace tinyscale { inline namespace TINYSCALE_ABI {

// ids [sequences, time]; the target of each token is the one after it.
struct Batch {
  std::int64_t sequences = 0;
  std::int64_t time = 0;
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> targets;

  void add(const std::vector<std::int32_t>& tokens, std::int64_t offset) {
    for (std::int64_t t = offset; t < offset + time; ++t) {
      ids.push_back(tokens[static_cast<std::size_t>(t)]);
      targets.push_back(tokens[static_cast<std::size_t>(t) + 1]);
    }
    ++sequences;
  }
};

namespace detail {

inline void check_length(const char* who, const std::vector<std::int32_t>& tokens,
                         std::int64_t time) {
  if (time < 1) {
    fail({who, ": a sequence of ", time, " tokens; at least 1 is right"});
  }
  if (static_cast<std::int64_t>(tokens.size()) <= time) {
    fail({who, ": the text has ", tokens.size(), " tokens here, a sequence ", time, "; more than ",
          time, " are right: take a longer text or a shorter context"});
  }
}

}  // namespace detail

// Where sequence `number` of the whole batch begins in step `step`.
inline std::int64_t batch_offset(const std::vector<std::int32_t>& tokens, std::int64_t time,
                                 std::uint64_t seed, std::int64_t step, std::int64_t number) {
  detail::check_length("batch_offset", tokens, time);
  const auto index = (static_cast<std::uint64_t>(step) << 32) + static_cast<std::uint64_t>(number);
  const auto places = tokens.size() - static_cast<std::size_t>(time);
  return static_cast<std::int64_t>(random_below(seed, index, places));
}

// Sequences first .. first + sequences - 1 of the whole batch of that step, in a batch whose memory
// is used again.
inline void fill_batch(Batch& batch, const std::vector<std::int32_t>& tokens,
                       std::int64_t sequences, std::int64_t time, std::uint64_t seed,
                       std::int64_t step, std::int64_t first = 0) {
  batch.ids.clear();
  batch.targets.clear();
  batch.sequences = 0;
  batch.time = time;
  for (std::int64_t i = 0; i < sequences; ++i) {
    batch.add(tokens, batch_offset(tokens, time, seed, step, first + i));
  }
}

inline Batch make_batch(const std::vector<std::int32_t>& tokens, std::int64_t sequences,
                        std::int64_t time, std::uint64_t seed, std::int64_t step,
                        std::int64_t first = 0) {
  Batch batch;
  fill_batch(batch, tokens, sequences, time, seed, step, first);
  return batch;
}

// Mean loss over consecutive windows of the context that do not overlap: all of them, or the first
// `windows` when that is above 0.
inline double evaluate(const Transformer& model, const std::vector<std::int32_t>& tokens,
                       std::int64_t windows = 0) {
  const std::int64_t time = model.config.context;
  detail::check_length("evaluate", tokens, time);
  const std::int64_t all = (static_cast<std::int64_t>(tokens.size()) - 1) / time;
  const std::int64_t count = windows > 0 ? std::min(windows, all) : all;
  const NoGrad no_grad;
  double total = 0;
  for (std::int64_t first = 0; first < count;) {
    Batch batch;
    batch.time = time;
    for (; first < count && batch.sequences < 16; ++first) {
      batch.add(tokens, first * time);
    }
    const Tensor loss = model.loss(batch.ids, batch.targets, batch.sequences, time);
    total += static_cast<double>(loss.item()) * static_cast<double>(batch.sequences);
  }
  return total / static_cast<double>(count);
}

}}  // namespace tinyscale

// >> tinyscale/model/generate.hpp
// Text from a model, token by token. With the cache a token costs one column of keys and values
// and 2 flops a parameter; a full context starts over from its last tokens at position 0.

namespace tinyscale { inline namespace TINYSCALE_ABI {

struct GenerateOptions {
  double temperature = 0.8;  // 0: always the most probable
  int top_k = 0;             // choose among so many; 0: all
  std::uint64_t seed = 1;
  bool cache = true;  // keep keys and values; false recomputes all tokens each time
};

namespace detail {

inline void check_generate(const GenerateOptions& options) {
  if (!is_finite(options.temperature) || options.temperature < 0 || options.top_k < 0) {
    fail({"generate: temperature is ", options.temperature, ", top_k ", options.top_k,
          "; finite numbers from 0 up are right"});
  }
}

inline void check_logits(const float* logits, std::int64_t known) {
  for (std::int64_t i = 0; i < known; ++i) {
    if (!is_finite(static_cast<double>(logits[i]))) {
      fail({"generate: the model's logit of token ", i, " is ", static_cast<double>(logits[i]),
            "; weights that give finite numbers are right"});
    }
  }
}

// The next token from `known` logits; `draw` in [0, 1) walks the probabilities in order of id.
inline std::int32_t sample(const float* logits, std::int64_t known, const GenerateOptions& options,
                           float draw) {
  check_logits(logits, known);
  const float* top = std::max_element(logits, logits + known);
  if (options.temperature == 0) {
    return static_cast<std::int32_t>(top - logits);
  }
  float floor = -INFINITY;
  if (options.top_k > 0 && options.top_k < known) {
    std::vector<double> falling;
    for (std::int64_t i = 0; i < known; ++i) {
      falling.push_back(-static_cast<double>(logits[i]));
    }
    floor = logits[stable_order(falling)[static_cast<std::size_t>(options.top_k - 1)]];
  }
  std::vector<double> weights(static_cast<std::size_t>(known), 0.0);
  double total = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (logits[i] >= floor) {
      weights[i] = std::exp(static_cast<double>(logits[i] - *top) / options.temperature);
      total += weights[i];
    }
  }
  double left = static_cast<double>(draw) * total;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    left -= weights[i];
    if (left < 0 && weights[i] > 0) {
      return static_cast<std::int32_t>(i);
    }
  }
  return static_cast<std::int32_t>(top - logits);
}

}  // namespace detail

// The prompt's ids and n more; only ids below `known` are chosen (0: the whole vocabulary).
inline std::vector<std::int32_t> generate_tokens(const Transformer& model,
                                                 std::vector<std::int32_t> ids, std::int64_t n,
                                                 const GenerateOptions& options = {},
                                                 std::int64_t known = 0) {
  if (ids.empty() || n < 0) {
    detail::fail({"generate: a prompt of ", ids.size(), " tokens and ", n,
                  " more; at least 1 and 0 are right"});
  }
  detail::check_generate(options);
  const NoGrad no_grad;
  const std::int64_t context = model.config.context;
  const std::int64_t vocabulary = model.config.vocabulary;
  KvCache cache;
  std::int64_t cached = 0;  // tokens whose keys and values are in the cache
  for (std::int64_t i = 0; i < n; ++i) {
    const auto length = static_cast<std::int64_t>(ids.size());
    if (!options.cache || cached >= context || cached == 0) {
      cache = KvCache();
      cached = 0;
    }
    const std::int64_t time = cached == 0 ? std::min(length, context) : 1;
    Hooks hooks;
    hooks.first_position = cached;
    hooks.cache = options.cache ? &cache : nullptr;
    const Tensor logits = model.forward({ids.end() - time, ids.end()}, 1, time, hooks);
    cached += time;
    const float* last = logits.data() + (time - 1) * vocabulary;
    const float draw = uniform01(options.seed, static_cast<std::uint64_t>(i));
    ids.push_back(
        detail::sample(last, known > 0 ? std::min(known, vocabulary) : vocabulary, options, draw));
  }
  return ids;
}

// The prompt and n more characters (or bytes), read with the tokenizer of the model.
inline std::string generate(const Transformer& model, const std::string& prompt, std::int64_t n,
                            const GenerateOptions& options = {}) {
  const Tokenizer& tokenizer = model.tokenizer;
  return tokenizer.decode(
      generate_tokens(model, tokenizer.encode(prompt), n, options, tokenizer.vocabulary()));
}

// The same with the tokenizer of the text.
inline std::string generate(const Transformer& model, const Text& text, const std::string& prompt,
                            std::int64_t n, const GenerateOptions& options = {}) {
  return text.tokenizer.decode(generate_tokens(model, text.tokenizer.encode(prompt), n, options,
                                               text.tokenizer.vocabulary()));
}

}}  // namespace tinyscale

// >> tinyscale/model/model_presets.hpp
// Published architectures by name, with parameter counts that equal the published checkpoints.
// Sources: the makers' papers and model configurations (GPT-2/3, PaLM, Llama, Mixtral, DeepSeek-V3,
// Gemma, Qwen, ViT, Stable Diffusion); training tokens as the makers state them.

namespace tinyscale { inline namespace TINYSCALE_ABI {

namespace detail {

// name, family, layers, width, heads, kv_heads, head_size, hidden, vocabulary, context, tied,
// experts, top_k, expert_hidden, shared_experts, training tokens (0: not published)
inline const List<const char*>& model_table() {
  static const List<const char*> rows = {
      "nano nano 4 128 4 4 32 512 256 64 1 0 0 0 0 0",
      "nano-llama llama 4 128 4 2 32 344 256 64 1 0 0 0 0 0",
      "gpt2-small gpt2 12 768 12 12 64 3072 50257 1024 1 0 0 0 0 0",
      "gpt2-medium gpt2 24 1024 16 16 64 4096 50257 1024 1 0 0 0 0 0",
      "gpt2-large gpt2 36 1280 20 20 64 5120 50257 1024 1 0 0 0 0 0",
      "gpt2-xl gpt2 48 1600 25 25 64 6400 50257 1024 1 0 0 0 0 0",
      "gpt-j-6b gptj 28 4096 16 16 256 16384 50400 2048 0 0 0 0 0 402e9",
      "gpt3-125m gpt3 12 768 12 12 64 3072 50257 2048 1 0 0 0 0 3e11",
      "gpt3-350m gpt3 24 1024 16 16 64 4096 50257 2048 1 0 0 0 0 3e11",
      "gpt3-760m gpt3 24 1536 16 16 96 6144 50257 2048 1 0 0 0 0 3e11",
      "gpt3-1.3b gpt3 24 2048 24 24 128 8192 50257 2048 1 0 0 0 0 3e11",
      "gpt3-2.7b gpt3 32 2560 32 32 80 10240 50257 2048 1 0 0 0 0 3e11",
      "gpt3-6.7b gpt3 32 4096 32 32 128 16384 50257 2048 1 0 0 0 0 3e11",
      "gpt3-13b gpt3 40 5140 40 40 128 20560 50257 2048 1 0 0 0 0 3e11",
      "gpt3-175b gpt3 96 12288 96 96 128 49152 50257 2048 1 0 0 0 0 3e11",
      "palm-8b palm 32 4096 16 1 256 16384 256000 2048 1 0 0 0 0 78e10",
      "palm-62b palm 64 8192 32 1 256 32768 256000 2048 1 0 0 0 0 78e10",
      "palm-540b palm 118 18432 48 1 256 73728 256000 2048 1 0 0 0 0 78e10",
      "llama2-7b llama 32 4096 32 32 128 11008 32000 4096 0 0 0 0 0 2e12",
      "llama2-13b llama 40 5120 40 40 128 13824 32000 4096 0 0 0 0 0 2e12",
      "llama2-70b llama 80 8192 64 8 128 28672 32000 4096 0 0 0 0 0 2e12",
      "llama3-8b llama 32 4096 32 8 128 14336 128256 8192 0 0 0 0 0 15e12",
      "llama3-70b llama 80 8192 64 8 128 28672 128256 8192 0 0 0 0 0 15e12",
      "llama3.1-405b llama 126 16384 128 8 128 53248 128256 131072 0 0 0 0 0 156e11",
      "mistral-7b llama 32 4096 32 8 128 14336 32000 8192 0 0 0 0 0 0",
      "llama3.2-1b llama 16 2048 32 8 64 8192 128256 131072 1 0 0 0 0 9e12",
      "llama3.2-3b llama 28 3072 24 8 128 8192 128256 131072 1 0 0 0 0 9e12",
      "tinyllama-1.1b llama 22 2048 32 4 64 5632 32000 2048 0 0 0 0 0 3e12",
      "smollm2-135m llama 30 576 9 3 64 1536 49152 8192 1 0 0 0 0 2e12",
      "stories260K llama 5 64 8 4 8 172 512 512 1 0 0 0 0 0",
      "stories15M llama 6 288 6 6 48 768 32000 256 1 0 0 0 0 0",
      "stories42M llama 8 512 8 8 64 1376 32000 1024 1 0 0 0 0 0",
      "stories110M llama 12 768 12 12 64 2048 32000 1024 1 0 0 0 0 0",
      "mixtral-8x7b mixtral 32 4096 32 8 128 0 32000 32768 0 8 2 14336 0 0",
      "mixtral-8x22b mixtral 56 6144 48 8 128 0 32768 65536 0 8 2 16384 0 0",
      "deepseek-v3 deepseek 61 7168 128 128 128 18432 129280 163840 0 256 8 2048 1 148e11",
      "gemma2-2b gemma2 26 2304 8 4 256 9216 256000 8192 1 0 0 0 0 2e12",
      "gemma2-9b gemma2 42 3584 16 8 256 14336 256000 8192 1 0 0 0 0 8e12",
      "gemma2-27b gemma2 46 4608 32 16 128 36864 256000 8192 1 0 0 0 0 13e12",
      "gemma3-1b gemma3 26 1152 4 1 256 6912 262144 32768 1 0 0 0 0 2e12",
      "gemma3-4b-text gemma3 34 2560 8 4 256 10240 262144 131072 1 0 0 0 0 4e12",
      "gemma3-12b-text gemma3 48 3840 16 8 256 15360 262144 131072 1 0 0 0 0 12e12",
      "gemma3-27b-text gemma3 62 5376 32 16 128 21504 262144 131072 1 0 0 0 0 14e12",
      "qwen2.5-0.5b qwen2 24 896 14 2 64 4864 151936 32768 1 0 0 0 0 18e12",
      "qwen2.5-1.5b qwen2 28 1536 12 2 128 8960 151936 32768 1 0 0 0 0 18e12",
      "qwen2.5-7b qwen2 28 3584 28 4 128 18944 152064 131072 0 0 0 0 0 18e12",
      "qwen2.5-14b qwen2 48 5120 40 8 128 13824 152064 131072 0 0 0 0 0 18e12",
      "qwen2.5-32b qwen2 64 5120 40 8 128 27648 152064 131072 0 0 0 0 0 18e12",
      "qwen2.5-72b qwen2 80 8192 64 8 128 29568 152064 131072 0 0 0 0 0 18e12",
      "qwen3-0.6b qwen3 28 1024 16 8 128 3072 151936 40960 1 0 0 0 0 36e12",
      "qwen3-1.7b qwen3 28 2048 16 8 128 6144 151936 40960 1 0 0 0 0 36e12",
      "qwen3-4b qwen3 36 2560 32 8 128 9728 151936 40960 1 0 0 0 0 36e12",
      "qwen3-8b qwen3 36 4096 32 8 128 12288 151936 40960 0 0 0 0 0 36e12",
      "qwen3-14b qwen3 40 5120 40 8 128 17408 151936 40960 0 0 0 0 0 36e12",
      "qwen3-32b qwen3 64 5120 64 8 128 25600 151936 40960 0 0 0 0 0 36e12",
      "qwen3-30b-a3b qwen3 48 2048 32 4 128 0 151936 40960 0 128 8 768 0 36e12",
      "qwen3-235b-a22b qwen3 94 4096 64 4 128 0 151936 40960 0 128 8 1536 0 36e12",
      "vit-b16 vit 12 768 12 12 64 3072 0 197 0 0 0 0 0 0",
      "vit-l16 vit 24 1024 16 16 64 4096 0 197 0 0 0 0 0 0",
      "vit-h14 vit 32 1280 16 16 80 5120 0 257 0 0 0 0 0 0",
      "sd2.1-unet diffusion 16 1280 20 20 64 5120 0 77 0 0 0 0 0 0",
  };
  return rows;
}

inline bool starts_with(const std::string& text, const char* start) {
  return text.rfind(start, 0) == 0;
}

// Adds what makes the whole equal a count that was published for this one architecture.
inline void count_as(ModelConfig& c, std::int64_t all, std::int64_t active) {
  const std::int64_t other_active = active - c.active_parameters();
  c.other_parameters = all - c.parameters();
  c.other_active = other_active;
}

inline void family_llama(ModelConfig& c, const std::string& family) {
  c.norm = Norm::rms;
  c.position = Position::rotary;
  c.activation = Activation::swiglu;
  if (starts_with(c.name, "llama3")) {
    c.rope_theta = 500000.0;
  } else if (starts_with(c.name, "smollm2")) {
    c.rope_theta = 100000.0;
  } else if (family == "mixtral" || starts_with(family, "qwen")) {
    c.rope_theta = 1e6;
  }
  c.qkv_bias = family == "qwen2";
  c.qk_norm = family == "qwen3" || family == "gemma3";
  c.norm_epsilon = starts_with(family, "qwen") ? 1e-6 : 1e-5;
  if (family == "deepseek") {
    c.kv_width = 576;  // 512 of the compressed key and value, 64 of the rotary key
    c.beyond = "latent attention, dense first layers";
    count_as(c, 671026419200, 37552297472);
  }
  if (starts_with(family, "gemma")) {
    c.activation = Activation::geglu;
    c.norm_epsilon = 1e-6;
    c.rope_theta = family == "gemma3" ? 1e6 : 1e4;
    c.block_norms = 4;
    c.beyond = "norms after each sublayer, sliding windows";
  }
}

inline void family_gpt(ModelConfig& c, const std::string& family) {
  c.bias = family != "nano";
  c.activation = family == "nano" ? Activation::gelu : Activation::gelu_tanh;
  if (c.name == "gpt3-1.3b" || c.name == "gpt3-13b") {
    const std::int64_t all = c.name == "gpt3-13b" ? 12952938780 : 1315723264;
    count_as(c, all, all);
    c.beyond = "a published head count whose product with the head size is not the width";
  }
}

inline void family_other(ModelConfig& c, const std::string& family) {
  c.activation = Activation::gelu;
  if (family == "gptj") {
    c.activation = Activation::gelu_tanh;
    c.position = Position::rotary;
    c.block_norms = 1;  // its norms, feed-forward and output matrix alone have biases
    c.other_parameters = c.layers * (2 * c.width + c.hidden) + c.width + c.vocabulary;
    c.beyond = "attention and feed-forward side by side";
  } else if (family == "palm") {
    c.activation = Activation::swiglu;
    c.position = Position::rotary;
    c.block_norms = 1;
    c.beyond = "attention and feed-forward side by side";
  } else if (family == "vit") {
    const std::int64_t patch = c.name == "vit-h14" ? 14 : 16;
    c.bias = true;  // patch embedding, class token, head of 1000 classes
    c.other_parameters = (3 * patch * patch + 1 + 1) * c.width + 1000 * (c.width + 1);
    c.beyond = "patches of an image in place of tokens";
  } else if (family == "diffusion") {
    c.beyond = "convolutions: a U-Net, of which only the count is right here";
    count_as(c, 865910724, 865910724);
  }
}

inline ModelConfig parse_preset(const char* row) {
  char name[32];
  char family[16];
  long long n[13];
  double tokens = 0;
  const int read = std::sscanf(
      row, "%31s %15s %lld %lld %lld %lld %lld %lld %lld %lld %lld %lld %lld %lld %lld %lf", name,
      family, n, n + 1, n + 2, n + 3, n + 4, n + 5, n + 6, n + 7, n + 8, n + 9, n + 10, n + 11,
      n + 12, &tokens);
  if (read != 16) {
    fail({"config: the preset row \"", row, "\" has ", read, " fields; 16 is right"});
  }
  ModelConfig c;
  c.name = name;
  c.layers = n[0], c.width = n[1], c.heads = n[2], c.kv_heads = n[3], c.head_size = n[4];
  c.hidden = n[5], c.vocabulary = n[6], c.context = n[7], c.tied = n[8] != 0;
  c.experts = static_cast<int>(n[9]), c.top_k = static_cast<int>(n[10]);
  c.expert_hidden = n[11], c.shared_experts = static_cast<int>(n[12]);
  c.training_tokens = tokens;
  const std::string kind = family;
  if (kind == "nano" || kind == "gpt2" || kind == "gpt3") {
    family_gpt(c, kind);
  } else if (kind == "gptj" || kind == "palm" || kind == "vit" || kind == "diffusion") {
    family_other(c, kind);
  } else {
    family_llama(c, kind);
  }
  return c;
}

// Lower-case letters, digits and points alone, so that "Llama-3-70B" finds "llama3-70b".
inline std::string plain_name(const std::string& name) {
  std::string plain;
  for (const char c : name) {
    const auto u = static_cast<unsigned char>(c);
    if (std::isalnum(u) || c == '.') {
      plain += static_cast<char>(std::tolower(u));
    }
  }
  return plain;
}

inline std::string model_alias(const std::string& plain) {
  static const char* const aliases[][2] = {{"gpt2", "gpt2-small"},
                                           {"gpt3", "gpt3-175b"},
                                           {"gptj", "gpt-j-6b"},
                                           {"palm", "palm-540b"},
                                           {"llama3405b", "llama3.1-405b"},
                                           {"mixtral", "mixtral-8x7b"},
                                           {"deepseek", "deepseek-v3"},
                                           {"gemma34b", "gemma3-4b-text"},
                                           {"gemma312b", "gemma3-12b-text"},
                                           {"gemma327b", "gemma3-27b-text"},
                                           {"qwen330b", "qwen3-30b-a3b"},
                                           {"qwen3235b", "qwen3-235b-a22b"},
                                           {"stablediffusion", "sd2.1-unet"}};
  for (const auto& alias : aliases) {
    if (plain == alias[0]) {
      return alias[1];
    }
  }
  return "";
}

}  // namespace detail

// The names that config() knows, in the order of the table.
inline std::vector<std::string> configs() {
  std::vector<std::string> names;
  for (const char* row : detail::model_table()) {
    const std::string text = row;
    names.push_back(text.substr(0, text.find(' ')));
  }
  return names;
}

// The preset of that name; case and punctuation do not matter. An unknown name is an Error.
inline ModelConfig config(const std::string& name) {
  const std::string plain = detail::plain_name(name);
  const std::string alias = detail::model_alias(plain);
  const std::string wanted = alias.empty() ? plain : detail::plain_name(alias);
  std::string alike;
  std::string all;
  const std::vector<std::string> names = configs();
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string known = detail::plain_name(names[i]);
    if (known == wanted) {
      return detail::parse_preset(detail::model_table()[i]);
    }
    if (plain.size() >= 4 && known.compare(0, 4, plain, 0, 4) == 0) {
      alike += (alike.empty() ? "" : ", ") + names[i];
    }
    all += (all.empty() ? "" : ", ") + names[i];
  }
  detail::fail({"config: no model is named \"", name, "\"; ",
                alike.empty() ? "known: " + all : "near: " + alike});
}

}}  // namespace tinyscale

// >> tinyscale/model/optimizer.hpp
// AdamW with decoupled weight decay on matrices alone (arXiv 1711.05101), the global gradient norm,
// and the warm-up and cosine schedule of the learning rate.

namespace tinyscale { inline namespace TINYSCALE_ABI {

struct AdamWOptions {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;  // on tensors of two or more dimensions
};

// Holds two moments a number: 8 bytes beside the 4 of the parameter and the 4 of its gradient.
class AdamW {
 public:
  explicit AdamW(std::vector<Tensor> tensors, AdamWOptions start = AdamWOptions())
      : options(start), tensors_(std::move(tensors)) {
    const MemoryScope scope(MemoryKind::optimizer);
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (!tensors_[i].requires_grad()) {
        detail::fail({"AdamW: tensor ", i, " of ", tensors_.size(),
                      " has no gradient; make it with parameter()"});
      }
      moments_.push_back(zeros(tensors_[i].shape()));
      squares_.push_back(zeros(tensors_[i].shape()));
    }
  }

  AdamWOptions options;  // may change between steps (a schedule sets learning_rate)

  // Updates every tensor that has a gradient; each gradient is first multiplied by grad_scale.
  void step(double grad_scale = 1.0) {
    ++steps_;
    kernels::AdamWStep s;
    s.learning_rate = static_cast<float>(options.learning_rate);
    s.beta1 = static_cast<float>(options.beta1);
    s.beta2 = static_cast<float>(options.beta2);
    s.epsilon = static_cast<float>(options.epsilon);
    s.grad_scale = static_cast<float>(grad_scale);
    s.step = steps_;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const Tensor grad = tensors_[i].grad();
      if (grad.defined()) {
        s.weight_decay = tensors_[i].dims() >= 2 ? static_cast<float>(options.weight_decay) : 0.0f;
        kernels::adamw(grad.count(), s, grad.data(), tensors_[i].data(), moments_[i].data(),
                       squares_[i].data());
      }
    }
  }

  void zero_grad() {
    for (const Tensor& tensor : tensors_) {
      tensor.zero_grad();
    }
  }

  const std::vector<Tensor>& tensors() const { return tensors_; }
  std::int64_t steps() const { return steps_; }

 private:
  std::vector<Tensor> tensors_;
  std::vector<Tensor> moments_;
  std::vector<Tensor> squares_;
  std::int64_t steps_ = 0;
};

// Sum of the squares of all gradients; a sharded model adds these over devices.
inline double grad_sum_of_squares(const std::vector<Tensor>& tensors) {
  double total = 0;
  for (const Tensor& tensor : tensors) {
    const Tensor grad = tensor.grad();
    total += grad.defined() ? kernels::sum_of_squares(grad.count(), grad.data()) : 0.0;
  }
  return total;
}

// What gradients of that norm are multiplied by so that it is at most max; max 0: no limit.
inline double clip_scale(double norm, double max) {
  return max > 0 ? std::min(1.0, max / (norm + 1e-6)) : 1.0;
}

// Shrinks all gradients together when their norm is above max; returns the norm before.
inline double clip_grad_norm(const std::vector<Tensor>& tensors, double max) {
  const double norm = std::sqrt(grad_sum_of_squares(tensors));
  const auto scale = static_cast<float>(clip_scale(norm, max));
  if (scale < 1.0f) {
    for (const Tensor& tensor : tensors) {
      Tensor grad = tensor.grad();
      for (std::int64_t i = 0; i < grad.count(); ++i) {
        grad.data()[i] *= scale;
      }
    }
  }
  return norm;
}

// Rises as (step + 1) / (warmup + 1) to max, then falls as a cosine to min at `total`.
inline double cosine_schedule(std::int64_t step, std::int64_t warmup, std::int64_t total,
                              double max, double min) {
  if (step < warmup) {
    return max * static_cast<double>(step + 1) / static_cast<double>(warmup + 1);
  }
  if (step >= total) {
    return min;
  }
  const double done = static_cast<double>(step - warmup) / static_cast<double>(total - warmup);
  return min + 0.5 * (1.0 + std::cos(3.14159265358979323846 * done)) * (max - min);
}

}}  // namespace tinyscale

// >> tinyscale/model/train_step.hpp
// One step of training: forward, backward, clip, update. 6 flops a parameter and token.

namespace tinyscale { inline namespace TINYSCALE_ABI {

// How to train, wherever it runs.
struct StepOptions {
  std::int64_t steps = 500;
  std::int64_t batch = 12;  // sequences a step, over all devices
  double learning_rate = 1e-3;
  double min_learning_rate = 1e-4;
  std::int64_t warmup = 100;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0.1;
  double clip = 1.0;     // of the global gradient norm; 0: none
  double dropout = 0.0;  // share of numbers set to 0 after the embedding and each part of a block
  DType format = DType::f32;       // of matmul operands; bf16: sums, weights and moments stay f32
  std::int64_t eval_every = 250;   // steps; 0: only at the end
  std::uint64_t seed = 1337;       // of data order and dropout
  std::ostream* out = &std::cout;  // progress; null is silent
};

struct StepResult {
  double loss = 0;       // before the update
  double grad_norm = 0;  // before clipping
};

inline AdamWOptions adamw_options(const StepOptions& options) {
  AdamWOptions adamw;
  adamw.learning_rate = options.learning_rate;
  adamw.beta1 = options.beta1;
  adamw.beta2 = options.beta2;
  adamw.weight_decay = options.weight_decay;
  return adamw;
}

namespace detail {

// Throws the first option with which no training can go well.
inline void check_options(const char* who, const StepOptions& options) {
  if (options.steps < 1 || options.batch < 1) {
    fail({who, ": ", options.steps, " steps of ", options.batch,
          " sequences; both must be at least 1"});
  }
  if (options.format != DType::f32 && options.format != DType::bf16) {
    fail({who, ": format is ", name_of(options.format), "; f32 or bf16 is right"});
  }
  const double most = 1e30;
  const struct {
    const char* option;
    double value, below;
  } ranges[] = {{"learning_rate", options.learning_rate, most},
                {"min_learning_rate", options.min_learning_rate, most},
                {"warmup", static_cast<double>(options.warmup), most},
                {"beta1", options.beta1, 1},
                {"beta2", options.beta2, 1},
                {"weight_decay", options.weight_decay, most},
                {"clip", options.clip, most},
                {"dropout", options.dropout, 1},
                {"eval_every", static_cast<double>(options.eval_every), most}};
  for (const auto& range : ranges) {
    if (!is_finite(range.value) || range.value < 0 || range.value >= range.below) {
      fail({who, ": ", range.option, " is ", range.value, "; a number from 0 to below ",
            range.below, " is right"});
    }
  }
}

inline void check_finite(const char* who, const char* what, double value, std::int64_t step,
                         const StepOptions& options) {
  if (!is_finite(value)) {
    const char* const is = is_nan(value) ? " is not a number" : " is infinite";
    fail({who, ": the ", what, is, " in step ", step, "; try a smaller learning_rate than ",
          options.learning_rate, ", a longer warmup than ", options.warmup,
          " steps or a smaller clip than ", options.clip});
  }
}

}  // namespace detail

// Learns from the batch in step `step`, counted from 0; throws when the loss is no longer a number.
inline StepResult train_step(const Transformer& model, AdamW& optimizer, const Batch& batch,
                             const StepOptions& options, std::int64_t step,
                             const Hooks& hooks = Hooks()) {
  detail::check_options("train_step", options);
  Hooks own = hooks;
  own.dropout = options.dropout;
  own.dropout_seed = detail::parameter_seed(options.seed, static_cast<std::uint64_t>(step));
  StepResult result;
  {
    const MatmulFormat format(options.format);
    const Tensor loss = model.loss(batch.ids, batch.targets, batch.sequences, batch.time, own);
    result.loss = static_cast<double>(loss.item());
    detail::check_finite("train_step", "loss", result.loss, step, options);
    loss.backward();
  }
  if (hooks.reduce) {
    hooks.reduce(optimizer.tensors(), result.loss);
  }
  result.grad_norm = std::sqrt(grad_sum_of_squares(optimizer.tensors()));
  detail::check_finite("train_step", "gradient norm", result.grad_norm, step, options);
  optimizer.options.learning_rate = cosine_schedule(
      step, options.warmup, options.steps, options.learning_rate, options.min_learning_rate);
  optimizer.step(clip_scale(result.grad_norm, options.clip));
  optimizer.zero_grad();
  return result;
}

}}  // namespace tinyscale

// >> tinyscale/model/training_memory.hpp
// What training holds on one device, in float32 and without recomputation: 16 bytes a parameter
// (value, gradient, two Adam moments) and what each op keeps for its backward pass.
// The closed form of this library's own layer; the memory meter is its other side.

namespace tinyscale { inline namespace TINYSCALE_ABI {

struct TrainingMemory {  // bytes
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;
  double activations = 0;  // at the peak: the end of the forward pass plus the logits' gradient

  double total() const { return parameters + gradients + optimizer + activations; }
};

namespace detail {

// Floats kept for each token of one dense layer. Norm: its input and its output; query, key and
// value; attention's output and its log-sum-exp; the hidden layer before and after the activation.
inline double layer_activations(const ModelConfig& c) {
  const auto width = static_cast<double>(c.width);
  const auto hidden = static_cast<double>(c.hidden);
  const auto heads = static_cast<double>(c.heads * c.head_size);
  const auto kv = static_cast<double>(c.kv_heads * c.head_size);
  const double statistics = c.norm == Norm::layer ? 4 : 2;  // mean and 1/deviation of two norms
  const bool gated = c.activation == Activation::swiglu || c.activation == Activation::geglu;
  const double feed_forward = gated ? 4 * hidden : 2 * hidden;  // gate, silu(gate), up, product
  return 4 * width + 2 * heads + 2 * kv + static_cast<double>(c.heads) + statistics + feed_forward;
}

}  // namespace detail

// Peak bytes of a step on `batch` sequences of `time` tokens. Dense models, no dropout.
inline TrainingMemory training_memory(const ModelConfig& c, std::int64_t batch, std::int64_t time) {
  const auto tokens = static_cast<double>(batch * time);
  const auto parameters = static_cast<double>(c.parameters());
  const auto width = static_cast<double>(c.width);
  const auto vocabulary = static_cast<double>(c.vocabulary);
  TrainingMemory m;
  m.parameters = 4 * parameters;
  m.gradients = 4 * parameters;
  m.optimizer = 8 * parameters;
  const double last_norm = 2 * width + (c.norm == Norm::layer ? 2 : 1);
  const double loss = 2 * vocabulary + 1;  // the logits, their gradient, a log-sum-exp
  m.activations = 4 * tokens *
                  (static_cast<double>(c.layers) * detail::layer_activations(c) + last_norm + loss);
  return m;
}

}}  // namespace tinyscale

// >> tinyscale/parallel/layout.hpp
// A layout: how one training step is divided over devices.
// devices = data * tensor * pipeline * context; expert divides data * context.

namespace tinyscale { inline namespace TINYSCALE_ABI {

// What ZeRO (arXiv 1910.02054) shards over the data axis, each stage with those before it.
enum class Zero { none, optimizer, gradients, parameters };

struct Layout {
  std::int64_t data = 1;      // replicas, each with its part of the batch
  std::int64_t tensor = 1;    // pieces of every matrix
  std::int64_t pipeline = 1;  // groups of layers
  std::int64_t context = 1;   // pieces of every sequence
  std::int64_t expert = 1;    // groups of experts
  std::int64_t microbatches = 1;
  Zero zero = Zero::none;

  std::int64_t devices() const { return data * tensor * pipeline * context; }
  // "data 4, tensor 1, pipeline 1, context 1", then what else is not as it is by default.
  std::string text() const {
    static const char* const shards[] = {"", ", ZeRO: optimizer", ", ZeRO: gradients",
                                         ", ZeRO: parameters"};
    std::string out = detail::cat("data ", data, ", tensor ", tensor, ", pipeline ", pipeline,
                                  ", context ", context);
    out += expert != 1 ? detail::cat(", expert ", expert) : "";
    out += microbatches != 1 ? detail::cat(", microbatches ", microbatches) : "";
    return out + shards[static_cast<int>(zero)];
  }
};

namespace detail {

inline void check_layout_counts(const char* who, const Layout& layout) {
  const std::int64_t most = 2147483647;  // so that products fit
  std::int64_t devices = 1;
  bool good = layout.expert >= 1 && layout.microbatches >= 1;
  for (const std::int64_t n : {layout.data, layout.tensor, layout.pipeline, layout.context}) {
    good = good && n >= 1 && n <= most / devices;
    devices *= good ? n : 1;
  }
  if (!good) {
    fail({who, ": layout is ", layout.text(), "; each must be at least 1, and the devices at most ",
          most});
  }
}

// Throws what is wrong with training `batch` sequences by `layout` on `chips` chips.
inline void check_layout(const Layout& layout, std::int64_t chips, std::int64_t batch) {
  check_layout_counts("train", layout);
  if (layout.tensor > 1 || layout.pipeline > 1 || layout.context > 1 || layout.expert > 1 ||
      layout.microbatches > 1 || layout.zero != Zero::none) {
    fail({"train: layout is ", layout.text(),
          "; this version runs data parallelism alone: set tensor, pipeline, context, "
          "expert and microbatches to 1 and zero to Zero::none"});
  }
  if (layout.devices() != chips) {
    fail({"train: layout is ", layout.text(), " = ", layout.devices(), " devices, the machine has ",
          chips, " chips; they must be equal"});
  }
  if (batch % layout.data != 0) {
    fail({"train: a batch of ", batch, " sequences does not divide over ", layout.data,
          " data-parallel devices; right is a multiple of ", layout.data});
  }
}

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/parallel/train_report.hpp
// What a training run says afterwards: losses, speed, memory, and on a mesh what every device sent,
// each beside its prediction. A value is a formula, simulated (on the declared machine) or
// measured (on this laptop).

namespace tinyscale { inline namespace TINYSCALE_ABI {

struct Validation {
  std::int64_t step = 0;
  double loss = 0;  // mean over the whole validation split, nats a token
};

struct TrainReport {
  std::string model, text, machine;
  std::int64_t devices = 1;
  DType format = DType::f32;       // of matmul operands
  std::vector<double> losses;      // of the global batch, before each step
  std::vector<double> grad_norms;  // before clipping
  List<Validation> validation;
  double seconds = 0;            // in training steps, measured; evaluation left out
  double tokens_per_second = 0;  // measured
  double flops_per_token = 0;    // 6 N + attention, as model_flops_per_token counts them
  double mfu = 0;                // flops_per_token * tokens_per_second / laptop().peak(format)
  Comparison counted;            // bytes, steps and simulated time of a step beside their formulas
  Comparison memory;             // peak bytes by the meter beside the closed form
  Shared<const MeshRun> last_step;  // on a mesh

  double final_loss() const { return losses.empty() ? std::nan("") : losses.back(); }
  double final_validation() const {
    return validation.empty() ? std::nan("") : validation.back().loss;
  }

  Table table() const {
    Table t;
    t.title = detail::cat("training ", model, " on ", text, ", ", devices, " device",
                          devices == 1 ? "" : "s", machine.empty() ? "" : " of ", machine);
    t.columns = {"what", "value", "kind"};
    if (!losses.empty()) {
      t.add({"first loss", format_fixed(losses.front(), 4), "measured"});
      t.add({"last loss", format_fixed(losses.back(), 4), "measured"});
    }
    for (const Validation& v : validation) {
      t.add({detail::cat("validation loss, step ", v.step), format_fixed(v.loss, 4), "measured"});
    }
    t.add({"time in steps", format_seconds(seconds), "measured"});
    t.add({"tokens/s", format_count(std::round(tokens_per_second)), "measured"});
    t.add({detail::cat("MFU of this laptop (6 N + attention over ", name_of(format),
                       " peak, wall clock)"),
           format_percent(mfu), "measured"});
    return t;
  }
  operator Table() const { return table(); }
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
};

inline std::ostream& operator<<(std::ostream& out, const TrainReport& report) {
  out << report.table();
  if (!report.memory.rows.empty()) {
    out << report.memory;
  }
  if (!report.counted.rows.empty()) {
    out << report.counted;
  }
  return out;
}

}}  // namespace tinyscale

// >> tinyscale/parallel/train.hpp
// ts::train for one device and many: the same loop, the same data order, the same report.
// On a mesh every device holds the whole model (data parallelism): each step it learns from its
// part of the batch, and one all_reduce of all gradients and the loss makes the steps equal.

namespace tinyscale { inline namespace TINYSCALE_ABI {

struct TrainOptions : StepOptions {
  Machine machine;  // empty: one device, this laptop
  Layout layout;
};

// FLOPs that training takes for one token: 6 a parameter that multiplies (the embedding lookup and
// learned positions do not) and 12 L H K times the mean of T/2 visible keys (scaling book, ch. 4,
// causal), with the output matrix counted whether tied or not.
inline double model_flops_per_token(const ModelConfig& c, std::int64_t time) {
  const double lookups =
      static_cast<double>(c.vocabulary * c.width) * (c.tied ? 0 : 1) +
      static_cast<double>(c.position == Position::learned ? c.context * c.width : 0);
  const double multiplied = static_cast<double>(c.active_parameters()) - lookups;
  const double attention = 12.0 * static_cast<double>(c.layers * c.heads * c.head_size) *
                           (static_cast<double>(time) + 1) / 2;
  return 6.0 * multiplied + attention;
}

namespace detail {

// A device's copy of the model, equal number for number, and its optimizer.
struct Replica {
  Replica(const Transformer& source, const StepOptions& options)
      : model(source.config, 0),
        optimizer(copy_parameters(source, model), adamw_options(options)) {}

  static std::vector<Tensor> copy_parameters(const Transformer& from, Transformer& to) {
    const std::vector<Tensor> source = from.tensors();
    std::vector<Tensor> target = to.tensors();
    for (std::size_t i = 0; i < source.size(); ++i) {
      std::memcpy(target[i].data(), source[i].data(),
                  static_cast<std::size_t>(source[i].count()) * sizeof(float));
    }
    return target;
  }

  Transformer model;
  AdamW optimizer;
};

// All gradients and the loss in one buffer, so that a step has a single all_reduce.
inline Tensor pack_gradients(const std::vector<Tensor>& tensors, double loss) {
  std::int64_t count = 1;
  for (const Tensor& tensor : tensors) {
    count += tensor.count();
  }
  const MemoryScope scope(MemoryKind::buffer);
  Tensor packed = zeros({count});
  float* to = packed.data();
  for (const Tensor& tensor : tensors) {
    const Tensor grad = tensor.grad();
    if (grad.defined()) {
      std::memcpy(to, grad.data(), static_cast<std::size_t>(grad.count()) * sizeof(float));
    }
    to += tensor.count();
  }
  *to = static_cast<float>(loss);
  return packed;
}

inline void unpack_gradients(const Tensor& packed, const std::vector<Tensor>& tensors,
                             double& loss) {
  const float* from = packed.data();
  for (const Tensor& tensor : tensors) {
    std::memcpy(grad_buffer(tensor.slot()), from,
                static_cast<std::size_t>(tensor.count()) * sizeof(float));
    from += tensor.count();
  }
  loss = static_cast<double>(*from);
}

// One step of data parallelism, as one device sees it.
inline StepResult data_parallel_step(Device& device, Replica& replica,
                                     const std::vector<std::int32_t>& tokens,
                                     const StepOptions& options, std::int64_t step) {
  const std::int64_t share = options.batch / device.size("data");
  const std::int64_t first = share * device.index("data");
  Hooks hooks;
  hooks.first_sequence = first;
  hooks.reduce = [&device](const std::vector<Tensor>& tensors, double& loss) {
    const Tensor sum = device.all_reduce(pack_gradients(tensors, loss), "data", Reduce::mean);
    unpack_gradients(sum, tensors, loss);
  };
  const Batch batch =
      make_batch(tokens, share, replica.model.config.context, options.seed, step, first);
  return train_step(replica.model, replica.optimizer, batch, options, step, hooks);
}

// What runs one step and which model it trained.
class Trainer {
 public:
  Trainer(Transformer& model, const Text& text, const TrainOptions& options)
      : model_(model), options_(options), tokens_(text.train()) {
    const std::int64_t devices = options.layout.devices();
    if (devices == 1) {
      optimizer_.reset(new AdamW(model.tensors(), adamw_options(options)));
      return;
    }
    mesh_.reset(new Mesh(options.machine, {{"data", devices}}));
    for (std::int64_t i = 0; i < devices; ++i) {
      replicas_.push_back(Shared<Replica>(new Replica(model, options)));
    }
  }

  StepResult step(std::int64_t number) {
    if (!mesh_) {
      fill_batch(batch_, tokens_, options_.batch, model_.config.context, options_.seed, number);
      return train_step(model_, *optimizer_, batch_, options_, number);
    }
    List<StepResult> results(replicas_.size());
    const MeshRun run = mesh_->run([&](Device& device) {
      const auto rank = static_cast<std::size_t>(device.rank());
      results[rank] = data_parallel_step(device, *replicas_[rank], tokens_, options_, number);
    });
    last_.reset(new MeshRun(run));
    return results[0];
  }

  const Transformer& model() const { return mesh_ ? replicas_[0]->model : model_; }
  const Shared<const MeshRun>& last_run() const { return last_; }
  AxisPlacement placement() const { return mesh_->placement().axes[0]; }
  void finish() {
    if (mesh_) {
      Replica::copy_parameters(replicas_[0]->model, model_);
    }
  }

 private:
  Transformer& model_;
  const TrainOptions& options_;
  std::vector<std::int32_t> tokens_;
  Batch batch_;
  Shared<AdamW> optimizer_;
  Shared<Mesh> mesh_;
  List<Shared<Replica>> replicas_;
  Shared<const MeshRun> last_;
};

inline void print_progress(const TrainOptions& options, std::int64_t step, double loss,
                           const TrainReport& report) {
  if (options.out == nullptr) {
    return;
  }
  const double done = static_cast<double>(step + 1);
  const double left = report.seconds / done * (static_cast<double>(options.steps) - done);
  *options.out << cat("step ", step + 1, "/", options.steps, "  loss ", format_fixed(loss, 4), "  ",
                      format_count(std::round(report.tokens_per_second)), " tokens/s  MFU ",
                      format_percent(report.mfu), "  ", format_seconds(left), " left")
               << std::endl;
}

inline void update_speed(TrainReport& report, const TrainOptions& options, std::int64_t time,
                         double peak) {
  const auto steps = static_cast<double>(report.losses.size());
  const double tokens = steps * static_cast<double>(options.batch * time);
  report.tokens_per_second = report.seconds > 0 ? tokens / report.seconds : 0;
  report.mfu = peak > 0 ? report.tokens_per_second * report.flops_per_token / peak : 0;
}

inline void validate(const Trainer& trainer, const Text& text, const TrainOptions& options,
                     std::int64_t step, TrainReport& report) {
  const double loss = evaluate(trainer.model(), text.validation());
  check_finite("train", "validation loss", loss, step - 1, options);
  report.validation.push_back({step, loss});
  if (options.out != nullptr) {
    *options.out << cat("step ", step, "  validation loss ", format_fixed(loss, 4)) << std::endl;
  }
}

// The last update shows in no training loss, and a short text has no validation.
inline void check_weights(const Transformer& model, const TrainOptions& options) {
  double total = 0;
  for (const Parameter& p : model.parameters) {
    total += kernels::sum_of_squares(p.value.count(), p.value.data());
  }
  check_finite("train", "norm of the weights", std::sqrt(total), options.steps - 1, options);
}

inline void check_training(const Transformer& model, const Text& text,
                           const TrainOptions& options) {
  check_options("train", options);
  if (text.tokenizer.vocabulary() > model.config.vocabulary) {
    fail({"train: the text has ", text.tokenizer.vocabulary(),
          " distinct tokens, the model's vocabulary is ", model.config.vocabulary,
          "; raise config.vocabulary"});
  }
  check_layout(options.layout, options.machine.dims.count(), options.batch);
  check_length("train", text.train(), model.config.context);
}

// Peak bytes that training added, by the meter, beside the closed form. `level` is what the meter
// held before, the model left out.
inline Comparison memory_rows(const ModelConfig& config, const TrainOptions& options,
                              const MemoryMeter& meter, double level) {
  const TrainingMemory formula = training_memory(config, options.batch, config.context);
  Comparison rows;
  rows.title = "peak memory of training";
  rows.add("parameters + gradients + optimizer + activations", "B", formula.total(),
           meter.peak_total() - level);
  return rows;
}

// Bytes, steps and simulated time of a step's all_reduce beside their closed forms.
inline Comparison mesh_rows(const Transformer& model, const AxisPlacement& axis,
                            const MeshRun& run) {
  CollectiveStage stage;
  stage.what = Collective::all_reduce;
  stage.kind = axis.kind;
  stage.devices = axis.size;
  stage.elements = model.count() + 1;  // all gradients and the loss
  Comparison rows;
  rows.title = cat("one step on the mesh: all_reduce of ", stage.elements, " numbers over a ",
                   name_of(axis.kind), " of ", axis.size);
  for (int i = 0; i < axis.size; ++i) {
    rows.add(cat("bytes sent by device ", i), "B", collective_bytes(stage, i), run.bytes_sent(i));
  }
  rows.add("communication steps", "", static_cast<double>(collective_steps(stage)),
           static_cast<double>(run.steps()));
  rows.add("simulated time", "s", collective_seconds(stage, axis.link), run.seconds);
  return rows;
}

}  // namespace detail

// Trains the model on the first 90 % of the text; validates on the rest every eval_every steps and
// at the end. Deterministic for a seed and layout. Throws when a loss or a weight is not finite.
inline TrainReport train(Transformer& model, const Text& text,
                         const TrainOptions& options = TrainOptions()) {
  detail::check_training(model, text, options);
  model.tokenizer = text.tokenizer;
  const std::int64_t time = model.config.context;
  const bool can_validate = static_cast<std::int64_t>(text.validation().size()) > time;
  TrainReport report;
  report.model = model.config.name;
  report.text = text.name;
  report.machine = options.machine.name;
  report.devices = options.layout.devices();
  report.format = options.format;
  report.flops_per_token = model_flops_per_token(model.config, time);
  const double peak = laptop().peak(options.format);
  const Shared<MemoryMeter> meter = context().memory;
  const double level = meter->current_total() - 4.0 * static_cast<double>(model.count());
  detail::Trainer trainer(model, text, options);
  meter->reset_peak();
  for (std::int64_t step = 0; step < options.steps; ++step) {
    const double start = detail::seconds_now();
    const StepResult result = trainer.step(step);
    report.seconds += detail::seconds_now() - start;
    report.losses.push_back(result.loss);
    report.grad_norms.push_back(result.grad_norm);
    detail::update_speed(report, options, time, peak);
    if (step == 0 && report.devices == 1) {
      report.memory = detail::memory_rows(model.config, options, *meter, level);
    }
    const bool last = step + 1 == options.steps;
    if (last || (step + 1) % 50 == 0 || step == 0) {
      detail::print_progress(options, step, result.loss, report);
    }
    const bool due = options.eval_every > 0 && (step + 1) % options.eval_every == 0;
    if (can_validate && (last || due)) {
      detail::validate(trainer, text, options, step + 1, report);
    }
  }
  trainer.finish();
  detail::check_weights(model, options);
  report.last_step = trainer.last_run();
  if (report.devices > 1) {
    report.counted = detail::mesh_rows(model, trainer.placement(), *report.last_step);
  }
  return report;
}

}}  // namespace tinyscale

// >> tinyscale/plan/transformer_math.hpp
// Transformer maths: FLOPs for a token and bytes of training state, closed forms of a config.
//   training FLOPs per token = 6 P (2 P forward, 4 P backward) + attention 12 L T H K, causal half
// with P parameters, L layers, D width, H heads, K head size, T context, B tokens of a batch.
// Source: "How To Scale Your Model", chapter 4; PaLM (arXiv 2204.02311), appendix B.

namespace tinyscale { inline namespace TINYSCALE_ABI {

// What of the scores and weighted values is counted: nothing, what a causal mask keeps, all T x T.
enum class AttentionFlops { none, causal, full };

// Bytes for a parameter in training with AdamW.
//   book  10: bf16 weights 2, f32 moments 8 (scaling book, chapter 5: no gradients, no master copy)
//   mixed 16: and gradients 2, f32 master weights 4 (ZeRO, arXiv 1910.02054)
//   mixed_f32_gradients 18: gradients kept in f32, 4
enum class StateBytes { book, mixed, mixed_f32_gradients };

// Training state of one parameter, in bytes.
struct StateParts {
  double weights = 2;
  double gradients = 0;
  double optimizer = 8;  // moments, and master weights where they are kept

  double total() const { return weights + gradients + optimizer; }
};

inline StateParts state_parts(StateBytes convention) {
  switch (convention) {
    case StateBytes::book: return {2, 0, 8};
    case StateBytes::mixed: return {2, 2, 12};
    default: return {2, 4, 12};
  }
}

// Forward FLOPs of the scores and the weighted values for one token in all layers:
// 4 T H K a layer when each token sees all T, half as much when it sees those before it.
inline double attention_flops_per_token(const ModelConfig& model, double context,
                                        AttentionFlops counted) {
  const double full =
      4.0 * static_cast<double>(model.layers) * context * static_cast<double>(model.query_width());
  return counted == AttentionFlops::full ? full : counted == AttentionFlops::causal ? full / 2 : 0;
}

// Parameters that multiply a token: the active ones without the tables that are only looked up.
inline double matmul_parameters(const ModelConfig& model) {
  const double positions =
      model.position == Position::learned ? static_cast<double>(model.context * model.width) : 0;
  const double table = model.tied ? 0 : static_cast<double>(model.vocabulary * model.width);
  return static_cast<double>(model.active_parameters()) - positions - table;
}

// 6 N: the numerator of an MFU, N all parameters that a token uses.
inline double six_n(const ModelConfig& model) {
  return 6.0 * static_cast<double>(model.active_parameters());
}

// Forward and backward FLOPs that a token needs: three forward passes' worth.
inline double training_flops_per_token(const ModelConfig& model, double context,
                                       AttentionFlops counted) {
  return 3.0 *
         (2.0 * matmul_parameters(model) + attention_flops_per_token(model, context, counted));
}

// What PaLM's MFU counts: 6 N + 12 L H K T, the embedding included and the mask ignored.
inline double palm_flops_per_token(const ModelConfig& model, double context) {
  return six_n(model) + 3.0 * attention_flops_per_token(model, context, AttentionFlops::full);
}

// Bytes kept between forward and backward: 2 B D L n in bf16, n tensors of width D a layer.
// n = 1 keeps block inputs, 4 the scaling book's chapter 6, 7 the big matmuls, 20 everything.
inline double checkpoint_bytes(const ModelConfig& model, double tokens, double kept_per_layer) {
  return 2.0 * tokens * static_cast<double>(model.width * model.layers) * kept_per_layer;
}

// KV cache of one token in all layers: 2 L KV K bytes_of(format), or the model's own cached width.
inline double kv_cache_bytes_per_token(const ModelConfig& model, DType format) {
  return static_cast<double>(model.layers * model.cached_numbers()) * bytes_of(format);
}

namespace detail {

// Throws unless the field of a job is a finite number from `least` to `most`.
inline void check_job(const char* who, const char* field, double value, double least, double most) {
  if (!is_finite(value) || value < least || value > most) {
    fail({who, ": ", field, " is ", value, "; a number from ", least, " to ", most, " is right"});
  }
}

}  // namespace detail

// Seconds of a run: 6 N tokens / (chips peak mfu).
inline double training_seconds(double flops, double chips, double peak, double mfu) {
  if (!(chips > 0 && peak > 0 && mfu > 0)) {
    detail::fail({"training_seconds: chips ", chips, ", peak ", peak, ", mfu ", mfu,
                  "; each must be above 0"});
  }
  return flops / (chips * peak * mfu);
}

// Tokens a chip above which data x tensor parallelism is bound by math (scaling book, chapter 5):
//   alpha / M_X for FSDP alone, alpha^2 / (M_X M_Y F) mixed; alpha = peak / link W, both directions
inline double fsdp_threshold(double alpha, double axes) { return alpha / axes; }

inline double mixed_threshold(double alpha, double data_axes, double tensor_axes, double hidden) {
  return alpha * alpha / (data_axes * tensor_axes * hidden);
}

// Most ways of tensor parallelism that stay bound by math: M_Y F / alpha.
inline double tensor_limit(double alpha, double axes, double hidden) {
  return axes * hidden / alpha;
}

}}  // namespace tinyscale

// >> tinyscale/plan/serving.hpp
// What serving a model takes: memory, chips, the time of a decode step, the price of its tokens.
//   T_decode = B KV / (N W) + max(2 B P / (N C), P_bytes / (N W))
// B sequences of one step, KV the cache of one, N chips, W memory bandwidth, C peak. Lower bounds;
// no collectives. Source: "How To Scale Your Model", chapters 7 and 8.

namespace tinyscale { inline namespace TINYSCALE_ABI {

// A number format that is "the same as the weights'" until it is set.
struct CacheFormat {
  bool set = false;
  DType format = DType::bf16;

  CacheFormat& operator=(DType wanted) {
    set = true;
    format = wanted;
    return *this;
  }
  DType or_else(DType weights) const { return set ? format : weights; }
};

struct ServingJob {
  ModelConfig model;
  std::int64_t prompt = 2048, output = 256;  // tokens
  std::int64_t batch = 8;                    // sequences decoded together
  DType format = DType::bf16;                // weights
  CacheFormat cache;                         // KV cache
  DType compute = DType::bf16;               // matmuls: weights are widened to it on the chip
  double prefill_mfu = 0.4;                  // what prefill reaches (scaling book, chapter 8)
};

struct ServingPlan {
  std::string model, machine, bound;
  std::int64_t chips = 0;  // of one replica
  Quantity weights, kv_cache_per_sequence, memory, chips_needed;
  Quantity decode_step_time, prefill_time;  // one step of the batch; one prompt
  Quantity tokens_per_second, tokens_per_second_per_chip;
  Quantity dollars_per_million_tokens, dollars_with_prefill;  // of output tokens
  Quantity tensor_limit;  // ways of tensor parallelism before links limit
  std::vector<std::string> notes;

  Table table() const;
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
};

namespace detail {

inline void check_serving(const ServingJob& job, const Machine& machine) {
  job.model.validate();
  if (machine.dims.size() == 0 || machine.chips() < 1) {
    detail::fail(
        {"plan_serving: the machine has no chips; make one with machine(\"tpu-v5e\", {1})"});
  }
  const char* const who = "plan_serving";
  const double most = 1e9;
  check_job(who, "batch", static_cast<double>(job.batch), 1, most);
  check_job(who, "prompt", static_cast<double>(job.prompt), job.output == 0 ? 1 : 0, most);
  check_job(who, "output", static_cast<double>(job.output), 0, most);
  check_job(who, "prefill_mfu", job.prefill_mfu, 1e-6, 1);
  if (machine.chip.memory_bytes <= 0 || machine.chip.memory_bandwidth <= 0) {
    fail({"plan_serving: ", machine.name, " needs memory_bytes and memory_bandwidth of its chip"});
  }
}

// The next size that is made: powers of two; a TPU slice of two chips is not offered.
inline std::int64_t slice_of(const Chip& chip, double needed) {
  check_job("plan_serving", "the number of chips needed", needed, 0, 1e12);
  std::int64_t chips = 1;
  while (static_cast<double>(chips) < needed) {
    chips *= 2;
  }
  return chips == 2 && chip.kind == "tpu" ? 4 : chips;
}

inline void serving_memory(const ServingJob& job, const Machine& on, ServingPlan& plan) {
  const ModelConfig& m = job.model;
  const DType cache = job.cache.or_else(job.format);
  const Quantity parameters(static_cast<double>(m.parameters()), "", "P", "parameters");
  const Quantity bytes(bytes_of(job.format), "B", "b", cat("of a weight, ", name_of(job.format)));
  const Quantity layers(static_cast<double>(m.layers), "", "L", "layers");
  const Quantity width(static_cast<double>(m.cached_numbers()), "", "KV",
                       "numbers kept for a token and layer");
  const Quantity kept(bytes_of(cache), "B/token", "b_kv", name_of(cache));
  const Quantity length(static_cast<double>(job.prompt + job.output), "token", "S",
                        "prompt + output");
  const Quantity batch(static_cast<double>(job.batch), "", "batch", "sequences");
  const Quantity capacity(on.chip.memory_bytes, "B", "M_chip", on.chip.name);
  plan.weights = named("P_bytes", parameters * bytes);
  plan.kv_cache_per_sequence = named("KV_sequence", layers * width * kept * length);
  plan.memory = named("memory", plan.weights + batch * plan.kv_cache_per_sequence);
  plan.chips_needed = named("chips needed", ceil(plan.memory / capacity));
  plan.chips = on.chips();
  if (static_cast<double>(plan.chips) < plan.chips_needed.value()) {
    plan.chips = slice_of(on.chip, plan.chips_needed.value());
    plan.notes.push_back(cat("chips: ", on.name, " holds ",
                             format_bytes(capacity.value() * static_cast<double>(on.chips())),
                             " of the ", format_bytes(plan.memory.value()), " needed; planned on ",
                             plan.chips, " chips"));
  }
}

inline void serving_times(const ServingJob& job, const Machine& on, ServingPlan& plan) {
  const ModelConfig& m = job.model;
  const double peak = on.chip.peak(job.compute);
  const double mean = static_cast<double>(job.prompt) + static_cast<double>(job.output) / 2;
  const double cached = kv_cache_bytes_per_token(m, job.cache.or_else(job.format)) * mean;
  const Quantity chips(static_cast<double>(plan.chips), "", "N", "chips");
  const Quantity batch(static_cast<double>(job.batch), "token", "B", "one token a sequence");
  const Quantity cache(cached, "B/token", "KV", cat("cache at the mean length, ", mean));
  const Quantity bandwidth(on.chip.memory_bandwidth, "B/s", "W", cat("memory of ", on.chip.name));
  const Quantity rate(peak, "FLOP/s", "C", cat(name_of(job.compute), " peak"));
  const Quantity active(static_cast<double>(m.active_parameters()), "", "P_used",
                        "parameters that a token uses");
  const Quantity two(2, "FLOP/token");
  const Quantity math = named("T_math", two * batch * active / (chips * rate));
  const Quantity weights = named("T_weights", plan.weights / (chips * bandwidth));
  const Quantity kv = named("T_kv", batch * cache / (chips * bandwidth));
  plan.decode_step_time = named("T_decode", kv + max(math, weights), "lower bound");
  plan.bound = math.value() > weights.value() + kv.value() ? "math" : "memory";
  plan.tokens_per_second = named("tokens/s", batch / plan.decode_step_time);
  plan.tokens_per_second_per_chip = named("tokens/s/chip", plan.tokens_per_second / chips);
  const Quantity prompt(static_cast<double>(job.prompt), "token", "prompt");
  const Quantity mfu(job.prefill_mfu, "", "MFU", "of prefill, assumed");
  plan.prefill_time = named("T_prefill", two * active * prompt / (chips * rate * mfu));
  plan.notes.push_back(cat("prefill: at an MFU of ", format_percent(job.prefill_mfu),
                           ", assumed; the decode step is a lower bound"));
}

inline void serving_price(const ServingJob& job, const Machine& on, ServingPlan& plan) {
  const Quantity price(on.dollars_per_hour, "USD/h", "price", on.chip.price_source);
  const Quantity hour(3600, "s/h"), million(1e6, "token");
  const Quantity chips(static_cast<double>(plan.chips), "", "N", "chips");
  plan.dollars_per_million_tokens = named(
      "USD per million", million * chips * price / (plan.tokens_per_second * hour), "decode alone");
  if (job.output > 0) {
    const Quantity output(static_cast<double>(job.output), "token", "output");
    plan.dollars_with_prefill =
        named("USD per million, with prefill",
              plan.dollars_per_million_tokens +
                  million * chips * price * plan.prefill_time / (output * hour));
  }
  if (!(on.dollars_per_hour > 0)) {
    plan.notes.push_back(
        cat("price: not known for ", on.chip.name, "; set the machine's dollars_per_hour"));
  }
}

// Y < F / (B W / W_link): beyond it, moving activations takes longer than reading weights.
inline void serving_links(const ServingJob& job, const Machine& on, ServingPlan& plan) {
  const ModelConfig& m = job.model;
  const std::int64_t hidden = m.experts > 0 ? m.expert_hidden * m.top_k : m.hidden;
  const double link = 2 * on.link_bandwidth;
  if (link > 0) {
    const Quantity f(static_cast<double>(hidden), "", "F", "hidden width");
    const Quantity b(static_cast<double>(job.batch), "", "B", "sequences");
    const Quantity ratio(on.chip.memory_bandwidth / link, "", "W/W_link", "memory over link");
    plan.tensor_limit = named("tensor limit", f / (b * ratio), "one ring, both ways");
    if (static_cast<double>(plan.chips) > plan.tensor_limit.value()) {
      plan.notes.push_back(cat("links: ", plan.chips, " chips are more than the ",
                               short_number(plan.tensor_limit.value()),
                               " ways of tensor parallelism that one ring feeds"));
    }
  }
}

}  // namespace detail

// Memory, chips, decode step and price; where the machine is too small, the slice that holds it.
inline ServingPlan plan_serving(const ServingJob& job, const Machine& machine) {
  detail::check_serving(job, machine);
  ServingPlan plan;
  plan.model = job.model.name;
  plan.machine = machine.chip.name;
  detail::serving_memory(job, machine, plan);
  detail::serving_times(job, machine, plan);
  detail::serving_price(job, machine, plan);
  detail::serving_links(job, machine, plan);
  return plan;
}

inline Table ServingPlan::table() const {
  Table out;
  out.title = detail::cat("Serving ", model, " on ", chips, " x ", machine);
  out.columns = {"quantity", "formula"};
  const auto row = [&](const std::string& name, const std::string& value) {
    out.add({name, value});
  };
  const auto dollars = [](const Quantity& q) {
    return q.value() > 0 ? detail::short_number(q.value()) : std::string("-");
  };
  row("weights", weights.text());
  row("KV cache per sequence", kv_cache_per_sequence.text());
  row("memory", memory.text());
  row("chips that hold it", detail::short_number(chips_needed.value()));
  row("chips", detail::cat(chips));
  row("decode step", decode_step_time.text());
  row("  bound by", bound);
  row("prefill of one prompt", prefill_time.text());
  row("tokens/s", detail::short_number(tokens_per_second.value()));
  row("tokens/s per chip", detail::short_number(tokens_per_second_per_chip.value()));
  row("USD per million tokens, decode", dollars(dollars_per_million_tokens));
  row("USD per million tokens, with prefill", dollars(dollars_with_prefill));
  return out;
}

inline std::ostream& operator<<(std::ostream& out, const ServingPlan& plan) {
  out << plan.table();
  for (const std::string& note : plan.notes) {
    out << "- " << note << "\n";
  }
  return out;
}

}}  // namespace tinyscale

// >> tinyscale/plan/training_layout.hpp
// Training layouts: X chips of data (FSDP) times Y of tensor = N chips, priced by lower bounds.
//   T_math = FLOPs / (N C)         T_step = max(T_math, T_fsdp, T_tensor): perfect overlap
//   T_fsdp = 3 b P / (Y W_X)       weights gathered forward and backward, gradients scattered
//   T_tensor = 8 b B D L / (X W_Y) activations gathered and scattered twice a layer, both passes
// Source: "How To Scale Your Model", chapters 5 and 12. W: what a chip sends, both ways of a ring.

namespace tinyscale { inline namespace TINYSCALE_ABI {

struct TrainingJob {
  ModelConfig model;
  double tokens = 0;  // 0: the preset's published count, else 20 for each parameter
  double batch_tokens = 4e6;
  std::int64_t context = 0;  // 0: the model's
  DType format = DType::bf16;
  StateBytes state = StateBytes::book;
  double checkpoints = 4;    // tensors of width D kept for each layer
  double typical_mfu = 0.4;  // what well-run jobs reach (scaling book, chapter 6)
};

// One way to divide the machine: what each part of a step takes, and what a chip must hold.
struct TrainingLayout {
  Layout layout;
  int data_axes = 0, tensor_axes = 0;  // M_X, M_Y: dimensions of the machine that each spans
  double data_bandwidth = 0, tensor_bandwidth = 0;  // W_X, W_Y: bytes/s out of a chip
  double compute_time = 0, fsdp_time = 0, tensor_time = 0, step_time = 0;  // seconds
  double memory = 0;                                                       // bytes a chip
  bool shared_links = false;  // fsdp and tensor take turns instead of overlapping
  std::string bound;          // math, fsdp, tensor
};

namespace detail {

// The job with its open fields decided, and the sentences that say how.
struct TrainingInputs {
  TrainingJob job;
  Machine machine;
  double tokens = 0, batch = 0, context = 0, sequences = 0;
  std::vector<std::string> notes;
};

inline void check_training(const TrainingJob& job, const Machine& machine) {
  job.model.validate();
  if (machine.dims.size() == 0 || machine.chips() < 1) {
    detail::fail(
        {"plan_training: the machine has no chips; make one with machine(\"tpu-v5p\", "
         "{4, 4, 4})"});
  }
  const char* const who = "plan_training";
  check_job(who, "batch_tokens", job.batch_tokens, 1, 1e18);
  check_job(who, "tokens", job.tokens, 0, 1e30);  // 0: the plan chooses
  check_job(who, "context", static_cast<double>(job.context), 0, 1e9);
  check_job(who, "checkpoints", job.checkpoints, 0, 1e6);
  check_job(who, "typical_mfu", job.typical_mfu, 1e-6, 1);
}

inline TrainingInputs training_inputs(const TrainingJob& job, const Machine& machine) {
  check_training(job, machine);
  TrainingInputs in{job, machine, job.tokens, 0, 0, 0, {}};
  const double parameters = static_cast<double>(job.model.active_parameters());
  if (in.tokens == 0 && job.model.training_tokens > 0) {
    in.tokens = job.model.training_tokens;
    in.notes.push_back(
        cat("tokens: ", format_count(in.tokens), ", as published for ", job.model.name));
  } else if (in.tokens == 0) {
    in.tokens = 20 * parameters;
    in.notes.push_back(
        cat("tokens: assumed 20 for each parameter (Chinchilla), ", format_count(in.tokens)));
  }
  in.context = static_cast<double>(job.context > 0 ? job.context : job.model.context);
  in.sequences = std::max(1.0, std::floor(job.batch_tokens / in.context + 0.5));
  in.batch = in.sequences * in.context;
  if (in.batch != job.batch_tokens) {
    in.notes.push_back(cat("batch: ", format_count(job.batch_tokens), " tokens rounded to ",
                           format_count(in.sequences), " sequences of ", format_count(in.context),
                           " = ", format_count(in.batch)));
  }
  return in;
}

// Dimensions that have links: more than one chip along them.
inline std::vector<int> linked_dims(const Machine& machine) {
  std::vector<int> dims;
  for (int i = 0; i < machine.dims.size(); ++i) {
    if (machine.dims[i] > 1) {
      dims.push_back(i);
    }
  }
  return dims;
}

// W_X and W_Y on a torus: tensor takes the last M_Y dimensions, data the first M_X; on a machine of
// one dimension the two take turns on its links.
inline void torus_bandwidths(const Machine& machine, TrainingLayout& plan) {
  const std::vector<int> dims = linked_dims(machine);
  const int count = static_cast<int>(dims.size());
  for (int i = 0; i < count; ++i) {
    const double rate = machine.ring_bandwidth(dims[static_cast<std::size_t>(i)]);
    plan.data_bandwidth += i < plan.data_axes ? rate : 0;
    plan.tensor_bandwidth += i >= count - plan.tensor_axes ? rate : 0;
  }
  plan.shared_links = plan.data_axes + plan.tensor_axes > count;
}

// GPUs: V / max over levels, the switch of a node and the network between nodes, where tensor
// parallelism inside the node leaves each GPU its own share of both (scaling book, chapter 12).
inline void switch_bandwidths(const Machine& machine, TrainingLayout& plan) {
  const int inner = machine.dims.size() - 1;
  const double node = static_cast<double>(machine.dims[inner]);
  const double gpu_rate = machine.ring_bandwidth(inner);
  const bool many = machine.chips() > machine.dims[inner];
  const double node_rate = many ? node * 2 * machine.axis_bandwidth(0) : 0;
  const double tensor = static_cast<double>(plan.layout.tensor);
  double time = tensor < node ? 1 / (gpu_rate * tensor) : 0;  // to gather one byte over X
  if (many) {
    time = std::max(time, node / std::max(node, tensor) / node_rate);
  }
  plan.data_bandwidth = 1 / (tensor * time);
  plan.tensor_bandwidth = tensor <= node ? gpu_rate : std::min(gpu_rate, node_rate);
  plan.shared_links = tensor > node || !many;  // both through the network, or both in the switch
}

inline double training_memory(const TrainingInputs& in) {
  return state_parts(in.job.state).total() * static_cast<double>(in.job.model.parameters()) +
         checkpoint_bytes(in.job.model, in.batch, in.job.checkpoints);
}

inline TrainingLayout price_layout(const TrainingInputs& in, const Layout& layout, int data_axes,
                                   int tensor_axes) {
  const ModelConfig& model = in.job.model;
  const double bytes = bytes_of(in.job.format);
  const double chips = static_cast<double>(in.machine.chips());
  TrainingLayout plan;
  plan.layout = layout;
  plan.tensor_axes = tensor_axes;
  plan.data_axes = data_axes;
  if (in.machine.chip.kind == "gpu") {
    switch_bandwidths(in.machine, plan);
  } else {
    torus_bandwidths(in.machine, plan);
  }
  const double x = static_cast<double>(layout.data), y = static_cast<double>(layout.tensor);
  plan.compute_time = training_flops_per_token(model, in.context, AttentionFlops::causal) *
                      in.batch / (chips * in.machine.chip.peak(in.job.format));
  if (layout.data > 1) {
    plan.fsdp_time =
        3 * bytes * static_cast<double>(model.parameters()) / (y * plan.data_bandwidth);
  }
  if (layout.tensor > 1) {
    plan.tensor_time = 8 * bytes * in.batch * static_cast<double>(model.width * model.layers) /
                       (x * plan.tensor_bandwidth);
  }
  const double comms = plan.shared_links ? plan.fsdp_time + plan.tensor_time
                                         : std::max(plan.fsdp_time, plan.tensor_time);
  plan.step_time = std::max(plan.compute_time, comms);
  plan.bound = plan.compute_time >= plan.step_time  ? "math"
               : plan.fsdp_time >= plan.tensor_time ? "fsdp"
                                                    : "tensor";
  plan.memory = training_memory(in) / chips;
  return plan;
}

// Whether every head and every hidden unit belongs to one of so many chips.
inline bool tensor_divides(const ModelConfig& model, std::int64_t tensor) {
  const std::int64_t hidden = model.experts > 0 ? model.expert_hidden : model.hidden;
  return model.heads % tensor == 0 && hidden % tensor == 0;
}

// One split of data x tensor = chips, over each way to give each its dimensions of the machine.
inline void add_layouts(const TrainingInputs& in, std::int64_t tensor,
                        List<TrainingLayout>& plans) {
  Layout layout;
  layout.tensor = tensor;
  layout.data = in.machine.chips() / tensor;
  layout.zero = Zero::parameters;
  if (static_cast<double>(layout.data) > in.batch) {
    return;
  }
  const int dims = static_cast<int>(linked_dims(in.machine).size());
  const bool both = layout.data > 1 && layout.tensor > 1;
  if (in.machine.chip.kind == "gpu") {  // one switch, one network: no dimensions to give
    plans.push_back(price_layout(in, layout, 0, 0));
    return;
  }
  if (!both || dims < 2) {
    const int data_axes = layout.data > 1 ? dims : 0;
    plans.push_back(price_layout(in, layout, data_axes, layout.tensor > 1 ? dims : 0));
    return;
  }
  for (int axes = 1; axes < dims; ++axes) {
    plans.push_back(price_layout(in, layout, dims - axes, axes));
  }
}

inline List<TrainingLayout> fastest_first(const List<TrainingLayout>& plans) {
  std::vector<double> keys;
  for (const TrainingLayout& plan : plans) {
    keys.push_back(plan.step_time);
  }
  List<TrainingLayout> sorted;
  for (const std::size_t i : stable_order(keys)) {
    sorted.push_back(plans[i]);
  }
  return sorted;
}

// Every layout whose tensor part divides heads and hidden units, fastest first.
inline List<TrainingLayout> priced_layouts(const TrainingInputs& in) {
  List<TrainingLayout> plans;
  const std::int64_t chips = in.machine.chips();
  for (std::int64_t tensor = 1; tensor <= std::min(chips, in.job.model.heads); ++tensor) {
    if (chips % tensor == 0 && tensor_divides(in.job.model, tensor)) {
      add_layouts(in, tensor, plans);
    }
  }
  if (plans.empty()) {
    fail({"plan_training: ", in.job.model.name, " has no data x tensor layout on ", in.machine.name,
          ": a batch of ", format_count(in.batch),
          " tokens must give each data-parallel chip at least one"});
  }
  return fastest_first(plans);
}

inline void check_fits(const TrainingInputs& in) {
  const Chip& chip = in.machine.chip;
  const double all = training_memory(in), chips = static_cast<double>(in.machine.chips());
  if (chip.memory_bytes <= 0 || all <= chips * chip.memory_bytes) {
    return;
  }
  const double state = state_parts(in.job.state).total();
  const double parameters = static_cast<double>(in.job.model.parameters());
  fail({"plan_training: ", in.job.model.name, " does not fit on ", in.machine.name, ": ", state,
        " bytes a parameter = ", format_bytes(state * parameters), ", checkpoints ",
        format_bytes(all - state * parameters), ", ", format_bytes(all / chips), " a chip of ",
        format_bytes(chip.memory_bytes),
        "; would fit: ", format_count(std::ceil(all / chip.memory_bytes)),
        " chips, or fewer tokens in a batch or fewer checkpoints"});
}

}  // namespace detail
}}  // namespace tinyscale

// >> tinyscale/plan/training.hpp
// What a training run costs on a machine: the fastest layout's step, memory, days and dollars, each
// a quantity that explains itself.
//   days = 6 P tokens / (N C MFU), MFU = what well-run jobs reach, at most the layout's own limit
// Source: "How To Scale Your Model", chapters 5 and 6.

namespace tinyscale { inline namespace TINYSCALE_ABI {

struct TrainingPlan {
  std::string model, machine;
  TrainingLayout best;
  List<TrainingLayout> layouts;  // those that fit, fastest first
  Quantity tokens, batch, compute_time, fsdp_time, tensor_time, communication_time, step_time;
  Quantity weights_memory, optimizer_memory, activation_memory, memory;  // bytes a chip
  Quantity mfu, typical_mfu;            // 6 N tokens / (step chips peak); at the limit, assumed
  Quantity tokens_per_chip, threshold;  // bound by math above the threshold
  Quantity limit_days, days, dollars, energy;  // days and dollars at the typical MFU; energy in Wh
  std::vector<std::string> notes;              // assumptions that were made

  Table table() const;
  Table layout_table() const;
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
};

namespace detail {

// The letters of the formulas, as named quantities.
struct TrainingLetters {
  Quantity P, P_used, P_matmul, L, D, HK, F, T, B, b, b_token, N, X, Y, C, W_X, W_Y;
};

inline Quantity letter(const std::string& name, double value, const std::string& unit,
                       const std::string& source) {
  return Quantity(value, unit, name, source);
}

inline TrainingLetters training_letters(const TrainingInputs& in, const TrainingLayout& best) {
  const ModelConfig& m = in.job.model;
  const Machine& on = in.machine;
  const std::int64_t hidden = m.experts > 0 ? m.expert_hidden * m.top_k : m.hidden;
  const double bytes = bytes_of(in.job.format);
  const auto count = [](const std::string& name, std::int64_t value, const std::string& source) {
    return letter(name, static_cast<double>(value), "", source);
  };
  TrainingLetters q;
  q.P = count("P", m.parameters(), cat("parameters of ", m.name));
  q.P_used = count("P_used", m.active_parameters(), "parameters that a token uses");
  q.P_matmul = letter("P_matmul", matmul_parameters(m), "", "of those, the ones that multiply");
  q.L = count("L", m.layers, "layers");
  q.D = count("D", m.width, "width");
  q.HK = count("HK", m.query_width(), "heads x head size");
  q.F = count("F", hidden, "hidden width that a token uses");
  q.T = letter("T", in.context, "", "context");
  q.B = letter("B", in.batch, "token", "batch");
  q.b = letter("b", bytes, "B", cat("bytes of a weight, ", name_of(in.job.format)));
  q.b_token = letter("b_act", bytes, "B/token", "bytes of an activation");
  q.N = count("N", on.chips(), on.name);
  q.X = count("X", best.layout.data, "data (FSDP)");
  q.Y = count("Y", best.layout.tensor, "tensor");
  q.C = letter("C", on.chip.peak(in.job.format), "FLOP/s", cat("peak of ", on.chip.name));
  const auto axes = [](const char* name, int n) {
    return n > 0 ? cat("out of a chip, ", name, " = ", n) : std::string("out of a chip");
  };
  q.W_X = letter("W_X", best.data_bandwidth, "B/s", axes("M_X", best.data_axes));
  q.W_Y = letter("W_Y", best.tensor_bandwidth, "B/s", axes("M_Y", best.tensor_axes));
  return q;
}

inline void plan_times(const TrainingLetters& q, TrainingPlan& plan) {
  const Quantity six(6, "FLOP/token"), none(0, "s");
  plan.compute_time =
      named("T_math", (six * q.P_matmul + six * q.L * q.T * q.HK) * q.B / (q.N * q.C),
            "6 P and causal attention");
  plan.fsdp_time =
      named("T_fsdp", plan.best.layout.data > 1 ? 3.0 * q.b * q.P / (q.Y * q.W_X) : none);
  plan.tensor_time =
      named("T_tensor",
            plan.best.layout.tensor > 1 ? 8.0 * q.b_token * q.B * q.D * q.L / (q.X * q.W_Y) : none);
  plan.communication_time =
      plan.best.shared_links
          ? named("T_comms", plan.fsdp_time + plan.tensor_time, "one after the other on one link")
          : named("T_comms", max(plan.fsdp_time, plan.tensor_time), "at once, on different links");
  plan.step_time = named("T_step", max(plan.compute_time, plan.communication_time),
                         "lower bound, perfect overlap");
  plan.mfu = named("MFU_limit", six * q.P_used * q.B / (q.N * q.C * plan.step_time));
  plan.tokens_per_chip = named("B/N", q.B / q.N);
  const Quantity two(2, "FLOP/token");
  const Quantity alpha_x = named("alpha_X", q.C * q.b / (two * q.W_X));
  const Quantity alpha_y = named("alpha_Y", q.C * q.b_token / (two * q.W_Y));
  if (plan.best.layout.data == 1) {
    plan.threshold = Quantity(0, "token", "B/N at the knee", "no FSDP: any batch");
  } else if (plan.best.layout.tensor == 1) {
    plan.threshold = named("B/N at the knee", alpha_x, "FSDP alone");
  } else {
    plan.threshold = named("B/N at the knee", alpha_x * alpha_y / q.F, "FSDP and tensor, X best");
  }
}

inline void plan_memory(const TrainingInputs& in, const TrainingLetters& q, TrainingPlan& plan) {
  const StateParts parts = state_parts(in.job.state);
  const auto each = [&](const char* name, double bytes) {
    return named(name, Quantity(bytes, "B") * q.P / q.N);
  };
  plan.weights_memory = each("M_weights", parts.weights);
  plan.optimizer_memory = each("M_optimizer", parts.optimizer + parts.gradients);
  const Quantity kept(2 * in.job.checkpoints, "B/token");
  plan.activation_memory = named("M_activations", kept * q.B * q.D * q.L / q.N,
                                 cat(in.job.checkpoints, " tensors of width D a layer, bf16"));
  plan.memory =
      named("M_chip", plan.weights_memory + plan.optimizer_memory + plan.activation_memory);
}

inline void plan_costs(const TrainingInputs& in, const TrainingLetters& q, TrainingPlan& plan) {
  const Quantity six(6, "FLOP/token"), day(86400, "s/day"), hours(24, "h/day");
  const double typical = std::min(in.job.typical_mfu, plan.mfu.value());
  plan.typical_mfu = Quantity(typical, "", "MFU", "typical: 6 N FLOPs of the peak, assumed");
  plan.days = named("days", six * q.P_used * plan.tokens / (q.N * q.C * plan.typical_mfu) / day);
  plan.limit_days = named("days at the limit", plan.tokens / q.B * plan.step_time / day);
  const Machine& on = in.machine;
  const Quantity price(on.dollars_per_hour, "USD/h", "price", on.chip.price_source);
  plan.dollars = named("dollars", q.N * price * plan.days * hours);
  const Quantity watts(on.chip.watts, "W", "power", "of one chip, without hosts and cooling");
  plan.energy = named("energy", q.N * watts * plan.days * hours);
  if (!(on.dollars_per_hour > 0)) {
    plan.notes.push_back(
        cat("price: not known for ", on.chip.name, "; set the machine's dollars_per_hour"));
  }
  if (!(on.chip.watts > 0)) {
    plan.notes.push_back(cat("energy: the power of ", on.chip.name, " is not published"));
  }
  plan.notes.push_back(cat("MFU: 6 N FLOPs over the ", name_of(in.job.format), " peak of ",
                           format_si(q.C.value(), "FLOP/s"), "; days are at ",
                           format_percent(typical), ", not at the limit"));
}

inline void plan_notes(const TrainingInputs& in, TrainingPlan& plan) {
  const StateParts parts = state_parts(in.job.state);
  plan.notes.push_back(cat("memory: ", parts.total(), " bytes a parameter (weights ", parts.weights,
                           ", gradients ", parts.gradients, ", optimizer ", parts.optimizer,
                           "); the layer being gathered is not counted"));
  if (static_cast<double>(plan.best.layout.data) > in.sequences) {
    plan.notes.push_back(cat("data: ", plan.best.layout.data, " chips for ",
                             format_count(in.sequences),
                             " sequences, so sequences are split; "
                             "what attention then sends is not counted"));
  }
  if (!in.job.model.beyond.empty()) {
    plan.notes.push_back(cat("model: counted, not run by this library: ", in.job.model.beyond));
  }
}

inline TrainingPlan finish_plan(const TrainingInputs& in, List<TrainingLayout> layouts) {
  TrainingPlan plan;
  plan.model = in.job.model.name;
  plan.machine = in.machine.name;
  plan.best = layouts.front();
  plan.layouts = std::move(layouts);
  plan.notes = in.notes;
  const TrainingLetters q = training_letters(in, plan.best);
  plan.tokens = letter("tokens", in.tokens, "token", "of the whole run");
  plan.batch = q.B;
  plan_times(q, plan);
  plan_memory(in, q, plan);
  plan_costs(in, q, plan);
  plan_notes(in, plan);
  return plan;
}

}  // namespace detail

// The fastest data x tensor layout that fits; throws and says what would fit when none does.
inline TrainingPlan plan_training(const TrainingJob& job, const Machine& machine) {
  const detail::TrainingInputs in = detail::training_inputs(job, machine);
  detail::check_fits(in);
  return detail::finish_plan(in, detail::priced_layouts(in));
}

// The price of one layout: layout.data * layout.tensor chips, parameters sharded over data.
inline TrainingPlan plan_training(const TrainingJob& job, const Machine& machine,
                                  const Layout& layout) {
  const detail::TrainingInputs in = detail::training_inputs(job, machine);
  detail::check_layout_counts("plan_training", layout);
  if (layout.devices() != machine.chips() || layout.pipeline != 1 || layout.context != 1) {
    detail::fail({"plan_training: layout ", layout.text(), " on ", machine.chips(),
                  " chips; data * tensor must be the chips, pipeline and context 1"});
  }
  if (!detail::tensor_divides(job.model, layout.tensor)) {
    detail::fail({"plan_training: tensor ", layout.tensor, " does not divide the ", job.model.heads,
                  " heads and the hidden width of ", job.model.name});
  }
  detail::check_fits(in);
  List<TrainingLayout> layouts;
  detail::add_layouts(in, layout.tensor, layouts);
  if (layouts.empty()) {
    detail::fail({"plan_training: data ", layout.data, " is more than the ", format_count(in.batch),
                  " tokens of a batch"});
  }
  return detail::finish_plan(in, detail::fastest_first(layouts));
}

inline Table TrainingPlan::table() const {
  Table out;
  out.title = detail::cat("Training ", model, " on ", machine, ", ", best.layout.text());
  out.columns = {"quantity", "formula"};
  const auto row = [&](const std::string& name, const std::string& value) {
    out.add({name, value});
  };
  row("tokens", format_count(tokens.value()));
  row("batch, tokens", format_count(batch.value()));
  row("tokens per chip", detail::short_number(tokens_per_chip.value()));
  row("  bound by math above", detail::short_number(threshold.value()));
  row("T_math", compute_time.text());
  row("T_fsdp", fsdp_time.text());
  row("T_tensor", tensor_time.text());
  row("T_step at the limit", step_time.text());
  row("  bound by", best.bound);
  row("MFU at the limit", format_percent(mfu.value()));
  row("memory per chip", memory.text());
  row("  weights", weights_memory.text());
  row("  optimizer and gradients", optimizer_memory.text());
  row("  activations", activation_memory.text());
  row("MFU, typical", format_percent(typical_mfu.value()));
  row("days at the limit", detail::short_number(limit_days.value()));
  row("days, typical", detail::short_number(days.value()));
  row("dollars, typical", dollars.value() > 0 ? format_count(std::floor(dollars.value())) : "-");
  row("energy, typical", energy.value() > 0 ? format_si(energy.value(), "Wh") : "-");
  return out;
}

inline Table TrainingPlan::layout_table() const {
  Table out;
  out.title = "Fastest layouts";
  out.columns = {"data",
                 "tensor",
                 "M_X",
                 "M_Y",
                 "T_math formula",
                 "T_fsdp formula",
                 "T_tensor formula",
                 "T_step formula",
                 "memory per chip",
                 "bound by"};
  for (std::size_t i = 0; i < std::min<std::size_t>(5, layouts.size()); ++i) {
    const TrainingLayout& l = layouts[i];
    out.add({detail::cat(l.layout.data), detail::cat(l.layout.tensor), detail::cat(l.data_axes),
             detail::cat(l.tensor_axes), format_seconds(l.compute_time),
             format_seconds(l.fsdp_time), format_seconds(l.tensor_time),
             format_seconds(l.step_time), format_bytes(l.memory), l.bound});
  }
  return out;
}

inline std::ostream& operator<<(std::ostream& out, const TrainingPlan& plan) {
  out << plan.table() << "\n" << plan.layout_table() << "\n";
  for (const std::string& note : plan.notes) {
    out << "- " << note << "\n";
  }
  return out;
}

}}  // namespace tinyscale

// >> tinyscale/show/svg.hpp
// A picture as text: shapes and words in the coordinates of an SVG file, x to the right, y down.
// Self-contained (no script, no outside style), readable in light and in dark surroundings.
// Colours: Okabe and Ito's eight, told apart with any colour vision; a series also has its own
// dash pattern or marker.

namespace tinyscale { inline namespace TINYSCALE_ABI {

// A finished picture. `text` says in words what is drawn, for terminals and screen readers.
struct Svg {
  double width = 0, height = 0;  // in pixels
  std::string text;
  std::string body;  // the elements between <svg> and </svg>

  std::string markup() const;                // the whole file
  void save(const std::string& path) const;  // throws Error; an old file stays whole
};

namespace detail {

// Text as XML character data: the five marks escaped, control characters replaced by a space.
inline std::string xml_escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: {
        const bool control = static_cast<unsigned char>(c) < 32 && c != '\n' && c != '\t';
        out += control ? ' ' : c;
      }
    }
  }
  return out;
}

// A failure leaves the old file as it was.
inline void save_text(const char* function, const std::string& path, const std::string& text) {
  SaveFile file(function, path);
  file.write(text.data(), text.size());
  file.finish();
}

// A coordinate with at most two decimals: 12, 12.5, 12.25.
inline std::string coordinate(double value) {
  std::string text = printed('f', 2, is_finite(value) ? value : 0.0);
  text.erase(text.find_last_not_of('0') + 1);
  if (!text.empty() && text.back() == '.') {
    text.pop_back();
  }
  return text == "-0" ? "0" : text;
}

inline std::string attribute(const char* name, double value) {
  return std::string(" ") + name + "=\"" + coordinate(value) + "\"";
}

inline double drawn_width(const std::string& text, double size) {  // a wide face's average letter
  return 0.6 * size * static_cast<double>(text_width(text));
}

inline std::string shorten(const std::string& text, std::size_t most) {
  if (text_width(text) <= most || most < 4) {
    return text;
  }
  std::string out;
  std::size_t letters = 0;
  for (const char c : text) {
    letters += (static_cast<unsigned char>(c) & 0xC0u) != 0x80u ? 1u : 0u;
    if (letters > most - 3) {
      break;
    }
    out += c;
  }
  return out + "...";
}

// The colour of series i in light surroundings; class "tsN" brightens it in dark ones.
inline const char* series_color(std::size_t i) {
  static const char* const colors[] = {"#0072b2", "#d55e00", "#007f5f", "#a8477e",
                                       "#b07800", "#2b83b5", "#666666"};
  return colors[i % 7];
}

inline const char* series_dash(std::size_t i) {
  static const char* const dashes[] = {"", "7 4", "2 3", "9 3 2 3", "12 5", "4 2", "1 4"};
  return dashes[i % 7];
}

inline const char* dark_style() {
  return "<style>@media (prefers-color-scheme: dark){"
         ".ts-paper{fill:#16191d}.ts-ink{fill:#e8e8e8}.ts-soft{fill:#a9b0b8}"
         ".ts-grid{stroke:#31363d}.ts-axis{stroke:#868e96}"
         ".ts-empty{fill:#22272d}"
         ".ts0{stroke:#56b4e9}.ts1{stroke:#ff8a3d}.ts2{stroke:#2fc79a}.ts3{stroke:#e59bc8}"
         ".ts4{stroke:#f0b429}.ts5{stroke:#9ad2f2}.ts6{stroke:#b5b5b5}"
         ".tf0{fill:#56b4e9}.tf1{fill:#ff8a3d}.tf2{fill:#2fc79a}.tf3{fill:#e59bc8}"
         ".tf4{fill:#f0b429}.tf5{fill:#9ad2f2}.tf6{fill:#b5b5b5}}</style>";
}

enum class Anchor { start, middle, end };

// The pen: each call appends one element.
class Canvas {
 public:
  Canvas(double width, double height) {
    picture_.width = width;
    picture_.height = height;
    picture_.body = "<rect class=\"ts-paper\" width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n";
  }

  void line(double x1, double y1, double x2, double y2, const std::string& style) {
    add("<line" + attribute("x1", x1) + attribute("y1", y1) + attribute("x2", x2) +
        attribute("y2", y2) + " " + style + "/>");
  }

  void rect(double x, double y, double width, double height, const std::string& style) {
    add("<rect" + attribute("x", x) + attribute("y", y) + attribute("width", width) +
        attribute("height", height) + " " + style + "/>");
  }

  void circle(double x, double y, double radius, const std::string& style) {
    add("<circle" + attribute("cx", x) + attribute("cy", y) + attribute("r", radius) + " " + style +
        "/>");
  }

  void polyline(const std::vector<double>& x, const std::vector<double>& y, std::size_t series,
                double stroke_width) {
    std::string points;
    for (std::size_t i = 0; i < x.size(); ++i) {
      points += (i == 0 ? "" : " ") + coordinate(x[i]) + "," + coordinate(y[i]);
    }
    add("<polyline points=\"" + points + "\" fill=\"none\" stroke-linejoin=\"round\"" +
        stroke(series, stroke_width) + "/>");
  }

  void label(double x, double y, const std::string& words, double size, Anchor anchor,
             const std::string& style = ink()) {
    const char* const anchors[] = {"start", "middle", "end"};
    add("<text" + attribute("x", x) + attribute("y", y) + attribute("font-size", size) +
        " text-anchor=\"" + anchors[static_cast<int>(anchor)] + "\" " + style + ">" +
        xml_escape(words) + "</text>");
  }

  void label_upward(double x, double y, const std::string& words, double size) {
    const std::string turn =
        "transform=\"rotate(-90 " + coordinate(x) + " " + coordinate(y) + ")\" ";
    label(x, y, words, size, Anchor::middle, turn + ink());
  }

  static std::string ink() { return "class=\"ts-ink\" fill=\"#1f2328\""; }
  static std::string soft() { return "class=\"ts-soft\" fill=\"#57606a\""; }
  static std::string grid() { return "class=\"ts-grid\" stroke=\"#e3e6ea\""; }
  static std::string axis() { return "class=\"ts-axis\" stroke=\"#6e7781\""; }

  static std::string stroke(std::size_t series, double width) {
    const std::string dash = series_dash(series);
    return " class=\"ts" + std::to_string(series % 7) + "\" stroke=\"" + series_color(series) +
           "\"" + attribute("stroke-width", width) +
           (dash.empty() ? "" : " stroke-dasharray=\"" + dash + "\"");
  }

  static std::string fill(std::size_t series) {
    return " class=\"tf" + std::to_string(series % 7) + "\" fill=\"" + series_color(series) + "\"";
  }

  Svg finish(const std::string& text) {
    picture_.text = text;
    return picture_;
  }

 private:
  void add(const std::string& element) { picture_.body += element + "\n"; }
  Svg picture_;
};

}  // namespace detail

inline std::string Svg::markup() const {
  const std::string w = detail::coordinate(width), h = detail::coordinate(height);
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + w + " " + h + "\" width=\"" +
         w + "\" height=\"" + h + "\" role=\"img\" font-family=\"" +
         "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif\">\n<title>" +
         detail::xml_escape(text) + "</title>\n" + detail::dark_style() + "\n" + body + "</svg>\n";
}

inline void Svg::save(const std::string& path) const {
  detail::save_text("Svg::save", path, markup());
}

// In words; markup() is the picture itself.
inline std::ostream& operator<<(std::ostream& out, const Svg& picture) {
  return out << picture.text << "\n";
}

}}  // namespace tinyscale

// >> tinyscale/show/html.hpp
// One self-contained page: words, tables and pictures in a single file without a script.
// Readable on a telephone, on paper, in light and in dark.

namespace tinyscale { inline namespace TINYSCALE_ABI {
namespace detail {

inline std::string html_row(const std::vector<std::string>& cells, const char* tag) {
  std::string out = "<tr>";
  for (const std::string& cell : cells) {
    const bool number = tag[1] == 'd' && looks_like_number(cell);
    out += std::string("<") + tag + (number ? " class=\"n\">" : ">") + xml_escape(cell) + "</" +
           tag + ">";
  }
  return out + "</tr>\n";
}

inline std::string html_table(const Table& table) {
  std::string out = "<div class=\"wide\"><table>\n";
  if (!table.title.empty()) {
    out += "<caption>" + xml_escape(table.title) + "</caption>\n";
  }
  out += "<thead>" + html_row(table.columns, "th") + "</thead>\n<tbody>\n";
  for (const auto& row : table.rows) {
    out += html_row(row, "td");
  }
  return out + "</tbody></table></div>\n";
}

inline const char* page_style() {
  return ":root{color-scheme:light dark;--paper:#fff;--ink:#1f2328;--soft:#57606a;--rule:#d8dee4;"
         "--tint:#f6f8fa}\n"
         "@media (prefers-color-scheme:dark){:root{--paper:#16191d;--ink:#e8e8e8;--soft:#a9b0b8;"
         "--rule:#31363d;--tint:#1f242a}}\n"
         "body{background:var(--paper);color:var(--ink);margin:0 auto;padding:2rem 1.2rem 4rem;"
         "max-width:76rem;font:1.05rem/1.6 system-ui,'Segoe UI',Helvetica,Arial,sans-serif}\n"
         "h1{font-size:1.9rem;line-height:1.2;margin:.5rem 0 1.2rem}\n"
         "h2{font-size:1.3rem;line-height:1.3;margin:2.4rem 0 .6rem;padding-top:.8rem;"
         "border-top:1px solid var(--rule)}\n"
         "p{margin:.7rem 0}.wide{overflow-x:auto;margin:1.1rem 0}\n"
         "p{max-width:48rem}pre{white-space:pre-wrap}\n"
         "table{border-collapse:collapse;font-size:.8rem;line-height:1.4}\n"
         "caption{text-align:left;font-weight:600;padding-bottom:.4rem}\n"
         "th,td{text-align:left;padding:.28rem .9rem .28rem 0;border-bottom:1px solid var(--rule);"
         "white-space:nowrap}\n"
         "th{color:var(--soft);font-weight:600}td.n{text-align:right;"
         "font-variant-numeric:tabular-nums}\n"
         "pre{background:var(--tint);padding:.9rem 1rem;border-radius:6px;overflow-x:auto;"
         "font:.85rem/1.5 ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace}\n"
         "figure{margin:1.4rem 0}svg{max-width:100%;height:auto}\n";
}

}  // namespace detail

class HtmlPage {
 public:
  explicit HtmlPage(const std::string& title) : title_(title) {}

  void heading(const std::string& words) {
    body_ += "<h2>" + detail::xml_escape(words) + "</h2>\n";
  }
  void text(const std::string& words) {  // an empty line starts a new paragraph
    std::size_t begin = 0;
    while (begin <= words.size()) {
      const std::size_t end = std::min(words.find("\n\n", begin), words.size());
      if (end > begin) {
        body_ += "<p>" + detail::xml_escape(words.substr(begin, end - begin)) + "</p>\n";
      }
      begin = end + 2;
    }
  }
  void code(const std::string& words) { body_ += "<pre>" + detail::xml_escape(words) + "</pre>\n"; }
  void table(const Table& table) { body_ += detail::html_table(table); }
  void picture(const Svg& picture) { body_ += "<figure>" + picture.markup() + "</figure>\n"; }

  std::string html() const {
    const std::string title = detail::xml_escape(title_);
    return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
           "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>" +
           title + "</title>\n<style>\n" + detail::page_style() +
           "</style>\n</head>\n<body>\n<h1>" + title + "</h1>\n" + body_ + "</body>\n</html>\n";
  }

  // Throws Error when the path cannot be written; an old page stays whole.
  void save(const std::string& path) const { detail::save_text("HtmlPage::save", path, html()); }

 private:
  std::string title_;
  std::string body_;
};

}}  // namespace tinyscale

// >> tinyscale/show/display.hpp
// A value shown where the reader is: as a picture or table in a notebook, as text elsewhere.
// Notebook kernels look for mime_bundle_repr(x), which must return their own json type. That type
// is asked for only when a kernel calls: the header never includes it.
// TINYSCALE_DISPLAY=frame in the environment writes \x02MIME <type> <base64>\x03 instead, which
// a small kernel can turn into the same.

namespace xcpp {
struct tinyscale_probe {};  // lets argument-dependent lookup reach the kernel's own functions
}  // namespace xcpp

namespace tinyscale { inline namespace TINYSCALE_ABI {

struct ShowOptions {
  std::ostream* out = &std::cout;  // null: silent
  std::string path;                // not empty: the picture or page is also written there
};

namespace detail {

template <class>
struct lazy {
  using type = xcpp::tinyscale_probe;
};
template <class Tag>
using probe = typename lazy<Tag>::type;  // known only when a kernel calls

inline std::string base64(const std::string& bytes) {
  static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;  // three bytes are four letters of six bits
    for (std::size_t k = 0; k < 3; ++k) {
      group = group << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    }
    for (std::size_t k = 0; k < 4; ++k) {
      out += i + k <= bytes.size() ? letters[group >> (18 - 6 * k) & 63u] : '=';
    }
  }
  return out;
}

inline bool frames_wanted() { return environment("TINYSCALE_DISPLAY") == "frame"; }

inline void show_frame(std::ostream& out, const std::string& type, const std::string& data) {
  out << '\x02' << "MIME " << type << ' ' << base64(data) << '\x03' << std::endl;
}

}  // namespace detail

template <class Tag = void,
          class Json = decltype(mime_bundle_repr(std::declval<detail::probe<Tag>>()))>
Json mime_bundle_repr(const Svg& picture) {
  Json bundle = Json::object();
  bundle["text/plain"] = picture.text;
  bundle["image/svg+xml"] = picture.markup();
  return bundle;
}

template <class Tag = void,
          class Json = decltype(mime_bundle_repr(std::declval<detail::probe<Tag>>()))>
Json mime_bundle_repr(const Table& table) {
  Json bundle = Json::object();
  bundle["text/plain"] = table.text();
  bundle["text/html"] = detail::html_table(table);
  return bundle;
}

// A picture: drawn in a notebook, described in words on a terminal.
inline void show(const Svg& picture, const ShowOptions& options = {}) {
  if (!options.path.empty()) {
    picture.save(options.path);
  }
  if (options.out == nullptr) {
    return;
  }
  if (detail::frames_wanted()) {
    detail::show_frame(*options.out, "image/svg+xml", picture.markup());
    return;
  }
#ifdef XCPP_DISPLAY_HPP  // the notebook included the kernel's display header before this one
  xcpp::display(picture);
#else
  *options.out << picture;
#endif
}

// A table: set in a notebook, in aligned columns on a terminal.
inline void show(const Table& table, const ShowOptions& options = {}) {
  if (!options.path.empty()) {
    HtmlPage page(table.title.empty() ? "Table" : table.title);
    page.table(table);
    page.save(options.path);
  }
  if (options.out == nullptr) {
    return;
  }
  if (detail::frames_wanted()) {
    detail::show_frame(*options.out, "text/html", detail::html_table(table));
    return;
  }
#ifdef XCPP_DISPLAY_HPP
  xcpp::display(table);
#else
  *options.out << table;
#endif
}

// Anything else that can be printed: reports, tensors, numbers.
template <class T>
void show(const T& value, const ShowOptions& options = {}) {
  if (options.out != nullptr) {
    *options.out << value << '\n';
  }
}

}}  // namespace tinyscale

// >> tinyscale/show/heat_map.hpp
// A matrix as coloured cells: how many bytes each device sent to each other.
// Colours run from dark blue to yellow and grow only lighter (after cividis, Nunez, Anderton and
// Renslow 2018), so the order survives any colour vision and grey print.

namespace tinyscale { inline namespace TINYSCALE_ABI {

// bytes[i][j] went from device i to device j.
struct LinkHeatMap {
  std::string title = "Bytes over each link";
  List<std::vector<double>> bytes;
  std::vector<std::string> names;  // of the devices; empty: their numbers
};

namespace detail {

struct CellColor {
  std::string fill;
  std::string ink;  // black or white, whichever reads better on it
};

inline CellColor cell_color(double share) {  // 0 .. 1
  static const int stops[6][3] = {{0, 34, 78},     {53, 69, 108},   {102, 105, 112},
                                  {148, 142, 119}, {200, 184, 102}, {254, 232, 56}};
  const double at = std::min(1.0, std::max(0.0, share)) * 5;
  const int below = std::min(4, static_cast<int>(at));
  int rgb[3];
  for (int c = 0; c < 3; ++c) {
    const double mixed = stops[below][c] + (at - below) * (stops[below + 1][c] - stops[below][c]);
    rgb[c] = static_cast<int>(std::lround(mixed));
  }
  const double luma = 0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2];
  return {"rgb(" + std::to_string(rgb[0]) + "," + std::to_string(rgb[1]) + "," +
              std::to_string(rgb[2]) + ")",
          luma > 125 ? "#000000" : "#ffffff"};
}

inline double check_heat_map(const LinkHeatMap& map) {
  const std::size_t n = map.bytes.size();
  double most = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (map.bytes[i].size() != n) {
      detail::fail({"svg: link heat map: row " + std::to_string(i) + " has " +
                    std::to_string(map.bytes[i].size()) + " of " + std::to_string(n) +
                    " columns; give one for each device"});
    }
    for (const double value : map.bytes[i]) {
      if (!is_finite(value) || value < 0) {
        detail::fail({"svg: link heat map: row " + std::to_string(i) +
                      " holds a negative or not finite count of bytes; give 0 or more"});
      }
      most = std::max(most, value);
    }
  }
  if (!map.names.empty() && map.names.size() != n) {
    detail::fail({"svg: link heat map: " + std::to_string(map.names.size()) + " names for " +
                  std::to_string(n) + " devices; give one for each device, or none"});
  }
  return most;
}

inline void draw_scale(Canvas& canvas, double x, double top, double bottom, double most) {
  const int steps = 48;
  const double step = (bottom - top) / steps;
  for (int i = 0; i < steps; ++i) {
    const CellColor color = cell_color((i + 0.5) / steps);
    canvas.rect(x, bottom - (i + 1) * step, 16, step + 0.4, "fill=\"" + color.fill + "\"");
  }
  canvas.label(x + 22, top + 9, format_bytes(most), 12, Anchor::start, Canvas::soft());
  canvas.label(x + 22, bottom, "0 B", 12, Anchor::start, Canvas::soft());
}

}  // namespace detail

// Rows send, columns receive; an empty cell is a pair that exchanged nothing.
inline Svg svg(const LinkHeatMap& map) {
  using detail::Anchor;
  using detail::Canvas;
  const double most = detail::check_heat_map(map);
  const std::size_t n = map.bytes.size();
  const double cell = std::max(6.0, std::min(64.0, 512 / std::max(1.0, static_cast<double>(n))));
  const double side = cell * static_cast<double>(n), left = 84, top = 92;
  Canvas canvas(std::max(420.0, left + side + 130), top + side + 28);
  canvas.label(20, 28, detail::shorten(map.title, 44), 16, Anchor::start,
               Canvas::ink() + " font-weight=\"600\"");
  canvas.label(left + side / 2, 62, "to device", 13, Anchor::middle);
  canvas.label_upward(26, top + side / 2, "from device", 13);
  const std::size_t stride = 1 + static_cast<std::size_t>(16 / cell);
  double total = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const double at = cell * static_cast<double>(i);
    if (i % stride == 0) {
      const std::string name = map.names.empty() ? std::to_string(i) : map.names[i];
      canvas.label(left - 7, top + at + cell / 2 + 4, detail::shorten(name, 6), 12, Anchor::end,
                   Canvas::soft());
      canvas.label(left + at + cell / 2, top - 8, detail::shorten(name, 6), 12, Anchor::middle,
                   Canvas::soft());
    }
    for (std::size_t j = 0; j < n; ++j) {
      const double bytes = map.bytes[i][j], x = left + cell * static_cast<double>(j);
      total += bytes;
      if (bytes <= 0) {
        canvas.rect(x + 0.5, top + at + 0.5, cell - 1, cell - 1,
                    "class=\"ts-empty\" fill=\"#eef0f2\"");
        continue;
      }
      const detail::CellColor color = detail::cell_color(bytes / most);
      canvas.rect(x + 0.5, top + at + 0.5, cell - 1, cell - 1, "fill=\"" + color.fill + "\"");
      const std::string words = format_bytes(bytes);
      const double size = std::min(12.0, (cell - 6) / std::max(1.0, detail::drawn_width(words, 1)));
      if (size >= 7.5) {
        canvas.label(x + cell / 2, top + at + cell / 2 + 0.36 * size, words, size, Anchor::middle,
                     "fill=\"" + color.ink + "\"");
      }
    }
  }
  if (most > 0) {
    detail::draw_scale(canvas, left + side + 22, top, top + std::max(side, 60.0), most);
  } else {
    canvas.label(20, top + side + 18, "nothing was sent", 12, Anchor::start, Canvas::soft());
  }
  return canvas.finish(map.title + ": " + std::to_string(n) + " devices, " + format_bytes(total) +
                       " in all, at most " + format_bytes(most) + " from one to another");
}

}}  // namespace tinyscale

// >> tinyscale/show/plot.hpp
// Lines and points over two axes, each linear or logarithmic.
// A value that is not finite, or not positive on a logarithmic axis, is left out; what lies
// outside the axes is cut at the frame.

namespace tinyscale { inline namespace TINYSCALE_ABI {

enum class Scale { linear, logarithmic };
enum class Mark { line, points, hollow_points };

struct Axis {
  std::string label;  // with its unit: "loss, nats per token"
  Scale scale = Scale::linear;
  double low = 0, high = 0;  // low == high: taken from the data
};

struct Series {
  std::string name;  // empty: not in the legend
  std::vector<double> x, y;
  Mark mark = Mark::line;
};

struct Plot {
  std::string title;
  Axis x, y;
  List<Series> series;
  double width = 720, height = 420;
};

namespace detail {

inline bool drawable(const Axis& axis, double value) {
  return is_finite(value) && (axis.scale == Scale::linear || value > 0);
}

// 1500 -> "1.5k", 2e12 -> "2T": short enough for a tick.
inline std::string tick_text(double value) {
  static const char* const suffixes[] = {"", "k", "M", "G", "T", "P", "E"};
  int thousands = 0;
  double shown = value;
  while (std::fabs(shown) >= 1000 && thousands < 6) {
    shown /= 1000;
    ++thousands;
  }
  return printed('g', 4, shown) + suffixes[thousands];
}

// Limits from the data where the user gave none.
inline Axis fitted(Axis axis, const std::vector<double>& values) {
  const bool logarithmic = axis.scale == Scale::logarithmic;
  if (axis.low == axis.high) {
    bool any = false;
    for (const double value : values) {
      if (drawable(axis, value)) {
        axis.low = any ? std::min(axis.low, value) : value;
        axis.high = any ? std::max(axis.high, value) : value;
        any = true;
      }
    }
    if (!any) {
      axis.low = logarithmic ? 0.1 : 0;
      axis.high = 1;
    } else if (logarithmic) {
      axis.low /= 1.3;
      axis.high *= 1.3;
    } else {
      const double room = axis.high > axis.low ? 0.04 * (axis.high - axis.low)
                                               : std::max(0.5, 0.1 * std::fabs(axis.high));
      axis.low = axis.low >= 0 && axis.low < 2 * room ? 0 : axis.low - room;
      axis.high += room;
    }
  }
  if (!is_finite(axis.low) || !is_finite(axis.high) || axis.low >= axis.high ||
      (logarithmic && axis.low <= 0)) {
    detail::fail({"svg: axis \"" + axis.label + "\" runs from " + tick_text(axis.low) + " to " +
                  tick_text(axis.high) + "; low must be below high" +
                  (logarithmic ? ", and above 0 on a logarithmic axis" : "")});
  }
  return axis;
}

inline std::vector<double> linear_ticks(const Axis& axis) {
  const double span = axis.high - axis.low;
  double step = std::pow(10.0, std::floor(std::log10(span / 5)));
  for (const double factor : {2.0, 2.5, 2.0}) {  // 1, 2, 5, 10
    step *= span / step > 7 ? factor : 1;
  }
  std::vector<double> ticks;
  const double first = std::ceil(axis.low / step - 1e-9);
  for (double i = first; i * step <= axis.high + 1e-9 * span && ticks.size() < 20; ++i) {
    ticks.push_back(i * step + 0.0);  // + 0.0: never "-0"
  }
  return ticks;
}

inline std::vector<double> log_ticks(const Axis& axis) {
  const double decades = std::log10(axis.high / axis.low);
  const int stride = std::max(1, static_cast<int>(std::ceil(decades / 8)));
  std::vector<double> ticks;
  const int first = static_cast<int>(std::floor(std::log10(axis.low)));
  for (int e = first; e <= first + static_cast<int>(decades) + 2; e += stride) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double tick = factor * std::pow(10.0, e);
      const bool wanted = factor < 1.5 || decades < 2.5;
      if (wanted && tick >= axis.low * (1 - 1e-9) && tick <= axis.high * (1 + 1e-9)) {
        ticks.push_back(tick);
      }
    }
  }
  return ticks;
}

// The rectangle of a plot: values in, pixels out.
struct Frame {
  Axis x, y;
  double left = 0, right = 0, top = 0, bottom = 0;

  static double share(const Axis& axis, double value) {
    return axis.scale == Scale::linear
               ? (value - axis.low) / (axis.high - axis.low)
               : std::log(value / axis.low) / std::log(axis.high / axis.low);
  }
  double px(double value) const { return left + share(x, value) * (right - left); }
  double py(double value) const { return bottom - share(y, value) * (bottom - top); }
  bool holds(double a, double b) const {
    return a >= left - 0.01 && a <= right + 0.01 && b >= top - 0.01 && b <= bottom + 0.01;
  }
};

inline void draw_axes(Canvas& canvas, const Frame& frame) {
  const auto ticks_x = frame.x.scale == Scale::linear ? linear_ticks(frame.x) : log_ticks(frame.x);
  const auto ticks_y = frame.y.scale == Scale::linear ? linear_ticks(frame.y) : log_ticks(frame.y);
  for (const double tick : ticks_x) {
    const double at = frame.px(tick);
    canvas.line(at, frame.top, at, frame.bottom, Canvas::grid());
    canvas.label(at, frame.bottom + 17, tick_text(tick), 12, Anchor::middle, Canvas::soft());
  }
  double widest = 0;
  for (const double tick : ticks_y) {
    const double at = frame.py(tick);
    canvas.line(frame.left, at, frame.right, at, Canvas::grid());
    canvas.label(frame.left - 7, at + 4, tick_text(tick), 12, Anchor::end, Canvas::soft());
    widest = std::max(widest, drawn_width(tick_text(tick), 12));
  }
  canvas.line(frame.left, frame.bottom, frame.right, frame.bottom, Canvas::axis());
  canvas.line(frame.left, frame.top, frame.left, frame.bottom, Canvas::axis());
  canvas.label((frame.left + frame.right) / 2, frame.bottom + 38, frame.x.label, 13,
               Anchor::middle);
  canvas.label_upward(frame.left - widest - 16, (frame.top + frame.bottom) / 2, frame.y.label, 13);
}

// The part of a segment that lies in the frame (Liang and Barsky); false if none does.
inline bool cut(const Frame& frame, double& x1, double& y1, double& x2, double& y2) {
  const double dx = x2 - x1, dy = y2 - y1;
  const double p[] = {-dx, dx, -dy, dy};
  const double q[] = {x1 - frame.left, frame.right - x1, y1 - frame.top, frame.bottom - y1};
  double begin = 0, end = 1;
  for (int i = 0; i < 4; ++i) {
    if (p[i] == 0 && q[i] < 0) {
      return false;
    }
    if (p[i] < 0) {
      begin = std::max(begin, q[i] / p[i]);
    } else if (p[i] > 0) {
      end = std::min(end, q[i] / p[i]);
    }
  }
  x2 = x1 + end * dx;
  y2 = y1 + end * dy;
  x1 += begin * dx;
  y1 += begin * dy;
  return begin <= end;
}

inline void draw_line(Canvas& canvas, const Frame& frame, const Series& line, std::size_t i) {
  std::vector<double> xs, ys;
  const auto flush = [&]() {
    if (xs.size() > 1) {
      canvas.polyline(xs, ys, i, 2);
    }
    xs.clear();
    ys.clear();
  };
  for (std::size_t k = 1; k < line.x.size(); ++k) {
    if (!drawable(frame.x, line.x[k - 1]) || !drawable(frame.y, line.y[k - 1]) ||
        !drawable(frame.x, line.x[k]) || !drawable(frame.y, line.y[k])) {
      flush();
      continue;
    }
    double x1 = frame.px(line.x[k - 1]), y1 = frame.py(line.y[k - 1]);
    double x2 = frame.px(line.x[k]), y2 = frame.py(line.y[k]);
    if (!cut(frame, x1, y1, x2, y2)) {
      flush();
      continue;
    }
    if (xs.empty() || xs.back() != x1 || ys.back() != y1) {
      flush();
      xs.push_back(x1);
      ys.push_back(y1);
    }
    xs.push_back(x2);
    ys.push_back(y2);
  }
  flush();
}

inline void draw_mark(Canvas& canvas, double x, double y, Mark mark, std::size_t i) {
  if (mark == Mark::hollow_points) {
    const std::string style = " class=\"ts" + std::to_string(i % 7) + "\" stroke=\"";
    canvas.circle(x, y, 4, "fill=\"none\" stroke-width=\"1.8\"" + style + series_color(i) + "\"");
  } else {
    canvas.circle(x, y, 4.2, Canvas::fill(i));
  }
}

inline void draw_series(Canvas& canvas, const Frame& frame, const Series& one, std::size_t i) {
  if (one.mark == Mark::line && one.x.size() > 1) {
    draw_line(canvas, frame, one, i);
    return;
  }
  for (std::size_t k = 0; k < one.x.size(); ++k) {
    if (drawable(frame.x, one.x[k]) && drawable(frame.y, one.y[k])) {
      const double x = frame.px(one.x[k]), y = frame.py(one.y[k]);
      if (frame.holds(x, y)) {
        draw_mark(canvas, x, y, one.mark, i);
      }
    }
  }
}

// Names with a sample of their line, in rows from (left, y) on; returns the y below the last.
inline double draw_legend(Canvas& canvas, const List<Series>& series, double left, double right,
                          double y) {
  double x = left;
  bool any = false;
  for (std::size_t i = 0; i < series.size(); ++i) {
    if (series[i].name.empty()) {
      continue;
    }
    const std::string name = shorten(series[i].name, 60);
    const double wide = 34 + drawn_width(name, 12) + 18;
    if (any && x + wide > right) {
      x = left;
      y += 19;
    }
    if (series[i].mark == Mark::line) {
      canvas.polyline({x, x + 26}, {y - 4, y - 4}, i, 2);
    } else {
      draw_mark(canvas, x + 13, y - 4, series[i].mark, i);
    }
    canvas.label(x + 33, y, name, 12, Anchor::start);
    x += wide;
    any = true;
  }
  return any ? y + 14 : y - 6;
}

// Title, legend, axes and every series; the room below `height` is the caller's.
inline Frame draw_plot(Canvas& canvas, const Plot& plot) {
  std::vector<double> xs, ys;
  for (const Series& one : plot.series) {
    if (one.x.size() != one.y.size()) {
      detail::fail({"svg: series \"" + one.name + "\" has " + std::to_string(one.x.size()) +
                    " x values and " + std::to_string(one.y.size()) +
                    " y values; give one y for each x"});
    }
    for (std::size_t k = 0; k < one.x.size(); ++k) {  // a pair counts when both can be drawn
      if (drawable(plot.x, one.x[k]) && drawable(plot.y, one.y[k])) {
        xs.push_back(one.x[k]);
        ys.push_back(one.y[k]);
      }
    }
  }
  Frame frame;
  frame.x = fitted(plot.x, xs);
  frame.y = fitted(plot.y, ys);
  frame.left = 82;
  frame.right = plot.width - 26;
  canvas.label(20, 28, shorten(plot.title, static_cast<std::size_t>(plot.width / 9.6)), 16,
               Anchor::start, Canvas::ink() + " font-weight=\"600\"");
  frame.top = draw_legend(canvas, plot.series, 22, frame.right, 54);
  frame.bottom = plot.height - 54;
  draw_axes(canvas, frame);
  for (std::size_t i = 0; i < plot.series.size(); ++i) {
    draw_series(canvas, frame, plot.series[i], i);
  }
  if (xs.empty()) {
    canvas.label((frame.left + frame.right) / 2, (frame.top + frame.bottom) / 2, "no data", 14,
                 Anchor::middle, Canvas::soft());
  }
  return frame;
}

}  // namespace detail

// A plot as a picture; its text names the title, the axes and the last point of each series.
inline Svg svg(const Plot& plot) {
  detail::Canvas canvas(plot.width, plot.height);
  detail::draw_plot(canvas, plot);
  std::string text = plot.title + " (" + plot.y.label + " over " + plot.x.label + ")";
  for (const Series& one : plot.series) {
    if (!one.name.empty() && !one.x.empty()) {
      text += "; " + one.name + ": " + detail::tick_text(one.y.back()) + " at " +
              detail::tick_text(one.x.back());
    }
  }
  return canvas.finish(text);
}

}}  // namespace tinyscale

// >> tinyscale/show/pictures.hpp
// The roofline and the loss curve.
// Roofline: an op of I FLOPs per byte reaches at most min(peak, I x bandwidth) FLOPs per second
// (Williams, Waterman and Patterson 2009). A report's dots are its formula; its rings measured.

namespace tinyscale { inline namespace TINYSCALE_ABI {

struct RooflinePoint {
  std::string name;
  double flops_per_byte = 0;
  double flops_per_second = 0;           // by the formula; 0: none
  double measured_flops_per_second = 0;  // 0: not measured
};

struct Roof {
  std::string name;
  double bytes_per_second = 0;
};

struct RooflinePlot {
  std::string title;
  double peak_flops_per_second = 0;    // of matmuls
  double vector_flops_per_second = 0;  // 0: not drawn
  List<Roof> roofs;                    // one slope for each memory level
  List<RooflinePoint> points;
};

struct LossCurve {
  std::string title = "Loss";
  std::vector<double> train_steps, train;
  std::vector<double> validation_steps, validation;
  List<Series> others;  // other runs of the same training
};

namespace detail {

// A slope for each memory level up to its ridge, the flat peak, and the vector peak.
inline List<Series> roof_lines(const RooflinePlot& plot, double low, double high) {
  const double peak = plot.peak_flops_per_second;
  double first_ridge = high;
  for (const Roof& roof : plot.roofs) {
    first_ridge = std::min(first_ridge, peak / roof.bytes_per_second);
  }
  List<Series> lines = {
      {"matmul peak " + format_si(peak, "FLOP/s"), {first_ridge, high}, {peak, peak}, Mark::line}};
  for (const Roof& roof : plot.roofs) {
    const double ridge = std::min(high, peak / roof.bytes_per_second);
    lines.push_back({roof.name + " " + format_si(roof.bytes_per_second, "B/s"),
                     {low, ridge},
                     {low * roof.bytes_per_second, ridge * roof.bytes_per_second},
                     Mark::line});
  }
  const double vector_peak = plot.vector_flops_per_second;
  if (vector_peak > 0) {
    lines.push_back({"vector peak " + format_si(vector_peak, "FLOP/s"),
                     {low, high},
                     {vector_peak, vector_peak},
                     Mark::line});
  }
  return lines;
}

inline void check_roofline(const RooflinePlot& plot) {
  if (!(plot.peak_flops_per_second > 0) || plot.roofs.empty()) {
    detail::fail({"svg: roofline \"" + plot.title +
                  "\" has no peak or no memory level; give a peak above 0 and one roof or more"});
  }
  for (const Roof& roof : plot.roofs) {
    if (!(roof.bytes_per_second > 0)) {
      detail::fail({"svg: roofline \"" + plot.title + "\": memory level \"" + roof.name +
                    "\" has no bandwidth; give bytes per second above 0"});
    }
  }
}

struct Box {
  double left, top, right, bottom;
};

inline bool overlap(const Box& a, const Box& b) {
  return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
}

// Small boxes along the lines, so that no number is written across one.
inline void take_lines(const Frame& frame, const List<Series>& lines, List<Box>& taken) {
  for (const Series& line : lines) {
    for (int i = 0; line.mark == Mark::line && i <= 120; ++i) {
      const double at = i / 120.0;
      const double x = frame.px(line.x[0]) + at * (frame.px(line.x[1]) - frame.px(line.x[0]));
      const double y = frame.py(line.y[0]) + at * (frame.py(line.y[1]) - frame.py(line.y[0]));
      taken.push_back({x - 1, y - 1, x + 1, y + 1});
    }
  }
}

// Writes a point's number beside it where nothing stands yet, else at the end of a thin leader.
inline void number_point(Canvas& canvas, const Frame& frame, List<Box>& taken, double x, double y,
                         const std::string& number) {
  const double wide = drawn_width(number, 12) + 2;
  for (const double reach : {9.0, 17.0, 27.0, 39.0, 53.0, 69.0}) {
    for (int turn = 0; turn < 12; ++turn) {
      const double angle = 3.14159265 * (-0.25 + turn / 6.0);
      const double cx = x + std::cos(angle) * (reach + wide / 2);
      const double cy = y + std::sin(angle) * (reach + 3);
      const Box box{cx - wide / 2, cy - 6, cx + wide / 2, cy + 6};
      const bool inside = box.left > frame.left + 2 && box.right < frame.right - 2 &&
                          box.top > frame.top + 2 && box.bottom < frame.bottom - 2;
      const bool free = std::none_of(taken.begin(), taken.end(),
                                     [&](const Box& other) { return overlap(box, other); });
      if (inside && free) {
        if (reach > 10) {
          canvas.line(x, y, cx, cy + (cy < y ? 5 : -5), Canvas::axis());
        }
        canvas.label(cx, cy + 4, number, 12, Anchor::middle,
                     Canvas::ink() + " font-weight=\"600\"");
        taken.push_back(box);
        return;
      }
    }
  }
}

// The first 24 points get their numbers, clear of every line, dot and ring.
inline void number_points(Canvas& canvas, const Frame& frame, const List<Series>& lines,
                          const Series& formula, const Series& measured) {
  List<Box> taken;
  take_lines(frame, lines, taken);
  for (const Series* dots : {&formula, &measured}) {
    for (std::size_t i = 0; i < dots->x.size(); ++i) {
      if (dots->y[i] > 0) {
        const double x = frame.px(dots->x[i]), y = frame.py(dots->y[i]);
        taken.push_back({x - 5, y - 5, x + 5, y + 5});
      }
    }
  }
  for (std::size_t i = 0; i < formula.x.size() && i < 24; ++i) {
    const double y = formula.y[i] > 0 ? formula.y[i] : measured.y[i];
    number_point(canvas, frame, taken, frame.px(formula.x[i]), frame.py(y), std::to_string(i + 1));
  }
}

// Numbers and names below the plot, in columns; what does not fit is counted.
inline void draw_key(Canvas& canvas, const List<RooflinePoint>& points, double width, double top,
                     std::size_t rows) {
  const std::size_t columns = 3, room = rows * columns;
  const double column = (width - 40) / static_cast<double>(columns);
  for (std::size_t i = 0; i < points.size() && i < room; ++i) {
    const std::size_t left = i / rows;  // columns before this one
    const double x = 20 + column * static_cast<double>(left);
    const double y = top + 17 * static_cast<double>(i % rows);
    std::string name = std::to_string(i + 1) + "  " + points[i].name;
    if (i + 1 == room && points.size() > room) {
      name = "... and " + std::to_string(points.size() - room + 1) + " more";
    }
    canvas.label(x, y, shorten(name, static_cast<std::size_t>(column / 6.6)), 11.5, Anchor::start);
  }
}

// The frame's limits: every point and every ridge inside, one decade of room around them.
inline void roofline_limits(const RooflinePlot& plot, Axis& x, Axis& y) {
  double low = 0, high = 0, bottom = 0;
  const auto widen = [&](double value) {
    low = low > 0 ? std::min(low, value) : value;
    high = std::max(high, value);
  };
  double fastest = 0;
  for (const Roof& roof : plot.roofs) {
    widen(plot.peak_flops_per_second / roof.bytes_per_second);
    fastest = std::max(fastest, roof.bytes_per_second);
  }
  for (const RooflinePoint& point : plot.points) {
    widen(point.flops_per_byte);
    for (const double speed : {point.flops_per_second, point.measured_flops_per_second}) {
      bottom = speed > 0 && (bottom <= 0 || speed < bottom) ? speed : bottom;
    }
  }
  x.low = low / 4;
  x.high = high * 6;
  double slowest = plot.peak_flops_per_second;
  for (const Roof& roof : plot.roofs) {
    slowest = std::min(slowest, x.low * roof.bytes_per_second);
  }
  y.low = (bottom > 0 ? std::min(bottom / 2, slowest * 4) : slowest);
  y.high = std::max(plot.peak_flops_per_second, plot.vector_flops_per_second) * 2.5;
}

// Points that a logarithmic plot can show; the names of the others go into `left_out`.
inline List<RooflinePoint> drawable_points(const RooflinePlot& plot, std::string& left_out) {
  List<RooflinePoint> points;
  for (const RooflinePoint& point : plot.points) {
    const bool speed = point.flops_per_second > 0 || point.measured_flops_per_second > 0;
    if (speed && point.flops_per_byte > 0 && detail::is_finite(point.flops_per_byte)) {
      points.push_back(point);
    } else {
      left_out += (left_out.empty() ? "" : ", ") + point.name;
    }
  }
  return points;
}

}  // namespace detail

// Dots: the formula. Rings: measured. Numbers are named below; ops without FLOPs are listed.
inline Svg svg(const RooflinePlot& given) {
  detail::check_roofline(given);
  RooflinePlot plot = given;
  std::string left_out;
  plot.points = detail::drawable_points(given, left_out);
  Plot axes;
  axes.title = plot.title;
  axes.x = {"arithmetic intensity, FLOP per byte", Scale::logarithmic, 0, 0};
  axes.y = {"FLOP per second", Scale::logarithmic, 0, 0};
  detail::roofline_limits(plot, axes.x, axes.y);
  axes.series = detail::roof_lines(plot, axes.x.low, axes.x.high);
  Series formula, measured;
  for (const RooflinePoint& point : plot.points) {
    formula.x.push_back(point.flops_per_byte);
    formula.y.push_back(point.flops_per_second);
    measured.x.push_back(point.flops_per_byte);
    measured.y.push_back(point.measured_flops_per_second);
  }
  formula.name = plot.points.empty() ? "" : "op, by formula";
  formula.mark = Mark::points;
  bool any_measured = false;
  for (const double speed : measured.y) {
    any_measured = any_measured || speed > 0;
  }
  measured.name = any_measured ? "op, measured" : "";
  measured.mark = Mark::hollow_points;
  axes.series.push_back(formula);
  axes.series.push_back(measured);
  const std::size_t rows = std::min<std::size_t>(8, (plot.points.size() + 2) / 3);
  const double key = 17 * static_cast<double>(rows) + (left_out.empty() ? 0 : 20);
  axes.height = 440;
  detail::Canvas canvas(axes.width, axes.height + key + (key > 0 ? 12 : 0));
  const detail::Frame frame = detail::draw_plot(canvas, axes);
  detail::number_points(canvas, frame, axes.series, formula, measured);
  detail::draw_key(canvas, plot.points, axes.width, axes.height + 6, rows);
  if (!left_out.empty()) {
    canvas.label(20, axes.height + 6 + 17 * static_cast<double>(rows),
                 detail::shorten("without FLOPs, not drawn: " + left_out, 100), 11.5,
                 detail::Anchor::start, detail::Canvas::soft());
  }
  return canvas.finish(plot.title + ": " + std::to_string(plot.points.size()) +
                       " ops under a peak of " + format_si(plot.peak_flops_per_second, "FLOP/s"));
}

// A profile's ops under the roof of a chip, priced in the report's number format.
inline Svg svg(const RooflineReport& report, const Chip& chip) {
  RooflinePlot plot;
  plot.title = "Roofline of " + chip.name + " in " + name_of(report.format);
  plot.peak_flops_per_second = chip.peak(report.format);
  plot.vector_flops_per_second = report.vector_flops;
  for (const MemoryLevel& level : chip.levels) {
    if (level.bandwidth > 0) {
      plot.roofs.push_back({level.name, level.bandwidth});
    }
  }
  const MemoryLevel main = detail::level_for(chip, HUGE_VAL);
  if (main.bandwidth > 0 && (plot.roofs.empty() || plot.roofs.back().name != main.name)) {
    plot.roofs.push_back({main.name, main.bandwidth});
  }
  for (const RooflineRow& row : report.rows) {
    const double flops = row.matmul_flops + row.vector_flops;
    RooflinePoint point;
    point.name = row.name + (row.shape.empty() ? "" : " " + row.shape);
    point.flops_per_byte = row.bytes > 0 ? flops / row.bytes : 0;
    point.flops_per_second = row.seconds > 0 ? flops / row.seconds : 0;
    const bool timed = report.on_host && row.measured > 0;
    point.measured_flops_per_second = timed ? flops / row.measured : 0;
    plot.points.push_back(point);
  }
  return svg(plot);
}

// Loss over steps: the training batch's and the validation split's.
inline Svg svg(const LossCurve& curve) {
  Plot plot;
  plot.title = curve.title;
  plot.x.label = "step";
  plot.y.label = "loss, nats per token";
  plot.series.push_back({"train", curve.train_steps, curve.train, Mark::line});
  if (!curve.validation.empty() || !curve.validation_steps.empty()) {
    plot.series.push_back({"validation", curve.validation_steps, curve.validation, Mark::line});
  }
  for (const Series& other : curve.others) {
    plot.series.push_back(other);
  }
  return svg(plot);
}

}}  // namespace tinyscale

// >> tinyscale/show/array_pictures.hpp
// Pictures of a systolic array: frames of its registers, busy PEs by tick, where the PE-ticks went,
// and what shape of matmul keeps it busy.

namespace tinyscale { inline namespace TINYSCALE_ABI {

namespace detail {

// A state's letter, what it means, and its fill.
struct PeLook {
  char letter;
  const char* name;
  std::string fill;
};

inline const List<PeLook>& pe_looks() {
  static const List<PeLook> looks = {
      {'#', "useful", Canvas::fill(0)},
      {'o', "padded", Canvas::fill(4)},
      {'>', "fill", " class=\"ts-empty\" fill=\"#eef0f2\""},
      {'<', "drain", Canvas::fill(6) + " fill-opacity=\"0.45\""},
      {'v', "weight shift", Canvas::fill(2)},
      {'.', "stall", Canvas::fill(1)},
  };
  return looks;
}

inline const PeLook& look_of(char letter) {
  for (const PeLook& look : pe_looks()) {
    if (look.letter == letter) {
      return look;
    }
  }
  return pe_looks()[2];
}

inline void draw_looks(Canvas& canvas, double x, double y) {
  for (const PeLook& look : pe_looks()) {
    canvas.rect(x, y - 10, 12, 12, look.fill);
    canvas.label(x + 17, y, look.name, 12, Anchor::start, Canvas::soft());
    x += 32 + drawn_width(look.name, 12);
  }
}

// One frame; small arrays name what a PE multiplies: x indices over w indices.
inline void draw_frame(Canvas& canvas, const Wavefront& frame, double left, double top,
                       double cell) {
  canvas.label(left, top - 7,
               cat("tick ", frame.tick, ": ", frame.busy(), " of ", frame.rows * frame.cols), 12,
               Anchor::start);
  for (std::int64_t r = 0; r < frame.rows; ++r) {
    for (std::int64_t c = 0; c < frame.cols; ++c) {
      const WavefrontCell& pe = frame.at(r, c);
      const double x = left + cell * static_cast<double>(c);
      const double y = top + cell * static_cast<double>(r);
      const double gap = cell > 8 ? 1 : 0;
      canvas.rect(x, y, cell - gap, cell - gap, look_of(pe.state).fill);
      if (cell >= 34 && pe.state == '#') {
        const std::string white = "fill=\"#ffffff\"";
        canvas.label(x + cell / 2, y + cell / 2 - 2, cat("x", pe.m, ",", pe.k), 9.5, Anchor::middle,
                     white);
        canvas.label(x + cell / 2, y + cell / 2 + 10, cat("w", pe.k, ",", pe.n), 9.5,
                     Anchor::middle, white);
      }
    }
  }
}

// One bar of the ledger, its parts from left to right in the order of the table.
inline void draw_ledger(Canvas& canvas, const SystolicTiming& t, double left, double y,
                        double width) {
  const LossLedger& l = t.ledger;
  const std::int64_t parts[] = {l.useful, l.padded,       l.fill,
                                l.drain,  l.weight_shift, l.weight_stall + l.dma_stall};
  double x = left;
  for (std::size_t i = 0; i < 6; ++i) {
    const double all = std::max(1.0, static_cast<double>(l.total()));
    const double share = static_cast<double>(parts[i]) / all;
    canvas.rect(x, y, share * width, 22, pe_looks()[i].fill);
    if (share > 0.07) {
      canvas.label(x + share * width / 2, y + 15, printed('f', 1, 100 * share) + " %", 11,
                   Anchor::middle, i == 0 || i > 3 ? "fill=\"#ffffff\"" : Canvas::ink());
    }
    x += share * width;
  }
}

}  // namespace detail

// A strip of frames. Throws when there are none or their arrays differ.
inline Svg svg(const List<Wavefront>& frames) {
  if (frames.empty()) {
    detail::fail({"svg: no frames; give wavefronts(array, x, w, first, count)"});
  }
  const Wavefront& one = frames[0];
  for (const Wavefront& frame : frames) {
    if (frame.rows != one.rows || frame.cols != one.cols) {
      detail::fail({"svg: frames of ", one.rows, " x ", one.cols, " and ", frame.rows, " x ",
                    frame.cols, " PEs; give frames of one array"});
    }
  }
  const double most = static_cast<double>(std::max(one.rows, one.cols));
  const double cell = std::max(2.0, std::min(38.0, 256.0 / most));
  const double wide = std::max(cell * static_cast<double>(one.cols), 120.0) + 24;
  const double high = cell * static_cast<double>(one.rows) + 34;
  const auto across =
      std::max<std::size_t>(1, std::min(frames.size(), static_cast<std::size_t>(900 / wide)));
  const std::size_t down = (frames.size() + across - 1) / across;
  detail::Canvas canvas(std::max(560.0, 20 + wide * static_cast<double>(across)),
                        70 + high * static_cast<double>(down));
  canvas.label(20, 26, detail::cat(one.rows, " x ", one.cols, " array, ", name_of(one.dataflow)),
               15, detail::Anchor::start, detail::Canvas::ink() + " font-weight=\"600\"");
  for (std::size_t i = 0; i < frames.size(); ++i) {
    detail::draw_frame(canvas, frames[i], 20 + wide * static_cast<double>(i % across),
                       62 + high * static_cast<double>(i / across), cell);
  }
  detail::draw_looks(canvas, 20, 60 + high * static_cast<double>(down) - 4);
  return canvas.finish(detail::cat(one.rows, " x ", one.cols, " array in ", frames.size(),
                                   " ticks from ", one.tick));
}

inline Svg svg(const Wavefront& frame) { return svg(List<Wavefront>{frame}); }

// Busy PEs by tick: counted, and the closed form.
inline Svg svg(const ActivePes& active) {
  Plot plot;
  plot.title = "PEs that multiply, by tick";
  plot.x.label = "tick";
  plot.y.label = "PEs";
  Series simulated{"simulated", {}, {}, Mark::line},
      formula{"formula", {}, {}, Mark::hollow_points};
  const std::size_t every = active.formula.size() / 60 + 1;
  for (std::size_t i = 0; i < active.simulated.size(); ++i) {
    simulated.x.push_back(static_cast<double>(i));
    simulated.y.push_back(static_cast<double>(active.simulated[i]));
    if (i % every == 0) {
      formula.x.push_back(static_cast<double>(i));
      formula.y.push_back(static_cast<double>(active.formula[i]));
    }
  }
  plot.series = {simulated, formula};
  return svg(plot);
}

// Where the PE-ticks of each case went: a bar a case, as wide as all its PE-ticks.
inline Svg ledger_bars(const List<SystolicTiming>& cases, const std::vector<std::string>& names) {
  if (cases.empty() || cases.size() != names.size()) {
    detail::fail({"ledger_bars: ", cases.size(), " cases and ", names.size(),
                  " names; give a name for each of at least one case"});
  }
  const double left = 190, width = 620;
  detail::Canvas canvas(left + width + 30, 84 + 32 * static_cast<double>(cases.size()));
  canvas.label(20, 28, "Where the PE-ticks went", 16, detail::Anchor::start,
               detail::Canvas::ink() + " font-weight=\"600\"");
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const double y = 48 + 32 * static_cast<double>(i);
    canvas.label(left - 8, y + 15, detail::shorten(names[i], 26), 12, detail::Anchor::end);
    detail::draw_ledger(canvas, cases[i], left, y, width);
  }
  detail::draw_looks(canvas, left, 66 + 32 * static_cast<double>(cases.size()));
  return canvas.finish(detail::cat("Ledger of ", cases.size(), " runs; the first is ",
                                   detail::percent(cases[0].utilization), " % useful"));
}

inline Svg svg(const SystolicTiming& t) {
  return ledger_bars({t}, {detail::cat("[", t.m, ", ", t.k, "] x [", t.k, ", ", t.n, "]")});
}

// Utilization where one of M, K, N varies from 1 to four times its value and the others stay.
inline Svg utilization_plot(const SystolicArray& array, Dim m, Dim k, Dim n) {
  Plot plot;
  plot.title = detail::cat("Utilization of ", array.rows(), " x ", array.cols(), " PEs around M ",
                           m.value, ", K ", k.value, ", N ", n.value);
  plot.x = {"size of the dimension that varies", Scale::logarithmic, 0, 0};
  plot.y = {"% of PE-ticks that are useful", Scale::linear, 0, 100};
  const std::int64_t sizes[3] = {m.value, k.value, n.value};
  const char* const names[3] = {"M varies", "K varies", "N varies"};
  for (int d = 0; d < 3; ++d) {
    Series line{names[d], {}, {}, Mark::line};
    std::int64_t size = 1;
    while ((size - 1) / 4 < sizes[d]) {
      std::int64_t mkn[3] = {m.value, k.value, n.value};
      mkn[d] = size;
      line.x.push_back(static_cast<double>(size));
      line.y.push_back(100 * array.timing(mkn[0], mkn[1], mkn[2]).utilization);
      size += std::max<std::int64_t>(1, size / 32);  // fine enough to see the steps at full tiles
    }
    plot.series.push_back(line);
  }
  return svg(plot);
}

}}  // namespace tinyscale

// >> tinyscale/show/report_pictures.hpp
// Pictures of whole reports: the losses of a training run, the bytes over the links of a mesh run.

namespace tinyscale { inline namespace TINYSCALE_ABI {

// Training and validation loss against the step.
inline Svg svg(const TrainReport& report) {
  LossCurve curve;
  curve.title = detail::cat("Loss of ", report.model, " on ", report.text);
  for (std::size_t i = 0; i < report.losses.size(); ++i) {
    curve.train_steps.push_back(static_cast<double>(i));
    curve.train.push_back(report.losses[i]);
  }
  for (const Validation& v : report.validation) {
    curve.validation_steps.push_back(static_cast<double>(v.step));
    curve.validation.push_back(v.loss);
  }
  return svg(curve);
}

// Bytes that crossed each link, from device (row) to device (column); a switch comes last.
inline Svg svg(const MeshRun& run) {
  LinkHeatMap map;
  const auto devices = static_cast<std::size_t>(run.devices());
  const std::size_t n = devices + (detail::is_switched(run.machine().chip) ? 1 : 0);
  for (std::size_t i = 0; i < n && n > devices; ++i) {
    map.names.push_back(i < devices ? std::to_string(i) : "switch");
  }
  map.bytes.resize(n);
  for (std::vector<double>& row : map.bytes) {
    row.resize(n);
  }
  for (const LinkRow& link : run.links()) {
    const std::size_t from = link.from < 0 ? devices : static_cast<std::size_t>(link.from);
    const std::size_t to = link.to < 0 ? devices : static_cast<std::size_t>(link.to);
    map.bytes[from][to] += link.bytes;
  }
  return svg(map);
}

}}  // namespace tinyscale

#endif  // TINYSCALE_EXTERN
#endif  // TINYSCALE_HPP
