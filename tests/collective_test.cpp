#include <doctest/doctest.h>

#include "error_of.hpp"
#include "long_tests.hpp"
#include "slow_timer.hpp"
#include "tinyscale.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

namespace ts = tinyscale;
using ts::Algorithm;
using ts::AxisKind;
using ts::Collective;

namespace {

ts::AxisPart part_of(int size, AxisKind kind, double latency = 1e-6, double bandwidth = 4.5e10) {
  ts::AxisPart part;
  part.size = size;
  part.kind = kind;
  part.latency = latency;
  part.bandwidth = bandwidth;
  return part;
}

ts::CollectiveSpec row(Collective what, Algorithm algorithm, int n, std::int64_t elements,
                       int root = 0, AxisKind kind = AxisKind::ring) {
  ts::CollectiveSpec spec;
  spec.what = what;
  spec.algorithm = algorithm;
  spec.parts.push_back(part_of(n, kind));
  spec.elements = elements;
  spec.root = root;
  return spec;
}

std::string text_of(const ts::CollectiveSpec& spec) {
  std::string text = ts::detail::cat({ts::name_of(spec.what), " by ", ts::name_of(spec.algorithm),
                                      ", ", spec.elements, " elements, root ", spec.root, " on"});
  for (const ts::AxisPart& part : spec.parts) {
    text += ts::detail::cat({" ", part.size, " ", ts::name_of(part.kind)});
  }
  return text;
}

using Check = void (*)(const ts::CollectiveSpec&);

// Every algorithm of every collective on `parts`.
void for_each_algorithm(const ts::List<ts::AxisPart>& parts,
                        const std::vector<std::int64_t>& elements, Check check) {
  for (int what = 0; what <= static_cast<int>(Collective::barrier); ++what) {
    for (int algorithm = 1; algorithm < static_cast<int>(Algorithm::custom); ++algorithm) {
      ts::CollectiveSpec spec;
      spec.what = static_cast<Collective>(what);
      spec.algorithm = static_cast<Algorithm>(algorithm);
      spec.parts = parts;
      if (!ts::detail::has_algorithm(spec.what, spec.algorithm)) {
        continue;
      }
      const int n = spec.devices();
      const bool rooted = ts::detail::is_rooted(spec.what) || spec.what == Collective::permute;
      for (const int root : {0, n / 3, n - 1}) {
        for (const std::int64_t count : elements) {
          spec.root = root;
          spec.elements = count;
          if (root == 0 || (rooted && root != n / 3) || (rooted && n > 2 && n / 3 != n - 1)) {
            check(spec);
          }
        }
      }
    }
  }
}

const std::vector<std::vector<int>> tori = {{2, 2},    {4, 4},    {3, 3},   {2, 5},
                                            {4, 2},    {5, 5},    {6},      {2, 3, 4},
                                            {3, 1, 2}, {2, 2, 2}, {3, 3, 3}};

void for_each_group(const std::vector<std::int64_t>& elements, Check check, int largest = 33) {
  for (int n = 1; n <= largest; ++n) {
    ts::List<ts::AxisPart> parts;
    parts.push_back(part_of(n, AxisKind::ring));
    for_each_algorithm(parts, elements, check);
  }
  for (const std::vector<int>& sizes : tori) {
    for (const AxisKind kind : {AxisKind::line, AxisKind::ring, AxisKind::switched}) {
      ts::List<ts::AxisPart> parts;
      for (const int size : sizes) {
        parts.push_back(part_of(size, kind));
      }
      for_each_algorithm(parts, elements, check);
    }
  }
}

// Element e of what device d begins with; small whole numbers, so that every order adds up alike.
double began(int device, std::int64_t element) {
  return static_cast<double>((device * 131 + element * 71 + device * element) % 1009);
}

// What each device holds of the whole vector, run by the letter: all that is sent in a step is
// copied before anything of the step arrives.
std::vector<std::vector<double>> run_slowly(const ts::CollectiveSpec& spec,
                                            const ts::CollectiveSchedule& schedule, bool maximum) {
  const ts::ChunkCut cut = ts::detail::chunk_cut(spec, schedule.chunks);
  const std::size_t length = static_cast<std::size_t>(cut.begin(cut.chunks()));
  std::vector<std::vector<double>> held(static_cast<std::size_t>(spec.devices()),
                                        std::vector<double>(length, -1e9));
  const int per_block = schedule.chunks / cut.blocks;
  for (int d = 0; d < spec.devices(); ++d) {
    for (int c = 0; c < cut.chunks(); ++c) {
      for (std::int64_t e = cut.begin(c); e < cut.begin(c + 1); ++e) {
        if (ts::detail::holds_before(schedule, d, c / per_block)) {
          held[static_cast<std::size_t>(d)][static_cast<std::size_t>(e)] = began(d, e);
        }
      }
    }
  }
  const auto prepared = ts::detail::prepare(schedule);
  int steps = 0;
  for (const ts::Transfer& transfer : prepared->data.transfers) {
    steps = std::max(steps, transfer.step + 1);
  }
  for (int step = 0; step < steps; ++step) {
    const std::vector<std::vector<double>> before = held;
    for (const ts::Transfer& t : prepared->data.transfers) {
      if (t.step != step) {
        continue;
      }
      for (std::int64_t e = cut.begin(t.chunk); e < cut.begin(t.chunk + t.chunks); ++e) {
        const double sent = before[static_cast<std::size_t>(t.from)][static_cast<std::size_t>(e)];
        double& into = held[static_cast<std::size_t>(t.to)][static_cast<std::size_t>(e)];
        into = t.action == ts::Action::copy ? sent : maximum ? std::max(into, sent) : into + sent;
      }
    }
  }
  return held;
}

// From the definition of the collective; -1e9 where it promises nothing.
double expected(const ts::CollectiveSpec& spec, int device, int block, std::int64_t e,
                bool maximum) {
  ts::CollectiveSchedule schedule;
  schedule.what = spec.what;
  schedule.devices = spec.devices();
  schedule.root = spec.root;
  if (!ts::detail::needed_after(schedule, device, block)) {
    return -1e9;
  }
  switch (spec.what) {
    case Collective::all_gather:
    case Collective::gather:
    case Collective::permute: return began(block, e);
    case Collective::all_to_all: return began(block / spec.devices(), e);
    case Collective::broadcast:
    case Collective::scatter: return began(spec.root, e);
    default: break;
  }
  double all = maximum ? -1e9 : 0;
  for (int d = 0; d < spec.devices(); ++d) {
    all = maximum ? std::max(all, began(d, e)) : all + began(d, e);
  }
  return all;
}

void check_result(const ts::CollectiveSpec& spec) {
  const ts::CollectiveSchedule schedule = ts::make_schedule(spec);
  const ts::ChunkCut cut = ts::detail::chunk_cut(spec, schedule.chunks);
  const int per_block = schedule.chunks / cut.blocks;
  for (const bool maximum : {false, true}) {
    const auto held = run_slowly(spec, schedule, maximum);
    bool right = true;
    for (int d = 0; d < spec.devices(); ++d) {
      for (int c = 0; c < cut.chunks(); ++c) {
        for (std::int64_t e = cut.begin(c); e < cut.begin(c + 1); ++e) {
          const double wanted = expected(spec, d, c / per_block, e, maximum);
          const double got = held[static_cast<std::size_t>(d)][static_cast<std::size_t>(e)];
          right = right && (wanted < -1 || !(std::fabs(got - wanted) > 0));
        }
      }
    }
    if (!right) {
      FAIL_CHECK(text_of(spec));
    }
  }
}

void check_counts(const ts::CollectiveSpec& spec) {
  const ts::CollectiveSchedule schedule = ts::make_schedule(spec);
  const ts::ChunkCut cut = ts::detail::chunk_cut(spec, schedule.chunks);
  std::vector<double> sent(static_cast<std::size_t>(spec.devices()), 0);
  for (const ts::Transfer& t : schedule.transfers) {
    sent[static_cast<std::size_t>(t.from)] +=
        static_cast<double>(cut.elements(t.chunk, t.chunks)) * spec.element_bytes;
  }
  bool right = true;
  for (int d = 0; d < spec.devices(); ++d) {
    right = right &&
            !(std::fabs(sent[static_cast<std::size_t>(d)] - ts::collective_bytes(spec, d)) > 0);
  }
  const bool runs = spec.elements > 0 || spec.what == Collective::barrier;
  if (runs || spec.devices() == 1) {
    right = right && ts::check_schedule(schedule).steps == ts::collective_steps(spec);
  } else {
    right = right && schedule.transfers.empty() && ts::collective_steps(spec) == 0;
  }
  if (!right) {
    FAIL_CHECK(text_of(spec));
  }
}

// Of each step the links of the farthest message.
std::int64_t slow_hops(ts::CollectiveSpec spec) {
  const auto prepared = ts::detail::prepare(ts::make_schedule(spec));
  for (ts::AxisPart& part : spec.parts) {
    part.latency = 1;
  }
  double most = 0;
  for (const auto& stream : prepared->streams) {
    double hops = 0;
    for (std::size_t s = stream.first; s < stream.last; ++s) {
      double farthest = 0;
      for (std::size_t m = prepared->steps[s].first; m < prepared->steps[s].last; ++m) {
        slow::Links links;
        slow::Message message = {};
        message.from = prepared->messages[m].from;
        message.to = prepared->messages[m].to;
        slow::find_route(spec, links, message);
        farthest = std::max(farthest, message.latency);
      }
      hops += farthest;
    }
    most = std::max(most, hops);
  }
  return static_cast<std::int64_t>(most);
}

void check_seconds(const ts::CollectiveSpec& spec) {
  const double formula = ts::collective_seconds(spec);
  if (formula < 0) {
    return;
  }
  const double replayed = slow::seconds(spec, ts::make_schedule(spec));
  if (std::fabs(formula - replayed) > 1e-9 * replayed) {
    FAIL_CHECK(text_of(spec) << ": formula " << formula << ", replayed " << replayed);
  }
  const std::int64_t hops = slow_hops(spec);
  if (ts::collective_hops(spec) != hops) {
    FAIL_CHECK(text_of(spec) << ": " << ts::collective_hops(spec) << " hops, counted " << hops);
  }
}

void check_row_seconds(int n, const std::vector<std::int64_t>& elements) {
  for (const AxisKind kind : {AxisKind::line, AxisKind::ring, AxisKind::switched, AxisKind::full}) {
    ts::List<ts::AxisPart> parts;
    parts.push_back(part_of(n, kind));
    for_each_algorithm(parts, elements, check_seconds);
  }
}

}  // namespace

