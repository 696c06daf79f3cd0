#pragma once
// Messages that share links: each gets its max-min fair rate. All rates of a set of messages rise
// together until a link is full; those through it are settled, the others rise on
// (Bertsekas and Gallager, Data Networks, 6.5.2).

#include <algorithm>  // max
#include <cstddef>
#include <limits>
#include <vector>

#include "tinyscale/base/list.hpp"
#include "tinyscale/mesh/route.hpp"

namespace tinyscale {
namespace detail {

// Messages in transfer that share links; each gets its max-min fair rate.
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

  FairLinks(const Machine& machine, std::size_t messages)
      : links_(machine), flows_(messages), on_link_(links_.count()), seen_(links_.count(), 0) {}

  Flow& flow(std::size_t m) { return flows_[m]; }
  const MachineLinks& links() const { return links_; }

  void join(std::size_t m) {
    for (const std::size_t link : flows_[m].route) {
      on_link_[link].push_back(m);
    }
  }
  void leave(std::size_t m) {
    for (const std::size_t link : flows_[m].route) {
      std::vector<std::size_t>& on = on_link_[link];
      std::size_t at = 0;
      while (on[at] != m) {
        ++at;
      }
      on.erase(on.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }

  // New rates for all that share links, however indirectly, with the links of `changed`;
  // gives the flows whose rate is another now.
  std::vector<std::size_t> share(const std::vector<std::size_t>& changed, double now) {
    std::vector<std::size_t> restarted;
    ++round_;
    for (const std::size_t m : changed) {
      for (const std::size_t link : flows_[m].route) {
        if (seen_[link] != round_) {
          share_component(link, now, restarted);
        }
      }
    }
    return restarted;
  }

 private:
  void share_component(std::size_t first, double now, std::vector<std::size_t>& restarted) {
    std::vector<std::size_t> links(1, first);
    std::vector<std::size_t> flows;
    seen_[first] = round_;
    for (std::size_t i = 0; i < links.size(); ++i) {
      for (const std::size_t m : on_link_[links[i]]) {
        if (flows_[m].settled) {
          continue;  // reached by another of its links
        }
        flows_[m].settled = true;
        flows.push_back(m);
        for (const std::size_t link : flows_[m].route) {
          if (seen_[link] != round_) {
            seen_[link] = round_;
            links.push_back(link);
          }
        }
      }
    }
    for (const std::size_t m : flows) {
      flows_[m].settled = false;
    }
    fill(links, flows, now, restarted);
  }

  // Raises all rates together; the flows of the link that is full first are settled; repeat.
  void fill(const std::vector<std::size_t>& links, const std::vector<std::size_t>& flows,
            double now, std::vector<std::size_t>& restarted) {
    std::size_t left = flows.size();
    std::vector<double> room;
    for (const std::size_t link : links) {
      room.push_back(links_.bandwidth(link));
    }
    while (left > 0) {
      std::size_t tight = 0;
      double least = std::numeric_limits<double>::infinity();
      for (std::size_t i = 0; i < links.size(); ++i) {
        const double unsettled = static_cast<double>(count_unsettled(links[i]));
        if (unsettled > 0 && room[i] / unsettled < least) {
          least = room[i] / unsettled;
          tight = i;
        }
      }
      for (const std::size_t m : on_link_[links[tight]]) {
        if (!flows_[m].settled) {
          flows_[m].settled = true;
          --left;
          set_rate(m, least, now, restarted);
          for (std::size_t i = 0; i < links.size(); ++i) {
            bool on = false;
            for (const std::size_t link : flows_[m].route) {
              on = on || link == links[i];
            }
            room[i] = on ? std::max(room[i] - least, 0.0) : room[i];
          }
        }
      }
    }
    for (const std::size_t m : flows) {
      flows_[m].settled = false;
    }
  }

  std::size_t count_unsettled(std::size_t link) const {
    std::size_t count = 0;
    for (const std::size_t m : on_link_[link]) {
      count += flows_[m].settled ? 0U : 1U;
    }
    return count;
  }

  void set_rate(std::size_t m, double rate, double now, std::vector<std::size_t>& restarted) {
    Flow& flow = flows_[m];
    if (flow.rate < rate || flow.rate > rate) {
      flow.bytes = std::max(0.0, flow.bytes - flow.rate * (now - flow.since));
      flow.since = now;
      flow.rate = rate;
      ++flow.version;
      restarted.push_back(m);
    }
  }

  MachineLinks links_;
  List<Flow> flows_;
  List<std::vector<std::size_t>> on_link_;
  std::vector<int> seen_;  // the round in which a link was last looked at
  int round_ = 0;
};

}  // namespace detail
}  // namespace tinyscale
