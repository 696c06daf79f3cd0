#pragma once
// Training through a compiled function: its results are ops of the graph of gradients outside.

#include <cstddef>  // size_t
#include <vector>   // vector

#include "tinyscale/compile/compiled.hpp"

namespace tinyscale {

// Joins the results to the graph of gradients outside.
inline void Compiled::attach_backward(const Shared<Compilation>& made, const List<Tensor>& given,
                                      const std::vector<Tensor>& inputs,
                                      const List<Tensor>& outputs,
                                      std::vector<Tensor>& results) const {
  std::size_t at = made->results + made->writes.size() + made->gradients.size();
  for (std::size_t r = 0; r < made->results; ++r) {
    const detail::BackwardPart* const part = made->part_of(r);
    if (made->backward[r].used) {
      detail::attach(results[r], "compiled", {}, [](const Tensor&) {
        detail::fail(
            {"backward: this graph was used before and is freed; run the forward pass ", "again"});
      });
    }
    if (part == nullptr) {
      continue;
    }
    const detail::KeptConstants constants(made, r);
    List<Tensor> saved;
    List<detail::Kept> kept;
    for (std::size_t i = 0; i < part->cut.known.size(); ++i, ++at) {
      saved.push_back(outputs[at].is_contiguous() ? outputs[at] : outputs[at].copied());
      kept.push_back(detail::Kept(saved.back()));
    }
    for (const Tensor& x : given) {
      kept.push_back(detail::Kept(x));
    }
    List<detail::Slot> slots;
    List<Tensor> leaves;
    for (const int leaf : part->leaves) {
      const auto number = static_cast<std::size_t>(leaf);
      const detail::Slot& slot = made->leaf_slots[number];
      const int input = made->leaf_inputs[number];
      slots.push_back(slot ? slot : inputs[static_cast<std::size_t>(input)].slot());
      leaves.push_back(results[r].detach());
      leaves.back().set_slot(slots.back());
    }
    List<const Tensor*> behind;
    for (const Tensor& leaf : leaves) {
      behind.push_back(&leaf);
    }
    if (made->is_captured(r)) {  // itself, with its own slot
      continue;
    }
    results[r] = results[r].detach();
    detail::attach(results[r], "compiled", behind.data(), behind.size(),
                   [self = *this, format = made->guards.format, given, constants, saved, slots,
                    kept](const Tensor& dy) {
                     const DType format_now = context().matmul_format;
                     const detail::BackwardPart& own = constants.part();
                     const Shared<GraphPlan> plan =
                         format_now == format
                             ? own.plan
                             : self.plan_of(detail::in_format(own.cut.graph, format_now), {},
                                            false);
                     List<Tensor> all = given;
                     all.push_back(contiguous(dy));
                     List<Tensor> now = own.cut.graph.constants;
                     for (std::size_t i = 0; i < saved.size(); ++i) {
                       now[constants.size() + i] = saved[i];
                     }
                     const List<Tensor> gradients = plan->run(all, now);
                     for (std::size_t i = 0; i < slots.size(); ++i) {
                       detail::add_grad(slots[i], gradients[i]);
                     }
                   });
  }
}

}  // namespace tinyscale
