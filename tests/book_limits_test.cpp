// The functions that answer "How To Scale Your Model" beyond the table of cases: other questions of
// the book, the same numbers counted in real runs, and what wrong input says.
#include <doctest/doctest.h>

#include <cmath>

#include "../examples/book/all.hpp"
#include "error_of.hpp"

namespace ts = tinyscale;
using ts::Collective;
using ts::DType;

namespace {

doctest::Approx exactly(double value) { return doctest::Approx(value).epsilon(1e-9); }

// As many digits as the book prints.
doctest::Approx about(double value) { return doctest::Approx(value).epsilon(0.006); }

ts::AxisPart ring_of(int size, double one_way, double latency = 1e-6) {
  ts::AxisPart part;
  part.size = size, part.kind = ts::AxisKind::ring;
  part.bandwidth = one_way, part.latency = latency;
  return part;
}

}  // namespace

TEST_CASE("book: knees with every byte counted") {
  const ts::Chip v5e = book::book_chip("tpu-v5e"), v6e = book::book_chip("tpu-v6e");
  const ts::MatmulFormats int8_weights = {DType::bf16, DType::int8};
  CHECK(ts::critical_batch(v5e, 4096, 4096, int8_weights).value() == about(136));
  const ts::MatmulFormats int8 = ts::all_in(DType::int8);
  CHECK(ts::critical_batch(v5e, 4096, 16384, int8, ts::Channel::sram).value() == about(10.96));
  // At the knee the intensity is the critical one, whatever the shape and the formats.
  for (const double d : {2048.0, 8192.0}) {
    for (const ts::MatmulFormats& in : {ts::MatmulFormats(), int8_weights, int8}) {
      const double b = ts::critical_batch(v5e, d, 3 * d, in).value();
      CHECK(ts::matmul_intensity({b, d, 3 * d}, in).value() ==
            exactly(ts::critical_intensity(v5e, in.math).value()));
    }
  }
  // Over PCIe no batch will do below D = 71,875.
  CHECK(ts::critical_width(v6e, 4, {}, ts::Channel::pcie).value() == exactly(71875));
  const ts::Quantity never = ts::critical_batch(v6e, 8192, 32768, {}, ts::Channel::pcie);
  CHECK(std::isinf(never.value()));
  CHECK(never.source() == "no batch will do: I < 2 D F / (x D + o F) = 6553.6 < I* = 57500");
  CHECK(std::isfinite(ts::critical_batch(v6e, 71876, 4 * 71876, {}, ts::Channel::pcie).value()));
  CHECK(ts::attainable(v5e, 120, DType::bf16).value() == exactly(120 * 8.2e11));
  CHECK(ts::attainable(v5e, 1e4, DType::bf16).value() == exactly(1.97e14));
  CHECK(ts::attainable(v5e, {1e5, 1e5, 1e5}).value() == exactly(1.97e14));
  CHECK(ts::attainable(v5e, {120, 1e6, 1e6}).value() == about(120 * 8.2e11));
  CHECK(ts::matmul_intensity_limit(240).value() == exactly(240));
  CHECK(ts::tiled_matmul_bytes({256, 512, 384}, 128, 128, 128).value() ==
        exactly(2 * 3 * (4 * 2 * 2 * 128.0 * 128 + 2 * 128 * 128)));
  CHECK(ts::split_matmul_intensity(8755.5555).value() == about(4377.8));
}

