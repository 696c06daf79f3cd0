#pragma once
// What a capture became: the graphs that run in its place, what they leave behind, and what they
// rely on.

#include <cstddef>  // size_t
#include <cstring>  // memcpy
#include <string>   // reasons
#include <utility>  // move
#include <vector>   // vector

#include "tinyscale/base/function.hpp"
#include "tinyscale/compile/capture.hpp"
#include "tinyscale/compile/graph_cut.hpp"
#include "tinyscale/compile/joint_graph.hpp"
#include "tinyscale/compile/symbolic_batch.hpp"

namespace tinyscale {
namespace detail {

inline bool has_gradient(const Tensor& x) {
  return x.slot() && x.slot()->leaf && x.slot()->grad && !x.slot()->fresh;
}

// What a capture relied on.
struct Guards {
  struct Input {
    Shape shape;
    bool grad;
    bool had = false;
    std::vector<std::int64_t> strides;  // empty: in row-major order
  };
  static std::vector<std::int64_t> strides_of(const Tensor& x) {
    return x.is_contiguous() ? std::vector<std::int64_t>() : x.strides();
  }
  bool layouts = false;    // how inputs lie matters
  bool gradients = false;  // the function makes gradients: whether inputs had one matters
  List<Input> inputs;
  bool no_grad = false;
  DType format = DType::f32;
  List<Slot> slots;  // parameters that gather gradients
  List<bool> had;    // whether each had one
  struct Owned {
    Tensor tensor;
    int own;        // handles that the compilation itself has
    int total = 0;  // and that all of the function have
  };
  List<Owned> owned;  // captured tensors that others held too: if nobody does, they were replaced

  // For good: that tensor comes back nowhere.
  bool replaced() const {
    for (const Owned& one : owned) {
      if (one.tensor.storage().use_count() <= one.total) {
        return true;
      }
    }
    return false;
  }

  // Empty: they hold; else the first that does not. Where `batched` is given, those inputs may be
  // of another batch size.
  std::string broken(const std::vector<Tensor>& given,
                     const List<bool>& batched = List<bool>()) const {
    if (given.size() != inputs.size()) {
      return cat({given.size(), " inputs, not ", inputs.size()});
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      Shape shape = inputs[i].shape;
      if (i < batched.size() && batched[i] && given[i].dims() > 0) {
        shape.set(0, given[0].dim(0));
      }
      if (given[i].shape() != shape) {
        return cat({"input ", i, " is ", given[i].shape(), ", not ", inputs[i].shape});
      }
      if (given[i].requires_grad() != inputs[i].grad) {
        return cat({"input ", i, inputs[i].grad ? " has no gradient" : " has a gradient"});
      }
      if (layouts && strides_of(given[i]) != inputs[i].strides) {
        return cat({"input ", i, " has other strides"});
      }
      if (gradients && has_gradient(given[i]) != inputs[i].had) {
        return cat({"input ", i, " has gathered ", inputs[i].had ? "no" : "a", " gradient"});
      }
    }
    const Context& now = context();
    if ((now.no_grad > 0) != no_grad) {
      return no_grad ? "gradients are on" : "gradients are off";
    }
    if (now.matmul_format != format) {
      return cat({"matmuls are in ", name_of(now.matmul_format.type), ", not ", name_of(format)});
    }
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if ((slots[i]->grad && !slots[i]->fresh) != had[i]) {
        return cat(
            {"a parameter of ", slots[i]->shape, had[i] ? " has no gradient" : " has a gradient"});
      }
    }
    for (const Owned& one : owned) {
      if (one.tensor.storage().use_count() <= one.total) {
        return cat({"a captured ", one.tensor.shape(), " tensor was replaced"});
      }
    }
    return "";
  }
};

// A gradient that a call has made takes the place of the one before; an empty one clears it.
inline void set_gradient(const Slot& slot, const Tensor& gradient, bool replaces) {
  if (!replaces) {
    if (gradient.defined()) {
      add_grad(slot, gradient);
    }
    return;
  }
  if (!gradient.defined()) {
    slot->grad.reset();
    slot->fresh = false;
    return;
  }
  if (slot->fresh && slot->grad) {  // a place that was given in advance
    std::memcpy(slot->grad->data, contiguous(gradient).data(), slot->grad->bytes());
    slot->fresh = false;
    return;
  }
  const bool own = gradient.is_contiguous() && gradient.storage().use_count() == 1 &&
                   !gradient.storage()->sliced && gradient.storage()->count == gradient.count();
  slot->grad = (own ? gradient : gradient.copied()).storage();
  slot->fresh = false;
}

// Of an input that has a graph of gradients behind it.
struct InnerGradient {
  Slot slot;
  Tensor gradient;
};
// On through the graphs behind inputs, in one backward pass.
inline void hand_on(const List<InnerGradient>& inner) {
  if (inner.empty()) {
    return;
  }
  List<Tensor> handles;
  List<const Tensor*> behind;
  handles.reserve(inner.size());
  for (const InnerGradient& one : inner) {
    handles.push_back(one.gradient.detach());
    handles.back().set_slot(one.slot);
    behind.push_back(&handles.back());
  }
  Tensor root = zeros(Shape{});
  attach(root, "compiled", behind.data(), behind.size(), [inner](const Tensor&) {
    for (const InnerGradient& one : inner) {
      add_grad(one.slot, one.gradient);
    }
  });
  root.backward();
}

// What is written must not be another input, or a view of one.
inline void check_aliases(const std::vector<Tensor>& inputs, const List<CapturedWrite>& writes,
                          const Graph& graph) {
  for (const CapturedWrite& write : writes) {
    const GraphNode& target = graph[write.target];
    const auto number = static_cast<std::size_t>(target.number(0));
    const bool is_input = target.op == Op::input;
    const Tensor& x = is_input ? inputs[number] : graph.constants[number];
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if ((!is_input || i != number) && &inputs[i].storage()->block() == &x.storage()->block()) {
        fail({"Compiled: the function writes to ", is_input ? "input " : "captured tensor ", number,
              ", ", x.shape(), ", which shares its numbers with input ", i, ", ", inputs[i].shape(),
              "; give a clone() of one of them"});
      }
    }
    for (std::size_t i = 0; i < graph.constants.size() && is_input; ++i) {
      if (&graph.constants[i].storage()->block() == &x.storage()->block()) {
        fail({"Compiled: the function writes to input ", number, ", ", x.shape(),
              ", which shares its numbers with a ", graph.constants[i].shape(),
              " tensor that it captures; give a clone()"});
      }
    }
  }
}

