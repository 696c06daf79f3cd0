#pragma once
// broadcast: every device of an axis ends with the root's numbers.
// A chain from neighbour to neighbour of H links, through which H chunks stream: 2 H - 1 steps of
// alpha + (V / H) / W. On a line, or a ring used both ways, two chains leave the root.

#include <algorithm>  // max
#include <cstddef>
#include <cstdint>
#include <cstring>  // memcpy
#include <string>

#include "tinyscale/mesh/endpoint.hpp"

namespace tinyscale {
namespace detail {

// Where a device stands in the chains: how far from the root, whether it takes and passes on.
struct ChainPlace {
  int distance = 0;           // links from the root
  int from = -1;              // index of the device before, -1 at the root
  int right = -1, left = -1;  // indices of the devices after, -1 at an end
};

inline ChainPlace chain_place(const AxisGroup& axis, int root) {
  const int n = axis.size;
  const Reach span = reach(axis.kind, n, root);
  const int right = modulo(axis.index - root, n);
  const int left = modulo(root - axis.index, n);
  ChainPlace place;
  if (right <= span.right) {
    place.distance = right;
    place.from = right > 0 ? modulo(axis.index - 1, n) : -1;
    place.right = right < span.right ? modulo(axis.index + 1, n) : -1;
  }
  if (right == 0 || right > span.right) {
    place.distance = left;
    place.from = left > 0 ? modulo(axis.index + 1, n) : -1;
    place.left = left < span.left ? modulo(axis.index - 1, n) : -1;
  }
  return place;
}

inline void stream_chunks(Endpoint& device, const AxisGroup& axis, int root, float* numbers,
                          std::int64_t elements) {
  const Reach span = reach(axis.kind, axis.size, root);
  const int chunks = std::max(span.right, span.left);
  const ChainPlace place = chain_place(axis, root);
  for (int step = 0; step < 2 * chunks - 1; ++step) {
    const int out = step - place.distance;  // chunk to pass on; the next one comes in meanwhile
    const int in = out + 1;
    device.step();
    for (const int to : {place.right, place.left}) {
      if (to >= 0 && out >= 0 && out < chunks) {
        device.send(axis.rank(to), numbers + chunk_begin(elements, chunks, out),
                    chunk_size(elements, chunks, out));
      }
    }
    if (place.from >= 0 && in >= 0 && in < chunks) {
      const Packet packet = device.take(axis.rank(place.from));
      if (!packet.numbers.empty()) {
        std::memcpy(numbers + chunk_begin(elements, chunks, in), packet.numbers.data(),
                    packet.numbers.size() * sizeof(float));
      }
    }
  }
}

// All devices of the axis call it with equal shapes; `root` is an index on the axis.
inline Tensor broadcast_from(Endpoint& device, const Tensor& t, const std::string& name, int root) {
  check_moved("broadcast", t);
  const AxisGroup axis = device.group(device.find_axis("broadcast", name));
  if (root < 0 || root >= axis.size) {
    fail({"broadcast: root ", root, " on axis ", name, " of ", axis.size,
          " devices; the root is 0 to ", axis.size - 1});
  }
  CollectiveCall call;
  call.name = "broadcast";
  call.axes = name;
  call.arguments = cat(t.shape(), ", root ", root);
  call.devices = axis.size;
  call.stages.push_back({Collective::broadcast, axis.kind, axis.size, t.count(), root});
  call.stage_axes.push_back(axis.axis);
  device.open(call, device.members({axis}));
  Tensor out = t.clone();
  stream_chunks(device, axis, root, out.data(), t.count());
  device.close();
  return out;
}

}  // namespace detail
}  // namespace tinyscale
