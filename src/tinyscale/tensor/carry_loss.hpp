#pragma once
// A second loss that rides on a tensor: of no effect on its numbers, present in its backward pass.
// So a loss made in the middle of a model need not be handed to its end (a pipeline's last stage).

#include "tinyscale/tensor/backward.hpp"

namespace tinyscale {

// y itself; when a gradient comes back to y, that of `loss`, one number, starts with `weight`,
// whatever came to y.
inline Tensor carry_loss(const Tensor& y, const Tensor& loss, double weight = 1) {
  if (!y.defined() || loss.count() != 1) {
    detail::fail({"carry_loss: ", y.defined() ? "a" : "an empty", " tensor carries a loss ",
                  loss.shape(), "; one number on a tensor with a shape is right"});
  }
  if (!detail::tracked({&loss})) {
    return y;
  }
  Tensor carrier = y.detach();
  detail::attach(carrier, "carry_loss", {&y, &loss},
                 [sy = y.slot(), sl = loss.slot(), weight](const Tensor& dy) {
                   *detail::grad_buffer(sl) += static_cast<float>(weight);
                   if (sy) {
                     detail::add_grad(sy, dy);
                   }
                 });
  return carrier;
}

}  // namespace tinyscale