TEST_CASE("book: facts of slices") {
  const ts::Chip v5e = book::book_chip("tpu-v5e"), v5p = book::book_chip("tpu-v5p");
  const double bytes = 131072.0 * 131072;
  CHECK(ts::transfer_time(bytes, v5e, ts::Channel::pcie, 16).value() == about(0.0671));
  CHECK(ts::transfer_time(bytes, v5e).value() == about(0.02095));
  ts::VectorUnits core = ts::tpu_vector_units(v5p);
  core.cores = 1;
  CHECK(ts::vector_rate(core).value() == exactly(7.168e12));
  CHECK(ts::vector_lanes(ts::gpu_vector_units(ts::chip("h100"))).value() == 16896);
  const ts::Machine open = ts::machine("tpu-v5e", {4, 4}), pod = ts::machine("tpu-v5e", {16, 16});
  CHECK(ts::diameter_of(open) == 6);
  CHECK(ts::first_byte_time(open, {0, 0}, {3, 3}).value() == exactly(6e-6));
  CHECK(ts::diameter_of(pod) == 16);
  CHECK(ts::hops_between(pod, {0, 1}, {15, 4}) == 4);
  CHECK(ts::hops_between(ts::machine("h100", {2, 8}), {0, 1}, {1, 1}) == 1);
  CHECK(ts::link_ports(open, {1, 1}) == 4);
  CHECK(ts::link_ports(open, {0, 1}) == 3);
  CHECK(ts::link_ports(pod, {0, 0}) == 4);
  const ts::Machine nodes = ts::machine("h100", {2, 8}), spine = ts::machine("h100", {4, 32, 8});
  CHECK(ts::link_ports(nodes, {0, 0}) == 2);
  CHECK(ts::link_ports(spine, {0, 0, 0}) == 2);
  // Links are as fast, and hops as long, as those of their dimension.
  CHECK(ts::port_time(open, 18e10, {1, 1}).value() == exactly(1));
  CHECK(ts::port_time(ts::machine("h100", {8}), 450e9, {0}).value() == exactly(1));
  CHECK(ts::port_time(nodes, 500e9, {0, 0}).value() == exactly(1));
  CHECK(ts::port_time(spine, 500e9, {0, 0, 0}).value() == exactly(1));
  CHECK(ts::port_time(ts::machine("h100", {4, 1, 8}), 500e9, {0, 0, 0}).value() == exactly(1));
  ts::Machine slices = ts::machine("tpu-v5p", {2, 4, 4, 4});
  slices.links[0].latency = 50e-6;
  CHECK(ts::port_time(slices, 546.25e9, {0, 0, 0, 0}).value() == exactly(1));
  CHECK(ts::first_byte_time(slices, {0, 0, 0, 0}, {1, 2, 0, 3}).value() == exactly(53e-6));
  CHECK(ts::first_byte_time(slices, {1, 0, 0, 0}, {1, 0, 0, 0}).value() == 0);
  CHECK(ts::padded_utilization(100, 256, v5e).value() == exactly(100.0 / 128));
  CHECK(ts::tile_padding(3, 5, 2, 2).value() == exactly(1.6));
  const ts::Quantity a(2, "s", "a"), b(3, "s", "b");
  CHECK(ts::slowest_stage({a, b}).name() == "b");
  CHECK(ts::stages_in_turn({a, b}).value() == 5);
  CHECK(ts::memory_bandwidth_of(ts::machine(v5e, {4, 2})).value() == exactly(6.56e12));
  CHECK(ts::sram_of(open).value() == exactly(16 * 134217728.0));
}

TEST_CASE("book: collectives on rings, lines and a torus") {
  const ts::List<ts::AxisPart> ring = {ring_of(4, 4.5e10)};
  const ts::List<ts::AxisPart> line = ts::links_along(ts::machine("tpu-v5e", {4, 4}), {0});
  CHECK(ts::collective_limit(Collective::all_gather, 33554432, ring).value() == about(373e-6));
  CHECK(ts::collective_limit(Collective::all_gather, 33554432, line).value() == about(560e-6));
  const ts::Machine cube = ts::machine("tpu-v4", {4, 4, 4});
  const auto gather = [&](const std::vector<int>& dims) {
    return 1e6 * ts::collective_limit(Collective::all_gather, 2.0 * 1024 * 4096,
                                      ts::links_along(cube, dims))
                     .value();
  };
  CHECK(gather({0, 1}) == about(46.6));
  CHECK(gather({0, 1, 2}) == about(31.07));
  CHECK(ts::latency_bound_ways(16 * 8192, ring_of(8, 4.5e10)).value() == about(16 * 8192 / 45e3));
  CHECK(ts::ring_hops(8).value() == 4);
  CHECK(ts::ring_hops(8, false).value() == 7);
  CHECK(ts::ring_hops(4, true, false).value() == 3);
  // The same as the rule of thumb beside the closed forms, from latency to bandwidth.
  for (const Collective what : {Collective::all_gather, Collective::reduce_scatter,
                                Collective::all_reduce, Collective::all_to_all}) {
    for (const std::int64_t elements : {64, 65536, 67108864}) {
      ts::CollectiveSpec spec;
      spec.what = what;
      spec.elements = elements;
      spec.parts = ts::links_along(cube, {0, 1, 2});
      // The book's V of an all_to_all is of all devices, the library's of one.
      const double v =
          4.0 * static_cast<double>(elements) * (what == Collective::all_to_all ? 64 : 1);
      const double latency = ts::collective_latency(what, spec.parts).value();
      CAPTURE(ts::name_of(what));
      CHECK(ts::collective_limit(what, v, spec.parts).value() ==
            exactly(ts::rule_of_thumb_seconds(spec)));
      CHECK(latency == exactly(what == Collective::all_reduce ? 12e-6 : 6e-6));
    }
  }
}

