#pragma once
// Runs the schedule of a collective over the buffers of all its devices, transfer by transfer.
// What happens to one element does not depend on its neighbours, so a stretch of a chunk goes
// through all steps while it is in the cache, and threads take different stretches: no thread waits
// for another between steps. Numbers are rounded to the wire's format whenever they are sent.

#include <algorithm>  // max, min, upper_bound
#include <cstddef>
#include <cstdint>
#include <cstring>  // memcpy
#include <thread>   // this_thread::get_id
#include <vector>

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/scratch.hpp"
#include "tinyscale/compute/streams.hpp"
#include "tinyscale/mesh/exchange.hpp"
#include "tinyscale/mesh/two_ends.hpp"

namespace tinyscale {
namespace detail {

// Takes stretches of chunks through all hops: finds the steps of a stretch, then carries them out.
// The steps say where in a device's tensors numbers are, not at which address, so that those of a
// small exchange are found once.
class StretchRun {
 public:
  static constexpr std::int64_t most = 8192;  // elements

  StretchRun(const Exchange& exchange, const DeviceBuffers* devices, std::int64_t length)
      : e_(exchange),
        devices_(devices),
        length_(length),
        exact_(exchange.format == DType::f32),
        adds_(exact_ && (exchange.how == Reduce::sum || exchange.how == Reduce::mean)),
        size_(static_cast<std::size_t>(exchange.devices)),
        past_(past_caches(moved_elements(exchange) / 2)),
        now_(size_),
        home_(size_),
        by_(size_),
        own_(exchange.devices * length),
        payload_(exchange.paths.widest * length),
        from_(3 * size_ + 1),
        to_(3 * size_ + 1) {
    for (std::size_t d = 0; d < size_; ++d) {
      home_[d] = own(d);
      from_[own(d).base] = to_[own(d).base] = own_.data() + static_cast<std::int64_t>(d) * length_;
    }
    from_[payload(0).base] = to_[payload(0).base] = payload_.data();
    bind();
  }

  // To the tensors that the devices have now. Steps of other devices' tensors are forgotten.
  void bind() {
    bool same = true;
    for (std::size_t d = 0; d < size_; ++d) {
      const DeviceBuffers& now = devices_[d];
      same = same && (now.in == nullptr) == (from_[3 * d] == nullptr) &&
             (now.out == nullptr) == (to_[3 * d + 1] == nullptr);
      from_[3 * d] = now.in;
      from_[3 * d + 1] = to_[3 * d + 1] = now.out;
    }
    if (!same) {
      forget();
    }
  }

  // `count` elements of a chunk, from element `first` of the chunk on.
  void run(int chunk, std::int64_t first, std::int64_t count) {
    add(chunk, first, count);
    run();
    forget();
  }
  void add(int chunk, std::int64_t first, std::int64_t count) {
    const int b = chunk / e_.cut.parts;
    began_ = steps_.size();
    place_.first = e_.cut.begin(chunk) - e_.cut.begin(b * e_.cut.parts) + first;
    place_.count = count;
    // All devices have to do with a chunk, except in all_to_all: then there are too many chunks.
    const bool pairs = e_.what == Collective::all_to_all;
    const int sender = b / e_.devices, receiver = b % e_.devices;
    for (int d = pairs ? sender : 0; d < (pairs ? sender + 1 : e_.devices); ++d) {
      begin(d, b);
    }
    if (pairs && receiver != sender) {
      begin(receiver, b);
    }
    const std::size_t c = static_cast<std::size_t>(chunk);
    for (std::size_t h = e_.paths.first[c]; h < e_.paths.first[c + 1];) {
      const ChunkPaths::Hop& one = e_.paths.hops[h];
      const std::size_t from = static_cast<std::size_t>(one.from);
      const bool alone = one.together <= 1 && (one.reduce != 0 || was_summed(from));
      const bool merged = (one.merged > 1 || alone) && (one.reduce != 0 ? adds_ : exact_);
      const std::size_t hops = static_cast<std::size_t>(merged ? one.merged : one.together);
      if (!merged) {
        hop(h, hops);
      } else if (one.reduce != 0) {
        sum(h, hops);
      } else {
        copy(h, hops);
      }
      h += hops;
    }
    const bool settled = !settles(e_) || divides_in_sum(b);
    const std::size_t now = steps_.size();
    for (int d = pairs ? receiver : 0; d < (pairs ? receiver + 1 : e_.devices); ++d) {
      end(d, b, settled);
    }
    if (past_ && now > began_ && steps_.size() == now) {
      steps_.back().past = true;
    }
  }
  bool has_steps() const { return !steps_.empty(); }
  // All steps that were added.
  void run() {
    for (const Step& step : steps_) {
      carry_out(step);
    }
  }

