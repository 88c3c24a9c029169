#pragma once

#include <cstdint>

#include "harness/cell/cell.h"

namespace fp8lab {

/// What PyTorch's FSDP2 (torch.distributed.fsdp.fully_shard) holds in addition to parameters, gradients and optimizer
/// state, if every layer is its own group: parameters that are gathered, and buffers of collectives. Read in PyTorch
/// 2.11's `_fsdp_param_group.py` and `_fsdp_collectives.py`. In bytes above the start of the layer's pass; all of it is
/// 0 for a cell that is not sharded. `done` counts the layers whose backward is over.
class Fsdp2Buffers {
 public:
  Fsdp2Buffers() = default;
  /// A layer's parameters as they are gathered, and its gradients as they are reduced, both unsharded; in bytes.
  Fsdp2Buffers(const CellConfig& cell, std::int64_t gathered, std::int64_t reduced);

  bool is_sharded() const { return sharded_; }
  bool reshards_after_forward() const { return reshards_; }

  /// During a layer's forward: its parameters, and the all-gather's output that they were copied out of, which FSDP2
  /// keeps until the next layer's. One rank gathers nothing.
  std::int64_t in_forward() const { return (shards_ > 1 ? 2 : 1) * gathered_; }
  /// What a layer's forward leaves.
  std::int64_t after_forward() const { return reshards_ ? 0 : gathered_; }
  /// During a layer's backward: its parameters, the output of the next layer's all-gather, and the input of the
  /// reduce-scatter of the layer before.
  std::int64_t in_backward(std::int64_t done) const;
  /// Behind a layer's backward: its gradients, and the reduce-scatter's input that they are copied into. They are freed
  /// before its output is made.
  std::int64_t in_reduce(std::int64_t done) const;

 private:
  std::int64_t gathered_ahead(std::int64_t done) const;

  bool sharded_ = false, reshards_ = true;
  std::int64_t layers_ = 0, shards_ = 1, gathered_ = 0, reduced_ = 0;
};

}  // namespace fp8lab
