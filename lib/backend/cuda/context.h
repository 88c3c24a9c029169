#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <typeindex>
#include <utility>
#include <vector>

#include "backend/cuda/handles.h"
#include "backend/kernels.h"

namespace fp8lab::cuda {

/// Where one rank's kernels run: a GPU, its stream, scratch memory, and what the libraries keep between calls. Used by
/// one thread at a time, whose current GPU is this one. Scratch and libraries' workspaces are outside of the ledger;
/// they show in what the driver reports.
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
  /// Of one block, once a kernel's attribute has been raised.
  std::size_t shared_bytes() const { return shared_bytes_; }

  /// Scratch of the kernel being launched: aligned to 256 bytes, of undefined contents, its own until the next call.
  /// Grows, which waits for the GPU, and stays.
  std::byte* scratch(std::size_t bytes);

  /// A copy of host data on the GPU for the kernel about to be launched, aligned to 256 bytes: valid for work that is
  /// launched before the next upload(). Does not wait for the GPU.
  template <class T>
  const T* upload(std::span<const T> host) {
    return reinterpret_cast<const T*>(upload_bytes(std::as_bytes(host)));
  }

  /// What one family of kernels keeps between calls, such as a library's handle and plans. Made at first use as
  /// T(*this); dies with the context.
  template <class T>
  T& kept() {
    for (const auto& [type, object] : kept_)
      if (type == std::type_index(typeid(T))) return *static_cast<T*>(object.get());
    kept_.emplace_back(typeid(T), std::make_shared<T>(*this));
    return *static_cast<T*>(kept_.back().second.get());
  }

  void synchronize();

  /// Keeps a line for Device::notes(), once.
  void note(std::string line);
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  const std::byte* upload_bytes(std::span<const std::byte> host);

  int ordinal_;
  int multiprocessors_ = 0;
  std::size_t shared_bytes_ = 0;
  Stream stream_;
  DeviceBytes scratch_;
  std::size_t scratch_bytes_ = 0;

  // Uploads go round a ring of page-locked memory and its twin on the GPU; an upload that comes to a slot again waits
  // for the work that read it.
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
  std::vector<std::pair<std::type_index, std::shared_ptr<void>>> kept_;  // destroyed before the stream
};

inline CudaContext& cuda_context(ExecContext& context) { return static_cast<CudaContext&>(context); }

}  // namespace fp8lab::cuda
