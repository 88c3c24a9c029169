#include "backend/cuda/gemm/gemm_plan.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "tensor/quantized_tensor.h"

// The algorithm that products use, decided without a GPU: the addresses are made up and never read.
namespace fp8lab::cuda {
namespace {

constexpr std::uintptr_t kAligned = 0x10000;

std::byte* address(std::uintptr_t at) { return reinterpret_cast<std::byte*>(at); }

MatrixView matrix(DType dtype, std::int64_t rows, std::int64_t cols, std::uintptr_t at = kAligned) {
  return {.data = address(at), .dtype = dtype, .rows = rows, .cols = cols, .row_stride = cols, .col_stride = 1};
}

OperandView plain(DType dtype, std::int64_t rows, std::int64_t cols) { return {matrix(dtype, rows, cols), {}}; }

OperandView quantized_operand(std::int64_t rows, std::int64_t cols, std::int64_t block_rows, std::int64_t block_cols,
                              DType dtype = DType::kE4M3) {
  QuantFormat format{.dtype = dtype, .block_rows = block_rows, .block_cols = block_cols};
  if (block_cols == 32) format.scale = ScaleKind::kE8M0Rceil;
  const ScaleLayout layout = scale_layout(format, rows, cols);
  return {matrix(dtype, rows, cols),
          {.data = address(2 * kAligned),
           .dtype = format.scale_dtype(),
           .block_rows = block_rows,
           .block_cols = block_cols,
           .row_stride = layout.row_stride,
           .col_stride = layout.col_stride,
           .storage_elems = layout.spec.shape.numel()}};
}
OperandView per_tensor(std::int64_t rows, std::int64_t cols, DType dtype = DType::kE4M3) {
  return quantized_operand(rows, cols, 0, 0, dtype);
}
OperandView by_rows(std::int64_t rows, std::int64_t cols) { return quantized_operand(rows, cols, 1, 128); }
OperandView by_squares(std::int64_t rows, std::int64_t cols) { return quantized_operand(rows, cols, 128, 128); }
OperandView microscaled(std::int64_t rows, std::int64_t cols) { return quantized_operand(rows, cols, 1, 32); }

GemmArgs product(const OperandView& a, const OperandView& b, DType out = DType::kBF16) {
  return {.a = a, .b = b, .out = matrix(out, a.values.rows, b.values.rows), .bias = {}};
}

std::string plan_of(const GemmArgs& args) { return describe(plan_gemm(args)); }

GemmArgs with_bias(GemmArgs args, DType dtype) {
  args.bias = matrix(dtype, 1, args.out.cols);
  return args;
}

TEST(GemmPlan, PlainOperandsOfOneTypeUseTheLibraryInAnyLayout) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const std::string type(name(dtype));
    const OperandView a = plain(dtype, 64, 128), b = plain(dtype, 32, 128);
    EXPECT_EQ(plan_of(product(a, b, dtype)), "library: " + type + " x " + type + " -> " + type);
    const OperandView transposed{matrix(dtype, 128, 64).transposed(), {}};
    EXPECT_EQ(plan_of(product(transposed, b, dtype)), "library: " + type + " transposed x " + type + " -> " + type);
    EXPECT_EQ(plan_of(product(b, transposed, dtype)), "library: " + type + " x " + type + " transposed -> " + type);
  }
  EXPECT_EQ(plan_of(product(plain(DType::kBF16, 3, 5), plain(DType::kBF16, 7, 5))),
            "library: bf16 x bf16 -> bf16, not aligned");
}

TEST(GemmPlan, StridesOverADimensionOfOneDoNotMatter) {
  OperandView a = plain(DType::kBF16, 1, 128);
  a.values.row_stride = 0;
  EXPECT_EQ(plan_of(product(a, plain(DType::kBF16, 32, 128))), "library: bf16 x bf16 -> bf16");
  OperandView column = plain(DType::kBF16, 64, 1);
  column.values.col_stride = 77;
  EXPECT_EQ(plan_gemm(product(column, plain(DType::kBF16, 32, 1))).route, GemmRoute::kLibrary);
}

