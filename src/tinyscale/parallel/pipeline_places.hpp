#pragma once
// Where each op of a pipeline schedule stands, what it needs, and proof that none is missing, twice
// or on a wrong rank. An op needs its predecessors, and their message where they ran on another
// rank: the activations go to stage s + 1, the gradient to stage s - 1.

#include <cstddef>  // size_t
#include <string>   // string
#include <vector>   // vector

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/parallel/pipeline_schedule.hpp"

namespace tinyscale {
namespace detail {

class PipelinePlaces {
 public:
  // Throws unless every stage does each microbatch once, on its rank.
  PipelinePlaces(const char* who, const PipelineSchedule& schedule)
      : schedule_(schedule), who_(cat({who, ": ", schedule.name})) {
    check_sizes();
    const auto cells =
        static_cast<std::size_t>(schedule.stages) * static_cast<std::size_t>(schedule.microbatches);
    places_.assign(3 * cells, -1);
    for (int rank = 0; rank < schedule.ranks; ++rank) {
      const List<PipelineOp>& ops = schedule.program[static_cast<std::size_t>(rank)];
      for (std::size_t i = 0; i < ops.size(); ++i) {
        check_op(rank, static_cast<int>(i), ops[i]);
        places_[cell(ops[i])] = static_cast<int>(i);
      }
    }
    check_complete();
  }

  int rank(const PipelineOp& op) const { return schedule_.rank(op.stage, op.microbatch); }
  int place(const PipelineOp& op) const { return places_[cell(op)]; }
  const std::string& who() const { return who_; }

  // What must be done before; at most two, that of another stage first. The count of them.
  int needs(const PipelineOp& op, PipelineOp out[2]) const {
    int n = 0;
    if (op.work == PipelineWork::weight_gradient) {
      out[n++] = {PipelineWork::input_gradient, op.stage, op.microbatch};
    } else if (op.work == PipelineWork::forward) {
      if (op.stage > 0) {
        out[n++] = {PipelineWork::forward, op.stage - 1, op.microbatch};
      }
    } else {
      if (op.stage + 1 < schedule_.stages) {
        out[n++] = {PipelineWork::backward, op.stage + 1, op.microbatch};
      }
      out[n++] = {PipelineWork::forward, op.stage, op.microbatch};
    }
    return n;
  }
  // The rank that gets a message when `op` is done; -1: none.
  int receiver(const PipelineOp& op) const {
    const int stage = schedule_.next_stage(op);
    const int to = stage < 0 ? -1 : schedule_.rank(stage, op.microbatch);
    return to == rank(op) ? -1 : to;
  }

 private:
  // B and I share a place: there is one or the other.
  std::size_t cell(const PipelineOp& op) const {
    const std::size_t kind = op.work == PipelineWork::forward           ? 0
                             : op.work == PipelineWork::weight_gradient ? 2
                                                                        : 1;
    return (kind * static_cast<std::size_t>(schedule_.stages) +
            static_cast<std::size_t>(op.stage)) *
               static_cast<std::size_t>(schedule_.microbatches) +
           static_cast<std::size_t>(op.microbatch);
  }

  void check_sizes() const {
    const PipelineSchedule& s = schedule_;
    check_pipeline_size(who_, s.ranks, s.stages, s.microbatches);
    const auto stages = static_cast<std::size_t>(s.stages);
    if (s.program.size() != static_cast<std::size_t>(s.ranks) ||
        (s.rank_of.size() != stages && s.rank_of.size() != 2 * stages)) {
      fail({who_, ": ", s.program.size(), " programs and ", s.rank_of.size(),
            " entries of rank_of for ", s.ranks, " ranks and ", s.stages,
            " stages; a program for each rank and an entry for each stage (or two) are right"});
    }
    for (std::size_t i = 0; i < s.rank_of.size(); ++i) {
      if (s.rank_of[i] < 0 || s.rank_of[i] >= s.ranks) {
        fail({who_, ": stage ", i % stages, " is on rank ", s.rank_of[i], "; ranks are 0 to ",
              s.ranks - 1});
      }
    }
  }

  void check_op(int at, int i, const PipelineOp& op) const {
    const PipelineSchedule& s = schedule_;
    if (letter_of(op.work) == '?') {
      fail({who_, ": rank ", at, ", op ", i, " is of kind ", static_cast<int>(op.work),
            "; 0 to 3 are forward, backward and its two halves"});
    }
    if (op.stage < 0 || op.stage >= s.stages || op.microbatch < 0 ||
        op.microbatch >= s.microbatches) {
      fail({who_, ": rank ", at, ", op ", i, ": ", op, "; stages are 0 to ", s.stages - 1,
            ", microbatches 0 to ", s.microbatches - 1});
    }
    if (rank(op) != at) {
      fail({who_, ": rank ", at, ", op ", i, ": ", op, " belongs to rank ", rank(op)});
    }
    const int before = place(op);
    if (before >= 0) {
      const PipelineWork work =
          s.program[static_cast<std::size_t>(at)][static_cast<std::size_t>(before)].work;
      fail({who_, ": rank ", at, ", op ", i, ": ", op, " is op ", before, " already",
            work == op.work ? std::string() : cat({", as ", letter_of(work)}), "; once is right"});
    }
  }

  void check_complete() const {
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      for (int j = 0; j < schedule_.microbatches; ++j) {
        const PipelineOp forward = {PipelineWork::forward, stage, j};
        const PipelineOp backward = {PipelineWork::backward, stage, j};
        const PipelineOp weight = {PipelineWork::weight_gradient, stage, j};
        for (const PipelineOp& op : {forward, backward}) {
          if (place(op) < 0) {
            fail({who_, ": rank ", rank(op), " lacks ", op});
          }
        }
        const bool split = schedule_
                               .program[static_cast<std::size_t>(rank(backward))]
                                       [static_cast<std::size_t>(place(backward))]
                               .work == PipelineWork::input_gradient;
        if (split != (place(weight) >= 0)) {
          fail({who_, ": rank ", rank(weight), split ? " lacks " : " has both B and ", weight,
                split ? ", whose I it does" : "; either B, or I and W are right"});
        }
      }
    }
  }

  const PipelineSchedule& schedule_;
  std::string who_;
  std::vector<int> places_;
};

}  // namespace detail
}  // namespace tinyscale