TEST_CASE("every algorithm of every collective is checked; bytes and steps are the closed forms") {
  for_each_group({0, 5, 1000}, check_counts);
}

TEST_CASE("every algorithm gives the sum or the largest, or moves what it should") {
  for_each_group({1, 29}, check_result, 17);
}

TEST_CASE("the time of every algorithm is its closed form: n to 12") {
  for (int n = 1; n <= 12; ++n) {
    check_row_seconds(n, {5, n * 100000, 123457});
  }
}

TEST_CASE("the time of every algorithm is its closed form: n to 33, in the long tests all [slow]") {
  for (int n = 13; n <= 33; n += long_tests() || n >= 31 ? 1 : 9) {
    check_row_seconds(n, {n * 100000, 123457});
  }
}

TEST_CASE("the time of torus and hierarchical is their closed form") {
  for (const std::vector<int>& sizes : tori) {
    for (int kinds = 0; kinds < 6; ++kinds) {  // from 4 on each part another
      ts::List<ts::AxisPart> parts;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        const int k = static_cast<int>(i);
        parts.push_back(kinds < 4 ? part_of(sizes[i], static_cast<AxisKind>(kinds))
                                  : part_of(sizes[i], static_cast<AxisKind>((kinds + k) % 4),
                                            1e-6 * (k + 1), 1e10 * (3 + k)));
      }
      for_each_algorithm(parts, {5, 27 * 8 * 24 * 25 * 100, 123457}, check_seconds);
    }
  }
}

TEST_CASE("the closed forms of the textbooks, on a switch") {
  const double alpha = 1e-6, beta = 1 / 4.5e10;
  for (const int n : {2, 4, 8, 16, 32}) {
    const double lg = std::log2(n), share = (n - 1.0) / n;
    const std::int64_t elements = 32 * 1000;
    const double bytes = 4.0 * static_cast<double>(elements);
    const auto seconds = [&](Collective what, Algorithm algorithm) {
      return ts::collective_seconds(row(what, algorithm, n, elements, 0, AxisKind::switched));
    };
    using doctest::Approx;
    const auto close = [](double x) { return Approx(x).epsilon(1e-12); };
    CHECK(seconds(Collective::broadcast, Algorithm::tree) == close(lg * (alpha + bytes * beta)));
    CHECK(seconds(Collective::all_gather, Algorithm::ring) ==
          close((n - 1) * alpha + share * bytes * beta));
    CHECK(seconds(Collective::all_gather, Algorithm::halving_doubling) ==
          close(lg * alpha + share * bytes * beta));
    CHECK(seconds(Collective::reduce_scatter, Algorithm::halving_doubling) ==
          close(lg * alpha + share * bytes * beta));
    CHECK(seconds(Collective::all_reduce, Algorithm::halving_doubling) ==
          close(2 * lg * alpha + 2 * share * bytes * beta));
    CHECK(seconds(Collective::all_reduce, Algorithm::ring) ==
          close(2 * (n - 1) * alpha + 2 * share * bytes * beta));
    CHECK(seconds(Collective::all_to_all, Algorithm::direct) ==
          close(alpha + share * bytes * beta));
    CHECK(seconds(Collective::barrier, Algorithm::tree) == close(lg * alpha));
    CHECK(seconds(Collective::gather, Algorithm::tree) == close(lg * alpha + share * bytes * beta));
  }
  // A pipelined chain of k chunks over N - 1 links: (N - 2 + k) (alpha + n beta / k).
  CHECK(ts::collective_seconds(
            row(Collective::broadcast, Algorithm::line, 9, 8000, 0, AxisKind::line)) ==
        doctest::Approx((9 - 2 + 8) * (alpha + 4000 * beta)).epsilon(1e-12));
}

TEST_CASE("hierarchical all_reduce: g in a node, M nodes") {
  ts::CollectiveSpec spec = row(Collective::all_reduce, Algorithm::hierarchical, 4, 1 << 20);
  spec.parts.clear();
  const double alpha_in = 1e-6, beta_in = 1 / 4e11, alpha_out = 1e-5, beta_out = 1 / 5e10;
  spec.parts.push_back(part_of(4, AxisKind::switched, alpha_out, 5e10));
  spec.parts.push_back(part_of(8, AxisKind::switched, alpha_in, 4e11));
  const double n = 4.0 * (1 << 20);
  CHECK(ts::collective_seconds(spec) ==
        doctest::Approx(2 * 7.0 / 8 * n * beta_in + 2 * 3.0 / 4 * n / 8 * beta_out +
                        2 * 7 * alpha_in + 2 * 3 * alpha_out)
            .epsilon(1e-12));
}

TEST_CASE("devices between two of an axis share its links") {
  ts::CollectiveSpec spec =
      row(Collective::all_gather, Algorithm::line, 4, 4000, 0, AxisKind::line);
  const double near = ts::collective_seconds(spec);
  spec.parts[0].spacing = 3;
  CHECK(ts::collective_seconds(spec) == doctest::Approx(3 * near).epsilon(1e-12));
  CHECK(ts::collective_hops(spec) == 9);
}

