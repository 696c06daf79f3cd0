#pragma once
// Launches in closed form, for n equal kernels of k seconds and launches of l:
//   eager  n max(l, k) + min(l, k): the longer of the two back to back, once the other alone
//   graph  l + n k;   they meet at k = l, where elementwise work moves l W bytes

#include <algorithm>  // max
#include <cmath>      // pow
#include <cstdint>    // std::int64_t
#include <ostream>    // operator<<
#include <string>     // json
#include <vector>     // durations

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/order.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/hardware/intensity.hpp"
#include "tinyscale/hardware/launches.hpp"
#include "tinyscale/measure/quantity.hpp"

namespace tinyscale {

namespace detail {

inline void check_equal_kernels(const char* who, std::int64_t kernels, double seconds,
                                const LaunchOptions& options) {
  if (kernels < 0) {
    fail({who, ": ", kernels, " kernels; a number from 0 is right"});
  }
  if (!(seconds >= 0) || !is_finite(seconds)) {
    fail({who, ": a kernel takes ", seconds, " s; a finite number from 0 is right"});
  }
  check_launch_options(options, static_cast<std::size_t>(kernels));
}

// Stretches of kernels after each of which host and device begin anew together.
inline double launch_stretches(std::int64_t kernels, const LaunchOptions& options) {
  std::vector<double> given, reads;  // kernels' numbers: exact
  for (const std::int64_t read : options.synchronise) {
    given.push_back(static_cast<double>(read));
  }
  for (const std::size_t at : stable_order(given)) {
    reads.push_back(given[at]);
  }
  double stretches = kernels > 0 ? 1 : 0;
  for (std::size_t i = 0; i < reads.size(); ++i) {
    const bool again = i > 0 && reads[i] <= reads[i - 1];
    stretches += again || reads[i] >= static_cast<double>(kernels - 1) ? 0 : 1;
  }
  return stretches;
}

}  // namespace detail

// n max(l, k) + s min(l, k), s stretches between values that the host reads; the device is never
// waited for otherwise, whatever `ahead` from 1 on is. With `ahead` 0: n (l + k).
inline Quantity eager_time(std::int64_t kernels, double kernel_seconds,
                           const LaunchOptions& options = LaunchOptions()) {
  detail::check_equal_kernels("eager_time", kernels, kernel_seconds, options);
  const Quantity n(static_cast<double>(kernels), "", "n", "kernels");
  const Quantity k(kernel_seconds, "s", "k", "a kernel"), l(options.seconds, "s", "l", "a launch");
  if (options.ahead == 0) {
    return named("T_eager", n * (l + k), "the host waits for each");
  }
  const double stretches = detail::launch_stretches(kernels, options);
  const Quantity s(stretches, "", "s", "stretches between values that the host reads");
  return named("T_eager", n * max(l, k) + (stretches == 1 ? min(l, k) : s * min(l, k)),
               "the host ahead of the device");
}

// s l + n k + (n - s) gap: of s graphs, one after each value that the host reads.
inline Quantity graph_time(std::int64_t kernels, double kernel_seconds,
                           const LaunchOptions& options = LaunchOptions()) {
  detail::check_equal_kernels("graph_time", kernels, kernel_seconds, options);
  const Quantity n(static_cast<double>(kernels), "", "n", "kernels");
  const Quantity k(kernel_seconds, "s", "k", "a kernel");
  const Quantity l(options.graph_launch(), "s", "l", "a launch of a graph");
  const double stretches = detail::launch_stretches(kernels, options);
  const Quantity s(stretches, "", "s", "graphs");
  const Quantity time = (stretches == 1 ? l : s * l) + n * k;
  if (options.between_kernels == 0) {
    return named("T_graph", time, "one launch of a graph");
  }
  const Quantity gap(options.between_kernels, "s", "gap", "between kernels of a graph");
  return named("T_graph", time + (n - s) * gap, "one launch of a graph");
}

// l W: bytes that a chip moves in the time of a launch. A smaller kernel that memory bounds leaves
// the device idle when run eagerly. Where caches hold small operands W is of the one that does.
inline Quantity launch_crossover_bytes(const Chip& chip, double launch_seconds = 5e-6) {
  const Quantity l = detail::given("launch_crossover_bytes", "l", launch_seconds, "s", "a launch");
  double below = 0;  // bytes that the level before holds, which take less than a launch
  for (const MemoryLevel& level : chip.levels) {
    if (level.bandwidth > 0 && l.value() * level.bandwidth <= level.bytes) {
      const Quantity w(level.bandwidth, "B/s", "W", detail::cat({level.name, " of ", chip.name}));
      const Quantity held(below, "B", "held", "by the level before");
      return named("bytes*", below > l.value() * level.bandwidth ? max(held, l * w) : l * w,
                   "as long as a launch");
    }
    below = level.bandwidth > 0 ? std::max(below, level.bytes) : below;
  }
  const Quantity bytes = l * bandwidth_of(chip);
  const Quantity held(below, "B", "held", "by the level before");
  return named("bytes*", below > bytes.value() ? max(held, bytes) : bytes, "as long as a launch");
}

// Elements from which an elementwise kernel takes as long as a launch: `arrays` are read or written
// once, `flops` vector FLOPs done for each element.
//   min(l W / (arrays b), l V / flops), V the vector rate, where it is known
inline Quantity launch_crossover(const Chip& chip, double launch_seconds = 5e-6, double arrays = 2,
                                 double flops = 1, DType format = DType::f32) {
  const char* const who = "launch_crossover";
  const Quantity l = detail::given(who, "l", launch_seconds, "s", "a launch");
  const Quantity a = detail::given(who, "arrays", arrays, "", "read or written");
  const Quantity b(bytes_of(format), "B/element", "b", name_of(format));
  const Quantity moved = launch_crossover_bytes(chip, launch_seconds) / (a * b);
  if (!(flops >= 0) || !detail::is_finite(flops)) {
    detail::fail({who, ": flops is ", flops, "; a finite number from 0 is right"});
  }
  if (!(chip.vector_flops > 0) || flops == 0) {
    return named("N*", moved, "as long as a launch");
  }
  const Quantity v(chip.vector_flops, "FLOP/s", "V", "vector rate of " + chip.name);
  const Quantity f(flops, "FLOP/element", "f", "of an element");
  return named("N*", min(moved, l * v / f), "as long as a launch");
}

// The time of n equal kernels against how long one takes, replayed in both ways.
struct LaunchSweep {
  std::int64_t kernels = 0;
  LaunchOptions options;
  std::vector<double> kernel_seconds, eager, graph;  // s

