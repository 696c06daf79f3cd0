#pragma once
// Well-known claims of chips, numbers, software and models, each reproduced or refuted here:
//   std::cout << claim("A1");   claims() lists them, claim_table() has every verdict.
// A claim whose figures are not ours to within an eighth is refuted, whatever was written of it.

#include <cmath>   // fabs
#include <string>  // ids
#include <vector>  // list

#include "chips.hpp"
#include "fusion.hpp"
#include "models.hpp"
#include "numerics.hpp"
#include "parallel.hpp"
#include "serving.hpp"
#include "software.hpp"

namespace tinyscale {
namespace detail {

struct ClaimEntry {
  const char *id, *title;
  ClaimReport (*make)();
};

inline const List<ClaimEntry>& claim_entries() {
  static const List<ClaimEntry> entries = {
      {"A1", "v5e against v4: serving for a dollar", &claim_serving_per_dollar},
      {"A2", "v5e against v4: latency", &claim_serving_latency},
      {"A3", "13 billion parameters on one v5e", &claim_models_that_fit},
      {"A4", "a beam of 32 on one v5e", &claim_beam_search},
      {"A5", "pod arithmetic", &claim_pods},
      {"A6", "A100 to H100: utilisation drops", &claim_a100_to_h100},
      {"A7", "Blackwell's NVLink domain", &claim_nvlink_domain},
      {"A8", "a wafer's SRAM", &claim_wafer_memory},
      {"A9", "systolic arrays and padding", &claim_systolic_padding},
      {"A10", "FLOPs for a dollar", &claim_flops_per_dollar},
      {"B1", "int8 at a small loss", &claim_int8},
      {"B2", "fp8 and its bounds", &claim_fp8},
      {"B3", "bf16 and master weights", &claim_master_weights},
      {"C1", "fusion and memory traffic", &claim_fusion},
      {"C2", "eager against graph", &claim_launches},
      {"C3", "operators and primitives", &claim_primitives},
      {"C4", "capture, guards, recompilation", &claim_capture},
      {"C5", "generated kernels", &claim_generated_code},
      {"C6", "tiles and traffic of a matmul", &claim_tiles},
      {"C7", "sharding and inserted collectives", &claim_sharding},
      {"C8", "ZeRO", &claim_zero},
      {"C9", "tensor and pipeline parallelism", &claim_megatron},
      {"D", "models", &claim_models},
      {"E", "what cannot be shown", &claim_unknown},
  };
  return entries;
}

inline char upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }

// A figure that is not the claim's refutes it.
inline void check_figures(ClaimReport& report) {
  for (const ClaimRow& row : report.rows) {
    const bool both = row.known() && !is_nan(row.claimed);
    if (both && std::fabs(row.ours - row.claimed) > std::fabs(row.claimed) / 8) {
      report.verdict = Verdict::refuted;
      report.when = cat({row.name, " is ", row.ours, ", the claim has ", row.claimed});
    }
  }
}

}  // namespace detail

// "A1  v5e against v4: serving for a dollar", and so on.
inline std::vector<std::string> claims() {
  std::vector<std::string> names;
  for (const detail::ClaimEntry& entry : detail::claim_entries()) {
    names.push_back(detail::cat({entry.id, "  ", entry.title}));
  }
  return names;
}

// The claim of that id, worked out now; an unknown id is an Error that lists near ones.
inline ClaimReport claim(const std::string& id) {
  std::string near, all;
  const char letter = id.empty() ? ' ' : detail::upper(id[0]);
  for (const detail::ClaimEntry& entry : detail::claim_entries()) {
    const std::string known = entry.id;
    if (letter == known[0] && id.substr(1) == known.substr(1)) {
      ClaimReport report = entry.make();
      report.id = entry.id;
      report.title = entry.title;
      detail::check_figures(report);
      return report;
    }
    all += (all.empty() ? "" : ", ") + known;
    const bool alike = letter == known[0] || (id.size() > 1 && id.substr(1) == known.substr(1));
    near += alike ? (near.empty() ? "" : ", ") + known : "";
  }
  detail::fail({"claim: no claim \"", id, "\"; ",
                near.empty() ? "there are " : "near: ", near.empty() ? all : near});
}

// Every claim with its verdict: works all of them out, about a second.
inline Table claim_table() {
  Table out;
  out.title = "well-known claims";
  out.columns = {"id", "title", "verdict", "when, or why"};
  for (const detail::ClaimEntry& entry : detail::claim_entries()) {
    const ClaimReport report = claim(entry.id);
    out.add({entry.id, entry.title, name_of(report.verdict), report.when});
  }
  return out;
}

}  // namespace tinyscale
