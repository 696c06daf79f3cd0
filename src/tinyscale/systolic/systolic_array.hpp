#pragma once
// A systolic array of R x C processing elements: matmul() steps every PE through every tick and
// gives the product with its counters; timing() gives the same counters in closed form.
// Kung and Leiserson 1979; Jouppi et al. 2017 (TPU v1). Sums are fp32, a multiply-add rounds once:
//   weights, inputs stationary: for each tile of R rows of w, s = fma(x, w, s) down the rows from
//   +0, then the tiles' sums are added in order; outputs stationary: one s over k = 0 .. K - 1.

#include <cstdint>  // int64_t

#include "tinyscale/base/error.hpp"
#include "tinyscale/systolic/output_stationary.hpp"
#include "tinyscale/systolic/weight_stationary.hpp"
#include "tinyscale/tensor/create.hpp"
#include "tinyscale/tensor/matmul.hpp"

namespace tinyscale {

class SystolicArray {
 public:
  // Throws unless there is at least one row and one column.
  SystolicArray(Dim rows, Dim cols, Dataflow dataflow = Dataflow::weight_stationary)
      : rows_(rows.value), cols_(cols.value), dataflow_(dataflow) {
    if (rows_ < 1 || cols_ < 1) {
      detail::fail({"SystolicArray: ", rows_, " rows and ", cols_,
                    " columns were given; an array has at least 1 of each"});
    }
  }

  Schedule schedule = Schedule::doubled;
  Drain drain = Drain::shifted;

  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  Dataflow dataflow() const { return dataflow_; }

  // x [.., M, K] times w [K, N]: the product [.., M, N] and what it cost, stepped tick by tick.
  // Throws when the inner sizes differ or a size is zero. No gradient flows through it.
  SystolicRun matmul(const Tensor& x, const Tensor& w) const;

  // The costs of x [M, K] times w [K, N], no stepping. Throws when a size is below 1, or so large
  // that a count does not fit 64 bits.
  SystolicTiming timing(Dim m, Dim k, Dim n) const {
    SystolicTiming t = problem("SystolicArray::timing", m.value, k.value, n.value);
    detail::time_array(t);
    return t;
  }

  // The case before any count: sizes, folds and T.
  SystolicTiming problem(const char* function, std::int64_t m, std::int64_t k,
                         std::int64_t n) const {
    if (drain == Drain::instant && dataflow_ != Dataflow::output_stationary) {
      detail::fail({function, ": drain is instant, the array ", name_of(dataflow_),
                    "; instant is for output_stationary, here drain must be shifted"});
    }
    if (m < 1 || k < 1 || n < 1) {
      detail::fail({function, ": M, K, N are ", m, ", ", k, ", ", n, "; each must be at least 1"});
    }
    SystolicTiming t;
    t.rows = rows_;
    t.cols = cols_;
    t.dataflow = dataflow_;
    t.schedule = schedule;
    t.drain = drain;
    t.m = m;
    t.k = k;
    t.n = n;
    detail::fold(t);
    if (!detail::countable(t)) {
      detail::fail({function, ": M, K, N are ", m, ", ", k, ", ", n, " on ", rows_, " x ", cols_,
                    " PEs; the PE-ticks must stay below 2^62"});
    }
    return t;
  }

 private:
  std::int64_t rows_;
  std::int64_t cols_;
  Dataflow dataflow_;
};

namespace detail {

constexpr std::int64_t most_stepped = std::int64_t{1} << 26;  // PEs, of about 20 bytes each

// Sizes of x [.., M, K] times w [K, N], and the case they make on the array.
struct ArrayProblem {
  Shape output;  // [.., M, N]
  SystolicTiming timing;
  MatrixView x, w;
  Tensor own_x, own_w;  // what they look at

  ArrayProblem(const char* function, const SystolicArray& array, const Tensor& tx,
               const Tensor& tw) {
    const Matmul sizes = matmul_sizes(function, tx, tw, kernels::Trans::no);
    output = sizes.shape;
    timing = array.problem(function, sizes.m, sizes.k, sizes.n);
    if (timing.rows > most_stepped / timing.cols) {
      fail({function, ": the array is ", timing.rows, " x ", timing.cols,
            "; at most 2^26 PEs can be stepped, timing() takes larger ones"});
    }
    own_x = contiguous(tx);
    own_w = contiguous(tw);
    x = matrix_view(own_x.data(), sizes.m, sizes.k);
    w = matrix_view(own_w.data(), sizes.k, sizes.n);
  }
};

// Weights stationary, or inputs: that is the transposed product with the two operands swapped.
inline WeightStationary weight_stationary(const ArrayProblem& p, float* out) {
  if (p.timing.dataflow == Dataflow::input_stationary) {
    return WeightStationary(p.timing, p.w.transposed(), p.x.transposed(), out, 1, p.timing.n);
  }
  return WeightStationary(p.timing, p.x, p.w, out, p.timing.n, 1);
}

template <class Machine>
SystolicTiming step_to_end(Machine&& machine) {
  while (!machine.done()) {
    machine.step();
  }
  return machine.counters();
}

}  // namespace detail

inline SystolicRun SystolicArray::matmul(const Tensor& x, const Tensor& w) const {
  const detail::ArrayProblem p("SystolicArray::matmul", *this, x, w);
  SystolicRun run;
  run.output = zeros(p.output);
  float* out = run.output.data();
  const SystolicTiming counted =
      dataflow_ == Dataflow::output_stationary
          ? detail::step_to_end(detail::OutputStationary(p.timing, p.x, p.w, out))
          : detail::step_to_end(detail::weight_stationary(p, out));
  static_cast<SystolicTiming&>(run) = counted;
  return run;
}

}  // namespace tinyscale
