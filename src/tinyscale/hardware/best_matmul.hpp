#pragma once
// What a good kernel reaches of a chip's peak: the best rate of a large matmul that was measured.
// Source: the table "Maximum Achievable Matmul FLOPS" of stas00/ml-engineering (dense operands of
// the best shape found), as shares of the peaks of the presets.

#include "tinyscale/base/list.hpp"
#include "tinyscale/hardware/chip.hpp"

namespace tinyscale {

namespace detail {

struct BestMatmul {
  const char* chip;
  double bf16, fp8;  // 0: not measured
};

inline const List<BestMatmul>& best_matmuls() {
  static const List<BestMatmul> rows = {
      {"a100-40", 0.87, 0}, {"a100-80", 0.87, 0},  {"h100-sxm", 0.80, 0.71}, {"h200", 0.80, 0.73},
      {"b200", 0.78, 0.76}, {"gb200", 0.73, 0.72}, {"mi300x", 0.51, 0}};
  return rows;
}

// Where a part was not measured, the one that its name begins like: h100-96 and h800 are H100s.
inline std::string measured_kin(const std::string& chip) {
  static const char* const kin[][2] = {
      {"a100", "a100-80"}, {"h100", "h100-sxm"}, {"h800", "h100-sxm"}, {"h200", "h200"},
      {"b200", "b200"},    {"gb200", "gb200"},   {"gb300", "gb200"},   {"mi300x", "mi300x"}};
  for (const auto& row : kin) {
    if (chip.rfind(row[0], 0) == 0) {
      return row[1];
    }
  }
  return "";
}

}  // namespace detail

// Of chip.peak(format), for bf16, f16 and fp8; 0 where no measurement is known.
inline double best_matmul_fraction(const Chip& chip, DType format = DType::bf16) {
  for (const detail::BestMatmul& row : detail::best_matmuls()) {
    if (chip.name == row.chip) {
      const bool fp8 = format == DType::fp8_e4m3 || format == DType::fp8_e5m2;
      return fp8 ? row.fp8 : format == DType::bf16 || format == DType::f16 ? row.bf16 : 0;
    }
  }
  return 0;
}

}  // namespace tinyscale
