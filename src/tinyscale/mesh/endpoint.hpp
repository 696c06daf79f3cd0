#pragma once
// One device's side of the fabric: who its peers are, the call that it is in, and the log of what
// it did. Ops that ran between two calls are in the log too, for the machine's clock.

#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>  // exchange, move
#include <vector>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/order.hpp"
#include "tinyscale/hardware/roofline.hpp"
#include "tinyscale/measure/context.hpp"
#include "tinyscale/measure/profile.hpp"
#include "tinyscale/mesh/device_log.hpp"
#include "tinyscale/mesh/fabric.hpp"
#include "tinyscale/mesh/mesh_axis.hpp"
#include "tinyscale/mesh/run_log.hpp"
#include "tinyscale/tensor/views.hpp"

namespace tinyscale {
namespace detail {

enum class Keep { totals, records };

class Endpoint {
 public:
  Endpoint(Fabric& fabric, Algorithm algorithm, int rank)
      : fabric_(fabric), algorithm_(algorithm), rank_(rank), self_(new Endpoint*(this)) {}
  ~Endpoint() { *self_ = nullptr; }
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // The program begins, on this thread, and there on that fiber if it is given one; its ops are
  // those of that profile.
  void begin(Profile& profile, const Fiber* fiber = nullptr) {
    profile_ = &profile;
    thread_ = std::this_thread::get_id();
    fiber_ = fiber;
  }
  // For what may outlive the run; null when it is over.
  const Shared<Endpoint*>& self() const { return self_; }

  int rank() const { return rank_; }
  int devices() const { return fabric_.devices(); }
  const DeviceLog& log() const { return log_; }
  DeviceLog& log() { return log_; }

  // What the device's ops came to so far. Their records are let go now and then when nobody outside
  // asked for them: a long training would fill the memory.
  void keep_records(Keep keep) { keep_ = keep; }
  Counters counters() const {
    Counters sum = let_go_;
    const Counters recent = profile_->totals();
    sum.matmul_flops += recent.matmul_flops;
    sum.vector_flops += recent.vector_flops;
    sum.bytes_read += recent.bytes_read;
    sum.bytes_written += recent.bytes_written;
    sum.seconds += recent.seconds;
    sum.ops += recent.ops;
    return sum;
  }

  // Where the device returned, or threw: in a call, or after so many.
  std::string returned() const { return cat({"after ", calls_, calls_ == 1 ? " call" : " calls"}); }
  std::string threw() const { return threw_in_.empty() ? returned() : "in " + threw_in_; }
  // The call it is in: "call 2, all_gather([4], dim 0, x) at program.cpp:12".
  std::string standing() const {
    if (in_ == nullptr) {
      return cat({"call ", calls_, ", recv(from ", peer_, ")", at(receives_)});
    }
    const DeviceCall& call = *in_->of;
    const std::string text = call_text(call.key, axes_text(fabric_.axes(), call.key.axes));
    const bool late = call.number != calls_;
    return cat({late ? "the wait for call " : "call ", call.number, ", ", text, at(call.where)});
  }

  int find_axis(const char* function, const std::string& name) const {
    std::string names;
    for (std::size_t i = 0; i < fabric_.axes().size(); ++i) {
      if (fabric_.axes()[i].name == name) {
        return static_cast<int>(i);
      }
      names += (names.empty() ? "" : ", ") + fabric_.axes()[i].name;
    }
    fail({function, ": no axis ", name, " on this mesh; its axes are ", names});
  }

  std::vector<int> find_axes(const char* function, const Axes& axes) const {
    if (axes.names.empty()) {
      fail({function, ": no axis given; name at least one"});
    }
    std::vector<int> out;
    for (const std::string& name : axes.names) {
      const int axis = find_axis(function, name);
      for (const int earlier : out) {
        if (earlier == axis) {
          fail({function, ": axis ", name, " is given twice; each axis at most once"});
        }
      }
      out.push_back(axis);
    }
    return out;
  }

  std::string names_of(const std::vector<int>& axes) const {
    return axes_text(fabric_.axes(), axes);
  }
  Axes axes_of(const std::vector<int>& axes) const {
    std::vector<std::string> names;
    for (const int axis : axes) {
      names.push_back(fabric_.axes()[static_cast<std::size_t>(axis)].name);
    }
    return Axes(names);
  }
  std::vector<int> all_axes() const {
    std::vector<int> out;
    for (std::size_t i = 0; i < fabric_.axes().size(); ++i) {
      out.push_back(static_cast<int>(i));
    }
    return out;
  }

