#include "nn/layers/expert_mlp.h"

#include <fmt/core.h>

#include <utility>

#include "core/check.h"
#include "nn/cores/saving.h"
#include "ops/elementwise.h"

namespace fp8lab {

class ExpertMlpNode final : public ModuleNode {
 public:
  ExpertMlpNode(Runtime& runtime, std::shared_ptr<Node> input, ExpertMlp& module)
      : ModuleNode(runtime, module.name_, {std::move(input)}, runtime.behaviors.module_shells), module_(module) {}

  void save_routing(const Routing& routing, const ExpertMlp::Rows& rows) {
    save("experts", routing.experts);
    save("weights", routing.weights);
    if (routing.slopes) save("slopes", routing.slopes);
    if (routing.logits) save("logits", routing.logits);
    if (routing.counts) save("choices", routing.counts);
    save("rows", rows.chosen.rows);
    save("sources", rows.chosen.sources);
    save("begins", rows.chosen.begins);
    if (!rows.travel()) return;
    save("counts", rows.exchanged.counts);
    save("arrived_rows", rows.exchanged.arrived.rows);
    save("arrived_sources", rows.exchanged.arrived.sources);
    save("arrived_begins", rows.exchanged.arrived.begins);
  }

  std::vector<Tensor> backward(Tensor grad) override {
    Restored saved = restore();
    // n, then the experts and weights, slopes if the router has sigmoids, logits and counts if it has an auxiliary
    // loss, three entries of the grouping, and four of what arrived, if rows travel; then fc1's input and weight, the
    // activation's input, fc2's input and weight, the output of each choice, and the entries of shared experts.
    const bool travel = runtime().expert_group != nullptr;
    const RouterRule& rule = module_.rule_;
    const std::size_t first = norm_entries(module_.norm_), auxiliary = first + (rule.sigmoid ? 4 : 3);
    const std::size_t grouping = auxiliary + (rule.aux_loss > 0.0f ? 2 : 0);
    const std::size_t products = grouping + (travel ? 7 : 3);
    Routing routing{.experts = saved.tensor(first + 1), .weights = saved.tensor(first + 2)};
    if (rule.sigmoid) routing.slopes = saved.tensor(first + 3);
    if (rule.aux_loss > 0.0f) {
      routing.logits = saved.tensor(auxiliary);
      routing.counts = saved.tensor(auxiliary + 1);
    }
    const auto grouped_at = [&](std::size_t at) {
      return GroupedRows{.rows = saved.tensor(at), .sources = saved.tensor(at + 1), .begins = saved.tensor(at + 2)};
    };
    ExpertMlp::Rows rows{.chosen = grouped_at(grouping)};
    if (travel) rows.exchanged = known_exchange(device(), saved.tensor(grouping + 3), grouped_at(grouping + 4));
    module_.set_groups(runtime(), rows);
    const HolderId in_flight = runtime().in_flight(name()), workspace = runtime().workspace(name());
    Tensor of_shared;
    if (module_.shared_) of_shared = module_.shared_->backward(runtime(), grad, saved, products + 6);
    Tensor grad_rows = permute(device(), grad, rows.chosen, routing.weights, in_flight);
    Tensor grad_weights = unpermute_weights(device(), saved.tensor(products + 5), rows.chosen, grad, workspace);
    grad = {};
    Operand grad_fc2 = module_.gradients_to_experts(runtime(), rows, std::move(grad_rows), in_flight);
    Tensor grad_activation =
        module_.fc2_.backward(runtime(), std::move(grad_fc2), saved, products + 3, products + 4).plain;
    Operand grad_fc1 = module_.activation_.backward(runtime(), grad_activation, saved.tensor(products + 2),
                                                    module_.fc1_.measures_gradient());
    grad_activation = {};
    Tensor grad_permuted = module_.fc1_.backward(runtime(), std::move(grad_fc1), saved, products, products + 1).plain;
    grad_permuted = module_.from_experts(runtime(), rows, std::move(grad_permuted), in_flight);
    const Tensor grad_norm = unpermute(device(), grad_permuted, rows.chosen, {}, in_flight);
    grad_permuted = {};
    if (of_shared) add_into(device(), grad_norm, of_shared);
    of_shared = {};
    add_router_gradient(saved.tensor(first), routing, std::move(grad_weights), grad_norm);
    return {module_.norm_.backward(runtime(), grad_norm, norm_saved(saved, module_.norm_, 0))};
  }

