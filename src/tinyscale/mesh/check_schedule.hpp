#pragma once
// Whether a schedule does what its collective promises, from who has contributed to what each
// device holds of each chunk: one device to what is only copied, a set of them to a sum. And what
// order a sum is added up in, and how many messages meet on a link.

#include <algorithm>  // max, min
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tinyscale/base/list.hpp"
#include "tinyscale/mesh/make_schedule.hpp"

namespace tinyscale {

// Messages of one step over one link, the worst of all steps. Streams are taken to go in step.
struct LinkContention {
  int messages = 0;
  int step = 0;
  std::string link;  // "device 3 -> device 4", "out of device 3", "into device 3"
};

struct ScheduleReport {
  int steps = 0;               // of the longest stream
  std::int64_t messages = 0;   // of all devices
  std::int64_t transfers = 0;  // of chunks
  LinkContention contention;   // when a placement was given
};

namespace detail {

inline bool sums(Collective what) {
  return what == Collective::reduce_scatter || what == Collective::all_reduce ||
         what == Collective::reduce || what == Collective::barrier;
}

// Whether a device holds its own or an original of that block before the collective.
inline bool holds_before(const CollectiveSchedule& s, int device, int block) {
  switch (s.what) {
    case Collective::all_gather:
    case Collective::gather:
    case Collective::permute: return device == block;
    case Collective::all_to_all: return block / s.devices == device;
    case Collective::broadcast:
    case Collective::scatter: return device == s.root;
    default: return true;
  }
}

inline bool needed_after(const CollectiveSchedule& s, int device, int block) {
  switch (s.what) {
    case Collective::reduce_scatter:
    case Collective::scatter: return device == block;
    case Collective::all_to_all: return block % s.devices == device;
    case Collective::permute: return modulo(device - s.root, s.devices) == block;
    case Collective::reduce:
    case Collective::gather: return device == s.root;
    default: return true;
  }
}

constexpr double most_held = 1 << 28;  // chunks of all devices: some GB

inline void check_shape(const CollectiveSchedule& s) {
  const bool countable =
      s.devices >= 1 && (s.what != Collective::all_to_all || s.devices <= most_exchanging);
  const int blocks = countable ? block_count(s.what, s.devices) : 1;
  if (s.devices < 1 || s.chunks < 1 || s.chunks % blocks != 0) {
    fail({"check_schedule: ", s.name, ": ", s.chunks, " chunks for ", s.devices,
          " devices; at least 1 device and a multiple of ", blocks, " chunks are right"});
  }
  if (!countable || static_cast<double>(s.devices) * s.chunks > most_held) {
    fail({"check_schedule: ", s.name, ": ", s.chunks, " chunks on each of ", s.devices,
          " devices; the check follows up to ", most_held, " in all"});
  }
  if (is_rooted(s.what) && (s.root < 0 || s.root >= s.devices)) {
    fail({"check_schedule: ", s.name, ": root ", s.root, " of ", s.devices,
          " devices; the root is 0 to ", s.devices - 1});
  }
}

inline std::string place(const CollectiveSchedule& s, const Transfer& t) {
  return cat({"check_schedule: ", s.name, ": step ", t.step, ", device ", t.from, " to ", t.to});
}

inline void check_transfer(const CollectiveSchedule& s, const Transfer& t) {
  if (t.from < 0 || t.to < 0 || t.from >= s.devices || t.to >= s.devices) {
    fail({place(s, t), ": devices are 0 to ", s.devices - 1});
  }
  if (t.from == t.to) {
    fail({place(s, t), ": a device does not send to itself"});
  }
  if (t.chunk < 0 || t.chunks < 1 || t.chunk > s.chunks - t.chunks) {
    fail({place(s, t), ": ", t.chunks, " chunks from chunk ", t.chunk, "; chunks are 0 to ",
          s.chunks - 1});
  }
  if (t.step < 0 || t.stream < 0) {
    fail({place(s, t), ", stream ", t.stream, ": steps and streams count from 0"});
  }
  if (t.action == Action::reduce && !sums(s.what)) {
    fail({place(s, t), ", chunk ", t.chunk, ": ", name_of(s.what), " only copies"});
  }
}

// Who has contributed to each chunk of each device: bits, of one when there is one original.
class Contributions {
 public:
  explicit Contributions(const CollectiveSchedule& s)
      : schedule_(s),
        chunks_(static_cast<std::size_t>(s.chunks)),
        words_(sums(s.what) ? (static_cast<std::size_t>(s.devices) + 63) / 64 : 1),
        sets_(static_cast<std::size_t>(s.devices) * chunks_ * words_, 0),
        written_(sets_.size() / words_, 0) {
    const int parts = s.chunks / block_count(s.what, s.devices);
    for (int device = 0; device < s.devices; ++device) {
      for (int chunk = 0; chunk < s.chunks; ++chunk) {
        if (holds_before(s, device, chunk / parts)) {
          const std::size_t bit = sums(s.what) ? static_cast<std::size_t>(device) : 0;
          sets_[at(device, chunk) + bit / 64] = std::uint64_t{1} << (bit % 64);
        }
      }
    }
  }

