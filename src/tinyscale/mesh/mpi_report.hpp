#pragma once
// Whether a run on MPI ranks can go on. A device that waits for long, or has ended, tells rank 0
// where it stands and all that it did. When all have, and none of them waits for what another had
// done when it told, none can ever go on: the first to do so would need what some device did after
// it told, that is after it had gone on itself. No report needs to be recent for that.

#if defined(TINYSCALE_USE_MPI)

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/mesh/mpi_bytes.hpp"
#include "tinyscale/mesh/waiting.hpp"

namespace tinyscale {
namespace detail {

// Where a device stands, as it tells rank 0.
struct RankReport {
  struct Call {  // that it posted and that is not over
    std::int64_t number = 0;
    bool awaited = false;
    std::string key;
    int called = 0;  // its number among the device's calls
    SourceLine where;
  };
  struct Calls {  // of one group
    std::vector<int> axes, ranks;
    std::int64_t posted = 0;
    std::string error;  // of the first exchange that failed and it has not heard of
    List<Call> open;
  };
  struct Unread {  // messages of one sender
    std::int64_t from = 0, count = 0;
    SourceLine where;  // of the first
  };

  Waiting::Now now = Waiting::Now::runs;
  Wait wait;
  std::string where, message;
  List<Calls> calls;
  std::vector<std::int64_t> sent, came;  // messages of the program, by rank
  List<Unread> unread;

  const Calls* find(const Calls& like) const {
    for (const Calls& known : calls) {
      if (known.axes == like.axes && known.ranks == like.ranks) {
        return &known;
      }
    }
    return nullptr;
  }
};

inline std::size_t place_in(const std::vector<int>& ranks, int rank) {
  std::size_t place = 0;
  while (ranks[place] != rank) {
    ++place;
  }
  return place;
}

inline void put_report(Bytes& to, const RankReport& report) {
  to.put_enum(report.now);
  to.put_enum(report.wait.what);
  to.put(std::int64_t{report.wait.peer});
  to.put(report.where);
  to.put(report.message);
  to.put_numbers(report.sent);
  to.put_numbers(report.came);
  to.put(static_cast<std::int64_t>(report.unread.size()));
  for (const RankReport::Unread& unread : report.unread) {
    to.put(unread.from);
    to.put(unread.count);
    put_where(to, unread.where);
  }
  for (const RankReport::Calls& calls : report.calls) {
    to.put_numbers(calls.axes);
    to.put_numbers(calls.ranks);
    to.put(calls.posted);
    to.put(calls.error);
    to.put(static_cast<std::int64_t>(calls.open.size()));
    for (const RankReport::Call& call : calls.open) {
      to.put(call.number);
      to.put(std::int64_t{call.awaited ? 1 : 0});
      to.put(call.key);
      to.put(std::int64_t{call.called});
      put_where(to, call.where);
    }
  }
}

inline RankReport get_report(Bytes& from) {
  RankReport report;
  from.get_enum(report.now);
  from.get_enum(report.wait.what);
  report.wait.peer = from.whole();
  report.where = from.string();
  report.message = from.string();
  from.get_numbers(report.sent);
  from.get_numbers(report.came);
  report.unread = List<RankReport::Unread>(static_cast<std::size_t>(from.number()));
  for (RankReport::Unread& unread : report.unread) {
    unread.from = from.number();
    unread.count = from.number();
    unread.where = get_where(from);
  }
  while (!from.at_end()) {
    RankReport::Calls calls;
    from.get_numbers(calls.axes);
    from.get_numbers(calls.ranks);
    calls.posted = from.number();
    calls.error = from.string();
    calls.open = List<RankReport::Call>(static_cast<std::size_t>(from.number()));
    for (RankReport::Call& call : calls.open) {
      call.number = from.number();
      call.awaited = from.number() != 0;
      call.key = from.string();
      call.called = from.whole();
      call.where = get_where(from);
    }
    report.calls.push_back(calls);
  }
  return report;
}

using RankReports = List<Shared<RankReport>>;  // by rank; null: none yet

// Whether all members have made that call, and the same: then it will be over.
inline bool under_way(const RankReports& reports, const RankReport::Calls& calls,
                      const RankReport::Call& open) {
  for (const int rank : calls.ranks) {
    const RankReport::Calls* const theirs = reports[static_cast<std::size_t>(rank)]->find(calls);
    if (theirs == nullptr || theirs->posted <= open.number) {
      return false;
    }
    for (const RankReport::Call& other : theirs->open) {
      if (other.number == open.number && other.key != open.key) {
        return false;
      }
    }
  }
  return true;
}

enum class RunState { goes_on, over, stuck };

inline RunState state_of(const RankReports& reports) {
  for (const Shared<RankReport>& report : reports) {
    if (!report) {
      return RunState::goes_on;
    }
  }
  bool fine = true;
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    const RankReport& report = *reports[rank];
    fine = fine && report.now == Waiting::Now::returned;
    for (const RankReport::Calls& calls : report.calls) {
      fine = fine && calls.error.empty();
      for (const RankReport::Call& open : calls.open) {
        if (under_way(reports, calls, open)) {
          return RunState::goes_on;
        }
        fine = false;
      }
    }
    for (std::size_t from = 0; from < reports.size(); ++from) {
      if (reports[from]->sent[rank] != report.came[from]) {
        return RunState::goes_on;  // one is under way, and will be told of
      }
    }
    fine = fine && report.unread.empty();
  }
  return fine ? RunState::over : RunState::stuck;
}

}  // namespace detail
}  // namespace tinyscale

#endif  // TINYSCALE_USE_MPI
