// What a layer asks of a chip and of its links: matmul shapes against the array's closed form on
// the clock, groups against the mesh's closed forms, FLOPs and parameters against the model's
// count.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "error_of.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

// A chip whose memory never makes its arrays wait.
ts::Chip fast_memory(const char* name) {
  ts::Chip chip = ts::chip(name);
  chip.memory_bandwidth = 1e16;
  chip.sram_bandwidth = chip.l2_bandwidth = 1e18;
  return chip;
}

// The better of a product and its transpose on the clock, as a share of the arrays' ticks.
double timed_share(const ts::Chip& chip, std::int64_t m, std::int64_t k, std::int64_t n) {
  const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(k * n);
  const double seconds =
      std::min(ts::chip_timing(chip, m, k, n).seconds, ts::chip_timing(chip, n, k, m).seconds);
  return flops / (seconds * chip.unit_peak());
}

double forward_flops(const ts::ModelConfig& c, const ts::Layout& layout, double batch) {
  const double context = static_cast<double>(c.context);
  const auto mixtures = static_cast<double>(c.mixture_layers());
  const ts::LayerWork dense = ts::layer_work(c, layout, batch, context, false);
  const ts::LayerWork mixed = ts::layer_work(c, layout, batch, context, true);
  double flops = (static_cast<double>(c.layers) - mixtures) * (dense.flops() + dense.causal_flops);
  return flops + (mixtures > 0 ? mixtures * (mixed.flops() + mixed.causal_flops) : 0);
}

}  // namespace

TEST_CASE("matmul rate: whole tiles by hand") {
  const ts::Chip v5e = ts::chip("tpu-v5e");  // four arrays of 128 x 128
  CHECK(ts::mapping_efficiency(v5e, 512, 512, 512) == 1);
  CHECK(ts::mapping_efficiency(v5e, 1024, 128, 512) == 1);
  CHECK(ts::mapping_efficiency(v5e, 64, 128, 512) == 0.5);  // a tile takes 128 ticks to load
  // 129 wide: across the arrays a second fold of 512 columns; stood up, 129 rows take two folds.
  CHECK(ts::mapping_efficiency(v5e, 512, 129, 512) == doctest::Approx(129.0 / 256));
  CHECK(ts::mapping_efficiency(v5e, 513, 512, 513) == doctest::Approx(513.0 / 1024));
  CHECK(ts::mapping_efficiency(v5e, 100, 512, 512) == doctest::Approx(100.0 / 128));
  ts::Chip gpu = ts::chip("h100");
  gpu.cores = 4;  // blocks of 128 x 128 at once
  const double through = 2.0 * gpu.mxu_rows + gpu.mxu_cols;
  const double fill = 4096 / (4096 + through);
  CHECK(ts::mapping_efficiency(gpu, 256, 4096, 256) == doctest::Approx(fill));
  CHECK(ts::mapping_efficiency(gpu, 128, 4096, 128) == doctest::Approx(fill / 4));
  // A column more than a wave of four 128 x 128 blocks: of 128 x 256 half are full.
  CHECK(ts::mapping_efficiency(gpu, 256, 4096, 257) == doctest::Approx(fill * 257 / 512));
  CHECK(ts::mapping_efficiency(ts::chip("laptop-x86"), 100, 3, 7) == 1);  // no arrays
  CHECK(ts::mapping_efficiency(v5e, 0, 3, 7) == 1);
}

// A TPU's clock takes up to four loads of an array more, for the first tiles and the last sums; a
// GPU's up to 6.5 % less: the next wave begins in the shadow of the last.
TEST_CASE("matmul rate: against the chip on the clock") {
  for (const char* const name : {"tpu-v5e", "tpu-v6e", "h100"}) {
    const ts::Chip chip = fast_memory(name);
    const bool tpu = chip.kind == "tpu";
    for (const std::int64_t m : {512, 1500, 2048}) {
      for (const std::int64_t k : {1000, 4096}) {
        for (const std::int64_t n : {129, 2048}) {
          CAPTURE(name);
          CAPTURE(m);
          CAPTURE(k);
          CAPTURE(n);
          const double mapped = ts::mapping_efficiency(
              chip, static_cast<double>(m), static_cast<double>(k), static_cast<double>(n));
          const double timed = timed_share(chip, m, k, n);
          const double useful = static_cast<double>(m) * static_cast<double>(k * n) /
                                (chip.mxu_rows * chip.mxu_cols * chip.mxus);
          const double more = useful / timed - useful / mapped;  // ticks
          CHECK(more >= (tpu ? 0 : -0.065 * useful / timed));
          CHECK(more <= (tpu ? 4 * chip.mxu_rows : 0));
        }
      }
    }
  }
}

