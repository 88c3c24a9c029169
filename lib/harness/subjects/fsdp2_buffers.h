#pragma once

#include "harness/cell/cell.h"

namespace fp8lab {

/// What PyTorch's FSDP2 (torch.distributed.fsdp.fully_shard) holds in addition to parameters, gradients and optimizer
/// state, if every layer is its own group: parameters that are gathered, and buffers of collectives. Read in PyTorch
/// 2.11's `_fsdp_param_group.py` and `_fsdp_collectives.py`. In bytes; all of it is 0 for a cell that is not sharded.
/// `done` counts the layers whose forward, or backward, is over.
class Fsdp2Buffers {
 public:
  /// `layer_bytes`: a layer's parameters, unsharded.
  Fsdp2Buffers(const CellConfig& cell, double layer_bytes);

  bool is_sharded() const { return sharded_; }
  /// The part of every parameter that a rank holds.
  double share() const { return 1.0 / shards_; }

  double after_forward(double done) const;
  /// During a layer's forward: its parameters, and the all-gather's output that they were copied out of, which FSDP2
  /// keeps until the next layer's. One rank gathers nothing.
  double in_forward(double done) const;
  /// During a layer's backward: its parameters, the output of the next layer's all-gather, and the input of the
  /// reduce-scatter of the layer before.
  double in_backward(double done) const;
  /// Behind a layer's backward: its gradients, and the reduce-scatter's input that they are copied into. They are freed
  /// before its output is made.
  double in_reduce(double done) const;

 private:
  double gathered_ahead(double done) const;

  bool sharded_ = false, reshards_ = true;
  double layers_ = 0, shards_ = 1, layer_bytes_ = 0;
};

}  // namespace fp8lab