TEST_CASE("a sum is added up in the same order for all, and the order is known") {
  const auto order = [](Algorithm algorithm, int n, int device, int chunk) {
    const auto prepared =
        ts::detail::prepare(ts::make_schedule(row(Collective::all_reduce, algorithm, n, 1000)));
    return ts::reduction_order(*prepared, device, chunk);
  };
  CHECK(order(Algorithm::ring, 4, 2, 0) == "x0 + (x1 + (x2 + x3))");
  CHECK(order(Algorithm::ring_both_ways, 4, 0, 0) == "(x0 + (x1 + x2)) + x3");
  CHECK(order(Algorithm::halving_doubling, 4, 3, 0) == "(x0 + x1) + (x2 + x3)");
  CHECK(order(Algorithm::tree, 5, 4, 0) == "((x0 + x1) + (x2 + x3)) + x4");
  CHECK(order(Algorithm::direct, 4, 1, 1) == "((x1 + x0) + x2) + x3");
  for (const Algorithm algorithm :
       {Algorithm::ring, Algorithm::ring_both_ways, Algorithm::line, Algorithm::halving_doubling,
        Algorithm::tree, Algorithm::direct, Algorithm::torus, Algorithm::hierarchical}) {
    for (const int n : {1, 2, 3, 6, 8, 13}) {
      const ts::CollectiveSchedule schedule =
          ts::make_schedule(row(Collective::all_reduce, algorithm, n, 1000));
      const auto prepared = ts::detail::prepare(schedule);
      for (int chunk = 0; chunk < schedule.chunks; ++chunk) {
        const std::string first = ts::reduction_order(*prepared, 0, chunk);
        for (int device = 1; device < n; ++device) {
          CHECK(ts::reduction_order(*prepared, device, chunk) == first);
        }
      }
    }
  }
}

TEST_CASE("prepared: messages, steps, streams, and which steps overlap") {
  ts::CollectiveSpec spec = row(Collective::all_reduce, Algorithm::torus, 4, 1000);
  spec.parts.push_back(part_of(4, AxisKind::ring));
  const auto torus = ts::detail::prepare(ts::make_schedule(spec));
  CHECK(torus->streams.size() == 2);
  CHECK(torus->steps.size() == 16);
  std::size_t transfers = 0;
  for (const auto& step : torus->steps) {
    CHECK(!step.overlaps);
    for (std::size_t m = step.first; m < step.last; ++m) {
      transfers += torus->messages[m].last - torus->messages[m].first;
    }
  }
  CHECK(transfers == torus->data.transfers.size());
  // Recursive doubling of whole vectors: what is sent is changed in the same step.
  ts::CollectiveSchedule doubling;
  doubling.what = Collective::all_reduce;
  doubling.devices = 4;
  for (int step = 1; step >= 0; --step) {  // in any order
    for (int device = 3; device >= 0; --device) {
      doubling.transfers.push_back({step, device, device ^ (1 << step), 0, 1, ts::Action::reduce});
    }
  }
  CHECK(ts::check_schedule(doubling).messages == 8);
  const auto prepared = ts::detail::prepare(doubling);
  CHECK(prepared->steps.size() == 2);
  CHECK(prepared->steps[0].overlaps);
  CHECK(prepared->data.transfers[0].from == 0);
  CHECK(prepared->data.transfers[7].step == 1);
}

TEST_CASE("messages that meet on a link are counted") {
  const auto worst = [](Algorithm algorithm, AxisKind kind) {
    const ts::CollectiveSpec spec = row(Collective::all_gather, algorithm, 8, 8000, 0, kind);
    return ts::check_schedule(ts::make_schedule(spec), spec.parts).contention;
  };
  CHECK(worst(Algorithm::ring, AxisKind::ring).messages == 1);
  CHECK(worst(Algorithm::ring_both_ways, AxisKind::switched).messages == 2);
  CHECK(worst(Algorithm::direct, AxisKind::full).messages == 0);
  const ts::LinkContention far = worst(Algorithm::halving_doubling, AxisKind::line);
  CHECK(far.messages == 4);
  CHECK(far.step == 2);
  CHECK(far.link == "device 3 -> device 4");
  CHECK(worst(Algorithm::direct, AxisKind::switched).link == "out of device 0");
  const ts::CollectiveSchedule four =
      ts::make_schedule(row(Collective::all_gather, Algorithm::ring, 4, 4));
  CHECK(error_of([&] { ts::check_schedule(four, {part_of(8, AxisKind::ring, 1e-6, 1e9)}); }) ==
        "check_schedule: ring: parts of 8 devices for 4; they must be equal");
}

TEST_CASE("broken schedules: each is an error that names the step, the devices and the chunk") {
  const auto said = [](const ts::CollectiveSchedule& schedule) {
    return error_of([&] { ts::check_schedule(schedule); });
  };
  ts::CollectiveSchedule good =
      ts::make_schedule(row(Collective::all_gather, Algorithm::ring, 3, 300));
  good.name = "mine";
  CHECK(said(good) == "no error");

  ts::CollectiveSchedule bad = good;
  bad.transfers[3].step = 0;
  CHECK(said(bad) ==
        "check_schedule: mine: step 0, device 0 to 1: device 0 does not hold chunk 2 yet and would "
        "wait for ever; send it in a step after the one that brings it");
  bad = good;
  bad.transfers.pop_back();
  CHECK(said(bad) == "check_schedule: mine: at the end device 0 lacks chunk 1");
  bad = good;
  bad.transfers[0].to = 0;
  CHECK(said(bad) ==
        "check_schedule: mine: step 0, device 0 to 0: a device does not send to itself");
  bad = good;
  bad.transfers[0].to = 3;
  CHECK(said(bad) == "check_schedule: mine: step 0, device 0 to 3: devices are 0 to 2");
  bad = good;
  bad.transfers[0].chunk = 3;
  CHECK(said(bad) ==
        "check_schedule: mine: step 0, device 0 to 1: 1 chunks from chunk 3; chunks are 0 to 2");
  bad = good;
  bad.transfers[0].chunks = 2147483647;
  CHECK(said(bad) ==
        "check_schedule: mine: step 0, device 0 to 1: 2147483647 chunks from chunk 0; chunks are 0 "
        "to 2");
  bad = good;
  bad.transfers[0].stream = -1;
  CHECK(said(bad) ==
        "check_schedule: mine: step 0, device 0 to 1, stream -1: steps and streams count from 0");
  bad = good;
  bad.transfers[3].stream = 1;  // sends what stream 0 brings
  CHECK(said(bad) ==
        "check_schedule: mine: step 1, device 0 to 1: chunk 2 of device 0 is in streams 0 and 1; "
        "streams do not wait for each other and share no chunk");
  bad = good;
  bad.transfers[0].action = ts::Action::reduce;
  CHECK(said(bad) ==
        "check_schedule: mine: step 0, device 0 to 1, chunk 0: all_gather only copies");
  bad = good;
  bad.chunks = 4;
  CHECK(said(bad) ==
        "check_schedule: mine: 4 chunks for 3 devices; at least 1 device and a multiple of 3 "
        "chunks are right");
  bad = good;
  bad.devices = 3 << 20;
  bad.chunks = 3 << 20;
  CHECK(said(bad) ==
        "check_schedule: mine: 3145728 chunks on each of 3145728 devices; the check follows up to "
        "268435456 in all");
  bad = good;
  bad.transfers.push_back(bad.transfers[0]);
  CHECK(said(bad) ==
        "check_schedule: mine: step 0, device 0 to 1: chunk 0 of the receiver is written twice in "
        "this step; only sums may meet");

  ts::CollectiveSchedule sum =
      ts::make_schedule(row(Collective::reduce, Algorithm::tree, 4, 300, 1));
  sum.name = "sum";
  CHECK(said(sum) == "no error");
  bad = sum;
  bad.root = 4;
  CHECK(said(bad) == "check_schedule: sum: root 4 of 4 devices; the root is 0 to 3");
  bad = sum;
  ts::Transfer again = bad.transfers[0];
  again.step = 2;
  bad.transfers.push_back(again);
  CHECK(said(bad).find("which is in it already; it would count twice") != std::string::npos);
  bad = sum;
  bad.transfers[0].action = ts::Action::copy;
  CHECK(said(bad).find("losing the share of device ") != std::string::npos);
  bad = sum;
  bad.transfers.clear();
  CHECK(said(bad) ==
        "check_schedule: sum: at the end device 1 lacks the share of device 0 in chunk 0");
  CHECK(error_of([&] { ts::reduction_order(*ts::detail::prepare(sum), 4, 0); }) ==
        "reduction_order: device 4, chunk 0; devices are 0 to 3, chunks 0 to 0");
}