// Gradients that the function gives inside are written for each parameter once.
inline void check_gradient_aliases(const std::vector<Tensor>& inputs,
                                   const List<CapturedGradient>& gradients) {
  const auto slot_of = [&inputs](const CapturedGradient& one) {
    return one.slot ? one.slot.get() : inputs[static_cast<std::size_t>(one.input)].slot().get();
  };
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    for (std::size_t k = 0; k < i; ++k) {
      if (slot_of(gradients[i]) == slot_of(gradients[k])) {
        fail({"Compiled: the function calls backward() inside, and input ",
              gradients[i].slot ? gradients[k].input : gradients[i].input, ", ",
              slot_of(gradients[i])->shape, ", reaches it ",
              gradients[i].slot || gradients[k].slot
                  ? "captured too"
                  : cat({"as input ", gradients[k].input, " too"}),
              "; give it once, or call backward() on the result"});
      }
    }
  }
}

// What a backward pass outside needs keeps its numbers.
inline void check_kept(const std::vector<Tensor>& inputs, const List<CapturedWrite>& writes,
                       const Graph& graph) {
  for (const CapturedWrite& write : writes) {
    const GraphNode& target = graph[write.target];
    const auto number = static_cast<std::size_t>(target.number(0));
    const Tensor& x = target.op == Op::input ? inputs[number] : graph.constants[number];
    if (x.storage()->block().kept.load() > 0) {
      fail({"Compiled: a backward pass that is still to come needs the numbers of ",
            target.op == Op::input ? "input " : "captured tensor ", number, ", ", x.shape(),
            ", which the function writes; call it after that pass, or give a clone()"});
    }
  }
}

// How a compilation follows the batch size.
struct SymbolicBatch {
  List<bool> batched;  // of each input: its first dimension is the batch
  SymbolicGraph graph, cut;
  List<SymbolicGraph> backward;
};