TEST_CASE("book: switches and trees of them") {
  const ts::Chip h100 = book::book_chip("h100");
  const ts::SwitchCounts pod = ts::switch_counts(1024);
  CHECK(pod.units == 4);
  CHECK(pod.leaves == 32);
  CHECK(pod.spines == 16);
  CHECK(pod.switches() == 560);
  CHECK(ts::switch_bandwidth({16, 64, 50e9}).value() == exactly(51.2e12));
  const ts::List<ts::FatTreeLevel> nodes = ts::fat_tree(ts::machine(h100, {128, 8}));
  const double v = 2.0 * 8192 * 32768;
  for (const double cut : {1.0, 2.0, 8.0}) {  // flat up to the node, then 1 / Y
    CHECK(ts::switch_gather_time(v, nodes, cut, false).value() == about(1.342e-3));
  }
  CHECK(ts::switch_gather_time(v, nodes, 32, false).value() == about(1.342e-3 / 4));
  CHECK(ts::switch_reduce_time(v, nodes).value() ==
        exactly(2 * ts::switch_gather_time(v, nodes).value()));
  const ts::List<ts::FatTreeLevel> node = ts::fat_tree(ts::machine(h100, {8}));
  CHECK(ts::switch_reduce_time(v, node, 1, true).value() == exactly(v / 450e9));
  CHECK(ts::switch_exchange_time(v, node).value() == exactly(v * 7 / (64 * 450e9)));
  CHECK(ts::expected_ragged_share(8, 64, false).value() == about(0.123));
  CHECK(ts::ragged_share(8, 4).value() == 1);
  CHECK(ts::in_switch_traffic(v, node[0]).value() == exactly(8 * v));
  const ts::GatherTraffic t = ts::gather_traffic(v, nodes);
  CHECK(t.to_gpus.value() == exactly(8 * v - v / 128));
  CHECK(t.from_leaf.value() == exactly(v * 127 / 128));
  CHECK(ts::fat_tree(ts::machine(h100, {4, 32, 8}))[2].part.value() == exactly(12.8e12));
}

