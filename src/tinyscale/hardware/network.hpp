#pragma once
// A machine: chips at the points of a grid, and the links along each dimension of it.
// Which dimensions close to a ring (scaling book, chapter 2): v2, v5e, v6e only with all 16 chips,
// v3 with 32; v4, v5p, v7 when the slice is whole 4x4x4 cubes; through a switch always.
// GPUs are {nodes, GPUs of a node}: along a dimension a GPU has two links, each of half its egress
// (into its node's switch, or of its share of the node's network ports), as a ring uses them.

#include <cstddef>  // std::size_t
#include <cstdint>  // std::int64_t
#include <string>   // names
#include <vector>   // one entry for each dimension

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/shape.hpp"
#include "tinyscale/hardware/chip.hpp"
#include "tinyscale/hardware/presets.hpp"

namespace tinyscale {

struct Machine {
  std::string name;
  Chip chip;
  Shape dims;                           // chips along each dimension, innermost last
  std::vector<int> wraps;               // 1 where the dimension is a ring, 0 where it is a line
  std::vector<double> axis_bandwidths;  // one link, one way, along each dimension: bytes/s
  double link_bandwidth = 0;            // the same along the innermost dimension
  double link_latency = 0;              // seconds for a hop
  double dollars_per_hour = 0;          // for one chip; 0 is "not known"

