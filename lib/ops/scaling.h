#pragma once

#include <string_view>

#include "comm/process_group.h"
#include "recipe/recipe.h"
#include "tensor/tensor.h"

// What all casts to eight bits ask and do first.
namespace fp8lab {

/// Throws Error for a format that no kernel casts to.
void check_format(const QuantFormat& format);

/// Where a kernel writes an amax: nowhere where the tensor is absent; Error unless it is f32 [1].
float* amax_place(std::string_view op, const Tensor& amax);

/// The largest of the ranks' amaxes, everywhere. Null: this rank's own.
void max_over(ProcessGroup* group, const Tensor& amaxes);

}  // namespace fp8lab
