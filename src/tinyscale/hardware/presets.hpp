#pragma once
// Chip presets: one row for each chip, with where its numbers come from at the end of the row.
// S = read there, K = from general knowledge of the paper or data sheet, inferred and derived =
// arithmetic from the other columns; chip_facts() has it figure by figure. TPU links: the scaling
// book's rate, 10 % under the vendor's: vendor_links() has that. Prices: US list, on demand, at
// price_date; they change: set dollars_per_hour.

#include <cstring>  // strcmp
#include <string>   // names
#include <vector>   // lists

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/near_names.hpp"
#include "tinyscale/hardware/chip.hpp"
#include "tinyscale/hardware/energy.hpp"

namespace tinyscale {

namespace detail {

// The columns of the table: a line of five to a chip, and 0 or "" where nothing is known.
struct ChipRow {
  const char *name, *vendor, *kind;
  int year;
  double flops_bf16, flops_int8, flops_fp8, flops_fp4, flops_f32;
  double memory_bytes, memory_bandwidth, sram_bytes, sram_bandwidth, l2_bytes, l2_bandwidth;
  int mxu_rows, mxu_cols, mxus, cores;
  double clock_hz;
  int links;
  double link_bandwidth;
  const char *topology, *wrap;
  int domain_chips, host_chips;
  double dcn_bandwidth, pcie_bandwidth, watts, dollars_per_hour, hop_latency;
  const char *price_source, *price_date, *source;
};

// clang-format off
inline const List<ChipRow>& chip_rows() {
  static const List<ChipRow> rows = {
      {"tpu-v1", "google", "tpu", 2015, 0, 9.2e13, 0, 0, 0,
       8589934592, 3.4e10, 25165824, 1.79e11, 0, 0, 256, 256, 1, 1,
       7e8, 0, 0, "", "", 1, 4,
       0, 1.4e10, 75, 0, 0, "", "",
       "K:Jouppi ISCA 2017 (half speed for 8 x 16 bit, a quarter for 16 x 16)"},
      {"tpu-v2", "google", "tpu", 2017, 4.6e13, 0, 0, 0, 0,
       1.6e10, 7e11, 33554432, 0, 0, 0, 128, 128, 2, 2,
       7e8, 4, 6.2e10, "torus2d", "full axis 16", 256, 4,
       0, 0, 280, 1.125, 0, "K: v2-8 $4.50 / 4 chips", "undated",
       "K:Jouppi CACM 2020, TPUv4i paper table 1"},
      {"tpu-v3", "google", "tpu", 2018, 1.23e14, 0, 0, 0, 0,
       3.2e10, 9e11, 33554432, 0, 0, 0, 128, 128, 4, 2,
       9.4e8, 4, 8.2e10, "torus2d", "full axis 32", 1024, 4,
       0, 0, 450, 2, 0, "K: v3-8 $8.00 / 4 chips", "undated",
       "K:Jouppi CACM 2020; S:scaling book tpus.md (gives 1.4e14 and 1e11 per link)"},
      {"tpu-v4", "google", "tpu", 2020, 2.75e14, 2.75e14, 0, 0, 0,
       34359738368, 1.228e12, 167772160, 0, 0, 0, 128, 128, 8, 2,
       1.05e9, 6, 4.5e10, "torus3d", "axis multiple of 4 (optical)", 4096, 4,
       6.25e9, 1.6e10, 192, 3.22, 1e-6, "S: skypilot catalogue v4-8 12.88 / 4", "read 2026",
       "S:scaling book; S:glennklockwood.com quoting Google docs; K:Jouppi ISCA 2023"},
      {"tpu-v5e", "google", "tpu", 2023, 1.97e14, 3.93e14, 0, 0, 0,
       1.6e10, 8.19e11, 134217728, 1.8e13, 0, 0, 128, 128, 4, 1,
       1.5e9, 4, 4.5e10, "torus2d", "only on a full axis of 16", 256, 8,
       3.125e9, 1.6e10, 0, 1.2, 1e-6, "S: scaling book; S: quoted list price", "2025-02",
       "S:cloud.google.com/tpu/docs/v5e; S:scaling book"},
      {"tpu-v5p", "google", "tpu", 2023, 4.59e14, 9.18e14, 4.59e14, 0, 0,
       102005473280, 2.765e12, 134217728, 6.08e13, 0, 0, 128, 128, 8, 2,
       1.75e9, 6, 9e10, "torus3d", "axis multiple of 4 (optical)", 8960, 4,
       6.25e9, 1.6e10, 0, 4.2, 1e-6,
       "S: skypilot catalogue v5p-11520 24192 / 5760; scaling book", "2025-02",
       "S:docs.cloud.google.com/tpu/docs/v5p; S:scaling book"},
      {"tpu-v6e", "google", "tpu", 2024, 9.18e14, 1.836e15, 9.18e14, 0, 0,
       3.2e10, 1.64e12, 134217728, 0, 0, 0, 256, 256, 4, 1,
       1.75e9, 4, 9e10, "torus2d", "only on a full axis of 16", 256, 8,
       1.25e10, 3.2e10, 0, 2.7, 1e-6, "S: skypilot catalogue v6e-1", "read 2026",
       "S:cloud.google.com/tpu/docs/v6e (two editions); S:scaling book"},
      {"tpu-v7", "google", "tpu", 2025, 2.307e15, 0, 4.614e15, 0, 0,
       206158430208, 7.38e12, 0, 0, 0, 0, 256, 256, 8, 2,
       2.2e9, 6, 9e10, "torus3d", "axis multiple of 4 (optical)", 9216, 4,
       1.25e10, 0, 0, 12, 0, "K: list price, low confidence", "undated",
       "S:docs.cloud.google.com/tpu/docs/tpu7x; S:scaling book; S:ml-engineering"},
      {"v100-32", "nvidia", "gpu", 2017, 1.25e14, 0, 0, 0, 1.57e13,
       3.2e10, 9e11, 7864320, 1.57e13, 6291456, 0, 8, 16, 320, 80,
       1.53e9, 6, 2.5e10, "switch", "", 16, 16,
       6.25e9, 1.6e10, 300, 2.48, 0, "K: GCP V100", "undated",
       "S:scaling book gpus.md (SMs, SMEM, L2, memory); K: data sheet, sixteen in a DGX-2"},
      {"a100-40", "nvidia", "gpu", 2020, 3.12e14, 6.24e14, 0, 0, 1.95e13,
       4e10, 1.555e12, 21233664, 1.95e13, 41943040, 5.1e12, 16, 16, 432, 108,
       1.41e9, 12, 2.5e10, "switch", "", 8, 8,
       2.5e10, 3.1e10, 400, 3.67, 0, "K: GCP a2-highgpu-1g", "undated",
       "S:LLM-Viewer table; S:ml-engineering; S:scaling book gpus.md"},
      {"a100-80", "nvidia", "gpu", 2020, 3.12e14, 6.24e14, 0, 0, 1.95e13,
       8e10, 2.039e12, 21233664, 1.95e13, 41943040, 5.1e12, 16, 16, 432, 108,
       1.41e9, 12, 2.5e10, "switch", "", 8, 8,
       2.5e10, 3.1e10, 400, 5.07, 0, "K: GCP a2-ultragpu-1g", "undated",
       "S:ml-engineering; S:scaling book gpus.md"},
      {"h100-sxm", "nvidia", "gpu", 2022, 9.894e14, 1.979e15, 1.979e15, 0, 6.7e13,
       8e10, 3.35e12, 34603008, 3.3e13, 52428800, 5.5e12, 16, 32, 528, 132,
       1.83e9, 18, 2.5e10, "switch", "", 8, 8,
       5e10, 6.3e10, 700, 10.8, 0, "S: scaling book (Google Cloud)", "2025-02",
       "S:ml-engineering; S:scaling book gpus.md"},
      {"h100-pcie", "nvidia", "gpu", 2022, 7.56e14, 1.513e15, 1.513e15, 0, 5.1e13,
       8e10, 2e12, 29884416, 0, 52428800, 0, 16, 32, 456, 114,
       1.62e9, 18, 1.67e10, "pair bridge", "", 2, 8,
       0, 6.3e10, 350, 0, 0, "", "",
       "S:ml-engineering; clock and SM count K"},
      {"h100-96", "nvidia", "gpu", 2023, 9.894e14, 1.979e15, 1.979e15, 0, 6.7e13,
       9.6e10, 2.4e12, 34603008, 3.3e13, 52428800, 5.5e12, 16, 32, 528, 132,
       1.83e9, 18, 2.5e10, "switch", "", 8, 8,
       5e10, 6.3e10, 500, 0, 0, "", "",
       "S:torchtitan benchmarks (HBM2e 2.4 TB/s, 500 W); peak not published, below the SXM part's "
       "that stands here"},
      {"h800", "nvidia", "gpu", 2023, 9.894e14, 1.979e15, 1.979e15, 0, 6.7e13,
       8e10, 3.35e12, 34603008, 3.3e13, 52428800, 5.5e12, 16, 32, 528, 132,
       1.83e9, 8, 2.5e10, "switch", "", 8, 8,
       5e10, 6.3e10, 700, 2, 0, "K: rent that the DeepSeek-V3 report assumes", "2024-12",
       "K: an H100 SXM with 8 of its 18 links; S:DeepEP issue 16 (200 GB/s each way, 160 reached)"},
      {"h200", "nvidia", "gpu", 2024, 9.894e14, 1.979e15, 1.979e15, 0, 6.7e13,
       1.41e11, 4.8e12, 34603008, 3.3e13, 52428800, 5.5e12, 16, 32, 528, 132,
       1.83e9, 18, 2.5e10, "switch", "", 8, 8,
       5e10, 6.3e10, 700, 10, 0, "S: scaling book gpus.md (about)", "2025-08",
       "S:ml-engineering; S:scaling book"},
      {"b200", "nvidia", "gpu", 2025, 2.25e15, 4.5e15, 4.5e15, 9e15, 8e13,
       1.8e11, 8e12, 38797312, 0, 132120576, 0, 32, 32, 592, 148,
       1.85e9, 18, 5e10, "switch", "", 8, 8,
       5e10, 6.3e10, 1000, 0, 0, "", "",
       "S:ml-engineering; S:scaling book gpus.md (192 GB there); clock inferred"},
      {"gb200", "nvidia", "gpu", 2025, 2.5e15, 5e15, 5e15, 1e16, 8e13,
       1.86e11, 8e12, 38797312, 0, 132120576, 0, 32, 32, 592, 148,
       2.06e9, 18, 5e10, "switch", "", 72, 4,
       5e10, 0, 1200, 0, 0, "", "",
       "S:ml-engineering; S:scaling book gpus.md; TDP K"},
      {"gb300", "nvidia", "gpu", 2025, 2.5e15, 0, 5e15, 1.5e16, 8e13,
       2.88e11, 8e12, 38797312, 0, 132120576, 0, 32, 32, 592, 148,
       2.06e9, 18, 5e10, "switch", "", 72, 4,
       1e11, 0, 1400, 0, 0, "", "",
       "K: data sheet of the GB300 NVL72; clock inferred"},
      {"mi300x", "amd", "gpu", 2023, 1.307e15, 2.614e15, 2.614e15, 0, 1.634e14,
       1.92e11, 5.3e12, 19922944, 0, 268435456, 1.72e13, 16, 16, 1216, 304,
       2.1e9, 7, 6.4e10, "fully connected", "", 8, 8,
       5e10, 6.3e10, 750, 0, 0, "", "",
       "S:ml-engineering; LDS 64 KiB a CU and Infinity Cache bandwidth K"},
      {"gemmini", "berkeley", "npu", 2019, 0, 5.12e11, 0, 0, 0,
       0, 1.6e10, 262144, 0, 0, 0, 16, 16, 1, 1,
       1e9, 0, 0, "", "", 1, 1,
       0, 0, 0, 0, 0, "", "",
       "K:Genc DAC 2021, default configuration: 128-bit bus, 64 KiB of accumulators"},
      {"wse-2", "cerebras", "wafer", 2021, 7.5e15, 0, 0, 0, 0,
       4e10, 2e16, 4e10, 2e16, 0, 0, 1, 4, 850000, 850000,
       1.1e9, 4, 0, "mesh2d on wafer", "none", 1, 1,
       1.5e11, 0, 23000, 0, 0, "", "",
       "S:aiwiki and others (cores, SRAM, 20 PB/s, 220 Pbit/s fabric); S:nextplatform (4-wide "
       "fp16 SIMD); peak and clock inferred"},
      {"wse-3", "cerebras", "wafer", 2024, 1.25e16, 0, 0, 0, 0,
       4.4e10, 2.1e16, 4.4e10, 2.1e16, 0, 0, 1, 8, 900000, 900000,
       1.1e9, 4, 0, "mesh2d on wafer", "none", 1, 1,
       1.5e11, 0, 23000, 0, 0, "", "",
       "S:yobitel, nextplatform, argonne tutorial; dense peak inferred (125 PFLOP/s is the "
       "sparse figure)"},
      {"laptop-x86", "generic", "cpu", 2023, 9e11, 1.8e12, 0, 0, 9e11,
       17179869184, 9e10, 10878976, 1.8e12, 25165824, 3e11, 1, 8, 16, 8,
       3.5e9, 0, 0, "", "", 1, 1,
       0, 0, 45, 0, 0, "", "",
       "derived: 8 cores x 2 FMA units x 8 fp32 lanes x 3.5 GHz; dual-channel DDR5-5600"},
      {"laptop-arm", "generic", "cpu", 2023, 4.5e11, 9e11, 0, 0, 4.5e11,
       17179869184, 1e11, 16777216, 1e12, 16777216, 3e11, 1, 4, 16, 4,
       3.5e9, 0, 0, "", "", 1, 1,
       0, 0, 20, 0, 0, "", "",
       "derived: 4 performance cores x 4 NEON units x 4 lanes x 3.5 GHz; 100 GB/s unified "
       "memory"},
  };
  return rows;
}
// clang-format on

struct ChipAlias {
  const char *said, *name;
};

// Words that people use for a preset.
// clang-format off
inline const List<ChipAlias>& chip_aliases() {
  static const List<ChipAlias> aliases = {
      {"v1", "tpu-v1"}, {"v2", "tpu-v2"}, {"v3", "tpu-v3"}, {"v4", "tpu-v4"}, {"v4p", "tpu-v4"},
      {"tpu-v4p", "tpu-v4"}, {"v5e", "tpu-v5e"}, {"v5p", "tpu-v5p"}, {"v6e", "tpu-v6e"},
      {"v5litepod", "tpu-v5e"}, {"trillium", "tpu-v6e"}, {"v7", "tpu-v7"}, {"v7x", "tpu-v7"},
      {"tpu7x", "tpu-v7"}, {"tpu-v7x", "tpu-v7"}, {"ironwood", "tpu-v7"},
      {"v100", "v100-32"}, {"a100", "a100-80"}, {"a100-40gb", "a100-40"},
      {"a100-80gb", "a100-80"}, {"h100", "h100-sxm"}, {"h100-80gb", "h100-sxm"},
      {"gb200-nvl72", "gb200"}, {"gb300-nvl72", "gb300"},
      // what a device calls itself
      {"TPU v5 lite", "tpu-v5e"}, {"TPU v6 lite", "tpu-v6e"},
      {"NVIDIA A100-SXM4-40GB", "a100-40"}, {"NVIDIA A100-SXM4-80GB", "a100-80"},
      {"NVIDIA H100 80GB HBM3", "h100-sxm"}, {"NVIDIA H100 PCIe", "h100-pcie"},
      {"NVIDIA H200", "h200"}, {"NVIDIA B200", "b200"}};
  return aliases;
}
// clang-format on

// The letters of the preset's name that this one means.
inline std::string chip_letters(const std::string& name) {
  const std::string plain = plain_letters(name);
  for (const ChipAlias& alias : chip_aliases()) {
    if (plain == plain_letters(alias.said)) {
      return plain_letters(alias.name);
    }
  }
  return plain;
}

// Elementwise f32 rate: the published f32 rate (a fused multiply-add counts as two), else for a TPU
// 8 sublanes x 128 lanes x 4 ALUs x clock x cores (scaling book, 2: v5p 7e12 a core), else 0.
// An array for int8 alone activates a value a column and clock (TPU v1's 256; Gemmini).
inline double vector_rate(const ChipRow& row) {
  if (row.flops_f32 > 0) {
    return row.flops_f32;
  }
  if (row.flops_bf16 <= 0) {
    return row.mxu_cols * row.clock_hz;
  }
  return std::strcmp(row.kind, "tpu") == 0 ? 8.0 * 128.0 * 4.0 * row.clock_hz * row.cores : 0.0;
}

inline void copy_rates(const ChipRow& row, Chip& chip) {
  chip.flops_bf16 = row.flops_bf16;
  chip.flops_int8 = row.flops_int8;
  chip.flops_fp8 = row.flops_fp8;
  chip.flops_fp4 = row.flops_fp4;
  chip.flops_f32 = row.flops_f32;
  chip.vector_flops = vector_rate(row);
  chip.memory_bytes = row.memory_bytes;
  chip.memory_bandwidth = row.memory_bandwidth;
  chip.sram_bytes = row.sram_bytes;
  chip.sram_bandwidth = row.sram_bandwidth;
  chip.l2_bytes = row.l2_bytes;
  chip.l2_bandwidth = row.l2_bandwidth;
  chip.mxu_rows = row.mxu_rows;
  chip.mxu_cols = row.mxu_cols;
  chip.mxus = row.mxus;
  chip.cores = row.cores;
  chip.clock_hz = row.clock_hz;
}

// pJ by rule of the energy table: a multiply-accumulate is a multiplication and an addition, SRAM
// a 1 MiB bank's 64 bits. Known for 7 nm; of other nodes only the memory is.
inline ChipEnergy energy_of(const std::string& name, const std::string& kind) {
  ChipEnergy energy;
  const double hbm = picojoules("dram hbm2, 64 bit", 7) / 8;
  const double ddr = picojoules("dram ddr3/ddr4, 64 bit", 45) / 8;
  const bool has_hbm = kind == "gpu" || (kind == "tpu" && name != "tpu-v1");
  energy.memory_byte = has_hbm ? hbm : name == "tpu-v1" ? ddr : 0;
  energy.source = has_hbm ? "K: HBM2" : name == "tpu-v1" ? "K: DDR3, at least" : "";
  if (name == "tpu-v4" || name == "a100-40" || name == "a100-80") {
    energy.mac_int8 = picojoules("int8 multiply", 7) + picojoules("int8 add", 7);
    energy.mac_bf16 = picojoules("bf16 multiply", 7) + picojoules("fp32 add", 7);
    energy.mac_f32 = picojoules("fp32 multiply", 7) + picojoules("fp32 add", 7);
    energy.sram_byte = picojoules("sram 1 MiB read, 64 bit", 7) / 8;
    energy.source = "K: 7 nm and HBM2, ISCA 2021";
  }
  return energy;
}

inline Chip chip_from(const ChipRow& row) {
  Chip chip;
  chip.name = row.name;
  chip.vendor = row.vendor;
  chip.kind = row.kind;
  chip.year = row.year;
  copy_rates(row, chip);
  chip.links = row.links;
  chip.link_bandwidth = row.link_bandwidth;
  chip.hop_latency = row.hop_latency;
  chip.topology = row.topology;
  chip.wrap = row.wrap;
  chip.domain_chips = row.domain_chips;
  chip.host_chips = row.host_chips;
  chip.dcn_bandwidth = row.dcn_bandwidth;
  chip.pcie_bandwidth = row.pcie_bandwidth;
  chip.watts = row.watts;
  chip.dollars_per_hour = row.dollars_per_hour;
  chip.price_source = row.price_source;
  chip.price_date = row.price_date;
  chip.source = row.source;
  chip.energy = energy_of(chip.name, chip.kind);
  chip.fifo_tiles = chip.name == "tpu-v1" ? 4 : 0;
  chip.accumulator_bytes = chip.name == "tpu-v1"    ? 4096.0 * 256 * 4
                           : chip.name == "gemmini" ? 65536
                                                    : 0;
  if (chip.kind == "cpu") {  // a CPU's caches hold whole operands without being told to
    chip.levels = {{"L2", row.sram_bytes, row.sram_bandwidth},
                   {"L3", row.l2_bytes, row.l2_bandwidth},
                   {"DRAM", row.memory_bytes, row.memory_bandwidth}};
  }
  return chip;
}

}  // namespace detail

// The names that chip() knows.
inline std::vector<std::string> chips() {
  std::vector<std::string> names;
  for (const detail::ChipRow& row : detail::chip_rows()) {
    names.push_back(row.name);
  }
  return names;
}

// The preset of this name ("tpu-v5e", "H100"; case and punctuation do not matter); throws with the
// near names when there is none.
inline Chip chip(const std::string& name) {
  const std::string full = detail::chip_letters(name);
  for (const detail::ChipRow& row : detail::chip_rows()) {
    if (full == detail::plain_letters(row.name)) {
      return detail::chip_from(row);
    }
  }
  std::vector<std::string> known = chips();
  const std::string all = detail::joined_names(known);
  for (const detail::ChipAlias& alias : detail::chip_aliases()) {
    known.push_back(alias.said);
  }
  const bool alike = !detail::near_names(name, known).empty();
  detail::fail(
      {"chip: no chip named \"", name, "\"; ",
       alike ? detail::near_text(name, known) + "; chips() has all" : "the names are " + all});
}

}  // namespace tinyscale
