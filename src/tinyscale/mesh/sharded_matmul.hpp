#pragma once
// Matmuls of sharded arrays: the four cases of the scaling book (chapter 3).
//   1  J whole in both: no collective      2  J cut in one: gather it, or sum what there is
//   3  J cut in both: a partial sum {U_x}  4  I and K cut over one axis: gather one of them
// Every way to give each mesh axis to a dim, to the sum or to nothing is a candidate: move a and b
// there, multiply, move the product; the one with the least max(T_math, T_comms) runs.

#include <algorithm>  // max, rotate
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

// A way to run it: what moves before and after the products, where they then lie, what it costs.
struct MatmulWay {
  List<AxisMove> a, b, product;
  AxisPlaces places;
  ShardedCandidate cost;
  int moves = 0;
};

// Sooner done; then with less to do in all, then in fewer moves. Sums in another order are equal.
inline bool better(const MatmulWay& x, const MatmulWay& y) {
  const double pairs[][2] = {
      {x.cost.seconds, y.cost.seconds},
      {x.cost.math_seconds + x.cost.comms_seconds, y.cost.math_seconds + y.cost.comms_seconds}};
  for (const auto& pair : pairs) {
    if (std::fabs(pair[0] - pair[1]) > 1e-12 * pair[0]) {
      return pair[0] < pair[1];
    }
  }
  return x.moves < y.moves;
}

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
    return "case 4: one axis cuts an outer dim of both, so one of them is gathered first";
  }
  if (m.cut_a.empty() && m.cut_b.empty()) {
    return "case 1: " + j + " is whole in both";
  }
  if (m.cut_a == m.cut_b) {
    return "case 3: " + j + " is cut over " + axes_text(m.mesh(), m.cut_a) +
           " in both, so a device's product is a summand";
  }
  const std::string cut = axes_text(m.mesh(), m.cut_a.empty() ? m.cut_b : m.cut_a);
  return "case 2: " + j + " is cut over " + cut +
         (m.cut_a.empty() || m.cut_b.empty() ? " in one" : " in one, otherwise in the other") +
         ", so gather it, or slice and sum";
}

// The letters of a place in the order that an operand has, then one that is wanted, then the mesh.
inline std::string in_order(const std::string& letters, const std::string& first,
                            const std::string& second) {
  std::string out;
  for (const char letter : first + second + letters) {
    if (letters.find(letter) != std::string::npos && out.find(letter) == std::string::npos) {
      out += letter;
    }
  }
  return out;
}

// Finds the ways; those of one search in order, those without detours before the others.
class MatmulWays {
 public:
  MatmulWays(const ShardedMatmul& product, const AxisPlaces& goal)
      : m_(product),
        goal_(goal),
        pa_(product.a.places()),
        pb_(product.b.places()),
        axes_(rising_union(axes_to_use(m_.mesh(), pa_, pb_), axes_to_use(m_.mesh(), goal, goal))),
        few_(too_many_ways(goal.size() - 1, axes_.size(), 7000)) {
    for (const Detours detours : {Detours::no, Detours::yes}) {
      const std::size_t first = ways.size();
      add(first, detours);
      if (first > 0 && ways.size() > first && better(ways[first], ways[0])) {
        std::rotate(ways.begin(), ways.begin() + first, ways.begin() + first + 1);
        detour = true;
      }
    }
  }

  static constexpr std::size_t most = 128;  // the best of each search are kept
  List<MatmulWay> ways;
  int tried = 0;        // of the last search
  bool detour = false;  // the first has one

  std::string reason() const {
    return cat({"; of ", tried, " ways the first has the least max(T_math, T_comms)",
                detour ? ", as idle axes carry a share" : "", limits()});
  }
  std::string limits() const { return few_ ? few_ways_text(axes_.size()) : std::string(); }

