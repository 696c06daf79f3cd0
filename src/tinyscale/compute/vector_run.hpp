#pragma once
// Vector programs at work: blocks of rows on several threads, step after step of the plan on each.
// What is the same for all rows is computed once before. Tasks depend on the sizes and not on the
// threads, and so do all sums.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/past_caches.hpp"
#include "tinyscale/compute/scratch.hpp"
#include "tinyscale/compute/vector_ops.hpp"
#include "tinyscale/compute/vector_plan.hpp"

namespace tinyscale {
namespace detail {

// What a block or the whole run works on: `rows` rows from row on, n columns from col on.
struct VectorBlock {
  std::int64_t row = 0, rows = 1, col = 0, n = 0;
  std::int64_t filled = 0;  // rows in the parts of column sums before this block
};

struct VectorRun {
  const kernels::VectorPlan& plan;
  const float* const* inputs;
  float* const* places;  // where each place begins, those of blocks excepted
  double* column_parts;  // [column output, task of rows, col]
  double* totals;        // [total output, task]
  std::int64_t row_tasks, col_tasks;
};

// Brings an input to where it is computed with; gives another place where it is that already.
inline void gather_input(const VectorRun& run, const VectorStep& step, const VectorBlock& block,
                         float*& to) {
  const kernels::VectorPlan& plan = run.plan;
  const VectorInput& in = plan.inputs[static_cast<std::size_t>(step.number)];
  const float* const from = run.inputs[step.number];
  if (step.extent == kernels::VectorExtent::single) {
    std::fill(to, to + 16, from[0]);
    return;
  }
  const bool columns = varies_with_columns(step.extent), many = varies_with_rows(step.extent);
  const std::int64_t rows = many ? block.rows : 1, n = columns ? block.n : 1;
  const std::int64_t width = in.column_step;
  const int dims = many ? plan.outer.size() : 0;
  std::int64_t offset = many ? row_offset(plan.outer, in, block.row) : 0;
  std::int64_t place[Shape::max_dims] = {};
  for (std::int64_t i = dims - 1, row = block.row; i >= 0; --i) {
    place[i] = row % plan.outer[static_cast<int>(i)];
    row /= plan.outer[static_cast<int>(i)];
  }
  const bool beside = columns && width == 1 && dims > 0 && in.strides[dims - 1] == plan.cols &&
                      block.n == plan.cols && place[dims - 1] + rows <= plan.outer[dims - 1];
  if (beside) {
    to = const_cast<float*>(from + offset);
    return;
  }
  float* y = to;
  for (std::int64_t r = 0; r < rows; ++r, y += n) {
    const float* const x = from + offset + (columns ? block.col * width : 0);
    if (width == 1) {
      std::memcpy(y, x, static_cast<std::size_t>(n) * sizeof(float));
    } else {
      for (std::int64_t j = 0; j < n; ++j) {
        y[j] = x[j * width];
      }
    }
    for (int i = dims - 1; i >= 0; --i) {
      offset += in.strides[i];
      if (++place[i] < plan.outer[i]) {
        break;
      }
      offset -= plan.outer[i] * in.strides[i];
      place[i] = 0;
    }
  }
}

// The steps, one after another, of one block; `at` says where each place is now.
struct VectorSteps {
  const VectorRun& run;
  float** at;
  float* scratch;  // of blocks

  TINYSCALE_INLINE void rows_of(const VectorStep& step, const VectorBlock& block,
                                VectorRows& all) const {
    typedef kernels::VectorExtent Extent;
    const bool reduces = is_row_reduction(step.op) || step.op == kernels::VectorOp::sum_exp;
    const bool wide = step.extent == Extent::full || reduces;
    all.rows = varies_with_rows(step.extent) && wide ? block.rows : 1;
    all.n = wide || step.extent == Extent::per_column ? block.n
            : step.extent == Extent::per_row          ? block.rows
                                                      : 16;
    TINYSCALE_UNROLL
    for (int k = 0; k < 3; ++k) {
      all.a[k] = at[step.places[k]];
      all.row_step[k] = step.rows_apart[k] == 2 ? block.n : step.rows_apart[k];
      all.moves[k] = step.moves[k];
      all.scalar[k] = step.scalar[k];
    }
    all.y = at[step.target];
    all.y_moves = !step.unwanted;
    all.y_row_step = all.y_moves ? block.n : 0;
    all.sums = step.sum >= 0 ? at[step.sum] : nullptr;
    all.ahead = all.a[0];
    all.ahead_shift = step.ahead_shift;
    if (step.ahead >= 0) {
      const std::int64_t floats = block.rows * block.n;
      all.ahead = at[step.ahead] + floats +
                  static_cast<std::int64_t>(step.ahead_from * static_cast<float>(floats));
    }
    if (step.flat && step.extent == Extent::full) {
      all.n *= all.rows;
      all.rows = 1;
    }
  }

