#pragma once
// compile(mesh, f, shardings): a function of whole tensors as one program that every device runs on
// its blocks. f is captured once for each list of shapes, its shardings are propagated, and the
// collectives that were inserted are listed with their reasons, bytes and times.

#include <cstddef>
#include <cstdint>
#include <iostream>
#include <string>
#include <utility>  // move, swap
#include <vector>

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/compile/capture.hpp"
#include "tinyscale/compile/compiled.hpp"
#include "tinyscale/compile/evaluate.hpp"
#include "tinyscale/compile/simplify.hpp"
#include "tinyscale/compile/take_apart.hpp"
#include "tinyscale/compile/value_layout.hpp"
#include "tinyscale/mesh/mesh.hpp"
#include "tinyscale/mesh/propagation_rules.hpp"

namespace tinyscale {

struct ShardedOptions {
  std::vector<std::string> results;  // shardings of the results; missing or "": as it comes, summed
  std::vector<int> gradients;  // inputs: gradients of result 0, one number, as further results
  bool gather_again = false;   // gathered values go with the forward pass: less memory, more bytes
  DType format = DType::f32;   // in which numbers are sent; ids always in f32
};

// What a program does for inputs of these shapes.
struct ShardedPlan {
  List<Shape> shapes;  // of the inputs
  Graph whole;         // the function, in primitives
  Graph device;        // what each device runs
  List<PlacedNode> nodes;
  List<InsertedStep> steps;
  List<Sharding> results;
  List<Shape> result_shapes;
  double comms_seconds = 0, bytes = 0;  // closed forms; bytes that a device sends
  Shared<const MeshRun> run;            // null: it has not run, or other shapes have since

