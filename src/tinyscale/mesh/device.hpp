#pragma once
// A device of a mesh: what the program of one chip may ask and call.
// Collectives are called by every device of their axes, in the same order and with equal shapes.
// They move real numbers, by the schedule of their algorithm, and carry gradients back. Of each
// there is a start_ form, which gives a Pending: what runs before its wait() overlaps.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tinyscale/base/list.hpp"
#include "tinyscale/mesh/collectives.hpp"
#include "tinyscale/mesh/endpoint.hpp"

namespace tinyscale {

namespace detail {

struct KeptTensor {
  std::string name;
  Tensor value;
};

inline void check_peer(const char* function, const Endpoint& device, int rank) {
  if (rank < 0 || rank >= device.devices() || rank == device.rank()) {
    fail({function, ": device ", device.rank(), " names device ", rank, "; ",
          device.devices() == 1 ? std::string("it is alone on its mesh")
                                : cat({"the others are among 0 to ", device.devices() - 1})});
  }
}

}  // namespace detail

// The line that calls: the last argument of every collective.
#define TINYSCALE_HERE SourceLine where = {__builtin_FILE(), __builtin_LINE()}

class Device {
 public:
  using Options = CollectiveOptions;

  Device(detail::Fabric& fabric, Algorithm algorithm, int rank)
      : endpoint_(fabric, algorithm, rank) {}

  int rank() const { return endpoint_.rank(); }
  int size() const { return endpoint_.devices(); }
  int index(const std::string& axis) const {
    return endpoint_.index_on(endpoint_.find_axis("index", axis));
  }
  int size(const std::string& axis) const {
    return endpoint_.size_of(endpoint_.find_axis("size", axis));
  }

