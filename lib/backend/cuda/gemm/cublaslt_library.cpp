#include "backend/cuda/gemm/cublaslt_library.h"

#include <fmt/core.h>

namespace fp8lab::cuda {

CublasLtLibrary::CublasLtLibrary()
    : CublasLtLibrary({.title = "cuBLASLt",
                       .names = {fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR)},
                       .folder = FP8LAB_CUBLASLT_FOLDER,
                       .remedy = fmt::format("install it from CUDA Toolkit {}, or name its folder in LD_LIBRARY_PATH",
                                             CUBLAS_VER_MAJOR)}) {}

std::string CublasLtLibrary::version() const {
  const std::size_t version = get_version();
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace fp8lab::cuda
