#pragma once
// Chapter 12 (GPUs).
#include "transformer.hpp"

namespace book {

inline void units(Answers& out) {
  const ts::Chip h100 = book_chip("h100");
  ts::Chip base = h100, boost = h100;
  base.clock_hz = 1.59e9, boost.clock_hz = 1.98e9;
  const auto rate = [](bool fused) {
    return [=](const ts::Chip& c) { return ts::vector_rate(ts::gpu_vector_units(c), fused); };
  };
  out.add("U03", h100,
          [](const ts::Chip& c) { return ts::register_bytes(ts::gpu_vector_units(c)); });
  out.add("U09", base, rate(false));
  out.add("U10", boost, rate(false));
  out.add("U91", boost, rate(true));
  ts::Chip plain = h100;
  plain.flops_bf16 = 990e12, plain.vector_flops = 16896 * 1.98e9;
  plain.vector_flops = rate(false)(boost).value();
  out.add("U11", plain,
          [](const ts::Chip& c) { return ts::matrix_over_vector(c, ts::DType::bf16); });
  ts::Chip shared = h100;
  shared.sram_bytes = 132 * 256 * 1024.0;
  out.add("U19", shared,
          [](const ts::Chip& c) { return ts::scratch_bytes(ts::gpu_vector_units(c)); });
  out.add("U20", book_chip("b200"),
          [](const ts::Chip& c) { return ts::clock_of_rate(ts::gpu_vector_units(c), 80e12); });
}

inline void intensities(Answers& out) {
  const ts::Chip b200 = book_chip("b200");
  out.add("U13", b200,
          [](const ts::Chip& c) { return ts::critical_intensity(c, ts::DType::bf16); });
  out.add("U15", b200,
          [](const ts::Chip& c) { return ts::critical_intensity(c, ts::DType::fp8_e4m3); });
  out.add("U16", ts::matmul_bytes({64, 4096, 8192}, ts::all_in(ts::DType::f16)));
  out.add("U21", ts::elementwise_intensity(1, 3, ts::DType::f32));
  out.add("U23", book_chip("h100"), [](const ts::Chip& c) {
    return ts::transfer_time(ts::elementwise_bytes(65536, 3, ts::DType::f32).value(), c);
  });
  ts::Chip h200 = ts::chip("h200");
  h200.flops_bf16 = 9.9e14;
  out.add("U86", h200, [](const ts::Chip& c) {
    return ratio(ts::peak_rate(c, ts::DType::bf16),
                 ts::peak_rate(ts::chip("tpu-v5p"), ts::DType::bf16));
  });
}

// Levels of a machine of the row's chip: {nodes, 8}, or {units, nodes, 8}.
inline void of_levels(Answers& out, const char* id, const ts::Chip& chip, const ts::Shape& dims,
                      const std::function<Quantity(const ts::List<ts::FatTreeLevel>&)>& f) {
  out.add(id, chip, [=](const ts::Chip& c) { return f(ts::fat_tree(ts::machine(c, dims))); });
}

inline void network(Answers& out) {
  using Levels = ts::List<ts::FatTreeLevel>;
  const ts::Chip h100 = book_chip("h100");
  const ts::Shape node = {8}, pod = {4, 32, 8};
  out.add("U28", ts::switch_bandwidth({4, 64, 25e9}));
  out.add("U35", ts::switch_bandwidth({8, 32, 400e9 / 8}));
  of_levels(out, "U30", h100, node, [](const Levels& l) { return ts::bisection_bandwidth(l[0]); });
  const double v = 2.0 * 4096 * 65536, quiz = 2.0 * 1024 * 16384;
  of_levels(out, "U31", h100, node, [=](const Levels& l) { return ts::switch_gather_time(v, l); });
  of_levels(out, "U32", h100, node,
            [=](const Levels& l) { return ts::switch_gather_time(v, l, 1, false); });
  of_levels(out, "U41", h100, node,
            [=](const Levels& l) { return ts::switch_gather_time(quiz, l, 1, false); });
  of_levels(out, "U47", h100, pod, [](const Levels& l) { return l[2].gathering; });
  of_levels(out, "U48", h100, pod, [](const Levels& l) { return ts::gather_bandwidth(l); });
  of_levels(out, "U57", h100, {2, 8}, [](const Levels& l) { return l[0].gathering; });
  of_levels(out, "U51", h100, {128, 8}, [](const Levels& l) {
    return ts::switch_gather_time(2.0 * 8192 * 32768, l, 16, false);
  });
  out.add("U43", ts::ragged_share(4, 8));
  out.add("U88", ts::expected_ragged_share(8, 64));
}

inline void exchanges(Answers& out) {
  const ts::Chip h100 = book_chip("h100");
  const double v = 1e9;
  const ts::List<ts::FatTreeLevel> node = ts::fat_tree(ts::machine(h100, {8}));
  // A ring of 8 TPU chips whose links both ways are what a GPU's port sends.
  ts::AxisPart ring;
  ring.size = 8, ring.kind = ts::AxisKind::ring, ring.bandwidth = node[0].part.value() / 2;
  out.add("U44", ratio(ts::collective_transfer(ts::Collective::all_to_all, v, {ring}),
                       ts::switch_exchange_time(v, node, false)));
  const ts::List<ts::FatTreeLevel> two = ts::fat_tree(ts::machine(h100, {2, 8}));
  out.add("U96", ratio(ts::switch_exchange_time(v, two), ts::switch_exchange_time(v, node)));
  bool traffic = true, shared = true, lost = true;
  for (const std::int64_t m : {4, 32}) {
    const ts::List<ts::FatTreeLevel> unit = ts::fat_tree(ts::machine(h100, {m, 8}));
    const ts::GatherTraffic t = ts::gather_traffic(v, unit);
    const double nodes = static_cast<double>(m);
    traffic = traffic && near(t.node_in.value(), v) && near(t.node_out.value(), 8 * v) &&
              near(t.leaf_in.value(), v) && near(t.leaf_out.value(), v * (nodes - 1)) &&
              near(t.time.value(), v * (nodes - 1) / (nodes * 400e9)) &&
              near(ts::in_switch_traffic(v, unit[0]).value(), 8 * v);
    for (const double y : {2.0, 4.0}) {
      shared = shared && near(ts::switch_reduce_time(v, node, y, true).value(), v / (y * 450e9));
      lost = lost && near(ts::switch_reduce_time(v, unit, y, true).value(), v / 400e9);
    }
  }
  out.category("U53", when(traffic,
                           "node switch in B, out NB; spine in B, out B(M-1); "
                           "T=B(M-1)/(M*400e9)"));
  out.category(
      "U55", when(shared, "2DF/(Y*W_link)") + "; " + when(lost, "across nodes the Y gain is lost"));
  const ts::SwitchCounts small = ts::switch_counts(2048), large = ts::switch_counts(4096);
  out.category("U40", ts::detail::cat({small.units, " SUs + ", small.spines, " spines with ",
                                       small.cables_leaf_spine, " cable each; ", large.spines,
                                       " spine + ", large.cores, " core"}));
}

// Chips with the book's 990 TFLOP/s; `nodes` of 8.
inline void gpu_limits(Answers& out) {
  ts::Chip h100 = book_chip("h100"), h800 = h100;
  h800.link_bandwidth = 300e9 / h800.links;
  const auto across = [](const ts::Chip& c) { return ts::node_intensity(ts::machine(c, {2, 8})); };
  const auto inside = [](const ts::Chip& c) { return ts::data_limit(ts::link_intensity(c)); };
  out.add("U63", h800, inside);
  out.add("U64", h800, [=](const ts::Chip& c) { return ts::batch_at(inside(c), 2048); });
  out.add("U66", h100, [=](const ts::Chip& c) { return ts::data_limit_of_few(across(c), 2); });
  out.add("U67", h100,
          [](const ts::Chip& c) { return ts::tensor_ways(ts::link_intensity(c), 28000); });
  out.add("U71", ts::tokens_per_chip(15360 * 4096.0, 2048));
  out.add("U73", ts::tokens_per_chip(16 * 1048576.0, 16384));
  out.add("U76", book_chip("b200"), [=](const ts::Chip& c) { return ts::data_limit(across(c)); });
  out.add("U77", h100,
          [](const ts::Chip& c) { return ts::ceil(ts::chips_for(ts::state_bytes(70e9), c)); });
  out.add("U79", h100,
          [](const ts::Chip& c) { return ts::tensor_ways(ts::link_intensity(c), 28672); });
  out.add("U82", h100,
          [=](const ts::Chip& c) { return ts::data_limit_of_wide_models(across(c), 8); });
  out.add("U83-16B", ts::tokens_per_chip(192 * 4096.0, 192));
  out.add("U83-314B", ts::tokens_per_chip(1536 * 4096.0, 3072));
  out.add("U84", h100,
          [=](const ts::Chip& c) { return ts::data_limit_of_wide_models(across(c), 2); });
  out.add("U85", h100,
          [=](const ts::Chip& c) { return ts::data_limit_of_wide_models(across(c), 8); });
  ts::Chip gb200 = ts::chip("gb200");
  gb200.flops_bf16 = 2.25e15;
  out.add("U92", gb200, [=](const ts::Chip& c) {
    return ratio(across(book_chip("h100")), ts::node_intensity(ts::machine(c, {2, 72})));
  });
}

inline void pipelines(Answers& out) {
  ts::PipelineShape shape;
  shape.kind = ts::PipelineKind::gpipe;
  shape.ranks = 2, shape.microbatches = 2;
  ts::WorkTimes times;
  times.forward = 1, times.backward = 2;
  const double busy = shape.microbatches * (times.forward + times.backward);
  out.add("U89", Quantity(busy + ts::pipeline_idle(shape, times)));
  const Quantity w(450e9, "B/s", "W");
  const double tokens = 1e6, width = 8192;
  out.add("U90", ratio(ts::stage_transfer_time(tokens, width, 8, 4, w),
                       ts::activation_bytes(tokens, width) / w));
  const ts::Mesh node(ts::machine("h100", {8}), {{"Y", 8}});
  out.add("U93",
          Quantity(node.shard(ts::Shape{8192, 28672}, "D, F_Y", ts::DType::bf16).bytes(), "B"));
}

inline void chapter12(Answers& out) {
  units(out);
  intensities(out);
  network(out);
  exchanges(out);
  gpu_limits(out);
  pipelines(out);
}

}  // namespace book
