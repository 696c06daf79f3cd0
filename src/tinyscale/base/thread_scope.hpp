#pragma once
// How many threads loops may use, and the threads themselves.
// thread_count() is TINYSCALE_THREADS or what the hardware runs at once; a ThreadScope changes it
// for the thread that makes it. Results do not depend on it. TINYSCALE_NO_THREADS: always 1.

#include <algorithm>  // max, min
#include <cstddef>
#include <string>
#include <thread>
#if defined(__linux__)
#include <sched.h>  // which processor a thread is on
#endif

#include "tinyscale/base/config.hpp"
#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"

namespace tinyscale {
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

// What a higher floor keeps for a thread, its scopes and counts: null until it is asked for. While
// a loop runs, its caller's is lent to all threads of it, the caller too, and nobody writes to it:
// a body that asks gets a copy of its own, which ends with its thread's part of the loop.
struct ThreadState {
  void* own;
  const void* lent;
  void (*end)(void* own);  // of a copy
};
inline ThreadState& thread_state() {
  static thread_local ThreadState state;
  return state;
}

class LentState {
 public:
  explicit LentState(const void* lender) : before_(thread_state()) {
    thread_state() = ThreadState{nullptr, lender, nullptr};
  }
  ~LentState() {
    const ThreadState now = thread_state();
    thread_state() = before_;
    if (now.end != nullptr) {
      now.end(now.own);
    }
  }
  LentState(const LentState&) = delete;
  LentState& operator=(const LentState&) = delete;
  // Of this thread, where a loop begins.
  static const void* of_caller() {
    return thread_state().own != nullptr ? thread_state().own : thread_state().lent;
  }

 private:
  ThreadState before_;
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

// Moves this thread to one of the processors that it may use, by number and around; it may go from
// there. Of many threads that yield to each other Linux leaves more on one than on another.
inline void go_to_processor(int number) {
#if defined(CPU_SETSIZE) && !TINYSCALE_INTERPRETER
  cpu_set_t all, one;
  if (sched_getaffinity(0, sizeof(all), &all) != 0) {
    return;
  }
  int before = number % CPU_COUNT(&all);
  CPU_ZERO(&one);
  for (std::size_t processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (CPU_ISSET(processor, &all) && before-- == 0) {
      CPU_SET(processor, &one);
    }
  }
  if (sched_setaffinity(0, sizeof(one), &one) == 0) {
    sched_setaffinity(0, sizeof(all), &all);
  }
#else
  static_cast<void>(number);
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
}  // namespace tinyscale
