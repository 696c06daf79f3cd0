#pragma once
// A capture: a function of tensors runs once on recorded tensors, and what it did is a graph. What
// it did beside returning tensors is kept too: tensors that it wrote, gradients that it gave to
// parameters. Where it reads a number the graph breaks: what is recorded so far is computed then.

#include <cstddef>  // size_t
#include <cstdint>  // int32_t
#include <utility>  // move
#include <vector>   // vector

#include "tinyscale/base/function.hpp"
#include "tinyscale/compile/captured.hpp"
#include "tinyscale/compile/differentiate.hpp"
#include "tinyscale/compile/graph_writer.hpp"
#include "tinyscale/compile/recognize.hpp"
#include "tinyscale/compile/value_layout.hpp"
#include "tinyscale/compile/write_check.hpp"

namespace tinyscale {

namespace detail {

class Capture final : public GraphWriter {
 public:
  // Gives numbers to nodes of the graph as it is: the values of `wanted`, in their order.
  using Compute = Function<std::vector<Tensor>(Capture& capture, const List<int>& wanted)>;

  explicit Capture(Compute compute, bool recognize = true)
      : compute_(std::move(compute)), recognize_(recognize) {}
  ~Capture() {
    for (const LeafGradient& leaf : leaves_) {
      restore(leaf);
    }
  }

  // Runs the function on handles to inputs shaped as these; the numbers are read only at breaks.
  std::vector<Tensor> run(const Function<std::vector<Tensor>(const std::vector<Tensor>&)>& body,
                          const std::vector<Tensor>& inputs) {
    given = inputs;
    std::vector<Tensor> handles;
    for (const Tensor& x : inputs) {
      Tensor handle = input(x.shape());
      if (x.requires_grad()) {
        handle.set_slot(Slot::make());
        handle.slot()->shape = x.shape();
        handle.slot()->kind = x.slot()->kind;
        if (x.slot()->leaf && !x.slot()->fresh) {
          handle.slot()->grad = x.slot()->grad;
        }
        add_leaf(handle.slot(), node_of(handle), static_cast<int>(handles.size()));
      }
      inputs_.push_back(handle.storage());
      handles.push_back(std::move(handle));
    }
    std::vector<Tensor> results;
    {
      const RecorderScope scope(this);
      results = body(handles);
    }
    finish(results);
    return results;
  }

  std::vector<Tensor> given;        // the inputs
  List<Function<Tensor()>> hosts;   // give the inputs behind them
  std::vector<Tensor> host_values;  // of those that were asked so far
  List<bool> tracked;               // of each result: whether a gradient flows through it
  List<ReturnedAs> returned_as;     // each result
  List<CapturedWrite> writes;
  List<CapturedGradient> gradients;
  List<OldGradient> old_gradients;
  List<GraphBreak> breaks;
  List<int> leaf_nodes;   // of parameters and inputs that gather gradients
  List<Slot> leaf_slots;  // null: of an input
  List<int> leaf_inputs;
  List<Tensor> values;   // of nodes that a break computed; empty: of others
  bool layouts = false;  // what it did depends on the strides of its inputs

  Tensor record(Op op, const Tensor* const* inputs, std::size_t n, const Shape& shape,
                const List<double>& numbers) override {
    if (recognize_ &&
        (op == Op::add || op == Op::sub || op == Op::mul || op == Op::div || op == Op::matmul)) {
      const List<int> nodes = {edge(*inputs[0]), edge(*inputs[1])};
      const Recognition recognition(graph);
      const Recognized found = recognition.find(op, nodes, shape);
      unsigned grads = 0;  // the operands of what was found that a gradient reaches
      if (found && !is_used(nodes[0]) && !is_used(nodes[1]) &&
          recognition.flows(found, nodes, {inputs[0]->requires_grad(), inputs[1]->requires_grad()},
                            grads)) {
        List<Tensor> operands;
        for (std::size_t i = 0; i < found.inputs.size(); ++i) {
          operands.push_back(tensor_of(found.inputs[i], (grads >> i & 1U) != 0));
        }
        return record_found(found, operands, shape);
      }
    }
    return GraphWriter::record(op, inputs, n, shape, numbers);
  }

  // Whether a backward pass inside of the function has used part of what stands behind a node.
  bool is_used(int root) {
    List<int> behind;
    return !walk_back(root, behind);
  }
  // Whether the numbers of a source are other ones after the call.
  bool is_written(int source) const {
    bool found = false;
    for (const CapturedWrite& one : writes) {
      found = found || one.target == source;
    }
    return found;
  }

