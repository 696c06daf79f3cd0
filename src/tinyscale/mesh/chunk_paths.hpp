#pragma once
// The way of each chunk of a collective through its devices, hop by hop. What one device adds and
// passes on to the next, which adds too, is one sum of many parts; what one copies and the next
// copies on, one number in many places: such hops stand one after another and are one pass over
// memory, which writes no partial sums down and has all its streams under way at once.

#include <algorithm>  // max
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tinyscale/base/list.hpp"
#include "tinyscale/mesh/collective_spec.hpp"
#include "tinyscale/mesh/schedule.hpp"

namespace tinyscale {
namespace detail {

struct ChunkPaths {
  struct Hop {
    int from = 0, to = 0;
    int step = 0;      // of all streams, counted on
    int reduce = 0;    // else copied
    int together = 0;  // hops of this step from here on whose payloads are taken before any lands
    int merged = 1;    // hops from here on that are one sum, or copies of one number
  };
  List<Hop> hops;                  // by chunk
  std::vector<std::size_t> first;  // hop of each chunk, and the end
  int widest = 1;                  // the most hops together
};

// Finds the hops of a chunk that are one pass. Those of one sum are put one after another: each
// device has its hops in their order, which is all that numbers depend on.
class MergedHops {
 public:
  MergedHops(ChunkPaths& paths, int devices)
      : paths_(paths),
        head_(static_cast<std::size_t>(devices), none),
        has_(static_cast<std::size_t>(devices), none) {}

  void arrange(std::size_t chunk) {
    const std::size_t begin = paths_.first[chunk], end = paths_.first[chunk + 1];
    hops_.clear();
    for (std::size_t h = begin; h < end; ++h) {
      hops_.push_back(paths_.hops[h]);
      if (hops_.back().together > 1) {
        return;
      }
    }
    queue();
    std::size_t at = begin;
    for (std::size_t h = 0; h < hops_.size(); ++h) {
      if (!taken_[h]) {
        const std::size_t first = at;
        paths_.hops[at++] = take(h);
        int holder = hops_[h].to;  // of the sum so far
        for (std::size_t next = following(h, holder); next != none;
             next = following(next, holder)) {
          holder = hops_[next].to;
          paths_.hops[at++] = take(next);
        }
        paths_.hops[first].merged = static_cast<int>(at - first);
      }
    }
    merge_copies(begin, end);
  }

 private:
  static constexpr std::size_t none = static_cast<std::size_t>(-1);

  std::size_t& head(int device) { return head_[static_cast<std::size_t>(device)]; }

  // The hops of each device one after another.
  void queue() {
    taken_.assign(hops_.size(), false);
    next_from_.assign(hops_.size(), none);
    next_to_.assign(hops_.size(), none);
    for (const ChunkPaths::Hop& hop : hops_) {
      head(hop.from) = head(hop.to) = none;
    }
    for (std::size_t h = hops_.size(); h-- > 0;) {
      next_from_[h] = head(hops_[h].from);
      next_to_[h] = head(hops_[h].to);
      head(hops_[h].from) = head(hops_[h].to) = h;
    }
  }
  ChunkPaths::Hop take(std::size_t h) {
    taken_[h] = true;
    head(hops_[h].from) = next_from_[h];
    head(hops_[h].to) = next_to_[h];
    return hops_[h];
  }

  // The hop that adds to what hop h left on `holder`, or adds that to another's; none if what it
  // left is wanted for itself too. As a result it never is: it lacks the other's share, which else
  // would count twice (check_schedule).
  std::size_t following(std::size_t h, int holder) {
    const std::size_t next = head(holder);
    if (hops_[h].reduce == 0 || next == none || hops_[next].reduce == 0) {
      return none;
    }
    const ChunkPaths::Hop& hop = hops_[next];
    const bool passes = hop.from == holder;
    if (head(passes ? hop.to : hop.from) != next) {
      return none;  // the other has to do something before
    }
    const std::size_t later = next_from_[next];  // of the holder: overwritten, or never used
    const bool gone = later == none || (hops_[later].to == holder && hops_[later].reduce == 0);
    return passes && !gone ? none : next;
  }

  // Neighbouring copies of what the first of them sends.
  void merge_copies(std::size_t begin, std::size_t end) {
    for (std::size_t h = begin; h < end;) {
      const std::size_t first = h;
      if (paths_.hops[h].reduce != 0) {
        h += static_cast<std::size_t>(paths_.hops[h].merged);
        continue;
      }
      has_[static_cast<std::size_t>(paths_.hops[h].from)] = first;
      const auto has = [&](int device) { return has_[static_cast<std::size_t>(device)] == first; };
      for (; h < end && paths_.hops[h].reduce == 0 && has(paths_.hops[h].from) &&
             !has(paths_.hops[h].to);
           ++h) {
        has_[static_cast<std::size_t>(paths_.hops[h].to)] = first;
      }
      paths_.hops[first].merged = static_cast<int>(h - first);
    }
  }

  ChunkPaths& paths_;
  std::vector<std::size_t> head_;  // of each device's hops that are left
  std::vector<std::size_t> has_;   // the copies' first hop, by which a device has the number
  List<ChunkPaths::Hop> hops_;
  List<bool> taken_;
  std::vector<std::size_t> next_from_, next_to_;  // of each hop: the next one of that device
};

inline ChunkPaths chunk_paths(const PreparedSchedule& schedule, const ChunkCut& cut) {
  ChunkPaths paths;
  const std::size_t chunks = static_cast<std::size_t>(cut.chunks());
  std::vector<std::size_t> at(chunks + 1, 0);
  for (const Transfer& t : schedule.data.transfers) {
    for (int c = t.chunk; c < t.chunk + t.chunks; ++c) {
      at[static_cast<std::size_t>(c) + 1] += cut.elements(c) > 0 ? 1U : 0U;
    }
  }
  for (std::size_t c = 0; c < chunks; ++c) {
    at[c + 1] += at[c];
  }
  paths.first = at;
  paths.hops = List<ChunkPaths::Hop>(at[chunks]);
  int number = 0;
  for (const PreparedSchedule::Step& step : schedule.steps) {
    for (std::size_t m = step.first; m < step.last; ++m) {
      const ScheduledMessage& message = schedule.messages[m];
      for (std::size_t i = message.first; i < message.last; ++i) {
        const Transfer& t = schedule.data.transfers[i];
        for (int c = t.chunk; c < t.chunk + t.chunks; ++c) {
          const std::size_t chunk = static_cast<std::size_t>(c);
          if (cut.elements(c) > 0) {
            paths.hops[at[chunk]++] = {
                t.from, t.to, number, t.action == Action::reduce ? 1 : 0, step.overlaps ? 1 : 0, 1};
          }
        }
      }
    }
    ++number;
  }
  // How many hops belong together, from the last one backwards.
  for (std::size_t c = 0; c < chunks; ++c) {
    for (std::size_t h = paths.first[c + 1]; h-- > paths.first[c];) {
      ChunkPaths::Hop& hop = paths.hops[h];
      const bool next = h + 1 < paths.first[c + 1] && paths.hops[h + 1].step == hop.step;
      hop.together = hop.together > 0 && next ? paths.hops[h + 1].together + 1 : 1;
      paths.widest = std::max(paths.widest, hop.together);
    }
  }
  MergedHops merged(paths, schedule.data.devices);
  for (std::size_t c = 0; c < chunks; ++c) {
    merged.arrange(c);
  }
  return paths;
}

}  // namespace detail
}  // namespace tinyscale
