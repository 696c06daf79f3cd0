#pragma once
// A machine: chips at the points of a grid, and what joins those that differ in one coordinate.
// TPUs: links to both neighbours; which dimensions close to a ring (scaling book, chapter 2): v2,
// v5e, v6e only with all 16 chips, v3 with 32; v4, v5p, v7 when the slice is whole 4x4x4 cubes;
// {slices, X, Y, Z} are joined by the data-centre network. GPUs: a switch, {nodes, 8} and
// {scalable units, nodes, 8} by a fat tree (scaling book, chapter 12).

#include <algorithm>  // min
#include <cstddef>    // std::size_t
#include <cstdint>    // std::int64_t
#include <string>     // names
#include <vector>     // an order of dimensions

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/shape.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/hardware/chip.hpp"
#include "tinyscale/hardware/presets.hpp"
#include "tinyscale/measure/quantity.hpp"

namespace tinyscale {

// How the chips of a dimension are joined: neighbours in a row, that row closed, each by one port
// to a switch, or each to every other by a link of its own.
enum class AxisKind { line, ring, switched, full };

inline const char* name_of(AxisKind kind) {
  static const char* const names[] = {"line", "ring", "switched", "fully connected"};
  return detail::name_in("AxisKind", names, kind);
}

// What a link carries in a second, by either convention: 45 GB/s one way are 90 GB/s both ways.
class Bandwidth {
 public:
  Bandwidth() = default;  // none
  static Bandwidth one_way(double bytes_per_second) { return Bandwidth(bytes_per_second); }
  static Bandwidth both_ways(double bytes_per_second) { return Bandwidth(bytes_per_second / 2); }
  double one_way() const { return one_way_; }  // bytes/s
  double both_ways() const { return 2 * one_way_; }

 private:
  explicit Bandwidth(double rate) : one_way_(rate) {}
  double one_way_ = 0;
};

// Which of the two a number is: the scaling book's TPU formulas use both ways, its GPU formulas
// one.
enum class Convention { one_way, both_ways };

inline const char* name_of(Convention convention) {
  return convention == Convention::one_way ? "one way" : "both ways";
}

// A bandwidth in a formula: which convention it follows has to be said, and explain() prints it.
inline Quantity quantity_of(const Bandwidth& bandwidth, Convention convention,
                            const std::string& name = "W", const std::string& source = "") {
  const bool one = convention == Convention::one_way;
  return Quantity(one ? bandwidth.one_way() : bandwidth.both_ways(), "B/s", name,
                  (source.empty() ? "" : source + ", ") + name_of(convention));
}

// What joins the chips along one dimension.
struct Links {
  AxisKind kind = AxisKind::line;
  Bandwidth bandwidth;  // of a link, or of a chip's port to a switch; none at a switch: the way to
                        // it is through the switch of the next dimension (a spine above leaves)
  double latency = 0;   // seconds a hop; through a switch is one
  Bandwidth uplink;     // to a switch: all that the chips behind it share, which are those that
                        // differ in later dimensions only; none: as much as their ports
};

struct Machine {
  std::string name;
  Chip chip;
  Shape dims;                   // chips along each dimension, innermost last
  List<Links> links;            // along each dimension
  double dollars_per_hour = 0;  // for one chip; 0 is "not known"