  // A[I_x] -> A[I]: the chunks of all devices side by side in `dim`, in order of their indices.
  Pending start_all_gather(const Tensor& t, const Axes& axes, int dim = 0,
                           const Options& options = Options(), TINYSCALE_HERE) {
    return detail::start_all_gather({endpoint_, options, where}, t, axes, dim);
  }
  Tensor all_gather(const Tensor& t, const Axes& axes, int dim = 0,
                    const Options& options = Options(), TINYSCALE_HERE) {
    return start_all_gather(t, axes, dim, options, where).wait();
  }
  // A[I] {U_x} -> A[I_x]: device i keeps part i of `dim` of the sum; it must divide evenly.
  Pending start_reduce_scatter(const Tensor& t, const Axes& axes, int dim = 0,
                               Reduce how = Reduce::sum, const Options& options = Options(),
                               TINYSCALE_HERE) {
    return detail::start_reduce_scatter({endpoint_, options, where}, t, axes, dim, how);
  }
  Tensor reduce_scatter(const Tensor& t, const Axes& axes, int dim = 0, Reduce how = Reduce::sum,
                        const Options& options = Options(), TINYSCALE_HERE) {
    return start_reduce_scatter(t, axes, dim, how, options, where).wait();
  }
  // A[I] {U_x} -> A[I]: the same sum on every device, bit for bit; any shape. Its gradient takes it
  // to be used alike on all, as by one loss: dy is carried back as it is. Who uses it in another
  // way on each device gathers a reduce_scatter, which sums what each carries back.
  Pending start_all_reduce(const Tensor& t, const Axes& axes, Reduce how = Reduce::sum,
                           const Options& options = Options(), TINYSCALE_HERE) {
    return detail::start_all_reduce({endpoint_, options, where}, t, axes, how);
  }
  Tensor all_reduce(const Tensor& t, const Axes& axes, Reduce how = Reduce::sum,
                    const Options& options = Options(), TINYSCALE_HERE) {
    return start_all_reduce(t, axes, how, options, where).wait();
  }
  // A[I, J_x] -> A[I_x, J]: part i of `split_dim` goes to device i; what comes is joined in
  // `concat_dim`.
  Pending start_all_to_all(const Tensor& t, const Axes& axes, int split_dim, int concat_dim,
                           const Options& options = Options(), TINYSCALE_HERE) {
    return detail::start_all_to_all({endpoint_, options, where}, t, axes, split_dim, concat_dim);
  }
  Tensor all_to_all(const Tensor& t, const Axes& axes, int split_dim, int concat_dim,
                    const Options& options = Options(), TINYSCALE_HERE) {
    return start_all_to_all(t, axes, split_dim, concat_dim, options, where).wait();
  }
  // The ragged one: device i gets rows[i] rows of dimension 0, in order. `got`, when given, becomes
  // how many come from each, at once.
  Pending start_all_to_all(const Tensor& t, const Axes& axes, const std::vector<std::int64_t>& rows,
                           std::vector<std::int64_t>* got = nullptr,
                           const Options& options = Options(), TINYSCALE_HERE) {
    std::vector<std::int64_t> came;
    return detail::start_ragged({endpoint_, options, where}, t, axes, rows,
                                got != nullptr ? *got : came);
  }
  Tensor all_to_all(const Tensor& t, const Axes& axes, const std::vector<std::int64_t>& rows,
                    std::vector<std::int64_t>* got = nullptr, const Options& options = Options(),
                    TINYSCALE_HERE) {
    return start_all_to_all(t, axes, rows, got, options, where).wait();
  }
  // The numbers of the device at index `root` of the axes, on all of them.
  Pending start_broadcast(const Tensor& t, const Axes& axes, int root = 0,
                          const Options& options = Options(), TINYSCALE_HERE) {
    return detail::start_broadcast({endpoint_, options, where}, t, axes, root);
  }
  Tensor broadcast(const Tensor& t, const Axes& axes, int root = 0,
                   const Options& options = Options(), TINYSCALE_HERE) {
    return start_broadcast(t, axes, root, options, where).wait();
  }
  // The sum at the root; the others get an empty tensor, of shape [0].
  Pending start_reduce(const Tensor& t, const Axes& axes, int root = 0, Reduce how = Reduce::sum,
                       const Options& options = Options(), TINYSCALE_HERE) {
    return detail::start_reduce({endpoint_, options, where}, t, axes, root, how);
  }
  Tensor reduce(const Tensor& t, const Axes& axes, int root = 0, Reduce how = Reduce::sum,
                const Options& options = Options(), TINYSCALE_HERE) {
    return start_reduce(t, axes, root, how, options, where).wait();
  }
  // As all_gather, at the root; the others get an empty tensor, of shape [0].
  Pending start_gather(const Tensor& t, const Axes& axes, int root = 0, int dim = 0,
                       const Options& options = Options(), TINYSCALE_HERE) {
    return detail::start_gather({endpoint_, options, where}, t, axes, root, dim);
  }
  Tensor gather(const Tensor& t, const Axes& axes, int root = 0, int dim = 0,
                const Options& options = Options(), TINYSCALE_HERE) {
    return start_gather(t, axes, root, dim, options, where).wait();
  }
  // Part i of the root's `dim` goes to device i; the others' numbers are not used.
  Pending start_scatter(const Tensor& t, const Axes& axes, int root = 0, int dim = 0,
                        const Options& options = Options(), TINYSCALE_HERE) {
    return detail::start_scatter({endpoint_, options, where}, t, axes, root, dim);
  }
  Tensor scatter(const Tensor& t, const Axes& axes, int root = 0, int dim = 0,
                 const Options& options = Options(), TINYSCALE_HERE) {
    return start_scatter(t, axes, root, dim, options, where).wait();
  }
  // Device i's numbers go to device i + shift of the axes, around the end.
  Pending start_permute(const Tensor& t, const Axes& axes, int shift,
                        const Options& options = Options(), TINYSCALE_HERE) {
    return detail::start_permute({endpoint_, options, where}, t, axes, shift);
  }
  Tensor permute(const Tensor& t, const Axes& axes, int shift, const Options& options = Options(),
                 TINYSCALE_HERE) {
    return start_permute(t, axes, shift, options, where).wait();
  }
  // To and from a rank of the mesh. A send returns at once; a recv waits for one. They carry no
  // gradient back, so that a tensor with one is refused.
  void send(const Tensor& t, int to_rank, TINYSCALE_HERE) {
    detail::check_given("send", t);
    detail::check_peer("send", endpoint_, to_rank);
    if (detail::tracked({&t})) {
      detail::fail({"send: the tensor ", t.shape(), " carries a gradient, which does not come ",
                    "back from the receiver; send detach() of it, or use permute"});
    }
    endpoint_.send(to_rank, detail::numbers_now(t.detach(), where.file, where.line), where);
  }
  Tensor recv(int from_rank, TINYSCALE_HERE) {
    detail::check_peer("recv", endpoint_, from_rank);
    return endpoint_.recv(from_rank, where);
  }
  // Returns when every device of the mesh, or of the axes, has called it.
  void barrier(const Options& options = Options(), TINYSCALE_HERE) {
    detail::barrier({endpoint_, options, where}, endpoint_.all_axes());
  }
  void barrier(const Axes& axes, const Options& options = Options(), TINYSCALE_HERE) {
    detail::barrier({endpoint_, options, where}, endpoint_.find_axes("barrier", axes));
  }

