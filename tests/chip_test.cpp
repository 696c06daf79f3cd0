// The chip: schedule, bytes, stalls, energy of one product; GPU waves; programs on a chip.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <sstream>

#include "error_of.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

// A chip small enough to step: everything that a schedule needs, rates given as units a tick.
ts::Chip toy(int rows, int cols, int mxus, double bytes_per_tick) {
  ts::Chip chip;
  chip.name = "toy";
  chip.kind = "npu";
  chip.clock_hz = 1e9;
  chip.mxu_rows = rows;
  chip.mxu_cols = cols;
  chip.mxus = mxus;
  chip.flops_bf16 = chip.unit_peak();
  chip.flops_int8 = chip.unit_peak();
  chip.flops_fp8 = chip.unit_peak();
  chip.flops_f32 = chip.unit_peak();
  chip.memory_bandwidth = bytes_per_tick * 1e9;
  return chip;
}

// A generator of its own: the same cases everywhere.
struct Dice {
  std::uint64_t state = 1;
  std::int64_t operator()(std::int64_t low, std::int64_t high) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return low +
           static_cast<std::int64_t>((state >> 33) % static_cast<std::uint64_t>(high - low + 1));
  }
};

void check_same(const ts::ChipTiming& a, const ts::ChipTiming& b) {
  CHECK(a.cycles == b.cycles);
  CHECK(a.macs == b.macs);
  CHECK(a.ledger == b.ledger);
  CHECK(a.utilization == b.utilization);
  CHECK(a.mapping_efficiency == b.mapping_efficiency);
  CHECK(a.time_efficiency == b.time_efficiency);
  CHECK(a.sram_reads_input == b.sram_reads_input);
  CHECK(a.sram_reads_weight == b.sram_reads_weight);
  CHECK(a.sram_writes_output == b.sram_writes_output);
  CHECK(a.accumulator_reads == b.accumulator_reads);
  CHECK(a.accumulator_writes == b.accumulator_writes);
  std::string csv_a = a.csv(), csv_b = b.csv();  // every other field
  CHECK(csv_a.substr(csv_a.find('\n')) == csv_b.substr(csv_b.find('\n')));
}

// What holds of every product on every chip.
void check_identities(const ts::ChipTiming& t, const ts::Chip& chip) {
  const ts::LossLedger& l = t.ledger;
  const std::int64_t pes = std::int64_t{chip.mxu_rows} * chip.mxu_cols * chip.mxus;
  CHECK(l.total() == pes * t.cycles);
  CHECK(l.useful == t.m * t.k * t.n * t.passes);
  CHECK(std::min({l.padded, l.fill, l.drain, l.weight_shift, l.weight_stall, l.dma_stall}) >= 0);
  CHECK(t.cycles >= t.memory_cycles);
  CHECK(t.cycles >= t.matmul_cycles);
  CHECK(t.cycles >= t.vector_cycles);
  CHECK(t.bound != "");
}

}  // namespace

TEST_CASE("chip: the closed timeline equals stepping, field for field") {
  Dice dice;
  const ts::DType formats[] = {ts::DType::f32, ts::DType::bf16, ts::DType::int8,
                               ts::DType::fp8_e4m3};
  for (int i = 0; i < 400; ++i) {
    ts::Chip chip = toy(static_cast<int>(dice(1, 6)), static_cast<int>(dice(1, 6)),
                        static_cast<int>(dice(1, 3)), 0.25 * static_cast<double>(dice(1, 60)));
    chip.fifo_tiles = dice(0, 2) == 0 ? static_cast<int>(dice(1, 4)) : 0;
    chip.vector_flops = dice(0, 1) == 0 ? 0 : static_cast<double>(dice(1, 8)) * 1e9;
    chip.accumulator_bytes = dice(0, 1) == 0 ? 0 : static_cast<double>(dice(600, 2000));
    chip.sram_bytes = dice(0, 1) == 0 ? 0 : static_cast<double>(dice(4000, 20000));
    if (dice(0, 4) == 0) {
      chip.flops_f32 = 0;  // six passes
    }
    const std::int64_t m = dice(1, 20), k = dice(1, 20), n = dice(1, 20);
    ts::ChipMatmul o;
    o.format = formats[dice(0, 3)];
    o.x = dice(0, 2) == 0 ? ts::Home::chip : ts::Home::memory;
    o.w = chip.fifo_tiles == 0 && dice(0, 2) == 0 ? ts::Home::chip : ts::Home::memory;
    o.y = dice(0, 2) == 0 ? ts::Home::chip : ts::Home::memory;
    if (dice(0, 1) == 0) {
      o.tile = {dice(1, 8), chip.mxu_rows * dice(1, 2), std::int64_t{chip.mxu_cols} * chip.mxus};
    }
    CAPTURE(i);
    const ts::Tensor x = ts::randn({m, k}, static_cast<std::uint64_t>(i));
    const ts::Tensor w = ts::randn({k, n}, static_cast<std::uint64_t>(i + 1000));
    const ts::ChipRun run = ts::matmul_on(chip, x, w, o);
    check_same(run, ts::chip_timing(chip, m, k, n, o));
    check_identities(run, chip);
    CHECK(run.hbm_bytes_read >=
          (o.x == ts::Home::chip ? 0 : m * k) + (o.w == ts::Home::chip ? 0 : k * n));
    // f64 sums of the rounded operands; int8 within a step of each scale.
    const double tolerance = o.format == ts::DType::int8       ? 0.15
                             : o.format == ts::DType::fp8_e4m3 ? 0.2
                             : o.format == ts::DType::bf16     ? 0.02
                                                               : 1e-6;
    double worst = 0;
    for (std::int64_t r = 0; r < m; ++r) {
      for (std::int64_t c = 0; c < n; ++c) {
        double sum = 0;
        for (std::int64_t j = 0; j < k; ++j) {
          sum +=
              static_cast<double>(x.data()[r * k + j]) * static_cast<double>(w.data()[j * n + c]);
        }
        worst = std::max(worst, std::abs(sum - static_cast<double>(run.output.data()[r * n + c])));
      }
    }
    CHECK(worst <= tolerance * (1 + static_cast<double>(k)));
  }
}

namespace {

// The schedule once more, as a clock that goes tick by tick and looks at what may happen: memory
// that moves a byte a tick, one array, one tile of weights in its second registers.
struct TickByTick {
  const ts::detail::ChipCase& c;
  const ts::detail::ChipPlan& p;
  struct Step {  // a fold with what it needs
    std::int64_t block = 0, x_tile = 0, rows = 0, w_bytes = 0, x_bytes = 0;
    bool first_of_block = false;
    std::int64_t w_at = -1, x_at = -1, load = -1, stream = -1;
  };
  struct Move {
    std::size_t step = 0;
    bool weights = false;
  };
  struct Block {
    std::int64_t bytes = 0, values = 0, ready = -1, end = -1;
    std::size_t last = 0;
  };
  std::vector<Step> steps;
  std::vector<Move> reads;
  std::vector<Block> blocks;
  std::vector<std::size_t> x_tiles;  // the last fold of each, in the order of streaming

