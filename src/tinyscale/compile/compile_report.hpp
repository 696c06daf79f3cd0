#pragma once
// What each pass of a compilation is worth: one row a pass, each with all passes before it, from
// the ops as they were written to the plan that runs. What shapes predict stands beside what
// running counts:
//   std::cout << ts::compile_report(f).measure({x});

#include <algorithm>  // max
#include <cmath>      // fabs, HUGE_VAL
#include <cstddef>    // size_t
#include <ostream>    // operator<<
#include <string>     // names
#include <vector>     // tables

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/order.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/compile/bytes_waterfall.hpp"
#include "tinyscale/compile/compiled.hpp"
#include "tinyscale/compile/run_eagerly.hpp"
#include "tinyscale/measure/quantity_formula.hpp"

namespace tinyscale {

// A graph after some of the passes.
struct PassRow {
  std::string name;
  bool eager = false;      // op by op, each result let go behind its last use
  CompileOptions options;  // of a plan
  int nodes = 0;
  int kernels = 0;
  double bytes = 0;                           // read and written
  double matmul_flops = 0, vector_flops = 0;  // counts
  double block_bytes = 0;     // memory of all intermediate results; op by op: most at once
  double unshared_bytes = 0;  // of all of them side by side
  double peak_bytes = 0;      // with what is returned

  // From running it: by a Profile and by the memory meter; median; against the first row, over the
  // largest number of that result.
  bool measured = false;
  int counted_kernels = 0;
  double counted_bytes = 0, counted_peak_bytes = 0;
  double seconds = 0;
  double difference = 0;

  double flops() const { return matmul_flops + vector_flops; }
  double intensity() const { return bytes > 0 ? flops() / bytes : 0; }  // FLOPs per byte
};

struct CompileReport {
  Graph graph;  // as it was captured
  CompileOptions options;
  List<GraphPlan::Write> writes;
  List<PassRow> rows;

  // Runs each row with these inputs: once counted, then `times` times on the clock. What the graph
  // writes is written to copies.
  CompileReport& measure(const std::vector<Tensor>& inputs, int times = 5);

