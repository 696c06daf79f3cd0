#pragma once
// A whole training step as one graph: forward, backward, clipping and update, captured once and run
// for every batch of that size. What changes from step to step comes in from outside: the batch,
// the learning rate.

#include <cmath>    // sqrt
#include <cstdint>  // int32_t
#include <vector>   // vector

#include "tinyscale/compile/compiled.hpp"
#include "tinyscale/model/train_step.hpp"
#include "tinyscale/tensor/matmul_format.hpp"

namespace tinyscale {

// Does what train_step does. The model, the optimizer and the options of both outlive it.
class CompiledStep {
 public:
  CompiledStep(const Transformer& model, AdamW& optimizer, const StepOptions& options,
               const CompileOptions& passes = CompileOptions())
      : model_(&model), optimizer_(&optimizer), options_(options), passes_(passes) {
    detail::check_options("compile_step", options);
    if (options.dropout > 0 || model.config.experts > 0 ||
        (options.format != DType::f32 && options.format != DType::bf16)) {
      detail::fail({"compile_step: dropout is ", options.dropout, ", experts ",
                    model.config.experts, ", format ", options.format.type,
                    "; a step without dropout of a dense model in f32 or bf16 is right: masks, ",
                    "routes and loss scales change what is computed from step to step"});
    }
    capture();
  }

  // A loss or norm that is not a number is an Error, as of train_step: nothing was updated then.
  StepResult operator()(const Batch& batch, std::int64_t step) {
    const std::int64_t before = optimizer_->steps();
    StepResult out;
    if (!same(moments_, optimizer_->moments()) || !same(squares_, optimizer_->squares())) {
      capture();  // AdamW::resume() put others in their place
    }
    try {
      optimizer_->options.learning_rate = detail::learning_rate_at(step, options_);
      const MatmulFormat format(options_.format);
      inputs_.resize(2);
      inputs_[0] = tokens(batch, batch.ids);
      inputs_[1] = tokens(batch, batch.targets);
      compiled_(inputs_, results_);
      out.loss = static_cast<double>(results_[0].item());
      out.grad_norm = static_cast<double>(results_[1].item());
      detail::check_finite("compile_step", "loss", out.loss, step, options_);
      detail::check_finite("compile_step", "gradient norm", out.grad_norm, step, options_);
    } catch (...) {
      optimizer_->resume(optimizer_->moments(), optimizer_->squares(), before);
      throw;
    }
    return out;
  }

  const Compiled& compiled() const { return compiled_; }

 private:
  void capture() {
    moments_ = optimizer_->moments();
    squares_ = optimizer_->squares();
    const Transformer& model = *model_;
    AdamW& optimizer = *optimizer_;
    const double clip = options_.clip;
    compiled_ =
        compile([&model, &optimizer,
                 clip](const std::vector<Tensor>& in) { return body(model, optimizer, clip, in); },
                passes_);
  }

  // Whether these are the tensors whose numbers the graph updates.
  static bool same(const std::vector<Tensor>& captured, const std::vector<Tensor>& now) {
    bool all = captured.size() == now.size();
    for (std::size_t i = 0; all && i < now.size(); ++i) {
      all = captured[i].storage().get() == now[i].storage().get();
    }
    return all;
  }

  static Tensor tokens(const Batch& batch, const std::vector<std::int32_t>& ids) {
    if (static_cast<std::int64_t>(ids.size()) != batch.sequences * batch.time) {
      detail::fail({"compile_step: ", ids.size(), " token numbers for ", batch.sequences,
                    " sequences of ", batch.time});
    }
    Tensor out(Shape{batch.sequences, batch.time});
    float* const to = out.data();
    for (std::size_t i = 0; i < ids.size(); ++i) {
      to[i] = static_cast<float>(ids[i]);
    }
    return out;
  }

  static std::vector<Tensor> body(const Transformer& model, AdamW& optimizer, double clip,
                                  const std::vector<Tensor>& in) {
    const std::vector<std::int32_t> ids(static_cast<std::size_t>(in[0].count()));
    const std::vector<std::int32_t> targets(static_cast<std::size_t>(in[1].count()));
    detail::Recorder& recorder = *detail::thread_recorder();
    recorder.bind_ids(ids, in[0]);
    recorder.bind_ids(targets, in[1]);
    const Tensor loss = model.loss(ids, targets, in[0].dim(0), in[0].dim(1));
    loss.backward();
    Tensor squares = full(Shape{}, 0.0f);
    for (const Tensor& parameter : optimizer.tensors()) {
      const Tensor grad = parameter.grad();
      squares = grad.defined() ? squares + sum(square(grad)) : squares;
    }
    const Tensor norm = sqrt(squares), one = full(Shape{}, 1.0f);
    const Tensor most = full(Shape{}, static_cast<float>(clip));
    // Not a number where the loss or the norm is none: the step does nothing then.
    const Tensor none = 0.0f * (loss.detach() + norm);
    optimizer.record_step((clip > 0 ? minimum(one, most / (norm + 1e-6f)) : one) + none);
    optimizer.zero_grad();
    return {loss.detach(), norm};
  }

  const Transformer* model_;
  AdamW* optimizer_;
  StepOptions options_;
  CompileOptions passes_;
  Compiled compiled_;
  std::vector<Tensor> moments_, squares_;  // that the graph updates
  std::vector<Tensor> inputs_, results_;   // of the last call: room for the next
};

// What train_step does, as one graph: call it with a Batch and the number of the step. Model and
// optimizer must outlive it.
inline CompiledStep compile_step(const Transformer& model, AdamW& optimizer,
                                 const StepOptions& options = StepOptions(),
                                 const CompileOptions& passes = CompileOptions()) {
  return CompiledStep(model, optimizer, options, passes);
}

}  // namespace tinyscale