 private:
  // In what a device gives, gets (base 3 d, 3 d + 1) or has here (3 d + 2), or in the payloads.
  struct Place {
    std::size_t base = 0;
    std::int64_t at = 0;

    bool operator==(const Place& other) const { return base == other.base && at == other.at; }
  };
  struct Step {
    enum class Act { load, store, sum, copy, combine, round, settle };
    Act act = Act::copy;
    Place from, part, to;                           // combine alone has a part
    std::size_t first = 0, parts = 0, targets = 0;  // sum: places added, then those that get it
    float divisor = 1.0f;                           // of a sum
    bool past = false;  // sum, copy: written past the caches, since nothing here reads it again
    Stretch stretch;
  };

  Place in(std::size_t d, const Stretch& s) const { return {3 * d, s.place(s.first)}; }
  Place out(std::size_t d, const Stretch& s) const { return {3 * d + 1, s.place(s.first)}; }
  Place own(std::size_t d) const { return {3 * d + 2, 0}; }
  Place payload(std::size_t i) const { return {3 * size_, static_cast<std::int64_t>(i) * length_}; }

  Stretch stretch(int device, int b, int local, bool input) const {
    Stretch s = place_;
    s.map = input ? e_.in : e_.out;
    s.begin = e_.cut.ragged.empty() ? local * s.map.run : ragged_begin(e_, device, b, input);
    return s;
  }

  Step& step(Step::Act act, const Place& from, const Place& to) {
    steps_.push_back(Step());
    Step& made = steps_.back();
    made.act = act;
    made.from = from;
    made.to = to;
    made.stretch = place_;
    return made;
  }

  // Where a device has its numbers, and where it will work on them.
  void begin(int device, int b) {
    const std::size_t d = static_cast<std::size_t>(device);
    const int to = devices_[d].out == nullptr ? -1 : output_block(e_, device, b);
    if (to >= 0) {
      const Stretch s = stretch(device, b, to, false);
      home_[d] = s.whole() ? out(d, s) : home_[d];
    }
    by_[d] = 0;
    const int from = devices_[d].in == nullptr ? -1 : input_block(e_, device, b);
    if (from >= 0) {
      const Stretch s = stretch(device, b, from, true);
      now_[d] = s.whole() ? in(d, s) : own(d);
      if (!s.whole()) {
        step(Step::Act::load, {3 * d, 0}, own(d)).stretch = s;
      }
    }
  }

  // What is added on the way, in one pass; the order of additions is that of the hops.
  void sum(std::size_t h, std::size_t hops) {
    std::size_t holder = static_cast<std::size_t>(e_.paths.hops[h].from);
    const std::size_t first = places_.size();
    places_.push_back(now_[holder]);
    for (std::size_t i = 0; i < hops; ++i) {
      const ChunkPaths::Hop& one = e_.paths.hops[h + i];
      const std::size_t from = static_cast<std::size_t>(one.from);
      const std::size_t to = static_cast<std::size_t>(one.to);
      places_.push_back(now_[from == holder ? to : from]);
      holder = to;
    }
    sum_from(first, places_.size() - first);
    get(holder);
  }

  // The places from `first` on are added; the first of those that get the sum comes next.
  void sum_from(std::size_t first, std::size_t parts) {
    Step& made = step(Step::Act::sum, places_[first], places_[first]);
    made.first = first;
    made.parts = parts;
  }
  // A device gets the sum of the last step where it wants it.
  void get(std::size_t d) {
    places_.push_back(home_[d]);
    ++steps_.back().targets;
    now_[d] = home_[d];
    by_[d] = steps_.size();
  }

  // Whether what a device has is the sum of the last step.
  bool was_summed(std::size_t d) const {
    return steps_.size() > began_ && steps_.back().act == Step::Act::sum && by_[d] == steps_.size();
  }

  // To all that get the same, and to where the sender itself wants it; what was just added goes
  // there in one pass.
  void copy(std::size_t h, std::size_t hops) {
    const std::size_t sender = static_cast<std::size_t>(e_.paths.hops[h].from);
    if (!was_summed(sender)) {
      const std::size_t first = places_.size();
      places_.push_back(now_[sender]);
      sum_from(first, 1);
      if (!(home_[sender] == own(sender)) && !(now_[sender] == home_[sender])) {
        get(sender);
      }
    }
    for (std::size_t i = 0; i < hops; ++i) {
      get(static_cast<std::size_t>(e_.paths.hops[h + i].to));
    }
  }

  // Whether all results of block b are the last step's sum, which then makes their mean.
  bool divides_in_sum(int b) {
    if (!adds_ || steps_.size() == began_ || steps_.back().act != Step::Act::sum) {
      return false;
    }
    for (int d = 0; d < e_.devices; ++d) {
      const std::size_t i = static_cast<std::size_t>(d);
      if (devices_[i].out != nullptr && output_block(e_, d, b) >= 0 && by_[i] != steps_.size()) {
        return false;
      }
    }
    steps_.back().divisor = static_cast<float>(e_.devices);
    return true;
  }

