#include "backend/cuda/norm/device/norm_kernel.cuh"
#include "backend/cuda/quantize/device/quantized_rows.cuh"

namespace fp8lab::cuda {
namespace {

template <bool Centred>
void launch(const NormTask& task, std::int64_t block_cols, const RowCast& cast, CudaContext& context) {
  switch (block_cols) {
    case 0: return launch_norm<Centred, DType::kBF16>(task, QuantizedRows<0>(cast), context);
    case 32: return launch_norm<Centred, DType::kBF16>(task, QuantizedRows<32>(cast), context);
    default: return launch_norm<Centred, DType::kBF16>(task, QuantizedRows<128>(cast), context);
  }
}

}  // namespace

bool norm_quantize_rows(const NormQuantizeArgs& args, CudaContext& context) {
  const NormForwardArgs& norm = args.norm;
  const bool centred = norm.kind == NormKind::kLayerNorm;
  if (norm.x.dtype != DType::kBF16 || !warps_keep_rows(norm.x, centred, context) || !holds_runs(norm.gamma) ||
      (centred && !holds_runs(norm.beta)))
    return false;
  const RowCast cast = begin_row_cast(args.cast, context);
  const std::int64_t block_cols = args.cast.format.block_cols;
  centred ? launch<true>(norm_task(norm), block_cols, cast, context)
          : launch<false>(norm_task(norm), block_cols, cast, context);
  end_row_cast(args.cast, cast, context);
  return true;
}

}  // namespace fp8lab::cuda
