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

namespace detail {

// A leaf over the same numbers, with a gradient of its own that is allocated as `grad_kind`.
inline Tensor leaf(const Tensor& value, MemoryKind grad_kind) {
  Tensor same = value.detach();
  same.set_slot(Slot::make());
  same.slot()->shape = value.shape();
  same.slot()->kind = grad_kind;
  return same;
}

}  // namespace detail

// A leaf that gathers gradients, tagged as a parameter in the memory meter. Shares no numbers.
inline Tensor parameter(const Tensor& value) {
  if (!value.defined()) {
    value.data();  // throws
  }
  const MemoryScope scope(MemoryKind::parameter);
  return detail::leaf(value.copied(), MemoryKind::gradient);
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
  Kept& operator=(Kept&& other) noexcept {
    count_one(-1);
    Tensor::operator=(static_cast<Tensor&&>(other));
    return *this;
  }
  ~Kept() { count_one(-1); }

 private:
  void count_one(int change) const {
    if (defined()) {
      storage()->block().kept.fetch_add(change, std::memory_order_relaxed);
    }
  }
};

// What a product keeps of an operand for its backward pass: the numbers; of a revocable leaf, or a
// view of one, only where they will stand then; of what an op can give again, only that op.
class KeptWeight {
 public:
  KeptWeight() = default;
  explicit KeptWeight(const Tensor& w)
      : leaf_(w.slot() && w.slot()->again && w.is_contiguous() ? w.slot() : revocable_leaf(w)),
        kept_(leaf_ ? Kept(w.over(Shared<Storage>(), 0)) : Kept(w)),
        offset_(leaf_ ? w.origin() - w.storage()->data : 0) {}
  Tensor get() const {
    if (!leaf_) {
      return kept_;
    }
    if (!leaf_->value && leaf_->again) {
      const Tensor result(leaf_->shape);
      leaf_->again(result);
      leaf_->value = result.storage();
    }
    if (!leaf_->value) {
      fail({"backward: the weight ", leaf_->shape.text(),
            " was freed after the forward pass; gather it again first"});
    }
    return kept_.over(leaf_->value, offset_);
  }

 private:
  // The leaf behind w and at most four views, if it is revocable and w shares its numbers.
  static Slot revocable_leaf(const Tensor& w) {
    const Slot* slot = &w.slot();
    while (*slot && !(*slot)->leaf && (*slot)->input_count == 1 && (*slot)->order <= 4) {
      slot = &(*slot)->inputs()[0];
    }
    const bool found =
        *slot && (*slot)->leaf && (*slot)->revocable && (*slot)->value.get() == w.storage().get();
    return found ? *slot : Slot();
  }

  Slot leaf_;
  Kept kept_;
  std::int64_t offset_ = 0;
};

// The gradient buffer of a slot for a kernel that writes where `beta` says 0, at first use, and
// adds where it says 1.
inline float* grad_buffer(const Slot& slot, float& beta) {
  beta = slot->grad && !slot->fresh ? 1.0f : 0.0f;
  slot->fresh = false;
  if (!slot->grad) {
    slot->grad = make_storage(slot->shape, slot->shape.count(), slot->kind);
  }
  return slot->grad->data;
}

// The same for a kernel that adds: zero at first use.
inline float* grad_buffer(const Slot& slot) {
  float beta = 0;
  float* const buffer = grad_buffer(slot, beta);
  if (beta <= 0) {
    std::memset(buffer, 0, slot->grad->bytes());
  }
  return buffer;
}

// Zero where a gradient was given a place in advance and nothing came.
inline void flush_fresh(const Slot& slot) {
  if (slot->fresh) {
    grad_buffer(slot);
  }
}