  // A[I] -> A[I_x] of a tensor that every device has: this one's part of `dim`, no communication.
  Tensor shard(const Tensor& t, const Axes& axes, int dim) const {
    detail::check_given("shard", t);
    const int d = detail::check_dim("shard", t, dim);
    const std::vector<int> found = endpoint_.find_axes("shard", axes);
    const int parts = endpoint_.size_of(found);
    if (t.dim(d) % parts != 0) {
      detail::fail({"shard: dimension ", d, " of ", t.shape(), " over ", parts, " devices of ",
                    endpoint_.names_of(found), "; its size must be a multiple of ", parts});
    }
    const std::int64_t part = t.dim(d) / parts;
    const std::int64_t begin = part * endpoint_.index_on(found);
    return copy(slice(t, d, begin, begin + part));  // a device has memory of its own
  }
  // Says that every device of the axes has the whole of t and uses it for itself: no communication,
  // but an all_reduce of its gradient.
  Tensor replicate(const Tensor& t, const Axes& axes, const Options& options = Options(),
                   TINYSCALE_HERE) {
    return detail::replicate({endpoint_, options, where}, t, axes);
  }

  // Ops and waits from now on are part of that task of the program (-1: of none), by which
  // timelines and breakdowns name them; and the memory is noted, for MeshRun::memory_samples.
  void task(int tag) {
    if (tag < -1) {
      detail::fail({"task: tag ", tag, "; 0 or more is right, or -1 for no task"});
    }
    endpoint_.task(tag);
  }
  int task() const { return endpoint_.task(); }

  // Keeps a copy of a tensor for MeshRun::kept(rank, name); a second one of that name replaces it.
  void keep(const std::string& name, const Tensor& t, TINYSCALE_HERE) {
    detail::check_given("keep", t);
    const Tensor now = detail::numbers_now(t.detach(), where.file, where.line);
    const detail::RecorderScope eager(nullptr);
    keep_uncopied(name, now.copied());
  }
  // The tensor itself, to which nobody writes any more.
  void keep_uncopied(const std::string& name, const Tensor& t) {
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
    kept_[at] = {name, t.detach()};
  }

  const List<detail::KeptTensor>& kept() const { return kept_; }
  detail::Endpoint& endpoint() { return endpoint_; }

 private:
  detail::Endpoint endpoint_;
  List<detail::KeptTensor> kept_;
};

#undef TINYSCALE_HERE

}  // namespace tinyscale
