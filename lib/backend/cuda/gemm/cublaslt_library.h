#pragma once

#include <cublasLt.h>

#include <string>
#include <utility>

#include "backend/cuda/handles.h"
#include "core/shared_library.h"

namespace fp8lab::cuda {

/// The functions of cuBLASLt that are used. The library takes a tenth of a second to load, and only products on the GPU
/// need it.
struct CublasLtLibrary : SharedLibrary {
  /// Loads the major version of the headers; any minor version of it works, since its interface only grows.
  CublasLtLibrary();
  explicit CublasLtLibrary(Wanted wanted) : SharedLibrary(std::move(wanted)) {}

  /// The version, for example "13.1.0".
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

/// The loaded library. Throws Error that names what to install if it is missing.
inline const CublasLtLibrary& cublaslt() { return need_library<CublasLtLibrary>(); }

}  // namespace fp8lab::cuda
