#pragma once
// Where the tokens of a device stand whose sequences are cut over several.

#include <cstdint>  // int64_t

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

}  // namespace tinyscale
