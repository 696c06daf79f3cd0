#pragma once
// Where a group of devices meets: the calls that its members have posted, in order, and what one
// leaves in the log. And what travels besides: a packet of a send.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "tinyscale/base/block_list.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/base/threads.hpp"
#include "tinyscale/mesh/call_plan.hpp"
#include "tinyscale/mesh/mesh_axis.hpp"
#include "tinyscale/mesh/run_log.hpp"
#include "tinyscale/mesh/waiting.hpp"
#include "tinyscale/tensor/tensor.hpp"

namespace tinyscale {
namespace detail {

// A call in the log; `number` is its place there, once all devices' logs are joined.
struct CallRecord {
  LoggedCall logged;
  // Of a meeting of threads, until `fill`: what the log will hold, as long as the fabric lives.
  // Holders are counted, and a count that all devices write would slow down every call.
  const Shared<const CallShape>* met_shape = nullptr;
  const Shared<const std::vector<int>>* met_members = nullptr;
  int number = -1;
  std::uint64_t id = 0;  // the same in all processes

  void fill() {
    if (met_shape != nullptr) {
      logged.shape = *met_shape;
      logged.members = *met_members;
      met_shape = nullptr;
    }
  }
};

// A user's send, in the log.
inline Shared<CallRecord> send_record(const Shared<const CallShape>& shape, int from, int to) {
  const Shared<CallRecord> record(new CallRecord);
  record->logged.shape = shape;
  record->logged.members = Shared<const std::vector<int>>(new std::vector<int>{from, to});
  record->logged.where = shape->where;
  return record;
}

// A call of a device, whole.
struct DeviceCall {
  int number = 0;  // of the device's calls, from 1
  CallKey key;
  SourceLine where;
  Tensor in, out;                        // until it is done
  std::vector<std::int64_t> rows;        // ragged all_to_all: to each
  Shared<const CollectiveSchedule> own;  // the program's, to which the key refers

  DeviceBuffers buffers() const {
    return {in.defined() ? in.origin() : nullptr, out.defined() ? out.origin() : nullptr};
  }
};

// A plan that a device met with, and the line from which it called.
struct PlanSlot {
  SourceLine where;
  const CallPlan* plan = nullptr;

  // Null: it is not this call's. An own schedule may have changed, and so may counts of rows.
  const CallPlan* plan_of(const DeviceCall& call) const {
    const bool same = plan != nullptr && call.key.schedule == nullptr && call.rows.empty() &&
                      where == call.where && plan->key == call.key;
    return same ? plan : nullptr;
  }
};

// What a device leaves at a meeting. Another processor reads it: of a call whose plan is known, one
// line of memory says all.
struct alignas(64) Post {
  bool here = false;
  const CallPlan* plan = nullptr;  // by which the device made the same call before
  const float* in = nullptr;
  float* out = nullptr;
  Shared<DeviceCall> call;
};

struct Group;

// The members of a group on one carrier, at a meeting: its thread counts them alone, and what other
// processors read is counted once for all of them.
struct alignas(64) CarriedPart {
  int came = 0, left = 0;
};

// One collective of a group. What its members tell each other in every call is one line of memory,
// which goes from one processor to the other a few times; the rest stays as it was.
struct alignas(64) Meeting {
  Meeting(Group* owner, std::size_t members, std::size_t parts)
      : group(owner), posts(members), carried(parts) {}

  std::atomic<int> came{0}, left{0}, sleepers{0};
  std::atomic<bool> done{false};
  const CallPlan* plan = nullptr;
  CallRecord* call = nullptr;
  std::atomic<Meeting*> next{nullptr};  // null: the last
  OpenLoop exchange;                    // who waits takes part
  Group* group;
  bool disagrees = false;
  std::string error;  // what the exchange threw
  List<Post> posts;   // by place among the members
  List<CarriedPart> carried;

