#pragma once
// The parameters of a device in units: those that are gathered, reduced and freed together lie one
// after another in one flat buffer, whose length divides over the devices that share it. Data
// parallelism, ZeRO 1 to 3, FSDP and its hybrid (arXiv 1910.02054, 2304.11277) are what happens
// to the buffers of a unit:
//   gradients: reduce_scatter over `zero`, all_reduce over `replica`; weights: all_gather over
//   `zero`.

#include <algorithm>  // max, min
#include <cstdint>    // int64_t
#include <vector>     // vector

#include "tinyscale/base/list.hpp"
#include "tinyscale/model/transformer.hpp"
#include "tinyscale/parallel/layout_axes.hpp"
#include "tinyscale/parallel/tensor_parallel.hpp"

namespace tinyscale {
namespace detail {

// In which format weights travel and are used. Those of fp8 products go in bf16: half the bytes of
// f32, while norms, biases and embeddings, which no product reads, keep 8 bits where e4m3 has 4.
inline DType weight_format(DType products) {
  return products == DType::fp8_e4m3 ? DType::bf16 : products;
}

// Which segment of the model uses a unit: a layer, or one of these.
constexpr int table_unit = -1, positions_unit = -2, head_unit = -3;

struct FlatUnit {
  int layer = 0;
  List<int> places;                               // in Transformer::parameters
  List<Split> splits;                             // over tensor ranks
  List<Shape> shapes;                             // of this device's part of each
  std::vector<std::int64_t> begins;               // of each in the buffer, and the end of the last
  std::int64_t shards = 1, index = 0, shard = 0;  // devices that share it, this one, its elements
  AxisGroup zero, replica;
  bool copy = false;   // of what all tensor ranks hold and update alike: apart, so that it lies
                       // where theirs does, and a sum of devices adds and rounds in the same order
  bool counts = true;  // in the gradient norm: of equal numbers only one does
  std::vector<std::int64_t> holders;  // pipeline ranks with it: more than one of a tied table

  Tensor values;    // [length]; of ZeRO 3 only while gathered
  Tensor own;       // [shard], float32; where values stay and no format rounds them, a part of them
  Tensor gradient;  // [length], while a backward pass fills it
  Tensor arriving;  // the sum that is under way
  Tensor reduced;   // [shard]
  Tensor moments, squares;  // [shard]
  List<Slot> slots;         // of the weights, each with a place in gradient

  std::int64_t count() const { return begins.back(); }
  // Whether gradients go to their owners after each op, not once a step: where a device keeps a
  // part.
  bool leaves_each_op(Zero stage) const { return stage > Zero::optimizer && !zero.empty(); }
  std::int64_t length() const { return shard * shards; }
};

inline int unit_layer(const Parameter& p) {
  return p.layer >= 0                               ? p.layer
         : p.name == "model.embed_tokens.weight"    ? table_unit
         : p.name == "model.embed_positions.weight" ? positions_unit
                                                    : head_unit;
}

// Stage s of S has layers [s L/S, (s+1) L/S), the first the embedding too, the last the head: each
// a segment, numbered -1, 0 .. L - 1, L.
struct StageMap {
  PipelineSchedule schedule;
  std::int64_t layers = 1;
  bool tied = false;

  StageMap(const Layout& layout, const ModelConfig& config)
      : schedule(layout.schedule.empty()
                     ? one_forward_one_backward(static_cast<int>(layout.pipeline),
                                                static_cast<int>(layout.microbatches))
                     : layout.schedule),
        layers(config.layers),
        tied(config.tied) {}

