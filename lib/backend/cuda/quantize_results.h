#pragma once

#include <cstddef>

#include "backend/cuda/context.h"

namespace fp8lab::cuda {

/// Memory for results of shapes that no fused kernel takes, so that they must be stored after all. Grows, which waits for the card, and
/// stays.
class UnstoredResults {
 public:
  explicit UnstoredResults(CudaContext& card) : card_(card) {}

  /// `result` made contiguous in that memory.
  MatrixView place(const MatrixView& result);

 private:
  CudaContext& card_;
  DeviceBytes memory_;
  std::size_t bytes_ = 0;
};

}  // namespace fp8lab::cuda
