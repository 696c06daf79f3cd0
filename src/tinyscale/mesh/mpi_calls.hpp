#pragma once
// The collectives of the groups of this process's device, as far as their members have told it.

#if defined(TINYSCALE_USE_MPI)

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>  // move
#include <vector>

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/mesh/call_plan.hpp"
#include "tinyscale/mesh/meeting.hpp"
#include "tinyscale/mesh/mpi_exchange.hpp"

namespace tinyscale {
namespace detail {

struct RankCall {
  Meeting* meeting = nullptr;
  std::vector<std::string> keys;  // by place: what each called; empty: nothing yet
  bool over = false;
  const CallPlan* plan = nullptr;
  Shared<const std::vector<int>> members;  // by index
  Shared<RankExchange> exchange;           // once all have called the same
  std::int64_t number = 0;

  void enter(int place, Post post, const std::string& key) {
    post.here = true;
    keys[static_cast<std::size_t>(place)] = key;
    meeting->posts[static_cast<std::size_t>(place)] = std::move(post);
    meeting->came.fetch_add(1);
  }
  bool same() const {
    for (const std::string& key : keys) {
      if (key != keys[0]) {
        return false;
      }
    }
    return true;
  }
};

struct RankGroup {
  Group* group = nullptr;
  std::int64_t posted = 0;       // by this device
  std::int64_t first = 0;        // number of calls[0]
  List<Shared<RankCall>> calls;  // from the first that is not both over and awaited

  RankCall& find(std::int64_t number) {
    const std::size_t at = static_cast<std::size_t>(number - first);
    while (calls.size() <= at) {
      const Shared<RankCall> call(new RankCall);
      call->number = first + static_cast<std::int64_t>(calls.size());
      call->meeting = group->fresh();
      call->keys.resize(group->ranks.size());
      calls.push_back(call);
    }
    return *calls[at];
  }

  // The first call is over and its device has seen so.
  void let_go() {
    Meeting* const meeting = calls[0]->meeting;
    if (meeting->error.empty()) {
      for (Post& post : meeting->posts) {
        post = Post();
      }
      group->give_back(meeting);
    }
    for (std::size_t i = 1; i < calls.size(); ++i) {
      calls[i - 1] = calls[i];
    }
    calls.pop_back();
    ++first;
  }

  // The meeting whose exchange failed so, also where only other processes know of it.
  Meeting& failed(const std::string& error) {
    for (const Shared<Meeting>& known : group->meetings) {
      if (known->error == error) {
        return *known;
      }
    }
    Meeting& meeting = *group->fresh();
    meeting.error = error;
    meeting.done.store(true);
    return meeting;
  }
};

}  // namespace detail
}  // namespace tinyscale

#endif  // TINYSCALE_USE_MPI
