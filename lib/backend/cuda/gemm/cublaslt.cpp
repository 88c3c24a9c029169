#include "backend/cuda/gemm/cublaslt.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/check.h"
#include "core/float8_format.h"

// The library's matrices are column-major, so it computes the transposed product: out^T [n, m] = b [n, k] * a^T [k, m].
// Its A is our b and its B is our a. A matrix that is contiguous along k is transposed as its A and not transposed as
// its B.
namespace fp8lab::cuda {
namespace {

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kF32: return CUDA_R_32F;
    case DType::kF16: return CUDA_R_16F;
    case DType::kBF16: return CUDA_R_16BF;
    case DType::kE4M3: return CUDA_R_8F_E4M3;
    case DType::kE5M2: return CUDA_R_8F_E5M2;
    default: fail(fmt::format("cuBLASLt multiplies no {}", name(dtype)));
  }
}

std::int32_t scale_mode_of(OperandScaling scaling) {
  switch (scaling) {
    case OperandScaling::kRowBlocks: return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    case OperandScaling::kSquareBlocks: return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    default: return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  }
}

template <class T>
void set(const LtProduct& product, cublasLtMatmulDescAttributes_t attribute, T value) {
  cublaslt_check(cublaslt().set_product(product.get(), attribute, &value, sizeof value),
                 "cublasLtMatmulDescSetAttribute");
}

template <class T>
void set(const LtPreference& preference, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  cublaslt_check(cublaslt().set_preference(preference.get(), attribute, &value, sizeof value),
                 "cublasLtMatmulPreferenceSetAttribute");
}

LtProduct make_product(const LibraryProblem& problem) {
  cublasLtMatmulDesc_t raw = nullptr;
  // f32 operands get true FP32 products: this compute type excludes TF32.
  cublaslt_check(cublaslt().create_product(&raw, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
  LtProduct product(raw);
  set(product, CUBLASLT_MATMUL_DESC_TRANSA, problem.b.along_rows ? CUBLAS_OP_N : CUBLAS_OP_T);
  set(product, CUBLASLT_MATMUL_DESC_TRANSB, problem.a.along_rows ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (problem.a.scaling != OperandScaling::kNone) {
    set(product, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, scale_mode_of(problem.b.scaling));
    set(product, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, scale_mode_of(problem.a.scaling));
    set(product, CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<std::int8_t>(problem.fast_accumulation));
  }
  if (problem.bias) {
    set(product, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<std::int32_t>(type_of(problem.bias_dtype)));
  }
  return product;
}

LtLayout make_layout(DType dtype, std::int64_t rows, std::int64_t cols, std::int64_t stride) {
  cublasLtMatrixLayout_t raw = nullptr;
  cublaslt_check(cublaslt().create_layout(&raw, type_of(dtype), static_cast<std::uint64_t>(rows),
                                          static_cast<std::uint64_t>(cols), stride),
                 "cublasLtMatrixLayoutCreate");
  return LtLayout(raw);
}

LtLayout make_layout(const PlannedOperand& operand, std::int64_t rows, std::int64_t k) {
  return operand.along_rows ? make_layout(operand.dtype, rows, k, operand.stride)
                            : make_layout(operand.dtype, k, rows, operand.stride);
}

/// The layout of what the library adds to a product (its C). To quantized data nothing is added, but the library then
/// expects the type of the bias here, or bf16 without one.
LtLayout make_addend(const LibraryProblem& problem) {
  const DType quantized_addend = problem.bias ? problem.bias_dtype : DType::kBF16;
  return make_layout(is_float8(problem.out) ? quantized_addend : problem.out, problem.n, problem.m, problem.out_stride);
}

LtPreference make_preference(const LibraryProblem& problem) {
  cublasLtMatmulPreference_t raw = nullptr;
  cublaslt_check(cublaslt().create_preference(&raw), "cublasLtMatmulPreferenceCreate");
  LtPreference preference(raw);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{kLtWorkspaceBytes});
  // Partial sums of a split reduction must be added in FP32: added in the output's type they would be rounded more than
  // once. With an amax no reduction is split, because the kernel that adds the parts ignores NaN when it measures the
  // sums.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      std::uint32_t{problem.amax ? CUBLASLT_REDUCTION_SCHEME_NONE : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  const auto alignment = [&](DType dtype) {
    return problem.aligned ? 16u : static_cast<std::uint32_t>(size_bytes(dtype));
  };
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(problem.b.dtype));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(problem.a.dtype));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(problem.out));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(problem.out));
  return preference;
}

