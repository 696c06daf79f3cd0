#pragma once
// Claims of chips and pods: A5 to A10. Pods are sums over chips and links that are cut, chips a
// roofline each, a systolic array its steps; vendors' link rates are 10 % above the presets'.

#include <cmath>    // sqrt
#include <cstdint>  // int64_t
#include <string>   // names

#include "report.hpp"
#include "serving.hpp"
#include "tinyscale.hpp"

namespace tinyscale {

// Links one way from the lower to the upper half of a machine along a dimension: its bisection.
inline std::int64_t links_cut(const Machine& machine, int dim) {
  const detail::MachineLinks links(machine);
  std::int64_t stride = 1, count = 0;
  for (int d = machine.dims.size(); --d > dim;) {
    stride *= machine.dims[d];
  }
  const std::int64_t size = machine.dims[dim];
  const auto upper = [&](std::int64_t chip) { return 2 * (chip / stride % size) >= size; };
  for (std::size_t link = 0; link < links.count(); ++link) {
    const bool chips = links.exists(link) && links.from(link) >= 0 && links.to(link) >= 0;
    count += chips && !upper(links.from(link)) && upper(links.to(link)) ? 1 : 0;
  }
  return count;
}

namespace detail {

inline ClaimReport claim_pods() {
  ClaimReport r = claim_of(
      "A v5e pod: 100 PetaOps, 51.2 TB/s of all-reduce, 1.6 TB/s of bisection, 6.4 Tbit/s of "
      "data-centre network; v4 1.1, v5p 4, Ironwood 42.5 exaFLOP/s.",
      Verdict::holds, "in each format's dense peak, with the vendor's link rates");
  const auto pod = [&](const char* name, DType format, double claimed) {
    const Chip c = chip(name);
    const Quantity chips(c.domain_chips, "", cat({"chips ", name}), c.source);
    r.add(cat({name, " pod, ", name_of(format)}), chips * peak_of(c, format), claimed);
  };
  pod("tpu-v5e", DType::int8, 100e15);
  pod("tpu-v5e", DType::bf16, 50.63e15);
  pod("tpu-v6e", DType::bf16, 234.9e15);
  pod("tpu-v4", DType::bf16, 1.1e18);
  pod("tpu-v5p", DType::bf16, 4e18);
  pod("tpu-v7", DType::fp8_e4m3, 42.5e18);
  const auto network = [&](const char* name, double all_reduce, double bisection, double dcn) {
    const Chip c = chip(name);
    const Machine torus = machine(c, {16, 16});
    const Quantity chips(256, "", "chips"), links(c.links, "", "links of a chip");
    const Quantity book(c.link_bandwidth, "B/s", "link", "scaling book, one way");
    const Quantity rate = named("vendor's link", book / Quantity(0.9));
    const Quantity cut(static_cast<double>(links_cut(torus, 0)), "", "links cut", "counted");
    const Quantity port(c.dcn_bandwidth, "B/s", "DCN of a chip");
    r.add(cat({name, " all-reduce"}), chips * links * rate, all_reduce);
    r.add(cat({name, " bisection"}), cut * rate, bisection);
    r.add(cat({name, " DCN"}), chips * port, dcn / 8);  // claimed in bits
  };
  network("tpu-v5e", 51.2e12, 1.6e12, 6.4e12);
  network("tpu-v6e", 102.4e12, 3.2e12, 25.6e12);
  Machine grid = machine("tpu-v5e", {16, 16});
  r.counted("links cut, 16x16 torus", "links_cut", double(links_cut(grid, 0)), "", 32);
  grid.links[0].kind = grid.links[1].kind = AxisKind::line;
  r.counted("links cut, 16x16 mesh", "links_cut", double(links_cut(grid, 0)), "", 16);
  const Chip v7 = chip("tpu-v7");
  r.add("tpu-v7 pod, memory",
        Quantity(v7.domain_chips, "", "chips") * Quantity(v7.memory_bytes, "B", "M", "192 GiB"),
        1.77e15);
  r.assumptions = {"all_reduce bandwidth as the vendor counts it: what all links carry one way"};
  r.caveats = {"50.63 PFLOP/s take 197.8e12 a chip; the preset, as the chip's page, has 197e12",
               "the presets' links are the scaling book's, a tenth less: 46.1 TB/s, 1.44 TB/s",
               "1.77 PB takes 192 GB a chip; in GiB, as the chip has them, it is 1.9 PB",
               "links cut: those of a 16x16 torus along one dimension; mesh: without the ends"};
  return r;
}

inline ClaimReport claim_a100_to_h100() {
  ClaimReport r = claim_of(
      "From A100 to H100 FLOP/s grew 6 times and bandwidth 1.65 times, so that utilisation drops.",
      Verdict::holds_when, "fp8 is set against bf16; like for like FLOP/s grew 3.17 times");
  const Chip a = chip("a100-80"), h = chip("h100-sxm");
  const Quantity a16 = peak_of(a, DType::bf16), h16 = peak_of(h, DType::bf16);
  const Quantity h8 = peak_of(h, DType::fp8_e4m3);
  const Quantity wa = memory_rate_of(a), wh = memory_rate_of(h);
  r.add("FLOP/s, fp8 / bf16", h8 / a16, 6.34);
  r.add("FLOP/s, bf16 / bf16", h16 / a16, 3.17);
  r.add("bandwidth", wh / wa, 1.643);
  r.add("ridge A100", a16 / wa, 153);
  r.add("ridge H100 bf16", h16 / wh, 295);
  r.add("ridge H100 fp8", h8 / wh, 591);
  // Decode with B sequences: 2 B FLOPs a weight that is read once.
  const auto step = [](const Chip& on, DType format, double batch) {
    const double weights = 1e10;  // any: their number cancels
    return priced_row({2 * batch * weights, 0, weights * bytes_of(format), format}, on);
  };
  const char* const names[] = {"A100", "H100 bf16", "H100 fp8"};
  const double h100[] = {0.054, 0.217, 0.518, 0.867, 1}, a100[] = {0.105, 0.418, 1, 1, 1};
  const ClaimChart& mfu =
      r.chart("decode, weights read once a step", "batch", "utilisation", {16, 64, 153, 256, 512},
              {names[0], names[1], names[2]}, [&](std::size_t i, double batch) {
                const DType format = i == 2 ? DType::fp8_e4m3 : DType::bf16;
                const RooflineRow row = step(i == 0 ? a : h, format, batch);
                return row.t_math / row.seconds;
              });
  for (std::size_t i = 0; i < 15; ++i) {
    const double* const claimed = i < 5 ? a100 : h100;
    r.formula(cat({names[i / 5], ", batch ", mfu.x[i % 5]}), "T_math / max(T_math, T_mem)",
              mfu.series[i / 5].y[i % 5], "", claimed[i % 5]);
  }
  const auto faster = [&](const char* name, DType format, double batch, double claimed) {
    r.formula(name, "T(A100) / T(H100)",
              step(a, DType::bf16, batch).seconds / step(h, format, batch).seconds, "", claimed);
  };
  faster("speed-up, bf16, batch 1", DType::bf16, 1, 1.64);
  faster("speed-up, fp8, batch 1", DType::fp8_e4m3, 1, 3.29);
  faster("speed-up, bf16, batch 4096", DType::bf16, 4096, 3.17);
  faster("speed-up, fp8, batch 4096", DType::fp8_e4m3, 4096, 6.34);
  r.assumptions = {"A100 of 80 GB, H100 SXM, dense peaks; matmuls alone, weights read once"};
  r.caveats = {"from batch 295 on both reach their peak: it is small batches that lose"};
  return r;
}

inline ClaimReport claim_nvlink_domain() {
  ClaimReport r = claim_of(
      "A Blackwell NVLink domain joins 72 GPUs at 900 GB/s each, where Hopper's joins 8 at 450.",
      Verdict::holds, "and what crosses nodes is 18 times slower than inside");
  const Chip h = chip("h100-sxm"), b = chip("gb200");
  const auto link = [](const Chip& c) {
    return Quantity(c.link_bandwidth, "B/s", "link " + c.name) *
           Quantity(c.links, "", "links " + c.name);
  };
  r.add("W H100", link(h), 450e9);
  r.add("W GB200", link(b), 900e9);
  r.formula("domain H100", "preset", h.domain_chips, "", 8);
  r.formula("domain GB200", "preset", b.domain_chips, "", 72);
  r.add("inside / across",
        r.quantity("W GB200") / Quantity(h.dcn_bandwidth, "B/s", "W of a GPU's network"), 18);
  const ModelConfig m = config("llama3-70b");
  const std::int64_t tokens = 2048;
  const Quantity v(bytes_of(DType::bf16) * static_cast<double>(tokens * m.width), "B", "V",
                   "activations of 2048 tokens, bf16");
  const auto ring = [&](const char* name, double n, const Quantity& w) {
    r.add(name, Quantity(2) * v * Quantity(n - 1) / (Quantity(n, "", "n") * w));
  };
  ring("ring all_reduce, 8 H100", 8, r.quantity("W H100"));
  ring("ring all_reduce, 72 GB200", 72, r.quantity("W GB200"));
  const ClaimChart& chart = r.chart(
      "layer of llama3-70b, 2048 tokens", "degree of tensor", "us", {1, 2, 4, 8, 16, 32, 64, 72},
      {"H100", "H100, all_reduces", "GB200", "GB200, all_reduces"},
      [&](std::size_t i, double degree) {
        const Chip& c = i < 2 ? h : b;
        const auto n = static_cast<std::int64_t>(degree), domain = std::int64_t{c.domain_chips};
        const Machine on = n <= domain ? machine(c, {n}) : machine(c, {n / domain, domain});
        const double comms = 2 * all_reduce_seconds(on, tokens, m.width);
        const double flops = 2.0 * static_cast<double>(m.layer_parameters(0) * tokens);
        const double math = flops / (degree * c.peak(DType::bf16));
        return 1e6 * (i % 2 == 0 ? math + comms : comms);
      });
  const auto at = [&](std::size_t series, std::size_t i) { return chart.series[series].y[i]; };
  r.formula("H100, all_reduces of 16 / of 8", "chart", at(1, 4) / at(1, 3));
  r.formula("GB200, all_reduces of 16 / of 8", "chart", at(3, 4) / at(3, 3));
  r.needs(at(1, 4) > 1.25 * at(1, 3) && at(3, 4) < 1.1 * at(3, 3), "no cliff at the domain's edge");
  r.assumptions = {
      "nodes of 8 H100 with 50 GB/s a GPU between; the cheapest all_reduce, one hop "
      "of 1 us; two a layer; matmuls at peak"};
  r.caveats = {"the cliff is the domain's edge: H100 has it at 8, NVL72 none up to its 72"};
  return r;
}

inline ClaimReport claim_wafer_memory() {
  ClaimReport r = claim_of(
      "A wafer (WSE-2) holds all weights in SRAM at 20 PB/s, thousands of times a GPU's memory.",
      Verdict::holds_when, "the model fits 40 GB; else its weights come over 150 GB/s");
  const Chip w = chip("wse-2"), a = chip("a100-40");
  const Quantity bw = memory_rate_of(w), peak = peak_of(w, DType::bf16);
  const Quantity p(static_cast<double>(config("llama2-13b").parameters()), "", "P", "llama2-13b");
  const Quantity two(2, "B", "b", "bf16");
  r.add("bandwidth / A100's", bw / memory_rate_of(a), 12860);
  r.add("parameters held", Quantity(w.memory_bytes, "B", "M") / two, 20e9);
  r.add("ridge", peak / bw, 0.4);
  r.add("13B, weights a token", p * two / bw, 1.3e-6);
  r.add("13B, FLOPs a token", Quantity(2, "FLOP") * p / peak, 3.5e-6);
  const Quantity big(static_cast<double>(config("gpt3-175b").parameters()), "", "P gpt3-175b");
  r.add("175B, streamed a token",
        big * two / Quantity(w.dcn_bandwidth, "B/s", "W outside", "150 GB/s"));
  const double side = std::sqrt(w.cores);
  r.formula("hops across the wafer", "sqrt(cores)", side);
  r.formula("one way across", "hops / clock, a hop a clock", side / w.clock_hz, "s");
  Machine corner = machine("tpu-v5e", {4, 4});  // lines; their links become those of cores
  for (Links& links : corner.links) {
    links.latency = 1 / w.clock_hz;
    links.bandwidth = Bandwidth::one_way(4 * w.clock_hz);  // a number a clock
  }
  const MeshRun run = Mesh(corner, {{"cores", 16}}).run([](Device& core) {
    if (core.rank() == 0) {
      core.send(ones({1}), 15);
    } else if (core.rank() == 15) {
      core.recv(0);
    }
  });
  r.simulated("a number over 6 hops", "corner to corner of 4 x 4 cores", run.seconds, "s",
              7 / w.clock_hz);
  const Chip e = chip("tpu-v5e"), laptop = chip("laptop-x86");
  const double rates[] = {laptop.memory_bandwidth, e.memory_bandwidth, e.sram_bandwidth,
                          w.memory_bandwidth};
  const Chip* const on[] = {&laptop, &e, &e, &w};
  r.chart("roofline", "FLOP/byte", "TFLOP/s", {0.1, 1, 10, 100, 1000},
          {"DDR, laptop", "HBM, v5e", "VMEM, v5e", "SRAM, WSE-2"}, [&](std::size_t i, double x) {
            return std::fmin(on[i]->peak(DType::bf16), x * rates[i]) / 1e12;
          });
  r.assumptions = {
      "the peak is inferred (the vendor prints a sparse one); assumed: a hop and a "
      "number of 4 bytes a clock on each link"};
  r.caveats = {"even one sequence is bound by math there; then latency on the fabric counts"};
  return r;
}

inline ClaimReport claim_systolic_padding() {
  ClaimReport r = claim_of(
      "Dimensions that are no multiple of the array (128, on v6e 256) waste it: K = 129 takes two "
      "passes.",
      Verdict::holds);
  const SystolicArray tpu(128, 128), v6e(256, 256);
  r.chart("x [1024, K] times w [K, N], N as wide as the array", "K", "utilisation",
          {64, 127, 128, 129, 192, 256, 257}, {"128 x 128", "256 x 256"},
          [&](std::size_t i, double k) {
            const SystolicArray& array = i == 0 ? tpu : v6e;
            return array.timing(1024, static_cast<std::int64_t>(k), array.cols()).utilization;
          });
  for (const std::int64_t k : {128, 129}) {
    const SystolicTiming t = tpu.timing(1024, k, 128);
    const std::string of = cat({", K = ", k});
    r.formula("passes" + of, "ceil(K / 128)", double(t.row_folds), "", k > 128 ? 2 : 1);
    r.formula("cycles" + of, "SystolicArray::timing", double(t.cycles));
    r.formula("mapping" + of, "M K N / slots of the folds", t.mapping_efficiency);
  }
  const SystolicArray small(8, 8);
  const Tensor x = randn({16, 9}, 1), w = randn({9, 8}, 2);
  const SystolicRun run = small.matmul(x, w);
  const auto formula = static_cast<double>(small.timing(16, 9, 8).cycles);
  r.simulated("cycles, 8 x 8, K = 9", "every PE stepped; beside timing()", double(run.cycles), "",
              formula);
  r.picture = wavefront(small, x, w, run.cycles - 10).text();
  return r;
}

inline ClaimReport claim_flops_per_dollar() {
  ClaimReport r = claim_of(
      "By list price v5e gives 1.5 times the FLOPs a dollar of v5p and 1.8 times those of H100.",
      Verdict::holds_when, "all reach the same share of their peak");
  const struct {
    const char* name;
    double claimed;
  } chips[] = {{"tpu-v4", 3.07e17},  {"tpu-v5e", 5.91e17}, {"tpu-v5p", 3.93e17},
               {"tpu-v6e", 1.22e18}, {"a100-40", 3.06e17}, {"h100-sxm", 3.30e17},
               {"h200", 3.56e17}};
  const Quantity hour(3600, "s/h");
  for (const auto& c : chips) {
    const Chip on = chip(c.name);
    r.add(c.name, peak_of(on, DType::bf16) * hour / price_of(on), c.claimed);
  }
  const Quantity e = r.quantity("tpu-v5e");
  r.add("v5e / v5p", e / r.quantity("tpu-v5p"), 1.5);
  r.add("v5e / H100", e / r.quantity("h100-sxm"), 1.8);
  const Quantity mfu(0.4, "", "MFU of H100", "assumed");
  r.add("break-even MFU of v5e", mfu * r.quantity("h100-sxm") / e);
  r.add("break-even price of H100", Quantity(3600, "s/h") * peak_of(chip("h100"), DType::bf16) / e);
  r.assumptions = {"dense bf16 peaks; US list prices on demand, as the presets date them"};
  r.caveats = {"prices differ by contract and year: set dollars_per_hour of a machine",
               "break-even: below that MFU, or that price, the order turns"};
  return r;
}

}  // namespace detail
}  // namespace tinyscale
