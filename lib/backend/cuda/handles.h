#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <type_traits>

// Owners of the CUDA runtime's resources. Each raw handle has one owner; destructors cannot throw, so they ignore
// errors of a context that is shutting down.
namespace fp8lab::cuda {

template <auto Destroy>
struct Destroyer {
  template <class Handle>
  void operator()(Handle* handle) const noexcept {
    static_cast<void>(Destroy(handle));
  }
};

using Stream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, Destroyer<cudaStreamDestroy>>;
using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, Destroyer<cudaEventDestroy>>;
/// Device memory from cudaMalloc.
using DeviceBytes = std::unique_ptr<std::byte, Destroyer<cudaFree>>;
/// Page-locked host memory.
using PinnedBytes = std::unique_ptr<std::byte, Destroyer<cudaFreeHost>>;

/// A stream on the current GPU that does not synchronize with the default stream.
Stream make_stream();
/// An event; without `timed` it only orders work.
Event make_event(bool timed = false);
/// Device memory outside of the ledger. Throws OutOfMemory, which leaves the GPU usable.
DeviceBytes allocate_device(std::size_t bytes);
PinnedBytes allocate_pinned(std::size_t bytes);

}  // namespace fp8lab::cuda
