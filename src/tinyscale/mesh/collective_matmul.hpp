#pragma once
// Collective matmul: a chunk is multiplied while the next one travels to the neighbour.
// Instead of an all_gather of an operand its N chunks go around the axis; instead of a
// reduce_scatter of the product the sums of its N blocks do, each device adding its share.
//   T = t_math + (N - 1) max(t_math, t_hop) for a chunk, beside T_collective + N t_math.

#include <algorithm>  // max
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tinyscale/mesh/device.hpp"
#include "tinyscale/mesh/sharded_matmul.hpp"

namespace tinyscale {
namespace detail {

// What goes around one axis: the chunks of a or b, or blocks of the product that sums grow in. Of
// the others the chunk belongs to a part along a dim, or to all (-1).
struct ChunkedMatmul {
  enum class What { none, a, b, product };
  What what = What::none;
  MatmulWay whole;  // the same with one collective
  AxisMove move;
  int a_dim = -1, b_dim = -1, product_dim = -1;
};

// Of the ways to run it the best that is one all_gather or one reduce_scatter over one axis.
inline ChunkedMatmul chunked(const ShardedMatmul& m, const AxisPlaces& goal) {
  using What = ChunkedMatmul::What;
  const int inner = m.a.shape.size();  // the place of J in a, of K in the product
  ChunkedMatmul out;
  const MatmulWays all(m, goal);
  for (const MatmulWay& way : all.ways) {
    const List<AxisMove>& moves = !way.a.empty() ? way.a : !way.b.empty() ? way.b : way.product;
    const bool sums = way.a.empty() && way.b.empty();
    if (way.moves != 1 || is_slice(moves[0]) || moves[0].axes.size() != 1 ||
        collective_of(moves[0]) != (sums ? Collective::reduce_scatter : Collective::all_gather)) {
      continue;
    }
    out.whole = way;
    out.move = moves[0];
    if (sums) {
      out.what = What::product;
      (out.move.to == inner ? out.b_dim : out.a_dim) = out.move.to == inner ? 1 : out.move.to - 1;
    } else if (!way.a.empty()) {
      out.what = What::a;
      (out.move.from == inner ? out.b_dim : out.product_dim) =
          out.move.from == inner ? 0 : out.move.from - 1;
    } else {
      out.what = What::b;
      (out.move.from == 1 ? out.a_dim : out.product_dim) = inner - 1;
    }
    return out;
  }
  return out;
}

inline Tensor chunk_of(const Tensor& x, int dim, int n, int c) {
  return dim < 0 ? x : part_of(x, dim, n, c);
}

// The share of each device of a group, of the ranks `members`. A chunk that travels is read where
// it started; a sum that travels is added to in the order of the devices on its way. Gives how many
// numbers went from one device to the next.
inline std::int64_t run_chunks(const ShardedMatmul& m, const ChunkedMatmul& way, const Shape& local,
                               const std::vector<std::size_t>& members, List<Tensor>& shards) {
  const bool sums = way.what == ChunkedMatmul::What::product;
  const int n = static_cast<int>(members.size());
  std::int64_t went = 0;
  for (int i = 0; i < n; ++i) {
    const std::size_t own = members[static_cast<std::size_t>(i)];
    shards[own] = full(local, 0.0f);
    for (int step = 0; step < n; ++step) {
      const int from = (i + step + (sums ? 1 : 0)) % n, chunk = sums ? i : from;
      const std::size_t other = members[static_cast<std::size_t>(from)];
      const DeviceScope scope(static_cast<int>(sums ? other : own));
      const Tensor& a = m.a.shards[way.what == ChunkedMatmul::What::b ? own : other];
      const Tensor& b = m.b.shards[way.what == ChunkedMatmul::What::a ? own : other];
      add_(chunk_of(shards[own], way.product_dim, n, chunk),
           matmul(chunk_of(a, way.a_dim, n, chunk), chunk_of(b, way.b_dim, n, chunk)));
      const Tensor& moved = sums ? shards[own] : way.what == ChunkedMatmul::What::a ? a : b;
      went += other == own ? 0 : moved.count();
    }
  }
  return went;
}

// `went`: numbers, between all devices.
inline void report_chunks(const ShardedMatmul& m, const ChunkedMatmul& way, const Sharded& out,
                          std::int64_t went, ShardedReport& report) {
  const char* const names[] = {"", "a", "b", "product"};
  const std::string name = names[static_cast<int>(way.what)];
  const PlacedMesh& mesh = m.mesh();
  const Sharded& array = way.whole.a.size() > 0 ? m.a : way.whole.b.size() > 0 ? m.b : out;
  const std::int64_t chunk = array.local_shape().count();
  CollectiveSpec hop = spec_of(mesh, Collective::permute, way.move.axes, chunk, array.format);
  const int n = hop.devices();
  hop.root = way.what == ChunkedMatmul::What::product ? 1 : n - 1;
  const AlgorithmChoice choice = choose_algorithm(hop);
  const std::string text = array.sharding.text();
  const ShardedStep step = {cat({"permute chunk of ", name, ", ", n - 1, " times"}),
                            axes_text(mesh, way.move.axes),
                            text,
                            text,
                            name_of(choice.algorithm),
                            static_cast<double>((n - 1) * chunk) * bytes_of(array.format),
                            static_cast<double>(went) / mesh.devices() * bytes_of(array.format),
                            (n - 1) * choice.seconds};
  report.steps.push_back(step);
  report.bytes = step.bytes;
  report.comms_seconds = step.seconds;
  ShardedCandidate whole = way.whole.cost;
  report.math_seconds = whole.math_seconds;
  const double math = whole.math_seconds / n;  // of a chunk
  const ShardedCandidate chunks = {"chunk by chunk, the next on its way", whole.math_seconds,
                                   step.seconds, step.bytes,
                                   math + (n - 1) * std::max(math, choice.seconds)};
  const std::string collective = name_of(collective_of(way.move)) + (" " + name);
  whole.calls = way.move.from == 0 ? "matmul, then " + collective : collective + ", then matmul";
  whole.seconds = whole.math_seconds + whole.comms_seconds;
  const bool shorter = chunks.seconds <= whole.seconds;
  report.candidates.push_back(shorter ? chunks : whole);
  report.candidates.push_back(shorter ? whole : chunks);
  report.reason = cat({n, " chunks; ", math < choice.seconds ? "their way" : "their product",
                       " takes longer, ", format_seconds(std::max(math, choice.seconds)),
                       " each: ", format_seconds(chunks.seconds), " in all, ",
                       format_seconds(whole.seconds), " with one collective"});
}

}  // namespace detail

// matmul(a, b, sharding) where that takes one all_gather of an operand or one reduce_scatter of the
// product over one axis, run chunk by chunk; sums are in the order of the chunks.
inline Sharded collective_matmul(const Sharded& a, const Sharded& b, const std::string& sharding) {
  const detail::ShardedMatmul m = detail::matmul_of("collective_matmul", a, b);
  const Sharding wanted = parse_sharding(sharding);
  detail::check_same_names("collective_matmul", {{}, m.dims}, wanted);
  const detail::AxisPlaces goal = detail::places_of(*a.mesh, wanted, m.shape);
  const detail::ChunkedMatmul way = detail::chunked(m, goal);
  Sharded out = detail::like(a, m.shape, wanted);
  if (way.what == detail::ChunkedMatmul::What::none) {
    detail::fail({"collective_matmul: ", a.text(), " ", b.text(), " -> ", out.text(),
                  "; what takes one all_gather or reduce_scatter over one axis is right, as ",
                  "[I_x, J] [J, K] -> [I, K]; else use matmul"});
  }
  out.shards.resize(a.shards.size());
  std::int64_t went = 0;
  for (int rank = 0; rank < out.devices() && !a.shards.empty(); ++rank) {
    if (detail::shard_index(*a.mesh, way.move.axes, rank) == 0) {
      went += detail::run_chunks(m, way, out.local_shape(),
                                 detail::group_of(*a.mesh, way.move.axes, rank), out.shards);
    }
  }
  ShardedReport report;
  detail::report_chunks(m, way, out, went, report);
  report.title = detail::matmul_title("collective_matmul", m, out);
  detail::finish(out, report);
  return out;
}

// x [I_axis, J] w [J, K] -> [I, K] in the program of a device, which has a share of x's rows and
// the whole of w: the next rows are on their way while these are multiplied. Carries gradients.
inline Tensor collective_matmul(Device& device, const Tensor& x, const Tensor& w,
                                const std::string& axis,
                                SourceLine where = {__builtin_FILE(), __builtin_LINE()}) {
  detail::check_given("collective_matmul", x);
  detail::check_given("collective_matmul", w);
  const int found = device.endpoint().find_axis("collective_matmul", axis);
  const int n = device.endpoint().size_of(found), me = device.endpoint().index_on(found);
  std::vector<Tensor> rows(static_cast<std::size_t>(n));
  Tensor chunk = x;
  for (int step = 0; step < n; ++step) {
    Pending next;
    if (step + 1 < n) {
      next = device.start_permute(chunk, axis, -1, CollectiveOptions(), where);
    }
    rows[static_cast<std::size_t>((me + step) % n)] = matmul(chunk, w);
    if (step + 1 < n) {
      chunk = next.wait();
    }
  }
  return concat(rows, 0);
}

}  // namespace tinyscale
