#pragma once
// A trace: a function of tensors run once on placeholders of given shapes, and its ops run again on
// other tensors, each by a rule. What grad and vmap are built on: run again where ops are recorded
// they are recorded, else they run, so that transforms nest and compile.

#include <cstddef>  // size_t
#include <cstdint>  // int32_t
#include <string>   // file names
#include <vector>   // vector

#include "tinyscale/base/function.hpp"
#include "tinyscale/compile/differentiate.hpp"
#include "tinyscale/compile/evaluate.hpp"
#include "tinyscale/compile/graph_writer.hpp"

namespace tinyscale {

// What compile, grad, vmap and jacobian take; all but compile give one back.
using TensorFunction = Function<std::vector<Tensor>(const std::vector<Tensor>&)>;

namespace detail {

// While alive, a NoGrad outside of a transformed function does not reach into it.
class GradientsOn {
 public:
  GradientsOn() : before_(context().no_grad) { context().no_grad = 0; }
  ~GradientsOn() { context().no_grad = before_; }
  GradientsOn(const GradientsOn&) = delete;
  GradientsOn& operator=(const GradientsOn&) = delete;

 private:
  int before_;
};

class Trace final : public GraphWriter {
 public:
  List<char> tracked;   // of each result: whether a gradient flows through it
  int in_gradient = 0;  // of ops that are written now: they compute what grad returns

  explicit Trace(const char* name) : name_(name), outer_(thread_recorder()) {}

  void run(const TensorFunction& body, const List<Shape>& shapes) {
    std::vector<Tensor> handles;
    for (const Shape& shape : shapes) {
      handles.push_back(tensor_of(node_of(input(shape)), true));
    }
    const GradientsOn on;
    const RecorderScope scope(this);
    const std::vector<Tensor> results = body(handles);
    for (const Tensor& y : results) {
      if (!y.defined()) {
        fail({name_, ": result ", graph.outputs.size(), " of the function is an empty tensor"});
      }
      returns(y);
    }
    if (results.empty()) {
      fail({name_, ": the function returns no tensors; at least one is right"});
    }
  }
  void returns(const Tensor& y) {
    graph.outputs.push_back(node_of(y));
    tracked.push_back(y.requires_grad());
  }

  // Whether the node computes what grad returns: no gradient of backward() flows through it.
  bool is_gradient(int node) const {
    const auto i = static_cast<std::size_t>(node);
    return i < gradients_.size() && gradients_[i] != 0;
  }

  Tensor record(Op op, const Tensor* const* inputs, std::size_t n, const Shape& shape,
                const List<double>& numbers) override {
    Tensor y = GraphWriter::record(op, inputs, n, shape, numbers);
    if (in_gradient > 0) {
      gradients_.resize(graph.nodes.size());
      gradients_.back() = 1;
    }
    return y;
  }
  Tensor host(const Function<Tensor()>& read, const Shape& shape) override {
    const RecorderScope scope(outer_);
    return outer_ != nullptr ? outer_->host(read, shape) : read();
  }
  void write(const char* name, const Tensor& x, const Tensor&) override {
    fail({name_, ": ", name, " writes to a ", x.shape(),
          " tensor inside the function; a transformed function computes its results from its ",
          "arguments and changes nothing: use an op with a result of its own"});
  }
  void backward(const Tensor& y, const Tensor*) override {
    fail({name_, ": backward() of a ", y.shape(),
          " tensor inside the function; a transformed function has no parameters: take the ",
          "gradient with grad(f)"});
  }
  float* read(Storage& storage, const char* file, int line) override {
    const std::string path = file;
    const std::size_t slash = path.find_last_of('/');
    fail({name_, ": ", slash == std::string::npos ? path : path.substr(slash + 1), ":", line,
          " reads a number of a tensor of ", storage.count,
          " inside the function, where tensors have shapes and no numbers yet; choose with ",
          "where(), or return the tensor and read it outside"});
  }

