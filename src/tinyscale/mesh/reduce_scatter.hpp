#pragma once
// reduce_scatter: A[I] {U_x} -> A[I_x], the sum over devices, each keeping its own chunk of it.
// all_gather run backwards: the partial sum of a chunk comes from the far ends towards its device
// c, which ends with (x_c + right part) + left part, each part summed from its far end inwards.

#include <algorithm>  // max, min
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tinyscale/base/list.hpp"
#include "tinyscale/mesh/endpoint.hpp"

namespace tinyscale {
namespace detail {

// A NaN on any device is the result: max and min do not hide it.
inline void combine(Reduce how, const std::vector<float>& part, float* into) {
  const std::size_t n = part.size();
  for (std::size_t i = 0; i < n; ++i) {
    switch (how) {
      case Reduce::sum:
      case Reduce::mean: into[i] += part[i]; break;
      case Reduce::max: into[i] = into[i] < part[i] || is_nan(part[i]) ? part[i] : into[i]; break;
      case Reduce::min: into[i] = part[i] < into[i] || is_nan(part[i]) ? part[i] : into[i]; break;
    }
  }
}

// `whole` holds this device's `elements` numbers; its own chunk becomes the result over the axis
// (a mean still to be divided), the others are used up.
inline void scatter_chunks(Endpoint& device, const AxisGroup& axis, float* whole,
                           std::int64_t elements, Reduce how) {
  const int n = axis.size;
  const auto send = [&](int c, int to) {
    device.send(axis.rank(to), whole + chunk_begin(elements, n, c), chunk_size(elements, n, c));
  };
  const auto take = [&](int c, int from) {
    combine(how, device.take(axis.rank(from)).numbers, whole + chunk_begin(elements, n, c));
  };
  for (int k = axis_steps(axis.kind, n); k >= 1; --k) {
    const int goes_left = modulo(axis.index - k, n);
    const int goes_right = modulo(axis.index + k, n);
    const int from_right = modulo(axis.index - (k - 1), n);
    const int from_left = modulo(axis.index + (k - 1), n);
    device.step();
    if (k <= reach(axis.kind, n, goes_left).right) {
      send(goes_left, axis.index - 1);
    }
    if (k <= reach(axis.kind, n, goes_right).left) {
      send(goes_right, axis.index + 1);
    }
    if (k <= reach(axis.kind, n, from_right).right) {
      take(from_right, axis.index + 1);
    }
    if (k <= reach(axis.kind, n, from_left).left) {
      take(from_left, axis.index - 1);
    }
  }
}

inline void divide(float* numbers, std::int64_t count, int devices) {
  for (std::int64_t i = 0; i < count; ++i) {
    numbers[i] /= static_cast<float>(devices);
  }
}

// Along one axis; device i keeps part i of dimension d.
inline Tensor scatter_axis(Endpoint& device, const AxisGroup& axis, const Tensor& t, int d,
                           Reduce how) {
  Shape shape = t.shape();
  shape.set(d, t.dim(d) / axis.size);
  Tensor out(shape);
  const std::int64_t block = inner_count(shape, d) * shape[d];
  const std::int64_t blocks = block == 0 ? 0 : out.count() / block;
  std::vector<float> chunks(static_cast<std::size_t>(t.count()));
  const Tensor own = contiguous(t);
  for (int c = 0; c < axis.size; ++c) {
    copy_blocks(blocks, block, own.data() + c * block, block * axis.size,
                chunks.data() + c * out.count(), block);
  }
  scatter_chunks(device, axis, chunks.data(), t.count(), how);
  copy_blocks(1, out.count(), chunks.data() + axis.index * out.count(), 0, out.data(), 0);
  return out;
}

// All devices of the axes call it with equal shapes. The outermost axis is scattered first.
inline Tensor reduce_scatter(Endpoint& device, const Tensor& t, const Axes& axes, int dim,
                             Reduce how) {
  check_moved("reduce_scatter", t);
  const int d = check_dim("reduce_scatter", t, dim);
  const List<AxisGroup> groups = device.groups("reduce_scatter", axes);
  CollectiveCall call;
  call.name = "reduce_scatter";
  call.axes = axes_text(axes);
  call.arguments = cat(t.shape(), ", dim ", d, ", ", name_of(how));
  call.devices = count_devices(groups);
  if (t.dim(d) % call.devices != 0) {
    fail({"reduce_scatter: dimension ", d, " of ", t.shape(), " over ", call.devices,
          " devices of ", call.axes, "; its size must be a multiple of ", call.devices});
  }
  std::int64_t elements = t.count();
  for (const AxisGroup& group : groups) {
    call.stages.push_back({Collective::reduce_scatter, group.kind, group.size, elements, 0});
    call.stage_axes.push_back(group.axis);
    elements /= group.size;
  }
  device.open(call, device.members(groups));
  Tensor out = t.detach();
  for (const AxisGroup& group : groups) {
    out = scatter_axis(device, group, out, d, how);
  }
  if (how == Reduce::mean) {
    divide(out.data(), out.count(), call.devices);
  }
  device.close();
  return out;
}

}  // namespace detail
}  // namespace tinyscale
