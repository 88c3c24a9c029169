#pragma once

#include <cstdint>
#include <type_traits>

#include "core/elementary.h"

// Activations and their gradients over runs: operations for map.cuh and row_map.cuh.
namespace fp8lab::cuda {

/// Calls work(near), with a constant: true if the magnitudes of all gates are at most `largest`. Then the computation
/// has no branches (core/elementary.h), and the compiler interleaves all elements.
template <int Width, class Work>
__device__ inline void by_gates(const float (&gates)[Width], float largest, const Work& work) {
  bool near = true;
#pragma unroll
  for (int j = 0; j < Width; ++j) near = near && fabsf(gates[j]) <= largest;
  if (near)
    work(std::true_type{});
  else
    work(std::false_type{});
}

struct Gelu {
  template <int Width>
  __device__ void operator()(const float (&in)[1][Width], float (&out)[1][Width], std::int64_t, std::int64_t) const {
    by_gates(in[0], kNearForGelu, [&]<bool Near>(std::bool_constant<Near>) {
#pragma unroll
      for (int j = 0; j < Width; ++j) out[0][j] = in[0][j] * gelu_gate<Near>(in[0][j]);
    });
  }
};

struct GeluGradient {
  template <int Width>
  __device__ void operator()(const float (&in)[2][Width], float (&out)[1][Width], std::int64_t, std::int64_t) const {
    by_gates(in[0], kNearForGelu, [&]<bool Near>(std::bool_constant<Near>) {
#pragma unroll
      for (int j = 0; j < Width; ++j) out[0][j] = in[1][j] * gelu_slope<Near>(in[0][j]);
    });
  }
};

/// `Function`: Swiglu, ClampedSwiglu or Geglu.
template <class Function>
struct Gated {
  Function function;

  template <int Width>
  __device__ void operator()(const float (&in)[2][Width], float (&out)[1][Width], std::int64_t, std::int64_t) const {
    by_gates(in[0], Function::kNear, [&]<bool Near>(std::bool_constant<Near>) {
#pragma unroll
      for (int j = 0; j < Width; ++j) out[0][j] = function.template value<Near>(in[0][j], in[1][j]);
    });
  }
};

template <class Function>
struct GatedBackward {
  Function function;

  template <int Width>
  __device__ void operator()(const float (&in)[3][Width], float (&out)[2][Width], std::int64_t, std::int64_t) const {
    by_gates(in[0], Function::kNear, [&]<bool Near>(std::bool_constant<Near>) {
#pragma unroll
      for (int j = 0; j < Width; ++j) {
        const GatedGradient grad = function.template gradient<Near>(in[0][j], in[1][j], in[2][j]);
        out[0][j] = grad.gate;
        out[1][j] = grad.up;
      }
    });
  }
};

}  // namespace fp8lab::cuda