  void reset() {
    came.store(0, std::memory_order_relaxed);
    left.store(0, std::memory_order_relaxed);
    sleepers.store(0, std::memory_order_relaxed);
    done.store(false, std::memory_order_relaxed);
    plan = nullptr;
    call = nullptr;
    next.store(nullptr, std::memory_order_relaxed);
  }
};

// The devices of a group, by index when a call's axes are counted in its order.
struct GroupOrder {
  std::vector<int> axes;
  Shared<const std::vector<int>> members;  // their ranks
  std::vector<int> places;                 // among the group's rising ranks
};

inline Shared<const GroupOrder> group_order(const List<AxisPlacement>& of_mesh,
                                            const std::vector<int>& axes,
                                            const std::vector<int>& rising_ranks) {
  const std::size_t size = rising_ranks.size();
  std::vector<int>* const members = new std::vector<int>(size);
  GroupOrder* const order = new GroupOrder;
  const Shared<const GroupOrder> made(order);
  order->axes = axes;
  order->members = Shared<const std::vector<int>>(members);
  order->places.resize(size);
  for (std::size_t place = 0; place < size; ++place) {
    int index = 0;
    for (const int axis : axes) {
      const AxisPlacement& a = of_mesh[static_cast<std::size_t>(axis)];
      index = index * a.size + rising_ranks[place] / a.stride % a.size;
    }
    (*members)[static_cast<std::size_t>(index)] = rising_ranks[place];
    order->places[static_cast<std::size_t>(index)] = static_cast<int>(place);
  }
  return made;
}

struct CarrierMembers {
  const Carrier* carrier = nullptr;
  int count = 0;
};

// The devices that differ in some axes only. Their meetings are a chain: where one has been, all
// go on to the next, and the last to leave appends it again.
struct Group {
  std::vector<int> axes;          // of the mesh, rising
  std::vector<int> ranks;         // rising
  List<CarrierMembers> carriers;  // of the members; none: each has a thread of its own
  std::mutex mutex;               // guards the two lists
  List<Shared<Meeting>> meetings;
  List<Meeting*> free;  // not in the chain
  // The last plan, and its devices. Whoever finishes a meeting uses these; meetings end one after
  // the other.
  const CallPlan* plan = nullptr;
  const GroupOrder* order = nullptr;
  List<Shared<const GroupOrder>> orders;  // as long as the group
  BlockList<CallRecord> records;  // where processes meet; else whoever finishes a call keeps it

  int size() const { return static_cast<int>(ranks.size()); }
  void set_order(const List<AxisPlacement>& of_mesh, const std::vector<int>& call_axes) {
    for (const Shared<const GroupOrder>& known : orders) {
      if (known->axes == call_axes) {
        order = known.get();
        return;
      }
    }
    orders.push_back(group_order(of_mesh, call_axes, ranks));
    order = orders.back().get();
  }
  Meeting* after(Meeting& meeting) {
    Meeting* next = meeting.next.load(std::memory_order_acquire);
    if (next == nullptr) {
      Meeting* const made = fresh();
      if (meeting.next.compare_exchange_strong(next, made)) {
        return made;
      }
      give_back(made);  // another device was first
    }
    return next;
  }
  // By the last who left it. The next one is known: all have asked for it when they came.
  static void append(Meeting* meeting) {
    Meeting* last = meeting->next.load(std::memory_order_acquire);
    meeting->reset();
    Meeting* none = nullptr;
    while (!last->next.compare_exchange_strong(none, meeting)) {
      last = none;
      none = nullptr;
    }
  }
  Meeting* fresh() {
    const std::lock_guard<std::mutex> lock(mutex);
    if (free.empty()) {
      meetings.push_back(Shared<Meeting>(new Meeting(this, ranks.size(), carriers.size())));
      return meetings.back().get();
    }
    Meeting* const again = free.back();
    free.pop_back();
    return again;
  }
  void give_back(Meeting* meeting) {
    meeting->reset();
    const std::lock_guard<std::mutex> lock(mutex);
    free.push_back(meeting);
  }
};

// A device's place in a group.
struct Seat {
  Group* group = nullptr;
  int place = 0;
  std::size_t part = 0;           // of the members on its carrier
  int part_size = 0;              // how many there are; 0: it has a thread of its own
  Meeting* next = nullptr;        // at which it will post
  Meeting* to_leave = nullptr;    // which has nothing more for it; it has yet to say so
  BlockList<CallRecord> records;  // of the meetings that it finishes