  // The step `mark` (above 0, rising): all its sends are of what was there before.
  void send(const Transfer& t, std::vector<std::uint64_t>& sent) const {
    for (int c = t.chunk; c < t.chunk + t.chunks; ++c) {
      const std::size_t from = at(t.from, c);
      if (sets_[from] == 0 && !sums(schedule_.what)) {
        fail({place(schedule_, t), ": device ", t.from, " does not hold chunk ", c,
              " yet and would wait for ever; send it in a step after the one that brings it"});
      }
      for (std::size_t w = 0; w < words_; ++w) {
        sent.push_back(sets_[from + w]);
      }
    }
  }
  void take(const Transfer& t, const std::uint64_t* sent, int mark) {
    for (int c = t.chunk; c < t.chunk + t.chunks; ++c, sent += words_) {
      int& written = written_[at(t.to, c) / words_];
      const int own = t.action == Action::copy ? mark : -mark;  // several may add in one step
      if ((written == mark || written == -mark) && (own == mark || written == mark)) {
        fail({place(schedule_, t), ": chunk ", c,
              " of the receiver is written twice in this step; only sums may meet"});
      }
      written = own;
      merge(t, c, sent);
    }
  }

  void check_end() const {
    const CollectiveSchedule& s = schedule_;
    const int parts = s.chunks / block_count(s.what, s.devices);
    const int contributors = sums(s.what) ? s.devices : 1;
    for (int device = 0; device < s.devices; ++device) {
      for (int chunk = 0; chunk < s.chunks; ++chunk) {
        for (int i = 0; i < contributors && needed_after(s, device, chunk / parts); ++i) {
          if (!has(device, chunk, i)) {
            fail({"check_schedule: ", s.name, ": at the end device ", device, " lacks ",
                  sums(s.what) ? cat({"the share of device ", i, " in "}) : std::string(), "chunk ",
                  chunk});
          }
        }
      }
    }
  }

 private:
  std::size_t at(int device, int chunk) const {
    return (static_cast<std::size_t>(device) * chunks_ + static_cast<std::size_t>(chunk)) * words_;
  }
  bool has(int device, int chunk, int contributor) const {
    const std::size_t bit = static_cast<std::size_t>(contributor);
    return (sets_[at(device, chunk) + bit / 64] >> (bit % 64) & 1U) != 0;
  }

  void merge(const Transfer& t, int chunk, const std::uint64_t* sent) {
    const std::size_t to = at(t.to, chunk);
    const bool adds = t.action == Action::reduce;
    for (std::size_t w = 0; w < words_; ++w) {
      const std::uint64_t twice = sets_[to + w] & sent[w];
      const std::uint64_t lost = sets_[to + w] & ~sent[w];
      if (adds && twice != 0 && schedule_.what != Collective::barrier) {
        fail({place(schedule_, t), ": adds to chunk ", chunk, " the share of device ",
              lowest(twice, w), ", which is in it already; it would count twice"});
      }
      if (!adds && lost != 0) {
        fail({place(schedule_, t), ": overwrites chunk ", chunk, ", losing the share of device ",
              lowest(lost, w), "; reduce it instead of copying"});
      }
      sets_[to + w] = adds ? sets_[to + w] | sent[w] : sent[w];
    }
  }
  static std::size_t lowest(std::uint64_t bits, std::size_t word) {
    std::size_t bit = 64 * word;
    for (; (bits & 1U) == 0; bits >>= 1) {
      ++bit;
    }
    return bit;
  }

