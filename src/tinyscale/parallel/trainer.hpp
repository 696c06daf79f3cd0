#pragma once
// Who runs the steps of a training: one device by itself, or a mesh whose devices each hold their
// part; and the whole model put together from the parts.

#include <cstdint>  // int64_t
#include <vector>   // vector

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/mesh/mesh.hpp"
#include "tinyscale/model/read_text.hpp"
#include "tinyscale/parallel/check_memory.hpp"
#include "tinyscale/parallel/device_step.hpp"

namespace tinyscale {

struct TrainOptions : StepOptions {
  Machine machine;  // empty: one device, this laptop
  Layout layout;
  LossScaler loss_scaler;  // its start, where the format needs one and loss_scale is 0
  Faults faults;           // of the machine: slow and dead devices and links, in the simulated time
  std::int64_t check_steps = 2;  // first steps of a mesh that one device does too, for the report
  std::string checkpoint;        // file of the whole training; empty: none
  std::int64_t checkpoint_every = 0;  // steps between saves; 0: only at the end
  bool resume = false;                // from that file, if it is there; its layout does not matter
};

namespace detail {

// Numbers first to first + count of a device's part of a tensor, to their place in the whole.
inline void put_part(const float* from, std::int64_t first, std::int64_t count, Split split,
                     std::int64_t index, std::int64_t devices, Tensor& whole) {
  float* const to = whole.data();
  if (split != Split::columns) {
    const std::int64_t rows = split == Split::rows ? whole.dim(0) : 0;
    const std::int64_t width = whole.dim(0) > 0 ? whole.count() / whole.dim(0) : 0;
    std::copy(from, from + count, to + shard_begin(rows, index, devices) * width + first);
    return;
  }
  const std::int64_t width = whole.dim(1);
  const std::int64_t begin = shard_begin(width, index, devices);
  const std::int64_t part = shard_begin(width, index + 1, devices) - begin;
  for (std::int64_t i = first; i < first + count; ++i) {
    to[i / part * width + begin + i % part] = from[i - first];
  }
}

// A model with numbers of its own.
inline Transformer copy_of(const Transformer& model) {
  Transformer copy = model;
  for (Parameter& p : copy.parameters) {
    p.value = parameter(p.value.detach());
  }
  return copy;
}

// The same with moments of its own, which one device would update in place.
inline TrainState copy_of(const TrainState& state) {
  TrainState copy = state;
  for (List<Tensor>* const list : {&copy.moments, &copy.squares}) {
    for (Tensor& tensor : *list) {
      tensor = tensor.clone();
    }
  }
  return copy;
}

class Trainer {
 public:
  Trainer(Transformer& model, const std::vector<std::int32_t>& tokens, const TrainOptions& options,
          const TrainState& start = TrainState())
      : model_(model),
        options_(options),
        tokens_(tokens),
        axes_(layout_axes(options.layout)),
        state_(start) {
    const Layout& layout = options.layout;
    if (!scales_dynamically(options)) {
      state_.loss_scale = first_loss_scale(options);
    } else if (start.loss_scale <= 0) {
      state_.loss_scale = options.loss_scaler.scale;
    }
    if (layout.devices() == 1 && layout.microbatches == 1 && layout.schedule.empty() &&
        layout.recompute == Recompute::none) {
      optimizer_.reset(new AdamW(model.tensors(), adamw_options(options)));
      if (!start.moments.empty()) {
        optimizer_->resume(start.moments, start.squares, start.steps);
      }
      return;
    }
    const bool declared = options.machine.dims.size() > 0;
    mesh_.reset(new Mesh(declared ? options.machine : machine("tpu-v5e", {1}), axes_.mesh));
    mesh_->algorithm = layout.algorithm;
    parts_.resize(static_cast<std::size_t>(layout.devices()));
  }

  StepResult step(std::int64_t number) {
    if (!mesh_) {
      fill_batch(batch_, tokens_, options_.batch, model_.config.context, options_.seed, number);
      optimizer_->scaler = scaler();
      const StepResult result = train_step(model_, *optimizer_, batch_, options_, number);
      scale_after(result);
      return result;
    }
    last_.reset();  // what it kept would count as this step's memory
    const MeshRun run = mesh_->run([&](Device& device) {
      Shared<DeviceModel>& mine = parts_[static_cast<std::size_t>(device.rank())];
      if (!mine) {
        mine.reset(
            new DeviceModel(model_, options_.layout, axes_, device, state_, options_.format));
      }
      context().memory = mine->meter;
      mine->meter->reset_peak();
      StepRunner runner(device, *mine, options_.layout, axes_, options_, tokens_);
      const StepResult result = runner.run(number, state_.loss_scale, state_.steps);
      Tensor told(Shape{6}, MemoryKind::buffer);
      told.data()[0] = static_cast<float>(result.loss);
      told.data()[1] = static_cast<float>(result.grad_norm);
      told.data()[2] = result.skipped ? 1.0f : 0.0f;
      told.data()[3] = static_cast<float>(result.rounding.numbers);
      told.data()[4] = static_cast<float>(result.rounding.lost);
      told.data()[5] = static_cast<float>(result.rounding.overflowed);
      device.keep("result", told);
    });
    state_.moments.clear();  // the devices have them
    state_.squares.clear();
    whole_ = false;
    last_.reset(new MeshRun(options_.faults.all.empty() ? run : run.with(options_.faults)));
    const Tensor told = run.kept(0, "result");
    StepResult result;
    result.loss = static_cast<double>(told.data()[0]);
    result.grad_norm = static_cast<double>(told.data()[1]);
    result.skipped = told.data()[2] > 0;
    result.loss_scale = state_.loss_scale;
    for (int rank = 0; rank < mesh_->size(); ++rank) {
      const std::vector<float> of = run.kept(rank, "result").values();
      result.rounding.add({double(of[3]), double(of[4]), double(of[5])});
    }
    state_.steps += result.skipped ? 0 : 1;
    scale_after(result);
    return result;
  }

