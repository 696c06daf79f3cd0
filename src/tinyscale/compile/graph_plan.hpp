#pragma once
// A graph made ready to run: passes, steps in an order, places in memory. Running it costs no more
// than its kernels and a few tens of nanoseconds a step.

#include <atomic>   // one run at a time owns the block
#include <cstddef>  // size_t
#include <cstdint>  // int64_t
#include <utility>  // move
#include <vector>   // vector

#include "tinyscale/compile/buffer_plan.hpp"
#include "tinyscale/compile/compile_options.hpp"
#include "tinyscale/compile/fuse_products.hpp"
#include "tinyscale/compile/fuse_vectors.hpp"
#include "tinyscale/compile/graph_cost.hpp"
#include "tinyscale/compile/lower_vectors.hpp"
#include "tinyscale/compile/run_kernel.hpp"
#include "tinyscale/compile/simplify.hpp"
#include "tinyscale/compile/step.hpp"
#include "tinyscale/compile/take_apart.hpp"

namespace tinyscale {
namespace detail {

// Whether a composite op stays whole: its kernel is what the pass of that kind is.
inline bool stays_whole(Op op, const CompileOptions& options) {
  switch (op) {
    case Op::attention:
    case Op::attention_backward: return options.fuse_attention;
    case Op::linear_cross_entropy:
    case Op::linear_cross_entropy_all: return options.fuse_matmul && options.fuse_rows;
    case Op::rope:
    case Op::dropout:
    case Op::adamw: return options.fuse_elementwise;
    case Op::log_softmax: return false;  // a group of the vector engine
    default: break;
  }
  return facts_of(op).kind == OpKind::row ? options.fuse_rows : options.fuse_elementwise;
}

// The steps of a graph in an order in which each finds its operands.
class StepBuilder {
 public:
  StepBuilder(const Graph& graph, const ValueLayouts& layouts, const CompileOptions& options)
      : graph_(graph),
        layouts_(layouts),
        options_(options),
        fusion_(graph),
        vectors_(graph, layouts, fusion_, options.fuse_elementwise, options.fuse_rows),
        claimed_(graph.nodes.size()) {}

  List<Step> build() {
    if (options_.fuse_matmul) {
      ProductFusion products(graph_, layouts_, fusion_);
      for (int i = 0; i < graph_.size(); ++i) {
        if (graph_[i].op == Op::matmul && claimed_[at(i)] == 0) {
          products_.push_back(products.run(i, claimed_));
        }
      }
    }
    vectors_.run(claimed_);
    mark_needed();
    List<Step> steps;
    for (int i = 0; i < graph_.size(); ++i) {
      emit(fusion_.group_of(i), steps);
    }
    return steps;
  }

 private:
  static std::size_t at(int node) { return static_cast<std::size_t>(node); }

  // What is read outside of the group that computes it.
  void mark_needed() {
    needed_ = List<char>(graph_.nodes.size());
    for (int i = 0; i < graph_.size(); ++i) {
      for (const int input : graph_[i].inputs) {
        const int source = vectors_.source_of(input);
        const bool inside =
            source >= 0 && vectors_.roles[at(i)] != VectorRole::none && fusion_.same(source, i);
        if (!inside) {
          needed_[at(layouts_.base_of(input))] = 1;
        }
      }
    }
    for (const int output : graph_.outputs) {
      if (output >= 0) {
        needed_[at(layouts_.base_of(output))] = 1;
      }
    }
    done_ = List<char>(graph_.nodes.size());
  }

  // The group's step behind those of all groups that it reads.
  void emit(int first_group, List<Step>& steps) {
    List<int> open;
    open.push_back(first_group);
    while (!open.empty()) {
      const int group = open.back();
      if (done_[at(group)] == 2) {
        open.pop_back();
        continue;
      }
      bool ready = true;
      for (const int node : fusion_.members(group)) {
        for (const int input : graph_[node].inputs) {
          const int other = fusion_.group_of(input);
          if (other != group && done_[at(other)] != 2) {
            open.push_back(other);
            ready = false;
          }
        }
      }
      if (!ready) {
        if (done_[at(group)]++ > 0) {
          fail({"compile: the groups of a graph wait for one another; please report its text"});
        }
        continue;
      }
      open.pop_back();
      done_[at(group)] = 2;
      make_step(group, steps);
    }
  }

