#pragma once
// Transforms of functions (Frostig, Johnson, Leary, Compiling machine learning programs via
// high-level tracing, 2018): grad(f) is the function that computes the gradient of f, vmap(f) the
// one that computes f of many examples at once. Both are functions again: they nest and compile.

#include <cstddef>  // size_t
#include <cstdint>  // int64_t
#include <string>   // messages
#include <vector>   // vector

#include "tinyscale/compile/batch_rules.hpp"
#include "tinyscale/compile/trace.hpp"

namespace tinyscale {

namespace detail {

inline void check_argument(const char* name, int argument, std::size_t given) {
  if (argument >= static_cast<int>(given)) {
    const std::string most = given > 1 ? cat({"0 to ", given - 1, " are right"}) : "0 is right";
    fail({name, ": the gradient for argument ", argument, " of a function that is given ",
          given == 0 ? "no argument" : cat({given, "; ", most})});
  }
}

inline List<Shape> shapes_of(const char* name, const std::vector<Tensor>& inputs) {
  List<Shape> shapes;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined()) {
      fail({name, ": argument ", i, " of ", inputs.size(), " is an empty tensor"});
    }
    shapes.push_back(inputs[i].shape());
  }
  return shapes;
}

// Whether a gradient cannot go through the node as it is: there is none of its own, or it would
// have to enter by a result that has none.
inline List<char> nodes_without_gradient(const Graph& graph) {
  List<char> without(graph.nodes.size());
  for (int i = 0; i < graph.size(); ++i) {
    const GraphNode& node = graph[i];
    switch (node.op) {
      case Op::gelu_slope:
      case Op::gelu_tanh_slope:
      case Op::silu_slope:
      case Op::layer_norm_backward:
      case Op::rms_norm_backward:
      case Op::cross_entropy_backward:
      case Op::attention_backward:
      case Op::linear_cross_entropy_all:
      case Op::adamw: without[static_cast<std::size_t>(i)] = node.grads != 0 ? 1 : 0; break;
      case Op::part:
        if (node.whole(0) > 0 && node.grads != 0) {
          without[static_cast<std::size_t>(node.inputs[0])] = 1;
        }
        break;
      default: break;
    }
  }
  return without;
}

// The nodes of f's results, then of the gradients of the first with respect to these arguments; -1:
// it does not depend on the argument.
inline List<int> add_gradients(Trace& trace, const List<int>& arguments) {
  List<int> nodes = trace.graph.outputs;
  Differentiation differentiation(trace, true);
  if (trace.tracked[0] != 0) {
    const GradientsOn on;
    const RecorderScope scope(&trace);
    const Shape shape = trace.graph[nodes[0]].shape;  // a copy: the graph grows
    differentiation.start(nodes[0], full(shape, 1.0f));
    differentiation.run();
  }
  for (const int argument : arguments) {
    const int input = trace.graph.inputs[static_cast<std::size_t>(argument)];
    nodes.push_back(trace.tracked[0] != 0 ? differentiation.gradient(input) : -1);
  }
  return nodes;
}

// The last of `all` shares no numbers with those before it, nor with `others`: whoever changes one
// gradient in place changes no other.
inline void own_numbers(std::vector<Tensor>& all, const std::vector<Tensor>& others) {
  Tensor& last = all.back();
  bool shared = false;
  for (std::size_t i = 0; i + 1 < all.size(); ++i) {
    shared = shared || &all[i].storage()->block() == &last.storage()->block();
  }
  for (const Tensor& other : others) {
    shared = shared || &other.storage()->block() == &last.storage()->block();
  }
  if (shared && !recording()) {
    last = last.copied();
  }
}

