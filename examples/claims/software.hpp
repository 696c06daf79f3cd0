#pragma once
// Claims of compilers, C3 to C6: ops made of primitives, graphs under guards, groups written as
// source, tiles; each run here, with its counters beside what was said.

#include <algorithm>  // max
#include <cstdint>    // int64_t
#include <cstdlib>    // atoi
#include <string>     // names
#include <vector>     // tensors

#include "fusion.hpp"
#include "report.hpp"
#include "tinyscale.hpp"

namespace tinyscale {
namespace detail {

// Operands of a composite op's sample call: token numbers, statistics and moments are real ones.
inline std::vector<Tensor> sample_inputs(Op op) {
  const Graph call = sample_graph(op);
  std::vector<Tensor> in;
  for (const int input : call.inputs) {
    in.push_back(randn(call[input].shape, 7 + in.size()));
  }
  const auto targets = [&in](std::size_t at) {
    for (std::int64_t i = 0; i < in[at].count(); ++i) {
      in[at].data()[i] = static_cast<float>(3 * i % 8);
    }
  };
  const auto part = [&in](Op forward, std::vector<Tensor> of, int number) {
    return run_eagerly(sample_graph(forward), of, {})[static_cast<std::size_t>(number)];
  };
  switch (op) {
    case Op::cross_entropy:
    case Op::cross_entropy_backward: targets(1); break;
    case Op::linear_cross_entropy:
    case Op::linear_cross_entropy_all: targets(2); break;
    case Op::layer_norm_backward:
      in[2] = part(Op::layer_norm, {in[0], in[1], in[1]}, 1);
      in[3] = part(Op::layer_norm, {in[0], in[1], in[1]}, 2);
      break;
    case Op::rms_norm_backward: in[2] = part(Op::rms_norm, {in[0], in[1]}, 1); break;
    case Op::attention_backward:
      in[3] = part(Op::attention, {in[0], in[1], in[2]}, 0);
      in[4] = part(Op::attention, {in[0], in[1], in[2]}, 1);
      break;
    case Op::adamw: {
      in[3] = square(in[3]);
      const float factors[] = {0.9F, 0.99F, 1e-8F, 0.999F, 0.01F, 1.5F};
      for (int i = 0; i < 6; ++i) {
        in[4].data()[i] = factors[i];
      }
      break;
    }
    default: break;
  }
  return in;
}

inline ClaimReport claim_primitives() {
  ClaimReport r = claim_of(
      "Over 2,000 operators of PyTorch reduce to about 250 primitives.", Verdict::holds_when,
      "an operator is a function of primitives, as every composite op is here; "
      "PyTorch's own counts are quoted");
  r.formula("operators of PyTorch", "its makers' count", no_figure, "", 2000);
  r.formula("primitives of PyTorch", "its makers' count", no_figure, "", 250);
  double primitives = 0, composites = 0, all = 0, worst = 0;
  const Table table = op_table();
  List<ClaimRow> rows;
  for (std::size_t i = 0; i < op_set().size(); ++i) {
    const Op op = static_cast<Op>(i);
    if (is_primitive(op)) {
      ++primitives;
      continue;
    }
    ++composites;
    const double count = std::atoi(table.rows[i][3].c_str());
    const std::vector<Tensor> in = sample_inputs(op);
    const Graph parts = made_of(op);
    const double gap = largest_difference(run_eagerly(sample_graph(op), in, {}),
                                          run_eagerly(parts, in, parts.constants));
    all += count;
    worst = worst >= gap ? worst : gap;
    const std::string name = name_of(op);
    rows.push_back({name + ", primitives", table.rows[i][4], count, no_figure, "", "counted"});
    rows.push_back({name + ", largest difference", "its kernel - its primitives, of the largest",
                    gap, no_figure, "", "counted"});
  }
  r.counted("primitives here", "op_table()", primitives);
  r.counted("composite ops here", "op_table()", composites);
  r.counted("primitives of a composite op", "mean", all / composites);
  r.counted("largest difference of all", "kernels - primitives, of the largest", worst);
  for (const ClaimRow& row : rows) {
    r.rows.push_back(row);
  }
  r.needs(worst < 1e-4, "a composite op is not its primitives");
  r.assumptions = {"small operands, f32; the last digit is a matter of order"};
  return r;
}

// Six calls with these batches of a compiled function.
inline Compiled six_calls(const CompileOptions& options, double& gap) {
  const Tensor w = randn({4, 4}, 1);
  const TensorFunction f = [w](const std::vector<Tensor>& in) -> std::vector<Tensor> {
    return {softmax(matmul(in[0], w) + 1.0F)};
  };
  const Compiled compiled = compile(f, options);
  for (const int batch : {8, 16, 8, 32, 16, 8}) {
    const Tensor x = randn({batch, 4}, 2);
    gap = std::max(gap, largest_gap(contiguous(f({x})[0]), compiled({x})[0]));
  }
  return compiled;
}

inline void add_counters(ClaimReport& r, const std::string& name, const Compiled& f, double graphs,
                         double captures, double recompiles, double hits) {
  const CompileCounters c = f.counters();
  r.counted(name + ", graphs", cat({c.calls, " calls"}), c.graphs, "", graphs);
  r.counted(name + ", captures", "runs of the function", c.captures, "", captures);
  r.counted(name + ", recompiles", f.reason().empty() ? "no guard broken" : "last: " + f.reason(),
            c.recompiles, "", recompiles);
  r.counted(name + ", hits", "calls without a capture", c.hits, "", hits);
}

// What else breaks a guard: each makes one more graph, and says why.
inline void add_guards(ClaimReport& r) {
  const Tensor x = randn({8, 4}, 2);
  Tensor w = randn({4, 4}, 1);
  CompileOptions options;
  options.confirmations = 0;
  const auto add = [&](const char* name, const Function<void(const Compiled&)>& second) {
    const Compiled f = compile(
        [&w](const std::vector<Tensor>& in) -> std::vector<Tensor> { return {matmul(in[0], w)}; },
        options);
    f({x});
    second(f);
    r.counted(cat({"recompiles, ", name}), f.reason(), f.counters().recompiles, "", 1);
  };
  add("number format", [&x](const Compiled& f) {
    const MatmulFormat format(DType::bf16);
    f({x});
  });
  add("gradients off", [&x](const Compiled& f) {
    const NoGrad no_gradients;
    f({x});
  });
  add("an input that learns", [&x](const Compiled& f) { f({parameter(x.clone())}); });
  add("another captured tensor", [&x, &w](const Compiled& f) {
    w = randn({4, 4}, 3);
    f({x});
  });
}

inline std::vector<Tensor> branch_on_data(const std::vector<Tensor>& in) {
  const Tensor y = in[0] * 2.0F;
  return {sum(y).item() > 0 ? exp(y) : y};
}

inline void add_breaks(ClaimReport& r) {
  const Compiled f = compile(&branch_on_data);
  double gap = 0;
  for (const float sign : {1.0F, -1.0F, 1.0F}) {
    const Tensor x = ones({4}) * sign;
    gap = std::max(gap, largest_gap(branch_on_data({x})[0], f({x})[0]));
  }
  const CompileCounters c = f.counters();
  r.counted("a branch on data, breaks", f.breaks()[0].text(), c.breaks, "", 3);
  r.counted("a branch on data, captures", "3 calls, both branches", c.captures, "", 3);
  r.counted("a branch on data, graphs", "one before the break, one behind it for each branch",
            c.graphs, "", 3);
  r.counted("a branch on data, difference", "compiled - eager", gap);
  r.needs(gap < 1e-6, "the branch was not taken");
}

inline ClaimReport claim_capture() {
  ClaimReport r = claim_of(
      "Dynamo captures graphs under guards: three shapes make three graphs, or one with a symbolic "
      "batch; control flow that reads data breaks a graph.",
      Verdict::holds, "counted in six calls of three shapes");
  CompileOptions options;
  options.confirmations = 0;
  double gap = 0;
  add_counters(r, "a guard on the shape", six_calls(options, gap), 3, 3, 2, 3);
  options.symbolic_batch = true;
  const Compiled symbolic = six_calls(options, gap);
  add_counters(r, "batch symbolic", symbolic, 1, 1, 0, 5);
  r.counted("batch symbolic, sizes", "places in memory planned anew", symbolic.counters().sizes);
  add_counters(r, "each graph confirmed once", six_calls(CompileOptions(), gap), 3, 5, 2, 1);
  r.counted("largest difference", "compiled - eager", gap);
  r.needs(gap < 1e-6, "a compiled call is not the eager one");

  add_guards(r);
  add_breaks(r);
  return r;
}

// A group printed as C++; where kernels may be built, built and run.
inline void add_built(ClaimReport& r, const TensorFunction& f, const std::vector<Tensor>& in) {
#if TINYSCALE_CAN_LOAD
  if (!find_compiler(KernelBuild()).empty()) {
    CompileOptions options;
    options.build = true;
    options.confirmations = 0;
    const Compiled built = compile(f, options);
    built(in);
    const Profile profile;
    const Tensor y = built(in)[0];
    r.counted("built, bytes", "printed, compiled and loaded", profile.totals().bytes(), "B",
              r.row("the least").ours);
    const double gap = largest_gap(contiguous(f(in)[0]), y);
    r.counted("built, largest difference", "built - eager", gap);
    r.needs(gap < 1e-5, "the built kernel is not the function");
    return;
  }
#endif
  (void)f;
  (void)in;
  r.caveats.push_back(
      "not built and run here: that takes TINYSCALE_LOAD_KERNELS and a C++ compiler");
}

// The checkpoint's forward pass and loss, in primitives: which of them share a loop.
inline void add_stories_groups(ClaimReport& r) {
  const Transformer model(config("stories260K"), 1);  // shapes alone count
  const Graph graph =
      in_primitives(graph_of(stories_function(model), {Shape{1, 64}, Shape{1, 64}}));
  const GraphPlan plan(graph, CompileOptions());
  double groups = 0, grouped = 0, products = 0;
  for (const Step& step : plan.steps()) {
    const bool group = step.kind == StepKind::vectors;
    groups += group ? 1 : 0;
    grouped += group ? static_cast<double>(step.nodes.size()) : 0;
    products += step.kind == StepKind::product ? 1 : 0;
  }
  const std::string source = print_cpp(plan);
  double lines = 0;
  for (const char c : source) {
    lines += c == '\n' ? 1 : 0;
  }
  r.counted("stories260K, primitives", "of its forward pass and loss, 64 tokens",
            static_cast<double>(op_by_op(graph).size()));
  r.counted("stories260K, kernels", "left by fusion", static_cast<double>(plan.steps().size()));
  r.counted("stories260K, groups", "loops that are printed", groups);
  r.counted("stories260K, ops in them", "primitives", grouped);
  r.counted("stories260K, products", "the library's, with what follows them", products);
  r.counted("stories260K, lines of C++", "print_cpp(plan)", lines);
}

inline ClaimReport claim_generated_code() {
  ClaimReport r = claim_of(
      "Inductor lowers a group of ops to one loop and writes its source.", Verdict::holds,
      "a group is one loop, printed as C++; it reads its operands once and writes its result");
  const NoGrad no_gradients;
  const std::vector<Tensor> in = {randn({64, 32}, 1), randn({32}, 2)};
  const TensorFunction f = [](const std::vector<Tensor>& x) -> std::vector<Tensor> {
    const Tensor y = tanh(x[0] * 1.5F + x[1]);
    return {y * y + x[0]};
  };
  const FusedRun run = fused_run(f, in);
  const Compiled compiled = compile(f);
  compiled(in);
  const double least = 4.0 * (2 * 64 * 32 + 32);
  r.counted("ops, kernels", "eager", run.eager_kernels, "", 5);
  r.counted("one group, kernels", "compiled", run.kernels, "", 1);
  r.counted("ops, bytes", "each op's operands and result once", run.eager_bytes, "B");
  r.counted("one group, bytes", "counted as it ran", run.bytes, "B", least);
  r.formula("the least", "operands and result once", least, "B");
  r.counted("largest difference", "compiled - eager", run.difference);
  r.needs(run.difference < 1e-5, "the group is not the function");
  add_built(r, f, in);

  add_stories_groups(r);
  r.picture = print_cpp(compiled.plan(), 0);
  return r;
}

inline ClaimReport claim_tiles() {
  ClaimReport r = claim_of(
      "A matmul of 4096^3 in bf16 moves 17.2 GB in tiles of 16, 2.18 GB in 128, 1.11 GB in 256.",
      Verdict::holds, "and the largest tile that the on-chip memory holds moves the least");
  const auto bytes = [](Dim n, Dim tile) {
    return static_cast<double>(tiled_matmul_bytes(n, n, n, tile, tile, DType::bf16));
  };
  const std::string how = "s (M K ceil(N/BN) + K N ceil(M/BM) + M N)";
  r.formula("tiles of 16", how, bytes(4096, 16), "B", 17.2e9);
  r.formula("tiles of 128", how, bytes(4096, 128), "B", 2.18e9);
  r.formula("tiles of 256", how, bytes(4096, 256), "B", 1.11e9);
  const Tensor a = randn({64, 64}, 1);
  for (const int tile : {8, 16, 24, 32}) {
    const TiledRun run = tiled_matmul(chip("h100"), a, a, Tensor(), {{tile, tile, 16}});
    r.simulated(cat({"64^3 in tiles of ", tile}), "beside the formula", double(run.hbm_bytes()),
                "B", bytes(64, tile));
  }
  const Chip h = chip("h100");
  const double sram = h.sram_bytes / h.cores;  // of an SM
  // s (BM BK + BK BN) stages of operands, BK 64, two stages; and 4 BM BN of sums.
  const auto held = [](std::size_t sums, double tile) {
    return 2 * (2 * tile * 64) * 2 + (sums == 1 ? 4 * tile * tile : 0);
  };
  const ClaimChart& chart = r.chart(
      "4096^3, bf16", "tile", "moved, GB; held, MB", {16, 32, 64, 128, 256, 512, 1024},
      {"operands", "with sums", "moved"}, [&](std::size_t i, double tile) {
        return i < 2 ? held(i, tile) / 1e6 : bytes(4096, static_cast<std::int64_t>(tile)) / 1e9;
      });
  double legal = 0, with_sums = 0;
  for (const double tile : chart.x) {
    legal = held(0, tile) <= sram ? tile : legal;
    with_sums = held(1, tile) <= sram ? tile : with_sums;
  }
  r.formula("largest legal tile, operands", "s (BM BK + BK BN) stages <= 262,144 B", legal);
  r.formula("and f32 sums beside them", "+ 4 BM BN", with_sums);
  r.assumptions = {"an SM of an H100 with 256 KiB; K in blocks of 64, two stages"};
  r.caveats = {"sums in registers make the larger tile legal, sums on chip the smaller"};
  return r;
}

}  // namespace detail
}  // namespace tinyscale
