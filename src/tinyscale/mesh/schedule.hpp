#pragma once
// A collective algorithm as plain data: who sends which chunk to whom in which step, and whether
// the receiver keeps it or adds it to what it has. Transfers of one step happen at once: each sends
// what was there before the step. Those of one step from one device to another are one message.
// Streams are chains of steps that do not wait for each other and touch different chunks.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/mesh/collective_spec.hpp"

namespace tinyscale {

enum class Action { copy, reduce };

// Devices are indices in the group.
struct Transfer {
  int step = 0;
  int from = 0, to = 0;
  int chunk = 0;   // the first,
  int chunks = 1;  // and how many behind each other
  Action action = Action::copy;
  int stream = 0;
};

// Before it runs a device holds its own block (all_gather, gather, permute: block of its index;
// all_to_all: blocks to every device), its share of a sum (reduce_scatter, all_reduce, reduce: all
// blocks), or, being the root, everything (broadcast, scatter). Afterwards it must hold: all blocks
// (all_gather, all_reduce, broadcast), its own (reduce_scatter, scatter), those sent to it
// (all_to_all: from every device; permute: of index - root), everything at the root (reduce,
// gather). What a device holds besides is nobody's business.
struct CollectiveSchedule {
  std::string name;
  Collective what = Collective::all_gather;
  int devices = 1;
  int chunks = 1;            // a multiple of the blocks of `what` (see ChunkCut)
  int root = 0;              // broadcast, reduce, gather, scatter; permute: the shift
  List<Transfer> transfers;  // in any order
};

namespace detail {

// The transfers first to last - 1 of a PreparedSchedule that travel as one.
struct ScheduledMessage {
  int from = 0, to = 0;
  std::size_t first = 0, last = 0;
};

// A schedule ready to run and to time: its transfers by stream, step, sender, receiver.
struct PreparedSchedule {
  struct Step {
    std::size_t first = 0, last = 0;  // messages
    bool overlaps = false;            // a chunk of a device is both sent and changed in it
  };
  struct Stream {
    std::size_t first = 0, last = 0;  // steps
  };

  CollectiveSchedule data;
  List<ScheduledMessage> messages;
  List<Step> steps;
  List<Stream> streams;
};

}  // namespace detail
}  // namespace tinyscale