void set_pointers(const LtProduct& product, const LibraryProblem& problem, const LibraryBuffers& buffers) {
  if (problem.a.scaling != OperandScaling::kNone) {
    set(product, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(buffers.b_scale));
    set(product, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(buffers.a_scale));
  }
  if (problem.bias) set(product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(buffers.bias));
  if (is_float8(problem.out))
    set(product, CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, static_cast<const void*>(buffers.out_scale));
  if (problem.amax) set(product, CUBLASLT_MATMUL_DESC_AMAX_D_POINTER, static_cast<void*>(buffers.amax));
}

}  // namespace

void cublaslt_check(cublasStatus_t status, std::string_view call) {
  if (status != CUBLAS_STATUS_SUCCESS) fail(fmt::format("{}: {}", call, cublaslt().status_string(status)));
}

CublasLt::CublasLt(CudaContext& context) : context_(context) {
  cublasLtHandle_t raw = nullptr;
  cublaslt_check(cublaslt().create(&raw), "cublasLtCreate");
  handle_.reset(raw);
}

CublasLt::Prepared& CublasLt::prepared(const LibraryProblem& problem, const LibraryBuffers& buffers) {
  if (const auto known = prepared_.find(problem); known != prepared_.end()) return known->second;
  constexpr std::size_t kMostPrepared = 16384;
  if (prepared_.size() >= kMostPrepared) prepared_.clear();
  Prepared prepared;  // kept once it is complete: a call below may fail for want of memory, and succeed next time
  prepared.product = make_product(problem);
  // The heuristic reads a bias's alignment off its address, so it gets an address with the alignment that every later
  // bias has.
  LibraryBuffers shown = buffers;
  shown.bias = reinterpret_cast<const std::byte*>(std::uintptr_t{16});
  set_pointers(prepared.product, problem, shown);
  prepared.a = make_layout(problem.b, problem.n, problem.k);
  prepared.b = make_layout(problem.a, problem.m, problem.k);
  prepared.addend = make_addend(problem);
  prepared.out = make_layout(problem.out, problem.n, problem.m, problem.out_stride);
  cublasLtMatmulHeuristicResult_t result{};
  int results = 0;
  const cublasStatus_t status = cublaslt().heuristic(handle_.get(), prepared.product.get(), prepared.a.get(),
                                                     prepared.b.get(), prepared.addend.get(), prepared.out.get(),
                                                     make_preference(problem).get(), 1, &result, &results);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) cublaslt_check(status, "cublasLtMatmulAlgoGetHeuristic");
  if (results > 0 && result.state == CUBLAS_STATUS_SUCCESS) prepared.algorithm = result.algo;
  return prepared_.emplace(problem, std::move(prepared)).first->second;
}

bool CublasLt::multiply(const LibraryProblem& problem, const LibraryBuffers& buffers) {
  Prepared& with = prepared(problem, buffers);
  if (!with.algorithm) return false;
  set_pointers(with.product, problem, buffers);
  const float alpha = 1.0f;
  const float beta = problem.accumulate ? 1.0f : 0.0f;
  const std::byte* const addend = is_float8(problem.out) ? nullptr : buffers.out;
  const cublasStatus_t status =
      cublaslt().matmul(handle_.get(), with.product.get(), &alpha, buffers.b, with.a.get(), buffers.a, with.b.get(),
                        &beta, addend, with.addend.get(), buffers.out, with.out.get(), &*with.algorithm,
                        buffers.workspace, kLtWorkspaceBytes, context_.stream());
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) {  // the heuristic has named an algorithm that the product refuses
    with.algorithm.reset();
    return false;
  }
  cublaslt_check(status, "cublasLtMatmul");
  return true;
}

}  // namespace fp8lab::cuda
