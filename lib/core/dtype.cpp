#include "core/dtype.h"

namespace fp8lab {

std::optional<DType> parse_dtype(std::string_view text) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kE4M3, DType::kE5M2, DType::kE8M0, DType::kU8,
                      DType::kI16, DType::kI32, DType::kI64})
    if (name(dtype) == text) return dtype;
  return std::nullopt;
}

}  // namespace fp8lab
