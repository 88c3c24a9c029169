#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <typeindex>
#include <utility>
#include <vector>

#include "backend/cuda/handles.h"
#include "backend/kernels.h"

namespace fp8lab::cuda {

/// Execution context of one rank: a GPU, its stream, scratch memory, and what libraries keep between calls. One thread
/// at a time may use it, and that thread's current GPU must be this one. Scratch and the libraries' workspaces are
/// outside of the ledger; they appear in Device::driver_overhead_bytes().
class CudaContext final : public ExecContext {
 public:
  /// Makes `ordinal` the thread's current GPU.
  explicit CudaContext(int ordinal);
  ~CudaContext() override;
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  int ordinal() const { return ordinal_; }
  cudaStream_t stream() const { return stream_.get(); }
  int multiprocessors() const { return multiprocessors_; }
  /// Most bytes of shared memory per block, available once the kernel's attribute has been raised.
  std::size_t shared_bytes() const { return shared_bytes_; }

  /// Device memory outside of the ledger. Throws OutOfMemory if the GPU has too little, even without what the rank's
  /// allocator keeps and does not use.
  DeviceBytes allocate(std::size_t bytes);
  /// `release` gives the GPU back what the allocator keeps and does not use; called when all work has ended.
  void release_by(std::function<void()> release) { release_cached_ = std::move(release); }

  /// Scratch memory for the kernel about to be launched: aligned to 256 bytes, contents undefined, valid until the next
  /// call. The buffer grows as needed, which synchronizes the stream, and is kept.
  std::byte* scratch(std::size_t bytes);

  /// Copies host data to the GPU for the kernel about to be launched, aligned to 256 bytes. The copy is valid for work
  /// launched before the next upload(). Does not wait for the GPU.
  template <class T>
  const T* upload(std::span<const T> host) {
    return reinterpret_cast<const T*>(upload_bytes(std::as_bytes(host)));
  }

  /// State that one family of kernels keeps between calls, such as a library's handle and plans. Constructed at first
  /// use as T(*this); destroyed with the context.
  template <class T>
  T& kept() {
    for (const auto& [type, object] : kept_)
      if (type == std::type_index(typeid(T))) return *static_cast<T*>(object.get());
    kept_.emplace_back(typeid(T), std::make_shared<T>(*this));
    return *static_cast<T*>(kept_.back().second.get());
  }

  void synchronize();

  /// Adds a line to Device::notes(), unless it is there already.
  void note(std::string line);
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  const std::byte* upload_bytes(std::span<const std::byte> host);

  int ordinal_;
  int multiprocessors_ = 0;
  std::size_t shared_bytes_ = 0;
  Stream stream_;
  std::function<void()> release_cached_;
  DeviceBytes scratch_;
  std::size_t scratch_bytes_ = 0;

  // Uploads go through a ring of slots of page-locked memory, each with a buffer on the GPU; an upload that reuses a
  // slot waits for the work that read it.
  struct Slot {
    PinnedBytes host;
    DeviceBytes device;
    std::size_t bytes = 0;
    Event last_read;
    bool used = false;
  };
  std::vector<Slot> slots_;
  std::size_t next_slot_ = 0;

  std::vector<std::string> notes_;
  // Declared last, so destroyed before the stream.
  std::vector<std::pair<std::type_index, std::shared_ptr<void>>> kept_;
};

inline CudaContext& cuda_context(ExecContext& context) { return static_cast<CudaContext&>(context); }

}  // namespace fp8lab::cuda
