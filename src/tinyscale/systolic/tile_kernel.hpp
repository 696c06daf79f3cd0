#pragma once
// A kernel written tile by tile: a body that runs once for each cell of a grid. Programs run in
// row-major order, one after another, on the whole chip (all of its MXUs and on-chip memory); a GPU
// deals them to its SMs, each with its share of everything. Nothing is kept between programs: a
// block that two of them load is moved twice.

#include <algorithm>  // max, min
#include <cstdint>    // int64_t
#include <string>     // string

#include "tinyscale/base/function.hpp"
#include "tinyscale/systolic/tile.hpp"

namespace tinyscale {

struct Kernel {
  std::string name;
  List<Dim> grid;  // 1 to 3 sizes
  Function<void(Tile&)> body;
  int stages = 2;              // generations of loads in flight; 1: none beside compute
  DType format = DType::bf16;  // of what is loaded, stored and multiplied

  // Runs every program. Throws when a size is not legal, the chip's rates are not known, or the
  // tiles need more on-chip memory than there is. No profile and no gradient sees the body's ops.
  KernelRun run(const Chip& chip) const;
};

// The body is run once for each cell of the grid, which Tile::id(d) tells it.
inline Kernel kernel(const std::string& name, const List<Dim>& grid,
                     const Function<void(Tile&)>& body) {
  return Kernel{name, grid, body};
}

namespace detail {

// A body that outlives its run; it costs less to compile than a std::function.
struct TileBody {
  template <class F>
  TileBody(const F& f)
      : of(&f), call([](const void* own, Tile& t) { (*static_cast<const F*>(own))(t); }) {}
  const void* of;
  void (*call)(const void* of, Tile& t);
};

// This thread's context without its profile and gradients, matmuls in f32.
inline Context quiet_context() {
  Context own = context();
  own.profile = nullptr;
  own.no_grad += 1;
  own.matmul_format = ProductFormat();
  return own;
}

// The number of programs; throws when a size is not legal or the chip's rates are not known.
inline std::int64_t programs_of(const Kernel& k, const Chip& chip) {
  bool legal = !k.grid.empty() && k.grid.size() <= 3 && k.stages >= 1 && k.stages <= 64;
  double programs = 1;
  for (const Dim& size : k.grid) {
    programs *= static_cast<double>(size.value);
    legal = legal && size.value >= 1 && programs < 0x1p40;
  }
  if (!legal) {
    fail({"Kernel::run: ", k.name, " has grid ", list_text(k.grid), " and ", k.stages,
          " stages; 1 to 3 sizes from 1 and 1 to 64 stages are right"});
  }
  if (!(chip.clock_hz > 0) || !(chip.memory_bandwidth > 0)) {
    fail({"Kernel::run: ", k.name, " on ", chip.name, ": clock_hz is ", chip.clock_hz,
          ", memory_bandwidth ", chip.memory_bandwidth, "; both must be above 0"});
  }
  return static_cast<std::int64_t>(programs);
}

inline KernelRun run_kernel(const Kernel& k, const Chip& chip, const TileBody& body) {
  const std::int64_t programs = programs_of(k, chip);
  Context own = quiet_context();
  const ContextScope scope(own);
  const Shared<TileRecorder> recorder = Shared<TileRecorder>::make();
  TileRecorder& r = *recorder;
  KernelRun& run = r.run;
  r.chip = chip;
  r.grid = r.ids = k.grid;
  run.name = k.name;
  run.chip = chip.name;
  run.grid = list_text(k.grid);
  run.format = k.format;
  run.stages = k.stages;
  run.programs = programs;
  const int cores = tile_cores(chip);
  run.on_chip_bytes = chip.sram_bytes > 0  // not so of a NaN
                          ? static_cast<std::int64_t>(std::min(0x1p62, chip.sram_bytes / cores))
                          : 0;
  r.cores.resize(static_cast<std::size_t>(std::min<std::int64_t>(cores, programs)));
  Tile tile(recorder);
  for (r.program = 0; r.program < programs; ++r.program) {
    std::int64_t left = r.program;
    for (std::size_t axis = k.grid.size(); axis-- > 0; left /= k.grid[axis].value) {
      r.ids[axis] = left % k.grid[axis].value;
    }
    r.core = &r.cores[static_cast<std::size_t>(r.program % cores)];
    body.call(body.of, tile);
    r.end_program();
  }
  for (TileCore& core : r.cores) {
    r.core = &core;
    r.end_core();
  }
  run.seconds = static_cast<double>(run.cycles) / chip.clock_hz;
  const std::int64_t parts[] = {run.dma_cycles, run.mxu_cycles, run.vector_cycles};
  const char* const names[] = {"memory", "matmul", "vector"};
  run.bound = names[std::max_element(parts, parts + 3) - parts];
  return run;
}

}  // namespace detail

inline KernelRun Kernel::run(const Chip& chip) const {
  if (!body) {
    detail::fail({"Kernel::run: ", name, " has no body; give it what a program does"});
  }
  return detail::run_kernel(*this, chip, body);
}

}  // namespace tinyscale
