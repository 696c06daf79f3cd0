#pragma once
// What the body of a tile kernel sees: where its program stands in the grid, blocks loaded from
// HBM, arithmetic on them, blocks stored. Numbers are real and stay f32; in bytes and in MXU passes
// what is loaded, stored and multiplied has the kernel's format, a computed tile f32.
// In the spirit of Triton (Tillet et al. 2019) and Pallas.

#include <algorithm>         // max, min
#include <cstdint>           // int64_t
#include <initializer_list>  // operands

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/systolic/tile_clock.hpp"
#include "tinyscale/tensor/activations.hpp"
#include "tinyscale/tensor/choose.hpp"

namespace tinyscale {

struct TileValue;
namespace detail {
TileValue tile_math(Arithmetic op, const TileValue& a, const TileValue& b);
}

// A tile on the chip: [r, c], [n] or one number. It lives within its program.
struct TileValue {
  using V = const TileValue&;
  TileValue(float number) : numbers(full(Shape{}, number)) {}
  TileValue(const Tensor& made, const Shared<detail::TileRecorder>& by, int number)
      : numbers(made), recorder(by), program(by->program), op(number) {}

  const Shape& shape() const { return numbers.shape(); }
  friend TileValue operator+(V a, V b) { return detail::tile_math(detail::Arithmetic::add, a, b); }
  friend TileValue operator-(V a, V b) { return detail::tile_math(detail::Arithmetic::sub, a, b); }
  friend TileValue operator*(V a, V b) { return detail::tile_math(detail::Arithmetic::mul, a, b); }
  friend TileValue operator/(V a, V b) { return detail::tile_math(detail::Arithmetic::div, a, b); }
  TileValue& operator+=(V b) { return *this = *this + b; }
  TileValue& operator-=(V b) { return *this = *this - b; }
  TileValue& operator*=(V b) { return *this = *this * b; }
  TileValue& operator/=(V b) { return *this = *this / b; }
  TileValue& operator+=(TileValue&& b);  // a dot adds to the sums where they are, at no cost

  Tensor numbers;
  Shared<detail::TileRecorder> recorder;  // null: a number from outside
  std::int64_t program = -1;
  int op = -1;
};

namespace detail {

using TileOperands = std::initializer_list<const TileValue*>;

// Puts an op on the clock; its operands must be of the program that runs.
inline TileValue record_tile(const Shared<TileRecorder>& by, TileOp op, const Tensor& numbers,
                             TileOperands operands) {
  int inputs = 0;
  for (const TileValue* x : operands) {
    if (x->recorder && (x->recorder.get() != by.get() || x->program != by->program)) {
      fail({"Tile: a tile ", x->shape(), " of another program is used", by->place(),
            "; a tile lives within its program"});
    }
    op.inputs[inputs++] = x->op;
  }
  return TileValue(numbers, by, by->add(op));
}

// A vector op, at the price of vector_costs() for each element of its largest operand.
inline TileValue vector_tile(const char* price, const Tensor& numbers, TileOperands operands) {
  const TileValue* recorded = *operands.begin();
  std::int64_t elements = numbers.count();
  for (const TileValue* x : operands) {
    recorded = recorded->recorder ? recorded : x;
    elements = std::max(elements, x->numbers.count());
  }
  if (!recorded->recorder) {
    return TileValue(numbers.item());
  }
  TileRecorder& r = *recorded->recorder;
  elements *= static_cast<std::int64_t>(vector_cost(price, 1, &VectorCost::forward));
  r.run.vector_flops += elements;
  const TileOp op = r.op(tile_vector, elements, r.chip.vector_flops, 4 * numbers.count());
  return record_tile(recorded->recorder, op, numbers, operands);
}

inline TileValue tile_math(Arithmetic op, const TileValue& a, const TileValue& b) {
  const char* const names[] = {"add", "sub", "mul", "div", "less"};
  const char* const name = names[static_cast<int>(op)];
  return vector_tile(name, arithmetic(op, name, a.numbers, b.numbers), {&a, &b});
}

// The view of a block as far as it lies inside the tensor; `tile` becomes the shape of the whole
// block, without the dims before its last two, which must have size 1.
inline Tensor tile_block(const char* what, const TileRecorder& r, const Tensor& x,
                         const List<Dim>& offsets, const List<Dim>& sizes, bool masked,
                         Shape& tile) {
  const auto dims = static_cast<std::size_t>(x.dims());
  const char* right = !x.defined() ? "the tensor must not be empty"
                      : sizes.size() != dims || offsets.size() != dims
                          ? "an offset and a size for each dim of the tensor are right"
                          : nullptr;
  Shape inside;
  Strides steps;
  std::int64_t first = 0;
  bool gone = false;
  for (std::size_t i = 0; right == nullptr && i < dims; ++i) {
    const int dim = static_cast<int>(i);
    const std::int64_t begin = offsets[i].value, n = sizes[i].value;
    const bool outside = begin < 0 || begin >= x.dim(dim);
    const std::int64_t left = outside ? 0 : std::min(n, x.dim(dim) - begin);
    right = begin < 0                ? "offsets are 0 or more"
            : n < 1                  ? "sizes are 1 or more"
            : i + 2 < dims && n != 1 ? "dims before the last two take size 1"
            : left < n && !masked    ? "it reaches outside; masked takes what is inside"
                                     : nullptr;
    if (right == nullptr && i + 2 >= dims) {
      steps.of[inside.size()] = x.stride(dim);
      tile.push_back(n);
      inside.push_back(left);
    }
    gone = gone || left < 1;
    first += gone ? 0 : begin * x.stride(dim);
  }
  if (right != nullptr) {
    fail({what, ": block ", list_text(sizes), " at ", list_text(offsets), " of tensor ", x.shape(),
          r.place(), ": ", right});
  }
  return gone ? Tensor(Shape{0}) : x.as_strided(inside, steps, first);
}

}  // namespace detail

// The running program: its place in the grid, and what it can do.
class Tile {
 public:
  using X = const Tensor&;
  using V = const TileValue&;
  using At = const List<Dim>&;
  explicit Tile(const Shared<detail::TileRecorder>& recorder) : recorder_(recorder) {}