  Tensor host(const Function<Tensor()>& read, const Shape& shape) override {
    hosts.push_back(read);
    return input(shape);
  }

  // The inputs, and what the host's functions give: each is asked once.
  std::vector<Tensor> all_given() {
    const RecorderScope eager(nullptr);
    std::vector<Tensor> all;
    for (const Tensor& x : given) {
      all.push_back(contiguous(x.detach()));
    }
    while (host_values.size() < hosts.size()) {
      host_values.push_back(hosts[host_values.size()]());
    }
    for (const Tensor& x : host_values) {
      all.push_back(x);
    }
    return all;
  }

  Tensor same(const Tensor& x) override {
    Tensor copy = GraphWriter::same(x);
    copies_.resize(graph.nodes.size());
    copies_[static_cast<std::size_t>(copy.storage()->node)] = 1;
    return copy;
  }

  bool is_dense(const Tensor& x) override { return layout(node_of(x)).is_contiguous(); }

  void write(const char* name, const Tensor& x, const Tensor& value) override {
    const int to = node_of(x);
    WriteCheck{graph, copies_, storages_, now_}.alone(name, x, to);
    const int from = node_of(value);
    if (x.storage()->recorded && graph[to].grads != 0) {
      fail({"compile: ", name, " writes to a ", x.shape(),
            " tensor that a gradient flows through; write to a clone()"});
    }
    if (x.storage()->recorded) {
      x.storage()->node = from;
      x.storage()->data = nullptr;  // what was read before is old
      return;
    }
    for (std::size_t i = 0; i < graph.constants.size(); ++i) {
      const Tensor& known = graph.constants[i];
      const bool this_one = now_[i] == to && known.storage().get() == x.storage().get();
      if (!this_one && &known.storage()->block() == &x.storage()->block()) {
        fail({"compile: ", name, " writes to a ", x.shape(),
              " tensor that shares its numbers with another that the function reads, ",
              known.shape(), "; write to a clone()"});
      }
      now_[i] = this_one ? from : now_[i];
    }
  }

  void backward(const Tensor& y, const Tensor* dy) override {
    const RecorderScope scope(this);
    const int root = edge(y);
    use_graph(root);
    Differentiation differentiation(*this);
    Tensor start = dy != nullptr ? dy->detach() : full(y.shape(), 1.0f);
    differentiation.start(root, start);
    differentiation.run();
    const NoGrad no_second_gradient;
    for (std::size_t i = 0; i < leaf_nodes.size(); ++i) {
      const int gradient = differentiation.gradient(leaf_nodes[i]);
      if (gradient >= 0) {
        add_gradient(leaves_[leaf_of_[i]], tensor_of(gradient));
      }
    }
    for (const int node : used_) {
      graph[node].grads = 0;
    }
  }

  void read_outside(const Tensor& x, const char* file, int line) override {
    for (std::size_t i = 0; i < graph.constants.size(); ++i) {
      if (now_[i] != constant_nodes_[i] &&
          &graph.constants[i].storage()->block() == &x.storage()->block()) {
        fail({"compile: ", file, ":", line, " reads numbers of a ", x.shape(),
              " tensor that the function has written, which stand in it after the call; read a ",
              "clone() that is made after the write"});
      }
    }
    breaks.push_back(GraphBreak{file, line, x.shape()});
  }

  float* read(Storage& storage, const char* file, int line) override {
    check_own(storage, file, line);
    breaks.push_back(GraphBreak{file, line, graph[storage.node].shape});
    List<int> wanted;
    wanted.push_back(storage.node);
    for (const Shared<Storage>& held : storages_) {  // what the function may still use
      if (held.use_count() > 1 && held->data == nullptr && !is_free(graph[held->node])) {
        add_once(wanted, held->node);
      }
    }
    std::vector<Tensor> numbers;
    {
      const RecorderScope eager(nullptr);
      numbers = compute_(*this, wanted);
    }
    values.resize(graph.nodes.size());
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      values[static_cast<std::size_t>(wanted[i])] = numbers[i];
    }
    for (const Shared<Storage>& held : storages_) {
      const Tensor& value = values[static_cast<std::size_t>(held->node)];
      if (held->data == nullptr && value.defined()) {
        hold(*held, value);
      }
    }
    return storage.data;
  }

