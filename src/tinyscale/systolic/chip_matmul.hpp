#pragma once
// One product on a chip: chip_timing() places every fold on the clock, matmul_on() also steps every
// PE through every tick. Operands are rounded to the format (int8: with one scale each), sums are
// f32. A GPU is approximated: its matrix units are output-stationary arrays, a core's side by side;
// blocks of the product go to the cores in waves, down the columns. A wave fetches the rows and
// columns that it touches once (through L2) and takes the longer of arrays and memory; a last wave
// that leaves cores idle takes as long as a full one, and whole blocks are multiplied at the edges.

#include <algorithm>  // min, max, copy
#include <cstdint>    // int64_t
#include <string>     // to_string
#include <vector>     // sizes of a curve

#include "tinyscale/systolic/chip_timing.hpp"
#include "tinyscale/tensor/arithmetic.hpp"
#include "tinyscale/tensor/create.hpp"
#include "tinyscale/tensor/matmul.hpp"

namespace tinyscale {
namespace detail {

// All waves of blocks of r.tile, and the ledger of all cores: at the edges whole blocks stream, and
// cores that the last wave leaves idle drain.
inline void time_waves(const char* function, ChipTiming& r, const ChipCase& c) {
  const std::int64_t rows = c.array.rows, t = c.array.stream, at_once = r.blocks_at_once;
  const std::int64_t down = folds_of(r.m, r.tile.m), blocks = down * folds_of(r.n, r.tile.n);
  const std::int64_t folds = r.tile.m / rows * folds_of(r.tile.n, c.wide());  // of a block
  const std::int64_t pes = c.arrays * rows * c.array.cols * at_once;
  bool short_enough = t < most_ticks / folds;
  const std::int64_t ticks =
      short_enough ? (folds - 1) * std::max(t, rows) + t + 2 * rows + c.array.cols - 2 : 0;
  r.cycles = 0;
  for (std::int64_t first = 0; first < blocks && short_enough; first += at_once, ++r.waves) {
    r.last_wave = std::min(blocks - first, at_once);
    std::int64_t x_rows = 0, columns = 0, results = 0;
    for (std::int64_t b = first; b < first + r.last_wave; ++b) {
      const std::int64_t m = std::min(r.tile.m, r.m - b % down * r.tile.m);
      const std::int64_t n = std::min(r.tile.n, r.n - b / down * r.tile.n);
      x_rows += b - first < down ? m : 0;
      columns += b == first || b % down == 0 ? n : 0;
      results += m * n;
      r.chip_bytes_written += r.k * (m + n) * c.word;  // each block's slices, through L2
    }
    const std::int64_t read = r.k * (x_rows * c.fetched(c.o.x) + columns * c.fetched(c.o.w));
    r.hbm_bytes_read += read;
    r.hbm_bytes_written += results * c.result_word;
    short_enough = read < most_bytes;
    r.cycles += std::max(ticks, short_enough ? c.memory.ticks(read + results * c.result_word) : 0);
    short_enough = short_enough && r.cycles <= most_ticks;
  }
  if (!short_enough) {
    fail({function, ": blocks of ", r.tile.m, " x ", r.k, " x ", r.tile.n, " take more than the ",
          "2^34 ticks that are emulated on ", r.chip});
  }
  LossLedger& l = r.ledger;
  l.useful = r.m * r.k * r.n * c.array.passes;
  r.matmul_cycles = r.waves * folds * t;
  l.padded = r.matmul_cycles * pes - l.useful;
  l.fill = r.waves * (pes * (rows + c.array.cols - 2) / 2);
  l.dma_stall = (r.cycles - r.waves * ticks) * pes;
  l.drain = r.cycles * pes - l.total();
  r.predicted_cycles =
      std::max(r.waves * ticks, c.memory.ticks(r.hbm_bytes_read + r.hbm_bytes_written));
}

// Sums live in half of a core's registers, two slices of 64 of K in its shared memory. Of three
// blocks, or the given one, the one that takes the fewest ticks.
inline void time_gpu(const char* function, ChipTiming& r, const ChipCase& c,
                     const ChipNumbers* numbers) {
  const std::int64_t rows = c.array.rows, k = r.k;
  const double product = static_cast<double>(r.m) * static_cast<double>(r.n);
  if (product > static_cast<double>(most_folds * rows)) {
    fail({function, ": M, N are ", r.m, ", ", r.n, "; M N is at most ", most_folds * rows, " on ",
          r.chip});
  }
  const ChipTile tiles[] = {
      {c.o.tile.m, k, c.o.tile.n}, {128, k, 128}, {128, k, 256}, {256, k, 128}};
  const bool given = c.o.tile.m != 0 || c.o.tile.n != 0;
  ChipTiming best;
  for (int i = given ? 0 : 1; i < (given ? 1 : 4); ++i) {
    ChipTiming trial = r;
    const ChipTile& tile = trial.tile = tiles[i];
    if (tile.m < 1 || tile.n < 1 || tile.m % rows != 0 || tile.n % c.wide() != 0) {
      fail({function, ": tile m ", tile.m, ", n ", tile.n, "; on ", r.chip,
            " they must be multiples of ", rows, " and ", c.wide()});
    }
    const std::int64_t m = std::min(tile.m, most_folds), n = std::min(tile.n, most_folds);
    trial.accumulator_bytes = m * n * 4;
    trial.on_chip_bytes = 2 * (m + n) * std::min<std::int64_t>(64, k) * c.word;
    if (best.waves > 0 && c.sram > 0 && static_cast<double>(trial.on_chip_bytes) > c.sram) {
      continue;
    }
    check_fit(function, trial, c);
    time_waves(function, trial, c);
    best = best.waves == 0 || trial.cycles < best.cycles ? trial : best;
  }
  r = best;
  count_folds(function, r, c, nullptr, numbers);  // which core takes which folds is all the same
  r.cycles = best.cycles;
  r.ledger = best.ledger;
}

inline void time_product(const char* function, ChipTiming& r, const Chip& chip,
                         const ChipMatmul& options, const ChipNumbers* numbers) {
  r.chip = chip.name.empty() ? "this chip" : chip.name;
  const double ticks = chip_ticks(function, chip, r.format);
  const ChipCase c = chip_case(function, chip, r, options, ticks);
  if (chip.kind == "gpu") {
    r.blocks_at_once = chip.cores;
    time_gpu(function, r, c, numbers);
  } else {
    time_mxus(function, r, c, numbers);
  }
  finish(r, chip, c, ticks);
}

// Values times a scale in a format; of int8 whole numbers, and the scale that is left.
inline Tensor values_in(const Tensor& from, DType format, float& scale) {
  Tensor t = contiguous(from).copied();
  for (std::int64_t i = 0; i < t.count(); ++i) {
    const float x = t.data()[i] * scale;
    t.data()[i] = format == DType::int8 ? x : round_to(x, format);
  }
  scale = 1;
  if (format == DType::int8) {
    const Int8Values values = to_int8(std::vector<float>(t.data(), t.data() + t.count()));
    std::copy(values.values.begin(), values.values.end(), t.data());
    scale = values.scale;
  }
  return t;
}

}  // namespace detail

// The costs of x [M, K] times w [K, N] on the chip. Throws when the chip lacks the format or what
// an emulation needs, a size is below 1, or the tile that is given, or every tile, does not fit.
inline ChipTiming chip_timing(const Chip& chip, Dim m, Dim k, Dim n,
                              const ChipMatmul& options = ChipMatmul()) {
  ChipTiming r;
  r.format = options.format;
  r.m = m.value;
  r.k = k.value;
  r.n = n.value;
  detail::time_product("chip_timing", r, chip, options, nullptr);
  return r;
}

struct ChipRun : ChipTiming {
  Tensor output;  // [.., M, N]
};

// The product of x [.., M, K] and w [K, N], every PE of every array stepped, and the same costs; a
// GPU's product is stepped too, its ticks are those of the waves.
// Throws as chip_timing does, and when the inner sizes differ. No gradient flows through it.
inline ChipRun matmul_on(const Chip& chip, const Tensor& x, const Tensor& w,
                         const ChipMatmul& options = ChipMatmul()) {
  const detail::Matmul sizes = detail::matmul_sizes("matmul_on", x, w, kernels::Trans::no);
  ChipRun run;
  run.kind = chip.kind == "gpu" ? "formula" : "simulated";
  run.m = sizes.m;
  run.k = sizes.k;
  run.n = sizes.n;
  run.format = options.format;
  detail::chip_ticks("matmul_on", chip, run.format);
  float scale_x = 1, scale_w = 1;
  const bool whole = run.format == DType::int8;
  const Tensor own_x = whole ? detail::values_in(x.detach(), run.format, scale_x) : contiguous(x);
  const Tensor own_w = whole ? detail::values_in(w.detach(), run.format, scale_w) : contiguous(w);
  run.output = zeros(sizes.shape);
  const detail::ChipNumbers numbers{detail::matrix_view(own_x.data(), sizes.m, sizes.k),
                                    detail::matrix_view(own_w.data(), sizes.k, sizes.n),
                                    run.output.data()};
  detail::time_product("matmul_on", run, chip, options, &numbers);
  if (whole) {
    detail::whole_sums(run.output.data(), run.output.count());
  }
  float scale = scale_x * scale_w;
  run.output = detail::values_in(run.output, options.result, scale);
  for (std::int64_t i = 0; i < run.output.count(); ++i) {
    run.output.data()[i] *= scale;
  }
  return run;
}

// Efficiency against N, a row each: the sawtooth of tiles, and on a GPU of waves over its cores.
inline Table efficiency_curve(const Chip& chip, Dim m, Dim k, const std::vector<std::int64_t>& ns,
                              const ChipMatmul& options = ChipMatmul()) {
  Table t;
  t.columns = {"N", "tile m", "tile n", "waves", "last wave", "of", "cycles", "% of PE-ticks"};
  for (const std::int64_t n : ns) {
    const ChipTiming each = chip_timing(chip, m, k, n, options);
    t.title = detail::cat(
        {"x [", each.m, ", ", each.k, "] times w [", each.k, ", N] on ", each.chip, " (formula)"});
    t.add({std::to_string(n), std::to_string(each.tile.m), std::to_string(each.tile.n),
           std::to_string(each.waves), std::to_string(each.last_wave),
           std::to_string(each.blocks_at_once), std::to_string(each.cycles),
           detail::percent(each.utilization)});
  }
  return t;
}

}  // namespace tinyscale
