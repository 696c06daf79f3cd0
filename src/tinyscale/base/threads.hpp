#pragma once
// Host loops on several threads: parallel_for(n, grain, body) hands out chunks of [0, n).
// One pool for the program; its workers start when a loop first asks for them and end with it.
// Whoever is free takes the next chunk; a wait is a short spin, then yields, then sleep. Several
// callers share the workers; a loop inside a body stays on its thread. TINYSCALE_USE_OPENMP with
// -fopenmp: OpenMP's threads instead.

#include <algorithm>  // max, min
#include <atomic>
#include <chrono>  // how late a worker was
#include <condition_variable>
#include <cstdint>
#include <exception>  // exception_ptr
#include <mutex>
#include <thread>  // yield

#include "tinyscale/base/thread_scope.hpp"

namespace tinyscale {
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
  const void* lender = nullptr;  // the caller's ThreadState
  std::int64_t n = 0, grain = 1;
  std::int64_t share = 1;  // a chunk is what is left / share
  alignas(64) std::atomic<std::int64_t> next{0};
  std::mutex mutex;  // guards the two below
  std::exception_ptr error;
  std::int64_t error_begin = 0;

  void start(const LoopBody& loop_body, std::int64_t count, std::int64_t least) {
    body = &loop_body;
    lender = LentState::of_caller();
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
    const LentState state(lender);
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

// A loop that others may join. Who joins counts itself inside before it looks whether the loop is
// open; the caller closes it before it waits for inside to be 0, so none can come in late. A flag
// that is written before another is looked at is exchanged: emulators of ARM let the load overtake
// a store, and compiled for x86 both are the same instruction.
struct OpenLoop {
  Loop loop;
  std::atomic<bool> open{false};
  std::atomic<int> seats{0};  // who may still join
  alignas(64) std::atomic<int> inside{0};

  // Whether to go on to loop.work(); asked once by who is counted inside.
  bool admits() { return open.load() && seats.fetch_sub(1) > 0; }

  // Runs the loop with up to so many who call help() meanwhile.
  void run(const LoopBody& body, std::int64_t n, int helpers) {
    loop.start(body, n, 1);
    seats.store(helpers);
    open.store(true);
    loop.work();
    open.exchange(false);
    for (int looks = 0; inside.load() > 0; ++looks) {
      if (looks < 100) {
        cpu_relax();
      } else {
        std::this_thread::yield();
      }
    }
    if (loop.error) {
      std::rethrow_exception(loop.error);
    }
  }
  // Whether there was something to do.
  bool help() {
    if (!open.load(std::memory_order_relaxed) || seats.load(std::memory_order_relaxed) <= 0) {
      return false;
    }
    inside.fetch_add(1);
    const bool works = admits();
    if (works) {
      loop.work();
    }
    inside.fetch_sub(1);
    return works;
  }
};

#if !defined(TINYSCALE_NO_THREADS)
struct LoopSlot : OpenLoop {
  std::atomic<bool> taken{false}, caller_sleeps{false};
  int processor = -1;  // where the caller is
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
    slot->open.exchange(false);
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
    if (slot.admits()) {
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
      slot.caller_sleeps.exchange(true);
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

}  // namespace tinyscale