// f's results and the gradients of the first, for these inputs.
inline std::vector<Tensor> run_gradient(const char* name, const TensorFunction& f,
                                        const List<int>& arguments,
                                        const std::vector<Tensor>& inputs, bool values) {
  for (const int argument : arguments) {
    check_argument(name, argument, inputs.size());
  }
  Trace trace(name);
  trace.run(f, shapes_of(name, inputs));
  const Shape loss = trace.graph[trace.graph.outputs[0]].shape;
  if (loss.count() != 1) {
    fail({name, ": the first result of the function is ", loss,
          "; one number is right: take its sum() or mean(), or jacobian(f)"});
  }
  Trace primitives(name);
  Trace& whole = take_apart(trace, nodes_without_gradient(trace.graph), primitives);
  const std::size_t results = whole.graph.outputs.size();
  const List<int> nodes = add_gradients(whole, arguments);
  List<int> wanted;
  for (std::size_t i = values ? 0 : results; i < nodes.size(); ++i) {
    if (nodes[i] >= 0) {
      wanted.push_back(nodes[i]);
    }
  }
  const InGradient scope;
  Rerun rerun(whole, wanted);
  const Parts found = rerun.run(inputs, [&whole](int i, const Parts& in, unsigned parts) {
    return apply_op(whole.graph[i], in, parts, part_shapes(whole.graph, i));
  });
  std::vector<Tensor> out;
  std::size_t at = 0;
  for (std::size_t i = values ? 0 : results; i < nodes.size(); ++i) {
    Tensor y;
    if (nodes[i] >= 0) {
      y = i < results && whole.tracked[i] == 0 ? found[at].detach() : found[at];
      ++at;
    } else {
      y = zeros(inputs[static_cast<std::size_t>(arguments[i - results])].shape());
    }
    out.push_back(recording() ? y : contiguous(y.detach()));
    own_numbers(out, i < results ? std::vector<Tensor>() : inputs);
  }
  return out;
}

inline TensorFunction gradient_of(const char* name, const TensorFunction& f,
                                  const List<int>& arguments, bool values) {
  if (arguments.empty()) {
    fail({name, ": a gradient for no argument; name at least one"});
  }
  for (const int argument : arguments) {
    if (argument < 0) {
      fail({name, ": the gradient for argument ", argument, "; they are counted from 0"});
    }
  }
  return [name, f, arguments, values](const std::vector<Tensor>& inputs) {
    return run_gradient(name, f, arguments, inputs, values);
  };
}

}  // namespace detail

// The function that returns the gradients of f's first result, one number, with respect to these
// arguments, one each. Nobody's .grad changes: what f captures is constant. For backward() what it
// returns is constant too; a second derivative is grad(grad(f)).
inline TensorFunction grad(const TensorFunction& f, const List<int>& arguments) {
  return detail::gradient_of("grad", f, arguments, false);
}
inline TensorFunction grad(const TensorFunction& f, int argument = 0) {
  return grad(f, List<int>{argument});
}

// The function that returns all of f's results, then the gradients.
inline TensorFunction value_and_grad(const TensorFunction& f, const List<int>& arguments) {
  return detail::gradient_of("value_and_grad", f, arguments, true);
}
inline TensorFunction value_and_grad(const TensorFunction& f, int argument = 0) {
  return value_and_grad(f, List<int>{argument});
}

namespace detail {

// The batch of the inputs, and which have one.
struct BatchOf {
  std::int64_t size = -1;
  List<char> has;
  List<int> dims;

  BatchOf(const std::vector<Tensor>& inputs, const List<int>& given) {
    if (!given.empty() && given.size() != inputs.size()) {
      fail({"vmap: ", given.size(), " batch dimensions for ", inputs.size(),
            " arguments; one each is right, -1 for an argument without a batch"});
    }
    std::size_t first = 0;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const int dim = given.empty() ? 0 : given[i];
      if (dim < -1 || dim >= inputs[i].dims()) {
        fail({"vmap: batch dimension ", dim, " of argument ", i, ", ", inputs[i].shape(),
              inputs[i].dims() == 0
                  ? "; -1 is right: it has no dimension"
                  : cat({"; 0 to ", inputs[i].dims() - 1, ", or -1 for none, are right"})});
      }
      has.push_back(dim >= 0 ? 1 : 0);
      dims.push_back(dim);
      if (dim >= 0 && size < 0) {
        size = inputs[i].dim(dim);
        first = i;
      }
      if (dim >= 0 && inputs[i].dim(dim) != size) {
        fail({"vmap: argument ", first, " is ", inputs[first].shape(), " with ", size,
              " examples in dimension ", dims[first], ", argument ", i, " is ", inputs[i].shape(),
              " with ", inputs[i].dim(dim), " in dimension ", dim, "; as many are right"});
      }
    }
    if (size < 0) {
      fail({"vmap: none of ", inputs.size(), " arguments has a batch; at least one is right"});
    }
  }
};

