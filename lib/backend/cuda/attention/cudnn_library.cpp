#include "backend/cuda/attention/cudnn_library.h"

#include <cudnn.h>
#include <nvrtc.h>

#include <type_traits>

#include "core/shared_library.h"

// The functions that cuDNN's header-only frontend calls; each forwards to the library found at run time. Which
// functions these are differs between releases of the frontend, so the build lists them: the file
// FP8LAB_CUDNN_FUNCTIONS has a line for each function that the object files of this folder call.
namespace fp8lab::cuda {
namespace {

struct CudnnLibrary : SharedLibrary {
  CudnnLibrary()
      : SharedLibrary({.title = "cuDNN",
                       .names = {"libcudnn.so.9", "libcudnn.so"},
                       .folder = FP8LAB_CUDNN_FOLDER,
                       .remedy = "install cuDNN 9, or name its folder in LD_LIBRARY_PATH"}) {}

#define FP8LAB_CUDNN(function) decltype(&::function) function = find(#function);
#define FP8LAB_NVRTC(function)
#include FP8LAB_CUDNN_FUNCTIONS
#undef FP8LAB_CUDNN
#undef FP8LAB_NVRTC
};

/// A separate library, with which the frontend compiles kernels at run time.
struct NvrtcLibrary : SharedLibrary {
  NvrtcLibrary()
      : SharedLibrary({.title = "NVRTC",
                       .names = {"libnvrtc.so.13", "libnvrtc.so"},
                       .folder = FP8LAB_NVRTC_FOLDER,
                       .remedy = "install it from CUDA Toolkit 13, or name its folder in LD_LIBRARY_PATH"}) {}

#define FP8LAB_CUDNN(function)
#define FP8LAB_NVRTC(function) decltype(&::function) function = find(#function);
#include FP8LAB_CUDNN_FUNCTIONS
#undef FP8LAB_CUDNN
#undef FP8LAB_NVRTC
};

/// The result of a function whose library is missing.
template <class Result>
Result unavailable() {
  if constexpr (std::is_same_v<Result, cudnnStatus_t>)
    return CUDNN_STATUS_NOT_INITIALIZED;
  else if constexpr (std::is_same_v<Result, nvrtcResult>)
    return NVRTC_ERROR_INTERNAL_ERROR;
  else if constexpr (std::is_same_v<Result, const char*>)
    return "the library is not loaded";
  else
    return Result();  // a version: 0; nothing
}

template <auto Function>
struct Forward;
template <class Library, class Result, class... Parameters, Result (*Library::*Function)(Parameters...)>
struct Forward<Function> {
  static Result call(Parameters... parameters) {
    const auto function = find_library<Library>().*Function;
    return function != nullptr ? function(parameters...) : unavailable<Result>();
  }
};

}  // namespace

const std::string& load_cudnn() { return find_library<CudnnLibrary>().unavailable_reason(); }

}  // namespace fp8lab::cuda

// A function is defined by its declaration in the library's header: the attribute `ifunc` takes the function to call
// from a resolver, so that no parameter is written here. A resolver runs before main() and therefore opens no library.
#define FP8LAB_FORWARD(library, name)                                    \
  extern "C" {                                                           \
  [[gnu::used]] static decltype(&::name) fp8lab_resolve_##name() {       \
    return &fp8lab::cuda::Forward<&fp8lab::cuda::library::name>::call;   \
  }                                                                      \
  decltype(::name) name __attribute__((ifunc("fp8lab_resolve_" #name))); \
  }
#define FP8LAB_CUDNN(function) FP8LAB_FORWARD(CudnnLibrary, function)
#define FP8LAB_NVRTC(function) FP8LAB_FORWARD(NvrtcLibrary, function)
#include FP8LAB_CUDNN_FUNCTIONS
