#pragma once
// The version, what the compiler and machine offer, and every macro a user may set:
//   TINYSCALE_INTERPRETER  1 under cling or clang-repl: no processor symbols, no inline assembly
//   TINYSCALE_NO_THREADS   everything runs on the calling thread
//   TINYSCALE_USE_OPENMP   host loops use OpenMP (compile with -fopenmp)
//   TINYSCALE_USE_MPI      the devices of a mesh are MPI ranks (compile with mpicxx)
//   TINYSCALE_LOAD_KERNELS kernels may be built by this machine's compiler and loaded
//   TINYSCALE_ONLY         topics that are read, where not all are (above, in the joined header)
//   TINYSCALE_EXTERN       declarations alone: the compiled library has the bodies
// detail::environment is the one place where environment variables are read.

#include <cstdlib>  // getenv
#include <string>

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

// Types such as float __attribute__((vector_size(32))), which g++ converts from version 9 on.
#ifndef TINYSCALE_VECTOR_EXTENSIONS
#if defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 9)
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

// Whether freed memory is kept for the next who asks. Under a sanitizer that watches memory it is
// not.
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

// On what runs kernels: g++ makes them fast whatever the flags of the program are. Without this its
// default, -O0, runs them 20 times slower, -Og 6, -O1 2. clang++ has no such attribute.
// Under a sanitizer they follow the flags: else they compile three to five times as long.
#if defined(__clang__) || !defined(__GNUC__) || defined(__SANITIZE_ADDRESS__) || \
    defined(__SANITIZE_THREAD__)
#define TINYSCALE_KERNELS_AS_FLAGS 1
#define TINYSCALE_OPTIMIZED
#elif defined(__OPTIMIZE__)  // aliasing: as what -O1 inlines has it, else nothing more is inlined
#define TINYSCALE_OPTIMIZED __attribute__((optimize("O2", "inline", "no-strict-aliasing")))
#else
#define TINYSCALE_OPTIMIZED __attribute__((optimize("O2", "inline"), flatten))
#endif
#if TINYSCALE_X86
#define TINYSCALE_AVX512 TINYSCALE_OPTIMIZED __attribute__((target("avx512f")))
#define TINYSCALE_AVX2 TINYSCALE_OPTIMIZED __attribute__((target("avx2,fma")))
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
#if defined(TINYSCALE_USE_MPI)
#define TINYSCALE_ABI_MPI _mpi
#else
#define TINYSCALE_ABI_MPI
#endif
#if defined(TINYSCALE_LOAD_KERNELS)
#define TINYSCALE_ABI_KERNELS _load_kernels
#else
#define TINYSCALE_ABI_KERNELS
#endif
#if TINYSCALE_POOL
#define TINYSCALE_ABI_MEMORY
#else
#define TINYSCALE_ABI_MEMORY _no_pool
#endif
#if !TINYSCALE_VECTOR_EXTENSIONS
#define TINYSCALE_ABI_LANES _scalar
#elif defined(__x86_64__) && !TINYSCALE_X86
#define TINYSCALE_ABI_LANES _no_x86
#elif defined(__aarch64__) && !TINYSCALE_ARM64
#define TINYSCALE_ABI_LANES _no_arm64
#else
#define TINYSCALE_ABI_LANES
#endif
#define TINYSCALE_ABI_PASTE(major, minor, patch, features, mpi, kernels, memory, lanes) \
  v##major##_##minor##_##patch##features##mpi##kernels##memory##lanes
#define TINYSCALE_ABI_NAME(major, minor, patch, features, mpi, kernels, memory, lanes) \
  TINYSCALE_ABI_PASTE(major, minor, patch, features, mpi, kernels, memory, lanes)
#define TINYSCALE_ABI                                                                           \
  TINYSCALE_ABI_NAME(TINYSCALE_VERSION_MAJOR, TINYSCALE_VERSION_MINOR, TINYSCALE_VERSION_PATCH, \
                     TINYSCALE_ABI_FEATURES, TINYSCALE_ABI_MPI, TINYSCALE_ABI_KERNELS,          \
                     TINYSCALE_ABI_MEMORY, TINYSCALE_ABI_LANES)

namespace tinyscale {
namespace detail {

// The value of an environment variable, empty when it is not set.
//   TINYSCALE_THREADS  threads that host loops use (default: what the hardware has)
//   TINYSCALE_CPU      portable, neon, avx2 or avx512: the kernels' path (default: the best)
//   TINYSCALE_DISPLAY  frame: pictures as lines that a notebook's kernel draws (default: in words)
//   CXX, TMPDIR        the compiler of load_kernel, where it builds (default: /tmp)
inline std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

}  // namespace detail
}  // namespace tinyscale
