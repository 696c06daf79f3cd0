#pragma once
// What the links of a group of chips take for a byte, by where the group lies on the machine.
//   gather V bytes to each of n        V (n - 1) / n / W;  W: sum of a torus's axes, a ring both
//   ways in a domain of n and across m      max(V (n - 1) / n / W_in, V (m - 1) / (m n) / W_out)
//   exchange S bytes of each           switch S (n - 1) / n / W, ring S n / 8 / W, line S n / 4 / W
// Scattering sums takes as long as gathering, an all_reduce twice that. Sources: scaling book,
// chapters 3 and 12; placement: mesh/mesh_axis.hpp, the axes of a layout in its order.

#include <algorithm>  // max, min
#include <cstdint>    // std::int64_t

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/hardware/network.hpp"
#include "tinyscale/mesh/mesh_axis.hpp"
#include "tinyscale/parallel/layout.hpp"

namespace tinyscale {

// Seconds a byte at the published rates: inside a domain (slice, node) and between domains.
struct GroupLinks {
  double size = 1;
  double gather_inner = 0, gather_outer = 0;      // of the gathered array
  double exchange_inner = 0, exchange_outer = 0;  // of what a chip holds and deals out
  double hops = 0, latency = 0;                   // of one collective by a ring; seconds a hop

  // Of an array of so many bytes, links reaching these shares of their rates.
  double gather(double bytes, double inner = 1, double outer = 1) const {
    return bytes * std::max(gather_inner / inner, gather_outer / outer);
  }
  double exchange(double bytes, double inner = 1, double outer = 1) const {
    return bytes * std::max(exchange_inner / inner, exchange_outer / outer);
  }
  bool leaves_domain() const { return gather_outer > 0; }
  // Than the links of as many chips elsewhere, for any message.
  bool no_slower(const GroupLinks& other) const {
    return gather_inner <= other.gather_inner && gather_outer <= other.gather_outer &&
           exchange_inner <= other.exchange_inner && exchange_outer <= other.exchange_outer;
  }
};

namespace detail {

inline void add_neighbours(const AxisPart& part, double& rate, GroupLinks& links) {
  const bool ring = part.kind == AxisKind::ring;
  const double one_way = part.bandwidth / part.spacing;
  rate += (ring ? 2 : 1) * one_way;
  links.exchange_inner = std::max(links.exchange_inner, part.size / (ring ? 8.0 : 4.0) / one_way);
  links.hops += ring ? part.size / 2 : part.size - 1;
}

}  // namespace detail

// Of `size` chips, `stride` apart in the machine's row-major order.
inline GroupLinks group_links(const Machine& machine, std::int64_t stride, std::int64_t size) {
  if (stride < 1 || size < 1 || size > machine.chips() / stride) {
    detail::fail({"group_links: ", size, " chips, ", stride, " apart, on ", machine.name, " of ",
                  machine.chips(), "; at least 1 each, and together no more than the chips"});
  }
  GroupLinks links;
  links.size = static_cast<double>(size);
  if (size <= 1) {
    return links;
  }
  const int first_inner = machine.dims.size() - detail::inner_dims(machine.chip, machine.dims);
  double inner = 1, outer = 1, inner_rate = 0, outer_rate = 0;
  for (const AxisPart& part : detail::parts_of_stretch(machine, stride, static_cast<int>(size))) {
    const double n = part.size;
    links.latency = std::max(links.latency, part.latency);
    const bool inside = part.dim < 0 ? first_inner == 0 : part.dim >= first_inner;
    if (!inside) {
      outer *= n;
      outer_rate = outer_rate > 0 ? std::min(outer_rate, part.bandwidth) : part.bandwidth;
      links.hops += n - 1;
      continue;
    }
    inner *= n;
    if (part.kind == AxisKind::line || part.kind == AxisKind::ring) {
      detail::add_neighbours(part, inner_rate, links);
    } else {
      const double rate = part.bandwidth * (part.kind == AxisKind::full ? n - 1 : 1);
      inner_rate += rate;
      links.exchange_inner = std::max(links.exchange_inner, (n - 1) / n / rate);
      links.hops += n - 1;
    }
  }
  if (inner > 1) {
    links.gather_inner = (inner - 1) / inner / inner_rate;
  }
  if (outer > 1) {
    links.gather_outer = (outer - 1) / outer / inner / outer_rate;
    links.exchange_outer = (outer - 1) / outer / outer_rate;
  }
  return links;
}

namespace detail {

// Chips of a slice, a node or a box.
inline std::int64_t domain_of(const Machine& machine) {
  std::int64_t chips = 1;
  for (int d = machine.dims.size() - inner_dims(machine.chip, machine.dims);
       d < machine.dims.size(); ++d) {
    chips *= machine.dims[d];
  }
  return chips;
}

// The links that each kind of message of a layout travels on.
struct LayoutLinks {
  GroupLinks tensor, context, batch, shard, replica;
  GroupLinks expert_shard, expert_replica;  // of those that hold the same experts
  GroupLinks experts;                       // among which tokens are dealt out, in a domain
  double expert_domain = 1;                 // chips of that
  bool stages_leave = false;                // from stage to stage through the outer network

  LayoutLinks() = default;
  LayoutLinks(const Machine& machine, const Layout& layout) {
    const std::int64_t inner = layout.tensor * layout.context;
    tensor = group_links(machine, 1, layout.tensor);
    context = group_links(machine, layout.tensor, layout.context);
    batch = group_links(machine, layout.tensor, layout.batch_devices());
    const std::int64_t shards = layout.shards();
    shard = group_links(machine, layout.tensor, shards);
    replica = group_links(machine, layout.tensor * shards, layout.batch_devices() / shards);
    const std::int64_t holders = layout.batch_devices() / layout.expert;
    const std::int64_t fewer = layout.expert_shards();
    expert_shard = group_links(machine, layout.tensor * layout.expert, fewer);
    expert_replica = group_links(machine, layout.tensor * layout.expert * fewer, holders / fewer);
    const std::int64_t apart = layout.tensor / layout.routing_ranks();
    const std::int64_t domain = std::max<std::int64_t>(1, domain_of(machine) / apart);
    const std::int64_t group = layout.expert_devices();
    const std::int64_t close_by = machine.chip.kind == "tpu" ? group : std::min(domain, group);
    expert_domain = static_cast<double>(close_by);
    experts = group_links(machine, apart, close_by);
    stages_leave =
        inner * layout.data >= domain_of(machine) && machine.chips() > domain_of(machine);
  }

  // Than the same layout's on the machine's dimensions in another order.
  bool no_slower(const LayoutLinks& other) const {
    return tensor.no_slower(other.tensor) && context.no_slower(other.context) &&
           shard.no_slower(other.shard) && replica.no_slower(other.replica) &&
           expert_shard.no_slower(other.expert_shard) &&
           expert_replica.no_slower(other.expert_replica) && experts.no_slower(other.experts);
  }
};

}  // namespace detail
}  // namespace tinyscale
