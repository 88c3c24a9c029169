#pragma once

#include <map>
#include <string>

#include "harness/eager/trained_layer.h"

namespace fp8lab::eager {

/// What training a cell allocates on rank 0, or, if ranks have sequences between them, the most that one allocates.
struct Memory {
  /// By metric name, of the last step, except peaks, which cover all steps: memory.peak_bytes, .forward_peak_bytes,
  /// .optimizer_peak_bytes, .end_of_forward_bytes, .end_of_backward_bytes, .end_of_step_bytes, .weight_bytes,
  /// .retained_bytes; and over ranks traffic.all_gather_bytes, traffic.reduce_scatter_bytes, traffic.all_reduce_bytes
  /// (gradients, norms of `clip_norm`, counts of routers with biases), and with `expert_parallel`
  /// traffic.all_to_all_bytes, with `context_parallel` traffic.ring_exchange_bytes.
  std::map<std::string, Bytes> figures;
  Bytes received = 0, sent = 0;  ///< MovedBytes of a step
  Phase peak_phase = Phase::kSetup;
  ByOwner at_peak{}, at_end_of_forward{};
};

/// Steps after which PyTorch's allocator has reserved what it needs. From the second step on live bytes repeat.
inline constexpr std::int64_t kStepsThatReserve = 4;

/// From a step's third micro-batch on passes repeat: gradients are there, and what the pass before left.
inline constexpr std::int64_t kPassesThatDiffer = 3;

/// Runs the program's allocations and frees: a chain of layers (see Layer), with embedding, last norm and head if the
/// cell has a vocabulary; a loss; Adam, or no optimizer. Keys that a program does not have must be refused before.
/// `most_passes`: micro-batches of a step that it runs; the rest counts as copies of the last one.
Memory memory_of(const CellConfig& cell, Program program, Operators operators,
                 std::int64_t most_passes = kPassesThatDiffer);
/// The same of Program::kEngine, on CUDA. A layer's blocks stand for many tensors, so no reserved memory is predicted.
Memory memory_of(const CellConfig& cell, const Engine& engine);

}  // namespace fp8lab::eager
