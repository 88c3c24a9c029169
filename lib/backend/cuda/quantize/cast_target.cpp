#include "backend/cuda/quantize/cast_target.h"

#include "core/float8_format.h"

namespace fp8lab::cuda {

TargetItem target_item(const CastTarget& target, const float* measured) {
  TargetItem item;
  item.amax = target.amax;
  item.nominal = target.nominal;
  item.there = static_cast<bool>(target);
  if (!target.casts()) return item;
  const auto scale_inv = [](const OperandView& view) { return reinterpret_cast<float*>(view.scales.data); };
  item.rowwise = target.rowwise.values.data;
  item.columnwise = target.columnwise.values.data;
  if (item.rowwise != nullptr) item.rowwise_scale_inv = scale_inv(target.rowwise);
  if (item.columnwise != nullptr) item.columnwise_scale_inv = scale_inv(target.columnwise);
  item.scale = target.scale;
  item.measured = measured;
  item.rowwise_strides = strides_of(target.rowwise.values);
  item.columnwise_strides = strides_of(target.columnwise.values);
  item.fp8_max = float8_format(target.format.dtype).max;
  item.epsilon = target.format.epsilon;
  item.dtype = target.format.dtype;
  item.power_of_two = target.format.scale == ScaleKind::kF32PowerOfTwo;
  return item;
}

bool target_takes_vectors(const CastTarget& target, TargetItem& item) {
  const MatrixView& columnwise = target.columnwise.values;
  item.tiles =
      columnwise.data != nullptr && columnwise.numel() > 0 && columnwise.contiguous() && columnwise.rows % 4 == 0;
  const bool rowwise = target.rowwise.values.data == nullptr || takes_vectors(target.rowwise.values);
  return rowwise && (columnwise.data == nullptr || item.tiles);
}

}  // namespace fp8lab::cuda
