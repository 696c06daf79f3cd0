#pragma once
// Which PE holds what in one tick: a picture of the array's real registers.
// The array is stepped up to that tick; nothing is computed from a formula. Small arrays show each
// PE's operands, large ones a letter a PE.

#include <algorithm>  // max
#include <cstddef>    // size_t
#include <cstdint>    // int32_t, int64_t
#include <cstring>    // memcpy
#include <iostream>   // ostream
#include <string>     // string
#include <vector>     // vector

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/systolic/systolic_array.hpp"

namespace tinyscale {

// One PE after a tick. Indices are those of the operands it multiplies: x[m, k] and w[k, n].
struct WavefrontCell {
  char state = '>';  // '#' useful, 'o' padded, '>' fill, '<' drain, 'v' shift, '.' stall
  std::int64_t fold = -1;
  std::int64_t m = -1;
  std::int64_t k = -1;
  std::int64_t n = -1;
  float moving = 0;  // the register that moves east
  float held = 0;    // the stationary weight or input; outputs stationary: the weight moving south
  float next = 0;    // the second register: the next weight, or a sum on its way out
  float sum = 0;

  // Its operands, or why it has none, in at least 14 columns.
  std::string text() const {
    std::string what = state == '#'   ? detail::cat({"x", m, ",", k, " w", k, ",", n})
                       : state == 'o' ? "padded"
                       : state == '>' ? "fill"
                       : state == '<' ? "drain"
                                      : "shift";
    what.resize(std::max<std::size_t>(what.size() + 2, 14), ' ');
    return what;
  }
};

struct Wavefront {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t tick = 0;
  Dataflow dataflow = Dataflow::weight_stationary;
  List<WavefrontCell> cells;  // row-major

  const WavefrontCell& at(std::int64_t r, std::int64_t c) const {
    return cells[static_cast<std::size_t>(r * cols + c)];
  }

  // PEs that multiply in this tick, padding included.
  std::int64_t busy() const {
    std::int64_t count = 0;
    for (const WavefrontCell& cell : cells) {
      count += cell.state == '#' || cell.state == 'o' ? 1 : 0;
    }
    return count;
  }

  std::string text() const {
    std::string out = detail::cat({"tick ", tick, ", ", name_of(dataflow), ": ", busy(), " of ",
                                   rows * cols, " PEs multiply\n"});
    const bool detailed = cols <= 6 && rows <= 16;
    for (std::int64_t r = 0; r < rows; ++r) {
      std::string line;
      for (std::int64_t c = 0; c < cols; ++c) {
        line += detailed ? at(r, c).text() : std::string(1, at(r, c).state);
      }
      out += line.erase(line.find_last_not_of(' ') + 1) + "\n";
    }
    return detailed ? out : out + "# useful  o padded  > fill  < drain  v weights shift in\n";
  }

