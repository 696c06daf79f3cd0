#pragma once
// What a collective on one mesh axis costs, in closed form: steps, bytes that a device sends, time.
// A vector of V bytes over N devices is N chunks; each step moves a chunk to a neighbour in
// alpha + (V / N) / W: all_gather and reduce_scatter take N - 1 steps, all_reduce twice that.
// Chan, Heimlich, Purkayastha, van de Geijn 2007 (ring, pipelined chain); tests hold the counted
// bytes and steps of a run against these exactly.

#include <algorithm>  // max, min
#include <cstddef>
#include <cstdint>

#include "tinyscale/base/error.hpp"

namespace tinyscale {

// How the devices of an axis pass chunks on: between the ends of a line, around a ring one way, or
// around a ring both ways at once (about half the steps).
enum class AxisKind { line, ring, ring_both_ways };

inline const char* name_of(AxisKind kind) {
  switch (kind) {
    case AxisKind::line: return "line";
    case AxisKind::ring: return "ring";
    case AxisKind::ring_both_ways: return "ring both ways";
  }
  return "?";
}

enum class Collective { all_gather, reduce_scatter, all_reduce, broadcast, permute };

// One collective on one axis. `elements` are those of the whole vector: what all_gather makes, what
// reduce_scatter takes, what the others move. Numbers are float32.
struct CollectiveStage {
  Collective what = Collective::all_gather;
  AxisKind kind = AxisKind::ring;
  int devices = 1;
  std::int64_t elements = 0;
  int offset = 0;  // broadcast: the root's index; permute: the shift
};

// One link, one way.
struct LinkSpeed {
  double latency = 0;     // seconds a hop
  double bandwidth = 1;   // bytes/s
  bool switched = false;  // any two devices of the axis are one hop apart
};

namespace detail {

constexpr double element_bytes = 4;

// Chunk c of n covers elements chunk_begin(c) to chunk_begin(c + 1); the first are the larger ones.
inline std::int64_t chunk_begin(std::int64_t elements, int n, int c) {
  return elements / n * c + std::min<std::int64_t>(c, elements % n);
}

inline std::int64_t chunk_size(std::int64_t elements, int n, int c) {
  return elements / n + (c < elements % n ? 1 : 0);
}

inline int modulo(std::int64_t value, int n) { return static_cast<int>((value % n + n) % n); }

// How far the chunk of device `c` travels each way; together n - 1.
struct Reach {
  int right = 0, left = 0;
};

inline Reach reach(AxisKind kind, int n, int c) {
  switch (kind) {
    case AxisKind::line: return {n - 1 - c, c};
    case AxisKind::ring: return {n - 1, 0};
    case AxisKind::ring_both_ways: return {n / 2, (n - 1) / 2};
  }
  return {};
}

inline int axis_steps(AxisKind kind, int n) {
  return kind == AxisKind::ring_both_ways ? n / 2 : n - 1;
}

inline void check_stage(const char* function, const CollectiveStage& stage) {
  if (stage.devices < 1 || stage.elements < 0) {
    fail({function, ": ", stage.elements, " elements over ", stage.devices,
          " devices; needs 0 or more elements and at least 1 device"});
  }
  if (stage.what == Collective::broadcast && (stage.offset < 0 || stage.offset >= stage.devices)) {
    fail({function, ": root ", stage.offset, " of ", stage.devices, " devices; the root is 0 to ",
          stage.devices - 1});
  }
}

// A broadcast is a chain of `hops` links through which as many chunks stream.
inline int broadcast_hops(const CollectiveStage& stage) {
  const Reach span = reach(stage.kind, stage.devices, stage.offset);
  return std::max(span.right, span.left);
}

inline double gather_elements_sent(const CollectiveStage& stage, int index) {
  std::int64_t sent = 0;
  for (int c = 0; c < stage.devices; ++c) {
    const Reach span = reach(stage.kind, stage.devices, c);
    const std::int64_t size = chunk_size(stage.elements, stage.devices, c);
    sent += modulo(index - c, stage.devices) < span.right ? size : 0;
    sent += modulo(c - index, stage.devices) < span.left ? size : 0;
  }
  return static_cast<double>(sent);
}

// Every device passes on its partial sum of each chunk but its own, once.
inline double scatter_elements_sent(const CollectiveStage& stage, int index) {
  return static_cast<double>(stage.elements - chunk_size(stage.elements, stage.devices, index));
}

inline double broadcast_elements_sent(const CollectiveStage& stage, int index) {
  const Reach span = reach(stage.kind, stage.devices, stage.offset);
  const int right = modulo(index - stage.offset, stage.devices) < span.right ? 1 : 0;
  const int left = modulo(stage.offset - index, stage.devices) < span.left ? 1 : 0;
  return static_cast<double>(stage.elements) * (right + left);
}

}  // namespace detail

// Steps of a collective: how often a device waits for a neighbour, one after another.
inline std::int64_t collective_steps(const CollectiveStage& stage) {
  detail::check_stage("collective_steps", stage);
  const int n = stage.devices;
  switch (stage.what) {
    case Collective::all_gather:
    case Collective::reduce_scatter: return detail::axis_steps(stage.kind, n);
    case Collective::all_reduce: return std::int64_t{2} * detail::axis_steps(stage.kind, n);
    case Collective::broadcast: return n == 1 ? 0 : 2 * detail::broadcast_hops(stage) - 1;
    case Collective::permute: return detail::modulo(stage.offset, n) == 0 ? 0 : 1;
  }
  return 0;
}

// Bytes that the device at `index` of the axis sends.
inline double collective_bytes(const CollectiveStage& stage, int index) {
  detail::check_stage("collective_bytes", stage);
  if (index < 0 || index >= stage.devices) {
    detail::fail({"collective_bytes: index ", index, " of ", stage.devices,
                  " devices; indices are 0 to ", stage.devices - 1});
  }
  double elements = 0;
  switch (stage.what) {
    case Collective::all_gather: elements = detail::gather_elements_sent(stage, index); break;
    case Collective::reduce_scatter: elements = detail::scatter_elements_sent(stage, index); break;
    case Collective::all_reduce:
      elements =
          detail::gather_elements_sent(stage, index) + detail::scatter_elements_sent(stage, index);
      break;
    case Collective::broadcast: elements = detail::broadcast_elements_sent(stage, index); break;
    case Collective::permute:
      elements = static_cast<double>(collective_steps(stage) * stage.elements);
      break;
  }
  return elements * detail::element_bytes;
}

// Links that the data crosses one after another: the number of latencies in the time.
inline std::int64_t collective_hops(const CollectiveStage& stage) {
  if (stage.what != Collective::permute || collective_steps(stage) == 0) {
    return collective_steps(stage);
  }
  const int shift = detail::modulo(stage.offset, stage.devices);
  const int back = stage.devices - shift;
  return stage.kind == AxisKind::line ? std::max(shift, back) : std::min(shift, back);
}

// Time when every device of the axis begins at once and owns its links:
// hops alpha + (what the busiest link carries, the largest chunk of each step) / W.
inline double collective_seconds(const CollectiveStage& stage, const LinkSpeed& link) {
  detail::check_stage("collective_seconds", stage);
  const int n = stage.devices;
  const double steps = static_cast<double>(collective_steps(stage));
  if (stage.what == Collective::permute && link.switched) {
    const double bytes = static_cast<double>(stage.elements) * detail::element_bytes;
    return steps * (link.latency + bytes / link.bandwidth);
  }
  const double latency = static_cast<double>(collective_hops(stage)) * link.latency;
  double elements = 0;  // that pass through the busiest link
  switch (stage.what) {
    case Collective::all_gather:
    case Collective::reduce_scatter:
    case Collective::all_reduce:
      elements = steps * static_cast<double>(detail::chunk_size(stage.elements, n, 0));
      break;
    case Collective::broadcast: {
      const int hops = detail::broadcast_hops(stage);
      if (hops > 0) {
        elements = static_cast<double>(stage.elements) +
                   (hops - 1.0) * static_cast<double>(detail::chunk_size(stage.elements, hops, 0));
      }
      break;
    }
    case Collective::permute: {
      const int shift = detail::modulo(stage.offset, n);
      elements = std::min(shift, n - shift) * static_cast<double>(stage.elements);
      break;
    }
  }
  return latency + elements * detail::element_bytes / link.bandwidth;
}

}  // namespace tinyscale
