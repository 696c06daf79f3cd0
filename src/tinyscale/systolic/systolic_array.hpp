#pragma once
// A systolic array of R x C processing elements: matmul() steps every PE through every tick and
// gives the product with its counters; timing() gives the same counters in closed form.
// Kung and Leiserson 1979; Jouppi et al. 2017 (TPU v1). Sums are fp32, a multiply-add rounds once:
//   weights, inputs stationary: for each tile of R rows of w, s = fma(x, w, s) down the rows from
//   +0, then the tiles' sums are added in order; outputs stationary: one s over k = 0 .. K - 1.
// In several passes: each tile pass by pass, or one s over all k of a pass, then of the next.

#include <algorithm>  // min, max, max_element
#include <cstdint>    // int64_t, int32_t
#include <cstring>    // memcpy
#include <vector>     // vector

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/base/threads.hpp"
#include "tinyscale/systolic/array_stepper.hpp"
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
  bool tight = false;         // stop at the last useful result: no wait for that of a full tile
  DType format = DType::f32;  // of the operands; also bf16, fp8_e4m3, fp8_e5m2, int8
  int passes = 1;             // bf16 only: 3 or 6 products of bf16 pieces for an f32 one

  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  Dataflow dataflow() const { return dataflow_; }

  // x [.., M, K] times w [K, N]: the product [.., M, N] and what it cost, stepped tick by tick.
  // Throws when the inner sizes differ, a size is zero, or an int8 array is given no int8. No
  // gradient flows through it.
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
    check_modes(function);
    if (m < 1 || k < 1 || n < 1) {
      detail::fail({function, ": M, K, N are ", m, ", ", k, ", ", n, "; each must be at least 1"});
    }
    if (format == DType::int8 && k > 131071) {
      detail::fail({function, ": K is ", k, "; int32 sums of int8 products hold at most 131071"});
    }
    SystolicTiming t;
    t.rows = rows_;
    t.cols = cols_;
    t.dataflow = dataflow_;
    t.schedule = schedule;
    t.drain = drain;
    t.tight = tight;
    t.format = format;
    t.passes = passes;
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
  void check_modes(const char* function) const {
    name_of(dataflow_), name_of(schedule), name_of(drain);  // refuse what is none
    const bool outputs = dataflow_ == Dataflow::output_stationary;
    const bool shifted = drain == Drain::shifted;
    if (!outputs && !shifted) {
      detail::fail({function, ": drain is instant, the array ", name_of(dataflow_),
                    "; instant is for output_stationary, here drain must be shifted"});
    }
    if (outputs && schedule != Schedule::serial && (schedule == Schedule::skewed || !shifted)) {
      detail::fail({function, ": schedule is ", name_of(schedule), ", drain ", name_of(drain),
                    "; an output_stationary array has serial with shifted or instant, and doubled "
                    "with shifted"});
    }
    if (format != DType::f32 && format != DType::bf16 && format != DType::fp8_e4m3 &&
        format != DType::fp8_e5m2 && format != DType::int8) {
      detail::fail({function, ": format is ", name_of(format),
                    "; there are f32, bf16, fp8_e4m3, fp8_e5m2 and int8"});
    }
    if (passes != 1 && (format != DType::bf16 || (passes != 3 && passes != 6))) {
      detail::fail({function, ": passes is ", passes, ", format ", name_of(format),
                    "; bf16 has 1, 3 or 6 passes, other formats 1"});
    }
  }

  std::int64_t rows_;
  std::int64_t cols_;
  Dataflow dataflow_;
};

namespace detail {

constexpr std::int64_t most_stepped = std::int64_t{1} << 26;  // PEs
constexpr double most_pe_ticks = 0x1p40;                      // a minute or more

// The operands of a case as the array reads them.
struct ArrayOperands {
  ArrayOperand stream, tile;

  ArrayOperands(const SystolicTiming& t, const char* function, const MatrixView& x,
                const MatrixView& w) {
    const bool inputs = t.dataflow == Dataflow::input_stationary;  // the transposed product
    ArrayOperand ox = array_operand(inputs ? x.transposed() : x, t.format, t.passes, function, "x");
    ArrayOperand ow = array_operand(inputs ? w.transposed() : w, t.format, t.passes, function, "w");
    stream = std::move(inputs ? ow : ox);
    tile = std::move(inputs ? ox : ow);
  }

