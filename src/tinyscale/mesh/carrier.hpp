#pragma once
// A thread that runs many devices, each on a fiber of its own: who waits gives the processor to the
// next device of its thread (fiber.hpp), where threads would ask the system for it.

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <thread>  // yield

#include "tinyscale/base/fiber.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/pool.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/base/thread_scope.hpp"
#include "tinyscale/tensor/matmul.hpp"
#include "tinyscale/tensor/recorder.hpp"

namespace tinyscale {
namespace detail {

class Carrier;

#if TINYSCALE_FIBERS
// All that a thread keeps of this library's, and how it rounds: a fiber finds its own whenever it
// goes on.
struct FiberLocals {
  int threads = 0;
  ThreadState state = {nullptr, nullptr, nullptr};
  ThreadBlocks* blocks = nullptr;
  Recorder* recorder = nullptr;
  const MatmulHook* hook = nullptr;
  FloatControl control;

  void save() {
    threads = thread_limit();
    state = thread_state();
    blocks = ThreadBlocks::current();
    recorder = thread_recorder();
    hook = matmul_hook();
    control.save();
  }
  // `now`: what the thread has, as save() gave it.
  void load(const FiberLocals& now) const {
    control.load(now.control);
    thread_limit() = threads;
    thread_state() = state;
    ThreadBlocks::current() = blocks;
    thread_recorder() = recorder;
    matmul_hook() = hook;
  }
};

// A device's. Only its carrier's thread runs it.
struct Fiber : FiberPlace {
  Fiber(Carrier& on, void (*of)(void*), void* with) : carrier(&on), body(of), argument(with) {}

  bool runs() const;  // asked on its carrier's thread
  bool yield();       // these are the carrier's
  void park(std::unique_lock<std::mutex>& lock);
  void wake();

  Carrier* carrier;
  void (*body)(void* argument);
  void* argument;
  FiberStack stack;
  FiberLocals locals;
  Fiber* next = nullptr;  // of those that may go on, or are woken
  bool parked = false;    // guarded by the mutex of the carrier
};

class Carrier {
 public:
  // `mutex` guards who is parked, and is held by whoever wakes one. Its thread begins on that
  // processor, by number and around; -1: on any.
  Carrier(std::mutex& mutex, int processor) : processor_(processor), mutex_(mutex) {}
  Carrier(const Carrier&) = delete;
  Carrier& operator=(const Carrier&) = delete;

  // Before run(). Null: the system gives no memory for another stack.
  Fiber* add(void (*body)(void* argument), void* argument) {
    const Shared<Fiber> made(new Fiber(*this, body, argument));
    if (!made->stack.there()) {
      return nullptr;
    }
    place_fiber(*made, made->stack, &Carrier::begin);
    fibers_.push_back(made);
    append(ready_, *made);
    return made.get();
  }

  // On the carrier's thread; returns when all its fibers have.
  void run() {
    home_locals_.save();
    for (const Shared<Fiber>& fiber : fibers_) {
      fiber->locals.control = home_locals_.control;
    }
    if (processor_ >= 0) {
      go_to_processor(processor_);
    }
    while (ended_ < fibers_.size()) {
      if (ready_.first == nullptr) {
        look_for_woken();
        std::unique_lock<std::mutex> lock(mutex_);
        asleep_ = true;
        while (woken_.first == nullptr) {
          changed_.wait(lock);
        }
        asleep_ = false;
        take_woken();
      }
      go_to(&home_);
    }
  }

  const Fiber* now() const { return now_; }  // asked on its thread

  // By the fiber that runs: lets the others go on first. False: there are none.
  bool yield() {
    if (any_woken_.load(std::memory_order_relaxed)) {
      const std::lock_guard<std::mutex> lock(mutex_);
      take_woken();
    }
    if (ready_.first == nullptr) {
      return false;
    }
    Fiber* const self = now_;
    append(ready_, *self);
    go_to(self);
    return true;
  }

  // By the fiber that runs, under the lock, which it has again when it goes on: when it is woken.
  void park(std::unique_lock<std::mutex>& lock) {
    Fiber* const self = now_;
    self->parked = true;
    take_woken();
    lock.unlock();
    go_to(self);
    lock.lock();
  }
  // Under the lock, by anyone.
  void wake(Fiber& fiber) {
    if (fiber.parked) {
      fiber.parked = false;
      append(woken_, fiber);
      any_woken_.store(true, std::memory_order_relaxed);
      if (asleep_) {
        changed_.notify_one();
      }
    }
  }

 private:
  struct Queue {
    Fiber* first = nullptr;
    Fiber* last = nullptr;
  };
  static void append(Queue& queue, Fiber& fiber) {
    fiber.next = nullptr;
    (queue.first == nullptr ? queue.first : queue.last->next) = &fiber;
    queue.last = &fiber;
  }
  void take_woken() {  // under the lock
    if (woken_.first != nullptr) {
      (ready_.first == nullptr ? ready_.first : ready_.last->next) = woken_.first;
      ready_.last = woken_.last;
      woken_ = Queue();
      any_woken_.store(false, std::memory_order_relaxed);
    }
  }

  // All its fibers are parked: another carrier wakes one within microseconds, or it is worth sleep.
  void look_for_woken() const {
    constexpr int spins = 100, yields = 100;
    for (int i = 0; i < spins + yields && !any_woken_.load(std::memory_order_relaxed); ++i) {
      if (i < spins) {
        cpu_relax();
      } else {
        std::this_thread::yield();
      }
    }
  }

  // Leaves `from`, a fiber or the thread itself, for the next that may go on, or for the thread.
  void go_to(FiberPlace* from) {
    FiberLocals& left = now_ != nullptr ? now_->locals : home_locals_;
    now_ = ready_.first;
    if (now_ != nullptr) {
      ready_.first = now_->next;
    }
    left.save();
    (now_ != nullptr ? now_->locals : home_locals_).load(left);
    switch_fiber(from, now_ != nullptr ? static_cast<FiberPlace*>(now_) : &home_);
  }

  static void begin(FiberPlace*, FiberPlace* place) {
    Fiber& self = *static_cast<Fiber*>(place);
    self.body(self.argument);
    ++self.carrier->ended_;
    self.carrier->go_to(&self);
  }

  int processor_;      // by number, where it begins
  std::mutex& mutex_;  // guards the three below, and who is parked
  Queue woken_;
  bool asleep_ = false;
  std::condition_variable changed_;
  std::atomic<bool> any_woken_{false};
  Queue ready_;           // these are the carrier's thread's
  Fiber* now_ = nullptr;  // null: the thread itself
  std::size_t ended_ = 0;
  FiberPlace home_;  // of the thread itself
  FiberLocals home_locals_;
  List<Shared<Fiber>> fibers_;
};

inline bool Fiber::runs() const { return carrier->now() == this; }
inline bool Fiber::yield() { return carrier->yield(); }
inline void Fiber::park(std::unique_lock<std::mutex>& lock) { carrier->park(lock); }
inline void Fiber::wake() { carrier->wake(*this); }
#else
struct Fiber {  // there are none
  Carrier* carrier = nullptr;
  bool runs() const { return true; }
  bool yield() { return false; }
  void park(std::unique_lock<std::mutex>&) {}
  void wake() {}
};
#endif

}  // namespace detail
}  // namespace tinyscale