  const PassRow& row(const std::string& name) const;
  Table table() const;  // for people
  Table data() const;   // plain numbers
  std::string csv() const { return data().csv(); }
  std::string json() const { return data().json(); }
};

namespace detail {

struct Pass {
  const char* name;
  bool CompileOptions::*on;
};
inline const List<Pass>& compile_passes() {
  static const List<Pass> passes = {{"+ simplify", &CompileOptions::simplify},
                                    {"+ elementwise", &CompileOptions::fuse_elementwise},
                                    {"+ rows", &CompileOptions::fuse_rows},
                                    {"+ matmul", &CompileOptions::fuse_matmul},
                                    {"+ attention", &CompileOptions::fuse_attention},
                                    {"+ memory", &CompileOptions::plan_memory}};
  return passes;
}

inline void count_records(PassRow& row, const List<OpRecord>& records) {
  row.kernels = static_cast<int>(records.size());
  for (const OpRecord& record : records) {
    row.bytes += record.bytes();
    row.matmul_flops += record.matmul_flops;
    row.vector_flops += record.vector_flops;
  }
}

// Of numbers that eager ops read as tensors of one element; a kernel holds them.
inline double literal_bytes(const Graph& graph) {
  double bytes = 0;
  for (const GraphNode& node : graph.nodes) {
    for (const int input : distinct_inputs(is_free(node) ? List<int>() : node.inputs)) {
      int source = input;
      while (facts_of(graph[source].op).kind == OpKind::view) {
        source = graph[source].inputs[0];
      }
      bytes += graph[source].op == Op::literal ? 4 : 0;
    }
  }
  return bytes;
}

// What an eager op does besides: operands that do not lie in rows are copied, which is an op of its
// own unless its kernel does it; a loss is one for each row before it is their mean.
inline std::int64_t add_passing(PassRow& row, const ValueLayouts& layouts, const GraphNode& node) {
  const Op op = node.op;
  const bool loss = op == Op::cross_entropy || op == Op::linear_cross_entropy;
  const bool function = facts_of(op).kind == OpKind::elementwise && node.inputs.size() == 1;
  const bool copies = loss || op == Op::softmax || op == Op::log_softmax || op == Op::dropout ||
                      op == Op::take || (function && op != Op::pow && op != Op::round);
  std::int64_t passing = 0;
  for (std::size_t k = 0; k < node.inputs.size() && !is_free(node); ++k) {
    const Tensor& x = layouts.of(node.inputs[k]);
    const bool copied = !x.is_contiguous() && (copies || !counts_itself(op));
    passing += copied ? x.count() : 0;
    row.kernels += copied && copies ? 1 : 0;
    row.bytes += copied && copies ? 8 * count_of(x.shape()) : 0;
  }
  const std::int64_t rows = loss ? layouts.of(node.inputs.back()).count() : 0;
  row.bytes += loss ? 4 * static_cast<double>(rows - 1) : 0;
  return passing + (op == Op::cross_entropy ? 3 : 2) * rows;
}

inline PassRow eager_row(const char* name, const Graph& graph) {
  PassRow row;
  row.name = name;
  row.eager = true;
  row.nodes = graph.size();
  count_records(row, op_by_op(graph));
  row.bytes += literal_bytes(graph);
  List<BufferLife> between, all = eager_buffers(graph);
  for (const BufferLife& buffer : all) {
    if (buffer.last < graph.size() && graph[buffer.node].op != Op::literal) {
      between.push_back(buffer);
      row.unshared_bytes += 4.0 * static_cast<double>(buffer.count);
    }
  }
  const ValueLayouts layouts(graph);
  for (int i = 0; i < graph.size(); ++i) {
    all.push_back({i, i, i, add_passing(row, layouts, graph[i]), 0});
  }
  row.block_bytes = 4.0 * static_cast<double>(peak_in_use(between, graph.size()));
  row.peak_bytes = 4.0 * static_cast<double>(peak_in_use(all, graph.size()));
  return row;
}

// Results that nobody needs, those of eager ops before they stand in their place, and copies of
// operands that do not lie in rows, while a kernel runs.
inline double passing_bytes(const GraphPlan& plan) {
  const Graph& graph = plan.graph();
  const ValueLayouts layouts(graph);
  std::int64_t most = 0;
  for (const Step& step : plan.steps()) {
    const Op op = graph[step.nodes[0]].op;
    const OpKind of = facts_of(op).kind;
    const bool own = of == OpKind::row || of == OpKind::whole || of == OpKind::index;
    const bool eager = step.kind == StepKind::kernel && (!own || op == Op::log_softmax);
    std::int64_t now = eager ? graph[step.nodes[0]].shape.count() : 0;
    for (std::size_t i = 0; step.kind == StepKind::kernel && i < step.outputs.size(); ++i) {
      now += step.outputs[i] < 0
                 ? part_shape(graph, graph[step.nodes[0]], static_cast<int>(i)).count()
                 : 0;
    }
    for (std::size_t i = 0; step.kind == StepKind::kernel && i < step.inputs.size(); ++i) {
      const Tensor& x = layouts.of(step.inputs[i]);
      now += x.is_contiguous() ? 0 : x.count();
    }
    most = std::max(most, now);
  }
  return 4.0 * static_cast<double>(most);
}

inline PassRow plan_row(const char* name, const GraphPlan& plan) {
  PassRow row;
  row.name = name;
  row.options = plan.options();
  row.nodes = plan.graph().size();
  count_records(row, plan.records());
  row.block_bytes = plan.block_bytes();
  row.unshared_bytes = plan.unshared_bytes();
  row.peak_bytes =
      plan.block_bytes() + plan.result_bytes() + std::max(plan.copied_bytes(), passing_bytes(plan));
  for (const GraphNode& node : plan.graph().nodes) {
    row.peak_bytes += node.op == Op::literal ? 4.0 * count_of(node.shape) : 0;
  }
  return row;
}

}  // namespace detail

// The passes of `options` in their order. `writes` are outputs that are new values of inputs or
// constants, as for GraphPlan.
inline CompileReport compile_report(
    const Graph& captured, const CompileOptions& options = CompileOptions(),
    const List<GraphPlan::Write>& writes = List<GraphPlan::Write>()) {
  CompileReport report;
  report.graph = captured;
  report.options = options;
  report.writes = writes;
  report.rows.push_back(detail::eager_row("as written", captured));
  report.rows.push_back(detail::eager_row("primitives", take_apart(captured)));
  CompileOptions now = CompileOptions::none();
  report.rows.push_back(detail::plan_row("as a graph", GraphPlan(captured, now, writes)));
  for (const detail::Pass& pass : detail::compile_passes()) {
    if (options.*pass.on) {
      now.*pass.on = true;
      report.rows.push_back(detail::plan_row(pass.name, GraphPlan(captured, now, writes)));
    }
  }
  if (options.activation_bytes > 0) {
    now.activation_bytes = options.activation_bytes;
    report.rows.push_back(detail::plan_row("+ recompute", GraphPlan(captured, now, writes)));
  }
  return report;
}

// Of the graph that the last call ran; what runs backward from its results is another graph. With
// options.recognize off ops are what was written.
inline CompileReport compile_report(const Compiled& f) {
  return compile_report(detail::written_graph(f), f.plan().options(), f.plan().writes());
}

namespace detail {

// One row of a report and what it runs on.
class PassRun {
 public:
  PassRun(const CompileReport& report, const PassRow& row, const std::vector<Tensor>& inputs)
      : report_(report),
        eager_(row.eager),
        inputs_(inputs),
        graph_(row.name == "primitives" ? take_apart(report.graph) : report.graph) {
    constants_ = graph_.constants;  // rope's primitives read tables
    if (!eager_) {
      plan_ = Shared<GraphPlan>(new GraphPlan(graph_, row.options, report.writes));
    }
    for (Tensor& input : inputs_) {
      input = input.is_contiguous() ? input.detach() : input.copied();
    }
    for (const GraphPlan::Write& write : report.writes) {
      Tensor& target = target_of(write);
      target = target.copied();
    }
  }