  // Without slices, which are free.
  List<InsertedStep> collectives() const {
    List<InsertedStep> out;
    for (const InsertedStep& step : steps) {
      if (step.name != "slice") {
        out.push_back(step);
      }
    }
    return out;
  }
  Table table() const;             // a row for each op
  Table collective_table() const;  // a row for each collective
  std::string csv() const { return collective_table().csv(); }
  std::string json() const { return collective_table().json(); }
};

namespace detail {

// The function's graph on whole shapes, gradients behind its results.
inline Graph capture_whole(const Compiled::Body& body, const List<Shape>& shapes,
                           const std::vector<int>& gradients) {
  Context own = context();
  own.no_grad = 0;
  own.profile = nullptr;
  const ContextScope scope(own);
  std::vector<Tensor> inputs;
  for (const Shape& shape : shapes) {
    inputs.push_back(phantom(shape));
  }
  for (const int input : gradients) {
    Tensor& x = inputs[static_cast<std::size_t>(input)];
    x = x.requires_grad() ? x : leaf(x, MemoryKind::gradient);
  }
  Capture capture([](Capture& now, const List<int>&) -> std::vector<Tensor> {
    fail({"compile: ", now.breaks.back().text(),
          " of a sharded function, whose numbers lie on many devices; return it instead"});
  });
  capture.run(body, inputs);
  if (!capture.writes.empty() || !capture.gradients.empty() || !capture.hosts.empty()) {
    fail({"compile: the sharded function writes to a tensor that it did not make, gives gradients ",
          "to one or asks the host; results alone come back from the devices"});
  }
  Graph& graph = capture.graph;
  for (std::size_t r = 0; r < graph.outputs.size(); ++r) {
    if (graph.outputs[r] < 0) {
      fail({"compile: result ", r, " of the sharded function is empty; return tensors"});
    }
  }
  if (!gradients.empty()) {
    if (graph.outputs.empty() || graph[graph.outputs[0]].shape.count() != 1) {
      fail({"compile: gradients of result 0, which is ",
            graph.outputs.empty() ? std::string("none") : graph[graph.outputs[0]].shape.text(),
            "; one number is right, as a loss"});
    }
    const RecorderScope recording_scope(&capture);
    Differentiation differentiation(capture);
    const int loss = graph.outputs[0];
    const Shape shape_of_loss = graph[loss].shape;  // a copy: the graph grows
    differentiation.start(loss, full(shape_of_loss, 1.0f));
    differentiation.run();
    for (const int input : gradients) {
      int leaf_node = -1;
      for (std::size_t k = 0; k < capture.leaf_nodes.size(); ++k) {
        leaf_node = capture.leaf_inputs[k] == input ? capture.leaf_nodes[k] : leaf_node;
      }
      const int found = differentiation.gradient(leaf_node);
      const Shape& shape = shapes[static_cast<std::size_t>(input)];
      graph.outputs.push_back(found >= 0 ? found : capture.node_of(full(shape, 0.0f)));
    }
  }
  Graph whole = take_apart(graph);
  simplify(whole);
  return whole;
}

// An op of the device's graph between devices. The line names it in the run's log.
inline Tensor call_collective(Device& device, const PlacedMesh& mesh, const GraphNode& node,
                              const Tensor& x, const InsertedStep& step, const SourceLine& line) {
  CollectiveOptions options;
  options.format = step.format;
  options.algorithm = step.how;
  const std::size_t first = node.op == Op::all_to_all ? 2 : 1;
  std::vector<std::string> axes;
  for (std::size_t i = first; i < node.numbers.size(); ++i) {
    axes.push_back(mesh.axes[static_cast<std::size_t>(node.whole(i))].name);
  }
  const int dim = static_cast<int>(node.number(0));
  switch (node.op) {
    case Op::all_gather: return device.all_gather(x, axes, dim, options, line);
    case Op::reduce_scatter: return device.reduce_scatter(x, axes, dim, Reduce::sum, options, line);
    case Op::all_reduce: return device.all_reduce(x, axes, static_cast<Reduce>(dim), options, line);
    case Op::all_to_all:
      return device.all_to_all(x, axes, dim, static_cast<int>(node.number(1)), options, line);
    default: return device.shard(x, axes, dim);
  }
}

// The graph on one device. A value goes when its last user has run.
inline void run_on_device(Device& device, const ShardedPlan& plan, const PlacedMesh& mesh,
                          const std::vector<Sharded>& inputs) {
  const NoGrad no_graph;
  const Graph& graph = plan.device;
  List<Tensor> values(graph.nodes.size());
  List<int> uses = use_counts(graph);
  std::size_t next = 0;
  for (int i = 0; i < graph.size(); ++i) {
    const GraphNode& node = graph[i];
    Tensor& value = values[static_cast<std::size_t>(i)];
    Parts in;
    for (const int input : node.inputs) {
      in.push_back(values[static_cast<std::size_t>(input)]);
    }
    if (node.op == Op::input) {
      value = inputs[static_cast<std::size_t>(node.number(0))]
                  .shards[static_cast<std::size_t>(device.rank())];
    } else if (node.op == Op::constant) {
      value = graph.constants[static_cast<std::size_t>(node.number(0))].detach();
    } else if (facts_of(node.op).kind == OpKind::collective) {
      const SourceLine line = {"program", static_cast<int>(next) + 1};
      value = call_collective(device, mesh, node, in[0], plan.steps[next++], line);
    } else {
      value = evaluate_node(node, in)[0];
    }
    in.clear();
    for (const int input : node.inputs) {
      if (--uses[static_cast<std::size_t>(input)] == 0) {
        values[static_cast<std::size_t>(input)] = Tensor();
      }
    }
  }
  for (std::size_t r = 0; r < graph.outputs.size(); ++r) {
    device.keep(cat({"result ", r}), values[static_cast<std::size_t>(graph.outputs[r])]);
  }
}

// What went over the links for each step of a run, an average of all devices, and how long it took.
inline void count_steps(ShardedPlan& plan, const MeshRun& run) {
  for (InsertedStep& step : plan.steps) {
    step.counted = 0;
    step.simulated = 0;
  }
  std::vector<double> out(static_cast<std::size_t>(run.devices())), in(out.size());
  for (std::size_t c = 0; c < run.log().calls.size(); ++c) {
    const LoggedCall& call = run.log().calls[c];
    InsertedStep& step = plan.steps[static_cast<std::size_t>(call.where.line) - 1];
    out.assign(out.size(), 0);
    add_bytes(call, out, in);
    for (const double bytes : out) {
      step.counted += bytes / run.devices();
    }
    const double seconds = run.timeline.calls[c].finish - run.timeline.calls[c].start;
    step.simulated = seconds > step.simulated ? seconds : step.simulated;
  }
}

}  // namespace detail

class ShardedProgram {
 public:
  ShardedProgram() = default;
  ShardedProgram(const Mesh& mesh, Compiled::Body body, const std::vector<std::string>& inputs,
                 const ShardedOptions& options);