 protected:
  Tensor unbound_ids(const std::vector<std::int32_t>& ids, const Shape& shape) override {
    if (outer_ == nullptr) {
      return GraphWriter::unbound_ids(ids, shape);
    }
    const RecorderScope scope(outer_);
    return outer_->ids(ids, shape);
  }
  // Of what is recorded outside there are no numbers to tell it by. Of two handles to the same
  // numbers the one with a gradient stays.
  int outside(const Tensor& x) override {
    if (x.is_recorded() && x.storage()->data == nullptr && x.storage()->node < 0) {
      fail({name_, ": the function uses a ", x.shape(),
            " tensor that was recorded in a call which is over; return it from the function that ",
            "makes it"});
    }
    for (std::size_t i = 0; i < graph.constants.size(); ++i) {
      Tensor& known = graph.constants[i];
      if (known.storage().get() == x.storage().get() && known.shape() == x.shape() &&
          (known.is_recorded() || (known.origin() == x.origin() && same_steps(known, x))) &&
          (!known.slot() || !x.slot() || known.slot().get() == x.slot().get())) {
        known = known.slot() ? known : x;
        return constant_nodes_[i];
      }
    }
    const int node = add(Op::constant, {}, x.shape(), {double(graph.constants.size())});
    graph.constants.push_back(x);
    constant_nodes_.push_back(node);
    return node;
  }

 private:
  static bool same_steps(const Tensor& a, const Tensor& b) {
    return a.is_contiguous() == b.is_contiguous() && a.strides() == b.strides();
  }

  const char* name_;
  Recorder* outer_;
  List<char> gradients_;
};

// While alive, ops on this thread compute what grad returns: for backward() they are constants,
// for a transform around them they are ops like any other.
class InGradient {
 public:
  InGradient() : trace_(dynamic_cast<Trace*>(thread_recorder())) {
    ++(trace_ != nullptr ? trace_->in_gradient : context().no_grad);
  }
  ~InGradient() { --(trace_ != nullptr ? trace_->in_gradient : context().no_grad); }
  InGradient(const InGradient&) = delete;
  InGradient& operator=(const InGradient&) = delete;

 private:
  Trace* trace_;
};

// An op on these tensors, recorded or run; of an op of several results those whose bit is set in
// `wanted`, of these shapes.
inline Parts apply_op(const GraphNode& call, const Parts& in, unsigned wanted,
                      const List<Shape>& shapes) {
  if (!recording()) {
    Parts out =
        is_primitive(call.op) ? Parts{evaluate_primitive(call, in)} : evaluate_composite(call, in);
    if (call.op == Op::scatter_add && tracked({&in[1]})) {
      attach(out[0], "scatter_add", {&in[1]},
             [ids = in[0].detach(), shape = in[1].shape(), slot = in[1].slot()](const Tensor& dy) {
               add_grad(slot, reshape(embedding(dy, ids), shape));
             });
    }
    return out;
  }
  List<const Tensor*> operands;
  for (const Tensor& x : in) {
    operands.push_back(&x);
  }
  const Tensor y = thread_recorder()->record(call.op, operands.data(), operands.size(), call.shape,
                                             call.numbers);
  const int parts = facts_of(call.op).parts;
  if (parts == 1) {
    return {y};
  }
  Parts out(static_cast<std::size_t>(parts));
  for (std::size_t p = 0; p < out.size(); ++p) {
    if ((wanted >> p & 1U) != 0) {
      out[p] = thread_recorder()->part(y, static_cast<int>(p), shapes[p]);
    }
  }
  return out;
}

// Shapes of a node's results.
inline List<Shape> part_shapes(const Graph& graph, int node) {
  List<Shape> shapes;
  if (facts_of(graph[node].op).parts == 1) {
    return {graph[node].shape};
  }
  for (int p = 0; p < facts_of(graph[node].op).parts; ++p) {
    shapes.push_back(part_shape(graph, graph[node], p));
  }
  return shapes;
}

// The ops that some nodes need, each by a rule.
class Rerun {
 public:
  // The results of a node for these operands; of several those whose bit is set in `wanted`.
  using Rule = Function<Parts(int node, const Parts& in, unsigned wanted)>;