  void build() {
    const std::int64_t M = c.array.m, K = c.array.k, N = c.array.n, R = c.array.rows;
    std::vector<int> had_x(static_cast<std::size_t>(M * K)), had_w(static_cast<std::size_t>(K * N));
    for (std::int64_t n0 = 0; n0 < N; n0 += p.tile.n) {
      for (std::int64_t m0 = 0; m0 < M; m0 += p.tile.m) {
        const std::int64_t rows = std::min(p.tile.m, M - m0);
        Block block;
        block.values = rows * std::min(p.tile.n, N - n0);
        block.bytes = block.values * c.result_word;
        bool first = true;
        for (std::int64_t k0 = 0; k0 < K; k0 += p.tile.k) {
          const std::int64_t deep = std::min(p.tile.k, K - k0);
          bool first_of_tile = true;
          for (std::int64_t n = n0; n < std::min(N, n0 + p.tile.n); n += c.wide()) {
            for (std::int64_t k = k0; k < k0 + deep; k += R) {
              Step step;
              step.block = static_cast<std::int64_t>(blocks.size());
              step.x_tile = static_cast<std::int64_t>(x_tiles.size());
              step.rows = rows * c.array.passes;
              step.first_of_block = first;
              first = false;
              step.w_bytes = std::min(R, K - k) * std::min(c.wide(), N - n) * c.word;
              int& w = had_w[static_cast<std::size_t>(k * N + n)];
              step.w_bytes = c.o.w == ts::Home::chip || (p.keep_w && w) ? 0 : step.w_bytes;
              w = 1;
              int& x = had_x[static_cast<std::size_t>(m0 * K + k0)];
              const bool there = c.o.x == ts::Home::chip || (p.keep_x && x);
              step.x_bytes = first_of_tile && !there ? rows * deep * c.word : 0;
              x = first_of_tile ? 1 : x;
              first_of_tile = false;
              steps.push_back(step);
              if (step.w_bytes > 0) {
                reads.push_back({steps.size() - 1, true});
              }
              if (step.x_bytes > 0) {
                reads.push_back({steps.size() - 1, false});
              }
            }
          }
          x_tiles.push_back(steps.size() - 1);
        }
        block.last = steps.size() - 1;
        blocks.push_back(block);
      }
    }
  }

  bool may_read(const Move& move, std::int64_t now) const {
    const Step& step = steps[move.step];
    if (step.block >= 2) {  // what memory moves for the block two before comes first
      const Block& before = blocks[static_cast<std::size_t>(step.block - 2)];
      if (before.bytes > 0 && (before.end < 0 || before.end > now)) {
        return false;
      }
    }
    if (move.weights) {
      const std::size_t depth = static_cast<std::size_t>(c.fifo > 0 ? c.fifo : 2);
      if (p.keep_w || move.step < depth) {
        return true;
      }
      const std::int64_t load = steps[move.step - depth].load;
      return load >= 0 && now >= load + c.array.rows;
    }
    if (p.keep_x || step.x_tile < 2) {
      return true;
    }
    const Step& before = steps[x_tiles[static_cast<std::size_t>(step.x_tile - 2)]];
    return before.stream >= 0 && now >= before.stream + before.rows + c.array.rows - 1;
  }

  std::int64_t run() {
    build();
    std::size_t read = 0, written = 0, loading = 0, streaming = 0;
    std::int64_t memory_free = 0, vector_free = 0, end = 0;
    std::size_t done_blocks = 0;
    const std::int64_t R = c.array.rows, C = c.array.cols;
    for (std::int64_t now = 0; written < blocks.size(); ++now) {
      REQUIRE(now < 200000);
      // A block is complete when its last sum has left the array, then the vector unit passes it.
      while (done_blocks < blocks.size() && steps[blocks[done_blocks].last].stream >= 0) {
        const Step& last = steps[blocks[done_blocks].last];
        Block& block = blocks[done_blocks++];
        const std::int64_t complete = last.stream + last.rows + R + C - 2;
        end = std::max(end, complete);
        vector_free = std::max(vector_free, complete) +
                      (c.vector.parts == 0 ? 0 : c.vector.ticks(block.values));
        block.ready = vector_free;
        block.end = block.bytes == 0 ? block.ready : -1;  // stays on the chip
        end = std::max(end, block.end);
      }
      while (written < done_blocks && blocks[written].bytes == 0) {
        ++written;
      }
      for (bool moved = true; moved && memory_free <= now;) {
        moved = false;
        if (written < done_blocks && blocks[written].bytes > 0 && blocks[written].ready <= now) {
          Block& block = blocks[written++];
          block.end = now + block.bytes;
          memory_free = block.end;
          end = std::max(end, block.end);
          moved = true;
        } else if (read < reads.size() && may_read(reads[read], now)) {
          Step& step = steps[reads[read].step];
          memory_free = now + (reads[read].weights ? step.w_bytes : step.x_bytes);
          (reads[read].weights ? step.w_at : step.x_at) = memory_free;
          ++read;
          moved = true;
        }
      }
      // The array: shift the next tile in when it is there and the second registers are free.
      if (loading < steps.size()) {
        Step& step = steps[loading];
        const bool here = step.w_bytes == 0 || (step.w_at >= 0 && step.w_at <= now);
        const bool free =
            loading == 0 || (steps[loading - 1].stream >= 0 && steps[loading - 1].stream <= now &&
                             steps[loading - 1].load + R <= now);
        if (here && free) {
          step.load = now;
          ++loading;
        }
      }
      if (streaming < steps.size()) {
        Step& step = steps[streaming];
        std::size_t of = streaming;
        while (of > 0 && steps[of].x_bytes == 0 && steps[of - 1].x_tile == step.x_tile) {
          --of;  // the fold that fetched this tile of x
        }
        const bool fetched =
            steps[of].x_bytes == 0 || (steps[of].x_at >= 0 && steps[of].x_at <= now);
        const bool room =
            step.block < 2 || (blocks[static_cast<std::size_t>(step.block - 2)].end >= 0 &&
                               blocks[static_cast<std::size_t>(step.block - 2)].end <= now);
        const bool idle =
            streaming == 0 || steps[streaming - 1].stream + steps[streaming - 1].rows <= now;
        if (step.load >= 0 && step.load + R <= now && fetched && room && idle) {
          step.stream = now;
          ++streaming;
          // A tile may begin to shift in the tick in which the one before begins to stream.
          if (loading < steps.size() && loading == streaming) {
            Step& next = steps[loading];
            if ((next.w_bytes == 0 || (next.w_at >= 0 && next.w_at <= now)) &&
                steps[loading - 1].load + R <= now) {
              next.load = now;
              ++loading;
            }
          }
        }
      }
    }
    return end;
  }
};

}  // namespace

