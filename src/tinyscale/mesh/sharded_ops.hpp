#pragma once
// Elementwise ops and reductions on sharded arrays.
// Where one operand is whole along a dim that the other has cut, it is sliced, which is free; a sum
// over a cut dim leaves a partial sum {U_x}. What would need a choice is an error that names it.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "tinyscale/mesh/reshard.hpp"
#include "tinyscale/tensor/activations.hpp"
#include "tinyscale/tensor/reduce.hpp"

namespace tinyscale {
namespace detail {

inline std::string summed(const Sharded& a) {
  Sharding whole = a.sharding;
  whole.partial.clear();
  return "\"" + whole.text() + "\"";
}

inline void check_one_mesh(const char* function, const Sharded& a, const Sharded& b) {
  if (a.mesh->text() != b.mesh->text()) {
    fail({function, ": the arrays lie on two meshes, ", a.mesh->text(), " and ", b.mesh->text(),
          "; both on one are right"});
  }
  if (a.shards.empty() != b.shards.empty()) {
    fail({function, ": only one of ", a.text(), " and ", b.text(),
          " has numbers; give mesh.shard a tensor for both, or shapes"});
  }
}

// An axis in two places of one sharding, or 0.
inline char used_twice(const AxisPlaces& places) {
  std::string seen;
  for (const std::string& letters : places) {
    for (const char letter : letters) {
      if (seen.find(letter) != std::string::npos) {
        return letter;
      }
      seen += letter;
    }
  }
  return 0;
}

// Cuts the dims of an operand as those of the result, which it may lack leading dims of.
inline void slice_as(Sharded& a, const AxisPlaces& result, ShardedReport& report) {
  const std::size_t lacks = result.size() - a.sharding.dims.size() - 1;
  for (std::size_t d = 1; d + lacks < result.size(); ++d) {
    const std::string& wanted = result[d + lacks];
    for (std::size_t i = a.places()[d].size(); i < wanted.size(); ++i) {
      make_move(a, {-1, static_cast<int>(d), wanted.substr(i, 1), 0, 0}, report);
    }
  }
}

// The sharding of the longer operand with every dim cut as the more cut of both.
inline AxisPlaces common_places(const char* function, const Sharded& a, const Sharded& b) {
  const std::size_t lacks = a.sharding.dims.size() - b.sharding.dims.size();
  AxisPlaces result = a.places();
  const AxisPlaces other = b.places();
  for (std::size_t d = 1; d < other.size(); ++d) {
    std::string& mine = result[d + lacks];
    const ShardedDim& dim = a.sharding.dims[d + lacks - 1];
    const int at = static_cast<int>(d) - 1;
    if (dim.name != b.sharding.dims[d - 1].name ||
        a.shape[at + static_cast<int>(lacks)] != b.shape[at]) {
      fail({function, ": ", a.text(), " of shape ", a.shape, " and ", b.text(), " of shape ",
            b.shape, "; equal dims, or those of the second at the end of the first, are right"});
    }
    const std::string& longer = mine.size() < other[d].size() ? other[d] : mine;
    const std::string& shorter = mine.size() < other[d].size() ? mine : other[d];
    if (longer.compare(0, shorter.size(), shorter) != 0) {
      fail({function, ": dim ", dim.name, " is cut over ", axes_text(*a.mesh, mine), " in ",
            a.text(), " and over ", axes_text(*a.mesh, other[d]), " in ", b.text(),
            "; reshard one of them as the other first"});
    }
    mine = std::string(longer);
  }
  result[0] = a.places()[0].empty() ? other[0] : a.places()[0];
  const char twice = used_twice(result);
  if (twice != 0) {
    fail({function, ": ", a.text(), " and ", b.text(), " use axis ",
          a.mesh->axes[axis_number(twice)].name,
          " for different things; reshard one of them so that it is as the other"});
  }
  return result;
}

enum class Linear { both, either };  // in both operands together (+), in each alone (*)

inline void check_partial(const char* function, const Sharded& a, const Sharded& b,
                          const AxisPlaces& pa, const AxisPlaces& pb, Linear linear) {
  if (pa[0].empty() && pb[0].empty()) {
    return;
  }
  const Sharded& sum = pa[0].empty() ? b : a;
  if (linear == Linear::both && pa[0] != pb[0]) {
    fail({function, ": ", a.text(), " and ", b.text(), "; what is no partial sum would be added ",
          "once by every device, so reshard the partial one to ", summed(sum), " first"});
  }
  if (linear == Linear::either && !pa[0].empty() && !pb[0].empty()) {
    fail({function, ": ", a.text(), " and ", b.text(), "; a product of sums is not the sum of ",
          "products, so reshard one of them to ", summed(a), " first"});
  }
}

using BinaryOp = Tensor (*)(const Tensor& a, const Tensor& b);

inline Sharded elementwise(const char* function, const Sharded& x, const Sharded& y, BinaryOp op,
                           Linear linear) {
  check_one_mesh(function, x, y);
  const bool swapped = x.sharding.dims.size() < y.sharding.dims.size();
  check_partial(function, x, y, x.places(), y.places(), linear);
  const AxisPlaces result = swapped ? common_places(function, y, x) : common_places(function, x, y);
  ShardedReport report;
  Sharded a = x;
  Sharded b = y;
  slice_as(a, result, report);
  slice_as(b, result, report);
  const Sharded& longer = swapped ? b : a;
  Sharded out = like(x, longer.shape, sharding_of(*x.mesh, result, longer.sharding.dims));
  for (std::size_t r = 0; r < a.shards.size(); ++r) {
    Context own = device_context(static_cast<int>(r));
    const ContextScope scope(own);
    out.shards.push_back(op(a.shards[r], b.shards[r]));
  }
  report.title = cat(function, " ", x.text(), " ", y.text(), " -> ", out.text());
  report.reason = "element by element: no collective";
  finish(out, report);
  return out;
}

using UnaryOp = Tensor (*)(const Tensor& x);

inline void check_summed(const char* function, const Sharded& a) {
  if (!a.sharding.partial.empty()) {
    fail({function, ": ", a.text(), " is still to be summed, and ", function,
          " of a sum is not the sum of it; reshard to ", summed(a), " first"});
  }
}

inline Sharded map(const char* function, const Sharded& a,
                   const std::function<Tensor(const Tensor&)>& op) {
  Sharded out = like(a, a.shape, a.sharding);
  for (std::size_t r = 0; r < a.shards.size(); ++r) {
    Context own = device_context(static_cast<int>(r));
    const ContextScope scope(own);
    out.shards.push_back(op(a.shards[r]));
  }
  ShardedReport report;
  report.title = cat(function, " ", a.text());
  report.reason = "element by element: no collective";
  finish(out, report);
  return out;
}

inline Sharded unary(const char* function, const Sharded& a, UnaryOp op) {
  check_summed(function, a);
  return map(function, a, op);
}

enum class Reduction { sum, mean, max };

inline std::size_t dim_named(const char* function, const Sharded& a, const std::string& name) {
  std::size_t d = 0;
  while (d < a.sharding.dims.size() && a.sharding.dims[d].name != name) {
    ++d;
  }
  if (d == a.sharding.dims.size()) {
    fail({function, ": no dim ", name, " in ", a.text()});
  }
  return d;
}

inline Sharded reduce_dim(const char* function, const Sharded& x, const std::string& dim,
                          const std::string& wanted, Reduction how) {
  const std::size_t d = dim_named(function, x, dim);
  const int at = static_cast<int>(d);
  if (how == Reduction::max) {
    check_summed(function, x);
  }
  AxisPlaces places = x.places();
  const std::string cut = places[d + 1];
  Shape shape;
  Sharding named;
  AxisPlaces rest(1, places[0]);
  for (std::size_t e = 0; e < x.sharding.dims.size(); ++e) {
    if (e != d) {
      shape.push_back(x.shape[static_cast<int>(e)]);
      named.dims.push_back(x.sharding.dims[e]);
      rest.push_back(places[e + 1]);
    }
  }
  rest[0] = rising_union(rest[0], cut);
  Sharded out = like(x, shape, sharding_of(*x.mesh, rest, named.dims));
  for (std::size_t r = 0; r < x.shards.size(); ++r) {
    Context own = device_context(static_cast<int>(r));
    const ContextScope scope(own);
    Tensor part = how == Reduction::max ? max(x.shards[r], at) : sum(x.shards[r], at);
    if (how == Reduction::mean) {
      part = scale(part, 1.0f / static_cast<float>(x.shape[at]));
    }
    out.shards.push_back(part);
  }
  ShardedReport report;
  if (how == Reduction::max && !cut.empty()) {  // the largest of all is no sum: at once
    make_move(out, {0, -1, rest[0], 0, 0}, report, Reduce::max);
  }
  report.reason = cut.empty() ? "dim " + dim + " is whole on every device: no collective"
                  : how == Reduction::max
                      ? "the largest of each device, and of them the largest"
                      : "each device adds what it has of dim " + dim +
                            "; the result is the sum over " + axes_text(*x.mesh, cut);
  if (!wanted.empty()) {
    reshard_into(out, parse_sharding(wanted), report, function);
  }
  report.title = cat(function, " of ", x.text(), " over ", dim, " -> ", out.text());
  finish(out, report);
  return out;
}

}  // namespace detail

inline Sharded operator+(const Sharded& a, const Sharded& b) {
  return detail::elementwise("add", a, b, &add, detail::Linear::both);
}
inline Sharded operator-(const Sharded& a, const Sharded& b) {
  return detail::elementwise("sub", a, b, &sub, detail::Linear::both);
}
inline Sharded operator*(const Sharded& a, const Sharded& b) {
  return detail::elementwise("mul", a, b, &mul, detail::Linear::either);
}
inline Sharded operator*(const Sharded& a, float factor) {
  return detail::map("scale", a, [factor](const Tensor& x) { return scale(x, factor); });
}
inline Sharded operator*(float factor, const Sharded& a) { return a * factor; }
inline Sharded operator-(const Sharded& a) { return a * -1.0f; }

inline Sharded gelu(const Sharded& a) { return detail::unary("gelu", a, &gelu); }
inline Sharded silu(const Sharded& a) { return detail::unary("silu", a, &silu); }
inline Sharded relu(const Sharded& a) { return detail::unary("relu", a, &relu); }
inline Sharded tanh(const Sharded& a) { return detail::unary("tanh", a, &tanh); }
inline Sharded exp(const Sharded& a) { return detail::unary("exp", a, &exp); }
inline Sharded square(const Sharded& a) { return detail::unary("square", a, &square); }

// Over the dim of that name, which disappears: over a cut one the result is a partial sum, or what
// `sharding` says: sum(a, "J", "I_x").
inline Sharded sum(const Sharded& a, const std::string& dim, const std::string& sharding = "") {
  return detail::reduce_dim("sum", a, dim, sharding, detail::Reduction::sum);
}
inline Sharded mean(const Sharded& a, const std::string& dim, const std::string& sharding = "") {
  return detail::reduce_dim("mean", a, dim, sharding, detail::Reduction::mean);
}
inline Sharded max(const Sharded& a, const std::string& dim, const std::string& sharding = "") {
  return detail::reduce_dim("max", a, dim, sharding, detail::Reduction::max);
}

}  // namespace tinyscale
