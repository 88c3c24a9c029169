#include "ops/loss.h"

#include <string>
#include <string_view>

#include "core/check.h"
#include "ops/validate.h"

namespace fp8lab {
namespace {

constexpr std::int64_t kScalar = 1;
const TensorSpec kLoss{Shape{1, 1}, DType::kF32};

void check_grad_loss(std::string_view op, const Tensor& grad_loss) {
  check_dtype(op, {"grad_loss", grad_loss}, DType::kF32);
  check_numel(op, {"grad_loss", grad_loss}, kScalar, "as the loss has");
}

void check_pair(std::string_view op, const Tensor& x, const Tensor& target) {
  check_real(op, {"x", x});
  check_real(op, {"target", target});
  check_same_shape(op, {"x", x}, {"target", target});
  if (x.numel() == 0) fail(std::string(op) + ": " + describe({"x", x}) + "; a mean needs at least one element");
}

void check_targets(std::string_view op, const Tensor& logits, const Tensor& targets) {
  check_real(op, {"logits", logits});
  check_dtype(op, {"targets", targets}, DType::kI32);
  check_numel(op, {"targets", targets}, logits.rows(), "one for each row of logits");
  if (logits.numel() == 0)
    fail(std::string(op) + ": " + describe({"logits", logits}) + "; a mean needs at least one row");
}

}  // namespace

Tensor sum_loss(Device& device, const Tensor& x, HolderId holder) {
  check_real("sum_loss", {"x", x});
  const Tensor loss = device.allocate(kLoss, holder);
  device.launch(&KernelTable::sum_loss, SumLossArgs{.x = x.view(), .loss = loss.view()});
  return loss;
}

Tensor sum_loss_backward(Device& device, const TensorSpec& x, const Tensor& grad_loss, HolderId holder) {
  check_grad_loss("sum_loss_backward", grad_loss);
  check(is_real(x.dtype), "sum_loss_backward: x must be f32, f16 or bf16");
  const Tensor grad_x = device.allocate(x, holder);
  MatrixView everywhere = grad_loss.view();
  everywhere.rows = grad_x.rows();
  everywhere.cols = grad_x.cols();
  everywhere.row_stride = 0;
  everywhere.col_stride = 0;
  device.launch(&KernelTable::cast, CastArgs{.in = everywhere, .out = grad_x.view()});
  return grad_x;
}

Tensor mse_loss(Device& device, const Tensor& x, const Tensor& target, HolderId holder) {
  check_pair("mse_loss", x, target);
  const Tensor loss = device.allocate(kLoss, holder);
  device.launch(&KernelTable::mse_loss, MseLossArgs{.x = x.view(), .target = target.view(), .loss = loss.view()});
  return loss;
}

Tensor mse_loss_backward(Device& device, const Tensor& x, const Tensor& target, const Tensor& grad_loss,
                         HolderId holder) {
  check_pair("mse_loss_backward", x, target);
  check_grad_loss("mse_loss_backward", grad_loss);
  const Tensor grad_x = device.allocate(x.spec(), holder);
  device.launch(&KernelTable::mse_loss_backward,
                MseLossBackwardArgs{
                    .x = x.view(), .target = target.view(), .grad_loss = grad_loss.view(), .grad_x = grad_x.view()});
  return grad_x;
}

CrossEntropy cross_entropy(Device& device, const Tensor& logits, const Tensor& targets, HolderId loss_holder,
                           HolderId log_sums_holder) {
  check_targets("cross_entropy", logits, targets);
  const TensorSpec by_row{Shape{logits.rows()}, DType::kF32};
  CrossEntropy out{.loss = device.allocate(kLoss, loss_holder), .log_sums = device.allocate(by_row, log_sums_holder)};
  const Tensor losses = device.allocate(by_row, log_sums_holder);
  device.launch(&KernelTable::cross_entropy_forward, CrossEntropyForwardArgs{.logits = logits.view(),
                                                                             .targets = targets.as_column(),
                                                                             .losses = losses.as_column(),
                                                                             .log_sums = out.log_sums.as_column()});
  device.launch(
      &KernelTable::sum_loss,
      SumLossArgs{.x = losses.view(), .loss = out.loss.view(), .divisor = static_cast<double>(logits.rows())});
  return out;
}

void cross_entropy_gradient_in_place(Device& device, const Tensor& logits, const Tensor& targets,
                                     const Tensor& log_sums, const Tensor& grad_loss) {
  constexpr std::string_view kOp = "cross_entropy_gradient_in_place";
  check_targets(kOp, logits, targets);
  check_dtype(kOp, {"log_sums", log_sums}, DType::kF32);
  check_numel(kOp, {"log_sums", log_sums}, logits.rows(), "one for each row of logits");
  check_grad_loss(kOp, grad_loss);
  device.launch(&KernelTable::cross_entropy_backward, CrossEntropyBackwardArgs{.logits = logits.view(),
                                                                               .targets = targets.as_column(),
                                                                               .log_sums = log_sums.as_column(),
                                                                               .grad_loss = grad_loss.view(),
                                                                               .grad_logits = logits.view()});
}

}  // namespace fp8lab
