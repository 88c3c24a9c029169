#include "backend/cuda/attention/cudnn_library.h"

#include <cudnn.h>
#include <cudnn_backend.h>
#include <nvrtc.h>

#include "core/shared_library.h"

// The functions that cuDNN's header-only frontend calls; each forwards to the library found at run time.
namespace fp8lab::cuda {
namespace {

struct CudnnLibrary : SharedLibrary {
  CudnnLibrary()
      : SharedLibrary({.title = "cuDNN",
                       .names = {"libcudnn.so.9", "libcudnn.so"},
                       .folder = FP8LAB_CUDNN_FOLDER,
                       .remedy = "install cuDNN 9, or name its folder in LD_LIBRARY_PATH"}) {}

  decltype(&::cudnnGetVersion) get_version = find("cudnnGetVersion");
  decltype(&::cudnnGetErrorString) get_error_string = find("cudnnGetErrorString");
  decltype(&::cudnnGetLastErrorString) get_last_error_string = find("cudnnGetLastErrorString");
  decltype(&::cudnnCreate) create = find("cudnnCreate");
  decltype(&::cudnnDestroy) destroy = find("cudnnDestroy");
  decltype(&::cudnnSetStream) set_stream = find("cudnnSetStream");
  decltype(&::cudnnGetStream) get_stream = find("cudnnGetStream");
  decltype(&::cudnnBackendCreateDescriptor) backend_create_descriptor = find("cudnnBackendCreateDescriptor");
  decltype(&::cudnnBackendDestroyDescriptor) backend_destroy_descriptor = find("cudnnBackendDestroyDescriptor");
  decltype(&::cudnnBackendFinalize) backend_finalize = find("cudnnBackendFinalize");
  decltype(&::cudnnBackendSetAttribute) backend_set_attribute = find("cudnnBackendSetAttribute");
  decltype(&::cudnnBackendGetAttribute) backend_get_attribute = find("cudnnBackendGetAttribute");
  decltype(&::cudnnBackendExecute) backend_execute = find("cudnnBackendExecute");
};

/// A library of its own: cuDNN's frontend calls it to compile kernels at run time.
struct NvrtcLibrary : SharedLibrary {
  NvrtcLibrary()
      : SharedLibrary({.title = "NVRTC",
                       .names = {"libnvrtc.so.13", "libnvrtc.so"},
                       .folder = FP8LAB_NVRTC_FOLDER,
                       .remedy = "install it from CUDA Toolkit 13, or name its folder in LD_LIBRARY_PATH"}) {}

  decltype(&::nvrtcCreateProgram) create_program = find("nvrtcCreateProgram");
  decltype(&::nvrtcDestroyProgram) destroy_program = find("nvrtcDestroyProgram");
  decltype(&::nvrtcCompileProgram) compile_program = find("nvrtcCompileProgram");
  decltype(&::nvrtcGetCUBINSize) get_cubin_size = find("nvrtcGetCUBINSize");
  decltype(&::nvrtcGetCUBIN) get_cubin = find("nvrtcGetCUBIN");
  decltype(&::nvrtcGetProgramLogSize) get_program_log_size = find("nvrtcGetProgramLogSize");
  decltype(&::nvrtcGetProgramLog) get_program_log = find("nvrtcGetProgramLog");
};

const CudnnLibrary& cudnn() { return find_library<CudnnLibrary>(); }
const NvrtcLibrary& nvrtc() { return find_library<NvrtcLibrary>(); }

template <class... Parameters, class... Arguments>
cudnnStatus_t call(cudnnStatus_t (*function)(Parameters...), Arguments... arguments) {
  return function != nullptr ? function(arguments...) : CUDNN_STATUS_NOT_INITIALIZED;
}
template <class... Parameters, class... Arguments>
nvrtcResult call(nvrtcResult (*function)(Parameters...), Arguments... arguments) {
  return function != nullptr ? function(arguments...) : NVRTC_ERROR_INTERNAL_ERROR;
}

}  // namespace

const std::string& load_cudnn() { return cudnn().unavailable_reason(); }

}  // namespace fp8lab::cuda

using fp8lab::cuda::call;
using fp8lab::cuda::cudnn;
using fp8lab::cuda::nvrtc;

extern "C" {

size_t cudnnGetVersion() { return cudnn().get_version != nullptr ? cudnn().get_version() : 0; }
const char* cudnnGetErrorString(cudnnStatus_t status) {
  return cudnn().get_error_string != nullptr ? cudnn().get_error_string(status) : "cuDNN is not loaded";
}
void cudnnGetLastErrorString(char* message, size_t max_size) {
  if (cudnn().get_last_error_string != nullptr) {
    cudnn().get_last_error_string(message, max_size);
  } else if (max_size > 0) {
    message[0] = '\0';
  }
}
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) { return call(cudnn().create, handle); }
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) { return call(cudnn().destroy, handle); }
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  return call(cudnn().set_stream, handle, stream);
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  return call(cudnn().get_stream, handle, stream);
}
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* descriptor) {
  return call(cudnn().backend_create_descriptor, type, descriptor);
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  return call(cudnn().backend_destroy_descriptor, descriptor);
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  return call(cudnn().backend_finalize, descriptor);
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t attribute,
                                       cudnnBackendAttributeType_t type, int64_t count, const void* elements) {
  return call(cudnn().backend_set_attribute, descriptor, attribute, type, count, elements);
}
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor, cudnnBackendAttributeName_t attribute,
                                       cudnnBackendAttributeType_t type, int64_t requested, int64_t* count,
                                       void* elements) {
  return call(cudnn().backend_get_attribute, descriptor, attribute, type, requested, count, elements);
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack) {
  return call(cudnn().backend_execute, handle, plan, pack);
}

nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char* source, const char* name, int headers,
                               const char* const* header_sources, const char* const* include_names) {
  return call(nvrtc().create_program, program, source, name, headers, header_sources, include_names);
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) { return call(nvrtc().destroy_program, program); }
nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char* const* options) {
  return call(nvrtc().compile_program, program, count, options);
}
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t* size) {
  return call(nvrtc().get_cubin_size, program, size);
}
nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* cubin) { return call(nvrtc().get_cubin, program, cubin); }
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t* size) {
  return call(nvrtc().get_program_log_size, program, size);
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char* log) { return call(nvrtc().get_program_log, program, log); }

}  // extern "C"
