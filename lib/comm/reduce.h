#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/signature.h"
#include "core/dtype.h"

/// The arithmetic of reductions, one for every backend, so that they agree bit for bit.
///
/// kSum, f32 and bf16: ((x0 + x1) + x2) + ... in float, then one rounding to nearest even. Starts from x0, not from 0,
/// so that -0 stays. A NaN result is the quiet NaN of positive sign (0x7FC00000, 0x7FC0), whatever the machine made of
/// it. kSum, i32 and i64: modulo 2^32 and 2^64. kMax: the largest value, +0 above -0; a NaN anywhere gives that quiet
/// NaN. Any order of ranks gives the same bits.
namespace fp8lab {

constexpr bool reducible(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kI32 || dtype == DType::kI64;
}

struct Reduction {
  ReduceOp op = ReduceOp::kSum;
  DType dtype = DType::kF32;
  std::int64_t elems = 0;
  /// One per rank, in order, each with `elems` elements, aligned to them.
  std::span<const std::byte* const> sources = {};
  /// Each is given all results. May be one of the sources; otherwise apart from them.
  std::span<std::byte* const> targets = {};
};

void reduce(const Reduction& reduction);

}  // namespace fp8lab
