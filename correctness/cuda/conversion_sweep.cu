#include <cuda_fp8.h>

#include "backend/cuda/cuda_check.h"
#include "core/float8.h"
#include "cuda/conversion_sweep.h"

namespace fp8lab {
namespace {

// Six columns of `count` bytes, in the order of ConvertedRun.
constexpr int kColumns = 6;

__global__ void convert_kernel(std::uint32_t first, std::uint32_t count, std::uint8_t* columns) {
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const float x = float_from_bits(first + i);
  const float magnitude = float_from_bits(float_bits(x) & kFloatMagnitudeMask);
  const std::uint8_t row[kColumns] = {f32_to_e4m3(x),
                                      __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3),
                                      f32_to_e5m2(x),
                                      __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2),
                                      e8m0_rceil(magnitude, E4M3::kMax),
                                      e8m0_floor(magnitude, E4M3::kEmax)};
  for (int column = 0; column < kColumns; ++column)
    columns[static_cast<std::uint64_t>(column) * count + i] = row[column];
}

__global__ void decode_kernel(std::uint32_t* bits) {
  const auto code = static_cast<std::uint8_t>(threadIdx.x);
  bits[threadIdx.x] = float_bits(e4m3_to_f32(code));
  bits[256 + threadIdx.x] = float_bits(e5m2_to_f32(code));
  bits[512 + threadIdx.x] = float_bits(e8m0_to_f32(code));
}

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t count) { cuda_check(cudaMalloc(&data_, count * sizeof(T)), "cudaMalloc"); }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  T* data() const { return data_; }

 private:
  T* data_ = nullptr;
};

template <class T>
void copy_to_host(std::vector<T>& host, const T* device, std::size_t count) {
  host.resize(count);
  cuda_check(cudaMemcpy(host.data(), device, count * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy");
}

}  // namespace

ConvertedRun convert_on_gpu(std::uint32_t first, std::uint32_t count) {
  constexpr unsigned kThreads = 256;
  const DeviceArray<std::uint8_t> columns(static_cast<std::size_t>(count) * kColumns);
  convert_kernel<<<(count + kThreads - 1) / kThreads, kThreads>>>(first, count, columns.data());
  cuda_check(cudaGetLastError(), "convert_kernel");
  ConvertedRun run;
  std::vector<std::uint8_t>* const fields[kColumns] = {&run.e4m3_ours,     &run.e4m3_hardware, &run.e5m2_ours,
                                                       &run.e5m2_hardware, &run.e8m0_rceil,    &run.e8m0_floor};
  for (int column = 0; column < kColumns; ++column)
    copy_to_host(*fields[column], columns.data() + static_cast<std::size_t>(column) * count, count);
  return run;
}

std::vector<std::uint32_t> decode_on_gpu() {
  const DeviceArray<std::uint32_t> bits(768);
  decode_kernel<<<1, 256>>>(bits.data());
  cuda_check(cudaGetLastError(), "decode_kernel");
  std::vector<std::uint32_t> host;
  copy_to_host(host, bits.data(), 768);
  return host;
}

}  // namespace fp8lab
