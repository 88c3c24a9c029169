#pragma once

#include "autograd/runtime.h"

namespace fp8lab {

/// What this rank keeps and updates of `parameter`: its shard, or, where it is not sharded, all of it.
inline Parameter& local_shard(Parameter& parameter) {
  return parameter.local != nullptr ? *parameter.local : parameter;
}
inline const Parameter& local_shard(const Parameter& parameter) {
  return parameter.local != nullptr ? *parameter.local : parameter;
}

/// The shape of what is stored of it here.
inline const Shape& shape_of(const Parameter& shard) { return shard.value ? shard.value.shape() : shard.spec.shape; }

}  // namespace fp8lab
