#pragma once

#include <string>

#include "harness/cell/cell.h"
#include "harness/reference/matrix.h"

namespace fp8lab::reference_step {

/// The values with which training starts the parameter `name`, a matrix of `rows` x `cols` or, if `is_vector`, a vector
/// of `cols`, before they are rounded to its type. Slopes of norms are 1, biases 0. Element i of a matrix is draw i of
/// the stream that its name chooses, normal with the deviation `init_std`; divided by sqrt(2 layers) if the matrix adds
/// to the residual stream and the cell scales those.
Matrix initial_values(const CellConfig& cell, const std::string& name, std::int64_t rows, std::int64_t cols,
                      bool is_vector);

/// What differs between a parameter before the first step and its initial values, or "".
std::string wrong_initial_values(const CellConfig& cell, const std::string& name, const Matrix& seen, bool is_vector);

}  // namespace fp8lab::reference_step
