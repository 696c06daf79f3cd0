#pragma once
// One device's part of the model in training: its units in memory, and what is sent to gather their
// weights, to add up their gradients and to update them. Collectives go in place, as NCCL's do, and
// are named after what they carry.

#include <cstdint>  // int64_t

#include "tinyscale/base/list.hpp"
#include "tinyscale/compute/adamw.hpp"
#include "tinyscale/compute/sums.hpp"
#include "tinyscale/mesh/device.hpp"
#include "tinyscale/model/optimizer.hpp"
#include "tinyscale/parallel/flat_parameters.hpp"
#include "tinyscale/tensor/backward.hpp"
#include "tinyscale/tensor/op_record.hpp"

namespace tinyscale {
namespace detail {

// What training has beside the weights, whole, by place; undefined: zero.
struct TrainState {
  List<Tensor> moments, squares;
  std::int64_t steps = 0;
  double loss_scale = 0;        // 0: as the options say
  std::int64_t good_steps = 0;  // in a row at this loss scale
};

class DeviceModel {
 public:
  Transformer model;  // of the parameters this device's part, of the others nothing
  List<FlatUnit> units;
  Shared<MemoryMeter> meter;

  DeviceModel(const Transformer& whole, const Layout& layout, const LayoutAxes& axes,
              Device& device, const TrainState& state, DType format)
      : model(whole),
        meter(context().memory),
        layout_(layout),
        axes_(axes),
        at_(axes.mesh, device.rank()),
        format_(weight_format(format)) {
    units = plan_units(whole, layout, axes, at_);
    List<Tensor> values;
    for (Parameter& p : model.parameters) {
      values.push_back(p.value.detach());
      p.value = Tensor();
    }
    gathering_.resize(units.size());
    reducing_.resize(units.size());
    for (FlatUnit& unit : units) {
      allocate(unit, values, state);
    }
  }

  // ---- Weights ----

  bool gathers(const FlatUnit& unit) const {
    return layout_.zero == Zero::parameters && unit.shards > 1;
  }
  // The weights of a unit are wanted soon.
  void start_gather(Device& device, std::size_t u) {
    FlatUnit& unit = units[u];
    if (gathers(unit) && !unit.values.defined()) {
      const MemoryScope scope(MemoryKind::buffer);
      unit.values = Tensor(Shape{unit.length()});
      gathering_[u] = gather(device, unit);
    }
  }
  // They are wanted now.
  void finish_gather(Device& device, std::size_t u) {
    FlatUnit& unit = units[u];
    if (gathers(unit)) {
      start_gather(device, u);
      if (!model.parameters[place(unit, 0)].value.defined()) {
        gathering_[u].wait();
        show_weights(unit);
      }
    }
  }
  // Nobody wants them until they are gathered again; a graph that needs them will find those.
  void release(std::size_t u) {
    FlatUnit& unit = units[u];
    if (gathers(unit)) {
      for (std::size_t i = 0; i < unit.places.size(); ++i) {
        model.parameters[place(unit, i)].value = Tensor();
        unit.slots[i]->value.reset();
      }
      unit.values = Tensor();
    }
  }

  // ---- Gradients ----

  // A place for the gradients of a unit, where nothing is written yet.
  void open_gradient(std::size_t u) {
    FlatUnit& unit = units[u];
    if (unit.gradient.defined()) {
      return;
    }
    finish_reduce(u);  // it may still be under way with what came before
    unit.gradient = Tensor(Shape{unit.length()}, MemoryKind::gradient);
    std::fill(unit.gradient.data() + unit.count(), unit.gradient.data() + unit.length(), 0.0f);
    for (std::size_t i = 0; i < unit.slots.size(); ++i) {
      unit.slots[i]->grad =
          slice_storage(unit.gradient.storage(), unit.begins[i], unit.shapes[i].count());
      unit.slots[i]->fresh = true;
    }
  }

