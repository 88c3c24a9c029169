#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/arch.h"
#include "backend/kernels.h"
#include "backend/peer_access.h"
#include "memory/memory.h"
#include "tensor/tensor.h"

namespace fp8lab {

class Device;
class QuantizedTensor;

/// A moment in the order of the work that a device was given.
class Moment {
 public:
  virtual ~Moment() = default;
};

/// Who wants to see what is cast to eight bits.
class CastWatch {
 public:
  virtual ~CastWatch() = default;
  /// `made` was just cast from `x`, which nothing has changed yet.
  virtual void saw_cast(Device& device, const Tensor& x, const QuantizedTensor& made) = 0;
};

/// One device as one rank sees it: memory, kernels, an architecture. Owns its memory; outlives every tensor on it.
class Device {
 public:
  Device(std::string_view name, const ArchProfile& arch, const KernelTable& kernels,
         std::unique_ptr<SegmentSource> source, MemoryOptions memory_options, std::unique_ptr<ExecContext> context)
      : name_(name),
        arch_(arch),
        kernels_(kernels),
        memory_(std::move(source), memory_options),
        context_(std::move(context)) {}
  virtual ~Device() = default;

  std::string_view name() const { return name_; }
  const ArchProfile& arch() const { return arch_; }
  Memory& memory() { return memory_; }
  Ledger& ledger() { return memory_.ledger(); }

  /// False where kernels do nothing, so that no value can be read back.
  virtual bool computes() const = 0;
  /// Copies the tensor's elements to host memory, converted to float, row-major. Throws where computes() is false.
  virtual std::vector<float> read(const Tensor& tensor) = 0;
  /// Copies the bytes of a contiguous tensor to the host. Throws where computes() is false.
  virtual std::vector<std::byte> read_bytes(const Tensor& tensor) = 0;
  /// The other way: sets a contiguous tensor's bytes. Does nothing where computes() is false.
  virtual void write_bytes(const Tensor& tensor, std::span<const std::byte> bytes) = 0;
  /// Copies the bytes of a contiguous tensor into another of as many, as this device copies best. Does nothing where
  /// computes() is false.
  virtual void copy_bytes(const Tensor& from, const Tensor& to) = 0;
  /// Sets a contiguous tensor's elements from host floats, converted with round-to-nearest-even. Does nothing where
  /// computes() is false.
  virtual void write(const Tensor& tensor, std::span<const float> values) = 0;
  /// Returns when everything launched has finished.
  virtual void synchronize() = 0;
  /// After everything launched so far. The base class takes the host's clock, for devices that compute while they
  /// launch.
  virtual std::unique_ptr<Moment> moment();
  /// Waits for `end`. Both are this device's.
  virtual double seconds_between(const Moment& begin, const Moment& end);

  /// How ranks' collectives reach this device's memory; null where it is the host's own, or none at all.
  virtual PeerAccess* peer_access() { return nullptr; }
  /// What kernels run on, for those who launch work of their own beside them; the backend's own type.
  ExecContext& context() { return *context_; }
  /// Bytes of device memory that the driver counts as this device's beyond the allocator's reserved ones: contexts,
  /// libraries, scratch. Nothing where there is no driver.
  virtual std::optional<std::int64_t> driver_overhead_bytes() { return std::nullopt; }
  /// Which way went what can go several paths, such as attention through a library, in the order of their first use; a
  /// line each.
  virtual std::vector<std::string> notes() { return {}; }

  /// Gets the casts of stored tensors until it is replaced; null: nobody does. What an operation casts without storing
  /// it first (casts_unstored() of ops/quantize.h), or an optimizer rewrites in place, nobody sees.
  void watch_casts(CastWatch* watch) { cast_watch_ = watch; }
  CastWatch* cast_watch() const { return cast_watch_; }

  /// Uninitialised.
  Tensor allocate(const TensorSpec& spec, HolderId holder) {
    return Tensor(memory_.allocate(spec.bytes(), holder), spec);
  }
  HolderId holder(HolderKind kind, std::string_view owner = {}, std::string_view what = {}) {
    return ledger().holder(kind, owner, what);
  }

  /// The table that launch() takes kernels from; lives as long as the program.
  const KernelTable& kernels() const { return kernels_; }
  /// Kernels launched so far.
  std::int64_t launches() const { return launches_; }
  /// Runs a kernel of the table: device.launch(&KernelTable::gemm, {...}).
  template <class Args>
  void launch(Kernel<Args> KernelTable::* kernel, const Args& args) {
    ++launches_;
    (kernels_.*kernel)(args, *context_);
  }

 private:
  std::string_view name_;
  const ArchProfile& arch_;
  const KernelTable& kernels_;
  Memory memory_;
  std::unique_ptr<ExecContext> context_;
  std::int64_t launches_ = 0;
  CastWatch* cast_watch_ = nullptr;
};

struct DeviceOptions {
  std::string_view arch = "hopper";
  int rank = 0;  ///< of the ranks on this host; where there are several GPUs, rank r takes GPU r modulo their number
  MemoryOptions memory;
  bool deterministic = true;  ///< ExecContext::deterministic()
};

struct DeviceRow {
  std::string_view name;
  std::string_view title;
  std::unique_ptr<Device> (*open)(const DeviceOptions&);
  /// Empty when the device can be opened here, otherwise why not.
  std::string (*unavailable_reason)();
  /// The one architecture that it has, of those that can be opened here; empty where it takes any.
  std::string_view (*own_arch)();
  /// Of the smallest that can be opened here; 0 where memory is not the device's own.
  std::int64_t (*memory_bytes)();
  /// Details for `fp8lab devices`, one per line; empty where it cannot be opened here.
  std::string (*describe)();
};

/// The table of devices; adding one is one folder and one row.
std::span<const DeviceRow> devices();
/// Throws Error listing the known ones.
const DeviceRow& device_row(std::string_view name);
/// How many GPUs the ranks of this machine have between them on the device called `name`: 0 where it is unavailable, 1
/// where it has no GPUs. Opens each in turn.
int count_gpus(std::string_view name);
/// Throws Error when the device is unknown or unavailable.
std::unique_ptr<Device> open_device(std::string_view name, const DeviceOptions& options = {});

}  // namespace fp8lab
