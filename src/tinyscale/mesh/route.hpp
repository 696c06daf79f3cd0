#pragma once
// The directed links of a machine, and those that a message between two chips crosses.
// Dimension order: along the first dimension to the right coordinate, then the second, ...; around
// a ring the shorter way, upwards when both are equal. Through a switch it is one hop: the sender's
// port, the uplinks of what it leaves, those of what it enters, the receiver's port.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tinyscale/base/list.hpp"
#include "tinyscale/hardware/network.hpp"

namespace tinyscale {
namespace detail {

// A link has a number of its dimension, its chip and its place there: on a line or ring 0 leaves
// the chip upwards, 1 downwards; at a switch 0 leaves the chip, 1 enters it, 2 and 3 are the uplink
// of the chips of which it is the first; fully connected: the coordinate that it leads to.
class MachineLinks {
 public:
  explicit MachineLinks(const Machine& described) : machine_(described) {
    const std::size_t dims = static_cast<std::size_t>(machine_.dims.size());
    along_.resize(dims);
    std::int64_t stride = 1;
    for (std::size_t d = dims; d-- > 0;) {
      along_[d].stride = stride;
      along_[d].size = machine_.dims[static_cast<int>(d)];
      stride *= along_[d].size;
    }
    const std::size_t chips = static_cast<std::size_t>(stride);
    for (std::size_t d = 0; d < dims; ++d) {
      Along& along = along_[d];
      along.kind = machine_.links[d].kind;
      along.latency = machine_.links[d].latency;
      along.port = static_cast<std::size_t>(port_dim(machine_, static_cast<int>(d)));
      along.uplink = machine_.links[d].uplink.one_way() > 0;
      along.width = along.kind == AxisKind::full       ? static_cast<std::size_t>(along.size)
                    : along.kind == AxisKind::switched ? 4
                                                       : 2;
      along.begin = bandwidth_.size();
      bandwidth_.resize(along.begin + chips * along.width, machine_.links[d].bandwidth.one_way());
      for (std::size_t c = 0; along.uplink && c < chips; ++c) {
        bandwidth_[along.begin + c * 4 + 2] = machine_.links[d].uplink.one_way();
        bandwidth_[along.begin + c * 4 + 3] = machine_.links[d].uplink.one_way();
      }
    }
  }

  std::size_t count() const { return bandwidth_.size(); }
  double bandwidth(std::size_t link) const { return bandwidth_[link]; }
  void slow_down(std::size_t link, double factor) { bandwidth_[link] /= factor; }
  void cut(std::size_t link) { bandwidth_[link] = 0; }
  int dim_of(std::size_t link) const {
    std::size_t d = along_.size() - 1;
    while (along_[d].begin > link) {
      --d;
    }
    return static_cast<int>(d);
  }
  // Whether there is such a link: none beyond the end of a line, to itself, out of a spine's leaf.
  bool exists(std::size_t link) const {
    const std::size_t d = static_cast<std::size_t>(dim_of(link));
    const Along& along = along_[d];
    const std::int64_t chip = static_cast<std::int64_t>((link - along.begin) / along.width);
    const std::int64_t place = static_cast<std::int64_t>((link - along.begin) % along.width);
    const std::int64_t here = coordinate(chip, d);
    switch (along.kind) {
      case AxisKind::ring: return goes_around(along.size) || (place == 0 && along.size > 1);
      case AxisKind::full: return place != here;
      case AxisKind::line: return place == 0 ? here + 1 < along.size : here > 0;
      default: break;
    }
    return place < 2 ? along.port == d : along.uplink && chip % along.stride == 0;
  }
  // The chips at its ends, of an uplink the first of those that share it; -1 is a switch.
  std::int64_t from(std::size_t link) const { return end(link, 0); }
  std::int64_t to(std::size_t link) const { return end(link, 1); }
  bool is_uplink(std::size_t link) const {
    const Along& along = along_[static_cast<std::size_t>(dim_of(link))];
    return along.kind == AxisKind::switched && (link - along.begin) % 4 >= 2;
  }
  // "3 -> 4", "3 -> switch", "switch -> 8..15"
  std::string name(std::size_t link) const {
    const std::size_t d = static_cast<std::size_t>(dim_of(link));
    std::string names[2];
    for (int i = 0; i < 2; ++i) {
      const std::int64_t chip = end(link, i);
      names[i] = chip < 0 ? "switch" : std::to_string(chip);
      if (chip >= 0 && is_uplink(link) && along_[d].stride > 1) {
        names[i] += ".." + std::to_string(chip + along_[d].stride - 1);
      }
    }
    return names[0] + " -> " + names[1];
  }