TEST(GemmPlan, LayoutsThatTheLibraryCannotReadUseTheGeneralKernel) {
  OperandView repeated = plain(DType::kBF16, 64, 128);
  repeated.values.row_stride = 0;
  EXPECT_EQ(plan_of(product(repeated, plain(DType::kBF16, 32, 128))),
            "general kernel: an operand is contiguous along neither dimension");
  EXPECT_EQ(plan_of(product(plain(DType::kF32, 64, 128), plain(DType::kBF16, 32, 128))),
            "general kernel: operands are of two types");
  EXPECT_EQ(plan_of(product(per_tensor(64, 128), plain(DType::kBF16, 32, 128))),
            "general kernel: only one operand is quantized");
}

TEST(GemmPlan, QuantizedDataUseTheLibraryUnderScalingsThatItSupports) {
  EXPECT_EQ(plan_of(product(per_tensor(48, 128), per_tensor(32, 128))),
            "library: e4m3 per tensor x e4m3 per tensor -> bf16");
  EXPECT_EQ(plan_of(product(per_tensor(48, 128, DType::kE5M2), per_tensor(32, 128), DType::kF32)),
            "library: e5m2 per tensor x e4m3 per tensor -> f32");
  EXPECT_EQ(plan_of(product(by_rows(48, 256), by_squares(32, 256))),
            "library: e4m3 by 1 x 128 x e4m3 by 128 x 128 -> bf16");
  EXPECT_EQ(plan_of(product(by_rows(48, 256), by_rows(32, 256))), "library: e4m3 by 1 x 128 x e4m3 by 1 x 128 -> bf16");
  EXPECT_EQ(plan_of(product(by_squares(48, 256), by_rows(32, 256))),
            "library: e4m3 by 128 x 128 x e4m3 by 1 x 128 -> bf16");
}

// Parts of a matrix with scales by blocks, such as the rows of one expert: scales of rows have the stride of the entire
// matrix, and scales of squares do not begin at 16 bytes.
TEST(GemmPlan, ScalesOfPartsArePackedForTheLibrary) {
  const OperandView rows = by_rows(512, 256).row_range(128, 256), squares = by_squares(512, 1024).columns(128, 256);
  EXPECT_EQ(plan_of(product(rows, by_squares(384, 256).row_range(128, 128))),
            "library: e4m3 by 1 x 128 x e4m3 by 128 x 128 -> bf16, scales packed");
  EXPECT_EQ(plan_of(product(by_rows(48, 256), squares)),
            "library: e4m3 by 1 x 128 x e4m3 by 128 x 128 -> bf16, scales packed");
  EXPECT_TRUE(plan_gemm(product(rows, squares)).pack_a);
  EXPECT_TRUE(plan_gemm(product(rows, squares)).pack_b);
  EXPECT_FALSE(plan_gemm(product(by_rows(48, 256), squares)).pack_a);
  // Columns of rows, as a gradient of weights reads them, lie as the library reads them.
  EXPECT_EQ(plan_of(product(by_rows(48, 512).columns(128, 256), by_rows(32, 512).columns(128, 256))),
            "library: e4m3 by 1 x 128 x e4m3 by 1 x 128 -> bf16");
  EXPECT_EQ(packed_scales(rows).col_stride, 256);
  EXPECT_EQ(packed_scales(squares).row_stride, 4);
}

