#pragma once
// Dynamic loss scaling (arXiv 1710.03740): the loss is multiplied by a power of two so that small
// gradients do not vanish in fp16 or fp8, and the gradients are divided by it before the update.
// After growth_steps good steps it doubles; when a gradient overflows it halves, and the step is
// left out.

#include <cstdint>  // int64_t

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/text.hpp"

namespace tinyscale {

struct LossScaler {
  double scale = 65536;              // multiplies the loss; 1 / scale the gradients
  double smallest = 1;               // a step that overflows even here is an error
  double largest = 16777216;         // 2^24
  std::int64_t growth_steps = 2000;  // good ones in a row before it doubles
  std::int64_t good = 0;             // in a row so far
  std::int64_t skipped = 0;          // steps left out in all

  // Whether the step is to be taken: its gradients, on all devices, are finite.
  bool update(bool finite) {
    if (finite) {
      good = good + 1 < growth_steps ? good + 1 : 0;
      scale = good == 0 && 2 * scale <= largest ? 2 * scale : scale;
      return true;
    }
    if (scale / 2 < smallest) {
      detail::fail({"LossScaler: gradients are not finite at a loss scale of ", scale,
                    ", the smallest is ", smallest,
                    "; the model diverges whatever the scale: try a smaller learning_rate"});
    }
    good = 0;
    ++skipped;
    scale /= 2;
    return false;
  }
};

}  // namespace tinyscale
