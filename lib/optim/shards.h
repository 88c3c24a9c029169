#pragma once

#include "autograd/runtime.h"

namespace fp8lab {

/// The part of `parameter` that this rank keeps and updates: its shard, or the entire parameter if it is not sharded.
inline Parameter& local_shard(Parameter& parameter) {
  return parameter.local != nullptr ? *parameter.local : parameter;
}
inline const Parameter& local_shard(const Parameter& parameter) {
  return parameter.local != nullptr ? *parameter.local : parameter;
}

/// The shape of the values that are stored on this rank.
inline const Shape& shape_of(const Parameter& shard) { return shard.value ? shard.value.shape() : shard.spec.shape; }

/// False for a vector: a bias or a parameter of a norm.
inline bool is_matrix(const Parameter& parameter) { return parameter.spec.shape.rank() > 1; }

}  // namespace fp8lab
