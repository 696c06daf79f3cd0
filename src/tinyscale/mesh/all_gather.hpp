#pragma once
// all_gather: A[I_x] -> A[I], every device ends with the chunks of all.
// In step k a device passes on the chunk that began k - 1 devices away, to its right while that
// chunk still has to go right, and to its left; N - 1 steps on a line or a ring used one way.

#include <cstddef>
#include <cstdint>
#include <cstring>  // memcpy
#include <vector>

#include "tinyscale/base/list.hpp"
#include "tinyscale/mesh/endpoint.hpp"

namespace tinyscale {
namespace detail {

// `whole` holds chunks of `elements` numbers, this device's filled in; fills in the others.
inline void gather_chunks(Endpoint& device, const AxisGroup& axis, float* whole,
                          std::int64_t elements) {
  const int n = axis.size;
  const auto send = [&](int c, int to) {
    device.send(axis.rank(to), whole + chunk_begin(elements, n, c), chunk_size(elements, n, c));
  };
  const auto take = [&](int c, int from) {
    const Packet packet = device.take(axis.rank(from));
    if (!packet.numbers.empty()) {
      std::memcpy(whole + chunk_begin(elements, n, c), packet.numbers.data(),
                  packet.numbers.size() * sizeof(float));
    }
  };
  for (int k = 1; k <= axis_steps(axis.kind, n); ++k) {
    const int goes_right = modulo(axis.index - (k - 1), n);
    const int goes_left = modulo(axis.index + (k - 1), n);
    const int from_left = modulo(axis.index - k, n);
    const int from_right = modulo(axis.index + k, n);
    device.step();
    if (k <= reach(axis.kind, n, goes_right).right) {
      send(goes_right, axis.index + 1);
    }
    if (k <= reach(axis.kind, n, goes_left).left) {
      send(goes_left, axis.index - 1);
    }
    if (k <= reach(axis.kind, n, from_left).right) {
      take(from_left, axis.index - 1);
    }
    if (k <= reach(axis.kind, n, from_right).left) {
      take(from_right, axis.index + 1);
    }
  }
}

// Along one axis; the results of its devices side by side in dimension d.
inline Tensor gather_axis(Endpoint& device, const AxisGroup& axis, const Tensor& t, int d) {
  const std::int64_t block = inner_count(t.shape(), d) * t.dim(d);  // contiguous in t
  const std::int64_t blocks = block == 0 ? 0 : t.count() / block;
  const std::int64_t elements = t.count() * axis.size;
  Shape shape = t.shape();
  shape.set(d, t.dim(d) * axis.size);
  Tensor out(shape);
  std::vector<float> chunks;
  float* whole = out.data();
  if (blocks > 1) {
    chunks.resize(static_cast<std::size_t>(elements));
    whole = chunks.data();
  }
  copy_blocks(1, t.count(), contiguous(t).data(), 0, whole + axis.index * t.count(), 0);
  gather_chunks(device, axis, whole, elements);
  for (int c = 0; c < axis.size && blocks > 1; ++c) {
    copy_blocks(blocks, block, whole + c * t.count(), block, out.data() + c * block,
                block * axis.size);
  }
  return out;
}

// All devices of the axes call it with equal shapes. The innermost axis is gathered first.
inline Tensor all_gather(Endpoint& device, const Tensor& t, const Axes& axes, int dim) {
  check_moved("all_gather", t);
  const int d = check_dim("all_gather", t, dim);
  const List<AxisGroup> groups = device.groups("all_gather", axes);
  CollectiveCall call;
  call.name = "all_gather";
  call.axes = axes_text(axes);
  call.arguments = cat(t.shape(), ", dim ", d);
  call.devices = count_devices(groups);
  std::int64_t elements = t.count();
  for (std::size_t i = groups.size(); i-- > 0;) {
    elements *= groups[i].size;
    call.stages.push_back({Collective::all_gather, groups[i].kind, groups[i].size, elements, 0});
    call.stage_axes.push_back(groups[i].axis);
  }
  device.open(call, device.members(groups));
  Tensor out = t.detach();
  for (std::size_t i = groups.size(); i-- > 0;) {
    out = gather_axis(device, groups[i], out, d);
  }
  device.close();
  return out;
}

}  // namespace detail
}  // namespace tinyscale
