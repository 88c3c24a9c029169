#pragma once

#include <string>
#include <utility>
#include <vector>

#include "nn/cores/linear_core.h"
#include "ops/experts/grouped_gemm.h"

namespace fp8lab {

/// The products of all experts by one matrix each: y_e = x_e W_e^T for the rows x_e of expert e. The matrices [out, in]
/// are one parameter [experts * out, in], one below the other, so that it is sharded, cast and updated as every weight.
/// With biases the core adds b_e to y_e. All b_e are one parameter [experts * out]. Rows of padding get them too, so
/// that an amax of what is made of y covers these rows; their gradients are 0. x, the gradient of y and all matrices
/// together are cast as one matrix each: a scale per tensor is common to all experts, and blocks of scales never cross
/// from one expert to the next, because groups begin at multiples of a block.
class ExpertsCore final : public LinearCore {
 public:
  ExpertsCore(Build& build, const std::string& name, const LinearShape& shape) : LinearCore(build, name, shape) {}

  /// The rows of each expert in the next passes.
  void set_groups(std::vector<RowGroup> groups) { groups_ = std::move(groups); }

 private:
  Tensor output(Device& device, const GemmInputs& inputs) const override {
    return grouped_gemm(device, inputs, groups_);
  }
  Tensor input_gradient(Device& device, const GemmInputs& inputs) const override {
    return grouped_gemm_input_gradient(device, inputs, groups_);
  }
  Tensor weight_gradient(Device& device, const GemmInputs& inputs) const override {
    return grouped_gemm_weight_gradient(device, inputs, groups_);
  }

  Tensor bias_gradient(Device& device, const Tensor& grad_y) const override {
    return grouped_bias_gradient(device, grad_y, groups_, bias_->spec, bias_->grad_holder);
  }

  std::vector<RowGroup> groups_;
};

}  // namespace fp8lab
