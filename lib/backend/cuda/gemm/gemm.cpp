#include <cstdint>

#include "backend/cuda/gemm/cublaslt.h"
#include "backend/cuda/gemm/gemm_kernels.h"
#include "backend/cuda/gemm/gemm_plan.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/quantize/quantize_results.h"

// Not bitwise equal to the `cpu` kernel, whose sums run in another order. Both are within the bound for k products
// added in any order, except that the matrix units keep only some 13 fraction bits of a sum of 8-bit products
// (correctness/reference/float8_sums.h). Sums that are exact in every order, such as sums of small integers, are equal
// bit for bit. The library multiplies the two per-tensor inverse scales in FP32, so their product must be a normal FP32
// number; scales computed from data satisfy that.
namespace fp8lab::cuda {
namespace {

std::size_t bytes_of(const MatrixView& layout) {
  const std::int64_t elements =
      layout.col_stride == 1 ? layout.rows * layout.row_stride : layout.cols * layout.col_stride;
  return (static_cast<std::size_t>(elements) * size_bytes(layout.dtype) + 255) / 256 * 256;
}

/// Divides one buffer of scratch into parts.
class Parts {
 public:
  explicit Parts(std::byte* next) : next_(next) {}
  std::byte* take(std::size_t bytes) {
    std::byte* const part = next_;
    next_ += bytes;
    return part;
  }

 private:
  std::byte* next_;
};

/// Copies an operand's scales to `to`, which is as the library reads them, and zeros to the padding between rows.
void pack_scales(const OperandView& operand, const MatrixView& to, CudaContext& context) {
  MatrixView from = to;
  from.data = operand.scales.data;
  from.row_stride = operand.scales.row_stride;
  from.col_stride = operand.scales.col_stride;
  if (to.row_stride > to.cols) {
    MatrixView padded = to;
    padded.cols = to.row_stride;
    fill({.out = padded, .value = 0.0f}, context);
  }
  cast({.in = from, .out = to}, context);
}

/// Returns false, with nothing written to `out`, if the library has no algorithm.
bool multiply_by_library(const GemmArgs& args, const GemmPlan& plan, CudaContext& context) {
  const bool emulated = plan.route == GemmRoute::kEmulated;
  MatrixView a = emulated ? dequantized_layout(args.a) : args.a.values;
  MatrixView b = emulated ? dequantized_layout(args.b) : args.b.values;
  MatrixView product{.data = nullptr,
                     .dtype = DType::kF32,
                     .rows = args.out.rows,
                     .cols = args.out.cols,
                     .row_stride = plan.problem.out_stride,
                     .col_stride = 1};
  MatrixView scales_a = plan.pack_a ? packed_scales(args.a) : MatrixView{};
  MatrixView scales_b = plan.pack_b ? packed_scales(args.b) : MatrixView{};
  Parts scratch(context.scratch(kLtWorkspaceBytes + (emulated ? bytes_of(a) + bytes_of(b) : 0) + bytes_of(scales_a) +
                                bytes_of(scales_b) + (plan.finish ? bytes_of(product) : 0)));
  std::byte* const workspace = scratch.take(kLtWorkspaceBytes);
  if (emulated) {
    a.data = scratch.take(bytes_of(a));
    b.data = scratch.take(bytes_of(b));
    dequantize_to_bf16(args.a, a, context);
    dequantize_to_bf16(args.b, b, context);
  }
  scales_a.data = plan.pack_a ? scratch.take(bytes_of(scales_a)) : args.a.scales.data;
  scales_b.data = plan.pack_b ? scratch.take(bytes_of(scales_b)) : args.b.scales.data;
  if (plan.pack_a) pack_scales(args.a, scales_a, context);
  if (plan.pack_b) pack_scales(args.b, scales_b, context);
  if (plan.finish) product.data = scratch.take(bytes_of(product));
  if (!context.kept<CublasLt>().multiply(plan.problem, {.a = a.data,
                                                        .b = b.data,
                                                        .a_scale = scales_a.data,
                                                        .b_scale = scales_b.data,
                                                        .bias = args.bias.data,
                                                        .out = plan.finish ? product.data : args.out.data,
                                                        .workspace = workspace}))
    return false;
  if (plan.finish)
    gemm_finish({.product = product, .out = args.out, .bias = args.bias, .accumulate = args.accumulate}, context);
  return true;
}

struct RouteCounts : GemmRoutes {
  explicit RouteCounts(CudaContext&) {}
};

}  // namespace

const GemmRoutes& gemm_routes(ExecContext& context) { return cuda_context(context).kept<RouteCounts>(); }

void gemm(const GemmArgs& args, ExecContext& context) {
  if (args.out.rows == 0 || args.out.cols == 0) return;
  CudaContext& gpu = cuda_context(context);
  RouteCounts& routes = gpu.kept<RouteCounts>();
  if (args.a.values.cols > 0) {
    const GemmPlan plan = plan_gemm(args);
    if (plan.route != GemmRoute::kGeneral) {
      if (multiply_by_library(args, plan, gpu)) {
        ++(plan.route == GemmRoute::kLibrary ? routes.through_library : routes.emulated);
        return;
      }
      ++routes.declined;
    }
  }
  ++routes.general;
  gemm_general(args, gpu);
}

bool gemm_quantize_by_library(const GemmQuantizeArgs& args, CudaContext& context) {
  const GemmArgs& product = args.product;
  const QuantizeArgs& cast = args.cast;
  if (product.out.numel() == 0 || product.a.values.cols == 0) return false;
  const GemmQuantizePlan plan = plan_gemm_quantize(args);
  if (!plan.why_apart.empty()) return false;
  const MatrixView &rowwise = cast.rowwise.values, &columnwise = cast.columnwise.values;
  const bool stored = rowwise.data != nullptr;
  constexpr std::size_t kScalarBytes = 256;
  Parts scratch(
      context.scratch(kLtWorkspaceBytes + kScalarBytes + (stored ? 0 : static_cast<std::size_t>(product.out.numel()))));
  std::byte* const workspace = scratch.take(kLtWorkspaceBytes);
  auto* const seen = reinterpret_cast<float*>(scratch.take(kScalarBytes));
  std::byte* const data = stored ? rowwise.data : scratch.take(0);
  if (!context.kept<CublasLt>().multiply(plan.problem, {.a = product.a.values.data,
                                                        .b = product.b.values.data,
                                                        .a_scale = product.a.scales.data,
                                                        .b_scale = product.b.scales.data,
                                                        .bias = product.bias.data,
                                                        .out = data,
                                                        .out_scale = cast.scale,
                                                        .amax = seen,
                                                        .workspace = workspace}))
    return false;
  const MatrixView written{.data = data,
                           .dtype = plan.problem.out,
                           .rows = product.out.rows,
                           .cols = product.out.cols,
                           .row_stride = plan.problem.out_stride,
                           .col_stride = 1};
  quantize_finish(
      {.data = written,
       .scale = cast.scale,
       .scale_inv = {stored ? reinterpret_cast<float*>(cast.rowwise.scales.data) : nullptr,
                     columnwise.data == nullptr ? nullptr : reinterpret_cast<float*>(cast.columnwise.scales.data)},
       .amax = cast.amax,
       .seen = seen},
      context);
  transpose_data(cast, data, plan.problem.out_stride, context);
  RouteCounts& routes = context.kept<RouteCounts>();
  ++routes.through_library;
  ++routes.to_quantized;
  return true;
}

}  // namespace fp8lab::cuda
