#pragma once
// Gradients: what an op keeps, how a gradient gathers in a slot, and the walk back over the graph.

#include <algorithm>         // max
#include <cstring>           // memcpy
#include <initializer_list>  // inputs of an op
#include <utility>           // move

#include "tinyscale/base/order.hpp"
#include "tinyscale/compute/elementwise.hpp"
#include "tinyscale/tensor/tensor.hpp"

namespace tinyscale {

// While alive, ops on this thread record nothing for backward().
class NoGrad {
 public:
  NoGrad() { ++context().no_grad; }
  ~NoGrad() { --context().no_grad; }
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;
};

// A leaf that gathers gradients, tagged as a parameter in the memory meter. Shares no numbers.
inline Tensor parameter(const Tensor& value) {
  if (!value.defined()) {
    value.data();  // throws
  }
  const MemoryScope scope(MemoryKind::parameter);
  Tensor leaf = value.clone();
  leaf.set_slot(detail::Slot::make());
  leaf.slot()->shape = value.shape();
  return leaf;
}

namespace detail {

// Numbers that a backward pass needs: ops that write in place refuse them as long as it lives.
class Kept : public Tensor {
 public:
  Kept() = default;
  explicit Kept(const Tensor& x) : Tensor(x.detach()) { count_one(1); }
  Kept(const Kept& other) : Tensor(other) { count_one(1); }
  Kept(Kept&& other) noexcept : Tensor(static_cast<Tensor&&>(other)) {}
  Kept& operator=(const Kept&) = delete;
  ~Kept() { count_one(-1); }

 private:
  void count_one(int change) const {
    if (defined()) {
      storage()->kept.fetch_add(change, std::memory_order_relaxed);
    }
  }
};

// The gradient buffer of a slot, zero at first use. A leaf's is a gradient, the rest activations.
inline float* grad_buffer(const Slot& slot) {
  if (!slot->grad) {
    const MemoryKind kind = slot->leaf ? MemoryKind::gradient : MemoryKind::activation;
    slot->grad = make_storage(slot->shape, slot->shape.count(), kind);
    std::memset(slot->grad->data, 0, slot->grad->bytes());
  }
  return slot->grad->data;
}

// The same for a kernel that writes instead of adding where `beta` says 0: at first use it does.
inline float* grad_buffer(const Slot& slot, float& beta) {
  beta = slot->grad ? 1.0f : 0.0f;
  if (!slot->grad) {
    const MemoryKind kind = slot->leaf ? MemoryKind::gradient : MemoryKind::activation;
    slot->grad = make_storage(slot->shape, slot->shape.count(), kind);
  }
  return slot->grad->data;
}

// Adds dx to a slot's gradient; takes the buffer over when it is the first and nobody else's.
inline void add_grad(const Slot& slot, const Tensor& dx) {
  if (!dx.is_contiguous()) {
    add_grad(slot, dx.clone());
    return;
  }
  const bool fits = !slot->leaf || dx.storage()->kind == MemoryKind::gradient;
  if (!slot->grad && fits && dx.storage().use_count() == 1 && dx.storage()->count == dx.count()) {
    slot->grad = dx.storage();
    return;
  }
  float beta = 0;
  float* out = grad_buffer(slot, beta);
  if (beta > 0) {
    kernels::add(dx.count(), out, dx.data(), out);
  } else if (dx.count() > 0) {
    std::memcpy(out, dx.data(), slot->grad->bytes());
  }
}

// True if the graph must remember an op over these inputs.
inline bool tracked(std::initializer_list<const Tensor*> inputs) {
  if (context().no_grad > 0) {
    return false;
  }
  for (const Tensor* input : inputs) {
    if (input->requires_grad()) {
      return true;
    }
  }
  return false;
}

// Joins `result` to the graph behind `inputs`; call it only when they are tracked.
inline void attach(Tensor& result, const char* name, const Tensor* const* inputs, std::size_t n,
                   Backward backward) {
  Slot slot = Slot::make(n * sizeof(Slot));
  slot->shape = result.shape();
  slot->leaf = false;
  slot->name = name;
  slot->backward = std::move(backward);
  for (std::size_t i = 0; i < n; ++i) {
    if (inputs[i]->requires_grad()) {
      slot->add_input(inputs[i]->slot());
    }
  }
  result.set_slot(std::move(slot));
}

inline void attach(Tensor& result, const char* name, std::initializer_list<const Tensor*> inputs,
                   Backward backward) {
  attach(result, name, inputs.begin(), inputs.size(), std::move(backward));
}

// Ops that wait for the backward pass; the last of the forward pass goes first.
class ReadyOps {
 public:
  bool empty() const { return queue_.empty(); }
  void push(const Slot& slot) {
    slot->queued = true;
    queue_.push({-static_cast<double>(slot->order), slots_.size(), 0});
    slots_.push_back(slot);
  }
  Slot pop() {
    Slot slot = std::move(slots_[queue_.pop().item]);
    slot->queued = false;
    return slot;
  }

 private:
  EventQueue queue_;
  List<Slot> slots_;
};

}  // namespace detail

inline void Tensor::backward() const {
  if (!slot_) {
    detail::fail({"backward: no parameter stands behind this tensor; wrap one with parameter()"});
  }
  if (count() != 1) {
    detail::fail({"backward: the loss must be one number, this has shape ", shape_.text(),
                  "; take mean() or sum() first"});
  }
  NoGrad no_graph_of_the_backward_pass;
  *detail::grad_buffer(slot_) += 1.0f;
  detail::ReadyOps ready;
  if (!slot_->leaf) {
    ready.push(slot_);
  }
  while (!ready.empty()) {
    const detail::Slot slot = ready.pop();
    if (!slot->backward) {
      detail::fail(
          {"backward: this graph was used before and is freed; run the forward pass again"});
    }
    if (slot->grad) {
      slot->backward(Tensor(slot->shape, std::move(slot->grad)));
      slot->grad.reset();
    }
    slot->backward.reset();
    for (int i = 0; i < slot->input_count; ++i) {
      const detail::Slot& input = slot->inputs()[i];
      if (!input->leaf && !input->queued) {
        ready.push(input);
      }
    }
    slot->drop_inputs();
  }
}

}  // namespace tinyscale
