#pragma once
// Collectives of GPUs behind switches, and the tree of switches itself, each with its derivation.
// Level i of fat_tree(machine): D_i parts, each sending W_i one way up to its switch (GPUs of a
// node, nodes of a unit, units of the spine) for the S_i GPUs behind it. V bytes of the whole
// array, cut Y ways inside:
//   all_gather, reduce_scatter  V max_i (D_i - 1) / (D_i max(1, Y / S_i) W_i)
//   all_reduce twice, with sums in the switch once V / W; all_to_all V (N - 1) / (N^2 W)
// Source: "How To Scale Your Model", chapter 12 (scaling out, collectives, appendix B).

#include <algorithm>  // max, min
#include <cmath>      // ceil, pow
#include <string>     // names

#include "tinyscale/hardware/intensity.hpp"
#include "tinyscale/hardware/pod.hpp"
#include "tinyscale/mesh/collective_spec.hpp"

namespace tinyscale {

namespace detail {

// V (D - 1) / (D W), of which an inner axis that cuts the array beyond the S GPUs of a part leaves
// each its share.
inline Quantity level_time(const FatTreeLevel& level, const Quantity& v, double below, double cut,
                           bool exact) {
  const Quantity d = given("switch_gather_time", "D", static_cast<double>(level.degree));
  const Quantity s(below, "", "S", "GPUs of a part");
  const Quantity y(std::min(cut, below * d.value()), "", "Y", "ways that cut the array");
  const Quantity carried = exact ? v * (d - Quantity(1.0)) / d : v;
  return y.value() > below ? carried / (y / s * level.part) : carried / level.part;
}

inline void check_levels(const char* who, const List<FatTreeLevel>& levels, std::size_t least) {
  if (levels.size() < least) {
    fail({who, ": ", levels.size(), " levels; ",
          least > 1
              ? "a node and the network above it are right, fat_tree(machine(\"h100\", {4, 8}))"
              : "one at least is right, fat_tree(machine(\"h100\", {8}))"});
  }
}

}  // namespace detail

// What the slowest level gathers at: 413 GB/s of 514, 413 and 17,067 of a pod of H100.
inline Quantity gather_bandwidth(const List<FatTreeLevel>& levels) {
  detail::check_levels("gather_bandwidth", levels, 1);
  Quantity slowest = levels[0].gathering;
  for (const FatTreeLevel& level : levels) {
    slowest = level.degree > 1 ? min(slowest, level.gathering) : slowest;
  }
  return named("W_gather", slowest, "scaling book, 12: the slowest level");
}

// all_gather or reduce_scatter of V bytes over all levels. `cut` > 1: [.., F_Y] is cut over an
// inner axis of Y GPUs, and every one of them gathers only its share. Not exact: without (D - 1) /
// D.
inline Quantity switch_gather_time(double bytes, const List<FatTreeLevel>& levels, double cut = 1,
                                   bool exact = true) {
  const char* const who = "switch_gather_time";
  const Quantity v = detail::given(who, "V", bytes, "B", "the whole array");
  detail::given(who, "Y", cut);
  detail::check_levels(who, levels, 1);
  Quantity slowest(0.0, "s");
  double below = 1;
  for (const FatTreeLevel& level : levels) {
    const Quantity time = detail::level_time(level, v, below, cut, exact);
    slowest = time.value() > slowest.value() ? time : slowest;
    below *= static_cast<double>(level.degree);
  }
  return named("T", slowest, "scaling book, 12");
}

// An all_reduce: two passes, or one when the switches sum (SHARP): V / W.
inline Quantity switch_reduce_time(double bytes, const List<FatTreeLevel>& levels, double cut = 1,
                                   bool in_switch = false, bool exact = true) {
  if (!in_switch) {
    return named("T", Quantity(2.0) * switch_gather_time(bytes, levels, cut, exact),
                 "scaling book, 12: reduce_scatter, all_gather");
  }
  return named("T", switch_gather_time(bytes, levels, cut, false), "scaling book, 12: SHARP");
}

// all_to_all of V bytes in all: a member keeps 1 / D of its share. In a node V (N - 1) / (N^2 W),
// over M nodes V (M - 1) / (M^2 W_node); not exact: V / (D W). The slowest level.
inline Quantity switch_exchange_time(double bytes, const List<FatTreeLevel>& levels,
                                     bool exact = true) {
  const char* const who = "switch_exchange_time";
  const Quantity v = detail::given(who, "V", bytes, "B", "the whole array");
  detail::check_levels(who, levels, 1);
  double members = 1;
  for (const FatTreeLevel& level : levels) {
    members *= static_cast<double>(level.degree);
  }
  Quantity slowest(0.0, "s");
  for (const FatTreeLevel& level : levels) {
    const Quantity n(members, "", "N", "parts of this size in all"), one(1.0);
    const Quantity time = exact ? v * (n - one) / (n * n * level.part) : v / (n * level.part);
    slowest = time.value() > slowest.value() ? time : slowest;
    members /= static_cast<double>(level.degree);
  }
  return named("T", slowest, "scaling book, 12");
}

// Of a dense all_to_all, when a token goes to k of N devices: min(k / N, 1).
inline Quantity ragged_share(double top_k, double devices) {
  const Quantity k = detail::given("ragged_share", "k", top_k);
  const Quantity n = detail::given("ragged_share", "N", devices);
  return named("share", min(k / n, Quantity(1.0)), "scaling book, 12");
}

// The same when the k experts are drawn at random with Z devices: a device is asked by a token with
// probability 1 - ((Z - 1) / Z)^k, and (Z - 1) / Z of them are others.
// Not exact, for k << Z: k (Z - 1) / Z^2.
inline Quantity expected_ragged_share(double top_k, double devices, bool exact = true) {
  const Quantity k = detail::given("expected_ragged_share", "k", top_k);
  const Quantity z = detail::given_count("expected_ragged_share", "Z", devices);
  const Quantity one(1.0), others = (z - one) / z;
  if (!exact) {
    return named("share", k / z * others, "scaling book, 12, appendix B: k << Z");
  }
  const Quantity missed =
      detail::make_quantity("pow", std::pow(others.value(), top_k), {}, {others, k});
  return named("share", (one - missed) * others, "scaling book, 12, appendix B");
}

// ---- The switches ----

struct SwitchTier {
  double switches = 1, ports = 1;
  double port_bandwidth = 0;  // bytes/s, one way
};

inline Quantity switch_bandwidth(const SwitchTier& tier) {
  const char* const who = "switch_bandwidth";
  return named("W",
               detail::given(who, "switches", tier.switches) *
                   detail::given(who, "ports", tier.ports) *
                   detail::given(who, "W_port", tier.port_bandwidth, "B/s"),
               "scaling book, 12");
}

// Both directions through the middle of a level: D / 2 parts each way.
inline Quantity bisection_bandwidth(const FatTreeLevel& level) {
  return named("W_bisection", level.all, "scaling book, 12: both directions");
}

// A fat tree in which every level has as much bandwidth up as down.
struct SwitchCounts {
  double gpus = 0, nodes = 0, units = 0;  // units: 32 nodes behind one set of leaves
  double node_switches = 0, leaves = 0, spines = 0, cores = 0;
  double cables_leaf_spine = 0;  // between each leaf and each spine

