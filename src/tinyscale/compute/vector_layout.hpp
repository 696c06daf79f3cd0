#pragma once
// The steps of a plan, and its memory: values share few buffers, each for the time that it is
// needed, and while a block is computed the next one is fetched.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tinyscale/base/list.hpp"
#include "tinyscale/compute/vector_program.hpp"

namespace tinyscale {
namespace detail {

// Where a value stands, and what a block adds to its pointer.
struct VectorPlace {
  enum Memory : unsigned char { block, once, input, output };
  enum Moves : unsigned char { no, densely, by_row, by_column, strided };
  Memory memory = block;
  Moves moves = no;
  kernels::VectorExtent extent = kernels::VectorExtent::single;
  bool unwanted = false;  // only its sum is needed
  bool literal = false;
  float number = 0.0f;
  int index = 0;            // of an input or output
  std::int64_t offset = 0;  // floats into scratch memory of the block or of the run
};

struct VectorStep {
  kernels::VectorOp op = kernels::VectorOp::copy;
  kernels::VectorExtent extent = kernels::VectorExtent::full;
  bool flat = false;  // all rows of a block are one
  bool moves[3] = {true, true, true}, scalar[3] = {false, false, false};
  bool unwanted = false;                    // only the sums are wanted
  bool first_columns = false;               // tasks of other columns leave it out
  unsigned char rows_apart[3] = {0, 0, 0};  // 1: one number, 2: a row
  int places[3] = {-1, -1, -1};
  int target = -1;
  int sum = -1;     // place of the sums of its rows
  int number = -1;  // of an input, a total, or sums of columns
  int ahead = -1;   // an input: while this is computed, a part of its next block is fetched,
  float ahead_from = 0.0f;  // from this part of the block on,
  int ahead_shift = 0;      // of each number 2^-ahead_shift
};

}  // namespace detail

namespace kernels {

struct VectorPlan {
  Shape outer;
  std::int64_t rows = 0, cols = 0;
  std::int64_t block_rows = 1, block_cols = 1;
  std::int64_t task_rows = 1;  // a task is so many rows of block_cols columns
  std::int64_t once_floats = 0, block_floats = 0;
  List<detail::VectorInput> inputs;
  List<detail::VectorPlace> places;
  List<detail::VectorStep> once, steps;
  List<int> moving;                         // places that are elsewhere for each block
  List<int> column_outputs, total_outputs;  // numbers of outputs
  List<int> single_outputs, single_places;  // written from places after `once`
  int output_count = 0;
  bool streams = false;
};

}  // namespace kernels

namespace detail {

// The last step that reads each place.
inline List<int> last_uses(const kernels::VectorPlan& plan) {
  List<int> last;
  last.assign(plan.places.size(), -1);
  for (std::size_t s = 0; s < plan.steps.size(); ++s) {
    for (const int p : plan.steps[s].places) {
      if (p >= 0) {
        last[static_cast<std::size_t>(p)] = static_cast<int>(s);
      }
    }
  }
  return last;
}

// Gives the places of a plan their memory.
class VectorLayout {
 public:
  explicit VectorLayout(kernels::VectorPlan& plan) : plan_(plan), last_(last_uses(plan)) {
    number_.assign(plan.places.size(), -1);
    for (std::size_t s = 0; s < plan.steps.size(); ++s) {
      give_buffers(plan.steps[s], static_cast<int>(s));
    }
  }

  // How many blocks of floats the cache is to hold: a dense input counts twice, since its next
  // block is fetched, and values in the memory of one output once.
  std::int64_t live() const {
    std::int64_t memory = 0;
    for (std::size_t p = 0; p < plan_.places.size(); ++p) {
      bool again = false;
      for (std::size_t q = 0; q < p; ++q) {
        again = again || (is_memory(q) && plan_.places[p].memory == plan_.places[q].memory &&
                          plan_.places[p].index == plan_.places[q].index);
      }
      if (is_memory(p) && !again) {
        memory += plan_.places[p].memory == VectorPlace::input ? 2 : 1;
      }
    }
    return fulls_ + memory;
  }

  void finish() {
    const std::int64_t rows = (plan_.block_rows + 15) / 16 * 16;
    const std::int64_t full = (plan_.block_rows * plan_.block_cols + 15) / 16 * 16;
    plan_.block_floats = 16 + fulls_ * full + arrays_ * rows;  // 16 for what is unwanted
    plan_.once_floats = 0;
    plan_.moving.clear();
    for (int p = 0; p < static_cast<int>(plan_.places.size()); ++p) {
      VectorPlace& at = place(p);
      const std::int64_t n = number_[index(p)];
      if (at.memory == VectorPlace::once) {
        at.offset = plan_.once_floats;
        plan_.once_floats += varies_with_columns(at.extent) ? (plan_.cols + 15) / 16 * 16 : 16;
      } else if (n >= 0) {
        at.offset = 16 + (at.extent == Extent::full ? n * full : fulls_ * full + n * rows);
      }
      if (at.moves != VectorPlace::no) {
        plan_.moving.push_back(p);
      }
    }
    end_steps(plan_.once);
    end_steps(plan_.steps);
    share_prefetch();
    choose_task();
  }

