#include "backend/cuda/cuda_device.h"

#include <fmt/core.h>

#include <algorithm>

#include "backend/cuda/context.h"
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/gemm/cublaslt_library.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/peer/peer_access.h"
#include "backend/cuda/throttling.h"

namespace fp8lab {
namespace {

using cuda::CudaContext;

/// Segments from cudaMalloc on the thread's current GPU.
class CudaSegmentSource final : public SegmentSource {
 public:
  CudaSegmentSource(int ordinal, cudaStream_t stream) : ordinal_(ordinal), stream_(stream) {}

  std::byte* reserve(std::size_t bytes) override {
    void* segment = nullptr;
    const cudaError_t status = cudaMalloc(&segment, bytes);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // clears the error: the allocator handles this failure, and the next launch must not report
                           // it
      return nullptr;
    }
    cuda_check(status, "cudaMalloc");
    return static_cast<std::byte*>(segment);
  }

  // cudaFree waits for the GPU, so no work that was launched still uses the segment.
  void release(std::byte* segment, std::size_t) noexcept override {
    cudaSetDevice(ordinal_);
    cudaFree(segment);
  }

  void fill(std::byte* at, std::byte value, std::size_t bytes) noexcept override {
    cudaMemsetAsync(at, std::to_integer<int>(value), bytes, stream_);
  }

 private:
  int ordinal_;
  cudaStream_t stream_;
};

#define FP8LAB_KERNEL_ROW(name, Args) .name = cuda::name,
constexpr KernelTable kCudaKernels = {FP8LAB_KERNELS(FP8LAB_KERNEL_ROW)};
#undef FP8LAB_KERNEL_ROW

class CudaMoment final : public Moment {
 public:
  cuda::Event event = cuda::make_event(true);
};

class CudaDevice final : public Device {
 public:
  CudaDevice(const ArchProfile& arch, MemoryOptions memory, std::unique_ptr<SegmentSource> source,
             std::unique_ptr<CudaContext> context)
      : Device("cuda", arch, kCudaKernels, std::move(source), memory, std::move(context)), access_(gpu()) {
    gpu().release_by([this] { this->memory().release_cached(); });
  }

  bool computes() const override { return true; }

  void copy_values_to_host(const Tensor& tensor, std::span<float> values) override {
    const std::size_t bytes = values.size_bytes();
    const MatrixView view = tensor.view();
    const MatrixView floats{.data = gpu().scratch(bytes),
                            .dtype = DType::kF32,
                            .rows = view.rows,
                            .cols = view.cols,
                            .row_stride = view.cols,
                            .col_stride = 1};
    cuda::cast({.in = view, .out = floats}, gpu());
    copy_to_host(values.data(), floats.data, bytes);
  }

  void copy_bytes_to_host(const Tensor& tensor, std::span<std::byte> bytes) override {
    copy_to_host(bytes.data(), tensor.view().data, bytes.size());
  }

  void write_bytes(const Tensor& tensor, std::span<const std::byte> bytes) override {
    check(tensor.contiguous(), "write_bytes: the tensor is not contiguous");
    check(static_cast<std::int64_t>(bytes.size()) == tensor.bytes(),
          "write_bytes: the number of bytes must be the tensor's");
    if (!bytes.empty()) copy_to_gpu(tensor.view().data, bytes.data(), bytes.size());
  }

  void copy_bytes(const Tensor& from, const Tensor& to) override {
    check(from.contiguous() && to.contiguous() && from.bytes() == to.bytes(),
          "copy_bytes: two contiguous tensors of one size are needed");
    cuda_check(cudaMemcpyAsync(to.view().data, from.view().data, static_cast<std::size_t>(from.bytes()),
                               cudaMemcpyDeviceToDevice, gpu().stream()),
               "cudaMemcpyAsync");
  }

  void write(const Tensor& tensor, std::span<const float> values) override {
    check(static_cast<std::int64_t>(values.size()) == tensor.numel(),
          "write: the number of values must be the tensor's number of elements");
    if (values.empty()) return;
    const MatrixView view = tensor.view();
    const MatrixView floats{.data = gpu().scratch(values.size_bytes()),
                            .dtype = DType::kF32,
                            .rows = view.rows,
                            .cols = view.cols,
                            .row_stride = view.cols,
                            .col_stride = 1};
    copy_to_gpu(floats.data, values.data(), values.size_bytes());
    cuda::cast({.in = floats, .out = view}, gpu());
  }

  void synchronize() override { gpu().synchronize(); }
  PeerAccess* peer_access() override { return &access_; }

  std::unique_ptr<Moment> moment() override {
    auto moment = std::make_unique<CudaMoment>();
    cuda_check(cudaEventRecord(moment->event.get(), gpu().stream()), "cudaEventRecord");
    return moment;
  }

