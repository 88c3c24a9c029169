#pragma once

#include "backend/device.h"

namespace fp8lab {

/// f32 [1, 1]: the sum of all elements.
Tensor sum_loss(Device& device, const Tensor& x, HolderId holder);
/// `grad_loss`, f32 [1, 1], broadcast to the shape of `x`: one cast kernel that reads with strides of zero.
Tensor sum_loss_backward(Device& device, const TensorSpec& x, const Tensor& grad_loss, HolderId holder);

/// f32 [1, 1]: the mean squared difference.
Tensor mse_loss(Device& device, const Tensor& x, const Tensor& target, HolderId holder);
Tensor mse_loss_backward(Device& device, const Tensor& x, const Tensor& target, const Tensor& grad_loss,
                         HolderId holder);

/// The mean over rows of -log softmax(logits)[target].
struct CrossEntropy {
  Tensor loss;      ///< f32 [1, 1]
  Tensor log_sums;  ///< f32 [rows]: ln of each row's sum of exponentials, for the gradient
};
/// `targets` are i32 [rows], of make_tokens() with a vocabulary of logits.cols(). Logits are read once and widened in
/// registers: no copy of them is made in FP32.
CrossEntropy cross_entropy(Device& device, const Tensor& logits, const Tensor& targets, HolderId loss_holder,
                           HolderId log_sums_holder);
/// Writes the gradient of the logits over the logits.
void cross_entropy_gradient_in_place(Device& device, const Tensor& logits, const Tensor& targets,
                                     const Tensor& log_sums, const Tensor& grad_loss);

}  // namespace fp8lab
