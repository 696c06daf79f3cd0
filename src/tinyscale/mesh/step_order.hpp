#pragma once
// Which messages of a collective may leave: a device takes part in the steps of each stream one
// after another, and a message needs both its ends to have come to its step.

#include <cstddef>
#include <cstdint>  // uintptr_t
#include <limits>
#include <string>
#include <vector>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/mesh/run_log.hpp"

namespace tinyscale {
namespace detail {

// The messages of each member of a schedule, in the order of their steps.
struct MemberSteps {
  explicit MemberSteps(const PreparedSchedule& prepared) : schedule(&prepared) {
    members = static_cast<std::size_t>(prepared.data.devices);
    streams = prepared.streams.size();
    first.assign(streams * members + 1, 0);
    stream.resize(prepared.messages.size());
    for (std::size_t s = 0; s < streams; ++s) {
      const PreparedSchedule::Stream& steps = prepared.streams[s];
      for (std::size_t m = prepared.steps[steps.first].first;
           m < prepared.steps[steps.last - 1].last; ++m) {
        stream[m] = static_cast<int>(s);
        ++first[at(s, prepared.messages[m].from) + 1];
        ++first[at(s, prepared.messages[m].to) + 1];
      }
    }
    for (std::size_t i = 1; i < first.size(); ++i) {
      first[i] += first[i - 1];
    }
    items.resize(first.back());
    std::vector<std::size_t> filled(first);
    for (std::size_t m = 0; m < stream.size(); ++m) {  // messages lie by step
      const std::size_t s = static_cast<std::size_t>(stream[m]);
      items[filled[at(s, prepared.messages[m].from)]++] = static_cast<int>(m);
      items[filled[at(s, prepared.messages[m].to)]++] = static_cast<int>(m);
    }
  }

  std::size_t at(std::size_t s, int member) const {
    return s * members + static_cast<std::size_t>(member);
  }
  const Transfer& transfer(std::size_t m) const {
    return schedule->data.transfers[schedule->messages[m].first];
  }
  int step(std::size_t m) const { return transfer(m).step; }

  const PreparedSchedule* schedule = nullptr;
  std::size_t members = 0, streams = 0;
  std::vector<std::size_t> first;  // by stream and member: into items
  std::vector<int> items;          // messages
  std::vector<int> stream;         // of each message
};

// The index of a rank in a group, -1 when it is no member.
inline int member_of(const LoggedCall& call, int rank) {
  const std::vector<int>& members = *call.members;
  const std::size_t n = members.size();
  if (n > 1 && members[1] != members[0]) {  // most groups are evenly spaced
    const int guess = (rank - members[0]) / (members[1] - members[0]);
    if (guess >= 0 && static_cast<std::size_t>(guess) < n &&
        members[static_cast<std::size_t>(guess)] == rank) {
      return guess;
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    if (members[i] == rank) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

// Bytes of a message of a call.
inline double message_bytes(const CallShape& shape, const ScheduledMessage& message) {
  std::int64_t elements = 0;
  for (std::size_t t = message.first; t < message.last; ++t) {
    const Transfer& transfer = shape.schedule->data.transfers[t];
    elements += shape.cut.elements(transfer.chunk, transfer.chunks);
  }
  return static_cast<double>(elements) * shape.spec.element_bytes;
}

inline const std::string& line_of(const RunLog& log, std::size_t call) {
  return log.lines[static_cast<std::size_t>(log.calls[call].line)];
}

// The MemberSteps of every call of a log. Schedules are known by their address (a hash table).
struct CallOrders {
  explicit CallOrders(const RunLog& log) {
    std::vector<std::size_t> slots(2 * log.calls.size() + 1, 0);  // place in `orders` + 1, or 0
    for (std::size_t c = 0; c < log.calls.size(); ++c) {
      const PreparedSchedule* const schedule = log.calls[c].shape->schedule.get();
      std::size_t at = reinterpret_cast<std::uintptr_t>(schedule) / 16 % slots.size();
      while (slots[at] > 0 && orders[slots[at] - 1]->schedule != schedule) {
        at = (at + 1) % slots.size();
      }
      if (slots[at] == 0) {
        orders.push_back(Shared<MemberSteps>(new MemberSteps(*schedule)));
        slots[at] = orders.size();
      }
      places.push_back(slots[at] - 1);
      messages += schedule->messages.size();
      if (log.calls[c].members->size() != of(c).members) {
        fail({"time: ", line_of(log, c), " has ", log.calls[c].members->size(),
              " members and a schedule for ", of(c).members, "; they must be equal"});
      }
    }
  }
  const MemberSteps& of(std::size_t call) const { return *orders[places[call]]; }

  List<Shared<MemberSteps>> orders;
  std::vector<std::size_t> places;  // by call
  std::size_t messages = 0;
};

// How far one group is in its call.
struct CallProgress {
  static constexpr int not_there = -1;

  const MemberSteps* order = nullptr;
  std::size_t call = 0;
  std::vector<int> step;          // by stream and member: that it is in
  std::vector<std::size_t> next;  // the first item after it
  std::vector<int> unfinished;    // messages of it
  std::vector<int> streams_left;  // by member; not_there: it has not started the call
  std::size_t members_left = 0;

  void begin(const MemberSteps& of, std::size_t number) {
    order = &of;
    call = number;
    const std::size_t places = of.streams * of.members;
    step.assign(places, not_there);
    next.assign(of.first.begin(), of.first.begin() + static_cast<std::ptrdiff_t>(places));
    unfinished.assign(places, 0);
    streams_left.assign(of.members, not_there);
    members_left = of.members;
  }
  bool started(int member) const {
    return streams_left[static_cast<std::size_t>(member)] != not_there;
  }
  bool done(int member) const { return streams_left[static_cast<std::size_t>(member)] == 0; }

  // A member comes to its next step of a stream, or to its end; adds messages that may leave now.
  void enter(std::size_t s, int member, std::vector<std::size_t>& leave) {
    const std::size_t place = order->at(s, member);
    std::size_t i = next[place];
    const std::size_t end = order->first[place + 1];
    if (i == end) {
      step[place] = std::numeric_limits<int>::max();
      if (--streams_left[static_cast<std::size_t>(member)] == 0) {
        --members_left;
      }
      return;
    }
    const int now = order->step(static_cast<std::size_t>(order->items[i]));
    step[place] = now;
    for (; i < end; ++i) {
      const std::size_t m = static_cast<std::size_t>(order->items[i]);
      if (order->step(m) != now) {
        break;
      }
      ++unfinished[place];
      const ScheduledMessage& message = order->schedule->messages[m];
      const int other = message.from == member ? message.to : message.from;
      if (step[order->at(s, other)] == now) {
        leave.push_back(m);
      }
    }
    next[place] = i;
  }

  // Its first step of every stream.
  void start(int member, std::vector<std::size_t>& leave) {
    streams_left[static_cast<std::size_t>(member)] = static_cast<int>(order->streams);
    members_left -= order->streams == 0 ? 1U : 0U;
    for (std::size_t s = 0; s < order->streams; ++s) {
      enter(s, member, leave);
    }
  }

  // One end of a message is finished; true when the member comes to another step by that.
  bool finish(std::size_t m, int member, std::vector<std::size_t>& leave) {
    const std::size_t s = static_cast<std::size_t>(order->stream[m]);
    if (--unfinished[order->at(s, member)] > 0) {
      return false;
    }
    enter(s, member, leave);
    return true;
  }
};

}  // namespace detail
}  // namespace tinyscale