TEST_CASE("chip: the recurrences of the schedule are what a clock that goes tick by tick does") {
  Dice dice;
  for (int i = 0; i < 300; ++i) {
    ts::detail::ChipCase c;
    c.array.rows = dice(1, 4);
    c.array.cols = dice(1, 4);
    c.array.m = dice(1, 12);
    c.array.k = dice(1, 12);
    c.array.n = dice(1, 12);
    ts::detail::fold(c.array);
    c.arrays = dice(1, 2);
    c.word = dice(1, 2);
    c.result_word = dice(0, 2);
    c.o.x = dice(0, 3) == 0 ? ts::Home::chip : ts::Home::memory;
    c.o.w = dice(0, 3) == 0 ? ts::Home::chip : ts::Home::memory;
    c.fifo = dice(0, 3);
    c.memory = ts::detail::tick_rate(1, 1);
    c.vector = ts::detail::tick_rate(static_cast<double>(dice(0, 3)), 1);
    ts::detail::ChipPlan p;
    p.tile = {dice(1, c.array.m), c.array.rows * dice(1, 3), c.wide() * dice(1, 3)};
    p.keep_x = c.o.x == ts::Home::chip || dice(0, 1) == 0;
    p.keep_w = c.o.w == ts::Home::chip || dice(0, 1) == 0;
    ts::detail::predict(c, p);
    const ts::detail::ChipTimeline line(c, p);
    TickByTick clock{c, p, {}, {}, {}, {}};
    const std::int64_t cycles = clock.run();
    CAPTURE(i);
    REQUIRE(clock.steps.size() == line.folds.size());
    for (std::size_t f = 0; f < clock.steps.size(); ++f) {
      CAPTURE(f);
      REQUIRE(clock.steps[f].load == line.folds[f].load);
      REQUIRE(clock.steps[f].stream == line.folds[f].stream);
    }
    CHECK(cycles == line.cycles);
  }
}

TEST_CASE("chip: the same bits and counts on any number of threads") {
  const ts::Chip chip = toy(32, 32, 1, 64);
  ts::ChipMatmul o;
  o.tile = {64, 64, 128};  // sums of a column go on after those of others have begun
  const ts::Tensor x = ts::randn({128, 256}, 1), w = ts::randn({256, 256}, 2);
  const auto on = [&](int threads) {
    const ts::ThreadScope scope(threads);
    return ts::matmul_on(chip, x, w, o);
  };
  const ts::ChipRun one = on(1);
  check_same(one, ts::chip_timing(chip, 128, 256, 256, o));
  for (const int threads : {2, 3, 7}) {
    const ts::ChipRun run = on(threads);
    check_same(run, one);
    CHECK(std::memcmp(run.output.data(), one.output.data(), 4 * 128 * 256) == 0);
  }
}

TEST_CASE("chip: one fold, tick by tick") {
  // 1 byte a tick: w (8 B) is there at 8, x (12 B) at 20; the shift takes ticks 8 and 9, x streams
  // from 20 to 22, the last sum leaves in tick 24, 24 B of results take until 49.
  const ts::Chip chip = toy(2, 2, 1, 1);
  ts::ChipMatmul o;
  o.tile = {3, 2, 2};
  const ts::ChipTiming t = ts::chip_timing(chip, 3, 2, 2, o);
  CHECK(t.cycles == 49);
  CHECK(t.cold_cycles == 18);
  CHECK(t.hbm_bytes_read == 20);
  CHECK(t.hbm_bytes_written == 24);
  CHECK(t.ledger.useful == 12);
  CHECK(t.ledger.weight_stall == 4 * 8);
  CHECK(t.ledger.weight_shift == 2 * 2 + 2 * 3 - 2);  // columns shift one tick apart
  CHECK(t.ledger.total() == 4 * 49);
  CHECK(t.memory_cycles == 44);
  CHECK(t.bound == "memory");
  CHECK(t.seconds == doctest::Approx(49e-9));
}

TEST_CASE("chip: a FIFO of Q tiles fetches as far ahead as it has room") {
  // Folds of 2 x 2 weights (8 B), x lies on the chip, 4 B a tick: a tile takes 2 ticks.
  ts::Chip chip = toy(2, 2, 1, 4);
  ts::ChipMatmul o;
  o.x = o.y = ts::Home::chip;
  o.tile = {1, 16, 2};
  const std::int64_t two = ts::chip_timing(chip, 1, 16, 2, o).cycles;
  for (const int depth : {1, 2, 3, 8}) {
    chip.fifo_tiles = depth;
    const ts::ChipTiming t = ts::chip_timing(chip, 1, 16, 2, o);
    CAPTURE(depth);
    // One place: fetch 2, shift 2, before the next fetch may begin; else a shift every 2 ticks.
    CHECK(t.cycles == (depth == 1 ? 8 * 4 : 2 + 8 * 2) + 1 + 2);
    CHECK((depth == 1) == (t.cycles != two));
  }
}

TEST_CASE("chip: what is kept on chip is fetched once, what is not for every use") {
  ts::Chip chip = toy(4, 4, 2, 16);
  ts::ChipMatmul o;
  o.tile = {16, 8, 16};
  const std::int64_t m = 64, k = 32, n = 48;
  const auto moved = [&](double sram) {
    chip.sram_bytes = sram;
    const ts::ChipTiming t = ts::chip_timing(chip, m, k, n, o);
    CHECK(t.hbm_bytes_written == m * n * 4);
    CHECK(t.on_chip_bytes <= static_cast<std::int64_t>(sram > 0 ? sram : 1e9));
    return t.hbm_bytes_read;
  };
  CHECK(moved(0) == 2 * (m * k + k * n));
  CHECK(moved(4000) == 2 * (m * k * (n / 16) + k * n * (m / 16)));
  o.x = ts::Home::chip;
  CHECK(moved(0) == 2 * k * n);
  o.w = ts::Home::chip;
  CHECK(moved(0) == 0);
  o.y = ts::Home::chip;
  chip.sram_bytes = 0;
  const ts::ChipTiming resident = ts::chip_timing(chip, m, k, n, o);
  CHECK(resident.hbm_bytes_written == 0);
  CHECK(resident.cold_cycles == 0);
  CHECK(resident.ledger.weight_stall + resident.ledger.dma_stall == 0);
  CHECK(resident.on_chip_bytes == 2 * (m * k + k * n) + 4 * m * n + 2 * 4 * 16 * 16);
}

