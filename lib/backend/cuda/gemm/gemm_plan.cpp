#include "backend/cuda/gemm/gemm_plan.h"

#include <fmt/core.h>

#include <tuple>

#include "core/float8_format.h"

namespace fp8lab::cuda {
namespace {

constexpr std::int64_t kAlignment = 16;  // bytes

bool aligned(const void* data) { return reinterpret_cast<std::uintptr_t>(data) % kAlignment == 0; }
bool aligned(const PlannedOperand& operand) {
  return operand.stride * static_cast<std::int64_t>(size_bytes(operand.dtype)) % kAlignment == 0;
}
std::int64_t rounded_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Why the library cannot be used; empty if it can.
using Refusal = std::string_view;

/// Fills in the operand's type, order and stride; refuses a matrix that is contiguous along neither dimension. The
/// stride over a dimension of one is ignored.
Refusal plan_strides(const MatrixView& values, PlannedOperand& planned) {
  planned.dtype = values.dtype;
  if ((values.col_stride == 1 || values.cols <= 1) && (values.row_stride >= values.cols || values.rows <= 1)) {
    planned.along_rows = false;
    planned.stride = values.rows <= 1 ? values.cols : values.row_stride;
    return {};
  }
  if ((values.row_stride == 1 || values.rows <= 1) && (values.col_stride >= values.rows || values.cols <= 1)) {
    planned.along_rows = true;
    planned.stride = values.cols <= 1 ? values.rows : values.col_stride;
    return {};
  }
  return "an operand is contiguous along neither dimension";
}

/// Chooses the library's scaling mode (layouts: tensor/quantized_tensor.h). `pack`: whether the scales do not lie as
/// the library reads them.
Refusal plan_scaling(const OperandView& operand, PlannedOperand& planned, bool& pack) {
  const ScaleView& scales = operand.scales;
  if (scales.dtype != DType::kF32) return "only one operand is microscaled";
  if (scales.per_tensor()) {
    planned.scaling = OperandScaling::kTensor;
    return {};
  }
  if (scales.block_cols != 128 || (scales.block_rows != 1 && scales.block_rows != 128))
    return "blocks are neither 1 x 128 nor 128 x 128";
  const bool by_rows = scales.block_rows == 1;
  if (by_rows && operand.values.rows % 8 != 0) return "rows scaled by 1 x 128 are not a multiple of 8";
  planned.scaling = by_rows ? OperandScaling::kRowBlocks : OperandScaling::kSquareBlocks;
  const MatrixView read = packed_scales(operand);
  pack = !aligned(scales.data) || (scales.row_stride != read.row_stride && read.rows > 1) ||
         (scales.col_stride != read.col_stride && read.cols > 1);
  return {};
}

/// Conditions that only 8-bit products have.
Refusal plan_float8(const GemmArgs& args, GemmPlan& plan) {
  LibraryProblem& problem = plan.problem;
  for (const auto& [operand, planned, pack] :
       {std::tuple{&args.a, &problem.a, &plan.pack_a}, std::tuple{&args.b, &problem.b, &plan.pack_b}}) {
    if (const Refusal refusal = plan_scaling(*operand, *planned, *pack); !refusal.empty()) return refusal;
    if (planned->along_rows) return "an eight-bit operand is not contiguous along the reduction axis";
    if (!aligned(operand->values.data) || !aligned(*planned))
      return "rows of quantized data do not begin at multiples of 16 bytes";
  }
  const auto blocks = [](const PlannedOperand& operand) { return operand.scaling != OperandScaling::kTensor; };
  if (problem.a.dtype == DType::kE5M2 && problem.b.dtype == DType::kE5M2) return "both operands are e5m2";
  if (blocks(problem.a) != blocks(problem.b)) return "one operand is scaled per tensor, the other by blocks";
  if (problem.a.scaling == OperandScaling::kSquareBlocks && problem.b.scaling == OperandScaling::kSquareBlocks)
    return "both operands are scaled by 128 x 128";
  if (problem.k % 16 != 0) return "the reduction is not a multiple of 16";
  if (problem.n % 16 != 0) return "the rows of b are not a multiple of 16";
  return {};
}

Refusal plan_operands(const GemmArgs& args, GemmPlan& plan) {
  LibraryProblem& problem = plan.problem;
  if (const Refusal refusal = plan_strides(args.a.values, problem.a); !refusal.empty()) return refusal;
  if (const Refusal refusal = plan_strides(args.b.values, problem.b); !refusal.empty()) return refusal;
  const DType a = problem.a.dtype, b = problem.b.dtype;
  if (args.a.quantized() != args.b.quantized()) return "only one operand is quantized";
  if (args.a.quantized() && is_float8(a) && is_float8(b)) return plan_float8(args, plan);
  if (args.a.quantized() || is_float8(a) || is_float8(b)) return "quantized data without scales, or scales of no data";
  if (a != b) return "operands are of two types";
  return {};
}

/// True if the library computes a result of type `out` from such operands.
bool makes(const PlannedOperand& operand, DType out) {
  if (out == DType::kF32 || out == operand.dtype) return true;
  return is_float8(operand.dtype) && out == DType::kBF16;
}
bool adds_bias_of(const LibraryProblem& problem, DType bias) {
  const bool blocks = problem.a.scaling != OperandScaling::kNone && problem.a.scaling != OperandScaling::kTensor;
  if (is_float8(problem.a.dtype)) return !blocks && bias == DType::kBF16 && problem.out == DType::kBF16;
  return bias == problem.out;
}

bool contiguous_bias(const MatrixView& bias) { return aligned(bias.data) && (bias.col_stride == 1 || bias.cols <= 1); }

bool operands_aligned(const GemmArgs& args, const LibraryProblem& problem) {
  return aligned(args.a.values.data) && aligned(problem.a) && aligned(args.b.values.data) && aligned(problem.b);
}

/// Fills in the result's side of `plan`: the library writes an FP32 product to scratch if it cannot write the result
/// itself.
void plan_result(const GemmArgs& args, GemmPlan& plan) {
  LibraryProblem& problem = plan.problem;
  const MatrixView& out = args.out;
  const MatrixView& bias = args.bias;
  PlannedOperand lies;
  problem.out = out.dtype;
  const bool direct = plan_strides(out, lies).empty() && !lies.along_rows && makes(problem.a, out.dtype) &&
                      (!is_float8(problem.a.dtype) || (aligned(out.data) && aligned(lies)));
  const bool aligned_operands = operands_aligned(args, problem);
  problem.aligned = aligned_operands && aligned(out.data) && aligned(lies);
  const bool bias_direct = bias.data == nullptr || (adds_bias_of(problem, bias.dtype) && contiguous_bias(bias));
  // The library rounds a product to 16 bits before it adds the previous contents of `out` in 16 bits and, unless
  // everything is aligned, before it adds a bias. Here the sum must be rounded only once.
  const bool rounds_twice =
      size_bytes(out.dtype) < 4 && (args.accumulate || (bias.data != nullptr && !problem.aligned));
  plan.finish = !direct || !bias_direct || rounds_twice;
  if (plan.finish) {
    problem.out = DType::kF32;
    problem.out_stride = rounded_up(problem.n, 4);
    problem.aligned = aligned_operands;
    return;
  }
  problem.out_stride = lies.stride;
  problem.bias = bias.data != nullptr;
  problem.bias_dtype = problem.bias ? bias.dtype : DType::kF32;
  problem.accumulate = args.accumulate;
}

/// Conditions for the library to write the quantized result itself; `problem` already has its operands.
Refusal plan_data(const GemmQuantizeArgs& args, LibraryProblem& problem) {
  const QuantFormat& format = args.cast.format;
  const MatrixView& bias = args.product.bias;
  const MatrixView& rowwise = args.cast.rowwise.values;
  if (!format.per_tensor()) return "quantized data are scaled by blocks";
  if (problem.a.scaling != OperandScaling::kTensor) return "operands are not scaled per tensor";
  if (format.dtype == DType::kE5M2 && problem.a.dtype == DType::kE4M3 && problem.b.dtype == DType::kE4M3)
    return "quantized data are e5m2 and neither operand is";
  if (bias.data != nullptr && size_bytes(bias.dtype) != 2) return "the bias is not in 16 bits";
  if (bias.data != nullptr && !contiguous_bias(bias)) return "the bias does not begin at a multiple of 16 bytes";
  // The library measures full tiles. Rows of a tile beyond the result are zeros, and a bias added to them would be
  // measured.
  if (bias.data != nullptr && args.cast.amax != nullptr) return "a sum with a bias is to be measured";
  problem.out = format.dtype;
  // For quantized data in scratch that are only an intermediate step to the transpose.
  problem.out_stride = problem.n;
  if (rowwise.data != nullptr) {
    PlannedOperand lies;
    if (!plan_strides(rowwise, lies).empty() || lies.along_rows || !aligned(rowwise.data) || !aligned(lies))
      return "rows of the result's quantized data do not begin at multiples of 16 bytes";
    problem.out_stride = lies.stride;
  }
  problem.bias = bias.data != nullptr;
  problem.bias_dtype = problem.bias ? bias.dtype : DType::kF32;
  problem.amax = args.cast.amax != nullptr;
  problem.fast_accumulation = args.product.fast_accumulation;
  problem.aligned = true;
  return {};
}

bool microscaled(const OperandView& operand) { return operand.quantized() && operand.scales.dtype == DType::kE8M0; }

std::string describe(const PlannedOperand& operand) {
  constexpr std::array<std::string_view, 4> kScalings = {"", " per tensor", " by 1 x 128", " by 128 x 128"};
  return fmt::format("{}{}{}", name(operand.dtype), kScalings[static_cast<std::size_t>(operand.scaling)],
                     operand.along_rows ? " transposed" : "");
}

}  // namespace

std::size_t LibraryProblemHash::operator()(const LibraryProblem& problem) const noexcept {
  std::uint64_t hash = 0;
  const auto mix = [&](std::uint64_t value) {
    hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
  };
  const auto mix_operand = [&](const PlannedOperand& operand) {
    mix(static_cast<std::uint64_t>(operand.stride) << 16 | static_cast<std::uint64_t>(operand.dtype) << 8 |
        static_cast<std::uint64_t>(operand.scaling) << 1 | static_cast<std::uint64_t>(operand.along_rows));
  };
  mix(static_cast<std::uint64_t>(problem.m));
  mix(static_cast<std::uint64_t>(problem.n));
  mix(static_cast<std::uint64_t>(problem.k));
  mix_operand(problem.a);
  mix_operand(problem.b);
  mix(static_cast<std::uint64_t>(problem.out_stride) << 16 | static_cast<std::uint64_t>(problem.out) << 8 |
      static_cast<std::uint64_t>(problem.bias_dtype) << 4 | static_cast<std::uint64_t>(problem.bias) << 3 |
      static_cast<std::uint64_t>(problem.accumulate) << 2 | static_cast<std::uint64_t>(problem.fast_accumulation) << 1 |
      static_cast<std::uint64_t>(problem.aligned));
  mix(static_cast<std::uint64_t>(problem.amax));
  return static_cast<std::size_t>(hash);
}

MatrixView dequantized_layout(const OperandView& operand) {
  const MatrixView& values = operand.values;
  MatrixView layout{.data = nullptr, .dtype = DType::kBF16, .rows = values.rows, .cols = values.cols};
  constexpr std::int64_t kElements = kAlignment / 2;
  if (values.col_stride != 1 && values.row_stride == 1) {
    layout.row_stride = 1;
    layout.col_stride = rounded_up(values.rows, kElements);
  } else {
    layout.row_stride = rounded_up(values.cols, kElements);
    layout.col_stride = 1;
  }
  return layout;
}

MatrixView packed_scales(const OperandView& operand) {
  const ScaleView& scales = operand.scales;
  MatrixView read{.data = nullptr,
                  .dtype = DType::kF32,
                  .rows = (operand.values.rows + scales.block_rows - 1) / scales.block_rows,
                  .cols = (operand.values.cols + scales.block_cols - 1) / scales.block_cols};
  const bool by_rows = scales.block_rows == 1;
  read.row_stride = by_rows ? 1 : rounded_up(read.cols, 4);
  read.col_stride = by_rows ? read.rows : 1;
  return read;
}

GemmPlan plan_gemm(const GemmArgs& args) {
  GemmPlan plan;
  plan.problem.m = args.out.rows;
  plan.problem.n = args.out.cols;
  plan.problem.k = args.a.values.cols;
  GemmArgs read = args;
  plan.route = GemmRoute::kLibrary;
  if (microscaled(args.a) && microscaled(args.b)) {
    plan.route = GemmRoute::kEmulated;
    read.a = {dequantized_layout(args.a), {}};
    read.b = {dequantized_layout(args.b), {}};
  }
  plan.why_general = plan_operands(read, plan);
  if (!plan.why_general.empty()) {
    GemmPlan general;
    general.why_general = plan.why_general;
    return general;
  }
  plan_result(read, plan);
  plan.problem.fast_accumulation = args.fast_accumulation && plan.problem.a.scaling == OperandScaling::kTensor;
  return plan;
}

std::string describe(const GemmPlan& plan) {
  if (plan.route == GemmRoute::kGeneral) return fmt::format("general kernel: {}", plan.why_general);
  const LibraryProblem& problem = plan.problem;
  return fmt::format("{}: {} x {} -> {}{}{}{}{}{}{}", plan.route == GemmRoute::kLibrary ? "library" : "emulated",
                     describe(problem.a), describe(problem.b), name(problem.out), problem.bias ? " plus bias" : "",
                     problem.accumulate ? " plus what it holds" : "",
                     problem.fast_accumulation ? ", fast accumulation" : "", problem.aligned ? "" : ", not aligned",
                     plan.pack_a || plan.pack_b ? ", scales packed" : "", plan.finish ? ", finished apart" : "");
}

GemmQuantizePlan plan_gemm_quantize(const GemmQuantizeArgs& args) {
  const GemmArgs& product = args.product;
  GemmQuantizePlan plan;
  plan.problem.m = product.out.rows;
  plan.problem.n = product.out.cols;
  plan.problem.k = product.a.values.cols;
  GemmPlan operands;
  operands.problem = plan.problem;
  plan.why_apart = microscaled(product.a) ? "operands are microscaled" : plan_operands(product, operands);
  plan.problem = operands.problem;
  if (plan.why_apart.empty()) plan.why_apart = plan_data(args, plan.problem);
  if (!plan.why_apart.empty()) plan.problem = {};
  return plan;
}

std::string describe(const GemmQuantizePlan& plan) {
  if (!plan.why_apart.empty()) return fmt::format("cast apart: {}", plan.why_apart);
  const LibraryProblem& problem = plan.problem;
  return fmt::format("library: {} x {} -> {} per tensor{}{}{}", describe(problem.a), describe(problem.b),
                     name(problem.out), problem.bias ? " plus bias" : "", problem.amax ? " and amax" : "",
                     problem.fast_accumulation ? ", fast accumulation" : "");
}

}  // namespace fp8lab::cuda