  std::int64_t chips() const { return dims.count(); }
  // What a chip sends along a dimension, bytes/s: over both links of a ring (W of the scaling
  // book), one of a line (its ends have no second) or of a ring of two, its port, or the links to
  // all others.
  double egress(int dim) const;
};

// A row for each dimension.
inline std::ostream& operator<<(std::ostream& out, const Machine& machine) {
  Table table;
  table.title = detail::cat({machine.name, ": ", machine.chips(), " x ", machine.chip.name});
  table.columns = {"dimension", "chips", "kind", "latency", "one way"};
  for (std::size_t d = 0; d < machine.links.size(); ++d) {
    const Links& links = machine.links[d];
    table.add({std::to_string(d), std::to_string(machine.dims[static_cast<int>(d)]),
               name_of(links.kind), format_seconds(links.latency),
               links.bandwidth.one_way() > 0 ? format_si(links.bandwidth.one_way(), "B/s") : "-"});
  }
  return out << table;
}

namespace detail {

// Of a ring: two chips have just the link between them.
inline bool goes_around(std::int64_t chips) { return chips > 2; }

inline std::size_t machine_dim(const Machine& machine, int dim) {
  if (dim < 0 || dim >= machine.dims.size()) {
    fail({"Machine: dimension ", dim, " of ", machine.name, "; its dimensions are 0 to ",
          machine.dims.size() - 1});
  }
  return static_cast<std::size_t>(dim);
}

inline bool is_torus3d(const Chip& chip) { return chip.topology == "torus3d"; }

inline bool is_torus2d(const Chip& chip) { return chip.topology == "torus2d"; }

// Dimensions inside a slice, a node or a box; those before them are the network between.
inline int inner_dims(const Chip& chip, const Shape& dims) {
  const int most = is_torus3d(chip) ? 3 : chip.kind == "gpu" ? 1 : 2;
  return std::min(most, dims.size());
}

// The dimension whose ports lead to the switch of dimension d: d, or below a spine its leaf.
inline int port_dim(const Machine& machine, int d) {
  int port = d;
  while (port + 1 < machine.dims.size() &&
         !(machine.links[static_cast<std::size_t>(port)].bandwidth.one_way() > 0)) {
    ++port;
  }
  return port;
}

// Chips that differ in dimensions after d only: those behind an uplink of d.
inline std::int64_t chips_behind(const Machine& machine, int d) {
  std::int64_t chips = 1;
  for (int i = d + 1; i < machine.dims.size(); ++i) {
    chips *= machine.dims[i];
  }
  return chips;
}

// What a chip gets of a link, or of its port and the uplinks above it when all send at once.
inline double share_of_links(const Machine& machine, int d) {
  const int port = port_dim(machine, d);
  double rate = machine.links[static_cast<std::size_t>(port)].bandwidth.one_way();
  for (int level = d; level <= port; ++level) {
    const double uplink = machine.links[static_cast<std::size_t>(level)].uplink.one_way();
    if (uplink > 0) {
      rate = std::min(rate, uplink / static_cast<double>(chips_behind(machine, level)));
    }
  }
  return rate;
}

// Chips along a full axis of a 2D torus.
inline std::int64_t full_axis(const Chip& chip) { return chip.wrap == "full axis 32" ? 32 : 16; }

// A 2D slice's axes of full length close, or whole cubes joined by optical switches.
inline bool closes(const Chip& chip, const Shape& dims, int d) {
  const int first = dims.size() - inner_dims(chip, dims);
  if (is_torus2d(chip)) {
    return dims[d] == full_axis(chip);
  }
  bool cubes = dims.size() - first == 3;
  for (int i = first; i < dims.size(); ++i) {
    cubes = cubes && dims[i] % 4 == 0;
  }
  return cubes;
}

// Inside a slice, node or box. CPU cores: a copy through shared memory reads and writes.
inline Links inner_links(const Chip& chip, const Shape& dims, int d) {
  Links links;
  const double all = chip.links * chip.link_bandwidth;
  if (is_torus3d(chip) || is_torus2d(chip)) {
    links.kind = closes(chip, dims, d) ? AxisKind::ring : AxisKind::line;
    links.bandwidth = Bandwidth::one_way(chip.link_bandwidth);
  } else if (chip.topology == "switch") {
    links.kind = AxisKind::switched;
    links.bandwidth = Bandwidth::one_way(all);
  } else if (chip.kind == "gpu") {  // a pair has all links between the two
    links.kind = AxisKind::full;
    links.bandwidth = Bandwidth::one_way(chip.domain_chips == 2 ? all : chip.link_bandwidth);
  } else if (chip.kind == "cpu") {
    links.kind = AxisKind::switched;
    links.bandwidth = Bandwidth::one_way(chip.memory_bandwidth / 2);
  } else {  // every chip a box of its own
    links.kind = chip.kind == "wafer" ? AxisKind::switched : AxisKind::line;
    links.bandwidth =
        Bandwidth::one_way(chip.kind == "wafer" ? chip.dcn_bandwidth : chip.link_bandwidth);
  }
  return links;
}

// Between slices or nodes: each chip's share of the network ports, with GPUs the leaf of a fat tree
// and above it the spine, nothing oversubscribed.
inline Links outer_links(const Machine& on, int d) {
  Links links;
  links.kind = AxisKind::switched;
  const bool spine = on.dims.size() - d > inner_dims(on.chip, on.dims) + 1;
  const double share = on.chip.dcn_bandwidth;
  links.bandwidth = Bandwidth::one_way(spine ? 0 : share);
  if (on.chip.kind == "gpu") {
    links.uplink = Bandwidth::one_way(share * static_cast<double>(chips_behind(on, d)));
  }
  return links;
}

inline std::string machine_name(const Chip& chip, const Shape& dims) {
  std::string name = (chip.name.empty() ? "unnamed chip" : chip.name) + " ";
  for (int i = 0; i < dims.size(); ++i) {
    name += cat({i == 0 ? "" : "x", dims[i]});
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
  const bool torus = is_torus3d(chip) || is_torus2d(chip);
  const int most = is_torus3d(chip) ? 4 : torus || chip.kind == "gpu" ? 3 : 2;
  if (dims.size() > most) {
    fail({"machine: ", chip.name, " ", dims, " has ", dims.size(), " dimensions; its network has ",
          most, torus ? ", the first of them slices" : ""});
  }
  std::int64_t slice = 1;  // chips
  for (int i = dims.size() - inner_dims(chip, dims); i < dims.size(); ++i) {
    slice *= dims[i];
  }
  if (chip.kind == "tpu" && slice > chip.domain_chips) {
    fail({"machine: ", chip.name, " ", dims, " is ", slice, " chips; a pod has ",
          chip.domain_chips});
  }
  const std::int64_t axis = full_axis(chip);
  const bool square = chip.domain_chips == axis * axis;  // all chips of the pod
  if (is_torus2d(chip) && square && dims.size() > 1 && std::min(dims[-1], dims[-2]) > 1 &&
      std::max(dims[-1], dims[-2]) > axis) {
    fail({"machine: ", chip.name, " ", dims, " has no place in a pod of ", axis, "x", axis,
          "; at most ", axis, " chips along each of two dimensions are right"});
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
          " bytes/s one way; a finite number above 0 is right, as a chip's link_bandwidth, ",
          "between nodes its dcn_bandwidth"});
  }
}

// What a simulation reads of a machine, which a user may have filled by hand.
inline void check_network(const char* function, const Machine& machine) {
  const std::size_t dims = static_cast<std::size_t>(machine.dims.size());
  if (dims == 0) {
    fail({function, ": the machine ", machine.name, machine.name.empty() ? "" : " ",
          "has no dimensions; machine(\"tpu-v5e\", {4, 2}) has, or give its dims and links"});
  }
  if (machine.links.size() != dims) {
    fail({function, ": ", machine.name, " ", machine.dims, " has links along ",
          machine.links.size(), " dimensions; one Links for every dimension is right"});
  }
  for (std::size_t i = 0; i < dims; ++i) {
    const Links& links = machine.links[i];
    name_of(links.kind);  // refuses what is none
    if (!(links.latency >= 0) || !is_finite(links.latency)) {
      fail({function, ": ", machine.name, ": the latency of links[", i, "] is ", links.latency,
            " s; a finite number from 0 is right"});
    }
    const bool spine = links.kind == AxisKind::switched && i + 1 < dims &&
                       machine.links[i + 1].kind == AxisKind::switched;
    if (machine.dims[static_cast<int>(i)] > 1 && (!spine || links.bandwidth.one_way() != 0)) {
      check_rate(function, machine, cat({"the bandwidth of links[", i, "]"}),
                 links.bandwidth.one_way());
    }
    if (links.uplink.one_way() != 0) {
      if (links.kind != AxisKind::switched) {
        fail({function, ": ", machine.name, ": links[", i, "] is a ", name_of(links.kind),
              " with an uplink; only what is behind a switch has one"});
      }
      check_rate(function, machine, cat({"the uplink of links[", i, "]"}), links.uplink.one_way());
    }
  }
}

}  // namespace detail

