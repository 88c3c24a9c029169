#include "backend/meta/meta_device.h"

#include "core/check.h"

namespace fp8lab {
namespace {

// Hands out each address once; nothing reads from them. They start above zero, so that none is null.
class AddressSpace final : public SegmentSource {
 public:
  std::byte* reserve(std::size_t bytes) override {
    std::byte* segment = reinterpret_cast<std::byte*>(next_);
    next_ += bytes;
    return segment;
  }
  void release(std::byte*, std::size_t) noexcept override {}
  void fill(std::byte*, std::byte, std::size_t) noexcept override {}  // there is no memory to fill

 private:
  std::uintptr_t next_ = std::uintptr_t{1} << 40;
};

class MetaDevice final : public Device {
 public:
  using Device::Device;
  bool computes() const override { return false; }
  void write_bytes(const Tensor&, std::span<const std::byte>) override {}
  void copy_bytes(const Tensor&, const Tensor&) override {}
  void write(const Tensor&, std::span<const float>) override {}
  void synchronize() override {}

 private:
  void copy_values_to_host(const Tensor&, std::span<float>) override {}
  void copy_bytes_to_host(const Tensor&, std::span<std::byte>) override {}
};

// Converts to a kernel of any arguments that does nothing.
struct Nothing {
  template <class Args>
  constexpr operator Kernel<Args>() const {
    return Kernel<Args>([](const Args&, ExecContext&) {});
  }
};
constexpr Nothing kNothing;

#define FP8LAB_KERNEL_ROW(name, Args) .name = kNothing,
constexpr KernelTable kMetaKernels = {FP8LAB_KERNELS(FP8LAB_KERNEL_ROW)};
#undef FP8LAB_KERNEL_ROW

}  // namespace

std::unique_ptr<Device> open_meta_device(const DeviceOptions& options) {
  return std::make_unique<MetaDevice>("meta", arch_profile(options.arch), kMetaKernels,
                                      std::make_unique<AddressSpace>(), options.memory,
                                      std::make_unique<ExecContext>());
}

std::string meta_unavailable_reason() { return {}; }
std::string describe_meta() { return "any model size; no values, so no parity metrics"; }

}  // namespace fp8lab