  Table table() const;
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
};

// From a twentieth of a launch to twenty, unless durations are given.
inline LaunchSweep launch_sweep(std::int64_t kernels = 1000,
                                const LaunchOptions& options = LaunchOptions(),
                                const std::vector<double>& kernel_seconds = {}) {
  LaunchSweep sweep;
  sweep.kernels = kernels;
  sweep.options = options;
  sweep.kernel_seconds = kernel_seconds;
  detail::check_equal_kernels("launch_sweep", kernels, 0, options);
  if (kernels > 10000000) {
    detail::fail({"launch_sweep: ", kernels, " kernels; up to 10000000 are replayed, of more ",
                  "eager_time and graph_time are the formulas"});
  }
  const double launch = options.seconds > 0 ? options.seconds : 5e-6;
  for (int i = 0; kernel_seconds.empty() && i <= 40; ++i) {
    sweep.kernel_seconds.push_back(launch * std::pow(20.0, i / 20.0 - 1));
  }
  for (const double k : sweep.kernel_seconds) {
    detail::check_equal_kernels("launch_sweep", kernels, k, options);
    for (const Dispatch how : {Dispatch::eager, Dispatch::graph}) {
      LaunchReport report;
      report.dispatch = how;
      report.options = options;
      report.rows.resize(static_cast<std::size_t>(kernels));
      for (LaunchRow& row : report.rows) {
        row.seconds = k;
      }
      detail::replay_launches(report);
      (how == Dispatch::eager ? sweep.eager : sweep.graph).push_back(report.seconds);
    }
  }
  return sweep;
}

inline Table LaunchSweep::table() const {
  Table out;
  out.title = detail::cat({format_count(static_cast<double>(kernels)), " kernels, launches of ",
                           format_seconds(options.seconds), ", of a graph ",
                           format_seconds(options.graph_launch())});
  out.columns = {"kernel", "eager", "graph", "eager / graph"};
  for (std::size_t i = 0; i < kernel_seconds.size(); ++i) {
    out.add({format_seconds(kernel_seconds[i]), format_seconds(eager[i]), format_seconds(graph[i]),
             graph[i] > 0 ? format_fixed(eager[i] / graph[i], 3) : "-"});
  }
  return out;
}

inline std::ostream& operator<<(std::ostream& out, const LaunchSweep& sweep) {
  return out << sweep.table();
}

}  // namespace tinyscale