inline double Machine::egress(int dim) const {
  const Links& along = links[detail::machine_dim(*this, dim)];
  switch (along.kind) {
    case AxisKind::ring:
      return detail::goes_around(dims[dim]) ? along.bandwidth.both_ways()
                                            : along.bandwidth.one_way();
    case AxisKind::full: return along.bandwidth.one_way() * static_cast<double>(dims[dim] - 1);
    case AxisKind::switched: return detail::share_of_links(*this, dim);
    default: return along.bandwidth.one_way();
  }
}

// A machine of this chip, which may be the user's own; where no latency is known a hop takes 1 us.
inline Machine machine(const Chip& chip, Shape dims) {
  detail::check_machine(chip, dims);
  Machine result;
  result.name = detail::machine_name(chip, dims);
  result.chip = chip;
  result.dims = dims;
  for (int d = 0; d < dims.size(); ++d) {
    const bool inner = dims.size() - d <= detail::inner_dims(chip, dims);
    Links links = inner ? detail::inner_links(chip, dims, d) : detail::outer_links(result, d);
    links.latency = chip.hop_latency > 0 ? chip.hop_latency : 1e-6;
    result.links.push_back(links);
  }
  result.dollars_per_hour = chip.dollars_per_hour;
  detail::check_network("machine", result);
  return result;
}

