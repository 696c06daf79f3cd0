#pragma once
// Functions that run by turns on one thread, each on a stack of its own: a switch from one to
// another takes some 20 ns, where the system takes a microsecond from thread to thread.
// TINYSCALE_FIBERS is 1 where there are such: on Linux, compiled for x86-64 or ARM64. The
// sanitizers that follow stacks or threads do not know of them, interpreters take no assembler.

#include <cstddef>
#include <cstdint>

#include "tinyscale/base/config.hpp"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ||   \
    __has_feature(memory_sanitizer) || __has_feature(hwaddress_sanitizer) || \
    __has_feature(safe_stack) || __has_feature(shadow_call_stack)
#define TINYSCALE_FIBERS 0
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__linux__) || \
    defined(TINYSCALE_NO_THREADS) || defined(__ILP32__) || TINYSCALE_INTERPRETER ||         \
    !(TINYSCALE_X86 || TINYSCALE_ARM64)
#undef TINYSCALE_FIBERS
#define TINYSCALE_FIBERS 0
#endif
#ifndef TINYSCALE_FIBERS
#define TINYSCALE_FIBERS 1
#endif

// clang-format off
#if TINYSCALE_FIBERS
#  include <sys/mman.h>  // mmap
#endif
// clang-format on

namespace tinyscale {
namespace detail {

#if TINYSCALE_FIBERS
// Memory that is touched page by page, as a thread's stack is; below it a page that none may touch.
class FiberStack {
 public:
  static constexpr std::size_t bytes = std::size_t{8} << 20, guard = 65536;  // any page's multiple

  FiberStack()
      : memory_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0)) {
    if (memory_ == MAP_FAILED) {
      return;
    }
#if defined(MADV_NOHUGEPAGE)
    ::madvise(memory_, bytes, MADV_NOHUGEPAGE);  // else each takes 2 MiB at its first touch
#endif
    if (::mprotect(memory_, guard, PROT_NONE) != 0) {
      ::munmap(memory_, bytes);
      memory_ = MAP_FAILED;
    }
  }
  ~FiberStack() {
    if (there()) {
      ::munmap(memory_, bytes);
    }
  }
  FiberStack(const FiberStack&) = delete;
  FiberStack& operator=(const FiberStack&) = delete;

  bool there() const { return memory_ != MAP_FAILED; }  // false: the system gave none
  char* top() const { return static_cast<char*>(memory_) + bytes; }

 private:
  void* memory_;
};

// Where a fiber, or the thread itself, goes on: its stack, the frame there, and the instruction.
struct FiberPlace {
  void* stack = nullptr;
  void* frame = nullptr;
  void* code = nullptr;
  // Exceptions that are being handled there, of which the library keeps a list for each thread.
  struct Caught {
    void* list = nullptr;
    unsigned int uncaught = 0;
  } caught;
};

#if defined(__clang__)
#define TINYSCALE_OPAQUE __attribute__((noinline))
#else
#define TINYSCALE_OPAQUE __attribute__((noipa))
#endif

// Goes on at `to`; returns when something goes back to `from`. To its caller this is a call like
// any other: what a call may change is lost, and what it must keep the compiler saves, told that
// all of it is changed here.
TINYSCALE_OPAQUE inline void switch_stack(FiberPlace* from, FiberPlace* to) {
#if TINYSCALE_X86
  asm volatile(
      "leaq 1f(%%rip), %%rax\n\t"
      "movq %%rsp, (%0)\n\t"
      "movq %%rbp, 8(%0)\n\t"
      "movq %%rax, 16(%0)\n\t"
      "movq (%1), %%rsp\n\t"
      "movq 8(%1), %%rbp\n\t"
      "jmp *16(%1)\n"
      "1:\n\t"
      ".byte 0xf3, 0x0f, 0x1e, 0xfa\n\t"  // endbr64: a jump may come here
      : "+D"(from), "+S"(to)
      :
      : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "memory",
        "cc");
#else
  register FiberPlace* own asm("x0") = from;
  register FiberPlace* other asm("x1") = to;
  asm volatile(
      "adr x9, 1f\n\t"
      "mov x10, sp\n\t"
      "stp x10, x29, [%0]\n\t"
      "str x9, [%0, #16]\n\t"
      "ldp x10, x29, [%1]\n\t"
      "ldr x16, [%1, #16]\n\t"
      "mov sp, x10\n\t"
      "mov x30, xzr\n\t"  // a function that begins here was called by none
      "br x16\n"
      "1:\n\t"
      "hint #36\n\t"  // a branch may come here
      : "+r"(own), "+r"(other)
      :
      : "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15",
        "x16", "x17", "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "x30",
        "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "memory", "cc");
#endif
}

// Of this thread: what every C++ library on these systems has, and not every <cxxabi.h> declares.
extern "C" void* caught_exceptions() noexcept __asm__("__cxa_get_globals");

inline void switch_fiber(FiberPlace* from, FiberPlace* to) {
  FiberPlace::Caught& caught = *static_cast<FiberPlace::Caught*>(caught_exceptions());
  from->caught = caught;
  caught = to->caught;
  switch_stack(from, to);
}

// `begin` is called on that stack at the first switch to `place`, and never returns.
inline void place_fiber(FiberPlace& place, const FiberStack& stack,
                        void (*begin)(FiberPlace* from, FiberPlace* self)) {
  void** const top = reinterpret_cast<void**>(stack.top()) - 8;
  for (int i = 0; i < 8; ++i) {
    top[i] = nullptr;  // no function has called it
  }
#if TINYSCALE_X86
  place.stack = top + 1;  // as after a call, which leaves it 8 bytes off a multiple of 16
#else
  place.stack = top;
#endif
  place.code = reinterpret_cast<void*>(begin);
}

// How this thread rounds, and what it does with numbers that are too small: a call leaves that as
// it was, and a switch is a call.
struct FloatControl {
#if TINYSCALE_X86
  unsigned int vector = 0;
  unsigned short x87 = 0;

  void save() {
    asm volatile("stmxcsr %0" : "=m"(vector));
    asm volatile("fnstcw %0" : "=m"(x87));
  }
  // From `now`, which save() gave.
  void load(const FloatControl& now) const {
    constexpr unsigned int flags = 0x3f;  // of what has happened: no control
    if (((vector ^ now.vector) & ~flags) != 0) {
      asm volatile("ldmxcsr %0" : : "m"(vector));
    }
    if (x87 != now.x87) {
      asm volatile("fldcw %0" : : "m"(x87));
    }
  }
#else
  std::uint64_t control = 0;

  void save() { asm volatile("mrs %0, fpcr" : "=r"(control)); }
  void load(const FloatControl& now) const {
    if (control != now.control) {
      asm volatile("msr fpcr, %0" : : "r"(control));
    }
  }
#endif
};

// Whether this process may: with a shadow stack, which knows of one order of returns, it may not.
inline bool fibers_work() {
#if TINYSCALE_X86
  std::uint64_t shadow = 0;
  // rdsspq %rax, which old assemblers do not know: does nothing where there is none.
  asm volatile(".byte 0xf3, 0x48, 0x0f, 0x1e, 0xc8" : "+a"(shadow));
  return shadow == 0;
#else
  return true;
#endif
}
#else
inline bool fibers_work() { return false; }
#endif

}  // namespace detail
}  // namespace tinyscale
