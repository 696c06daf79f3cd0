#pragma once
// The clock of a tile kernel, and its report. An op is put on its unit (DMA, MXUs, vector unit)
// when it is recorded: a unit works in order, an op starts when its operands are ready. A
// generation is a run of loads, a segment the ops up to the next run; with `stages` = n, generation
// g starts when segment g - n has ended (n = 1: no load beside compute), right after that segment's
// stores.

#include <algorithm>  // max, min
#include <cmath>      // ceil, round
#include <cstdint>    // int64_t
#include <iostream>   // ostream
#include <string>     // string

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/hardware/chip.hpp"
#include "tinyscale/systolic/array_timing.hpp"

namespace tinyscale {

// What a kernel did on a chip. Cycles are ticks of its clock; on a GPU those of the SM that ends
// last, which has its share of the bandwidth.
struct KernelRun {
  std::string name, chip, grid;
  DType format = DType::bf16;
  int stages = 2;
  std::int64_t programs = 1, hbm_bytes_read = 0, hbm_bytes_written = 0;  // masked lanes do not move
  std::int64_t on_chip_peak = 0, on_chip_bytes = 0;  // needed, available; 0: not known
  std::int64_t dma_cycles = 0, mxu_cycles = 0, vector_cycles = 0, cycles = 0;  // at work, in all
  std::int64_t matmul_flops = 0, vector_flops = 0;
  double overlap = 0, seconds = 0;  // the share of the DMA's cycles that compute hides
  std::string bound;                // the busiest unit: matmul, vector, memory

  std::int64_t hbm_bytes() const { return hbm_bytes_read + hbm_bytes_written; }
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
  Table table() const {
    Table t;
    t.title = detail::cat({"kernel ", name, " on ", chip, ": grid ", grid, ", ", format, ", ",
                           stages, stages == 1 ? " stage" : " stages"});
    t.columns = {"quantity", "simulated", "unit"};
    const char* const names[] = {"programs",    "matmul FLOPs", "vector FLOPs",   "HBM read",
                                 "HBM written", "on-chip peak", "on-chip memory", "DMA",
                                 "MXU",         "vector unit",  "cycles"};
    const std::int64_t counts[] = {programs,          matmul_flops,  vector_flops,  hbm_bytes_read,
                                   hbm_bytes_written, on_chip_peak,  on_chip_bytes, dma_cycles,
                                   mxu_cycles,        vector_cycles, cycles};
    for (int i = 0; i < 11; ++i) {
      const bool unknown = i == 6 && on_chip_bytes <= 0;
      const Cell count = format_count(static_cast<double>(counts[i]));
      t.add({names[i], unknown ? Cell("size not known") : count,
             i < 3 || unknown ? ""
             : i < 7          ? "bytes"
                              : "ticks"});
    }
    t.add({"DMA hidden", detail::percent(overlap), "% of its ticks"});
    t.add({"time", detail::number_cell('g', 4, seconds), "s"});
    t.add({"bound by", bound, ""});
    return t;
  }
};

inline std::ostream& operator<<(std::ostream& out, const KernelRun& run) {
  return out << run.table();
}

namespace detail {

enum TileUnit { tile_dma, tile_mxu, tile_vector, tile_none };

struct TileOp {
  TileUnit unit = tile_none;
  std::int64_t cycles = 0, bytes = 0;     // bytes: of the result on the chip; of a store: sent
  bool store = false;                     // else what the DMA does is a load
  int inputs[3] = {-1, -1, -1};           // of a dot: x, w, and the sums that it adds to
  int last = -1;                          // the last op that reads the result
  std::int64_t segment = 0, end[2] = {};  // [0] as it is, [1] as if transfers took no time
};

// A generation of loads and what follows up to the next one.
struct TileSegment {
  std::int64_t loads = 0, stores = 0, live = 0;  // bytes; live: the most within the segment
  std::int64_t end[2] = {};                      // of its compute
  List<TileOp> out;                              // its stores, sent later
};

struct TileCore {
  std::int64_t free[3][2] = {}, busy[3] = {};  // of DMA, MXUs, vector unit
  List<TileSegment> segments;
  std::int64_t sent = 0, weighed = 0, peak = 0;  // segments; segments; bytes
  bool loading = false;                          // the last op was a load

  std::int64_t size() const { return static_cast<std::int64_t>(segments.size()); }
  TileSegment& at(std::int64_t i) { return segments[static_cast<std::size_t>(i)]; }