  void make_step(int group, List<Step>& steps) {
    const List<int>& members = fusion_.members(group);
    const int first = members[0];
    for (Step& product : products_) {
      if (!product.nodes.empty() && product.nodes[0] == first) {
        steps.push_back(std::move(product));
        return;
      }
    }
    if (vectors_.roles[at(first)] != VectorRole::none) {
      steps.push_back(VectorLowering(graph_, layouts_, vectors_, members).lower(needed_));
      return;
    }
    const GraphNode& node = graph_[first];
    if (is_free(node)) {
      return;
    }
    if (node.op == Op::iota && needed_[at(first)] == 0) {
      return;
    }
    Step step;
    step.kind = node.op == Op::matmul ? StepKind::product : StepKind::kernel;
    step.nodes.push_back(first);
    step.inputs = node.inputs;
    const int parts = facts_of(node.op).parts;
    for (int p = 0; p < parts; ++p) {
      step.outputs.push_back(parts == 1 ? first : -1);
    }
    for (int j = first + 1; j < graph_.size() && parts > 1; ++j) {
      if (graph_[j].op == Op::part && graph_[j].inputs[0] == first) {
        step.outputs[static_cast<std::size_t>(graph_[j].number(0))] = j;
      }
    }
    steps.push_back(std::move(step));
  }

  const Graph& graph_;
  const ValueLayouts& layouts_;
  const CompileOptions& options_;
  Fusion fusion_;
  VectorFusion vectors_;
  List<char> claimed_, needed_, done_;
  List<Step> products_;
};

}  // namespace detail

class GraphPlan {
 public:
  // Output `output` of the graph is the new value of an input or a constant, by its number.
  struct Write {
    std::size_t output;
    int input = -1, constant = -1;
  };

  // Which of the graph's outputs are written to what stands for one of its inputs or constants.
  GraphPlan(Graph graph, const CompileOptions& options, const List<Write>& writes = List<Write>())
      : options_(options), writes_(writes) {
    const std::size_t given = graph.constants.size();
    apply_passes(std::move(graph));
    layouts_ = Shared<detail::ValueLayouts>(new detail::ValueLayouts(graph_));
    steps_ = detail::StepBuilder(graph_, *layouts_, options_).build();
    place();
    for (const Step& step : steps_) {
      records_.push_back(detail::record_of(graph_, *layouts_, detail::distinct_inputs(step.inputs),
                                           step.outputs, step.nodes));
      records_.back().name = step.name(graph_);
    }
    for (std::size_t i = 0; i < given; ++i) {  // their numbers come with each run
      graph_.constants[i] = detail::phantom_like(graph_.constants[i]);
    }
  }

  const Graph& graph() const { return graph_; }
  const List<Step>& steps() const { return steps_; }
  // What each step costs, no times.
  const List<OpRecord>& records() const { return records_; }
  const List<BufferLife>& buffers() const { return buffers_; }
  // Bytes of the block that intermediate results share; of all of them side by side.
  double block_bytes() const { return 4.0 * static_cast<double>(block_); }
  double unshared_bytes() const { return 4.0 * static_cast<double>(unshared_); }

  // The outputs for these inputs (contiguous) and constants, as the graph numbers them. Outputs
  // that are written to a target are empty.
  std::vector<Tensor> run(const std::vector<Tensor>& inputs, const List<Tensor>& constants) const {
    const NoGrad no_graph;
    const detail::RecorderScope eager(nullptr);
    Memory own;
    const bool shared = !busy_.exchange(true);
    Memory& memory = shared ? memory_ : own;
    std::vector<Tensor> outputs;
    try {
      outputs = run_in(memory, inputs, constants);
    } catch (...) {
      if (shared) {
        memory = Memory();
        busy_.store(false);
      }
      throw;
    }
    if (shared) {
      busy_.store(false);
    }
    return outputs;
  }

 private:
  enum class Place : unsigned char { none, block, own, target };

  // The tensors of all nodes, where they stand in one run.
  struct Memory {
    Tensor block;
    List<Tensor> values;
    List<char> stale;  // views of what changes from run to run
  };

