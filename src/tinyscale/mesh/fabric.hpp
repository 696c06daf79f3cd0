#pragma once
// Where the devices of a run meet: groups that call collectives together, and mailboxes for sends.
// A device posts its tensors at the next meeting of its group and may go on; the last one to come
// checks that all called the same and runs the exchange for everybody. Sends never block.

#include <algorithm>  // lower_bound
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <utility>  // move
#include <vector>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/mesh/call_plan.hpp"
#include "tinyscale/mesh/judgement.hpp"
#include "tinyscale/mesh/meeting.hpp"
#include "tinyscale/mesh/mesh_axis.hpp"
#include "tinyscale/mesh/run_log.hpp"
#include "tinyscale/mesh/waiting.hpp"
#include "tinyscale/tensor/tensor.hpp"

namespace tinyscale {
namespace detail {

class Fabric {
 public:
  // At most `most` devices run at once; 0: all. Exchanges use up to `threads` threads. Folded: one
  // device runs by itself, and what it would get from others is made up of its own numbers.
  Fabric(const Machine& machine, const List<AxisPlacement>& axes, int most, int threads,
         bool folded = false)
      : machine_(machine),
        axes_(axes),
        threads_(threads),
        folded_(folded),
        waiting_(folded ? 1 : static_cast<int>(machine.chips()), most),
        boxes_(waiting_.states().size()) {}

  const List<AxisPlacement>& axes() const { return axes_; }
  const Machine& machine() const { return machine_; }
  int devices() const { return static_cast<int>(machine_.chips()); }
  bool folded() const { return folded_; }
  void begin(int me) { waiting_.begin(me); }
  std::mutex& mutex() { return waiting_.mutex(); }
  // Before the devices begin: that one runs on this fiber.
  void carry(int rank, Fiber* fiber) { waiting_.state(rank).fiber = fiber; }
  // From now on only one of the devices is in this process; null: all are.
  void span(OtherProcesses* others) {
    others_ = others;
    judged_elsewhere_ = judged_elsewhere_ || others != nullptr;
  }

  // The seat of a device in the group of these axes, which rise.
  Seat seat(int me, const std::vector<int>& axes, const std::vector<int>& ranks) {
    const std::lock_guard<std::mutex> lock(waiting_.mutex());
    Seat seat;
    seat.group = &find_group(axes, ranks);
    seat.place = static_cast<int>(std::lower_bound(ranks.begin(), ranks.end(), me) - ranks.begin());
    for (std::size_t part = 0; part < seat.group->carriers.size(); ++part) {
      if (seat.group->carriers[part].carrier == waiting_.carrier(me)) {
        seat.part = part;
        seat.part_size = seat.group->carriers[part].count;
      }
    }
    const std::lock_guard<std::mutex> others(seat.group->mutex);  // who came earlier adds meetings
    seat.next = seat.group->meetings[0].get();
    return seat;
  }

  // Gives the meeting, at which nobody needs to wait. Who comes last and runs the exchange takes
  // `met` along, and leaves before the others know: await is not for it.
  Meeting* post(Seat& seat, Post post, Met& met) {
    if (others_ != nullptr) {
      return others_->post(seat, std::move(post));
    }
    Meeting* const meeting = seat.next;
    post.here = true;
    meeting->posts[static_cast<std::size_t>(seat.place)] = std::move(post);
    const bool last = seat.comes(*meeting);
    seat.next = seat.group->after(*meeting);
    if (last) {
      finish(seat, *meeting, met);
    }
    leave(seat);
    return meeting;
  }

  // Returns when the exchange has run.
  template <class Standing>
  Met await(int me, Seat& seat, Meeting* meeting, const Standing& standing) {
    for (int looks = 0; !meeting->done.load(std::memory_order_acquire);) {
      if (others_ != nullptr) {
        others_->wait({Wait::For::collective, meeting, 0}, standing.standing());
      } else if (!meeting->exchange.help() && !waiting_.look_again(me, looks)) {
        std::unique_lock<std::mutex> lock(waiting_.mutex());
        meeting->sleepers.fetch_add(1);
        if (!meeting->done.load()) {
          waiting_.throw_failure();
          Wait wait;
          wait.what = Wait::For::collective;
          wait.of = meeting;
          sleep(lock, me, wait, standing.standing());
        }
      }
    }
    const Met met = {meeting->call, meeting->plan};
    const bool failed = !meeting->error.empty();
    leave(seat);
    seat.to_leave = meeting;
    if (others_ != nullptr || failed) {
      leave(seat);
    }
    if (failed) {
      fail({meeting->error});  // such a meeting is not used again
    }
    return met;
  }