TEST_CASE("specs without a schedule or a price say what is right") {
  const auto said = [](const ts::CollectiveSpec& spec) {
    return error_of([&] { ts::make_schedule(spec); });
  };
  CHECK(said(row(Collective::gather, Algorithm::halving_doubling, 4, 8)) ==
        "make_schedule: gather has no algorithm halving/doubling; it has ring, ring both ways, "
        "line, tree, direct");
  CHECK(said(row(Collective::barrier, Algorithm::automatic, 4, 8)) ==
        "make_schedule: barrier has no algorithm automatic; it has tree, direct");
  CHECK(said(row(Collective::broadcast, Algorithm::tree, 4, 8, 4)) ==
        "make_schedule: root 4 of 4 devices; the root is 0 to 3");
  CHECK(said(row(Collective::all_gather, Algorithm::ring, 4, -1)) ==
        "make_schedule: -1 elements; 0 or more are right");
  CHECK(said(row(Collective::all_gather, Algorithm::ring, 0, 4)) ==
        "make_schedule: a part of 0 devices; every part needs at least 1");
  ts::CollectiveSpec huge = row(Collective::all_gather, Algorithm::ring, 100000, 4);
  huge.parts.push_back(huge.parts[0]);
  CHECK(said(huge) == "make_schedule: 1e+10 devices; at most 2147483647");
  const auto too_long = [](const char* by, const char* times, const char* bytes) {
    return ts::detail::cat({"make_schedule: all_to_all over ", by, " passes blocks on ", times,
                            " times, a list of ", bytes, "; right is up to 67,108,864 times: over ",
                            "one axis after another, or over fewer devices, or asked of ",
                            "Mesh::predict, which lists none"});
  };
  CHECK(said(row(Collective::all_to_all, Algorithm::direct, 20000, 40000)) ==
        too_long("20000 devices by direct", "399,980,000", "11.2 GB"));
  CHECK(said(row(Collective::all_to_all, Algorithm::ring, 4096, 4096)) ==
        too_long("4096 devices by ring", "34,351,349,760", "962 GB"));
  CHECK(ts::make_schedule(row(Collective::all_to_all, Algorithm::ring, 4096, 0)).transfers.empty());
  ts::CollectiveSpec cube = row(Collective::all_to_all, Algorithm::torus, 16, 4096);
  cube.parts = {cube.parts[0], cube.parts[0], cube.parts[0]};
  CHECK(said(cube) == too_long("4096 devices by torus", "603,979,776", "16.9 GB"));
  // What does not fit is not chosen where another does; where none does a prediction has a price.
  CHECK(ts::choose_algorithm(cube).reason.find(" in too many transfers") != std::string::npos);
  cube.parts[2].size = 8;
  const ts::AlgorithmChoice choice = ts::choose_algorithm(cube);
  CHECK(choice.algorithm == Algorithm::hierarchical);
  CHECK(choice.seconds > choice.candidates[1].seconds);
  CHECK(choice.reason.find("us in too many transfers") != std::string::npos);
  CHECK(error_of([] {
          ts::collective_bytes(row(Collective::all_gather, Algorithm::ring, 4, 8), 4);
        }) == "collective_bytes: index 4 of 4 devices; indices are 0 to 3");
  ts::CollectiveSpec spec = row(Collective::all_gather, Algorithm::ring, 4, 8);
  spec.parts[0].bandwidth = 0;
  CHECK(ts::collective_steps(spec) == 3);
  CHECK(error_of([&] { ts::collective_seconds(spec); }) ==
        "collective_seconds: a part of 4 devices with bandwidth 0 bytes/s, latency 1e-06 s, "
        "spacing 1; above 0, from 0 and from 1 are right");
}

TEST_CASE("how often an all_to_all passes blocks on: counted") {
  for (const Algorithm algorithm : {Algorithm::ring, Algorithm::ring_both_ways, Algorithm::line,
                                    Algorithm::direct, Algorithm::torus, Algorithm::hierarchical}) {
    for (const int n : {2, 3, 6, 7}) {
      ts::CollectiveSpec spec = row(Collective::all_to_all, algorithm, n, 84);
      spec.parts.push_back(part_of(2, AxisKind::line));
      spec.parts.push_back(part_of(3, AxisKind::switched));
      CAPTURE(text_of(spec));
      double passed = 0;
      for (const ts::Transfer& transfer : ts::make_schedule(spec).transfers) {
        passed += transfer.chunks;
      }
      CHECK(ts::detail::exchange_transfers(spec) == passed);
    }
  }
}

TEST_CASE("a hundred thousand devices have their closed forms at once") {
  for (const Collective what : {Collective::all_gather, Collective::all_reduce,
                                Collective::all_to_all, Collective::broadcast}) {
    ts::CollectiveSpec spec = row(what, Algorithm::automatic, 48, 1 << 20);
    spec.parts.push_back(part_of(48, AxisKind::ring));
    spec.parts.push_back(part_of(44, AxisKind::ring));
    spec.algorithm = ts::choose_algorithm(spec).algorithm;
    CHECK(spec.algorithm == Algorithm::torus);
    CHECK(ts::collective_steps(spec) > 0);
    CHECK(ts::collective_bytes(spec, 5) > 0);
  }
  CHECK(ts::collective_bytes(row(Collective::all_to_all, Algorithm::ring, 100001, 100001), 3) ==
        doctest::Approx(4 * 100001.0 * 50000).epsilon(1e-12));
}

TEST_CASE("the mean of what devices send in an even all_to_all") {
  int specs = 0;
  for (const std::vector<int>& sizes : std::vector<std::vector<int>>{
           {2}, {5}, {8}, {70}, {4, 3}, {2, 5}, {8, 9}, {2, 3, 4}, {3, 1, 2}}) {
    for (const AxisKind kind : {AxisKind::line, AxisKind::ring, AxisKind::switched}) {
      for (int algorithm = 1; algorithm < static_cast<int>(Algorithm::custom); ++algorithm) {
        ts::CollectiveSpec spec;
        spec.what = Collective::all_to_all;
        spec.algorithm = static_cast<Algorithm>(algorithm);
        for (const int size : sizes) {
          spec.parts.push_back(part_of(size, kind));
        }
        if (ts::detail::has_algorithm(spec.what, spec.algorithm)) {
          const int n = spec.devices();
          spec.elements = 6 * n;
          double all = 0;
          for (int i = 0; i < n; ++i) {
            all += ts::collective_bytes(spec, i);
          }
          CAPTURE(text_of(spec));
          CHECK(ts::detail::mean_all_to_all_bytes(spec) == doctest::Approx(all / n).epsilon(1e-12));
          ++specs;
        }
      }
    }
  }
  CHECK(specs > 60);
}

