#pragma once
// Where an op's counts go and how it runs: the profile, the memory meter, the device number and the
// scopes that are open on this thread. Threads of a program have one each and share a meter, those
// of a parallel_for begin with the caller's; each simulated device has one with a meter of its own,
// set on its thread by a ContextScope.

#include <atomic>
#include <thread>  // this_thread

#include "tinyscale/base/config.hpp"
#include "tinyscale/base/error.hpp"
#include "tinyscale/base/format.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/base/thread_scope.hpp"
#include "tinyscale/measure/memory.hpp"

namespace tinyscale {

class Profile;
class DeferWeightGradients;

// What matmuls lost of the gradients that they read in f16 or fp8: numbers that were not zero,
// those that became zero, and those that became infinite or NaN.
struct RoundingCount {
  double numbers = 0, lost = 0, overflowed = 0;

  double lost_share() const { return numbers > 0 ? lost / numbers : 0; }
  void add(const RoundingCount& other) {
    numbers += other.numbers;
    lost += other.lost;
    overflowed += other.overflowed;
  }
};

namespace detail {

struct RoundedProducts;

// The format in which matmuls read their operands. Kernels of all but f32 come with it, so that a
// program that names no MatmulFormat compiles none of them.
struct ProductFormat {
  DType type = DType::f32;
  const RoundedProducts* kernels = nullptr;

  operator DType() const { return type; }
};

}  // namespace detail

struct Context {
  Profile* profile = nullptr;                    // null: nothing is recorded
  Shared<MemoryMeter> memory{new MemoryMeter};   // outlives its tensors
  int device = -1;                               // -1: the program itself
  MemoryKind kind = MemoryKind::activation;      // what allocations are for
  int no_grad = 0;                               // scopes alive that switch gradients off
  detail::ProductFormat matmul_format;           // in which matmuls read their operands
  RoundingCount* rounding = nullptr;             // of gradients; null: nobody counts
  int recomputing = 0;                           // recomputations (recompute()) that are under way
  std::atomic<bool>* gradient_passed = nullptr;  // set by an op under a NoGrad whose input has a
                                                 // gradient, on all threads of a loop; or null
  DeferWeightGradients* deferred = nullptr;      // takes weight gradients that are to wait
};

namespace detail {

#if defined(TINYSCALE_NO_THREADS)
inline Context& new_thread_context() {
  static Context all;
  thread_state().own = &all;
  return all;
}
#else
// Contexts of a program's threads, never destroyed: tensors may outlive every other static object.
// No end of a thread is noticed: one that has the number of an earlier one takes its context over.
class ThreadContexts {
 public:
  Context& take() {
    while (busy_.exchange(true, std::memory_order_acquire)) {
      std::this_thread::yield();
    }
    const std::thread::id number = std::this_thread::get_id();
    Context* own = nullptr;
    for (const Known& known : known_) {
      own = known.number == number ? known.context : own;
    }
    if (own == nullptr) {
      own = new Context;
      known_.push_back({number, own});
    }
    *own = Context();
    own->memory = meter_;
    busy_.store(false, std::memory_order_release);
    return *own;
  }

 private:
  struct Known {
    std::thread::id number;
    Context* context = nullptr;
  };
  std::atomic<bool> busy_{false};
  Shared<MemoryMeter> meter_{new MemoryMeter};
  List<Known> known_;
};

// In the body of a loop: the caller's scopes and profile hold on each of its threads. What only one
// thread may add to, counts of rounding and gradients that wait, stays with the caller.
inline Context& loop_context(ThreadState& state) {
  Context* const copy = new Context(*static_cast<const Context*>(state.lent));
  copy->rounding = nullptr;
  copy->deferred = nullptr;
  state.own = copy;
  state.end = [](void* own) { delete static_cast<Context*>(own); };
  return *copy;
}

[[gnu::noinline]] inline Context& new_thread_context() {
  static ThreadContexts& all = *new ThreadContexts;
  ThreadState& state = thread_state();
  if (state.lent != nullptr) {
    return loop_context(state);
  }
  Context& own = all.take();
  state.own = &own;
  return own;
}
#endif

}  // namespace detail

// The context of this thread.
inline Context& context() {
  void* const own = detail::thread_state().own;
  return own != nullptr ? *static_cast<Context*>(own) : detail::new_thread_context();
}

// Makes `context` this thread's context while it lives; the context must outlive it.
class ContextScope {
 public:
  explicit ContextScope(Context& context) : previous_(detail::thread_state().own) {
    detail::thread_state().own = &context;
  }
  ~ContextScope() { detail::thread_state().own = previous_; }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  void* previous_;
};

// What is allocated while it lives counts as `kind`.
class MemoryScope {
 public:
  explicit MemoryScope(MemoryKind kind) : context_(&context()), previous_(context_->kind) {
    name_of(kind);  // refuses what is none
    context_->kind = kind;
  }
  ~MemoryScope() { context_->kind = previous_; }
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  Context* context_;
  MemoryKind previous_;
};

}  // namespace tinyscale
