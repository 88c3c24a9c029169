#pragma once

#include "harness/predict/predict_nodes.h"

// Nodes that have a file of their own.
namespace fp8lab::closed_form {

/// The mixture of experts of a layer. Its bytes depend on no count of tokens: the matrices of all choices have rows for
/// every routing, so that the closed form is exact whatever the data are.
Node expert_mlp(const CellNumbers& cell);
/// True if nothing pads the tokens of experts to the rows that products in eight bits accept, and these may be no
/// multiple of them: then a batch ends with an error.
bool may_lack_blocks(const CellNumbers& cell);

/// What makes Q, K and V from latents (MLA), rotation included.
Node latent_projections(const CellNumbers& cell);

/// Attention when ranks split sequences between them, in 16 bits and in eight.
Node plain_ring_attention(const CellNumbers& cell);
Node cast_ring_attention(const CellNumbers& cell);

}  // namespace fp8lab::closed_form
