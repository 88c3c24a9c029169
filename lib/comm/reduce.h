#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/signature.h"
#include "core/dtype.h"

/// The arithmetic of reductions. Every backend uses it, so that all agree bit for bit.
///
/// kSum of f32 and bf16: ((x0 + x1) + x2) + ... in float, then one rounding to nearest even. The sum starts from x0,
/// not from 0, so that -0 stays. A NaN result is always the quiet NaN of positive sign (0x7FC00000, 0x7FC0), whatever
/// NaN the processor made. kSum of i32 and i64: modulo 2^32 and 2^64. kMax: the largest value, +0 above -0; a NaN
/// anywhere gives the same quiet NaN. Integer sums and maxima do not depend on the order of ranks.
namespace fp8lab {

constexpr bool reducible(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kI32 || dtype == DType::kI64;
}

struct Reduction {
  ReduceOp op = ReduceOp::kSum;
  DType dtype = DType::kF32;
  std::int64_t elems = 0;
  /// One per rank, in order, each with `elems` elements, aligned to the element size.
  std::span<const std::byte* const> sources = {};
  /// Each gets all results. A target is one of the sources, or does not overlap with any.
  std::span<std::byte* const> targets = {};
};

void reduce(const Reduction& reduction);

}  // namespace fp8lab
