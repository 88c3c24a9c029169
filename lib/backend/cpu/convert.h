#pragma once

#include <cstdint>

// Conversions of contiguous elements to and from FP32, under the instruction set in use. Each has the bits of
// core/float16.h and core/float8.h for every input. BF16 elements are given by their bits.
namespace fp8lab::cpu {

void load_bf16(const std::uint16_t* in, std::int64_t count, float* out);
void load_e4m3(const std::uint8_t* in, std::int64_t count, float* out);
void load_e5m2(const std::uint8_t* in, std::int64_t count, float* out);
/// Rounds to nearest even.
void store_bf16(const float* in, std::int64_t count, std::uint16_t* out);

}  // namespace fp8lab::cpu
