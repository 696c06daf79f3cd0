#pragma once
// Proof that a pipeline schedule never waits for itself, whatever a send waits for. Decided by
// state: all ranks advance until none can; whoever is left waits in a circle, which is named.

#include <cstddef>  // size_t
#include <string>   // string
#include <vector>   // vector

#include "tinyscale/base/error.hpp"
#include "tinyscale/parallel/pipeline_places.hpp"
#include "tinyscale/parallel/pipeline_schedule.hpp"

namespace tinyscale {

// Until when a rank that sends is held up.
struct Buffering {
  enum Kind {
    eager,       // not at all
    deep,        // until one of `depth` places between the two ranks is free
    rendezvous,  // until the receiver, having got rid of what it sends itself, takes this message
    paired       // the same, but what a rank sends and receives between two ops, it does at once:
  };             // Megatron's send_forward_recv_backward
  Kind kind = eager;
  int depth = 0;  // messages of each ordered pair of ranks, until the op that needs them starts

  std::string text() const {
    static const char* const names[] = {"eager", "buffers of ", "rendezvous", "paired rendezvous"};
    return names[kind] + (kind == deep ? std::to_string(depth) : std::string());
  }
};
inline Buffering eager_sends() { return {Buffering::eager, 0}; }
inline Buffering buffered_sends(int depth) { return {Buffering::deep, depth}; }
inline Buffering rendezvous_sends() { return {Buffering::rendezvous, 0}; }
inline Buffering paired_sends() { return {Buffering::paired, 0}; }

namespace detail {

// All ranks at once, as far as they get.
class PipelineWalk {
 public:
  PipelineWalk(const char* who, const PipelineSchedule& schedule, const Buffering& buffering)
      : places_(who, schedule),
        schedule_(schedule),
        buffering_(buffering),
        done_(schedule.program.size(), 0),
        sent_(schedule.program.size(), 1) {
    if (buffering.kind == Buffering::deep) {
      if (buffering.depth < 1) {
        fail({places_.who(), ": buffers of ", buffering.depth,
              " messages; 1 or more are right, rendezvous is without"});
      }
      filled_.assign(schedule.program.size() * schedule.program.size(), 0);
    }
  }

  const PipelinePlaces& places() const { return places_; }
  // Whose op came next: an order in which all needs are met.
  const std::vector<int>& order() const { return order_; }

