#pragma once
// The array and its clock: every PE, every tick, with the counters of what really happened.
// A block of ticks at a time: the feeder puts words on the edges, the PEs step, results that reach
// an edge are collected, and each PE books the ticks for which it did the same. Weights stationary:
// row r is fed r ticks after row 0; the switch to the weights that shifted in rides on the fold's
// first activation (TPU v1). Outputs stationary: the bottom row's sum leaves a column first.

#include <algorithm>  // min, max, fill
#include <cstdint>    // int64_t
#include <cstring>    // memcpy

#include "tinyscale/base/list.hpp"
#include "tinyscale/systolic/array_registers.hpp"
#include "tinyscale/systolic/array_timing.hpp"

namespace tinyscale {
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
}  // namespace tinyscale
