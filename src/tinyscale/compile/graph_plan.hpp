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
#include "tinyscale/compile/graph_cost.hpp"
#include "tinyscale/compile/rematerialize.hpp"
#include "tinyscale/compile/run_kernel.hpp"
#include "tinyscale/compile/simplify.hpp"
#include "tinyscale/compile/step.hpp"
#include "tinyscale/compile/step_builder.hpp"
#include "tinyscale/compile/take_apart.hpp"

namespace tinyscale {
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
    build();
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
  const CompileOptions& options() const { return options_; }
  const List<Write>& writes() const { return writes_; }
  const List<Step>& steps() const { return steps_; }
  // What each step costs, no times.
  const List<OpRecord>& records() const { return records_; }
  const List<BufferLife>& buffers() const { return buffers_; }
  // Bytes of the block that intermediate results share; of all of them side by side.
  double block_bytes() const { return 4.0 * static_cast<double>(block_); }
  // What CompileOptions::activation_bytes led to.
  const Rematerialization& rematerialization() const { return rematerialization_; }
  double unshared_bytes() const { return 4.0 * static_cast<double>(unshared_); }
  double result_bytes() const;  // of what a run returns: memory of its own for each

  // The outputs for these inputs (contiguous) and constants; empty where one went to its target.
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
      detail::simplify(graph_, true);
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
        detail::simplify(graph_, true);
      } else {
        detail::sort_needed(graph_);  // parts that nobody asked for
      }
    } else if (!options_.simplify) {
      detail::sort_needed(graph_);
    }
    if (options_.activation_bytes > 0) {
      rematerialization_ = rematerialize(graph_, options_.activation_bytes);
    }
  }

  void build() {
    List<kernels::VectorProgram> programs;
    for (const Step& step : steps_) {
      if (options_.build && step.kind == StepKind::vectors) {
        programs.push_back(step.program);
      }
    }
    const List<LoadedKernel> built = options_.build ? load_kernels(programs) : List<LoadedKernel>();
    std::size_t next = 0;
    for (Step& step : steps_) {
      if (options_.build && step.kind == StepKind::vectors) {
        step.built = built[next++];
      }
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
    List<int> holder(n);  // the node whose buffer each one takes over, at last
    for (int s = 0; s < end; ++s) {
      for (const int output : steps_[at(s)].outputs) {
        if (output < 0 || places_[at(output)] != Place::block) {
          continue;
        }
        holder[at(output)] = output;
        const int given = options_.plan_memory ? taken_over(steps_[at(s)], output, s, last) : -1;
        if (given >= 0) {
          holder[at(output)] = holder[at(given)];
          for (BufferLife& buffer : buffers_) {
            buffer.last = buffer.node == holder[at(given)] ? last[at(output)] : buffer.last;
          }
          last[at(given)] = -1;  // it is given away once
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
    for (std::size_t i = 0; i < n; ++i) {
      if (places_[i] == Place::block) {
        offset_[i] = offset_[at(holder[i])];
      }
    }
  }
  // An operand of the same size that nobody reads after this step, and in whose place the result
  // may be written; or -1.
  int taken_over(const Step& step, int output, int s, const List<int>& last) const {
    const bool rows = step.kind == StepKind::kernel && graph_[output].op == Op::scatter_add;
    if (step.kind != StepKind::vectors && !rows) {
      return -1;
    }
    for (const int input : step.inputs) {
      const int base = layouts_->base_of(input);
      if (base == input && places_[at(base)] == Place::block && last[at(base)] == s &&
          graph_[base].shape == graph_[output].shape && writes_in_place(step, output, base)) {
        return base;
      }
    }
    return -1;
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
        (target < 0 || writes_in_place(steps_[at(written[at(value)])], value, target))) {
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
  bool writes_in_place(const Step& step, int output, int target) const {
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
      return only_dense && step.writes_full(output) && reads_densely(step, target);
    }
    const Op op = graph_[step.nodes[0]].op;
    const bool added = op == Op::scatter_add && step.inputs.size() == 3 &&
                       step.inputs[2] == target && layouts_->base_of(step.inputs[1]) != target;
    return step.kind == StepKind::kernel && (op == Op::adamw || added);
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
    if (step.built) {
      step.built(in, out);
    } else {
      kernels::run(step.vectors, in, out);
    }
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
    const detail::Uncounted scope;  // the step is counted as one
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
  Rematerialization rematerialization_;
  std::int64_t block_ = 0, unshared_ = 0;
  mutable std::atomic<bool> busy_{false};
  mutable Memory memory_;
};

inline double GraphPlan::result_bytes() const {
  std::int64_t count = 0;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    count += places_[i] == Place::own ? graph_.nodes[i].shape.count() : 0;
  }
  for (const int output : graph_.outputs) {
    const bool made = output >= 0 && (places_[at(output)] == Place::target ||
                                      places_[at(layouts_->base_of(output))] == Place::own);
    count += output >= 0 && !made ? graph_[output].shape.count() : 0;  // a copy
  }
  return 4.0 * static_cast<double>(count);
}

}  // namespace tinyscale