 private:
  void add(std::size_t first, Detours detours) {
    const PlacedMesh& mesh = m_.mesh();
    const std::size_t dims = goal_.size() - 1;
    // The letters that each role may have: idle, a dim, J, a summand of a, of b.
    AxisPlaces uses(dims + 4, axes_);
    uses[dims + 2] = pa_[0];
    uses[dims + 3] = pb_[0];
    SearchSpace space_a = space_of(axes_, pa_, goal_, !few_);
    SearchSpace space_b = space_of(axes_, pb_, {"", "", goal_.back()}, !few_);
    SearchSpace space = space_of(axes_, goal_, m_.natural, !few_);
    if (few_) {
      const std::string inner = m_.cut_a + m_.cut_b + goal_[0];
      space.one[0] += inner;
      space_a.one.back() = space_b.one[1] = in_order(inner, m_.cut_a, m_.cut_b);
      space_a.other.back() = space_b.other[1] = in_order(inner, m_.cut_b, m_.cut_a);
      for (std::size_t d = 1; d <= dims; ++d) {
        uses[d] = space.one[d];
      }
      uses[dims + 1] = inner;
      space_a.summed = space_b.summed = goal_[0];
    }
    ShardingSearch a(mesh, space_a, m_.a.shape, m_.a.format, pa_, Direction::forwards, detours,
                     costs_);
    ShardingSearch b(mesh, space_b, m_.b.shape, m_.b.format, pb_, Direction::forwards, detours,
                     costs_);
    ShardingSearch product(mesh, space, m_.shape, m_.a.format, goal_, Direction::backwards, detours,
                           costs_);
    std::vector<std::size_t> role(axes_.size());
    tried = 0;
    bool more = true;
    while (more) {
      try_roles(role, true, a, b, product, first);
      try_roles(role, false, a, b, product, first);
      std::size_t axis = 0;
      for (; axis < role.size(); ++axis) {
        do {
          ++role[axis];
        } while (role[axis] < uses.size() &&
                 uses[role[axis]].find(axes_[axis]) == std::string::npos);
        if (role[axis] < uses.size()) {
          break;
        }
        role[axis] = 0;
      }
      more = axis < role.size();
    }
  }

  // Axes that share a place are in the order that the operand has, or else the goal.
  void try_roles(const std::vector<std::size_t>& role, bool as_is, ShardingSearch& a,
                 ShardingSearch& b, ShardingSearch& product, std::size_t first) {
    const std::size_t dims = goal_.size() - 1;
    AxisPlaces sets(dims + 4);
    for (std::size_t i = 0; i < role.size(); ++i) {
      sets[role[i]] += axes_[i];
    }
    const std::string cut =
        in_order(sets[dims + 1], as_is ? m_.cut_a : m_.cut_b, as_is ? m_.cut_b : m_.cut_a);
    MatmulWay way;
    way.places.push_back(rising_union(sets[dims + 1], sets[dims + 2] + sets[dims + 3]));
    for (std::size_t d = 1; d <= dims; ++d) {
      const std::string& own = d < dims ? pa_[d] : pb_[2];
      way.places.push_back(in_order(sets[d], as_is ? own : goal_[d], as_is ? goal_[d] : own));
    }
    AxisPlaces at_a = way.places;
    at_a[0] = sets[dims + 2];
    at_a.back() = cut;
    const Reached* const ra = a.find(at_a);
    const Reached* const rb = ra == nullptr ? ra : b.find({sets[dims + 3], cut, way.places.back()});
    const Reached* const rc = rb == nullptr ? rb : product.find(way.places);
    if (rc == nullptr) {
      return;
    }
    ShardedCandidate& cost = way.cost;
    cost.math_seconds = m_.math_seconds(way.places, cut);
    cost.comms_seconds = ra->seconds + rb->seconds + rc->seconds;
    cost.bytes = ra->bytes + rb->bytes + rc->bytes;
    cost.seconds = std::max(cost.math_seconds, cost.comms_seconds);
    way.moves = ra->moves + rb->moves + rc->moves;
    tried += as_is ? 1 : 0;
    way.a = a.moves(*ra);
    way.b = b.moves(*rb);
    way.product = product.moves(*rc);
    cost.calls = moves_text(m_.mesh(), way.a, " a") + moves_text(m_.mesh(), way.b, " b") +
                 "matmul, " + moves_text(m_.mesh(), way.product, " product");
    cost.calls.erase(cost.calls.size() - 2);
    insert(way, first);
  }

  void insert(const MatmulWay& way, std::size_t first) {
    for (const MatmulWay& known : ways) {
      if (known.cost.calls == way.cost.calls) {
        return;
      }
    }
    ways.push_back(way);
    for (std::size_t i = ways.size() - 1; i > first && better(ways[i], ways[i - 1]); --i) {
      std::swap(ways[i], ways[i - 1]);
    }
    if (ways.size() - first > most) {
      ways.pop_back();
    }
  }