// A machine of a preset: machine("tpu-v5e", {4, 2}), machine("h100", {nodes, 8}),
// machine("h100", {scalable units, nodes, 8}), machine("gb200", {72}),
// machine("tpu-v5p", {slices, 16, 20, 28}).
inline Machine machine(const std::string& chip_name, Shape dims) {
  return machine(chip(chip_name), dims);
}

// The same chips with the dimensions in another order, {2, 0, 1}: the last first. Axes of a mesh
// cover dimensions in their order, so this is how to lay them otherwise.
inline Machine reordered(const Machine& machine, const std::vector<int>& dims) {
  Machine result = machine;
  result.dims = Shape();
  result.links.clear();
  std::vector<int> used(static_cast<std::size_t>(machine.dims.size()), 0);
  for (const int d : dims) {
    const std::size_t from = detail::machine_dim(machine, d);
    if (used[from]++ > 0) {
      detail::fail({"reordered: dimension ", d, " of ", machine.name, " twice; once is right"});
    }
    if (machine.links[from].uplink.one_way() > 0 && d != result.dims.size()) {
      detail::fail({"reordered: dimension ", d, " of ", machine.name,
                    " has an uplink of the chips behind it; it must stay at its place"});
    }
    result.dims.push_back(machine.dims[d]);
    result.links.push_back(machine.links[from]);
  }
  if (dims.size() != used.size()) {
    detail::fail({"reordered: ", dims.size(), " of the ", used.size(), " dimensions of ",
                  machine.name, "; each once is right"});
  }
  if (machine.name == detail::machine_name(machine.chip, machine.dims)) {
    result.name = detail::machine_name(machine.chip, result.dims);
  }
  return result;
}

}  // namespace tinyscale