  static std::size_t at(int node) { return static_cast<std::size_t>(node); }

  void apply_passes(Graph graph) {
    graph_ = std::move(graph);
    if (options_.simplify) {
      detail::simplify(graph_);
    } else {
      detail::merge_parts(graph_);
    }
    const CompileOptions& options = options_;
    const Graph before = graph_;
    bool composite = false;
    for (const GraphNode& node : graph_.nodes) {
      composite = composite || (!is_primitive(node.op) && !detail::stays_whole(node.op, options));
    }
    if (composite) {
      graph_ =
          take_apart(before, [&](int i) { return detail::stays_whole(before[i].op, options); });
      if (options_.simplify) {
        detail::simplify(graph_);
      } else {
        detail::sort_needed(graph_);  // parts that nobody asked for
      }
    } else if (!options_.simplify) {
      detail::sort_needed(graph_);
    }
  }

  void place() {
    const std::size_t n = graph_.nodes.size();
    places_ = List<Place>(n);
    target_ = List<int>(n);
    const int end = static_cast<int>(steps_.size());
    List<int> written(n), last(n);
    for (std::size_t i = 0; i < n; ++i) {
      written[i] = last[i] = -1;
    }
    for (int s = 0; s < end; ++s) {
      for (const int output : steps_[at(s)].outputs) {
        if (output >= 0) {
          places_[at(output)] = Place::block;
          written[at(output)] = s;
          last[at(output)] = s;
        }
      }
      for (const int input : steps_[at(s)].inputs) {
        last[at(layouts_->base_of(input))] = s;
      }
    }
    List<char> taken(graph_.outputs.size());
    for (const Write& write : writes_) {
      place_write(write, written, last, taken);
    }
    for (std::size_t o = 0; o < graph_.outputs.size(); ++o) {
      const int output = graph_.outputs[o];
      if (output < 0 || taken[o] != 0) {
        continue;
      }
      Place& where = places_[at(layouts_->base_of(output))];
      where = where == Place::block ? Place::own : where;
    }
    List<int> buffer_of(n);
    for (int s = 0; s < end; ++s) {
      for (const int output : steps_[at(s)].outputs) {
        if (output < 0 || places_[at(output)] != Place::block) {
          continue;
        }
        buffers_.push_back(
            BufferLife{output, s, last[at(output)], graph_[output].shape.count(), 0});
      }
    }
    for (const BufferLife& buffer : buffers_) {
      unshared_ +=
          (buffer.count + detail::buffer_align - 1) / detail::buffer_align * detail::buffer_align;
    }
    block_ = detail::place_buffers(buffers_, options_.plan_memory);
    offset_ = List<std::int64_t>(n);
    for (const BufferLife& buffer : buffers_) {
      offset_[at(buffer.node)] = buffer.offset;
    }
  }

  // The value goes to its target at once where nobody reads the old numbers later.
  void place_write(const Write& write, const List<int>& written, const List<int>& last,
                   List<char>& taken) {
    const int value = graph_.outputs[write.output];
    const int base = layouts_->base_of(value);
    const int target = node_of(write);
    const bool dense = write.input >= 0 || graph_.constants[at(write.constant)].is_contiguous();
    const int last_read = target < 0 ? -1 : last[at(target)];
    int returned = 0;
    for (const int output : graph_.outputs) {
      returned += output >= 0 && layouts_->base_of(output) == base ? 1 : 0;
    }
    for (const int output : graph_.outputs) {  // the old numbers are returned, or written elsewhere
      returned += output >= 0 && target >= 0 && layouts_->base_of(output) == target ? 1 : 0;
    }
    const bool made = base == value && places_[at(value)] == Place::block && returned == 1;
    if (made && dense && last_read <= written[at(value)] &&
        (target < 0 || writes_in_place(steps_[at(written[at(value)])], target))) {
      places_[at(value)] = Place::target;
      target_[at(value)] = static_cast<int>(&write - writes_.begin());
      taken[write.output] = 1;
    }
  }
  // The input or constant that is written, where the graph reads it; else -1.
  int node_of(const Write& write) const {
    const Op op = write.input >= 0 ? Op::input : Op::constant;
    const int number = write.input >= 0 ? write.input : write.constant;
    for (int i = 0; i < graph_.size(); ++i) {
      if (graph_[i].op == op && static_cast<int>(graph_[i].number(0)) == number) {
        return i;
      }
    }
    return -1;
  }
  // Whether a step may write where one of its operands stands.
  bool writes_in_place(const Step& step, int target) const {
    bool reads = false, only_dense = true;
    for (const int input : step.inputs) {
      if (layouts_->base_of(input) == target) {
        reads = true;
        only_dense = only_dense && input == target;
      }
    }
    if (!reads) {
      return true;
    }
    if (step.kind == StepKind::vectors) {
      return only_dense && reads_densely(step, target);
    }
    return step.kind == StepKind::kernel && graph_[step.nodes[0]].op == Op::adamw;
  }
  // The group reads the target once, row by row as it writes.
  bool reads_densely(const Step& step, int target) const {
    int times = 0;
    for (const int input : step.inputs) {
      times += input == target ? 1 : 0;
    }
    for (const int node : step.nodes) {
      for (const int input : graph_[node].inputs) {
        if (layouts_->base_of(input) == target && graph_[input].shape != graph_[node].shape) {
          return false;
        }
      }
    }
    return times == 1;
  }

