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

}  // namespace fp8lab
