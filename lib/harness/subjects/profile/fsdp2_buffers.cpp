#include "harness/subjects/profile/fsdp2_buffers.h"

#include "harness/cell/sharding_keys.h"

namespace fp8lab {

Fsdp2Buffers::Fsdp2Buffers(const CellConfig& cell, std::int64_t gathered, std::int64_t reduced)
    : sharded_(fp8lab::is_sharded(cell)),
      reshards_(cell.reshard_after_forward),
      layers_(cell.model.layers),
      shards_(sharded_ ? mesh_of(cell).shards : 1),
      gathered_(sharded_ ? gathered : 0),
      reduced_(sharded_ ? reduced : 0) {}

std::int64_t Fsdp2Buffers::gathered_ahead(std::int64_t done) const {
  return reshards_ && shards_ > 1 && done + 1 < layers_ ? gathered_ : 0;
}

std::int64_t Fsdp2Buffers::in_backward(std::int64_t done) const {
  return (reshards_ ? gathered_ : 0) + gathered_ahead(done) + (done > 0 ? reduced_ : 0);
}

std::int64_t Fsdp2Buffers::in_reduce(std::int64_t done) const {
  return gathered_ahead(done) + 2 * reduced_ - after_forward();
}

}  // namespace fp8lab
