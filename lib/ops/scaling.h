#pragma once

#include <string_view>

#include "comm/process_group.h"
#include "recipe/recipe.h"
#include "tensor/tensor.h"

// Checks and preparations that all casts to eight bits share.
namespace fp8lab {

/// Throws Error for a format to which no kernel casts.
void check_format(const QuantFormat& format);

/// The address at which a kernel stores an amax: null if the tensor is absent. Throws Error unless the tensor is f32
/// [1].
float* amax_place(std::string_view op, const Tensor& amax);

/// Replaces amaxes by their maxima over the group's ranks (all-reduce). A null group leaves them unchanged.
void max_over(ProcessGroup* group, const Tensor& amaxes);

}  // namespace fp8lab
