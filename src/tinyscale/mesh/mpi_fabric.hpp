#pragma once
// The same mesh on MPI ranks: compile with mpicxx -DTINYSCALE_USE_MPI, run with mpirun -n 8. Each
// process is one device; the fabric of each holds the meetings that its device takes part in. Who
// posts tells its group; when all have told the same, each rank carries out its own transfers of
// the schedule, step by step. A device that waits moves everything that is under way, and tells
// rank 0, which judges the run, where it stands.

#if defined(TINYSCALE_USE_MPI)

#include <algorithm>  // max
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>  // move
#include <vector>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/mesh/call_plan.hpp"
#include "tinyscale/mesh/fabric.hpp"
#include "tinyscale/mesh/mpi_bytes.hpp"
#include "tinyscale/mesh/mpi_calls.hpp"
#include "tinyscale/mesh/mpi_exchange.hpp"
#include "tinyscale/mesh/mpi_mail.hpp"
#include "tinyscale/mesh/mpi_report.hpp"

namespace tinyscale {
namespace detail {

class MpiRanks final : public OtherProcesses {
 public:
  // `comm` has as many ranks as the fabric devices.
  MpiRanks(Fabric& fabric, MPI_Comm comm) : fabric_(fabric), mail_(comm) {
    MPI_Comm_dup(comm, &data_);
    MPI_Comm_rank(comm, &me_);
    MPI_Comm_size(comm, &size_);
    const std::size_t n = static_cast<std::size_t>(size_);
    sent_.assign(n, 0);
    came_.assign(n, 0);
    reports_ = List<Shared<RankReport>>(n);
  }
  ~MpiRanks() { MPI_Comm_free(&data_); }
  MpiRanks(const MpiRanks&) = delete;
  MpiRanks& operator=(const MpiRanks&) = delete;

  Meeting* post(Seat& seat, Post post) override {
    RankGroup& group = group_of(seat.group);
    DeviceCall& called = *post.call;
    if (called.key.schedule != nullptr) {
      Bytes schedule;
      put_schedule(schedule, *called.key.schedule);
      called.key.schedule = kept_schedule(schedule.text());
    }
    const std::int64_t number = group.posted++;
    Bytes key;
    put_key(key, called.key);
    Bytes news;
    news.put_numbers(seat.group->axes);
    news.put_numbers(seat.group->ranks);
    news.put(number);
    news.put(std::int64_t{seat.place});
    news.put(key.text());
    news.put_numbers(called.rows);
    put_where(news, called.where);
    for (const int rank : seat.group->ranks) {
      if (rank != me_) {
        mail_.tell(rank, post_tag, news.text());
      }
    }
    RankCall& call = group.find(number);
    Meeting* const meeting = call.meeting;
    call.enter(seat.place, std::move(post), key.text());
    progress();
    return meeting;
  }

  void wait(const Wait& wait, const std::string& where) override {
    const double start = MPI_Wtime();
    bool told = false;
    for (std::int64_t looks = 0; !met(wait); ++looks) {
      const bool moved = progress();
      if (met(wait)) {
        break;
      }
      fabric_.waiting_.throw_failure();
      if (moved) {
        looks = 0;
      } else {
        let_others_run(looks);
      }
      if ((!told || changed_) && MPI_Wtime() - start > 5e-3) {
        told = true;
        report(Waiting::Now::waits, wait, where, "");
      }
    }
  }

  void put(int to, const Packet& packet) override {
    const CallShape& shape = *packet.call->logged.shape;
    packet.call->id = call_id(send_axes, me_, sends_++);
    Bytes news;
    news.put(static_cast<std::int64_t>(packet.call->id));
    put_where(news, shape.where);
    put_shape(news, packet.value.shape());
    news.put(packet.value.data(), static_cast<std::size_t>(packet.value.count()) * sizeof(float));
    mail_.tell(to, packet_tag, news.text());  // may refuse: then nobody waits for it
    ++sent_[static_cast<std::size_t>(to)];
  }

