#include "nn/layers/latent_projections.h"

#include <utility>

#include "ops/attention.h"
#include "ops/elementwise.h"

namespace fp8lab {
namespace {

std::int64_t key_and_value_columns(const LayerConfig& config) {
  return config.heads * (config.head_dim() + config.value_dim());
}

LatentHeads heads_of(const LayerConfig& config) {
  return {.batch = config.batch,
          .heads = config.heads,
          .head_dim = config.head_dim(),
          .rope_dim = config.rope_dim,
          .value_dim = config.value_dim()};
}

}  // namespace

/// Saved: the norm's entries, n, and the entries of both latents.
class LatentProjectionsNode final : public ModuleNode {
 public:
  LatentProjectionsNode(Runtime& runtime, std::shared_ptr<Node> input, LatentProjections& module)
      : ModuleNode(runtime, module.name_, {std::move(input)}, runtime.behaviors.module_shells), module_(module) {}

  std::vector<Tensor> backward(Tensor grad) override {
    Restored saved = restore();
    const std::size_t first = norm_entries(module_.norm_), q = first + 1;
    LatentHeadParts parts =
        latent_heads_backward(device(), heads_of(module_.config_), grad, runtime().in_flight(name()));
    grad = {};
    const Tensor grad_norm = module_.q_.backward(runtime(), std::move(parts.q), saved, q);
    add_into(device(), grad_norm,
             module_.kv_.backward(runtime(), std::move(parts.kv), saved, q + LatentProjections::Latent::kEntries));
    add_rotated_key(saved.tensor(first), parts.k_rope, grad_norm);
    parts.k_rope = {};
    return {module_.norm_.backward(runtime(), grad_norm, norm_saved(saved, module_.norm_, 0))};
  }

 private:
  /// Adds the part of the rotated key to the gradient of `n`, and accumulates the gradient of its weight.
  void add_rotated_key(const Tensor& n, const Tensor& grad, const Tensor& grad_norm) {
    Parameter& weight = *module_.k_rope_;
    const DType dtype = weight.spec.dtype;
    add_into(device(), grad_norm,
             gemm(device(), {.a = grad.operand(),
                             .b = columnwise_of(weight.value),
                             .out_dtype = dtype,
                             .holder = runtime().workspace(name())}));
    weight.accumulate(
        device(),
        gemm(device(),
             {.a = columnwise_of(grad), .b = columnwise_of(n), .out_dtype = dtype, .holder = weight.grad_holder}));
  }

  LatentProjections& module_;
};

LatentProjections::Latent::Latent(Build& build, const std::string& name, std::int64_t hidden, std::int64_t rank,
                                  std::int64_t columns)
    : down_(build, name + "_down", {.in = hidden, .out = rank, .bias = false}),
      norm_(build, name + "_norm", NormKind::kRmsNorm, rank, false),
      up_(build, name + "_up", {.in = rank, .out = columns, .bias = false}) {}

LatentProjections::Latent::Forward LatentProjections::Latent::forward(Runtime& runtime, const Tensor& n) {
  down_.begin_forward(runtime);
  Forward out;
  out.down = down_.forward(runtime, {.plain = n});
  out.normed = norm_.forward(runtime, out.down.y, up_.begin_forward(runtime));
  out.up = up_.forward(runtime, std::move(out.normed.y));
  return out;
}

void LatentProjections::Latent::save(ModuleNode& node, Forward forward) const {
  node.save_activation("latent_in", forward.down.x);
  node.save_weight("weight_down", std::move(forward.down.weight));
  node.save("latent", forward.down.y);
  node.save("latent_rstd", forward.normed.rstd);
  node.save_activation("latent_norm_out", forward.up.x);
  node.save_weight("weight_up", std::move(forward.up.weight));
}

Tensor LatentProjections::Latent::backward(Runtime& runtime, Tensor grad, Restored& saved, std::size_t first) {
  Tensor grad_norm = up_.backward(runtime, {.plain = std::move(grad)}, saved, first + 4, first + 5).plain;
  Tensor grad_latent =
      norm_.backward(runtime, grad_norm, {.x = saved.tensor(first + 2), .mean = {}, .rstd = saved.tensor(first + 3)});
  grad_norm = {};
  return down_.backward(runtime, {.plain = std::move(grad_latent)}, saved, first, first + 1).plain;
}

LatentProjections::LatentProjections(Build& build, const std::string& name, const LayerConfig& config)
    : name_(name + ".latents"),
      config_(config),
      norm_(build, name_ + ".norm", config.form.norm, config.hidden, config.form.bias),
      q_(build, name + ".q", config.hidden, config.q_rank, config.heads * config.key_dim()),
      kv_(build, name + ".kv", config.hidden, config.kv_rank, key_and_value_columns(config)),
      k_rope_(make_parameter(build, name + ".k_rope.weight", {config.rope_dim, config.hidden}, Init::kNormal)) {}

Variable LatentProjections::forward(Runtime& runtime, const Variable& x) {
  Device& device = runtime.device;
  const NormCore::Forward normed = norm_.forward(runtime, x.value, {});
  const Tensor& n = normed.y.plain;
  Latent::Forward q = q_.forward(runtime, n), kv = kv_.forward(runtime, n);
  Tensor k_rope = gemm(device, {.a = n.operand(),
                                .b = k_rope_->value.operand(),
                                .out_dtype = k_rope_->spec.dtype,
                                .holder = runtime.workspace(name_)});
  Tensor packed =
      latent_heads(device, heads_of(config_), {.q = q.up.y, .kv = kv.up.y, .k_rope = k_rope}, runtime.in_flight(name_));
  q.up.y = kv.up.y = k_rope = {};

  const auto node = std::make_shared<LatentProjectionsNode>(runtime, x.producer, *this);
  node->save_norm(norm_, x.value, normed);
  node->save("norm_out", n);
  q_.save(*node, std::move(q));
  kv_.save(*node, std::move(kv));
  return {std::move(packed), node};
}

}  // namespace fp8lab