  // Occupies a unit from op.end on, or from when it is free; op.end becomes the end.
  void occupy(TileOp& op) {
    for (int k = 0; k < 2; ++k) {
      const std::int64_t taken = op.unit == tile_dma && k == 1 ? 0 : op.cycles;
      op.end[k] = free[op.unit][k] = std::max(op.end[k], free[op.unit][k]) + taken;
    }
    busy[op.unit] += op.cycles;
  }

  // Sends the stores of the segments before `end`.
  void send(std::int64_t end) {
    for (; sent < end; ++sent) {
      for (TileOp& store : at(sent).out) {
        occupy(store);
      }
    }
  }

  void next_segment(int stages) {
    for (int k = 0; k < 2 && size() > 0; ++k) {
      at(size() - 1).end[k] = std::max(free[tile_mxu][k], free[tile_vector][k]);
    }
    send(size() - stages + 1);
    segments.push_back(TileSegment());
  }

  // On-chip bytes of the segments before `end`: live tiles, the generations that are loaded beside
  // them, and the tiles on their way out.
  void weigh(std::int64_t end, int stages) {
    for (; weighed < end; ++weighed) {
      std::int64_t bytes = at(weighed).live;
      for (std::int64_t d = 1; d < stages; ++d) {
        bytes += weighed + d < size() ? at(weighed + d).loads : 0;
        bytes += weighed >= d ? at(weighed - d).stores : 0;
      }
      peak = std::max(peak, bytes);
    }
  }
};

inline std::int64_t ticks(double amount, double rate) {
  const double whole = rate > 0 ? std::ceil(amount / rate - 1e-9) : 0;
  return static_cast<std::int64_t>(std::min(0x1p62, whole));
}

// A GPU's programs run on its SMs, those of other chips one after another on all of it.
inline int tile_cores(const Chip& chip) { return chip.kind == "gpu" ? std::max(chip.cores, 1) : 1; }

// Ticks for which a dot [m, k] x [k, n] holds the MXUs of a core: the streams of its folds, dealt
// to the arrays, m cut where that helps. The next weights shift in meanwhile, so fill and drain are
// not charged. Formats other than the array's own take as many passes as their peak is lower.
inline std::int64_t dot_ticks(const Chip& chip, DType format, std::int64_t m, std::int64_t k,
                              std::int64_t n) {
  const int cores = tile_cores(chip);
  const std::int64_t arrays = chip.mxu_rows > 0 && chip.mxu_cols > 0 ? chip.mxus / cores : 0;
  const double peak = chip.peak(format) / chip.clock_hz;  // flops a tick
  if (arrays < 1) {
    return ticks(2.0 * static_cast<double>(m * n) * static_cast<double>(k), peak / cores);
  }
  const std::int64_t folds = folds_of(k, chip.mxu_rows) * folds_of(n, chip.mxu_cols);
  std::int64_t best = 0;
  for (std::int64_t parts = 1; parts <= std::min<std::int64_t>({arrays, m, 64}); ++parts) {
    const std::int64_t stream = std::max<std::int64_t>(folds_of(m, parts), chip.mxu_rows);
    const std::int64_t each = folds_of(folds * parts, arrays) * stream;
    best = parts == 1 ? each : std::min(best, each);
  }
  const double passes = std::round(4 * chip.unit_peak() / chip.clock_hz / peak);  // in quarters
  return ticks(static_cast<double>(best) * std::max(1.0, passes), 4);
}

// As a shape prints, but of any numbers.
inline std::string list_text(const List<Dim>& list) {
  std::string out = "[";
  for (const Dim& x : list) {
    out += (out.size() > 1 ? ", " : "") + std::to_string(x.value);
  }
  return out + "]";
}

// The program that runs now, on its core, and what the whole run has counted.
struct TileRecorder {
  Chip chip;
  KernelRun run;
  List<Dim> grid, ids;
  std::int64_t program = 0;
  List<TileCore> cores;
  TileCore* core = nullptr;
  List<TileOp> ops;  // of the program

  TileOp& at(int i) { return ops[static_cast<std::size_t>(i)]; }
  std::string place() const { return cat({" in program ", list_text(ids), " of ", run.name}); }
  std::int64_t bytes(std::int64_t elements) const {
    return ticks(static_cast<double>(elements) * bytes_of(run.format), 1);
  }
  // An op that takes `work` at a rate of the whole chip a second.
  TileOp op(TileUnit unit, std::int64_t work, double rate, std::int64_t result) const {
    TileOp made;
    made.unit = unit;
    made.cycles = ticks(static_cast<double>(work), rate / chip.clock_hz / tile_cores(chip));
    made.bytes = result;
    return made;
  }

