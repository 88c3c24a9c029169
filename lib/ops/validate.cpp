#include "ops/validate.h"

#include <fmt/core.h>

#include "core/check.h"

namespace fp8lab {

bool is_real(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16; }

std::string describe(const NamedTensor& argument) {
  if (!argument.tensor) return fmt::format("{} is absent", argument.name);
  return fmt::format("{} is {} {}", argument.name, name(argument.tensor.dtype()), to_string(argument.tensor.shape()));
}

void check_real(std::string_view op, const NamedTensor& argument) {
  if (!argument.tensor || !is_real(argument.tensor.dtype()))
    fail(fmt::format("{}: {}; it must be an f32, f16 or bf16 tensor", op, describe(argument)));
}

void check_dtype(std::string_view op, const NamedTensor& argument, DType expected) {
  if (!argument.tensor || argument.tensor.dtype() != expected)
    fail(fmt::format("{}: {}; it must be {}", op, describe(argument), name(expected)));
}

void check_same_shape(std::string_view op, const NamedTensor& a, const NamedTensor& b) {
  if (!a.tensor || !b.tensor || !(a.tensor.shape() == b.tensor.shape()))
    fail(fmt::format("{}: {} and {}; both must have one shape", op, describe(a), describe(b)));
}

void check_numel(std::string_view op, const NamedTensor& argument, std::int64_t expected, std::string_view rule) {
  if (!argument.tensor || argument.tensor.numel() != expected)
    fail(fmt::format("{}: {}; it must have {} elements, {}", op, describe(argument), expected, rule));
}

void check_tensor_wide(std::string_view op, const NamedTensor& argument) {
  check_dtype(op, argument, DType::kF32);
  check_numel(op, argument, 1, "one for the entire tensor");
}

}  // namespace fp8lab
