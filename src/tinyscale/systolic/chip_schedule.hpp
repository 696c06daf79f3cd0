#pragma once
// How a product goes through a chip: memory -> on-chip memory or weight FIFO -> MXUs side by side
// -> accumulators -> vector unit -> memory, in integer ticks of the array.
//   for n by tile.n, m by tile.m, k by tile.k: for the columns of all MXUs, for R rows: one fold
// An operand is fetched for each use, or once if all of it is kept on chip. One memory serves all
// transfers in the order of need. A weight tile waits until the one Q before it was shifted in (Q:
// the FIFO, or 2), a tile of x and a block's accumulators until those two before are free. Results
// leave before the tiles of the block after next come, or ahead of a read that starts after they
// are ready.

#include <algorithm>  // min, max
#include <cmath>      // llround
#include <cstdint>    // int64_t
#include <vector>     // predictions

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/order.hpp"
#include "tinyscale/systolic/array_timing.hpp"

namespace tinyscale {

// Where an operand lies before, the result afterwards.
enum class Home { memory, chip };

// Rows of x, inner size and columns of w that are worked on together; 0: searched for.
struct ChipTile {
  std::int64_t m = 0, k = 0, n = 0;
};

struct ChipMatmul {
  DType format = DType::f64;  // of the operands; f64: the chip's bf16, else int8, else f32
  DType result = DType::f32;  // in which results leave
  ChipTile tile;
  Home x = Home::memory, w = Home::memory, y = Home::memory;
};

namespace detail {

constexpr std::int64_t most_folds = std::int64_t{1} << 22;  // of 80 bytes each
constexpr std::int64_t most_ticks = std::int64_t{1} << 34;
constexpr std::int64_t most_bytes = std::int64_t{1} << 44;

// A rate as a whole number of parts a tick, 2^16 to a unit (one, from 4096 units a tick on); 0: no
// limit. Times add up in parts and are rounded up to a tick only where the array waits for them.
struct TickRate {
  std::int64_t parts = 0, unit = 1;

  std::int64_t ticks(std::int64_t amount) const {
    const bool exact = amount < most_bytes;
    return exact ? up(amount * unit) : parts == 0 ? 0 : std::min(amount / parts, most_bytes) * unit;
  }
  std::int64_t up(std::int64_t part) const { return parts == 0 ? 0 : (part + parts - 1) / parts; }
};

inline TickRate tick_rate(double per_second, double ticks_per_second) {
  const double rate = per_second / ticks_per_second;
  if (!(rate > 0)) {
    return {};
  }
  const std::int64_t unit = rate < 4096 ? 65536 : 1;
  const double parts = std::min(rate * static_cast<double>(unit), 0x1p28);
  return {std::max<std::int64_t>(1, std::llround(parts)), unit};
}

// What a schedule needs to know of chip and product.
struct ChipCase {
  SystolicTiming array;  // rows, cols, M, K, N, dataflow, passes
  ChipMatmul o;
  std::int64_t arrays = 1;
  std::int64_t word = 2, result_word = 4;  // bytes; 0: the result stays on the chip
  std::int64_t fifo = 0;
  double sram = 0, accumulators = 0;  // bytes; 0: not known, none of their own
  TickRate memory, vector;            // bytes, results a tick

  std::int64_t wide() const { return array.cols * arrays; }
  std::int64_t fetched(Home home) const { return home == Home::chip ? 0 : word; }
};

struct ChipPlan {
  ChipTile tile;
  bool keep_x = false, keep_w = false, fits = false;
  std::int64_t predicted = 0, least = 0, bytes = 0, on_chip = 0, accumulators = 0, folds = 0;