  // Until rank 0 has judged the run.
  void end(Waiting::Now how, const std::string& where, const std::string& message) override {
    changed_ = true;
    for (std::int64_t looks = 0; !judged_; ++looks) {
      if (changed_) {
        report(how, Wait(), where, message);
      }
      if (progress()) {
        looks = 0;
      } else {
        let_others_run(looks);
      }
    }
    mail_.drain();
  }

  // The bits of a call's group: its axes and its lowest rank; all processes number its calls alike.
  static std::uint64_t call_id(std::uint64_t axes, int front, std::int64_t number) {
    return axes << 52U | static_cast<std::uint64_t>(front) << 36U |
           static_cast<std::uint64_t>(number);
  }
  static constexpr std::uint64_t send_axes = 0xfff, own_axes = 0xffe;  // no group has these

 private:
  enum Tag { post_tag, packet_tag, report_tag, verdict_tag };
  static constexpr int calls_at_once = 16;
  static std::uint64_t bits(const std::vector<int>& axes) {
    std::uint64_t sum = 0;
    for (const int axis : axes) {
      sum |= std::uint64_t{1} << static_cast<unsigned>(axis);
    }
    return sum;
  }

  bool progress() {
    bool moved = false;
    Bytes text;
    for (int from = 0, tag = 0; mail_.read(text, from, tag);) {
      moved = true;
      switch (tag) {
        case post_tag: take_post(text); break;
        case packet_tag: take_packet(text, from); break;
        case report_tag: take_report(get_report(text), from); break;
        default: take_verdict(text.text()); break;
      }
    }
    for (const Shared<RankGroup>& group : groups_) {
      moved = move_calls(*group) || moved;
    }
    mail_.sweep();
    return moved;
  }

  // ---- Collectives ----

  RankGroup& group_of(Group* group) {
    for (const Shared<RankGroup>& known : groups_) {
      if (known->group == group) {
        return *known;
      }
    }
    groups_.push_back(Shared<RankGroup>(new RankGroup));
    groups_.back()->group = group;
    return *groups_.back();
  }

  void take_post(Bytes& news) {
    std::vector<int> axes, ranks;
    news.get_numbers(axes);
    news.get_numbers(ranks);
    const std::int64_t number = news.number();
    const int place = news.whole();
    const std::string text = news.string();
    Bytes key(text);
    Post post;
    post.call = Shared<DeviceCall>::make();
    post.call->key = get_key(key);
    news.get_numbers(post.call->rows);
    post.call->where = get_where(news);
    RankGroup& group = group_of(&fabric_.find_group(axes, ranks));
    group.find(number).enter(place, std::move(post), text);
  }

  // Calls that all members have made go on: those that follow the first that may yet, as far as
  // their tags differ.
  bool move_calls(RankGroup& group) {
    bool moved = false;
    std::size_t first = 0;
    while (first < group.calls.size() &&
           (group.calls[first]->over || group.calls[first]->meeting->disagrees)) {
      ++first;
    }
    for (std::size_t i = first; i < group.calls.size() && i < first + calls_at_once; ++i) {
      RankCall& call = *group.calls[i];
      if (call.over || call.meeting->came < group.group->size()) {
        continue;
      }
      if (!call.exchange && !call.meeting->disagrees) {
        agree(group, call);
        moved = true;
      }
      if (call.exchange) {
        moved = call.exchange->advance() || moved;
        if (call.exchange->done()) {
          finish(group, call);
        }
      }
    }
    while (!group.calls.empty() && group.calls[0]->over && group.calls[0]->meeting->left > 0) {
      group.let_go();
    }
    return moved;
  }

  // All members have called: the same, or the run ends.
  void agree(RankGroup& known, RankCall& call) {
    Group& group = *known.group;
    Meeting& meeting = *call.meeting;
    if (!call.same()) {
      meeting.disagrees = true;
      return;
    }
    try {
      fabric_.find_plan(group, meeting);
      call.plan = group.plan;
      call.members = group.order->members;
      const PreparedSchedule& schedule = *call.plan->shape->schedule;
      check_messages(schedule, call.plan->exchange.cut);
      const int index = static_cast<int>(place_in(*call.members, me_));
      const int tag = first_tag(group, call, static_cast<int>(schedule.streams.size()));
      const Post& own = own_post(group, meeting);
      call.exchange = Shared<RankExchange>(new RankExchange(
          call.plan->exchange, schedule, index, *call.members, tag, data_, own.in, own.out));
    } catch (const Error& error) {
      meeting.error = error.what();
      meeting.done.store(true);
      call.over = changed_ = true;
    }
  }

