#pragma once
// Greedy generation asks for the largest logit alone. A copy of the head in fewer bits rules most
// tokens out; the logits of the others are computed whole (compute/screen_matrix.hpp): the same
// tokens from fewer bytes, which of a small model with many tokens are most of what it reads.

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/compute/screen_matrix.hpp"
#include "tinyscale/model/transformer.hpp"

namespace tinyscale {

// Gives the model's head such a copy, 0.56 to 1.65 bytes a number more. Generation uses it while it
// reads less than the head: without temperature and penalty, for at most 8 sequences at a time.
inline void screen_head(Transformer& model) {
  Parameter& head = model.head_matrix();
  if (!head.stored) {
    detail::fail({"screen_head: ", head.name, " of ", model.config.name,
                  " learns, and a copy would not; load(path, {Weights::as_stored}) or with_weights "
                  "give weights that stay"});
  }
  head.stored = Shared<StoredMatrix>(new StoredMatrix(kernels::screen_matrix(*head.stored)));
}

}  // namespace tinyscale
