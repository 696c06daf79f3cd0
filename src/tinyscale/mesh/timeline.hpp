#pragma once
// What a replay gives: when each message, call and device of a run log was busy, in simulated
// seconds; and what may be wrong with the machine while it runs.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/mesh/route.hpp"

namespace tinyscale {

// Links and devices that are slower by a factor, or dead. A link goes one way; its chips by rank,
// -1 is a switch; in one dimension of the machine, or in all that have it. An uplink is named by
// the first chip behind it, as in run.links().
//   run.on(machine, Faults().slow_link(0, 1, 4).slow_uplink(8, -1, 2).dead_device(3))
struct Faults {
  struct Fault {
    bool link = false, dead = false;
    std::int64_t from = 0, to = 0;  // a device: from
    double factor = 1;
    int dim = -1;  // -1: any
    bool uplink = false;
  };
  List<Fault> all;

  Faults& slow_link(std::int64_t from, std::int64_t to, double factor, int dim = -1) {
    return add({true, false, from, to, factor, dim, false});
  }
  Faults& dead_link(std::int64_t from, std::int64_t to, int dim = -1) {
    return add({true, true, from, to, 1, dim, false});
  }
  Faults& slow_uplink(std::int64_t from, std::int64_t to, double factor, int dim = -1) {
    return add({true, false, from, to, factor, dim, true});
  }
  Faults& dead_uplink(std::int64_t from, std::int64_t to, int dim = -1) {
    return add({true, true, from, to, 1, dim, true});
  }
  Faults& slow_device(std::int64_t rank, double factor) {
    return add({false, false, rank, rank, factor, -1, false});
  }
  Faults& dead_device(std::int64_t rank) { return add({false, true, rank, rank, 1, -1, false}); }

 private:
  Faults& add(const Fault& fault) {
    if (!(fault.factor > 0) || !detail::is_finite(fault.factor)) {
      detail::fail({"Faults: a factor of ", fault.factor,
                    "; a finite number above 0 is right, 4 for a quarter of the speed"});
    }
    all.push_back(fault);
    return *this;
  }
};

// A message as it travelled.
struct TimedMessage {
  int call = 0;          // of RunLog::calls
  int from = 0, to = 0;  // ranks
  int stream = 0, step = 0;
  int hops = 0;
  int after = -1;  // the message whose end let it start, compute between; -1: the beginning
  double bytes = 0;
  double start = 0, finish = -1;  // seconds
};

struct TimedCall {
  double start = -1, finish = -1;  // seconds: its first message leaves, its last has arrived
};

struct TimedDevice {
  double compute = 0;         // seconds
  double waiting = 0;         // seconds in waits: communication that nothing hides
  double end = -1;            // of its program
  int after = -1;             // the message that ended its last wait
  std::vector<double> marks;  // seconds: the ends of its tasks
};

// A device computes, or waits in a call for what nothing hides.
struct TimedSpan {
  int device = 0;
  int call = -1;  // -1: computes
  double start = 0, finish = 0;
  int task = -1;  // of the program
};

struct Timeline {
  double seconds = 0;              // until all devices and messages are done
  bool complete = true;            // all messages and spans are kept
  List<TimedMessage> messages;     // in the order in which they left; none if more than 4 million
  List<TimedCall> calls;           // as RunLog::calls
  List<TimedSpan> spans;           // kept as messages are
  List<TimedDevice> devices;       // by rank
  std::vector<double> link_bytes;  // by number of the link
};

namespace detail {

// The links of a machine with those at fault slowed or cut.
inline MachineLinks links_of(const Machine& machine, const Faults& faults) {
  MachineLinks links(machine);
  for (const Faults::Fault& fault : faults.all) {
    bool found = false;
    if (fault.dim < -1) {
      fail({"time: dimension ", fault.dim, " at fault; one of ", machine.name,
            ", from 0, or -1 for ", "any, is right"});
    }
    for (std::size_t link = 0; fault.link && link < links.count(); ++link) {
      if (links.exists(link) && links.from(link) == fault.from && links.to(link) == fault.to &&
          links.is_uplink(link) == fault.uplink &&
          (fault.dim < 0 || links.dim_of(link) == fault.dim)) {
        found = true;
        if (fault.dead) {
          links.cut(link);
        } else {
          links.slow_down(link, fault.factor);
        }
      }
    }
    if (fault.link && !found) {
      fail({"time: no ", fault.uplink ? "uplink " : "link ", fault.from, " -> ", fault.to,
            fault.dim < 0 ? "" : cat({" of dimension ", fault.dim}), " on ", machine.name,
            " to be at fault; ",
            fault.uplink ? "the first chip behind one names it, the switch is -1"
                         : "links join neighbours, or a chip and its switch (-1)"});
    }
  }
  return links;
}

}  // namespace detail
}  // namespace tinyscale
