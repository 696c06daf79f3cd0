#pragma once
// Claims of compilers, C1 and C2: what fusing and launching in one go save, counted on captured
// graphs, of small functions and of the checkpoint stories260K, beside their formulas.

#include <algorithm>  // max
#include <cmath>      // fabs
#include <cstddef>    // size_t
#include <cstdint>    // int64_t
#include <string>     // names
#include <vector>     // tensors

#include "numerics.hpp"
#include "report.hpp"
#include "tinyscale.hpp"

namespace tinyscale {
namespace detail {

// GELU by its tanh form, in eight ops of which two have a second input.
inline Tensor gelu_in_eight(const Tensor& x) {
  const Tensor inner = ((square(x) * 0.035677408F) + 0.7978845608F) * x;
  return (tanh(inner) + 1.0F) * 0.5F * x;
}

inline double largest_gap(const Tensor& a, const Tensor& b) {
  double gap = 0;
  for (std::int64_t i = 0; i < a.count(); ++i) {
    const double off = std::fabs(double(a.data()[i]) - double(b.data()[i]));
    gap = off <= gap ? gap : off;  // NaN stays
  }
  return gap;
}

// The checkpoint: its f32 file, else the one in 8 bits beside the examples, else a model of its
// shape that was not trained. The graph is the same.
struct Stories {
  Transformer model;
  std::string from;
};

inline Stories stories_model() {
  for (const char* const format : {"f32", "q8_0"}) {
    const std::string path = stories_file(format);
    if (!path.empty()) {
      return {tinyscale::load(path), cat({"trained weights, ", format})};
    }
  }
  return {Transformer(config("stories260K"), 1), "its files are not here: random weights"};
}

// Token numbers [B, T] to logits; with targets beside them to the loss.
inline TensorFunction stories_function(const Transformer& model) {
  return [&model](const std::vector<Tensor>& in) -> std::vector<Tensor> {
    std::vector<std::int32_t> ids[2];
    for (std::size_t i = 0; i < in.size(); ++i) {
      ids[i].resize(static_cast<std::size_t>(in[i].count()));
      thread_recorder()->bind_ids(ids[i], in[i]);
    }
    const std::int64_t batch = in[0].dim(0), time = in[0].dim(1);
    return {in.size() > 1 ? model.loss(ids[0], ids[1], batch, time)
                          : model.forward(ids[0], batch, time)};
  };
}

// The graph of a function of tensors of these shapes; nothing is run.
inline Graph graph_of(const TensorFunction& f, const List<Shape>& shapes) {
  Trace trace("graph_of");
  trace.run(f, shapes);
  return trace.graph;
}

inline Graph in_primitives(const Graph& graph) {
  Graph out = take_apart(graph);
  sort_needed(out);
  return out;
}

// A function eager and compiled: bytes and kernels of each, as a Profile counts them.
struct FusedRun {
  double eager_bytes = 0, eager_kernels = 0, bytes = 0, kernels = 0;
  double difference = 0;  // compiled - eager
};

inline FusedRun fused_run(const TensorFunction& f, const std::vector<Tensor>& in) {
  const NoGrad no_gradients;
  CompileOptions options;
  options.confirmations = 0;
  options.recognize = false;  // ops fuse as they are written
  const Compiled compiled = compile(f, options);
  compiled(in);
  FusedRun run;
  std::vector<Tensor> eager, fused;
  {
    const Profile profile;
    eager = f(in);
    run.eager_bytes = profile.totals().bytes();
    run.eager_kernels = static_cast<double>(profile.totals().ops);
  }
  {
    const Profile profile;
    fused = compiled(in);
    run.bytes = profile.totals().bytes();
    run.kernels = static_cast<double>(profile.totals().ops);
  }
  run.difference = largest_gap(contiguous(eager[0]), contiguous(fused[0]));
  return run;
}

// Runs a captured graph after each pass.
inline CompileReport run_passes(const TensorFunction& f, const std::vector<Tensor>& in) {
  const NoGrad no_gradients;
  const Compiled compiled = compile(f);
  compiled(in);
  CompileReport report = compile_report(compiled);
  report.measure(in, 1);
  return report;
}

// "12 kernels"
inline std::string kernels_text(const PassRow& row) {
  return cat({row.counted_kernels, row.counted_kernels == 1 ? " kernel" : " kernels"});
}

// Chains, GELU and softmax in passes over a tensor: each op reads its inputs, writes its result.
inline void add_passes(ClaimReport& r, const Tensor& x) {
  const double pass = 4.0 * static_cast<double>(x.count());  // bytes read or written once
  double gap = 0;
  const auto add = [&](const std::string& name, const char* how, double claimed, double n,
                       double ratio, const TensorFunction& f) {
    const FusedRun run = fused_run(f, {x});
    r.counted(name + ", passes", how, run.eager_bytes / pass, "", claimed);
    r.counted(name + " compiled, passes", "2", run.bytes / pass, "", 2);
    r.counted(name + ", bytes eager / compiled", cat({"(", how, ") / 2"}),
              run.eager_bytes / run.bytes, "", ratio);
    r.counted(name + ", launches eager / compiled", "n", run.eager_kernels / run.kernels, "", n);
    gap = std::max(gap, run.difference);
  };
  add("chain of 8", "2 n", 16, 8, 8, [](const std::vector<Tensor>& in) -> std::vector<Tensor> {
    Tensor y = in[0];
    for (int i = 0; i < 8; ++i) {
      y = i % 2 == 0 ? y * 1.5F : y + 0.5F;
    }
    return {y};
  });
  add("GELU in 8 ops", "2 n + 2 second inputs", 18, 8, 8,
      [](const std::vector<Tensor>& in) -> std::vector<Tensor> { return {gelu_in_eight(in[0])}; });
  add("softmax in 5 ops", "8, and four of a number a row", 8, 5, 4,
      [](const std::vector<Tensor>& in) -> std::vector<Tensor> {
        const Tensor e = exp(in[0] - max(in[0], -1, KeepDim::yes));
        return {e / sum(e, -1, KeepDim::yes)};
      });
  r.counted("largest difference of the three", "compiled - eager", gap);
}

// Attention of h heads of d numbers: scores in memory against tiles, counted and by shapes.
inline void add_attention(ClaimReport& r) {
  const Quantity h(32, "", "h"), t(2048, "", "T"), s(2, "B", "s", "bf16"), d(128, "", "d");
  r.add("scores of a layer", Quantity(4) * h * t * t * s, 1.07e9);
  r.add("tiled, a layer", Quantity(4) * h * t * d * s, 0.07e9);
  const auto attend = [](int heads) {
    return [heads](const std::vector<Tensor>& in) -> std::vector<Tensor> {
      return {attention(in[0], in[1], in[2], heads, heads, Mask::none)};
    };
  };
  const Shape large = {1, 2048, 32 * 128};
  const Graph graph = graph_of(attend(32), {large, large, large});
  const auto bytes = [](const List<OpRecord>& kernels) {
    double all = 0;
    for (const OpRecord& kernel : kernels) {
      all += op_cost(kernel, DType::bf16).bytes;
    }
    return all;
  };
  CompileOptions rows;
  rows.fuse_attention = false;
  const double operands = 6.0 * 2048 * 32 * 128 * 2;
  r.formula("its graph, primitives", "h 32, T 2048, d 128 by shapes",
            bytes(op_by_op(in_primitives(graph))), "B");
  r.formula("its graph, scores", "softmax fused: all - 6 h T d s",
            bytes(GraphPlan(graph, rows).records()) - operands, "B", 1.07e9);
  r.formula("its graph, tiled", "attention fused",
            bytes(GraphPlan(graph, CompileOptions()).records()), "B", 0.07e9);
  const std::vector<Tensor> in = {randn({1, 64, 32}, 2), randn({1, 64, 32}, 3),
                                  randn({1, 64, 32}, 4)};
  const CompileReport small = run_passes(attend(2), in);
  r.counted("attention in 4 ops, h 2, T 64, d 16", "(4 h T^2 + 6 h T d) s, f32",
            small.row("+ matmul").counted_bytes, "B", (4 * 2 * 64 * 64 + 6 * 2 * 64 * 16) * 4);
  r.counted("the same in tiles", "4 h T d s", small.row("+ attention").counted_bytes, "B",
            4 * 2 * 64 * 16 * 4);
  const double gap = small.row("+ matmul").difference;  // from the first row, which is tiled
  r.counted("largest difference", "tiles - ops, of the largest", gap);
  r.needs(gap < 1e-4, "attention in tiles is not attention");
}

// The checkpoint's graph after each pass: bytes, kernels, how far its results are off.
inline void add_stories_passes(ClaimReport& r) {
  const Stories stories = stories_model();
  std::vector<Tensor> in = {Tensor(Shape{1, 64}), Tensor(Shape{1, 64})};
  std::vector<std::int32_t> ids[2];
  for (int i = 0; i < 64; ++i) {
    for (int k = 0; k < 2; ++k) {  // the next token is the target
      ids[k].push_back((i + k) * 37 % 512);
      in[static_cast<std::size_t>(k)].data()[i] = static_cast<float>(ids[k].back());
    }
  }
  const NoGrad no_gradients;
  const Tensor logits = stories.model.forward(ids[0], 1, 64);
  const Tensor loss = stories.model.loss(ids[0], ids[1], 1, 64);
  for (const std::size_t inputs : {1U, 2U}) {
    const std::vector<Tensor> given(in.begin(), in.begin() + static_cast<std::ptrdiff_t>(inputs));
    const std::string name = inputs == 1 ? "stories260K" : "stories260K with loss";
    const TensorFunction f = stories_function(stories.model);
    const CompileReport passes = run_passes(f, given);
    const PassRow &before = passes.row("as a graph"), &after = passes.row("+ memory");
    r.counted(name + ", primitives", cat({kernels_text(before), ", 64 tokens"}),
              before.counted_bytes, "B");
    r.counted(name + ", ops as written", kernels_text(passes.row("as written")),
              passes.row("as written").counted_bytes, "B");
    for (const char* const pass : {"+ elementwise", "+ rows", "+ matmul", "+ attention"}) {
      r.counted(cat({name, " ", pass}), kernels_text(passes.row(pass)),
                passes.row(pass).counted_bytes, "B");
    }
    r.counted(name + ", primitives / fused", "bytes", before.counted_bytes / after.counted_bytes);
    const Tensor fused = compile(f)(given)[0];
    const double gap = largest_gap(inputs == 1 ? contiguous(logits) : contiguous(loss), fused);
    r.counted(name + ", largest difference", "compiled - eager", gap);
    r.needs(gap < 1e-3 && after.difference < 1e-4, name + ": other results than eager");
    if (inputs == 1 && r.verdict == Verdict::holds) {
      r.when += format_fixed(before.counted_bytes / after.counted_bytes, 1) + " times fewer";
    }
  }
  r.assumptions.push_back(cat({"stories260K: ", stories.from}));
}

inline ClaimReport claim_fusion() {
  ClaimReport r = claim_of(
      "Fusing a chain of n element-wise ops moves n times fewer bytes; attention in tiles never "
      "writes its scores.",
      Verdict::holds, "counted on captured graphs; of stories260K, products and all, ");
  r.assumptions = {"every op reads its inputs and writes its result once: no cache between ops"};
  const Tensor x = randn({64, 64}, 1);
  add_passes(r, x);
  const TiledRun soft = tiled_softmax(chip("tpu-v5e"), x);
  r.simulated("softmax in tiles, passes", "2",
              double(soft.hbm_bytes()) / (2.0 * static_cast<double>(x.count())), "", 2);
  add_attention(r);
  add_stories_passes(r);
  return r;
}

// n kernels of that many seconds on a chip of 1 TB/s.
inline LaunchReport launch_equal(int n, double seconds, Dispatch how) {
  Chip one;
  one.name = "1 TB/s";
  one.memory_bandwidth = 1e12;
  OpRecord kernel;
  kernel.name = "kernel";
  kernel.bytes_read = 1e12 * seconds;
  List<OpRecord> kernels;
  for (int i = 0; i < n; ++i) {
    kernels.push_back(kernel);
  }
  return launches(kernels, one, how);
}

// The checkpoint's kernels on an H100, op by op and fused, launched each and as one graph.
inline void add_stories_launches(ClaimReport& r) {
  const Transformer model(config("stories260K"), 1);  // shapes alone count
  const Chip h = chip("h100");
  const auto compared = [&](std::int64_t batch) {
    const Graph graph = graph_of(stories_function(model), {Shape{batch, 64}});
    return launch_comparison(op_by_op(in_primitives(graph)),
                             GraphPlan(graph, CompileOptions()).records(), h);
  };
  const LaunchComparison one = compared(1);
  const auto add = [&](const char* name, const LaunchReport& run) {
    r.simulated(cat({"stories260K, ", name}),
                cat({run.rows.size(), " kernels, ", run.launches,
                     run.launches == 1 ? " launch" : " launches", ", 64 tokens, h100"}),
                run.seconds, "s");
  };
  add("primitives eager", one.eager_before);
  add("primitives as a graph", one.graph_before);
  add("fused eager", one.eager_after);
  add("fused as a graph", one.graph_after);
  r.simulated("stories260K, device idle eager", "of its primitives' time",
              one.eager_before.device_idle() / one.eager_before.seconds);
  const std::vector<double> batches = {1, 64, 1024, 4096};
  List<LaunchComparison> all;
  for (const double batch : batches) {
    all.push_back(batch > 1 ? compared(static_cast<std::int64_t>(batch)) : one);
  }
  r.chart("stories260K on an h100", "sequences of 64", "eager / graph", batches,
          {"primitives", "fused"}, [&](std::size_t i, double batch) {
            std::size_t at = 0;
            while (std::fabs(batches[at] - batch) > 0) {
              ++at;
            }
            const LaunchComparison& c = all[at];
            return i == 0 ? c.eager_before.seconds / c.graph_before.seconds
                          : c.eager_after.seconds / c.graph_after.seconds;
          });
}

inline ClaimReport claim_launches() {
  ClaimReport r = claim_of(
      "Run op by op, 1,000 kernels of 2 us take 5 ms where a launch takes 5 us; as one graph 2 ms.",
      Verdict::holds_when, "kernels are shorter than a launch; longer ones hide it");
  const auto row = [&](const char* name, double kernel, Dispatch how, double claimed) {
    r.simulated(name, how == Dispatch::graph ? "launch + sum" : "launch by launch, the host ahead",
                launch_equal(1000, kernel, how).seconds, "s", claimed);
  };
  row("eager, kernels of 2 us", 2e-6, Dispatch::eager, 5e-3);
  r.simulated("eager, the device idle", "of these 5 ms",
              launch_equal(1000, 2e-6, Dispatch::eager).device_idle(), "s");
  row("graph, kernels of 2 us", 2e-6, Dispatch::graph, 2e-3);
  row("eager, kernels of 20 us", 20e-6, Dispatch::eager, 20e-3);
  row("graph, kernels of 20 us", 20e-6, Dispatch::graph, 20e-3);
  r.add("eager", eager_time(1000, 2e-6), 5e-3);
  r.add("graph", graph_time(1000, 2e-6), 2e-3);
  const auto gain = [](double seconds) {
    return launch_equal(1000, seconds, Dispatch::eager).seconds /
           launch_equal(1000, seconds, Dispatch::graph).seconds;
  };
  r.simulated("eager / graph, kernel = launch", "the crossover", gain(5e-6), "", 1);
  r.simulated("eager / graph, kernel = launch / 2", "2 below it", gain(2.5e-6), "", 2);
  r.add("an H100's bytes in a launch", launch_crossover_bytes(chip("h100")));
  const LaunchSweep sweep =
      launch_sweep(1000, LaunchOptions(), {1e-6, 2e-6, 4e-6, 5e-6, 6e-6, 10e-6, 20e-6});
  r.chart("1,000 kernels, 5 us a launch", "kernel, us", "ms", {1, 2, 4, 5, 6, 10, 20},
          {"eager", "graph"}, [&](std::size_t i, double us) {
            std::size_t at = 0;
            while (1e6 * sweep.kernel_seconds[at] < us - 0.5) {
              ++at;
            }
            return 1e3 * (i == 0 ? sweep.eager : sweep.graph)[at];
          });
  add_stories_launches(r);
  r.caveats = {"the crossover is at kernel = launch; fused kernels are longer and fewer"};
  return r;
}

}  // namespace detail
}  // namespace tinyscale