  std::vector<Tensor> run_in(Memory& memory, const std::vector<Tensor>& inputs,
                             const List<Tensor>& constants) const {
    begin(memory, inputs, constants);
    for (std::size_t s = 0; s < steps_.size(); ++s) {
      const detail::OpScope scope;
      run_step(steps_[s], memory);
      if (profiling()) {
        OpRecord record = records_[s];
        scope.done(record);
      }
    }
    std::vector<Tensor> outputs;
    for (std::size_t o = 0; o < graph_.outputs.size(); ++o) {
      const int output = graph_.outputs[o];
      const bool there = output >= 0 && places_[at(output)] != Place::target;
      outputs.push_back(there ? result(memory, output) : Tensor());
    }
    for (const Write& write : writes_) {
      Tensor& value = outputs[write.output];
      if (value.defined()) {
        detail::apply_in_place(
            detail::Arithmetic::second, "compile",
            write.input >= 0 ? inputs[at(write.input)] : constants[at(write.constant)], value);
      }
      value = Tensor();
    }
    for (std::size_t i = 0; i < memory.values.size(); ++i) {  // what is the caller's is let go
      if (memory.stale[i] != 0) {
        memory.values[i] = Tensor();
      }
    }
    return outputs;
  }

  // A result of its own: what is an input, a constant or a view of one is copied.
  Tensor result(const Memory& memory, int output) const {
    const Tensor& value = memory.values[at(output)];
    const int base = layouts_->base_of(output);
    if (places_[at(base)] != Place::own) {
      return value.clone();
    }
    return value;
  }

  // Tensors of all nodes: those of the last run where nothing changed.
  void begin(Memory& memory, const std::vector<Tensor>& inputs,
             const List<Tensor>& constants) const {
    const std::size_t n = graph_.nodes.size();
    const bool first = memory.values.empty();
    if (first) {
      memory.values = List<Tensor>(n);
      memory.stale = List<char>(n);
      const MemoryScope scope(MemoryKind::buffer);
      memory.block = Tensor(Shape{block_});
    }
    for (std::size_t i = 0; i < n; ++i) {
      const GraphNode& node = graph_.nodes[i];
      Tensor& value = memory.values[i];
      if (node.op == Op::input) {
        value = inputs[at(static_cast<int>(node.number(0)))];
        memory.stale[i] = 1;
      } else if (node.op == Op::constant) {
        const std::size_t number = at(static_cast<int>(node.number(0)));  // or a pass made it
        value = number < constants.size() ? constants[number].detach() : graph_.constants[number];
        memory.stale[i] = 1;
      } else if (facts_of(node.op).kind == OpKind::view && layouts_->copies[i] == 0) {
        const std::size_t from = at(node.inputs[0]);
        if (first || memory.stale[from] != 0 || !value.defined()) {
          if (memory.values[from].defined()) {
            value = detail::view_of(node, memory.values[from]);
          }
          memory.stale[i] = memory.stale[from];
        }
      } else if (places_[i] == Place::own) {
        value = Tensor(node.shape);
        memory.stale[i] = 1;
      } else if (places_[i] == Place::target) {
        const Write& write = writes_[at(target_[i])];
        value =
            (write.input >= 0 ? inputs[at(write.input)] : constants[at(write.constant)]).detach();
        memory.stale[i] = 1;
      } else if (places_[i] == Place::block && first) {
        const std::int64_t count = node.shape.count();
        value =
            Tensor(node.shape, detail::slice_storage(memory.block.storage(), offset_[i], count));
      } else if (node.op == Op::literal && first) {
        value = full(node.shape, static_cast<float>(node.numbers[0]));
      }
    }
  }

