#pragma once
// Named mesh axes and where they lie on the machine.
// Axes map onto the machine's dimensions in order: rank and chip number are the same row-major
// count. An axis that is exactly one dimension of at least 3 chips that closes is a ring; any other
// is a line.

#include <algorithm>  // find
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/shape.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/hardware/network.hpp"
#include "tinyscale/mesh/collective_cost.hpp"

namespace tinyscale {

struct MeshAxis {
  std::string name;
  Dim size;
};

// One axis "x" or several {"x", "y"}, the first the slowest: block (ix, iy) is number ix * Y + iy.
struct Axes {
  std::vector<std::string> names;

  Axes(const char* name) : names(1, name) {}
  Axes(const std::string& name) : names(1, name) {}
  Axes(std::initializer_list<std::string> list) : names(list) {}
  Axes(const std::vector<std::string>& list) : names(list) {}
};

// Whether collectives on a ring use its links one way or both ways.
enum class Ring { one_way, both_ways };

struct AxisPlacement {
  std::string name;
  int size = 1;
  int stride = 1;  // from one device of the axis to the next, in ranks
  int dim = -1;    // the machine's dimension that the axis is; -1: part of one, or several
  AxisKind kind = AxisKind::line;
  LinkSpeed link;  // of the slowest dimension when there are several
};

namespace detail {

inline std::string axis_names(const List<MeshAxis>& axes) {
  std::string out;
  for (const MeshAxis& axis : axes) {
    out += (out.empty() ? "" : ", ") + axis.name;
  }
  return out;
}

inline void check_axes(const Machine& machine, const List<MeshAxis>& axes) {
  check_network("Mesh", machine);
  if (axes.empty()) {
    detail::fail({"Mesh: no axes; give a name and a size for each, as {{\"x\", 4}, {\"y\", 2}}"});
  }
  Shape sizes;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const MeshAxis& axis = axes[i];
    if (axis.name.empty()) {
      fail({"Mesh: axis ", i, " has no name; give every axis one, as \"x\""});
    }
    if (axis.size.value < 1) {
      fail({"Mesh: axis ", axis.name, " has ", axis.size.value,
            " devices; every axis needs at least 1"});
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (axes[j].name == axis.name) {
        fail({"Mesh: two axes are named ", axis.name, "; names must differ"});
      }
    }
    sizes.push_back(axis.size);
  }
  if (sizes.count() != machine.chips()) {
    fail({"Mesh: axes ", axis_names(axes), " of sizes ", sizes, " are ", sizes.count(),
          " devices, machine ", machine.name, " has ", machine.chips(),
          " chips; they must be equal"});
  }
  if (machine.chips() > std::numeric_limits<int>::max()) {
    fail({"Mesh: ", machine.chips(), " devices; at most 2147483647"});
  }
}

// The machine's dimension that an axis is, or -1.
inline int dim_of_axis(const Machine& machine, std::int64_t chips_before, std::int64_t size) {
  std::int64_t before = 1;
  for (int d = 0; d < machine.dims.size(); ++d) {
    if (before == chips_before && machine.dims[d] == size) {
      return d;
    }
    before *= machine.dims[d];
  }
  return -1;
}

inline LinkSpeed link_of_dim(const Machine& machine, int dim) {
  LinkSpeed link = {machine.link_latency, machine.link_bandwidth, is_switched(machine.chip)};
  if (dim >= 0) {
    link.bandwidth = machine.axis_bandwidth(dim);
  }
  for (int d = 0; dim < 0 && d < machine.dims.size(); ++d) {
    if (machine.dims[d] > 1) {
      link.bandwidth = std::min(link.bandwidth, machine.axis_bandwidth(d));
    }
  }
  return link;
}

// Whether a dimension's ends are joined; two chips have just the link between them.
inline bool closes(const Machine& machine, int dim) {
  return machine.wraps[static_cast<std::size_t>(dim)] != 0 && machine.dims[dim] > 2;
}

inline List<AxisPlacement> place_axes(const Machine& machine, const List<MeshAxis>& axes,
                                      Ring ring) {
  List<AxisPlacement> placed;
  std::int64_t before = 1;
  for (const MeshAxis& axis : axes) {
    AxisPlacement place;
    place.name = axis.name;
    place.size = static_cast<int>(axis.size.value);
    place.dim = dim_of_axis(machine, before, axis.size.value);
    if (place.dim >= 0 && closes(machine, place.dim)) {
      place.kind = ring == Ring::one_way ? AxisKind::ring : AxisKind::ring_both_ways;
    }
    place.link = link_of_dim(machine, place.dim);
    before *= axis.size.value;
    place.stride = static_cast<int>(machine.chips() / before);
    placed.push_back(place);
  }
  return placed;
}

}  // namespace detail

// Which axis is a ring and which a line.
struct MeshPlacement {
  std::string machine;
  List<AxisPlacement> axes;

  Table table() const {
    Table out;
    out.title = "mesh on " + machine;
    out.columns = {"axis", "devices", "kind", "dimension", "link one way"};
    for (const AxisPlacement& axis : axes) {
      const std::string dim = axis.dim < 0 ? "part or several" : std::to_string(axis.dim);
      out.add({axis.name, std::to_string(axis.size), name_of(axis.kind), dim,
               format_si(axis.link.bandwidth, "B/s")});
    }
    return out;
  }
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
};

inline std::ostream& operator<<(std::ostream& out, const MeshPlacement& placement) {
  return out << placement.table();
}

}  // namespace tinyscale