  // The results on the mesh. Inputs made of shapes alone give results without numbers, and what it
  // would cost. MPI ranks that measured their chips price by rank 0's from the first numbers on.
  std::vector<Sharded> operator()(const std::vector<Sharded>& inputs) const;
  // Of whole tensors, cut first.
  std::vector<Sharded> operator()(const std::vector<Tensor>& inputs) const;

  // What the last call did; what a call with inputs of these shapes does.
  const ShardedPlan& plan() const;
  const ShardedPlan& plan(const List<Shape>& shapes) const;

 private:
  struct State {
    State(const Mesh& of, Compiled::Body function, const ShardedOptions& how)
        : mesh(of), body(std::move(function)), options(how) {}
    Mesh mesh;
    Shared<const detail::PlacedMesh> placed;
    Compiled::Body body;
    List<Sharding> inputs, results;
    ShardedOptions options;
    List<Shared<ShardedPlan>> plans, alone;  // alone: from before MPI ranks met; perhaps held
    Shared<ShardedPlan> last;
    bool met = false;  // placed on what all MPI ranks price by
  };

  State& state() const {
    if (!state_) {
      detail::fail(
          {"ShardedProgram: there is no function; make one with compile(mesh, f, ", "shardings)"});
    }
    return *state_;
  }
  void check_count(std::size_t given) const {
    if (given != state().inputs.size()) {
      detail::fail({"ShardedProgram: ", given, " inputs, and shardings of ", state().inputs.size(),
                    "; one each is right"});
    }
  }
  Shared<ShardedPlan> plan_of(const List<Shape>& shapes) const;
  Shared<ShardedPlan> make_plan(const List<Shape>& shapes) const;