TEST_CASE("no closed form: where links are shared unevenly") {
  const auto seconds = [](Collective what, Algorithm algorithm, int n, AxisKind kind) {
    return ts::collective_seconds(row(what, algorithm, n, 1000, 0, kind));
  };
  CHECK(seconds(Collective::all_gather, Algorithm::ring, 4, AxisKind::line) < 0);
  CHECK(seconds(Collective::all_gather, Algorithm::ring_both_ways, 4, AxisKind::switched) < 0);
  CHECK(seconds(Collective::all_gather, Algorithm::halving_doubling, 6, AxisKind::line) < 0);
  CHECK(seconds(Collective::all_gather, Algorithm::direct, 4, AxisKind::line) < 0);
  CHECK(seconds(Collective::all_gather, Algorithm::direct, 6, AxisKind::ring) < 0);
  CHECK(seconds(Collective::all_gather, Algorithm::direct, 5, AxisKind::ring) > 0);
  CHECK(ts::collective_hops(
            row(Collective::all_gather, Algorithm::ring, 4, 8, 0, AxisKind::line)) == -1);
}

TEST_CASE("estimates count the message around the end of a line, and those that share a link") {
  const auto about = [](const ts::CollectiveSpec& spec) {
    CHECK(ts::collective_seconds(spec) < 0);
    return ts::detail::cost_of(spec).seconds;
  };
  const auto replayed = [](const ts::CollectiveSpec& spec) {
    return doctest::Approx(slow::seconds(spec, ts::make_schedule(spec))).epsilon(1e-9);
  };
  for (const std::int64_t elements : {8, 1 << 20}) {
    const ts::CollectiveSpec ring =
        row(Collective::all_gather, Algorithm::ring, 8, elements, 0, AxisKind::line);
    CHECK(about(ring) == replayed(ring));
    for_each_algorithm({part_of(8, AxisKind::line)}, {elements}, [](const ts::CollectiveSpec& one) {
      if (one.algorithm == Algorithm::ring || one.algorithm == Algorithm::ring_both_ways) {
        const double ratio =
            ts::detail::cost_of(one).seconds / slow::seconds(one, ts::make_schedule(one));
        if (ratio < 0.6 || ratio > 1.5) {
          FAIL_CHECK(text_of(one) << ": about " << ratio << " of what is replayed");
        }
      }
    });
    for (const AxisKind kind : {AxisKind::line, AxisKind::ring, AxisKind::switched}) {
      for (const int shift : {1, 2, 7, 8, 10, 16, 20, 31}) {
        ts::CollectiveSpec spec = row(Collective::permute, Algorithm::direct, 4, elements, shift);
        spec.parts[0].kind = kind;
        spec.parts.push_back(part_of(8, kind));
        CHECK(about(spec) == replayed(spec).epsilon(0.2));
      }
    }
  }
}

TEST_CASE("automatic takes the shortest and says what the others would take") {
  ts::CollectiveSpec spec = row(Collective::all_reduce, Algorithm::automatic, 8, 1 << 20);
  const ts::AlgorithmChoice large = ts::choose_algorithm(spec);
  CHECK(large.algorithm == Algorithm::ring_both_ways);
  CHECK(large.reason ==
        "ring both ways: 8 steps, 101 us; ring 177 us, line 177 us, direct 235 us, "
        "halving/doubling 294 us, tree 573 us");
  CHECK(large.seconds == doctest::Approx(ts::collective_seconds(
                             row(Collective::all_reduce, Algorithm::ring_both_ways, 8, 1 << 20))));
  // On a switch: a tree, few steps, for little data; everyone at once when that is one latency.
  spec.parts[0].kind = AxisKind::switched;
  CHECK(ts::choose_algorithm(spec).algorithm == Algorithm::direct);
  spec.what = Collective::broadcast;
  spec.elements = 1000;
  CHECK(ts::choose_algorithm(spec).algorithm == Algorithm::direct);
  spec.elements = 10000;
  CHECK(ts::choose_algorithm(spec).algorithm == Algorithm::tree);
  spec.elements = 10000000;
  CHECK(ts::choose_algorithm(spec).algorithm == Algorithm::ring);
  // Equal times: fewer steps, then the order of the enum.
  spec = row(Collective::all_gather, Algorithm::automatic, 2, 1000);
  CHECK(ts::choose_algorithm(spec).algorithm == Algorithm::ring);
  spec.elements = 0;
  CHECK(ts::choose_algorithm(spec).reason == "nothing to move");
  // Several axes.
  spec = row(Collective::all_reduce, Algorithm::automatic, 4, 1 << 20);
  spec.parts.push_back(spec.parts[0]);
  CHECK(ts::choose_algorithm(spec).algorithm == Algorithm::torus);
  spec.parts[0] = part_of(2, AxisKind::switched, 1e-5, 5e10);
  spec.parts[1] = part_of(8, AxisKind::switched, 1e-6, 4.5e11);
  CHECK(ts::choose_algorithm(spec).algorithm == Algorithm::halving_doubling);
  spec.parts[0].size = 3;
  const ts::AlgorithmChoice nodes = ts::choose_algorithm(spec);
  CHECK(nodes.algorithm == Algorithm::hierarchical);
  CHECK(nodes.candidates[0].exact);
  spec.what = Collective::gather;
  CHECK(ts::choose_algorithm(spec).reason.find("about ") != std::string::npos);
  for_each_group(
      {7, 1 << 16},
      [](const ts::CollectiveSpec& each) {
        const ts::AlgorithmChoice choice = ts::choose_algorithm(each);
        for (const ts::AlgorithmCandidate& candidate : choice.candidates) {
          CHECK(choice.seconds <= candidate.seconds * (1 + 1e-9));
        }
      },
      9);
}

TEST_CASE("a user's schedule takes at least its longest path") {
  const ts::CollectiveSpec spec = row(Collective::all_gather, Algorithm::custom, 4, 4000);
  const double path = ts::schedule_seconds(
      ts::make_schedule(row(Collective::all_gather, Algorithm::ring, 4, 4000)), spec);
  CHECK(path == doctest::Approx(3 * (1e-6 + 4000 / 4.5e10)).epsilon(1e-12));
  CHECK(
      ts::schedule_seconds(ts::make_schedule(row(Collective::all_gather, Algorithm::ring, 4, 4000)),
                           row(Collective::all_gather, Algorithm::custom, 4, 0)) == 0);
  ts::CollectiveSchedule wrong =
      ts::make_schedule(row(Collective::all_gather, Algorithm::ring, 4, 4000));
  wrong.transfers[0].chunk = 77;
  CHECK(error_of([&] { ts::schedule_seconds(wrong, spec); }) ==
        "check_schedule: ring: step 0, device 0 to 1: 1 chunks from chunk 77; chunks are 0 to 3");
  CHECK(error_of([&] {
          ts::schedule_seconds(
              ts::make_schedule(row(Collective::all_reduce, Algorithm::ring, 8, 80)), spec);
        }) ==
        "all_gather: schedule ring is all_reduce over 8 devices in 8 chunks, root 0; right is "
        "all_gather over 4 devices in a multiple of 4 chunks, root 0");
}

