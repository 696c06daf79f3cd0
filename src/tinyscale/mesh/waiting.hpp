#pragma once
// Who waits, and what happens when none can go on (judgement.hpp). A device that waits looks a few
// times, lets others run, then sleeps. When every device sleeps or has ended and some sleep,
// nothing can ever come: all throw one Error that says where each stands. However the threads were
// scheduled, that state is the same (Kahn 1974). Where a few threads carry all devices
// (carrier.hpp) who waits lets its thread run another; with a baton at most so many devices run at
// once.

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <string>
#include <utility>  // move
#include <vector>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/order.hpp"
#include "tinyscale/base/thread_scope.hpp"
#include "tinyscale/mesh/carrier.hpp"

namespace tinyscale {
namespace detail {

// "0-3, 5"
inline std::string rank_list(const std::vector<int>& ranks) {
  std::string out;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) {
      ++last;
    }
    out += cat({out.empty() ? "" : ", ", ranks[i]});
    out += last > i ? cat({last > i + 1 ? "-" : ", ", ranks[last]}) : "";
    i = last;
  }
  return out;
}

inline std::string device_list(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "device " : "devices ") + rank_list(ranks);
}

// What a device waits for. The fabric knows how each is met; `of` and `peer` are its own.
struct Wait {
  enum class For { nothing, message, collective };
  For what = For::nothing;
  const void* of = nullptr;  // collective: the meeting
  int peer = 0;              // message: from whom
};

class Waiting {
 public:
  enum class Now { runs, waits, returned, threw };

  struct State {
    std::condition_variable changed;
    Fiber* fiber = nullptr;  // set before the device begins; null: it has a thread of its own
    Now now = Now::runs;
    bool holds_baton = false;
    bool queued = false;  // may run as soon as it gets the baton
    Wait wait;
    std::string where;    // "call 2, all_gather([4], dim 0, x)"
    std::string message;  // what it threw
  };

  // Where a device was when it last began to wait. Others read it while it runs.
  struct alignas(64) Whereabouts {
    std::atomic<int> processor{-1};
    int together = 0;  // long waits in a row on the processor of a device before it
  };

  // At most `most` run at once; 0: all.
  Waiting(int devices, int most)
      : most_(most),
        spins_(devices <= thread_count() ? 50 : 0),  // others need the processors
        devices_(static_cast<std::size_t>(devices)),
        whereabouts_(spins_ > 0 ? devices_.size() : 0),
        running_(devices) {}

  std::mutex& mutex() { return mutex_; }
  State& state(int rank) { return devices_[static_cast<std::size_t>(rank)]; }
  const List<State>& states() const { return devices_; }
  // Null: the device has a thread of its own.
  const Carrier* carrier(int rank) {
    return state(rank).fiber != nullptr ? state(rank).fiber->carrier : nullptr;
  }
  bool over() const { return over_.load(std::memory_order_acquire); }
  const std::string& failure() const { return failure_; }  // not empty: the run is over

  // A device's first act on its thread.
  void begin(int me) {
    if (most_ > 0) {
      std::unique_lock<std::mutex> lock(mutex_);
      get_baton(lock, state(me));
    }
  }

  // Who waits may look again and again: no baton keeps it off.
  bool all_awake() const { return most_ == 0; }
  // Whether it is worth looking again before sleep. With a baton others may not run meanwhile.
  bool look_again(int me, int& looks) {
    Fiber* const fiber = state(me).fiber;
    const int most_looks = fiber != nullptr ? 200 : 100;
    if (most_ > 0 || looks >= most_looks || over()) {
      return false;
    }
    if (fiber != nullptr) {
      return others_of_thread(*fiber, looks);
    }
    if (looks == 0 && spins_ > 0) {
      whereabouts(me).processor.store(current_processor(), std::memory_order_relaxed);
    } else if (looks == spins_ && spins_ > 0) {
      part_from_others(me);
    }
    if (looks++ < spins_) {
      cpu_relax();
    } else {
      std::this_thread::yield();
    }
    return true;
  }

