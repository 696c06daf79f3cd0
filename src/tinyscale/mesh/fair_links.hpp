#pragma once
// Messages that share links: each gets its max-min fair rate. All rates of a set of messages rise
// together until a link is full; those through it are settled, the others rise on
// (Bertsekas and Gallager, Data Networks, 6.5.2).

#include <algorithm>  // max, min
#include <cstddef>
#include <limits>
#include <vector>

#include "tinyscale/base/list.hpp"
#include "tinyscale/mesh/route.hpp"

namespace tinyscale {
namespace detail {

class FairLinks {
 public:
  struct Flow {
    std::vector<std::size_t> route;
    double bytes = 0;  // left
    double rate = 0;
    double since = 0;  // when `bytes` was right
    int version = 0;   // counts the changes of rate
    int told = -1;     // the version that share() has given
    bool settled = false;
    bool left = false;  // still in the lists of its links, until they are next looked at
  };

  explicit FairLinks(const MachineLinks& links)
      : links_(links),
        on_link_(links.count()),
        seen_(links.count(), 0),
        room_(links.count(), 0),
        open_(links.count(), 0) {}

  // A place for a flow; those that ended are used again.
  std::size_t add() {
    if (free_.empty()) {
      flows_.push_back(Flow());
      return flows_.size() - 1;
    }
    const std::size_t f = free_.back();
    free_.pop_back();
    return f;
  }
  void remove(std::size_t f) {
    ++flows_[f].version;
    flows_[f].rate = 0;
    removed_.push_back(f);
  }
  Flow& flow(std::size_t f) { return flows_[f]; }
  static double end_of(const Flow& flow) {  // infinity over a dead link
    return flow.rate > 0 ? flow.since + flow.bytes / flow.rate
                         : std::numeric_limits<double>::infinity();
  }

  void join(std::size_t f) {
    for (const std::size_t link : flows_[f].route) {
      on_link_[link].push_back(f);
      changed_.push_back(link);
    }
  }
  void leave(std::size_t f) {
    flows_[f].left = true;
    changed_.insert(changed_.end(), flows_[f].route.begin(), flows_[f].route.end());
  }

  // New rates for all that share links, however indirectly, with those that joined or left. Gives
  // the flows of each such set that end first, if they were not given with that rate: when they
  // end, the others are shared out anew.
  const std::vector<std::size_t>& share(double now) {
    first_.clear();
    ++round_;
    for (const std::size_t link : changed_) {
      if (seen_[link] != round_) {
        collect(link);
        fill(now);
        find_first();
      }
    }
    changed_.clear();
    for (const std::size_t f : removed_) {
      flows_[f].left = false;
      free_.push_back(f);
    }
    removed_.clear();
    return first_;
  }

 private:
  // All flows that share links with those of `first`, and their links.
  void collect(std::size_t first) {
    together_.clear();
    full_.assign(1, first);
    seen_[first] = round_;
    for (std::size_t i = 0; i < full_.size(); ++i) {
      const std::size_t link = full_[i];
      std::vector<std::size_t>& on = on_link_[link];
      std::size_t stay = 0;
      for (const std::size_t f : on) {
        on[stay] = f;
        stay += flows_[f].left ? 0U : 1U;
      }
      on.resize(stay);
      room_[link] = links_.bandwidth(link);
      open_[link] = stay;
      for (const std::size_t f : on) {
        if (flows_[f].settled) {
          continue;  // reached by another of its links
        }
        flows_[f].settled = true;
        together_.push_back(f);
        for (const std::size_t other : flows_[f].route) {
          if (seen_[other] != round_) {
            seen_[other] = round_;
            full_.push_back(other);
          }
        }
      }
    }
    for (const std::size_t f : together_) {
      flows_[f].settled = false;
    }
  }

  // Raises all rates together; the flows of the links that are full first are settled; repeat.
  void fill(double now) {
    for (std::size_t left = together_.size(); left > 0;) {
      double least = std::numeric_limits<double>::infinity();
      std::size_t kept = 0;
      for (const std::size_t link : full_) {
        if (open_[link] > 0) {
          full_[kept++] = link;
          least = std::min(least, room_[link] / static_cast<double>(open_[link]));
        }
      }
      full_.resize(kept);
      const double equal = least * (1 + 1e-12);  // links that differ by rounding are full at once
      for (const std::size_t link : full_) {
        if (room_[link] > equal * static_cast<double>(open_[link])) {
          continue;
        }
        for (const std::size_t f : on_link_[link]) {
          if (!flows_[f].settled) {
            settle(f, least, now);
            --left;
          }
        }
      }
    }
    for (const std::size_t f : together_) {
      flows_[f].settled = false;
    }
  }

  void settle(std::size_t f, double rate, double now) {
    Flow& flow = flows_[f];
    flow.settled = true;
    for (const std::size_t link : flow.route) {
      room_[link] = std::max(room_[link] - rate, 0.0);
      --open_[link];
    }
    if (flow.rate < rate || flow.rate > rate) {
      flow.bytes = std::max(0.0, flow.bytes - flow.rate * (now - flow.since));
      flow.since = now;
      flow.rate = rate;
      ++flow.version;
    }
  }

  // Ends that differ by rounding alone are one.
  void find_first() {
    double least = std::numeric_limits<double>::infinity();
    for (const std::size_t f : together_) {
      least = std::min(least, end_of(flows_[f]));
    }
    for (const std::size_t f : together_) {
      Flow& flow = flows_[f];
      if (flow.told != flow.version && end_of(flow) <= least * (1 + 1e-12)) {
        flow.told = flow.version;
        first_.push_back(f);
      }
    }
  }

  const MachineLinks& links_;
  List<Flow> flows_;
  std::vector<std::size_t> free_, removed_;
  List<std::vector<std::size_t>> on_link_;
  std::vector<int> seen_;  // the round in which a link was last looked at
  int round_ = 0;
  std::vector<std::size_t> changed_, first_;
  // Of the set at hand: flows, links that are not yet full, and of each what is left and for whom.
  std::vector<std::size_t> together_, full_;
  std::vector<double> room_;
  std::vector<std::size_t> open_;
};

}  // namespace detail
}  // namespace tinyscale
