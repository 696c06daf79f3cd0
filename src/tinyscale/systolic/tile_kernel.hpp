#pragma once
// A kernel written tile by tile: a body that runs once for each cell of a grid, and what the run
// cost. Programs run in row-major order, one after another, on the whole chip (all of its MXUs and
// on-chip memory); a GPU deals them to its SMs, each with its share of everything. Nothing is kept
// between programs: a block that two of them load is moved twice.

#include <algorithm>   // max, min
#include <cstdint>     // int64_t
#include <functional>  // function
#include <iostream>    // ostream
#include <string>      // string

#include "tinyscale/base/text.hpp"
#include "tinyscale/systolic/tile.hpp"

namespace tinyscale {

// What a kernel did on a chip. Cycles are ticks of its clock; on a GPU those of the SM that ends
// last, which has its share of the bandwidth.
struct KernelRun {
  std::string name, chip, grid, format;
  std::int64_t programs = 1, stages = 0;
  std::int64_t hbm_bytes_read = 0, hbm_bytes_written = 0;          // moved: masked lanes are not
  std::int64_t on_chip_peak = 0, on_chip_bytes = 0;                // 0: the chip's is not known
  std::int64_t dma_cycles = 0, mxu_cycles = 0, vector_cycles = 0;  // for which the unit works
  std::int64_t cycles = 0;
  std::int64_t matmul_flops = 0, vector_flops = 0;
  double overlap = 0;  // share of the DMA's time that compute hides
  double seconds = 0;
  std::string bound;  // the busiest unit: matmul, vector, memory

  std::int64_t hbm_bytes() const { return hbm_bytes_read + hbm_bytes_written; }
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
  Table table() const {
    Table t;
    t.title = detail::cat("kernel ", name, " on ", chip, ": grid ", grid, ", ", format, ", ",
                          stages, stages == 1 ? " stage" : " stages");
    t.columns = {"quantity", "simulated", "unit"};
    const char* const names[] = {"programs",     "HBM read",    "HBM written", "on-chip peak",
                                 "DMA",          "MXU",         "vector unit", "cycles",
                                 "matmul FLOPs", "vector FLOPs"};
    const std::int64_t counts[] = {programs,     hbm_bytes_read, hbm_bytes_written, on_chip_peak,
                                   dma_cycles,   mxu_cycles,     vector_cycles,     cycles,
                                   matmul_flops, vector_flops};
    for (int i = 0; i < 10; ++i) {
      t.add({names[i], std::to_string(counts[i]), i < 1 || i > 7 ? "" : i < 4 ? "bytes" : "ticks"});
    }
    const bool known = on_chip_bytes > 0;
    t.add({"on-chip memory", known ? std::to_string(on_chip_bytes) : "size not known",
           known ? "bytes" : ""});
    t.add({"DMA hidden", detail::percent(overlap), "% of its ticks"});
    t.add({"time", detail::cat(seconds), "s"});
    t.add({"bound by", bound, ""});
    return t;
  }
};

inline std::ostream& operator<<(std::ostream& out, const KernelRun& run) {
  return out << run.table();
}

struct Kernel {
  std::string name;
  List<Dim> grid;  // 1 to 3 sizes
  std::function<void(Tile&)> body;
  int stages = 2;              // generations of loads in flight; 1: none beside compute
  DType format = DType::bf16;  // of what is loaded, stored and multiplied

