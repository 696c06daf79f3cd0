#pragma once
// How the devices of a run get a processor: a few threads that carry them all by turns, or a thread
// for each.

#include <algorithm>  // max
#include <cstddef>
#include <exception>
#include <string>
#include <vector>

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
    } catch (const std::exception&) {
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
inline std::size_t index_sum(const List<AxisPlacement>& axes, std::size_t rank) {
  std::size_t sum = 0;
  for (const AxisPlacement& axis : axes) {
    sum += rank / static_cast<std::size_t>(axis.stride) % static_cast<std::size_t>(axis.size);
  }
  return sum;
}
inline std::size_t digit_sum(std::size_t number, std::size_t base) {  // of at least 2
  std::size_t sum = 0;
  for (; number > 0; number /= base) {
    sum += number % base;
  }
  return sum;
}

// On which of at least 2 carriers each device is. Those of a stage, which work while all others
// wait, are on all: by the sum of their indices on the axes, where that gives each carrier an even
// share; else by the digits of their ranks.
inline std::vector<std::size_t> carriers_of(const List<AxisPlacement>& axes, std::size_t devices,
                                            std::size_t carriers) {
  std::vector<std::size_t> on(devices), counts(carriers, 0);
  bool even = true;
  for (std::size_t rank = 0; rank < devices; ++rank) {
    on[rank] = index_sum(axes, rank) % carriers;
    even = even && ++counts[on[rank]] <= (devices + carriers - 1) / carriers;
  }
  for (std::size_t rank = 0; rank < devices && !even; ++rank) {
    on[rank] = digit_sum(rank, carriers) % carriers;
  }
  return on;
}

inline void run_carrier(void* carrier) { static_cast<Carrier*>(carrier)->run(); }

inline void run_on_carriers(std::size_t threads, Fabric& fabric,
                            List<Shared<DeviceThread>>& devices) {
  check_stack_limit(static_cast<int>(devices.size()));
  const int here = std::max(0, current_processor());  // of who waits for the run
  const std::vector<std::size_t> on = threads > 1
                                          ? carriers_of(fabric.axes(), devices.size(), threads)
                                          : std::vector<std::size_t>(devices.size(), 0);
  List<Shared<Carrier>> carriers;
  for (std::size_t i = 0; i < threads; ++i) {
    const int processor = threads > 1 ? here + static_cast<int>(i) : -1;
    carriers.push_back(Shared<Carrier>(new Carrier(fabric.mutex(), processor)));
  }
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    Carrier& carrier = *carriers[on[rank]];
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
    } catch (const std::exception&) {
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
