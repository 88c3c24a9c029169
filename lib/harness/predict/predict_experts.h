#pragma once

#include "harness/predict/predict_nodes.h"

namespace fp8lab::closed_form {

/// The mixture of experts of a layer. Its bytes depend on no count of tokens: the matrices of all choices have rows for
/// every routing, so that the closed form is exact whatever the data are.
Node expert_mlp(const CellNumbers& cell);

}  // namespace fp8lab::closed_form
