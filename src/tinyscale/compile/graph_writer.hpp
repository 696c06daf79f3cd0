#pragma once
// Writes ops to a graph as they are called: what a capture and every pass that makes ops is built
// on. Decompositions and derivatives are thereby plain functions of tensors.

#include <atomic>
#include <cstddef>  // size_t
#include <cstdint>  // int32_t
#include <utility>  // move
#include <vector>   // vector

#include "tinyscale/compile/op_graph.hpp"
#include "tinyscale/tensor/backward.hpp"
#include "tinyscale/tensor/create.hpp"
#include "tinyscale/tensor/record.hpp"
#include "tinyscale/tensor/views.hpp"

namespace tinyscale {
namespace detail {

// The inputs of an op that a gradient flows to, as bits; where its result depends in steps on an
// input, or not at all, there is none.
inline unsigned differentiable_inputs(Op op) {
  switch (op) {
    case Op::less:
    case Op::equal:
    case Op::argmax:
    case Op::round: return 0;
    case Op::where: return 6;
    case Op::take:
    case Op::cross_entropy: return 1;
    case Op::scatter_add: return 2;
    case Op::linear_cross_entropy: return 3;
    default: return ~0U;
  }
}

// Whether a gradient flows to input i of a node; those from 31 on share a bit.
inline bool flows_to(unsigned grads, std::size_t i) {
  return (grads >> (i < 31 ? i : 31) & 1U) != 0;
}

// Whether a node is a view that was not meant as a copy; and the node whose memory it shows.
inline bool shows_memory(const Graph& graph, const List<char>& copies, int node) {
  const auto at = static_cast<std::size_t>(node);
  return facts_of(graph[node].op).kind == OpKind::view && (at >= copies.size() || copies[at] == 0);
}
inline int view_base(const Graph& graph, const List<char>& copies, int node) {
  while (node >= 0 && shows_memory(graph, copies, node) && !graph[node].inputs.empty()) {
    node = graph[node].inputs[0];
  }
  return node;
}

class GraphWriter : public Recorder {
 public:
  Graph graph;
  bool in_backward = false;  // what is written now belongs to a backward pass

  GraphWriter() : id_(next_id()), tracked_(Slot::make()) {
    tracked_->leaf = false;
    tracked_->name = "recorded";
  }
  ~GraphWriter() {
    for (const Shared<Storage>& storage : storages_) {
      storage->node = -1;
    }
  }

  // A handle to a node.
  Tensor tensor_of(int node, bool tracked = false) {
    Shared<Storage> storage = Shared<Storage>::make();
    storage->recorded = true;
    storage->writer = id_;
    storage->node = node;
    storage->count = graph[node].shape.count();
    Tensor x(graph[node].shape, storage);
    if (tracked) {
      x.set_slot(tracked_);
    }
    storages_.push_back(std::move(storage));
    return x;
  }
  // The node behind a handle; a tensor from outside becomes a constant.
  int node_of(const Tensor& x) {
    check_defined(x);
    const Storage& storage = *x.storage();
    if (storage.recorded && storage.writer == id_ && storage.node >= 0) {
      return storage.node;
    }
    return outside(x);
  }

  int add(Op op, List<int> inputs, const Shape& shape, List<double> numbers = List<double>(),
          unsigned grads = 0) {
    GraphNode node;
    node.op = op;
    node.shape = shape;
    node.inputs.swap(inputs);
    node.numbers.swap(numbers);
    node.grads = grads;
    node.backward = in_backward;
    graph.nodes.push_back(std::move(node));
    return graph.size() - 1;
  }
  // The constants of a graph that is written anew; each has no node until one is added for it.
  void begin_with(const List<Tensor>& constants) {
    graph.constants = constants;
    constant_nodes_ = List<int>(constants.size());
    for (int& node : constant_nodes_) {
      node = -1;
    }
  }
  void is_constant(std::size_t number, int node) { constant_nodes_[number] = node; }
  Tensor input(const Shape& shape) {
    const int node = add(Op::input, {}, shape, {static_cast<double>(graph.inputs.size())});
    graph.inputs.push_back(node);
    return tensor_of(node);
  }