  // All that this device will add is there: on its way to those that need the sum.
  // `last`: in this step. Then what the replicas have is added too, while the next unit is at it.
  void start_reduce(Device& device, std::size_t u, bool last) {
    FlatUnit& unit = units[u];
    if (!unit.gradient.defined()) {
      open_gradient(u);  // nothing used it
    }
    for (const Slot& slot : unit.slots) {
      flush_fresh(slot);
      slot->grad.reset();
    }
    if (!unit.zero.empty()) {
      const MemoryScope scope(MemoryKind::gradient);
      const bool apart = layout_.zero != Zero::optimizer;  // the whole is let go afterwards
      const Tensor into = apart ? Tensor(Shape{unit.shard})
                                : stretch_of(unit.gradient, unit.index * unit.shard, {unit.shard});
      unit.arriving = into;
      reducing_[u] = start_reduce_scatter(reducing(device, unit), unit.gradient, Axes(unit.zero), 0,
                                          Reduce::sum, into);
    } else {
      unit.arriving = unit.gradient;
      if (!unit.replica.empty()) {
        reducing_[u] = start_all_reduce(reducing(device, unit), unit.gradient, Axes(unit.replica),
                                        Reduce::sum, unit.gradient);
      }
    }
    if (unit.leaves_each_op(layout_.zero)) {
      unit.gradient = Tensor();  // what is under way holds it
      in_flight_.push_back(u);
      if (in_flight_.size() > 2) {  // so that few wholes are there at once
        finish_reduce(in_flight_[0]);
      }
    }
    if (last && is_hybrid(unit)) {
      sum_replicas(device);
      before_ = static_cast<int>(u);
    }
  }

  // The sum that is under way has come.
  void finish_reduce(std::size_t u) {
    FlatUnit& unit = units[u];
    if (!unit.arriving.defined()) {
      return;
    }
    if (busy(unit)) {
      reducing_[u].wait();
    }
    const Tensor came = unit.arriving;
    unit.arriving = Tensor();
    unit.gradient = layout_.zero == Zero::optimizer ? unit.gradient : Tensor();
    if (unit.reduced.defined()) {
      kernels::add(came.count(), unit.reduced.data(), came.data(), unit.reduced.data());
    } else {
      unit.reduced = came;
    }
    List<std::size_t> left;
    for (const std::size_t other : in_flight_) {
      if (other != u) {
        left.push_back(other);
      }
    }
    in_flight_ = left;
  }

  // After the last backward pass: every unit has its sum over all devices.
  void finish_gradients(Device& device) {
    sum_replicas(device);
    for (std::size_t u = 0; u < units.size(); ++u) {
      finish_reduce(u);
      if (is_hybrid(units[u])) {
        reducing_[u].wait();
      }
    }
    for (FlatUnit& unit : units) {
      if (unit.holders.size() > 1) {
        add_holders(device, unit);
      }
    }
  }

  // Of the numbers that no other device counts.
  double sum_of_squares() const {
    double total = 0;
    for (const FlatUnit& unit : units) {
      total += unit.counts ? kernels::sum_of_squares(unit.reduced.count(), unit.reduced.data()) : 0;
    }
    return total;
  }

  // ---- The update ----

  void update(const kernels::AdamWStep& base) {
    for (FlatUnit& unit : units) {
      const OpScope scope;
      const std::int64_t begin = unit.index * unit.shard, end = begin + unit.shard;
      for (std::size_t i = 0; i < unit.places.size(); ++i) {
        const std::int64_t first = std::max(begin, unit.begins[i]);
        const std::int64_t last = std::min(end, unit.begins[i + 1]);
        if (first < last) {
          kernels::AdamWStep step = base;
          step.weight_decay = unit.shapes[i].size() >= 2 ? base.weight_decay : 0.0f;
          const std::int64_t at = first - begin;
          kernels::adamw(last - first, step, unit.reduced.data() + at, unit.own.data() + at,
                         unit.moments.data() + at, unit.squares.data() + at);
        }
      }
      const std::int64_t n = unit.shard;
      scope.done_priced("adamw", "adamw", Shape{n}, &VectorCost::forward, {n, n, n, n}, {n, n, n});
    }
  }

  // The weights that others updated, if they did; the gradients are let go.
  void end_step(Device& device, bool updated) {
    for (std::size_t u = 0; u < units.size(); ++u) {
      FlatUnit& unit = units[u];
      unit.reduced = Tensor();
      unit.gradient = Tensor();
      if (updated && !unit.zero.empty() && !gathers(unit)) {
        gathering_[u] = gather(device, unit);
      }
    }
    for (std::size_t u = 0; u < units.size(); ++u) {
      if (updated && !units[u].zero.empty() && !gathers(units[u])) {
        gathering_[u].wait();
      }
    }
  }

  // For the host to put together: what this device has of weights and moments.
  void keep(Device& device) const {
    for (std::size_t u = 0; u < units.size(); ++u) {
      device.keep_uncopied(cat({"weights ", u}), units[u].own);
      device.keep_uncopied(cat({"moments ", u}), units[u].moments);
      device.keep(cat({"squares ", u}), units[u].squares);
    }
  }

  const MeshPoint& at() const { return at_; }

 private:
  static std::size_t place(const FlatUnit& unit, std::size_t i) {
    return static_cast<std::size_t>(unit.places[i]);
  }
  static bool busy(const FlatUnit& unit) { return !unit.zero.empty() || !unit.replica.empty(); }

