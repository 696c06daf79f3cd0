#pragma once
// The mesh axes of a layout, and which of them each of its collectives runs over. An axis of which
// ZeRO or experts take only a part is split: "data_1" (slower) and "data_2".

#include <algorithm>  // find
#include <cstdint>    // int64_t
#include <string>     // string
#include <vector>     // vector

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/order.hpp"
#include "tinyscale/mesh/mesh_axis.hpp"
#include "tinyscale/parallel/layout.hpp"

namespace tinyscale {
namespace detail {

// Names of mesh axes; none where there is one device: nothing to send.
using AxisGroup = std::vector<std::string>;

struct LayoutAxes {
  List<MeshAxis> mesh;  // from the slowest links to the fastest
  AxisGroup pipeline, data, context, tensor;
  AxisGroup batch;                        // data and context: devices with other tokens
  AxisGroup zero, replica;                // of batch: those that shard, and those that repeat it
  AxisGroup expert;                       // of batch: those with other experts
  AxisGroup expert_zero, expert_replica;  // of batch without expert
  AxisGroup dealt;                        // all with other experts: tensor too where they are whole
  AxisGroup routes;                       // those that route other tokens, likewise

  AxisGroup all() const {
    AxisGroup names;
    for (const MeshAxis& axis : mesh) {
      names.push_back(axis.name);
    }
    return names;
  }
};

// Where a rank stands on the axes; the last is the fastest.
struct MeshPoint {
  List<MeshAxis> axes;
  std::vector<std::int64_t> at, stride;

  MeshPoint(const List<MeshAxis>& of, std::int64_t rank)
      : axes(of), at(of.size()), stride(of.size()) {
    std::int64_t below = 1;
    for (std::size_t i = axes.size(); i-- > 0;) {
      stride[i] = below;
      at[i] = rank / below % axes[i].size.value;
      below *= axes[i].size.value;
    }
  }
  // Of a group of axes: this rank's number in it, the first axis the slowest, and its size.
  std::int64_t index(const AxisGroup& group) const { return walk(group, true); }
  std::int64_t size(const AxisGroup& group) const { return walk(group, false); }
  // The rank that differs from this one in its number on a group of one axis alone.
  std::int64_t rank_at(const AxisGroup& group, std::int64_t number) const {
    std::int64_t rank = 0;
    for (std::size_t i = 0; i < axes.size(); ++i) {
      rank += (!group.empty() && axes[i].name == group[0] ? number : at[i]) * stride[i];
    }
    return rank;
  }

 private:
  std::int64_t walk(const AxisGroup& group, bool index_wanted) const {
    std::int64_t number = 0, size = 1;
    for (const std::string& name : group) {
      for (std::size_t i = 0; i < axes.size(); ++i) {
        if (axes[i].name == name) {
          number = number * axes[i].size.value + at[i];
          size *= axes[i].size.value;
        }
      }
    }
    return index_wanted ? number : size;
  }
};

inline AxisGroup joined(AxisGroup a, const AxisGroup& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
inline bool in_group(const AxisGroup& group, const std::string& name) {
  return std::find(group.begin(), group.end(), name) != group.end();
}
inline AxisGroup without(const AxisGroup& group, const AxisGroup& taken) {
  AxisGroup left;
  for (const std::string& name : group) {
    if (!in_group(taken, name)) {
      left.push_back(name);
    }
  }
  return left;
}

// An axis of `size` devices cut so that its fastest inner[0], inner[1], .. devices are groups of
// whole axes; each entry of `inner` becomes the names of its group.
struct SplitAxis {
  List<MeshAxis> axes;  // the slowest first
  AxisGroup names;

  SplitAxis(const std::string& name, std::int64_t size, std::vector<std::int64_t> inner) {
    inner.push_back(size);
    inner.push_back(1);
    insertion_sort(inner.data(), inner.data() + inner.size());
    std::vector<std::int64_t> factors;  // the fastest first
    for (std::size_t i = 1; i < inner.size(); ++i) {
      if (inner[i] % inner[i - 1] != 0) {
        fail({"train: ", name, " ", size, " would be cut in groups of ", inner[i - 1], " and of ",
              inner[i], " (ZeRO and experts); one must divide the other"});
      }
      if (inner[i] > inner[i - 1]) {
        factors.push_back(inner[i] / inner[i - 1]);
      }
    }
    for (std::size_t i = factors.size(); i-- > 0;) {
      const std::string part = factors.size() == 1 ? name : cat({name, "_", factors.size() - i});
      axes.push_back({part, factors[i]});
      names.push_back(part);
    }
  }

  // The names of the fastest `count` devices.
  AxisGroup fastest(std::int64_t count) const {
    AxisGroup group;
    for (std::size_t i = axes.size(); i-- > 0 && count > 1;) {
      group.insert(group.begin(), axes[i].name);
      count /= axes[i].size.value;
    }
    return group;
  }
};

inline std::int64_t common_divisor(std::int64_t a, std::int64_t b) {
  return b == 0 ? a : common_divisor(b, a % b);
}

inline LayoutAxes layout_axes(const Layout& layout) {
  // A group over data x context takes context first: its links are faster.
  const std::int64_t zero_context = common_divisor(layout.shards(), layout.context);
  const std::int64_t zero_data = layout.shards() / zero_context;
  const std::int64_t expert_context = common_divisor(layout.expert, layout.context);
  const std::int64_t expert_data = layout.expert / expert_context;
  const SplitAxis data("data", layout.data, {zero_data, expert_data});
  const SplitAxis context("context", layout.context, {zero_context, expert_context});
  const SplitAxis pipeline("pipeline", layout.pipeline, {});
  const SplitAxis tensor("tensor", layout.tensor, {});
  LayoutAxes axes;
  for (const std::string& name : layout.order) {
    const SplitAxis& axis = name == "data"      ? data
                            : name == "context" ? context
                            : name == "tensor"  ? tensor
                                                : pipeline;
    for (const MeshAxis& part : axis.axes) {
      axes.mesh.push_back(part);
    }
  }
  if (axes.mesh.empty()) {
    axes.mesh.push_back({"data", 1});
  }
  axes.pipeline = pipeline.names;
  axes.tensor = tensor.names;
  axes.data = data.names;
  axes.context = context.names;
  axes.batch = joined(data.names, context.names);
  axes.zero = joined(data.fastest(zero_data), context.fastest(zero_context));
  axes.replica = without(axes.batch, axes.zero);
  axes.expert = joined(data.fastest(expert_data), context.fastest(expert_context));
  const AxisGroup others = without(axes.batch, axes.expert);
  axes.expert_zero = without(axes.zero, axes.expert);
  axes.expert_replica = without(others, axes.expert_zero);
  axes.dealt = layout.whole_experts ? joined(axes.expert, axes.tensor) : axes.expert;
  axes.routes = layout.whole_experts ? joined(axes.batch, axes.tensor) : axes.batch;
  return axes;
}

}  // namespace detail
}  // namespace tinyscale
