#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ostream>
#include <string>
#include <vector>

#include "ops/elementwise.h"
#include "ops/quantize.h"
#include "recipe/recipe.h"
#include "reference/quantize_reference.h"
#include "reference/test_data.h"
#include "support/dense.h"

/// What the tests of quantization share: every format, matrices with every placement in memory, and raw bytes.
namespace fp8lab::support {

using reference::varied_values;

struct NamedFormat {
  std::string name;
  QuantFormat format;

  friend void PrintTo(const NamedFormat& row, std::ostream* out) { *out << row.name; }
};

/// The formats of the recipes, and each variation that their options allow.
inline std::vector<NamedFormat> all_formats() {
  const auto with = [](const QuantFormat& base, DType dtype, ScaleKind scale) {
    QuantFormat format = base;
    format.dtype = dtype;
    format.scale = scale;
    return format;
  };
  const Recipe delayed = make_recipe("delayed"), current = make_recipe("current"), block = make_recipe("block");
  const Recipe mxfp8 = make_recipe("mxfp8");
  std::vector<NamedFormat> formats = {
      {"delayed_e4m3", delayed.activation},
      {"delayed_e5m2", delayed.gradient},
      {"current_e4m3", current.activation},
      {"current_e5m2", current.gradient},
      {"current_pow2", with(current.activation, DType::kE4M3, ScaleKind::kF32PowerOfTwo)},
      {"block_1x128_pow2", block.activation},
      {"block_1x128_f32", with(block.activation, DType::kE4M3, ScaleKind::kF32)},
      {"block_1x128_e5m2", with(block.activation, DType::kE5M2, ScaleKind::kF32)},
      {"block_128x128_pow2", block.weight},
      {"block_128x128_f32", with(block.weight, DType::kE4M3, ScaleKind::kF32)},
      {"mxfp8_rceil", mxfp8.activation},
      {"mxfp8_floor", with(mxfp8.activation, DType::kE4M3, ScaleKind::kE8M0Floor)},
      {"mxfp8_rceil_e5m2", with(mxfp8.activation, DType::kE5M2, ScaleKind::kE8M0Rceil)},
      {"mxfp8_floor_e5m2", with(mxfp8.activation, DType::kE5M2, ScaleKind::kE8M0Floor)},
  };
  NamedFormat epsilon{"current_epsilon", current.activation};
  epsilon.format.epsilon = 100.0f;  // above the amax of much of the test data
  formats.push_back(epsilon);
  return formats;
}

inline QuantFormat format_named(const std::string& name) {
  for (const NamedFormat& row : all_formats())
    if (row.name == name) return row.format;
  throw Error("no format '" + name + "'");
}

/// The layout of a matrix in memory. Memory around it holds the largest values of its type, so that reading one element
/// too many shows.
enum class Placement { kContiguous, kInsideWider, kTransposed, kTransposedInsideWider };
inline constexpr Placement kPlacements[] = {Placement::kContiguous, Placement::kInsideWider, Placement::kTransposed,
                                            Placement::kTransposedInsideWider};

inline std::string name_of(Placement placement) {
  const char* const names[] = {"contiguous", "inside a wider one", "transposed", "transposed, inside a wider one"};
  return names[static_cast<int>(placement)];
}

inline Tensor place(Device& device, const Shape& shape, DType dtype, const std::vector<float>& values,
                    Placement placement = Placement::kContiguous) {
  const Tensor plain = make_tensor(device, shape, dtype, values);
  if (placement == Placement::kContiguous) return plain;
  const bool transposed = placement != Placement::kInsideWider;
  const std::int64_t rows = transposed ? shape.cols() : shape.rows(), cols = transposed ? shape.rows() : shape.cols();
  Tensor stored;
  if (placement == Placement::kTransposed) {
    stored = device.allocate({Shape{rows, cols}, dtype}, anyone(device));
  } else {
    const Tensor wider = device.allocate({Shape{rows + 2, cols + 5}, dtype}, anyone(device));
    fill(device, wider, dtype == DType::kF16 ? 65504.0f : 0x1.FEp127f);
    stored = wider.row_range(1, rows).columns(3, cols);  // an offset of 3 elements, which has no alignment
  }
  const Tensor view = transposed ? stored.transposed() : stored;
  copy_into(device, plain.reshaped({shape.rows(), shape.cols()}), view);
  return view;
}

/// The matrix with the values that the device holds.
inline reference::Matrix matrix_of(Device& device, const Tensor& x) {
  reference::Matrix matrix{x.rows(), x.cols(), read(device, x)};
  if (x.dtype() == DType::kBF16) matrix.largest = 0x1.fep127;
  return matrix;
}

inline std::vector<std::uint8_t> bytes_of(Device& device, const Tensor& tensor) {
  const std::vector<std::byte> bytes = device.read_bytes(tensor);
  std::vector<std::uint8_t> result(bytes.size());
  if (!bytes.empty()) std::memcpy(result.data(), bytes.data(), bytes.size());
  return result;
}

inline Tensor scalar(Device& device, float value) { return make_tensor(device, Shape{1}, DType::kF32, {value}); }

struct QuantizeRequest {
  Orientations orientations = {.rowwise = true, .columnwise = true};
  float history_scale = 3.0f;  ///< used if the amax comes from a history
};

/// quantize() with the scale or amax that the format needs.
inline QuantizedTensor quantized(Device& device, const Tensor& x, const QuantFormat& format,
                                 const QuantizeRequest& request = {}) {
  const bool history = format.amax_source == AmaxSource::kHistory;
  return quantize(device, x,
                  {.format = format,
                   .orientations = request.orientations,
                   .scale = history ? scalar(device, request.history_scale) : Tensor{},
                   .amax = {},
                   .holder = anyone(device)});
}

/// The scale that quantized() uses, if one scale serves the entire tensor.
inline float expected_scale(const reference::Matrix& x, const QuantFormat& format,
                            const QuantizeRequest& request = {}) {
  if (format.amax_source == AmaxSource::kHistory) return request.history_scale;
  return reference::tensor_scale(reference::amax(x), format);
}

}  // namespace fp8lab::support
