#pragma once
// algorithm = automatic: every algorithm that a collective has, with its closed form on the links
// at hand; the shortest is taken, and the reason says what the others would take.

#include <cstddef>
#include <cstdint>
#include <string>

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/mesh/collective_cost.hpp"

namespace tinyscale {

struct AlgorithmCandidate {
  Algorithm algorithm = Algorithm::ring;
  std::int64_t steps = 0;
  double seconds = 0;
  bool exact = true;  // else about: no closed form on these links
  bool fits = true;   // else its transfers are too many to be listed (make_schedule)
};

struct AlgorithmChoice {
  Algorithm algorithm = Algorithm::ring;
  double seconds = 0;
  List<AlgorithmCandidate> candidates;  // the shortest first; those that do not fit last
  std::string reason;  // "ring both ways: 4 steps, 12.3 us; ring 20 us, tree about 24 us"
};

namespace detail {

constexpr int most_at_once = 256;

// Equal times: the one that is exact, then with fewer steps, then the first of the enum.
inline bool shorter(const AlgorithmCandidate& a, const AlgorithmCandidate& b) {
  if (a.fits != b.fits) {
    return a.fits;
  }
  const double tie = 1e-12 * std::max(a.seconds, b.seconds);
  return a.seconds < b.seconds - tie ||
         (a.seconds <= b.seconds + tie && (a.exact != b.exact ? a.exact : a.steps < b.steps));
}

inline std::string taken(const AlgorithmCandidate& candidate) {
  return cat({candidate.exact ? "" : "about ", format_seconds(candidate.seconds),
              candidate.fits ? "" : " in too many transfers"});
}

// Along one part torus and hierarchical are its ring or line, and what has no closed form is left
// out but for all_to_all, to which all at once is a good way on a line as well. Across dimensions
// all are estimates. Along several parts estimates are compared as well of what goes part by part,
// in a tree or to all at once, but not of more messages than a port could have under way: a permute
// has one a device. A barrier of all with all would be one latency here, as messages without bytes
// are free.
inline bool worth_a_look(const CollectiveSpec& spec, const List<AxisPart>& parts,
                         const CollectiveCost& cost) {
  const Algorithm how = spec.algorithm;
  const bool by_axis = how == Algorithm::torus || how == Algorithm::hierarchical;
  const bool direct = how == Algorithm::direct;
  if (spec.what == Collective::barrier && direct) {
    return false;
  }
  const bool at_once =
      direct && (spec.devices() <= most_at_once || spec.what == Collective::permute);
  if (parts.size() == 1 && parts[0].across()) {
    return direct ? at_once : !by_axis;
  }
  if (parts.size() < 2) {
    return parts.empty() || (cost.known && !by_axis) ||
           (at_once && spec.what == Collective::all_to_all && parts[0].kind == AxisKind::line &&
            parts[0].size > 2);
  }
  return by_axis || cost.known || how == Algorithm::tree || at_once;
}

}  // namespace detail

// The algorithm for `spec`, whose own is not looked at.
inline AlgorithmChoice choose_algorithm(CollectiveSpec spec) {
  AlgorithmChoice choice;
  const List<AxisPart> parts = detail::real_parts(spec);
  for (int i = 1; i < static_cast<int>(Algorithm::custom); ++i) {
    spec.algorithm = static_cast<Algorithm>(i);
    if (!detail::has_algorithm(spec.what, spec.algorithm)) {
      continue;
    }
    const detail::CollectiveCost cost = detail::checked_cost("choose_algorithm", spec);
    if (detail::worth_a_look(spec, parts, cost)) {
      choice.candidates.push_back(
          {spec.algorithm, cost.steps, cost.seconds, cost.known, detail::can_be_listed(spec)});
      AlgorithmCandidate* const all = choice.candidates.data();
      for (std::size_t at = choice.candidates.size() - 1;
           at > 0 && detail::shorter(all[at], all[at - 1]); --at) {
        const AlgorithmCandidate moved = all[at];
        all[at] = all[at - 1];
        all[at - 1] = moved;
      }
    }
  }
  if (choice.candidates.empty()) {
    detail::fail({"choose_algorithm: ", name_of(spec.what), " over ", spec.devices(),
                  " devices has no algorithm to estimate; name one, as Algorithm::direct"});
  }
  const AlgorithmCandidate& best = choice.candidates[0];
  choice.algorithm = best.algorithm;
  choice.seconds = best.seconds;
  if (parts.empty() || best.steps == 0) {
    choice.reason = "nothing to move";
    return choice;
  }
  choice.reason = detail::cat({name_of(best.algorithm), ": ", best.steps,
                               best.steps == 1 ? " step, " : " steps, ", detail::taken(best)});
  for (std::size_t i = 1; i < choice.candidates.size(); ++i) {
    choice.reason += detail::cat({i == 1 ? "; " : ", ", name_of(choice.candidates[i].algorithm),
                                  " ", detail::taken(choice.candidates[i])});
  }
  return choice;
}

}  // namespace tinyscale
