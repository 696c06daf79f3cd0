// How a case is run, and how its rows are printed.
#include "driver.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <thread>

#include <time.h>

#include "../options.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace bench {
namespace {

double seconds_of(const Work& work, Clock clock, std::int64_t times) {
  const double start = now(clock);
  for (std::int64_t i = 0; i < times; ++i) {
    work();
  }
  return now(clock) - start;
}

Spread spread(std::vector<double> values) {
  Spread s;
  std::sort(values.begin(), values.end());
  if (!values.empty()) {
    const std::size_t half = values.size() / 2;
    s.median = values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
    s.least = values.front();
    s.most = values.back();
    s.count = static_cast<int>(values.size());
  }
  return s;
}

// A time or a rate in the case's unit.
double figure(const Case& c, double seconds) {
  if (c.work > 0) {
    const double giga = c.unit == "tokens/s" ? 1.0 : 1e9;
    return c.work / seconds / giga;
  }
  return seconds * (c.unit == "ns" ? 1e9 : c.unit == "us" ? 1e6 : c.unit == "ms" ? 1e3 : 1.0);
}

std::string digits(double value) {
  const double size = std::fabs(value);
  return ts::format_fixed(value, size >= 100 ? 0 : size >= 10 ? 1 : 2);
}

// What the first sample of each way wrote, beside ours.
class Results {
 public:
  explicit Results(const Case& c) : case_(c) {}

  void before(const Way& way) {
    std::fill_n(way.result, way.results, std::numeric_limits<float>::quiet_NaN());
  }
  // Whether they are the same numbers; if not it says so.
  bool after(const Way& way) {
    if (&way == case_.ways.data()) {
      ours_.assign(way.result, way.result + way.results);
      return true;
    }
    float largest = 0, difference = 0;
    bool same = ours_.size() == static_cast<std::size_t>(way.results);
    for (std::size_t i = 0; same && i < ours_.size(); ++i) {
      largest = std::max(largest, std::fabs(ours_[i]));
      difference = std::max(difference, std::fabs(ours_[i] - way.result[i]));
      same = way.result[i] - ours_[i] < 1e30f;  // a NaN is not
    }
    if (same && difference <= case_.same * largest) {
      return true;
    }
    std::printf(
        "  skipped: %s: %s: other numbers than ours (by %.1e of the largest; %.0e is right)\n",
        way.name.c_str(), case_.what.c_str(),
        same ? static_cast<double>(difference / largest) : 1.0, case_.same);
    return false;
  }

 private:
  const Case& case_;
  std::vector<float> ours_;
};

// samples[way][round] in seconds, negative where a way sat out.
using Samples = std::vector<std::vector<double>>;

Samples take_turns(const Case& c, int rounds, double most_seconds) {
  Samples samples(c.ways.size());
  std::vector<bool> failed(c.ways.size(), false);
  Results results(c);
  const double start = now(Clock::wall);
  for (int round = -1; round < rounds; ++round) {
    if (round >= std::min(rounds, 3) && now(Clock::wall) - start > most_seconds) {
      break;
    }
    for (std::size_t w = 0; w < c.ways.size(); ++w) {
      const Way& way = c.ways[w];
      double seconds = -1;
      const bool plays = round < 0 ? way.warm : round % way.every == 0;
      if (way.sample && plays && !failed[w]) {
        if (c.threads > 1) {  // until the threads of whoever was before have gone to sleep
          std::this_thread::sleep_for(std::chrono::milliseconds(40));
        }
        const bool looked_at = round < 0 && way.result != nullptr && c.ways[0].result != nullptr;
        if (looked_at) {
          results.before(way);
        }
        seconds = way.sample();
        failed[w] = seconds < 0 || (looked_at && !results.after(way));
      }
      if (round >= 0) {
        samples[w].push_back(seconds);
      }
    }
  }
  return samples;
}

std::vector<double> quotients(const std::vector<double>& over, const std::vector<double>& under) {
  std::vector<double> out;
  for (std::size_t i = 0; i < over.size(); ++i) {
    if (over[i] > 0 && under[i] > 0) {
      out.push_back(over[i] / under[i]);
    }
  }
  return out;
}

Spread seconds(const std::vector<double>& samples) {
  std::vector<double> out;
  for (const double s : samples) {
    if (s > 0) {
      out.push_back(s);
    }
  }
  return spread(out);
}

Spread figures(const Case& c, const std::vector<double>& samples) {
  std::vector<double> out;
  for (const double seconds : samples) {
    if (seconds > 0) {
      out.push_back(figure(c, seconds));
    }
  }
  return spread(out);
}

std::vector<std::string> parts(const std::string& only) {  // "a,b"
  std::vector<std::string> found(1);
  for (const char c : only) {
    if (c != ',') {
      found.back() += c;
    } else if (!found.back().empty()) {
      found.emplace_back();
    }
  }
  if (found.back().empty()) {
    found.pop_back();
  }
  return found;
}

std::string range(const Spread& s) {
  return s.count < 2 ? "" : ts::detail::cat({digits(s.least), "-", digits(s.most)});
}

}  // namespace

