#include "optim/master_forms.h"

#include <cstdint>
#include <cstring>

#include "core/check.h"
#include "core/float16.h"

namespace fp8lab {
namespace {

template <class T>
T element(std::span<const std::byte> bytes, std::size_t index) {
  T out;
  std::memcpy(&out, bytes.data() + index * sizeof out, sizeof out);
  return out;
}
template <class T>
void append(std::vector<std::byte>& bytes, T element) {
  const auto* first = reinterpret_cast<const std::byte*>(&element);
  bytes.insert(bytes.end(), first, first + sizeof element);
}

}  // namespace

std::vector<std::byte> rounded(DType dtype, std::span<const float> values) {
  std::vector<std::byte> elements;
  elements.reserve(values.size() * size_bytes(dtype));
  for (const float value : values) switch (dtype) {
      case DType::kF32: append(elements, value); break;
      case DType::kF16: append(elements, f32_to_f16(value).bits); break;
      case DType::kBF16: append(elements, f32_to_bf16(value).bits); break;
      default: check(false, "rounded: f32, f16 or bf16 needed");
    }
  return elements;
}

Parts16 parts16_of(std::span<const float> values) {
  Parts16 parts;
  parts.high.reserve(values.size() * sizeof(std::uint16_t));
  parts.low.reserve(values.size() * sizeof(std::int16_t));
  for (const float value : values) {
    std::uint32_t bits = float_bits(value);
    // A NaN becomes the quiet NaN of its sign: the rounding could carry its payload into the sign and leave a zero.
    if ((bits & kFloatMagnitudeMask) > kFloatInfinityBits) bits = (bits & ~kFloatMagnitudeMask) | kFloatQuietNanBits;
    const auto rest = static_cast<std::uint16_t>(bits);
    append(parts.high, static_cast<std::uint16_t>((bits >> 16) + (rest >> 15)));
    append(parts.low, rest);
  }
  return parts;
}

std::vector<float> from_parts16(std::span<const std::byte> high, std::span<const std::byte> low) {
  std::vector<float> values(high.size() / sizeof(std::uint16_t));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto rest = element<std::uint16_t>(low, i);
    const auto truncated = static_cast<std::uint16_t>(element<std::uint16_t>(high, i) - (rest >> 15));
    values[i] = float_from_bits(std::uint32_t{truncated} << 16 | rest);
  }
  return values;
}

}  // namespace fp8lab
