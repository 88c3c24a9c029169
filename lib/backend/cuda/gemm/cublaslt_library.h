#pragma once

#include <cublasLt.h>

#include <string>
#include <utility>

#include "backend/cuda/handles.h"
#include "core/shared_library.h"

namespace fp8lab::cuda {

/// What is used of cuBLASLt, which takes a tenth of a second to load and is needed by products on the GPU alone.
struct CublasLtLibrary : SharedLibrary {
  /// The library of the headers' major version, of which any minor one does: its interface only grows.
  CublasLtLibrary();
  explicit CublasLtLibrary(Wanted wanted) : SharedLibrary(std::move(wanted)) {}

  /// As in "13.1.0".
  std::string version() const;

  decltype(&::cublasLtGetVersion) get_version = find("cublasLtGetVersion");
  decltype(&::cublasLtGetStatusString) status_string = find("cublasLtGetStatusString");
  decltype(&::cublasLtCreate) create = find("cublasLtCreate");
  decltype(&::cublasLtDestroy) destroy = find("cublasLtDestroy");
  decltype(&::cublasLtMatmul) matmul = find("cublasLtMatmul");
  decltype(&::cublasLtMatmulAlgoGetHeuristic) heuristic = find("cublasLtMatmulAlgoGetHeuristic");
  decltype(&::cublasLtMatmulDescCreate) create_product = find("cublasLtMatmulDescCreate");
  decltype(&::cublasLtMatmulDescDestroy) destroy_product = find("cublasLtMatmulDescDestroy");
  decltype(&::cublasLtMatmulDescSetAttribute) set_product = find("cublasLtMatmulDescSetAttribute");
  decltype(&::cublasLtMatrixLayoutCreate) create_layout = find("cublasLtMatrixLayoutCreate");
  decltype(&::cublasLtMatrixLayoutDestroy) destroy_layout = find("cublasLtMatrixLayoutDestroy");
  decltype(&::cublasLtMatmulPreferenceCreate) create_preference = find("cublasLtMatmulPreferenceCreate");
  decltype(&::cublasLtMatmulPreferenceDestroy) destroy_preference = find("cublasLtMatmulPreferenceDestroy");
  decltype(&::cublasLtMatmulPreferenceSetAttribute) set_preference = find("cublasLtMatmulPreferenceSetAttribute");
};

/// Loaded; throws Error saying what to install where it is missing.
inline const CublasLtLibrary& cublaslt() { return need_library<CublasLtLibrary>(); }

}  // namespace fp8lab::cuda
