#pragma once
// Idle time and activations of the four built-in pipeline schedules in closed form, for every
// number of ranks p, microbatches m and chunks v, all stages alike and messages that take no time.
// F, B, W: a microbatch's forward, whole backward and weight gradient on 1 / p of the model, the
// input gradient I = B - W.  GPipe, 1F1B: (p - 1)(F + B);  interleaved: that / v;
// ZB-H1: (p - 1)(F + I) - (min(m, p) - 1) min(W, F, I), usually written (p - 1)(F + B - 2W).

#include <algorithm>  // min

#include "tinyscale/base/error.hpp"
#include "tinyscale/parallel/pipeline_schedule.hpp"
#include "tinyscale/parallel/pipeline_timing.hpp"

namespace tinyscale {

enum class PipelineKind { gpipe, one_forward_one_backward, interleaved, zero_bubble_h1 };

inline const char* name_of(PipelineKind kind) {
  static const char* const names[] = {"GPipe", "1F1B", "interleaved 1F1B", "ZB-H1"};
  return detail::name_in("PipelineKind", names, kind);
}

struct PipelineShape {
  PipelineKind kind = PipelineKind::one_forward_one_backward;
  int ranks = 1, microbatches = 1;
  int chunks = 1;  // of the model on a rank; the others than interleaved have 1
};

namespace detail {

inline void check_pipeline_shape(const char* who, const PipelineShape& s) {
  name_of(s.kind);  // refuses what is none
  const bool interleaves = s.kind == PipelineKind::interleaved;
  if (s.ranks < 1 || s.microbatches < 1 || s.chunks < 1 || (s.chunks > 1 && !interleaves) ||
      (interleaves && s.microbatches % s.ranks != 0)) {
    fail({who, ": ", s.ranks, " ranks, ", s.microbatches, " microbatches, ", s.chunks,
          " chunks; each is 1 or more; only interleaved has more chunks than 1, and its "
          "microbatches are a multiple of the ranks"});
  }
}

}  // namespace detail

inline PipelineSchedule make_pipeline(const PipelineShape& s) {
  detail::check_pipeline_shape("make_pipeline", s);
  return s.kind == PipelineKind::gpipe ? gpipe(s.ranks, s.microbatches)
         : s.kind == PipelineKind::one_forward_one_backward
             ? one_forward_one_backward(s.ranks, s.microbatches)
         : s.kind == PipelineKind::interleaved ? interleaved(s.ranks, s.microbatches, s.chunks)
                                               : zero_bubble_h1(s.ranks, s.microbatches);
}

// What a rank idles in a step: the same for each.
inline double pipeline_idle(const PipelineShape& s, const WorkTimes& t = WorkTimes()) {
  detail::check_pipeline_shape("pipeline_idle", s);
  detail::check_work_times("pipeline_idle", t);
  const double others = s.ranks - 1;
  if (s.kind == PipelineKind::zero_bubble_h1) {
    const double filled = std::min({t.weight_gradient, t.forward, t.input_gradient});
    return others * (t.forward + t.input_gradient) -
           (std::min(s.microbatches, s.ranks) - 1) * filled;
  }
  return others * (t.forward + t.backward) / s.chunks;
}

// Of the whole step: with chunks v, (p - 1) / (v m + p - 1).
inline double pipeline_bubble(const PipelineShape& s, const WorkTimes& t = WorkTimes()) {
  const double idle = pipeline_idle(s, t);
  const double backward =
      s.kind == PipelineKind::zero_bubble_h1 ? t.input_gradient + t.weight_gradient : t.backward;
  return idle / (idle + s.microbatches * (t.forward + backward));
}

// On rank i, in microbatches on 1 / p of the model: GPipe m; 1F1B min(m, p - i); ZB-H1 min(m, p);
// interleaved min(m, ((v - 1) p + 2 (p - 1 - i) + 1) / v), on rank 0 p (1 + (p - 1) / (p v)).
inline double pipeline_peak_activations(const PipelineShape& s, int rank = 0) {
  detail::check_pipeline_shape("pipeline_peak_activations", s);
  if (rank < 0 || rank >= s.ranks) {
    detail::fail({"pipeline_peak_activations: rank ", rank, " of ", s.ranks, "; ranks are 0 to ",
                  s.ranks - 1});
  }
  const int p = s.ranks, m = s.microbatches, v = s.chunks;
  return s.kind == PipelineKind::gpipe                      ? m
         : s.kind == PipelineKind::one_forward_one_backward ? std::min(m, p - rank)
         : s.kind == PipelineKind::zero_bubble_h1
             ? std::min(m, p)
             : std::min<double>(m, ((v - 1.0) * p + 2 * (p - 1 - rank) + 1) / v);
}

// From rank to rank: m activations and m gradients between every two stages.
inline double pipeline_messages(const PipelineShape& s) {
  detail::check_pipeline_shape("pipeline_messages", s);
  return s.ranks == 1 ? 0 : 2.0 * s.microbatches * (1.0 * s.ranks * s.chunks - 1);
}

}  // namespace tinyscale