  int size_of(int axis) const { return fabric_.axes()[static_cast<std::size_t>(axis)].size; }
  int index_on(int axis) const {
    const AxisPlacement& a = fabric_.axes()[static_cast<std::size_t>(axis)];
    return rank_ / a.stride % a.size;
  }
  // Devices that differ on these axes, and this one's number among them, the first axis the
  // slowest.
  int size_of(const std::vector<int>& axes) const {
    int devices = 1;
    for (const int axis : axes) {
      devices *= size_of(axis);
    }
    return devices;
  }
  int index_on(const std::vector<int>& axes) const {
    int index = 0;
    for (const int axis : axes) {
      index = index * size_of(axis) + index_on(axis);
    }
    return index;
  }

  // Starts a collective: what `in` has goes to it, `out` will hold what comes. Either may be empty.
  StartedCall start(Shared<DeviceCall> of, const CollectiveOptions& options) {
    CallKey& key = of->key;
    if ((options.used_alike || options.gather_again) && key.what != Collective::all_gather) {
      fail({name_of(key.what), options.used_alike ? ": used_alike" : ": gather_again",
            " is set, which only all_gather has; leave it false"});
    }
    if (options.algorithm == Algorithm::custom && options.schedule == nullptr) {
      fail({name_of(key.what), ": algorithm is custom; options.schedule is to name the schedule"});
    }
    name_of(key.how);  // what is none is refused before others wait
    name_of(options.format);
    name_of(options.algorithm);
    enter();
    ++calls_;
    key.algorithm = options.algorithm;
    key.preferred = algorithm_;
    key.format = options.format;
    of->own = copied_schedule(options);
    key.schedule = of->own.get();
    StartedCall call;
    call.of = std::move(of);
    call.of->number = calls_;
    call.event = log_.events.size();
    log_.events.push_back({DeviceEvent::Kind::start, 0, 0, nullptr, nullptr, task_});
    if (fabric_.folded()) {
      const std::vector<std::int64_t>& rows = call.of->rows;
      const int senders = key.schedule == nullptr ? 1 : size_of(key.axes);
      for (int i = 0; i < senders && !rows.empty(); ++i) {  // an own one names all blocks
        key.rows.insert(key.rows.end(), rows.begin(), rows.end());
      }
      fold(call);
      return call;
    }
    call.seat = &seat(key.axes);
    if (call.seat->group->size() == 1) {
      key.rows = call.of->rows;
      run_alone(call);
      return call;
    }
    Post post;
    post.plan = plan_slot(*call.of).plan_of(*call.of);
    const DeviceBuffers buffers = call.of->buffers();
    post.in = buffers.in;
    post.out = buffers.out;
    post.call = call.of;
    in_ = &call;
    try {
      call.meeting = fabric_.post(*call.seat, std::move(post), call.met);
    } catch (...) {
      leave();
      throw;
    }
    in_ = nullptr;
    log_.events[call.event].meeting = call.meeting;
    log_.events[call.event].call = call.met.call;
    return call;
  }

  // Until it is done; gives its `out`.
  Tensor wait(StartedCall& call) {
    enter();
    if (call.meeting != nullptr) {
      await(call);
      let_dropped_go(call);
    }
    log_.events.push_back(
        {DeviceEvent::Kind::wait, 0, 0, log_.events[call.event].call, nullptr, task_});
    call.of->in = Tensor();
    return std::move(call.of->out);
  }

  // Nobody will wait for it any more: its tensors go, and its error is thrown, when the device
  // waits for a later call of the same group.
  void drop(StartedCall call) {
    if (runs_here()) {
      dropped_.push_back(std::move(call));
    }
  }

  // A copy goes; nobody waits.
  void send(int to, const Tensor& value, const SourceLine& where) {
    refuse_alone("send");
    enter();
    ++calls_;
    Packet packet;
    {
      Context nobody;  // a message under way is in no device's memory, whenever it is received
      const ContextScope scope(nobody);
      const RecorderScope eager(nullptr);
      packet.value = value.copied();
    }
    if (!send_shape_ || send_shape_->cut.block != value.count() || !(send_shape_->where == where)) {
      send_shape_ = send_shape(value.count(), where);
    }
    packet.call = send_record(send_shape_, rank_, to);
    keep_event(DeviceEvent::Kind::start, packet.call);
    fabric_.put(rank_, to, std::move(packet));
  }
  Tensor recv(int from, const SourceLine& where) {
    refuse_alone("recv");
    enter();
    ++calls_;
    peer_ = from;
    receives_ = where;
    Packet packet;
    try {
      packet = fabric_.take(rank_, from, *this);
    } catch (...) {
      leave();
      throw;
    }
    keep_event(DeviceEvent::Kind::wait, packet.call);
    const RecorderScope eager(nullptr);
    return packet.value.copied();  // in this device's memory
  }

