#pragma once
// A tensor: a shape, a shared buffer of floats, and the record of how it was made.
// Always contiguous, row-major, float32. Copying a Tensor copies the handle, never the numbers.
// A slot holds the gradient apart from the numbers, so that a result whose value the backward pass
// does not need is freed at once (reverse-mode differentiation, Wengert list as a graph).

#include <algorithm>         // max
#include <cstdint>           // int64_t
#include <cstring>           // memcpy
#include <functional>        // std::function
#include <initializer_list>  // inputs of an op
#include <iostream>          // ostream
#include <string>            // string
#include <utility>           // move
#include <vector>            // vector

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/order.hpp"
#include "tinyscale/base/shape.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/compute/elementwise.hpp"
#include "tinyscale/measure/context.hpp"
#include "tinyscale/measure/memory.hpp"
#include "tinyscale/tensor/storage.hpp"

namespace tinyscale {

namespace detail {

struct Node;

// Where a tensor's gradient gathers; `node` is null for a leaf (a parameter).
struct GradSlot {
  Shape shape;
  Shared<Node> node;
  Shared<Storage> grad;
  int order = 0;  // longest path from a leaf: the backward pass runs in falling order
  bool queued = false;

  ~GradSlot();
};

}  // namespace detail

class Tensor {
 public:
  Tensor() = default;
  // Uninitialised numbers; users call zeros, full, randn, ...
  explicit Tensor(const Shape& shape) : Tensor(shape, context().kind) {}
  Tensor(const Shape& shape, MemoryKind kind)
      : shape_(shape), storage_(new detail::Storage(shape, kind)) {}
  Tensor(const Shape& shape, Shared<detail::Storage> storage)
      : shape_(shape), storage_(std::move(storage)) {}

  bool defined() const { return storage_ != nullptr; }
  const Shape& shape() const { return shape_; }
  int dims() const { return shape_.size(); }
  std::int64_t dim(int i) const { return shape_[i]; }  // negative i counts from the end
  std::int64_t count() const { return storage_ ? storage_->count : 0; }
  float* data() { return checked().data; }
  const float* data() const { return checked().data; }
  const Shared<detail::Storage>& storage() const { return storage_; }

  // The one number of a tensor of one element.
  float item() const {
    if (count() != 1) {
      throw Error(detail::cat("item: the tensor has ", count(), " elements, shape ", shape_.text(),
                              "; item() needs exactly 1"));
    }
    return data()[0];
  }
  float at(std::initializer_list<Dim> index) const {
    if (static_cast<int>(index.size()) != dims()) {
      throw Error(detail::cat("at: ", index.size(), " indices given for shape ", shape_.text(),
                              "; one per dimension is right"));
    }
    std::int64_t offset = 0;
    int axis = 0;
    for (const Dim& i : index) {
      if (i.value < 0 || i.value >= shape_[axis]) {
        throw Error(detail::cat("at: index ", i.value, " in dimension ", axis, " is outside shape ",
                                shape_.text()));
      }
      offset = offset * shape_[axis] + i.value;
      ++axis;
    }
    return data()[offset];
  }
  std::vector<float> values() const {
    return count() == 0 ? std::vector<float>() : std::vector<float>(data(), data() + count());
  }

  bool requires_grad() const { return slot_ != nullptr; }
  const Shared<detail::GradSlot>& slot() const { return slot_; }
  void set_slot(Shared<detail::GradSlot> slot) { slot_ = std::move(slot); }

  // The same numbers, cut off from the graph.
  Tensor detach() const { return Tensor(shape_, storage_); }
  // A copy of the numbers, cut off from the graph.
  Tensor clone() const {
    Tensor copy = storage_ ? Tensor(shape_) : Tensor();
    if (count() > 0) {
      std::memcpy(copy.data(), data(), storage_->bytes());
    }
    return copy;
  }

  // The gathered gradient; an empty Tensor before backward() or after zero_grad().
  Tensor grad() const {
    return slot_ && slot_->grad ? Tensor(slot_->shape, slot_->grad) : Tensor();
  }
  void zero_grad() const {
    if (slot_) {
      slot_->grad.reset();
    }
  }
  // Gradients of this scalar with respect to every parameter behind it; frees the graph.
  void backward() const;

 private:
  const detail::Storage& checked() const {
    if (!storage_) {
      throw Error(
          "data: the tensor is empty (default-constructed); make one with zeros, full, ...");
    }
    return *storage_;
  }

  Shape shape_;
  Shared<detail::Storage> storage_;
  Shared<detail::GradSlot> slot_;
};

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
  value.data();  // an empty one throws
  Tensor leaf(value.shape(), MemoryKind::parameter);
  if (value.count() > 0) {
    std::memcpy(leaf.data(), value.data(), static_cast<std::size_t>(value.count()) * sizeof(float));
  }
  leaf.set_slot(Shared<detail::GradSlot>(new detail::GradSlot));
  leaf.slot()->shape = value.shape();
  return leaf;
}