TEST_CASE("chip: accumulators limit the rows of a pass, and weights are fetched again") {
  const ts::Chip v1 = ts::chip("tpu-v1");
  ts::ChipMatmul o;
  o.x = ts::Home::chip;
  for (const std::int64_t m : {2048, 2049, 4096, 5000}) {
    const ts::ChipTiming t = ts::chip_timing(v1, m, 1024, 1024, o);
    CAPTURE(m);
    const std::int64_t chunks = (m + 2047) / 2048;  // of 4096 rows, half fill while half leave
    CHECK(t.hbm_bytes_read == chunks * 1024 * 1024);
    CHECK(t.tile.m <= 2048);
    CHECK(t.accumulator_bytes <= 4 << 20);
  }
  // One block of results has all accumulators.
  o.tile.m = 4096;
  CHECK(ts::chip_timing(v1, 4096, 1024, 256, o).hbm_bytes_read == 1024 * 256);
}

namespace {

// Rows of table 3 of the TPU v1 paper (ISCA 2017), % of all cycles. T: multiply-adds per weight
// byte; the paper's MLPs have layers of about 2000 x 2000. Activations stay in the unified buffer
// from layer to layer; `rest` is the share of non-matrix work, which is not emulated.
struct PublishedShares {
  std::string name;
  std::int64_t t, k, n;
  double active, stall, shift, rest;
};
const PublishedShares kPublished[] = {{"MLP0", 200, 2048, 2048, 12.7, 53.9, 15.9, 17.5},
                                      {"MLP1", 168, 2048, 2048, 10.6, 44.2, 13.4, 31.9},
                                      {"CNN0", 2888, 2304, 1024, 78.2, 0.0, 0.0, 21.8}};

ts::ChipMatmul between_layers() {
  ts::ChipMatmul o;
  o.x = o.y = ts::Home::chip;
  o.result = ts::DType::int8;
  return o;
}

void check_shares(const PublishedShares& row, const ts::ChipTiming& t) {
  CAPTURE(row.name);
  const double of_all = 100 - row.rest;
  const double active = of_all * t.share(t.ledger.useful + t.ledger.padded);
  const double stall = of_all * t.share(t.ledger.weight_stall + t.ledger.dma_stall);
  const double shift = of_all * t.share(t.ledger.weight_shift);
  MESSAGE(t.kind << " " << row.name << ": active " << active << " of " << row.active << ", stall "
                 << stall << " of " << row.stall << ", shift " << shift << " of " << row.shift);
  CHECK(std::abs(active - row.active) < 3);
  CHECK(std::abs(stall - row.stall) < 3);
  CHECK(std::abs(shift - row.shift) < 3);
}

}  // namespace

TEST_CASE("chip: the published shares of TPU v1") {
  for (const PublishedShares& row : kPublished) {
    check_shares(row, ts::chip_timing(ts::chip("tpu-v1"), row.t, row.k, row.n, between_layers()));
  }
}

TEST_CASE("chip: the published shares of TPU v1, stepped [slow]") {
  for (const PublishedShares& row : kPublished) {
    const std::int64_t n = row.t < 1350 ? row.n / 2 : row.n;  // until the steady state rules
    const ts::ChipRun run = ts::matmul_on(ts::chip("tpu-v1"), ts::randn({row.t, row.k}, 1),
                                          ts::randn({row.k, n}, 2), between_layers());
    check_shares(row, run);
    check_same(run, ts::chip_timing(ts::chip("tpu-v1"), row.t, row.k, n, between_layers()));
  }
}

TEST_CASE("chip: the knees of TPU v5e and TPU v1") {
  // The fewest rows for which, once the pipeline runs, the stream hides all weight traffic: then a
  // row more costs a tick more per fold, and fewer rows save none.
  const auto knee = [](const ts::Chip& chip, std::int64_t k, std::int64_t n, std::int64_t low,
                       std::int64_t high) {
    ts::ChipMatmul o;
    o.x = o.y = ts::Home::chip;
    o.result = ts::DType::int8;
    const auto waits = [&](std::int64_t t) {
      const ts::ChipTiming all = ts::chip_timing(chip, t, k, n, o);
      const ts::ChipTiming half = ts::chip_timing(chip, t, k, n / 2, o);  // the same start and end
      const std::int64_t pes = std::int64_t{chip.mxu_rows} * chip.mxu_cols * chip.mxus;
      return (all.cycles - half.cycles) * pes - all.macs + half.macs;
    };
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      waits(middle) > 0 ? low = middle + 1 : high = middle;
    }
    return low;
  };
  const std::int64_t v5e = knee(ts::chip("tpu-v5e"), 4096, 8192, 1, 1000);
  const std::int64_t v1 = knee(ts::chip("tpu-v1"), 2048, 4096, 1, 2000);
  MESSAGE("knees: v5e " << v5e << " rows, v1 " << v1 << " rows");
  CHECK(std::abs(static_cast<double>(v5e) / 240.0 - 1) < 0.02);
  CHECK(std::abs(static_cast<double>(v5e) / 242.7 - 1) < 0.02);
  CHECK(std::abs(static_cast<double>(v1) / 1349.3 - 1) < 0.02);
}