  std::int64_t chips() const { return dims.count(); }
  double axis_bandwidth(int dim) const;  // one link, one way: bytes/s
  double ring_bandwidth(int dim) const;  // what a chip sends along a dimension: bytes/s
};

namespace detail {

inline std::size_t machine_dim(const Machine& machine, int dim) {
  if (dim < 0 || dim >= machine.dims.size()) {
    fail({"Machine: dimension ", dim, " of ", machine.name, "; its dimensions are 0 to ",
          machine.dims.size() - 1});
  }
  return static_cast<std::size_t>(dim);
}

inline bool is_torus3d(const Chip& chip) { return chip.topology == "torus3d"; }

inline bool is_torus2d(const Chip& chip) { return chip.topology == "torus2d"; }

// Whether any two chips of a dimension are one hop apart.
inline bool is_switched(const Chip& chip) { return chip.kind == "gpu" || chip.kind == "cpu"; }

// Dimensions that close: the longest axis of a 2D slice, or whole cubes joined by optical switches.
inline std::vector<int> machine_wraps(const Chip& chip, const Shape& dims) {
  std::vector<int> wraps(static_cast<std::size_t>(dims.size()));
  bool cubes = dims.size() == 3;
  for (int i = 0; i < dims.size(); ++i) {
    cubes = cubes && dims[i] % 4 == 0;
  }
  const std::int64_t full = chip.wrap == "full axis 32" ? 32 : 16;
  for (int i = 0; i < dims.size(); ++i) {
    const bool closes = is_torus3d(chip)   ? cubes
                        : is_torus2d(chip) ? dims[i] == full
                                           : is_switched(chip);
    wraps[static_cast<std::size_t>(i)] = closes && dims[i] > 1 ? 1 : 0;
  }
  return wraps;
}

// GPUs: half the egress a link (a ring uses two). CPU cores: a copy through shared memory reads and
// writes. A wafer's neighbour is another system on the network.
inline std::vector<double> machine_bandwidths(const Chip& chip, const Shape& dims) {
  const int count = dims.size();
  std::vector<double> rates(static_cast<std::size_t>(count), chip.link_bandwidth);
  for (int i = 0; i < count; ++i) {
    double& rate = rates[static_cast<std::size_t>(i)];
    if (chip.kind == "gpu") {
      const bool inner = i == count - 1;
      rate = inner ? chip.links * chip.link_bandwidth / 2.0 : chip.dcn_bandwidth / 2.0;
    } else if (chip.kind == "cpu") {
      rate = chip.memory_bandwidth / 2.0;
    } else if (!(rate > 0)) {
      rate = chip.dcn_bandwidth;
    }
  }
  return rates;
}

inline std::string machine_name(const Chip& chip, const Shape& dims) {
  std::string name = (chip.name.empty() ? "unnamed chip" : chip.name) + " ";
  for (int i = 0; i < dims.size(); ++i) {
    name += cat(i == 0 ? "" : "x", dims[i]);
  }
  return name;
}

inline void check_machine(const Chip& chip, const Shape& dims) {
  if (dims.size() == 0) {
    fail({"machine: ", chip.name, " with no dimensions; give the chips along each, as {4, 2}"});
  }
  for (int i = 0; i < dims.size(); ++i) {
    if (dims[i] < 1) {
      fail({"machine: ", chip.name, " ", dims, ": every dimension needs at least one chip"});
    }
  }
  const int most = is_torus3d(chip) ? 3 : 2;
  if (dims.size() > most) {
    fail({"machine: ", chip.name, " ", dims, " has ", dims.size(), " dimensions; its network has ",
          most});
  }
  if (chip.kind == "tpu" && dims.count() > chip.domain_chips) {
    fail({"machine: ", chip.name, " ", dims, " is ", dims.count(), " chips; a pod has ",
          chip.domain_chips});
  }
  if (chip.kind == "gpu" && dims[-1] > chip.domain_chips) {
    fail({"machine: ", chip.name, " ", dims, ": the last dimension is a switch domain of at most ",
          chip.domain_chips, " GPUs; write {nodes, ", chip.domain_chips, "}"});
  }
}

inline void check_rate(const char* function, const Machine& machine, const std::string& what,
                       double value) {
  if (!(value > 0) || !is_finite(value)) {
    fail({function, ": ", machine.name, ": ", what, " is ", value,
          " bytes/s; a finite number above 0 is right, as a chip's link_bandwidth, ",
          "between nodes its dcn_bandwidth"});
  }
}

// What a simulation reads of a machine, which a user may have filled by hand.
inline void check_network(const char* function, const Machine& machine) {
  const std::size_t dims = static_cast<std::size_t>(machine.dims.size());
  if (machine.wraps.size() != dims || machine.axis_bandwidths.size() != dims) {
    fail({function, ": ", machine.name, " ", machine.dims, " has ", machine.wraps.size(),
          " wraps and ", machine.axis_bandwidths.size(),
          " axis_bandwidths; one of each for every dimension is right"});
  }
  if (!(machine.link_latency >= 0) || !is_finite(machine.link_latency)) {
    fail({function, ": ", machine.name, ": link_latency is ", machine.link_latency,
          " s; a finite number from 0 is right"});
  }
  for (std::size_t i = 0; i < dims; ++i) {
    if (machine.dims[static_cast<int>(i)] > 1) {
      check_rate(function, machine, cat("axis_bandwidths[", i, "]"), machine.axis_bandwidths[i]);
    }
  }
  if (machine.chips() > 1) {
    check_rate(function, machine, "link_bandwidth", machine.link_bandwidth);
  }
}

}  // namespace detail

inline double Machine::axis_bandwidth(int dim) const {
  return axis_bandwidths[detail::machine_dim(*this, dim)];
}

// Both links of a ring (W in the scaling book), one link of a line: its ends have no second.
inline double Machine::ring_bandwidth(int dim) const {
  const std::size_t i = detail::machine_dim(*this, dim);
  return axis_bandwidths[i] * (wraps[i] != 0 ? 2.0 : 1.0);
}

// A machine of this chip, which may be the user's own; where no latency is known a hop takes 1 us.
inline Machine machine(const Chip& chip, Shape dims) {
  detail::check_machine(chip, dims);
  Machine result;
  result.name = detail::machine_name(chip, dims);
  result.chip = chip;
  result.dims = dims;
  result.wraps = detail::machine_wraps(chip, dims);
  result.axis_bandwidths = detail::machine_bandwidths(chip, dims);
  result.link_bandwidth = result.axis_bandwidths.back();
  result.link_latency = chip.hop_latency > 0 ? chip.hop_latency : 1e-6;
  result.dollars_per_hour = chip.dollars_per_hour;
  detail::check_network("machine", result);
  return result;
}

// A machine of a preset: machine("tpu-v5e", {4, 2}), machine("h100", {nodes, 8}).
inline Machine machine(const std::string& chip_name, Shape dims) {
  return machine(chip(chip_name), dims);
}

}  // namespace tinyscale
