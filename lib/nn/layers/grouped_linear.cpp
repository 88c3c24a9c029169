#include "nn/layers/grouped_linear.h"

#include <fmt/core.h>

#include <utility>

#include "nn/cores/saving.h"

namespace fp8lab {
namespace {

using Experts = std::vector<std::unique_ptr<LinearCore>>;

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
    const TensorSpec spec = grad.spec();  // of the input's gradient too: weights are square
    std::vector<Operand> grads = cast_gradients(std::move(grad));
    const Tensor grad_x = device().allocate(spec, runtime().in_flight(name()));
    std::vector<OperandView> weights;
    for (std::size_t i = 0; i < count; ++i)
      weights.push_back(experts_[i]->weight_for_backward(runtime(), saved, count + i));
    const std::vector<Tensor> groups = split_rows(grad_x, group_rows_);
    for (std::size_t i = 0; i < count; ++i)
      experts_[i]->input_gradient_into(runtime(), grads[i], weights[i], groups[i]);
    for (const auto& expert : experts_) expert->free_columnwise(runtime());
    for (std::size_t i = 0; i < count; ++i) experts_[i]->weight_gradient(runtime(), grads[i], saved, i);
    // Weights' copies and inputs' scales are left to the context. Where it outlives backward, that is the leak of
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
    experts_.push_back(
        std::make_unique<LinearCore>(build, fmt::format("{}.experts[{}]", name, i),
                                     LinearShape{.in = config.hidden, .out = config.hidden, .bias = config.form.bias}));
}

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
