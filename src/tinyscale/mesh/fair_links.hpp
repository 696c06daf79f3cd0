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
    bool settled = false;
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
    free_.push_back(f);
  }
  Flow& flow(std::size_t f) { return flows_[f]; }

  void join(std::size_t f) {
    for (const std::size_t link : flows_[f].route) {
      on_link_[link].push_back(f);
      changed_.push_back(link);
    }
  }
  void leave(std::size_t f) {
    for (const std::size_t link : flows_[f].route) {
      std::vector<std::size_t>& on = on_link_[link];
      std::size_t at = 0;
      while (on[at] != f) {
        ++at;
      }
      on[at] = on.back();
      on.pop_back();
      changed_.push_back(link);
    }
  }

  // New rates for all that share links, however indirectly, with those that joined or left;
  // the flows whose rate is another now.
  const std::vector<std::size_t>& share(double now) {
    restarted_.clear();
    ++round_;
    for (const std::size_t link : changed_) {
      if (seen_[link] != round_ && !on_link_[link].empty()) {
        collect(link);
        fill(now);
      }
    }
    changed_.clear();
    return restarted_;
  }

 private:
  // All flows that share links with those of `first`, and their links.
  void collect(std::size_t first) {
    together_.clear();
    full_.assign(1, first);
    seen_[first] = round_;
    for (std::size_t i = 0; i < full_.size(); ++i) {
      const std::size_t link = full_[i];
      room_[link] = links_.bandwidth(link);
      open_[link] = on_link_[link].size();
      for (const std::size_t f : on_link_[link]) {
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
      restarted_.push_back(f);
    }
  }

  const MachineLinks& links_;
  List<Flow> flows_;
  std::vector<std::size_t> free_;
  List<std::vector<std::size_t>> on_link_;
  std::vector<int> seen_;  // the round in which a link was last looked at
  int round_ = 0;
  std::vector<std::size_t> changed_, restarted_;
  // Of the set at hand: flows, links that are not yet full, and of each what is left and for whom.
  std::vector<std::size_t> together_, full_;
  std::vector<double> room_;
  std::vector<std::size_t> open_;
};

}  // namespace detail
}  // namespace tinyscale
