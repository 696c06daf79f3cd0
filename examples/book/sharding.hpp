#pragma once
// Chapter 3 (sharded matrices), and the questions of chapters 9 and 10 on shards.
#include "cases.hpp"

namespace book {

using ts::Collective;

inline ts::Sharded shard_of(const ts::Machine& machine, const ts::List<ts::MeshAxis>& axes,
                            const ts::Shape& shape, const char* sharding, ts::DType format) {
  return ts::Mesh(machine, axes).shard(shape, sharding, format);
}

inline void shards(Answers& out) {
  const ts::Sharded a = shard_of(ts::machine("tpu-v5e", {8, 2}), {{"X", 8}, {"Y", 2}}, {1024, 4096},
                                 "I_{X,Y}, J", ts::DType::f32);
  out.add("S01", Quantity(a.bytes(), "B"));
  ts::Chip h100 = ts::chip("h100");
  h100.memory_bandwidth = 3.4e12;
  out.add("S02", h100, [=](const ts::Chip& c) { return ts::transfer_time(a.bytes(), c); });
  const ts::Machine v4 = ts::machine("tpu-v4", {2, 8, 2});
  const ts::Sharded b =
      shard_of(v4, {{"X", 2}, {"Y", 8}, {"Z", 2}}, {128, 2048}, "I_{X,Y}, J", ts::DType::int8);
  out.add("S03", Quantity(b.bytes(), "B"));
  const ts::Sharded c = shard_of(ts::machine("tpu-v4", {4, 8, 2}), {{"X", 4}, {"Y", 8}, {"Z", 2}},
                                 {64, 64}, "I_X, J", ts::DType::bf16);
  out.add("S13", Quantity(c.replicas()));
}

// The sum of the links of a row of the cube of question 2: B 1024, D 4096 on a v4p 4x4x4.
inline void cube(Answers& out) {
  const ts::Chip v4 = book_chip("tpu-v4");
  const auto ask = [&](const char* id, Collective what, double bytes, std::vector<int> dims) {
    out.add(id, v4, [=](const ts::Chip& c) {
      return ts::collective_limit(what, bytes, ts::links_along(ts::machine(c, {4, 4, 4}), dims));
    });
  };
  const ts::Mesh mesh(ts::machine(v4, {4, 4, 4}), {{"X", 4}, {"Y", 4}, {"Z", 4}});
  const ts::Shape shape = {1024, 4096};
  const double gathered = mesh.shard(shape, "B, D_Y", ts::DType::bf16).bytes();
  const double held = mesh.shard(shape, "B_X, D_Y", ts::DType::bf16).bytes();
  ask("S14", Collective::all_gather, gathered, {0});
  ask("S16", Collective::all_reduce, held, {2});
  ask("S17", Collective::all_gather, gathered, {0, 2});
}

inline void rings(Answers& out) {
  const ts::Chip v5e = book_chip("tpu-v5e");
  out.add("S06", ts::ring_hops(8));
  out.add("S07", v5e, [](const ts::Chip& c) {
    return ts::latency_bound_hop(ts::links_along(ts::machine(c, {16, 16}), {0})[0]);
  });
  out.add("S12", v5e, [](const ts::Chip& c) {
    return ts::collective_latency(Collective::all_gather,
                                  ts::links_along(ts::machine(c, {4, 4}), {0}));
  });
  const double numbers = 1024.0 * 1024;
  out.add("S34", ts::link_volume(Collective::all_to_all, numbers, 8, false, ""));
  out.add("S35", ratio(ts::link_volume(Collective::all_to_all, numbers, 8, false),
                       ts::link_volume(Collective::all_gather, numbers, 8, false)));
  const ts::List<ts::AxisPart> ring = ts::links_along(ts::machine(v5e, {16, 16}), {0});
  out.add("S36", ratio(ts::collective_transfer(Collective::all_to_all, 1e9, ring),
                       ts::collective_transfer(Collective::all_gather, 1e9, ring)));
  const ts::Machine cube = ts::machine("tpu-v4", {4, 4, 4});
  const Quantity v(1e9, "B"), w = ts::bandwidth_of(cube.chip, ts::Channel::link_both_ways);
  out.add("S37", ratio(ts::collective_transfer(Collective::all_to_all, v.value(),
                                               ts::links_along(cube, {0, 1, 2})),
                       v / w));
}

// Question 4: [B, D] x [D_X, F]: gather the weights, or sum the results.
inline void gather_or_sum(Answers& out) {
  const ts::Machine pod = ts::machine(book_chip("tpu-v5p"), {4, 4, 4});
  const ts::List<ts::AxisPart> axis = ts::links_along(pod, {0});
  bool rule = true;
  for (const double b : {256.0, 1024.0, 2048.0}) {    // below 2550 rows: bound by the links
    for (const double part : {0.5, 0.9, 1.1, 2.0}) {  // of 2 B
      const double d = 2 * b * part;
      const ts::InnerCut t = ts::inner_cut({b, d, 8192}, pod.chip, axis);
      rule = rule && (t.reduce_comms.value() < t.gather_comms.value()) == (d > 2 * b);
    }
  }
  out.category("S22", when(rule, "D > 2B"));
  out.add("S23", pod.chip, [](const ts::Chip& c) { return ts::reduce_threshold(c); });
  const ts::Machine cube = ts::machine(book_chip("tpu-v4"), {4, 4, 4});
  const ts::List<ts::AxisPart> all = ts::links_along(cube, {0, 1, 2});
  bool costs = true, same = true;
  double by_row = 0;
  for (const double bytes : {1e8, 1e9}) {  // of the product I, K
    const double gather = ts::collective_transfer(Collective::all_gather, bytes, all).value();
    const double sum = ts::collective_transfer(Collective::all_reduce, bytes, all).value();
    by_row = bytes / (3 * cube.egress(0));
    same = same && near(gather, by_row);  // I or K over XYZ: the same bytes to gather
    costs = costs && near(sum, 2 * gather);
  }
  out.category("S24", std::string(same ? "AG options tie" : "AG options differ") + ", AR costs " +
                          (costs ? "2x" : "not 2x"));
  bool inverse = true;
  for (const double m : {1024.0, 4096.0}) {
    for (const double k : {512.0, 8192.0}) {
      const double n = 2048;
      const double a = ts::collective_transfer(Collective::all_gather, n * m, axis).value();
      const double c = ts::collective_transfer(Collective::reduce_scatter, n * k, axis).value();
      inverse = inverse && near(a / c, m / k);
    }
  }
  out.category("S32", when(inverse, "M/K"));
}

inline void matmuls(Answers& out) {
  const ts::Mesh mesh(ts::machine("tpu-v4", {4, 4}), {{"X", 4}, {"Y", 4}});
  const ts::Sharded a = mesh.shard(ts::Shape{1024, 4096}, "I_X, J", ts::DType::bf16);
  const ts::Sharded b = mesh.shard(ts::Shape{4096, 8192}, "J, K_Y", ts::DType::bf16);
  const ts::Sharded c = ts::matmul(a, b, "I_X, K_Y");
  out.add("S27", Quantity(c.explain().comms_seconds, "s"));
  out.add("S31", book_chip("tpu-v5e"), [](const ts::Chip& chip) {
    return ts::math_time(2 * ts::matmul_flops({128, 8192, 32768}).value(), chip, ts::DType::bf16,
                         4);
  });
}

inline std::string shape_text(const ts::Shape& shape) {
  std::string text = "[";
  for (int i = 0; i < shape.size(); ++i) {
    text += (i > 0 ? "," : "") + std::to_string(shape[i]);
  }
  return text + "]";
}

// Which collectives a product calls.
inline std::string calls_of(const ts::Sharded& c) {
  std::string calls;
  for (const ts::ShardedStep& step : c.explain().steps) {
    calls += (calls.empty() ? "" : ", ") + step.name + " " + step.axes;
  }
  return calls;
}

inline void books_meshes(Answers& out) {
  const ts::Mesh mesh(ts::machine("tpu-v5e", {4, 2}), {{"X", 4}, {"Y", 2}});
  const auto make = [&](const ts::Shape& shape, const char* sharding) {
    return mesh.shard(shape, sharding, ts::DType::bf16);
  };
  const ts::Sharded in = make({8, 2048}, "I_X, J_Y");
  out.category("S39", "A" + shape_text(in.local_shape()) + "; B" +
                          shape_text(make({2048, 8192}, "J, K_Y").local_shape()));
  const ts::Sharded w = make({2048, 8192}, "J_Y, K");
  const ts::Sharded sum = ts::matmul(in, w, "{U_Y} I_X, K");  // before it is summed
  const std::string reduce = calls_of(ts::reshard(sum, "I_X, K"));
  const std::string scatter = calls_of(ts::reshard(sum, "I_X, K_Y"));
  out.category("J03", std::string(reduce == "all_reduce Y" ? "AllReduce over Y" : reduce) +
                          "; local In" + shape_text(in.local_shape()) + ", partial out " +
                          shape_text(sum.local_shape()));
  // Both ends can be asked for, and none is the only one: the caller has to say which.
  out.category("J04", std::string("error; choose P(X,Y)=") +
                          (scatter == "reduce_scatter Y" ? "ReduceScatter" : scatter) +
                          " or P(X,-)=" + (reduce == "all_reduce Y" ? "AllReduce" : reduce));
  const ts::Mesh eight(ts::machine("tpu-v5e", {8}), {{"X", 8}});
  const ts::Sharded whole = eight.shard(ts::Shape{32768, 8192}, "D_X, F", ts::DType::bf16);
  const bool local = whole.local_shape() == ts::Shape({4096, 8192});
  out.category("P05",
               when(local, std::to_string(whole.shape[0]) + "x" + std::to_string(whole.shape[1])));
}

// x = arange(512) over 8 devices; each takes its first 4, and all take the mean: really run.
inline void mean_of_shards(Answers& out) {
  const ts::Mesh mesh(ts::machine("tpu-v5e", {8}), {{"x", 8}});
  ts::MeshRun run = mesh.run([](ts::Device& device) {
    ts::Tensor mine = ts::full({4}, 0.0f);
    for (int i = 0; i < 4; ++i) {
      mine.data()[i] = static_cast<float>(64 * device.rank() + i);
    }
    device.keep("mean", device.all_reduce(mine, "x", ts::Reduce::mean));
  });
  const ts::Tensor mean = run.kept(0, "mean");
  std::string text = "[";
  for (int i = 0; i < 4; ++i) {
    text += ts::detail::cat({i > 0 ? "," : "", mean.data()[i]});
  }
  out.category("J02", text + "]");
}

inline void chapter3(Answers& out) {
  shards(out);
  cube(out);
  rings(out);
  gather_or_sum(out);
  matmuls(out);
  books_meshes(out);
  mean_of_shards(out);
}

}  // namespace book