TEST_CASE("book: transformers and training") {
  const ts::Chip v5p = book::book_chip("tpu-v5p");
  const ts::ModelConfig m = book::gated_model(64, 4096, 16384, 32, 32, 32000);
  CHECK(ts::attention_dominant_length(m).value() == exactly(8 * 4096));
  CHECK(ts::attention_ratio(m, 4096).value() == exactly(1.0 / 8));
  CHECK(ts::attention_ratio(m, 4096, true).value() == exactly(1.0 / 16));
  CHECK(ts::attention_intensity(1, 1e6, 8).value() == about(8));  // a decode step: G
  ts::Chip h800 = ts::chip("h100");
  h800.flops_fp8 = 1.513e15;
  CHECK(
      ts::mfu_of_hours(ts::training_flops(37e9, 14.8e12), 2.79e6, h800, DType::fp8_e4m3).value() ==
      about(0.216));
  CHECK(ts::best_data_ways(48e3, 32768, 64, 2).value() == about(13.69));
  CHECK(ts::network_batch(v5p).value() == exactly(73440));
  CHECK(ts::network_batch(v5p).unit() == "token");
  CHECK(ts::run_time(ts::training_flops(70e9, 15e12), 1, v5p).value() / (365 * 86400.0) ==
        about(435));
  CHECK(ts::tokens_per_chip(4.19e6, 8960).value() == about(467.6));
  const ts::Quantity int8 = ts::link_intensity(v5p, DType::int8);  // the format cancels
  CHECK(ts::tensor_ways(int8, 30000, 1, DType::int8).value() ==
        exactly(ts::tensor_ways(ts::link_intensity(v5p), 30000).value()));
  CHECK(ts::data_limit(int8, 3, DType::int8).value() == exactly(850));
  // What the thresholds say is where the times of a layer cross.
  const ts::Quantity link = ts::bandwidth_of(v5p, ts::Channel::link_both_ways);
  const double edge = ts::data_limit(ts::link_intensity(v5p), 3).value();
  ts::LayerSplit split;
  split.data = 64, split.data_axes = 3;
  ts::LayerTimes t = ts::layer_times({64 * edge, 8192, 32768}, split, v5p, link);
  CHECK(t.data.value() == exactly(t.math.value()));
  split.data = 1, split.tensor = 10, split.tensor_axes = 2;
  const double hidden = ts::hidden_for_ways(ts::link_intensity(v5p), 10, 2).value();
  t = ts::layer_times({4096, 8192, hidden}, split, v5p, link);
  CHECK(t.tensor.value() == exactly(t.math.value()));
  const double mixed = 64 * ts::mixed_limit(ts::link_intensity(v5p), 32768, 2).value();
  split.data = ts::best_data_ways(mixed, 32768, 64, 2).value();
  split.tensor = 64 / split.data, split.data_axes = 2, split.tensor_axes = 1;
  t = ts::layer_times({mixed, 8192, 32768}, split, v5p, link);
  CHECK(t.data.value() == exactly(t.tensor.value()));
  CHECK(t.comms.value() == exactly(t.math.value()));
  CHECK(ts::math_over_comms(ts::link_intensity(v5p), mixed, 32768, 64, 2).value() == exactly(1));
  CHECK(t.math_backward.value() == exactly(2 * t.math.value()));
  CHECK(t.comms_backward.value() == exactly(2 * t.data.value()));  // gathered again, scattered
  // A slice at the network's limit: gradients take as long as the backward pass.
  const double batch = ts::network_batch(v5p).value();  // tokens of a slice of 64
  CHECK(ts::network_gradient_time({1, 8192, 32768}, 64, v5p).value() ==
        exactly(2 * ts::math_time(2 * ts::matmul_flops({batch, 8192, 32768}).value(), v5p,
                                  DType::bf16, 64)
                        .value()));
  const ts::Machine gpus = ts::machine(book::book_chip("h100"), {2, 8});
  CHECK(ts::expert_batch(ts::data_limit(ts::node_intensity(gpus)), 128, 4).value() ==
        exactly(79200));
  CHECK(ts::hidden_for_wide_ways(ts::node_intensity(gpus), 16).value() == exactly(19800));
  CHECK(ts::hidden_for_experts(ts::node_intensity(gpus), 16, 8).value() == exactly(2475));
  CHECK(ts::hidden_for_experts(ts::node_intensity(gpus), 1e6, 8).value() == about(19800));
  const ts::Quantity w(400e9, "B/s", "W");
  CHECK(ts::expert_exchange_time(4096, 7168, 64, 8, w).value() ==
        exactly(4.0 * 4096 * 7168 * 56 / (400e9 * 64)));
  CHECK(book::bytes_table() ==
        std::vector<std::string>{"0+8DF", "4DF+8DF", "4BD+4BD", "(4BD/X+4DF/Y)", "4BD/X", "8DF/Y"});
}