TEST_CASE("NCCL's model: the worked values for 8 GPUs of a node, in microseconds") {
  ts::NcclCall call;
  call.protocol = static_cast<ts::NcclProtocol>(7);
  CHECK(error_of([&] { ts::nccl_seconds(call); }) ==
        "NcclProtocol: 7 is no value of it; 0 to 2 are right");
  call.bytes = std::numeric_limits<double>::infinity();
  CHECK(error_of([&] { ts::nccl_seconds(call); }) ==
        "nccl_seconds: inf bytes over a bus of 0 bytes/s; both are right from 0 and finite");
  call.bytes = 0;
  call.protocol = ts::NcclProtocol::ll;
  CHECK(1e6 * ts::nccl_seconds(call) == doctest::Approx(15.0).epsilon(1e-12));
  call.protocol = ts::NcclProtocol::simple;
  CHECK(1e6 * ts::nccl_seconds(call) == doctest::Approx(56.0).epsilon(1e-12));
  call.protocol = ts::NcclProtocol::ll;
  call.algorithm = Algorithm::tree;
  CHECK(1e6 * ts::nccl_seconds(call) == doctest::Approx(15.2).epsilon(1e-12));
  call.nodes = 4;
  CHECK(1e6 * ts::nccl_seconds(call) == doctest::Approx(6.8 + 14 * 0.6 + 2 * 2 * 5.0));
  call.algorithm = Algorithm::ring;
  CHECK(1e6 * ts::nccl_seconds(call) == doctest::Approx(6.6 + (62 - 6) * 0.6 + 6 * 2.7));
  call.bytes = 1e9;
  call.bus_bandwidth = 4e11;
  call.protocol = ts::NcclProtocol::ll128;
  CHECK(1e6 * ts::nccl_seconds(call) ==
        doctest::Approx(14 + 56 * 1.9 + 6 * 4.0 + 1e6 * 1e9 * 2 * 31 / 32 / (4e11 * 0.92)));
  call.what = Collective::all_gather;
  CHECK(1e6 * ts::nccl_seconds(call) ==
        doctest::Approx(14 + 28 * 1.9 + 3 * 4.0 + 1e6 * 1e9 * 31 / 32 / (4e11 * 0.92)));
  call.algorithm = Algorithm::tree;
  CHECK(error_of([&] { ts::nccl_seconds(call); }) ==
        "nccl_seconds: all_gather by tree; the model has all_reduce, all_gather and reduce_scatter "
        "by ring, all_reduce by tree");
  call.algorithm = Algorithm::ring;
  for (const Collective what :
       {Collective::all_to_all, Collective::broadcast, Collective::reduce, Collective::gather,
        Collective::scatter, Collective::permute, Collective::barrier}) {
    call.what = what;
    CHECK(error_of([&] { ts::nccl_seconds(call); }) ==
          ts::detail::cat({"nccl_seconds: ", ts::name_of(what),
                           " by ring; the model has all_reduce, all_gather and reduce_scatter by "
                           "ring, all_reduce by tree"}));
  }
  call.what = Collective::reduce_scatter;
  call.nodes = 0;
  CHECK(error_of([&] { ts::nccl_seconds(call); }) ==
        "nccl_seconds: 0 nodes of 8; 1 or more of each are right, up to 2^31 - 1 ranks");
  call.nodes = 4;
  call.bytes = -1;
  CHECK(error_of([&] { ts::nccl_seconds(call); }) ==
        "nccl_seconds: -1 bytes over a bus of 4e+11 bytes/s; both are right from 0 and finite");
}

TEST_CASE("busbw is algbw times a factor of the collective alone") {
  CHECK(ts::bus_factor(Collective::all_reduce, 8) == doctest::Approx(1.75));
  CHECK(ts::bus_factor(Collective::all_gather, 8) == doctest::Approx(0.875));
  CHECK(ts::bus_factor(Collective::broadcast, 8) == doctest::Approx(1));
}

TEST_CASE("the book's worked answers, ours beside them") {
  const auto on_ring = [](Collective what, int n, double link, std::int64_t elements, double size,
                          double latency) {
    ts::CollectiveSpec spec = row(what, Algorithm::ring_both_ways, n, elements);
    spec.element_bytes = size;
    spec.parts[0] = part_of(n, AxisKind::ring, latency, link);
    return spec;
  };
  // S14: bf16[1024, 4096 / 4] over a ring of 4 of v4p, 9e10 both ways: 23 us without latency.
  ts::CollectiveSpec spec = on_ring(Collective::all_gather, 4, 4.5e10, 1024 * 1024, 2, 0);
  CHECK(ts::rule_of_thumb_seconds(spec) == doctest::Approx(23e-6).epsilon(0.02));
  CHECK(ts::collective_seconds(spec) == doctest::Approx(23.3e-6).epsilon(0.01));  // 2 of 4 steps
  // S16: all_reduce of a sixteenth.
  spec = on_ring(Collective::all_reduce, 4, 4.5e10, 1024 * 4096 / 16, 2, 0);
  CHECK(ts::rule_of_thumb_seconds(spec) == doctest::Approx(11.6e-6).epsilon(0.02));
  // S17: over two axes at once.
  spec = on_ring(Collective::all_gather, 4, 4.5e10, 1024 * 1024, 2, 0);
  spec.algorithm = Algorithm::torus;
  spec.parts.push_back(spec.parts[0]);
  CHECK(ts::rule_of_thumb_seconds(spec) == doctest::Approx(11.6e-6).epsilon(0.01));
  // S06: four hops around a ring of 8 both ways; S12: a column of 4 hops three at 1 us.
  CHECK(ts::collective_hops(row(Collective::all_gather, Algorithm::ring_both_ways, 8, 8)) == 4);
  CHECK(ts::collective_hops(
            row(Collective::all_gather, Algorithm::line, 4, 8, 0, AxisKind::line)) == 3);
  // S34: all_to_all one way around, scalars over each link: N^2 / 2 (1 - 1 / D), N = 1024, D = 8.
  spec = row(Collective::all_to_all, Algorithm::ring, 8, 1024 * 1024 / 8);
  CHECK(ts::collective_bytes(spec, 3) / 4 == doctest::Approx(458752));
  // S35, S36: half of an all_gather one way, V / 8 (1 + 2 / D) both ways.
  const ts::CollectiveSpec gather = on_ring(Collective::all_gather, 8, 1, 1024 * 1024, 1, 0);
  const ts::CollectiveSpec all = on_ring(Collective::all_to_all, 8, 1, 1024 * 1024 / 8, 1, 0);
  CHECK(ts::collective_seconds(all) ==
        doctest::Approx(1024.0 * 1024 / 8 * (1 + 2.0 / 8)).epsilon(1e-12));
  CHECK(ts::rule_of_thumb_seconds(all) / ts::rule_of_thumb_seconds(gather) ==
        doctest::Approx(0.25));
  // S37: V / (64 W) on 4 x 4 x 4 of V bytes in all.
  spec = on_ring(Collective::all_to_all, 4, 0.5, 1 << 20, 1, 0);
  spec.algorithm = Algorithm::torus;
  spec.parts.push_back(spec.parts[0]);
  spec.parts.push_back(spec.parts[0]);
  CHECK(ts::rule_of_thumb_seconds(spec) == doctest::Approx(64.0 * (1 << 20) / 64));
  // U31, U32: bf16[4096, 65536] on 8 H100s, 450 GB/s a port: 1.04 ms, about 1.19.
  spec = row(Collective::all_gather, Algorithm::ring, 8, 4096LL * 65536, 0, AxisKind::switched);
  spec.element_bytes = 2;
  spec.parts[0] = part_of(8, AxisKind::switched, 0, 4.5e11);
  CHECK(ts::collective_seconds(spec) == doctest::Approx(1.04e-3).epsilon(0.005));
  CHECK(ts::rule_of_thumb_seconds(spec) == doctest::Approx(1.19e-3).epsilon(0.005));
  // U41: bf16[1024, 16384]: 75 us.
  spec.elements = 1024 * 16384;
  CHECK(ts::rule_of_thumb_seconds(spec) == doctest::Approx(75e-6).epsilon(0.01));
}

#if !defined(TINYSCALE_NO_THREADS)

