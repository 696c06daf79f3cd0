#pragma once
// The directed links of a machine, and the links that a message between two chips crosses.
// Dimension order: along the first dimension to the right coordinate, then the second, ...; around
// a ring the shorter way, upwards when both are equal.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tinyscale/base/list.hpp"
#include "tinyscale/hardware/network.hpp"
#include "tinyscale/mesh/mesh_axis.hpp"

namespace tinyscale {
namespace detail {

// Link (chip, dim, way) leaves `chip` along `dim`, way 0 upwards and 1 downwards.
struct MachineLinks {
  explicit MachineLinks(const Machine& described) : machine(described) {
    std::int64_t stride = 1;
    strides.resize(static_cast<std::size_t>(machine.dims.size()));
    for (int d = machine.dims.size() - 1; d >= 0; --d) {
      strides[static_cast<std::size_t>(d)] = stride;
      stride *= machine.dims[d];
    }
  }

  std::size_t count() const {
    return static_cast<std::size_t>(machine.chips() * machine.dims.size() * 2);
  }
  std::size_t id(std::int64_t chip, int dim, int way) const {
    return static_cast<std::size_t>((chip * machine.dims.size() + dim) * 2 + way);
  }
  int dim_of(std::size_t link) const { return static_cast<int>(link / 2) % machine.dims.size(); }
  double bandwidth(std::size_t link) const { return machine.axis_bandwidth(dim_of(link)); }
  std::int64_t from(std::size_t link) const {
    return static_cast<std::int64_t>(link / 2) / machine.dims.size();
  }
  std::int64_t to(std::size_t link) const {
    return neighbour(from(link), dim_of(link), static_cast<int>(link % 2));
  }

  std::vector<std::size_t> route(std::int64_t chip, std::int64_t target) const {
    std::vector<std::size_t> links;
    for (int d = 0; d < machine.dims.size(); ++d) {
      const std::int64_t n = machine.dims[d];
      std::int64_t distance = coordinate(target, d) - coordinate(chip, d);
      if (closes(machine, d)) {
        const std::int64_t up = (distance + n) % n;
        distance = up <= n - up ? up : up - n;
      }
      const int way = distance > 0 ? 0 : 1;
      for (std::int64_t left = distance > 0 ? distance : -distance; left > 0; --left) {
        links.push_back(id(chip, d, way));
        chip = neighbour(chip, d, way);
      }
    }
    return links;
  }

  Machine machine;

 private:
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