  const CollectiveSchedule& schedule_;
  std::size_t chunks_, words_;
  std::vector<std::uint64_t> sets_;
  std::vector<int> written_;  // the step's mark, below 0 when it adds
};

// Streams do not wait for each other: no chunk of a device may be in two.
inline void check_streams(const CollectiveSchedule& s) {
  bool several = false;
  for (const Transfer& t : s.transfers) {
    several = several || t.stream != s.transfers[0].stream;
  }
  if (!several) {
    return;
  }
  std::vector<int> stream_of(
      static_cast<std::size_t>(s.devices) * static_cast<std::size_t>(s.chunks), -1);
  for (const Transfer& t : s.transfers) {
    for (const int device : {t.from, t.to}) {
      for (int c = t.chunk; c < t.chunk + t.chunks; ++c) {
        int& stream =
            stream_of[static_cast<std::size_t>(device) * static_cast<std::size_t>(s.chunks) +
                      static_cast<std::size_t>(c)];
        if (stream >= 0 && stream != t.stream) {
          fail({place(s, t), ": chunk ", c, " of device ", device, " is in streams ", stream,
                " and ", t.stream, "; streams do not wait for each other and share no chunk"});
        }
        stream = t.stream;
      }
    }
  }
}

// Messages on each link in one step. Along a row a link is an end of a device: 0 up, 1 down; into
// a switch 0, out of it 1.
class LinkCounter {
 public:
  LinkCounter(const List<AxisPart>& parts, int devices)
      : parts_(parts), devices_(devices), count_(parts.size() * links(devices) * 2, 0) {}

  void add(int from, int to, int step, LinkContention& worst) {
    int stride = devices_;
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      const AxisPart& part = parts_[p];
      stride /= part.size;
      const int there = to / stride % part.size;
      int here = from / stride % part.size;
      if (here == there || part.kind == AxisKind::full) {
        from += (there - here) * stride;
        continue;
      }
      if (part.kind == AxisKind::switched) {
        pass(p, from, 0, cat({"out of device ", from}), step, worst);
        from += (there - here) * stride;
        pass(p, from, 1, cat({"into device ", from}), step, worst);
        continue;
      }
      const int up = modulo(there - here, part.size);
      const bool rises = part.kind == AxisKind::ring ? 2 * up <= part.size : there > here;
      while (here != there) {
        const int next = modulo(here + (rises ? 1 : -1), part.size);
        const int neighbour = from + (next - here) * stride;
        pass(p, from, rises ? 0 : 1, cat({"device ", from, " -> device ", neighbour}), step, worst);
        from = neighbour;
        here = next;
      }
    }
  }
  void clear() { count_.assign(count_.size(), 0); }

 private:
  static std::size_t links(int devices) { return static_cast<std::size_t>(devices); }
  void pass(std::size_t part, int device, int way, const std::string& link, int step,
            LinkContention& worst) {
    int& count = count_[(part * links(devices_) + links(device)) * 2 + links(way)];
    ++count;
    if (count > worst.messages) {
      worst = {count, step, link};
    }
  }

  const List<AxisPart>& parts_;
  int devices_;
  std::vector<int> count_;
};

inline void check_own_schedule(const CollectiveSchedule& own, const CollectiveSpec& spec) {
  const int n = spec.devices(), blocks = block_count(spec.what, n);
  if (own.what != spec.what || own.devices != n || own.chunks < 1 || own.chunks % blocks != 0 ||
      own.root != spec.root) {
    fail({name_of(spec.what), ": schedule ", own.name, " is ", name_of(own.what), " over ",
          own.devices, " devices in ", own.chunks, " chunks, root ", own.root, "; right is ",
          name_of(spec.what), " over ", n, " devices in a multiple of ", blocks, " chunks, root ",
          spec.root});
  }
}

// Streams side by side, step by step.
inline bool by_step(const Transfer& a, const Transfer& b) {
  return a.step != b.step       ? a.step < b.step
         : a.stream != b.stream ? a.stream < b.stream
                                : by_sender(a, b);
}

}  // namespace detail

