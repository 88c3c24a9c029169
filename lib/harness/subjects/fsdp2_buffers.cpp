#include "harness/subjects/fsdp2_buffers.h"

#include "harness/cell/sharding_keys.h"

namespace fp8lab {

Fsdp2Buffers::Fsdp2Buffers(const CellConfig& cell, double layer_bytes)
    : sharded_(fp8lab::is_sharded(cell)),
      reshards_(cell.reshard_after_forward),
      layers_(static_cast<double>(cell.model.layers)),
      shards_(sharded_ ? static_cast<double>(mesh_of(cell).shards) : 1.0),
      layer_bytes_(sharded_ ? layer_bytes : 0.0) {}

double Fsdp2Buffers::after_forward(double done) const { return reshards_ ? 0.0 : done * layer_bytes_; }

double Fsdp2Buffers::in_forward(double done) const {
  return after_forward(done) + (shards_ > 1.0 ? 2.0 : 1.0) * layer_bytes_;
}

double Fsdp2Buffers::gathered_ahead(double done) const {
  return reshards_ && shards_ > 1.0 && done + 1.0 < layers_ ? layer_bytes_ : 0.0;
}

double Fsdp2Buffers::in_backward(double done) const {
  const double parameters = reshards_ ? layer_bytes_ : (layers_ - done) * layer_bytes_;
  return parameters + gathered_ahead(done) + (done > 0.0 ? layer_bytes_ : 0.0);
}

double Fsdp2Buffers::in_reduce(double done) const {
  const double parameters = reshards_ ? 0.0 : (layers_ - done - 1.0) * layer_bytes_;
  return parameters + gathered_ahead(done) + 2.0 * layer_bytes_;
}

}  // namespace fp8lab
