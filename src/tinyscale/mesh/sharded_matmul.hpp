#pragma once
// Matmuls of sharded arrays: the four cases of the scaling book (chapter 3).
//   1  J whole in both: no collective      2  J cut in one: gather it, or sum what there is
//   3  J cut in both: a partial sum {U_x}  4  I and K cut over one axis: gather one of them
// Every way to give each mesh axis to a dim, to the sum or to nothing is a candidate: move a and b
// there, multiply, move the product; the one with the least max(T_math, T_comms) runs.

#include <algorithm>  // max
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tinyscale/mesh/sharded_ops.hpp"
#include "tinyscale/tensor/matmul.hpp"

namespace tinyscale {
namespace detail {

// A product a [.., J] b [J, K] -> [.., K].
struct ShardedMatmul {
  Sharded a, b;
  Shape shape;                      // of the product
  List<ShardedDim> dims;            // its names
  AxisPlaces natural;               // what it is when nothing moves
  std::string inner, cut_a, cut_b;  // dim J, and how each operand has it cut

  const PlacedMesh& mesh() const { return *a.mesh; }
  double math_seconds(const AxisPlaces& product, const std::string& cut) const {
    Shape local = shape;
    local_shape_of(mesh(), product, local);
    const double k = static_cast<double>(b.shape[0] / shard_count(mesh(), cut));
    const double rate = matmul_rate(mesh().machine.chip, a.format);
    return rate > 0 ? 2.0 * static_cast<double>(local.count()) * k / rate : 0;
  }
};

// A way to run it: where a, b and the product are when each device multiplies.
struct MatmulWay {
  AxisPlaces a, b, product;
  std::string cut;  // of J
  double math_seconds = 0, comms_seconds = 0, bytes = 0;
  int moves = 0;

  double seconds() const { return std::max(math_seconds, comms_seconds); }
};

inline ShardedMatmul matmul_of(const char* function, const Sharded& a, const Sharded& b) {
  check_one_mesh(function, a, b);
  ShardedMatmul m;
  m.a = a;
  m.b = b;
  const std::size_t rows = a.sharding.dims.size() - (a.sharding.dims.empty() ? 0 : 1);
  if (a.sharding.dims.empty() || b.sharding.dims.size() != 2 ||
      a.sharding.dims[rows].name != b.sharding.dims[0].name || a.shape[-1] != b.shape[0]) {
    fail({function, ": ", a.text(), " of shape ", a.shape, " times ", b.text(), " of shape ",
          b.shape, "; [.., J] times [J, K] is right, J of one name and size"});
  }
  m.inner = b.sharding.dims[0].name;
  const AxisPlaces pa = a.places();
  const AxisPlaces pb = b.places();
  m.cut_a = pa.back();
  m.cut_b = pb[1];
  for (std::size_t d = 0; d < rows; ++d) {
    m.shape.push_back(a.shape[static_cast<int>(d)]);
    m.dims.push_back(a.sharding.dims[d]);
  }
  m.shape.push_back(b.shape[1]);
  m.dims.push_back(b.sharding.dims[1]);
  m.natural = pa;
  m.natural.back() = pb[2];
  m.natural[0] = rising_union(pa[0], pb[0]);
  if (m.cut_a == m.cut_b) {
    m.natural[0] = rising_union(m.natural[0], m.cut_a);
  }
  return m;
}

inline std::string matmul_case(const ShardedMatmul& m) {
  const std::string& j = m.inner;
  if (used_twice(m.natural) != 0) {
    return "case 4: one axis cuts dims of both operands, which must be gathered in one of them";
  }
  if (m.cut_a.empty() && m.cut_b.empty()) {
    return "case 1: " + j + " is whole in both";
  }
  if (m.cut_a == m.cut_b) {
    return "case 3: " + j + " is cut over " + axes_text(m.mesh(), m.cut_a) +
           " in both, so a device's product is a summand";
  }
  return "case 2: " + j + " is cut over " +
         axes_text(m.mesh(), m.cut_a.empty() ? m.cut_b : m.cut_a) +
         (m.cut_a.empty() || m.cut_b.empty()
              ? std::string(" in one")
              : " in one and over " + axes_text(m.mesh(), m.cut_b) + " in the other") +
         ", so gather it, or slice and sum";
}

// The letters of a place in the order that an operand has, then one that is wanted, then the mesh.
inline std::string in_order(const std::string& letters, const std::string& first,
                            const std::string& second) {
  std::string out;
  for (const std::string& source : {first, second, letters}) {
    for (const char letter : source) {
      if (letters.find(letter) != std::string::npos && out.find(letter) == std::string::npos) {
        out += letter;
      }
    }
  }
  return out;
}

class MatmulWays {
 public:
  MatmulWays(const ShardedMatmul& product, const AxisPlaces& goal, Detours detours)
      : m(product),
        goal_(goal),
        a(m.mesh(), m.a.shape, m.a.format, m.a.places(), Direction::forwards, detours),
        b(m.mesh(), m.b.shape, m.b.format, m.b.places(), Direction::forwards, detours),
        out(m.mesh(), m.shape, m.a.format, goal, Direction::backwards, detours) {
    const std::size_t dims = goal.size() - 1;
    std::vector<std::size_t> role(m.mesh().axes.size());  // 0 idle, dims, J, summand of a, of b
    std::size_t axis = 0;
    while (axis < role.size()) {
      try_roles(role, false);
      try_roles(role, true);
      for (axis = 0; axis < role.size() && ++role[axis] == dims + 4; ++axis) {
        role[axis] = 0;
      }
    }
  }

