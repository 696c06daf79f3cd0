#pragma once
// The MFU decoder: what a published speed is worth in TFLOP/s and MFU under every convention, which
// one the source must have counted, and whether the claim can be true.
//   needed = FLOPs of the matrices alone x tokens/s a chip: above the peak a claim is impossible,
//   above the best matmul that was measured on that chip it is suspicious.
// Conventions: mfu_conventions.hpp; what a claim states: mfu_claim.hpp.

#include <cmath>    // fabs
#include <ostream>  // operator<<
#include <string>   // string
#include <vector>   // cells

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/hardware/best_matmul.hpp"
#include "tinyscale/plan/mfu_claim.hpp"
#include "tinyscale/plan/mfu_conventions.hpp"
#include "tinyscale/plan/mfu_match.hpp"

namespace tinyscale {

namespace detail {

inline void mfu_remark(MfuDecoding& out, MfuVerdict verdict, const std::string& text) {
  out.verdict = verdict > out.verdict ? verdict : out.verdict;
  out.remarks.push_back(text);
}

// ", in fp8 (1979 TFLOP/s) it would be 55 %" where another dense peak is high enough.
inline std::string other_format(const MfuDecoding& d, double rate) {
  for (const NamedPeak& peak : possible_peaks(d.claim.chip, d.claim.format)) {
    if (peak.rate > d.peak && peak.rate >= rate && peak.name.find("sparse") == std::string::npos) {
      return cat({"; of the ", peak.name, " peak, ", mfu_teraflops(peak.rate), ", it would be ",
                  mfu_percent(rate / peak.rate)});
    }
  }
  return "";
}

// What a chip must do is at most its peak, and seldom above the best matmul measured on it.
inline void check_claimed_rate(MfuDecoding& d, const std::string& what, double rate,
                               double rounding) {
  const std::string chip = d.claim.chip.name.empty() ? "the chip" : d.claim.chip.name;
  const double best = best_matmul_fraction(d.claim.chip, d.claim.format);
  if (rate * (1 - rounding) > d.peak) {
    mfu_remark(
        d, MfuVerdict::impossible,
        cat({what, ", ", mfu_teraflops(rate), " a chip, is above the ", name_of(d.claim.format),
             " peak of ", chip, ", ", mfu_teraflops(d.peak), other_format(d, rate)}));
  } else if (best > 0 && rate * (1 - rounding) > best * d.peak) {
    mfu_remark(d, MfuVerdict::suspicious,
               cat({what, ", ", mfu_teraflops(rate), " a chip, is above the best ",
                    name_of(d.claim.format), " matmul measured on ", chip, ", ", mfu_percent(best),
                    " of its peak"}));
  }
}

inline void check_needed(MfuDecoding& d) {
  const MatrixParameters p = matrix_parameters(d.claim.model);
  const bool training = d.claim.work == TokenWork::training;
  const double tokens = d.speeds[0].rate.value();
  d.needed = (training ? 6 : 2) * p.total() * tokens;
  check_claimed_rate(d, "what the matrices alone need", d.needed, d.speeds[0].rounding);
  if (training && d.claim.recompute == Recompute::full && d.verdict == MfuVerdict::possible) {
    check_claimed_rate(d, "what the matrices need with the layers computed again",
                       d.needed + 2 * (p.total() - p.head) * tokens, d.speeds[0].rounding);
  }
}

inline void check_printed(MfuDecoding& d) {
  const MfuClaim& c = d.claim;
  if (c.tflops_per_chip.stated) {
    check_claimed_rate(d, "the printed rate", c.tflops_per_chip.value * 1e12,
                       c.tflops_per_chip.relative());
  }
  for (const Printed* share : {&c.mfu, &c.hfu}) {
    if (share->stated && share->value - share->rounding > 1) {
      mfu_remark(d, MfuVerdict::impossible,
                 cat({share == &c.mfu ? "an MFU" : "an HFU", " of ", mfu_percent(share->value),
                      " is more than all of the peak"}));
    }
  }
  if (c.mfu.stated && c.hfu.stated && c.hfu.value + c.hfu.rounding < c.mfu.value - c.mfu.rounding) {
    mfu_remark(d, MfuVerdict::impossible,
               cat({"the HFU, ", mfu_percent(c.hfu.value), ", is below the MFU, ",
                    mfu_percent(c.mfu.value), "; it counts the same and what is computed again"}));
  }
}

// The rates of two conventions, one with recomputation: 4/3 for full. True where TFLOP/s of the one
// and the MFU of the other are both printed.
inline bool counted_differently(MfuDecoding& d, double of_peak, double share, double allowed) {
  double best = allowed;
  std::string nearest;
  for (const MfuRow& a : d.rows) {
    for (const MfuRow& b : d.rows) {
      const double gap = std::fabs(of_peak * b.flops.value() / a.flops.value() / share - 1);
      if (counts_recomputation(a.convention) && !counts_recomputation(b.convention) &&
          gap <= best) {
        best = gap;
        nearest = cat({"the TFLOP/s count what is computed again, as ", name_of(a.convention),
                       " does, the MFU does not, as ", name_of(b.convention)});
      }
    }
  }
  if (!nearest.empty()) {
    mfu_remark(d, MfuVerdict::possible, nearest);
  }
  return !nearest.empty();
}

// TFLOP/s / MFU must be a peak of the chip.
inline void check_share(MfuDecoding& d, const Printed& share, const char* name) {
  const Printed& rate = d.claim.tflops_per_chip;
  if (!rate.stated || !share.stated) {
    return;
  }
  const double digits = rate.relative() + share.relative() + 5e-4;  // peaks: three digits
  const double allowed = digits > near_enough ? digits : near_enough;
  const double implied = rate.value * 1e12 / share.value;
  if (std::fabs(implied / d.peak - 1) <= allowed) {
    return;
  }
  const List<NamedPeak> peaks = possible_peaks(d.claim.chip, d.claim.format);
  for (const NamedPeak& peak : peaks) {
    if (std::fabs(implied / peak.rate - 1) <= allowed) {
      mfu_remark(d, MfuVerdict::possible,
                 cat({"the printed ", name, " divides by the ", names_of_peak(peaks, peak.rate),
                      " peak, ", mfu_teraflops(peak.rate), ", not by the ", name_of(d.claim.format),
                      " peak, ", mfu_teraflops(d.peak)}));
      return;
    }
  }
  const double of_peak = rate.value * 1e12 / d.peak;
  if (share.value < of_peak && counted_differently(d, of_peak, share.value, allowed)) {
    return;
  }
  mfu_remark(
      d, MfuVerdict::impossible,
      cat({"the printed numbers disagree: ", rate.value, " TFLOP/s is ", mfu_percent(of_peak),
           " of the ", name_of(d.claim.format), " peak, ", mfu_teraflops(d.peak), "; an ", name,
           " of ", mfu_percent(share.value), " is ", mfu_teraflops(share.value * d.peak)}));
}

// What else would give back the printed rate: chips counted by cores, a forward pass for a step.
inline std::string factor_hint(const MfuDecoding& d, const MfuMatch& match) {
  static const struct {
    double factor;
    const char* meaning;
  } factors[] = {{2, "as of half as many chips"},
                 {0.5, "as of twice as many chips"},
                 {1.0 / 3, "as of the forward pass alone"}};
  for (const auto& each : factors) {
    for (const MfuRow& row : d.rows) {
      const double gap = row.rate.value() * each.factor / match.rate - 1;
      if (std::fabs(gap) <= (match.rounding > 1e-3 ? match.rounding : 1e-3)) {
        return cat({"; ", each.meaning, " it is ", name_of(row.convention),
                    d.claim.chip.kind == "tpu" && each.factor != 1.0 / 3
                        ? " (slices of TPU v2, v3, v4 and v5p are named by cores, two a chip)"
                        : ""});
      }
    }
  }
  return "";
}

// An HFU between nothing and everything computed again names no convention: sources choose what.
inline bool partly_again(MfuDecoding& d, const MfuMatch& match) {
  const double extra = 3 * (match.rate / d.row(FlopsConvention::exact_full).rate.value() - 1);
  if (extra < 0 || extra > 1) {
    return false;
  }
  mfu_remark(d, MfuVerdict::possible,
             cat({match.printed, " is as if ", mfu_percent(extra),
                  " of the forward pass were computed again"}));
  return true;
}

inline void check_match(MfuDecoding& d, const MfuMatch& match) {
  const std::string own = name_of(d.claim.format);
  if (match.none()) {
    if (match.hardware && d.claim.work == TokenWork::training && partly_again(d, match)) {
      return;
    }
    mfu_remark(
        d, MfuVerdict::suspicious,
        cat({"no convention gives ", match.printed, ": the nearest, ", name_of(match.closest),
             ", is ", mfu_percent(match.gap), " off", factor_hint(d, match)}));
    return;
  }
  const FlopsConvention used = match.best()[0];
  if (!match.peak.empty() && match.peak != own) {
    mfu_remark(d, MfuVerdict::possible,
               cat({match.printed, " is of the ", match.peak, " peak, not of ", own}));
  }
  if (!match.peak.empty() && !match.hardware && counts_recomputation(used)) {
    mfu_remark(
        d, MfuVerdict::possible,
        cat({match.printed, " counts what is computed again (", name_of(used), "): it is an HFU"}));
  }
}

inline void check_speeds(MfuDecoding& d) {
  const ClaimSpeed& first = d.speeds[0];
  for (const ClaimSpeed& other : d.speeds) {
    const double gap = other.rate.value() / first.rate.value() - 1;
    const double digits = first.rounding + other.rounding;
    if (std::fabs(gap) > digits + 1e-12) {
      mfu_remark(
          d, std::fabs(gap) > near_enough ? MfuVerdict::suspicious : MfuVerdict::possible,
          cat({"the ", other.what, " and the ", first.what, " are ", mfu_percent(std::fabs(gap)),
               " apart, more than their digits allow: ", printed('g', 6, other.rate.value()),
               " and ", printed('g', 6, first.rate.value()), " tokens/s a chip"}));
    }
  }
}

inline void check_slice(MfuDecoding& d) {
  if (d.claim.slice.empty()) {
    return;
  }
  const TpuSlice slice = tpu_slice(d.claim.slice);
  if (slice.chips != d.claim.chips) {
    const bool cores = slice.named == d.claim.chips;
    mfu_remark(d, MfuVerdict::suspicious,
               cat({d.claim.slice, " has ", slice.chips, " chips, the claim counts ", d.claim.chips,
                    cores ? ": the name counts cores, two a chip" : ""}));
  }
  if (slice.chip != d.claim.chip.name) {
    mfu_remark(
        d, MfuVerdict::suspicious,
        cat({d.claim.slice, " is of ", slice.chip, ", the claim's chip is ", d.claim.chip.name}));
  }
}

inline std::string mfu_join(const List<FlopsConvention>& conventions) {
  std::string out;
  for (const FlopsConvention convention : conventions) {
    out += (out.empty() ? "" : "; ") + std::string(name_of(convention));
  }
  return out;
}

}  // namespace detail

// What a claim is worth; throws what it lacks or what in it cannot be a number of a run.
inline MfuDecoding decode_mfu(const MfuClaim& given) {
  MfuDecoding out;
  out.claim = detail::checked_claim(given);
  const MfuClaim& claim = out.claim;
  out.peak = claim.chip.peak(claim.format);
  out.speeds = detail::claim_speeds(claim);
  out.speed_stated = !out.speeds.empty();
  const List<detail::PrintedRate> printed = detail::printed_rates(claim, out.peak);
  const Quantity tokens = out.speed_stated ? out.speeds[0].rate : Quantity(0.0);
  out.rows = detail::convention_rows(claim, out.peak, tokens,
                                     printed.empty() ? Quantity(0.0) : printed[0].rate);
  if (out.speed_stated) {
    const List<detail::NamedPeak> peaks = detail::possible_peaks(claim.chip, claim.format);
    for (const detail::PrintedRate& rate : printed) {
      out.matches.push_back(
          detail::match_with_peaks(rate, peaks, out.rows, out.speeds[0].rounding));
    }
    detail::check_needed(out);
    detail::check_speeds(out);
  }
  detail::check_slice(out);
  detail::check_printed(out);
  bool all = out.speed_stated;  // every printed rate is some convention's: they agree by that
  for (const MfuMatch& match : out.matches) {
    detail::check_match(out, match);
    all = all && !match.none();
  }
  if (!all) {
    detail::check_share(out, claim.mfu, "MFU");
    detail::check_share(out, claim.hfu, "HFU");
  }
  return out;
}

inline const MfuRow& MfuDecoding::row(FlopsConvention convention) const {
  for (const MfuRow& each : rows) {
    if (each.convention == convention) {
      return each;
    }
  }
  std::string names;
  for (const MfuRow& each : rows) {
    names += (names.empty() ? "" : "; ") + std::string(name_of(each.convention));
  }
  detail::fail({"MfuDecoding::row: ", name_of(convention), " is not of this claim of ",
                claim.model.name, "; right is one of: ", names});
}

namespace detail {

// 0 within the digits or their unit, 1 within 0.5 %, 2 not.
inline int match_tier(const MfuMatch& match, FlopsConvention convention) {
  const List<FlopsConvention>* const tiers[] = {&match.within, &match.cut, &match.about};
  for (int i = 0; i < 3; ++i) {
    for (const FlopsConvention each : *tiers[i]) {
      if (each == convention) {
        return i == 2 ? 1 : 0;
      }
    }
  }
  return 2;
}

}  // namespace detail

inline List<FlopsConvention> MfuDecoding::used() const {
  List<FlopsConvention> best;
  if (matches.empty()) {
    return best;
  }
  const bool both = claim.tflops_per_chip.stated && claim.mfu.stated;
  std::vector<double> gaps;
  int least = 2;
  for (const MfuRow& each : rows) {
    int worst = 0;
    double gap = 0;
    for (std::size_t i = 0; i < (both ? 2U : 1U); ++i) {
      const int tier = detail::match_tier(matches[i], each.convention);
      worst = tier > worst ? tier : worst;
      gap += std::fabs(each.rate.value() / matches[i].rate - 1) / (matches[i].rounding + 1e-9);
    }
    if (worst < least) {
      least = worst;
      best.clear();
      gaps.clear();
    }
    if (worst == least && worst < 2) {
      detail::insert_by_gap(best, gaps, each.convention, gap);
    }
  }
  return best.empty() ? matches[0].best() : best;
}

inline std::string MfuDecoding::explain() const {
  if (rows.empty()) {
    detail::fail({"MfuDecoding::explain: an empty decoding; decode_mfu(claim) makes one"});
  }
  const List<FlopsConvention> named_ones = used();
  return explain(named_ones.empty() ? rows[0].convention : named_ones[0]);
}

inline Table MfuDecoding::table() const {
  Table out;
  out.title = detail::cat(
      {claim.model.name, " on ", claim.chips > 0 ? format_count(claim.chips) + " x " : "",
       claim.chip.name, ", ", name_of(claim.format), " peak ", detail::mfu_teraflops(peak),
       ", context ", claim.context, ", by formula"});
  out.columns = {"convention",      "counts",         "GFLOPs a token",
                 "tokens/s a chip", "TFLOP/s a chip", "of the peak"};
  for (const MfuMatch& match : matches) {
    out.columns.push_back("off " + match.printed);
  }
  const char* const kinds[] = {"model", "hardware"};
  for (const MfuRow& row : rows) {
    std::vector<Cell> cells = {name_of(row.convention),
                               kinds[counts_recomputation(row.convention) ? 1 : 0],
                               detail::number_cell('g', 5, row.flops.value() / 1e9),
                               detail::number_cell('g', 5, row.tokens.value()),
                               detail::number_cell('g', 5, row.rate.value() / 1e12),
                               format_percent(row.utilisation.value())};
    for (const MfuMatch& match : matches) {
      const double gap = 100 * (row.rate.value() / match.rate - 1);
      cells.push_back(detail::number_cell('f', 2, std::fabs(gap) < 0.005 ? 0 : gap, "%"));
    }
    out.add(cells);
  }
  return out;
}

inline Table MfuDecoding::data() const {
  Table out;
  out.title = table().title;
  out.columns = {"convention",
                 "counts",
                 "flops_per_token",
                 "tokens_per_second_per_chip",
                 "flops_per_second_per_chip",
                 "utilisation"};
  const char* const kinds[] = {"model", "hardware"};
  const auto number = [](const Quantity& q) { return detail::number_cell(q.value()); };
  for (const MfuRow& row : rows) {
    out.add({name_of(row.convention), kinds[counts_recomputation(row.convention) ? 1 : 0],
             number(row.flops), number(row.tokens), number(row.rate), number(row.utilisation)});
  }
  return out;
}

inline std::string MfuDecoding::text() const {
  std::string out = claim.source.empty() ? "" : claim.source + "\n";
  out += table().text();
  for (const MfuMatch& match : matches) {
    out += match.printed + ": " +
           (match.none() ? "no convention" : detail::mfu_join(match.best())) +
           (match.none()            ? ""
            : !match.within.empty() ? " (within the printed digits)"
            : !match.cut.empty()    ? " (with the digits after it cut off)"
                                    : " (within 0.5 %)");
    out += "\n";
  }
  if (matches.size() > 1 && !used().empty()) {
    out += "counted: " + detail::mfu_join(used()) + "\n";
  }
  if (speed_stated) {
    out += detail::cat({"needed for the matrices alone: ", detail::mfu_teraflops(needed),
                        " a chip, ", detail::mfu_percent(needed / peak), " of the peak\n"});
  } else {
    out += "no speed is stated: tokens/s are what the printed rate would be by each\n";
  }
  out += std::string("verdict: ") + name_of(verdict) + "\n";
  for (const std::string& each : remarks) {
    out += "  " + each + "\n";
  }
  return out;
}

inline std::string MfuDecoding::json() const {
  const auto list = [](const std::vector<std::string>& items) {
    std::string out;
    for (const std::string& item : items) {
      out += (out.empty() ? "\"" : ", \"") + json_escape(item) + "\"";
    }
    return "[" + out + "]";
  };
  std::vector<std::string> names;
  for (const FlopsConvention convention : used()) {
    names.push_back(name_of(convention));
  }
  return detail::cat({"{\"model\": \"", json_escape(claim.model.name), "\", \"chip\": \"",
                      json_escape(claim.chip.name), "\", \"chips\": ", claim.chips, ", \"peak\": ",
                      peak, ", \"needed\": ", needed, ", \"verdict\": \"", name_of(verdict),
                      "\",\n \"used\": ", list(names), ",\n \"remarks\": ", list(remarks),
                      ",\n \"conventions\": ", data().json(), "}\n"});
}

inline std::ostream& operator<<(std::ostream& out, const MfuDecoding& decoding) {
  return out << decoding.text();
}

}  // namespace tinyscale
