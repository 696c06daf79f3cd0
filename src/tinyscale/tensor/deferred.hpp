#pragma once
// Weight gradients that wait: the backward pass in two parts, B (dx, which the layer before waits
// for) and W (dw, which only the optimizer does), as zero-bubble pipelines run it (arXiv
// 2401.10241).

#include <cstddef>  // size_t
#include <utility>  // move

#include "tinyscale/base/list.hpp"
#include "tinyscale/tensor/backward.hpp"

namespace tinyscale {

// Until stop(), matrix products of this context leave the gradients of parameters (w, and the bias
// with it) to run(); inputs and dy are held for it. Norms, embedding tables and
// linear_cross_entropy, whose dw is made in its forward pass, do not wait, nor do compiled
// functions, whose backward pass is one graph. What is never run is lost.
class DeferWeightGradients {
 public:
  DeferWeightGradients() : context_(&context()), previous_(context_->deferred) {
    context_->deferred = this;
  }
  ~DeferWeightGradients() { stop(); }
  DeferWeightGradients(const DeferWeightGradients&) = delete;
  DeferWeightGradients& operator=(const DeferWeightGradients&) = delete;

  // From here on nothing more waits; scopes end in the opposite order of their begin.
  void stop() {
    if (context_ != nullptr) {
      context_->deferred = previous_;
      context_ = nullptr;
    }
  }

  // Does what waits, in the order of the backward pass, and lets its operands go.
  void run() {
    const NoGrad no_graph;
    Context own = context();
    own.deferred = nullptr;
    const ContextScope scope(own);
    List<Work> works = std::move(works_);
    for (Work& next : works) {
      const Work work = std::move(next);
      own.matmul_format = work.format;
      work.body(work.dy);
    }
  }

  std::size_t waiting() const { return works_.size(); }
  // Whether a part of this gradient waits: what is added to it must wait as well, to keep order.
  bool waits_for(const detail::Slot& slot) const {
    for (const Work& work : works_) {
      if (work.slot.get() == slot.get()) {
        return true;
      }
    }
    return false;
  }
  void push(const detail::Slot& slot, const Tensor& dy, detail::Backward body) {
    works_.push_back(Work{slot, dy, context().matmul_format, std::move(body)});
  }

 private:
  struct Work {
    detail::Slot slot;
    Tensor dy;
    detail::ProductFormat format;
    detail::Backward body;
  };

  Context* context_;
  DeferWeightGradients* previous_;
  List<Work> works_;
};

}  // namespace tinyscale
