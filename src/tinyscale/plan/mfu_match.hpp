#pragma once
// A claim beside every convention: its rate and utilisation by each, and which of them give back
// what the source prints, within the rounding of the printed digits or within 0.5 %.
// A percentage that none gives back of the claim's own peak is tried with the chip's other peaks.

#include <cmath>   // fabs
#include <string>  // string
#include <vector>  // reasons

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/hardware/chip.hpp"
#include "tinyscale/measure/quantity.hpp"
#include "tinyscale/plan/mfu_claim.hpp"
#include "tinyscale/plan/mfu_conventions.hpp"

namespace tinyscale {

enum class MfuVerdict { possible, suspicious, impossible };

inline const char* name_of(MfuVerdict verdict) {
  static const char* const names[] = {"possible", "suspicious", "impossible"};
  return detail::name_in("MfuVerdict", names, verdict);
}

// The claim under one convention, each figure a quantity with its formula.
struct MfuRow {
  FlopsConvention convention = FlopsConvention::six_n;
  Quantity flops;        // of a token
  Quantity tokens;       // a second and chip: stated, or what the printed rate would be
  Quantity rate;         // FLOP/s a chip
  Quantity utilisation;  // of the peak: an MFU, or an HFU when it counts recomputation
};

// One rate that the source prints, beside every convention.
struct MfuMatch {
  std::string printed;    // "132.71 TFLOP/s", "41.5 % MFU"
  std::string peak;       // of which a percentage is: "bf16", "fp8", ...
  bool hardware = false;  // printed as an HFU
  double rate = 0;        // FLOP/s a chip that it stands for
  double rounding = 0;    // relative: of its last digit and the speed's together
  double unit = 0;        // relative: of the last digit alone, which some sources cut off
  // The nearest first: within the rounding; else within the unit that was cut; else within 0.5 %.
  List<FlopsConvention> within, cut, about;
  FlopsConvention closest = FlopsConvention::six_n;
  double gap = 0;  // of the closest: its rate / the printed rate - 1

  bool none() const { return within.empty() && cut.empty() && about.empty(); }
  const List<FlopsConvention>& best() const {
    return !within.empty() ? within : !cut.empty() ? cut : about;
  }
};

struct MfuDecoding {
  MfuClaim claim;
  double peak = 0;           // FLOP/s of a chip in the claim's format
  bool speed_stated = true;  // else tokens/s follow from the printed rate, for each convention
  List<detail::ClaimSpeed> speeds;
  List<MfuRow> rows;
  List<MfuMatch> matches;  // of the printed rates; none when no speed is stated
  double needed = 0;       // FLOP/s a chip of the matrices alone
  MfuVerdict verdict = MfuVerdict::possible;
  std::vector<std::string> remarks;  // why it is not possible, and what else is odd