// Throws unless the schedule ends with what its collective promises and never waits for itself.
// `parts`: of the links that its devices lie on, for the contention.
inline ScheduleReport check_schedule(const CollectiveSchedule& schedule,
                                     const List<AxisPart>& parts = List<AxisPart>()) {
  detail::check_shape(schedule);
  double placed = 1;
  for (const AxisPart& part : parts) {
    placed *= part.size;
  }
  if (!parts.empty() && !(placed >= schedule.devices && placed <= schedule.devices)) {
    detail::fail({"check_schedule: ", schedule.name, ": parts of ", placed, " devices for ",
                  schedule.devices, "; they must be equal"});
  }
  for (const Transfer& t : schedule.transfers) {
    detail::check_transfer(schedule, t);
  }
  detail::check_streams(schedule);
  ScheduleReport report;
  detail::Contributions held(schedule);
  detail::LinkCounter links(parts, schedule.devices);
  List<Transfer> all = schedule.transfers;
  detail::sort_transfers(all, detail::by_step);
  std::vector<std::uint64_t> sent;
  for (std::size_t i = 0; i < all.size();) {
    const std::size_t first = i;
    sent.clear();
    links.clear();
    std::vector<std::size_t> begin;
    for (; i < all.size() && all[i].step == all[first].step; ++i) {
      begin.push_back(sent.size());
      held.send(all[i], sent);
      if (i == first || all[i].from != all[i - 1].from || all[i].to != all[i - 1].to ||
          all[i].stream != all[i - 1].stream) {
        ++report.messages;
        if (!parts.empty()) {
          links.add(all[i].from, all[i].to, all[i].step, report.contention);
        }
      }
    }
    ++report.steps;
    for (std::size_t t = first; t < i; ++t) {
      held.take(all[t], sent.data() + begin[t - first], report.steps);
    }
  }
  report.transfers = static_cast<std::int64_t>(all.size());
  held.check_end();
  return report;
}

// How chunk `chunk` of `device` is added up, x2 being what device 2 began with:
// "((x2 + x3) + x0) + x1".
inline std::string reduction_order(const detail::PreparedSchedule& schedule, int device,
                                   int chunk) {
  const CollectiveSchedule& s = schedule.data;
  if (device < 0 || device >= s.devices || chunk < 0 || chunk >= s.chunks) {
    detail::fail({"reduction_order: device ", device, ", chunk ", chunk, "; devices are 0 to ",
                  s.devices - 1, ", chunks 0 to ", s.chunks - 1});
  }
  std::vector<std::string> held(static_cast<std::size_t>(s.devices));
  for (int d = 0; d < s.devices; ++d) {
    held[static_cast<std::size_t>(d)] = detail::cat({"x", d});
  }
  for (const auto& step : schedule.steps) {
    const std::vector<std::string> before = held;
    for (std::size_t m = step.first; m < step.last; ++m) {
      const detail::ScheduledMessage& message = schedule.messages[m];
      for (std::size_t i = message.first; i < message.last; ++i) {
        const Transfer& t = s.transfers[i];
        if (chunk < t.chunk || chunk >= t.chunk + t.chunks) {
          continue;
        }
        const std::string& part = before[static_cast<std::size_t>(t.from)];
        std::string& into = held[static_cast<std::size_t>(t.to)];
        if (t.action == Action::copy) {
          into = part;
        } else {
          const bool sum = into.find('+') != std::string::npos;
          const bool adds_sum = part.find('+') != std::string::npos;
          into = detail::cat({sum ? "(" : "", into, sum ? ")" : "", " + ", adds_sum ? "(" : "",
                              part, adds_sum ? ")" : ""});
        }
      }
    }
  }
  return held[static_cast<std::size_t>(device)];
}

}  // namespace tinyscale
