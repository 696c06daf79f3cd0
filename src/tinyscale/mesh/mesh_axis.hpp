#pragma once
// Named mesh axes and where they lie on the machine. The rule: axes and the machine's dimensions
// cover the same row-major count, so rank is chip number. An axis thus lies on a whole dimension,
// on a stretch of one, or on several; each stretch is a part. A dimension that closes is a ring for
// an axis that goes all around, even with the chips of other axes between; else it is a line.
// To lay axes otherwise, give the mesh the machine's dimensions in another order: reordered().

#include <algorithm>  // max, max_element, min
#include <cctype>     // isalnum
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
#include "tinyscale/mesh/collective_spec.hpp"
#include "tinyscale/mesh/route.hpp"

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

struct AxisPlacement {
  std::string name;
  int size = 1;
  int stride = 1;        // from one device of the axis to the next, in ranks
  List<AxisPart> parts;  // the slowest first; one at least
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
  if (axes.size() > static_cast<std::size_t>(Shape::max_dims)) {
    fail({"Mesh: ", axes.size(), " axes, ", axis_names(axes), "; at most ", Shape::max_dims});
  }
  Shape sizes;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const MeshAxis& axis = axes[i];
    if (axis.name.empty()) {
      fail({"Mesh: axis ", i, " has no name; give every axis one, as \"x\""});
    }
    for (const char c : axis.name) {
      if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_') {
        fail({"Mesh: axis ", axis.name, " has '", c,
              "' in its name; letters, digits and _ are right, as shardings are written I_x"});
      }
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

// `size` chips of dimension `dim`, from one to the next `spacing` chips.
inline AxisPart part_of_dim(const Machine& machine, int dim, std::int64_t size,
                            std::int64_t spacing) {
  const Links& links = machine.links[static_cast<std::size_t>(dim)];
  AxisPart part;
  part.size = static_cast<int>(size);
  part.dim = dim;
  part.kind = links.kind;
  part.latency = links.latency;
  part.bandwidth = share_of_links(machine, dim);
  part.port = links.kind == AxisKind::switched ? port_dim(machine, dim) : -1;
  const Links& port = machine.links[static_cast<std::size_t>(port_dim(machine, dim))];
  part.shared = part.bandwidth < port.bandwidth.one_way() * (1 - 1e-9);
  const bool neighbours = links.kind == AxisKind::line || links.kind == AxisKind::ring;
  part.spacing = neighbours || size == 1 ? static_cast<int>(spacing) : 1;
  if (links.kind == AxisKind::ring && (!goes_around(size) || size * spacing < machine.dims[dim])) {
    part.kind = AxisKind::line;
  }
  return part;
}

// An axis that cuts across dimensions: the slowest links stand for those it meets, which are of the
// dimensions that two devices of a group differ in.
inline AxisPart part_across(const Machine& machine, std::int64_t stride, int size) {
  AxisPart part;
  part.size = size;
  part.bandwidth = std::numeric_limits<double>::infinity();
  bool switched = true;
  std::int64_t step = machine.chips();  // of dimension d: from one chip to the next
  for (int d = 0; d < machine.dims.size(); ++d) {
    const std::int64_t end_of_dim = step;
    step /= machine.dims[d];
    if (machine.dims[d] > 1 && stride % end_of_dim != 0 && step % (stride * size) != 0) {
      const Links& links = machine.links[static_cast<std::size_t>(d)];
      switched = switched && links.kind == AxisKind::switched;
      part.latency = std::max(part.latency, links.latency);
      part.bandwidth = std::min(part.bandwidth, share_of_links(machine, d));
    }
  }
  part.kind = switched ? AxisKind::switched : AxisKind::line;
  return part;
}

// What messages of an axis across dimensions share, in place of the slowest links: of all its
// groups at once, each device to both neighbours, and each to all. Many are not counted, as every
// run asks for them: 31,744 take 45 ms without -O.
inline void count_across(const Machine& machine, std::int64_t stride, AxisPart& part) {
  if (machine.chips() * part.size > std::int64_t{1} << 14) {  // as along a line
    part.far_latency = (part.size - 1) * part.latency;
    part.all_bandwidth = part.bandwidth * 4 / part.size / part.size;
    return;
  }
  const MachineLinks links(machine);
  List<double> beside(links.count()), all(links.count());  // seconds a byte
  std::vector<std::size_t> crossed;
  double near_latency = 0;
  for (std::int64_t chip = 0; chip < machine.chips(); ++chip) {
    const std::int64_t place = chip / stride % part.size;
    for (std::int64_t other = 0; other < part.size; ++other) {
      if (other == place) {
        continue;
      }
      const bool neighbours = other == place + 1 || other == place - 1;
      double latency = 0;
      crossed.clear();
      links.hops(chip, chip + (other - place) * stride, latency, &crossed);
      part.far_latency = std::max(part.far_latency, latency);
      near_latency = neighbours ? std::max(near_latency, latency) : near_latency;
      for (const std::size_t link : crossed) {
        all[link] += 1 / links.bandwidth(link);
        beside[link] += neighbours ? 1 / links.bandwidth(link) : 0;
      }
    }
  }
  part.latency = near_latency;
  part.bandwidth = 1 / *std::max_element(beside.begin(), beside.end());
  part.all_bandwidth = 1 / *std::max_element(all.begin(), all.end());
}

// Puts a part behind others: to one that goes on where the last ends, or that has the same ports,
// such as leaf and spine, unless the upper switch is slower or takes another time, the last grows.
inline void push_part(const Machine& machine, const AxisPart& part, List<AxisPart>& parts) {
  if (part.size == 1) {
    return;
  }
  if (!parts.empty() && part.dim >= 0 && parts.back().dim >= 0) {
    AxisPart& last = parts.back();
    const bool switched = part.kind == AxisKind::switched && last.kind == AxisKind::switched;
    const int upper = std::min(last.dim, part.dim);
    const int lower = std::max(last.dim, part.dim);
    if (last.dim == part.dim &&
        (switched || part.kind == AxisKind::full || last.spacing == part.spacing * part.size)) {
      last = part_of_dim(machine, part.dim, std::int64_t{last.size} * part.size, part.spacing);
      return;
    }
    const bool as_fast = !(last.latency < part.latency || part.latency < last.latency);
    if (switched && as_fast && port_dim(machine, upper) == port_dim(machine, lower) &&
        share_of_links(machine, upper) >= share_of_links(machine, lower)) {
      last = part_of_dim(machine, upper, std::int64_t{last.size} * part.size, 1);
      return;
    }
  }
  parts.push_back(part);
}

// The stretches of dimensions that chips `stride` apart, `size` of them, lie on.
inline List<AxisPart> parts_of_stretch(const Machine& machine, std::int64_t stride, int size) {
  List<AxisPart> parts;
  std::int64_t step = machine.chips();  // of dimension d: from one chip to the next
  for (int d = 0; d < machine.dims.size(); ++d) {
    const std::int64_t end_of_dim = step;
    step = machine.dims[d] > 0 ? step / machine.dims[d] : step;
    const std::int64_t begin = std::max(stride, step);
    const std::int64_t end = std::min(stride * size, end_of_dim);
    if (end <= begin) {
      continue;
    }
    if (begin % stride != 0 || begin % step != 0 || end % begin != 0 || stride * size % end != 0 ||
        end_of_dim % end != 0) {
      return {part_across(machine, stride, size)};
    }
    push_part(machine, part_of_dim(machine, d, end / begin, begin / step), parts);
  }
  if (parts.empty()) {
    parts.push_back(AxisPart());  // one device
  }
  return parts;
}

inline List<AxisPlacement> place_axes(const Machine& machine, const List<MeshAxis>& axes) {
  List<AxisPlacement> placed;
  std::int64_t stride = machine.chips();
  for (const MeshAxis& axis : axes) {
    AxisPlacement place;
    place.name = axis.name;
    place.size = static_cast<int>(axis.size.value);
    stride /= axis.size.value;
    place.stride = static_cast<int>(stride);
    place.parts = parts_of_stretch(machine, stride, place.size);
    if (place.size > 1 && place.parts[0].dim < 0) {
      count_across(machine, stride, place.parts[0]);
    }
    placed.push_back(place);
  }
  return placed;
}

// The parts of a group of devices over several axes, the first the slowest.
inline List<AxisPart> parts_of_group(const Machine& machine, const List<AxisPlacement>& placed,
                                     const std::vector<int>& axis_numbers) {
  List<AxisPart> parts;
  for (const int number : axis_numbers) {
    for (const AxisPart& part : placed[static_cast<std::size_t>(number)].parts) {
      push_part(machine, part, parts);
    }
  }
  if (parts.empty()) {
    parts.push_back(AxisPart());
  }
  return parts;
}

}  // namespace detail

// Which axis is a ring and which a line.
struct MeshPlacement {
  std::string machine;
  List<AxisPlacement> axes;

  Table table() const {
    Table out;
    out.title = "mesh on " + machine;
    out.columns = {"axis", "devices", "kind", "dimension", "apart", "latency", "one way"};
    for (const AxisPlacement& axis : axes) {
      for (const AxisPart& part : axis.parts) {
        out.add({axis.name, std::to_string(part.size), name_of(part.kind),
                 part.dim < 0 ? (part.size > 1 ? "several" : "-") : std::to_string(part.dim),
                 std::to_string(part.spacing), format_seconds(part.latency),
                 format_si(part.bandwidth, "B/s")});
      }
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