  const ShardedMatmul& m_;
  const AxisPlaces& goal_;
  const AxisPlaces pa_, pb_;
  std::string axes_;
  bool few_;
  MoveCosts costs_;
};

inline std::string matmul_title(const char* function, const ShardedMatmul& m, const Sharded& out) {
  return cat({function, " ", m.a.text(), " ", m.b.text(), " -> ", out.text(), " on ",
              m.mesh().machine.name, ", priced as ", m.a.format});
}

inline Sharded run_matmul(const ShardedMatmul& m, const Sharding& wanted) {
  const AxisPlaces goal = places_of(m.mesh(), wanted, m.shape);
  const MatmulWays all(m, goal);
  if (all.ways.empty()) {
    fail({"matmul: no way from ", m.a.text(), " and ", m.b.text(), " to [", wanted.text(),
          "]; a partial sum must be one already, or ", m.inner, " be cut over its axes",
          all.limits()});
  }
  ShardedReport report;
  for (const MatmulWay& way : all.ways) {
    report.candidates.push_back(way.cost);
  }
  const MatmulWay& way = all.ways[0];
  Sharded a = m.a;
  Sharded b = m.b;
  make_moves(a, way.a, " a", report);
  make_moves(b, way.b, " b", report);
  Sharded out = like(a, m.shape, sharding_of(m.mesh(), way.places, m.dims));
  on_each_device(out, a, b, &matmul);
  make_moves(out, way.product, " product", report);
  out.sharding = wanted;
  report.math_seconds = way.cost.math_seconds;
  report.title = matmul_title("matmul", m, out);
  report.reason = matmul_case(m) + all.reason();
  finish(out, report);
  return out;
}

// What to write instead where the product would have axes in two places: with each dim that wants
// one of them as it is, and of the others only what is still free.
[[noreturn]] inline void fail_twice(const ShardedMatmul& m) {
  const char first = used_twice(m.natural);
  std::string ways;
  for (std::size_t keep = 1; keep < m.natural.size(); ++keep) {
    if (m.natural[keep].find(first) == std::string::npos) {
      continue;
    }
    AxisPlaces places(m.natural.size());
    places[keep] = m.natural[keep];
    for (std::size_t d = 0; d < places.size(); ++d) {
      places[d] += without(m.natural[d], all_letters(places));
    }
    ways += (ways.empty() ? "\"" : " or \"") + sharding_of(m.mesh(), places, m.dims).text() + "\"";
  }
  fail({"matmul: ", m.a.text(), " times ", m.b.text(), " would have axis ",
        m.mesh().axes[axis_number(first)].name,
        " twice in the product; say where it shall be, as a third argument ", ways});
}

}  // namespace detail

// a [.., J] times b [J, K], both on one mesh. Where J is cut in both the product is left a partial
// sum; where in one, it is whole over those axes. Throws where the product is ambiguous.
inline Sharded matmul(const Sharded& a, const Sharded& b) {
  const detail::ShardedMatmul m = detail::matmul_of("matmul", a, b);
  if (detail::used_twice(m.natural) != 0) {
    detail::fail_twice(m);
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
  Sharded out = detail::like(a, m.shape, natural);
  out.places();  // checks the names
  detail::on_each_device(out, a, b, &matmul);
  ShardedReport report;
  report.math_seconds = m.math_seconds(m.natural, m.cut_a);
  report.title = detail::matmul_title("matmul", m, out);
  report.reason = detail::matmul_case(m) +
                  detail::cat({"; no collective, T_math ", format_seconds(report.math_seconds)});
  detail::finish(out, report);
  return out;
}

// The same with the product as `sharding` says, by the cheapest way: matmul(a, b, "I_x, K_y").
inline Sharded matmul(const Sharded& a, const Sharded& b, const std::string& sharding) {
  const detail::ShardedMatmul m = detail::matmul_of("matmul", a, b);
  const Sharding wanted = parse_sharding(sharding);
  detail::check_same_names("matmul", {{}, m.dims}, wanted);
  return detail::run_matmul(m, wanted);
}

}  // namespace tinyscale
