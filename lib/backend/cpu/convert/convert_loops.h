#pragma once

#include <cstdint>

// Conversions of contiguous elements to and from FP32, compiled once per instruction set. Each has the bits of its
// namesake in core/float16.h and core/float8.h, for every input. BF16 elements are given by their bits.
namespace fp8lab::cpu {

struct ConvertLoops {
  void (*bf16_to_f32)(const std::uint16_t* in, std::int64_t count, float* out);
  void (*e4m3_to_f32)(const std::uint8_t* in, std::int64_t count, float* out);
  void (*e5m2_to_f32)(const std::uint8_t* in, std::int64_t count, float* out);
  void (*f32_to_bf16)(const float* in, std::int64_t count, std::uint16_t* out);
};

// One per source file; the build decides which exist.
extern const ConvertLoops kConvertLoopsBaseline;
extern const ConvertLoops kConvertLoopsAvx2;
extern const ConvertLoops kConvertLoopsAvx512;

}  // namespace fp8lab::cpu