  // Fewer ticks, then fewer bytes moved; what fits before what does not, of that what needs least.
  bool better_than(const ChipPlan& b) const {
    const std::int64_t need = fits ? predicted : on_chip + accumulators;
    const std::int64_t theirs = b.fits ? b.predicted : b.on_chip + b.accumulators;
    return b.folds == 0 || (fits != b.fits   ? fits
                            : need != theirs ? need < theirs
                                             : bytes < b.bytes);
  }
};

// Bytes that a plan holds and moves, and the ticks that follow: the slowest of arrays, memory,
// vector unit and the way through two blocks of accumulators, and the first tiles' way in and the
// last block's way out.
inline void predict(const ChipCase& c, ChipPlan& p) {
  const std::int64_t m = c.array.m, k = c.array.k, n = c.array.n, rows = c.array.rows;
  const ChipTile& t = p.tile;
  const std::int64_t fm = folds_of(m, t.m), fn = folds_of(n, t.n), blocks = fm * fn;
  const std::int64_t twice = blocks * folds_of(k, t.k) > 1 ? 2 : 1;
  const std::int64_t sums = (blocks > 1 ? 2 : 1) * t.m * t.n * 4, out = t.m * t.n * c.result_word;
  const std::int64_t x = p.keep_x ? m * k : twice * t.m * t.k;
  const std::int64_t w = p.keep_w ? k * n : c.fifo > 0 ? 0 : 2 * rows * c.wide();
  const std::int64_t x_word = c.fetched(c.o.x), w_word = c.fetched(c.o.w);
  p.accumulators = c.accumulators > 0 ? sums : 0;
  p.on_chip = (x + w) * c.word + sums - p.accumulators;
  p.on_chip += c.o.y == Home::chip ? m * n * static_cast<std::int64_t>(bytes_of(c.o.result)) : 0;
  p.bytes = m * k * (p.keep_x ? 1 : fn) * x_word + k * n * (p.keep_w ? 1 : fm) * w_word +
            m * n * c.result_word;
  const std::int64_t per_fold = std::max(t.m * c.array.passes, rows);
  const std::int64_t k_folds = folds_of(k, rows), tiles = k_folds * folds_of(n, c.wide());
  const std::int64_t last = m - (fm - 1) * t.m;
  const auto times = [](std::int64_t a, std::int64_t b) {  // 2^60 at most
    const double product = static_cast<double>(a) * static_cast<double>(b);
    return product < 0x1p60 ? a * b : std::int64_t{1} << 60;
  };
  const std::int64_t arrays =
      times(times(fm - 1, per_fold) + std::max(last * c.array.passes, rows), tiles);
  const std::int64_t first =
      t.m * t.k * x_word + std::min(rows, k) * std::min(c.wide(), n) * w_word;
  // A block's accumulators are free again when its results have left: there are two of each.
  const std::int64_t leaves = c.vector.ticks(t.m * t.n) + c.memory.ticks(out);
  const std::int64_t through = rows + c.array.cols - 2;
  const std::int64_t turn = k_folds * folds_of(t.n, c.wide()) * per_fold + through + leaves;
  const std::int64_t turns = times(blocks / 2, turn) - through - leaves;
  p.folds = fm * tiles;
  p.least = std::max({arrays, c.memory.ticks(p.bytes), c.vector.ticks(m * n)});
  p.predicted =
      std::max(std::max({arrays, turns, c.vector.ticks(m * n) - c.vector.ticks(t.m * t.n)}) +
                   c.memory.ticks(first),
               c.memory.ticks(p.bytes - out)) +
      rows + through + leaves;
  p.fits = (!(c.sram > 0) || static_cast<double>(p.on_chip) <= c.sram) &&
           (!(c.accumulators > 0) || static_cast<double>(p.accumulators) <= c.accumulators) &&
           p.folds <= most_folds && p.predicted <= most_ticks && p.bytes < most_bytes;
}

// Places every fold of a plan on the clock.
class ChipTimeline {
 public:
  ChipTimeline(const ChipCase& problem, const ChipPlan& plan) : c(problem), p(plan) {
    const ChipTile& t = p.tile;
    const auto tiles = static_cast<std::size_t>(folds_of(c.array.m, t.m) * k_tiles());
    const auto weights =
        static_cast<std::size_t>(folds_of(c.array.k, c.array.rows) * folds_of(c.array.n, c.wide()));
    x_at_.assign(p.keep_x ? tiles : 0, c.o.x == Home::chip ? 0 : -1);
    w_at_.assign(p.keep_w ? weights : 0, c.o.w == Home::chip ? 0 : -1);
    folds.reserve(static_cast<std::size_t>(p.folds));
    for (std::int64_t n = 0; n < c.array.n; n += t.n) {
      for (std::int64_t m = 0; m < c.array.m; m += t.m) {
        block(m, n, std::min(t.m, c.array.m - m), std::min(t.n, c.array.n - n));
      }
    }
    write_until(results_.size());
    cycles = std::max(cycles, array_end());
  }

