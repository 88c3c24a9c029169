#pragma once

#include <cstdint>

#include "tensor/view.h"

// Arguments of the kernels of multi-head latent attention, a part of the kernel table (backend/kernels.h).
namespace fp8lab {

/// Joins what the products of latents make to the packed projection of attention. Head h of `q` has D columns, which
/// are copied, and then R, which are rotated by the position of the token, row / batch; head h of `kv` has the D
/// columns of its key, then its V columns of values. packed(t, .) = [head 0 of Q, ..., head 0 of K, ..., head 0 of V,
/// ...] with head h of K = [its D columns of kv, k_rope(t, .) rotated]. Rotation: columns d and d + R/2 by position *
/// 10000^(-2d/R), in FP32, as RopeArgs. R, D and V follow from the matrices' columns.
struct LatentHeadsArgs {
  MatrixView q;       ///< [tokens, heads * (D + R)]
  MatrixView kv;      ///< [tokens, heads * (D + V)]
  MatrixView k_rope;  ///< [tokens, R]
  MatrixView packed;  ///< [tokens, heads * (2 (D + R) + V)]
  std::int64_t batch = 1;
  std::int64_t heads = 1;
};

/// The gradient: reads `packed`, writes the others. The gradient of k_rope is the sum over heads, in FP32 in the order
/// of heads, which is then rotated back.
struct LatentHeadsBackwardArgs {
  LatentHeadsArgs of;
};

}  // namespace fp8lab
