#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/large_operands.h"

/// Products of operands of the sizes of real models: which kinds of operands, how they are drawn, and at which entries
/// results are sampled.
namespace fp8lab::gemm_test {

struct Kinds {
  Kind a;
  Kind b;
  bool transposed_a = false;
  bool transposed_b = false;
};

inline std::string kinds_name(const ::testing::TestParamInfo<Kinds>& instance) {
  const Kinds& kinds = instance.param;
  return std::string(name_of(kinds.a)) + (kinds.transposed_a ? "_transposed_" : "_") + name_of(kinds.b) +
         (kinds.transposed_b ? "_transposed" : "");
}

/// Operand `a` or else `b`, with a row for each row, or column, of the product.
inline LargeOperand operand(const Kinds& kinds, bool first, std::int64_t rows, std::int64_t k, Draw draw) {
  return LargeOperand({.kind = first ? kinds.a : kinds.b,
                       .rows = rows,
                       .cols = k,
                       .seed = first ? 1u : 2u,
                       .draw = draw,
                       .transposed = first ? kinds.transposed_a : kinds.transposed_b});
}

inline bool summed_in_eight_bits(const Kinds& kinds) {
  return format_of(kinds.a).has_value() && kinds.a != Kind::kMxfp8;
}

inline bool scaled_per_tensor(const Kinds& kinds) {
  const std::optional<QuantFormat> format = format_of(kinds.a);
  return format.has_value() && format->per_tensor();
}

/// Small integers, exact in every type: for what is added to a product.
inline std::vector<float> integers(std::int64_t count, std::uint64_t seed) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(reference::scramble(seed + i) % 9) - 4.0f;
  return values;
}

/// Rows or columns spread over a result, its ends included.
inline std::vector<std::int64_t> sampled(std::int64_t size) {
  return {0, 1, size / 3, size / 2 + 1, 2 * size / 3, std::max<std::int64_t>(0, size - 129), size - 2, size - 1};
}

inline std::unique_ptr<Device> open(std::string_view name) {
  return open_device(name, {.arch = "hopper", .memory = {.capacity_bytes = 0, .poison = true}});
}

}  // namespace fp8lab::gemm_test