 protected:
  // A parameter is a node of its own beside that of its numbers: its gradient ends there.
  int edge(const Tensor& x) override {
    const int node = node_of(x);
    const Slot& slot = x.slot();
    if (!slot || !slot->leaf) {
      if (slot && slot.get() != tracked_.get()) {
        fail({"compile: the function uses a ", x.shape(),
              " tensor with a graph of gradients behind ",
              "it that began outside; give it to the function as an input, or detach() it"});
      }
      return node;
    }
    std::size_t known = 0;
    while (known < leaves_.size() && leaves_[known].slot.get() != slot.get()) {
      ++known;
    }
    const bool found = known < leaves_.size();
    if (found && leaves_[known].value == node) {
      return leaves_[known].node;
    }
    int own = node;
    if (found || x.storage()->recorded) {  // written since; or parameter(x) of a recorded x
      own = add(Op::reshape, {node}, x.shape(), as_numbers(x.shape()));
    }
    if (found) {
      leaves_[known].node = own;
      leaves_[known].value = node;
      add_leaf_node(known, own);
    } else {
      add_leaf(slot, own, -1);
      leaves_.back().value = node;
    }
    return own;
  }
  int outside(const Tensor& x) override {
    if (x.storage()->recorded && x.storage()->data == nullptr) {
      x.origin();  // of a call that is over: throws
    }
    for (std::size_t i = 0; i < graph.constants.size(); ++i) {
      if (now_[i] != constant_nodes_[i]) {
        check_unwritten(graph.constants[i], x);
      }
    }
    const int node = GraphWriter::outside(x);
    while (now_.size() < graph.constants.size()) {
      now_.push_back(constant_nodes_[now_.size()]);
    }
    for (std::size_t i = 0; i < now_.size(); ++i) {
      if (constant_nodes_[i] == node) {
        return now_[i];
      }
    }
    return node;
  }

 private:
  struct LeafGradient {
    Slot slot;
    int node;                // where its gradient ends
    int value;               // the node of its numbers
    int input;               // -1: a parameter from outside
    Shared<Storage> before;  // its gradient when the function first used it
    bool had = false;
  };
  static void add_once(List<int>& nodes, int node) {
    for (const int known : nodes) {
      if (known == node) {
        return;
      }
    }
    nodes.push_back(node);
  }

  // A graph of gradients is used once, as outside.
  void use_graph(int root) {
    if (!walk_back(root, used_)) {
      fail({"backward: this graph was used before and is freed; run the forward pass again"});
    }
    for (const int node : used_) {
      freed_[static_cast<std::size_t>(node)] = 1;
    }
  }
  // The nodes behind a root that gradients flow through; false: some were used.
  bool walk_back(int root, List<int>& used) {
    List<char> seen(graph.nodes.size());
    List<int> open;
    open.push_back(root);
    freed_.resize(graph.nodes.size());
    used.clear();
    while (!open.empty()) {
      const auto at = static_cast<std::size_t>(open.back());
      open.pop_back();
      const GraphNode& node = graph.nodes[at];
      if (freed_[at] != 0) {
        return false;
      }
      if (node.grads == 0 || seen[at] != 0) {
        continue;
      }
      for (std::size_t i = 0; i < node.inputs.size(); ++i) {
        if (flows_to(node.grads, i)) {
          open.push_back(node.inputs[i]);
        }
      }
      seen[at] = 1;
      used.push_back(static_cast<int>(at));
    }
    return true;
  }
  // x is not another view of numbers that the function has written.
  static void check_unwritten(const Tensor& written, const Tensor& x) {
    const bool same = written.storage().get() == x.storage().get() &&
                      written.origin() == x.origin() && written.shape() == x.shape() &&
                      written.strides() == x.strides();
    if (!same && &written.storage()->block() == &x.storage()->block()) {
      fail({"compile: the function reads a ", x.shape(), " tensor that shares its numbers with a ",
            written.shape(), " tensor that it has written; read a clone()"});
    }
  }

  // From here on the handle has numbers, which it holds.
  static void hold(Storage& storage, const Tensor& value) {
    const RecorderScope eager(nullptr);
    const Tensor dense = value.is_contiguous() ? value : value.copied();
    if (storage.sliced) {  // of numbers that were read before the last write
      storage.owner.~Shared();
    } else {
      storage.meter.~Shared();
    }
    new (&storage.owner) Shared<Storage>(dense.storage());
    storage.sliced = true;
    storage.data = const_cast<float*>(dense.data());
  }

  void add_leaf(const Slot& slot, int node, int input) {
    const bool had = slot->grad && !slot->fresh;
    leaves_.push_back(LeafGradient{slot, node, node, input, slot->grad, had});
    add_leaf_node(leaves_.size() - 1, node);
  }
  void add_leaf_node(std::size_t leaf, int node) {
    const int input = leaves_[leaf].input;
    leaf_of_.push_back(leaf);
    leaf_nodes.push_back(node);
    leaf_slots.push_back(input < 0 ? leaves_[leaf].slot : Slot());
    leaf_inputs.push_back(input);
  }