TEST(GemmPlan, QuantizedDataThatTheLibraryRefusesUseTheGeneralKernel) {
  const auto why = [](const OperandView& a, const OperandView& b) {
    return std::string(plan_gemm(product(a, b)).why_general);
  };
  EXPECT_EQ(why(per_tensor(48, 120), per_tensor(32, 120)),
            "rows of quantized data do not begin at multiples of 16 bytes");
  EXPECT_EQ(why(per_tensor(48, 128), per_tensor(33, 128)), "the rows of b are not a multiple of 16");
  EXPECT_EQ(why(per_tensor(48, 128, DType::kE5M2), per_tensor(32, 128, DType::kE5M2)), "both operands are e5m2");
  EXPECT_EQ(why(per_tensor(48, 128), by_squares(32, 128)), "one operand is scaled per tensor, the other by blocks");
  EXPECT_EQ(why(by_squares(48, 128), by_squares(32, 128)), "both operands are scaled by 128 x 128");
  EXPECT_EQ(why(by_rows(44, 128), by_squares(32, 128)), "rows scaled by 1 x 128 are not a multiple of 8");
  EXPECT_EQ(why(microscaled(48, 128), per_tensor(32, 128)), "only one operand is microscaled");
  OperandView wide = per_tensor(48, 256);
  wide.values.cols = 120;
  OperandView narrow = per_tensor(32, 256);
  narrow.values.cols = 120;
  EXPECT_EQ(why(wide, narrow), "the reduction is not a multiple of 16");
  OperandView off = per_tensor(48, 128);
  off.values.data = address(kAligned + 8);
  EXPECT_EQ(why(off, per_tensor(32, 128)), "rows of quantized data do not begin at multiples of 16 bytes");
  OperandView transposed = per_tensor(128, 48);
  transposed.values = transposed.values.transposed();
  EXPECT_EQ(why(transposed, per_tensor(32, 128)), "an eight-bit operand is not contiguous along the reduction axis");
}

TEST(GemmPlan, MicroscaledOperandsAreEmulatedInTheirStoredOrder) {
  EXPECT_EQ(plan_of(product(microscaled(48, 128), microscaled(32, 128))), "emulated: bf16 x bf16 -> bf16");
  OperandView transposed = microscaled(128, 48);
  transposed.values = transposed.values.transposed();
  EXPECT_EQ(plan_of(product(transposed, microscaled(32, 128))), "emulated: bf16 transposed x bf16 -> bf16");
  // Rows are padded to 16 bytes, so no length of the reduction needs a slow path.
  EXPECT_EQ(plan_of(product(microscaled(48, 75), microscaled(32, 75))), "emulated: bf16 x bf16 -> bf16");
  EXPECT_EQ(dequantized_layout(microscaled(48, 75)).row_stride, 80);
}

TEST(GemmPlan, LibraryAddsABiasOfTypesThatItSupports) {
  const GemmArgs bf16 = product(plain(DType::kBF16, 48, 128), plain(DType::kBF16, 32, 128));
  EXPECT_EQ(plan_of(with_bias(bf16, DType::kBF16)), "library: bf16 x bf16 -> bf16 plus bias");
  EXPECT_EQ(plan_of(with_bias(bf16, DType::kF32)), "library: bf16 x bf16 -> f32, finished apart");
  const GemmArgs tensor = product(per_tensor(48, 128), per_tensor(32, 128));
  EXPECT_EQ(plan_of(with_bias(tensor, DType::kBF16)), "library: e4m3 per tensor x e4m3 per tensor -> bf16 plus bias");
  EXPECT_EQ(plan_of(with_bias(tensor, DType::kF32)),
            "library: e4m3 per tensor x e4m3 per tensor -> f32, finished apart");
}

TEST(GemmPlan, ResultsThatTheLibraryCannotWriteNeedAFinishingKernel) {
  GemmArgs args = product(plain(DType::kBF16, 48, 128), plain(DType::kBF16, 32, 128), DType::kF16);
  EXPECT_EQ(plan_of(args), "library: bf16 x bf16 -> f32, finished apart");
  args.out = matrix(DType::kBF16, 32, 48).transposed();
  EXPECT_EQ(plan_of(args), "library: bf16 x bf16 -> f32, finished apart");
  args.accumulate = true;  // the finishing kernel adds the old result
  EXPECT_FALSE(plan_gemm(args).problem.accumulate);
}

