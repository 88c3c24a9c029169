#pragma once

#include "harness/predict/predict_sizes.h"

// What eager PyTorch allocates in addition to the own runtime, term by term. With these terms the closed forms
// are a lower bound of the live bytes of a PyTorch program that trains the cell: see torch_at_least() in predict.h.
//
// Terms and their places in PyTorch (release 2.15):
// - FP32 logits. `F.cross_entropy(logits.float(), targets)` makes a copy of the logits in FP32, from it the
//   log-probabilities that backward reads, and in backward the gradients of log-probabilities and of logits in FP32
//   (ATen/native/LossNLL.cpp, SoftMax.cpp): 12 bytes a logit at most at a time. The loop holds the model's output until
//   backward ends, as most training loops do.
// - Eager SwiGLU. `F.silu(gate) * up` saves gate, up and the output of SiLU for backward (derivatives.yaml: silu, mul);
//   a fused activation saves gate and up. It applies to layers in 16 bits and FP32; eight-bit libraries fuse it.
// - FSDP2's copies of gradients. foreach_reduce() in _fsdp_collectives.py copies a layer's gradients into one buffer in
//   `reduce_dtype`; _fsdp_param_group.py keeps the buffer until the next layer reduces its own, and under HSDP the
//   reduced copy too.
// - FSDP2's gathers. A layer's parameters are gathered while the layer before it computes, whatever `gather_ahead` is.
//
// PyTorch saves the same as the own runtime for linear layers, norms with fused kernels (input, output, statistics),
// GELU, residuals, scaled_dot_product_attention with a flash kernel (Q, K, V, output, log-sum-exp) and rotary
// embeddings (rotated Q and K; V). Not counted, so that the sum stays a lower bound: masks of dropout, FP32 temporaries
// of rotary embeddings and of norms without fused kernels, keys and values repeated for grouped queries, temporaries of
// optimizers that are not fused, cuBLAS's workspaces, and what the caching allocator reserves beyond live bytes.
namespace fp8lab::closed_form {

/// Bytes that eager mode saves in an MLP in addition to its activation's input and output; 0 in the own runtime.
Bytes saved_by_silu(const CellNumbers& cell);

/// The log-probabilities of a micro-batch in FP32, which live from the loss to its backward.
Bytes log_probabilities(const CellNumbers& cell);
/// From the logits to the log-probabilities, with the loss apart.
Schedule torch_cross_entropy(const CellNumbers& cell);
/// From the log-probabilities, which it frees, to the gradient of the logits in their own type.
Schedule torch_cross_entropy_backward(const CellNumbers& cell);

/// As CellNumbers::reduction(); leaves kept_by_reduction() alive.
Schedule torch_reduction(const CellNumbers& cell, const GradientBytes& of);
/// Bytes that FSDP2 keeps of a reduction until the next one, or until backward ends; 0 in the own runtime.
Bytes kept_by_reduction(const CellNumbers& cell, const GradientBytes& of);

}  // namespace fp8lab::closed_form
