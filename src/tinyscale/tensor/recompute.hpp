#pragma once
// Activation recomputation (arXiv 1604.06174): the forward pass keeps the inputs alone, the
// backward pass runs it again. With counter-based dropout both passes give the same numbers.

#include <atomic>
#include <cstddef>  // size_t
#include <vector>   // vector

#include "tinyscale/base/function.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/tensor/backward.hpp"

namespace tinyscale {
namespace detail {

// While alive: gradients on, as the forward pass was set, and a walk back ends at `inputs`.
class Recomputation {
 public:
  Recomputation(const List<Slot>& inputs, MemoryKind kind, ProductFormat format)
      : own_(context()), scope_(own_), inputs_(inputs) {
    own_.no_grad = 0;
    own_.kind = kind;
    own_.matmul_format = format;
    ++own_.recomputing;
    for (const Slot& slot : inputs) {
      queued_.push_back(slot && slot->queued);
    }
    for (const Slot& slot : inputs) {
      if (slot) {
        slot->queued = true;
      }
    }
  }
  ~Recomputation() {
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      if (inputs_[i]) {
        inputs_[i]->queued = queued_[i];
      }
    }
  }
  Recomputation(const Recomputation&) = delete;
  Recomputation& operator=(const Recomputation&) = delete;
  Context& context_of_it() { return own_; }

 private:
  Context own_;
  ContextScope scope_;
  const List<Slot>& inputs_;
  List<bool> queued_;
};

}  // namespace detail

// body(inputs), of which only the inputs are kept. Gradients go to the inputs and to parameters
// that the body captures; other tensors with a graph behind them must be inputs. A capture records
// the body: CompileOptions::activation_bytes says what is kept there.
inline Tensor recompute(const Function<Tensor(const std::vector<Tensor>&)>& body,
                        const std::vector<Tensor>& inputs) {
  if (context().no_grad > 0 || detail::thread_recorder() != nullptr) {
    return body(inputs);
  }
  Tensor y;
  std::atomic<bool> needed{false};
  List<const Tensor*> behind;
  List<detail::Slot> slots;
  List<detail::KeptWeight> kept;
  {
    Context own = context();
    ++own.no_grad;
    own.gradient_passed = &needed;
    const ContextScope no_graph(own);
    for (const Tensor& input : inputs) {
      behind.push_back(&input);
      slots.push_back(input.slot());
      kept.push_back(detail::KeptWeight(input));
    }
    y = body(inputs);
    needed = needed || y.requires_grad();
    y = y.detach();
  }
  y.origin();  // an empty one throws
  if (!needed) {
    return y;
  }
  const Context& now = context();
  detail::attach(y, "recompute", behind.data(), behind.size(),
                 [body, slots, kept = std::move(kept), kind = now.kind,
                  format = now.matmul_format](const Tensor& dy) {
                   const detail::ProductFormat format_now = context().matmul_format;
                   detail::Recomputation again(slots, kind, format);
                   detail::Slot root;
                   {
                     std::vector<Tensor> same;
                     for (std::size_t i = 0; i < slots.size(); ++i) {
                       same.push_back(kept[i].get());
                       same.back().set_slot(slots[i]);
                     }
                     root = body(same).slot();
                   }
                   if (root) {
                     again.context_of_it().matmul_format = format_now;
                     detail::run_backward(root, dy);
                   }
                 });
  return y;
}

}  // namespace tinyscale
