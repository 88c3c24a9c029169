#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "reference/test_data.h"
#include "support/dense.h"

namespace fp8lab::support {

/// A device whose fresh memory holds NaN, and tensors on it.
class DenseTest : public ::testing::Test {
 protected:
  Tensor gaussian(const Shape& shape, DType dtype = DType::kF32, std::uint64_t seed = 1) {
    return make_tensor(*device_, shape, dtype, reference::gaussian_values(shape.numel(), seed));
  }
  Tensor empty(const Shape& shape, DType dtype = DType::kF32) { return device_->allocate({shape, dtype}, anyone()); }
  HolderId anyone() { return support::anyone(*device_); }

  std::unique_ptr<Device> device_ = open_poisoned_device();
};

}  // namespace fp8lab::support
