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

/// A point in the order of the work that a device was given.
class Moment {
 public:
  virtual ~Moment() = default;
};

/// Observer of casts to eight bits, and of choices that no later value shows.
class CastWatch {
 public:
  virtual ~CastWatch() = default;
  /// Called after `made` was cast from `x`, before anything changes `x`.
  virtual void saw_cast(Device& device, const Tensor& x, const QuantizedTensor& made) = 0;
  /// Called before a cast of values that are never stored, which saw_cast() will not be called for.
  virtual void missed_cast() {}
  /// Called after the router called `router` chose `experts`, i32 [tokens, choices].
  virtual void saw_choices(Device& /*device*/, std::string_view /*router*/, const Tensor& /*experts*/) {}
  /// True if layers should store what they cast while this watches: the same bits, in more memory.
  virtual bool needs_stored() const { return false; }
};

/// One device as one rank sees it: memory, kernels, an architecture. Owns its memory and must outlive every tensor on
/// it.
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

  /// False if kernels do nothing, so that no value can be read back.
  virtual bool computes() const = 0;
  /// Copies the tensor's elements to host memory, converted to float, row-major. Throws if computes() is false.
  std::vector<float> read(const Tensor& tensor);
  /// The same into the caller's memory, for repeated large reads: the operating system zeroes every fresh allocation.
  void read_to(const Tensor& tensor, std::span<float> values);
  /// Copies the bytes of a contiguous tensor to the host. Throws if computes() is false.
  std::vector<std::byte> read_bytes(const Tensor& tensor);
  /// The same into memory of the caller's.
  void read_bytes_to(const Tensor& tensor, std::span<std::byte> bytes);
  /// Copies host bytes into a contiguous tensor. Does nothing if computes() is false.
  virtual void write_bytes(const Tensor& tensor, std::span<const std::byte> bytes) = 0;
  /// Copies the bytes of a contiguous tensor into another of the same size, by this device's fastest copy. Does nothing
  /// if computes() is false.
  virtual void copy_bytes(const Tensor& from, const Tensor& to) = 0;
  /// Sets a contiguous tensor's elements from host floats, converted with round-to-nearest-even. Does nothing if
  /// computes() is false.
  virtual void write(const Tensor& tensor, std::span<const float> values) = 0;
  /// Waits until everything launched has finished.
  virtual void synchronize() = 0;
  /// The point after everything launched so far. The base class reads the host's clock, which serves devices that
  /// compute while they launch.
  virtual std::unique_ptr<Moment> moment();
  /// Waits for `end` and returns the seconds from `begin` to `end`. Both must come from this device.
  virtual double seconds_between(const Moment& begin, const Moment& end);

  /// How ranks' collectives reach this device's memory; null if it is host memory or does not exist.
  virtual PeerAccess* peer_access() { return nullptr; }
  /// The execution context of the kernels, for code that launches work of its own next to them; its dynamic type is the
  /// backend's.
  ExecContext& context() { return *context_; }
  /// Bytes of device memory that the driver counts as this device's beyond the allocator's reserved ones: contexts,
  /// libraries, scratch. Nothing if there is no driver.
  virtual std::optional<std::int64_t> driver_overhead_bytes() { return std::nullopt; }
  /// One line for each operation that has several algorithms, such as attention through a library: which algorithm it
  /// used. In the order of first use.
  virtual std::vector<std::string> notes() { return {}; }

  /// Sets the observer of the casts of stored tensors; null: none. What an operation casts without storing it first
  /// (casts_unstored() of ops/quantize.h) is a missed_cast(); what an optimizer rewrites in place is not reported.
  void watch_casts(CastWatch* watch) { cast_watch_ = watch; }
  CastWatch* cast_watch() const { return cast_watch_; }

  /// Allocates a tensor, uninitialised.
  Tensor allocate(const TensorSpec& spec, HolderId holder) {
    return Tensor(memory_.allocate(spec.bytes(), holder), spec);
  }
  HolderId holder(HolderKind kind, std::string_view owner = {}, std::string_view what = {}) {
    return ledger().holder(kind, owner, what);
  }

  /// The table from which launch() takes kernels; lives as long as the program.
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
  /// What read_to() and read_bytes_to() do once they have checked their arguments; never called for nothing.
  virtual void copy_values_to_host(const Tensor& tensor, std::span<float> values) = 0;
  virtual void copy_bytes_to_host(const Tensor& tensor, std::span<std::byte> bytes) = 0;

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
  int rank = 0;  ///< rank among those on this host; with several GPUs, rank r uses GPU r modulo their number
  MemoryOptions memory;
  bool deterministic = true;      ///< ExecContext::deterministic()
  bool tensor_core_sums = false;  ///< ExecContext::tensor_core_sums()
};

struct DeviceRow {
  std::string_view name;
  std::string_view title;
  bool computes;  ///< Device::computes()
  std::unique_ptr<Device> (*open)(const DeviceOptions&);
  /// Empty if the device can be opened here, else why not.
  std::string (*unavailable_reason)();
  /// The architecture of the device that can be opened here; empty if the device accepts any.
  std::string_view (*own_arch)();
  /// Memory in bytes of each GPU that can be opened here; empty if the device has no memory of its own.
  std::vector<std::int64_t> (*gpu_memory)();
  /// Details for `fp8lab devices`, one per line; empty if the device cannot be opened here.
  std::string (*describe)();
};

/// The table of devices; a new device is one folder and one row.
std::span<const DeviceRow> devices();
/// Throws Error listing the known names.
const DeviceRow& device_row(std::string_view name);
/// How many GPUs the ranks of this machine share on the device `name`: 0 if it is unavailable, 1 if it has no GPUs.
/// Opens one GPU after another.
int count_gpus(std::string_view name);
/// Throws Error if the device is unknown or unavailable.
std::unique_ptr<Device> open_device(std::string_view name, const DeviceOptions& options = {});

}  // namespace fp8lab
