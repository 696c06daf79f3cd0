#pragma once
// A collective as a program calls it, and what follows from that for every device: its text, the
// algorithm, the schedule of its messages, the way of each chunk. Made once, used by every group of
// devices that makes the same call, and at every step of a training.

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>  // move
#include <vector>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/shape.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/mesh/check_schedule.hpp"
#include "tinyscale/mesh/choose_algorithm.hpp"
#include "tinyscale/mesh/executor.hpp"
#include "tinyscale/mesh/make_schedule.hpp"
#include "tinyscale/mesh/mesh_axis.hpp"
#include "tinyscale/mesh/run_log.hpp"
#include "tinyscale/tensor/views.hpp"

namespace tinyscale {

// How one call is to be made, if not as the mesh says.
struct CollectiveOptions {
  Algorithm algorithm = Algorithm::automatic;  // automatic: that of the mesh
  DType format = DType::f32;                   // on the wire; sums are f32, then all_reduce rounds
  const CollectiveSchedule* schedule = nullptr;  // the user's own; copied when the call starts
  bool used_alike = false;    // all_gather: all devices compute the same with it, so that its
                              // gradient needs no sum: a slice is carried back
  bool gather_again = false;  // all_gather: matmuls do not keep the result for the backward pass,
                              // which gathers it again, so that each device keeps its part alone
};

namespace detail {

// Equal on all devices of a group, or the run ends.
struct CallKey {
  Collective what = Collective::barrier;
  Algorithm algorithm = Algorithm::automatic;
  Algorithm preferred = Algorithm::automatic;  // of the mesh, for collectives that have it
  Reduce how = Reduce::sum;
  DType format = DType::f32;
  int root = 0;                    // permute: the shift
  int dim = 0, to_dim = 0;         // all_to_all: split and joined; else the first alone
  Shape shape;                     // of a device's tensor; of several tensors in one call, flat
  std::vector<int> axes;           // of the mesh, the slowest first
  std::vector<std::int64_t> rows;  // ragged all_to_all: from each to each, sender the slower; of a
                                   // prediction from one device to each
  const CollectiveSchedule* schedule = nullptr;
};

// For what looks at the program's own schedule when that may be gone; null of none.
inline Shared<const CollectiveSchedule> copied_schedule(const CollectiveOptions& options) {
  return Shared<const CollectiveSchedule>(
      options.schedule == nullptr ? nullptr : new CollectiveSchedule(*options.schedule));
}

inline bool operator==(const Transfer& a, const Transfer& b) {
  return a.step == b.step && a.from == b.from && a.to == b.to && a.chunk == b.chunk &&
         a.chunks == b.chunks && a.action == b.action && a.stream == b.stream;
}

// Devices may each make a schedule of their own.
inline bool same_schedule(const CollectiveSchedule* a, const CollectiveSchedule* b) {
  if (a == b || a == nullptr || b == nullptr) {
    return a == b;
  }
  bool same = a->name == b->name && a->what == b->what && a->devices == b->devices &&
              a->chunks == b->chunks && a->root == b->root &&
              a->transfers.size() == b->transfers.size();
  for (std::size_t i = 0; same && i < a->transfers.size(); ++i) {
    same = a->transfers[i] == b->transfers[i];
  }
  return same;
}

inline bool operator==(const CallKey& a, const CallKey& b) {
  return a.what == b.what && a.algorithm == b.algorithm && a.preferred == b.preferred &&
         a.how == b.how && a.format == b.format && a.root == b.root && a.dim == b.dim &&
         a.to_dim == b.to_dim && a.shape == b.shape && a.axes == b.axes && a.rows == b.rows &&
         same_schedule(a.schedule, b.schedule);
}

inline std::string axes_text(const List<AxisPlacement>& axes, const std::vector<int>& chosen) {
  std::string out;
  for (const int axis : chosen) {
    out += (out.empty() ? "" : ",") + axes[static_cast<std::size_t>(axis)].name;
  }
  return out;
}

// "[4], dim 0": what the call says besides its axes.
inline std::string arguments_text(const CallKey& key) {
  if (key.what == Collective::barrier) {
    return "";
  }
  std::string out = key.shape.text();
  switch (key.what) {
    case Collective::all_gather: out += cat({", dim ", key.dim}); break;
    case Collective::reduce_scatter: out += cat({", dim ", key.dim, ", ", name_of(key.how)}); break;
    case Collective::all_reduce: out += cat({", ", name_of(key.how)}); break;
    case Collective::all_to_all:
      out += key.to_dim >= 0 ? cat({", dim ", key.dim, " to ", key.to_dim}) : ", ragged";
      break;
    case Collective::broadcast: out += cat({", root ", key.root}); break;
    case Collective::reduce: out += cat({", root ", key.root, ", ", name_of(key.how)}); break;
    case Collective::gather:
    case Collective::scatter: out += cat({", root ", key.root, ", dim ", key.dim}); break;
    case Collective::permute: out += cat({", shift ", key.root}); break;
    case Collective::barrier: break;
  }
  if (key.format != DType::f32) {
    out += cat({", ", name_of(key.format)});
  }
  if (key.schedule != nullptr) {
    out += cat({", by ", key.schedule->name});
  } else if (key.algorithm != Algorithm::automatic) {
    out += cat({", by ", name_of(key.algorithm)});
  }
  return out;
}

inline std::string call_text(const CallKey& key, const std::string& axes) {
  std::string inside = arguments_text(key);
  inside += inside.empty() || axes.empty() ? "" : ", ";
  return cat({name_of(key.what), "(", inside, axes, ")"});
}

struct CallPlan {
  CallKey key;
  CollectiveSchedule own;  // a copy of the user's, to which the key refers
  Shared<const CallShape> shape;
  Exchange exchange;
};

// How the blocks lie in a tensor of that shape cut into n parts of dimension d.
inline BlockMap cut_map(const Shape& shape, int d, int n) {
  const std::int64_t inner = inner_count(shape, d) * shape[d];
  return {inner / n, inner};
}

inline void plan_blocks(const CallKey& key, int n, Exchange& e) {
  const std::int64_t count = key.what == Collective::barrier ? 0 : key.shape.count();
  e.cut.blocks = block_count(key.what, n);
  e.cut.block = count;
  e.in = e.out = {count, count};
  const int d = key.dim;
  switch (key.what) {
    case Collective::all_gather:
    case Collective::gather: {
      const std::int64_t run = inner_count(key.shape, d) * key.shape[d];
      e.out = {run, run * n};
      break;
    }
    case Collective::reduce_scatter:
    case Collective::scatter:
      e.cut.block = count / n;
      e.in = cut_map(key.shape, d, n);
      e.out = {count / n, count / n};
      break;
    case Collective::all_to_all: {
      if (!key.rows.empty()) {
        const std::int64_t row = inner_count(key.shape, 0);
        e.cut.ragged.assign(1, 0);
        for (const std::int64_t rows : key.rows) {
          e.cut.ragged.push_back(e.cut.ragged.back() + rows * row);
        }
        e.in = e.out = {e.cut.ragged.back() + 1, 0};
        e.landing.resize(key.rows.size());
        for (std::size_t b = 0, at = 0; at < static_cast<std::size_t>(n); b = ++at) {
          std::int64_t begin = 0;
          for (; b < key.rows.size(); b += static_cast<std::size_t>(n)) {
            e.landing[b] = begin;
            begin += key.rows[b] * row;
          }
        }
        break;
      }
      e.cut.block = count / n;
      e.in = cut_map(key.shape, d, n);
      Shape block = key.shape;
      block.set(d, key.shape[d] / n);
      const std::int64_t run = inner_count(block, key.to_dim) * block[key.to_dim];
      e.out = {run, run * n};
      break;
    }
    default: break;
  }
  for (BlockMap* map : {&e.in, &e.out}) {  // empty tensors have no element to place
    map->run = map->run > 0 ? map->run : 1;
  }
}

// A call's shape without its schedule, and where its blocks lie.
inline void describe_call(const CallKey& key, const Machine& machine,
                          const List<AxisPlacement>& axes, const SourceLine& where,
                          CallShape& shape, Exchange& e) {
  shape.name = name_of(key.what);
  shape.axes = axes_text(axes, key.axes);
  shape.arguments = arguments_text(key);
  shape.where = where;
  shape.axis_numbers = key.axes;
  CollectiveSpec& spec = shape.spec;
  spec.what = key.what;
  spec.parts = parts_of_group(machine, axes, key.axes);
  spec.element_bytes = bytes_of(key.format);
  spec.root = key.root;
  const int n = spec.devices();
  e.what = key.what;
  e.how = key.how;
  e.format = key.format;
  e.devices = n;
  e.root = key.root;
  plan_blocks(key, n, e);
  if (!key.rows.empty()) {  // of a device in the mean; 0 only if nothing moves
    const std::int64_t senders = static_cast<std::int64_t>(key.rows.size()) / n;
    spec.elements = (e.cut.ragged.back() + senders - 1) / senders;
  } else if (key.what == Collective::all_to_all || key.what == Collective::permute) {
    spec.elements = key.shape.count();
  } else {
    spec.elements = e.cut.begin(e.cut.chunks());
  }
  const bool prefers = key.algorithm == Algorithm::automatic;
  spec.algorithm = prefers ? key.preferred : key.algorithm;
  if (key.schedule != nullptr) {
    check_own_schedule(*key.schedule, spec);
    spec.algorithm = Algorithm::custom;
    shape.reason = "the program's own schedule";
  } else if (spec.algorithm == Algorithm::automatic ||
             (prefers && !has_algorithm(spec.what, spec.algorithm))) {
    const AlgorithmChoice choice = choose_algorithm(spec);
    spec.algorithm = choice.algorithm;
    shape.reason = (e.cut.even() ? "" : "as if all rows were even: ") + choice.reason;
  } else {
    shape.reason =
        cat({name_of(spec.algorithm), prefers ? ", as the mesh says" : ", as the call says"});
  }
}

// The user's, checked; of no elements nothing moves.
inline CollectiveSchedule own_schedule(const CallKey& key, const CollectiveSpec& spec) {
  check_schedule(*key.schedule);
  CollectiveSchedule own = *key.schedule;
  if (moves_nothing(spec)) {
    own.transfers.clear();
  }
  return own;
}

// What all groups share that make this call; throws when its algorithm does not fit.
inline Shared<const CallPlan> make_plan(const CallKey& key, const Machine& machine,
                                        const List<AxisPlacement>& axes, const SourceLine& where) {
  CallPlan* const plan = new CallPlan;
  const Shared<const CallPlan> made(plan);
  CallShape* const shape = new CallShape;
  plan->shape = Shared<const CallShape>(shape);
  plan->key = key;
  Exchange& e = plan->exchange;
  describe_call(key, machine, axes, where, *shape, e);
  CollectiveSchedule schedule;
  if (key.schedule != nullptr) {
    schedule = own_schedule(key, shape->spec);
    plan->own = *key.schedule;
    plan->key.schedule = &plan->own;
  } else {
    schedule = make_schedule(shape->spec);
  }
  e.cut.parts = schedule.chunks / e.cut.blocks;
  shape->cut = e.cut;
  shape->schedule = prepare(std::move(schedule));
  e.paths = chunk_paths(*shape->schedule, e.cut);
  return made;
}

// What the log says of a user's send.
inline Shared<const CallShape> send_shape(std::int64_t elements, const SourceLine& where) {
  CallShape* const shape = new CallShape;
  const Shared<const CallShape> made(shape);
  shape->name = "send";
  shape->where = where;
  shape->eager = true;
  shape->cut.block = elements;
  shape->spec.elements = elements;
  CollectiveSchedule send;
  send.name = "send";
  send.what = Collective::broadcast;
  send.devices = 2;
  Transfer whole;
  whole.to = 1;
  send.transfers.push_back(whole);
  shape->schedule = prepare(std::move(send));
  return made;
}

}  // namespace detail
}  // namespace tinyscale
