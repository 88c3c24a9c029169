#pragma once

#include <cstdint>
#include <vector>

#include "backend/cuda/context.h"

namespace fp8lab::cuda {

/// Cosines and sines of rotary angles on the GPU, each f32 [positions, head_dim / 2].
struct RopeTable {
  const float* cosine = nullptr;
  const float* sine = nullptr;
};

/// The rotary tables of a context. They are computed on the host, with its bits, at the first use of a head size and
/// base, and again when longer sequences come; growing waits for the GPU.
class RopeTables {
 public:
  explicit RopeTables(CudaContext& context) : context_(context) {}

  RopeTable table(std::int64_t positions, std::int64_t head_dim, double base);

 private:
  struct Entry {
    std::int64_t head_dim = 0;
    double base = 0.0;
    std::int64_t positions = 0;
    DeviceBytes memory;
  };

  void make(Entry& entry, std::int64_t positions);

  CudaContext& context_;
  std::vector<Entry> entries_;
};

}  // namespace fp8lab::cuda