  void run_step(const Step& step, Memory& memory) const {
    switch (step.kind) {
      case StepKind::vectors: run_vectors(step, memory); return;
      case StepKind::product: run_matmul(step, memory); return;
      case StepKind::kernel: run_kernel(step, memory); return;
    }
  }

  void run_vectors(const Step& step, Memory& memory) const {
    const float* in[3 * detail::most_members];
    float* out[detail::most_members];
    for (std::size_t i = 0; i < step.inputs.size(); ++i) {
      in[i] = memory.values[at(step.inputs[i])].origin();
    }
    for (std::size_t i = 0; i < step.outputs.size(); ++i) {
      out[i] = memory.values[at(step.outputs[i])].origin();
    }
    kernels::run(step.vectors, in, out);
  }

  void run_matmul(const Step& step, Memory& memory) const {
    const auto numbers = [&](int node) {
      return node < 0 ? nullptr : memory.values[at(node)].origin();
    };
    const GraphNode& node = graph_[step.nodes[0]];
    Tensor& y = memory.values[at(step.outputs.back())];
    if (step.nodes.size() == 1) {
      detail::run_product(node, memory.values[at(step.inputs[0])],
                          memory.values[at(step.inputs[1])], y, nullptr);
      return;
    }
    kernels::GemmEpilogue epilogue;
    epilogue.scale = step.scale;
    epilogue.bias = numbers(step.bias);
    epilogue.activation = step.activation;
    epilogue.before = numbers(step.before);
    epilogue.residual = numbers(step.residual);
    epilogue.ld_before = epilogue.ld_residual = node.shape[-1];
    detail::run_product(node, memory.values[at(step.inputs[0])], memory.values[at(step.inputs[1])],
                        y, &epilogue);
  }

  // Kernels read rows in order: what lies otherwise is copied for them.
  void run_kernel(const Step& step, Memory& memory) const {
    Tensor dense[8];
    const Tensor* in[8] = {};
    Tensor own[4];
    Tensor* out[4] = {};
    List<Tensor> many;
    const GraphNode& node = graph_[step.nodes[0]];
    if (step.inputs.size() > 8) {
      detail::Parts operands;
      for (const int input : step.inputs) {
        operands.push_back(memory.values[at(input)]);
      }
      const detail::Parts results = detail::evaluate_node(node, operands);
      detail::apply_in_place(detail::Arithmetic::second, "compile",
                             memory.values[at(step.outputs[0])], results[0]);
      return;
    }
    for (std::size_t i = 0; i < step.inputs.size(); ++i) {
      in[i] = &memory.values[at(step.inputs[i])];
      if (!in[i]->is_contiguous()) {
        dense[i] = in[i]->clone();
        in[i] = &dense[i];
      }
    }
    for (std::size_t i = 0; i < step.outputs.size(); ++i) {
      const int output = step.outputs[i];
      if (output < 0) {
        own[i] = Tensor(detail::part_shape(graph_, node, static_cast<int>(i)));
      }
      out[i] = output < 0 ? &own[i] : &memory.values[at(output)];
    }
    detail::NodeKernel{graph_, node, in, out}();
  }

  CompileOptions options_;
  List<Write> writes_;
  Graph graph_;
  Shared<detail::ValueLayouts> layouts_;
  List<Step> steps_;
  List<OpRecord> records_;
  List<Place> places_;
  List<int> target_;
  List<std::int64_t> offset_;
  List<BufferLife> buffers_;
  std::int64_t block_ = 0, unshared_ = 0;
  mutable std::atomic<bool> busy_{false};
  mutable Memory memory_;
};

}  // namespace tinyscale
