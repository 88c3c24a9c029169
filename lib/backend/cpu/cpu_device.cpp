#include "backend/cpu/cpu_device.h"

#include <cstdlib>
#include <cstring>
#include <new>

#include "backend/cpu/kernels.h"
#include "backend/instruction_sets.h"
#include "core/check.h"

namespace fp8lab {
namespace {

class HostMemory final : public SegmentSource {
 public:
  std::byte* reserve(std::size_t bytes) override {
    return static_cast<std::byte*>(::operator new(bytes, std::align_val_t{4096}, std::nothrow));
  }
  void release(std::byte* segment, std::size_t) noexcept override {
    ::operator delete(segment, std::align_val_t{4096});
  }
};

#define FP8LAB_KERNEL_ROW(name, Args) .name = cpu::name,
constexpr KernelTable kCpuKernels = {FP8LAB_KERNELS(FP8LAB_KERNEL_ROW)};
#undef FP8LAB_KERNEL_ROW

class CpuDevice final : public Device {
 public:
  using Device::Device;
  bool computes() const override { return true; }

  void copy_values_to_host(const Tensor& tensor, std::span<float> values) override {
    ExecContext context;
    cpu::cast({.in = tensor.view(), .out = host_matrix(values.data(), tensor)}, context);
  }

  void copy_bytes_to_host(const Tensor& tensor, std::span<std::byte> bytes) override {
    std::memcpy(bytes.data(), tensor.view().data, bytes.size());
  }

  void write_bytes(const Tensor& tensor, std::span<const std::byte> bytes) override {
    check(tensor.contiguous(), "write_bytes: the tensor is not contiguous");
    check(static_cast<std::int64_t>(bytes.size()) == tensor.bytes(),
          "write_bytes: the number of bytes must be the tensor's");
    if (!bytes.empty()) std::memcpy(tensor.view().data, bytes.data(), bytes.size());
  }

  void copy_bytes(const Tensor& from, const Tensor& to) override {
    check(from.contiguous() && to.contiguous() && from.bytes() == to.bytes(),
          "copy_bytes: two contiguous tensors of one size are needed");
    if (from.bytes() > 0) std::memcpy(to.view().data, from.view().data, static_cast<std::size_t>(from.bytes()));
  }

  void write(const Tensor& tensor, std::span<const float> values) override {
    check(static_cast<std::int64_t>(values.size()) == tensor.numel(),
          "write: the number of values must be the tensor's number of elements");
    ExecContext context;
    cpu::cast({.in = host_matrix(const_cast<float*>(values.data()), tensor), .out = tensor.view()}, context);
  }

  void synchronize() override {}

 private:
  static MatrixView host_matrix(float* values, const Tensor& tensor) {
    return {.data = reinterpret_cast<std::byte*>(values),
            .dtype = DType::kF32,
            .rows = tensor.rows(),
            .cols = tensor.cols(),
            .row_stride = tensor.cols(),
            .col_stride = 1};
  }
};

}  // namespace

std::unique_ptr<Device> open_cpu_device(const DeviceOptions& options) {
  return std::make_unique<CpuDevice>("cpu", arch_profile(options.arch), kCpuKernels, std::make_unique<HostMemory>(),
                                     options.memory, std::make_unique<ExecContext>());
}

std::string cpu_unavailable_reason() { return {}; }
std::string describe_cpu() {
  std::string known;
  for (const std::string_view name : cpu_instruction_sets()) known += (known.empty() ? "" : ", ") + std::string(name);
  return "inner loops for " + std::string(cpu_instruction_set()) + "; FP8LAB_CPU_ISA chooses among " + known;
}

}  // namespace fp8lab
