#pragma once
// A matrix product of a plan, with what comes before and after it.

#include <algorithm>  // max, min
#include <cstddef>    // size_t
#include <cstdint>    // int64_t

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/threads.hpp"
#include "tinyscale/compile/fuse_vectors.hpp"
#include "tinyscale/compile/op_graph.hpp"
#include "tinyscale/compile/step.hpp"
#include "tinyscale/compute/scratch.hpp"
#include "tinyscale/tensor/matmul.hpp"
#include "tinyscale/tensor/matmul_format.hpp"

namespace tinyscale {
namespace detail {

// A step and the tensors of all nodes.
struct ProductRun {
  const Graph& graph;
  const Step& step;
  const List<Tensor>& values;

  void operator()() const {
    if (!step.prologue.empty()) {
      by_blocks();
    } else if (step.nodes.size() == 1) {
      plain(nullptr);
    } else {
      const kernels::GemmEpilogue epilogue = epilogue_from(0);
      plain(&epilogue);
    }
  }

 private:
  const GraphNode& node() const { return graph[step.product]; }
  const Tensor& of(int number) const { return values[static_cast<std::size_t>(number)]; }
  const Tensor& y() const { return of(step.outputs.back()); }

  // What follows, of the rows from `row` on.
  kernels::GemmEpilogue epilogue_from(std::int64_t row) const {
    const std::int64_t n = node().shape[-1];
    const auto numbers = [&](int number, std::int64_t apart) {
      return number < 0 ? nullptr : of(number).origin() + row * apart;
    };
    kernels::GemmEpilogue out;
    out.scale = step.scale;
    out.bias = numbers(step.bias, 0);
    out.activation = step.activation;
    out.before = numbers(step.before, n);
    out.residual = numbers(step.residual, n);
    out.ld_before = out.ld_residual = n;
    return out;
  }

  // In the format of the node.
  void plain(const kernels::GemmEpilogue* epilogue) const {
    const Tensor &x = of(node().inputs[0]), &w = of(node().inputs[1]);
    const MatmulFormat format(static_cast<DType>(static_cast<int>(node().number(0))),
                              context().rounding);
    const Dy dy = gradient_operand(node());
    Tensor to = y();
    if (w.dims() != 2) {
      multiply_batched(x, w, to, dy);
      return;
    }
    const std::int64_t k = w.dim(0), n = w.dim(1), m = to.count() / std::max<std::int64_t>(n, 1);
    const bool dense = x.is_contiguous() || x.dims() == 2;
    const Matrix a = matrix_of(as_operand(dense ? x : x.copied(), dy == Dy::first), Trans::no, k);
    const Matrix b = matrix_of(as_operand(w, dy == Dy::second), Trans::no, n);
    if (epilogue != nullptr) {
      kernels::gemm_fused(a.trans, b.trans, m, n, k, a.own.origin(), a.ld, b.own.origin(), b.ld,
                          0.0f, to.data(), n, *epilogue);
    } else {
      multiply(m, n, k, a, a.own.origin(), b, b.own.origin(), 0.0f, to.data());
    }
  }

  // Rows of the left operand are made in cache and multiplied there: one block on all threads, or
  // each thread blocks of its own against weights packed once.
  void by_blocks() const {
    const Step& group = step.prologue[0];
    const std::int64_t m = group.program.rows(), k = group.program.cols(), n = node().shape[-1];
    const Matrix b = matrix_of(of(node().inputs[1]), Trans::no, n);  // f32: is_plain_product()
    Tensor to = y();
    float* const c = to.data();
    if (m <= step.block_rows) {
      const Scratch x(m * k);
      make_rows(group, group.vectors, 0, x.data());
      kernels::gemm_fused(Trans::no, b.trans, m, n, k, x.data(), k, b.own.origin(), b.ld, 0.0f, c,
                          n, epilogue_from(0));
      return;
    }
    const kernels::PackedWeights weights =
        kernels::pack_weights(b.trans, k, n, b.own.origin(), b.ld);
    const std::int64_t blocks = (m + step.block_rows - 1) / step.block_rows;
    parallel_for(blocks, 1, [&](std::int64_t begin, std::int64_t end) {
      const Scratch x(step.block_rows * k);
      for (std::int64_t row = begin * step.block_rows; row < std::min(m, end * step.block_rows);
           row += step.block_rows) {
        const std::int64_t rows = std::min(step.block_rows, m - row);
        make_rows(group, rows < step.block_rows ? step.tail : group.vectors, row, x.data());
        kernels::gemm_packed(rows, x.data(), k, weights, 0.0f, c + row * n, n, epilogue_from(row));
      }
    });
  }

  // Rows from `row` on of all that the group computes; its last output is x.
  void make_rows(const Step& group, const kernels::VectorPlan& plan, std::int64_t row,
                 float* x) const {
    const float* in[3 * most_members];
    float* out[most_members];
    for (std::size_t i = 0; i < group.inputs.size(); ++i) {
      in[i] = of(group.inputs[i]).origin() + row * group.program.inputs()[i].strides[0];
    }
    for (std::size_t i = 0; i + 1 < group.outputs.size(); ++i) {
      const bool full = group.program.outputs()[i].kind == kernels::VectorOutput::full;
      out[i] = of(group.outputs[i]).origin() + row * (full ? group.program.cols() : 1);
    }
    out[group.outputs.size() - 1] = x;
    kernels::run(plan, in, out);
  }
};

}  // namespace detail
}  // namespace tinyscale
