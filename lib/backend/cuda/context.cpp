#include "backend/cuda/context.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "backend/cuda/cuda_check.h"
#include "core/check.h"

namespace fp8lab::cuda {
namespace {

// Enough slots that a few launches are in flight while the host fills the next slot.
constexpr std::size_t kUploadSlots = 4;
constexpr std::size_t kSmallestSlot = std::size_t{64} << 10;

std::size_t attribute(cudaDeviceAttr which, int ordinal) {
  int value = 0;
  cuda_check(cudaDeviceGetAttribute(&value, which, ordinal), "cudaDeviceGetAttribute");
  return static_cast<std::size_t>(value);
}

}  // namespace

Stream make_stream() {
  cudaStream_t stream = nullptr;
  cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return Stream(stream);
}

Event make_event(bool timed) {
  cudaEvent_t event = nullptr;
  cuda_check(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming),
             "cudaEventCreateWithFlags");
  return Event(event);
}

DeviceBytes allocate_device(std::size_t bytes) {
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // clears the error of this call, so that no later check reports it
    std::size_t free = 0, total = 0;
    cuda_check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    throw OutOfMemory(fmt::format(
        "out of device memory: {} B of scratch asked for; the GPU has {} B free of {} B, other processes' among "
        "those taken; run fewer arms at a time (--jobs), or a smaller model",
        bytes, free, total));
  }
  cuda_check(status, "cudaMalloc");
  return DeviceBytes(static_cast<std::byte*>(memory));
}

PinnedBytes allocate_pinned(std::size_t bytes) {
  void* memory = nullptr;
  cuda_check(cudaMallocHost(&memory, bytes), "cudaMallocHost");
  return PinnedBytes(static_cast<std::byte*>(memory));
}

CudaContext::CudaContext(int ordinal) : ordinal_(ordinal) {
  cuda_check(cudaSetDevice(ordinal), "cudaSetDevice");
  multiprocessors_ = static_cast<int>(attribute(cudaDevAttrMultiProcessorCount, ordinal));
  shared_bytes_ = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal);
  stream_ = make_stream();
  slots_.resize(kUploadSlots);
}

CudaContext::~CudaContext() {
  cudaSetDevice(ordinal_);
  cudaStreamSynchronize(stream_.get());
}

void CudaContext::synchronize() { cuda_check(cudaStreamSynchronize(stream()), "cudaStreamSynchronize"); }

void CudaContext::note(std::string line) {
  if (std::find(notes_.begin(), notes_.end(), line) == notes_.end()) notes_.push_back(std::move(line));
}

DeviceBytes CudaContext::allocate(std::size_t bytes) {
  try {
    return allocate_device(bytes);
  } catch (const OutOfMemory&) {
    if (!release_cached_) throw;
  }
  synchronize();
  release_cached_();
  return allocate_device(bytes);
}

std::byte* CudaContext::scratch(std::size_t bytes) {
  if (bytes > scratch_bytes_) {
    synchronize();
    scratch_.reset();
    scratch_bytes_ = 0;
    scratch_ = allocate(bytes);
    scratch_bytes_ = bytes;
  }
  return scratch_.get();
}

const std::byte* CudaContext::upload_bytes(std::span<const std::byte> host) {
  // The work that reads the slot handed out last has been launched by now.
  if (Slot& last = slots_[(next_slot_ + kUploadSlots - 1) % kUploadSlots]; last.used)
    cuda_check(cudaEventRecord(last.last_read.get(), stream()), "cudaEventRecord");
  Slot& slot = slots_[next_slot_];
  next_slot_ = (next_slot_ + 1) % kUploadSlots;
  if (slot.used) cuda_check(cudaEventSynchronize(slot.last_read.get()), "cudaEventSynchronize");
  if (slot.bytes < host.size()) {
    const std::size_t bytes = std::max(kSmallestSlot, 2 * host.size());
    slot.host.reset();
    slot.device.reset();
    slot.bytes = 0;
    slot.host = allocate_pinned(bytes);
    slot.device = allocate(bytes);
    slot.bytes = bytes;
    if (!slot.last_read) slot.last_read = make_event();
  }
  slot.used = true;
  std::memcpy(slot.host.get(), host.data(), host.size());
  cuda_check(cudaMemcpyAsync(slot.device.get(), slot.host.get(), host.size(), cudaMemcpyHostToDevice, stream()),
             "cudaMemcpyAsync");
  return slot.device.get();
}

}  // namespace fp8lab::cuda