// A capture that can be run again.
struct Compilation {
  Guards guards;
  Graph graph;   // as it was captured; outputs: results, then writes, then gradients
  GraphCut cut;  // what of it is run: also what the backward parts need
  Shared<GraphPlan> plan;
  List<GraphPlan::Write> plan_writes;
  std::size_t results = 0;
  List<CapturedWrite> writes;
  List<CapturedGradient> gradients;
  List<OldGradient> old_gradients;
  List<GraphBreak> breaks;
  List<ReturnedAs> returned_as;  // of each result
  List<Slot> leaf_slots;
  List<int> leaf_inputs;
  List<BackwardPart> backward;      // of each result; an empty graph: no gradient
  List<Function<Tensor()>> hosts;   // inputs behind those of the function
  std::vector<Tensor> host_values;  // of those that the capture has asked already, for its own run
  bool rerun = false;               // the function runs at every call
  int confirmations = 0;
  std::string why;  // it reruns
  Shared<SymbolicBatch> symbolic;
  std::string not_symbolic;  // why it is of one batch size, although more were asked for

  const BackwardPart* part_of(std::size_t result) const {
    return result < backward.size() && backward[result].plan ? &backward[result] : nullptr;
  }
  // A result of a call from the one that the graph computed and those before it.
  Tensor result(std::size_t r, const std::vector<Tensor>& inputs, const Tensor& computed,
                const std::vector<Tensor>& earlier) const {
    const ReturnedAs& as = returned_as[r];
    if (is_input(r)) {
      return view_again(graph, as.view, as.base, inputs[static_cast<std::size_t>(as.input)]);
    }
    std::size_t same = 0;  // one that is returned twice stays one
    while (graph.outputs[same] != graph.outputs[r]) {
      ++same;
    }
    return is_captured(r) ? graph.constants[static_cast<std::size_t>(as.constant)]
           : same < r     ? earlier[same]
                          : apart(returned_as, earlier, computed);
  }
  bool is_input(std::size_t result) const { return returned_as[result].input >= 0; }
  // A captured tensor itself, of which others hold handles.
  bool is_captured(std::size_t result) const {
    const int number = returned_as[result].constant;
    for (const Guards::Owned& one : guards.owned) {
      const Tensor* const known =
          number < 0 ? nullptr : &graph.constants[static_cast<std::size_t>(number)];
      if (known != nullptr && known->storage().get() == one.tensor.storage().get()) {
        return true;
      }
    }
    return false;
  }
};

// The constants that a backward pass reads: kept by their compilation, not by handles of its own,
// or nobody could tell that the function's own handle is gone.
class KeptConstants {
 public:
  KeptConstants(const Shared<Compilation>& made, std::size_t result)
      : made_(made), result_(result) {
    count(1);
  }
  KeptConstants(const KeptConstants& other) : made_(other.made_), result_(other.result_) {
    count(1);
  }
  KeptConstants& operator=(const KeptConstants&) = delete;
  ~KeptConstants() { count(-1); }

  std::size_t size() const { return part().cut.graph.constants.size() - part().cut.known.size(); }
  const BackwardPart& part() const { return made_->backward[result_]; }

 private:
  void count(int change) const {
    const Graph& graph = part().cut.graph;
    for (const GraphNode& node : graph.nodes) {  // those that it reads
      const std::size_t i =
          node.op == Op::constant ? static_cast<std::size_t>(node.number(0)) : size();
      if (i < size()) {
        graph.constants[i].storage()->block().kept.fetch_add(change, std::memory_order_relaxed);
      }
    }
  }

  Shared<Compilation> made_;
  std::size_t result_;
};

// Whether a second run of the function did the same with the same tensors.
inline bool same_capture(const Graph& a, const Graph& b) {
  if (!same_graph(a, b)) {
    return false;
  }
  for (std::size_t i = 0; i < a.constants.size(); ++i) {
    const Tensor &x = a.constants[i], &y = b.constants[i];
    if (x.storage().get() != y.storage().get() && !same_numbers(x, y)) {
      return false;
    }
  }
  return true;
}
inline std::string difference(const Compilation& a, const Compilation& b) {
  const int node = first_difference(a.graph, b.graph);
  if (b.rerun) {
    return b.why;
  }
  if (node < 0) {
    return "it used other tensors in its second call";
  }
  const auto text = [node](const Graph& graph) {
    if (node >= graph.size()) {
      return std::string("nothing");
    }
    const GraphNode& op = graph[node];
    return cat({name_of(op.op), " ", op.shape, op.numbers.empty() ? "" : " of ", numbers_text(op)});
  };
  return cat({"it did something else in its second call: op ", node, " was ", text(a.graph),
              ", then ", text(b.graph)});
}

}  // namespace detail

}  // namespace tinyscale