  Post& own_post(const Group& group, Meeting& meeting) const {
    return meeting.posts[place_in(group.ranks, me_)];
  }

  // Of the call's messages; each stream has one more.
  int first_tag(const Group& group, const RankCall& call, int streams) const {
    const std::int64_t calls = (std::int64_t{1} << fabric_.axes().size()) * calls_at_once;
    const std::int64_t most = (std::int64_t{most_tag()} + 1) / calls;
    if (streams > most) {
      fail({"mpi: a schedule of ", streams, " streams; this MPI has tags up to ", most_tag(),
            ", enough for ", most, " on a mesh of ", fabric_.axes().size(),
            fabric_.axes().size() == 1 ? " axis" : " axes"});
    }
    const std::int64_t before =
        static_cast<std::int64_t>(bits(group.axes)) * calls_at_once + call.number % calls_at_once;
    return static_cast<int>(before * most);
  }

  // Of MPI_COMM_WORLD, which alone is sure to have the attribute; 32767 is the least there may be.
  static int most_tag() {
    int* most = nullptr;
    int known = 0;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &most, &known);
    return known != 0 && most != nullptr ? *most : 32767;
  }

  void finish(RankGroup& known, RankCall& call) {
    Meeting& meeting = *call.meeting;
    call.exchange->store();
    call.exchange.reset();
    meeting.call = &known.group->records.add();
    meeting.call->logged.shape = call.plan->shape;
    meeting.call->logged.members = call.members;
    meeting.call->logged.where = meeting.posts[0].call->where;
    meeting.call->id = call_id(bits(known.group->axes), known.group->ranks.front(), call.number);
    meeting.done.store(true);
    call.over = changed_ = true;
  }

  bool met(const Wait& wait) {
    return wait.what == Wait::For::collective ? static_cast<const Meeting*>(wait.of)->done.load()
                                              : !fabric_.box(me_, wait.peer).empty();
  }

  // ---- Messages of the program ----

  void take_packet(Bytes& news, int from) {
    Context nobody;  // a message under way is in no device's memory
    const ContextScope scope(nobody);
    Packet packet;
    const std::uint64_t id = static_cast<std::uint64_t>(news.number());
    const SourceLine where = get_where(news);
    packet.value = Tensor(get_shape(news));
    news.get(packet.value.data(), static_cast<std::size_t>(packet.value.count()) * sizeof(float));
    packet.call = send_record(send_shape(packet.value.count(), where), from, me_);
    packet.call->id = id;
    fabric_.box(me_, from).packets.push_back(std::move(packet));
    ++came_[static_cast<std::size_t>(from)];
    changed_ = true;
  }

  // ---- The judgement, by rank 0 ----

  void report(Waiting::Now now, const Wait& wait, const std::string& where,
              const std::string& message) {
    changed_ = false;
    RankReport news;
    news.now = now;
    news.wait = wait;
    news.where = where;
    news.message = message;
    news.sent = sent_;
    news.came = came_;
    for (const Mailbox& box : fabric_.boxes_[static_cast<std::size_t>(me_)]) {
      if (!box.empty()) {
        news.unread.push_back({box.from, static_cast<std::int64_t>(box.unread()),
                               box.packets[box.next].call->logged.where});
      }
    }
    for (const Shared<RankGroup>& group : groups_) {
      RankReport::Calls calls;
      calls.axes = group->group->axes;
      calls.ranks = group->group->ranks;
      calls.posted = group->posted;
      for (const Shared<RankCall>& call : group->calls) {
        const Meeting& meeting = *call->meeting;
        const std::size_t place = place_in(calls.ranks, me_);
        if (call->over && calls.error.empty() && meeting.posts[place].here) {
          calls.error = meeting.error;
        }
        if (!call->over && call->number < group->posted) {
          const DeviceCall& own = *meeting.posts[place].call;
          calls.open.push_back(
              {call->number, call->meeting == wait.of, call->keys[place], own.number, own.where});
        }
      }
      news.calls.push_back(calls);
    }
    if (me_ == 0) {
      take_report(news, 0);
    } else {
      Bytes text;
      put_report(text, news);
      mail_.tell(0, report_tag, text.text());
    }
  }