  // What a call comes to, for all groups that make it; as long as the fabric.
  const CallPlan* plan(const CallKey& key, const SourceLine& where) {
    {
      const std::lock_guard<std::mutex> lock(plans_mutex_);
      for (const Shared<const CallPlan>& known : plans_) {
        if (known->key == key && known->shape->where == where) {
          return known.get();
        }
      }
    }
    const Shared<const CallPlan> made = make_plan(key, machine_, axes_, where);
    const std::lock_guard<std::mutex> lock(plans_mutex_);
    plans_.push_back(made);
    return made.get();
  }

  const List<Shared<const CallPlan>>& plans() const { return plans_; }  // after the run

  void put(int from, int to, Packet packet) {
    if (others_ != nullptr) {
      others_->put(to, packet);
      return;
    }
    const std::lock_guard<std::mutex> lock(waiting_.mutex());
    box(to, from).packets.push_back(std::move(packet));
    const Waiting::State& receiver = waiting_.state(to);
    if (receiver.now == Waiting::Now::waits && receiver.wait.what == Wait::For::message &&
        receiver.wait.peer == from) {
      waiting_.wake(to);
    }
  }

  // The next packet of that sender.
  template <class Standing>
  Packet take(int me, int from, const Standing& standing) {
    if (others_ != nullptr) {
      others_->wait({Wait::For::message, nullptr, from}, standing.standing());
    }
    std::unique_lock<std::mutex> lock(waiting_.mutex());
    const bool carried = waiting_.carrier(me) != nullptr;  // its carrier looks, when all wait
    for (int looks = 0; !carried && box(me, from).empty();) {
      lock.unlock();
      const bool again = waiting_.look_again(me, looks);
      lock.lock();
      if (!again) {
        break;
      }
    }
    waiting_.throw_failure();
    if (box(me, from).empty()) {
      Wait wait;
      wait.what = Wait::For::message;
      wait.peer = from;
      sleep(lock, me, wait, standing.standing());
    }
    Mailbox& mine = box(me, from);  // others may have moved the boxes while it slept
    Packet packet = std::move(mine.packets[mine.next]);
    if (++mine.next == mine.packets.size()) {
      mine.packets.clear();
      mine.next = 0;
    }
    return packet;
  }

  void returned(int me, const std::string& where) { end(me, Waiting::Now::returned, where, ""); }
  void threw(int me, const std::string& where, const std::string& message) {
    end(me, Waiting::Now::threw, where, message);
  }

  // Ends the run for all devices of this process.
  void end_run(const std::string& failure) {
    if (!failure.empty() && !waiting_.over()) {
      waiting_.conclude(failure);
    }
  }
  // After all devices have ended: empty when all is well.
  std::string failure() {
    const std::lock_guard<std::mutex> lock(waiting_.mutex());
    if (!judged_elsewhere_ && judgement().finds_fault() && waiting_.failure().empty()) {
      judge();
    }
    return waiting_.failure();
  }

 private:
  friend class MpiRanks;

  Group& find_group(const std::vector<int>& axes, const std::vector<int>& ranks) {
    for (const Shared<Group>& known : groups_) {
      if (known->ranks.front() == ranks.front() && known->axes == axes) {
        return *known;
      }
    }
    groups_.push_back(Shared<Group>(new Group));
    Group& group = *groups_.back();
    group.axes = axes;
    group.ranks = ranks;
    for (const int rank : ranks) {
      count_carried(group, waiting_.carrier(rank));
    }
    group.fresh();
    return group;
  }
  static void count_carried(Group& group, const Carrier* carrier) {
    for (CarrierMembers& known : group.carriers) {
      if (known.carrier == carrier) {
        ++known.count;
        return;
      }
    }
    if (carrier != nullptr) {
      group.carriers.push_back({carrier, 1});
    }
  }

  // The messages to a device from a sender; kept in the order of senders.
  Mailbox& box(int to, int from) {
    List<Mailbox>& all = boxes_[static_cast<std::size_t>(to)];
    std::size_t at = 0;
    while (at < all.size() && all[at].from < from) {
      ++at;
    }
    if (at == all.size() || all[at].from != from) {
      all.push_back({});
      for (std::size_t i = all.size() - 1; i > at; --i) {
        all[i] = std::move(all[i - 1]);
      }
      all[at] = {from, {}, 0};
    }
    return all[at];
  }

  void sleep(std::unique_lock<std::mutex>& lock, int me, const Wait& wait,
             const std::string& where) {
    if (!waiting_.sleeps(me, wait, where)) {
      judge();
    }
    waiting_.sleep(lock, me);
  }