  const ShardedMatmul& m;
  List<MatmulWay> ways;  // the cheapest first

 private:
  void try_roles(const std::vector<std::size_t>& role, bool goal_first) {
    const std::size_t dims = goal_.size() - 1;
    const AxisPlaces pa = m.a.places();
    const AxisPlaces pb = m.b.places();
    AxisPlaces sets(dims + 4);
    for (std::size_t i = 0; i < role.size(); ++i) {
      sets[role[i]] += m.mesh().letters()[i];
    }
    if (rising_union(sets[dims + 2], pa[0]) != pa[0] ||
        rising_union(sets[dims + 3], pb[0]) != pb[0]) {
      return;  // only what is a summand can stay one
    }
    MatmulWay way;
    way.cut =
        in_order(sets[dims + 1], goal_first ? m.cut_b : m.cut_a, goal_first ? m.cut_a : m.cut_b);
    way.product.push_back(rising_union(sets[dims + 1], sets[dims + 2] + sets[dims + 3]));
    for (std::size_t d = 1; d <= dims; ++d) {
      const std::string& own = d < dims ? pa[d] : pb[2];
      way.product.push_back(
          in_order(sets[d], goal_first ? goal_[d] : own, goal_first ? own : goal_[d]));
    }
    way.a = way.product;
    way.a[0] = sets[dims + 2];
    way.a.back() = way.cut;
    way.b = {sets[dims + 3], way.cut, way.product.back()};
    const Reached* const ra = a.find(way.a);
    const Reached* const rb = b.find(way.b);
    const Reached* const rc = out.find(way.product);
    if (ra == nullptr || rb == nullptr || rc == nullptr) {
      return;
    }
    way.math_seconds = m.math_seconds(way.product, way.cut);
    way.comms_seconds = ra->seconds + rb->seconds + rc->seconds;
    way.bytes = ra->bytes + rb->bytes + rc->bytes;
    way.moves = ra->moves + rb->moves + rc->moves;
    insert(way);
  }