  template <class L>
  TINYSCALE_INLINE void compute(const VectorStep& step, const VectorBlock& block) const {
    typedef kernels::VectorOp O;
    VectorRows all;
    rows_of(step, block, all);
    const bool sums = step.sum >= 0;
#define TINYSCALE_CASE(NAME)   \
  case O::NAME:                \
    all_rows<L, O::NAME>(all); \
    break;
#define TINYSCALE_SUM_CASE(NAME)       \
  case O::NAME:                        \
    if (sums) {                        \
      all_rows<L, O::NAME, true>(all); \
    } else {                           \
      all_rows<L, O::NAME>(all);       \
    }                                  \
    break;
    switch (step.op) {
      TINYSCALE_CASE(copy)
      TINYSCALE_CASE(add)
      TINYSCALE_CASE(sub)
      TINYSCALE_SUM_CASE(mul)
      TINYSCALE_CASE(div)
      TINYSCALE_CASE(mul_add)
      TINYSCALE_CASE(maximum)
      TINYSCALE_CASE(less)
      TINYSCALE_CASE(equal)
      TINYSCALE_CASE(where)
      TINYSCALE_CASE(exp)
      TINYSCALE_CASE(log)
      TINYSCALE_CASE(sqrt)
      TINYSCALE_CASE(tanh)
      TINYSCALE_CASE(erf)
      TINYSCALE_SUM_CASE(square)
      TINYSCALE_CASE(cube)
      TINYSCALE_CASE(relu)
      TINYSCALE_CASE(sigmoid)
      TINYSCALE_CASE(silu)
      TINYSCALE_CASE(gelu)
      TINYSCALE_CASE(gelu_tanh)
      TINYSCALE_CASE(relu_slope)
      TINYSCALE_CASE(tanh_slope)
      TINYSCALE_CASE(silu_slope)
      TINYSCALE_CASE(gelu_slope)
      TINYSCALE_CASE(gelu_tanh_slope)
      TINYSCALE_SUM_CASE(exp_sub)
      TINYSCALE_SUM_CASE(exp_below_max)
      case O::sub_squares: all_rows<L, O::sub_squares, true>(all); break;
      case O::pow: power_rows(all); break;
      case O::column_number:
        for (std::int64_t j = 0; j < block.n; ++j) {
          all.y[j] = static_cast<float>(block.col + j);
        }
        break;
      case O::stream: stream_copy<L>(all.n, all.a[0], all.y); break;
      case O::gather:
        if (varies_with_rows(step.extent)) {
          at[step.target] = scratch + run.plan.places[static_cast<std::size_t>(step.target)].offset;
        }
        gather_input(run, step, block, at[step.target]);
        break;
      default: reduce_rows<L>(step.op, all); break;
    }
#undef TINYSCALE_CASE
#undef TINYSCALE_SUM_CASE
  }
};

// Tasks [begin, end): a part of all columns, and so many rows of it. Without tasks: what does not
// vary with the rows, before all others. One body for both, since the loops of all operations are
// in it.
struct VectorTasks {
  const VectorRun& run_;
  std::int64_t begin, end;
  float** at;
  float* scratch;
  bool once;

  template <class L>
  TINYSCALE_INLINE void run() const {
    const kernels::VectorPlan& plan = run_.plan;
    const List<VectorStep>& steps = once ? plan.once : plan.steps;
    VectorBlock block;
    block.n = plan.cols;
    std::int64_t task = begin, last = 1;
    bool more = once || begin < end, starts = !once;
    while (more) {
      if (starts) {
        block.row = task / run_.col_tasks * plan.task_rows;
        block.col = task % run_.col_tasks * plan.block_cols;
        block.n = std::min(plan.block_cols, plan.cols - block.col);
        last = std::min(plan.rows, block.row + plan.task_rows);
        block.filled = 0;
        clear_parts(block.n);
      }
      if (!once) {
        block.rows = std::min(plan.block_rows, last - block.row);
        place(block);
      }
      for (const VectorStep& step : steps) {
        if (!step.first_columns || block.col == 0) {
          compute<L>(step, block, task);
        }
      }
      block.filled = (block.filled + block.rows) % 32;
      block.row += plan.block_rows;
      starts = once || block.row >= last;
      if (starts) {
        end_task<L>(block, task);
        ++task;
        more = task < end;
      }
    }
    if (plan.streams && !once) {
      end_past_caches();
    }
  }