  // From which end of an exchange its thread takes chunks: the same in every call.
  bool at_back() const { return part_size > 0 ? part % 2 != 0 : 2 * place >= group->size(); }

  // The device has come to a meeting, or left it; gives whether all have.
  bool comes(Meeting& meeting) const { return counts(meeting, meeting.came, &CarriedPart::came); }
  bool leaves(Meeting& meeting) const { return counts(meeting, meeting.left, &CarriedPart::left); }

  // Its own, so that no two processors share their memory. Several plans' where a group is small:
  // programs call one collective and another by turns.
  ExchangeRun& run(const CallPlan& plan) {
    std::size_t at = 0;
    const std::size_t some = group->size() <= 64 ? 4 : 1;
    while (at < some && runs_[at].plan != &plan) {
      ++at;
    }
    if (at == some) {
      at = turn_++ % some;
      runs_[at] = {&plan, Shared<ExchangeRun>(new ExchangeRun(plan.exchange))};
    }
    return *runs_[at].run;
  }

 private:
  bool counts(Meeting& meeting, std::atomic<int>& all, int CarriedPart::*of_part) const {
    int more = 1;
    if (part_size > 0) {
      int& some = meeting.carried[part].*of_part;
      if (++some < part_size) {
        return false;
      }
      some = 0;  // for the next meeting here
      more = part_size;
    }
    return all.fetch_add(more) + more == group->size();
  }

  struct Run {
    const CallPlan* plan = nullptr;
    Shared<ExchangeRun> run;
  };
  Run runs_[4];
  std::size_t turn_ = 0;
};

// What a device takes from a meeting.
struct Met {
  CallRecord* call = nullptr;      // what the log says of it
  const CallPlan* plan = nullptr;  // null where other processes meet
};

// A call under way.
struct StartedCall {
  Seat* seat = nullptr;  // null: the device is alone in its group
  Meeting* meeting = nullptr;
  std::size_t event = 0;  // its start, in the log
  Met met;                // with a call: this device ran it, and has left
  Shared<DeviceCall> of;

  const CallKey& key() const { return of->key; }
};

// Loops of this thread may use so many threads while it lives, whatever they might before: those of
// the devices that wait for it are idle.
class ThreadShare {
 public:
  explicit ThreadShare(int threads) : before_(thread_limit()) {
    thread_limit() = threads > 1 ? threads : 1;
  }
  ~ThreadShare() { thread_limit() = before_; }
  ThreadShare(const ThreadShare&) = delete;
  ThreadShare& operator=(const ThreadShare&) = delete;

 private:
  int before_;
};

struct Packet {
  Tensor value;
  Shared<CallRecord> call;
};

// The messages to a device from one sender.
struct Mailbox {
  int from = 0;
  List<Packet> packets;
  std::size_t next = 0;

  std::size_t unread() const { return packets.size() - next; }
  bool empty() const { return unread() == 0; }
};

// The devices that are other processes, where there are such (mpi_fabric.hpp).
class OtherProcesses {
 public:
  virtual ~OtherProcesses() = default;
  virtual Meeting* post(Seat& seat, Post post) = 0;
  virtual void wait(const Wait& wait, const std::string& where) = 0;  // until it is met
  virtual void put(int to, const Packet& packet) = 0;
  virtual void end(Waiting::Now how, const std::string& where, const std::string& message) = 0;
};

}  // namespace detail
}  // namespace tinyscale