// Adds dx to a slot's gradient; takes the buffer over when it is the first and nobody else's.
inline void add_grad(const Slot& slot, const Tensor& dx) {
  if (!dx.is_contiguous()) {
    add_grad(slot, dx.copied());
    return;
  }
  const Storage& from = *dx.storage();
  const bool fits = slot->kind == MemoryKind::activation || from.kind == slot->kind;
  if (!slot->grad && fits && dx.storage().use_count() == 1 && from.count == dx.count() &&
      !from.sliced) {
    slot->grad = dx.storage();
    slot->fresh = false;
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

inline void check_defined(const Tensor& x) {
  if (!x.defined()) {
    x.data();  // throws
  }
}

// Tells the recomputation around it, if any, that a gradient flows through it.
inline void pass_gradient() {
  if (context().gradient_passed != nullptr) {
    context().gradient_passed->store(true, std::memory_order_relaxed);
  }
}

// True if the graph must remember an op over these inputs.
inline bool tracked(std::initializer_list<const Tensor*> inputs) {
  for (const Tensor* input : inputs) {
    if (input->requires_grad()) {
      pass_gradient();
      return context().no_grad == 0;
    }
  }
  return false;
}

// Joins `result` to the graph behind `inputs`; call it only when they are tracked.
inline void attach(Tensor& result, const char* name, const Tensor* const* inputs, std::size_t n,
                   Backward backward) {
  if (thread_recorder() != nullptr) {
    fail({"compile: ", name, " cannot be recorded with its gradient; call it outside of the ",
          "compiled function, or under a NoGrad"});
  }
  Slot slot = Slot::make(n * sizeof(Slot));
  slot->shape = result.shape();
  slot->leaf = false;
  slot->kind = MemoryKind::activation;
  slot->depth = context().recomputing;
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
  ReadyOps() = default;
  // Of a pass that failed: what waits, waits no more.
  ~ReadyOps() {
    while (!empty()) {
      pop()->grad.reset();
    }
  }
  ReadyOps(const ReadyOps&) = delete;
  ReadyOps& operator=(const ReadyOps&) = delete;

  bool empty() const { return queue_.empty(); }
  void push(const Slot& slot) {
    if (slot->depth < depth_) {
      fail({"recompute: the body uses a ", slot->name, " of shape ", slot->shape.text(),
            " that was computed outside of it; hand it over as one of the inputs"});
    }
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
  int depth_ = context().recomputing;
  EventQueue queue_;
  List<Slot> slots_;
};

// The gradient of an op whose turn failed, and what it gave to inputs that do not wait yet.
inline void forget(const Slot& slot) {
  slot->grad.reset();
  for (int i = 0; i < slot->input_count; ++i) {
    const Slot& input = slot->inputs()[i];
    if (!input->leaf && !input->queued) {
      input->grad.reset();
    }
  }
}

// On a simulated device all that a gradient reaches is the device's own: others write to the rest.
inline void check_own(const Slot& slot) {
  const int device = context().device;
  for (int i = 0; i < slot->input_count && device >= 0; ++i) {
    const GradSlot& input = *slot->inputs()[i];
    if (input.device != device) {
      fail({"backward: on device ", device, " a gradient reaches a ",
            input.leaf ? "parameter" : "result", " of shape ", input.shape.text(), " that ",
            input.device < 0 ? std::string("was made outside of the mesh's program")
                             : cat({"device ", input.device, " made"}),
            "; each device needs its own: parameter(t.detach())"});
    }
  }
}

// The walk back from a root whose gradient stands in its slot.
inline void run_backward(const Slot& root) {
  const NoGrad no_graph_of_the_backward_pass;
  ReadyOps ready;
  if (!root->leaf && !root->queued) {
    ready.push(root);
  }
  while (!ready.empty()) {
    const Slot slot = ready.pop();
    try {
      if (!slot->backward) {
        fail({"backward: this graph was used before and is freed; run the forward pass again"});
      }
      check_own(slot);
      if (slot->grad) {
        slot->backward(Tensor(slot->shape, std::move(slot->grad)));
        slot->grad.reset();
      }
    } catch (...) {  // what this pass began counts in no later one
      forget(slot);
      throw;
    }
    slot->backward.reset();
    slot->value.reset();  // given again for the ops behind it, which are done
    for (int i = 0; i < slot->input_count; ++i) {
      const Slot& input = slot->inputs()[i];
      if (!input->leaf && !input->queued) {
        ready.push(input);
      }
    }
    slot->drop_inputs();
  }
}

inline void check_backward(const Slot& slot) {
  if (!slot) {
    fail({"backward: no parameter stands behind this tensor; wrap one with parameter()"});
  }
}

inline void check_scalar_loss(const Tensor& y) {
  if (y.count() != 1) {
    fail({"backward: the loss must be one number, this has shape ", y.shape().text(),
          "; take mean() or sum() first"});
  }
}

// The walk back from a root whose gradient is dy, and what it has gathered besides.
inline void run_backward(const Slot& root, const Tensor& dy) {
  // Read where it stands: held by the caller too, it is nobody's to take over or to write.
  const bool whole = dy.is_contiguous() && dy.storage()->count == dy.count();
  if (!root->leaf && !root->queued && !root->grad && whole) {
    root->grad = dy.storage();
  } else {
    const Tensor second_handle = dy;  // hence copied
    add_grad(root, second_handle);
  }
  run_backward(root);
}

}  // namespace detail

inline void Tensor::backward() const {
  detail::check_backward(slot_);
  if (detail::thread_recorder() != nullptr) {
    detail::check_scalar_loss(*this);
    detail::thread_recorder()->backward(*this, nullptr);
    return;
  }
  detail::check_scalar_loss(*this);
  *detail::grad_buffer(slot_) += 1.0f;
  detail::run_backward(slot_);
}

inline void Tensor::backward(const Tensor& dy) const {
  detail::check_backward(slot_);
  if (!dy.defined() || dy.shape() != shape_) {
    detail::fail({"backward: this tensor has shape ", shape_.text(), ", dy ",
                  dy.defined() ? dy.shape().text() : "is empty",
                  "; a dy of the same shape is right"});
  }
  if (detail::thread_recorder() != nullptr) {
    detail::thread_recorder()->backward(*this, &dy);
    return;
  }
  detail::run_backward(slot_, dy);
}

}  // namespace tinyscale