TEST_CASE("chip: the prediction that tiles are chosen by is near the clock") {
  for (const char* name : {"tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "gemmini"}) {
    const ts::Chip chip = ts::chip(name);
    for (const std::int64_t m : {1, 64, 512, 2048}) {
      const ts::ChipTiming t = ts::chip_timing(chip, m, 1024, 2048);
      CAPTURE(name);
      CAPTURE(m);
      check_identities(t, chip);
      CHECK(static_cast<double>(t.cycles) < 1.2 * static_cast<double>(t.predicted_cycles));
      CHECK(static_cast<double>(t.cycles) > 0.8 * static_cast<double>(t.predicted_cycles));
      CHECK(static_cast<double>(t.on_chip_bytes) <= chip.sram_bytes);
    }
  }
}

TEST_CASE("chip: the prediction holds where K fills a part of the rows only") {
  for (const std::int64_t k : {1, 25, 64, 127}) {
    const ts::ChipTiming t = ts::chip_timing(ts::chip("tpu-v5e"), 8, k, 34);
    CAPTURE(k);
    CHECK(static_cast<double>(t.predicted_cycles) < 1.5 * static_cast<double>(t.cycles));
  }
}

TEST_CASE("chip: more ticks than 64 bits count are refused") {
  CHECK(error_of([] { ts::chip_timing(ts::chip("tpu-v6e"), std::int64_t{1} << 56, 1, 1); }) ==
        "chip_timing: 72057594037927936 folds, 1152921504606847745 ticks; at most 2^22 and 2^34 "
        "are emulated, larger tiles make fewer folds");
  ts::Chip slow = ts::chip("tpu-v5e");
  slow.memory_bandwidth = 1e-6;
  CHECK(error_of([&] { ts::chip_timing(slow, 1 << 20, 1 << 15, 1 << 20); }).find("ticks") !=
        std::string::npos);
}

TEST_CASE("chip: more bandwidth makes no product slower") {
  const struct {
    int side;
    double bandwidth, faster, sram, accumulators, vector;
    int fifo;
    std::int64_t m, k, n;
  } cases[] = {{16, 3.634e10, 1.631, 7476690, 0, 9.9e11, 4, 10, 1, 1302},
               {128, 1.3359e11, 1.0606, 4879989, 6559389, 6.7524e10, 0, 762, 144, 13},
               {32, 5.8633e10, 3.145, 96499, 0, 1.2668e12, 4, 10, 49, 521},
               {4, 5.7317e9, 1.084, 99941, 1280849, 8.2353e10, 0, 4, 1, 28},
               {4, 1.449e10, 1.0265, 10935, 158987, 8.7742e11, 4, 193, 1, 469}};
  for (const auto& c : cases) {
    ts::Chip chip = ts::chip("tpu-v5e");
    chip.mxu_rows = chip.mxu_cols = c.side;
    chip.mxus = 1;
    chip.clock_hz = 1e9;
    chip.flops_bf16 = 2e9 * c.side * c.side;
    chip.flops_int8 = chip.flops_fp8 = 0;
    chip.memory_bandwidth = c.bandwidth;
    chip.sram_bytes = c.sram;
    chip.accumulator_bytes = c.accumulators;
    chip.fifo_tiles = c.fifo;
    chip.vector_flops = c.vector;
    const std::int64_t before = ts::chip_timing(chip, c.m, c.k, c.n).cycles;
    chip.memory_bandwidth *= c.faster;
    CAPTURE(c.n);
    CHECK(ts::chip_timing(chip, c.m, c.k, c.n).cycles <= before);
  }
}

TEST_CASE("chip: the tensor cores of an H100, in waves over its cores (an approximation)") {
  const ts::Chip h100 = ts::chip("h100");
  ts::ChipMatmul o;
  o.tile = {128, 0, 128};
  const auto at = [&](std::int64_t n) { return ts::chip_timing(h100, 4096, 4096, n, o); };
  // 32 blocks down: 4 more for each 128 columns. 132 blocks fill the cores once.
  CHECK(at(512).waves == 1);
  CHECK(at(512).last_wave == 128);
  CHECK(at(513).waves == 2);
  CHECK(at(513).last_wave == 28);
  CHECK(at(513).blocks_at_once == 132);
  CHECK(at(513).table().csv().find("waves,2,last wave 28 of 132 full") != std::string::npos);
  CHECK(at(513).table().title.find("(a GPU, approximated)") != std::string::npos);
  CHECK(at(513).cycles == 2 * at(512).cycles);  // a wave costs the same, full or not
  // 8 folds of 4096 ticks, two rows of shifts: the block's closed form.
  CHECK(at(512).cycles == 8 * 4096 + 2 * 16 + 32 - 2);
  CHECK(at(4224).utilization > 0.99);  // 8 waves of 132
  CHECK(at(4225).utilization < 0.90);
  CHECK(at(4096).hbm_bytes_written == 4096 * 4096 * 4);
  CHECK(at(4096).bound == "matmul");
  // A thin product is bound by memory: each wave moves what it touches once.
  const ts::ChipTiming thin = ts::chip_timing(h100, 16, 8192, 8192, o);
  CHECK(thin.bound == "memory");
  CHECK(thin.waves == 1);
  CHECK(thin.hbm_bytes_read == 2 * (16 + 8192) * 8192);
  CHECK(thin.ledger.dma_stall > 0);
  CHECK(thin.chip_bytes_written == 2 * 8192 * (8192 + 64 * 16));  // 16 rows for each of 64 blocks
  // Chosen by search: no worse than any of its blocks.
  for (const std::int64_t n : {512, 2048, 4224, 6000}) {
    CHECK(ts::chip_timing(h100, 4096, 4096, n).cycles <= at(n).cycles);
  }
  const ts::Table curve = ts::efficiency_curve(h100, 4096, 4096, {4096, 4224, 4352}, o);
  REQUIRE(curve.rows.size() == 3);
  CHECK(curve.rows[1][3] == "8");
  CHECK(curve.rows[1][4] == "132");
  CHECK(curve.title == "x [4096, 4096] times w [4096, N] on h100-sxm (formula)");
}

TEST_CASE("chip: a GPU's numbers are stepped, ragged edges too") {
  Dice dice;
  for (int i = 0; i < 40; ++i) {
    ts::Chip gpu = toy(2, 4, 6, 8);
    gpu.kind = "gpu";
    gpu.cores = 3;
    const std::int64_t m = dice(1, 30), k = dice(1, 12), n = dice(1, 30);
    ts::ChipMatmul o;
    o.format = i % 2 == 0 ? ts::DType::f32 : ts::DType::int8;
    o.tile = {2 * dice(1, 3), 0, 8 * dice(1, 3)};
    const ts::Tensor x = ts::randn({m, k}, 1), w = ts::randn({k, n}, 2);
    const ts::ChipRun run = ts::matmul_on(gpu, x, w, o);
    CAPTURE(i);
    check_same(run, ts::chip_timing(gpu, m, k, n, o));
    check_identities(run, gpu);
    const ts::Tensor y = ts::matmul(x, w);
    for (std::int64_t j = 0; j < y.count(); ++j) {
      REQUIRE(std::abs(run.output.data()[j] - y.data()[j]) <
              (i % 2 == 0 ? 1e-5f : 0.2f) * static_cast<float>(1 + k));
    }
  }
}

TEST_CASE("chip: rates without bound") {
  ts::Chip chip = toy(4, 4, 1, std::numeric_limits<double>::max() / 1e10);
  chip.vector_flops = std::numeric_limits<double>::infinity();
  chip.sram_bytes = chip.accumulator_bytes = std::numeric_limits<double>::quiet_NaN();
  const ts::ChipTiming t = ts::chip_timing(chip, 8, 8, 8);
  CHECK(t.ledger.total() == 16 * t.cycles);
  CHECK(t.cycles <= 4 * 8 + 2 * 4 + 4 - 2 + 8);  // a tick a transfer, the block on its way out
  CHECK(ts::chip_timing(toy(1, 1, 1, 1), 1, 1, 1).cycles == 2 + 2 + 1 + 4);
}

TEST_CASE("chip: formats") {
  const ts::Chip v5e = ts::chip("tpu-v5e");
  CHECK(ts::chip_timing(v5e, 8, 128, 128).format == ts::DType::bf16);
  CHECK(ts::chip_timing(ts::chip("gemmini"), 8, 128, 128).format == ts::DType::int8);
  ts::ChipMatmul o;
  o.x = o.w = o.y = ts::Home::chip;
  const ts::ChipTiming bf16 = ts::chip_timing(v5e, 4096, 1024, 512, o);
  o.format = ts::DType::int8;  // the array ticks twice a clock
  const ts::ChipTiming int8 = ts::chip_timing(v5e, 4096, 1024, 512, o);
  CHECK(int8.ledger.useful == bf16.ledger.useful);
  CHECK(int8.seconds == doctest::Approx(bf16.seconds / 2).epsilon(0.01));
  o.format = ts::DType::f32;  // six passes
  const ts::ChipTiming f32 = ts::chip_timing(v5e, 4096, 1024, 512, o);
  CHECK(f32.passes == 6);
  CHECK(f32.seconds == doctest::Approx(bf16.seconds * 6).epsilon(0.01));
  CHECK(f32.hbm_bytes_read == 0);

  // int8: one scale an operand, exact int32 sums; the scales' product comes last.
  const ts::Tensor x = ts::full({2, 3000}, 127.0f), w = ts::full({3000, 1}, 127.0f);
  ts::ChipMatmul whole;
  whole.format = ts::DType::int8;
  CHECK(ts::matmul_on(toy(4, 4, 1, 8), x, w, whole).output.data()[0] == 3000.0f * 127 * 127);
  // Results in a narrower format: rounded, and fewer bytes.
  ts::ChipMatmul narrow;
  narrow.result = ts::DType::bf16;
  const ts::ChipRun run = ts::matmul_on(toy(4, 4, 1, 8), ts::full({1, 3}, 1.0f),
                                        ts::full({3, 1}, 1.0f + 1.0f / 128), narrow);
  CHECK(run.output.data()[0] == 3.03125f);  // 3.0234375 is between two
  CHECK(run.hbm_bytes_written == 2);
  // NaN and infinity stay in their row and column, in whatever lanes the array pads.
  ts::Tensor odd = ts::full({3, 5}, 1.0f);
  odd.data()[5] = std::numeric_limits<float>::quiet_NaN();
  odd.data()[10] = std::numeric_limits<float>::infinity();
  const ts::Tensor y = ts::matmul_on(toy(4, 4, 2, 8), odd, ts::full({5, 3}, 1.0f)).output;
  CHECK(y.data()[0] == 5.0f);
  CHECK(std::isnan(y.data()[3]));
  CHECK(std::isinf(y.data()[6]));
  // Leading dimensions and views.
  const ts::Tensor deep = ts::randn({2, 3, 4}, 1),
                   turned = ts::transpose(ts::randn({6, 4}, 2), 0, 1);
  const ts::Tensor z = ts::matmul_on(toy(2, 2, 1, 8), deep, turned).output;
  CHECK(z.shape().text() == "[2, 3, 6]");
  CHECK(z.data()[35] == doctest::Approx(ts::matmul(deep, turned).data()[35]).epsilon(0.02));
}

TEST_CASE("chip: energy by level, or unknown") {
  const ts::ChipTiming t = ts::chip_timing(ts::chip("tpu-v4"), 1024, 1024, 1024);
  CHECK(t.mac_joules == doctest::Approx(1073741824 * 0.59e-12));
  CHECK(t.hbm_joules ==
        doctest::Approx(static_cast<double>(t.hbm_bytes_read + t.hbm_bytes_written) * 43.75e-12));
  CHECK(t.chip_joules ==
        doctest::Approx(1.75e-12 * static_cast<double>(t.chip_bytes_read + t.chip_bytes_written +
                                                       t.accumulator_bytes_read +
                                                       t.accumulator_bytes_written)));
  CHECK(t.csv().find("unknown") == std::string::npos);
  CHECK(t.csv().find(",\"uJ, 0.59 pJ each\",\n") != std::string::npos);
  CHECK(t.csv().find("energy by,\"K: 7 nm and HBM2, ISCA 2021\",,\n") != std::string::npos);
  ts::ChipMatmul passes;
  passes.format = ts::DType::f32;  // six bf16 multiply-adds each
  CHECK(ts::chip_timing(ts::chip("tpu-v4"), 64, 64, 64, passes).mac_joules ==
        doctest::Approx(6 * 262144 * 0.59e-12));
  const ts::ChipTiming v5e = ts::chip_timing(ts::chip("tpu-v5e"), 64, 64, 64);
  CHECK(v5e.mac_joules == 0);
  CHECK(v5e.csv().find("energy of multiply-adds,unknown,,\n") != std::string::npos);
  CHECK(v5e.hbm_joules > 0);
  ts::ChipMatmul resident;
  resident.x = resident.w = resident.y = ts::Home::chip;  // no byte moves: known, and nothing
  CHECK(ts::chip_timing(ts::chip("tpu-v5e"), 64, 64, 64, resident)
            .csv()
            .find("energy of hbm,0,\"uJ, 43.75 pJ/B\",\n") != std::string::npos);
  // A caller's profile sees none of the steps.
  const ts::Profile profile;
  ts::matmul_on(toy(2, 2, 1, 4), ts::randn({3, 4}, 1), ts::randn({4, 2}, 2));
  CHECK(profile.records().empty());
}

TEST_CASE("chip: reports") {
  const ts::ChipRun run =
      ts::matmul_on(toy(2, 2, 1, 4), ts::randn({3, 4}, 1), ts::randn({4, 2}, 2));
  std::ostringstream text;
  text << run;
  CHECK(text.str().find("x [3, 4] times w [4, 2] in bf16 on toy, tiles of ") == 0);
  CHECK(run.csv().find("quantity,simulated,unit,% of PE-ticks\n") == 0);
  CHECK(ts::chip_timing(toy(2, 2, 1, 4), 3, 4, 2).csv().find("quantity,formula,") == 0);
  CHECK(run.json().find("\"dma stall\"") != std::string::npos);
}

TEST_CASE("chip: errors say what was given and what would be right") {
  const auto timed = [](const ts::Chip& chip, std::int64_t m, std::int64_t k, std::int64_t n,
                        const ts::ChipMatmul& o) {
    return error_of([&] { ts::chip_timing(chip, m, k, n, o); });
  };
  const ts::Chip v1 = ts::chip("v1"), v5e = ts::chip("v5e");
  ts::ChipMatmul o;
  o.format = ts::DType::bf16;
  CHECK(timed(v1, 1, 1, 1, o) == "chip_timing: tpu-v1 has no bf16; it has int8");
  o.format = ts::DType::fp8_e4m3;
  CHECK(timed(v5e, 1, 1, 1, o) == "chip_timing: tpu-v5e has no fp8_e4m3; it has bf16, int8, f32");
  o = ts::ChipMatmul();
  CHECK(timed(v5e, 0, 4, 4, o) == "chip_timing: M, K, N are 0, 4, 4; each must be at least 1");
  CHECK(timed(v5e, 1 << 30, 1 << 20, 1 << 20, o) ==
        "chip_timing: M, K, N are 1073741824, 1048576, 1048576; M K N is at most 2^56");
  CHECK(timed(ts::chip("laptop-x86"), 1, 1, 1, o) ==
        "chip_timing: laptop-x86 is a cpu; a tpu, npu or gpu has arrays to emulate");
  CHECK(timed(ts::chip("wse-2"), 1, 1, 1, o) ==
        "chip_timing: wse-2 is a wafer; a tpu, npu or gpu has arrays to emulate");
  ts::Chip bare;
  CHECK(timed(bare, 1, 1, 1, o) ==
        "chip_timing: this chip has 0 arrays of 0 x 0 on 1 cores; 1 of each to 2^26 PEs in all, on "
        "a gpu 1 array a core, are emulated");
  bare = toy(2, 2, 1, 1);
  bare.memory_bandwidth = std::numeric_limits<double>::quiet_NaN();
  CHECK(timed(bare, 1, 1, 1, o) ==
        "chip_timing: toy has clock_hz 1e+09, memory_bandwidth nan; finite numbers above 0 are "
        "right");
  bare = toy(2, 2, 1, 1);
  bare.flops_bf16 = std::numeric_limits<double>::infinity();
  ts::ChipMatmul bf16;
  bf16.format = ts::DType::bf16;
  CHECK(timed(bare, 1, 1, 1, bf16) ==
        "chip_timing: toy has no bf16; it has int8, f32, fp8_e4m3, fp8_e5m2");
  bare.kind = "gpu";
  bare.cores = 2;
  CHECK(timed(bare, 1, 1, 1, o).find("toy has 1 arrays of 2 x 2 on 2 cores; ") !=
        std::string::npos);
  bare = toy(8192, 8192, 2, 1);
  CHECK(timed(bare, 1, 1, 1, o) ==
        "chip_timing: toy has 2 arrays of 8192 x 8192 on 1 cores; 1 of each to 2^26 PEs in all, on "
        "a gpu 1 array a core, are emulated");
  CHECK(timed(toy(2, 2, 1, 1e-9), 1, 1 << 20, 1 << 10, o).find("at most 2^22 and 2^34") !=
        std::string::npos);
  bare = toy(2, 2, 1, 1);
  bare.flops_bf16 = bare.flops_int8 = bare.flops_f32 = bare.flops_fp8 = 0;
  CHECK(timed(bare, 1, 1, 1, o) ==
        "chip_timing: toy has no f64; it has no format: set flops_bf16, say");
  o.format = ts::DType::int8;
  CHECK(timed(v5e, 1, 131072, 1, o) ==
        "chip_timing: K is 131072; int32 sums of int8 products hold at most 131071");
  o = ts::ChipMatmul();
  o.result = ts::DType::int4;
  CHECK(timed(v5e, 1, 1, 1, o) == "chip_timing: results in int4; a format of whole bytes is right");
  o = ts::ChipMatmul();
  o.tile = {8, 100, 512};
  CHECK(timed(v5e, 8, 256, 512, o) ==
        "chip_timing: tile 8 x 100 x 512; on tpu-v5e k must be a multiple of 128, n of 512, or the "
        "whole");
  o.tile = {-1, 0, 0};
  CHECK(timed(v5e, 8, 256, 512, o) ==
        "chip_timing: tile -1 x 0 x 0; on tpu-v5e k must be a multiple of 128, n of 512, or the "
        "whole");
  o.tile = {4096, 4096, 8192};
  CHECK(
      timed(v5e, 4096, 4096, 8192, o) ==
      "chip_timing: tiles of 4096 x 4096 x 8192 need 168034304 B of on-chip memory, 33816576 more "
      "than the 134217728 of tpu-v5e; a smaller tile, or operands that lie in memory, need less");
  o.tile = {4096, 1024, 1024};
  CHECK(timed(v1, 8192, 1024, 1024, o) ==
        "chip_timing: tiles of 4096 x 1024 x 1024 need 33554432 B of accumulators, 29360128 more "
        "than the 4194304 of tpu-v1; a smaller tile, or operands that lie in memory, need less");
  o = ts::ChipMatmul();
  o.w = ts::Home::chip;
  CHECK(timed(v1, 1, 1, 1, o) ==
        "chip_timing: w lies on the chip; the weights of tpu-v1 come through a FIFO from memory");
  o = ts::ChipMatmul();
  o.tile = {1, 16, 16};
  CHECK(timed(ts::chip("gemmini"), 1 << 20, 64, 64, o) ==
        "chip_timing: 16777216 folds, 301989935 ticks; at most 2^22 and 2^34 are emulated, larger "
        "tiles make fewer folds");
  o.tile = {100, 0, 128};
  CHECK(timed(ts::chip("h100"), 128, 128, 128, o) ==
        "chip_timing: tile m 100, n 128; on h100-sxm they must be multiples of 16 and 128");
  CHECK(timed(ts::chip("h100"), 1, std::int64_t{1} << 40, 1, ts::ChipMatmul()) ==
        "chip_timing: blocks of 128 x 1099511627776 x 128 take more than the 2^34 ticks that are "
        "emulated on h100-sxm");
  CHECK(timed(ts::chip("h100"), 1 << 20, 1, 1 << 20, o) ==
        "chip_timing: M, N are 1048576, 1048576; M N is at most 67108864 on h100-sxm");
  const std::int64_t huge = std::numeric_limits<std::int64_t>::max() / 128 * 128;
  o.tile = {huge, huge, huge};
  CHECK(timed(ts::chip("h100"), 8, 8, 8, o).find("B of accumulators") != std::string::npos);
  CHECK(ts::chip_timing(v5e, 8, 8, 8, o).tile.m == 8);
  o.tile = {256, 0, 256};
  CHECK(timed(ts::chip("h100"), 256, 128, 256, o) ==
        "chip_timing: tiles of 256 x 128 x 256 need 262144 B of accumulators, 131072 more than the "
        "131072 of h100-sxm; a smaller tile, or operands that lie in memory, need less");
  CHECK(error_of([&] {
          ts::matmul_on(v5e, ts::zeros({2, 3}), ts::zeros({4, 5}));
        }) ==
        "matmul_on: inner sizes differ: x is [2, 3], w is [4, 5]; x columns must equal w rows");
  CHECK(error_of([&] {
          ts::matmul_on(v5e, ts::zeros({0, 3}), ts::zeros({3, 5}));
        }) == "matmul_on: M, K, N are 0, 3, 5; each must be at least 1");
  ts::Tensor nan = ts::full({1, 1}, std::numeric_limits<float>::quiet_NaN());
  CHECK(error_of([&] { ts::matmul_on(v1, nan, nan); }) ==
        "to_int8: a value is nan; values must be finite");
}

namespace {

// The parameter whose numbers w are.
std::string name_of_weights(const ts::Transformer& model, const ts::Tensor& w) {
  for (const ts::Parameter& parameter : model.parameters) {
    if (parameter.value.origin() == w.origin()) {
      return parameter.name;
    }
  }
  return "?";
}

float furthest(const ts::Tensor& a, const ts::Tensor& b) {
  float worst = 0;
  for (std::int64_t i = 0; i < a.count(); ++i) {
    worst = std::max(worst, std::fabs(a.data()[i] - b.data()[i]));
  }
  return worst;
}

}  // namespace

TEST_CASE("chip: a transformer on it, prefill and decode") {
  const ts::Transformer model(ts::config("nano"), 1);
  std::vector<std::int32_t> ids(64);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<std::int32_t>(i * 37 % 256);
  }
  // 16 x 16 f32 with 64 B a tick: a tile of weights takes 16 ticks to come.
  const ts::Chip chip = toy(16, 16, 1, 64);
  ts::OnChip options;
  options.matmul.format = ts::DType::f32;
  options.matmul.x = options.matmul.y = ts::Home::chip;
  options.name = [&model](const ts::Tensor& w) { return name_of_weights(model, w); };
  ts::Tensor logits;
  const auto prefill = [&] { logits = model.forward(ids, 1, 64); };
  const ts::OnChipReport long_run = ts::on_chip(chip, prefill, options);
  const ts::Tensor host = model.forward(ids, 1, 64);
  CHECK(furthest(logits, host) < 1e-5f);
  REQUIRE(long_run.rows.size() == 25);  // 4 layers of q, k, v, o, up, down; the output matrix
  CHECK(long_run.rows[0].name == "model.layers.0.self_attn.q_proj.weight");
  CHECK(long_run.rows[0].bound == "matmul");
  const ts::List<ts::OnChipRow> layers = long_run.layers();
  REQUIRE(layers.size() == 5);
  CHECK(layers[3].name == "model.layers.3");
  CHECK(layers[3].products == 6);
  const ts::OnChipRow all = long_run.total();
  CHECK(all.counts.ledger.useful == 64 * (4 * (4 * 128 * 128 + 2 * 128 * 512) + 128 * 256));
  CHECK(all.counts.ledger.total() == 256 * all.counts.cycles);

  const std::vector<std::int32_t> one(ids.begin(), ids.begin() + 1);
  const ts::OnChipReport step = ts::on_chip(
      chip, [&] { logits = model.forward(one, 1, 1); }, options);
  CHECK(furthest(logits, model.forward(one, 1, 1)) < 1e-5f);
  const ts::OnChipRow few = step.total();
  CHECK(few.hbm_bytes == all.hbm_bytes);  // the same weights
  const auto share = [](const ts::OnChipRow& row, std::int64_t part) {
    return static_cast<double>(part) / static_cast<double>(row.counts.ledger.total());
  };
  CHECK(share(all, all.counts.ledger.useful) > 0.9);
  CHECK(share(few, few.counts.ledger.useful) < 0.07);
  CHECK(share(few, few.counts.ledger.weight_shift + few.counts.ledger.weight_stall) > 0.85);

  // Numbers by the host: the same costs.
  options.numbers = ts::Numbers::host;
  const ts::OnChipReport timed = ts::on_chip(chip, prefill, options);
  CHECK(furthest(logits, host) == 0);
  CHECK(timed.total().counts.cycles == all.counts.cycles);
  CHECK(timed.total().counts.ledger == all.counts.ledger);
  CHECK(timed.csv().find("product,count,cycles formula,") == 0);
  CHECK(long_run.csv().find("product,count,cycles simulated,") == 0);
  CHECK(timed.table().title == "Products on toy; their numbers are the host's, in f32");
  CHECK(long_run.layer_table().rows.size() == 6);
  CHECK(long_run.json().find("model.embed_tokens.weight") != std::string::npos);
  std::ostringstream text;
  text << long_run;
  CHECK(text.str().find("Products on toy\nproduct ") == 0);

  // bf16 on a TPU: operands are rounded, logits stay near.
  const ts::OnChipReport tpu = ts::on_chip(ts::chip("tpu-v5e"), prefill);
  CHECK(furthest(logits, host) < 0.02f);
  CHECK(furthest(logits, host) > 0);
  CHECK(tpu.rows[0].name == "[64, 128] x [128, 128]");
}