double now(Clock clock) {
#if defined(CLOCK_THREAD_CPUTIME_ID)
  timespec t;
  if (clock == Clock::thread && clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) == 0) {
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  }
#endif
  const auto passed = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(passed).count();
}

Way timed(const std::string& name, Clock clock, const Work& work, const Work& prepare) {
  Way way;
  way.name = name;
  if (!work) {
    return way;
  }
  std::int64_t times = 0;
  bool warm = false;
  way.sample = [work, clock, prepare, times, warm]() mutable {
    if (prepare) {
      prepare();
    }
    if (times == 0) {
      work();
      const double once = std::min(seconds_of(work, clock, 1), seconds_of(work, clock, 1));
      times = std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(4e-3 / (once + 1e-9))));
      warm = once < 0.1;
      return once;
    }
    if (clock == Clock::wall) {  // the system puts the threads on their processors
      for (const double start = now(clock); now(clock) - start < 5e-3;) {
        work();
      }
    } else if (warm) {  // its operands come back into the cache, as the limit's do
      for (const double start = now(clock); now(clock) - start < 10e-3;) {
        work();
      }
    }
    return seconds_of(work, clock, times) / static_cast<double>(times);
  };
  return way;
}

Work one_thread(const Work& work) {
  return [work] {
    const ts::detail::SerialScope scope;
    work();
  };
}

int all_threads() { return ts::thread_count(); }

std::vector<int> thread_counts() {
  return all_threads() > 1 ? std::vector<int>{1, all_threads()} : std::vector<int>{1};
}

Bench::Bench(const Options& options) : options_(options) {
  static_cast<void>(getloadavg(&load_, 1));
}

bool Bench::wants(const std::string& group, const std::string& title) {
  groups_.push_back(group);
  bool wanted = options_.only.empty();
  for (const std::string& part : parts(options_.only)) {
    wanted = wanted || group.find(part) != std::string::npos;
  }
  if (wanted) {
    std::printf("\n%s: %s\n  %-27s %9s  %-15s %9s  %6s %-11s %8s %8s  %s\n", group.c_str(),
                title.c_str(), "what", "ours", "peer", "peer's", "ratio", "range", "of limit",
                "at limit", "target");
  }
  return wanted;
}

bool Bench::wants_several(const std::string& group, const std::string& title) {
  const bool wanted = wants(group, title);
  if (wanted && all_threads() == 1) {
    skip(group, "it needs two threads, and there is one (TINYSCALE_THREADS)");
  }
  return wanted && all_threads() > 1;
}

void Bench::must_have(const std::string& only) const {
  const std::vector<std::string> found = parts(only);
  for (const std::string& part : found.empty() ? std::vector<std::string>{only} : found) {
    must_choose("--only=", part, groups_);
  }
}

void Bench::skip(const std::string& peer, const std::string& why) {
  if (std::find(skipped_.begin(), skipped_.end(), peer) == skipped_.end()) {
    skipped_.push_back(peer);
    std::printf("  skipped: %s: %s\n", peer.c_str(), why.c_str());
  }
}

