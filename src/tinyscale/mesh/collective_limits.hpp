#pragma once
// What a collective takes on a torus by the scaling book's limits, each with its derivation:
//   all_gather, reduce_scatter  max(T_min sum(hops), V / sum(W)); all_reduce twice that
//   all_to_all                  max(.., V max(X) / (4 N W))
// V bytes of the whole (gathered) array, W both ways of a ring; a line sends V (N - 1) / N one way.
// What schedules really take: collective_seconds(). Source: "How To Scale Your Model", chapter 3.

#include <algorithm>  // max
#include <cmath>      // floor, fmod
#include <cstdint>    // std::int64_t
#include <string>     // names
#include <vector>     // dimensions

#include "tinyscale/hardware/intensity.hpp"
#include "tinyscale/hardware/network.hpp"
#include "tinyscale/mesh/closed_forms.hpp"
#include "tinyscale/mesh/mesh_axis.hpp"

namespace tinyscale {

// The links along some dimensions of a machine, over which a collective goes at once.
inline List<AxisPart> links_along(const Machine& machine, const std::vector<int>& dims) {
  List<AxisPart> parts;
  for (const int d : dims) {
    detail::machine_dim(machine, d);  // checks
    if (std::count(dims.begin(), dims.end(), d) > 1) {
      detail::fail({"links_along: dimension ", d, " of ", machine.name, " twice; once is right"});
    }
    parts.push_back(detail::part_of_dim(machine, d, machine.dims[d], 1));
  }
  return parts;
}

namespace detail {

inline void check_limit(const char* who, Collective what, const List<AxisPart>& axes) {
  if (what != Collective::all_gather && what != Collective::reduce_scatter &&
      what != Collective::all_reduce && what != Collective::all_to_all) {
    fail({who, ": no limit for ", name_of(what),
          "; all_gather, reduce_scatter, all_reduce and all_to_all have one"});
  }
  if (axes.empty()) {
    fail({who, ": no axes; links_along(machine, {0}) gives the links of dimension 0"});
  }
  for (const AxisPart& axis : axes) {
    if (!in_a_row(axis)) {
      fail({who, ": an axis of ", axis.size, " chips is ", name_of(axis.kind),
            "; a ring or a line is right, and switches have switch_gather_time"});
    }
  }
}

inline Quantity axis_rate(const AxisPart& axis) {
  const double way =
      given("collective_transfer", "W", axis.bandwidth / axis.spacing, "B/s", "of a link").value();
  return axis.kind == AxisKind::ring ? Quantity(2 * way, "B/s", "W", "ring, both ways")
                                     : Quantity(way, "B/s", "W", "line, one way");
}

inline Quantity twice_if(Collective what, const Quantity& time) {
  return what == Collective::all_reduce ? Quantity(2.0) * time : time;
}

}  // namespace detail

// Hops one after another: floor(N / 2) both ways around a ring, N - 1 one way or along a line.
inline Quantity ring_hops(double devices, bool both_ways = true, bool wraps = true) {
  const Quantity n = detail::given_count("ring_hops", "N", devices);
  const Quantity hops = both_ways && wraps ? Quantity(std::floor(devices / 2), "", "floor(N / 2)")
                                           : n - Quantity(1.0);
  return named("hops", hops, "scaling book, 3");
}

// T_min for every hop: X / 2 along a ring, X - 1 along a line, for all axes one after another.
inline Quantity collective_latency(Collective what, const List<AxisPart>& axes) {
  detail::check_limit("collective_latency", what, axes);
  Quantity sum(0, "s");
  for (const AxisPart& axis : axes) {
    const bool ring = axis.kind == AxisKind::ring;
    const Quantity hops(ring ? axis.size / 2.0 : axis.size - 1.0, "", ring ? "X / 2" : "X - 1");
    const Quantity hop = hops * Quantity(axis.latency, "s", "T_min", "a hop");
    sum = axis.size < 2 ? sum : sum.value() > 0 ? sum + hop : hop;
  }
  return named("T_latency", detail::twice_if(what, sum), "scaling book, 3");
}

// Bytes over all links at once.
inline Quantity collective_transfer(Collective what, double bytes, const List<AxisPart>& axes) {
  const char* const who = "collective_transfer";
  detail::check_limit(who, what, axes);
  const Quantity v = detail::given(who, "V", bytes, "B", "the whole array");
  double devices = 1;
  for (const AxisPart& axis : axes) {
    devices *= axis.size;
  }
  if (what == Collective::all_to_all) {
    const Quantity n(devices, "", "N"), four(4);
    Quantity slowest(0, "s");
    for (const AxisPart& axis : axes) {
      const Quantity x(axis.size, "", "X", "of the longest axis");
      const Quantity time = v * x / (four * n * detail::axis_rate(axis));
      slowest = axis.size > 1 && time.value() > slowest.value() ? time : slowest;
    }
    return named("T_bandwidth", slowest, "scaling book, 3");
  }
  Quantity rate;
  for (const AxisPart& axis : axes) {
    const Quantity one = detail::axis_rate(axis), n(axis.size, "", "N");
    const bool ring = axis.kind == AxisKind::ring;
    if (axis.size > 1) {  // else nothing moves along it
      const Quantity useful = ring ? one : one * n / (n - Quantity(1.0));
      rate = rate.unit().empty() ? useful : rate + useful;
    }
  }
  const Quantity time = rate.unit().empty() ? Quantity(0, "s") : v / rate;
  return named("T_bandwidth", detail::twice_if(what, time), "scaling book, 3");
}

// The larger of the two: what the book puts for T_comms.
inline Quantity collective_limit(Collective what, double bytes, const List<AxisPart>& axes) {
  const Quantity latency = collective_latency(what, axes);
  return named("T_comms", max(latency, collective_transfer(what, bytes, axes)), "scaling book, 3");
}

// Bytes (or numbers, if V counts them) over the busiest link of a ring in one direction:
// all_gather V (N - 1) / N one way around, V floor(N / 2) / N both ways; all_reduce twice that;
// all_to_all V (N - 1) / (2 N) one way, both ways V / 8 (1 + 2 / N), of odd rings V / 8 (1 - 1 /
// N^2).
inline Quantity link_volume(Collective what, double bytes, double devices, bool both_ways = true,
                            const std::string& unit = "B") {
  const char* const who = "link_volume";
  detail::check_limit(who, what, {AxisPart()});
  const Quantity v = detail::given(who, "V", bytes, unit);
  const Quantity n = detail::given_count(who, "N", devices);
  const Quantity one(1.0), two(2.0), eight(8.0);
  const bool exchange = what == Collective::all_to_all;
  const bool odd = std::fmod(devices, 2) > 0;
  const Quantity around = v * (n - one) / n, hops = ring_hops(devices, both_ways);
  const Quantity sent = exchange && both_ways
                            ? v / eight * (odd ? one - one / (n * n) : one + two / n)
                        : exchange  ? around / two
                        : both_ways ? v * hops / n
                                    : around;
  return named("bytes a link", detail::twice_if(what, sent), "scaling book, 3");
}

// A hop with fewer bytes waits for the latency: W T_min, one way.
inline Quantity latency_bound_hop(const AxisPart& axis) {
  return named("bytes*",
               Quantity(axis.bandwidth / axis.spacing, "B/s", "W", "one way") *
                   detail::given("latency_bound_hop", "T_min", axis.latency, "s"),
               "scaling book, 3");
}

// An array of fewer bytes in all: N W T_min.
inline Quantity latency_bound_array(const AxisPart& axis) {
  return named("bytes*", Quantity(axis.size, "", "N") * latency_bound_hop(axis),
               "scaling book, 7, appendix C");
}

// Ways of tensor parallelism from which V bytes over a ring wait for the latency: V / (W T_min).
inline Quantity latency_bound_ways(double bytes, const AxisPart& axis) {
  return named("Y", detail::given("latency_bound_ways", "V", bytes, "B") / latency_bound_hop(axis),
               "scaling book, 7, appendix C");
}

// ---- The second case of sharded matmuls: [B, D] x [D_X, F], D cut in one operand ----

// Gather the weights and multiply all of D, or multiply what there is and sum the results.
struct InnerCut {
  Quantity gather_math, gather_comms, gather;  // 2 B D F / C, V of the weights
  Quantity reduce_math, reduce_comms, reduce;  // 2 B D F / (X C), all_reduce of [B, F]
};

inline InnerCut inner_cut(const BatchMatmul& s, const Chip& chip, const List<AxisPart>& axes,
                          DType format = DType::bf16) {
  double ways = 1;
  for (const AxisPart& axis : axes) {
    ways *= axis.size;
  }
  InnerCut out;
  const double number = bytes_of(format), flops = matmul_flops(s).value();
  out.gather_math = math_time(flops, chip, format);
  out.gather_comms = collective_transfer(Collective::all_gather, number * s.d * s.f, axes);
  out.gather = named("T_gather", max(out.gather_math, out.gather_comms), "scaling book, 3");
  out.reduce_math = math_time(flops, chip, format, ways);
  out.reduce_comms = collective_transfer(Collective::all_reduce, number * s.b * s.f, axes);
  out.reduce = named("T_reduce", max(out.reduce_math, out.reduce_comms), "scaling book, 3");
  return out;
}

// When gathering is bound by math (B > C / W), summing is sooner done from this D on: 2 b B F / W
// of the sums against 2 B D F / C, b C / W.
inline Quantity reduce_threshold(const Chip& chip, DType format = DType::bf16) {
  const Quantity b(bytes_of(format), "B", "b", name_of(format));
  return named("D*",
               Quantity(2.0) * b / Quantity(2.0, "FLOP") *
                   critical_intensity(chip, format, Channel::link_both_ways),
               "scaling book, 3");
}

}  // namespace tinyscale