TEST_CASE("group links: formulas by hand") {
  // v5e 16 x 16, FSDP over all: both axes are rings, 4 links of 45 GB/s
  const ts::GroupLinks pod = ts::group_links(ts::machine("tpu-v5e", {16, 16}), 1, 256);
  CHECK(pod.gather(1) == doctest::Approx(255.0 / 256 / (4 * 4.5e10)).epsilon(1e-12));
  CHECK(pod.exchange(1) == doctest::Approx(16.0 / 8 / 4.5e10).epsilon(1e-12));
  CHECK(!pod.leaves_domain());
  const ts::Machine gpus = ts::machine("h100", {64, 8});
  const ts::GroupLinks all = ts::group_links(gpus, 1, 512);  // eight ports of a node share
  CHECK(all.gather_inner == doctest::Approx(7.0 / 8 / 4.5e11).epsilon(1e-12));
  CHECK(all.gather_outer == doctest::Approx(63.0 / 64 / 8 / 5e10).epsilon(1e-12));
  CHECK(all.gather(1e9) == doctest::Approx(1e9 * 63.0 / 64 / 4e11).epsilon(1e-12));
  CHECK(all.leaves_domain());
  const ts::GroupLinks apart = ts::group_links(gpus, 8, 64);  // one chip of each node
  CHECK(apart.gather(1) == doctest::Approx(63.0 / 64 / 5e10).epsilon(1e-12));
  CHECK(apart.exchange(1) == doctest::Approx(63.0 / 64 / 5e10).epsilon(1e-12));
  CHECK(apart.gather(1, 1, 0.5) == doctest::Approx(2 * apart.gather(1)));
  CHECK(ts::group_links(gpus, 1, 8).gather(1) == doctest::Approx(7.0 / 8 / 4.5e11));
  CHECK(ts::group_links(gpus, 1, 1).gather(1e30) == 0);
  const ts::Machine slices = ts::machine("tpu-v5p", {2, 4, 4, 4});
  const double dcn = slices.chip.dcn_bandwidth;
  CHECK(ts::group_links(slices, 64, 2).gather(1) == doctest::Approx(0.5 / dcn));
  CHECK(ts::group_links(slices, 1, 128).gather_outer == doctest::Approx(0.5 / 64 / dcn));
  CHECK(error_of([&] { ts::group_links(gpus, 8, 65); }) ==
        "group_links: 65 chips, 8 apart, on h100-sxm 64x8 of 512; at least 1 each, and together no "
        "more than the chips");
  CHECK(error_of([&] { ts::group_links(gpus, 0, 8); }).rfind("group_links: 8 chips, 0 apart", 0) ==
        0);
}

