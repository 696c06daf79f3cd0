#pragma once
// The same array under another sharding: its numbers sent by the schedules of the collectives that
// the search found, group by group.

#include <algorithm>  // max
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tinyscale/base/list.hpp"
#include "tinyscale/mesh/call_plan.hpp"
#include "tinyscale/mesh/sharded.hpp"
#include "tinyscale/mesh/sharding_search.hpp"

namespace tinyscale {
namespace detail {

inline std::string move_name(const AxisMove& move) {
  return is_slice(move) ? "slice" : name_of(collective_of(move));
}

// Part i of n along a dim, as a view.
inline Tensor part_of(const Tensor& x, int dim, std::int64_t n, std::int64_t i) {
  const std::int64_t size = x.dim(dim) / n;
  return slice(x, dim, i * size, (i + 1) * size);
}

// The ranks of the group over some axes that `first` begins.
inline std::vector<std::size_t> group_of(const PlacedMesh& mesh, const std::string& letters,
                                         int first) {
  std::vector<std::size_t> members = {static_cast<std::size_t>(first)};
  for (const char letter : letters) {
    const AxisPlacement& axis = mesh.axes[axis_number(letter)];
    std::vector<std::size_t> longer;
    for (const std::size_t base : members) {
      for (int i = 0; i < axis.size; ++i) {
        longer.push_back(base + static_cast<std::size_t>(i * axis.stride));
      }
    }
    members.swap(longer);
  }
  return members;
}

inline Shared<const CallPlan> plan_of(const PlacedMesh& mesh, const AxisMove& move,
                                      const Shape& local, Algorithm algorithm, Reduce how) {
  CallKey key;
  key.what = collective_of(move);
  key.algorithm = algorithm;
  key.how = how;
  const int dim = key.what == Collective::all_gather ? move.from : move.to;
  key.dim = move.also > 0 || dim < 1 ? 0 : dim - 1;
  key.to_dim = std::max(0, move.from - 1);
  key.shape = move.also > 0 ? Shape{local.count()} : local;
  key.axes = axis_numbers(move.axes);
  return make_plan(key, mesh.machine, mesh.axes, SourceLine());
}

// Sends the numbers, group by group; how many elements a device sent on average.
inline double run_collective(const PlacedMesh& mesh, const CallPlan& plan, const std::string& axes,
                             const Shape& after, List<Tensor>& shards) {
  for (int first = 0; first < mesh.devices(); ++first) {
    if (shard_index(mesh, axes, first) == 0) {
      const std::vector<std::size_t> members = group_of(mesh, axes, first);
      List<DeviceBuffers> buffers;
      List<Tensor> before;  // keeps what is sent
      for (const std::size_t rank : members) {
        before.push_back(contiguous(shards[rank]));
        shards[rank] = Tensor(after);
        buffers.push_back({before.back().data(), shards[rank].data()});
      }
      execute(plan.exchange, buffers.data());
    }
  }
  std::int64_t sent = 0;
  for (const Transfer& transfer : plan.shape->schedule->data.transfers) {
    sent += plan.exchange.cut.elements(transfer.chunk, transfer.chunks);
  }
  return static_cast<double>(sent) / plan.exchange.devices;
}

// What came of an all_gather of two dims: blocks [n, m] of shape `local`, put in their places.
inline Tensor placed_blocks(const Tensor& flat, const AxisMove& move, std::int64_t n,
                            const Shape& local, const Shape& after) {
  Shape blocks = {n, flat.count() / std::max<std::int64_t>(1, n * local.count())};
  List<int> order;
  for (int d = 0; d < local.size(); ++d) {
    if (d == move.from - 1 || d == move.also - 1) {
      order.push_back(d == move.from - 1 ? 0 : 1);
    }
    order.push_back(d + 2);
    blocks.push_back(local[d]);
  }
  return reshape(contiguous(permute(reshape(flat, blocks), order)), after);
}

// Makes a move of array `name` (" b") and writes it into the report.
inline void make_move(Sharded& a, const AxisMove& move, ShardedReport& report,
                      const char* name = "", Reduce how = Reduce::sum) {
  const PlacedMesh& mesh = *a.mesh;
  const Shape local = a.local_shape();
  const MoveCost cost = price(mesh, move, local.count(), a.format);
  const std::string before = a.sharding.text();
  a.sharding = sharding_of(mesh, after_move(a.places(), move), a.sharding.dims);
  ShardedStep step = {move_name(move) + name,
                      axes_text(mesh, move.axes),
                      before,
                      a.sharding.text(),
                      is_slice(move) ? "" : name_of(cost.algorithm),
                      cost.bytes,
                      0,
                      cost.seconds};
  const DeviceScope quiet(-1);
  if (!is_slice(move) && !a.shards.empty()) {
    const Shared<const CallPlan> plan = plan_of(mesh, move, local, cost.algorithm, how);
    const Shape after = a.local_shape();
    const Shape flat = {after.count()};
    step.counted = run_collective(mesh, *plan, move.axes, move.also > 0 ? flat : after, a.shards) *
                   bytes_of(a.format);
    for (std::size_t rank = 0; move.also > 0 && rank < a.shards.size(); ++rank) {
      const std::int64_t n = shard_count(mesh, move.axes.substr(0, move.first));
      a.shards[rank] = placed_blocks(a.shards[rank], move, n, local, after);
    }
  }
  for (std::size_t rank = 0; is_slice(move) && rank < a.shards.size(); ++rank) {
    a.shards[rank] = part_of(a.shards[rank], move.to - 1, shard_count(mesh, move.axes),
                             shard_index(mesh, move.axes, static_cast<int>(rank)))
                         .copied();
  }
  report.bytes += cost.bytes;
  report.comms_seconds += cost.seconds;
  report.steps.push_back(step);
}

// "all_gather b over x, " for each move of array " b".
inline std::string moves_text(const PlacedMesh& mesh, const List<AxisMove>& moves,
                              const std::string& array) {
  std::string out;
  for (const AxisMove& move : moves) {
    out += move_name(move) + array + " over " + axes_text(mesh, move.axes) + ", ";
  }
  return out;
}

inline void make_moves(Sharded& a, const List<AxisMove>& moves, const char* name,
                       ShardedReport& report) {
  for (const AxisMove& move : moves) {
    make_move(a, move, report, name);
  }
}

inline void check_same_names(const char* function, const Sharding& a, const Sharding& b) {
  bool same = a.dims.size() == b.dims.size();
  for (std::size_t d = 0; same && d < a.dims.size(); ++d) {
    same = a.dims[d].name == b.dims[d].name;
  }
  if (!same) {
    fail({function, ": the array is [", a.text(), "], wanted is [", b.text(),
          "]; the same dims in the same order are right"});
  }
}

inline void add_candidate(const ShardingSearch& search, const PlacedMesh& mesh, const Reached& end,
                          ShardedReport& report) {
  const std::string calls = moves_text(mesh, search.moves(end), "");
  report.candidates.push_back(
      {calls.substr(0, calls.size() - 2), 0, end.seconds, end.bytes, end.seconds});
}

// Also says what the cheapest way without detours costs, where it is another.
inline void reshard_into(Sharded& a, const Sharding& wanted, ShardedReport& report,
                         const char* function) {
  a.check();
  check_same_names(function, a.sharding, wanted);
  const AxisPlaces goal = places_of(*a.mesh, wanted, a.shape);
  const AxisPlaces start = a.places();
  const std::string axes = axes_to_use(*a.mesh, start, goal);
  const bool few = too_many_ways(start.size() - 1, axes.size(), 21000);  // half a second
  const SearchSpace space = space_of(axes, start, goal, !few);
  MoveCosts costs;
  ShardingSearch all(*a.mesh, space, a.shape, a.format, start, Direction::forwards, Detours::yes,
                     costs);
  ShardingSearch plain(*a.mesh, space, a.shape, a.format, start, Direction::forwards, Detours::no,
                       costs);
  const Reached* const end = all.find(goal);
  const Reached* const straight = plain.find(goal);
  if (end == nullptr) {
    fail({function, ": from ", a.text(), " to [", wanted.text(),
          "]; a sum that is made is not undone, leave out what stands in braces"});
  }
  if (straight != nullptr && straight->seconds > end->seconds) {
    add_candidate(all, *a.mesh, *end, report);
    add_candidate(plain, *a.mesh, *straight, report);
  }
  make_moves(a, all.moves(*end), "", report);
  report.reason += few ? few_ways_text(axes.size()) : "";
  a.sharding = wanted;
}

}  // namespace detail

// The same array under another sharding: reshard(c, "I_x, J").
inline Sharded reshard(const Sharded& a, const std::string& text) {
  Sharded out = a;
  ShardedReport report;
  report.title = "reshard " + a.text() + " -> [" + parse_sharding(text).text() + "]";
  detail::reshard_into(out, parse_sharding(text), report, "reshard");
  report.reason =
      (report.steps.empty() ? "nothing moves"
       : report.candidates.empty()
           ? "the cheapest way: " + format_seconds(report.comms_seconds)
           : std::string("idle axes help: a slice is free, and more links carry less each")) +
      report.reason;
  detail::finish(out, report);
  return out;
}

}  // namespace tinyscale