  List<Fold> folds;
  std::int64_t cycles = 0;
  std::int64_t bytes_read = 0, bytes_written = 0;

 private:
  struct Result {
    std::int64_t bytes = 0, ready = 0, end = 0;
  };

  std::int64_t k_tiles() const { return folds_of(c.array.k, p.tile.k); }
  std::int64_t array_end() const { return fold_end(c.array, folds.back(), c.arrays); }

  std::int64_t move(std::int64_t bytes, std::int64_t ready) {
    busy_ = std::max(busy_, ready * c.memory.parts) + bytes * c.memory.unit;
    return c.memory.up(busy_);
  }

  void write_until(std::size_t count) {
    for (; written_ < count; ++written_) {
      Result& r = results_[written_];
      bytes_written += r.bytes;
      r.end = r.bytes == 0 ? r.ready : move(r.bytes, r.ready);
      cycles = std::max(cycles, r.end);
    }
  }

  // A tile of an operand; of one that is kept (the others have no `at`) only for its first use.
  std::int64_t fetch(List<std::int64_t>& at, std::int64_t tile, std::int64_t words,
                     std::int64_t ready) {
    std::int64_t own = -1;
    std::int64_t& arrival = at.empty() ? own : at[static_cast<std::size_t>(tile)];
    if (arrival >= 0) {
      return arrival;
    }
    while (written_ < results_.size() &&
           results_[written_].ready * c.memory.parts <= std::max(busy_, ready * c.memory.parts)) {
      write_until(written_ + 1);
    }
    bytes_read += words * c.word;
    return arrival = move(words * c.word, ready);
  }

  std::int64_t fetch_w(const Fold& f) {
    const std::int64_t rows = c.array.rows, left = c.array.n - f.n0;
    const std::int64_t words = std::min(rows, c.array.k - f.k0) * std::min(c.wide(), left);
    const std::int64_t tile = f.k0 / rows * folds_of(c.array.n, c.wide()) + f.n0 / c.wide();
    const std::size_t depth = static_cast<std::size_t>(c.fifo > 0 ? c.fifo : 2), i = folds.size();
    return fetch(w_at_, tile, words, p.keep_w || i < depth ? 0 : folds[i - depth].load + rows);
  }

  std::int64_t fetch_x(const Fold& f, std::int64_t rows) {
    const std::int64_t words = rows * std::min(p.tile.k, c.array.k - f.k0);
    const std::int64_t tile = f.m0 / p.tile.m * k_tiles() + f.k0 / p.tile.k;
    return fetch(x_at_, tile, words, p.keep_x ? 0 : x_used_[0]);
  }

  void block(std::int64_t m0, std::int64_t n0, std::int64_t rows, std::int64_t columns) {
    const std::size_t blocks = results_.size();
    write_until(std::max<std::size_t>(blocks, 1) - 1);  // two blocks of accumulators
    const std::int64_t free = blocks < 2 ? 0 : results_[blocks - 2].end;
    for (std::int64_t k0 = 0; k0 < c.array.k; k0 += p.tile.k) {
      const std::int64_t k1 = std::min(c.array.k, k0 + p.tile.k);
      std::int64_t x = -1;
      for (std::int64_t n = n0; n < n0 + columns; n += c.wide()) {
        for (std::int64_t k = k0; k < k1; k += c.array.rows) {
          Fold fold;
          fold.m0 = m0;
          fold.k0 = k;
          fold.n0 = n;
          fold.length = rows * c.array.passes;
          const std::int64_t w = fetch_w(fold);  // needed R ticks before x
          x = x < 0 ? fetch_x(fold, rows) : x;
          const FoldSupply supply{w, std::max(x, free)};
          place_fold(c.array, folds.empty() ? nullptr : &folds.back(), supply, fold);
          folds.push_back(fold);
        }
      }
      x_used_[0] = x_used_[1];
      x_used_[1] = folds.back().end() + c.array.rows - 1;
    }
    vector_free_ = std::max(vector_free_, array_end()) + c.vector.ticks(rows * columns);
    results_.push_back({rows * columns * c.result_word, vector_free_, 0});
  }