  double seconds_between(const Moment& begin, const Moment& end) override {
    const cudaEvent_t first = static_cast<const CudaMoment&>(begin).event.get(),
                      last = static_cast<const CudaMoment&>(end).event.get();
    cuda_check(cudaEventSynchronize(last), "cudaEventSynchronize");
    float milliseconds = 0.0f;
    cuda_check(cudaEventElapsedTime(&milliseconds, first, last), "cudaEventElapsedTime");
    return 1e-3 * double{milliseconds};
  }

  std::vector<std::string> notes() override {
    std::vector<std::string> notes = gpu().notes();
    if (std::string throttling = cuda::throttling_note(gpu().ordinal()); !throttling.empty())
      notes.push_back(std::move(throttling));
    return notes;
  }

  std::optional<std::int64_t> driver_overhead_bytes() override {
    std::size_t free = 0, total = 0;
    cuda_check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return static_cast<std::int64_t>(total - free) - memory().allocator().reserved_bytes();
  }

 private:
  CudaContext& gpu() { return cuda::cuda_context(context()); }

  // Both copies synchronize, since the host's vectors are pageable.
  void copy_to_host(void* to, const void* from, std::size_t bytes) {
    cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, gpu().stream()), "cudaMemcpyAsync");
    synchronize();
  }
  void copy_to_gpu(void* to, const void* from, std::size_t bytes) {
    cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, gpu().stream()), "cudaMemcpyAsync");
    synchronize();
  }

  cuda::CudaPeerAccess access_;
};

int count_gpus() {
  int count = 0;
  cuda_check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  return count;
}

cudaDeviceProp properties_of(int ordinal) {
  cudaDeviceProp properties{};
  cuda_check(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties");
  return properties;
}

// The kernels are compiled for sm_90a, with PTX for later architectures.
constexpr int kOldestMajor = 9;

std::string_view arch_of(int major) { return major == 9 ? "hopper" : "blackwell"; }

}  // namespace

void cuda_check(cudaError_t status, std::string_view call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  fail(fmt::format("{}: {}", call, cudaGetErrorString(status)));
}

void cuda_check_launch(std::string_view kernel) { cuda_check(cudaGetLastError(), kernel); }

std::unique_ptr<Device> open_cuda_device(const DeviceOptions& options) {
  const int ordinal = options.rank % count_gpus();
  const std::string_view arch = arch_of(properties_of(ordinal).major);
  check(options.arch == arch,
        fmt::format("device 'cuda': architecture '{}' was asked for; GPU {} is '{}'", options.arch, ordinal, arch));
  auto context = std::make_unique<CudaContext>(ordinal);
  auto source = std::make_unique<CudaSegmentSource>(ordinal, context->stream());
  return std::make_unique<CudaDevice>(arch_profile(arch), options.memory, std::move(source), std::move(context));
}

namespace {

std::string find_unavailable_reason() {
  int count = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess) {
    cudaGetLastError();
    return fmt::format("no NVIDIA GPU in sight: {}", cudaGetErrorString(status));
  }
  for (int i = 0; i < count; ++i)
    if (const cudaDeviceProp gpu = properties_of(i); gpu.major < kOldestMajor)
      return fmt::format("GPU {} ({}) has compute capability {}.{}; {}.0 is the oldest that this is built for", i,
                         gpu.name, gpu.major, gpu.minor, kOldestMajor);
  if (count == 0) return "no NVIDIA GPU in sight";
  return find_library<cuda::CublasLtLibrary>().unavailable_reason();
}

}  // namespace

// Determined once: the driver and cuBLASLt take longer to answer than most cells to run.
std::string cuda_unavailable_reason() {
  static const std::string kReason = find_unavailable_reason();
  return kReason;
}

std::string_view cuda_arch() {
  return cuda_unavailable_reason().empty() ? arch_of(properties_of(0).major) : std::string_view{};
}

std::vector<std::int64_t> cuda_gpu_memory() {
  std::vector<std::int64_t> memory;
  if (!cuda_unavailable_reason().empty()) return memory;
  for (int i = 0; i < count_gpus(); ++i) memory.push_back(static_cast<std::int64_t>(properties_of(i).totalGlobalMem));
  return memory;
}

std::string describe_cuda() {
  if (!cuda_unavailable_reason().empty()) return {};
  std::string text;
  for (int i = 0; i < count_gpus(); ++i) {
    const cudaDeviceProp gpu = properties_of(i);
    text += fmt::format("{}{}, compute capability {}.{}, {:.1f} GiB", i ? "\n" : "", gpu.name, gpu.major, gpu.minor,
                        static_cast<double>(gpu.totalGlobalMem) / (1 << 30));
  }
  return text + "\ncuBLASLt " + cuda::cublaslt().version();
}

}  // namespace fp8lab