// Blocks cannot be halved: a ring of even n takes n / (n - 1) of the bound, its all_to_all
// 1 + 2 / n; lines of a torus's axes and switches are the bound itself.
TEST_CASE("group links: against the mesh's closed forms") {
  struct Group {
    const char* chip;
    ts::Shape dims;
    std::int64_t stride, size;
    ts::Algorithm how;
    double ring;  // devices of the shortest closed axis; 0: none closes
  };
  const Group groups[] = {{"tpu-v5e", {16, 16}, 1, 16, ts::Algorithm::ring_both_ways, 16},
                          {"tpu-v5e", {16, 16}, 16, 16, ts::Algorithm::ring_both_ways, 16},
                          {"tpu-v5e", {16, 16}, 1, 256, ts::Algorithm::torus, 16},
                          {"tpu-v5e", {4, 8}, 1, 8, ts::Algorithm::line, 0},
                          {"tpu-v5e", {4, 8}, 8, 4, ts::Algorithm::line, 0},
                          {"tpu-v5p", {4, 4, 8}, 1, 8, ts::Algorithm::ring_both_ways, 8},
                          {"tpu-v5p", {4, 4, 8}, 8, 4, ts::Algorithm::ring_both_ways, 4},
                          {"tpu-v5p", {4, 4, 8}, 8, 16, ts::Algorithm::torus, 4},
                          {"tpu-v5p", {8, 8, 8}, 1, 512, ts::Algorithm::torus, 8},
                          {"h100", {8}, 1, 8, ts::Algorithm::direct, 0},
                          {"h100", {16, 8}, 8, 16, ts::Algorithm::direct, 0},
                          {"h100", {16, 8}, 1, 4, ts::Algorithm::direct, 0},
                          {"mi300x", {8}, 1, 8, ts::Algorithm::direct, 0},
                          {"tpu-v5p", {2, 4, 4, 4}, 64, 2, ts::Algorithm::direct, 0}};
  for (const Group& group : groups) {
    ts::Machine machine = ts::machine(group.chip, group.dims);
    for (ts::Links& links : machine.links) {
      links.latency = 0;
    }
    const ts::GroupLinks links = ts::group_links(machine, group.stride, group.size);
    const std::string where = machine.name;
    CAPTURE(where);
    CAPTURE(group.size);
    for (const ts::Collective what : {ts::Collective::all_gather, ts::Collective::reduce_scatter,
                                      ts::Collective::all_reduce, ts::Collective::all_to_all}) {
      ts::CollectiveSpec spec;
      spec.what = what;
      spec.algorithm = group.how;
      spec.parts =
          ts::detail::parts_of_stretch(machine, group.stride, static_cast<int>(group.size));
      spec.elements = group.size * 12 * 1048576;
      const double bytes = 4 * static_cast<double>(spec.elements);
      const bool exchange = what == ts::Collective::all_to_all;
      const double bound = exchange                             ? links.exchange(bytes)
                           : what == ts::Collective::all_reduce ? 2 * links.gather(bytes)
                                                                : links.gather(bytes);
      const double ratio = ts::collective_seconds(spec) / bound;
      CHECK(ratio >= 1 - 1e-12);
      if (group.how == ts::Algorithm::line && exchange) {
        CHECK(ratio < 2);  // blocks pass each other on the row
      } else if (group.ring > 0) {
        CHECK(ratio ==
              doctest::Approx(exchange ? 1 + 2 / group.ring : group.ring / (group.ring - 1)));
      } else {
        CHECK(ratio == doctest::Approx(1));
      }
    }
  }
}

TEST_CASE("layer work: FLOPs are the model's, and divide") {
  for (const char* const name : {"gpt3-175b", "llama3-70b", "deepseek-v3", "mixtral-8x7b",
                                 "gemma3-27b", "qwen3-235b-a22b", "nano"}) {
    ts::ModelConfig c = ts::config(name);
    CAPTURE(name);
    const double context = static_cast<double>(c.context);
    const ts::MatrixParameters parts = ts::matrix_parameters(c);
    const double router = parts.router, head = parts.head;  // neither is in a layer's matmuls
    const double forward = 2 * (parts.total() - router - head) +
                           ts::attention_flops_per_token(c, context, ts::AttentionFlops::causal);
    ts::Layout whole;
    const double flops = forward_flops(c, whole, 3);
    CHECK(flops == doctest::Approx(3 * context * forward).epsilon(1e-12));
    // Norms, biases and what no field describes are all that training_flops_per_token adds.
    const double published =
        ts::training_flops_per_token(c, context, ts::AttentionFlops::causal) / 3 * 3 * context;
    CHECK(flops + 3 * context * 2 * head == doctest::Approx(published).epsilon(0.002));
    if (c.latent()) {
      continue;  // its ranks are whole on each tensor-parallel device
    }
    for (const std::int64_t t : {2, 4}) {
      ts::Layout cut;
      cut.tensor = c.kv_heads % t == 0 ? t : 1;
      cut.context = 2;
      cut.context_parallel = ts::ContextParallel::ulysses;  // all have as much, windows or not
      cut.expert = c.experts > 0 ? 4 : 1;
      CHECK(forward_flops(c, cut, 3) * static_cast<double>(cut.tensor * 2) ==
            doctest::Approx(flops).epsilon(1e-12));
    }
  }
  ts::Layout wide;  // more chips than experts: parts of one
  wide.tensor = 4;
  wide.expert = 8;
  const ts::ModelConfig mixtral = ts::config("mixtral-8x7b");
  CHECK(4 * forward_flops(mixtral, wide, 2) ==
        doctest::Approx(forward_flops(mixtral, ts::Layout(), 2)).epsilon(1e-12));
  wide.expert = 1;
  wide.tensor = 16;  // 8 heads of keys on 16 chips: a whole one each
  const ts::ModelConfig llama = ts::config("llama3-70b");
  const ts::LayerWork w = ts::layer_work(llama, wide, 1, 8192, false);
  CHECK(w.keys == 8192 * 2 * 128);
}

