#pragma once

#include "core/dtype.h"

namespace fp8lab::cuda {

/// Calls use.template operator()<In, Float8>() for the types of a matrix and of its quantized data, which lib/ops
/// has checked.
template <class Use>
void for_types(DType in, DType dtype, const Use& use) {
  const auto with_input = [&]<DType In>() {
    if (dtype == DType::kE4M3)
      use.template operator()<In, DType::kE4M3>();
    else
      use.template operator()<In, DType::kE5M2>();
  };
  if (in == DType::kBF16)
    with_input.template operator()<DType::kBF16>();
  else if (in == DType::kF32)
    with_input.template operator()<DType::kF32>();
  else
    with_input.template operator()<DType::kF16>();
}

}  // namespace fp8lab::cuda