  double switches() const { return node_switches + leaves + spines + cores; }
};

// 8 GPUs and 4 switches a node, 32 nodes and 8 leaves of 64 ports a unit. As long as a spine's
// ports reach every leaf, spines turn all of them down (32 with 2048 GPUs); beyond, half go up to
// cores. `spine_used` ports: 64, all of them.
inline SwitchCounts switch_counts(double gpus, double ports = 64, double gpus_of_node = 8,
                                  double nodes_of_unit = 32, double node_switches = 4) {
  const char* const who = "switch_counts";
  detail::given(who, "GPUs", gpus);
  detail::given(who, "ports", ports);
  if (!(node_switches >= 0) || !detail::is_finite(node_switches)) {
    detail::fail({who, ": ", node_switches, " switches of a node; 0 or more are right"});
  }
  const double unit = detail::given(who, "GPUs of a node", gpus_of_node).value() *
                      detail::given(who, "nodes of a unit", nodes_of_unit).value();
  SwitchCounts tree;
  tree.gpus = gpus;
  tree.nodes = std::ceil(gpus / gpus_of_node);
  tree.units = std::ceil(gpus / unit);
  tree.node_switches = tree.nodes * node_switches;
  tree.leaves = tree.units * std::ceil(unit / (ports / 2));
  const double uplinks = tree.leaves * (ports / 2);
  const bool flat = tree.leaves <= ports;
  tree.spines = std::ceil(uplinks / (flat ? ports : ports / 2));
  tree.cores = flat ? 0 : std::ceil(tree.spines * (ports / 2) / ports);
  tree.cables_leaf_spine = flat ? ports / 2 / tree.spines : 0;
  return tree;
}

// What switches carry when M nodes of N GPUs gather V bytes. In all a node's switch takes V in and
// gives N V out, the leaf above it V and V (M - 1), which takes V (M - 1) / (M W_node).
struct GatherTraffic {
  Quantity from_gpus, to_leaf, from_leaf, to_gpus;  // of one node's switch
  Quantity node_in, node_out, leaf_in, leaf_out;    // sums
  Quantity time;                                    // of the network above the nodes
};

inline GatherTraffic gather_traffic(double bytes, const List<FatTreeLevel>& levels) {
  const char* const who = "gather_traffic";
  detail::check_levels(who, levels, 2);
  const Quantity v = detail::given(who, "V", bytes, "B"), one(1.0);
  const Quantity n(static_cast<double>(levels[0].degree), "", "N", "GPUs of a node");
  const Quantity m(static_cast<double>(levels[1].degree), "", "M", "nodes");
  GatherTraffic out;
  out.from_gpus = named("from GPUs", v / m, "scaling book, 12");
  out.to_leaf = named("to leaf", v / m, "scaling book, 12");
  out.from_leaf = named("from leaf", v * (m - one) / m, "scaling book, 12");
  out.to_gpus = named("to GPUs", n * (v - v / (m * n)), "scaling book, 12");
  out.node_in = named("node in", out.from_gpus + out.from_leaf);
  out.node_out = named("node out", out.to_leaf + out.to_gpus);
  out.leaf_in = named("leaf in", m * out.to_leaf);
  out.leaf_out = named("leaf out", m * out.from_leaf);
  out.time = named("T", out.from_leaf / levels[1].part, "scaling book, 12");
  return out;
}

// What a node's switch takes in, and as much out, when it sums V bytes of each of N GPUs: V (N - 1)
// to be summed, V / N a GPU back, that again summed up, V (N - 1) to all others: N V.
inline Quantity in_switch_traffic(double bytes, const FatTreeLevel& node) {
  const Quantity v = detail::given("in_switch_traffic", "V", bytes, "B");
  const Quantity n = detail::given("in_switch_traffic", "N", static_cast<double>(node.degree), "",
                                   "GPUs of a node");
  return named("switch in", v * (n - Quantity(1.0)) + v, "scaling book, 12");
}

}  // namespace tinyscale