TEST_CASE("book: blocks of a layer are the model's") {
  for (const char* name : {"llama3-70b", "llama2-13b", "mixtral-8x7b"}) {
    const ts::ModelConfig m = ts::config(name);
    const double layers = static_cast<double>(m.layers), t = 2048;
    const ts::BlockCost ffw = ts::feed_forward_cost(m, t), qkvo = ts::projection_cost(m, t);
    const ts::BlockCost vocabulary = ts::vocabulary_cost(m, t), norms = ts::norm_cost(m);
    const double router = m.experts > 0 ? static_cast<double>(m.width) * m.experts : 0;
    const double parameters = layers * (ffw.parameters.value() + qkvo.parameters.value() +
                                        norms.parameters.value() + router) +
                              vocabulary.parameters.value() + static_cast<double>(m.width);
    CAPTURE(name);
    CHECK(parameters == static_cast<double>(m.parameters()));
    const double flops = layers * (ffw.training_flops.value() + qkvo.training_flops.value() +
                                   ts::score_cost(m, t, t).training_flops.value()) +
                         vocabulary.training_flops.value();
    const double per_token = ts::training_flops_per_token(m, t, ts::AttentionFlops::full);
    CHECK(flops == doctest::Approx(t * per_token).epsilon(1e-4));  // norms and router beside it
  }
  const ts::Table table = ts::layer_cost_table(ts::config("llama3-70b"), 4e6, 8192);
  CHECK(table.rows.size() == 5);
  // Latent attention: DeepSeek-V3's matrices to and from its ranks; its first three layers are
  // dense.
  const ts::ModelConfig v3 = ts::config("deepseek-v3");
  const double q = 7168.0 * 1536 + 1536.0 * 128 * 192, kv = 7168.0 * 576 + 512.0 * 128 * 256;
  CHECK(ts::projection_cost(v3, 1).parameters.value() == q + kv + 128.0 * 128 * 7168);
  CHECK(ts::score_cost(v3, 1, 1000).training_flops.value() == 6.0 * 1000 * 128 * (192 + 128));
  const ts::Table parts = ts::layer_cost_table(v3, 1, 4096);
  REQUIRE(parts.rows.size() == 6);
  CHECK(parts.rows[0][0] == "feed-forward, dense layers");
  CHECK(parts.rows[0][1] == ts::format_si(3 * 3 * 7168.0 * 18432, ""));
  CHECK(parts.rows[1][1] == ts::format_si(58 * 257 * 3 * 7168.0 * 2048, ""));
  // Local layers see their window: 22 of Gemma 3 1B's 26, 512 tokens.
  const ts::Table gemma = ts::layer_cost_table(ts::config("gemma3-1b"), 1, 4096);
  REQUIRE(gemma.rows.size() == 6);
  CHECK(gemma.rows[2][2] == ts::format_si(12.0 * 4 * 4096 * 4 * 256, "FLOP"));
  CHECK(gemma.rows[3][2] == ts::format_si(12.0 * 22 * 512 * 4 * 256, "FLOP"));
}

TEST_CASE("book: a dimension of one chip carries nothing, none counts twice") {
  const ts::Machine row = ts::machine("tpu-v5e", {4, 1});
  ts::AxisPart slow;  // a ring of one, all of whose links would be the slowest
  slow.kind = ts::AxisKind::ring;
  slow.bandwidth = 1e6;
  slow.latency = 1;
  for (const Collective what :
       {Collective::all_gather, Collective::all_reduce, Collective::all_to_all}) {
    const auto time = [&](const std::vector<int>& dims) {
      return ts::collective_limit(what, 1e9, ts::links_along(row, dims)).value();
    };
    CHECK(time({0, 1}) == time({0}));
    CHECK(time({1}) == 0);
    ts::List<ts::AxisPart> links = ts::links_along(row, {0});
    links.push_back(slow);
    CHECK(ts::collective_limit(what, 1e9, links).value() == time({0}));
    CHECK(ts::collective_limit(what, 1e9, {slow}).value() == 0);
  }
  CHECK(error_of([&] {
          ts::links_along(row, {0, 0});
        }) == "links_along: dimension 0 of tpu-v5e 4x1 twice; once is right");
}

