#pragma once
// Who runs the steps of a training: one device by itself, or a mesh whose devices each hold their
// part; and the whole model put together from the parts.

#include <cstdint>  // int64_t
#include <string>   // string
#include <vector>   // vector

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/model/read_text.hpp"
#include "tinyscale/parallel/accumulate.hpp"
#include "tinyscale/parallel/check_memory.hpp"
#include "tinyscale/parallel/mesh_training.hpp"

namespace tinyscale {

// The machine to train on, any Machine. Giving one is what makes a program compile the mesh.
struct TrainMachine : Machine {
  TrainMachine() = default;
  TrainMachine(const Machine& machine) : Machine(machine), calls(detail::mesh_training_calls()) {}

  const detail::MeshTrainingCalls* calls = nullptr;
};

namespace detail {
struct TrainFileCalls;
}

// The path of a training's file. Giving one is what makes a program compile what reads and writes
// it (train_checkpoint.hpp).
struct TrainFile : std::string {
  TrainFile() = default;
  TrainFile(const char* path) : TrainFile(std::string(path)) {}
  TrainFile(const std::string& path);

  const detail::TrainFileCalls* calls = nullptr;
};

struct TrainOptions : StepOptions {
  TrainMachine machine;  // empty: one device, this laptop
  Layout layout;
  LossScaler loss_scaler;  // its start, where the format needs one and loss_scale is 0
  Faults faults;           // of the machine: slow and dead devices and links, in the simulated time
  std::int64_t check_steps = 2;  // first steps of a mesh that one device does too, for the report
  TrainFile checkpoint;          // file of the whole training; empty: none
  std::int64_t checkpoint_every = 0;  // steps between saves; 0: only at the end
  bool resume = false;                // from that file, if it is there; its layout does not matter

  // Whether a mesh does the steps: of several devices, or of one declared chip that works in parts.
  bool on_mesh() const {
    return machine.calls != nullptr && machine.dims.size() > 0 &&
           (layout.devices() > 1 || in_parts() || !layout.schedule.empty());
  }
  // Whether one device keeps less than a whole batch's activations.
  bool in_parts() const { return layout.microbatches > 1 || layout.recompute != Recompute::none; }
};

namespace detail {

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
      tensor = tensor.copied();
    }
  }
  return copy;
}

class Trainer {
 public:
  Trainer(Transformer& model, const std::vector<std::int32_t>& tokens, const TrainOptions& options,
          const TrainState& start = TrainState())
      : model_(model), options_(options), tokens_(tokens), state_(start) {
    if (!scales_dynamically(options)) {
      state_.loss_scale = first_loss_scale(options);
    } else if (start.loss_scale <= 0) {
      state_.loss_scale = options.loss_scaler.scale;
    }
    if (options.on_mesh()) {
      mesh_ = options.machine.calls->start(
          {&model_, &tokens_, &options_, &options_.layout, &options_.machine, &options_.faults});
      return;
    }
    optimizer_.reset(new AdamW(model.tensors(), adamw_options(options)));
    if (!start.moments.empty()) {
      optimizer_->resume(start.moments, start.squares, start.steps);
    }
  }

  Trainer(const Trainer&) = delete;  // a mesh works on what is here

  StepResult step(std::int64_t number) {
    StepResult result;
    if (mesh_) {
      result = options_.machine.calls->step(*mesh_, number, state_);
      whole_ = false;
    } else {
      optimizer_->scaler = scaler();
      result = step_alone(number);
    }
    scale_after(result);
    return result;
  }

  // The model as a whole, from the parts where they are.
  const Transformer& model() {
    if (!whole_) {
      options_.machine.calls->gather(*mesh_, state_);
      whole_ = true;
    }
    return model_;
  }
  // Peaks of the last step, by rank: on one device those of the program's meter since reset_peak().
  List<DeviceMemory> peaks() const {
    if (mesh_) {
      return options_.machine.calls->peaks(*mesh_);
    }
    List<DeviceMemory> alone;
    alone.push_back(DeviceMemory::peak_of(*context().memory));
    return alone;
  }
  bool on_mesh() const { return mesh_ != nullptr; }
  MeshTrainer& on() const { return *mesh_; }  // the mesh, where there is one
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
  StepResult step_alone(std::int64_t number) {
    if (options_.in_parts()) {
      return accumulated_step(model_, *optimizer_, batch_, tokens_, options_.layout, options_,
                              number);
    }
    fill_batch(batch_, tokens_, options_.batch, model_.config.context, options_.seed, number);
    return train_step(model_, *optimizer_, batch_, options_, number);
  }
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

  Transformer& model_;
  const TrainOptions& options_;
  const std::vector<std::int32_t> tokens_;
  Batch batch_;
  Shared<AdamW> optimizer_;
  Shared<MeshTrainer> mesh_;
  TrainState state_;
  bool whole_ = true;  // model_ and state_ are those of the last step
};

}  // namespace detail
}  // namespace tinyscale