  int add(TileOp op) {
    if (op.cycles > std::int64_t{1} << 44) {
      fail({"Kernel::run: an op", place(), " takes more than 2^44 ticks of ", chip.name});
    }
    const int number = static_cast<int>(ops.size());
    const bool load = op.unit == tile_dma && !op.store;
    if (core->segments.empty() || (load && !core->loading)) {
      core->next_segment(run.stages);
    }
    core->loading = load || (op.unit == tile_none && core->loading);
    op.segment = core->size() - 1;
    for (int k = 0; k < 2; ++k) {
      const std::int64_t before = op.segment - run.stages;
      op.end[k] = load && before >= 0 ? core->at(before).end[k] : 0;
      for (const int i : op.inputs) {
        op.end[k] = std::max(op.end[k], i < 0 ? 0 : at(i).end[k]);
        (i < 0 ? op : at(i)).last = i < 0 ? -1 : number;
      }
    }
    if (op.store) {
      core->at(op.segment).stores += op.bytes;
      op.bytes = 0;
      core->at(op.segment).out.push_back(op);
    } else if (op.unit != tile_none) {
      core->occupy(op);
    }
    ops.push_back(op);
    return number;
  }

  // Makes the last op add to the tile of op `sums`, if it is a dot and that number.
  bool add_to(int sums, int number) {
    TileOp& dot = ops.back();
    if (number + 1 != static_cast<int>(ops.size()) || dot.unit != tile_mxu || dot.inputs[2] >= 0) {
      return false;
    }
    dot.inputs[2] = sums;
    at(sums).last = number;
    for (int k = 0; k < 2; ++k) {
      dot.end[k] = std::max(dot.end[k], at(sums).end[k] + dot.cycles);
      core->free[tile_mxu][k] = dot.end[k];
    }
    return true;
  }

  // The live bytes of the program's segments, in the order of its ops: a tile lives from its op to
  // the last that reads it. A vector op writes over a tile that it is the last to read.
  void end_program() {
    std::int64_t live = 0;
    for (int n = 0; n < static_cast<int>(ops.size()); ++n) {
      const TileOp& op = at(n);
      const auto drop = [this, n, &live](int i) {
        if (i >= 0 && at(i).last <= n) {
          live -= at(i).bytes;
          at(i).bytes = 0;
        }
      };
      TileSegment& segment = core->at(op.segment);
      segment.loads += op.unit == tile_dma && op.last >= 0 ? op.bytes : 0;
      for (int i = op.unit == tile_vector ? 0 : 2; i < 3; ++i) {
        drop(op.inputs[i]);
      }
      live += op.bytes;
      segment.live = std::max(segment.live, live);
      for (const int i : {op.inputs[0], op.inputs[1], n}) {
        drop(i);
      }
    }
    ops.clear();
    core->loading = false;
    weigh(core->size() - run.stages + 1);
  }

  // Weighs the core's segments before `end`; throws when the peak is more than there is.
  void weigh(std::int64_t end) {
    core->weigh(end, run.stages);
    run.on_chip_peak = std::max(run.on_chip_peak, core->peak);
    const std::int64_t over = run.on_chip_peak - run.on_chip_bytes;
    if (run.on_chip_bytes > 0 && over > 0) {
      fail({"Kernel::run: ", run.name, " needs ", core->peak, " bytes on the chip, ",
            tile_cores(chip) > 1 ? "an SM of " : "", chip.name, " has ", run.on_chip_bytes, ": ",
            over, " too many; smaller tiles, fewer stages than ", run.stages,
            " or a format narrower than ", run.format, " would help"});
    }
  }

  // Ends the core's clock; the run is as long as that of the core that ends last.
  void end_core() {
    core->send(core->size());
    weigh(core->size());
    std::int64_t end[2] = {};
    for (int k = 0; k < 2; ++k) {
      end[k] = std::max({core->free[0][k], core->free[1][k], core->free[2][k]});
    }
    if (end[0] > run.cycles) {
      run.cycles = end[0];
      run.dma_cycles = core->busy[tile_dma];
      run.mxu_cycles = core->busy[tile_mxu];
      run.vector_cycles = core->busy[tile_vector];
      const auto hidden = static_cast<double>(run.dma_cycles - (end[0] - end[1]));
      run.overlap = hidden / std::max(1.0, static_cast<double>(run.dma_cycles));
    }
  }
};

}  // namespace detail
}  // namespace tinyscale
