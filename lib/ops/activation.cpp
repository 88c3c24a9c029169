#include "ops/activation.h"

#include <fmt/core.h>

#include <utility>

#include "core/check.h"
#include "ops/prepared_cast.h"
#include "ops/scaling.h"
#include "ops/validate.h"

namespace fp8lab {
namespace {

struct KindRow {
  ActivationKind kind;
  std::string_view name;
  std::int64_t inputs_per_output;
};
constexpr KindRow kKinds[] = {
    {ActivationKind::kGelu, "gelu", 1},
    {ActivationKind::kSwiglu, "swiglu", 2},  // gate and up, side by side
    {ActivationKind::kGeglu, "geglu", 2},
};

const KindRow& row_of(const Activation& activation) {
  if (!(activation.limit >= 0.0f) || (activation.limit > 0.0f && activation.kind != ActivationKind::kSwiglu))
    fail(fmt::format("activation: limit is {}; it must be 0, or positive for swiglu", activation.limit));
  for (const KindRow& row : kKinds)
    if (row.kind == activation.kind) return row;
  fail("activation: a kind without a row in its table");
}

TensorSpec infer_output(const KindRow& kind, std::string_view op, const Tensor& x) {
  check_real(op, {"x", x});
  if (x.cols() % kind.inputs_per_output != 0)
    fail(fmt::format("{}: {}; {} divides its columns by two, so their number must be even", op, describe({"x", x}),
                     kind.name));
  TensorSpec spec = x.spec();
  if (spec.shape.rank() > 0) spec.shape.set(-1, x.cols() / kind.inputs_per_output);
  return spec;
}

}  // namespace

Tensor activation_forward(Device& device, const Activation& activation, const Tensor& x, HolderId holder,
                          const Tensor& amax) {
  constexpr std::string_view kOp = "activation_forward";
  float* const place = amax_place(kOp, amax);
  const Tensor y = device.allocate(infer_output(row_of(activation), kOp, x), holder);
  device.launch(&KernelTable::activation_forward,
                ActivationForwardArgs{
                    .kind = activation.kind, .limit = activation.limit, .x = x.view(), .y = y.view(), .amax = place});
  return y;
}

QuantizedTensor activation_quantize(Device& device, const Activation& activation, const Tensor& x,
                                    const Quantizer& quantizer) {
  constexpr std::string_view kOp = "activation_quantize";
  PreparedCast cast = prepare_unstored_cast(device, kOp, infer_output(row_of(activation), kOp, x), quantizer);
  device.launch(
      &KernelTable::activation_quantize,
      ActivationQuantizeArgs{
          .activation = {.kind = activation.kind, .limit = activation.limit, .x = x.view(), .y = cast.args.in},
          .cast = cast.args});
  return std::move(cast.result);
}

Tensor activation_backward(Device& device, const Activation& activation, const Tensor& grad_y, const Tensor& x,
                           HolderId holder, const Tensor& amax) {
  constexpr std::string_view kOp = "activation_backward";
  const TensorSpec y = infer_output(row_of(activation), kOp, x);
  check_real(kOp, {"grad_y", grad_y});
  if (!(grad_y.shape() == y.shape))
    fail(fmt::format("{}: {} and {}; grad_y must be {}", kOp, describe({"grad_y", grad_y}), describe({"x", x}),
                     to_string(y.shape)));
  float* const place = amax_place(kOp, amax);
  const Tensor grad_x = device.allocate(x.spec(), holder);
  device.launch(&KernelTable::activation_backward, ActivationBackwardArgs{.kind = activation.kind,
                                                                          .limit = activation.limit,
                                                                          .grad_y = grad_y.view(),
                                                                          .x = x.view(),
                                                                          .grad_x = grad_x.view(),
                                                                          .amax = place});
  return grad_x;
}

}  // namespace fp8lab
