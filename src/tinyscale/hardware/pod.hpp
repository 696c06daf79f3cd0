#pragma once
// What a whole pod or fat tree has: FLOP/s, memory, all-reduce and bisection bandwidth.
//   all-reduce = chips links rate   bisection = 2 (chips / longest side) rate   (both one way)
//   fat tree: an all-gather of V bytes over a level of degree D takes V (D - 1) / (D W) at least
// Published pod figures count the vendor's link rate; the presets have the scaling book's, 10 %
// less. Sources: Google's TPU documents; "How To Scale Your Model", chapters 2 and 12.

#include <ostream>  // operator<<
#include <string>   // names

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/shape.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/hardware/chip_facts.hpp"
#include "tinyscale/hardware/network.hpp"
#include "tinyscale/measure/quantity.hpp"

namespace tinyscale {

// The chip with its links at the vendor's rate: a v5e's 1600 Gbit/s are 4 x 50 GB/s, where the
// scaling book and the preset have 45. Other chips already have the vendor's.
inline Chip vendor_links(const Chip& chip) {
  Chip out = chip;
  const std::string& name = chip.name;
  const bool slow = name == "tpu-v4" || name == "tpu-v5e";
  if (slow || name == "tpu-v5p" || name == "tpu-v6e" || name == "tpu-v7") {
    out.link_bandwidth = slow ? 5e10 : 1e11;
    out.source += "; links at the vendor's rate";
  }
  return out;
}
inline Chip vendor_links(const std::string& name) { return vendor_links(chip(name)); }

// An hour of one of a machine's chips: the machine's own price where that was set.
inline Quantity hourly_price(const Machine& machine) {
  Chip priced = machine.chip;
  if (machine.dollars_per_hour < priced.dollars_per_hour ||
      machine.dollars_per_hour > priced.dollars_per_hour) {
    priced.dollars_per_hour = machine.dollars_per_hour;
    priced.price_source = "set on the machine";
    priced.price_date = "";
  }
  return hourly_price(priced);
}

namespace detail {

// 0 where none is known.
inline Quantity known_price(const Machine& on) {
  return on.dollars_per_hour > 0 ? hourly_price(on) : Quantity(0, "USD/h", "price", "not known");
}

}  // namespace detail

// The largest slice of a TPU: what its interconnect joins; throws for other chips. Of v7 the
// scaling book prints 4x4x576; Google's own tools offer 16x24x24.
inline Shape pod_shape(const Chip& chip) {
  static const List<std::string> names = {"tpu-v2",  "tpu-v3",  "tpu-v4", "tpu-v5e",
                                          "tpu-v5p", "tpu-v6e", "tpu-v7"};
  static const List<Shape> shapes = {{16, 16},     {32, 32}, {16, 16, 16}, {16, 16},
                                     {16, 20, 28}, {16, 16}, {16, 24, 24}};
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (chip.name == names[i]) {
      return shapes[i];
    }
  }
  detail::fail({"pod_shape: ", chip.name.empty() ? "this chip" : chip.name, " is not of a TPU pod",
                "; for v2 to v7 it is known, of GPUs see fat_tree(machine)"});
}

struct PodFigures {
  std::string chip;
  Quantity chips, flops_bf16, flops_int8, flops_fp8, memory;  // 0: not known
  Quantity all_reduce, bisection, network;                    // B/s, one way; vendor's links
  Quantity flops_per_dollar;                                  // bf16

  Table table() const;
};

// What the pod's table gives when the chip's figures are multiplied out.
inline PodFigures pod_figures(const Chip& chip) {
  const Shape shape = pod_shape(chip);
  const Chip vendor = vendor_links(chip);
  const Machine pod = machine(vendor, shape);
  std::int64_t longest = 1;
  for (int d = 0; d < shape.size(); ++d) {
    longest = shape[d] > longest ? shape[d] : longest;
  }
  PodFigures out;
  out.chip = chip.name;
  out.chips = Quantity(static_cast<double>(shape.count()), "chip", "N", pod.name);
  const auto each = [&](const char* name, double value, const char* unit, const char* source) {
    return value > 0 ? named(name, out.chips * Quantity(value, unit, source, chip.name))
                     : Quantity();
  };
  out.flops_bf16 = each("bf16 FLOP/s of the pod", chip.flops_bf16, "FLOP/s/chip", "C_bf16");
  out.flops_int8 = each("int8 OP/s of the pod", chip.flops_int8, "OP/s/chip", "C_int8");
  out.flops_fp8 = each("fp8 FLOP/s of the pod", chip.flops_fp8, "FLOP/s/chip", "C_fp8");
  out.memory = each("memory of the pod", chip.memory_bytes, "B/chip", "M");
  out.network = each("data-centre network of the pod", chip.dcn_bandwidth, "B/s/chip", "W_dcn");
  const Quantity links(vendor.links, "1/chip", "links");
  const Quantity rate = quantity_of(pod.links[0].bandwidth, Convention::one_way, "W_link",
                                    "a link, the vendor's rate");
  out.all_reduce = named("all-reduce bandwidth", out.chips * links * rate);
  const Quantity side(static_cast<double>(longest), "chip", "X", "longest side");
  out.bisection = named("bisection bandwidth", 2.0 * out.chips / side * rate, "links cut twice");
  if (chip.dollars_per_hour > 0) {
    out.flops_per_dollar = flops_per_dollar(chip);
  }
  return out;
}
inline PodFigures pod_figures(const std::string& name) { return pod_figures(chip(name)); }