  // All outputs, also those that are written.
  std::vector<Tensor> operator()() {
    std::vector<Tensor> out;
    if (eager_) {
      out = run_eagerly(graph_, inputs_, constants_);
    } else {
      List<Tensor> given;
      for (const Tensor& input : inputs_) {
        given.push_back(input);
      }
      const List<Tensor> results = plan_->run(given, constants_);
      out.assign(results.begin(), results.end());
    }
    for (const GraphPlan::Write& write : report_.writes) {
      out[write.output] = eager_ ? out[write.output] : target_of(write);
    }
    return out;
  }

 private:
  Tensor& target_of(const GraphPlan::Write& write) {
    return write.input >= 0 ? inputs_[static_cast<std::size_t>(write.input)]
                            : constants_[static_cast<std::size_t>(write.constant)];
  }

  const CompileReport& report_;
  bool eager_;
  std::vector<Tensor> inputs_;
  List<Tensor> constants_;
  Graph graph_;
  Shared<GraphPlan> plan_;
};

// The largest difference of two lists of results, each over the largest number of its result.
inline double largest_difference(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  double worst = 0;
  for (std::size_t o = 0; o < a.size(); ++o) {
    if (!a[o].defined() || a[o].count() == 0) {
      continue;
    }
    const Tensor x = contiguous(a[o]), y = contiguous(b[o]);
    double apart = 0, largest = 0;
    for (std::int64_t i = 0; i < x.count(); ++i) {
      const double p = static_cast<double>(x.data()[i]), q = static_cast<double>(y.data()[i]);
      const bool same = x.data()[i] == y.data()[i] || (is_nan(p) && is_nan(q));
      const double by = is_finite(p - q) ? std::fabs(p - q) : HUGE_VAL;  // a NaN in one alone
      apart = same ? apart : std::max(apart, by);
      largest = is_finite(p) ? std::max(largest, std::fabs(p)) : largest;
    }
    worst = std::max(worst, largest > 0 ? apart / largest : apart);
  }
  return worst;
}

inline double median_of(std::vector<double> values) {
  insertion_sort(values.data(), values.data() + values.size());
  return values[values.size() / 2];
}

}  // namespace detail

inline CompileReport& CompileReport::measure(const std::vector<Tensor>& inputs, int times) {
  if (inputs.size() != graph.inputs.size()) {
    detail::fail({"CompileReport::measure: ", inputs.size(), " tensors for a graph of ",
                  graph.inputs.size(), " inputs; one each is right"});
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Shape& shape = graph[graph.inputs[i]].shape;
    if (!inputs[i].defined() || inputs[i].shape() != shape) {
      detail::fail({"CompileReport::measure: input ", i, " is ",
                    inputs[i].defined() ? inputs[i].shape().text() : "empty", "; ", shape,
                    " is right"});
    }
  }
  if (times < 1) {
    detail::fail({"CompileReport::measure: times is ", times, "; at least 1 is right"});
  }
  const NoGrad no_graph;
  MemoryMeter& meter = *context().memory;
  std::vector<Tensor> first;
  for (PassRow& row : rows) {
    detail::PassRun run(*this, row, inputs);
    std::vector<Tensor> results;
    {
      meter.mark();
      const double before = meter.current_total();
      const Profile profile;
      results = run();
      row.counted_peak_bytes = meter.peak_total_since_mark() - before;
      row.counted_bytes = profile.totals().bytes();
      row.counted_kernels = static_cast<int>(profile.totals().ops);
    }
    first = first.empty() ? results : first;
    row.difference = detail::largest_difference(first, results);
    std::vector<double> seconds;
    for (int i = 0; i < times; ++i) {
      const double start = detail::seconds_now();
      run();
      seconds.push_back(detail::seconds_now() - start);
    }
    row.seconds = detail::median_of(seconds);
    row.measured = true;
  }
  return *this;
}

inline const PassRow& CompileReport::row(const std::string& name) const {
  std::string names;
  for (const PassRow& one : rows) {
    if (one.name == name) {
      return one;
    }
    names += (names.empty() ? "'" : ", '") + one.name + "'";
  }
  detail::fail({"CompileReport::row: no row is called '", name, "'; there are ", names});
}

inline Table CompileReport::table() const {
  Table out;
  const bool measured = !rows.empty() && rows[0].measured;
  out.title = detail::cat({"What each pass does to a graph of ", graph.size(), " nodes",
                           measured ? ": predicted, and counted while it ran" : ""});
  out.columns = {"pass",         "nodes",      "kernels",      "bytes",        "matmul FLOPs",
                 "vector FLOPs", "FLOPs/byte", "intermediate", "side by side", "peak"};
  if (measured) {
    out.columns = {"pass",         "nodes",        "kernels",      "counted",    "bytes",
                   "counted",      "matmul FLOPs", "vector FLOPs", "FLOPs/byte", "intermediate",
                   "side by side", "peak",         "counted",      "time",       "differs by"};
  }
  for (const PassRow& row : rows) {
    std::vector<Cell> cells = {row.name, detail::cat({row.nodes}), detail::cat({row.kernels})};
    const auto add = [&](bool wanted, const Cell& cell) {
      if (wanted) {
        cells.push_back(cell);
      }
    };
    add(measured, detail::cat({row.counted_kernels}));
    add(true, format_bytes(row.bytes));
    add(measured, format_bytes(row.counted_bytes));
    add(true, format_si(row.matmul_flops, ""));
    add(true, format_si(row.vector_flops, ""));
    add(true, format_fixed(row.intensity(), 2));
    add(true, format_bytes(row.block_bytes));
    add(true, format_bytes(row.unshared_bytes));
    add(true, format_bytes(row.peak_bytes));
    add(measured, format_bytes(row.counted_peak_bytes));
    add(measured, format_seconds(row.seconds));
    add(measured, row.difference > 0 ? detail::number_cell('g', 2, row.difference) : "0");
    out.add(cells);
  }
  return out;
}

inline Table CompileReport::data() const {
  Table out;
  out.title = detail::cat({"compile report of ", graph.size(), " nodes"});
  out.columns = {"pass",           "nodes",        "kernels",         "bytes",
                 "matmul FLOPs",   "vector FLOPs", "FLOPs per byte",  "block bytes",
                 "unshared bytes", "peak bytes",   "counted kernels", "counted bytes",
                 "counted peak",   "seconds",      "difference"};
  for (const PassRow& row : rows) {
    const auto number = [](double value) { return detail::json_number(value); };
    const auto counted = [&row](double value) {
      return row.measured ? detail::json_number(value) : "";
    };
    out.add({row.name, number(row.nodes), number(row.kernels), number(row.bytes),
             number(row.matmul_flops), number(row.vector_flops), number(row.intensity()),
             number(row.block_bytes), number(row.unshared_bytes), number(row.peak_bytes),
             counted(row.counted_kernels), counted(row.counted_bytes),
             counted(row.counted_peak_bytes), counted(row.seconds), counted(row.difference)});
  }
  return out;
}

inline std::ostream& operator<<(std::ostream& out, const CompileReport& report) {
  return out << report.table();
}

}  // namespace tinyscale
