#include "nn/cores/linear_hooks.h"
#include "nn/cores/operand.h"
#include "ops/elementwise.h"

namespace fp8lab {
namespace {

/// Linear products with the defects of the fixes that `behaviors` revert.
class RevertedLinear final : public LinearHooks {
 public:
  explicit RevertedLinear(const Behaviors& behaviors) : behaviors_(behaviors) {}

  // requantize_in_backward: every layer saves its copy, and a rank ends forward with the entire model in eight bits.
  bool saves_sharded_copy() const override { return !behaviors_.requantize_in_backward; }

  // reset_incomplete_workspaces: the copy stays, and only the orientation that it has is cast again.
  bool drops_incomplete_copy(const QuantFormat& format) const override {
    return format.per_tensor() ||
           (behaviors_.reset_incomplete_workspaces && LinearHooks::drops_incomplete_copy(format));
  }

  // skip_cached_casts: the host launches the cast in every micro-batch, and kernels skip it by a flag in device memory.
  // The kernels of MXFP8 do not read the flag. Neither does Blackwell's under one scale, if it makes only rows. Here
  // the host decides, so what such a kernel casts is cast again. skip_casts_of_experts: GroupedLinear passes no flag.
  bool skips_cast(const ArchProfile& arch, const QuantFormat& format, bool grouped) const override {
    if (grouped && !behaviors_.skip_casts_of_experts) return false;
    const bool reads_flag =
        format.per_tensor() ? !reads_rowwise_transposed(arch, format) : format.scale_dtype() != DType::kE8M0;
    return reads_flag || behaviors_.skip_cached_casts;
  }

  // differentiate_quantized_inputs: a quantized tensor has a copy of the flag that it needs a gradient. The copy was
  // made with the tensor, before the graph set the flag. So the layer has no gradient to return, and the graph passes
  // zeros on. Upstream skips the product too; here its result is dropped.
  void before_return(Runtime& runtime, Gradient& of_input, DType dtype) const override {
    if (behaviors_.differentiate_quantized_inputs) return;
    const Shape shape =
        of_input.is_quantized() ? Shape{of_input.quantized.rows(), of_input.quantized.cols()} : of_input.plain.shape();
    of_input = {.plain = runtime.device.allocate({shape, dtype}, runtime.in_flight("lost gradient"))};
    fill(runtime.device, of_input.plain, 0.0f);
  }

  // use_weight_quantizer: the module's quantizer, which makes both orientations for training, configures the weight.
  // validate_usage_by_pass: the weight is prepared for backward's product already here.
  void before_forward_reads(Runtime& runtime, Parameter& weight, const std::string& reader) override {
    const bool demands = !behaviors_.use_weight_quantizer || !behaviors_.validate_usage_by_pass;
    if (demands && runtime.differentiates()) need_columnwise(runtime.device, weight, reader);
  }

  // clear_gathered_transposes: the transpose is left to the reshard, which frees only the outputs of the all-gather.
  void after_backward_reads(Parameter& weight) override {
    if (behaviors_.clear_gathered_transposes) LinearHooks::after_backward_reads(weight);
  }

  // rebind_amax_on_resize: the quantizer keeps the live row of the old history. Its amaxes are lost there, so that the
  // weight's scale never changes again.
  void after_history_resize(Quantizer& quantizer, const Tensor& live) override {
    if (behaviors_.rebind_amax_on_resize) LinearHooks::after_history_resize(quantizer, live);
  }

 private:
  Behaviors behaviors_;
};

}  // namespace

std::unique_ptr<LinearHooks> make_linear_hooks(const Behaviors& behaviors) {
  if (behaviors == Behaviors{}) return std::make_unique<LinearHooks>();
  return std::make_unique<RevertedLinear>(behaviors);
}

}  // namespace fp8lab