inline std::vector<Tensor> run_vmap(const TensorFunction& f, const List<int>& dims,
                                    const std::vector<Tensor>& inputs) {
  List<Shape> shapes = shapes_of("vmap", inputs);
  const BatchOf batch(inputs, dims);
  Parts front;  // the batch first
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (batch.has[i] == 0) {
      front.push_back(inputs[i]);
      continue;
    }
    Shape one;
    List<int> order = {batch.dims[i]};
    for (int d = 0; d < inputs[i].dims(); ++d) {
      if (d != batch.dims[i]) {
        one.push_back(inputs[i].dim(d));
        order.push_back(d);
      }
    }
    shapes[i] = one;
    front.push_back(batch.dims[i] == 0 ? inputs[i] : permute(inputs[i], order));
  }
  Trace trace("vmap");
  trace.run(f, shapes);
  const List<char> traced = batched_nodes(trace.graph, batch.has);
  List<char> without(traced.size());
  for (std::size_t i = 0; i < traced.size(); ++i) {
    without[i] = traced[i] != 0 && !has_batch_rule(trace.graph.nodes[i], traced) ? 1 : 0;
  }
  Trace primitives("vmap");
  const Trace& whole = take_apart(trace, without, primitives);
  const Graph& graph = whole.graph;
  const List<char> batched = batched_nodes(graph, batch.has);
  Rerun rerun(whole, graph.outputs);
  std::vector<Tensor> results = rerun.run(front, [&](int i, const Parts& in, unsigned wanted) {
    if (batched[static_cast<std::size_t>(i)] == 0) {
      return apply_op(graph[i], in, wanted, part_shapes(graph, i));
    }
    return BatchRule{graph, graph[i], in, batched, batch.size, wanted}();
  });
  for (std::size_t i = 0; i < results.size(); ++i) {
    Tensor& y = results[i];
    y = whole.tracked[i] != 0 ? y : y.detach();
    if (batched[static_cast<std::size_t>(graph.outputs[i])] == 0) {
      Shape all = {batch.size};
      for (const std::int64_t n : y.shape()) {
        all.push_back(n);
      }
      y = broadcast_to(y, all);
    }
    y = recording() ? y : contiguous(y);
  }
  return results;
}

}  // namespace detail

// The function that computes f of each example of a batch, all at once. dims: the dimension of each
// argument that counts examples, -1 where every example is given the same; empty: 0 for all. The
// results' is dimension 0. f sees one example; random draws inside it are the same for all.
inline TensorFunction vmap(const TensorFunction& f, const List<int>& dims = List<int>()) {
  return [f, dims](const std::vector<Tensor>& inputs) { return detail::run_vmap(f, dims, inputs); };
}

// The function that returns the derivative of f's first result [S] with respect to one argument
// [X]: [S, X]. A backward pass for each of the result's numbers, all at once.
inline TensorFunction jacobian(const TensorFunction& f, int argument = 0) {
  if (argument < 0) {
    detail::fail({"jacobian: the gradient for argument ", argument, "; they are counted from 0"});
  }
  return [f, argument](const std::vector<Tensor>& inputs) -> std::vector<Tensor> {
    detail::check_argument("jacobian", argument, inputs.size());
    Shape result;
    {
      detail::Trace trace("jacobian");
      trace.run(f, detail::shapes_of("jacobian", inputs));
      result = trace.graph[trace.graph.outputs[0]].shape;
    }
    const Shape by = inputs[static_cast<std::size_t>(argument)].shape();
    if (result.size() + (by.empty() ? 1 : by.size()) > Shape::max_dims) {
      detail::fail({"jacobian: a result ", result, " by an argument ", by, "; at most ",
                    Shape::max_dims, " dims together are right"});
    }
    const TensorFunction row = [f](const std::vector<Tensor>& in) -> std::vector<Tensor> {
      const std::vector<Tensor> own(in.begin(), in.end() - 1);
      return {sum(f(own)[0] * in.back())};
    };
    const std::int64_t n = result.count();
    Shape rows = {n};
    Shape all = result;
    for (const std::int64_t size : result) {
      rows.push_back(size);
    }
    for (const std::int64_t size : by) {
      all.push_back(size);
    }
    std::vector<Tensor> given = inputs;
    given.push_back(reshape(equal(reshape(arange(n), {n, 1}), arange(n)), rows));
    List<int> dims(inputs.size());
    for (int& dim : dims) {
      dim = -1;
    }
    dims.push_back(0);
    return {reshape(vmap(grad(row, argument), dims)(given)[0], all)};
  };
}

}  // namespace tinyscale
