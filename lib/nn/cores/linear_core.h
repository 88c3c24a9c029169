#pragma once

#include <memory>
#include <optional>
#include <string>

#include "autograd/node.h"
#include "nn/build.h"
#include "nn/cores/linear_hooks.h"
#include "nn/cores/operand.h"
#include "nn/cores/role_scales.h"
#include "ops/gemm.h"

namespace fp8lab {

struct LinearShape {
  std::int64_t in = 0;
  std::int64_t out = 0;
  bool bias = true;
  bool to_residual = false;  ///< the result is added to the residual stream: Build::residual_deviation
  // Results that the product itself casts, under scales with a history; only for recipes whose scales have one.
  bool casts_output = false;          ///< y, in the format of activations
  bool casts_input_gradient = false;  ///< the gradient of x, in the format of gradients
  bool grouped = false;               ///< one of the products of a GroupedLinear
  std::int64_t matrices = 1;          ///< matrices [out, in] that lie one below the other; each has a bias of its own
  RowPart part{};                     ///< the part of the matrices of all ranks that these are
};

/// y = x W^T + b with weight [out, in], and its three products under a recipe: forward reads x and W row-wise, the
/// gradient of x reads dY row-wise and W column-wise, the gradient of W reads dY and x column-wise. Every module has
/// one LinearCore for each linear layer in it. The module decides what to save, and how.
class LinearCore {
 public:
  LinearCore(Build& build, const std::string& name, const LinearShape& shape);
  virtual ~LinearCore() = default;
  LinearCore(const LinearCore&) = delete;
  LinearCore& operator=(const LinearCore&) = delete;

  struct Forward {
    Tensor y{};
    QuantizedTensor quantized_y{};  ///< row-wise, in place of `y`, if the core casts its output
    Operand x{};                    ///< the orientation that backward needs; of an input that came quantized, what came
    SavedWeight weight{};
  };
  /// Begins a pass, before its input is made. Returns a request to the operation that makes the input: if the scale is
  /// known, to cast the input for this product without storing it; if the scale follows from its amax, to measure it;
  /// nothing if the input is not cast, or is cast in blocks along both rows and columns.
  OperandRequest begin_forward(Runtime& runtime);
  /// `x` is as begin_forward() requested, or in high precision. High-precision input that is cast here is freed with
  /// `x`. `keeps_copy`: if the weight is quantized for this pass, the copy is returned even if the weight is sharded.
  Forward forward(Runtime& runtime, Operand x, bool keeps_copy = false);

  /// Casts row-wise what other ranks multiply: rows of their inputs, after begin_forward(), or rows of the gradients of
  /// their outputs. The amax counts here. Only under a quantizing recipe.
  QuantizedTensor cast_input(Runtime& runtime, const Tensor& x) const;
  QuantizedTensor cast_gradient(Runtime& runtime, const Tensor& grad_y) const;
  /// What other ranks cast so, as an operand for forward() or backward(). Products read the rows as they came. The
  /// column-wise orientation, for the gradient of the weight, is made here: the transposed bytes or, if blocks have
  /// other scales along columns, a cast of the dequantized rows in the layer's type.
  Operand received_input(Runtime& runtime, QuantizedTensor rows) const;
  Operand received_gradient(Runtime& runtime, QuantizedTensor rows) const;

  /// True if backward() uses the amax of `grad_y`.
  bool measures_gradient() const;
  /// Returns the gradient of x; accumulates the gradients of the parameters. `x_came_quantized`: forward's input came
  /// in eight bits. `grad_y` is in high precision, with or without its amax, or quantized row-wise. Entry `x` of
  /// `saved` is forward's operand. Entry `weight` is forward's SavedWeight. Without a copy the parameter is read, so
  /// that the module keeps nothing alive; if it is in high precision and the recipe quantizes, it is quantized again,
  /// only for the gradient of x.
  Gradient backward(Runtime& runtime, Operand grad_y, Restored& saved, std::size_t x, std::size_t weight,
                    bool x_came_quantized = false);

  const std::string& name() const { return name_; }

 protected:
  /// The three products; their results are as gemm() returns them.
  virtual Tensor output(Device& device, const GemmInputs& inputs) const { return gemm(device, inputs); }
  virtual Tensor input_gradient(Device& device, const GemmInputs& inputs) const { return gemm(device, inputs); }
  virtual Tensor weight_gradient(Device& device, const GemmInputs& inputs) const { return gemm(device, inputs); }
  /// Only of a core with a bias.
  virtual Tensor bias_gradient(Device& device, const Tensor& grad_y) const;

  // For GroupedLinear, whose cores take each step of a pass together.
  enum ForwardRole { kInput, kWeight, kOutput };
  enum BackwardRole { kGradOutput, kGradInput };

  Operand quantize_role(Runtime& runtime, const RoleScales& scales, int role, Operand stored) const;
  /// The weight for forward, read row-wise. Quantized into `copy` unless the parameter or its cached copy can be read;
  /// `for_backward`: with the orientation that backward reads; `caches`: the cached copy may be used.
  OperandView weight_rowwise(Runtime& runtime, bool for_backward, bool caches, std::optional<QuantizedTensor>& copy);
  /// The weight for backward, read column-wise; quantized into `copy` if forward saved no copy of it.
  OperandView weight_columnwise(Runtime& runtime, Restored& saved, std::size_t entry,
                                std::optional<QuantizedTensor>& copy);

 private:
  /// True if forward's copy of the weight lives only for forward's product, and backward makes another one.
  bool quantizes_again() const;
  /// The cached copy, made or cast again if needed.
  const QuantizedTensor& cached_weight(Runtime& runtime, const Quantizer& cast);
  /// Before the first forward: histories as long as the recipe's.
  void resize_histories(Runtime& runtime);
  Quantizer quantizer(Runtime& runtime, const RoleScales& scales, int role) const;
  /// True if casts need not be stored first: quantization is fused, and no one watches them.
  bool casts_at_once(const Runtime& runtime) const;
  bool measures(const QuantFormat& format) const;
  /// Casts the product as it is made or, without fused quantization, from a copy in FP32.
  QuantizedTensor cast_product(Runtime& runtime, GemmInputs product, const RoleScales& scales, int role) const;
  void accumulate_bias(Runtime& runtime, const Tensor& grad_y);
  Operand received(Runtime& runtime, QuantizedTensor rows, const char* what) const;
  QuantizedTensor cast_rows(Runtime& runtime, const RoleScales& scales, int role, const Tensor& x) const;
  /// Makes the column-wise orientation of an operand that came quantized row-wise, unless products read it transposed.
  void complete(Runtime& runtime, QuantizedTensor& operand) const;

  std::string name_;
  const Recipe& recipe_;
  bool casts_output_;
  bool casts_input_gradient_;
  bool grouped_;
  bool fused_quantize_;
  bool cache_weights_;
  QuantizedTensor cached_;  ///< copy of `weight_` that lives for the entire training

 protected:
  std::unique_ptr<LinearHooks> hooks_;
  RoleScales forward_scales_;
  RoleScales backward_scales_;
  std::unique_ptr<Parameter> weight_;
  std::unique_ptr<Parameter> bias_;
};

}  // namespace fp8lab
