#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/device/lists.h"
#include "backend/kernels.h"

namespace fp8lab::cuda {

/// A CastTarget as device code reads it.
struct TargetItem {
  std::byte* rowwise = nullptr;  ///< quantized data; null if there are none
  std::byte* columnwise = nullptr;
  float* rowwise_scale_inv = nullptr;
  float* columnwise_scale_inv = nullptr;
  const float* scale = nullptr;
  const float* measured = nullptr;  ///< the amax from which the scale follows; used if `scale` is null
  float* amax = nullptr;
  Strides rowwise_strides, columnwise_strides;
  float fp8_max = 0.0f;
  float epsilon = 0.0f;
  DType dtype{};
  DType nominal{};
  bool power_of_two = false;
  bool there = false;
  bool tiles = false;  ///< the transposed data are written through tiles in shared memory
};

TargetItem target_item(const CastTarget& target, const float* measured);
/// True if the matrix to cast, which has no gaps, can be walked in vectors; sets `tiles`.
bool target_takes_vectors(const CastTarget& target, TargetItem& item);

}  // namespace fp8lab::cuda
