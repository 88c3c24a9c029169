#include "nn/layers/language_head.h"

#include <utility>

#include "nn/cores/saving.h"
#include "ops/gemm.h"

namespace fp8lab {
namespace {

class LanguageHeadNode final : public ModuleNode {
 public:
  LanguageHeadNode(Runtime& runtime, std::shared_ptr<Node> input, NormCore& norm, Parameter& weight)
      : ModuleNode(runtime, "head", {std::move(input)}), norm_(norm), weight_(weight) {}

  std::vector<Tensor> backward(Tensor grad) override {
    Restored saved = restore();
    const Tensor grad_norm = gemm(device(), {.a = grad.operand(),
                                             .b = columnwise_of(weight_.value),
                                             .out_dtype = weight_.spec.dtype,
                                             .holder = runtime().in_flight(name())});
    if (!weight_.frozen)
      weight_.accumulate(device(), gemm(device(), {.a = columnwise_of(grad),
                                                   .b = columnwise_of(saved.tensor(norm_entries(norm_))),
                                                   .out_dtype = weight_.spec.dtype,
                                                   .holder = weight_.grad_holder}));
    grad = {};
    return {norm_.backward(runtime(), grad_norm, norm_saved(saved, norm_, 0))};
  }

 private:
  NormCore& norm_;
  Parameter& weight_;
};

}  // namespace

LanguageHead::LanguageHead(Build& build, Parameter* tied, std::int64_t vocabulary, const LayerConfig& config)
    : norm_(build, "norm", config.form.norm, config.hidden, config.form.bias),
      own_(tied != nullptr ? nullptr
                           : make_parameter(build, "head.weight", {vocabulary, config.hidden}, Init::kNormal)),
      weight_(tied != nullptr ? *tied : *own_) {}

Variable LanguageHead::forward(Runtime& runtime, const Variable& x) {
  const NormCore::Forward normed = norm_.forward(runtime, x.value, {});
  Tensor logits = gemm(runtime.device, {.a = normed.y.plain.operand(),
                                        .b = weight_.value.operand(),
                                        .out_dtype = weight_.spec.dtype,
                                        .holder = runtime.in_flight("head")});
  const auto node = std::make_shared<LanguageHeadNode>(runtime, x.producer, norm_, weight_);
  node->save_norm(norm_, x.value, normed);
  if (!weight_.frozen) node->save("norm_out", normed.y.plain);
  return {std::move(logits), node};
}

}  // namespace fp8lab
