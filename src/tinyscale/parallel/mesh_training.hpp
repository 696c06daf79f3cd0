#pragma once
// The steps of a training on a mesh: every device's part of the model and what it does with it
// (device_step.hpp). Trainer calls it through MeshTrainingCalls: a program that gives TrainOptions
// no machine compiles neither this nor the mesh.

#include <algorithm>  // copy, min, max
#include <cstdint>    // int64_t
#include <cstring>    // memcpy
#include <string>     // string
#include <vector>     // vector

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/mesh/mesh.hpp"
#include "tinyscale/parallel/check_memory.hpp"
#include "tinyscale/parallel/device_step.hpp"
#include "tinyscale/parallel/step_report.hpp"
#include "tinyscale/parallel/step_tables.hpp"

namespace tinyscale {
namespace detail {

// What a training on a mesh is made of.
struct MeshJob {
  Transformer* model;  // weights are read at the start, and written by gather
  const std::vector<std::int32_t>* tokens;
  const StepOptions* options;
  const Layout* layout;
  const Machine* machine;
  const Faults* faults;
};

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

inline void add_hash(const Tensor& numbers, std::uint64_t& hash) {
  for (std::int64_t i = 0; i < numbers.count(); ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, numbers.data() + i, sizeof bits);
    hash = (hash ^ bits) * 1099511628211U;  // FNV-1a
  }
}

// Where a training stands: of two that go on alike it is the same.
inline std::string standing(const Transformer& model, const TrainState& state,
                            std::int64_t number) {
  std::uint64_t hash = 14695981039346656037U;
  for (const Parameter& p : model.parameters) {
    add_hash(p.value, hash);
  }
  for (const List<Tensor>* const kind : {&state.moments, &state.squares}) {
    for (const Tensor& tensor : *kind) {
      add_hash(tensor, hash);
    }
  }
  return cat({"step ", number, " with ", state.steps, " updates, weights and moments of hash ",
              static_cast<unsigned long long>(hash)});
}

class MeshTrainer {
 public:
  explicit MeshTrainer(const MeshJob& job)
      : job_(job), axes_(layout_axes(*job.layout)), mesh_(*job.machine, axes_.mesh) {
    mesh_.algorithm = job.layout->algorithm;
    parts_.resize(static_cast<std::size_t>(job.layout->devices()));
  }

  // Moments and loss scale come from `state`, whose steps it counts on.
  StepResult step(std::int64_t number, TrainState& state) {
    last_.reset();                       // what it kept would count as this step's memory
    if (!begun_ && has_other_ranks()) {  // each has read its own file
      check_same_on_ranks("train", standing(*job_.model, state, number));
    }
    begun_ = true;
    const MeshRun run = mesh_.run([&](Device& device) {
      Shared<DeviceModel>& mine = parts_[static_cast<std::size_t>(device.rank())];
      if (!mine) {
        mine.reset(
            new DeviceModel(*job_.model, *job_.layout, axes_, device, state, job_.options->format));
      }
      context().memory = mine->meter;
      mine->meter->reset_peak();
      StepRunner runner(device, *mine, *job_.layout, axes_, *job_.options, *job_.tokens);
      const StepResult result = runner.run(number, state.loss_scale, state.steps);
      Tensor told(Shape{6}, MemoryKind::buffer);
      told.data()[0] = static_cast<float>(result.loss);
      told.data()[1] = static_cast<float>(result.grad_norm);
      told.data()[2] = result.skipped ? 1.0f : 0.0f;
      told.data()[3] = static_cast<float>(result.rounding.numbers);
      told.data()[4] = static_cast<float>(result.rounding.lost);
      told.data()[5] = static_cast<float>(result.rounding.overflowed);
      device.keep("result", told);
    });
    state.moments.clear();  // the devices have them
    state.squares.clear();
    last_.reset(new MeshRun(job_.faults->all.empty() ? run : run.with(*job_.faults)));
    const Tensor told = run.kept(0, "result");
    StepResult result;
    result.loss = static_cast<double>(told.data()[0]);
    result.grad_norm = static_cast<double>(told.data()[1]);
    result.skipped = told.data()[2] > 0;
    result.loss_scale = state.loss_scale;
    for (int rank = 0; rank < mesh_.size(); ++rank) {
      const std::vector<float> of = run.kept(rank, "result").values();
      result.rounding.add({double(of[3]), double(of[4]), double(of[5])});
    }
    state.steps += result.skipped ? 0 : 1;
    return result;
  }