  // Runs every program. Throws when a size is not legal, the chip's rates are not known, or the
  // tiles need more on-chip memory than there is. No profile and no gradient sees the body's ops.
  KernelRun run(const Chip& chip) const;
};

inline Kernel kernel(const std::string& name, const List<Dim>& grid,
                     const std::function<void(Tile&)>& body) {
  return Kernel{name, grid, body};
}

namespace detail {

inline void check_kernel(const Kernel& k, const Chip& chip) {
  bool legal = !k.grid.empty() && k.grid.size() <= 3 && k.stages >= 1 && k.stages <= 64 && k.body;
  double programs = 1;
  for (const Dim& size : k.grid) {
    programs *= static_cast<double>(size.value);
    legal = legal && size.value >= 1 && programs < 0x1p40;
  }
  if (!legal) {
    fail({"Kernel::run: ", k.name, " has grid ", list_text(k.grid), ", ", k.stages, " stages and ",
          k.body ? "a" : "no", " body; 1 to 3 sizes from 1, 1 to 64 stages and a body are right"});
  }
  if (!(chip.clock_hz > 0) || !(chip.memory_bandwidth > 0)) {
    fail({"Kernel::run: ", k.name, " on ", chip.name, ": clock_hz is ", chip.clock_hz,
          ", memory_bandwidth ", chip.memory_bandwidth, "; both must be above 0"});
  }
}

inline void check_tile_memory(const TileRecorder& r, std::int64_t available) {
  if (available > 0 && r.core->peak > available) {
    fail({"Kernel::run: ", r.name, " needs ", r.core->peak, " bytes on the chip, ",
          tile_cores(r.chip) > 1 ? "an SM of " : "", r.chip.name, " has ", available, ": ",
          r.core->peak - available, " too many; smaller tiles, fewer stages than ", r.stages,
          " or a format narrower than ", r.format, " would help"});
  }
}

// The counts of the core that runs, if it ends last.
inline void report_core(TileRecorder& r, KernelRun& run) {
  TileCore& core = *r.core;
  core.send(core.size());
  core.weigh(core.size(), r.stages);
  check_tile_memory(r, run.on_chip_bytes);
  run.on_chip_peak = std::max(run.on_chip_peak, core.peak);
  std::int64_t end[2] = {};
  for (int k = 0; k < 2; ++k) {
    end[k] = std::max({core.free[0][k], core.free[1][k], core.free[2][k]});
  }
  if (end[0] > run.cycles) {
    run.cycles = end[0];
    run.dma_cycles = core.busy[tile_dma];
    run.mxu_cycles = core.busy[tile_mxu];
    run.vector_cycles = core.busy[tile_vector];
    const std::int64_t hidden = run.dma_cycles - (end[0] - end[1]);
    run.overlap = static_cast<double>(hidden) /
                  static_cast<double>(std::max<std::int64_t>(run.dma_cycles, 1));
  }
}

}  // namespace detail

inline KernelRun Kernel::run(const Chip& chip) const {
  detail::check_kernel(*this, chip);
  Context own = context();
  own.profile = nullptr;
  own.no_grad += 1;
  const ContextScope scope(own);
  const Shared<detail::TileRecorder> shared = Shared<detail::TileRecorder>::make();
  detail::TileRecorder& r = *shared;
  r.chip = chip;
  r.name = name;
  r.format = format;
  r.stages = stages;
  r.grid = grid;
  r.ids = grid;
  KernelRun run;
  run.name = name;
  run.chip = chip.name;
  run.grid = detail::list_text(grid);
  run.format = name_of(format);
  run.stages = stages;
  for (const Dim& size : grid) {
    run.programs *= size.value;
  }
  const int cores = detail::tile_cores(chip);
  run.on_chip_bytes = static_cast<std::int64_t>(chip.sram_bytes / cores);
  r.cores.resize(static_cast<std::size_t>(std::min<std::int64_t>(cores, run.programs)));
  Tile tile(shared);
  for (r.program = 0; r.program < run.programs; ++r.program) {
    std::int64_t left = r.program;
    for (std::size_t axis = grid.size(); axis-- > 0; left /= grid[axis].value) {
      r.ids[axis] = left % grid[axis].value;
    }
    r.core = &r.cores[static_cast<std::size_t>(r.program % cores)];
    body(tile);
    r.end_program();
    detail::check_tile_memory(r, run.on_chip_bytes);
  }
  for (detail::TileCore& core : r.cores) {
    r.core = &core;
    detail::report_core(r, run);
  }
  run.hbm_bytes_read = r.read;
  run.hbm_bytes_written = r.written;
  run.matmul_flops = r.matmul_flops;
  run.vector_flops = r.vector_flops;
  run.seconds = static_cast<double>(run.cycles) / chip.clock_hz;
  const std::int64_t busiest = std::max({run.dma_cycles, run.mxu_cycles, run.vector_cycles});
  run.bound = run.dma_cycles == busiest   ? "memory"
              : run.mxu_cycles == busiest ? "matmul"
                                          : "vector";
  return run;
}

}  // namespace tinyscale