namespace detail {

// What an op does with the gradient of its result: std::function<void(const Tensor& dy)>, at a
// fraction of its price to the compiler.
class Backward {
 public:
  Backward() = default;
  template <class F>
  Backward(F body) : body_(new F(std::move(body))), run_(&run<F>), drop_(&drop<F>) {}
  Backward(Backward&& other) noexcept : body_(other.body_), run_(other.run_), drop_(other.drop_) {
    other.body_ = nullptr;
  }
  Backward& operator=(Backward&& other) noexcept {
    reset();
    body_ = other.body_;
    run_ = other.run_;
    drop_ = other.drop_;
    other.body_ = nullptr;
    return *this;
  }
  ~Backward() { reset(); }

  explicit operator bool() const { return body_ != nullptr; }
  void operator()(const Tensor& dy) const { run_(body_, dy); }
  void reset() {
    if (body_ != nullptr) {
      void* body = body_;
      body_ = nullptr;
      drop_(body);
    }
  }

 private:
  template <class F>
  static void run(void* body, const Tensor& dy) {
    (*static_cast<F*>(body))(dy);
  }
  template <class F>
  static void drop(void* body) {
    delete static_cast<F*>(body);
  }

  void* body_ = nullptr;
  void (*run_)(void* body, const Tensor& dy) = nullptr;
  void (*drop_)(void* body) = nullptr;
};
using Slot = Shared<GradSlot>;

// One op of the graph: where the gradient goes and how.
struct Node {
  const char* name = "";
  List<Slot> inputs;
  Backward backward;
};

// The graph behind a slot in a loop: a long chain of ops would overflow the stack if each op's end
// were called by that of the op after it. An op's closure holds no slots but those of its inputs.
inline GradSlot::~GradSlot() {
  if (!node) {
    return;
  }
  List<Shared<Node>> ending;
  ending.push_back(std::move(node));
  while (!ending.empty()) {
    const Shared<Node> op = std::move(ending.back());
    ending.pop_back();
    if (op.use_count() != 1) {  // no op, or one that somebody else holds
      continue;
    }
    op->backward.reset();
    for (Slot& input : op->inputs) {
      if (input.use_count() == 1) {
        ending.push_back(std::move(input->node));
      }
      input.reset();
    }
  }
}

// The gradient buffer of a slot, zero at first use. A leaf's is a gradient, the rest activations.
inline float* grad_buffer(const Slot& slot) {
  if (!slot->grad) {
    const MemoryKind kind = slot->node ? MemoryKind::activation : MemoryKind::gradient;
    slot->grad.reset(new Storage(slot->shape, kind));
    std::memset(slot->grad->data, 0, slot->grad->bytes());
  }
  return slot->grad->data;
}

// Adds dx to a slot's gradient; takes the buffer over when it is the first and nobody else's.
inline void add_grad(const Slot& slot, const Tensor& dx) {
  if (!slot->grad && slot->node && dx.storage().use_count() == 1) {
    slot->grad = dx.storage();
    return;
  }
  float* out = grad_buffer(slot);
  kernel::add(dx.count(), out, dx.data(), out);
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
inline void attach(Tensor& result, const char* name, std::initializer_list<const Tensor*> inputs,
                   Backward backward) {
  const Slot slot(new GradSlot);
  slot->shape = result.shape();
  slot->node.reset(new Node);
  slot->node->name = name;
  slot->node->backward = std::move(backward);
  for (const Tensor* input : inputs) {
    if (input->requires_grad()) {
      slot->node->inputs.push_back(input->slot());
      slot->order = std::max(slot->order, input->slot()->order + 1);
    }
  }
  result.set_slot(slot);
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
    throw Error("backward: no parameter stands behind this tensor; wrap one with parameter()");
  }
  if (count() != 1) {
    throw Error(detail::cat("backward: the loss must be one number, this has shape ", shape_.text(),
                            "; take mean() or sum() first"));
  }
  NoGrad no_graph_of_the_backward_pass;
  *detail::grad_buffer(slot_) += 1.0f;
  detail::ReadyOps ready;
  if (slot_->node) {
    ready.push(slot_);
  }
  while (!ready.empty()) {
    const detail::Slot slot = ready.pop();
    const Shared<detail::Node> node = slot->node;
    if (!node->backward) {
      throw Error("backward: this graph was used before and is freed; run the forward pass again");
    }
    if (slot->grad) {
      node->backward(Tensor(slot->shape, std::move(slot->grad)));
      slot->grad.reset();
    }
    node->backward.reset();
    for (const detail::Slot& input : node->inputs) {
      if (input->node && !input->queued) {
        ready.push(input);
      }
    }
    node->inputs.clear();
  }
}

// Prints the shape and at most the first eight numbers.
inline std::ostream& operator<<(std::ostream& out, const Tensor& t) {
  out << t.shape().text() << " {";
  for (std::int64_t i = 0; i < t.count() && i < 8; ++i) {
    out << (i ? ", " : "") << t.data()[i];
  }
  return out << (t.count() > 8 ? ", ...}" : "}");
}

}  // namespace tinyscale