  // Sleeps until wake(me); the caller has seen, under the lock, that what it needs is not there.
  // Gives false when nobody is left who could wake it: then judge() is due.
  bool sleeps(int me, const Wait& wait, const std::string& where) {
    State& self = state(me);
    self.now = Now::waits;
    self.wait = wait;
    self.where = where;
    return --running_ > 0;
  }
  void sleep(std::unique_lock<std::mutex>& lock, int me) {
    State& self = state(me);
    if (failure_.empty()) {
      give_baton(self);
      while (self.now != Now::runs && failure_.empty()) {
        pause(lock, self);
      }
      if (failure_.empty()) {
        get_baton(lock, self);
      }
    }
    throw_failure();
  }

  // Under the lock, by a device that runs.
  void wake(int rank) {
    State& device = state(rank);
    if (device.now == Now::waits) {
      device.now = Now::runs;
      ++running_;
      if (most_ == 0) {
        go_on(device);
      } else if (!device.queued) {
        enqueue(rank);
      }
    }
  }

  // A device's last act; gives whether judge() is due.
  bool ends(int me, Now how, const std::string& where, const std::string& message) {
    State& self = state(me);
    give_baton(self);
    if (!failure_.empty()) {
      return false;  // a device that throws because the run ended is no further cause
    }
    self.now = how;
    self.where = where;
    self.message = message;
    --running_;
    return running_ == 0 && !in_state(Now::waits).empty();
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

  // Ends the run for all.
  void conclude(const std::string& text) {
    failure_ = text;
    over_.store(true, std::memory_order_release);
    for (State& device : devices_) {
      go_on(device);
    }
  }
  void throw_failure() const {
    if (!failure_.empty()) {
      fail({failure_});
    }
  }

 private:
  static void pause(std::unique_lock<std::mutex>& lock, State& self) {
    self.fiber != nullptr ? self.fiber->park(lock) : self.changed.wait(lock);
  }
  static void go_on(State& device) {
    device.fiber != nullptr ? device.fiber->wake() : device.changed.notify_one();
  }

  // The other devices of its thread go on first. None: as a thread waits for another.
  static bool others_of_thread(Fiber& fiber, int& looks) {
    constexpr int spins = 100;
    ++looks;
    if (looks > spins) {
      std::this_thread::yield();
    }
    if (!fiber.yield() && looks <= spins) {
      cpu_relax();
    }
    return true;
  }

  Whereabouts& whereabouts(int rank) { return whereabouts_[static_cast<std::size_t>(rank)]; }

  // Two devices on one processor, where there is one for each: the later one moves, as a worker of
  // a loop does. The system takes milliseconds to see it.
  void part_from_others(int me) {
    const int here = current_processor();
    bool met = false;
    for (int other = 0; other < me && here >= 0; ++other) {
      met = met || whereabouts(other).processor.load(std::memory_order_relaxed) == here;
    }
    int& together = whereabouts(me).together;
    together = met ? together + 1 : 0;
    if (together % 64 == 2) {
      leave_processor(here);
    }
  }

  void get_baton(std::unique_lock<std::mutex>& lock, State& self) {
    if (most_ == 0 || self.holds_baton) {
      return;
    }
    if (held_ < most_ && !self.queued) {
      ++held_;
      self.holds_baton = true;
      return;
    }
    if (!self.queued) {
      enqueue(static_cast<int>(&self - devices_.begin()));
    }
    while (!self.holds_baton && failure_.empty()) {
      self.changed.wait(lock);
    }
  }
  void enqueue(int rank) {
    if (held_ < most_) {
      ++held_;
      state(rank).holds_baton = true;
      state(rank).changed.notify_one();
      return;
    }
    state(rank).queued = true;
    queue_.push_back(rank);
  }
  void give_baton(State& self) {
    if (most_ == 0 || !self.holds_baton) {
      return;
    }
    self.holds_baton = false;
    --held_;
    if (next_ < queue_.size()) {
      State& next = state(queue_[next_++]);
      next.queued = false;
      next.holds_baton = true;
      ++held_;
      next.changed.notify_one();
    }
    if (next_ == queue_.size()) {
      queue_.clear();
      next_ = 0;
    }
  }

  std::mutex mutex_;  // guards all below
  int most_;
  int spins_;
  List<State> devices_;
  List<Whereabouts> whereabouts_;  // where each device has a processor; no lock
  int running_;                    // devices that neither wait nor have ended
  int held_ = 0;
  std::vector<int> queue_;  // ranks that could run
  std::size_t next_ = 0;
  std::string failure_;
  std::atomic<bool> over_{false};
};

}  // namespace detail
}  // namespace tinyscale
