#pragma once
// NCCL's own model of all_reduce, all_gather and reduce_scatter (its tuner, src/graph/tuning.cc,
// NCCL 2.x): a base latency, a latency for each step inside a node and between nodes, and the bytes
// over a derated bus, by protocol. LL flags every 8 bytes and needs no fence, LL128 every 128,
// Simple fences.

#include <algorithm>  // max
#include <cstdint>

#include "tinyscale/mesh/partner_schedules.hpp"

namespace tinyscale {

enum class NcclProtocol { ll, ll128, simple };

inline const char* name_of(NcclProtocol protocol) {
  static const char* const names[] = {"LL", "LL128", "Simple"};
  return detail::name_in("NcclProtocol", names, protocol);
}

struct NcclCall {
  Collective what = Collective::all_reduce;
  Algorithm algorithm = Algorithm::ring;  // or tree
  NcclProtocol protocol = NcclProtocol::simple;
  int nodes = 1;
  int ranks_per_node = 8;
  bool pcie = false;         // inside a node, instead of NVLink
  double bytes = 0;          // of the whole vector
  double bus_bandwidth = 0;  // bytes/s; 0: latency alone
};

// Seconds: base + steps inside nodes + steps between them + bytes / derated bandwidth.
inline double nccl_seconds(const NcclCall& call) {
  // Microseconds for LL, LL128, Simple.
  static const double ring_base[] = {6.6, 14.0, 8.4}, tree_base[] = {6.8, 14.0, 8.4};
  static const double ring_nvlink[] = {0.6, 1.9, 3.4}, tree_nvlink[] = {0.6, 1.25, 4.0};
  static const double pcie[] = {1.0, 2.5, 5.7};
  static const double ring_net[] = {2.7, 4.0, 14.0}, tree_net[] = {5.0, 8.5, 14.0};
  static const double derating[] = {0.5, 0.92, 1.0};
  const bool tree = call.algorithm == Algorithm::tree;
  const bool all_reduce = call.what == Collective::all_reduce;
  const bool half = call.what == Collective::all_gather || call.what == Collective::reduce_scatter;
  if (!(all_reduce && tree) && !((all_reduce || half) && call.algorithm == Algorithm::ring)) {
    detail::fail(
        {"nccl_seconds: ", name_of(call.what), " by ", name_of(call.algorithm),
         "; the model has all_reduce, all_gather and reduce_scatter by ring, all_reduce by "
         "tree"});
  }
  if (call.nodes < 1 || call.ranks_per_node < 1 || call.nodes > 2147483647 / call.ranks_per_node) {
    detail::fail({"nccl_seconds: ", call.nodes, " nodes of ", call.ranks_per_node,
                  "; 1 or more of each are right, up to 2^31 - 1 ranks"});
  }
  if (!(call.bytes >= 0) || !(call.bus_bandwidth >= 0) || !detail::is_finite(call.bytes) ||
      !detail::is_finite(call.bus_bandwidth)) {
    detail::fail({"nccl_seconds: ", call.bytes, " bytes over a bus of ", call.bus_bandwidth,
                  " bytes/s; both are right from 0 and finite"});
  }
  name_of(call.protocol);  // refuses what is none
  const int p = static_cast<int>(call.protocol);
  const int ranks = call.nodes * call.ranks_per_node;
  const double intra = call.pcie ? pcie[p] : tree ? tree_nvlink[p] : ring_nvlink[p];
  double latency = 0;
  double factor = 1;  // bytes over the bus for each of the vector
  if (tree) {
    latency = tree_base[p] +
              2 * ((call.ranks_per_node - 1) * intra + detail::doublings(call.nodes) * tree_net[p]);
    factor = 2 / 0.92;
  } else {
    const int rounds = all_reduce ? 2 : 1;
    const int between = call.nodes > 1 ? rounds * (call.nodes - 1) : 0;
    latency = ring_base[p] + (rounds * (ranks - 1) - between) * intra + between * ring_net[p];
    factor = rounds * (ranks - 1.0) / ranks;
  }
  const double transfer =
      call.bus_bandwidth > 0 ? call.bytes * factor / (call.bus_bandwidth * derating[p]) : 0;
  return latency * 1e-6 + transfer;
}

}  // namespace tinyscale
