#pragma once
// A device of a mesh: what the program of one chip may ask and call.
// Collectives are called by every device of their axes, in the same order and with equal shapes.
// They move real numbers between the devices' threads, step by step; results carry no gradient.

#include <cstddef>
#include <cstdint>
#include <string>

#include "tinyscale/base/list.hpp"
#include "tinyscale/mesh/all_gather.hpp"
#include "tinyscale/mesh/all_reduce.hpp"
#include "tinyscale/mesh/broadcast.hpp"
#include "tinyscale/mesh/endpoint.hpp"
#include "tinyscale/mesh/permute.hpp"
#include "tinyscale/mesh/reduce_scatter.hpp"

namespace tinyscale {

namespace detail {

struct KeptTensor {
  std::string name;
  Tensor value;
};

}  // namespace detail

class Device {
 public:
  Device(detail::Fabric& fabric, const List<AxisPlacement>& axes, int rank, int devices)
      : endpoint_(fabric, axes, rank, devices) {}

  int rank() const { return endpoint_.rank(); }
  int size() const { return endpoint_.devices(); }
  int index(const std::string& axis) const { return group("index", axis).index; }
  int size(const std::string& axis) const { return group("size", axis).size; }

  // A[I_x] -> A[I]: the chunks of all devices side by side in `dim`, in order of their indices.
  Tensor all_gather(const Tensor& t, const Axes& axes, int dim = 0) {
    return detail::all_gather(endpoint_, t, axes, dim);
  }
  // A[I] {U_x} -> A[I_x]: device i keeps part i of `dim` of the sum; it must divide evenly.
  Tensor reduce_scatter(const Tensor& t, const Axes& axes, int dim = 0, Reduce how = Reduce::sum) {
    return detail::reduce_scatter(endpoint_, t, axes, dim, how);
  }
  // A[I] {U_x} -> A[I]: the same sum on every device, bit for bit; any shape.
  Tensor all_reduce(const Tensor& t, const Axes& axes, Reduce how = Reduce::sum) {
    return detail::all_reduce(endpoint_, t, axes, how);
  }
  // The numbers of the device at index `root` of the axis, on all of it.
  Tensor broadcast(const Tensor& t, const std::string& axis, int root = 0) {
    return detail::broadcast_from(endpoint_, t, axis, root);
  }
  // Device i's numbers go to device i + shift of the axis, around the end.
  Tensor permute(const Tensor& t, const std::string& axis, int shift) {
    return detail::permute(endpoint_, t, axis, shift);
  }
  // To and from a rank of the mesh. A send returns at once; a recv waits for one.
  void send(const Tensor& t, int to_rank) { detail::send_to(endpoint_, t, to_rank); }
  Tensor recv(int from_rank) { return detail::recv_from(endpoint_, from_rank); }
  // Returns when every device of the mesh has called it.
  void barrier() { detail::barrier(endpoint_); }

  // A[I] -> A[I_x] of a tensor that every device has: this one's part of `dim`, no communication.
  Tensor shard(const Tensor& t, const Axes& axes, int dim) const {
    detail::check_given("shard", t);
    const int d = detail::check_dim("shard", t, dim);
    const List<detail::AxisGroup> groups = endpoint_.groups("shard", axes);
    const int parts = detail::count_devices(groups);
    if (t.dim(d) % parts != 0) {
      detail::fail({"shard: dimension ", d, " of ", t.shape(), " over ", parts, " devices of ",
                    detail::axes_text(axes), "; its size must be a multiple of ", parts});
    }
    const std::int64_t part = t.dim(d) / parts;
    const std::int64_t begin = part * detail::index_over(groups);
    return copy(slice(t, d, begin, begin + part));  // a device has memory of its own
  }
  // Says that every device of the axes has the whole of t; no communication.
  Tensor replicate(const Tensor& t, const Axes& axes) const {
    detail::check_given("replicate", t);
    endpoint_.groups("replicate", axes);
    return t;
  }

  // Keeps a tensor for MeshRun::kept(rank, name); a second one of that name replaces it.
  void keep(const std::string& name, const Tensor& t) {
    std::size_t at = 0;
    while (at < kept_.size() && kept_[at].name != name) {
      ++at;
    }
    if (at == kept_.size()) {
      kept_.push_back({});
      for (; at > 0 && name < kept_[at - 1].name; --at) {
        kept_[at] = kept_[at - 1];
      }
    }
    kept_[at] = {name, t};
  }

  const List<detail::KeptTensor>& kept() const { return kept_; }
  detail::Endpoint& endpoint() { return endpoint_; }

 private:
  detail::AxisGroup group(const char* function, const std::string& axis) const {
    return endpoint_.group(endpoint_.find_axis(function, axis));
  }

  detail::Endpoint endpoint_;
  List<detail::KeptTensor> kept_;
};

}  // namespace tinyscale
