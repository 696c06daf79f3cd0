#pragma once
// A chip figure by figure, each with its source and how sure it is; and what an hour costs, with
// its date.
//   S: read in the source.  K: from general knowledge of it.  derived, inferred: arithmetic from
//   other figures, the second where the vendor says nothing.  at most: a bound.  set: not the
//   preset's value, so the user's own.
// Prices: list prices on demand, US. FLOP per dollar = peak * 3600 s/h / price.

#include <string>  // figures

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/hardware/best_matmul.hpp"
#include "tinyscale/hardware/chip.hpp"
#include "tinyscale/hardware/presets.hpp"
#include "tinyscale/measure/quantity.hpp"

namespace tinyscale {

struct ChipFact {
  std::string figure;
  double value = 0;
  std::string unit, source, sure;
};

namespace detail {

// What is said of a figure of all chips of a kind, of all figures of a chip ("*"), of one figure of
// a chip, where the source of the whole row does not do; the last that fits holds.
struct FactNote {
  const char *chip, *figure, *sure, *source;
};

// clang-format off
inline const List<FactNote>& fact_notes() {
  static const List<FactNote> notes = {
      {"tpu", "hop latency", "S", "scaling book: about 1 us"},
      {"tpu", "network", "S", "scaling book"},
      {"tpu", "PCIe", "S", "scaling book"},
      {"gpu", "vector rate", "S", "the f32 rate, in which a fused multiply-add counts as two"},
      {"gpu", "on-chip memory", "derived", "cores x shared memory of each"},
      {"gpu", "PCIe", "derived", "16 lanes of its generation"},
      {"gpu", "network", "S", "scaling book: a 400 Gbit/s port for each GPU"},
      {"wafer", "network", "K", "1.2 Tbit/s of the system"},
      {"wafer", "power", "K", "of the system"},
      {"tpu-v2", "link", "K", "496 Gbit/s"},
      {"tpu-v3", "bf16 peak", "K", "the scaling book prints 1.4e14"},
      {"tpu-v3", "link", "K", "656 Gbit/s; the scaling book prints 1e11"},
      {"tpu-v4", "memory", "S", "32 GiB"},
      {"tpu-v4", "clock", "K", "Jouppi, ISCA 2023"},
      {"tpu-v4", "on-chip memory", "K", "128 MiB CMEM and 32 MiB VMEM"},
      {"tpu-v4", "power", "K", "the most; 90 at least, 170 in the mean"},
      {"tpu-v4", "link", "S", "scaling book; Google's documents: 50 GB/s"},
      {"tpu-v5e", "on-chip bandwidth", "derived", "22 x HBM, scaling book"},
      {"tpu-v5e", "link", "S", "scaling book; Google's documents: 1600 Gbit/s a chip, 50 GB/s"},
      {"tpu-v5p", "memory", "S", "95 GiB"},
      {"tpu-v5p", "on-chip memory", "S", "chart of the scaling book"},
      {"tpu-v5p", "on-chip bandwidth", "derived", "22 x HBM, scaling book"},
      {"tpu-v5p", "link", "S", "scaling book; Google's documents: 4800 Gbit/s a chip, 100 GB/s"},
      {"tpu-v6e", "on-chip memory", "K", ""},
      {"tpu-v6e", "memory bandwidth", "S", "Google's documents; a later edition: 1600 GB/s"},
      {"tpu-v6e", "matrix units", "derived", "4 make the peak; documents: 4, in a later edition 2"},
      {"tpu-v6e", "link", "S", "scaling book; Google's documents: 3200 Gbit/s a chip, once 3584"},
      {"tpu-v7", "memory", "S", "192 GiB"},
      {"tpu-v7", "matrix units", "inferred", "from the peak"},
      {"tpu-v7", "clock", "inferred", "from the peak"},
      {"tpu-v7", "link", "S", "scaling book; Google's documents: 1200 GB/s a chip both ways, 100"},
      {"v100-32", "*", "K", "data sheet; sixteen in a DGX-2"},
      {"v100-32", "cores", "S", "scaling book gpus.md"},
      {"v100-32", "memory", "S", "scaling book gpus.md"},
      {"v100-32", "memory bandwidth", "S", "scaling book gpus.md"},
      {"v100-32", "on-chip memory", "S", "scaling book gpus.md: 80 x 96 KiB"},
      {"v100-32", "on-chip bandwidth", "derived", "80 x 128 B x clock"},
      {"v100-32", "L2", "S", "scaling book gpus.md"},
      {"v100-32", "bf16 peak", "K", "float16: this chip has no bf16"},
      {"v100-32", "matrix units", "derived", "two of its tensor cores counted as one"},
      {"a100-40", "on-chip bandwidth", "derived", "108 x 128 B x clock"},
      {"a100-40", "L2 bandwidth", "K", ""},
      {"a100-40", "network", "K", "eight 200 Gbit/s ports in a DGX A100"},
      {"a100-80", "on-chip bandwidth", "derived", "108 x 128 B x clock"},
      {"a100-80", "L2 bandwidth", "K", ""},
      {"a100-80", "network", "K", "eight 200 Gbit/s ports in a DGX A100"},
      {"h100-sxm", "on-chip bandwidth", "derived", "132 x 128 B x clock"},
      {"h100-sxm", "L2 bandwidth", "S", "measured, quoted by the scaling book"},
      {"h100-pcie", "clock", "K", ""},
      {"h100-pcie", "cores", "K", ""},
      {"h100-96", "*", "K", "as the H100 SXM"},
      {"h100-96", "memory", "S", "torchtitan benchmarks"},
      {"h100-96", "memory bandwidth", "S", "torchtitan benchmarks"},
      {"h100-96", "network", "S", "torchtitan benchmarks: 400 Gbit/s"},
      {"h100-96", "power", "S", "torchtitan benchmarks"},
      {"h100-96", "bf16 peak", "at most", "of the SXM part at 700 W; this one's is not published"},
      {"h100-96", "int8 peak", "at most", "of the SXM part"},
      {"h100-96", "fp8 peak", "at most", "of the SXM part"},
      {"h100-96", "f32 peak", "at most", "of the SXM part"},
      {"h100-96", "vector rate", "at most", "of the SXM part"},
      {"h100-96", "clock", "at most", "of the SXM part"},
      {"h800", "*", "K", "as the H100 SXM"},
      {"h800", "network", "S", "400 Gbit/s a GPU, DeepSeek-V3 report"},
      {"h800", "links", "S", "DeepEP issue 16: 200 GB/s each way; the scaling book says 300"},
      {"h800", "fp8 peak", "K", "as the H100 SXM; the scaling book: 1.513e15, the PCIe part's"},
      {"h200", "on-chip bandwidth", "derived", "132 x 128 B x clock"},
      {"b200", "clock", "inferred", "from the peak"},
      {"b200", "memory", "S", "ml-engineering; 192 GB in the scaling book"},
      {"gb200", "clock", "inferred", "from the peak"},
      {"gb200", "power", "K", ""},
      {"gb300", "*", "K", "data sheet of the GB300 NVL72"},
      {"gb300", "clock", "inferred", "from the peak"},
      {"mi300x", "network", "K", "a 400 Gbit/s port for each GPU"},
      {"mi300x", "on-chip memory", "K", "LDS, 64 KiB a compute unit"},
      {"mi300x", "L2", "S", "Infinity Cache"},
      {"mi300x", "L2 bandwidth", "K", "Infinity Cache"},
      {"wse-2", "bf16 peak", "inferred", "units x clock; the vendor's are sparse figures"},
      {"wse-2", "clock", "inferred", ""},
      {"wse-3", "bf16 peak", "inferred", "125 PFLOP/s is the sparse figure"},
      {"wse-3", "clock", "inferred", ""},
  };
  return notes;
}
// clang-format on

// Every figure of a chip in a fixed order, 0 where nothing is known.
inline List<ChipFact> chip_figures(const Chip& c) {
  const auto n = [](int count) { return static_cast<double>(count); };
  return {{"bf16 peak", c.flops_bf16, "FLOP/s", "", ""},
          {"int8 peak", c.flops_int8, "OP/s", "", ""},
          {"fp8 peak", c.flops_fp8, "FLOP/s", "", ""},
          {"fp4 peak", c.flops_fp4, "FLOP/s", "", ""},
          {"f32 peak", c.flops_f32, "FLOP/s", "", ""},
          {"vector rate", c.vector_flops, "FLOP/s", "", ""},
          {"memory", c.memory_bytes, "B", "", ""},
          {"memory bandwidth", c.memory_bandwidth, "B/s", "", ""},
          {"on-chip memory", c.sram_bytes, "B", "", ""},
          {"on-chip bandwidth", c.sram_bandwidth, "B/s", "", ""},
          {"L2", c.l2_bytes, "B", "", ""},
          {"L2 bandwidth", c.l2_bandwidth, "B/s", "", ""},
          {"matrix units", n(c.mxus), "", "", ""},
          {"rows of a unit", n(c.mxu_rows), "", "", ""},
          {"columns of a unit", n(c.mxu_cols), "", "", ""},
          {"cores", n(c.cores), "", "", ""},
          {"clock", c.clock_hz, "Hz", "", ""},
          {"links", n(c.links), "", "", ""},
          {"link", c.link_bandwidth, "B/s one way", "", ""},
          {"hop latency", c.hop_latency, "s", "", ""},
          {"domain", n(c.domain_chips), "chips", "", ""},
          {"host", n(c.host_chips), "chips", "", ""},
          {"network", c.dcn_bandwidth, "B/s one way", "", ""},
          {"PCIe", c.pcie_bandwidth, "B/s one way", "", ""},
          {"power", c.watts, "W", "", ""},
          {"price", c.dollars_per_hour, "USD/h", "", ""}};
}

// Where a price comes from, and when; the preset's source is of the preset's price alone.
inline std::string dated(const Chip& chip) {
  for (const ChipRow& row : chip_rows()) {
    if (chip.name == row.name && chip.price_source == row.price_source &&
        chip.dollars_per_hour != row.dollars_per_hour) {
      return "set on the chip";
    }
  }
  return chip.price_source + (chip.price_date.empty() ? "" : ", " + chip.price_date);
}

inline bool begins(const std::string& text, const char* start) { return text.find(start) == 0; }

// How sure the preset is of a figure, and where it comes from.
inline void explain_fact(const Chip& preset, ChipFact& fact) {
  fact.source = preset.source;
  fact.sure = begins(preset.source, "K") ? "K" : begins(preset.source, "derived") ? "derived" : "S";
  if (fact.figure == "price") {
    fact.source = dated(preset);
    fact.sure = begins(preset.price_source, "K") ? "K" : "S";
    return;
  }
  for (const FactNote& note : fact_notes()) {
    const bool all = std::strcmp(note.figure, "*") == 0;
    if ((preset.name == note.chip || preset.kind == note.chip) &&
        (all || fact.figure == note.figure)) {
      fact.sure = note.sure;
      fact.source = note.source[0] != 0 ? note.source : fact.source;
    }
  }
  if (fact.figure == "vector rate" && !(preset.flops_f32 > 0)) {
    const bool tpu = preset.flops_bf16 > 0;
    fact.source = tpu ? "8 x 128 x 4 ALUs x clock x cores, scaling book" : "a value a column";
    fact.sure = "derived";
  }
}

}  // namespace detail

// The figures that are known of a chip; those that differ from its preset are the user's own.
inline List<ChipFact> chip_facts(const Chip& chip) {
  Chip preset;
  for (const detail::ChipRow& row : detail::chip_rows()) {
    preset = chip.name == row.name && !chip.measured ? detail::chip_from(row) : preset;
  }
  const List<ChipFact> given = detail::chip_figures(preset);
  List<ChipFact> out;
  std::size_t i = 0;
  for (ChipFact& fact : detail::chip_figures(chip)) {
    if (fact.value > 0) {
      if (!preset.name.empty() && fact.value == given[i].value) {
        detail::explain_fact(preset, fact);
      } else {
        fact.sure = chip.measured ? "measured" : "set";
        const bool priced = fact.figure == "price" && chip.price_source != preset.price_source;
        fact.source = chip.measured ? chip.source + chip.doubt
                      : priced      ? detail::dated(chip)
                                    : std::string("not a preset's figure");
      }
      out.push_back(fact);
    }
    ++i;
  }
  for (const DType format : {DType::bf16, DType::fp8_e4m3}) {
    if (best_matmul_fraction(chip, format) > 0) {
      out.push_back({detail::cat({"best matmul, ", name_of(format)}),
                     best_matmul_fraction(chip, format), "of the peak", "ml-engineering", "S"});
    }
  }
  return out;
}
inline List<ChipFact> chip_facts(const std::string& name) { return chip_facts(chip(name)); }

inline Table chip_facts_table(const Chip& chip) {
  Table out;
  out.title = detail::cat({chip.name, chip.vendor.empty() ? "" : ", ", chip.vendor,
                           chip.year > 0 ? detail::cat({", ", chip.year}) : ""});
  out.columns = {"figure", "value", "unit", "sure", "source"};
  for (const ChipFact& fact : chip_facts(chip)) {
    out.add({fact.figure, detail::number_cell(fact.value), fact.unit, fact.sure, fact.source});
  }
  return out;
}
inline Table chip_facts_table(const std::string& name) { return chip_facts_table(chip(name)); }

// What is asked for an hour of `chips` chips together.
struct PriceRow {
  std::string offer, chip;
  int chips = 1;
  double dollars_per_hour = 0;
  std::string date, source;  // the date as far as it is known

