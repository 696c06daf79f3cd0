#pragma once
// Schedules in which devices exchange with partners near and far: recursive halving and doubling,
// the binomial tree, dissemination, everyone with everyone.
// Thakur, Rabenseifner, Gropp 2005 (halving/doubling); Hensgen, Finkel, Manber 1988 (barrier).

#include <algorithm>  // min
#include <cstdint>

#include "tinyscale/mesh/neighbour_schedules.hpp"

namespace tinyscale {
namespace detail {

// Steps of a tree over n devices: ceil(log2 n).
inline int doublings(int n) {
  int steps = 0;
  for (std::int64_t reached = 1; reached < n; reached *= 2) {
    ++steps;
  }
  return steps;
}

// Halving and doubling runs on the largest power of two of devices, `members`; the first
// 2 (n - members) devices are pairs, whose even one is a member.
struct Doubling {
  explicit Doubling(int n) : devices(n) {
    while (2 * members <= n) {
      members *= 2;
    }
  }
  int pairs() const { return devices - members; }
  // Also where the blocks of that member begin, one for each device that it stands for.
  int device(int member) const { return member < pairs() ? 2 * member : member + pairs(); }
  int reversed(int member) const {  // its bits
    int bits = 0;
    for (int bit = 1; bit < members; bit *= 2) {
      bits = 2 * bits + ((member & bit) != 0 ? 1 : 0);
    }
    return bits;
  }

  int devices;
  int members = 1;
};

// all_gather: partners exchange all they have, the nearest first.
inline void schedule_doubling(ScheduleBuilder& to_add, int n) {
  const Doubling group(n);
  int step = group.pairs() > 0 ? 1 : 0;
  for (int pair = 0; pair < group.pairs(); ++pair) {
    to_add.add(0, 2 * pair + 1, 2 * pair, 2 * pair + 1);
  }
  for (int distance = 1; distance < group.members; distance *= 2, ++step) {
    for (int member = 0; member < group.members; ++member) {
      const int first = member / distance * distance;
      const int begin = group.device(first);
      to_add.add(step, group.device(member), group.device(member ^ distance), begin,
                 group.device(first + distance) - begin);
    }
  }
  for (int pair = 0; pair < group.pairs(); ++pair) {
    to_add.add_around(step, 2 * pair, 2 * pair + 1, 2 * pair + 2, n - 1, n);
  }
}

// Second half of an all_reduce, as Rabenseifner's: the farthest partners first, so that the most
// goes to the nearest. A member has the chunk whose number is its own with the bits reversed; the
// partner in a pair gets the whole at the end.
inline void schedule_halves(ScheduleBuilder& to_add, int n) {
  const Doubling group(n);
  to_add.out.chunks = group.members;
  int step = 0;
  for (int distance = group.members / 2; distance > 0; distance /= 2, ++step) {
    const int held = group.members / 2 / distance;
    for (int member = 0; member < group.members; ++member) {
      to_add.add(step, group.device(member), group.device(member ^ distance),
                 group.reversed(member) / held * held, held);
    }
  }
  for (int pair = 0; pair < group.pairs(); ++pair) {
    to_add.add(step, 2 * pair, 2 * pair + 1, 0, group.members);
  }
}

// broadcast, scatter: the root sends to the device half of all away, both to a quarter, ...
// Device v behind the root has those up to v + distance below it.
inline void schedule_tree(ScheduleBuilder& to_add, Collective what, int n, int root) {
  int step = 0;
  for (int distance = (1 << doublings(n)) / 2; distance > 0; distance /= 2, ++step) {
    for (int v = 0; v + distance < n; v += 2 * distance) {
      const int below = v + distance;
      const int from = modulo(root + v, n), to = modulo(root + below, n);
      if (rooted_blocks(what)) {
        to_add.add_around(step, from, to, root + below, std::min(distance, n - below), n);
      } else {
        to_add.add(step, from, to, 0);
      }
    }
  }
}

// In step j every device hears from the one 2^j before it.
inline void schedule_dissemination(ScheduleBuilder& to_add, int n) {
  int step = 0;
  for (int distance = 1; distance < n; distance *= 2, ++step) {
    for (int device = 0; device < n; ++device) {
      to_add.add(step, device, modulo(device + distance, n), 0);
      to_add.out.transfers.back().action = Action::reduce;
    }
  }
}

// Everything in one step; of an all_reduce the chunks to those who sum them, and back.
inline void schedule_direct(ScheduleBuilder& to_add, const CollectiveSpec& spec) {
  const int n = spec.devices();
  const Collective what = spec.what;
  const bool rooted = is_rooted(what);
  to_add.out.chunks = what == Collective::all_reduce ? n : block_count(what, n);
  for (int from = rooted ? spec.root : 0; from < (rooted ? spec.root + 1 : n); ++from) {
    for (int to = 0; to < n; ++to) {
      if (from == to || (what == Collective::permute && to != modulo(from + spec.root, n))) {
        continue;
      }
      const int chunk = what == Collective::all_to_all          ? from * n + to
                        : rooted_blocks(what)                   ? to
                        : rooted || what == Collective::barrier ? 0
                                                                : from;
      to_add.add(0, from, to, chunk);
      if (what == Collective::barrier) {
        to_add.out.transfers.back().action = Action::reduce;
      }
    }
  }
}

}  // namespace detail
}  // namespace tinyscale