  Shared<State> state_;
};

// A function of whole tensors on a mesh, its inputs cut as `shardings` say: {"B_x, D", "D, F"}.
inline ShardedProgram compile(const Mesh& mesh, const Compiled::Body& body,
                              const std::vector<std::string>& shardings,
                              const ShardedOptions& options = ShardedOptions()) {
  return ShardedProgram(mesh, body, shardings, options);
}

inline ShardedProgram::ShardedProgram(const Mesh& mesh, Compiled::Body body,
                                      const std::vector<std::string>& inputs,
                                      const ShardedOptions& options)
    : state_(new State(mesh, std::move(body), options)) {
  State& own = *state_;
  own.placed = Shared<const detail::PlacedMesh>(
      new detail::PlacedMesh{mesh.machine(), detail::place_axes(mesh.machine(), mesh.axes())});
  const auto parsed = [&own](const std::string& text) {
    const Sharding sharding = parse_sharding(text);
    std::string used;
    detail::letters_of(*own.placed, sharding, sharding.partial, used);
    for (const ShardedDim& dim : sharding.dims) {
      detail::letters_of(*own.placed, sharding, dim.axes, used);
    }
    return sharding;
  };
  for (const std::string& text : inputs) {
    own.inputs.push_back(parsed(text));
  }
  for (const std::string& text : options.results) {
    own.results.push_back(parsed(text));
  }
  for (const int input : options.gradients) {
    if (input < 0 || input >= static_cast<int>(inputs.size())) {
      detail::fail({"compile: a gradient with respect to input ", input, " of ", inputs.size(),
                    "; inputs are numbered from 0"});
    }
  }
}

inline Shared<ShardedPlan> ShardedProgram::make_plan(const List<Shape>& shapes) const {
  const State& own = state();
  for (std::size_t k = 0; k < shapes.size(); ++k) {
    detail::places_of(*own.placed, own.inputs[k], shapes[k]);  // checks
  }
  Shared<ShardedPlan> plan(new ShardedPlan);
  plan->shapes = shapes;
  plan->whole = detail::capture_whole(own.body, shapes, own.options.gradients);
  const std::size_t results = plan->whole.outputs.size();
  if (own.results.size() > results) {
    detail::fail({"compile: shardings of ", own.results.size(), " results, and the function has ",
                  results, " with its gradients; one each, or fewer, is right"});
  }
  detail::Propagation propagation(plan->whole, *own.placed, own.options.format);
  propagation.gather_again =
      own.options.gather_again && !own.options.gradients.empty() ? plan->whole.outputs[0] : -1;
  propagation.run(own.inputs, own.results);
  plan->device = propagation.device;
  plan->nodes = propagation.nodes;
  plan->steps = propagation.steps;
  plan->results = propagation.result_names;
  for (const int output : plan->whole.outputs) {
    plan->result_shapes.push_back(plan->whole[output].shape);
  }
  for (const InsertedStep& step : plan->steps) {
    plan->bytes += step.bytes;
    plan->comms_seconds += step.seconds;
  }
  return plan;
}

inline Shared<ShardedPlan> ShardedProgram::plan_of(const List<Shape>& shapes) const {
  State& own = state();
  check_count(shapes.size());
  for (const Shared<ShardedPlan>& known : own.plans) {
    bool same = true;
    for (std::size_t k = 0; k < shapes.size(); ++k) {
      same = same && known->shapes[k] == shapes[k];
    }
    if (same) {
      own.last = known;
      return known;
    }
  }
  own.last = make_plan(shapes);
  own.plans.push_back(own.last);
  return own.last;
}

inline const ShardedPlan& ShardedProgram::plan() const {
  if (!state().last) {
    detail::fail({"ShardedProgram: plan of a program that was not called yet; call it first, or ",
                  "give plan() the shapes of its inputs"});
  }
  return *state().last;
}
inline const ShardedPlan& ShardedProgram::plan(const List<Shape>& shapes) const {
  return *plan_of(shapes);
}

inline std::vector<Sharded> ShardedProgram::operator()(const std::vector<Tensor>& inputs) const {
  check_count(inputs.size());
  std::vector<Sharded> cut;
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    cut.push_back(state().mesh.shard(inputs[k], state().inputs[k].text()));
  }
  return (*this)(cut);
}

