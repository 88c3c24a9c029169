#include "comm/reduce.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "core/check.h"
#include "core/float16.h"
#include "core/float_bits.h"

namespace fp8lab {
namespace {

// A reduction proceeds block by block with accumulators on the stack, so that results may overwrite their summands.
constexpr std::int64_t kBlock = 1024;

struct F32 {
  using Stored = float;
  static float load(float x) { return x; }
  static float store(float x) { return x; }
};
struct BF16 {
  using Stored = BFloat16;
  static float load(BFloat16 x) { return bf16_to_f32(x); }
  static BFloat16 store(float x) { return f32_to_bf16(x); }
};

template <class Element>
struct FloatSum {
  using Stored = typename Element::Stored;
  using Accumulator = float;
  static float load(Stored x) { return Element::load(x); }
  static float combine(float a, float b) { return a + b; }
  static Stored store(float x) { return Element::store(x != x ? float_from_bits(kFloatQuietNanBits) : x); }
};

/// Maximum of floats, computed on integers of the same order with NaN above all.
template <class Element>
struct FloatMax {
  static constexpr std::int32_t kNan = std::numeric_limits<std::int32_t>::max();
  using Stored = typename Element::Stored;
  using Accumulator = std::int32_t;
  // Negative floats are ordered backwards by their magnitude bits. This maps floats to integers, and back.
  static std::int32_t flip(std::int32_t bits) { return bits ^ ((bits >> 31) & 0x7FFFFFFF); }
  static std::int32_t load(Stored x) {
    const std::uint32_t bits = float_bits(Element::load(x));
    return (bits & kFloatMagnitudeMask) > kFloatInfinityBits ? kNan : flip(static_cast<std::int32_t>(bits));
  }
  static std::int32_t combine(std::int32_t a, std::int32_t b) { return a < b ? b : a; }
  static Stored store(std::int32_t key) {
    return Element::store(float_from_bits(key == kNan ? kFloatQuietNanBits : static_cast<std::uint32_t>(flip(key))));
  }
};

template <class Signed, class Unsigned>
struct IntegerSum {
  using Stored = Signed;
  using Accumulator = Unsigned;
  static Unsigned load(Signed x) { return static_cast<Unsigned>(x); }
  static Unsigned combine(Unsigned a, Unsigned b) { return a + b; }
  static Signed store(Unsigned x) { return static_cast<Signed>(x); }
};

template <class Signed>
struct IntegerMax {
  using Stored = Signed;
  using Accumulator = Signed;
  static Signed load(Signed x) { return x; }
  static Signed combine(Signed a, Signed b) { return a < b ? b : a; }
  static Signed store(Signed x) { return x; }
};

template <class Rule>
void run(const Reduction& reduction) {
  using Stored = typename Rule::Stored;
  std::array<typename Rule::Accumulator, kBlock> sums;
  std::array<Stored, kBlock> results;
  for (std::int64_t first = 0; first < reduction.elems; first += kBlock) {
    const auto block = static_cast<std::size_t>(std::min(kBlock, reduction.elems - first));
    const auto source = [&](std::size_t rank) {
      return reinterpret_cast<const Stored*>(reduction.sources[rank]) + first;
    };
    const Stored* own = source(0);
    for (std::size_t i = 0; i < block; ++i) sums[i] = Rule::load(own[i]);
    for (std::size_t rank = 1; rank < reduction.sources.size(); ++rank) {
      const Stored* next = source(rank);
      for (std::size_t i = 0; i < block; ++i) sums[i] = Rule::combine(sums[i], Rule::load(next[i]));
    }
    for (std::size_t i = 0; i < block; ++i) results[i] = Rule::store(sums[i]);
    for (std::byte* target : reduction.targets)
      std::memcpy(target + static_cast<std::size_t>(first) * sizeof(Stored), results.data(), block * sizeof(Stored));
  }
}

}  // namespace

void reduce(const Reduction& reduction) {
  const bool sum = reduction.op == ReduceOp::kSum;
  switch (reduction.dtype) {
    case DType::kF32: return sum ? run<FloatSum<F32>>(reduction) : run<FloatMax<F32>>(reduction);
    case DType::kBF16: return sum ? run<FloatSum<BF16>>(reduction) : run<FloatMax<BF16>>(reduction);
    case DType::kI32:
      return sum ? run<IntegerSum<std::int32_t, std::uint32_t>>(reduction) : run<IntegerMax<std::int32_t>>(reduction);
    case DType::kI64:
      return sum ? run<IntegerSum<std::int64_t, std::uint64_t>>(reduction) : run<IntegerMax<std::int64_t>>(reduction);
    default: fail("reduce: only f32, bf16, i32 and i64 can be reduced");
  }
}

}  // namespace fp8lab