  Rerun(const Trace& trace, const List<int>& outputs)
      : trace_(trace), uses_(trace.graph.nodes.size()), parts_(trace.graph.nodes.size()) {
    for (const int node : outputs) {
      ++uses_[at(node)];
    }
    for (int i = trace.graph.size() - 1; i >= 0; --i) {
      const GraphNode& node = trace.graph[i];
      for (std::size_t k = 0; uses_[at(i)] > 0 && k < node.inputs.size(); ++k) {
        ++uses_[at(node.inputs[k])];
        parts_[at(node.inputs[k])] |= node.op == Op::part ? 1U << node.whole(0) : 1U;
      }
    }
    outputs_ = outputs;
  }

  Parts run(const Parts& inputs, const Rule& rule) {
    const Graph& graph = trace_.graph;
    List<Parts> values(graph.nodes.size());
    for (int i = 0; i < graph.size(); ++i) {
      const GraphNode& node = graph[i];
      if (uses_[at(i)] == 0) {
        continue;
      }
      Parts& value = values[at(i)];
      if (node.op == Op::input) {
        value = {inputs[static_cast<std::size_t>(node.whole(0))]};
      } else if (node.op == Op::constant) {
        value = {graph.constants[static_cast<std::size_t>(node.whole(0))]};
      } else if (node.op == Op::part) {
        value = {values[at(node.inputs[0])][static_cast<std::size_t>(node.whole(0))]};
      } else {
        Parts in;
        for (std::size_t k = 0; k < node.inputs.size(); ++k) {
          const Tensor& x = values[at(node.inputs[k])][0];
          in.push_back(flows_to(node.grads, k) && context().no_grad == 0 ? x : x.detach());
        }
        value = call(i, in, rule);
      }
      for (const int input : node.inputs) {  // what nobody needs any more
        if (--uses_[at(input)] == 0) {
          values[at(input)].clear();
        }
      }
    }
    Parts out;
    for (const int node : outputs_) {
      out.push_back(values[at(node)][0]);
    }
    return out;
  }

 private:
  static std::size_t at(int node) { return static_cast<std::size_t>(node); }
  Parts call(int node, const Parts& in, const Rule& rule) const {
    if (trace_.is_gradient(node)) {
      const InGradient scope;
      return rule(node, in, parts_[at(node)]);
    }
    return rule(node, in, parts_[at(node)]);
  }

  const Trace& trace_;
  List<int> uses_;  // that are still to come
  List<unsigned> parts_;
  List<int> outputs_;
};

// The same ops in the trace `to`, those that are marked as the primitives that they are made of;
// where none is, the trace as it is.
inline Trace& take_apart(Trace& from, const List<char>& marked, Trace& to) {
  bool any = false;
  for (const char mark : marked) {
    any = any || mark != 0;
  }
  if (!any) {
    return from;
  }
  Parts inputs;
  for (const int input : from.graph.inputs) {
    inputs.push_back(to.tensor_of(to.node_of(to.input(from.graph[input].shape)), true));
  }
  const GradientsOn on;
  const RecorderScope scope(&to);
  Rerun rerun(from, from.graph.outputs);
  const Parts results = rerun.run(inputs, [&](int i, const Parts& in, unsigned wanted) {
    const GraphNode& node = from.graph[i];
    return marked[static_cast<std::size_t>(i)] != 0
               ? decompose(node.op, in, node.numbers)
               : apply_op(node, in, wanted, part_shapes(from.graph, i));
  });
  for (std::size_t i = 0; i < results.size(); ++i) {
    to.returns(from.tracked[i] != 0 ? results[i] : results[i].detach());
  }
  return to;
}

}  // namespace detail
}  // namespace tinyscale
