#pragma once
// One device while it runs, on a thread or fiber of this process or as one MPI rank, and what it
// leaves.

#include <algorithm>  // max
#include <chrono>
#include <exception>
#include <string>

#include "tinyscale/base/function.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/threads.hpp"
#include "tinyscale/measure/context.hpp"
#include "tinyscale/measure/profile.hpp"
#include "tinyscale/mesh/device.hpp"

namespace tinyscale {

using DeviceProgram = Function<void(Device&)>;

namespace detail {

// One device while it runs, and what it leaves.
struct DeviceThread {
  DeviceThread(Fabric& shared, Algorithm algorithm, int rank)
      : device(shared, algorithm, rank), fabric(&shared), neighbours(shared.devices()) {}

  Device device;
  const DeviceProgram* program = nullptr;
  Fabric* fabric = nullptr;
  const Fiber* fiber = nullptr;  // null: it has a thread of its own
  int neighbours = 1;            // devices that share this computer, this one among them
  Context context;               // its profile is null until the device runs
  List<OpRecord> records;        // for the caller's profile
  Counters counters;
  double seconds = 0;  // measured
};

inline std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  } catch (...) {
    return "something that is not a std::exception";
  }
}

// Runs the program on one device; whatever it throws goes to the fabric.
inline void run_device(const DeviceProgram& program, Fabric& fabric, DeviceThread& self) {
  const ThreadBlocks blocks;
  const ContextScope scope(self.context);
  const ThreadScope share(std::max(1, thread_count() / self.neighbours));
  Profile profile;
  Endpoint& endpoint = self.device.endpoint();
  endpoint.begin(profile, self.fiber);
  fabric.begin(endpoint.rank());
  const auto start = std::chrono::steady_clock::now();
  try {
    program(self.device);
    endpoint.finish();
    fabric.returned(endpoint.rank(), endpoint.returned());
  } catch (...) {
    fabric.threw(endpoint.rank(), endpoint.threw(), message_of(std::current_exception()));
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  self.seconds = took.count();
  self.counters = endpoint.counters();
  self.records = profile.records();
}

}  // namespace detail
}  // namespace tinyscale