// Otherwise the library would round to 16 bits before the last addition.
TEST(GemmPlan, SixteenBitResultsAreRoundedOnce) {
  GemmArgs args = product(plain(DType::kBF16, 48, 128), plain(DType::kBF16, 32, 128));
  args.accumulate = true;
  EXPECT_EQ(plan_of(args), "library: bf16 x bf16 -> f32, finished apart");
  args.out = matrix(DType::kF32, 48, 32);
  EXPECT_EQ(plan_of(args), "library: bf16 x bf16 -> f32 plus what it holds");
  const GemmArgs odd = product(plain(DType::kBF16, 48, 77), plain(DType::kBF16, 31, 77));
  EXPECT_EQ(plan_of(with_bias(odd, DType::kBF16)), "library: bf16 x bf16 -> f32, not aligned, finished apart");
}

TEST(GemmPlan, AccumulationAndFastSumsAreInThePlan) {
  GemmArgs args = product(per_tensor(48, 128), per_tensor(32, 128), DType::kF32);
  args.accumulate = true;
  args.fast_accumulation = true;
  EXPECT_EQ(plan_of(args), "library: e4m3 per tensor x e4m3 per tensor -> f32 plus what it holds, fast accumulation");
  GemmArgs blocks = product(by_rows(48, 128), by_rows(32, 128));
  blocks.fast_accumulation = true;
  EXPECT_FALSE(plan_gemm(blocks).problem.fast_accumulation);
}

TEST(GemmPlan, AddressesDoNotChooseTheAlgorithm) {
  GemmArgs args = product(plain(DType::kBF16, 48, 128), plain(DType::kBF16, 32, 128));
  const GemmPlan plan = plan_gemm(args);
  args.a.values.data = address(kAligned + 16);
  EXPECT_EQ(plan_gemm(args), plan);
  EXPECT_EQ(LibraryProblemHash{}(plan_gemm(args).problem), LibraryProblemHash{}(plan.problem));
  args.a.values.data = address(kAligned + 2);
  EXPECT_FALSE(plan_gemm(args).problem.aligned);
}

/// Arguments that cast the result of `product`, row-wise unless `rowwise` is false, under one scale unless the format
/// has blocks.
GemmQuantizeArgs quantized(const GemmArgs& product, DType dtype = DType::kE4M3, bool rowwise = true) {
  GemmQuantizeArgs args;
  args.product = product;
  args.product.out.data = nullptr;
  args.product.out.dtype = DType::kF32;
  args.cast.in = args.product.out;
  args.cast.format = {.dtype = dtype, .amax_source = AmaxSource::kHistory};
  (rowwise ? args.cast.rowwise : args.cast.columnwise).values = matrix(dtype, product.out.rows, product.out.cols);
  return args;
}

std::string plan_of(const GemmQuantizeArgs& args) { return describe(plan_gemm_quantize(args)); }

TEST(GemmQuantizePlan, LibraryWritesDataOfOperandsScaledPerTensor) {
  const OperandView a = per_tensor(48, 128), b = per_tensor(32, 128), gradient = per_tensor(48, 128, DType::kE5M2);
  EXPECT_EQ(plan_of(quantized(product(a, b))), "library: e4m3 per tensor x e4m3 per tensor -> e4m3 per tensor");
  EXPECT_EQ(plan_of(quantized(product(gradient, b))), "library: e5m2 per tensor x e4m3 per tensor -> e4m3 per tensor");
  EXPECT_EQ(plan_of(quantized(product(gradient, b), DType::kE5M2)),
            "library: e5m2 per tensor x e4m3 per tensor -> e5m2 per tensor");
  EXPECT_EQ(plan_of(quantized(product(b, gradient), DType::kE5M2)),
            "library: e4m3 per tensor x e5m2 per tensor -> e5m2 per tensor");
  for (const DType bias : {DType::kBF16, DType::kF16})
    EXPECT_EQ(plan_of(quantized(with_bias(product(a, b), bias))),
              "library: e4m3 per tensor x e4m3 per tensor -> e4m3 per tensor plus bias");
  float amax = 0.0f;
  GemmQuantizeArgs measured = quantized(product(a, b));
  measured.cast.amax = &amax;
  measured.product.fast_accumulation = true;
  EXPECT_EQ(plan_of(measured),
            "library: e4m3 per tensor x e4m3 per tensor -> e4m3 per tensor and amax, fast accumulation");
}

