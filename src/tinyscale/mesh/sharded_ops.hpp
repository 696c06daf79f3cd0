#pragma once
// Elementwise ops and reductions on sharded arrays.
// Where one operand is whole along a dim that the other has cut, it is sliced, which is free; a sum
// over a cut dim leaves a partial sum {U_x}. What would need a choice is an error that names it.

#include <cstddef>
#include <cstdint>
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
  a.check();
  b.check();
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
  const std::string used = all_letters(places);
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (used.find(used[i]) < i) {
      return used[i];
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

using UnaryOp = Tensor (*)(const Tensor& x);
using BinaryOp = Tensor (*)(const Tensor& a, const Tensor& b);

inline void check_summed(const char* function, const Sharded& a) {
  if (!a.sharding.partial.empty()) {
    fail({function, ": ", a.text(), " is still to be summed, and ", function,
          " of a sum is not the sum of it; reshard to ", summed(a), " first"});
  }
}

// Sums may be added to sums over the same axes, and multiplied with what is none.
inline void check_partial(const char* function, const Sharded& a, const Sharded& b, bool product) {
  const bool one = a.sharding.partial.empty() != b.sharding.partial.empty();
  if (!product && a.places()[0] != b.places()[0]) {
    const bool two = !one && !a.sharding.partial.empty();
    fail({function, ": ", a.text(), " and ", b.text(),
          two ? "; sums over other axes have other summands, so reshard both to "
              : "; what is no partial sum would be added once by every device, so reshard the "
                "partial one to ",
          summed(a.sharding.partial.empty() ? b : a), " first"});
  }
  if (product && !one && !a.sharding.partial.empty()) {
    fail({function, ": ", a.text(), " and ", b.text(), "; a product of sums is not the sum of ",
          "products, so reshard one of them to ", summed(a), " first"});
  }
}

inline Sharded elementwise(const char* function, Sharded a, Sharded b, BinaryOp op, bool product) {
  check_one_mesh(function, a, b);
  check_partial(function, a, b, product);
  const bool swapped = a.sharding.dims.size() < b.sharding.dims.size();
  const Sharded& longer = swapped ? b : a;
  const AxisPlaces result = common_places(function, longer, swapped ? a : b);
  Sharded out = like(a, longer.shape, sharding_of(*a.mesh, result, longer.sharding.dims));
  ShardedReport report;
  report.title = cat({function, " ", a.text(), " ", b.text(), " -> ", out.text()});
  report.reason = "element by element: no collective";
  slice_as(a, result, report);
  slice_as(b, result, report);
  on_each_device(out, a, b, op);
  finish(out, report);
  return out;
}

// Op: Tensor(const Tensor&), the same for every device.
template <class Op>
Sharded map(const char* function, const Sharded& a, const Sharded& shape, const char* reason,
            Op op) {
  a.check();
  Sharded out = shape;
  out.shards = List<Tensor>();
  for (std::size_t r = 0; r < a.shards.size(); ++r) {
    const DeviceScope scope(static_cast<int>(r));
    out.shards.push_back(op(a.shards[r]));
  }
  ShardedReport report;
  report.title = cat({function, " ", a.text(), " -> ", out.text()});
  report.reason = cat({reason, ": no collective"});
  finish(out, report);
  return out;
}

inline Sharded unary(const char* function, const Sharded& a, UnaryOp op) {
  check_summed(function, a);
  return map(function, a, a, "element by element", op);
}

struct ScaledBy {
  float factor;
  bool divides;
  Tensor operator()(const Tensor& x) const { return divides ? x / factor : scale(x, factor); }
};

struct TransposedDims {
  int first, second;
  Tensor operator()(const Tensor& x) const { return transpose(x, first, second); }
};

struct SoftmaxOver {
  int dim;
  Tensor operator()(const Tensor& x) const {
    return transpose(softmax(transpose(x, dim, -1)), dim, -1);
  }
};

enum class Reduction { sum, mean, max };

inline int dim_named(const char* function, const Sharded& a, const std::string& name) {
  a.check();
  for (std::size_t d = 0; d < a.sharding.dims.size(); ++d) {
    if (a.sharding.dims[d].name == name) {
      return static_cast<int>(d);
    }
  }
  fail({function, ": no dim ", name, " in ", a.text()});
}

inline Sharded reduce_dim(const char* function, const Sharded& x, const std::string& dim,
                          const std::string& wanted, Reduction how) {
  const int at = dim_named(function, x, dim);
  const bool largest = how == Reduction::max;
  if (largest) {
    check_summed(function, x);
  }
  if (how != Reduction::sum && x.shape[at] == 0) {
    fail({function, ": dim ", dim, " of ", x.text(), " of shape ", x.shape,
          " is empty; 1 number or more along it is right"});
  }
  Sharded out = like(x, {}, {x.sharding.partial, {}});
  std::string cut;
  for (int d = 0; d < x.shape.size(); ++d) {
    const ShardedDim& own = x.sharding.dims[static_cast<std::size_t>(d)];
    if (d != at) {
      out.shape.push_back(x.shape[d]);
      out.sharding.dims.push_back(own);
    } else {
      cut = joined(own.axes);
      out.sharding.partial.insert(out.sharding.partial.end(), own.axes.begin(), own.axes.end());
    }
  }
  out.sharding = sharding_of(*x.mesh, out.places(), out.sharding.dims);  // axes in rising order
  for (std::size_t r = 0; r < x.shards.size(); ++r) {
    const DeviceScope scope(static_cast<int>(r));
    const Tensor part = largest ? max(x.shards[r], at) : sum(x.shards[r], at);
    out.shards.push_back(
        how == Reduction::mean ? scale(part, 1.0f / static_cast<float>(x.shape[at])) : part);
  }
  ShardedReport report;
  if (largest && !cut.empty()) {  // the largest of all is no sum: at once
    make_move(out, {0, -1, out.places()[0], 0, 0}, report, "", Reduce::max);
  }
  report.reason = cut.empty() ? "dim " + dim + " is whole on every device: no collective"
                  : largest   ? "the largest of each device, and of them the largest"
                              : "each device adds what it has of dim " + dim +
                                  "; the result is the sum over " + cut;
  if (!wanted.empty()) {
    reshard_into(out, parse_sharding(wanted), report, function);
  }
  report.title = cat({function, " of ", x.text(), " over ", dim, " -> ", out.text()});
  finish(out, report);
  return out;
}

}  // namespace detail

