#pragma once
// permute: device i of an axis ends with the numbers of device i - shift, around the end.
// And what has no formula: a user's own send and recv, and the barrier, in which device r tells
// r + 1, r + 2, r + 4, ... that it has come (dissemination, ceil(log2 N) steps of no bytes).

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tinyscale/mesh/endpoint.hpp"

namespace tinyscale {
namespace detail {

inline Tensor from_packet(const Packet& packet) {
  Tensor out(packet.shape);
  copy_blocks(1, out.count(), packet.numbers.data(), 0, out.data(), 0);
  return out;
}

// All devices of the axis call it with equal shapes and shift; a shift may be negative.
inline Tensor permute(Endpoint& device, const Tensor& t, const std::string& name, int shift) {
  check_moved("permute", t);
  const AxisGroup axis = device.group(device.find_axis("permute", name));
  CollectiveCall call;
  call.name = "permute";
  call.axes = name;
  call.arguments = cat(t.shape(), ", shift ", shift);
  call.devices = axis.size;
  const int offset = modulo(shift, axis.size);
  call.stages.push_back({Collective::permute, axis.kind, axis.size, t.count(), offset});
  call.stage_axes.push_back(axis.axis);
  device.open(call, device.members({axis}));
  Tensor out;
  if (offset == 0) {
    out = t.clone();
  } else {
    device.step();
    device.send(axis.rank(axis.index + offset), contiguous(t).data(), t.count(), t.shape());
    out = from_packet(device.take(axis.rank(std::int64_t{axis.index} - offset)));
  }
  device.close();
  return out;
}

inline void check_peer(const char* function, const Endpoint& device, int rank) {
  if (rank < 0 || rank >= device.devices() || rank == device.rank()) {
    fail({function, ": device ", device.rank(), " names device ", rank,
          "; the others are among 0 to ", device.devices() - 1});
  }
}

// Returns at once; the receiver calls recv_from.
inline void send_to(Endpoint& device, const Tensor& t, int rank) {
  check_moved("send", t);
  check_peer("send", device, rank);
  CollectiveCall call;
  call.name = "send";
  call.arguments = cat(t.shape(), ", to ", rank);
  call.devices = 2;
  device.open_alone(call);
  device.step();
  device.send(rank, contiguous(t).data(), t.count(), t.shape());
  device.close();
}

// The next tensor that device `rank` sent to this one.
inline Tensor recv_from(Endpoint& device, int rank) {
  check_peer("recv", device, rank);
  CollectiveCall call;
  call.name = "recv";
  call.arguments = cat("from ", rank);
  call.devices = 2;
  device.open_alone(call);
  device.step();
  Tensor out = from_packet(device.take(rank));
  device.close();
  return out;
}

// Every device of the mesh calls it.
inline void barrier(Endpoint& device) {
  CollectiveCall call;
  call.name = "barrier";
  call.devices = device.devices();
  std::vector<int> all;
  for (int rank = 0; rank < device.devices(); ++rank) {
    all.push_back(rank);
  }
  device.open(call, all);
  for (int distance = 1; distance < device.devices(); distance *= 2) {
    device.step();
    device.send(modulo(device.rank() + distance, device.devices()), nullptr, 0);
    device.take(modulo(device.rank() - distance, device.devices()));
  }
  device.close();
}

}  // namespace detail
}  // namespace tinyscale