TEST(GemmQuantizePlan, CastsThatTheLibraryDoesNotSupportFollowTheProduct) {
  const auto why = [](const GemmQuantizeArgs& args) { return std::string(plan_gemm_quantize(args).why_apart); };
  const GemmArgs tensors = product(per_tensor(48, 128), per_tensor(32, 128));
  EXPECT_EQ(plan_of(quantized(product(plain(DType::kBF16, 48, 128), plain(DType::kBF16, 32, 128)))),
            "cast apart: operands are not scaled per tensor");
  EXPECT_EQ(why(quantized(product(by_rows(48, 256), by_squares(32, 256)))), "operands are not scaled per tensor");
  EXPECT_EQ(why(quantized(product(microscaled(48, 128), microscaled(32, 128)))), "operands are microscaled");
  EXPECT_EQ(why(quantized(product(per_tensor(48, 128), per_tensor(33, 128)))),
            "the rows of b are not a multiple of 16");
  EXPECT_EQ(why(quantized(product(per_tensor(48, 120), per_tensor(32, 120)))),
            "rows of quantized data do not begin at multiples of 16 bytes");
  EXPECT_EQ(why(quantized(tensors, DType::kE5M2)), "quantized data are e5m2 and neither operand is");
  EXPECT_EQ(why(quantized(with_bias(tensors, DType::kF32))), "the bias is not in 16 bits");
  GemmQuantizeArgs args = quantized(with_bias(tensors, DType::kBF16));
  args.product.bias.data = address(kAligned + 2);
  EXPECT_EQ(why(args), "the bias does not begin at a multiple of 16 bytes");
  args = quantized(with_bias(tensors, DType::kBF16));
  float amax = 0.0f;
  args.cast.amax = &amax;
  EXPECT_EQ(why(args), "a sum with a bias is to be measured");
  args = quantized(tensors);
  args.cast.format = {.block_rows = 1, .block_cols = 128, .amax_source = AmaxSource::kBlock};
  EXPECT_EQ(why(args), "quantized data are scaled by blocks");
  args = quantized(tensors);
  args.cast.rowwise.values.data = address(kAligned + 8);
  EXPECT_EQ(why(args), "rows of the result's quantized data do not begin at multiples of 16 bytes");
  args.cast.rowwise.values = matrix(DType::kE4M3, 32, 48).transposed();
  EXPECT_EQ(why(args), "rows of the result's quantized data do not begin at multiples of 16 bytes");
}

// Column-wise data are the transpose of row-wise data, which need not be kept.
TEST(GemmQuantizePlan, RowwiseDataGoToScratchIfOnlyColumnwiseDataAreWanted) {
  const GemmArgs tensors = product(per_tensor(48, 128), per_tensor(32, 128));
  EXPECT_EQ(plan_gemm_quantize(quantized(tensors, DType::kE4M3, false)), plan_gemm_quantize(quantized(tensors)));
}

// The cached descriptor of one problem must not be used for another.
TEST(GemmQuantizePlan, DifferentProblemsAreNotEqual) {
  const GemmArgs tensors = product(per_tensor(48, 128), per_tensor(32, 128));
  const LibraryProblem data = plan_gemm_quantize(quantized(tensors)).problem;
  float amax = 0.0f;
  GemmQuantizeArgs args = quantized(tensors);
  args.cast.amax = &amax;
  const LibraryProblem measured = plan_gemm_quantize(args).problem, sixteen = plan_gemm(tensors).problem;
  EXPECT_NE(data, measured);
  EXPECT_NE(data, sixteen);
  EXPECT_NE(LibraryProblemHash{}(data), LibraryProblemHash{}(measured));
  EXPECT_NE(LibraryProblemHash{}(data), LibraryProblemHash{}(sixteen));
}

}  // namespace
}  // namespace fp8lab::cuda
