#pragma once
// Which PE holds what in one tick: a picture of the array's real registers.
// The array is stepped up to that tick; nothing is computed from a formula. Small arrays show each
// PE's operands, large ones a letter a PE.

#include <algorithm>  // max
#include <cstddef>    // size_t
#include <cstdint>    // int64_t
#include <iostream>   // ostream
#include <string>     // string

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/systolic/systolic_array.hpp"

namespace tinyscale {

// One PE after a tick. Indices are those of the operands it multiplies: x[m, k] and w[k, n].
struct WavefrontCell {
  char state = '>';  // '#' useful, 'o' padded, '>' fill, '<' drain, 'v' weights shifting in
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
    std::string what = state == '#'   ? detail::cat("x", m, ",", k, " w", k, ",", n)
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
    std::string out = detail::cat("tick ", tick, ", ", name_of(dataflow), ": ", busy(), " of ",
                                  rows * cols, " PEs multiply\n");
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
             std::to_string(cell.n), detail::cat(cell.moving), detail::cat(cell.held),
             detail::cat(cell.next), detail::cat(cell.sum)});
    }
    return t;
  }

  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
};

inline std::ostream& operator<<(std::ostream& out, const Wavefront& w) { return out << w.text(); }

namespace detail {

// The product's indices of a PE that multiplies, from the slot that reached it.
inline void name_operands(const SystolicTiming& t, const StreamSlot& slot, std::int64_t r,
                          std::int64_t c, WavefrontCell& cell) {
  const std::int64_t down = slot.row_fold * t.rows + r;
  const std::int64_t across = slot.col_fold * t.cols + c;
  const bool outputs = t.dataflow == Dataflow::output_stationary;
  const bool inputs = t.dataflow == Dataflow::input_stationary;
  cell.fold = slot.fold;
  cell.m = outputs ? down : inputs ? across : slot.index;
  cell.k = outputs ? slot.index : down;
  cell.n = inputs ? slot.index : across;
}

template <class Machine>
Wavefront snapshot(Machine&& machine, std::int64_t tick) {
  while (!machine.done() && machine.core.tick <= tick) {
    machine.step();
  }
  const SteppedArray& array = machine.core;
  if (array.tick <= tick) {
    fail({"wavefront: tick ", tick, " of a run that ends after ", array.tick,
          " ticks; give one from 0 to ", array.tick - 1});
  }
  const PeGrid& g = array.grid;
  Wavefront picture{g.rows, g.cols, tick, array.counted.dataflow, {}};
  for (std::int64_t r = 0; r < g.rows; ++r) {
    for (std::int64_t c = 0; c < g.cols; ++c) {
      WavefrontCell cell;
      const char letters[] = {'#', 'o', '>', '<', 'v'};
      cell.state = letters[static_cast<int>(g.state(r, c))];
      if (g.streaming.get(r, c)) {
        name_operands(array.counted, array.sent_before(r + c + 1), r, c, cell);
      }
      cell.moving = g.activation.row(r)[c];
      cell.held = g.held.row(r)[c];
      cell.next = g.next.row(r)[c];
      cell.sum = g.sum.row(r)[c];
      picture.cells.push_back(cell);
    }
  }
  return picture;
}

}  // namespace detail

// The array in the given tick (from 0) of array.matmul(x, w). Throws after the last one.
inline Wavefront wavefront(const SystolicArray& array, const Tensor& x, const Tensor& w, Dim tick) {
  const detail::ArrayProblem p("wavefront", array, x, w);
  if (tick.value < 0) {
    detail::fail({"wavefront: tick ", tick.value, "; ticks count from 0"});
  }
  Tensor product = zeros(p.output);
  if (array.dataflow() == Dataflow::output_stationary) {
    return detail::snapshot(detail::OutputStationary(p.timing, p.x, p.w, product.data()),
                            tick.value);
  }
  return detail::snapshot(detail::weight_stationary(p, product.data()), tick.value);
}

}  // namespace tinyscale
