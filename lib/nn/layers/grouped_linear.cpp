#include "nn/layers/grouped_linear.h"

#include <fmt/core.h>

#include <utility>

#include "nn/cores/linear_core.h"
#include "nn/cores/saving.h"
#include "ops/elementwise.h"

namespace fp8lab {
namespace {

Tensor zeros(Device& device, const TensorSpec& spec, HolderId holder) {
  const Tensor out = device.allocate(spec, holder);
  fill(device, out, 0.0f);
  return out;
}

}  // namespace

/// The core of one expert, whose passes are taken in steps: each of them for all experts before the next. The copy of
/// the weight is kept even if the weight is sharded. An expert without rows multiplies nothing.
class ExpertCore final : public LinearCore {
 public:
  using LinearCore::LinearCore;

  // Forward is begin_forward() and these.
  Operand cast_input(Runtime& runtime, const Tensor& x) const {
    return quantize_role(runtime, forward_scales_, kInput, {.plain = x});
  }
  /// The weight for product_into(). Quantized into `saved` unless the parameter or its cached copy can be read.
  OperandView weight_for_forward(Runtime& runtime, SavedWeight& saved) {
    return weight_rowwise(runtime, true, true, saved.copy);
  }
  void product_into(Runtime& runtime, const Operand& x, const OperandView& weight, const Tensor& y) const {
    if (y.rows() == 0) return;
    gemm_into(runtime.device,
              {.a = x.rowwise(), .b = weight, .bias = bias_ ? &bias_->value : nullptr, .fast_accumulation = true}, y);
  }
  /// Leaves in `x` the orientation that backward needs.
  void end_forward(Operand& x) {
    forward_scales_.end_forward();
    if (x.is_quantized()) keep_for_backward(x.quantized);
  }

  // Backward. Entries of `saved` are as in backward().
  /// Accumulates the gradient of the bias.
  Operand cast_gradient(Runtime& runtime, const Tensor& grad_y) {
    Device& device = runtime.device;
    if (bias_) {
      const DType dtype = grad_y.dtype();
      bias_->accumulate(device, grad_y.rows() == 0 ? zeros(device, {bias_->spec.shape, dtype}, bias_->grad_holder)
                                                   : column_sum(device, grad_y, dtype, bias_->grad_holder));
    }
    return quantize_role(runtime, backward_scales_, kGradOutput, {.plain = grad_y});
  }
  OperandView weight_for_backward(Runtime& runtime, Restored& saved, std::size_t weight) {
    std::optional<QuantizedTensor> copy;  // stays empty: forward keeps its copy, or the core does
    return weight_columnwise(runtime, saved, weight, copy);
  }
  void input_gradient_into(Runtime& runtime, const Operand& grad_y, const OperandView& weight,
                           const Tensor& grad_x) const {
    if (grad_x.rows() > 0) gemm_into(runtime.device, {.a = grad_y.rowwise(), .b = weight}, grad_x);
  }
  void free_transpose() { hooks_->after_backward_reads(*weight_); }
  /// Accumulates the gradient of the weight; zeros without rows.
  void accumulate_weight_gradient(Runtime& runtime, const Operand& grad_y, Restored& saved, std::size_t x) {
    Device& device = runtime.device;
    const bool empty = grad_y.rows() == 0;
    weight_->accumulate(device, empty ? zeros(device, weight_->spec, weight_->grad_holder)
                                      : gemm(device, {.a = grad_y.columnwise(device.arch()),
                                                      .b = columnwise_of(saved, x, device.arch()),
                                                      .out_dtype = weight_->spec.dtype,
                                                      .holder = weight_->grad_holder}));
  }
};

namespace {

using Experts = std::vector<std::unique_ptr<ExpertCore>>;

/// The rows of each group, as views.
std::vector<Tensor> split_rows(const Tensor& x, const std::vector<std::int64_t>& group_rows) {
  std::vector<Tensor> groups;
  std::int64_t begin = 0;
  for (const std::int64_t rows : group_rows) {
    groups.push_back(x.row_range(begin, rows));
    begin += rows;
  }
  return groups;
}

class GroupedLinearNode final : public ModuleNode {
 public:
  GroupedLinearNode(Runtime& runtime, std::string name, std::shared_ptr<Node> input, const Experts& experts,
                    const std::vector<std::int64_t>& group_rows)
      : ModuleNode(runtime, std::move(name), {std::move(input)}, runtime.behaviors.grouped_shells),
        experts_(experts),
        group_rows_(group_rows) {}