  std::int64_t id(int axis) const { return part("id", recorder_->ids, axis); }
  std::int64_t grid(int axis) const { return part("grid", recorder_->grid, axis); }

  // Tiles from nothing, in no time: a number everywhere; first, first + 1, .. as [n, 1] (dim 0) or
  // [1, n] (dim 1).
  TileValue full(const Shape& s, float x) const { return make(tinyscale::full(s, x)); }
  TileValue zeros(const Shape& s) const { return full(s, 0.0f); }
  TileValue arange(Dim n, int dim, Dim first) const {
    if (dim != 0 && dim != 1) {
      detail::fail({"Tile::arange: dim is ", dim, "; 0 for [n, 1] or 1 for [1, n] is right"});
    }
    const Tensor numbers = tinyscale::arange(n) + static_cast<float>(first.value);
    return make(reshape(numbers, dim == 0 ? Shape{n, 1} : Shape{1, n}));
  }

  // The block of these sizes at an offset. Throws when it reaches outside the tensor; masked, lanes
  // outside are not moved: they become `fill`, or are not written.
  TileValue load(X x, At at, At sizes) const { return load("load", x, at, sizes, nullptr); }
  TileValue load_masked(X x, At at, At sizes, float fill = 0.0f) const {
    return load("load_masked", x, at, sizes, &fill);
  }
  void store(X x, At at, V v) const { store("store", x, at, v, false); }
  void store_masked(X x, At at, V v) const { store("store_masked", x, at, v, true); }

  // a [m, k] times b [k, n]; transposed: b [n, k].
  TileValue dot(V a, V b) const { return dot("dot", a, b, kernels::Trans::no); }
  TileValue dot_transposed(V a, V b) const {
    return dot("dot_transposed", a, b, kernels::Trans::yes);
  }

  // Along a dim, which stays with size 1.
  TileValue sum(V v, int dim) const {
    return made("sum", tinyscale::sum(v.numbers, dim, KeepDim::yes), {&v});
  }
  TileValue max(V v, int dim) const {
    return made("max", tinyscale::max(v.numbers, dim, KeepDim::yes), {&v});
  }
  TileValue maximum(V a, V b) const {
    return made("max", tinyscale::maximum(a.numbers, b.numbers), {&a, &b});
  }
  TileValue minimum(V a, V b) const {
    return made("max", tinyscale::minimum(a.numbers, b.numbers), {&a, &b});
  }
  TileValue exp(V v) const { return made("exp", tinyscale::exp(v.numbers), {&v}); }
  TileValue sqrt(V v) const { return made("sqrt", tinyscale::sqrt(v.numbers), {&v}); }
  TileValue tanh(V v) const { return made("tanh", tinyscale::tanh(v.numbers), {&v}); }
  TileValue gelu(V v) const { return made("gelu", tinyscale::gelu(v.numbers), {&v}); }
  // 1 where a < b, else 0; a where the condition is not 0, else b.
  TileValue less(V a, V b) const { return detail::tile_math(detail::Arithmetic::less, a, b); }
  TileValue where(V c, V a, V b) const {
    return made("where", tinyscale::where(c.numbers, a.numbers, b.numbers), {&c, &a, &b});
  }
  // Scores [r, c] of queries and keys from these positions on: -1e30 where the key is the later.
  TileValue causal(V scores, Dim query, Dim key) const {
    const TileValue queries = arange(scores.shape()[0], 0, query);
    return where(less(queries, arange(scores.shape()[-1], 1, key)), -1e30f, scores);
  }