TEST_CASE("book: serving") {
  const ts::Chip v5e = book::book_chip("tpu-v5e"), v6e = book::book_chip("tpu-v6e");
  CHECK(ts::memory_over_link(v5e).value() == about(9.11));
  CHECK(ts::memory_over_link(v6e).value() == about(8.89));
  const double n = 128, best = ts::two_dim_ways(4096, 4 * 4096, n).value();
  CHECK(best == exactly(std::sqrt(n / 8)));
  const ts::Quantity link = ts::bandwidth_of(v5e, ts::Channel::link_both_ways);
  const ts::BatchMatmul s = {32, 4096, 4 * 4096};
  const double two = ts::two_dim_time(s, n, best, link).value();
  CHECK(two == about(11.31 * 32 * 4096 / (std::sqrt(n) * 9e10)));
  CHECK(ts::two_dim_time(s, 72, ts::two_dim_ways(4096, 4 * 4096, 72).value(), link).value() ==
        exactly(ts::one_dim_time(s, link, 3).value()));
  const ts::DecodeMatmul one = ts::decode_matmul({64, 8192, 28672}, 32, v5e, link);
  CHECK(1e6 * one.links.value() == about(11.65));
  CHECK(1e6 * one.memory.value() == about(17.9));
  CHECK(1e6 * one.math.value() == about(4.77));
  CHECK(one.bound == "memory");
  const ts::ServedModel m = book::llama70b(DType::int8);
  CHECK(ts::prefill_time(m, 8192, 16, v5e, 0.4).value() == about(0.91));
  const ts::Quantity step = ts::memory_step_time(m, 32, 8192, 8, v5e);
  CHECK(ts::tokens_per_second_per_chip(32, step, 8).value() == about(232.3));
  CHECK(ts::full_memory_step_time(v5e).value() == about(0.0195));
  const ts::Quantity prefill(0.91, "s"), decode(0.019, "s");
  CHECK(ts::prefill_servers(43, prefill, 512, decode).value() == about(4.02));
  CHECK(ts::tokens_evicted(32, 8192, 4096).value() == exactly(96));
  CHECK(ts::flops_per_cache_byte(m, 1).value() == exactly(2 * 70e9 / 163840));
  const ts::ServedModel big = ts::served_model(405e9, DType::int8, 1);
  CHECK(ts::weights_step_time(big, 32, v5e).value() == about(0.01543));
  CHECK(ts::weights_step_time(big, 256, v5e).value() == about(0.00193));
  CHECK(ts::smallest_slice(ts::Quantity(20e9, "B"), v5e).value() == 4);
  CHECK(ts::smallest_slice(ts::Quantity(90e9, "B"), ts::chip("h100")).value() == 2);
  CHECK(ts::dollars_per_token(32, step, 8, v5e).value() ==
        exactly(8 * 1.2 / 3600 * step.value() / 32));
}

TEST_CASE("book: the same counted in runs") {
  ts::Profile profile;
  const ts::Tensor x = ts::randn({6, 10}, 1), w = ts::randn({10, 14}, 2);
  ts::matmul(x, w);
  CHECK(profile.totals().matmul_flops == ts::matmul_flops({6, 10, 14}).value());
  CHECK(profile.totals().bytes_read + profile.totals().bytes_written ==
        ts::matmul_bytes({6, 10, 14}, ts::all_in(DType::f32)).value());
  const double before = profile.totals().matmul_flops;
  ts::einsum("bij,bjk->bik", ts::randn({3, 4, 5}, 3), ts::randn({3, 5, 6}, 4));
  CHECK(profile.totals().matmul_flops - before ==
        ts::einsum_flops("bij,bjk->bik", {{'b', 3}, {'i', 4}, {'j', 5}, {'k', 6}}).value());
  CHECK(ts::einsum_bytes("bij,bjk->bik", {{'b', 3}, {'i', 4}, {'j', 5}, {'k', 6}}, DType::f32)
            .value() == 4 * (60 + 90 + 72));
  CHECK(ts::einsum_bytes("bd,df->bf", {{'b', 2}, {'d', 3}, {'f', 4}}).formula() ==
        "number * b * d + number * d * f + number * b * f");
}