void Bench::peer(const std::string& description) {
  if (std::find(peers_.begin(), peers_.end(), description) == peers_.end()) {
    peers_.push_back(description);
    std::printf("  peer: %s\n", description.c_str());
  }
}

void Bench::keep(const Row& row) {
  const std::string verdict =
      row.target <= 0
          ? ""
          : ts::detail::cat({digits(row.target), row.met()         ? " met"
                                                 : row.reachable() ? " MISSED"
                                                                   : " past the limit"});
  std::printf("  %-27s %9s  %-15s %9s  %6s %-11s %8s %8s  %s\n", row.what.c_str(),
              row.ours.count > 0 ? digits(row.ours.median).c_str() : "-", row.peer.c_str(),
              row.theirs.count > 0 ? digits(row.theirs.median).c_str() : "-",
              row.ratio.count > 0 ? ts::format_fixed(row.ratio.median, 2).c_str() : "-",
              range(row.ratio).c_str(),
              row.of_limit > 0 ? ts::format_fixed(row.of_limit, 2).c_str() : "-",
              row.at_limit > 0 ? ts::format_fixed(row.at_limit, 2).c_str() : "-", verdict.c_str());
  std::fflush(stdout);
  rows_.push_back(row);
}

void Bench::run(const Case& c) {
  const int usual = options_.slow ? std::max(c.rounds, 9) : c.rounds;
  const int rounds = c.always ? c.rounds : options_.rounds > 0 ? options_.rounds : usual;
  const Samples samples = take_turns(c, rounds, options_.slow ? 1e9 : c.most_seconds);
  const std::vector<double>* physics = nullptr;
  for (std::size_t w = 1; w < c.ways.size(); ++w) {
    physics = c.ways[w].name == "limit" && c.ways[w].sample ? &samples[w] : physics;
  }
  // At its fastest, so that a target is called past the limit only when it surely is.
  const double fastest = physics != nullptr ? seconds(*physics).least : 0;
  Row row;
  row.group = c.group;
  row.what = c.what;
  row.unit = c.unit;
  row.threads = c.threads;
  row.note = c.note;
  row.ours = figures(c, samples[0]);
  row.of_limit = physics != nullptr ? spread(quotients(*physics, samples[0])).median : 0;
  bool any = false;
  for (std::size_t w = 1; w < c.ways.size(); ++w) {
    row.target = 0;
    for (const Target& target : c.targets) {
      row.target = target.peer == c.ways[w].name ? target.ratio : row.target;
    }
    const bool roof = c.ways[w].name == "limit";
    if (!c.ways[w].sample || (roof && row.target <= 0)) {
      continue;
    }
    row.peer = roof ? "roof" : c.ways[w].name;
    row.theirs = figures(c, samples[w]);
    row.ratio = spread(quotients(samples[w], samples[0]));
    row.at_limit = fastest > 0 ? seconds(samples[w]).median / fastest : 0;
    if (row.theirs.count > 0) {
      keep(row);
      any = true;
    }
  }
  if (!any && row.ours.count > 0) {
    row.peer = "-";
    keep(row);
  }
}

void Bench::mean(const std::string& group, const std::string& peer, double target) {
  Row row;
  double logs = 0, limits = 0;
  int count = 0;
  for (const Row& r : rows_) {
    if (r.group == group && r.peer == peer && r.ratio.count > 0) {
      logs += std::log(r.ratio.median);
      limits += r.at_limit > 0 ? std::log(r.at_limit) : 0;
      row.unit = r.unit;
      row.threads = r.threads;
      ++count;
    }
  }
  if (count > 1) {
    row.group = group;
    row.what = "geometric mean";
    row.peer = peer;
    row.target = target;
    row.ratio = spread({std::exp(logs / count)});
    row.at_limit = limits > 0 ? std::exp(limits / count) : 0;
    keep(row);
  }
}

}  // namespace bench