  template <class L>
  TINYSCALE_INLINE void compute(const VectorStep& step, const VectorBlock& block,
                                std::int64_t task) const {
    typedef kernels::VectorOp O;
    if (step.op == O::column_sums) {
      add_columns<L>(step, block, task);
    } else if (step.op == O::total || step.op == O::total_squares) {
      const std::int64_t n = block.rows * block.n;
      const float* const x = at[step.places[0]];
      double sum = 0;
      if (step.op == O::total) {
        SumBlock<1>{n, x, &sum}.template run<L>();
      } else {
        SumBlock<2>{n, x, &sum}.template run<L>();
      }
      run_.totals[step.number * run_.row_tasks * run_.col_tasks + task] += sum;
    } else {
      VectorSteps{run_, at, scratch}.compute<L>(step, block);
      if (step.extent == kernels::VectorExtent::single && step.op != O::gather) {
        std::fill(at[step.target] + 1, at[step.target] + 16, *at[step.target]);
      }
    }
  }

  template <class L>
  TINYSCALE_INLINE void end_task(const VectorBlock& block, std::int64_t task) const {
    if (once || block.filled == 0) {
      return;
    }
    for (const VectorStep& step : run_.plan.steps) {
      if (step.op == kernels::VectorOp::column_sums) {
        flush<L>(step, block, task);
      }
    }
  }

  void place(const VectorBlock& block) const {
    const kernels::VectorPlan& plan = run_.plan;
    for (const int p : plan.moving) {
      const VectorPlace& to = plan.places[static_cast<std::size_t>(p)];
      std::int64_t offset = 0;
      switch (to.moves) {
        case VectorPlace::no: continue;
        case VectorPlace::densely: offset = block.row * plan.cols + block.col; break;
        case VectorPlace::by_row: offset = block.row; break;
        case VectorPlace::by_column: offset = block.col; break;
        case VectorPlace::strided:
          offset =
              block.col +
              row_offset(plan.outer, plan.inputs[static_cast<std::size_t>(to.index)], block.row);
          break;
      }
      at[p] = run_.places[p] + offset;
    }
  }

  void clear_parts(std::int64_t n) const {
    for (const VectorStep& step : run_.plan.steps) {
      if (step.op == kernels::VectorOp::column_sums) {
        std::fill(at[step.target], at[step.target] + n, 0.0f);
      }
    }
  }

  template <class L>
  TINYSCALE_INLINE void add_columns(const VectorStep& step, const VectorBlock& block,
                                    std::int64_t task) const {
    std::int64_t filled = block.filled;
    for (std::int64_t r = 0; r < block.rows;) {
      const std::int64_t rows = std::min(32 - filled, block.rows - r);
      add_rows<L>(rows, block.n, at[step.places[0]] + r * block.n, block.n, at[step.target]);
      r += rows;
      filled += rows;
      if (filled == 32) {
        flush<L>(step, block, task);
        filled = 0;
      }
    }
  }