  Calling calling(Device& device, const char* what, int number, DType format) const {
    CollectiveOptions options;
    options.format = format;
    return {device.endpoint(), options, SourceLine{what, number}};
  }
  Calling reducing(Device& device, const FlatUnit& unit) const {
    return calling(device, "gradients of layer", unit.layer, layout_.gradient_format);
  }
  Pending gather(Device& device, FlatUnit& unit) const {
    return start_all_gather(calling(device, "weights of layer", unit.layer, format_), unit.own,
                            Axes(unit.zero), 0, unit.values);
  }

  void allocate(FlatUnit& unit, const List<Tensor>& values, const TrainState& state) {
    const std::int64_t tensor = at_.index(axes_.tensor), tensors = at_.size(axes_.tensor);
    const auto flat = [&](const List<Tensor>& from, MemoryKind kind) {
      Tensor all(Shape{unit.length()}, kind);
      fill_flat(unit, from, tensor, tensors, all.data());
      return all;
    };
    const auto part = [&](const Tensor& all, MemoryKind kind) {
      const MemoryScope scope(kind);
      return stretch_of(all, unit.index * unit.shard, {unit.shard}).copied();
    };
    unit.moments = part(flat(state.moments, MemoryKind::buffer), MemoryKind::optimizer);
    unit.squares = part(flat(state.squares, MemoryKind::buffer), MemoryKind::optimizer);
    for (const Shape& shape : unit.shapes) {
      const Slot slot = Slot::make();
      slot->shape = shape;
      slot->kind = MemoryKind::gradient;
      slot->revocable = gathers(unit);
      unit.slots.push_back(slot);
    }
    if (gathers(unit)) {
      unit.own = part(flat(values, MemoryKind::buffer), MemoryKind::parameter);
      return;
    }
    unit.values = flat(values, MemoryKind::parameter);
    // What is rounded on its way to the others is kept in float32 by the one that updates it.
    const bool apart = format_ != DType::f32 && unit.shards > 1;
    unit.own = apart ? part(unit.values, MemoryKind::optimizer)
                     : stretch_of(unit.values, unit.index * unit.shard, {unit.shard});
    for (std::int64_t i = 0; apart && i < unit.length(); ++i) {
      unit.values.data()[i] = round_to(unit.values.data()[i], format_);
    }
    show_weights(unit);
  }

  // The model's parameters of a unit, as they lie in its values.
  void show_weights(FlatUnit& unit) {
    for (std::size_t i = 0; i < unit.places.size(); ++i) {
      Tensor weight = stretch_of(unit.values, unit.begins[i], unit.shapes[i]);
      unit.slots[i]->value = unit.slots[i]->revocable ? weight.storage() : Shared<Storage>();
      weight.set_slot(unit.slots[i]);
      model.parameters[place(unit, i)].value = weight;
    }
  }

  static bool is_hybrid(const FlatUnit& unit) {
    return !unit.zero.empty() && !unit.replica.empty();
  }
  // Of the unit that was reduced before.
  void sum_replicas(Device& device) {
    if (before_ >= 0) {
      const auto u = static_cast<std::size_t>(before_);
      before_ = -1;
      finish_reduce(u);
      FlatUnit& unit = units[u];
      reducing_[u] = start_all_reduce(reducing(device, unit), unit.reduced, Axes(unit.replica),
                                      Reduce::sum, unit.reduced);
    }
  }

  // A table that several pipeline ranks hold: each adds what the others have, in their order.
  void add_holders(Device& device, FlatUnit& unit) const {
    const std::int64_t mine = at_.index(axes_.pipeline);
    for (const std::int64_t other : unit.holders) {
      if (other != mine) {
        device.send(unit.reduced, static_cast<int>(at_.rank_at(axes_.pipeline, other)),
                    SourceLine{"gradients of layer", unit.layer});
      }
    }
    Tensor sum;
    for (const std::int64_t other : unit.holders) {
      const Tensor part = other == mine
                              ? unit.reduced
                              : device.recv(static_cast<int>(at_.rank_at(axes_.pipeline, other)),
                                            SourceLine{"gradients of layer", unit.layer});
      sum = sum.defined() ? add(sum, part) : part;
    }
    std::copy(sum.data(), sum.data() + sum.count(), unit.reduced.data());
  }

  Layout layout_;
  LayoutAxes axes_;
  MeshPoint at_;
  DType format_;                        // in which weights travel
  List<Pending> gathering_, reducing_;  // of each unit
  int before_ = -1;                     // a unit whose replicas are not yet asked; -1: none
  List<std::size_t> in_flight_;         // reductions of ZeRO 2 and 3, the oldest first
};

}  // namespace detail
}  // namespace tinyscale
