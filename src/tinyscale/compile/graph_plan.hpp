#pragma once
// A graph made ready to run: passes, steps in an order, places in memory. Running it costs no more
// than its kernels and a few tens of nanoseconds a step.

#include <atomic>   // one run at a time owns the block
#include <cstddef>  // size_t
#include <cstdint>  // int64_t
#include <utility>  // move
#include <vector>   // vector

#include "tinyscale/compile/compile_options.hpp"
#include "tinyscale/compile/graph_cost.hpp"
#include "tinyscale/compile/placement.hpp"
#include "tinyscale/compile/rematerialize.hpp"
#include "tinyscale/compile/run_kernel.hpp"
#include "tinyscale/compile/run_product.hpp"
#include "tinyscale/compile/simplify.hpp"
#include "tinyscale/compile/step.hpp"
#include "tinyscale/compile/step_builder.hpp"
#include "tinyscale/compile/take_apart.hpp"

namespace tinyscale {
class GraphPlan {
 public:
  using Write = GraphWrite;

  // Which of the graph's outputs are written to what stands for one of its inputs or constants.
  GraphPlan(Graph graph, const CompileOptions& options, const List<Write>& writes = List<Write>())
      : options_(options), writes_(writes) {
    const std::size_t given = graph.constants.size();
    apply_passes(std::move(graph));
    layouts_ = Shared<detail::ValueLayouts>(new detail::ValueLayouts(graph_));
    steps_ = detail::StepBuilder(graph_, *layouts_, options_).build();
    build();
    placed_ = detail::Placer(graph_, *layouts_, steps_, writes_, options_.plan_memory).place();
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
  const List<BufferLife>& buffers() const { return placed_.buffers; }
  // Bytes of the block that intermediate results share; of all of them side by side.
  double block_bytes() const { return 4.0 * static_cast<double>(placed_.block); }
  // What CompileOptions::activation_bytes led to.
  const Rematerialization& rematerialization() const { return rematerialization_; }
  double unshared_bytes() const { return 4.0 * static_cast<double>(placed_.unshared); }
  // Of what a run returns: memory of its own for each that it makes; then, at its end, for copies
  // of inputs, constants and views of them.
  double result_bytes() const;
  double copied_bytes() const;

  // The outputs for these inputs (contiguous) and constants; empty where one went to its target.
  List<Tensor> run(const List<Tensor>& inputs, const List<Tensor>& constants) const {
    const NoGrad no_graph;
    const detail::RecorderScope eager(nullptr);
    Memory own;
    const bool shared = !busy_.exchange(true);
    Memory& memory = shared ? memory_ : own;
    List<Tensor> outputs;
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
  typedef detail::Placement::Place Place;

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
    const detail::WholeOps whole(before, options);
    bool composite = false;
    for (int i = 0; i < before.size(); ++i) {
      composite = composite || (!is_primitive(before[i].op) && !whole.stays(i));
    }
    if (composite) {
      graph_ = take_apart(before, [&whole](int i) { return whole.stays(i); });
      if (options_.simplify) {
        detail::simplify(graph_, true);
      } else {
        detail::sort_needed(graph_);  // parts that nobody asked for
      }
    } else if (!options_.simplify) {
      detail::sort_needed(graph_);
    }
    rematerialization_ = rematerialize(graph_, options_.activation_bytes);
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

  List<Tensor> run_in(Memory& memory, const List<Tensor>& inputs,
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
    List<Tensor> outputs;
    outputs.reserve(graph_.outputs.size());
    for (std::size_t o = 0; o < graph_.outputs.size(); ++o) {
      const int output = graph_.outputs[o];
      const bool there = output >= 0 && placed_.places[at(output)] != Place::target;
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
    if (placed_.places[at(base)] != Place::own) {
      return value.copied();
    }
    return value;
  }

  // Tensors of all nodes: those of the last run where nothing changed.
  void begin(Memory& memory, const List<Tensor>& inputs, const List<Tensor>& constants) const {
    const std::size_t n = graph_.nodes.size();
    const bool first = memory.values.empty();
    if (first) {
      memory.values = List<Tensor>(n);
      memory.stale = List<char>(n);
      const MemoryScope scope(MemoryKind::buffer);
      memory.block = Tensor(Shape{placed_.block});
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
      } else if (placed_.places[i] == Place::own) {
        value = Tensor(node.shape);
        memory.stale[i] = 1;
      } else if (placed_.places[i] == Place::target) {
        const Write& write = writes_[at(placed_.target[i])];
        value =
            (write.input >= 0 ? inputs[at(write.input)] : constants[at(write.constant)]).detach();
        memory.stale[i] = 1;
      } else if (placed_.places[i] == Place::block && first) {
        const std::int64_t count = node.shape.count();
        value = Tensor(node.shape,
                       detail::slice_storage(memory.block.storage(), placed_.offset[i], count));
      } else if (node.op == Op::literal && first) {
        value = full(node.shape, static_cast<float>(node.numbers[0]));
      }
    }
  }

  void run_step(const Step& step, Memory& memory) const {
    switch (step.kind) {
      case StepKind::vectors: run_vectors(step, memory); return;
      case StepKind::product: detail::ProductRun{graph_, step, memory.values}(); return;
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
        dense[i] = in[i]->copied();
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
  detail::Placement placed_;
  Rematerialization rematerialization_;
  mutable std::atomic<bool> busy_{false};
  mutable Memory memory_;
};

inline double GraphPlan::result_bytes() const {
  std::int64_t count = 0;
  for (std::size_t i = 0; i < placed_.places.size(); ++i) {
    count += placed_.places[i] == Place::own ? graph_.nodes[i].shape.count() : 0;
  }
  return 4.0 * static_cast<double>(count);
}

inline double GraphPlan::copied_bytes() const {
  std::int64_t count = 0;
  for (const int output : graph_.outputs) {
    const bool made = output >= 0 && (placed_.places[at(output)] == Place::target ||
                                      placed_.places[at(layouts_->base_of(output))] == Place::own);
    count += output >= 0 && !made ? graph_[output].shape.count() : 0;
  }
  return 4.0 * static_cast<double>(count);
}

// A row for each kernel.
inline std::ostream& operator<<(std::ostream& out, const GraphPlan& plan) {
  Table table;
  table.title = detail::cat({plan.graph().size(), " nodes in ", plan.steps().size(),
                             plan.steps().size() == 1 ? " kernel, " : " kernels, ",
                             format_bytes(plan.block_bytes()), " of intermediate results"});
  table.columns = {"kernel", "matmul FLOPs", "vector FLOPs", "bytes"};
  for (const OpRecord& record : plan.records()) {
    table.add({record.name, format_si(record.matmul_flops, ""), format_si(record.vector_flops, ""),
               format_bytes(record.bytes_read + record.bytes_written)});
  }
  return out << table;
}

}  // namespace tinyscale
