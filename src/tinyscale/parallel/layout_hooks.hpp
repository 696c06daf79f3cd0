#pragma once
// What a layout puts between the parts of the transformer on one device, and the names of the
// pieces of a step.

#include <cstdint>  // int64_t
#include <string>   // string
#include <vector>   // vector

#include "tinyscale/parallel/accumulate.hpp"
#include "tinyscale/parallel/context_parallel.hpp"
#include "tinyscale/parallel/expert_parallel.hpp"
#include "tinyscale/parallel/layout_axes.hpp"
#include "tinyscale/parallel/tensor_parallel.hpp"

namespace tinyscale {
namespace detail {

// What a device's time goes to: the number by which logs and pictures know a piece of a step.
struct StepTask {
  enum Work { forward, backward, input_gradient, weight_gradient, recompute, update };
  Work work = forward;
  int stage = 0, microbatch = 0;

  int number(int stages, int microbatches) const {
    return (static_cast<int>(work) * stages + stage) * microbatches + microbatch;
  }
  static StepTask of(int number, int stages, int microbatches) {
    StepTask task;
    task.microbatch = number % microbatches;
    task.stage = number / microbatches % stages;
    task.work = static_cast<Work>(number / microbatches / stages);
    return task;
  }
  // "F0.1": forward of stage 0, microbatch 1.
  std::string text() const {
    static const char* const names[] = {"F", "B", "I", "W", "R", "update"};
    return work == update ? names[5] : cat({names[work], stage, ".", microbatch});
  }
};

// The hooks of a layout, for one device.
inline Hooks layout_hooks(Device& device, const Layout& layout, const LayoutAxes& axes,
                          const ModelConfig& config, std::int64_t time) {
  Hooks hooks;
  if (!axes.context.empty()) {
    add_context_hooks(hooks, device, Axes(axes.context), layout.context_parallel, config, time);
  }
  if (!axes.tensor.empty()) {
    add_tensor_hooks(hooks, device, Axes(axes.tensor), config, layout.sequence_parallel,
                     time / layout.context);
  }
  if (config.experts > 0) {
    add_expert_hooks(hooks, device, Axes(axes.dealt), Axes(axes.routes));
    hooks.whole_experts = layout.whole_experts;
    hooks.partial_share = layout.whole_experts ? 1 : hooks.partial_share;
  }
  if (axes.tensor.empty()) {  // logits that wait for the backward pass, as under tensor parallelism
    hooks.loss = [](const Tensor& x, const Tensor& table,
                    const std::vector<std::int32_t>& targets) {
      Tensor logits;
      {
        const MemoryScope scope(MemoryKind::logits);
        logits = matmul_transposed(x, table);
      }
      if (logits.slot()) {
        logits.slot()->kind = MemoryKind::logits;
      }
      return cross_entropy(logits, targets);
    };
  }
  if (layout.recompute == Recompute::selective) {
    recompute_attention(hooks, config);
  }
  return hooks;
}

}  // namespace detail
}  // namespace tinyscale