  // Entries are the inputs of all experts, then their weights.
  std::vector<Tensor> backward(Tensor grad) override {
    Restored saved = restore();
    const std::size_t count = experts_.size();
    const TensorSpec spec = grad.spec();  // also the spec of the input's gradient: weights are square
    std::vector<Operand> grads = cast_gradients(std::move(grad));
    const Tensor grad_x = device().allocate(spec, runtime().in_flight(name()));
    std::vector<OperandView> weights;
    for (std::size_t i = 0; i < count; ++i)
      weights.push_back(experts_[i]->weight_for_backward(runtime(), saved, count + i));
    const std::vector<Tensor> groups = split_rows(grad_x, group_rows_);
    for (std::size_t i = 0; i < count; ++i)
      experts_[i]->input_gradient_into(runtime(), grads[i], weights[i], groups[i]);
    for (const auto& expert : experts_) expert->free_transpose();
    for (std::size_t i = 0; i < count; ++i) experts_[i]->accumulate_weight_gradient(runtime(), grads[i], saved, i);
    // Weights' copies and inputs' scales are left to the context. If it outlives backward, that is the leak of
    // `release_grouped_tensors`.
    for (std::size_t i = 0; i < count; ++i) saved.clear_data(i);
    return {grad_x};
  }

 private:
  /// Frees the gradient once all of its groups are cast.
  std::vector<Operand> cast_gradients(Tensor grad) {
    std::vector<Operand> grads;
    const std::vector<Tensor> groups = split_rows(grad, group_rows_);
    for (std::size_t i = 0; i < groups.size(); ++i) grads.push_back(experts_[i]->cast_gradient(runtime(), groups[i]));
    return grads;
  }

  const Experts& experts_;
  const std::vector<std::int64_t>& group_rows_;
};

}  // namespace

GroupedLinear::GroupedLinear(Build& build, const std::string& name, const LayerConfig& config)
    : name_(name), group_rows_(config.group_rows()) {
  for (std::int64_t i = 0; i < config.experts; ++i)
    experts_.push_back(std::make_unique<ExpertCore>(
        build, fmt::format("{}.experts[{}]", name, i),
        LinearShape{.in = config.hidden, .out = config.hidden, .bias = config.form.bias, .grouped = true}));
}

GroupedLinear::~GroupedLinear() = default;

Variable GroupedLinear::forward(Runtime& runtime, const Variable& x) {
  const std::size_t count = experts_.size();
  for (const auto& expert : experts_) expert->begin_forward(runtime);
  std::vector<Operand> inputs;
  for (const Tensor& group : split_rows(x.value, group_rows_))
    inputs.push_back(experts_[inputs.size()]->cast_input(runtime, group));
  std::vector<SavedWeight> saved(count);
  std::vector<OperandView> weights;
  for (std::size_t i = 0; i < count; ++i) weights.push_back(experts_[i]->weight_for_forward(runtime, saved[i]));
  const Tensor y = runtime.device.allocate(x.value.spec(), runtime.in_flight(name_));
  const std::vector<Tensor> groups = split_rows(y, group_rows_);
  for (std::size_t i = 0; i < count; ++i) experts_[i]->product_into(runtime, inputs[i], weights[i], groups[i]);
  for (std::size_t i = 0; i < count; ++i) experts_[i]->end_forward(inputs[i]);

  const auto node = std::make_shared<GroupedLinearNode>(runtime, name_, x.producer, experts_, group_rows_);
  for (Operand& input : inputs) node->save_storage("x", std::move(input));
  for (SavedWeight& weight : saved) node->save_weight("weight", std::move(weight));
  return {y, node};
}

}  // namespace fp8lab