 private:
  static TileValue made(const char* price, X numbers, detail::TileOperands operands) {
    return detail::vector_tile(price, numbers, operands);
  }
  TileValue make(X numbers) const {
    const detail::TileOp op = recorder_->op(detail::tile_none, 0, 0, 4 * numbers.count());
    return detail::record_tile(recorder_, op, numbers, {});
  }
  std::int64_t part(const char* what, At of, int axis) const {
    if (axis < 0 || axis >= static_cast<int>(of.size())) {
      detail::fail({what, ": axis ", axis, " of grid ", detail::list_text(recorder_->grid), " of ",
                    recorder_->run.name, "; axes are 0 to ", of.size() - 1});
    }
    return of[static_cast<std::size_t>(axis)].value;
  }

  TileValue load(const char* what, X x, At at, At sizes, const float* fill) const {
    detail::TileRecorder& r = *recorder_;
    Shape tile;
    const Tensor inside = detail::tile_block(what, r, x, at, sizes, fill != nullptr, tile);
    const bool whole = inside.shape() == tile;
    const Tensor numbers = whole ? inside.copied() : tinyscale::full(tile, *fill);
    if (!whole && inside.count() > 0) {
      const Tensor to = numbers.as_strided(inside.shape(), numbers.steps(), 0);
      detail::apply_in_place(detail::Arithmetic::second, what, to, inside);
    }
    const std::int64_t moved = r.bytes(inside.count());
    r.run.hbm_bytes_read += moved;
    const double rate = r.chip.memory_bandwidth;
    return detail::record_tile(
        recorder_, r.op(detail::tile_dma, moved, rate, r.bytes(numbers.count())), numbers, {});
  }

  void store(const char* what, X x, At at, V v, bool masked) const {
    detail::TileRecorder& r = *recorder_;
    Shape tile;
    List<Dim> sizes;
    const int more = x.dims() - v.shape().size();  // dims of size 1 in front
    for (int i = std::min(0, -more); i < v.shape().size(); ++i) {
      sizes.push_back(i < 0 ? 1 : v.shape()[i]);
    }
    const Tensor inside = detail::tile_block(what, r, x, at, sizes, masked, tile);
    const std::int64_t moved = r.bytes(inside.count());
    r.run.hbm_bytes_written += moved;
    detail::TileOp op =
        r.op(detail::tile_dma, moved, r.chip.memory_bandwidth, r.bytes(v.numbers.count()));
    op.store = true;
    detail::record_tile(recorder_, op, Tensor(), {&v});
    if (moved > 0) {
      const Tensor from = reshape(v.numbers, tile);
      detail::write(detail::Arithmetic::second, what, inside,
                    from.as_strided(inside.shape(), from.steps(), 0));
    }
  }

  TileValue dot(const char* what, V a, V b, kernels::Trans trans) const {
    detail::TileRecorder& r = *recorder_;
    const int inner = trans == kernels::Trans::no ? 0 : 1;
    const Shape &x = a.shape(), &y = b.shape();
    if (x.size() != 2 || y.size() != 2 || x[1] != y[inner]) {
      detail::fail({what, ": inner sizes differ: a is ", x, ", b is ", y, r.place(),
                    "; a [m, k] and b ", inner == 0 ? "[k, n]" : "[n, k]", " are right"});
    }
    const std::int64_t m = x[0], k = x[1], n = y[1 - inner];
    Tensor out(Shape{m, n});
    kernels::gemm(kernels::Trans::no, trans, m, n, k, a.numbers.data(), k, b.numbers.data(), y[1],
                  0.0f, out.data(), n);
    r.run.matmul_flops += 2 * m * n * k;
    detail::TileOp op = r.op(detail::tile_mxu, 0, 0, 4 * m * n);
    op.cycles = detail::dot_ticks(r.chip, r.run.format, m, k, n);
    return detail::record_tile(recorder_, op, out, {&a, &b});
  }

  Shared<detail::TileRecorder> recorder_;
};

inline TileValue& TileValue::operator+=(TileValue&& b) {
  const bool both = recorder.get() == b.recorder.get() && op >= 0 && b.op >= 0;
  if (!both || program != recorder->program || b.program != program || shape() != b.shape() ||
      !recorder->add_to(op, b.op)) {
    return *this = *this + b;
  }
  numbers = detail::arithmetic(detail::Arithmetic::add, "add", numbers, b.numbers);
  op = b.op;
  return *this;
}

}  // namespace tinyscale
