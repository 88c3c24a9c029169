#pragma once

#include "harness/subjects/profile/memory_profile.h"

// The rows of a profile as they are in certain programs.
namespace fp8lab {

/// Rows of the weight, which FSDP2 divides.
double rows_of(const ProfileRow& row, std::size_t weight, const Sizes& sizes);

/// The row of a micro-batch that finds the gradients of those before it: a layer's are added to them one function after
/// the other, so what its backward leaves is no more, and the MLP's are freed before attention's are made.
ProfileRow adding_gradients(ProfileRow row);

/// The row without copies of weights from forward to backward. Forward has one orientation of the weight it multiplies
/// by, taken as the largest, and backward makes the other one for the time of its product: a byte an element.
ProfileRow without_copies(ProfileRow row, const Sizes& sizes);

}  // namespace fp8lab
