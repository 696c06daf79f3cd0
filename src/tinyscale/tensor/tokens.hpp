#pragma once
// Where a model meets text: the embedding lookup and the cross-entropy of the next token.

#include <algorithm>         // fill_n, max, min
#include <cmath>             // floor
#include <cstdint>           // int32_t
#include <initializer_list>  // targets in braces
#include <vector>            // vector

#include "tinyscale/compute/linear_cross_entropy.hpp"
#include "tinyscale/compute/softmax.hpp"
#include "tinyscale/tensor/matmul.hpp"
#include "tinyscale/tensor/reduce.hpp"

namespace tinyscale {

namespace detail {

// Adds row i of dy to row ids[i] of a table's gradient.
struct TableGradient {
  List<std::int32_t> ids;
  std::int64_t width;
  Slot table;

  void operator()(const Tensor& dy) const {
    DeferWeightGradients* const later = context().deferred;
    if (later != nullptr && later->waits_for(table)) {
      later->push(table, dy, *this);
      return;
    }
    const OpScope backward;
    float* const out = grad_buffer(table);
    const auto rows = static_cast<std::int64_t>(ids.size());
    if (width < 64) {  // a kernel a row would cost more than the row
      kernels::add_rows(rows, width, dy.data(), ids.data(), out);
    } else {
      for (std::int64_t i = 0; i < rows; ++i) {
        float* const to = out + ids.data()[i] * width;
        kernels::add(width, to, dy.data() + i * width, to);
      }
    }
    const std::int64_t n = dy.count();  // rows of the gradient are read and written
    backward.done_priced("embedding backward", "add", dy.shape(), &VectorCost::forward,
                         {n, n, static_cast<std::int64_t>(ids.size())}, {n});
  }
};

}  // namespace detail

// Whole numbers of a tensor, as ids; of -1 the caller says what is wrong with it.
inline std::vector<std::int32_t> ids_of(const char* op, const Tensor& ids,
                                        std::int32_t least = -1) {
  std::vector<std::int32_t> out;
  for (const float id : contiguous(ids.detach()).values()) {
    if (!(id >= -1.0f && id <= 16777216.0f) || id != std::floor(id)) {
      detail::fail({op, ": id ", id, " at position ", out.size(), "; a whole number from ", least,
                    " to 2^24 is right"});
    }
    out.push_back(static_cast<std::int32_t>(id));
  }
  return out;
}

inline Tensor embedding(const Tensor& table, const Tensor& ids);

// Rows of table [V, D] by number: ids of shape `ids_shape` give [ids_shape.., D].
inline Tensor embedding(const Tensor& table, const std::vector<std::int32_t>& ids,
                        const Shape& ids_shape) {
  if (table.dims() != 2 || static_cast<std::int64_t>(ids.size()) != ids_shape.count()) {
    detail::fail({"embedding: table is ", table.shape().text(), ", ", ids.size(), " ids for shape ",
                  ids_shape.text(),
                  "; the table needs two dimensions and the ids one per element"});
  }
  if (detail::recording()) {
    return embedding(table, detail::thread_recorder()->ids(ids, ids_shape));
  }
  if (!table.is_contiguous()) {
    return embedding(contiguous(table), ids, ids_shape);
  }
  const detail::OpScope scope;
  const std::int64_t width = table.dim(1);
  Shape shape = ids_shape;
  shape.push_back(width);
  Tensor y(shape);
  const std::int64_t rows = ids_shape.count();
  const std::int64_t bad = kernels::first_outside(rows, ids.data(), table.dim(0));
  if (bad < rows) {
    detail::fail({"embedding: id ", ids[static_cast<std::size_t>(bad)], " at position ", bad,
                  " is outside the table's ", table.dim(0), " rows"});
  }
  kernels::take_rows(rows, width, table.data(), ids.data(), y.data());
  const double n = static_cast<double>(y.count());
  scope.done("embedding", shape, {n, static_cast<double>(ids.size())}, {n}, 0, 0);
  if (detail::tracked({&table})) {
    detail::attach(y, "embedding", {&table}, detail::TableGradient{ids, width, table.slot()});
  }
  return y;
}

// The same of ids in a tensor, whole numbers from 0: ids [..] give [.., D].
inline Tensor embedding(const Tensor& table, const Tensor& ids) {
  if (detail::recording()) {
    if (table.dims() != 2 || table.dim(0) > 16777216) {
      detail::fail({"embedding: table is ", table.shape(), "; [V, D] with V up to 2^24 is right"});
    }
    Shape shape = ids.shape();
    shape.push_back(table.dim(1));
    return detail::record(Op::take, {&table, &ids}, shape);
  }
  return embedding(table, ids_of("embedding", ids, 0), ids.shape());
}

namespace detail {

// How many rows count: those whose target is not -1.
inline double check_targets(const char* op, const std::vector<std::int32_t>& targets,
                            const Shape& logits, std::int64_t rows) {
  if (static_cast<std::int64_t>(targets.size()) != rows) {
    fail({op, ": logits are ", logits.text(), ", so ", rows, " targets are right; given ",
          targets.size()});
  }
  std::int64_t counted = 0;
  for (const std::int32_t target : targets) {
    if (target < -1 || target >= logits[-1]) {
      fail({op, ": target ", target, " is outside the ", logits[-1],
            " classes (-1 leaves a row out)"});
    }
    counted += target >= 0 ? 1 : 0;
  }
  return static_cast<double>(std::max<std::int64_t>(counted, 1));
}

// Gives a gradient that was made for dy = 1 away.
inline void add_scaled_grad(const Slot& slot, Tensor& dx, float dy) {
  if (slot) {
    if (dy != 1.0f) {
      kernels::scale(dx.count(), dy, dx.data(), dx.data());
    }
    add_grad(slot, dx);
    dx = Tensor();
  }
}

// The product, the loss, and what of the backward pass is done with them.
inline void record_linear_loss(const OpScope& scope, const Matmul& s, std::int64_t dx,
                               std::int64_t dw) {
  if (context().profile == nullptr) {
    return;
  }
  const DType format = context().matmul_format;
  const double m = static_cast<double>(s.m);
  const double n = static_cast<double>(s.n);
  const double k = static_cast<double>(s.k);
  const int products = 1 + (dx > 0 ? 1 : 0) + (dw > 0 ? 1 : 0);
  double flops = vector_cost("cross_entropy", m * n, &VectorCost::forward);
  if (products > 1) {
    flops += vector_cost("cross_entropy", m * n, &VectorCost::backward);
  }
  const double ids = m * bytes_of(DType::f32) / bytes_of(format);  // in numbers of the format
  scope.done("linear_cross_entropy", Shape{s.m, s.k, s.n}, {m * k, n * k, ids},
             {m, static_cast<double>(dx), static_cast<double>(dw)}, 2 * products * m * n * k, flops,
             format);
}

inline Tensor mean_loss(const Tensor& losses, double n) {
  double total = 0;
  for (std::int64_t i = 0; i < losses.count(); ++i) {
    total += static_cast<double>(losses.data()[i]);
  }
  return full(Shape{}, static_cast<float>(total / n));
}

}  // namespace detail

// Mean of -log softmax(logits)[target] over the rows of logits [.., V]; a target of -1 is left out.
inline Tensor cross_entropy(const Tensor& logits, const std::vector<std::int32_t>& targets) {
  detail::check_last_dim("cross_entropy", logits);
  const std::int64_t vocabulary = logits.dim(-1);
  const std::int64_t rows = logits.count() / vocabulary;
  const double n = detail::check_targets("cross_entropy", targets, logits.shape(), rows);
  if (detail::recording()) {
    const Tensor ids = detail::thread_recorder()->ids(targets, {rows});
    return detail::record(Op::cross_entropy, {&logits, &ids}, Shape{});
  }
  if (!logits.is_contiguous()) {
    return cross_entropy(contiguous(logits), targets);
  }
  const detail::OpScope scope;
  Tensor losses(Shape{rows});
  Tensor lse(Shape{2, rows});  // less the maxima, which stand behind it
  kernels::cross_entropy_forward(rows, vocabulary, logits.data(), targets.data(), losses.data(),
                                 lse.data(), lse.data() + rows);
  Tensor y = detail::mean_loss(losses, n);
  const double elements = static_cast<double>(logits.count());
  scope.done("cross_entropy", logits.shape(), {elements, static_cast<double>(rows)},
             {static_cast<double>(rows)}, 0,
             vector_cost("cross_entropy", elements, &VectorCost::forward));
  if (detail::tracked({&logits})) {
    detail::attach(y, "cross_entropy", {&logits},
                   [=, known = List<std::int32_t>(targets), kl = detail::Kept(logits),
                    sl = logits.slot()](const Tensor& dy) {
                     const detail::OpScope backward;
                     float beta = 0;
                     float* const dx = detail::grad_buffer(sl, beta);
                     kernels::cross_entropy_backward(
                         rows, vocabulary, kl.data(), lse.data(), known.data(),
                         static_cast<float>(dy.item() / n), dx, beta, lse.data() + rows);
                     backward.done_priced("cross_entropy backward", "cross_entropy", kl.shape(),
                                          &VectorCost::backward, {kl.count(), rows}, {kl.count()});
                   });
  }
  return y;
}

// Targets in braces, which could be a shape as well.
inline Tensor cross_entropy(const Tensor& logits, std::initializer_list<std::int32_t> targets) {
  return cross_entropy(logits, std::vector<std::int32_t>(targets));
}

// The same with the targets in a tensor of whole numbers, one a row.
inline Tensor cross_entropy(const Tensor& logits, const Tensor& targets) {
  detail::check_last_dim("cross_entropy", logits);
  if (targets.count() != logits.count() / logits.dim(-1)) {
    detail::fail({"cross_entropy: logits are ", logits.shape(), ", targets ", targets.shape(),
                  "; one target a row is right"});
  }
  if (detail::recording()) {
    const Tensor ids = reshape(targets, {targets.count()});
    return detail::record(Op::cross_entropy, {&logits, &ids}, Shape{});
  }
  return cross_entropy(logits, ids_of("cross_entropy", targets));
}

namespace detail {

inline Matmul linear_loss_sizes(const Tensor& x, const Tensor& w) {
  const Matmul s = matmul_sizes("linear_cross_entropy", x, w, Trans::yes);
  if (s.n < 1) {
    fail({"linear_cross_entropy: w is ", w.shape(), "; a row a class, at least one, is right"});
  }
  return s;
}

}  // namespace detail

namespace detail {

// The loss, dx and dw (null: not wanted) of products that round their operands to bf16. The logits
// of a block of rows become their own gradient. A block is larger than f32's: w is rounded for
// each.
struct RoundedLinearLoss {
  static constexpr std::int64_t held = std::int64_t{1} << 24;  // logits at once, 64 MB, or a row's

