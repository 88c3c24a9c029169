#pragma once

#include <cstdint>

#include "core/elementary.h"

// Activations and their gradients over runs: operations for map.cuh and row_map.cuh.
namespace fp8lab::cuda {

struct Gelu {
  template <int Width>
  __device__ void operator()(const float (&in)[1][Width], float (&out)[1][Width], std::int64_t, std::int64_t) const {
#pragma unroll
    for (int j = 0; j < Width; ++j) out[0][j] = in[0][j] * gelu_gate(in[0][j]);
  }
};

struct GeluGradient {
  template <int Width>
  __device__ void operator()(const float (&in)[2][Width], float (&out)[1][Width], std::int64_t, std::int64_t) const {
#pragma unroll
    for (int j = 0; j < Width; ++j) out[0][j] = in[1][j] * gelu_slope(in[0][j]);
  }
};

/// `Function`: Swiglu, ClampedSwiglu or Geglu.
template <class Function>
struct Gated {
  Function function;

  template <int Width>
  __device__ void operator()(const float (&in)[2][Width], float (&out)[1][Width], std::int64_t, std::int64_t) const {
#pragma unroll
    for (int j = 0; j < Width; ++j) out[0][j] = function.value(in[0][j], in[1][j]);
  }
};

template <class Function>
struct GatedBackward {
  Function function;

  template <int Width>
  __device__ void operator()(const float (&in)[3][Width], float (&out)[2][Width], std::int64_t, std::int64_t) const {
#pragma unroll
    for (int j = 0; j < Width; ++j) {
      const GatedGradient grad = function.gradient(in[0][j], in[1][j], in[2][j]);
      out[0][j] = grad.gate;
      out[1][j] = grad.up;
    }
  }
};

}  // namespace fp8lab::cuda