  // Whether the programs end.
  bool runs() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < schedule_.ranks; ++rank) {
        while (advance(rank)) {
          moved = true;
        }
      }
    }
    return stuck() < 0;
  }
  // Throws if they do not.
  void run() {
    if (!runs()) {
      fail_at(stuck());
    }
  }

 private:
  const List<PipelineOp>& ops(int rank) const {
    return schedule_.program[static_cast<std::size_t>(rank)];
  }
  std::size_t& done(int rank) { return done_[static_cast<std::size_t>(rank)]; }
  int& sent(int rank) { return sent_[static_cast<std::size_t>(rank)]; }
  int& filled(int from, int to) {
    return filled_[static_cast<std::size_t>(from) * done_.size() + static_cast<std::size_t>(to)];
  }
  // A rank that has not finished, or -1.
  int stuck() {
    for (int rank = 0; rank < schedule_.ranks; ++rank) {
      if (done(rank) < ops(rank).size() || sent(rank) == 0) {
        return rank;
      }
    }
    return -1;
  }

  // What keeps the rank's next op: -1 nothing, else which of needs[].
  int unmet(int rank, PipelineOp needs[2]) {
    const int n = places_.needs(ops(rank)[done(rank)], needs);
    for (int i = 0; i < n; ++i) {
      const int from = places_.rank(needs[i]);
      const auto place = static_cast<std::size_t>(places_.place(needs[i]));
      const bool under_way = from != rank && place + 1 == done(from) && sent(from) == 0;
      if (place >= done(from) || under_way) {
        return i;
      }
    }
    return -1;
  }

  // Whether what `rank` has to send gets away.
  bool taken(int rank) {
    const PipelineOp& op = ops(rank)[done(rank) - 1];
    const int to = places_.receiver(op);
    if (buffering_.kind == Buffering::eager) {
      return true;
    }
    if (buffering_.kind == Buffering::deep) {
      if (filled(rank, to) >= buffering_.depth) {
        return false;
      }
      ++filled(rank, to);
      return true;
    }
    if (done(to) == ops(to).size() || (buffering_.kind == Buffering::rendezvous && sent(to) == 0)) {
      return false;
    }
    PipelineOp needs[2];
    return places_.needs(ops(to)[done(to)], needs) > 0 && places_.rank(needs[0]) == rank &&
           static_cast<std::size_t>(places_.place(needs[0])) + 1 == done(rank);
  }

  bool advance(int rank) {
    if (sent(rank) == 0) {
      sent(rank) = taken(rank) ? 1 : 0;
      return sent(rank) != 0;
    }
    PipelineOp needs[2];
    if (done(rank) == ops(rank).size() || unmet(rank, needs) >= 0) {
      return false;
    }
    const PipelineOp& op = ops(rank)[done(rank)];
    const int from = places_.needs(op, needs) > 0 ? places_.rank(needs[0]) : rank;
    if (buffering_.kind == Buffering::deep && from != rank) {
      --filled(from, rank);
    }
    ++done(rank);
    order_.push_back(rank);
    sent(rank) = places_.receiver(op) < 0 ? 1 : 0;
    return true;
  }

  // For whom a rank that is stuck waits; appends it in words.
  int waits_for(int rank, std::string& words) {
    if (sent(rank) == 0) {
      const PipelineOp& op = ops(rank)[done(rank) - 1];
      const int to = places_.receiver(op);
      words += cat({"rank ", rank, " after ", op, " waits for rank ", to,
                    buffering_.kind == Buffering::deep ? " to empty a buffer" : " to receive it"});
      return to;
    }
    PipelineOp needs[2];
    const PipelineOp& op = ops(rank)[done(rank)];
    PipelineOp need = needs[unmet(rank, needs)];
    const int from = places_.rank(need);
    need = ops(from)[static_cast<std::size_t>(places_.place(need))];  // B or I, as it is there
    words += cat({"rank ", rank, " at ", op, " waits for ", from == rank ? "its own later " : "",
                  need, from == rank ? "" : cat({" of rank ", from})});
    return from;
  }

  [[noreturn]] void fail_at(int rank) {
    std::vector<int> seen(done_.size(), 0);
    std::string words;
    while (seen[static_cast<std::size_t>(rank)]++ == 0) {  // into the circle
      rank = waits_for(rank, words);
    }
    words.clear();
    int next = rank, length = 0;
    do {
      words += words.empty() ? "" : "; ";
      next = waits_for(next, words);
    } while (next != rank && ++length < 8);
    fail({places_.who(), ": deadlock (", buffering_.text(), "): ", words,
          next == rank ? "" : "; and so on in a circle"});
  }

  PipelinePlaces places_;
  const PipelineSchedule& schedule_;
  Buffering buffering_;
  std::vector<std::size_t> done_;  // ops of each rank
  std::vector<int> sent_;          // 0: the message of its last op has not left yet
  std::vector<int> filled_;        // buffers from rank to rank
  std::vector<int> order_;
};

}  // namespace detail

// Throws unless the schedule is complete, in order and free of deadlock; names who waits for whom.
inline void check_pipeline(const PipelineSchedule& schedule,
                           const Buffering& buffering = Buffering()) {
  detail::PipelineWalk("check_pipeline", schedule, buffering).run();
}

// The fewest places for messages between any two ranks with which it runs.
inline int buffers_needed(const PipelineSchedule& schedule) {
  detail::PipelineWalk("buffers_needed", schedule, eager_sends()).run();
  int depth = 1;
  while (!detail::PipelineWalk("buffers_needed", schedule, buffered_sends(depth)).runs()) {
    ++depth;
  }
  return depth;
}

// Whether every rank needs what another one sends it in the order in which it is sent: then a queue
// for each ordered pair of ranks does, else messages are told apart by stage and microbatch.
inline bool arrives_in_order(const PipelineSchedule& schedule) {
  const detail::PipelinePlaces places("arrives_in_order", schedule);
  for (const List<PipelineOp>& ops : schedule.program) {
    std::vector<int> last(schedule.program.size(), -1);
    for (const PipelineOp& op : ops) {
      PipelineOp needs[2];
      if (places.needs(op, needs) > 0 && places.rank(needs[0]) != places.rank(op)) {
        int& before = last[static_cast<std::size_t>(places.rank(needs[0]))];
        if (places.place(needs[0]) < before) {
          return false;
        }
        before = places.place(needs[0]);
      }
    }
  }
  return true;
}

}  // namespace tinyscale