  void hop(std::size_t h, std::size_t together) {
    const bool stage = together > 1 || e_.format != DType::f32;
    for (std::size_t i = 0; i < together && stage; ++i) {
      step(Step::Act::copy, now_[static_cast<std::size_t>(e_.paths.hops[h + i].from)], payload(i));
      if (e_.format != DType::f32) {
        step(Step::Act::round, payload(i), payload(i));
      }
    }
    for (std::size_t i = 0; i < together; ++i) {
      const ChunkPaths::Hop& one = e_.paths.hops[h + i];
      const std::size_t to = static_cast<std::size_t>(one.to);
      const Place part = stage ? payload(i) : now_[static_cast<std::size_t>(one.from)];
      if (one.reduce != 0) {
        step(Step::Act::combine, now_[to], home_[to]).part = part;
      } else {
        step(Step::Act::copy, part, home_[to]);
      }
      now_[to] = home_[to];
      by_[to] = 0;
    }
  }

  void end(int device, int b, bool settled) {
    const std::size_t d = static_cast<std::size_t>(device);
    const int to = devices_[d].out == nullptr ? -1 : output_block(e_, device, b);
    if (to >= 0) {
      const Stretch s = stretch(device, b, to, false);
      if (!settled) {
        step(Step::Act::settle, now_[d], home_[d]);
        now_[d] = home_[d];
      }
      if (!s.whole() || !(now_[d] == out(d, s))) {
        step(Step::Act::store, now_[d], {3 * d + 1, 0}).stretch = s;
      }
    }
    home_[d] = own(d);
  }

  const float* from(const Place& place) const { return from_[place.base] + place.at; }
  float* to(const Place& place) const { return to_[place.base] + place.at; }

  void carry_out(const Step& step) {
    const std::int64_t count = step.stretch.count;
    switch (step.act) {
      case Step::Act::load: step.stretch.load(from(step.from), to(step.to)); break;
      case Step::Act::store: step.stretch.store(from(step.from), to(step.to)); break;
      case Step::Act::sum:
        parts_.clear();
        copies_.clear();
        for (std::size_t i = 0; i < step.parts; ++i) {
          parts_.push_back(from(places_[step.first + i]));
        }
        for (std::size_t i = 0; i < step.targets; ++i) {
          copies_.push_back(to(places_[step.first + step.parts + i]));
        }
        kernels::add_to_all(count, parts_.data(), step.parts, copies_.data(), step.targets,
                            step.divisor, step.past);
        break;
      case Step::Act::copy:
        if (step.past) {
          const float* const one[] = {from(step.from)};
          float* const copy[] = {to(step.to)};
          kernels::add_to_all(count, one, 1, copy, 1, 1.0f, true);
        } else {
          std::memcpy(to(step.to), from(step.from),
                      static_cast<std::size_t>(count) * sizeof(float));
        }
        break;
      case Step::Act::combine:
        combine(e_.how, count, from(step.from), from(step.part), to(step.to));
        break;
      case Step::Act::round:
        for (std::int64_t i = 0; i < count; ++i) {
          to(step.to)[i] = round_to(from(step.from)[i], e_.format);
        }
        break;
      case Step::Act::settle: settle(e_, count, from(step.from), to(step.to)); break;
    }
  }

  void forget() {
    steps_.clear();
    places_.clear();
  }

  const Exchange& e_;
  const DeviceBuffers* devices_;
  std::int64_t length_;
  bool exact_, adds_;  // numbers are not rounded, and their sums are wanted
  std::size_t size_;
  bool past_;              // the caches do not hold what is read and written
  std::size_t began_ = 0;  // the first step of a stretch
  List<Place> now_;        // by device: its numbers of the stretch
  List<Place> home_;       // where it changes them: in its result where that is contiguous
  List<std::size_t> by_;   // by device: the step, from 1, whose sum it has; 0: it has none
  Stretch place_;
  List<Step> steps_;
  List<Place> places_;
  List<const float*> parts_;
  List<float*> copies_;
  Scratch own_;
  Scratch payload_;
  List<const float*> from_;  // by base
  List<float*> to_;
};

// Elements of a stretch: all devices' fit the cache of a core, and where the runs of the tensors
// are long enough a stretch is an equal part of one, so that it is worked on where it lies.
inline std::int64_t stretch_length(const Exchange& e) {
  const std::int64_t fits =
      std::max<std::int64_t>(16, StretchRun::most / (e.devices > 8 ? e.devices / 8 : 1));
  const std::int64_t run = std::min(e.in.run, e.out.run);
  if (run < 512) {
    return fits;
  }
  const std::int64_t parts = (run + fits - 1) / fits;
  return run % parts == 0 && run / parts >= 16 ? run / parts : fits;
}

// An exchange that runs again and again: how its chunks are cut is found once.
class ExchangeRun {
 public:
  explicit ExchangeRun(const Exchange& exchange)
      : e_(exchange),
        length_(stretch_length(exchange)),
        buffers_(static_cast<std::size_t>(exchange.devices)),
        stretches_(static_cast<std::size_t>(e_.cut.chunks()) + 1, 0) {
    std::int64_t largest = 1;
    for (std::size_t c = 0; c + 1 < stretches_.size(); ++c) {
      const std::int64_t size = e_.cut.elements(chunk_at(c));
      largest = std::max(largest, size);
      stretches_[c + 1] = stretches_[c] + (size + length_ - 1) / length_;
    }
    length_ = std::min(length_, largest);
  }