TEST_CASE("layer work: under a window the busiest device of a zigzag counts") {
  ts::ModelConfig c = ts::config("nano");
  c.layers = 6;
  c.context = 4096;
  ts::Layout cut;
  for (const std::int64_t n : {1, 2, 8}) {
    for (const std::int64_t window : {0, 1, 256, 300, 1500, 4096}) {
      for (const ts::ContextParallel kind :
           {ts::ContextParallel::ring, ts::ContextParallel::gathered,
            ts::ContextParallel::ulysses}) {
        c.window = window;
        c.global_every = window > 0 ? 3 : 0;
        cut.context = n;
        cut.context_parallel = kind;
        double most = 0;
        for (int d = 0; d < n; ++d) {
          const bool heads = kind == ts::ContextParallel::ulysses;
          const ts::TokenPlaces places =
              heads ? 0 : ts::context_places(kind, d, static_cast<int>(n), c.context);
          const std::int64_t here = heads ? c.context : c.context / n;
          const double share = heads ? 1.0 / static_cast<double>(n) : 1;
          const auto local = static_cast<double>(c.local_layers());
          most = std::max(most, share * (local * ts::causal_pairs(places, here, window) +
                                         (6 - local) * ts::causal_pairs(places, here)));
        }
        CAPTURE(n);
        CAPTURE(window);
        // The planner's masks keep half of the diagonal.
        const double pairs = ts::layer_work(c, cut, 1, 4096, false).causal_flops * 6 /
                             (4 * static_cast<double>(c.query_width()));
        CHECK(pairs <= most * (1 + 1e-12));
        CHECK(pairs >= most - 0.5 * 6 * 4096 / static_cast<double>(n) - 1);
      }
    }
  }
}

TEST_CASE("layer work: parameters of all chips are the model's") {
  for (const char* const name :
       {"llama3-70b", "gpt3-175b", "mixtral-8x7b", "deepseek-v3", "nano"}) {
    const ts::ModelConfig c = ts::config(name);
    CAPTURE(name);
    const auto all = static_cast<double>(c.parameters());
    CHECK(ts::chip_parameters(c, ts::Layout()).all() == doctest::Approx(all).epsilon(1e-12));
    ts::Layout cut;
    cut.expert = c.experts > 0 ? 8 : 1;
    const ts::ChipParameters part = ts::chip_parameters(c, cut);
    CHECK(part.experts * static_cast<double>(cut.expert) + part.dense + part.tables ==
          doctest::Approx(all).epsilon(1e-12));
    cut.tensor = 4;  // positions alone are whole on each
    const bool learned = c.position == ts::Position::learned;
    const double positions = learned ? static_cast<double>(c.context * c.width) : 0;
    const ts::ChipParameters four = ts::chip_parameters(c, cut);
    CHECK(4 * (four.experts * static_cast<double>(cut.expert) + four.dense + four.tables) ==
          doctest::Approx(all + 3 * positions).epsilon(1e-12));
  }
}
