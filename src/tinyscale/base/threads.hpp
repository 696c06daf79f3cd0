#pragma once
// Host loops on several threads: parallel_for(n, grain, body) hands out chunks of [0, n).
// One pool for the program, made at the first use and joined at its end. Threads that wait spin
// for some microseconds, then yield, then sleep. A call inside a call, or one while another
// thread uses the pool, runs on its own thread alone: always right, never a deadlock.
// TINYSCALE_NO_THREADS: serial. TINYSCALE_USE_OPENMP with -fopenmp: OpenMP's threads instead.

#include <algorithm>  // max, min
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>  // exception_ptr
#include <mutex>
#include <string>
#include <thread>

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
    throw Error(cat("TINYSCALE_THREADS is \"", text, "\"; it must be a number from 1 to 1024"));
  }
  return count;
}

class SerialScope;
inline const SerialScope*& current_serial_scope() {
  static thread_local struct { const SerialScope* scope; } own;
  return own.scope;
}

// While one is alive, parallel_for on this thread runs serially.
class SerialScope {
 public:
  SerialScope() : previous_(current_serial_scope()) { current_serial_scope() = this; }
  ~SerialScope() { current_serial_scope() = previous_; }
  SerialScope(const SerialScope&) = delete;
  SerialScope& operator=(const SerialScope&) = delete;

 private:
  const SerialScope* previous_;
};

inline void cpu_relax() {
#if TINYSCALE_X86
  __builtin_ia32_pause();
#endif
}

}  // namespace detail

// Threads that parallel_for may use, the caller included: TINYSCALE_THREADS or the hardware's.
inline int thread_count() {
#if defined(TINYSCALE_NO_THREADS)
  return 1;
#else
  static const int count = [] {
    const std::string wanted = detail::environment("TINYSCALE_THREADS");
    const unsigned hardware = std::thread::hardware_concurrency();
    return wanted.empty() ? static_cast<int>(std::min(std::max(hardware, 1U), 1024U))
                          : detail::parse_thread_count(wanted);
  }();
  return count;
#endif
}

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

// One loop in flight: chunks are handed out in order by a counter. Of several exceptions the one
// of the lowest chunk is kept: it was handed out before the others, so it is always the same one.
struct Loop {
  const LoopBody* body = nullptr;
  std::int64_t n = 0;
  std::int64_t chunk = 1;
  std::atomic<std::int64_t> next{0};
  std::mutex mutex;  // guards the two below
  std::exception_ptr error;
  std::int64_t error_begin = 0;

  void start(const LoopBody& loop_body, std::int64_t count, std::int64_t grain) {
    // Four chunks a thread even out what the threads do; each a multiple of the grain.
    const std::int64_t wanted = count / (std::int64_t{4} * thread_count());
    body = &loop_body;
    n = count;
    chunk = std::max<std::int64_t>(1, wanted / grain) * grain;
    error = nullptr;
    next.store(0);
  }

  void work() {
    for (;;) {
      const std::int64_t begin = next.fetch_add(chunk);
      if (begin >= n) {
        return;
      }
      try {
        (*body)(begin, n - begin < chunk ? n : begin + chunk);
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

#if !defined(TINYSCALE_NO_THREADS)
// The worker threads. A worker counts itself inside_ before it looks whether the loop is open_;
// the caller closes the loop before it waits for inside_ to be 0, so none can come in late.
class ThreadPool {
 public:
  explicit ThreadPool(int workers) {
    try {
      for (int i = 0; i < workers; ++i) {
        threads_.start([](void* pool) { static_cast<ThreadPool*>(pool)->serve(); }, this);
      }
    } catch (const std::exception&) {
      // The system gives no more threads: those there are do the work.
    }
  }

  ~ThreadPool() {
    stop_.store(true);
    wake_all();
    threads_.join();
  }

  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // False when another caller has the pool; then nothing was done.
  bool run(const LoopBody& body, std::int64_t n, std::int64_t grain) {
    const std::unique_lock<std::mutex> owner(owner_, std::try_to_lock);
    if (!owner.owns_lock()) {
      return false;
    }
    loop_.start(body, n, grain);
    open_.store(true);
    generation_.fetch_add(1);
    if (sleepers_.load() > 0) {
      wake_all();
    }
    {
      const SerialScope serial;
      loop_.work();
    }
    open_.store(false);
    wait_for_workers();
    if (loop_.error) {
      const std::exception_ptr error = loop_.error;
      loop_.error = nullptr;
      std::rethrow_exception(error);
    }
    return true;
  }

 private:
  static constexpr int spins = 2000;  // some 20 to 80 us
  static constexpr int yields = 20;

  void serve() {
    const SerialScope serial;
    std::uint64_t seen = 0;
    while (wait_for_loop(seen)) {
      seen = generation_.load();
      inside_.fetch_add(1);
      if (open_.load()) {
        loop_.work();
      }
      if (inside_.fetch_sub(1) == 1 && caller_sleeps_.load()) {
        { const std::lock_guard<std::mutex> lock(mutex_); }
        done_.notify_one();
      }
    }
  }

  // Returns when there is a loop that was not seen yet; false when the pool ends.
  bool wait_for_loop(std::uint64_t seen) {
    for (int i = 0; i < spins + yields; ++i) {
      if (stop_.load() || generation_.load() != seen) {
        return !stop_.load();
      }
      if (i < spins) {
        cpu_relax();
      } else {
        std::this_thread::yield();
      }
    }
    std::unique_lock<std::mutex> lock(mutex_);
    sleepers_.fetch_add(1);
    wake_.wait(lock, [&] { return stop_.load() || generation_.load() != seen; });
    sleepers_.fetch_sub(1);
    return !stop_.load();
  }

  void wait_for_workers() {
    for (int i = 0; i < spins + yields; ++i) {
      if (inside_.load() == 0) {
        return;
      }
      if (i < spins) {
        cpu_relax();
      } else {
        std::this_thread::yield();
      }
    }
    std::unique_lock<std::mutex> lock(mutex_);
    caller_sleeps_.store(true);
    done_.wait(lock, [&] { return inside_.load() == 0; });
    caller_sleeps_.store(false);
  }

  void wake_all() {
    { const std::lock_guard<std::mutex> lock(mutex_); }  // a worker is before its check or asleep
    wake_.notify_all();
  }

  std::mutex owner_;  // held by the caller whose loop runs
  Loop loop_;
  std::atomic<bool> open_{false};
  std::atomic<bool> stop_{false};
  std::atomic<bool> caller_sleeps_{false};
  std::atomic<std::uint64_t> generation_{0};
  std::atomic<int> inside_{0};
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;  // for the two condition variables
  std::condition_variable wake_;
  std::condition_variable done_;
  ThreadGroup threads_;
};

inline ThreadPool& thread_pool() {
  static ThreadPool pool(thread_count() - 1);
  return pool;
}
#endif

#if defined(TINYSCALE_USE_OPENMP) && defined(_OPENMP)
inline bool run_loop(const LoopBody& body, std::int64_t n, std::int64_t grain) {
  Loop loop;
  loop.start(body, n, grain);
#pragma omp parallel num_threads(thread_count())
  {
    const SerialScope serial;
    loop.work();
  }
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
  const bool alone = n <= grain || thread_count() == 1 || detail::current_serial_scope() != nullptr;
  if (alone || !detail::run_loop(body, n, grain)) {
    body(0, n);
  }
}

}  // namespace tinyscale
