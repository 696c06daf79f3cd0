#pragma once
// What fusing kernels does on a chip: fewer launches, fewer bytes, and what is left is bound by
// arithmetic sooner. Two lists of kernels side by side, each eager and as one graph.

#include <cstdint>  // std::int64_t
#include <ostream>  // operator<<
#include <string>   // names
#include <vector>   // kernels that are read

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/hardware/launches.hpp"

namespace tinyscale {

struct LaunchComparison {
  LaunchReport eager_before, graph_before;
  LaunchReport eager_after, graph_after;

  // Eager as it was over one graph of what is left: both gains together; 0 when nothing is left.
  double speedup() const {
    return graph_after.seconds > 0 ? eager_before.seconds / graph_after.seconds : 0;
  }

  Table table() const;
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
};

// `synchronise_after` are kernels of `after`, as options.synchronise are of `before`.
inline LaunchComparison launch_comparison(const List<OpRecord>& before, const List<OpRecord>& after,
                                          const Chip& chip, DType format = DType::f32,
                                          const LaunchOptions& options = LaunchOptions(),
                                          const std::vector<std::int64_t>& synchronise_after = {}) {
  LaunchOptions then = options;
  then.synchronise = synchronise_after;
  LaunchComparison out;
  out.eager_before = launches(before, chip, Dispatch::eager, format, options);
  out.graph_before = launches(before, chip, Dispatch::graph, format, options);
  out.eager_after = launches(after, chip, Dispatch::eager, format, then);
  out.graph_after = launches(after, chip, Dispatch::graph, format, then);
  return out;
}

// Kernels that are bound by "math", "vector" or "memory".
inline std::int64_t kernels_bound_by(const LaunchReport& report, const std::string& bound) {
  std::int64_t count = 0;
  for (const LaunchRow& row : report.rows) {
    count += row.bound == bound ? 1 : 0;
  }
  return count;
}

inline Table LaunchComparison::table() const {
  const LaunchReport &b = eager_before, &a = eager_after;
  Table out;
  out.title = detail::cat({"Kernels before and after on ", b.chip, ", priced as ",
                           name_of(b.format), ", launches of ", format_seconds(b.options.seconds),
                           b.vector_known ? "" : " (vector rate not known: it does not limit)"});
  out.columns = {"quantity", "before", "after", "before / after"};
  const auto add = [&](const std::string& name, const char* unit, double x, double y) {
    out.add({name, detail::launch_cell(x, unit), detail::launch_cell(y, unit),
             x > 0 && y > 0 ? format_fixed(x / y, 2) : "-"});
  };
  const auto size = [](const LaunchReport& r) { return static_cast<double>(r.rows.size()); };
  add("kernels", "", size(b), size(a));
  for (const char* const bound : {"memory", "vector", "math"}) {
    add(detail::cat({"  bound by ", bound}), "", static_cast<double>(kernels_bound_by(b, bound)),
        static_cast<double>(kernels_bound_by(a, bound)));
  }
  add("bytes", "B", b.bytes, a.bytes);
  add("FLOPs", "FLOP", b.flops(), a.flops());
  add("FLOPs/byte", "FLOP/B", b.intensity(), a.intensity());
  add("T device", "s", b.device_busy(), a.device_busy());
  add("  bound by memory", "s", b.memory_bound, a.memory_bound);
  add("  bound by vector", "s", b.vector_bound, a.vector_bound);
  add("  bound by math", "s", b.math_bound, a.math_bound);
  add("T eager", "s", b.seconds, a.seconds);
  add("  device idle", "s", b.device_idle(), a.device_idle());
  add("T graph", "s", graph_before.seconds, graph_after.seconds);
  add("  device idle", "s", graph_before.device_idle(), graph_after.device_idle());
  add("T eager before, graph after", "s", b.seconds, graph_after.seconds);
  return out;
}

inline std::ostream& operator<<(std::ostream& out, const LaunchComparison& comparison) {
  return out << comparison.table();
}

}  // namespace tinyscale
