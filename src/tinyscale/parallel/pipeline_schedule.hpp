#pragma once
// A pipeline schedule as plain data: what each rank does in which order. Stages are the pieces of
// the model in order, `chunks` of them on each rank; stage s needs the activations of s - 1 and the
// gradient of s + 1. GPipe: arXiv 1811.06965; 1F1B and interleaving: 2104.04473; ZB-H1: 2401.10241.

#include <cstddef>  // size_t
#include <string>   // string
#include <vector>   // vector

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"

namespace tinyscale {

// F; B, the whole backward; its two halves: I, the gradient of the input, that the stage before
// waits for, and W, that of the weights, for which nobody waits.
enum class PipelineWork { forward, backward, input_gradient, weight_gradient };

inline char letter_of(PipelineWork work) {
  const int number = static_cast<int>(work);
  return number < 0 || number > 3 ? '?' : "FBIW"[number];
}

struct PipelineOp {
  PipelineWork work = PipelineWork::forward;
  int stage = 0, microbatch = 0;
};

// "F of stage 1, microbatch 0"
inline void append_text(std::string& out, const PipelineOp& op) {
  out += detail::cat({letter_of(op.work), " of stage ", op.stage, ", microbatch ", op.microbatch});
}

struct PipelineSchedule {
  std::string name;
  int ranks = 0, stages = 0, microbatches = 0;
  // Of each stage. Where the parameters are held twice (DualPipe) the second half of the
  // microbatches goes through a second copy, whose ranks follow: 2 stages entries.
  std::vector<int> rank_of;
  List<List<PipelineOp>> program;  // of each rank, in order