  List<DeviceBuffers>& buffers() { return buffers_; }

  // Not worth a second thread.
  bool small() const { return e_.cut.begin(e_.cut.chunks()) * e_.devices < 65536; }

  // On this thread, or on as many as loops may use here, or with others who wait at `with`; this
  // thread takes the chunks from the front then, or from the back.
  void run(OpenLoop* with = nullptr, bool from_back = false) {
    const auto body = [&](StretchRun& part, std::int64_t first, std::int64_t last) {
      each_stretch(first, last, [&](int chunk, std::int64_t at, std::int64_t count) {
        part.run(chunk, at, count);
      });
    };
    if (small()) {
      if (!small_) {
        small_ = Shared<StretchRun>(new StretchRun(e_, buffers_.begin(), length_));
      }
      run_small();
    } else if (with != nullptr) {
      const int threads = thread_count();
      const std::thread::id self = std::this_thread::get_id();
      TwoEnds ends(stretches_.back(), threads);
      const auto side = [&](std::int64_t, std::int64_t) {
        const bool back = (std::this_thread::get_id() == self) == from_back;
        std::int64_t first = 0, last = 0;
        if (!ends.take(back, first, last)) {
          return;
        }
        StretchRun part(e_, buffers_.begin(), length_);
        do {
          body(part, first, last);
        } while (ends.take(back, first, last));
      };
      with->run(side, threads, threads - 1);
    } else {
      parallel_for(stretches_.back(), 1, [&](std::int64_t first, std::int64_t last) {
        StretchRun part(e_, buffers_.begin(), length_);
        body(part, first, last);
      });
    }
  }

 private:
  // The chunk at a place in the order in which they are taken: in all_to_all those to one device
  // are side by side, so that who begins at one end writes to the tensors of some devices.
  int chunk_at(std::size_t place) const {
    const int at = static_cast<int>(place), parts = e_.cut.parts;
    if (e_.what != Collective::all_to_all) {
      return at;
    }
    const int block = at / parts, to = block / e_.devices, from = block % e_.devices;
    return (from * e_.devices + to) * parts + at % parts;
  }
  // Calls use(chunk, first element, elements).
  template <class Use>
  void each_stretch(std::int64_t first, std::int64_t last, const Use& use) const {
    std::size_t c = static_cast<std::size_t>(
        std::upper_bound(stretches_.begin(), stretches_.end(), first) - stretches_.begin() - 1);
    for (std::int64_t i = first; i < last; ++i) {
      while (stretches_[c + 1] <= i) {
        ++c;
      }
      const int chunk = chunk_at(c);
      const std::int64_t at = (i - stretches_[c]) * length_;
      const std::int64_t left = e_.cut.elements(chunk) - at;
      use(chunk, at, std::min(length_, left));
    }
  }

  // Few steps are kept for the next run.
  void run_small() {
    const bool few = stretches_.back() * e_.devices <= 1024;
    small_->bind();
    if (!few || !small_->has_steps()) {
      each_stretch(0, stretches_.back(), [&](int chunk, std::int64_t at, std::int64_t count) {
        few ? small_->add(chunk, at, count) : small_->run(chunk, at, count);
      });
    }
    small_->run();
  }

  const Exchange& e_;
  std::int64_t length_;
  List<DeviceBuffers> buffers_;          // by index in the group
  std::vector<std::int64_t> stretches_;  // before each chunk
  Shared<StretchRun> small_;             // of an exchange that one thread runs
};

inline void execute(const Exchange& e, const DeviceBuffers* devices) {
  ExchangeRun once(e);
  for (int d = 0; d < e.devices; ++d) {
    once.buffers()[static_cast<std::size_t>(d)] = devices[d];
  }
  once.run();
}

}  // namespace detail
}  // namespace tinyscale