namespace {

// The one collective of a run in which nothing else happens.
ts::MeshRun run_alone(const ts::Mesh& mesh, Collective what, const ts::Axes& axes, int root,
                      Algorithm algorithm) {
  ts::CollectiveOptions options;
  options.algorithm = algorithm;
  return mesh.run([&](ts::Device& device) {
    const ts::Tensor x = ts::full({240}, static_cast<float>(device.rank()));
    switch (what) {
      case Collective::all_gather: device.all_gather(x, axes, 0, options); break;
      case Collective::reduce_scatter:
        device.reduce_scatter(x, axes, 0, ts::Reduce::sum, options);
        break;
      case Collective::all_reduce: device.all_reduce(x, axes, ts::Reduce::sum, options); break;
      case Collective::all_to_all: device.all_to_all(x, axes, 0, 0, options); break;
      case Collective::broadcast: device.broadcast(x, axes, root, options); break;
      case Collective::reduce: device.reduce(x, axes, root, ts::Reduce::sum, options); break;
      case Collective::gather: device.gather(x, axes, root, 0, options); break;
      case Collective::scatter: device.scatter(x, axes, root, 0, options); break;
      case Collective::permute: device.permute(x, axes, root, options); break;
      case Collective::barrier: device.barrier(options); break;
    }
  });
}

void check_run(const ts::Mesh& mesh, const ts::Axes& axes, Collective what, int root,
               Algorithm algorithm) {
  const ts::MeshRun run = run_alone(mesh, what, axes, root, algorithm);
  const ts::CollectiveRow row = run.collectives()[0];
  const ts::CollectiveSpec spec = run.log().calls[0].shape->spec;
  double most = 0;
  for (int i = 0; i < spec.devices(); ++i) {
    most = std::max(most, ts::collective_bytes(spec, i));
  }
  const double formula = ts::collective_seconds(spec);
  if (row.steps != ts::collective_steps(spec) || std::fabs(row.bytes_out - most) > 0 ||
      (formula >= 0 && (std::fabs(row.seconds - formula) > 1e-9 * formula ||
                        row.hops != ts::collective_hops(spec)))) {
    FAIL_CHECK(text_of(spec) << ": " << row.steps << " steps, " << row.hops << " hops of "
                             << ts::collective_hops(spec) << ", " << row.bytes_out << " bytes of "
                             << most << ", " << row.seconds << " s by replay, formula " << formula);
  }
}

}  // namespace

TEST_CASE("runs on a mesh: counted bytes and steps, replayed time, are the closed forms") {
  std::vector<ts::Mesh> meshes;
  for (const int n : {2, 3, 5, 8, 16}) {
    meshes.push_back(ts::Mesh(ts::machine("tpu-v5e", {n}), {{"x", n}}));
  }
  meshes.push_back(ts::Mesh(ts::machine("h100", {1, 6}), {{"x", 6}}));
  meshes.push_back(ts::Mesh(ts::machine("tpu-v5p", {4, 4, 4}), {{"x", 16}, {"y", 4}}));
  meshes.push_back(ts::Mesh(ts::machine("h100", {2, 4}), {{"x", 8}}));
  for (const ts::Mesh& mesh : meshes) {
    for (int what = 0; what <= static_cast<int>(Collective::barrier); ++what) {
      for (int algorithm = 0; algorithm < static_cast<int>(Algorithm::custom); ++algorithm) {
        const Collective kind = static_cast<Collective>(what);
        if (algorithm == 0 || ts::detail::has_algorithm(kind, static_cast<Algorithm>(algorithm))) {
          const bool divides = kind != Collective::reduce_scatter &&
                               kind != Collective::all_to_all && kind != Collective::scatter;
          if (divides || 240 % mesh.axes()[0].size.value == 0) {
            check_run(mesh, "x", kind, 1, static_cast<Algorithm>(algorithm));
          }
        }
      }
    }
  }
}

namespace {

float begun(int device, std::int64_t element) {
  return ts::normal01(static_cast<std::uint64_t>(device) + 1, static_cast<std::uint64_t>(element));
}

// Adds up as reduction_order says, in float: "(x0 + (x1 + x2)) + x3" of one element.
float in_order(const std::string& order, std::size_t& at, std::int64_t element) {
  float sum = 0;
  for (bool first = true;; first = false) {
    float term = 0;
    if (order[at] == '(') {
      term = in_order(order, ++at, element);
      ++at;
    } else {
      std::size_t digits = 0;
      term = begun(std::stoi(order.substr(at + 1), &digits), element);
      at += 1 + digits;
    }
    sum = first ? term : sum + term;
    if (order.compare(at, 3, " + ") != 0) {
      return sum;
    }
    at += 3;
  }
}

// Elements of device d's result that are not the sum in the order of the run's schedule; `kept`
// begins at element `first` of the vector.
int out_of_order(const ts::MeshRun& run, std::size_t call, int d, const ts::Tensor& kept,
                 std::int64_t first) {
  const ts::CallShape& shape = *run.log().calls[call].shape;
  int wrong = 0;
  for (int chunk = 0; chunk < shape.cut.chunks(); ++chunk) {
    const std::string order = ts::reduction_order(*shape.schedule, d, chunk);
    for (std::int64_t e = shape.cut.begin(chunk); e < shape.cut.begin(chunk + 1); ++e) {
      std::size_t at = 0;
      if (e >= first && e < first + kept.count()) {
        const float sum = in_order(order, at, e);
        wrong += kept.data()[e - first] < sum || kept.data()[e - first] > sum ? 1 : 0;
      }
    }
  }
  return wrong;
}

void check_order(const ts::Mesh& mesh, const ts::CollectiveOptions& options) {
  const int n = mesh.axes()[0].size.value;
  constexpr std::int64_t elements = 480;
  const auto has = [&](Collective what) {
    return options.schedule == nullptr && (options.algorithm == Algorithm::automatic ||
                                           ts::detail::has_algorithm(what, options.algorithm));
  };
  const bool scatters = has(Collective::reduce_scatter), reduces = has(Collective::reduce);
  const ts::MeshRun run = mesh.run([&](ts::Device& device) {
    ts::Tensor x({elements});
    for (std::int64_t i = 0; i < elements; ++i) {
      x.data()[i] = begun(device.rank(), i);
    }
    device.keep("all", device.all_reduce(x, "x", ts::Reduce::sum, options));
    if (scatters) {
      device.keep("part", device.reduce_scatter(x, "x", 0, ts::Reduce::sum, options));
    }
    if (reduces) {
      device.keep("root", device.reduce(x, "x", 1, ts::Reduce::sum, options));
    }
    const ts::detail::Calling by = {device.endpoint(), options, {__FILE__, __LINE__}};
    ts::detail::start_all_reduce(by, x, "x", ts::Reduce::sum, x.detach()).wait();
    device.keep("in place", x);
  });
  for (int d = 0; d < n; ++d) {
    CAPTURE(d);
    CHECK(out_of_order(run, 0, d, run.kept(d, "all"), 0) == 0);
    CHECK(run.kept(d, "in place").values() == run.kept(d, "all").values());
    if (scatters) {
      CHECK(out_of_order(run, 1, d, run.kept(d, "part"), d * elements / n) == 0);
    }
  }
  if (reduces) {
    CHECK(out_of_order(run, scatters ? 2 : 1, 1, run.kept(1, "root"), 0) == 0);
  }
}

}  // namespace

TEST_CASE("a run adds up in the order that its schedule says, bit for bit") {
  std::vector<ts::Mesh> meshes;
  for (const int n : {2, 3, 5, 8}) {
    meshes.push_back(ts::Mesh(ts::machine("tpu-v5e", {n}), {{"x", n}}));
  }
  meshes.push_back(ts::Mesh(ts::machine("tpu-v5p", {2, 4}), {{"x", 8}}));
  meshes.push_back(ts::Mesh(ts::machine("h100", {1, 6}), {{"x", 6}}));
  meshes.push_back(ts::Mesh(ts::machine("h100", {2, 4}), {{"x", 8}}));
  for (const ts::Mesh& mesh : meshes) {
    CAPTURE(mesh.size());
    for (int algorithm = 0; algorithm < static_cast<int>(Algorithm::custom); ++algorithm) {
      ts::CollectiveOptions options;
      options.algorithm = static_cast<Algorithm>(algorithm);
      CAPTURE(ts::name_of(options.algorithm));
      if (algorithm == 0 || ts::detail::has_algorithm(Collective::all_reduce, options.algorithm)) {
        check_order(mesh, options);
      }
    }
  }
}