  void take_report(const RankReport& report, int from) {
    reports_[static_cast<std::size_t>(from)] = Shared<RankReport>(new RankReport(report));
    const RunState state = judged_ ? RunState::goes_on : state_of(reports_);
    if (state != RunState::goes_on) {
      const std::string text = state == RunState::over ? "" : verdict();
      for (int rank = 1; rank < size_; ++rank) {
        mail_.tell(rank, verdict_tag, text);
      }
      take_verdict(text);
    }
  }

  void take_verdict(const std::string& text) {
    judged_ = true;
    fabric_.end_run(text);
  }

  // The fabric of this process takes over what all told, and says what it would say of threads.
  std::string verdict() {
    for (const Shared<Group>& group : fabric_.groups_) {
      for (const Shared<Meeting>& meeting : group->meetings) {
        for (std::size_t i = 0; i < meeting->posts.size() && !meeting->error.empty(); ++i) {
          meeting->posts[i].here = false;  // until its device says so
        }
      }
    }
    for (std::size_t rank = 0; rank < reports_.size(); ++rank) {
      const RankReport& report = *reports_[rank];
      Waiting::State& state = fabric_.waiting_.state(static_cast<int>(rank));
      state.now = report.now;
      state.where = report.where;
      state.message = report.message;
      state.wait = report.wait;
      for (const RankReport::Calls& calls : report.calls) {
        take_over(calls, static_cast<int>(rank), state);
      }
      for (std::size_t i = 0; i < report.unread.size() && rank > 0; ++i) {
        const RankReport::Unread& unread = report.unread[i];
        const int from = static_cast<int>(unread.from), to = static_cast<int>(rank);
        Packet packet;
        packet.call = send_record(send_shape(0, unread.where), from, to);
        for (std::int64_t left = unread.count; left > 0; --left) {
          fabric_.box(to, from).packets.push_back(packet);
        }
      }
    }
    fabric_.judge();
    return fabric_.waiting_.failure();
  }

  void take_over(const RankReport::Calls& calls, int rank, Waiting::State& state) {
    RankGroup& group = group_of(&fabric_.find_group(calls.axes, calls.ranks));
    if (!calls.error.empty()) {
      group.failed(calls.error).posts[place_in(calls.ranks, rank)].here = true;
    }
    for (const RankReport::Call& open : calls.open) {
      if (group.calls.empty() && group.posted == 0) {
        group.first = open.number;  // one that rank 0 is not in
      }
      RankCall& call = group.find(std::max(open.number, group.first));
      const std::size_t place = place_in(calls.ranks, rank);
      if (call.keys[place].empty()) {
        call.enter(static_cast<int>(place), Post(), open.key);
      }
      Bytes key(open.key);
      Shared<DeviceCall>& called = call.meeting->posts[place].call;
      called = Shared<DeviceCall>::make();
      called->key = get_key(key);
      called->number = open.called;
      called->where = open.where;
      call.meeting->disagrees = call.meeting->came == group.group->size() && !call.same();
      state.wait.of = open.awaited ? call.meeting : state.wait.of;
    }
  }

  Fabric& fabric_;
  MpiMail mail_;
  MPI_Comm data_ = MPI_COMM_NULL;  // of the chunks
  int me_ = 0, size_ = 1;
  List<Shared<RankGroup>> groups_;
  std::vector<std::int64_t> sent_, came_;  // messages of the program, by rank
  std::int64_t sends_ = 0;
  bool changed_ = false;  // since the last report
  bool judged_ = false;
  List<Shared<RankReport>> reports_;  // by rank; of rank 0
};

}  // namespace detail
}  // namespace tinyscale

#endif  // TINYSCALE_USE_MPI