  const Matmul& s;
  const float *x, *w;
  const std::int32_t* targets;
  float scale;
  float *losses, *dx, *dw;

  void operator()() const {
    const std::int64_t most = std::max<std::int64_t>(1, held / s.n);
    const std::int64_t blocks = std::max<std::int64_t>(1, (s.m + most - 1) / most);
    const std::int64_t step = (s.m + blocks - 1) / blocks;
    const MemoryScope scope(MemoryKind::buffer);
    Tensor logits(Shape{step, s.n}), lse(Shape{2, step});
    for (std::int64_t begin = 0; begin < s.m; begin += step) {
      const std::int64_t rows = std::min(step, s.m - begin);
      block(begin, rows, logits.data(), lse.data(), lse.data() + step);
    }
    if (s.m == 0 && dw != nullptr) {
      std::fill_n(dw, s.n * s.k, 0.0f);
    }
  }

 private:
  void block(std::int64_t begin, std::int64_t rows, float* logits, float* lse, float* top) const {
    const Matrix of_x{Tensor(), Trans::no, s.k}, of_w{Tensor(), Trans::no, s.k};
    const Matrix turned{Tensor(), Trans::yes, s.k};
    const float* const own = x + begin * s.k;
    const std::int32_t* const ids = targets + begin;
    multiply(rows, s.n, s.k, of_x, own, turned, w, 0.0f, logits);
    kernels::cross_entropy_forward(rows, s.n, logits, ids, losses + begin, lse, top);
    if (dx == nullptr && dw == nullptr) {
      return;
    }
    kernels::cross_entropy_backward(rows, s.n, logits, lse, ids, scale, logits, 0.0f, top);
    if (dx != nullptr) {
      multiply(rows, s.k, s.n, {Tensor(), Trans::no, s.n}, logits, of_w, w, 0.0f, dx + begin * s.k);
    }
    if (dw != nullptr) {
      multiply(s.n, s.k, rows, {Tensor(), Trans::yes, s.n}, logits, of_x, own,
               begin == 0 ? 0.0f : 1.0f, dw);
    }
  }
};

// Whether logits stand for a block of rows alone. Gradients in f16 and fp8 wait for the loss scale,
// and a graph rounds in products of its own.
inline bool fuses_linear_loss(const Matmul& s) {
  const DType format = context().matmul_format;
  const bool rounded = format == DType::bf16 && !recording() && matmul_hook() == nullptr;
  return s.k > 0 && (format == DType::f32 || rounded);
}

}  // namespace detail

// cross_entropy of the logits x w^T, x [.., D], w [V, D], which in f32 and bf16 never exist for all
// rows at once (but in a captured graph in bf16). Where gradients will be asked for they are made
// here, beside the loss, while the logits are.
inline Tensor linear_cross_entropy(const Tensor& x, const Tensor& w,
                                   const std::vector<std::int32_t>& targets) {
  const detail::Matmul s = detail::linear_loss_sizes(x, w);
  const double n = detail::check_targets("linear_cross_entropy", targets, s.shape, s.m);
  if (!detail::fuses_linear_loss(s)) {
    return cross_entropy(matmul_transposed(x, w), targets);
  }
  if (detail::recording()) {
    const Tensor ids = detail::thread_recorder()->ids(targets, {s.m});
    return detail::record(Op::linear_cross_entropy, {&x, &w, &ids}, Shape{});
  }
  const Tensor rows = contiguous(x);
  const Tensor columns = contiguous(w);
  const detail::OpScope scope;
  const bool graph = detail::tracked({&rows, &columns});
  Tensor losses(Shape{s.m});
  Tensor lse(Shape{s.m});
  Tensor dx, dw;
  if (graph && rows.slot()) {
    dx = Tensor(rows.shape());
  }
  if (graph && columns.slot()) {
    dw = Tensor(columns.shape(), MemoryKind::gradient);
  }
  kernels::LinearCrossEntropy all{s.m,
                                  s.k,
                                  s.n,
                                  rows.data(),
                                  columns.data(),
                                  targets.data(),
                                  static_cast<float>(1.0 / n),
                                  dx.defined() ? dx.data() : nullptr,
                                  dw.defined() ? dw.data() : nullptr,
                                  0.0f,
                                  0.0f};
  if (context().matmul_format != DType::f32) {
    detail::RoundedLinearLoss{s,         all.x,         all.w,  all.targets,
                              all.scale, losses.data(), all.dx, all.dw}();
  } else if (graph) {
    kernels::linear_cross_entropy(all, losses.data(), lse.data());
  } else {
    kernels::linear_cross_entropy_forward(s.m, s.k, s.n, all.x, all.w, all.targets, losses.data(),
                                          lse.data());
  }
  Tensor y = detail::mean_loss(losses, n);
  detail::record_linear_loss(scope, s, dx.count(), dw.count());
  if (graph) {
    detail::attach(y, "linear_cross_entropy", {&rows, &columns},
                   [dx, dw, sx = rows.slot(), sw = columns.slot()](const Tensor& dy) mutable {
                     detail::add_scaled_grad(sx, dx, dy.item());
                     detail::add_scaled_grad(sw, dw, dy.item());
                   });
  }
  return y;
}

inline Tensor linear_cross_entropy(const Tensor& x, const Tensor& w,
                                   std::initializer_list<std::int32_t> targets) {
  return linear_cross_entropy(x, w, std::vector<std::int32_t>(targets));
}

// The same with the targets in a tensor of whole numbers, one a row.
inline Tensor linear_cross_entropy(const Tensor& x, const Tensor& w, const Tensor& targets) {
  if (!detail::recording()) {
    return linear_cross_entropy(x, w, ids_of("linear_cross_entropy", targets));
  }
  const detail::Matmul s = detail::linear_loss_sizes(x, w);
  if (targets.count() != s.m) {
    detail::fail({"linear_cross_entropy: x is ", x.shape(), ", targets ", targets.shape(),
                  "; one target a row is right"});
  }
  if (!detail::fuses_linear_loss(s)) {
    return cross_entropy(matmul_transposed(x, w), targets);
  }
  const Tensor ids = reshape(targets, {s.m});
  return detail::record(Op::linear_cross_entropy, {&x, &w, &ids}, Shape{});
}

}  // namespace tinyscale
