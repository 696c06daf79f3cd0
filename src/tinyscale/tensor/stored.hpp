#pragma once
// Products of activations with stored weights, and rows of a stored table: for models that only
// run. The bytes recorded are those that the stored format really has.

#include <cstdint>  // int64_t
#include <vector>   // vector

#include "tinyscale/base/list.hpp"
#include "tinyscale/compute/stored_matrix.hpp"
#include "tinyscale/tensor/op_record.hpp"
#include "tinyscale/tensor/tensor.hpp"

namespace tinyscale {

namespace detail {

// An op that reads `bytes` of stored weights and x, and writes y.
inline void record_stored(const OpScope& scope, const char* name, const StoredMatrix& w,
                          double elements, double bytes, const Tensor& x, const Tensor& y,
                          double flops) {
  if (context().profile == nullptr) {
    return;
  }
  OpRecord record;
  record.name = name;
  record.shape = cat({x.shape(), " x ", w.kind(), " [", w.rows, ", ", w.cols, "]"});
  record.matmul_flops = flops;
  if (flops > 0) {
    record.reads.push_back(Operand{static_cast<double>(x.count()), DType::f32});
  }
  Operand weights{elements, DType::int8};
  weights.element_bytes = elements > 0 ? bytes / elements : 0;
  record.reads.push_back(weights);
  record.writes.push_back(Operand{static_cast<double>(y.count()), DType::f32});
  record.count_bytes();
  scope.done(record);
}

// Of a matrix that nothing made there is no way to read it.
inline void need_stored(const char* op, const StoredMatrix& w) {
  if (w.multiply == nullptr || w.row == nullptr) {
    fail({op, ": the stored matrix [", w.rows, ", ", w.cols,
          "] cannot be read; store_matrix, stored_view and stored_packed make those that can"});
  }
}

}  // namespace detail

// x [.., K] times the transpose of stored w [N, K] gives [.., N]. Forward alone.
inline Tensor matmul_stored(const Tensor& x, const StoredMatrix& w, Activations activations) {
  detail::need_stored("matmul_stored", w);
  if (x.dims() < 1 || x.dim(-1) != w.cols) {
    detail::fail({"matmul_stored: x is ", x.shape(), ", w is [", w.rows, ", ", w.cols,
                  "]; the last dimension of x must be w's columns"});
  }
  if (!x.is_contiguous()) {
    return matmul_stored(x.copied(), w, activations);
  }
  const detail::OpScope scope;
  Shape shape;
  for (int i = 0; i + 1 < x.dims(); ++i) {
    shape.push_back(x.dim(i));
  }
  const std::int64_t m = shape.count();
  shape.push_back(w.rows);
  Tensor y(shape);
  w.multiply(w, activations, m, x.data(), w.cols, y.data(), w.rows);
  const double elements = static_cast<double>(w.rows) * static_cast<double>(w.cols);
  detail::record_stored(scope, "matmul", w, elements, w.bytes(), x, y,
                        2 * static_cast<double>(m) * elements);
  return y;
}

// The largest number of each row of the same product, and where: exactly matmul_stored's of up to 8
// rows, of the first `known` columns, read by a screened w in part (compute/screen_matrix.hpp).
struct LargestOfRows {
  List<LargestProduct> rows;  // one a row of x
  double bytes = 0;           // of w, read
};

inline LargestOfRows largest_stored(const Tensor& x, const StoredMatrix& w, Activations activations,
                                    std::int64_t known) {
  if (w.largest == nullptr || x.dims() != 2 || x.dim(1) != w.cols || known < 1 || known > w.rows) {
    detail::fail({"largest_stored: the first ", known, " numbers of x ", x.shape(), " times [",
                  w.rows, ", ", w.cols, "], ", w.largest == nullptr ? "not " : "",
                  "screened; 1 to ", w.rows, " of [M, ", w.cols,
                  "] times what screen_matrix makes are right"});
  }
  if (!x.is_contiguous()) {
    return largest_stored(x.copied(), w, activations, known);
  }
  const detail::OpScope scope;
  LargestOfRows y;
  y.rows.resize(static_cast<std::size_t>(x.dim(0)));
  y.bytes = w.largest(w, activations, known, x.dim(0), x.data(), w.cols, y.rows.data());
  double rows = static_cast<double>(w.rows) * static_cast<double>(x.dim(0));
  for (const LargestProduct& row : y.rows) {
    rows += static_cast<double>(row.rows + row.again);
  }
  const double cols = static_cast<double>(w.cols);
  detail::record_stored(scope, "largest of matmul", w, static_cast<double>(w.rows) * cols, y.bytes,
                        x, Tensor({x.dim(0)}), 2 * rows * cols);
  return y;
}

// Rows of a stored table [V, D] by number, as f32: ids of shape `ids_shape` give [ids_shape.., D].
inline Tensor embedding_stored(const StoredMatrix& table, const std::vector<std::int32_t>& ids,
                               const Shape& ids_shape) {
  detail::need_stored("embedding_stored", table);
  if (static_cast<std::int64_t>(ids.size()) != ids_shape.count()) {
    detail::fail({"embedding: table is [", table.rows, ", ", table.cols, "], ", ids.size(),
                  " ids for shape ", ids_shape, "; one id an element is right"});
  }
  const detail::OpScope scope;
  Shape shape = ids_shape;
  shape.push_back(table.cols);
  Tensor y(shape);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= table.rows) {
      detail::fail({"embedding: id ", ids[i], " at position ", i, " is outside the table's ",
                    table.rows, " rows"});
    }
    table.row(table, ids[i], y.data() + static_cast<std::int64_t>(i) * table.cols);
  }
  const double share =
      table.rows > 0 ? static_cast<double>(ids.size()) / static_cast<double>(table.rows) : 0;
  detail::record_stored(scope, "embedding", table, static_cast<double>(y.count()),
                        share * table.bytes(), y, y, 0);
  return y;
}

}  // namespace tinyscale
