#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace fp8lab {

/// Element types a tensor can have. E8M0 is the power-of-two scale of the microscaling formats.
enum class DType : std::uint8_t { kF32, kF16, kBF16, kE4M3, kE5M2, kE8M0, kU8, kI16, kI32, kI64 };

constexpr std::size_t size_bytes(DType dtype) {
  switch (dtype) {
    case DType::kI64: return 8;
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kF16:
    case DType::kBF16:
    case DType::kI16: return 2;
    case DType::kE4M3:
    case DType::kE5M2:
    case DType::kE8M0:
    case DType::kU8: return 1;
  }
  return 0;
}

constexpr std::string_view name(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "f32";
    case DType::kF16: return "f16";
    case DType::kBF16: return "bf16";
    case DType::kE4M3: return "e4m3";
    case DType::kE5M2: return "e5m2";
    case DType::kE8M0: return "e8m0";
    case DType::kU8: return "u8";
    case DType::kI16: return "i16";
    case DType::kI32: return "i32";
    case DType::kI64: return "i64";
  }
  return "?";
}

/// The dtype whose name() is `text`, or nothing.
std::optional<DType> parse_dtype(std::string_view text);

}  // namespace fp8lab
