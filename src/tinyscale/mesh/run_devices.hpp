#pragma once
// How the devices of a run get a processor: a few threads that carry them all by turns, or a thread
// for each.

#include <cstddef>
#include <string>
#include <system_error>

#include "tinyscale/base/config.hpp"
#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/base/thread_scope.hpp"
#include "tinyscale/mesh/carrier.hpp"
#include "tinyscale/mesh/device_thread.hpp"
#include "tinyscale/mesh/thread_limit.hpp"

namespace tinyscale {
namespace detail {

inline void run_device_thread(void* device) {
  DeviceThread& self = *static_cast<DeviceThread*>(device);
  run_device(*self.program, *self.fabric, self);
}

#if defined(TINYSCALE_NO_THREADS)
inline void run_on_threads(Fabric& fabric, List<Shared<DeviceThread>>& devices) {
  if (devices.size() > 1) {
    fail({"mesh.run: ", devices.size(), " devices need threads, and this program is ",
          "compiled with TINYSCALE_NO_THREADS; use a mesh of 1 device, or Sharded tensors"});
  }
  run_device(*devices[0]->program, fabric, *devices[0]);
}
#else
inline void run_on_threads(Fabric& fabric, List<Shared<DeviceThread>>& devices) {
  check_thread_limit(static_cast<int>(devices.size()));
  ThreadGroup group;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    try {
      group.start(&run_device_thread, devices[i].get());
    } catch (const std::system_error&) {
      for (std::size_t rank = i; rank < devices.size(); ++rank) {
        fabric.threw(static_cast<int>(rank), "at its start",
                     cat({"the system gives ", i, " threads; a mesh can have so many devices"}));
      }
      break;
    }
  }
  group.join();
}
#endif

#if TINYSCALE_FIBERS
// Devices that differ on one axis go to one carrier after the other: those of a stage that work
// while all others wait are on all carriers.
inline std::size_t carrier_of(const List<AxisPlacement>& axes, int rank, std::size_t carriers) {
  std::size_t sum = 0;
  for (const AxisPlacement& axis : axes) {
    sum += static_cast<std::size_t>(rank / axis.stride % axis.size);
  }
  return sum % carriers;
}

inline void run_carrier(void* carrier) { static_cast<Carrier*>(carrier)->run(); }

inline void run_on_carriers(std::size_t threads, Fabric& fabric,
                            List<Shared<DeviceThread>>& devices) {
  check_stack_limit(static_cast<int>(devices.size()));
  List<Shared<Carrier>> carriers;
  for (std::size_t i = 0; i < threads; ++i) {
    carriers.push_back(Shared<Carrier>(new Carrier(fabric.mutex(), static_cast<int>(i))));
  }
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    Carrier& carrier = *carriers[carrier_of(fabric.axes(), static_cast<int>(rank), threads)];
    Fiber* const fiber = carrier.add(&run_device_thread, devices[rank].get());
    if (fiber == nullptr) {
      fail({"mesh.run: the system gives memory for the stacks of ", rank, " devices; a mesh can ",
            "have so many, two memory maps each (vm.max_map_count)"});
    }
    devices[rank]->fiber = fiber;
    fabric.carry(static_cast<int>(rank), fiber);
  }
  ThreadGroup group;
  for (std::size_t i = 0; i < threads; ++i) {
    try {
      group.start(&run_carrier, carriers[i].get());
    } catch (const std::system_error&) {
      for (std::size_t rank = 0; rank < devices.size(); ++rank) {
        if (devices[rank]->fiber->carrier == carriers[i].get()) {
          fabric.threw(static_cast<int>(rank), "at its start", "the system gives no more threads");
        }
      }
    }
  }
  group.join();
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {  // the run is judged once more
    devices[rank]->fiber = nullptr;
    fabric.carry(static_cast<int>(rank), nullptr);
  }
}
#endif

// `carriers`: threads that carry all devices; 0: each has its own.
inline void run_devices(const DeviceProgram& program, Fabric& fabric,
                        List<Shared<DeviceThread>>& devices, int carriers) {
  for (const Shared<DeviceThread>& device : devices) {
    device->program = &program;
  }
#if TINYSCALE_FIBERS
  if (carriers > 0) {
    run_on_carriers(static_cast<std::size_t>(carriers), fabric, devices);
    return;
  }
#else
  static_cast<void>(carriers);
#endif
  run_on_threads(fabric, devices);
}

}  // namespace detail
}  // namespace tinyscale
