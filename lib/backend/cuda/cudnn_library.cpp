#include "backend/cuda/cudnn_library.h"

#include <cudnn.h>
#include <cudnn_backend.h>
#include <dlfcn.h>
#include <nvrtc.h>

// The functions that cuDNN's header-only frontend calls, passed on to the library found at run time.
namespace fp8lab::cuda {
namespace {

struct Library {
  void* handle = nullptr;
  std::string unavailable;
};

Library open_library(const char* versioned, const char* plain) {
  Library library;
  for (const char* name : {versioned, plain})
    if (library.handle == nullptr) library.handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library.handle == nullptr) {
    const char* const error = dlerror();
    library.unavailable = error != nullptr ? error : "unknown error";
  }
  return library;
}

const Library& cudnn() {
  static const Library library = open_library("libcudnn.so.9", "libcudnn.so");
  return library;
}
const Library& nvrtc() {
  static const Library library = open_library("libnvrtc.so.13", "libnvrtc.so");
  return library;
}

/// Null where the library or the function is missing.
template <class Function>
Function* find(const Library& library, const char* name) {
  return library.handle == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(library.handle, name));
}

template <class... Parameters, class... Arguments>
cudnnStatus_t call(cudnnStatus_t (*function)(Parameters...), Arguments... arguments) {
  return function != nullptr ? function(arguments...) : CUDNN_STATUS_NOT_INITIALIZED;
}
template <class... Parameters, class... Arguments>
nvrtcResult call(nvrtcResult (*function)(Parameters...), Arguments... arguments) {
  return function != nullptr ? function(arguments...) : NVRTC_ERROR_INTERNAL_ERROR;
}

}  // namespace

const std::string& load_cudnn() { return cudnn().unavailable; }

}  // namespace fp8lab::cuda

using fp8lab::cuda::call;
using fp8lab::cuda::cudnn;
using fp8lab::cuda::find;
using fp8lab::cuda::nvrtc;

extern "C" {

size_t cudnnGetVersion() {
  static auto* const function = find<decltype(cudnnGetVersion)>(cudnn(), "cudnnGetVersion");
  return function != nullptr ? function() : 0;
}
const char* cudnnGetErrorString(cudnnStatus_t status) {
  static auto* const function = find<decltype(cudnnGetErrorString)>(cudnn(), "cudnnGetErrorString");
  return function != nullptr ? function(status) : "cuDNN is not loaded";
}
void cudnnGetLastErrorString(char* message, size_t max_size) {
  static auto* const function = find<decltype(cudnnGetLastErrorString)>(cudnn(), "cudnnGetLastErrorString");
  if (function != nullptr) {
    function(message, max_size);
  } else if (max_size > 0) {
    message[0] = '\0';
  }
}
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  static auto* const function = find<decltype(cudnnCreate)>(cudnn(), "cudnnCreate");
  return call(function, handle);
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  static auto* const function = find<decltype(cudnnDestroy)>(cudnn(), "cudnnDestroy");
  return call(function, handle);
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  static auto* const function = find<decltype(cudnnSetStream)>(cudnn(), "cudnnSetStream");
  return call(function, handle, stream);
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  static auto* const function = find<decltype(cudnnGetStream)>(cudnn(), "cudnnGetStream");
  return call(function, handle, stream);
}
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* descriptor) {
  static auto* const function = find<decltype(cudnnBackendCreateDescriptor)>(cudnn(), "cudnnBackendCreateDescriptor");
  return call(function, type, descriptor);
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  static auto* const function = find<decltype(cudnnBackendDestroyDescriptor)>(cudnn(), "cudnnBackendDestroyDescriptor");
  return call(function, descriptor);
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  static auto* const function = find<decltype(cudnnBackendFinalize)>(cudnn(), "cudnnBackendFinalize");
  return call(function, descriptor);
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t attribute,
                                       cudnnBackendAttributeType_t type, int64_t count, const void* elements) {
  static auto* const function = find<decltype(cudnnBackendSetAttribute)>(cudnn(), "cudnnBackendSetAttribute");
  return call(function, descriptor, attribute, type, count, elements);
}
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor, cudnnBackendAttributeName_t attribute,
                                       cudnnBackendAttributeType_t type, int64_t requested, int64_t* count, void* elements) {
  static auto* const function = find<decltype(cudnnBackendGetAttribute)>(cudnn(), "cudnnBackendGetAttribute");
  return call(function, descriptor, attribute, type, requested, count, elements);
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack) {
  static auto* const function = find<decltype(cudnnBackendExecute)>(cudnn(), "cudnnBackendExecute");
  return call(function, handle, plan, pack);
}

nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char* source, const char* name, int headers,
                               const char* const* header_sources, const char* const* include_names) {
  static auto* const function = find<decltype(nvrtcCreateProgram)>(nvrtc(), "nvrtcCreateProgram");
  return call(function, program, source, name, headers, header_sources, include_names);
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
  static auto* const function = find<decltype(nvrtcDestroyProgram)>(nvrtc(), "nvrtcDestroyProgram");
  return call(function, program);
}
nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char* const* options) {
  static auto* const function = find<decltype(nvrtcCompileProgram)>(nvrtc(), "nvrtcCompileProgram");
  return call(function, program, count, options);
}
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t* size) {
  static auto* const function = find<decltype(nvrtcGetCUBINSize)>(nvrtc(), "nvrtcGetCUBINSize");
  return call(function, program, size);
}
nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* cubin) {
  static auto* const function = find<decltype(nvrtcGetCUBIN)>(nvrtc(), "nvrtcGetCUBIN");
  return call(function, program, cubin);
}
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t* size) {
  static auto* const function = find<decltype(nvrtcGetProgramLogSize)>(nvrtc(), "nvrtcGetProgramLogSize");
  return call(function, program, size);
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char* log) {
  static auto* const function = find<decltype(nvrtcGetProgramLog)>(nvrtc(), "nvrtcGetProgramLog");
  return call(function, program, log);
}

}  // extern "C"