  bool empty() const { return program.empty(); }
  int chunks() const { return ranks > 0 ? stages / ranks : 0; }  // of the model on a rank
  int rank(int stage, int microbatch) const {
    const bool second = static_cast<int>(rank_of.size()) > stages && 2 * microbatch >= microbatches;
    return rank_of[static_cast<std::size_t>(second ? stages + stage : stage)];
  }
  // The stage that waits for what an op makes; -1: none.
  int next_stage(const PipelineOp& op) const {
    const int stage = op.stage + (op.work == PipelineWork::forward ? 1 : -1);
    return op.work == PipelineWork::weight_gradient || stage >= stages ? -1 : stage;
  }
  void add(int rank, PipelineWork work, int stage, int microbatch) {
    if (rank < 0 || static_cast<std::size_t>(rank) >= program.size()) {
      detail::fail({"add: rank ", rank, " of ", name,
                    program.empty()
                        ? std::string(", which has none; begin with empty_schedule")
                        : detail::cat({"; 0 to ", program.size() - 1,
                                       program.size() == 1 ? " is right" : " are right"})});
    }
    program[static_cast<std::size_t>(rank)].push_back({work, stage, microbatch});
  }
};

namespace detail {

const int most_pipeline_ranks = 4096, most_pipeline_cells = 1 << 22;  // stages x microbatches

inline void check_pipeline_size(const std::string& who, int ranks, int stages, int microbatches) {
  const double cells = 1.0 * stages * microbatches;
  if (ranks < 1 || stages < 1 || microbatches < 1 || ranks > most_pipeline_ranks ||
      cells > most_pipeline_cells) {
    fail({who, ": ", ranks, " ranks, ", stages, " stages, ", microbatches, " microbatches; 1 to ",
          most_pipeline_ranks, " ranks are right, and 1 to ", most_pipeline_cells,
          " stages x microbatches"});
  }
}

}  // namespace detail

// Stage s on rank s modulo `ranks`, and nothing to do yet: what a generator begins with.
inline PipelineSchedule empty_schedule(const std::string& name, int ranks, int microbatches,
                                       int chunks = 1) {
  if (chunks < 1 || chunks > detail::most_pipeline_cells / detail::most_pipeline_ranks) {
    detail::fail({name, ": ", chunks, " chunks of the model on a rank; 1 to ",
                  detail::most_pipeline_cells / detail::most_pipeline_ranks, " are right"});
  }
  detail::check_pipeline_size(
      name, ranks, ranks < 1 || ranks > detail::most_pipeline_ranks ? ranks : ranks * chunks,
      microbatches);
  PipelineSchedule schedule;
  schedule.name = name;
  schedule.ranks = ranks;
  schedule.stages = ranks * chunks;
  schedule.microbatches = microbatches;
  for (int stage = 0; stage < schedule.stages; ++stage) {
    schedule.rank_of.push_back(stage % ranks);
  }
  schedule.program.resize(static_cast<std::size_t>(ranks));
  return schedule;
}

// All forwards, then all backwards, in the same order: gradients add up as in the others.
inline PipelineSchedule gpipe(int ranks, int microbatches) {
  PipelineSchedule schedule = empty_schedule("gpipe", ranks, microbatches);
  for (int rank = 0; rank < ranks; ++rank) {
    for (const PipelineWork work : {PipelineWork::forward, PipelineWork::backward}) {
      for (int j = 0; j < microbatches; ++j) {
        schedule.add(rank, work, rank, j);
      }
    }
  }
  return schedule;
}

// Rank i runs p - 1 - i forwards ahead, then one forward, one backward.
inline PipelineSchedule one_forward_one_backward(int ranks, int microbatches) {
  PipelineSchedule schedule = empty_schedule("1f1b", ranks, microbatches);
  for (int rank = 0; rank < ranks; ++rank) {
    const int ahead = ranks - 1 - rank;
    for (int k = -ahead; k < microbatches; ++k) {
      if (k + ahead < microbatches) {
        schedule.add(rank, PipelineWork::forward, rank, k + ahead);
      }
      if (k >= 0) {
        schedule.add(rank, PipelineWork::backward, rank, k);
      }
    }
  }
  return schedule;
}

// Rank i has stages i, i + p, .. and takes p microbatches through one of them before it turns to
// the next. Its 2 (p - 1 - i) + (v - 1) p forwards ahead are so many even when v = 1.
inline PipelineSchedule interleaved(int ranks, int microbatches, int chunks) {
  PipelineSchedule schedule = empty_schedule("interleaved", ranks, microbatches, chunks);
  if (microbatches % ranks != 0) {
    detail::fail({"interleaved: ", microbatches, " microbatches on ", ranks,
                  " ranks; they must be a multiple of the ranks"});
  }
  const int turn = ranks * chunks, all = microbatches * chunks;
  for (int rank = 0; rank < ranks; ++rank) {
    const int ahead = 2 * (ranks - 1 - rank) + (chunks - 1) * ranks;
    for (int k = -ahead; k < all; ++k) {
      const int f = k + ahead;
      if (f < all) {
        schedule.add(rank, PipelineWork::forward, f % turn / ranks * ranks + rank,
                     f / turn * ranks + f % ranks);
      }
      if (k >= 0) {
        schedule.add(rank, PipelineWork::backward, (chunks - 1 - k % turn / ranks) * ranks + rank,
                     k / turn * ranks + k % ranks);
      }
    }
  }
  return schedule;
}

// 1F1B whose backward is split; rank i does W i microbatches later than I, so that all ranks hold
// p microbatches and the last ones have W to do where they would wait for the end.
inline PipelineSchedule zero_bubble_h1(int ranks, int microbatches) {
  PipelineSchedule schedule = empty_schedule("zb-h1", ranks, microbatches);
  for (int rank = 0; rank < ranks; ++rank) {
    const int ahead = ranks - 1 - rank;
    for (int k = -ahead; k < microbatches + rank; ++k) {
      if (k + ahead < microbatches) {
        schedule.add(rank, PipelineWork::forward, rank, k + ahead);
      }
      if (k >= 0 && k < microbatches) {
        schedule.add(rank, PipelineWork::input_gradient, rank, k);
      }
      if (k >= rank) {
        schedule.add(rank, PipelineWork::weight_gradient, rank, k - rank);
      }
    }
  }
  return schedule;
}

}  // namespace tinyscale
