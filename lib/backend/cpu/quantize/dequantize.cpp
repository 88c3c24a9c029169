#include <algorithm>
#include <array>

#include "backend/cpu/kernels.h"
#include "backend/cpu/rows.h"
#include "core/e8m0.h"

namespace fp8lab::cpu {
namespace {

float scale_at(const ScaleView& scales, std::int64_t row, std::int64_t col) {
  const std::int64_t index =
      scales.per_tensor() ? 0
                          : row / scales.block_rows * scales.row_stride + col / scales.block_cols * scales.col_stride;
  if (scales.dtype == DType::kE8M0) return e8m0_to_f32(reinterpret_cast<const std::uint8_t*>(scales.data)[index]);
  return reinterpret_cast<const float*>(scales.data)[index];
}

}  // namespace

void dequantize(const DequantizeArgs& args, ExecContext&) {
  MatrixView data = args.in.values;
  MatrixView out = args.out;
  const ScaleView& scales = args.in.scales;
  if (scales.per_tensor()) flatten_if_contiguous(data, out);
  std::array<float, kRun> values;
  for_each_run(data, [&](std::int64_t row, std::int64_t col, std::int64_t count) {
    load(data, row, col, count, values.data());
    if (scales.block_cols == 1) {
      for (std::int64_t j = 0; j < count; ++j) values[static_cast<std::size_t>(j)] *= scale_at(scales, row, col + j);
      store(values.data(), count, out, row, col);
      return;
    }
    // Every run begins at a block boundary, since block sides divide 128 and therefore kRun.
    const std::int64_t block = scales.per_tensor() ? count : scales.block_cols;
    for (std::int64_t begin = 0; begin < count;) {
      const std::int64_t end = std::min(begin + block, count);
      const float scale = scale_at(scales, row, col + begin);
      for (; begin < end; ++begin) values[static_cast<std::size_t>(begin)] *= scale;
    }
    store(values.data(), count, out, row, col);
  });
}

}  // namespace fp8lab::cpu
