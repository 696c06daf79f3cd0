#pragma once
// Where the tokens of a device stand whose sequences are cut over several, and whose keys they see.

#include <algorithm>  // max, min
#include <cstdint>    // int64_t
#include <vector>     // vector

#include "tinyscale/base/error.hpp"
#include "tinyscale/tensor/attend.hpp"

namespace tinyscale {

enum class ContextParallel { ring, ulysses, gathered };

inline const char* name_of(ContextParallel kind) {
  static const char* const names[] = {"ring", "ulysses", "gathered"};
  return detail::name_in("ContextParallel", names, kind);
}

// The tokens of device `index`, sequence_length / devices of them. Ring and gathered: zigzag, of 2N
// chunks those numbered index and 2N - 1 - index, so that causal work is even; Ulysses, whose
// devices see whole sequences: one stretch.
inline TokenPlaces context_places(ContextParallel kind, int index, int devices,
                                  std::int64_t sequence_length) {
  const bool zigzag = kind != ContextParallel::ulysses;
  const std::int64_t chunks = std::int64_t{devices} * (zigzag ? 2 : 1);
  if (index < 0 || index >= devices || sequence_length < 1 ||
      (devices > 1 && sequence_length % chunks != 0)) {
    detail::fail({"context_places: device ", index, " of ", devices, ", sequences of ",
                  sequence_length, " tokens by ", name_of(kind), "; right is a device of 0 to ",
                  devices - 1, " and a multiple of ", devices > 1 ? chunks : 1, " tokens",
                  zigzag ? " (two chunks a device)" : ""});
  }
  const std::int64_t chunk = sequence_length / chunks, first = index * chunk;
  if (!zigzag || devices == 1) {
    return first;
  }
  return {first, chunk, (2 * (devices - 1 - index)) * chunk};
}

// The rounds of a ring in which keys come that somebody's queries see: in round r each device has
// those of the r-th before it. Causal; a window (0: none) of w tokens reaches the
//   K = floor((w - 2) / chunk) + 1    chunks before a query's own, none for w = 1,
// which of single stretches are on the K devices before, of a zigzag on K before and K behind.
inline std::vector<int> ring_rounds(bool zigzag, int devices, std::int64_t sequence_length,
                                    std::int64_t window = 0) {
  if (devices < 1 || sequence_length < 0 || window < 0) {
    detail::fail({"ring_rounds: ", devices, " devices, sequences of ", sequence_length,
                  " tokens, a window of ", window,
                  "; a device or more and a window of 0 (none) or more are right"});
  }
  const std::int64_t others = devices - 1;
  const std::int64_t chunk =
      std::max<std::int64_t>(1, sequence_length / devices / (zigzag ? 2 : 1));
  const std::int64_t reach = window == 0   ? others
                             : window == 1 ? 0
                                           : std::min(others, (window - 2) / chunk + 1);
  std::vector<int> rounds;
  for (int r = 0; r < devices; ++r) {
    if (r <= reach || (zigzag && devices - r <= reach)) {
      rounds.push_back(r);
    }
  }
  return rounds;
}

}  // namespace tinyscale