#if !defined(TINYSCALE_NO_THREADS)  // several devices
TEST_CASE("book: bytes over the links of a ring are those of runs") {
  ts::Machine machine = ts::machine("tpu-v4", {4, 4, 4});
  for (ts::Links& links : machine.links) {
    links.latency = 0;
  }
  const ts::Mesh mesh(machine, {{"x", 4}, {"y", 16}});
  const double v = 4.0 * 4096;  // bytes of the whole array
  const auto busiest = [&](const ts::MeshRun& run) {
    double most = 0;
    for (const ts::LinkRow& link : run.links()) {
      most = std::max(most, link.bytes);
    }
    return most;
  };
  const ts::MeshRun gather =
      mesh.run([](ts::Device& device) { device.all_gather(ts::full({1024}, 1.0f), "x"); });
  CHECK(busiest(gather) == ts::link_volume(Collective::all_gather, v, 4).value());
  const ts::List<ts::AxisPart> axis = ts::links_along(machine, {0});
  CHECK(gather.seconds ==
        exactly(ts::collective_transfer(Collective::all_gather, v, axis).value()));
  const ts::MeshRun sum =
      mesh.run([](ts::Device& device) { device.all_reduce(ts::full({4096}, 1.0f), "x"); });
  // Half the vector each way around, each half in (N - 1) / N: less than floor(N / 2) hops of it.
  CHECK(busiest(sum) == ts::link_volume(Collective::all_reduce, v, 4, false).value() / 2);
  CHECK(busiest(sum) <= ts::link_volume(Collective::all_reduce, v, 4).value());
  // A feed-forward layer with FSDP over 4: both matrices gathered forward.
  ts::LayerSplit split;
  split.data = 4;
  const ts::LayerTimes layer =
      ts::layer_times({64, 32, 128}, split, machine.chip,
                      ts::bandwidth_of(machine.chip, ts::Channel::link_both_ways), DType::f32);
  const ts::MeshRun weights = mesh.run([](ts::Device& device) {
    device.all_gather(ts::full({32 / 4, 128}, 1.0f), "x");
    device.all_gather(ts::full({128 / 4, 32}, 1.0f), "x");
  });
  CHECK(busiest(weights) ==
        ts::link_volume(Collective::all_gather, layer.data_forward.value(), 4).value());
  CHECK(weights.seconds == exactly(layer.data.value()));
}
#endif

TEST_CASE("book: derivations") {
  CHECK(ts::data_limit(ts::link_intensity(ts::chip("tpu-v5p")), 3).explain() ==
        "B / X = alpha * b / 2 FLOP/token / M   [scaling book, 5]\n"
        "      = 2550 FLOP/B * 2 B / 2 FLOP/token / 3\n"
        "      = 850 token\n"
        "  alpha = C / W   [scaling book, 5]\n"
        "        = 4.59e+14 FLOP/s / 1.8e+11 B/s\n"
        "        = 2550 FLOP/B\n"
        "    C = 4.59e+14 FLOP/s   [bf16 peak of tpu-v5p]\n"
        "    W = 1.8e+11 B/s   [a link, both ways of tpu-v5p]\n"
        "  b = 2 B   [bf16]\n"
        "  M = 3\n");
}

TEST_CASE("book: counts begin at 1, below which N - 1 would be negative") {
  const ts::Quantity alpha = ts::link_intensity(ts::chip("v5e"));
  const auto few = [](const std::string& what, const char* symbol) {
    return what + ": " + symbol + " is 0.5; a finite number from 1 is right";
  };
  CHECK(error_of([] { ts::ring_hops(0.5, false); }) == few("ring_hops", "N"));
  CHECK(error_of([] { ts::link_volume(Collective::all_gather, 8, 0.5, false); }) ==
        few("link_volume", "N"));
  CHECK(error_of([] { ts::expected_ragged_share(2, 0.5); }) == few("expected_ragged_share", "Z"));
  CHECK(error_of([&] { ts::data_limit_of_few(alpha, 0.5); }) == few("data_limit_of_few", "X"));
  CHECK(error_of([] { ts::dot_intensity(0.5); }) == few("dot_intensity", "N"));
  const ts::Quantity rate(1e9, "B/s");
  CHECK(error_of([&] { ts::stage_transfer_time(8, 8, 0.5, 1, rate); }) ==
        few("stage_transfer_time", "N_mb"));
  CHECK(error_of([&] { ts::stage_transfer_time(8, 8, 1, 0.5, rate); }) ==
        few("stage_transfer_time", "N_stages"));
  CHECK(ts::stage_transfer_time(8, 8, 1, 1, rate).value() == 0);
  CHECK(ts::ring_hops(1, false).value() == 0);
  CHECK(ts::expected_ragged_share(2, 1).value() == 0);
}