  void add_gradient(const LeafGradient& leaf, const Tensor& dx) {
    Tensor total = dx;
    if (leaf.slot->grad && !leaf.slot->fresh) {
      total = Tensor(leaf.slot->shape, leaf.slot->grad) + dx;
    }
    leaf.slot->grad = total.storage();
    leaf.slot->fresh = false;
  }

  // A tensor with the shape and strides of a node where ops are run.
  Tensor layout(int node) {
    const GraphNode& made = graph[node];
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      if (inputs_[i]->node == node) {  // also as the function has written it
        layouts = true;
        return given[i];
      }
    }
    for (std::size_t i = 0; i < now_.size(); ++i) {
      if (now_[i] == node) {
        return graph.constants[i];
      }
    }
    const bool shown = shows_memory(graph, copies_, node);
    const Tensor view = shown ? view_of(made, layout(made.inputs[0])) : Tensor();
    return view.defined() ? view : phantom(made.shape);
  }

  ReturnedAs as_returned(const Tensor& y, int node) {
    ReturnedAs as;
    as.detached = !y.requires_grad();
    as.base = view_base(graph, copies_, node);
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const bool itself = inputs_[i].get() == y.storage().get();
      if (itself || inputs_[i]->node == as.base) {
        as.input = static_cast<int>(i);
        as.view = itself ? as.base : node;
      }
    }
    as.dense = as.input < 0 && is_dense(y);
    for (std::size_t i = 0; i < graph.constants.size(); ++i) {
      const Tensor& known = graph.constants[i];
      const bool this_one = known.storage().get() == y.storage().get() &&
                            known.origin() == y.origin() && known.shape() == y.shape() &&
                            known.strides() == y.strides();
      const bool fits = as.detached || known.slot().get() == y.slot().get();
      as.constant = this_one && fits ? static_cast<int>(i) : as.constant;
    }
    return as;
  }

  void finish(const std::vector<Tensor>& results) {
    for (const Tensor& y : results) {
      graph.outputs.push_back(y.defined() ? edge_of_result(y) : -1);
      tracked.push_back(y.defined() && y.requires_grad() && context().no_grad == 0);
      returned_as.push_back(y.defined() ? as_returned(y, graph.outputs.back()) : ReturnedAs());
    }
    for (std::size_t i = 0; i < inputs_.size(); ++i) {  // those of the host come behind them
      if (inputs_[i]->node != graph.inputs[i]) {
        writes.push_back(CapturedWrite{graph.inputs[i], inputs_[i]->node});
      }
    }
    for (std::size_t i = 0; i < now_.size(); ++i) {
      if (now_[i] != constant_nodes_[i]) {
        writes.push_back(CapturedWrite{constant_nodes_[i], now_[i]});
      }
    }
    for (const LeafGradient& leaf : leaves_) {
      const Shared<Storage>& grad = leaf.slot->grad;
      const bool own = grad && grad->recorded;
      if (own || (leaf.had && !grad)) {
        gradients.push_back(CapturedGradient{leaf.input < 0 ? leaf.slot : Slot(), leaf.input,
                                             own ? grad->node : -1, leaf.input < 0 || leaf.had});
      }
      for (std::size_t i = 0; i < graph.constants.size() && leaf.had; ++i) {
        if (graph.constants[i].storage().get() == leaf.before.get()) {
          old_gradients.push_back(
              OldGradient{static_cast<int>(i), leaf.input < 0 ? leaf.slot : Slot(), leaf.input});
        }
      }
      restore(leaf);
    }
  }
  int edge_of_result(const Tensor& y) {
    const RecorderScope scope(this);
    return y.slot() && y.slot()->leaf ? edge(y) : node_of(y);
  }
  // Slots that the function gave nothing are not touched: other threads may read them.
  static void restore(const LeafGradient& leaf) {
    if (leaf.slot->grad.get() != leaf.before.get()) {
      leaf.slot->grad = leaf.before;
      leaf.slot->fresh = leaf.before && !leaf.had;
    }
  }

  Compute compute_;
  bool recognize_;
  List<Shared<Storage>> inputs_;
  List<int> now_;  // of each constant: the node of its numbers as they are now
  List<LeafGradient> leaves_;
  List<std::size_t> leaf_of_;  // of each of leaf_nodes
  List<char> freed_;           // of each node: a backward pass went through it
  List<int> used_;             // by the last one
  List<char> copies_;          // of each node: written as a view, meant as a copy
};

}  // namespace detail
}  // namespace tinyscale