  Tensor record(Op op, const Tensor* const* inputs, std::size_t n, const Shape& shape,
                const List<double>& numbers) override {
    List<int> nodes;
    nodes.reserve(n);
    unsigned grads = 0;
    for (std::size_t i = 0; i < n; ++i) {
      nodes.push_back(edge(*inputs[i]));
      grads |= inputs[i]->requires_grad() ? 1U << (i < 31 ? i : 31) : 0U;
    }
    grads = context().no_grad > 0 ? 0 : grads & differentiable_inputs(op);
    return tensor_of(add(op, std::move(nodes), shape, numbers, grads), grads != 0);
  }
  Tensor part(const Tensor& all, int number, const Shape& shape) override {
    const Tensor* const inputs[] = {&all};
    const Tensor result = record(Op::part, inputs, 1, shape, {static_cast<double>(number)});
    GraphNode& node = graph.nodes.back();
    node.backward = graph[node.inputs[0]].backward;  // wherever it is asked for
    return result;
  }
  Tensor ids(const std::vector<std::int32_t>& ids, const Shape& shape) override {
    for (const Bound& known : bound_) {
      if (known.data == ids.data() && known.count == ids.size()) {
        return known.tensor.shape() == shape ? known.tensor : reshape(known.tensor, shape);
      }
    }
    return unbound_ids(ids, shape);
  }
  void bind_ids(const std::vector<std::int32_t>& ids, const Tensor& as) override {
    bound_.push_back(Bound{ids.data(), ids.size(), as});
  }
  Tensor host(const Function<Tensor()>&, const Shape& shape) override {
    fail({"compile: numbers ", shape, " of the host are asked for where a graph is rewritten"});
  }
  Tensor same(const Tensor& x) override {
    const Tensor* const inputs[] = {&x};
    return record(Op::reshape, inputs, 1, x.shape(), as_numbers(x.shape()));
  }
  bool is_dense(const Tensor&) override { return true; }  // of a rewritten graph: as it will lie
  void write(const char* name, const Tensor& x, const Tensor&) override {
    fail({name, ": writes to a ", x.shape(), " tensor where a graph is rewritten"});
  }
  void backward(const Tensor&, const Tensor*) override {
    fail({"backward: called where a graph is rewritten"});
  }
  float* read(Storage& storage, const char* file, int line) override {
    fail({"compile: ", file, ":", line, " reads a tensor of ", storage.count,
          " numbers where a graph is rewritten"});
  }
  void read_outside(const Tensor&, const char*, int) override {}

 protected:
  virtual Tensor unbound_ids(const std::vector<std::int32_t>& ids, const Shape& shape) {
    const RecorderScope eager(nullptr);
    Tensor numbers(shape);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] > 16777216) {
        fail({"compile: id ", ids[i], " at position ", i, " of ", shape,
              "; in a graph ids are numbers of f32, up to 2^24 is right"});
      }
      numbers.data()[i] = static_cast<float>(ids[i]);
    }
    return numbers;
  }
  // The node as which an op is given x: a parameter from outside is told from its numbers.
  virtual int edge(const Tensor& x) { return node_of(x); }
  virtual int outside(const Tensor& x) {
    for (std::size_t i = 0; i < graph.constants.size(); ++i) {
      const Tensor& known = graph.constants[i];
      if (constant_nodes_[i] >= 0 && known.storage().get() == x.storage().get() &&
          known.origin() == x.origin() && known.shape() == x.shape() &&
          (!known.slot() || !x.slot() || known.slot().get() == x.slot().get()) &&
          known.is_contiguous() == x.is_contiguous() && known.strides() == x.strides()) {
        return constant_nodes_[i];
      }
    }
    const int node = add(Op::constant, {}, x.shape(), {double(graph.constants.size())});
    graph.constants.push_back(x);
    constant_nodes_.push_back(node);
    return node;
  }

  // A recorded tensor of another writer, on this thread or another, has no number here.
  void check_own(const Storage& storage, const char* file, int line) const {
    if (storage.writer != id_) {
      fail({"compile: ", file, ":", line, " reads a tensor of ", storage.count,
            " numbers that another call records; return it from the function of that call"});
    }
  }

  std::int32_t id_;
  Slot tracked_;                    // of every handle that a gradient flows through
  List<Shared<Storage>> storages_;  // of all handles
  List<int> constant_nodes_;

 private:
  struct Bound {
    const std::int32_t* data;
    std::size_t count;
    Tensor tensor;
  };

  static std::int32_t next_id() {  // of all threads: tensors may come from another
    static std::atomic<std::int32_t> last{0};
    return last.fetch_add(1, std::memory_order_relaxed) + 1;
  }

  List<Bound> bound_;
};

}  // namespace detail
}  // namespace tinyscale