  // The model and `state` as a whole, from the parts where they are.
  void gather(TrainState& state) {
    Transformer& model = *job_.model;
    const MeshRun run = mesh_.run(
        [&](Device& device) { parts_[static_cast<std::size_t>(device.rank())]->keep(device); });
    state.moments.clear();
    state.squares.clear();
    for (const Parameter& p : model.parameters) {
      state.moments.push_back(Tensor(p.value.shape(), MemoryKind::optimizer));
      state.squares.push_back(Tensor(p.value.shape(), MemoryKind::optimizer));
    }
    const std::int64_t tensors = job_.layout->tensor;
    for (int rank = 0; rank < mesh_.size(); ++rank) {
      const MeshPoint at(axes_.mesh, rank);
      const List<FlatUnit> units = plan_units(model, *job_.layout, axes_, at);
      const std::int64_t tensor = at.index(axes_.tensor);
      for (std::size_t u = 0; u < units.size(); ++u) {
        const Tensor weights = run.kept(rank, cat({"weights ", u}));
        const Tensor moments = run.kept(rank, cat({"moments ", u}));
        const Tensor squares = run.kept(rank, cat({"squares ", u}));
        const FlatUnit& unit = units[u];
        const std::int64_t begin = unit.index * unit.shard, end = begin + unit.shard;
        for (std::size_t i = 0; i < unit.places.size(); ++i) {
          const std::size_t place = static_cast<std::size_t>(unit.places[i]);
          Parameter& p = model.parameters[place];
          const std::int64_t first = std::max(begin, unit.begins[i]);
          const std::int64_t count = std::min(end, unit.begins[i + 1]) - first;
          const Split split = unit.splits[i];
          if (count > 0) {
            const std::int64_t from = first - begin, to = first - unit.begins[i];
            put_part(weights.data() + from, to, count, split, tensor, tensors, p.value);
            put_part(moments.data() + from, to, count, split, tensor, tensors,
                     state.moments[place]);
            put_part(squares.data() + from, to, count, split, tensor, tensors,
                     state.squares[place]);
          }
        }
      }
    }
  }

  // Of the last step, by rank.
  List<DeviceMemory> peaks() const {
    List<DeviceMemory> all;
    for (int rank = 0; rank < mesh_.size(); ++rank) {  // of MPI ranks the run alone knows
      all.push_back(DeviceMemory::peak_of(last_->memory(rank)));
    }
    return all;
  }
  const Shared<const MeshRun>& last_run() const { return last_; }
  StepReport report() const {
    const bool skipped = last_->kept(0, "result").data()[2] > 0;
    return report_step(*last_, *job_.model, *job_.layout, *job_.options, !skipped);
  }
  Mesh& mesh() { return mesh_; }

 private:
  MeshJob job_;
  LayoutAxes axes_;
  Mesh mesh_;
  List<Shared<DeviceModel>> parts_;  // by rank; on MPI ranks the own one alone
  Shared<const MeshRun> last_;
  bool begun_ = false;
};

// What training on a machine needs beside what one device does.
struct MeshTrainingCalls {
  void (*check_layout)(const Layout& layout, const ModelConfig& c, std::int64_t chips,
                       std::int64_t batch, std::int64_t time);
  void (*check_memory)(const Layout& layout, const ModelConfig& c, std::int64_t batch,
                       const Machine& machine, const List<DeviceMemory>& needs);
  Shared<MeshTrainer> (*start)(const MeshJob& job);
  StepResult (*step)(MeshTrainer& trainer, std::int64_t number, TrainState& state);
  void (*gather)(MeshTrainer& trainer, TrainState& state);
  List<DeviceMemory> (*peaks)(const MeshTrainer& trainer);
  StepReport (*report)(const MeshTrainer& trainer);
  const StepPrinter* printer;
};

inline void check_mesh_layout(const Layout& layout, const ModelConfig& c, std::int64_t chips,
                              std::int64_t batch, std::int64_t time) {
  check_layout(layout, c, chips, batch, time);
  layout_axes(layout);  // throws where ZeRO and experts would cut an axis in two ways
}
inline Shared<MeshTrainer> start_mesh_trainer(const MeshJob& job) {
  return Shared<MeshTrainer>(new MeshTrainer(job));
}
inline StepResult mesh_trainer_step(MeshTrainer& trainer, std::int64_t number, TrainState& state) {
  return trainer.step(number, state);
}
inline void mesh_trainer_gather(MeshTrainer& trainer, TrainState& state) { trainer.gather(state); }
inline List<DeviceMemory> mesh_trainer_peaks(const MeshTrainer& trainer) { return trainer.peaks(); }
inline StepReport mesh_trainer_report(const MeshTrainer& trainer) { return trainer.report(); }

inline const MeshTrainingCalls* mesh_training_calls() {
  static const MeshTrainingCalls calls = {
      check_mesh_layout,   check_memory,       start_mesh_trainer,  mesh_trainer_step,
      mesh_trainer_gather, mesh_trainer_peaks, mesh_trainer_report, step_printer()};
  return &calls;
}

}  // namespace detail
}  // namespace tinyscale