  double of_one() const { return dollars_per_hour / chips; }
};

// The presets' prices, then others that were seen; set Chip::dollars_per_hour for another.
inline List<PriceRow> price_rows() {
  List<PriceRow> rows;
  for (const detail::ChipRow& row : detail::chip_rows()) {
    if (row.dollars_per_hour > 0) {
      rows.push_back(
          {"preset", row.name, 1, row.dollars_per_hour, row.price_date, row.price_source});
    }
  }
  rows.push_back({"AWS p4d", "a100-40", 8, 32.77, "undated", "K"});
  rows.push_back({"AWS p5", "h100-sxm", 8, 98.32, "at launch, 2023", "K"});
  rows.push_back({"GCP a3-highgpu-8g", "h100-sxm", 8, 88.49, "undated", "K"});
  rows.push_back({"GPU chapter, about", "tpu-v5p", 1, 4, "2025-08", "S: scaling book gpus.md"});
  return rows;
}

inline Table price_table() {
  Table out;
  out.title = "Prices of an hour, on demand, US list";
  out.columns = {"offer", "chip", "chips", "USD/h", "USD/h of one", "date", "source"};
  for (const PriceRow& row : price_rows()) {
    out.add({row.offer, row.chip, detail::cat({row.chips}),
             detail::number_cell(row.dollars_per_hour), detail::number_cell('g', 4, row.of_one()),
             row.date, row.source});
  }
  return out;
}

// An hour of the chip as it is priced now; throws when no price is known.
inline Quantity hourly_price(const Chip& chip) {
  if (!(chip.dollars_per_hour > 0)) {
    detail::fail({"hourly_price: ", chip.name.empty() ? "this chip" : chip.name,
                  " has no price; set its dollars_per_hour"});
  }
  return Quantity(chip.dollars_per_hour, "USD/h", "price", detail::dated(chip));
}

// FLOP for a dollar, 3.9e17 of a v5p in bf16. The scaling book also prints it without the 3600.
inline Quantity flops_per_dollar(const Chip& chip, DType format = DType::bf16) {
  const Quantity rate(chip.peak(format), "FLOP/s", "C", chip.name + ", " + name_of(format));
  return named("FLOP per dollar", rate * Quantity(3600, "s/h") / hourly_price(chip));
}

}  // namespace tinyscale