// 0 is given what 3 has so far, for nothing: 3 still needs it for itself.
TEST_CASE("a sum that is passed on and added to afterwards too") {
  ts::CollectiveSchedule own;
  own.name = "mine";
  own.what = Collective::all_reduce;
  own.devices = 4;
  own.transfers = {{0, 0, 1, 0, 1, ts::Action::reduce, 0}, {0, 2, 3, 0, 1, ts::Action::reduce, 0},
                   {1, 3, 0, 0, 1, ts::Action::reduce, 0}, {2, 1, 3, 0, 1, ts::Action::reduce, 0},
                   {3, 3, 0, 0, 1, ts::Action::copy, 0},   {3, 3, 1, 0, 1, ts::Action::copy, 0},
                   {4, 1, 2, 0, 1, ts::Action::copy, 0}};
  ts::CollectiveOptions options;
  options.schedule = &own;
  check_order(ts::Mesh(ts::machine("tpu-v5e", {4}), {{"x", 4}}), options);
}

TEST_CASE("a run on another machine has a formula if its schedule is that of the formula") {
  ts::Mesh mesh(ts::machine("tpu-v5e", {4, 4}), {{"x", 4}, {"y", 4}});
  mesh.algorithm = Algorithm::hierarchical;
  const ts::MeshRun run = mesh.run([](ts::Device& d) {
    d.all_gather(ts::ones({100}), {"x", "y"});
  });
  CHECK(run.collectives()[0].reason == "hierarchical, as the mesh says");
  CHECK(run.seconds == doctest::Approx(run.collectives()[0].formula).epsilon(1e-9));
  CHECK(run.on(ts::machine("h100", {2, 8})).collectives()[0].formula < 0);  // rows of 2 and of 8
  const ts::MeshRun faster = run.on(ts::machine("tpu-v6e", {4, 4}));
  CHECK(faster.seconds == doctest::Approx(faster.collectives()[0].formula).epsilon(1e-9));
}

TEST_CASE("choose_algorithm: a permute over axes of several dimensions and many devices") {
  const ts::Mesh mesh(ts::machine("tpu-v5p", {8, 8, 8}), {{"x", 8}, {"y", 8}, {"z", 8}});
  const ts::MeshPrediction prediction = mesh.predict([](ts::Device& d) {
    d.permute(ts::ones({64}), {"x", "y", "z"}, 1);
  });
  REQUIRE(prediction.calls.size() == 1);
  CHECK(prediction.calls[0].algorithm == "direct");
  CHECK(prediction.calls[0].bytes == 256);
  CHECK(prediction.calls[0].seconds > 0);
  ts::CollectiveSpec spec;
  spec.what = Collective::permute;
  spec.elements = 64;
  spec.root = 1;
  for (const int size : {32, 32}) {
    ts::AxisPart part;
    part.size = size;
    part.kind = ts::AxisKind::ring;
    part.dim = static_cast<int>(spec.parts.size());
    part.bandwidth = 1e10;
    part.latency = 1e-6;
    spec.parts.push_back(part);
  }
  const ts::AlgorithmChoice choice = ts::choose_algorithm(spec);
  REQUIRE(!choice.candidates.empty());
  CHECK(choice.algorithm == Algorithm::direct);
}

TEST_CASE("a barrier behind leaves and a spine: the way to the spine is no second wait") {
  for (const double leaf : {1e-7, 2e-7, 5e-7}) {
    ts::Machine m = ts::machine("h100", {2, 3, 2});
    m.links[0].latency = 3e-7;
    m.links[1].latency = leaf;
    const ts::Mesh mesh(m, {{"x", 2}, {"y", 3}, {"z", 2}});
    for (const Algorithm algorithm : {Algorithm::direct, Algorithm::tree}) {
      ts::CollectiveOptions options;
      options.algorithm = algorithm;
      const ts::MeshRun run = mesh.run([&](ts::Device& d) { d.barrier(options); });
      const ts::CollectiveRow row = run.collectives()[0];
      CAPTURE(leaf);
      CAPTURE(row.algorithm);
      CHECK(row.formula == doctest::Approx(row.seconds).epsilon(1e-9));
      CHECK(row.hops == ts::collective_hops(run.log().calls[0].shape->spec));
    }
  }
}

TEST_CASE("results that the caches do not hold, and means, are those of small ones") {
  constexpr int n = 8;
  const ts::Mesh mesh(ts::machine("tpu-v5e", {n}), {{"x", n}});
  // More than 64 MB are read and written; no place of a cache line is that of the next chunk.
  for (const std::int64_t floats : {std::int64_t{1003}, std::int64_t{1048579}}) {
    const auto number = [](std::int64_t i) { return static_cast<float>(i % 1021); };
    const auto wrong = [&](const ts::Tensor& t, std::int64_t period, float factor, float add) {
      std::int64_t count = 0;
      for (std::int64_t i = 0; i < t.count(); ++i) {
        const float block = static_cast<float>(i / period);
        count += t.data()[i] != factor * number(i % period) + add * block ? 1 : 0;
      }
      return count;
    };
    for (const Algorithm algorithm :
         {Algorithm::direct, Algorithm::ring, Algorithm::halving_doubling, Algorithm::automatic}) {
      ts::CollectiveOptions options;
      options.algorithm = algorithm;
      std::vector<std::int64_t> faults(n, 0);
      mesh.run([&](ts::Device& d) {
        const float rank = static_cast<float>(d.rank());
        const auto filled = [&](std::int64_t size, float factor, float add) {
          std::vector<float> numbers(static_cast<std::size_t>(size));
          for (std::int64_t i = 0; i < size; ++i) {
            numbers[static_cast<std::size_t>(i)] = factor * number(i) + add;
          }
          return ts::tensor({size}, numbers);
        };
        std::int64_t& count = faults[static_cast<std::size_t>(d.rank())];
        const ts::Tensor x = filled(floats, rank + 1, 0);
        const ts::Tensor sum = d.all_reduce(x, "x", ts::Reduce::sum, options);
        count += wrong(sum, floats, 36, 0);
        const ts::Tensor mean = d.all_reduce(x, "x", ts::Reduce::mean, options);
        count += wrong(mean, floats, 4.5f, 0);
        const ts::Tensor largest = d.all_reduce(x, "x", ts::Reduce::max, options);
        count += wrong(largest, floats, 8, 0);
        const std::int64_t part = floats / 4;
        const ts::Tensor all = d.all_gather(filled(part, 1, 2000 * rank), "x", 0, options);
        count += wrong(all, part, 1, 2000);
      });
      CAPTURE(floats);
      CAPTURE(ts::name_of(algorithm));
      CHECK(faults == std::vector<std::int64_t>(n, 0));
    }
    std::vector<std::int64_t> faults(n, 0);
    mesh.run([&](ts::Device& d) {
      const std::int64_t block = floats / n;
      std::vector<float> numbers(static_cast<std::size_t>(block * n));
      for (std::int64_t i = 0; i < block * n; ++i) {
        numbers[static_cast<std::size_t>(i)] =
            number(i % block) + static_cast<float>(2000 * d.rank());
      }
      const ts::Tensor x = ts::tensor({block * n}, numbers);
      std::int64_t& count = faults[static_cast<std::size_t>(d.rank())];
      count += wrong(d.all_to_all(x, "x", 0, 0), block, 1, 2000);
      const ts::Tensor mean = d.reduce_scatter(x, "x", 0, ts::Reduce::mean);
      count += wrong(mean - 7000.0f, block, 1, 0);
      const std::int64_t wide = 2 * block * n;
      const ts::Tensor root = ts::full({wide}, static_cast<float>(d.rank()));
      count += wrong(d.broadcast(root, "x", 3) - 3.0f, wide, 0, 0);
    });
    CAPTURE(floats);
    CHECK(faults == std::vector<std::int64_t>(n, 0));
  }
}

#endif  // TINYSCALE_NO_THREADS
