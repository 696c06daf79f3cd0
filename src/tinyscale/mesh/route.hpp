#pragma once
// The directed links of a machine, and the links that a message between two chips crosses.
// Dimension order: along the first dimension to the right coordinate, then the second, ...; around
// a ring the shorter way, upwards when both are equal. Through a switch it is one hop, over the
// sender's port of that way and the receiver's.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tinyscale/base/list.hpp"
#include "tinyscale/hardware/network.hpp"
#include "tinyscale/mesh/mesh_axis.hpp"

namespace tinyscale {
namespace detail {

// Link (chip, dim, way): way 0 leaves the chip along `dim` upwards, 1 downwards; 2 and 3 enter it
// from a switch, from below and from above.
struct MachineLinks {
  explicit MachineLinks(const Machine& described)
      : machine(described), switched(is_switched(described.chip)) {
    std::int64_t stride = 1;
    strides.resize(static_cast<std::size_t>(machine.dims.size()));
    for (int d = machine.dims.size() - 1; d >= 0; --d) {
      strides[static_cast<std::size_t>(d)] = stride;
      stride *= machine.dims[d];
    }
  }

  std::size_t count() const {
    return static_cast<std::size_t>(machine.chips() * machine.dims.size() * 4);
  }
  std::size_t id(std::int64_t chip, int dim, int way) const {
    return static_cast<std::size_t>((chip * machine.dims.size() + dim) * 4 + way);
  }
  int dim_of(std::size_t link) const { return static_cast<int>(link / 4) % machine.dims.size(); }
  double bandwidth(std::size_t link) const { return machine.axis_bandwidth(dim_of(link)); }
  // The chips at its ends; -1 is a switch.
  std::int64_t from(std::size_t link) const { return link % 4 < 2 ? chip_of(link) : -1; }
  std::int64_t to(std::size_t link) const {
    if (link % 4 >= 2) {
      return chip_of(link);
    }
    return switched ? -1 : neighbour(chip_of(link), dim_of(link), static_cast<int>(link % 4));
  }

  std::vector<std::size_t> route(std::int64_t chip, std::int64_t target) const {
    std::vector<std::size_t> links;
    for (int d = 0; d < machine.dims.size(); ++d) {
      const std::int64_t away = distance(chip, target, d);
      const int way = away > 0 ? 0 : 1;
      if (switched && away != 0) {
        links.push_back(id(chip, d, way));
        chip +=
            (coordinate(target, d) - coordinate(chip, d)) * strides[static_cast<std::size_t>(d)];
        links.push_back(id(chip, d, way + 2));
        continue;
      }
      for (std::int64_t left = away > 0 ? away : -away; left > 0; --left) {
        links.push_back(id(chip, d, way));
        chip = neighbour(chip, d, way);
      }
    }
    return links;
  }

  // How often a message pays the latency of a link: once for both ports of a switch.
  int hops(const std::vector<std::size_t>& crossed) const {
    const int links = static_cast<int>(crossed.size());
    return switched ? links / 2 : links;
  }

  Machine machine;
  bool switched;

 private:
  std::int64_t chip_of(std::size_t link) const {
    return static_cast<std::int64_t>(link / 4) / machine.dims.size();
  }
  // Steps along `dim` from chip to target, below 0 downwards.
  std::int64_t distance(std::int64_t chip, std::int64_t target, int dim) const {
    const std::int64_t n = machine.dims[dim];
    const std::int64_t there = coordinate(target, dim) - coordinate(chip, dim);
    const std::int64_t up = (there + n) % n;
    return !closes(machine, dim) ? there : up <= n - up ? up : up - n;
  }
  std::int64_t coordinate(std::int64_t chip, int dim) const {
    return chip / strides[static_cast<std::size_t>(dim)] % machine.dims[dim];
  }
  std::int64_t neighbour(std::int64_t chip, int dim, int way) const {
    const std::int64_t n = machine.dims[dim];
    const std::int64_t here = coordinate(chip, dim);
    const std::int64_t there = (here + (way == 0 ? 1 : n - 1)) % n;
    return chip + (there - here) * strides[static_cast<std::size_t>(dim)];
  }

  List<std::int64_t> strides;  // chips from one to the next along each dimension
};

}  // namespace detail
}  // namespace tinyscale
