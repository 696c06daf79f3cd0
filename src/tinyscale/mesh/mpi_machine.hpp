#pragma once
// The machine of a run on MPI ranks. Each rank makes its own, and what was measured, as laptop()
// is, differs from rank to rank: such a machine is rank 0's on all. All else must be equal, or
// ranks would choose different algorithms and wait for each other.

#if defined(TINYSCALE_USE_MPI)

#include <cstddef>
#include <cstdint>
#include <string>

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/hardware/network.hpp"
#include "tinyscale/mesh/collective_spec.hpp"
#include "tinyscale/mesh/mesh_axis.hpp"
#include "tinyscale/mesh/mpi_bytes.hpp"

namespace tinyscale {
namespace detail {

template <class Visit>
void each_figure_of_chip(Chip& chip, const Visit& visit) {
  visit("name", chip.name);
  visit("vendor", chip.vendor);
  visit("kind", chip.kind);
  visit("year", chip.year);
  visit("flops_bf16", chip.flops_bf16);
  visit("flops_int8", chip.flops_int8);
  visit("flops_fp8", chip.flops_fp8);
  visit("flops_fp4", chip.flops_fp4);
  visit("flops_f32", chip.flops_f32);
  visit("vector_flops", chip.vector_flops);
  visit("core_flops_bf16", chip.core_flops_bf16);
  visit("core_flops_int8", chip.core_flops_int8);
  visit("core_flops_f32", chip.core_flops_f32);
  visit("memory_bytes", chip.memory_bytes);
  visit("memory_bandwidth", chip.memory_bandwidth);
  visit("sram_bytes", chip.sram_bytes);
  visit("sram_bandwidth", chip.sram_bandwidth);
  visit("l2_bytes", chip.l2_bytes);
  visit("l2_bandwidth", chip.l2_bandwidth);
  int levels = static_cast<int>(chip.levels.size());
  visit("levels", levels);
  chip.levels.resize(static_cast<std::size_t>(levels));
  for (MemoryLevel& level : chip.levels) {
    visit("level.name", level.name);
    visit("level.bytes", level.bytes);
    visit("level.bandwidth", level.bandwidth);
    visit("level.core_bandwidth", level.core_bandwidth);
  }
  visit("mxu_rows", chip.mxu_rows);
  visit("mxu_cols", chip.mxu_cols);
  visit("mxus", chip.mxus);
  visit("cores", chip.cores);
  visit("clock_hz", chip.clock_hz);
  visit("fifo_tiles", chip.fifo_tiles);
  visit("accumulator_bytes", chip.accumulator_bytes);
  visit("energy.mac_int8", chip.energy.mac_int8);
  visit("energy.mac_bf16", chip.energy.mac_bf16);
  visit("energy.mac_f32", chip.energy.mac_f32);
  visit("energy.sram_byte", chip.energy.sram_byte);
  visit("energy.memory_byte", chip.energy.memory_byte);
  visit("energy.source", chip.energy.source);
  visit("links", chip.links);
  visit("link_bandwidth", chip.link_bandwidth);
  visit("hop_latency", chip.hop_latency);
  visit("topology", chip.topology);
  visit("wrap", chip.wrap);
  visit("domain_chips", chip.domain_chips);
  visit("host_chips", chip.host_chips);
  visit("dcn_bandwidth", chip.dcn_bandwidth);
  visit("pcie_bandwidth", chip.pcie_bandwidth);
  visit("watts", chip.watts);
  visit("dollars_per_hour", chip.dollars_per_hour);
  visit("source", chip.source);
  visit("doubt", chip.doubt);
  visit("price_source", chip.price_source);
  visit("price_date", chip.price_date);
}

// Of machines with equally many dimensions: all that may differ on ranks.
template <class Visit>
void each_figure(Machine& machine, const Visit& visit) {
  each_figure_of_chip(machine.chip, visit);
  for (Links& links : machine.links) {
    double bandwidth = links.bandwidth.one_way(), uplink = links.uplink.one_way();
    visit("links.bandwidth", bandwidth);
    visit("links.latency", links.latency);
    visit("links.uplink", uplink);
    links.bandwidth = Bandwidth::one_way(bandwidth);
    links.uplink = Bandwidth::one_way(uplink);
  }
  visit("dollars_per_hour of a chip", machine.dollars_per_hour);
}

struct PutFigures {
  Bytes& to;

  void operator()(const char*, const std::string& text) const { to.put(text); }
  void operator()(const char*, double value) const { to.put(value); }
  void operator()(const char*, int value) const { to.put(std::int64_t{value}); }
};

struct GetFigures {
  Bytes& from;

  void operator()(const char*, std::string& text) const { text = from.string(); }
  void operator()(const char*, double& value) const { value = from.real(); }
  void operator()(const char*, int& value) const { value = from.whole(); }
};

// Each on a line of its own, numbers to the last bit.
struct NameFigures {
  std::string& text;

  void operator()(const char* name, const std::string& value) const {
    text += cat({"\n", name, " ", value});
  }
  void operator()(const char* name, double value) const {
    std::string digits = cat({value});
    const double read = read_decimal(digits);
    digits = read < value || read > value ? printed('g', 17, value) : digits;
    text += cat({"\n", name, " ", digits});
  }
  void operator()(const char* name, int value) const { text += cat({"\n", name, " ", value}); }
};

// What must be equal on all ranks, the mesh's name first.
inline std::string text_of_mesh(const Machine& machine, const List<MeshAxis>& axes,
                                Algorithm algorithm) {
  std::string text = machine.name;
  for (const MeshAxis& axis : axes) {
    text += cat({", ", axis.name, " of ", axis.size.value});
  }
  text += cat({"\nalgorithm ", name_of(algorithm), "\ndimensions ", machine.dims});
  for (std::size_t d = 0; d < machine.links.size(); ++d) {
    text += cat({"\nlinks of dimension ", d, " ", name_of(machine.links[d].kind)});
  }
  text += machine.chip.measured ? "\nchip measured" : "\nchip declared";
  if (!machine.chip.measured) {
    Machine copy = machine;
    each_figure(copy, NameFigures{text});
  }
  return text;
}

// Two texts that differ become the mesh and its first line that differs.
inline void tell_apart(std::string& ours, std::string& theirs) {
  std::size_t line = 0;
  for (std::size_t at = 0; at < ours.size() && at < theirs.size() && ours[at] == theirs[at]; ++at) {
    line = ours[at] == '\n' ? at + 1 : line;
  }
  for (std::string* const text : {&ours, &theirs}) {
    const std::string head = text->substr(0, text->find('\n'));
    const std::string tail = text->substr(line, text->find('\n', line) - line);
    *text = line == 0 ? head : head + ", " + tail;
  }
}

}  // namespace detail
}  // namespace tinyscale

#endif  // TINYSCALE_USE_MPI
