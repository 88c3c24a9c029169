#include "backend/cpu/rows.h"

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "backend/cpu/convert.h"
#include "core/check.h"
#include "core/e8m0.h"
#include "core/float16.h"
#include "core/float8.h"

namespace fp8lab::cpu {
namespace {

template <class Element, class Convert>
void load_as(const MatrixView& matrix, std::int64_t first, std::int64_t count, float* out, Convert convert) {
  const Element* from = matrix.as<const Element>() + first;
  const std::int64_t stride = matrix.col_stride;
  if (stride == 1) {
    for (std::int64_t j = 0; j < count; ++j) out[j] = convert(from[j]);
  } else {
    for (std::int64_t j = 0; j < count; ++j) out[j] = convert(from[j * stride]);
  }
}

/// load_as() for types whose contiguous elements `loop` converts.
template <class Element, class Bits, class Convert>
void load_by(void (*loop)(const Bits*, std::int64_t, float*), const MatrixView& matrix, std::int64_t first,
             std::int64_t count, float* out, Convert convert) {
  if (matrix.col_stride == 1) return loop(matrix.as<const Bits>() + first, count, out);
  load_as<Element>(matrix, first, count, out, convert);
}

template <class Element, class Convert>
void store_as(const float* values, std::int64_t count, const MatrixView& matrix, std::int64_t first, Convert convert) {
  Element* to = matrix.as<Element>() + first;
  const std::int64_t stride = matrix.col_stride;
  if (stride == 1) {
    for (std::int64_t j = 0; j < count; ++j) to[j] = convert(values[j]);
  } else {
    for (std::int64_t j = 0; j < count; ++j) to[j * stride] = convert(values[j]);
  }
}

}  // namespace

void load(const MatrixView& matrix, std::int64_t row, std::int64_t col, std::int64_t count, float* out) {
  const std::int64_t first = row * matrix.row_stride + col * matrix.col_stride;
  switch (matrix.dtype) {
    case DType::kF32: return load_as<float>(matrix, first, count, out, [](float x) { return x; });
    case DType::kF16: return load_as<Half>(matrix, first, count, out, f16_to_f32);
    case DType::kBF16: return load_by<BFloat16>(load_bf16, matrix, first, count, out, bf16_to_f32);
    case DType::kE4M3: return load_by<std::uint8_t>(load_e4m3, matrix, first, count, out, decode<E4M3>);
    case DType::kE5M2: return load_by<std::uint8_t>(load_e5m2, matrix, first, count, out, decode<E5M2>);
    case DType::kE8M0: return load_as<std::uint8_t>(matrix, first, count, out, e8m0_to_f32);
    case DType::kU8:
      return load_as<std::uint8_t>(matrix, first, count, out, [](std::uint8_t x) { return static_cast<float>(x); });
    case DType::kI16:
      return load_as<std::int16_t>(matrix, first, count, out, [](std::int16_t x) { return static_cast<float>(x); });
    case DType::kI32:
      return load_as<std::int32_t>(matrix, first, count, out, [](std::int32_t x) { return static_cast<float>(x); });
    case DType::kI64: break;
  }
  fail("cpu: " + std::string(name(matrix.dtype)) + " elements cannot be read as floats");
}

void store(const float* values, std::int64_t count, const MatrixView& matrix, std::int64_t row, std::int64_t col) {
  const std::int64_t first = row * matrix.row_stride + col * matrix.col_stride;
  switch (matrix.dtype) {
    case DType::kF32: return store_as<float>(values, count, matrix, first, [](float x) { return x; });
    case DType::kF16: return store_as<Half>(values, count, matrix, first, f32_to_f16);
    case DType::kBF16:
      if (matrix.col_stride == 1) return store_bf16(values, count, matrix.as<std::uint16_t>() + first);
      return store_as<BFloat16>(values, count, matrix, first, f32_to_bf16);
    case DType::kE4M3:
      return store_as<std::uint8_t>(values, count, matrix, first, [](float x) { return encode<E4M3>(x); });
    case DType::kE5M2:
      return store_as<std::uint8_t>(values, count, matrix, first, [](float x) { return encode<E5M2>(x); });
    case DType::kE8M0:
    case DType::kU8:
    case DType::kI16:
    case DType::kI32:
    case DType::kI64: break;
  }
  fail("cpu: floats cannot be stored as " + std::string(name(matrix.dtype)));
}

float* scratch(int slot, std::int64_t count) {
  thread_local std::array<std::vector<float>, kScratchSlots> buffers;
  std::vector<float>& buffer = buffers.at(static_cast<std::size_t>(slot));
  if (static_cast<std::int64_t>(buffer.size()) < count) buffer.resize(static_cast<std::size_t>(count));
  return buffer.data();
}

}  // namespace fp8lab::cpu
