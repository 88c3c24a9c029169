#pragma once

#include <string>
#include <string_view>

#include "tensor/tensor.h"

// Checks of operations' arguments. Each check throws Error: "<op>: <argument> is <what was given>; <the rule>".
namespace fp8lab {

/// A tensor and its name in messages.
struct NamedTensor {
  std::string_view name;
  const Tensor& tensor;
};

/// True for f32, f16 and bf16.
bool is_real(DType dtype);

/// "x is bf16 [4, 8]", or "x is absent".
std::string describe(const NamedTensor& argument);

/// The argument must be present and of type f32, f16 or bf16.
void check_real(std::string_view op, const NamedTensor& argument);
void check_dtype(std::string_view op, const NamedTensor& argument, DType expected);
void check_same_shape(std::string_view op, const NamedTensor& a, const NamedTensor& b);
/// `rule` explains in words where the expected number of elements comes from.
void check_numel(std::string_view op, const NamedTensor& argument, std::int64_t expected, std::string_view rule);
/// The argument must be f32 [1]: a scale or an amax of a full tensor.
void check_tensor_wide(std::string_view op, const NamedTensor& argument);

/// The tensor's view; of an absent tensor a view without data.
inline MatrixView view_or_none(const Tensor& tensor) { return tensor ? tensor.view() : MatrixView{}; }

}  // namespace fp8lab
