#pragma once
// A program whose matrix products run on an emulated chip: matmul, matmul_transposed and linear of
// this thread, each as one matmul_on. Products over leading dimensions of w, attention and all that
// is no product run on the host and cost nothing here.

#include <iostream>  // ostream
#include <string>    // string

#include "tinyscale/base/function.hpp"
#include "tinyscale/systolic/chip_matmul.hpp"
#include "tinyscale/tensor/backward.hpp"

namespace tinyscale {

// stepped: by the emulated PEs. host: by the host's kernel, in f32, with the chip's costs beside.
enum class Numbers { stepped, host };

struct OnChip {
  ChipMatmul matmul;
  Numbers numbers = Numbers::stepped;
  // What to call a product, by its weights (origin() tells whose they are); default: by its sizes.
  Function<std::string(const Tensor& w)> name;
};

// One product, or the sum of several.
struct OnChipRow {
  std::string name;
  std::int64_t products = 0;
  SystolicTiming counts;  // cycles, ledger and traffic of all arrays
  ChipTile tile;          // of one product
  std::int64_t hbm_bytes = 0;
  double seconds = 0;
  std::string bound;  // mixed: not the same for all

  void add(const OnChipRow& row) {  // one after another
    bound = products == 0 || bound == row.bound ? row.bound : "mixed";
    const std::int64_t cycles = counts.cycles + row.counts.cycles;
    detail::add_counts(row.counts, counts);
    counts.cycles = cycles;
    products += row.products;
    hbm_bytes += row.hbm_bytes;
    seconds += row.seconds;
  }
};

namespace detail {

// Up to the first number between points: "model.layers.3" of "model.layers.3.mlp.up_proj.weight".
inline std::string layer_of(const std::string& name) {
  for (std::size_t i = name.find('.'); i != std::string::npos; i = name.find('.', i + 1)) {
    const std::size_t end = name.find_first_not_of("0123456789", i + 1);
    if (end != i + 1 && (end == std::string::npos || name[end] == '.')) {
      return name.substr(0, end);
    }
  }
  return name;
}

struct HookScope {
  explicit HookScope(const MatmulHook* hook) : before(matmul_hook()) { matmul_hook() = hook; }
  ~HookScope() { matmul_hook() = before; }
  HookScope(const HookScope&) = delete;
  HookScope& operator=(const HookScope&) = delete;
  const MatmulHook* before;
};

}  // namespace detail

struct OnChipReport {
  std::string chip;
  Numbers numbers = Numbers::stepped;
  List<OnChipRow> rows;  // one for each product, in order

  // Rows of the same layer together, in order of appearance.
  List<OnChipRow> layers() const {
    List<OnChipRow> sums;
    for (const OnChipRow& row : rows) {
      const std::string layer = detail::layer_of(row.name);
      std::size_t i = 0;
      while (i < sums.size() && sums[i].name != layer) {
        ++i;
      }
      sums.resize(std::max(sums.size(), i + 1));
      sums[i].name = layer;
      sums[i].add(row);
    }
    return sums;
  }
  OnChipRow total() const {
    OnChipRow all;
    all.name = "all";
    for (const OnChipRow& row : rows) {
      all.add(row);
    }
    return all;
  }
  Table table() const { return table_of(rows); }
  Table layer_table() const { return table_of(layers()); }
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }

 private:
  Table table_of(List<OnChipRow> all) const {
    const bool host = numbers == Numbers::host;
    const char* const cycles = host ? "cycles formula" : "cycles simulated";
    Table t;
    t.title = "Products on " + chip + (host ? "; their numbers are the host's, in f32" : "");
    t.columns = {"product",        "count",       cycles,  "useful %", "padded %", "weight shift %",
                 "weight stall %", "dma stall %", "hbm B", "us",       "bound"};
    all.push_back(total());
    for (const OnChipRow& r : all) {
      const LossLedger& l = r.counts.ledger;
      const double pe_ticks = std::max(1.0, static_cast<double>(l.total()));
      const auto share = [pe_ticks](std::int64_t part) {
        return format_fixed(100 * static_cast<double>(part) / pe_ticks, 2);
      };
      t.add({r.name, std::to_string(r.products), std::to_string(r.counts.cycles), share(l.useful),
             share(l.padded), share(l.weight_shift), share(l.weight_stall), share(l.dma_stall),
             std::to_string(r.hbm_bytes), format_fixed(r.seconds * 1e6, 3), r.bound});
    }
    return t;
  }
};

inline std::ostream& operator<<(std::ostream& out, const OnChipReport& r) {
  return out << r.table();
}

// Calls fn with every product of this thread on the chip, without gradients, and says what each
// cost; fn keeps what it computes. Throws what matmul_on throws, and what fn does.
inline OnChipReport on_chip(const Chip& chip, const Function<void()>& fn,
                            const OnChip& options = OnChip()) {
  if (!fn) {
    detail::fail({"on_chip: fn is empty; give the program whose products are to run on the chip"});
  }
  OnChipReport report;
  report.chip = chip.name;
  report.numbers = options.numbers;
  const detail::MatmulHook hook = [&](const Tensor& x, const Tensor& w) {
    const detail::HookScope host(nullptr);
    const detail::Matmul s = detail::matmul_sizes("on_chip", x, w, kernels::Trans::no);
    ChipMatmul own = options.matmul;
    for (const OnChipRow& seen : report.rows) {  // the tile of a shape is searched once
      const SystolicTiming& t = seen.counts;
      own.tile = t.m == s.m && t.k == s.k && t.n == s.n ? seen.tile : own.tile;
    }
    ChipRun run;
    if (options.numbers == Numbers::stepped) {
      run = matmul_on(chip, x, w, own);
    } else {
      static_cast<ChipTiming&>(run) = chip_timing(chip, s.m, s.k, s.n, own);
      run.output = matmul(x, w);
    }
    const std::string sizes = detail::cat({"[", s.m, ", ", s.k, "] x [", s.k, ", ", s.n, "]"});
    report.rows.push_back({options.name ? options.name(w) : sizes, 1, run, run.tile,
                           run.hbm_bytes_read + run.hbm_bytes_written, run.seconds, run.bound});
    return run.output;
  };
  const NoGrad no_grad;
  const detail::HookScope scope(&hook);
  fn();
  return report;
}

}  // namespace tinyscale
