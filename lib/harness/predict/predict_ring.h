#pragma once

#include "harness/predict/predict_nodes.h"

// Attention when ranks split sequences between them: nodes in 16 bits and in eight.
namespace fp8lab::closed_form {

Node plain_ring_attention(const CellNumbers& cell);
Node cast_ring_attention(const CellNumbers& cell);

}  // namespace fp8lab::closed_form
