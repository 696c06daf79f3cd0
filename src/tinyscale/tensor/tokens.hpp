#pragma once
// Where a model meets text: the embedding lookup and the cross-entropy of the next token.

#include <cstdint>  // int32_t
#include <vector>   // vector

#include "tinyscale/compute/softmax.hpp"
#include "tinyscale/tensor/reduce.hpp"

namespace tinyscale {

// Rows of table [V, D] by number: ids of shape `ids_shape` give [ids_shape.., D].
inline Tensor embedding(const Tensor& table, const std::vector<std::int32_t>& ids,
                        const Shape& ids_shape) {
  if (table.dims() != 2 || static_cast<std::int64_t>(ids.size()) != ids_shape.count()) {
    throw Error(detail::cat("embedding: table is ", table.shape().text(), ", ", ids.size(),
                            " ids for shape ", ids_shape.text(),
                            "; the table needs two dimensions and the ids one per element"));
  }
  if (!table.is_contiguous()) {
    return embedding(contiguous(table), ids, ids_shape);
  }
  const detail::OpScope scope;
  const std::int64_t width = table.dim(1);
  Shape shape = ids_shape;
  shape.push_back(width);
  Tensor y(shape);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= table.dim(0)) {
      throw Error(detail::cat("embedding: id ", ids[i], " at position ", i,
                              " is outside the table's ", table.dim(0), " rows"));
    }
    const float* row = table.data() + ids[i] * width;
    float* to = y.data() + static_cast<std::int64_t>(i) * width;
    for (std::int64_t k = 0; k < width; ++k) {
      to[k] = row[k];
    }
  }
  const double n = static_cast<double>(y.count());
  scope.done("embedding", shape, {n, static_cast<double>(ids.size())}, {n}, 0, 0);
  if (detail::tracked({&table})) {
    detail::attach(y, "embedding", {&table}, [kept = List<std::int32_t>(ids), width,
                                               st = table.slot()](const Tensor& dy) {
      float* out = detail::grad_buffer(st);
      for (std::size_t i = 0; i < kept.size(); ++i) {
        float* const to = out + kept[i] * width;
        kernel::add(width, to, dy.data() + static_cast<std::int64_t>(i) * width, to);
      }
    });
  }
  return y;
}

// Mean of -log softmax(logits)[target] over the rows of logits [.., V]; a target of -1 is left out.
inline Tensor cross_entropy(const Tensor& logits, const std::vector<std::int32_t>& targets) {
  detail::check_last_dim("cross_entropy", logits);
  const std::int64_t vocabulary = logits.dim(-1);
  const std::int64_t rows = logits.count() / vocabulary;
  if (static_cast<std::int64_t>(targets.size()) != rows) {
    throw Error(detail::cat("cross_entropy: logits are ", logits.shape().text(), ", so ", rows,
                            " targets are right; given ", targets.size()));
  }
  std::int64_t counted = 0;
  for (const std::int32_t target : targets) {
    if (target < -1 || target >= vocabulary) {
      throw Error(detail::cat("cross_entropy: target ", target, " is outside the ", vocabulary,
                              " classes (-1 leaves a row out)"));
    }
    counted += target >= 0 ? 1 : 0;
  }
  if (!logits.is_contiguous()) {
    return cross_entropy(contiguous(logits), targets);
  }
  const detail::OpScope scope;
  Tensor losses(Shape{rows});
  Tensor lse(Shape{rows});
  kernel::cross_entropy_forward(rows, vocabulary, logits.data(), targets.data(), losses.data(),
                                lse.data());
  double total = 0;
  for (std::int64_t i = 0; i < rows; ++i) {
    total += static_cast<double>(losses.data()[i]);
  }
  const double n = static_cast<double>(std::max<std::int64_t>(counted, 1));
  Tensor y = full(Shape{}, static_cast<float>(total / n));
  const double elements = static_cast<double>(logits.count());
  scope.done("cross_entropy", logits.shape(), {elements, static_cast<double>(rows)},
             {static_cast<double>(rows)}, 0,
             vector_cost("cross_entropy", elements, &VectorCost::forward));
  if (detail::tracked({&logits})) {
    detail::attach(y, "cross_entropy", {&logits},
                   [=, known = List<std::int32_t>(targets), kl = detail::Kept(logits),
                    sl = logits.slot()](const Tensor& dy) {
                     const detail::OpScope backward;
                     kernel::cross_entropy_backward(
                         rows, vocabulary, kl.data(), lse.data(), known.data(),
                         static_cast<float>(dy.item() / n), detail::grad_buffer(sl));
                     backward.done_unary("cross_entropy backward", "cross_entropy", kl.shape(),
                                         &VectorCost::backward);
                   });
  }
  return y;
}

}  // namespace tinyscale
