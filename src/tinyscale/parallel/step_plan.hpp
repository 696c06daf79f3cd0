#pragma once
// What one device does in a step, as planned: its collectives with their formulas, its matmuls, the
// bytes it holds.

#include <cstdint>  // int64_t
#include <string>   // string
#include <vector>   // vector

#include "tinyscale/base/format.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/mesh/collective_spec.hpp"

namespace tinyscale {

// Equal calls of one device in a step.
struct PlannedCall {
  Collective what = Collective::all_reduce;
  bool send = false;  // to another stage, instead
  std::vector<std::string> axes;
  std::int64_t elements = 0;  // as CollectiveSpec counts them
  DType format = DType::f32;  // on the wire
  std::int64_t times = 1;
  std::string why;      // "weights", "gradients", "tensor parallel", ..
  std::string formula;  // of all of them together, in elements that a device sends
  bool mean = false;    // of what depends on the routing
  int shift = 1;        // of a permute
};

// One device's part of a step.
struct StepPlan {
  List<PlannedCall> calls;
  double flops[6] = {0, 0, 0, 0, 0, 0};  // of matmuls, by StepTask::Work
  bool mean_flops = false;               // an expert's tokens depend on the routing
  double matmul_flops() const {
    return flops[0] + flops[1] + flops[2] + flops[3] + flops[4] + flops[5];
  }
  // Bytes, float32 as they lie in the laptop's memory.
  double parameters = 0, gradients = 0, optimizer = 0;  // between two steps; gradients before it
  double gathered = 0;     // the most weights that are gathered at once; -1: not the only buffers
  double activations = 0;  // the most that forward passes leave for backward passes; -1: not known
  double logits = 0;       // and of logits
};

}  // namespace tinyscale
