#pragma once
// The graph of ops behind a tensor, for reverse-mode differentiation (a Wengert list as a graph).
// A slot holds the gradient apart from the numbers, so that a result whose value the backward pass
// does not need is freed at once.

#include <cstddef>  // size_t
#include <new>      // placement

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/pool.hpp"
#include "tinyscale/base/shape.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/tensor/storage.hpp"

namespace tinyscale {

class Tensor;

namespace detail {

// What an op does with the gradient of its result: std::function<void(const Tensor& dy)>, at a
// fraction of its price to the compiler.
class Backward {
 public:
  Backward() = default;
  template <class F>
  Backward(F body)
      : body_(new (pool_take(1, sizeof(F))) F(static_cast<F&&>(body))),
        run_(&run<F>),
        drop_(&drop<F>) {}
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
    static_cast<F*>(body)->~F();
    pool_give(body, 1, sizeof(F));
  }

  void* body_ = nullptr;
  void (*run_)(void* body, const Tensor& dy) = nullptr;
  void (*drop_)(void* body) = nullptr;
};

// Where a tensor's gradient gathers, and the op behind the tensor: where the gradient goes, and
// how.
struct GradSlot {
  Shape shape;
  Shared<Storage> grad;
  Shared<Storage> value;  // of a revocable leaf, or of an op with `again`: its numbers, null while
                          // they are freed
  int order = 0;          // longest path from a leaf: the backward pass runs in falling order
  bool queued = false;
  bool leaf = true;        // a parameter: no op stands behind it
  bool fresh = false;      // grad is a place given in advance, with nothing written yet
  bool revocable = false;  // a leaf whose numbers may be freed between forward and backward
  MemoryKind kind = MemoryKind::gradient;  // what the gradient is allocated as
  int depth = 0;                           // recomputations that this op was run inside of
  int device = context().device;           // whose program made it
  const char* name = "";
  Backward backward;
  Backward again;       // puts the op's result in the tensor given, so that none keeps it; or empty
  int input_count = 0;  // they stand behind this struct, in its block

  ~GradSlot() {
    if (input_count > 0) {
      end_graph();
    }
  }
  Shared<GradSlot>* inputs() { return reinterpret_cast<Shared<GradSlot>*>(this + 1); }
  void add_input(const Shared<GradSlot>& slot) {
    new (inputs() + input_count) Shared<GradSlot>(slot);
    ++input_count;
    order = slot->order < order ? order : slot->order + 1;
  }
  void drop_inputs() {
    for (; input_count > 0; --input_count) {
      inputs()[input_count - 1].~Shared();
    }
  }
  void end_graph();
};
using Slot = Shared<GradSlot>;

// The graph behind a slot in a loop: a long chain of ops would overflow the stack if each op's end
// were called by that of the op after it. An op's closure holds no slots but those of its inputs.
inline void GradSlot::end_graph() {
  List<Slot> ending;
  GradSlot* op = this;
  for (Slot last;;) {
    op->backward.reset();
    for (int i = 0; i < op->input_count; ++i) {
      ending.push_back(std::move(op->inputs()[i]));
    }
    op->drop_inputs();
    do {  // the next that nobody else holds
      if (ending.empty()) {
        return;
      }
      last = std::move(ending.back());
      ending.pop_back();
    } while (last.use_count() != 1);
    op = last.get();
  }
}

}  // namespace detail
}  // namespace tinyscale
