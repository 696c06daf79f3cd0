#pragma once
// A mesh: the devices of a machine under named axes, and a program run on all of them.
// Each device has a context of its own (ops, memory, device number); host loops inside are serial.
// When a device fails, or all wait, the run ends with an Error that says where each is.

#include <algorithm>  // max, min
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>  // move

#include "tinyscale/base/config.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/base/threads.hpp"
#include "tinyscale/measure/context.hpp"
#include "tinyscale/measure/profile.hpp"
#include "tinyscale/mesh/device.hpp"
#include "tinyscale/mesh/device_thread.hpp"
#include "tinyscale/mesh/mesh_axis.hpp"
#include "tinyscale/mesh/mesh_run.hpp"
#include "tinyscale/mesh/mpi_run.hpp"
#include "tinyscale/mesh/predict.hpp"
#include "tinyscale/mesh/run_devices.hpp"
#include "tinyscale/mesh/sharded.hpp"

namespace tinyscale {

class Mesh {
 public:
  // Axis sizes multiply to the machine's chips; the last axis is the fastest.
  Mesh(const Machine& machine, const List<MeshAxis>& axes) : machine_(machine), axes_(axes) {
    detail::check_axes(machine, axes);
  }

  // Of the collectives that have it and do not say otherwise; the others take the cheapest.
  Algorithm algorithm = Algorithm::automatic;
  // 0: thread_count() threads carry all devices, where there are more of these; who waits for
  // another, in a call of its Device, lets its thread run the next. n: each device has a thread of
  // its own, as programs need whose devices wait for each other in other ways (a condition
  // variable, a flag, a lock held during a call), and n of them run at once. So it is too where
  // there are no carriers (Linux on x86-64 and ARM64 has them, not in an interpreter, not under a
  // sanitizer); then 0 is all of up to 256, of more thread_count().
  int runnable = 0;

  const Machine& machine() const { return machine_; }
  const List<MeshAxis>& axes() const { return axes_; }
  int size() const { return static_cast<int>(machine_.chips()); }
  int size(const std::string& axis) const {
    for (const MeshAxis& known : axes_) {
      if (known.name == axis) {
        return static_cast<int>(known.size.value);
      }
    }
    detail::fail(
        {"size: no axis ", axis, " on this mesh; its axes are ", detail::axis_names(axes_)});
  }
  MeshPlacement placement() const { return {machine_.name, detail::place_axes(machine_, axes_)}; }

  // The array cut over the devices: shard(x, "I_x, J"). Of a shape alone it says what things cost.
  // `format` prices it; the numbers stay f32.
  Sharded shard(const Tensor& x, const std::string& sharding, DType format = DType::f32) const {
    return detail::shard(placed(), x, sharding, format);
  }
  Sharded shard(const Shape& shape, const std::string& sharding, DType format = DType::f32) const {
    return detail::shard(placed(), shape, sharding, format);
  }

  // Runs `program` on every device at once; returns when all have returned.
  MeshRun run(const DeviceProgram& program) const {
    if (!program) {
      detail::fail({"Mesh::run: the program is empty; give a function of Device&"});
    }
    if (runnable < 0) {
      detail::fail({"Mesh::run: ", runnable, " runnable devices; 1 or more are right, or 0, which ",
                    "leaves it to the mesh"});
    }
    check_algorithm("Mesh::run");
    const Machine& machine = detail::machine_of_all(machine_, axes_, algorithm);
    const List<AxisPlacement> placed = detail::place_axes(machine, axes_);
    Context& caller = context();
    // Where no more devices than processors run, who waits spins.
    const bool carried = runnable == 0 && size() > thread_count() && detail::fibers_work();
    const bool all = carried || runnable >= size() || (runnable == 0 && size() <= 256);
    const int at_once = all ? 0 : runnable > 0 ? runnable : thread_count();
    const int threads = std::min(thread_count(), at_once > 0 ? at_once : thread_count());
    detail::Fabric fabric(machine, placed, at_once, threads);
    List<Shared<detail::DeviceThread>> devices;
    for (int rank = 0; rank < size(); ++rank) {
      devices.push_back(
          Shared<detail::DeviceThread>(new detail::DeviceThread(fabric, algorithm, rank)));
      devices.back()->device.endpoint().keep_records(
          caller.profile != nullptr ? detail::Keep::records : detail::Keep::totals);
      devices.back()->context.device = rank;
      devices.back()->context.kind = caller.kind;
      devices.back()->context.no_grad = caller.no_grad;
    }
#if defined(TINYSCALE_USE_MPI)
    if (!detail::run_on_ranks(program, fabric, devices))
#endif
      detail::run_devices(program, fabric, devices, carried ? thread_count() : 0);
    if (caller.profile != nullptr) {  // in rank order, whatever the threads did
      for (const Shared<detail::DeviceThread>& device : devices) {
        for (OpRecord& record : device->records) {
          caller.profile->record(std::move(record));
        }
      }
    }
    const std::string failure = fabric.failure();
    if (!failure.empty()) {
      detail::fail({failure});
    }
    return MeshRun(record_of(devices), machine);
  }

  // What it would take, from the device of that rank alone; see predict.hpp. Numbers that would
  // come from other devices are made up of its own.
  MeshPrediction predict(const DeviceProgram& program, int rank = 0) const {
    if (!program || rank < 0 || rank >= size()) {
      detail::fail({"Mesh::predict: ", program ? "a" : "an empty", " program on rank ", rank,
                    "; give a function of Device&, and a rank of 0 to ", size() - 1});
    }
    check_algorithm("Mesh::predict");
    const List<AxisPlacement> placed = detail::place_axes(machine_, axes_);
    detail::Fabric fabric(machine_, placed, 0, 1, true);
    detail::DeviceThread self(fabric, algorithm, rank);
    self.context.device = rank;
    self.context.kind = context().kind;
    self.context.no_grad = context().no_grad;
    const ContextScope scope(self.context);
    Profile profile;
    self.device.endpoint().begin(profile);
    program(self.device);
    self.device.endpoint().finish();
    return detail::predict_log(self.device.endpoint().log(), rank, machine_, placed);
  }

 private:
  void check_algorithm(const char* function) const {
    if (algorithm == Algorithm::custom) {
      detail::fail({function,
                    ": mesh.algorithm is custom, which is a schedule for one collective; ",
                    "give it to the call, in CollectiveOptions::schedule"});
    }
  }
  Shared<const detail::PlacedMesh> placed() const {
    return Shared<const detail::PlacedMesh>(
        new detail::PlacedMesh{machine_, detail::place_axes(machine_, axes_)});
  }
  Shared<detail::MeshRecord> record_of(const List<Shared<detail::DeviceThread>>& devices) const {
    Shared<detail::MeshRecord> record(new detail::MeshRecord);
    List<const detail::DeviceLog*> logs;
    for (const Shared<detail::DeviceThread>& device : devices) {
      logs.push_back(&device->device.endpoint().log());
      record->kept.push_back(device->device.kept());
      record->counters.push_back(device->counters);
      record->measured = std::max(record->measured, device->seconds);
      record->memory.push_back(device->context.memory);
    }
    record->log = detail::join_logs(logs);
    record->axes = axes_;
    record->machine = machine_.name;
    return record;
  }

  Machine machine_;
  List<MeshAxis> axes_;
};

inline std::ostream& operator<<(std::ostream& out, const Mesh& mesh) {
  return out << mesh.placement();
}

}  // namespace tinyscale
