#pragma once
// all_reduce: A[I] {U_x} -> A[I], every device ends with the same sum, bit for bit.
// reduce_scatter, then all_gather of what each device has summed: 2 (N - 1) / N of the bytes. Over
// several axes the chunk of the first is reduced over the second, and gathered back last.

#include <cstddef>
#include <cstdint>

#include "tinyscale/base/list.hpp"
#include "tinyscale/mesh/all_gather.hpp"
#include "tinyscale/mesh/reduce_scatter.hpp"

namespace tinyscale {
namespace detail {

inline void add_stage(CollectiveCall& call, Collective what, const AxisGroup& group,
                      std::int64_t elements) {
  call.stages.push_back({what, group.kind, group.size, elements, 0});
  call.stage_axes.push_back(group.axis);
}

// The stages that the first device of the axes runs: it has the largest chunks.
inline void all_reduce_stages(CollectiveCall& call, const List<AxisGroup>& groups,
                              std::int64_t elements) {
  List<std::int64_t> sizes;
  for (const AxisGroup& group : groups) {
    sizes.push_back(elements);
    add_stage(call, Collective::reduce_scatter, group, elements);
    elements = chunk_size(elements, group.size, 0);
  }
  for (std::size_t i = groups.size(); i-- > 0;) {
    add_stage(call, Collective::all_gather, groups[i], sizes[i]);
  }
}

// All devices of the axes call it with equal shapes; any size, chunks may be uneven.
inline Tensor all_reduce(Endpoint& device, const Tensor& t, const Axes& axes, Reduce how) {
  check_moved("all_reduce", t);
  const List<AxisGroup> groups = device.groups("all_reduce", axes);
  CollectiveCall call;
  call.name = "all_reduce";
  call.axes = axes_text(axes);
  call.arguments = cat(t.shape(), ", ", name_of(how));
  call.devices = count_devices(groups);
  all_reduce_stages(call, groups, t.count());
  device.open(call, device.members(groups));
  Tensor out = t.clone();
  List<float*> begins;
  List<std::int64_t> sizes;
  float* numbers = out.data();
  std::int64_t count = out.count();
  for (const AxisGroup& group : groups) {
    begins.push_back(numbers);
    sizes.push_back(count);
    scatter_chunks(device, group, numbers, count, how);
    numbers += chunk_begin(count, group.size, group.index);
    count = chunk_size(count, group.size, group.index);
  }
  if (how == Reduce::mean) {
    divide(numbers, count, call.devices);
  }
  for (std::size_t i = groups.size(); i-- > 0;) {
    gather_chunks(device, groups[i], begins[i], sizes[i]);
  }
  device.close();
  return out;
}

}  // namespace detail
}  // namespace tinyscale
