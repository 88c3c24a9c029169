#pragma once

#include <cublasLt.h>

#include <memory>
#include <optional>
#include <string_view>
#include <type_traits>
#include <unordered_map>

#include "backend/cuda/context.h"
#include "backend/cuda/gemm/cublaslt_library.h"
#include "backend/cuda/gemm/gemm_plan.h"

namespace fp8lab::cuda {

/// Throws Error with `call` and the library's message unless `status` is success.
void cublaslt_check(cublasStatus_t status, std::string_view call);

template <auto Destroy>
struct LtDestroyer {
  template <class Handle>
  void operator()(Handle* handle) const noexcept {
    static_cast<void>((find_library<CublasLtLibrary>().*Destroy)(handle));
  }
};

using LtHandle = std::unique_ptr<std::remove_pointer_t<cublasLtHandle_t>, LtDestroyer<&CublasLtLibrary::destroy>>;
using LtProduct =
    std::unique_ptr<std::remove_pointer_t<cublasLtMatmulDesc_t>, LtDestroyer<&CublasLtLibrary::destroy_product>>;
using LtLayout =
    std::unique_ptr<std::remove_pointer_t<cublasLtMatrixLayout_t>, LtDestroyer<&CublasLtLibrary::destroy_layout>>;
using LtPreference = std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>,
                                     LtDestroyer<&CublasLtLibrary::destroy_preference>>;

/// Size of the library's workspace, as recommended for Hopper. A multiple of 256.
inline constexpr std::size_t kLtWorkspaceBytes = std::size_t{32} << 20;

/// Device memory of one product; scales, bias and amax are null if the problem has none.
struct LibraryBuffers {
  const std::byte* a = nullptr;
  const std::byte* b = nullptr;
  const std::byte* a_scale = nullptr;
  const std::byte* b_scale = nullptr;
  const std::byte* bias = nullptr;
  std::byte* out = nullptr;
  const float* out_scale = nullptr;  ///< a result in eight bits is multiplied by this before the cast
  float* amax = nullptr;             ///< set to the largest magnitude of the result before that multiplication
  std::byte* workspace = nullptr;    ///< kLtWorkspaceBytes, aligned to 256
};

/// cuBLASLt for one context: a handle and, for each problem so far, its descriptors and algorithm, so that a repeated
/// product costs one look-up. Products of experts have new sizes in every step; 16384 problems are kept.
///
/// The algorithm is the first that the library's heuristic names, never one chosen by timing: ranks of one process,
/// ranks of several processes, and two runs of one scenario then all get the same bits, on which their comparison
/// relies. The cost, on an H200 with 13.1.0 and the shapes of bench_gemm: the best of the first eight algorithms
/// was 1.4 % faster in the median, and 10 % at most for FP8. Partial sums of a split reduction are added in FP32, in a
/// fixed order.
class CublasLt {
 public:
  explicit CublasLt(CudaContext& context);

  /// Returns false, with nothing launched, if the library has no algorithm for `problem`.
  bool multiply(const LibraryProblem& problem, const LibraryBuffers& buffers);

 private:
  struct Prepared {
    LtProduct product;
    LtLayout a, b, addend, out;
    std::optional<cublasLtMatmulAlgo_t> algorithm;
  };
  Prepared& prepared(const LibraryProblem& problem, const LibraryBuffers& buffers);

  CudaContext& context_;
  LtHandle handle_;
  std::unordered_map<LibraryProblem, Prepared, LibraryProblemHash> prepared_;
};

}  // namespace fp8lab::cuda