  template <class L>
  TINYSCALE_INLINE void flush(const VectorStep& step, const VectorBlock& block,
                              std::int64_t task) const {
    const kernels::VectorPlan& plan = run_.plan;
    float* const part = at[step.target];
    double* const sums = run_.column_parts +
                         (step.number * run_.row_tasks + task / run_.col_tasks) * plan.cols +
                         block.col;
    ColumnSums{block.n, part, sums}.template run<L>();
    std::fill(part, part + block.n, 0.0f);
  }
};

inline void check_pointers(const char* what, std::size_t count, const float* const* pointers) {
  for (std::size_t i = 0; i < count; ++i) {
    if (pointers[i] == nullptr) {
      fail({"run: ", what, " ", i, " of ", count, " is null; a plan needs all of them"});
    }
  }
}

inline void begin_places(const kernels::VectorPlan& plan, const float* const* inputs,
                         float* const* outputs, float* once, float** places) {
  for (std::size_t p = 0; p < plan.places.size(); ++p) {
    const VectorPlace& at = plan.places[p];
    places[p] = at.memory == VectorPlace::input    ? const_cast<float*>(inputs[at.index])
                : at.memory == VectorPlace::output ? outputs[at.index]
                : at.memory == VectorPlace::once   ? once + at.offset
                                                   : nullptr;
    if (at.literal) {
      std::fill(places[p], places[p] + 16, at.number);
    }
  }
}

inline void run_tasks(const VectorRun& run, std::int64_t begin, std::int64_t end) {
  const kernels::VectorPlan& plan = run.plan;
  const Scratch lease(plan.block_floats);
  List<float*> at(plan.places.size());
  for (std::size_t p = 0; p < at.size(); ++p) {
    const VectorPlace& place = plan.places[p];
    at[p] = place.memory == VectorPlace::block ? lease.data() + place.offset : run.places[p];
  }
  run_on_lanes(VectorTasks{run, begin, end, at.data(), lease.data(), false});
}

// Tasks' sums added in order.
inline void end_sums(const VectorRun& run, float* const* outputs) {
  const kernels::VectorPlan& plan = run.plan;
  const std::int64_t tasks = run.row_tasks * run.col_tasks;
  for (std::size_t o = 0; o < plan.total_outputs.size(); ++o) {
    double sum = 0;
    for (std::int64_t task = 0; task < tasks; ++task) {
      sum += run.totals[static_cast<std::int64_t>(o) * tasks + task];
    }
    outputs[plan.total_outputs[o]][0] = static_cast<float>(sum);
  }
  for (std::size_t o = 0; o < plan.column_outputs.size(); ++o) {
    const double* const parts =
        run.column_parts + static_cast<std::int64_t>(o) * run.row_tasks * plan.cols;
    for (std::int64_t j = 0; j < plan.cols; ++j) {
      double sum = 0;
      for (std::int64_t task = 0; task < run.row_tasks; ++task) {
        sum += parts[task * plan.cols + j];
      }
      outputs[plan.column_outputs[o]][j] = static_cast<float>(sum);
    }
  }
}

}  // namespace detail

namespace kernels {

// inputs[i] and outputs[i] as the program numbers them.
inline void run(const VectorPlan& plan, const float* const* inputs, float* const* outputs) {
  detail::check_pointers("input", plan.inputs.size(), inputs);
  detail::check_pointers("output", static_cast<std::size_t>(plan.output_count), outputs);
  const detail::Scratch once(plan.once_floats);
  List<float*> places(plan.places.size());
  detail::begin_places(plan, inputs, outputs, once.data(), places.data());
  detail::VectorRun all{plan, inputs, places.data(), nullptr, nullptr, 0, 1};
  detail::run_on_lanes(detail::VectorTasks{all, 0, 0, places.data(), nullptr, true});
  for (std::size_t i = 0; i < plan.single_outputs.size(); ++i) {
    *outputs[plan.single_outputs[i]] = *places[static_cast<std::size_t>(plan.single_places[i])];
  }
  if (plan.steps.empty()) {
    return;
  }
  all.row_tasks = (plan.rows + plan.task_rows - 1) / plan.task_rows;
  all.col_tasks = plan.cols == 0 ? 1 : (plan.cols + plan.block_cols - 1) / plan.block_cols;
  const std::int64_t tasks = all.row_tasks * all.col_tasks;
  List<double> parts(plan.column_outputs.size() *
                     static_cast<std::size_t>(all.row_tasks * plan.cols));
  List<double> totals(plan.total_outputs.size() * static_cast<std::size_t>(tasks));
  all.column_parts = parts.data();
  all.totals = totals.data();
  const std::int64_t task_floats = std::max<std::int64_t>(1, plan.task_rows * plan.block_cols);
  const std::int64_t least = 32768 / static_cast<std::int64_t>(plan.steps.size() + 1);
  parallel_for(tasks, std::max<std::int64_t>(1, least / task_floats),
               [&](std::int64_t begin, std::int64_t end) { detail::run_tasks(all, begin, end); });
  detail::end_sums(all, outputs);
}

}  // namespace kernels
}  // namespace tinyscale
