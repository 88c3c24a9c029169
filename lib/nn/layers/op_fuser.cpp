#include "nn/layers/op_fuser.h"

#include <utility>

#include "nn/cores/activation_core.h"
#include "nn/cores/saving.h"
#include "nn/layers/expert_mlp.h"
#include "nn/layers/layernorm_mlp.h"

namespace fp8lab {

/// The single node of a chain.
class ChainNode final : public ModuleNode {
 public:
  ChainNode(Runtime& runtime, std::string name, std::shared_ptr<Node> input, OpFuser& fuser)
      : ModuleNode(runtime, std::move(name), {std::move(input)}, runtime.behaviors.fuser_shells), fuser_(fuser) {}

  void begin_op() { first_entries_.push_back(entries()); }

  std::vector<Tensor> backward(Tensor grad) override {
    Restored saved = restore();
    Operand value{.plain = std::move(grad)};
    const std::vector<FusionPlan::Step>& steps = fuser_.plan(runtime(), true).steps;
    for (std::size_t i = steps.size(); i-- > 0;)
      value = steps[i].op->backward(runtime(), saved, first_entries_[i], std::move(value), steps[i].measures);
    return {std::move(value.plain)};
  }

 private:
  OpFuser& fuser_;
  std::vector<std::size_t> first_entries_;
};

namespace {

class NormOp final : public FusibleOp {
 public:
  NormOp(Build& build, const std::string& name, NormKind kind, std::int64_t columns, bool bias)
      : norm_(build, name, kind, columns, bias) {}

  Operand forward(Runtime& runtime, ChainNode& node, Operand x, const OperandRequest& next) override {
    NormCore::Forward outputs = norm_.forward(runtime, x.plain, next);
    node.save_norm(norm_, x.plain, outputs);
    return std::move(outputs.y);
  }
  Operand backward(Runtime& runtime, Restored& saved, std::size_t first, Operand grad, bool) override {
    return {.plain = norm_.backward(runtime, grad.plain, ModuleNode::norm_saved(saved, norm_, first))};
  }

 private:
  NormCore norm_;
};

// A matrix product and its bias, as in Transformer Engine's operation fuser. Both saved operands are quantized storage.
// Backward frees the input after the weight's gradient, but not the weight's copy: if the context outlives backward,
// that is the leak of `release_fuser_tensors`. Fusible operations save that copy under sharding too.
class BasicLinearOp final : public FusibleOp {
 public:
  BasicLinearOp(Build& build, const std::string& name, const LinearShape& shape) : core_(build, name, shape) {}

  OperandRequest begin_forward(Runtime& runtime) override { return core_.begin_forward(runtime); }
  Operand forward(Runtime& runtime, ChainNode& node, Operand x, const OperandRequest&) override {
    LinearCore::Forward result = core_.forward(runtime, std::move(x), true);
    if (result.weight.copy) keep_for_backward(*result.weight.copy);
    node.save_storage(core_.name() + ".x", std::move(result.x));
    node.save_weight(core_.name() + ".weight", std::move(result.weight));
    return {.plain = std::move(result.y)};
  }
  bool measures_gradient() const override { return core_.measures_gradient(); }
  Operand backward(Runtime& runtime, Restored& saved, std::size_t first, Operand grad, bool) override {
    Tensor grad_x = core_.backward(runtime, std::move(grad), saved, first, first + 1).plain;
    saved.clear_quantized(first);
    return {.plain = std::move(grad_x)};
  }

 private:
  LinearCore core_;
};

class ActivationOp final : public FusibleOp {
 public:
  ActivationOp(const std::string& name, const Activation& activation)
      : input_name_(name + ".x"), activation_(name, activation) {}

  Operand forward(Runtime& runtime, ChainNode& node, Operand x, const OperandRequest& next) override {
    node.save(input_name_, x.plain);
    return activation_.forward(runtime, x.plain, next);
  }
  Operand backward(Runtime& runtime, Restored& saved, std::size_t first, Operand grad, bool measure) override {
    return activation_.backward(runtime, grad.plain, saved.tensor(first), measure);
  }

 private:
  std::string input_name_;
  ActivationCore activation_;
};

}  // namespace

const FusionPlan& OpFuser::plan(Runtime& runtime, bool with_backward) {
  std::optional<FusionPlan>& plan = plans_.at(with_backward);
  if (plan) return *plan;
  ++runtime.host.fusion_plans;
  plan.emplace();
  for (std::size_t i = 0; i < ops_.size(); ++i)
    plan->steps.push_back(
        {.op = ops_[i].get(), .measures = with_backward && i > 0 && ops_[i - 1]->measures_gradient()});
  // keep_fusion_plans: there is room for one plan.
  if (!runtime.behaviors.keep_fusion_plans) plans_.at(!with_backward).reset();
  return *plan;
}

Variable OpFuser::forward(Runtime& runtime, const Variable& x) {
  const bool with_backward = runtime.mode == Runtime::Mode::kPlain || runtime.mode == Runtime::Mode::kRecomputing;
  const std::vector<FusionPlan::Step>& steps = plan(runtime, with_backward).steps;
  const auto node = std::make_shared<ChainNode>(runtime, name_, x.producer, *this);
  Operand value{.plain = x.value};
  steps.front().op->begin_forward(runtime);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    node->begin_op();
    const OperandRequest next = i + 1 < steps.size() ? steps[i + 1].op->begin_forward(runtime) : OperandRequest{};
    value = steps[i].op->forward(runtime, *node, std::move(value), next);
  }
  value.plain.rename(runtime.in_flight(name_));
  return {std::move(value.plain), node};
}

std::unique_ptr<Module> make_mlp(Build& build, const std::string& name, const LayerConfig& config) {
  if (config.routes_tokens()) return std::make_unique<ExpertMlp>(build, name, config);
  if (!config.fuse_mlp) return std::make_unique<LayerNormMlp>(build, name, config);
  std::vector<std::unique_ptr<FusibleOp>> ops;
  ops.push_back(std::make_unique<NormOp>(build, name + ".norm", config.form.norm, config.hidden, config.form.bias));
  ops.push_back(std::make_unique<BasicLinearOp>(
      build, name + ".fc1",
      LinearShape{.in = config.hidden, .out = config.activation_inputs(), .bias = config.form.bias}));
  ops.push_back(std::make_unique<ActivationOp>(name + ".activation", config.activation()));
  ops.push_back(std::make_unique<BasicLinearOp>(
      build, name + ".fc2",
      LinearShape{.in = config.ffn, .out = config.hidden, .bias = config.form.bias, .to_residual = true}));
  return std::make_unique<OpFuser>(name, std::move(ops));
}

}  // namespace fp8lab
