#pragma once
// A chip: what it can compute, hold and move in a second, as one plain struct that a user can fill.
//   critical intensity = flops_per_second / memory_bandwidth   (FLOPs per byte)
// SI base units: FLOP/s, bytes, bytes/s, Hz, seconds, W, USD; 0 is "not known".
// Source: "How To Scale Your Model", chapters 1 and 2.

#include <string>  // names

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/format.hpp"
#include "tinyscale/base/list.hpp"

namespace tinyscale {

// One level of memory: operands that fit in `bytes` stream at `bandwidth` bytes a second.
struct MemoryLevel {
  std::string name;
  double bytes = 0;
  double bandwidth = 0;
  double core_bandwidth = 0;  // what one core alone moves; 0: not known
};

// Energy in pJ of one multiply-accumulate by the format of its operands, and of one byte moved.
struct ChipEnergy {
  double mac_int8 = 0, mac_bf16 = 0, mac_f32 = 0;  // 0: not known
  double sram_byte = 0, memory_byte = 0;
  std::string source;
};

struct Chip {
  std::string name, vendor;
  std::string kind;  // tpu, gpu, npu, wafer, cpu
  int year = 0;

  // Matmul FLOP/s, dense, by the format of the operands.
  double flops_bf16 = 0, flops_int8 = 0, flops_fp8 = 0, flops_fp4 = 0, flops_f32 = 0;
  double vector_flops = 0;  // elementwise f32 FLOP/s; 0 does not limit an op
  double core_flops_bf16 = 0, core_flops_int8 = 0, core_flops_f32 = 0;  // one core alone

  double memory_bytes = 0, memory_bandwidth = 0;  // HBM or DRAM
  double sram_bytes = 0, sram_bandwidth = 0;      // VMEM or shared memory
  double l2_bytes = 0, l2_bandwidth = 0;          // a cache that all cores share
  List<MemoryLevel> levels;                       // smallest first; empty: main memory only

  int mxu_rows = 0, mxu_cols = 0, mxus = 0;  // peak = 2 rows cols mxus clock
  int cores = 1;
  double clock_hz = 0;
  int fifo_tiles = 0;  // weight tiles of a FIFO of its own that memory fills; 0: they lie in SRAM
  double accumulator_bytes = 0;  // of a memory for sums alone; 0: they lie in SRAM
  ChipEnergy energy;

  int links = 0;
  double link_bandwidth = 0;  // one way, one link
  double hop_latency = 0;
  std::string topology, wrap;
  int domain_chips = 1, host_chips = 1;
  double dcn_bandwidth = 0, pcie_bandwidth = 0;  // for each chip

  double watts = 0, dollars_per_hour = 0;
  std::string source, price_source, price_date;  // the date as far as it is known
  bool measured = false;                         // the rates were measured on this machine
  std::string doubt;                             // "; and why they are not its limits"

  double peak(DType format) const;       // matmul FLOP/s when the operands have this format
  double intensity(DType format) const;  // FLOPs per byte above which memory does not limit
  double unit_peak() const;              // 2 rows cols mxus clock
};

namespace detail {

// What runs a matmul whose operands have this format: the unit made for it, else the next wider.
// A TPU multiplies f32 as six bf16 passes (JAX precision "highest"), hence bf16 / 6.
inline double matmul_rate(const Chip& chip, DType format) {
  const double bf16 = chip.flops_bf16;
  const double int8 = chip.flops_int8 > 0 ? chip.flops_int8 : bf16;
  const double fp8 = chip.flops_fp8 > 0 ? chip.flops_fp8 : bf16;
  switch (format) {
    case DType::bf16:
    case DType::f16: return bf16 > 0 ? bf16 : chip.flops_f32;
    case DType::int8:
    case DType::int4: return int8 > 0 ? int8 : chip.flops_f32;
    case DType::fp8_e4m3:
    case DType::fp8_e5m2: return fp8 > 0 ? fp8 : chip.flops_f32;
    case DType::f32: return chip.flops_f32 > 0 ? chip.flops_f32 : bf16 / 6.0;
    default: return 0.0;
  }
}

}  // namespace detail

inline double Chip::peak(DType format) const {
  const double rate = detail::matmul_rate(*this, format);
  if (!(rate > 0) || !detail::is_finite(rate)) {
    detail::fail({"Chip::peak: ", name.empty() ? "this chip" : name, " has no rate for ",
                  name_of(format), "; set flops_bf16 or flops_f32, or price it in another format"});
  }
  return rate;
}

inline double Chip::intensity(DType format) const {
  if (!(memory_bandwidth > 0) || !detail::is_finite(memory_bandwidth)) {
    detail::fail({"Chip::intensity: ", name.empty() ? "this chip" : name,
                  " has no memory_bandwidth; set it in bytes per second"});
  }
  return peak(format) / memory_bandwidth;
}

inline double Chip::unit_peak() const {
  return 2.0 * mxu_rows * mxu_cols * static_cast<double>(mxus) * clock_hz;
}

}  // namespace tinyscale