 private:
  /// Adds the router's part to the gradient of `n`, and accumulates the gradients of its parameters.
  void add_router_gradient(const Tensor& n, const Routing& routing, Tensor grad_weights, const Tensor& grad_norm) {
    Parameter& router = *module_.router_;
    const DType dtype = router.spec.dtype;
    const HolderId workspace = runtime().workspace(name());
    const Tensor grad_logits =
        route_backward(device(), routing, module_.rule_, grad_weights,
                       {Shape{n.rows(), router.spec.shape.rows()}, dtype}, workspace, runtime().loss_share);
    grad_weights = {};
    if (Parameter* const bias = module_.router_bias_.get(); bias != nullptr)
      bias->accumulate(device(), column_sum(device(), grad_logits, dtype, bias->grad_holder));
    add_into(
        device(), grad_norm,
        gemm(device(),
             {.a = grad_logits.operand(), .b = columnwise_of(router.value), .out_dtype = dtype, .holder = workspace}));
    router.accumulate(device(), gemm(device(), {.a = columnwise_of(grad_logits),
                                                .b = columnwise_of(n),
                                                .out_dtype = dtype,
                                                .holder = router.grad_holder}));
  }

  ExpertMlp& module_;
};

ExpertMlp::ExpertMlp(Build& build, const std::string& name, const LayerConfig& config)
    : name_(name),
      experts_(config.experts),
      rule_{.choices = config.top_k,
            .sigmoid = config.sigmoid_router,
            .scale = config.router_scale,
            .groups = config.expert_groups,
            .top_groups = config.top_groups,
            .aux_loss = config.router_aux_loss},
      row_multiple_(row_multiple(build.recipe, build.runtime.behaviors)),
      needed_multiple_(build.recipe.quantized ? row_multiple(build.recipe, Behaviors{}) : 1),
      fp8_dispatch_(config.fp8_dispatch && build.recipe.quantized),
      biases_(config.router_bias_rate > 0.0f
                  ? std::make_unique<RouterBiases>(build, name + ".router", config.experts, config.router_bias_rate)
                  : nullptr),
      activation_(name, config.activation()),
      norm_(build, name + ".norm", config.form.norm, config.hidden, config.form.bias),
      router_(make_parameter(build, name + ".router.weight", {config.experts, config.hidden}, Init::kNormal)),
      router_bias_(config.form.bias ? make_parameter(build, name + ".router.bias", {config.experts}, Init::kZeros)
                                    : nullptr),
      fc1_(build, name + ".fc1",
           {.in = config.hidden,
            .out = config.activation_inputs(),
            .bias = config.form.bias,
            .matrices = config.experts / build.runtime.expert_part.parts,
            .part = build.runtime.expert_part}),
      fc2_(build, name + ".fc2",
           {.in = config.ffn,
            .out = config.hidden,
            .bias = config.form.bias,
            .to_residual = true,
            .matrices = config.experts / build.runtime.expert_part.parts,
            .part = build.runtime.expert_part}),
      shared_(config.shared_experts > 0 ? std::make_unique<SharedExperts>(build, name, config) : nullptr) {
  const int parts = build.runtime.expert_part.parts;
  if (config.experts % parts != 0)
    fail(fmt::format("{}: {} ranks are to have {} experts between them; each has the same number", name, parts,
                     config.experts));
}

ExpertMlp::Rows ExpertMlp::group(Runtime& runtime, const Routing& routing, HolderId holder) const {
  Device& device = runtime.device;
  ProcessGroup* const ranks = runtime.expert_group;
  Rows rows{.chosen = group_rows(device, routing.experts, experts_, ranks != nullptr ? 1 : row_multiple_, holder)};
  if (ranks != nullptr) rows.exchanged = exchange_counts(device, *ranks, rows.chosen, row_multiple_, holder, name_);
  return rows;
}

Operand ExpertMlp::tokens_to_experts(Runtime& runtime, const Rows& rows, const Tensor& n, HolderId holder) const {
  Device& device = runtime.device;
  if (!sends_eight_bits(runtime))
    return {.plain = to_experts(runtime, rows, permute(device, n, rows.chosen, {}, holder), holder)};
  EightBitRows sent = permute(device, fc1_.cast_input(runtime, n), rows.chosen, holder);
  return fc1_.received_input(runtime, send(runtime, rows, std::move(sent), holder));
}

Operand ExpertMlp::gradients_to_experts(Runtime& runtime, const Rows& rows, Tensor of_choices, HolderId holder) const {
  if (!sends_eight_bits(runtime)) return {.plain = to_experts(runtime, rows, std::move(of_choices), holder)};
  QuantizedTensor cast = fc2_.cast_gradient(runtime, of_choices);
  of_choices = {};
  EightBitRows sent = eight_bit_rows(runtime.device, cast, holder);
  cast.clear();
  return fc2_.received_gradient(runtime, send(runtime, rows, std::move(sent), holder));
}

QuantizedTensor ExpertMlp::send(Runtime& runtime, const Rows& rows, EightBitRows of_choices, HolderId holder) const {
  return send_to_experts(runtime.device, *runtime.expert_group, rows.exchanged, std::move(of_choices), holder, name_);
}

Tensor ExpertMlp::to_experts(Runtime& runtime, const Rows& rows, Tensor of_choices, HolderId holder) const {
  if (runtime.expert_group == nullptr) return of_choices;
  return send_to_experts(runtime.device, *runtime.expert_group, rows.exchanged, std::move(of_choices), holder, name_);
}

Tensor ExpertMlp::from_experts(Runtime& runtime, const Rows& rows, Tensor of_experts, HolderId holder) const {
  if (runtime.expert_group == nullptr) return of_experts;
  return return_from_experts(runtime.device, *runtime.expert_group, rows.exchanged, std::move(of_experts),
                             rows.chosen.rows.numel(), holder, name_);
}

void ExpertMlp::set_groups(Runtime& runtime, const Rows& rows) {
  const std::vector<RowGroup> groups =
      read_groups(runtime.device, rows.travel() ? rows.exchanged.arrived : rows.chosen, row_multiple_);
  for (const RowGroup& group : groups)
    if (group.rows % needed_multiple_ != 0)
      fail(fmt::format("{}: an expert has {} tokens; products of experts in eight bits need a multiple of {}", name_,
                       group.rows, needed_multiple_));
  fc1_.set_groups(groups);
  fc2_.set_groups(groups);
}

Variable ExpertMlp::forward(Runtime& runtime, const Variable& x) {
  Device& device = runtime.device;
  const HolderId workspace = runtime.workspace(name_);
  fc1_.begin_forward(runtime);
  const NormCore::Forward normed = norm_.forward(runtime, x.value, {});
  const Tensor& n = normed.y.plain;
  Tensor logits = gemm(device, {.a = n.operand(),
                                .b = router_->value.operand(),
                                .bias = router_bias_ ? &router_bias_->value : nullptr,
                                .out_dtype = DType::kF32,
                                .holder = workspace});
  const Routing routing =
      route(device, logits, rule_, workspace, biases_ ? biases_->balance(runtime) : RouterBalance{});
  logits = {};
  if (device.cast_watch() != nullptr) device.cast_watch()->saw_choices(device, router_->name, routing.experts);
  const Rows rows = group(runtime, routing, workspace);
  set_groups(runtime, rows);
  LinearCore::Forward fc1 = fc1_.forward(runtime, tokens_to_experts(runtime, rows, n, workspace));
  LinearCore::Forward fc2 = fc2_.forward(runtime, activation_.forward(runtime, fc1.y, fc2_.begin_forward(runtime)));
  const Tensor outputs = from_experts(runtime, rows, std::move(fc2.y), workspace);
  Tensor y = unpermute(device, outputs, rows.chosen, routing.weights, runtime.in_flight(name_));
  SharedExperts::Forward shared;
  if (shared_) {
    shared = shared_->forward(runtime, n);
    add_into(device, y, shared.fc2.y);
    shared.fc2.y = {};
  }

  const auto node = std::make_shared<ExpertMlpNode>(runtime, x.producer, *this);
  node->save_norm(norm_, x.value, normed);
  node->save("norm_out", n);
  node->save_routing(routing, rows);
  node->save_activation("experts_in", fc1.x);
  node->save_weight("weight1", std::move(fc1.weight));
  node->save("activation_in", fc1.y);
  node->save_activation("activation_out", fc2.x);
  node->save_weight("weight2", std::move(fc2.weight));
  node->save("experts_out", outputs);
  if (shared_) SharedExperts::save(*node, std::move(shared));
  return {std::move(y), node};
}

}  // namespace fp8lab