inline Table PodFigures::table() const {
  Table out;
  out.title = "Pod of " + chip + ", " + chips.source();
  out.columns = {"figure", "formula", "value"};
  for (const Quantity* q : {&flops_bf16, &flops_int8, &flops_fp8, &memory, &all_reduce, &bisection,
                            &network, &flops_per_dollar}) {
    if (q->value() > 0) {
      const std::string unit = q->unit();
      out.add({q->name(), q->formula(), format_si(q->value(), unit)});
    }
  }
  return out;
}

inline std::ostream& operator<<(std::ostream& out, const PodFigures& figures) {
  return out << figures.table();
}

// A level of a fat tree: a switch (a node's NVSwitches, the leaves, the spines) over `degree`
// parts.
struct FatTreeLevel {
  std::string name;
  std::int64_t degree = 1;
  Quantity part;       // what each part below sends into it, one way
  Quantity all;        // all of them
  Quantity gathering;  // bytes gathered a second when this level limits: part D / (D - 1)
};

// The levels of a machine of switches, the node first: machine("h100", {4, 32, 8}) has nodes of 8
// GPUs, leaves of 32 nodes and a spine of 4 leaves: 514, 413 and 17,067 GB/s to gather.
inline List<FatTreeLevel> fat_tree(const Machine& machine) {
  List<FatTreeLevel> levels;
  for (int d = machine.dims.size() - 1; d >= 0; --d) {
    static const char* const names[] = {"node", "leaf", "spine"};
    const std::size_t at = levels.size();
    const AxisKind kind = machine.links[static_cast<std::size_t>(d)].kind;
    if (kind != AxisKind::switched || at > 2) {
      detail::fail({"fat_tree: ", machine.name, ": dimension ", d, " is ", name_of(kind),
                    at > 2 ? ", above a spine" : "",
                    "; at most three of switches are right, as machine(\"h100\", {4, 32, 8})"});
    }
    FatTreeLevel level;
    level.name = names[at];
    level.degree = machine.dims[d];
    const Quantity below(static_cast<double>(detail::chips_behind(machine, d)), "", "S",
                         "GPUs of a part");
    const Quantity rate =
        quantity_of(Bandwidth::one_way(machine.egress(d)), Convention::one_way, "W", "of a GPU");
    const Quantity degree(static_cast<double>(level.degree), "", "D", "parts");
    level.part = named(detail::cat({"W_", names[at]}), below * rate, "of a part, one way");
    level.all = named("of all parts", degree * level.part, "one way");
    level.gathering = level.degree > 1
                          ? named("all-gather", level.part * degree / (degree - 1.0))
                          : Quantity(0, "B/s", "all-gather", "of one part: nothing is sent");
    levels.push_back(level);
  }
  return levels;
}

inline Table fat_tree_table(const Machine& machine) {
  Table out;
  out.title = "Fat tree of " + machine.name + ", one way";
  out.columns = {"level", "degree", "a part sends", "all parts", "all-gather"};
  for (const FatTreeLevel& level : fat_tree(machine)) {
    out.add({level.name, detail::cat({level.degree}), format_si(level.part.value(), "B/s"),
             format_si(level.all.value(), "B/s"), format_si(level.gathering.value(), "B/s")});
  }
  return out;
}

// What joins GPUs: NVLink by generation in a node, ports between nodes (scaling book, chapter 12).
inline Table network_table() {
  struct Row {
    const char *name, *chip;
    int switches;
  };
  static const Row rows[] = {{"NVLink 3", "a100-80", 6},
                             {"NVLink 4", "h100-sxm", 4},
                             {"NVLink 5", "b200", 2},
                             {"NVLink 5, NVL72", "gb200", 18}};
  Table out;
  out.title = "GPU networks, one way";
  out.columns = {"network",     "chip",       "a link", "links",
                 "a GPU sends", "NVSwitches", "GPUs",   "between nodes, a GPU",
                 "a node sends"};
  for (const Row& row : rows) {
    const Chip gpu = chip(row.chip);
    out.add({row.name, row.chip, format_si(gpu.link_bandwidth, "B/s"), detail::cat({gpu.links}),
             format_si(gpu.links * gpu.link_bandwidth, "B/s"), detail::cat({row.switches}),
             detail::cat({gpu.domain_chips}), format_si(gpu.dcn_bandwidth, "B/s"),
             format_si(gpu.domain_chips * gpu.dcn_bandwidth, "B/s")});
  }
  return out;
}

}  // namespace tinyscale