inline Sharded operator+(const Sharded& a, const Sharded& b) {
  return detail::elementwise("add", a, b, &add, false);
}
inline Sharded operator-(const Sharded& a, const Sharded& b) {
  return detail::elementwise("sub", a, b, &sub, false);
}
inline Sharded operator*(const Sharded& a, const Sharded& b) {
  return detail::elementwise("mul", a, b, &mul, true);
}
inline Sharded operator*(const Sharded& a, float factor) {
  return detail::map("scale", a, a, "element by element", detail::ScaledBy{factor, false});
}
inline Sharded operator*(float factor, const Sharded& a) { return a * factor; }
inline Sharded operator-(const Sharded& a) { return a * -1.0f; }
inline Sharded operator/(const Sharded& a, float divisor) {
  return detail::map("div", a, a, "element by element", detail::ScaledBy{divisor, true});
}
inline Sharded operator/(const Sharded& a, const Sharded& b) {
  detail::check_summed("div", b);
  return detail::elementwise("div", a, b, &div, true);
}

inline Sharded gelu(const Sharded& a) { return detail::unary("gelu", a, &gelu); }
inline Sharded silu(const Sharded& a) { return detail::unary("silu", a, &silu); }
inline Sharded relu(const Sharded& a) { return detail::unary("relu", a, &relu); }
inline Sharded tanh(const Sharded& a) { return detail::unary("tanh", a, &tanh); }
inline Sharded exp(const Sharded& a) { return detail::unary("exp", a, &exp); }
inline Sharded abs(const Sharded& a) { return detail::unary("abs", a, &abs); }
inline Sharded square(const Sharded& a) { return detail::unary("square", a, &square); }

// Two dims by name, with what cuts them: transpose(a, "I", "J").
inline Sharded transpose(const Sharded& a, const std::string& first, const std::string& second) {
  const int i = detail::dim_named("transpose", a, first);
  const int j = detail::dim_named("transpose", a, second);
  Sharded out = a;
  out.shape.set(i, a.shape[j]);
  out.shape.set(j, a.shape[i]);
  out.sharding.dims[static_cast<std::size_t>(i)] = a.sharding.dims[static_cast<std::size_t>(j)];
  out.sharding.dims[static_cast<std::size_t>(j)] = a.sharding.dims[static_cast<std::size_t>(i)];
  return detail::map("transpose", a, out, "each device its own block",
                     detail::TransposedDims{i, j});
}

// Over the dim of that name, which must be whole on every device.
inline Sharded softmax(const Sharded& a, const std::string& dim) {
  detail::check_summed("softmax", a);
  const int d = detail::dim_named("softmax", a, dim);
  Sharding whole = a.sharding;
  whole.dims[static_cast<std::size_t>(d)].axes.clear();
  if (whole.text() != a.sharding.text()) {
    detail::fail({"softmax: dim ", dim, " is cut in ", a.text(),
                  ", and a device needs all of it; reshard to \"", whole.text(), "\" first"});
  }
  return detail::map("softmax", a, a, "the dim is whole on every device", detail::SoftmaxOver{d});
}

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