TEST_CASE("book: what wrong input says") {
  const ts::Chip v5e = ts::chip("tpu-v5e");
  CHECK(error_of([&] { ts::math_time(-1, v5e, DType::bf16); }) ==
        "math_time: F is -1; a finite number above 0 is right");
  CHECK(error_of([&] {
          ts::layer_times({0, 1, 1}, {}, v5e, ts::Quantity(1, "B/s"));
        }) == "layer_times: B is 0; a finite number above 0 is right");
  CHECK(error_of([] { ts::switch_counts(1024, 64, 8, 32, -4); }) ==
        "switch_counts: -4 switches of a node; 0 or more are right");
  CHECK(error_of([&] { ts::hidden_for_wide_ways(ts::link_intensity(v5e), 16, 0); }) ==
        "hidden_for_wide_ways: D (GPUs of a node) is 0; a finite number above 0 is right");
  ts::Chip bare = v5e;
  bare.pcie_bandwidth = 0;
  CHECK(error_of([&] { ts::bandwidth_of(bare, ts::Channel::pcie); }) ==
        "bandwidth_of: tpu-v5e: PCIe is 0 bytes/s; set it to a finite number above 0");
  CHECK(error_of([] {
          ts::einsum_flops("ij,jk", {{'i', 1}});
        }) == "einsum \"ij,jk\": no arrow; \"bd,df->bf\" is right");
  CHECK(error_of([] {
          ts::einsum_flops("bd,df->bx", {{'b', 2}, {'d', 3}, {'f', 4}, {'x', 5}});
        }) == "einsum \"bd,df->bx\": no operand has 'x' of the result");
  CHECK(error_of([] {
          ts::einsum_flops("ij,jk->ik", {{'i', 1}, {'j', 2}});
        }) == "einsum \"ij,jk->ik\": no size for 'k'; give one to every letter");
  CHECK(error_of([] {
          ts::einsum_flops("ij,jk->ik", {{'i', 2}, {'j', 3}, {'k', 4}, {'j', 5}});
        }) == "einsum \"ij,jk->ik\": sizes 3 and 5 for 'j'; one is right");
  const ts::Machine slice = ts::machine("tpu-v5e", {4, 4}), gpus = ts::machine("h100", {8});
  CHECK(error_of([&] {
          ts::hops_between(slice, {0, 0}, {4, 0});
        }) == "hops_between: no chip at [4, 0] of tpu-v5e 4x4; its dimensions are [4, 4]");
  CHECK(error_of([] { ts::slowest_stage({}); }) ==
        "slowest_stage: no stages; one time for each level is right");
  CHECK(error_of([] { ts::collective_limit(Collective::broadcast, 1, {}); }) ==
        "collective_latency: no limit for broadcast; all_gather, reduce_scatter, all_reduce and "
        "all_to_all have one");
  CHECK(error_of([] { ts::collective_limit(Collective::all_gather, 1, {}); }) ==
        "collective_latency: no axes; links_along(machine, {0}) gives the links of dimension 0");
  CHECK(error_of(
            [&] { ts::collective_limit(Collective::all_gather, 1, ts::links_along(gpus, {0})); }) ==
        "collective_latency: an axis of 8 chips is switched; a ring or a line is right, and "
        "switches have switch_gather_time");
  CHECK(error_of([&] { ts::node_intensity(gpus); }) ==
        "node_intensity: h100-sxm 8 is one node; {nodes, 8} has a network between");
  CHECK(error_of([&] { ts::gather_traffic(1, ts::fat_tree(gpus)); }) ==
        "gather_traffic: 1 levels; a node and the network above it are right, "
        "fat_tree(machine(\"h100\", {4, 8}))");
  CHECK(error_of([] { ts::collective_limit(Collective::all_gather, 1, {ring_of(4, 0)}); }) ==
        "collective_transfer: W (of a link) is 0; a finite number above 0 is right");
  CHECK(ts::hidden_for_wide_ways(ts::link_intensity(v5e), 4).value() == 0);
  CHECK(error_of([] { ts::switch_gather_time(1, {}); }) ==
        "switch_gather_time: 0 levels; one at least is right, fat_tree(machine(\"h100\", {8}))");
  const ts::ServedModel m = book::llama70b(DType::int8);
  CHECK(error_of([&] { ts::sequences_that_fit(m, 8192, 4, v5e); }) ==
        "sequences_that_fit: weights of 70 GB on 4 chips of 16 GB; 5 chips would hold them");
}