  // The links that a message crosses, in order.
  void route(std::int64_t chip, std::int64_t target, std::vector<std::size_t>& links) const {
    double latency = 0;
    links.clear();
    hops(chip, target, latency, &links);
  }

  // How often a message pays a latency, and how much in all; adds its links.
  int hops(std::int64_t chip, std::int64_t target, double& latency,
           std::vector<std::size_t>* links = nullptr) const {
    std::int64_t hops = 0;
    latency = 0;
    for (std::size_t d = 0; chip != target && d < along_.size(); ++d) {
      const Along& along = along_[d];
      const std::int64_t away = distance(chip, target, d);
      if (away == 0) {
        continue;
      }
      std::int64_t crossed = 1;
      if (along.kind == AxisKind::switched) {
        const std::int64_t from = chip;
        for (std::size_t level = d; level <= along.port; ++level) {
          chip = moved(chip, target, level);
        }
        if (links != nullptr) {
          links->push_back(id(from, along.port, 0));
          push_uplinks(from, d, 2, *links);
          push_uplinks(chip, d, 3, *links);
          links->push_back(id(chip, along.port, 1));
        }
      } else if (along.kind == AxisKind::full && links != nullptr) {
        links->push_back(id(chip, d, static_cast<std::size_t>(coordinate(target, d))));
      } else if (along.kind != AxisKind::full) {
        crossed = away > 0 ? away : -away;
        const std::int64_t step = away > 0 ? 1 : along.size - 1;
        for (std::int64_t left = crossed; left > 0 && links != nullptr; --left) {
          links->push_back(id(chip, d, away > 0 ? 0 : 1));
          const std::int64_t here = coordinate(chip, d);
          chip += ((here + step) % along.size - here) * along.stride;
        }
      }
      chip = moved(chip, target, d);
      hops += crossed;
      latency += static_cast<double>(crossed) * along.latency;
    }
    return static_cast<int>(hops);
  }

 private:
  struct Along {  // one dimension
    AxisKind kind = AxisKind::line;
    double latency = 0;
    std::int64_t size = 1, stride = 1;  // chips from one to the next
    std::size_t begin = 0, width = 2;   // its first link, links of a chip
    std::size_t port = 0;               // the dimension of the ports that lead to its switch
    bool uplink = false;
  };

  std::size_t id(std::int64_t chip, std::size_t d, std::size_t place) const {
    return along_[d].begin + static_cast<std::size_t>(chip) * along_[d].width + place;
  }
  std::int64_t coordinate(std::int64_t chip, std::size_t d) const {
    return chip / along_[d].stride % along_[d].size;
  }
  std::int64_t moved(std::int64_t chip, std::int64_t target, std::size_t d) const {
    return chip + (coordinate(target, d) - coordinate(chip, d)) * along_[d].stride;
  }
  // Steps along a dimension from chip to target, below 0 downwards.
  std::int64_t distance(std::int64_t chip, std::int64_t target, std::size_t d) const {
    const std::int64_t n = along_[d].size;
    const std::int64_t there = coordinate(target, d) - coordinate(chip, d);
    const std::int64_t up = there < 0 ? there + n : there;
    return along_[d].kind != AxisKind::ring ? there : up <= n - up ? up : up - n;
  }
  // Out of the chips from dimension `top` down to the ports, or into them.
  void push_uplinks(std::int64_t chip, std::size_t top, std::size_t place,
                    std::vector<std::size_t>& links) const {
    const std::size_t levels = along_[top].port - top + 1;
    for (std::size_t i = 0; i < levels; ++i) {
      const std::size_t level = place == 2 ? along_[top].port - i : top + i;
      if (along_[level].uplink) {
        links.push_back(id(chip / along_[level].stride * along_[level].stride, level, place));
      }
    }
  }
  std::int64_t end(std::size_t link, int which) const {
    const std::size_t d = static_cast<std::size_t>(dim_of(link));
    const Along& along = along_[d];
    const std::int64_t chip = static_cast<std::int64_t>((link - along.begin) / along.width);
    const std::int64_t place = static_cast<std::int64_t>((link - along.begin) % along.width);
    if (along.kind == AxisKind::switched) {
      return place % 2 == which ? chip : -1;
    }
    if (which == 0) {
      return chip;
    }
    const std::int64_t here = coordinate(chip, d);
    const std::int64_t there = along.kind == AxisKind::full ? place
                               : place == 0                 ? (here + 1) % along.size
                                                            : (here + along.size - 1) % along.size;
    return chip + (there - here) * along.stride;
  }

  Machine machine_;
  List<Along> along_;
  std::vector<double> bandwidth_;  // bytes/s one way, by link
};

}  // namespace detail
}  // namespace tinyscale
