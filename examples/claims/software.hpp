#pragma once
// Claims of compilers, C1 to C6: what fusing, launching in one go and tiling save, counted in runs
// made here beside their formulas. Graphs that are captured: not yet.

#include <algorithm>   // max, min
#include <cmath>       // fabs
#include <cstdint>     // int64_t
#include <functional>  // ops to count
#include <string>      // names
#include <vector>      // times of kernels

#include "report.hpp"
#include "tinyscale.hpp"

namespace tinyscale {

// Kernels that a host launches one by one, running ahead of the device, or all at once as a graph.
struct LaunchRun {
  double seconds = 0, host = 0, device = 0;  // until all is done; launching; computing
  double idle() const { return seconds - device; }
};

inline LaunchRun simulate_launches(const std::vector<double>& kernels, double launch, bool graph) {
  if (!(launch >= 0) || !detail::is_finite(launch)) {
    detail::fail({"simulate_launches: a launch takes ", launch, " s; a time from 0 is right"});
  }
  LaunchRun run;
  run.host = graph ? launch : 0;
  for (const double kernel : kernels) {
    run.host += graph ? 0 : launch;
    run.seconds = std::max(run.seconds, run.host) + kernel;  // begins when launched and free
    run.device += kernel;
  }
  return run;
}

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

// A composite op beside the same in primitives: how many ops those are, and how far apart.
inline void add_decomposition(ClaimReport& r, const std::string& name, const Tensor& whole,
                              const std::function<Tensor()>& parts) {
  const Profile profile;
  const Tensor other = parts();
  r.counted(name + ", primitives", cat({profile.totals().bytes(), " bytes moved"}),
            static_cast<double>(profile.totals().ops));
  r.counted(name + ", largest difference", "composite - primitives",
            largest_gap(contiguous(whole), contiguous(other)));
}

inline ClaimReport claim_fusion() {
  ClaimReport r = claim_of(
      "Fusing a chain of n element-wise ops moves n times fewer bytes; attention in tiles never "
      "writes its scores.",
      Verdict::holds, "counted on ops and tile kernels; a pass over captured graphs: not yet");
  const Chip e = chip("tpu-v5e");
  const Tensor x = randn({64, 64}, 1);
  const double pass = 4.0 * static_cast<double>(x.count());  // bytes read or written once
  const auto passes = [&](const std::function<Tensor()>& ops) {
    const Profile profile;
    ops();
    return profile.totals().bytes() / pass;
  };
  r.counted("chain of 8, passes", "2 n", passes([&] {
              Tensor y = x;
              for (int i = 0; i < 8; ++i) {
                y = i % 2 == 0 ? y * 1.5F : y + 0.5F;
              }
              return y;
            }),
            "", 16);
  r.counted("GELU in 8 ops, passes", "2 n + 2 second inputs",
            passes([&] { return gelu_in_eight(x); }), "", 18);
  r.counted("GELU fused, passes", "2", passes([&] { return gelu_tanh(x); }), "", 2);
  const TiledRun soft = tiled_softmax(e, x);
  const auto of = [](std::int64_t bytes, const Tensor& t) {
    return static_cast<double>(bytes) / (2.0 * static_cast<double>(t.count()));
  };
  r.counted("softmax in 5 ops, passes", "8, and four of a number a row", of(soft.unfused_bytes, x),
            "", 8);
  r.simulated("softmax fused, passes", "2", of(soft.hbm_bytes(), x), "", 2);
  const Quantity h(32, "", "h"), t(2048, "", "T"), s(2, "B", "s", "bf16"), d(128, "", "d");
  r.add("scores of a layer", Quantity(4) * h * t * t * s, 1.07e9);
  r.add("tiled, a layer", Quantity(4) * h * t * d * s, 0.07e9);
  const Tensor q = randn({2, 64, 16}, 2);
  const TiledRun tiled = flash_attention(e, q, q, q);
  r.counted("attention in 4 ops, h 2, T 64, d 16", "(4 h T^2 + 6 h T d) s",
            double(tiled.unfused_bytes), "B", (4 * 2 * 64 * 64 + 6 * 2 * 64 * 16) * 2);
  r.simulated("the same in tiles", "at least 4 h T d s", double(tiled.hbm_bytes()), "B");
  r.simulated("largest difference", "tiles - ops", tiled.largest_difference);
  r.needs(tiled.largest_difference < 1e-4, "attention in tiles is not attention");
  r.caveats = {"the same on the captured graph of stories260K: not yet"};
  r.assumptions = {"every op reads its inputs and writes its result once: no cache between ops"};
  return r;
}

inline ClaimReport claim_launches() {
  ClaimReport r = claim_of(
      "Run op by op, 1,000 kernels of 2 us take 5 ms where a launch takes 5 us; as one graph 2 ms.",
      Verdict::holds_when, "kernels are shorter than a launch; longer ones hide it");
  const auto row = [&](const char* name, double kernel, bool graph, double claimed) {
    const LaunchRun run = simulate_launches(std::vector<double>(1000, kernel), 5e-6, graph);
    r.simulated(name, graph ? "launch + sum" : "launch by launch, the host ahead", run.seconds, "s",
                claimed);
  };
  row("eager, kernels of 2 us", 2e-6, false, 5e-3);
  r.simulated("eager, the device idle", "of these 5 ms",
              simulate_launches(std::vector<double>(1000, 2e-6), 5e-6, false).idle(), "s");
  row("graph, kernels of 2 us", 2e-6, true, 2e-3);
  row("eager, kernels of 20 us", 20e-6, false, 20e-3);
  row("graph, kernels of 20 us", 20e-6, true, 20e-3);
  const Quantity n(1000, "", "n"), launch(5e-6, "s", "launch"), kernel(2e-6, "s", "kernel");
  r.add("eager", launch + kernel + (n - Quantity(1)) * max(launch, kernel), 5e-3);
  r.add("graph", launch + n * kernel, 2e-3);
  r.chart("1,000 kernels, 5 us a launch", "kernel, us", "ms", {1, 2, 4, 5, 6, 10, 20},
          {"eager", "graph"}, [](std::size_t i, double us) {
            const std::vector<double> kernels(1000, 1e-6 * us);
            return 1e3 * simulate_launches(kernels, 5e-6, i == 1).seconds;
          });
  r.caveats = {"the crossover is at kernel = launch; captured graphs: not yet"};
  return r;
}

inline ClaimReport claim_primitives() {
  ClaimReport r =
      claim_of("Over 2,000 operators of PyTorch reduce to about 250 primitives.", Verdict::unknown,
               "captured graphs: not yet; composite ops here are expanded by hand and compared");
  const Tensor x = randn({16, 32}, 1), w = randn({32}, 2), b = randn({32}, 3);
  const float each = 1.0F / 32;
  const auto keep = KeepDim::yes;
  add_decomposition(r, "gelu_tanh", gelu_tanh(x), [&] { return gelu_in_eight(x); });
  add_decomposition(r, "softmax", softmax(x), [&] {
    const Tensor e = exp(x - max(x, -1, keep));
    return e / sum(e, -1, keep);
  });
  add_decomposition(r, "layer_norm", layer_norm(x, w, b), [&] {
    const Tensor c = x - sum(x, -1, keep) * each;
    return c / sqrt(sum(square(c), -1, keep) * each + 1e-5F) * w + b;
  });
  add_decomposition(r, "rms_norm", rms_norm(x, w),
                    [&] { return x / sqrt(sum(square(x), -1, keep) * each + 1e-5F) * w; });
  add_decomposition(r, "silu", silu(x), [&] { return x / (exp(x * -1.0F) + 1.0F); });
  return r;
}

inline ClaimReport claim_capture() {
  ClaimReport r = claim_of(
      "Dynamo captures graphs under guards: three shapes make three graphs, or one with a symbolic "
      "batch.",
      Verdict::unknown, "captured graphs: not yet; the count below is that of distinct guards");
  const int batches[] = {8, 16, 8, 32, 16, 8};
  double graphs = 0;
  for (int i = 0; i < 6; ++i) {  // a batch not seen before is captured
    bool seen = false;
    for (int j = 0; j < i; ++j) {
      seen = seen || batches[j] == batches[i];
    }
    graphs += seen ? 0 : 1;
  }
  r.formula("graphs, a guard on the shape", "distinct shapes of six calls", graphs, "", 3);
  r.formula("graphs, batch symbolic", "one guard for all", 1, "", 1);
  r.formula("cache hits, a guard on the shape", "calls - graphs", 6 - graphs);
  return r;
}

inline ClaimReport claim_generated_code() {
  ClaimReport r = claim_of(
      "Inductor lowers a group of ops to one loop and writes its source.", Verdict::unknown,
      "captured graphs and generated source: not yet; a kernel written by hand moves as few bytes");
  const Tensor a = randn({64, 32}, 1), b = randn({32, 64}, 2), bias = randn({64}, 3);
  const TiledRun run = tiled_matmul(chip("tpu-v5e"), a, b, bias, {{64, 64, 32}});
  r.counted("matmul, bias, GELU as ops", "each op's operands once", double(run.unfused_bytes), "B");
  r.simulated("as one kernel", "tile by tile", double(run.hbm_bytes()), "B");
  r.formula("the least", "operands and result once", double(run.least_bytes), "B");
  r.simulated("largest difference", "kernel - ops", run.largest_difference);
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
