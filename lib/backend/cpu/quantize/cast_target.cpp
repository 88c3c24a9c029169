#include "backend/cpu/quantize/cast_target.h"

#include <algorithm>
#include <array>

#include "backend/cpu/kernels.h"
#include "backend/cpu/loops.h"
#include "backend/cpu/rows.h"
#include "backend/cpu/transpose_bytes.h"
#include "core/float8_format.h"

namespace fp8lab::cpu {
namespace {

void round_to(DType nominal, float* values, std::int64_t count) {
  if (nominal == DType::kBF16)
    for (std::int64_t j = 0; j < count; ++j) values[j] = bf16_to_f32(f32_to_bf16(values[j]));
  if (nominal == DType::kF16)
    for (std::int64_t j = 0; j < count; ++j) values[j] = f16_to_f32(f32_to_f16(values[j]));
}

void set_one(const ScaleView& scales, float value) { *reinterpret_cast<float*>(scales.data) = value; }

/// Makes one orientation's data from the other's; under one scale both hold the same elements.
void transpose(const MatrixView& in, const MatrixView& out) {
  if (in.col_stride == 1 && out.col_stride == 1)
    return transpose_bytes({.in = in.as<const std::uint8_t>(),
                            .in_stride = in.row_stride,
                            .rows = in.rows,
                            .cols = in.cols,
                            .out = out.as<std::uint8_t>(),
                            .out_stride = out.row_stride});
  for (std::int64_t row = 0; row < in.rows; ++row)
    for (std::int64_t col = 0; col < in.cols; ++col)
      out.as<std::uint8_t>()[col * out.row_stride + row * out.col_stride] =
          in.as<const std::uint8_t>()[row * in.row_stride + col * in.col_stride];
}

}  // namespace

TargetWriter::TargetWriter(const CastTarget& target, const float* measured) : target_(target) {
  if (!target.casts()) return;
  data_ = target.rowwise.values.data != nullptr ? target.rowwise.values : target.columnwise.values.transposed();
  const QuantFormat& format = target.format;
  scale_ = target.scale != nullptr ? *target.scale
                                   : fp8lab::scale_from_amax(*measured, float8_format(format.dtype).max, format.epsilon,
                                                             format.scale == ScaleKind::kF32PowerOfTwo);
}

void TargetWriter::take(float* values, std::int64_t count, std::int64_t row, std::int64_t col) {
  if (!target_) return;
  round_to(target_.nominal, values, count);
  if (target_.amax != nullptr) cpu::loops().quantize.amax_f32(values, count, count, &amax_);
  if (data_.data == nullptr) return;
  std::uint8_t* data = data_.as<std::uint8_t>() + row * data_.row_stride + col * data_.col_stride;
  if (data_.col_stride == 1) return cast(values, count, data);
  std::array<std::uint8_t, kRun> staged;
  cast(values, count, staged.data());
  for (std::int64_t j = 0; j < count; ++j) data[j * data_.col_stride] = staged[static_cast<std::size_t>(j)];
}

void TargetWriter::cast(const float* values, std::int64_t count, std::uint8_t* data) const {
  const QuantizeLoops& loops = cpu::loops().quantize;
  const auto loop = target_.format.dtype == DType::kE4M3 ? loops.cast_f32_e4m3 : loops.cast_f32_e5m2;
  const std::uint32_t largest = loop({.in = values, .data = data, .count = count, .run = count, .scales = &scale_});
  if (largest < kFloatInfinityBits && scale_ > 0.0f && scale_ <= kFloatMax) return;
  visit_float8(target_.format.dtype, [&](auto format) {
    for (std::int64_t j = 0; j < count; ++j) data[j] = encode<decltype(format)>(values[j] * scale_);
  });
}

void TargetWriter::finish() {
  const OperandView& rowwise = target_.rowwise;
  const OperandView& columnwise = target_.columnwise;
  if (rowwise.values.data != nullptr) set_one(rowwise.scales, 1.0f / scale_);
  if (columnwise.values.data != nullptr) set_one(columnwise.scales, 1.0f / scale_);
  if (rowwise.values.data != nullptr && columnwise.values.data != nullptr) transpose(rowwise.values, columnwise.values);
  if (target_.amax != nullptr)
    *target_.amax = float_from_bits(std::max(float_bits(*target_.amax) & kFloatMagnitudeMask, amax_));
}

void quantize_list(const QuantizeListArgs& args, ExecContext&) {
  float* values = scratch(0, kRun);
  for (const ListCast& tensor : args.tensors) {
    MatrixView in = tensor.in;
    TargetWriter writer(tensor.target, tensor.measured);
    flatten_if_contiguous(in, writer.data());
    for_each_run(in, [&](std::int64_t row, std::int64_t col, std::int64_t count) {
      load(in, row, col, count, values);
      writer.take(values, count, row, col);
    });
    writer.finish();
  }
}

}  // namespace fp8lab::cpu