  const ChipCase& c;
  const ChipPlan& p;
  List<std::int64_t> x_at_, w_at_;   // arrival of each tile; -1: not yet
  std::int64_t x_used_[2] = {0, 0};  // the last ticks of the two latest tiles of x
  List<Result> results_;
  std::size_t written_ = 0;
  std::int64_t busy_ = 0;  // of the memory, in 1 / memory.parts of a tick
  std::int64_t vector_free_ = 0;
};

// Sizes to try: the given one, or the whole and its parts in multiples of the unit.
inline List<std::int64_t> tile_sizes(std::int64_t size, std::int64_t given, std::int64_t unit) {
  List<std::int64_t> sizes = {given > 0 ? std::min(given, size) : size};
  const std::int64_t units = folds_of(size, unit);
  for (std::int64_t parts = 2; given == 0 && sizes.back() > unit; parts += 1 + parts / 4) {
    sizes.push_back(folds_of(units, std::min(parts, units)) * unit);
  }
  return sizes;
}

// The plan that is best on the clock. Placed there until 2^18 folds were are first the best of each
// m, then the others in the order of their predictions, but none that cannot be faster. What has
// more than 2^15 folds beyond that is charged an eighth more than predicted.
inline ChipPlan best_plan(const ChipCase& c) {
  ChipPlan best, p;
  List<ChipPlan> plans;
  std::vector<std::int64_t> keys;
  for (const std::int64_t m : tile_sizes(c.array.m, c.o.tile.m, 1)) {
    ChipPlan of_m;
    std::size_t at = 0;
    for (const std::int64_t k : tile_sizes(c.array.k, c.o.tile.k, c.array.rows)) {
      for (const std::int64_t n : tile_sizes(c.array.n, c.o.tile.n, c.wide())) {
        for (int way = 0; way < 4; ++way) {
          p.tile = {m, k, n};
          p.keep_x = c.o.x == Home::chip || way % 2 == 1;
          p.keep_w = c.o.w == Home::chip || (way / 2 == 1 && c.fifo == 0);
          predict(c, p);
          if (p.better_than(of_m)) {
            of_m = p;
            at = keys.size();
          }
          if (p.fits) {
            plans.push_back(p);
            keys.push_back(p.predicted);
          }
        }
      }
    }
    best = of_m.better_than(best) ? of_m : best;
    if (of_m.fits) {
      keys[at] -= most_ticks;  // before all others
    }
  }
  std::int64_t fewest = 0, placed = 0;
  for (const std::size_t i : stable_order(keys)) {
    const ChipPlan& plan = plans[i];
    const bool first = keys[i] != plan.predicted, over = placed + plan.folds > (1 << 18);
    const bool many = over && plan.folds > (1 << 15);
    const bool hopeless = fewest > 0 && plan.least >= fewest - fewest / 4096;
    if (hopeless || (!first && (plan.predicted >= fewest * 2 || (over && !many)))) {
      continue;
    }
    const std::int64_t ticks = many ? plan.predicted / 8 * 9 : ChipTimeline(c, plan).cycles;
    placed += many ? 0 : plan.folds;
    if (fewest == 0 || ticks < fewest || (ticks == fewest && plan.bytes < best.bytes)) {
      fewest = ticks;
      best = plan;
    }
  }
  return best;
}

}  // namespace detail
}  // namespace tinyscale