  // The task so far ends, with a sample of the memory, and another begins.
  void task(int tag) {
    enter();
    MemoryMeter& meter = *context().memory;
    MemorySample sample;
    sample.task = task_;
    for (std::size_t i = 0; i < sample.levels.size(); ++i) {
      sample.levels[i] = meter.current(static_cast<MemoryKind>(i));
      sample.peaks[i] = meter.peak_since_mark(static_cast<MemoryKind>(i));
    }
    sample.peak_total = meter.peak_total_since_mark();
    meter.mark();
    log_.events.push_back(
        {DeviceEvent::Kind::mark, log_.samples.size(), 0, nullptr, nullptr, task_});
    log_.samples.push_back(sample);
    task_ = tag;
  }
  int task() const { return task_; }
  // The program is at its end.
  void finish() {
    log_ops();
    if (task_ >= 0) {
      task(-1);
    }
  }

  // Ops that ran since the last call go to the log.
  void log_ops() {
    Profile& profile = *profile_;
    const std::size_t ran = profile.totals().ops;
    if (ran == logged_) {
      return;
    }
    const std::size_t first = log_.ops.size();
    for (const OpRecord& op : profile.records_from(logged_)) {
      log_.ops.push_back(op_cost(op));
    }
    log_.events.push_back(
        {DeviceEvent::Kind::compute, first, log_.ops.size(), nullptr, nullptr, task_});
    logged_ = ran;
    if (keep_ == Keep::totals && ran > 1000) {
      let_go_ = counters();
      profile.clear();
      logged_ = 0;
    }
  }

 private:
  struct KnownSeat {
    std::vector<int> axes;  // as the call names them
    Seat* seat = nullptr;
  };

  PlanSlot& plan_slot(const DeviceCall& call) {
    constexpr unsigned slots = sizeof slots_ / sizeof *slots_;
    const unsigned size = call.key.shape.empty() ? 0 : static_cast<unsigned>(call.key.shape[0]);
    return slots_[(static_cast<unsigned>(call.where.line) * 5 + size) % slots];
  }

  void keep_event(DeviceEvent::Kind kind, const Shared<CallRecord>& call) {
    log_.events.push_back({kind, 0, 0, call.get(), nullptr, task_});
    log_.shared.push_back(call);
  }

  void refuse_alone(const char* function) const {
    if (fabric_.folded()) {
      fail({function, ": predict runs one device by itself, which has no partner; permute is ",
            "right, or run"});
    }
  }

  bool runs_here() const {
    return thread_ == std::this_thread::get_id() && (fiber_ == nullptr || fiber_->runs());
  }
  // Every call's first act.
  void enter() {
    if (!runs_here()) {
      fail({"device ", rank_,
            " was called by the program of another device, or on another thread; the program of "
            "each device calls the Device that it was given, on the thread that runs it"});
    }
    threw_in_.clear();  // the program caught it
    log_ops();
  }
  // Until the exchange of a call has run, or failed: both once.
  void await(StartedCall& call) {
    Meeting* const meeting = std::exchange(call.meeting, nullptr);
    in_ = &call;
    try {
      if (call.met.call == nullptr) {
        call.met = fabric_.await(rank_, *call.seat, meeting, *this);
        log_.events[call.event].call = call.met.call;
      }
      plan_slot(*call.of) = {call.of->where, call.met.plan};
      in_ = nullptr;
    } catch (...) {
      leave();
      call.of.reset();
      throw;
    }
  }
  // Those before a call that is done: meetings of a group end in order. At no other time, so that
  // the memory in use does not depend on how threads were scheduled.
  void let_dropped_go(const StartedCall& done) {
    for (std::size_t i = 0; i < dropped_.size();) {
      if (dropped_[i].seat == done.seat && dropped_[i].event < done.event) {
        StartedCall call = dropped_[i];
        dropped_[i] = dropped_.back();
        dropped_.pop_back();
        await(call);
        call.of->in = call.of->out = Tensor();  // its meeting may hold the call until the next
      } else {
        ++i;
      }
    }
  }
  // By an exception, from the call it is in.
  void leave() {
    threw_in_ = standing();
    in_ = nullptr;
  }

