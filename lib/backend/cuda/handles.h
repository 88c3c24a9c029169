#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <type_traits>

// Owners of the runtime's resources: each raw handle has one, and destruction, which cannot throw, ignores what a dying
// context answers.
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
/// Plain device memory.
using DeviceBytes = std::unique_ptr<std::byte, Destroyer<cudaFree>>;
/// Page-locked host memory.
using PinnedBytes = std::unique_ptr<std::byte, Destroyer<cudaFreeHost>>;

/// On the current GPU. The stream does not wait for the default one.
Stream make_stream();
/// An event for ordering alone, or one that can be timed.
Event make_event(bool timed = false);
/// Outside of the ledger. Throws OutOfMemory, which leaves the GPU as it was.
DeviceBytes allocate_device(std::size_t bytes);
PinnedBytes allocate_pinned(std::size_t bytes);

}  // namespace fp8lab::cuda
