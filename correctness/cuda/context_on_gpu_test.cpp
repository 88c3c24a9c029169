#include <gtest/gtest.h>

#include <cstdint>
#include <memory>

#include "backend/cuda/context.h"
#include "backend/device.h"
#include "core/check.h"
#include "support/dense.h"

// Memory of a context, in addition to what the device's allocator keeps.
namespace fp8lab {
namespace {

TEST(ContextOnGpu, ScratchTakesWhatTheAllocatorKeepsUnused) {
  const std::unique_ptr<Device> device = open_device("cuda");
  cuda::CudaContext& context = cuda::cuda_context(device->context());
  std::size_t free = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  const std::size_t most = free / 8 * 5;
  const auto allocate = [&] {
    return device->allocate({Shape{static_cast<std::int64_t>(most)}, DType::kE4M3}, support::anyone(*device));
  };
  allocate();
  EXPECT_GE(device->memory().allocator().reserved_bytes(), static_cast<std::int64_t>(most));
  EXPECT_NE(context.scratch(most), nullptr);
  EXPECT_LT(device->memory().allocator().reserved_bytes(), static_cast<std::int64_t>(most));
  EXPECT_THROW(allocate(), OutOfMemory);
}

}  // namespace
}  // namespace fp8lab