 private:
  typedef kernels::VectorOp Op;
  typedef kernels::VectorExtent Extent;

  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  VectorPlace& place(int i) { return plan_.places[index(i)]; }
  bool has_buffer(int p) const {
    const VectorPlace& at = plan_.places[index(p)];
    return at.memory == VectorPlace::block && !at.unwanted;
  }

  // A full buffer, or an array over the rows of a block: one that is free.
  void take(int p) {
    if (p < 0 || !has_buffer(p) || number_[index(p)] >= 0) {
      return;
    }
    const bool full = place(p).extent == Extent::full;
    List<int>& free = full ? free_fulls_ : free_arrays_;
    if (free.empty()) {
      free.push_back(full ? fulls_++ : arrays_++);
    }
    number_[index(p)] = free.back();
    free.pop_back();
  }

  // Where no later step reads it. A place that stands twice in a step is given back once.
  void release(int p, int step, List<int>& released) {
    bool ends = p >= 0 && has_buffer(p) && number_[index(p)] >= 0 && last_[index(p)] <= step;
    for (const int other : released) {
      ends = ends && other != p;
    }
    if (ends) {
      released.push_back(p);
      (place(p).extent == Extent::full ? free_fulls_ : free_arrays_).push_back(number_[index(p)]);
    }
  }

  // A target may stand where an operand ended, since each number is read before it is written.
  void give_buffers(const VectorStep& step, int s) {
    List<int> released;
    const bool in_place = step.op != Op::column_sums && step.op != Op::total &&
                          step.op != Op::total_squares && step.op != Op::row_pick;
    for (int k = 0; k < 3 && in_place; ++k) {
      release(step.places[k], s, released);
    }
    if (step.op == Op::column_sums) {
      number_[index(step.target)] = fulls_++;  // kept from block to block
    } else {
      take(step.target);
      take(step.sum);
    }
    for (int k = 0; k < 3 && !in_place; ++k) {
      release(step.places[k], s, released);
    }
    if (step.op != Op::column_sums) {
      release(step.target, s, released);
      release(step.sum, s, released);
    }
  }

  bool is_memory(std::size_t p) const {
    const VectorPlace& at = plan_.places[p];
    return at.extent == Extent::full && at.memory >= VectorPlace::input;
  }

  // What a run would look up for every block.
  void end_steps(List<VectorStep>& steps) {
    for (VectorStep& s : steps) {
      s.unwanted = place(s.target).unwanted;
      for (int k = 0; k < 3; ++k) {
        if (s.places[k] < 0) {
          s.places[k] = s.target;  // never read
          continue;
        }
        const Extent from = place(s.places[k]).extent;
        s.rows_apart[k] = from == Extent::full ? 2 : from == Extent::per_row ? 1 : 0;
      }
    }
  }

  // How long a step takes, about, in cheap ones.
  static int weight(Op op) {
    if (op == Op::gather || op == Op::row_pick || op == Op::sum_exp) {
      return 0;  // fetch for themselves, or nothing
    }
    return (op >= Op::exp && op <= Op::exp_sub && op != Op::square && op != Op::relu) ||
                   op == Op::exp_below_max
               ? 4
               : 1;
  }

  // The next block's dense inputs are fetched evenly over the time of this one.
  void share_prefetch() {
    List<int> dense;
    int all = 0;
    for (int p = 0; p < static_cast<int>(plan_.places.size()); ++p) {
      if (place(p).memory == VectorPlace::input && place(p).moves == VectorPlace::densely) {
        dense.push_back(p);
      }
    }
    for (const VectorStep& s : plan_.steps) {
      all += s.extent == Extent::full || is_row_reduction(s.op) ? weight(s.op) : 0;
    }
    int before = 0;
    for (VectorStep& s : plan_.steps) {
      const int own = s.extent == Extent::full || is_row_reduction(s.op) ? weight(s.op) : 0;
      if (own > 0 && !dense.empty()) {
        const int at = before * static_cast<int>(dense.size());
        s.ahead = dense[index(at / all)];
        s.ahead_from = static_cast<float>(at % all) / static_cast<float>(all);
        while ((own * static_cast<int>(dense.size()) << (s.ahead_shift + 1)) <= all) {
          ++s.ahead_shift;
        }
      }
      before += own;
    }
  }

  // Sums of columns are gathered over at least 32 rows, in at most some 32 tasks of one column.
  void choose_task() {
    plan_.task_rows = plan_.block_rows;
    if (!plan_.column_outputs.empty()) {
      const std::int64_t least = std::max<std::int64_t>(32, (plan_.rows + 31) / 32);
      plan_.task_rows = (least + plan_.block_rows - 1) / plan_.block_rows * plan_.block_rows;
    }
  }

  kernels::VectorPlan& plan_;
  List<int> last_, number_;
  List<int> free_fulls_, free_arrays_;
  int fulls_ = 0, arrays_ = 0;
};

}  // namespace detail
}  // namespace tinyscale