inline std::vector<Sharded> ShardedProgram::operator()(const std::vector<Sharded>& inputs) const {
  State& own = state();
  check_count(inputs.size());
  List<Shape> shapes;
  bool numbers = true;
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    const Sharded& x = inputs[k];
    x.check();
    if (x.mesh->text() != own.placed->text()) {
      detail::fail({"ShardedProgram: input ", k, " lies on another mesh, ", x.mesh->text(),
                    "; the program is compiled for ", own.placed->text()});
    }
    if (detail::places_of(*x.mesh, x.sharding, x.shape) !=
        detail::places_of(*own.placed, own.inputs[k], x.shape)) {
      detail::fail({"ShardedProgram: input ", k, " is ", x.text(), ", compiled for [",
                    own.inputs[k].text(), "]; reshard it first"});
    }
    numbers = numbers && !x.shards.empty();
    shapes.push_back(x.shape);
  }
  if (numbers && !own.met && detail::ranks_may_differ(own.placed->machine)) {
    const List<MeshAxis>& axes = own.mesh.axes();
    const Machine& machine = detail::machine_of_all(own.placed->machine, axes, own.mesh.algorithm);
    own.placed = Shared<const detail::PlacedMesh>(
        new detail::PlacedMesh{machine, detail::place_axes(machine, axes)});
    std::swap(own.alone, own.plans);
    own.met = true;
  }
  const Shared<ShardedPlan> plan = plan_of(shapes);
  Shared<const MeshRun> run;
  if (numbers) {
    run = Shared<const MeshRun>(new MeshRun(own.mesh.run(
        [&](Device& device) { detail::run_on_device(device, *plan, *own.placed, inputs); })));
    detail::count_steps(*plan, *run);
    for (const Shared<ShardedPlan>& known : own.plans) {  // a run holds the results of all devices
      known->run.reset();
    }
    plan->run = run;
  }
  std::vector<Sharded> out;
  for (std::size_t r = 0; r < plan->results.size(); ++r) {
    out.push_back(
        {own.placed, plan->result_shapes[r], plan->results[r], own.options.format, {}, {}});
    for (int rank = 0; numbers && rank < own.placed->devices(); ++rank) {
      out.back().shards.push_back(run->kept(rank, detail::cat({"result ", r})));
    }
    ShardedReport report;
    report.title = detail::cat(
        {"result ", r, " of a program of ", plan->steps.size(), " steps: ", out.back().text()});
    for (const InsertedStep& step : plan->steps) {
      report.steps.push_back(step);
    }
    report.bytes = plan->bytes;
    report.comms_seconds = plan->comms_seconds;
    detail::finish(out.back(), report);
  }
  return out;
}

inline Table ShardedPlan::table() const {
  Table out;
  out.title = detail::cat({"sharded program: inputs ", shapes.size(), ", results ", results.size(),
                           ", collectives ", collectives().size()});
  out.columns = {"node", "op", "operands", "result", "before it", "why"};
  for (int i = 0; i < whole.size(); ++i) {
    const PlacedNode& node = nodes[static_cast<std::size_t>(i)];
    if (whole[i].op == Op::literal) {
      continue;
    }
    std::string operands, before;
    for (const std::string& operand : node.operands) {
      operands += (operands.empty() ? "[" : " [") + operand + "]";
    }
    for (const std::size_t step : node.steps) {
      before += detail::cat({before.empty() ? "" : ", ", steps[step].name, " %", steps[step].of,
                             " over ", steps[step].axes});
    }
    out.add({detail::cat({"%", i}), name_of(whole[i].op), operands,
             "[" + node.sharding.text() + "]", before, node.reason});
  }
  return out;
}

inline Table ShardedPlan::collective_table() const {
  Table out;
  out.columns = {"collective", "axes",           "of",      "from",          "to",       "for",
                 "algorithm",  "bytes, formula", "counted", "time, formula", "simulated"};
  for (const InsertedStep& step : collectives()) {
    out.add({step.name, step.axes, detail::cat({"%", step.of}), "[" + step.before + "]",
             "[" + step.after + "]",
             step.by < 0 ? std::string("a result")
                         : detail::cat({"%", step.by, " ", name_of(whole[step.by].op)}),
             step.algorithm, format_bytes(step.bytes), run ? format_bytes(step.counted) : "-",
             format_seconds(step.seconds), run ? format_seconds(step.simulated) : "-"});
  }
  return out;
}

inline std::ostream& operator<<(std::ostream& out, const ShardedPlan& plan) {
  out << plan.table() << plan.collective_table() << "a device sends " << format_bytes(plan.bytes)
      << ", in " << format_seconds(plan.comms_seconds) << " by formula";
  if (plan.run) {
    out << "; the whole program simulated " << format_seconds(plan.run->seconds) << " on "
        << plan.run->machine().name;
  }
  return out << "\n";
}
inline std::ostream& operator<<(std::ostream& out, const ShardedProgram& program) {
  return out << program.plan();
}

}  // namespace tinyscale