  // The device's seat among those that differ on these axes; axes of one device change nothing.
  Seat& seat(const std::vector<int>& axes) {
    for (const KnownSeat& known : known_) {
      if (known.axes == axes) {
        return *known.seat;
      }
    }
    std::vector<int> rising;
    std::vector<int> ranks(1, rank_);
    for (std::size_t axis = 0; axis < fabric_.axes().size(); ++axis) {
      const AxisPlacement& a = fabric_.axes()[axis];
      bool named = false;
      for (const int one : axes) {
        named = named || one == static_cast<int>(axis);
      }
      if (!named || a.size == 1) {
        continue;
      }
      rising.push_back(static_cast<int>(axis));
      std::vector<int> more;
      for (const int rank : ranks) {
        for (int i = 0; i < a.size; ++i) {
          more.push_back(rank + (i - index_on(static_cast<int>(axis))) * a.stride);
        }
      }
      ranks = more;
    }
    Seat* seat = nullptr;
    for (const Shared<Seat>& known : seats_) {
      seat = known->group->axes == rising ? known.get() : seat;
    }
    if (seat == nullptr) {
      seats_.push_back(Shared<Seat>(new Seat(fabric_.seat(rank_, rising, ranks))));
      seat = seats_.back().get();
    }
    known_.push_back({axes, seat});
    return *seat;
  }

  void run_alone(StartedCall& call) {
    const CallPlan* const plan = fabric_.plan(call.key(), call.of->where);
    const DeviceBuffers buffers = call.of->buffers();
    execute(plan->exchange, &buffers);
    if (!alone_) {
      alone_ = Shared<const std::vector<int>>(new std::vector<int>(1, rank_));
    }
    CallRecord* const record = &log_.records.add();
    record->logged.shape = plan->shape;
    record->logged.members = alone_;
    record->logged.where = call.of->where;
    log_.events[call.event].call = record;
  }

  // Symmetric devices are one: the others' numbers are this one's.
  void fold(const StartedCall& call) {
    const SourceLine& where = call.of->where;
    CallShape* const shape = new CallShape;
    CallRecord* const record = &log_.records.add();
    record->logged.shape = Shared<const CallShape>(shape);
    record->logged.where = where;
    Exchange exchange;
    const CallKey& key = call.key();
    describe_call(key, fabric_.machine(), fabric_.axes(), where, *shape, exchange);
    if (key.schedule == nullptr) {
      check_spec("make_schedule", shape->spec);
    }
    shape->cut = exchange.cut;
    if (key.schedule != nullptr) {
      shape->cut.parts = key.schedule->chunks / exchange.cut.blocks;
      shape->schedule = prepare(own_schedule(key, shape->spec));
    }
    log_.events[call.event].call = record;
    const bool sums = key.how == Reduce::sum &&
                      (key.what == Collective::all_reduce ||
                       key.what == Collective::reduce_scatter || key.what == Collective::reduce);
    const float times = sums ? static_cast<float>(exchange.devices) : 1.0f;
    const Tensor& in = call.of->in;
    Tensor& out = call.of->out;
    for (std::int64_t i = 0; out.defined() && i < out.count(); ++i) {
      out.data()[i] = in.count() > 0 ? in.data()[i % in.count()] * times : 0.0f;
    }
  }

  Fabric& fabric_;
  Algorithm algorithm_;  // the mesh's
  int rank_;
  Shared<Endpoint*> self_;
  Profile* profile_ = nullptr;
  std::thread::id thread_;
  const Fiber* fiber_ = nullptr;
  DeviceLog log_;
  Keep keep_ = Keep::records;
  Counters let_go_;
  std::size_t logged_ = 0;  // of the profile's records
  int calls_ = 0;
  int task_ = -1;
  const StartedCall* in_ = nullptr;
  List<StartedCall> dropped_;
  int peer_ = 0;  // of a recv
  SourceLine receives_;
  std::string threw_in_;
  List<Shared<Seat>> seats_;
  List<KnownSeat> known_;
  PlanSlot slots_[32];
  Shared<const std::vector<int>> alone_;
  Shared<const CallShape> send_shape_;
};

}  // namespace detail
}  // namespace tinyscale
