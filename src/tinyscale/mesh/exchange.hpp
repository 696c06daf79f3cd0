#pragma once
// What one collective does to numbers: the blocks that each device gives and gets, where they lie
// in its tensors, and how two numbers become one.

#include <algorithm>  // min
#include <cstddef>
#include <cstdint>
#include <cstring>  // memcpy
#include <vector>

#include "tinyscale/base/error.hpp"  // is_nan
#include "tinyscale/base/format.hpp"
#include "tinyscale/compute/streams.hpp"
#include "tinyscale/mesh/chunk_paths.hpp"
#include "tinyscale/mesh/collective_spec.hpp"

namespace tinyscale {
namespace detail {

// Where a device's blocks lie in its tensor: runs of `run` elements, `pitch` from one to the next,
// block b beginning b runs in. A block of one run is contiguous.
struct BlockMap {
  std::int64_t run = 0, pitch = 0;
};

// One device's tensors; null where it has none.
struct DeviceBuffers {
  const float* in = nullptr;
  float* out = nullptr;
};

// What one collective does to numbers.
struct Exchange {
  Collective what = Collective::all_gather;
  Reduce how = Reduce::sum;
  DType format = DType::f32;
  int devices = 1;
  int root = 0;
  ChunkCut cut;
  BlockMap in, out;
  std::vector<std::int64_t> landing;  // ragged: where each block begins at its receiver
  ChunkPaths paths;
};

// A NaN on any device is the result: max and min do not hide it.
inline void combine(Reduce how, std::int64_t n, const float* own, const float* part, float* into) {
  if (how == Reduce::sum || how == Reduce::mean) {
    const float* const both[] = {own, part};
    kernels::add_all(n, both, 2, into);
    return;
  }
  for (std::int64_t i = 0; i < n; ++i) {
    const bool takes = how == Reduce::max ? own[i] < part[i] : part[i] < own[i];
    into[i] = takes || is_nan(part[i]) ? part[i] : own[i];
  }
}

// Whether results are rounded on all devices, also on one that was not sent them: all have the same
// where all have everything, and a maximum is one of the numbers as they were sent.
inline bool rounds_result(const Exchange& e) {
  return e.format != DType::f32 && e.devices > 1 &&
         (e.what == Collective::all_reduce || e.what == Collective::all_gather ||
          e.what == Collective::broadcast || e.how == Reduce::max || e.how == Reduce::min);
}
inline bool settles(const Exchange& e) { return e.how == Reduce::mean || rounds_result(e); }

// Read and written by all devices together.
inline std::int64_t moved_elements(const Exchange& e) {
  const bool gathers = e.what == Collective::all_gather || e.what == Collective::broadcast;
  const bool sums = e.what == Collective::reduce_scatter || e.what == Collective::reduce;
  const bool both = e.what == Collective::all_reduce;
  return e.cut.begin(e.cut.chunks()) *
         ((sums || both ? e.devices : 1) + (gathers || both ? e.devices : 1));
}

// What n numbers of a device come to in the end.
inline void settle(const Exchange& e, std::int64_t n, const float* from, float* into) {
  const float parts = e.how == Reduce::mean ? static_cast<float>(e.devices) : 1.0f;
  if (!rounds_result(e)) {
    kernels::add_to_all(n, &from, 1, &into, 1, parts);
    return;
  }
  for (std::int64_t i = 0; i < n; ++i) {
    into[i] = round_to(from[i], e.format) / parts;
  }
}

// The block of a device's input, or of its result, that block b of the vector is; -1: not there.
inline int input_block(const Exchange& e, int device, int b) {
  switch (e.what) {
    case Collective::all_gather:
    case Collective::gather:
    case Collective::permute: return b == device ? 0 : -1;
    case Collective::all_to_all: return b / e.devices == device ? b % e.devices : -1;
    case Collective::broadcast:
    case Collective::scatter: return device == e.root ? b : -1;
    default: return b;
  }
}

inline int output_block(const Exchange& e, int device, int b) {
  switch (e.what) {
    case Collective::reduce_scatter:
    case Collective::scatter: return b == device ? 0 : -1;
    case Collective::permute: return modulo(b + e.root, e.devices) == device ? 0 : -1;
    case Collective::all_to_all: return b % e.devices == device ? b / e.devices : -1;
    case Collective::reduce:
    case Collective::gather: return device == e.root ? b : -1;
    default: return b;
  }
}

// Elements `first` to `first + count` of a block, in a tensor.
struct Stretch {
  std::int64_t begin = 0;  // of the block, in the tensor
  std::int64_t first = 0, count = 0;
  BlockMap map;

  bool whole() const { return first % map.run + count <= map.run; }
  std::int64_t place(std::int64_t element) const {
    return begin + element / map.run * map.pitch + element % map.run;
  }
  void load(const float* from, float* to) const {
    for (std::int64_t i = first; i < first + count;) {
      const std::int64_t n = std::min(map.run - i % map.run, first + count - i);
      std::memcpy(to + (i - first), from + place(i), static_cast<std::size_t>(n) * sizeof(float));
      i += n;
    }
  }
  void store(const float* from, float* to) const {
    for (std::int64_t i = first; i < first + count;) {
      const std::int64_t n = std::min(map.run - i % map.run, first + count - i);
      std::memcpy(to + place(i), from + (i - first), static_cast<std::size_t>(n) * sizeof(float));
      i += n;
    }
  }
};

// Where a block begins when those before it are of different sizes: rows sent to each device.
inline std::int64_t ragged_begin(const Exchange& e, int device, int b, bool input) {
  const std::size_t block = static_cast<std::size_t>(b);
  const std::size_t first = static_cast<std::size_t>(device * e.devices);
  return input ? e.cut.ragged[block] - e.cut.ragged[first] : e.landing[block];
}

}  // namespace detail
}  // namespace tinyscale