  // The model as a whole, from the parts where they are.
  const Transformer& model() {
    if (mesh_ && !whole_) {
      gather_whole();
      whole_ = true;
    }
    return model_;
  }
  // Peaks of the last step, by rank: on one device those of the program's meter since reset_peak().
  List<DeviceMemory> peaks() const {
    List<DeviceMemory> all;
    for (const Shared<DeviceModel>& part : parts_) {
      all.push_back(DeviceMemory::peak_of(*part->meter));
    }
    if (!mesh_) {
      all.push_back(DeviceMemory::peak_of(*context().memory));
    }
    return all;
  }
  bool on_mesh() const { return mesh_ != nullptr; }
  Mesh* mesh() const { return mesh_.get(); }
  const Shared<const MeshRun>& last_run() const { return last_; }
  const LayoutAxes& axes() const { return axes_; }
  // What training has beside the weights, as a whole.
  const TrainState& state() {
    model();
    if (optimizer_) {
      state_.moments = optimizer_->moments();
      state_.squares = optimizer_->squares();
      state_.steps = optimizer_->steps();
    }
    return state_;
  }

 private:
  LossScaler scaler() const {
    LossScaler now = options_.loss_scaler;
    now.scale = state_.loss_scale;
    now.good = state_.good_steps;
    return now;
  }
  // The loss scale of the next step.
  void scale_after(const StepResult& result) {
    if (scales_dynamically(options_)) {
      LossScaler next = scaler();
      next.update(!result.skipped);
      state_.loss_scale = next.scale;
      state_.good_steps = next.good;
    }
  }
  void gather_whole() {
    const MeshRun run = mesh_->run(
        [&](Device& device) { parts_[static_cast<std::size_t>(device.rank())]->keep(device); });
    state_.moments.clear();
    state_.squares.clear();
    for (const Parameter& p : model_.parameters) {
      state_.moments.push_back(Tensor(p.value.shape(), MemoryKind::optimizer));
      state_.squares.push_back(Tensor(p.value.shape(), MemoryKind::optimizer));
    }
    const std::int64_t tensors = options_.layout.tensor;
    for (int rank = 0; rank < mesh_->size(); ++rank) {
      const MeshPoint at(axes_.mesh, rank);
      const List<FlatUnit> units = plan_units(model_, options_.layout, axes_, at);
      const std::int64_t tensor = at.index(axes_.tensor);
      for (std::size_t u = 0; u < units.size(); ++u) {
        const Tensor weights = run.kept(rank, cat({"weights ", u}));
        const Tensor moments = run.kept(rank, cat({"moments ", u}));
        const Tensor squares = run.kept(rank, cat({"squares ", u}));
        const FlatUnit& unit = units[u];
        const std::int64_t begin = unit.index * unit.shard, end = begin + unit.shard;
        for (std::size_t i = 0; i < unit.places.size(); ++i) {
          const std::size_t place = static_cast<std::size_t>(unit.places[i]);
          Parameter& p = model_.parameters[place];
          const std::int64_t first = std::max(begin, unit.begins[i]);
          const std::int64_t count = std::min(end, unit.begins[i + 1]) - first;
          if (count > 0) {
            const std::int64_t from = first - begin, to = first - unit.begins[i];
            put_part(weights.data() + from, to, count, p.split, tensor, tensors, p.value);
            put_part(moments.data() + from, to, count, p.split, tensor, tensors,
                     state_.moments[place]);
            put_part(squares.data() + from, to, count, p.split, tensor, tensors,
                     state_.squares[place]);
          }
        }
      }
    }
  }

  Transformer& model_;
  const TrainOptions& options_;
  const std::vector<std::int32_t> tokens_;
  LayoutAxes axes_;
  Batch batch_;
  Shared<AdamW> optimizer_;
  Shared<Mesh> mesh_;
  List<Shared<DeviceModel>> parts_;  // by rank
  TrainState state_;
  bool whole_ = true;  // model_ and state_ are those of the last step
  Shared<const MeshRun> last_;
};

}  // namespace detail
}  // namespace tinyscale