  void insert(const MatmulWay& way) {
    for (const MatmulWay& known : ways) {
      if (known.a == way.a && known.b == way.b && known.product == way.product) {
        return;
      }
    }
    ways.push_back(way);
    for (std::size_t i = ways.size() - 1; i > 0 && better(ways[i], ways[i - 1]); --i) {
      const MatmulWay later = ways[i - 1];
      ways[i - 1] = ways[i];
      ways[i] = later;
    }
  }

  AxisPlaces goal_;

 public:
  ShardingSearch a, b, out;

  static bool better(const MatmulWay& x, const MatmulWay& y) {
    Reached both;
    both.seconds = y.seconds();
    both.bytes = y.math_seconds + y.comms_seconds;
    both.moves = y.moves;
    const double sum = x.math_seconds + x.comms_seconds;
    const bool tie = std::fabs(sum - both.bytes) <= 1e-12 * std::max(sum, both.bytes);
    return cheaper(x.seconds(), tie ? both.bytes : sum, x.moves, both);
  }

  ShardedCandidate candidate(const MatmulWay& way) const {
    ShardedCandidate c;
    const std::string parts[] = {
        moves_text(m.mesh(), a.moves(*a.find(way.a)), "a"),
        moves_text(m.mesh(), b.moves(*b.find(way.b)), "b"), "matmul",
        moves_text(m.mesh(), out.moves(*out.find(way.product)), "product")};
    for (const std::string& part : parts) {
      c.calls += (c.calls.empty() || part.empty() ? "" : ", ") + part;
    }
    c.math_seconds = way.math_seconds;
    c.comms_seconds = way.comms_seconds;
    c.bytes = way.bytes;
    c.seconds = way.seconds();
    return c;
  }
};

inline void make_moves(Sharded& array, const List<AxisMove>& moves, const char* name,
                       ShardedReport& report) {
  for (const AxisMove& move : moves) {
    make_move(array, move, report);
    report.steps.back().name += name;
  }
}

// Every device multiplies what it has; its product lies as `places` say.
inline Sharded local_products(const ShardedMatmul& m, const Sharded& a, const Sharded& b,
                              const AxisPlaces& places) {
  Sharded product = like(a, m.shape, sharding_of(m.mesh(), places, m.dims));
  for (std::size_t r = 0; r < a.shards.size(); ++r) {
    Context own = device_context(static_cast<int>(r));
    const ContextScope scope(own);
    product.shards.push_back(matmul(a.shards[r], b.shards[r]));
  }
  return product;
}

inline std::string matmul_title(const char* function, const ShardedMatmul& m, const Sharded& out) {
  return cat(function, " ", m.a.text(), " ", m.b.text(), " -> ", out.text(), " on ",
             m.mesh().machine.name, ", priced as ", m.a.format);
}

// The ways without detours first, unless one with them is better.
inline void list_ways(const MatmulWays& all, const MatmulWays& plain, ShardedReport& report) {
  for (const MatmulWays* const ways : {&plain, &all}) {
    for (const MatmulWay& way : ways->ways) {
      const ShardedCandidate next = ways->candidate(way);
      bool known = false;
      for (const ShardedCandidate& other : report.candidates) {
        known = known || other.calls == next.calls;
      }
      if (!known) {
        report.candidates.push_back(next);
      }
    }
  }
}

inline Sharded run_matmul(const ShardedMatmul& m, const Sharding& wanted) {
  const AxisPlaces goal = places_of(m.mesh(), wanted, m.shape);
  const MatmulWays all(m, goal, Detours::yes);
  const MatmulWays plain(m, goal, Detours::no);
  if (all.ways.empty()) {
    fail({"matmul: no way from ", m.a.text(), " and ", m.b.text(), " to [", wanted.text(),
          "]; a partial sum must be one already, or J be cut over its axes"});
  }
  const bool detour = plain.ways.empty() || MatmulWays::better(all.ways[0], plain.ways[0]);
  const MatmulWays& best = detour ? all : plain;
  const MatmulWay& way = best.ways[0];
  ShardedReport report;
  if (detour) {
    report.candidates.push_back(best.candidate(way));
  }
  list_ways(all, plain, report);
  Sharded a = m.a;
  Sharded b = m.b;
  make_moves(a, best.a.moves(*best.a.find(way.a)), " a", report);
  make_moves(b, best.b.moves(*best.b.find(way.b)), " b", report);
  Sharded out = local_products(m, a, b, way.product);
  make_moves(out, best.out.moves(*best.out.find(way.product)), " product", report);
  out.sharding = wanted;
  report.math_seconds = way.math_seconds;
  report.title = matmul_title("matmul", m, out);
  report.reason = matmul_case(m) + cat("; of ", report.candidates.size(),
                                       " ways the first has the least max(T_math, T_comms)",
                                       detour ? ", as idle axes carry a share" : "");
  finish(out, report);
  return out;
}

// What to write instead where the product would have an axis in two places.
[[noreturn]] inline void fail_twice(const ShardedMatmul& m, char letter) {
  std::string ways;
  for (std::size_t keep = 1; keep < m.natural.size(); ++keep) {
    AxisPlaces places = m.natural;
    bool there = false;
    for (std::size_t d = 0; d < places.size(); ++d) {
      const std::size_t at = places[d].find(letter);
      if (d == keep) {
        there = at != std::string::npos;
      } else if (at != std::string::npos) {
        places[d].erase(at, 1);
      }
    }
    if (there) {
      ways +=
          (ways.empty() ? "\"" : " or \"") + sharding_of(m.mesh(), places, m.dims).text() + "\"";
    }
  }
  fail({"matmul: ", m.a.text(), " times ", m.b.text(), " would have axis ",
        m.mesh().axes[axis_number(letter)].name,
        " twice in the product; say where it shall be, as a third argument ", ways});
}

}  // namespace detail

// a [.., J] times b [J, K], both on one mesh. Where J is cut in both the product is left a partial
// sum; where in one, it is whole over those axes. Throws where the product is ambiguous.
inline Sharded matmul(const Sharded& a, const Sharded& b) {
  const detail::ShardedMatmul m = detail::matmul_of("matmul", a, b);
  const char twice = detail::used_twice(m.natural);
  if (twice != 0) {
    detail::fail_twice(m, twice);
  }
  const std::string both = detail::rising_union(a.places()[0], b.places()[0]);
  if (both.size() < a.places()[0].size() + b.places()[0].size()) {
    detail::fail({"matmul: ", a.text(), " times ", b.text(), "; a product of sums is not the sum ",
                  "of products, so reshard one of them to ", detail::summed(a), " first"});
  }
  const Sharding natural = detail::sharding_of(*a.mesh, m.natural, m.dims);
  if (m.cut_a != m.cut_b) {
    return detail::run_matmul(m, natural);
  }
  detail::places_of(*a.mesh, natural, m.shape);  // checks the names
  Sharded out = detail::local_products(m, a, b, m.natural);
  ShardedReport report;
  report.math_seconds = m.math_seconds(m.natural, m.cut_a);
  report.title = detail::matmul_title("matmul", m, out);
  report.reason = detail::matmul_case(m) +
                  detail::cat("; no collective, T_math ", format_seconds(report.math_seconds));
  detail::finish(out, report);
  return out;
}

// The same with the product as `sharding` says, by the cheapest way: matmul(a, b, "I_x, K_y").
inline Sharded matmul(const Sharded& a, const Sharded& b, const std::string& sharding) {
  const detail::ShardedMatmul m = detail::matmul_of("matmul", a, b);
  const Sharding wanted = parse_sharding(sharding);
  Sharding own;
  own.dims = m.dims;
  Sharded product = detail::like(a, m.shape, own);
  detail::check_same_names("matmul", product.sharding, wanted);
  return detail::run_matmul(m, wanted);
}

}  // namespace tinyscale
