#pragma once
// One device's side of the fabric: who its peers are, the call it is in, and the log it writes.
// A collective opens a call, which waits until all its peers make the same one, then sends and
// takes chunks in steps: a step is what a device does at the same time.

#include <algorithm>  // find, min
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>  // move
#include <vector>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/order.hpp"
#include "tinyscale/measure/context.hpp"
#include "tinyscale/measure/profile.hpp"
#include "tinyscale/mesh/fabric.hpp"
#include "tinyscale/mesh/mesh_axis.hpp"
#include "tinyscale/mesh/message_log.hpp"
#include "tinyscale/tensor/views.hpp"

namespace tinyscale {

enum class Reduce { sum, mean, max, min };

inline const char* name_of(Reduce how) {
  switch (how) {
    case Reduce::sum: return "sum";
    case Reduce::mean: return "mean";
    case Reduce::max: return "max";
    case Reduce::min: return "min";
  }
  return "?";
}

namespace detail {

// The devices that share all coordinates but that of one axis, as one of them sees it.
struct AxisGroup {
  int axis = 0;
  AxisKind kind = AxisKind::line;
  int size = 1;
  int index = 0;
  int first = 0;   // rank of index 0
  int stride = 1;  // in ranks

  int rank(std::int64_t i) const { return first + modulo(i, size) * stride; }
};

enum class Keep { totals, records };

class Endpoint {
 public:
  Endpoint(Fabric& fabric, const List<AxisPlacement>& axes, int rank, int devices)
      : fabric_(fabric), axes_(axes), rank_(rank), devices_(devices) {}

  int rank() const { return rank_; }
  int devices() const { return devices_; }
  const DeviceLog& log() const { return log_; }

  // What the device's ops came to so far. Their records are let go now and then when nobody outside
  // asked for them: a long training would fill the memory.
  void keep_records(Keep keep) { keep_ = keep; }
  Counters counters() const {
    Counters sum = let_go_;
    const Counters recent = context().profile->totals();
    sum.matmul_flops += recent.matmul_flops;
    sum.vector_flops += recent.vector_flops;
    sum.bytes_read += recent.bytes_read;
    sum.bytes_written += recent.bytes_written;
    sum.seconds += recent.seconds;
    sum.ops += recent.ops;
    return sum;
  }

  // Where the device stands: in a call, or after so many.
  std::string where() const {
    const std::size_t calls = log_.keys.size();
    return open_ ? "in " + where_ : cat("after ", calls, calls == 1 ? " call" : " calls");
  }

  AxisGroup group(int axis) const {
    const AxisPlacement& place = axes_[static_cast<std::size_t>(axis)];
    AxisGroup group;
    group.axis = axis;
    group.kind = place.kind;
    group.size = place.size;
    group.index = rank_ / place.stride % place.size;
    group.first = rank_ - group.index * place.stride;
    group.stride = place.stride;
    return group;
  }

  int find_axis(const char* function, const std::string& name) const {
    std::string names;
    for (std::size_t i = 0; i < axes_.size(); ++i) {
      if (axes_[i].name == name) {
        return static_cast<int>(i);
      }
      names += (names.empty() ? "" : ", ") + axes_[i].name;
    }
    fail({function, ": no axis ", name, " on this mesh; its axes are ", names});
  }

  List<AxisGroup> groups(const char* function, const Axes& axes) const {
    if (axes.names.empty()) {
      fail({function, ": no axis given; name at least one"});
    }
    List<AxisGroup> out;
    for (const std::string& name : axes.names) {
      const int axis = find_axis(function, name);
      for (const AxisGroup& earlier : out) {
        if (earlier.axis == axis) {
          fail({function, ": axis ", name, " is given twice; each axis at most once"});
        }
      }
      out.push_back(group(axis));
    }
    return out;
  }

  // All ranks that differ from this one in these axes only, in rising order.
  std::vector<int> members(const List<AxisGroup>& groups) const {
    std::vector<int> ranks(1, rank_);
    for (const AxisGroup& group : groups) {
      std::vector<int> more;
      for (const int base : ranks) {
        for (int i = 0; i < group.size; ++i) {
          more.push_back(base + (i - group.index) * group.stride);
        }
      }
      ranks = more;
    }
    std::vector<double> keys;
    for (const int rank : ranks) {
      keys.push_back(rank);
    }
    std::vector<int> sorted;
    for (const std::size_t i : stable_order(keys)) {
      sorted.push_back(ranks[i]);
    }
    return sorted;
  }

