#pragma once
// Ops that a kernel of their own computes, straight into the memory that a plan gives them.

#include <cstddef>  // size_t
#include <cstdint>  // int32_t
#include <cstring>  // memcpy, memset

#include "tinyscale/compile/evaluate.hpp"
#include "tinyscale/compile/step.hpp"
#include "tinyscale/compute/adamw.hpp"

namespace tinyscale {
namespace detail {

// Ops in its scope are not counted.
class Uncounted {
 public:
  Uncounted() : profile_(context().profile) { context().profile = nullptr; }
  ~Uncounted() { context().profile = profile_; }
  Uncounted(const Uncounted&) = delete;
  Uncounted& operator=(const Uncounted&) = delete;

 private:
  Profile* profile_;
};

// What a kernel step sees: tensors in the order of the node's operands, and where results go (an
// empty one is not wanted).
struct NodeKernel {
  const Graph& graph;
  const GraphNode& node;
  const Tensor* const* in;
  Tensor* const* out;

  void operator()() const {
    switch (node.op) {
      case Op::softmax:
        kernels::softmax_forward(rows(), columns(), in[0]->data(), out[0]->data());
        return;
      case Op::layer_norm:
        kernels::layer_norm_forward(rows(), columns(), static_cast<float>(node.numbers[0]),
                                    in[0]->data(), in[1]->data(), optional(2), out[0]->data(),
                                    out[1]->data(), out[2]->data());
        return;
      case Op::layer_norm_backward:
        zero(1);
        zero(2);
        kernels::layer_norm_backward(rows(), columns(), in[0]->data(), in[1]->data(), in[2]->data(),
                                     in[3]->data(), in[4]->data(), out[0]->data(), out[1]->data(),
                                     out[2]->data(), 0.0f);
        return;
      case Op::rms_norm:
        kernels::rms_norm_forward(rows(), columns(), static_cast<float>(node.numbers[0]),
                                  in[0]->data(), in[1]->data(), out[0]->data(), out[1]->data());
        return;
      case Op::rms_norm_backward:
        zero(1);
        kernels::rms_norm_backward(rows(), columns(), in[0]->data(), in[1]->data(), in[2]->data(),
                                   in[3]->data(), out[0]->data(), out[1]->data(), 0.0f);
        return;
      case Op::cross_entropy: cross_entropy_forward(); return;
      case Op::cross_entropy_backward: cross_entropy_backward(); return;
      case Op::linear_cross_entropy:
      case Op::linear_cross_entropy_all: linear_loss(); return;
      case Op::attention: {
        const kernels::AttentionShape s = attention_of();
        kernels::attention_forward(s, in[0]->origin(), in[1]->origin(), in[2]->origin(),
                                   out[0]->data(), out[1]->data());
        return;
      }
      case Op::attention_backward: {
        const kernels::AttentionShape s = attention_of();
        kernels::attention_backward(s, in[0]->data(), in[1]->data(), in[2]->data(), in[3]->data(),
                                    in[4]->data(), in[5]->data(), out[0]->data(), out[1]->data(),
                                    out[2]->data(), 0.0f);
        return;
      }
      case Op::rope: turn(); return;
      case Op::dropout:
        drop_elements(in[0]->data(), out[0]->data(), static_cast<float>(node.numbers[0]),
                      seed_from(node.numbers[1], node.numbers[2]), drop_places(node.numbers), 0.0f);
        return;
      case Op::adamw: update(); return;
      case Op::take: take_rows(); return;
      case Op::scatter_add: add_rows(); return;
      default: by_eager_op(); return;
    }
  }

 private:
  std::int64_t columns() const { return in[0]->dim(-1); }
  std::int64_t rows() const { return in[0]->count() / columns(); }
  const float* optional(std::size_t i) const {
    return node.inputs.size() > i ? in[i]->data() : nullptr;
  }
  void zero(int i) const {
    float* const to = out[i]->data();
    std::memset(to, 0, static_cast<std::size_t>(out[i]->count()) * sizeof(float));
  }

  // What the user called to have this op.
  const char* called() const {
    return node.op == Op::take                       ? "embedding"
           : node.op == Op::linear_cross_entropy_all ? "linear_cross_entropy"
                                                     : name_of(node.op);
  }

  // Whole numbers of a tensor, each from `least` to below `end`.
  List<std::int32_t> numbers_of(const char* what, const Tensor& ids, std::int64_t least,
                                std::int64_t end) const {
    List<std::int32_t> out_ids(static_cast<std::size_t>(ids.count()));
    const Tensor dense = ids.is_contiguous() ? ids : ids.copied();
    const float* const from = dense.data();
    for (std::size_t i = 0; i < out_ids.size(); ++i) {
      const float id = from[i];
      if (!(id >= static_cast<float>(least) && id < static_cast<float>(end))) {
        fail({called(), ": ", what, " ", id, " at position ", i, " is outside the ", end,
              node.op == Op::take || node.op == Op::scatter_add ? " rows" : " classes"});
      }
      out_ids[i] = static_cast<std::int32_t>(id);
      if (static_cast<float>(out_ids[i]) < id || static_cast<float>(out_ids[i]) > id) {
        fail({called(), ": ", what, " ", id, " at position ", i, " is no whole number"});
      }
    }
    return out_ids;
  }
  static double counted(const List<std::int32_t>& targets) {
    std::int64_t n = 0;
    for (const std::int32_t target : targets) {
      n += target >= 0 ? 1 : 0;
    }
    return static_cast<double>(n > 0 ? n : 1);
  }
  static float mean(const List<float>& losses, double n) {
    double total = 0;
    for (const float loss : losses) {
      total += static_cast<double>(loss);
    }
    return static_cast<float>(total / n);
  }