  ArrayWork work(float* out) const {
    ArrayWork all;
    all.stream = &stream;
    all.tile = &tile;
    all.out = out;
    return all;
  }
};

inline void add_counts(const SystolicTiming& part, SystolicTiming& all) {
  all.macs += part.macs;
  all.sram_reads_input += part.sram_reads_input;
  all.sram_reads_weight += part.sram_reads_weight;
  all.sram_writes_output += part.sram_writes_output;
  all.accumulator_reads += part.accumulator_reads;
  all.accumulator_writes += part.accumulator_writes;
  add_times(part.ledger, 1, all.ledger);
}

// Columns of tiles are independent: each part of them has an array of its own on a thread of its
// own, and its PEs are counted from the moment the wave of its first tile reaches them.
inline List<ArrayWork> divide(const SystolicTiming& t, const ArrayWork& whole) {
  const std::int64_t folds =
      whole.folds == nullptr ? t.folds() : static_cast<std::int64_t>(whole.folds->size());
  const std::int64_t parts = std::max<std::int64_t>(
      1, std::min<std::int64_t>(t.rows * t.cols * folds * t.stream >> 21,
                                whole.trace[0] == nullptr ? thread_count() / whole.arrays : 1));
  List<ArrayWork> works;
  std::int64_t first = 0;
  for (std::int64_t f = 1; f <= folds; ++f) {
    const Fold fold = f == folds               ? Fold()
                      : whole.folds != nullptr ? (*whole.folds)[static_cast<std::size_t>(f)]
                                               : tile_of(t, f);
    const bool whole_k = whole.folds == nullptr ||  // the sums before this fold are complete
                         (*whole.folds)[static_cast<std::size_t>(f - 1)].k0 + t.rows >= t.k;
    const bool begins = keeps_outputs(t) ? fold.m0 == 0 : fold.k0 == 0 && whole_k;
    const auto done =
        static_cast<std::int64_t>(works.size() / static_cast<std::size_t>(whole.arrays));
    if (f == folds || (begins && f * parts >= folds * (done + 1))) {
      for (std::int64_t a = 0; a < whole.arrays; ++a) {
        works.push_back(whole);
        works.back().array = a;
        works.back().first = first;
        works.back().last = f;
      }
      first = f;
    }
  }
  return works;
}

// Steps every PE of every array through a run; `whole` says what is computed.
inline SystolicTiming step_array(const SystolicTiming& problem, const ArrayWork& whole) {
  List<ArrayWork> works = divide(problem, whole);
  List<Shared<ArrayStepper>> steppers(works.size());
  std::vector<std::int64_t> ends(works.size());
  const auto step = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto at = static_cast<std::size_t>(i);
      steppers[at].reset(new ArrayStepper(problem, works[at]));
      ends[at] = steppers[at]->run();
    }
  };
  parallel_for(static_cast<std::int64_t>(works.size()), 1, LoopBody(step));
  SystolicTiming all = problem;
  all.cycles = *std::max_element(ends.begin(), ends.end());  // tight: not always the last tile's
  for (const Shared<ArrayStepper>& stepper : steppers) {
    add_counts(stepper->finish(all.cycles), all);
  }
  return all;
}

// The same for placed folds on several arrays; null: the folds of the case, on one array. x [M, K],
// w [K, N], out [M, N] words.
inline SystolicTiming step_folds(const SystolicTiming& problem, const List<Fold>* folds,
                                 std::int64_t arrays, const MatrixView& x, const MatrixView& w,
                                 float* out, const char* function) {
  const std::int64_t ticks =
      folds == nullptr ? nth_fold(problem, problem.folds() - 1).end() : folds->back().end();
  if (static_cast<double>(problem.rows * problem.cols * arrays) * static_cast<double>(ticks) >
      most_pe_ticks) {
    fail({function, ": ", arrays, " x ", problem.rows, " x ", problem.cols, " PEs for ", ticks,
          " ticks; at most 2^40 PE-ticks are stepped, timing takes larger ones"});
  }
  const ArrayOperands operands(problem, function, x, w);
  ArrayWork work = operands.work(out);
  work.arrays = arrays;
  work.folds = folds;
  return step_array(problem, work);
}

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

// int32 sums, and the floats nearest to them in their place.
inline std::vector<std::int32_t> whole_sums(float* words, std::int64_t count) {
  std::vector<std::int32_t> sums(static_cast<std::size_t>(count));
  std::memcpy(sums.data(), words, sums.size() * sizeof(float));
  for (std::int64_t i = 0; i < count; ++i) {
    words[i] = static_cast<float>(sums[static_cast<std::size_t>(i)]);
  }
  return sums;
}

}  // namespace detail

inline SystolicRun SystolicArray::matmul(const Tensor& x, const Tensor& w) const {
  const detail::ArrayProblem p("SystolicArray::matmul", *this, x, w);
  SystolicRun run;
  run.output = zeros(p.output);
  static_cast<SystolicTiming&>(run) = detail::step_folds(
      p.timing, nullptr, 1, p.x, p.w, run.output.data(), "SystolicArray::matmul");
  detail::rate(run, run.stream * run.folds());
  if (format == DType::int8) {
    run.sums = detail::whole_sums(run.output.data(), run.output.count());
  }
  return run;
}

}  // namespace tinyscale