  int first_layer(int stage) const { return static_cast<int>(stage * layers / schedule.stages); }
  bool is_last(int stage) const { return stage == schedule.stages - 1; }
  int head_segment() const { return static_cast<int>(layers); }
  std::vector<int> segments(int stage) const {
    std::vector<int> all;
    const int end = first_layer(stage + 1) + (is_last(stage) ? 1 : 0);
    for (int segment = stage == 0 ? -1 : first_layer(stage); segment < end; ++segment) {
      all.push_back(segment);
    }
    return all;
  }
  // Whether a segment uses a unit of that layer.
  bool uses(int segment, int unit) const {
    return segment == -1               ? unit == table_unit || unit == positions_unit
           : segment == head_segment() ? unit == head_unit || (unit == table_unit && tied)
                                       : unit == segment;
  }
  int uses_of_stage(int stage, int unit) const {
    int count = 0;
    for (const int segment : segments(stage)) {
      count += uses(segment, unit) ? 1 : 0;
    }
    return count;
  }
  // The pipeline ranks that hold a unit, rising.
  std::vector<std::int64_t> holders(int unit) const {
    std::vector<std::int64_t> ranks;
    for (int rank = 0; rank < schedule.ranks; ++rank) {
      for (std::size_t i = 0; i < schedule.rank_of.size(); ++i) {
        const int stage = static_cast<int>(i) % schedule.stages;
        if (schedule.rank_of[i] == rank && uses_of_stage(stage, unit) > 0 &&
            (ranks.empty() || ranks.back() != rank)) {
          ranks.push_back(rank);
        }
      }
    }
    return ranks;
  }
};

// The shape of device `index`'s part, of `devices` that cut it.
inline Shape part_shape(const Shape& whole, Split split, std::int64_t index, std::int64_t devices) {
  Shape part = whole;
  const int dim = split == Split::rows ? 0 : split == Split::columns ? 1 : -1;
  if (dim >= 0) {
    part.set(dim,
             shard_begin(whole[dim], index + 1, devices) - shard_begin(whole[dim], index, devices));
  }
  return part;
}

// How a layout cuts a parameter over tensor ranks.
inline Split split_of(const Parameter& p, const Layout& layout) {
  return layout.whole_experts && p.expert >= 0 ? Split::expert : p.split;
}

// The units of one device, without their numbers: a pure function of model, layout and place.
inline List<FlatUnit> plan_units(const Transformer& whole, const Layout& layout,
                                 const LayoutAxes& axes, const MeshPoint& at) {
  const ModelConfig& c = whole.config;
  const StageMap stages(layout, c);
  const std::int64_t mine = at.index(axes.pipeline);
  const std::int64_t tensor = at.index(axes.tensor), tensors = at.size(axes.tensor);
  const std::int64_t experts = c.experts / at.size(axes.dealt);
  List<FlatUnit> units;
  for (std::size_t place = 0; place < whole.parameters.size(); ++place) {
    const Parameter& p = whole.parameters[place];
    const int layer = unit_layer(p);
    FlatUnit unit;
    unit.holders = stages.holders(layer);
    const std::int64_t expert = p.expert;
    const bool here =
        std::find(unit.holders.begin(), unit.holders.end(), mine) != unit.holders.end();
    if (!here || (expert >= 0 && expert / experts != at.index(axes.dealt))) {
      continue;
    }
    unit.layer = layer;
    unit.zero = expert >= 0 ? axes.expert_zero : axes.zero;
    unit.replica = expert >= 0 ? axes.expert_replica : axes.replica;
    const Split split = split_of(p, layout);
    if (split == Split::whole && tensors > 1) {
      if (partial_over_tensor(p, c, layout.sequence_parallel)) {
        unit.replica = joined(unit.replica, axes.tensor);
      } else {
        unit.copy = true;
      }
    }
    unit.counts =
        !(unit.copy && tensor > 0) && unit.holders[0] == mine && at.index(unit.replica) == 0;
    std::size_t u = 0;
    while (u < units.size() && !(units[u].layer == layer && units[u].zero == unit.zero &&
                                 units[u].replica == unit.replica && units[u].copy == unit.copy)) {
      ++u;
    }
    if (u == units.size()) {
      unit.begins.push_back(0);
      unit.shards = at.size(unit.zero);
      unit.index = at.index(unit.zero);
      units.push_back(unit);
    }
    FlatUnit& into = units[u];
    into.places.push_back(static_cast<int>(place));
    into.splits.push_back(split);
    into.shapes.push_back(part_shape(p.value.shape(), split, tensor, tensors));
    into.begins.push_back(into.begins.back() + into.shapes.back().count());
    into.shard = (into.count() + into.shards - 1) / into.shards;
  }
  return units;
}

// A stretch of a flat buffer that shares its numbers.
inline Tensor stretch_of(const Tensor& flat, std::int64_t first, const Shape& shape) {
  return Tensor(shape, slice_storage(flat.storage(), first, shape.count()));
}

// Puts this device's parts of whole tensors in a flat buffer; those not there are zero.
inline void fill_flat(const FlatUnit& unit, const List<Tensor>& whole, std::int64_t tensor,
                      std::int64_t tensors, float* to) {
  std::fill(to, to + unit.length(), 0.0f);
  for (std::size_t i = 0; i < unit.places.size(); ++i) {
    const std::size_t place = static_cast<std::size_t>(unit.places[i]);
    if (place < whole.size() && whole[place].defined()) {
      const Tensor part = contiguous(tensor_shard(
          whole[place], unit.splits[i], static_cast<int>(tensor), static_cast<int>(tensors)));
      std::copy(part.data(), part.data() + part.count(), to + unit.begins[i]);
    }
  }
}

}  // namespace detail
}  // namespace tinyscale
