#pragma once
// Facts of a slice of chips: hosts, cores, rates, distances, what a level of a stream takes.
//   point to point: bytes / (ports W) + hops T_hop, W one way; hops the shorter way along each dim
// Streams through levels (host, links, memory, array) overlap: the slowest is the time, at least;
// one after another is the most. Source: "How To Scale Your Model", chapter 2.

#include <algorithm>  // min
#include <cstdint>    // std::int64_t
#include <string>     // names

#include "tinyscale/hardware/intensity.hpp"
#include "tinyscale/hardware/network.hpp"

namespace tinyscale {

inline Quantity chips_of(const Machine& on) {
  return Quantity(static_cast<double>(on.chips()), "", "N", on.name);
}

// Machines that the chips are plugged into.
inline Quantity hosts_of(const Machine& on) {
  const Quantity host = detail::given("hosts_of", "host_chips", on.chip.host_chips);
  return named("hosts", ceil(chips_of(on) / host), "scaling book, 2");
}

inline Quantity cores_of(const Machine& on) {
  return named("cores", chips_of(on) * detail::given("cores_of", "cores", on.chip.cores),
               "scaling book, 2");
}

inline Quantity peak_rate(const Machine& on, DType format) {
  return named("C_all", chips_of(on) * peak_rate(on.chip, format), "scaling book, 2");
}

inline Quantity memory_of(const Machine& on) {
  const Quantity each = detail::given("memory_of", "M", on.chip.memory_bytes, "B", on.chip.name);
  return named("memory", chips_of(on) * each, "scaling book, 2");
}

inline Quantity memory_bandwidth_of(const Machine& on) {
  return named("W_all", chips_of(on) * bandwidth_of(on.chip), "scaling book, 7");
}

// VMEM or shared memory of all chips.
inline Quantity sram_of(const Machine& on) {
  const Quantity each = detail::given("sram_of", "S", on.chip.sram_bytes, "B", on.chip.name);
  return named("on-chip memory", chips_of(on) * each);
}

namespace detail {

inline void check_place(const char* who, const Machine& on, const Shape& at) {
  bool right = at.size() == on.dims.size();
  for (int d = 0; right && d < at.size(); ++d) {
    right = at[d] >= 0 && at[d] < on.dims[d];
  }
  if (!right) {
    fail({who, ": no chip at ", at, " of ", on.name, "; its dimensions are ", on.dims});
  }
}

inline bool is_row(const Links& links) {
  return links.kind == AxisKind::line || links.kind == AxisKind::ring;
}

}  // namespace detail

// Links from one chip to another: along each dimension the shorter way, around the end of a ring
// too; through a switch or between any two that are joined by a link, one.
inline std::int64_t hops_between(const Machine& on, const Shape& from, const Shape& to) {
  detail::check_place("hops_between", on, from);
  detail::check_place("hops_between", on, to);
  std::int64_t hops = 0;
  for (int d = 0; d < on.dims.size(); ++d) {
    const std::int64_t apart = from[d] < to[d] ? to[d] - from[d] : from[d] - to[d];
    const Links& links = on.links[static_cast<std::size_t>(d)];
    hops += !detail::is_row(links)         ? (apart > 0 ? 1 : 0)
            : links.kind == AxisKind::ring ? std::min(apart, on.dims[d] - apart)
                                           : apart;
  }
  return hops;
}

// The farthest two chips.
inline std::int64_t diameter_of(const Machine& on) {
  Shape first, last;
  for (int d = 0; d < on.dims.size(); ++d) {
    const bool ring = on.links[static_cast<std::size_t>(d)].kind == AxisKind::ring;
    first.push_back(0);
    last.push_back(ring ? on.dims[d] / 2 : on.dims[d] - 1);
  }
  return hops_between(on, first, last);
}

namespace detail {

// The way to a spine is through the port to its leaf, which counts once.
inline std::int64_t ports_along(const Machine& on, const Shape& at, int d) {
  const Links& links = on.links[static_cast<std::size_t>(d)];
  const std::int64_t n = on.dims[d];
  const bool inside = at[d] > 0 && at[d] + 1 < n;
  const int port = port_dim(on, d);
  return n == 1 || (port != d && on.dims[port] > 1) ? 0
         : links.kind == AxisKind::full             ? n - 1
         : !is_row(links)                           ? 1
         : links.kind == AxisKind::ring             ? (goes_around(n) ? 2 : 1)
                                                    : (inside ? 2 : 1);
}

}  // namespace detail

// Links that a chip sends through, in all dimensions; 2 at the corner of a 2D slice that is open.
inline std::int64_t link_ports(const Machine& on, const Shape& at) {
  detail::check_place("link_ports", on, at);
  std::int64_t ports = 0;
  for (int d = 0; d < on.dims.size(); ++d) {
    ports += detail::ports_along(on, at, d);
  }
  return ports;
}

// Bytes into or out of one chip through all its links: at least so long, whatever the others do.
inline Quantity port_time(const Machine& on, double bytes, const Shape& at) {
  const Quantity ports =
      detail::given("port_time", "ports", static_cast<double>(link_ports(on, at)));
  double all = 0;
  for (int d = 0; d < on.dims.size(); ++d) {
    all += static_cast<double>(detail::ports_along(on, at, d)) *
           on.links[static_cast<std::size_t>(detail::port_dim(on, d))].bandwidth.one_way();
  }
  const Quantity rate = detail::given("port_time", "W", all / ports.value(), "B/s",
                                      "a link, one way, in the mean of " + on.chip.name);
  return named("T_ports", detail::given("port_time", "bytes", bytes, "B") / (ports * rate),
               "scaling book, 2: a lower bound");
}

// When the first byte arrives: hops T_hop.
inline Quantity first_byte_time(const Machine& on, const Shape& from, const Shape& to) {
  const Quantity hops(static_cast<double>(hops_between(on, from, to)), "", "hops");
  double seconds = 0;
  for (int d = 0; d < on.dims.size(); ++d) {
    Shape turn = from;
    turn.set(d, to[d]);
    seconds += static_cast<double>(hops_between(on, from, turn)) *
               on.links[static_cast<std::size_t>(d)].latency;
  }
  const double hop = hops.value() > 0 ? seconds / hops.value() : 0;
  return named("T_first", hops * Quantity(hop, "s", "T_hop", "in the mean"), "scaling book, 2");
}

// To another chip: through the fewer ports of the two ends, and the hops of the first byte.
inline Quantity point_to_point_time(const Machine& on, double bytes, const Shape& from,
                                    const Shape& to) {
  const bool fewer = link_ports(on, from) <= link_ports(on, to);
  return named("T", port_time(on, bytes, fewer ? from : to) + first_byte_time(on, from, to),
               "scaling book, 2");
}

// Stages of a stream that overlap: the slowest is the time, and names what to make faster.
inline Quantity slowest_stage(const List<Quantity>& stages) {
  if (stages.empty()) {
    detail::fail({"slowest_stage: no stages; one time for each level is right"});
  }
  Quantity slowest = stages[0];
  for (const Quantity& stage : stages) {
    slowest = stage.value() > slowest.value() ? stage : slowest;
  }
  return slowest;
}

// The same when nothing overlaps; with two stages at most twice as long.
inline Quantity stages_in_turn(const List<Quantity>& stages) {
  Quantity sum = slowest_stage(stages);  // checks
  for (std::size_t i = 0; i < stages.size(); ++i) {
    sum = i == 0 ? stages[0] : sum + stages[i];
  }
  return named("T", sum, "one after another");
}

// What is left of the array when a matmul's inner and outer dims are rounded up to its sides.
inline Quantity padded_utilization(double d, double f, const Chip& chip) {
  const char* const who = "padded_utilization";
  const Quantity rows = detail::given(who, "rows", chip.mxu_rows);
  const Quantity cols = detail::given(who, "cols", chip.mxu_cols);
  const Quantity deep = detail::given(who, "D", d), wide = detail::given(who, "F", f);
  return named("utilization", deep * wide / (ceil(deep / rows) * rows * ceil(wide / cols) * cols),
               "scaling book, 2");
}

// How much larger an array of rows x cols becomes in tiles: f32[3, 5] in tiles of 2 x 2 is 4 x 6.
inline Quantity tile_padding(double rows, double cols, double tile_rows, double tile_cols) {
  const char* const who = "tile_padding";
  const Quantity r = detail::given(who, "rows", rows), c = detail::given(who, "cols", cols);
  const Quantity tr = detail::given(who, "tile rows", tile_rows);
  const Quantity tc = detail::given(who, "tile cols", tile_cols);
  return named("padded / plain", ceil(r / tr) * tr * ceil(c / tc) * tc / (r * c),
               "scaling book, 9");
}

// ---- The units beside the matrix unit ----

// A core's vector side: `groups` of `lanes`, each of `alus`, with registers of `number_bytes`.
struct VectorUnits {
  double cores = 1;      // TPU cores, streaming multiprocessors
  double groups = 1;     // of a core: 8 sublanes; 4 subpartitions
  double lanes = 1;      // 128; 32
  double alus = 1;       // of a lane: 4; 1
  double clock_hz = 0;   // Hz
  double registers = 0;  // of a group: 64 rows of lanes (TPU, counted over 8 sublanes); 16384
  double number_bytes = 4;
  double scratch_bytes = 0;  // of a core: shared memory
};

// 8 x 128 lanes of 4 ALUs and 64 vector registers a core.
inline VectorUnits tpu_vector_units(const Chip& chip) {
  return {static_cast<double>(chip.cores), 8, 128, 4, chip.clock_hz, 64 * 128, 4,
          chip.sram_bytes / chip.cores};
}

// 4 subpartitions of 32 lanes and 16384 registers a multiprocessor.
inline VectorUnits gpu_vector_units(const Chip& chip) {
  return {static_cast<double>(chip.cores), 4, 32, 1, chip.clock_hz, 16384, 4,
          chip.sram_bytes / chip.cores};
}

inline Quantity vector_lanes(const VectorUnits& u) {
  const char* const who = "vector_lanes";
  return named("ALUs",
               detail::given(who, "cores", u.cores) * detail::given(who, "groups", u.groups) *
                   detail::given(who, "lanes", u.lanes) * detail::given(who, "alus", u.alus),
               "scaling book, 2 and 12");
}

// A fused multiply-add counts two.
inline Quantity vector_rate(const VectorUnits& u, bool fused = false) {
  const Quantity clock = detail::given("vector_rate", "clock", u.clock_hz, "1/s");
  return named("C_vector", vector_lanes(u) * clock * Quantity(fused ? 2 : 1, "FLOP"),
               "scaling book, 2 and 12");
}

// The clock that a published rate means.
inline Quantity clock_of_rate(const VectorUnits& u, double flops_per_second, bool fused = true) {
  const Quantity rate = detail::given("clock_of_rate", "C_vector", flops_per_second, "FLOP/s");
  return named("clock", rate / (vector_lanes(u) * Quantity(fused ? 2 : 1, "FLOP")),
               "scaling book, 12");
}

inline Quantity register_bytes(const VectorUnits& u) {  // of a core
  const char* const who = "register_bytes";
  return named("registers",
               detail::given(who, "groups", u.groups) *
                   detail::given(who, "registers", u.registers) *
                   Quantity(u.number_bytes, "B", "b"),
               "scaling book, 2 and 12");
}

inline Quantity scratch_bytes(const VectorUnits& u) {  // of all cores
  const char* const who = "scratch_bytes";
  return named(
      "scratch",
      detail::given(who, "cores", u.cores) * detail::given(who, "scratch", u.scratch_bytes, "B"),
      "scaling book, 12");
}

// How much faster the matrix units are.
inline Quantity matrix_over_vector(const Chip& chip, DType format) {
  return named("matrix / vector",
               peak_rate(chip, format) /
                   detail::given("matrix_over_vector", "C_vector", chip.vector_flops, "FLOP/s"),
               "scaling book, 2 and 12");
}

}  // namespace tinyscale