  void cross_entropy_forward() const {
    const List<std::int32_t> targets = numbers_of("target", *in[1], -1, columns());
    List<float> losses(targets.size()), lse(targets.size());
    kernels::cross_entropy_forward(rows(), columns(), in[0]->data(), targets.data(), losses.data(),
                                   lse.data());
    *out[0]->data() = mean(losses, counted(targets));
  }
  // The log-sum-exp is made again: reading the logits once more costs less than keeping rows apart.
  void cross_entropy_backward() const {
    const List<std::int32_t> targets = numbers_of("target", *in[1], -1, columns());
    List<float> losses(targets.size()), lse(targets.size()), top(targets.size());
    kernels::cross_entropy_forward(rows(), columns(), in[0]->data(), targets.data(), losses.data(),
                                   lse.data(), top.data());
    kernels::cross_entropy_backward(
        rows(), columns(), in[0]->data(), lse.data(), targets.data(),
        static_cast<float>(static_cast<double>(in[2]->item()) / counted(targets)), out[0]->data(),
        0.0f, top.data());
  }
  void linear_loss() const {
    const std::int64_t vocabulary = in[1]->dim(0);
    const List<std::int32_t> targets = numbers_of("target", *in[2], -1, vocabulary);
    List<float> losses(targets.size()), lse(targets.size());
    const double n = counted(targets);
    const bool all = node.op == Op::linear_cross_entropy_all;
    if (all) {
      kernels::linear_cross_entropy(
          {rows(), columns(), vocabulary, in[0]->data(), in[1]->data(), targets.data(),
           static_cast<float>(1.0 / n), out[1]->data(), out[2]->data(), 0.0f, 0.0f},
          losses.data(), lse.data());
    } else {
      kernels::linear_cross_entropy_forward(rows(), columns(), vocabulary, in[0]->data(),
                                            in[1]->data(), targets.data(), losses.data(),
                                            lse.data());
    }
    *out[0]->data() = mean(losses, n);
  }

  kernels::AttentionShape attention_of() const {
    return attention_shape(*in[0], *in[1], *in[2], node.whole(0), node.whole(1),
                           node.numbers[2] > 0 ? Mask::causal : Mask::none, node.whole(3));
  }

  void turn() const {
    kernels::RopeShape s;
    s.batch = in[0]->dim(0);
    s.tokens = in[0]->dim(1);
    s.head_size = node.whole(0);
    s.heads = in[0]->dim(2) / s.head_size;
    s.pairs = node.whole(1) == 0 ? RopePairs::interleaved : RopePairs::halves;
    s.places = TokenPlaces(node.whole(3), node.whole(4), node.whole(5));
    s.theta = node.numbers[6];
    List<float> factors;
    for (std::size_t i = 7; i < node.numbers.size(); ++i) {
      factors.push_back(static_cast<float>(node.numbers[i]));
    }
    s.factors = factors.empty() ? nullptr : factors.data();
    const kernels::RopeTurn how =
        node.whole(2) == 0 ? kernels::RopeTurn::forward : kernels::RopeTurn::inverse;
    kernels::rope(s, how, in[0]->data(), out[0]->data());
  }

  // In place where the plan says so: the kernel reads each number before it writes it.
  void update() const {
    for (int i = 0; i < 3; ++i) {
      const Tensor& from = *in[i == 0 ? 0 : i + 1];
      if (out[i]->data() != from.data()) {
        std::memcpy(out[i]->data(), from.data(),
                    static_cast<std::size_t>(from.count()) * sizeof(float));
      }
    }
    const float* const f = in[4]->data();
    kernels::AdamWFactors s;
    s.beta1 = f[0];
    s.beta2 = f[1];
    s.epsilon = f[2];
    s.decay = f[3];
    s.rate = f[4];
    s.root = f[5];
    s.grad_scale = in[5]->item();
    kernels::adamw(in[0]->count(), s, in[1]->data(), out[0]->data(), out[1]->data(),
                   out[2]->data());
  }

  void take_rows() const {
    const std::int64_t width = in[0]->dim(1);
    const List<std::int32_t> ids = numbers_of("id", *in[1], 0, in[0]->dim(0));
    const float* const table = in[0]->data();
    float* to = out[0]->data();
    for (const std::int32_t id : ids) {
      std::memcpy(to, table + id * width, static_cast<std::size_t>(width) * sizeof(float));
      to += width;
    }
  }
  void add_rows() const {
    if (node.inputs.size() < 3) {
      zero(0);
    } else if (out[0]->data() != in[2]->data()) {
      std::memcpy(out[0]->data(), in[2]->data(),
                  static_cast<std::size_t>(in[2]->count()) * sizeof(float));
    }
    const std::int64_t width = in[1]->dim(-1);
    const List<std::int32_t> ids = numbers_of("id", *in[0], 0, node.shape[0]);
    const float* from = in[1]->data();
    for (const std::int32_t id : ids) {
      float* const to = out[0]->data() + id * width;
      kernels::add(width, to, from, to);
      from += width;
    }
  }

  void by_eager_op() const {
    Parts operands;
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      operands.push_back(*in[i]);
    }
    Context silent = context();
    silent.profile = nullptr;  // the step is counted, not what it calls
    const ContextScope scope(silent);
    const Parts results = evaluate_node(node, operands);
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (out[i] != nullptr) {
        const Tensor dense = results[i].is_contiguous() ? results[i] : results[i].copied();
        std::memcpy(out[i]->data(), dense.data(),
                    static_cast<std::size_t>(dense.count()) * sizeof(float));
      }
    }
  }
};

}  // namespace detail
}  // namespace tinyscale