  const MfuRow& row(FlopsConvention convention) const;
  // Those that give back TFLOP/s and MFU best: both within their digits, both within 0.5 %, else
  // the one that is printed first; none where nothing gives that back.
  List<FlopsConvention> used() const;
  Table table() const;  // for people; data(): the same in plain numbers, FLOP/s and fractions
  Table data() const;
  std::string text() const;
  std::string csv() const { return data().csv(); }
  std::string json() const;
  // The utilisation by a convention, the one used if none is named: its formula with its numbers.
  std::string explain() const;
  std::string explain(FlopsConvention convention) const {
    return row(convention).utilisation.explain();
  }
};

namespace detail {

constexpr double near_enough = 0.005;

inline std::string mfu_teraflops(double rate) {
  return cat({printed('g', 5, rate / 1e12), " TFLOP/s"});
}

// A percentage with the digits that it needs: "41.25 %".
inline std::string mfu_percent(double share) { return cat({printed('g', 4, 100 * share), " %"}); }

// The peaks that a source may have divided by, the claim's own first.
struct NamedPeak {
  std::string name;
  double rate = 0;
};

inline List<NamedPeak> possible_peaks(const Chip& chip, DType format) {
  List<NamedPeak> out;
  out.push_back({name_of(format), chip.peak(format)});
  const bool sparse = chip.kind == "gpu" && chip.year >= 2020;  // 2 of 4 weights are zero
  const NamedPeak others[] = {{"bf16", chip.flops_bf16},
                              {"fp8", chip.flops_fp8},
                              {"int8", chip.flops_int8},
                              {"fp4", chip.flops_fp4},
                              {"bf16 sparse", sparse ? 2 * chip.flops_bf16 : 0},
                              {"fp8 sparse", sparse ? 2 * chip.flops_fp8 : 0}};
  for (const NamedPeak& other : others) {
    if (other.rate > 0 && other.rate != out[0].rate) {
      out.push_back(other);
    }
  }
  return out;
}

// "int8 or bf16 sparse": of an A100 both are 624 TFLOP/s.
inline std::string names_of_peak(const List<NamedPeak>& peaks, double rate) {
  std::string out;
  for (const NamedPeak& peak : peaks) {
    if (std::fabs(peak.rate / rate - 1) < 1e-3) {
      out += (out.empty() ? "" : " or ") + peak.name;
    }
  }
  return out;
}

// What the source prints of its rate, as FLOP/s of a chip; a percentage is of that peak.
struct PrintedRate {
  std::string text;
  Quantity rate;
  double rounding = 0;  // relative
  bool share = false, hardware = false;
};

inline List<PrintedRate> printed_rates(const MfuClaim& claim, double peak) {
  List<PrintedRate> out;
  const Quantity whole(peak, "FLOP/s", "peak", claim.chip.name);
  if (claim.tflops_per_chip.stated) {
    const Quantity rate(claim.tflops_per_chip.value * 1e12, "FLOP/s", "", "printed");
    out.push_back({cat({claim.tflops_per_chip.value, " TFLOP/s"}), rate,
                   claim.tflops_per_chip.relative(), false, false});
  }
  if (claim.mfu.stated) {
    out.push_back({mfu_percent(claim.mfu.value) + " MFU",
                   Quantity(claim.mfu.value, "", "MFU", "printed") * whole, claim.mfu.relative(),
                   true, false});
  }
  if (claim.hfu.stated) {
    out.push_back({mfu_percent(claim.hfu.value) + " HFU",
                   Quantity(claim.hfu.value, "", "HFU", "printed") * whole, claim.hfu.relative(),
                   true, true});
  }
  return out;
}

inline List<MfuRow> convention_rows(const MfuClaim& claim, double peak, const Quantity& tokens,
                                    const Quantity& rate) {
  List<MfuRow> out;
  const Quantity whole(peak, "FLOP/s", "peak", claim.chip.name + ", " + name_of(claim.format));
  const bool stated = tokens.value() > 0;
  for (int i = 0; i < flops_conventions; ++i) {
    const auto convention = static_cast<FlopsConvention>(i);
    if (!convention_applies(convention, claim.model, claim.work, claim.recompute)) {
      continue;
    }
    MfuRow row;
    row.convention = convention;
    row.flops = convention_flops(convention, claim.model, claim.context, claim.recompute);
    row.tokens = stated ? tokens : named("tokens/s a chip", rate / row.flops);
    row.rate = stated ? named("FLOP/s a chip", row.flops * tokens) : named("FLOP/s a chip", rate);
    row.utilisation = named(counts_recomputation(convention) ? "HFU" : "MFU", row.rate / whole);
    out.push_back(row);
  }
  return out;
}

// Puts a convention behind those that are nearer.
inline void insert_by_gap(List<FlopsConvention>& list, std::vector<double>& gaps,
                          FlopsConvention convention, double gap) {
  std::size_t at = list.size();
  list.push_back(convention);
  gaps.push_back(gap);
  for (; at > 0 && gaps[at - 1] > gap; --at) {
    list[at] = list[at - 1];
    gaps[at] = gaps[at - 1];
    list[at - 1] = convention;
    gaps[at - 1] = gap;
  }
}

// An HFU is compared with what counts recomputation, where a convention of the claim does.
inline MfuMatch match_rate(const PrintedRate& printed, double scale, const List<MfuRow>& rows,
                           double speed_rounding) {
  MfuMatch out;
  out.printed = printed.text;
  out.hardware = printed.hardware;
  out.rate = printed.rate.value() * scale;
  out.rounding = printed.rounding + speed_rounding;
  out.unit = 2 * printed.rounding;
  std::vector<double> within, cut, about;
  double best = 1e300;
  bool hardware = false;
  for (const MfuRow& row : rows) {
    hardware = hardware || (printed.hardware && counts_recomputation(row.convention));
  }
  for (const MfuRow& row : rows) {
    if (hardware && !counts_recomputation(row.convention)) {
      continue;
    }
    const double gap = row.rate.value() / out.rate - 1;
    if (std::fabs(gap) <= out.rounding) {
      insert_by_gap(out.within, within, row.convention, std::fabs(gap));
    } else if (gap >= 0 && gap <= out.unit + speed_rounding) {
      insert_by_gap(out.cut, cut, row.convention, gap);
    } else if (std::fabs(gap) <= near_enough) {
      insert_by_gap(out.about, about, row.convention, std::fabs(gap));
    }
    if (std::fabs(gap) < best) {
      best = std::fabs(gap);
      out.closest = row.convention;
      out.gap = gap;
    }
  }
  return out;
}

// A percentage that no convention reproduces of its own peak is tried with the chip's others.
inline MfuMatch match_with_peaks(const PrintedRate& printed, const List<NamedPeak>& peaks,
                                 const List<MfuRow>& rows, double speed_rounding) {
  MfuMatch own = match_rate(printed, 1, rows, speed_rounding);
  own.peak = printed.share ? peaks[0].name : "";
  if (!printed.share || !own.none()) {
    return own;
  }
  for (const NamedPeak& peak : peaks) {
    MfuMatch other = match_rate(printed, peak.rate / peaks[0].rate, rows, speed_rounding);
    other.peak = names_of_peak(peaks, peak.rate);
    if (!other.none()) {
      return other;
    }
  }
  return own;
}

}  // namespace detail
}  // namespace tinyscale