  void end(int me, Waiting::Now how, const std::string& where, const std::string& message) {
    if (others_ != nullptr) {
      others_->end(how, where, message);
      return;
    }
    const std::lock_guard<std::mutex> lock(waiting_.mutex());
    if (waiting_.ends(me, how, where, message)) {
      judge();
    }
  }

  // By the last device that came.
  void finish(Seat& seat, Meeting& meeting, Met& met) {
    const Post& first = meeting.posts[0];
    bool known = first.plan != nullptr;
    for (const Post& post : meeting.posts) {
      known = known && post.plan == first.plan;
    }
    for (const Post& post : meeting.posts) {
      if (!known && !(post.call->key == first.call->key)) {
        const std::lock_guard<std::mutex> lock(waiting_.mutex());
        meeting.disagrees = true;  // all its members wait for what cannot come
        return;
      }
    }
    try {
      exchange(seat, meeting, known ? first.plan : nullptr);
      met = {meeting.call, meeting.plan};
      meeting.posts[static_cast<std::size_t>(seat.place)] = Post();
      seat.leaves(meeting);
    } catch (const std::exception& error) {
      meeting.error = error.what();
    }
    meeting.done.exchange(true);  // as in LoopSlot, no store
    // Others may have left by now, and begun the next call here: then who sleeps looks once more.
    if (meeting.sleepers.load() > 0) {
      const std::lock_guard<std::mutex> lock(waiting_.mutex());
      for (const int rank : meeting.group->ranks) {
        if (waiting_.state(rank).wait.of == &meeting) {
          waiting_.wake(rank);
        }
      }
    }
  }

  // `known`: the plan of all its calls; null: by their key.
  void exchange(Seat& seat, Meeting& meeting, const CallPlan* known) {
    Group& group = *meeting.group;
    if (known == nullptr) {
      find_plan(group, meeting);
    } else if (group.plan != known) {
      use_plan(group, known->key.axes, known);
    }
    ExchangeRun& run = seat.run(*group.plan);
    for (std::size_t i = 0; i < group.order->places.size(); ++i) {
      const Post& post = meeting.posts[static_cast<std::size_t>(group.order->places[i])];
      run.buffers()[i] = {post.in, post.out};
    }
    const ThreadShare share(threads_ * group.size() / devices());
    const bool awake = waiting_.all_awake() && meeting.sleepers.load() == 0;
    run.run(awake ? &meeting.exchange : nullptr, seat.at_back());
    CallRecord* const record = &seat.records.add();
    record->met_shape = &group.plan->shape;
    record->met_members = &group.order->members;
    record->logged.where = known != nullptr ? known->shape->where : meeting.posts[0].call->where;
    meeting.plan = group.plan;
    meeting.call = record;
  }

  // The plan of a meeting becomes the group's.
  void find_plan(Group& group, Meeting& meeting) {
    const SourceLine& where = meeting.posts[0].call->where;
    if (group.plan != nullptr && group.plan->key == meeting.posts[0].call->key &&
        group.plan->shape->where == where) {
      return;
    }
    CallKey key = meeting.posts[0].call->key;
    use_plan(group, key.axes, nullptr);
    for (const int place : group.order->places) {  // ragged: who sends how many rows to whom
      const Post& post = meeting.posts[static_cast<std::size_t>(place)];
      key.rows.insert(key.rows.end(), post.call->rows.begin(), post.call->rows.end());
    }
    group.plan = plan(key, where);
  }
  void use_plan(Group& group, const std::vector<int>& axes, const CallPlan* plan) {
    if (group.plan == nullptr || group.plan->key.axes != axes) {
      group.set_order(axes_, axes);
    }
    group.plan = plan;
  }

  // Who has been at a meeting says so when it has posted at the next: whoever waits for that does
  // not wait for this too.
  void leave(Seat& seat) {
    if (seat.to_leave != nullptr) {
      Meeting* const meeting = seat.to_leave;
      seat.to_leave = nullptr;
      meeting->posts[static_cast<std::size_t>(seat.place)] = Post();
      const bool again = meeting->error.empty();
      if (seat.leaves(*meeting) && again) {
        Group::append(meeting);
      }
    }
  }

  Judgement judgement() const { return {waiting_, groups_, boxes_, axes_}; }
  void judge() { waiting_.conclude(judgement().text()); }

  const Machine& machine_;
  const List<AxisPlacement>& axes_;
  int threads_;
  bool folded_;
  OtherProcesses* others_ = nullptr;
  bool judged_elsewhere_ = false;
  Waiting waiting_;            // its mutex guards the boxes and the list of groups
  List<List<Mailbox>> boxes_;  // by receiver
  List<Shared<Group>> groups_;
  std::mutex plans_mutex_;
  List<Shared<const CallPlan>> plans_;
};

}  // namespace detail
}  // namespace tinyscale
