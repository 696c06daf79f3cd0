#pragma once
// The schedule of a collective by one of the built-in algorithms, and a schedule made ready to run:
// its transfers in order, as messages, steps and streams.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/mesh/partner_schedules.hpp"
#include "tinyscale/mesh/schedule.hpp"

namespace tinyscale {
namespace detail {

inline bool has_algorithm(Collective what, Algorithm algorithm) {
  const bool sums = what == Collective::all_gather || what == Collective::reduce_scatter ||
                    what == Collective::all_reduce;
  switch (algorithm) {
    case Algorithm::ring:
    case Algorithm::ring_both_ways:
    case Algorithm::line: return what != Collective::barrier;
    case Algorithm::halving_doubling: return sums;
    case Algorithm::tree:
      return is_rooted(what) || what == Collective::all_reduce || what == Collective::barrier;
    case Algorithm::direct: return true;
    case Algorithm::torus:
    case Algorithm::hierarchical:
      return sums || rooted_whole(what) || what == Collective::all_to_all;
    default: return false;
  }
}

// Throws unless the spec has a schedule of its algorithm.
inline void check_spec(const char* function, const CollectiveSpec& spec) {
  double devices = 1;
  for (const AxisPart& part : spec.parts) {
    if (part.size < 1) {
      fail({function, ": a part of ", part.size, " devices; every part needs at least 1"});
    }
    devices *= part.size;
  }
  if (devices > 2147483647) {
    fail({function, ": ", devices, " devices; at most 2147483647"});
  }
  if (spec.elements < 0) {
    fail({function, ": ", spec.elements, " elements; 0 or more are right"});
  }
  if (is_rooted(spec.what) && (spec.root < 0 || spec.root >= spec.devices())) {
    fail({function, ": root ", spec.root, " of ", spec.devices(), " devices; the root is 0 to ",
          spec.devices() - 1});
  }
  name_of(spec.what);  // refuses what is none
  if (!has_algorithm(spec.what, spec.algorithm)) {
    std::string names;
    for (int i = 1; i < static_cast<int>(Algorithm::custom); ++i) {
      if (has_algorithm(spec.what, static_cast<Algorithm>(i))) {
        names += (names.empty() ? "" : ", ") + std::string(name_of(static_cast<Algorithm>(i)));
      }
    }
    fail({function, ": ", name_of(spec.what), " has no algorithm ", name_of(spec.algorithm),
          "; it has ", names});
  }
}

constexpr int most_exchanging = 16384;      // n n blocks, each in some chunks, are int
constexpr double most_exchanged = 1 << 26;  // times that an all_to_all passes a block on

// Of an all_to_all: every block, as often as it is passed on. Grows as N^2 times the links between.
inline double exchange_transfers(const CollectiveSpec& spec) {
  const double n = spec.devices();
  if (spec.algorithm == Algorithm::direct) {
    return n * (n - 1);
  }
  double transfers = 0;
  const List<Row> rows = rows_of(spec);
  for (const Row& row : rows) {
    const double size = row.size, right = reach(row.way, row.size, 0).right;
    const double left = size - 1 - right;
    const double links = row.way == Algorithm::line  // of one block to each, from all of the row
                             ? (size * size - 1) * size / 3
                             : size * (right * (right + 1) + left * (left + 1)) / 2;
    transfers += n / size * (n / size) * links;
  }
  return transfers * static_cast<double>(stream_count(spec, rows));
}
inline bool can_be_listed(const CollectiveSpec& spec) {
  return spec.what != Collective::all_to_all || exchange_transfers(spec) <= most_exchanged;
}

// Where the chunks of a schedule of `chunks` lie. Counts that n does not divide: the first blocks
// are one element larger.
inline ChunkCut chunk_cut(const CollectiveSpec& spec, int chunks) {
  const int n = spec.devices();
  ChunkCut cut;
  cut.blocks = block_count(spec.what, n);
  cut.parts = chunks / cut.blocks;
  const bool whole = cut.blocks == 1 || spec.what == Collective::permute;
  cut.block = spec.what == Collective::barrier ? 0 : whole ? spec.elements : spec.elements / n;
  if (!whole && spec.elements % n != 0) {
    for (int b = 0; b < cut.blocks; ++b) {
      cut.ragged.push_back(b / n * spec.elements + chunk_begin(spec.elements, n, b % n));
    }
    cut.ragged.push_back(cut.blocks / n * spec.elements);
  }
  return cut;
}

}  // namespace detail

// Who sends which chunk to whom, by the spec's algorithm (not automatic: see choose_algorithm).
// No transfers for one device or no elements.
inline CollectiveSchedule make_schedule(const CollectiveSpec& spec) {
  detail::check_spec("make_schedule", spec);
  const int n = spec.devices();
  if (!detail::moves_nothing(spec) && !detail::can_be_listed(spec)) {
    const double transfers = detail::exchange_transfers(spec);
    detail::fail({"make_schedule: all_to_all over ", n, " devices by ", name_of(spec.algorithm),
                  " passes blocks on ", format_count(transfers), " times, a list of ",
                  format_bytes(transfers * sizeof(Transfer)), "; right is up to ",
                  format_count(detail::most_exchanged),
                  " times: over one axis after another, or over fewer devices, or asked of ",
                  "Mesh::predict, which lists none"});
  }
  detail::ScheduleBuilder builder;
  CollectiveSchedule& out = builder.out;
  out.name = name_of(spec.algorithm);
  out.what = spec.what;
  out.devices = n;
  out.chunks = detail::block_count(spec.what, n);
  out.root = spec.root;
  if (detail::moves_nothing(spec)) {
    return out;
  }
  if (spec.algorithm == Algorithm::direct) {
    detail::schedule_direct(builder, spec);
  } else if (spec.algorithm == Algorithm::halving_doubling) {
    if (spec.what == Collective::all_reduce) {
      detail::schedule_halves(builder, n);
    } else {
      detail::schedule_doubling(builder, n);
    }
  } else if (spec.algorithm == Algorithm::tree && spec.what == Collective::barrier) {
    detail::schedule_dissemination(builder, n);
  } else if (spec.algorithm == Algorithm::tree) {
    detail::schedule_tree(builder, spec.what, n,
                          spec.what == Collective::all_reduce ? 0 : spec.root);
  } else {
    detail::schedule_neighbours(builder, spec);
  }
  if (spec.what == Collective::reduce_scatter || spec.what == Collective::reduce) {
    detail::run_backwards(out, Action::reduce);
  } else if (spec.what == Collective::gather) {
    detail::run_backwards(out, Action::copy);
  } else if (spec.what == Collective::all_reduce) {
    detail::reduce_then(out);
  }
  return out;
}

namespace detail {

using TransferOrder = bool (*)(const Transfer& a, const Transfer& b);

inline bool by_sender(const Transfer& a, const Transfer& b) {
  return a.from != b.from ? a.from < b.from : a.to != b.to ? a.to < b.to : a.chunk < b.chunk;
}
inline bool by_stream(const Transfer& a, const Transfer& b) {
  return a.stream != b.stream ? a.stream < b.stream
         : a.step != b.step   ? a.step < b.step
                              : by_sender(a, b);
}

// Runs twice as long are merged in each pass.
inline void sort_transfers(List<Transfer>& items, TransferOrder comes_before) {
  const std::size_t n = items.size();
  bool sorted = true;
  for (std::size_t i = 1; i < n && sorted; ++i) {
    sorted = !comes_before(items[i], items[i - 1]);
  }
  if (sorted) {
    return;
  }
  List<Transfer> merged(n);
  for (std::size_t run = 1; run < n; run *= 2) {
    for (std::size_t begin = 0; begin < n; begin += 2 * run) {
      const std::size_t middle = std::min(begin + run, n);
      const std::size_t end = std::min(begin + 2 * run, n);
      std::size_t a = begin, b = middle;
      for (std::size_t i = begin; i < end; ++i) {
        const bool second = b < end && (a == middle || comes_before(items[b], items[a]));
        merged[i] = items[second ? b++ : a++];
      }
    }
    items.swap(merged);
  }
}

// Whether some device both sends and changes a chunk in the transfers first to last - 1, a step.
// `sent` has a place for each chunk, below `mark`; takes a mark for each device.
inline bool step_overlaps(const CollectiveSchedule& data, std::size_t first, std::size_t last,
                          std::vector<std::size_t>& sent, std::size_t& mark) {
  const std::size_t devices = static_cast<std::size_t>(data.devices);
  std::vector<std::size_t> begin(devices + 1, 0);  // of those that a device takes
  for (std::size_t i = first; i < last; ++i) {
    ++begin[static_cast<std::size_t>(data.transfers[i].to) + 1];
  }
  for (std::size_t d = 0; d < devices; ++d) {
    begin[d + 1] += begin[d];
  }
  std::vector<std::size_t> taken(last - first);
  std::vector<std::size_t> next = begin;
  for (std::size_t i = first; i < last; ++i) {
    taken[next[static_cast<std::size_t>(data.transfers[i].to)]++] = i;
  }
  for (std::size_t i = first; i < last;) {
    const int device = data.transfers[i].from;
    ++mark;
    for (; i < last && data.transfers[i].from == device; ++i) {
      const std::size_t chunk = static_cast<std::size_t>(data.transfers[i].chunk);
      const std::size_t chunks = static_cast<std::size_t>(data.transfers[i].chunks);
      for (std::size_t c = chunk; c < chunk + chunks; ++c) {
        sent[c] = mark;
      }
    }
    const std::size_t d = static_cast<std::size_t>(device);
    for (std::size_t t = begin[d]; t < begin[d + 1]; ++t) {
      const std::size_t chunk = static_cast<std::size_t>(data.transfers[taken[t]].chunk);
      const std::size_t chunks = static_cast<std::size_t>(data.transfers[taken[t]].chunks);
      for (std::size_t c = chunk; c < chunk + chunks; ++c) {
        if (sent[c] == mark) {
          return true;
        }
      }
    }
  }
  return false;
}

// A schedule that was checked (check_schedule, or made by make_schedule), ready to run.
inline Shared<const PreparedSchedule> prepare(CollectiveSchedule schedule) {
  PreparedSchedule* const made = new PreparedSchedule;
  Shared<const PreparedSchedule> out(made);
  made->data = static_cast<CollectiveSchedule&&>(schedule);
  sort_transfers(made->data.transfers, by_stream);
  const List<Transfer>& all = made->data.transfers;
  std::vector<std::size_t> sent(static_cast<std::size_t>(made->data.chunks), 0);
  std::size_t mark = 0;
  for (std::size_t i = 0; i < all.size();) {
    const std::size_t first = i;
    const std::size_t messages = made->messages.size();
    while (i < all.size() && all[i].stream == all[first].stream && all[i].step == all[first].step) {
      const std::size_t begin = i;
      while (i < all.size() && all[i].stream == all[begin].stream &&
             all[i].step == all[begin].step && all[i].from == all[begin].from &&
             all[i].to == all[begin].to) {
        ++i;
      }
      made->messages.push_back({all[begin].from, all[begin].to, begin, i});
    }
    if (first == 0 || all[first].stream != all[first - 1].stream) {
      made->streams.push_back({made->steps.size(), made->steps.size()});
    }
    made->steps.push_back(
        {messages, made->messages.size(), step_overlaps(made->data, first, i, sent, mark)});
    made->streams.back().last = made->steps.size();
  }
  return out;
}

}  // namespace detail
}  // namespace tinyscale
