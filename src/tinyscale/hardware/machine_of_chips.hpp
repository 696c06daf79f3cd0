#pragma once
// The machine that so many chips make, as they are offered: machine_of_chips("tpu-v5p", 8960).
//   3D torus  1, 2 (parts of a host), 4 .. 32 chips, above that whole 4x4x4 cubes; sides
//             nearest to a cube
//   2D torus  powers of two, sides nearest to a square
//   beyond a pod: {slices, sides}, the largest slices of 64 chips or more that divide the chips
//   GPUs      {chips} within a node, else {nodes, GPUs}, the largest nodes of whole hosts
// Source: Google's documents of the TPU generations; "How To Scale Your Model", chapters 2 and 12.

#include <algorithm>  // min
#include <cstdint>    // std::int64_t
#include <string>     // names

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/shape.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/hardware/network.hpp"

namespace tinyscale {
namespace detail {

inline bool is_power_of_two(std::int64_t n) { return n > 0 && (n & (n - 1)) == 0; }

// Three sides with that product, the longest as short as can be, ascending.
inline Shape nearest_cube(std::int64_t volume) {
  Shape best = {1, 1, volume};
  for (std::int64_t a = 1; a * a * a <= volume; ++a) {
    for (std::int64_t b = a; volume % a == 0 && a * b * b <= volume; ++b) {
      const std::int64_t c = volume / a / b;
      if (a * b * c == volume && (c < best[2] || (c == best[2] && a > best[0]))) {
        best = {a, b, c};
      }
    }
  }
  return best;
}

// The sides of a slice of a torus; empty where no such slice is offered.
inline Shape slice_sides(const Chip& chip, std::int64_t chips) {
  if (chips > chip.domain_chips || chips < 1) {
    return {};
  }
  if (is_torus3d(chip)) {
    if (chips < 64) {
      return is_power_of_two(chips) ? nearest_cube(chips) : Shape();
    }
    const Shape cubes = chips % 64 == 0 ? nearest_cube(chips / 64) : Shape();
    return cubes.size() == 0 ? cubes : Shape{4 * cubes[0], 4 * cubes[1], 4 * cubes[2]};
  }
  if (!is_power_of_two(chips)) {
    return {};
  }
  std::int64_t side = 1;
  while (side * side * 4 <= chips) {
    side *= 2;
  }
  return {side, chips / side};
}

// GPUs of a node: the largest number of whole hosts that a switch joins and that divides the chips.
inline std::int64_t node_chips(const Chip& chip, std::int64_t chips) {
  const std::int64_t host = std::min(chip.host_chips, chip.domain_chips);
  for (std::int64_t node = chip.domain_chips / host * host; node > 0; node -= host) {
    if (chips % node == 0) {
      return node;
    }
  }
  return 0;
}

// Empty where so many are not offered.
inline Shape offered_dims(const Chip& chip, std::int64_t chips) {
  if (chip.kind == "gpu") {
    const std::int64_t node = chips <= chip.domain_chips ? chips : node_chips(chip, chips);
    return node == 0 ? Shape() : node == chips ? Shape{chips} : Shape{chips / node, node};
  }
  if (!is_torus2d(chip) && !is_torus3d(chip)) {
    return {chips};
  }
  if (chips <= chip.domain_chips) {
    return slice_sides(chip, chips);
  }
  for (std::int64_t slices = 2; slices <= chips / 64; ++slices) {
    const Shape sides = chips % slices == 0 ? slice_sides(chip, chips / slices) : Shape();
    if (sides.size() > 0) {
      Shape dims = {slices};
      for (int d = 0; d < sides.size(); ++d) {
        dims.push_back(sides[d]);
      }
      return dims;
    }
  }
  return {};
}

// The next number from `chips` on, up or down, that is offered; 0 where there is none: slices of
// fewer than 64 chips are not joined.
inline std::int64_t offered_near(const Chip& chip, std::int64_t chips, int step) {
  std::int64_t n = chips + step;
  while (n > 1 && offered_dims(chip, n).size() == 0) {
    if (step > 0 && chip.kind != "gpu" && chip.domain_chips < 64 && n > chip.domain_chips) {
      return 0;
    }
    n += step;
  }
  return n;
}

inline void check_domain(const Chip& chip) {
  const bool gpu = chip.kind == "gpu", torus = is_torus2d(chip) || is_torus3d(chip);
  if ((gpu || torus) && (chip.domain_chips < 1 || (gpu && chip.host_chips < 1))) {
    fail({"machine_of_chips: ", chip.name, " has domain_chips ", chip.domain_chips, ", host_chips ",
          chip.host_chips, "; 1 or more of each is right"});
  }
}

}  // namespace detail

// Throws and names the next smaller and larger machine when so many are not offered; others have
// machine(chip, dims).
inline Machine machine_of_chips(const Chip& chip, std::int64_t chips) {
  if (chips < 1 || chips > 10000000) {
    detail::fail(
        {"machine_of_chips: ", chips, " chips of ", chip.name, "; 1 to 10000000 is right"});
  }
  detail::check_domain(chip);
  const Shape dims = detail::offered_dims(chip, chips);
  if (dims.size() == 0) {
    const std::int64_t above = detail::offered_near(chip, chips, 1);
    const std::string larger = above > 0 ? detail::cat({" and ", above}) : std::string();
    detail::fail({"machine_of_chips: ", chips, " chips of ", chip.name, " make no whole ",
                  chip.kind == "gpu"         ? "nodes"
                  : detail::is_torus3d(chip) ? "cubes of 4x4x4"
                                             : "slice",
                  above > 0 ? "; near are " : "; near is ", detail::offered_near(chip, chips, -1),
                  larger, ", or say the dimensions"});
  }
  return machine(chip, dims);
}
inline Machine machine_of_chips(const std::string& chip_name, std::int64_t chips) {
  return machine_of_chips(chip(chip_name), chips);
}

}  // namespace tinyscale