  // Begins a collective over `ranks` (this one among them) once all of them call the same.
  void open(const CollectiveCall& call, const std::vector<int>& ranks) {
    begin(call, MessageStart::both_ready);
    group_ = ranks.front();
    // Lowest and highest rank tell groups apart: their distance says which axes it spans.
    fabric_.meet(rank_, cat(ranks.front(), "-", ranks.back()), ranks, text(call), where_);
  }

  // Begins a send or a receive of the user: nobody else needs to call it.
  void open_alone(const CollectiveCall& call) {
    begin(call, MessageStart::sender_ready);
    group_ = rank_;
  }

  void close() { open_ = false; }

  // What follows, until the next step, happens at the same time.
  void step() {
    ++step_;
    ++call_step_;
  }

  void send(int to, const float* numbers, std::int64_t count, const Shape& shape = Shape()) {
    Packet packet;
    packet.shape = shape;
    packet.numbers.assign(numbers, numbers + count);
    packet.index = log_.sent.size();
    Message message;
    message.from = rank_;
    message.to = to;
    message.bytes = static_cast<double>(count) * element_bytes;
    message.from_step = step_;
    message.call = static_cast<int>(log_.calls.size()) - 1;
    message.group = group_;
    message.step = call_step_;
    message.start = start_;
    log_.sent.push_back(message);
    fabric_.put(rank_, to, channel(), std::move(packet));
  }

  Packet take(int from) {
    Packet packet = fabric_.take(rank_, from, channel(), where_);
    log_.received.push_back({from, packet.index, step_});
    return packet;
  }

 private:
  static std::string text(const CollectiveCall& call) {
    std::string inside = call.arguments;
    inside += !inside.empty() && !call.axes.empty() ? ", " : "";
    return cat(call.name, "(", inside, call.axes, ")");
  }

  Channel channel() const {
    return start_ == MessageStart::both_ready ? Channel::collective : Channel::user;
  }

  void begin(const CollectiveCall& call, MessageStart start) {
    if (keep_ == Keep::totals && context().profile->totals().ops > 1000) {
      let_go_ = counters();
      context().profile->clear();
    }
    // The n-th time that a device runs a line is the same as the n-th time on its peers. Sends
    // differ in whom they name, so they are counted alone: the n-th send of each is one row.
    const std::string line = start == MessageStart::both_ready ? text(call) : call.name;
    log_.keys.push_back(cat(line, " #", ++times_[line]));
    log_.calls.push_back(call);
    where_ = cat("call ", log_.keys.size(), ", ", text(call));
    start_ = start;
    call_step_ = -1;
    open_ = true;
  }

  Fabric& fabric_;
  const List<AxisPlacement>& axes_;
  int rank_;
  int devices_;
  DeviceLog log_;
  Keep keep_ = Keep::records;
  Counters let_go_;
  NameTable times_;
  std::string where_;
  bool open_ = false;
  MessageStart start_ = MessageStart::both_ready;
  int group_ = 0;
  int step_ = -1;
  int call_step_ = -1;
};

inline std::string axes_text(const Axes& axes) {
  std::string out;
  for (const std::string& name : axes.names) {
    out += (out.empty() ? "" : ",") + name;
  }
  return out;
}

inline int count_devices(const List<AxisGroup>& groups) {
  int devices = 1;
  for (const AxisGroup& group : groups) {
    devices *= group.size;
  }
  return devices;
}

// The number of this device among those of several axes, the first axis the slowest.
inline int index_over(const List<AxisGroup>& groups) {
  int index = 0;
  for (const AxisGroup& group : groups) {
    index = index * group.size + group.index;
  }
  return index;
}

inline void check_given(const char* function, const Tensor& t) {
  if (!t.defined()) {
    fail({function, ": the tensor is empty (default-constructed); give one with a shape"});
  }
}

// What a collective moves: a tensor with data, and no gradient to carry back.
inline void check_moved(const char* function, const Tensor& t) {
  check_given(function, t);
  if (t.requires_grad() && context().no_grad == 0) {
    fail({function, ": the tensor ", t.shape(),
          " requires a gradient, and a collective "
          "carries none back; right is t.detach(), or a NoGrad scope"});
  }
}

}  // namespace detail
}  // namespace tinyscale