  // One row per PE.
  Table table() const {
    Table t;
    t.columns = {"row", "col", "state", "fold", "m", "k", "n", "moving", "held", "next", "sum"};
    for (std::int64_t i = 0; i < rows * cols; ++i) {
      const WavefrontCell& cell = cells[static_cast<std::size_t>(i)];
      t.add({std::to_string(i / cols), std::to_string(i % cols), std::string(1, cell.state),
             std::to_string(cell.fold), std::to_string(cell.m), std::to_string(cell.k),
             std::to_string(cell.n), detail::cat({cell.moving}), detail::cat({cell.held}),
             detail::cat({cell.next}), detail::cat({cell.sum})});
    }
    return t;
  }

  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
};

inline std::ostream& operator<<(std::ostream& out, const Wavefront& w) { return out << w.text(); }

namespace detail {

// The product's indices of a PE that multiplies: it sees the slot that was sent r + c ticks ago.
inline void name_operands(const ArrayStepper& stepper, std::int64_t tick, std::int64_t r,
                          std::int64_t c, WavefrontCell& cell) {
  const SystolicTiming& t = stepper.registers().t;
  for (const Fold& f : stepper.live()) {
    const std::int64_t slot = tick - r - c - f.stream;
    if (slot >= 0 && slot < f.length) {
      const std::int64_t index = slot % (f.length / t.passes);
      const bool inputs = t.dataflow == Dataflow::input_stationary;
      cell.fold =
          (keeps_outputs(t) ? f.m0 : f.k0) / t.rows + (inputs ? f.m0 : f.n0) / t.cols * t.row_folds;
      cell.m = keeps_outputs(t) ? f.m0 + r : inputs ? f.m0 + c : index;
      cell.k = keeps_outputs(t) ? index : f.k0 + r;
      cell.n = inputs ? index : f.n0 + c;
    }
  }
}

// A word of a register as a number: in an int8 array it holds an integer.
inline float register_value(const SystolicTiming& t, const float* word) {
  std::int32_t whole = 0;
  std::memcpy(&whole, word, sizeof whole);
  return t.format == DType::int8 ? static_cast<float>(whole) : *word;
}

inline WavefrontCell snapshot_cell(const ArrayStepper& stepper, std::int64_t tick, std::int64_t r,
                                   std::int64_t c) {
  const PeBlock& b = stepper.registers().b;
  const SystolicTiming& t = stepper.registers().t;
  const std::int64_t at = (b.first + r) * b.step + c;
  const bool outputs = keeps_outputs(t);
  WavefrontCell cell;
  const PeState state = stepper.state(r, c);
  cell.state = state == PeState::useful         ? '#'
               : state == PeState::streaming    ? 'o'
               : state == PeState::fill         ? '>'
               : state == PeState::drain        ? '<'
               : state == PeState::weight_shift ? 'v'
                                                : '.';
  if (state == PeState::streaming || state == PeState::useful) {
    name_operands(stepper, tick, r, c, cell);
  }
  cell.moving = register_value(t, b.west + (b.first + r) * b.west_step + c) + 0.0f;  // idle: -0
  cell.held = register_value(t, outputs ? b.north[0] + r * b.step + c : b.weight + at);
  if (!outputs) {  // while a tile shifts in, what passes by; then what came to rest
    bool shifting = false;
    for (const Fold& f : stepper.live()) {
      const std::int64_t shift = tick - f.load - (t.schedule == Schedule::serial ? 0 : c);
      shifting = shifting || (shift >= r && shift < t.rows - 1);
    }
    cell.next = register_value(t, shifting ? b.north[0] + r * b.step + c : b.next[0] + at);
  } else if (t.drain == Drain::shifted) {
    for (const Fold& f : stepper.live()) {  // a sum moves south once its column's shift has begun
      const std::int64_t shifts = std::max<std::int64_t>(0, tick - f.drain - t.rows + 1 - c);
      if (tick >= f.drain + std::max<std::int64_t>(0, r - shifts) + c && shifts <= r) {
        const std::int64_t fold = f.m0 / t.rows + f.n0 / t.cols * t.row_folds;
        const std::int64_t plane = fold % stepper.registers().planes;
        cell.next = register_value(t, b.exits + (plane * b.rows) * b.step + at - shifts * b.step);
      }
    }
  }
  cell.sum = register_value(t, b.sum + at);
  return cell;
}

}  // namespace detail

// PEs that multiply in each tick of a run, padding included.
struct ActivePes {
  std::vector<std::int64_t> simulated;  // counted from what every PE did
  std::vector<std::int64_t> formula;    // sum over folds of D(t - s) - D(t - s - T)
};

inline ActivePes active_pes(const SystolicArray& array, const Tensor& x, const Tensor& w) {
  const detail::ArrayProblem p("active_pes", array, x, w);
  const detail::ArrayOperands operands(p.timing, "active_pes", p.x, p.w);
  const SystolicTiming t = array.timing(p.timing.m, p.timing.k, p.timing.n);
  if (t.cycles > std::int64_t{1} << 24) {
    detail::fail({"active_pes: the run takes ", t.cycles, " ticks; at most 2^24 are counted"});
  }
  Tensor product = zeros(p.output);
  List<std::int64_t> starts(static_cast<std::size_t>(t.cycles + 1));
  detail::ArrayWork work = operands.work(product.data());
  work.starts = &starts;
  work.last = t.folds();
  detail::ArrayStepper stepper(p.timing, work);
  stepper.finish(stepper.run());
  ActivePes active;
  std::int64_t now = 0;
  for (std::int64_t tick = 0; tick < t.cycles; ++tick) {
    now += starts[static_cast<std::size_t>(tick)];
    active.simulated.push_back(now);
  }
  active.formula.resize(active.simulated.size());
  const auto reached = [&t](std::int64_t tick) {  // D: PEs that a wave begun at tick 0 has reached
    return detail::ticks_since(t, detail::Arrival::by_wave, tick + 1) -
           detail::ticks_since(t, detail::Arrival::by_wave, tick);
  };
  for (std::int64_t f = 0; f < t.folds(); ++f) {
    const detail::Fold fold = detail::nth_fold(t, f);
    const std::int64_t last = std::min(t.cycles, fold.end() + t.rows + t.cols - 2);
    for (std::int64_t tick = fold.stream; tick < last; ++tick) {
      active.formula[static_cast<std::size_t>(tick)] +=
          reached(tick - fold.stream) - reached(tick - fold.end());
    }
  }
  return active;
}

// The array in the given tick (from 0) of array.matmul(x, w). Throws after the last one.
inline Wavefront wavefront(const SystolicArray& array, const Tensor& x, const Tensor& w, Dim tick) {
  const detail::ArrayProblem p("wavefront", array, x, w);
  const std::int64_t steps = array.timing(p.timing.m, p.timing.k, p.timing.n).cycles;
  if (tick.value < 0) {
    detail::fail({"wavefront: tick ", tick.value, "; ticks count from 0"});
  }
  if (tick.value >= steps) {
    detail::fail({"wavefront: tick ", tick.value, " of a run that ends after ", steps,
                  " ticks; give one from 0 to ", steps - 1});
  }
  const detail::ArrayOperands operands(p.timing, "wavefront", p.x, p.w);
  Tensor product = zeros(p.output);
  detail::ArrayWork work = operands.work(product.data());
  work.last = p.timing.folds();
  detail::ArrayStepper stepper(p.timing, work);
  stepper.step_to(tick.value);
  Wavefront picture{p.timing.rows, p.timing.cols, tick.value, p.timing.dataflow, {}};
  for (std::int64_t r = 0; r < picture.rows; ++r) {
    for (std::int64_t c = 0; c < picture.cols; ++c) {
      picture.cells.push_back(detail::snapshot_cell(stepper, tick.value, r, c));
    }
  }
  return picture;
}

// The array in ticks first, first + every, ..: the frames of a strip. Throws as wavefront() does.
inline List<Wavefront> wavefronts(const SystolicArray& array, const Tensor& x, const Tensor& w,
                                  Dim first, Dim count, Dim every = 1) {
  List<Wavefront> frames;
  for (std::int64_t i = 0; i < count.value; ++i) {
    frames.push_back(wavefront(array, x, w, first.value + i * every.value));
  }
  return frames;
}

}  // namespace tinyscale