TEST_CASE("chip: on_chip covers every way to multiply by a matrix, and leaves nothing behind") {
  const ts::Chip chip = toy(2, 2, 1, 8), other = toy(4, 4, 1, 8);
  ts::OnChip options;
  options.matmul.format = ts::DType::f32;
  const ts::Tensor x = ts::randn({2, 3, 4}, 1), w = ts::randn({4, 5}, 2);
  const ts::Tensor turned = ts::randn({5, 4}, 3), bias = ts::randn({5}, 4);
  ts::Tensor a, b, c, d;
  ts::OnChipReport inner;
  const ts::OnChipReport report = ts::on_chip(
      chip,
      [&] {
        a = ts::matmul(x, w);
        inner = ts::on_chip(
            other, [&] { d = ts::matmul(x, w); }, options);
        b = ts::matmul_transposed(x, turned);
        c = ts::linear(x, turned, bias);
      },
      options);
  CHECK(report.rows.size() == 3);
  CHECK(inner.rows.size() == 1);
  CHECK(furthest(a, ts::matmul(x, w)) < 1e-6f);
  CHECK(furthest(d, a) < 1e-6f);
  CHECK(furthest(b, ts::matmul_transposed(x, turned)) < 1e-6f);
  CHECK(furthest(c, ts::linear(x, turned, bias)) < 1e-6f);
  CHECK(c.shape().text() == "[2, 3, 5]");

  CHECK(error_of([&] { ts::on_chip(chip, [] { throw ts::Error("mine"); }); }) == "mine");
  CHECK(error_of([&] { ts::on_chip(ts::chip("wse-3"), [&] { ts::matmul(x, w); }); }) ==
        "matmul_on: wse-3 is a wafer; a tpu, npu or gpu has arrays to emulate");
  CHECK(ts::detail::matmul_hook() == nullptr);
  CHECK(ts::on_chip(chip, [] {}).table().rows.size() == 1);
  CHECK(error_of([&] { ts::on_chip(chip, std::function<void()>()); }) ==
        "on_chip: fn is empty; give the program whose products are to run on the chip");

  // No gradient: none is recorded inside, and the hook refuses one.
  const ts::Tensor weights = ts::parameter(ts::randn({4, 5}, 5));
  ts::on_chip(chip, [&] { a = ts::matmul(x, weights); });
  CHECK_FALSE(a.requires_grad());
  const ts::detail::MatmulHook hook = [](const ts::Tensor& left, const ts::Tensor&) {
    return left;
  };
  ts::detail::matmul_hook() = &hook;
  const std::string refused = error_of([&] { ts::matmul(x, weights); });
  ts::detail::matmul_hook() = nullptr;
  CHECK(refused == "matmul: no gradient flows through an emulated chip; run it under a NoGrad");
}
